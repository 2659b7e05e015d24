"""A queue of units: append, read, truncate, reload."""

from __future__ import annotations

import pytest

from aerobee_store.disk.file_system import File
from aerobee_store.queues.consume_queue import (
    FILLER_SIZE,
    FILLER_UNIT,
    UNIT,
    UNIT_SIZE,
    ChangedQueues,
    ConsumeQueue,
    QueueMisalignedError,
)
from aerobee_store.testing import MemoryFileSystem
from tests.support.stored_messages import DIRECTORY

PER_FILE = 200  # units of 4000 bytes in all, so that a file has several sectors


def queue_on(disk: MemoryFileSystem, *, load: bool | None = None) -> ConsumeQueue:
    """Open a queue. `load`: None for a new queue, else whether it is loaded after a crash."""
    queue = ConsumeQueue(disk, DIRECTORY / "q", "t", 0, PER_FILE * UNIT_SIZE)
    if load is not None:
        queue.load(after_crash=load)
    return queue


def unit(number: int, *, code: int = 0) -> bytes:
    return UNIT.pack(number * 100, 100, code)


def offsets(queue: ConsumeQueue, first: int, count: int) -> list[int]:
    units = queue.units(first, count)
    return [int(value) // 100 for value in units["physical_offset"]]


def filled(disk: MemoryFileSystem, count: int) -> ConsumeQueue:
    queue = queue_on(disk)
    for number in range(count):
        queue.put(number, unit(number))
    sync(queue)
    return queue


def sync(queue: ConsumeQueue) -> None:
    for file in queue.take_dirty():
        file.sync()


def test_units_are_read_across_files() -> None:
    """Units put one by one or all at once are read across files and up to the queue's end."""
    queue = filled(MemoryFileSystem(), 150)
    queue.put(150, b"".join(unit(number) for number in range(150, 450)))
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 450, 450)
    assert queue.files == [0, 200, 400]
    assert offsets(queue, 190, 20) == list(range(190, 210))
    assert offsets(queue, 440, 100) == list(range(440, 450))
    assert offsets(queue, 450, 10) == []


def test_a_new_file_that_fills_asks_once_for_its_sync() -> None:
    """A hanging disk must not be asked again with each message, and a file that is durable needs nothing."""
    disk, changed = MemoryFileSystem(), ChangedQueues()
    asked: list[File] = []
    changed.sync_soon = asked.append
    queue = ConsumeQueue(disk, DIRECTORY / "queue", "orders", 0, 4096 * UNIT_SIZE, changed=changed)

    def put(first: int, end: int) -> None:
        for number in range(first, end):
            queue.put(number, unit(number))

    put(0, 410)
    assert not asked, "most queues never fill their file"
    put(410, 4000)
    assert len(asked) == 1
    assert not any(operation.name == "sync" for operation in disk.log)
    asked[0].sync()
    put(4000, 8000)
    assert [file.path.name for file in asked] == ["00000000000000000000", f"{4096 * UNIT_SIZE:020d}"]
    assert len([operation for operation in disk.log if operation.name == "sync"]) == 1
    put(8000, 8500)
    sync(queue)
    put(8500, 9500)
    assert len(asked) == 2


def test_a_further_file_is_created_when_the_one_before_is_durable() -> None:
    """Of two files without their size, only the last could be told from damage."""
    disk = MemoryFileSystem()
    queue_on(disk).put(0, b"".join(unit(number) for number in range(3 * PER_FILE)))
    done = [(operation.name, operation.path.name) for operation in disk.log if operation.name in ("create", "sync")]
    first, second, third = (f"{number * PER_FILE * UNIT_SIZE:020d}" for number in range(3))
    assert done == [("create", first), ("sync", first), ("create", second), ("sync", second), ("create", third)]


@pytest.mark.parametrize("after_crash", [False, True])
@pytest.mark.parametrize("count", [1, 199, 200, 201, 450])
def test_loading_finds_the_end(count: int, after_crash: bool) -> None:
    """The end is found by bisection, and after a crash by checking each unit."""
    disk = MemoryFileSystem()
    filled(disk, count)
    queue = queue_on(disk, load=after_crash)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, count, count)
    assert not queue.torn
    queue.put(count, unit(count))
    assert offsets(queue, count, 1) == [count]


def test_the_first_unit_may_have_any_offset() -> None:
    """The file is filled from its beginning, as RocketMQ does; fillers are below the minimum."""
    disk = MemoryFileSystem()
    queue = queue_on(disk)
    queue.put(250, unit(250))
    assert (queue.min_offset, queue.max_offset, queue.files) == (250, 251, [200])
    sync(queue)
    assert disk.contents()[queue.directory / f"{200 * UNIT_SIZE:020d}"][: 50 * UNIT_SIZE] == FILLER_UNIT * 50
    again = queue_on(disk, load=False)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (250, 251)


def test_a_gap_is_filled_and_a_used_offset_refused() -> None:
    """Fillers take the missing offsets, and no existing unit is overwritten."""
    queue = filled(MemoryFileSystem(), 3)
    queue.put(6, unit(6))
    assert [int(size) for size in queue.units(0, 10)["size"]] == [100] * 3 + [FILLER_SIZE] * 3 + [100]
    with pytest.raises(QueueMisalignedError, match="ends at 7"):
        queue.put(6, unit(9))
    assert offsets(queue, 6, 1) == [6]


def test_truncating_leaves_no_bytes() -> None:
    """Later files are removed and the rest of the last one is zeroed; the queue continues there."""
    disk = MemoryFileSystem()
    queue = filled(disk, 450)
    queue.truncate(150)
    assert (queue.max_offset, queue.next_offset, queue.files) == (150, 150, [0])
    (content,) = disk.contents().values()
    assert not any(content[150 * UNIT_SIZE :])
    queue.put(150, unit(777))
    sync(queue)
    assert offsets(queue_on(disk, load=True), 149, 5) == [149, 777]
    queue.truncate(500)
    assert queue.max_offset == 151


def test_stale_units_after_a_lost_sector_are_zeroed() -> None:
    """If a crash lost units before later ones, the later ones are zeroed and the queue reports itself torn."""
    disk = MemoryFileSystem()
    filled(disk, 150)
    path = DIRECTORY / "q" / f"{0:020d}"
    disk.damage(path, 512, bytes(512))
    queue = queue_on(disk, load=True)
    assert queue.max_offset == 26, "the last one has lost its tag, for recovery to put right"
    assert queue.torn
    assert not any(disk.contents()[path][26 * UNIT_SIZE :])


def test_a_lost_sector_in_an_earlier_file() -> None:
    """After a crash the queue ends at the lost sector, although the last file is whole."""
    disk = MemoryFileSystem()
    filled(disk, 450)
    disk.damage(DIRECTORY / "q" / f"{200 * UNIT_SIZE:020d}", 0, bytes(512))
    queue = queue_on(disk, load=True)
    assert queue.max_offset == 200
    assert queue.torn


def test_the_minimum_follows_the_log() -> None:
    """The minimum moves to the first unit whose record exists, or else to the end."""
    queue = filled(MemoryFileSystem(), 450)
    queue.correct_min_offset(30_000)
    assert queue.min_offset == 300
    assert queue.expired_files(30_000) == [0]
    queue.correct_min_offset(1_000_000)
    assert queue.min_offset == 450
    assert queue.expired_files(1_000_000) == [0, 200], "never the last"
    queue.release_files([0, 200])
    assert queue.files == [400]


def test_the_end_of_the_last_record_skips_fillers() -> None:
    """Fillers name no record, however many there are."""
    queue = filled(MemoryFileSystem(), 2)
    assert queue.last_record_end() == 200
    queue.put(2, FILLER_UNIT * 700)
    assert queue.last_record_end() == 200
    assert queue_on(MemoryFileSystem()).last_record_end() == 0


def test_offsets_by_time() -> None:
    """Units with the times 1000, 1010, 1010, 1010 and 1020, and a damaged one among them."""
    queue = queue_on(MemoryFileSystem())
    times = {0: 1000, 100: 1010, 300: 1010, 400: 1010, 500: 1020}
    for number in range(6):
        queue.put(number, FILLER_UNIT if number == 2 else unit(number))

    def by_time(timestamp: int) -> tuple[int, int]:
        return (
            queue.offset_by_time(timestamp, "lower", times.get),
            queue.offset_by_time(timestamp, "upper", times.get),
        )

    assert by_time(999) == (0, 0)
    assert by_time(1000) == (0, 0)
    assert by_time(1005) == (1, 0)
    assert by_time(1010) == (1, 4)
    assert by_time(1015) == (5, 4)
    assert by_time(1020) == (5, 5)
    assert by_time(1021) == (6, 5)
    assert queue_on(MemoryFileSystem()).offset_by_time(5, "lower", times.get) == 0


def test_offsets_by_time_stay_within_the_queue() -> None:
    """Deleted messages are never returned: for older times both boundaries give the minimum."""
    queue = queue_on(MemoryFileSystem())
    times = {number * 100: 1000 + number for number in range(6)}
    for number in range(6):
        queue.put(number, unit(number))
    queue.correct_min_offset(300)
    assert [queue.offset_by_time(timestamp, "lower", times.get) for timestamp in (0, 1002, 1003, 1006)] == [3, 3, 3, 6]
    assert [queue.offset_by_time(timestamp, "upper", times.get) for timestamp in (0, 1002, 1003, 1006)] == [3, 3, 3, 5]
    queue.correct_min_offset(600)
    assert queue.offset_by_time(1004, "lower", times.get) == queue.offset_by_time(1004, "upper", times.get) == 6


def test_fillers_have_no_time() -> None:
    """In a queue that begins with fillers, any earlier time gives the first message."""
    queue = queue_on(MemoryFileSystem())
    queue.put(250, unit(250))
    times = {25_000: 1000}
    for timestamp in (0, 1000, 2000):
        assert queue.offset_by_time(timestamp, "lower", times.get) == (250 if timestamp <= 1000 else 251)
        assert queue.offset_by_time(timestamp, "upper", times.get) == 250


def test_the_minimum_after_fillers() -> None:
    """RocketMQ corrects it from the first file alone; here a file of only fillers does not hide later messages."""
    disk = MemoryFileSystem()
    queue = queue_on(disk)
    queue.put(150, unit(150))
    queue.put(420, unit(420))
    again = queue_on(disk, load=True)
    assert (again.min_offset, again.max_offset, again.files) == (0, 421, [0, 200, 400])
    again.correct_min_offset(0)
    assert again.min_offset == 150
    again.correct_min_offset(15_001)
    assert again.min_offset == 420
    assert again.expired_files(15_001) == [0, 200], "a file of nothing but fillers keeps no message"


def test_a_destroyed_queue_can_continue() -> None:
    """Its files and directory are gone; the next unit gets the requested offset."""
    disk = MemoryFileSystem()
    queue = filled(disk, 250)
    queue.destroy()
    assert not disk.exists(queue.directory)
    queue.begin_at(250)
    queue.put(250, unit(250))
    assert (queue.min_offset, queue.max_offset) == (250, 251)
