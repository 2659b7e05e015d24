"""Turns of the event loop: a step ends by its clock, whatever the tasks cost that it starts."""

from __future__ import annotations

import asyncio
from time import thread_time

from aerobee_broker.limits.input_turns import InputTurns

TASK_SECONDS = 0.0005
COUNT = 400


async def test_tasks_that_cost_more_are_started_in_more_steps() -> None:
    """What the tasks of one step took is what those of the next are expected to take."""
    turns = InputTurns(asyncio.get_running_loop())
    in_steps: list[int] = []
    tasks: list[asyncio.Task[None]] = []
    done = asyncio.Event()

    async def work() -> None:
        ends = thread_time() + TASK_SECONDS
        while thread_time() < ends:
            pass

    def goes_on(_: float) -> bool:
        in_steps.append(0)
        while len(tasks) < COUNT:
            tasks.append(asyncio.create_task(work()))
            in_steps[-1] += 1
            if turns.started(1):
                return True
        done.set()
        return False

    turns.wait(goes_on)
    async with asyncio.timeout(60):
        await done.wait()
        await asyncio.gather(*tasks)
    assert in_steps[0] > 40  # nothing is known yet
    assert max(in_steps[1:-1]) <= 20, in_steps  # 8 ms of them
