"""A clock that tests move ahead by hours, for a broker in the test's own event loop."""

from __future__ import annotations

import asyncio
import time


class TravellingClock:
    """The system clock plus an offset that a test sets, together with every timer of the running loop.

    Advancing it by an hour makes every timer of the loop due that would expire within the hour. Deadlines of gRPC do
    not move, because threads of gRPC keep them.
    """

    def __init__(self, ahead_seconds: float = 0.0) -> None:
        self._ahead = ahead_seconds
        loop = asyncio.get_running_loop()
        loop_time = loop.time
        loop.time = lambda: loop_time() + self._ahead  # type: ignore[method-assign]  # the one clock of its timers

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round(self._ahead * 1000)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    async def advance(self, seconds: float) -> None:
        """Advance the clock, and run everything that becomes due."""
        self._ahead += seconds
        for _ in range(5):
            await asyncio.sleep(0.01)
