"""FIFO over real gRPC: sends to a message group, delivery to an ordered group, and the released Python SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_proto import admin_v1, v2
from tests.integration.conftest import StartProgram
from tests.support.in_process_broker import InProcessBroker, in_process_broker
from tests.support.official_sdks import PYTHON
from tests.support.sdk_program import SdkProgram, send_until_taken, wait_all_messages, wait_group

TOPIC, GROUP = "ledger-entries", "ledger"
Code = v2.Code


# --- The protocol -------------------------------------------------------------------------------------------


class Conversation:
    """Client calls to one broker for one topic and one group."""

    def __init__(self, broker: InProcessBroker) -> None:
        self.broker = broker

    async def create(self, *, queue_count: int = 1, fifo: bool = True, max_attempts: int = 0) -> None:
        """Create the topic, and the group with or without order."""
        topic = admin_v1.Topic(
            name=TOPIC,
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            accept_message_types=[v2.MessageType.FIFO],
        )
        await self.broker.administration.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), metadata=metadata())
        group = admin_v1.Group(name=GROUP, fifo=fifo, max_attempts=max_attempts)
        await self.broker.administration.CreateGroup(admin_v1.CreateGroupRequest(group=group), metadata=metadata())

    async def send(self, *messages: tuple[str, str | None], topic: str = TOPIC) -> v2.SendMessageResponse:
        """Send (body, message group) pairs in one request."""
        request = v2.SendMessageRequest()
        for body, message_group in messages:
            kind = v2.MessageType.NORMAL if message_group is None else v2.MessageType.FIFO
            system = v2.SystemProperties(message_id=f"id-{body}", message_type=kind, message_group=message_group)
            request.messages.append(
                v2.Message(topic=v2.Resource(name=topic), body=body.encode(), system_properties=system)
            )
        response: v2.SendMessageResponse = await self.broker.messaging.SendMessage(
            request, metadata=metadata(), timeout=60
        )
        return response

    async def send_in_order(self, message_group: str, *bodies: str) -> None:
        for body in bodies:
            response = await self.send((body, message_group))
            assert response.status.code == Code.OK

    async def receive(
        self,
        count: int = 32,
        *,
        client_id: str = "consumer",
        seconds: float | None = 20.0,
        wait: float = 0.0,
        attempt_id: str = "",
        queue_id: int = -1,
        topic: str = TOPIC,
    ) -> list[v2.Message]:
        """Receive messages; `seconds` None means auto-renew. Without messages the status is MESSAGE_NOT_FOUND."""
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=GROUP), batch_size=count, auto_renew=seconds is None, attempt_id=attempt_id
        )
        request.message_queue.topic.name = topic
        request.message_queue.id = queue_id
        if seconds is not None:
            request.invisible_duration.FromMilliseconds(round(seconds * 1000))
        request.long_polling_timeout.FromMilliseconds(round(wait * 1000))
        call = self.broker.messaging.ReceiveMessage(request, metadata=metadata(client_id), timeout=wait + 15)
        responses = [response async for response in call]
        messages = [response.message for response in responses if response.WhichOneof("content") == "message"]
        assert responses[0].status.code == (Code.OK if messages else Code.MESSAGE_NOT_FOUND)
        return messages

    async def acknowledge(self, *messages: v2.Message) -> None:
        entries = [
            v2.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        request = v2.AckMessageRequest(group=v2.Resource(name=GROUP), topic=v2.Resource(name=TOPIC), entries=entries)
        response = await self.broker.messaging.AckMessage(request, metadata=metadata(), timeout=60)
        assert response.status.code == Code.OK

    async def change_invisible(self, message: v2.Message, seconds: float) -> None:
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=GROUP),
            topic=v2.Resource(name=TOPIC),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        request.invisible_duration.FromMilliseconds(round(seconds * 1000))
        response = await self.broker.messaging.ChangeInvisibleDuration(request, metadata=metadata(), timeout=60)
        assert response.status.code == Code.OK

    async def forward(self, message: v2.Message) -> None:
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            group=v2.Resource(name=GROUP),
            topic=v2.Resource(name=TOPIC),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        response = await self.broker.messaging.ForwardMessageToDeadLetterQueue(request, metadata=metadata(), timeout=60)
        assert response.status.code == Code.OK


def metadata(client_id: str = "producer") -> tuple[tuple[str, str], ...]:
    return (("x-mq-client-id", client_id), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.1"))


def told(messages: Sequence[v2.Message]) -> list[tuple[str, int]]:
    """Body and attempt, in the order of the answer."""
    return [(message.body.decode(), message.system_properties.delivery_attempt) for message in messages]


def consumer_settings(*topics: str, group: str = GROUP) -> v2.TelemetryCommand:
    subscription = v2.Subscription(group=v2.Resource(name=group))
    for topic in topics:
        subscription.subscriptions.add(topic=v2.Resource(name=topic)).expression.expression = "*"
    return v2.TelemetryCommand(settings=v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER, subscription=subscription))


async def told_settings(broker: InProcessBroker, command: v2.TelemetryCommand, client_id: str) -> v2.Settings:
    """The broker's answer to a consumer's settings."""
    call = broker.messaging.Telemetry(metadata=metadata(client_id), timeout=60)
    await call.write(command)
    answer = await call.read()
    call.cancel()
    settings: v2.Settings = answer.settings
    return settings


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Conversation]:
    """A broker that allows short invisible times."""
    async with in_process_broker(tmp_path / "store", delivery=DeliveryConfig(invisible_seconds_min=0.05)) as broker:
        yield Conversation(broker)


# Sending


async def test_one_message_group_stays_in_one_queue_in_the_order_of_its_sends(talk: Conversation) -> None:
    """RocketMQ's hash chooses the queue; offsets increase, also for several groups in one request."""
    await talk.create(queue_count=8)
    vectors = {"order-1": 3, "order-2": 2, "group-A": 2, "message-group-0": 1}
    for round_number in range(3):
        for group in vectors:
            response = await talk.send((f"{group}.{round_number}", group))
            assert response.status.code == Code.OK
    batch = [(f"{group}.{3 + round_number}", group) for round_number in range(2) for group in vectors]
    response = await talk.send(*batch)
    assert [entry.status.code for entry in response.entries] == [Code.OK] * len(batch)
    found = await talk.receive()
    assert len(found) == 5 * len(vectors)
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for message in found:
        system = message.system_properties
        assert system.message_type == v2.MessageType.FIFO
        places[system.message_group].append((system.queue_id, system.queue_offset))
    for group, queue_id in vectors.items():
        assert {queue for queue, _ in places[group]} == {queue_id}
        assert [offset for _, offset in places[group]] == sorted(offset for _, offset in places[group])
        bodies = [m.body.decode() for m in found if m.system_properties.message_group == group]
        assert bodies == [f"{group}.{number}" for number in range(5)]


# Settings and assignments


async def test_a_group_that_a_consumer_of_a_fifo_topic_creates_is_orderly(talk: Conversation) -> None:
    """Settings and assignment say so before the first receive creates it.

    Without a FIFO topic the group is unordered.
    """
    await talk.create()
    cases = ((("normal", TOPIC), "made", True), (("normal",), "plain", False))
    for topics, group, orderly in cases:
        settings = await told_settings(talk.broker, consumer_settings(*topics, group=group), f"c-{group}")
        assert settings.subscription.fifo == orderly
        request = v2.ReceiveMessageRequest(group=v2.Resource(name=group), batch_size=1, auto_renew=True)
        request.message_queue.topic.name = topics[0]
        request.long_polling_timeout.FromSeconds(0)
        call = talk.broker.messaging.ReceiveMessage(request, metadata=metadata(f"c-{group}"), timeout=30)
        assert [response async for response in call]
        described = await talk.broker.administration.DescribeGroup(
            admin_v1.DescribeGroupRequest(name=group), metadata=metadata()
        )
        assert described.group.fifo == orderly


async def test_assignment_of_an_orderly_group_has_every_queue(talk: Conversation) -> None:
    """One assignment per readable queue. A push consumer receives from the queue it names, others from all."""
    await talk.create(queue_count=4)
    request = v2.QueryAssignmentRequest(topic=v2.Resource(name=TOPIC), group=v2.Resource(name=GROUP))
    response = await talk.broker.messaging.QueryAssignment(request, metadata=metadata(), timeout=60)
    assert [assignment.message_queue.id for assignment in response.assignments] == [0, 1, 2, 3]
    await talk.send_in_order("order-1", "in-3")
    await talk.send_in_order("order-2", "in-2")
    assert await talk.receive(seconds=None, queue_id=0) == []
    assert told(await talk.receive(seconds=None, queue_id=2)) == [("in-2", 1)]
    assert told(await talk.receive(queue_id=0)) == [("in-3", 1)]  # a simple consumer may name any queue


# Delivery


async def test_message_groups_progress_independently(talk: Conversation) -> None:
    """Groups of one queue, messages without a group, and later messages do not wait for each other."""
    await talk.create(queue_count=1)
    await talk.send(("a0", "a"), ("b0", "b"), ("a1", "a"), ("b1", "b"))
    assert told(await talk.receive(1)) == [("a0", 1)]
    batch = await talk.receive(32)
    assert told(batch) == [("b0", 1), ("b1", 1)]
    await talk.acknowledge(*batch)
    await talk.send(("a2", "a"), ("b2", "b"))
    assert told(await talk.receive(32)) == [("b2", 1)]


async def test_redelivery_begins_at_the_first_unacknowledged_message(talk: Conversation) -> None:
    """Messages come in order as attempt 2; acknowledged ones behind it do not come again."""
    await talk.create()
    await talk.send_in_order("g", "m0", "m1", "m2", "m3")
    batch = await talk.receive(3)
    await talk.acknowledge(batch[0], batch[2])
    await talk.change_invisible(batch[1], 0.1)
    again = await talk.receive(32, wait=20)
    assert told(again) == [("m1", 2)]
    await talk.acknowledge(*again)
    assert told(await talk.receive(32, wait=20)) == [("m3", 1)]


async def test_a_cancelled_receive_does_not_cost_an_attempt(talk: Conversation) -> None:
    """Its client disconnects while waiting; the message is not lost, and comes in order."""
    await talk.create()
    request = v2.ReceiveMessageRequest(group=v2.Resource(name=GROUP), batch_size=1, auto_renew=True, attempt_id="x")
    request.message_queue.topic.name = TOPIC
    request.message_queue.id = -1
    request.long_polling_timeout.FromSeconds(5)
    call = talk.broker.messaging.ReceiveMessage(request, metadata=metadata("consumer"), timeout=30)
    await asyncio.sleep(0.1)
    call.cancel()
    await talk.send_in_order("g", "m0", "m1")
    batch = await talk.receive(32, seconds=None, attempt_id="x", wait=20)
    assert told(batch) == [("m0", 1), ("m1", 1)]


async def test_the_last_acknowledgement_wakes_a_waiting_receive(talk: Conversation) -> None:
    """It wakes a receive on any queue or on a push consumer's; earlier acknowledgements do not."""
    await talk.create()
    for seconds in (20.0, None):
        await talk.send_in_order("g", "m0", "m1", "m2")
        first = await talk.receive(2)
        waiting = asyncio.create_task(
            talk.receive(client_id="other", wait=20, seconds=seconds, queue_id=-1 if seconds else 0)
        )
        await talk.acknowledge(first[0])
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        await talk.acknowledge(first[1])
        async with asyncio.timeout(60):
            last = await waiting
        assert told(last) == [("m2", 1)]
        await talk.acknowledge(*last)


async def test_forwarding_to_the_dead_letters_unlocks_the_message_group(talk: Conversation) -> None:
    """A waiting receive gets the next message; the dead letter is readable."""
    await talk.create()
    await talk.send_in_order("g", "poison", "next")
    [poison] = await talk.receive(1)
    waiting = asyncio.create_task(talk.receive(client_id="other", wait=20))
    await talk.forward(poison)
    async with asyncio.timeout(60):
        assert told(await waiting) == [("next", 1)]
    [dead] = await talk.receive(topic=f"%DLQ%{GROUP}", wait=20)
    assert dead.body == b"poison"
    assert dead.system_properties.dead_letter_queue.topic == TOPIC


async def test_the_last_attempt_unlocks_the_message_group(talk: Conversation) -> None:
    """After two attempts it becomes a dead letter, and the next one is delivered."""
    await talk.create(max_attempts=2)
    await talk.send_in_order("g", "poison", "next")
    assert told(await talk.receive(1, seconds=0.1)) == [("poison", 1)]
    assert told(await talk.receive(1, seconds=0.1, wait=20)) == [("poison", 2)]
    assert told(await talk.receive(1, wait=20)) == [("next", 1)]
    assert told(await talk.receive(topic=f"%DLQ%{GROUP}", wait=20)) == [("poison", 1)]


async def test_a_changed_invisible_duration_locks_the_message_group_until_then(talk: Conversation) -> None:
    """A longer duration extends the lock, 0 unlocks at once; attempts keep counting."""
    await talk.create()
    await talk.send_in_order("g", "m0", "m1")
    [message] = await talk.receive(1, seconds=2)
    await talk.change_invisible(message, 5)
    assert await talk.receive(1, wait=2.2) == []
    [message] = await talk.receive(1, wait=20)
    assert told([message]) == [("m0", 2)]
    await talk.change_invisible(message, 0)
    again = await talk.receive(32, wait=20)
    assert told(again) == [("m0", 3)]
    await talk.acknowledge(*again)
    assert told(await talk.receive(32, wait=20)) == [("m1", 1)]


async def test_locks_survive_an_orderly_restart(tmp_path: Path) -> None:
    """Messages in flight keep their group locked, their handles work, and the order is kept."""
    for life in (1, 2):
        async with in_process_broker(tmp_path / "store") as broker:
            talk = Conversation(broker)
            if life == 1:
                await talk.create()
                await talk.send_in_order("g", "m0", "m1")
                [message] = await talk.receive(1, attempt_id="one")
                handle = message.system_properties.receipt_handle
                continue
            assert await talk.receive() == []
            assert told(await talk.receive(attempt_id="one")) == [("m0", 1)]
            await talk.acknowledge(v2.Message(system_properties=v2.SystemProperties(receipt_handle=handle)))
            assert told(await talk.receive()) == [("m1", 1)]


# --- The released Python SDK --------------------------------------------------------------------------------


Start = Callable[..., SdkProgram]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """The test's own broker with development settings, which create groups on first use."""
    with run_broker(tmp_path) as running:
        yield running


@pytest.fixture
def start(start_program: StartProgram, process: BrokerProcess) -> Start:
    """Starts a program of the Python SDK by its name."""
    return partial(start_program, PYTHON, endpoint=process.endpoint)


def administer(process: BrokerProcess, *arguments: str) -> None:
    command = [sys.executable, "-m", "aerobee_broker", *arguments, "--endpoint", process.endpoint]
    subprocess.run(command, check=True, capture_output=True, timeout=30)


def rounds(count: int, *groups: str, first: int = 0) -> list[dict[str, Any]]:
    """Messages of several message groups in turn; a body is the group and a number."""
    return [
        {"body": f"{group}.{number}", "message_group": group}
        for number in range(first, first + count)
        for group in groups
    ]


def numbers(events: list[dict[str, Any]], group: str) -> list[int]:
    """The numbers of one message group's messages, in the order in which a listener got them."""
    parts = [event["body"].partition(".") for event in events]
    return [int(number) for name, _, number in parts if name == group]


@PYTHON.mark
def test_sdk_keeps_the_order_while_one_message_fails(process: BrokerProcess, start: Start) -> None:
    """A push consumer creates its group on first use.

    The failing message is retried before its group continues, and other message groups do not wait.
    """
    administer(process, "topic", "create", TOPIC, "--type", "fifo")
    consumer = start("push_consumer", topic=TOPIC, group=GROUP, failing_calls={"a.3": 2}, threads=8)
    producer = start("producer", topic=TOPIC)
    consumer.ready()
    sent = rounds(12, "a", "b", "c")
    producer.ready().ask("send", messages=sent)
    wait_all_messages([consumer], {message["body"] for message in sent}, "acknowledged")
    called, finished = consumer.messages(), consumer.messages("acknowledged")
    assert numbers(called, "a") == [0, 1, 2, 3, 3, *range(3, 12)]
    for group in "abc":  # the SDK acknowledges in threads, so the answers may come in another order
        assert sorted(numbers(finished, group)) == list(range(12))
    for group in "bc":
        assert numbers(called, group) == list(range(12))
    tries = [index for index, event in enumerate(called) if event["body"] == "a.3"]
    before = called[: tries[-1]]
    assert max(numbers(before, "b")) > 3
    assert max(numbers(before, "c")) > 3
    wait_group(process, GROUP, lag=0)


@PYTHON.mark
def test_sdk_continues_after_a_dead_letter(process: BrokerProcess, start: Start) -> None:
    """After its last attempt the message becomes a dead letter, and the next of its group is delivered."""
    administer(process, "topic", "create", TOPIC, "--type", "fifo")
    administer(process, "group", "create", GROUP, "--fifo", "--max-attempts", "2")
    consumer = start("push_consumer", topic=TOPIC, group=GROUP, failing_calls={"a.1": 99})
    producer = start("producer", topic=TOPIC)
    consumer.ready()
    producer.ready().ask("send", messages=rounds(4, "a"))
    wait_all_messages([consumer], {"a.0", "a.2", "a.3"}, "acknowledged")
    assert numbers(consumer.messages(), "a") == [0, 1, 1, 2, 3]
    wait_group(process, GROUP, lag=0)
    reader = start("simple_consumer", topic=f"%DLQ%{GROUP}", group="reader")
    reader.ready()
    assert [message["body"] for message in reader.ask("receive", count=10, invisible=30)["messages"]] == ["a.1"]


@PYTHON.mark
def test_sdk_keeps_the_order_after_a_kill_of_the_broker(process: BrokerProcess, start: Start) -> None:
    """The broker is killed and restarted: no message group skips a message or repeats acknowledged ones."""
    administer(process, "topic", "create", TOPIC, "--type", "fifo")
    groups = [f"group-{number}" for number in range(6)]
    consumers = [start("push_consumer", topic=TOPIC, group=GROUP, seconds=0.02) for _ in range(2)]
    producer = start("producer", topic=TOPIC)
    for consumer in consumers:
        consumer.ready()
    producer.ready().ask("send", messages=rounds(20, *groups))
    deadline = time.monotonic() + 60
    while sum(len(consumer.messages("acknowledged")) for consumer in consumers) < 10:
        assert time.monotonic() < deadline, consumers[0].logs()
        time.sleep(0.02)
    process.kill()
    process.start()
    send_until_taken(producer, rounds(5, *groups, first=20))
    everything = {message["body"] for message in rounds(25, *groups)}
    wait_all_messages(consumers, everything)
    wait_group(process, GROUP, lag=0)  # not by acknowledgements: the answer to one may be lost
    called = sorted((event for consumer in consumers for event in consumer.messages()), key=lambda each: each["time"])
    for group in groups:
        order = numbers(called, group)
        # At least once: the batch in progress at the kill may be delivered again from its first message.
        first_calls = list(dict.fromkeys(order))
        assert first_calls == list(range(25))
        assert len(order) <= 25 + 32
