"""Splits the commit logs of stores into byte ranges, so that many tasks can read one log without consume queues.

A task owns the records that begin in its range; the last one may end after it. If the range does not begin with its
segment, `LogScan.first_record` searches for the first record. A body that contains a record crafted for this offset
could mislead this search. Each task therefore also searches from the end of its range, as the next task does, and
compares the result with the end of its own records. If all neighbours agree, all are correct, because the first range
of a segment begins at a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from aerobee_pipeline.errors import DataLossError, OptionError
from aerobee_pipeline.passes import find_records
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.log.log_scan import LogEnd, LogScan
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.queues.topic_removal import DeletedTopics
from aerobee_store.records.record import RECORD_SIZE_MIN, ScanStop
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.log_walk import log_scan, walk
from aerobee_store.tools.store_files import ReadOnlyDisk, StoreFiles

_log = logging.getLogger(__name__)

_SMALLEST_SPLIT: Final = 4096
BATCH_RECORDS: Final = 8192
"""Records read at once: the rows of a batch that Spark takes as it is."""
_NO_LIMIT: Final = 1 << 62
# The store time of a record about every so many bytes tells which parts of a segment a time excludes, with at most so
# many of them in a segment.
_SAMPLE_STEP: Final = 256 << 10
_SAMPLE_COUNT_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The records of one segment that begin at physical offsets [begin, end).

    `is_last`: the log ends in this segment, so zeros after its records are not data loss. `log_end`: records from
    there on were appended after planning and do not count.
    """

    broker: str
    path: str
    segment_begin: int
    segment_size: int
    begin: int
    end: int
    is_last: bool
    log_end: int
    size: int = 0
    """Bytes with data, at most."""

    def __str__(self) -> str:
        return f"{self.path} [{self.begin}, {self.end})"


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The part of a log that a query asks for: store times [since_ms, until_ms) and physical offsets [begin, end)."""

    since_ms: int = 0
    until_ms: int = _NO_LIMIT
    begin: int = 0
    end: int = _NO_LIMIT

    def within_times(self, since_ms: int | None, until_ms: int | None) -> LogWindow:
        """The same, with further limits; None for no limit."""
        since = self.since_ms if since_ms is None else max(self.since_ms, since_ms)
        return replace(
            self, since_ms=since, until_ms=self.until_ms if until_ms is None else min(self.until_ms, until_ms)
        )

    def within_offsets(self, begin: int | None, end: int | None) -> LogWindow:
        """The same, with further limits; None for no limit."""
        first = self.begin if begin is None else max(self.begin, begin)
        return replace(self, begin=first, end=self.end if end is None else min(self.end, end))

    @staticmethod
    def is_bounded(time_ms: int) -> bool:
        """Whether a time is a limit."""
        return 0 < time_ms < _NO_LIMIT

    @property
    def has_times(self) -> bool:
        return self.is_bounded(self.since_ms) or self.until_ms < _NO_LIMIT

    def may_have(self, first_ms: int, next_ms: int) -> bool:
        """Whether records between two others with these store times may be in the window. If the clock was set back
        between the two, nothing is known of their times."""
        return next_ms < first_ms or (next_ms >= self.since_ms and first_ms < self.until_ms)


WHOLE_LOG: Final = LogWindow()


@dataclass(frozen=True, slots=True)
class Tile:
    """The result of a range: where its first record begins and its last one ends, and the records between.

    `first` and `end` are None where the range has no record. `next_found`: where the task of the next range will begin.
    """

    first: int | None
    end: int | None
    next_found: int | None
    damage: tuple[DamagedRange, ...]


def store_files(directory: Path, *, has_topic: Callable[[str], bool] | None = None) -> StoreFiles:
    """The files of a store, with the queue files of the given topics. Raises OptionError if the directory is not a
    store."""
    try:
        return StoreFiles.find(directory, has_topic=has_topic)
    except StoreDirectoryError as error:
        raise OptionError(f"storePath: {error}") from None


def load_deleted_topics(directory: Path) -> DeletedTopics:
    """The deleted topics of a store, whose earlier records do not count. Raises StoreError for a damaged table."""
    deleted = DeletedTopics(ReadOnlyDisk(), directory)
    deleted.load()
    return deleted


def log_size(files: StoreFiles) -> int:
    """The bytes of a log that may hold records."""
    return sum(segment.file.data_end(0) for segment in files.segments)


def plan_log(
    broker: str,
    files: StoreFiles,
    split_bytes: int,
    *,
    fail_on_data_loss: bool,
    window: LogWindow = WHOLE_LOG,
    parts_min: int | None = None,
) -> list[LogSplit]:
    """Split the window of a log into ranges of about `split_bytes`, or into about `parts_min` smaller ones.

    Only the first record of each segment is read, and for a window of times a sample of the others. DataLossError for
    a missing segment.
    """
    chosen = list(_chosen(files, window, fail_on_data_loss))
    size = sum(end - begin for each in chosen for begin, end in each.parts)
    step = max(min(split_bytes, size // (parts_min or 1)), _SMALLEST_SPLIT)
    return [split for each in chosen for part in each.parts for split in _cut(broker, each, part, step)]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A segment within the window, and the parts of it that may have records of the window."""

    segment: MappedFile
    is_last: bool
    data_end: int
    log_end: int
    parts: list[tuple[int, int]]


def _chosen(files: StoreFiles, window: LogWindow, fail_on_data_loss: bool) -> Iterator[_Chosen]:
    log = log_scan(files)
    used = _used_segments(files, log)
    for number, (segment, first_time) in enumerate(used):
        if number and segment.start_offset != used[number - 1][0].end_offset:
            hole = f"[{used[number - 1][0].end_offset}, {segment.start_offset})"
            lost = f"{files.directory}: the log has no segment for {hole}"
            if fail_on_data_loss:
                raise DataLossError(
                    f"{lost}. Set the option failOnDataLoss=false to continue with the remaining messages"
                )
            _log.warning("%s", lost)
        is_last = number + 1 == len(used)
        next_time = _NO_LIMIT if is_last else used[number + 1][1]
        if segment.end_offset <= window.begin or segment.start_offset >= window.end:
            continue
        if not window.may_have(first_time, next_time):
            continue
        data_end = segment.start_offset + segment.file.data_end(0)
        log_end = live_end(files, segment) if is_last and files.live else segment.end_offset
        data_end = min(data_end, log_end)  # of a log that grows, too
        yield _Chosen(
            segment, is_last, data_end, log_end, _parts(log, segment, window, data_end, first_time, next_time)
        )


def _cut(broker: str, chosen: _Chosen, part: tuple[int, int], step: int) -> Iterator[LogSplit]:
    """Ranges of about `step` bytes."""
    segment, (first, last) = chosen.segment, part
    count = max(1, round((last - first) / step))
    edges = [first + (last - first) * number // count for number in range(count)]
    # Whatever follows the data of a segment belongs to its last range.
    edges.append(segment.end_offset if last == chosen.data_end else last)
    for begin, end in pairwise(edges):
        place = str(segment.path), segment.start_offset, segment.size, begin, end
        yield LogSplit(broker, *place, chosen.is_last, chosen.log_end, min(end, chosen.data_end) - begin)


def _parts(
    log: LogScan, segment: MappedFile, window: LogWindow, data_end: int, first_time: int, next_time: int
) -> list[tuple[int, int]]:
    """The ranges of a segment that may have records in the window. Each begins and ends at a record, except with the
    segment's data."""
    start = segment.start_offset
    begin, end = start, data_end
    if window.begin > start:
        found = log.first_record(window.begin)
        if found is None:
            return []
        begin = found
    if window.end < data_end:
        end = log.first_record(window.end) or data_end
    if begin >= end:
        return [(start, data_end)] if start == data_end else []
    if not window.has_times:
        return [(begin, end)]
    samples = [(begin, first_time if begin == start else _time_at(log, segment, begin))]
    step = max((end - begin) // _SAMPLE_COUNT_MAX, _SAMPLE_STEP)
    for position in range(begin + step, end, step):
        found = log.first_record(position)
        if found is None or found >= end:
            break
        if found > samples[-1][0]:
            samples.append((found, _time_at(log, segment, found)))
    samples.append((end, next_time if end == data_end else _time_at(log, segment, end)))
    parts: list[tuple[int, int]] = []
    for (first, time), (after, following) in pairwise(samples):
        if window.may_have(time, following):
            if parts and parts[-1][1] == first:
                parts[-1] = parts[-1][0], after
            else:
                parts.append((first, after))
    return parts


def _time_at(log: LogScan, segment: MappedFile, physical_offset: int) -> int:
    header = log.peek(segment, physical_offset - segment.start_offset)
    return 0 if isinstance(header, ScanStop) else header.store_timestamp


def _used_segments(files: StoreFiles, log: LogScan) -> list[tuple[MappedFile, int]]:
    """The segments that are not empty, each with the store time of its first record; 0 if that is not valid."""
    used: list[tuple[MappedFile, int]] = []
    for segment in files.segments:
        header = log.peek(segment, 0)
        if not isinstance(header, ScanStop):
            used.append((segment, header.store_timestamp))
        elif log.first_record(segment.start_offset) is not None:
            used.append((segment, 0))
        elif segment.file.data_end(0) and any(bytes(segment.view[:4096])):
            used.append((segment, 0))  # it has bytes; its reader reports the error
    return used


def live_end(files: StoreFiles, segment: MappedFile) -> int:
    """The present end of the log of a store in use, so that every attempt of a task reads the same records."""
    for found in walk(files, log_scan(files), segment.start_offset):
        if isinstance(found, LogEnd):
            return found.position
    raise AssertionError("a scan ends with the end of the log")


class SplitReader:
    """Reads one range, batch by batch; `tile` is set after the last batch."""

    def __init__(self, split: LogSplit) -> None:
        self._split = split
        self.tile: Tile | None = None

    def batches(self) -> Iterator[RecordBatch]:
        """The records of the range, in batches of some thousand. DataLossError if the segment is not as planned."""
        segment = _planned_segment(self._split)
        try:
            yield from self._batches_of(segment)
        finally:
            segment.close()  # a worker lives longer than its tasks

    def _batches_of(self, segment: MappedFile) -> Iterator[RecordBatch]:
        split = self._split
        size_max = max(split.segment_size, RECORD_SIZE_MIN)
        log = LogScan([segment], record_size_max=size_max, batch_records=BATCH_RECORDS, finder=find_records)
        segment_end = split.segment_begin + split.segment_size
        begin: int | None = split.begin
        if split.begin != split.segment_begin:
            begin = log.first_record(split.begin)
        first = last_end = following = None
        damage: list[DamagedRange] = []
        if begin is not None and begin < min(split.end, split.log_end):
            limit = min(split.end, split.log_end)
            for found in log.walk(begin, zeros_end=None):
                if isinstance(found, DamagedRange):
                    if found.start >= limit:
                        break
                    damage.append(found)
                    following = found.end
                    if found.end >= limit:
                        break
                    continue
                if isinstance(found, LogEnd):
                    following = None
                    if found.position < segment_end and not split.is_last:
                        reason = found.stop.detail if found.stop is not None else "no record"
                        damage.append(DamagedRange(found.position, segment_end, reason))
                    break
                count = int(np.searchsorted(found.physical_offset, limit))
                if count:
                    first = int(found.physical_offset[0]) if first is None else first
                    kept = found if count == len(found) else found.slice(0, count)
                    last_end = int(kept.physical_offset[-1]) + int(kept.size[-1])
                    following = last_end
                    yield kept
                if count < len(found):
                    following = int(found.physical_offset[count])
                    break
        next_found = log.first_record(split.end) if split.end < min(segment_end, split.log_end) else None
        self.tile = Tile(first, last_end, next_found, tuple(damage))
        if last_end is not None and split.end < min(segment_end, split.log_end) and next_found != following:
            raise DataLossError(
                f"{split.path}: the records of [{split.begin}, {split.end}) end at {following}, but the next range "
                f"would begin at {next_found}; a body contains bytes that look like a record. Read with splitBytes "
                f"of at least {split.segment_size}, so that no segment is split"
            )


def _planned_segment(split: LogSplit) -> MappedFile:
    """The segment of the split. DataLossError if it is gone, or shorter than planned."""
    try:
        segment = MappedFile(ReadOnlyDisk(), Path(split.path), split.segment_begin, split.segment_size)
        found_size = segment.file.size
    except FileNotFoundError:
        raise DataLossError(
            f"{split.path}: the segment was there when the query was planned and is gone; retention may have removed "
            f"it; read again"
        ) from None
    if found_size < split.segment_size:
        segment.close()
        raise DataLossError(
            f"{split.path}: {found_size} bytes, but {split.segment_size} bytes when the query was planned; read again"
        )
    return segment


def read_split(split: LogSplit, *, fail_on_data_loss: bool) -> Iterator[RecordBatch]:
    """The records of a range. DataLossError for damage in it, which is only logged without `fail_on_data_loss`."""
    reader = SplitReader(split)
    yield from reader.batches()
    assert reader.tile is not None
    for damaged in reader.tile.damage:
        lost = f"{split.path}: no record can be read at [{damaged.start}, {damaged.end}): {damaged.reason}"
        if fail_on_data_loss:
            raise DataLossError(
                f"{lost}. Set the option failOnDataLoss=false to skip it; `aerobee store verify` reports details"
            )
        _log.warning("%s", lost)
