"""A deleted topic stays deleted, whatever recovery finds of it in the log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreError
from aerobee_store.testing import ManualClock, MemoryFileSystem, Operation


def fill(store: MessageStore, topic: str, count: int) -> list[int]:
    """Append messages with a key; return their queue offsets."""
    messages = [Message(topic, 0, f"{topic}-{number}".encode(), {"KEYS": "k"}) for number in range(count)]
    appended = store.append(messages)
    store.flush()
    return [item.queue_offset for item in appended]


def crash(directory: Path) -> None:
    """Make the next opening read the whole log and rebuild everything."""
    (directory / "abort").touch()
    (directory / "checkpoint").unlink(missing_ok=True)


def test_recovery_does_not_restore_messages_of_a_deleted_topic(tmp_path: Path) -> None:
    """After a crash whose recovery reads the old records again, the topic has no queue and no query results."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        fill(store, "orders", 30)
        fill(store, "other", 3)
        store.delete_topic("orders")
        assert store.query("orders", "k") == []
    crash(config.directory)
    with MessageStore.open(config) as store:
        assert store.queues() == {"other": [0]}
        assert store.query("orders", "k") == []
        assert len(store.query("other", "k")) == 3


def test_a_topic_of_the_same_name_continues_the_old_offsets(tmp_path: Path) -> None:
    """Its first message follows the old topic's last, even after restarts and a crash, and no old message appears."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        fill(store, "orders", 30)
        store.delete_topic("orders")
    with MessageStore.open(config) as store:
        assert fill(store, "orders", 2) == [30, 31]
    for _ in range(2):
        with MessageStore.open(config) as store:
            assert store.queue_range("orders", 0) == (30, 32)
            found = store.read("orders", 0, 30).records
            assert [record.body for record in found] == [b"orders-0", b"orders-1"]
            assert len(store.query("orders", "k")) == 2
        crash(config.directory)


def test_a_damaged_note_stops_the_start(tmp_path: Path) -> None:
    """An unreadable table of deleted topics is named in one line; otherwise deleted messages would return."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        fill(store, "orders", 1)
        store.delete_topic("orders")
    (config.directory / "config" / "deletedTopics.json").write_text('{"orders": 7}')
    with pytest.raises(StoreError, match="deletedTopics"):
        MessageStore.open(config)


def test_an_emptied_note_stops_the_start(tmp_path: Path) -> None:
    """Without the table deleted messages would return; a first table has no older copy to reveal the loss."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        fill(store, "orders", 3)
        store.delete_topic("orders")
    (config.directory / "config" / "deletedTopics.json").write_bytes(b"")
    with pytest.raises(StoreError, match="deletedTopics"):
        MessageStore.open(config)


def test_deleting_an_unknown_topic_does_nothing(tmp_path: Path) -> None:
    """A topic that never had a message is not added to the table."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        store.delete_topic("nothing")
    assert not (config.directory / "config").exists()


def say(room: str, text: str) -> Message:
    return Message("rooms", 0, text.encode(), {"INNER_MULTI_DISPATCH": f"%LMQ%{room}"})


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    low, _ = store.queue_range(topic, 0)
    return [record.body for record in store.read(topic, 0, low).records]


@asynccontextmanager
async def running(store: MessageStore) -> AsyncIterator[MessageStore]:
    """Run the store with its services, and close it at the end."""
    services = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(60):
            yield store
    finally:
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services
        store.close()


async def test_many_topics_cost_one_save_and_one_sync_of_a_directory() -> None:
    """Any number of topics are unreadable from the first step on, and other topics lose nothing."""
    disk = MemoryFileSystem()
    # A background flush of the derived files would sync other directories.
    config = replace(StoreConfig.tiny(Path("/store")), derived_flush_interval_seconds=3600)
    rooms = [f"%LMQ%room{number}" for number in range(40)]
    async with running(MessageStore.open(config, file_system=disk)) as store:
        store.append([say(room.removeprefix("%LMQ%"), room) for room in rooms])
        await store.wait_stored(store.append([Message("orders", 0, b"stays")])[0].end)
        operations: list[Operation] = []
        disk.before_operation = operations.append
        deletion = asyncio.create_task(store.delete_topics(rooms))
        await asyncio.sleep(0)
        assert [bodies(store, room) for room in rooms] == [[]] * 40
        await deletion
        disk.before_operation = None
        assert set(store.queues()) == {"rooms", "orders"}
        assert bodies(store, "orders") == [b"stays"]
        saves = [each for each in operations if each.name == "rename" and each.path.name.startswith("deletedTopics")]
        assert len(saves) == 1
        queues = [each for each in operations if each.name == "sync_directory" and "consumequeue" in each.path.parts]
        assert [each.path.name for each in queues] == ["consumequeue"]
    with MessageStore.open(config, file_system=disk.kill()) as store:
        assert set(store.queues()) == {"rooms", "orders"}


async def test_a_message_that_arrives_while_its_topic_is_deleted() -> None:
    """The message is kept, at the next offset, both before the table is saved and while the files are removed."""
    disk = MemoryFileSystem()
    reached, go_on = threading.Event(), threading.Event()

    def stop_at(name: str, part: str) -> None:
        reached.clear()
        go_on.clear()

        def wait(operation: Operation) -> None:
            if operation.name == name and part in str(operation.path):
                disk.before_operation = None
                reached.set()
                assert go_on.wait(60)

        disk.before_operation = wait

    config = StoreConfig.tiny(Path("/store"))
    async with running(MessageStore.open(config, file_system=disk)) as store:
        for name, part, first, second in (
            ("rename", "deletedTopics", "a", "b"),
            ("unlink", "consumequeue/%LMQ%c", "c", "d"),
        ):
            rooms = [f"%LMQ%{first}", f"%LMQ%{second}"]
            await store.wait_stored(store.append([say(first, "0"), say(second, "0"), say(second, "1")])[-1].end)
            stop_at(name, part)
            deletion = asyncio.create_task(store.delete_topics(rooms))
            assert await asyncio.to_thread(reached.wait, 60)
            await store.wait_stored(store.append([say(second, "2")])[-1].end)
            go_on.set()
            await deletion
            assert bodies(store, rooms[1]) == [b"2"]
            await store.wait_stored(store.append([say(first, "again")])[-1].end)
            assert [store.queue_range(room, 0) for room in rooms] == [(1, 2), (2, 3)]
    with MessageStore.open(config, file_system=disk.kill()) as store:
        assert [bodies(store, f"%LMQ%{room}") for room in "abcd"] == [[b"again"], [b"2"]] * 2


async def test_a_cancelled_deletion_leaves_the_topic_usable(tmp_path: Path) -> None:
    """After a cancelled deletion the topic accepts messages; a second deletion completes."""
    config = StoreConfig.tiny(tmp_path / "store")
    async with running(MessageStore.open(config)) as store:
        await store.wait_stored(store.append([say("a", "a0")])[-1].end)
        for turns in range(6):
            deletion = asyncio.create_task(store.delete_topics(["%LMQ%a"]))
            for _ in range(turns):
                await asyncio.sleep(0)
            deletion.cancel()
            with suppress(asyncio.CancelledError):
                await deletion
            await store.wait_stored(store.append([say("a", f"after{turns}")])[-1].end)
            assert bodies(store, "%LMQ%a")[-1:] == [f"after{turns}".encode()]
        await store.delete_topics(["%LMQ%a"])
        assert "%LMQ%a" not in store.queues()
    with MessageStore.open(config) as store:
        assert fill_room(store) == 7


def fill_room(store: MessageStore) -> int:
    """Append a message to the light queue; return the queue's first offset."""
    store.append([say("a", "next")])
    store.flush()
    return store.queue_range("%LMQ%a", 0)[0]


async def test_entries_of_light_queues_are_dropped_with_their_log(tmp_path: Path) -> None:
    """Once retention has removed a light queue's log, the next save drops its entry; ordinary topics are kept."""
    clock = ManualClock()
    config = replace(StoreConfig.tiny(tmp_path / "store"), delete_when_hours=tuple(range(24)), retention_hours=1)
    note = config.directory / "config" / "deletedTopics.json"
    async with running(MessageStore.open(config, clock=clock)) as store:
        await store.wait_stored(store.append([say("old", "x"), Message("orders", 0, b"x")])[-1].end)
        await store.delete_topics(["%LMQ%old", "orders"])
        while store.positions[0] < 3 * config.segment_size:
            await store.wait_stored(store.append([Message("filler", 0, bytes(1000))])[0].end)
        await store.wait_stored(store.append([say("kept", "x"), say("young", "x")])[-1].end)
        await store.delete_topics(["%LMQ%kept"])
        assert "%LMQ%old" in note.read_text()
        clock.advance(7200)
        await store.retention.clean()
        await store.delete_topics(["%LMQ%young"])
        assert "%LMQ%old" not in note.read_text()
        assert all(name in note.read_text() for name in ("orders", "%LMQ%kept", "%LMQ%young"))


async def test_a_queue_of_later_messages_that_have_expired_keeps_its_end(tmp_path: Path) -> None:
    """A start removes leftovers of an interrupted deletion, but not the queue of later messages that expired."""
    clock = ManualClock()
    config = replace(StoreConfig.tiny(tmp_path / "store"), delete_when_hours=tuple(range(24)), retention_hours=1)
    async with running(MessageStore.open(config, clock=clock)) as store:
        await store.wait_stored(store.append([Message("orders", 0, b"x")] * 3)[-1].end)
        await store.delete_topics(["orders"])
        await store.wait_stored(store.append([Message("orders", 0, b"x")] * 2)[-1].end)
        while store.positions[0] < 3 * config.segment_size:
            await store.wait_stored(store.append([Message("filler", 0, bytes(1000))])[0].end)
        clock.advance(7200)
        await store.retention.clean()
        assert store.queue_range("orders", 0) == (5, 5)
    with MessageStore.open(config, clock=clock) as store:
        assert fill(store, "orders", 1) == [5]
