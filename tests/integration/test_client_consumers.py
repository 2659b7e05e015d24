"""Push and pull consumers of the client against a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import (
    BadRequestError,
    Client,
    ClientError,
    Hooks,
    Message,
    PullConsumer,
    Queue,
    ReceivedMessage,
    RetryLater,
    ServerError,
    StoredMessage,
    blocking,
    connect,
)
from aerobee_client.connections import repeating
from aerobee_client.filters import Subscriptions
from aerobee_client.limits.flow import FlowControl
from aerobee_client.records import Frame, Records
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The maximum number of messages that a consumer has held at once."""
    counts = [0]
    add = FlowControl.add

    def recording(flow: FlowControl, queue: object, offset: int, size: int) -> None:
        add(flow, queue, offset, size)
        counts.append(flow.count)

    monkeypatch.setattr(FlowControl, "add", recording)
    return lambda: max(counts)


async def send(client: Client, topic: str, *bodies: bytes, **fields: str) -> None:
    """Send messages to `topic`, in order."""
    producer = client.producer()
    for body in bodies:  # one per request: the broker puts a request's messages into one queue
        await producer.send(Message(topic=topic, body=body, **fields))  # type: ignore[arg-type]  # fields by name


class Collector:
    """A handler that keeps the messages it received."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._came = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        self._came.set()

    async def count(self, number: int) -> list[bytes]:
        """The bodies, once this many have arrived."""
        async with asyncio.timeout(60):
            while len(self.messages) < number:
                self._came.clear()
                await self._came.wait()
        return [message.body for message in self.messages]


class TestPushConsumer:
    async def test_handled_messages_are_not_redelivered(self, client: Client) -> None:
        """All messages arrive, also those sent meanwhile, and are acknowledged by the time the consumer is closed."""
        collector = Collector()
        await send(client, "pushed", *(b"%d" % number for number in range(100)))
        async with client.push_consumer("g", "pushed", collector) as consumer:
            assert not consumer.ordered
            await collector.count(100)
            await send(client, "pushed", b"live")
            await collector.count(101)
        assert len({message.body for message in collector.messages}) == 101
        assert await client.simple_consumer("g", "pushed").receive(wait_seconds=0) == []

    async def test_a_plain_function_runs_in_threads(self, client: Client) -> None:
        """As many calls run at once as the concurrency allows, without blocking the event loop."""
        barrier = threading.Barrier(3)
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def handle(message: ReceivedMessage) -> None:
            barrier.wait(20)
            loop.call_soon_threadsafe(done.set)

        await send(client, "threads", b"1", b"2", b"3")
        async with client.push_consumer("g", "threads", handle, concurrency=3):
            await asyncio.wait_for(done.wait(), 30)

    async def test_failed_messages_are_redelivered(self, client: Client, caplog: pytest.LogCaptureFixture) -> None:
        """RetryLater, another exception and False all fail the message, which comes again as attempt 2.

        RetryLater names the delay.
        """
        await client.admin.create_group("again", retry_policy=quick_retries())
        attempts: list[tuple[bytes, int]] = []
        done = asyncio.Event()

        async def handle(message: ReceivedMessage) -> bool | None:
            attempts.append((message.body, message.delivery_attempt))
            if message.delivery_attempt == 1 and message.body == b"later":
                raise RetryLater(0.1)
            if message.delivery_attempt == 1 and message.body == b"raises":
                raise RuntimeError("as the test wants it")
            if message.delivery_attempt == 1:
                return False
            if len(attempts) == 6:
                done.set()
            return None

        await send(client, "again", b"later", b"raises", b"false")
        async with client.push_consumer("again", "again", handle):
            await asyncio.wait_for(done.wait(), 60)
        assert sorted(attempts) == [(body, attempt) for body in (b"false", b"later", b"raises") for attempt in (1, 2)]
        assert "as the test wants it" in caplog.text

    async def test_a_message_without_attempts_left_is_a_dead_letter(self, client: Client) -> None:
        """An ordered message that always fails becomes a dead letter, and the next one is delivered."""
        await client.admin.create_topic("poisoned", message_types=[v2.MessageType.FIFO])
        await client.admin.create_group("poisoned", fifo=True, max_attempts=2, retry_policy=quick_retries())
        collector = Collector()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"poison":
                raise RetryLater(0.01)
            await collector(message)

        await send(client, "poisoned", b"poison", b"good", message_group="g")
        async with client.push_consumer("poisoned", "poisoned", handle):
            assert await collector.count(1) == [b"good"]
        letters = [each async for each in client.admin.dead_letters("poisoned")]
        assert [each.message.system_properties.message_group for each in letters] == ["g"]

    async def test_message_groups_of_a_queue_do_not_wait_for_each_other(self, client: Client) -> None:
        """While a handler has a message of one group, the consumer handles those of others, and none of that one."""
        await client.admin.create_topic("groups", message_types=[v2.MessageType.FIFO], queue_count=1)
        await client.admin.create_group("groups", fifo=True)
        handled: list[bytes] = []
        others = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"slow-0":
                await others.wait()
            handled.append(message.body)
            if sum(body.startswith(b"quick") for body in handled) == 3:
                others.set()

        for number in range(3):
            await send(client, "groups", b"slow-%d" % number, message_group="slow")
            await send(client, "groups", b"quick-%d" % number, message_group="quick")
        async with client.push_consumer("groups", "groups", handle):
            await asyncio.wait_for(others.wait(), 30)
        assert handled[:3] == [b"quick-0", b"quick-1", b"quick-2"]

    async def test_closing_lets_handlers_finish(self, client: Client) -> None:
        """Running handlers finish and acknowledge; waiting messages return to the group at once."""
        began, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            began.set()
            await go_on.wait()

        await send(client, "graceful", *(b"%d" % number for number in range(5)))
        consumer = client.push_consumer("g", "graceful", handle, concurrency=1)
        await consumer.start()
        await asyncio.wait_for(began.wait(), 30)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        go_on.set()
        await closing
        rest = client.simple_consumer("g", "graceful")
        received: list[ReceivedMessage] = []
        async with asyncio.timeout(60):
            while len(received) < 4:
                received += await rest.receive(wait_seconds=5)
        assert len({message.body for message in received}) == 4

    async def test_a_broker_that_restarts(self, aerobee_broker: BrokerProcess) -> None:
        """Consumption continues by itself, and nothing is lost."""
        collector = Collector()
        async with (
            connect(aerobee_broker.endpoint) as client,
            client.push_consumer("g", "restarted", collector),
        ):
            await send(client, "restarted", b"before")
            await collector.count(1)
            await asyncio.to_thread(aerobee_broker.restart)
            await send(client, "restarted", b"after")
            while b"after" not in await collector.count(2):
                await collector.count(len(collector.messages) + 1)

    async def test_the_broker_verifies_a_message_with_the_handler(self, client: Client) -> None:
        """`aerobee client verify` calls the handler without acknowledging; thread stacks show where the program is."""
        collector = Collector()

        async def handle(message: ReceivedMessage) -> None:
            await collector(message)
            if len(collector.messages) > 1:
                raise RetryLater(1)

        sent = await client.producer().send(Message(topic="verified", body=b"x"))
        async with (
            client.push_consumer("verified", "verified", handle),
            connect(client.endpoint, request_timeout_seconds=10) as admin,
        ):
            await collector.count(1)
            (connection,) = [each async for each in admin.admin.connections(group="verified")]
            with pytest.raises(ServerError, match="again in 1 s"):
                await admin.admin.verify_message(connection.client_id, "verified", "verified", sent.message_id)
            assert "push_consumer" in await admin.admin.client_stacks(connection.client_id)

    async def test_messages_stay_hidden_while_the_handler_works(self, aerobee_broker: BrokerProcess) -> None:
        """The message stays invisible for hours, and the final acknowledgement is accepted."""
        began, go_on = asyncio.Event(), asyncio.Event()

        async def slow(message: ReceivedMessage) -> None:
            began.set()
            await go_on.wait()

        async with aerobee_broker.connect() as client:
            other = client.simple_consumer("g", "t")
            await send(client, "t", b"x")
            async with client.push_consumer("g", "t", slow):
                await began.wait()
                for _ in range(3):
                    await asyncio.to_thread(aerobee_broker.advance, 3600)
                    assert await other.receive(wait_seconds=0) == []
                go_on.set()
            await asyncio.to_thread(aerobee_broker.advance, 3600)
            assert await other.receive(wait_seconds=0) == []

    async def test_buffered_messages_are_bounded(self, client: Client, largest: Callable[[], int]) -> None:
        """No more messages are received than may be buffered; all are handled in the end."""
        await client.admin.create_topic("bounded-push", queue_count=1)
        await client.producer().send_many([Message(topic="bounded-push", body=b"%d" % n) for n in range(50)])
        collector = Collector()
        async with client.push_consumer("g", "bounded-push", collector, concurrency=1, waiting_count_max=3):
            assert len(set(await collector.count(50))) == 50
        assert 1 <= largest() <= 3

    async def test_hooks_run_around_handlers(self, broker: BrokerProcess) -> None:
        """A hook that raises counts as a failed handler."""
        heard: list[str] = []

        class Told(Hooks):
            def before_handle(self, message: ReceivedMessage) -> None:
                heard.append("before")
                if len(heard) == 1:
                    raise RetryLater(0.01)

            def after_handle(self, message: ReceivedMessage, error: BaseException | None) -> None:
                heard.append(type(error).__name__)

        collector = Collector()
        async with connect(broker.endpoint, hooks=[Told()]) as client:
            await send(client, "hooked", b"x")
            async with client.push_consumer("hooked", "hooked", collector):
                await collector.count(1)
        assert heard == ["before", "RetryLater", "before", "NoneType"]


class TestSimpleConsumerExtras:
    async def test_iteration_acknowledges(self, client: Client) -> None:
        """A message is acknowledged when the next one is requested; the last one comes again."""
        await send(client, "iterated", b"1", b"2")
        async with client.simple_consumer("g", "iterated") as consumer:
            first = [message async for message in consumer_messages(consumer, 2)]
        assert len(first) == 2
        async with client.simple_consumer("g2", "iterated") as other:
            assert len(await other.receive()) >= 1

    async def test_a_message_stays_invisible_during_work(self, client: Client) -> None:
        """It is kept beyond its invisible time, then acknowledged, or given back if the work fails."""
        await send(client, "kept-invisible", b"x")
        consumer, other = (client.simple_consumer("g", "kept-invisible") for _ in range(2))
        (message,) = await consumer.receive(invisible_seconds=10)

        async def fails() -> None:
            async with consumer.keep_invisible(message, invisible_seconds=4):
                await asyncio.sleep(5)
                assert await other.receive(wait_seconds=0) == []
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        (again,) = await other.receive()
        assert again.delivery_attempt > 1
        async with other.keep_invisible(again):
            pass
        with pytest.raises(BadRequestError):
            await consumer.ack(message)

    def test_a_message_stays_invisible_with_the_blocking_client(self, broker: BrokerProcess) -> None:
        """The same without an event loop."""
        with blocking.connect(broker.endpoint) as client, client.simple_consumer("g", "blocking-invisible") as consumer:
            client.producer().send(Message(topic="blocking-invisible", body=b"x"))
            (message,) = consumer.receive(invisible_seconds=10)

            def fails() -> None:
                with consumer.keep_invisible(message, invisible_seconds=1200):
                    assert not consumer.receive(wait_seconds=0)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                fails()
            (again,) = consumer.receive()  # given back, although its time would be over in 20 minutes
            assert again.delivery_attempt > 1
            with consumer.keep_invisible(again):
                pass
            with pytest.raises(BadRequestError):
                consumer.ack(again)


async def consumer_messages(consumer: object, count: int) -> AsyncIterator[ReceivedMessage]:
    """The first `count` messages of a consumer, by iteration."""
    number = 0
    async for message in consumer:  # type: ignore[attr-defined]  # any of the consumers
        yield message
        number += 1
        if number == count:
            return


class TestPullConsumer:
    async def test_messages_can_be_read_repeatedly(self, client: Client) -> None:
        """All messages from the start, in order within each queue; the group continues after those it handled."""
        bodies = [b"%d" % number for number in range(50)]
        await client.admin.create_topic("pulled", queue_count=4)
        await send(client, "pulled", *bodies)
        async with client.pull_consumer("puller", "pulled", start="begin") as consumer:
            assert len(consumer.assignment()) == 4
            seen = [message async for message in consumer_messages(consumer, 50)]
            await consumer.commit()
            assert sorted(message.body for message in seen) == sorted(bodies)
            for queue in consumer.assignment():
                offsets = [message.queue_offset for message in seen if message.queue_id == queue.queue_id]
                assert offsets == list(range(len(offsets)))
                assert await consumer.committed(queue) == await consumer.position(queue) == len(offsets)
        await send(client, "pulled", b"new")
        async with client.pull_consumer("puller", "pulled") as consumer:
            assert (await consumer.getone()).body == b"new"
            await consumer.seek_to_beginning()
            again = [message async for message in consumer_messages(consumer, 51)]
            assert len({(message.queue_id, message.queue_offset) for message in again}) == 51

    async def test_positions(self, client: Client) -> None:
        """Seeks to the beginning, the end, a time and an offset; a queue that is not assigned is refused."""
        await client.admin.create_topic("places", queue_count=1)
        await send(client, "places", b"0", b"1")
        await asyncio.sleep(0.05)
        moment = int(time.time() * 1000)
        await asyncio.sleep(0.05)
        await send(client, "places", b"2", b"3")
        async with client.pull_consumer("places", "places") as consumer:
            (queue,) = consumer.assignment()
            assert await consumer.beginning_offsets([queue]) == {queue: 0}
            assert await consumer.end_offsets([queue]) == {queue: 4}
            assert await consumer.committed(queue) is None
            assert await consumer.getmany(wait_seconds=0.2) == []  # a new group starts at the end
            await consumer.seek_to_time(moment)
            assert (await consumer.getone()).body == b"2"
            await consumer.seek(queue, 1)
            assert [m.body for m in await consumer.getmany()] == [b"1", b"2", b"3"]
            await consumer.seek_to_end()
            assert await consumer.position(queue) == 4
            await consumer.commit({queue: 3})
            await consumer.seek_to_committed(queue)
            assert (await consumer.getone()).body == b"3"
            await consumer.seek(queue, 99)  # beyond the end: the broker answers with the offset to continue at
            await send(client, "places", b"4")
            assert (await consumer.getone()).body == b"4"
            with pytest.raises(ClientError, match="not assigned"):
                await consumer.seek(Queue("places", queue.broker, 7), 0)
            with pytest.raises(ValueError, match="not among the subscriptions"):
                await consumer.assign([Queue("other", queue.broker, 0)])

    async def test_buffered_messages_are_bounded(self, client: Client, largest: Callable[[], int]) -> None:
        """No more messages are fetched than may be buffered; all are handed out in the end."""
        await client.admin.create_topic("bounded-pull", queue_count=1)
        await client.producer().send_many([Message(topic="bounded-pull", body=b"%d" % n) for n in range(50)])
        async with client.pull_consumer("g", "bounded-pull", start="begin", waiting_count_max=3) as consumer:
            found = [(await consumer.getone()).body for _ in range(50)]
        assert found == [b"%d" % number for number in range(50)]
        assert 1 <= largest() <= 3

    async def test_lost_messages_are_reported(
        self, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A bulk read that lacks messages logs how many and where, and continues."""
        read = Records.read

        async def without_first(*arguments: Any, **options: Any) -> AsyncGenerator[Frame, None]:
            async for frame in read(*arguments, **options):
                first = frame.start_offset
                yield Frame(b"", first, frame.next_offset, frame.next_offset - first) if first < 200 else frame

        monkeypatch.setattr(Records, "read", without_first)
        monkeypatch.setattr("aerobee_client.pull_consumer._FRAME_SIZE", 1)
        await client.admin.create_topic("lacking", queue_count=1)
        await client.producer().send_many([Message(topic="lacking", body=b"%d" % n) for n in range(201)])
        async with client.pull_consumer("lacking", "lacking", start="begin") as consumer:
            found = {(await consumer.getone()).queue_offset}
            while 200 not in found:
                found.add((await consumer.getone()).queue_offset)
        assert "1 messages from offset 199 on cannot be read, continuing at 200" in caplog.text
        assert 199 not in found

    async def test_closing_commits_handled_messages(self, client: Client) -> None:
        """The last message handed out is not committed: only the next request shows that it was handled."""
        await client.admin.create_topic("closing", queue_count=1)
        await client.producer().send_many([Message(topic="closing", body=b"%d" % n) for n in range(5)])
        found = []
        for _ in range(2):
            async with client.pull_consumer("closing", "closing", start="begin", commit_seconds=3600) as consumer:
                found += [(await consumer.getone()).body for _ in range(3)]
        assert found == [b"0", b"1", b"2", b"2", b"3", b"4"]

    async def test_paused_queues_are_silent(self, client: Client) -> None:
        """Messages fetched before the pause wait too; resuming hands them out."""
        await client.admin.create_topic("paused", queue_count=1)
        async with client.pull_consumer("paused", "paused", start="begin") as consumer:
            await send(client, "paused", b"1", b"2")
            assert len(await consumer.getmany(max_count=1)) == 1
            consumer.pause()
            assert consumer.paused() == consumer.assignment()
            assert await consumer.getmany(wait_seconds=0.2) == []
            consumer.resume()
            assert (await consumer.getone()).body == b"2"

    async def test_a_group_shares_the_queues(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """A second consumer gets half of the queues.

        When it leaves, the first has all again, and no message is read twice.
        """
        monkeypatch.setattr("aerobee_client.pull_consumer.REBALANCE_SECONDS", 0.2)
        await client.admin.create_topic("balanced", queue_count=4)
        changes: list[tuple[int, int]] = []
        changed = asyncio.Event()

        def note(added: frozenset[Queue], removed: frozenset[Queue]) -> None:
            changes.append((len(added), len(removed)))
            changed.set()

        async def change(expected: tuple[int, int]) -> None:
            async with asyncio.timeout(60):
                while not changes or changes[-1] != expected:
                    changed.clear()
                    await changed.wait()

        async with client.pull_consumer("balanced", "balanced", start="begin", on_rebalance=note) as first:
            await change((4, 0))
            async with client.pull_consumer("balanced", "balanced", start="begin") as second:
                await change((0, 2))
                assert not first.assignment() & second.assignment()
                await send(client, "balanced", *(b"%d" % number for number in range(8)))
                mine = [message async for message in consumer_messages(first, 4)]
                theirs = [message async for message in consumer_messages(second, 4)]
                await second.commit()
            await change((2, 0))
            assert len(first.assignment()) == 4
            await send(client, "balanced", *(b"%d" % number for number in range(8, 12)))
            mine += [message async for message in consumer_messages(first, 4)]
        assert len({message.body for message in mine + theirs}) == 12

    async def test_broadcasting(self, client: Client, tmp_path: Path) -> None:
        """Every consumer reads all messages, and keeps its position in its own file."""
        await send(client, "broadcast", b"1", b"2")
        for name in ("a", "b"):
            file = tmp_path / name
            async with client.pull_consumer(
                "broadcast", "broadcast", start="begin", broadcasting=True, offsets_file=file
            ) as consumer:
                seen = [message.body async for message in consumer_messages(consumer, 2)]
                assert sorted(seen) == [b"1", b"2"]
                await consumer.commit()
        await send(client, "broadcast", b"3")
        async with client.pull_consumer(
            "broadcast", "broadcast", broadcasting=True, offsets_file=tmp_path / "a"
        ) as consumer:
            assert (await consumer.getone()).body == b"3"
        (tmp_path / "a").write_text("{")
        with pytest.raises(ClientError, match="cannot be read"):
            await client.pull_consumer("broadcast", "broadcast", broadcasting=True, offsets_file=tmp_path / "a").start()

    async def test_no_messages_after_the_end(self, client: Client) -> None:
        """A closed consumer returns no buffered messages: their offsets could not be committed any more."""
        await client.admin.create_topic("ended", queue_count=1)
        await send(client, "ended", b"1", b"2")
        async with client.pull_consumer("ended", "ended", start="begin") as consumer:
            assert (await consumer.getone()).body == b"1"
        assert await consumer.getmany() == []
        with pytest.raises(ClientError, match="is closed; make a new one"):
            await consumer.getone()

    async def test_an_offset_beyond_the_end(self, client: Client, caplog: pytest.LogCaptureFixture) -> None:
        """Reading continues at the end of the queue, and a warning says so."""
        await client.admin.create_topic("beyond", queue_count=1)
        await send(client, "beyond", b"1")
        async with client.pull_consumer("beyond", "beyond", start="begin") as consumer:
            (queue,) = consumer.assignment()
            assert (await consumer.getone()).body == b"1"
            await consumer.seek(queue, 1000)
            async with asyncio.timeout(60):
                while "does not have offset 1000, continuing at 1 " not in caplog.text:
                    assert await consumer.getmany(wait_seconds=0.05) == []
            await send(client, "beyond", b"2")
            assert (await consumer.getone()).body == b"2"

    async def test_filters_skip_messages(self, client: Client) -> None:
        """Messages that do not match are not handed out, and the position moves past them."""
        await client.admin.create_topic("filtered", queue_count=1)
        await send(client, "filtered", b"1", tag="no")
        await send(client, "filtered", b"2", tag="yes")
        await send(client, "filtered", b"3", tag="no")
        async with client.pull_consumer("filtered", {"filtered": "yes"}, start="begin") as consumer:
            assert (await consumer.getone()).body == b"2"
            assert await consumer.getmany(wait_seconds=0.1) == []


class TestPullingABacklog:
    """ReadRecords delivers a backlog: the same messages as PullMessage, in the same order."""

    async def test_messages_of_every_kind(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """All fields are kept; a delayed message is as it was delivered."""
        kinds = [v2.MessageType.NORMAL, v2.MessageType.FIFO, v2.MessageType.DELAY]
        await client.admin.create_topic("kinds", queue_count=1, message_types=kinds)
        producer = client.producer(compression="zlib", compress_above=100)
        for number in range(0, 120, 4):
            text = f"{number:05}".encode()
            due = int(time.time() * 1000) + 50
            properties = {"region": "north", "empty": ""}
            await producer.send(Message(topic="kinds", body=text, tag="a", keys=("one", "two words")))
            await producer.send(Message(topic="kinds", body=text * 100, properties=properties, trace_context="trace"))
            await producer.send(Message(topic="kinds", body=text, message_group="group", message_id=f"own-{number}"))
            await producer.send(Message(topic="kinds", body=text, delivery_timestamp=due))
        found = await pulled_both_ways(client, monkeypatch, "kinds", 120)
        assert sum(message.delivery_timestamp is not None for message in found) == 30
        assert sum(message.message_group == "group" for message in found) == 30

    async def test_a_batch_topic(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Messages come one by one, also where a record holds more than the buffer has space for."""
        await client.admin.create_topic("batched", queue_count=1, attributes={"queue.type": "BatchCQ"})
        for first in range(0, 150, 50):
            messages = [Message(topic="batched", body=b"%d" % number, tag="t") for number in range(first, first + 50)]
            await client.records.append("batched", 0, client.records.pack_batch("batched", 0, messages))
        found = await pulled_both_ways(client, monkeypatch, "batched", 150, waiting_count_max=60)
        assert [message.body for message in found] == [b"%d" % number for number in range(150)]

    async def test_tags(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only messages that match the filter arrive; the position moves past the others."""
        await client.admin.create_topic("tagged", queue_count=1)
        messages = [Message(topic="tagged", body=b"%d" % each, tag="abc"[each % 3]) for each in range(200)]
        await client.records.append("tagged", 0, client.records.pack("tagged", 0, messages))
        found = await pulled_both_ways(client, monkeypatch, "tagged", 133, subscriptions={"tagged": "a || c"})
        assert [message.body for message in found] == [b"%d" % each for each in range(200) if each % 3 != 1]

    async def test_bounds_hold(self, client: Client, largest: Callable[[], int]) -> None:
        """No more messages are buffered than the consumer's limit."""
        await client.admin.create_topic("wide", queue_count=1)
        messages = [Message(topic="wide", body=b"%d" % each) for each in range(500)]
        await client.records.append("wide", 0, client.records.pack("wide", 0, messages))
        async with client.pull_consumer("wide", "wide", start="begin", waiting_count_max=70) as consumer:
            found = await pulled(consumer, 500)
        assert [message.body for message in found] == [message.body for message in messages]
        assert largest() <= 70

    async def test_offsets_that_expire_during_reading(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """A refused ReadRecords is not final: the next PullMessage answers with the offset to continue at."""
        refused = []

        async def read(records: Records, topic: str, queue_id: int, start: int, **_: object) -> AsyncIterator[Frame]:
            refused.append(start)
            if start:  # always true: makes the function a generator
                raise BadRequestError(v2.Code.ILLEGAL_OFFSET, "gone")
            yield Frame(b"", start, start, 0)

        await client.admin.create_topic("gone", queue_count=1)
        messages = [Message(topic="gone", body=b"%d" % each) for each in range(70)]
        await client.records.append("gone", 0, client.records.pack("gone", 0, messages))
        monkeypatch.setattr(Records, "read", read)
        monkeypatch.setattr(repeating, "PAUSE_SECONDS", 0.01)
        async with client.pull_consumer("gone", "gone", start="begin") as consumer:
            assert len(await pulled(consumer, 70)) == 70
        assert refused == [32, 64]


async def pulled(consumer: PullConsumer, count: int) -> list[StoredMessage]:
    """Read exactly `count` messages."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await consumer.getmany()
    return found


async def pulled_both_ways(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    count: int,
    *,
    subscriptions: Subscriptions | None = None,
    waiting_count_max: int = 1000,
) -> list[StoredMessage]:
    """The first messages of a topic, fetched with and without ReadRecords."""

    def consumer(group: str) -> PullConsumer:
        return client.pull_consumer(
            group, subscriptions or topic, start="begin", waiting_count_max=waiting_count_max, commit_seconds=None
        )

    calls: list[str] = []
    read = Records.read

    def counting(records: Records, topic: str, *arguments: Any, **options: Any) -> AsyncGenerator[Frame, None]:
        calls.append(topic)
        return read(records, topic, *arguments, **options)

    monkeypatch.setattr(Records, "read", counting)
    async with consumer(f"{topic}-records") as reader:
        by_records = await pulled(reader, count)
    assert calls, "a backlog is read by ReadRecords"
    calls.clear()

    async def no(records: Records, **_: object) -> bool:
        return False

    monkeypatch.setattr(Records, "supported", no)
    async with consumer(f"{topic}-messages") as puller:
        assert await pulled(puller, count) == by_records
        assert puller.call == "PullMessage"
    assert not calls
    return by_records


def quick_retries() -> v2.RetryPolicy:
    """A retry policy that redelivers failed messages within 0.1 s."""
    policy = v2.RetryPolicy(exponential_backoff=v2.ExponentialBackoff(multiplier=1))
    policy.exponential_backoff.initial.FromMilliseconds(100)
    policy.exponential_backoff.max.FromMilliseconds(100)
    return policy
