"""How many messages a second come in and go out, over the last minute."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from aerobee_broker.counters import BrokerCounters
from aerobee_store.clock import Clock

SAMPLE_SECONDS: Final = 5.0
_SAMPLES_KEPT: Final = 12  # a minute


class _Sample(NamedTuple):
    at: float  # of the monotonic clock
    messages_in: int
    messages_out: int


class Rates:
    """Samples of the counters, taken at an interval."""

    name: Final = "rates"

    def __init__(self, counters: BrokerCounters, clock: Clock) -> None:
        self._counters = counters
        self._clock = clock
        self._samples: deque[_Sample] = deque([self._sample()], maxlen=_SAMPLES_KEPT)

    @property
    def messages_in(self) -> int:
        """Stored for producers since the start."""
        return sum(counters.messages for counters in self._counters.sent.values())

    @property
    def messages_out(self) -> int:
        """Handed to consumers since the start."""
        return sum(counters.messages for counters in self._counters.received.values())

    def per_second(self) -> tuple[float, float]:
        """(in, out) over the last minute, or since the start if that is less."""
        first, now = self._samples[0], self._sample()
        seconds = now.at - first.at
        if seconds <= 0:
            return 0.0, 0.0
        return (now.messages_in - first.messages_in) / seconds, (now.messages_out - first.messages_out) / seconds

    def take(self) -> None:
        """Take a sample now; the oldest of a minute ago goes."""
        self._samples.append(self._sample())

    async def run(self) -> None:
        """Sample, until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.take()

    def _sample(self) -> _Sample:
        return _Sample(self._clock.monotonic(), self.messages_in, self.messages_out)
