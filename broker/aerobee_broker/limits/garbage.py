"""Garbage collection in short steps of the event loop.

Python counts references, so what nobody uses is freed at once; only cycles wait for a collection. A collection is one
step of the loop, some 0.5 us for each object that it examines. Python begins one when so many objects more were made
than freed: a peer that makes as many objects as others free makes the next collection as long as it likes. So here the
collections begin by the number of objects that they would examine, looked at twenty times a second.

Young objects are examined once, some ten thousand at a time. Those that survive are old. They are examined once a
minute, all in one step, but only while they are so few that it is short: calls that wait make them many, and cycles
among old objects then stay until the calls have ended, or for an hour.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

_LOOK_SECONDS: Final = 0.05
_YOUNG_COUNT: Final = 10_000  # objects that are examined in a step of 5 ms; in one look's time a few times as many come
_OLD_LOOK_SECONDS: Final = 60.0
_OLD_COUNT_MAX: Final = 100_000  # old objects that may be examined in one step: 50 ms
_OLD_SECONDS_MAX: Final = 3600.0  # then they are examined, however many they are


def leave_collections_to_the_loop() -> None:
    """Set up this process, once it serves: Python begins no collections by itself, `GarbageCollection` does; and they
    never examine what exists now, because modules, tables and queues live as long as the process.

    Calls leave almost no reference cycles. Python's default, a search through the young objects after every 700
    allocations, took 3 % of the processor time of sends. No collection runs first: a start leaves no cycles worth it (0
    objects measured), and a collection blocks the event loop for 25 ms, on a busy machine for more than 100 ms.
    """
    gc.freeze()
    gc.disable()


class GarbageCollection:
    """Collects in short steps. On the event loop."""

    name: Final = "garbage-collection"

    def __init__(self) -> None:
        self._old_looked_at = self._old_collected_at = time.monotonic()

    async def run(self) -> None:
        """Collect when it is time to, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.collect_young()
            if time.monotonic() - self._old_looked_at > _OLD_LOOK_SECONDS:
                self.collect_old()

    def collect_young(self) -> None:
        """Examine the objects that are new since the last time, if they are enough."""
        if len(gc.get_objects(0)) > _YOUNG_COUNT:  # to list so many takes 0.1 ms
            gc.collect(1)

    def collect_old(self) -> bool:
        """Examine all objects, if the step is short, or was put off for an hour. Returns whether it did."""
        self._old_looked_at = now = time.monotonic()
        # To list a million takes 20 ms.
        if len(gc.get_objects(2)) > _OLD_COUNT_MAX and now - self._old_collected_at < _OLD_SECONDS_MAX:
            return False
        gc.collect()
        self._old_collected_at = now
        return True
