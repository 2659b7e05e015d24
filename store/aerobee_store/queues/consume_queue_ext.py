"""RocketMQ's extended units: data that does not fit into the units of a queue. Integers are big-endian.

    offset  size  field
         0     2  size             of this unit, at least 20
         2     8  tags_code        the value that the queue's unit would have
        10     8  store_timestamp  of the record, ms
        18     2  bitmap_size      bytes
        20     -  bitmap           of the SQL filters that may match the message; none: all of them may
         -     4  checksum         CRC-32 of the record's physical offset (8 bytes) and all of the above; only after a
                                   bitmap that this store has computed (RocketMQ's bitmaps have none)

The queue's unit then has an *address* instead of its tags code: the offset of the extended unit in its run of files,
minus 2**63. Tags codes are 32-bit hashes or times, so an address is never one of them.

Extended units follow each other, and none crosses a file. If the rest of a file is too small for a unit and 4 more
bytes, the rest begins with the size -1, and the unit begins the next file. There is therefore always space for that
mark.

Like the queue, they are derived: a lost unit makes a filter slower, and never loses a message. Only a bitmap with a
valid checksum rules a message out. RocketMQ finds the next unit by `size`, and so skips the checksum. The queue owns
its extended units, and determines where they begin and end (after the one with its highest address).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from zlib import crc32

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import File, FileSystem
from aerobee_store.log.mapped_file import FileRun
from aerobee_store.queues.filter_bitmaps import NO_BITMAP

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


EXTENSION_UNIT: Final = struct.Struct(">hqqh")
EXTENSION_UNIT_SIZE_MIN: Final = 20
assert EXTENSION_UNIT.size == EXTENSION_UNIT_SIZE_MIN, "the table above and the struct must agree"
CHECKSUM: Final = struct.Struct(">I")
EXTENSION_UNIT_SIZE_MAX: Final = 32767
_PHYSICAL_OFFSET: Final = struct.Struct(">q")
TAIL_SIZE: Final = 4
"""Bytes at the end of a file that no unit may use."""
TAIL_MARK: Final = b"\xff\xff"

ADDRESS_MAX: Final = -(1 << 31) - 1
"""Values up to this are addresses, values above it tags codes."""
_ADDRESS_ZERO: Final = -(1 << 63)
_OFFSET_MAX: Final = ADDRESS_MAX - _ADDRESS_ZERO
_BLOCK_SIZE: Final = 32 << 10  # bytes per read of consecutive units: some hundred, or one of the largest
assert _BLOCK_SIZE >= EXTENSION_UNIT_SIZE_MAX, "otherwise a unit could be larger than a block"

Integers: TypeAlias = "npt.NDArray[np.int64]"


class ExtensionUnit(NamedTuple):
    """One unit. `size`: its bytes."""

    size: int
    tags_code: int
    store_timestamp: int
    bitmap: bytes

    @property
    def has_checksum(self) -> bool:
        return self.size > EXTENSION_UNIT_SIZE_MIN + len(self.bitmap)


def is_address(code: int) -> bool:
    """Whether the tags code of a queue's unit is the address of an extended unit."""
    return code <= ADDRESS_MAX


class ConsumeQueueExt:
    """The extended units of one queue. `end`: the offset of the next one, if it fits there."""

    __slots__ = ("_dirty", "_files", "_run", "_starts", "end", "is_fed")

    def __init__(self, file_system: FileSystem, directory: Path, file_size: int, *, is_fed: bool) -> None:
        """`is_fed`: whether new units of the queue get an extended unit; otherwise existing ones are only read."""
        self.is_fed = is_fed
        self._run = FileRun(file_system, directory, file_size)
        self._starts: list[int] = []
        self._files: dict[int, File] = {}
        self._dirty: set[int] = set()
        self.end = 0

    @property
    def directory(self) -> Path:
        return self._run.directory

    @property
    def files(self) -> list[int]:
        """Where each file begins."""
        return self._starts.copy()

    def load(self) -> None:
        """Find the files. All of them count until `truncate` sets the end."""
        self._starts = self._run.load()
        self.end = self._starts[-1] + self._run.file_size if self._starts else 0

    def put(
        self,
        codes: Sequence[int],
        store_timestamps: Sequence[int],
        bitmaps: Sequence[bytes] = (),
        physical_offsets: Sequence[int] = (),
    ) -> list[int]:
        """Append units; return the address of each, or the tags code itself if no address is left.

        `bitmaps` (): none of them has one; otherwise each unit's, which may be empty, and its record's physical offset.
        """
        addresses = []
        parts: list[bytes] = []
        position = self.end
        begin = position
        for number, (code, store_timestamp) in enumerate(zip(codes, store_timestamps, strict=True)):
            unit = EXTENSION_UNIT.pack(EXTENSION_UNIT_SIZE_MIN, code, store_timestamp, 0)
            if bitmaps and bitmaps[number]:
                unit = self._unit(code, store_timestamp, bitmaps[number], physical_offsets[number])
            left = self._run.file_size - position % self._run.file_size
            if left < len(unit) + TAIL_SIZE:
                parts.append(TAIL_MARK)
                self._write(begin, parts)
                parts = []
                begin = position = position + left
            if position > _OFFSET_MAX:
                addresses.append(code)
                continue
            parts.append(unit)
            addresses.append(position + _ADDRESS_ZERO)
            position += len(unit)
        if parts:
            self._write(begin, parts)
        self.end = position
        return addresses

    def _unit(self, code: int, store_timestamp: int, bitmap: bytes, physical_offset: int) -> bytes:
        """A unit with a bitmap, or without one if it is too large for a file."""
        size = EXTENSION_UNIT_SIZE_MIN + len(bitmap) + CHECKSUM.size
        if size > min(EXTENSION_UNIT_SIZE_MAX, self._run.file_size - TAIL_SIZE):
            return EXTENSION_UNIT.pack(EXTENSION_UNIT_SIZE_MIN, code, store_timestamp, 0)
        unit = EXTENSION_UNIT.pack(size, code, store_timestamp, len(bitmap)) + bitmap
        return unit + CHECKSUM.pack(_checksum(physical_offset, unit))

    def bitmaps(self, places: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """The bitmap of the unit at each address, given with the physical offset of its record; b"" unless there is one
        with a valid checksum. Fast for units that follow each other."""
        block, begin = b"", 0  # bytes of a file, and their offset in the run
        for address, physical_offset in places:
            offset = address - _ADDRESS_ZERO
            if not is_address(address) or offset >= self.end:
                yield NO_BITMAP
                continue
            unit = _unit_in(block, offset - begin)
            if unit is None:
                block, begin = self._block(offset), offset
                unit = _unit_in(block, 0)
            yield NO_BITMAP if unit is None else _checked_bitmap(unit, physical_offset)

    def _block(self, offset: int) -> bytes:
        """The bytes from this offset on, as far as one read goes."""
        position = offset % self._run.file_size
        file = self._file(offset - position)
        size = min(_BLOCK_SIZE, self._run.file_size - position, self.end - offset)
        return file.read(size, position) if file is not None else b""

    def get(self, address: int) -> ExtensionUnit | None:
        """The unit at an address, or None if there is no valid one. A checksum is not verified."""
        offset = address - _ADDRESS_ZERO
        if not is_address(address) or offset >= self.end:
            return None
        position = offset % self._run.file_size
        file = self._file(offset - position)
        if file is None:
            return None
        head = file.read(EXTENSION_UNIT_SIZE_MIN, position)
        if len(head) < EXTENSION_UNIT_SIZE_MIN:
            return None
        size, code, store_timestamp, bitmap_size = EXTENSION_UNIT.unpack(head)
        if bitmap_size < 0 or size - EXTENSION_UNIT_SIZE_MIN - bitmap_size not in (0, CHECKSUM.size):
            return None
        if bitmap_size == 0 and size != EXTENSION_UNIT_SIZE_MIN:
            return None
        if offset + size > self.end or position + size > self._run.file_size - TAIL_SIZE:
            return None
        bitmap = file.read(bitmap_size, position + EXTENSION_UNIT_SIZE_MIN) if bitmap_size else b""
        return ExtensionUnit(size, code, store_timestamp, bitmap)

    def truncate(self, last_address: int | None, *, beyond: int | None = None) -> None:
        """Set the last unit (None: none). Later ones are removed or zeroed.

        `beyond`: an address that the queue still has although its unit is lost. It is not used again: the next unit
        goes to the following file.
        """
        end = 0
        if last_address is not None:
            last = self.get(last_address)
            assert last is not None, "the caller has just read it"
            end = last_address - _ADDRESS_ZERO + last.size
        gone = [start for start in self._starts if start >= end]
        for start in gone:
            self._forget(start)
        self._run.remove(gone)
        if self._starts:
            start = self._starts[-1]
            file = self._file(start)
            assert file is not None
            used = end - start
            stop = min(self._run.file_size, file.data_end(used))
            if stop > used and file.read(stop - used, used).strip(b"\0"):
                file.zero(used, stop - used)
                self._dirty.add(start)
        if beyond is not None:
            offset = beyond - _ADDRESS_ZERO
            end = max(end, offset - offset % self._run.file_size + self._run.file_size)
        self.end = end

    def begin_behind(self, unit_count: int) -> None:
        """Set how many units the queue has had, if no file is left: their possible addresses are not used again. A unit
        and the tail before it are shorter than 128 KiB."""
        assert not self._starts
        size = self._run.file_size
        self.end = -(-unit_count * (1 << 17) // size) * size

    def release_before(self, lowest_address: int) -> list[Path]:
        """Close the files that have no unit from this address on; return their paths, oldest first, for the caller to
        remove. Never the last file."""
        offset = lowest_address - _ADDRESS_ZERO
        released = []
        for start in self._starts[:-1]:
            if start + self._run.file_size > offset:
                break
            self._forget(start)
            released.append(self._run.path(start))
        return released

    def take_dirty(self) -> list[File]:
        """The files written since the last call, to be synced in a disk thread."""
        if not self._dirty:
            return []
        files = [file for start in self._dirty if (file := self._file(start)) is not None]
        self._dirty.clear()
        return files

    def mark_unsynced(self, lowest_address: int) -> None:
        """Mark the files from this address on as unsynced: the process that wrote them may have died before a sync."""
        offset = lowest_address - _ADDRESS_ZERO
        self._dirty.update(start for start in self._starts if start + self._run.file_size > offset)

    def give_up_files(self) -> list[Path]:
        """See ConsumeQueue."""
        starts = sorted(self._starts, reverse=True)
        for start in starts:
            self._forget(start)
        self.end = 0
        return [self._run.path(start) for start in starts]

    def destroy(self) -> None:
        """Remove all files and the directory."""
        gone = self._starts.copy()
        for start in gone:
            self._forget(start)
        self._run.remove(gone)
        self._run.file_system.remove_directory(self._run.directory)
        self.end = 0

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write(self, offset: int, parts: list[bytes]) -> None:
        """Write bytes that fit into one file, which is made if it does not exist."""
        position = offset % self._run.file_size
        start = offset - position
        file = self._file(start)
        if file is None:
            file = self._run.create(start, evictable=True)
            self._starts.append(start)
            self._files[start] = file
        file.write(parts, position)
        self._dirty.add(start)

    def _file(self, start: int) -> File | None:
        file = self._files.get(start)
        if file is None and start in self._starts:
            file = self._files[start] = self._run.file_system.open(self._run.path(start), evictable=True)
        return file

    def _forget(self, start: int) -> None:
        if (file := self._files.pop(start, None)) is not None:
            file.close()
        self._starts.remove(start)
        self._dirty.discard(start)


def _unit_in(block: bytes, position: int) -> bytes | None:
    """The unit at this position, if the block has all of it."""
    if not 0 <= position <= len(block) - EXTENSION_UNIT_SIZE_MIN:
        return None
    size = int.from_bytes(block[position : position + 2], "big", signed=True)
    if size < EXTENSION_UNIT_SIZE_MIN or position + size > len(block):
        return None
    return block[position : position + size]


def _checked_bitmap(unit: bytes, physical_offset: int) -> bytes:
    bitmap_size = EXTENSION_UNIT.unpack_from(unit)[3]
    if bitmap_size <= 0 or len(unit) != EXTENSION_UNIT_SIZE_MIN + bitmap_size + CHECKSUM.size:
        return NO_BITMAP
    content, checksum = unit[: -CHECKSUM.size], CHECKSUM.unpack(unit[-CHECKSUM.size :])[0]
    return content[EXTENSION_UNIT_SIZE_MIN:] if _checksum(physical_offset, content) == checksum else NO_BITMAP


def _checksum(physical_offset: int, content: bytes) -> int:
    """Of the unit of the record at this physical offset, so that another unit is not taken for it."""
    return crc32(content, crc32(_PHYSICAL_OFFSET.pack(physical_offset)))
