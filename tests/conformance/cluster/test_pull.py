"""Items 51 to 61: pulls."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_proto import admin_v1
from aerobee_store.config import StoreConfig
from aerobee_store.records.record import Record
from aerobee_store.testing import ManualClock
from tests.conformance.cluster.conftest import Shared
from tests.support.in_process_broker import METADATA
from tests.support.remoting_client import (
    RemotingClient,
    heartbeat_body,
    pull_fields,
    records,
    remoting_broker,
    send,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _pull(client: RemotingClient, topic: str, **others: Any) -> Command:
    return await client.call(Request.PULL_MESSAGE, pull_fields(topic, **others))


async def test_c051_a_pull_returns_the_bytes_of_the_log(client: RemotingClient, tmp_path: Path) -> None:
    """The bytes of the answer equal those in the log, if the records have nothing that clients must not see."""
    store = replace(StoreConfig.tiny(tmp_path), property_crc=False)
    async with remoting_broker(tmp_path, store=store) as (_, own):
        for number in range(5):
            await send(own, "Bytes", f"m{number}".encode())
        answer = await _pull(own, "Bytes", offset=1)
        first = records(answer.body)[0]
        log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    begin = log.index(answer.body)
    assert first.body == b"m1"
    assert begin > 0


async def test_c052_refused_pulls(client: RemotingClient, shared: Shared, tmp_path: Path) -> None:
    """Each code of a pull without messages."""
    await send(client, "Refusals", properties="TAGS\x01a\x02")
    expected: list[tuple[Answer, dict[str, Any]]] = [
        (Answer.PULL_NOT_FOUND, {"offset": 1}),
        (Answer.PULL_NOT_FOUND, {"queue_id": 1}),
        (Answer.PULL_RETRY_IMMEDIATELY, {"subscription": "b"}),
        (Answer.PULL_OFFSET_MOVED, {"offset": 2}),
        (Answer.PULL_OFFSET_MOVED, {"offset": 5, "queue_id": 1}),
        (Answer.SUBSCRIPTION_PARSE_FAILED, {"subscription": "a >", "expressionType": "SQL92"}),
        (Answer.SUBSCRIPTION_PARSE_FAILED, {"subscription": "||"}),
        (Answer.SUBSCRIPTION_PARSE_FAILED, {"subscription": "&&"}),
        (Answer.SUBSCRIPTION_NOT_EXIST, {"sys_flag": 0, "group": "Nobody"}),
        (Answer.INVALID_PARAMETER, {"queue_id": 4}),
        (Answer.INVALID_PARAMETER, {"queue_id": -1}),
        (Answer.INVALID_PARAMETER, {"queueOffset": "x"}),
        (Answer.INVALID_PARAMETER, {"maxMsgNums": None}),
    ]
    for code, others in expected:
        answer = await _pull(client, "Refusals", **others)
        assert answer.code == code, (others, answer.remark)
        assert answer.body == b""
    assert (await _pull(client, "NoSuchTopic")).code == Answer.TOPIC_NOT_EXIST
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c52", "Beat52", "Other"))
    answer = await _pull(client, "Refusals", sys_flag=0, group="Beat52")
    assert answer.code == Answer.SUBSCRIPTION_NOT_EXIST
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c52", "Beat52", "Refusals", version=7))
    answer = await _pull(client, "Refusals", sys_flag=0, group="Beat52", subVersion=8)
    assert answer.code == Answer.SUBSCRIPTION_NOT_LATEST
    assert (await _pull(client, "Refusals", sys_flag=0, group="Beat52", subVersion=7)).code == Answer.SUCCESS
    group = admin_v1.UpdateGroupRequest(name="Beat52", consume_enabled=False)
    await shared.broker.administration.UpdateGroup(group, metadata=METADATA)
    assert (await _pull(client, "Refusals", group="Beat52")).code == Answer.NO_PERMISSION
    async with remoting_broker(tmp_path, dev=False) as (_, strict):
        assert (await _pull(strict, "Refusals")).code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_corrected_offsets_are_told_in_a_topic(tmp_path: Path) -> None:
    """OFFSET_MOVED_EVENT has the group, the queue, and both offsets; at most 100 events a second are stored."""
    clock = ManualClock()
    async with remoting_broker(tmp_path, clock=clock) as (_, own):
        await send(own, "Trimmed")
        for number in range(150):
            moved = await _pull(own, "Trimmed", group="G", offset=2 + number)
            assert (moved.code, moved.fields["nextBeginOffset"]) == (Answer.PULL_OFFSET_MOVED, "1")
        assert (await _pull(own, "Trimmed", offset=1)).code == Answer.PULL_NOT_FOUND
        events: list[Record] = []
        while len(events) < 100:  # each becomes visible when it is on the disk, not all at once
            events += records((await _pull(own, "OFFSET_MOVED_EVENT", offset=len(events), sys_flag=6)).body)
        assert events[0].properties["TAGS"] == events[0].properties["KEYS"] == "G"
        assert json.loads(events[0].body) == {
            "consumerGroup": "G",
            "messageQueue": {"brokerName": "aerobee", "queueId": 0, "topic": "Trimmed"},
            "offsetNew": 1,
            "offsetRequest": 2,
        }
        clock.advance(1)
        await _pull(own, "Trimmed", group="G", offset=9)
        last = records((await _pull(own, "OFFSET_MOVED_EVENT", offset=100, sys_flag=6)).body)
        assert [json.loads(event.body)["offsetRequest"] for event in last] == [9]


async def test_c053_a_held_pull(client: RemotingClient, other: RemotingClient, shared: Shared) -> None:
    """A message answers all waiting pulls, the deadline answers with 19, and closing the connection drops a pull."""
    await send(client, "Held")
    waiting = [
        c.begin(Request.PULL_MESSAGE, pull_fields("Held", offset=1, sys_flag=6)) for c in (client, client, other)
    ]
    await client.call(106)
    started = time.monotonic()
    await send(client, "Held", b"now")
    for held in waiting:
        assert [record.body for record in records((await held).body)] == [b"now"]
    assert time.monotonic() - started < 5
    held = client.begin(Request.PULL_MESSAGE, pull_fields("Held", offset=2, sys_flag=6, suspendTimeoutMillis=3000))
    await client.call(106)
    await shared.clock.advance(2.5)
    assert not held.done()
    await shared.clock.advance(0.6)
    answer = await held
    assert (answer.code, answer.fields["nextBeginOffset"]) == (Answer.PULL_NOT_FOUND, "2")
    unwanted = client.begin(Request.PULL_MESSAGE, pull_fields("Held", offset=2, sys_flag=6, subscription="none"))
    await send(client, "Held", b"other tag")
    await asyncio.sleep(0.05)
    assert not unwanted.done(), "what the filter leaves out ends no wait"
    await send(client, "Held", b"wanted", properties="TAGS\x01none\x02")
    assert [record.body for record in records((await unwanted).body)] == [b"wanted"]
    lost = other.begin(Request.PULL_MESSAGE, pull_fields("Held", offset=4, sys_flag=6))
    await client.call(106)
    await other.close()
    lost.cancel()
    assert (await client.call(106)).code == 0


async def test_c054_a_pull_commits_with_flag_1_only(client: RemotingClient) -> None:
    """The offset of finished messages comes with the next pull."""
    for _ in range(3):
        await send(client, "Committing")
    place = {"topic": "Committing", "consumerGroup": "G54", "queueId": 0, "setZeroIfNotFound": False}
    await _pull(client, "Committing", group="G54", offset=2, commitOffset=2)
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).code == Answer.QUERY_NOT_FOUND
    await _pull(client, "Committing", group="G54", offset=2, commitOffset=2, sys_flag=5)
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).fields == {"offset": "2"}


async def test_c055_lite_pull(client: RemotingClient) -> None:
    """Code 361, and the flags that lite consumers send with 11."""
    await send(client, "Lite")
    for code in (Request.LITE_PULL_MESSAGE, Request.PULL_MESSAGE):
        answer = await client.call(code, pull_fields("Lite", sys_flag=22))
        assert len(records(answer.body)) == 1


async def test_c056_every_answer_has_the_offsets(client: RemotingClient) -> None:
    """The next offset, and the queue's first and end offsets."""
    for _ in range(2):
        await send(client, "Ends")
    for others, next_offset in (({}, 2), ({"offset": 2}, 2), ({"offset": 9}, 2), ({"subscription": "x"}, 2)):
        answer = await _pull(client, "Ends", **others)
        fields = answer.fields
        assert (fields["nextBeginOffset"], fields["minOffset"], fields["maxOffset"]) == (str(next_offset), "0", "2")
        assert fields["suggestWhichBrokerId"] == "0"


async def test_c057_limits(client: RemotingClient) -> None:
    """Limits of messages and of bytes; a message above the byte limit comes alone."""
    for _ in range(40):
        await send(client, "Limits", b"x" * 100)
    assert len(records((await _pull(client, "Limits", maxMsgNums=100)).body)) == 32
    assert len(records((await _pull(client, "Limits", maxMsgNums=3)).body)) == 3
    assert len(records((await _pull(client, "Limits", maxMsgBytes=1000)).body)) in (2, 3, 4)
    assert len(records((await _pull(client, "Limits", maxMsgBytes=1)).body)) == 1
    await send(client, "Limits", b"y" * 1_000_000, queue_id=1)
    await send(client, "Limits", b"z", queue_id=1)
    assert len(records((await _pull(client, "Limits", queue_id=1)).body)) == 1


async def test_c058_filters(client: RemotingClient) -> None:
    """Filters by tag and by an SQL expression; messages that do not match are skipped."""
    for number in range(10):
        await send(client, "Filters", str(number).encode(), properties=f"TAGS\x01t{number % 3}\x02n\x01{number}\x02")
    answer = await _pull(client, "Filters", subscription="t1 || t2")
    assert [record.body for record in records(answer.body)] == [b"1", b"2", b"4", b"5", b"7", b"8"]
    assert answer.fields["nextBeginOffset"] == "10"
    answer = await _pull(client, "Filters", subscription="n > 6", expressionType="SQL92")
    assert [record.body for record in records(answer.body)] == [b"7", b"8", b"9"]
    answer = await _pull(client, "Filters", subscription="n > 60", expressionType="SQL92")
    assert (answer.code, answer.fields["nextBeginOffset"]) == (Answer.PULL_RETRY_IMMEDIATELY, "10")
