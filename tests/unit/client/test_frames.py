"""Frames of ReadRecords decoded into messages: group restrictions and unreadable records."""

from __future__ import annotations

import pytest

from aerobee_client import ClientError
from aerobee_client.records import Frame
from aerobee_store.records.message_fields import ONLY_GROUP
from aerobee_store.records.record import SYS_FLAG_COMPRESSED, Draft, Message

_HOST = ("127.0.0.1", 8081)


def frame(*messages: Message) -> Frame:
    """A frame of these messages, numbered from 0."""
    records = b"".join(
        Draft(message, store_host=_HOST, property_crc=True).encode(number, 1000 * number, 1_700_000_000_000)
        for number, message in enumerate(messages)
    )
    return Frame(records, 0, len(messages), 0)


def test_a_message_resent_to_one_group() -> None:
    """A message that was sent again to one group is hidden from all other groups."""
    found = frame(
        Message("orders", 0, b"all", {"UNIQ_KEY": "1"}),
        Message("orders", 0, b"one", {"UNIQ_KEY": "2", ONLY_GROUP: "space%billing"}),
    )
    assert [message.body for message in found.messages("orders", "space%billing")] == [b"all", b"one"]
    assert [message.body for message in found.messages("orders", "billing")] == [b"all"]


def test_a_body_that_cannot_be_decompressed() -> None:
    """The message is returned unchanged and marked as corrupted."""
    [message] = frame(Message("orders", 0, b"garbage", {}, sys_flag=SYS_FLAG_COMPRESSED)).messages("orders", "g")
    assert (message.body, message.corrupted) == (b"garbage", True)
    assert message.message_id.startswith("7F000001")  # without UNIQ_KEY, the id is built from the record's position


def test_a_body_that_cannot_be_decompressed_does_not_end_the_bodies() -> None:
    """It comes as it is stored, and those after it follow."""
    found = frame(
        Message("orders", 0, b"before", {}),
        Message("orders", 0, b"garbage", {}, sys_flag=SYS_FLAG_COMPRESSED),
        Message("orders", 0, b"after", {}),
    )
    assert list(found.bodies()) == [b"before", b"garbage", b"after"]


def test_a_damaged_record() -> None:
    """A damaged record fails its whole frame, so that no message is skipped."""
    good = frame(*(Message("orders", 0, b"%d" % number, {"UNIQ_KEY": "1"}) for number in range(3)))
    damaged = bytearray(good.records)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(ClientError, match=r"damaged.*read it again"):
        Frame(bytes(damaged), 0, 3, 0).messages("orders", "g")
