"""Client tests that pass on any RocketMQ 5 server: AEROBEE_TEST_ENDPOINT=HOST:PORT names one, else ours runs.

A server that does not create topics by itself needs: aerobee-anywhere (NORMAL), aerobee-anywhere-fifo (FIFO),
aerobee-anywhere-delay (DELAY), aerobee-anywhere-transaction (TRANSACTION), the consumer groups aerobee-anywhere,
aerobee-anywhere-tags and aerobee-anywhere-fifo (ordered). Messages of earlier runs do no harm. `make
test-client-rocketmq` starts Apache RocketMQ and runs this.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from aerobee_client import (
    Client,
    Message,
    ReceivedMessage,
    Resolution,
    RetryLater,
    ServerError,
    StoredMessage,
    blocking,
    connect,
)
from aerobee_client.testing import run_broker

pytestmark = pytest.mark.timeout(180)

TOPIC = "aerobee-anywhere"
GROUP = "aerobee-anywhere"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of the server that the environment names, or of our broker."""
    if given := os.environ.get("AEROBEE_TEST_ENDPOINT"):
        yield given
        return
    settings = {"transactions.timeout_seconds": 2.0, "transactions.check_interval_seconds": 2.0}
    with run_broker(memory=True, settings=settings) as broker:
        for kind in ("fifo", "delay", "transaction"):
            broker.create_topic(f"{TOPIC}-{kind}", kind)
        broker.create_group(f"{GROUP}-fifo", fifo=True)
        yield broker.endpoint


@pytest.fixture
async def client(endpoint: str) -> AsyncIterator[Client]:
    """A client of that server."""
    async with connect(endpoint) as connected:
        yield connected


class Mark:
    """Bodies that are unique to this run, and a consumer that finds them."""

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

    async def came(self, body: bytes, seconds: float = 120) -> None:
        """Return when this body has arrived."""
        async with asyncio.timeout(seconds):
            while body not in {message.body for message in self.found}:
                self._came.clear()
                await self._came.wait()

    async def count(self, number: int, seconds: float = 60) -> None:
        """Return when this many different bodies have arrived."""
        async with asyncio.timeout(seconds):
            while len({message.body for message in self.found}) < number:
                self._came.clear()
                await self._came.wait()


async def test_messages_arrive_as_they_were_sent(client: Client) -> None:
    """Single messages and batches keep body, tag, keys, properties and id; a large body is compressed."""
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
    """An acknowledged message does not come again."""
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
    """Queue offsets follow the order of submission."""
    producer = client.producer()
    topic, mark = f"{TOPIC}-fifo", Mark()
    sends = [
        await producer.submit(Message(topic=topic, body=mark.body(number), message_group="g")) for number in range(10)
    ]
    offsets = [(await each).queue_offset for each in sends]
    assert offsets == sorted(offsets)


async def test_a_delayed_message(client: Client) -> None:
    """The message does not arrive before it is due."""
    mark = Mark()
    due = int(time.time() * 1000) + 3000
    async with client.push_consumer(GROUP, f"{TOPIC}-delay", mark):
        await client.producer().send(Message(topic=f"{TOPIC}-delay", body=mark.body(0), delivery_timestamp=due))
        await mark.count(1)
        assert time.time() * 1000 >= due - 100  # tolerance for the clocks of two machines


async def test_transactions(client: Client) -> None:
    """A rolled-back message never arrives; a committed one does."""
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


async def test_the_broker_checks_an_undecided_transaction(client: Client) -> None:
    """A program that died before its decision leaves it to the checker."""
    mark, topic = Mark(), f"{TOPIC}-transaction"
    asked_for_second = asyncio.Event()

    def checker(message: StoredMessage) -> Resolution:
        if message.body == mark.body(1):
            asked_for_second.set()
        return "commit" if message.body == mark.body(0) else "rollback"

    producer = client.producer(topics=[topic], transaction_checker=checker)
    async with client.push_consumer(GROUP, topic, mark):
        for number in range(2):
            await producer.transaction().send(Message(topic=topic, body=mark.body(number)))
        await mark.count(1, seconds=120)
        async with asyncio.timeout(120):
            await asked_for_second.wait()
    assert {message.body for message in mark.found} == {mark.body(0)}


async def test_a_delayed_message_is_recalled(client: Client) -> None:
    """A recalled message never arrives; one sent after it does."""
    mark, topic = Mark(), f"{TOPIC}-delay"
    producer = client.producer()
    async with client.push_consumer(GROUP, topic, mark):
        for seconds in (5, 20, 80):  # longer if the machine was too busy to recall it in time
            body, due = mark.body(seconds), int(time.time() * 1000) + seconds * 1000
            back = await producer.send(Message(topic=topic, body=body, delivery_timestamp=due))
            try:
                assert await producer.recall(topic, back.recall_handle) == back.message_id
            except ServerError as error:
                if "operation is forbidden" in str(error):  # RocketMQ's setting recallMessageEnable
                    pytest.skip("this server takes no message back")
                if time.time() * 1000 < due - 1000:
                    raise
            else:
                break
        await producer.send(Message(topic=topic, body=mark.body(1), delivery_timestamp=due + 1000))
        await mark.came(mark.body(1))
        await asyncio.sleep(1)
    assert body not in {message.body for message in mark.found}


async def test_a_failing_handler_gets_the_message_again(client: Client) -> None:
    """The handler fails by an exception or by naming a retry delay; each delivery counts as an attempt."""
    mark = Mark()
    attempts: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        if not message.body.startswith(mark.prefix):
            return
        attempts.append(message.delivery_attempt)
        if len(attempts) == 1:
            raise LookupError("as the test wants it")
        if len(attempts) == 2:
            raise RetryLater(1)
        await mark(message)

    async with client.push_consumer(GROUP, TOPIC, handler):
        await client.producer().send(Message(topic=TOPIC, body=mark.body(0)))
        await mark.count(1, seconds=120)
    assert attempts == [1, 2, 3]


async def test_an_ordered_group_handles_in_order(client: Client) -> None:
    """Messages of a message group are handled one at a time; a failed one is retried before the next."""
    mark, topic = Mark(), f"{TOPIC}-fifo"
    failed: set[bytes] = set()
    running: set[str | None] = set()

    async def handler(message: ReceivedMessage) -> None:
        if not message.body.startswith(mark.prefix):
            return
        assert message.message_group not in running
        running.add(message.message_group)
        await asyncio.sleep(0.01)
        running.discard(message.message_group)
        if message.body.endswith(b" 3") and message.body not in failed:
            failed.add(message.body)
            raise LookupError("as the test wants it")
        await mark(message)

    consumer = client.push_consumer(f"{GROUP}-fifo", topic, handler)
    async with consumer:
        assert consumer.ordered
        producer = client.producer()
        await producer.send_many(
            [Message(topic=topic, body=mark.body(n), message_group=f"{mark.prefix.decode()}{n % 2}") for n in range(10)]
        )
        await mark.count(10, seconds=120)
    bodies = [message.body for message in mark.found]
    for start in range(2):
        assert [body for body in bodies if int(body[-1:]) % 2 == start] == [mark.body(n) for n in range(start, 10, 2)]
    assert failed == {mark.body(3)}


async def test_a_receipt_is_renewed_and_returned(client: Client) -> None:
    """Changing the invisible time gives a new handle that acknowledges; a returned message comes again."""
    mark = Mark()
    await client.producer().send_many([Message(topic=TOPIC, body=mark.body(number)) for number in range(2)])
    consumer = client.simple_consumer(GROUP, TOPIC)
    again: list[ReceivedMessage] = []
    async with asyncio.timeout(120):
        while len(mark.found) < 2:
            for message in await consumer.receive(invisible_seconds=60, wait_seconds=5):
                if message.body.startswith(mark.prefix):
                    await mark(message)
                else:
                    await consumer.ack(message)
        first, second = sorted(mark.found, key=lambda message: message.body)
        renewed = await consumer.change_invisible(first, 90)
        await consumer.ack(renewed)
        await consumer.nack(second, 1)
        while not again:
            for message in await consumer.receive(invisible_seconds=60, wait_seconds=5):
                if message.body.startswith(mark.prefix):
                    again.append(message)
                await consumer.ack(message)
    assert [(message.body, message.delivery_attempt) for message in again] == [(mark.body(1), 2)]


async def test_filters(client: Client) -> None:
    """Filters by tag, and by SQL over properties where the server supports it."""
    mark = Mark()
    async with client.push_consumer(f"{GROUP}-tags", {TOPIC: "red || green"}, mark):
        for number, tag in enumerate(("red", "blue", "green")):
            await client.producer().send(Message(topic=TOPIC, body=mark.body(number), tag=tag))
        await mark.count(2)
        await asyncio.sleep(1)
    assert {message.body for message in mark.found} == {mark.body(0), mark.body(2)}


def test_the_blocking_client(endpoint: str) -> None:
    """The blocking API, called from a plain function."""
    mark = Mark()
    found: list[bytes] = []
    with blocking.connect(endpoint) as client, client.simple_consumer(GROUP, TOPIC) as consumer:
        client.producer().send_many([Message(topic=TOPIC, body=mark.body(number)) for number in range(20)])
        until = time.monotonic() + 60
        while len(found) < 20:
            assert time.monotonic() < until
            for message in consumer.receive(32, wait_seconds=5):
                consumer.ack(message)
                if message.body.startswith(mark.prefix):
                    found.append(message.body)
    assert sorted(found) == sorted(mark.body(number) for number in range(20))
