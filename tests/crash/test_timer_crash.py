"""Crashes of a broker with delayed messages, after each disk operation in turn and at random."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from aerobee_broker.timer.wheel_timer import MessageNotPendingError
from aerobee_store import StoreConfig
from aerobee_store.config import FlushMode
from aerobee_store.testing import CHANGES, ManualClock, MemoryFileSystem, Operation
from tests.support.disk_listener import one_at_a_time
from tests.support.timer_harness import START_MS, STORE, TOPIC, TimerHarness

pytestmark = pytest.mark.crash

IS_LONG = "AEROBEE_CRASH_CYCLES" in os.environ


@dataclass
class Promises:
    """The answered messages: body -> delivery time, or 0 for a recall, and end of the record in the log."""

    due: dict[str, int] = field(default_factory=dict)
    end: dict[str, int] = field(default_factory=dict)

    def note(self, harness: TimerHarness, body: str, due_ms: int) -> None:
        self.due[body] = due_ms
        self.end[body] = harness.store.positions[0]

    def kept(self, flushed: int) -> Promises:
        """Return those that survive a power cut: with async flush an answer may come before durability."""
        return Promises({body: due for body, due in self.due.items() if self.end[body] <= flushed}, dict(self.end))

    def copy(self) -> Promises:
        return Promises(dict(self.due), dict(self.end))


async def _life(harness: TimerHarness, promises: Promises) -> None:
    """Send, recall, deliver, roll and save; `promises` collects the answered messages."""
    for body, delay in (("a", 0.7), ("b", 1.9), ("c", 3.0), ("far", 130.0), ("recalled", 4.0), ("d", 4.0)):
        promises.note(harness, body, await harness.send(body, delay))
    # It may have taken effect before the answer.
    await harness.timer.recall(TOPIC, "id-recalled", promises.due.pop("recalled"))
    promises.note(harness, "recalled", 0)
    await harness.save()
    for step in range(6):
        await harness.advance(0.8)
        if step % 2:
            await harness.save()
    promises.note(harness, "e", await harness.send("e", 0.4))
    for _ in range(5):
        await harness.advance(14)
    await harness.save()
    await harness.advance(60)
    await harness.stop()


async def _check(
    disk: MemoryFileSystem, clock: ManualClock, store: StoreConfig, due: dict[str, int], kept: dict[str, int]
) -> None:
    """Every surviving message is delivered once and not early, and no recalled one is."""
    harness = await TimerHarness.start(disk, clock, store=store)
    try:
        await harness.settle()
        for _ in range(6):
            await harness.advance(40)
        delivered = harness.delivered()
        counts = Counter(item.body for item in delivered)
        assert {body for body, due_ms in kept.items() if due_ms} <= counts.keys()
        assert kept.get("recalled") != 0 or "recalled" not in counts
        assert set(counts.values()) <= {1}, counts
        for item in delivered:
            assert item.at_ms >= due.get(item.body, 0), f"{item.body} is early"
        assert harness.timer.stats.lost == 0
        assert max(harness.timer.stats.pending.values(), default=0) == 0
    finally:
        await harness.abandon()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("kind", ["kill", "power cut"])
async def test_every_disk_operation_may_be_the_last(kind: str, flush: FlushMode) -> None:
    """After a crash at any operation, every answered message is delivered exactly once and on time.

    With async flush a power cut may take only data that was not yet durable. A delivery that it takes is made again.
    """
    taken: list[tuple[MemoryFileSystem, int, Promises, Promises]] = []
    promises = Promises()
    store = replace(STORE, flush=flush)
    harness = await TimerHarness.start(store=store)
    source = random.Random(11)

    def crash(operation: Operation) -> None:
        if operation.name in CHANGES:
            answered = promises.copy()
            kept = answered if kind == "kill" or flush == "sync" else answered.kept(harness.store.positions[2])
            disk = harness.disk.kill() if kind == "kill" else harness.disk.crash(operation.number)
            taken.append((disk, harness.clock.now_ms(), answered, kept))

    harness.disk.before_operation = one_at_a_time(crash)
    await _life(harness, promises)
    assert len(taken) > 60
    for disk, now_ms, answered, kept in taken if IS_LONG else source.sample(taken, 40):
        await _check(disk, ManualClock(now_ms), store, answered.due, kept.due)


@pytest.mark.parametrize("seed", range(10))
async def test_crash_after_crash(seed: int) -> None:
    """After many runs, each killed at a random point, every message is still delivered once and on time.

    With sync flush a power cut keeps as much as a kill.
    """
    source = random.Random(seed)
    flush: FlushMode = "sync" if seed < 7 else "async"
    clock = ManualClock(START_MS)
    harness = await TimerHarness.start(None, clock, store=replace(STORE, flush=flush))
    due: dict[str, int] = {}
    recalled: set[str] = set()
    for life in range(12):
        for number in range(source.randrange(1, 12)):
            body = f"{life}-{number}"
            due[body] = await harness.send(body, source.choice((0.001, 0.5, 2.0, 7.5, 120.0, 260.0)))
        for _ in range(source.randrange(0, 5)):
            body = source.choice(sorted(due))
            try:
                await harness.timer.recall(TOPIC, f"id-{body}", due[body])
                recalled.add(body)
            except MessageNotPendingError:
                pass
            await harness.advance(source.choice((0.001, 0.4, 1.0, 5.0)))
            if source.random() < 0.4:
                await harness.save()
            if source.random() < 0.1:  # as if retention asked to remove the whole log, and then did not
                await harness.timer.keep_from(harness.store.positions[2])
        for _ in range(source.randrange(0, 30)):
            await asyncio.sleep(0)
        is_killed = source.random() < 0.5 or flush == "async"
        disk = harness.disk.kill() if is_killed else harness.disk.crash(source.randrange(1 << 30))
        harness = await harness.next_life(disk)
        if source.random() < 0.3:
            clock.advance(source.choice((1.0, 30.0)))
    for _ in range(60):
        await harness.advance(5)
    delivered = harness.delivered()
    await harness.abandon()
    assert Counter(item.body for item in delivered) == Counter(set(due) - recalled)
    for item in delivered:
        assert item.at_ms >= due[item.body]
