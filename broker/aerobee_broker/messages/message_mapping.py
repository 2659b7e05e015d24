"""Conversion between wire messages and stored messages.

A stored message is what RocketMQ would have stored. `aerobee_store.records.message_fields` maps its fields to
properties and back; here is only how the fields look on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import md5
from typing import Final, get_args

from aerobee_proto import v2
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import (
    DELAY_NAMES,
    LAST_MS,
    PRIORITY_PROPERTY,
    TEXT_FIELDS,
    Kind,
    delivery_ms_of,
    keys_of,
    kind_of,
    priority_of,
    properties_of,
    stored_kind,
    user_properties_of,
)
from aerobee_store.records.record import SYS_FLAG_COMPRESSED, SYS_FLAG_COMPRESSION_TYPE, Message, Record

RESENT_FROM: Final = "__AEROBEE_RESENT"  # of a resent dead letter: topic and offset of the dead letter

_TIME_MAX: Final = (1 << 63) - 1

COMPRESSION_ZLIB: Final = 0x300
_READABLE_COMPRESSION: Final = (0, COMPRESSION_ZLIB)  # 0: clients from before the type bits, always zlib

# Looking up a name in a protobuf enum costs a Python call each time.
NORMAL: Final = v2.MessageType.NORMAL
FIFO: Final = v2.MessageType.FIFO
DELAY: Final = v2.MessageType.DELAY
TRANSACTION: Final = v2.MessageType.TRANSACTION
LITE: Final = v2.MessageType.LITE
PRIORITY: Final = v2.MessageType.PRIORITY
_MD5: Final = v2.DigestType.MD5
_IDENTITY: Final = v2.Encoding.IDENTITY
_GZIP: Final = v2.Encoding.GZIP

_TYPES: Final[Mapping[Kind, v2.MessageType.ValueType]] = {kind: v2.MessageType.Value(kind) for kind in get_args(Kind)}

# Texts that few messages have, and all properties of the fields that few messages have.
_RARE_TEXTS: Final = tuple((field, TEXT_FIELDS[field]) for field in ("message_group", "trace_context", "lite_topic"))
_RARE_NAMES: Final = frozenset(
    (
        *(p.TRANSACTION_MESSAGE, *DELAY_NAMES, p.TIMER_OUT_MS, PRIORITY_PROPERTY),
        *(p.DLQ_ORIGIN_TOPIC, p.DLQ_ORIGIN_MESSAGE_ID, *(name for _, name in _RARE_TEXTS)),
    )
)


def message_type(system: v2.SystemProperties) -> v2.MessageType.ValueType:
    """The message type that follows from the fields, whatever type the client declared; TRANSACTION has no field and
    must be declared."""
    declared = system.message_type
    kind = kind_of(
        is_transactional=declared == TRANSACTION,
        is_delayed=system.HasField("delivery_timestamp"),
        has_group=bool(system.message_group),
        has_lite_topic=bool(system.lite_topic),
        # An official client sends priority 0 with the type NORMAL.
        has_priority=system.HasField("priority") and not (system.priority == 0 and declared == NORMAL),
    )
    return _TYPES[kind]


def to_store_message(message: v2.Message, stored_topic: str, queue_id: int, peer: p.Host, now_ms: int) -> Message:
    """The stored form of `message`, which is already validated.

    `peer` is the address of the connection; `now_ms` (Unix milliseconds) replaces a missing born timestamp.
    """
    system = message.system_properties
    born_host = system.born_host
    immunity = system.orphaned_transaction_recovery_duration
    transactional = system.message_type == TRANSACTION
    properties = properties_of(
        message_id=system.message_id,
        tag=system.tag,
        keys=system.keys,
        message_group=system.message_group,
        trace_context=system.trace_context,
        lite_topic=system.lite_topic,
        priority=system.priority if system.HasField("priority") else None,
        deliver_ms=delivery_ms(system.delivery_timestamp) if system.HasField("delivery_timestamp") else None,
        producer_group=stored_topic if transactional else "",
        recovery_seconds=immunity.seconds + (immunity.nanos > 0),
        born_host=born_host if born_host != peer[0] else "",
        user_properties=message.user_properties,
    )
    born = system.born_timestamp
    born_ms = born.seconds * 1000 + born.nanos // 1_000_000
    return Message(
        topic=stored_topic,
        queue_id=queue_id,
        body=message.body,
        properties=properties,
        born_timestamp=born_ms if 0 < born_ms <= LAST_MS else now_ms,
        born_host=peer,
        sys_flag=sys_flag_of(system.body_encoding),
    )


def sys_flag_of(encoding: v2.Encoding.ValueType) -> int:
    """The system flags of a body with this encoding."""
    return SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB if encoding == _GZIP else 0


def to_wire_message(
    record: Record, topic: v2.Resource, *, receipt_handle: str | None = None, delivery_attempt: int | None = None
) -> v2.Message:
    """The message to deliver for `record`, with `topic` as named by the client.

    A query passes neither receipt handle nor attempt, and both stay unset. A body that a RocketMQ 4 client compressed
    with LZ4 or Zstandard, which this protocol cannot express, is delivered as stored.
    """
    properties = record.properties
    get = properties.get
    body = record.body
    compressed = (
        record.sys_flag & SYS_FLAG_COMPRESSED and record.sys_flag & SYS_FLAG_COMPRESSION_TYPE in _READABLE_COMPRESSION
    )
    message = v2.Message(topic=topic, body=body)
    if user_properties := user_properties_of(properties):
        message.user_properties.update(user_properties)
    system = message.system_properties  # filled in place: every object that is passed is copied
    system.message_id = get(p.UNIQ_KEY) or p.offset_message_id(record.store_host, record.physical_offset)
    if keys := keys_of(properties):
        system.keys.extend(keys)
    digest = system.body_digest
    digest.type = _MD5
    digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = _GZIP if compressed else _IDENTITY
    system.message_type = NORMAL
    system.born_host = get(p.BORN_HOST) or record.born_host[0]
    system.store_host = _host_text(record.store_host)
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    if (tag := get(p.TAGS)) is not None:
        system.tag = tag
    if receipt_handle is not None:
        system.receipt_handle = receipt_handle
    if delivery_attempt is not None:
        system.delivery_attempt = delivery_attempt
    timestamp = system.born_timestamp
    timestamp.seconds, milliseconds = divmod(record.born_timestamp, 1000)
    timestamp.nanos = milliseconds * 1_000_000
    timestamp = system.store_timestamp
    timestamp.seconds, milliseconds = divmod(record.store_timestamp, 1000)
    timestamp.nanos = milliseconds * 1_000_000
    if not _RARE_NAMES.isdisjoint(properties):
        _set_rare_fields(system, properties)
    return message


def _set_rare_fields(system: v2.SystemProperties, properties: Mapping[str, str]) -> None:
    """The fields that few messages have; `_RARE_NAMES` are the names of their properties."""
    get = properties.get
    system.message_type = _TYPES[stored_kind(properties)]
    for field, name in _RARE_TEXTS:
        if (text := get(name)) is not None:
            setattr(system, field, text)
    if (deliver_at := delivery_ms_of(properties)) is not None:
        system.delivery_timestamp.FromMilliseconds(deliver_at)
    if (priority := priority_of(properties)) is not None:
        system.priority = priority
    if (origin_topic := get(p.DLQ_ORIGIN_TOPIC)) and (origin_id := get(p.DLQ_ORIGIN_MESSAGE_ID)):
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = origin_topic, origin_id


def delivery_ms(timestamp: v2.Timestamp) -> int:
    """The due time for this delivery timestamp, rounded up to whole milliseconds so that it is never early."""
    return timestamp.seconds * 1000 + -(-timestamp.nanos // 1_000_000)


def timestamp_ms(timestamp: v2.Timestamp) -> int:
    """A requested time in whole milliseconds, limited to 0..2^63 - 1, because clients can send any value."""
    return min(max(timestamp.seconds * 1000 + timestamp.nanos // 1_000_000, 0), _TIME_MAX)


def _host_text(host: p.Host) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"
