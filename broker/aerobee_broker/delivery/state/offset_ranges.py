"""A set of queue offsets that are mostly contiguous: the finished offsets beyond the commit offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class OffsetRanges:
    """Disjoint half-open ranges in ascending order, never adjacent.

    Two parallel lists and bisection: a lookup is logarithmic, and an insertion moves memory, which is cheaper than a
    tree in Python at these sizes (ranges, not offsets).
    """

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._begins)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._begins, self._ends, strict=True)

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._begins, offset) - 1
        return index >= 0 and offset < self._ends[index]

    @property
    def first(self) -> tuple[int, int] | None:
        """The lowest range; None if the set is empty."""
        return (self._begins[0], self._ends[0]) if self._begins else None

    def gaps(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of begin <= offset < end that are not in the set, ascending."""
        for index in range(bisect_right(self._ends, begin), len(self._begins)):
            if self._begins[index] >= end:
                break
            if begin < self._begins[index]:
                yield begin, self._begins[index]
            begin = self._ends[index]
        if begin < end:
            yield begin, end

    def add(self, begin: int, end: int) -> None:
        """Add begin <= offset < end; existing offsets stay. An empty range adds nothing."""
        if begin >= end:
            return
        low = bisect_left(self._ends, begin)  # the first range that ends at or after `begin`: it may be joined
        high = bisect_right(self._begins, end)  # after the last range that begins at or before `end`
        if low < high:
            begin = min(begin, self._begins[low])
            end = max(end, self._ends[high - 1])
        self._begins[low:high] = [begin]
        self._ends[low:high] = [end]

    def remove_below(self, offset: int) -> None:
        """Remove every offset lower than `offset`."""
        count = bisect_right(self._ends, offset)
        del self._begins[:count], self._ends[:count]
        if self._begins and self._begins[0] < offset:
            self._begins[0] = offset

    def end_of_range_at(self, offset: int) -> int:
        """The end of the range that contains `offset`; `offset` itself if there is none."""
        index = bisect_right(self._begins, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset
