"""The write modes, which move records to the page cache, give the same log, positions and promises."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import ConfigError, MessageStore, StoreBusyError, StoreConfig, StoreFailedError
from aerobee_store.config import WriteMode
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.mapped_file import FileRun, MappedFileQueue
from aerobee_store.log.write_modes import BufferPool, segments_of
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.testing import ManualClock, MemoryFileSystem, Operation
from tests.support.serving import serving
from tests.support.stored_messages import DIRECTORY, Sender, compare

pytestmark = pytest.mark.on_disk

MODES: list[WriteMode] = ["gathered", "mapped", "pool"]
LOG = DIRECTORY / "commitlog"


def config_of(write_mode: WriteMode, **changes: object) -> StoreConfig:
    tiny = StoreConfig.tiny(DIRECTORY)
    settings = {"flush_interval_seconds": 60.0, "derived_flush_interval_seconds": 60.0, "pool_buffer_count": 2}
    return replace(tiny, write_mode=write_mode, **{**settings, **changes})  # type: ignore[arg-type]  # of many types


class Gate:
    """Holds back writes to the log from threads other than the event loop's."""

    def __init__(self, disk: MemoryFileSystem) -> None:
        self.go = threading.Event()
        self.go.set()
        self.reached = threading.Event()
        disk.before_operation = self.before

    def before(self, operation: Operation) -> None:
        if operation.name == "write" and operation.path.parent == LOG and not self.go.is_set():
            assert threading.current_thread() is not threading.main_thread(), "the event loop does not write the file"
            self.reached.set()
            assert self.go.wait(60)


async def committed(store: MessageStore) -> None:
    for _ in range(6000):
        if store.positions[1] == store.positions[0]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not committed within a minute")


def log_bytes(disk: MemoryFileSystem) -> dict[Path, bytes]:
    return {path: content for path, content in disk.contents().items() if path.parent == LOG}


def test_every_mode_writes_the_same_log() -> None:
    """Logs of several segments, closed and reopened, are equal byte for byte."""
    logs = []
    for write_mode in MODES:
        disk, sender, clock = MemoryFileSystem(), Sender(), ManualClock()
        for sizes in ([100] * 30, [5000, 7000, 60, 3000], [8000] * 5, [200, 200]):
            with MessageStore.open(config_of(write_mode), file_system=disk, clock=clock) as store:
                for size in sizes:
                    sender.append(store, [sender.message(size)])
                sender.append(store, [sender.message(300) for _ in range(10)], split_batch=True)
        with MessageStore.open(config_of(write_mode), file_system=disk, clock=clock) as store:
            compare(store, sender.sent, sender.sent)
        logs.append(log_bytes(disk))
    assert len(logs[0]) > 4
    assert logs[1] == logs[0]
    assert logs[2] == logs[0]


@pytest.mark.parametrize("write_mode", MODES)
def test_the_positions_of_a_segment_and_of_the_log(write_mode: WriteMode) -> None:
    """wrote, committed and flushed, absolute and per segment.

    Bytes stored through a mapping are committed at once, but answered, read and dispatched with the tick, as in the
    other modes.
    """
    disk = MemoryFileSystem()
    config = config_of(write_mode)
    config = replace(config, segment_size=4096)
    log = CommitLog(
        MappedFileQueue(FileRun(disk, LOG, 4096), segments_of(config, BufferPool.of(config, disk))),
        zero_ahead=True,
        disk_headroom=0,
    )

    def put(size: int) -> None:
        log.prepare([size])
        log.next_offset(size)
        log.append(bytes([size % 251]) * size)

    put(3000)
    (first,) = log.files
    at_once = 3000 if write_mode == "mapped" else 0
    assert (first.wrote, first.committed, first.flushed) == (3000, at_once, 0)
    assert (log.wrote, log.committed, log.flushed) == (3000, 0, 0)
    log.commit()
    put(2000)
    second = log.files.files[1]
    assert (first.wrote, first.committed) == (4096, 4096 if write_mode == "mapped" else 3000)
    assert (second.start_offset, second.wrote) == (4096, 2000)
    assert (log.wrote, log.committed, log.flushed) == (6096, 3000, 0)
    log.commit()
    assert (second.committed, log.committed) == (2000, 6096)
    assert first.view[:3000] == bytes([3000 % 251]) * 3000
    assert bytes(first.view[3008:]) == bytes(4096 - 3008), "nothing of a used buffer shows behind the blank"
    assert second.view[:2000] == bytes([2000 % 251]) * 2000
    files = log.unsynced_files()
    assert files == [first, second]
    for file in files:
        file.sync()
    log.set_flushed(files, [4096, 2000], 6096)
    assert (first.flushed, second.flushed, log.flushed) == (4096, 2000, 6096)


@pytest.mark.parametrize("write_mode", MODES)
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_an_answered_message_is_in_the_page_cache(write_mode: WriteMode, flush: str) -> None:
    """In every mode an answered message survives a killed process, and with sync flush a power cut too."""
    disk, sender = MemoryFileSystem(), Sender()
    async with serving(config_of(write_mode, flush=flush, commit_interval_seconds=50.0), disk) as store:
        for size in (50, 5000, 7000, 8000, 100):
            sender.append(store, [sender.message(size)])
            await store.wait_stored(store.positions[0])
        after = disk.kill() if flush == "async" else disk.crash(7)
        assert store.queue_range("orders", 0) == (0, 5), "and can be received"
    with MessageStore.open(config_of(write_mode), file_system=after, clock=ManualClock()) as store:
        compare(store, sender.sent, sender.sent)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("operation", "write_mode", "flush"),
    [("write", "pool", "sync"), ("write", "pool", "async"), ("sync", "pool", "sync"), ("sync", "mapped", "sync")],
)
async def test_a_failed_write_is_final(operation: str, write_mode: WriteMode, flush: str, error: int) -> None:
    """In any thread, a failed write fails the waiters, and the store accepts no more messages.

    Also for want of space: the append reserved it, so that the disk broke its word.
    """
    disk, sender = MemoryFileSystem(), Sender()
    async with serving(config_of(write_mode, flush=flush), disk) as store:
        sender.append(store, [sender.message(50)])
        disk.fail_at(operation, 1, error)
        with pytest.raises(StoreFailedError):
            await store.wait_stored(store.positions[0])
        with pytest.raises(StoreFailedError):
            sender.append(store, [sender.message(50)])
        assert store.state == "failed"
        disk.heal()


# --- The pool -----------------------------------------------------------------------------------------------


async def test_the_event_loop_does_not_wait_for_the_file() -> None:
    """While the thread writes a segment, appends continue into the buffers and not into the file."""
    disk, sender = MemoryFileSystem(), Sender()
    gate = Gate(disk)
    async with serving(config_of("pool", commit_interval_seconds=0.01), disk) as store:
        gate.go.clear()
        sender.append(store, [sender.message(5000)])
        assert await asyncio.to_thread(gate.reached.wait, 60)
        sender.append(store, [sender.message(5000), sender.message(5000)])
        wrote, committed, flushed, dispatched = store.positions
        assert (committed, flushed, dispatched) == (0, 0, 0)
        assert not any(map(any, log_bytes(disk).values()))
        gate.go.set()
        await store.wait_stored(wrote)
        assert store.positions == (wrote, wrote, wrote, wrote)
    with MessageStore.open(config_of("pool"), file_system=disk, clock=ManualClock()) as store:
        compare(store, sender.sent, sender.sent)


async def test_few_bytes_wait_for_the_thorough_interval() -> None:
    """Less than the minimum of pages is written only by the thorough interval, as long as there is no waiter."""
    disk, sender = MemoryFileSystem(), Sender()
    settings = {"commit_interval_seconds": 0.01, "commit_pages_min": 2, "flush_interval_seconds": 900.0}
    async with serving(config_of("pool", commit_thorough_interval_seconds=900.0, **settings), disk) as store:
        sender.append(store, [sender.message(2000)])
        await asyncio.sleep(0.1)
        assert store.positions[1] == 0
        sender.append(store, [sender.message(7000)])
        await committed(store)
    disk = MemoryFileSystem()
    async with serving(config_of("pool", commit_thorough_interval_seconds=0.05, **settings), disk) as store:
        sender.append(store, [sender.message(2000)])
        await committed(store)
        assert store.positions[2] == 0, "committing is not flushing"


async def test_fast_failure_when_no_buffer_is_left() -> None:
    """With both buffers in use the next segment is refused, nothing changes, and a later try succeeds."""
    disk, sender = MemoryFileSystem(), Sender()
    gate = Gate(disk)
    async with serving(config_of("pool", pool_fast_failure=True), disk) as store:
        gate.go.clear()
        for _ in range(4):
            sender.append(store, [sender.message(7500)])
        before = store.positions[0], store.queue_range("orders", 0)
        with pytest.raises(StoreBusyError, match=r"store\.pool_buffer_count"):
            sender.append(store, [sender.message(7500)])
        assert (store.positions[0], store.queue_range("orders", 0)) == before
        assert store.status().pool_buffers_free == 0
        assert store.state == "open"
        message = sender.message(7500)  # consumers' internal records are never refused for this
        sender.note([message], store.append([message], internal=True))
        gate.go.set()
        await store.wait_stored(store.positions[0])
        sender.append(store, [sender.message(7500)])
        await store.wait_stored(store.positions[0])
        compare(store, sender.sent, sender.sent)


async def test_without_fast_failure_segments_without_a_buffer_are_written_as_usual() -> None:
    """Far more than the buffers hold, in one tick, is all stored in the order of the log."""
    disk, sender = MemoryFileSystem(), Sender()
    async with serving(config_of("pool"), disk) as store:
        for _ in range(20):
            sender.append(store, [sender.message(7500)])
        await store.wait_stored(store.positions[0], durable=False)
        after = disk.kill()
        sender.append(store, [sender.message(7500)])
        await store.wait_stored(store.positions[0])
    with MessageStore.open(config_of("pool"), file_system=after, clock=ManualClock()) as store:
        assert store.recovery.damaged == []
        compare(store, sender.sent, sender.sent[:-1])


def test_one_append_may_fill_more_segments_than_there_are_buffers() -> None:
    """It succeeds with fast failure too, because waiting would never free enough buffers."""
    disk, sender = MemoryFileSystem(), Sender()
    with MessageStore.open(config_of("pool", pool_fast_failure=True), file_system=disk, clock=ManualClock()) as store:
        sender.append(store, [sender.message(7500) for _ in range(12)])
        sender.append(store, [sender.message(7500) for _ in range(12)])
        store.flush()
        compare(store, sender.sent, sender.sent)


def test_unlocked_buffers_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line names the cause and the remedy, and the pool still works."""
    disk = MemoryFileSystem()
    disk.may_lock_memory = False
    with caplog.at_level(logging.WARNING):
        pool = BufferPool(disk, 4096, 3, fast_failure=False)
    (line,) = caplog.messages
    assert "not locked" in line
    assert "LimitMEMLOCK" in line
    assert (pool.locked, pool.free) == (False, 3)


def test_a_pool_with_few_free_buffers_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A warning is logged once fewer than 40 % of the buffers are free, and not before."""
    pool = BufferPool(MemoryFileSystem(), 4096, 5, fast_failure=False)
    free = []
    for _ in range(5):
        pool.borrow(wait=True)
        free += [pool.free] if "few write buffers" in caplog.text else []
        caplog.clear()
    assert free == [1, 0]


def test_memory_of_the_machine_is_locked_and_unlocked() -> None:
    """Memory within the limit is locked; beyond it an error names the reason."""
    disk = DiskFileSystem()
    memory = disk.memory(1 << 16)
    memory[:3] = b"abc"
    disk.lock_memory(memory)
    locked = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck"))
    assert int(locked.split()[1]) >= 64
    disk.unlock_memory(memory)
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if (limit := Path("/proc/self/status").read_text()) and "CapEff:\t0000000000000000" in limit:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
        try:
            with pytest.raises(OSError, match=r"memory|permitted"):
                disk.lock_memory(memory)
        finally:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


@pytest.mark.parametrize(
    "changes",
    [{"write_mode": "fast"}, {"pool_buffer_count": 1}, {"commit_pages_min": 0}, {"commit_interval_seconds": 0.0}],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object]) -> None:
    """Errors give the settings' full names."""
    with pytest.raises(ConfigError, match=rf"store\.{next(iter(changes))}: "):
        replace(StoreConfig.tiny(DIRECTORY), **changes)  # type: ignore[arg-type]  # invalid on purpose


def test_a_commit_with_a_cancelled_waiter_counts() -> None:
    """Of two concurrent commits the one for a sync is cancelled; the other must report all written bytes.

    The bytes are never written again, so their waiters would otherwise wait forever.
    """
    disk, config = MemoryFileSystem(), replace(config_of("pool"), segment_size=4096)
    log = CommitLog(
        MappedFileQueue(FileRun(disk, LOG, 4096), segments_of(config, BufferPool.of(config, disk))),
        zero_ahead=True,
        disk_headroom=0,
    )
    rounds = []
    for _ in range(2):
        log.prepare([100])
        log.next_offset(100)
        log.append(b"x" * 100)
        rounds.append(log.begin_commit())
    for parts, _ in rounds:
        log.commit_in_thread(parts)
    log.end_commit(rounds[0][1])
    assert (log.wrote, log.committed) == (200, 200)


def test_a_mapping_takes_single_records_only() -> None:
    """A copy of several records may store the first one last: a kill within it would leave a hole before the others.

    So they wait for a commit, which writes them in order, and all that follows waits for the same commit: single
    records, the blank at the end of the segment, and the next segment.
    """
    disk, config = MemoryFileSystem(), replace(config_of("mapped"), segment_size=4096)
    log = CommitLog(
        MappedFileQueue(FileRun(disk, LOG, 4096), segments_of(config, None)), zero_ahead=False, disk_headroom=0
    )

    def put(byte: bytes, size: int, *, is_one: bool) -> None:
        log.prepare([size])
        log.next_offset(size)
        log.append(byte * size, is_one=is_one)

    def stored() -> list[bytes]:
        """The segments as a kill would leave them."""
        return [content.rstrip(b"\0") for _, content in sorted(log_bytes(disk).items())]

    put(b"a", 500, is_one=True)
    assert stored() == [b"a" * 500]
    put(b"b", 1500, is_one=False)
    put(b"c", 500, is_one=True)
    assert stored() == [b"a" * 500]
    put(b"d", 3000, is_one=True)  # ends the first segment
    first, second = log.files.files
    assert stored() == [b"a" * 500, b""]
    assert (first.wrote, first.committed, second.wrote, second.committed) == (4096, 500, 3000, 0)
    log.commit()
    assert (first.committed, second.committed, log.committed) == (4096, 3000, 7096)
    assert stored()[0].startswith(b"a" * 500 + b"b" * 1500 + b"c" * 500)
    assert stored()[1] == b"d" * 3000
    put(b"e", 100, is_one=True)
    assert stored()[1] == b"d" * 3000 + b"e" * 100


def test_bytes_of_another_log_are_never_stored_through_a_mapping() -> None:
    """They may begin and end within a record."""
    disk, config = MemoryFileSystem(), replace(config_of("mapped"), segment_size=4096)
    log = CommitLog(
        MappedFileQueue(FileRun(disk, LOG, 4096), segments_of(config, None)), zero_ahead=False, disk_headroom=0
    )
    log.append_copied(b"x" * 100)
    assert not any(log_bytes(disk)[LOG / f"{0:020}"])
    log.commit()
    assert log_bytes(disk)[LOG / f"{0:020}"].rstrip(b"\0") == b"x" * 100


def test_several_records_wait_for_the_commit_in_every_mode() -> None:
    """Of a batch, nothing is in the file before the commit, and all of it afterwards."""
    for write_mode in MODES:
        disk, sender = MemoryFileSystem(), Sender()
        with MessageStore.open(config_of(write_mode), file_system=disk) as store:
            drafts = [store.draft(sender.message(300)) for _ in range(5)]
            records = bytearray()
            for number, draft in enumerate(drafts):
                records += draft.encode(number, len(records), 1)
            batch = RecordBatch.parse(bytes(records), base_physical_offset=0, record_size_max=4096)
            assert len(batch) == 5
            store.append_records(sender.message(1).topic, sender.message(1).queue_id, batch)
            assert not any(any(content) for content in log_bytes(disk).values()), write_mode
            store.commit()
            assert sum(content.count(b"\xda\xa3\x20") for content in log_bytes(disk).values()) == 5, write_mode
