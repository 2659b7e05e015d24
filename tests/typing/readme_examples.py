"""The examples of the README, held to the types of the client by mypy; they are not run."""

from __future__ import annotations

import asyncio
from typing import assert_type

from aerobee_client import (
    BatchError,
    Message,
    NotFoundError,
    ReceivedMessage,
    SendResult,
    SqlFilter,
    StoredMessage,
    UnavailableError,
    connect,
)
from aerobee_client.testing import BrokerProcess


async def send_and_receive() -> None:
    async with connect("127.0.0.1:8081") as client:
        producer = client.producer()
        result = await producer.send(Message(topic="orders", body=b"hello", tag="paid", keys=("order-7",)))
        assert_type(result, SendResult)

        consumer = client.simple_consumer("billing", "orders")
        for message in await consumer.receive(max_count=16, invisible_seconds=30, wait_seconds=10):
            assert_type(message, ReceivedMessage)
            print(message.body.decode(), message.keys, message.delivery_attempt)
            await consumer.ack(message)


async def send_many() -> None:
    async with connect() as client:
        messages = [Message(topic="orders", body=b"%d" % number) for number in range(10_000)]
        try:
            results = await client.producer().send_many(messages)
            assert_type(results, list[SendResult])
        except BatchError as error:
            failed = [m for m, outcome in zip(messages, error.outcomes, strict=True) if isinstance(outcome, Exception)]
            print(len(failed), "to send again")


async def filter_and_postpone() -> None:
    async with connect("127.0.0.1:8081", request_timeout_seconds=5) as client:
        consumer = client.simple_consumer("audit", {"orders": "paid || refunded", "stock": SqlFilter("amount > 100")})
        messages = await consumer.receive()
        later = [await consumer.change_invisible(message, 60) for message in messages]
        assert_type(later, list[ReceivedMessage])
        await consumer.ack(later)


async def administer() -> None:
    async with connect("127.0.0.1:8081") as client:
        topic = await client.admin.create_topic("orders", queue_count=8)
        assert_type(topic.name, str)
        async for message in client.admin.query("orders", key="order-7"):
            assert_type(message, StoredMessage)
            print(message.store_timestamp, message.body)
        try:
            await client.admin.describe_topic("nothing")
        except (NotFoundError, UnavailableError) as error:
            print(error)


async def test_with_a_real_broker(aerobee_broker: BrokerProcess) -> None:
    async with connect(aerobee_broker.endpoint) as client:
        await client.producer().send(Message(topic="orders", body=b"hello"))
        aerobee_broker.restart()
        consumer = client.simple_consumer("billing", "orders")
        (message,) = await consumer.receive()
        assert message.body == b"hello"


if __name__ == "__main__":
    asyncio.run(send_and_receive())
