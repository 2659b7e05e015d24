"""Opening a store after a clean stop and after a crash, and verifying it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from aerobee_store import MessageStore, RecordBatch, StoreConfig
from aerobee_store.tools.verify import verify
from tests.benchmarks.disk import ANY_DISK_USAGE, gigabytes
from tests.benchmarks.report import table
from tests.benchmarks.store_append import frame

_ANY_KEY = b"0102FC00"  # the prefix of all keys in a frame


def run(directory: Path, size: int) -> None:
    """Use a log of `size` bytes of 419-byte records, in segments of at most 1 GiB."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        config = StoreConfig(directory=Path(name), flush="async", segment_size=min(size, 1 << 30), **ANY_DISK_USAGE)
        rows = [("written", *_fill(config, size))]
        rows.append(("orderly stop", *_open(config)))
        _crash(config)
        rows.append(("crash, checkpoint there", *_open(config)))
        _crash(config)
        (config.directory / "checkpoint").unlink()
        rows.append(("crash, everything scanned", *_open(config)))
        started, cpu = time.perf_counter(), time.process_time()
        report = verify(config.directory)
        assert report.ok, report.findings
        rows.append(("verified", *_row(report.bytes, time.perf_counter() - started, time.process_time() - cpu)))
    head = ("after", "bytes", "time", "processor", "bytes a second", "of processor time")
    table(f"Store: open and verify {size / (1 << 30):g} GiB of 419-byte records", head, rows)


def _fill(config: StoreConfig, size: int) -> tuple[str, ...]:
    started, cpu = time.perf_counter(), time.process_time()
    with MessageStore.open(config) as store:
        number = written = 0
        template = frame(256)
        while written < size:
            # Only keys change in each batch; encoding every record again would dominate the time.
            data = template.replace(_ANY_KEY, b"%08X" % number)
            store.append_records("bench", 0, RecordBatch.parse(data, base_physical_offset=None, placed=False))
            store.commit()
            written += len(data)
            number += 1
    os.sync()  # otherwise the next step includes it
    return _row(written, time.perf_counter() - started, time.process_time() - cpu)


def _crash(config: StoreConfig) -> None:
    """Turn a cleanly closed store into what a killed process leaves."""
    (config.directory / "abort").touch()


def _open(config: StoreConfig) -> tuple[str, ...]:
    started, cpu = time.perf_counter(), time.process_time()
    store = MessageStore.open(config)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    scanned = store.recovery.end - store.recovery.begin
    store.close()
    return _row(scanned, seconds, cpu)


def _row(size: int, seconds: float, cpu: float) -> tuple[str, ...]:
    bandwidth = (gigabytes(size, seconds), gigabytes(size, cpu)) if size else ("-", "-")
    return f"{size / (1 << 20):,.0f} MiB", f"{seconds:.3f} s", f"{cpu:.3f} s", *bandwidth
