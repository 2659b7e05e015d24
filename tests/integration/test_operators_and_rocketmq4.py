"""What operators see of clients and tools of RocketMQ 4: connections, changes, messages with a delay level."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aerobee_broker.clients.accounts import Right
from aerobee_broker.clients.permissions import REMOTING
from aerobee_broker.config import Address
from aerobee_broker.limits import loop_share
from aerobee_broker.remoting.audit import CHANGES
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.tables.topics import TopicConfig, TopicTable
from aerobee_broker.timer import level_listing, listing
from aerobee_client import Client, Message, NotFoundError, connect
from aerobee_proto import admin_v1, v2
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.support.remoting_client import RemotingClient, heartbeat_body, remoting_broker, send

TOPIC, GROUP = "orders", "billing"


class Remote(NamedTuple):
    """A broker's clients of both protocols, a stub of its calls, its clock, and its address for RocketMQ 4."""

    client: Client
    remoting: RemotingClient
    stub: Any
    clock: TravellingClock
    address: Address | None


@pytest.fixture
async def remote(tmp_path: Path) -> AsyncIterator[Remote]:
    """A broker with a client of each protocol."""
    clock = TravellingClock()
    async with (
        remoting_broker(tmp_path / "store", clock=clock) as (broker, remoting),
        connect(broker.endpoint) as client,
    ):
        await client.admin.create_topic(TOPIC, queue_count=1)
        await client.admin.create_group(GROUP)
        yield Remote(client, remoting, admin_v1.AdminServiceStub(broker.channel), clock, broker.remoting)


class TestClientsOfRocketMQ4:
    async def test_they_are_listed_and_sent_away(self, remote: Remote) -> None:
        """A consumer and its producer are one client, of its group and topic; its connection is closed."""
        client, remoting, *_ = remote
        await remoting.call(Request.HEART_BEAT, body=heartbeat_body("host@1", GROUP, TOPIC, expression="paid"))
        admin = client.admin
        [found] = [each async for each in admin.connections()]
        assert (found.client_id, found.group, found.client_type) == ("host@1", GROUP, v2.ClientType.PUSH_CONSUMER)
        assert [(each.topic.name, each.expression.expression) for each in found.subscriptions] == [(TOPIC, "paid")]
        assert (found.language, found.telemetry) == (v2.Language.JAVA, False)
        for options, count in (
            ({"group": GROUP}, 1),
            ({"group": "other"}, 0),
            ({"topic": TOPIC}, 1),
            ({"topic": "other"}, 0),
            ({"client_id": "host@1"}, 1),
            ({"client_id": "host@2"}, 0),
        ):
            assert len([each async for each in admin.connections(**options)]) == count, options
        [group] = [each async for each in admin.group_status()]
        assert group.client_count == 1
        await admin.disconnect_client("host@1")
        assert [each async for each in admin.connections()] == []
        await remoting.closed()
        with pytest.raises(NotFoundError):
            await admin.disconnect_client("host@1")

    async def test_a_group_with_a_connected_consumer_is_not_deserted(self, remote: Remote) -> None:
        """Messages that wait are a problem only if nobody of either protocol is connected."""
        client, _, _, clock, address = remote
        await client.producer().send(Message(topic=TOPIC, body=b"x"))
        await client.admin.reset_offsets(GROUP, TOPIC, earliest=True)

        async def is_deserted() -> bool:
            return "AerobeeConsumersGone" in [each.name for each in await client.admin.problems()]

        looked = 0
        while not await is_deserted():
            await clock.advance(60)
            looked += 1
            assert looked < 100
        consumer = await RemotingClient.connect(address)  # the first connection was idle for too long
        await consumer.call(Request.HEART_BEAT, body=heartbeat_body("host@1", GROUP, TOPIC))
        while await is_deserted():
            await clock.advance(10)
            await consumer.call(Request.HEART_BEAT, body=heartbeat_body("host@1", GROUP, TOPIC))
            looked += 1
            assert looked < 100
        await consumer.close()

    async def test_what_their_tools_change_is_noted(self, remote: Remote) -> None:
        """With the name of the request and what it asked for; refused ones and questions are not."""
        client, remoting, *_ = remote
        topic = {"topic": "made", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "Signature": "private"}
        assert (await remoting.call(Request.UPDATE_AND_CREATE_TOPIC, topic)).code == Answer.SUCCESS
        assert (await remoting.call(Request.UPDATE_AND_CREATE_TOPIC, {**topic, "perm": 99})).code != Answer.SUCCESS
        assert (await remoting.call(Request.GET_ALL_TOPIC_CONFIG)).code == Answer.SUCCESS
        assert (await remoting.call(Request.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=48\n")).code == Answer.SUCCESS
        assert (await remoting.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "made"})).code == Answer.SUCCESS
        found = [each async for each in client.admin.operations(max_count=3)]
        assert [each.method for each in found] == [
            *("DELETE_TOPIC_IN_BROKER", "UPDATE_BROKER_CONFIG", "UPDATE_AND_CREATE_TOPIC")
        ]
        assert found[1].request == "fileReservedTime=48"
        assert 'topic: "made"' in found[2].request
        assert "private" not in found[2].request
        assert found[0].address.startswith("127.0.0.1:")

    async def test_messages_with_a_delay_level_are_listed(
        self, remote: Remote, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In one order with those that have a time of their own, in pages of any size; they cannot be recalled."""
        client, remoting, stub, clock, _ = remote
        await client.admin.create_topic("timed", message_types=[v2.MessageType.DELAY])
        producer = client.producer()
        for body, seconds in ((b"100", 100), (b"500", 500), (b"7000", 7000)):
            due = clock.now_ms() + seconds * 1000
            await producer.send(Message(topic="timed", body=body, delivery_timestamp=due))
        levels = {"30s": 4, "60s": 5, "600s": 14, "7200s": 18}
        for name, level in levels.items():
            answered = await send(remoting, TOPIC, name.encode(), properties=f"DELAY\x01{level}\x02")
            assert answered.code == Answer.SUCCESS
        order = [b"30s", b"60s", b"100", b"500", b"600s", b"7000", b"7200s"]
        found: list[admin_v1.DelayedMessage] = []
        async with asyncio.timeout(60):
            while len(found) != len(order):
                found = [each async for each in client.admin.delayed_messages(bodies=True)]
        assert [each.message.body for each in found] == order
        assert [bool(each.recall_handle) for each in found] == [each.isdigit() for each in order]
        waits = [(each.due_timestamp.ToMilliseconds() - clock.now_ms()) / 1000 for each in found]
        assert waits == pytest.approx([30, 60, 100, 500, 600, 7000, 7200], abs=30)
        for size in (1, 2, 3):
            paged: list[bytes] = []
            request = admin_v1.ListDelayedMessagesRequest(page_size=size, include_bodies=True)
            while True:
                page = await stub.ListDelayedMessages(request, timeout=20)
                assert page.total_count == len(order)
                paged += [each.message.body for each in page.messages]
                if not (token := page.next_page_token):
                    break
                request.page_token = token
            assert paged == order, size
        for module in (listing, level_listing):  # each call has time for one message of each kind
            monkeypatch.setattr(module, "SECONDS_MAX", -1.0)
        assert [each.message.body async for each in client.admin.delayed_messages(bodies=True)] == order
        monkeypatch.undo()
        only = [each.message.body async for each in client.admin.delayed_messages(TOPIC, bodies=True)]
        assert only == [each for each in order if not each.isdigit()]
        begin, end = (found[place].due_timestamp.ToMilliseconds() for place in (1, 5))
        between = [each.message.body async for each in client.admin.delayed_messages(bodies=True, begin=begin, end=end)]
        assert between == order[1:5]
        await clock.advance(61)
        async with asyncio.timeout(60):
            while [each.message.body async for each in client.admin.delayed_messages(bodies=True)] != order[2:]:
                pass


ASKED_ONLY = (
    "GET_",
    "QUERY_",
    "VIEW_",
    "CLEAN_",
    "DELETE_EXPIRED_",
    "INVOKE_BROKER_TO_GET",
)
"""Beginnings of the names of requests that change nothing."""
AMONG_BROKERS = {
    *("REGISTER_BROKER", "UNREGISTER_BROKER", "BROKER_HEARTBEAT", "EXCHANGE_BROKER_HA_INFO"),
    *("NOTIFY_BROKER_ROLE_CHANGED", "UPDATE_NAME_SERVER_CONFIG"),  # of a replica, or refused
}


def test_every_change_of_an_operator_over_remoting_is_noted() -> None:
    """A new request of operators is noted, or is one that only asks."""
    rights = {Right.ADMIN, Right.CLUSTER}
    codes = {Request(code) for code, row in REMOTING.items() if rights & {need.right for need in row}}
    asking = {code for code in codes if code.name.startswith(ASKED_ONLY) or code.name in AMONG_BROKERS}
    assert codes - asking == CHANGES


async def test_many_topics_in_one_request_let_other_work_go_on(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's tools send all topics of a broker at once; the loop serves others between two of them."""
    count, turns = 50, 0
    created_in: set[int] = set()
    create = TopicTable.create

    def creating(table: TopicTable, topic: TopicConfig) -> None:
        created_in.add(turns)
        create(table, topic)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    topics = [{"topicName": f"topic-{number}", "readQueueNums": 1, "writeQueueNums": 1} for number in range(count)]
    monkeypatch.setattr(loop_share, "_TURN_SECONDS", -1.0)
    monkeypatch.setattr(TopicTable, "create", creating)
    other = asyncio.create_task(take_turns())
    answer = await remote.remoting.call(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, {"topicConfigList": topics})
    other.cancel()
    assert answer.code == Answer.SUCCESS
    listed = {topic.name for topic in await remote.client.admin.list_topics()}
    assert {str(topic["topicName"]) for topic in topics} <= listed
    assert len(created_in) == count
