"""The single sequence of all messages: append, commit, read at a physical offset.

A record is appended only if 8 bytes remain free after it; otherwise a blank fills the segment and the record goes to
the next one. So a full segment ends in a blank of at least 8 bytes, and no record crosses a segment.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from aerobee_store.disk.file_system import NO_ROOM, Buffer
from aerobee_store.errors import InvalidMessageError, RecordNotFoundError, StoreFullError
from aerobee_store.log.mapped_file import MappedFile, MappedFileQueue
from aerobee_store.records import record
from aerobee_store.records.record import BLANK_SIZE_MIN, Record


class DamagedRange(Struct, frozen=True):
    """Bytes of the log, [start, end), that are no valid record although records follow them."""

    start: int
    end: int
    reason: str


class _FullDisk(Struct, frozen=True):
    """The disk lacks space for `file`, the current segment or the next one; None: for making the next one."""

    file: MappedFile | None
    directory: Path
    error: OSError


class CommitLog:
    """Appends to the last segment in use. Single writer: only the event loop's thread calls it."""

    def __init__(self, files: MappedFileQueue, *, zero_ahead: bool, disk_headroom: int) -> None:
        self.files = files
        self._zero_ahead = zero_ahead
        self._disk_headroom = disk_headroom
        self._active: MappedFile | None = None
        self._uncommitted: list[MappedFile] = []
        self._gathers = False  # nothing may be committed before the next commit: earlier bytes wait for it
        self.wrote = self.committed = self.flushed = 0
        self.make_segment: Callable[[int], MappedFile] = files.append_new
        self.damaged: list[DamagedRange] = []

    @property
    def min_offset(self) -> int:
        return self.files.min_offset

    @property
    def active(self) -> MappedFile | None:
        """The current segment."""
        return self._active

    def release(self, files: Sequence[MappedFile]) -> None:
        """Forget segments whose files are gone, and damage known before the remaining ones.

        Readers keep the bytes until the last view is gone. The segments must still be closed, in the thread that syncs
        the log: a descriptor closed during a sync makes it fail, or becomes that of another file.
        """
        self.files.release(files)
        self.damaged = [damage for damage in self.damaged if damage.end > self.min_offset]

    @property
    def segment_size(self) -> int:
        return self.files.run.file_size

    def unused_files(self) -> list[MappedFile]:
        """The segments after the current one."""
        active = self._active
        if active is None:
            return []
        return [file for file in self.files.files if file.start_offset > active.start_offset]

    def take_unused(self) -> list[MappedFile]:
        """Remove the unused segments from the log and return them."""
        unused = self.unused_files()
        for file in unused:
            self.files.files.remove(file)
        return unused

    def set_end(self, end: int) -> None:
        """Set the end of the log. Everything before it is durable. Segments after it are empty and will be used."""
        self._active = None
        for file in self.files:
            if file.end_offset <= end:
                file.set_position(file.size)
            elif file.start_offset <= end:
                file.set_position(end - file.start_offset)
                self._active = file
            else:
                file.set_position(0)
        if self._active is None and self.files.last is not None:
            self._active = self.files.last
        if self._active is not None and self._active.wrote < self._active.size:
            self._active.begin_writing()
        self._uncommitted.clear()
        self._gathers = False
        self.wrote = self.committed = self.flushed = end

    def fits(self, size: int) -> bool:
        """Whether records of this many bytes fit into the current segment."""
        active = self._active
        return active is not None and size + BLANK_SIZE_MIN <= active.size - active.wrote

    def prepare(self, sizes: Sequence[int], *, internal: bool = False) -> None:
        """Allocate space for records of these sizes, to be appended in this order. Their appends then cannot fail.

        If the disk of the current segment is full and the next one can be on another disk, the current one ends here
        with a blank. `internal` writes may use half of the space reserved for queues, index and tables.
        Raises StoreFullError or StoreBusyError, with nothing changed except files prepared for later, and
        InvalidMessageError for a record larger than a segment.
        """
        active = self._active
        if active is not None and active.wrote + sum(sizes) + BLANK_SIZE_MIN <= active.reserved:
            return  # the usual case
        position = self.segment_size if active is None else active.wrote
        ends_here = False
        while (full := self._without_room(sizes, position, internal=internal)) is not None:
            if full.file is active and active is not None and self._can_end_here(active):
                ends_here = True
                position = self.segment_size
            elif full.file in (active, None) or not self._make_elsewhere(full.directory):
                raise StoreFullError(
                    f"no space left on the disk of {full.directory}; free some space or shorten the retention"
                ) from full.error
        if ends_here:
            self._roll()

    def _without_room(self, sizes: Sequence[int], position: int, *, internal: bool) -> _FullDisk | None:
        """Allocate the space after `position` in the current segment and in those that follow. None: success."""
        headroom = self._disk_headroom // 2 if internal else self._disk_headroom
        segment_size = self.segment_size
        run = self.files.run
        file = asking = self._active
        directory = run.directory if file is None else file.path.parent
        is_next = True
        try:
            for size in sizes:
                if size + BLANK_SIZE_MIN > segment_size - position:
                    if size + BLANK_SIZE_MIN > segment_size:
                        raise InvalidMessageError(
                            f"a record of {size} bytes does not fit into a segment of {segment_size} bytes; "
                            f"send a smaller message or raise store.segment_size"
                        )
                    if file is not None and position < segment_size:
                        self._reserve(file, position + BLANK_SIZE_MIN, headroom)
                    directory = run.path(self._start_behind(file)).parent
                    asking = None
                    file = asking = self._following(file)
                    # An append that fills several segments must not wait for a buffer that only its own end returns.
                    file.begin_writing(wait=is_next and not internal)
                    is_next = False
                    position = 0
                position += size
            if file is not None and sizes:
                # Including a blank, so that the segment can end here when the disk is full.
                self._reserve(file, position + BLANK_SIZE_MIN, headroom)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return _FullDisk(asking, directory, error)
        return None

    def next_offset(self, size: int) -> int:
        """The physical offset for a record of `size` bytes; ends the current segment if it does not fit."""
        active = self._active
        if active is None or size + BLANK_SIZE_MIN > active.size - active.wrote:
            active = self._roll()
        return active.start_offset + active.wrote

    def append(self, data: Buffer, *, is_one: bool = True) -> None:
        """Append one encoded record at the offset from `next_offset`; unless `is_one`, several that fit into the
        segment together, or any part of another log."""
        active = self._active
        assert active is not None
        if not is_one:
            self._gathers = True
        active.append(data, at_once=not self._gathers)
        if not self._uncommitted or self._uncommitted[-1] is not active:
            self._uncommitted.append(active)
        self.wrote += len(data)

    def begin_at(self, physical_offset: int) -> None:
        """Start a log without segments at this offset, the start of a segment."""
        assert not self.files.files, "the log has begun"
        assert physical_offset % self.segment_size == 0, "a log begins with a segment"
        self.wrote = self.committed = self.flushed = physical_offset

    def append_copied(self, data: Buffer) -> None:
        """Append bytes of another log unchanged: records, or a part of the blank that ends a segment.

        They must not cross the end of a segment. StoreBusyError and OSError (ENOSPC): nothing has changed.
        """
        active = self._active
        if active is None or active.wrote == active.size:
            following = self._following(active)
            following.begin_writing()
            self._active = active = following
        self._reserve(active, active.wrote + len(data), self._disk_headroom // 2)
        self.append(data, is_one=False)

    def commit(self) -> None:
        """Move appended bytes to the page cache. OSError is final: the content of the file is then unknown."""
        for file in self._uncommitted:
            file.commit(zero_ahead=self._zero_ahead)
            if file.committed == file.size:
                file.end_writing()
        self._uncommitted.clear()
        self._gathers = False
        self.committed = self.wrote

    def begin_commit(self) -> tuple[list[tuple[MappedFile, int]], int]:
        """Commit in steps, so that a thread can write: return the segments with their positions, and the end in the
        log.

        `commit_in_thread` follows, in one thread, and then `end_commit`. Segments that no thread may write are
        committed at once, but never before earlier parts of the log, which wait for the next round.
        """
        parts = []
        end = self.committed
        for file in self._uncommitted:
            if file.commits_in_thread:
                parts.append((file, file.wrote))
            elif parts:
                break
            else:
                file.commit(zero_ahead=self._zero_ahead)
            end = file.start_offset + file.wrote
        return parts, end

    def commit_in_thread(self, parts: Sequence[tuple[MappedFile, int]]) -> None:
        """Write these parts to their files, in a thread. OSError is final."""
        for file, position in parts:
            file.commit_in_thread(position, zero_ahead=self._zero_ahead)

    def end_commit(self, end: int) -> None:
        """Note that everything before physical offset `end`, from `begin_commit`, is in the page cache."""
        uncommitted = []
        for file in self._uncommitted:
            if file.committed < file.wrote:
                uncommitted.append(file)
            elif file.committed == file.size:
                file.end_writing()
        self._uncommitted = uncommitted
        # With nothing left, all of it is committed, including writes whose caller was cancelled.
        self.committed = max(self.committed, end) if uncommitted else self.wrote

    def unsynced_files(self) -> list[MappedFile]:
        """The segments with committed bytes that are not flushed, oldest first."""
        found = []
        for file in reversed(self.files.files):
            if file.committed == file.flushed and file.start_offset <= self.flushed:
                break
            if file.committed > file.flushed:
                found.append(file)
        return found[::-1]

    def set_flushed(self, files: Sequence[MappedFile], positions: Sequence[int], end: int) -> None:
        """Note that these segments are synced up to these positions, and the log up to `end`."""
        for file, position in zip(files, positions, strict=True):
            file.flushed = max(file.flushed, position)
        self.flushed = max(self.flushed, end)

    def record_at(self, physical_offset: int) -> Record:
        """The verified record at this offset.

        Raises RecordNotFoundError where the log has nothing (deleted, or not written yet), and CorruptRecordError where
        it has other bytes.
        """
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.committed:
            raise RecordNotFoundError(
                f"no record at physical offset {physical_offset}; the log has {self.min_offset}..{self.committed}"
            )
        position = physical_offset - file.start_offset
        return record.decode(file.view, position, file.committed, physical_offset=physical_offset)

    def store_timestamp_at(self, physical_offset: int) -> int | None:
        """The store time of the record at this offset, or None if there is none. Reads only its first bytes."""
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.committed:
            return None
        position = physical_offset - file.start_offset
        header = record.peek(file.view, position, file.committed, physical_offset=physical_offset, check_crc=False)
        return None if isinstance(header, record.ScanStop) else header.store_timestamp

    def bytes_at(self, physical_offset: int, size: int) -> memoryview:
        """Committed bytes of one segment."""
        file = self.files.find(physical_offset)
        if file is None or physical_offset + size > file.start_offset + file.committed:
            raise RecordNotFoundError(f"the log does not hold {size} bytes at physical offset {physical_offset}")
        position = physical_offset - file.start_offset
        return file.view[position : position + size]

    def flushed_bytes(self, physical_offset: int, size_max: int) -> memoryview:
        """At most `size_max` durable bytes from this offset on, of one segment; empty if there are none."""
        file = self.files.find(physical_offset)
        if file is None:
            return memoryview(b"")
        begin = physical_offset - file.start_offset
        end = min(begin + size_max, file.flushed, self.flushed - file.start_offset)
        return file.view[begin : max(begin, end)]

    def is_boundary(self, physical_offset: int) -> bool:
        """Whether a record or a blank begins at this offset, the durable log ends there, or only zeros of a blank
        follow."""
        if physical_offset == self.flushed:
            return True
        file = self.files.find(physical_offset)
        if file is None or physical_offset > self.flushed:
            return False
        position = physical_offset - file.start_offset
        found = record.peek(file.view, position, file.flushed, physical_offset=physical_offset, check_crc=False)
        if not isinstance(found, record.ScanStop) or found.reason is record.StopReason.BLANK:
            return True
        return file.flushed == file.size and not any(file.view[position:])

    def _reserve(self, file: MappedFile, end: int, headroom: int) -> None:
        # Messages are refused first: queues, index and tables still need space when no message is accepted.
        needed = end - file.reserved
        if needed > 0:
            usage = self.files.run.file_system.usage(file.path.parent)
            if usage.available < needed + headroom:
                raise OSError(errno.ENOSPC, "the disk is full except for the reserve for queues, index and tables")
            file.reserve(end)

    def _can_end_here(self, active: MappedFile) -> bool:
        """Whether the current segment can end, because the next one exists or can be made on another disk."""
        if active.size - active.wrote > record.SIZE_MAX:
            return False  # no blank is as large as that
        if self.files.find(active.end_offset) is None and not self.files.run.leave_out(active.path.parent):
            return False
        try:
            # the last append reserved it, but not one before a restart
            active.reserve_all(active.wrote + BLANK_SIZE_MIN)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def _make_elsewhere(self, directory: Path) -> bool:
        """Move an unused segment from a full disk to another one, if there is another."""
        if not self.files.run.leave_out(directory):
            return False
        if unused := self.take_unused():
            try:
                self.files.discard(unused)
            except OSError as error:
                for file in unused:
                    if self.files.run.file_system.exists(file.path):
                        self.files.add(file)
                if error.errno not in NO_ROOM:
                    raise
                return False
        return True

    def _roll(self) -> MappedFile:
        active = self._active
        if active is not None:
            left = active.size - active.wrote
            if left:
                active.fill_up(record.encode_blank(left), at_once=not self._gathers)
                if not self._uncommitted or self._uncommitted[-1] is not active:
                    self._uncommitted.append(active)
        self._active = active = self._following(active)
        self.wrote = active.start_offset
        return active

    def _following(self, file: MappedFile | None) -> MappedFile:
        """The segment after `file`: preallocated, or created now."""
        start = self._start_behind(file)
        following = self.files.find(start)
        return following if following is not None else self.make_segment(start)

    def _start_behind(self, file: MappedFile | None) -> int:
        return self.wrote - self.wrote % self.segment_size if file is None else file.end_offset
