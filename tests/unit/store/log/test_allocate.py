"""Segments allocated in advance: when, how, and what happens if that fails."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import ConfigError, MessageStore, StoreBusyError, StoreConfig, StoreFailedError, StoreFullError
from aerobee_store.disk.file_system import DiskFileSystem, DiskUsage
from aerobee_store.log import allocate
from aerobee_store.testing import BLOCK_SIZE, ManualClock, MemoryFileSystem, Operation
from aerobee_store.tools.backup import backup
from aerobee_store.tools.inspect import inspect
from aerobee_store.tools.verify import verify
from tests.support.serving import serving
from tests.support.stored_messages import DIRECTORY, Sender, compare

pytestmark = pytest.mark.on_disk

SEGMENT = 16384
LOG = DIRECTORY / "commitlog"
QUARTER = 4200  # a body of more than a quarter of a segment


def config_of(directory: Path = DIRECTORY, **changes: object) -> StoreConfig:
    return replace(StoreConfig.tiny(directory), **{"segments_ahead": 2, **changes})  # type: ignore[arg-type]  # of many


async def prepared(store: MessageStore, count: int) -> None:
    for _ in range(6000):
        if store.status().segments_prepared == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{store.status().segments_prepared} segments in advance, not {count}")


async def send(store: MessageStore, sender: Sender, size: int) -> None:
    sender.append(store, [sender.message(size)])
    await store.wait_stored(store.positions[0])


async def fill(store: MessageStore, sender: Sender) -> None:
    while True:
        await send(store, sender, QUARTER)


def segments(disk: MemoryFileSystem) -> list[int]:
    return [int(name) // SEGMENT for name in disk.list(LOG)]


class Thread:
    """Makes operations of the allocation thread hang or fail."""

    def __init__(self, disk: MemoryFileSystem) -> None:
        self.disk = disk
        self.at = ""
        self.error = 0
        self.go = threading.Event()
        self.reached = threading.Event()
        self.calls: list[Operation] = []
        disk.before_operation = self.before

    def before(self, operation: Operation) -> None:
        if not threading.current_thread().name.startswith("aerobee-allocation"):
            return
        self.calls.append(operation)
        if operation.name == self.at:
            self.reached.set()
            if self.error:
                raise OSError(self.error, "as the test wants it", str(operation.path))
            assert self.go.wait(60)


async def test_two_segments_are_ready_once_a_quarter_is_written() -> None:
    """After a quarter of the segment, and not before, the next two are created with all their blocks reserved.

    There are always two as the log grows.
    """
    disk, sender = MemoryFileSystem(), Sender()
    async with serving(config_of(), disk) as store:
        await send(store, sender, 100)
        await asyncio.sleep(0.05)
        assert segments(disk) == [0]
        await send(store, sender, QUARTER)
        await prepared(store, 2)
        assert segments(disk) == [0, 1, 2]
        assert disk.used >= 2 * SEGMENT
        assert not any(disk.contents()[LOG / f"{2 * SEGMENT:020d}"])
        assert store.status().segments == 1
        for number in range(1, 4):
            calls = len(disk.log)
            while store.positions[0] < number * SEGMENT + QUARTER:
                await send(store, sender, QUARTER)
            await prepared(store, 2)
            assert segments(disk) == list(range(number + 3))
            loop_made = [call for call in disk.log[calls:] if call.name == "create" and call.path.parent == LOG]
            assert len(loop_made) == 1, "the one behind, and none twice"
        assert store.stats.allocation_seconds.count == 5
        compare(store, sender.sent, sender.sent)
    assert segments(disk) == [0, 1, 2, 3], "an orderly stop removes what was not used"
    with MessageStore.open(config_of(), file_system=disk, clock=ManualClock()) as store:
        compare(store, sender.sent, sender.sent)


@pytest.mark.parametrize("ahead", [0, 2])
async def test_a_slow_creation_is_logged(
    ahead: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow creation is logged, in advance and on demand alike."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(allocate, "_SLOW_SECONDS", -1.0)
    sender = Sender()
    async with asyncio.timeout(60), serving(config_of(segments_ahead=ahead), MemoryFileSystem()) as store:
        await send(store, sender, 6000)
        if ahead:
            await prepared(store, ahead)
    assert sum("segment created" in line for line in caplog.messages) == 1 + ahead


async def test_prepared_segments_are_used_after_a_power_cut() -> None:
    """Files of zeros after the log's end are normal for recovery and the next run."""
    disk, sender = MemoryFileSystem(), Sender()
    async with serving(config_of(warm_segments=True), disk) as store:
        await send(store, sender, QUARTER)
        await prepared(store, 2)
        after = disk.crash(11)
    assert segments(after) == [0, 1, 2]
    async with serving(config_of(), after) as store:
        assert store.recovery.damaged == []
        assert store.recovery.quarantined == []
        for _ in range(9):
            await send(store, sender, QUARTER)
        await prepared(store, 2)
        compare(store, sender.sent, sender.sent)


async def test_the_tools_accept_prepared_segments(tmp_path: Path) -> None:
    """A store in use with segments in advance is verified without findings, inspected and copied."""
    sender = Sender()
    async with serving(config_of(tmp_path / "store"), DiskFileSystem()) as store:
        await send(store, sender, QUARTER)
        await prepared(store, 2)
        names = sorted(path.name for path in (tmp_path / "store" / "commitlog").iterdir())
        assert len(names) == 3
        assert (tmp_path / "store" / "commitlog" / names[2]).stat().st_blocks * 512 >= SEGMENT, "really reserved"
        assert verify(tmp_path / "store").findings == []
        assert inspect(tmp_path / "store").log_end == store.positions[0]
        backup(tmp_path / "store", tmp_path / "copy")
    with MessageStore.open(config_of(tmp_path / "copy"), clock=ManualClock()) as store:
        compare(store, sender.sent, sender.sent)


@pytest.mark.parametrize("at", ["create", "sync", "sync_directory", "reserve", "write"])
async def test_an_error_in_advance_does_not_affect_the_store(at: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged and counted, the segment is created when needed, and the store continues."""
    disk, sender = MemoryFileSystem(), Sender()
    thread = Thread(disk)
    thread.at, thread.error = at, errno.EIO
    async with serving(config_of(warm_segments=True), disk) as store:
        await send(store, sender, QUARTER)
        assert await asyncio.to_thread(thread.reached.wait, 60)
        for _ in range(6):
            await send(store, sender, QUARTER)
        assert store.state == "open"
        assert store.stats.allocation_failures >= 1
        assert any("segment not preallocated" in line for line in caplog.messages)
        compare(store, sender.sent, sender.sent)
    with MessageStore.open(config_of(), file_system=disk, clock=ManualClock()) as store:
        compare(store, sender.sent, sender.sent)


async def test_a_disk_without_space_for_prepared_segments() -> None:
    """Messages are refused with StoreFullError only when they do not fit, not for segments in advance."""
    disk, sender = MemoryFileSystem(capacity=40 * BLOCK_SIZE), Sender()
    config = config_of(disk_headroom=12 * BLOCK_SIZE, queue_file_size=100 * 20, index_entry_count=40)
    async with serving(config, disk) as store:
        with pytest.raises(StoreFullError):
            await fill(store, sender)
        assert store.state == "open"
        assert store.positions[0] > 3 * SEGMENT, "all but less than a segment was used"
        assert store.status().segments_prepared <= 1, "an empty one, which the refused append had asked for"
        disk.capacity = 200 * BLOCK_SIZE
        await send(store, sender, QUARTER)
        compare(store, sender.sent, sender.sent)


async def test_a_segment_that_is_not_ready_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk hangs, messages that fit into the current segment are accepted.

    Others are refused: the first after a wait, the next at once. After the hang they are accepted again.
    """
    monkeypatch.setattr(allocate, "_WAIT_SECONDS_MAX", 0.05)
    disk, sender = MemoryFileSystem(), Sender()
    thread = Thread(disk)
    thread.at = "sync"
    async with serving(config_of(), disk) as store:
        await send(store, sender, QUARTER)
        assert await asyncio.to_thread(thread.reached.wait, 60)
        await send(store, sender, QUARTER)
        before = store.positions[0], store.queue_range("orders", 0)
        with pytest.raises(StoreBusyError, match=r"within 0\.05 s"):
            sender.append(store, [sender.message(8000)])
        monkeypatch.setattr(allocate, "_WAIT_SECONDS_MAX", 3600.0)
        with pytest.raises(StoreBusyError):
            sender.append(store, [sender.message(8000)])
        assert (store.positions[0], store.queue_range("orders", 0)) == before
        thread.go.set()
        await prepared(store, 2)
        await send(store, sender, 8000)
        compare(store, sender.sent, sender.sent)


async def test_warming_up_ends_when_the_segment_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that needs the segment stops its warm-up after the current step."""
    monkeypatch.setattr(allocate, "_WARM_STEP", 4096)
    disk, sender = MemoryFileSystem(), Sender()
    thread = Thread(disk)
    thread.at = "write"
    async with serving(config_of(warm_segments=True), disk) as store:
        await send(store, sender, QUARTER)
        assert await asyncio.to_thread(thread.reached.wait, 60)
        for _ in range(2):
            await send(store, sender, QUARTER)
        threading.Timer(0.05, thread.go.set).start()
        await send(store, sender, QUARTER)
        warmed = [call for call in thread.calls if call.name == "write" and call.path.name == f"{SEGMENT:020d}"]
        assert len(warmed) == 1
        assert store.positions[0] > SEGMENT
        compare(store, sender.sent, sender.sent)


async def test_warm_segments_are_written_and_locked(caplog: pytest.LogCaptureFixture) -> None:
    """Their zeros are synced before use. If memory locking is not permitted, one line is logged."""
    disk, sender = MemoryFileSystem(), Sender()
    disk.may_lock_memory = False
    async with serving(config_of(warm_segments=True), disk) as store:
        await send(store, sender, QUARTER)
        await prepared(store, 2)
        calls = [call.name for call in disk.log if call.path.name == f"{2 * SEGMENT:020d}"]
        assert calls == ["create", "sync", "reserve", "write", "sync", "map"]
        assert sum("not locked in memory" in line for line in caplog.messages) == 1
        assert store.stats.segment_locks_refused == 2


class LockingDisk(MemoryFileSystem):
    """Counts the memory areas that are locked."""

    locked_count = 0

    def lock_memory(self, memory: memoryview) -> None:
        self.locked_count += 1

    def unlock_memory(self, memory: memoryview) -> None:
        self.locked_count -= 1


async def test_a_full_segment_is_unlocked() -> None:
    """Only the segment in use and those allocated in advance are locked in memory."""
    disk, sender = LockingDisk(), Sender()
    async with serving(config_of(warm_segments=True, segments_ahead=1), disk) as store:
        for segment in range(4):
            while store.positions[0] < segment * SEGMENT + SEGMENT // 2:
                await send(store, sender, QUARTER)
            await prepared(store, 1)
            for _ in range(6000):
                if disk.locked_count <= 2:  # the current one, if allocated in advance, and the next
                    break
                await asyncio.sleep(0.01)
            assert disk.locked_count == min(segment + 1, 2)


class FillingDisk(MemoryFileSystem):
    """A disk with a fill level set by the test; a segment takes one hundredth of it."""

    foreign = 0.5

    def usage(self, path: Path) -> DiskUsage:
        total = 100 * SEGMENT
        ours = sum(1 for name in self.list(LOG)) * SEGMENT
        return DiskUsage(total=total, available=total - round(total * self.foreign) - ours)


async def test_retention_removes_prepared_segments_before_messages() -> None:
    """A disk that gets too full loses advance segments first; they return only when there is space again."""
    disk, sender, clock = FillingDisk(), Sender(), ManualClock()
    config = config_of(disk_clean_ratio=0.75, disk_force_clean_ratio=0.77, disk_full_ratio=0.9)
    async with asyncio.timeout(60):
        store = MessageStore.open(config, file_system=disk, clock=clock)
        services = asyncio.create_task(store.run())
        for _ in range(6):
            await send(store, sender, QUARTER)
        await prepared(store, 2)
        assert segments(disk) == [0, 1, 2, 3]
        disk.foreign = 0.74  # below the force ratio with two segments, above it with four
        await store.retention.clean()
        assert segments(disk) == [0, 1]
        assert store.stats.segments_expired == 0
        for _ in range(4):
            await send(store, sender, QUARTER)
        await asyncio.sleep(0.05)
        assert store.status().segments_prepared == 0
        compare(store, sender.sent, sender.sent)
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services
        store.close()


async def test_an_append_waits_for_the_removal_of_the_segment_that_it_needs() -> None:
    """The file name is free before the segment is created again."""
    disk, sender = FillingDisk(), Sender()
    thread = Thread(disk)
    config = config_of(disk_clean_ratio=0.75, disk_force_clean_ratio=0.8, disk_full_ratio=0.9)
    async with serving(config, disk) as store:
        for _ in range(3):
            await send(store, sender, QUARTER)
        await prepared(store, 2)
        disk.foreign = 0.74
        thread.at = "unlink"
        removal = asyncio.create_task(store.retention.clean())
        assert await asyncio.to_thread(thread.reached.wait, 60)
        threading.Timer(0.05, thread.go.set).start()
        await send(store, sender, QUARTER)
        await removal
        assert segments(disk) == [0, 1]
        compare(store, sender.sent, sender.sent)


@pytest.mark.parametrize("at_once", [False, True])
async def test_segments_that_cannot_be_removed_are_used(at_once: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Their files still exist, so they stay in the log, also for an append before the error is known."""
    disk, sender = FillingDisk(), Sender()
    thread = Thread(disk)
    config = config_of(disk_clean_ratio=0.75, disk_force_clean_ratio=0.8, disk_full_ratio=0.9)
    async with serving(config, disk) as store:
        for _ in range(3):
            await send(store, sender, QUARTER)
        await prepared(store, 2)
        disk.foreign = 0.74
        thread.at, thread.error = "unlink", errno.EIO
        removal = asyncio.create_task(store.retention.clean())
        if at_once:
            assert await asyncio.to_thread(thread.reached.wait, 60)
        else:
            await removal
            assert store.status().segments_prepared == 2
        for _ in range(3):
            await send(store, sender, QUARTER)
        await removal
        assert store.state == "open"
        assert any("not removed" in line for line in caplog.messages)
        thread.error, thread.at = 0, ""
        for _ in range(6):
            await send(store, sender, QUARTER)
        compare(store, sender.sent, sender.sent)
    with MessageStore.open(config, file_system=disk, clock=ManualClock()) as store:
        compare(store, sender.sent, sender.sent)


async def test_a_failed_store_keeps_prepared_segments_for_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    """A failed store removes nothing, because it does not know the state of its disk."""
    caplog.set_level(logging.CRITICAL + 1)
    disk, sender = MemoryFileSystem(), Sender()
    async with serving(config_of(), disk) as store:
        await send(store, sender, QUARTER)
        await prepared(store, 2)
        disk.fail_at("sync", 1, errno.EIO)
        with pytest.raises(StoreFailedError):
            await send(store, sender, 100)
        disk.heal()
    assert segments(disk) == [0, 1, 2]


async def test_services_that_stop_and_start_again() -> None:
    """The second run takes over what the first began, and creates nothing twice."""
    disk, sender = MemoryFileSystem(), Sender()
    thread = Thread(disk)
    thread.at = "sync"
    async with asyncio.timeout(60):
        store = MessageStore.open(config_of(), file_system=disk, clock=ManualClock())
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        await send(store, sender, QUARTER)
        assert await asyncio.to_thread(thread.reached.wait, 60)
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services
        thread.go.set()
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        await send(store, sender, QUARTER)
        await prepared(store, 2)
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services
        store.close()
    created = [call.path for call in disk.log if call.name == "create" and call.path.parent == LOG]
    assert len(created) == len(set(created)) == 3


async def test_stopped_services_leave_a_creation_to_other_waiters() -> None:
    """Retention may wait for the segment too, in a task that was not cancelled."""
    store = MessageStore.open(config_of(), file_system=MemoryFileSystem(), clock=ManualClock())
    go = threading.Event()
    async with asyncio.timeout(60):
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        store._allocation._disk.submit(go.wait, 60)  # so that the next segment is requested but not started
        await send(store, Sender(), QUARTER)
        while store._allocation._making is None:  # noqa: ASYNC110 - waits for a state
            await asyncio.sleep(0.001)
        giving_back = asyncio.create_task(store._allocation.give_back())
        await asyncio.sleep(0)
        services.cancel()
        await asyncio.gather(services, return_exceptions=True)
        go.set()
        assert await giving_back == 1
    store.close()


def test_settings_that_cannot_work_are_refused() -> None:
    """Errors give the settings' full names."""
    with pytest.raises(ConfigError, match=r"store\.segments_ahead"):
        config_of(segments_ahead=-1)
