"""The time from start to ready on an empty store, and the memory of an idle broker."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from aerobee_client import testing
from tests.benchmarks.processes import broker, environment
from tests.benchmarks.report import mebibytes, percentile, table


def run(directory: Path, starts: int = 10, rest_seconds: float = 5.0) -> None:
    """Start the broker several times as a user does; the time includes the interpreter's start and all imports."""
    seconds, interpreter, grpc = [], [], []
    resident = own = 0
    with broker(directory, "sync"):
        pass  # the first start may have to compile modules
    for _ in range(starts):
        started = time.perf_counter()
        with broker(directory, "sync") as running:
            seconds.append(time.perf_counter() - started)
            if len(seconds) == starts:
                time.sleep(rest_seconds)
                resident, own = running.resident(), running.memory()
        interpreter.append(_python("pass"))
        grpc.append(_python("import grpc.aio, numpy, uvloop"))
    alone, first, next_one = _fixture(starts)
    rows = [
        (
            "start to ready, empty store",
            f"{min(seconds):.2f} s best, {percentile(seconds, 0.5):.2f} s median of {starts}",
        ),
        ("an interpreter that does nothing", f"{percentile(interpreter, 0.5):.2f} s"),
        ("the same with grpc.aio, numpy and uvloop", f"{percentile(grpc, 0.5):.2f} s"),
        ("a broker for tests, store in memory, nothing prepared", f"{percentile(alone, 0.5):.2f} s"),
        ("the same, prepared a second before", f"{percentile(first, 0.5) * 1000:.0f} ms"),
        ("each further one of a program", f"{percentile(next_one, 0.5) * 1000:.0f} ms"),
        (
            f"resident memory after {rest_seconds:g} s without clients",
            f"{mebibytes(resident)}, without files and libraries {mebibytes(own)}",
        ),
    ]
    table("The process", ("what", "figure"), rows)


def _fixture(starts: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds until a broker of `aerobee_client.testing` serves: started alone, as the first, and as a further one."""
    alone, first, next_one = [], [], []
    for _ in range(starts):
        alone.append(_test_broker())
        testing.prepare()
        time.sleep(1)
        first.append(_test_broker())
        next_one.append(_test_broker())
        testing.unprepare()
    return alone, first, next_one


def _test_broker() -> float:
    started = time.perf_counter()
    with testing.run_broker(memory=True):
        return time.perf_counter() - started


def _python(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
    return time.perf_counter() - started
