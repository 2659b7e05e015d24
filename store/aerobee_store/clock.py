"""Time is passed in, so that tests can move it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the store and the broker take the time from."""

    def now_ms(self) -> int:
        """The wall clock, in Unix milliseconds: what goes into records."""

    def monotonic(self) -> float:
        """Seconds that never go back: what intervals are measured with."""


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
