"""Deadlines of calls, in buckets: a timer for each call would cost more than many calls do."""

from __future__ import annotations

import asyncio
import math
from time import monotonic
from typing import Final, Protocol

_STEP_SECONDS: Final = 0.005  # after which other tasks run before further calls end
_BUCKETS_PER_SECOND: Final = 50  # a call ends up to 20 ms after its deadline


class Expiring(Protocol):
    """A call with a deadline."""

    bucket: int

    def expire(self) -> None: ...


class Deadlines:
    """All calls with a deadline. Event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[Expiring]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_bucket = 0

    def add(self, call: Expiring, deadline: float) -> None:
        """Call `expire` at `deadline`, a time of `time.monotonic`, because callers do not know this loop's clock."""
        bucket = math.ceil(deadline * _BUCKETS_PER_SECOND)
        call.bucket = bucket
        calls = self._buckets.get(bucket)
        if calls is not None:
            calls.add(call)
            return
        self._buckets[bucket] = {call}
        if self._timer is None or bucket < self._timer_bucket:
            self._arm(bucket)

    def discard(self, call: Expiring) -> None:
        """The call has ended."""
        calls = self._buckets.get(call.bucket)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._buckets[call.bucket]

    def _arm(self, bucket: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_bucket = bucket
        self._timer = self._loop.call_later(max(0.0, bucket / _BUCKETS_PER_SECOND - monotonic()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = math.floor(monotonic() * _BUCKETS_PER_SECOND)
        ends = monotonic() + _STEP_SECONDS
        for bucket in [bucket for bucket in self._buckets if bucket <= now]:
            calls = self._buckets.get(bucket, set())
            while calls and monotonic() < ends:  # otherwise the next step continues
                call = calls.pop()
                call.bucket = 0  # it is in none any more
                call.expire()
            if not calls:
                self._buckets.pop(bucket, None)
        if self._buckets:
            self._arm(max(min(self._buckets), now + 1))

    def close(self) -> None:
        """Stop watching all calls."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
