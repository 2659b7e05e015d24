"""Configuration of a store, and the base of every section of settings: frozen, built once, checked by msgspec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from aerobee_store.errors import ConfigError

PAGE_SIZE = 4096
UNIT_SIZE = 20
BATCH_UNIT_SIZE = 46
DELAY_LEVELS_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
DELAY_SECONDS_MAX = 40 * 86_400
EXTENSION_FILE_SIZE_MIN = 128

FlushMode = Literal["sync", "async"]
WriteMode = Literal["gathered", "mapped", "pool"]

# The bounds of a setting are part of its type.
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, lt=1e9)]
SecondsOrZero = Annotated[float, Meta(ge=0, lt=1e9)]
Hours = Seconds
HoursOfDay = Annotated[tuple[Annotated[int, Meta(ge=0, le=23)], ...], Meta(min_length=1)]
Ratio = Annotated[float, Meta(gt=0, le=1)]
LevelSeconds = Annotated[int, Meta(ge=1, le=DELAY_SECONDS_MAX)]
DelayLevelsSeconds = Annotated[tuple[LevelSeconds, ...], Meta(min_length=1, max_length=64)]
UpTo16 = Annotated[int, Meta(ge=0, le=16)]
AtLeast2 = Annotated[int, Meta(ge=2)]
SegmentSize = Annotated[int, Meta(ge=4096, le=1 << 32)]
QueueFileSize = Annotated[int, Meta(ge=UNIT_SIZE, multiple_of=UNIT_SIZE)]
BatchQueueFileSize = Annotated[int, Meta(ge=BATCH_UNIT_SIZE, multiple_of=BATCH_UNIT_SIZE)]
ExtensionFileSize = Annotated[int, Meta(ge=EXTENSION_FILE_SIZE_MIN, le=1 << 30)]
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list"}


class Section:
    """A section of settings: a frozen dataclass that names its section.

    Each value is checked against its type and bounds when a section is made. A subclass with rules between settings
    checks them in its own `__post_init__`, after calling this one. Raises ConfigError with the full name of the
    setting.
    """

    __slots__ = ()
    section: ClassVar[str]

    def __post_init__(self) -> None:
        for name, kind in settings_of(type(self)).items():
            checked(f"{self.section}.{name}", getattr(self, name), kind)


def settings_of(section: type[Section]) -> dict[str, Any]:
    """The settings of a section with their types, bounds included."""
    if section not in _SETTINGS:
        kinds = get_type_hints(section, include_extras=True)
        _SETTINGS[section] = {name: kinds[name] for name in section.__annotations__ if name != "section"}
    return _SETTINGS[section]


def checked(name: str, value: object, kind: Any, *, from_text: bool = False) -> Any:
    """Return `value` as `kind`. Raises ConfigError with the full name of the setting, the value and the expectation."""
    try:
        return msgspec.convert(value, kind, strict=not from_text)
    except msgspec.ValidationError as error:
        if get_origin(kind) is Literal:
            expected = f"is not one of {', '.join(map(repr, get_args(kind)))}"
        else:
            text = str(error).partition(", got ")[0].partition(" - at ")[0]
            for word, plain in _WORDS.items():
                text = text.replace(f"`{word}`", plain)
            expected = f"is not valid: e{text[1:]}"  # e.g. "expected a whole number >= 1"
        shown = list(value) if isinstance(value, tuple) else value
        raise ConfigError(f"{name}: {shown!r} {expected}") from None


_SETTINGS: dict[type[Section], dict[str, Any]] = {}  # computed on the first use of a section


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(Section):
    """Configuration of a store. Sizes in bytes, durations in seconds. RocketMQ's name of each setting is beside it.

    A setting marked "format" is a property of the files that is not recorded in them. A directory must always be opened
    with the values with which it was written.
    """

    section: ClassVar[str] = "store"

    directory: Path  # storePathRootDir
    commit_log_paths: tuple[Path, ...] = ()  # storePathCommitLog, see log_paths.py; (): <directory>/commitlog
    read_only_commit_log_paths: tuple[Path, ...] = ()  # readOnlyCommitLogStorePaths: existing segments only
    segment_size: SegmentSize = 1 << 30  # mappedFileSizeCommitLog; format
    queue_file_size: QueueFileSize = 300_000 * UNIT_SIZE  # mappedFileSizeConsumeQueue; format
    batch_queue_file_size: BatchQueueFileSize = 300_000 * BATCH_UNIT_SIZE  # mapperFileSizeBatchConsumeQueue; format
    queue_extensions: bool = False  # enableConsumeQueueExt: write tags codes to extended units
    queue_extension_file_size: ExtensionFileSize = 48 << 20  # mappedFileSizeConsumeQueueExt; format
    index: bool = True  # messageIndexEnable: whether messages can be found by key
    index_slot_count: Positive = 5_000_000  # maxHashSlotNum; format
    index_entry_count: AtLeast2 = 20_000_000  # maxIndexNum; format
    flush: FlushMode = "sync"  # flushDiskType
    flush_interval_seconds: Seconds = 0.5  # flushIntervalCommitLog: what async flush may lose in a power failure
    # flushCommitLogLeastPages: of 4 KiB; fewer pages wait for flush_thorough_interval_seconds
    flush_pages_min: Positive = 4
    # flushCommitLogThoroughInterval; 0: half of flush_interval_seconds. If it is longer, a power failure may lose that
    flush_thorough_interval_seconds: SecondsOrZero = 0.0
    # flushCommitLogTimed: look at intervals only; false: enough pages begin a sync as soon as they are there
    flush_timed: bool = True
    write_mode: WriteMode = "gathered"  # see write_modes.py; RocketMQ: transientStorePoolEnable
    pool_buffer_count: AtLeast2 = 5  # transientStorePoolSize: buffers of a segment's size, locked in memory
    pool_fast_failure: bool = False  # fastFailIfNoBufferInStorePool: refuse messages while all buffers are in use
    commit_interval_seconds: Seconds = 0.2  # commitIntervalCommitLog: poll interval of mode "pool"
    # commitCommitLogLeastPages: of 4 KiB; fewer pages are written only when a sender waits ...
    commit_pages_min: Positive = 4
    # commitCommitLogThoroughInterval: ... or this long after the last commit
    commit_thorough_interval_seconds: Seconds = 0.2
    segments_ahead: UpTo16 = 2  # segments preallocated once a quarter of the current one is written; 0: none
    warm_segments: bool = False  # warmMapedFileEnable: fill them with zeros, and lock them in memory if permitted
    derived_flush_interval_seconds: Seconds = 1.0  # flushIntervalConsumeQueue: queues, index, then the checkpoint
    sync_timeout_seconds: Seconds = 5.0  # syncFlushTimeout
    light_queues: bool = True  # enableLmq: append messages to the light queues (%LMQ%...) that they name
    multi_dispatch: bool = False  # enableMultiDispatch: append messages to the queues of other topics that they name
    light_queue_count_max: Positive = 20_000  # maxLmqConsumeQueueNum
    # messageDelayLevel: the delays of the levels 1, 2, ... of clients of RocketMQ 4
    delay_levels_seconds: DelayLevelsSeconds = DELAY_LEVELS_SECONDS
    dispatch_waiting_count_max: Positive = 200_000  # messages that wait for dispatch; more are refused as busy
    dispatch_waiting_bytes_max: Positive = 256 << 20  # the same limit in bytes of the log
    property_crc: bool = True  # enabledAppendPropCRC: a checksum covers every byte of a record
    body_size_max: Positive = 4 << 20  # maxMessageSize
    # with less free space, messages are refused; the rest is for queues, index and tables
    disk_headroom: NotNegative = 64 << 20
    retention_hours: Hours = 72.0  # fileReservedTime: segments that ended earlier are removed
    delete_when_hours: HoursOfDay = (4,)  # deleteWhen: local hours in which expired segments are removed
    retention_interval_seconds: Seconds = 10.0  # cleanResourceInterval: how often disk and files are checked
    retention_batch_max: Positive = 10  # deleteFileBatchMax: segments removed per round
    disk_clean_ratio: Ratio = 0.75  # diskMaxUsedSpaceRatio: above it, expired segments are removed at any hour
    disk_force_clean_ratio: Ratio = 0.85  # diskSpaceCleanForciblyRatio: above it, unexpired segments are removed too
    disk_full_ratio: Ratio = 0.90  # diskSpaceWarningLevelRatio: above it, messages are refused; 1: never
    clean_forcibly: bool = True  # cleanFileForciblyEnable: whether unexpired segments may be removed
    # read rate of the scrub, which searches old segments for damage; 0: off
    scrub_bytes_per_second: NotNegative = 8 << 20
    scrub_interval_hours: Hours = 168.0  # minimum interval between two scrubs of a segment
    store_host: tuple[str, int] = ("127.0.0.1", 8081)  # written into every record and into offset message ids

    @property
    def default_log_path(self) -> Path:
        return self.directory / "commitlog"

    @property
    def log_paths(self) -> Sequence[Path]:
        """The directories of the log, as configured or the default one."""
        return self.commit_log_paths or (self.default_log_path,)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        paths = {path.absolute() for path in self.log_paths}
        if paths.issubset(path.absolute() for path in self.read_only_commit_log_paths):
            raise ConfigError(
                "store.commit_log_paths: every path is read-only; name at least one path for new segments"
            )

        longest = max(self.delay_levels_seconds)
        if self.delay_levels_seconds != DELAY_LEVELS_SECONDS and longest > self.retention_hours * 3600:
            raise ConfigError(
                f"store.delay_levels_seconds: {longest} is longer than store.retention_hours; its messages would "
                f"expire before their delivery. Use shorter delays, or a longer retention"
            )

    @property
    def record_size_max(self) -> int:
        """The largest record: a body, and 64 KiB for everything else (RocketMQ's limit)."""
        return self.body_size_max + (64 << 10)

    @classmethod
    def tiny(cls, directory: Path, *, flush: FlushMode = "sync") -> Self:
        """Files of a few pages, so that tests soon reach the end of a file."""
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
            disk_clean_ratio=1.0,  # tests must not depend on the disk usage of the machine
            disk_force_clean_ratio=1.0,
            disk_full_ratio=1.0,
        )
