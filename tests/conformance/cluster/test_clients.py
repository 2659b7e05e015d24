"""Items 62 to 74: heartbeats, groups, offsets, locks, retries, queries."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import FrameReader
from aerobee_store.tables import java_json
from tests.conformance.cluster.conftest import Shared
from tests.support import golden_remoting
from tests.support.remoting_client import (
    RemotingClient,
    heartbeat_body,
    json_body,
    pull_fields,
    records,
    send,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _ids(client: RemotingClient, group: str) -> object:
    answer = await client.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return json_body(answer)["consumerIdList"] if answer.code == 0 else answer.code


async def test_c062_golden_heartbeats(client: RemotingClient) -> None:
    """Recorded heartbeats of Java 4.9, Java 5.3 and Go register every group that they name."""
    count = 0
    for golden in golden_remoting.requests(Request.HEART_BEAT):
        [request] = FrameReader().feed(golden.data)
        answer = await client.call(Request.HEART_BEAT, body=request.body, version=request.version)
        assert answer.code == 0, (golden.file, answer.remark)
        body = java_json.loads(request.body)
        assert isinstance(body, dict)
        for consumer in body["consumerDataSet"] or []:
            found = await _ids(client, consumer["groupName"])
            assert isinstance(found, list), golden.file
            assert body["clientID"] in found
            count += 1
    assert count > 3


async def test_c063_heartbeats_without_subscriptions_are_not_offered(client: RemotingClient) -> None:
    """Clients keep sending complete ones; the version in the answer is one with SQL filters."""
    answer = await client.call(Request.HEART_BEAT, body=heartbeat_body("c63", "G63", "T"))
    assert answer.fields == {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "false"}
    assert answer.version == 479


async def test_c064_consumers_are_notified_of_a_change_once(client: RemotingClient, other: RemotingClient) -> None:
    """Members are notified of each client that joins or leaves; an unchanged heartbeat notifies nobody."""
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c1", "G64", "T"))
    await client.next_asked()
    await other.call(Request.HEART_BEAT, body=heartbeat_body("c2", "G64", "T"))
    asked = await client.next_asked()
    assert (asked.code, asked.fields, asked.is_one_way) == (
        Request.NOTIFY_CONSUMER_IDS_CHANGED,
        {"consumerGroup": "G64"},
        True,
    )
    await other.next_asked()
    for connection, name in ((client, "c1"), (other, "c2")):
        await connection.call(Request.HEART_BEAT, body=heartbeat_body(name, "G64", "T"))
    assert client.asked.empty()
    assert other.asked.empty()
    await other.call(Request.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "G64"})
    assert (await client.next_asked()).code == Request.NOTIFY_CONSUMER_IDS_CHANGED
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c1", "G64", "T", expression="tag"))
    assert (await client.next_asked()).code == Request.NOTIFY_CONSUMER_IDS_CHANGED


async def test_c065_clients_that_leave(client: RemotingClient, shared: Shared) -> None:
    """A client leaves by unregistering, by closing its connection, or after two minutes without a heartbeat."""
    for way in ("goodbye", "connection", "silence"):
        leaving = await RemotingClient.connect(shared.broker.remoting)
        await leaving.call(Request.HEART_BEAT, body=heartbeat_body("leaving", f"G65{way}", "T"))
        await client.call(Request.HEART_BEAT, body=heartbeat_body("staying", f"G65{way}", "T"))
        found = await _ids(client, f"G65{way}")
        assert isinstance(found, list)
        assert sorted(found) == ["leaving", "staying"]
        if way == "goodbye":
            await leaving.call(Request.UNREGISTER_CLIENT, {"clientID": "leaving", "consumerGroup": f"G65{way}"})
        elif way == "connection":
            await leaving.close()
            async with asyncio.timeout(60):
                while await _ids(client, f"G65{way}") != ["staying"]:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.01)
        else:
            for _ in range(13):
                await shared.clock.advance(10)
                await client.call(Request.HEART_BEAT, body=heartbeat_body("staying", f"G65{way}", "T"))
                if way == "silence":
                    await leaving.call(106)  # keeps the connection open
        assert await _ids(client, f"G65{way}") == ["staying"]
        await leaving.close()


async def test_c066_a_group_without_consumers(client: RemotingClient) -> None:
    """The answer is 1."""
    answer = await client.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G66"})
    assert (answer.code, answer.remark) == (1, "no consumer for this group, G66")


async def test_c067_a_heartbeat_creates_the_retry_topic(client: RemotingClient) -> None:
    """The retry topic has one queue, readable and writable."""
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c", "G67", "T"))
    route = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "%RETRY%G67"})
    [queues] = json_body(route)["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (1, 1, 6)


async def test_c068_checking_a_filter(client: RemotingClient) -> None:
    """A valid filter and an invalid one."""
    body = {
        "clientId": "c",
        "group": "G",
        "subscriptionData": {"topic": "T", "subString": "a", "expressionType": "TAG"},
    }
    assert (await client.call(Request.CHECK_CLIENT_CONFIG, body=body)).code == 0
    body["subscriptionData"] = {"topic": "T", "subString": "a >", "expressionType": "SQL92"}
    answer = await client.call(Request.CHECK_CLIENT_CONFIG, body=body)
    assert answer.code == Answer.SUBSCRIPTION_PARSE_FAILED


async def test_c069_committed_offsets(client: RemotingClient) -> None:
    """Without an offset: 0 or 22, as requested.

    A commit is visible at once, unknown topics and groups are refused, and -1 is ignored.
    """
    await send(client, "Offsets")
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c", "G69", "Offsets"))
    place: dict[str, object] = {"topic": "Offsets", "consumerGroup": "G69", "queueId": 0}
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).fields == {"offset": "0"}
    strict = {**place, "setZeroIfNotFound": False}
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, strict)).code == Answer.QUERY_NOT_FOUND
    assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": -1})).code == 0
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, strict)).code == Answer.QUERY_NOT_FOUND
    assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 1})).code == 0
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).fields == {"offset": "1"}
    client.one_way(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 0})
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).fields == {"offset": "0"}
    unknown_group = {**place, "consumerGroup": "Nobody69", "commitOffset": 1}
    assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, unknown_group)).code == 26
    assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "topic": "No69", "commitOffset": 1})).code == 17


async def test_c070_minimum_and_maximum_offsets(client: RemotingClient) -> None:
    """The first and end offsets of a queue with messages, an empty one and an unknown one."""
    for _ in range(2):
        await send(client, "QueueEnds")
    for topic, queue_id, high in (("QueueEnds", 0, 2), ("QueueEnds", 1, 0), ("No70", 0, 0)):
        place: dict[str, object] = {"topic": topic, "queueId": queue_id}
        assert (await client.call(Request.GET_MAX_OFFSET, place)).fields == {"offset": str(high)}
        assert (await client.call(Request.GET_MIN_OFFSET, place)).fields == {"offset": "0"}
        found = await client.call(Request.SEARCH_OFFSET_BY_TIMESTAMP, {**place, "timestamp": 0})
        assert found.fields == {"offset": "0"}
        earliest = await client.call(Request.GET_EARLIEST_MESSAGE_STORE_TIME, place)
        assert (int(earliest.fields["timestamp"]) > 0) == (high > 0)


async def test_c071_sending_back(client: RemotingClient, shared: Shared) -> None:
    """A returned message comes again after its delay as the next attempt, and after the last as a dead letter."""
    sent = await send(client, "Back", b"again", properties="UNIQ_KEY\x01U71\x02")
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c", "G71", "Back"))
    offset = int(sent.fields["msgId"][16:], 16)
    back: dict[str, object] = {"group": "G71", "delayLevel": 0, "originTopic": "Back", "originMsgId": "U71"}
    assert (await client.call(Request.CONSUMER_SEND_MESSAGE_BACK, {**back, "offset": offset})).code == 0
    held = client.begin(Request.PULL_MESSAGE, pull_fields("%RETRY%G71", group="G71", sys_flag=6))
    await shared.clock.advance(9)
    assert not held.done()
    await shared.clock.advance(1.5)
    [record] = records((await held).body)
    assert (record.body, record.reconsume_times) == (b"again", 1)
    assert record.properties["RETRY_TOPIC"] == "Back"
    assert record.properties["ORIGIN_MESSAGE_ID"] == sent.fields["msgId"]
    for last in ({"delayLevel": -1}, {"maxReconsumeTimes": 0}):
        assert (await client.call(Request.CONSUMER_SEND_MESSAGE_BACK, {**back, "offset": offset, **last})).code == 0
    dead = records((await client.call(Request.PULL_MESSAGE, pull_fields("%DLQ%G71", group="G71"))).body)
    assert [(record.body, record.properties["DLQ_ORIGIN_TOPIC"]) for record in dead] == [(b"again", "Back")] * 2
    assert (await client.call(Request.CONSUMER_SEND_MESSAGE_BACK, {**back, "offset": 1 << 40})).code == 1
    answer = await client.call(Request.CONSUMER_SEND_MESSAGE_BACK, {**back, "offset": offset, "group": "Nobody71"})
    assert answer.code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_c072_queue_locks(client: RemotingClient, shared: Shared) -> None:
    """A client locks a queue for a minute and may renew that; another gets it after unlocking or expiry."""
    queue = {"brokerName": "aerobee", "queueId": 0, "topic": "T"}

    async def lock(name: str) -> int:
        body = {"clientId": name, "consumerGroup": "G72", "mqSet": list[object]([queue])}
        return len(json_body(await client.call(Request.LOCK_BATCH_MQ, body=body))["lockOKMQSet"])

    assert [await lock("c1"), await lock("c2"), await lock("c1")] == [1, 0, 1]
    await shared.clock.advance(50)
    assert [await lock("c1"), await lock("c2")] == [1, 0]
    await shared.clock.advance(61)
    assert [await lock("c2"), await lock("c1")] == [1, 0]
    for name in ("c1", "c2"):
        body = {"clientId": name, "consumerGroup": "G72", "mqSet": list[object]([queue])}
        assert (await client.call(Request.UNLOCK_BATCH_MQ, body=body)).code == 0
        assert await lock("c1") == (0 if name == "c1" else 1)


async def test_c073_looking_up_messages(client: RemotingClient) -> None:
    """Messages are found by key and by the client's id; no result is 22."""
    await send(client, "Query", b"found", properties="KEYS\x01k1 k2\x02UNIQ_KEY\x01U73\x02")
    fields: dict[str, object] = {"topic": "Query", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 62}
    for key in ("k1", "k2", "U73"):
        for _ in range(3000):
            answer = await client.call(Request.QUERY_MESSAGE, {**fields, "key": key, "_UNIQUE_KEY_QUERY": key == "U73"})
            if answer.code == 0:
                break
            await asyncio.sleep(0.02)
        assert [record.body for record in records(answer.body)] == [b"found"]
    answer = await client.call(Request.QUERY_MESSAGE, {**fields, "key": "k3"})
    assert answer.code == Answer.QUERY_NOT_FOUND


async def test_c074_a_place_without_a_message(client: RemotingClient) -> None:
    """Offsets beyond the end, in the middle of a record, and invalid ones."""
    await send(client, "Places")
    for offset in (1 << 40, 5, -1):
        answer = await client.call(Request.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert answer.code == Answer.SYSTEM_ERROR
