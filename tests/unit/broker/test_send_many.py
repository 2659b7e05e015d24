"""Requests with several messages of known layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from aerobee_broker.processors.sending.send_alike import COUNT_MAX, COUNT_MIN, SendAlike, read_many
from aerobee_broker.processors.sending.send_known import SendKnown, SendReader
from aerobee_proto import v2
from tests.support.wire_messages import NOW, PEER, compressed, joined, one_by_one, parse, records_of, request_of


def known(data: bytes) -> SendKnown | v2.SendMessageRequest:
    """The request, read after others with the same layouts."""
    reader = SendReader()
    found = read_many(data, reader, parse)
    for _ in range(2):
        if isinstance(found, SendAlike):
            found = found.otherwise()
        found = read_many(data, reader, parse)
    return found.otherwise() if isinstance(found, SendAlike) else found


def stored(data: bytes, *, property_crc: bool = True) -> tuple[list[bytes], list[str]] | None:
    return records_of(known(data), property_crc=property_crc)


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


EMPTY = {"rare", "empty user property", "empty tag", "empty key", "empty key first"}
BY_PROTOBUF = {*EMPTY, "ancient", "late", "many keys", "digest"}


@pytest.mark.parametrize("property_crc", [True, False])
@pytest.mark.parametrize("change", STAYS)
def test_records_equal_those_of_single_messages(change: str, property_crc: bool) -> None:
    """The records are equal byte by byte, for a change in any message or in all."""
    for rows in ([0], [2], [9], range(10)):
        sent = messages()
        for row in rows:
            STAYS[change](sent[row])
        data = request_of(sent)
        found = stored(data, property_crc=property_crc)
        assert (found is None) == (change in BY_PROTOBUF)
        assert found is None or found == one_by_one(data, property_crc=property_crc)


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
def test_messages_that_are_left_to_protobuf(change: str) -> None:
    """Invalid messages, and those of other types or topics."""
    for rows in ([0], [3], range(10)):
        sent = messages()
        for row in rows:
            REFUSED[change](sent[row])
        data = request_of(sent)
        if (found := stored(data)) is not None:  # all messages share the other topic
            assert change.startswith("another")
            assert len(rows) == 10
            assert found == one_by_one(data)


def test_fields_in_any_order_and_twice() -> None:
    """Other encoders may repeat fields, which protobuf merges."""
    sent = [each.SerializeToString() for each in messages()]
    tag = b"\x1a\x05\x0a\x03new"
    for case in (
        [*sent[:-1], sent[-1] + tag],
        [each + tag for each in sent],
        [sent[0] + b"\x22\x01c", *sent[1:]],
        [*sent[:4], messages()[4].body.join((b"\x22\x05", b"")) + sent[4].replace(b"\x22\x05bbbbb", b""), *sent[5:]],
        [*sent[:-1], sent[-1] + b"\x50\x01"],  # an unknown field
    ):
        assert isinstance(known(joined(case)), v2.SendMessageRequest)


def test_a_field_that_is_longer_than_its_message() -> None:
    """The field would reach into the next message."""
    sent = [each.SerializeToString() for each in messages()]
    assert sent[3].endswith(b"\x22\x04bbbb")
    sent[3] = sent[3][:-5] + b"\x05bbbb"
    with pytest.raises(DecodeError):
        known(joined(sent))


@pytest.mark.parametrize(
    ("count", "is_known"), [(COUNT_MIN - 1, False), (COUNT_MIN, True), (COUNT_MAX, True), (COUNT_MAX + 1, False)]
)
def test_few_and_too_many_messages_are_left_to_protobuf(count: int, is_known: bool) -> None:
    assert isinstance(known(request_of(messages(1)) * count), SendKnown) == is_known


def test_malformed_requests_are_left_to_protobuf() -> None:
    whole = request_of(messages())
    assert isinstance(known(whole + b"\x10\x01"), v2.SendMessageRequest)
    for size in (1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(DecodeError):
            known(whole[:size])


def test_messages_are_not_counted_beyond_the_limit() -> None:
    """Counting stops at the limit, even in a request with half a million empty messages."""
    looked_at = 0

    class Watched(bytes):
        def __getitem__(self, place: Any) -> Any:
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(place)

    read_many(Watched(b"\x0a\x00" * 500_000), SendReader(), lambda data: v2.SendMessageRequest())
    assert looked_at < 2 * COUNT_MAX
