"""Reads messages of a store: by queue, by physical offset, by key, by time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from aerobee_store.deferred import deferred
from aerobee_store.errors import CorruptRecordError, RecordNotFoundError
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.maintenance.unit_repair import REPAIRS_PER_READ, UnitRepair
from aerobee_store.queues import multi_dispatch
from aerobee_store.queues.batch_consume_queue import BatchConsumeQueue
from aerobee_store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from aerobee_store.queues.filter_bitmaps import FilterBits
from aerobee_store.queues.index_file import IndexService
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.topic_removal import DeletedTopics
from aerobee_store.records import properties, record
from aerobee_store.records.record import Message, Record, TransactionType
from aerobee_store.stats import StoreStats

if TYPE_CHECKING:
    import numpy as np

    from aerobee_store.queues.batch_consume_queue import BatchUnits
    from aerobee_store.queues.consume_queue import Units
    from aerobee_store.records import inner_batch
else:
    np = deferred("numpy")
    inner_batch = deferred("aerobee_store.records.inner_batch")


_log = logging.getLogger(__name__)

# Units examined by one read, as in RocketMQ (maxFilterMessageSize). Bounds the work of a filter with few matches.
_SCAN_UNITS_MAX: Final = 800
# The bytes of a queue: all units of a short one, some blocks of a longer one. Some 10 or 50 microseconds.
_EXACT_UNITS_MAX: Final = 1024
_SAMPLE_BLOCKS: Final = 8
_SAMPLE_UNITS: Final = 64

ReadStatus = Literal["found", "empty", "no-match", "offset-too-small", "offset-at-end", "offset-too-large"]


class ReadResult(Struct, frozen=True):
    """Messages of one queue. The next read begins at `next_offset`. `lost` counts units without a readable record."""

    status: ReadStatus
    records: list[Record]
    next_offset: int
    min_offset: int
    max_offset: int
    lost: int = 0


class QueueBytes(Struct, frozen=True):
    """The bytes of the records of a queue."""

    size: int
    is_estimated: bool


class MessageReader:
    """The reading half of `MessageStore`, which documents the calls."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: IndexService,
        deleted: DeletedTopics,
        repair: UnitRepair,
        stats: StoreStats,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._deleted = deleted
        self._repair = repair
        self._stats = stats

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
        """Like MessageStore.read, which has checked that the store may be read."""
        queue = self._queues.simple.get((topic, queue_id))
        if queue is None:
            batch_queue = self._queues.batch.get((topic, queue_id))
            if batch_queue is not None:
                return self._read_inner_batches(batch_queue, queue_offset, max_count, max_bytes, tags)
            return ReadResult("empty", [], 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= queue_offset < high:
            return outside(queue_offset, low, high)
        units = queue.units(queue_offset, max(_SCAN_UNITS_MAX, max_count) if tags is not None else max_count)
        codes = None if tags is None else {properties.tags_code(tag) for tag in tags}
        records: list[Record] = []
        size = lost = taken = 0
        repairs_max = self._repair.searches + REPAIRS_PER_READ
        unit_codes: Iterable[int | None] = queue.tags_codes(units) if codes is not None else repeat(None)
        for (physical_offset, unit_size, _), code in zip(units.tolist(), unit_codes, strict=False):
            if code is not None and codes is not None and code not in codes:
                taken += 1
                continue
            if unit_size == FILLER_SIZE:
                taken += 1
                lost += 1
                continue
            if records and (len(records) >= max_count or size + unit_size > max_bytes):
                break
            if self._repair.searches >= repairs_max:
                break
            taken += 1
            try:
                found = self._record_of(queue, queue_offset + taken - 1, physical_offset)
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
            if tags is not None and found.tag not in tags:
                continue
            records.append(found)
            size += unit_size
        self._stats.messages_read += len(records)
        self._stats.bytes_read += size
        return ReadResult("found" if records else "no-match", records, queue_offset + taken, low, high, lost)

    def may_match(self, topic: str, queue_id: int, queue_offset: int, count: int, bits: FilterBits) -> list[bool]:
        """Like MessageStore.may_match."""
        queue = self._queues.simple.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return []
        return queue.may_match(queue_offset, count, bits)

    def _read_inner_batches(
        self, queue: BatchConsumeQueue, queue_offset: int, max_count: int, max_bytes: int, tags: frozenset[str] | None
    ) -> ReadResult:
        """Like `read`, but each message of a batch on its own. Filters by the message's tag, because the unit has the
        record's tag."""
        low, high = queue.min_offset, queue.max_offset
        if not low <= queue_offset < high:
            return outside(queue_offset, low, high)
        records: list[Record] = []
        size = lost = 0
        position = queue_offset
        scan_end = high if tags is None else queue_offset + _SCAN_UNITS_MAX
        first = queue.number_at(queue_offset)
        units = queue.units(first, _SCAN_UNITS_MAX if tags is not None else max_count)
        repairs_max = self._repair.searches + REPAIRS_PER_READ
        for number, (physical_offset, _, _, _, base, count, _, _) in enumerate(units.tolist(), first):
            if len(records) >= max_count or position >= scan_end or self._repair.searches >= repairs_max:
                break
            lost += max(0, base - position)  # messages without a unit
            position = max(position, base)
            try:
                messages = self._messages_of(queue, number, physical_offset, base, count)
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
        self._stats.messages_read += len(records)
        self._stats.bytes_read += size
        return ReadResult("found" if records else "no-match", records, position, low, high, lost)

    def _record_of(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> Record:
        """The record of a queue offset: at the place in its unit, or, if it is not there, at its place in the log.

        Raises RecordNotFoundError or CorruptRecordError.
        """
        try:
            return _as_read_from(queue, queue_offset, self._log.record_at(physical_offset))
        except (RecordNotFoundError, CorruptRecordError) as error:
            place = self._repair.repair(queue, queue_offset)
            if place is None:
                self._count_failure(error)
                raise
        return _as_read_from(queue, queue_offset, self.record_at(place.physical_offset))

    def _messages_of(
        self, queue: BatchConsumeQueue, number: int, physical_offset: int, base: int, count: int
    ) -> list[Record]:
        """The same for a batch queue: the messages of the inner batch that unit `number` names."""
        try:
            return _unpacked(queue, base, count, self._log.record_at(physical_offset))
        except (RecordNotFoundError, CorruptRecordError) as error:
            place = self._repair.repair(queue, number)
            if place is None:
                self._count_failure(error)
                raise
        return _unpacked(queue, base, count, self.record_at(place.physical_offset))

    def _count_failure(self, error: Exception) -> None:
        if isinstance(error, CorruptRecordError):
            self._stats.checksum_failures += 1

    def record_at(self, physical_offset: int) -> Record:
        """The verified record at a physical offset. Raises RecordNotFoundError or CorruptRecordError."""
        try:
            return self._log.record_at(physical_offset)
        except CorruptRecordError:
            self._stats.checksum_failures += 1
            raise

    def record_bytes(self, found: Record) -> bytes:
        """Like MessageStore.record_bytes."""
        data = bytes(self._log.bytes_at(found.physical_offset, found.size))
        if record.place_of(data) == (found.size, found.queue_id, found.queue_offset, found.physical_offset):
            return data
        # The record was read as a message of another queue, or from inside a batch.
        message = Message(
            topic=found.topic,
            queue_id=found.queue_id,
            body=found.body,
            raw_properties=found.raw_properties,
            flag=found.flag,
            sys_flag=found.sys_flag,
            born_timestamp=found.born_timestamp,
            born_host=found.born_host,
            reconsume_times=found.reconsume_times,
            prepared_transaction_offset=found.prepared_transaction_offset,
        )
        return record.encode(
            message,
            queue_offset=found.queue_offset,
            physical_offset=found.physical_offset,
            store_timestamp=found.store_timestamp,
            store_host=found.store_host,
            property_crc=True,
        )

    def query(self, topic: str, key: str, *, max_count: int, max_bytes: int, begin: int, end: int) -> list[Record]:
        """Like MessageStore.query."""
        found: list[Record] = []
        size = 0
        for physical_offset in self.places_of_key(topic, key, begin, end):
            if physical_offset is None:
                continue
            candidate = self.record_with_key(topic, key, physical_offset, begin, end)
            if candidate is None:
                continue
            size += candidate.size
            if found and size > max_bytes:
                break
            found.append(candidate)
            if len(found) >= max_count:
                break
        return sorted(found, key=lambda item: item.physical_offset)

    def places_of_key(self, topic: str, key: str, begin: int, end: int) -> Iterator[int | None]:
        """Like MessageStore.places_of_key."""
        seen: set[int] = set()
        for physical_offset in self._index.find(properties.index_hash(topic, key), begin, end):
            if physical_offset is None:
                yield None
            elif physical_offset not in seen:
                seen.add(physical_offset)
                yield physical_offset

    def record_with_key(self, topic: str, key: str, physical_offset: int, begin: int, end: int) -> Record | None:
        """Like MessageStore.record_with_key."""
        try:
            candidate = self.record_at(physical_offset)
        except (RecordNotFoundError, CorruptRecordError):
            return None
        if physical_offset < self._deleted.end_of(topic) or candidate.topic != topic:
            return None
        if not begin <= candidate.store_timestamp <= end or candidate.transaction_type is TransactionType.ROLLBACK:
            return None
        return candidate if key == candidate.unique_key or key in candidate.keys else None

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """Like MessageStore.offset_by_time."""
        queue = self._queues.find(topic, queue_id)
        if isinstance(queue, BatchConsumeQueue):
            return queue.offset_by_time(timestamp, boundary)
        return queue.offset_by_time(timestamp, boundary, self._log.store_timestamp_at) if queue is not None else 0

    def queue_bytes(self, topic: str, queue_id: int) -> QueueBytes:
        """Like MessageStore.queue_bytes. A filler unit has no record."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return QueueBytes(0, False)
        first, end = queue.unit_numbers
        if end - first <= _EXACT_UNITS_MAX:
            return QueueBytes(_record_bytes(queue.units(first, end - first)), False)
        # Blocks at equal distances, the first and the last one included.
        step = (end - first - _SAMPLE_UNITS) / (_SAMPLE_BLOCKS - 1)
        starts = [first + round(step * number) for number in range(_SAMPLE_BLOCKS)]
        size = sum(_record_bytes(queue.units(start, _SAMPLE_UNITS)) for start in starts)
        return QueueBytes(round(size * (end - first) / (_SAMPLE_BLOCKS * _SAMPLE_UNITS)), True)

    def store_timestamp_at(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """The store time of the message with this queue offset, or None if there is none."""
        physical_offset = self.physical_offset_at(topic, queue_id, queue_offset)
        return None if physical_offset is None else self._log.store_timestamp_at(physical_offset)

    def physical_offset_at(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """The physical offset of the message with this queue offset, or None if there is none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        if isinstance(queue, BatchConsumeQueue):
            return queue.physical_offset_at(queue_offset)
        unit = queue.units(queue_offset, 1)
        if not len(unit) or int(unit[0]["size"]) == FILLER_SIZE:
            return None
        return int(unit[0]["physical_offset"])


def _record_bytes(units: Units | BatchUnits) -> int:
    sizes = units["size"]
    return int(sizes[sizes != FILLER_SIZE].sum(dtype=np.int64))


def outside(queue_offset: int, low: int, high: int) -> ReadResult:
    """The answer to a read of a queue offset outside low..high-1."""
    if queue_offset < low:
        return ReadResult("offset-too-small", [], low, low, high)
    if not high:
        return ReadResult("empty", [], 0, 0, 0)
    return ReadResult("offset-at-end" if queue_offset == high else "offset-too-large", [], high, low, high)


def _as_read_from(queue: ConsumeQueue, queue_offset: int, found: Record) -> Record:
    """The record as seen from this queue. CorruptRecordError if it belongs to another one."""
    place = queue.topic, queue.queue_id, queue_offset
    if (found.topic, found.queue_id, found.queue_offset) == place:
        return found
    if is_also_at(found, place):
        return multi_dispatch.as_read_from(found, queue.queue_id, queue_offset)
    raise CorruptRecordError(
        f"it is message {found.topic}/{found.queue_id}/{found.queue_offset}, not the one in its queue unit",
        physical_offset=found.physical_offset,
    )


def _unpacked(queue: BatchConsumeQueue, base: int, count: int, found: Record) -> list[Record]:
    """The messages of an inner batch. CorruptRecordError if it is another one."""
    messages = inner_batch.unpack(found)
    first = messages[0]
    if (first.topic, first.queue_id, first.queue_offset, len(messages)) != (queue.topic, queue.queue_id, base, count):
        raise CorruptRecordError(
            f"it holds {len(messages)} messages of {first.topic}/{first.queue_id} from offset {first.queue_offset} on, "
            f"its unit says {count} of {queue.topic}/{queue.queue_id} from {base} on",
            physical_offset=found.physical_offset,
        )
    return messages


def is_also_at(found: Record, place: tuple[str, int, int]) -> bool:
    """Whether a record names this topic, queue id and queue offset in addition to its own."""
    places = multi_dispatch.AS_RECORDED.places(
        found.topic, found.queue_id, found.sys_flag, found.properties, found.physical_offset
    )
    return places.get(place[:2]) == place[2]
