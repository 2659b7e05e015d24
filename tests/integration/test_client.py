"""The client with a real broker: the README's examples, and what happens when the broker becomes unreachable."""

from __future__ import annotations

import asyncio
import time

import pytest

from aerobee_client import (
    BadRequestError,
    BatchError,
    Client,
    ForbiddenError,
    Message,
    ReceivedMessage,
    SimpleConsumer,
    connect,
)
from aerobee_client.testing import BrokerProcess
from tests.support.port_forwarder import forwarded_port

pytestmark = pytest.mark.timeout(300)


async def receive_all(consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    """Receive exactly `count` messages and acknowledge them."""
    received: list[ReceivedMessage] = []
    async with asyncio.timeout(60):
        while len(received) < count:
            batch = await consumer.receive(32, wait_seconds=5)
            await consumer.ack(batch)
            received += batch
    assert await consumer.receive(wait_seconds=0) == []
    return received


async def test_a_waiting_receive_wakes_with_the_message(client: Client) -> None:
    """Long polling: the message arrives when it is sent, long before the wait would end."""
    consumer = client.simple_consumer("g", "woken")
    assert await consumer.receive(wait_seconds=0) == []
    waiting = asyncio.create_task(consumer.receive(wait_seconds=20))
    await asyncio.sleep(0.1)  # time for the call to reach the broker and wait there
    began = time.monotonic()
    await client.producer().send(Message(topic="woken", body=b"x"))
    (message,) = await waiting
    assert message.body == b"x"
    assert time.monotonic() - began < 15


async def test_a_message_of_one_topic_does_not_wait_for_the_others(client: Client) -> None:
    """All topics are polled at once: an empty one delays no other, and loses no message."""
    consumer = client.simple_consumer("g", {"empty-1": "*", "full": "*", "empty-2": "*"})
    assert await consumer.receive(wait_seconds=0) == []
    began = time.monotonic()
    for number in range(4):
        waiting = asyncio.create_task(consumer.receive(wait_seconds=20))
        await client.producer().send(Message(topic="full", body=b"%d" % number))
        (message,) = await waiting
        assert message.body == b"%d" % number
        await consumer.ack(message)
    assert time.monotonic() - began < 15
    await client.producer().send_many([Message(topic=topic, body=b"x") for topic in ("empty-1", "full", "empty-2")])
    await receive_all(consumer, 3)


async def test_many_messages_arrive_once(client: Client) -> None:
    """Consumers of one group share the messages that `send_many` stored."""
    messages = [Message(topic="shared", body=b"%d" % number) for number in range(600)]
    await client.producer().send_many(messages)
    consumers = [client.simple_consumer("g", "shared") for _ in range(2)]
    received: list[bytes] = []

    async def consume(consumer: SimpleConsumer) -> None:
        while batch := await consumer.receive(32, wait_seconds=0):
            received.extend(message.body for message in batch)
            await consumer.ack(batch)

    await asyncio.gather(*map(consume, consumers))
    assert sorted(received) == sorted(message.body for message in messages)


async def test_a_returned_message_is_redelivered(client: Client) -> None:
    """An invisible time of 0 seconds redelivers the message as the next attempt. The first handle becomes invalid."""
    await client.producer().send(Message(topic="given-back", body=b"x"))
    consumer = client.simple_consumer("g", "given-back")
    (first,) = await consumer.receive()
    await consumer.change_invisible(first, 0)
    (second,) = await consumer.receive()
    assert (first.delivery_attempt, second.delivery_attempt) == (1, 2)
    with pytest.raises(BadRequestError):
        await consumer.ack(first)
    await consumer.ack(second)


async def test_a_bad_message_fails_alone(client: Client) -> None:
    """The other messages of its request are stored, whether the client or the broker finds the mistake.

    The broker stores all messages of a request or none.
    """
    await client.admin.create_topic("normal-only")
    for bad in (Message(topic="normal-only", body=b"x", tag="a|b"), Message(topic="normal-only", body=b"x", tag="\t")):
        good = Message(topic="normal-only", body=b"x")
        with pytest.raises(BatchError, match="1 of 3 failed") as raised:
            await client.producer().send_many([good, bad, good])
        assert [isinstance(outcome, BadRequestError) for outcome in raised.value.outcomes] == [False, True, False]


async def test_a_message_refused_by_the_broker_alone(client: Client) -> None:
    """It has a property name that the broker reserves; the other messages of the request are sent again."""
    bad = Message(topic="reserved", body=b"bad", properties={"KEYS": "mine"})
    with pytest.raises(BatchError, match="1 of 3 failed") as raised:
        await client.producer().send_many(
            [Message(topic="reserved", body=b"1"), bad, Message(topic="reserved", body=b"3")]
        )
    assert [isinstance(outcome, BadRequestError) for outcome in raised.value.outcomes] == [False, True, False]
    received = await receive_all(client.simple_consumer("g", "reserved"), 2)
    assert sorted(message.body for message in received) == [b"1", b"3"]


async def test_a_group_in_use_is_not_deleted(client: Client) -> None:
    """Deleting would cut off connected clients; it works once the last consumer has left."""
    consumer = client.simple_consumer("in-use", "whatever")
    await consumer.receive(wait_seconds=0)
    with pytest.raises(ForbiddenError):
        await client.admin.delete_group("in-use")
    await consumer.close()
    await client.admin.delete_group("in-use")
    assert "in-use" not in [group.name for group in await client.admin.list_groups()]


async def test_a_broker_behind_a_slow_link(broker: BrokerProcess) -> None:
    """A handshake that takes longer than the pause between two attempts is not broken off."""
    with forwarded_port(broker.endpoint, delay_seconds=1.5) as port:
        async with connect(port.endpoint) as client:
            await client.producer().send(Message(topic="slow-link", body=b"x"))


async def test_a_client_survives_a_restart_of_its_broker(
    aerobee_broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker is killed and restarted: the client logs the outage, retries, and loses no confirmed message."""
    async with connect(aerobee_broker.endpoint) as client:
        producer = client.producer()
        consumer = client.simple_consumer("g", "kept")
        await producer.send(Message(topic="kept", body=b"consumed"))
        (consumed,) = await consumer.receive()
        await consumer.ack(consumed)
        await producer.send(Message(topic="kept", body=b"held"))
        (held,) = await consumer.receive(invisible_seconds=60)
        await producer.send(Message(topic="kept", body=b"waiting"))

        await asyncio.to_thread(aerobee_broker.kill)
        sending = asyncio.create_task(producer.send(Message(topic="kept", body=b"afterwards")))
        while "retrying for up to 30 s" not in caplog.text:  # noqa: ASYNC110  # a log has no event
            await asyncio.sleep(0.01)
        await asyncio.to_thread(aerobee_broker.start)
        await sending
        received = await receive_all(consumer, 2)
        assert sorted(message.body for message in received) == [b"afterwards", b"waiting"]
        await consumer.ack(held)  # its handle is still valid
