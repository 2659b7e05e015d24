"""The timer wheel: a ring of slots in one file, one slot for each step of time.

    offset  size  field
         0     8  time        of the slot, in steps of the precision since 1970
         8     8  first       position in the timer log of the slot's first unit
        16     8  last        position of the slot's last unit, from which a chain leads back to the first
        24     4  count       messages in it
        28     4  magic       0

Slot number = time modulo the number of slots. A slot is valid only for the time it contains; other slots are left over
from an earlier round, or were never used.

A slot in use costs 32 bytes of disk, and memory only until the next `write`. The whole file is read only for its
checksum: at a clean stop, and at the start that follows it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import File, FileSystem

if TYPE_CHECKING:
    import numpy as np
else:
    np = deferred("numpy")


SLOT: Final = struct.Struct(">qqqii")
SLOT_SIZE: Final = 32
assert SLOT.size == SLOT_SIZE, "the table above and the struct must agree"
SLOT_DTYPE: Final = [("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("pending", ">i4"), ("magic", ">i4")]

SLOT_COUNT: Final = 604_800 * 2
"""RocketMQ's number of slots: two weeks with steps of a second."""

_BLOCK_SLOTS: Final = 4096
_READ_SIZE: Final = 1 << 20


class Slot(NamedTuple):
    """The messages due in one step of time, which begins at `time_ms`."""

    time_ms: int
    first: int
    last: int
    pending: int
    magic: int = 0


class TimerWheel:
    """The file `timerwheel`, made by the first `put`."""

    def __init__(self, file_system: FileSystem, path: Path, *, slot_count: int, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        self.slot_count = slot_count
        self._file_system = file_system
        self._path = path
        self._file: File | None = None
        self._changed: dict[int, Slot] = {}
        self._unsynced = False

    def load(self) -> bool:
        """Load the file. False if there is none, or one of another size."""
        if not self._file_system.exists(self._path):
            return False
        if self._file_system.size(self._path) != self.slot_count * SLOT_SIZE:
            return False
        self._file = self._file_system.open(self._path)
        return True

    @property
    def used(self) -> bool:
        """Whether any slot was ever used."""
        return self._file is not None or bool(self._changed)

    def floor(self, time_ms: int) -> int:
        """The time of the slot that contains `time_ms`."""
        return time_ms - time_ms % self.precision_ms

    def get(self, time_ms: int) -> Slot | None:
        """The slot of this time, if it is in use."""
        step = time_ms // self.precision_ms
        number = step % self.slot_count
        slot = self._changed.get(number)
        if slot is None:
            if self._file is None:
                return None
            found, first, last, pending, magic = SLOT.unpack(self._file.read(SLOT_SIZE, number * SLOT_SIZE))
            slot = Slot(found * self.precision_ms, first, last, pending, magic)
        return slot if slot.time_ms == step * self.precision_ms else None

    def put(self, slot: Slot) -> None:
        """Set the slot of its time, replacing an older one."""
        self._changed[slot.time_ms // self.precision_ms % self.slot_count] = slot

    def next_used(self, begin_ms: int, end_ms: int) -> int | None:
        """The time of the first slot in use with begin <= time < end, within one round of the wheel from `begin`."""
        if not self.used:
            return None
        if end_ms - begin_ms <= self.precision_ms:
            return begin_ms if begin_ms < end_ms and self.get(begin_ms) is not None else None
        self.write()
        assert self._file is not None
        step, end = begin_ms // self.precision_ms, -(-end_ms // self.precision_ms)
        end = min(end, step + self.slot_count)  # the wheel holds no slot beyond one round
        while step < end:
            number = step % self.slot_count
            count = min(_BLOCK_SLOTS, end - step, self.slot_count - number)
            slots = np.frombuffer(self._file.read(count * SLOT_SIZE, number * SLOT_SIZE), SLOT_DTYPE)
            matching = np.flatnonzero(slots["time"] == np.arange(step, step + count))
            if len(matching):
                return (step + int(matching[0])) * self.precision_ms
            step += count
        return None

    def first_position(self, begin_ms: int) -> int | None:
        """The first position of the timer log in all slots from this time on. Blocking: reads the whole file."""
        found: list[int] = []
        assert self._file is not None, "loaded before"
        for number in range(0, self.slot_count, _BLOCK_SLOTS):
            count = min(_BLOCK_SLOTS, self.slot_count - number)
            slots = np.frombuffer(self._file.read(count * SLOT_SIZE, number * SLOT_SIZE), SLOT_DTYPE)
            used = (slots["time"] * self.precision_ms >= begin_ms) & (slots["first"] >= 0)
            if used.any():
                found.append(int(slots["first"][used].min()))
        return min(found, default=None)

    def pending(self, bounds_ms: Sequence[int]) -> list[int]:
        """The number of messages in slots that begin in each interval between these ascending times."""
        counts = [0] * (len(bounds_ms) - 1)
        if not self.used:
            return counts
        self.write()
        assert self._file is not None
        for index in range(len(counts)):
            step, end = (-(-bound // self.precision_ms) for bound in bounds_ms[index : index + 2])
            end = min(end, step + self.slot_count)
            while step < end:
                number = step % self.slot_count
                count = min(_BLOCK_SLOTS, end - step, self.slot_count - number)
                slots = np.frombuffer(self._file.read(count * SLOT_SIZE, number * SLOT_SIZE), SLOT_DTYPE)
                matching = slots["time"] == np.arange(step, step + count)
                counts[index] += int(slots["pending"][matching].sum())
                step += count
        return counts

    def write(self) -> None:
        """Move changed slots to the page cache."""
        if not self._changed:
            return
        if self._file is None:
            self._file = self._file_system.create(self._path, self.slot_count * SLOT_SIZE)
            self._file_system.sync_directory(self._path.parent)
        for number, (time_ms, first, last, pending, magic) in self._changed.items():
            step = time_ms // self.precision_ms
            self._file.write([SLOT.pack(step, first, last, pending, magic)], number * SLOT_SIZE)
        self._changed.clear()
        self._unsynced = True

    def checksum(self) -> int:
        """CRC-32 of the whole file, 0 if there is none. Blocking: the file has 39 MB at RocketMQ's size."""
        value = 0
        if self._file is not None:
            for position in range(0, self._file.size, _READ_SIZE):
                value = crc32(self._file.read(_READ_SIZE, position), value)
        return value

    def take_dirty(self) -> list[File]:
        """The file, if it was written since the last call, to be synced in a disk thread."""
        if not self._unsynced or self._file is None:
            return []
        self._unsynced = False
        return [self._file]

    def clear(self) -> None:
        """Remove everything, to start again."""
        self._changed.clear()
        self.close()
        if self._file_system.exists(self._path):
            self._file_system.unlink(self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
