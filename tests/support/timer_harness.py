"""A store and a timer in one process, with a disk in memory and a clock that only tests move."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aerobee_broker.config.timer import TimerConfig
from aerobee_broker.tables.topics import TopicConfig
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_store import MessageStore, Record, StoreConfig
from aerobee_store.disk.file_system import FileSystem
from aerobee_store.records.properties import UNIQ_KEY
from aerobee_store.records.record import Message
from aerobee_store.testing import ManualClock, MemoryFileSystem

TOPIC = "orders"
START_MS = 1_700_000_000_000
STORE = StoreConfig.tiny(Path("/store"))
SETTINGS = TimerConfig(roll_window_slots=100, slot_count=256, log_file_size=4096, flush_interval_seconds=3600.0)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message in its target topic."""

    body: str
    at_ms: int
    record: Record


class TimerHarness:
    """One run of a timer. Its `run` tasks begin with `start`; only `stop` and `save` save anything."""

    def __init__(
        self,
        disk: MemoryFileSystem,
        clock: ManualClock,
        settings: TimerConfig,
        store: StoreConfig = STORE,
        file_system: FileSystem | None = None,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.settings = settings
        self.store_config = store
        self.store = MessageStore.open(store, file_system=file_system or disk, clock=clock)
        self.timer = Timer(self.store, clock, settings, topics=[TopicConfig(name=TOPIC)])
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        disk: MemoryFileSystem | None = None,
        clock: ManualClock | None = None,
        *,
        store: StoreConfig = STORE,
        file_system: FileSystem | None = None,
        **settings: Any,
    ) -> TimerHarness:
        """`file_system` replaces the in-memory disk, for large amounts of data."""
        clock = clock or ManualClock(START_MS)
        harness = cls(disk or MemoryFileSystem(), clock, replace(SETTINGS, **settings), store, file_system)
        await asyncio.to_thread(harness.timer.open)
        harness._tasks = [asyncio.create_task(harness.store.run()), asyncio.create_task(harness.timer.run())]
        await asyncio.sleep(0)
        return harness

    async def next_life(self, disk: MemoryFileSystem) -> TimerHarness:
        """The next start, on what a crash left; this run is only abandoned."""
        await self.abandon()
        return await TimerHarness.start(disk, self.clock, store=self.store_config, **_fields(self.settings))

    async def abandon(self) -> None:
        """Stop like a killed process: nothing is saved."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def stop(self) -> None:
        """Stop cleanly."""
        if self._tasks:
            await self.timer.close()
            await self.abandon()
            self.store.close()

    async def save(self) -> None:
        """Save what the flush saves every second."""
        await self.timer._flush(clean=False)

    async def send(self, body: str, delay_seconds: float, *, message_id: str | None = None, queue_id: int = 0) -> int:
        """Store a delayed message; returns its delivery time."""
        deliver_ms = self.clock.now_ms() + round(delay_seconds * 1000)
        await self.send_all([(body, deliver_ms)], message_id=message_id, queue_id=queue_id)
        return deliver_ms

    async def send_all(
        self, messages: list[tuple[str, int]], *, message_id: str | None = None, queue_id: int = 0
    ) -> None:
        """Store delayed messages, given as body and delivery time."""
        appended = self.store.append(
            [
                self.timer.delayed(
                    Message(TOPIC, queue_id, body.encode(), {UNIQ_KEY: message_id or f"id-{body}"}), deliver_ms
                )
                for body, deliver_ms in messages
            ]
        )
        await self.store.wait_stored(appended[-1].end)
        await self.settle()

    async def settle(self) -> None:
        """Wait until the timer has done everything due at this time."""
        deadline = time.monotonic() + 240  # generous, for a busy machine
        for turn in itertools.count():
            self.timer.wake()
            # Work in threads progresses while the loop sleeps; other work needs only loop iterations.
            await asyncio.sleep(0 if turn < 200 else 0.001)
            if self.is_idle():
                for _ in range(20):
                    await asyncio.sleep(0)
                if self.is_idle():
                    return
            self.timer.check()
            assert time.monotonic() < deadline, "the timer does not come to rest"

    def is_idle(self) -> bool:
        timer, now_ms = self.timer, self.clock.now_ms()
        if timer._state.damage or timer._is_searching:
            return False
        due = timer.next_look_ms
        wrote, committed, flushed, dispatched = self.store.positions
        stored = flushed if self.store.config.flush == "sync" else committed
        return timer.enqueue_lag == 0 and wrote == stored == dispatched and (due is None or due > now_ms)

    async def advance(self, seconds: float) -> None:
        """Move the clock in one step and let the timer work."""
        self.clock.advance(seconds)
        await self.settle()

    def delivered(self, topic: str = TOPIC) -> list[Delivery]:
        """All messages in the target topic, in log order."""
        found = []
        for queue_id in self.store.queues().get(topic, []):
            position, end = self.store.queue_range(topic, queue_id)
            while position < end:
                result = self.store.read(topic, queue_id, position, max_count=1024, max_bytes=1 << 30)
                found += [Delivery(item.body.decode(), item.store_timestamp, item) for item in result.records]
                position = result.next_offset
        return sorted(found, key=lambda item: item.record.physical_offset)

    def bodies(self) -> list[str]:
        return [item.body for item in self.delivered()]


def _fields(settings: TimerConfig) -> dict[str, Any]:
    return {item.name: getattr(settings, item.name) for item in dataclasses.fields(settings)}
