"""Bounds the event loop's time for long work of clients: searches through backlogs, and large answers.

Short steps are not enough: a hundred clients with one step each delay others as much as one long step. So all such work
together gets a share of the loop's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from math import inf
from typing import Final, TypeVar

SHARE: Final = 0.25  # of one processor; enough for a search in columns to skip some 300,000 messages per second
_BURST_SECONDS: Final = 0.02  # of CPU time that may be used without a pause after an idle period
_TURN_SECONDS: Final = 0.005  # of CPU time, after which work on one request lets other tasks run
_BEGUN_SECONDS_MAX: Final = 0.008  # of prepaid work that begins in one step of the loop
_SLEEP_SECONDS_MIN: Final = 0.001  # a shorter sleep becomes a yield to the loop
STEP_SIZE: Final = 256 << 10  # bytes per step: about a millisecond
READ_COUNT: Final = 64  # messages per read within a step
_PIECE_SIZE: Final = 4 << 10  # bytes that take as long as the fixed cost of a piece

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class LoopShare:
    """The share of one event loop. Each step is paid for after it ran, in order."""

    __slots__ = ("_begun_seconds", "_paid_at", "_share", "_whole")

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._whole = asyncio.Lock()
        self._begun_seconds = 0.0  # of prepaid work that has begun in this step of the loop
        self._paid_at = -inf  # when all steps so far are paid for, in loop time, whose zero means nothing

    def wait_after(self, used_seconds: float, now: float) -> float:
        """The wait after a step that used this much CPU time. Seconds; 0 or less: none."""
        earliest = now - _BURST_SECONDS / self._share
        self._paid_at = max(self._paid_at, earliest) + used_seconds / self._share
        return self._paid_at - now

    async def prepay(self, seconds: float) -> None:
        """Before a step that will use about this much CPU time: wait until it is paid for, if other steps are not.

        For work that thousands of tasks may begin in the same step of the loop.
        """
        loop = asyncio.get_running_loop()
        wait = self.wait_after(seconds, loop.time())
        if wait >= _SLEEP_SECONDS_MIN:
            await asyncio.sleep(wait)
        # Waits end together where the process stood still: their work takes the next steps of the loop.
        while self._begun_seconds > _BEGUN_SECONDS_MAX:  # noqa: ASYNC110 - a step has no event
            await asyncio.sleep(0)
        if not self._begun_seconds:
            loop.call_soon(self._next_step)
        self._begun_seconds += seconds

    def _next_step(self) -> None:
        self._begun_seconds = 0.0

    async def whole(self, work: Callable[[], _Result]) -> _Result:
        """Do work of some milliseconds that cannot be divided into steps, behind all such work that waits. It is paid
        for as a step; who is cancelled while it waits pays nothing."""
        async with self._whole:
            started = step_started()
            try:
                return work()
            finally:
                await self.pause(started)

    async def pause(self, started: float, *, until: float | None = None, prepaid: float = 0.0) -> None:
        """Let other tasks run after a step that began when `step_started` returned this number.

        `prepaid`: seconds of it. Returns when the step is paid for, or at `until`, in loop time. Cancelling only ends
        the pause.
        """
        now = asyncio.get_running_loop().time()
        seconds = self.wait_after(time.thread_time() - started - prepaid, now)
        if until is not None:
            seconds = min(seconds, until - now)
        await asyncio.sleep(seconds if seconds >= _SLEEP_SECONDS_MIN else 0)


class Steps:
    """Long work in steps: report each piece of work, and it pauses after each step."""

    __slots__ = ("_left", "_share", "_started")

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._left = STEP_SIZE
        self._started = step_started()

    async def did(self, size: int) -> None:
        """Note that a piece of this many bytes was read, written or converted."""
        self._left -= size + _PIECE_SIZE
        if self._left <= 0:
            await self.pause()

    async def pause(self) -> None:
        """End the step, whatever its size."""
        await self._share.pause(self._started)
        self._left = STEP_SIZE
        self._started = step_started()


class Turns:
    """Work over the items of one request that lets other tasks run every few milliseconds.

    It is not charged to the share: the request asks for the work, and its size is bounded.
    """

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = step_started()

    @property
    def is_over(self) -> bool:
        """Whether it is time to let other tasks run."""
        return step_started() - self._started > _TURN_SECONDS

    async def next(self) -> None:
        """Between two items: let other tasks run if it is time."""
        if self.is_over:
            await asyncio.sleep(0)
            self._started = step_started()


async def in_turns(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """The items, each with the time that it takes: other tasks run between them."""
    turns = Turns()
    for item in items:
        await turns.next()
        yield item


step_started: Final = time.thread_time
"""The CPU time of the calling thread, so that the time of other processes is not charged."""
