"""Orderly groups on a real store: redelivery, order, limits, and recovery after a crash."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from aerobee_broker.delivery.journal.event_log import JOURNAL_TOPIC
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from aerobee_broker.delivery.state.message_group_order import PAGE_SIZE
from aerobee_broker.tables.consumer_groups import GroupConfig
from tests.support.delivery_harness import TOPIC, Harness, Start
from tests.support.saved_tables import saved

LEDGER = "ledger"


@pytest.fixture
def start(start: Start) -> Start:
    """Starts harnesses with an orderly group."""

    async def start_harness(*, retry_max_times: int = 16, **settings: Any) -> Harness:
        harness = await start(**settings)
        harness.tables.groups.create(GroupConfig(name=LEDGER, consume_orderly=True, retry_max_times=retry_max_times))
        await harness.tables.save()
        return harness

    return start_harness


def told(messages: list[DeliveredMessage]) -> list[tuple[str, int]]:
    """Body and attempt of each message, in the order of the answer."""
    return [(message.record.body.decode(), message.attempt) for message in messages]


async def receive(harness: Harness, count: int = 32, **fields: Any) -> list[DeliveredMessage]:
    return await harness.receive(count, group=LEDGER, **fields)


async def acknowledge(harness: Harness, *messages: DeliveredMessage) -> None:
    assert await harness.acknowledge(*messages, group=LEDGER) == [True] * len(messages)


async def test_new_messages_wait_until_a_redelivered_one_is_done(start: Start) -> None:
    """A redelivered message and new ones of its group never share an answer, also after a restart."""
    harness = await start()
    await harness.send("a0", "a1", "a2", message_group="a")
    first = await receive(harness, 3, seconds=10)
    assert told(first) == [("a0", 1), ("a1", 1), ("a2", 1)]
    await acknowledge(harness, first[1], first[2])
    await harness.send("a3", "a4", message_group="a")
    await harness.send("b0", message_group="b")
    await harness.advance(10)
    assert told(await receive(harness, seconds=10)) == [("a0", 2), ("b0", 1)]
    assert await receive(harness) == []
    await harness.advance(10)
    harness = await harness.crash()
    again = await receive(harness)
    assert told(again) == [("a0", 3), ("b0", 2)]
    await acknowledge(harness, *again)
    assert told(await receive(harness)) == [("a3", 1), ("a4", 1)]


async def test_a_message_returned_for_later_keeps_its_group_locked(start: Start) -> None:
    """The group stays locked until the new time ends. That message comes first, even if a later one is acknowledged."""
    harness = await start()
    await harness.send("a0", "a1", "a2", message_group="a")
    batch = await receive(harness, 2, seconds=10)
    handle = await harness.deliveries.change_invisible(TOPIC, LEDGER, batch[0].receipt_handle, 60_000)
    await acknowledge(harness, batch[1])
    await harness.advance(59.9)
    assert await receive(harness) == []
    await harness.advance(0.1)
    again = await receive(harness)
    assert told(again) == [("a0", 2)]
    await acknowledge(harness, *again)
    assert told(await receive(harness)) == [("a2", 1)]
    assert [error is None for error in await harness.deliveries.acknowledge(TOPIC, LEDGER, [handle])] == [False]


async def test_several_messages_returned_for_later_wait_for_the_longest_time(start: Start) -> None:
    """One that is ready earlier waits, and they come again together, in their order, before new ones."""
    harness = await start()
    await harness.send("a0", "a1", "a2", "a3", message_group="a")
    batch = await receive(harness, 3, seconds=10)
    for message, seconds in zip(batch, (20, 60, 40), strict=True):
        await harness.deliveries.change_invisible(TOPIC, LEDGER, message.receipt_handle, seconds * 1000)
    await harness.advance(59.9)
    assert await receive(harness) == []
    await harness.advance(0.1)
    again = await receive(harness)
    assert told(again) == [("a0", 2), ("a1", 2), ("a2", 2)]
    await acknowledge(harness, *again)
    assert told(await receive(harness)) == [("a3", 1)]


async def test_a_dead_letter_unlocks_its_message_group(start: Start) -> None:
    """The next message of the group is delivered, and the dead letter is stored."""
    harness = await start(retry_max_times=1)
    await harness.send("a0", "a1", message_group="a")
    for attempt in (1, 2):
        assert told(await receive(harness, 1, seconds=5)) == [("a0", attempt)]
        await harness.advance(5)
    last = await receive(harness, 1, seconds=5, wait=5)
    assert told(last) == [("a1", 1)]
    dead = await harness.receive(topic=f"%DLQ%{LEDGER}", group=LEDGER, wait=5)
    assert told(dead) == [("a0", 1)]


async def test_nothing_overtakes_a_message_that_waits_for_the_dead_letter_topic(start: Start) -> None:
    """The order holds while the dead-letter topic is being created."""
    harness = await start(retry_max_times=0)
    await harness.send("a0", "a1", message_group="a")
    await harness.send("b0", message_group="b")
    assert told(await receive(harness, 1, seconds=5)) == [("a0", 1)]
    await harness.advance(5)
    got = told(await receive(harness)) + told(await receive(harness))
    assert sorted(got) == [("a1", 1), ("b0", 1)]
    assert harness.deliveries.stats.dead_letters == 1


async def test_a_long_run_of_a_busy_message_group_is_skipped_once(start: Start) -> None:
    """A long run of a busy message group is read once. Messages behind it are delivered with the next receive."""
    harness = await start()
    await harness.send("a", message_group="a")
    [busy] = await receive(harness, 1)
    await harness.send(*[f"a{number}" for number in range(2000)], message_group="a")
    await harness.send("b0", "b1", message_group="b")
    [found] = await receive(harness, 1)
    assert told([found]) == [("b0", 1)]
    await acknowledge(harness, found)
    read_before = harness.store.stats.messages_read
    assert told(await receive(harness, 1)) == [("b1", 1)]
    assert await receive(harness, 1) == []
    assert harness.store.stats.messages_read <= read_before + 2  # b1, and once more if it was read before
    await acknowledge(harness, busy)
    assert told(await receive(harness, 2)) == [("a0", 1), ("a1", 1)]


async def test_a_stuck_message_group_never_blocks_another(start: Start) -> None:
    """Above the limit its messages are paged out. Other groups continue, memory is bounded, a crash loses nothing."""
    harness = await start(fifo_waiting_max=10)
    await harness.send("a", message_group="a")
    [busy] = await receive(harness, 1)
    for turn in range(3):
        await harness.send(*[f"a{number}" for number in range(200 * turn, 200 * (turn + 1))], message_group="a")
        await harness.send(f"b{turn}", message_group="b")
    queue = harness.deliveries.queue_delivery(TOPIC, LEDGER, 0)
    assert queue is not None
    for turn in range(3):
        found = await receive(harness, 1)
        assert told(found) == [(f"b{turn}", 1)]
        await acknowledge(harness, *found)
        assert len(queue.ready) <= 10 + 2 * PAGE_SIZE
    assert queue.waiting_count >= 400
    assert await receive(harness) == []
    assert queue.waiting_count == 600
    harness = await harness.crash()
    queue = harness.deliveries.queue_delivery(TOPIC, LEDGER, 0)
    assert queue is not None
    assert (len(queue.ready), len(queue.unread)) == (0, 600), "a bit each until they are read, in steps"
    await harness.send("c", message_group="c")
    found = await receive(harness)
    assert told(found) == [("c", 1)]
    queue = harness.deliveries.queue_delivery(TOPIC, LEDGER, 0)
    assert queue is not None
    assert queue.waiting_count == 600
    assert len(queue.ready) <= 10 + PAGE_SIZE
    await acknowledge(harness, *found, busy)
    number = 0
    while number < 600:
        found = await receive(harness, 50)
        assert told(found) == [(f"a{number + index}", 1) for index in range(len(found))]
        assert found
        number += len(found)
        await acknowledge(harness, *found)
    assert await receive(harness) == []
    assert queue.is_trivial


async def test_the_first_receive_after_a_start_reads_only_a_part(start: Start) -> None:
    """The first messages are delivered as soon as they are read. The others follow in order, new ones last."""
    harness = await start()
    await harness.send("a", message_group="a")
    [busy] = await receive(harness, 1)
    await harness.send(*[f"a{number}" for number in range(1200)], message_group="a")
    while await receive(harness, 1):
        pass  # until all were skipped
    await harness.deliveries._history.snapshot()
    await harness.tables.save()
    harness = await harness.crash()
    queue = harness.deliveries.queue_delivery(TOPIC, LEDGER, 0)
    assert queue is not None
    assert len(queue.unread) == 1200
    await harness.send("a1200", message_group="a")
    await acknowledge(harness, busy)
    read_before = harness.store.stats.messages_read
    found = await receive(harness, 2)
    assert told(found) == [("a0", 1), ("a1", 1)]
    assert harness.store.stats.messages_read <= read_before + 300
    number = 0
    while number < 1201:
        assert told(found) == [(f"a{number + index}", 1) for index in range(len(found))]
        assert found
        number += len(found)
        await acknowledge(harness, *found)
        found = await receive(harness, 1000)
    assert found == []
    assert queue.is_trivial


async def test_a_filter_skips_messages_of_a_busy_message_group(start: Start) -> None:
    """A later receive may have another filter. Messages that it filters out no longer lock the group."""
    harness = await start()
    await harness.send("a0", message_group="a", tag="even")
    await harness.send("a1", message_group="a", tag="odd")
    await harness.send("a2", message_group="a", tag="even")
    first = await receive(harness, 1)
    assert await receive(harness) == []
    await acknowledge(harness, *first)
    assert told(await receive(harness, tags=frozenset({"even"}))) == [("a2", 1)]


@pytest.mark.parametrize("seconds", [60.0, None])
async def test_a_repeated_attempt_gets_the_same_delivery(start: Start, seconds: float | None) -> None:
    """A repeated attempt returns the same messages, attempts and handles, from all queues, also after a crash."""
    harness = await start()
    await harness.send("a0", "a1", "a2", message_group="a")
    await harness.send("b0", queue_id=1, message_group="b")
    first = await receive(harness, seconds=seconds, attempt_id="one")
    assert len(first) == 4
    assert await receive(harness, seconds=seconds, attempt_id="two") == []
    assert await receive(harness, seconds=seconds, attempt_id="one", client_id="other") == []
    again = await receive(harness, seconds=seconds, attempt_id="one")
    assert sorted((*pair, m.receipt_handle) for pair, m in zip(told(again), again, strict=True)) == sorted(
        (*pair, m.receipt_handle) for pair, m in zip(told(first), first, strict=True)
    )
    harness = await harness.crash()
    again = await receive(harness, seconds=seconds, attempt_id="one")
    assert sorted(told(again)) == [("a0", 1), ("a1", 1), ("a2", 1), ("b0", 1)]
    await acknowledge(harness, *again[:2])
    assert len(await receive(harness, seconds=seconds, attempt_id="one")) == 2
    await acknowledge(harness, *again[2:])
    await harness.send("a3", message_group="a")
    assert told(await receive(harness, seconds=seconds, attempt_id="one")) == [("a3", 1)]


async def test_an_unwritten_answer_costs_no_attempt(start: Start) -> None:
    """Messages that were given back are delivered again at once, in order and as the same attempt."""
    harness = await start()
    await harness.send("a0", "a1", message_group="a")
    first = await receive(harness, seconds=None, attempt_id="one")
    harness.deliveries.give_back(TOPIC, LEDGER, [message.receipt_handle for message in first])
    assert told(await receive(harness, seconds=None, attempt_id="one")) == [("a0", 1), ("a1", 1)]


@pytest.mark.parametrize("orderly_stop", [False, True])
async def test_order_survives_the_process(start: Start, orderly_stop: bool) -> None:
    """Locks, attempts and skipped messages survive a restart. Finished messages are not delivered again."""
    harness = await start()
    for number in range(4):
        await harness.send(f"a{number}", message_group="a")
        await harness.send(f"b{number}", message_group="b")
    [a0] = await receive(harness, 1, seconds=10)
    b0, b1 = await receive(harness, 2, seconds=60)
    assert told([a0, b0, b1]) == [("a0", 1), ("b0", 1), ("b1", 1)]
    await acknowledge(harness, b0)
    harness = await (harness.restart() if orderly_stop else harness.crash())
    assert await receive(harness) == []
    await acknowledge(harness, b1)
    rest = await receive(harness, seconds=60)
    assert told(rest) == [("b2", 1), ("b3", 1)]
    await harness.advance(10)
    again = await receive(harness, seconds=60)
    assert told(again) == [("a0", 2)]
    await acknowledge(harness, *again)
    assert told(await receive(harness, seconds=60)) == [("a1", 1), ("a2", 1), ("a3", 1)]
    await acknowledge(harness, *rest)
    harness = await harness.crash()
    assert await receive(harness) == []
    await harness.advance(60)
    again = await receive(harness)
    assert told(again) == [("a1", 2), ("a2", 2), ("a3", 2)]
    await acknowledge(harness, *again)
    assert [queue.lag for queue in list(harness.deliveries.statuses(LEDGER))] == [0, 0]


async def test_skipped_messages_are_in_the_journal_before_a_crash(start: Start) -> None:
    """Skipped messages that need several journal messages are delivered once and in order after a crash."""
    harness = await start()
    await harness.send("a", message_group="a")
    [busy] = await receive(harness, 1)
    for number in range(600):  # alternating, so that each is its own run
        await harness.send(f"a{number}", message_group="a")
        await harness.send(f"b{number}", message_group="b")
    others = []
    while batch := await receive(harness, 32):
        others += batch
        await acknowledge(harness, *batch)
    assert told(others) == [(f"b{number}", 1) for number in range(600)]
    harness = await harness.crash()
    assert await receive(harness) == []
    await acknowledge(harness, busy)
    got = []
    while batch := await receive(harness, 32):
        got += batch
        await acknowledge(harness, *batch)
    assert told(got) == [(f"a{number}", 1) for number in range(600)]
    assert harness.store.queue_range(JOURNAL_TOPIC, 0)[1] < 200  # one record for a batch, not for each message


async def test_a_group_becomes_standard_and_orderly_again(start: Start) -> None:
    """A standard group gets held-back messages at once. After a change back to orderly, the order applies again."""
    harness = await start()
    await harness.send("a0", "a1", "a2", "a3", message_group="a")
    [first] = await receive(harness, 1)
    assert await receive(harness) == []
    orderly = harness.tables.groups.require(LEDGER)
    saved(harness.tables.groups).update(dataclasses.replace(orderly, consume_orderly=False))
    second, third = await receive(harness, 2)
    assert told([second, third]) == [("a1", 1), ("a2", 1)]
    saved(harness.tables.groups).update(orderly)
    await acknowledge(harness, first, second)
    assert await receive(harness) == []
    harness = await harness.crash()
    assert await receive(harness) == []
    await acknowledge(harness, third)
    assert told(await receive(harness)) == [("a3", 1)]


async def test_a_receive_of_one_queue_is_woken_by_that_queue(start: Start) -> None:
    """An arrival or an acknowledgement in a queue wakes its receive, not those of other queues."""
    harness = await start()
    waiting = [asyncio.create_task(receive(harness, 1, wait=30, queue_id=queue_id)) for queue_id in (0, 1)]
    for _ in range(5):
        await asyncio.sleep(0)
    await harness.send("a0", "a1", queue_id=1, message_group="a")
    first = await asyncio.wait_for(waiting[1], 60)
    assert told(first) == [("a0", 1)]
    following = asyncio.create_task(receive(harness, 1, wait=30, queue_id=1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not following.done()
    await acknowledge(harness, *first)
    assert told(await asyncio.wait_for(following, 60)) == [("a1", 1)]
    assert not waiting[0].done()
    await harness.send("b0", message_group="b")
    assert told(await asyncio.wait_for(waiting[0], 60)) == [("b0", 1)]
