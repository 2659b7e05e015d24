"""How much of the event loop the long work of clients may take: searches through backlogs, and large answers.

Work that needs many steps of the event loop is no threat by the length of its steps alone: a hundred clients with a
step each leave others as little as one long step would. So all such work together has a share of the loop's time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

SHARE: Final = 0.25  # of one processor; a search in columns passes over some 300,000 messages a second with it
_BURST_SECONDS: Final = 0.02  # of processor time that may be used without a pause after a quiet time
_TURN_SECONDS: Final = 0.005  # of processor time, after which work on one request lets others run
_SLEEP_SECONDS_MIN: Final = 0.001  # a shorter sleep is a turn of the loop
STEP_SIZE: Final = 256 << 10  # bytes of a step: about a millisecond
READ_COUNT: Final = 64  # messages of one read within a step
_PIECE_SIZE: Final = 4 << 10  # bytes that take as long as what each piece costs beside its bytes


class LoopShare:
    """The share of one event loop. Each step is paid for after it was made, in the order in which they are made."""

    __slots__ = ("_paid_at", "_share")

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._paid_at = 0.0  # when all steps so far are paid for, in the time of the loop

    def wait_after(self, used_seconds: float, now: float) -> float:
        """How long to wait after a step that used so much processor time. Seconds; 0 or less: not at all."""
        earliest = now - _BURST_SECONDS / self._share
        self._paid_at = max(self._paid_at, earliest) + used_seconds / self._share
        return self._paid_at - now

    async def pause(self, started: float, *, until: float | None = None) -> None:
        """Let others run after a step that began when `step_started` gave this number.

        Returns when the step is paid for, or at `until`, a time of the event loop. Cancelling only ends the pause.
        """
        now = asyncio.get_running_loop().time()
        seconds = self.wait_after(time.thread_time() - started, now)
        if until is not None:
            seconds = min(seconds, until - now)
        await asyncio.sleep(seconds if seconds >= _SLEEP_SECONDS_MIN else 0)


class Steps:
    """Long work that is done in steps: tell it of each piece, and it pauses when they make a step."""

    __slots__ = ("_left", "_share", "_started")

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._left = STEP_SIZE
        self._started = step_started()

    async def did(self, size: int) -> None:
        """A piece of so many bytes was read, or written, or made to something else."""
        self._left -= size + _PIECE_SIZE
        if self._left <= 0:
            await self.pause()

    async def pause(self) -> None:
        """End the step, whatever was done in it."""
        await self._share.pause(self._started)
        self._left = STEP_SIZE
        self._started = step_started()


class Turns:
    """Work over the items of one request, which others may interrupt after some milliseconds of it.

    It has no share of the loop: the work is what the request asks for, and its size is bounded.
    """

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = step_started()

    async def next(self) -> None:
        """Between two items: let others run if it is their turn."""
        if step_started() - self._started > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._started = step_started()


step_started: Final = time.thread_time
"""The processor time of the thread that calls: what other processes do meanwhile is not paid for."""
