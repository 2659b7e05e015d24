"""Packs messages as records of the store, identical to those stored by SendMessage, for AppendRecords."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aerobee_client.errors import BadRequestError
from aerobee_client.messages.checks import check
from aerobee_client.messages.compression import SYS_FLAGS, Compression, compress
from aerobee_client.messages.message import HOST, Message, Outgoing, outgoing
from aerobee_proto import v2
from aerobee_store.records.message_rules import ServerLimits

_UNKNOWN_V4: Final = ("0.0.0.0", 0)  # noqa: S104  # nothing listens there
_UNKNOWN_V6: Final = ("::", 0)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Address sizes of a record: the producer's address, and the broker's, which the broker fills in."""

    born_v6: bool
    store_v6: bool

    @property
    def born(self) -> tuple[str, int]:
        """An empty address of the right size."""
        return _UNKNOWN_V6 if self.born_v6 else _UNKNOWN_V4

    @property
    def store(self) -> tuple[str, int]:
        """An empty address of the right size."""
        return _UNKNOWN_V6 if self.store_v6 else _UNKNOWN_V4


def check_packable(message: Message, limits: ServerLimits) -> None:
    """BadRequestError if `message` exceeds a limit, or no record can equal what SendMessage would store."""
    check(message, limits)
    if reason := _reason(message):
        raise BadRequestError(*reason)


def is_packable(message: Message) -> bool:
    """Whether a record can equal what SendMessage would store for this valid message."""
    return _reason(message) is None


def pack(
    stored_topic: str,
    queue_id: int,
    messages: Iterable[Message],
    *,
    compression: Compression | None,
    compress_above: int,
    hosts: Hosts,
    limits: ServerLimits,
) -> bytes:
    """The records of messages for one queue. BadRequestError like `check_packable`."""
    rows = []
    for message in messages:
        check_packable(message, limits)
        rows.append(outgoing(message, compression=compression, compress_above=compress_above))
    return pack_outgoing(stored_topic, queue_id, rows, hosts=hosts, born_host="")


def pack_outgoing(
    stored_topic: str, queue_id: int, messages: Sequence[Outgoing], *, hosts: Hosts, born_host: str = HOST
) -> bytes:
    """The records of checked messages. `born_host`: the name of this machine, as in SendMessage; without it consumers
    see the address of the connection."""
    from aerobee_store.records import packing
    from aerobee_store.records.properties import encode_properties

    records, _ = packing.pack(
        stored_topic,
        queue_id,
        [each.body for each in messages],
        [encode_properties(_properties(each.message, each.message_id, born_host)) for each in messages],
        [each.born_timestamp for each in messages],
        [each.sys_flag for each in messages],
        born_host=hosts.born,
        store_host=hosts.store,
        property_crc=True,
    )
    return bytes(records)


def pack_batch(
    stored_topic: str,
    queue_id: int,
    messages: Sequence[Message],
    *,
    compression: Compression | None,
    hosts: Hosts,
    limits: ServerLimits,
) -> bytes:
    """One record that holds all messages, for a batch topic. BadRequestError like `check_packable`."""
    from aerobee_store.records import inner_batch
    from aerobee_store.records.properties import encode_properties
    from aerobee_store.records.record import Draft

    if not messages:
        raise ValueError("a batch needs at least one message")
    for message in messages:
        check_packable(message, limits)
    parts = [outgoing(message) for message in messages]
    body = inner_batch.body_of(
        (each.body, encode_properties(_properties(each.message, each.message_id, ""))) for each in parts
    )
    flags = 0
    if compression is not None:
        body, flags = compress(body, compression), SYS_FLAGS[compression]
    stored = inner_batch.message_of(
        stored_topic, queue_id, body, len(messages), compression=flags, born_timestamp=parts[0].born_timestamp
    )
    stored = replace(stored, born_host=hosts.born)
    return Draft(stored, store_host=hosts.store, property_crc=True).encode_unplaced()


def _reason(message: Message) -> tuple[v2.Code.ValueType, str] | None:
    """The code and the reason why `message` cannot be a record."""
    if (message.delivery_timestamp, message.lite_topic, message.priority) != (None, None, None):
        return (
            v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "records cannot be delayed, of a lite topic, or have a priority; send such a message",
        )
    if any(" " in key for key in message.keys) or not all(message.properties.values()):
        return (
            v2.Code.ILLEGAL_MESSAGE_KEY,
            "a record cannot hold a key with a blank, or a property without a value; send such a message",
        )
    return None


def _properties(message: Message, message_id: str, born_host: str) -> dict[str, str]:
    """The properties as SendMessage stores them."""
    from aerobee_store.records.message_fields import properties_of

    return properties_of(
        message_id=message_id,
        tag=message.tag,
        keys=message.keys,
        message_group=message.message_group,
        trace_context=message.trace_context,
        born_host=born_host,
        user_properties=message.properties,
    )
