"""Slices of segments, read from the disk while the store runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem, File
from aerobee_store.log import slices
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.log.slices import Slice, SliceReader, records_containing
from aerobee_store.testing import MemoryFileSystem

SEGMENT = StoreConfig.tiny(Path()).segment_size
PER_SEGMENT = 7
COUNT = 2 * PER_SEGMENT


class Log:
    """Two segments of a store, each with seven records and a blank, and the places of the records in the log."""

    def __init__(self, directory: Path) -> None:
        self.disk = MemoryFileSystem()
        self.store = MessageStore.open(StoreConfig.tiny(directory), file_system=self.disk)
        self.places: list[int] = []
        for number in range(COUNT + 1):
            named = {"KEYS": "even" if number % 2 == 0 else "odds"}
            (appended,) = self.store.append([Message("orders", 0, b"%02d" % number + bytes(2100), named)])
            self.places.append(appended.physical_offset)
        self.store.flush()
        assert self.places[PER_SEGMENT::PER_SEGMENT] == [SEGMENT, 2 * SEGMENT]
        self.reader = SliceReader(self.disk, record_size_max=SEGMENT)

    def segment(self, number: int) -> MappedFile:
        return self.store._log.files.files[number]

    def read(self, number: int, position: int, end: int = SEGMENT) -> Slice:
        segment = self.segment(number)
        return self.reader.read(segment, segment.view, position, end)

    def damage(self, number: int, data: bytes) -> None:
        segment, position = divmod(self.places[number], SEGMENT)
        self.disk.damage(self.segment(segment).path, position, data)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.store.close()


def test_records_up_to_an_end(log: Log) -> None:
    """No record at or after the end is returned, and the next slice begins there."""
    begin, end = (log.places[PER_SEGMENT + number] - SEGMENT for number in (2, 4))
    part = log.read(1, begin, end)
    assert part.batch is not None
    assert part.batch.physical_offset.tolist() == log.places[PER_SEGMENT + 2 : PER_SEGMENT + 4]
    assert (part.end, part.damage) == (end, None)


def test_a_blank_is_recognised_without_the_mapping(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mapping may stop the process at an unreadable page, so only a search after damage uses it."""
    searched: list[int] = []
    step_over: Callable[..., Slice] = SliceReader._step_over

    def noted(reader: SliceReader, segment: MappedFile, position: int) -> Slice:
        searched.append(position)
        return step_over(reader, segment, position)

    monkeypatch.setattr(SliceReader, "_step_over", noted)
    for number in range(2):
        blank = log.places[PER_SEGMENT - 1] + log.places[1]  # behind the last record
        assert log.read(number, blank) == Slice(SEGMENT)
    assert searched == []
    log.disk.damage(log.segment(1).path, blank, (SEGMENT - blank - 8).to_bytes(4, "big"))
    assert log.read(1, blank).damage is not None, "a blank that does not reach the segment's end"
    assert searched == [blank]


def test_damage_in_a_later_segment(log: Log) -> None:
    """It begins and ends at offsets of the log; positions are the segment's."""
    second = PER_SEGMENT + 2
    log.damage(second, b"damage")
    part = log.read(1, log.places[second] - SEGMENT)
    assert part.end == log.places[second + 1] - SEGMENT
    assert part.damage is not None
    assert (part.damage.start, part.damage.end) == (log.places[second], log.places[second + 1])


def test_damage_up_to_the_end_of_a_segment(log: Log) -> None:
    """Its reason is that of the first bad byte."""
    begin = log.places[COUNT - 1]
    log.damage(COUNT - 1, bytes(range(1, 200)) * ((2 * SEGMENT - begin) // 199))
    part = log.read(1, begin - SEGMENT)
    assert part.damage is not None
    assert (part.end, part.damage.start, part.damage.end) == (SEGMENT, begin, 2 * SEGMENT)
    assert part.damage.reason.startswith("corrupt: ")


def test_a_slice_that_cannot_be_read(log: Log) -> None:
    """Whatever follows in its segment is unknown."""
    log.disk.fail_at("read", 1)
    part = log.read(1, 5000)
    assert part.damage is not None
    assert (part.end, part.damage.start, part.damage.end) == (SEGMENT, SEGMENT + 5000, 2 * SEGMENT)


async def test_records_with_a_mark_before_an_end(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slice by slice, in the order of the log, and none at or after the end, in whichever segment that is."""
    monkeypatch.setattr(slices, "_SLICE_SIZE", 5000)
    for last in (3, PER_SEGMENT, PER_SEGMENT + 3, COUNT):
        found: list[int] = []
        async for part in records_containing(
            log.store._log, log.reader, log.store.in_disk_thread, b"even", end=log.places[last]
        ):
            found += [record.physical_offset for record in part]
        assert found == log.places[:last:2]


def test_files_are_opened_for_reading_and_closed(tmp_path: Path) -> None:
    """Thousands of slices are read while the store runs."""
    opened = 0

    class Files(DiskFileSystem):
        def open(self, path: Path, *, writable: bool = True, evictable: bool = False) -> File:
            nonlocal opened
            assert not writable
            opened += 1
            return super().open(path, writable=writable, evictable=evictable)

    path = tmp_path / f"{0:020d}"
    path.write_bytes(bytes(4096))
    segment = MappedFile(DiskFileSystem(), path, 0, 4096)
    reader, counts = SliceReader(Files(), record_size_max=4096), []
    for _ in range(3):
        assert reader.read(segment, memoryview(b""), 0, 4096).damage is not None
        counts.append(len(os.listdir("/dev/fd")))
    assert counts[1:] == counts[:1] * 2, "the first read made the mapping"
    assert opened == 3
