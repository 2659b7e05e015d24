"""Many waiters of one thing go on some at a time."""

from __future__ import annotations

import asyncio
import time

import pytest

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front import frames
from aerobee_broker.front.methods import Context, ServerStream
from aerobee_broker.front.sockets import Front
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.limits.wakes import AT_ONCE, Gate, Wakes
from tests.support.http2_attacker import block, headers, message


async def test_waiters_go_on_some_at_a_time_and_in_order() -> None:
    """No step of the loop has more of them than the limit, and none is forgotten."""
    wakes, loop = Wakes(), asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(5 * AT_ONCE)]
    done: list[int] = []
    steps: list[int] = []

    async def wait(number: int) -> None:
        await futures[number]
        done.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(len(futures))]
    await asyncio.sleep(0)
    for future in futures:
        wakes.resolve(future, True)
    while len(done) < len(futures):
        before = len(done)
        await asyncio.sleep(0)
        steps.append(len(done) - before)
    assert max(steps) <= AT_ONCE
    assert done == sorted(done)
    await asyncio.gather(*tasks)


async def test_a_cancelled_waiter_takes_no_place() -> None:
    """Futures that are done already are passed over."""
    wakes, loop = Wakes(), asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(3 * AT_ONCE)]
    for future in futures[: 2 * AT_ONCE]:
        future.cancel()
    for future in futures:
        wakes.resolve(future, False)
    for _ in range(3):
        await asyncio.sleep(0)
    assert [future.result() for future in futures[2 * AT_ONCE :]] == [False] * AT_ONCE


async def test_a_gate_may_be_closed_at_first() -> None:
    """Like an event that has not happened yet."""
    gate = Gate(Wakes(), is_open=False)
    waiter = asyncio.create_task(gate.wait())
    await asyncio.sleep(0)
    assert not gate.is_set()
    assert not waiter.done()
    gate.set()
    async with asyncio.timeout(30):
        await waiter


async def test_a_gate_lets_nobody_through_while_it_is_closed() -> None:
    """Waiters go on after `set`; a cancelled one leaves."""
    gate = Gate(Wakes())
    await gate.wait()
    gate.clear()
    waiting = [asyncio.create_task(gate.wait()) for _ in range(2 * AT_ONCE)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert not any(task.done() for task in waiting[1:])
    gate.set()
    assert gate.is_set()
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting[1:])


async def test_handlers_that_wait_for_the_same_thing_go_on_in_several_steps() -> None:
    """A hundred handlers of two milliseconds each do not make one step of the loop, which would be 0.2 s."""
    woken, done, steps = asyncio.Event(), 0, 0

    async def wait(request: bytes, context: Context) -> None:
        nonlocal done
        await woken.wait()
        time.sleep(0.002)  # noqa: ASYNC251 - it stands for work
        done += 1

    counters = FrontCounters()
    front = Front({"/s/Wait": ServerStream(wait)}, FrontConfig(), counters)
    port = front.listen("127.0.0.1", 0, "plain", None)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    calls = b"".join(headers(n, block("/s/Wait")) + message(n, b"") for n in range(1, 201, 2))
    writer.write(frames.PREFACE + frames.settings({}) + calls)
    async with asyncio.timeout(60):
        while counters.calls < 100:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0.005)
        woken.set()
        while done < 100:
            await asyncio.sleep(0)
            steps += 1
    assert steps > 10
    writer.close()
    await front.stop(0)


async def test_pieces_of_work_of_many_tasks_share_the_steps() -> None:
    """Forty tasks that ask for two milliseconds each do not all go on in the same step."""
    turns, begun = InputTurns(asyncio.get_running_loop()), 0

    async def work() -> None:
        nonlocal begun
        await turns.next(0.002)
        begun += 1

    tasks = [asyncio.create_task(work()) for _ in range(40)]
    steps = []
    while begun < len(tasks):
        before = begun
        await asyncio.sleep(0)
        steps.append(begun - before)
    assert max(steps) <= 5
    await asyncio.gather(*tasks)
