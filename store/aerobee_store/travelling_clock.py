"""Hours that pass in a moment, for a broker in the test's own event loop."""

from __future__ import annotations

import asyncio
import time


class TravellingClock:
    """The machine's clock, moved ahead by as much as a test says, together with every timer of the running loop.

    What sleeps or waits in that loop notices: an hour ahead, everything is due that was due within the hour. Deadlines
    of gRPC are not moved; they are kept by threads of its own.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        loop = asyncio.get_running_loop()
        loop_time = loop.time
        loop.time = lambda: loop_time() + self._ahead  # type: ignore[method-assign]  # the one clock of its timers

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round(self._ahead * 1000)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    async def advance(self, seconds: float) -> None:
        """Let this much time pass, and what was due in it happen."""
        self._ahead += seconds
        for _ in range(5):
            await asyncio.sleep(0.01)
