"""Messages in flight while the system clock is set forward or back."""

from __future__ import annotations

import pytest

from tests.support.delivery_harness import Harness, Start

DAY = 24 * 3600.0


@pytest.mark.parametrize("jump", [-DAY, DAY, -400 * DAY])
async def test_clock_changes_do_not_change_an_invisible_time(harness: Harness, jump: float) -> None:
    """The invisible time keeps its length when the clock is set back or forward."""
    await harness.send("a")
    assert len(await harness.receive(seconds=60)) == 1
    harness.clock.jump(jump)
    await harness.advance(50)
    assert await harness.receive() == []
    await harness.advance(11)
    assert len(await harness.receive()) == 1


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_restart_after_the_clock_went_back(start: Start, orderly: bool) -> None:
    """After a restart, a message in flight is invisible for the maximum invisible time at most."""
    harness = await start(invisible_seconds_max=3600.0)
    await harness.send("a")
    assert len(await harness.receive(seconds=60)) == 1
    harness.clock.jump(-30 * DAY)
    harness = await (harness.restart() if orderly else harness.crash())
    assert await harness.receive() == []
    await harness.advance(3601)
    assert len(await harness.receive()) == 1
