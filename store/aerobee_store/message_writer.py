"""Appends messages to the log: encodes them, assigns offsets, and hands them to dispatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from aerobee_store.clock import Clock
from aerobee_store.config import StoreConfig
from aerobee_store.deferred import deferred
from aerobee_store.durability.log_flush import Durability
from aerobee_store.errors import (
    InvalidMessageError,
    InvalidRecordError,
    StoreBusyError,
    StoreError,
)
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.batch_consume_queue import AnyQueue
from aerobee_store.queues.consume_queue import ConsumeQueue
from aerobee_store.queues.dispatch import Dispatch, DispatchEntry, EntryBatch
from aerobee_store.queues.filter_bitmaps import NO_BITMAP, FilterBitmaps
from aerobee_store.queues.multi_dispatch import (
    MultiDispatch,
    QueueKey,
    may_name_queues,
    names_queues,
    with_offsets,
    without_offsets,
)
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.records import properties, record
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC, DelayLevels
from aerobee_store.records.properties import Host
from aerobee_store.records.record import (
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_PREPARED,
    SYS_FLAG_STORE_HOST_V6,
    SYS_FLAG_TRANSACTION,
    Draft,
    Message,
)
from aerobee_store.records.record_template import TemplateMessage
from aerobee_store.stats import StoreStats

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aerobee_store.records import inner_batch, record_batch
    from aerobee_store.records.record_batch import RecordBatch
else:
    np = deferred("numpy")
    record_batch = deferred("aerobee_store.records.record_batch")
    inner_batch = deferred("aerobee_store.records.inner_batch")


class Appended(NamedTuple):
    """Where a message was stored."""

    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int

    @property
    def end(self) -> int:
        """The physical offset after the message, for `MessageStore.wait_stored`."""
        return self.physical_offset + self.size


class AppendedBatch(Struct, frozen=True):
    """Where records were stored that were appended together, with consecutive queue offsets. `count`: messages."""

    first_queue_offset: int
    count: int
    end: int
    store_timestamp: int


AnyMessage = Message | Draft | TemplateMessage
"""A message to append: as a whole, prepared earlier, or as what differs from a template."""
_NO_QUEUES: Final[Mapping[QueueKey, int]] = {}


class _RawBatch(Struct, frozen=True, gc=False):
    """An inner batch in store layout. `base_position`: of the digits of INNER_BASE."""

    record: RecordBatch
    raw: bytes
    base_position: int
    store_host: Host
    born_host: Host | None

    @property
    def size(self) -> int:
        return len(self.raw)

    def encode(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytearray:
        data = bytearray(self.raw)
        digits = inner_batch.base_digits(queue_offset)
        data[self.base_position : self.base_position + len(digits)] = digits
        hosts = self.store_host, self.born_host
        record_batch.write_place(self.record, data, [queue_offset], physical_offset, store_timestamp, *hosts)
        return data


class _Ready(Struct, frozen=True, gc=False):
    """A message that is checked, and encoded but for its place. `others`: its offsets in other queues that it names."""

    encoded: Draft | TemplateMessage | _RawBatch
    queue: AnyQueue | None
    topic: str
    tags_code: int
    keys: tuple[str, ...]
    bitmap: bytes = NO_BITMAP
    others: Mapping[QueueKey, int] = _NO_QUEUES
    message_count: int = 0
    """Of an inner batch."""


class MessageWriter:
    """The writing half of `MessageStore`, which documents the calls. Event loop only."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        dispatch: Dispatch,
        durability: Durability,
        stats: StoreStats,
        clock: Clock,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._durability = durability
        self._stats = stats
        self._clock = clock
        self._store_host_v6 = len(properties.encode_host(config.store_host)) > 8
        self._multi_dispatch = MultiDispatch(config.light_queues, config.multi_dispatch)
        self._levels = DelayLevels(config.delay_levels_seconds)
        self.filter_bitmaps: FilterBitmaps | None = None

    def append(
        self, messages: Sequence[AnyMessage], *, split_batch: bool = False, internal: bool = False
    ) -> list[Appended]:
        """Like MessageStore.append, which has checked that the store may be written."""
        others: Mapping[int, Mapping[QueueKey, int]] = {}
        if any(map(_is_unusual, messages)):
            if any(_has_flag(message, SYS_FLAG_INNER_BATCH) for message in messages):
                return self._append_inner_batch(messages)
            messages, others = self._named_queues(messages)
        now = self._clock.now_ms()
        ready: list[_Ready] = []
        for number, message in enumerate(messages):
            if isinstance(message, TemplateMessage):
                ready.append(self._ready_of_template(message))
            else:
                draft = message if isinstance(message, Draft) else self.draft(message, split_batch=split_batch)
                ready.append(self._ready_of_draft(draft, now, others.get(number, _NO_QUEUES)))
        return self._put(ready, now, split_batch=split_batch, internal=internal)

    def _put(
        self, ready: Sequence[_Ready], now: int, *, split_batch: bool = False, internal: bool = False
    ) -> list[Appended]:
        """Append messages at their places, all or none. `split_batch`: within one segment."""
        sizes = [each.encoded.size for each in ready]
        log, stats = self._log, self._stats
        total = sum(sizes)
        self._prepare([total] if split_batch else sizes, internal=internal)
        if split_batch:
            log.next_offset(total)
        appended: list[Appended] = []
        entries: list[DispatchEntry] = []
        further = 0
        for each, size in zip(ready, sizes, strict=True):
            queue, count = each.queue, each.message_count
            physical_offset = log.next_offset(size)
            queue_offset = 0 if queue is None else queue.next_offset
            log.append(each.encoded.encode(queue_offset, physical_offset, now))
            if queue is not None:
                queue.next_offset = queue_offset + (count or 1)
            taken = self._take_offsets(each.others) if each.others else ()
            further += len(taken)
            place = queue, queue_offset, physical_offset, size, each.tags_code, now
            entries.append(DispatchEntry(*place, each.topic, each.keys, count, taken, each.bitmap))
            appended.append(Appended(queue_offset, physical_offset, size, now))
            stats.messages_appended += count or 1
            stats.record_sizes[size.bit_length()] += 1
        stats.bytes_appended += total
        self._appended(entries, now, further)
        return appended

    def _ready_of_template(self, message: TemplateMessage) -> _Ready:
        template = message.template
        topic = template.topic
        self._check_body(message.body)
        queue = self._queue(topic, message.queue_id)
        bitmaps = self._bitmaps_for(queue)
        bitmap = NO_BITMAP if bitmaps is None else bitmaps.of_message(topic, template.properties(message))
        return _Ready(message, queue, topic, template.tags_code, message.index_keys, bitmap)

    def _ready_of_draft(self, draft: Draft, now: int, others: Mapping[QueueKey, int]) -> _Ready:
        message = draft.message
        self._check_body(message.body)
        queue = None if draft.sys_flag & SYS_FLAG_PREPARED else self._queue(message.topic, message.queue_id)
        bitmaps = self._bitmaps_for(queue)
        bitmap = NO_BITMAP if bitmaps is None else bitmaps.of_message(message.topic, _as_stored(message))
        return self._ready(draft, queue, now, bitmap=bitmap, others=others)

    def _ready(
        self,
        draft: Draft,
        queue: AnyQueue | None,
        now: int,
        *,
        bitmap: bytes = NO_BITMAP,
        others: Mapping[QueueKey, int] = _NO_QUEUES,
        message_count: int = 0,
    ) -> _Ready:
        message = draft.message
        raw = message.raw_properties
        values = message.properties if raw is None else properties.decode_properties(raw)
        topic = message.topic
        code = properties.tags_code(values.get(properties.TAGS))
        if topic == SCHEDULE_TOPIC:
            code = self._levels.unit_code(topic, values.get(properties.DELAY), now, code)
        rolled_back = message.sys_flag & SYS_FLAG_TRANSACTION == SYS_FLAG_TRANSACTION
        keys = () if rolled_back else _index_keys(values)
        return _Ready(draft, queue, topic, code, keys, bitmap, others, message_count)

    def _bitmaps_for(self, queue: ConsumeQueue | None) -> FilterBitmaps | None:
        """What computes the bitmaps of new units of this queue; None if they get none."""
        bitmaps = self.filter_bitmaps
        if bitmaps is None or queue is None or not queue.extends or not bitmaps.are_computed(queue.topic):
            return None
        return bitmaps

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """InvalidMessageError for a batch topic."""
        queue = self._queues.simple.get((topic, queue_id))
        return self._queues.simple_queue(topic, queue_id) if queue is None else queue

    def _check_body(self, body: bytes | bytearray | memoryview) -> None:
        size_max = self._config.body_size_max
        if len(body) > size_max:
            raise InvalidMessageError(f"the body has {len(body)} bytes; the limit is {size_max} (store.body_size_max)")

    def draft(self, message: Message, *, split_batch: bool = False) -> Draft:
        """Like MessageStore.draft."""
        config = self._config
        return Draft(message, store_host=config.store_host, property_crc=config.property_crc, split_batch=split_batch)

    def _named_queues(
        self, messages: Sequence[AnyMessage]
    ) -> tuple[Sequence[AnyMessage], dict[int, dict[QueueKey, int]]]:
        """The messages with their offsets in the queues that they name; and these offsets, by number of the message.

        The only change so far is that the queues are in the table. Raises LightQueuesFullError or InvalidMessageError.
        """
        whole = [message.message if isinstance(message, Draft) else message for message in messages]
        named = [() if isinstance(each, TemplateMessage) else self._multi_dispatch.named(each) for each in whole]
        queues = self._queues
        queues.make_room({key for keys in named for key in keys if key is not None})
        taken: Counter[QueueKey] = Counter()  # by earlier messages of this append
        changed: list[AnyMessage] = []
        others: dict[int, dict[QueueKey, int]] = {}
        for number, (message, keys) in enumerate(zip(whole, named, strict=True)):
            if isinstance(message, TemplateMessage):
                taken[message.template.topic, message.queue_id] += 1
                changed.append(message)
                continue
            if not message.sys_flag & SYS_FLAG_PREPARED:
                taken[message.topic, message.queue_id] += 1
            if not keys:
                changed.append(without_offsets(message))
                continue
            own = {key: queues.simple_queue(*key).next_offset + taken[key] for key in keys if key is not None}
            taken.update(own.keys())
            changed.append(with_offsets(message, [None if key is None else own[key] for key in keys]))
            if own:
                others[number] = own
        return changed, others

    def _take_offsets(self, offsets: Mapping[QueueKey, int]) -> list[tuple[ConsumeQueue, int]]:
        found = []
        for key, queue_offset in offsets.items():
            queue = self._queues.simple[key]
            assert queue.next_offset == queue_offset, "as counted when the offsets were written into the properties"
            queue.next_offset = queue_offset + 1
            found.append((queue, queue_offset))
        return found

    def _append_inner_batch(self, messages: Sequence[AnyMessage]) -> list[Appended]:
        """Inner batches come complete from a RocketMQ store, rarely and few at a time, so they are appended one by
        one."""
        if len(messages) != 1:
            raise InvalidMessageError("an inner batch must be the only message of its append")
        (message,) = messages
        assert not isinstance(message, TemplateMessage), "a template has no such flag"
        message = message.message if isinstance(message, Draft) else message
        self._check_body(message.body)
        if message.sys_flag & SYS_FLAG_TRANSACTION:
            raise InvalidMessageError("an inner batch cannot be part of a transaction")
        queue = self._queues.batch_queue_unless_simple(message.topic, message.queue_id)
        if queue is None:
            raise InvalidMessageError(f"topic {message.topic!r} is not a batch topic and does not take inner batches")
        message, count = inner_batch.placed(message, queue.next_offset)
        now = self._clock.now_ms()
        return self._put([self._ready(self.draft(message), queue, now, message_count=count)], now)

    def append_records(
        self, topic: str, queue_id: int, batch: RecordBatch, born_host: Host | None = None
    ) -> AppendedBatch:
        """Like MessageStore.append_records, which has checked that the store may be written."""
        self._check_records(batch, topic, queue_id)
        if batch.any_has(SYS_FLAG_INNER_BATCH):
            return self._append_batch_records(topic, queue_id, batch, born_host)
        count = len(batch)
        total = batch.end - int(batch.start[0])
        self._prepare([total] if self._log.fits(total) else batch.size.tolist())
        queue = self._queues.simple_queue(topic, queue_id)
        now = self._clock.now_ms()
        first = 0
        first_queue_offset = queue.next_offset
        while first < count:
            # All records that fit into the segment are copied together.
            physical_offset = self._log.next_offset(int(batch.size[first]))
            free_size = self._log.segment_size - physical_offset % self._log.segment_size - record.BLANK_SIZE_MIN
            last = count
            if batch.end - int(batch.start[first]) > free_size:
                ends = batch.start[first:] + batch.size[first:] - batch.start[first]
                last = first + int(np.searchsorted(ends, free_size, side="right"))
            self._append_slice(queue, batch, first, last, physical_offset, now, born_host)
            first = last
        self._stats.messages_appended += count
        self._stats.count_sizes(batch.size)
        return AppendedBatch(first_queue_offset, count, self._log.wrote, now)

    def _check_records(self, batch: RecordBatch, topic: str, queue_id: int) -> None:
        if not len(batch):
            raise InvalidMessageError(f"no valid record: {batch.stop.reason.value}: {batch.stop.detail}")
        _check_queue(batch, topic, queue_id)
        if batch.any_has(SYS_FLAG_TRANSACTION):
            row = _first(batch.sys_flag & SYS_FLAG_TRANSACTION)
            raise InvalidRecordError(row, "a transactional record cannot be appended in store layout")
        wide = (batch.sys_flag & SYS_FLAG_STORE_HOST_V6 != 0) != self._store_host_v6
        if np.count_nonzero(wide):
            version = "IPv6" if self._store_host_v6 else "IPv4"
            raise InvalidRecordError(
                int(wide.argmax()), f"it must have space for an {version} store host: bit 0x20 of its system flags"
            )
        if names_queues(batch):
            raise InvalidMessageError(
                f"a record with {properties.INNER_MULTI_DISPATCH} or {properties.INNER_MULTI_QUEUE_OFFSET} cannot be "
                f"appended in store layout"
            )

    def _append_slice(
        self,
        queue: ConsumeQueue,
        batch: RecordBatch,
        first: int,
        last: int,
        physical_offset: int,
        now: int,
        born_host: Host | None,
    ) -> None:
        begin = int(batch.start[first])
        data = bytearray(batch.buffer[begin : int(batch.start[last - 1] + batch.size[last - 1])])
        part = batch.slice(first, last)
        part.keep_properties()  # the caller owns the buffer, and dispatch comes later
        queue_offset = queue.next_offset
        queue.next_offset += last - first
        _, physical_offsets = record_batch.write_place(
            part,
            data,
            np.arange(queue_offset, queue.next_offset),
            physical_offset,
            now,
            self._config.store_host,
            born_host,
        )
        computed = self._bitmaps_for(queue)
        bitmaps = () if computed is None else computed.of_records(queue.topic, part)
        self._log.append(data, is_one=last - first == 1)
        self._stats.bytes_appended += len(data)
        self._dispatch.add_batch(self._log.wrote, EntryBatch(queue, queue_offset, part, physical_offsets, now, bitmaps))
        self._durability.appended(now)

    def _append_batch_records(
        self, topic: str, queue_id: int, batch: RecordBatch, born_host: Host | None
    ) -> AppendedBatch:
        """Append records that are inner batches: few records, each with many messages."""
        queue = self._queues.batch_queue_unless_simple(topic, queue_id)
        if queue is None:
            raise InvalidRecordError(
                _first(batch.sys_flag & SYS_FLAG_INNER_BATCH),
                f"an inner batch; topic {topic!r} has no batch consume queues, so it takes none",
            )
        store_host = self._config.store_host
        ready: list[_Ready] = []
        for row, (count, base_position, values) in enumerate(_checked_batches(batch)):
            part = batch.slice(row, row + 1)
            encoded = _RawBatch(part, bytes(batch.raw(row)), base_position, store_host, born_host)
            code, keys = properties.tags_code(values.get(properties.TAGS)), _index_keys(values)
            ready.append(_Ready(encoded, queue, topic, code, keys, message_count=count))
        first, now = queue.next_offset, self._clock.now_ms()
        end = self._put(ready, now)[-1].end
        return AppendedBatch(first, queue.next_offset - first, end, now)

    def _prepare(self, sizes: list[int], *, internal: bool = False) -> None:
        try:
            if not self._dispatch.has_capacity(self._log.wrote, internal=internal):
                self._make_room()
            try:
                self._log.prepare(sizes, internal=internal)
            except StoreBusyError:
                if not self._durability.free_buffer():
                    raise
                self._log.prepare(sizes, internal=internal)
        except OSError as error:
            raise self._durability.fail(error) from error

    def _make_room(self) -> None:
        """Handle too much waiting for dispatch: without services dispatch now, otherwise refuse the append."""
        if not self._durability.has_services:
            try:
                self._durability.flush()
            except StoreError as error:
                raise self._durability.fail(error) from error
            return
        self._durability.request_sync()
        self._stats.busy_refusals += 1
        waiting = self._log.wrote - self._dispatch.dispatched
        raise StoreBusyError(
            f"{self._config.directory}: {self._dispatch.waiting_count} messages ({waiting} bytes) wait for the "
            f"disk, the limit of store.dispatch_waiting_count_max or store.dispatch_waiting_bytes_max; try again later"
        )

    def _appended(self, entries: Sequence[DispatchEntry], now: int, further: int = 0) -> None:
        self._dispatch.add(self._log.wrote, entries, further)
        self._durability.appended(now)


def _is_unusual(message: AnyMessage) -> bool:
    """Whether the message is an inner batch, or may name further queues. A template is of neither kind."""
    if isinstance(message, TemplateMessage):
        return False
    whole = message.message if isinstance(message, Draft) else message
    return bool(whole.sys_flag & SYS_FLAG_INNER_BATCH) or may_name_queues(whole)


def _has_flag(message: AnyMessage, flag: int) -> bool:
    return not isinstance(message, TemplateMessage) and bool(message.sys_flag & flag)


def _as_stored(message: Message) -> dict[str, str]:
    """The properties as a reader gets them: without empty values, for example."""
    raw = message.raw_properties
    return properties.decode_properties(properties.encode_properties(message.properties) if raw is None else raw)


def _first(marks: npt.NDArray[np.int64]) -> int:
    """The number of the first value that is not 0."""
    return int((marks != 0).argmax())


def _check_queue(batch: RecordBatch, topic: str, queue_id: int) -> None:
    other = batch.queue_id != queue_id
    if batch.topics != (topic,):
        of_topic = np.array([name != topic for name in batch.topics])
        other = other | of_topic[batch.topic_index]
    if np.count_nonzero(other):
        row = int(other.argmax())
        raise InvalidRecordError(
            row,
            f"it is for queue {int(batch.queue_id[row])} of topic {batch.topic(row)!r}, "
            f"not for queue {queue_id} of topic {topic!r}",
        )


def _checked_batches(batch: RecordBatch) -> list[tuple[int, int, dict[str, str]]]:
    """For each record: the number of its messages, the position of INNER_BASE's digits, and its properties."""
    checked = []
    size_left = inner_batch.REQUEST_SIZE_MAX
    for row, sys_flag in enumerate(batch.sys_flag.tolist()):
        try:
            if not sys_flag & SYS_FLAG_INNER_BATCH:
                raise InvalidMessageError(
                    "it is not an inner batch, although other records are; append them separately"
                )
            raw_properties = bytes(batch.raw_properties(row))
            count = inner_batch.message_count(raw_properties)
            place = int(batch.properties_start[row] - batch.start[row]) + inner_batch.base_position(raw_properties)
            size_left -= inner_batch.check_count(batch.body(row), sys_flag, count, size_max=size_left)
        except InvalidMessageError as error:
            raise InvalidRecordError(row, str(error)) from error
        checked.append((count, place, properties.decode_properties(raw_properties)))
    return checked


def _index_keys(values: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of a message with these properties, as the index has them."""
    unique_key = values.get(properties.UNIQ_KEY)
    keys = values.get(properties.KEYS)
    index_keys = (unique_key,) if unique_key else ()
    return (*index_keys, *properties.split_keys(keys)) if keys else index_keys
