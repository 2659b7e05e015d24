"""Garbage collection in short steps of the event loop.

Python counts references, so what nobody uses is freed at once; only cycles wait for a collection. A collection is one
step of the loop, some 0.5 us for each object that it examines. Python begins one when so many objects more were made
than freed. While others are freed, a peer may make as many as it likes, and the next collection examines them all. So
the young objects are collected fifty times a second as well: what comes into being within one look's time is soon
examined.

Young objects are examined once, and those that survive are old. They are examined once a minute, all in one step, but
only while they are so few that it is short: calls that wait make them many, and cycles among old objects then stay
until the calls have ended, or for an hour.

Objects are never listed (`gc.get_objects`) to count them: the list refers to a tuple that another thread is just
building, and Python then fails to let the tuple grow.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Final

_YOUNG_COUNT: Final = 10_000  # objects, of which half are examined in 2.5 ms, after which Python begins by itself
_NEVER: Final = (1 << 31) - 1
_LOOK_SECONDS: Final = 0.02
_OLD_LOOK_SECONDS: Final = 60.0
_OLD_BLOCKS_MAX: Final = 150_000  # of memory, more than at the start; no fewer than objects, so at most 75 ms
_OLD_SECONDS_MAX: Final = 3600.0  # then old objects are examined, however many they are


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
        self._blocks_at_start = sys.getallocatedblocks()
        self._old_looked_at = self._old_collected_at = time.monotonic()

    async def run(self) -> None:
        """Collect when it is time to, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.collect_young()
            if time.monotonic() - self._old_looked_at > _OLD_LOOK_SECONDS:
                self.collect_old()

    @staticmethod
    def collect_young() -> None:
        """Examine the objects that came into being since the last time."""
        gc.collect(1)

    def collect_old(self) -> bool:
        """Examine all objects, if the step is short, or was put off for an hour. Returns whether it did."""
        self._old_looked_at = now = time.monotonic()
        blocks = sys.getallocatedblocks() - self._blocks_at_start
        if blocks > _OLD_BLOCKS_MAX and now - self._old_collected_at < _OLD_SECONDS_MAX:
            return False
        gc.collect()
        self._old_collected_at = now
        return True
