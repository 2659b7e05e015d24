"""Queue units wait in memory and are written and synced together; readers see them, and no checkpoint is ahead."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aerobee_store import Message, MessageStore, RunningFlags, StoreConfig, StoreFailedError
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.queues.consume_queue import UNIT_DTYPE
from aerobee_store.testing import MemoryFileSystem, Operation
from aerobee_store.tools.verify import verify
from tests.support.stored_messages import DIRECTORY

CONFIG = replace(StoreConfig.tiny(DIRECTORY), queue_file_size=1000 * 20, segment_size=1 << 20)
PAGE = 205  # units; more than fit into 4 KiB


def send(store: MessageStore, topic: str, count: int = 1, *, queue_id: int = 0) -> None:
    """Append and dispatch messages numbered by queue offset; no queue is flushed."""
    begin = store.queue_range(topic, queue_id)[1]
    store.append([Message(topic, queue_id, b"%d" % number) for number in range(begin, begin + count)])
    store.commit()
    for file in store._log.files:
        file.sync()
    store.dispatch()


def bodies(store: MessageStore, topic: str, queue_offset: int = 0, *, queue_id: int = 0) -> list[int]:
    result = store.read(topic, queue_id, queue_offset, max_count=10_000)
    return [int(record.body) for record in result.records]


def writes(disk: MemoryFileSystem, name: str = "consumequeue") -> list[Path]:
    """Return the paths of all writes to files of this kind so far."""
    return [each.path for each in disk.log if each.name == "write" and each.path.is_relative_to(DIRECTORY / name)]


def test_waiting_units_are_read_before_they_are_written() -> None:
    """Waiting units are read alone, after units in the file, and across the boundary."""
    disk = MemoryFileSystem()
    with MessageStore.open(CONFIG, file_system=disk) as store:
        send(store, "orders", 3)
        assert bodies(store, "orders") == [0, 1, 2]
        assert not writes(disk)
        store.flush()
        assert len(writes(disk)) == 1
        send(store, "orders", 2)
        send(store, "orders", 2)
        for begin in range(8):
            assert bodies(store, "orders", begin) == list(range(begin, 7))
        assert len(writes(disk)) == 1
        store.flush()
        assert len(writes(disk)) == 2, "one write for all that waited"
        assert bodies(store, "orders") == list(range(7))


def test_no_more_than_a_page_waits() -> None:
    """More units than a page are written at once, also across files."""
    disk = MemoryFileSystem()
    with MessageStore.open(replace(CONFIG, queue_file_size=20 * 20), file_system=disk) as store:
        send(store, "orders", PAGE)
        assert len(set(writes(disk))) == PAGE // 20 + 1
        assert bodies(store, "orders") == list(range(PAGE))
    with MessageStore.open(replace(CONFIG, queue_file_size=20 * 20), file_system=disk) as store:
        assert bodies(store, "orders") == list(range(PAGE))
        assert store.recovery.units_added == 0


def test_a_new_file_of_a_queue_waits_for_no_sync() -> None:
    """The event loop makes the files of queues: it syncs only a file that no flush has synced since it was made."""
    disk = MemoryFileSystem()
    with MessageStore.open(replace(CONFIG, queue_file_size=20 * 20), file_system=disk) as store:

        def synced(count: int) -> int:
            """Send this many messages; return how often something of the queue was synced."""
            begin = len(disk.log)
            send(store, "orders", count)
            store._queues.simple["orders", 0]._write_waiting()
            operations = disk.log[begin:]
            queues = DIRECTORY / "consumequeue"
            return sum(each.name.startswith("sync") and each.path.is_relative_to(queues) for each in operations)

        for _ in range(3):
            assert synced(20) == 0
            store.flush()
        assert synced(40) > 0, "two files between two flushes: only the last one may be without its size after a crash"
        assert bodies(store, "orders") == list(range(100))


def test_waiting_units_are_rebuilt_after_a_kill() -> None:
    """The next start rebuilds the waiting units from the log."""
    disk = MemoryFileSystem()
    store = MessageStore.open(CONFIG, file_system=disk)
    send(store, "orders", 3)
    store.flush()
    send(store, "orders", 2)
    with MessageStore.open(CONFIG, file_system=disk.kill()) as again:
        assert again.recovery.units_added == 2
        assert bodies(again, "orders") == list(range(5))


@pytest.mark.parametrize("together_min", [None, 1])
def test_unsynced_names_of_a_killed_process(together_min: int | None) -> None:
    """The start after a kill syncs the names of new queues before its checkpoint says that they are complete."""
    disk = MemoryFileSystem(together_min=together_min)
    store = MessageStore.open(CONFIG, file_system=disk)
    send(store, "old")
    store.flush()
    send(store, "new")
    send(store, "old", queue_id=1)
    killed = disk.kill()
    MessageStore.open(CONFIG, file_system=killed)
    for seed in range(30):
        after = killed.crash(seed)
        with MessageStore.open(CONFIG, file_system=after) as again:
            assert again.recovery.units_added == 0, seed
            assert bodies(again, "new") == bodies(again, "old", queue_id=1) == [0], seed


def test_a_second_file_waits_for_the_name_of_the_first() -> None:
    """A power cut leaves no hole and no stray file, however many files are created between two flushes."""
    disk = MemoryFileSystem()
    config = replace(CONFIG, queue_file_size=20 * 20)
    store = MessageStore.open(config, file_system=disk)
    send(store, "first")
    store.flush()
    crashed: list[MemoryFileSystem] = []
    disk.before_operation = lambda operation: crashed.append(disk.crash(operation.number))
    send(store, "orders", PAGE)
    disk.before_operation = None
    assert len(crashed) > 40
    for after in crashed:
        with MessageStore.open(config, file_system=after) as again:
            found = bodies(again, "orders")
            assert found == list(range(len(found))), "a torn log ends at its first hole"


async def test_a_flush_in_steps_that_is_cancelled() -> None:
    """The close writes and syncs the rest."""
    disk = MemoryFileSystem()
    config = replace(CONFIG, derived_flush_interval_seconds=0.01)
    store = MessageStore.open(config, file_system=disk)
    for queue_id in range(200):
        send(store, "orders", queue_id=queue_id)
    services = asyncio.create_task(store.run())

    def cancel(operation: Operation) -> None:
        if operation.name == "write" and len(writes(disk)) == 20:
            services.cancel()

    disk.before_operation = cancel
    with suppress(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await services
    disk.before_operation = None
    assert 20 <= len(writes(disk)) < 200
    store.close()
    assert len(set(writes(disk))) == 200
    with MessageStore.open(config, file_system=disk.crash(1)) as again:
        assert again.recovery.clean
        assert again.recovery.units_added == 0
        assert all(bodies(again, "orders", queue_id=queue_id) == [0] for queue_id in range(200))


@pytest.mark.parametrize("together_min", [None, 1])
async def test_the_checkpoint_is_never_ahead(together_min: int | None) -> None:
    """Messages are stored and dispatched while queues are flushed.

    After any power cut, every message before the checkpoint's offset has its unit in a file.
    """
    disk = MemoryFileSystem(together_min=together_min)
    config = replace(CONFIG, derived_flush_interval_seconds=0.01)
    store = MessageStore.open(config, file_system=disk)
    crashed: list[MemoryFileSystem] = []
    sent: list[int] = []

    def crash(operation: Operation) -> None:
        if operation.path == DIRECTORY / "checkpoint":
            crashed.append(disk.crash(operation.number))

    disk.before_operation = crash
    services = asyncio.create_task(store.run())
    async with asyncio.timeout(60):
        while len(crashed) < 50:
            for queue_id in range(3):
                (place,) = store.append([Message(f"topic-{len(sent) % 7}", queue_id, b"0")])
                sent.append(place.physical_offset)
            await store.wait_stored(place.end)
    services.cancel()
    with suppress(asyncio.CancelledError):
        await services
    disk.before_operation = None
    store.close()
    for after in crashed:
        checkpoint = Checkpoint(after, DIRECTORY / "checkpoint")
        checkpoint.load()
        units = [
            np.frombuffer(content, UNIT_DTYPE)
            for path, content in after.contents().items()
            if path.is_relative_to(DIRECTORY / "consumequeue") and content
        ]
        known = {offset for each in units for offset in each["physical_offset"][each["size"] > 0].tolist()}
        assert known.issuperset(offset for offset in sent if offset < (checkpoint.derived_offset or 0))
    assert checkpoint.derived_offset


class NoWrites(MemoryFileSystem):
    """Queue files can be created but not written."""

    def write_inode(self, inode: object, path: Path, data: bytes, position: int) -> None:
        if path.is_relative_to(DIRECTORY / "consumequeue"):
            raise OSError(errno.EIO, "cannot be written", str(path))
        super().write_inode(inode, path, data, position)  # type: ignore[arg-type]


def test_a_queue_that_cannot_be_written_later() -> None:
    """The store fails with the queue flag, as when a queue file cannot be created; the next start adds the unit."""
    disk = NoWrites()
    store = MessageStore.open(CONFIG, file_system=disk)
    send(store, "orders")
    with pytest.raises(StoreFailedError, match="cannot be written"):
        store.flush()
    assert store.status().running_flags is RunningFlags.LOGICS_QUEUE_ERROR | RunningFlags.NOT_WRITEABLE
    store.close()
    healed = MemoryFileSystem.kill(disk)
    with MessageStore.open(CONFIG, file_system=healed) as again:
        assert bodies(again, "orders") == [0]


@pytest.mark.parametrize("operation", ["sync_file_system", "sync"])
def test_a_failed_sync_of_all_files_is_final(operation: str) -> None:
    """The checkpoint does not move, and the sync is not retried."""
    disk = MemoryFileSystem(together_min=1)
    store = MessageStore.open(CONFIG, file_system=disk)
    send(store, "orders")
    store.flush()
    before = disk.read_bytes(DIRECTORY / "checkpoint")
    send(store, "orders")
    disk.fail_at(operation, 1 if operation == "sync_file_system" else 2)  # the first one is the log's
    with pytest.raises(StoreFailedError):
        store.flush()
    store.close()
    assert disk.read_bytes(DIRECTORY / "checkpoint") == before


def test_a_store_in_use_is_verified_without_waiting_units(tmp_path: Path) -> None:
    """One queue has written its page while an earlier message still waits in another: verify finds nothing."""
    config = replace(CONFIG, directory=tmp_path / "data")
    with MessageStore.open(config) as store:
        send(store, "few")
        store.flush()
        send(store, "few")
        send(store, "many", PAGE)
        report = verify(config.directory)
        assert (report.state, report.findings) == ("live", [])
    assert verify(config.directory).findings == []
