"""The share of the event loop that long operations may use."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.limits import loop_share
from aerobee_broker.limits.loop_share import LoopShare, step_started


def test_long_work_of_many_has_one_share() -> None:
    """One client or ten in turn: with a share of a quarter, one second of work takes four."""
    for clients in (1, 10):
        share = LoopShare(0.25)
        ready = [0.0] * clients  # when each client may take its next step
        used = 0.0
        while used < 1.0:
            now = min(ready)
            used += 0.005
            ready[ready.index(now)] = now + 0.005 + max(0.0, share.wait_after(0.005, now + 0.005))
        assert min(ready) == pytest.approx(4.0, rel=0.1), clients


def test_short_work_after_a_quiet_time_does_not_wait() -> None:
    """One or two short steps do not pause; more of them do."""
    share = LoopShare(0.25)
    now = 1000.0
    assert share.wait_after(0.005, now) <= 0
    assert share.wait_after(0.005, now) <= 0
    assert share.wait_after(0.1, now) > 0.3
    assert share.wait_after(0.005, now + 10) <= 0, "a quiet time pays for what was used"


def test_a_quiet_time_is_not_saved_up() -> None:
    """An idle hour gives no credit: the next second of work is limited as usual."""
    share = LoopShare(0.25)
    assert share.wait_after(1.0, 3600.0) > 3.8


async def test_a_pause_lets_others_run_and_ends_at_the_given_time() -> None:
    """Other tasks run in each pause. A pause that is too long ends at `until`."""
    share = LoopShare(0.25)
    turns = 0

    async def other() -> None:
        nonlocal turns
        turns += 1

    task = asyncio.create_task(other())
    await share.pause(step_started())
    assert turns == 1
    await task
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        await share.pause(step_started() - 1000.0, until=loop.time() + 0.01)


async def test_work_that_begins_together_waits_until_it_is_paid_for() -> None:
    """Of a hundred tasks with 5 ms of work each, some begin at once, and the others one after the other."""
    share, loop = LoopShare(0.25), asyncio.get_running_loop()
    began: list[float] = []

    async def work() -> None:
        await share.prepay(0.005)
        began.append(loop.time())

    start = loop.time()
    tasks = [asyncio.create_task(work()) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 1 <= len(began) <= 6
    await asyncio.gather(*tasks)
    assert began[-1] - start > 1.5, "half a second of work, at a quarter of the time"


async def test_waits_that_end_together_begin_their_work_in_many_steps() -> None:
    """A process that stood still for a second finds all of them due."""
    share, began = LoopShare(1e6), 0

    async def work() -> None:
        nonlocal began
        await share.prepay(0.005)
        began += 1

    tasks = [asyncio.create_task(work()) for _ in range(100)]
    steps = []
    while began < len(tasks):
        before = began
        await asyncio.sleep(0)
        steps.append(began - before)
    assert max(steps) <= 4
    await asyncio.gather(*tasks)


async def test_what_was_paid_before_is_not_paid_again() -> None:
    """A step that took what it had paid for leaves no debt."""
    share = LoopShare(0.25)
    started = step_started()
    async with asyncio.timeout(60):
        await share.pause(started - 1000.0, prepaid=1000.0)


async def test_a_turn_ends_after_some_milliseconds_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run between two items once a turn is over, and not before."""
    used = 0.0
    monkeypatch.setattr(loop_share, "step_started", lambda: used)
    turns = loop_share.Turns()
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(100):
        used += 1 / 1024  # exact in binary
        await turns.next()
    task.cancel()
    assert others == 100 // 6


async def test_work_in_one_piece_is_done_by_one_task_at_a_time() -> None:
    """In order, one in a step of the loop; who was cancelled while it waited has paid nothing."""
    share = LoopShare(1.0)
    done: list[int] = []

    async def work(number: int) -> None:
        await share.whole(lambda: done.append(number))

    tasks = [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0)
    assert done == [0]
    tasks[2].cancel()
    await asyncio.wait(tasks)
    assert done == [0, 1, 3]
    with pytest.raises(ZeroDivisionError):
        await share.whole(lambda: 1 / 0)
    await asyncio.wait_for(work(4), 60)  # an error does not keep the others waiting
    assert done[-1] == 4
