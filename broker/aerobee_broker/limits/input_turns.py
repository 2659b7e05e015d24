"""Turns of the event loop for the work of connections: a step ends by its clock, not by its input.

A connection that has received bytes works on them for `TURN_SECONDS`. What is left waits in line behind the other
connections, and so does all else that has as many parts as a client likes: see `InputTurns.each`. All turns of one step
of the loop together take little more than `_STEP_SECONDS`: then the loop serves its timers, handlers and sockets before
the next turn begins. A turn costs two looks at a clock as long as there is no line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic, thread_time
from typing import Final, TypeVar

TURN_SECONDS: Final = 0.004
_STEP_SECONDS: Final = 0.008
# Of processor that a started task takes in its first step. How much it really is, is measured from step to step: a pull
# on a busy machine takes several times as much as a health call on an idle one.
_TASK_SECONDS_MIN: Final = 0.0001
_TASK_SECONDS_MAX: Final = 0.001
_TASK_SECONDS_DECAY: Final = 0.9  # in a step, of an earlier measurement that is larger than the present one

_Item = TypeVar("_Item")
GoesOn = Callable[[float], bool]
"""Continues the work of a connection until this time of `time.monotonic`; returns whether more is left."""


class InputTurns:
    """The line of one event loop."""

    __slots__ = (
        "_counts",
        "_line",
        "_loop",
        "_owed",
        "_served_at",
        "_spent",
        "_started",
        "_task_seconds",
        "is_full",
        "long_work",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[GoesOn] = deque()
        self._counts = False  # whether `_next_step` is to be called
        self._spent = 0.0  # seconds of turns in this step of the loop
        self._owed = 0.0  # of these, seconds of tasks that turns have started and that run in the next step
        self._started = 0  # tasks, since the last turns in line
        self._served_at: float | None = None  # the thread's processor time when these ended; None: there is no line
        self._task_seconds = _TASK_SECONDS_MIN
        self.is_full = False
        """Whether a connection with input has to wait in line."""
        self.long_work = asyncio.Lock()
        """For work in many turns that takes memory meanwhile: one task at a time does such."""

    def started(self, count: int) -> bool:
        """A turn has started so many tasks. Returns whether it is over: the tasks are the work of the next step."""
        self._started += count
        self._owed += count * self._task_seconds
        return self._owed > _STEP_SECONDS

    def spent(self, began: float) -> None:
        """A turn outside the line has ended that began at this time of `time.monotonic`."""
        self._spent += monotonic() - began + self._owed
        self._owed = 0.0
        if not self._counts:
            self._counts = True
            self._loop.call_soon(self._next_step)
        if self._spent > _STEP_SECONDS and not self.is_full:
            self.is_full = True
            self._loop.call_soon(self._serve)

    def _next_step(self) -> None:
        self._counts = False
        self._spent = 0.0

    def wait(self, goes_on: GoesOn, *, is_first: bool = False) -> None:
        """Call this in a later turn, and again until it has no work left. `is_first`: in the next one."""
        if is_first:
            self._line.appendleft(goes_on)
        else:
            self._line.append(goes_on)
        if not self.is_full:
            self.is_full = True
            self._loop.call_soon(self._serve)

    def each(self, items: Iterable[_Item], act: Callable[[_Item], object]) -> None:
        """Do something for each of these items, of which there may be any number. It begins in this step of the loop,
        and goes on in later turns. `act` must not raise."""
        left = iter(items)

        def goes_on(until: float) -> bool:
            for item in left:
                act(item)
                if monotonic() > until:
                    return True
            return False

        began = monotonic()
        if self.is_full or goes_on(began + TURN_SECONDS):
            self.wait(goes_on)
        self.spent(began)

    async def next(self, seconds: float) -> None:
        """Return when a step of the loop has time for this much work of a task that has done a piece of its work."""
        turn: asyncio.Future[None] = self._loop.create_future()

        def begins(_: float) -> bool:
            if not turn.done():
                self._owed += seconds  # the task goes on in the next step
                turn.set_result(None)
            return False

        self.wait(begins)
        await turn

    def close(self) -> None:
        """Forget all work."""
        self._line.clear()

    def _serve(self) -> None:
        line = self._line
        self._measure_tasks()
        began = now = monotonic()
        self._owed = 0.0
        try:
            while line and now - began + self._owed < _STEP_SECONDS:
                goes_on = line.popleft()
                if goes_on(now + TURN_SECONDS):
                    line.append(goes_on)
                now = monotonic()
        finally:  # an error ends the work of one connection, and not that of the others
            if line:
                self._served_at = thread_time()
                self._loop.call_soon(self._serve)
            else:
                self._served_at = None
                self.is_full = False
                self._spent = self._owed = 0.0

    def _measure_tasks(self) -> None:
        """Learn what the tasks took that the last turns in line have started: the step since then was theirs."""
        if self._served_at is not None and self._started:
            took = max((thread_time() - self._served_at) / self._started, self._task_seconds * _TASK_SECONDS_DECAY)
            self._task_seconds = min(max(took, _TASK_SECONDS_MIN), _TASK_SECONDS_MAX)
        self._started = 0
