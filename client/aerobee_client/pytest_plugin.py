"""Fixtures of pytest: real brokers. Installing Aerobee is enough for pytest to find them.

    async def test_orders_are_billed(aerobee_broker):
        async with aerobee_broker.connect() as client:
            ...

`aerobee_broker` is a broker for one test, with a store of its own, that creates topics on first use, and whose time
can be moved. `aerobee_session_broker` is one for all tests, and `aerobee` a namespace in it for one test: starting
nothing, it costs milliseconds. Settings in pytest's configuration:

    aerobee_store = memory      # or disk, the default: where stores are, see aerobee_client.testing.run_broker
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aerobee_client import testing
from aerobee_client.testing import BrokerProcess, Namespace, new_namespace, run_broker

_FIXTURES = frozenset({"aerobee_broker", "aerobee_session_broker", "aerobee"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings."""
    parser.addini("aerobee_store", "where the stores of brokers for tests are: memory or disk", default="disk")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Import the broker's modules while tests are collected and the first ones run, if a test needs a broker."""
    wanted = isinstance(item, pytest.Function) and not _FIXTURES.isdisjoint(item.fixturenames)
    if wanted and not item.config.option.collectonly:
        testing.prepare()


@pytest.hookimpl(trylast=True)  # brokers of the session end earlier
def pytest_sessionfinish() -> None:
    """End the processes."""
    testing.unprepare()


def _in_memory(config: pytest.Config) -> bool:
    where = config.getini("aerobee_store")
    if where not in ("memory", "disk"):
        raise pytest.UsageError(f"aerobee_store is {where!r}; give memory or disk")
    return bool(where == "memory")


@pytest.fixture
def aerobee_broker(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[BrokerProcess]:
    """A broker for one test: `.endpoint`, `.connect()`, `.advance(seconds)`, `.kill()`, `.restart()`, `.log_text()`."""
    directory = tmp_path_factory.mktemp("aerobee")
    with run_broker(directory, memory=_in_memory(pytestconfig), moving_time=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def aerobee_session_broker(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[BrokerProcess]:
    """A broker for all tests of this process. Do not stop it or move its time; use `aerobee` for a part of it."""
    directory = tmp_path_factory.mktemp("aerobee-session")
    with run_broker(directory, memory=_in_memory(pytestconfig)) as broker:
        yield broker


@pytest.fixture
def aerobee(aerobee_session_broker: BrokerProcess) -> Iterator[Namespace]:
    """A namespace of its own for one test: `.endpoint`, `.name`, `.connect()`, `.create_topic()`, `.create_group()`."""
    namespace = new_namespace(aerobee_session_broker)
    yield namespace
    namespace.close()
