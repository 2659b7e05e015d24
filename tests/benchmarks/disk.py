"""The baselines: the time of one `fdatasync`, and the bandwidth of disk and memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from zlib_ng.zlib_ng import crc32

from tests.benchmarks.report import microseconds, percentile, rate, table

# Settings of a store that takes messages on a disk that is full of other files.
ANY_DISK_USAGE: Final[dict[str, Any]] = {"disk_force_clean_ratio": 1.0, "disk_full_ratio": 1.0}
_CHUNK = 1 << 20


def run(directory: Path) -> None:
    """Print both tables, for 256 MiB."""
    fdatasync(directory, 2000)
    bandwidth(directory, 256 << 20)


def fdatasync(directory: Path, count: int) -> None:
    """Write and sync 400-byte records, then 64 KiB, in a file with allocated blocks, as the store does."""
    path = directory / "fdatasync"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, bytes(4 << 20), 0)
        os.fsync(descriptor)
        rows = []
        for size in (400, 64 << 10):
            data = os.urandom(size)
            seconds = []
            for number in range(count if size < 4096 else max(1, count // 4)):
                os.pwrite(descriptor, data, number * size % (3 << 20))
                started = time.perf_counter()
                os.fdatasync(descriptor)
                seconds.append(time.perf_counter() - started)
            rows.append(
                (
                    f"{size} bytes",
                    microseconds(percentile(seconds, 0.5)),
                    microseconds(percentile(seconds, 0.99)),
                    rate(len(seconds), sum(seconds)),
                )
            )
    finally:
        os.close(descriptor)
        path.unlink()
    table(f"The disk under {directory}: fdatasync after one write", ("written", "p50", "p99", "rate"), rows)


def bandwidth(directory: Path, size: int) -> None:
    """Bytes per second of memory, checksum, page cache and disk, in steps of 1 MiB through `size` bytes."""
    path = directory / "bandwidth"
    data = os.urandom(_CHUNK)
    source = os.urandom(min(size, 64 << 20))  # larger than the CPU cache
    target = bytearray(source)
    steps = max(1, size // _CHUNK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        seconds = {}
        started = time.perf_counter()
        target[:] = source
        seconds["memory copy"] = (time.perf_counter() - started) * size / len(source)
        started = time.perf_counter()
        crc32(source)
        seconds["CRC-32 in one go"] = (time.perf_counter() - started) * size / len(source)
        os.posix_fallocate(descriptor, 0, steps * _CHUNK)
        started = time.perf_counter()
        for step in range(steps):
            os.pwrite(descriptor, data, step * _CHUNK)
        seconds["write to the page cache"] = time.perf_counter() - started
        os.fdatasync(descriptor)
        seconds["write and fdatasync at the end"] = time.perf_counter() - started
        started = time.perf_counter()
        for step in range(steps):
            os.pread(descriptor, _CHUNK, step * _CHUNK)
        seconds["read from the page cache"] = time.perf_counter() - started
    finally:
        os.close(descriptor)
        path.unlink()
    rows = [(name, gigabytes(steps * _CHUNK, taken)) for name, taken in seconds.items()]
    table(f"Bandwidth, {size >> 20} MiB", ("of", "figure"), rows)


def gigabytes(size: float, seconds: float) -> str:
    """GB/s, where 1 GB is 10^9 bytes."""
    return f"{size / seconds / 1e9:.2f} GB/s"
