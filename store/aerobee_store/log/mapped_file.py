"""Files of a fixed size that together hold one long sequence of bytes, each named by the offset of its first byte.

    directory/00000000000000000000    offsets        0 .. size
    directory/00000000001073741824    offsets     size .. 2*size

A segment of the commit log is a `MappedFile`: bytes are appended to a write buffer (*wrote*), moved to the page cache
by one gathered `pwritev` (*committed*), and made durable by `fdatasync` (*flushed*). Readers use one shared read-only
mapping, which is coherent with the page cache, up to *committed*. Measured with one 300-byte record per sync, this
gives 10.4k syncs/s against 7.4k for a mapping that is written and flushed, and 3 times as many at 64 KiB. Other write
modes are in write_modes.py.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from aerobee_store.disk.file_system import NO_ROOM, Buffer, File, FileSystem
from aerobee_store.errors import StoreDirectoryError

# A small append writes this many zeros after itself: the blocks of later data then exist, and their syncs need not
# commit file-system metadata. One sync in about 3,500 pays for it instead of every one.
_ZERO_AHEAD_SIZE = 1 << 20
# Appends above this size write no zeros, which would cost more than the metadata (measured with 200 KiB per commit: 85
# ns per record of 315).
_ZERO_AHEAD_BELOW = 64 << 10
# Disk space is allocated in steps of this size (fallocate), so that a full disk fails the append and never a write of
# stored bytes.
_RESERVE_SIZE = 16 << 20
_NAME_SIZE = 20


def file_name(start_offset: int) -> str:
    """The name of the file that begins at `start_offset`: 20 digits."""
    return f"{start_offset:0{_NAME_SIZE}d}"


def start_of(name: str) -> int | None:
    """The start offset of the file with this name; None if it is none of the store's names."""
    return int(name) if len(name) == _NAME_SIZE and name.isascii() and name.isdigit() else None


class MappedFile:
    """One segment of the commit log and its three positions, which are relative to its first byte."""

    __slots__ = (
        "_file",
        "_file_system",
        "_locked",
        "_pending",
        "_reserved",
        "_view",
        "_zeroed_ahead",
        "committed",
        "flushed",
        "path",
        "read_only",
        "size",
        "start_offset",
        "wrote",
    )

    def __init__(
        self, file_system: FileSystem, path: Path, start_offset: int, size: int, file: File | None = None
    ) -> None:
        self.path = path
        self.start_offset = start_offset
        self.size = size
        self.read_only = False
        self.wrote = self.committed = self.flushed = size
        self._file_system = file_system
        self._file = file
        self._view: memoryview | None = None
        self._locked: memoryview | None = None
        self._pending: list[Buffer] = []
        self._reserved = size
        self._zeroed_ahead = size

    @property
    def end_offset(self) -> int:
        return self.start_offset + self.size

    @property
    def reserved(self) -> int:
        """The position up to which disk space is allocated."""
        return self._reserved

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._file_system.open(self.path, writable=not self.read_only)
        return self._file

    @property
    def view(self) -> memoryview:
        """The whole file, read-only. A slice of it stays readable after the file is gone."""
        if self._view is None:
            self._view = self.file.map().toreadonly()
        return self._view

    def set_position(self, position: int) -> None:
        """Declare everything before `position` written and durable, and everything after it unused."""
        self.wrote = self.committed = self.flushed = position
        self._pending.clear()
        self._reserved = self._zeroed_ahead = position

    def reserve(self, end: int) -> None:
        """Allocate disk space for the bytes before `end`. Raises OSError (ENOSPC); nothing has changed then."""
        if end > self._reserved:
            target = min(self.size, max(end, self._reserved + _RESERVE_SIZE))
            try:
                self.file.reserve(self._reserved, target - self._reserved)
            except OSError as error:
                if target == end or error.errno not in NO_ROOM:
                    raise
                target = end  # the disk may still have space for exactly this
                self.file.reserve(self._reserved, target - self._reserved)
            self._reserved = target

    def reserve_all(self, end: int) -> None:
        """Allocate the minimum of disk space for the bytes before `end`, in a segment that is not written yet.
        OSError."""
        if end > self._reserved:
            self.file.reserve(self._reserved, end - self._reserved)
            self._reserved = end

    def warm(self, end: int) -> None:
        """Write zeros up to `end`, in a segment that is not written yet, so that blocks and pages exist. OSError."""
        assert self.wrote == 0
        assert end <= self._reserved
        self.file.zero(self._zeroed_ahead, end - self._zeroed_ahead)
        self._zeroed_ahead = end

    @property
    def is_locked(self) -> bool:
        """Whether `lock_in_memory` was called."""
        return self._locked is not None

    def lock_in_memory(self) -> None:
        """Prevent the pages of the file from being swapped out. OSError if not permitted."""
        self._file_system.will_need(self.view)
        self._file_system.lock_memory(self.view)
        self._locked = self.view

    def unlock_in_memory(self) -> None:
        """Undo `lock_in_memory`."""
        locked, self._locked = self._locked, None
        if locked is not None:
            self._file_system.unlock_memory(locked)

    def begin_writing(self, *, wait: bool = True) -> None:
        """Prepare for `append`; repeated calls do nothing. Gathered writes need no preparation.

        Raises OSError, and StoreBusyError, unless `wait` is false, for resources that other modes may have to wait for.
        """

    @property
    def is_mapped(self) -> bool:
        """Whether the file is in the memory of the process."""
        return self._view is not None

    def end_writing(self) -> None:
        """Release the resources of `begin_writing`: the segment is full and committed, or closed."""

    def append(self, data: Buffer, *, at_once: bool) -> None:
        """Put bytes into the write buffer; they must fit (see `reserve`).

        `at_once`: a write mode may commit them now, because they are one record, and nothing before it waits for a
        commit. Ignored by gathered writes.
        """
        assert self.wrote + len(data) <= self._reserved
        self._pending.append(data)
        self.wrote += len(data)

    def fill_up(self, blank: Buffer, *, at_once: bool) -> None:
        """Append the blank that ends a full segment; bytes after it stay unchanged."""
        self.append(blank, at_once=at_once)
        self.wrote = self.size

    def commit(self, *, zero_ahead: bool) -> None:
        """Move the write buffer to the page cache with one gathered write."""
        if not self._pending:
            return
        pending = self._pending
        if zero_ahead and (ahead := self._zeros_ahead(self.wrote)):
            pending.append(ahead)
        self.file.write(pending, self.committed)
        self.committed = self.wrote
        self._pending = []

    def commit_in_thread(self, position: int, *, zero_ahead: bool) -> None:
        """Move bytes before `position` to the page cache, in a thread, while the loop appends. See write_modes.py."""

    @property
    def commits_in_thread(self) -> bool:
        """Whether this segment is committed by `commit_in_thread`."""
        return False

    def _zeros_ahead(self, position: int) -> bytes:
        """The zeros to write after a small commit up to `position`, unless zeros are there already."""
        ahead = b""
        if position > self._zeroed_ahead and position - self.committed < _ZERO_AHEAD_BELOW:
            ahead = bytes(max(0, min(_ZERO_AHEAD_SIZE, self._reserved - position)))
            self._zeroed_ahead = position + len(ahead)
        return ahead

    def sync(self) -> None:
        """Make the committed bytes durable, in the disk thread. The caller moves `flushed`."""
        self.file.sync()

    def close(self) -> None:
        self.end_writing()
        if self._file is not None:
            self._file.close()
            self._file = None
        self._view = self._locked = None


class MakeSegment(Protocol):
    """Makes a segment of one write mode: a class of segments, or a factory."""

    def __call__(
        self, file_system: FileSystem, path: Path, start_offset: int, size: int, file: File | None = None
    ) -> MappedFile: ...


class FileRun:
    """The names of a run of files: the directory, the size of each file, and their start offsets in order."""

    __slots__ = ("directory", "file_size", "file_system", "full", "had_empty")

    def __init__(self, file_system: FileSystem, directory: Path, file_size: int) -> None:
        self.file_system = file_system
        self.directory = directory
        self.file_size = file_size
        self.had_empty = False  # the last file was empty when they were loaded
        self.full: frozenset[Path] = frozenset()
        """Writable directories that get no new file while there is another one."""

    def load(self) -> list[int]:
        """The start offsets of the existing files, in order, as `find`.

        Raises StoreDirectoryError for a file with an invalid name or size: the directory belongs to another program, or
        the configured size is wrong.
        """
        starts = self.find()
        for start in starts:
            size = self.file_system.size(self.path(start))
            if size != self.file_size:
                raise StoreDirectoryError(
                    f"{self.path(start)}: {size} bytes, but the configured file size is {self.file_size}; "
                    f"configure the size with which the store was written; if no other file has another size, this one "
                    f"is damaged: restore it from a backup, or move it away, which `aerobee store verify` judges"
                )
            if start % self.file_size:
                raise StoreDirectoryError(
                    f"{self.path(start)}: its start is not a multiple of the file size {self.file_size}; move it away"
                )
        return starts

    def find(self) -> list[int]:
        """The start offsets of the existing files, in order, whatever their sizes. An empty last file, left by a crash
        while it was made, is removed.

        Raises StoreDirectoryError for a file with an invalid name: the directory belongs to another program.
        """
        starts = []
        for directory in self.directories:
            for name in self.file_system.list(directory):
                if (start := start_of(name)) is None:
                    raise StoreDirectoryError(f"{directory / name}: not a file of this store; move it away")
                starts.append(start)
                self._found(directory, start)
        starts.sort()
        self.had_empty = bool(starts) and self.file_system.size(self.path(starts[-1])) == 0
        if self.had_empty:
            self.remove([starts.pop()])
        return starts

    @property
    def directories(self) -> Sequence[Path]:
        """The directories to search for files."""
        return (self.directory,)

    @property
    def writable_directories(self) -> Sequence[Path]:
        """The directories for new files."""
        return (self.directory,)

    def is_read_only(self, start_offset: int) -> bool:
        """Whether this file is in a read-only directory."""
        return False

    def path(self, start_offset: int) -> Path:
        """The path of the file, existing or to be made."""
        return self.directory / file_name(start_offset)

    def create(self, start_offset: int, *, evictable: bool = False) -> File:
        """Create the file that begins at `start_offset`, durable with name and size. OSError: it does not exist."""
        path = self.path(start_offset)
        self.file_system.make_directory(path.parent)
        file = self.file_system.create(path, self.file_size, evictable=evictable)
        try:
            # Otherwise a crash could leave two files without their size, of which only the last can be told from
            # damage.
            file.sync()
            self.file_system.sync_directory(path.parent)
        except OSError:
            file.close()
            with suppress(OSError):
                self.file_system.unlink(path)
            raise
        return file

    def create_unsynced(self, start_offset: int) -> File:
        """Create an evictable file, durable with name and size once it is synced. OSError: it does not exist.

        The file before it must be durable: of two files without their size, only the last can be told from damage.
        """
        path = self.path(start_offset)
        made = self.file_system.make_directory(path.parent, durable=False)
        file = self.file_system.create(path, self.file_size, evictable=True)
        file.unsynced_levels = 1 + made
        return file

    def remove(self, starts: Sequence[int]) -> None:
        """Remove files, last first, so that a crash in between leaves no gap."""
        self.before_removal(starts)
        gone: dict[int, Path] = {}
        try:
            for start in sorted(starts, reverse=True):
                path = self.path(start)
                self.file_system.unlink(path)
                gone[start] = path.parent
            for directory in dict.fromkeys(gone.values()):
                self.file_system.sync_directory(directory)
        finally:
            self.forget(gone)

    def before_removal(self, starts: Collection[int]) -> None:
        """To be called before others remove files; blocking. OSError."""

    def leave_out(self, path: Path) -> bool:
        """Make no file in this directory for a while. False if there is no other directory."""
        return False

    def forget(self, starts: Collection[int]) -> None:
        """Note that these files are gone."""

    def _found(self, directory: Path, start_offset: int) -> None:
        """Called for each file that `load` finds."""


class MappedFileQueue:
    """The segments of the commit log, oldest first."""

    def __init__(self, run: FileRun, make: MakeSegment = MappedFile) -> None:
        self.run = run
        self._make = make
        self.files: list[MappedFile] = [self._mapped(start) for start in run.load()]

    def __iter__(self) -> Iterator[MappedFile]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def last(self) -> MappedFile | None:
        return self.files[-1] if self.files else None

    @property
    def min_offset(self) -> int:
        return self.files[0].start_offset if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """The file that contains `offset`, or None: deleted, in a gap, or not created yet."""
        if not self.files:
            return None
        # The usual case, with no file missing in between, needs one division.
        index = (offset - self.files[0].start_offset) // self.run.file_size
        if 0 <= index < len(self.files):
            file = self.files[index]
            if file.start_offset <= offset < file.end_offset:
                return file
        for file in self.files:
            if file.start_offset <= offset < file.end_offset:
                return file
        return None

    def append_new(self, start_offset: int) -> MappedFile:
        """Create the next file, empty."""
        file = self.make(start_offset)
        self.add(file)
        return file

    def make(self, start_offset: int) -> MappedFile:
        """Create a file without adding it to the run (see `add`); in any thread. OSError: it does not exist."""
        file = self._mapped(start_offset, self.run.create(start_offset))
        file.set_position(0)
        return file

    def add(self, file: MappedFile) -> None:
        """Add a file to the run."""
        insort(self.files, file, key=lambda other: other.start_offset)

    def discard(self, files: Sequence[MappedFile]) -> None:
        """Close and unlink files that are not in the run; in any thread. OSError."""
        for file in files:
            file.close()
        self.run.remove([file.start_offset for file in files])

    def release(self, files: Sequence[MappedFile]) -> None:
        """Forget files without closing them, because a thread may still use a descriptor."""
        for file in files:
            self.files.remove(file)
        self.run.forget([file.start_offset for file in files])

    def drop(self, files: Sequence[MappedFile]) -> None:
        """Close files and forget them. Readers keep the bytes until the last view is gone."""
        self.release(files)
        for file in files:
            file.close()

    def remove(self, files: list[MappedFile]) -> None:
        """Unlink files and forget them."""
        self.run.remove([file.start_offset for file in files])
        self.drop(files)

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _mapped(self, start: int, file: File | None = None) -> MappedFile:
        mapped = self._make(self.run.file_system, self.run.path(start), start, self.run.file_size, file)
        mapped.read_only = self.run.is_read_only(start)
        return mapped
