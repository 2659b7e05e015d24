"""Write modes: how appended bytes reach the page cache. The default mode is in mapped_file.py.

    gathered   `MappedFile`      one pwritev for all appended bytes of a sync, or of a group of waiters (the default)
    mapped     `SharedSegment`   single records are stored into a shared mapping of the file: no system call, but page
                                 faults. Several records together are gathered
    pool       `PooledSegment`   records are copied to a locked buffer, which a thread writes to the file: the event
                                 loop never waits for a page of the file. RocketMQ's TransientStorePool

In every mode a sync is `fdatasync` on the descriptor: it covers stores through a mapping, and unlike a flush of the
mapping it lets other threads run. Reads, answers and dispatch follow the log's committed position in every mode, so
all modes give the same guarantees.

A shared mapping may only be written where the file has blocks (`MappedFile.reserve`): on a full disk the kernel would
kill the process. A file system that moves blocks on every write (btrfs, ZFS) can still run out of space; use another
mode there.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from aerobee_store.config import StoreConfig
from aerobee_store.disk.file_system import Buffer, File, FileSystem
from aerobee_store.errors import StoreBusyError
from aerobee_store.log.mapped_file import MakeSegment, MappedFile

_log = logging.getLogger(__name__)

_POOL_LOW: Final = 0.4  # below this share of free buffers, each one that is taken is logged, as by RocketMQ


class SharedSegment(MappedFile):
    """Single records are written through a shared mapping, and committed at once. All else is gathered.

    A copy in memory may store its first bytes last, as that of glibc does. If the process is killed during the copy of
    several records, the first would be missing, and the others there: damage, to the next start. A write to a file
    stores bytes in their order. One record has nothing after it, and is simply missing.
    """

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
        self._target = None  # the mapping remains as the view

    def append(self, data: Buffer, *, at_once: bool) -> None:
        if not at_once:
            super().append(data, at_once=False)
            return
        position = self.wrote
        end = position + len(data)
        assert self._target is not None
        assert position == self.committed
        assert end <= self._reserved
        self._target[position:end] = data
        self.wrote = self.committed = end

    def fill_up(self, blank: Buffer, *, at_once: bool) -> None:
        super().fill_up(blank, at_once=at_once)
        if at_once:
            self.committed = self.size

    def commit(self, *, zero_ahead: bool) -> None:
        """Write what was gathered. Otherwise write only the zeros after the records, where the mapping was not written
        yet.

        Unlike gathered writes, also after large commits: storing into a page that does not exist yet costs more than
        writing its zeros. Measured with 150 KiB per commit and sync: 340 microseconds of CPU time with zeros, 470
        without; above 1 MiB there is no difference.
        """
        if self._pending:
            super().commit(zero_ahead=zero_ahead)
        elif zero_ahead and (ahead := self._zeros_ahead(self.wrote)):
            self.file.write([ahead], self.wrote)


class BufferPool:
    """Buffers of a segment's size, locked in memory where permitted. Each segment in use has one.

    A buffer is returned when all of it is in the page cache. With none left, `borrow` returns None, and the segment is
    written as in mode "gathered"; with `fast_failure` it raises StoreBusyError, and the sender may retry.
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
                        "write buffers are not locked in memory and may be swapped out cause=%s; raise ulimit -l "
                        "(LimitMEMLOCK) above %d bytes",
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
        """Number of free buffers."""
        return len(self._free)

    def borrow(self, *, wait: bool) -> memoryview | None:
        if self._free:
            buffer = self._free.pop()
            if len(self._free) < self.count * _POOL_LOW:
                _log.warning(
                    "few write buffers are free because the disk is slow free=%d of=%d", len(self._free), self.count
                )
            return buffer
        if self._fast_failure and wait:
            raise StoreBusyError(
                f"all {self.count} write buffers (store.pool_buffer_count) are in use because the disk is too slow; "
                f"try again later"
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
        self._data_end = 0  # the rest of the buffer has the content of an earlier segment
        self._writing = threading.Lock()

    @property
    def commits_in_thread(self) -> bool:
        return self._buffer is not None

    def begin_writing(self, *, wait: bool = True) -> None:
        # Not within an iteration of the loop: gathered writes that wait go before anything in a buffer.
        if self._buffer is None and not self._pending and self.committed < self.size:
            self._buffer = self._pool.borrow(wait=wait)

    def end_writing(self) -> None:
        with self._writing:
            if self._buffer is not None:
                self._pool.give_back(self._buffer)
                self._buffer = None

    def append(self, data: Buffer, *, at_once: bool) -> None:
        buffer = self._buffer
        if buffer is None:
            super().append(data, at_once=at_once)
            return
        position = self.wrote
        end = position + len(data)
        assert end <= self._reserved
        buffer[position:end] = data
        self.wrote = self._data_end = end  # after the bytes, because the thread may read it at any moment

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
    """The factory of segments for `config.write_mode`."""
    if pool is None:
        return SharedSegment if config.write_mode == "mapped" else MappedFile

    def pooled(
        file_system: FileSystem, path: Path, start_offset: int, size: int, file: File | None = None
    ) -> MappedFile:
        return PooledSegment(pool, file_system, path, start_offset, size, file)

    return pooled
