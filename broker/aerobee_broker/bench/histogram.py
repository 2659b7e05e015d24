"""Latencies in buckets of equal ratio: bounded memory, and percentiles accurate to 5 %."""

from __future__ import annotations

import math
from typing import Final

_RATIO: Final = 1.05
_SMALLEST_SECONDS: Final = 1e-6
_BUCKETS: Final = 400  # up to some 300 seconds


class Histogram:
    """Counts of durations in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.largest = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        bucket = int(math.log(max(seconds, _SMALLEST_SECONDS) / _SMALLEST_SECONDS, _RATIO))
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self.count += 1
        self.largest = max(self.largest, seconds)

    def percentile(self, share: float) -> float:
        """The duration, in seconds, that a `share` (0 to 1) of all durations does not exceed; 0 without durations."""
        left = math.ceil(self.count * share)
        for bucket, count in enumerate(self._counts):
            left -= count
            if left <= 0:
                return min(_SMALLEST_SECONDS * _RATIO ** (bucket + 1), self.largest)
        return self.largest

    def bars(self, rows: int = 12) -> list[tuple[float, int]]:
        """A limited number of upper bounds in seconds, in equal ratio, each with the count of durations below it and
        above the previous one."""
        filled = [bucket for bucket, count in enumerate(self._counts) if count]
        if not filled:
            return []
        first, last = filled[0], filled[-1]
        width = max(1, math.ceil((last - first + 1) / rows))
        return [
            (_SMALLEST_SECONDS * _RATIO ** (start + width), sum(self._counts[start : start + width]))
            for start in range(first, last + 1, width)
        ]
