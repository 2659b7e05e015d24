"""Copies a store, stopped or in use. A start treats the copy of a store in use like the state after a crash.

A store that no process has open is copied unchanged, under its lock. The files of a store in use change during the
copy, so the order matters: a file copied earlier must never refer to data that is missing in files copied later.

    1. copy `config` except topics and groups, and all other files: their offsets and positions refer to messages that
       are in the log now, and will be in the copy
    2. copy the checkpoint: the files copied after it contain everything that it calls synced
    3. fix the end of the log: after the last valid record at this time
    4. copy the segments up to that end; the rest of the last one is zeros
    5. copy queues and index in any order: they may be ahead of that end, or half written after the checkpoint's
       offset, which recovery expects after a crash
    6. copy topics and groups: those of all messages in the copy exist by now
    7. copy tables again that were saved between the copies of their file and of its checksums
    8. write `abort`, so that the first start recovers: it reads the log from the checkpoint's offset on

The copy gets no checkpoint if a topic is deleted during the backup, or if RocketMQ wrote the checkpoint, which then
lacks the offset up to which derived files are synced. The first start of the copy then reads the whole log.

The copy is made in `backup.partial` within the target and moved up when it is complete and synced. A target that
contains only such a directory is left from an interrupted backup, and counts as empty.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.disk.store_directory import ID_FILE, NEW_ID_FILE
from aerobee_store.durability import reseed
from aerobee_store.errors import StoreDirectoryError, StoreFullError
from aerobee_store.log.log_paths import FILE_NAME
from aerobee_store.log.log_scan import LogEnd
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.log_follower import MEMBER_FILE_NAME, ROLE_FILE_NAME
from aerobee_store.records.record import ScanStop
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tables.table_checksums import SUFFIX
from aerobee_store.tools.actions import locked
from aerobee_store.tools.checkpoint_check import load_checkpoint
from aerobee_store.tools.log_walk import log_scan
from aerobee_store.tools.rebuild import NEW, OLD
from aerobee_store.tools.store_files import Progress, StoreFiles, StoreState
from aerobee_store.tools.table_check import table_problem

PARTIAL: Final = "backup.partial"

_DERIVED: Final = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")
_AFTER_THE_LOG: Final = ("topics.json", "subscriptionGroup.json")
# A copy is older than its group: it must not claim to have every confirmed message. A new copy of a log is incomplete.
_NOT_COPIED: Final = frozenset(
    {"lock", FILE_NAME, ID_FILE, NEW_ID_FILE, "lost+found", NEW, OLD, ROLE_FILE_NAME, MEMBER_FILE_NAME}
    | {reseed.DIRECTORY, reseed.ORDER}
)
_COPIED_ELSEWHERE: Final = frozenset({"commitlog", "checkpoint", "abort", *_DERIVED})
_STEP: Final = 1 << 20
_TABLE_COPIES_MAX: Final = 20
_FICLONE: Final = 0x40049409  # Linux: share the blocks of a file; unsupported by some file systems


@dataclass(frozen=True, slots=True)
class BackupReport:
    """A complete copy. `bytes` were written; `linked` and `cloned` files share their blocks with the store."""

    state: StoreState
    target: Path
    log_begin: int
    log_end: int
    files: int
    linked: int
    cloned: int
    bytes: int
    whole_log_at_start: bool
    """Whether the first start of the copy must read the whole log."""

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {
            "target": str(self.target),
            "state": self.state,
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "files": self.files,
            "linked": self.linked,
            "cloned": self.cloned,
            "bytes": self.bytes,
            "wholeLogAtStart": self.whole_log_at_start,
        }


def backup(
    directory: Path, target: Path, *, hard_links: bool = False, progress: Progress | None = None
) -> BackupReport:
    """Copy a store, in use or not, into `target`, which must not exist or be empty. The store is only read.

    Files stay sparse, and share their blocks where the file system can clone them. `hard_links`: full segments of the
    log, which are not written any more, are linked instead of copied; store and target must be on one file system.
    `progress` is called with numbers of bytes.

    Raises StoreDirectoryError for an invalid store or a target that is not empty, StoreFullError if the target has no
    space, OSError of the disk. Bytes copied until then stay in `target`/backup.partial.
    """
    directory = directory.absolute()  # like the paths of a log in several directories
    files = StoreFiles.find(directory)
    try:
        _check_target(directory, target)
        work = _Backup(files, target, hard_links, progress)
        try:
            if files.live:
                return work.run()
            with locked(directory, create=False):
                return work.run()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(f"{target}: no space left on its disk; remove {target / PARTIAL}") from error
            raise
    finally:
        files.close()


def _check_target(directory: Path, target: Path) -> None:
    inside = target.resolve().is_relative_to(directory.resolve())
    if inside or directory.resolve().is_relative_to(target.resolve()):
        raise StoreDirectoryError(
            f"{target}: the copy and the store would be inside each other; name another directory"
        )
    if not target.exists():
        return
    if not target.is_dir():
        raise StoreDirectoryError(f"{target}: not a directory; name one that is empty, or does not exist")
    names = {path.name for path in target.iterdir()} - {"lost+found", PARTIAL}
    if names:
        raise StoreDirectoryError(f"{target}: not empty (contains {min(names)!r}); name an empty directory")


class _Backup:
    def __init__(self, files: StoreFiles, target: Path, hard_links: bool, progress: Progress | None) -> None:
        self._files = files
        self._source = files.directory
        self._target = target
        self._partial = target / PARTIAL
        self._hard_links = hard_links
        self._progress = progress
        self._disk = DiskFileSystem()
        self._directories: set[Path] = set()
        self._done = self._total = 0
        self._copied = self._linked = self._cloned = 0

    def run(self) -> BackupReport:
        if self._partial.exists():
            shutil.rmtree(self._partial)
        self._disk.make_directory(self._partial)
        self._total = sum(map(_allocated, self._sources()))
        self._check_room()
        if self._files.live:
            begin, end, whole = self._copy_live()
        else:
            begin, end, whole = self._copy_stopped()
        for directory in sorted(self._directories):
            self._disk.sync_directory(directory)
        self._disk.sync_directory(self._partial)
        self._move_up()
        if self._progress is not None:
            self._progress(self._total, self._total)
        return BackupReport(
            state=self._files.state,
            target=self._target,
            log_begin=begin,
            log_end=end,
            files=self._copied + self._linked + self._cloned,
            linked=self._linked,
            cloned=self._cloned,
            bytes=self._done,
            whole_log_at_start=whole,
        )

    def _sources(self) -> Iterator[Path]:
        """The files of the store, wherever they are."""
        elsewhere = [path for path in self._files.log_paths.all if not path.is_relative_to(self._source)]
        for path in _paths_below(self._source):
            if path.relative_to(self._source).parts[0] not in _NOT_COPIED:
                yield path
        for directory in elsewhere:
            yield from _paths_below(directory)

    def _target_of(self, path: Path) -> Path:
        """The place of a file's copy: the log goes into one directory."""
        if path.parent in self._files.log_paths.all:
            return self._partial / "commitlog" / path.name
        return self._partial / path.relative_to(self._source)

    def _check_room(self) -> None:
        available = self._disk.usage(self._target).available
        # Links and clones need no space: they are tried first, and the copy fails if it does not fit.
        segments = sum(_allocated(segment.path) for segment in self._files.segments)
        needed = self._total - (segments if self._hard_links else 0)
        if needed > available and not _can_clone(self._files.log_paths.all, self._partial):
            raise StoreFullError(
                f"{self._target}: {available} bytes are free on its disk, but the copy takes {needed}; name another "
                f"disk"
            )

    # --- a stopped store --------------------------------------------------------------------------------------

    def _copy_stopped(self) -> tuple[int, int, bool]:
        last = self._files.segments[-1].path if self._files.segments else None
        for path in self._sources():
            full = path.parent in self._files.log_paths.all and path != last
            self._copy(path, link=full and self._is_full(path))
        end = self._log_end()
        return self._files.log_begin, end, not (self._source / "checkpoint").exists()

    def _is_full(self, path: Path) -> bool:
        """Whether a later segment is in use, so that this one is not written any more."""
        segments = self._files.segments
        number = [segment.path for segment in segments].index(path) if path in {s.path for s in segments} else -1
        return 0 <= number < len(segments) - 1 and segments[number + 1].file.data_end(0) > 0

    # --- a store in use ---------------------------------------------------------------------------------------

    def _copy_live(self) -> tuple[int, int, bool]:
        # The changes before the table, which then includes any complete save in between.
        suffixes = (".log.bak", ".log", "", ".bak", SUFFIX)
        later = [self._source / "config" / f"{name}{suffix}" for name in _AFTER_THE_LOG for suffix in suffixes]
        for path in _paths_below(self._source):
            name = path.relative_to(self._source).parts[0]
            elsewhere = name in _COPIED_ELSEWHERE | _NOT_COPIED or path.parent in self._files.log_paths.all
            if not elsewhere and path not in later:
                self._copy(path)
        self._match_checksums()
        deleted = self._deleted_topics()
        whole = load_checkpoint(self._files).derived_offset is None
        if not whole:
            self._copy(self._source / "checkpoint")
        end = self._log_end()
        begin = self._copy_segments(end)
        for name in _DERIVED:
            for path in _paths_below(self._source / name):
                self._copy(path)
        for path in later:
            self._copy(path)
        self._match_checksums()
        if self._deleted_topics() != deleted and not whole:
            whole = True
            (self._partial / "checkpoint").unlink()
        self._disk.write_new(self._partial / "abort", b"")
        return begin, end, whole

    def _match_checksums(self) -> None:
        """Copy a table again if it was saved between the copies of its file and its checksums: it would seem
        damaged."""
        config = self._partial / "config"
        if not config.exists():
            return
        for name in self._disk.list(config):
            table, source = config / name.removesuffix(SUFFIX), self._source / "config" / name.removesuffix(SUFFIX)
            if not name.endswith(SUFFIX):
                continue
            for _ in range(_TABLE_COPIES_MAX):
                data, problem = table_problem(self._disk, table)
                if problem is None or source.read_bytes() == data:
                    break  # correct, or with the same mismatch as in the store
                self._copy(source)
                self._copy(source.with_name(name))

    def _deleted_topics(self) -> bytes:
        try:
            return (self._source / "config" / "deletedTopics.json").read_bytes()
        except FileNotFoundError:
            return b""

    def _log_end(self) -> int:
        """The end of the last valid record, starting from the last segment that begins with one."""
        segments = self._files.segments
        scan = log_scan(self._files)
        begin = self._files.log_begin
        for segment in reversed(segments):
            with suppress(FileNotFoundError):
                if not isinstance(scan.peek(segment, 0), ScanStop):
                    begin = segment.start_offset
                    break
        end = begin
        for found in scan.walk(begin, zeros_end=0):
            if isinstance(found, RecordBatch):
                end = int(found.physical_offset[-1]) + int(found.size[-1])
            elif isinstance(found, LogEnd):
                end = found.position
        return end

    def _copy_segments(self, end: int) -> int:
        """Copy the log up to `end`; return its beginning, because retention may remove segments meanwhile."""
        begin = self._files.log_begin
        copied: list[Path] = []
        for segment in self._files.segments:
            if segment.start_offset >= end:
                break
            if segment.end_offset <= end:
                there = self._copy(segment.path, link=True)
            else:
                there = self._copy_part(segment, end - segment.start_offset)
            if there:
                copied.append(self._partial / "commitlog" / segment.path.name)
                continue
            # The oldest are removed first: if this one is gone, those before it are too.
            for path in copied:
                path.unlink()
            copied.clear()
            begin = segment.end_offset
        return begin

    def _copy_part(self, segment: MappedFile, size: int) -> bool:
        target = self._partial / "commitlog" / segment.path.name
        self._make_directory(target.parent)
        try:
            source = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            self._copy_bytes(source, target, segment.size, size)
        finally:
            os.close(source)
        self._copied += 1
        return True

    # --- one file ---------------------------------------------------------------------------------------------

    def _copy(self, path: Path, *, link: bool = False) -> bool:
        """Copy a file; return whether it existed. With `link` it may be shared with the store."""
        target = self._target_of(path)
        self._make_directory(target.parent)
        if link and self._hard_links:
            try:
                self._disk.link(path, target)
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                    raise
                raise StoreDirectoryError(
                    f"{self._target}: cannot make hard links from {path.parent} ({error.strerror}); leave out "
                    f"--hard-links, or name a directory on the same file system"
                ) from error
            self._linked += 1
            return True
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if _clone(source, target):
                self._cloned += 1
            else:
                size = os.fstat(source).st_size
                self._copy_bytes(source, target, size, size)
                self._copied += 1
            status = os.fstat(source)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(source)
        return True

    def _copy_bytes(self, source: int, target: Path, file_size: int, size: int) -> None:
        """Create a file of `file_size` bytes and copy the first `size`, preserving holes."""
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, file_size)
            for begin, end in _data(source, size):
                position = begin
                while position < end:
                    part = os.pread(source, min(_STEP, end - position), position)
                    if not part:
                        break
                    view = memoryview(part)
                    if part.strip(b"\0"):
                        while view:
                            written = os.pwrite(descriptor, view, position)
                            view = view[written:]
                            position += written
                    else:  # zeros that are not a hole, written after the messages
                        position += len(part)
                    self._done += len(part)
                    if self._progress is not None:
                        self._progress(min(self._done, self._total), self._total)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make_directory(self, path: Path) -> None:
        if path not in self._directories:
            self._disk.make_directory(path)
            self._directories.add(path)

    def _move_up(self) -> None:
        # The log last: before that the target is no store, and afterwards a complete one.
        names = sorted(self._disk.list(self._partial), key=lambda name: (name == "commitlog", name))
        for name in names:
            self._disk.rename(self._partial / name, self._target / name)
        self._partial.rmdir()
        self._disk.sync_directory(self._target)
        self._disk.sync_directory(self._target.parent)


def _paths_below(directory: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Every file below a directory, in order of names; files that disappear are skipped.

    Follows links to directories, because log or queues may be on another disk, but not in a loop.
    """
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    within = above | {directory.resolve()}
    for entry in entries:
        if entry.is_dir():
            if not entry.is_symlink() or Path(entry.path).resolve() not in within:
                yield from _paths_below(directory / entry.name, within)
        elif entry.is_file():
            yield directory / entry.name


def _allocated(path: Path) -> int:
    """Bytes that a file takes on its disk."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of the first `size` bytes of a file that are not holes."""
    position = 0
    while position < size:
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        if begin >= size:
            return
        position = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, min(position, size)


def _clone(source: int, target: Path) -> bool:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.ioctl(descriptor, _FICLONE, source)
        os.fsync(descriptor)
    except OSError:
        return False  # another or an unsupported file system; the bytes are copied then
    finally:
        os.close(descriptor)
    return True


def _can_clone(sources: Sequence[Path], target: Path) -> bool:
    probe = next((path for directory in sources for path in _paths_below(directory)), None)
    if probe is None:
        return False
    copy = target / "probe"
    descriptor = os.open(probe, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _clone(descriptor, copy)
    finally:
        os.close(descriptor)
        copy.unlink()
