"""Queues that have lost files are made again, also where the start has little that shows the loss."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.durability import queue_bounds
from aerobee_store.durability.situations import Found
from aerobee_store.errors import StoreFailedError
from aerobee_store.queues.consume_queue import UNIT_SIZE
from aerobee_store.testing import ManualClock, MemoryFileSystem, Operation
from tests.support.serving import serving
from tests.support.stored_messages import DIRECTORY, Sender, compare

CONFIG = replace(
    StoreConfig.tiny(DIRECTORY), queue_file_size=8 * UNIT_SIZE, retention_hours=1, delete_when_hours=tuple(range(24))
)
BOUNDS = DIRECTORY / queue_bounds.FILE_NAME


def file_of(number: int, topic: str = "orders") -> Path:
    return DIRECTORY / "consumequeue" / topic / "0" / f"{number * CONFIG.queue_file_size:020d}"


class Filled:
    """A store with 30 messages of a queue before three segments of another one."""

    def __init__(self, *, killed: bool) -> None:
        self.clock = ManualClock()
        self.sender = Sender()
        disk = MemoryFileSystem(clock=self.clock)
        store = MessageStore.open(CONFIG, file_system=disk, clock=self.clock)
        self.sender.append(store, [self.sender.message(100) for _ in range(30)])
        self.sender.append(store, [self.sender.message(1300, "others") for _ in range(30)])
        store.flush()
        if not killed:
            store.close()
        self.disk = disk.kill()

    def open(self) -> MessageStore:
        return MessageStore.open(CONFIG, file_system=self.disk, clock=self.clock)


@pytest.mark.parametrize("killed", [True, False])
def test_a_hole_between_files_needs_no_record_of_them(killed: bool) -> None:
    """A store that RocketMQ wrote has no file of bounds."""
    filled = Filled(killed=killed)
    filled.disk.unlink(BOUNDS)
    filled.disk.unlink(file_of(1))
    with filled.open() as store:
        compare(store, filled.sender.sent, filled.sender.sent)


def _failing(disk: MemoryFileSystem, number: int) -> None:
    """Let every operation that writes the file of bounds fail."""

    def fail(operation: Operation) -> None:
        if queue_bounds.FILE_NAME in operation.path.name and operation.name != "read":
            raise OSError(number, os.strerror(number))

    disk.before_operation = fail


def test_a_full_disk_keeps_the_older_bounds(caplog: pytest.LogCaptureFixture) -> None:
    filled = Filled(killed=True)
    with filled.open() as store:
        before = filled.disk.read_bytes(BOUNDS)
        filled.sender.append(store, [filled.sender.message(100) for _ in range(10)])
        store.flush()
        _failing(filled.disk, errno.ENOSPC)
        store.save_queue_bounds()
        assert "bounds of the queues not saved, the older ones count" in caplog.text
        assert filled.disk.read_bytes(BOUNDS) == before
        filled.disk.before_operation = None
        store.save_queue_bounds()
        assert filled.disk.read_bytes(BOUNDS) != before


def test_another_error_of_the_bounds_is_raised() -> None:
    filled = Filled(killed=True)
    with filled.open() as store:
        filled.sender.append(store, [filled.sender.message(100)])
        store.flush()
        _failing(filled.disk, errno.EIO)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            store.save_queue_bounds()
        filled.disk.before_operation = None


async def test_the_service_saves_the_bounds_and_fails_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the error, a start after a kill would look for too few files."""
    monkeypatch.setattr(queue_bounds, "_INTERVAL_SECONDS", 0.01)
    disk = MemoryFileSystem()
    async with serving(CONFIG, disk) as store:
        before = disk.read_bytes(BOUNDS)
        store.append([Message("orders", 0, b"1")])
        while disk.read_bytes(BOUNDS) == before:  # noqa: ASYNC110 - another task saves it
            await asyncio.sleep(0.001)
        _failing(disk, errno.EIO)
        store.append([Message("orders", 0, b"2")])
        while store.failure is None:  # noqa: ASYNC110 - another task fails
            await asyncio.sleep(0.001)
        with pytest.raises(StoreFailedError, match=os.strerror(errno.EIO)):
            store.append([Message("orders", 0, b"3")])


def test_a_later_message_shows_that_earlier_ones_are_missing() -> None:
    """Without bounds, the offsets in the part of the log that a start reads after a kill show it."""
    filled = Filled(killed=True)
    with filled.open() as store:
        filled.sender.append(store, [filled.sender.message(100) for _ in range(10)])
        store.flush()
    filled.disk = filled.disk.kill()
    filled.disk.unlink(BOUNDS)
    filled.disk.write_new(DIRECTORY / "abort", b"")
    for number in (3, 4):
        filled.disk.unlink(file_of(number))
    with filled.open() as store:
        assert store.recovery.queues_made_again == 1
        compare(store, filled.sender.sent, filled.sender.sent)


@pytest.mark.parametrize("killed", [True, False])
def test_a_kill_while_a_queue_is_made_again(killed: bool) -> None:
    """Whenever it comes, the next start knows that the queue is not complete."""
    filled = Filled(killed=killed)
    filled.disk.unlink(BOUNDS)
    filled.disk.unlink(file_of(1))
    disks: list[MemoryFileSystem] = []

    def before(_: Operation) -> None:
        disks.append(filled.disk.kill())

    filled.disk.before_operation = before
    with filled.open() as store:
        assert store.recovery.queues_made_again == 1
    assert disks
    for filled.disk in disks:
        with filled.open() as store:
            compare(store, filled.sender.sent, filled.sender.sent)


@pytest.mark.parametrize("damage", [b"", b"\0" * 20, b"{", b'{"logEnd":0}', b"[]"])
def test_bounds_that_cannot_be_read(damage: bytes) -> None:
    """The start does without them."""
    filled = Filled(killed=False)
    filled.disk.unlink(BOUNDS)
    filled.disk.write_new(BOUNDS, damage)
    with filled.open() as store:
        assert store.recovery.queues_made_again == 0
        compare(store, filled.sender.sent, filled.sender.sent)


def test_a_deleted_topic_has_lost_no_files() -> None:
    """Neither one deleted before the bounds were saved, nor one deleted after it."""
    filled = Filled(killed=True)
    with filled.open() as store:
        store.delete_topic("orders")
        disk = filled.disk.kill()
    left = [sent for sent in filled.sender.sent if sent.topic != "orders"]
    for filled.disk in (disk, filled.disk.kill()):  # noqa: B020
        with filled.open() as store:
            assert Found.LOST_QUEUE_FILES not in store.recovery.situations
            compare(store, left, left)


def test_a_log_that_has_lost_its_end_too() -> None:
    """Its queues end earlier than they did; what is there is served."""
    filled = Filled(killed=False)
    last = max(path for path in filled.disk.contents() if path.parent.name == "commitlog")
    start = int(last.name)
    filled.disk.unlink(last)
    with filled.open() as store:
        left = [sent for sent in filled.sender.sent if sent.end <= start]
        assert len(left) < len(filled.sender.sent)
        assert store.recovery.queues_made_again == 0


async def test_files_that_retention_removed_are_not_missed() -> None:
    """And a queue that lost all its files continues at its offset, although the log has none of its messages."""
    filled = Filled(killed=True)
    with filled.open() as store:
        filled.clock.advance(2 * 3_600_000)
        filled.sender.append(store, [filled.sender.message(1300, "others") for _ in range(3)])
        store.flush()
        await store.retention.clean()
        assert store.status().min_offset > filled.sender.sent[29].end
        disk = filled.disk.kill()
    for filled.disk in (disk, filled.disk.kill()):  # noqa: B020
        with filled.open() as store:
            assert store.recovery.queues_made_again == 0
            assert Found.LOST_BEGINNING not in store.recovery.situations
    filled.disk = filled.disk.kill()
    for path in list(filled.disk.contents()):
        if path.is_relative_to(DIRECTORY / "consumequeue" / "orders"):
            filled.disk.unlink(path)
    with filled.open() as store:
        assert store.append([filled.sender.message(100)])[0].queue_offset == 30
