"""A limit of items in memory, with a queue of callers that wait for space."""

from __future__ import annotations

import asyncio
from collections import deque


class MemoryLimit:
    """A limit of `size_max` bytes and `count_max` items in memory. Callers are admitted in order of arrival.

    An item above the limit is admitted when it is alone.
    """

    def __init__(self, size_max: int, count_max: int) -> None:
        if size_max < 1 or count_max < 1:
            raise ValueError(f"limits of {size_max} bytes and {count_max} items are too small; use at least 1")
        self._size_max = size_max
        self._count_max = count_max
        self.size = 0
        self.count = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait for space and take it. Cancelling takes none."""
        if not self._line and self._fits(size):
            self._take(size)
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.leave(size)
            else:
                self._admit()
            raise

    def leave(self, size: int) -> None:
        """Return the space that `enter` took."""
        self.size -= size
        self.count -= 1
        self._admit()

    def _fits(self, size: int) -> bool:
        return not self.count or (self.size + size <= self._size_max and self.count < self._count_max)

    def _take(self, size: int) -> None:
        self.size += size
        self.count += 1

    def _admit(self) -> None:
        while self._line and (self._line[0][1].done() or self._fits(self._line[0][0])):
            size, admitted = self._line.popleft()
            if not admitted.done():
                self._take(size)
                admitted.set_result(None)
