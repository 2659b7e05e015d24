"""Deadlines of many calls at the same moment end in several steps of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aerobee_broker.front.deadlines import Deadlines


class _Call:
    def __init__(self, ended: Callable[[], None]) -> None:
        self.bucket = 0
        self._ended = ended

    def expire(self) -> None:
        self._ended()


async def test_deadlines_of_one_moment_do_not_make_one_step() -> None:
    """A call takes a tenth of a millisecond to end, and there may be thousands; other tasks run in between."""
    deadlines = Deadlines(asyncio.get_running_loop())
    ended = 0

    def end() -> None:
        nonlocal ended
        ended += 1
        time.sleep(0.001)

    at = time.monotonic() + 0.02
    for _ in range(100):
        deadlines.add(_Call(end), at)
    seen = set()
    async with asyncio.timeout(60):
        while ended < 100:
            seen.add(ended)
            await asyncio.sleep(0)
    deadlines.close()
    assert len(seen) > 5
