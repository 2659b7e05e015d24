"""For tests of software on a store: a disk in memory that can crash, fail and run full, and a manual clock.

    disk = MemoryFileSystem()
    store = MessageStore.open(StoreConfig.tiny(Path("/store")), file_system=disk)
    ...
    store = MessageStore.open(StoreConfig.tiny(Path("/store")), file_system=disk.crash(seed=7))

The disk tracks which data was written and which was synced. `crash` returns a disk in a state that a power cut at this
moment could leave: all synced data, and any part of the rest. It loses as much as POSIX allows:

- each 512-byte sector independently keeps any version that was written since the last sync; stores through a map count
  as written at the next operation of the disk;
- a new file may have any size that it had since, and a name is durable only after its directory was synced;
- names of different files are lost independently, or all those that changed after some moment;
- a sync covers data written before it began, not data written while it runs;
- after a failed sync the pages count as clean: the next sync succeeds and does not write them.
"""

from __future__ import annotations

import errno as error_numbers
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from aerobee_store.disk.file_system import Buffer, DiskUsage, File, Lock
from aerobee_store.testing.memory_inodes import (
    BLOCK_SIZE,
    SECTOR_SIZE,
    Directory,
    HoleWrittenError,
    Inode,
    NameChange,
    Node,
    has_data,
    tree_after_crash,
    tree_after_kill,
)

__all__ = ["BLOCK_SIZE", "CHANGES", "SECTOR_SIZE", "HoleWrittenError", "ManualClock", "MemoryFile", "MemoryFileSystem"]
__all__ += ["Operation"]

CHANGES: Final = frozenset(
    {"create", "write", "reserve", "sync", "make_directory", "sync_directory", "remove_directory", "rename", "link"}
    | {"unlink", "lock", "sync_file_system"}
)
"""The operations that change the disk: between any two of them a crash can leave a new state."""


class ManualClock:
    """A clock that moves only when it is advanced. `now_ms` is in Unix milliseconds."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock, ahead or back; the monotonic clock does not change."""
        self._now_ms += round(seconds * 1000)


class Operation(NamedTuple):
    """One call on the disk. `number` counts from 1."""

    number: int
    name: str
    path: Path


@dataclass(slots=True)
class _Fault:
    operation: str | None
    left: int
    error_number: int
    for_ever: bool


class MemoryFile:
    """An open file of a `MemoryFileSystem`."""

    __slots__ = ("_closed", "_disk", "_evictable", "_inode", "path", "unsynced_levels")

    def __init__(self, disk: MemoryFileSystem, path: Path, inode: Inode, *, evictable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._evictable = evictable
        self._closed = 0
        self.unsynced_levels = 0

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self._disk.write_inode(self._inode, self.path, b"".join(buffers), position)

    def read(self, size: int, position: int) -> bytes:
        self._disk.begin("read", self.path)
        return bytes(self._inode.data[position : position + size])

    def map(self, *, writable: bool = False) -> memoryview:
        self._disk.begin("map", self.path)
        view = memoryview(self._inode.data)
        if not writable:
            return view.toreadonly()
        self._disk.note_map(self._inode)
        return view

    def reserve(self, position: int, size: int) -> None:
        assert size > 0, "posix_fallocate refuses it"
        assert position + size <= len(self._inode.data), "posix_fallocate would make the file longer"
        self._disk.begin("reserve", self.path)
        self._disk.take_room(self._inode, position, size)

    def zero(self, position: int, size: int) -> None:
        self.write([bytes(size)], position)

    def data_end(self, position: int) -> int:
        """Counted in blocks: written blocks, and blocks of a map that are not all zeros."""
        self._disk.begin("data_end", self.path)
        data = self._inode.data
        last = -(-len(data) // BLOCK_SIZE)
        for block in range(last - 1, position // BLOCK_SIZE - 1, -1):
            if has_data(data, block):
                return max(position, min(len(data), (block + 1) * BLOCK_SIZE))
        return position

    def sync(self) -> None:
        inode: Inode | None = self._inode
        if self._evictable:  # the real file system opens the path again
            inode = self._disk.find_inode(self.path)
            if inode is None:
                return
        assert inode is not None
        closed = self._closed
        self._disk.sync_inode(inode, self.path)
        for directory in self.path.parents[: self.unsynced_levels]:
            with suppress(FileNotFoundError):  # removed in the meantime
                self._disk.sync_directory(directory)
        self.unsynced_levels = 0
        if self._closed != closed and not self._evictable:
            raise _os_error(error_numbers.EBADF, self.path)

    def close(self) -> None:
        """Releases nothing, and the next use opens it again. Maps stay readable. A running sync fails."""
        self._closed += 1


class _MemoryLock:
    def __init__(self, disk: MemoryFileSystem, path: Path) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)

    def sync_together(self, files: Sequence[File]) -> bool:
        if self._disk.together_min is None or len(files) < self._disk.together_min:
            return False
        self._disk.sync_file_system(self._path)
        for file in files:
            file.unsynced_levels = 0
        return True


class MemoryFileSystem:
    """A disk in memory, described in the module's docstring. Thread-safe.

    `capacity`: bytes, None for a disk that never runs full. `clock`: for modification times. `together_min`: the number
    of files from which its lock syncs them together; None: never. `before_operation`: called before each operation,
    outside of the disk's lock; it may read the disk, call `crash`, block, or raise. `log`: all operations so far.
    """

    def __init__(
        self, *, capacity: int | None = None, clock: ManualClock | None = None, together_min: int | None = None
    ) -> None:
        self.capacity = capacity
        self.before_operation: Callable[[Operation], None] | None = None
        self.log: list[Operation] = []
        self.locked: set[Path] = set()
        self.may_lock_memory = True
        self.open_elsewhere: set[Path] = set()
        """Files that another process has open for writing."""
        self.has_attributes = True
        self.attributes: dict[tuple[Path, str], bytes] = {}
        """Extended attributes, by path and name. They survive every crash."""
        self.together_min = together_min
        self.boots = 1
        """The number of boots of the machine: one more after each `crash`."""
        self._clock = clock or ManualClock()
        self._root = Directory()
        self._name_changes: list[NameChange] = []
        self._used_blocks = 0
        self._sequence = 0
        self._faults: list[_Fault] = []
        self._mapped: list[Inode] = []  # for writing
        self._mutex = threading.RLock()

    # --- crashes and failures ---------------------------------------------------------------------------------

    def crash(self, seed: int) -> MemoryFileSystem:
        """The disk as a power failure now could leave it. The same seed gives the same result; this disk is
        unchanged."""
        source = random.Random(seed)  # noqa: S311 - repeatable, not secret
        with self._mutex:
            self._note_stores()
            for path, inode in _files_below("", self._root):
                inode.check_holes(path)
            disk = self._successor(tree_after_crash(self._root, self._name_changes, source))
            disk.boots += 1
            return disk

    def kill(self) -> MemoryFileSystem:
        """The disk as the next process finds it after `kill -9`: everything written is there, durable or not."""
        with self._mutex:
            self._note_stores()
            root, changes = tree_after_kill(self._root, self._name_changes)
            disk = self._successor(root)
            disk._name_changes = changes
            return disk

    def fail_at(
        self, operation: str | None, n: int = 1, error_number: int = error_numbers.EIO, *, for_ever: bool = False
    ) -> None:
        """Make the n-th call of this operation from now on fail (None: of any); with `for_ever` also all later ones.

        A failing write writes its first half; a failing sync drops the pages.
        """
        self._faults.append(_Fault(operation, n, error_number, for_ever))

    def heal(self) -> None:
        """Undo `fail_at`."""
        self._faults.clear()

    @property
    def operations(self) -> int:
        """The number of operations so far."""
        return len(self.log)

    @property
    def used(self) -> int:
        """Bytes taken, by blocks."""
        return self._used_blocks * BLOCK_SIZE

    def files(self) -> Iterator[tuple[Path, Inode]]:
        """All files, by path."""
        return ((_path(path), inode) for path, inode in _files_below("", self._root))

    def contents(self) -> dict[Path, bytes]:
        """Every file with its current content."""
        with self._mutex:
            return {path: bytes(inode.data) for path, inode in self.files()}

    def damage(self, path: Path, position: int, data: bytes) -> None:
        """Change bytes silently, as a failing disk does: durable at once, and not an operation."""
        with self._mutex:
            inode = self._inode(path)
            inode.data[position : position + len(data)] = data
            durable = bytearray(inode.durable.ljust(len(inode.data), b"\0"))
            durable[position : position + len(data)] = data
            inode.durable = bytes(durable)

    def cut(self, path: Path, size: int) -> None:
        """Truncate a file silently."""
        with self._mutex:
            inode = self._inode(path)
            inode.settle(inode.data[:size])
            inode.history.clear()

    # --- the protocol `FileSystem` ----------------------------------------------------------------------------

    def open(self, path: Path, *, writable: bool = True, evictable: bool = False) -> File:
        self.begin("open", path)
        with self._mutex:
            return MemoryFile(self, path, self._inode(path), evictable=evictable)

    def create(self, path: Path, size: int, *, evictable: bool = False) -> File:
        self.begin("create", path)
        with self._mutex:
            directory = self._directory(path.parent)
            if path.name in directory.entries:
                raise _os_error(error_numbers.EEXIST, path)
            inode = Inode(size, self._clock.now_ms())
            self._set_name(directory, path.name, inode)
            return MemoryFile(self, path, inode, evictable=evictable)

    def list(self, directory: Path) -> list[str]:
        self.begin("list", directory)
        with self._mutex:
            entry = self._find(directory)
            if entry is None:
                return []
            if isinstance(entry, Inode):
                raise _os_error(error_numbers.ENOTDIR, directory)
            return sorted(entry.entries)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def is_directory(self, path: Path) -> bool:
        return isinstance(self._find(path), Directory)

    def size(self, path: Path) -> int:
        self.begin("size", path)
        with self._mutex:
            return len(self._inode(path).data)

    def modified_ms(self, path: Path) -> int:
        self.begin("modified_ms", path)
        with self._mutex:
            return self._inode(path).modified_ms

    def make_directory(self, path: Path, *, durable: bool = True) -> int:
        if self.is_directory(path):
            return 0
        made = self.make_directory(path.parent, durable=durable) if path.parent != path else 0
        self.begin("make_directory", path)
        with self._mutex:
            parent = self._directory(path.parent)
            if path.name in parent.entries:
                raise _os_error(error_numbers.EEXIST, path)
            self._set_name(parent, path.name, Directory())
        if durable:
            try:
                self.sync_directory(path.parent)
            except OSError:
                self.remove_directory(path)  # like the real file system
                raise
        return made + 1

    def sync_file_system(self, path: Path) -> None:
        """Make everything written before the call durable, file by file, and then all names (`syncfs`)."""
        with self._mutex:
            covered = self._name_changes.copy()
            files = list(self.files())
        self.begin("sync_file_system", path)
        for found, inode in files:
            self.sync_inode(inode, found)
        with self._mutex:
            for change in covered:
                if change in self._name_changes:
                    change.apply(change.directory.durable)
                    self._name_changes.remove(change)

    def sync_directory(self, path: Path) -> None:
        with self._mutex:
            covered = len(self._name_changes)
        self.begin("sync_directory", path)
        with self._mutex:
            directory = self._directory(path)
            kept = []
            for number, change in enumerate(self._name_changes):
                if number < covered and change.directory is directory:
                    change.apply(directory.durable)
                else:
                    kept.append(change)
            self._name_changes = kept

    def remove_directory(self, path: Path) -> None:
        try:
            self.begin("remove_directory", path)
        except OSError:
            return
        with self._mutex:
            entry = self._find(path)
            if isinstance(entry, Directory) and not entry.entries:
                self._set_name(self._directory(path.parent), path.name, None)

    def read_bytes(self, path: Path) -> bytes:
        self.begin("read", path)
        with self._mutex:
            return bytes(self._inode(path).data)

    def write_new(self, path: Path, data: bytes) -> None:
        self.begin("create", path)
        with self._mutex:
            directory = self._directory(path.parent)
            inode = directory.entries.get(path.name)
            if isinstance(inode, Directory):
                raise _os_error(error_numbers.EISDIR, path)
            if inode is None:
                inode = Inode(0, self._clock.now_ms())
                self._set_name(directory, path.name, inode)
            inode.sizes += [0, *range(SECTOR_SIZE, len(data), SECTOR_SIZE), len(data)]
            inode.data = bytearray(len(data))
            self._used_blocks -= len(inode.blocks)
            inode.blocks.clear()
        self.write_inode(inode, path, data, 0)
        self.sync_inode(inode, path)

    def rename(self, source: Path, target: Path) -> None:
        self.begin("rename", source)
        with self._mutex:
            directory, other = self._directory(source.parent), self._directory(target.parent)
            entry = directory.entries.get(source.name)
            if entry is None:
                raise _os_error(error_numbers.ENOENT, source)
            replaced = other.entries.get(target.name)
            self._set_name(other, target.name, entry)
            self._set_name(directory, source.name, None, joined=True)
            self._give_back(replaced)

    def link(self, source: Path, target: Path) -> None:
        self.begin("link", source)
        with self._mutex:
            other = self._directory(target.parent)
            if target.name in other.entries:
                raise _os_error(error_numbers.EEXIST, target)
            self._set_name(other, target.name, self._inode(source))

    def unlink(self, path: Path) -> None:
        self.begin("unlink", path)
        with self._mutex:
            inode = self._inode(path)
            self._set_name(self._directory(path.parent), path.name, None)
            self._give_back(inode)

    def lock(self, path: Path, content: bytes) -> Lock:
        self.begin("lock", path)
        with self._mutex:
            if path in self.locked:
                raise BlockingIOError(error_numbers.EAGAIN, "the lock is held by another process", str(path))
            directory = self._directory(path.parent)
            if path.name not in directory.entries:
                inode = Inode(len(content), self._clock.now_ms())
                inode.data[:] = content
                self._set_name(directory, path.name, inode)
            self.locked.add(path)
            return _MemoryLock(self, path)

    def lock_directory(self, path: Path) -> Lock | None:
        self.begin("lock", path)
        with self._mutex:
            if path in self.locked:
                raise BlockingIOError(error_numbers.EAGAIN, "the lock is held by another process", str(path))
            self.locked.add(path)
            return _MemoryLock(self, path)

    def is_open_for_writing(self, path: Path) -> bool:
        return path in self.open_elsewhere

    def attribute(self, path: Path, name: str) -> bytes | None:
        return self.attributes.get((path, name))

    def set_attribute(self, path: Path, name: str, value: bytes) -> None:
        if self.has_attributes:
            self.attributes[path, name] = value

    def usage(self, path: Path) -> DiskUsage:
        total = self.capacity if self.capacity is not None else 1 << 40
        return DiskUsage(total=total, available=max(0, total - self.used))

    def memory(self, size: int) -> memoryview:
        return memoryview(bytearray(b"\xee" * size))  # like a reused buffer: its content is undefined

    def lock_memory(self, memory: memoryview) -> None:
        if not self.may_lock_memory:
            raise OSError(error_numbers.ENOMEM, os.strerror(error_numbers.ENOMEM))

    def unlock_memory(self, memory: memoryview) -> None:
        """Nothing is ever swapped out."""

    def will_need(self, memory: memoryview) -> None:
        """Everything is in memory."""

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    # --- internals --------------------------------------------------------------------------------------------

    def begin(self, name: str, path: Path) -> None:
        """Count an operation, call the listener, and fail if requested."""
        with self._mutex:
            operation = Operation(len(self.log) + 1, name, path)
            self.log.append(operation)
            self._note_stores()
            failing = self._fault_of(name) if self._faults else None
        if self.before_operation is not None:
            self.before_operation(operation)
        if failing is not None:
            raise _os_error(failing.error_number, path)

    def _fault_of(self, name: str) -> _Fault | None:
        failing = None
        for fault in list(self._faults):
            if fault.operation not in (None, name):
                continue
            fault.left -= 1
            if fault.left <= 0 and failing is None:
                failing = fault
                if not fault.for_ever:
                    self._faults.remove(fault)
        return failing

    def write_inode(self, inode: Inode, path: Path, data: bytes, position: int) -> None:
        assert position + len(data) <= len(inode.data), f"{path}: a write after the end of the file"
        try:
            self.begin("write", path)
        except OSError:
            with self._mutex, suppress(OSError):
                self._store(inode, data[: len(data) // 2], position)
            raise
        with self._mutex:
            self._store(inode, data, position)

    def sync_inode(self, inode: Inode, path: Path) -> None:
        with self._mutex:
            inode.check_holes(str(path))
            self._note_stores()
            content, sequence, sizes = bytes(inode.data), self._sequence, len(inode.sizes)
        try:
            self.begin("sync", path)
        except OSError:
            with self._mutex:
                for number in range(-(-len(content) // SECTOR_SIZE)):
                    sector = content[number * SECTOR_SIZE : (number + 1) * SECTOR_SIZE]
                    if sector != inode.durable_sector(number):
                        inode.lost[number] = sector
            raise
        with self._mutex:
            if inode.lost:
                kept = bytearray(content)
                for number, sector in inode.lost.items():
                    begin = number * SECTOR_SIZE
                    if content[begin : begin + SECTOR_SIZE] == sector:
                        kept[begin : begin + len(sector)] = inode.durable_sector(number).ljust(len(sector), b"\0")
                content = bytes(kept)
            inode.durable = content
            inode.sizes = [len(content), *inode.sizes[sizes:]]
            inode.history = [item for item in inode.history if item[0] > sequence]

    def take_room(self, inode: Inode, position: int, size: int) -> None:
        """Allocate blocks for a part of a file, or raise ENOSPC with nothing changed."""
        with self._mutex:
            wanted = set(range(position // BLOCK_SIZE, -(-(position + size) // BLOCK_SIZE))) - inode.blocks
            if not wanted:
                return
            if self.capacity is not None and (self._used_blocks + len(wanted)) * BLOCK_SIZE > self.capacity:
                raise OSError(error_numbers.ENOSPC, os.strerror(error_numbers.ENOSPC))
            inode.blocks |= wanted
            self._used_blocks += len(wanted)

    def note_map(self, inode: Inode) -> None:
        """Check the stores of a file that was mapped for writing, from now on."""
        with self._mutex:
            if not inode.mapped:
                inode.mapped = True
                inode.seen = bytes(inode.data)
                self._mapped.append(inode)

    def find_inode(self, path: Path) -> Inode | None:
        """The file of this name, or None."""
        entry = self._find(path)
        return entry if isinstance(entry, Inode) else None

    def _note_stores(self) -> None:
        self._sequence += 1
        for inode in self._mapped:
            inode.note_stores(self._sequence)

    def _store(self, inode: Inode, data: bytes, position: int) -> None:
        if not data:
            return
        self.take_room(inode, position, len(data))
        inode.data[position : position + len(data)] = data
        inode.modified_ms = self._clock.now_ms()
        self._sequence += 1
        for number in range(position // SECTOR_SIZE, -(-(position + len(data)) // SECTOR_SIZE)):
            inode.history.append((self._sequence, number, inode.sector(number)))

    def _find(self, path: Path) -> Node | None:
        with self._mutex:
            entry: Node | None = self._root
            for name in path.parts[1:]:
                if not isinstance(entry, Directory):
                    return None
                entry = entry.entries.get(name)
            return entry

    def _inode(self, path: Path) -> Inode:
        entry = self._find(path)
        if entry is None:
            raise _os_error(error_numbers.ENOENT, path)
        if isinstance(entry, Directory):
            raise _os_error(error_numbers.EISDIR, path)
        return entry

    def _directory(self, path: Path) -> Directory:
        entry = self._find(path)
        if entry is None:
            raise _os_error(error_numbers.ENOENT, path)
        if isinstance(entry, Inode):
            raise _os_error(error_numbers.ENOTDIR, path)
        return entry

    def _set_name(self, directory: Directory, name: str, entry: Node | None, *, joined: bool = False) -> None:
        change = NameChange(directory, name, entry, joined)
        change.apply(directory.entries)
        self._name_changes.append(change)

    def _give_back(self, entry: Node | None) -> None:
        if isinstance(entry, Inode) and not _has_name(self._root, entry):
            self._used_blocks -= len(entry.blocks)

    def _successor(self, root: Directory) -> MemoryFileSystem:
        disk = MemoryFileSystem(capacity=self.capacity, clock=self._clock, together_min=self.together_min)
        disk._root = root
        disk.has_attributes, disk.attributes = self.has_attributes, self.attributes.copy()
        disk.boots = self.boots
        disk._sequence = self._sequence
        inodes = {id(inode): inode for _, inode in _files_below("", root)}  # a file may have several names
        disk._used_blocks = sum(len(inode.blocks) for inode in inodes.values())
        return disk


_path = lru_cache(maxsize=10_000)(Path)  # making one costs more than to compare what is in the file


def _files_below(prefix: str, directory: Directory) -> Iterator[tuple[str, Inode]]:
    """All files of a directory and below, by path. A `Path` for each would take a tenth of the time of a crash test."""
    for name, entry in sorted(directory.entries.items()):
        if isinstance(entry, Inode):
            yield f"{prefix}/{name}", entry
        else:
            yield from _files_below(f"{prefix}/{name}", entry)


def _has_name(directory: Directory, inode: Inode) -> bool:
    """Whether a file has a name in a directory or below."""
    return any(
        entry is inode or (isinstance(entry, Directory) and _has_name(entry, inode))
        for entry in directory.entries.values()
    )


def _os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
