"""Messages as seen by programs, and their form on the wire. Times are Unix milliseconds."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from aerobee_client.messages.compression import (
    SYS_FLAGS,
    Compression,
    CorruptedBodyError,
    compress,
    decompress,
    inflate,
)
from aerobee_proto import v2

if TYPE_CHECKING:
    from aerobee_store.records.record import Record

_log = logging.getLogger(__name__)

_ID_EPOCH = 1609459200  # 2021-01-01T00:00:00Z, the epoch of the seconds in a message id
HOST: Final = socket.gethostname()
"""The host name that messages carry as their origin."""
_MAC = uuid.getnode().to_bytes(6, "big")
_id_counter = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to send. `body` is 1 byte to 4 MiB; `tag` and `keys` are what consumers filter and `query` finds by."""

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None  # messages of one group are kept in order; the topic must accept FIFO
    delivery_timestamp: int | None = None  # earliest delivery; the topic must accept DELAY
    priority: int | None = None  # 0 or more, higher ones first; the topic must accept PRIORITY
    lite_topic: str | None = None  # a sub-stream of a topic that accepts LITE
    trace_context: str | None = None  # text for tracing; delivered unchanged
    message_id: str | None = None  # made by the producer if missing; a repeated send must keep it


SendCall = Literal["SendMessage", "AppendRecords"]
"""The call of RocketMQ's protocol, or that of Aerobee's RecordService."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """A message that is stored as safely as the broker promises."""

    message_id: str
    queue_offset: int
    recall_handle: str = ""  # for a delayed message
    transaction_id: str = ""  # for a transactional message
    call: SendCall = "SendMessage"  # the call that carried it to the broker
    queue_id: int | None = None  # known if the client chose the queue, as AppendRecords does


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as stored by the broker.

    `corrupted`: its body is marked as compressed but cannot be decompressed, or has an unknown encoding; `body` then
    has the stored bytes. Other messages of the receive are not affected.
    """

    topic: str
    body: bytes
    message_id: str
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    message_group: str | None
    queue_id: int
    queue_offset: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    delivery_timestamp: int | None
    priority: int | None = None
    lite_topic: str | None = None
    trace_context: str | None = None
    corrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage(StoredMessage):
    """One delivery to a consumer group; `receipt_handle` identifies it for the acknowledgement.

    Acknowledge a `corrupted` message to remove it; otherwise it is delivered again until it becomes a dead letter.
    """

    receipt_handle: str
    delivery_attempt: int  # 1 for the first delivery
    endpoint: str = ""
    """The broker that delivered it, if the topic has several."""


def new_message_id() -> str:
    """A message id as made by RocketMQ 5: 34 upper-case hex digits of version, MAC address, process id, seconds and a
    counter."""
    number = b"\x01" + _MAC
    number += (os.getpid() & 0xFFFF).to_bytes(2, "big")
    number += ((int(time.time()) - _ID_EPOCH) & 0xFFFFFFFF).to_bytes(4, "big")
    number += (next(_id_counter) & 0xFFFFFFFF).to_bytes(4, "big")
    return number.hex().upper()


_KINDS: Final = (
    ("message_group", v2.MessageType.FIFO),
    ("delivery_timestamp", v2.MessageType.DELAY),
    ("lite_topic", v2.MessageType.LITE),
    ("priority", v2.MessageType.PRIORITY),
)
_WIRE_OVERHEAD: Final = 320  # bytes besides texts and body: ids, times, field numbers, the host name


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be sent, with the id, time and encoded body that every attempt must repeat."""

    message: Message
    message_id: str
    born_timestamp: int  # Unix milliseconds
    body: bytes
    sys_flag: int  # the compression of the body, as in RocketMQ's system flags; 0: none
    kind: v2.MessageType.ValueType

    @property
    def size(self) -> int:
        """Bytes on the wire, or slightly fewer."""
        message = self.message
        size = len(self.body) + len(message.topic) + len(HOST) + _WIRE_OVERHEAD
        for text in (message.tag, message.message_group, message.trace_context, message.lite_topic, *message.keys):
            if text:
                size += 4 * len(text) + 6  # UTF-8 takes at most 4 bytes per character
        for name, value in message.properties.items():
            size += 4 * (len(name) + len(value)) + 12
        return size

    def to_wire(self) -> v2.Message:
        """Its form in SendMessage, which supports zlib only."""
        assert self.sys_flag in (0, SYS_FLAGS["zlib"]), "a producer compresses with zlib only"
        message = self.message
        properties = v2.SystemProperties(
            tag=message.tag,
            keys=message.keys,
            message_id=self.message_id,
            body_encoding=v2.Encoding.GZIP if self.sys_flag else v2.Encoding.IDENTITY,
            message_type=self.kind,
            born_host=HOST,
            message_group=message.message_group,
            lite_topic=message.lite_topic,
            priority=message.priority,
            trace_context=message.trace_context,
        )
        properties.born_timestamp.FromMilliseconds(self.born_timestamp)
        if message.delivery_timestamp is not None:
            properties.delivery_timestamp.FromMilliseconds(message.delivery_timestamp)
        return v2.Message(
            topic=v2.Resource(name=message.topic),
            user_properties=message.properties,
            system_properties=properties,
            body=self.body,
        )


def outgoing(
    message: Message, *, compression: Compression | None = None, compress_above: int = 0, transactional: bool = False
) -> Outgoing:
    """`message` with an id and the current time. Bodies above `compress_above` bytes are compressed if that makes them
    smaller."""
    kind: v2.MessageType.ValueType = v2.MessageType.NORMAL
    if transactional:
        kind = v2.MessageType.TRANSACTION
    else:
        kind = next((each for field, each in _KINDS if getattr(message, field) is not None), kind)
    body, sys_flag = message.body, 0
    if (
        compression is not None
        and len(body) > compress_above
        and len(smaller := compress(body, compression)) < len(body)
    ):
        body, sys_flag = smaller, SYS_FLAGS[compression]
    return Outgoing(message, message.message_id or new_message_id(), time.time_ns() // 1_000_000, body, sys_flag, kind)


def stored_message(wire: v2.Message) -> StoredMessage:
    """The message in `wire`, with its body decompressed; `corrupted`, and logged, if that fails."""
    properties = wire.system_properties
    body, corrupted = wire.body, False
    try:
        body = _decoded(wire.body, properties.body_encoding)
    except CorruptedBodyError as error:
        corrupted = True
        _log.error("message is corrupted topic=%s id=%s: %s", wire.topic.name, properties.message_id, error)
    delayed = properties.HasField("delivery_timestamp")
    return StoredMessage(
        topic=wire.topic.name,
        body=body,
        message_id=properties.message_id,
        tag=properties.tag if properties.HasField("tag") else None,
        keys=tuple(properties.keys),
        properties=dict(wire.user_properties),
        message_group=properties.message_group if properties.HasField("message_group") else None,
        queue_id=properties.queue_id,
        queue_offset=properties.queue_offset,
        born_timestamp=properties.born_timestamp.ToMilliseconds(),
        born_host=properties.born_host,
        store_timestamp=properties.store_timestamp.ToMilliseconds(),
        delivery_timestamp=properties.delivery_timestamp.ToMilliseconds() if delayed else None,
        priority=properties.priority if properties.HasField("priority") else None,
        lite_topic=properties.lite_topic if properties.HasField("lite_topic") else None,
        trace_context=properties.trace_context if properties.HasField("trace_context") else None,
        corrupted=corrupted,
    )


def message_of_record(record: Record, topic: str) -> StoredMessage:
    """The message of a record, with `topic` as the client names it. A compressed body is decompressed with any
    method."""
    from aerobee_store.records.message_fields import fields_of
    from aerobee_store.records.properties import offset_message_id

    fields = fields_of(record.properties)
    message_id = fields.message_id or offset_message_id(record.store_host, record.physical_offset)
    body, corrupted = bytes(record.body), False
    try:
        body = decompress(body, record.sys_flag)
    except CorruptedBodyError as error:
        corrupted = True
        _log.error("message is corrupted topic=%s id=%s: %s", topic, message_id, error)
    return StoredMessage(
        topic=topic,
        body=body,
        message_id=message_id,
        tag=fields.tag,
        keys=tuple(fields.keys),
        properties=fields.user_properties,
        message_group=fields.message_group,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        born_timestamp=record.born_timestamp,
        born_host=fields.born_host or record.born_host[0],
        store_timestamp=record.store_timestamp,
        delivery_timestamp=fields.deliver_ms,
        priority=fields.priority,
        lite_topic=fields.lite_topic,
        trace_context=fields.trace_context,
        corrupted=corrupted,
    )


def received_message(wire: v2.Message, endpoint: str = "") -> ReceivedMessage:
    """Like `stored_message`, for a delivery."""
    stored = stored_message(wire)
    return ReceivedMessage(
        **{name: getattr(stored, name) for name in StoredMessage.__dataclass_fields__},
        receipt_handle=wire.system_properties.receipt_handle,
        delivery_attempt=wire.system_properties.delivery_attempt,
        endpoint=endpoint,
    )


def _decoded(body: bytes, encoding: v2.Encoding.ValueType) -> bytes:
    if encoding == v2.Encoding.GZIP:
        return inflate(body)
    if encoding in (v2.Encoding.IDENTITY, v2.Encoding.ENCODING_UNSPECIFIED):
        return body
    raise CorruptedBodyError(f"its body has the encoding {encoding}, which this client does not support")
