"""Several messages in the body of one record, as RocketMQ keeps them for topics with `queue.type=BatchCQ`.

The record has SYS_FLAG_INNER_BATCH and the properties INNER_NUM (how many messages) and INNER_BASE (the queue offset of
the first). Its body is, message after message,

    offset  size  field
         0     4  total_size       bytes of this message, this field included
         4     4  magic            unused here
         8     4  body_crc         unused here: the record's checksums cover it
        12     4  flag             the application's
        16     4  body_size
        20     -  body
         -     2  properties_size
         -     -  properties
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from aerobee_store.errors import CorruptRecordError, InvalidMessageError
from aerobee_store.records import properties
from aerobee_store.records.compression import DecompressionError, decompress
from aerobee_store.records.decimals import decimal
from aerobee_store.records.record import (
    SIZE_MAX,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_STORE_HOST_V6,
    SYS_FLAG_UNWRAP,
    Message,
    Record,
    record_crc,
)
from aerobee_store.records.record_columns import Integers, find_starts, items

COUNT_MAX: Final = 0x7FFF
"""Messages in one record: a unit has 15 bits for them."""
BODY_SIZE_MAX: Final = 64 << 20
"""Limit of a decompressed body."""
REQUEST_SIZE_MAX: Final = 16 << 20
"""Limit of the decompressed bodies of all inner batches of one append: decompressing blocks the event loop."""

_HEAD: Final = struct.Struct(">iiiii")
_PROPERTIES_SIZE: Final = struct.Struct(">h")
FLAG_POSITION: Final = 12
"""The position of the flag in a message."""
_ITEM_SIZE_MIN: Final = _HEAD.size + _PROPERTIES_SIZE.size
assert _ITEM_SIZE_MIN == 22, "the table above and the structs must agree"
_I32: Final = np.dtype(">i4")
_I16: Final = np.dtype(">i2")

SYS_FLAGS: Final = SYS_FLAG_INNER_BATCH | SYS_FLAG_UNWRAP
"""System flags of an inner batch; combined with the flags of compression if its body is compressed."""
BASE_DIGITS: Final = 18
"""Digits of INNER_BASE in a record that is appended in store layout, so that the record keeps its size."""
_BASE: Final = properties.INNER_BASE.encode() + b"\x01"


class BatchPlace(NamedTuple):
    """The queue offsets of the messages in a record."""

    base_offset: int
    message_count: int


def place_of(values: dict[str, str]) -> BatchPlace | None:
    """The place in the properties of a record; None for a record that lacks them and gets no unit in RocketMQ."""
    base, count = decimal(values.get(properties.INNER_BASE)), decimal(values.get(properties.INNER_NUM))
    if base is None or count is None or not 1 <= count <= COUNT_MAX:
        return None
    return BatchPlace(base, count)


def check_count(body: bytes | memoryview, sys_flag: int, count: int, *, size_max: int = BODY_SIZE_MAX) -> int:
    """Raise InvalidMessageError unless the body is a batch of this many messages; return its decompressed size."""
    try:
        found = columns(body, sys_flag, size_max=size_max)
    except CorruptRecordError as error:
        raise InvalidMessageError(f"the inner batch has an invalid body: {error.reason}") from error
    if len(found) != count:
        raise InvalidMessageError(f"an inner batch of {len(found)} messages claims to have {count}")
    return len(found.body)


def placed(message: Message, base_offset: int) -> tuple[Message, int]:
    """An inner batch with its queue offset and number of messages.

    INNER_BASE is added where it is missing. Raises InvalidMessageError for a batch without INNER_NUM, with another
    number of messages in its body, or with another queue offset.
    """
    raw = message.raw_properties
    values = dict(message.properties) if raw is None else properties.decode_properties(raw)
    count = decimal(values.get(properties.INNER_NUM))
    if count is None or not 1 <= count <= COUNT_MAX:
        raise InvalidMessageError(
            f"an inner batch needs the property {properties.INNER_NUM}, 1 to {COUNT_MAX}, "
            f"not {values.get(properties.INNER_NUM)!r}"
        )
    check_count(bytes(message.body), message.sys_flag, count)
    base = values.get(properties.INNER_BASE)
    if base is None:
        values[properties.INNER_BASE] = str(base_offset)
        raw = None
    elif base != str(base_offset):
        raise InvalidMessageError(
            f"the inner batch is for queue offset {base}, but the queue continues at {base_offset}"
        )
    return replace(message, properties=values, raw_properties=raw), count


def body_of(messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The body of an inner batch, from the body and encoded properties of each message."""
    parts: list[bytes] = []
    for body, raw_properties in messages:
        size = _ITEM_SIZE_MIN + len(body) + len(raw_properties)
        parts += (_HEAD.pack(size, 0, 0, 0, len(body)), body, len(raw_properties).to_bytes(2, "big"), raw_properties)
    return b"".join(parts)


def message_of(
    topic: str, queue_id: int, body: bytes, message_count: int, *, compression: int = 0, born_timestamp: int = 0
) -> Message:
    """The message whose record (`Draft.encode_unplaced`) is an inner batch that AppendRecords accepts.

    `body`: from `body_of`, compressed if `compression` has the flags for it.
    """
    return Message(
        topic,
        queue_id,
        body,
        {properties.INNER_NUM: str(message_count), properties.INNER_BASE: "0" * BASE_DIGITS},
        sys_flag=SYS_FLAGS | compression,
        born_timestamp=born_timestamp,
    )


@dataclass(frozen=True, slots=True)
class InnerColumns:
    """The messages of an inner batch as columns; positions refer to `body`, which is decompressed."""

    body: memoryview
    start: Integers
    size: Integers
    body_start: Integers
    body_size: Integers
    properties_start: Integers
    properties_size: Integers

    def __len__(self) -> int:
        return len(self.start)


def columns(body: bytes | memoryview, sys_flag: int = 0, *, size_max: int = BODY_SIZE_MAX) -> InnerColumns:
    """The messages in the body of an inner batch, with lengths checked against each other, all at once.

    Raises CorruptRecordError, with the number of the first invalid message; its physical offset is 0.
    """
    try:
        view = memoryview(decompress(body, sys_flag, size_max))
    except DecompressionError as error:
        raise CorruptRecordError(str(error), physical_offset=0) from error
    start, size, _, position = find_starts(view, 0, len(view), SIZE_MAX, None, _ITEM_SIZE_MIN)
    if position != len(view) or not len(start):
        _split(bytes(view), 0)  # raises the detailed error
        raise CorruptRecordError("an inner batch without a message", physical_offset=0)
    body_size = items(view, _I32)[start + 16].astype(np.int64)
    payload_size = size - _ITEM_SIZE_MIN
    ok = (body_size >= 0) & (body_size <= payload_size)
    body_end = start + _HEAD.size + np.where(ok, body_size, 0)
    properties_size = items(view, _I16)[body_end].astype(np.int64)
    ok &= body_size + properties_size == payload_size
    if not ok.all():
        _split(bytes(view), 0)
        raise AssertionError("columns and scalar check disagree")
    return InnerColumns(
        view, start, size, start + _HEAD.size, body_size, body_end + _PROPERTIES_SIZE.size, properties_size
    )


def message_count(raw_properties: bytes) -> int:
    """INNER_NUM of a record. InvalidMessageError if it is missing or out of range."""
    text = properties.decode_properties(raw_properties).get(properties.INNER_NUM)
    count = decimal(text)
    if count is None or not 1 <= count <= COUNT_MAX:
        raise InvalidMessageError(
            f"an inner batch needs the property {properties.INNER_NUM}, 1 to {COUNT_MAX}, not {text!r}"
        )
    return count


def base_position(raw_properties: bytes) -> int:
    """The position of INNER_BASE's digits in the properties. InvalidMessageError if there is no space for them."""
    position = 0 if raw_properties.startswith(_BASE) else raw_properties.find(b"\x02" + _BASE) + 1
    begin = position + len(_BASE)
    digits = raw_properties[begin : begin + BASE_DIGITS + 1]
    if not raw_properties.startswith(_BASE, position) or digits[BASE_DIGITS:] != b"\x02":
        raise InvalidMessageError(
            f"an inner batch needs the property {properties.INNER_BASE} with {BASE_DIGITS} digits"
        )
    if raw_properties.find(b"\x02" + _BASE, begin) >= 0 or not digits[:BASE_DIGITS].isdigit():
        raise InvalidMessageError(
            f"an inner batch has the property {properties.INNER_BASE} twice or with characters other than digits"
        )
    return begin


def base_digits(base_offset: int) -> bytes:
    """The digits for a queue offset."""
    return b"%0*d" % (BASE_DIGITS, base_offset)


def unpack(record: Record) -> list[Record]:
    """The messages of an inner batch, each with its own queue offset, body, flag and properties.

    They share the position, times and hosts of their record; `size` is each message's part of the body. Raises
    CorruptRecordError if the body is no batch, or has another number of messages than the record says.
    """
    place = place_of(record.properties)
    if place is None:
        raise CorruptRecordError(
            f"an inner batch with {properties.INNER_NUM} {record.properties.get(properties.INNER_NUM)!r} and "
            f"{properties.INNER_BASE} {record.properties.get(properties.INNER_BASE)!r}",
            physical_offset=record.physical_offset,
        )
    items = _split(_body(record), record.physical_offset)
    if len(items) != place.message_count:
        raise CorruptRecordError(
            f"an inner batch of {len(items)} messages claims to have {place.message_count}",
            physical_offset=record.physical_offset,
        )
    return [
        Record(
            topic=record.topic,
            queue_id=record.queue_id,
            queue_offset=place.base_offset + number,
            physical_offset=record.physical_offset,
            body=item.body,
            raw_properties=item.raw_properties,
            flag=item.flag,
            sys_flag=record.sys_flag & (SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6),
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=record.store_timestamp,
            store_host=record.store_host,
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
            body_crc=record_crc(item.body),
            size=item.size,
            version=record.version,
        )
        for number, item in enumerate(items)
    ]


def is_inner_batch(record: Record) -> bool:
    """Whether the body of a record is a batch."""
    return bool(record.sys_flag & SYS_FLAG_INNER_BATCH)


class _Item(NamedTuple):
    flag: int
    body: bytes
    raw_properties: bytes
    size: int


def _split(body: bytes, physical_offset: int) -> list[_Item]:
    items: list[_Item] = []
    position = 0

    def corrupt(what: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"message {len(items)} of the inner batch, at byte {position} of the body, {what}",
            physical_offset=physical_offset,
        )

    while position < len(body):
        left = len(body) - position
        if left < _ITEM_SIZE_MIN:
            raise corrupt(f"has only {left} bytes")
        size, _, _, flag, body_size = _HEAD.unpack_from(body, position)
        if not _ITEM_SIZE_MIN <= size <= left:
            raise corrupt(f"claims to have {size} bytes; {left} are left")
        if not 0 <= body_size <= size - _ITEM_SIZE_MIN:
            raise corrupt(f"claims a body of {body_size} of {size} bytes")
        begin = position + _HEAD.size
        end = begin + body_size
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(body, end)
        if body_size + properties_size + _ITEM_SIZE_MIN != size:
            raise corrupt(f"has {size} bytes, of which body and properties take {body_size} and {properties_size}")
        begin_properties = end + _PROPERTIES_SIZE.size
        items.append(_Item(flag, body[begin:end], body[begin_properties : position + size], size))
        position += size
    return items


def _body(record: Record) -> bytes:
    try:
        return bytes(decompress(record.body, record.sys_flag, BODY_SIZE_MAX))
    except DecompressionError as error:
        raise CorruptRecordError(
            f"the body of an inner batch: {error}", physical_offset=record.physical_offset
        ) from error
