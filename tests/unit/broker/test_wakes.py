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
from aerobee_broker.limits import input_turns
from aerobee_broker.limits.byte_budget import ByteBudget
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


async def test_work_with_many_parts_takes_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand parts of a millisecond: a step has some of them, all are done in order, and others go on between."""
    now = 0.0
    monkeypatch.setattr(input_turns, "monotonic", lambda: now)
    turns, done = InputTurns(asyncio.get_running_loop()), list[int]()

    def act(number: int) -> None:
        nonlocal now
        now += 0.001
        done.append(number)

    turns.each(range(500), act)
    turns.each(range(500, 1000), act)
    steps = [len(done)]
    while len(done) < 1000:
        before = len(done)
        await asyncio.sleep(0)
        steps.append(len(done) - before)
    assert steps[0] > 0, "it begins at once"
    assert max(steps) <= 16
    assert [number for number in done if number < 500] == list(range(500))
    assert [number for number in done if number >= 500] == list(range(500, 1000))
    assert done != sorted(done), "in turns"


async def test_an_error_of_one_ends_its_work_only() -> None:
    """What waits behind it goes on."""
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    turns, done = InputTurns(loop), asyncio.Event()

    def fails(_: float) -> bool:
        raise ValueError("a bug")

    def goes_on(_: float) -> bool:
        done.set()
        return False

    turns.wait(fails)
    turns.wait(goes_on)
    async with asyncio.timeout(30):
        await done.wait()
    assert [type(error) for error in errors] == [ValueError]


async def test_calls_that_wait_for_bytes_go_on_some_at_a_time() -> None:
    """Thousands may wait for one byte each, which one large request gives back."""
    budget = ByteBudget("requests in progress", total_max=1000, owner_max=1000)
    budget.take_now(1000, ("large",))
    done = 0

    async def work() -> None:
        nonlocal done
        await budget.take(1, ("small",), seconds=60)
        done += 1

    tasks = [asyncio.create_task(work()) for _ in range(500)]
    await asyncio.sleep(0)
    budget.give(1000, ("large",))
    steps = []
    while done < len(tasks):
        before = done
        await asyncio.sleep(0)
        steps.append(done - before)
    assert max(steps) <= AT_ONCE
    assert budget.used == 500
    await asyncio.gather(*tasks)


async def test_a_call_that_ends_before_it_gets_its_bytes_returns_them() -> None:
    """It was granted, and cancelled in the steps before it would go on."""
    budget = ByteBudget("requests in progress", total_max=1000, owner_max=1000)
    budget.take_now(1000, ("large",))
    tasks = [asyncio.create_task(budget.take(1, ("small",), seconds=60)) for _ in range(2 * AT_ONCE)]
    await asyncio.sleep(0)
    budget.give(1000, ("large",))
    assert budget.used == len(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budget.used == 0


async def test_a_gate_lets_as_many_go_on_as_its_wakes_say() -> None:
    gate = Gate(Wakes(3), is_open=False)
    tasks = [asyncio.create_task(gate.wait()) for _ in range(10)]
    await asyncio.sleep(0)
    gate.set()
    done: list[int] = []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        done.append(sum(task.done() for task in tasks))
    assert max(after - before for before, after in zip([0, *done], done, strict=False)) == 3
