"""The facade of the store: open, append, wait, read, query, close. It owns the log, the derived files and the services.

Threads: everything runs in the event loop's thread, the only writer of the log, except for blocking work. One thread
syncs the log, one preallocates segments, one writes the pool's buffers if there is a pool, and one syncs derived files
and runs the broker's blocking calls (`in_disk_thread`). None of them delays a group commit.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, Protocol, Self, TypeVar

from aerobee_store.capacity.retention import Retention, RetentionListener, RetentionParts
from aerobee_store.clock import Clock, SystemClock
from aerobee_store.config import StoreConfig
from aerobee_store.disk.disk_thread import DiskThread
from aerobee_store.disk.file_system import DiskFileSystem, FileSystem, Lock
from aerobee_store.disk.store_directory import (
    ABORT,
    lock_directory,
    mark_in_use,
    open_error,
    put_back,
    sync_names,
    writes_may_be_lost,
)
from aerobee_store.durability import log_cut, queue_bounds, reseed
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.durability.derived_flush import FlushDerived
from aerobee_store.durability.log_flush import Durability
from aerobee_store.durability.queue_bounds import QueueBounds
from aerobee_store.durability.recovery import Recovery, RecoveryParts, RecoveryReport
from aerobee_store.errors import StoreClosedError, StoreDirectoryError, StoreError, StoreFailedError
from aerobee_store.log import log_scan, slices
from aerobee_store.log.allocate import SegmentAllocation
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.log_claims import LogLocks
from aerobee_store.log.log_paths import LogPaths, claim_log_paths
from aerobee_store.log.mapped_file import MappedFileQueue
from aerobee_store.log.slices import SliceReader
from aerobee_store.log.write_modes import BufferPool, segments_of
from aerobee_store.log_follower import LogFollower
from aerobee_store.maintenance.scrub import Scrub
from aerobee_store.maintenance.unit_repair import UnitRepair
from aerobee_store.message_reader import MessageReader, QueueBytes, ReadResult
from aerobee_store.message_writer import AnyMessage, Appended, AppendedBatch, MessageWriter
from aerobee_store.queues.dispatch import ArrivalListener, Dispatch, DispatchLimits
from aerobee_store.queues.filter_bitmaps import FilterBitmaps, FilterBits
from aerobee_store.queues.index_file import IndexService
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.topic_removal import DeletedTopic, DeletedTopics, Ended, Extent, TopicRemoval
from aerobee_store.record_runs import RecordRuns, RunReader
from aerobee_store.records.properties import Host
from aerobee_store.records.record import Draft, Message, Record
from aerobee_store.running_flags import RunningFlags, RunningState
from aerobee_store.stats import StoreStats
from aerobee_store.store_status import Segment, StoreState, StoreStatus

if TYPE_CHECKING:
    from aerobee_store.records.record_batch import RecordBatch


_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TIMESTAMP_MAX: Final = (1 << 63) - 1

_NO_FLAGS: Final = RunningFlags.NONE  # looked up once, because access to enum members is slow


class Service(Protocol):
    """A task that runs as long as the store does."""

    @property
    def name(self) -> str: ...
    async def run(self) -> None: ...


class Replicas(Protocol):
    """The brokers that have copies of the log."""

    async def wait(self, end: int) -> None:
        """Return when enough replicas have the log durable before `end`. Raises ReplicaTimeoutError or
        ReplicaMissingError."""


class MessageStore:
    """A directory of messages, open for one process. Made by `open`."""

    def __init__(
        self,
        config: StoreConfig,
        file_system: FileSystem,
        clock: Clock,
        lock: Lock,
        log_locks: LogLocks,
        is_batch_topic: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        self.config = config
        self.clock = clock
        self.file_system = file_system
        self.stats = StoreStats()
        self._closed = False
        self.recovery = RecoveryReport(clean=True)
        self._lock = lock
        self._log_locks = log_locks
        directory = config.directory
        self._abort_path = directory / ABORT
        self.checkpoint = Checkpoint(file_system, directory / "checkpoint")
        self._disk = DiskThread("aerobee-disk")
        self._pool = BufferPool.of(config, file_system)
        self._paths = LogPaths(file_system, config)
        self._log = CommitLog(
            MappedFileQueue(self._paths, segments_of(config, self._pool)),
            zero_ahead=config.flush == "sync",
            disk_headroom=config.disk_headroom,
        )
        self._deleted = DeletedTopics(file_system, directory)
        self._queues = QueueTable(file_system, config, self._deleted, is_batch_topic)
        self._removal = TopicRemoval(file_system, self._queues, self._deleted)
        self._index = IndexService(file_system, directory / "index", config.index_slot_count, config.index_entry_count)
        dispatch_limits = DispatchLimits(config.dispatch_waiting_count_max, config.dispatch_waiting_bytes_max)
        self._dispatch = Dispatch(self._index if config.index else None, clock, self.stats, dispatch_limits)
        allocation_disk = ThreadPoolExecutor(1, thread_name_prefix="aerobee-allocation-disk")
        self._allocation = SegmentAllocation(self._log, self.stats, allocation_disk, config)
        self.running = RunningState()
        self._durability = Durability(
            config, self._log, self._dispatch, self._allocation, self.checkpoint, self.running, self.stats
        )
        self._flush_derived = self._new_flush_derived()
        self._bounds = QueueBounds(
            file_system, directory, self._log, self._queues, self._dispatch, self._durability, self.in_disk_thread
        )
        self.retention = Retention(self._retention_parts(), config)
        self.scrub = self._new_scrub()
        parts = (config, self._log, self._queues, self._dispatch, self._durability, self.stats)
        self._writer = MessageWriter(*parts, clock)
        self.follower = LogFollower(*parts)
        """Appends the bytes of another broker's log, in a store that follows it."""
        self.replicas: Replicas | None = None
        """The replicas that a send waits for in addition to the local disk; None: none."""
        record_size_max = max(config.record_size_max, config.segment_size)
        repair = UnitRepair(self._log, self.running, self.stats, record_size_max=record_size_max)
        self._reader = MessageReader(self._log, self._queues, self._index, self._deleted, repair, self.stats)
        self._run_reader = RunReader(self._log, self._queues, repair, self.stats)

    def _new_flush_derived(self) -> FlushDerived:
        return FlushDerived(
            self._dispatch,
            self._index,
            self._queues.changed,
            self._log,
            self.checkpoint,
            self._lock,
            self._disk,
            durability=self._durability,
            interval_seconds=self.config.derived_flush_interval_seconds,
        )

    def _retention_parts(self) -> RetentionParts:
        return RetentionParts(
            file_system=self.file_system,
            clock=self.clock,
            log=self._log,
            queues=self._queues,
            index=self._index,
            dispatch=self._dispatch,
            allocation=self._allocation,
            running=self.running,
            stats=self.stats,
            segments_are_removed=self._bounds.segments_are_removed,
            in_disk_thread=self.in_disk_thread,
            in_log_thread=self._durability.in_sync_thread,
        )

    def _new_scrub(self) -> Scrub:
        return Scrub(
            self._log,
            self.stats,
            self._slice_reader(),
            self.clock,
            self.in_disk_thread,
            bytes_per_second=self.config.scrub_bytes_per_second,
            interval_seconds=self.config.scrub_interval_hours * 3600,
        )

    def _slice_reader(self) -> SliceReader:
        return SliceReader(self.file_system, record_size_max=self.config.record_size_max)

    @property
    def state(self) -> StoreState:
        """State of the store: "failed" after a failed write or sync."""
        if self._closed:
            return "closed"
        return "open" if self._durability.failure is None else "failed"

    @property
    def failure(self) -> BaseException | None:
        """The error that ended all writes, or None."""
        return self._durability.failure

    # --- opening and closing ----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        file_system: FileSystem | None = None,
        clock: Clock | None = None,
        is_batch_topic: Callable[[str], bool] = lambda topic: False,
        whole_log: bool = False,
    ) -> MessageStore:
        """Lock the directory, recover, get ready. Blocking; may run in any thread.

        `is_batch_topic` tells which topics have RocketMQ's attribute `queue.type=BatchCQ`: they take inner batches
        only. Topics with such queues or records in the store are recognised without it. `whole_log`: compare every
        queue with the log from its first record on, even after a clean stop.

        Raises StoreLockedError, StoreDirectoryError for a directory that is not a usable store, StoreFullError, and
        OSError for other disk errors. Nothing is changed before the lock is held.
        """
        file_system = file_system or DiskFileSystem()
        clock = clock or SystemClock()
        started = perf_counter()
        directory = config.directory
        try:
            lock = lock_directory(file_system, directory)
        except OSError as error:
            raise open_error(directory, error) from error
        log_locks = LogLocks(())
        try:
            log_locks = claim_log_paths(file_system, config)
            put_back(file_system, directory)
            reseed.carry_out(file_system, config)
            store = cls(config, file_system, clock, lock, log_locks, is_batch_topic)
            store._recover(whole_log=whole_log)
        except OSError as error:
            log_locks.release()
            lock.release()
            raise open_error(directory, error) from error
        except BaseException:
            log_locks.release()
            lock.release()
            raise
        store.stats.recovery_seconds = perf_counter() - started
        return store

    def _recover(self, *, whole_log: bool) -> None:
        clean = not self.file_system.exists(self._abort_path)
        cut = log_cut.ordered(self.file_system, self.config.directory)
        self.checkpoint.load()
        self._deleted.load()
        if cut is not None:
            self._deleted.cut(cut)
        self._queues.load(after_crash=not clean)
        self._index.load()
        if not self.config.index:
            self._index.truncate(0)  # when switched on again, the index is rebuilt from the log
        if not self._log.files.files and any(queue.max_offset for queue in self._queues.all()):
            raise StoreDirectoryError(
                f"{self._log.files.run.directory}: the commit log has no segments, but there are queues; is a disk not "
                f"mounted? If the log is lost for good, move consumequeue and index away"
            )
        self.recovery = self._recovered(clean=clean, cut=cut, whole_log=whole_log)
        self._removal.remove_interrupted()
        self._dispatch.dispatched = self._log.wrote
        self._dispatch.last_timestamp = self.recovery.last_timestamp
        for file in self._log.files:
            if not clean and file.committed and file.end_offset > self.recovery.begin:
                file.sync()  # a process that died may have written these pages
        self.checkpoint.physic_timestamp = max(self.checkpoint.physic_timestamp, self.recovery.last_timestamp)
        self._flush_derived.flush()
        self._bounds.save()
        if cut is not None:
            self._deleted.save(self._deleted.content())
            log_cut.done(self.file_system, self.config.directory)
        sync_names(self.file_system, [self.config.directory, *self._log.files.run.directories])
        mark_in_use(self.file_system, self.config.directory)

    def _recovered(self, *, clean: bool, cut: int | None, whole_log: bool) -> RecoveryReport:
        parts = RecoveryParts(
            file_system=self.file_system,
            config=self.config,
            clock=self.clock,
            log=self._log,
            queues=self._queues,
            index=self._index,
            checkpoint=self.checkpoint,
            deleted=self._deleted,
            bounds=queue_bounds.load(self.file_system, self.config.directory),
        )
        return Recovery(
            parts,
            clean=clean,
            writes_may_be_lost=writes_may_be_lost(self.file_system, self.config.directory),
            record_size_max=max(self.config.record_size_max, self.config.segment_size),
            whole_log=whole_log,
            cut=cut,
        ).run()

    async def run(self) -> None:
        """Run the services: group commit, flushes, retention, scrub. Raises the error that ends one of them."""
        self._check_open()
        services: list[Service] = [
            self._durability,
            self._flush_derived,
            self._bounds,
            self._allocation,
            self.retention,
            self.scrub,
        ]
        self._durability.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                for service in services:
                    tasks.create_task(service.run(), name=service.name)
        except BaseExceptionGroup as group:
            # All of them fail for the same reason, which says more than the exception group.
            error = group.exceptions[0]
            raise error from error.__cause__
        finally:
            self._durability.end()

    def save_queue_bounds(self) -> None:
        """Save now what a start compares the files of the queues with; a service does it every minute. Blocking."""
        self._bounds.save()

    def close(self) -> None:
        """Make everything durable and mark the stop as clean. A failed store only closes its files.

        The services must have ended. Raises StoreFailedError if the last sync fails.
        """
        if self.state == "closed":
            return
        try:
            if self.state == "open":
                self._close_orderly()
        except (OSError, StoreError) as error:
            raise self._fail(error) from error
        finally:
            self._closed = True
            self._allocation.close(orderly=False)
            self._durability.close()
            self._disk.close()
            self._index.close()
            self._log.files.close()
            self._queues.close()
            self._log_locks.release()
            self._lock.release()

    def _close_orderly(self) -> None:
        self._end_what_has_begun()
        self._allocation.close(orderly=True)
        self._flush_all()
        self._bounds.save()
        with suppress(FileNotFoundError):
            self.file_system.unlink(self._abort_path)
        self.file_system.sync_directory(self.config.directory)

    def _end_what_has_begun(self) -> None:
        """Wait for work that a service, even a cancelled one, has started in a thread. Raises its error, which the
        service may not have seen."""
        self._durability.end_threads()
        self._disk.wait()
        for error in (self._flush_derived.sync_error, self._bounds.error):
            if error is not None:
                raise error  # another sync would succeed but prove nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing ----------------------------------------------------------------------------------------------

    def reconfigure(self, config: StoreConfig) -> None:
        """Publish a new configuration. Only settings that Retention reads on every use take effect before the next
        opening."""
        self.config = config
        self.retention.reconfigure(config)

    def append(
        self, messages: Sequence[AnyMessage], *, split_batch: bool = False, internal: bool = False
    ) -> list[Appended]:
        """Append messages in this order, all or none. Wait for them with `wait_stored`.

        A message is given as a whole, as its draft, or as what differs from a template. `split_batch`: the messages
        came as one batch of the older protocol, so they stay together in one segment. `internal`: messages that keep
        consumers running or that retention needs; they are accepted on a disk that is too full for others. An inner
        batch (SYS_FLAG_INNER_BATCH) is one message here. It takes the number of queue offsets in its property
        INNER_NUM, and INNER_BASE is added to it.

        Raises InvalidMessageError, LightQueuesFullError, StoreBusyError (too much waits for the disk; internal writes
        get twice the limit), StoreFullError, StoreAccessError, StoreFailedError or StoreClosedError; nothing is stored
        then.
        """
        self._check_open()
        if self.running.flags is not _NO_FLAGS:
            self.running.check_writable(internal=internal)
        return self._writer.append(messages, split_batch=split_batch, internal=internal)

    def draft(self, message: Message) -> Draft:
        """Prepare a message for `append`, in an earlier step of the event loop: about a third of the work.
        InvalidMessageError."""
        return self._writer.draft(message)

    def append_records(
        self, topic: str, queue_id: int, batch: RecordBatch, *, born_host: Host | None = None
    ) -> AppendedBatch:
        """Append records in store layout, all for one queue, and none of them prepared or rolled back.

        Their queue and physical offsets, store time, host and record checksum are written into a copy. `born_host`
        replaces a born host of 0.0.0.0:0, if it is an IPv4 address. Raises like `append`.
        """
        self._check_open()
        self.running.check_writable(internal=False)
        return self._writer.append_records(topic, queue_id, batch, born_host)

    async def wait_stored(self, end: int, *, durable: bool | None = None, replicas: bool = True) -> None:
        """Return when the bytes before physical offset `end` are as safe as the flush mode promises.

        With sync flush they are on the disk; with async flush in the page cache, where they survive the death of the
        process. `durable` requests one of these explicitly, for the local disk alone. Without it, as many replicas as
        `self.replicas` requires also have the bytes on disk, unless `replicas` is false. Raises StoreFailedError;
        SyncTimeoutError when the disk takes too long; ReplicaTimeoutError, ReplicaMissingError. Cancelling only stops
        the waiting.
        """
        if self.state != "open":
            self._check_open()
        started = perf_counter()
        if durable or (durable is None and self.config.flush == "sync"):
            await self._durability.wait_flushed(end)
        elif durable is None:
            await self._durability.wait_promised(end)
        else:
            await self._durability.wait_committed(end)
        if replicas and self.replicas is not None and durable is None:
            await self.replicas.wait(end)
        self.stats.stored_seconds.observe(perf_counter() - started)

    def request_flush(self) -> None:
        """Make appended messages durable soon, even if no sender waits for them."""
        self._durability.request_sync()

    def commit(self) -> None:
        """Move appended bytes to the page cache now."""
        self._check_open()
        self._durability.commit()
        self._check_open()

    def dispatch(self) -> None:
        """Feed queues and index with everything committed, durable or not. For tools that run no services."""
        self._dispatch.follow(self._log.committed)

    def flush(self) -> None:
        """Make everything durable and dispatched now; blocking. For tools and tests that run no services.

        With services running, it waits for a sync that has begun, and does not retry a failed one.
        """
        self._check_open()
        try:
            self._end_what_has_begun()
            self._flush_all()
        except (OSError, StoreError) as error:
            raise self._fail(error) from error

    def _flush_all(self) -> None:
        self._durability.flush()
        self._flush_derived.flush()

    # --- reading ----------------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_count: int = 32,
        max_bytes: int = 4 << 20,
        tags: frozenset[str] | None = None,
    ) -> ReadResult:
        """Messages of a queue from `queue_offset` on, at most `max_count` and `max_bytes` (but at least one).

        `tags`: only messages with one of these tags, compared by hash and then by value. Checksums of records are
        verified; damaged or deleted records are skipped and counted in `lost`. Raises StoreAccessError.
        """
        if self.running.flags is not _NO_FLAGS:
            self.running.check_readable()
        started = perf_counter()
        result = self._reader.read(topic, queue_id, queue_offset, max_count=max_count, max_bytes=max_bytes, tags=tags)
        stats = self.stats
        if result.records:
            stats.reads_found += 1
        else:
            stats.reads_missed += 1
        stats.read_seconds.observe(perf_counter() - started)
        return result

    def read_runs(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        end_offset: int | None = None,
        max_bytes: int = 1 << 20,
        tags: Collection[str] | None = None,
        flushed_only: bool = True,
    ) -> RecordRuns:
        """Records of a queue as slices of the log, at most `max_bytes` (but at least one), before `end_offset`.

        `tags`: only records with one of these tags, compared by hash alone; ignored for a batch consume queue.
        Checksums are not verified; a record that is gone, also by retention, or has a wrong header is skipped and
        counted in `lost`. An inner batch is returned as a whole record, even for an offset within it. Raises
        StoreAccessError.
        """
        self.running.check_readable()
        started = perf_counter()
        result = self._run_reader.read(
            topic,
            queue_id,
            queue_offset,
            end_offset=end_offset,
            max_bytes=max_bytes,
            tags=tags,
            flushed_only=flushed_only,
        )
        if result.runs:
            self.stats.reads_found += 1
        else:
            self.stats.reads_missed += 1
        self.stats.read_seconds.observe(perf_counter() - started)
        return result

    @property
    def filter_bitmaps(self) -> FilterBitmaps | None:
        """What computes the bitmaps of new messages in extended units; None: they get none."""
        return self._writer.filter_bitmaps

    @filter_bitmaps.setter
    def filter_bitmaps(self, bitmaps: FilterBitmaps | None) -> None:
        self._writer.filter_bitmaps = bitmaps

    def may_match(self, topic: str, queue_id: int, queue_offset: int, count: int, bits: FilterBits) -> list[bool]:
        """Whether each of at most `count` messages from `queue_offset` on may satisfy a subscription. Reads no record.

        Empty if nothing is known: outside the queue, without extended units, and in a batch consume queue.
        """
        return self._reader.may_match(topic, queue_id, queue_offset, count, bits)

    def bytes_of(self, record: Record) -> memoryview:
        """The bytes of a stored record, without a copy. RecordNotFoundError."""
        return self._log.bytes_at(record.physical_offset, record.size)

    def flushed_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Like `queue_range`, but only of durable messages. The two differ with async flush only."""
        low, high = self.queue_range(topic, queue_id)
        # the usual case; checking further would read the queue's file
        if self._log.flushed >= self._dispatch.dispatched:
            return low, high
        return low, max(low, self._run_reader.max_offset(topic, queue_id, flushed_only=True))

    def flushed_bytes(self, physical_offset: int, size_max: int) -> memoryview:
        """Durable bytes of the log, within one segment; empty where the log has none."""
        return self._log.flushed_bytes(physical_offset, size_max)

    def is_boundary(self, physical_offset: int) -> bool:
        """Whether a record or a blank begins here, the durable log ends here, or only zeros of a blank follow."""
        return self._log.is_boundary(physical_offset)

    @property
    def flush_listeners(self) -> list[Callable[[], None]]:
        """Called when more of the log is durable."""
        return self._durability.flush_listeners

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    def record_at(self, physical_offset: int) -> Record:
        """The verified record at a physical offset. Raises RecordNotFoundError or CorruptRecordError."""
        return self._reader.record_at(physical_offset)

    def record_bytes(self, record: Record) -> bytes:
        """The log's bytes of a record that was read. Raises RecordNotFoundError if it has expired since."""
        return self._reader.record_bytes(record)

    def query(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        max_bytes: int = sys.maxsize,
        begin: int = 0,
        end: int = TIMESTAMP_MAX,
    ) -> list[Record]:
        """The newest `max_count` messages of a topic with this key (or message id), oldest first.

        Returns fewer if their records exceed `max_bytes`, but at least one. `begin` and `end`: store times, inclusive.
        Keys are compared, so hash collisions are harmless; but of each index slot only the newest
        `index_file.LOOKED_MAX` entries are examined, whatever their keys.
        """
        return self._reader.query(topic, key, max_count=max_count, max_bytes=max_bytes, begin=begin, end=end)

    def places_of_key(self, topic: str, key: str, *, begin: int = 0, end: int = TIMESTAMP_MAX) -> Iterator[int | None]:
        """The physical offsets of the messages that `query` would look at, newest first: each for `record_with_key`.

        Both are for searches in several steps of the event loop: each offset may be requested in another step, and None
        means that about a millisecond was spent on the index. Returns at most `index_file.LOOKED_MAX` offsets.
        """
        return self._reader.places_of_key(topic, key, begin, end)

    def record_with_key(
        self, topic: str, key: str, physical_offset: int, *, begin: int = 0, end: int = TIMESTAMP_MAX
    ) -> Record | None:
        """The message at this physical offset, if `query` would return it."""
        return self._reader.record_with_key(topic, key, physical_offset, begin, end)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(first offset, offset after the last message); (0, 0) for a queue that does not exist."""
        queue = self._queues.find(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def next_offsets(self, topic: str) -> dict[int, int]:
        """The offset of the next message in each queue of a topic, behind those that cannot be read yet."""
        return {queue.queue_id: queue.next_offset for queue in self._queues.of_topics([topic])}

    def queue_bytes(self, topic: str, queue_id: int) -> QueueBytes:
        """The bytes of the records of a queue: exact for a short one, otherwise estimated from a sample."""
        return self._reader.queue_bytes(topic, queue_id)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The first message stored at or after `timestamp` (lower), or the last at or before it (upper); see
        ConsumeQueue.
        """
        return self._reader.offset_by_time(topic, queue_id, timestamp, boundary)

    def store_timestamp_at(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """When the message of this queue offset was stored, or None if there is none."""
        return self._reader.store_timestamp_at(topic, queue_id, queue_offset)

    def physical_offset_at(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Where in the log the message of this queue offset begins, or None if there is none."""
        return self._reader.physical_offset_at(topic, queue_id, queue_offset)

    def queues(self) -> dict[str, list[int]]:
        """Topic -> queue ids, of every queue that has ever had a message."""
        return self._queues.ids()

    def queue_ids(self, topic: str) -> list[int]:
        """The queue ids of one topic, as in `queues`, without enumerating the others."""
        return self._queues.ids_of(topic)

    async def delete_topics(self, topics: Collection[str]) -> None:
        """Remove the queues of topics. Their records stay in the log until they expire, but are ignored.

        Their messages become unreadable at once, before the first await; messages appended later are kept. A new topic
        of the same name continues at the queue offset where the old one ended; for a light queue only if the log still
        has messages of that time.

        On return the deletion is durable, with everything appended before. The event loop spends the time of one topic
        plus some microseconds for each further one; disk work runs in the disk thread. Raises StoreFailedError,
        StoreClosedError or SyncTimeoutError. After a timeout or a cancellation the topics may be back after a start,
        and can be deleted again.
        """
        self._check_open()
        await self._remove(self._removal.end(topics, self._log.min_offset, self._log.wrote))

    def limit_light_queues(self, require: Callable[[int, int], object]) -> None:
        """Before light queues are made, call `require` with their number and how many more are wanted, which may raise
        LightQueuesFullError; and once now, with 0 more."""
        self._queues.require_light_space = require
        require(self._queues.light_count, 0)

    def count_deleted_topics(self, count: Callable[[Extent, int], object]) -> None:
        """Call `count` with what is noted of deleted topics, now and for each change: with 1 if it is added, and -1 if
        it is dropped."""
        count(self._deleted.extent, 1)
        self._deleted.listener = count

    @property
    def deleted_topics(self) -> dict[str, DeletedTopic]:
        """Where in the log topics were deleted."""
        return self._deleted.content()

    async def follow_deletions(self, deletions: Mapping[str, DeletedTopic]) -> dict[str, DeletedTopic]:
        """Delete from the copy of a log what its broker has deleted, as far as the log is dispatched; return the rest,
        for a later call. Messages after a deletion are kept. Durable on return. Raises like `delete_topics`."""
        self._check_open()
        dispatched = self._dispatch.dispatched
        await self._remove(self._removal.follow(deletions, self._log.min_offset, dispatched))
        return {topic: entry for topic, entry in deletions.items() if entry.physical_offset > dispatched}

    async def _remove(self, ended: Ended | None) -> None:
        if ended is not None:
            try:
                await self._removal.run(ended, lambda end: self.wait_stored(end, durable=True), self.in_disk_thread)
            except OSError as error:
                raise self._fail(error) from error

    async def continue_queues(self, ends: Mapping[str, Mapping[int, int]]) -> None:
        """Let each of these queues, topic -> queue id -> offset, continue at that offset, if the log has none of its
        messages. For a copy of a log whose earlier part had expired. Durable on return. Raises StoreFailedError."""
        self._check_open()
        lacking: dict[str, dict[int, int]] = {}
        for topic, offsets in ends.items():
            for queue_id, offset in offsets.items():
                queue = self._queues.find(topic, queue_id)
                if offset > self._deleted.next_offset(topic, queue_id) and (queue is None or not queue.has_files):
                    lacking.setdefault(topic, {})[queue_id] = offset
                    if queue is not None:
                        queue.begin_at(offset)
        if not lacking:
            return
        self._deleted.continue_at(self._log.min_offset, lacking)
        try:
            await self.in_disk_thread(self._deleted.save, self._deleted.content())
        except OSError as error:
            raise self._fail(error) from error

    def delete_topic(self, topic: str) -> None:
        """Delete one topic, blocking. For tools and tests that run no services."""
        self._check_open()
        if not self._queues.of_topics([topic]):
            return
        self.flush()  # messages that wait for dispatch belong to the deleted topic
        ended = self._removal.end([topic], self._log.min_offset, self._log.wrote)
        assert ended is not None, "there are queues"
        try:
            self._removal.run_blocking(ended)
        except OSError as error:
            raise self._fail(error) from error

    @property
    def arrival_listeners(self) -> list[ArrivalListener]:
        """Called from dispatch with (topic, queue id, new end) when messages become readable."""
        return self._dispatch.arrival_listeners

    @property
    def waiting_count(self) -> int:
        """Number of appended messages that cannot be read yet."""
        return self._dispatch.waiting_count

    def records_containing(self, mark: bytes, begin: int) -> Iterator[Record]:
        """Like `log_scan.records_containing`: for services that keep their state in the log, while they open."""
        size_max = max(self.config.record_size_max, self.config.segment_size)
        return log_scan.records_containing(self._log, mark, begin, record_size_max=size_max)

    def search(self, mark: bytes, end: int) -> AsyncGenerator[list[Record], None]:
        """Like `slices.records_containing`: the same for services that run. Other tasks run between two lists."""
        return slices.records_containing(self._log, self._slice_reader(), self.in_disk_thread, mark, end=end)

    @property
    def retention_listeners(self) -> list[RetentionListener]:
        """Called one after the other before segments are removed; see RetentionListener."""
        return self.retention.listeners

    @property
    def positions(self) -> tuple[int, int, int, int]:
        """(wrote, committed, flushed, dispatched) physical offsets."""
        return self._log.wrote, self._log.committed, self._log.flushed, self._dispatch.dispatched

    def segments(self) -> list[Segment]:
        """The segments of the log, oldest first, without preallocated ones."""
        files = list(self._log.files)
        return [
            Segment(file.start_offset, file.size, file.wrote, file.path)
            for file in files[: len(files) - self._allocation.prepared]
        ]

    def log_timestamp_at(self, physical_offset: int) -> int | None:
        """When the record at this place of the log was stored, or None if there is none."""
        return self._log.store_timestamp_at(physical_offset)

    def status(self) -> StoreStatus:
        """A snapshot for people and metrics. Asks the disk for its usage."""
        log = self._log
        mapped = [file.size for file in log.files.files if file.is_mapped]
        mapped += [file.file.size for file in self._index.files]
        return StoreStatus(
            directory=self.config.directory,
            state=self.state,
            failure=str(self.failure) if self.failure is not None else "",
            min_offset=log.min_offset,
            wrote=log.wrote,
            committed=log.committed,
            flushed=log.flushed,
            dispatched=self._dispatch.dispatched,
            segments=len(log.files) - self._allocation.prepared,
            segments_prepared=self._allocation.prepared,
            pool_buffers_free=None if self._pool is None else self._pool.free,
            segment_size=log.segment_size,
            mapped_files=len(mapped),
            mapped_bytes=sum(mapped),
            queues=len(self._queues),
            damaged_ranges=len(log.damaged),
            unsynced_seconds=self._durability.unsynced_seconds,
            disk=self.file_system.usage(self.config.directory),
            log_disks=self._paths.disks(),
            disk_full_ratio=self.config.disk_full_ratio,
            oldest_timestamp=log.store_timestamp_at(log.min_offset),
            running_flags=self.running.flags,
            refusal=self.running.reason,
        )

    def in_disk_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Run blocking work in the disk thread of derived files, one call at a time, in order."""
        return self._disk.call(function, *args, **kwargs)

    # --- internals --------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> StoreFailedError:
        return self._durability.fail(error, self._flush_derived.error_flag)

    def _check_open(self) -> None:
        if self.state == "closed":
            raise StoreClosedError(f"{self.config.directory}: the store is closed")
        if self.state == "failed":
            raise StoreFailedError(f"{self.config.directory}: the store has failed: {self.failure}") from self.failure
