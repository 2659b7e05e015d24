"""Items 152 to 161: ordered consumer groups."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_proto import v2
from tests.conformance.conftest import Traveller
from tests.conformance.raw_client import RawClient, consumer_settings, ordered

Code = v2.Code


async def start(client: RawClient, topic: str, group: str, *bodies: str, queues: int = 1) -> None:
    """Create a FIFO topic and an ordered group; the body `b:1` belongs to message group `b`."""
    await client.create_topic(topic, v2.MessageType.FIFO, queues=queues)
    await client.create_group(group, fifo=True)
    await client.sent(*(ordered(topic, body, body.partition(":")[0]) for body in bodies))


async def test_152_in_order(client: RawClient, topic: str, group: str) -> None:
    """One consumer gets a message group in the order of sending, for every batch size."""
    sent = [f"g:{number}" for number in range(30)]
    await start(client, topic, group, *sent, queues=4)
    got: list[str] = []
    while len(got) < len(sent):
        received = await client.receive(topic, group, count=1 + len(got) % 5, wait=5)
        assert received.messages, f"nothing after {got[-1:]}"
        got += received.bodies
        assert (await client.acknowledge(topic, group, *received.messages)).status.code == Code.OK
    assert got == sent


async def test_153_one_after_another(client: RawClient, topic: str, group: str) -> None:
    """The next message of a message group waits until the one before is acknowledged."""
    await start(client, topic, group, "g:0", "g:1")
    first = (await client.receive(topic, group, count=1, wait=5)).one
    for consumer in (client, client.other()):
        assert (await consumer.receive(topic, group, wait=0.1)).code == Code.MESSAGE_NOT_FOUND
    await client.acknowledge(topic, group, first)
    assert (await client.receive(topic, group, wait=5)).bodies == ["g:1"]


async def test_154_two_consumers(client: RawClient, topic: str, group: str) -> None:
    """They share the work, and each message group stays in order, with one consumer at a time."""
    sent = [f"{name}:{number}" for number in range(20) for name in "abc"]
    await start(client, topic, group, *sent, queues=2)
    got: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    in_hand: dict[str, RawClient] = {}

    async def consume(consumer: RawClient) -> None:
        while sum(map(len, got.values())) < len(sent):
            received = await consumer.receive(topic, group, count=2, wait=0.3)
            for body in received.bodies:
                name, _, number = body.partition(":")
                assert in_hand.setdefault(name, consumer) is consumer, f"{name} is in two hands"
                got[name].append(int(number))
            await asyncio.sleep(0.002)  # simulated work
            for body in received.bodies:
                in_hand.pop(body.partition(":")[0], None)
            if received.messages:
                await consumer.acknowledge(topic, group, *received.messages)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for consumer in (client, client.other()):
            tasks.create_task(consume(consumer))
    assert got == {name: list(range(20)) for name in "abc"}


async def test_155_independent_groups(client: RawClient, topic: str, group: str) -> None:
    """While one message group waits for an acknowledgement another continues, even in the same queue."""
    await start(client, topic, group, "a:0", "a:1", "b:0", "b:1")
    held = (await client.receive(topic, group, count=1, wait=5)).one
    assert held.body == b"a:0"
    for expected in ("b:0", "b:1"):
        received = await client.receive(topic, group, count=1, wait=5)
        assert received.bodies == [expected]
        await client.acknowledge(topic, group, received.one)
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
    await client.acknowledge(topic, group, held)
    assert (await client.receive(topic, group, wait=5)).bodies == ["a:1"]


async def test_156_expired_batch(traveller: Traveller, topic: str, group: str) -> None:
    """It is redelivered from its first unacknowledged message, in order, each attempt one higher."""
    client = traveller.client
    await start(client, topic, group, *(f"g:{number}" for number in range(4)))
    batch = await client.receive(topic, group, count=3, invisible=30)
    assert batch.bodies == ["g:0", "g:1", "g:2"]
    await client.acknowledge(topic, group, batch.messages[0])
    await traveller.clock.advance(31)
    again = await client.receive_all(topic, group, 2, count=2)
    assert [each.body for each in again] == [b"g:1", b"g:2"]
    assert {each.system_properties.delivery_attempt for each in again} == {2}
    await client.acknowledge(topic, group, *again)
    assert (await client.receive(topic, group, wait=5)).attempts == {"g:3": 1}


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_157_repeated_attempt(client: RawClient, topic: str, group: str, auto_renew: bool) -> None:
    """A client that lost the answer retries with the same id: it gets the same messages and attempt."""
    await start(client, topic, group, "g:0", "g:1", "g:2")
    first = await client.receive(topic, group, count=2, attempt_id="try", auto_renew=auto_renew, wait=5)
    assert first.attempts == {"g:0": 1, "g:1": 1}
    again = await client.receive(topic, group, count=2, attempt_id="try", auto_renew=auto_renew, wait=5)
    assert again.bodies == first.bodies
    assert again.attempts == first.attempts
    assert (await client.acknowledge(topic, group, *again.messages)).status.code == Code.OK
    assert (await client.receive(topic, group, attempt_id="next", auto_renew=auto_renew, wait=5)).bodies == ["g:2"]


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_158_new_attempt(client: RawClient, topic: str, group: str, auto_renew: bool) -> None:
    """Another id is a different receive: it finds nothing while the messages are in flight."""
    await start(client, topic, group, "g:0", "g:1")
    first = await client.receive(topic, group, count=1, attempt_id="one", auto_renew=auto_renew, wait=5)
    assert first.bodies == ["g:0"]
    for attempt_id in ("two", "", None):
        received = await client.receive(topic, group, attempt_id=attempt_id, auto_renew=auto_renew)
        assert received.code == Code.MESSAGE_NOT_FOUND


async def test_159_acknowledgement_wakes(client: RawClient, topic: str, group: str) -> None:
    """A receive that waits for the message group continues after the last earlier message is acknowledged."""
    await start(client, topic, group, "g:0", "g:1", "g:2")
    batch = await client.receive(topic, group, count=2, wait=5)
    waiting = asyncio.create_task(client.other().receive(topic, group, wait=19))
    await asyncio.sleep(0.1)
    await client.acknowledge(topic, group, batch.messages[0])
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await client.acknowledge(topic, group, batch.messages[1])
    async with asyncio.timeout(60):
        assert (await waiting).bodies == ["g:2"]


async def test_160_dead_letter_unlocks(client: RawClient, topic: str, group: str) -> None:
    """After a consumer forwards a message to the dead letters, a receive that waits gets the next one."""
    await start(client, topic, group, "g:0", "g:1")
    bad = (await client.receive(topic, group, count=1, wait=5)).one
    waiting = asyncio.create_task(client.other().receive(topic, group, wait=19))
    await asyncio.sleep(0.1)
    handle = bad.system_properties.receipt_handle
    assert await client.forward(topic, group, handle, bad.system_properties.message_id) == Code.OK
    async with asyncio.timeout(60):
        assert (await waiting).bodies == ["g:1"]
    assert (await client.receive(f"%DLQ%{group}", f"{group}-audit", wait=5)).bodies == ["g:0"]


async def test_161_settings(client: RawClient, topic: str, group: str) -> None:
    """The settings say whether the group consumes in order; one that a consumer of a FIFO topic creates does."""
    await start(client, topic, group)
    await client.create_topic(f"{topic}-normal")
    await client.create_group(f"{group}-standard", fifo=False)
    groups = {group: topic, f"{group}-standard": topic, f"{group}-new": topic, f"{group}-new-2": f"{topic}-normal"}
    orderly = {group, f"{group}-new"}
    for _ in range(2):  # before the first receive, which creates the groups that are new, and after it
        for name, consumed in groups.items():
            async with client.other().telemetry() as stream:
                subscription = (await stream.told(**consumer_settings(name, consumed))).subscription
                assert (subscription.HasField("fifo"), subscription.fifo) == (True, name in orderly), name
            await client.receive(consumed, name)
