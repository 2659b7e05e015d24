"""Counters of a store: plain numbers, cheap to update on the write path."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct, field

from aerobee_store.deferred import deferred

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


ALLOCATION_SECONDS_BOUNDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SYNC_SECONDS_BOUNDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
STORED_SECONDS_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
READ_SECONDS_BOUNDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
RECORD_BYTES_BOUNDS = tuple(float((1 << bits) - 1) for bits in (8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 23))
MESSAGES_PER_SYNC_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)


class Histogram:
    """Counts of values up to each bound, the sum and count of all values, and the last value. Not cumulative."""

    __slots__ = ("bounds", "count", "counts", "last", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last bucket: values above every bound
        self.sum = 0.0
        self.count = 0
        self.last = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.count += 1
        self.last = value

    def observe_many(self, values: npt.NDArray[np.float64]) -> None:
        """Like `observe` for each of them in turn."""
        if not len(values):
            return
        buckets = np.searchsorted(self.bounds, values, side="left")
        for bucket, count in zip(*np.unique(buckets, return_counts=True), strict=True):
            self.counts[bucket] += int(count)
        self.sum += float(values.sum())
        self.count += len(values)
        self.last = float(values[-1])


class StoreStats(Struct):
    """Counters since the store was opened. Sizes in bytes, durations in seconds."""

    messages_appended: int = 0
    bytes_appended: int = 0
    messages_dispatched: int = 0
    busy_refusals: int = 0  # appends refused because too much waited for dispatch
    record_sizes: list[int] = field(default_factory=lambda: [0] * 33)
    """Appended records by the number of bits of their size: n bits cover 2**(n-1) to 2**n - 1 bytes. The cheapest way
    to count; `record_bytes` converts to a histogram."""
    stored_seconds: Histogram = field(default_factory=lambda: Histogram(STORED_SECONDS_BOUNDS))  # calls of wait_stored
    messages_read: int = 0
    bytes_read: int = 0  # bytes of their records
    reads_found: int = 0
    reads_missed: int = 0  # reads that found no message, or none that passed the filter
    bitmap_skips: int = 0  # messages that a read skipped by their filter bitmaps
    read_seconds: Histogram = field(default_factory=lambda: Histogram(READ_SECONDS_BOUNDS))
    commits: int = 0
    sync_seconds: Histogram = field(default_factory=lambda: Histogram(SYNC_SECONDS_BOUNDS))
    messages_per_sync: Histogram = field(default_factory=lambda: Histogram(MESSAGES_PER_SYNC_BOUNDS))
    sync_failures: int = 0
    allocation_seconds: Histogram = field(default_factory=lambda: Histogram(ALLOCATION_SECONDS_BOUNDS))
    allocation_failures: int = 0  # failed preallocations of segments
    segment_locks_refused: int = 0  # warm segments that could not be locked in memory
    checksum_failures: int = 0
    units_repaired: int = 0  # queue units that named a wrong place
    tables_changed: int = 0  # configuration files that did not match their checksum
    recovery_seconds: float = 0.0
    segments_expired: int = 0  # removed by retention
    segments_forced: int = 0  # removed unexpired, because the disk was filling up
    derived_files_expired: int = 0  # queue and index files removed
    retention_failures: int = 0  # removals postponed to the next round
    scrubbed_bytes: int = 0
    scrubbed_segments: int = 0
    scrub_damage: int = 0  # newly found damaged ranges

    @property
    def record_bytes(self) -> Histogram:
        """The sizes of all appended records."""
        histogram = Histogram(RECORD_BYTES_BOUNDS)
        for bits, count in enumerate(self.record_sizes):
            histogram.counts[bisect_left(RECORD_BYTES_BOUNDS, (1 << bits) - 1)] += count
        histogram.count = sum(self.record_sizes)
        histogram.sum = self.bytes_appended
        return histogram

    def count_sizes(self, sizes: npt.NDArray[np.int64]) -> None:
        """Count the sizes of many records at once, at least one."""
        if not sizes.strides[0]:  # all sizes are equal
            self.record_sizes[int(sizes[0]).bit_length()] += len(sizes)
            return
        _, bits = np.frexp(sizes)
        for number, count in enumerate(np.bincount(bits).tolist()):
            self.record_sizes[number] += count
