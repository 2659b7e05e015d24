"""A disk that overlays the real one: writes stay in the overlay, and the real disk is only read.

So a tool can perform all changes as a trial and report them. Changed and new data is in one unlinked file of the
temporary directory, as sparse as the files; of large changed files only the changed pages are kept, in memory.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aerobee_store.disk.file_system import Buffer, DiskFileSystem, DiskUsage, File, Lock

_COPIED_SIZE_MAX: Final = 64 << 20
_MAP_NORESERVE: Final = 0x4000  # Linux; mmap has no name for it before Python 3.13


class HeldLock:
    """Represents a lock that the caller holds and releases."""

    def release(self) -> None: ...

    def sync_together(self, files: Sequence[File]) -> bool:
        return False


class LockedDisk(DiskFileSystem):
    """The disk of the machine, for a caller that already holds the store's lock."""

    def lock(self, path: Path, content: bytes) -> Lock:
        return HeldLock()


class OverlayFile:
    """One file: the real one until the first change."""

    def __init__(self, disk: OverlayDisk, path: Path, size: int, real: File | None) -> None:
        self.path = path
        self.unsynced_levels = 0
        self.written: list[tuple[int, int]] = []
        """Ranges (begin, end) that were written, in order."""
        self.mapped_for_writing = False
        self._disk = disk
        self._size = size
        self._real = real
        self._base = -1  # its position in the scratch file
        self._private: mmap.mmap | None = None
        self._data_end = 0
        if real is None:
            self._base = disk.take_scratch(size)

    @property
    def size(self) -> int:
        return self._size

    @property
    def changed(self) -> bool:
        return bool(self.written) or self.mapped_for_writing

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self._own()
        for buffer in buffers:
            end = position + len(buffer)
            if self._private is not None:
                self._private[position:end] = bytes(buffer)
            else:
                os.pwrite(self._disk.scratch, buffer, self._base + position)
            self.written.append((position, end))
            self._data_end = max(self._data_end, end)
            position = end

    def read(self, size: int, position: int) -> bytes:
        size = max(0, min(size, self._size - position))
        if self._private is not None:
            return self._private[position : position + size]
        if self._base >= 0:
            return os.pread(self._disk.scratch, size, self._base + position)
        assert self._real is not None
        return self._real.read(size, position)

    def map(self, *, writable: bool = False) -> memoryview:
        if writable:
            self._own()
            self.mapped_for_writing = True
        if self._private is not None:
            return memoryview(self._private)
        if self._base >= 0:
            return memoryview(mmap.mmap(self._disk.scratch, self._size, offset=self._base))
        assert self._real is not None
        return self._real.map()

    def reserve(self, position: int, size: int) -> None: ...

    def zero(self, position: int, size: int) -> None:
        step = 1 << 20
        for begin in range(position, position + size, step):
            self.write([bytes(min(step, position + size - begin))], begin)

    def data_end(self, position: int) -> int:
        real = self._real.data_end(position) if self._real is not None else position
        return max(real, self._data_end)

    def sync(self) -> None: ...

    def close(self) -> None:
        if self._real is not None:
            self._real.close()

    def original(self) -> File | None:
        """The file on the real disk; None if there is none of this name."""
        return self._real

    def _own(self) -> None:
        if self._base >= 0 or self._private is not None:
            return
        assert self._real is not None
        if self._size <= _COPIED_SIZE_MAX:
            self._base = self._disk.take_scratch(self._size)
            end = self._real.data_end(0)
            os.pwrite(self._disk.scratch, self._real.read(end, 0), self._base)
            return
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._private = mmap.mmap(
                descriptor,
                self._size,
                flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        finally:
            os.close(descriptor)


class OverlayDisk:
    """A temporary disk. `renamed` and `removed` record changes of files on the real disk."""

    def __init__(self) -> None:
        self._real = DiskFileSystem()
        self._files: dict[Path, OverlayFile | None] = {}
        self._directories: set[Path] = set()
        self._scratch = tempfile.TemporaryFile(prefix="aerobee-")  # noqa: SIM115 - lives as long as this
        self._scratch_size = 0
        self.renamed: list[tuple[Path, Path]] = []
        self.removed: list[Path] = []

    @property
    def scratch(self) -> int:
        return self._scratch.fileno()

    def take_scratch(self, size: int) -> int:
        """A range of the scratch file that reads as zeros."""
        base = self._scratch_size
        self._scratch_size += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._scratch.truncate(self._scratch_size)
        return base

    def close(self) -> None:
        for file in self._files.values():
            if file is not None:
                file.close()
        self._files.clear()
        self._scratch.close()

    def changed(self) -> list[OverlayFile]:
        """The created or written files in order of names, under their current names."""
        return [
            file
            for _, file in sorted(self._files.items())
            if file is not None and (file.changed or file.original() is None)
        ]

    # --- FileSystem -------------------------------------------------------------------------------------------

    def open(self, path: Path, *, writable: bool = True, evictable: bool = False) -> File:
        file = self._files.get(path)
        if file is None:
            if path in self._files:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            real = self._real.open(path, writable=False, evictable=evictable)
            file = self._files[path] = OverlayFile(self, path, real.size, real)
        return file

    def create(self, path: Path, size: int, *, evictable: bool = False) -> File:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        file = self._files[path] = OverlayFile(self, path, size, None)
        return file

    def list(self, directory: Path) -> list[str]:
        names = set(self._real.list(directory))
        for path, file in self._files.items():
            if path.parent == directory:
                if file is None:
                    names.discard(path.name)
                else:
                    names.add(path.name)
        names.update(path.name for path in self._directories if path.parent == directory)
        return sorted(names)

    def exists(self, path: Path) -> bool:
        if path in self._files:
            return self._files[path] is not None
        return path in self._directories or self._real.exists(path)

    def is_directory(self, path: Path) -> bool:
        return path in self._directories or self._real.is_directory(path)

    def size(self, path: Path) -> int:
        if path in self._files:
            file = self._files[path]
            if file is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return file.size
        return self._real.size(path)

    def modified_ms(self, path: Path) -> int:
        return self._real.modified_ms(path)

    def make_directory(self, path: Path, *, durable: bool = True) -> int:
        made = 0
        while not self.is_directory(path):
            self._directories.add(path)
            path = path.parent
            made += 1
        return made

    def sync_directory(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None: ...

    def read_bytes(self, path: Path) -> bytes:
        if path in self._files:
            file = self.open(path)
            return file.read(file.size, 0)
        return self._real.read_bytes(path)

    def write_new(self, path: Path, data: bytes) -> None:
        file = self._files[path] = OverlayFile(self, path, len(data), None)
        file.write([data], 0)

    def rename(self, source: Path, target: Path) -> None:
        file = self.open(source)
        assert isinstance(file, OverlayFile)
        if self._real.exists(source):
            self.renamed.append((source, target))
        self._files[target] = file
        self._files[source] = None

    def link(self, source: Path, target: Path) -> None:
        file = self.open(source)
        assert isinstance(file, OverlayFile)
        self._files[target] = file

    def unlink(self, path: Path) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if self._real.exists(path):
            self.removed.append(path)
        self._files[path] = None

    def lock(self, path: Path, content: bytes) -> Lock:
        return HeldLock()

    def lock_directory(self, path: Path) -> Lock | None:
        return HeldLock()

    def is_open_for_writing(self, path: Path) -> bool:
        return self._real.is_open_for_writing(path)

    def attribute(self, path: Path, name: str) -> bytes | None:
        return self._real.attribute(path, name)

    def set_attribute(self, path: Path, name: str, value: bytes) -> None: ...

    def usage(self, path: Path) -> DiskUsage:
        while not self._real.exists(path):
            path = path.parent
        return self._real.usage(path)

    def memory(self, size: int) -> memoryview:
        return self._real.memory(size)

    def lock_memory(self, memory: memoryview) -> None: ...

    def unlock_memory(self, memory: memoryview) -> None: ...

    def will_need(self, memory: memoryview) -> None: ...

    def boot_id(self) -> str:
        return self._real.boot_id()
