"""The messages of one (topic, queue id) stored as inner batches, as units of 46 bytes: one per record.

    offset  size  field
         0     8  physical_offset   of the record in the log
         8     4  size              of the record, above 0
        12     8  tags_code         Java hash of the record's own tag, 0 without one
        20     8  store_timestamp   of the record, ms
        28     8  base_offset       queue offset of its first message
        36     2  count             messages in it, above 0
        38     4  compacted_offset  -1
        42     4  reserved          0

The number of a unit is therefore not a queue offset. Bisection finds the unit of a queue offset: the one with
base_offset <= queue offset < base_offset + count. Both rise from unit to unit. Offsets between two units may be missing
if their records are damaged. There are no filler units.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import File, FileSystem
from aerobee_store.queues.consume_queue import ChangedQueues, ConsumeQueue, QueueMisalignedError, UnitFields

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
BATCH_UNIT_SIZE: Final = 46
BATCH_UNIT_DTYPE: Final[UnitFields] = [
    ("physical_offset", ">i8"),
    ("size", ">i4"),
    ("tags_code", ">i8"),
    ("store_timestamp", ">i8"),
    ("base_offset", ">i8"),
    ("count", ">i2"),
    ("compacted_offset", ">i4"),
    ("reserved", ">i4"),
]
"""A unit of a batch consume queue: one record that holds `count` messages."""
assert BATCH_UNIT.size == BATCH_UNIT_SIZE, "the table above and the structs must agree"

NOT_COMPACTED: Final = -1

BatchUnits: TypeAlias = "npt.NDArray[np.void]"
"""Units as a structured array of BATCH_UNIT_DTYPE."""

_CHUNK: Final = 4096


class BatchConsumeQueue:
    """One queue of inner batches. Messages `min_offset <= n < max_offset` can be served, except in gaps."""

    __slots__ = ("_units", "max_offset", "min_offset", "next_offset")

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        *,
        changed: ChangedQueues | None = None,
    ) -> None:
        # Its "queue offsets" are numbers of units.
        self._units = ConsumeQueue(
            file_system, directory, topic, queue_id, file_size, changed=changed, dtype=BATCH_UNIT_DTYPE
        )
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0

    @property
    def topic(self) -> str:
        return self._units.topic

    @property
    def extends(self) -> bool:
        """See ConsumeQueue; its units never need an extended unit."""
        return False

    def extended(self, units: bytes, store_timestamps: Sequence[int], bitmaps: Sequence[bytes] = ()) -> bytes:
        """See ConsumeQueue."""
        raise AssertionError("a batch consume queue has no extended units")

    @property
    def queue_id(self) -> int:
        return self._units.queue_id

    @property
    def directory(self) -> Path:
        return self._units.directory

    @property
    def torn(self) -> bool:
        """Whether units are known to be missing at the end; only the log can restore them."""
        return self._units.torn

    @property
    def files(self) -> list[int]:
        """The number of the first unit of each file."""
        return self._units.files

    @property
    def has_files(self) -> bool:
        """See ConsumeQueue."""
        return self._units.has_files

    @property
    def lacks_files(self) -> bool:
        """See ConsumeQueue."""
        return self._units.lacks_files

    @property
    def unit_numbers(self) -> tuple[int, int]:
        """The number of the first unit whose record the log has, and the number after the last."""
        return self._units.min_offset, self._units.max_offset

    def load(self, *, after_crash: bool) -> None:
        """Find the beginning and the end of the queue.

        The end is before the first invalid unit of the last file. `after_crash`: the process died.
        """
        units = self._units
        units.load(after_crash=after_crash)
        first = max(units.min_offset, units.max_offset - _CHUNK)
        found = units.units(first, units.max_offset - first)
        if len(found) and (wrong := _first_wrong(found)) < len(found):
            units.torn = True
            units.truncate(first + wrong)
        self._moved()
        self.next_offset = self.max_offset

    def units(self, first: int, count: int) -> BatchUnits:
        """At most `count` units from number `first` on, up to the end of the queue."""
        return self._units.units(first, count)

    def overwrite(self, number: int, units: bytes) -> None:
        """Replace wrong units by right ones that hold the same messages."""
        self._units.overwrite(number, units)

    def number_at(self, queue_offset: int) -> int:
        """The number of the unit that holds this message; in a gap, that of the next unit; at the end, the end's."""
        number = bisect_right(self._numbers, queue_offset, key=self._base_offset) + self._units.min_offset
        if number > self._units.min_offset and queue_offset < self._end_offset(number - 1):
            number -= 1
        return number

    def physical_offset_at(self, queue_offset: int) -> int | None:
        """The start of the record that holds this message, or None if no unit names one."""
        unit = self._units.units(self.number_at(queue_offset), 1)
        return int(unit[0]["physical_offset"]) if len(unit) and int(unit[0]["base_offset"]) <= queue_offset else None

    def number_behind(self, end: int) -> int:
        """The number of the first unit whose record ends after physical offset `end`; the end's without one."""
        return self._units.offset_behind(end)

    def put(self, queue_offset: int, units: bytes) -> None:
        """Append units; the first begins at `queue_offset`. QueueMisalignedError if the queue is already beyond it."""
        if queue_offset < self.max_offset and self._has_units:
            raise QueueMisalignedError(
                f"{self.directory}: offset {queue_offset} exists already; the queue ends at {self.max_offset}"
            )
        self._units.put(self._units.max_offset, units)
        self._moved()
        self.next_offset = max(self.next_offset, self.max_offset)

    def complete(self, units: BatchUnits, *, unsynced: bool) -> tuple[int, int]:
        """Make the queue contain these units of the log's records, which are in log order and followed by all later
        ones.

        Other units in their place, and all later ones, are dropped: they are added again with the records that follow.
        `unsynced`: right units may not be synced. Returns the number of added units and of dropped wrong ones.
        """
        added = dropped = 0
        base, count = units["base_offset"].astype(np.int64), units["count"].astype(np.int64)
        # Decreasing offsets belong to a topic that was deleted and created again.
        for run in np.split(units, np.flatnonzero(base[1:] < base[:-1] + count[:-1]) + 1):
            number = self.number_at(int(run[0]["base_offset"]))
            there = self._units.units(number, len(run))
            same = there == run[: len(there)]
            right = len(there) if same.all() else int(same.argmin())
            if unsynced and right:
                self._units.mark_unsynced(number, right)
            if right < len(there):
                dropped += self._units.max_offset - (number + right)
                self._truncate(number + right)
            if right < len(run):
                self.put(int(run[right]["base_offset"]), run[right:].tobytes())
                added += len(run) - right
        return added, dropped

    def cut(self, number: int) -> None:
        """Drop the units from this number on; they are derived again from the log, which has other records in their
        places."""
        self._units.torn = True
        self._truncate(number)

    def drop_behind(self, end: int) -> int:
        """Drop the units of records that end after physical offset `end`; return their number."""
        units = self._units
        stop = units.max_offset
        while stop > units.min_offset:
            begin = max(units.min_offset, stop - _CHUNK)
            found = units.units(begin, stop - begin)
            beyond = found["physical_offset"] + found["size"] > end
            if not beyond.any():
                break
            stop = begin + int(beyond.argmax())
            if stop > begin:
                break
        dropped = units.max_offset - stop
        if dropped:
            self._truncate(stop)
        return dropped

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the minimum to the first message whose record the log still has; a queue without one keeps its end."""
        self._units.correct_min_offset(min_physical_offset)
        self._moved()

    def last_unit(self) -> tuple[int, int]:
        """(physical offset, size) of the last unit's record; (0, 0) if there is none."""
        if not self._numbers:
            return 0, 0
        unit = self._unit(self._units.max_offset - 1)
        return int(unit["physical_offset"]), int(unit["size"])

    def last_record_end(self) -> int:
        """The physical offset after the record of the last unit; 0 if there is none."""
        return sum(self.last_unit())

    def offset_by_time(self, timestamp: int, boundary: Literal["lower", "upper"]) -> int:
        """See ConsumeQueue; all messages of a record have its time."""
        units = self._units
        if self.min_offset >= self.max_offset:
            return self.max_offset
        if boundary == "lower":
            number = units.min_offset + bisect_left(self._numbers, timestamp, key=self._store_timestamp)
            return self._base_offset(number) if number < units.max_offset else self.max_offset
        number = units.min_offset + bisect_right(self._numbers, timestamp, key=self._store_timestamp) - 1
        return self._end_offset(number) - 1 if number >= units.min_offset else self.min_offset

    def expired_files(self, min_physical_offset: int) -> list[int]:
        """The first units of the leading files whose records are all gone from the log; never the last file."""
        return self._units.expired_files(min_physical_offset)

    def release_files(self, first_units: list[int]) -> list[Path]:
        """Close the leading files; return their paths, oldest first, for the caller to remove."""
        released = self._units.release_files(first_units)
        self._moved()
        return released

    def take_dirty(self) -> list[File]:
        """See ConsumeQueue."""
        return self._units.take_dirty()

    def end_messages(self) -> None:
        """See ConsumeQueue; but messages that are not dispatched yet are served until their files are removed."""
        self._units.min_offset = self._units.max_offset
        self._moved()

    def ends_before(self, physical_offset: int) -> bool:
        """See ConsumeQueue."""
        return self._units.ends_before(physical_offset)

    def give_up_files(self) -> list[Path]:
        """See ConsumeQueue."""
        paths = self._units.give_up_files()
        self.begin_at(self.next_offset)
        return paths

    def destroy(self) -> None:
        """Remove all files and the directory."""
        self._units.destroy()
        self.begin_at(0)

    def begin_at(self, queue_offset: int) -> None:
        """Set where a queue without files continues."""
        self._units.begin_at(0)
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    def close(self) -> None:
        self._units.close()

    @property
    def _numbers(self) -> range:
        return range(self._units.min_offset, self._units.max_offset)

    @property
    def _has_units(self) -> bool:
        """Includes units of records that are gone from the log."""
        files = self._units.files
        return bool(files) and self._units.max_offset > files[0]

    def _truncate(self, number: int) -> None:
        self.max_offset = self._base_offset(number)
        self._units.truncate(number)
        self._moved()
        self.next_offset = self.max_offset

    def _moved(self) -> None:
        """Update the offsets after a change of the first or last unit."""
        if self._has_units:
            self.max_offset = self._end_offset(self._units.max_offset - 1)
        self.min_offset = self._base_offset(self._units.min_offset) if self._numbers else self.max_offset

    def _unit(self, number: int) -> Any:
        return self._units.units(number, 1)[0]

    def _base_offset(self, number: int) -> int:
        return int(self._unit(number)["base_offset"])

    def _end_offset(self, number: int) -> int:
        unit = self._unit(number)
        return int(unit["base_offset"]) + int(unit["count"])

    def _store_timestamp(self, number: int) -> int:
        return int(self._unit(number)["store_timestamp"])


AnyQueue = ConsumeQueue | BatchConsumeQueue


def _first_wrong(units: BatchUnits) -> int:
    """The first of these units that is invalid or does not follow the one before it; their number if all are right."""
    base, count = units["base_offset"].astype(np.int64), units["count"].astype(np.int64)
    places = units["physical_offset"].astype(np.int64)
    right = (base >= 0) & (count > 0) & (units["size"] > 0) & (places >= 0)
    right[1:] &= (base[1:] >= base[:-1] + count[:-1]) & (places[1:] > places[:-1])
    return int(right.argmin()) if not right.all() else len(units)
