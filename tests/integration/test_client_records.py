"""Bulk records with the client: packed records equal what SendMessage stores, and the client reads both."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from aerobee_broker.config import LimitsConfig
from aerobee_client import (
    BadRequestError,
    BatchError,
    Client,
    ClientError,
    Message,
    ReceivedMessage,
    connect,
    new_message_id,
)
from aerobee_client.messages.compression import Compression
from aerobee_client.testing import run_broker
from aerobee_proto import v2
from aerobee_store.records.record import Record
from tests.support.in_process_broker import in_process_broker
from tests.support.scripted_broker import scripted_broker


def messages(topic: str, count: int) -> list[Message]:
    """Messages that set every possible field."""
    return [
        Message(
            topic=topic,
            body=b"body %d " % number * (number % 5 + 1),
            tag=f"t{number % 3}",
            keys=(f"k{number}", "second") if number % 2 else (f"k{number}",),
            properties={"a": str(number), "ü": "ö"} if number % 4 else {},
            trace_context="trace" if number % 7 == 0 else None,
            message_id=new_message_id(),
        )
        for number in range(count)
    ]


async def test_records_equal_sent_messages(client: Client) -> None:
    """Records equal sent messages except for position and time, with properties, keys and tags of every kind."""
    await client.admin.create_topic("same", queue_count=1)
    some = messages("same", 50)
    for message in some:
        await client.producer().send(message)
    appended = await client.records.append("same", 0, client.records.pack("same", 0, some))
    assert (appended.first_queue_offset, appended.message_count) == (50, 50)
    records = []
    async for frame in client.records.read("same", 0, 0):
        batch = frame.batch()
        records += [batch.record(index) for index in range(len(batch))]
    assert [record.queue_offset for record in records] == list(range(100))
    for sent, packed in zip(records[:50], records[50:], strict=True):
        assert bytes(sent.body) == bytes(packed.body)
        born_host = {"__BORNHOST": sent.properties["__BORNHOST"]} if "__BORNHOST" in sent.properties else {}
        assert dict(sent.properties) == {**packed.properties, **born_host, "__CRC32#": sent.properties["__CRC32#"]}
        assert (sent.sys_flag, sent.flag, sent.reconsume_times) == (packed.sys_flag, packed.flag, 0)


async def test_consumers_get_records(client: Client) -> None:
    """Consumers receive records like any other message."""
    some = messages("consumed", 20)
    await client.admin.create_topic("consumed", queue_count=1)
    await client.records.append("consumed", 0, client.records.pack("consumed", 0, some))
    received: list[ReceivedMessage] = []
    consumer = client.simple_consumer("g", "consumed")
    while len(received) < 20:
        received += await consumer.receive(32)
    found = {each.message_id: each for each in received}
    for message in some:
        each = found[str(message.message_id)]
        assert (each.body, each.tag, each.keys, each.trace_context) == (
            *(message.body, message.tag, message.keys),
            message.trace_context,
        )
        assert each.properties == message.properties


@pytest.mark.parametrize("compression", [None, "zlib", "lz4", "zstd"])
async def test_batch_topics(client: Client, compression: Compression | None) -> None:
    """A record holds many messages, compressed or not; they are read one by one, also from the middle of a batch."""
    topic = f"batch-{compression}"
    await client.admin.create_topic(topic, queue_count=1, attributes={"queue.type": "BatchCQ"})
    some = messages(topic, 100)
    packed = client.records.pack_batch(topic, 0, some, compression=compression)
    async with client.records.appender(topic, 0) as appender:
        outcomes = [await appender.append(packed) for _ in range(3)]
    assert [(await each).first_queue_offset for each in outcomes] == [0, 100, 200]
    frames = [frame async for frame in client.records.read(topic, 0, 150)]
    bodies = [body for frame in frames for body in frame.bodies()]
    assert bodies == [message.body for message in some][50:] + [message.body for message in some]


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
async def test_compressed_records(client: Client, compression: Compression) -> None:
    """Large bodies are unchanged after compression and decompression."""
    topic = f"compressed-{compression}"
    await client.admin.create_topic(topic, queue_count=1)
    some = [Message(topic=topic, body=body) for body in (b"long " * 2000, b"short")]
    await client.records.append(topic, 0, client.records.pack(topic, 0, some, compression=compression))
    (frame,) = [frame async for frame in client.records.read(topic, 0, 0)]
    assert list(frame.bodies()) == [b"long " * 2000, b"short"]
    assert len(frame.records) < 2000


async def test_a_refused_request_does_not_end_the_stream(client: Client) -> None:
    """Its future fails with the reason; later requests are stored."""
    await client.admin.create_topic("stream", queue_count=1)
    good = client.records.pack("stream", 0, [Message(topic="stream", body=b"x")])
    async with client.records.appender("stream", 0) as appender:
        first, bad, last = [await appender.append(each) for each in (good, good[:-1] + b"?", good + good)]
    with pytest.raises(BadRequestError):
        await bad
    assert ((await first).first_queue_offset, (await last).message_count) == (0, 2)
    (queue,) = await client.records.offsets("stream", timestamp=0)
    assert (queue.min_offset, queue.max_offset, queue.timestamp_offset) == (0, 3, 0)
    with pytest.raises(ClientError, match="closed"):
        await appender.append(good)


async def test_messages_that_cannot_be_records(client: Client) -> None:
    """Delayed messages, other topics, and values beyond a limit are refused."""
    for bad in (
        Message(topic="t", body=b"x", delivery_timestamp=1),
        Message(topic="other", body=b"x"),
        Message(topic="t", body=b""),
        Message(topic="t", body=b"x", keys=("a b",)),
        Message(topic="t", body=b"x", properties={"a": ""}),
    ):
        with pytest.raises(BadRequestError):
            client.records.pack("t", 0, [bad])
    await client.admin.create_topic("t", queue_count=1)
    with pytest.raises(BadRequestError, match="ILLEGAL_OFFSET"):
        _ = [frame async for frame in client.records.read("t", 0, 7)]


async def test_servers_with_and_without_the_service(client: Client) -> None:
    """Aerobee has RecordService; RocketMQ's servers do not."""
    assert await client.records.supported()
    async with scripted_broker() as other, connect(other.endpoint) as elsewhere:
        assert not await elsewhere.records.supported()


async def stored_records(client: Client, topic: str) -> list[Record]:
    """All records of all queues."""
    found = []
    for queue in await client.records.offsets(topic):
        async for frame in client.records.read(topic, queue.queue_id, 0):
            batch = frame.batch()
            found += [batch.record(index) for index in range(len(batch))]
    return found


async def test_a_producer_stores_equal_records_by_both_calls(client: Client) -> None:
    """Records equal, including compressed bodies and this machine's name, and the returned offsets are right."""
    some = [*messages("both", 30), Message(topic="both", body=b"long " * 2000, message_id=new_message_id())]
    await client.admin.create_topic("both", queue_count=2)
    by_message = await client.producer(use_records=False, compression="zlib").send_many(some)
    by_record = await client.producer(compression="zlib").send_many(some)
    assert {each.call for each in by_message} == {"SendMessage"}
    assert {each.call for each in by_record} == {"AppendRecords"}
    by_id: dict[str, list[Record]] = {}
    for record in await stored_records(client, "both"):
        by_id.setdefault(record.properties["UNIQ_KEY"], []).append(record)
    for message, result in zip(some, by_record, strict=True):
        sent, appended = sorted(by_id[str(message.message_id)], key=lambda record: record.physical_offset)
        assert (appended.queue_id, appended.queue_offset) == (result.queue_id, result.queue_offset)
        assert bytes(sent.body) == bytes(appended.body)
        checksums = {"__CRC32#": sent.properties["__CRC32#"]}
        assert dict(sent.properties) == {**appended.properties, **checksums}
        assert (sent.sys_flag, sent.flag, sent.born_host[0]) == (
            appended.sys_flag,
            appended.flag,
            appended.born_host[0],
        )


async def test_a_topic_that_is_created_by_a_send(client: Client) -> None:
    """The topic, in a namespace, is created by many concurrent messages."""
    async with connect(client.endpoint, namespace="space") as other:
        results = await other.producer().send_many(messages("new", 20))
        assert {each.call for each in results} == {"AppendRecords"}
        received: set[str] = set()
        consumer = other.simple_consumer("g", "new")
        while len(received) < 20:
            received |= {each.message_id for each in await consumer.receive(32)}
        assert received == {each.message_id for each in results}


async def test_ordered_topics_and_batch_topics(client: Client) -> None:
    """Messages that the topic does not accept as records are sent as messages, and fail as such."""
    await client.admin.create_topic("ordered", message_types=[v2.MessageType.FIFO])
    with pytest.raises(BatchError, match="20 of 20 failed"):
        await client.producer().send_many(messages("ordered", 20))
    some = [Message(topic="ordered", body=b"x", message_group=f"g{number % 3}") for number in range(20)]
    assert {each.call for each in await client.producer().send_many(some)} == {"SendMessage"}


def test_an_ipv6_address(tmp_path: Path) -> None:
    """A broker at an IPv6 address: consumers see the producer's address, with either call."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with run_broker(tmp_path, ("--dev", "--listen", "[::1]:0"), memory=True) as broker:
        assert broker.endpoint.startswith("[::1]:")

        async def story() -> list[Record]:
            async with connect(broker.endpoint) as client:
                one = Message(topic="six", body=b"x")
                sent = await client.producer().send(one)
                many = await client.producer().send_many([one] * 8)
                await client.records.append("six", 0, client.records.pack("six", 0, [one]))
                await client.admin.create_topic("six-batch", queue_count=1, attributes={"queue.type": "BatchCQ"})
                await client.records.append("six-batch", 0, client.records.pack_batch("six-batch", 0, [one] * 2))
                assert (sent.call, many[0].call) == ("SendMessage", "AppendRecords")
                received = await client.simple_consumer("g", "six").receive(32)
                assert {each.born_host for each in received} <= {socket.gethostname(), "::1"}
                return await stored_records(client, "six") + await stored_records(client, "six-batch")

        records = asyncio.run(story())
    assert {record.born_host[0] for record in records} == {"::1"}
    assert all(record.born_host[1] for record in records)


@pytest.mark.parametrize(("limit", "fits", "too_many"), [(300, 200, 301), (2, 2, 3)])
async def test_the_limits_of_a_message_are_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, fits: int, too_many: int
) -> None:
    """Above and below the defaults: the client refuses by the limits that operators have set."""

    def with_properties(count: int) -> Message:
        return Message(topic="orders", body=b"x", properties={f"p{number}": "v" for number in range(count)})

    limits = LimitsConfig(user_property_count_max=limit)
    async with in_process_broker(tmp_path, limits=limits) as running, connect(running.endpoint) as connected:
        async with connected.producer() as producer:
            assert (await producer.send(with_properties(fits))).message_id
            with pytest.raises(BadRequestError, match=f"the limit is {limit}"):
                await producer.send(with_properties(too_many))
            assert await connected.records.supported()
            monkeypatch.setattr(producer._sending, "send_message", None)  # from now on the client refuses by itself
            with pytest.raises(BadRequestError, match=f"the limit is {limit}"):
                await producer.send(with_properties(too_many))
        assert connected.records.pack("orders", 0, [with_properties(fits)])
        with pytest.raises(BadRequestError, match=f"the limit is {limit}"):
            connected.records.pack("orders", 0, [with_properties(too_many)])
        with pytest.raises(BadRequestError, match="the limit is 8192"):  # of a tiny store
            connected.records.pack("orders", 0, [Message(topic="orders", body=bytes(8193))])
