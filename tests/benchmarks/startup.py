"""Start to ready on an empty store, and the memory of a broker that has nothing to do."""

from __future__ import annotations

import time
from pathlib import Path

from tests.benchmarks.report import percentile, table
from tests.benchmarks.unary_send import broker

_STARTS = 5


def run(directory: Path) -> None:
    """Start the broker a few times as a user does; the time includes the interpreter's start and all imports."""
    seconds = []
    resident = 0
    for _ in range(_STARTS):
        started = time.perf_counter()
        with broker(directory, "sync") as (_, _, pid):
            seconds.append(time.perf_counter() - started)
            time.sleep(0.5)
            resident = max(resident, _resident_kib(pid))
    rows = [
        ("start to ready, empty store", f"{percentile(seconds, 0.5):.2f} s (median of {_STARTS})"),
        ("resident memory, idle", f"{resident / 1024:.0f} MiB"),
    ]
    table("The process", ("what", "figure"), rows)


def _resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")
