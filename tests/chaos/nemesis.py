"""Disturbances of a broker during a run: kills, stops, pauses, clock jumps, broken connections."""

from __future__ import annotations

import asyncio
import glob
import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.chaos.history import ClockSet, Disturbed, Event
from tests.support.killable_broker import FLUSH_MODES, WRITE_MODES, KillableBroker
from tests.support.port_forwarder import PortForwarder

_FAKETIME: Final = "/usr/lib/*/faketime/libfaketimeMT.so.1"  # the path in Debian's package


class BrokerClock:
    """The wall clock of a broker process, set through libfaketime as an administrator would set it."""

    def __init__(self, directory: Path) -> None:
        """RuntimeError if libfaketime is not installed."""
        found = sorted(glob.glob(_FAKETIME))
        if not found:
            raise RuntimeError(
                "libfaketime is not installed, so the broker's clock does not jump: apt install faketime"
            )
        self._file = directory / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": found[0],
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",  # otherwise a jump takes effect ten seconds later
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: float) -> None:
        """Set how far the broker's clock is ahead of the true time from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+}\n")
        new.replace(self._file)  # atomic: a partly written file would be a different time

    @staticmethod
    def forget(pid: int) -> None:
        """Remove what libfaketime left in shared memory for a killed process."""
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            with suppress(OSError):
                os.unlink(f"/dev/shm/{name}")


class Nemesis:
    """Disturbs a broker in every way, at random, one disturbance at a time."""

    def __init__(
        self,
        seed: int,
        broker: KillableBroker,
        port: PortForwarder,
        clock: BrokerClock | None,
        note: Callable[[Event], None],
        progress: Callable[[], Awaitable[None]],
        *,
        pause_seconds_max: float,
        jump_seconds_max: float,
    ) -> None:
        """`port` is the one that all clients use. Without a `clock` the broker's time does not jump.

        `progress` returns when the clients have completed some calls. It is awaited before each disturbance, which on
        a busy machine could otherwise follow the last one before any call was answered.
        """
        self._dice = random.Random(seed)
        self._broker = broker
        self._port = port
        self._clock = clock
        self._note = note
        self._progress = progress
        self._pause_seconds_max = pause_seconds_max
        self._jump_seconds_max = jump_seconds_max

    async def run(self, seconds: float) -> None:
        """Run this long, or until each disturbance happened once, all equally often; at the end all is repaired."""
        deadline = time.monotonic() + seconds
        ways = [self._kill, self._stop, self._pause, self._cut, self._lose_answers]
        if self._clock is not None:
            ways += [self._jump]
        for turn in itertools.count():
            way = turn % len(ways)
            if turn >= len(ways) and time.monotonic() >= deadline:
                break
            if way == 0:
                self._dice.shuffle(ways)
            await asyncio.sleep(self._dice.uniform(0.2, min(6.0, seconds / 10)))
            await self._progress()
            await ways[way]()
        if self._clock is not None:
            self._set_clock(0)

    def _disturbed(self, what: str, *, is_restart: bool = False) -> None:
        self._note(Disturbed(_now_ms(), what, is_restart))

    async def _kill(self) -> None:
        self._disturbed("killed", is_restart=True)
        await self._broker.kill()
        BrokerClock.forget(self._broker.pid)
        while self._dice.random() < 0.25:
            self._disturbed("killed at its start", is_restart=True)
            await self._broker.launch(self._dice.choice(FLUSH_MODES), self._dice.choice(WRITE_MODES))
            await asyncio.sleep(self._dice.uniform(0.3, 1.5))
            await self._broker.kill()
            BrokerClock.forget(self._broker.pid)
        await self._start()

    async def _stop(self) -> None:
        self._disturbed("stopped", is_restart=True)
        code = await self._broker.stop()
        assert code == 0, f"exit code {code} after SIGTERM\n{self._broker.log.read_text()[-4000:]}"
        await self._start()

    async def _start(self) -> None:
        await self._broker.launch(self._dice.choice(FLUSH_MODES), self._dice.choice(WRITE_MODES))
        await self._broker.ready()

    async def _pause(self) -> None:
        self._disturbed("paused")
        await self._broker.pause(self._dice.uniform(0.1, self._pause_seconds_max))

    async def _cut(self) -> None:
        self._disturbed("connections cut")
        await asyncio.to_thread(self._port.reset)

    async def _lose_answers(self) -> None:
        self._disturbed("answers lost")
        self._port.lose_answers()
        await asyncio.sleep(self._dice.uniform(0.1, 1.0))
        await asyncio.to_thread(self._port.reset)

    async def _jump(self) -> None:
        seconds = self._dice.uniform(-self._jump_seconds_max, self._jump_seconds_max)
        self._disturbed("clock set ahead" if seconds > 0 else "clock set back")
        self._set_clock(round(seconds, 3))

    def _set_clock(self, seconds: float) -> None:
        assert self._clock is not None
        self._note(ClockSet(_now_ms(), round(seconds * 1000)))
        self._clock.set(seconds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
