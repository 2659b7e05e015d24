"""Wakes tasks that wait some at a time: a step of the event loop ends, however many waited for the same thing.

A future that is done lets its task go on in the next step of the loop. Thousands that are resolved together would make
that one step as long as all their work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

AT_ONCE: Final = 64  # tasks that go on in one step of the loop; each takes some 100 us


class Wakes:
    """Resolves futures, in order, at most `at_once` in a step of the loop. Event loop only."""

    __slots__ = ("_at_once", "_resolved", "_waiting")

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: deque[tuple[asyncio.Future[bool], bool]] = deque()
        self._resolved = 0  # in this step

    def resolve(self, future: asyncio.Future[bool], result: bool) -> None:
        """Give a future its result, now or in one of the next steps. Does nothing to one that is done by then."""
        if self._resolved < self._at_once and not self._waiting:
            self._resolve(future, result)
        else:
            self._waiting.append((future, result))

    def _resolve(self, future: asyncio.Future[bool], result: bool) -> None:
        if not future.done():
            future.set_result(result)
            if not self._resolved:
                future.get_loop().call_soon(self._next_step)
            self._resolved += 1

    def _next_step(self) -> None:
        self._resolved = 0
        while self._waiting and self._resolved < self._at_once:
            self._resolve(*self._waiting.popleft())


class Gate:
    """Like `asyncio.Event`, for any number of waiters: they go on some at a time, and each may leave at once."""

    __slots__ = ("_is_set", "_waiters", "_wakes")

    def __init__(self, wakes: Wakes, *, is_open: bool = True) -> None:
        self._wakes = wakes
        self._is_set = is_open
        self._waiters: dict[asyncio.Future[bool], None] = {}

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Open the gate."""
        self._is_set = True
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            self._wakes.resolve(waiter, True)

    def clear(self) -> None:
        """Close the gate."""
        self._is_set = False

    async def wait(self) -> None:
        """Return at once if the gate is open, otherwise some steps after it was opened."""
        if self._is_set:
            return
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
