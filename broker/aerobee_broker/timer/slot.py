"""The slot of the timer that is being read, with its undelivered messages in due order."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from aerobee_store.deferred import deferred

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


class Due(NamedTuple):
    """One unit of the slot that is being read."""

    due_ms: int
    physical_offset: int
    write_time_ms: int
    roll: bool


class LoadedSlot:
    """The remaining units of a slot, in due order."""

    def __init__(self) -> None:
        self._due: npt.NDArray[np.int64] | array[int] = array("q")
        self._offsets: npt.NDArray[np.int64] | array[int] = self._due
        self._write_times: npt.NDArray[np.int64] | array[int] = self._due
        self._rolls: npt.NDArray[np.bool_] | array[int] = array("b")
        self._next = 0
        self._late: list[Due] = []  # a heap: units that were added after the slot was loaded

    def fill(self, due: array[int], offsets: array[int], write_times: array[int], rolls: array[int]) -> None:
        """Take the units of the chain, latest first; a duplicate counts once."""
        columns = [np.frombuffer(column, np.int64)[::-1] for column in (due, offsets, write_times, rolls)]
        unique = np.unique(columns[1], return_index=True)[1]
        unique.sort()
        order = unique[np.argsort(columns[0][unique], kind="stable")]
        self._due, self._offsets, self._write_times = (column[order] for column in columns[:3])
        self._rolls = columns[3][order].astype(np.bool_)
        self._next = 0

    def add(self, entry: Due) -> None:
        heapq.heappush(self._late, entry)

    def __len__(self) -> int:
        return len(self._due) - self._next + len(self._late)

    @property
    def next_due_ms(self) -> int | None:
        due = [int(self._due[self._next])] if self._next < len(self._due) else []
        if self._late:
            due.append(self._late[0].due_ms)
        return min(due, default=None)

    def is_sorted(self) -> bool:
        """Whether the remaining units are in due order."""
        return bool(np.all(np.diff(self._due[self._next :]) >= 0))

    def offsets(self) -> set[int]:
        """The physical offsets of the remaining units."""
        return {*self._offsets[self._next :].tolist(), *(entry.physical_offset for entry in self._late)}

    def take(self, now_ms: int) -> Iterator[Due]:
        """The due units, one by one; each is removed once it was yielded."""
        while True:
            loaded = int(self._due[self._next]) if self._next < len(self._due) else None
            if self._late and (loaded is None or self._late[0].due_ms < loaded):
                if self._late[0].due_ms > now_ms:
                    return
                yield heapq.heappop(self._late)
            else:
                if loaded is None or loaded > now_ms:
                    return
                at = self._next
                self._next += 1
                yield Due(loaded, int(self._offsets[at]), int(self._write_times[at]), bool(self._rolls[at]))
