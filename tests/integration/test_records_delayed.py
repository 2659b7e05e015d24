"""Delayed messages in bulk: records for the timer through AppendRecords, on a real broker."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from aerobee_broker.messages.message_mapping import to_store_message
from aerobee_client.testing import run_broker
from aerobee_proto import admin_v1, v2
from aerobee_store.records.message_fields import TIMER_TOPIC
from aerobee_store.records.record import Message, Record
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.testing import ManualClock
from aerobee_store.tools.verify import verify
from tests.conformance.raw_client import duration, resource
from tests.integration.test_records import Records, packed, parsed, some
from tests.support.in_process_broker import in_process_broker

Code = v2.Code
HOUR_MS = 3_600_000


def for_timer(message: Message, deliver_ms: int | str, **changes: str) -> Message:
    """A message in the timer's layout; `changes` replaces properties that the timer reads."""
    values = {
        "TIMER_DELIVER_MS": str(deliver_ms),
        "TIMER_OUT_MS": "0" * 13,
        "REAL_TOPIC": message.topic,
        "REAL_QID": str(message.queue_id),
        **changes,
    }
    properties = {**message.properties, **{name: value for name, value in values.items() if value}}
    return replace(message, topic=TIMER_TOPIC, queue_id=0, properties=properties)


def over(channel: Any) -> Records:
    """RecordService of a broker in another process."""
    broker: Any = SimpleNamespace(channel=channel)
    return Records(broker)


async def create_topics(records: Records) -> None:
    for name, kind in (("later", v2.MessageType.DELAY), ("orders", v2.MessageType.NORMAL)):
        topic = admin_v1.Topic(name=name, read_queue_count=4, accept_message_types=[kind])
        response = await records.raw.admin.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), timeout=60)
        assert response.status.code == Code.OK, response.status


def stored_for_timer(directory: Path) -> list[bytes]:
    """The records of the timer's topic in the first segment, without the sender's port and the checksum."""
    (segment,) = sorted((directory / "commitlog").iterdir())
    batch = RecordBatch.parse(segment.read_bytes(), base_physical_offset=0)
    found = []
    for row in range(len(batch)):
        if batch.topic(row) == TIMER_TOPIC:
            data = bytearray(batch.raw(row))
            data[52:56] = bytes(4)
            data[-11:-1] = bytes(10)
            found.append(bytes(data))
    return found


async def test_delayed_records_equal_those_of_send_message(tmp_path: Path) -> None:
    """The bytes are equal for the same messages at the same time, for any size of times and properties."""
    now_ms = ManualClock().now_ms()
    sent: list[v2.Message] = []
    for number in range(40):
        system = v2.SystemProperties(message_id=f"01{number:030X}", tag="t" if number % 3 else None)
        deliver_ms = now_ms + 1 + number * 2_000_003
        system.delivery_timestamp.FromMilliseconds(deliver_ms + (-deliver_ms % 1000 if number % 3 == 0 else 0))
        system.born_timestamp.FromMilliseconds(now_ms)
        body = b"x" * (1 + number * 7)
        sent.append(v2.Message(topic=resource("later"), body=body, system_properties=system))
    stored = []
    for way in ("send", "records"):
        async with in_process_broker(tmp_path / way, clock=ManualClock()) as broker:
            records = Records(broker)
            await create_topics(records)
            if way == "send":
                answer = await records.raw.call("SendMessage", v2.SendMessageRequest(messages=sent))
            else:
                unknown = ("0.0.0.0", 0)
                made = [to_store_message(each, "later", 0, unknown, 0) for each in sent]
                times = [each.properties["TIMER_DELIVER_MS"] for each in made]
                made = [for_timer(each, at) for each, at in zip(made, times, strict=True)]
                answer = await records.append(b"".join(packed(made)), "later")
                assert (answer.first_queue_offset, answer.message_count) == (0, len(sent))
            assert answer.status.code == Code.OK, answer.status
        stored.append(stored_for_timer(tmp_path / way))
        assert verify(tmp_path / way).ok
    assert len(stored[0]) == len(sent)
    assert stored[0] == stored[1]


async def read_all(records: Records, count: int, queue_id: int) -> list[Record]:
    """The first messages of one queue of the topic, once they are stored."""
    found: list[Record] = []
    while len(found) < count:
        frames, _ = await records.read(
            len(found), topic="later", queue_id=queue_id, end_queue_offset=count, wait=duration(15)
        )
        found += [batch.record(row) for batch in map(parsed, frames) for row in range(len(batch))]
    return found


async def test_each_record_is_delivered_to_its_queue_when_due(tmp_path: Path) -> None:
    """A message already due comes at once, others not before their time; each has exactly its own properties."""
    async with in_process_broker(tmp_path) as broker:
        records = Records(broker)
        await create_topics(records)
        now_ms = time.time_ns() // 1_000_000
        times = [1, 946_684_800_000, now_ms - 1, *(now_ms + 700 + 37 * number for number in range(20))]
        messages = some(len(times), "later", 3)
        made = [for_timer(each, at) for each, at in zip(messages, times, strict=True)]
        answer = await records.append(b"".join(packed(made)), "later", 3)
        assert answer.status.code == Code.OK, answer.status
        found = await read_all(records, len(times), 3)
    assert {each.body for each in found} == {each.body for each in messages}
    for each in found:
        number = int(each.body.split()[1])
        assert each.store_timestamp >= times[number]
        names = {name: value for name, value in each.properties.items() if not name.startswith("__")}
        assert {name: names[name] for name in ("UNIQ_KEY", "TAGS", "KEYS")} == messages[number].properties
        assert names["TIMER_DELIVER_MS"] == str(times[number])
        assert not {"REAL_TOPIC", "REAL_QID"} & set(names)
    assert verify(tmp_path).ok


def refused(now_ms: int) -> dict[str, tuple[Message, int, str]]:
    later = some(1, "later")[0]
    due = now_ms + HOUR_MS
    properties, corrupt, conflict = (
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        Code.ILLEGAL_DELIVERY_TIME,
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    )
    return {
        "another topic": (for_timer(later, due, REAL_TOPIC="bills"), Code.BAD_REQUEST, "REAL_TOPIC is 'bills', but"),
        "a longer topic": (for_timer(later, due, REAL_TOPIC="later2"), Code.BAD_REQUEST, "REAL_TOPIC is 'later2'"),
        "another queue": (for_timer(later, due, REAL_QID="1"), Code.BAD_REQUEST, "REAL_QID is '1', but the request is"),
        "no topic": (for_timer(later, due, REAL_TOPIC=""), Code.BAD_REQUEST, "has no property REAL_TOPIC"),
        "no queue": (for_timer(later, due, REAL_QID=""), Code.BAD_REQUEST, "has no property REAL_QID"),
        "no time": (for_timer(later, ""), Code.BAD_REQUEST, "has no property TIMER_DELIVER_MS"),
        "no place": (for_timer(later, due, TIMER_OUT_MS=""), Code.BAD_REQUEST, "has no property TIMER_OUT_MS"),
        "a short place": (for_timer(later, due, TIMER_OUT_MS="0" * 12), corrupt, "expected 13 to 13 decimal digits"),
        "a long place": (for_timer(later, due, TIMER_OUT_MS="0" * 14), corrupt, "expected 13 to 13 decimal digits"),
        "no number": (for_timer(later, "17x"), corrupt, "TIMER_DELIVER_MS is '17x', expected 1 to 13 decimal digits"),
        "negative": (for_timer(later, -5), corrupt, "TIMER_DELIVER_MS is '-5'"),
        "too long": (for_timer(later, "1" * 14), corrupt, "expected 1 to 13 decimal digits"),
        "too far": (for_timer(later, now_ms + 10**11), corrupt, "s ahead, the limit"),
        "a roll": (for_timer(later, due, TIMER_ROLL_TIMES="1"), properties, "'TIMER_ROLL_TIMES' is reserved"),
        "a recall": (for_timer(later, due, TIMER_DEL_UNIQKEY="x"), properties, "'TIMER_DEL_UNIQKEY' is reserved"),
        "a mark": (for_timer(later, due, __AEROBEE_TIMER="1"), properties, "'__AEROBEE_TIMER' is reserved"),
        "a group": (for_timer(later, due, __SHARDINGKEY="g"), conflict, "cannot have the property __SHARDINGKEY"),
        "a batch": (replace(for_timer(later, due), sys_flag=0x80), Code.BAD_REQUEST, "an inner batch, and the topic"),
        "not for the timer": (later, Code.BAD_REQUEST, "it is for the timer and has no property REAL_TOPIC"),
        "another queue of the timer": (
            replace(for_timer(later, due), queue_id=1),
            Code.BAD_REQUEST,
            "it is for queue 1 of topic 'rmq_sys_wheel_timer'",
        ),
    }


async def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    """Each request is refused with its reason, also after valid records, and nothing is stored."""
    async with in_process_broker(tmp_path) as broker:
        records = Records(broker)
        await create_topics(records)
        now_ms = time.time_ns() // 1_000_000
        good = [for_timer(each, now_ms + HOUR_MS) for each in some(5, "later")]
        for kind, (message, code, text) in refused(now_ms).items():
            behind = 0 if kind in {"a batch"} else 5
            answer = await records.append(b"".join(packed([*good[:behind], message])), "later")
            assert (kind, answer.status.code) == (kind, code), answer.status.message
            assert text in answer.status.message, (kind, answer.status.message)
            assert answer.bad_record_index == behind, kind
        plain = [for_timer(each, now_ms + HOUR_MS) for each in some(5)]
        answer = await records.append(b"".join(packed(plain)))
        assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert "topic 'orders' takes NORMAL messages, but this one is DELAY" in answer.status.message
        answer = await records.append(b"".join(packed(good)), TIMER_TOPIC)
        assert answer.status.code != Code.OK, "the timer's topic itself is the broker's"
        answer = await records.append(b"".join(packed(good)), "later")
        assert answer.first_queue_offset == 0, "nothing was stored before"
    assert len(stored_for_timer(tmp_path)) == len(good)


def test_acknowledged_records_survive_a_kill(tmp_path: Path) -> None:
    """The broker is killed right after its answer: the next one delivers every message once."""
    messages = some(300, "later", 1)

    async def append(endpoint: str, due_ms: int) -> None:
        async with grpc.aio.insecure_channel(endpoint) as channel:
            made = [for_timer(each, due_ms + number) for number, each in enumerate(messages)]
            answer = await over(channel).append(b"".join(packed(made)), "later", 1)
            assert answer.status.code == Code.OK, answer.status

    async def delivered(endpoint: str) -> list[bytes]:
        async with grpc.aio.insecure_channel(endpoint) as channel:
            return [bytes(each.body) for each in await read_all(over(channel), len(messages), 1)]

    with run_broker(tmp_path) as broker:
        broker.create_topic("later", "delay", queue_count=2)
        asyncio.run(append(broker.endpoint, time.time_ns() // 1_000_000 + 3000))
        broker.kill()
        broker.restart()
        found = asyncio.run(delivered(broker.endpoint))
        broker.stop()
        assert sorted(found) == sorted(bytes(each.body) for each in messages)
        assert verify(broker.store).ok


@pytest.mark.parametrize("size", [1, 13])
def test_positions_of_properties(size: int) -> None:
    """Values are found in the buffer for records of equal and of different sizes, some without the property."""
    messages = [
        Message("t", 0, b"b" * (number % size + 1), {"a": str(number % 7), "same": "x"} if number % 3 else {"a": "1"})
        for number in range(20)
    ]
    batch = RecordBatch.parse(b"".join(packed(messages)), base_physical_offset=None, placed=False)
    for name in ("a", "same", "none"):
        rows, start, end = batch.property_positions(name)
        expected = {row: each.properties[name] for row, each in enumerate(messages) if name in each.properties}
        values = [bytes(batch.buffer[a:b]).decode() for a, b in zip(start, end, strict=True)]
        assert dict(zip(rows.tolist(), values, strict=True)) == expected
