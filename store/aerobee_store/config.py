"""How a store is kept. One frozen object, built once, passed down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from aerobee_store.errors import ConfigError

PAGE_SIZE = 4096
UNIT_SIZE = 20
BATCH_UNIT_SIZE = 46
EXTENSION_FILE_SIZE_MIN = 128

FlushMode = Literal["sync", "async"]
WriteMode = Literal["gathered", "mapped", "pool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Sizes in bytes, durations in seconds. RocketMQ's name of each setting stands beside it.

    What is marked "format" is a property of the files: neither the log nor an index file records it, so a directory
    must always be opened with the values that it was written with.
    """

    directory: Path  # storePathRootDir
    commit_log_paths: tuple[Path, ...] = ()  # storePathCommitLog, see log_paths.py; (): <directory>/commitlog
    read_only_commit_log_paths: tuple[Path, ...] = ()  # readOnlyCommitLogStorePaths: get no new segment
    segment_size: int = 1 << 30  # mappedFileSizeCommitLog; format
    queue_file_size: int = 300_000 * UNIT_SIZE  # mappedFileSizeConsumeQueue; format
    batch_queue_file_size: int = 300_000 * BATCH_UNIT_SIZE  # mapperFileSizeBatchConsumeQueue; format
    queue_extensions: bool = False  # enableConsumeQueueExt: new units have their tags code in an extended unit
    queue_extension_file_size: int = 48 << 20  # mappedFileSizeConsumeQueueExt; format
    index_slot_count: int = 5_000_000  # maxHashSlotNum; format
    index_entry_count: int = 20_000_000  # maxIndexNum; format
    flush: FlushMode = "sync"  # flushDiskType
    flush_interval_seconds: float = 0.5  # flushIntervalCommitLog: what async flush may lose at a power cut
    flush_pages_min: int = 4  # flushCommitLogLeastPages: of 4 KiB; fewer wait for half of flush_interval_seconds
    write_mode: WriteMode = "gathered"  # how records reach the page cache, see write_modes.py; transientStorePoolEnable
    pool_buffer_count: int = 5  # transientStorePoolSize: buffers of a segment's size, locked in memory
    pool_fast_failure: bool = False  # fastFailIfNoBufferInStorePool: refuse messages while all buffers are in use
    commit_interval_seconds: float = 0.2  # commitIntervalCommitLog: how often mode "pool" looks at its buffers
    commit_pages_min: int = 4  # commitCommitLogLeastPages: of 4 KiB, before it writes them unasked ...
    commit_thorough_interval_seconds: float = 0.2  # commitCommitLogThoroughInterval: ... or this long after the last
    segments_ahead: int = 2  # segments made in advance, once a quarter of the one in use is written; 0: none
    warm_segments: bool = False  # warmMapedFileEnable: ... really written, and locked in memory if that is permitted
    derived_flush_interval_seconds: float = 1.0  # flushIntervalConsumeQueue: queues, index, then the checkpoint
    sync_timeout_seconds: float = 5.0  # syncFlushTimeout
    light_queues: bool = True  # enableLmq: a message is also in the light queues (%LMQ%...) that it names
    multi_dispatch: bool = False  # enableMultiDispatch: ... and in the queues of other topics that it names
    light_queue_count_max: int = 20_000  # maxLmqConsumeQueueNum
    dispatch_waiting_count_max: int = 200_000  # messages that wait for the disk, then for queues and index; then: busy
    dispatch_waiting_bytes_max: int = 256 << 20  # the same in bytes of the log
    property_crc: bool = True  # enabledAppendPropCRC: every byte of a record is under a checksum
    body_size_max: int = 4 << 20  # maxMessageSize
    disk_headroom: int = 64 << 20  # no message is taken when less is left: queues, index and tables need it
    retention_hours: float = 72.0  # fileReservedTime: segments that ended longer ago than this are removed
    delete_when_hours: tuple[int, ...] = (4,)  # deleteWhen: local hours of the day in which they are
    retention_interval_seconds: float = 10.0  # cleanResourceInterval: how often disk and files are looked at
    retention_batch_max: int = 10  # deleteFileBatchMax: segments removed each time at most
    disk_clean_ratio: float = 0.75  # diskMaxUsedSpaceRatio: used above this, expired segments go at any hour
    disk_force_clean_ratio: float = 0.85  # diskSpaceCleanForciblyRatio: ... and unexpired ones, too
    disk_full_ratio: float = 0.90  # diskSpaceWarningLevelRatio: ... and no message is taken; 1: never
    clean_forcibly: bool = True  # cleanFileForciblyEnable: whether unexpired segments may go at all
    scrub_bytes_per_second: int = 8 << 20  # how fast old segments are re-read to find damage; 0: not at all
    scrub_interval_hours: float = 168.0  # how long a segment is left alone after that
    store_host: tuple[str, int] = ("127.0.0.1", 8081)  # written into every record and into offset message ids

    def __post_init__(self) -> None:
        paths = {path.absolute() for path in self.commit_log_paths or (self.directory / "commitlog",)}
        if paths.issubset(path.absolute() for path in self.read_only_commit_log_paths):
            raise ConfigError(
                "store.commit_log_paths: every path is read-only; name one that new segments can be made in"
            )
        if not 4096 <= self.segment_size <= 1 << 32:
            raise ConfigError(f"store.segment_size: {self.segment_size} is not between 4096 bytes and 4 GiB")
        if self.queue_file_size <= 0 or self.queue_file_size % UNIT_SIZE:
            raise ConfigError(f"store.queue_file_size: {self.queue_file_size} is not a multiple of {UNIT_SIZE}")
        if self.batch_queue_file_size <= 0 or self.batch_queue_file_size % BATCH_UNIT_SIZE:
            raise ConfigError(
                f"store.batch_queue_file_size: {self.batch_queue_file_size} is not a multiple of {BATCH_UNIT_SIZE}"
            )
        if not EXTENSION_FILE_SIZE_MIN <= self.queue_extension_file_size <= 1 << 30:
            raise ConfigError(
                f"store.queue_extension_file_size: {self.queue_extension_file_size} is not between "
                f"{EXTENSION_FILE_SIZE_MIN} bytes and 1 GiB"
            )
        if self.index_slot_count < 1 or self.index_entry_count < 2:
            raise ConfigError("store.index_slot_count must be at least 1 and store.index_entry_count at least 2")
        if self.flush not in ("sync", "async"):
            raise ConfigError(f"store.flush: {self.flush!r} is neither 'sync' nor 'async'")
        if self.write_mode not in ("gathered", "mapped", "pool"):
            raise ConfigError(f"store.write_mode: {self.write_mode!r} is not one of 'gathered', 'mapped', 'pool'")
        if self.pool_buffer_count < 2:
            raise ConfigError(
                f"store.pool_buffer_count: {self.pool_buffer_count} is less than 2: while one buffer is written to "
                f"its file, another takes messages"
            )
        if not 0 <= self.segments_ahead <= 16:
            raise ConfigError(f"store.segments_ahead: {self.segments_ahead} is outside 0..16")
        for name in ("flush_pages_min", "commit_pages_min"):
            if getattr(self, name) < 1:
                raise ConfigError(f"store.{name}: {getattr(self, name)} is less than 1")
        if self.disk_headroom < 0:
            raise ConfigError(f"store.disk_headroom: {self.disk_headroom} is negative")
        if not self.delete_when_hours or not all(0 <= hour <= 23 for hour in self.delete_when_hours):
            raise ConfigError(
                f"store.delete_when_hours: {list(self.delete_when_hours)} is not a list of hours from 0 to 23, as [4]"
            )
        for name in ("disk_clean_ratio", "disk_force_clean_ratio", "disk_full_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"store.{name}: {getattr(self, name)} is not above 0 and at most 1")
        for name in ("dispatch_waiting_count_max", "dispatch_waiting_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"store.{name}: {getattr(self, name)} is less than 1")
        if self.light_queue_count_max < 1:
            raise ConfigError(f"store.light_queue_count_max: {self.light_queue_count_max} is less than 1")
        if self.retention_batch_max < 1:
            raise ConfigError(f"store.retention_batch_max: {self.retention_batch_max} is less than 1")
        if self.scrub_bytes_per_second < 0:
            raise ConfigError(f"store.scrub_bytes_per_second: {self.scrub_bytes_per_second} is negative; 0 is off")
        for name in (
            "flush_interval_seconds",
            "commit_interval_seconds",
            "commit_thorough_interval_seconds",
            "derived_flush_interval_seconds",
            "sync_timeout_seconds",
            "retention_hours",
            "retention_interval_seconds",
            "scrub_interval_hours",
        ):
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
            batch_queue_file_size=10 * BATCH_UNIT_SIZE,
            queue_extension_file_size=256,
            index_slot_count=50,
            index_entry_count=100,
            segments_ahead=0,
            flush=flush,
            flush_interval_seconds=0.05,
            derived_flush_interval_seconds=0.05,
            body_size_max=8192,
            disk_headroom=0,
            disk_clean_ratio=1.0,  # how full the machine's disk is, is not the test's business
            disk_force_clean_ratio=1.0,
            disk_full_ratio=1.0,
        )
