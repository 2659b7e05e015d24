"""Reads the log from an offset to its end and skips damage: for recovery, and for read-only tools.

A walk yields, in the order of the log,

    RecordBatch     consecutive valid records
    DamagedRange    bytes that are no record, followed by a valid record
    LogEnd          once, at the end

A blank that reaches the end of its segment leads to the next one and is not reported. After anything else that is no
record, the rest of the segment and then every later one are searched for the next record: a magic, preceded by four
bytes, with the right physical offset and all checksums correct.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import find_bytes
from aerobee_store.log.commit_log import CommitLog, DamagedRange
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.records import record
from aerobee_store.records.record import Record, ScanStop, StopReason

if TYPE_CHECKING:
    from aerobee_store.records import record_batch
    from aerobee_store.records.record_batch import RecordBatch
    from aerobee_store.records.record_columns import Finder
else:
    record_batch = deferred("aerobee_store.records.record_batch")


# Records parsed at once: enough to amortise numpy's fixed costs, few enough for the CPU cache.
_BATCH_RECORDS: Final = 4096
_MAGIC_PREFIX: Final = b"\xda\xa3\x20"

SEGMENT_MISSING: Final = "the segment is missing"
"""The reason of a damaged range that no segment holds."""


class LogEnd(Struct, frozen=True):
    """The end of the log, and what stopped the scan there; None if the log ends with its last segment."""

    position: int
    stop: ScanStop | None = None


class LogScan:
    """The segments of a log, oldest first. Read-only. The owner may add segments between two walks."""

    def __init__(
        self,
        segments: Sequence[MappedFile],
        *,
        record_size_max: int,
        batch_records: int = _BATCH_RECORDS,
        finder: Finder | None = None,
    ) -> None:
        """`batch_records`: the most records that a walk yields at once. `finder`: of RecordBatch.parse."""
        self._segments = segments
        self._record_size_max = record_size_max
        self._batch_records = batch_records
        self._finder = finder
        # Asking the file system for the end of a file's data costs as much as parsing a thousand records.
        self._data_end: tuple[MappedFile | None, int] = None, 0

    def walk(self, begin: int, *, zeros_end: int | None) -> Iterator[RecordBatch | DamagedRange | LogEnd]:
        """Everything from physical offset `begin` on.

        `zeros_end`: zeros at or after this offset, with no used segment after them, are taken for the end of the log
        without searching further, as after a clean stop. Zeros before it are damage: a crash before that stop left
        them.
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
                    # Its last bytes are zeros without a block; or another process was just writing it.
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
            # Zeros after a clean stop are the end. Anything else may be damage followed by records.
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
        """As many records as one batch takes. Reads nothing after the file's last data unless `end` is: on a file
        system in memory, reading a hole allocates a page, and with no memory left that kills the process."""
        if end is not None:
            return self._parse_until(file, begin, end)
        known_for, known = self._data_end
        if known_for is file and begin < known:
            batch = self._parse_until(file, begin, known)
            if batch.stop.reason is StopReason.LIMIT:
                return batch  # the end of the data, which may have moved since, makes no difference
        self._data_end = file, max(file.file.data_end(begin), begin)
        return self._parse_until(file, begin, self._data_end[1])

    def _parse_until(self, file: MappedFile, begin: int, end: int) -> RecordBatch:
        return record_batch.RecordBatch.parse(
            file.view,
            base_physical_offset=file.start_offset,
            start=begin,
            end=end,
            check_crc=True,
            record_size_max=self._record_size_max,
            count_max=self._batch_records,
            finder=self._finder,
        )

    def find(self, physical_offset: int) -> MappedFile | None:
        """The segment that contains this offset."""
        number = bisect_right(self._segments, physical_offset, key=lambda segment: segment.start_offset)
        file = self._segments[number - 1] if number else None
        return file if file is not None and physical_offset < file.end_offset else None

    def first_record(self, physical_offset: int) -> int | None:
        """The start of the first valid record at or after an offset, within the segment that contains the offset.

        For readers of a part of a segment. A body may contain a record with exactly this offset, if its author guessed
        it: compare the result with the end of the records before it.
        """
        file = self.find(physical_offset)
        return None if file is None else self._search(file, physical_offset - file.start_offset)

    def peek(self, file: MappedFile, position: int) -> record.RecordHeader | ScanStop:
        """The record or other content at a position of a segment; every checksum is verified."""
        return record.peek(
            file.view,
            position,
            file.size if position < file.file.data_end(position) else position,
            physical_offset=file.start_offset + position,
            record_size_max=self._record_size_max,
        )

    def _find_record(self, position: int, file: MappedFile | None, *, stepping: int = 0) -> int | None:
        """The first valid record after `position`, in this segment or a later one."""
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


def records_containing(log: CommitLog, mark: bytes, begin: int, *, record_size_max: int) -> Iterator[Record]:
    """The valid records from physical offset `begin` (where one begins, or the log did) on whose properties contain
    `mark`, in the order of the log. Others are not decoded.

    Blocking; for opening, before anything is appended. `slices.records_containing` is for a running store.
    """
    begin = max(begin, log.min_offset)
    if begin >= log.committed:
        return
    for part in LogScan(log.files.files, record_size_max=record_size_max).walk(begin, zeros_end=log.committed):
        if not isinstance(part, DamagedRange | LogEnd):
            yield from containing(part, mark)


def containing(batch: RecordBatch, mark: bytes) -> Iterator[Record]:
    """The records whose properties contain `mark`."""
    first, end = int(batch.start[0]), int(batch.start[-1]) + int(batch.size[-1])
    if find_bytes(memoryview(batch.buffer), mark, first, end) < 0:
        return
    for row in range(len(batch)):
        found = batch.record(row)
        if mark in found.raw_properties:
            yield found
