"""The files of a store's directory, opened read-only. Nothing is trusted: unexpected names and sizes become findings.

The expected size of a segment or queue file is the most frequent size of its kind. A live store changes meanwhile; the
lists show its state at the beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from aerobee_store.disk.file_system import DiskFileSystem, File, is_locked
from aerobee_store.disk.store_directory import STORE_NAMES
from aerobee_store.durability import queue_bounds
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.log.log_paths import KnownPaths, known_paths
from aerobee_store.log.mapped_file import MappedFile, file_name, start_of
from aerobee_store.queues.batch_consume_queue import BATCH_UNIT_DTYPE
from aerobee_store.queues.consume_queue import UNIT_DTYPE
from aerobee_store.queues.index_file import is_index_name
from aerobee_store.records.decimals import decimal
from aerobee_store.tools.findings import Finding
from aerobee_store.tools.listings import Listing, Listings

StoreState = Literal["live", "stopped", "crashed"]
"""Open in a process; closed cleanly; neither: the process that had it open died."""

_LOOKED_AT: Final = (STORE_NAMES - {"config", "store"}) | {
    queue_bounds.FILE_NAME,
    queue_bounds.NEW_FILE_NAME,
    "consumequeue_ext",
    "timerlog",
    "timerwheel",
}
# A broker also starts in a directory with nothing but settings or an identity; the tools want to see messages.
_SIGNS_OF_A_STORE: Final = STORE_NAMES & {
    *("commitlog", "consumequeue", "batchconsumequeue", "index", "checkpoint", "abort", "lock")
}

QueueKey = tuple[str, int]


class ReadOnlyDisk(DiskFileSystem):
    """The disk, with every file opened read-only and few descriptors at a time."""

    def open(self, path: Path, *, writable: bool = True, evictable: bool = False) -> File:
        return super().open(path, writable=False, evictable=True)


class QueueFiles:
    """The files of one queue: a long array of units; units outside of any file read as zeros."""

    def __init__(
        self, disk: DiskFileSystem, key: QueueKey, directory: Path, dtype: np.dtype[Any], starts: dict[int, int]
    ) -> None:
        self.key = key
        self.directory = directory
        self.dtype = dtype
        self._disk = disk
        self._sizes = starts
        self._open: dict[int, File] = {}

    @property
    def starts(self) -> list[int]:
        """The start of each file, in bytes."""
        return list(self._sizes)

    def size_of(self, start: int) -> int:
        """Bytes of the file that begins at `start`."""
        return self._sizes[start]

    @property
    def first(self) -> int:
        """The first unit of the first file; 0 without files."""
        return min(self._sizes) // self.dtype.itemsize if self._sizes else 0

    @property
    def allocated_end(self) -> int:
        """The unit after the last file."""
        return max((start + size for start, size in self._sizes.items()), default=0) // self.dtype.itemsize

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def read(self, first: int, count: int) -> npt.NDArray[Any]:
        """Exactly `count` units from number `first` on."""
        size = self.dtype.itemsize
        data = bytearray(count * size)
        begin, end = first * size, (first + count) * size
        for start, file_size in self._sizes.items():
            low, high = max(begin, start), min(end, start + file_size)
            if low < high:
                try:
                    part = self._file(start).read(high - low, low - start)
                except FileNotFoundError:
                    continue  # removed by retention in the meantime
                data[low - begin : low - begin + len(part)] = part
        return np.frombuffer(data, self.dtype)

    def data_ends(self) -> Iterator[tuple[int, int]]:
        """For each file the first unit, and the unit after the last one that is not in a hole."""
        size = self.dtype.itemsize
        for start in self._sizes:
            try:
                end = self._file(start).data_end(0)
            except FileNotFoundError:
                continue
            yield start // size, (start + end + size - 1) // size

    def end(self, known: int = 0) -> int:
        """The unit after the last valid one, by bisection in the last file that has any.

        `known`: an earlier end of the queue, near which the search begins.
        """
        size = self.dtype.itemsize
        for start, file_size in reversed(self._sizes.items()):
            low, high = start // size, (start + file_size) // size
            if not self._is_valid(low):
                continue
            if low < known < high and self._is_valid(known - 1):
                low, step = known - 1, 1
                while low + step < high and self._is_valid(low + step):
                    low += step
                    step *= 2
                high = min(high, low + step)
            while low + 1 < high:
                middle = (low + high) // 2
                if self._is_valid(middle):
                    low = middle
                else:
                    high = middle
            return low + 1
        return self.first

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _is_valid(self, number: int) -> bool:
        unit = self.read(number, 1)[0]
        return bool(unit["size"] > 0 and unit["physical_offset"] >= 0)

    def _file(self, start: int) -> File:
        file = self._open.get(start)
        if file is None:
            file = self._open[start] = self._disk.open(self.directory / file_name(start))
        return file


@dataclass(slots=True)
class StoreFiles:
    """The files of a store. `problems` are findings about names and sizes."""

    directory: Path
    state: StoreState
    disk: DiskFileSystem
    segment_size: int = 0
    queue_file_size: int = 0
    batch_queue_file_size: int = 0
    queue_extension_file_size: int = 0
    log_paths: KnownPaths = field(default_factory=lambda: KnownPaths((), (), frozenset()))
    """The directories of the log, as recorded by the store."""
    segments: list[MappedFile] = field(default_factory=list)
    queues: dict[QueueKey, QueueFiles] = field(default_factory=dict)
    batch_queues: dict[QueueKey, QueueFiles] = field(default_factory=dict)
    index_files: list[Path] = field(default_factory=list)
    timer_log: dict[int, int] = field(default_factory=dict)
    """The sizes of the files of the timer log, by start position."""
    not_looked_at: list[str] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    _has_topic: Callable[[str], bool] = field(default=lambda topic: True)
    _listings: Listings = field(default_factory=Listings)
    _empty_file_seen: bool = False

    @classmethod
    def find(cls, directory: Path, *, has_topic: Callable[[str], bool] | None = None) -> StoreFiles:
        """List a store. `has_topic`: selects the topics whose queues are listed; None: all.

        Raises StoreDirectoryError for a directory that is no store, OSError for one that cannot be read.
        """
        if not directory.is_dir():
            raise StoreDirectoryError(f"{directory}: not a directory; name the directory that contains commitlog")
        names = sorted(path.name for path in directory.iterdir())
        if not _SIGNS_OF_A_STORE.intersection(names):
            meant = directory / "store" if "store" in names else directory.absolute().parent
            hint = f"do you mean {meant}?" if _is_store(meant) else "name the directory of a broker's store"
            raise StoreDirectoryError(f"{directory}: not a store (it has no commitlog); {hint}")
        if is_locked(directory / "lock"):
            state: StoreState = "live"
        else:
            state = "crashed" if "abort" in names else "stopped"
        files = cls(directory, state, ReadOnlyDisk())
        if has_topic is not None:
            files._has_topic = has_topic
        files.not_looked_at = [name for name in names if name not in _LOOKED_AT]
        files._find_segments()
        files.queue_file_size = files._find_queues("consumequeue", np.dtype(UNIT_DTYPE), files.queues)
        files.batch_queue_file_size = files._find_queues(
            "batchconsumequeue", np.dtype(BATCH_UNIT_DTYPE), files.batch_queues
        )
        files._find_extensions()
        files._find_index()
        files._find_timer_log()
        if not files.segments and any(queue.end() > queue.first for queue in files.queues.values()):
            raise StoreDirectoryError(
                f"{directory / 'commitlog'}: the log has no segments, but there are queues; is a disk not mounted, "
                f"or is the log in another directory (storePathCommitLog)?"
            )
        return files

    def refresh(self) -> None:
        """Update the lists of segments and queue files. Only changed directories are read.

        Foreign files are not reported here. Queues whose directory did not change stay open.
        """
        if len(self.log_paths.all) > 1:
            self._find_segments_again()
        else:
            self._listings.get(self.log_paths.all[0], self._find_segments_again)
        self._find_queues("consumequeue", np.dtype(UNIT_DTYPE), self.queues)
        self._find_queues("batchconsumequeue", np.dtype(BATCH_UNIT_DTYPE), self.batch_queues)
        self.problems.clear()

    @property
    def log_begin(self) -> int:
        return self.segments[0].start_offset if self.segments else 0

    @property
    def live(self) -> bool:
        return self.state == "live"

    def relative(self, path: Path) -> str:
        """The path within the store; unchanged for a segment in another directory."""
        return str(path.relative_to(self.directory) if path.is_relative_to(self.directory) else path)

    def segment_path(self, physical_offset: int) -> str | None:
        """The segment that contains this place, relative to the store."""
        for segment in self.segments:
            if segment.start_offset <= physical_offset < segment.end_offset:
                return self.relative(segment.path)
        return None

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
        for queues in (self.queues, self.batch_queues):
            for queue in queues.values():
                queue.close()

    def _problem(self, kind: str, path: Path, detail: str, *, severity: Literal["error", "warning"] = "error") -> None:
        self.problems.append(Finding(kind=kind, severity=severity, path=self.relative(path), detail=detail))

    def _stray(self, kind: str, path: Path, detail: str) -> None:
        """A foreign file. Among the files of the timer it does not prevent a start."""
        if kind == "timer-file":
            self._problem(kind, path, f"{detail}; not checked", severity="warning")
        else:
            self._problem(kind, path, f"{detail}; not checked. No broker starts with it: move it away")

    def _numbered(self, directory: Path, kind: str, unit_size: int = 1) -> dict[int, int]:
        """The sizes of the files of a run by start offset, in order; foreign files become problems."""
        sizes: dict[int, int] = {}
        for name in self.disk.list(directory):
            path = directory / name
            start = start_of(name)
            if start is None or not path.is_file():
                self._stray(kind, path, "not a file of the store: its files have names of 20 digits")
                continue
            try:
                size = self.disk.size(path)
            except FileNotFoundError:
                continue  # removed by retention since the listing
            if size == 0:
                self._empty_file_seen = True
                if not self.live:  # a broker makes the next file in two steps
                    self._problem(
                        kind, path, "empty: a crash while it was made; the next start removes it", severity="warning"
                    )
            elif start % unit_size or start + size >= 1 << 63:
                self._problem(kind, path, f"begins at {start}, where no such file can begin; not checked")
            else:
                sizes[start] = size
        return sizes

    def _check_sizes(
        self,
        directory: Path | dict[int, Path],
        kind: str,
        sizes: dict[int, int],
        usual: int,
        *,
        unit_size: int = 1,
    ) -> None:
        previous = None
        for start, size in sizes.items():
            path = (directory if isinstance(directory, Path) else directory[start]) / file_name(start)
            if size != usual:
                self._problem(kind, path, f"{size} bytes, the other files have {usual}")
            elif size % unit_size:
                self._problem(kind, path, f"{size} bytes are not a multiple of {unit_size}")
            elif start % usual:
                self._problem(kind, path, f"does not begin at a multiple of the file size {usual}")
            if previous is not None and start < previous:
                self._problem(kind, path, f"begins before the end of the previous file, {previous}")
            previous = start + size

    def _find_segments_again(self) -> Listing[None]:
        for segment in self.segments:
            segment.close()
        self._empty_file_seen = False
        self._find_segments()
        return Listing(None, complete=not self._empty_file_seen)

    def _find_segments(self) -> None:
        self.log_paths = known_paths(self.disk, self.directory)
        sizes: dict[int, int] = {}
        where: dict[int, Path] = {}
        for directory in self.log_paths.all:
            for start, size in self._numbered(directory, "segment-file").items():
                if start in where:
                    self._problem("segment-file", directory / file_name(start), f"segment also in {where[start]}")
                else:
                    sizes[start], where[start] = size, directory
        sizes = dict(sorted(sizes.items()))
        self.segment_size = _usual(sizes.values())
        self._check_sizes(where, "segment-file", sizes, self.segment_size)
        self.segments = [MappedFile(self.disk, where[start] / file_name(start), start, sizes[start]) for start in sizes]

    def _find_queues(self, name: str, dtype: np.dtype[Any], queues: dict[QueueKey, QueueFiles]) -> int:
        """Find the queues; return the size that most of their files have, 0 without files."""
        root = self.directory / name
        found: dict[QueueKey, tuple[Path, dict[int, int], bool]] = {}
        topics, _ = self._listings.get(root, lambda: Listing(self._topic_names(root)))
        for topic in filter(self._has_topic, topics):
            queue_ids, _ = self._listings.get(root / topic, partial(self._queue_ids, root / topic))
            for queue_id, directory in queue_ids.items():

                def read(directory: Path = directory) -> Listing[dict[int, int]]:
                    self._empty_file_seen = False
                    sizes = self._numbered(directory, "queue-file", dtype.itemsize)
                    return Listing(sizes, complete=not self._empty_file_seen)

                sizes, was_read = self._listings.get(directory, read)
                found[topic, queue_id] = directory, sizes, was_read
        usual = _usual(size for _, sizes, _ in found.values() for size in sizes.values())
        for key in queues.keys() - found.keys():
            queues.pop(key).close()
        for key, (directory, sizes, was_read) in found.items():
            if was_read or key not in queues:
                self._check_sizes(directory, "queue-file", sizes, usual, unit_size=dtype.itemsize)
                if key in queues:
                    queues[key].close()
                queues[key] = QueueFiles(self.disk, key, directory, dtype, sizes)
        return usual

    def _topic_names(self, root: Path) -> list[str]:
        names = []
        for topic in self.disk.list(root):
            if (root / topic).is_dir():
                names.append(topic)
            else:
                self._stray("queue-file", root / topic, "not a directory of a topic")
        return names

    def _queue_ids(self, directory: Path) -> Listing[dict[int, Path]]:
        """The directories of a topic's queues."""
        found = {}
        for queue_id in self.disk.list(directory):
            path = directory / queue_id
            number = decimal(queue_id)
            if number is not None and path.is_dir():
                found[number] = path
            else:
                self._stray("queue-file", path, "not a directory of a queue")
        return Listing(found)

    def _find_extensions(self) -> None:
        root = self.directory / "consumequeue_ext"
        sizes: list[int] = []
        for topic in self.disk.list(root):
            for queue_id in self.disk.list(root / topic) if (root / topic).is_dir() else ():
                directory = root / topic / queue_id
                if directory.is_dir():
                    sizes += self._numbered(directory, "queue-file").values()
        self.queue_extension_file_size = _usual(sizes)

    def _find_index(self) -> None:
        directory = self.directory / "index"
        for name in self.disk.list(directory):
            path = directory / name
            if not (is_index_name(name) and path.is_file()):
                self._stray("index-file", path, "not a file of the index: its files have names of 17 digits")
                continue
            self.index_files.append(path)

    def _find_timer_log(self) -> None:
        directory = self.directory / "timerlog"
        self.timer_log = self._numbered(directory, "timer-file")
        self._check_sizes(directory, "timer-file", self.timer_log, _usual(self.timer_log.values()))


def _is_store(directory: Path) -> bool:
    with suppress(OSError):
        return not _SIGNS_OF_A_STORE.isdisjoint(path.name for path in directory.iterdir())
    return False


def _usual(sizes: Any) -> int:
    """The size that most files have; of several the largest. 0 without files."""
    return max(((count, size) for size, count in Counter(sizes).items()), default=(0, 0))[1]


Progress = Callable[[int, int], None]
"""Called with the bytes done and the total."""
