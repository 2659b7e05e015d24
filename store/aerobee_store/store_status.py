"""A snapshot of a store, for people and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from aerobee_store.disk.file_system import DiskUsage
from aerobee_store.running_flags import RunningFlags

StoreState = Literal["open", "failed", "closed"]


class Segment(Struct, frozen=True):
    """One file of the log; `used`: bytes of it with records."""

    physical_offset: int
    size: int
    used: int
    path: Path


class StoreStatus(Struct, frozen=True):
    """Physical offsets; sizes in bytes."""

    directory: Path
    state: StoreState
    failure: str
    min_offset: int
    wrote: int
    committed: int
    flushed: int
    dispatched: int
    segments: int
    segments_prepared: int
    """Preallocated segments, not counted in `segments`."""
    pool_buffers_free: int | None
    """The number of free buffers; None without a pool, see write_modes.py."""
    segment_size: int
    mapped_files: int
    """Files of log and index that are mapped into memory."""
    mapped_bytes: int
    queues: int
    damaged_ranges: int
    unsynced_seconds: float
    """Age of the oldest answered byte that a power failure could lose; 0 with sync flush."""
    disk: DiskUsage
    """The usage of the partition of the directory."""
    log_disks: Mapping[Path, DiskUsage]
    """The disk usage of each path of the log, including read-only paths; unreadable paths are omitted."""
    disk_full_ratio: float
    """Above this share of a disk, messages are refused; 1: never."""
    oldest_timestamp: int | None
    running_flags: RunningFlags
    refusal: str
    """Why messages or reads are refused; empty if neither."""
