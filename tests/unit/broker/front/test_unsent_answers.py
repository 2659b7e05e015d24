"""An answer that the system has not taken when its connection ends is given back; one that it has taken is not."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.front.unsent_answers import UnsentAnswers
from aerobee_broker.limits.input_turns import InputTurns


async def _turns() -> None:
    """More turns of the loop than an answer is looked after."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_answer_that_has_not_left_is_given_back_once() -> None:
    """Each of several, and none of them twice."""
    lost: list[str] = []
    answers = UnsentAnswers(lambda: False, lambda: False)
    for name in ("first", "second"):
        answers.add(lambda name=name: lost.append(name))  # type: ignore[misc]
    await _turns()
    assert lost == []
    answers.connection_lost(InputTurns(asyncio.get_running_loop()), is_broken=False)
    answers.connection_lost(InputTurns(asyncio.get_running_loop()), is_broken=False)
    assert lost == ["first", "second"]


async def test_an_answer_that_has_left_is_not_given_back() -> None:
    """The client may have read it before the connection ended."""
    lost: list[str] = []
    answers = UnsentAnswers(lambda: True, lambda: False)
    answers.add(lambda: lost.append("sent"))
    await _turns()
    answers.connection_lost(InputTurns(asyncio.get_running_loop()), is_broken=False)
    assert lost == []


async def test_a_slow_connection_is_looked_at_again() -> None:
    """The answer leaves later; what is added after that counts by itself."""
    lost: list[str] = []
    is_sent = False
    answers = UnsentAnswers(lambda: is_sent, lambda: False)
    answers.add(lambda: lost.append("slow"))
    await _turns()
    is_sent = True
    async with asyncio.timeout(30):
        while answers._check_handle is not None:  # noqa: ASYNC110 - the last look tells nobody
            await asyncio.sleep(0.001)
    is_sent = False
    answers.add(lambda: lost.append("next"))
    answers.connection_lost(InputTurns(asyncio.get_running_loop()), is_broken=False)
    assert lost == ["next"]


@pytest.mark.parametrize("is_broken", [False, True])
async def test_buffers_that_a_broken_connection_dropped_are_no_proof(is_broken: bool) -> None:
    """They are as empty as those of a connection that has written all and closes."""
    lost: list[str] = []
    answers = UnsentAnswers(lambda: True, lambda: True)
    answers.add(lambda: lost.append("dropped"))
    await _turns()
    answers.connection_lost(InputTurns(asyncio.get_running_loop()), is_broken=is_broken)
    assert lost == ["dropped"] * is_broken


async def test_an_answer_after_one_that_seemed_sent_counts_by_itself() -> None:
    """It is not known to have left when the connection closes."""
    lost: list[str] = []
    answers = UnsentAnswers(lambda: True, lambda: True)
    answers.add(lambda: lost.append("first"))
    await _turns()
    answers.add(lambda: lost.append("second"))
    answers.connection_lost(InputTurns(asyncio.get_running_loop()), is_broken=False)
    assert "second" in lost
