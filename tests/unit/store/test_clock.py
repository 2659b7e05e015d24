"""The clock for periods that end in an irreversible action."""

from __future__ import annotations

import logging

import pytest

from aerobee_store.clock import SteadyClock
from aerobee_store.testing import ManualClock

DAY = 24 * 3600.0


def test_the_clock_continues_after_the_wall_clock_went_back() -> None:
    """It continues for the life of the process; later times of the wall clock are accepted."""
    clock = ManualClock()
    steady = SteadyClock(clock)
    begin = steady.now_ms()
    clock.jump(-DAY)
    assert steady.now_ms() == begin
    for day in range(1, 4):
        clock.advance(DAY)
        assert steady.now_ms() == begin + day * 86_400_000
    clock.jump(DAY)
    assert steady.now_ms() == clock.now_ms()


def test_a_jump_ahead_is_accepted_after_a_day(caplog: pytest.LogCaptureFixture) -> None:
    """The jump is logged when noticed and when accepted; a correction before that leaves no effect."""
    clock = ManualClock()
    steady = SteadyClock(clock)
    begin = steady.now_ms()
    with caplog.at_level(logging.WARNING):
        clock.jump(10 * DAY)
        for _ in range(23):
            clock.advance(3600)
            assert steady.now_ms() < clock.now_ms() - 9 * DAY * 1000
        assert [record.message.count("jumped") for record in caplog.records] == [1]
        clock.jump(-10 * DAY)
        assert steady.now_ms() == clock.now_ms() == begin + 23 * 3_600_000
        clock.jump(10 * DAY)
        for _ in range(25):
            steady.now_ms()
            clock.advance(3600)
        assert steady.now_ms() == clock.now_ms()
    assert sum("accepted after its jump" in record.message for record in caplog.records) == 1


def test_small_corrections_are_followed_without_going_back() -> None:
    """Corrections like those of NTP are followed at the next step forwards."""
    clock = ManualClock()
    steady = SteadyClock(clock)
    latest = steady.now_ms()
    for step in (0.5, -0.9, 0.9, -0.3):
        clock.jump(step)
        now = steady.now_ms()
        assert now >= latest
        latest = now
        clock.advance(10)
        assert steady.now_ms() == clock.now_ms()
