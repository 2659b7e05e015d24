"""Many messages of one SendMessage as one batch: which requests are packed, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_broker.config import LimitsConfig
from aerobee_broker.message_mapping import to_store_message
from aerobee_broker.processors.send_batch import packed_batch
from aerobee_proto import v2
from aerobee_store import RecordBatch, StoreConfig
from aerobee_store.records.record import Draft

PEER = ("10.1.2.3", 5000)
NOW = 1_700_000_000_000


def messages(count: int = 5) -> list[v2.Message]:
    """Of different sizes, as SDKs send them."""
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


def packed(sent: list[v2.Message], *, property_crc: bool = True) -> RecordBatch | None:
    store = StoreConfig(directory=Path("unused"), body_size_max=1000, property_crc=property_crc)
    return packed_batch(sent, "orders", 3, PEER, NOW, LimitsConfig(), store)


def rare(message: v2.Message) -> None:
    """Every field that a normal message may have besides the usual ones."""
    message.user_properties["region"] = "nö"
    message.user_properties["empty"] = ""
    message.system_properties.trace_context = "trace"
    message.system_properties.body_encoding = v2.Encoding.GZIP
    message.system_properties.ClearField("born_timestamp")


@pytest.mark.parametrize("property_crc", [True, False])
@pytest.mark.parametrize("change", [lambda message: None, rare])
def test_records_are_those_of_single_messages(change: Callable[[v2.Message], None], property_crc: bool) -> None:
    """Byte by byte, before they have a place."""
    sent = messages()
    change(sent[2])
    batch = packed(sent, property_crc=property_crc)
    assert batch is not None
    expected = [
        Draft(
            to_store_message(message, "orders", 3, PEER, NOW),
            store_host=("127.0.0.1", 8081),
            property_crc=property_crc,
        ).encode_unplaced()
        for message in sent
    ]
    assert [bytes(batch.raw(row)) for row in range(len(batch))] == expected


CHANGES: dict[str, Callable[[v2.Message], object]] = {
    "another topic": lambda message: setattr(message.topic, "name", "bills"),
    "another namespace": lambda message: setattr(message.topic, "resource_namespace", "shop"),
    "no body": lambda message: message.ClearField("body"),
    "large body": lambda message: setattr(message, "body", bytes(1001)),
    "no id": lambda message: setattr(message.system_properties, "message_id", " "),
    "bad id": lambda message: setattr(message.system_properties, "message_id", "a\nb"),
    "bad tag": lambda message: setattr(message.system_properties, "tag", "a|b"),
    "blank tag": lambda message: setattr(message.system_properties, "tag", " "),
    "separator": lambda message: setattr(message.system_properties, "tag", "a\x01b"),
    "bad key": lambda message: message.system_properties.keys.append("a\x02b"),
    "c1": lambda message: message.system_properties.keys.append("a\x85b"),
    "empty key": lambda message: message.system_properties.keys.append(""),
    "key of words": lambda message: message.system_properties.keys.append("two words"),
    "large": lambda message: message.system_properties.keys.append("k" * 600),
    "born host": lambda message: setattr(message.system_properties, "born_host", "a\x02b"),
    "reserved": lambda message: message.user_properties.update({"WAIT": "false"}),
    "group": lambda message: setattr(message.system_properties, "message_group", "g"),
    "priority": lambda message: setattr(message.system_properties, "priority", 3),
    "lite": lambda message: setattr(message.system_properties, "lite_topic", "l"),
    "delay": lambda message: message.system_properties.delivery_timestamp.FromMilliseconds(NOW),
    "transaction": lambda message: setattr(message.system_properties, "message_type", v2.MessageType.TRANSACTION),
    "digest": lambda message: message.system_properties.body_digest.MergeFrom(
        v2.Digest(type=v2.DigestType.MD5, checksum="00")
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_packed(change: str) -> None:
    """What breaks a rule, is of another kind, or is too unusual, goes the way of single messages."""
    sent = messages()
    assert packed(sent) is not None
    CHANGES[change](sent[3])
    assert packed(sent) is None
