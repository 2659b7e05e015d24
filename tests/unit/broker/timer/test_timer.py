"""Delayed messages on a real store: when they are delivered, and what restarts and recalls do to them."""

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

from aerobee_broker.timer.config import TimerConfig
from aerobee_broker.timer.timer import TIMER_ORIGIN, MessageNotPendingError
from aerobee_store import ConfigError, StoreConfig
from aerobee_store.records import properties as p
from aerobee_store.records.record import Message
from aerobee_store.testing import ManualClock, MemoryFileSystem
from aerobee_store.timer.checkpoint import TIMER_CHECKPOINT_SIZE
from aerobee_store.timer.files import TIMER_TOPIC
from tests.support.timer_world import START_MS, STORE, TOPIC, TimerWorld

Start = Callable[..., Awaitable[TimerWorld]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts timers, and ends whatever of them still runs."""
    worlds: list[TimerWorld] = []

    async def begin(*arguments: Any, **settings: Any) -> TimerWorld:
        world = await TimerWorld.start(*arguments, **settings)
        worlds.append(world)
        next_life = world.next_life

        async def follow(disk: MemoryFileSystem) -> TimerWorld:
            worlds.append(await next_life(disk))
            return worlds[-1]

        world.next_life = follow  # type: ignore[method-assign]  # to know all of them
        return world

    yield begin
    for world in worlds:
        await world.abandon()


# --- Delivery -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision_ms", [100, 1000])
async def test_message_comes_in_the_millisecond_it_is_due(start: Start, precision_ms: int) -> None:
    """Not one before, whatever the wheel's step."""
    world = await start(precision_ms=precision_ms)
    await world.send("a", 1.234)
    await world.send("b", 1.235)
    await world.advance(1.233)
    assert world.bodies() == []
    await world.advance(0.001)
    assert world.bodies() == ["a"]
    await world.advance(0.001)
    assert world.bodies() == ["a", "b"]


async def test_boundaries_of_the_steps(start: Start) -> None:
    """Due exactly with a step, one millisecond before and after it: each in its own millisecond."""
    world = await start()
    ahead_ms = [999, 1000, 1001, 1999, 2000, 2001]
    for ahead in ahead_ms:
        await world.send(str(ahead), ahead / 1000)
    for _ in range(2100):
        await world.advance(0.001)
    assert [(item.body, item.at_ms - START_MS) for item in world.delivered()] == [(str(ms), ms) for ms in ahead_ms]


async def test_copy_is_the_message_that_was_sent(start: Start) -> None:
    """Body, properties, birth and queue; where it really goes is not told any more, where it was, is."""
    world = await start()
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
    appended = world.store.append([world.timer.delayed(message, START_MS + 1500)])
    await world.store.wait_stored(appended[-1].end)
    await world.settle()
    await world.advance(2)
    [copy] = [item.record for item in world.delivered()]
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
    assert [found.queue_id for found in world.store.query(TOPIC, "k2")] == [3]


async def test_order_of_one_moment_is_the_order_of_sending(start: Start) -> None:
    """Also when the last of them came after their slot was loaded."""
    world = await start()
    due_ms = START_MS + 1500
    await world.send_all([(str(number), due_ms) for number in range(5)])
    await world.advance(1.2)
    await world.send_all([(str(number), due_ms) for number in range(5, 10)])
    await world.advance(1)
    assert world.bodies() == [str(number) for number in range(10)]


async def test_message_for_the_running_second_is_not_forgotten(start: Start) -> None:
    """Its slot is being read already; it survives a crash there, too."""
    world = await start()
    await world.send("first", 0.9)
    await world.advance(0.5)
    await world.send("late", 0.2)
    await world.save()
    world = await world.next_life(world.disk.kill())
    await world.advance(0.2)
    assert world.bodies() == ["late"]
    await world.advance(0.2)
    assert world.bodies() == ["late", "first"]


async def test_what_is_due_does_not_wait_for_a_backlog(start: Start) -> None:
    """While more is sent than the timer can take up, it goes on delivering."""
    world = await start()
    await world.send("due", 1.5)
    far_ms = world.clock.now_ms() + 60_000
    backlog = [
        world.timer.delayed(Message(TOPIC, 0, b"far", {p.UNIQ_KEY: f"far-{number}"}), far_ms) for number in range(2000)
    ]
    end = world.store.append(backlog)[-1].end
    world.clock.advance(1.5)
    await world.store.wait_stored(end)
    async with asyncio.timeout(60):
        while not world.timer.stats.dequeued:
            world.timer.wake()
            await asyncio.sleep(0)
    assert world.timer.stats.dequeued == {TOPIC: 1}
    assert world.timer.enqueue_lag > 1000
    await world.settle()
    assert world.timer.enqueue_lag == 0
    assert world.timer.stats.pending == {TOPIC: 2000}


async def test_far_ahead_rolls_and_comes_in_time(start: Start) -> None:
    """Beyond the window it is stored again on the way, a bounded number of times; never early, and once."""
    world = await start()
    delays = [99, 100, 101, 132, 133, 134, 250, 1000, 5003.25]
    due = {str(delay): await world.send(str(delay), delay) for delay in delays}
    while world.clock.now_ms() < START_MS + 5100_000:
        await world.advance(7.3)
    delivered = world.delivered()
    assert Counter(item.body for item in delivered) == Counter(list(due))
    for item in delivered:
        assert 0 <= item.at_ms - due[item.body] <= 7300
    assert 50 <= world.timer.stats.rolled < 120
    assert world.timer.stats.pending == {TOPIC: 0}
    rolls = {item.body: int(item.record.properties.get(p.TIMER_ROLL_TIMES, "0")) for item in delivered}
    assert rolls["99"] == 0
    assert 45 <= rolls["5003.25"] < 60


async def test_window_stays_below_retention(start: Start) -> None:
    """A record in the timer topic is stored again before the log could forget it."""
    world = await start(store=replace(STORE, retention_hours=20 / 3600))
    await world.send("a", 55)
    await world.advance(10)
    assert world.timer.stats.rolled == 1
    for _ in range(45):
        await world.advance(1)
    assert world.bodies() == ["a"]


async def test_retention_stores_pending_messages_again(start: Start) -> None:
    """When a full disk takes even young segments; what is then in two places is delivered once."""
    world = await start()
    await world.send("a", 30)
    await world.send("b", 40)
    await world.send("gone", 1)
    await world.advance(2)
    end = world.store.positions[0]
    assert await world.timer.keep_from(end) == end
    assert world.store.queue_range(TIMER_TOPIC, 0)[1] == 5
    await world.settle()
    assert world.timer.stats.pending == {TOPIC: 2}
    await world.advance(50)
    assert world.bodies() == ["gone", "a", "b"]
    assert world.timer.stats.pending == {TOPIC: 0}


@pytest.mark.parametrize("saved", [False, True])
async def test_what_retention_stored_again_comes_once_after_a_kill(start: Start, saved: bool) -> None:
    """The old segments may still be there then, and both copies with them; also of the second that was running."""
    world = await start()
    for body, delay in (("early", 1.2), ("now", 1.8), ("a", 30), ("b", 150)):
        await world.send(body, delay)
    due = await world.send("recalled", 40)
    assert await recall(world, "recalled", due)
    await world.advance(1.5)
    await world.timer.keep_from(world.store.positions[0])
    await world.settle()
    if saved:
        await world.advance(10)
        await world.save()
    for _ in range(2):
        world = await world.next_life(world.disk.kill())
        await world.settle()
        assert world.timer.stats.pending == {TOPIC: 2 + 1 + (not saved)}
    for _ in range(20):
        await world.advance(10)
    assert world.bodies() == ["early", "now", "a", "b"]
    assert world.timer.stats.pending == {TOPIC: 0}


async def test_many_moments_at_random(start: Start) -> None:
    """Thousands of messages over minutes: all, once, in their millisecond or, with a clock that jumps, right after."""
    world = await start()
    source = random.Random(5)
    due = {}
    for number in range(1500):
        due[str(number)] = world.clock.now_ms() + source.randrange(1, 200_000)
    pending = list(due.items())
    ticks = [world.clock.now_ms()]
    while pending or world.clock.now_ms() < START_MS + 260_000:
        batch = [(body, max(at, world.clock.now_ms() + 1)) for body, at in pending[:100]]
        due.update(batch)
        if batch:
            await world.send_all(batch)
        pending = pending[100:]
        await world.advance(source.choice((0.05, 0.7, 3.0)))
        ticks.append(world.clock.now_ms())
    delivered = world.delivered()
    assert Counter(item.body for item in delivered) == Counter(list(due))
    for item in delivered:
        assert item.at_ms == ticks[bisect_left(ticks, due[item.body])]


# --- Restarts -----------------------------------------------------------------------------------------------


async def test_orderly_restart_keeps_everything(start: Start) -> None:
    """What is pending comes in time, what was delivered does not come again."""
    world = await start()
    await world.send("past", 1)
    await world.send("soon", 5.5)
    await world.send("later", 150)
    await world.advance(3)
    await world.stop()
    world = await start(world.disk, world.clock)
    assert world.timer.stats.pending == {TOPIC: 2}
    await world.advance(2.4)
    assert world.bodies() == ["past"]
    await world.advance(0.1)
    assert world.bodies() == ["past", "soon"]
    for _ in range(30):
        await world.advance(5)
    assert world.bodies() == ["past", "soon", "later"]


async def test_what_was_due_while_the_broker_was_down_comes_at_once(start: Start) -> None:
    """Also after longer than the wheel has slots for."""
    world = await start()
    await world.send("a", 10)
    await world.send("b", 90)
    await world.send("c", 5000)
    await world.stop()
    world.clock.advance(1000)
    world = await start(world.disk, world.clock)
    await world.send("new", 3)
    await world.settle()
    assert world.bodies() == ["a", "b"]
    await world.advance(3)
    assert world.bodies() == ["a", "b", "new"]
    for _ in range(100):
        await world.advance(50)
    assert world.bodies() == ["a", "b", "new", "c"]


@pytest.mark.parametrize("saved", ["never", "before", "after"])
async def test_delivered_messages_do_not_come_again_after_a_kill(start: Start, saved: str) -> None:
    """The log has their copies, whatever the timer's own files say."""
    world = await start()
    await world.send_all([(str(number), START_MS + 1000 + number * 10) for number in range(100)])
    if saved == "before":
        await world.settle()
        await world.save()
    await world.advance(1.5)
    assert len(world.bodies()) == 51
    if saved == "after":
        await world.save()
    world = await world.next_life(world.disk.kill())
    await world.settle()
    assert len(world.bodies()) == 51
    await world.advance(1)
    assert world.bodies() == [str(number) for number in range(100)]
    world = await world.next_life(world.disk.kill())
    await world.advance(10)
    assert len(world.bodies()) == 100


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "timercheck", "all"])
async def test_lost_timer_files_are_made_again_from_the_log(start: Start, lost: str) -> None:
    """Everything pending is there, nothing that was delivered or rolled comes twice."""
    world = await start()
    await world.send_all([(str(number), START_MS + 1000 + number * 7000) for number in range(40)])
    for _ in range(13):
        await world.advance(10)
    before = len(world.bodies())
    assert 10 < before < 30
    assert world.timer.stats.rolled > 10
    await world.save()
    disk = world.disk.kill()
    for path in list(disk.contents()):
        if lost in str(path) or (lost == "all" and "timer" in str(path) and "consumequeue" not in str(path)):
            disk.unlink(path)
    world = await world.next_life(disk)
    await world.settle()
    assert len(world.bodies()) == before
    assert world.timer.stats.pending == {TOPIC: 40 - before}
    for _ in range(30):
        await world.advance(7)
    assert Counter(world.bodies()) == Counter(map(str, range(40)))


async def test_a_checkpoint_of_zeros(start: Start) -> None:
    """A power cut may leave them: what waits is not stored again for each window since 1970."""
    world = await start()
    await world.send("a", 5)
    await world.send("b", 50)
    await world.save()
    disk = world.disk.kill()
    (path,) = (path for path in disk.contents() if path.name == "timercheck")
    with contextlib.closing(disk.open(path)) as file:
        file.write([bytes(TIMER_CHECKPOINT_SIZE)], 0)
    world = await world.next_life(disk)
    await world.settle()
    assert (world.bodies(), world.timer.stats.rolled) == ([], 0)
    await world.advance(5)
    assert world.bodies() == ["a"]
    await world.advance(45)
    assert world.bodies() == ["a", "b"]


async def test_clock_that_was_set_back_loses_nothing(start: Start) -> None:
    """The broker ran with a clock a month ahead; then it is right again."""
    world = await start(clock=ManualClock(START_MS + 30 * 86_400_000))
    await world.send("a", 5)
    await world.send("b", 50)
    await world.advance(10)
    await world.stop()
    world = await start(world.disk, ManualClock(START_MS))
    await world.send("c", 5)
    await world.advance(6)
    assert "c" in world.bodies()
    assert "b" not in world.bodies()


# --- Recall -------------------------------------------------------------------------------------------------


async def recall(world: TimerWorld, body: str, deliver_ms: int) -> bool:
    try:
        await world.timer.recall(TOPIC, f"id-{body}", deliver_ms)
    except MessageNotPendingError:
        return False
    return True


@pytest.mark.parametrize("delay", [0.8, 1.0, 50.0, 150.0, 700.25])
@pytest.mark.parametrize("crash", ["no", "kill", "save and kill", "restart"])
async def test_recalled_message_never_comes(start: Start, delay: float, crash: str) -> None:
    """However near or far it is, and after a crash as well; the one beside it comes."""
    world = await start()
    due = await world.send("a", delay)
    await world.send("b", delay)
    await world.advance(0.5)
    assert await recall(world, "a", due)
    assert not await recall(world, "a", due)
    if crash == "save and kill":
        await world.settle()
        await world.save()
    if crash == "restart":
        await world.stop()
        world = await start(world.disk, world.clock)
    elif crash != "no":
        world = await world.next_life(world.disk.kill())
    assert not await recall(world, "a", due)
    while world.clock.now_ms() < due + 5000:
        await world.advance(min(delay, 20))
    assert world.bodies() == ["b"]
    assert world.timer.stats.pending[TOPIC] == 0


async def test_recall_in_the_last_moment(start: Start) -> None:
    """In the same step of the event loop: before it is delivered, so it is not."""
    world = await start()
    due = await world.send("a", 1.5)
    await world.advance(1.499)
    world.timer.wake()
    assert await recall(world, "a", due)
    await world.advance(5)
    assert world.bodies() == []
    assert world.timer.stats.recalled == 1


async def test_what_cannot_be_recalled(start: Start) -> None:
    """Delivered, due, unknown, of another topic or time."""
    world = await start()
    due = await world.send("a", 1.5)
    assert not await recall(world, "x", due)
    assert not await recall(world, "a", due + 1)
    with pytest.raises(MessageNotPendingError):
        await world.timer.recall("other", "id-a", due)
    world.clock.advance(1.5)
    assert not await recall(world, "a", due)
    await world.settle()
    assert world.bodies() == ["a"]
    assert not await recall(world, "a", due)


@pytest.mark.parametrize("crash", [False, True])
async def test_delivered_is_not_recalled_when_the_clock_went_back(start: Start, crash: bool) -> None:
    """What was delivered is not taken back, though its time lies ahead once more, and though the broker died since."""
    world = await start()
    due = await world.send("a", 1.5)
    await world.advance(2.25)
    assert world.bodies() == ["a"]
    if crash:
        world = await world.next_life(world.disk.kill())
    world.clock.advance(-1.0)
    assert world.clock.now_ms() < due
    assert not await recall(world, "a", due)
    world.clock.advance(-1.0)
    assert not await recall(world, "a", due)
    later = await world.send("b", 5)
    assert await recall(world, "b", later)


async def test_recall_names_one_message_exactly(start: Start) -> None:
    """RocketMQ joins topic and id without a separator; another pair that joins to the same text is not meant."""
    world = await start()
    due_ms = START_MS + 1500
    for topic, message_id in (("orders", "1x"), ("orders1", "x")):
        message = Message(topic, 0, b"m", {p.UNIQ_KEY: message_id})
        place = world.store.append([world.timer.delayed(message, due_ms)])[-1]
        await world.store.wait_stored(place.end)
    await world.timer.recall("orders", "1x", due_ms)
    await world.advance(2)
    assert [len(world.delivered(topic)) for topic in ("orders", "orders1")] == [0, 1]


# --- Stores of RocketMQ -------------------------------------------------------------------------------------


def foreign(body: str, out_ms: int, **properties: str) -> Message:
    """A delayed message as RocketMQ stores it."""
    values = {p.UNIQ_KEY: f"id-{body}", p.TIMER_OUT_MS: str(out_ms), p.REAL_TOPIC: TOPIC, p.REAL_QUEUE_ID: "0"}
    return Message(TIMER_TOPIC, 0, body.encode(), {**values, **properties})


async def test_messages_of_rocketmq_are_not_early(start: Start) -> None:
    """With a time they come at that, with a delay when the step is over that RocketMQ rounded down to."""
    world = await start()
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
    await world.store.wait_stored(world.store.append(messages)[-1].end)
    await world.advance(2.299)
    assert world.bodies() == []
    await world.advance(0.001)
    assert world.bodies() == ["time"]
    await world.advance(0.699)
    assert world.bodies() == ["time"]
    await world.advance(0.001)
    assert world.bodies() == ["time", "delay"]
    assert world.timer.stats.lost == 2


@pytest.mark.parametrize("change", [{"precision_ms": 300}, {"roll_window_slots": 1}, {"slot_count": 4}])
def test_settings_that_cannot_work(change: dict[str, int]) -> None:
    """They stop the start, by name."""
    with pytest.raises(ConfigError, match=rf"timer\.{next(iter(change))}"):
        TimerConfig(**change)


async def test_body_limit_that_was_lowered(start: Start) -> None:
    """What is now too large cannot be delivered, and does not keep the others waiting."""
    world = await start()
    await world.send("x" * 6000, 2)
    await world.send("small", 2)
    await world.stop()
    lower: StoreConfig = replace(STORE, body_size_max=5000, directory=Path("/store"))
    world = await start(world.disk, world.clock, store=lower)
    await world.advance(3)
    assert world.bodies() == ["small"]
    assert world.timer.stats.lost == 1
