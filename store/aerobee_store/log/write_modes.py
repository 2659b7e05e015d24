"""Ways to move appended bytes to the page cache, besides the gathered write of mapped_file.py.

    gathered   `MappedFile`      what has gathered goes in one pwritev, with the sync or the group of those who wait
                                 that it answers (the default)
    mapped     `SharedSegment`   records are stored into a shared mapping of the file: no system call, but page faults
    pool       `PooledSegment`   records are copied to a locked buffer, which a thread writes to the file: the event
                                 loop never waits for a page of the file. RocketMQ's TransientStorePool

In every way a sync is `fdatasync` on the descriptor: it covers what was stored through a mapping, and unlike a flush of
the mapping it lets other threads run. What is readable, answered and dispatched follows the log's committed position in
all of them, so that none promises less than another.

A shared mapping may only be written where the file has blocks (`MappedFile.reserve`): on a full disk the kernel could
only kill the process. A file system that moves blocks when they are written again (btrfs, ZFS) can do so nevertheless;
there the other two ways are the safe ones.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from aerobee_store.config import StoreConfig
from aerobee_store.disk.file_system import Buffer, File, FileSystem
from aerobee_store.errors import StoreBusyError
from aerobee_store.log.mapped_file import MakeSegment, MappedFile

_log = logging.getLogger(__name__)


class SharedSegment(MappedFile):
    """Written through a shared mapping. Its bytes are committed at once."""

    __slots__ = ("_target",)

    def __init__(
        self, file_system: FileSystem, path: Path, start_offset: int, size: int, file: File | None = None
    ) -> None:
        super().__init__(file_system, path, start_offset, size, file)
        self._target: memoryview | None = None

    def begin_writing(self, *, wait: bool = True) -> None:
        if self._target is None:
            self._target = self.file.map(writable=True)
            self._view = self._target.toreadonly()

    def end_writing(self) -> None:
        self._target = None  # the mapping goes on as the view

    def append(self, data: Buffer) -> None:
        position = self.wrote
        end = position + len(data)
        assert self._target is not None
        assert end <= self._reserved
        self._target[position:end] = data
        self.wrote = self.committed = end

    def fill_up(self, blank: Buffer) -> None:
        self.append(blank)
        self.wrote = self.committed = self.size

    def commit(self, *, zero_ahead: bool) -> None:
        """Only what is written ahead: zeros behind the records, where the mapping was not written yet.

        Also behind large commits, unlike gathered writes: a store into a page that is not there yet costs more than its
        zeros. Measured with 150 KiB a commit and sync: 340 microseconds of processor time with, 470 without; above
        1 MiB there is no difference.
        """
        if zero_ahead and (ahead := self._zeros_ahead(self.wrote)):
            self.file.write([ahead], self.wrote)


class BufferPool:
    """Buffers of a segment's size, locked in memory where that is permitted. One lies under each segment in use.

    A buffer is given back when all of it is in the page cache. With none left, `borrow` answers None, and the segment
    is written as in mode "gathered"; with `fast_failure` it raises StoreBusyError, and the sender may try again.
    """

    def __init__(self, file_system: FileSystem, buffer_size: int, count: int, *, fast_failure: bool) -> None:
        self._fast_failure = fast_failure
        self.count = count
        self.locked = True
        self._free: list[memoryview] = []
        for _ in range(count):
            buffer = file_system.memory(buffer_size)
            if self.locked:
                try:
                    file_system.lock_memory(buffer)
                except OSError as error:
                    self.locked = False
                    _log.warning(
                        "write buffers are not locked in memory and may be swapped out cause=%s; raise the limit "
                        "(ulimit -l, LimitMEMLOCK) above %d bytes to lock them",
                        error,
                        count * buffer_size,
                    )
            self._free.append(buffer)

    @classmethod
    def of(cls, config: StoreConfig, file_system: FileSystem) -> BufferPool | None:
        """The pool of a store with write mode "pool"."""
        if config.write_mode != "pool":
            return None
        return cls(file_system, config.segment_size, config.pool_buffer_count, fast_failure=config.pool_fast_failure)

    @property
    def free(self) -> int:
        """How many nobody has borrowed."""
        return len(self._free)

    def borrow(self, *, wait: bool) -> memoryview | None:
        if self._free:
            return self._free.pop()
        if self._fast_failure and wait:
            raise StoreBusyError(
                f"all {self.count} write buffers (store.pool_buffer_count) are in use; the disk does not keep up, "
                f"try again in a moment"
            )
        return None

    def give_back(self, buffer: memoryview) -> None:
        self._free.append(buffer)


class PooledSegment(MappedFile):
    """Written to a buffer of the pool, and from there to the file by `commit_in_thread`, in a thread of its own."""

    __slots__ = ("_buffer", "_data_end", "_pool", "_writing")

    def __init__(
        self,
        pool: BufferPool,
        file_system: FileSystem,
        path: Path,
        start_offset: int,
        size: int,
        file: File | None = None,
    ) -> None:
        super().__init__(file_system, path, start_offset, size, file)
        self._pool = pool
        self._buffer: memoryview | None = None
        self._data_end = 0  # behind it the buffer holds what an earlier segment left there
        self._writing = threading.Lock()

    @property
    def commits_in_thread(self) -> bool:
        return self._buffer is not None

    def begin_writing(self, *, wait: bool = True) -> None:
        # Not in the middle of a tick: what waits for a gathered write goes before anything in a buffer.
        if self._buffer is None and not self._pending and self.committed < self.size:
            self._buffer = self._pool.borrow(wait=wait)

    def end_writing(self) -> None:
        with self._writing:
            if self._buffer is not None:
                self._pool.give_back(self._buffer)
                self._buffer = None

    def append(self, data: Buffer) -> None:
        buffer = self._buffer
        if buffer is None:
            super().append(data)
            return
        position = self.wrote
        end = position + len(data)
        assert end <= self._reserved
        buffer[position:end] = data
        self.wrote = self._data_end = end  # after the bytes: the thread may look at any moment

    def commit(self, *, zero_ahead: bool) -> None:
        if self._buffer is None:
            super().commit(zero_ahead=zero_ahead)
        else:
            self.commit_in_thread(self.wrote, zero_ahead=zero_ahead)

    def commit_in_thread(self, position: int, *, zero_ahead: bool) -> None:
        with self._writing:
            buffer = self._buffer
            if buffer is None or position <= self.committed:
                return  # the other thread has done it
            end = min(position, self._data_end)
            parts: list[Buffer] = [buffer[self.committed : end]]
            if zero_ahead and position < self.size and (ahead := self._zeros_ahead(position)):
                parts.append(ahead)
            self.file.write(parts, self.committed)
            self.committed = position


def segments_of(config: StoreConfig, pool: BufferPool | None) -> MakeSegment:
    """What makes segments that are written as `config.write_mode` says."""
    if pool is None:
        return SharedSegment if config.write_mode == "mapped" else MappedFile

    def pooled(
        file_system: FileSystem, path: Path, start_offset: int, size: int, file: File | None = None
    ) -> MappedFile:
        return PooledSegment(pool, file_system, path, start_offset, size, file)

    return pooled
