"""Start to ready on an empty store, and the memory of a broker that has nothing to do."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.processes import broker, environment
from tests.benchmarks.report import mebibytes, percentile, table


def run(directory: Path, starts: int = 5) -> None:
    """Start the broker a few times as a user does; the time includes the interpreter's start and all imports."""
    seconds, interpreter, grpc = [], [], []
    resident = own = 0
    with broker(directory, "sync"):
        pass  # whose modules may have to be compiled
    for _ in range(starts):
        started = time.perf_counter()
        with broker(directory, "sync") as running:
            seconds.append(time.perf_counter() - started)
            time.sleep(0.5)
            resident, own = max(resident, running.resident()), max(own, running.memory())
        interpreter.append(_python("pass"))
        grpc.append(_python("import grpc.aio, numpy, uvloop"))
    rows = [
        ("start to ready, empty store", f"{percentile(seconds, 0.5):.2f} s (median of {starts})"),
        ("an interpreter that does nothing", f"{percentile(interpreter, 0.5):.2f} s"),
        ("the same with grpc.aio, numpy and uvloop", f"{percentile(grpc, 0.5):.2f} s"),
        ("resident memory, idle", f"{mebibytes(resident)}, without files and libraries {mebibytes(own)}"),
    ]
    table("The process", ("what", "figure"), rows)


def _python(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
    return time.perf_counter() - started
