"""An answer that the system has not taken when its connection ends is given back; one that it has taken is not."""

from __future__ import annotations

import asyncio

from aerobee_broker.front.unsent_answers import UnsentAnswers
from aerobee_broker.limits.input_turns import InputTurns


async def _turns() -> None:
    """More turns of the loop than an answer is looked after."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_answer_that_has_not_left_is_given_back_once() -> None:
    """Each of several, and none of them twice."""
    lost: list[str] = []
    answers = UnsentAnswers(lambda: False)
    for name in ("first", "second"):
        answers.add(lambda name=name: lost.append(name))  # type: ignore[misc]
    await _turns()
    assert lost == []
    answers.connection_lost(InputTurns(asyncio.get_running_loop()))
    answers.connection_lost(InputTurns(asyncio.get_running_loop()))
    assert lost == ["first", "second"]


async def test_an_answer_that_has_left_is_not_given_back() -> None:
    """The client may have read it before the connection ended."""
    lost: list[str] = []
    answers = UnsentAnswers(lambda: True)
    answers.add(lambda: lost.append("sent"))
    await _turns()
    answers.connection_lost(InputTurns(asyncio.get_running_loop()))
    assert lost == []


async def test_a_slow_connection_is_looked_at_again() -> None:
    """The answer leaves later; what is added after that counts by itself."""
    lost: list[str] = []
    is_sent = False
    answers = UnsentAnswers(lambda: is_sent)
    answers.add(lambda: lost.append("slow"))
    await _turns()
    is_sent = True
    async with asyncio.timeout(30):
        while answers._check_handle is not None:  # noqa: ASYNC110 - the last look tells nobody
            await asyncio.sleep(0.001)
    is_sent = False
    answers.add(lambda: lost.append("next"))
    answers.connection_lost(InputTurns(asyncio.get_running_loop()))
    assert lost == ["next"]
