"""Actions of a tool on a store, performed or planned: one entry each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from aerobee_store.config import StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem, is_locked
from aerobee_store.errors import StoreLockedError
from aerobee_store.tools.findings import json_name, known_fields
from aerobee_store.tools.index_layout import DEFAULT_COUNTS, IndexCounts, IndexFileReader, open_index
from aerobee_store.tools.store_files import StoreFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action. `path` is relative to the store's directory, `size` bytes, `count` units or entries."""

    kind: str
    detail: str
    path: str | None = None
    physical_offset: int | None = None
    size: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    count: int | None = None

    def to_json(self) -> dict[str, object]:
        """The known fields, under the names of the findings."""
        return known_fields(self)

    def __str__(self) -> str:
        where = f" {self.path}" if self.path is not None else ""
        return f"{self.kind}{where}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that the files of a store do not record, detected or given. Bytes, and counts of an index file."""

    segment_size: int
    queue_file_size: int
    batch_queue_file_size: int
    index_slot_count: int
    index_entry_count: int
    queue_extension_file_size: int

    def config(self, directory: Path) -> StoreConfig:
        """A configuration for opening the store, with defaults for everything but files."""
        return StoreConfig(
            directory=directory,
            segment_size=self.segment_size,
            queue_file_size=self.queue_file_size,
            batch_queue_file_size=self.batch_queue_file_size,
            index_slot_count=self.index_slot_count,
            index_entry_count=self.index_entry_count,
            queue_extension_file_size=self.queue_extension_file_size,
            disk_headroom=0,
        )

    def to_json(self) -> dict[str, object]:
        return {json_name(field.name): getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSizes:
    """Sizes given by the user; None is detected from the files, or else the default."""

    segment_size: int | None = None
    queue_file_size: int | None = None
    batch_queue_file_size: int | None = None
    index_slot_count: int | None = None
    index_entry_count: int | None = None

    @property
    def index_counts(self) -> IndexCounts | None:
        """Both counts, or None unless both are given."""
        if self.index_slot_count is None or self.index_entry_count is None:
            return None
        return IndexCounts(self.index_slot_count, self.index_entry_count)


def sizes_of(files: StoreFiles, given: GivenSizes) -> Sizes:
    """The sizes with which a store was written: those of most of its files."""
    default = StoreConfig(directory=files.directory)
    counts = given.index_counts
    if counts is None:
        readers = open_index(files.index_files, files.disk.open, None)
        for reader in readers:
            if isinstance(reader, IndexFileReader):
                counts = counts or reader.counts
                reader.close()
    counts = counts or DEFAULT_COUNTS
    return Sizes(
        segment_size=given.segment_size or files.segment_size or default.segment_size,
        queue_file_size=given.queue_file_size or files.queue_file_size or default.queue_file_size,
        batch_queue_file_size=(
            given.batch_queue_file_size or files.batch_queue_file_size or default.batch_queue_file_size
        ),
        index_slot_count=counts.slots,
        index_entry_count=counts.entries,
        queue_extension_file_size=files.queue_extension_file_size or default.queue_extension_file_size,
    )


@contextmanager
def locked(directory: Path, *, create: bool) -> Iterator[None]:
    """Hold the lock of a stopped store. StoreLockedError if a process has it open.

    `create` the lock file if there is none; read-only tools do not, and then hold nothing.
    """
    path = directory / "lock"
    error = StoreLockedError(f"{directory}: a process has this store open; stop it first, or use a backup")
    if not create and not path.exists():
        if is_locked(path):  # through its directory: the file was removed
            raise error
        yield
        return
    try:
        lock = DiskFileSystem().lock(path, b"lock")
    except BlockingIOError:
        raise error from None
    except PermissionError:
        if create:
            raise
        if is_locked(path):
            raise error from None
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            lock.release()


@dataclass(frozen=True, slots=True)
class Moment:
    """A stopped clock, so that the dry run and the real run produce the same names."""

    milliseconds: int

    def now_ms(self) -> int:
        return self.milliseconds

    def monotonic(self) -> float:
        return self.milliseconds / 1000
