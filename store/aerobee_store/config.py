"""How a store is kept. One frozen object, built once, passed down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from aerobee_store.errors import ConfigError

PAGE_SIZE = 4096
UNIT_SIZE = 20

FlushMode = Literal["sync", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes, durations in seconds. RocketMQ's name of each setting stands beside it.

    What is marked "format" is a property of the files: neither the log nor an index file records it, so a directory
    must always be opened with the values that it was written with.
    """

    directory: Path  # storePathRootDir
    segment_size: int = 1 << 30  # mappedFileSizeCommitLog; format
    queue_file_size: int = 300_000 * UNIT_SIZE  # mappedFileSizeConsumeQueue; format
    index_slot_count: int = 5_000_000  # maxHashSlotNum; format
    index_entry_count: int = 20_000_000  # maxIndexNum; format
    flush: FlushMode = "sync"  # flushDiskType
    flush_interval_seconds: float = 0.5  # flushIntervalCommitLog: what async flush may lose at a power cut
    derived_flush_interval_seconds: float = 1.0  # flushIntervalConsumeQueue: queues, index, then the checkpoint
    sync_timeout_seconds: float = 5.0  # syncFlushTimeout
    property_crc: bool = True  # enabledAppendPropCRC: every byte of a record is under a checksum
    body_size_max: int = 4 << 20  # maxMessageSize
    disk_headroom: int = 64 << 20  # no message is taken when less is left: queues, index and tables need it
    store_host: tuple[str, int] = ("127.0.0.1", 8081)  # written into every record and into offset message ids

    def __post_init__(self) -> None:
        if not 4096 <= self.segment_size <= 1 << 32:
            raise ConfigError(f"store.segment_size: {self.segment_size} is not between 4096 bytes and 4 GiB")
        if self.queue_file_size <= 0 or self.queue_file_size % UNIT_SIZE:
            raise ConfigError(f"store.queue_file_size: {self.queue_file_size} is not a multiple of {UNIT_SIZE}")
        if self.index_slot_count < 1 or self.index_entry_count < 2:
            raise ConfigError("store.index_slot_count must be at least 1 and store.index_entry_count at least 2")
        if self.flush not in ("sync", "async"):
            raise ConfigError(f"store.flush: {self.flush!r} is neither 'sync' nor 'async'")
        if self.disk_headroom < 0:
            raise ConfigError(f"store.disk_headroom: {self.disk_headroom} is negative")
        for name in ("flush_interval_seconds", "derived_flush_interval_seconds", "sync_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"store.{name}: {getattr(self, name)} is not above 0")

    @property
    def record_size_max(self) -> int:
        """The largest record: a body, and 64 KiB for all the rest (as RocketMQ's limit)."""
        return self.body_size_max + (64 << 10)

    @classmethod
    def tiny(cls, directory: Path, *, flush: FlushMode = "sync") -> Self:
        """Files of a few pages, so that tests reach the end of a file at once."""
        return cls(
            directory=directory,
            segment_size=16384,
            queue_file_size=20 * UNIT_SIZE,
            index_slot_count=50,
            index_entry_count=100,
            flush=flush,
            flush_interval_seconds=0.05,
            derived_flush_interval_seconds=0.05,
            body_size_max=8192,
            disk_headroom=0,
        )
