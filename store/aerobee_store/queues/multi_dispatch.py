"""Messages in several queues: RocketMQ's multi-dispatch, and its light queues (LMQ).

A record is stored in the log once. Two of its properties list additional queues that refer to it, separated by commas:

    INNER_MULTI_DISPATCH      set by the sender         %LMQ%room-7,%LMQ%room-9
    INNER_MULTI_QUEUE_OFFSET  set by the store          41,7

The second property contains the queue offset in each of these queues, in the same order; it is empty for a name without
a queue. A name that begins with `%LMQ%` is a *light queue*, and its queue id is 0. Any other name is a topic, with the
queue id of the record (`StoreConfig.multi_dispatch`, off by default). Records of retry topics, of the broker's own
topics and of uncommitted transactions, and inner batches, are only in their own queue.

An impossible offset is ignored: the message with offset n must have at least n records of `RECORD_SIZE_MIN` bytes
before it in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import properties
from aerobee_store.records.decimals import decimal
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC
from aerobee_store.records.record import RECORD_SIZE_MIN, SYS_FLAG_INNER_BATCH, SYS_FLAG_PREPARED, Message, Record
from aerobee_store.records.topic_names import LIGHT_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX

if TYPE_CHECKING:
    from aerobee_store.records.record_batch import RecordBatch


LMQ_QUEUE_ID: Final = 0
NAME_SEPARATOR: Final = ","
NAMES_MAX: Final = 1000
"""Queues that one message may name: each takes a unit, a counter and a part of the properties."""

_NAME_SIZE_MAX: Final = 255  # bytes of a file name
_BYTES_NAME: Final = b"INNER_MULTI_"
# a byte of the prefix: searching for one byte takes a tenth of the time, and most properties do not contain it
_RARE_BYTE: Final = b"L"

QueueKey = tuple[str, int]
"""Topic and queue id."""


def is_light(topic: str) -> bool:
    """Whether the topic is the name of a light queue."""
    return topic.startswith(LIGHT_PREFIX)


class MultiDispatch(Struct, frozen=True):
    """Which names are dispatched. `light_queues`: names with `%LMQ%`; `other_topics`: all others."""

    light_queues: bool = True
    other_topics: bool = False

    @property
    def is_off(self) -> bool:
        return not (self.light_queues or self.other_topics)

    def named(self, message: Message) -> list[QueueKey | None]:
        """The queues that a message names, in its order; None for an unusable name. Empty if all are unusable.

        A name is unusable if it cannot be a directory name, or is the message's own queue. A queue may be named twice.
        Raises InvalidMessageError for more names than `NAMES_MAX`.
        """
        raw = message.raw_properties
        values = message.properties if raw is None else properties.decode_properties(raw)
        names = values.get(properties.INNER_MULTI_DISPATCH)
        if not names or not _is_dispatched(message.topic, message.sys_flag):
            return []
        if names.count(NAME_SEPARATOR) >= NAMES_MAX:
            raise InvalidMessageError(
                f"{properties.INNER_MULTI_DISPATCH}: {names.count(NAME_SEPARATOR) + 1} queue names; "
                f"the limit is {NAMES_MAX}"
            )
        found = self._queues(names, message.topic, message.queue_id)
        return found if any(key is not None for key in found) else []

    def places(
        self, topic: str, queue_id: int, sys_flag: int, values: Mapping[str, str], physical_offset: int
    ) -> dict[QueueKey, int]:
        """The queue offset of a stored record in each additional queue that it names."""
        names = values.get(properties.INNER_MULTI_DISPATCH)
        offsets = values.get(properties.INNER_MULTI_QUEUE_OFFSET)
        if not names or not offsets or not _is_dispatched(topic, sys_flag):
            return {}
        found: dict[QueueKey, int] = {}
        for key, text in zip(self._queues(names, topic, queue_id), offsets.split(NAME_SEPARATOR), strict=False):
            offset = decimal(text)
            if key is not None and offset is not None and offset * RECORD_SIZE_MIN <= physical_offset:
                found.setdefault(key, offset)
        return found

    def batch_places(self, batch: RecordBatch) -> Iterator[tuple[int, QueueKey, int]]:
        """Record number, queue and queue offset, for every additional queue that a record of the batch names, in log
        order."""
        for row in batch.rows_with(properties.INNER_MULTI_DISPATCH).tolist():
            found = self.places(
                batch.topic(row),
                int(batch.queue_id[row]),
                int(batch.sys_flag[row]),
                batch.record(row).properties,
                int(batch.physical_offset[row]),
            )
            for key, offset in found.items():
                yield row, key, offset

    def _queues(self, names: str, topic: str, queue_id: int) -> list[QueueKey | None]:
        own = topic, queue_id
        found: list[QueueKey | None] = []
        for name in names.split(NAME_SEPARATOR):
            light = is_light(name)
            key = name, LMQ_QUEUE_ID if light else queue_id
            counts = self.light_queues if light else self.other_topics
            found.append(key if counts and key != own and _is_queue_name(name) else None)
        return found


AS_RECORDED: Final = MultiDispatch(light_queues=True, other_topics=True)
"""For readers that do not know the store's configuration: offsets in a record were assigned by the store."""


def with_offsets(message: Message, offsets: list[int | None]) -> Message:
    """The message with its queue offset in each named queue; None for a name without a queue."""
    raw = message.raw_properties
    values = dict(message.properties) if raw is None else properties.decode_properties(raw)
    text = NAME_SEPARATOR.join("" if offset is None else str(offset) for offset in offsets)
    values[properties.INNER_MULTI_QUEUE_OFFSET] = text
    return replace(message, properties=values, raw_properties=None)


def without_offsets(message: Message) -> Message:
    """The message without queue offsets that the store has not assigned: senders must not choose them."""
    raw = message.raw_properties
    values = dict(message.properties) if raw is None else properties.decode_properties(raw)
    if values.pop(properties.INNER_MULTI_QUEUE_OFFSET, None) is None:
        return message
    return replace(message, properties=values, raw_properties=None)


def may_name_queues(message: Message) -> bool:
    """Whether the message may have one of the two properties; a quick check that excludes nearly all messages."""
    raw = message.raw_properties
    if raw is not None:
        return _BYTES_NAME in raw
    values = message.properties
    return properties.INNER_MULTI_DISPATCH in values or properties.INNER_MULTI_QUEUE_OFFSET in values


def names_queues(batch: RecordBatch) -> bool:
    """Whether a record of the batch names queues or has offsets in them. One search is nearly always enough."""
    names = (properties.INNER_MULTI_DISPATCH, properties.INNER_MULTI_QUEUE_OFFSET)
    common = batch.common_property_names()
    if common is not None:
        return any(name.encode() in common for name in names)
    if not (batch.properties_contain(_RARE_BYTE) and batch.properties_contain(_BYTES_NAME)):
        return False
    return any(value is not None for name in names for value in batch.property_bytes(name))


def as_read_from(record: Record, queue_id: int, queue_offset: int) -> Record:
    """The record as a message of one of its additional queues, with the queue id and offset of that queue.

    The topic remains the one to which the record was sent.
    """
    return replace(record, queue_id=queue_id, queue_offset=queue_offset)


def _is_dispatched(topic: str, sys_flag: int) -> bool:
    if sys_flag & (SYS_FLAG_PREPARED | SYS_FLAG_INNER_BATCH):
        return False
    return topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, SYSTEM_TOPIC_PREFIX))


def _is_queue_name(name: str) -> bool:
    """Whether the name is a valid directory name and cannot point to another place on the disk."""
    if not name or name in (".", "..") or not name.isprintable() or "/" in name or "\\" in name:
        return False
    return len(name.encode("utf-8", "replace")) <= _NAME_SIZE_MAX
