"""Garbage collection in short steps of the event loop.

Python counts references, so what nobody uses is freed at once; only cycles wait for a collection. A collection is one
step of the loop, some 0.5 us for each object that it examines. Python begins one when so many objects more were made
than freed. While others are freed, a peer may make as many as it likes, and the next collection examines them all. So
the young objects themselves are counted as well, often while their number changes, and collected when there are too
many.

Young objects are examined twice, some ten thousand at a time. Those that survive are old. They are examined once a
minute, all in one step, but only while they are so few that it is short: calls that wait make them many, and cycles
among old objects then stay until the calls have ended, or for an hour.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

_YOUNG_COUNT: Final = 10_000  # objects that are examined in a step of 5 ms; in one look's time a few times as many come
_NEVER: Final = (1 << 31) - 1
_LOOK_SECONDS: Final = 0.05
_LOOK_SECONDS_MAX: Final = 0.8  # between two counts that agree: to count ten thousand takes up to a millisecond
_SAME_COUNT: Final = 2_000  # counts that differ by less agree
_OLD_LOOK_SECONDS: Final = 60.0
_OLD_COUNT_MAX: Final = 100_000  # old objects that may be examined in one step: 50 ms
_OLD_SECONDS_MAX: Final = 3600.0  # then they are examined, however many they are


def leave_collections_to_the_loop() -> None:
    """Set up this process, once it serves: Python examines only young objects by itself, `GarbageCollection` all; and
    neither examines what exists now, because modules, tables and queues live as long as the process.

    Calls leave almost no reference cycles. Python's default, a search through the young objects after every 700
    allocations, took 3 % of the processor time of sends. No collection runs first: a start leaves no cycles worth it (0
    objects measured), and a collection blocks the event loop for 25 ms, on a busy machine for more than 100 ms.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_COUNT, 0, _NEVER)


class GarbageCollection:
    """Collects in short steps. On the event loop."""

    name: Final = "garbage-collection"

    def __init__(self) -> None:
        self._old_looked_at = self._old_collected_at = time.monotonic()
        self._young_count = 0

    async def run(self) -> None:
        """Collect when it is time to, until cancelled."""
        seconds = _LOOK_SECONDS
        while True:
            await asyncio.sleep(seconds)
            seconds = _LOOK_SECONDS if self.collect_young() else min(2 * seconds, _LOOK_SECONDS_MAX)
            if time.monotonic() - self._old_looked_at > _OLD_LOOK_SECONDS:
                self.collect_old()

    def collect_young(self) -> bool:
        """Count the young objects, and examine them if they are too many. Returns whether their number has changed."""
        count = len(gc.get_objects(0))
        has_changed = abs(count - self._young_count) > _SAME_COUNT
        if count > _YOUNG_COUNT:
            gc.collect(1)
            count = 0
        self._young_count = count
        return has_changed

    def collect_old(self) -> bool:
        """Examine all objects, if the step is short, or was put off for an hour. Returns whether it did."""
        self._old_looked_at = now = time.monotonic()
        # To list a million takes 20 ms.
        if len(gc.get_objects(2)) > _OLD_COUNT_MAX and now - self._old_collected_at < _OLD_SECONDS_MAX:
            return False
        gc.collect()
        self._old_collected_at = now
        return True
