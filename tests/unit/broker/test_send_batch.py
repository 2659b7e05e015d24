"""Packing the messages of a SendMessage request into one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.message_mapping import NORMAL, message_type, to_store_message
from aerobee_broker.messages.validation import check_message
from aerobee_broker.messages.varints import varint
from aerobee_broker.processors.sending.send_batch import packed_batch
from aerobee_broker.processors.sending.send_columns import (
    COUNT_MAX,
    COUNT_MIN,
    SendColumns,
    SendShapes,
    read_send_request,
)
from aerobee_proto import v2
from aerobee_store import StoreConfig
from aerobee_store.records.record import Draft

PEER = ("10.1.2.3", 5000)
NOW = 1_700_000_000_000
LIMITS = LimitsConfig()


def messages(count: int = 10) -> list[v2.Message]:
    """Messages of different sizes, as SDKs send them."""
    made = []
    for number in range(count):
        message = v2.Message(topic=v2.Resource(name="orders"), body=b"b" * (number + 1))
        system = message.system_properties
        system.message_id = f"01{number:030X}"
        system.tag = f"t{number % 2}"
        system.keys.extend([f"k{number}", "all"])
        system.message_type = v2.MessageType.NORMAL
        system.born_host = "10.9.9.9"
        system.born_timestamp.FromMilliseconds(NOW - number)
        made.append(message)
    return made


def columns_of(data: bytes) -> SendColumns | None:
    found = read_send_request(data, v2.SendMessageRequest.FromString)
    if isinstance(found, SendShapes):
        found = found.otherwise()
    return found if isinstance(found, SendColumns) else None


def packed(data: bytes, *, property_crc: bool = True) -> tuple[list[bytes], list[str]] | None:
    """The records and message ids of a packed request."""
    columns = columns_of(data)
    if columns is None:
        return None
    store = StoreConfig(directory=Path("unused"), body_size_max=1000, property_crc=property_crc)
    found = asyncio.run(packed_batch(columns, "orders", 3, PEER, NOW, LIMITS, store))
    if found is None:
        return None
    batch, message_ids = found
    return [bytes(batch.raw(row)) for row in range(len(batch))], [each.decode() for each in message_ids]


def one_by_one(data: bytes, *, property_crc: bool = True) -> tuple[list[bytes], list[str]] | None:
    """The same by the functions for single messages; None if not all are valid normal messages."""
    request = v2.SendMessageRequest.FromString(data)
    records = []
    try:
        for message in request.messages:
            check_message(message, LIMITS, 1000, NOW)
            if message_type(message.system_properties) != NORMAL or message.topic != request.messages[0].topic:
                return None
            stored = to_store_message(message, "orders", 3, PEER, NOW)
            draft = Draft(stored, store_host=("127.0.0.1", 8081), property_crc=property_crc)
            records.append(draft.encode_unplaced())
    except InvalidRequestError:
        return None
    return records, [message.system_properties.message_id for message in request.messages]


def request_of(sent: list[v2.Message]) -> bytes:
    return v2.SendMessageRequest(messages=sent).SerializeToString()


def compressed(message: v2.Message) -> None:
    message.body = b"\x1f\x8b" + message.body  # as the content of a gzip file begins
    message.system_properties.body_encoding = v2.Encoding.GZIP


def rare(message: v2.Message) -> None:
    """Set the less usual fields of a normal message."""
    message.user_properties["region"] = "nö"
    message.user_properties["empty"] = ""
    message.system_properties.trace_context = "trace"
    compressed(message)
    message.system_properties.ClearField("born_timestamp")


STAYS: dict[str, Callable[[v2.Message], object]] = {
    "as it is": lambda message: None,
    "rare": rare,
    "user properties": lambda message: message.user_properties.update({"b": "1|2 é", "a": "x"}),
    "empty user property": lambda message: message.user_properties.update({"b": ""}),
    "no tag": lambda message: message.system_properties.ClearField("tag"),
    "empty tag": lambda message: setattr(message.system_properties, "tag", ""),
    "tag beyond ASCII": lambda message: setattr(message.system_properties, "tag", "käse"),
    "tag of words": lambda message: setattr(message.system_properties, "tag", "a b"),
    "no keys": lambda message: message.system_properties.ClearField("keys"),
    "no type": lambda message: message.system_properties.ClearField("message_type"),
    "unknown type": lambda message: message.MergeFromString(b"\x1a\x02\x30\x63"),
    "no time": lambda message: message.system_properties.ClearField("born_timestamp"),
    "ancient": lambda message: message.system_properties.born_timestamp.FromMilliseconds(-5),
    "late": lambda message: setattr(message.system_properties.born_timestamp, "seconds", 1 << 40),
    "own host": lambda message: setattr(message.system_properties, "born_host", PEER[0]),
    "another host": lambda message: setattr(message.system_properties, "born_host", "10.9.9.8"),
    "no host": lambda message: message.system_properties.ClearField("born_host"),
    "compressed": lambda message: compressed(message),
    "empty key": lambda message: message.system_properties.keys.append(""),
    "empty key first": lambda message: message.system_properties.keys.insert(0, ""),
    "large": lambda message: message.system_properties.keys.append("k" * 600),
    "many keys": lambda message: message.system_properties.keys.extend(["k"] * 100),
    "place": lambda message: setattr(message.system_properties, "queue_id", 5),
    "digest": lambda message: message.system_properties.body_digest.SetInParent(),
}


@pytest.mark.parametrize("property_crc", [True, False])
@pytest.mark.parametrize("change", STAYS)
def test_records_equal_those_of_single_messages(change: str, property_crc: bool) -> None:
    """The unplaced records are equal byte by byte, for a change in any message or in all."""
    for rows in ([0], [2], [9], range(10)):
        sent = messages()
        for row in rows:
            STAYS[change](sent[row])
        data = request_of(sent)
        found = packed(data, property_crc=property_crc)
        assert found is not None
        assert found == one_by_one(data, property_crc=property_crc)


REFUSED: dict[str, Callable[[v2.Message], object]] = {
    "another topic": lambda message: setattr(message.topic, "name", "bills"),
    "another namespace": lambda message: setattr(message.topic, "resource_namespace", "shop"),
    "no topic": lambda message: message.ClearField("topic"),
    "body not compressed": lambda message: setattr(message.system_properties, "body_encoding", v2.Encoding.GZIP),
    "no body": lambda message: message.ClearField("body"),
    "large body": lambda message: setattr(message, "body", bytes(1001)),
    "no id": lambda message: message.system_properties.ClearField("message_id"),
    "blank id": lambda message: setattr(message.system_properties, "message_id", " "),
    "blank id beyond ASCII": lambda message: setattr(message.system_properties, "message_id", "\u3000"),
    "bad id": lambda message: setattr(message.system_properties, "message_id", "a\nb"),
    "bad tag": lambda message: setattr(message.system_properties, "tag", "a|b"),
    "blank tag": lambda message: setattr(message.system_properties, "tag", " "),
    "separator": lambda message: setattr(message.system_properties, "tag", "a\x01b"),
    "bad key": lambda message: message.system_properties.keys.append("a\x02b"),
    "blank key": lambda message: message.system_properties.keys.append(" "),
    "c1": lambda message: message.system_properties.keys.append("a\x85b"),
    "many large keys": lambda message: message.system_properties.keys.extend(["k" * 900] * 20),
    "born host": lambda message: setattr(message.system_properties, "born_host", "a\x02b"),
    "reserved": lambda message: message.user_properties.update({"WAIT": "false"}),
    "many properties": lambda message: message.user_properties.update({str(each): "1" for each in range(129)}),
    "bad property": lambda message: message.user_properties.update({"a": "b\x02"}),
    "group": lambda message: setattr(message.system_properties, "message_group", "g"),
    "priority": lambda message: setattr(message.system_properties, "priority", 3),
    "lite": lambda message: setattr(message.system_properties, "lite_topic", "l"),
    "delay": lambda message: message.system_properties.delivery_timestamp.FromMilliseconds(NOW),
    "transaction": lambda message: setattr(message.system_properties, "message_type", v2.MessageType.TRANSACTION),
    "digest": lambda message: message.system_properties.body_digest.MergeFrom(
        v2.Digest(type=v2.DigestType.MD5, checksum="00")
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_messages_that_are_not_packed(change: str) -> None:
    """Invalid messages and other message types are handled as single messages."""
    for rows in ([0], [3], range(10)):
        sent = messages()
        assert packed(request_of(sent)) is not None
        for row in rows:
            REFUSED[change](sent[row])
        data = request_of(sent)
        if (found := packed(data)) is not None:  # all messages share the other topic
            assert change.startswith(("another", "no topic"))
            assert len(rows) == 10
            assert found == one_by_one(data)


def test_fields_in_any_order_and_twice() -> None:
    """Other encoders may repeat fields, which protobuf merges."""
    sent = [each.SerializeToString() for each in messages()]
    tag = b"\x1a\x05\x0a\x03new"
    cases = [
        [*sent[:-1], sent[-1] + tag],
        [each + tag for each in sent],
        [*sent[:-1], sent[-1] + b"\x1a\x04\x1a\x02id"],
        [sent[0] + b"\x22\x01c", *sent[1:]],
        [*sent[:4], messages()[4].body.join((b"\x22\x05", b"")) + sent[4].replace(b"\x22\x05bbbbb", b""), *sent[5:]],
        [*sent[:-1], sent[-1] + b"\x50\x01"],  # an unknown field
        [*sent[:-1], sent[-1] + b"\x50\x81\x80\x80\x80\x80\x80\x80\x80\x80\x01"],
    ]
    for case in cases:
        data = joined(case)
        found = packed(data)
        assert found is not None
        assert found == one_by_one(data)


def test_numbers_of_more_than_32_bits() -> None:
    """Protobuf takes the lower 32 bits of an enum and of nanoseconds."""
    for kind, is_packed in ((1, True), (v2.MessageType.TRANSACTION, False)):
        sent = [each.SerializeToString() for each in messages()]
        message = messages()[3]
        message.system_properties.ClearField("message_type")
        system = message.system_properties.SerializeToString() + b"\x30" + varint(kind + (1 << 32))
        message.ClearField("system_properties")
        sent[3] = message.SerializeToString() + b"\x1a" + varint(len(system)) + system
        data = joined(sent)
        assert packed(data) == (one_by_one(data) if is_packed else None)
        assert (one_by_one(data) is not None) == is_packed


def test_a_field_that_is_longer_than_its_message() -> None:
    """The field would reach into the next message, so the request is not packed."""
    sent = [each.SerializeToString() for each in messages()]
    assert sent[3].endswith(b"\x22\x04bbbb")
    sent[3] = sent[3][:-5] + b"\x05bbbb"
    assert packed(joined(sent)) is None


def joined(encoded: list[bytes]) -> bytes:
    return b"".join(b"\x0a" + varint(len(each)) + each for each in encoded)


def test_few_and_too_many_messages_are_left_to_protobuf() -> None:
    """Requests with another field are left to protobuf, too; truncated ones are refused."""
    assert columns_of(request_of(messages(COUNT_MIN))) is not None
    assert columns_of(request_of(messages(COUNT_MIN - 1))) is None
    assert columns_of(request_of(messages(1)) * COUNT_MAX) is not None
    assert columns_of(request_of(messages(1)) * (COUNT_MAX + 1)) is None
    whole = request_of(messages())
    assert columns_of(whole + b"\x10\x01") is None
    for size in (1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(Exception, match="parsing"):
            columns_of(whole[:size])


def test_messages_are_not_counted_beyond_the_limit() -> None:
    """Counting stops at the limit, even in a request with half a million empty messages."""
    looked_at = 0

    class Watched(bytes):
        def __getitem__(self, place: Any) -> Any:
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(place)

    assert columns_of(Watched(b"\x0a\x00" * 500_000)) is None
    assert looked_at < 2 * COUNT_MAX


def test_a_large_request_with_unusual_messages_is_left_to_protobuf() -> None:
    """Protobuf's reader counts the fields before anything is parsed."""
    usual = request_of(messages(1))
    data = usual * 20 + b"\x0a\x80\x80\x40" + b"\x1a\xfc\xff\x3f" + b"\x12\x00" * ((1 << 20) // 2 - 2)
    read: list[bytes] = []

    def refuse(data: bytes) -> v2.SendMessageRequest:
        read.append(data)
        raise InvalidRequestError(v2.Code.PAYLOAD_TOO_LARGE, "")

    with pytest.raises(InvalidRequestError):
        read_send_request(data, refuse)
    assert read == [data]
