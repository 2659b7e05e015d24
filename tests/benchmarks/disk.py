"""The yardstick of everything durable: how long this disk takes for one `fdatasync`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.benchmarks.report import microseconds, percentile, rate, table


def run(directory: Path) -> None:
    """Write and sync 400-byte records in a file whose blocks exist already, as the store does."""
    path = directory / "fdatasync"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, bytes(4 << 20), 0)
        os.fsync(descriptor)
        rows = []
        for size in (400, 64 << 10):
            data = os.urandom(size)
            seconds = []
            for number in range(2000 if size < 4096 else 500):
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
