"""Delivery on a real store: what a group receives, when messages are redelivered, and the effect of a restart."""

from __future__ import annotations

import asyncio
import gc

import pytest

from aerobee_broker.delivery.journal.event_log import JOURNAL_GROUP, JOURNAL_TOPIC
from aerobee_broker.delivery.journal.history import History
from aerobee_broker.delivery.receive import auto_renewals, visibility
from aerobee_broker.delivery.receive.receive_plan import ReceiveRequest
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from aerobee_broker.delivery.state.subscriptions import Queue
from aerobee_broker.errors import (
    GroupNotFoundError,
    InvalidReceiptHandleError,
    TooManyRequestsError,
)
from aerobee_broker.filters.message_filter import filter_of
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.topics import TopicConfig
from tests.support.delivery_harness import GROUP, TOPIC, Start, bodies
from tests.support.saved_tables import saved


def attempts(messages: list[DeliveredMessage]) -> dict[str, int]:
    """Body -> delivery attempt."""
    return {message.record.body.decode(): message.attempt for message in messages}


# --- Resets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consume_orderly", [False, True])
@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_a_reset_survives_a_crash(start: Start, end: str, consume_orderly: bool) -> None:
    """A backward reset survives a crash right after it, and one after more deliveries.

    Only messages acknowledged since the reset stay acknowledged. Handles from before the reset are invalid.
    """
    harness = await start()
    harness.tables.groups.update(GroupConfig(name=GROUP, consume_orderly=consume_orderly))
    await harness.tables.save()
    await harness.send("a", "b", "c", "d")
    old = await harness.receive()
    await harness.acknowledge(*old[:3])
    await harness.deliveries.reset(TOPIC, GROUP, {0: 1})
    harness = await getattr(harness, end)()
    assert await harness.acknowledge(old[3]) == [False]
    with pytest.raises(InvalidReceiptHandleError):
        await harness.deliveries.change_invisible(TOPIC, GROUP, old[3].receipt_handle, 0)
    again = await harness.receive()
    assert attempts(again) == {"b": 1, "c": 1, "d": 1}
    await harness.acknowledge(*(each for each in again if each.record.body == b"b"))
    assert harness.deliveries.committed_offset(TOPIC, GROUP, 0) == 2
    harness = await (await harness.crash()).crash()
    assert harness.deliveries.committed_offset(TOPIC, GROUP, 0) == 2
    await harness.advance(60)
    assert attempts(await harness.receive()) == {"c": 2, "d": 2}


async def test_a_forward_reset_skips_messages(start: Start) -> None:
    """It skips messages in flight, never delivered or ready again, also after a crash, at most to the queue's end."""
    harness = await start()
    await harness.send("a", "b", "c", "d")
    [first] = await harness.receive(count=1)
    await harness.deliveries.change_invisible(TOPIC, GROUP, first.receipt_handle, 0)
    await harness.receive(count=1)
    await harness.deliveries.reset(TOPIC, GROUP, {0: 3, 1: 99})
    assert bodies(await harness.receive()) == ["d"]
    harness = await harness.crash()
    await harness.advance(60)
    assert attempts(await harness.receive()) == {"d": 2}
    await harness.deliveries.reset(TOPIC, GROUP, {0: 1 << 40})
    await harness.send("e")
    assert attempts(await harness.receive()) == {"e": 1}


async def test_a_reset_wakes_a_waiting_receive(start: Start) -> None:
    """A receive that waits for new messages gets the old ones."""
    harness = await start()
    await harness.send("a")
    await harness.acknowledge(*await harness.receive())
    waiting = asyncio.ensure_future(harness.receive(wait=20))
    await asyncio.sleep(0)
    await harness.deliveries.reset(TOPIC, GROUP, {0: 0})
    assert bodies(await asyncio.wait_for(waiting, 60)) == ["a"]


async def test_the_table_gets_a_reset_with_the_next_snapshot(start: Start) -> None:
    """The table gets the offset together with the snapshot after the reset.

    Earlier, a replay from before the reset would make all messages in between ready, one by one.
    """
    harness = await start()
    await harness.send("a", "b")
    await harness.acknowledge(*await harness.receive())
    await harness.deliveries.reset(TOPIC, GROUP, {0: 0})
    journal_begin = harness.tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, 0)
    for _ in range(6000):
        offset = harness.tables.offsets.get(TOPIC, GROUP, 0)
        position = harness.tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, 0)
        assert (offset == 2) == (position == journal_begin)
        if offset == 0:
            break
        await asyncio.sleep(0.01)
    assert offset == 0


async def test_a_subscription_that_was_deleted(start: Start) -> None:
    """Its state and offset are removed, those of the group's other topics stay; it starts afresh."""
    harness = await start()
    harness.tables.topics.create(TopicConfig.of_type("other", queue_count=1))
    await harness.tables.save()
    for topic in (TOPIC, "other"):
        await harness.send("a", topic=topic)
        await harness.acknowledge(*await harness.receive(topic=topic), topic=topic)
    await harness.deliveries.delete_subscription(TOPIC, GROUP)
    harness = await harness.crash()
    assert [status.topic for status in list(harness.deliveries.statuses(GROUP))] == ["other"]
    assert attempts(await harness.receive()) == {"a": 1}
    assert await harness.receive(topic="other") == []


# --- Handles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_an_acknowledgement_that_is_repeated_after_a_restart(start: Start, end: str) -> None:
    """It is OK, because the answer may have been lost. The handle of another group, or of an unfinished message, is
    refused.

    Without a restart, only the handle that acknowledged is accepted again.
    """
    harness = await start()
    await harness.send("a", "b")
    await harness.acknowledge(*await harness.receive(group="audit"), group="audit")
    messages = await harness.receive()
    stale = await harness.deliveries.change_invisible(TOPIC, GROUP, messages[0].receipt_handle, 30_000)
    assert await harness.deliveries.acknowledge(TOPIC, GROUP, [stale]) == [None]
    assert await harness.deliveries.acknowledge(TOPIC, GROUP, [stale]) == [None]
    assert await harness.acknowledge(messages[0]) == [False]
    harness = await getattr(harness, end)()
    for group in (GROUP, "audit"):
        [error] = await harness.deliveries.acknowledge(TOPIC, group, [stale])
        assert (error is None) == (group == GROUP)
    with pytest.raises(InvalidReceiptHandleError):
        await harness.deliveries.change_invisible(TOPIC, GROUP, stale, 0)
    await harness.advance(60)
    assert await harness.acknowledge(messages[1]) == [False]
    assert attempts(await harness.receive()) == {"b": 2}


# --- Long backlogs -------------------------------------------------------------------------------------------


async def test_a_receive_in_a_backlog_without_matches_ends_in_time(start: Start) -> None:
    """It ends in time, and the next one continues where it stopped, also after a crash."""
    harness = await start()
    await harness.send(*(f"{n}" for n in range(12_000)), tag="other")
    await harness.send("wanted", tag="mine")

    async def look(condition: str) -> list[DeliveredMessage]:
        return await harness.deliveries.receive(
            ReceiveRequest(
                topic=TOPIC,
                group=GROUP,
                client_id="c",
                count=1,
                invisible_ms=60_000,
                wait_seconds=20,
                look_seconds=0,
                wanted=filter_of(condition, is_sql=True),
            )
        )

    lags = []
    for _ in range(4):
        assert await look("TAGS = 'mine'") == []
        lags.append(next(iter(harness.deliveries.statuses(GROUP))).lag)
    assert lags == sorted(set(lags), reverse=True), "each has looked at some more"
    while lags[-1] > 12_001 - 5000:
        assert await look("TAGS = 'mine'") == []
        lags.append(next(iter(harness.deliveries.statuses(GROUP))).lag)
    await harness.store.wait_stored(harness.store.positions[0])
    harness = await harness.crash()
    assert await look("TAGS = 'mine'") == []
    assert next(iter(harness.deliveries.statuses(GROUP))).lag < 12_001 - 4000, (
        "at most 4096 messages are looked at again"
    )
    assert bodies(await harness.receive(tags=frozenset({"mine"}))) == ["wanted"]


# --- Receive and acknowledge --------------------------------------------------------------------------------


async def test_receive_serves_queues_in_turn(start: Start) -> None:
    """A queue that always has messages does not starve the others."""
    harness = await start()
    await harness.send(*"abcdefgh", queue_id=0)
    await harness.send("x", queue_id=1)
    got = [bodies(await harness.receive(1))[0] for _ in range(2)]
    assert "x" in got


async def test_redelivery_comes_before_new_messages(start: Start) -> None:
    """A failed message does not wait behind a backlog."""
    harness = await start()
    await harness.send(*"abc")
    await harness.receive(1, seconds=5)
    await harness.advance(5)
    assert attempts(await harness.receive(2)) == {"a": 2, "b": 1}


# --- Filters ------------------------------------------------------------------------------------------------


async def test_filter_that_matches_nothing_does_not_lose_later_messages(start: Start) -> None:
    """A skipped backlog is not scanned again, and later messages are still found."""
    harness = await start()
    await harness.send(*(f"skip-{i}" for i in range(200)), tag="x")
    assert await harness.receive(tags=frozenset({"y"})) == []
    await harness.send("wanted", tag="y")
    assert bodies(await harness.receive(tags=frozenset({"y"}))) == ["wanted"]
    harness = await harness.crash()
    assert await harness.receive(tags=frozenset({"y"})) == []


# --- Handles ------------------------------------------------------------------------------------------------


async def test_a_handle_expires_with_its_time_and_not_with_the_timer(start: Start) -> None:
    """The invisible time is over, and the timer has not run yet: the acknowledgement is refused all the same."""
    harness = await start()
    await harness.send("a", "b")
    acknowledged, changed = await harness.receive(seconds=10)
    harness.clock.advance(10)
    assert await harness.acknowledge(acknowledged) == [False]
    with pytest.raises(InvalidReceiptHandleError):
        await harness.deliveries.change_invisible(TOPIC, GROUP, changed.receipt_handle, 10_000)


# --- Long polling -------------------------------------------------------------------------------------------


async def test_expiry_ends_a_wait(start: Start) -> None:
    """The timer wakes the group's waiting receives, without polling."""
    harness = await start()
    await harness.send("a")
    await harness.receive(seconds=10)
    waiting = asyncio.create_task(harness.receive(wait=20, client_id="other"))
    await asyncio.sleep(0.01)
    await harness.advance(10)
    async with asyncio.timeout(60):
        assert attempts(await waiting) == {"a": 2}


async def test_messages_reach_all_waiting_receives(start: Start) -> None:
    """Many messages arrive at once: each receive that leaves some wakes the next one."""
    harness = await start()
    waiting = [asyncio.create_task(harness.receive(2, wait=20, client_id=f"c{i}")) for i in range(4)]
    await asyncio.sleep(0.01)
    await harness.send(*"abcdefg")
    async with asyncio.timeout(60):
        got = await asyncio.gather(*waiting)
    assert sorted(body for messages in got for body in bodies(messages)) == list("abcdefg")


async def test_a_receive_that_is_cancelled_before_its_answer_keeps_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled while its delivery is written to the journal: the message is ready again at once."""
    harness = await start()
    assert await harness.receive() == []  # from here on, the journal has the queues
    await harness.send("a")
    writing = asyncio.Event()

    async def never(_: History) -> None:
        writing.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(History, "wait_logged", never)
        receiving = asyncio.create_task(harness.receive())
        await asyncio.wait_for(writing.wait(), 60)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
    assert bodies(await harness.receive()) == ["a"]


async def test_messages_in_flight_are_bounded(start: Start) -> None:
    """A group that never acknowledges gets no more until it does."""
    harness = await start(in_flight_per_group_max=3)
    await harness.send(*"abcde")
    messages = await harness.receive()
    assert bodies(messages) == ["a", "b", "c"]
    with pytest.raises(TooManyRequestsError, match="in flight"):
        await harness.receive()
    await harness.acknowledge(messages[0])
    assert bodies(await harness.receive()) == ["d"]


# --- Clients ------------------------------------------------------------------------------------------------


async def test_auto_renewed_message_stays_invisible_while_its_client_lives(start: Start) -> None:
    """It stays invisible for longer than one renewal, with the first handle, but not without limit."""
    harness = await start()
    await harness.send("a", "b")
    messages = await harness.receive(seconds=None)
    await harness.advance(2 * 3600)
    assert await harness.receive(client_id="other") == []
    assert await harness.acknowledge(messages[0]) == [True]
    await harness.advance(3600)
    assert attempts(await harness.receive(client_id="other")) == {"b": 2}


async def test_messages_of_a_lost_client_are_redelivered_after_a_second(start: Start) -> None:
    """Only that client's auto-renewed messages are redelivered."""
    harness = await start()
    await harness.send("a", "b", "c")
    await harness.receive(1, seconds=None, client_id="dying")
    await harness.receive(1, seconds=None, client_id="living")
    await harness.receive(1, seconds=600, client_id="dying")
    waiting = asyncio.create_task(harness.receive(wait=20, client_id="living"))
    await asyncio.sleep(0.01)
    harness.deliveries.client_gone("dying")
    await harness.advance(0.999)
    assert not waiting.done()
    await harness.advance(0.001)
    async with asyncio.timeout(60):
        assert attempts(await waiting) == {"a": 2}


# --- Dead letters -------------------------------------------------------------------------------------------


async def test_a_forwarded_message_is_not_delivered_after_a_crash(start: Start) -> None:
    harness = await start()
    await harness.send("a")
    [message] = await harness.receive()
    await harness.deliveries.forward_to_dead_letter_queue(TOPIC, GROUP, message.receipt_handle)
    harness = await harness.crash()
    await harness.advance(3600)
    assert await harness.receive() == []


async def test_attempts_are_counted_over_restarts(start: Start) -> None:
    """Neither a crash nor a clean stop gives a message more attempts than its group allows."""
    harness = await start()
    harness.tables.groups.update(GroupConfig(name=GROUP, retry_max_times=2))
    await harness.tables.save()
    await harness.send("a")
    assert attempts(await harness.receive(seconds=1)) == {"a": 1}
    harness = await harness.crash()
    await harness.advance(1)
    assert attempts(await harness.receive(seconds=1)) == {"a": 2}
    harness = await harness.restart()
    await harness.advance(1)
    assert attempts(await harness.receive(seconds=1)) == {"a": 3}
    await harness.advance(1)
    assert await harness.receive() == []
    assert bodies(await harness.receive(group="audit", topic=f"%DLQ%{GROUP}", wait=5)) == ["a"]


async def test_many_exhausted_messages_do_not_hide_one_that_can_be_delivered(start: Start) -> None:
    """A receive skips exhausted messages until it finds one to deliver, or reaches the end."""
    harness = await start()
    saved(harness.tables.groups).update(GroupConfig(name=GROUP, retry_max_times=0))
    await harness.send(*(f"dead-{i}" for i in range(10)))
    await harness.receive(seconds=1)
    await harness.advance(1)
    await harness.send("alive")
    assert bodies(await harness.receive(2)) == ["alive"]
    await harness.send("also alive")
    assert bodies(await harness.receive(2)) == ["also alive"]
    assert await harness.receive(2) == []
    assert harness.deliveries.stats.dead_letters == 10


# --- Restarts -----------------------------------------------------------------------------------------------


async def test_changed_time_and_handle_survive_a_crash(start: Start) -> None:
    """The new handle acknowledges, the old one is still invalid."""
    harness = await start()
    await harness.send("a")
    [message] = await harness.receive(seconds=1)
    handle = await harness.deliveries.change_invisible(TOPIC, GROUP, message.receipt_handle, 3_600_000)
    harness = await harness.crash()
    await harness.advance(60)
    assert await harness.receive() == []
    assert await harness.acknowledge(message) == [False]
    assert await harness.deliveries.acknowledge(TOPIC, GROUP, [handle]) == [None]


async def test_auto_renewed_messages_wait_for_their_client_after_a_restart(start: Start) -> None:
    """The client has 30 s to return; then other consumers get its messages."""
    harness = await start()
    await harness.send("a", "b")
    await harness.receive(1, seconds=None, client_id="returns")
    await harness.receive(1, seconds=None, client_id="stays-away")
    harness = await harness.crash()
    harness.connected.add("returns")
    await harness.advance(29)
    assert await harness.receive(client_id="other") == []
    await harness.advance(2)
    await harness.advance(2)
    assert attempts(await harness.receive(client_id="other")) == {"b": 2}


async def test_many_restarts_lose_and_repeat_nothing(start: Start) -> None:
    """Acknowledgements out of order, snapshots in between, and every kind of stop."""
    harness = await start(snapshot_event_count=5)
    expected: set[str] = set()
    finished: set[str] = set()
    for round_ in range(6):
        sent = [f"{round_}-{i}" for i in range(20)]
        await harness.send(*sent[:10], queue_id=0)
        await harness.send(*sent[10:], queue_id=1)
        expected.update(sent)
        messages = await harness.receive(seconds=10) + await harness.receive(seconds=10)
        assert not finished & set(bodies(messages))
        done = [message for message in messages if message.record.queue_offset % 3 != round_ % 3]
        assert all(await harness.acknowledge(*done))
        finished.update(bodies(done))
        await asyncio.sleep(0.02)  # for a snapshot
        harness = await (harness.crash() if round_ % 2 else harness.restart())
        await harness.advance(10)
    rest: list[DeliveredMessage] = []
    while more := await harness.receive():
        rest += more
    assert set(bodies(rest)) == expected - finished


async def test_replay_begins_at_the_last_snapshot(start: Start) -> None:
    """The journal's replay position advances, so a start reads little."""
    harness = await start()
    await harness.send(*(f"m{i}" for i in range(20)))
    for message in await harness.receive():
        await harness.acknowledge(message)
    harness = await harness.restart()
    position = harness.tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, 0)
    assert position is not None
    assert harness.store.queue_range(JOURNAL_TOPIC, 0)[1] - position <= 2
    assert await harness.receive() == []


async def test_new_group_begins_where_the_configuration_says(start: Start) -> None:
    """Earliest: all stored messages. Latest: only later ones, also if the broker crashes before any arrives."""
    harness = await start(initial_position="latest")
    await harness.send("old")
    assert await harness.receive() == []
    harness = await harness.crash()
    await harness.send("new")
    assert bodies(await harness.receive()) == ["new"]
    harness = await start(initial_position="earliest")
    await harness.send("old")
    assert bodies(await harness.receive()) == ["old"]


async def test_commit_offset_after_the_end_of_the_log_is_corrected(start: Start) -> None:
    """A power failure with async flush may leave a saved offset beyond the log: new messages are not skipped."""
    harness = await start()
    await harness.send("a")
    harness.tables.offsets.commit(TOPIC, GROUP, 0, 100)
    assert await harness.receive() == []
    await harness.send("b")
    assert bodies(await harness.receive()) == ["b"]


async def test_state_of_a_deleted_topic_is_removed(start: Start) -> None:
    """State, offsets and waiting receives end, also after a crash; a new topic of that name starts afresh."""
    harness = await start()
    await harness.send("a", "b")
    [message] = await harness.receive(1)
    harness.tables.topics.delete(TOPIC)
    await harness.deliveries.delete_topic(TOPIC)
    assert await harness.acknowledge(message) == [False]
    assert list(harness.deliveries.statuses(GROUP)) == []
    await harness.tables.save()
    harness = await harness.crash()
    assert list(harness.deliveries.statuses(GROUP)) == []


def in_memory() -> tuple[int, int]:
    """Queues in which a group has a position, whoever refers to them, and times at which the timer looks at one."""
    gc.collect()
    found = gc.get_objects()
    times = (each for each in found if isinstance(each, tuple) and len(each) == 3 and isinstance(each[2], Queue))
    return sum(isinstance(each, Queue) and each.key.topic == TOPIC for each in found), len(list(times))


@pytest.mark.parametrize("seconds", [60.0, None])
@pytest.mark.parametrize("deleted", ["group", "topic"])
async def test_messages_in_flight_leave_no_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch, deleted: str, seconds: float | None
) -> None:
    """Queues stayed in memory for each group that was deleted with messages in flight."""
    monkeypatch.setattr(visibility, "_OUTDATED_MAX", 0)
    monkeypatch.setattr(auto_renewals, "_PRUNED_SIZE", 1)
    harness = await start()
    for number in range(5):
        await harness.send("a")
        harness.tables.groups.create(GroupConfig(name=f"g{number}"))
        await harness.tables.save()
        await harness.receive(seconds=seconds, group=f"g{number}")
        if deleted == "group":
            await harness.deliveries.delete_group(f"g{number}")
        else:
            await harness.deliveries.delete_topic(TOPIC)
    assert in_memory()[0] <= 2  # the last one, and one at which a client's queues are not pruned


async def test_shorter_and_shorter_times_leave_no_memory(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each left an entry of the timer for as long as the first time, up to twelve hours."""
    monkeypatch.setattr(visibility, "_OUTDATED_MAX", 10)
    harness = await start()
    await harness.send("a")
    [message] = await harness.receive(seconds=3_600)
    handle = message.receipt_handle
    for number in range(200):
        handle = await harness.deliveries.change_invisible(TOPIC, GROUP, handle, 3_600_000 - 1_000 * number - 1_000)
    assert in_memory()[1] <= 20


async def test_receive_of_a_deleted_group_ends_with_an_error(start: Start) -> None:
    """It fails at once instead of waiting for its timeout."""
    harness = await start()
    waiting = asyncio.create_task(harness.receive(wait=20))
    await asyncio.sleep(0.01)
    saved(harness.tables.groups).delete(GROUP)
    await harness.deliveries.delete_group(GROUP)
    async with asyncio.timeout(60):
        with pytest.raises(GroupNotFoundError):
            await waiting


async def test_status_has_the_progress_of_a_group(start: Start) -> None:
    """Committed offset, lag, and messages in flight and ready."""
    harness = await start()
    await harness.send(*"abcde")
    messages = await harness.receive(3, seconds=10)
    await harness.acknowledge(messages[0])
    [status, idle] = list(harness.deliveries.statuses(GROUP))
    assert (status.commit_offset, status.max_offset, status.lag, status.in_flight, status.ready) == (1, 5, 4, 2, 2)
    assert (idle.queue_id, idle.lag) == (1, 0)
    await harness.advance(10)
    [status, _] = list(harness.deliveries.statuses(GROUP))
    assert (status.in_flight, status.ready) == (0, 4)


async def test_paused_group_gets_nothing(start: Start) -> None:
    """An operator paused it; its receives wait as if there were no messages."""
    harness = await start()
    await harness.send("a")
    saved(harness.tables.groups).update(GroupConfig(name=GROUP, consume_enabled=False))
    assert await harness.receive(wait=0.02) == []
    saved(harness.tables.groups).update(GroupConfig(name=GROUP))
    assert bodies(await harness.receive()) == ["a"]
