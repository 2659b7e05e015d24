"""Removes expired messages, and older ones when the disk fills up.

Every round checks the disk of the log and that of the queues; the fuller one counts. Of several disks of the log
(log_paths.py) the emptiest counts, and those above disk_force_clean_ratio get no new segment. Above disk_clean_ratio,
preallocated segments are removed first, and the disk is checked again. Then:

    used                           action
    above disk_full_ratio          messages are refused (DISK_FULL), and as in the next row
    above disk_force_clean_ratio   unexpired segments are removed too, as many as necessary (with clean_forcibly)
    up to disk_force_clean_ratio   messages are accepted again
    above disk_clean_ratio         expired segments are removed at any hour
    unknown                        as above disk_clean_ratio; DISK_FULL stays unchanged

Otherwise expired segments are removed in the local hours of delete_when_hours. One round removes at most
retention_batch_max of them, oldest first, up to the first that must stay. It never removes the current segment,
preallocated ones after it, or one whose bytes are not yet synced and dispatched. Files in quarantine are not segments
and stay.

The age of a segment is that of its end, given by the first record of the next segment. RocketMQ uses the file's
modification time, which is the same moment. A copied store, whose files are all new, therefore expires like the
original. The modification time counts only if that record is not valid.

Removal has this order, each step durable before the next, so that a crash leaves no gap:

1. The `listeners` are called. Each saves the state that it needs from these segments, or returns the offset from which
   the log must be kept.
2. The disk thread removes the segments' files. Until all is done, they are read through their mappings.
3. The first offset of every queue moves to its first remaining message. Then the segments leave the log, and the thread
   that syncs the log closes them.
4. Files of queues and index without any remaining record are removed, except the last one of a queue or of the index.

A file that cannot be removed is reported, counted, and retried every round; until then it counts as existing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from aerobee_store.clock import Clock, SteadyClock
from aerobee_store.config import StoreConfig
from aerobee_store.disk.file_system import DiskUsage, FileSystem, InDiskThread
from aerobee_store.errors import StoreError
from aerobee_store.log.allocate import SegmentAllocation
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.queues.consume_queue import ConsumeQueue
from aerobee_store.queues.dispatch import Dispatch
from aerobee_store.queues.index_file import IndexService
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.records import record
from aerobee_store.records.record import ScanStop
from aerobee_store.running_flags import RunningFlags, RunningState
from aerobee_store.stats import StoreStats

_log = logging.getLogger(__name__)

RetentionListener = Callable[[int], Awaitable[int]]
"""Called with a physical offset before the log up to this offset is removed; returns the offset from which the log must
be kept, possibly the same. If it raises StoreError or OSError, nothing is removed, and it is called again in the next
round."""

Space = Literal["enough", "short", "force"]

# As RocketMQ: a minute after the start, then every ten seconds. An operator who started with a wrong clock or setting
# has time to notice.
_ROUNDS_BEFORE_FIRST: Final = 6
# Queues checked between two iterations of the event loop: each costs at least one small read.
_QUEUES_PER_TURN: Final = 32
# Read a record before examining it through the mapping, where a page that is not in memory would stop every thread.
_WARM_SIZE: Final = 64 << 10


class RetentionParts(Struct, frozen=True, kw_only=True):
    """What removing files reads and changes."""

    file_system: FileSystem
    clock: Clock
    log: CommitLog
    queues: QueueTable
    index: IndexService
    dispatch: Dispatch
    allocation: SegmentAllocation
    running: RunningState
    stats: StoreStats
    segments_are_removed: Callable[[int], Awaitable[None]]  # called before, with the end of the last one
    in_disk_thread: InDiskThread
    in_log_thread: InDiskThread


class Retention:
    """The service that removes old files. Event loop only, except for the removal itself."""

    name: Final = "retention"

    def __init__(self, parts: RetentionParts, config: StoreConfig) -> None:
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._dispatch = parts.dispatch
        self._running = parts.running
        self._stats = parts.stats
        self._file_system = parts.file_system
        self._clock = parts.clock
        self._steady = SteadyClock(parts.clock)
        self._config = config
        self._in_disk_thread = parts.in_disk_thread
        self._in_log_thread = parts.in_log_thread
        self._segments_are_removed = parts.segments_are_removed
        self._allocation = parts.allocation
        self.listeners: list[RetentionListener] = []
        self._first_timestamps: dict[int, int] = {}  # start of a segment -> time of its last record
        self._cleaned_offset = -1  # queues and index have nothing removable before it
        self._left_over: dict[Path, list[Path]] = {}  # directory -> unused files, oldest first
        self._is_stuck = False

    def reconfigure(self, config: StoreConfig) -> None:
        """Use these settings from now on."""
        self._config = config

    async def run(self) -> None:
        """Check disk and files every interval. Ends only when cancelled."""
        interval = self._config.retention_interval_seconds
        first_removal = self._clock.monotonic() + _ROUNDS_BEFORE_FIRST * interval
        while True:
            if self._clock.monotonic() < first_removal:
                await self.look_at_disk()
            else:
                await self.clean()
            await asyncio.sleep(interval)

    # --- the disk ---------------------------------------------------------------------------------------------

    async def look_at_disk(self) -> Space:
        """Set or clear DISK_FULL; return how short of space the disk is."""
        config = self._config
        try:
            ratio, _ = await self._usage()
        except OSError as error:
            _log.warning("disk usage unknown directory=%s cause=%s", config.directory, error)
            return "short"
        if ratio > config.disk_full_ratio:
            if not self._running.flags & RunningFlags.DISK_FULL:
                _log.error("disk is full, sends refused directory=%s used=%.1f%%", config.directory, 100 * ratio)
            self._running.set(
                RunningFlags.DISK_FULL,
                f"no space left on the disk of {config.directory}: {100 * ratio:.1f} % are used, and above "
                f"{100 * config.disk_full_ratio:g} % (store.disk_full_ratio) no message is taken; free some until at "
                f"most {100 * config.disk_force_clean_ratio:g} % are used (store.disk_force_clean_ratio)",
            )
        elif ratio <= config.disk_force_clean_ratio and self._running.flags & RunningFlags.DISK_FULL:
            _log.warning("disk has space again, sends accepted directory=%s used=%.1f%%", config.directory, 100 * ratio)
            self._running.clear(RunningFlags.DISK_FULL)
        if ratio > min(config.disk_force_clean_ratio, config.disk_full_ratio):
            return "force"
        return "short" if ratio > config.disk_clean_ratio else "enough"

    async def _usage(self) -> tuple[float, int]:
        """The usage of the fuller disk of log and queues, and its bytes above disk_force_clean_ratio.

        Of several disks of the log the emptiest counts; those above disk_force_clean_ratio get no new segments.
        OSError.
        """
        directory = self._config.directory
        limit = self._config.disk_force_clean_ratio
        run = self._log.files.run

        def usage_of(path: Path) -> DiskUsage:
            return self._file_system.usage(path if self._file_system.exists(path) else directory)

        def ask() -> tuple[DiskUsage, DiskUsage, frozenset[Path]]:
            log = {path: usage_of(path) for path in run.writable_directories}
            emptiest = min(log.values(), key=lambda usage: usage.ratio)
            full = frozenset(path for path, usage in log.items() if usage.ratio > limit)
            return emptiest, usage_of(directory / "consumequeue"), full

        log, queues, full = await self._in_disk_thread(ask)
        if full != run.full and len(run.writable_directories) > 1:
            _log.warning("no new segments in paths whose disks are full paths=%s", sorted(map(str, full)))
        run.full = full
        fuller = max(log, queues, key=lambda usage: usage.ratio)
        return fuller.ratio, fuller.used - int(limit * fuller.total)

    # --- one round --------------------------------------------------------------------------------------------

    async def clean(self) -> None:
        """One round: check the disk, remove files, and check again if any were removed."""
        space = await self.look_at_disk()
        if space != "enough" and await self._allocation.give_back():
            space = await self.look_at_disk()
        if space != "enough" or self._is_delete_hour():
            removed = await self._clean_log(force=space == "force" and self._config.clean_forcibly)
            stuck = space == "force" and not removed
            if stuck and not self._is_stuck:
                _log.error("disk is filling up, but no segment can be removed directory=%s", self._config.directory)
            self._is_stuck = stuck
        await self._clean_derived()

    def _is_delete_hour(self) -> bool:
        # In local time, as in RocketMQ, because operators think of quiet hours in local time.
        hour = datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone().hour
        return hour in self._config.delete_when_hours

    async def _not_needed(self, going: list[MappedFile]) -> list[MappedFile]:
        """The first of these segments, as far as the listeners have saved what depends on them."""
        if not going:
            return []
        keep_from = going[-1].end_offset
        for listener in self.listeners:
            try:
                keep_from = min(keep_from, await listener(keep_from))
            except (StoreError, OSError) as error:
                self._stats.retention_failures += 1
                _log.error("segments not removed because dependent data was not saved cause=%r", error)
                return []
        return [file for file in going if file.end_offset <= keep_from]

    async def _clean_log(self, *, force: bool) -> int:
        """Remove segments; return their number."""
        going = await self._not_needed(await self._going(force=force))
        if not going:
            return 0
        mappings = [file.view for file in going]  # made while the files have names: readers then need no descriptor
        try:
            await self._in_disk_thread(self._log.files.run.before_removal, [file.start_offset for file in going])
            await self._segments_are_removed(going[-1].end_offset)
        except OSError as error:
            self._stats.retention_failures += 1
            _log.error("segments not removed because the places or the bounds were not saved cause=%s", error)
            return 0
        gone = going[: await self._remove([file.path for file in going])]
        if not gone:
            return 0
        min_offset = gone[-1].end_offset
        await self._correct_queues(min_offset)
        self._log.release(gone)
        await self._in_log_thread(_close_files, gone)
        await self._in_disk_thread(
            mappings.clear
        )  # unmapping a segment frees its pages: some 100 ms, spent in another thread
        for file in gone:
            self._first_timestamps.pop(file.start_offset, None)
        self._stats.segments_expired += len(gone)
        self._stats.segments_forced += len(gone) if force else 0
        _log.info(
            "segments removed count=%d from=%d to=%d forced=%s", len(gone), gone[0].start_offset, min_offset, force
        )
        await self.look_at_disk()
        return len(gone)

    async def _going(self, *, force: bool) -> list[MappedFile]:
        """The segments to remove in this round, oldest first."""
        count_max = self._config.retention_batch_max
        if force:
            # Unexpired messages are removed only for space, and no more of them than needed.
            with suppress(OSError):
                count_max = min(count_max, max(1, -(-(await self._usage())[1] // self._log.segment_size)))
        end = min(self._log.flushed, self._dispatch.dispatched)
        files = list(self._log.files)
        going: list[MappedFile] = []
        for file, following in pairwise(files):
            if len(going) == count_max or file is self._log.active or file.end_offset > end:
                break
            if not force and not await self._is_expired(file, following):
                break
            going.append(file)
        return going

    async def _is_expired(self, file: MappedFile, following: MappedFile) -> bool:
        try:
            timestamp = await self._last_timestamp(file, following)
        except OSError as error:
            self._stats.retention_failures += 1
            _log.error("segment not removed because its age is unknown path=%s cause=%s", file.path, error)
            return False
        now_ms = min(self._clock.now_ms(), self._steady.now_ms())  # a clock that jumped ahead expires nothing
        return timestamp + self._config.retention_hours * 3_600_000 <= now_ms

    async def _last_timestamp(self, file: MappedFile, following: MappedFile) -> int:
        ended = await self._first_timestamp(following)
        if ended is None:
            ended = await self._in_disk_thread(self._file_system.modified_ms, file.path)
        return max(ended, await self._first_timestamp(file) or 0)  # a clock may have been set back in between

    async def _first_timestamp(self, file: MappedFile) -> int | None:
        """The store time of a segment's first record; None if it is not valid."""
        found = self._first_timestamps.get(file.start_offset)
        if found is None and file.committed:
            header = await self._in_disk_thread(_read_first, file, file.view)
            if isinstance(header, ScanStop):
                return None
            found = self._first_timestamps[file.start_offset] = header.store_timestamp
        return found

    async def _correct_queues(self, min_offset: int) -> None:
        for number, queue in enumerate(self._queues.all(), 1):
            queue.correct_min_offset(min_offset)
            if number % _QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _clean_derived(self) -> None:
        """Remove files of queues and index that refer only to removed messages."""
        for directory in list(self._left_over):
            await self._remove_left_over(directory)
        min_offset = self._log.min_offset
        if min_offset == self._cleaned_offset:
            return
        for number, queue in enumerate(self._queues.all(), 1):
            queue.correct_min_offset(min_offset)
            await self._give_up(queue.directory, queue.release_files(queue.expired_files(min_offset)))
            if isinstance(queue, ConsumeQueue) and queue.extension is not None:
                await self._give_up(queue.extension.directory, queue.release_extension_files())
            if number % _QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        expired = self._index.release_expired(min_offset)
        mappings = [file.mapping for file in expired]
        try:
            await self._give_up(self._config.directory / "index", [file.path for file in expired])
        finally:
            for file in expired:
                file.close()  # not earlier: a running sync may still use it
        await self._in_disk_thread(mappings.clear)  # as for segments
        self._cleaned_offset = min_offset

    async def _give_up(self, directory: Path, paths: Sequence[Path]) -> None:
        if paths:
            self._left_over.setdefault(directory, []).extend(paths)
            await self._remove_left_over(directory)

    async def _remove_left_over(self, directory: Path) -> None:
        paths = self._left_over[directory]
        removed = await self._remove(paths)
        self._stats.derived_files_expired += removed
        del paths[:removed]
        if not paths:
            del self._left_over[directory]

    async def _remove(self, paths: Sequence[Path]) -> int:
        """Remove files one after the other, up to the first that cannot be removed; return the number removed."""
        removed, error = await self._in_disk_thread(_remove_files, self._file_system, list(paths))
        if error is not None:
            self._stats.retention_failures += 1
            _log.error(
                "file not removed path=%s cause=%s next_try_seconds=%g",
                paths[removed],
                error,
                self._config.retention_interval_seconds,
            )
        return removed


def _close_files(files: Sequence[MappedFile]) -> None:
    for file in files:
        file.close()


def _remove_files(file_system: FileSystem, paths: Sequence[Path]) -> tuple[int, OSError | None]:
    for number, path in enumerate(paths):
        try:
            # A file that is gone already, with its topic or by an earlier attempt, counts as removed.
            with suppress(FileNotFoundError):
                file_system.unlink(path)
            with suppress(FileNotFoundError):
                file_system.sync_directory(path.parent)
        except OSError as error:
            return number, error
    return len(paths), None


def _read_first(file: MappedFile, view: memoryview) -> record.RecordHeader | ScanStop:
    file.file.read(_WARM_SIZE, 0)
    return record.peek(view, 0, file.committed, physical_offset=file.start_offset)
