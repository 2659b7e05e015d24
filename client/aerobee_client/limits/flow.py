"""Flow control of a consumer: how many unfinished messages it holds, and when it may fetch more."""

from __future__ import annotations

import asyncio
import heapq


class FlowControl:
    """Limits unfinished messages: their count, their bytes, and the span of their queue offsets.

    The span limits how many messages a crash delivers again if progress is one offset per queue, and how far a consumer
    runs ahead of a message that it cannot finish.
    """

    def __init__(self, count_max: int, size_max: int, span_max: int) -> None:
        if min(count_max, size_max, span_max) < 1:
            raise ValueError("a consumer's buffer limits must be at least 1")
        self._count_max = count_max
        self._size_max = size_max
        self._span_max = span_max
        self.count = 0
        self.size = 0
        self._open: dict[object, dict[int, int]] = {}  # unfinished offsets, and how often each was added
        self._lowest: dict[object, list[int]] = {}  # the same offsets as heaps, which may also contain finished ones
        self._highest: dict[object, int] = {}
        self._changed = asyncio.Event()

    def add(self, queue: object, offset: int, size: int) -> None:
        """A message was fetched."""
        self.count += 1
        self.size += size
        counts = self._open.setdefault(queue, {})
        counts[offset] = counts.get(offset, 0) + 1
        heapq.heappush(self._lowest.setdefault(queue, []), offset)
        self._highest[queue] = max(offset, self._highest.get(queue, offset))

    def remove(self, queue: object, offset: int, size: int) -> None:
        """A message is finished."""
        self.count -= 1
        self.size -= size
        counts = self._open[queue]
        counts[offset] -= 1
        if not counts[offset]:
            del counts[offset]
        if not counts:
            del self._open[queue], self._lowest[queue], self._highest[queue]
        self._changed.set()

    def free_count(self, queue: object = None) -> int:
        """How many messages may be fetched now; 0 at a limit. The span checked is that of `queue`, or of any queue."""
        if self.size >= self._size_max:
            return 0
        for each in list(self._open) if queue is None else [queue]:
            if self.span(each) >= self._span_max:
                return 0
        return max(0, self._count_max - self.count)

    def span(self, queue: object) -> int:
        """From the lowest unfinished offset to the highest fetched since; 0 if all are finished."""
        counts = self._open.get(queue)
        if not counts:
            return 0
        heap = self._lowest[queue]
        while heap[0] not in counts:
            heapq.heappop(heap)
        return self._highest[queue] - heap[0] + 1

    async def wait_free(self, queue: object = None) -> int:
        """Wait until messages may be fetched, and return how many."""
        while not (count := self.free_count(queue)):
            self._changed.clear()
            await self._changed.wait()
        return count
