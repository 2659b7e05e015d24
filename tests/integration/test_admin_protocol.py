"""Each call of apache.rocketmq.v2.Admin, made as a console makes it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.processors.administration import clients
from aerobee_proto import admin_v1, v2
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.conformance.raw_client import RawClient, consumer_settings, message, producer_settings, resource, timestamp
from tests.support.in_process_broker import InProcessBroker, in_process_broker

Code = v2.Code
TOPIC, GROUP = "orders", "billing"


@dataclass(frozen=True, slots=True)
class Harness:
    """A broker with a clock that the test moves, a client, and the stub that a console uses."""

    broker: InProcessBroker
    client: RawClient
    clock: TravellingClock
    admin: Any

    async def ok(self, method: str, request: Any) -> Any:
        """The answer to a call that must succeed."""
        answer = await getattr(self.admin, method)(request, timeout=20)
        assert answer.status.code == Code.OK, answer.status
        return answer

    async def refused(self, method: str, request: Any) -> int:
        """The code of a call that must fail; the answer must give a reason."""
        answer = await getattr(self.admin, method)(request, timeout=20)
        assert answer.status.message
        return int(answer.status.code)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A harness with the topic `orders` (one queue) and the group `billing`."""
    clock = TravellingClock()
    async with in_process_broker(tmp_path / "store", clock=clock, dev=False) as broker:
        client = RawClient(broker.channel)
        await client.create_topic(TOPIC, v2.MessageType.NORMAL, v2.MessageType.DELAY, v2.MessageType.TRANSACTION)
        await client.create_group(GROUP)
        yield Harness(broker, client, clock, broker.admin)


async def test_change_log_level(harness: Harness) -> None:
    """The remark names the new level, and the packages log at it. This is the one response without a status."""
    logger = logging.getLogger("aerobee_broker")
    for level, name in (("DEBUG", "DEBUG"), ("WARN", "WARNING"), ("TRACE", "DEBUG"), ("ERROR", "ERROR")):
        request = v2.ChangeLogLevelRequest(level=v2.ChangeLogLevelRequest.Level.Value(level))
        assert name in (await harness.admin.ChangeLogLevel(request, timeout=20)).remark
        assert logging.getLevelName(logger.level) == name


async def test_describe_topic_status(harness: Harness) -> None:
    """The answer has the topic's type; for a topic of several types, the first."""
    await harness.client.create_topic("payments", v2.MessageType.FIFO)
    answer = await harness.ok("DescribeTopicStatus", v2.DescribeTopicStatusRequest(topic=resource("payments")))
    assert answer.topic_message_type == v2.MessageType.FIFO
    answer = await harness.ok("DescribeTopicStatus", v2.DescribeTopicStatusRequest(topic=resource(TOPIC)))
    assert answer.topic_message_type == v2.MessageType.NORMAL
    request = v2.DescribeTopicStatusRequest(topic=resource("absent"))
    assert await harness.refused("DescribeTopicStatus", request) == Code.TOPIC_NOT_FOUND


def _subscriptions(**expressions: str) -> dict[str, Any]:
    """Settings of a consumer of billing; tags by topic."""
    settings = consumer_settings(GROUP, *expressions)
    for entry in settings["subscription"].subscriptions:
        entry.expression.expression = expressions[entry.topic.name]
    return settings


async def test_list_and_describe_subscriptions(harness: Harness) -> None:
    """Subscriptions are consistent while all clients of a group subscribe alike, in any spelling.

    They stay known after the clients have left.
    """
    listing = v2.ListSubscriptionRequest(group=resource(GROUP))
    assert not (await harness.ok("ListSubscription", listing)).subscription_info
    one, two = harness.client, harness.client.other("GO")
    async with one.telemetry() as first, two.telemetry() as second:
        await first.told(**_subscriptions(orders="paid || new"))
        await harness.clock.advance(60)
        await second.told(**_subscriptions(orders="new||paid"))
        (info,) = (await harness.ok("ListSubscription", listing)).subscription_info
        assert (info.group.name, info.topic.name, info.online, info.subscription_consistency) == (
            *(GROUP, TOPIC),
            *(True, True),
        )
        assert (info.expression.expression, info.message_model) == ("new||paid", v2.MessageModel.CLUSTERING)
        await second.told(**_subscriptions(orders="new"))
        (info,) = (
            await harness.ok("ListSubscription", v2.ListSubscriptionRequest(topic=resource(TOPIC)))
        ).subscription_info
        assert not info.subscription_consistency
        assert info.expression.expression == "new", "of the one that said it last"
        described = await harness.ok("DescribeSubscription", v2.DescribeSubscriptionRequest(group=resource(GROUP)))
        found = {
            each.client_info.client_id: (
                each.client_info.language,
                each.subscription_info.expression.expression,
                each.subscription_info.last_update_timestamp.ToMilliseconds(),
            )
            for each in described.client_subscription_info
        }
        assert found.keys() == {one.client_id, two.client_id}
        assert [found[each.client_id][:2] for each in (one, two)] == [("JAVA", "paid || new"), ("GO", "new")]
        assert found[two.client_id][2] - found[one.client_id][2] >= 60_000
    await one.receive(TOPIC, GROUP)
    for each in (one, two):
        assert await each.goodbye(GROUP) == Code.OK
    (info,) = (await harness.ok("ListSubscription", listing)).subscription_info
    assert (info.online, info.subscription_consistency, info.HasField("expression")) == (False, True, False)
    assert await harness.refused("ListSubscription", v2.ListSubscriptionRequest(group=resource("nobody"))) == (
        Code.CONSUMER_GROUP_NOT_FOUND
    )


async def test_an_answer_that_clients_could_not_take_is_refused(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These calls have no pages; the refusal says what to ask for instead."""
    monkeypatch.setattr(clients, "LISTING_SIZE_MAX", 1)
    async with harness.client.telemetry() as stream:
        await stream.told(**_subscriptions(orders="*"))
        for method, request, advice in (
            ("ListSubscription", v2.ListSubscriptionRequest(), "name a topic or a group"),
            ("DescribeSubscription", v2.DescribeSubscriptionRequest(), "name a topic and a group"),
            ("ListConsumerConnection", v2.ListConsumerConnectionRequest(group=resource(GROUP)), "has pages"),
        ):
            answer = await getattr(harness.admin, method)(request, timeout=20)
            assert answer.status.code == Code.BAD_REQUEST
            assert advice in answer.status.message


async def test_delete_subscription(harness: Harness) -> None:
    """A subscription is not deleted while a client reads.

    Afterwards the group has no position, even after a restart.
    """
    await harness.client.sent(message(TOPIC, "one"))
    await harness.client.receive(TOPIC, GROUP, wait=5)
    assert await harness.client.heartbeat(GROUP) == Code.OK
    request = v2.DeleteSubscriptionRequest(topic=resource(TOPIC), group=resource(GROUP))
    assert await harness.refused("DeleteSubscription", request) == Code.FORBIDDEN
    await harness.client.goodbye(GROUP)
    await harness.ok("DeleteSubscription", request)
    listing = v2.ListSubscriptionRequest(group=resource(GROUP))
    assert not (await harness.ok("ListSubscription", listing)).subscription_info
    assert await harness.refused("DeleteSubscription", request) == Code.NOT_FOUND
    again = await harness.client.other().receive(TOPIC, GROUP, wait=5)
    assert again.attempts == {"one": 1}, "as a group that never read the topic"


async def test_group_accumulation(harness: Harness) -> None:
    """In-flight and ready counts are exact for any order of acknowledgements; so is the oldest ready message's wait."""
    request = v2.DescribeGroupAccumulationRequest(group=resource(GROUP))
    assert (await harness.ok("DescribeGroupAccumulation", request)).accumulation.accumulation == 0
    await harness.client.sent(*(message(TOPIC, str(number)) for number in range(5)))
    received = await harness.client.receive(TOPIC, GROUP, count=3, wait=5)
    await harness.client.acknowledge(TOPIC, GROUP, received.messages[1])
    await harness.clock.advance(30)
    answer = await harness.ok("DescribeGroupAccumulation", request)
    found = answer.accumulation
    assert (found.inflight_messages, found.ready_messages, found.accumulation) == (2, 2, 4)
    assert 30 <= found.deliver_delay_time.seconds < 60
    assert found.last_consume_timestamp == 0, "nothing before the oldest that is not finished"
    assert answer.topic_accumulation[TOPIC] == found
    await harness.client.acknowledge(TOPIC, GROUP, received.messages[0], received.messages[2])
    request.topics.append(resource(TOPIC))
    found = (await harness.ok("DescribeGroupAccumulation", request)).accumulation
    assert (found.inflight_messages, found.ready_messages, found.last_consume_timestamp > 0) == (0, 2, True)
    request = v2.DescribeGroupAccumulationRequest(group=resource(GROUP), topics=[resource("absent")])
    assert await harness.refused("DescribeGroupAccumulation", request) == Code.TOPIC_NOT_FOUND


async def test_list_consumer_connections(harness: Harness) -> None:
    """The consumers of a group, filtered by topic on request; producers are not listed."""
    producer = harness.client.other()
    async with harness.client.telemetry() as consuming, producer.telemetry() as producing:
        await consuming.told(**consumer_settings(GROUP, TOPIC))
        await producing.told(**producer_settings(TOPIC))
        request = v2.ListConsumerConnectionRequest(group=resource(GROUP))
        (info,) = (await harness.ok("ListConsumerConnection", request)).client_info
        assert (info.client_id, info.language, info.version) == (harness.client.client_id, "JAVA", "5.2.1")
        assert (info.hostname, info.egress_ip) == ("conformance", "127.0.0.1")
        request.topic.CopyFrom(resource(TOPIC))
        assert len((await harness.ok("ListConsumerConnection", request)).client_info) == 1
        await harness.client.create_topic("other")
        request.topic.CopyFrom(resource("other"))
        assert not (await harness.ok("ListConsumerConnection", request)).client_info


async def test_reset_group_offset(harness: Harness) -> None:
    """A reset to a time moves in both directions.

    Acknowledged messages come again as attempt 1, skipped ones do not.
    """
    await harness.client.sent(message(TOPIC, "old"))
    await harness.clock.advance(60)
    between = harness.clock.now_ms() - 30_000
    await harness.client.sent(message(TOPIC, "new"))
    received = await harness.client.receive(TOPIC, GROUP, wait=5)
    await harness.client.acknowledge(TOPIC, GROUP, *received.messages)

    def to(milliseconds: int) -> v2.ResetGroupOffsetRequest:
        return v2.ResetGroupOffsetRequest(
            group=resource(GROUP), topic=resource(TOPIC), reset_timestamp=timestamp(milliseconds)
        )

    await harness.ok("ResetGroupOffset", to(between))
    assert (await harness.client.receive(TOPIC, GROUP, wait=5)).attempts == {"new": 1}
    await harness.ok("ResetGroupOffset", to(0))
    assert (await harness.client.receive(TOPIC, GROUP, wait=5)).attempts == {"old": 1, "new": 1}
    await harness.ok("ResetGroupOffset", to(harness.clock.now_ms() + 1))
    assert (await harness.client.receive(TOPIC, GROUP)).code == Code.MESSAGE_NOT_FOUND
    request = v2.ResetGroupOffsetRequest(group=resource(GROUP), topic=resource(TOPIC))
    assert await harness.refused("ResetGroupOffset", request) == Code.BAD_REQUEST
    request.topic.CopyFrom(resource("absent"))
    request.reset_timestamp.CopyFrom(timestamp(0))
    assert await harness.refused("ResetGroupOffset", request) == Code.TOPIC_NOT_FOUND


async def test_query_message(harness: Harness) -> None:
    """Messages are found by id, by key and by time, in pages, or as what a group has not finished."""
    sent = await harness.client.sent(message(TOPIC, "one", keys=["k1"]), message(TOPIC, "two", keys=["k1", "k2"]))
    begin = harness.clock.now_ms() - 60_000

    async def bodies(**search: Any) -> list[str]:
        request = v2.ListMessageRequest(topic=resource(TOPIC), **search)
        return [each.body.decode() for each in (await harness.ok("QueryMessage", request)).messages]

    assert await bodies(message_id=sent[0].message_id) == ["one"]
    assert await bodies(message_key="k1") == ["one", "two"]
    assert await bodies(message_key="k2") == ["two"]
    assert await bodies(message_key="absent") == []
    assert await bodies(begin_timestamp=timestamp(begin)) == ["one", "two"]
    assert await bodies(begin_timestamp=timestamp(begin + 120_000)) == []
    assert await bodies(end_timestamp=timestamp(begin)) == []
    page = await harness.ok("QueryMessage", v2.ListMessageRequest(topic=resource(TOPIC), max_message_nums=1))
    assert [each.body for each in page.messages] == [b"one"]
    assert await bodies(max_message_nums=1, scroll_id=page.scroll_id) == ["two"]
    assert await bodies(subscription=GROUP) == ["one", "two"], "what its first receive would bring"
    await harness.client.sent(message(TOPIC, "three"), message(TOPIC, "four"))
    received = await harness.client.receive(TOPIC, GROUP, count=3, wait=5)
    await harness.client.acknowledge(TOPIC, GROUP, received.messages[1])
    assert await bodies(subscription=GROUP) == ["one", "three", "four"], "what the group has not finished"
    first = v2.ListMessageRequest(topic=resource(TOPIC), subscription=GROUP, max_message_nums=2)
    answer = await harness.ok("QueryMessage", first)
    assert [each.body for each in answer.messages] == [b"one", b"three"]
    assert await bodies(subscription=GROUP, scroll_id=answer.scroll_id) == ["four"]
    assert await bodies(subscription=GROUP, end_timestamp=timestamp(begin)) == []
    request = v2.ListMessageRequest(topic=resource(TOPIC), subscription="nobody")
    assert await harness.refused("QueryMessage", request) == Code.CONSUMER_GROUP_NOT_FOUND
    request = v2.ListMessageRequest(topic=resource(TOPIC), lite_topic="not a name")
    assert await harness.refused("QueryMessage", request) == Code.ILLEGAL_LITE_TOPIC


async def test_lite_topics(harness: Harness) -> None:
    """Each call that accepts a lite topic: messages, lag, subscribers, and where a message is."""
    await harness.client.create_topic("rooms", v2.MessageType.LITE)
    kind = v2.ClientType.LITE_PUSH_CONSUMER
    async with harness.client.telemetry() as stream:
        await stream.told(**consumer_settings(GROUP, "rooms", kind=kind))
        subscribe = v2.SyncLiteSubscriptionRequest(
            topic=resource("rooms"), group=resource(GROUP), lite_topic_set=["one", "two"]
        )
        assert (await harness.client.call("SyncLiteSubscription", subscribe)).status.code == Code.OK
        sent = await harness.client.sent(
            *(
                message("rooms", f"{name}{number}", message_type=v2.MessageType.LITE, lite_topic=name)
                for name in ("one", "two", "three")
                for number in range(2)
            )
        )
        request = v2.ListMessageRequest(topic=resource("rooms"), lite_topic="two")
        found = (await harness.ok("QueryMessage", request)).messages
        assert [each.body for each in found] == [b"two0", b"two1"]
        accumulation = v2.DescribeGroupAccumulationRequest(group=resource(GROUP), topics=[resource("rooms")])
        answer = await harness.ok("DescribeGroupAccumulation", accumulation)
        assert {topic: each.accumulation for topic, each in answer.topic_accumulation.items()} == {"rooms": 4}
        assert not answer.lite_topic_accumulation
        accumulation.lite_topic = "one"
        answer = await harness.ok("DescribeGroupAccumulation", accumulation)
        assert {name: each.accumulation for name, each in answer.lite_topic_accumulation.items()} == {"one": 2}
        assert answer.accumulation.accumulation == 2
        for name, count in (("two", 1), ("three", 0)):
            connections = v2.ListConsumerConnectionRequest(group=resource(GROUP), liteTopic=name)
            clients = (await harness.ok("ListConsumerConnection", connections)).client_info
            assert [each.message_model for each in clients] == [v2.MessageModel.LITE_SELECTIVE] * count
        (info,) = (
            await harness.ok("ListSubscription", v2.ListSubscriptionRequest(group=resource(GROUP)))
        ).subscription_info
        assert (info.topic.name, info.message_model) == ("rooms", v2.MessageModel.LITE_SELECTIVE)
        running = v2.GetConsumerRunningInfoRequest(group=resource(GROUP), client_id=harness.client.client_id)
        items = (await harness.ok("GetConsumerRunningInfo", running)).consumer_running_info.message_queue_table
        assert len(items) == 2
        received = await harness.client.receive("rooms", GROUP, wait=5)
        await harness.client.acknowledge("rooms", GROUP, *(each for each in received.messages if each.body == b"one0"))
        states = []
        for entry in (sent[0], sent[1], sent[4]):
            describe = admin_v1.DescribeMessageRequest(topic="rooms", message_id=entry.message_id, history=True)
            (timeline,) = (await harness.client.admin.DescribeMessage(describe)).timelines
            events = [admin_v1.TimelineEvent.Kind.Name(event.kind) for event in timeline.events]
            states.append(([each.state for each in timeline.groups], events[2:]))
        state = admin_v1.GroupMessageState.State
        assert states == [
            ([state.FINISHED], ["DELIVERED", "FINISHED"]),
            ([state.IN_FLIGHT], ["DELIVERED"]),
            ([], []),
        ]
        reset = admin_v1.ResetOffsetsRequest(group=GROUP, topic="rooms", earliest=True, dry_run=True)
        moves = (await harness.client.admin.ResetOffsets(reset)).queues
        assert [(queue.lite_topic, queue.before, queue.after) for queue in moves] == [("one", 1, 0), ("two", 0, 0)]
        reset.lite_topic, reset.dry_run = "one", False
        assert len((await harness.client.admin.ResetOffsets(reset)).queues) == 1
        assert (await harness.client.receive("rooms", GROUP, wait=5)).attempts == {"one0": 1, "one1": 1}
        reset.topic = TOPIC
        assert (await harness.client.admin.ResetOffsets(reset)).status.code == Code.BAD_REQUEST
    await harness.client.goodbye(GROUP)
    delete = v2.DeleteSubscriptionRequest(topic=resource("rooms"), group=resource(GROUP))
    await harness.ok("DeleteSubscription", delete)
    described = await harness.client.admin.DescribeGroup(admin_v1.DescribeGroupRequest(name=GROUP))
    assert not described.queues


async def test_admin_send_message(harness: Harness) -> None:
    """A message is stored like a producer's, and the answer has its id.

    A transactional one is refused: nobody would decide it.
    """
    request = v2.AdminSendMessageRequest(
        topic=resource(TOPIC), tag="paid", key="k1", body=b"by hand", user_properties={"colour": "red"}
    )
    answer = await harness.ok("AdminSendMessage", request)
    received = (await harness.client.receive(TOPIC, GROUP, wait=5)).one
    system = received.system_properties
    assert (received.body, system.message_id) == (b"by hand", answer.message_id)
    assert (system.tag, list(system.keys), dict(received.user_properties)) == ("paid", ["k1"], {"colour": "red"})
    assert system.born_timestamp.ToMilliseconds() > 0
    request.system_properties.message_id = "m-1"
    assert (await harness.ok("AdminSendMessage", request)).message_id == "m-1"
    request.system_properties.message_type = v2.MessageType.TRANSACTION
    assert await harness.refused("AdminSendMessage", request) == Code.BAD_REQUEST
    request = v2.AdminSendMessageRequest(topic=resource("absent"), body=b"x")
    assert await harness.refused("AdminSendMessage", request) == Code.TOPIC_NOT_FOUND
    request = v2.AdminSendMessageRequest(topic=resource(TOPIC))
    assert await harness.refused("AdminSendMessage", request) == Code.MESSAGE_BODY_EMPTY


async def test_consumer_running_info(harness: Harness) -> None:
    """The broker's view of a push consumer: subscriptions, positions, and messages its connection keeps invisible."""
    await harness.client.sent(*(message(TOPIC, str(number)) for number in range(4)))
    async with harness.client.telemetry() as stream:
        await stream.told(**consumer_settings(GROUP, TOPIC))
        await harness.client.receive(TOPIC, GROUP, count=3, auto_renew=True, wait=5)
        request = v2.GetConsumerRunningInfoRequest(group=resource(GROUP), client_id=harness.client.client_id)
        info = (await harness.ok("GetConsumerRunningInfo", request)).consumer_running_info
        assert info.properties["clientType"] == "PUSH_CONSUMER"
        assert info.subscriptions[TOPIC].expression == "*"
        (item,) = info.message_queue_table
        held = item.process_queue_info
        assert (item.message_queue.topic.name, item.message_queue.id) == (TOPIC, 0)
        assert (held.commit_offset, held.cached_msg_count) == (0, 3)
        assert (held.cached_msg_min_offset, held.cached_msg_max_offset) == (0, 2)
    request.client_id = "nobody"
    assert await harness.refused("GetConsumerRunningInfo", request) == Code.NOT_FOUND


async def test_print_thread_stack_trace(harness: Harness) -> None:
    """The client's answer is matched by the command's nonce; PROXY_TIMEOUT if none arrives within 5 s."""
    request = v2.PrintThreadStackTraceRequest(client_id=harness.client.client_id, group=resource(GROUP))
    assert await harness.refused("PrintThreadStackTrace", request) == Code.NOT_FOUND
    async with harness.client.telemetry() as stream:
        await stream.told(**consumer_settings(GROUP, TOPIC))
        asked = asyncio.ensure_future(harness.ok("PrintThreadStackTrace", request))
        stacks = v2.ThreadStackTrace(nonce=(await stream.read()).print_thread_stack_trace_command.nonce)
        stacks.thread_stack_trace = "main: waiting"
        await stream.call.write(v2.TelemetryCommand(thread_stack_trace=stacks))
        assert (await asked).thread_stack_trace == "main: waiting"
        silent = asyncio.ensure_future(harness.refused("PrintThreadStackTrace", request))
        assert (await stream.read()).print_thread_stack_trace_command.nonce
        await harness.clock.advance(4)
        assert not silent.done()
        await harness.clock.advance(2)
        assert await silent == Code.PROXY_TIMEOUT


async def test_verify_message(harness: Harness) -> None:
    """The message goes to the named client, whose verdict is returned; the message is not consumed."""
    (sent,) = await harness.client.sent(message(TOPIC, "try me"))
    request = v2.VerifyMessageRequest(
        client_id=harness.client.client_id, group=resource(GROUP), topic=resource(TOPIC), message_id=sent.message_id
    )
    async with harness.client.telemetry() as stream:
        await stream.told(**consumer_settings(GROUP, TOPIC))

        async def tried(**answer: Any) -> Any:
            """The console's answer when the client answers like this."""
            asked = asyncio.ensure_future(harness.admin.VerifyMessage(request, timeout=20))
            command = (await stream.read()).verify_message_command
            assert (command.message.body, command.message.topic.name) == (b"try me", TOPIC)
            result = v2.TelemetryCommand(**answer)
            getattr(result, result.WhichOneof("command") or "").nonce = command.nonce
            await stream.call.write(result)
            return (await asked).status

        result = v2.VerifyMessageResult()
        assert (await tried(verify_message_result=result)).code == Code.OK
        failed = v2.Status(code=Code.FAILED_TO_CONSUME_MESSAGE, message="the listener says no")
        assert await tried(status=failed, verify_message_result=result) == failed
        nodes = v2.Status(code=Code.NOT_IMPLEMENTED, message="not implemented")  # in the command's field
        assert await tried(status=nodes, verify_message_command=v2.VerifyMessageCommand()) == nodes
        request.message_id = "absent"
        assert await harness.refused("VerifyMessage", request) == Code.MESSAGE_NOT_FOUND
    assert (await harness.client.receive(TOPIC, GROUP, wait=5)).attempts == {"try me": 1}


async def test_topic_route(harness: Harness) -> None:
    """The route is JSON that a reader of RocketMQ 4 routes understands."""
    answer = await harness.ok("GetTopicRoute", v2.GetTopicRouteRequest(topic=resource(TOPIC)))
    route = json.loads(answer.topic_route_data)
    (broker,), (queues,) = route["brokerDatas"], route["queueDatas"]
    assert broker["brokerAddrs"] == {"0": harness.broker.endpoint}
    assert (broker["brokerName"], queues["brokerName"]) == ("aerobee", "aerobee")
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (1, 1, 6)
    request = v2.GetTopicRouteRequest(topic=resource("absent"))
    assert await harness.refused("GetTopicRoute", request) == Code.TOPIC_NOT_FOUND


async def test_query_time_span(harness: Harness) -> None:
    """The times of each queue's first and last message, and of the group's position."""
    request = v2.QueryTimeSpanRequest(group=resource(GROUP), topics=[resource(TOPIC)])
    assert not (await harness.ok("QueryTimeSpan", request)).queue_time_span_list, "no queue was ever written"
    await harness.client.sent(message(TOPIC, "old"))
    received = await harness.client.receive(TOPIC, GROUP, wait=5)
    await harness.client.acknowledge(TOPIC, GROUP, *received.messages)
    await harness.clock.advance(60)
    await harness.client.sent(message(TOPIC, "new"))
    await harness.clock.advance(30)
    (span,) = (await harness.ok("QueryTimeSpan", request)).queue_time_span_list
    assert 60_000 <= span.max_timestamp - span.min_timestamp < 90_000
    assert span.consume_timestamp == span.max_timestamp
    assert 30_000 <= span.delay_time_ms < 60_000
    assert (await harness.ok("QueryTimeSpan", v2.QueryTimeSpanRequest(group=resource(GROUP)))).queue_time_span_list[
        0
    ].message_queue.topic.name == TOPIC


async def test_proxy_runtime_stats(harness: Harness) -> None:
    """Rates of the last minute, and the connected clients."""
    async with harness.client.telemetry() as stream:
        await stream.told(**consumer_settings(GROUP, TOPIC))
        await harness.client.sent(*(message(TOPIC, str(number)) for number in range(3)))
        await harness.client.receive(TOPIC, GROUP, wait=5)
        answer = await harness.ok("GetProxyRuntimeStats", v2.GetProxyRuntimeStatsRequest())
        assert (answer.proxy_name, answer.connections, answer.consumers, answer.producers) == ("aerobee", 1, 1, 0)
        assert answer.in_tps > 0
        assert answer.out_tps > 0
        assert answer.version
