"""Pulling through a real broker: the results of PullMessage, and committed offsets."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.filters import property_search
from aerobee_broker.processors.pull import PullProcessor
from aerobee_proto import v2
from aerobee_store.tables import java_json
from aerobee_store.testing import ManualClock
from tests.conformance.raw_client import RawClient, duration, message, resource
from tests.integration.test_retention import expire
from tests.support.delivery_harness import GROUP, TOPIC, Harness
from tests.support.in_process_broker import InProcessBroker, in_process_broker

Code = v2.Code
SQL = v2.FilterType.SQL


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[InProcessBroker]:
    """A broker that creates topics and groups on first use."""
    async with in_process_broker(tmp_path / "store") as broker:
        yield broker


@pytest.fixture
def client(broker: InProcessBroker) -> RawClient:
    """A client of that broker."""
    return RawClient(broker.channel)


def queue_of(topic: str, queue_id: int = 0) -> v2.MessageQueue:
    return v2.MessageQueue(topic=resource(topic), id=queue_id)


async def pulled(
    client: RawClient,
    topic: str,
    offset: int,
    *,
    group: str = "pullers",
    count: int = 32,
    wait: float = 0.0,
    expression: str = "*",
    filter_type: v2.FilterType.ValueType = v2.FilterType.TAG,
    queue_id: int = 0,
) -> tuple[int, list[str], int]:
    """Code, bodies and next offset, in the order of the stream."""
    request = v2.PullMessageRequest(
        group=resource(group),
        message_queue=queue_of(topic, queue_id),
        offset=offset,
        batch_size=count,
        filter_expression=v2.FilterExpression(type=filter_type, expression=expression),
        long_polling_timeout=duration(wait),
    )
    call = client.stub.PullMessage(request, metadata=client.metadata, timeout=20)
    first, *others = [response async for response in call]
    assert first.WhichOneof("content") == "status"
    if others:
        assert [each.WhichOneof("content") for each in others] == ["message"] * (len(others) - 1) + ["next_offset"]
    bodies = [each.message.body.decode() for each in others[:-1]]
    return first.status.code, bodies, others[-1].next_offset if others else -1


async def updated(client: RawClient, topic: str, group: str, offset: int, queue_id: int = 0) -> v2.Status:
    request = v2.UpdateOffsetRequest(group=resource(group), message_queue=queue_of(topic, queue_id), offset=offset)
    status: v2.Status = (await client.call("UpdateOffset", request)).status
    return status


async def committed(client: RawClient, topic: str, group: str, queue_id: int = 0) -> tuple[int, int]:
    """Code and offset."""
    request = v2.GetOffsetRequest(group=resource(group), message_queue=queue_of(topic, queue_id))
    response = await client.call("GetOffset", request)
    return response.status.code, response.offset


async def test_pull_changes_no_state(client: RawClient) -> None:
    """Any offset can be pulled repeatedly by any group, in batches, up to the end."""
    topic = await client.create_topic("orders")
    await client.sent(*(message(topic, f"{n}") for n in range(5)))
    assert await pulled(client, topic, 0, count=2) == (Code.OK, ["0", "1"], 2)
    assert await pulled(client, topic, 2, count=2) == (Code.OK, ["2", "3"], 4)
    assert await pulled(client, topic, 4) == (Code.OK, ["4"], 5)
    assert await pulled(client, topic, 5) == (Code.MESSAGE_NOT_FOUND, [], 5)
    assert await pulled(client, topic, 0, count=0) == (Code.OK, ["0"], 1)
    assert await pulled(client, topic, 0) == (Code.OK, ["0", "1", "2", "3", "4"], 5)
    assert (await client.receive(topic, "pullers")).bodies == ["0", "1", "2", "3", "4"]


async def test_filters(client: RawClient) -> None:
    """Filters by tag and by SQL; `next_offset` is behind the skipped messages."""
    topic = await client.create_topic("orders")
    for n in range(6):
        await client.sent(message(topic, f"{n}", tag="even" if n % 2 == 0 else "odd", properties={"n": f"{n}"}))
    assert await pulled(client, topic, 0, expression="odd", count=2) == (Code.OK, ["1", "3"], 5)
    assert await pulled(client, topic, 5, expression="odd || x") == (Code.OK, ["5"], 6)
    assert await pulled(client, topic, 0, expression="none") == (Code.MESSAGE_NOT_FOUND, [], 6)
    code, bodies, _ = await pulled(client, topic, 0, expression="n > 3 OR n = 1", filter_type=SQL)
    assert (code, bodies) == (Code.OK, ["1", "4", "5"])
    assert await pulled(client, topic, 0, expression="n > 9", filter_type=SQL) == (Code.MESSAGE_NOT_FOUND, [], 6)
    assert (await pulled(client, topic, 0, expression="n >", filter_type=SQL))[0] == Code.ILLEGAL_FILTER_EXPRESSION


async def test_one_arrival_ends_the_wait_of_all(broker: InProcessBroker, client: RawClient) -> None:
    """Two pulls of one group and one of another wait for the same queue, a fourth for another queue."""
    topic = await client.create_topic("orders", queues=2)
    waiting = [
        asyncio.create_task(pulled(each, topic, 0, wait=19, group=group, queue_id=queue_id))
        for each, group, queue_id in (
            (client, "a", 0),
            (client.other(), "a", 0),
            (client, "b", 0),
            (client.other(), "a", 1),
        )
    ]
    await broker.waiting(4)
    sent = 0
    while not (waiting[0].done() and waiting[3].done()):  # the broker chooses the queue
        sent += len(await client.sent(message(topic, "m")))
        await asyncio.sleep(0.05)
        assert sent < 50
    for code, bodies, next_offset in await asyncio.gather(*waiting):
        assert (code, bodies, next_offset) == (Code.OK, ["m"], 1)


async def test_a_wait_continues_after_filtered_messages(client: RawClient) -> None:
    """A message that does not match does not end the wait; the next one does, and the offset is behind both."""
    topic = await client.create_topic("orders")
    waiting = asyncio.create_task(pulled(client, topic, 0, wait=15, expression="a"))
    await asyncio.sleep(0.1)
    await client.sent(message(topic, "no", tag="b"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await client.sent(message(topic, "yes", tag="a"))
    assert await waiting == (Code.OK, ["yes"], 2)


async def test_termination_of_the_client_ends_the_wait(client: RawClient) -> None:
    """NotifyClientTermination ends it with MESSAGE_NOT_FOUND, long before its timeout."""
    topic = await client.create_topic("orders")
    waiting = asyncio.create_task(pulled(client, topic, 0, wait=19))
    await asyncio.sleep(0.5)
    assert await client.goodbye() == Code.OK
    async with asyncio.timeout(60):
        assert await waiting == (Code.MESSAGE_NOT_FOUND, [], 0)


@pytest.mark.parametrize("method", ["QueryOffset", "GetOffset", "UpdateOffset", "PullMessage"])
async def test_invalid_queues(client: RawClient, method: str) -> None:
    """An illegal topic, and queue ids that the topic does not have."""
    topic = await client.create_topic("orders", queues=2)
    await client.create_topic("closed", permission=v2.Permission.WRITE)
    for queue, expected in (
        (queue_of("a b"), Code.ILLEGAL_TOPIC),
        (queue_of(topic, 2), Code.BAD_REQUEST),
        (queue_of(topic, -1), Code.BAD_REQUEST),
        (queue_of("closed"), Code.FORBIDDEN),
    ):
        request: Any = getattr(v2, f"{method}Request")(message_queue=queue)
        if method != "QueryOffset":
            request.group.CopyFrom(resource("g"))
        if method == "PullMessage":
            call = client.stub.PullMessage(request, metadata=client.metadata, timeout=20)
            status = (await call.read()).status
        else:
            status = (await client.call(method, request)).status
        assert status.code == expected, status


async def test_an_answered_offset_is_on_disk(tmp_path: Path) -> None:
    """The file contains it when the answer comes, and a broker started from a copy of the files uses it."""
    async with in_process_broker(tmp_path / "store") as broker:
        client = RawClient(broker.channel)
        topic = await client.create_topic("orders")
        await client.sent(*(message(topic, f"{n}") for n in range(4)))
        for offset in (3, 2):
            assert (await updated(client, topic, "g", offset)).code == Code.OK
            table = java_json.loads((tmp_path / "store" / "config" / "consumerOffset.json").read_bytes())
            assert isinstance(table, dict)
            assert table["offsetTable"]["orders@g"] == {"0": offset}
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    async with in_process_broker(tmp_path / "copy") as broker:
        client = RawClient(broker.channel)
        assert await committed(client, topic, "g") == (Code.OK, 2)
        assert (await client.receive(topic, "g", wait=5)).bodies == ["2", "3"], "who receives goes on there, too"


async def test_the_offset_of_a_group_that_receives(client: RawClient) -> None:
    """The offset follows acknowledgements; setting it revokes messages in flight."""
    topic = await client.create_topic("orders")
    await client.sent(*(message(topic, f"{n}") for n in range(3)))
    received = await client.receive(topic, "g", count=2, wait=5)
    await client.acknowledge(topic, "g", received.messages[0])
    assert await committed(client, topic, "g") == (Code.OK, 1)
    assert (await updated(client, topic, "g", 0)).code == Code.OK
    assert await committed(client, topic, "g") == (Code.OK, 0)
    refused = await client.acknowledge(topic, "g", received.messages[1])
    assert refused.status.code == Code.INVALID_RECEIPT_HANDLE
    again = await client.receive(topic, "g", wait=5)
    assert (again.bodies, set(again.attempts.values())) == (["0", "1", "2"], {1})
    assert (await updated(client, topic, "g", 3)).code == Code.OK
    assert await committed(client, topic, "g") == (Code.OK, 3)
    assert (await client.receive(topic, "g")).code == Code.MESSAGE_NOT_FOUND


async def test_a_reset_offset_survives_replays(tmp_path: Path) -> None:
    """A group that once received sets its offset back; events from before the snapshot do not change it."""
    harness = await Harness.start(tmp_path / "store", ManualClock())
    try:
        await harness.send("a", "b", "c")
        await harness.acknowledge(*await harness.receive())
        harness = await harness.restart()
        await harness.deliveries.reset(TOPIC, GROUP, {0: 1})
        harness = await harness.crash()
        assert harness.tables.offsets.get(TOPIC, GROUP, 0) == 1
        assert sorted(each.record.body for each in await harness.receive()) == [b"b", b"c"]
    finally:
        await harness.stop()


async def test_an_offset_that_expired(tmp_path: Path) -> None:
    """ILLEGAL_OFFSET and the queue's new first offset, which QueryOffset also returns."""
    harness = await Harness.start(tmp_path / "store", ManualClock())
    processor = PullProcessor(
        Settings(harness.config), harness.store, harness.tables, harness.deliveries, harness.counters, harness.clock
    )
    client = Client("c")
    try:
        await harness.send("old")
        await expire(harness, 3)
        await harness.send("later")
        begin = await processor.query_offset(v2.QueryOffsetRequest(message_queue=queue_of(TOPIC)), client)
        assert begin.offset == 1
        request = v2.PullMessageRequest(group=resource(GROUP), message_queue=queue_of(TOPIC), offset=0, batch_size=9)
        status, end = [each async for each in processor.pull(request, client, None)]
        assert (status.status.code, end.next_offset) == (Code.ILLEGAL_OFFSET, 1)
        request.offset = end.next_offset
        status, found, end = [each async for each in processor.pull(request, client, None)]
        assert (status.status.code, found.message.body, end.next_offset) == (Code.OK, b"later", 2)
    finally:
        await harness.stop()


async def test_a_search_for_matches_ends_with_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If many messages do not match: MESSAGE_NOT_FOUND in time, and the next pull continues behind them."""
    monkeypatch.setattr(property_search, "_WORK_MAX", 2 * 128)  # one property, one condition
    delivery = DeliveryConfig(poll_reserve_seconds=10)
    async with in_process_broker(tmp_path / "store", delivery=delivery) as broker:
        client = RawClient(broker.channel)
        topic = await client.create_topic("orders")
        await client.send(*(message(topic, f"{n}", properties={"n": f"{n}"}) for n in range(150)))
        request = v2.PullMessageRequest(
            group=resource("g"),
            message_queue=queue_of(topic),
            batch_size=2,
            filter_expression=v2.FilterExpression(type=SQL, expression="n = 149"),
        )
        # Less than the reserve is left: one step, then an answer.
        call = client.stub.PullMessage(request, metadata=client.metadata, timeout=delivery.poll_reserve_seconds * 0.9)
        answers = [response async for response in call]
        assert [each.WhichOneof("content") for each in answers] == ["status", "next_offset"]
        assert (answers[0].status.code, answers[1].next_offset) == (Code.MESSAGE_NOT_FOUND, 128)
        assert await pulled(client, topic, 128, expression="n = 149", filter_type=SQL) == (Code.OK, ["149"], 150)


async def test_too_many_waiting_pulls(tmp_path: Path) -> None:
    """A pull above the limit gets TOO_MANY_REQUESTS."""
    async with in_process_broker(tmp_path / "store", delivery=DeliveryConfig(waiting_max=2)) as broker:
        client = RawClient(broker.channel)
        topic = await client.create_topic("orders")
        pulls = [asyncio.create_task(pulled(client, topic, 0, wait=15)) for _ in range(3)]
        done, waiting = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result()[0] for each in done] == [Code.TOO_MANY_REQUESTS]
        await client.goodbye()
        await asyncio.gather(*waiting)


async def test_strict_filters(tmp_path: Path) -> None:
    """Without automatic creation, topic and group must exist; querying an offset needs no group."""
    async with in_process_broker(tmp_path / "store", dev=False) as broker:
        client = RawClient(broker.channel)
        assert (await pulled(client, "orders", 0))[0] == Code.TOPIC_NOT_FOUND
        topic = await client.create_topic("orders")
        assert (await pulled(client, topic, 0))[0] == Code.CONSUMER_GROUP_NOT_FOUND
        assert (await updated(client, topic, "g", 0)).code == Code.CONSUMER_GROUP_NOT_FOUND
        assert (await committed(client, topic, "g"))[0] == Code.OFFSET_NOT_FOUND
        await client.create_group("g")
        assert await pulled(client, topic, 0, group="g") == (Code.MESSAGE_NOT_FOUND, [], 0)
