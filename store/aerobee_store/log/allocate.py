"""Preallocation of segments in a thread. After RocketMQ's AllocateMappedFileService.

Once a quarter of the current segment is written, the next `segments_ahead` segments are made, nearest first: created
under their final names, with name and size durable and disk space allocated. With `warm_segments` they are also filled
with zeros, synced, and locked in memory. So the first byte of a segment costs no more than any other. A small store,
whose current segment holds little, preallocates nothing.

An append that needs a segment in preparation waits for the current step of the thread, `_WAIT_SECONDS_MAX` at most,
while the event loop stands still. Then it is refused (StoreBusyError), and later appends do not wait again. Errors in
the thread are only logged and counted. When the segment is needed, it is made on demand with the minimum of space; only
if that fails too is the append refused, or the store failed.

Preallocation is optional. No segment is preallocated if the disk would then be fuller than `disk_clean_ratio`. When the
disk becomes that full by other means, retention removes preallocated segments before any message. A clean stop removes
them too. After a crash, recovery finds files of zeros after the log's end, as RocketMQ's recovery does, and uses them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final

from aerobee_store.config import StoreConfig
from aerobee_store.disk.file_system import NO_ROOM
from aerobee_store.errors import StoreBusyError
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.stats import StoreStats

_log = logging.getLogger(__name__)

_BEGIN_SHARE: Final = 4  # a quarter of a segment: at 1 GB/s most of a second is left for making the next one
_WAIT_SECONDS_MAX: Final = 1.0
_RETRY_SECONDS: Final = 5.0
_SLOW_SECONDS: Final = 0.01  # creating a segment for longer than this is logged, as by RocketMQ
_RESERVE_STEP: Final = 64 << 20
_WARM_STEP: Final = 1 << 20
_WARM_SYNC_SIZE: Final = 16 << 20  # RocketMQ's flushLeastPagesWhenWarmMapedFile: avoids flooding the disk


class SegmentAllocation:
    """Preallocates segments. Event loop only, except for the making itself."""

    name: Final = "segment-allocation"

    def __init__(
        self,
        log: CommitLog,
        stats: StoreStats,
        disk: ThreadPoolExecutor,
        config: StoreConfig,
    ) -> None:
        self._log = log
        self._stats = stats
        self._disk = disk
        self._config = config
        self._wake = asyncio.Event()
        self._making: tuple[int, Future[MappedFile | None]] | None = None
        self._needed = threading.Event()  # an append waits for the segment in preparation, or it is no longer wanted
        self._waited = False  # an append has waited for it and timed out
        self._giving_back: tuple[list[MappedFile], Future[None]] | None = None
        self._locked: list[MappedFile] = []
        self._begin_at = 0
        self._no_room_said = False
        self._ran = False
        self._ended = False
        log.make_segment = self._take

    @property
    def prepared(self) -> int:
        """Preallocated segments."""
        return len(self._log.unused_files())

    def look(self) -> None:
        """Called after each commit: start making the next segments if it is time."""
        if self._log.wrote >= self._begin_at and self._config.segments_ahead:
            self._begin_at = 1 << 63  # until they exist
            self._wake.set()

    async def run(self) -> None:
        """Make segments when it is time. Ends only when cancelled."""
        self._ran = True
        self._begin_at = 0
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._made()  # the future of a cancelled run
                while (start := self._next()) is not None:
                    if not await self._make(start):
                        await asyncio.sleep(_RETRY_SECONDS)
                await self._unlock_full()
                self._begin_at = self._next_begin()
        finally:
            self._needed.set()

    async def give_back(self) -> int:
        """Remove unused preallocated segments; return their number. A file that cannot be removed is logged and stays
        in the log."""
        self._needed.set()
        await self._made()
        unused = self._log.take_unused()
        if unused:
            giving_back = self._disk.submit(self._log.files.discard, unused)
            self._giving_back = unused, giving_back
            with suppress(OSError):
                await asyncio.wrap_future(giving_back)
            self._given_back()
        return sum(file not in self._log.files.files for file in unused)

    def close(self, *, orderly: bool) -> None:
        """Finish running work, blocking; after a clean stop remove unused segments.

        Tools, which never run the service, change nothing.
        """
        self._ended = True
        self._needed.set()
        self._disk.shutdown(wait=True)
        self._collect()
        self._given_back()
        if orderly and self._ran and (unused := self._log.take_unused()):
            try:
                self._log.files.discard(unused)
            except OSError as error:  # the next start finds them, as after a crash
                _log.error("preallocated segments not removed cause=%s", error)

    # --- one segment ------------------------------------------------------------------------------------------

    def _next(self) -> int | None:
        """The start of the next segment to preallocate; None if all exist or none is wanted."""
        active = self._log.active
        if active is None or self._ended or active.wrote < active.size // _BEGIN_SHARE:
            return None
        for number in range(self._config.segments_ahead):
            start = active.end_offset + number * active.size
            if self._log.files.find(start) is None:
                return start
        return None

    def _next_begin(self) -> int:
        """The end of the log at which there is work again."""
        active = self._log.active
        if active is None:
            return 1  # the store is empty: this may be called although nothing was appended
        begin = active.start_offset + active.size // _BEGIN_SHARE
        return begin if self._log.wrote < begin else begin + active.size

    async def _make(self, start: int) -> bool:
        """Make one segment in the thread; False if that was not possible."""
        self._needed.clear()
        self._waited = False
        self._making = start, self._disk.submit(self._make_file, start)
        await self._made()
        return self._log.files.find(start) is not None

    async def _made(self) -> None:
        """Wait for running work, and take over its segment."""
        if self._making is not None:
            with suppress(OSError):
                # Several callers may wait for it; a cancelled one must not end it for the others.
                await asyncio.shield(asyncio.wrap_future(self._making[1]))
            self._collect()

    def _collect(self) -> MappedFile | None:
        """Take over the thread's segment, once. None if there is none."""
        if self._making is None:
            return None
        (start, future), self._making = self._making, None
        if future.cancelled():
            return None
        error = future.exception()
        if error is not None:
            self._stats.allocation_failures += 1
            _log.error("segment not preallocated start=%d cause=%s", start, error)
            return None
        file = future.result()
        if file is None:
            if not self._no_room_said:
                self._no_room_said = True
                _log.warning("no disk space to preallocate a segment start=%d", start)
            return None
        self._no_room_said = False
        if file.is_locked:
            self._locked.append(file)
        self._log.files.add(file)
        return file

    def _take(self, start: int) -> MappedFile:
        """The segment that begins here, for an append that needs it now. OSError, StoreBusyError."""
        if self._giving_back is not None:
            self._wait_for(self._giving_back[1])
            self._given_back()
            if (left := self._log.files.find(start)) is not None:
                return left
        if self._making is not None and self._making[0] == start:
            self._needed.set()
            self._wait_for(self._making[1])
            file = self._collect()
            if file is not None:
                return file
        started = time.perf_counter()
        file = self._log.files.append_new(start)
        _log_if_slow(start, time.perf_counter() - started)
        return file

    def _given_back(self) -> None:
        """Take back the segments that the thread could not remove, once."""
        if self._giving_back is None:
            return
        (files, future), self._giving_back = self._giving_back, None
        if future.cancelled() or future.exception() is not None:
            if not future.cancelled():
                _log.error("preallocated segments not removed cause=%s", future.exception())
            for file in files:
                if self._log.files.run.file_system.exists(file.path):
                    self._log.files.add(file)

    def _wait_for(self, future: Future[Any]) -> None:
        wait([future], 0 if self._waited else _WAIT_SECONDS_MAX)
        if not future.done():
            self._waited = True
            raise StoreBusyError(
                f"the next segment of the log in {self._log.files.run.directory} was not allocated within "
                f"{_WAIT_SECONDS_MAX:g} s; try again later"
            )
        self._waited = False

    # --- in the thread ----------------------------------------------------------------------------------------

    def _make_file(self, start: int) -> MappedFile | None:
        """None: the disk is too full to preallocate."""
        started = time.perf_counter()
        files = self._log.files
        run = files.run
        directory = run.path(start).parent
        run.file_system.make_directory(directory)  # the directory may not exist yet and has no usage
        usage = run.file_system.usage(directory)
        left = usage.available - run.file_size
        if left < self._config.disk_headroom or usage.total - left > self._config.disk_clean_ratio * usage.total:
            return None
        file = files.make(start)
        try:
            self._fit_out(file)
        except OSError as error:
            with suppress(OSError):
                files.discard([file])
            if error.errno in NO_ROOM:
                return None
            raise
        seconds = time.perf_counter() - started
        self._stats.allocation_seconds.observe(seconds)
        _log_if_slow(start, seconds)
        return file

    def _fit_out(self, file: MappedFile) -> None:
        """Allocate disk space and warm the segment, unless an append already needs it."""
        for end in range(_RESERVE_STEP, file.size + _RESERVE_STEP, _RESERVE_STEP):
            if self._needed.is_set():
                return
            file.reserve_all(min(end, file.size))
        if not self._config.warm_segments:
            return
        synced = 0
        for position in range(0, file.size, _WARM_STEP):
            if self._needed.is_set():
                break
            file.warm(min(position + _WARM_STEP, file.size))
            if self._config.flush == "sync" and position - synced >= _WARM_SYNC_SIZE:
                file.sync()
                synced = position
        file.sync()  # otherwise the first sync of a message would write the zeros
        try:
            file.lock_in_memory()
        except OSError as error:
            if not self._stats.segment_locks_refused:
                _log.warning(
                    "preallocated segments are not locked in memory cause=%s; raise ulimit -l (LimitMEMLOCK) to at "
                    "least %d bytes",
                    error,
                    (self._config.segments_ahead + 1) * file.size,
                )
            self._stats.segment_locks_refused += 1

    async def _unlock_full(self) -> None:
        """Unlock full segments, which are not written any more. A closed segment is unlocked already."""
        full = [file for file in self._locked if file.committed == file.size]
        self._locked = [file for file in self._locked if file.is_locked and file not in full]
        if full:
            await asyncio.wrap_future(self._disk.submit(_unlock, full))


def _log_if_slow(start: int, seconds: float) -> None:
    if seconds > _SLOW_SECONDS:
        _log.info("segment created start=%d milliseconds=%.1f", start, seconds * 1000)


def _unlock(files: list[MappedFile]) -> None:
    for file in files:
        with suppress(OSError):  # the mapping is gone, and the lock with it
            file.unlock_in_memory()
