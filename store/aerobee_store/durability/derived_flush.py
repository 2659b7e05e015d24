"""Flush of the derived files: queues, then index, then the checkpoint that records their progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import islice

from aerobee_store.disk.disk_thread import DiskThread
from aerobee_store.disk.file_system import File, Lock
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.durability.log_flush import Durability
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.consume_queue import ChangedQueues, ConsumeQueue
from aerobee_store.queues.dispatch import Dispatch
from aerobee_store.queues.index_file import IndexService
from aerobee_store.running_flags import RunningFlags

# What the event loop writes to derived files before it runs other tasks (about a millisecond), and what the disk thread
# syncs at a time.
_QUEUES_PER_TURN = 64
_FILES_PER_TURN = 64
# Writing the units of 20,000 queues takes the loop a fifth of a second, for one message in each or for a hundred. So
# with many queues in use flushes are less frequent and take a twentieth of the loop's time. Recovery after a crash then
# reads some more seconds of the log, of which it reads a whole segment anyway.
_PAUSE_PER_WRITING = 19
_INTERVALS_MAX = 5


class FlushDerived:
    """Writes queues, syncs queues and index, and only then updates the checkpoint.

    Writes go to the page cache in the event loop, some queues at a time. Blocking work runs in the disk thread, some
    files at a time or all at once, so that others who need either get their turn.
    """

    name = "flush-derived"

    def __init__(
        self,
        dispatch: Dispatch,
        index: IndexService,
        changed_queues: ChangedQueues,
        log: CommitLog,
        checkpoint: Checkpoint,
        lock: Lock,
        disk: DiskThread,
        *,
        durability: Durability,
        interval_seconds: float,
    ) -> None:
        """`changed_queues`: emptied here; its `sync_soon` is set.

        `lock`: held since before the first write to any of the files.
        """
        self._dispatch = dispatch
        self._index = index
        self._changed_queues = changed_queues
        changed_queues.sync_soon = self._sync_soon
        self._log = log
        self._checkpoint = checkpoint
        self._lock = lock
        self._disk = disk
        self._interval_seconds = interval_seconds
        self._durability = durability
        # The unfinished work of a cancelled flush; the next one begins with it.
        self._unwritten: dict[ConsumeQueue, None] = {}
        self._unsynced: list[File] = []
        self.error_flag = RunningFlags.NONE
        """LOGICS_QUEUE_ERROR once a queue could not be written."""
        self.sync_error: OSError | None = None
        """The error of a sync whose caller may have been cancelled."""

    async def run(self) -> None:
        """Flush every interval. Ends only when cancelled or failed."""
        interval = self._interval_seconds
        pause = interval
        while True:
            await asyncio.sleep(pause)
            try:
                timestamp, offset = self._begin()
                seconds = 0.0
                for spent in self._write():
                    seconds += spent
                    await asyncio.sleep(0)
                files = self._unsynced.copy()
                pause = min(max(interval, seconds * _PAUSE_PER_WRITING), interval * _INTERVALS_MAX)
                if files and not await self._disk.call(self._sync_together, files):
                    for first in range(0, len(files), _FILES_PER_TURN):
                        part = files[first : first + _FILES_PER_TURN]
                        await self._disk.call(self._sync_each, part)
                self._confirm(timestamp, offset)
                await self._disk.call(self._checkpoint.save, self._checkpoint.encoded())
            except OSError as error:
                raise self._durability.fail(error, self.error_flag) from error

    def flush(self) -> None:
        """Flush at once, blocking, for opening and closing."""
        timestamp, offset = self._begin()
        for _ in self._write():
            pass
        if self._unsynced and not self._sync_together(self._unsynced):
            self._sync_each(self._unsynced)
        self._confirm(timestamp, offset)
        self._checkpoint.save(self._checkpoint.encoded())

    def _begin(self) -> tuple[int, int]:
        """Take the changed files; return the store time and the physical offset up to which they are complete."""
        self._unwritten.update(self._changed_queues.queues)
        self._changed_queues.queues.clear()
        self._unsynced += self._index.take_dirty()
        return self._dispatch.last_timestamp, self._dispatch.dispatched

    def _write(self) -> Iterator[float]:
        """Write the queues, some at each step; each step yields the seconds that it took."""
        while self._unwritten:
            started = time.perf_counter()
            for queue in list(islice(self._unwritten, _QUEUES_PER_TURN)):
                try:
                    self._unsynced += queue.take_dirty()
                except OSError:
                    self.error_flag = RunningFlags.LOGICS_QUEUE_ERROR
                    raise
                del self._unwritten[queue]
            yield time.perf_counter() - started

    def _sync_soon(self, file: File) -> None:
        if self._durability.has_services:  # otherwise there is no event loop that could be held up
            self._disk.call(self._sync_each, [file]).add_done_callback(self._synced_soon)

    def _synced_soon(self, syncing: asyncio.Future[None]) -> None:
        if not syncing.cancelled() and (error := syncing.exception()) is not None:
            self._durability.fail(error)

    def _sync_together(self, files: list[File]) -> bool:
        try:
            return self._lock.sync_together(files)
        except OSError as error:
            self.sync_error = error
            raise

    def _sync_each(self, files: list[File]) -> None:
        try:
            for file in files:
                file.sync()
        except OSError as error:
            self.sync_error = error
            raise

    def _confirm(self, timestamp: int, offset: int) -> None:
        self._unsynced.clear()
        checkpoint = self._checkpoint
        checkpoint.derived_offset = min(offset, self._log.flushed)
        checkpoint.logics_timestamp = max(checkpoint.logics_timestamp, timestamp)
        checkpoint.index_timestamp = max(checkpoint.index_timestamp, timestamp)
