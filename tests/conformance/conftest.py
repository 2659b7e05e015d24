"""The broker that most items share."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.conformance.raw_client import RawClient
from tests.support.in_process_broker import in_process_broker

# Small files, so that a hundred topics are cheap; segments that fit the largest bodies; enough time for an answer to
# arrive before its deadline on a busy machine.
CONFIG: Final = """
[store]
segment_size = "32MiB"
queue_file_size = 20000
index_slot_count = 1000
index_entry_count = 4000
disk_clean_ratio = 1.0
disk_force_clean_ratio = 1.0
disk_full_ratio = 1.0
[topics]
queue_count = 4
[delivery]
poll_reserve_seconds = 1.5
"""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of `aerobee serve`."""
    config = tmp_path_factory.mktemp("config") / "aerobee.toml"
    config.write_text(CONFIG)
    return ["--dev", "--config", str(config)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> Iterator[BrokerProcess]:
    """One broker for the tests of a module that do not stop it; each test has its own topics and groups."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), arguments) as running:
        yield running


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> Iterator[BrokerProcess]:
    """A broker that the test may stop, kill and restart."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), arguments) as running:
        yield running


@pytest.fixture
async def channel(broker: BrokerProcess) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        yield channel


@pytest.fixture
def client(channel: grpc.aio.Channel) -> RawClient:
    """A client unknown to the broker."""
    return RawClient(channel)


@pytest.fixture
async def strict_client(tmp_path: Path) -> AsyncIterator[RawClient]:
    """A client of a broker without automatic creation."""
    async with in_process_broker(tmp_path / "store", dev=False) as broker:
        yield RawClient(broker.channel)


@dataclass(frozen=True, slots=True)
class Traveller:
    """A client of a broker with a clock that the test moves."""

    client: RawClient
    clock: TravellingClock


@pytest.fixture
async def traveller(tmp_path: Path) -> AsyncIterator[Traveller]:
    """A broker in the test's own loop, with automatic creation."""
    clock = TravellingClock()
    async with in_process_broker(tmp_path / "store", clock=clock) as broker:
        yield Traveller(RawClient(broker.channel), clock)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The test's own topic name; the topic is created on first use."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name.removeprefix("test_"))[:100].strip("-")


@pytest.fixture
def group(topic: str) -> str:
    """The test's own group name."""
    return f"{topic[:100]}-readers"
