"""The single sequence of all messages: append, commit, read at a physical offset.

A record is appended only where 8 bytes stay free behind it; otherwise a blank fills the segment and the record goes to
the next one. So a full segment ends in a blank of at least 8 bytes, and no record crosses a segment.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerobee_store.disk.file_system import NO_ROOM, Buffer
from aerobee_store.errors import InvalidMessageError, RecordNotFoundError, StoreFullError
from aerobee_store.log.mapped_file import MappedFile, MappedFileQueue
from aerobee_store.records import record
from aerobee_store.records.record import BLANK_SIZE_MIN, Record


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes of the log, [start, end), that hold no valid record although records follow them."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class _FullDisk:
    """There is too little room for `file`, which is in use or comes next; None: for making the next one."""

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
        self.wrote = self.committed = self.flushed = 0
        self.make_segment: Callable[[int], MappedFile] = files.append_new
        self.damaged: list[DamagedRange] = []

    @property
    def min_offset(self) -> int:
        return self.files.min_offset

    @property
    def active(self) -> MappedFile | None:
        """The segment that is written to."""
        return self._active

    def release(self, files: Sequence[MappedFile]) -> None:
        """Forget segments whose files are gone, and what is known of damage in front of what is left.

        Whoever still reads one keeps its bytes until the last view is gone. They have yet to be closed, in the thread
        that syncs the log: closed in the middle of a sync, a descriptor fails it, or becomes that of another file.
        """
        self.files.release(files)
        self.damaged = [damage for damage in self.damaged if damage.end > self.min_offset]

    @property
    def segment_size(self) -> int:
        return self.files.run.file_size

    def unused_files(self) -> list[MappedFile]:
        """The segments behind the one that is written to."""
        active = self._active
        if active is None:
            return []
        return [file for file in self.files.files if file.start_offset > active.start_offset]

    def take_unused(self) -> list[MappedFile]:
        """The same, and they are no part of the log any more."""
        unused = self.unused_files()
        for file in unused:
            self.files.files.remove(file)
        return unused

    def set_end(self, end: int) -> None:
        """Say where the log ends; all before it is durable. Segments behind it are empty and will be used."""
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
        self.wrote = self.committed = self.flushed = end

    def fits(self, size: int) -> bool:
        """Whether this many bytes of records fit into the segment that is written to."""
        active = self._active
        return active is not None and size + BLANK_SIZE_MIN <= active.size - active.wrote

    def prepare(self, sizes: Sequence[int], *, essential: bool = False) -> None:
        """Make room for records of these sizes, to be appended in this order. After this no append of them can fail.

        If the disk of the segment in use is full and the next one has room on another, it ends here with its blank.
        `essential` ones may use half of the room that is kept for queues, index and tables.
        Raises StoreFullError and StoreBusyError, with nothing changed but files prepared for later; InvalidMessageError
        for a record that fits into no segment.
        """
        active = self._active
        if active is not None and active.wrote + sum(sizes) + BLANK_SIZE_MIN <= active.reserved:
            return  # nearly always
        position = self.segment_size if active is None else active.wrote
        ends_here = False
        while (full := self._without_room(sizes, position, essential=essential)) is not None:
            if full.file is active and active is not None and self._can_end_here(active):
                ends_here = True
                position = self.segment_size
            elif full.file in (active, None) or not self._make_elsewhere(full.directory):
                raise StoreFullError(
                    f"no space left on the disk of {full.directory}; free some, or let old messages expire"
                ) from full.error
        if ends_here:
            self._roll()

    def _without_room(self, sizes: Sequence[int], position: int, *, essential: bool) -> _FullDisk | None:
        """Take the room behind `position` in the segment in use, and in those that follow. None: it is there."""
        headroom = self._disk_headroom // 2 if essential else self._disk_headroom
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
                            f"a record of {size} bytes does not fit into a segment of {segment_size}; "
                            f"send less or set a larger store.segment_size"
                        )
                    if file is not None and position < segment_size:
                        self._reserve(file, position + BLANK_SIZE_MIN, headroom)
                    directory = run.path(self._start_behind(file)).parent
                    asking = None
                    file = asking = self._following(file)
                    # One append that fills several segments cannot wait for a buffer that only its own end gives back.
                    file.begin_writing(wait=is_next and not essential)
                    is_next = False
                    position = 0
                position += size
            if file is not None and sizes:
                # With the room of a blank, so that the segment can end here when the disk is full.
                self._reserve(file, position + BLANK_SIZE_MIN, headroom)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return _FullDisk(asking, directory, error)
        return None

    def next_offset(self, size: int) -> int:
        """The physical offset at which a record of `size` bytes will lie; fills up the segment if it does not fit."""
        active = self._active
        if active is None or size + BLANK_SIZE_MIN > active.size - active.wrote:
            active = self._roll()
        return active.start_offset + active.wrote

    def append(self, data: Buffer) -> None:
        """Append one placed record, or several that fit into the segment together, at the offset of `next_offset`."""
        active = self._active
        assert active is not None
        active.append(data)
        if not self._uncommitted or self._uncommitted[-1] is not active:
            self._uncommitted.append(active)
        self.wrote += len(data)

    def begin_at(self, physical_offset: int) -> None:
        """Let a log without segments begin at this offset, which begins a segment."""
        assert not self.files.files, "the log has begun"
        assert physical_offset % self.segment_size == 0, "a log begins with a segment"
        self.wrote = self.committed = self.flushed = physical_offset

    def append_copied(self, data: Buffer) -> None:
        """Append bytes of another log as they are: records, or a part of the blank that ends a segment.

        They must not cross the end of a segment. StoreBusyError and OSError (ENOSPC): nothing has changed then.
        """
        active = self._active
        if active is None or active.wrote == active.size:
            following = self._following(active)
            following.begin_writing()
            self._active = active = following
        self._reserve(active, active.wrote + len(data), self._disk_headroom // 2)
        self.append(data)

    def commit(self) -> None:
        """Move all that was appended to the page cache. OSError is final: what is in the file then is not known."""
        for file in self._uncommitted:
            file.commit(zero_ahead=self._zero_ahead)
            if file.committed == file.size:
                file.end_writing()
        self._uncommitted.clear()
        self.committed = self.wrote

    def begin_commit(self) -> tuple[list[tuple[MappedFile, int]], int]:
        """The same in parts, so that a thread can do the writing: segments and up to where in each, and where all of it
        ends in the log.

        Then come `commit_in_thread`, in one thread, and `end_commit`. What no thread may write is committed at once,
        but never before what comes before it in the log: that is for the next round.
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
        """Write these parts to their files; in a thread. OSError is final."""
        for file, position in parts:
            file.commit_in_thread(position, zero_ahead=self._zero_ahead)

    def end_commit(self, end: int) -> None:
        """Note that all before physical offset `end`, of `begin_commit`, is in the page cache."""
        uncommitted = []
        for file in self._uncommitted:
            if file.committed < file.wrote:
                uncommitted.append(file)
            elif file.committed == file.size:
                file.end_writing()
        self._uncommitted = uncommitted
        # With nothing left it is all of it, also what was written for somebody who did not wait to the end.
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
        """Note that these segments are synced up to these positions, and so the log up to `end`."""
        for file, position in zip(files, positions, strict=True):
            file.flushed = max(file.flushed, position)
        self.flushed = max(self.flushed, end)

    def record_at(self, physical_offset: int) -> Record:
        """The record that begins here, every checksum of it verified.

        Raises RecordNotFoundError where the log has nothing (deleted, or not written yet), CorruptRecordError where it
        has something else.
        """
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.committed:
            raise RecordNotFoundError(
                f"the log has nothing at physical offset {physical_offset}; it has {self.min_offset}..{self.committed}"
            )
        position = physical_offset - file.start_offset
        return record.decode(file.view, position, file.committed, physical_offset=physical_offset)

    def store_timestamp_at(self, physical_offset: int) -> int | None:
        """The store time of the record that begins here, or None if there is none. Looks at its first bytes only."""
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.committed:
            return None
        position = physical_offset - file.start_offset
        header = record.peek(file.view, position, file.committed, physical_offset=physical_offset, check_crc=False)
        return None if isinstance(header, record.ScanStop) else header.store_timestamp

    def bytes_at(self, physical_offset: int, size: int) -> memoryview:
        """Committed bytes of one segment, as they are."""
        file = self.files.find(physical_offset)
        if file is None or physical_offset + size > file.start_offset + file.committed:
            raise RecordNotFoundError(f"the log does not hold {size} bytes at physical offset {physical_offset}")
        position = physical_offset - file.start_offset
        return file.view[position : position + size]

    def flushed_bytes(self, physical_offset: int, size_max: int) -> memoryview:
        """At most so many durable bytes from this offset on, of one segment; empty if there are none."""
        file = self.files.find(physical_offset)
        if file is None:
            return memoryview(b"")
        begin = physical_offset - file.start_offset
        end = min(begin + size_max, file.flushed, self.flushed - file.start_offset)
        return file.view[begin : max(begin, end)]

    def is_boundary(self, physical_offset: int) -> bool:
        """Whether a record or a blank begins at this offset, the durable log ends there, or zeros of a blank follow."""
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
        # Messages give way first: queues, index and tables still need room when no message is taken any more.
        needed = end - file.reserved
        if needed > 0:
            usage = self.files.run.file_system.usage(file.path.parent)
            if usage.available < needed + headroom:
                raise OSError(errno.ENOSPC, "the disk is full except for the reserve for queues, index and tables")
            file.reserve(end)

    def _can_end_here(self, active: MappedFile) -> bool:
        """Whether the segment in use can end, because the next one is there, or can be made on another disk."""
        if active.size - active.wrote > record.SIZE_MAX:
            return False  # no blank is as large as that
        if self.files.find(active.end_offset) is None and not self.files.run.leave_out(active.path.parent):
            return False
        try:
            active.reserve_all(active.wrote + BLANK_SIZE_MIN)  # the last append took it, but not one before a restart
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def _make_elsewhere(self, directory: Path) -> bool:
        """The disk of a segment that nobody writes to yet is full: make it on another disk, if there is one."""
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
                active.fill_up(record.encode_blank(left))
                if not self._uncommitted or self._uncommitted[-1] is not active:
                    self._uncommitted.append(active)
        self._active = active = self._following(active)
        self.wrote = active.start_offset
        return active

    def _following(self, file: MappedFile | None) -> MappedFile:
        """The segment after `file`: prepared already, or created now."""
        start = self._start_behind(file)
        following = self.files.find(start)
        return following if following is not None else self.make_segment(start)

    def _start_behind(self, file: MappedFile | None) -> int:
        return self.wrote - self.wrote % self.segment_size if file is None else file.end_offset
