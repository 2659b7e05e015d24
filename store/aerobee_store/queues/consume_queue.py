"""The messages of one (topic, queue id), as units of 20 bytes. Unit n is at byte 20 n of the queue.

    offset  size  field
         0     8  physical_offset  of the record in the log
         8     4  size             of the record, above 0
        12     8  tags_code        Java hash of the tag, 0 without one; for a delayed message its delivery time; or the
                                   address of an extended unit that contains it (consume_queue_ext.py)

A filler unit (0, 0x7FFFFFFF, 0) has no message: it stands before the first message of a rebuilt queue, or in place of a
damaged record. It is never served, and never counts as a position.

Queues are derived from the log. They are written with `pwrite` and read with `pread`, without a mapping, so thousands
of queues cost a few hundred bytes each. New units wait in memory for the next flush of derived files, up to one page of
them. A queue that gets single messages then costs one write per flush instead of one per message, and one open if
descriptors are scarce. Readers in this process find the waiting units. A start after a crash adds lost units from the
log, unsynced ones included. Likewise, the first file of a queue is durable only once it is synced.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import File, FileSystem
from aerobee_store.errors import StoreError
from aerobee_store.log.mapped_file import FileRun
from aerobee_store.queues.consume_queue_ext import ADDRESS_MAX, ConsumeQueueExt
from aerobee_store.queues.filter_bitmaps import FilterBits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


UNIT: Final = struct.Struct(">qiq")
UNIT_SIZE: Final = 20
assert UNIT.size == UNIT_SIZE, "the table above and the struct must agree"
UnitFields: TypeAlias = list[tuple[str, str]]
"""The fields of a unit, for numpy."""
UNIT_DTYPE: Final[UnitFields] = [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]

FILLER_SIZE: Final = 0x7FFFFFFF
FILLER_UNIT: Final = UNIT.pack(0, FILLER_SIZE, 0)

_CHUNK: Final = 4096
_WAITING_SIZE_MAX: Final = 4096
_LINEAR_SIZE_MAX: Final = 1 << 16
_GROWING_SHARE: Final = 8  # of a new file: most of the time that filling it takes is left for its sync
_DIRECTORY_LEVELS: Final = 3  # from a file of a queue to the directory of all queues of its kind

Units: TypeAlias = "npt.NDArray[np.void]"
"""Units as a structured array of UNIT_DTYPE."""


class ChangedQueues:
    """What the flush has to write or sync, registered by all queues of a store."""

    def __init__(self) -> None:
        self.queues: dict[ConsumeQueue, None] = {}
        """In the order of the changes."""
        self.sync_soon: Callable[[File], None] | None = None
        """Called with a new file that fills, once. The next file must not be made before it is durable, and without
        this the event loop would wait for the disk then."""


class QueueMisalignedError(StoreError):
    """A unit does not follow the last one: the queue and the log disagree, and the queue must be rebuilt."""


class ConsumeQueue:
    """One queue. Units `min_offset <= n < max_offset` can be served; `next_offset` is the next message's."""

    __slots__ = (
        "_after_crash",
        "_changed",
        "_dirty",
        "_dtype",
        "_files",
        "_run",
        "_starts",
        "_unit_size",
        "_waiting",
        "extension",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
        "torn",
    )

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        *,
        changed: ChangedQueues | None = None,
        dtype: UnitFields = UNIT_DTYPE,
        extension: ConsumeQueueExt | None = None,
    ) -> None:
        """`changed`: where the queue registers changes to be written or synced; None: the creator keeps track.

        `dtype`: of a unit, which begins with the fields of UNIT_DTYPE. `extension`: its extended units, if any.
        """
        self.topic = topic
        self.queue_id = queue_id
        self._dtype = dtype
        self._unit_size = sum(int(kind[-1]) for _, kind in dtype)
        self._run = FileRun(file_system, directory, file_size)
        self._starts: list[int] = []
        self._files: dict[int, File] = {}
        self._dirty: set[int] = set()
        self._changed = changed if changed is not None else ChangedQueues()
        self._waiting = b""  # the last units, not yet written to a file
        # the process that made the files may have died before their directory entries were durable
        self._after_crash = False
        self.extension = extension
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.torn = False

    @property
    def directory(self) -> Path:
        return self._run.directory

    @property
    def files(self) -> list[int]:
        """The first queue offset of each file."""
        return [start // self._unit_size for start in self._starts]

    @property
    def unit_numbers(self) -> tuple[int, int]:
        """The first queue offset that can be served, and the one after the last."""
        return self.min_offset, self.max_offset

    @property
    def has_files(self) -> bool:
        """Whether it has ever had a unit."""
        return bool(self._starts)

    @property
    def lacks_files(self) -> bool:
        """Whether a file is missing between two others. Files are removed only from the beginning or the end."""
        return any(later - earlier != self._run.file_size for earlier, later in pairwise(self._starts))

    @property
    def units_per_file(self) -> int:
        return self._run.file_size // self._unit_size

    def load(self, *, after_crash: bool) -> None:
        """Find the beginning and the end of the queue.

        The queue ends with its valid units. `after_crash`: the process died, so every unit of the last files is
        checked; otherwise they are known to be contiguous, and the end is found by bisection. Either way `torn` tells
        whether more units followed: units are then missing, and only the log can restore them.
        """
        self._after_crash = after_crash
        self._starts = self._run.load()
        self.torn |= self._run.had_empty  # a new file, or one that has lost its content
        if self._starts:  # otherwise it continues at the offset given to `begin_at`
            self.min_offset = self.max_offset = self._starts[0] // self._unit_size
        while self._starts:
            start = self._starts[-1]
            count = self._count_linear(start) if after_crash else self._count_bisected(start)
            self.torn |= self._clear(start, count * self._unit_size)
            # A whole file of zeros was preallocated and never used: the queue ends in the file before it.
            if count or len(self._starts) == 1:
                self.max_offset = start // self._unit_size + count
                break
            self._remove_files([start])
        if after_crash and self._starts:
            self._check_earlier_files()
        if self.extension is not None:
            self.extension.load()
            self._end_extension()
        self.next_offset = self.max_offset

    def units(self, queue_offset: int, count: int) -> Units:
        """At most `count` units from `queue_offset` on, up to the end of the queue."""
        end = min(queue_offset + count, self.max_offset)
        parts = []
        position, stop = queue_offset * self._unit_size, end * self._unit_size
        written = self._written
        while position < min(stop, written):
            start = position - position % self._run.file_size
            file = self._file(start)
            if file is None:
                break
            part = file.read(min(stop, written, start + self._run.file_size) - position, position - start)
            if not part:
                break
            parts.append(part)
            position += len(part)
        if written <= position < stop:
            parts.append(self._waiting[position - written : stop - written])
        return np.frombuffer(b"".join(parts), self._dtype)

    def tags_codes(self, units: Units) -> Iterator[int | None]:
        """The tags code of each unit, from its extended unit where it has one; None if that cannot be found."""
        for code in units["tags_code"].tolist():
            if code > ADDRESS_MAX:
                yield code
            else:
                found = self.extension.get(code) if self.extension is not None else None
                yield found.tags_code if found is not None else None

    def differing(self, queue_offset: int, units: Units) -> list[int]:
        """The numbers of those units that differ from the queue's units from `queue_offset` on.

        A unit whose tags code is in an extended unit counts as equal.
        """
        there = self.units(queue_offset, len(units))
        same = there == units
        if not same.all() and self.extension is not None:
            same |= (there["physical_offset"] == units["physical_offset"]) & (there["size"] == units["size"])
            rows = np.flatnonzero(same & (there["tags_code"] != units["tags_code"]))
            for row, code in zip(rows.tolist(), self.tags_codes(there[rows]), strict=True):
                same[row] = code == int(units[row]["tags_code"])
        wrong: list[int] = np.flatnonzero(~same).tolist()
        return wrong

    @property
    def extends(self) -> bool:
        """Whether new units get extended units."""
        return self.extension is not None and self.extension.is_fed

    def extended(self, units: bytes, store_timestamps: Sequence[int], bitmaps: Sequence[bytes] = ()) -> bytes:
        """The units with their tags codes moved into extended units, which are written. Only if `extends`.

        `bitmaps`: of each unit; (): none of them has one.
        """
        assert self.extension is not None
        changed = np.frombuffer(units, UNIT_DTYPE).copy()
        physical_offsets = changed["physical_offset"].tolist() if bitmaps else ()
        changed["tags_code"] = self.extension.put(
            changed["tags_code"].tolist(), store_timestamps, bitmaps, physical_offsets
        )
        return changed.tobytes()

    def may_match(self, queue_offset: int, count: int, bits: FilterBits) -> list[bool]:
        """Whether each of at most `count` messages from `queue_offset` on may satisfy a subscription."""
        if self.extension is None:
            return []
        units = self.units(queue_offset, count)
        physical_offsets = units["physical_offset"].tolist()
        bitmaps = self.extension.bitmaps(zip(units["tags_code"].tolist(), physical_offsets, strict=True))
        return [bits.may_match(*place) for place in zip(physical_offsets, bitmaps, strict=True)]

    def put(self, queue_offset: int, units: bytes) -> None:
        """Append units; the first is that of `queue_offset`.

        A gap before it (the messages in between are damaged or deleted) is filled with filler units. The first unit of
        a queue may have any offset. Raises QueueMisalignedError for an offset that exists already.
        """
        if queue_offset < self.max_offset:
            raise QueueMisalignedError(
                f"{self._run.directory}: unit {queue_offset} exists already; the queue ends at {self.max_offset}"
            )
        first = self.max_offset
        if not self._starts:
            # The first unit of a queue: fill its file from the beginning, as RocketMQ does.
            first = queue_offset - queue_offset % self.units_per_file
            self.min_offset = max(self.min_offset, queue_offset)  # higher if all earlier messages were deleted
            self._create(first * self._unit_size)
        if first < queue_offset:
            units = FILLER_UNIT * (queue_offset - first) + units
            queue_offset = first
        self._waiting = self._waiting + units if self._waiting else units
        self.max_offset = queue_offset + len(units) // self._unit_size
        if self.next_offset < self.max_offset:
            self.next_offset = self.max_offset
        self._changed.queues[self] = None
        if len(self._waiting) >= _WAITING_SIZE_MAX:
            self._write_waiting()

    def overwrite(self, queue_offset: int, units: bytes) -> None:
        """Replace wrong units below the end of the queue by right ones; for recovery."""
        assert queue_offset * self._unit_size + len(units) <= self.max_offset * self._unit_size
        self._write_waiting()
        self._write(queue_offset * self._unit_size, units)

    def truncate(self, end: int) -> None:
        """Drop every unit from queue offset `end` on and zero its bytes, so that no later start finds it."""
        if end >= self.max_offset:
            return
        self._write_waiting()
        end = max(end, self._starts[0] // self._unit_size)
        end_position = end * self._unit_size
        gone = [start for start in self._starts if start >= end_position and start != self._starts[0]]
        self._remove_files(gone)
        self._clear(self._starts[-1], max(0, end_position - self._starts[-1]))
        self.max_offset = self.next_offset = end
        self.min_offset = min(self.min_offset, end)
        if self.extension is not None:
            self._end_extension()

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the minimum to the first unit whose record the log still has; a queue without one keeps its end."""
        offset = self.min_offset
        if expired := self.expired_files(min_physical_offset):
            offset = max(offset, expired[-1] + self.units_per_file)
        begin = offset
        while offset < self.max_offset:
            units = self.units(offset, min(self.units_per_file, 1 if offset == begin else 1 << 16))
            if not len(units):
                break
            alive = (units["physical_offset"] >= min_physical_offset) & (units["size"] != FILLER_SIZE)
            first = int(alive.argmax())
            if alive[first]:
                offset += first
                break
            offset += len(units)
        self.min_offset = max(self.min_offset, min(offset, self.max_offset))

    def end_messages(self) -> None:
        """Stop serving everything appended so far, because its topic is deleted. Messages that are not dispatched yet
        are beyond the end and below the minimum until they are."""
        self.min_offset = self.next_offset

    def last_record_end(self) -> int:
        """The physical offset after the record of the last unit that is no filler; 0 if there is none."""
        end = self.max_offset
        while end > self.min_offset:
            begin = max(self.min_offset, end - 512)
            units = self.units(begin, end - begin)
            real = np.flatnonzero(units["size"] != FILLER_SIZE)
            if len(real):
                last = units[real[-1]]
                return int(last["physical_offset"]) + int(last["size"])
            end = begin
        return 0

    def offset_by_time(
        self, timestamp: int, boundary: Literal["lower", "upper"], store_timestamp_at: Callable[[int], int | None]
    ) -> int:
        """The first message stored at or after `timestamp` ("lower"; none: the end), or the last one stored at or
        before it ("upper"; none: the beginning). A queue without messages returns its end."""
        if self.min_offset >= self.max_offset:
            return self.max_offset

        def stored_at(offset: int) -> int:
            # A unit without a readable record has no time: examine the following ones.
            for following in range(offset, self.max_offset):
                unit = self.units(following, 1)
                if len(unit) and int(unit[0]["size"]) != FILLER_SIZE:
                    found = store_timestamp_at(int(unit[0]["physical_offset"]))
                    if found is not None:
                        return found
            return 1 << 63

        offsets = range(self.min_offset, self.max_offset)
        if boundary == "lower":
            return self.min_offset + bisect_left(offsets, timestamp, key=stored_at)
        return self.min_offset + max(0, bisect_right(offsets, timestamp, key=stored_at) - 1)

    def offset_behind(self, end: int) -> int:
        """The first queue offset whose record ends after physical offset `end`; the queue's end if there is none."""

        def ends_behind(offset: int) -> bool:
            unit = self.units(offset, 1)[0]
            return int(unit["size"]) != FILLER_SIZE and int(unit["physical_offset"]) + int(unit["size"]) > end

        offsets = range(self.min_offset, self.max_offset)
        # It is nearly always one of the last few.
        units = self.units(max(self.min_offset, self.max_offset - _CHUNK), _CHUNK)
        if len(units) and int(units[0]["physical_offset"]) + int(units[0]["size"]) <= end:
            beyond = (units["physical_offset"] + units["size"] > end) & (units["size"] != FILLER_SIZE)
            return self.max_offset - len(units) + (int(beyond.argmax()) if beyond.any() else len(units))
        return self.min_offset + bisect_left(offsets, True, key=ends_behind)

    def expired_files(self, min_physical_offset: int) -> list[int]:
        """The first queue offsets of the leading files whose records are all gone from the log; never the last file."""
        expired = []
        for start in self._starts[:-1]:
            if self._last_physical_offset(start // self._unit_size) >= min_physical_offset:
                break
            expired.append(start // self._unit_size)
        return expired

    def release_files(self, first_offsets: list[int]) -> list[Path]:
        """Close the leading files; return their paths, oldest first, for the caller to remove."""
        released = []
        for offset in first_offsets:
            start = offset * self._unit_size
            self._forget_file(start)
            released.append(self._run.path(start))
        if released:
            self.min_offset = max(self.min_offset, self._starts[0] // self._unit_size)
        return released

    def release_extension_files(self) -> list[Path]:
        """Close the extension files that no unit of the queue refers to; return their paths, oldest first, for the
        caller to remove."""
        if self.extension is None or len(self.extension.files) < 2:
            return []
        for begin in range(self.min_offset, self.max_offset, _CHUNK):
            codes = self.units(begin, _CHUNK)["tags_code"]
            addresses = codes[codes <= ADDRESS_MAX]
            if len(addresses):
                return self.extension.release_before(int(addresses.min()))
        return []

    def mark_unsynced(self, queue_offset: int, count: int) -> None:
        """Mark the files of these units as unsynced: the process that wrote them may have died before a sync."""
        if self.extension is not None:
            codes = self.units(queue_offset, count)["tags_code"]
            addresses = codes[codes <= ADDRESS_MAX]
            if len(addresses):
                self.extension.mark_unsynced(int(addresses.min()))
        position, end = queue_offset * self._unit_size, (queue_offset + count) * self._unit_size
        self._dirty.update(range(position - position % self._run.file_size, end, self._run.file_size))
        self._changed.queues[self] = None

    def take_dirty(self) -> list[File]:
        """Write waiting units; return the files written since the last call, to be synced in a disk thread. OSError."""
        self._write_waiting()
        self._changed.queues.pop(self, None)
        files = self.extension.take_dirty() if self.extension is not None else []
        if not self._dirty:
            return files
        files += [file for start in self._dirty if (file := self._file(start)) is not None]
        self._dirty.clear()
        return files

    def ends_before(self, physical_offset: int) -> bool:
        """Whether every unit in its files, served or not, belongs to an earlier record."""
        begin = self._starts[0] // self._unit_size if self._starts else self.max_offset
        end = self.max_offset
        while end > begin:
            first = max(begin, end - 512)
            units = self.units(first, end - first)
            real = np.flatnonzero(units["size"] != FILLER_SIZE)
            if len(real):
                return int(units["physical_offset"][real[-1]]) < physical_offset
            end = first
        return True

    def give_up_files(self) -> list[Path]:
        """Close all files; return their paths, in the order in which the caller must remove them."""
        self._waiting = b""
        paths = [self._run.path(start) for start in sorted(self._starts, reverse=True)]
        for start in self._starts.copy():
            self._forget_file(start)
        if self.extension is not None:
            paths += self.extension.give_up_files()
        self.begin_at(self.next_offset)
        return paths

    def destroy(self) -> None:
        """Remove all files and the directory."""
        self._waiting = b""
        self._remove_files(list(self._starts))
        self._run.file_system.remove_directory(self._run.directory)
        if self.extension is not None:
            self.extension.destroy()
        self.begin_at(0)

    def begin_at(self, queue_offset: int) -> None:
        """Set where a queue without files continues."""
        assert not self._starts
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    def close(self) -> None:
        """Close the queue. Waiting units are dropped."""
        self._waiting = b""
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self.extension is not None:
            self.extension.close()

    def _end_extension(self) -> None:
        """Cut the extended units after the last one that a unit refers to. Their addresses rise in the queue."""
        extension = self.extension
        assert extension is not None
        self._changed.queues[self] = None
        if not extension.files:
            extension.begin_behind(self.max_offset)
            return
        highest: int | None = None
        stop = self.max_offset
        while stop > self.min_offset:
            begin = max(self.min_offset, stop - _CHUNK)
            codes = self.units(begin, stop - begin)["tags_code"]
            for address in np.sort(codes[codes <= ADDRESS_MAX])[::-1].tolist():
                highest = address if highest is None else max(highest, address)
                if extension.get(address) is not None:
                    extension.truncate(address, beyond=None if address == highest else highest)
                    return
            stop = begin
        extension.truncate(None)
        extension.begin_behind(self.max_offset)

    def _file(self, start: int) -> File | None:
        file = self._files.get(start)
        if file is None:
            if start not in self._starts:
                return None
            file = self._run.file_system.open(self._run.path(start), evictable=True)
            if self._after_crash:
                file.unsynced_levels = _DIRECTORY_LEVELS
            self._files[start] = file
        return file

    def _create(self, start: int) -> File:
        if self._starts:
            before = self._file(self._starts[-1])
            assert before is not None
            if before.unsynced_levels:  # it was filled before the disk thread could sync it
                before.sync()
        file = self._run.create_unsynced(start)
        self._starts.append(start)
        self._files[start] = file
        return file

    @property
    def _written(self) -> int:
        """The byte of the queue up to which its units are in files; later units wait."""
        return self.max_offset * self._unit_size - len(self._waiting)

    def _write_waiting(self) -> None:
        if self._waiting:
            self._write(self._written, self._waiting)
            self._waiting = b""

    def _write(self, position: int, units: bytes) -> None:
        end = position + len(units)
        file_size = self._run.file_size
        while position < end:
            start = position - position % file_size
            count = min(end, start + file_size) - position
            file = self._file(start)
            if file is None:
                file = self._create(start)
            file.write([units if count == len(units) else units[:count]], position - start)
            self._dirty.add(start)
            units = units[count:]
            if file.unsynced_levels and self._changed.sync_soon is not None:
                share = start + file_size // _GROWING_SHARE
                if position < share <= position + count:
                    self._changed.sync_soon(file)
            position += count
        self._changed.queues[self] = None

    def _remove_files(self, starts: list[int]) -> None:
        for start in starts:
            self._forget_file(start)
        self._run.remove(starts)

    def _forget_file(self, start: int) -> None:
        if (file := self._files.pop(start, None)) is not None:
            file.close()
        self._starts.remove(start)
        self._dirty.discard(start)

    def _last_physical_offset(self, first_offset: int) -> int:
        """The physical offset of the last unit of a full file that is no filler; -1 if all are fillers."""
        end = first_offset + self.units_per_file
        count = 1  # the last unit nearly always belongs to a message
        while end > first_offset:
            begin = max(first_offset, end - count)
            units = self.units(begin, end - begin)
            real = np.flatnonzero(units["size"] != FILLER_SIZE)
            if len(real):
                return int(units["physical_offset"][real[-1]])
            end, count = begin, 512
        return -1

    def _count_bisected(self, start: int) -> int:
        file = self._file(start)
        assert file is not None
        size = file.data_end(0)
        if size <= _LINEAR_SIZE_MAX:
            return self._count_linear(start)  # one read instead of a dozen: most of thousands of queues are short

        def is_unused(index: int) -> bool:
            physical_offset, size, _ = UNIT.unpack(file.read(UNIT_SIZE, index * self._unit_size))
            return bool(size <= 0 or physical_offset < 0)

        return bisect_left(range(min(self.units_per_file, -(-size // self._unit_size))), True, key=is_unused)

    def _count_linear(self, start: int) -> int:
        file = self._file(start)
        assert file is not None
        size = min(self._run.file_size, -(-file.data_end(0) // self._unit_size) * self._unit_size)
        units = np.frombuffer(file.read(size, 0), self._dtype)
        invalid = np.flatnonzero((units["size"] <= 0) | (units["physical_offset"] < 0))
        return int(invalid[0]) if len(invalid) else len(units)

    def _clear(self, start: int, used: int) -> bool:
        """Zero a file after its first `used` bytes; return whether it had other content there.

        A crash may leave the later ones of several unsynced units; they would count as soon as the earlier ones are
        back.
        """
        file = self._file(start)
        assert file is not None
        stop = min(self._run.file_size, file.data_end(used))
        if stop > used and file.read(stop - used, used).strip(b"\0"):
            file.zero(used, stop - used)
            self._dirty.add(start)
            self._changed.queues[self] = None
            return True
        return False

    def _check_earlier_files(self) -> None:
        """After a crash an earlier file may have lost unsynced units: the queue ends at the first such place."""
        for start in self._starts[-3:-1]:
            count = self._count_linear(start)
            if count < self.units_per_file:
                self.torn = True
                self.truncate(start // self._unit_size + count)
                return
