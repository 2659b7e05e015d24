"""Packing messages of one size and layout as columns of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from aerobee_broker.messages.wire_fields import varint
from aerobee_broker.processors.sending.send_alike import COUNT_MAX, SendAlike, pack, read_many
from aerobee_broker.processors.sending.send_known import SendReader
from aerobee_proto import v2
from aerobee_store import StoreConfig
from tests.support.wire_messages import LIMITS, NOW, PEER, compressed, joined, one_by_one, parse, request_of

COUNT = 40  # enough messages to be copied by columns


def alike(count: int = COUNT) -> list[v2.Message]:
    """Messages of one layout, as SDKs send them."""
    made = []
    for number in range(count):
        message = v2.Message(topic=v2.Resource(name="orders"), body=bytes([number % 256]) * 20)
        message.user_properties["region"] = f"r {number:04}"
        message.user_properties["näme"] = "same é"
        system = message.system_properties
        system.message_id = f"01{number:030X}"
        system.tag = f"t{number % 10}"
        system.keys.extend([f"k{number:04}", "all"])
        system.message_type = v2.MessageType.NORMAL
        system.born_host = "10.9.9.9"
        system.born_timestamp.FromMilliseconds(NOW + 600 - number)
        made.append(message)
    return made


def packable(data: bytes) -> SendAlike | None:
    found = read_many(data, SendReader(), parse)
    return found if isinstance(found, SendAlike) else None


def packed(data: bytes, *, property_crc: bool = True) -> tuple[list[bytes], list[str]] | None:
    """The records and message ids of a packed request."""
    request = packable(data)
    if request is None:
        return None
    store = StoreConfig(directory=Path("unused"), body_size_max=1000, property_crc=property_crc)
    found = pack(request.parts, "orders", 3, PEER, NOW, LIMITS, store)
    if found is None:
        return None
    batch, message_ids = found
    records = [bytes(batch.raw(row)) for row in range(len(batch))]
    if property_crc:  # of the first one, until they have their places
        records = [each[:-11] + b"0000000000" + each[-1:] for each in records]
    return records, [each.decode() for each in message_ids]


def _all(change: Callable[[v2.Message], object]) -> list[v2.Message]:
    made = alike()
    for message in made:
        change(message)
    return made


STAYS: dict[str, Callable[[v2.Message], object]] = {
    "as it is": lambda message: None,
    "no tag": lambda message: message.system_properties.ClearField("tag"),
    "the same tag of words": lambda message: setattr(message.system_properties, "tag", "a b"),
    "no keys": lambda message: message.system_properties.ClearField("keys"),
    "no type": lambda message: message.system_properties.ClearField("message_type"),
    "no time": lambda message: message.system_properties.ClearField("born_timestamp"),
    "late": lambda message: setattr(message.system_properties.born_timestamp, "seconds", 1 << 34),
    "own host": lambda message: setattr(message.system_properties, "born_host", PEER[0]),
    "host beyond ASCII": lambda message: setattr(message.system_properties, "born_host", "höst"),
    "no host": lambda message: message.system_properties.ClearField("born_host"),
    "no user properties": lambda message: message.ClearField("user_properties"),
    "compressed": compressed,
}


@pytest.mark.parametrize("property_crc", [True, False])
@pytest.mark.parametrize("change", STAYS)
def test_records_equal_those_of_single_messages(change: str, property_crc: bool) -> None:
    data = request_of(_all(STAYS[change]))
    found = packed(data, property_crc=property_crc)
    assert found is not None
    assert found == one_by_one(data, property_crc=property_crc)


def test_several_sizes_in_any_order() -> None:
    """The records keep the order of the messages."""
    made = alike(4 * COUNT)
    for number, message in enumerate(made):
        message.user_properties.clear()
        message.body = b"b" * (10 + number % 3)
        if number % 3 == 1:
            message.system_properties.message_id = f"{number:020}"
    data = request_of(made)
    found = packed(data)
    assert found is not None
    assert found == one_by_one(data)


ODD: dict[str, Callable[[v2.Message], object]] = {
    "control character in an id": lambda message: setattr(message.system_properties, "message_id", "i" * 31 + "\x7f"),
    "separator in an id": lambda message: setattr(message.system_properties, "message_id", "i" * 31 + "\x02"),
    "id beyond ASCII": lambda message: setattr(message.system_properties, "message_id", "i" * 30 + "é"),
    "blank id": lambda message: setattr(message.system_properties, "message_id", " " * 32),
    "bar in a tag": lambda message: setattr(message.system_properties, "tag", "|b"),
    "blank tag": lambda message: setattr(message.system_properties, "tag", "  "),
    "tag beyond ASCII": lambda message: setattr(message.system_properties, "tag", "é"),
    "key of words": lambda message: message.system_properties.keys.__setitem__(0, "k w 1"),
    "separator in a key": lambda message: message.system_properties.keys.__setitem__(0, "k\x01\x0201"),
    "separator in a value": lambda message: message.user_properties.update({"region": "r \x01\x02ab"}),
    "value beyond ASCII": lambda message: message.user_properties.update({"region": "r éab12"[:6]}),
    "another topic": lambda message: setattr(message.topic, "name", "orderz"),
    "another type": lambda message: setattr(message.system_properties, "message_type", v2.MessageType.TRANSACTION),
    "another encoding": lambda message: setattr(message.system_properties, "body_encoding", v2.Encoding.GZIP),
    "another host": lambda message: setattr(message.system_properties, "born_host", "10.9.9.8"),
    "another name": lambda message: message.user_properties.update({"regiox": message.user_properties.pop("region")}),
    "group": lambda message: setattr(message.system_properties, "message_group", "g"),
    "digest": lambda message: message.system_properties.body_digest.SetInParent(),
    "large body": lambda message: setattr(message, "body", bytes(1001)),
    "no body": lambda message: message.ClearField("body"),
    "empty value": lambda message: message.user_properties.update({"region": ""}),
    "empty key": lambda message: message.system_properties.keys.append(""),
    "ancient": lambda message: message.system_properties.born_timestamp.FromMilliseconds(-5),
}


@pytest.mark.parametrize("change", ODD)
def test_messages_that_need_a_closer_check(change: str) -> None:
    """Such messages are not packed, or only with the records of single messages, wherever they are in the request."""
    for rows in ([0], [7], [COUNT - 1], range(COUNT)):
        made = alike()
        for message in made:
            message.user_properties.pop("näme")
            message.system_properties.body_encoding = v2.Encoding.IDENTITY
        for row in rows:
            ODD[change](made[row])
        data = request_of(made)
        found = packed(data)
        assert found is None or found == one_by_one(data)
        assert found is None or len(rows) == COUNT


def test_invalid_bytes_of_one_message_do_not_hide_those_of_another() -> None:
    """Another message has as many control characters as the first one has bytes beyond ASCII."""
    made = alike()
    for number, message in enumerate(made):
        message.user_properties["region"] = f"r éé{number % 10}"
    made[1].user_properties["region"] = "r \x02\x02\x01\x011"
    assert packed(request_of(made)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda message: setattr(message.system_properties, "message_type", v2.MessageType.TRANSACTION),
        lambda message: setattr(message.system_properties.born_timestamp, "nanos", -1),
        lambda message: setattr(message.system_properties.born_timestamp, "seconds", 1 << 36),
    ],
    ids=["transactions", "negative nanoseconds", "late"],
)
def test_all_messages_are_of_another_kind(change: Callable[[v2.Message], object]) -> None:
    """A field that all messages share is checked like that of a single message."""
    data = request_of(_all(change))
    found = packed(data)
    assert found is None or found == one_by_one(data)


def test_times_beyond_the_last_year() -> None:
    """A time that is out of range is replaced by the broker's, in any message."""
    made = alike()
    for message in made:
        message.system_properties.born_timestamp.seconds = (1 << 35) - 1
    made[3].system_properties.born_timestamp.seconds = 1 << 30
    data = request_of(made)
    found = packed(data)
    assert found is not None
    assert found == one_by_one(data)


def with_time(message: v2.Message, time: bytes) -> bytes:
    """The message with these bytes as its born timestamp."""
    body = message.body
    message.ClearField("body")
    message.system_properties.ClearField("born_timestamp")
    system = message.system_properties.SerializeToString() + b"\x3a" + varint(len(time)) + time
    message.ClearField("system_properties")
    head = message.SerializeToString() + b"\x1a" + varint(len(system)) + system
    return head + b"\x22" + varint(len(body)) + body


@pytest.mark.parametrize("odd", [b"\x08\x81\x82\x03\x08\x05", b"\x08\x81\x82\x83\x84\x05"])
def test_a_number_that_ends_early(odd: bytes) -> None:
    """The bytes after the shorter number may be another field, so the request is not packed."""
    usual = b"\x08\x81\x82\x83\x84\x05"
    data = joined([with_time(message, odd if number == 7 else usual) for number, message in enumerate(alike())])
    assert packed(data) == (one_by_one(data) if odd == usual else None)


@pytest.mark.parametrize("rows", [[7], range(COUNT)])
def test_numbers_of_more_than_32_bits(rows: Iterable[int]) -> None:
    """Protobuf takes the lower 32 bits of nanoseconds."""
    encoded = []
    for number, message in enumerate(alike()):
        nanos = (1 << 32) + 5 if number in rows else 1 << 30
        encoded.append(with_time(message, b"\x08\x01\x10" + varint(nanos)))
    data = joined(encoded)
    found = packed(data)
    assert found is None or found == one_by_one(data)


def test_several_topics() -> None:
    """Requests with several topics are not packed."""
    made = alike(2 * COUNT)
    for message in made[:COUNT]:
        message.topic.name = "bills"
    assert packable(request_of(made)) is None


def test_a_name_twice_with_an_invalid_value() -> None:
    """Protobuf also checks the value that it drops."""
    encoded = [b"\x12\x0b\x0a\x06region\x12\x011" + message.SerializeToString() for message in alike()]
    assert encoded[7].startswith(b"\x12\x0b\x0a\x06region\x12\x01")
    encoded[7] = encoded[7].replace(b"\x12\x011", b"\x12\x01\xff", 1)
    with pytest.raises(DecodeError):
        packed(joined(encoded))


def test_fields_that_come_twice() -> None:
    """Protobuf merges the fields or takes the last one."""
    for twice in (b"\x22\x03end", b"\x1a\x05\x0a\x03new", b"\x12\x0b\x0a\x06region\x12\x011"):
        data = joined([message.SerializeToString() + twice for message in alike()])
        found = packed(data)
        assert found is None or found == one_by_one(data)
    tags = b"\x0a\x01a\x0a\x01b"
    encoded = []
    for message in alike():
        system = message.system_properties.SerializeToString() + tags
        message.ClearField("system_properties")
        encoded.append(message.SerializeToString() + b"\x1a" + varint(len(system)) + system)
    data = joined(encoded)
    found = packed(data)
    assert found is None or found == one_by_one(data)


def test_numbers_of_another_size() -> None:
    """Messages of equal size may have their fields at different places."""
    made = alike()
    for message in made:
        message.system_properties.born_timestamp.nanos = 1 << 28
    made[5].system_properties.born_timestamp.nanos -= 1
    made[5].body += b"b"
    assert len(made[5].SerializeToString()) == len(made[4].SerializeToString())
    assert packed(request_of(made)) is None
    made = alike()
    made[5].system_properties.born_timestamp.seconds = 1 << 27  # one byte shorter
    made[5].system_properties.born_timestamp.nanos = 1 << 28
    for message in made[:5] + made[6:]:
        message.system_properties.born_timestamp.nanos = (1 << 28) - 1  # one byte shorter
    assert len({len(message.SerializeToString()) for message in made}) == 1
    assert packed(request_of(made)) is None


def test_limits() -> None:
    """Requests that are too large, too small or too varied are read differently."""
    assert packable(request_of(alike())) is not None
    assert packable(request_of(alike(20))) is None
    mixed = alike()
    for number, message in enumerate(mixed):
        message.body = b"b" * (number + 1)
    assert packable(request_of(mixed)) is None
    large = alike(COUNT_MAX)
    for message in large:
        message.body = bytes(1000)
    assert packable(request_of(large)) is None
    assert packable(request_of(large[: COUNT_MAX // 2])) is not None


def test_a_body_that_is_not_compressed_among_others() -> None:
    """The first message of a layout is checked as a whole; the bodies of the others, too."""
    made = _all(compressed)
    made[7].body = b"xx" + made[7].body[2:]
    data = request_of(made)
    assert one_by_one(data) is None
    assert packed(data) is None
