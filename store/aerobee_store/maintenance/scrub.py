"""The scrub rereads old segments slowly and verifies them, to detect damage before a reader needs the message.

Every full and synced segment is read once every `scrub_interval_hours`, oldest first; a restart begins again. The rate
is limited. The disk thread reads and checks in slices, so neither the disk nor the event loop is kept busy.

Damage is logged and added to the log's damaged ranges; nothing is changed. A damaged range lies between valid records;
it is counted once, however often it is read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aerobee_store.clock import Clock, every
from aerobee_store.disk.file_system import InDiskThread
from aerobee_store.log.commit_log import CommitLog, DamagedRange
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.log.slices import SliceReader
from aerobee_store.stats import StoreStats

_log = logging.getLogger(__name__)

# The pause when nothing is due, and before the first check, so that it does not compete with the start.
_REST_SECONDS: Final = 10.0


class Scrub:
    """The service that rereads old segments."""

    name: Final = "scrub"

    def __init__(
        self,
        log: CommitLog,
        stats: StoreStats,
        reader: SliceReader,
        clock: Clock,
        in_disk_thread: InDiskThread,
        *,
        bytes_per_second: int,
        interval_seconds: float,
    ) -> None:
        self._log = log
        self._stats = stats
        self._reader = reader
        self._clock = clock
        self._in_disk_thread = in_disk_thread
        self._bytes_per_second = bytes_per_second
        self._interval_seconds = interval_seconds
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
                checking = self._in_disk_thread(self._reader.read, segment, segment.view, position, segment.size)
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
