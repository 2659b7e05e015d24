"""When bytes become durable.

    GroupCommit     one sync of the log for everybody who waits: those who come while it runs share the next one
    FlushInterval   asks for a sync every so often, so that what nobody waits for is not left behind
    CommitInterval  with write mode "pool": moves what lies in the pool's buffers to the page cache
    FlushDerived    queues, then index, then the checkpoint that says how far they are

A failed sync is final. The kernel may have dropped the pages and would report success the next time, so nothing is
retried: every waiter fails, and the store takes no more writes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import TypeVar

from aerobee_store.config import PAGE_SIZE, StoreConfig
from aerobee_store.disk.file_system import File, Lock
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.errors import StoreFailedError, SyncTimeoutError
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.queues.consume_queue import ChangedQueues
from aerobee_store.queues.dispatch import Dispatch
from aerobee_store.queues.index_file import IndexService
from aerobee_store.running_flags import RunningFlags
from aerobee_store.stats import StoreStats

T = TypeVar("T")

# How long a group may gather: half a millisecond for each that is awaited, which is more than a send takes a processor
# that does nothing else. Those who come more slowly do not wait for the processor, and would only wait for each other.
# Beyond 10 ms larger groups save little.
_GATHER_SECONDS_EACH = 0.0005
_GATHER_SECONDS_MAX = 0.01
_GROUPS_BEFORE_GROWTH = 64

# Of derived files, what the event loop writes before it turns to others (about a millisecond), and what the disk thread
# syncs.
_QUEUES_PER_TURN = 64
_FILES_PER_TURN = 64
# Writing the units of 20,000 queues takes the loop a fifth of a second, for one message in each or for a hundred. So
# with many of them in use they are flushed less often: a twentieth of the loop's time is for that. A start after a
# crash then reads some seconds more of the log, of which it reads a whole segment anyway.
_PAUSE_PER_WRITING = 19
_INTERVALS_MAX = 5


def sync_all(files: Sequence[MappedFile | File]) -> float:
    """Sync files one after the other; return the seconds it took. Runs in a disk thread."""
    started = time.perf_counter()
    for file in files:
        file.sync()
    return time.perf_counter() - started


class GroupSize:
    """How many of those who wait should be answered together, and how long the first may wait for the others.

    It follows how many are in flight. `tries`: now and then a lone one waits, too, to see whether others come; without
    this it takes a group of several to begin with, which a sync brings about, as it takes its time.
    """

    def __init__(self, *, tries: bool = False) -> None:
        self._tries = tries
        self._groups_before_growth = _GROUPS_BEFORE_GROWTH if tries else 0
        self.count = 1

    @property
    def seconds(self) -> float:
        """How long to wait for the others."""
        return min(_GATHER_SECONDS_EACH * self.count, _GATHER_SECONDS_MAX)

    def follow(self, waited: int) -> None:
        """Learn from a group of `waited`."""
        missing = self.count - waited
        if waited <= 1 and not self._tries:
            self.count = 1
        elif missing == 1:  # the one more did not come, so no more are in flight; do not ask for it again soon
            self._groups_before_growth = _GROUPS_BEFORE_GROWTH
            self.count = waited
        elif missing > 1:
            self.count = (self.count + waited) // 2
        elif self._groups_before_growth:
            self._groups_before_growth -= 1
            self.count = waited
        else:
            self.count = waited + 1


class CommitInterval:
    """With write mode "pool", the task that moves what is in the pool's buffers to the page cache: in a thread, so that
    the event loop never waits for a page of the file. After RocketMQ's CommitRealTimeService.

    It looks every interval, and commits if enough pages wait or the thorough interval has passed since the last commit;
    and at once if somebody waits for it: a sync, or a message that is answered from the page cache.
    """

    name = "commit-interval"

    def __init__(
        self,
        log: CommitLog,
        disk: ThreadPoolExecutor,
        config: StoreConfig,
        *,
        after_commit: Callable[[], None],
        on_failure: Callable[[BaseException], StoreFailedError],
    ) -> None:
        self._log = log
        self._disk = disk
        self._interval_seconds = config.commit_interval_seconds
        self._size_min = config.commit_pages_min * PAGE_SIZE
        self._thorough_interval_seconds = config.commit_thorough_interval_seconds
        self._after_commit = after_commit
        self._on_failure = on_failure
        self._wake = asyncio.Event()
        self._ended = False
        self.write_error: OSError | None = None  # of a write that nobody may have waited for to its end

    def request(self) -> None:
        """Commit soon what has been appended so far."""
        self._wake.set()

    async def run(self) -> None:
        """Commit by the interval and when asked. Ends only when cancelled or when the store has failed."""
        last = time.monotonic()
        while not self._ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_seconds):
                    await self._wake.wait()
            asked = self._wake.is_set()
            self._wake.clear()
            waiting = self._log.wrote - self._log.committed
            due = waiting >= self._size_min or time.monotonic() - last >= self._thorough_interval_seconds
            if waiting and not self._ended and (asked or due):
                try:
                    await self.commit()
                except OSError as error:
                    raise self._on_failure(error) from error
                last = time.monotonic()

    def end(self) -> None:
        """Nothing is written any more: the store has failed."""
        self._ended = True
        self._wake.set()

    async def commit(self) -> None:
        """Return once all that was appended before the call is in the page cache. OSError is final."""
        log = self._log
        loop = asyncio.get_running_loop()
        wrote = log.wrote
        while log.committed < wrote:
            parts, end = log.begin_commit()
            await loop.run_in_executor(self._disk, self._write, parts)
            log.end_commit(end)
        self._after_commit()

    def _write(self, parts: Sequence[tuple[MappedFile, int]]) -> None:
        try:
            self._log.commit_beside(parts)
        except OSError as error:
            self.write_error = error
            raise


class GroupCommit:
    """The one task that syncs the log. After LevelDB's writer queue: who finds a sync running waits for the next."""

    name = "group-commit"

    def __init__(
        self,
        log: CommitLog,
        checkpoint: Checkpoint,
        stats: StoreStats,
        disk: ThreadPoolExecutor,
        *,
        timeout_seconds: float,
        after_sync: Callable[[], None],
        on_failure: Callable[[BaseException], StoreFailedError],
        commits: CommitInterval | None,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._commits = commits
        self._stats = stats
        self._disk = disk
        self._timeout_seconds = timeout_seconds
        self._after_sync = after_sync
        self._on_failure = on_failure
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()
        self._gathered = asyncio.Event()
        self._group = GroupSize()
        self.sync_error: OSError | None = None  # of a sync that nobody may have waited for to its end
        self._messages_before = 0
        self._failure: StoreFailedError | None = None
        self.last_appended_timestamp = 0

    def request(self) -> None:
        """Sync soon what has been appended so far."""
        self._wake.set()

    async def wait(self, end: int) -> None:
        """Return once the log is durable before physical offset `end`.

        Raises StoreFailedError if a sync failed, SyncTimeoutError if it takes too long: the message is in the log and
        may still become durable. Cancelling only stops the waiting.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((end, waiter))
        self._wake.set()
        if len(self._waiters) >= self._group.count:
            self._gathered.set()
        await waiter

    def fail(self, error: StoreFailedError) -> None:
        """Fail everybody who waits, and end `run`: nothing is written or synced after a failure."""
        self._failure = self._failure or error
        self._wake.set()
        self._gathered.set()
        while self._waiters:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    async def run(self) -> None:
        """Sync whenever asked to. Ends only when cancelled or failed."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            if self._group.count > 1 and len(self._waiters) < self._group.count:
                await self._gather()
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            if self._log.wrote == self._log.flushed:
                self._resolve()
                continue
            timestamp = self.last_appended_timestamp
            appended = self._stats.messages_appended
            waited = len(self._waiters)
            try:
                if self._commits is None:
                    self._log.commit()
                else:
                    await self._commit_beside(self._commits)
                files = self._log.unsynced_files()
                positions = [file.committed for file in files]
                end = self._log.committed
                seconds = await self._sync(loop, files)
            except OSError as error:
                self._stats.sync_failures += 1
                raise self._on_failure(error) from error
            self._log.set_flushed(files, positions, end)
            self._checkpoint.physic_timestamp = max(self._checkpoint.physic_timestamp, timestamp)
            self._stats.sync_seconds.observe(seconds)
            self._stats.messages_per_sync.observe(appended - self._messages_before)
            self._messages_before = appended
            self._group.follow(waited)
            self._resolve()
            self._after_sync()

    async def _gather(self) -> None:
        """Let a group that had several waiters become as large again, for a moment at the most.

        A sync costs the processor more than a send does, and answers that leave one by one wake gRPC's threads and the
        client as often. With many sends in flight, fewer and larger groups raise throughput and, as the processor is
        what they wait for, lower their latency too. Who sends alone never waits. After PostgreSQL's `commit_delay` and
        `commit_siblings`.
        """
        self._gathered.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._group.seconds):
                await self._gathered.wait()

    async def _commit_beside(self, commits: CommitInterval) -> None:
        running = asyncio.create_task(commits.commit(), name="commit-for-sync")
        try:
            await self._finished(running)
        finally:
            running.cancel()

    async def _sync(self, loop: asyncio.AbstractEventLoop, files: list[MappedFile]) -> float:
        return await self._finished(loop.run_in_executor(self._disk, self._sync_files, files))

    async def _finished(self, running: asyncio.Future[T]) -> T:
        loop = asyncio.get_running_loop()
        watch: asyncio.TimerHandle

        def hangs() -> None:
            nonlocal watch
            self._time_out()
            watch = loop.call_later(self._timeout_seconds, hangs)

        watch = loop.call_later(self._timeout_seconds, hangs)
        try:
            return await running
        finally:
            watch.cancel()

    def _time_out(self) -> None:
        """The disk hangs. Whoever waits learns it now; the sync itself has no time-out that could be trusted."""
        while self._waiters:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(
                    SyncTimeoutError(
                        f"the disk has not confirmed a sync within {self._timeout_seconds:g} s; "
                        f"the message is stored and may still become durable"
                    )
                )

    def _sync_files(self, files: list[MappedFile]) -> float:
        try:
            return sync_all(files)
        except OSError as error:
            self.sync_error = error
            raise

    def _resolve(self) -> None:
        flushed = self._log.flushed
        waiters = self._waiters
        later: list[tuple[int, asyncio.Future[None]]] = []
        while waiters:
            end, waiter = waiters.popleft()
            if end > flushed:
                later.append((end, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        if later:
            waiters.extend(later)
            self._wake.set()


class FlushInterval:
    """Bounds what async flush can lose: everything is synced at most `interval_seconds` after it was written.

    Looks every quarter of the interval. Then a sync begins if enough pages have gathered, as in RocketMQ's
    FlushRealTimeService; and whatever has gathered, if the last look found something too: it is half an interval old at
    the most then, which leaves the other half for the sync itself. (RocketMQ leaves a few pages for ten seconds.)
    """

    name = "flush-interval"

    def __init__(self, log: CommitLog, group_commit: GroupCommit, config: StoreConfig) -> None:
        self._log = log
        self._group_commit = group_commit
        self._interval_seconds = config.flush_interval_seconds
        self._pages_min = config.flush_pages_min

    async def run(self) -> None:
        """Ask for a sync when it is time. Ends only when cancelled."""
        log = self._log
        seen = 0  # what the last look found
        while True:
            await asyncio.sleep(self._interval_seconds / 4)
            flushed, wrote = log.flushed, log.wrote
            if flushed < seen or wrote // PAGE_SIZE - flushed // PAGE_SIZE >= self._pages_min:
                self._group_commit.request()
            seen = wrote


class FlushDerived:
    """Writes queues, syncs queues and index, and only then lets the checkpoint say so.

    What is written goes to the page cache in the event loop, some queues at a time; what blocks is done in the disk
    thread, some files at a time or all at once, so that others who need either get their turn.
    """

    name = "flush-derived"

    def __init__(
        self,
        dispatch: Dispatch,
        index: IndexService,
        changed_queues: ChangedQueues,
        flushed_offset: Callable[[], int],
        checkpoint: Checkpoint,
        lock: Lock,
        disk: ThreadPoolExecutor,
        *,
        interval_seconds: float,
        on_failure: Callable[[BaseException], StoreFailedError],
    ) -> None:
        """`changed_queues`: emptied here. `lock`: held since before the first write to any of the files."""
        self._dispatch = dispatch
        self._index = index
        self._changed_queues = changed_queues
        self._flushed_offset = flushed_offset
        self._checkpoint = checkpoint
        self._lock = lock
        self._disk = disk
        self._interval_seconds = interval_seconds
        self._on_failure = on_failure
        # What a flush that was cancelled has left undone; the next one begins with it.
        self._unwritten: ChangedQueues = {}
        self._unsynced: list[File] = []
        self.error_flag = RunningFlags.NONE
        """LOGICS_QUEUE_ERROR once a queue could not be written."""
        self.sync_error: OSError | None = None  # as GroupCommit's

    async def run(self) -> None:
        """Flush every interval. Ends only when cancelled or failed."""
        loop = asyncio.get_running_loop()
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
                pause = min(max(interval, seconds * _PAUSE_PER_WRITING), interval * _INTERVALS_MAX)
                files = self._unsynced.copy()
                if files and not await loop.run_in_executor(self._disk, self._sync_together, files):
                    for first in range(0, len(files), _FILES_PER_TURN):
                        part = files[first : first + _FILES_PER_TURN]
                        await loop.run_in_executor(self._disk, self._sync_each, part)
                self._confirm(timestamp, offset)
                await loop.run_in_executor(self._disk, self._checkpoint.save, self._checkpoint.encoded())
            except OSError as error:
                raise self._on_failure(error) from error

    def flush(self) -> None:
        """The same at once and blocking, for opening and closing."""
        timestamp, offset = self._begin()
        for _ in self._write():
            pass
        if self._unsynced and not self._sync_together(self._unsynced):
            self._sync_each(self._unsynced)
        self._confirm(timestamp, offset)
        self._checkpoint.save(self._checkpoint.encoded())

    def _begin(self) -> tuple[int, int]:
        """Take what has changed; return up to which store time and physical offset that is all."""
        self._unwritten.update(self._changed_queues)
        self._changed_queues.clear()
        self._unsynced += self._index.take_dirty()
        return self._dispatch.last_timestamp, self._dispatch.dispatched

    def _write(self) -> Iterator[float]:
        """Write the queues, some at each step, which gives the seconds that it took."""
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

    def _sync_together(self, files: list[File]) -> bool:
        try:
            return self._lock.sync_together(files)
        except OSError as error:
            self.sync_error = error
            raise

    def _sync_each(self, files: list[File]) -> None:
        try:
            sync_all(files)
        except OSError as error:
            self.sync_error = error
            raise

    def _confirm(self, timestamp: int, offset: int) -> None:
        self._unsynced.clear()
        checkpoint = self._checkpoint
        checkpoint.derived_offset = min(offset, self._flushed_offset())
        checkpoint.logics_timestamp = max(checkpoint.logics_timestamp, timestamp)
        checkpoint.index_timestamp = max(checkpoint.index_timestamp, timestamp)
