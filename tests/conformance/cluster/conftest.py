"""The broker that most items share, in a module's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from aerobee_store.testing.travelling_clock import TravellingClock
from tests.support.in_process_broker import InProcessBroker
from tests.support.remoting_client import RemotingClient, remoting_broker


@dataclass(frozen=True, slots=True)
class Shared:
    """A broker for the tests of a module; each test has its own topics and groups."""

    broker: InProcessBroker
    clock: TravellingClock


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    clock = TravellingClock()
    async with remoting_broker(tmp_path_factory.mktemp("store"), clock=clock) as (broker, _):
        yield Shared(broker, clock)


@pytest_asyncio.fixture(loop_scope="module")
async def client(shared: Shared) -> AsyncIterator[RemotingClient]:
    """The test's own connection."""
    connected = await RemotingClient.connect(shared.broker.remoting)
    yield connected
    await connected.close()


@pytest_asyncio.fixture(loop_scope="module")
async def other(shared: Shared) -> AsyncIterator[RemotingClient]:
    """A second connection."""
    connected = await RemotingClient.connect(shared.broker.remoting)
    yield connected
    await connected.close()
