"""What clients create by using it has one bound: beyond it everything new is refused with the cause, and what exists
goes on, over every protocol."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import LimitsConfig
from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.watching import watch
from aerobee_proto import admin_v1, records_v1, v2
from aerobee_store.records import record
from aerobee_store.records.message_fields import properties_of
from aerobee_store.records.record import Draft, Message
from tests.conformance.raw_client import RawClient, message, resource
from tests.support.in_process_broker import METADATA, InProcessBroker
from tests.support.remoting_client import RemotingClient, pull_fields, records, remoting_broker, send_fields
from tests.support.shell import Shell

LIMIT = 200_000
SETTING = "limits.table_bytes_max"
Code = v2.Code


@asynccontextmanager
async def full_broker(directory: Path) -> AsyncIterator[tuple[RawClient, RemotingClient, str]]:
    """A broker with the topic `old`, the group `used`, which has received from it, and no space; and its address."""
    limits, delivery = LimitsConfig(table_bytes_max=LIMIT), DeliveryConfig(invisible_seconds_min=0.1)
    async with remoting_broker(directory, limits=limits, delivery=delivery) as (broker, remoting):
        client = RawClient(broker.channel)
        await client.create_topic("old")
        await client.create_topic("parent", v2.MessageType.LITE)
        await client.create_group("used")
        await client.create_group("idle")
        await client.receive("old", "used")
        assert await refusal_of_fill(client)
        await limit(client, 1)  # no space for the smallest thing
        yield client, remoting, broker.endpoint


async def limit(client: RawClient, size: int) -> None:
    """Change the limit of the running broker."""
    request = admin_v1.UpdateConfigurationRequest(set={SETTING: str(size)})
    assert (await client.admin.UpdateConfiguration(request, timeout=20)).status.code == Code.OK


async def refusal_of_fill(client: RawClient) -> str:
    """Send to new topics until one is refused, and make groups until there is no space even for these."""
    for number in range(100):
        status = (await client.send(message(f"new-{number}"))).status
        if status.code != Code.OK:
            assert status.code == Code.TOO_MANY_REQUESTS
            for other in range(100):
                request = admin_v1.CreateGroupRequest(group=admin_v1.Group(name=f"g{other}"))
                if (await client.admin.CreateGroup(request, timeout=20)).status.code != Code.OK:
                    return status.message
    raise AssertionError("nothing was refused")


def draft(topic: str) -> bytes:
    made = Message(topic, 0, b"body", properties_of(message_id="01AA"), born_timestamp=1)
    return Draft(made, store_host=record.NO_HOST, property_crc=True).encode_unplaced()


async def test_everything_new_is_refused_with_the_cause(tmp_path: Path) -> None:
    """Over gRPC, in bulk, over remoting, and for operators."""
    async with full_broker(tmp_path) as (client, remoting, _):
        created = admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name="big", read_queue_count=100))
        moved = v2.UpdateOffsetRequest(group=resource("idle"), offset=0)
        moved.message_queue.CopyFrom(v2.MessageQueue(topic=resource("old"), id=0))
        grown = admin_v1.UpdateTopicRequest(name="old", read_queue_count=100, write_queue_count=100)
        statuses = [
            (await client.send(message("new"))).status,
            (await client.route("new")).status,
            (await client.admin.CreateTopic(created, timeout=20)).status,
            (await client.admin.UpdateTopic(grown, timeout=20)).status,
            (await client.receive("new", "used")).responses[-1].status,
            (await client.receive("old", "new")).responses[-1].status,
            (await client.receive("old", "idle")).responses[-1].status,
            (await client.call("UpdateOffset", moved)).status,
        ]
        service: Any = records_v1.RecordServiceStub(client.channel)
        request = records_v1.AppendRecordsRequest(topic=resource("new"), queue_id=0, records=draft("new"))
        statuses.append((await service.AppendRecords(request, metadata=METADATA, timeout=20)).status)
        for status in statuses:
            assert status.code == Code.TOO_MANY_REQUESTS, status
            assert SETTING in status.message
        lite = (await client.send(message("parent", message_type=v2.MessageType.LITE, lite_topic="a"))).status
        assert lite.code == Code.LITE_TOPIC_QUOTA_EXCEEDED, lite
        assert SETTING in lite.message
        place = {"consumerGroup": "idle", "topic": "old", "queueId": 0, "commitOffset": 0}
        topics = {"topicConfigList": [{"topicName": "new", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]}
        answers = [
            await remoting.call(Request.SEND_MESSAGE_V2, send_fields("new"), b"x"),
            await remoting.call(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, topics),
            await remoting.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, {"groupName": "new"}),
            await remoting.call(Request.PULL_MESSAGE, pull_fields("old", group="new")),
            await remoting.call(Request.UPDATE_CONSUMER_OFFSET, place),
        ]
        for answer in answers:
            assert answer.code == Answer.SYSTEM_BUSY, answer
            assert SETTING in str(answer.remark)


async def test_what_exists_goes_on(tmp_path: Path) -> None:
    """Sends, receives, acknowledgements, dead letters and redeliveries of what was there lose no message."""
    async with full_broker(tmp_path) as (client, remoting, _):
        await client.sent(message("old"))
        await client.sent(message("old"))
        sent = await remoting.call(Request.SEND_MESSAGE_V2, send_fields("old"), b"x")
        assert sent.code == Answer.SUCCESS, sent
        received = await client.receive_all("old", "used", 3)
        assert len(received) == 3
        dead, done, again = received
        assert await client.forward("old", "used", dead.system_properties.receipt_handle) == Code.OK
        assert (await client.acknowledge("old", "used", done)).status.code == Code.OK
        await client.change("old", "used", again.system_properties.receipt_handle, 0.1)
        assert len(await client.receive_all("old", "used", 1)) == 1
        pulled = await remoting.call(Request.PULL_MESSAGE, pull_fields("old", group="used"))
        assert pulled.code == Answer.SUCCESS, pulled
        (record,) = records(pulled.body)[:1]
        fields = {"offset": record.physical_offset, "group": "used", "delayLevel": -1, "originTopic": "old"}
        returned = await remoting.call(Request.CONSUMER_SEND_MESSAGE_BACK, fields)
        assert returned.code == Answer.SUCCESS, returned


async def test_an_operator_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `aerobee problems`, from the next look on."""
    monkeypatch.setattr(watch, "_LOOKS_EVERY", 1)
    async with full_broker(tmp_path) as (client, _, _):
        async with asyncio.timeout(60):
            while True:
                answer = await client.admin.GetProblems(admin_v1.GetProblemsRequest(), timeout=20)
                if found := [each for each in answer.problems if each.name == "AerobeeTablesFull"]:
                    break
                await asyncio.sleep(0.1)
        assert "limits.table_bytes_max" in found[0].next_step


async def test_an_operator_raises_the_limit(tmp_path: Path) -> None:
    """At once, without a restart."""
    async with full_broker(tmp_path) as (client, _, _):
        assert (await client.send(message("new"))).status.code == Code.TOO_MANY_REQUESTS
        await limit(client, 2 * LIMIT)
        await client.sent(message("new"))


async def test_what_is_deleted_leaves_space(tmp_path: Path) -> None:
    """Of a group with its positions, and of a topic with those in it."""

    async def used() -> dict[str, str]:
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{broker.metrics}/metrics").read())
        return dict(re.findall(r'aerobee_table_bytes{.*of="(\w+)"} (\S+)', text.decode()))

    async with remoting_broker(tmp_path) as (broker, _):
        client = RawClient(broker.channel)
        before = await used()
        assert float(before["deleted_topics"]) == 0
        for topic, group in (("a", "g"), ("b", "g"), ("a", "h")):
            await client.sent(message(topic))
            await client.receive(topic, group)
        full = await used()
        assert all(float(full[kind]) > float(before[kind]) for kind in ("topics", "groups", "offsets", "positions"))
        for group in ("g", "h"):
            answer = await client.admin.DeleteGroup(admin_v1.DeleteGroupRequest(name=group), timeout=20)
            assert answer.status.code == Code.OK
        for topic in ("a", "b"):
            answer = await client.admin.DeleteTopic(admin_v1.DeleteTopicRequest(name=topic), timeout=20)
            assert answer.status.code == Code.OK
        after = await used()
        noted = float(after["deleted_topics"])
        assert noted > 0
        assert {**after, "deleted_topics": before["deleted_topics"]} == before
    async with remoting_broker(tmp_path) as (broker, _):
        assert float((await used())["deleted_topics"]) == noted


async def test_what_stays_is_counted(tmp_path: Path) -> None:
    """The dead letters of a deleted group, and the queues of a topic that has fewer now, also after a restart."""

    async def topics(broker: InProcessBroker) -> int:
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{broker.metrics}/metrics").read())
        (found,) = re.findall(r'aerobee_table_bytes{.*of="topics"} (\S+)', text.decode())
        return int(float(found))

    async with remoting_broker(tmp_path) as (broker, remoting):
        client = RawClient(broker.channel)
        await client.create_topic("t", queues=9)
        for queue_id in range(9):
            sent = await remoting.call(Request.SEND_MESSAGE_V2, send_fields("t", queue_id=queue_id), b"x")
            assert sent.code == Answer.SUCCESS, sent
        before = await topics(broker)
        fewer = admin_v1.UpdateTopicRequest(name="t", read_queue_count=1, write_queue_count=1)
        assert (await client.admin.UpdateTopic(fewer, timeout=20)).status.code == Code.OK
        assert await topics(broker) == before
        await client.create_group("g")
        pulled = await remoting.call(Request.PULL_MESSAGE, pull_fields("t", group="g"))
        (record,) = records(pulled.body)
        fields = {"offset": record.physical_offset, "group": "g", "delayLevel": -1, "originTopic": "t"}
        assert (await remoting.call(Request.CONSUMER_SEND_MESSAGE_BACK, fields)).code == Answer.SUCCESS
        assert await topics(broker) == before
        answer = await client.admin.DeleteGroup(admin_v1.DeleteGroupRequest(name="g"), timeout=20)
        assert answer.status.code == Code.OK
        full = await topics(broker)
        assert full > before
    async with remoting_broker(tmp_path) as (broker, _):
        assert await topics(broker) == full


async def test_the_command_line_names_the_setting(tmp_path: Path) -> None:
    async with full_broker(tmp_path) as (_, _, endpoint):
        shell = Shell(endpoint)
        for what in ("topic", "group"):
            assert SETTING in await asyncio.to_thread(shell.error, what, "create", "new")


async def test_a_restart_loads_everything_and_leaves_half(tmp_path: Path) -> None:
    """Of a store that was filled under a larger limit: nothing is lost, and its users can go on."""
    large = LimitsConfig(table_bytes_max=100 * LIMIT)
    async with remoting_broker(tmp_path, limits=large) as (broker, _):
        client = RawClient(broker.channel)
        for number in range(30):
            await client.create_topic(f"t{number}", queues=8)
        await client.sent(message("t29"))
    async with remoting_broker(tmp_path, limits=LimitsConfig(table_bytes_max=LIMIT)) as (broker, _):
        client = RawClient(broker.channel)
        assert len(await client.receive_all("t29", "group", 1)) == 1
        await client.sent(message("new"))
        assert await refusal_of_fill(client)


@pytest.mark.parametrize("queue_id", [8, 1_000, (1 << 31) - 1, -1])
async def test_offsets_of_queues_that_do_not_exist_are_refused(tmp_path: Path, queue_id: int) -> None:
    """A hundred thousand of them took 27 MiB, without an end."""
    async with remoting_broker(tmp_path) as (broker, remoting):
        client = RawClient(broker.channel)
        await client.create_topic("old", queues=8)
        await client.create_group("used")
        place = {"consumerGroup": "used", "topic": "old", "queueId": queue_id}
        answer = await remoting.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 1})
        assert answer.code == Answer.INVALID_PARAMETER, answer
        assert "has 8 read queues" in str(answer.remark)
        last = await remoting.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "queueId": 7, "commitOffset": 1})
        assert last.code == Answer.SUCCESS, last
