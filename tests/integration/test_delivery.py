"""Delivery on a real store: what a group gets, when it gets it again, and what a restart does to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.filters import filter_of
from aerobee_broker.delivery.journal import JOURNAL_GROUP, JOURNAL_TOPIC
from aerobee_broker.delivery.receiving import DeliveredMessage
from aerobee_broker.errors import (
    GroupNotFoundError,
    InvalidReceiptHandleError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.topics import TopicConfig
from aerobee_proto import v2
from tests.support.delivery_world import GROUP, TOPIC, MovableClock, World, bodies

Start = Callable[..., Awaitable[World]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts worlds under one clock, and stops whatever of them still runs."""
    clock = MovableClock()
    worlds: list[World] = []

    async def start_world(**settings: Any) -> World:
        world = await World.start(tmp_path / f"store{len(worlds)}", clock, **settings)
        worlds.append(world)
        original_crash, original_restart = world.crash, world.restart

        async def crash() -> World:
            worlds.append(await original_crash())
            return worlds[-1]

        async def restart() -> World:
            worlds.append(await original_restart())
            return worlds[-1]

        world.crash, world.restart = crash, restart  # type: ignore[method-assign]  # to know all worlds
        return world

    yield start_world
    for world in worlds:
        await world.stop()


def attempts(messages: list[DeliveredMessage]) -> dict[str, int]:
    """Body -> delivery attempt."""
    return {message.record.body.decode(): message.attempt for message in messages}


# --- Resets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consume_orderly", [False, True])
@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_a_reset_outlives_whatever_follows(start: Start, end: str, consume_orderly: bool) -> None:
    """Back, then a crash at once, and one after more was delivered: what was acknowledged since stays so, and only
    that; handles of before are worth nothing."""
    world = await start()
    world.tables.groups.update(GroupConfig(name=GROUP, consume_orderly=consume_orderly))
    await world.tables.save()
    await world.send("a", "b", "c", "d")
    old = await world.receive()
    await world.acknowledge(*old[:3])
    await world.deliveries.reset(TOPIC, GROUP, {0: 1})
    world = await getattr(world, end)()
    assert await world.acknowledge(old[3]) == [False]
    with pytest.raises(InvalidReceiptHandleError):
        await world.deliveries.change_invisible(TOPIC, GROUP, old[3].receipt_handle, 0)
    again = await world.receive()
    assert attempts(again) == {"b": 1, "c": 1, "d": 1}
    await world.acknowledge(*(each for each in again if each.record.body == b"b"))
    assert world.deliveries.committed_offset(TOPIC, GROUP, 0) == 2
    world = await (await world.crash()).crash()
    assert world.deliveries.committed_offset(TOPIC, GROUP, 0) == 2
    await world.advance(60)
    assert attempts(await world.receive()) == {"c": 2, "d": 2}


async def test_a_reset_forward_leaves_out_what_lies_between(start: Start) -> None:
    """In flight, never delivered, ready again: all of it; also after a crash. The queue's end is the furthest."""
    world = await start()
    await world.send("a", "b", "c", "d")
    [first] = await world.receive(count=1)
    await world.deliveries.change_invisible(TOPIC, GROUP, first.receipt_handle, 0)
    await world.receive(count=1)
    await world.deliveries.reset(TOPIC, GROUP, {0: 3, 1: 99})
    assert bodies(await world.receive()) == ["d"]
    world = await world.crash()
    await world.advance(60)
    assert attempts(await world.receive()) == {"d": 2}
    await world.deliveries.reset(TOPIC, GROUP, {0: 1 << 40})
    await world.send("e")
    assert attempts(await world.receive()) == {"e": 1}


async def test_a_reset_wakes_who_waits(start: Start) -> None:
    """A receive that waits for new messages gets the old ones."""
    world = await start()
    await world.send("a")
    await world.acknowledge(*await world.receive())
    waiting = asyncio.ensure_future(world.receive(wait=5))
    await asyncio.sleep(0)
    await world.deliveries.reset(TOPIC, GROUP, {0: 0})
    assert bodies(await asyncio.wait_for(waiting, 5)) == ["a"]


async def test_the_table_learns_of_a_reset_with_the_snapshot_behind_it(start: Start) -> None:
    """Not before: a replay from before the reset would make all in between ready, one by one."""
    world = await start()
    await world.send("a", "b")
    await world.acknowledge(*await world.receive())
    await world.deliveries.reset(TOPIC, GROUP, {0: 0})
    journal_begin = world.tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, 0)
    for _ in range(100):
        offset = world.tables.offsets.get(TOPIC, GROUP, 0)
        position = world.tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, 0)
        assert (offset == 2) == (position == journal_begin)
        if offset == 0:
            break
        await asyncio.sleep(0.01)
    assert offset == 0


async def test_a_subscription_that_was_deleted(start: Start) -> None:
    """Its state and its offset are gone, those of the group's other topics stay; it begins anew."""
    world = await start()
    world.tables.topics.create(TopicConfig.of_type("other", queue_count=1))
    await world.tables.save()
    for topic in (TOPIC, "other"):
        await world.send("a", topic=topic)
        await world.acknowledge(*await world.receive(topic=topic), topic=topic)
    await world.deliveries.delete_subscription(TOPIC, GROUP)
    world = await world.crash()
    assert [status.topic for status in world.deliveries.status(GROUP)] == ["other"]
    assert attempts(await world.receive()) == {"a": 1}
    assert await world.receive(topic="other") == []


# --- Handles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_an_acknowledgement_that_is_repeated_after_a_restart(start: Start, end: str) -> None:
    """OK, as its answer may have been lost; but not with the handle of another group, and not of a message that is
    not finished. In one process only the handle that did it may say so again."""
    world = await start()
    await world.send("a", "b")
    await world.acknowledge(*await world.receive(group="audit"), group="audit")
    messages = await world.receive()
    stale = await world.deliveries.change_invisible(TOPIC, GROUP, messages[0].receipt_handle, 30_000)
    assert await world.deliveries.acknowledge(TOPIC, GROUP, [stale]) == [None]
    assert await world.deliveries.acknowledge(TOPIC, GROUP, [stale]) == [None]
    assert await world.acknowledge(messages[0]) == [False]
    world = await getattr(world, end)()
    for group in (GROUP, "audit"):
        [error] = await world.deliveries.acknowledge(TOPIC, group, [stale])
        assert (error is None) == (group == GROUP)
    with pytest.raises(InvalidReceiptHandleError):
        await world.deliveries.change_invisible(TOPIC, GROUP, stale, 0)
    await world.advance(60)
    assert await world.acknowledge(messages[1]) == [False]
    assert attempts(await world.receive()) == {"b": 2}


# --- Long backlogs -------------------------------------------------------------------------------------------


async def test_a_receive_looks_at_its_time_in_a_backlog_that_does_not_match(start: Start) -> None:
    """It ends in time, and the next one goes on where it ended, also after a crash."""
    world = await start()
    await world.send(*(f"{n}" for n in range(12_000)), tag="other")
    await world.send("wanted", tag="mine")

    async def look(condition: str) -> list[DeliveredMessage]:
        expression = v2.FilterExpression(type=v2.FilterType.SQL, expression=condition)
        return await world.deliveries.receive(
            TOPIC,
            GROUP,
            client_id="c",
            count=1,
            invisible_ms=60_000,
            wait_seconds=20,
            look_seconds=0,
            wanted=filter_of(expression),
        )

    lags = []
    for _ in range(40):
        assert await look("TAGS = 'mine'") == []
        lags.append(world.deliveries.status(GROUP)[0].lag)
    assert lags == sorted(set(lags), reverse=True), "each has looked at some more"
    while lags[-1] > 12_001 - 5000:
        assert await look("TAGS = 'mine'") == []
        lags.append(world.deliveries.status(GROUP)[0].lag)
    await world.store.wait_stored(world.store.positions[0])
    world = await world.crash()
    assert await look("TAGS = 'mine'") == []
    assert world.deliveries.status(GROUP)[0].lag < 12_001 - 4000, "at most 4096 messages are looked at again"
    assert bodies(await world.receive(tags=frozenset({"mine"}))) == ["wanted"]


# --- Receive and acknowledge --------------------------------------------------------------------------------


async def test_message_is_invisible_to_its_group_until_its_time_is_over(start: Start) -> None:
    """Another consumer of the group gets it after the invisible time, as attempt 2 and under another handle."""
    world = await start()
    await world.send("a")
    [first] = await world.receive(seconds=30)
    assert first.attempt == 1
    await world.advance(29.999)
    assert await world.receive(client_id="other") == []
    await world.advance(0.001)
    [second] = await world.receive(client_id="other")
    assert (second.record.body, second.attempt) == (b"a", 2)
    assert second.receipt_handle != first.receipt_handle
    assert second.record.queue_offset == first.record.queue_offset


async def test_other_group_gets_the_message_independently(start: Start) -> None:
    """Each group has its own state."""
    world = await start()
    await world.send("a")
    [message] = await world.receive()
    assert await world.acknowledge(message) == [True]
    assert bodies(await world.receive(group="audit")) == ["a"]


async def test_acknowledged_message_never_comes_again(start: Start) -> None:
    """Not after its invisible time, not after a crash, not after an orderly restart."""
    world = await start()
    await world.send("a", "b")
    messages = await world.receive(seconds=10)
    assert await world.acknowledge(messages[0]) == [True]
    await world.advance(3600)
    assert bodies(await world.receive(seconds=10)) == ["b"]
    world = await world.crash()
    await world.advance(3600)
    assert bodies(await world.receive(seconds=10)) == ["b"]
    world = await world.restart()
    await world.advance(3600)
    assert attempts(await world.receive(seconds=10)) == {"b": 4}


async def test_batch_of_a_receive_is_limited(start: Start) -> None:
    """No more than asked for; the rest comes with the next receive."""
    world = await start()
    await world.send(*"abcde")
    assert bodies(await world.receive(2)) == ["a", "b"]
    assert bodies(await world.receive(2)) == ["c", "d"]
    assert bodies(await world.receive(2)) == ["e"]


async def test_receive_takes_from_every_queue_in_turn(start: Start) -> None:
    """No queue starves behind one that always has messages."""
    world = await start()
    await world.send(*"abcdefgh", queue_id=0)
    await world.send("x", queue_id=1)
    got = [bodies(await world.receive(1))[0] for _ in range(2)]
    assert "x" in got


async def test_redelivery_comes_before_new_messages(start: Start) -> None:
    """What failed is not left behind a backlog."""
    world = await start()
    await world.send(*"abc")
    await world.receive(1, seconds=5)
    await world.advance(5)
    assert attempts(await world.receive(2)) == {"a": 2, "b": 1}


async def test_unknown_topic_or_group_is_an_error(start: Start) -> None:
    """Nothing is created by asking for it here."""
    world = await start()
    with pytest.raises(TopicNotFoundError):
        await world.receive(topic="unknown")
    with pytest.raises(GroupNotFoundError):
        await world.receive(group="unknown")


# --- Filters ------------------------------------------------------------------------------------------------


async def test_tag_filter_skips_other_messages_for_ever(start: Start) -> None:
    """What the filter left out is finished for the group, and the commit offset passes it."""
    world = await start()
    for tag in ("a", "b", "c", "A"):
        await world.send(f"of-{tag}", tag=tag)
    await world.send("untagged")
    messages = await world.receive(tags=frozenset({"a", "b"}))
    assert bodies(messages) == ["of-a", "of-b"]
    await world.acknowledge(*messages)
    assert await world.receive() == []
    assert world.tables.offsets.get(TOPIC, GROUP, 0) == 5


async def test_tags_with_equal_hashes_are_told_apart(start: Start) -> None:
    """`Aa` and `BB` have the same Java hash; the string decides."""
    world = await start()
    await world.send("one", tag="Aa")
    await world.send("two", tag="BB")
    assert bodies(await world.receive(tags=frozenset({"BB"}))) == ["two"]


async def test_filter_that_matches_nothing_does_not_lose_later_messages(start: Start) -> None:
    """A skipped backlog is not scanned again, and does not hide what comes behind it."""
    world = await start()
    await world.send(*(f"skip-{i}" for i in range(200)), tag="x")
    assert await world.receive(tags=frozenset({"y"})) == []
    await world.send("wanted", tag="y")
    assert bodies(await world.receive(tags=frozenset({"y"}))) == ["wanted"]
    world = await world.crash()
    assert await world.receive(tags=frozenset({"y"})) == []


# --- Handles ------------------------------------------------------------------------------------------------


async def test_second_acknowledgement_is_accepted(start: Start) -> None:
    """A client that lost the answer asks again."""
    world = await start()
    await world.send("a")
    [message] = await world.receive()
    assert await world.acknowledge(message, message) == [True, True]
    assert await world.acknowledge(message) == [True]


async def test_expired_handle_is_refused(start: Start) -> None:
    """Whoever is too late does not finish what another one has now."""
    world = await start()
    await world.send("a")
    [old] = await world.receive(seconds=10)
    await world.advance(10)
    assert await world.acknowledge(old) == [False]
    [new] = await world.receive()
    assert await world.acknowledge(old) == [False]
    assert await world.acknowledge(new) == [True]


async def test_foreign_handles_are_refused(start: Start) -> None:
    """Of another group, another topic, a bad form: each entry has its own result."""
    world = await start()
    world.tables.topics.create(TopicConfig.of_type("invoices", queue_count=1))
    await world.send("a")
    [message] = await world.receive()
    assert await world.acknowledge(message, group="audit") == [False]
    await world.receive(group="audit")
    assert await world.acknowledge(message, group="audit") == [False]
    assert await world.acknowledge(message, topic="invoices") == [False]
    forged = message.receipt_handle[:-1] + ("0" if message.receipt_handle[-1] != "0" else "1")
    texts = ["", "x", "é" * 42, forged, message.receipt_handle]
    results = await world.deliveries.acknowledge(TOPIC, GROUP, texts)
    assert [type(result) for result in results] == [InvalidReceiptHandleError] * 4 + [type(None)]


async def test_change_of_invisible_time_gives_a_new_handle(start: Start) -> None:
    """The old handle is dead, the new one acknowledges, and the time counts from the change."""
    world = await start()
    await world.send("a")
    [message] = await world.receive(seconds=10)
    await world.advance(9)
    handle = await world.deliveries.change_invisible(TOPIC, GROUP, message.receipt_handle, 10_000)
    await world.advance(9)
    assert await world.receive() == []
    assert await world.acknowledge(message) == [False]
    with pytest.raises(InvalidReceiptHandleError):
        await world.deliveries.change_invisible(TOPIC, GROUP, message.receipt_handle, 0)
    assert await world.deliveries.acknowledge(TOPIC, GROUP, [handle]) == [None]
    await world.advance(3600)
    assert await world.receive() == []


async def test_invisible_time_of_zero_redelivers_at_once(start: Start) -> None:
    """A nack without a delay: the waiting receive gets the message, as attempt 2."""
    world = await start()
    await world.send("a")
    [message] = await world.receive()
    waiting = asyncio.create_task(world.receive(wait=20, client_id="other"))
    await asyncio.sleep(0)
    await world.deliveries.change_invisible(TOPIC, GROUP, message.receipt_handle, 0)
    async with asyncio.timeout(10):
        assert attempts(await waiting) == {"a": 2}


# --- Long polling -------------------------------------------------------------------------------------------


async def test_arrival_ends_a_wait(start: Start) -> None:
    """A receive that waits gets the message when it is stored, not when its time is over."""
    world = await start()
    waiting = asyncio.create_task(world.receive(wait=20))
    await asyncio.sleep(0.01)
    await world.send("a")
    async with asyncio.timeout(10):
        assert bodies(await waiting) == ["a"]


async def test_wait_ends_empty_when_its_time_is_over(start: Start) -> None:
    """Nothing came."""
    world = await start()
    async with asyncio.timeout(10):
        assert await world.receive(wait=0.05) == []


async def test_expiry_ends_a_wait(start: Start) -> None:
    """The timer wakes those who wait for the group, and nobody polls."""
    world = await start()
    await world.send("a")
    await world.receive(seconds=10)
    waiting = asyncio.create_task(world.receive(wait=20, client_id="other"))
    await asyncio.sleep(0.01)
    await world.advance(10)
    async with asyncio.timeout(10):
        assert attempts(await waiting) == {"a": 2}


async def test_messages_reach_all_waiting_receives(start: Start) -> None:
    """Many messages arrive at once: each receive that has room left is woken by the one before it."""
    world = await start()
    waiting = [asyncio.create_task(world.receive(2, wait=20, client_id=f"c{i}")) for i in range(4)]
    await asyncio.sleep(0.01)
    await world.send(*"abcdefg")
    async with asyncio.timeout(10):
        got = await asyncio.gather(*waiting)
    assert sorted(body for messages in got for body in bodies(messages)) == list("abcdefg")


async def test_cancelled_receive_gives_its_messages_back(start: Start) -> None:
    """What was taken but never answered is visible again at once."""
    world = await start()
    for number in range(100):
        await world.send(f"{number}")
        receiving = asyncio.create_task(world.receive())
        await asyncio.sleep(0)  # it has taken the message and waits for the journal
        if receiving.cancel():  # else the disk was faster, and the message is another client's
            break
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert bodies(await world.receive()) == [f"{number}"]


async def test_too_many_waiting_receives_are_refused(start: Start) -> None:
    """Those before keep waiting; the one too many gets an error at once."""
    world = await start(waiting_per_line_max=2)
    waiting = [asyncio.create_task(world.receive(wait=20)) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(TooManyRequestsError, match="polling full"):
        await world.receive(wait=20)
    await world.send("a", "b")
    async with asyncio.timeout(10):
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    world.deliveries.long_polling.drain()
    await asyncio.gather(*waiting)


async def test_messages_in_flight_are_bounded(start: Start) -> None:
    """A group that never acknowledges is refused more, until it acknowledges."""
    world = await start(in_flight_per_group_max=3)
    await world.send(*"abcde")
    messages = await world.receive()
    assert bodies(messages) == ["a", "b", "c"]
    with pytest.raises(TooManyRequestsError, match="in flight"):
        await world.receive()
    await world.acknowledge(messages[0])
    assert bodies(await world.receive()) == ["d"]


# --- Clients ------------------------------------------------------------------------------------------------


async def test_auto_renewed_message_stays_invisible_while_its_client_lives(start: Start) -> None:
    """For longer than any renewal, under the first handle; but not for ever."""
    world = await start()
    await world.send("a", "b")
    messages = await world.receive(seconds=None)
    await world.advance(2 * 3600)
    assert await world.receive(client_id="other") == []
    assert await world.acknowledge(messages[0]) == [True]
    await world.advance(3600)
    assert attempts(await world.receive(client_id="other")) == {"b": 2}


async def test_messages_of_a_client_that_is_gone_come_back_after_a_second(start: Start) -> None:
    """Only its auto-renewed ones, and only its own."""
    world = await start()
    await world.send("a", "b", "c")
    await world.receive(1, seconds=None, client_id="dying")
    await world.receive(1, seconds=None, client_id="living")
    await world.receive(1, seconds=600, client_id="dying")
    waiting = asyncio.create_task(world.receive(wait=20, client_id="living"))
    await asyncio.sleep(0.01)
    world.deliveries.client_gone("dying")
    await world.advance(0.999)
    assert not waiting.done()
    await world.advance(0.001)
    async with asyncio.timeout(10):
        assert attempts(await waiting) == {"a": 2}


async def test_waits_of_a_client_that_is_gone_end(start: Start) -> None:
    """Some clients only stop when their last receive was answered."""
    world = await start()
    waiting = asyncio.create_task(world.receive(wait=20))
    await asyncio.sleep(0.01)
    world.deliveries.client_gone("client")
    async with asyncio.timeout(10):
        assert await waiting == []


# --- Dead letters -------------------------------------------------------------------------------------------


async def test_message_becomes_a_dead_letter_after_its_last_attempt(start: Start) -> None:
    """Instead of a delivery too many it lies in the group's own topic, with its origin, and does not come back."""
    world = await start()
    world.tables.groups.update(GroupConfig(name=GROUP, retry_max_times=2))
    await world.send("a")
    for attempt in (1, 2, 3):
        assert attempts(await world.receive(seconds=1)) == {"a": attempt}
        await world.advance(1)
    assert await world.receive() == []
    [dead] = await world.receive(group="audit", topic=f"%DLQ%{GROUP}", wait=5)
    assert dead.record.body == b"a"
    assert dead.record.properties["DLQ_ORIGIN_TOPIC"] == TOPIC
    assert dead.record.properties["DLQ_ORIGIN_MESSAGE_ID"] == "id-a"
    assert world.deliveries.stats.dead_letters == 1
    world = await world.crash()
    await world.advance(3600)
    assert await world.receive() == []


async def test_attempts_are_counted_over_restarts(start: Start) -> None:
    """Neither kind of stop gives a message more attempts than its group allows."""
    world = await start()
    world.tables.groups.update(GroupConfig(name=GROUP, retry_max_times=2))
    await world.tables.save()
    await world.send("a")
    assert attempts(await world.receive(seconds=1)) == {"a": 1}
    world = await world.crash()
    await world.advance(1)
    assert attempts(await world.receive(seconds=1)) == {"a": 2}
    world = await world.restart()
    await world.advance(1)
    assert attempts(await world.receive(seconds=1)) == {"a": 3}
    await world.advance(1)
    assert await world.receive() == []
    assert bodies(await world.receive(group="audit", topic=f"%DLQ%{GROUP}", wait=5)) == ["a"]


async def test_message_is_forwarded_to_the_dead_letters_on_request(start: Start) -> None:
    """It is finished then, and its handle is used up."""
    world = await start()
    await world.send("a")
    [message] = await world.receive()
    await world.deliveries.forward_to_dead_letter_queue(TOPIC, GROUP, message.receipt_handle)
    with pytest.raises(InvalidReceiptHandleError):
        await world.deliveries.forward_to_dead_letter_queue(TOPIC, GROUP, message.receipt_handle)
    assert bodies(await world.receive(group="audit", topic=f"%DLQ%{GROUP}", wait=5)) == ["a"]
    world = await world.crash()
    await world.advance(3600)
    assert await world.receive() == []


async def test_many_exhausted_messages_do_not_hide_one_that_can_be_delivered(start: Start) -> None:
    """A receive goes on behind dead letters until it finds something, or the end."""
    world = await start()
    world.tables.groups.update(GroupConfig(name=GROUP, retry_max_times=0))
    await world.send(*(f"dead-{i}" for i in range(10)))
    await world.receive(seconds=1)
    await world.advance(1)
    await world.send("alive")
    assert bodies(await world.receive(2)) == ["alive"]
    await world.send("also alive")
    assert bodies(await world.receive(2)) == ["also alive"]
    assert await world.receive(2) == []
    assert world.deliveries.stats.dead_letters == 10


# --- Restarts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["crash", "restart"])
async def test_message_in_flight_stays_invisible_over_a_restart(start: Start, kind: str) -> None:
    """Its handle stays valid, its time goes on, its attempt goes on counting."""
    world = await start()
    await world.send("a", "b")
    messages = await world.receive(seconds=60)
    world = await getattr(world, kind)()
    assert await world.receive() == []
    assert await world.acknowledge(next(m for m in messages if m.record.body == b"a")) == [True]
    await world.advance(60)
    assert attempts(await world.receive()) == {"b": 2}


async def test_changed_time_and_handle_survive_a_crash(start: Start) -> None:
    """The new handle acknowledges, the old one is still dead."""
    world = await start()
    await world.send("a")
    [message] = await world.receive(seconds=1)
    handle = await world.deliveries.change_invisible(TOPIC, GROUP, message.receipt_handle, 3_600_000)
    world = await world.crash()
    await world.advance(60)
    assert await world.receive() == []
    assert await world.acknowledge(message) == [False]
    assert await world.deliveries.acknowledge(TOPIC, GROUP, [handle]) == [None]


async def test_auto_renewed_messages_wait_for_their_client_after_a_restart(start: Start) -> None:
    """30 s for the client to show up; then whoever is there gets the messages of those who did not."""
    world = await start()
    await world.send("a", "b")
    await world.receive(1, seconds=None, client_id="returns")
    await world.receive(1, seconds=None, client_id="stays-away")
    world = await world.crash()
    world.connected.add("returns")
    await world.advance(29)
    assert await world.receive(client_id="other") == []
    await world.advance(2)
    await world.advance(2)
    assert attempts(await world.receive(client_id="other")) == {"b": 2}


async def test_many_restarts_lose_and_repeat_nothing(start: Start) -> None:
    """Acknowledgements out of order, snapshots in between, every kind of stop."""
    world = await start(snapshot_event_count=5)
    expected: set[str] = set()
    finished: set[str] = set()
    for round_ in range(6):
        sent = [f"{round_}-{i}" for i in range(20)]
        await world.send(*sent[:10], queue_id=0)
        await world.send(*sent[10:], queue_id=1)
        expected.update(sent)
        messages = await world.receive(seconds=10) + await world.receive(seconds=10)
        assert not finished & set(bodies(messages))
        done = [message for message in messages if message.record.queue_offset % 3 != round_ % 3]
        assert all(await world.acknowledge(*done))
        finished.update(bodies(done))
        await asyncio.sleep(0.02)  # for a snapshot
        world = await (world.crash() if round_ % 2 else world.restart())
        await world.advance(10)
    rest: list[DeliveredMessage] = []
    while more := await world.receive():
        rest += more
    assert set(bodies(rest)) == expected - finished


async def test_replay_begins_at_the_last_snapshot(start: Start) -> None:
    """The journal's position moves on, so that a start has only a little to read."""
    world = await start()
    await world.send(*(f"m{i}" for i in range(20)))
    for message in await world.receive():
        await world.acknowledge(message)
    world = await world.restart()
    position = world.tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, 0)
    assert position is not None
    assert world.store.queue_range(JOURNAL_TOPIC, 0)[1] - position <= 2
    assert await world.receive() == []


async def test_new_group_begins_where_the_configuration_says(start: Start) -> None:
    """Earliest: all that is there; latest: only what comes, also when the broker crashes before anything came."""
    world = await start(initial_position="latest")
    await world.send("old")
    assert await world.receive() == []
    world = await world.crash()
    await world.send("new")
    assert bodies(await world.receive()) == ["new"]
    world = await start(initial_position="earliest")
    await world.send("old")
    assert bodies(await world.receive()) == ["old"]


async def test_commit_offset_behind_the_log_is_corrected(start: Start) -> None:
    """After a power cut with async flush the saved offset may be ahead: new messages must not be skipped."""
    world = await start()
    await world.send("a")
    world.tables.offsets.commit(TOPIC, GROUP, 0, 100)
    assert await world.receive() == []
    await world.send("b")
    assert bodies(await world.receive()) == ["b"]


async def test_deleted_topic_is_forgotten(start: Start) -> None:
    """State, offsets and waits; also after a crash, and a group of a new topic starts afresh."""
    world = await start()
    await world.send("a", "b")
    [message] = await world.receive(1)
    world.tables.topics.delete(TOPIC)
    await world.deliveries.delete_topic(TOPIC)
    assert await world.acknowledge(message) == [False]
    assert world.deliveries.status(GROUP) == []
    await world.tables.save()
    world = await world.crash()
    assert world.deliveries.status(GROUP) == []


async def test_receive_of_a_deleted_group_ends_with_an_error(start: Start) -> None:
    """It does not wait until its time is over."""
    world = await start()
    waiting = asyncio.create_task(world.receive(wait=20))
    await asyncio.sleep(0.01)
    world.tables.groups.delete(GROUP)
    await world.deliveries.delete_group(GROUP)
    async with asyncio.timeout(10):
        with pytest.raises(GroupNotFoundError):
            await waiting


async def test_status_says_how_far_a_group_is(start: Start) -> None:
    """Committed, behind, in flight, to be had."""
    world = await start()
    await world.send(*"abcde")
    messages = await world.receive(3, seconds=10)
    await world.acknowledge(messages[0])
    [status, idle] = world.deliveries.status(GROUP)
    assert (status.commit_offset, status.max_offset, status.lag, status.in_flight, status.ready) == (1, 5, 4, 2, 2)
    assert (idle.queue_id, idle.lag) == (1, 0)
    await world.advance(10)
    [status, _] = world.deliveries.status(GROUP)
    assert (status.in_flight, status.ready) == (0, 4)


async def test_paused_group_gets_nothing(start: Start) -> None:
    """An operator paused it; its receives wait as if nothing was there."""
    world = await start()
    await world.send("a")
    world.tables.groups.update(GroupConfig(name=GROUP, consume_enabled=False))
    assert await world.receive(wait=0.02) == []
    world.tables.groups.update(GroupConfig(name=GROUP))
    assert bodies(await world.receive()) == ["a"]
