"""The timer log: one unit of 52 bytes for each message of the timer topic, in its order.

    offset  size  field
         0     4  size             52
         4     8  previous         position of the unit before this one in the same slot of the wheel, or -1
        12     4  magic            DEFAULT, combined with ROLL and DELETE by bitwise OR
        16     8  write_time       when the unit was written, in Unix ms, rounded down to the wheel's precision
        24     4  delay            ms from write_time to the time of the slot, signed
        28     8  physical_offset  of the message in the commit log
        36     4  message_size     of its record
        40     4  topic_hash       Java hash of the message's destination topic
        44     8  reserved         CHECKED | CRC-32 of the 44 bytes before; RocketMQ writes 0 and never reads it

A unit is written only if 16 bytes remain free after it; a blank fills the rest of a file:

         0     4  size             bytes left in the file
         4     8  zeros
        12     4  magic            BLANK_MAGIC

RocketMQ's delays are whole multiples of the precision. Aerobee may add the rest up to the delivery time, less one
millisecond. Every reader then selects the same slot, and Aerobee knows when in its slot the message is due.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from zlib import crc32

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import File, FileSystem
from aerobee_store.errors import StoreDirectoryError, TimerLogDamagedError
from aerobee_store.log.mapped_file import FileRun

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_SIZE: Final = 52
assert UNIT.size == UNIT_SIZE, "the table above and the struct must agree"
UNIT_DTYPE: Final = [
    ("size", ">i4"),
    ("previous", ">i8"),
    ("magic", ">i4"),
    ("write_time", ">i8"),
    ("delay", ">i4"),
    ("physical_offset", ">i8"),
    ("message_size", ">i4"),
    ("topic_hash", ">i4"),
    ("reserved", ">i8"),
]
_CHECKED_SIZE: Final = 44
CHECKED: Final = 1 << 32
"""Marks a checksum written by Aerobee; RocketMQ writes 0."""
BLANK_MAGIC: Final = 0xCBD43194
_BLANK: Final = struct.Struct(">iqI")
BLANK_SIZE_MIN: Final = 16
assert _BLANK.size == BLANK_SIZE_MIN

DEFAULT: Final = 1
ROLL: Final = 2  # returns to the timer topic: its time is beyond the window
DELETE: Final = 4  # recalls another message
_MAGIC_MAX: Final = DEFAULT | ROLL | DELETE

_BLOCK_SIZE: Final = 1 << 16  # bytes read around a unit: other units of its slot are often near
_SCAN_UNITS: Final = 1 << 14
_NEVER: Final = 1 << 63

Units: TypeAlias = "npt.NDArray[np.void]"
"""Units as a structured array of UNIT_DTYPE."""


class TimerUnit(NamedTuple):
    """One unit."""

    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    message_size: int
    topic_hash: int


class TimerLog:
    """The files of `timerlog/`. Positions are bytes from the log's beginning. Appends are buffered until `write`."""

    def __init__(self, file_system: FileSystem, directory: Path, file_size: int) -> None:
        self._run = FileRun(file_system, directory, file_size)
        self._starts: list[int] = []
        self._sized = True  # every file has the configured size
        self._files: dict[int, File] = {}
        self._pending: list[bytes] = []
        self._pending_at = 0  # all of it belongs to one file
        self._dirty: set[int] = set()
        self._last_slot: dict[int, int] = {}  # the latest slot for which a file has units, where known
        self._block = b""
        self._block_at = 0
        self.end = 0

    def load(self) -> None:
        """Find the files. StoreDirectoryError for one with an invalid name."""
        self._starts = self._run.find()
        self._sized = all([self._has_size(start) for start in self._starts])
        self.end = self._starts[-1] + self._run.file_size if self._starts else 0

    @property
    def begin(self) -> int:
        """Position of the first remaining unit."""
        return self._starts[0] if self._starts else self.end

    def covers(self, begin: int, end: int) -> bool:
        """Whether there are files without a gap between these positions."""
        if not self._starts:
            return end == 0
        whole = range(self._starts[0], self._starts[-1] + 1, self._run.file_size)
        return (
            self._sized
            and self._starts == list(whole)
            and self._starts[0] <= begin <= end <= self._starts[-1] + self._run.file_size
        )

    def cut(self, end: int) -> None:
        """Drop every unit from `end` on and zero its bytes, so that it is not found again."""
        assert not self._pending
        self._forget([start for start in self._starts if start >= end])
        if self._starts and end < self._starts[-1] + self._run.file_size:
            file = self._file(self._starts[-1])
            used = end - self._starts[-1]
            stop = file.data_end(used)
            if stop > used:
                file.zero(used, stop - used)
                self._dirty.add(self._starts[-1])
        self.end = end
        self._block = b""

    def append(self, unit: TimerUnit, slot_time_ms: int) -> int:
        """Append a unit for this slot; returns its position. OSError (no space) is final for the timer."""
        file_size = self._run.file_size
        left = -self.end % file_size if self._starts else 0
        if left < UNIT_SIZE + BLANK_SIZE_MIN:
            if left:
                self._gather(_BLANK.pack(left, 0, BLANK_MAGIC)[:left].ljust(left, b"\0"))
            self.write()
            start = self.end
            self._files[start] = self._run.create(start)
            self._starts.append(start)
            self._last_slot[start] = 0
        position = self.end
        self._gather(encode(unit))
        start = self._starts[-1]
        if start in self._last_slot:
            self._last_slot[start] = max(self._last_slot[start], slot_time_ms)
        return position

    def write(self) -> None:
        """Move appended units to the page cache."""
        if not self._pending:
            return
        start = self._starts[-1]
        self._file(start).write(self._pending, self._pending_at - start)
        self._dirty.add(start)
        self._pending = []
        if self._block_at + len(self._block) > self._pending_at:
            self._block = b""

    def take_dirty(self) -> list[File]:
        """The files written since the last call, to be synced in a disk thread."""
        files = [self._file(start) for start in sorted(self._dirty)]
        self._dirty.clear()
        return files

    def read(self, position: int) -> TimerUnit:
        """The unit at a position. TimerLogDamagedError where there is none, as in a removed file."""
        unit = self._read(position)
        if unit is None:
            raise self._damaged(position)
        return unit

    def _read(self, position: int) -> TimerUnit | None:
        if not self.begin <= position <= self.end - UNIT_SIZE:
            return None
        at = position - self._block_at
        if not 0 <= at <= len(self._block) - UNIT_SIZE:
            if self._pending and position + UNIT_SIZE > self._pending_at:
                self.write()
            start = position - position % self._run.file_size
            if start not in self._starts:
                return None
            # The chain of a slot leads backwards, so the block ends with the requested unit.
            begin = max(0, position - start + UNIT_SIZE - _BLOCK_SIZE)
            self._block = self._file(start).read(position - start + UNIT_SIZE - begin, begin)
            self._block_at = start + begin
            at = position - self._block_at
            if len(self._block) < at + UNIT_SIZE:
                return None
        size, *fields, reserved = UNIT.unpack_from(self._block, at)
        unit = TimerUnit(*fields)
        if reserved and reserved != CHECKED | crc32(self._block[at : at + _CHECKED_SIZE]):
            return None
        if size != UNIT_SIZE or not 0 < unit.magic <= _MAGIC_MAX or not -1 <= unit.previous < position:
            return None
        return unit

    def scan(self) -> Iterator[tuple[int, Units]]:
        """All units up to `end`, in pieces: (position of the first, consecutive units). TimerLogDamagedError after the
        last one before an invalid one."""
        self.write()
        for start in self._starts:
            stop = min(self.end, start + self._run.file_size)
            position = start
            while stop - position >= UNIT_SIZE:
                count = min(_SCAN_UNITS, (stop - position) // UNIT_SIZE)
                data = self._file(start).read(count * UNIT_SIZE, position - start)
                units = np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_SIZE)
                valid = valid_units(units, position + np.arange(len(units)) * UNIT_SIZE)
                used = len(units) if valid.all() else int(valid.argmin())
                if used:
                    yield position, units[:used]
                position += used * UNIT_SIZE
                if used < count:
                    break
            if position < stop and not self._is_blank(start, position):
                raise self._damaged(position)

    def needed_from(self, read_time_ms: int) -> int:
        """The begin of the first file with units for slots from this time on; of the last file, if there is none."""
        self.write()
        for start in self._starts[:-1]:
            last = self._last_slot.get(start)
            if last is None:
                last = self._last_slot[start] = self._find_last_slot(start)
            if last >= read_time_ms:
                return start
        return self._starts[-1] if self._starts else self.end

    def remove_before(self, position: int) -> None:
        """Remove the files that end before this position."""
        self._forget([start for start in self._starts if start + self._run.file_size <= position])

    def clear(self) -> None:
        """Remove everything, to start again."""
        self._pending = []
        self._forget(list(self._starts))
        self.end = 0
        self._block = b""

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _gather(self, data: bytes) -> None:
        if not self._pending:
            self._pending_at = self.end
        self._pending.append(data)
        self.end += len(data)

    def _file(self, start: int) -> File:
        file = self._files.get(start)
        if file is None:
            file = self._files[start] = self._run.file_system.open(self._run.path(start))
        return file

    def _has_size(self, start: int) -> bool:
        path = self._run.path(start)
        if self._run.file_system.is_directory(path):
            raise StoreDirectoryError(f"{path}: a directory, not a file of this store; move it away")
        return self._run.file_system.size(path) == self._run.file_size and start % self._run.file_size == 0

    def _damaged(self, position: int) -> TimerLogDamagedError:
        return TimerLogDamagedError(self._run.path(position - position % self._run.file_size), position)

    def _is_blank(self, start: int, position: int) -> bool:
        head = self._file(start).read(BLANK_SIZE_MIN, position - start)
        return is_blank(head, start + self._run.file_size - position)

    def _find_last_slot(self, start: int) -> int:
        """The latest slot for which a file has units; `_NEVER` if it is damaged: its other units are not known."""
        count = min(self._run.file_size - BLANK_SIZE_MIN, self.end - start) // UNIT_SIZE
        data = self._file(start).read(count * UNIT_SIZE, 0)
        units = np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_SIZE)
        if len(units) < count or not valid_units(units, start + np.arange(count) * UNIT_SIZE).all():
            return _NEVER
        return int((units["write_time"] + units["delay"]).max()) if count else 0

    def _forget(self, starts: list[int]) -> None:
        for start in starts:
            if (file := self._files.pop(start, None)) is not None:
                file.close()
            self._starts.remove(start)
            self._dirty.discard(start)
            self._last_slot.pop(start, None)
        self._run.remove(starts)


def valid_units(units: Units, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of these bytes are valid units, at these positions of the timer log."""
    valid: npt.NDArray[np.bool_] = (units["size"] == UNIT_SIZE) & (units["magic"] > 0) & (units["magic"] <= _MAGIC_MAX)
    valid &= (units["previous"] >= -1) & (units["previous"] < positions)
    valid &= (units["physical_offset"] >= 0) & (units["message_size"] > 0)
    checked = np.flatnonzero(units["reserved"])
    if len(checked):
        data = units.tobytes()
        places = (checked * UNIT_SIZE).tolist()
        sums = np.array([crc32(data[place : place + _CHECKED_SIZE]) for place in places], np.int64)
        valid[checked] &= units["reserved"][checked] == sums | CHECKED
    return valid


def encode(unit: TimerUnit) -> bytes:
    """The 52 bytes of a unit."""
    fields = UNIT.pack(UNIT_SIZE, *unit, 0)[:_CHECKED_SIZE]
    return fields + (CHECKED | crc32(fields)).to_bytes(UNIT_SIZE - _CHECKED_SIZE, "big")


def is_blank(head: bytes, size: int) -> bool:
    """Whether this is the start of the blank that fills the last `size` bytes of a file."""
    return len(head) == BLANK_SIZE_MIN and _BLANK.unpack(head) == (size, 0, BLANK_MAGIC)
