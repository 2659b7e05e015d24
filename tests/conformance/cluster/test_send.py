"""Items 39 to 50: sends."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import FrameReader
from aerobee_store.records.properties import parse_offset_message_id
from tests.conformance.cluster.conftest import Shared
from tests.support import golden_remoting
from tests.support.remoting_client import (
    RemotingClient,
    json_body,
    pull_fields,
    records,
    remoting_broker,
    send,
    send_fields,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _pull(client: RemotingClient, topic: str, **others: Any) -> Any:
    answer = await client.call(Request.PULL_MESSAGE, pull_fields(topic, **others))
    assert answer.code == Answer.SUCCESS, answer.remark
    return records(answer.body)


def batch(*messages: tuple[bytes, str]) -> bytes:
    """The body of a batch: bodies and property strings."""
    parts = []
    for body, text in messages:
        encoded = text.encode()
        head = struct.pack(">iiiii", 22 + len(body) + len(encoded), 0, 0, 5, len(body))
        parts.append(head + body + struct.pack(">h", len(encoded)) + encoded)
    return b"".join(parts)


async def test_c039_golden_sends_of_every_form_are_stored(client: RemotingClient) -> None:
    """310, 320 and 10 as Java and Go sent them: our answer has the fields of the recorded one."""
    count = 0
    for code in (Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.SEND_MESSAGE):
        for golden in golden_remoting.requests(code):
            [request] = FrameReader().feed(golden.data)
            if request.is_one_way:
                continue
            recorded = golden_remoting.answer_to(golden)
            topic = request.fields.get("b") or request.fields["topic"]
            if topic.startswith("%RETRY%"):
                await client.call(
                    Request.HEART_BEAT, body={"clientID": "c", "consumerDataSet": [{"groupName": topic[7:]}]}
                )
            answer = await client.call(code, request.fields, request.body, version=request.version)
            if recorded is None:
                continue
            wanted = recorded.header["code"]
            assert (answer.code == 0) == (wanted == 0), (golden.file, answer.remark)
            if wanted == 0:
                assert answer.fields.keys() >= (recorded.header["extFields"].keys() - {"batchUniqId"}), golden.file
                count += 1
    assert count > 10


async def test_c040_the_id_contains_the_messages_address(client: RemotingClient, shared: Shared) -> None:
    """It encodes store host and physical offset; 33 returns the record."""
    answer = await send(client, "Placed", b"here")
    host, offset = parse_offset_message_id(answer.fields["msgId"])
    assert shared.broker.remoting is not None
    assert host == (shared.broker.remoting.host, shared.broker.remoting.port)
    found = await client.call(Request.VIEW_MESSAGE_BY_ID, {"offset": offset})
    [record] = records(found.body)
    assert (record.body, record.store_host) == (b"here", host)


async def test_c041_queue_ids(client: RemotingClient) -> None:
    """-1 selects any queue; a queue that the topic does not have is refused."""
    assert 0 <= int((await send(client, "Queues", queue_id=-1)).fields["queueId"]) < 4
    assert (await send(client, "Queues", queue_id=3)).code == 0
    refused = await send(client, "Queues", queue_id=4)
    assert (refused.code, "has 4 write queues" in (refused.remark or "")) == (Answer.INVALID_PARAMETER, True)


async def test_c042_topics_that_cannot_be_sent_to(client: RemotingClient, tmp_path: Path) -> None:
    """Illegal names and the broker's own are refused; unknown topics are created with min(4, 8) queues, or refused."""
    assert (await send(client, "no topic")).code == Answer.INVALID_PARAMETER
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
        assert (await send(client, topic)).code == Answer.NO_PERMISSION
    await send(client, "Fresh")
    route = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "Fresh"})
    assert json_body(route)["queueDatas"][0]["writeQueueNums"] == 4
    await send(client, "Wide", d=100)
    route = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "Wide"})
    assert json_body(route)["queueDatas"][0]["writeQueueNums"] == 8
    async with remoting_broker(tmp_path, dev=False) as (_, strict):
        assert (await send(strict, "Unknown")).code == Answer.TOPIC_NOT_EXIST


@pytest.mark.parametrize("name", ["a", "b", "e", "f", "g", "h"])
async def test_c043_missing_fields_are_named(client: RemotingClient, name: str) -> None:
    """RocketMQ answers these with a NullPointerException; a message without a body is refused, too."""
    fields = {**send_fields("Missing"), name: None}
    answer = await client.call(Request.SEND_MESSAGE_V2, fields, b"x")
    assert answer.code == Answer.INVALID_PARAMETER
    assert f"{name!r}" in (answer.remark or "")
    assert (await send(client, "Missing", b"")).code == Answer.MESSAGE_ILLEGAL


async def test_c044_a_compressed_body_is_stored_unchanged(client: RemotingClient) -> None:
    """The flag for compression is kept; the request's transaction bits are ignored."""
    body = zlib.compress(b"x" * 10_000)
    await send(client, "Compressed", body, f=0x301 | 0x4)
    [record] = await _pull(client, "Compressed")
    assert (record.body, record.sys_flag) == (body, 0x301)


async def test_c045_a_batch(client: RemotingClient) -> None:
    """Three ids, consecutive offsets and separate properties; retry topics refuse batches, and lengths must match."""
    body = batch((b"one", "UNIQ_KEY\x01U1\x02KEYS\x01k\x02"), (b"two", "UNIQ_KEY\x01U2"), (b"three", ""))
    answer = await client.call(Request.SEND_BATCH_MESSAGE, send_fields("Batch", m=True, i="WAIT\x01true"), body)
    assert answer.code == 0, answer.remark
    assert len(answer.fields["msgId"].split(",")) == 3
    assert answer.fields["queueOffset"] == "0"
    found = await _pull(client, "Batch")
    assert [record.body for record in found] == [b"one", b"two", b"three"]
    assert [record.queue_offset for record in found] == [0, 1, 2]
    assert [record.flag for record in found] == [5, 5, 5]
    assert (found[0].unique_key, found[0].keys, found[1].unique_key) == ("U1", ["k"], "U2")
    assert found[2].unique_key  # the broker makes one if the client sends none
    await client.call(Request.HEART_BEAT, body={"clientID": "c", "consumerDataSet": [{"groupName": "BatchGroup"}]})
    for topic, wrong in (("%RETRY%BatchGroup", body), ("Batch", body[:-1]), ("Batch", body + b"\0" * 21)):
        refused = await client.call(Request.SEND_BATCH_MESSAGE, send_fields(topic, m=True), wrong)
        assert refused.code == Answer.MESSAGE_ILLEGAL
    delayed = batch((b"one", "DELAY\x013\x02"))
    refused = await client.call(Request.SEND_BATCH_MESSAGE, send_fields("Batch", m=True), delayed)
    assert refused.code == Answer.MESSAGE_ILLEGAL
    assert len(await _pull(client, "Batch")) == 3


async def test_c046_too_large_messages(client: RemotingClient) -> None:
    """Properties above 32,767 bytes, and a body above 4 MiB."""
    assert (await send(client, "Large", properties="k\x01" + "x" * 33_000)).code == Answer.MESSAGE_ILLEGAL
    assert (await send(client, "Large", b"x" * ((4 << 20) + 1))).code == Answer.MESSAGE_ILLEGAL


async def test_c047_delayed_messages(client: RemotingClient, shared: Shared) -> None:
    """By level through SCHEDULE_TOPIC_XXXX, by time through the timer; only the latter can be recalled."""
    waiting = {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": 0}
    before = int((await client.call(Request.GET_MAX_OFFSET, waiting)).fields["offset"])
    levelled = await send(client, "Delayed", b"level", properties="DELAY\x011\x02")
    timed = await send(client, "Delayed", b"timer", properties="TIMER_DELAY_SEC\x012\x02")
    assert levelled.code == timed.code == 0
    assert "recallHandle" in timed.fields
    assert "recallHandle" not in levelled.fields
    assert int((await client.call(Request.GET_MAX_OFFSET, waiting)).fields["offset"]) == before + 1
    assert (await client.call(Request.PULL_MESSAGE, pull_fields("Delayed"))).code == Answer.PULL_NOT_FOUND
    held = client.begin(Request.PULL_MESSAGE, pull_fields("Delayed", sys_flag=6))
    await shared.clock.advance(1.1)
    [record] = records((await held).body)
    assert record.body == b"level"
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("Delayed", "0")
    assert record.properties["DELAY"] == "1"  # as in RocketMQ: getDelayTimeLevel() of clients
    held = client.begin(Request.PULL_MESSAGE, pull_fields("Delayed", offset=1, sys_flag=6))
    await shared.clock.advance(3)
    [record] = records((await held).body)
    assert record.body == b"timer"
    assert not [name for name in record.properties if name.startswith("__AEROBEE")]
    assert (await send(client, "Delayed", properties="DELAY\x01soon\x02")).code == Answer.MESSAGE_ILLEGAL
    assert (await send(client, "Delayed", properties="TIMER_DELAY_SEC\x0199999999\x02")).code == Answer.MESSAGE_ILLEGAL


async def test_c048_an_exhausted_retry_becomes_a_dead_letter(client: RemotingClient) -> None:
    """A consumer sends the message to its retry topic itself, after its last attempt."""
    await client.call(Request.HEART_BEAT, body={"clientID": "c", "consumerDataSet": [{"groupName": "Dead"}]})
    assert (await send(client, "%RETRY%Dead", b"again", j=16)).code == 0
    assert (await send(client, "%RETRY%Dead", b"dead", j=17)).code == 0
    assert (await send(client, "%RETRY%Dead", b"own limit", j=3, l=2)).code == 0
    assert [record.body for record in await _pull(client, "%RETRY%Dead")] == [b"again"]
    assert [record.body for record in await _pull(client, "%DLQ%Dead")] == [b"dead", b"own limit"]
    assert (await send(client, "%RETRY%Nobody")).code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_retry_of_a_committed_message_became_a_half_message(client: RemotingClient) -> None:
    """A committed message keeps TRAN_MSG, and a consumer that cannot send it back sends it with all its properties."""
    await client.call(Request.HEART_BEAT, body={"clientID": "c", "consumerDataSet": [{"groupName": "Again"}]})
    assert (await send(client, "%RETRY%Again", b"again", properties="TRAN_MSG\x01true\x02", j=1)).code == 0
    assert [record.body for record in await _pull(client, "%RETRY%Again")] == [b"again"]


async def test_c049_region_and_trace(client: RemotingClient) -> None:
    """The answer to every stored send has them."""
    for answer in (
        await send(client, "Region"),
        await send(client, "Region", properties="DELAY\x011\x02"),
        await client.call(Request.SEND_BATCH_MESSAGE, send_fields("Region", m=True), batch((b"x", ""))),
        await send(client, "Region", properties="TRAN_MSG\x01true\x02UNIQ_KEY\x01TX49\x02"),
    ):
        assert answer.code == 0, answer.remark
        assert answer.fields["MSG_REGION"] == "DefaultRegion"
        assert answer.fields["TRACE_ON"] == "true"


async def test_c050_namespace_fields_are_ignored(client: RemotingClient) -> None:
    """RocketMQ 5 clients send them with every request."""
    assert (await send(client, "Spaces", ns="x", nsd=True, bname="aerobee", oway=False, lo=False)).code == 0
