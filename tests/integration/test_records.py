"""RecordService through a real broker: records in bulk, in and out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerobee_proto import records_v1, v2
from aerobee_store.records.record import Draft, Message
from aerobee_store.records.record_batch import RecordBatch
from tests.conformance.raw_client import RawClient, duration, resource, timestamp
from tests.support.in_process_broker import InProcessBroker, in_process_broker

Code = v2.Code
TIME = 1_700_000_000_000


def packed(messages: Sequence[Message], *, property_crc: bool = True) -> list[bytes]:
    """The records that a client makes of messages, each for itself."""
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
        self.raw = RawClient(broker.channel)
        self.stub: Any = records_v1.RecordServiceStub(broker.channel)  # the asyncio face exists in stub files only

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
    """The records of a frame, with all checksums verified, and as long as it says."""
    batch = RecordBatch.parse(frame.records, base_physical_offset=None)
    assert batch.end == len(frame.records)
    assert batch.size.tolist() == np.frombuffer(frame.record_sizes, "<u4").tolist()
    return batch


def bodies(frames: Sequence[Any]) -> list[bytes]:
    return [bytes(batch.body(row)) for batch in map(parsed, frames) for row in range(len(batch))]


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    """Of a broker on which topics come into being with their first use."""
    async with in_process_broker(tmp_path / "store") as broker:
        yield Records(broker)


async def test_what_is_appended_is_read(records: Records) -> None:
    """In order, with offsets from 0 on, in frames of the asked size; from an offset, to an offset, up to some bytes."""
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


async def test_a_stream_of_appends_is_answered_in_order(records: Records) -> None:
    """One response for each request; a refused one does not end the stream, and stores nothing."""
    parts = [packed(some(20, first=20 * number)) for number in range(10)]
    broken = bytearray(b"".join(parts[4]))
    broken[len(parts[4][0]) + 90] ^= 1  # in the body of the second
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


@pytest.mark.parametrize(
    ("messages", "code", "text"),
    [
        ([], Code.MESSAGE_CORRUPTED, "no record"),
        (some(1, topic="bills"), Code.BAD_REQUEST, "not all of queue 0 of topic 'orders'"),
        (some(1, queue_id=1), Code.BAD_REQUEST, "not all of queue 0"),
        (some(1, sys_flag=4), Code.BAD_REQUEST, "transactional"),
        (some(1, sys_flag=0x80), Code.BAD_REQUEST, "inner batch"),
    ],
)
async def test_what_is_refused(records: Records, messages: list[Message], code: int, text: str) -> None:
    """Each with its reason, and nothing is stored."""
    answer = await records.append(b"".join(packed(messages)))
    assert answer.status.code == code
    assert text in answer.status.message
    assert (await records.read())[1].max_queue_offset == 0


async def test_a_read_waits_for_records(records: Records) -> None:
    """What arrives meanwhile comes at once; then it waits again, until its time is over."""
    reading = asyncio.ensure_future(records.read(end_queue_offset=2, wait=duration(10)))
    for number in range(2):
        await asyncio.sleep(0.05)
        await records.append(b"".join(packed(some(1, first=number))))
    frames, last = await reading
    assert (bodies(frames), last.next_queue_offset) == ([b"body 0 ", b"body 1 x"], 2)
    assert len(frames) == 2
    assert await records.read(2, wait=duration(0.05)) == ([], (await records.read(2))[1])


async def test_tags_are_looked_at_in_the_queue(records: Records) -> None:
    """Only the records with one of the tags come; the offsets go on over the others."""
    messages = some(100)
    await records.append(b"".join(packed(messages)))
    frames, last = await records.read(tags=["t1", "none"])
    assert bodies(frames) == [each.body for each in messages[1::3]]
    assert last.next_queue_offset == 100
    frames, last = await records.read(tags=["none"])
    assert (frames, last.next_queue_offset) == ([], 100)


async def test_an_offset_that_the_queue_does_not_have(records: Records) -> None:
    """The answer says where the queue begins and ends."""
    await records.append(b"".join(packed(some(3))))
    for start, nearest in ((-1, 0), (4, 3)):
        frames, last = await records.read(start)
        assert (frames, last.status.code, last.next_queue_offset) == ([], Code.ILLEGAL_OFFSET, nearest)
        assert (last.min_queue_offset, last.max_queue_offset) == (0, 3)


async def test_offsets_of_many_queues(records: Records) -> None:
    """Of several topics in one call; one that is not there does not spoil the others."""
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
    """As they are stored; a time range comes in pages."""
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
