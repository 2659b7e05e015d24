"""Delayed messages through a real broker's port: delivery in time, recall, restarts."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import LimitsConfig
from aerobee_proto import admin_v1, v2
from tests.conformance.raw_client import BUSY_MACHINE_FACTOR
from tests.support.in_process_broker import METADATA, InProcessBroker, in_process_broker, message

Code = v2.Code
TOPICS = {
    "later": [v2.MessageType.DELAY],
    "mixed": [v2.MessageType.NORMAL, v2.MessageType.FIFO, v2.MessageType.DELAY, v2.MessageType.TRANSACTION],
    "other": [v2.MessageType.DELAY],
    "plain": [v2.MessageType.NORMAL],
}


async def create_topics(broker: InProcessBroker) -> None:
    for name, types in TOPICS.items():
        topic = admin_v1.Topic(name=name, read_queue_count=2, accept_message_types=types)
        response = await broker.administration.CreateTopic(admin_v1.CreateTopicRequest(topic=topic), timeout=60)
        assert response.status.code == Code.OK, response.status


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[InProcessBroker]:
    async with in_process_broker(tmp_path / "store") as broker:
        await create_topics(broker)
        yield broker


def at(seconds: float) -> v2.Timestamp:
    """The time this many seconds from now."""
    timestamp = v2.Timestamp()
    timestamp.FromMilliseconds(time.time_ns() // 1_000_000 + round(seconds * 1000))
    return timestamp


async def send(broker: InProcessBroker, topic: str, body: bytes = b"hello", **system: Any) -> v2.SendMessageResponse:
    request = v2.SendMessageRequest(messages=[message(topic, body, f"id-{body.decode()}", **system)])
    response: v2.SendMessageResponse = await broker.messaging.SendMessage(request, metadata=METADATA, timeout=60)
    return response


async def receive(broker: InProcessBroker, topic: str, seconds: float = 20.0) -> list[v2.Message]:
    """Messages that arrive within `seconds`."""
    request = v2.ReceiveMessageRequest(group=v2.Resource(name="group"), batch_size=32)
    request.message_queue.topic.name = topic
    request.invisible_duration.FromSeconds(60)
    request.long_polling_timeout.FromMilliseconds(round(seconds * 1000))
    answers = broker.messaging.ReceiveMessage(request, metadata=METADATA, timeout=seconds + 30)
    return [answer.message async for answer in answers if answer.HasField("message")]


async def recall(broker: InProcessBroker, topic: str, handle: str) -> v2.RecallMessageResponse:
    request = v2.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=handle)
    response: v2.RecallMessageResponse = await broker.messaging.RecallMessage(request, metadata=METADATA, timeout=60)
    return response


@pytest.mark.parametrize("topic", ["later", "mixed"])
async def test_delayed_message_wakes_a_waiting_receive_in_time(broker: InProcessBroker, topic: str) -> None:
    """It arrives when due, at most a second late, as DELAY and with its delivery timestamp."""
    due = at(0.7)
    response = await send(broker, topic, delivery_timestamp=due)
    assert response.status.code == Code.OK
    assert response.entries[0].recall_handle
    [received] = await receive(broker, topic)
    now_ms = time.time_ns() // 1_000_000
    assert due.ToMilliseconds() <= now_ms < due.ToMilliseconds() + 1000 * BUSY_MACHINE_FACTOR
    system = received.system_properties
    assert (system.message_type, system.delivery_timestamp, system.delivery_attempt) == (v2.MessageType.DELAY, due, 1)
    assert (received.body, dict(received.user_properties)) == (b"hello", {})
    assert system.message_id == "id-hello"


async def test_past_is_delivered_at_once(broker: InProcessBroker) -> None:
    """A due time in the past delivers at once, without a recall handle."""
    response = await send(broker, "later", delivery_timestamp=at(-60))
    assert (response.status.code, response.entries[0].recall_handle) == (Code.OK, "")
    [received] = await receive(broker, "later")
    assert received.system_properties.message_type == v2.MessageType.DELAY


async def test_topic_types_and_delayed_messages(broker: InProcessBroker) -> None:
    """Other topic types refuse delayed messages, a DELAY topic refuses undelayed ones; MIXED accepts both."""
    conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert (await send(broker, "plain", delivery_timestamp=at(60))).status.code == conflict
    assert (await send(broker, "later")).status.code == conflict
    normal = await send(broker, "mixed")
    assert (normal.status.code, normal.entries[0].recall_handle) == (Code.OK, "")
    assert (await recall(broker, "plain", "x")).status.code == conflict


async def test_too_far_ahead(tmp_path: Path) -> None:
    """ILLEGAL_DELIVERY_TIME beyond the limit, which is set in seconds."""
    async with in_process_broker(tmp_path / "store", limits=LimitsConfig(delay_seconds_max=60)) as broker:
        await create_topics(broker)
        assert (await send(broker, "later", delivery_timestamp=at(70))).status.code == Code.ILLEGAL_DELIVERY_TIME
        assert (await send(broker, "later", delivery_timestamp=at(50))).status.code == Code.OK


async def test_bad_handles(broker: InProcessBroker) -> None:
    """Malformed, of another topic, or of a message that never existed: BAD_REQUEST, which SDKs report as an error."""
    response = await send(broker, "other", delivery_timestamp=at(60))
    handle = response.entries[0].recall_handle
    texts = ["", "x", "ü", "djEgYQ==", "v1 later aerobee 1 id", handle[:-3], "A" * 100_000]
    texts += [base64.urlsafe_b64encode(text).decode() for text in (b"v2 later b 1 id", b"v1 later b soon id", b"\xff")]
    for text in texts:
        assert (await recall(broker, "later", text)).status.code == Code.BAD_REQUEST, text
    assert (await recall(broker, "later", handle)).status.code == Code.BAD_REQUEST
    unknown = base64.urlsafe_b64encode(b"v1 later aerobee 9999999999999 nobody").decode()
    assert (await recall(broker, "later", unknown)).status.code == Code.BAD_REQUEST
    assert (await recall(broker, "nowhere-else", unknown)).status.code != Code.OK


async def test_restart_keeps_pending_messages(tmp_path: Path) -> None:
    """Messages that became due while the broker was down come at once, the others when due."""
    async with in_process_broker(tmp_path / "store") as broker:
        await create_topics(broker)
        await send(broker, "later", b"soon", delivery_timestamp=at(0.2))
        due = at(1.5)
        await send(broker, "later", b"then", delivery_timestamp=due)
        await send(broker, "later", b"far", delivery_timestamp=at(3000))
    await asyncio.sleep(0.3)
    async with in_process_broker(tmp_path / "store") as broker:
        found: list[bytes] = []
        while len(found) < 2:  # one by one, unless both became due during the start
            found += [item.body for item in await receive(broker, "later")]
        assert sorted(found) == [b"soon", b"then"]
        assert time.time_ns() // 1_000_000 >= due.ToMilliseconds()
        assert await receive(broker, "later", 0.3) == []
