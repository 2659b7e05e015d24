"""The scrub rereads old segments slowly and verifies them, to detect damage before a reader needs the message.

Every full and synced segment is read once every `scrub_interval_hours`, oldest first; a restart begins again. The rate
is limited. The disk thread reads and checks in slices, so neither the disk nor the event loop is kept busy. A slice is
read through its own descriptor, not through the segment's mapping. Through the mapping, a page that must come from the
disk would stop every thread of the process, and an unreadable page would kill it.

Damage is logged and added to the log's damaged ranges; nothing is changed. A damaged range lies between valid records;
it is counted once, however often it is read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from aerobee_store.clock import Clock, every
from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import FileSystem, InDiskThread
from aerobee_store.log.commit_log import CommitLog, DamagedRange
from aerobee_store.log.log_scan import LogEnd, LogScan
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.records.record import StopReason
from aerobee_store.stats import StoreStats

if TYPE_CHECKING:
    from aerobee_store.records import record_batch
else:
    record_batch = deferred("aerobee_store.records.record_batch")


_log = logging.getLogger(__name__)

# About a thousand records of the usual size: one to two milliseconds of work, which partly releases the interpreter
# lock.
_SLICE_SIZE: Final = 256 << 10
# The pause when nothing is due, and before the first check, so that it does not compete with the start.
_REST_SECONDS: Final = 10.0


class _Step(Struct, frozen=True):
    """The result of one read: `end` is where to continue, as a position in the segment."""

    end: int
    damage: DamagedRange | None = None


class Scrub:
    """The service that rereads old segments."""

    name: Final = "scrub"

    def __init__(
        self,
        log: CommitLog,
        stats: StoreStats,
        file_system: FileSystem,
        clock: Clock,
        in_disk_thread: InDiskThread,
        *,
        bytes_per_second: int,
        interval_seconds: float,
        record_size_max: int,
    ) -> None:
        self._log = log
        self._stats = stats
        self._file_system = file_system
        self._clock = clock
        self._in_disk_thread = in_disk_thread
        self._bytes_per_second = bytes_per_second
        self._interval_seconds = interval_seconds
        self._record_size_max = record_size_max
        self._read_at: dict[int, float] = {}  # start of a segment -> when it was last checked

    async def run(self) -> None:
        """Read the due segments, then wait. Ends when cancelled, or at once if the scrub is switched off."""
        if self._bytes_per_second:
            await every(_REST_SECONDS, self.read_due)

    async def read_due(self) -> None:
        """Read every due segment."""
        while (segment := self._next()) is not None:
            await self._read(segment)
            self._read_at[segment.start_offset] = self._clock.monotonic()

    def _next(self) -> MappedFile | None:
        segments = list(self._log.files)
        starts = {segment.start_offset for segment in segments}
        self._read_at = {start: at for start, at in self._read_at.items() if start in starts}
        due = self._clock.monotonic() - self._interval_seconds
        for segment in segments:
            if segment is self._log.active or segment.end_offset > self._log.flushed:
                return None
            if self._read_at.get(segment.start_offset, due) <= due:
                return segment
        return None

    async def _read(self, segment: MappedFile) -> None:
        position = 0
        while position < segment.size:
            known = self._known_end(segment.start_offset + position)
            if known is not None:
                position = known - segment.start_offset
                continue
            try:
                # No variable keeps the mapping: if retention gives it up meanwhile, the disk thread unmaps it.
                checking = self._in_disk_thread(self._check, segment, segment.view, position)
            except FileNotFoundError:
                return  # retention has just unlinked it and will drop it
            step = await checking
            if segment not in self._log.files.files:
                return  # removed by retention
            if step.damage is not None:
                self._report(step.damage)
            self._stats.scrubbed_bytes += step.end - position
            await asyncio.sleep((step.end - position) / self._bytes_per_second)
            position = step.end
        self._stats.scrubbed_segments += 1

    def _known_end(self, physical_offset: int) -> int | None:
        """The end of the known damage that contains this place."""
        for damage in self._log.damaged:
            if damage.start <= physical_offset < damage.end:
                return damage.end
        return None

    def _report(self, damage: DamagedRange) -> None:
        _log.error(
            "scrub found damage in the log, nothing was changed from=%d to=%d reason=%r",
            damage.start,
            damage.end,
            damage.reason,
        )
        self._log.damaged = sorted([*self._log.damaged, damage], key=lambda known: known.start)
        self._stats.checksum_failures += 1
        self._stats.scrub_damage += 1

    # --- in the disk thread -----------------------------------------------------------------------------------

    def _check(self, segment: MappedFile, _mapped: memoryview, position: int) -> _Step:
        """Check the records that begin in the next slice. Uses the existing mapping only after damage."""
        left = segment.size - position
        for size in (min(_SLICE_SIZE, left), min(max(_SLICE_SIZE, self._record_size_max), left)):
            try:
                data = self._read_slice(segment, position, size)
            except FileNotFoundError:
                return _Step(segment.size)
            except OSError as error:
                # The start of the next record is unknown without these bytes.
                start = segment.start_offset + position
                return _Step(segment.size, DamagedRange(start, segment.end_offset, f"cannot be read: {error}"))
            batch = record_batch.RecordBatch.parse(
                data,
                base_physical_offset=segment.start_offset + position,
                check_crc=True,
                record_size_max=max(self._record_size_max, segment.size),
            )
            if len(batch):
                return _Step(position + batch.end)
            stop = batch.stop
            if stop.reason is StopReason.BLANK and stop.size == left:
                return _Step(segment.size)
            if stop.reason is not StopReason.TRUNCATED:
                break  # otherwise a record longer than the slice: read again, with the largest size
        return self._step_over(segment, position)

    def _read_slice(self, segment: MappedFile, position: int, size: int) -> bytes:
        file = self._file_system.open(segment.path, writable=False)
        try:
            return file.read(size, position)
        finally:
            file.close()

    def _step_over(self, segment: MappedFile, position: int) -> _Step:
        """Find the next valid record after damage."""
        scan = LogScan([segment], record_size_max=max(self._record_size_max, segment.size))
        start = segment.start_offset + position
        found = next(scan.walk(start, zeros_end=None))
        if isinstance(found, DamagedRange):
            return _Step(found.end - segment.start_offset, found)
        if isinstance(found, LogEnd):
            if found.position == segment.end_offset:
                return _Step(segment.size)
            reason = "no valid record" if found.stop is None else f"{found.stop.reason.value}: {found.stop.detail}"
            return _Step(segment.size, DamagedRange(found.position, segment.end_offset, reason))
        _log.warning("two reads of a segment returned different bytes path=%s position=%d", segment.path, position)
        return _Step(found.end)
