"""Commits and syncs the log and answers the waiters of both: the only owner of durability.

    append      puts bytes into write buffers
    commit      moves them to the page cache: they survive the death of the process
    sync        `fdatasync` in a thread: they survive a power failure

A commit or sync answers every waiter whose bytes it covers, so both work on batches. Waiters that arrive during a sync
share the next one (after LevelDB's writer queue). The steps of a sync, with one writer and one sync at a time:

    1. a waiter arrives, or the flush interval requests a sync
    2. if the last batch had several waiters, wait briefly until as many have arrived again (BatchSize)
    3. commit everything appended; note the segments, their positions and the end of the log
    4. sync these segments in the thread; meanwhile appends and commits continue after the noted end
    5. set `flushed` to the end; dispatch the messages that are readable now, and answer the waiters for them, some in a
       step of the event loop: a message in a new topic makes a directory and a file

`_run_syncs` is in one of these states, and `fail` ends every one of them:

    idle       no waiter, no sync due                  -> gathering, by a waiter or the flush interval (step 1)
    gathering  a moment for the rest of the batch      -> syncing, when it is complete or the moment is over (step 2)
    syncing    the thread syncs what was committed     -> answering (steps 3 and 4); waiters that come now stay
    answering  listeners, dispatch, waiters (step 5)   -> idle; or gathering, if waiters need bytes after the noted end
    failed     every waiter has the error              final

So `flushed` never exceeds what was committed before the sync began, and a waiter is answered by the first sync that
began after its bytes were committed. A failed write or sync is final. The kernel may have dropped the pages and would
report success the next time, so nothing is retried: every waiter fails, and the store refuses further writes.

With async flush an answer needs only the commit, and a power failure may lose at most `flush_interval_seconds` of
answered messages. Syncs begin early enough for that: when the oldest unsynced byte is at most half an interval old,
sooner if syncs are slow. If they fall behind nevertheless, on a busy machine or a slow disk, answers wait for the sync:
when the oldest unsynced byte is three quarters of the interval old, or a sync takes half of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

from aerobee_store.config import PAGE_SIZE, StoreConfig
from aerobee_store.disk.disk_thread import DiskThread
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.errors import StoreError, StoreFailedError, SyncTimeoutError
from aerobee_store.log.allocate import SegmentAllocation
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.queues.dispatch import Dispatch
from aerobee_store.running_flags import RunningFlags, RunningState
from aerobee_store.stats import StoreStats

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

# How long a batch may gather: half a millisecond per expected waiter, which is more than the CPU time of a send. Slower
# waiters would only wait for each other. Beyond 10 ms, larger batches save little.
_GATHER_SECONDS_EACH = 0.0005
_GATHER_SECONDS_MAX = 0.01
_BATCHES_BEFORE_PROBE = 64

# More appended bytes than this are committed at once.
_COMMIT_SIZE_MAX: Final = 4 << 20
# How long appended bytes may stay out of the page cache if no sender waits for them.
_COMMIT_SECONDS = 0.01
_AT_ONCE: Final = 128  # messages that are dispatched, and waiters that are answered, in a step of the event loop
# How fast the estimate of a sync's duration follows faster syncs.
_SYNC_SECONDS_DECAY: Final = 0.8


class BatchSize:
    """The target size of a batch of waiters, and how long the first waiter may wait for the others.

    The model: clients keep a fixed number of sends in flight and send again when they are answered. So after a batch of
    n, as many come again within moments, and waiting for them saves syncs. The number follows what is known after each
    batch: its waiters, and those that arrived during its sync, which cannot be the same ones again.

    As many as expected, or more: expect that many. One is missing: expect as many as came. Several are missing: the
    number in flight fell, so expect the mean of both numbers, for a few batches. A single waiter: expect no others.

    `probes`: for batches that are over too soon for others to arrive meanwhile, such as a commit. After 64 complete
    batches, wait for one more, to learn whether the number in flight has grown; a single waiter waits for a second one.
    """

    def __init__(self, *, probes: bool = False) -> None:
        self._probes = probes
        self._batches_before_probe = _BATCHES_BEFORE_PROBE
        self.count = 1

    @property
    def seconds(self) -> float:
        """How long to wait for the others."""
        return min(_GATHER_SECONDS_EACH * self.count, _GATHER_SECONDS_MAX)

    def follow(self, waited: int, waiting: int = 0) -> None:
        """Learn from a batch of `waited`. `waiting`: how many there are before its waiters are answered; less than
        `waited` if these had a time-out."""
        known = max(waited, waiting)
        missing = self.count - known
        if waited <= 1 and not self._probes:
            self.count = 1
        elif missing > 1:
            self.count = (self.count + known) // 2
        elif missing == 1 or not self._probes:
            self._batches_before_probe = _BATCHES_BEFORE_PROBE
            self.count = known
        elif self._batches_before_probe:
            self._batches_before_probe -= 1
            self.count = known
        else:
            self.count = known + 1


class Durability:
    """Commits and syncs the log, wakes the waiters of both, and ends the store's writes after a failure.

    Event loop only, except for methods documented to run in a thread. Nothing else commits the log.
    """

    name = "durability"

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dispatch: Dispatch,
        allocation: SegmentAllocation,
        checkpoint: Checkpoint,
        running: RunningState,
        stats: StoreStats,
    ) -> None:
        self._config = config
        self._log = log
        self._dispatch = dispatch
        self._allocation = allocation
        self._checkpoint = checkpoint
        self._running = running
        self._stats = stats
        self._in_threads = config.write_mode == "pool"  # commits
        self._sync_thread = DiskThread("aerobee-log-disk")
        self._commit_thread = DiskThread("aerobee-commit-disk")
        self._thread_error: OSError | None = None  # errors of writes and syncs whose callers may have been cancelled
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.failure: BaseException | None = None
        """The error that ended all writes."""
        self._error: StoreFailedError | None = None  # the same error as raised to callers
        self._last_appended_timestamp = 0
        self.flush_listeners: list[Callable[[], None]] = []
        """Called when more of the log is durable, before the waiters are answered."""

        self._sync_wanted = asyncio.Event()
        self._sync_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._sync_batch = BatchSize()
        self._sync_batch_full = asyncio.Event()
        self._messages_synced = 0  # of stats.messages_appended

        self._commit_wanted = asyncio.Event()  # used by the thread
        self._commit_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._commit_batch = BatchSize(probes=True)
        self._commit_timer: asyncio.TimerHandle | None = None  # timer for bytes that no sender waits for
        self._batch_timer: asyncio.TimerHandle | None = None

        self._syncing = self._answering = False
        self._sync_began: float | None = None
        self._unsynced_since: float | None = None  # when the oldest byte was committed that no sync covers
        self._uncovered_since: float | None = None  # the same for bytes after the running sync
        self._sync_seconds = 0.0  # expected duration of a sync, from the slowest recent ones

    # --- start and stop ---------------------------------------------------------------------------------------

    @property
    def has_services(self) -> bool:
        """Whether `run` is running or about to. Otherwise `flush` does all the work."""
        return self._loop is not None

    def begin(self) -> None:
        """Note that `run` is about to start in this event loop."""
        self._loop = asyncio.get_running_loop()
        if self._log.wrote > self._log.committed:  # appended before the start
            self._request_commit()

    def end(self) -> None:
        """Note that `run` has ended."""
        self._loop = None

    async def run(self) -> None:
        """Commit and sync at the interval and on request. Raises StoreFailedError; otherwise ends when cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run_syncs(), name="group-commit")
                tasks.create_task(self._run_interval(), name="flush-interval")
                if self._in_threads:
                    tasks.create_task(self._run_commits(), name="commit-interval")
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group.exceptions[0].__cause__  # all of them fail for the same reason

    def fail(self, cause: BaseException, flag: RunningFlags = RunningFlags.NONE) -> StoreFailedError:
        """Refuse further writes and fail every waiter. `flag`: an additional running flag to set."""
        error = StoreFailedError(
            f"{self._config.directory}: {type(cause).__name__}: {cause}; the store refuses further writes. "
            f"Check the disk, then restart: recovery keeps every acknowledged message"
        )
        error.__cause__ = cause
        if self.failure is None and not self._closed:
            _log.critical("store failed directory=%s cause=%r", self._config.directory, cause)
            self.failure = cause
            self._running.set(RunningFlags.NOT_WRITEABLE, str(error))
            if (flag := flag | self._dispatch.error_flag) is not RunningFlags.NONE:
                self._running.set(flag, str(cause))
        self._error = self._error or error
        self._sync_wanted.set()
        self._sync_batch_full.set()
        self._commit_wanted.set()
        for _, waiter in (*self._sync_waiters, *self._commit_waiters):
            if not waiter.done():
                waiter.set_exception(error)
        self._sync_waiters.clear()
        self._commit_waiters.clear()
        return error

    def end_threads(self) -> None:
        """Wait for work started in the threads, even if its caller was cancelled. Blocking.

        Raises an OSError that such work met and that no caller may have seen: another sync would succeed but prove
        nothing.
        """
        for thread in (self._commit_thread, self._sync_thread):
            thread.wait()
        if self._thread_error is not None:
            raise self._thread_error

    def close(self) -> None:
        """Nothing is written after this."""
        self._closed = True
        self._commit_thread.close()
        self._sync_thread.close()

    def in_sync_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Run a function that must not run during a sync of the log, such as closing one of its files."""
        return self._sync_thread.call(function, *args, **kwargs)

    # --- waiters ----------------------------------------------------------------------------------------------

    async def wait_promised(self, end: int) -> None:
        """Return when the bytes before physical offset `end` may be answered with async flush.

        They are in the page cache then, and also on the disk while syncs do not keep up with the interval. Raises as
        `wait_committed` and `wait_flushed`.
        """
        await self.wait_committed(end)
        if self._loop is not None and end > self._log.flushed and self._is_behind:
            await self.wait_flushed(end)

    async def wait_flushed(self, end: int) -> None:
        """Return when the log is durable before physical offset `end`.

        Raises StoreFailedError if a sync failed, and SyncTimeoutError if it takes too long: the message is in the log
        and may still become durable. Cancelling only stops the waiting.
        """
        if end <= self._log.flushed and not self._answering:
            return
        if self._error is not None:
            raise self._error
        # The loop is known while the services run; asking for it costs a system call with Python 3.11.
        loop = self._loop if self._loop is not None else asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._sync_waiters.append((end, waiter))
        self._sync_wanted.set()
        if len(self._sync_waiters) >= self._sync_batch.count:
            self._sync_batch_full.set()
        await waiter

    async def wait_committed(self, end: int) -> None:
        """Return when the bytes before physical offset `end` are in the page cache.

        Raises StoreFailedError; with write mode "pool", where a thread writes them, also SyncTimeoutError.
        """
        if end <= self._log.committed:
            return
        if self._error is not None:
            raise self._error
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commit_waiters.append((end, waiter))
        if self._loop is None:
            self.commit()  # without services, nothing else commits
        elif self._in_threads:
            self._commit_wanted.set()
            await self._committed_in_time(waiter)
        elif len(self._commit_waiters) == self._commit_batch.count:
            self._loop.call_soon(self._commit_if_running)  # once for all waiters of this iteration
        elif len(self._commit_waiters) == 1:
            self._batch_timer = self._loop.call_later(self._commit_batch.seconds, self._commit_if_running)
        await waiter

    async def _committed_in_time(self, waiter: asyncio.Future[None]) -> None:
        seconds = self._config.sync_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            raise SyncTimeoutError(
                f"the message was not written within {seconds:g} s; it is buffered and may still be stored; retry later"
            ) from None

    # --- appending and committing -----------------------------------------------------------------------------

    def appended(self, store_timestamp: int) -> None:
        """Called after each append. The append is committed for its waiters, otherwise within moments."""
        self._last_appended_timestamp = store_timestamp
        if self._loop is None:
            return
        large = self._log.wrote - self._log.committed > _COMMIT_SIZE_MAX
        if self._in_threads:
            if large:
                self._commit_wanted.set()
        elif large:
            self.commit()
        elif self._commit_timer is None:
            # Waiters commit earlier, a batch at a time, which saves system calls.
            self._commit_timer = self._loop.call_later(_COMMIT_SECONDS, self._commit_if_running)

    def commit(self) -> None:
        """Move appended bytes to the page cache now. An error fails the store and is not raised."""
        try:
            self._log.commit()
        except OSError as error:
            self.fail(error)
            return
        self._committed()

    def free_buffer(self) -> bool:
        """Write full buffers of the pool: soon, or, without services, now (True). OSError."""
        if not self._in_threads:
            return False
        if self._loop is not None:
            self._commit_wanted.set()
            return False
        self._log.commit()
        return True

    def _commit_if_running(self) -> None:
        if self._closed or self._error is not None or self._loop is None:
            self._commit_timer = None  # the services may run again, and later appends then need a new one
        else:
            self.commit()

    def _request_commit(self) -> None:
        if self._in_threads:
            self._commit_wanted.set()
        elif self._loop is not None:
            self._loop.call_soon(self._commit_if_running)

    def _committed(self) -> None:
        """Dispatch committed bytes where that is sufficient, and answer their waiters. Fails like `commit`."""
        self._stats.commits += 1
        for timer in (self._commit_timer, self._batch_timer):
            if timer is not None:
                timer.cancel()
        self._commit_timer = self._batch_timer = None
        self._note_unsynced()
        if not self._config.flush_timed and self._has_pages_to_sync:
            self.request_sync()
        self._allocation.look()
        is_async = self._config.flush == "async"
        if is_async:
            try:
                self._dispatch.follow(self._log.committed)
            except (OSError, StoreError) as error:
                self.fail(error)
                return
        committed = self._log.committed
        waiters, self._commit_waiters = self._commit_waiters, []
        if is_async and waiters:
            self._commit_batch.follow(len(waiters))
        for end, waiter in waiters:
            if end > committed:
                self._commit_waiters.append((end, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    async def _run_commits(self) -> None:
        """With write mode "pool", move the pool's buffers to the page cache in a thread, so that the event loop never
        waits for a page of the file. After RocketMQ's CommitRealTimeService.

        It checks at every interval, and commits if enough pages wait or the thorough interval has passed since the last
        commit. It commits at once if a sender waits.
        """
        config = self._config
        size_min = config.commit_pages_min * PAGE_SIZE
        last = time.monotonic()
        while self._error is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(config.commit_interval_seconds):
                    await self._commit_wanted.wait()
            asked = self._commit_wanted.is_set()
            self._commit_wanted.clear()
            waiting = self._log.wrote - self._log.committed
            due = waiting >= size_min or time.monotonic() - last >= config.commit_thorough_interval_seconds
            if waiting and self._error is None and (asked or due):
                try:
                    await self._commit_in_thread()
                except OSError as error:
                    raise self.fail(error) from error
                last = time.monotonic()

    async def _commit_in_thread(self) -> None:
        """Return when everything appended before the call is in the page cache. OSError is final."""
        log = self._log
        wrote = log.wrote
        while log.committed < wrote:
            parts, end = log.begin_commit()
            await self._commit_thread.call(self._noting_errors, log.commit_in_thread, parts)
            log.end_commit(end)
        self._committed()

    # --- syncing ----------------------------------------------------------------------------------------------

    def request_sync(self) -> None:
        """Sync soon everything appended so far."""
        self._sync_wanted.set()

    @property
    def _has_pages_to_sync(self) -> bool:
        pages = self._log.wrote // PAGE_SIZE - self._log.flushed // PAGE_SIZE
        return pages >= self._config.flush_pages_min

    def flush(self) -> None:
        """Commit, sync and dispatch everything now; blocking. For a store without services, and for closing. Raises
        OSError or StoreError."""
        log = self._log
        log.commit()
        files = log.unsynced_files()
        for file in files:
            file.sync()
        log.set_flushed(files, [file.committed for file in files], log.committed)
        self._unsynced_since = self._uncovered_since = None
        self._dispatch.follow(log.flushed)
        self._note_durable(self._last_appended_timestamp)

    @property
    def unsynced_seconds(self) -> float:
        """Age of the oldest answered byte that a power failure could lose; 0 if there is none."""
        return self._unsynced_age if self._config.flush == "async" else 0.0

    @property
    def _unsynced_age(self) -> float:
        return 0.0 if self._unsynced_since is None else self._now() - self._unsynced_since

    @property
    def _is_behind(self) -> bool:
        """Whether an answer now might cover bytes that are not durable within the flush interval.

        The next sync may take as long as the slowest of the recent ones, or as the running one has taken so far.
        """
        interval = self._loss_seconds
        running = 0.0 if self._sync_began is None else self._now() - self._sync_began
        return self._unsynced_age >= interval * 0.75 or max(self._sync_seconds, running) >= interval * 0.5

    def _now(self) -> float:
        """The time of the event loop, if there is one; the clock is the same."""
        return time.monotonic() if self._loop is None else self._loop.time()

    @property
    def _loss_seconds(self) -> float:
        """How old bytes may be that a power failure loses."""
        return max(self._config.flush_interval_seconds, 2 * self._config.flush_thorough_interval_seconds)

    def _note_unsynced(self) -> None:
        if self._log.committed <= self._log.flushed:
            return
        if self._unsynced_since is None:
            self._unsynced_since = self._now()
        elif self._syncing and self._uncovered_since is None:
            self._uncovered_since = self._now()

    async def _run_syncs(self) -> None:
        """Sync when asked to, in the steps of the module's docstring."""
        while True:
            await self._sync_wanted.wait()
            if self._sync_batch.count > 1 and len(self._sync_waiters) < self._sync_batch.count:
                await self._gather()
            self._sync_wanted.clear()
            if self._error is not None:
                raise self._error
            if self._log.wrote > self._log.flushed:
                await self._sync()
                for listener in self.flush_listeners:
                    listener()
            await self._answer_flushed()

    async def _gather(self) -> None:
        """Wait briefly until the batch is as large as the last one.

        A sync costs more CPU time than a send, and answers sent one by one wake the client as often. With many sends in
        flight, fewer and larger batches raise the throughput and, as the CPU is the bottleneck, also lower the latency.
        After PostgreSQL's `commit_delay` and `commit_siblings`.
        """
        self._sync_batch_full.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._sync_batch.seconds):
                await self._sync_batch_full.wait()

    async def _sync(self) -> None:
        log, stats = self._log, self._stats
        timestamp = self._last_appended_timestamp
        appended = stats.messages_appended
        waited = len(self._sync_waiters)
        began = self._sync_began = self._now()
        try:
            if self._in_threads:
                await self._commit_for_sync()
            else:
                log.commit()
            self._note_unsynced()
            files = log.unsynced_files()
            positions = [file.committed for file in files]
            end = log.committed
            self._syncing, self._uncovered_since = True, None
            seconds = await self._watched(self._sync_thread.call, self._noting_errors, _sync_all, files)
            waiting = len(self._sync_waiters)
        except OSError as error:
            stats.sync_failures += 1
            raise self.fail(error) from error
        finally:
            self._syncing, self._sync_began = False, None
        log.set_flushed(files, positions, end)
        self._unsynced_since, self._uncovered_since = self._uncovered_since, None
        self._sync_seconds = max(self._now() - began, self._sync_seconds * _SYNC_SECONDS_DECAY)
        self._note_durable(timestamp)
        stats.sync_seconds.observe(seconds)
        stats.messages_per_sync.observe(appended - self._messages_synced)
        self._messages_synced = appended
        self._sync_batch.follow(waited, waiting)

    async def _commit_for_sync(self) -> None:
        running = asyncio.create_task(self._commit_in_thread(), name="commit-for-sync")
        try:
            await self._watched(lambda: running)
        finally:
            running.cancel()

    async def _watched(self, start: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the write or sync that `start` begins. If it takes too long, its waiters fail with a timeout
        again and again, but the sync itself cannot be given a reliable timeout."""
        loop = asyncio.get_running_loop()
        seconds = self._config.sync_timeout_seconds
        watch: asyncio.TimerHandle

        def hangs() -> None:
            nonlocal watch
            self._time_out()
            watch = loop.call_later(seconds, hangs)

        watch = loop.call_later(seconds, hangs)
        try:
            # The last step: the thread can only begin when the loop lets it run.
            return await start(*args, **kwargs)
        finally:
            watch.cancel()

    def _time_out(self) -> None:
        while self._sync_waiters:
            _, waiter = self._sync_waiters.popleft()
            if not waiter.done():
                waiter.set_exception(
                    SyncTimeoutError(
                        f"the disk has not confirmed a sync within {self._config.sync_timeout_seconds:g} s; "
                        f"the message is stored and may still become durable"
                    )
                )

    def _noting_errors(self, function: Callable[[A], T], argument: A) -> T:
        """In a thread: call a function that writes or syncs, and note its error, because the caller may have been
        cancelled."""
        try:
            return function(argument)
        except OSError as error:
            self._thread_error = error
            raise

    def _note_durable(self, store_timestamp: int) -> None:
        self._checkpoint.physic_timestamp = max(self._checkpoint.physic_timestamp, store_timestamp)

    async def _answer_flushed(self) -> None:
        """Dispatch what is durable and answer its waiters, some in a step of the loop, however many there are."""
        flushed = self._log.flushed
        self._answering = True
        try:
            while not self._follow_flushed(flushed):
                self._answer(self._dispatch.dispatched)
                await asyncio.sleep(0)
        finally:  # also if the services end in between
            self._answering = False
            self._answer(flushed)

    def _follow_flushed(self, flushed: int) -> bool:
        try:
            return self._dispatch.follow(flushed, _AT_ONCE)
        except (OSError, StoreError) as error:
            raise self.fail(error) from error

    def _answer(self, durable: int) -> None:
        """Answer the waiters for bytes before this physical offset. The others came later and asked for a sync."""
        waiters = self._sync_waiters
        later: list[tuple[int, asyncio.Future[None]]] = []
        while waiters:
            end, waiter = waiters.popleft()
            if end > durable:
                later.append((end, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        waiters.extend(later)

    async def _run_interval(self) -> None:
        """Request a sync for bytes that no sender waits for: with async flush, nearly all of them.

        Bytes are synced when the oldest of them has its age, counted from its commit, or from the begin of the last
        sync if that did not cover it. So neither a long sync nor a late timer adds to the age. As in RocketMQ's
        FlushRealTimeService, few pages wait for longer than many. (RocketMQ leaves a few pages for ten seconds, and so
        does this one if the thorough interval says so.)
        """
        config = self._config
        while True:
            many = age_of_many_pages(config.flush_interval_seconds, self._sync_seconds)
            few = config.flush_thorough_interval_seconds or 2 * many
            since = self._uncovered_since if self._syncing else self._unsynced_since
            pause = many  # what is committed from now on has no age yet
            if since is not None:
                age = self._now() - since
                if age >= (many if self._has_pages_to_sync else few):
                    self.request_sync()
                else:
                    pause = (many if age < many else few) - age
            await asyncio.sleep(min(pause, many))


def age_of_many_pages(interval_seconds: float, sync_seconds: float) -> float:
    """The age at which bytes of several pages are synced: a quarter of the interval. Fewer bytes are twice as old.

    That leaves the other half of the interval for the sync. If syncs take longer than that, they begin earlier; from
    the whole interval on, they follow each other.
    """
    return max(interval_seconds / 64, min(interval_seconds / 4, (interval_seconds - sync_seconds) / 2))


def _sync_all(files: Sequence[MappedFile]) -> float:
    """Sync files one after the other; return the duration in seconds. Runs in a thread."""
    started = time.perf_counter()
    for file in files:
        file.sync()
    return time.perf_counter() - started
