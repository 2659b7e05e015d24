"""Items 186 to 189: recalling a delayed message."""

from __future__ import annotations

import base64

import pytest

from aerobee_proto import v2
from tests.conformance.conftest import Traveller
from tests.conformance.raw_client import RawClient, message, timestamp

Code = v2.Code


async def delayed(client: RawClient, topic: str, due_ms: int) -> v2.SendResultEntry:
    """A message sent to a new topic for delayed messages."""
    await client.create_topic(topic, v2.MessageType.DELAY)
    sent = message(topic, message_type=v2.MessageType.DELAY, delivery_timestamp=timestamp(due_ms))
    [entry] = await client.sent(sent)
    return entry


async def test_186_recalled_in_time(traveller: Traveller, topic: str, group: str) -> None:
    """OK with the message's id, and it is never delivered."""
    client, clock = traveller.client, traveller.clock
    entry = await delayed(client, topic, clock.now_ms() + 60_000)
    response = await client.recall(topic, entry.recall_handle)
    assert response.status.code == Code.OK
    assert response.message_id == entry.message_id
    await clock.advance(50)
    await clock.advance(20)
    assert (await client.receive(topic, group, wait=2)).code == Code.MESSAGE_NOT_FOUND


async def test_187_recalled_too_late_or_twice(traveller: Traveller, topic: str, group: str) -> None:
    """Each is an error without effect, but not MESSAGE_NOT_FOUND, which official clients treat as success."""
    client, clock = traveller.client, traveller.clock
    entry = await delayed(client, topic, clock.now_ms() + 60_000)
    assert (await client.recall(topic, entry.recall_handle)).status.code == Code.OK
    assert (await client.recall(topic, entry.recall_handle)).status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND)
    late = await delayed(client, topic, clock.now_ms() + 60_000)
    await clock.advance(61)
    assert (await client.receive(topic, group, wait=10)).one.system_properties.message_id == late.message_id
    assert (await client.recall(topic, late.recall_handle)).status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND)


@pytest.mark.parametrize(
    "handle",
    [
        *("", "x", "größe", "A" * 5000, "djEgYQ==", "v1 a b 1 c", "====", "\ud7ff"),
        *(base64.urlsafe_b64encode(text).decode() for text in (b"v1 a b c d", b"v2 a b 1 c", b"v1 a b 1", b"\xff")),
    ],
    ids=lambda handle: repr(handle[:12]),
)
async def test_188_no_handle(client: RawClient, topic: str, handle: str) -> None:
    """BAD_REQUEST."""
    await client.create_topic(topic, v2.MessageType.DELAY)
    response = await client.recall(topic, handle)
    assert response.status.code == Code.BAD_REQUEST
    assert response.status.message


async def test_189_another_topic(traveller: Traveller, topic: str, group: str) -> None:
    """An error, also of a topic without delayed messages; the message is delivered when due."""
    client, clock = traveller.client, traveller.clock
    entry = await delayed(client, topic, clock.now_ms() + 60_000)
    await client.create_topic(f"{topic}-2", v2.MessageType.DELAY)
    assert (await client.recall(f"{topic}-2", entry.recall_handle)).status.code == Code.BAD_REQUEST
    await client.create_topic(f"{topic}-3")
    conflict = (await client.recall(f"{topic}-3", entry.recall_handle)).status.code
    assert conflict == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    await clock.advance(61)
    assert (await client.receive(topic, group, wait=10)).bodies == ["hello"]
