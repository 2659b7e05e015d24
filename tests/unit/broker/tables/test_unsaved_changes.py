"""A topic or group that is being saved, or whose save failed, is not served: a crash would take it back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from aerobee_broker.config.broker import BrokerConfig, Settings
from aerobee_broker.errors import GroupNotFoundError, TopicNotFoundError
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig
from aerobee_store import StoreConfig
from aerobee_store.testing import ManualClock, MemoryFileSystem

DIRECTORY = Path("/store")


class SlowDisk:
    """A disk thread whose next call waits until the test lets it go."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.files.make_directory(DIRECTORY)
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls = 0

    async def __call__(self, function: Callable[..., object], *arguments: object) -> object:
        self.calls += 1
        await self.gate.wait()
        return function(*arguments)

    def tables(self, files: MemoryFileSystem | None = None) -> Tables:
        config = BrokerConfig(store=StoreConfig.tiny(DIRECTORY), dev=True)
        return Tables.load(Settings(config), ManualClock(), files or self.files, self)


@asynccontextmanager
async def being_saved(disk: SlowDisk, *waiting: Awaitable[object]) -> AsyncIterator[list[asyncio.Task[object]]]:
    """These calls, stopped at the write of the table, and finished afterwards."""
    disk.gate.clear()
    calls = disk.calls
    tasks = [asyncio.ensure_future(each) for each in waiting]
    for _ in range(20):  # steps of the loop; the first call reaches the disk in a few
        await asyncio.sleep(0)
    assert disk.calls > calls
    yield tasks
    disk.gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_second_send_to_a_new_topic_waits_for_its_save() -> None:
    """It found the topic in memory and was answered; after a kill the topic was unknown and its message lost."""
    disk = SlowDisk()
    tables = disk.tables()
    first, second = tables.topic_in_use("orders"), tables.topic_in_use("orders")
    async with being_saved(disk, first, second) as sends:
        assert tables.topics.get("orders") is None, "the fast path of a send"
        assert [send.done() for send in sends] == [False, False]
        assert "orders" not in disk.tables(disk.files.kill()).topics
    assert [send.result() for send in sends] == [tables.topics.require("orders")] * 2
    assert "orders" in disk.tables(disk.files.kill()).topics


async def test_sends_that_wait_for_a_save_go_on_some_at_a_time() -> None:
    """Each may make the first queue of its topic, which takes up to a millisecond.

    All wait for one save: the call that makes a second one goes on by itself, perhaps in a step with eight others.
    """
    disk = SlowDisk()
    tables = disk.tables()
    async with being_saved(disk, *(tables.topic_in_use("orders") for _ in range(100))) as sends:
        disk.gate.set()
        done = [0]
        while done[-1] < 100:
            await asyncio.sleep(0)
            done.append(sum(send.done() for send in sends))
    assert max(after - before for before, after in pairwise(done)) <= 8


async def test_a_second_receive_of_a_new_group_waits_for_its_save() -> None:
    """Groups follow the same rule."""
    disk = SlowDisk()
    tables = disk.tables()
    async with being_saved(disk, tables.group_in_use("g", ["t"]), tables.group_in_use("g", ["t"])) as receives:
        assert tables.groups.get("g") is None
        assert [receive.done() for receive in receives] == [False, False]
    assert "g" in disk.tables(disk.files.kill()).groups


async def test_a_topic_that_is_being_deleted_still_exists() -> None:
    """Until its deletion is on disk, a restart brings it back, so it is not reported as unknown."""
    disk = SlowDisk()
    tables = disk.tables()
    await tables.topic_in_use("orders")
    tables.topics.delete("orders")
    async with being_saved(disk, tables.save_topics()):
        assert "orders" in tables.topics
        assert "orders" in disk.tables(disk.files.kill()).topics
    assert "orders" not in tables.topics
    assert "orders" not in disk.tables(disk.files.kill()).topics


async def test_two_changes_of_one_topic_keep_both() -> None:
    """The second change begins with the first, which is not visible yet."""
    disk = SlowDisk()
    tables = disk.tables()
    await tables.topic_in_use("orders")
    tables.topics.update(TopicConfig(name="orders", read_queue_count=3))
    async with being_saved(disk, tables.save_topics()):
        assert tables.topics.require("orders").read_queue_count != 3
        latest = tables.topics.latest("orders")
        assert latest is not None
        assert latest.read_queue_count == 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_what_could_not_be_saved_is_not_served(error: int) -> None:
    """It was served from memory until the broker ended. Once the disk takes it, the next attempt succeeds."""
    disk = SlowDisk()
    tables = disk.tables()
    await tables.topic_in_use("before")
    tables.groups.create(GroupConfig(name="old"))
    await tables.save()
    disk.files.fail_at(None, error_number=error, for_ever=True)
    with pytest.raises(OSError, match=str(error)):
        await tables.topic_in_use("orders")
    with pytest.raises(OSError, match=str(error)):
        await tables.group_in_use("billing", [])
    tables.groups.delete("old")
    with pytest.raises(OSError, match=str(error)):
        await tables.save_groups()
    assert [topic.name for topic in tables.topics] == ["before"]
    assert [group.name for group in tables.groups] == ["old"]
    with pytest.raises(TopicNotFoundError):
        tables.topics.require("orders")
    with pytest.raises(GroupNotFoundError):
        tables.groups.require("billing")
    disk.files.heal()
    await tables.topic_in_use("later")
    await tables.group_in_use("later", [])
    again = disk.tables(disk.files.kill())
    assert sorted(topic.name for topic in again.topics) == ["before", "later"], "a refused change was made after all"
    assert sorted(group.name for group in again.groups) == ["later", "old"]
    await tables.topic_in_use("orders")
    tables.groups.delete("old")
    await tables.save_groups()
    again = disk.tables(disk.files.kill())
    assert sorted(topic.name for topic in again.topics) == ["before", "later", "orders"]
    assert [group.name for group in again.groups] == ["later"]


async def test_callers_that_share_a_failed_save_are_all_refused() -> None:
    """One of them wrote the changes of all; a change that came later is saved by itself."""
    disk = SlowDisk()
    tables = disk.tables()
    await tables.topic_in_use("before")
    disk.files.fail_at(None, error_number=errno.EIO, for_ever=True)
    for name in ("first", "second"):
        tables.topics.create(TopicConfig.of_type(name))
    async with being_saved(disk, tables.save_topics(), tables.save_topics()) as sends:
        later = asyncio.ensure_future(tables.topic_in_use("later"))
        await asyncio.sleep(0)

        def heal(_at: object) -> None:
            disk.files.before_operation = None
            asyncio.get_running_loop().call_soon(disk.files.heal)

        disk.files.before_operation = heal
    assert [type(send.exception()) for send in sends] == [OSError, OSError]
    assert (await later).name == "later"
    assert sorted(topic.name for topic in disk.tables(disk.files.kill()).topics) == ["before", "later"]


async def test_a_kill_at_every_operation_of_a_save() -> None:
    """Whatever a reader has seen is there after the kill, and after a power cut."""
    for operation in range(1, 60):
        disk = SlowDisk()
        tables = disk.tables()
        seen: list[tuple[set[str], MemoryFileSystem, MemoryFileSystem]] = []

        def taken(at: object, *, tables: Tables = tables, disk: SlowDisk = disk, seen: list = seen) -> None:  # type: ignore[type-arg]
            seen.append(({topic.name for topic in tables.topics}, disk.files.kill(), disk.files.crash(len(seen))))

        disk.files.before_operation = taken
        for name in ("a", "b", "c"):
            await tables.topic_in_use(name)
        disk.files.before_operation = None
        for names, killed, crashed in seen[operation - 1 : operation]:
            for files in (killed, crashed):
                assert names <= {topic.name for topic in disk.tables(files).topics}
