"""Several messages in the body of one record, as RocketMQ keeps them for topics with `queue.type=BatchCQ`.

The record has SYS_FLAG_INNER_BATCH and the properties INNER_NUM (how many messages) and INNER_BASE (the queue offset of
the first). Its body is, message after message,

    offset  size  field
         0     4  total_size       bytes of this message, this field included
         4     4  magic            without meaning here
         8     4  body_crc         without meaning here: the record's checksums cover it
        12     4  flag             the application's
        16     4  body_size
        20     -  body
         -     2  properties_size
         -     -  properties
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Final, NamedTuple

from aerobee_store.errors import CorruptRecordError, InvalidMessageError
from aerobee_store.records import properties
from aerobee_store.records.record import (
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_TYPE,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_STORE_HOST_V6,
    Message,
    Record,
    record_crc,
)

COUNT_MAX: Final = 0x7FFF
"""Messages of one record: a unit has 15 bits for them."""
BODY_SIZE_MAX: Final = 64 << 20
"""Bytes that a compressed body may become."""

_HEAD: Final = struct.Struct(">iiiii")
_PROPERTIES_SIZE: Final = struct.Struct(">h")
_ITEM_SIZE_MIN: Final = _HEAD.size + _PROPERTIES_SIZE.size
assert _ITEM_SIZE_MIN == 22, "the table above and the structs must agree"
_ZLIB: Final = (0x000, 0x300)  # compression types


class BatchPlace(NamedTuple):
    """Which messages of its queue a record holds."""

    base_offset: int
    message_count: int


def place_of(values: dict[str, str]) -> BatchPlace | None:
    """What the properties of a record say; None for a record that RocketMQ gives no unit for the lack of them."""
    base, count = _number(values.get(properties.INNER_BASE)), _number(values.get(properties.INNER_NUM))
    if base is None or count is None or not 1 <= count <= COUNT_MAX:
        return None
    return BatchPlace(base, count)


def placed(message: Message, base_offset: int) -> tuple[Message, int]:
    """An inner batch that says where it stands, and how many messages it holds.

    INNER_BASE is added where it is missing. Raises InvalidMessageError for a batch without INNER_NUM, for one whose
    body holds another number of messages, and for one that was made for another place.
    """
    raw = message.raw_properties
    values = dict(message.properties) if raw is None else properties.decode_properties(raw)
    count = _number(values.get(properties.INNER_NUM))
    if count is None or not 1 <= count <= COUNT_MAX:
        raise InvalidMessageError(
            f"an inner batch needs the property {properties.INNER_NUM}, 1 to {COUNT_MAX}, "
            f"not {values.get(properties.INNER_NUM)!r}"
        )
    if not message.sys_flag & SYS_FLAG_COMPRESSED:
        try:
            found = len(_split(bytes(message.body), 0))
        except CorruptRecordError as error:
            raise InvalidMessageError(f"an inner batch whose body is none: {error.reason}") from error
        if found != count:
            raise InvalidMessageError(f"an inner batch of {found} messages says that it has {count}")
    base = values.get(properties.INNER_BASE)
    if base is None:
        values[properties.INNER_BASE] = str(base_offset)
        raw = None
    elif base != str(base_offset):
        raise InvalidMessageError(f"an inner batch for queue offset {base}, but the queue goes on at {base_offset}")
    return replace(message, properties=values, raw_properties=raw), count


def unpack(record: Record) -> list[Record]:
    """The messages of an inner batch, each with its own queue offset, body, flag and properties.

    They share place, times and hosts of their record; `size` is what each takes of its body. Raises CorruptRecordError
    if the body is no batch, or has another number of messages than the record says.
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
            f"an inner batch of {len(items)} messages says that it has {place.message_count}",
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
            raise corrupt(f"says that it has {size} bytes; {left} are left")
        if not 0 <= body_size <= size - _ITEM_SIZE_MIN:
            raise corrupt(f"says that its body has {body_size} of {size} bytes")
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
    if not record.sys_flag & SYS_FLAG_COMPRESSED:
        return record.body
    kind = record.sys_flag & SYS_FLAG_COMPRESSION_TYPE
    if kind not in _ZLIB:
        raise CorruptRecordError(
            f"an inner batch compressed in a way ({kind:#x}) that cannot be unpacked here",
            physical_offset=record.physical_offset,
        )
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(record.body, BODY_SIZE_MAX)
    except zlib.error as error:
        raise CorruptRecordError(
            f"the body of an inner batch cannot be decompressed: {error}", physical_offset=record.physical_offset
        ) from error
    if not inflater.eof:
        raise CorruptRecordError(
            f"the body of an inner batch ends early, or has more than {BODY_SIZE_MAX} bytes",
            physical_offset=record.physical_offset,
        )
    return body


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and 0 < len(text) < 19 and text.isascii() and text.isdigit() else None
