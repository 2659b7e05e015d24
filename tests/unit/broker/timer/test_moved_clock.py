"""Delayed messages while the clock jumps by days, forth and back, with kills, power cuts and neither between."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from aerobee_store.testing import ManualClock
from tests.support import seeds
from tests.support.timer_harness import START_MS, TimerHarness

SEED = seeds.seed("AEROBEE_CLOCK_SEED")
_WALKS = 200 if seeds.FRESH else 10
_DAY_MS = 86_400_000
_DAYS_AHEAD = (0, 0, 400, -400, 40, -30, 2, -2, 0.3, -0.3)
_DELAYS_SECONDS = (1, 3, 30, 300, 7_200, 100_000)
_DELAY_MAX_MS = 40 * _DAY_MS


class Walk:
    """A timer through several lives, with what its clients were promised."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.due_ms: dict[str, int] = {}
        self._ahead_ms = 0

    async def start(self) -> None:
        """A wheel small enough to be fast, with rounds of most of a day."""
        file_size = self.dice.choice([4096, 65_536])
        self.harness = await TimerHarness.start(
            clock=ManualClock(START_MS), roll_window_slots=20_000, slot_count=65_536, log_file_size=file_size
        )

    @property
    def clock(self) -> ManualClock:
        return self.harness.clock

    async def jump(self, days_ahead: float, end: str) -> None:
        """Set the clock so far ahead of the true time, and end the process in this way."""
        ahead_ms = round(days_ahead * _DAY_MS)
        self.clock.jump((ahead_ms - self._ahead_ms) / 1000)
        self._ahead_ms = ahead_ms
        if end:
            disk = self.harness.disk
            left = disk.kill() if end == "kill" else disk.crash(self.dice.randrange(1000))
            self.harness = await self.harness.next_life(left)
        if self.dice.random() < 0.7:
            await self.harness.settle()

    async def send(self, count: int) -> None:
        """Send messages that are due soon after the broker's time, or after the true one."""
        now_ms = self.clock.now_ms()
        batch = []
        for _ in range(count):
            begin_ms = now_ms if self.dice.random() < 0.6 else max(now_ms, now_ms - self._ahead_ms)
            due_ms = min(begin_ms + 1000 * self.dice.choice(_DELAYS_SECONDS), now_ms + _DELAY_MAX_MS)
            batch.append((str(len(self.due_ms)), due_ms))
            self.due_ms[batch[-1][0]] = due_ms
        if batch:
            await self.harness.send_all(batch)

    async def work(self) -> None:
        """A few seconds, in which some of the progress is saved."""
        for _ in range(4):
            await self.harness.advance(self.dice.choice([0.1, 1, 5]))
            if self.dice.random() < 0.4:
                await self.harness.save()

    async def check(self) -> None:
        """After two restarts at the right time every message that is due was delivered once; the others are pending."""
        for _ in range(2):
            await self.jump(0, "kill")
            await self.harness.advance(400)
            await self.harness.advance(200_000)
        delivered, now_ms = self.harness.bodies(), self.clock.now_ms()
        assert len(delivered) == len(set(delivered))
        assert {body for body, due_ms in self.due_ms.items() if due_ms <= now_ms} <= set(delivered)
        assert sum(self.harness.timer.stats.pending.values()) == len(self.due_ms.keys() - set(delivered))


async def _walk(dice: random.Random, jumps: Sequence[tuple[float, str]]) -> None:
    walk = Walk(dice)
    await walk.start()
    try:
        for days_ahead, end in jumps:
            await walk.jump(days_ahead, end)
            await walk.send(dice.choice([0, 5, 25]))
            await walk.work()
        await walk.check()
    finally:
        await walk.harness.abandon()


@pytest.mark.parametrize("end", ["", "kill", "crash"])
async def test_forth_and_back_by_days(end: str) -> None:
    await _walk(random.Random(SEED), [(0, ""), (400, end), (0, end), (-30, end), (0, end)])


@pytest.mark.parametrize("number", range(_WALKS))
async def test_any_jumps(number: int) -> None:
    dice = random.Random(f"{SEED} {number}")
    ends = ("", "", "kill", "kill", "crash")
    await _walk(dice, [(dice.choice(_DAYS_AHEAD), dice.choice(ends)) for _ in range(dice.randint(2, 6))])


async def test_the_log_tells_that_the_clock_went_back() -> None:
    """The checkpoint of the time that was ahead is lost; what was delivered then is not delivered again."""
    harness = await TimerHarness.start(clock=ManualClock(START_MS), roll_window_slots=20_000, slot_count=65_536)
    try:
        await harness.send("early", 5_000)
        await harness.send("far", 30_000)
        await harness.save()
        await harness.advance(21_000)
        harness.clock.jump(-21_000)
        for _ in range(2):
            harness = await harness.next_life(harness.disk.kill())
            await harness.send("now", 1)
            await harness.advance(2)
        await harness.advance(40_000)
        assert sorted(harness.bodies()) == ["early", "far", "now", "now"]
    finally:
        await harness.abandon()


async def test_no_old_checkpoint_is_trusted_after_a_kill() -> None:
    """The files were made again while the broker ran; it is killed before they are saved, and the clock jumps again."""
    harness = await TimerHarness.start(
        clock=ManualClock(START_MS + 2 * _DAY_MS), roll_window_slots=20_000, slot_count=65_536
    )
    try:
        for number in range(5):
            await harness.send(f"{number}", 50_000)
        await harness.save()
        harness.clock.jump(-2 * 86_400)
        await harness.send("soon", 1)
        await harness.advance(2)
        harness.clock.jump(2 * 86_400 + 60)
        harness = await harness.next_life(harness.disk.kill())
        await harness.advance(50_000)
        assert sorted(harness.bodies()) == ["0", "1", "2", "3", "4", "soon"]
    finally:
        await harness.abandon()


async def test_a_message_sent_after_the_clock_went_back_is_not_late() -> None:
    """The broker goes on; only its clock was wrong for a while."""
    harness = await TimerHarness.start(clock=ManualClock(START_MS + 400 * _DAY_MS))
    try:
        await harness.send("ahead", 30)
        await harness.advance(5)
        harness.clock.jump(-400 * 86_400)
        await harness.send("back", 30)
        await harness.advance(31)
        assert harness.bodies() == ["back"]
        assert sum(harness.timer.stats.pending.values()) == 1
    finally:
        await harness.abandon()
