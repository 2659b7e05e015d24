"""Avoids endpoints for a while after slow or failed sends.

RocketMQ's rule ("latency fault tolerance"): the duration of a send determines how long its endpoint is avoided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

# The minimum duration of a send in seconds -> how many seconds its endpoint is avoided. As in RocketMQ 4.
AVOIDANCE: Final = (
    (15.0, 600.0),
    (3.0, 180.0),
    (2.0, 120.0),
    (1.0, 60.0),
    (0.55, 30.0),
    (0.1, 0.0),
    (0.05, 0.0),
)
FAILED_SECONDS: Final = 30.0  # the latency that a failed send counts as


def avoid_seconds(latency_seconds: float) -> float:
    """How long an endpoint is avoided after a send that took `latency_seconds`."""
    return next((avoided for least, avoided in AVOIDANCE if latency_seconds >= least), 0.0)


class LatencyAvoidance:
    """Latencies and failures of endpoints by name. `now` returns seconds that never go back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._avoided_until: dict[str, float] = {}
        self._turn = 0

    def record(self, name: str, latency_seconds: float, *, failed: bool = False) -> None:
        """Record the duration of a send to `name`, or its failure."""
        self._avoided_until[name] = self._now() + avoid_seconds(FAILED_SECONDS if failed else latency_seconds)

    def available(self, name: str) -> bool:
        """Whether `name` is not avoided."""
        return self._now() >= self._avoided_until.get(name, 0.0)

    def choose(self, names: Sequence[str], *, last: str | None = None) -> str:
        """The next available name in turn, different from `last` if possible.

        If all are avoided: the one whose avoidance ends first.
        """
        self._turn += 1
        turned = [names[(self._turn + index) % len(names)] for index in range(len(names))]
        available = [name for name in turned if self.available(name)]
        if not available:
            available = sorted(turned, key=lambda name: self._avoided_until.get(name, 0.0))
        return next((name for name in available if name != last), available[0])
