"""Index files opened read-only, and the detection of their numbers of slots and entries.

The file size, 40 + 4 * slots + 20 * entries, does not determine them, and nothing in the file records them. So
candidates are compared with the content: RocketMQ's default ratio of one slot to four entries, given counts, and counts
that follow from the position of the header's last physical offset in the file. The right counts are those under which
the chains of the first entries are consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aerobee_store.disk.file_system import File, find_bytes
from aerobee_store.queues.index_file import ENTRY_DTYPE, ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT_SIZE

_SAMPLE: Final = 4096  # entries whose chains are checked
_TRIED_MAX: Final = 1 << 16  # candidates of a small or nearly empty file, tried one by one


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header as stored. Times in Unix ms, offsets are physical ones."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_entry: int


@dataclass(frozen=True, slots=True)
class IndexCounts:
    """The layout of an index file."""

    slots: int
    entries: int

    @property
    def entries_position(self) -> int:
        return HEADER_SIZE + SLOT_SIZE * self.slots

    @property
    def file_size(self) -> int:
        return self.entries_position + ENTRY_SIZE * self.entries


DEFAULT_COUNTS: Final = IndexCounts(5_000_000, 20_000_000)
"""The default of RocketMQ and of Aerobee."""


class IndexFileReader:
    """One index file as it was when it was opened. `counts` is None if they are unknown."""

    def __init__(self, file: File) -> None:
        self.path: Path = file.path
        self.size = file.size
        self._file = file
        self._view = file.map()
        self.header = IndexHeader(*HEADER.unpack_from(self._view))
        self.counts: IndexCounts | None = None

    @property
    def entry_count(self) -> int:
        """Entries in use."""
        used = max(self.header.next_entry - 1, 0)
        return used if self.counts is None else min(used, self.counts.entries - 1)

    def entries(self, first: int, last: int) -> npt.NDArray[np.void]:
        """Entries [first, last), numbered from 1."""
        assert self.counts is not None
        return self._entries_at(self.counts, first, last)

    def slots(self) -> npt.NDArray[np.int32]:
        """The slot table, not copied."""
        assert self.counts is not None
        return np.frombuffer(self._view, ">i4", self.counts.slots, HEADER_SIZE)

    def solve(self, likely: list[IndexCounts]) -> None:
        """Detect the counts, trying `likely` ones first. For an empty file only its size is known."""
        fitting = [counts for counts in likely if counts.file_size == self.size]
        slots, rest = divmod(self.size - HEADER_SIZE, SLOT_SIZE + 4 * ENTRY_SIZE)
        if rest == 0 and slots > 0:
            fitting.append(IndexCounts(slots, 4 * slots))
        if self.header.next_entry <= 1:
            self.counts = fitting[0] if fitting else None
            return
        for counts in fitting:
            if self._fits(counts):
                self.counts = counts
                return
        found = {counts for counts in self._candidates() if self._fits(counts)}
        if len(found) == 1:
            self.counts = found.pop()

    def close(self) -> None:
        del self._view
        self._file.close()

    def _entries_at(self, counts: IndexCounts, first: int, last: int) -> npt.NDArray[np.void]:
        position = counts.entries_position + ENTRY_SIZE * first
        return np.frombuffer(self._view, ENTRY_DTYPE, max(last - first, 0), position)

    def _fits(self, counts: IndexCounts) -> bool:
        """Whether most of the first entries name the entry before them in their slot."""
        if counts.slots < 1 or not 2 <= self.header.next_entry <= counts.entries:
            return False
        entries = self._entries_at(counts, 1, min(self.header.next_entry, 1 + _SAMPLE))
        hashes = entries["key_hash"].astype(np.int64)
        if (hashes == 0).sum() > 1 + len(hashes) // 2:
            return False
        slots = np.abs(hashes) % counts.slots
        chained = chain(slots, 1, np.zeros(counts.slots, np.int32))
        right = (chained.previous == entries["previous"]) & (hashes >= 0)
        if 2 * np.count_nonzero(right) <= len(right):
            return False
        # With few entries, numbers may agree by chance; the slot table must lead to each of them too.
        heads = np.frombuffer(self._view, ">i4", counts.slots, HEADER_SIZE)[slots]
        numbers = np.arange(1, 1 + len(entries))
        return 2 * int(np.count_nonzero(heads >= numbers)) > len(numbers)

    def _candidates(self) -> Iterator[IndexCounts]:
        """Layouts under which the last entry has the last physical offset of the header."""
        words = (self.size - HEADER_SIZE) // SLOT_SIZE
        if (self.size - HEADER_SIZE) % SLOT_SIZE:
            return
        used = self.header.next_entry - 1
        if self.header.end_offset <= 0 or words // 5 <= _TRIED_MAX:
            for entries in range(max(2, self.header.next_entry), min(words // 5, _TRIED_MAX) + 1):
                if words - 5 * entries > 0:
                    yield IndexCounts(words - 5 * entries, entries)
            return
        wanted = self.header.end_offset.to_bytes(8, "big")
        position = find_bytes(self._view, wanted, HEADER_SIZE, self.size)
        while position >= 0:
            # The physical offset is at byte 4 of the last entry; entry 0, unused, is `used` entries before it.
            entries_position = position - 4 - ENTRY_SIZE * used
            slots, rest = divmod(entries_position - HEADER_SIZE, SLOT_SIZE)
            entries, uneven = divmod(self.size - entries_position, ENTRY_SIZE)
            if slots > 0 and not rest and not uneven:
                yield IndexCounts(slots, entries)
            position = find_bytes(self._view, wanted, position + 1, self.size)


@dataclass(frozen=True, slots=True)
class Chained:
    """The expected `previous` of a run of entries."""

    previous: npt.NDArray[np.int64]
    new_slots: int
    """Slots that had no entry before."""


def chain(slots: npt.NDArray[np.int64], first_number: int, heads: npt.NDArray[Any]) -> Chained:
    """Chain entries numbered from `first_number` on by their slots; updates `heads`, the newest entry of each slot."""
    numbers = np.arange(first_number, first_number + len(slots))
    order = np.argsort(slots, kind="stable")
    in_order, ordered = slots[order], numbers[order]
    begins = np.diff(in_order, prepend=-1) != 0
    previous = np.empty(len(slots), np.int64)
    previous[order] = np.where(begins, heads[in_order], np.concatenate(([0], ordered[:-1])))
    new_slots = int(np.count_nonzero(heads[in_order[begins]] == 0))
    ends = np.append(begins[1:], True)
    heads[in_order[ends]] = ordered[ends]
    return Chained(previous, new_slots)


def open_index(
    paths: list[Path], open_file: Callable[[Path], File], given: IndexCounts | None
) -> list[IndexFileReader | Path]:
    """Each index file with its counts, as far as known; and the paths of files too small for one."""
    readers: list[IndexFileReader | Path] = []
    likely = [] if given is None else [given]
    for path in paths:
        try:
            file = open_file(path)
        except FileNotFoundError:
            continue  # removed by retention since the listing
        if file.size < HEADER_SIZE + SLOT_SIZE + ENTRY_SIZE:
            file.close()
            readers.append(path)
            continue
        reader = IndexFileReader(file)
        readers.append(reader)
        if given is not None and given.file_size == reader.size:
            reader.counts = given
        else:
            reader.solve(likely)
        if reader.counts is not None and reader.header.next_entry > 1 and reader.counts not in likely:
            likely.insert(0, reader.counts)
    # All files of a store have equal counts: other files tell those of an empty or damaged one.
    by_size = {counts.file_size: counts for counts in (DEFAULT_COUNTS, *reversed(likely))}
    for reader_or_path in readers:
        if isinstance(reader_or_path, IndexFileReader) and reader_or_path.counts is None:
            reader_or_path.counts = by_size.get(reader_or_path.size)
    return readers
