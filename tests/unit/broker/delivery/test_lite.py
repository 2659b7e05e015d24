"""Lite topics on a real store: state of clients and groups, and recovery after a crash."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from aerobee_broker.delivery.journal.event_log import JOURNAL_TOPIC
from aerobee_broker.delivery.receive.lite import Action, Change
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from aerobee_broker.errors import InvalidReceiptHandleError, LiteQuotaError, TopicNotFoundError
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType, light_topic_name, split_light_topic_name
from aerobee_store.records.properties import INNER_MULTI_DISPATCH, SHARDING_KEY, UNIQ_KEY
from aerobee_store.records.record import Message
from tests.support.delivery_harness import GROUP, Harness, Start, bodies
from tests.support.saved_tables import saved

ROOMS = "rooms"


@pytest.fixture
async def harness(harness: Harness) -> Harness:
    attributes = {"message.type": "LITE", "lite.topic.expiration": "30"}
    harness.tables.topics.create(
        TopicConfig(name=ROOMS, read_queue_count=2, write_queue_count=2, attributes=attributes)
    )
    await harness.tables.save()
    return harness


async def say(harness: Harness, room: str, *texts: str) -> None:
    """Store messages of a lite topic like a send does."""
    await store(harness, [said(room, text) for text in texts])


def said(room: str, text: str) -> Message:
    properties = {UNIQ_KEY: text, INNER_MULTI_DISPATCH: light_topic_name(ROOMS, room)}
    return Message(topic=ROOMS, queue_id=len(text) % 2, body=text.encode(), properties=properties)


async def store(harness: Harness, messages: list[Message]) -> None:
    await harness.store.wait_stored(harness.store.append(messages)[-1].end)


async def subscribe(
    harness: Harness, *rooms: str, client_id: str = "client", group: str = GROUP, action: Action = Action.ADD
) -> None:
    await harness.deliveries.lite.subscribe(ROOMS, group, client_id, Change(action, frozenset(rooms)))


async def receive(
    harness: Harness, count: int = 32, *, client_id: str = "client", **options: float
) -> list[DeliveredMessage]:
    harness.connected.add(client_id)
    return await harness.receive(count, topic=ROOMS, client_id=client_id, **options)  # type: ignore[arg-type] # numbers


def test_names() -> None:
    """Names are encoded and decoded, also with a namespace. Other names are not lite topics."""
    assert light_topic_name("ns%rooms", "a_-9") == "%LMQ%$ns%rooms$a_-9"
    assert split_light_topic_name("%LMQ%$ns%rooms$a_-9") == ("ns%rooms", "a_-9")
    for other in ("rooms", "%LMQ%rooms", "%LMQ%$rooms", "%LMQ%$rooms$", "%LMQ%$$a", "x%LMQ%$rooms$a", ""):
        assert split_light_topic_name(other) is None


async def test_positions_belong_to_the_group_and_survive_a_crash(harness: Harness) -> None:
    """After a crash clients must subscribe again. Acknowledged messages are not delivered again."""
    await subscribe(harness, "a", "b")
    await say(harness, "a", "a1", "a2")
    await say(harness, "b", "b1")
    first, second, third = sorted(await receive(harness, seconds=30), key=lambda each: each.record.body)
    assert await harness.acknowledge(first, third, topic=ROOMS) == [True, True]
    after = await harness.crash()
    assert await receive(after) == []
    assert await after.acknowledge(second, topic=ROOMS) == [True]
    await subscribe(after, "a", "b", client_id="another")
    await say(after, "a", "a3")
    assert bodies(await receive(after, client_id="another")) == ["a3"]


async def test_waiting_messages_of_an_orderly_group_are_delivered_after_a_crash(harness: Harness) -> None:
    """They are read in steps. The lite topic stays pending while the first steps find only messages of a locked message
    group.
    """
    harness.tables.groups.update(GroupConfig(name=GROUP, consume_orderly=True))
    await harness.tables.save()
    await subscribe(harness, "a")
    for group, count in (("x", 400), ("y", 100)):
        messages = [said("a", f"{group}{number}") for number in range(count)]
        await store(harness, [replace(each, properties={**each.properties, SHARDING_KEY: group}) for each in messages])
    in_flight: list[DeliveredMessage] = []
    while len(in_flight) < 2:  # each receive reads a few more
        in_flight += await receive(harness, 1, seconds=30)
    assert [message.record.body for message in in_flight] == [b"x0", b"y0"]
    name = light_topic_name(ROOMS, "a")
    queue = harness.deliveries.queue_delivery(name, GROUP, 0)
    assert queue is not None
    while queue.cursor < 500:
        assert await receive(harness) == []
    await harness.deliveries._history.snapshot()
    after = await harness.crash()
    await subscribe(after, "a")
    queue = after.deliveries.queue_delivery(name, GROUP, 0)
    assert queue is not None
    assert len(queue.unread) == 498
    assert await after.acknowledge(in_flight[1], topic=ROOMS) == [True]
    found: list[DeliveredMessage] = []
    for _ in range(5):
        found = found or await receive(after)
    assert [message.record.body for message in found] == [b"y%d" % number for number in range(1, 33)]


async def test_a_returned_message_wakes_a_waiting_receive(harness: Harness) -> None:
    """A nacked or expired message wakes a waiting subscriber of the group. Its handle names the lite topic."""
    await subscribe(harness, "a")
    await subscribe(harness, "a", client_id="other")
    await say(harness, "a", "a1")
    [message] = await receive(harness, seconds=30)
    waiting = asyncio.ensure_future(receive(harness, client_id="other", wait=20))
    await asyncio.sleep(0)
    await harness.deliveries.change_invisible(ROOMS, GROUP, message.receipt_handle, 0)
    [again] = await asyncio.wait_for(waiting, 60)
    assert (again.record.body, again.attempt) == (b"a1", 2)
    waiting = asyncio.ensure_future(receive(harness, wait=20))
    await asyncio.sleep(0)
    await harness.advance(60)
    [once_more] = await asyncio.wait_for(waiting, 60)
    assert once_more.attempt == 3
    with pytest.raises(InvalidReceiptHandleError):
        await harness.deliveries.change_invisible(ROOMS, "audit", once_more.receipt_handle, 0)
    changed = await harness.deliveries.change_invisible(ROOMS, GROUP, once_more.receipt_handle, 1000)
    assert await harness.deliveries.acknowledge(ROOMS, GROUP, [changed]) == [None]


async def test_many_lite_topics(harness: Harness) -> None:
    """All messages are delivered from any number of lite topics."""
    rooms = [f"room{number}" for number in range(200)]
    await subscribe(harness, *rooms)
    await store(harness, [said(room, f"{room}.{number}") for room in rooms for number in (1, 2)])
    found: list[DeliveredMessage] = []
    while messages := await receive(harness, 50):
        found += messages
    assert bodies(found) == sorted(f"{room}.{number}" for room in rooms for number in (1, 2))
    consumer = harness.deliveries.lite.get(ROOMS, GROUP, "client")
    assert consumer is not None
    assert not consumer.pending


async def test_order_within_a_lite_topic(harness: Harness) -> None:
    """In an orderly group, a message waits for the one before it in its lite topic. A lost answer is repeated."""
    saved(harness.tables.groups).update(GroupConfig(name=GROUP, consume_orderly=True))
    await subscribe(harness, "a", "b")
    await say(harness, "a", "a1", "a2")
    await say(harness, "b", "b1")

    async def attempt(name: str, count: int = 1) -> list[DeliveredMessage]:
        return await harness.receive(count, topic=ROOMS, attempt_id=name, seconds=None)

    [first] = await attempt("one")
    [again] = await attempt("one")
    assert (again.receipt_handle, again.attempt) == (first.receipt_handle, 1)
    assert bodies(await attempt("two", 8)) == ["b1"]
    assert await attempt("three") == []
    waiting = asyncio.ensure_future(harness.receive(topic=ROOMS, wait=20))
    await asyncio.sleep(0)
    await harness.acknowledge(first, topic=ROOMS)
    assert bodies(await asyncio.wait_for(waiting, 60)) == ["a2"]


async def test_a_terminated_client(harness: Harness) -> None:
    """Subscriptions of the client are removed, its receive ends, and others get its messages after a second."""
    await subscribe(harness, "a")
    await subscribe(harness, "a", client_id="other")
    await say(harness, "a", "a1")
    [message] = await harness.receive(topic=ROOMS, client_id="client", seconds=None)
    waiting = asyncio.ensure_future(receive(harness, wait=20))
    await asyncio.sleep(0)
    harness.deliveries.client_gone("client")
    assert await asyncio.wait_for(waiting, 60) == []
    assert harness.deliveries.lite.names(ROOMS, GROUP, "client") == []
    assert harness.deliveries.lite.names(ROOMS, GROUP, "other") == ["a"]
    await harness.advance(1)
    [again] = await receive(harness, client_id="other")
    assert again.attempt == 2
    assert await harness.acknowledge(message, topic=ROOMS) == [False]


async def test_an_undelivered_answer_is_returned(harness: Harness) -> None:
    """The messages are given back at once, and a repeated attempt id returns them again."""
    await subscribe(harness, "a")
    await say(harness, "a", "a1")
    messages = await receive(harness)
    harness.deliveries.give_back(ROOMS, GROUP, [message.receipt_handle for message in messages])
    [second] = await harness.receive(topic=ROOMS, seconds=None, attempt_id="lost")
    [third] = await harness.receive(topic=ROOMS, seconds=None, attempt_id="lost")
    assert (second.attempt, third.attempt) == (2, 3)


async def test_dead_letters_are_in_no_lite_topic(harness: Harness) -> None:
    """A dead letter is read only from the dead-letter topic."""
    saved(harness.tables.groups).update(GroupConfig(name=GROUP, retry_max_times=0))
    await subscribe(harness, "a")
    await say(harness, "a", "a1", "a2")
    one, two = await receive(harness, seconds=1)
    await harness.deliveries.forward_to_dead_letter_queue(ROOMS, GROUP, one.receipt_handle)
    await harness.advance(1)
    assert await receive(harness) == []
    assert await harness.acknowledge(two, topic=ROOMS) == [False]
    dead = [(await harness.receive(1, topic=f"%DLQ%{GROUP}", wait=5))[0] for _ in range(2)]
    assert bodies(dead) == ["a1", "a2"]
    assert {each.record.properties["DLQ_ORIGIN_TOPIC"] for each in dead} == {ROOMS}
    assert harness.store.queue_range(light_topic_name(ROOMS, "a"), 0)[1] == 2


async def test_lite_topics_expire(harness: Harness) -> None:
    """A lite topic expires some time after its last message. Its clients are notified, and it may be used again."""
    told: list[tuple[str, str]] = []
    harness.deliveries.lite.unsubscribed_listeners.append(lambda client_id, name: told.append((client_id, name)))
    await subscribe(harness, "old", "young", "empty")
    await say(harness, "old", "o1")
    await harness.advance(20 * 60)
    await say(harness, "young", "y1")
    assert await harness.deliveries.expire_lite_topics() == 0
    [message] = await receive(harness, 1, seconds=3600)
    await harness.advance(11 * 60)
    assert await harness.deliveries.expire_lite_topics() == 1
    assert told == [("client", "old")]
    assert harness.deliveries.lite.names(ROOMS, GROUP, "client") == ["empty", "young"]
    assert light_topic_name(ROOMS, "old") not in harness.store.queues()
    assert message.record.body == b"o1"
    assert await harness.acknowledge(message, topic=ROOMS) == [False]
    await subscribe(harness, "old")
    await say(harness, "old", "o2")
    assert bodies(await receive(harness)) == ["o2", "y1"]
    crashed = await harness.crash()
    assert {status.topic for status in list(crashed.deliveries.statuses(GROUP))} >= {light_topic_name(ROOMS, "old")}


async def test_a_parent_topic_is_deleted(harness: Harness) -> None:
    """Deleting the parent deletes its lite topics and their positions. Waiting receives fail."""
    await subscribe(harness, "a")
    await say(harness, "a", "a1", "a2")
    await receive(harness, 1)
    await receive(harness, 1)
    waiting = asyncio.ensure_future(receive(harness, wait=20))
    without = asyncio.ensure_future(receive(harness, client_id="has nothing", wait=20))
    await asyncio.sleep(0)
    saved(harness.tables.topics).delete(ROOMS)
    await harness.deliveries.delete_topic(ROOMS)
    for each in (waiting, without):
        with pytest.raises(TopicNotFoundError):
            await asyncio.wait_for(each, 60)
    assert list(harness.deliveries.statuses(GROUP)) == []
    assert not [name for name in harness.store.queues() if name.startswith("%LMQ%")]
    saved(harness.tables.topics).create(TopicConfig.of_type(ROOMS, TopicMessageType.LITE, queue_count=1))
    assert await receive(harness) == []


async def test_a_disabled_group(harness: Harness) -> None:
    """Receives of a disabled group wait and resume when it is enabled, like for any topic."""
    saved(harness.tables.groups).update(GroupConfig(name=GROUP, consume_enabled=False))
    await subscribe(harness, "a")
    await say(harness, "a", "a1")
    waiting = asyncio.ensure_future(receive(harness, wait=20))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    saved(harness.tables.groups).update(GroupConfig(name=GROUP))
    harness.deliveries.long_polling.end_waits(group=GROUP)
    assert bodies(await asyncio.wait_for(waiting, 60)) == ["a1"]


async def test_subscribing_again_after_a_restart_writes_no_events(harness: Harness) -> None:
    """Subscribing again writes no journal event for lite topics in which the group has an offset."""
    await subscribe(harness, "a", "b")
    harness = await harness.restart()
    before = harness.store.queue_range(JOURNAL_TOPIC, 0)
    await subscribe(harness, "a", "b")
    assert harness.store.queue_range(JOURNAL_TOPIC, 0) == before
    await subscribe(harness, "a", "b", "c")
    await say(harness, "a", "a1")
    assert harness.store.queue_range(JOURNAL_TOPIC, 0)[1] == before[1] + 1
    assert bodies(await receive(harness)) == ["a1"]


async def test_too_many(start: Start) -> None:
    """The quota counts a client's old and new subscriptions. A refused change has no effect."""
    harness = await start(lite_subscriptions_max=2)
    saved(harness.tables.topics).create(TopicConfig.of_type(ROOMS, TopicMessageType.LITE, queue_count=1))
    await subscribe(harness, "a", "b")
    with pytest.raises(LiteQuotaError):
        await subscribe(harness, "b", "c")
    await subscribe(harness, "c", "d", action=Action.REPLACE)
    await subscribe(harness, "a", "b", client_id="another")
    with pytest.raises(LiteQuotaError):
        await subscribe(harness, "a", group="audit")
    assert harness.deliveries.lite.names(ROOMS, GROUP, "client") == ["c", "d"]
