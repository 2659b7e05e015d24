"""The directories of the commit log. After RocketMQ's MultiPathMappedFileQueue.

The segment that begins at k * segment_size is in the (k mod n)-th of the n writable paths, in the order of their
names; full paths are skipped, unless all are full. Segments in read-only paths are read and expire like the others;
new ones are not made there. A start searches all paths for segments, so paths may be added, and files may be moved
between them while no broker runs.

If a path is missing in the configuration, or its disk is not mounted, its messages would seem never to have existed.
So the store records its paths in its own directory, if there are others than <directory>/commitlog:

    commitlog.paths    {"paths": [...], "readOnly": [...], "used": [...]}   "used": paths that have segments

The tools find the segments by this file. RocketMQ ignores it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from aerobee_store.config import StoreConfig
from aerobee_store.disk.file_system import DiskUsage, File, FileSystem, replace_file
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.log.log_claims import LogLocks, claim_log
from aerobee_store.log.mapped_file import FileRun, file_name

FILE_NAME: Final = "commitlog.paths"


class KnownPaths(Struct, frozen=True):
    """The log paths recorded by a store."""

    paths: tuple[Path, ...]
    read_only: tuple[Path, ...]
    used: frozenset[Path]

    @property
    def all(self) -> list[Path]:
        """Each path once."""
        return list(dict.fromkeys((*self.paths, *self.read_only)))


def known_paths(file_system: FileSystem, directory: Path) -> KnownPaths:
    """The log paths of the store in `directory`. StoreDirectoryError if the file is unreadable."""
    path = directory / FILE_NAME
    try:
        content = json.loads(file_system.read_bytes(path))
        paths, read_only, used = (tuple(Path(text) for text in content[name]) for name in ("paths", "readOnly", "used"))
    except FileNotFoundError:
        return KnownPaths((directory / "commitlog",), (), frozenset())
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDirectoryError(
            f"{path}: unreadable ({error}); remove the file, and start once with all paths of the log configured"
        ) from error
    return KnownPaths(paths, read_only, frozenset(used))


def claim_log_paths(file_system: FileSystem, config: StoreConfig) -> LogLocks:
    """Lock and claim all directories of the log; make those for new segments. See log_claims.py for the errors."""
    paths = LogPaths(file_system, config)
    expected = known_paths(file_system, config.directory).used  # if one is missing, its disk is not mounted
    for path in paths.writable_directories:
        if path not in expected and not file_system.exists(path):
            file_system.make_directory(path)
    return claim_log(file_system, config.directory, paths.directories)


class LogPaths(FileRun):
    """The segments of the log in all its directories."""

    def __init__(self, file_system: FileSystem, config: StoreConfig) -> None:
        default = config.default_log_path.absolute()
        paths = tuple(path.absolute() for path in config.log_paths)
        self.read_only = tuple(path.absolute() for path in config.read_only_commit_log_paths)
        self.paths = tuple(path for path in dict.fromkeys(paths) if path not in self.read_only)
        self._sorted = sorted(self.paths, key=str)
        self._file = config.directory / FILE_NAME
        self._is_default = self.paths == (default,) and not self.read_only
        self._where: dict[int, Path] = {}
        self._known: KnownPaths | None = None
        self._not_written_down: dict[int, Path] = {}  # segments that are not part of the log
        self._mutex = threading.Lock()  # segments are made in one thread and removed in another
        self._writing = threading.Lock()
        super().__init__(file_system, self._sorted[0], config.segment_size)

    @property
    def writable_directories(self) -> Sequence[Path]:
        return self._sorted

    @property
    def directories(self) -> Sequence[Path]:
        return list(dict.fromkeys((*self.paths, *self.read_only)))

    def load(self) -> list[int]:
        """Load all directories as one run. Also raises StoreDirectoryError for a path that is missing or not
        configured."""
        known = known_paths(self.file_system, self._file.parent)
        configured = set(self.directories)
        for path in known.all:
            if path.absolute() not in configured and self.file_system.list(path):
                raise StoreDirectoryError(
                    f"{path}: contains segments of this store's log, but is neither in store.commit_log_paths nor in "
                    f"store.read_only_commit_log_paths; add it to one of them"
                )
        starts = super().load()
        for path in known.used:
            if path in self.directories and path not in self._where.values():
                raise StoreDirectoryError(
                    f"{path}: contained segments of this store's log, but has none now; is its disk mounted? If "
                    f"they are "
                    f'lost for good, take the path out of "used" in {self._file}'
                )
        if starts and self._where[starts[-1]] in self.read_only:
            raise StoreDirectoryError(
                f"{self.path(starts[-1])}: the log continues in this segment, but its path is read-only; move this "
                f"file to a path of store.commit_log_paths"
            )
        self._known = known
        self._remember()
        return starts

    def disks(self) -> dict[Path, DiskUsage]:
        """The disk usage of each path, including read-only ones; without paths that cannot be read."""
        usages = {}
        for path in self.directories:
            with suppress(OSError):
                usages[path] = self._disk_of(path)
        return usages

    def _disk_of(self, path: Path) -> DiskUsage:
        """The usage of a path that may not exist yet."""
        while not self.file_system.exists(path) and path != path.parent:
            path = path.parent
        return self.file_system.usage(path)

    def is_read_only(self, start_offset: int) -> bool:
        return self._where.get(start_offset) in self.read_only

    def path(self, start_offset: int) -> Path:
        return (self._where.get(start_offset) or self.place(start_offset)) / file_name(start_offset)

    def place(self, start_offset: int) -> Path:
        """The path for a new segment."""
        usable = [path for path in self._sorted if path not in self.full] or self._sorted
        return usable[start_offset // self.file_size % len(usable)]

    def leave_out(self, path: Path) -> bool:
        """Make no segment in this path until retention has checked the disks again. False if there is no other path."""
        full = self.full | {path}
        if full.issuperset(self.paths):
            if len(self.paths) == 1 or not self.full.issuperset(self.paths):
                return False
            # retention has excluded all paths, so none was tried yet: another one may have space
            full = frozenset({path})
        self.full = full
        return True

    def create(self, start_offset: int, *, evictable: bool = False) -> File:
        if (left := self._not_written_down.pop(start_offset, None)) is not None:
            with suppress(FileNotFoundError):
                self.file_system.unlink(left)
        with self._mutex:
            self._where[start_offset] = self.place(start_offset)
        try:
            file = super().create(start_offset, evictable=evictable)
        except OSError:
            self.forget([start_offset])
            raise
        try:
            self._remember()  # not earlier: a path recorded as used must have segments
        except OSError:
            file.close()
            # The recorded paths may already name it, so it is recorded again with the next attempt.
            self._not_written_down[start_offset] = self.path(start_offset)
            raise
        return file

    def before_removal(self, starts: Collection[int]) -> None:
        self._remember(without=frozenset(starts))

    def forget(self, starts: Collection[int]) -> None:
        with self._mutex:
            for start in starts:
                self._where.pop(start, None)

    def _remember(self, *, without: Collection[int] = ()) -> None:
        """Record the paths if they have changed. Blocking; OSError."""
        with self._writing:  # otherwise two threads could interleave, and the older content could be last
            self._write_down(without)

    def _write_down(self, without: Collection[int]) -> None:
        with self._mutex:
            used = frozenset(path for start, path in self._where.items() if start not in without)
        known = KnownPaths(self.paths, self.read_only, used)
        exists = self.file_system.exists(self._file)
        if self._is_default and exists:
            self.file_system.unlink(self._file)  # without the file, the log is looked for in its default directory
            self.file_system.sync_directory(self._file.parent)
        elif not self._is_default and (known != self._known or not exists):
            content = {
                "paths": [str(path) for path in known.paths],
                "readOnly": [str(path) for path in known.read_only],
                "used": sorted(map(str, used)),
            }
            replace_file(self.file_system, self._file, json.dumps(content, indent=1).encode())
        else:
            return
        self._known = known

    def _found(self, directory: Path, start_offset: int) -> None:
        other = self._where.setdefault(start_offset, directory)
        if other != directory:
            raise StoreDirectoryError(
                f"{directory / file_name(start_offset)}: {other} has the same segment; compare them and move one away"
            )
