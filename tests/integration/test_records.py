"""RecordService through a real broker: appending and reading records in bulk."""

from __future__ import annotations

import asyncio
import re
import urllib.request
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from aerobee_broker.config import AuthConfig
from aerobee_broker.front.grpc_wire import message_prefix
from aerobee_broker.messages.message_mapping import to_store_message
from aerobee_broker.processors.records.read import frame_bytes
from aerobee_client import Credentials
from aerobee_proto import admin_v1, records_v1, v2
from aerobee_store import MessageStore
from aerobee_store.record_runs import RecordRuns
from aerobee_store.records import inner_batch
from aerobee_store.records.record import Draft, Message
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.testing import ManualClock
from tests.conformance.raw_client import RawClient, duration, resource, timestamp
from tests.support import http2_client
from tests.support.accounts_file import write_accounts
from tests.support.front_under_test import FRONT
from tests.support.in_process_broker import InProcessBroker, in_process_broker

Code = v2.Code
TIME = 1_700_000_000_000


def packed(messages: Sequence[Message], *, property_crc: bool = True) -> list[bytes]:
    """The records that a client makes from messages, each in its own buffer."""
    host = ("0.0.0.0", 0)
    return [Draft(each, store_host=host, property_crc=property_crc).encode_unplaced() for each in messages]


def some(count: int, topic: str = "orders", queue_id: int = 0, first: int = 0, **changes: Any) -> list[Message]:
    """Messages of different sizes, with ids, tags and keys."""
    return [
        Message(
            topic,
            queue_id,
            b"body %d " % number + b"x" * (number % 7),
            {"UNIQ_KEY": f"01{number:030X}", "TAGS": f"t{number % 3}", "KEYS": f"k{number}"},
            born_timestamp=TIME,
            **changes,
        )
        for number in range(first, first + count)
    ]


class Records:
    """The stub of RecordService, with a client id."""

    def __init__(self, broker: InProcessBroker) -> None:
        self.broker = broker
        self.raw = RawClient(broker.channel)
        self.stub: Any = records_v1.RecordServiceStub(broker.channel)  # the asyncio types exist only in stub files

    async def call(self, method: str, request: Any) -> Any:
        return await getattr(self.stub, method)(request, metadata=self.raw.metadata, timeout=20)

    async def append(self, records: bytes, topic: str = "orders", queue_id: int = 0) -> Any:
        return await self.call("AppendRecords", append_request(records, topic, queue_id))

    async def read(self, start: int = 0, topic: str = "orders", queue_id: int = 0, **fields: Any) -> Any:
        """The frames, and the last response."""
        request = records_v1.ReadRecordsRequest(
            topic=resource(topic), queue_id=queue_id, start_queue_offset=start, **fields
        )
        call = self.stub.ReadRecords(request, metadata=self.raw.metadata, timeout=20)
        *frames, last = [response async for response in call]
        assert last.HasField("status")
        assert not any(each.HasField("status") for each in frames)
        return frames, last


def append_request(records: bytes, topic: str = "orders", queue_id: int = 0) -> records_v1.AppendRecordsRequest:
    return records_v1.AppendRecordsRequest(topic=resource(topic), queue_id=queue_id, records=records)


def parsed(frame: Any) -> RecordBatch:
    """The records of a frame, after verifying all checksums and its sizes."""
    batch = RecordBatch.parse(frame.records, base_physical_offset=None)
    assert batch.end == len(frame.records)
    assert batch.size.tolist() == np.frombuffer(frame.record_sizes, "<u4").tolist()
    return batch


def bodies(frames: Sequence[Any]) -> list[bytes]:
    return [bytes(batch.body(row)) for batch in map(parsed, frames) for row in range(len(batch))]


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    """RecordService of a broker that creates topics on first use."""
    async with in_process_broker(tmp_path / "store") as broker:
        yield Records(broker)


async def test_appended_records_are_read(records: Records) -> None:
    """Records come in order, with offsets from 0, in frames of the requested size.

    Reads have offset and byte limits.
    """
    messages = some(500)
    answer = await records.append(b"".join(packed(messages[:300])))
    assert (answer.status.code, answer.first_queue_offset, answer.message_count) == (Code.OK, 0, 300)
    answer = await records.append(b"".join(packed(messages[300:])))
    assert (answer.status.code, answer.first_queue_offset, answer.message_count) == (Code.OK, 300, 200)

    frames, last = await records.read()
    assert (last.status.code, last.next_queue_offset, last.max_queue_offset) == (Code.OK, 500, 500)
    assert bodies(frames) == [each.body for each in messages]
    assert [n for frame in frames for n in parsed(frame).queue_offset.tolist()] == list(range(500))

    frames, last = await records.read(100, frame_bytes_max=5000)
    assert len(frames) > 10
    assert max(len(frame.records) for frame in frames) <= 5000
    assert [frame.start_queue_offset for frame in frames] == [100, *(each.next_queue_offset for each in frames[:-1])]
    assert bodies(frames) == [each.body for each in messages[100:]]

    frames, last = await records.read(250, end_queue_offset=350)
    assert last.next_queue_offset == 350
    assert bodies(frames) == [each.body for each in messages[250:350]]

    frames, last = await records.read(10, bytes_max=1)
    assert (bodies(frames), last.next_queue_offset) == ([messages[10].body], 11)


async def test_an_answer_waits_until_the_records_are_stored(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is busy, there is no answer."""
    released = asyncio.Event()
    wait_stored = MessageStore.wait_stored

    async def slow(self: MessageStore, end: int, *, durable: bool | None = None) -> None:
        await released.wait()
        await wait_stored(self, end, durable=durable)

    monkeypatch.setattr(MessageStore, "wait_stored", slow)
    append = asyncio.create_task(records.append(b"".join(packed(some(10)))))
    assert not (await asyncio.wait({append}, timeout=0.5))[0]
    released.set()
    assert (await append).status.code == Code.OK


async def test_a_stream_of_appends_is_answered_in_order(records: Records) -> None:
    """One response per request; a refused request stores nothing and does not end the stream."""
    parts = [packed(some(20, first=20 * number)) for number in range(10)]
    broken = bytearray(b"".join(parts[4]))
    broken[len(parts[4][0]) + 90] ^= 1  # in the second record's body
    requests = [append_request(bytes(broken) if number == 4 else b"".join(part)) for number, part in enumerate(parts)]
    call = records.stub.StreamAppendRecords(iter(requests), metadata=records.raw.metadata, timeout=20)
    answers = [answer async for answer in call]
    assert [answer.status.code for answer in answers] == [Code.OK] * 4 + [Code.MESSAGE_CORRUPTED] + [Code.OK] * 5
    assert answers[4].bad_record_index == 1
    assert "record 1 of the request: body checksum differs" in answers[4].status.message
    offsets = [answer.first_queue_offset for answer in answers if answer.status.code == Code.OK]
    assert offsets == [20 * number for number in range(9)]
    frames, _ = await records.read()
    assert len(bodies(frames)) == 180


def one(body: bytes = b"b", raw: bytes | None = None, **changes: Any) -> Message:
    """A message whose property string is given as raw bytes."""
    return Message("orders", 0, body, raw_properties=raw, born_timestamp=TIME, **changes)


REFUSED: dict[str, tuple[list[Message], int, str]] = {
    "nothing": ([], Code.MESSAGE_CORRUPTED, "no record"),
    "topic": (some(1, topic="bills"), Code.BAD_REQUEST, "it is for queue 0 of topic 'bills', not for queue 0 of"),
    "queue": (some(1, queue_id=1), Code.BAD_REQUEST, "it is for queue 1 of topic 'orders', not for queue 0"),
    "prepared": (some(1, sys_flag=4), Code.BAD_REQUEST, "system flags 0x4 are not possible"),
    "batch": (some(1, sys_flag=0x80), Code.BAD_REQUEST, "an inner batch, and the topic takes single messages"),
    "empty body": ([one(b"")], Code.MESSAGE_BODY_EMPTY, "body of the message is empty"),
    "large body": ([one(bytes(8193))], Code.MESSAGE_BODY_TOO_LARGE, "has 8193 bytes, the limit is 8192"),
    "no pair": ([one(raw=b"abc\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "name, 0x01, value, 0x02"),
    "empty name": ([one(raw=b"\x01v\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "name, 0x01, value, 0x02"),
    "empty value": ([one(raw=b"n\x01\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "name, 0x01, value, 0x02"),
    "two separators": ([one(raw=b"n\x01v\x01w\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "name, 0x01"),
    "control": ([one(raw=b"n\x01v\nw\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "a control character"),
    "delete": ([one(raw=b"n\x01v\x7fw\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "a control character"),
    "c1": ([one(raw=b"n\x01v\xc2\x80w\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "a control character"),
    "utf-8": ([one(raw=b"n\x01v\xffw\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "are not UTF-8"),
    "reserved": ([one(raw=b"TIMER_DELAY_MS\x0110\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "'TIMER_DELAY_MS'"),
    "wait": ([one(raw=b"WAIT\x01false\x02")], Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "name 'WAIT' is reserved"),
    "queues": (
        [one(raw=b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02")],
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "'INNER_MULTI_DISPATCH'",
    ),
    "tag": ([one(raw=b"TAGS\x01a|b\x02")], Code.ILLEGAL_MESSAGE_TAG, "tag 'a|b'"),
    "blank tag": ([one(raw=b"TAGS\x01 \x02")], Code.ILLEGAL_MESSAGE_TAG, "tag ' ' is blank"),
    "large": ([one(raw=b"n\x01" + b"v" * 17000 + b"\x02")], Code.MESSAGE_PROPERTIES_TOO_LARGE, "take 17001 bytes"),
    "many": (
        [one(raw=b"".join(b"n%d\x01v\x02" % number for number in range(129)))],
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
        "129 user properties",
    ),
    "id": ([one(raw=b"UNIQ_KEY\x01" + b"v" * 9000 + b"\x02")], Code.ILLEGAL_MESSAGE_ID, "has more than 8192 bytes"),
    "trace": ([one(raw=b"TRACE_CONTEXT\x01" + b"v" * 9000 + b"\x02")], Code.MESSAGE_PROPERTIES_TOO_LARGE, "8192"),
    "blank id": ([one(raw=b"UNIQ_KEY\x01 \x02")], Code.ILLEGAL_MESSAGE_ID, "' ' is blank"),
    "blank key": ([one(raw=b"KEYS\x01  \x02")], Code.ILLEGAL_MESSAGE_KEY, "'  ' is blank"),
    "blank tag beyond ASCII": ([one(raw=b"TAGS\x01\xe3\x80\x80\x02")], Code.ILLEGAL_MESSAGE_TAG, "is blank"),
    "blank group": ([one(raw=b"__SHARDINGKEY\x01 \x02")], Code.ILLEGAL_MESSAGE_GROUP, "is blank"),
    "long group": ([one(raw=b"__SHARDINGKEY\x01" + b"g" * 64 + b"\x02")], Code.ILLEGAL_MESSAGE_GROUP, "63 bytes"),
    "transient": (
        [one(raw=b"__RMQ.TRANSIENT.x\x01v\x02")],
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "name '__RMQ.TRANSIENT.x' is reserved",
    ),
    "group": (
        [one(raw=b"__SHARDINGKEY\x01g1\x02")],
        Code.BAD_REQUEST,
        "message group 'g1' belongs in queue 6 of 8, not in 0",
    ),
}


async def test_invalid_requests_are_refused(records: Records) -> None:
    """Each request is refused with its reason, also after valid records or several alike, and nothing is stored."""
    for kind, (messages, code, text) in REFUSED.items():
        for before, times in ((0, 1), (5, 1), (0, 9)) if messages else ((0, 1),):
            answer = await records.append(b"".join(packed([*some(before), *messages * times])))
            assert (kind, answer.status.code) == (kind, code), answer.status.message
            assert text in answer.status.message, kind
            if messages:
                assert answer.bad_record_index == before, kind
                assert f"record {before} of the request: " in answer.status.message
    assert (await records.read())[1].max_queue_offset == 0


async def test_sizes_given_by_the_client(records: Records) -> None:
    """Correct sizes change nothing, wrong ones are ignored in favour of the records', and half a number is refused."""
    made = packed(some(9))
    right = np.array([len(each) for each in made], "<u4")
    wrong = right.copy()
    wrong[3] += 1
    wrong[4] -= 1
    for sizes in (right.tobytes(), wrong.tobytes(), right[:-1].tobytes(), b"\xff" * 36, b""):
        request = append_request(b"".join(made))
        request.record_sizes = sizes
        assert (await records.call("AppendRecords", request)).message_count == 9
    request.record_sizes = b"123"
    assert (await records.call("AppendRecords", request)).status.code == Code.BAD_REQUEST
    frames, _ = await records.read()
    assert len(bodies(frames)) == 45


def inner_batch_of(count: int, first: int = 0, compression: str = "", **changes: Any) -> Message:
    """An inner batch as a client makes it."""
    pairs = [
        (b"body %d" % number, b"UNIQ_KEY\x01ID%d\x02TAGS\x01t\x02" % number) for number in range(first, first + count)
    ]
    body = inner_batch.body_of(pairs)
    flags = 0
    if compression == "zlib":
        flags, body = 0x301, zlib.compress(body)
    elif compression == "lz4":
        flags, body = 0x101, pytest.importorskip("lz4.frame").compress(body)
    elif compression == "zstd":
        flags, body = 0x201, pytest.importorskip("zstandard").ZstdCompressor().compress(body)
    made = inner_batch.message_of("metering", 0, body, count, compression=flags, born_timestamp=TIME)
    return replace(made, **changes)


async def create_batch_topic(records: Records) -> None:
    topic = admin_v1.Topic(name="metering", attributes={"queue.type": "BatchCQ"}, read_queue_count=1)
    answer = await records.raw.admin.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), timeout=60)
    assert answer.status.code == Code.OK, answer.status


@pytest.mark.parametrize("compression", ["", "zlib", "lz4", "zstd"])
async def test_a_batch_topic_stores_batches_unchanged(records: Records, compression: str) -> None:
    """One record holds many messages when appended and read; consumers receive each message separately."""
    await create_batch_topic(records)
    made = [inner_batch_of(100, 0, compression), inner_batch_of(30, 100, compression)]
    answer = await records.append(b"".join(packed(made)), "metering")
    assert (answer.status.code, answer.first_queue_offset, answer.message_count) == (Code.OK, 0, 130), answer.status
    answer = await records.append(b"".join(packed([inner_batch_of(20, 130, compression)])), "metering")
    assert (answer.first_queue_offset, answer.message_count) == (130, 20)

    frames, last = await records.read(120, "metering")
    batches = [batch.record(row) for batch in map(parsed, frames) for row in range(len(batch))]
    assert [batch.queue_offset for batch in batches] == [100, 130]
    assert (last.next_queue_offset, last.max_queue_offset) == (150, 150)
    unpacked = [message for batch in batches for message in inner_batch.unpack(batch)]
    assert [message.body for message in unpacked] == [b"body %d" % number for number in range(100, 150)]
    assert [message.queue_offset for message in unpacked] == list(range(100, 150))

    queue = v2.MessageQueue(topic=resource("metering"), id=0)
    pull = v2.PullMessageRequest(group=resource("g"), message_queue=queue, offset=95, batch_size=10)
    pull.filter_expression.expression = "*"
    call = records.raw.stub.PullMessage(pull, metadata=records.raw.metadata, timeout=60)
    pulled = [each.message async for each in call if each.HasField("message")]
    assert [each.body for each in pulled] == [b"body %d" % number for number in range(95, 105)]
    assert pulled[0].system_properties.message_id == "ID95"


async def test_records_that_a_batch_topic_refuses(records: Records) -> None:
    """Bodies that are not batches, wrong counts, single messages; one bad record refuses the whole request."""
    zstandard = pytest.importorskip("zstandard")
    await create_batch_topic(records)
    good = inner_batch_of(3)
    body = bytes(good.body)
    longer = int.from_bytes(body[:4], "big") + 1
    bad: list[tuple[Message, str]] = [
        (replace(good, properties={**good.properties, "INNER_NUM": "4"}), "of 3 messages claims to have 4"),
        (replace(good, properties={**good.properties, "INNER_NUM": "0"}), "INNER_NUM, 1 to 32767, not '0'"),
        (replace(good, properties={**good.properties, "INNER_BASE": "0"}), "INNER_BASE with 18 digits"),
        (replace(good, properties={**good.properties, "INNER_BASE": "0" * 19}), "INNER_BASE with 18 digits"),
        (replace(good, properties={**good.properties, "INNER_BASE": "x" * 18}), "characters other than digits"),
        (replace(good, body=body[:-1]), "invalid body"),
        (replace(good, body=longer.to_bytes(4, "big") + body[4:]), "invalid body"),
        (replace(good, body=b"\x7f\xff\xff\xff" + body[4:]), "claims to have 2147483647 bytes"),
        (replace(good, sys_flag=0xC0 | 0x301), "not a zlib stream"),
        (replace(good, body=zstandard.ZstdCompressor().compress(bytes(20 << 20)), sys_flag=0x2C1), "beyond 16777"),
        (replace(good, sys_flag=0xC0 | 0x701), "compression type 7 is unknown"),
        (replace(good, sys_flag=0), "it is not an inner batch, although other records are"),
    ]
    for message, text in bad:
        answer = await records.append(b"".join(packed([good, message])), "metering")
        assert answer.status.code == Code.BAD_REQUEST
        assert text in answer.status.message
        assert answer.bad_record_index == 1
    answer = await records.append(b"".join(packed(some(1, topic="metering"))), "metering")
    assert (answer.status.code, "takes inner batches only" in answer.status.message) == (Code.BAD_REQUEST, True)
    answer = await records.append(b"".join(packed([replace(good, topic="orders")])), "orders")
    assert "the topic takes single messages" in answer.status.message
    assert (await records.read(topic="metering"))[1].max_queue_offset == 0


async def test_records_equal_those_of_send_message(tmp_path: Path) -> None:
    """The bytes are equal for the same messages at the same time; only the sender's port may differ."""
    sent: list[v2.Message] = []
    for number in range(40):
        message = v2.Message(
            topic=resource("orders"),
            body=b"x" * (1 + number * 7),
            user_properties={"region": f"nö{number}"} if number % 5 == 1 else {},
            system_properties=v2.SystemProperties(
                message_id=f"01{number:030X}",
                tag="t" if number % 3 else None,
                keys=[f"k{number}", "both"][: number % 3],
            ),
        )
        message.system_properties.born_timestamp.FromMilliseconds(TIME)
        sent.append(message)
    stored = []
    for way in ("one by one", "send", "records"):
        directory = tmp_path / way
        async with in_process_broker(directory, clock=ManualClock()) as broker:
            records = Records(broker)
            topic = admin_v1.Topic(name="orders", read_queue_count=1)
            await records.raw.admin.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), timeout=60)
            if way == "one by one":
                for each in sent:
                    answer = await records.raw.call("SendMessage", v2.SendMessageRequest(messages=[each]))
            elif way == "send":
                answer = await records.raw.call("SendMessage", v2.SendMessageRequest(messages=sent))
            else:
                unknown = ("0.0.0.0", 0)
                made = [to_store_message(each, "orders", 0, unknown, 0) for each in sent]
                answer = await records.append(b"".join(packed(made)))
            assert answer.status.code == Code.OK
            (frame,), _ = await records.read()
            data = bytearray(frame.records)
            batch = parsed(frame)
            for start, size in zip(batch.start.tolist(), batch.size.tolist(), strict=True):
                data[start + 52 : start + 56] = bytes(4)  # the sender's port; the checksum follows below
                data[start + size - 11 : start + size - 1] = bytes(10)
            stored.append(bytes(data))
    assert stored[0] == stored[1]
    assert stored[0] == stored[2]


async def test_a_read_waits_for_records(records: Records) -> None:
    """Records that arrive meanwhile are returned at once; then it waits again, until its timeout."""
    reading = asyncio.ensure_future(records.read(end_queue_offset=2, wait=duration(60)))
    for number in range(2):
        await records.broker.waiting(1)
        await records.append(b"".join(packed(some(1, first=number))))
    frames, last = await reading
    assert (bodies(frames), last.next_queue_offset) == ([b"body 0 ", b"body 1 x"], 2)
    assert len(frames) == 2
    assert await records.read(2, wait=duration(0.05)) == ([], (await records.read(2))[1])


async def test_tags_are_compared_in_the_queue(records: Records) -> None:
    """Only records with one of the tags are returned; offsets advance past the others."""
    messages = some(100)
    await records.append(b"".join(packed(messages)))
    frames, last = await records.read(tags=["t1", "none"])
    assert bodies(frames) == [each.body for each in messages[1::3]]
    assert last.next_queue_offset == 100
    frames, last = await records.read(tags=["none"])
    assert (frames, last.next_queue_offset) == ([], 100)


async def test_reads_are_counted_by_group(records: Records) -> None:
    """The metrics count a group's messages and bytes; a record of a batch topic holds many messages."""
    sent = packed(some(100))
    await records.append(b"".join(sent))
    await create_batch_topic(records)
    assert (await records.append(packed([inner_batch_of(7)])[0], "metering")).status.code == Code.OK
    await records.read()
    await records.read(group=resource("readers"))
    await records.read(90, group=resource("readers"))
    await records.read(topic="metering", group=resource("readers"))
    text = await asyncio.to_thread(_scraped, records.broker.metrics)
    shown = re.findall(r'^rocketmq_(messages|throughput)_out_total{.*topic="(.*?)".*} (.*)$', text, re.MULTILINE)
    assert shown[:2] == [("messages", "orders", "110.0"), ("messages", "metering", "7.0")]
    assert shown[2] == ("throughput", "orders", f"{len(b''.join(sent)) + len(b''.join(sent[90:]))}.0")


def _scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as response:
        return str(response.read().decode())


async def test_an_offset_outside_the_queue(records: Records) -> None:
    """The answer has the queue's first and end offsets."""
    await records.append(b"".join(packed(some(3))))
    for start, nearest in ((-1, 0), (4, 3)):
        frames, last = await records.read(start)
        assert (frames, last.status.code, last.next_queue_offset) == ([], Code.ILLEGAL_OFFSET, nearest)
        assert (last.min_queue_offset, last.max_queue_offset) == (0, 3)


async def test_offsets_of_many_queues(records: Records) -> None:
    """One call covers several topics; an unknown one does not fail the others."""
    await records.append(b"".join(packed(some(3))))
    answer = await records.append(b"".join(packed(some(5, queue_id=2))), queue_id=2)
    asked = records_v1.QueueOffsetsRequest.TopicQueues
    response = await records.call(
        "QueueOffsets",
        records_v1.QueueOffsetsRequest(
            topics=[
                asked(topic=resource("orders")),
                asked(topic=resource("nothing")),
                asked(topic=resource("orders"), queue_ids=[2, 9]),
                asked(topic=resource("orders"), queue_ids=[2], timestamp=timestamp(answer.store_timestamp_ms)),
                asked(topic=resource("orders"), queue_ids=[2], timestamp=timestamp(answer.store_timestamp_ms + 1)),
            ]
        ),
    )
    assert response.status.code == Code.OK
    assert response.flushed_physical_offset == answer.end_physical_offset
    codes = [each.status.code for each in response.topics]
    assert codes == [Code.OK, Code.TOPIC_NOT_FOUND, Code.BAD_REQUEST, Code.OK, Code.OK]
    ranges = [[(each.min_queue_offset, each.max_queue_offset) for each in topic.queues] for topic in response.topics]
    assert ranges[0][:4] == [(0, 3), (0, 0), (0, 5), (0, 0)]
    assert ranges[1:] == [[], [], [(0, 5)], [(0, 5)]]
    assert [topic.queues[0].timestamp_queue_offset for topic in response.topics[3:]] == [0, 5]


async def test_records_are_found_by_key_id_and_time(records: Records) -> None:
    """Records are returned as stored; a time range comes in pages."""
    messages = some(50)
    first = await records.append(b"".join(packed(messages[:40])))
    await asyncio.sleep(0.01)
    await records.append(b"".join(packed(messages[40:])))

    async def query(**fields: Any) -> Any:
        return await records.call("QueryRecords", records_v1.QueryRecordsRequest(topic=resource("orders"), **fields))

    assert bodies([await query(key="k7")]) == [messages[7].body]
    assert bodies([await query(message_id=messages[9].properties["UNIQ_KEY"])]) == [messages[9].body]
    assert (await query(key="other")).status.code == Code.MESSAGE_NOT_FOUND
    assert (await query()).status.code == Code.BAD_REQUEST
    pages: list[Any] = []
    token = ""
    while not pages or token:
        pages.append(await query(begin=timestamp(first.store_timestamp_ms), record_count_max=15, page_token=token))
        token = pages[-1].next_page_token
    assert bodies(pages) == [each.body for each in messages]
    assert len(pages) == 4
    late = await query(begin=timestamp(first.store_timestamp_ms + 1))
    assert bodies([late]) == [each.body for each in messages[40:]]
    early = await query(end=timestamp(first.store_timestamp_ms))
    assert bodies([early]) == [each.body for each in messages[:40]]


async def test_accounts_append_and_read_with_permission(tmp_path: Path) -> None:
    """Each request of a stream is authorized separately."""
    text = '[accounts.shop]\nsecret_key = "the secret of the shop"\npublish = ["orders"]\nconsume = ["orders"]\n'
    accounts = write_accounts(tmp_path / "accounts.toml", text)
    async with in_process_broker(tmp_path / "store", auth=AuthConfig(accounts=accounts)) as broker:
        records = Records(broker)
        unsigned = await records.append(b"".join(packed(some(1))))
        assert unsigned.status.code == Code.UNAUTHORIZED
        records.raw.metadata += Credentials("shop", "the secret of the shop").headers()
        assert (await records.append(b"".join(packed(some(3))))).status.code == Code.OK
        refused = await records.append(b"".join(packed(some(1, topic="bills"))), "bills")
        assert refused.status.code == Code.FORBIDDEN

        requests = [append_request(b"".join(packed(some(1, topic=topic))), topic) for topic in ("orders", "bills")]
        call = records.stub.StreamAppendRecords(iter(requests), metadata=records.raw.metadata, timeout=20)
        assert [answer.status.code async for answer in call] == [Code.OK, Code.FORBIDDEN]

        assert (await records.read())[1].next_queue_offset == 4
        assert (await records.read(topic="bills"))[1].status.code == Code.FORBIDDEN
        assert (await records.read(group=resource("others")))[1].status.code == Code.FORBIDDEN
        query = records_v1.QueryRecordsRequest(topic=resource("bills"), key="k")
        assert (await records.call("QueryRecords", query)).status.code == Code.FORBIDDEN
        topics = [records_v1.QueueOffsetsRequest.TopicQueues(topic=resource(name)) for name in ("orders", "bills")]
        offsets = records_v1.QueueOffsetsRequest(topics=topics)
        assert (await records.call("QueueOffsets", offsets)).status.code == Code.FORBIDDEN


async def test_streams_have_the_rights_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends, tails and settings of a stream have the rights of now, not those of its begin."""
    monkeypatch.setattr("aerobee_broker.clients.accounts._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("aerobee_broker.processors.administration.tail._SILENCE_SECONDS", 0.05)
    right = '[accounts.shop]\nsecret_key = "the secret of the shop"\npublish = ["orders"]\nconsume = ["orders"]\n'
    changes = (  # the file, and what appends and the tail get; None: it goes on, without bodies
        (right.replace("shop", "shed"), Code.UNAUTHORIZED, Code.UNAUTHORIZED),
        (right.replace("secret of", "new secret of"), Code.UNAUTHORIZED, Code.UNAUTHORIZED),
        (right.replace("orders", "others"), Code.FORBIDDEN, Code.FORBIDDEN),
        (right.replace("orders", "others") + "view = true\n", Code.FORBIDDEN, None),
    )
    settings = v2.Settings(client_type=v2.ClientType.PRODUCER)
    settings.publishing.topics.add(name="orders")
    file = tmp_path / "accounts.toml"
    write_accounts(file, right)
    async with in_process_broker(tmp_path / "store", auth=AuthConfig(accounts=file)) as broker:
        records = Records(broker)
        records.raw.metadata += Credentials("shop", "the secret of the shop").headers()
        admin: Any = admin_v1.AdminServiceStub(broker.channel)
        messaging: Any = v2.MessagingServiceStub(broker.channel)
        for changed, code, code_of_tail in changes:
            write_accounts(file, right)
            appends = records.stub.StreamAppendRecords(metadata=records.raw.metadata, timeout=30)
            await appends.write(append_request(b"".join(packed(some(1)))))
            assert (await appends.read()).status.code == Code.OK
            request = admin_v1.TailMessagesRequest(topic="orders", include_bodies=True)
            tail = admin.TailMessages(request, metadata=records.raw.metadata, timeout=30)
            assert not (await tail.read()).bodies_hidden
            telemetry = messaging.Telemetry(metadata=records.raw.metadata, timeout=30)
            await telemetry.write(v2.TelemetryCommand(settings=settings))
            assert (await telemetry.read()).status.code == Code.OK
            write_accounts(file, changed)
            await appends.write(append_request(b"".join(packed(some(1)))))
            assert (await appends.read()).status.code == code
            while (answer := await tail.read()).status.code == Code.OK and not answer.bodies_hidden:
                pass  # it has been under way
            assert answer.status.code == (code_of_tail or Code.OK)
            if code == Code.FORBIDDEN:  # else it is hung up
                await telemetry.write(v2.TelemetryCommand(settings=settings))
                with pytest.raises(grpc.aio.AioRpcError, match="FORBIDDEN: account 'shop' may not send to topic"):
                    await telemetry.read()
            for call in (appends, tail, telemetry):
                call.cancel()


async def test_draining_ends_streams(tmp_path: Path) -> None:
    """A stop answers appended requests and ends the stream; a waiting read ends with the records it has."""
    async with in_process_broker(tmp_path) as broker:
        records = Records(broker)
        call = records.stub.StreamAppendRecords(metadata=records.raw.metadata, timeout=30)
        await call.write(append_request(b"".join(packed(some(3)))))
        assert (await call.read()).message_count == 3
        reading = asyncio.ensure_future(records.read(wait=duration(20)))
        await asyncio.sleep(0.2)
        started = asyncio.get_running_loop().time()
        assert not reading.done()

        async def finished() -> None:
            assert not isinstance(await call.read(), records_v1.AppendRecordsResponse)
            frames, last = await reading
            assert (len(bodies(frames)), last.next_queue_offset) == (3, 3)

        ending = asyncio.ensure_future(finished())
        await asyncio.sleep(0)
    await ending
    assert asyncio.get_running_loop().time() - started < 15


async def test_a_reader_that_pauses(records: Records) -> None:
    """Appends continue meanwhile; when it resumes, it gets everything."""
    messages = some(400, first=0)
    for _ in range(5):
        answer = await records.append(b"".join(packed(messages)))
        assert answer.status.code == Code.OK
    request = records_v1.ReadRecordsRequest(topic=resource("orders"), frame_bytes_max=20_000)
    call = records.stub.ReadRecords(request, metadata=records.raw.metadata, timeout=30)
    frames = [await call.read()]
    await asyncio.sleep(0.1)
    assert (await records.append(b"".join(packed(some(1))))).status.code == Code.OK
    while (frame := await call.read()) and not frame.HasField("status"):
        frames.append(frame)
    assert len(bodies(frames)) in (2000, 2001)  # the broker may have read before the last one came


@pytest.mark.skipif(FRONT == "grpcio", reason="grpcio's buffers are its own")
async def test_a_stopped_reader_uses_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame is built once the client has taken the previous one: only one or two wait for the client."""
    made: list[int] = []
    first = asyncio.Event()

    def counted(result: RecordRuns, start_queue_offset: int) -> bytes:
        made.append(result.size)
        first.set()
        return frame_bytes(result, start_queue_offset)

    monkeypatch.setattr("aerobee_broker.processors.records.read.frame_bytes", counted)
    async with in_process_broker(tmp_path / "store") as broker:
        records = Records(broker)
        part = b"".join(packed([one(bytes(8000))] * 40))
        for _ in range(40):
            assert (await records.append(part)).status.code == Code.OK
        host, _, port = broker.endpoint.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 12)
        asked = records_v1.ReadRecordsRequest(topic=resource("orders"), frame_bytes_max=1 << 20).SerializeToString()
        headers = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/aerobee.v1.RecordService/ReadRecords"),
            (b"content-type", b"application/grpc"),
            (b"x-mq-client-id", b"stalled"),
        )
        writer.write(http2_client.GREETING + http2_client.request(1, headers=headers))
        writer.write(http2_client.data(1, message_prefix(len(asked)) + asked, ended=True))
        async with asyncio.timeout(20):
            await first.wait()
        for _ in range(20):  # other clients are served meanwhile
            assert (await records.read(bytes_max=1))[1].status.code == Code.OK
        assert sum(size for size in made if size > 10_000) <= 2 << 20
        writer.close()
        del reader


@pytest.mark.parametrize(
    ("call", "permission", "queue_id", "code"),
    [
        ("append", v2.Permission.READ, 0, Code.FORBIDDEN),
        ("append", v2.Permission.READ_WRITE, 8, Code.BAD_REQUEST),
        ("read", v2.Permission.WRITE, 0, Code.FORBIDDEN),
        ("read", v2.Permission.READ_WRITE, 8, Code.BAD_REQUEST),
        ("query", v2.Permission.WRITE, 0, Code.FORBIDDEN),
        ("offsets", v2.Permission.WRITE, 0, Code.FORBIDDEN),
    ],
)
async def test_closed_topics_and_missing_queues(
    records: Records, call: str, permission: v2.Permission.ValueType, queue_id: int, code: int
) -> None:
    """Every entrance of bulk clients asks whether the topic may be read or written, and has the queue."""
    await records.raw.create_topic("closed", queues=8, permission=permission)
    match call:
        case "append":
            made = b"".join(packed(some(1, topic="closed", queue_id=queue_id)))
            status = (await records.append(made, topic="closed", queue_id=queue_id)).status
        case "read":
            status = (await records.read(topic="closed", queue_id=queue_id))[1].status
        case "query":
            query = records_v1.QueryRecordsRequest(topic=resource("closed"), key="k")
            status = (await records.call("QueryRecords", query)).status
        case _:
            asked = records_v1.QueueOffsetsRequest.TopicQueues(topic=resource("closed"))
            answer = await records.call("QueueOffsets", records_v1.QueueOffsetsRequest(topics=[asked]))
            status = answer.topics[0].status
    assert status.code == code, status
