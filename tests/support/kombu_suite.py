"""kombu's own tests for transports on that of Aerobee.

tests/integration/test_kombu_suite.py runs this file beside `common.py` of kombu's source archive. A virtual transport
delivers one message for each `drain_events`, where AMQP's delivers all that have arrived. The tests of priorities drain
once and expect all, so here they drain until nothing is left.
"""

from __future__ import annotations

import os
from typing import Any

import common  # type: ignore[import-not-found]  # of kombu's source archive
import kombu
import pytest

import aerobee_client.integrations.kombu  # noqa: F401  # registers the scheme

ENDPOINT = os.environ["AEROBEE_ENDPOINT"]
_OPTIONS = {"retry_seconds": 0}


class _DrainsAll:
    """A connection whose `drain_events` delivers what there is, as that of AMQP does."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._drain = connection, connection.drain_events

    def drain_events(self, timeout: float | None = None) -> None:
        """Deliver one message, and then those that wait."""
        self._drain(timeout=timeout)
        while True:
            try:
                self._drain(timeout=1)
            except TimeoutError:
                return


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """A connection to the broker; each test has queues of its own."""
    options = {**_OPTIONS, "queue_name_prefix": f"{request.node.cls.__name__}-{request.node.name}-"}
    made = kombu.Connection(f"aerobee://{ENDPOINT}", transport_options=options)
    if issubclass(request.node.cls, common.BasePriority):
        monkeypatch.setattr(made, "drain_events", _DrainsAll(made).drain_events)
    return made


@pytest.fixture
def invalid_connection() -> Any:
    """A connection to a port where nobody listens."""
    return kombu.Connection("aerobee://127.0.0.1:1", transport_options=_OPTIONS)


@pytest.fixture
def failover_connection() -> Any:
    """A connection whose first address is dead."""
    return kombu.Connection(f"aerobee://127.0.0.1:1;aerobee://{ENDPOINT}", transport_options=_OPTIONS)


class TestBasicFunctionality(common.BasicFunctionality):
    """Connecting, publishing, consuming."""


class TestExchangeTypes(common.BaseExchangeTypes):
    """Direct, topic and fanout."""


class TestTimeToLive(common.BaseTimeToLive):
    """Messages that expire."""


class TestPriority(common.BasePriority):
    """Queues with priorities."""


class TestMessage(common.BaseMessage):
    """Acknowledge, reject, requeue."""


class TestFailover(common.BaseFailover):
    """Several addresses."""
