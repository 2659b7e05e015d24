"""The log: where records are placed, what is committed and flushed, what is refused."""

from __future__ import annotations

import errno

import pytest

from aerobee_store import InvalidMessageError, RecordNotFoundError, StoreDirectoryError, StoreFullError
from aerobee_store.errors import CorruptRecordError
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.mapped_file import FileRun, MappedFileQueue
from aerobee_store.records.record import BLANK_MAGIC, Draft, Message
from aerobee_store.testing import MemoryFileSystem
from tests.support.stored_messages import DIRECTORY

SEGMENT = 4096
LOG = DIRECTORY / "commitlog"


def log_on(disk: MemoryFileSystem, *, end: int | None = None, headroom: int = 0) -> CommitLog:
    log = CommitLog(MappedFileQueue(FileRun(disk, LOG, SEGMENT)), zero_ahead=True, disk_headroom=headroom)
    if end is not None:
        log.set_end(end)
    return log


def put(log: CommitLog, size: int) -> int:
    """Append a record of `size` bytes; return its offset."""
    draft = Draft(Message("t", 0, b"x" * (size - 92 - 20)), store_host=("127.0.0.1", 1), property_crc=True)
    assert draft.size == size
    log.prepare([size])
    offset = log.next_offset(size)
    log.append(draft.encode(0, offset, 1))
    return offset


def test_records_follow_each_other_without_gaps() -> None:
    """Each record begins at the end of the one before; wrote, committed and flushed advance in turn."""
    log = log_on(MemoryFileSystem())
    assert [put(log, 200), put(log, 300), put(log, 150)] == [0, 200, 500]
    assert (log.wrote, log.committed, log.flushed) == (650, 0, 0)
    with pytest.raises(RecordNotFoundError):
        log.record_at(0)
    log.commit()
    assert (log.wrote, log.committed, log.flushed) == (650, 650, 0)
    assert log.record_at(200).physical_offset == 200
    (file,) = log.unsynced_files()
    file.sync()
    log.set_flushed([file], [650], 650)
    assert log.flushed == 650
    assert log.unsynced_files() == []


@pytest.mark.parametrize(("left", "rolls"), [(8, False), (7, True), (0, True)])
def test_eight_bytes_stay_free_for_a_blank(left: int, rolls: bool) -> None:
    """A record that would leave less than 8 bytes goes to the next segment, after a blank that fills this one."""
    disk = MemoryFileSystem()
    log = log_on(disk)
    put(log, 1000)
    second = put(log, SEGMENT - 1000 - left)
    log.commit()
    assert second == (SEGMENT if rolls else 1000)
    content = disk.contents()[LOG / f"{0:020d}"]
    if rolls:
        assert int.from_bytes(content[1000:1004], "big") == SEGMENT - 1000
        assert int.from_bytes(content[1004:1008], "big") == BLANK_MAGIC
        assert log.record_at(SEGMENT).size == SEGMENT - 1000 - left
    else:
        assert put(log, 200) == SEGMENT


def test_a_record_too_large_for_any_segment_is_refused() -> None:
    """Nothing changes, and the error names the setting."""
    log = log_on(MemoryFileSystem())
    put(log, 200)
    with pytest.raises(InvalidMessageError, match=r"store\.segment_size"):
        log.prepare([SEGMENT - 7])
    assert log.wrote == 200
    log.prepare([SEGMENT - 8])


def test_a_full_disk_refuses_with_nothing_changed() -> None:
    """`prepare` raises StoreFullError; once there is space the append succeeds."""
    disk = MemoryFileSystem(capacity=4096)
    log = log_on(disk)
    put(log, 3000)
    with pytest.raises(StoreFullError):
        put(log, 3000)
    assert log.wrote == 3000
    disk.capacity = 3 * 4096
    assert put(log, 3000) == SEGMENT


def test_another_error_of_an_allocation_is_not_a_full_disk() -> None:
    """EIO is raised unchanged: the store must fail."""
    disk = MemoryFileSystem()
    log = log_on(disk)
    disk.fail_at("reserve", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        put(log, 200)
    assert caught.value.errno == errno.EIO


def test_reading_outside_the_log() -> None:
    """Reads past the end, in a blank or inside a record raise errors that say which."""
    log = log_on(MemoryFileSystem())
    put(log, 3000)
    put(log, 3000)
    log.commit()
    with pytest.raises(RecordNotFoundError):
        log.record_at(100_000)
    with pytest.raises(CorruptRecordError, match="blank"):
        log.record_at(3000)
    with pytest.raises(CorruptRecordError):
        log.record_at(5)
    assert log.store_timestamp_at(0) == 1
    assert log.store_timestamp_at(3000) is None
    with pytest.raises(RecordNotFoundError):
        log.bytes_at(SEGMENT + 2999, 2)
    assert len(log.bytes_at(SEGMENT, 3000)) == 3000


def test_the_log_continues_after_a_set_end() -> None:
    """`set_end` works within a segment, at its end, and with prepared segments after it."""
    for end, expected in ((500, 500), (SEGMENT, SEGMENT), (SEGMENT + 10, SEGMENT + 10)):
        disk = MemoryFileSystem()
        run = FileRun(disk, LOG, SEGMENT)
        for start in (0, SEGMENT, 2 * SEGMENT):
            run.create(start)
        log = log_on(disk, end=end)
        assert put(log, 200) == expected
        assert len(log.files) == 3


@pytest.mark.parametrize(
    ("name", "size", "match"),
    [
        ("notes.txt", 10, "not a file of this store"),
        (f"{4096:020d}", 4000, "configure the size with which the store was written"),
        (f"{100:020d}", 4096, "multiple of the file size"),
    ],
)
def test_files_that_are_not_segments(name: str, size: int, match: str) -> None:
    """An invalid name, size or first byte stops the opening, and the error says what to do."""
    disk = MemoryFileSystem()
    disk.make_directory(LOG)
    disk.create(LOG / name, size)
    with pytest.raises(StoreDirectoryError, match=match):
        log_on(disk)


def test_an_empty_last_file_is_removed() -> None:
    """An empty last file is removed; an empty file before others is an error."""
    disk = MemoryFileSystem()
    run = FileRun(disk, LOG, SEGMENT)
    run.create(0)
    disk.create(LOG / f"{SEGMENT:020d}", 0)
    assert len(log_on(disk).files) == 1
    assert disk.list(LOG) == [f"{0:020d}"]
