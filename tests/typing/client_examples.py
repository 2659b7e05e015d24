"""The examples of docs/client.md: mypy checks their types, tests/integration/test_client_examples.py runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, assert_type
from zlib import crc32

from aerobee_client import (
    Client,
    Message,
    Queue,
    ReceivedMessage,
    Resolution,
    SendResult,
    StoredMessage,
    blocking,
    connect,
)
from aerobee_client.records import Appended


class Database(Protocol):
    """What the examples store in."""

    async def has_order(self, key: str) -> bool: ...

    async def commit(self) -> None: ...

    async def bill(self, order: bytes) -> None: ...


async def main() -> None:
    async with connect("127.0.0.1:8081") as client:
        await client.producer().send(Message(topic="orders", body=b"hello", tag="paid", keys=("order-7",)))
        async with client.simple_consumer("billing", "orders") as consumer:
            for message in await consumer.receive():
                print(message.body, message.delivery_attempt)
                await consumer.ack(message)


def without_an_event_loop() -> None:
    with blocking.connect("127.0.0.1:8081") as client:
        assert_type(client.producer().send(Message(topic="orders", body=b"hello")), SendResult)
        with client.simple_consumer("billing", "orders") as consumer:
            assert_type(consumer.receive(), list[ReceivedMessage])


async def sending(client: Client, messages: Sequence[Message], tomorrow: int) -> None:
    producer = client.producer(compression="zlib", max_in_flight=4)
    result = await producer.send(Message(topic="orders", body=b"..."))
    assert_type(result, SendResult)
    future = await producer.submit(Message(topic="orders", body=b"..."))
    assert_type(future, asyncio.Future[SendResult])
    results = await producer.send_many(messages)
    assert_type(results, list[SendResult])
    await producer.send_one_way(Message(topic="orders", body=b"..."))
    await producer.flush()
    by_customer = client.producer(
        queue_selector=lambda message, queues: queues[crc32(message.keys[0].encode()) % len(queues)]
    )
    assert_type((await by_customer.send(messages[0])).queue_id, int | None)
    later = await producer.send(Message(topic="orders", body=b"...", delivery_timestamp=tomorrow))
    await producer.recall("orders", later.recall_handle)


async def transactions(client: Client, database: Database) -> None:
    async def was_it_stored(message: StoredMessage) -> Resolution:
        return "commit" if await database.has_order(message.keys[0]) else "rollback"

    producer = client.producer(topics=["orders"], transaction_checker=was_it_stored)
    async with producer.transaction() as transaction:
        await transaction.send(Message(topic="orders", body=b"...", keys=("7",)))
        await database.commit()


async def consuming(client: Client, database: Database, stop: asyncio.Event, yesterday: int) -> None:
    async def bill(message: ReceivedMessage) -> None:
        await database.bill(message.body)

    async with client.push_consumer("billing", {"orders": "paid || refunded"}, bill, concurrency=32):
        await stop.wait()

    async with client.pull_consumer("audit", "orders", start="begin") as consumer:
        await consumer.seek_to_time(yesterday)
        async for message in consumer:
            assert_type(message, StoredMessage)
            print(message.queue_id, message.queue_offset, message.body)
        assert_type(consumer.assignment(), frozenset[Queue])


async def in_bulk(client: Client, queue_id: int, messages: Sequence[Message]) -> None:
    packed = client.records.pack("orders", queue_id, messages)
    async with client.records.appender("orders", queue_id) as appender:
        future = await appender.append(packed)
    assert_type(await future, Appended)
    async for frame in client.records.read("orders", queue_id, start=0):
        columns = frame.batch()
        print(len(columns), list(frame.bodies()))


if __name__ == "__main__":
    asyncio.run(main())
