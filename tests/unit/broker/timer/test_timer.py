"""Delayed messages on a real store: delivery, restarts and recalls."""

from __future__ import annotations

import asyncio
import contextlib
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config.timer import TimerConfig
from aerobee_broker.limits import loop_share
from aerobee_broker.timer.state import TIMER_ORIGIN
from aerobee_broker.timer.wheel_timer import MessageNotPendingError
from aerobee_store import ConfigError, StoreConfig, StoreFullError
from aerobee_store.records import properties as p
from aerobee_store.records.message_fields import TIMER_TOPIC
from aerobee_store.records.record import Message
from aerobee_store.testing import ManualClock, MemoryFileSystem
from aerobee_store.timer.checkpoint import TIMER_CHECKPOINT_SIZE
from tests.support.timer_harness import START_MS, STORE, TOPIC, TimerHarness

Start = Callable[..., Awaitable[TimerHarness]]


@pytest.fixture(params=["sync", "async"])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    """Starts timers in either flush mode, and ends those that still run."""
    harnesses: list[TimerHarness] = []

    async def begin(*arguments: Any, store: StoreConfig = STORE, **settings: Any) -> TimerHarness:
        store = replace(store, flush=request.param)
        harness = await TimerHarness.start(*arguments, store=store, **settings)
        harnesses.append(harness)
        next_life = harness.next_life

        async def follow(disk: MemoryFileSystem) -> TimerHarness:
            harnesses.append(await next_life(disk))
            return harnesses[-1]

        harness.next_life = follow  # type: ignore[method-assign]  # to end all of them
        return harness

    yield begin
    for harness in harnesses:
        await harness.abandon()


# --- Delivery -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision_ms", [100, 1000])
async def test_message_is_delivered_in_its_millisecond(start: Start, precision_ms: int) -> None:
    """A message is delivered in its millisecond and not before, for any precision."""
    harness = await start(precision_ms=precision_ms)
    await harness.send("a", 1.234)
    await harness.send("b", 1.235)
    await harness.advance(1.233)
    assert harness.bodies() == []
    await harness.advance(0.001)
    assert harness.bodies() == ["a"]
    await harness.advance(0.001)
    assert harness.bodies() == ["a", "b"]


async def test_boundaries_of_the_steps(start: Start) -> None:
    """Messages due at a step, one millisecond before or after it are each delivered in their millisecond."""
    harness = await start()
    ahead_ms = [999, 1000, 1001, 1999, 2000, 2001]
    for ahead in ahead_ms:
        await harness.send(str(ahead), ahead / 1000)
    for _ in range(2100):
        await harness.advance(0.001)
    assert [(item.body, item.at_ms - START_MS) for item in harness.delivered()] == [(str(ms), ms) for ms in ahead_ms]


async def test_copy_is_the_message_that_was_sent(start: Start) -> None:
    """Body, properties, birth and queue are copied. The real topic is dropped, and the origin is added."""
    harness = await start()
    message = Message(
        TOPIC,
        3,
        b"body",
        {p.UNIQ_KEY: "id", p.TAGS: "t", p.KEYS: "k1 k2", "colour": "red"},
        born_timestamp=START_MS - 5,
        born_host=("10.1.2.3", 5000),
        flag=7,
        sys_flag=1,
        reconsume_times=2,
    )
    appended = harness.store.append([harness.timer.delayed(message, START_MS + 1500)])
    await harness.store.wait_stored(appended[-1].end)
    await harness.settle()
    await harness.advance(2)
    [copy] = [item.record for item in harness.delivered()]
    assert (copy.topic, copy.queue_id, copy.body, copy.flag, copy.sys_flag) == (TOPIC, 3, b"body", 7, 1)
    assert (copy.born_timestamp, copy.born_host, copy.reconsume_times) == (START_MS - 5, ("10.1.2.3", 5000), 2)
    properties = dict(copy.properties)
    assert properties.pop(p.CRC32)
    assert properties == {
        p.UNIQ_KEY: "id",
        p.TAGS: "t",
        p.KEYS: "k1 k2",
        "colour": "red",
        p.TIMER_DELIVER_MS: str(START_MS + 1500),
        p.TIMER_OUT_MS: str(START_MS + 1000),
        p.TIMER_ENQUEUE_MS: str(START_MS),
        p.TIMER_DEQUEUE_MS: str(START_MS + 2000),
        TIMER_ORIGIN: "0",
    }
    assert [found.queue_id for found in harness.store.query(TOPIC, "k2")] == [3]


async def test_messages_of_one_moment_keep_the_order_of_sending(start: Start) -> None:
    """Messages due at the same time keep their order, even if some arrive after their slot was loaded."""
    harness = await start()
    due_ms = START_MS + 1500
    await harness.send_all([(str(number), due_ms) for number in range(5)])
    await harness.advance(1.2)
    await harness.send_all([(str(number), due_ms) for number in range(5, 10)])
    await harness.advance(1)
    assert harness.bodies() == [str(number) for number in range(10)]


async def test_message_for_the_current_second_is_delivered(start: Start) -> None:
    """A message for the slot that is being delivered is not lost, even in a crash."""
    harness = await start()
    await harness.send("first", 0.9)
    await harness.advance(0.5)
    await harness.send("late", 0.2)
    await harness.save()
    harness = await harness.next_life(harness.disk.kill())
    await harness.advance(0.2)
    assert harness.bodies() == ["late"]
    await harness.advance(0.2)
    assert harness.bodies() == ["late", "first"]


async def test_due_messages_do_not_wait_for_a_backlog(start: Start) -> None:
    """Due messages are delivered while a backlog of new ones is still being enqueued."""
    harness = await start()
    await harness.send("due", 1.5)
    far_ms = harness.clock.now_ms() + 60_000
    backlog = [
        harness.timer.delayed(Message(TOPIC, 0, b"far", {p.UNIQ_KEY: f"far-{number}"}), far_ms)
        for number in range(2000)
    ]
    end = harness.store.append(backlog)[-1].end
    harness.clock.advance(1.5)
    await harness.store.wait_stored(end)
    async with asyncio.timeout(60):
        while not harness.timer.stats.dequeued:
            harness.timer.wake()
            await asyncio.sleep(0)
    assert harness.timer.stats.dequeued == {TOPIC: 1}
    assert harness.timer.enqueue_lag > 1000
    await harness.settle()
    assert harness.timer.enqueue_lag == 0
    assert harness.timer.stats.pending == {TOPIC: 2000}


async def test_message_far_ahead_rolls_and_is_delivered_in_time(start: Start) -> None:
    """A message beyond the window is stored again a bounded number of times, and delivered once and not early."""
    harness = await start()
    delays = [99, 100, 101, 132, 133, 134, 250, 1000, 5003.25]
    due = {str(delay): await harness.send(str(delay), delay) for delay in delays}
    while harness.clock.now_ms() < START_MS + 5100_000:
        await harness.advance(7.3)
    delivered = harness.delivered()
    assert Counter(item.body for item in delivered) == Counter(list(due))
    for item in delivered:
        assert 0 <= item.at_ms - due[item.body] <= 7300
    assert 50 <= harness.timer.stats.rolled < 120
    assert harness.timer.stats.pending == {TOPIC: 0}
    rolls = {item.body: int(item.record.properties.get(p.TIMER_ROLL_TIMES, "0")) for item in delivered}
    assert rolls["99"] == 0
    assert 45 <= rolls["5003.25"] < 60


async def test_window_stays_below_retention(start: Start) -> None:
    """A record in the timer topic is stored again before retention could delete it."""
    harness = await start(store=replace(STORE, retention_hours=20 / 3600))
    await harness.send("a", 55)
    await harness.advance(10)
    assert harness.timer.stats.rolled == 1
    for _ in range(45):
        await harness.advance(1)
    assert harness.bodies() == ["a"]


async def test_retention_stores_pending_messages_again(start: Start) -> None:
    """Pending messages are stored again before a full disk deletes their segments. Each is delivered once."""
    harness = await start()
    await harness.send("a", 30)
    await harness.send("b", 40)
    await harness.send("gone", 1)
    await harness.advance(2)
    end = harness.store.positions[0]
    assert await harness.timer.keep_from(end) == end
    assert harness.store.queue_range(TIMER_TOPIC, 0)[1] == 5
    await harness.settle()
    assert harness.timer.stats.pending == {TOPIC: 2}
    await harness.advance(50)
    assert harness.bodies() == ["gone", "a", "b"]
    assert harness.timer.stats.pending == {TOPIC: 0}


async def test_retention_asks_again_after_a_copy_could_not_be_stored(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the copy cannot be stored, the message stays pending, and retention has to wait."""
    harness = await start()
    await harness.send("a", 30)
    end = harness.store.positions[0]

    def fail(*arguments: Any, **options: Any) -> Any:
        raise StoreFullError("no space left")

    with monkeypatch.context() as full:
        full.setattr(harness.store, "append", fail)
        with pytest.raises(StoreFullError):
            await harness.timer.keep_from(end)
    assert harness.timer.stats.pending == {TOPIC: 1}
    assert await harness.timer.keep_from(end) == end
    assert harness.store.queue_range(TIMER_TOPIC, 0)[1] == 2, "stored again"
    await harness.advance(31)
    assert harness.bodies() == ["a"]


@pytest.mark.parametrize("saved", [False, True])
async def test_messages_stored_again_by_retention_are_delivered_once_after_a_kill(start: Start, saved: bool) -> None:
    """After a kill, both copies may exist. Each message is delivered once, including those of the current second."""
    harness = await start()
    for body, delay in (("early", 1.2), ("now", 1.8), ("a", 30), ("b", 150)):
        await harness.send(body, delay)
    due = await harness.send("recalled", 40)
    assert await recall(harness, "recalled", due)
    await harness.advance(1.5)
    await harness.timer.keep_from(harness.store.positions[0])
    await harness.settle()
    if saved:
        await harness.advance(10)
        await harness.save()
    for _ in range(2):
        harness = await harness.next_life(harness.disk.kill())
        await harness.settle()
        assert harness.timer.stats.pending == {TOPIC: 2 + 1 + (not saved)}
    for _ in range(20):
        await harness.advance(10)
    assert harness.bodies() == ["early", "now", "a", "b"]
    assert harness.timer.stats.pending == {TOPIC: 0}


async def test_many_moments_at_random(start: Start) -> None:
    """Thousands of messages are delivered once, in their millisecond or right after a jump of the clock."""
    harness = await start()
    source = random.Random(5)
    due = {}
    for number in range(1500):
        due[str(number)] = harness.clock.now_ms() + source.randrange(1, 200_000)
    pending = list(due.items())
    ticks = [harness.clock.now_ms()]
    while pending or harness.clock.now_ms() < START_MS + 260_000:
        batch = [(body, max(at, harness.clock.now_ms() + 1)) for body, at in pending[:100]]
        due.update(batch)
        if batch:
            await harness.send_all(batch)
        pending = pending[100:]
        await harness.advance(source.choice((0.05, 0.7, 3.0)))
        ticks.append(harness.clock.now_ms())
    delivered = harness.delivered()
    assert Counter(item.body for item in delivered) == Counter(list(due))
    for item in delivered:
        assert item.at_ms == ticks[bisect_left(ticks, due[item.body])]


# --- Restarts -----------------------------------------------------------------------------------------------


async def test_orderly_restart_keeps_everything(start: Start) -> None:
    """Pending messages are delivered in time, delivered ones not again."""
    harness = await start()
    await harness.send("past", 1)
    await harness.send("soon", 5.5)
    await harness.send("later", 150)
    await harness.advance(3)
    await harness.stop()
    harness = await start(harness.disk, harness.clock)
    assert harness.timer.stats.pending == {TOPIC: 2}
    await harness.advance(2.4)
    assert harness.bodies() == ["past"]
    await harness.advance(0.1)
    assert harness.bodies() == ["past", "soon"]
    for _ in range(30):
        await harness.advance(5)
    assert harness.bodies() == ["past", "soon", "later"]


async def test_messages_due_during_downtime_are_delivered_at_once(start: Start) -> None:
    """Downtime may be longer than the wheel has slots for."""
    harness = await start()
    await harness.send("a", 10)
    await harness.send("b", 90)
    await harness.send("c", 5000)
    await harness.stop()
    harness.clock.advance(1000)
    harness = await start(harness.disk, harness.clock)
    await harness.send("new", 3)
    await harness.settle()
    assert harness.bodies() == ["a", "b"]
    await harness.advance(3)
    assert harness.bodies() == ["a", "b", "new"]
    for _ in range(100):
        await harness.advance(50)
    assert harness.bodies() == ["a", "b", "new", "c"]


@pytest.mark.parametrize("saved", ["never", "before", "after"])
async def test_delivered_messages_are_not_repeated_after_a_kill(start: Start, saved: str) -> None:
    """The log has the delivered copies, whatever the timer's files say."""
    harness = await start()
    await harness.send_all([(str(number), START_MS + 1000 + number * 10) for number in range(100)])
    if saved == "before":
        await harness.settle()
        await harness.save()
    await harness.advance(1.5)
    assert len(harness.bodies()) == 51
    if saved == "after":
        await harness.save()
    harness = await harness.next_life(harness.disk.kill())
    await harness.settle()
    assert len(harness.bodies()) == 51
    await harness.advance(1)
    assert harness.bodies() == [str(number) for number in range(100)]
    harness = await harness.next_life(harness.disk.kill())
    await harness.advance(10)
    assert len(harness.bodies()) == 100


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "timercheck", "all"])
async def test_lost_timer_files_are_rebuilt_from_the_log(start: Start, lost: str) -> None:
    """All pending messages are restored; delivered and rolled ones are not delivered twice."""
    harness = await start()
    await harness.send_all([(str(number), START_MS + 1000 + number * 7000) for number in range(40)])
    for _ in range(13):
        await harness.advance(10)
    before = len(harness.bodies())
    assert 10 < before < 30
    assert harness.timer.stats.rolled > 10
    await harness.save()
    disk = harness.disk.kill()
    for path in list(disk.contents()):
        if lost in str(path) or (lost == "all" and "timer" in str(path) and "consumequeue" not in str(path)):
            disk.unlink(path)
    harness = await harness.next_life(disk)
    await harness.settle()
    assert len(harness.bodies()) == before
    assert harness.timer.stats.pending == {TOPIC: 40 - before}
    for _ in range(30):
        await harness.advance(7)
    assert Counter(harness.bodies()) == Counter(map(str, range(40)))


async def test_a_checkpoint_of_zeros(start: Start) -> None:
    """A power cut may leave zeros. Messages are then not stored again for each window since 1970."""
    harness = await start()
    await harness.send("a", 5)
    await harness.send("b", 50)
    await harness.save()
    disk = harness.disk.kill()
    (path,) = (path for path in disk.contents() if path.name == "timercheck")
    with contextlib.closing(disk.open(path)) as file:
        file.write([bytes(TIMER_CHECKPOINT_SIZE)], 0)
    harness = await harness.next_life(disk)
    await harness.settle()
    assert (harness.bodies(), harness.timer.stats.rolled) == ([], 0)
    await harness.advance(5)
    assert harness.bodies() == ["a"]
    await harness.advance(45)
    assert harness.bodies() == ["a", "b"]


async def test_clock_that_was_set_back_loses_nothing(start: Start) -> None:
    """The broker ran with its clock a month ahead, which is then corrected."""
    harness = await start(clock=ManualClock(START_MS + 30 * 86_400_000))
    await harness.send("a", 5)
    await harness.send("b", 50)
    await harness.advance(10)
    await harness.stop()
    harness = await start(harness.disk, ManualClock(START_MS))
    await harness.send("c", 5)
    await harness.advance(6)
    assert "c" in harness.bodies()
    assert "b" not in harness.bodies()


# --- Recall -------------------------------------------------------------------------------------------------


async def recall(harness: TimerHarness, body: str, deliver_ms: int) -> bool:
    try:
        await harness.timer.recall(TOPIC, f"id-{body}", deliver_ms)
    except MessageNotPendingError:
        return False
    return True


@pytest.mark.parametrize("delay", [0.8, 1.0, 50.0, 150.0, 700.25])
@pytest.mark.parametrize("crash", ["no", "kill", "save and kill", "restart"])
async def test_recalled_message_is_never_delivered(start: Start, delay: float, crash: str) -> None:
    """A recall holds for any delay and after a crash. Other messages are delivered."""
    harness = await start()
    due = await harness.send("a", delay)
    await harness.send("b", delay)
    await harness.advance(0.5)
    assert await recall(harness, "a", due)
    assert not await recall(harness, "a", due)
    if crash == "save and kill":
        await harness.settle()
        await harness.save()
    if crash == "restart":
        await harness.stop()
        harness = await start(harness.disk, harness.clock)
    elif crash != "no":
        harness = await harness.next_life(harness.disk.kill())
    assert not await recall(harness, "a", due)
    while harness.clock.now_ms() < due + 5000:
        await harness.advance(min(delay, 20))
    assert harness.bodies() == ["b"]
    assert harness.timer.stats.pending[TOPIC] == 0


async def test_recall_in_the_last_moment(start: Start) -> None:
    """A recall succeeds even in the step of the event loop before the delivery."""
    harness = await start()
    due = await harness.send("a", 1.5)
    await harness.advance(1.499)
    harness.timer.wake()
    assert await recall(harness, "a", due)
    await harness.advance(5)
    assert harness.bodies() == []
    assert harness.timer.stats.recalled == 1


async def test_of_two_recalls_at_once_one_succeeds(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two concurrent searches, each in several steps of the event loop."""
    monkeypatch.setattr(loop_share, "STEP_SIZE", 0)
    harness = await start()
    due = await harness.send("a", 1.5)
    recalls = [asyncio.create_task(recall(harness, "a", due)) for _ in range(2)]
    assert sorted(await asyncio.gather(*recalls)) == [False, True]
    await harness.advance(5)
    assert harness.bodies() == []


async def test_messages_that_cannot_be_recalled(start: Start) -> None:
    """Delivered, due and unknown messages, and those with another topic or time, cannot be recalled."""
    harness = await start()
    due = await harness.send("a", 1.5)
    assert not await recall(harness, "x", due)
    assert not await recall(harness, "a", due + 1)
    with pytest.raises(MessageNotPendingError):
        await harness.timer.recall("other", "id-a", due)
    harness.clock.advance(1.5)
    assert not await recall(harness, "a", due)
    await harness.settle()
    assert harness.bodies() == ["a"]
    assert not await recall(harness, "a", due)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("ahead", "back"), [(2.25, -1.0), (1.6, -0.4)])
async def test_delivered_message_is_not_recalled_after_the_clock_went_back(
    start: Start, crash: bool, ahead: float, back: float
) -> None:
    """A delivered message cannot be recalled, even if its time is in the future again or the broker has crashed.

    Its slot may be done, or still being read.
    """
    harness = await start()
    due = await harness.send("a", 1.5)
    await harness.advance(ahead)
    assert harness.bodies() == ["a"]
    if crash:
        harness = await harness.next_life(harness.disk.kill())
    harness.clock.advance(back)
    assert harness.clock.now_ms() < due
    assert not await recall(harness, "a", due)
    harness.clock.advance(-1.0)
    assert not await recall(harness, "a", due)
    later = await harness.send("b", 5)
    assert await recall(harness, "b", later)


@pytest.mark.parametrize("crash", [False, True])
async def test_it_is_not_recalled_after_later_starts_either(start: Start, crash: bool) -> None:
    """The files of the timer were made again, without the delivered message, and the slots after that are done."""
    harness = await start()
    due = await harness.send("a", 60)
    await harness.advance(61)
    assert harness.bodies() == ["a"]
    harness.clock.advance(-3600)
    for _ in range(3):
        if crash:
            harness = await harness.next_life(harness.disk.kill())
        else:
            await harness.stop()
            harness = await harness.next_life(harness.disk)
        await harness.advance(120)
        await harness.save()
    assert not await recall(harness, "a", due)
    later = await harness.send("b", 60)
    assert await recall(harness, "b", later)


@pytest.mark.parametrize("is_saved", [False, True])
async def test_a_delivery_is_not_repeated_after_the_timer_could_not_be_saved(start: Start, is_saved: bool) -> None:
    """The store was closed in order afterwards, so nothing of the log is read again when it is opened."""
    harness = await start()
    await harness.send("a", 1.5)
    if is_saved:
        await harness.save()
    await harness.advance(2.25)
    assert harness.bodies() == ["a"]
    await harness.abandon()
    harness.store.close()
    harness = await harness.next_life(harness.disk)
    await harness.advance(10)
    assert harness.bodies() == ["a"]


async def test_a_slot_is_not_done_before_its_messages_are_durable() -> None:
    """After a power cut with async flush, the message is due again or already in the log."""
    store = replace(STORE, flush="async", flush_interval_seconds=3600.0)
    harness = await TimerHarness.start(store=store)
    try:
        await harness.send("a", 1.5)
        await harness.store.wait_stored(harness.store.positions[0], durable=True)
        await harness.advance(2.25)
        assert harness.bodies() == ["a"]
        await harness.save()
        for seed in range(8):
            later = await TimerHarness.start(harness.disk.crash(seed), ManualClock(harness.clock.now_ms()), store=store)
            await later.settle()
            assert later.bodies() == ["a"]
            await later.abandon()
    finally:
        await harness.abandon()


async def test_recall_names_one_message_exactly(start: Start) -> None:
    """RocketMQ joins topic and id without a separator. Of two messages with the same joined text, one is recalled."""
    harness = await start()
    due_ms = START_MS + 1500
    for topic, message_id in (("orders", "1x"), ("orders1", "x")):
        message = Message(topic, 0, b"m", {p.UNIQ_KEY: message_id})
        place = harness.store.append([harness.timer.delayed(message, due_ms)])[-1]
        await harness.store.wait_stored(place.end)
    await harness.timer.recall("orders", "1x", due_ms)
    await harness.advance(2)
    assert [len(harness.delivered(topic)) for topic in ("orders", "orders1")] == [0, 1]


# --- Stores of RocketMQ -------------------------------------------------------------------------------------


def foreign(body: str, out_ms: int, **properties: str) -> Message:
    """A delayed message as RocketMQ stores it."""
    values = {p.UNIQ_KEY: f"id-{body}", p.TIMER_OUT_MS: str(out_ms), p.REAL_TOPIC: TOPIC, p.REAL_QUEUE_ID: "0"}
    return Message(TIMER_TOPIC, 0, body.encode(), {**values, **properties})


async def test_messages_of_rocketmq_are_not_early(start: Start) -> None:
    """A delivery time is kept. A delayed message waits for the end of the step that RocketMQ rounded down to."""
    harness = await start()
    out_ms = START_MS + 2000
    messages = [
        foreign("time", out_ms, TIMER_DELIVER_MS=str(out_ms + 300)),
        foreign("delay", out_ms, TIMER_DELAY_SEC="3"),
        foreign("taken back", out_ms, TIMER_DELAY_SEC="3"),
        foreign("taken back too", out_ms, TIMER_DELAY_SEC="3"),
        foreign("r1", out_ms, TIMER_DEL_UNIQKEY="id-taken back"),
        foreign("r2", out_ms, TIMER_DEL_UNIQKEY=f"{TOPIC}id-taken back too"),
        foreign("no time", 0, TIMER_OUT_MS="soon"),
        Message(TIMER_TOPIC, 0, b"no destination", {p.TIMER_OUT_MS: str(out_ms)}),
    ]
    await harness.store.wait_stored(harness.store.append(messages)[-1].end)
    await harness.advance(2.299)
    assert harness.bodies() == []
    await harness.advance(0.001)
    assert harness.bodies() == ["time"]
    await harness.advance(0.699)
    assert harness.bodies() == ["time"]
    await harness.advance(0.001)
    assert harness.bodies() == ["time", "delay"]
    assert harness.timer.stats.lost == 2


@pytest.mark.parametrize("change", [{"precision_ms": 300}, {"roll_window_slots": 1}, {"slot_count": 4}])
def test_settings_that_cannot_work(change: dict[str, Any]) -> None:
    """The start stops with an error that names the setting."""
    with pytest.raises(ConfigError, match=rf"timer\.{next(iter(change))}"):
        TimerConfig(**change)


async def test_body_limit_that_was_lowered(start: Start) -> None:
    """A message above the new limit counts as lost and does not block the others."""
    harness = await start()
    await harness.send("x" * 6000, 2)
    await harness.send("small", 2)
    await harness.stop()
    lower: StoreConfig = replace(STORE, body_size_max=5000, directory=Path("/store"))
    harness = await start(harness.disk, harness.clock, store=lower)
    await harness.advance(3)
    assert harness.bodies() == ["small"]
    assert harness.timer.stats.lost == 1
