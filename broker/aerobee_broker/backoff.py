"""Pauses between attempts that fail."""

from __future__ import annotations

import time


class Backoff:
    """The pauses between attempts: each twice as long as the one before, up to a maximum.

    They begin anew after an attempt that was `steady_seconds` long, because it worked for a while.
    """

    __slots__ = ("_began", "_first_seconds", "_next_seconds", "_seconds_max", "_steady_seconds")

    def __init__(self, first_seconds: float, seconds_max: float, *, steady_seconds: float | None = None) -> None:
        """`steady_seconds`: None for `seconds_max`."""
        self._first_seconds = self._next_seconds = first_seconds
        self._seconds_max = seconds_max
        self._steady_seconds = seconds_max if steady_seconds is None else steady_seconds
        self._began = time.monotonic()

    def begin(self) -> None:
        """Call before each attempt."""
        self._began = time.monotonic()

    def failed(self, *, is_hopeless: bool = False) -> float:
        """The pause after the attempt that just failed, in seconds. `is_hopeless`: as long as possible."""
        if time.monotonic() - self._began >= self._steady_seconds:
            self._next_seconds = self._first_seconds
        elif is_hopeless:
            self._next_seconds = self._seconds_max
        seconds = self._next_seconds
        self._next_seconds = min(2 * seconds, self._seconds_max)
        return seconds
