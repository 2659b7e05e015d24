"""Appends that no client waits for, when replicas are missing, the store refuses, or the disk is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import pytest

from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.timer import background
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_store import MessageStore, SyncTimeoutError
from aerobee_store.errors import ReplicaError, ReplicaMissingError, ReplicaTimeoutError
from aerobee_store.records.record import Message
from aerobee_store.running_flags import RunningFlags
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.timer_harness import START_MS, STORE, TOPIC, TimerHarness

pytestmark = pytest.mark.timeout(60)  # a loop that never suspends is ended


class _NoReplicas:
    """What a master with `acks` does while no replica is connected."""

    async def wait(self, end: int) -> None:
        raise ReplicaMissingError(f"nobody confirms {end}")


class _Delays(Protocol):
    """Messages that fall due a second after they were stored."""

    store: MessageStore

    async def send(self, body: str) -> None: ...
    async def advance(self) -> None: ...


class _Timed:
    """Messages with a time of delivery."""

    def __init__(self, harness: TimerHarness) -> None:
        self.store = harness.store
        self._harness = harness

    async def send(self, body: str) -> None:
        with suppress(ReplicaMissingError):
            await self._harness.send(body, 1)

    async def advance(self) -> None:
        self._harness.clock.advance(1)
        self._harness.timer.wake()


class _Levels:
    """Messages with a delay level."""

    def __init__(self, store: MessageStore, levels: LevelDelay, clock: ManualClock) -> None:
        self.store = store
        self._levels = levels
        self._clock = clock

    async def send(self, body: str) -> None:
        [place] = self.store.append([self._levels.delayed(Message(TOPIC, 0, body.encode()), 1)])
        await self.store.wait_stored(place.end, durable=True)

    async def advance(self) -> None:
        self._clock.advance(1)
        self._levels.wake()


@pytest.fixture(params=["time", "level"])
async def delays(request: pytest.FixtureRequest) -> AsyncIterator[_Delays]:
    if request.param == "time":
        harness = await TimerHarness.start(store=replace(STORE, flush="sync"))
        yield _Timed(harness)
        await harness.abandon()
        return
    clock = ManualClock(START_MS)
    config = replace(STORE, flush="sync", delay_levels_seconds=(1,))
    store = MessageStore.open(config, file_system=MemoryFileSystem(), clock=clock)
    levels = LevelDelay(store, clock, LoopShare())
    await asyncio.to_thread(levels.open)
    tasks = [asyncio.create_task(service.run()) for service in (store, levels)]
    await asyncio.sleep(0)
    yield _Levels(store, levels, clock)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - it happens in a service
            await asyncio.sleep(0.005)


def _bodies(store: MessageStore) -> list[str]:
    return [record.body.decode() for record in store.read(TOPIC, 0, 0, max_count=100).records]


async def test_due_message_without_replicas_does_not_stop_the_broker(delays: _Delays) -> None:
    """Due messages are delivered, once, and the event loop goes on."""
    delays.store.replicas = _NoReplicas()
    for body in ("a", "b"):
        await delays.send(body)
        await delays.advance()
        await _eventually(lambda: body in _bodies(delays.store))  # noqa: B023 - awaited within the turn
    assert _bodies(delays.store) == ["a", "b"]


@pytest.mark.parametrize("flag", [RunningFlags.FENCED, RunningFlags.NOT_WRITEABLE])
async def test_due_message_waits_while_the_store_refuses_appends(
    delays: _Delays, flag: RunningFlags, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost lease does not end the service: the message is delivered, once, when the store accepts it."""
    monkeypatch.setattr(background, "_RETRY_SECONDS", 0.005)
    await delays.send("a")
    delays.store.running.set(flag, "not now")
    await delays.advance()
    await asyncio.sleep(0.05)
    assert _bodies(delays.store) == []
    delays.store.running.clear(flag)
    await _eventually(lambda: bool(_bodies(delays.store)))
    assert _bodies(delays.store) == ["a"]


async def test_slow_disk_is_waited_for_without_a_second_append(
    delays: _Delays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message whose sync takes too long is delivered once."""
    monkeypatch.setattr(background, "_RETRY_SECONDS", 0.005)
    await delays.send("a")
    wait_stored: Callable[..., Awaitable[None]] = delays.store.wait_stored
    tries = 0

    async def wait(end: int, *, durable: bool | None = None, replicas: bool = True) -> None:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise SyncTimeoutError("slow")
        await wait_stored(end, durable=durable, replicas=replicas)

    delays.store.wait_stored = wait  # type: ignore[method-assign]
    await delays.advance()
    await _eventually(lambda: tries > 3 and bool(_bodies(delays.store)))
    assert _bodies(delays.store) == ["a"]


async def test_a_level_counts_again_when_the_clock_goes_back() -> None:
    """A message came at once, hours early. Now it waits for its delay, and all that waited then come with it."""
    clock = ManualClock(START_MS)
    config = replace(STORE, flush="sync", delay_levels_seconds=(60,))
    store = MessageStore.open(config, file_system=MemoryFileSystem(), clock=clock)
    levels = LevelDelay(store, clock, LoopShare())
    await asyncio.to_thread(levels.open)
    delays = _Levels(store, levels, clock)
    running = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    await delays.send("a")
    await delays.send("b")
    clock.jump(-3600)
    tasks = [running, asyncio.create_task(levels.run())]
    try:
        for seconds, bodies in ((0, []), (59, []), (1, ["a", "b"])):
            clock.advance(seconds)
            levels.looked_ms = -1
            levels.wake()
            await _eventually(lambda: levels.looked_ms == clock.now_ms())
            assert _bodies(store) == bodies
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_missing_replicas_are_no_slow_disk() -> None:
    """A loop that waits for a slow disk does not catch the errors of replicas, which are raised at once."""
    for error in (ReplicaError, ReplicaMissingError, ReplicaTimeoutError):
        assert not issubclass(error, SyncTimeoutError)
        assert not issubclass(SyncTimeoutError, error)
