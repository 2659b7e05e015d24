"""Priority topics on a real store: delivery order, read-ahead limits, and recovery after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_broker.delivery.receive.receive_plan import ReceiveRequest
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType
from aerobee_store.records.message_fields import PRIORITY_PROPERTY
from aerobee_store.records.properties import UNIQ_KEY
from aerobee_store.records.record import Message
from tests.support.delivery_harness import GROUP, Harness, Start
from tests.support.saved_tables import saved

URGENT = "urgent"


@pytest.fixture
def start(start: Start) -> Start:
    """Starts harnesses with a priority topic of two queues."""

    async def start_harness(**settings: Any) -> Harness:
        harness = await start(**settings)
        harness.tables.topics.create(TopicConfig.of_type(URGENT, TopicMessageType.PRIORITY, queue_count=2))
        await harness.tables.save()
        return harness

    return start_harness


async def send(harness: Harness, *priorities: int, queue_id: int = 0) -> None:
    """Send one message for each priority; its body is the priority."""
    messages = []
    for priority in priorities:
        properties = {UNIQ_KEY: f"id-{priority}", PRIORITY_PROPERTY: str(priority)}
        messages.append(Message(topic=URGENT, queue_id=queue_id, body=f"{priority}".encode(), properties=properties))
    await harness.store.wait_stored(harness.store.append(messages)[-1].end)


def priorities(messages: list[DeliveredMessage]) -> list[int]:
    return [int(message.record.body) for message in messages]


async def test_equal_priorities_are_delivered_by_age(start: Start) -> None:
    """Messages of equal priority are delivered by age across all queues. A missing priority counts as 0."""
    harness = await start()
    for number in range(6):
        await harness.send(f"{number}", topic=URGENT, queue_id=number % 2)
    assert priorities(await harness.receive(4, topic=URGENT)) == [0, 1, 2, 3]
    assert priorities(await harness.receive(4, topic=URGENT)) == [4, 5]


async def test_compared_messages_are_bounded(start: Start) -> None:
    """Only a limited number of messages is compared. A higher priority beyond the limit has to wait."""
    harness = await start(priority_waiting_max=3)
    await send(harness, 1, 2, 3, 9, 4)
    received = [priorities(await harness.receive(1, topic=URGENT))[0] for _ in range(5)]
    assert received == [3, 9, 4, 2, 1]


async def test_a_long_backlog_is_compared_before_the_first_delivery(start: Start) -> None:
    """The whole backlog is compared, over several turns if needed. At the time limit the best one is delivered."""
    harness = await start()
    await send(harness, *([1] * 1000), 9)
    [best] = await harness.receive(1, topic=URGENT, group="audit")
    assert priorities([best]) == [9]
    harness.connected.add("c")
    request = ReceiveRequest(
        topic=URGENT, group=GROUP, client_id="c", count=1, invisible_ms=1000, wait_seconds=0, look_seconds=0
    )
    [soon] = await harness.deliveries.receive(request)
    assert priorities([soon]) == [1]


@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_the_order_survives_a_restart(start: Start, end: str) -> None:
    """Messages read ahead, in flight and acknowledged are restored."""
    harness = await start()
    await send(harness, 1, 5, 3, 4, 2)
    five, four = await harness.receive(2, topic=URGENT, seconds=30)
    await harness.acknowledge(five, topic=URGENT)
    harness = await getattr(harness, end)()
    assert priorities(await harness.receive(1, topic=URGENT)) == [3]
    assert await harness.acknowledge(four, topic=URGENT) == [True]
    await harness.advance(60)
    messages = await harness.receive(topic=URGENT)
    assert [(int(each.record.body), each.attempt) for each in messages] == [(3, 2), (2, 1), (1, 1)]


async def test_the_type_of_a_topic_changes(start: Start) -> None:
    """As a normal topic it delivers by age, even messages read ahead; as a priority topic by priority again."""
    harness = await start()
    await send(harness, 1, 5, 3, 4)
    assert priorities(await harness.receive(1, topic=URGENT)) == [5]
    saved(harness.tables.topics).update(TopicConfig.of_type(URGENT, TopicMessageType.NORMAL, queue_count=2))
    assert priorities(await harness.receive(1, topic=URGENT)) == [1]
    saved(harness.tables.topics).update(TopicConfig.of_type(URGENT, TopicMessageType.PRIORITY, queue_count=2))
    assert priorities(await harness.receive(topic=URGENT)) == [4, 3]


async def test_dead_letters_of_a_priority_topic(start: Start) -> None:
    """After its last attempt a message becomes a dead letter, and the next one is delivered."""
    harness = await start()
    saved(harness.tables.groups).update(GroupConfig(name=GROUP, retry_max_times=0))
    await send(harness, 1, 5)
    await harness.receive(1, topic=URGENT, seconds=1)
    await harness.advance(1)
    assert priorities(await harness.receive(1, topic=URGENT)) == [1]
    assert harness.deliveries.stats.dead_letters == 1


async def test_an_orderly_group_ignores_priorities(start: Start) -> None:
    """The order of an orderly group takes precedence over the priority of the topic."""
    harness = await start()
    saved(harness.tables.groups).update(GroupConfig(name=GROUP, consume_orderly=True))
    await send(harness, 1, 5, 3)
    assert priorities(await harness.receive(topic=URGENT)) == [1, 5, 3]
