"""The only module that touches `os` and `mmap`: the disk as a store uses it, and its real implementation.

The seam has two implementations: `DiskFileSystem` here, and `aerobee_store.testing.MemoryFileSystem`, which can crash,
tear writes and run full. Every call is synchronous; blocking calls are made from the store's disk threads. Errors are
`OSError` as reported by the kernel; callers decide what they mean.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import re
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from aerobee_store.deferred import deferred

if TYPE_CHECKING:
    import numpy as np
else:
    np = deferred("numpy")


Buffer = bytes | bytearray | memoryview
_Result = TypeVar("_Result")
_P = ParamSpec("_P")

# Errors that mean no space: a full disk, a quota, or the file size limit of the process.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# The share of the process's descriptors for evictable files; the rest is for segments, tables and connections. Further
# files are opened when needed, and another one is closed: 8 us for each queue with new messages per flush, and for each
# read of a queue that was not written recently.
_OPEN_FILES_SHARE = 0.5
# From how many files on the whole file system is synced at once. Syncing 5,000 files with a few units each took 250 to
# 1,000 us per file one by one, and 20 to 40 us together. With few files, other dirty data on the file system may take
# longer than they do.
_TOGETHER_MIN = 256
# File systems whose `syncfs` reports every failed write-back since the descriptor was opened (since Linux 5.8). Others,
# including overlays, may report nothing.
_SYNCFS_REPORTS = frozenset({0xEF53, 0x58465342, 0x9123683E})
_WRITE_VECTOR_MAX = 1024  # IOV_MAX on Linux
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STATFS_SIZE = 256  # struct statfs takes 120 bytes on 64-bit Linux
# `is_locked` holds the lock of the directory for a moment; an attempt to lock it waits that long.
_LOCK_ATTEMPTS = 5
_LOCK_PAUSE_SECONDS = 0.05
_c_library = ctypes.CDLL(None, use_errno=True)
_limit_lock = threading.Lock()


class InDiskThread(Protocol):
    """Runs what blocks beside the event loop: `MessageStore.in_disk_thread`."""

    def __call__(self, function: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs) -> Awaitable[_Result]: ...


class DiskUsage(Struct, frozen=True):
    """Usage of the partition that holds a path, in bytes, as `df` and RocketMQ count it.

    Blocks reserved for root are neither used nor available: `total` is the sum of those two, not the disk's size.
    """

    total: int
    available: int

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def ratio(self) -> float:
        return self.used / self.total if self.total else 1.0


class File(Protocol):
    """One open file of fixed size.

    `unsynced_levels`: how many of the directories above it, beginning with its own, have entries on its path that may
    not be durable. The next sync of the file syncs them too.
    """

    path: Path
    unsynced_levels: int

    @property
    def size(self) -> int: ...

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers one after the other, beginning at `position`."""

    def read(self, size: int, position: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""

    def map(self, *, writable: bool = False) -> memoryview:
        """The whole file as shared memory, coherent with `write`. Readable even after `close` and unlink."""

    def reserve(self, position: int, size: int) -> None:
        """Allocate disk space for these bytes; raises ENOSPC now rather than on the write."""

    def zero(self, position: int, size: int) -> None:
        """Make these bytes read as zeros."""

    def data_end(self, position: int) -> int:
        """The end of the last data after `position`; only a hole follows. `position` if there is no data."""

    def sync(self) -> None:
        """Return when the data is on the disk (`fdatasync`), and the directory entry if it was not durable."""

    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive lock that is released when the process dies."""

    def release(self) -> None: ...

    def sync_together(self, files: Sequence[File]) -> bool:
        """Sync the whole file system of the lock if these files are many enough that this is faster.

        Returns False, with nothing done, if it is not faster, might not report errors, or not all files are on that
        file system. OSError may be about any write by any program since the lock was taken.
        """


class FileSystem(Protocol):
    """A disk."""

    def open(self, path: Path, *, writable: bool = True, evictable: bool = False) -> File:
        """Open a file. The descriptor of an `evictable` file may be closed while it is not in use."""

    def create(self, path: Path, size: int, *, evictable: bool = False) -> File:
        """Create a sparse file of `size` bytes that read as zeros."""

    def list(self, directory: Path) -> list[str]: ...
    def exists(self, path: Path) -> bool: ...
    def is_directory(self, path: Path) -> bool: ...
    def size(self, path: Path) -> int: ...
    def modified_ms(self, path: Path) -> int: ...

    def make_directory(self, path: Path, *, durable: bool = True) -> int:
        """Make a directory and missing parents; return the number made. `durable`: sync their directory entries."""

    def sync_directory(self, path: Path) -> None: ...
    def remove_directory(self, path: Path) -> None: ...
    def read_bytes(self, path: Path) -> bytes: ...
    def write_new(self, path: Path, data: bytes) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def link(self, source: Path, target: Path) -> None: ...
    def unlink(self, path: Path) -> None: ...
    def lock(self, path: Path, content: bytes) -> Lock: ...

    def lock_directory(self, path: Path) -> Lock | None:
        """Lock a directory without a file in it, or raise BlockingIOError. None where there are no such locks."""

    def is_open_for_writing(self, path: Path) -> bool:
        """Whether a process has the file open for writing. False if the file system does not tell."""

    def attribute(self, path: Path, name: str) -> bytes | None:
        """An extended attribute; None if there is none, or no attributes at all."""

    def set_attribute(self, path: Path, name: str, value: bytes) -> None:
        """Set an extended attribute of a directory durably. Does nothing where that is not possible."""

    def usage(self, path: Path) -> DiskUsage: ...

    def memory(self, size: int) -> memoryview:
        """Anonymous memory with undefined content."""

    def lock_memory(self, memory: memoryview) -> None:
        """Prevent this memory, which may be a mapping of a file, from being swapped out. OSError if not permitted."""

    def unlock_memory(self, memory: memoryview) -> None:
        """Undo `lock_memory`."""

    def will_need(self, memory: memoryview) -> None:
        """Announce that a whole mapping of a file will be used soon."""

    def boot_id(self) -> str:
        """Identifies the time since the machine booted: while it is the same, no write was lost. "" if unknown."""


class DiskFile:
    """A file of the machine.

    The descriptor of an evictable file may be closed and reopened (see `DiskFileSystem`) and is used only by the event
    loop's thread; `sync`, which runs in a disk thread, opens one of its own. Other files keep one descriptor, because a
    failed write-back is reported only to descriptors that are open at that time.
    """

    __slots__ = ("_descriptor", "_disk", "_evictable", "_size", "_writable", "device", "path", "unsynced_levels")

    def __init__(
        self,
        disk: DiskFileSystem,
        path: Path,
        *,
        writable: bool,
        evictable: bool,
        descriptor: int,
        size: int,
        device: int,
    ) -> None:
        """`device`: the device id of its file system, from `stat`."""
        self.path = path
        self.device = device
        self.unsynced_levels = 0
        self._disk = disk
        self._writable = writable
        self._evictable = evictable
        self._descriptor = descriptor
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        descriptor = self._open()
        if len(buffers) == 1:
            data = buffers[0]
            written = os.pwrite(descriptor, data, position)
            if written == len(data):
                return
            buffers = [memoryview(data)[written:]]
            position += written
        pending = [memoryview(buffer) for buffer in buffers]
        first = 0
        while first < len(pending):
            written = os.pwritev(descriptor, pending[first : first + _WRITE_VECTOR_MAX], position)
            position += written
            while first < len(pending) and written >= len(pending[first]):
                written -= len(pending[first])
                first += 1
            if written:  # a short write; the next call reports the kernel's error, if any
                pending[first] = pending[first][written:]

    def read(self, size: int, position: int) -> bytes:
        return os.pread(self._open(), size, position)

    def map(self, *, writable: bool = False) -> memoryview:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        descriptor = self._open()
        return memoryview(_with_spare(lambda: mmap.mmap(descriptor, self._size, access=access)))  # it keeps a copy

    def reserve(self, position: int, size: int) -> None:
        os.posix_fallocate(self._open(), position, size)

    def zero(self, position: int, size: int) -> None:
        step = 1 << 20
        zeros = bytes(min(step, size))
        end = position + size
        while position < end:
            count = min(step, end - position)
            self.write([zeros if count == len(zeros) else zeros[:count]], position)
            position += count

    def data_end(self, position: int) -> int:
        descriptor = self._open()
        end = position
        while position < self._size:
            try:
                data = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data from here on
                    break
                raise
            position = end = os.lseek(descriptor, data, os.SEEK_HOLE)
        return end

    def sync(self) -> None:
        # removed in the meantime, with its topic or by retention: nothing could be lost
        with suppress(FileNotFoundError):
            if self._evictable:
                descriptor = _open_descriptor(self.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            else:
                os.fdatasync(self._open())
            for directory in self.path.parents[: self.unsynced_levels]:
                self._disk.sync_directory(directory)
        self.unsynced_levels = 0  # last: the next file of a queue may be made now, perhaps by another thread

    def close(self) -> None:
        self._disk.forget(self)
        self.close_descriptor()

    def close_descriptor(self) -> None:
        """Close the descriptor; the next use opens the file again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        if self._descriptor < 0:
            self._descriptor = _open_descriptor(
                self.path, (os.O_RDWR if self._writable else os.O_RDONLY) | os.O_CLOEXEC
            )
            if self._evictable:
                self._disk.remember(self)
        return self._descriptor


class DiskLock:
    """A lock on byte 0 of a file, as RocketMQ takes it, and one on its directory; or on a directory alone.

    The file can be removed and recreated while it is locked; the directory cannot, because it is not empty.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors
        descriptor = descriptors[0]
        status = os.fstat(descriptor)
        self._device = status.st_dev
        self._identities = {_identity(os.fstat(each)) for each in self._descriptors}
        self._reports = _syncfs_reports(descriptor)
        _held_locks.update(self._identities)

    def release(self) -> None:
        _held_locks.difference_update(self._identities)
        for descriptor in self._descriptors:
            os.close(descriptor)

    def sync_together(self, files: Sequence[File]) -> bool:
        # The descriptor is older than every write, so no error was reported only to others.
        if len(files) < _TOGETHER_MIN or not self._reports:
            return False
        if any(not isinstance(file, DiskFile) or file.device != self._device for file in files):
            return False
        _check(_c_library.syncfs(self._descriptors[0]))
        for file in files:
            file.unsynced_levels = 0
        return True


# Locks of this process. The kernel does not report them to it, and drops them when any descriptor of the file is
# closed.
_held_locks: set[tuple[int, int]] = set()
_FLOCK = struct.Struct("@hhqqi")  # struct flock of 64-bit Linux: type, whence, start, length, process id


def is_locked(path: Path) -> bool:
    """Whether a process, including this one, holds the lock on this file or its directory. Creates no file.

    Raises OSError (PermissionError) if the file may not be read.
    """
    if _directory_is_locked(path.parent):
        return True
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if _identity(status) in _held_locks:
        return True
    descriptor = _open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer: bytes = fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted)
    finally:
        os.close(descriptor)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _lock_directory(path: Path) -> int | None:
    """Lock a directory with `flock`, which needs no write permission; return the descriptor that holds the lock.

    None where the file system has no such locks. BlockingIOError if another process holds the lock for longer than a
    check (`is_locked`) takes.
    """
    descriptor = _open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for left in range(_LOCK_ATTEMPTS - 1, -1, -1):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if not left:
                    raise
                time.sleep(_LOCK_PAUSE_SECONDS)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # network file systems do not support this for directories
        os.close(descriptor)
    return None


def _directory_is_locked(path: Path) -> bool:
    try:
        descriptor = _open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    try:
        if _identity(os.fstat(descriptor)) in _held_locks:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def overwrite(file_system: FileSystem, path: Path, content: bytes, size: int) -> None:
    """Write a file of `size` bytes in place, from its first byte on, and sync it. Blocking.

    `content` lies within one sector, so that a crash leaves the file before it or after it. A file that is missing, or
    that a crash left short, is created with zeros after `content`.
    """
    if not file_system.exists(path) or file_system.size(path) < size:
        file_system.write_new(path, content.ljust(size, b"\0"))
        file_system.sync_directory(path.parent)
        return
    file = file_system.open(path)
    try:
        file.write([content], 0)
        file.sync()
    finally:
        file.close()


def find_bytes(memory: memoryview, wanted: bytes, start: int, end: int) -> int:
    """The first position of `wanted` within [start, end) of `memory`, or -1. `memory` is a whole mapping or bytearray.

    Searches at memory speed. CPython up to 3.11.2 (Debian 12) reads one byte beyond the range given to `mmap.find`,
    which kills the process at the end of a mapping; so the last bytes of a mapping are searched in a copy.
    """
    whole = memory.obj
    assert isinstance(whole, (mmap.mmap, bytearray, bytes)), "all of them search at memory speed"
    safe_end = end if not isinstance(whole, mmap.mmap) else min(end, len(whole) - 1)
    found = whole.find(wanted, start, safe_end)
    if found < 0 and safe_end < end:
        tail = max(start, safe_end - len(wanted) + 1)
        in_tail = bytes(memory[tail:end]).find(wanted)
        found = tail + in_tail if in_tail >= 0 else -1
    return found


def replace_file(file_system: FileSystem, path: Path, data: bytes) -> None:
    """Write a file anew: a crash leaves the old content or the new one. Blocking; durable on return. Raises OSError."""
    temporary = path.with_name(f"{path.name}.tmp")
    if file_system.exists(temporary):  # left by an attempt whose sync failed: another sync of it would prove nothing
        file_system.unlink(temporary)
    file_system.write_new(temporary, data)
    file_system.rename(temporary, path)
    file_system.sync_directory(path.parent)


class DiskFileSystem:
    """The disk of the machine.

    `open_files_max`: limit of open descriptors of evictable files; None: a share of the process's limit.
    """

    def __init__(self, open_files_max: int | None = None) -> None:
        if open_files_max is None:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            open_files_max = int(limit * _OPEN_FILES_SHARE) if limit != resource.RLIM_INFINITY else sys.maxsize
        self._open_files_max = max(1, open_files_max)
        self._evictable: list[DiskFile] = []
        self._place: dict[DiskFile, int] = {}

    def open(self, path: Path, *, writable: bool = True, evictable: bool = False) -> File:
        if evictable:
            descriptor = -1
            status = path.stat()
        else:
            descriptor = _open_descriptor(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            status = os.fstat(descriptor)
        return DiskFile(
            self,
            path,
            writable=writable,
            evictable=evictable,
            descriptor=descriptor,
            size=status.st_size,
            device=status.st_dev,
        )

    def create(self, path: Path, size: int, *, evictable: bool = False) -> File:
        descriptor = _open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            os.unlink(path)
            raise
        device = os.fstat(descriptor).st_dev
        file = DiskFile(self, path, writable=True, evictable=evictable, descriptor=descriptor, size=size, device=device)
        if evictable:
            self.remember(file)
        return file

    def remember(self, file: DiskFile) -> None:
        """Note that a file has reopened its descriptor; close another one if there are too many.

        The least recently used file would be the wrong choice where queues are written in turn: it is needed next.
        """
        if len(self._evictable) >= self._open_files_max:
            evicted = self._evictable[int(random.random() * len(self._evictable))]  # noqa: S311 - no secret
            self.forget(evicted)
            evicted.close_descriptor()
        self._place[file] = len(self._evictable)
        self._evictable.append(file)

    def forget(self, file: DiskFile) -> None:
        """Note that the file has no descriptor."""
        place = self._place.pop(file, None)
        if place is not None:
            last = self._evictable.pop()
            if last is not file:
                self._evictable[place] = last
                self._place[last] = place

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(_with_spare(lambda: os.listdir(directory)))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def make_directory(self, path: Path, *, durable: bool = True) -> int:
        if path.is_dir():
            return 0
        made = self.make_directory(path.parent, durable=durable) if path.parent != path else 0
        path.mkdir(mode=0o700, exist_ok=True)
        if durable:
            try:
                self.sync_directory(path.parent)
            except OSError:
                # otherwise a second attempt would find the file and assume that its directory entry is durable
                self.remove_directory(path)
                raise
        return made + 1

    def sync_directory(self, path: Path) -> None:
        descriptor = _open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_directory(self, path: Path) -> None:
        """Remove a directory if it exists and is empty."""
        with suppress(OSError):
            path.rmdir()

    def read_bytes(self, path: Path) -> bytes:
        return _with_spare(path.read_bytes)

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a file from the beginning and sync it; an existing file of this name is overwritten."""
        descriptor = _open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def lock(self, path: Path, content: bytes) -> Lock:
        """Take the lock or raise BlockingIOError. `content` is written into a new file."""
        with suppress(FileNotFoundError):
            if _identity(os.stat(path)) in _held_locks:  # opening and closing the file would release the lock
                raise BlockingIOError(errno.EAGAIN, "the lock is held by this process", str(path))
        if _identity(os.stat(path.parent)) in _held_locks:
            raise BlockingIOError(errno.EAGAIN, "the directory is locked by this process", str(path.parent))
        descriptor = _open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            directory = _lock_directory(path.parent)
            if os.fstat(descriptor).st_size == 0:
                os.pwrite(descriptor, content, 0)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(error.errno, "the lock is held by another process", str(path)) from error
            raise
        return DiskLock([descriptor] if directory is None else [descriptor, directory])

    def lock_directory(self, path: Path) -> Lock | None:
        if _identity(os.stat(path)) in _held_locks:
            raise BlockingIOError(errno.EAGAIN, "the directory is locked by this process", str(path))
        descriptor = _lock_directory(path)
        return None if descriptor is None else DiskLock([descriptor])

    def is_open_for_writing(self, path: Path) -> bool:
        # A read lease can be had only on a file that nobody has open for writing, and never disturbs readers.
        descriptor = _open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The default signal to the holder of a lease, when another process opens the file, ends the process.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as error:
            return error.errno == errno.EAGAIN  # others: not the owner of the file, or no leases here
        finally:
            os.close(descriptor)
        return False

    def attribute(self, path: Path, name: str) -> bytes | None:
        try:
            return os.getxattr(path, name)
        except OSError:
            return None

    def set_attribute(self, path: Path, name: str, value: bytes) -> None:
        try:
            os.setxattr(path, name, value)
        except OSError:  # no attributes here, a read-only file system, or no space
            return
        self.sync_directory(path)

    def usage(self, path: Path) -> DiskUsage:
        status = os.statvfs(path)
        used, available = status.f_blocks - status.f_bfree, status.f_bavail
        return DiskUsage(total=(used + available) * status.f_frsize, available=available * status.f_frsize)

    def memory(self, size: int) -> memoryview:
        return memoryview(mmap.mmap(-1, size))

    def lock_memory(self, memory: memoryview) -> None:
        _call("mlock", memory)

    def unlock_memory(self, memory: memoryview) -> None:
        _call("munlock", memory)

    def will_need(self, memory: memoryview) -> None:
        mapping = memory.obj
        if isinstance(mapping, mmap.mmap):
            mapping.madvise(mmap.MADV_WILLNEED)

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""


def _open_descriptor(path: Path, flags: int, mode: int = 0o600) -> int:
    return _with_spare(lambda: os.open(path, flags, mode))


def _with_spare(call: Callable[[], _Result]) -> _Result:
    """Call a function that needs a file descriptor.

    If the process has none left, use one above its soft limit, up to the hard limit. Connections never get these, so
    they cannot keep the store from its files.
    """
    try:
        return call()
    except OSError as error:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if error.errno != errno.EMFILE or soft == hard:
            raise
    with _limit_lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            return call()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _call(name: str, memory: memoryview) -> None:
    """A function of the C library that takes an address and a size and that Python does not offer."""
    address = np.frombuffer(memory, np.uint8).ctypes.data
    _check(getattr(_c_library, name)(ctypes.c_void_p(address), ctypes.c_size_t(len(memory))))


def _check(result: int) -> None:
    """Raise the OSError of a C library function that did not return 0."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _syncfs_reports(descriptor: int) -> bool:
    """Whether `syncfs` on this descriptor reliably reports failed writes."""
    kernel = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if kernel is None or (int(kernel[1]), int(kernel[2])) < (5, 8):
        return False
    status = ctypes.create_string_buffer(_STATFS_SIZE)
    if _c_library.fstatfs(descriptor, status):
        return False
    return struct.unpack_from("@l", status)[0] in _SYNCFS_REPORTS  # f_type is the first field
