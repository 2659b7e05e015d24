"""Reads segments of a running store from the disk, one slice after the other, in the disk thread.

A slice is read through its own descriptor, not through the segment's mapping. Through the mapping, a page that must
come from the disk would stop every thread of the process, and an unreadable page would kill it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import FileSystem, InDiskThread
from aerobee_store.log.commit_log import CommitLog, DamagedRange
from aerobee_store.log.log_scan import LogEnd, LogScan, containing
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.records.record import Record, StopReason

if TYPE_CHECKING:
    from aerobee_store.records import record_batch
    from aerobee_store.records.record_batch import RecordBatch
else:
    record_batch = deferred("aerobee_store.records.record_batch")


_log = logging.getLogger(__name__)

# About a thousand records of the usual size: one to two milliseconds of work, which partly releases the interpreter
# lock.
_SLICE_SIZE: Final = 256 << 10


class Slice(Struct, frozen=True):
    """The result of one read: `end` is where to continue, as a position in the segment."""

    end: int
    batch: RecordBatch | None = None
    damage: DamagedRange | None = None


class SliceReader:
    """Reads and checks slices. Blocking."""

    def __init__(self, file_system: FileSystem, *, record_size_max: int) -> None:
        self._file_system = file_system
        self._record_size_max = record_size_max

    def read(self, segment: MappedFile, _mapped: memoryview, position: int, end: int) -> Slice:
        """The records that begin in the next slice, verified, or the damage there; only before `end`.

        `_mapped` is the segment's `view`, which is read only after damage. The caller passes it, so that a segment that
        retention removes meanwhile stays mapped until this thread is done.
        """
        left = end - position
        for size in (min(_SLICE_SIZE, left), min(max(_SLICE_SIZE, self._record_size_max), left)):
            try:
                data = self._read(segment, position, size)
            except FileNotFoundError:
                return Slice(segment.size)
            except OSError as error:
                # The start of the next record is unknown without these bytes.
                start = segment.start_offset + position
                return Slice(segment.size, damage=DamagedRange(start, segment.end_offset, f"cannot be read: {error}"))
            batch = record_batch.RecordBatch.parse(
                data,
                base_physical_offset=segment.start_offset + position,
                check_crc=True,
                record_size_max=max(self._record_size_max, segment.size),
            )
            if len(batch):
                return Slice(position + batch.end, batch)
            stop = batch.stop
            if stop.reason is StopReason.BLANK and stop.size == segment.size - position:
                return Slice(segment.size)
            if stop.reason is not StopReason.TRUNCATED:
                break  # otherwise a record longer than the slice: read again, with the largest size
        return self._step_over(segment, position)

    def _read(self, segment: MappedFile, position: int, size: int) -> bytes:
        file = self._file_system.open(segment.path, writable=False)
        try:
            return file.read(size, position)
        finally:
            file.close()

    def _step_over(self, segment: MappedFile, position: int) -> Slice:
        """Find the next valid record after damage."""
        scan = LogScan([segment], record_size_max=max(self._record_size_max, segment.size))
        start = segment.start_offset + position
        found = next(scan.walk(start, zeros_end=None))
        if isinstance(found, DamagedRange):
            return Slice(found.end - segment.start_offset, damage=found)
        if isinstance(found, LogEnd):
            if found.stop is None:  # the segment ends there
                return Slice(segment.size)
            reason = f"{found.stop.reason.value}: {found.stop.detail}"
            return Slice(segment.size, damage=DamagedRange(found.position, segment.end_offset, reason))
        _log.warning("two reads of a segment returned different bytes path=%s position=%d", segment.path, position)
        return Slice(found.end, found)


async def records_containing(
    log: CommitLog, reader: SliceReader, in_disk_thread: InDiskThread, mark: bytes, *, end: int
) -> AsyncGenerator[list[Record], None]:
    """The valid records before physical offset `end`, which is committed, whose properties contain `mark`: those of
    each slice, in the order of the log, for a running store. What retention removes meanwhile is left out."""
    for segment in list(log.files.files):
        stop = min(end - segment.start_offset, segment.size)
        position = 0
        while position < stop:
            try:
                # No variable keeps the mapping.
                reading = in_disk_thread(_containing, reader, segment, segment.view, position, stop, mark)
            except FileNotFoundError:
                break  # retention has removed it
            found, position = await reading
            yield found


def _containing(
    reader: SliceReader, segment: MappedFile, mapped: memoryview, position: int, end: int, mark: bytes
) -> tuple[list[Record], int]:
    part = reader.read(segment, mapped, position, end)
    return [] if part.batch is None else list(containing(part.batch, mark)), part.end
