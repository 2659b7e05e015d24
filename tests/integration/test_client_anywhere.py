"""The client's stories that any RocketMQ 5 server must tell: AEROBEE_TEST_ENDPOINT=HOST:PORT names one, else ours runs.

A server that does not create topics by itself needs: aerobee-anywhere (NORMAL), aerobee-anywhere-fifo (FIFO),
aerobee-anywhere-delay (DELAY), aerobee-anywhere-transaction (TRANSACTION), and the consumer group aerobee-anywhere.
What is in them from an earlier run does no harm.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from aerobee_client import Client, Message, ReceivedMessage, connect
from aerobee_client.testing import run_broker

pytestmark = pytest.mark.timeout(180)

TOPIC = "aerobee-anywhere"
GROUP = "aerobee-anywhere"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Of the server that the environment names, or of a broker of ours."""
    if given := os.environ.get("AEROBEE_TEST_ENDPOINT"):
        yield given
        return
    with run_broker(memory=True) as broker:
        for kind in ("fifo", "delay", "transaction"):
            broker.create_topic(f"{TOPIC}-{kind}", kind)
        yield broker.endpoint


@pytest.fixture
async def client(endpoint: str) -> AsyncIterator[Client]:
    """A client of that server."""
    async with connect(endpoint) as connected:
        yield connected


class Mark:
    """Bodies that no other run has, and a consumer's way to find them."""

    def __init__(self) -> None:
        self.prefix = uuid.uuid4().hex.encode()
        self.found: list[ReceivedMessage] = []
        self._came = asyncio.Event()

    def body(self, number: int) -> bytes:
        return self.prefix + b" %d" % number

    async def __call__(self, message: ReceivedMessage) -> None:
        if message.body.startswith(self.prefix):
            self.found.append(message)
            self._came.set()

    async def count(self, number: int, seconds: float = 60) -> None:
        """Return when so many different ones are there."""
        async with asyncio.timeout(seconds):
            while len({message.body for message in self.found}) < number:
                self._came.clear()
                await self._came.wait()


async def test_messages_arrive_as_they_were_sent(client: Client) -> None:
    """Single ones and many; body, tag, keys, properties and id; a large body, compressed."""
    mark = Mark()
    async with client.push_consumer(GROUP, TOPIC, mark):
        one = Message(topic=TOPIC, body=mark.body(0), tag="t", keys=("a", "b"), properties={"p": "q"})
        sent = await client.producer().send(one)
        large = mark.body(1) + b" long" * 2000
        await client.producer(compression="zlib").send(Message(topic=TOPIC, body=large))
        await client.producer().send_many([Message(topic=TOPIC, body=mark.body(number)) for number in range(2, 20)])
        await mark.count(20)
    found = {message.body: message for message in mark.found}
    first = found[mark.body(0)]
    assert (first.message_id, first.tag, first.keys, first.properties) == (sent.message_id, "t", ("a", "b"), {"p": "q"})
    assert large in found


async def test_a_simple_consumer_acknowledges(client: Client) -> None:
    """What is acknowledged does not come again."""
    mark = Mark()
    await client.producer().send(Message(topic=TOPIC, body=mark.body(0)))
    consumer = client.simple_consumer(GROUP, TOPIC)
    async with asyncio.timeout(60):
        while not mark.found:
            for message in await consumer.receive(wait_seconds=5):
                await mark(message)
                await consumer.ack(message)
    assert mark.found[0].delivery_attempt == 1


async def test_ordered_messages_are_stored_in_order(client: Client) -> None:
    """Offsets in the queue follow the order of submitting."""
    producer = client.producer()
    topic, mark = f"{TOPIC}-fifo", Mark()
    sends = [
        await producer.submit(Message(topic=topic, body=mark.body(number), message_group="g")) for number in range(10)
    ]
    offsets = [(await each).queue_offset for each in sends]
    assert offsets == sorted(offsets)


async def test_a_delayed_message(client: Client) -> None:
    """Not before its time."""
    mark = Mark()
    due = int(time.time() * 1000) + 3000
    async with client.push_consumer(GROUP, f"{TOPIC}-delay", mark):
        await client.producer().send(Message(topic=f"{TOPIC}-delay", body=mark.body(0), delivery_timestamp=due))
        await mark.count(1)
        assert time.time() * 1000 >= due - 100  # clocks of two machines


async def test_transactions(client: Client) -> None:
    """What was rolled back never comes; what was committed does."""
    mark, topic = Mark(), f"{TOPIC}-transaction"
    producer = client.producer(topics=[topic], transaction_checker=lambda message: "rollback")
    async with client.push_consumer(GROUP, topic, mark):
        async with producer.transaction() as kept:
            await kept.send(Message(topic=topic, body=mark.body(0)))
        dropped = producer.transaction()
        await dropped.send(Message(topic=topic, body=mark.body(1)))
        await dropped.rollback()
        await mark.count(1)
        await asyncio.sleep(1)
    assert {message.body for message in mark.found} == {mark.body(0)}
