"""A straight line through the latest values of a figure, as Prometheus' `predict_linear` draws it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Final

LONGEST_MS: Final = 6 * 3_600_000
"""The line is drawn through the points of this time at most."""
SHORTEST_MS: Final = 3 * 3_600_000
"""With less, a trend is not known."""


def seconds_until(limit: float, times_ms: Sequence[int], values: Sequence[float]) -> float | None:
    """When the line reaches the limit, from the last point on; None: it never does, or is not known. NaN: no value."""
    points = [
        (at_ms - times_ms[-1], value)
        for at_ms, value in zip(times_ms, values, strict=True)
        if not isnan(value) and at_ms > times_ms[-1] - LONGEST_MS
    ]
    if not points or -points[0][0] < SHORTEST_MS:
        return None
    mean_at = sum(at for at, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    slope = sum((at - mean_at) * (value - mean) for at, value in points) / sum((at - mean_at) ** 2 for at, _ in points)
    if slope <= 0:
        return None
    return max(0.0, (limit - mean) / slope + mean_at) / 1000
