"""Messages survive a round trip through the store, and are stored in RocketMQ's form."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.messages.message_mapping import message_type, to_store_message, to_wire_message
from aerobee_proto import v2
from aerobee_store.records import record
from aerobee_store.records.message_fields import TEXT_FIELDS, fields_of, properties_of
from aerobee_store.records.properties import decode_properties, encode_properties
from aerobee_store.records.record import Message, Record

TOPIC = v2.Resource(name="orders", resource_namespace="shop")
PEER = ("10.0.0.7", 50000)


def stored(message: Message) -> Record:
    """The message as it is read from a log."""
    data = record.encode(
        message,
        queue_offset=7,
        physical_offset=4096,
        store_timestamp=1_700_000_001_500,
        store_host=("127.0.0.1", 8081),
        property_crc=True,
    )
    header = record.peek(data, 0)
    assert isinstance(header, record.RecordHeader)
    return record.read(data, header)


def sent(**system: object) -> v2.Message:
    wire = v2.Message(topic=TOPIC, body=b"hello", system_properties=v2.SystemProperties(**system))  # type: ignore[arg-type]
    wire.system_properties.message_id = wire.system_properties.message_id or "0102FC000000014AB00B13010700000000"
    return wire


def round_trip(wire: v2.Message) -> v2.Message:
    return to_wire_message(
        stored(to_store_message(wire, "shop%orders", 3, PEER, 1_700_000_000_000)),
        TOPIC,
        receipt_handle="handle",
        delivery_attempt=2,
    )


def test_a_message_round_trips() -> None:
    """Properties, tag, keys, trace context and ids are unchanged. Queue, offset and attempt are added."""
    wire = sent(tag="tag", keys=["one", "two"], trace_context="trace", born_host="host-a")
    wire.system_properties.born_timestamp.FromMilliseconds(1_699_999_999_123)
    wire.user_properties.update({"name": "wert", "größe": "中文", "empty": ""})
    back = round_trip(wire)
    assert back.topic == TOPIC
    assert back.body == b"hello"
    assert dict(back.user_properties) == dict(wire.user_properties)
    system = back.system_properties
    assert (system.tag, list(system.keys), system.trace_context) == ("tag", ["one", "two"], "trace")
    assert system.message_id == wire.system_properties.message_id
    assert system.born_timestamp == wire.system_properties.born_timestamp
    assert system.born_host == "host-a"
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_001_500
    assert system.store_host == "127.0.0.1:8081"
    assert (system.queue_id, system.queue_offset) == (3, 7)
    assert (system.receipt_handle, system.delivery_attempt) == ("handle", 2)
    assert system.message_type == v2.MessageType.NORMAL
    unset = {"message_group", "lite_topic", "priority", "delivery_timestamp"}
    assert not unset & {field.name for field, _ in system.ListFields()}


@pytest.mark.parametrize("keys", [["a b", "c"], ["a b"], [" a"], ["a", "b", "c"], ["a  b", ""], []])
def test_keys_round_trip(keys: list[str]) -> None:
    """A key with a space stays one key, although RocketMQ's index has its words."""
    wire = sent(keys=keys)
    assert list(round_trip(wire).system_properties.keys) == [key for key in keys if key]
    assert to_store_message(wire, "t", 0, PEER, 0).properties.get("KEYS", "").split() == " ".join(keys).split()


@pytest.mark.parametrize("seconds", [-1, 1 << 62])
def test_an_impossible_birth_time_is_replaced(seconds: int) -> None:
    """A birth time that does not fit into a record is replaced; the message is accepted."""
    wire = sent(born_timestamp=v2.Timestamp(seconds=seconds))
    assert to_store_message(wire, "t", 0, PEER, 5).born_timestamp == 5


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"message_group": "g"}, v2.MessageType.FIFO),
        ({"delivery_timestamp": v2.Timestamp(seconds=1_800_000_000)}, v2.MessageType.DELAY),
        ({"message_type": v2.MessageType.TRANSACTION}, v2.MessageType.TRANSACTION),
        ({"lite_topic": "l"}, v2.MessageType.LITE),
        ({"priority": 3}, v2.MessageType.PRIORITY),
        ({"priority": 0, "message_type": v2.MessageType.NORMAL}, v2.MessageType.NORMAL),
        ({"message_type": v2.MessageType.DELAY}, v2.MessageType.NORMAL),
        ({}, v2.MessageType.NORMAL),
    ],
)
def test_types(fields: dict[str, object], kind: int) -> None:
    """The fields determine the type, and a delivery has the same type and fields."""
    wire = sent(**fields)
    assert message_type(wire.system_properties) == kind
    back = round_trip(wire).system_properties
    assert back.message_type == kind
    for name in fields.keys() - {"message_type"}:
        assert getattr(back, name) == getattr(wire.system_properties, name)


def test_system_properties_are_not_user_properties() -> None:
    """Properties that the store or RocketMQ adds are not among the user properties."""
    names = {"PGROUP": "p", "MSG_REGION": "r", "__SHARDINGKEY": "g", "TRACE_CONTEXT": "c", "mine": "1"}
    message = dataclasses.replace(to_store_message(sent(), "t", 0, PEER, 1), properties=names)
    assert dict(to_wire_message(stored(message), TOPIC).user_properties) == {"mine": "1"}


def test_a_message_of_another_client_has_the_servers_id() -> None:
    """Without UNIQ_KEY, the id is built from the record's position."""
    message = dataclasses.replace(to_store_message(sent(), "t", 0, PEER, 1), properties={})
    assert to_wire_message(stored(message), TOPIC).system_properties.message_id == "7F00000100001F910000000000001000"


@pytest.mark.parametrize(("kind", "encoding"), [(0, "GZIP"), (3, "GZIP"), (1, "IDENTITY"), (2, "IDENTITY")])
def test_compression_of_other_clients(kind: int, encoding: str) -> None:
    """zlib is delivered as GZIP, which clients tell apart by the first bytes. Others are delivered unchanged."""
    message = dataclasses.replace(to_store_message(sent(), "t", 0, PEER, 1), sys_flag=1 | kind << 8)
    system = to_wire_message(stored(message), TOPIC).system_properties
    assert system.body_encoding == v2.Encoding.Value(encoding)


@pytest.mark.parametrize("text", ["", "soon", "-5", "9" * 40, "٣"])
def test_numbers_in_foreign_properties(text: str) -> None:
    """Invalid numbers in properties of other programs are ignored."""
    message = dataclasses.replace(
        to_store_message(sent(), "t", 0, PEER, 1),
        raw_properties=encode_properties({"TIMER_DELIVER_MS": text or "x", "_SYS_MSG_PRIORITY_": text or "x"}),
    )
    assert not to_wire_message(stored(message), TOPIC).system_properties.HasField("delivery_timestamp")


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=5),
    st.lists(st.text(st.sampled_from("a b"), max_size=3), max_size=3),
    st.none() | st.integers(0, 2**31 - 1),
    st.none() | st.integers(0, 2**40),
    st.dictionaries(st.sampled_from(["a", "é", "b c"]), st.text(st.sampled_from("a é"), max_size=2)),
)
def test_the_fields_of_stored_properties_are_those_sent(
    text: str, keys: list[str], priority: int | None, deliver_ms: int | None, user: dict[str, str]
) -> None:
    """The table in both directions, through the encoded property string."""
    given: dict[str, Any] = dict.fromkeys(TEXT_FIELDS, text)
    given |= {"keys": keys, "priority": priority, "deliver_ms": deliver_ms, "user_properties": user}
    back = fields_of(decode_properties(encode_properties(properties_of(**given))))._asdict()
    if not "".join(keys).strip():  # blank keys are refused
        given["keys"] = back["keys"] = []
    assert back == given | {"keys": [key for key in given["keys"] if key]}
