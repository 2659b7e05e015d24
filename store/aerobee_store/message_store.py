"""The store's face: open, append, wait, read, query, close. It owns the log, what is derived from it, and the services.

Threads: everything runs in the event loop's thread, the only writer of the log, but for what may block. One disk thread
syncs the log; a second one syncs derived files and does whatever the broker gives it (`in_disk_thread`), so that
neither delays a group commit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np

from aerobee_store import inner_batch, properties, record
from aerobee_store.batch_consume_queue import AnyQueue, BatchConsumeQueue
from aerobee_store.checkpoint import Checkpoint
from aerobee_store.clock import Clock, SystemClock
from aerobee_store.commit_log import CommitLog
from aerobee_store.config import StoreConfig
from aerobee_store.consume_queue import FILLER_SIZE, UNIT_DTYPE, ConsumeQueue, QueueMisalignedError
from aerobee_store.delay_levels import SCHEDULE_TOPIC, unit_code
from aerobee_store.deleted_topics import DeletedTopics
from aerobee_store.dispatch import ArrivalListener, Dispatch, Entry, EntryBatch
from aerobee_store.errors import (
    CorruptRecordError,
    InvalidMessageError,
    RecordNotFoundError,
    StoreClosedError,
    StoreDirectoryError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
)
from aerobee_store.file_system import NO_ROOM, DiskFileSystem, DiskUsage, FileSystem, Lock
from aerobee_store.flush import FlushDerived, FlushInterval, GroupCommit
from aerobee_store.index_file import IndexService
from aerobee_store.mapped_file import FileRun, MappedFileQueue
from aerobee_store.record import (
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_PREPARED,
    SYS_FLAG_TRANSACTION,
    Draft,
    Message,
    Record,
    TransactionType,
)
from aerobee_store.record_batch import RecordBatch, place
from aerobee_store.recovery import Recovery, RecoveryReport
from aerobee_store.retention import Retention, RetentionListener
from aerobee_store.running_flags import RunningFlags, RunningState
from aerobee_store.scrub import Scrub
from aerobee_store.stats import StoreStats

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TIMESTAMP_MAX: Final = (1 << 63) - 1

_NO_FLAGS: Final = RunningFlags.NONE  # looked up once: the members of an enum are no plain attributes

# What one tick may gather before it is written without waiting for the tick's end.
_GATHER_SIZE_MAX = 4 << 20
# Units looked at by one read, as RocketMQ (maxFilterMessageSize): bounds the work of a filter that matches little.
_SCAN_UNITS_MAX = 800

ReadStatus = Literal["found", "empty", "no-match", "offset-too-small", "offset-at-end", "offset-too-large"]

# A directory with any of these is a store; one with other things and none of these belongs to somebody else.
_STORE_NAMES = frozenset(
    {
        "commitlog",
        "consumequeue",
        "batchconsumequeue",
        "index",
        "checkpoint",
        "abort",
        "abort.bak",
        "lock",
        "config",
        "store",
        "lost+found",
    }
)


class Appended(NamedTuple):
    """Where a message went."""

    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int

    @property
    def end(self) -> int:
        """The physical offset behind it, for `MessageStore.wait_stored`."""
        return self.physical_offset + self.size


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """Where records went that were appended together, with consecutive queue offsets."""

    first_queue_offset: int
    count: int
    end: int
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Messages of one queue. `next_offset` is where to read on; `lost` counts units without a readable record."""

    status: ReadStatus
    records: list[Record]
    next_offset: int
    min_offset: int
    max_offset: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A store at a moment. Physical offsets; sizes in bytes."""

    directory: Path
    state: Literal["open", "failed", "closed"]
    failure: str
    min_offset: int
    wrote: int
    committed: int
    flushed: int
    dispatched: int
    segments: int
    segment_size: int
    queues: int
    damaged_ranges: int
    disk: DiskUsage
    oldest_timestamp: int | None
    running_flags: RunningFlags
    refusal: str
    """Why no message is taken, or none served; empty if all is well."""


class MessageStore:
    """A directory of messages, open for one process. Built by `open`."""

    def __init__(
        self,
        config: StoreConfig,
        file_system: FileSystem,
        clock: Clock,
        lock: Lock,
        is_batch_topic: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        self.config = config
        self.clock = clock
        self.file_system = file_system
        self.stats = StoreStats()
        self.state: Literal["open", "failed", "closed"] = "open"
        self.failure: BaseException | None = None
        self.recovery = RecoveryReport(clean=True)
        self._lock = lock
        directory = config.directory
        self._abort_path = directory / "abort"
        self.checkpoint = Checkpoint(file_system, directory / "checkpoint")
        self._log_disk = ThreadPoolExecutor(1, thread_name_prefix="aerobee-log-disk")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="aerobee-disk")
        self._log = CommitLog(
            MappedFileQueue(FileRun(file_system, directory / "commitlog", config.segment_size)),
            write_ahead=config.flush == "sync",
            disk_headroom=config.disk_headroom,
        )
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._batch_queues: dict[tuple[str, int], BatchConsumeQueue] = {}
        self._batch_topics: set[str] = set()  # those seen in the store; the caller may know more
        self._is_batch_topic = is_batch_topic
        self._deleted = DeletedTopics(file_system, directory)
        self._index = IndexService(file_system, directory / "index", config.index_slot_count, config.index_entry_count)
        self._dispatch = Dispatch(self._index, clock, self.stats)
        self._group_commit = GroupCommit(
            self._log,
            self.checkpoint,
            self.stats,
            self._log_disk,
            timeout_seconds=config.sync_timeout_seconds,
            after_sync=self._after_sync,
            on_failure=self._fail,
        )
        self._flush_interval = FlushInterval(self._group_commit, config.flush_interval_seconds)
        self._flush_derived = FlushDerived(
            self._dispatch,
            self._index,
            self._all_queues,
            lambda: self._log.flushed,
            self.checkpoint,
            self._disk,
            interval_seconds=config.derived_flush_interval_seconds,
            on_failure=self._fail,
        )
        self.running = RunningState()
        self.retention = Retention(
            self._log,
            self._all_queues,
            self._index,
            self._dispatch,
            self.running,
            self.stats,
            file_system,
            clock,
            config,
            self.in_disk_thread,
        )
        self.scrub = Scrub(
            self._log,
            self.stats,
            file_system,
            clock,
            self.in_disk_thread,
            bytes_per_second=config.scrub_bytes_per_second,
            interval_seconds=config.scrub_interval_hours * 3600,
            record_size_max=config.record_size_max,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commit_scheduled = False
        self._commit_waiters: list[tuple[int, asyncio.Future[None]]] = []

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
        """Lock the directory, recover, be ready. Blocking; may run in any thread.

        `is_batch_topic` says which topics have RocketMQ's attribute `queue.type=BatchCQ`: they take inner batches and
        nothing else. Those that have such queues or records in the store are known without it.
        `whole_log`: compare every queue with the log from its first record on, whatever the last stop was.

        Raises StoreLockedError, StoreDirectoryError for a directory that is no store or not usable, StoreFullError, and
        OSError for what else the disk says. Nothing is touched before the lock is held.
        """
        file_system = file_system or DiskFileSystem()
        clock = clock or SystemClock()
        started = time.perf_counter()
        directory = config.directory
        try:
            lock = _lock(file_system, directory)
        except OSError as error:
            raise _open_error(directory, error) from error
        try:
            store = cls(config, file_system, clock, lock, is_batch_topic)
            store._recover(whole_log=whole_log)
        except OSError as error:
            lock.release()
            raise _open_error(directory, error) from error
        except BaseException:
            lock.release()
            raise
        store.stats.recovery_seconds = time.perf_counter() - started
        return store

    def _recover(self, *, whole_log: bool) -> None:
        clean = not self.file_system.exists(self._abort_path)
        self.checkpoint.load()
        self._deleted.load()
        self._load_queues(suspect=not clean)
        self._index.load()
        if not self._log.files.files and any(queue.max_offset for queue in self._all_queues()):
            raise StoreDirectoryError(
                f"{self._log.files.run.directory}: no segment of the commit log, but there are queues; is a disk not "
                f"mounted? If the log is lost for good, move consumequeue and index away"
            )
        self.recovery = Recovery(
            self.file_system,
            self.config.directory,
            self._log,
            self._queues,
            lambda topic, queue_id: None if self._is_batch(topic) else self._queue(topic, queue_id),
            self._batch_queues,
            self._batch_queue_unless_simple,
            self._index,
            self.checkpoint,
            self._deleted,
            clean=clean,
            record_size_max=max(self.config.record_size_max, self.config.segment_size),
            now_ms=self.clock.now_ms,
            whole_log=whole_log,
        ).run()
        self.stats.recovered_records = self.recovery.records
        self.stats.recovered_bytes = self.recovery.end - self.recovery.begin
        self._dispatch.dispatched = self._log.wrote
        self._dispatch.last_timestamp = self.recovery.last_timestamp
        for file in self._log.files:
            if not clean and file.committed and file.end_offset > self.recovery.begin:
                file.sync()  # the pages may have been written by the process that died
        self.checkpoint.physic_timestamp = max(self.checkpoint.physic_timestamp, self.recovery.last_timestamp)
        self._flush_derived.flush()
        self.file_system.write_new(self._abort_path, str(os.getpid()).encode())
        self.file_system.sync_directory(self.config.directory)

    def _load_queues(self, *, suspect: bool) -> None:
        for topic, queue_id in self._queue_names("batchconsumequeue"):
            self._batch_topics.add(topic)
            self._batch_queue(topic, queue_id).load(suspect=suspect)
        for topic, queue_id in self._queue_names("consumequeue"):
            if self._is_batch(topic):
                raise StoreDirectoryError(
                    f"{self.config.directory / 'consumequeue' / topic}: topic {topic!r} has batch consume queues, or "
                    f"the attribute for them, and these as well; `aerobee store rebuild` makes them from the log"
                )
            self._queue(topic, queue_id).load(suspect=suspect)

    def _queue_names(self, name: str) -> list[tuple[str, int]]:
        root = self.config.directory / name
        found = []
        for topic in self.file_system.list(root):
            for queue_id in self.file_system.list(root / topic):
                if not (queue_id.isascii() and queue_id.isdigit()):
                    raise StoreDirectoryError(f"{root / topic / queue_id}: not a queue of this store; move it away")
                found.append((topic, int(queue_id)))
        return found

    async def run(self) -> None:
        """Run the services: group commit, flushes, retention, scrub. Raises what kills one of them."""
        self._check_open()
        self._loop = asyncio.get_running_loop()
        services = (self._group_commit, self._flush_interval, self._flush_derived, self.retention, self.scrub)
        try:
            async with asyncio.TaskGroup() as tasks:
                for service in services:
                    tasks.create_task(service.run(), name=service.name)
        except BaseExceptionGroup as group:
            # They fail for one reason; it says more than the group around it.
            error = group.exceptions[0]
            raise error from error.__cause__
        finally:
            self._loop = None

    def close(self) -> None:
        """Make everything durable and mark the stop as orderly. A failed store only lets go of its files.

        The services must not run any more. Raises StoreFailedError if the last sync fails.
        """
        if self.state == "closed":
            return
        try:
            if self.state == "open":
                self._close_orderly()
        except OSError as error:
            raise self._fail(error) from error
        finally:
            self.state = "closed"
            self._log_disk.shutdown(wait=True)
            self._disk.shutdown(wait=True)
            self._index.close()
            self._log.files.close()
            for queue in self._all_queues():
                queue.close()
            self._lock.release()

    def _close_orderly(self) -> None:
        # What a cancelled service has begun ends before the last words are written.
        for disk in (self._log_disk, self._disk):
            disk.submit(lambda: None).result()
        for service in (self._group_commit, self._flush_derived):
            if service.sync_error is not None:
                raise service.sync_error  # syncing again would succeed, and prove nothing
        self._log.commit()
        for file in self._log.unsynced_files():
            file.sync()
            file.flushed = file.committed
        self._log.flushed = self._log.committed
        self._dispatch.follow(self._log.flushed)
        self.checkpoint.physic_timestamp = max(
            self.checkpoint.physic_timestamp, self._group_commit.last_appended_timestamp
        )
        self._flush_derived.flush()
        with suppress(FileNotFoundError):
            self.file_system.unlink(self._abort_path)
        self.file_system.sync_directory(self.config.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing ----------------------------------------------------------------------------------------------

    def append(
        self, messages: Sequence[Message], *, split_batch: bool = False, essential: bool = False
    ) -> list[Appended]:
        """Append messages in this order, all or none. They can be waited for with `wait_stored`.

        `split_batch`: they came as one batch of the older protocol, so they stay together in one segment.
        `essential`: what lets consumers go on, and retention save what it needs; a disk that is too full for other
        messages still takes it. An inner batch (SYS_FLAG_INNER_BATCH) is one message here and takes as many queue
        offsets as its property INNER_NUM says; INNER_BASE is added to it.

        Raises InvalidMessageError, StoreFullError, StoreAccessError, StoreFailedError, StoreClosedError; nothing is
        stored then.
        """
        self._check_open()
        if self.running.flags is not _NO_FLAGS:
            self.running.check_writable(essential=essential)
        config = self.config
        if any(message.sys_flag & SYS_FLAG_INNER_BATCH for message in messages):
            return self._append_inner_batches(messages)
        drafts = []
        for message in messages:
            if len(message.body) > config.body_size_max:
                raise InvalidMessageError(
                    f"body of {len(message.body)} bytes, the limit is {config.body_size_max} (store.body_size_max)"
                )
            if not message.sys_flag & SYS_FLAG_PREPARED and (message.topic, message.queue_id) not in self._queues:
                self._queue(message.topic, message.queue_id)  # refuses a topic of inner batches, with nothing stored
            drafts.append(
                Draft(message, store_host=config.store_host, property_crc=config.property_crc, split_batch=split_batch)
            )
        log = self._log
        sizes = [draft.size for draft in drafts]
        self._prepare([sum(sizes)] if split_batch else sizes, essential=essential)
        if split_batch:
            log.next_offset(sum(sizes))
        now = self.clock.now_ms()
        appended = []
        entries = []
        for message, draft in zip(messages, drafts, strict=True):
            size = draft.size
            physical_offset = log.next_offset(size)
            queue = queue_offset = None
            if not message.sys_flag & SYS_FLAG_PREPARED:
                queue = self._queue(message.topic, message.queue_id)
                queue_offset = queue.next_offset
                queue.next_offset = queue_offset + 1
            log.append(draft.encode(queue_offset or 0, physical_offset, now))
            entries.append(_entry(message, queue, queue_offset or 0, physical_offset, size, now))
            appended.append(Appended(queue_offset or 0, physical_offset, size, now))
        self.stats.messages_appended += len(appended)
        self.stats.bytes_appended += sum(sizes)
        self._appended(entries, now)
        return appended

    def _append_inner_batches(self, messages: Sequence[Message]) -> list[Appended]:
        """They come with their whole content from a store of RocketMQ's, seldom and few: one by one is fast enough."""
        config = self.config
        if len(messages) != 1:
            raise InvalidMessageError("an inner batch is appended alone")
        (message,) = messages
        if len(message.body) > config.body_size_max:
            raise InvalidMessageError(
                f"body of {len(message.body)} bytes, the limit is {config.body_size_max} (store.body_size_max)"
            )
        if message.sys_flag & SYS_FLAG_TRANSACTION:
            raise InvalidMessageError("an inner batch cannot be part of a transaction")
        queue = self._batch_queue_unless_simple(message.topic, message.queue_id)
        if queue is None:
            raise InvalidMessageError(
                f"topic {message.topic!r} has no batch consume queues, so it takes no inner batch"
            )
        message, count = inner_batch.placed(message, queue.next_offset)
        draft = Draft(message, store_host=config.store_host, property_crc=config.property_crc)
        size = draft.size
        self._prepare([size])
        now = self.clock.now_ms()
        physical_offset = self._log.next_offset(size)
        queue_offset = queue.next_offset
        queue.next_offset += count
        self._log.append(draft.encode(queue_offset, physical_offset, now))
        self.stats.messages_appended += count
        self.stats.bytes_appended += size
        self._appended([_entry(message, queue, queue_offset, physical_offset, size, now, count)], now)
        return [Appended(queue_offset, physical_offset, size, now)]

    def append_records(self, topic: str, queue_id: int, batch: RecordBatch) -> AppendedBatch:
        """Append records that are in store layout already, all of one queue and none of them prepared or rolled back.

        Their queue and physical offsets, store time, host and record checksum are written into a copy. Raises as
        `append`.
        """
        self._check_open()
        self.running.check_writable(essential=False)
        count = len(batch)
        if not count:
            raise InvalidMessageError(f"no valid record: {batch.stop.reason.value}: {batch.stop.detail}")
        if batch.topics != (topic,) or (batch.queue_id != queue_id).any():
            raise InvalidMessageError(f"the records are not all of queue {queue_id} of topic {topic!r}")
        if (batch.sys_flag & SYS_FLAG_TRANSACTION).any():
            raise InvalidMessageError("a transactional record cannot be appended in store layout")
        if (batch.sys_flag & SYS_FLAG_INNER_BATCH).any():
            raise InvalidMessageError("an inner batch cannot be appended in store layout")
        self._prepare(batch.size.tolist())
        queue = self._queue(topic, queue_id)
        now = self.clock.now_ms()
        first = 0
        first_queue_offset = queue.next_offset
        while first < count:
            # What fits into the segment goes in as one copy.
            physical_offset = self._log.next_offset(int(batch.size[first]))
            room = self._log.segment_size - physical_offset % self._log.segment_size - record.BLANK_SIZE_MIN
            ends = batch.start[first:] + batch.size[first:] - batch.start[first]
            last = first + int(np.searchsorted(ends, room, side="right"))
            self._append_slice(queue, batch, first, last, physical_offset, now)
            first = last
        self.stats.messages_appended += count
        return AppendedBatch(first_queue_offset, count, self._log.wrote, now)

    def _append_slice(
        self, queue: ConsumeQueue, batch: RecordBatch, first: int, last: int, physical_offset: int, now: int
    ) -> None:
        begin = int(batch.start[first])
        data = bytearray(batch.buffer[begin : int(batch.start[last - 1] + batch.size[last - 1])])
        part = batch.slice(first, last)
        queue_offset = queue.next_offset
        queue.next_offset += last - first
        placed = place(
            part,
            data,
            np.arange(queue_offset, queue.next_offset),
            physical_offset,
            now,
            self.config.store_host,
        )
        self._log.append(data)
        units = np.zeros(last - first, UNIT_DTYPE)
        units["physical_offset"] = placed.physical_offset
        units["size"] = placed.size
        units["tags_code"] = placed.tags_codes()
        rows, hashes = placed.index_hashes()
        self.stats.bytes_appended += len(data)
        self._appended(
            EntryBatch(
                queue=queue,
                queue_offset=queue_offset,
                units=units.tobytes(),
                count=last - first,
                last_store_timestamp=now,
                key_hashes=hashes,
                key_physical_offsets=placed.physical_offset[rows],
                key_timestamps=placed.store_timestamp[rows],
            ),
            now,
        )

    async def wait_stored(self, end: int, *, durable: bool | None = None) -> None:
        """Return once the bytes before physical offset `end` are as safe as the flush mode promises.

        With sync flush they are on the disk; with async flush in the page cache, where the death of the process cannot
        harm them. `durable` asks for one or the other whatever the mode. Raises StoreFailedError, or SyncTimeoutError
        when the disk takes too long. Cancelling only stops the waiting.
        """
        if self.state != "open":
            self._check_open()
        if durable is None:
            durable = self.config.flush == "sync"
        if durable:
            if end > self._log.flushed:
                await self._group_commit.wait(end)
        elif end > self._log.committed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._commit_waiters.append((end, waiter))
            await waiter

    def request_flush(self) -> None:
        """Make durable soon what nobody waits for."""
        self._group_commit.request()

    def commit(self) -> None:
        """Move what was appended to the page cache now, rather than at the end of the tick."""
        self._check_open()
        self._commit()
        self._check_open()

    def dispatch(self) -> None:
        """Feed queues and index with all that was committed, durable or not. For tools that run no services."""
        self._dispatch.follow(self._log.committed)

    def flush(self) -> None:
        """Make everything durable and dispatched now; blocking. For tools and tests that run no services."""
        self._check_open()
        try:
            self._log.commit()
            files = self._log.unsynced_files()
            for file in files:
                file.sync()
            self._log.set_flushed(files, [file.committed for file in files], self._log.committed)
            self._dispatch.follow(self._log.flushed)
            self.checkpoint.physic_timestamp = max(
                self.checkpoint.physic_timestamp, self._group_commit.last_appended_timestamp
            )
            self._flush_derived.flush()
        except OSError as error:
            raise self._fail(error) from error

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
        """Messages of a queue from `queue_offset` on, at most `max_count`, at most `max_bytes` (but always one).

        `tags`: only messages with one of these tags, compared by hash and then by value. Records are checked against
        their checksums; a damaged or deleted one is left out and counted in `lost`. StoreAccessError.
        """
        if self.running.flags is not _NO_FLAGS:
            self.running.check_readable()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            batch_queue = self._batch_queues.get((topic, queue_id))
            if batch_queue is not None:
                return self._read_inner_batches(batch_queue, queue_offset, max_count, max_bytes, tags)
            return ReadResult("empty", [], 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if queue_offset < low:
            return ReadResult("offset-too-small", [], low, low, high)
        if queue_offset >= high:
            if not high:
                return ReadResult("empty", [], 0, 0, 0)
            status: ReadStatus = "offset-at-end" if queue_offset == high else "offset-too-large"
            return ReadResult(status, [], high, low, high)
        units = queue.units(queue_offset, max(_SCAN_UNITS_MAX, max_count) if tags is not None else max_count)
        codes = None if tags is None else {properties.tags_code(tag) for tag in tags}
        records: list[Record] = []
        size = lost = taken = 0
        for physical_offset, unit_size, code in units.tolist():
            if codes is not None and code not in codes:
                taken += 1
                continue
            if records and (len(records) >= max_count or size + unit_size > max_bytes):
                break
            taken += 1
            if unit_size == FILLER_SIZE:
                lost += 1
                continue
            try:
                found = self.record_at(physical_offset)
            except (RecordNotFoundError, CorruptRecordError) as error:
                lost += 1
                _log.error(
                    "message lost topic=%s queue=%d offset=%d cause=%s",
                    topic,
                    queue_id,
                    queue_offset + taken - 1,
                    error,
                )
                continue
            if (found.queue_offset, found.queue_id, found.topic) != (queue_offset + taken - 1, queue_id, topic) and (
                properties.INNER_MULTI_DISPATCH not in found.properties
            ):
                lost += 1
                _log.error(
                    "unit names another message topic=%s queue=%d offset=%d found=%s/%d/%d",
                    topic,
                    queue_id,
                    queue_offset + taken - 1,
                    found.topic,
                    found.queue_id,
                    found.queue_offset,
                )
                continue
            if tags is not None and found.tag not in tags:
                continue
            records.append(found)
            size += unit_size
        self.stats.messages_read += len(records)
        return ReadResult("found" if records else "no-match", records, queue_offset + taken, low, high, lost)

    def _read_inner_batches(
        self, queue: BatchConsumeQueue, queue_offset: int, max_count: int, max_bytes: int, tags: frozenset[str] | None
    ) -> ReadResult:
        """As `read`, each message of a batch for itself. Filtered by its own tag: the unit's is that of the record."""
        low, high = queue.min_offset, queue.max_offset
        if queue_offset < low:
            return ReadResult("offset-too-small", [], low, low, high)
        if queue_offset >= high:
            if not high:
                return ReadResult("empty", [], 0, 0, 0)
            status: ReadStatus = "offset-at-end" if queue_offset == high else "offset-too-large"
            return ReadResult(status, [], high, low, high)
        records: list[Record] = []
        size = lost = 0
        position = queue_offset
        scan_end = high if tags is None else queue_offset + _SCAN_UNITS_MAX
        units = queue.units(queue.number_at(queue_offset), _SCAN_UNITS_MAX if tags is not None else max_count)
        for physical_offset, _, _, _, base, count, _, _ in units.tolist():
            if len(records) >= max_count or position >= scan_end:
                break
            lost += max(0, base - position)  # no unit says where these were
            position = max(position, base)
            try:
                messages = inner_batch.unpack(self.record_at(physical_offset))
                if messages[0].queue_offset != base or len(messages) != count or messages[0].topic != queue.topic:
                    raise CorruptRecordError(
                        f"it holds {messages[0].topic}/{messages[0].queue_id} from offset {messages[0].queue_offset} "
                        f"on, its unit says {queue.topic}/{queue.queue_id} from {base} on",
                        physical_offset=physical_offset,
                    )
            except (RecordNotFoundError, CorruptRecordError) as error:
                lost += base + count - position
                _log.error(
                    "messages lost topic=%s queue=%d offset=%d count=%d cause=%s",
                    queue.topic,
                    queue.queue_id,
                    position,
                    base + count - position,
                    error,
                )
                position = base + count
                continue
            for message in messages[position - base :]:
                if tags is None or message.tag in tags:
                    if records and (len(records) >= max_count or size + message.size > max_bytes):
                        scan_end = position
                        break
                    records.append(message)
                    size += message.size
                position += 1
        self.stats.messages_read += len(records)
        return ReadResult("found" if records else "no-match", records, position, low, high, lost)

    def record_at(self, physical_offset: int) -> Record:
        """The record at a physical offset, checked. Raises RecordNotFoundError or CorruptRecordError."""
        try:
            return self._log.record_at(physical_offset)
        except CorruptRecordError:
            self.stats.checksum_failures += 1
            raise

    def query(
        self, topic: str, key: str, *, max_count: int = 64, begin: int = 0, end: int = TIMESTAMP_MAX
    ) -> list[Record]:
        """The newest `max_count` messages of a topic that carry the key (or have it as message id), oldest first.

        `begin` and `end`: store times, inclusive. The key itself is compared, so hash collisions never show.
        """
        found: list[Record] = []
        seen: set[int] = set()
        deleted_before = self._deleted.end_of(topic)
        for physical_offset in self._index.find(properties.index_hash(topic, key), begin, end):
            if physical_offset in seen:
                continue
            seen.add(physical_offset)
            try:
                candidate = self.record_at(physical_offset)
            except (RecordNotFoundError, CorruptRecordError):
                continue
            if physical_offset < deleted_before or candidate.topic != topic:
                continue
            if not begin <= candidate.store_timestamp <= end:
                continue
            if candidate.transaction_type is TransactionType.ROLLBACK:
                continue
            if key == candidate.unique_key or key in candidate.keys:
                found.append(candidate)
                if len(found) >= max_count:
                    break
        return sorted(found, key=lambda item: item.physical_offset)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(first offset, offset behind the last message); (0, 0) for a queue that does not exist."""
        queue = self._find_queue(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The first message stored at or after `timestamp` (lower), or the last at or before it (upper); see
        ConsumeQueue.
        """
        queue = self._find_queue(topic, queue_id)
        if isinstance(queue, BatchConsumeQueue):
            return queue.offset_by_time(timestamp, boundary)
        return queue.offset_by_time(timestamp, boundary, self._log.store_timestamp_at) if queue is not None else 0

    def store_timestamp_at(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """When the message of this queue offset was stored, or None if there is none."""
        physical_offset = self.physical_offset_at(topic, queue_id, queue_offset)
        return None if physical_offset is None else self._log.store_timestamp_at(physical_offset)

    def physical_offset_at(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Where in the log the message of this queue offset begins, or None if there is none."""
        queue = self._find_queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        if isinstance(queue, BatchConsumeQueue):
            return queue.physical_offset_at(queue_offset)
        unit = queue.units(queue_offset, 1)
        if not len(unit) or int(unit[0]["size"]) == FILLER_SIZE:
            return None
        return int(unit[0]["physical_offset"])

    def queues(self) -> dict[str, list[int]]:
        """Topic -> queue ids, of every queue that has ever had a message."""
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted((queue.topic, queue.queue_id) for queue in self._all_queues() if queue.files):
            found.setdefault(topic, []).append(queue_id)
        return found

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of a topic; its records stay in the log until they expire, and count no more.

        A topic of that name that comes later goes on at the queue offsets where this one ended. Blocking, and durable
        when it returns.
        """
        self._check_open()
        queues = [queue for queue in self._all_queues() if queue.topic == topic]
        if not queues:
            return
        self.flush()  # what waits for dispatch belongs to the topic that goes
        try:
            self._deleted.add(topic, self._log.wrote, {queue.queue_id: queue.next_offset for queue in queues})
            for queue in queues:
                next_offset = queue.next_offset
                queue.destroy()
                queue.begin_at(next_offset)
        except OSError as error:
            raise self._fail(error) from error
        self.file_system.remove_directory(queues[0].directory.parent)
        if topic in self._batch_topics:
            # A topic of that name that comes later may be of the other kind.
            self._batch_topics.remove(topic)
            for queue in queues:
                del self._batch_queues[topic, queue.queue_id]

    @property
    def arrival_listeners(self) -> list[ArrivalListener]:
        """Called from dispatch with (topic, queue id, new end) when messages can be read."""
        return self._dispatch.arrival_listeners

    @property
    def retention_listeners(self) -> list[RetentionListener]:
        """Asked, one after the other, before segments are removed; see RetentionListener."""
        return self.retention.listeners

    @property
    def positions(self) -> tuple[int, int, int, int]:
        """(wrote, committed, flushed, dispatched) physical offsets."""
        return self._log.wrote, self._log.committed, self._log.flushed, self._dispatch.dispatched

    def status(self) -> StoreStatus:
        """Everything at once, for people. Asks the disk for its usage."""
        log = self._log
        return StoreStatus(
            directory=self.config.directory,
            state=self.state,
            failure=str(self.failure) if self.failure is not None else "",
            min_offset=log.min_offset,
            wrote=log.wrote,
            committed=log.committed,
            flushed=log.flushed,
            dispatched=self._dispatch.dispatched,
            segments=len(log.files),
            segment_size=log.segment_size,
            queues=len(self._queues) + len(self._batch_queues),
            damaged_ranges=len(log.damaged),
            disk=self.file_system.usage(self.config.directory),
            oldest_timestamp=log.store_timestamp_at(log.min_offset),
            running_flags=self.running.flags,
            refusal=self.running.reason,
        )

    def in_disk_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Run what blocks in the disk thread of derived files, one call at a time in the order of the calls."""
        return asyncio.get_running_loop().run_in_executor(self._disk, lambda: function(*args, **kwargs))

    # --- inside -----------------------------------------------------------------------------------------------

    def _all_queues(self) -> list[AnyQueue]:
        return [*self._queues.values(), *self._batch_queues.values()]

    def _find_queue(self, topic: str, queue_id: int) -> AnyQueue | None:
        key = topic, queue_id
        return self._queues.get(key) or self._batch_queues.get(key)

    def _is_batch(self, topic: str) -> bool:
        return topic in self._batch_topics or self._is_batch_topic(topic)

    def _batch_queue(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        queue = self._batch_queues.get((topic, queue_id))
        if queue is None:
            directory = self.config.directory / "batchconsumequeue" / topic / str(queue_id)
            queue = BatchConsumeQueue(self.file_system, directory, topic, queue_id, self.config.batch_queue_file_size)
            self._batch_queues[topic, queue_id] = queue
            self._batch_topics.add(topic)
            queue.begin_at(self._deleted.next_offset(topic, queue_id))
        return queue

    def _batch_queue_unless_simple(self, topic: str, queue_id: int) -> BatchConsumeQueue | None:
        """None for a topic that has consume queues of the other kind."""
        if not self._is_batch(topic) and any(
            name == topic and queue.files for (name, _), queue in self._queues.items()
        ):
            return None
        return self._batch_queue(topic, queue_id)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if self._is_batch(topic):
                raise InvalidMessageError(
                    f"topic {topic!r} has batch consume queues (queue.type=BatchCQ): it takes inner batches only"
                )
            directory = self.config.directory / "consumequeue" / topic / str(queue_id)
            queue = ConsumeQueue(self.file_system, directory, topic, queue_id, self.config.queue_file_size)
            self._queues[topic, queue_id] = queue
            queue.begin_at(self._deleted.next_offset(topic, queue_id))
        return queue

    def _prepare(self, sizes: list[int], *, essential: bool = False) -> None:
        try:
            self._log.prepare(sizes, essential=essential)
        except OSError as error:
            raise self._fail(error) from error

    def _appended(self, entries: Sequence[Entry] | EntryBatch, now: int) -> None:
        self._dispatch.add(self._log.wrote, entries)
        self._group_commit.last_appended_timestamp = now
        if self._loop is None:
            return  # no services: `flush` or `close` does it
        if self._log.wrote - self._log.committed > _GATHER_SIZE_MAX:
            self._commit()
        elif not self._commit_scheduled:
            self._commit_scheduled = True
            self._loop.call_soon(self._commit_scheduled_now)

    def _commit_scheduled_now(self) -> None:
        self._commit_scheduled = False
        if self.state == "open":
            self._commit()

    def _commit(self) -> None:
        try:
            self._log.commit()
            self.stats.commits += 1
            if self.config.flush == "async":
                self._dispatch.follow(self._log.committed)
        except (OSError, StoreError) as error:
            self._fail(error)
            return
        committed = self._log.committed
        waiters, self._commit_waiters = self._commit_waiters, []
        for end, waiter in waiters:
            if end > committed:
                self._commit_waiters.append((end, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    def _after_sync(self) -> None:
        try:
            self._dispatch.follow(self._log.flushed)
        except (OSError, StoreError) as error:
            raise self._fail(error) from error

    def _fail(self, cause: BaseException) -> StoreFailedError:
        """The store takes no more writes; everybody who waits learns it."""
        error = StoreFailedError(
            f"{self.config.directory}: {type(cause).__name__}: {cause}; the store takes no more writes. "
            f"Look at the disk, then start again: recovery keeps every message that was acknowledged"
        )
        error.__cause__ = cause
        if self.state == "open":
            _log.critical("store failed directory=%s cause=%r", self.config.directory, cause)
            self.state = "failed"
            self.failure = cause
            self.running.set(RunningFlags.NOT_WRITEABLE, str(error))
            if isinstance(cause, QueueMisalignedError):
                self.running.set(RunningFlags.LOGICS_QUEUE_ERROR, str(cause))
        self._group_commit.fail(error)
        for _, waiter in self._commit_waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._commit_waiters.clear()
        return error

    def _check_open(self) -> None:
        if self.state == "closed":
            raise StoreClosedError(f"{self.config.directory}: the store is closed")
        if self.state == "failed":
            raise StoreFailedError(f"{self.config.directory}: the store has failed: {self.failure}") from self.failure


def _entry(
    message: Message,
    queue: AnyQueue | None,
    queue_offset: int,
    physical_offset: int,
    size: int,
    store_timestamp: int,
    message_count: int = 0,
) -> Entry:
    raw = message.raw_properties
    values = message.properties if raw is None else properties.decode_properties(raw)
    topic = message.topic
    code = properties.tags_code(values.get(properties.TAGS))
    if topic == SCHEDULE_TOPIC:
        code = unit_code(topic, values.get(properties.DELAY), store_timestamp, code)
    index_keys: tuple[str, ...] = ()
    if message.sys_flag & SYS_FLAG_TRANSACTION != TransactionType.ROLLBACK:
        unique_key = values.get(properties.UNIQ_KEY)
        keys = values.get(properties.KEYS)
        if unique_key:
            index_keys = (unique_key,)
        if keys:
            index_keys += tuple(properties.split_keys(keys))
    return Entry(queue, queue_offset, physical_offset, size, code, store_timestamp, topic, index_keys, message_count)


def _lock(file_system: FileSystem, directory: Path) -> Lock:
    if file_system.exists(directory):
        if not file_system.is_directory(directory):
            raise StoreDirectoryError(f"{directory}: not a directory; name one that is empty or holds a store")
        names = set(file_system.list(directory))
        if names and not names & _STORE_NAMES:
            example = min(names)
            raise StoreDirectoryError(
                f"{directory}: holds {example!r} and nothing of a store; name an empty directory, or one with a store"
            )
    else:
        file_system.make_directory(directory)
    try:
        return file_system.lock(directory / "lock", b"lock")
    except BlockingIOError as error:
        raise StoreLockedError(
            f"{directory}: another process has this store open; stop it, or name another directory"
        ) from error


def _open_error(directory: Path, error: OSError) -> StoreError:
    if isinstance(error, StoreError):
        return error
    if error.errno in NO_ROOM:
        return StoreFullError(f"{directory}: no space left on the disk; free some and start again")
    return StoreDirectoryError(f"{error.filename or directory}: {error.strerror}; the store cannot be opened")
