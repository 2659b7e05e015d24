"""A broker with a shop's messages: something of every kind that the console shows, for tests and pictures."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_client import Client, Message, SendResult
from aerobee_proto import v2
from tests.support.remoting_client import RemotingClient

_CUSTOMERS = ("ada", "grace", "edsger", "barbara", "leslie")


@dataclass(frozen=True, slots=True)
class Shop:
    """What was made."""

    order: SendResult
    """Of topic orders: delivered twice to billing and acknowledged, waiting for analytics."""
    dead: SendResult
    """Of topic payments: a dead letter of group ledger."""


async def make_shop(client: Client, *, count: int = 40) -> Shop:
    """Create topics and groups, send `count` orders, and consume some of them."""
    admin = client.admin
    await admin.create_topic("orders", queue_count=4)
    await admin.create_topic("payments", queue_count=2, message_types=[v2.MessageType.FIFO])
    await admin.create_topic("reminders", message_types=[v2.MessageType.DELAY])
    await admin.create_topic("checkout", message_types=[v2.MessageType.TRANSACTION])
    await admin.create_topic("audit", queue_count=1)
    quick = v2.RetryPolicy()
    quick.customized_backoff.next.add().FromMilliseconds(1000)
    await admin.create_group("billing", max_attempts=4, retry_policy=quick)
    await admin.create_group("analytics")
    producer = client.producer()
    billing = client.simple_consumer("billing", "orders")
    first = await producer.send(order(0))
    (message,) = await billing.receive(max_count=1, invisible_seconds=10.0)
    await billing.change_invisible(message, 1.0)
    (message,) = await billing.receive(max_count=1, invisible_seconds=30.0, wait_seconds=10.0)
    await billing.ack(message)
    for number in range(1, count):
        await producer.send(order(number))
    for _ in range(count // 4):
        for received in await billing.receive(max_count=1):
            await billing.ack(received)
    await billing.receive(max_count=3, invisible_seconds=60.0)
    analytics = client.simple_consumer("analytics", {"orders": "*", "audit": "*"})
    await analytics.receive(max_count=1, invisible_seconds=10.0)
    dead, _ = [await make_dead_letter(client, "ledger", number) for number in range(2)]
    in_an_hour = int(time.time() * 1000) + 3_600_000
    for number in range(3):
        body = json.dumps({"remind": _CUSTOMERS[number], "of": "an open basket"}).encode()
        await producer.send(Message(topic="reminders", body=body, delivery_timestamp=in_an_hour + number * 600_000))
    await producer.send(Message(topic="audit", body=bytes(range(256)), tag="binary"))
    for number in range(2):
        await producer.send_half(Message(topic="checkout", body=b'{"basket": %d}' % number, keys=(f"basket-{number}",)))
    return Shop(first, dead)


async def make_topics(endpoint: str, count: int, queue_count: int = 1) -> None:
    """Create `topic-0000` and so on, by one request."""
    topics = [
        {"topicName": f"topic-{number:04}", "readQueueNums": queue_count, "writeQueueNums": queue_count, "perm": 6}
        for number in range(count)
    ]
    remoting = await RemotingClient.connect(Address.parse(endpoint))
    made = await remoting.call(Request.UPDATE_AND_CREATE_TOPIC_LIST, body={"topicConfigList": topics})
    assert made.code == 0, made.remark
    await remoting.close()


def order(number: int) -> Message:
    """One order."""
    body = {
        "order": 1000 + number,
        "customer": _CUSTOMERS[number % len(_CUSTOMERS)],
        "lines": [{"article": f"A-{number % 7}", "count": 1 + number % 3, "price": 19.90}],
        "paid": number % 2 == 0,
    }
    return Message(
        topic="orders",
        body=json.dumps(body).encode(),
        tag="paid" if number % 2 == 0 else "open",
        keys=(f"order-{1000 + number}",),
        properties={"region": "eu" if number % 3 else "us"},
    )


async def make_dead_letter(client: Client, group: str, number: int) -> SendResult:
    """A payment that nobody acknowledges in the one attempt that its group has; the group is created."""
    await client.admin.create_group(group, max_attempts=1, fifo=True)
    await client.admin.reset_offsets(group, "payments", latest=True)
    body, keys = b'{"payment": %d}' % number, (f"pay-{number}",)
    sent = await client.producer().send(Message(topic="payments", body=body, message_group="ada", keys=keys))
    consumer = client.simple_consumer(group, "payments")
    (message,) = await consumer.receive(max_count=1, wait_seconds=20.0)
    await consumer.nack(message)
    found: list[object] = []
    async with asyncio.timeout(60):
        while not found:
            await asyncio.sleep(0.05)
            found = [each async for each in client.admin.dead_letters(group, message_id=message.message_id)]
    return sent
