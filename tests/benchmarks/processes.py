"""The measured servers, each a child process, and their resource use."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.warm_program import WarmProgram, start_warm

_IS_SHORT = "--short" in sys.argv  # the figures say nothing; servers start from a warm process, which is faster
FLUSH_MODES = ("sync", "async")
# Disk usage must not affect the results: above these ratios no segment is created in advance.
ANY_DISK = {f"AEROBEE_STORE_DISK_{name}_RATIO": "1" for name in ("CLEAN", "FORCE_CLEAN", "FULL")}


@dataclass(frozen=True)
class Server:
    """A running server: its addresses (HOST:PORT; empty if it has none) for gRPC, metrics and remoting."""

    endpoint: str
    metrics: str
    process: subprocess.Popen[Any] | WarmProgram
    remoting: str = ""

    def cpu_seconds(self) -> float:
        """CPU time of all its threads since the start, of those that have ended, too."""
        # The clock of another process, as clock_getcpuclockid names it; /proc/PID/stat counts in hundredths.
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def memory(self) -> int:
        """The server's own resident bytes, without file pages, which the kernel can reclaim."""
        return self._status("RssAnon") << 10

    def resident(self) -> int:
        """Resident bytes, including files and libraries."""
        return self._status("VmRSS") << 10

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        raise AssertionError(f"no {name}")

    def metric(self, name: str) -> float:
        """The sum of all samples with this name."""
        text = urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30).read().decode()
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))

    def wait_for(self, name: str, at_least: float) -> None:
        """Return once the metric has reached `at_least`."""
        while self.metric(name) < at_least:
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()


def environment() -> dict[str, str]:
    """Variables for a process that keeps its compiled modules, like an installed one; the first start compiles them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextlib.contextmanager
def server(
    arguments: Sequence[str], settings: Mapping[str, str] | None = None, log: Path = Path(os.devnull)
) -> Iterator[Server]:
    """Run `python ARGUMENTS`, which prints its addresses.

    `settings` are environment variables. `log` is the file for standard error.
    """
    if _IS_SHORT:
        with _warm_server(arguments, settings, log) as running:
            yield running
        return
    command = [sys.executable, *arguments]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment() | dict(settings or {})
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield _found(line, process)
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def _warm_server(arguments: Sequence[str], settings: Mapping[str, str] | None, log: Path) -> Iterator[Server]:
    option, module, *rest = arguments
    assert option == "-m", "a module of ours"
    process = start_warm(module, rest, log=log, environment=environment() | dict(settings or {}))
    try:
        yield _found(process.first_line().decode(), process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _found(line: str, process: subprocess.Popen[Any] | WarmProgram) -> Server:
    found = re.match(r"ready grpc=(\S+)(?: metrics=(\S+))?(?:.* remoting=(\S+))?", line)
    assert found, f"the server did not start: {line!r}"
    return Server(found[1], found[2] or "", process, found[3] or "")


@contextlib.contextmanager
def empty_server() -> Iterator[Server]:
    """The server for the cost of gRPC alone: see empty_server.py."""
    with server(["-m", "tests.benchmarks.empty_server"]) as running:
        yield running


@contextlib.contextmanager
def broker_on(store: Path, flush: str, front: str = "") -> Iterator[Server]:
    """A broker as users start it, on this store. `front` is the gRPC front, if not the default."""
    arguments = ["serve", "--dev", "--store", str(store), "--flush", flush]
    arguments += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    settings = ANY_DISK | ({"AEROBEE_LISTEN_FRONT": front} if front else {})
    with server(["-m", "aerobee_broker", *arguments], settings) as running:
        yield running


@contextlib.contextmanager
def broker(directory: Path, flush: str, front: str = "") -> Iterator[Server]:
    """A broker on an empty store, which is deleted afterwards."""
    with tempfile.TemporaryDirectory(dir=directory) as store, broker_on(Path(store), flush, front) as running:
        yield running
