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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from aerobee_pipeline.errors import DataLossError, OptionError
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

    def __str__(self) -> str:
        return f"{self.path} [{self.begin}, {self.end})"


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


def plan_log(
    broker: str,
    files: StoreFiles,
    split_bytes: int,
    *,
    fail_on_data_loss: bool,
    since_ms: int | None = None,
    parts_min: int | None = None,
) -> list[LogSplit]:
    """Split a log into ranges of about `split_bytes`, or into about `parts_min` smaller ones.

    Only the first record of each segment is read. `since_ms`: segments that end before this store time are skipped.
    DataLossError for a missing segment.
    """
    used = _used_segments(files, log_scan(files))
    chosen: list[tuple[MappedFile, bool, int, int]] = []
    for number, (segment, _) in enumerate(used):
        if number and segment.start_offset != used[number - 1][0].end_offset:
            hole = f"[{used[number - 1][0].end_offset}, {segment.start_offset})"
            lost = f"{files.directory}: the log has no segment for {hole}"
            if fail_on_data_loss:
                raise DataLossError(
                    f"{lost}. Set the option failOnDataLoss=false to continue with the remaining messages"
                )
            _log.warning("%s", lost)
        is_last = number + 1 == len(used)
        if since_ms is not None and not is_last and 0 < used[number + 1][1] < since_ms:
            continue
        data_end = segment.start_offset + segment.file.data_end(0)
        log_end = live_end(files, segment) if is_last and files.live else segment.end_offset
        chosen.append((segment, is_last, min(data_end, log_end), log_end))
    splits: list[LogSplit] = []
    size = sum(data_end - segment.start_offset for segment, _, data_end, _ in chosen)
    step = max(min(split_bytes, size // (parts_min or 1)), _SMALLEST_SPLIT)
    for segment, is_last, data_end, log_end in chosen:
        count = max(1, round((data_end - segment.start_offset) / step))
        edges = [segment.start_offset + (data_end - segment.start_offset) * part // count for part in range(count)]
        for begin, end in zip(edges, [*edges[1:], segment.end_offset], strict=True):
            splits.append(
                LogSplit(broker, str(segment.path), segment.start_offset, segment.size, begin, end, is_last, log_end)
            )
    files.close()
    return splits


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
        split = self._split
        segment = _planned_segment(split)
        log = LogScan([segment], record_size_max=max(split.segment_size, RECORD_SIZE_MIN))
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
