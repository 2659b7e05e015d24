"""Items 64 to 73: heartbeats and terminations."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_client.testing import BrokerProcess
from aerobee_proto import admin_v1, v2
from tests.conformance.conftest import Traveller
from tests.conformance.raw_client import (
    BUSY_MACHINE_FACTOR,
    RawClient,
    connected,
    consumer_settings,
    message,
    producer_settings,
)

Code = v2.Code
Kind = v2.ClientType


async def _listed(client: RawClient, group: str) -> list[str]:
    """The ids of the group's clients, as an operator sees them."""
    described = await client.admin.DescribeGroup(admin_v1.DescribeGroupRequest(name=group), timeout=60)
    assert described.status.code == Code.OK
    return [each.client_id for each in described.clients]


async def test_064_after_settings(client: RawClient, topic: str, group: str) -> None:
    """OK, for producers and consumers."""
    async with client.telemetry() as stream:
        await stream.told(**producer_settings(topic))
        assert await client.heartbeat(kind=Kind.PRODUCER) == Code.OK
    consumer = client.other()
    async with consumer.telemetry() as stream:
        await stream.told(**consumer_settings(group, topic))
        assert await consumer.heartbeat(group) == Code.OK


async def test_065_unknown_client(client: RawClient, group: str) -> None:
    """OK as well: after a restart the official clients send no settings for minutes."""
    assert await client.heartbeat(group) == Code.OK
    assert await client.heartbeat(kind=Kind.PRODUCER) == Code.OK


async def test_066_empty_heartbeat(client: RawClient, topic: str) -> None:
    """Go's client recovers with a call without headers and fields; the connection continues."""
    answer = await client.stub.Heartbeat(v2.HeartbeatRequest(), timeout=60)
    assert answer.status.code in (Code.OK, Code.CLIENT_ID_REQUIRED)
    assert (await client.route(topic)).status.code == Code.OK


async def test_067_producer_with_an_empty_group(client: RawClient) -> None:
    """Go's producers send a group with an empty name."""
    assert await client.heartbeat("", Kind.PRODUCER) == Code.OK


@pytest.mark.parametrize("kind", [Kind.PUSH_CONSUMER, Kind.SIMPLE_CONSUMER], ids=Kind.Name)
async def test_068_illegal_group(client: RawClient, kind: v2.ClientType.ValueType) -> None:
    """ILLEGAL_CONSUMER_GROUP for a consumer without a group, or with an illegal name."""
    for group in ("", "a b", "g" * 121, "CID_RMQ_SYS_x"):
        assert await client.heartbeat(group, kind) == Code.ILLEGAL_CONSUMER_GROUP


async def test_069_silent_client(traveller: Traveller, topic: str, group: str) -> None:
    """After 120 s it is no longer listed, and others get its messages in flight; a client that calls stays."""
    clock, channel = traveller.clock, traveller.client.channel
    silent, lively = RawClient(channel, "silent"), RawClient(channel, "lively")
    await lively.sent(message(topic))
    for consumer in (silent, lively):
        assert await consumer.heartbeat(group) == Code.OK
    assert (await silent.receive(topic, group, auto_renew=True)).bodies == ["hello"]
    for _ in range(11):
        await clock.advance(10)
        assert await lively.heartbeat(group) == Code.OK
    assert sorted(await _listed(lively, group)) == ["lively", "silent"]
    assert (await lively.receive(topic, group, auto_renew=True)).code == Code.MESSAGE_NOT_FOUND
    await clock.advance(10)
    await lively.heartbeat(group)
    await clock.advance(6)  # the check runs every 5 s, and its messages wait 1 s
    await clock.advance(2)
    assert await _listed(lively, group) == ["lively"]
    assert (await lively.receive(topic, group, auto_renew=True, wait=5)).attempts == {"hello": 2}


async def test_070_termination(client: RawClient, group: str, topic: str) -> None:
    """OK, and operators no longer see the client."""
    await client.receive(topic, group)  # creates the group
    assert await client.heartbeat(group) == Code.OK
    assert await _listed(client, group) == [client.client_id]
    assert await client.goodbye(group) == Code.OK
    assert await _listed(client, group) == []


async def test_071_termination_releases_messages(
    broker: BrokerProcess, client: RawClient, topic: str, group: str
) -> None:
    """Another consumer gets the client's messages in flight within about a second."""
    await client.sent(message(topic))
    async with connected(broker.endpoint) as leaving:
        assert (await leaving.receive(topic, group, auto_renew=True, wait=5)).bodies == ["hello"]
        waiting = asyncio.create_task(client.receive(topic, group, auto_renew=True, wait=15))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        began = asyncio.get_running_loop().time()
        assert await leaving.goodbye(group) == Code.OK
        assert (await waiting).attempts == {"hello": 2}
        assert asyncio.get_running_loop().time() - began < 1 * BUSY_MACHINE_FACTOR


async def test_072_termination_of_an_unknown_client(client: RawClient, group: str) -> None:
    """The answer is a status, not a gRPC error, also the second time."""
    for _ in range(2):
        assert await client.goodbye(group) in (Code.OK, Code.UNRECOGNIZED_CLIENT_TYPE)
        assert await client.goodbye() in (Code.OK, Code.UNRECOGNIZED_CLIENT_TYPE)


async def test_073_termination_ends_long_polls(client: RawClient, topic: str, group: str) -> None:
    """Node.js's client waits for its polls before it ends: they must end before their timeout."""
    await client.route(topic)
    polls = [asyncio.create_task(client.receive(topic, group, wait=19, auto_renew=True)) for _ in range(3)]
    stays = client.other()
    other = asyncio.create_task(stays.receive(topic, group, wait=19, auto_renew=True))
    await asyncio.sleep(0.5)
    assert not any(poll.done() for poll in polls)
    assert await client.goodbye(group) == Code.OK
    async with asyncio.timeout(60):
        assert [(await poll).code for poll in polls] == [Code.MESSAGE_NOT_FOUND] * 3
    assert not other.done()
    await stays.sent(message(topic))
    assert (await other).bodies == ["hello"]
