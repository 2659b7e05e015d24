"""Follows the log and feeds the files derived from it: the consume queues and the index.

Appended messages wait here, already decoded, until the log's confirm offset has passed them, so no record is parsed
twice. Only recovery parses records, because it has not written them.

    transaction type   consume queue   index
    none               yes             yes
    prepared           no              yes
    commit             yes             yes
    rolled back        no              no

Each round passes all messages before the confirm offset to every `Dispatcher` in the order of the list, and then calls
the arrival listeners: a message can be read and found by its key before they are called. The list is fixed, because
recovery must complete each dispatcher from a position in a checkpoint, as it does for these two.

The waiting messages are limited (`DispatchLimits`), so that a hanging disk cannot fill the memory. At the limit,
messages are refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec import Struct

from aerobee_store.clock import Clock
from aerobee_store.deferred import deferred
from aerobee_store.errors import StoreError
from aerobee_store.queues.batch_consume_queue import (
    BATCH_UNIT,
    NOT_COMPACTED,
    AnyQueue,
    BatchConsumeQueue,
    BatchUnits,
)
from aerobee_store.queues.consume_queue import UNIT, UNIT_DTYPE, ConsumeQueue
from aerobee_store.queues.filter_bitmaps import NO_BITMAP
from aerobee_store.queues.index_file import IndexService, IntArray
from aerobee_store.records.properties import index_hashes
from aerobee_store.running_flags import RunningFlags
from aerobee_store.stats import StoreStats

if TYPE_CHECKING:
    import numpy as np

    from aerobee_store.records.record_batch import RecordBatch
else:
    np = deferred("numpy")


_log = logging.getLogger(__name__)
_ALL: Final = 1 << 62
_NEW_QUEUE_WORK: Final = 8  # messages that take as long as the directory and the file of a queue

ArrivalListener = Callable[[str, int, int], None]
"""Called with topic, queue id and the queue's new end, once its units can be read."""


class DispatchEntry(NamedTuple):
    """The data of one record for queue and index. `queue` is None for records that are in no queue.

    `message_count` is that of an inner batch, whose queue is a batch consume queue. `others`: additional queues of the
    record (multi_dispatch.py), each with its queue offset there. `bitmap`: of its own queue's unit (filter_bitmaps.py).
    """

    queue: AnyQueue | None
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    topic: str
    keys: tuple[str, ...]
    message_count: int = 0
    others: Sequence[tuple[ConsumeQueue, int]] = ()
    bitmap: bytes = NO_BITMAP


class EntryBatch(Struct, frozen=True):
    """The same for many records of one queue that were appended together.

    The buffer of `records` may have other content by now: only sizes, tags and keys are used. `bitmaps`: of each unit;
    (): none has one.
    """

    queue: ConsumeQueue
    queue_offset: int
    records: RecordBatch
    physical_offsets: IntArray
    store_timestamp: int
    bitmaps: Sequence[bytes] = ()

    @property
    def count(self) -> int:
        return len(self.physical_offsets)

    def units(self) -> bytes:
        """The queue units of all records, as bytes."""
        units = np.empty(self.count, UNIT_DTYPE)
        units["physical_offset"] = self.physical_offsets
        units["size"] = self.records.size
        units["tags_code"] = self.records.tags_codes()
        return units.tobytes()

    def keys(self) -> tuple[IntArray, IntArray]:
        """The hash of each index key, and the physical offset of its record."""
        rows, hashes = self.records.index_hashes()
        return hashes, self.physical_offsets[rows]


class ReceivedUnits(NamedTuple):
    """Consecutive units of one queue. `stored`: the store times, for a queue with extended units."""

    queue: ConsumeQueue
    queue_offset: int
    units: bytes
    stored: Sequence[int]


class ReceivedRecords(Struct, frozen=True):
    """Records of any queues whose places another broker has assigned, because its log is copied.

    `hashes`, `key_offsets` and `key_timestamps`: the entries for the index, in its order.
    """

    units: Sequence[ReceivedUnits]
    batch_units: Sequence[tuple[BatchConsumeQueue, BatchUnits]]
    hashes: IntArray
    key_offsets: IntArray
    key_timestamps: IntArray
    count: int
    store_timestamp: int


class DispatchLimits(Struct, frozen=True):
    """The limits of what waits for dispatch. `count`: messages, where each additional queue of a message counts as one,
    and a batch in store layout as one; `size`: bytes of the log."""

    count: int
    size: int


class Dispatcher(Protocol):
    """A follower of the log. Errors are final and fail the store. The methods must not block.

    `error_flag`: the running flag that its errors set besides NOT_WRITEABLE; NONE for none.
    """

    error_flag: RunningFlags

    def put_entries(self, entries: Sequence[DispatchEntry]) -> None:
        """Take records that were appended one by one, in log order."""

    def put_batch(self, batch: EntryBatch) -> None:
        """Take records of one queue that were appended together."""

    def put_received(self, records: ReceivedRecords) -> None:
        """Take records of another broker's log."""


class QueueDispatcher:
    """Feeds the consume queues of every kind. `grown`: queues with new messages since it was last cleared."""

    error_flag = RunningFlags.LOGICS_QUEUE_ERROR

    def __init__(self) -> None:
        self.grown: dict[AnyQueue, None] = {}  # in order

    def put_entries(self, entries: Sequence[DispatchEntry]) -> None:
        units: dict[AnyQueue, list[bytes]] = {}
        stored: dict[AnyQueue, list[int]] = {}  # store times, of queues with extended units
        bitmaps: dict[AnyQueue, list[bytes]] = {}  # of the same queues
        first_offsets: dict[AnyQueue, int] = {}
        for entry in entries:
            queue = entry.queue
            if queue is None:
                continue
            if entry.message_count:
                unit = BATCH_UNIT.pack(
                    entry.physical_offset,
                    entry.size,
                    entry.tags_code,
                    entry.store_timestamp,
                    entry.queue_offset,
                    entry.message_count,
                    NOT_COMPACTED,
                    0,
                )
            else:
                unit = UNIT.pack(entry.physical_offset, entry.size, entry.tags_code)
            if queue in units:
                units[queue].append(unit)
            else:
                units[queue] = [unit]
                first_offsets[queue] = entry.queue_offset
            for other, queue_offset in entry.others:
                if other in units:
                    units[other].append(unit)
                else:
                    units[other] = [unit]
                    first_offsets[other] = queue_offset
                if other.extends:
                    stored.setdefault(other, []).append(entry.store_timestamp)
                    bitmaps.setdefault(other, []).append(NO_BITMAP)  # of another topic's subscriptions
            if queue.extends:
                stored.setdefault(queue, []).append(entry.store_timestamp)
                bitmaps.setdefault(queue, []).append(entry.bitmap)
        for queue, parts in units.items():
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            if queue in stored:
                data = queue.extended(data, stored[queue], bitmaps[queue] if any(bitmaps[queue]) else ())
            queue.put(first_offsets[queue], data)
        self.grown.update(dict.fromkeys(units))

    def put_batch(self, batch: EntryBatch) -> None:
        queue, units = batch.queue, batch.units()
        if queue.extends:
            units = queue.extended(units, [batch.store_timestamp] * batch.count, batch.bitmaps)
        queue.put(batch.queue_offset, units)
        self.grown[batch.queue] = None

    def put_received(self, records: ReceivedRecords) -> None:
        for queue, queue_offset, units, stored in records.units:
            if queue_offset < queue.max_offset:
                # The other broker has deleted the topic and created it again: its offsets restart.
                _log.warning("queue restarts at a lower offset offset=%d directory=%s", queue_offset, queue.directory)
                queue.truncate(queue_offset)
                gone = max(0, queue.max_offset - queue_offset)
                queue_offset, units, stored = queue_offset + gone, units[gone * UNIT.size :], stored[gone:]
            if units:
                queue.put(queue_offset, queue.extended(units, stored) if queue.extends else units)
                self.grown[queue] = None
        for batch_queue, batch_units in records.batch_units:
            batch_queue.complete(batch_units, unsynced=False)
            self.grown[batch_queue] = None


class IndexDispatcher:
    """Feeds the index."""

    error_flag = RunningFlags.INDEX_FILE_ERROR

    def __init__(self, index: IndexService, clock: Clock) -> None:
        self._index = index
        self._clock = clock

    def put_entries(self, entries: Sequence[DispatchEntry]) -> None:
        keys: list[tuple[str, str]] = []
        physical_offsets: list[int] = []
        timestamps: list[int] = []
        for entry in entries:
            for key in entry.keys:
                keys.append((entry.topic, key))
                physical_offsets.append(entry.physical_offset)
                timestamps.append(entry.store_timestamp)
        if keys:
            self._index.put(index_hashes(keys), physical_offsets, timestamps, self._clock.now_ms())

    def put_batch(self, batch: EntryBatch) -> None:
        hashes, physical_offsets = batch.keys()
        if len(hashes):
            timestamps = np.full(len(hashes), batch.store_timestamp, np.int64)
            self._index.put(hashes, physical_offsets, timestamps, self._clock.now_ms())

    def put_received(self, records: ReceivedRecords) -> None:
        if len(records.hashes):
            self._index.put(records.hashes, records.key_offsets, records.key_timestamps, self._clock.now_ms())


class Dispatch:
    """Single-threaded: used by the event loop, or by recovery before there is one."""

    def __init__(self, index: IndexService | None, clock: Clock, stats: StoreStats, limits: DispatchLimits) -> None:
        """`index` None: messages are not indexed."""
        self._stats = stats
        self._limits = limits
        self._queues = QueueDispatcher()
        self.dispatchers: list[Dispatcher] = [self._queues]
        if index is not None:
            self.dispatchers.append(IndexDispatcher(index, clock))
        self.arrival_listeners: list[ArrivalListener] = []
        self._at_work: Dispatcher | None = None
        self.dispatched = 0  # physical offset up to which queues and index are complete
        self.last_timestamp = 0  # store time of the last dispatched record
        self._failure: OSError | StoreError | None = None
        # The end of each append in the log, its entries or its batch, and the number of items that count for the limit.
        self._waiting: deque[tuple[int, Sequence[DispatchEntry], EntryBatch | ReceivedRecords | None, int]] = deque()
        self._waiting_items = 0  # waiting items that take memory individually
        self.waiting_count = 0  # messages appended but not dispatched

    def add(self, end: int, entries: Sequence[DispatchEntry], further: int = 0) -> None:
        """Add entries that end in the log before physical offset `end` and follow what was added before.

        `further`: number of additional queues of the entries.
        """
        count = len(entries)
        items = count + further
        self._waiting.append((end, entries, None, items))
        self.waiting_count += count
        self._waiting_items += items

    def add_batch(self, end: int, batch: EntryBatch | ReceivedRecords) -> None:
        """Like `add`, for a batch, which counts as one item."""
        self._waiting.append((end, (), batch, 1))
        self.waiting_count += batch.count
        self._waiting_items += 1

    def has_capacity(self, wrote: int, *, internal: bool) -> bool:
        """Whether another append may wait here, with a log that ends at `wrote`. Internal writes get twice the
        limit."""
        factor = 2 if internal else 1
        limits = self._limits
        return self._waiting_items < factor * limits.count and wrote - self.dispatched < factor * limits.size

    @property
    def error_flag(self) -> RunningFlags:
        """The flag of the dispatcher that raised an error; NONE without an error."""
        return self._at_work.error_flag if self._at_work is not None else RunningFlags.NONE

    def follow(self, confirm_offset: int, work_max: int = _ALL) -> bool:
        """Dispatch what was appended before the confirm offset; return whether that was everything.

        `work_max`: appends follow until they have so many messages, the others are left for the next call; a message in
        a queue without files counts as `_NEW_QUEUE_WORK`. OSError and StoreError are final: every later call raises
        them again.
        """
        if self._failure is not None:
            raise self._failure  # later entries would leave a gap after the lost ones
        try:
            self._put_until(confirm_offset, work_max)
        except (OSError, StoreError) as error:
            self._failure = error
            raise
        if self._queues.grown:
            self._notify()
        return not self._waiting or self._waiting[0][0] > confirm_offset

    def _put_until(self, confirm_offset: int, work_max: int) -> None:
        waiting = self._waiting
        ready: list[DispatchEntry] = []
        end = self.dispatched
        count = waiting_items = work = 0
        while waiting and waiting[0][0] <= confirm_offset and work < work_max:
            end, entries, batch, items = waiting.popleft()
            waiting_items += items
            if batch is None:
                ready += entries
                count += len(entries)
                work += len(entries)
                if entries and (queue := entries[0].queue) is not None and not queue.has_files:
                    work += _NEW_QUEUE_WORK
                continue
            self._put_entries(ready)
            ready = []
            for dispatcher in self.dispatchers:
                self._at_work = dispatcher
                if isinstance(batch, EntryBatch):
                    dispatcher.put_batch(batch)
                else:
                    dispatcher.put_received(batch)
            self.last_timestamp = batch.store_timestamp
            count += batch.count
            work += batch.count
        self._put_entries(ready)
        self._at_work = None
        self.dispatched = end
        self.waiting_count -= count
        self._waiting_items -= waiting_items
        self._stats.messages_dispatched += count

    def _put_entries(self, entries: Sequence[DispatchEntry]) -> None:
        if not entries:
            return
        for dispatcher in self.dispatchers:
            self._at_work = dispatcher
            dispatcher.put_entries(entries)
        self.last_timestamp = entries[-1].store_timestamp

    def _notify(self) -> None:
        grown, self._queues.grown = self._queues.grown, {}
        for queue in grown:
            for listener in self.arrival_listeners:
                listener(queue.topic, queue.queue_id, queue.max_offset)
