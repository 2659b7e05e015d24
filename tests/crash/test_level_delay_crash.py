"""Crashes of a broker with messages that have a delay level, after each disk operation in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_store import MessageStore
from aerobee_store.config import FlushMode
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC
from aerobee_store.records.properties import UNIQ_KEY
from aerobee_store.records.record import Message
from aerobee_store.testing import CHANGES, ManualClock, MemoryFileSystem, Operation
from tests.support.disk_listener import one_at_a_time
from tests.support.timer_harness import START_MS, STORE, TOPIC

pytestmark = pytest.mark.crash

CONFIG = replace(STORE, delay_levels_seconds=(1, 5, 30))


class LevelHarness:
    """One run of a store and its delay-level service, under a clock that only the test moves."""

    def __init__(self, disk: MemoryFileSystem, clock: ManualClock, flush: FlushMode) -> None:
        self.clock = clock
        self.store = MessageStore.open(replace(CONFIG, flush=flush), file_system=disk, clock=clock)
        self.levels = LevelDelay(self.store, clock, LoopShare())
        self.tasks: list[asyncio.Task[None]] = []

    async def send(self, body: str, level: int) -> int:
        """Send a message, wait for the answer, and return the end of its record in the log."""
        # All have the same id, as if a client had sent one message again and again: each was answered.
        message = Message(TOPIC, 0, body.encode(), {UNIQ_KEY: "id"})
        [place] = self.store.append([self.levels.delayed(message, level)])
        await self.store.wait_stored(place.end)
        return place.end

    async def advance(self, seconds: float) -> None:
        """Move the clock, and wait until every due message is delivered."""
        self.clock.advance(seconds)
        self.levels.wake()
        deadline = time.monotonic() + 240  # long, for a loaded machine
        while not self._is_done():
            assert time.monotonic() < deadline, "what is due is not delivered"
            assert not any(task.done() for task in self.tasks)
            await asyncio.sleep(0.001)

    def _is_done(self) -> bool:
        wrote, _, _, dispatched = self.store.positions
        return self.levels.looked_ms == self.clock.now_ms() and wrote == dispatched

    def delivered(self) -> list[tuple[str, int]]:
        """Return body and store time of each message in the real topic."""
        records = self.store.read(TOPIC, 0, 0, max_count=1000, max_bytes=1 << 20).records
        return [(record.body.decode(), record.store_timestamp) for record in records]


@asynccontextmanager
async def life(disk: MemoryFileSystem, clock: ManualClock, flush: FlushMode) -> AsyncIterator[LevelHarness]:
    harness = LevelHarness(disk, clock, flush)
    await asyncio.to_thread(harness.levels.open)
    tasks = harness.tasks = [asyncio.create_task(service.run()) for service in (harness.store, harness.levels)]
    await asyncio.sleep(0)
    try:
        yield harness
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("kind", ["kill", "power cut"])
async def test_an_acknowledged_message_is_delivered_whenever_the_broker_stops(kind: str, flush: FlushMode) -> None:
    """No message is early, lost or stored twice.

    With async flush a power cut may take messages that were not yet durable.
    """
    disk, clock = MemoryFileSystem(), ManualClock(START_MS)
    due: dict[str, tuple[int, int]] = {}  # body -> delivery time, and end of the record in the log
    taken: list[tuple[MemoryFileSystem, int, dict[str, tuple[int, int]]]] = []
    async with life(disk, clock, flush) as harness:

        def crash(operation: Operation) -> None:
            if operation.name in CHANGES:
                durable = harness.store.positions[2] if (kind, flush) == ("power cut", "async") else 1 << 63
                promised = {b: (d, e) for b, (d, e) in due.items() if e <= durable}
                left = disk.kill() if kind == "kill" else disk.crash(operation.number)
                taken.append((left, clock.now_ms(), promised))

        disk.before_operation = one_at_a_time(crash)
        for body, level in (("a", 1), ("b", 2), ("c", 1), ("last level", 9)):
            end = await harness.send(body, level)
            due[body] = clock.now_ms() + 1000 * {1: 1, 2: 5, 9: 30}[level], end
            await harness.advance(0.7)
        for seconds in (0.5, 6, 30):
            await harness.advance(seconds)
        disk.before_operation = None
        assert [body for body, _ in harness.delivered()] == ["a", "c", "b", "last level"]
    assert len(taken) > 20
    for left, now_ms, promised in taken:
        async with life(left, ManualClock(now_ms), flush) as harness:
            await harness.advance(0)
            await harness.advance(31)
            delivered = harness.delivered()
            assert promised.keys() <= {body for body, _ in delivered}
            assert len(delivered) == len({body for body, _ in delivered}), delivered
            assert all(at_ms >= promised[body][0] for body, at_ms in delivered if body in promised)
            assert harness.levels.lost == harness.levels.waiting == 0
            assert harness.store.queue_range(SCHEDULE_TOPIC, 0)[1] <= 2
