"""Items 162 to 175: a consumer's answers about received messages."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from tests.conformance.conftest import Traveller
from tests.conformance.raw_client import RawClient, connected, message

Code = v2.Code


async def one(client: RawClient, topic: str, group: str, body: str = "hello", **options: float) -> v2.Message:
    """One message, sent and received."""
    await client.sent(message(topic, body))
    return (await client.receive(topic, group, **{"wait": 5, **options})).one


async def test_162_acknowledged(traveller: Traveller, topic: str, group: str) -> None:
    """The overall status and the entry's are OK, and the group never gets the message again."""
    client = traveller.client
    received = await one(client, topic, group, invisible=10)
    response = await client.acknowledge(topic, group, received)
    assert response.status.code == Code.OK
    [entry] = response.entries
    assert entry.status.code == Code.OK
    assert entry.message_id == received.system_properties.message_id
    assert entry.receipt_handle == received.system_properties.receipt_handle
    await traveller.clock.advance(24 * 3600)
    assert (await client.receive(topic, group, wait=0.1)).code == Code.MESSAGE_NOT_FOUND


async def test_163_several_entries(client: RawClient, topic: str, group: str) -> None:
    """Each entry has its result, in order; the overall status is the common one, or MULTIPLE_RESULTS."""
    messages = [await one(client, topic, group, body) for body in "abc"]
    mixed = await client.acknowledge(topic, group, messages[0], "nonsense", messages[1])
    assert mixed.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in mixed.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.OK]
    assert [entry.receipt_handle for entry in mixed.entries][1] == "nonsense"
    ids = [each.system_properties.message_id for each in messages[:2]]
    assert [entry.message_id for entry in mixed.entries][::2] == ids
    bad = await client.acknowledge(topic, group, "nonsense")
    assert bad.status.code == Code.INVALID_RECEIPT_HANDLE
    good = await client.acknowledge(topic, group, messages[2])
    assert (good.status.code, len(good.entries)) == (Code.OK, 1)


async def test_164_no_handle(client: RawClient, topic: str, group: str) -> None:
    """Malformed, changed, of another group or topic: INVALID_RECEIPT_HANDLE; clients retry other codes for ever."""
    received = await one(client, topic, group)
    handle = received.system_properties.receipt_handle
    await client.receive(topic, f"{group}-2", wait=5)
    await client.create_topic(f"{topic}-2")
    changed = handle[:-1] + ("0" if handle[-1] != "0" else "1")
    for bad in ("", "x", "1 2 3 4 5 6 7 8 9", "größe", handle + "A", handle[: len(handle) // 2], changed, "A" * 5000):
        response = await client.acknowledge(topic, group, bad)
        assert response.status.code == Code.INVALID_RECEIPT_HANDLE, bad
        assert (await client.change(topic, group, bad, 10)).status.code == Code.INVALID_RECEIPT_HANDLE, bad
    for other_topic, other_group in ((topic, f"{group}-2"), (f"{topic}-2", group)):
        response = await client.acknowledge(other_topic, other_group, handle)
        assert response.status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.acknowledge(topic, group, handle)).status.code == Code.OK, "it is as good as before"


async def test_165_expired_handle(traveller: Traveller, topic: str, group: str) -> None:
    """INVALID_RECEIPT_HANDLE, before and after another consumer gets the message."""
    client = traveller.client
    received = await one(client, topic, group, invisible=10)
    await traveller.clock.advance(11)
    assert (await client.acknowledge(topic, group, received)).status.code == Code.INVALID_RECEIPT_HANDLE
    again = (await client.other().receive(topic, group, wait=5)).one
    assert (await client.acknowledge(topic, group, received)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.acknowledge(topic, group, again)).status.code == Code.OK


async def test_166_acknowledged_twice(client: RawClient, topic: str, group: str) -> None:
    """OK, because the message is finished; an error would make clients retry for ever."""
    received = await one(client, topic, group)
    for _ in range(2):
        assert (await client.acknowledge(topic, group, received)).status.code == Code.OK


async def test_167_over_a_restart(own_broker: BrokerProcess, topic: str, group: str) -> None:
    """A handle that has not expired is still valid."""
    async with connected(own_broker.endpoint) as client:
        received = await one(client, topic, group, invisible=600)
    await asyncio.to_thread(own_broker.kill)
    await asyncio.to_thread(own_broker.start)
    async with connected(own_broker.endpoint) as client:
        assert (await client.acknowledge(topic, group, received)).status.code == Code.OK
        assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND


async def test_168_changed_handle(client: RawClient, topic: str, group: str) -> None:
    """There is a new handle; the old one is INVALID_RECEIPT_HANDLE for every call."""
    received = await one(client, topic, group)
    old = received.system_properties.receipt_handle
    response = await client.change(topic, group, old, 30)
    assert response.status.code == Code.OK
    assert response.receipt_handle not in ("", old)
    assert (await client.acknowledge(topic, group, old)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.change(topic, group, old, 30)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.acknowledge(topic, group, response.receipt_handle)).status.code == Code.OK


@pytest.mark.parametrize("seconds", [0.0, 0.005])
async def test_169_tiny_durations(client: RawClient, topic: str, group: str, seconds: float) -> None:
    """Node.js's client returns a message like this: it is redelivered at once, also to a waiting receive."""
    received = await one(client, topic, group)
    waiting = asyncio.create_task(client.other().receive(topic, group, wait=19))
    await asyncio.sleep(0.05)
    response = await client.change(topic, group, received.system_properties.receipt_handle, seconds)
    assert response.status.code == Code.OK
    async with asyncio.timeout(60):
        assert (await waiting).attempts == {"hello": 2}


@pytest.mark.parametrize("seconds", [-1.0, -0.001, 12 * 3600 + 0.001])
async def test_170_illegal_durations(client: RawClient, topic: str, group: str, seconds: float) -> None:
    """Negative or above 12 hours: ILLEGAL_INVISIBLE_TIME, and the handle stays valid."""
    handle = (await one(client, topic, group)).system_properties.receipt_handle
    assert (await client.change(topic, group, handle, seconds)).status.code == Code.ILLEGAL_INVISIBLE_TIME
    assert (await client.change(topic, group, handle, 12 * 3600)).status.code == Code.OK


async def test_171_attempt_after_a_change(traveller: Traveller, topic: str, group: str) -> None:
    """The duration starts at the change, and the next delivery is the next attempt."""
    client = traveller.client
    received = await one(client, topic, group, invisible=10)
    await traveller.clock.advance(8)
    await client.change(topic, group, received.system_properties.receipt_handle, 60)
    await traveller.clock.advance(58)
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
    await traveller.clock.advance(3)
    assert (await client.receive(topic, group, wait=5)).attempts == {"hello": 2}


async def test_172_last_attempt(client: RawClient, topic: str, group: str) -> None:
    """After its last attempt the message goes to the group's dead letters."""
    await client.create_group(group, max_attempts=3)
    await client.sent(message(topic))
    for attempt in (1, 2, 3):
        received = (await client.receive(topic, group, wait=5)).one
        assert received.system_properties.delivery_attempt == attempt
        await client.change(topic, group, received.system_properties.receipt_handle, 0)
    assert (await client.receive(topic, group, wait=0.2)).code == Code.MESSAGE_NOT_FOUND
    dead = (await client.receive(f"%DLQ%{group}", f"{group}-audit", wait=5)).one
    assert dead.body == b"hello"
    assert dead.system_properties.dead_letter_queue.topic == topic


async def test_173_forwarded(traveller: Traveller, topic: str, group: str) -> None:
    """OK; the dead letter has its original topic and id, and the group never gets it again."""
    client = traveller.client
    received = await one(client, topic, group)
    message_id = received.system_properties.message_id
    handle = received.system_properties.receipt_handle
    assert await client.forward(topic, group, handle, message_id) == Code.OK
    dead = (await client.receive(f"%DLQ%{group}", f"{group}-audit", wait=5)).one
    assert dead.topic.name == f"%DLQ%{group}"
    assert dead.body == received.body
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == (topic, message_id)
    await traveller.clock.advance(3600)
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND


async def test_174_forwarding_without_a_handle(client: RawClient, topic: str, group: str) -> None:
    """INVALID_RECEIPT_HANDLE, also for a message forwarded before."""
    received = await one(client, topic, group)
    handle = received.system_properties.receipt_handle
    assert await client.forward(topic, group, "nonsense") == Code.INVALID_RECEIPT_HANDLE
    assert await client.forward(topic, f"{group}-2", handle) == Code.INVALID_RECEIPT_HANDLE
    assert await client.forward(topic, group, handle) == Code.OK
    assert await client.forward(topic, group, handle) == Code.INVALID_RECEIPT_HANDLE


async def test_175_topic_of_a_redelivery(client: RawClient, topic: str, group: str) -> None:
    """Topic, queue and offset are those to which the message was sent."""
    first = await one(client, topic, group)
    await client.change(topic, group, first.system_properties.receipt_handle, 0)
    again = (await client.receive(topic, group, wait=5)).one
    assert again.topic.name == topic
    for name in ("queue_id", "queue_offset", "message_id"):
        assert getattr(again.system_properties, name) == getattr(first.system_properties, name)
