"""AppendRecords with corrupted requests: stored records are valid, and refused ones leave nothing behind.

A valid request is changed at random places: bits flipped, bytes removed or inserted, wrong lengths, overlapping
records, other topics and queues, impossible sizes. The seed is fixed (tests/support/seeds.py).
AEROBEE_RECORD_FUZZ_COUNT makes it longer.
"""

from __future__ import annotations

import os
import random
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_proto import admin_v1, records_v1, v2
from aerobee_store.records import inner_batch
from aerobee_store.records.record import SYS_FLAG_INNER_BATCH, Message
from aerobee_store.tools.verify import verify
from tests.conformance.raw_client import resource
from tests.integration.test_records import Records, create_batch_topic, inner_batch_of, packed, parsed, some
from tests.integration.test_records_delayed import for_timer
from tests.support.in_process_broker import in_process_broker
from tests.support.seeds import seed

SEED = seed("AEROBEE_RECORD_FUZZ_SEED")
COUNT = int(os.environ.get("AEROBEE_RECORD_FUZZ_COUNT", "600"))

Change = Callable[[random.Random, bytearray], None]
_LENGTHS = (0, 1, 90, 91, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def flip(dice: random.Random, data: bytearray) -> None:
    """Flip a few bits anywhere."""
    for _ in range(dice.choice((1, 1, 2, 8))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def cut(dice: random.Random, data: bytearray) -> None:
    """Remove some bytes at the end or in the middle."""
    begin = dice.randrange(len(data))
    del data[begin : begin + dice.choice((1, 4, 20, len(data)))]


def insert(dice: random.Random, data: bytearray) -> None:
    """Insert zeros, random bytes, or a part of the request."""
    begin = dice.randrange(len(data) + 1)
    size = dice.choice((1, 4, 100))
    data[begin:begin] = dice.choice((bytes(size), dice.randbytes(size), bytes(data[:size])))


def overwrite(dice: random.Random, data: bytearray) -> None:
    """Copy a part of the request over another, which makes records overlap."""
    size = dice.randrange(1, 200)
    source, target = dice.randrange(len(data)), dice.randrange(len(data))
    part = data[source : source + size]
    data[target : target + len(part)] = part


def length(dice: random.Random, data: bytearray) -> None:
    """Replace a number of four or two bytes where a length may be."""
    form = dice.choice((">I", ">H"))
    value = dice.choice(_LENGTHS) & (0xFFFFFFFF if form == ">I" else 0xFFFF)
    if dice.random() < 0.5:
        value = (value + dice.randrange(-3, 4)) & (0xFFFFFFFF if form == ">I" else 0xFFFF)
    position = dice.choice((0, 84, dice.randrange(len(data))))
    if position + 4 <= len(data):
        struct.pack_into(form, data, position, value)


CHANGES: tuple[Change, ...] = (flip, cut, insert, overwrite, length)


def made(dice: random.Random, number: int) -> tuple[str, list[Message]]:
    """A topic and messages for it, which may be of another topic or queue, or of the wrong kind."""
    count = dice.randrange(1, 12)
    if dice.random() < 0.2:
        due_ms = time.time_ns() // 1_000_000 + 3_600_000
        delayed = [for_timer(each, due_ms) for each in some(count, "later", first=number * 100)]
        if dice.random() < 0.3:
            row = dice.randrange(count)
            name = dice.choice(("TIMER_DELIVER_MS", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TAGS"))
            value = dice.choice(("0", "-1", "1" * 13, "1" * 14, "orders", "x" * 600))
            delayed[row] = replace(delayed[row], properties={**delayed[row].properties, name: value})
        return "later", delayed
    if dice.random() < 0.5:
        messages = some(count, first=number * 100)
        if dice.random() < 0.3:
            row = dice.randrange(count)
            wrong = dice.choice(({"topic": "metering"}, {"queue_id": 1}, {"queue_id": 1 << 30}, {"sys_flag": 0x3FF}))
            messages[row] = replace(messages[row], **wrong)
        return "orders", messages
    messages = [
        inner_batch_of(dice.randrange(1, 30), 0, dice.choice(("", "zlib"))) for _ in range(dice.randrange(1, 4))
    ]
    if dice.random() < 0.5:
        row = dice.randrange(len(messages))
        count_text = dice.choice(("0", "1", "32767", "32768", "-1", "99999999999999999999", "x"))
        body = bytearray(messages[row].body)
        if messages[row].sys_flag & 1:
            body = bytearray(zlib.decompress(body))
        dice.choice(CHANGES)(dice, body)
        packed_body = zlib.compress(body) if messages[row].sys_flag & 1 else bytes(body)
        messages[row] = replace(messages[row], body=packed_body)
        if dice.random() < 0.3:
            values = {**messages[row].properties, "INNER_NUM": count_text}
            messages[row] = replace(messages[row], properties=values)
    return "metering", messages


@pytest.mark.timeout(3600)
async def test_tampered_requests(tmp_path: Path) -> None:
    """Each gets a readable answer; all stored records can be read, and the verification finds no damage."""
    dice = random.Random(SEED)
    accepted = {"orders": 0, "metering": 0, "later": 0}
    codes: set[int] = set()
    async with in_process_broker(tmp_path) as broker:
        records = Records(broker)
        await create_batch_topic(records)
        topic_of_delayed = admin_v1.Topic(name="later", accept_message_types=[v2.MessageType.DELAY])
        await records.raw.admin.CreateTopic(admin_v1.CreateTopicRequest(topic=topic_of_delayed), timeout=60)
        for number in range(COUNT):
            topic, messages = made(dice, number)
            data = bytearray(b"".join(packed(messages)))
            if dice.random() < 0.7:
                for _ in range(dice.choice((1, 1, 3))):
                    if data:
                        dice.choice(CHANGES)(dice, data)
            sizes = dice.randbytes(dice.randrange(0, 64)) if dice.random() < 0.2 else b""
            request = records_v1.AppendRecordsRequest(
                topic=resource(topic),
                queue_id=dice.choice((0, 0, 0, 0, 0, 0, 0, 1, -1, 1 << 31 - 1)) if dice.random() < 0.1 else 0,
                records=bytes(data),
                record_sizes=sizes,
            )
            answer = await records.call("AppendRecords", request)
            codes.add(answer.status.code)
            assert answer.status.message
            assert answer.status.code != v2.Code.INTERNAL_SERVER_ERROR, f"request {number} of seed {SEED}"
            if answer.status.code == v2.Code.OK:
                assert answer.first_queue_offset == accepted[topic], f"request {number} of seed {SEED}"
                accepted[topic] += answer.message_count
        assert len(codes) >= 4
        assert min(accepted.values()) > COUNT // 10
        assert accepted.pop("later") > 0, "these are with the timer"
        for topic, count in accepted.items():
            frames, last = await records.read(topic=topic)
            assert last.next_queue_offset == count
            assert sum(frame.lost_count for frame in frames) == 0
            found = 0
            for batch in map(parsed, frames):
                for row in range(len(batch)):
                    record = batch.record(row)
                    assert (record.topic, record.queue_id, record.queue_offset) == (topic, 0, found)
                    inner = bool(record.sys_flag & SYS_FLAG_INNER_BATCH)
                    assert inner == (topic == "metering")
                    found += len(inner_batch.unpack(record)) if inner else 1
            assert found == count
    report = verify(tmp_path)
    assert report.findings == [], report.findings
