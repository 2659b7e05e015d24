"""Reading the log from a place to its end, stepping over damage: for recovery, and for the tools that only look.

A walk yields, in the order of the log,

    RecordBatch     valid records, one after the other without a gap
    DamagedRange    bytes that are no record, with a valid record at their end
    LogEnd          once, at last

A blank that reaches the end of its segment is the normal way to the next one and is not told. Behind anything else that
is no record the rest of the segment, and then every later one, is searched for the next place that is one: four bytes
before a record's magic, with its own physical offset in it and all checksums right.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from aerobee_store.disk.file_system import find_bytes
from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.queues.batch_consume_queue import BATCH_UNIT_DTYPE, NOT_COMPACTED, BatchUnits
from aerobee_store.queues.consume_queue import UNIT_DTYPE, Units
from aerobee_store.queues.multi_dispatch import MultiDispatch, QueueKey
from aerobee_store.records import properties, record
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC, unit_code
from aerobee_store.records.inner_batch import place_of
from aerobee_store.records.record import SYS_FLAG_INNER_BATCH, SYS_FLAG_PREPARED, ScanStop, StopReason
from aerobee_store.records.record_batch import RecordBatch

# Records parsed at once: enough that numpy's fixed costs vanish, few enough to stay in the processor's cache.
_BATCH_RECORDS: Final = 4096
_MAGIC_PREFIX: Final = b"\xda\xa3\x20"

SEGMENT_MISSING: Final = "the segment is missing"
"""The reason of a damaged range that no segment holds."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the log ends, and what `stop` found there; None if it ends with its last segment."""

    position: int
    stop: ScanStop | None = None


class LogScan:
    """The segments of a log, oldest first. Never writes. Whoever owns them may add segments between two walks."""

    def __init__(self, segments: Sequence[MappedFile], *, record_size_max: int) -> None:
        self._segments = segments
        self._record_size_max = record_size_max

    def walk(self, begin: int, *, zeros_end: int | None) -> Iterator[RecordBatch | DamagedRange | LogEnd]:
        """Everything from physical offset `begin` on.

        `zeros_end`: zeros at or behind this offset, with no used segment behind them, are taken for the end of the log
        without searching what lies behind them, as may be after an orderly stop. Zeros before it are damage: a crash
        before that stop has left them.
        """
        position = begin
        while True:
            file = self.find(position)
            if file is None:
                found = self._find_record(position, self._first_from(position))
                if found is None:
                    yield LogEnd(position)
                    return
                yield DamagedRange(position, found, SEGMENT_MISSING)
                position = found
                continue
            batch = self._parse(file, position - file.start_offset)
            if len(batch):
                yield batch
                position = file.start_offset + batch.end
            stop = batch.stop
            if stop.reason is StopReason.TRUNCATED:
                found_here = self.peek(file, position - file.start_offset)
                if not isinstance(found_here, ScanStop):
                    # Its last bytes are zeros for which there is no block; or another process was just writing it.
                    batch = self._parse(file, position - file.start_offset, end=found_here.position + found_here.size)
                    if len(batch):
                        yield batch
                        position += found_here.size
                    continue
                stop = found_here
            if stop.reason is StopReason.LIMIT:
                continue
            if stop.reason is StopReason.BLANK and position + stop.size == file.end_offset:
                position = file.end_offset
                if self._first_from(position) is None:
                    yield LogEnd(position)
                    return
                continue
            if stop.reason is StopReason.END_OF_DATA and position == file.end_offset:
                continue
            # Zeros after an orderly stop are the end. Anything else may be damage with records behind it.
            may_end = stop.reason is StopReason.END_OF_DATA and zeros_end is not None and position >= zeros_end
            if may_end and not self._has_used_file_after(file):
                yield LogEnd(position, stop)
                return
            found = self._find_record(position, file, stepping=stop.size)
            if not isinstance(self.peek(file, position - file.start_offset), ScanStop):
                continue  # another process was just writing it
            if found is None:
                yield LogEnd(position, stop)
                return
            yield DamagedRange(position, found, f"{stop.reason.value}: {stop.detail}")
            position = found

    def _parse(self, file: MappedFile, begin: int, *, end: int | None = None) -> RecordBatch:
        """As many records as one batch takes. Nothing behind the file's last data is looked at, unless `end` is: on a
        file system in memory a look at a hole takes a page, and where there is none left, ends the process.
        """
        return RecordBatch.parse(
            file.view,
            base_physical_offset=file.start_offset,
            start=begin,
            end=max(file.file.data_end(begin), begin) if end is None else end,
            check_crc=True,
            record_size_max=self._record_size_max,
            count_max=_BATCH_RECORDS,
        )

    def find(self, physical_offset: int) -> MappedFile | None:
        """The segment that holds this offset."""
        number = bisect_right(self._segments, physical_offset, key=lambda segment: segment.start_offset)
        file = self._segments[number - 1] if number else None
        return file if file is not None and physical_offset < file.end_offset else None

    def first_record(self, physical_offset: int) -> int | None:
        """Where the first valid record at or behind an offset begins, in the segment that holds the offset.

        For readers of a part of a segment. A body may contain a record with just this place in it, if somebody guessed
        the place: compare the answer with where the records before it end.
        """
        file = self.find(physical_offset)
        return None if file is None else self._search(file, physical_offset - file.start_offset)

    def peek(self, file: MappedFile, position: int) -> record.RecordHeader | ScanStop:
        """What lies at a position of a segment; every checksum is verified."""
        return record.peek(
            file.view,
            position,
            file.size if position < file.file.data_end(position) else position,
            physical_offset=file.start_offset + position,
            record_size_max=self._record_size_max,
        )

    def _find_record(self, position: int, file: MappedFile | None, *, stepping: int = 0) -> int | None:
        """The first valid record behind `position`, in this segment or a later one."""
        while file is not None:
            begin = max(position - file.start_offset, 0)
            if stepping:
                header = self.peek(file, begin + stepping)
                if not isinstance(header, ScanStop):
                    return file.start_offset + begin + stepping
                stepping = 0
            found = self._search(file, begin)
            if found is not None:
                return found
            file = self._first_from(file.end_offset)
        return None

    def _search(self, file: MappedFile, begin: int) -> int | None:
        data_end = file.file.data_end(begin)
        position = begin + 4
        while True:
            position = find_bytes(file.view, _MAGIC_PREFIX, position, data_end)
            if position < 0:
                return None
            header = self.peek(file, position - 4)
            if not isinstance(header, ScanStop):
                return file.start_offset + position - 4
            position += 1

    def _first_from(self, physical_offset: int) -> MappedFile | None:
        number = bisect_left(self._segments, physical_offset, key=lambda segment: segment.start_offset)
        return self._segments[number] if number < len(self._segments) else None

    def _has_used_file_after(self, file: MappedFile) -> bool:
        following = self._first_from(file.end_offset)
        return following is not None and not isinstance(self.peek(following, 0), ScanStop)


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """The units that records of one queue must have, in the order of the log."""

    topic: str
    queue_id: int
    rows: npt.NDArray[np.intp]
    """Numbers of the records in their batch."""
    queue_offsets: npt.NDArray[np.int64]
    units: Units


def queue_units(batch: RecordBatch, rule: MultiDispatch) -> Iterator[QueueUnits]:
    """The units of a batch, queue by queue. Prepared, rolled-back and inner-batch records are in no consume queue.

    `rule` says which of the queues that records name besides their own count.
    """
    units = np.zeros(len(batch), UNIT_DTYPE)
    units["physical_offset"] = batch.physical_offset
    units["size"] = batch.size
    units["tags_code"] = batch.tags_codes()
    others: dict[QueueKey, list[tuple[int, int]]] = {}
    if not rule.is_off:
        for row, key, queue_offset in rule.batch_places(batch):
            others.setdefault(key, []).append((row, queue_offset))
    rows = np.flatnonzero((batch.sys_flag & (SYS_FLAG_PREPARED | SYS_FLAG_INNER_BATCH)) == 0)
    for topic, queue_id, of_queue in rows_by_queue(batch, rows):
        if topic == SCHEDULE_TOPIC:
            for row in of_queue.tolist():
                delay = batch.record(row).properties.get(properties.DELAY)
                stored, code = int(batch.store_timestamp[row]), int(units["tags_code"][row])
                units["tags_code"][row] = unit_code(SCHEDULE_TOPIC, delay, stored, code)
        offsets = batch.queue_offset[of_queue]
        if (topic, queue_id) in others:
            of_queue, offsets = _merged(of_queue, offsets, others.pop((topic, queue_id)))
        yield QueueUnits(topic, queue_id, of_queue, offsets, units[of_queue])
    for (topic, queue_id), places in others.items():
        named = np.array(places, np.int64)
        yield QueueUnits(topic, queue_id, named[:, 0], named[:, 1], units[named[:, 0]])


def _merged(
    rows: npt.NDArray[np.intp], offsets: npt.NDArray[np.int64], others: list[tuple[int, int]]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Records of a queue, and others that name it, in the order of the log."""
    named = np.array(others, np.int64)
    all_rows = np.concatenate((rows, named[:, 0]))
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], np.concatenate((offsets, named[:, 1]))[order]


def batch_queue_units(batch: RecordBatch) -> Iterator[tuple[str, int, BatchUnits]]:
    """Topic, queue id and the units that its inner batches must have, in the order of the log.

    Those without INNER_NUM or INNER_BASE have none.
    """
    inner = np.flatnonzero((batch.sys_flag & SYS_FLAG_INNER_BATCH) != 0)
    if not len(inner):
        return
    tags = batch.tags_codes()
    for topic, queue_id, rows in rows_by_queue(batch, inner):
        units = []
        for row in rows.tolist():
            place = place_of(batch.record(row).properties)
            if place is not None:
                record_place = int(batch.physical_offset[row]), int(batch.size[row]), int(tags[row])
                units.append((*record_place, int(batch.store_timestamp[row]), *place, NOT_COMPACTED, 0))
        if units:
            yield topic, queue_id, np.array(units, BATCH_UNIT_DTYPE)


def rows_by_queue(batch: RecordBatch, rows: npt.NDArray[np.intp]) -> Iterator[tuple[str, int, npt.NDArray[np.intp]]]:
    """The given records of a batch by topic and queue id, each group in the order of the log."""
    if not len(rows):
        return
    # Topics are numbered and queue ids have 31 bits, so both fit into one number to sort by.
    keys = batch.topic_index[rows] << 32 | batch.queue_id[rows]
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    bounds = [0, *(np.flatnonzero(np.diff(sorted_keys)) + 1).tolist(), len(rows)]
    for first, last in pairwise(bounds):
        key = int(sorted_keys[first])
        yield batch.topics[key >> 32], key & 0xFFFFFFFF, rows[order[first:last]]
