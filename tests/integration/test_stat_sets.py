"""RocketMQ's stat sets of queues, and of groups that are behind, after known work through both protocols."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.statistics import broker_stats
from aerobee_proto import records_v1, v2
from aerobee_store import Record, StoreConfig
from tests.conformance.cluster.test_send import batch
from tests.conformance.raw_client import RawClient, resource
from tests.integration.test_records import append_request, packed, some
from tests.support.in_process_broker import InProcessBroker
from tests.support.remoting_client import (
    RemotingClient,
    json_body,
    pull_fields,
    records,
    remoting_broker,
    send,
    send_fields,
)

TOPIC = "Orders"
GROUP = "CG"
QUEUES = range(4)


class Work:
    """A broker with a topic of four queues, and its clients of both protocols."""

    def __init__(self, broker: InProcessBroker, client: RemotingClient) -> None:
        self.client = client
        self.raw = RawClient(broker.channel)
        self.records: Any = records_v1.RecordServiceStub(broker.channel)  # its asyncio type is only in stub files

    async def stats(self, name: str, key: str) -> Mapping[str, Any]:
        """The entry of a stat set; of the day, so that no time that a loaded machine takes changes it."""
        answer = await self.client.call(Request.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        assert answer.code == Answer.SUCCESS, answer.remark
        found: Mapping[str, Any] = json_body(answer)["statsDay"]
        return found

    async def sums(self, name: str, *keys: str) -> list[int]:
        return [int((await self.stats(name, key))["sum"]) for key in keys]

    async def stored(self, queue_id: int) -> list[Record]:
        """All messages of a queue, pulled by a group of its own."""
        found: list[Record] = []
        while True:
            fields = pull_fields(TOPIC, queue_id=queue_id, group="other", offset=len(found), suspendTimeoutMillis=0)
            answer = await self.client.call(Request.PULL_MESSAGE, fields)
            if answer.code != Answer.SUCCESS:
                return found
            found += records(answer.body)

    async def pull(self, queue_id: int, offset: int = 0, count: int = 32) -> list[Record]:
        fields = pull_fields(TOPIC, queue_id=queue_id, group=GROUP, offset=offset, maxMsgNums=count)
        answer = await self.client.call(Request.PULL_MESSAGE, fields)
        assert answer.code == Answer.SUCCESS, answer.remark
        return records(answer.body)

    async def pop(self, count: int = 32) -> list[Record]:
        fields = {
            **{"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": count, "invisibleTime": 60_000},
            **{"pollTime": 0, "bornTime": int(time.time() * 1000), "initMode": 0, "exp": "*", "expType": "TAG"},
        }
        answer = await self.client.call(Request.POP_MESSAGE, fields)
        assert answer.code == Answer.SUCCESS, answer.remark
        return records(answer.body)

    async def pull_by_grpc(self, queue_id: int) -> list[v2.PullMessageResponse]:
        """The responses that have a message."""
        queue = v2.MessageQueue(topic=resource(TOPIC), id=queue_id)
        request = v2.PullMessageRequest(group=resource(GROUP), message_queue=queue, offset=0, batch_size=32)
        call = self.raw.stub.PullMessage(request, metadata=self.raw.metadata, timeout=60)
        return [response async for response in call if response.HasField("message")]

    async def read(self, queue_id: int) -> list[Any]:
        """The frames of ReadRecords."""
        request = records_v1.ReadRecordsRequest(
            topic=resource(TOPIC), queue_id=queue_id, group=resource(GROUP), include_unflushed=True
        )
        call = self.records.ReadRecords(request, metadata=self.raw.metadata, timeout=60)
        return [frame async for frame in call if not frame.HasField("status")]


def _store(directory: Path) -> StoreConfig:
    """Without the checksum of records, which clients do not get: sizes are then the same on the wire and in the log."""
    return replace(StoreConfig.tiny(directory), property_crc=False)


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[Work]:
    async with remoting_broker(tmp_path, store=_store(tmp_path)) as (broker, client):
        yield Work(broker, client)


def message(number: int, **system: Any) -> v2.Message:
    kind = system.pop("message_type", v2.MessageType.NORMAL)
    properties = v2.SystemProperties(message_id=f"01{number:030X}", message_type=kind, **system)
    return v2.Message(topic=resource(TOPIC), body=b"x" * number, system_properties=properties)


async def send_in_all_ways(work: Work) -> int:
    """Returns the number of requests that stored messages."""
    await send(work.client, TOPIC, b"1", e=1)
    three = batch((b"one", ""), (b"two", ""), (b"three", ""))
    await work.client.call(Request.SEND_BATCH_MESSAGE, send_fields(TOPIC, m=True, e=1), three)
    await work.raw.sent(message(1))
    await work.raw.send(*(message(number) for number in range(2, 50)))
    await work.raw.send(message(50, message_group="a"), message(51), message(52, message_group="b"))
    [half] = await work.raw.sent(message(53, message_type=v2.MessageType.TRANSACTION))
    assert await work.raw.end_transaction(TOPIC, half, v2.TransactionResolution.COMMIT) == v2.Code.OK
    fields = send_fields(TOPIC, properties="TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1", e=2)
    place = (await work.client.call(Request.SEND_MESSAGE_V2, fields, b"half")).fields
    end = {
        **{"producerGroup": "PG", "tranStateTableOffset": place["queueOffset"], "commitOrRollback": 8},
        **{"commitLogOffset": int(place["msgId"][-16:], 16), "fromTransactionCheck": False, "transactionId": "U1"},
    }
    assert (await work.client.call(Request.END_TRANSACTION, end)).code == Answer.SUCCESS
    request = append_request(b"".join(packed(some(5, TOPIC, queue_id=1))), TOPIC, queue_id=1)
    appended = await work.records.AppendRecords(request, metadata=work.raw.metadata, timeout=60)
    assert appended.status.code == v2.Code.OK, appended.status
    return 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1


async def test_messages_put_into_a_queue(work: Work) -> None:
    """QUEUE_PUT_NUMS has all messages of each queue, whoever sent them and however many at a time."""
    requests = await send_in_all_ways(work)
    stored = [len(await work.stored(queue_id)) for queue_id in QUEUES]
    assert sum(stored) >= 60
    assert await work.sums("QUEUE_PUT_NUMS", *(f"{TOPIC}@{queue_id}" for queue_id in QUEUES)) == stored
    assert await work.sums("TOPIC_PUT_NUMS", TOPIC) == [sum(stored)]
    assert await work.sums("QUEUE_PUT_NUMS", f"{TOPIC}@9", TOPIC, f"none@{0}", f"{TOPIC}@x", "@") == [0] * 5
    times = 0
    for queue_id in QUEUES:
        found = await work.stats("QUEUE_PUT_NUMS", f"{TOPIC}@{queue_id}")
        times += round(found["sum"] / found["avgpt"]) if found["sum"] else 0
    assert requests <= times <= requests + 2, "one of the requests sends to up to three queues"


async def test_bytes_put_into_a_queue(work: Work) -> None:
    """QUEUE_PUT_SIZE has the bytes of their records."""
    await send_in_all_ways(work)
    sizes = [sum(len(frame.records) for frame in await work.read(queue_id)) for queue_id in QUEUES]
    assert await work.sums("QUEUE_PUT_SIZE", *(f"{TOPIC}@{queue_id}" for queue_id in QUEUES)) == sizes


async def _send_some(work: Work) -> None:
    """Three messages to queue 0, and one to queue 1."""
    for queue_id in (0, 0, 0, 1):
        assert (await send(work.client, TOPIC, b"x" * 100, e=queue_id)).code == Answer.SUCCESS


def _keys() -> tuple[str, str]:
    return f"{TOPIC}@0@{GROUP}", f"{TOPIC}@1@{GROUP}"


async def test_messages_got_from_a_queue(work: Work) -> None:
    """QUEUE_GET_NUMS has what pulls, POP, receives and ReadRecords deliver to a group, by queue."""
    await _send_some(work)
    expected: Counter[int] = Counter()
    for queue_id in (0, 1):
        expected[queue_id] += len(await work.pull(queue_id))
        expected[queue_id] += len(await work.pull_by_grpc(queue_id))
        await work.read(queue_id)
        expected[queue_id] += 3 if queue_id == 0 else 1
        assert await work.sums("QUEUE_GET_NUMS", *_keys()) == [expected[0], expected[1]]
    popped = await work.pop(2)
    received = (await work.raw.receive(TOPIC, GROUP, wait=5.0)).messages
    assert len(popped) + len(received) == 4
    expected.update(record.queue_id for record in popped)
    expected.update(each.system_properties.queue_id for each in received)
    assert await work.sums("QUEUE_GET_NUMS", *_keys()) == [expected[0], expected[1]] == [12, 4]
    assert await work.sums("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}") == [16]
    assert await work.sums("QUEUE_GET_NUMS", f"{TOPIC}@0@none", f"0@{TOPIC}@{GROUP}") == [0, 0]


async def test_bytes_got_from_a_queue(work: Work) -> None:
    """QUEUE_GET_SIZE has the bytes on the wire, as GROUP_GET_SIZE has them for the group."""
    await _send_some(work)
    sizes = [0, 0]
    for queue_id in (0, 1):
        sizes[queue_id] += sum(record.size for record in await work.pull(queue_id))
        sizes[queue_id] += sum(response.ByteSize() for response in await work.pull_by_grpc(queue_id))
        sizes[queue_id] += sum(len(frame.records) for frame in await work.read(queue_id))
    for record in await work.pop(2):
        sizes[record.queue_id] += record.size
    received = await work.raw.receive(TOPIC, GROUP, wait=5.0)
    for response in received.responses:
        if response.HasField("message"):
            sizes[response.message.system_properties.queue_id] += response.ByteSize()
    assert await work.sums("QUEUE_GET_SIZE", *_keys()) == sizes
    assert await work.sums("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}") == [sum(sizes)]


@pytest.fixture
async def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Work]:
    """A broker whose memory has nothing of the log that it opened: three messages in queue 0, one in queue 1."""
    async with remoting_broker(tmp_path, store=_store(tmp_path)) as (broker, client):
        await _send_some(Work(broker, client))
    monkeypatch.setattr(broker_stats, "_MEMORY_SHARE", 0.0)
    monkeypatch.setattr(broker_stats, "SAMPLE_SECONDS", 3600.0)
    async with remoting_broker(tmp_path, store=_store(tmp_path)) as (broker, client):
        yield Work(broker, client)


async def _get_in_all_ways(work: Work) -> list[int]:
    """Get all messages in five ways; returns the sizes of the records of queue 0 that are old."""
    old = [record.size for record in await work.stored(0)]
    assert (await send(work.client, TOPIC, b"new", e=0)).code == Answer.SUCCESS
    assert len(await work.pull(0)) == 4
    assert len(await work.pull_by_grpc(0)) == 4
    return old


async def test_messages_got_from_the_disk(later: Work) -> None:
    """GROUP_GET_FROM_DISK_NUMS has the messages before the part of the log that memory has."""
    key = f"{TOPIC}@{GROUP}"
    await _get_in_all_ways(later)
    assert await later.sums("GROUP_GET_FROM_DISK_NUMS", key) == [2 * 3]
    await later.read(1)
    assert await later.sums("GROUP_GET_FROM_DISK_NUMS", key) == [2 * 3 + 1]
    assert len(await later.pop()) + len((await later.raw.receive(TOPIC, GROUP, wait=0.0)).messages) == 5
    assert await later.sums("GROUP_GET_FROM_DISK_NUMS", key, f"{TOPIC}@none") == [2 * 3 + 1 + 4, 0]
    assert await later.sums("BROKER_GET_FROM_DISK_NUMS", "any") == [2 * 3 + 1 + 4 + 3], "the group `other` got three"
    assert await later.sums("GROUP_GET_NUMS", key) == [2 * 4 + 1 + 5]


async def test_bytes_got_from_the_disk(later: Work) -> None:
    """GROUP_GET_FROM_DISK_SIZE has the bytes of their records."""
    key = f"{TOPIC}@{GROUP}"
    old = await _get_in_all_ways(later)
    assert await later.sums("GROUP_GET_FROM_DISK_SIZE", key) == [2 * sum(old)]
    assert await later.sums("BROKER_GET_FROM_DISK_SIZE", "any") == [3 * sum(old)], "the group `other` got them, too"
    [frame] = await later.read(1)
    assert await later.sums("GROUP_GET_FROM_DISK_SIZE", key) == [2 * sum(old) + len(frame.records)]


async def test_nothing_comes_from_the_disk_while_memory_has_the_log(work: Work) -> None:
    """GROUP_GET_FROM_DISK_NUMS stays 0 for a log of less than 40 % of the memory."""
    await _send_some(work)
    await work.pull(0)
    assert await work.sums("GROUP_GET_FROM_DISK_NUMS", f"{TOPIC}@{GROUP}") == [0]


async def _commit(work: Work, offset: int) -> None:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": offset}
    assert (await work.client.call(Request.UPDATE_CONSUMER_OFFSET, fields)).code == Answer.SUCCESS


async def _log_end(work: Work) -> int:
    return int(json_body(await work.client.call(Request.GET_BROKER_RUNTIME_INFO))["table"]["commitLogMaxOffset"])


async def test_bytes_that_a_group_is_behind(work: Work) -> None:
    """GROUP_GET_FALL_SIZE has the bytes of the log from the first message of a queue that the group has not seen."""
    await _send_some(work)
    places = [record.physical_offset for record in await work.stored(0)]
    await work.pull(0)  # creates the group
    key = f"0@{TOPIC}@{GROUP}"
    assert await work.sums("GROUP_GET_FALL_SIZE", key) == [0], "it has no position yet"
    await _commit(work, 1)
    before = await _log_end(work)
    [size] = await work.sums("GROUP_GET_FALL_SIZE", key)
    assert before <= places[1] + size <= await _log_end(work)
    found = await work.stats("GROUP_GET_FALL_SIZE", key)
    assert (found["tps"], found["avgpt"]) == (0, found["sum"])
    await _commit(work, 3)
    assert await work.sums("GROUP_GET_FALL_SIZE", key, f"0@{TOPIC}@none", f"9@{TOPIC}@{GROUP}", "x") == [0] * 4


async def test_time_that_a_group_is_behind(work: Work) -> None:
    """GROUP_GET_FALL_TIME has the milliseconds since that message was stored. A group that receives has seen what is
    delivered to it."""
    await _send_some(work)
    stored = [record.store_timestamp for record in await work.stored(0)]
    await work.pull(0)
    key = f"0@{TOPIC}@{GROUP}"
    await _commit(work, 2)
    before = time.time_ns() // 1_000_000
    [milliseconds] = await work.sums("GROUP_GET_FALL_TIME", key)
    assert before - stored[2] <= milliseconds <= time.time_ns() // 1_000_000 - stored[2]
    assert {record.queue_offset for record in await work.pop() if record.queue_id == 0} == {2}
    assert await work.sums("GROUP_GET_FALL_TIME", key) == [0]
