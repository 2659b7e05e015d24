"""Counters of the timer, as plain numbers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from aerobee_store.stats import Histogram

DELAY_SECONDS_BOUNDS: Final = (60.0, 600.0, 3600.0, 43_200.0, 86_400.0, 259_200.0)  # RocketMQ's buckets


class TimerStats(Struct):
    """Since the start, except `pending`. By topic (stored name)."""

    pending: dict[str, int] = field(default_factory=dict)
    enqueued: dict[str, int] = field(default_factory=dict)
    dequeued: dict[str, int] = field(default_factory=dict)
    delay_seconds: dict[str, Histogram] = field(default_factory=dict)  # requested
    recalled: int = 0
    rolled: int = 0
    lost: int = 0  # lost from the log, or invalid
    lateness_seconds: Histogram = field(
        default_factory=lambda: Histogram((0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 10.0, 60.0))
    )

    def delays_of(self, topic: str) -> Histogram:
        """The delays of the messages that were sent to a topic."""
        histogram = self.delay_seconds.get(topic)
        if histogram is None:
            histogram = self.delay_seconds[topic] = Histogram(DELAY_SECONDS_BOUNDS)
        return histogram


def increment(counts: dict[str, int], topic: str, number: int = 1) -> None:
    """Increment one of the counts by topic."""
    counts[topic] = counts.get(topic, 0) + number
