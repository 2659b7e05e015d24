"""Items 74 to 81: the assignments of a push consumer."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, message, ordered

Code = v2.Code


async def test_074_standard_group(client: RawClient, topic: str, group: str) -> None:
    """One assignment: queue -1 of the broker, which means any queue."""
    response = await client.assignment(topic, group)
    assert response.status.code == Code.OK
    [assignment] = response.assignments
    queue = assignment.message_queue
    assert (queue.id, queue.permission, queue.broker.id, queue.topic.name) == (-1, v2.Permission.READ_WRITE, 0, topic)
    assert queue.broker.name


async def test_075_orderly_group(client: RawClient, topic: str, group: str) -> None:
    """Every readable queue; a push consumer gets only messages of the queue it names."""
    await client.create_topic(topic, v2.MessageType.FIFO, queues=3)
    await client.create_group(group, fifo=True)
    response = await client.assignment(topic, group)
    assert response.status.code == Code.OK
    assert [each.message_queue.id for each in response.assignments] == [0, 1, 2]
    await client.sent(*(ordered(topic, f"{number}", f"g{number}") for number in range(20)))
    for queue_id in (2, 0, 1):
        received = await client.receive(topic, group, queue_id=queue_id, auto_renew=True, wait=5)
        assert {each.system_properties.queue_id for each in received.messages} == {queue_id}


async def test_076_two_consumers(client: RawClient, topic: str, group: str) -> None:
    """Both get the same assignments, but no message reaches both."""
    other = client.other()
    assert await client.assignment(topic, group) == await other.assignment(topic, group)
    sent = [f"m{number}" for number in range(40)]
    await client.sent(*(message(topic, body) for body in sent))

    async def drain(consumer: RawClient) -> list[str]:
        messages = await consumer.receive_all(topic, group, 40, count=3, wait=0.5, queue_id=-1, auto_renew=True)
        return [each.body.decode() for each in messages]

    first, second = await asyncio.gather(drain(client), drain(other))
    assert sorted(first + second) == sorted(sent)


async def test_077_endpoints(client: RawClient, topic: str, group: str) -> None:
    """The same as in the route: the address that the client used, otherwise the broker's listening address."""
    for addresses in ((), (("mapped.example", 1234),)):
        [assignment] = (await client.assignment(topic, group, *addresses)).assignments
        route = await client.route(topic, *addresses)
        assert assignment.message_queue.broker == route.message_queues[0].broker


async def test_078_unknown_topic(strict_client: RawClient, topic: str, group: str) -> None:
    """TOPIC_NOT_FOUND."""
    assert (await strict_client.assignment(topic, group)).status.code == Code.TOPIC_NOT_FOUND


@pytest.mark.parametrize("name", ["", "a b", "TBW102"], ids=repr)
async def test_079_illegal_names(client: RawClient, topic: str, group: str, name: str) -> None:
    """ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP."""
    assert (await client.assignment(name, group)).status.code == Code.ILLEGAL_TOPIC
    if name != "TBW102":
        assert (await client.assignment(topic, name)).status.code == Code.ILLEGAL_CONSUMER_GROUP


async def test_080_write_only_topic(client: RawClient, topic: str, group: str) -> None:
    """FORBIDDEN for a write-only topic."""
    await client.create_topic(topic, permission=v2.Permission.WRITE)
    assert (await client.assignment(topic, group)).status.code == Code.FORBIDDEN


async def test_081_without_settings(client: RawClient, topic: str, group: str) -> None:
    """A client unknown to the broker gets its assignment."""
    assert (await client.other().assignment(topic, group)).status.code == Code.OK
