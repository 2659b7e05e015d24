"""The loop in which pulls of both protocols look for messages and wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aerobee_broker.delivery.receive.long_polling import LongPolling, QueueWait
from aerobee_broker.delivery.receive.queue_pull import QueuePull
from aerobee_broker.errors import TopicNotFoundError
from aerobee_broker.filters.message_filter import filter_of
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.tables.topics import TopicConfig, TopicTable
from aerobee_store import Message, MessageStore, ReadResult, StoreConfig
from aerobee_store.clock import SystemClock
from aerobee_store.testing import MemoryFileSystem
from tests.support.saved_tables import saved
from tests.support.stored_messages import DIRECTORY

TOPIC = "orders"


class Place:
    """One topic with a store, and those who wait for its messages."""

    def __init__(self) -> None:
        self.store = MessageStore.open(StoreConfig.tiny(DIRECTORY), file_system=MemoryFileSystem())
        self.polling = LongPolling()
        self.store.arrival_listeners.append(self.polling.arrived)
        self.topics = TopicTable(SystemClock())
        saved(self.topics).create(TopicConfig(name=TOPIC))
        self.loop_share = LoopShare()

    def arrive(self, tag: str) -> None:
        self.store.append([Message(TOPIC, 0, b"body", {"TAGS": tag})])
        self.store.flush()

    def pull(self, *, offset: int = 0, look_until: float | None = None, follows_moves: bool = False) -> QueuePull:
        held = QueueWait(self.polling, TOPIC, 0, "group", "client", 600.0)
        return QueuePull(filter_of("a"), "group", held, offset, 32, 1 << 20, look_until, follows_moves)

    async def read(self, pull: QueuePull) -> ReadResult:
        return await pull.read(self.store, self.topics, self.loop_share)


@pytest.fixture(name="place")
def place_fixture() -> Iterator[Place]:
    place = Place()
    yield place
    place.store.close()


async def until_it_waits(place: Place, reading: asyncio.Task[ReadResult], pull: QueuePull, *, offset: int) -> None:
    """Until the pull waits at this offset."""
    while not place.polling.waiting_count or pull.offset != offset:
        await asyncio.sleep(0)
        if reading.done():
            raise AssertionError(f"it does not wait: {reading.result()}")


async def waiting(place: Place, pull: QueuePull, *, offset: int = 0) -> asyncio.Task[ReadResult]:
    """The pull, once it waits for messages at this offset."""
    reading = asyncio.create_task(place.read(pull))
    await until_it_waits(place, reading, pull, offset=offset)
    return reading


async def test_a_pull_waits_for_a_message_that_passes(place: Place) -> None:
    """Others that come meanwhile are skipped: the client asked for a wait of this length."""
    reading = await waiting(place, pull := place.pull())
    place.arrive("b")
    await until_it_waits(place, reading, pull, offset=1)
    place.arrive("a")
    assert [record.queue_offset for record in (await reading).records] == [1]
    assert pull.offset == 2


async def test_a_client_that_asks_again_is_told_at_once_that_none_passes(place: Place) -> None:
    place.arrive("b")
    pull = place.pull(look_until=None)
    result = await asyncio.wait_for(place.read(pull), 60)
    assert (result.status, result.records, pull.offset, pull.moved_from) == ("no-match", [], 1, None)


async def test_a_topic_that_is_deleted_ends_the_wait_with_an_error(place: Place) -> None:
    reading = await waiting(place, place.pull())
    saved(place.topics).delete(TOPIC)
    place.arrive("a")
    with pytest.raises(TopicNotFoundError):
        await reading


@pytest.mark.parametrize("follows_moves", [False, True])
async def test_an_offset_that_the_queue_does_not_have(place: Place, follows_moves: bool) -> None:
    """The nearest one is read, or the client is told."""
    place.arrive("a")
    pull = place.pull(offset=7, look_until=1e12, follows_moves=follows_moves)
    if not follows_moves:
        await place.read(pull)
        assert (pull.moved_from, pull.offset) == (7, 1)
        return
    reading = await waiting(place, pull, offset=1)
    place.arrive("a")
    assert [record.queue_offset for record in (await reading).records] == [1]
    assert pull.moved_from is None
