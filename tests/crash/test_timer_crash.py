"""Crashes of a broker with delayed messages: after each of its disk operations in turn, and at random."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

from aerobee_broker.timer.timer import MessageNotPendingError
from aerobee_store.testing import CHANGES, ManualClock, MemoryFileSystem, Operation
from tests.support.timer_world import START_MS, TOPIC, TimerWorld

pytestmark = pytest.mark.crash

IS_LONG = "AEROBEE_CRASH_CYCLES" in os.environ


async def _life(world: TimerWorld, promises: dict[str, int]) -> None:
    """Send, recall, deliver, roll and save; what is in `promises` has been answered."""
    for body, delay in (("a", 0.7), ("b", 1.9), ("c", 3.0), ("far", 130.0), ("recalled", 4.0), ("d", 4.0)):
        due = await world.send(body, delay)
        promises[body] = due
    await world.timer.recall(TOPIC, "id-recalled", promises.pop("recalled"))  # it may have happened before the answer
    promises["recalled"] = 0
    await world.save()
    for step in range(6):
        await world.advance(0.8)
        if step % 2:
            await world.save()
    promises["e"] = await world.send("e", 0.4)
    for _ in range(5):
        await world.advance(14)
    await world.save()
    await world.advance(60)
    await world.stop()


async def _check(disk: MemoryFileSystem, clock: ManualClock, promises: dict[str, int]) -> None:
    """All that was answered comes, once and not early, and nothing that was recalled."""
    world = await TimerWorld.start(disk, clock)
    try:
        await world.settle()
        for _ in range(6):
            await world.advance(40)
        delivered = world.delivered()
        counts = Counter(item.body for item in delivered)
        expected = {body for body, due in promises.items() if due}
        assert expected <= counts.keys()
        assert promises.get("recalled") != 0 or "recalled" not in counts
        assert set(counts.values()) <= {1}, counts
        for item in delivered:
            assert item.at_ms >= promises.get(item.body, 0), f"{item.body} is early"
        assert world.timer.stats.lost == 0
        assert max(world.timer.stats.pending.values(), default=0) == 0
    finally:
        await world.abandon()


async def _operations() -> int:
    world = await TimerWorld.start()
    begin = world.disk.operations
    await _life(world, {})
    return world.disk.operations - begin


@pytest.mark.parametrize("kind", ["kill", "power cut"])
async def test_every_disk_operation_may_be_the_last(kind: str) -> None:
    """Whenever it stops: what was answered is delivered exactly once, in its time."""
    taken: list[tuple[MemoryFileSystem, int, dict[str, int]]] = []
    promises: dict[str, int] = {}
    world = await TimerWorld.start()
    source = random.Random(11)

    def crash(operation: Operation) -> None:
        if operation.name in CHANGES:
            disk = world.disk.kill() if kind == "kill" else world.disk.crash(operation.number)
            taken.append((disk, world.clock.now_ms(), dict(promises)))

    world.disk.before_operation = crash
    await _life(world, promises)
    assert len(taken) > 100
    for disk, now_ms, answered in taken if IS_LONG else source.sample(taken, 60):
        await _check(disk, ManualClock(now_ms), answered)


@pytest.mark.parametrize("seed", range(10))
async def test_crash_after_crash(seed: int) -> None:
    """Many lives in a row, each killed at some moment of its work: still once each, in time."""
    source = random.Random(seed)
    clock = ManualClock(START_MS)
    world = await TimerWorld.start(None, clock)
    due: dict[str, int] = {}
    recalled: set[str] = set()
    for life in range(12):
        for number in range(source.randrange(1, 12)):
            body = f"{life}-{number}"
            due[body] = await world.send(body, source.choice((0.001, 0.5, 2.0, 7.5, 120.0, 260.0)))
        for _ in range(source.randrange(0, 5)):
            body = source.choice(sorted(due))
            try:
                await world.timer.recall(TOPIC, f"id-{body}", due[body])
                recalled.add(body)
            except MessageNotPendingError:
                pass
            await world.advance(source.choice((0.001, 0.4, 1.0, 5.0)))
            if source.random() < 0.4:
                await world.save()
            if source.random() < 0.1:  # as if retention wanted all of the log, and then did not take it
                await world.timer.keep_from(world.store.positions[2])
        for _ in range(source.randrange(0, 30)):
            await asyncio.sleep(0)
        disk = world.disk.kill() if source.random() < 0.5 else world.disk.crash(source.randrange(1 << 30))
        world = await world.next_life(disk)
        if source.random() < 0.3:
            clock.advance(source.choice((1.0, 30.0)))
    for _ in range(60):
        await world.advance(5)
    delivered = world.delivered()
    await world.abandon()
    assert Counter(item.body for item in delivered) == Counter(set(due) - recalled)
    for item in delivered:
        assert item.at_ms >= due[item.body]
