"""Items 80 to 84: POP over the remoting protocol."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command
from tests.conformance.cluster.conftest import Shared
from tests.support.remoting_client import (
    RemotingClient,
    heartbeat_body,
    json_body,
    records,
    remoting_broker,
    send,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _pop_fields(topic: str, **others: Any) -> dict[str, Any]:
    return {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": int(time.time() * 1000),
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
        "order": "false",
        **others,
    }


async def _pop(client: RemotingClient, topic: str, **others: Any) -> Command:
    return await client.call(Request.POP_MESSAGE, _pop_fields(topic, **others))


async def _told(client: RemotingClient, code: Request, info: str, topic: str, **others: Any) -> Command:
    """Acknowledge or change the message with this POP_CK, as a Java client does."""
    parts = info.split(" ")
    fields = {"consumerGroup": "CG", "topic": topic, "queueId": parts[6], "offset": parts[7], "extraInfo": info}
    return await client.call(code, {**fields, **others})


async def test_c080_modes_and_assignments(tmp_path: Path) -> None:
    """POP assigns queue -1, PULL a share; the mode is kept after a restart."""
    mode = {"topic": "Modes", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0}
    asked = {"topic": "Modes", "consumerGroup": "CG", "clientId": "c1", "strategyName": "AVG"}
    async with remoting_broker(tmp_path) as (_, client):
        await send(client, "Modes")
        heartbeat = heartbeat_body("c1", group="CG", topic="Modes")
        assert (await client.call(Request.HEART_BEAT, body=heartbeat)).code == 0
        found = json_body(await client.call(Request.QUERY_ASSIGNMENT, body=asked))["messageQueueAssignments"]
        assert [(each["messageQueue"]["queueId"], each["mode"]) for each in found] == [(n, "PULL") for n in range(4)]
        assert (await client.call(Request.SET_MESSAGE_REQUEST_MODE, body=mode)).code == 0
        wrong = await client.call(Request.SET_MESSAGE_REQUEST_MODE, body={**mode, "mode": "PUSH"})
        assert wrong.code == Answer.INVALID_PARAMETER
    async with remoting_broker(tmp_path) as (_, client):
        found = json_body(await client.call(Request.QUERY_ASSIGNMENT, body=asked))["messageQueueAssignments"]
        assert found == [{"messageQueue": {"brokerName": "aerobee", "queueId": -1, "topic": "Modes"}, "mode": "POP"}]
        everything = json_body(await client.call(Request.GET_ALL_MESSAGE_REQUEST_MODE))
        assert everything == {"messageRequestModeMap": {"Modes": {"CG": mode}}}


@pytest.mark.parametrize(
    ("consumers", "share", "expected"),
    [
        (4, 0, [[-1]] * 4),
        (4, 3, [[-1]] * 4),
        (4, 1, [[0, 1], [1, 2], [2, 3], [3, 0]]),
        (4, 2, [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]),
        (6, 1, [[0], [1], [2], [3], [0], [1]]),
    ],
)
async def test_consumers_that_share_queues(
    client: RemotingClient, consumers: int, share: int, expected: list[list[int]]
) -> None:
    """With popShareQueueNum each consumer receives from its share and from those of that many consumers after it."""
    topic = f"Shared-{consumers}-{share}"
    await send(client, topic)
    names = [f"{topic}-c{number}" for number in range(consumers)]
    for name in names:
        await client.call(Request.HEART_BEAT, body=heartbeat_body(name, group=topic, topic=topic))
    mode = {"topic": topic, "consumerGroup": topic, "mode": "POP", "popShareQueueNum": share}
    assert (await client.call(Request.SET_MESSAGE_REQUEST_MODE, body=mode)).code == 0
    assigned = []
    for name in names:
        asked = {"topic": topic, "consumerGroup": topic, "clientId": name, "strategyName": "AVG"}
        found = json_body(await client.call(Request.QUERY_ASSIGNMENT, body=asked))["messageQueueAssignments"]
        assert {item["mode"] for item in found} == {"POP"}
        assigned.append([item["messageQueue"]["queueId"] for item in found])
    assert assigned == expected


async def test_c081_messages_of_a_pop(client: RemotingClient) -> None:
    """Info strings name each message; an empty result comes at the timeout; a request for 33 messages is refused."""
    assert (await send(client, "Popped", b"one", queue_id=1)).code == 0
    assert (await send(client, "Popped", b"two", queue_id=1)).code == 0
    answer = await _pop(client, "Popped")
    assert [found.body for found in records(answer.body)] == [b"one", b"two"]
    assert (answer.code, answer.fields["startOffsetInfo"], answer.fields["msgOffsetInfo"]) == (0, "0 1 0", "0 1 0,1")
    assert (answer.fields["invisibleTime"], answer.fields["reviveQid"]) == ("60000", "0")
    parts = records(answer.body)[1].properties["POP_CK"].split(" ")
    assert parts[:8] == ["1", answer.fields["popTime"], "60000", "0", "0", "aerobee", "1", "1"]
    empty = await _pop(client, "Popped", pollTime=50)
    assert (empty.code, empty.body, empty.fields["msgOffsetInfo"]) == (Answer.POLLING_TIMEOUT, b"", "")
    assert (await _pop(client, "Popped", maxMsgNums=33)).code == Answer.INVALID_PARAMETER
    assert (await _pop(client, "Popped", queueId=9)).code == Answer.INVALID_PARAMETER
    assert (await _pop(client, "Popped", invisibleTime=0)).code == Answer.INVALID_PARAMETER


@pytest.mark.parametrize("expression", ["||", "&&"])
async def test_an_expression_without_a_tag_finishes_nothing(client: RemotingClient, expression: str) -> None:
    """It is refused; otherwise the group would skip every message."""
    assert (await send(client, f"Kept{ord(expression[0])}", b"one")).code == 0
    refused = await _pop(client, f"Kept{ord(expression[0])}", exp=expression)
    assert refused.code == Answer.SUBSCRIPTION_PARSE_FAILED
    assert "has no tag" in (refused.remark or "")
    assert len(records((await _pop(client, f"Kept{ord(expression[0])}")).body)) == 1


async def test_a_pop_waits_for_a_message(client: RemotingClient, other: RemotingClient) -> None:
    """It also skips messages that do not match its filter."""
    await send(client, "Awaited", b"left out", properties="TAGS\x01b\x02")
    popped = client.begin(Request.POP_MESSAGE, _pop_fields("Awaited", pollTime=60_000, exp="a"))
    await send(other, "Awaited", b"wanted", properties="TAGS\x01a\x02")
    assert [found.body for found in records((await popped).body)] == [b"wanted"]


async def test_popped_messages_were_not_counted_as_in_flight(client: RemotingClient) -> None:
    """Those that are neither acknowledged nor visible again, also with gaps."""
    for _ in range(3):
        await send(client, "Popped", queue_id=0)
    infos = [found.properties["POP_CK"] for found in records((await _pop(client, "Popped")).body)]
    for acknowledged, left in ((None, 3), (infos[1], 2), (infos[0], 1), (infos[2], 0)):
        if acknowledged is not None:
            await _told(client, Request.ACK_MESSAGE, acknowledged, "Popped")
        stats = await client.call(Request.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "Popped"})
        table = [found for key, found in json_body(stats)["offsetTable"].pairs() if key["queueId"] == 0]
        assert [found["pullOffset"] - found["consumerOffset"] for found in table] == [left]


async def test_acknowledged_and_changed_messages(client: RemotingClient, shared: Shared) -> None:
    """One is finished, one comes again with its attempt, also after a change with an info built by the client."""
    for body in (b"0", b"1", b"2"):
        await send(client, "Told", body, queue_id=0)
    first, second, third = (found.properties["POP_CK"] for found in records((await _pop(client, "Told")).body))
    assert (await _told(client, Request.ACK_MESSAGE, first, "Told")).code == 0
    assert (await _told(client, Request.ACK_MESSAGE, first, "Told")).code == 0
    changed = await _told(client, Request.CHANGE_MESSAGE_INVISIBLE_TIME, second, "Told", invisibleTime=10_000)
    assert (changed.code, changed.fields["invisibleTime"]) == (0, "10000")
    await _told(client, Request.CHANGE_MESSAGE_INVISIBLE_TIME, third, "Told", invisibleTime=600_000)
    await shared.clock.advance(11)
    again = await _pop(client, "Told", pollTime=60_000, bornTime=shared.clock.now_ms())
    [found] = records(again.body)
    assert (found.body, found.reconsume_times) == (b"1", 1)
    assert (await _told(client, Request.ACK_MESSAGE, second, "Told")).code == Answer.NO_MESSAGE
    info = found.properties["POP_CK"]
    changed = await _told(client, Request.CHANGE_MESSAGE_INVISIBLE_TIME, info, "Told", invisibleTime=20_000)
    made = f"1 {changed.fields['popTime']} 20000 0 0 aerobee 0 1"
    assert (await _told(client, Request.ACK_MESSAGE, made, "Told")).code == 0
    assert (await _told(client, Request.ACK_MESSAGE, info, "Told")).code == Answer.NO_MESSAGE


async def test_c082_other_calls_of_pop(client: RemotingClient, other: RemotingClient, shared: Shared) -> None:
    """Messages are peeked at, notified of and acknowledged together; those no longer in flight are ignored."""
    fields = _pop_fields("Others")
    for number in range(3):
        await send(client, "Others", str(number).encode(), queue_id=2)
    nobody = await client.call(Request.PEEK_MESSAGE, {**fields, "consumerGroup": "Nobody"})
    assert nobody.code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c", group="CG", topic="Others"))
    peeked = await client.call(Request.PEEK_MESSAGE, {**fields, "maxMsgNums": 2})
    assert [found.body for found in records(peeked.body)] == [b"0", b"1"]
    assert {name: peeked.fields[name] for name in ("popTime", "invisibleTime", "restNum", "msgOffsetInfo")} == {
        "popTime": "0",
        "invisibleTime": "0",
        "restNum": "1",
        "msgOffsetInfo": "0 2 0,1",
    }
    assert (await client.call(Request.PEEK_MESSAGE, {**fields, "queueId": 1})).code == Answer.PULL_NOT_FOUND
    assert (await client.call(Request.PEEK_MESSAGE, {**fields, "queueId": 4})).code == Answer.INVALID_PARAMETER
    assert (await client.call(Request.NOTIFICATION, fields)).fields == {"hasMsg": "true", "pollingFull": "false"}
    popped = await _pop(client, "Others")
    assert len(records(popped.body)) == 3
    assert (await client.call(Request.NOTIFICATION, {**fields, "pollTime": 50})).fields["hasMsg"] == "false"
    held = client.begin(Request.NOTIFICATION, {**fields, "pollTime": 60_000})
    await send(other, "Others", b"3", queue_id=0)
    assert (await held).fields["hasMsg"] == "true"

    def acknowledged(bits: bytes, **changed: object) -> dict[str, object]:
        entry = {"c": "CG", "t": "Others", "r": "0", "so": 0, "q": 2, "rq": 0, "b": base64.b64encode(bits).decode()}
        times = {"pt": int(popped.fields["popTime"]), "it": 60_000}
        return {"brokerName": "aerobee", "acks": [{**entry, **times, **changed}]}

    batch = Request.BATCH_ACK_MESSAGE
    assert (await client.call(batch, body={"acks": []})).code == Answer.NO_MESSAGE
    assert (await client.call(batch, body=acknowledged(b""))).code == Answer.NO_MESSAGE
    assert (await client.call(batch, body=acknowledged(b"\1", b="?"))).code == Answer.INVALID_PARAMETER
    assert (await client.call(batch, body=acknowledged(b"\xff" * 4096))).code == Answer.INVALID_PARAMETER
    assert (await client.call(batch, body=acknowledged(b"\1", t="Unknown"))).code == Answer.TOPIC_NOT_EXIST
    assert (await client.call(batch, body=acknowledged(b"\5"))).code == 0  # the first and the third message
    assert (await client.call(batch, body=acknowledged(b"\5"))).code == 0
    assert (await client.call(batch, body=acknowledged(b"\2", it=10))).code == 0  # of an earlier delivery: ignored
    await shared.clock.advance(61)
    again = await _pop(client, "Others", pollTime=60_000, bornTime=shared.clock.now_ms())
    assert {found.body for found in records(again.body)} >= {b"1"}
    assert not {found.body for found in records(again.body)} & {b"0", b"2"}


@pytest.mark.parametrize("info", ["", "x", "0 1 2 3", "0 x 60000 0 0 aerobee 0 0"])
async def test_c084_invalid_extra_info(client: RemotingClient, info: str) -> None:
    """It is refused with a readable text."""
    await send(client, "Bad")
    await _pop(client, "Bad")
    fields = {"consumerGroup": "CG", "topic": "Bad", "queueId": 0, "offset": 0, "extraInfo": info}
    answer = await client.call(Request.ACK_MESSAGE, fields)
    assert answer.code == Answer.INVALID_PARAMETER
    assert "extraInfo" in (answer.remark or "")
