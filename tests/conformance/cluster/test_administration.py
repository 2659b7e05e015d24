"""Items 61, 75, 79 and 86 to 92: operators' tasks, and calls to clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_proto import v2
from aerobee_store.tables.java_json import dumps
from tests.conformance.cluster.conftest import Shared
from tests.conformance.raw_client import RawClient, resource
from tests.support import golden_remoting
from tests.support.remoting_client import (
    RemotingClient,
    heartbeat_body,
    json_body,
    pull_fields,
    records,
    remoting_broker,
    send,
    send_fields,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


def topic_fields(name: str, **others: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": "",
    }
    return {**fields, **others}


async def test_c061_a_reset_sends_the_next_pull_elsewhere(client: RemotingClient) -> None:
    """The next pull is answered with 21 and the new offset, which replaces the committed one."""
    for _ in range(4):
        await send(client, "Reset")
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c61", "G61", "Reset"))
    place: dict[str, object] = {"topic": "Reset", "consumerGroup": "G61", "queueId": 0}
    await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 4})
    held = client.begin(Request.PULL_MESSAGE, pull_fields("Reset", group="G61", offset=4, sys_flag=6))
    await client.call(106)
    reset = {"topic": "Reset", "group": "G61", "timestamp": 0, "isForce": True, "queueId": 0, "offset": 1}
    answer = await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert json_body(answer)["offsetTable"].pairs() == [({"brokerName": "aerobee", "queueId": 0, "topic": "Reset"}, 1)]
    ignored = await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 4})
    assert (ignored.code, "pending" in (ignored.remark or "")) == (0, True)
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).fields == {"offset": "1"}
    await send(client, "Reset")  # ends the pull held since before the reset
    await held
    moved = await client.call(Request.PULL_MESSAGE, pull_fields("Reset", group="G61", offset=4))
    assert (moved.code, moved.fields["nextBeginOffset"]) == (Answer.PULL_OFFSET_MOVED, "1")
    again = await client.call(Request.PULL_MESSAGE, pull_fields("Reset", group="G61", offset=1))
    assert len(records(again.body)) == 4
    await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 2})
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).fields == {"offset": "2"}
    end = {**reset, "queueId": -1, "offset": -1, "timestamp": -1}
    assert (await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, end)).code == 0
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).fields == {"offset": "5"}
    for unknown, code in (({"topic": "No61"}, 17), ({"group": "No61"}, 26)):
        assert (await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, **unknown})).code == code


async def test_c075_calls_to_consumers(client: RemotingClient, other: RemotingClient, shared: Shared) -> None:
    """An operator's request is forwarded to the client and its answer returned; absent or silent clients are errors."""
    sent = await send(client, "Direct", b"directly")
    await other.call(Request.HEART_BEAT, body=heartbeat_body("c75", "G75", "Direct"))
    await other.next_asked()
    asking = {"consumerGroup": "G75", "clientId": "c75", "jstackEnable": False}
    info = client.begin(Request.GET_CONSUMER_RUNNING_INFO, asking)
    asked = await other.next_asked()
    assert (asked.code, asked.fields["clientId"]) == (Request.GET_CONSUMER_RUNNING_INFO, "c75")
    other.reply(asked, b'{"properties":{}}')
    assert (await info).body == b'{"properties":{}}'
    direct = client.begin(Request.CONSUME_MESSAGE_DIRECTLY, {**asking, "msgId": sent.fields["msgId"]})
    asked = await other.next_asked()
    assert [record.body for record in records(asked.body)] == [b"directly"]
    assert (asked.fields["topic"], asked.fields["brokerName"]) == ("Direct", "aerobee")
    other.reply(asked, b'{"consumeResult":"CR_SUCCESS"}')
    assert (await direct).body == b'{"consumeResult":"CR_SUCCESS"}'
    assert (await client.call(Request.GET_CONSUMER_RUNNING_INFO, {**asking, "clientId": "nobody"})).code == 1
    silent = client.begin(Request.GET_CONSUMER_RUNNING_INFO, asking)
    await other.next_asked()
    await shared.clock.advance(11)
    assert (await silent).code == Answer.CONSUME_MESSAGE_TIMEOUT


async def test_c079_replies(client: RemotingClient, other: RemotingClient) -> None:
    """A reply is pushed to the waiting client; if it is absent the answer is 1, and the reply is still stored."""
    await other.call(Request.HEART_BEAT, body={"clientID": "asker", "producerDataSet": [{"groupName": "PG79"}]})
    properties = "CORRELATION_ID\x01corr\x02REPLY_TO_CLIENT\x01{}\x02MSG_TYPE\x01reply\x02"
    fields = send_fields("DefaultCluster_REPLY_TOPIC", i=properties.format("asker"))
    reply = client.begin(Request.SEND_REPLY_MESSAGE_V2, fields, b"the answer")
    asked = await other.next_asked()
    assert (asked.code, asked.body) == (Request.PUSH_REPLY_MESSAGE_TO_CLIENT, b"the answer")
    assert "CORRELATION_ID\x01corr" in asked.fields["properties"]
    assert "PUSH_REPLY_TIME" in asked.fields["properties"]
    [golden, *_] = golden_remoting.requests(Request.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert asked.fields.keys() >= golden.header["extFields"].keys() - {"unitMode"}
    other.reply(asked)
    assert (await reply).code == 0
    gone = send_fields("DefaultCluster_REPLY_TOPIC", i=properties.format("gone"))
    refused = await client.call(Request.SEND_REPLY_MESSAGE_V2, gone, b"lost")
    assert (refused.code, "is stored" in (refused.remark or "")) == (1, True)
    stored = await client.call(Request.PULL_MESSAGE, pull_fields("DefaultCluster_REPLY_TOPIC"))
    assert [record.body for record in records(stored.body)] == [b"the answer", b"lost"]


async def test_c086_the_state_of_a_broker(client: RemotingClient) -> None:
    """All keys that tools read, including those that RocketMQ 4 spells differently."""
    await send(client, "State")
    table = json_body(await client.call(Request.GET_BROKER_RUNTIME_INFO))["table"]
    for key in (
        *("brokerVersionDesc", "brokerVersion", "putTps", "getTransferredTps", "getTransferedTps", "runtime"),
        *("msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow", "bootTimestamp"),
        *("msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "msgGetTotalTodayNow", "brokerActive"),
        *("sendThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize"),
        *("pageCacheLockTimeMills", "earliestMessageTimeStamp", "commitLogDiskRatio", "consumeQueueDiskRatio"),
        *("commitLogMinOffset", "commitLogMaxOffset", "dispatchBehindBytes", "remainHowManyDataToFlush"),
        *("timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps"),
        *("getFoundTps", "getMissTps", "getTotalTps", "putMessageTimesTotal", "putMessageSizeTotal"),
        *("putMessageAverageSize", "putMessageEntireTimeMax", "getMessageEntireTimeMax", "EndTransactionQueueSize"),
        *("putMessageDistributeTime", "remainTransientStoreBufferNumbs", "commitLogDirCapacity"),
        "startAcceptSendRequestTimeStamp",
    ):
        assert isinstance(table[key], str), key
    assert int(table["msgPutTotalTodayNow"]) > 0
    assert len(table["putTps"].split()) == 3


async def test_c088_creating_and_changing_topics(tmp_path: Path) -> None:
    """Queue counts, permission and attributes change routes at once, and are kept after a restart."""
    async with remoting_broker(tmp_path) as (_, client):
        create = topic_fields("Made", attributes="+message.type=FIFO")
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, create)).code == 0
        change = topic_fields(
            "Made", readQueueNums=6, writeQueueNums=5, perm=4, attributes="-message.type,+lite.topic.expiration=5"
        )
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, change)).code == 0
        route = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "Made"})
        [queues] = json_body(route)["queueDatas"]
        assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (6, 5, 4)
        assert (await send(client, "Made")).code == Answer.NO_PERMISSION
        for wrong in ({"topic": "no name"}, {"topic": "TBW102"}, {"perm": 99}):
            answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("Made", **wrong))
            assert answer.code == Answer.INVALID_PARAMETER, wrong
    async with remoting_broker(tmp_path) as (_, client):
        config = json_body(await client.call(Request.GET_TOPIC_CONFIG, {"topic": "Made"}))
        assert (config["readQueueNums"], config["perm"], config["attributes"]) == (6, 4, {"lite.topic.expiration": "5"})
        table = json_body(await client.call(Request.GET_ALL_TOPIC_CONFIG))
        assert table["topicConfigTable"]["Made"] == config


_WRONG_ATTRIBUTES = (
    ("+message.type=FIFOO", "use one of"),
    ("+nosuch=1", "unknown"),
    ("+message.type", "write"),
    ("message.type=FIFO", "write"),
    ("+queue.type=SimpleCQ,+queue.type=BatchCQ", "twice"),
    ("-reserve.time", "not set"),
    ("+queue.type=BatchCQ", "cannot be changed"),
    ("+lite.topic.expiration=soon", "an integer from -1"),
    ("+lite.topic.expiration=43201", "an integer from -1"),
    ("+cleanup.policy=COMPACTION", ""),
    ("+reserve.time=72", "store.retention_hours"),
)


_OF_EXPORTER = (  # what rocketmq-exporter reads as numbers of bytes, counts and rates; without one it reports nothing
    *("dispatchMaxBuffer", "putLatency99", "putLatency999", "putMessageTimesTotal", "remainTransientStoreBufferNumbs"),
    *("msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning", "msgGetTotalTodayMorning", "commitLogMaxOffset"),
)


async def test_the_exporter_of_rocketmq_had_no_figures_of_the_broker(client: RemotingClient) -> None:
    """Every key that its class of runtime figures reads is there in the form that it parses."""
    await send(client, "Exported", properties="DELAY\x013\x02")
    table = json_body(await client.call(Request.GET_BROKER_RUNTIME_INFO))["table"]
    assert [float(table[name]) >= 0 for name in _OF_EXPORTER] == [True] * len(_OF_EXPORTER)
    words = table["commitLogDirCapacity"].split(" ")
    assert float(words[2]) >= float(words[6]) > 0, "rounded"
    assert {words[3][-2:], words[7][-2:]} == {"B,", "B."}
    assert [len(pair.split(":")) for pair in table["putMessageDistributeTime"].split(" ")] == [2]
    assert table["scheduleMessageOffset_3"].split(",")[1] >= "1"


async def test_messages_in_flight_were_never_counted(client: RemotingClient) -> None:
    """What a consumer has pulled, or received by POP, and not committed or acknowledged."""
    for _ in range(4):
        await send(client, "Flying")
    await client.call(Request.PULL_MESSAGE, pull_fields("Flying", group="G-pull", offset=0))
    place: dict[str, object] = {"topic": "Flying", "consumerGroup": "G-pull", "queueId": 0}
    await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 1})
    stats = json_body(await client.call(Request.GET_CONSUME_STATS, {"consumerGroup": "G-pull", "topicList": "Flying;"}))
    found = [each for key, each in stats["offsetTable"].pairs() if key["queueId"] == 0]
    assert [(each["consumerOffset"], each["pullOffset"]) for each in found] == [(1, 4)]
    whole = json_body(await client.call(Request.GET_BROKER_CONSUME_STATS, {"isOrder": False}))
    assert whole["totalInflightDiff"] == 3
    await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 4})
    whole = json_body(await client.call(Request.GET_BROKER_CONSUME_STATS, {"isOrder": False}))
    assert whole["totalInflightDiff"] == 0


async def test_consumers_spans_subscriptions_and_offsets_were_not_answered(
    client: RemotingClient, other: RemotingClient
) -> None:
    """303, 343, 345 and 223, which the dashboard and operators' programs send."""
    await send(client, "Asked")
    await other.call(Request.HEART_BEAT, body=heartbeat_body("c-asked", "G-asked", "Asked"))
    await other.next_asked()
    place: dict[str, object] = {"topic": "Asked", "consumerGroup": "G-asked", "queueId": 0}
    named: dict[str, object] = {"topic": "Asked", "group": "G-asked"}
    spans = json_body(await client.call(Request.QUERY_CONSUME_TIME_SPAN, named))["consumeTimeSpanSet"]
    first = next(span for span in spans if span["messageQueue"]["queueId"] == 0)
    assert first["minTimeStamp"] == first["maxTimeStamp"] == first["consumeTimeStamp"] > 0
    await client.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 1})
    spans = json_body(await client.call(Request.QUERY_CONSUME_TIME_SPAN, named))["consumeTimeSpanSet"]
    assert [span["delayTime"] for span in spans] == [0] * len(spans)
    topics = json_body(await client.call(Request.QUERY_TOPICS_BY_CONSUMER, named))
    assert topics["topicList"] == ["Asked"]
    wanted = json_body(await client.call(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, named))
    assert (wanted["group"], wanted["subscriptionData"]["topic"]) == ("G-asked", "Asked")
    gone = json_body(await client.call(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, {**named, "topic": "Other"}))
    assert gone["subscriptionData"] is None
    status = client.begin(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, named)
    asked = await other.next_asked()
    assert asked.code == Request.GET_CONSUMER_STATUS_FROM_CLIENT
    other.reply(asked, b'{"messageQueueTable":{{"brokerName":"aerobee","queueId":0,"topic":"Asked"}:1}}')
    table = json_body(await status)["consumerTable"]["c-asked"]
    assert table.pairs() == [({"brokerName": "aerobee", "queueId": 0, "topic": "Asked"}, 1)]
    nobody = await client.call(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {**named, "group": "G-nobody"})
    assert nobody.code == Answer.SYSTEM_ERROR


async def test_attributes_with_a_wrong_name_or_value_were_taken(tmp_path: Path) -> None:
    """RocketMQ answers 1 and changes nothing; so it is for one topic, for a list of them, and for groups."""
    async with remoting_broker(tmp_path) as (_, client):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("Kept"))).code == 0
        for wrong, text in _WRONG_ATTRIBUTES:
            for name in ("Kept",) if text == "cannot be changed" else ("Kept", "New"):
                answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic_fields(name, attributes=wrong))
                assert (answer.code, text in (answer.remark or "")) == (Answer.SYSTEM_ERROR, True), (wrong, answer)
        listed = {"topicConfigList": [{"topicName": "Listed", "attributes": {"+message.type": "FIFOO"}}]}
        answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC_LIST, body=dumps(listed))
        assert answer.code == Answer.SYSTEM_ERROR
        listed["topicConfigList"][0]["attributes"] = {"+message.type": "FIFO"}
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC_LIST, body=dumps(listed))).code == 0
        table = json_body(await client.call(Request.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]
        assert (table["Kept"]["attributes"], "New" in table) == ({}, False)
        assert table["Listed"]["attributes"] == {"message.type": "FIFO"}

        for attributes, code in (
            ({"+priority.factor": "50"}, Answer.SYSTEM_ERROR),
            ({"+nosuch": "1"}, Answer.SYSTEM_ERROR),
            ({"+lite.sub.model": "Exclusive"}, Answer.SYSTEM_ERROR),
            ({"-lite.bind.topic": ""}, Answer.SYSTEM_ERROR),
            ({"+lite.bind.topic": "Rooms"}, Answer.SUCCESS),
            ({}, Answer.SUCCESS),
        ):
            group: dict[str, object] = {"groupName": "Bound", "attributes": attributes}
            answer = await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=dumps(group))
            assert answer.code == code, (attributes, answer)
        config = json_body(await client.call(Request.GET_SUBSCRIPTION_GROUP_CONFIG, {"group": "Bound"}))
        assert config["attributes"] == {"lite.bind.topic": "Rooms"}


async def test_a_group_bound_to_one_topic_had_lite_topics_of_others(tmp_path: Path) -> None:
    """The attribute lite.bind.topic names the only parent topic."""
    async with remoting_broker(tmp_path) as (broker, client):
        for name in ("Rooms", "Halls"):
            await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic_fields(name, attributes="+message.type=LITE"))
        group = {"groupName": "Bound", "attributes": {"+lite.bind.topic": "Rooms"}}
        assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=dumps(group))).code == 0
        codes = []
        for name in ("Rooms", "Halls"):
            wanted = v2.SyncLiteSubscriptionRequest(topic=resource(name), group=resource("Bound"), lite_topic_set=["a"])
            codes.append((await RawClient(broker.channel).call("SyncLiteSubscription", wanted)).status.code)
        assert codes == [v2.Code.OK, v2.Code.ILLEGAL_CONSUMER_GROUP]


async def test_c089_groups(client: RemotingClient) -> None:
    """Groups are created, changed, listed and deleted; querying an unknown one does not create it."""
    body = {"groupName": "G89", "retryMaxTimes": 3, "consumeMessageOrderly": True}
    assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=body)).code == 0
    body = {"groupName": "G89", "retryMaxTimes": 5}
    assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=body)).code == 0
    group = json_body(await client.call(Request.GET_SUBSCRIPTION_GROUP_CONFIG, {"group": "G89"}))
    assert (group["retryMaxTimes"], group["consumeMessageOrderly"]) == (5, False)
    table = json_body(await client.call(Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG))["subscriptionGroupTable"]
    assert table["G89"] == group
    for _ in range(2):
        answer = await client.call(Request.GET_SUBSCRIPTION_GROUP_CONFIG, {"group": "No89"})
        assert answer.code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await client.call(Request.DELETE_SUBSCRIPTION_GROUP, {"groupName": "G89"})).code == 0
    answer = await client.call(Request.GET_SUBSCRIPTION_GROUP_CONFIG, {"group": "G89"})
    assert answer.code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST
    for wrong in ({"groupName": "no name"}, {"groupName": "G", "retryMaxTimes": "x"}, {}):
        answer = await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=wrong)
        assert answer.code == Answer.INVALID_PARAMETER


async def test_many_topics_and_groups_at_once(client: RemotingClient) -> None:
    """The result equals single calls; topics before a refused one are created."""
    topics = [{"topicName": f"List{number}", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for number in (1, 2)]
    many = Request.UPDATE_AND_CREATE_TOPIC_LIST
    assert (await client.call(many, body={"topicConfigList": topics})).code == 0
    refused = await client.call(many, body={"topicConfigList": [{"topicName": "List3"}, {"topicName": "?"}]})
    assert refused.code == Answer.INVALID_PARAMETER
    for name, queues in (("List1", 2), ("List2", 2), ("List3", 16)):
        found = json_body(await client.call(Request.GET_TOPIC_CONFIG, {"topic": name}))
        assert found["readQueueNums"] == queues
    groups = {"groupConfigList": [{"groupName": "GL1", "retryMaxTimes": 3}, {"groupName": "GL2"}]}
    assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST, body=groups)).code == 0
    for name, times in (("GL1", 3), ("GL2", 16)):
        found = json_body(await client.call(Request.GET_SUBSCRIPTION_GROUP_CONFIG, {"group": name}))
        assert found["retryMaxTimes"] == times
    assert (await client.call(many, body={"topicConfigList": [1]})).code == Answer.INVALID_PARAMETER


async def test_the_units_of_a_queue(client: RemotingClient) -> None:
    """The entries' positions in the log, starting at an index."""
    sent = [await send(client, "Units", b"x", queue_id=1, properties="TAGS\x01a\x02") for _ in range(3)]
    place: dict[str, object] = {"topic": "Units", "queueId": 1, "index": 1, "count": 10}
    found = json_body(await client.call(Request.QUERY_CONSUME_QUEUE, place))
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    offsets = [int(answer.fields["msgId"][16:], 16) for answer in sent]
    assert [unit["physicOffset"] for unit in found["queueData"]] == offsets[1:]
    assert {unit["tagsCode"] for unit in found["queueData"]} == {ord("a")}
    assert (await client.call(Request.QUERY_CONSUME_QUEUE, {**place, "topic": "No"})).code == Answer.TOPIC_NOT_EXIST


async def test_c090_changing_the_configuration(client: RemotingClient) -> None:
    """Settings that may change at run time, under RocketMQ's name or ours; others refuse the whole request."""
    assert (await client.call(Request.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=48\n")).code == 0
    lines = (await client.call(Request.GET_BROKER_CONFIG)).body.decode().splitlines()
    assert {"fileReservedTime=48", "store.retention_hours=48"} <= {line.removesuffix(".0") for line in lines}
    refused = (
        b"brokerName=other\n",
        b"rocketmqHome=/\n",
        b"fileReservedTime=x\n",
        b"topics.queue_count=3\nbrokerName=x\n",
    )
    for body in refused:
        assert (await client.call(Request.UPDATE_BROKER_CONFIG, body=body)).code == Answer.NO_PERMISSION, body
    lines = (await client.call(Request.GET_BROKER_CONFIG)).body.decode().splitlines()
    assert "topics.queue_count=8" in lines
    assert "brokerName=aerobee" in lines


async def test_c091_deleting_a_topic(client: RemotingClient) -> None:
    """Its route and messages are removed; a new topic of the same name starts afresh."""
    await send(client, "Deleted")
    for code in (Request.DELETE_TOPIC_IN_BROKER, Request.DELETE_TOPIC_IN_NAME_SERVER):
        assert (await client.call(code, {"topic": "Deleted"})).code == 0
    assert (await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "Deleted"})).code == 17
    place: dict[str, object] = {"topic": "Deleted", "queueId": 0}
    assert (await client.call(Request.GET_MAX_OFFSET, place)).fields == {"offset": "0"}
    await send(client, "Deleted", b"new")
    answer = await client.call(Request.PULL_MESSAGE, pull_fields("Deleted"))
    assert [record.body for record in records(answer.body)] == [b"new"]
    assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "No91"})).code == 0


async def test_c092_statistics_producers_and_consumers(client: RemotingClient) -> None:
    """Statistics under RocketMQ's names, connected clients, and the groups' progress."""
    await send(client, "Stats")
    item = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Stats"}
    assert set(json_body(await client.call(Request.VIEW_BROKER_STATS_DATA, item))) == {
        *("statsMinute", "statsHour", "statsDay"),
    }
    assert (await client.call(Request.VIEW_BROKER_STATS_DATA, {**item, "statsName": "NONE"})).code == 1
    await client.call(Request.HEART_BEAT, body=heartbeat_body("c92", "G92", "Stats"))
    producers = json_body(await client.call(Request.GET_ALL_PRODUCER_INFO))["data"]
    assert producers["G92_producer"][0]["clientId"] == "c92"
    found = await client.call(Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "G92_producer"})
    assert json_body(found)["connectionSet"][0]["language"] == "JAVA"
    assert (await client.call(Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "none"})).code == 1
    consumers = json_body(await client.call(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G92"}))
    assert consumers["connectionSet"][0]["clientId"] == "c92"
    assert consumers["subscriptionTable"]["Stats"]["subString"] == "*"
    answer = await client.call(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "none"})
    assert answer.code == Answer.CONSUMER_NOT_ONLINE
    groups = json_body(await client.call(Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "Stats"}))
    assert groups == {"groupList": ["G92"]}
    stats = json_body(await client.call(Request.GET_TOPIC_STATS_INFO, {"topic": "Stats"}))
    offsets = {key["queueId"]: value["maxOffset"] for key, value in stats["offsetTable"].pairs()}
    assert offsets == {0: 1, 1: 0, 2: 0, 3: 0}
    place: dict[str, object] = {"topic": "Stats", "consumerGroup": "G92", "queueId": 0, "commitOffset": 1}
    await client.call(Request.UPDATE_CONSUMER_OFFSET, place)
    progress = json_body(await client.call(Request.GET_CONSUME_STATS, {"consumerGroup": "G92"}))
    first = next(value for key, value in progress["offsetTable"].pairs() if key["queueId"] == 0)
    assert (first["brokerOffset"], first["consumerOffset"]) == (1, 1)
    everyone = json_body(await client.call(Request.GET_BROKER_CONSUME_STATS, {"isOrder": False}))
    assert any("G92" in entry for entry in everyone["consumeStatsList"])
    unknown = json_body(await client.call(Request.GET_CONSUME_STATS, {"consumerGroup": "none"}))
    assert unknown["offsetTable"] == {}
