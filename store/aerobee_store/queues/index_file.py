"""Hash index: from a key of a topic to the physical offsets of its messages.

    offset       size  field
         0          8  begin_timestamp  store time of the first entry
         8          8  end_timestamp    of the last
        16          8  begin_offset     physical offset of the first entry
        24          8  end_offset       of the last
        32          4  slots_used       (release 4.3 counts every entry here)
        36          4  next_entry       number of the next entry; starts at 1
        40  4 * slots  slot table       number of the newest entry of the slot, 0 for none
         -  20 * n     entries          entry 0 is never used

    an entry
         0          4  key_hash         |Java hash of "topic#key"|; slot = key_hash mod slots
         4          8  physical_offset
        12          4  seconds          store time - begin_timestamp, in whole seconds
        16          4  previous         the entry before it in its slot, 0 at the end of the chain

A file is named by its local creation time, 17 digits. When it is full, the next one begins where it ended. The index is
derived from the log; it is written through a shared mapping whose blocks are reserved first. Its slots are accessed at
random, so a write call for each would cost more than all other work of dispatch.

The process may be killed between any two stores into the mapping, and other processes may read it at any time. An entry
therefore counts only once the header includes it. The header is stored last, as bytes packed in advance:
`struct.pack_into` would zero its target first, and a header of zeros marks an empty file.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import File, FileSystem
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.records.decimals import decimal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")

_log = logging.getLogger(__name__)

HEADER: Final = struct.Struct(">qqqqii")
HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ENTRY: Final = struct.Struct(">iqii")
ENTRY_SIZE: Final = 20
assert (HEADER.size, ENTRY.size) == (HEADER_SIZE, ENTRY_SIZE), "the table above and the structs must agree"
ENTRY_DTYPE: Final = [("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]

_SLOT: Final = struct.Struct(">i")
_SECONDS_MAX: Final = 0x7FFFFFFF
_RESERVE_ENTRIES: Final = 1 << 20  # 20 MiB of entries at once
LOOKED_MAX: Final = 1 << 16
"""Entries examined by one search: about 30 ms. A normal slot has a few; keys constructed to collide can have more."""
LOOKED_PER_STEP: Final = 1 << 11
"""Entries after which a search returns control to its caller: about 1 ms."""
_DIRECTORY_LEVELS: Final = 2  # directories above a file, its own first, that its first sync makes durable
_CREATION_TRIES: Final = 3  # RocketMQ's
_CREATION_PAUSE_SECONDS: Final = 0.05  # the event loop waits; RocketMQ waits a second
# Below this many keys a loop over `struct` calls is faster than numpy with its fixed cost (measured: about 40 keys).
_VECTOR_MIN: Final = 48

IntArray: TypeAlias = "npt.NDArray[np.int64]"
Integers: TypeAlias = "Sequence[int] | IntArray"


def file_size(slot_count: int, entry_count: int) -> int:
    """The size of an index file, in bytes."""
    return HEADER_SIZE + SLOT_SIZE * slot_count + ENTRY_SIZE * entry_count


class IndexFile:
    """One index file, open for reading and writing."""

    def __init__(self, file: File, slot_count: int, entry_count: int, *, new: bool) -> None:
        self.file = file
        self.slot_count = slot_count
        self.entry_count = entry_count
        self._entries_position = HEADER_SIZE + SLOT_SIZE * slot_count
        # entries with allocated disk space; 0: not even the slots are certain to have it
        self._reserved = 1 if new else 0
        if new:
            file.reserve(0, self._entries_position)
        self._view = file.map(writable=True)
        self._slots = np.frombuffer(self._view, ">i4", slot_count, HEADER_SIZE)
        self._entries = np.frombuffer(self._view, ENTRY_DTYPE, entry_count, self._entries_position)
        self.begin_timestamp = self.end_timestamp = 0
        self.begin_offset = self.end_offset = 0
        self.slots_used = 0
        self.next_entry = 1
        self.dirty = False
        if not new:
            self._load_header()

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self.entry_count

    @property
    def is_empty(self) -> bool:
        return self.next_entry <= 1

    def continue_from(self, timestamp: int, physical_offset: int) -> None:
        """Begin where the file before this one ended."""
        self.begin_timestamp = self.end_timestamp = timestamp
        self.begin_offset = self.end_offset = physical_offset
        self._store_header()

    def put(self, key_hashes: Integers, physical_offsets: Integers, timestamps: Integers) -> int:
        """Add as many entries as fit; return their number. Hashes 0..2^31-1, offsets rising, times in ms."""
        count = min(len(key_hashes), self.entry_count - self.next_entry)
        if count <= 0:
            return 0
        self._reserve(self.next_entry + count)
        if count < _VECTOR_MIN:
            for number in range(count):
                self._put_one(int(key_hashes[number]), int(physical_offsets[number]), int(timestamps[number]))
        else:
            self._put_many(
                np.asarray(key_hashes[:count], np.int64),
                np.asarray(physical_offsets[:count], np.int64),
                np.asarray(timestamps[:count], np.int64),
            )
        self._store_header()
        self.dirty = True
        return count

    def find(self, key_hash: int, begin: int, end: int, looked_max: int) -> Generator[int | None, None, int]:
        """The physical offsets of entries with this hash, newest first, stored in [begin, end] as far as seconds tell.

        Looks at up to `looked_max` entries, and returns at how many it has looked. Yields None after each
        LOOKED_PER_STEP of them. Entries may be added meanwhile, and the file closed: then it has no more.

        Other keys may have the same hash: the caller compares the keys. Times are precise to a second, with a tolerance
        of two more for the file whose first entry is dated by its predecessor; so nothing within the range is omitted.
        """
        if self.is_empty or end < self.begin_timestamp - 2000 or begin > self.end_timestamp + 1000:
            return 0
        number = int(self._slots[key_hash % self.slot_count])
        for looked in range(looked_max):
            if looked and looked % LOOKED_PER_STEP == 0:
                yield None
            if not 0 < number < self.next_entry:
                return looked
            found, physical_offset, seconds, previous = ENTRY.unpack_from(
                self._view, self._entries_position + ENTRY_SIZE * number
            )
            if found == key_hash and seconds >= 0:
                stored = self.begin_timestamp + seconds * 1000
                if begin - 1000 <= stored <= end + 2000 or seconds == 0:
                    yield physical_offset
            if previous >= number:
                return looked + 1  # damaged: the chain has a loop
            number = previous
        return looked_max

    def synced_before(self, timestamp: int) -> int:
        """Physical offset of the first entry that may be younger than `timestamp`; 0 if that is the first of all."""
        entries = self._entries[1 : self.next_entry]
        if not len(entries) or self.begin_timestamp > timestamp:
            return 0
        # Times are truncated to seconds, so the entry may be up to a second younger.
        young = self.begin_timestamp + entries["seconds"].astype(np.int64) * 1000 + 1000 > timestamp
        return int(entries["physical_offset"][int(young.argmax())]) if young.any() else self.end_offset

    def last_before(self, end: int) -> tuple[int, bool]:
        """The physical offset of the last entry of a record before `end`, -1 if there is none; and whether no later
        entry of such a record is missing.

        Entries before `end` were synced together with a header that counts them. If a counted entry is out of order, or
        an uncounted one follows, something was lost.
        """
        entries = self._entries[1 : self.next_entry]
        count = self._count_before(end)
        last = int(entries["physical_offset"][count - 1]) if count else -1
        if 1 + count == self.entry_count:
            return last, True
        following = self._entries[1 + count]
        offset = int(following["physical_offset"])
        if count < len(entries):
            return last, offset >= end
        # Entries that a killed process had begun to add are at or after `end`, or still zeros.
        return last, not (max(last, self.begin_offset) <= offset < end and (offset or int(following["key_hash"])))

    def truncate(self, end: int) -> None:
        """Drop the entries of records at or after physical offset `end`, and rebuild the slots."""
        self._reserve(self.next_entry)
        entries = self._entries[1 : self.next_entry]
        first = self._count_before(end)
        kept = entries[:first].copy()
        self._slots[:] = 0
        self._entries[1 + first : self.next_entry] = np.zeros((), ENTRY_DTYPE)
        self.next_entry = 1
        self.slots_used = 0
        if first:
            begin = self.begin_timestamp
            last_timestamp = min(self.end_timestamp, begin + int(kept["seconds"][-1]) * 1000)
            self._chain(kept["key_hash"].astype(np.int64))  # kept entries stay in place and are never half written
            self.end_offset = int(kept["physical_offset"][-1])
            self.end_timestamp = last_timestamp
            self.begin_offset = int(kept["physical_offset"][0])
        else:
            self.begin_timestamp = self.end_timestamp = self.begin_offset = self.end_offset = 0
        self._store_header()
        self.dirty = True

    @property
    def mapping(self) -> memoryview:
        """The whole file. Releasing the last reference also unmaps the file, which takes a while."""
        return self._view

    def close(self) -> None:
        self.file.close()
        self.next_entry = 1  # for a search that has not ended yet
        # The arrays are views of the mapping; dropping them releases it.
        del self._slots, self._entries, self._view

    def _count_before(self, end: int) -> int:
        """The number of entries that are in order and belong to records before `end`.

        Entries are in log order. After a crash unsynced ones may have any content, so the first wrong one ends them.
        """
        entries = self._entries[1 : self.next_entry]
        offsets = entries["physical_offset"].astype(np.int64)
        wrong = (offsets >= end) | (offsets < 0) | (entries["key_hash"] < 0)
        wrong[1:] |= offsets[1:] < offsets[:-1]
        return int(wrong.argmax()) if wrong.any() else len(entries)

    def _reserve(self, end: int) -> None:
        if end > self._reserved:
            target = min(self.entry_count, max(end, self._reserved + _RESERVE_ENTRIES))
            # An existing file may have holes, RocketMQ's files in their slots too. Writing into a hole kills the
            # process if the disk is full.
            begin = self._entries_position + ENTRY_SIZE * self._reserved if self._reserved else 0
            self.file.reserve(begin, self._entries_position + ENTRY_SIZE * target - begin)
            self._reserved = target

    def _put_one(self, key_hash: int, physical_offset: int, timestamp: int) -> None:
        slot_position = HEADER_SIZE + SLOT_SIZE * (key_hash % self.slot_count)
        (previous,) = _SLOT.unpack_from(self._view, slot_position)
        if not 0 < previous < self.next_entry:
            previous = 0
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = min(max((timestamp - self.begin_timestamp) // 1000, 0), _SECONDS_MAX)
        position = self._entries_position + ENTRY_SIZE * self.next_entry
        self._view[position : position + ENTRY_SIZE] = ENTRY.pack(key_hash, physical_offset, seconds, previous)
        self._view[slot_position : slot_position + SLOT_SIZE] = _SLOT.pack(self.next_entry)
        if self.next_entry == 1:
            self.begin_offset, self.begin_timestamp = physical_offset, timestamp
        if not previous:
            self.slots_used += 1
        self.next_entry += 1
        self.end_offset, self.end_timestamp = physical_offset, timestamp

    def _put_many(self, key_hashes: IntArray, physical_offsets: IntArray, timestamps: IntArray) -> None:
        if self.next_entry == 1:  # its time is relative to the predecessor's end, the others' times to its own
            self._put_one(int(key_hashes[0]), int(physical_offsets[0]), int(timestamps[0]))
            key_hashes, physical_offsets, timestamps = key_hashes[1:], physical_offsets[1:], timestamps[1:]
            if not len(key_hashes):
                return
        if self.begin_timestamp > 0:
            seconds = np.minimum(np.maximum((timestamps - self.begin_timestamp) // 1000, 0), _SECONDS_MAX)
        else:
            seconds = np.zeros(len(timestamps), np.int64)
        self._link(key_hashes, physical_offsets, seconds)
        self.end_offset, self.end_timestamp = int(physical_offsets[-1]), int(timestamps[-1])

    def _link(self, key_hashes: IntArray, physical_offsets: npt.ArrayLike, seconds: npt.ArrayLike) -> None:
        """Append entries and link them."""
        entries = self._entries[self.next_entry : self.next_entry + len(key_hashes)]
        entries["key_hash"] = key_hashes
        entries["physical_offset"] = physical_offsets
        entries["seconds"] = seconds
        self._chain(key_hashes)

    def _chain(self, key_hashes: IntArray) -> None:
        """Link the next entries: within a slot each points to the one before it, the first to the slot's newest."""
        first, count = self.next_entry, len(key_hashes)
        slots = key_hashes % self.slot_count
        numbers = np.arange(first, first + count)
        previous = self._slots[slots].astype(np.int64)
        previous[(previous < 0) | (previous >= first)] = 0
        new = previous == 0
        # Nearly all slots get one entry. Of slots with several entries this keeps one: an entry that finds another than
        # itself shares its slot.
        self._slots[slots] = numbers
        kept = self._slots[slots]
        shares = kept != numbers
        if np.count_nonzero(shares):
            shares[kept[shares] - first] = True
            rows = shares.nonzero()[0]
            rows = rows[np.argsort(slots[rows], kind="stable")]
            follows = np.append(slots[rows[1:]] == slots[rows[:-1]], False)
            later = rows[1:][follows[:-1]]
            previous[later] = numbers[rows[follows]]
            new[later] = False
            last = rows[~follows]
            self._slots[slots[last]] = numbers[last]
        self._entries["previous"][first : first + count] = previous
        self.slots_used += int(np.count_nonzero(new))
        self.next_entry += count

    def _load_header(self) -> None:
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            next_entry,
        ) = HEADER.unpack_from(self._view)
        self.next_entry = min(max(next_entry, 1), self.entry_count)

    def _store_header(self) -> None:
        self._view[:HEADER_SIZE] = HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.next_entry,
        )


class IndexService:
    """The index files of a store, oldest first. Entries are added in log order, each record once."""

    def __init__(self, file_system: FileSystem, directory: Path, slot_count: int, entry_count: int) -> None:
        self._file_system = file_system
        self._directory = directory
        self._slot_count = slot_count
        self._entry_count = entry_count
        self.files: list[IndexFile] = []

    def load(self) -> None:
        """Open the files. Raises StoreDirectoryError for a file that is no index file or has other sizes."""
        expected = file_size(self._slot_count, self._entry_count)
        for name in self._file_system.list(self._directory):
            path = self._directory / name
            if not is_index_name(name):
                raise StoreDirectoryError(f"{path}: not a file of this store; move it away")
            size = self._file_system.size(path)
            if size != expected:
                # A crash left a new file without its size.
                if size == 0:
                    self._file_system.unlink(path)
                    continue
                raise StoreDirectoryError(
                    f"{path}: {size} bytes, but store.index_slot_count {self._slot_count} and "
                    f"store.index_entry_count {self._entry_count} make {expected}; configure the counts with which the "
                    "store was written; if no other file has another size, this one is damaged: move it away, and make "
                    "the index again with `aerobee store rebuild`"
                )
            file = self._file_system.open(path)
            self.files.append(IndexFile(file, self._slot_count, self._entry_count, new=False))

    @property
    def last_offset(self) -> int:
        """The physical offset of the last record that was indexed; -1 if there is none."""
        for file in reversed(self.files):
            if not file.is_empty:
                return file.end_offset
        return -1

    @property
    def last_timestamp(self) -> int:
        """The store time of that record; 0 if there is none."""
        for file in reversed(self.files):
            if not file.is_empty:
                return file.end_timestamp
        return 0

    def put(self, key_hashes: Integers, physical_offsets: Integers, timestamps: Integers, now_ms: int) -> None:
        """Add entries of records after `last_offset`, in log order."""
        begin = 0
        while begin < len(key_hashes):
            if not self.files or self.files[-1].is_full:
                self._create(now_ms)
            if begin:
                begin += self.files[-1].put(key_hashes[begin:], physical_offsets[begin:], timestamps[begin:])
            else:
                begin += self.files[-1].put(key_hashes, physical_offsets, timestamps)

    def find(self, key_hash: int, begin: int, end: int) -> Iterator[int | None]:
        """The physical offsets of entries with this hash, newest first, of at most LOOKED_MAX entries in its slots.

        Yields None now and then, at the latest after LOOKED_PER_STEP entries of one file: an event loop may do
        something else. The index may change between any two of these.
        """
        left = LOOKED_MAX
        for file in self.files[::-1]:
            left -= yield from file.find(key_hash, begin, end, left)
            if left <= 0:
                return

    def truncate(self, end: int) -> None:
        """Drop everything about records at or after physical offset `end`."""
        while self.files and self.files[-1].end_offset >= end:
            file = self.files[-1]
            if file.is_empty or file.begin_offset >= end:
                self._remove(file)
            else:
                file.truncate(end)
                break

    def complete_before(self, end: int) -> int:
        """The physical offset before which the index is complete: `end`, or less if a file has lost entries."""
        is_sound = True
        for file in reversed(self.files):
            last, file_is_sound = file.last_before(end)
            is_sound &= file_is_sound
            if not is_sound and last >= 0:
                end = last  # other keys of that record may be missing; it is added again with all of them
                last, _ = file.last_before(end)
            if last >= 0:
                break
        return end

    def truncate_unsynced(self, end: int) -> None:
        """Drop everything about records at or after physical offset `end`, and treat the rest as unsynced.

        Header, slots and entries may be of different ages, so the last file is always relinked; and the remaining files
        are synced again, because the process that wrote them may have died before a sync.
        """
        while self.files:
            file = self.files[-1]
            last, _ = file.last_before(end)
            if last >= 0:
                file.truncate(end)
                break
            self._remove(file)
        for file in self.files:
            file.dirty = True
            file.file.unsynced_levels = _DIRECTORY_LEVELS

    def release_expired(self, min_physical_offset: int) -> list[IndexFile]:
        """Remove the leading files whose records are all gone from the log from the list, never the last one.

        The caller removes them from the disk and then closes them.
        """
        count = 0
        while count < len(self.files) - 1 and self.files[count].end_offset < min_physical_offset:
            count += 1
        released, self.files[:count] = self.files[:count], []
        return released

    def take_dirty(self) -> list[File]:
        """The files changed since the last call, to be synced in a disk thread."""
        dirty = [file for file in self.files if file.dirty]
        for file in dirty:
            file.dirty = False
        return [file.file for file in dirty]

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()

    def _create(self, now_ms: int) -> None:
        previous = self.files[-1] if self.files else None
        name = _name(now_ms)
        if previous is not None and name <= previous.path.name:
            name = name_after(previous.path.name)
        created = self._create_file(self._directory / name)
        file = IndexFile(created, self._slot_count, self._entry_count, new=True)
        if previous is not None:
            file.continue_from(previous.end_timestamp, previous.end_offset)
        self.files.append(file)

    def _create_file(self, path: Path) -> File:
        """Create a file, with a few attempts; an index that cannot be written stops the store. OSError.

        Its name and directory become durable with the first sync of the file, in a disk thread: the event loop would
        wait for the disk here. A crash before that loses only entries that recovery adds again.
        """
        self._file_system.make_directory(self._directory, durable=False)
        for left in reversed(range(_CREATION_TRIES)):
            try:
                created = self._file_system.create(path, file_size(self._slot_count, self._entry_count))
                break
            except OSError as error:
                if not left:
                    raise
                _log.warning("index file not created, trying again path=%s cause=%s", path, error)
                with suppress(FileNotFoundError):
                    self._file_system.unlink(path)
                time.sleep(_CREATION_PAUSE_SECONDS)
        created.unsynced_levels = _DIRECTORY_LEVELS
        return created

    def _remove(self, file: IndexFile) -> None:
        self.files.remove(file)
        path = file.path
        file.close()
        self._file_system.unlink(path)
        self._file_system.sync_directory(self._directory)


def is_index_name(name: str) -> bool:
    """Whether a file of the index may have this name: a time of 17 digits."""
    return len(name) == 17 and decimal(name) is not None


def _name(now_ms: int) -> str:
    moment = datetime.fromtimestamp(now_ms // 1000).astimezone()
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


def name_after(name: str) -> str:
    """The next name in order, even for two files made within a millisecond or a clock that went back."""
    return f"{int(name) + 1:017d}"
