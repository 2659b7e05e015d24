"""The measured processes, and their results."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple


class LeftOutError(Exception):
    """A peer is not measured, for the given reason."""


class Peer(NamedTuple):
    """A running server."""

    endpoint: str
    process: subprocess.Popen[bytes]


class Result(NamedTuple):
    """Messages per second, the server's CPU seconds per message, and answer times in milliseconds."""

    rate: float
    cpu: float
    p50: float
    p99: float


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """CPU time of all threads of the process, including ended ones."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def started(command: Sequence[str], port: int, seconds: float, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end of the block. LeftOutError if nothing listens on the port within `seconds`."""
    log = directory / "server.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=directory) as process:
        try:
            deadline = time.monotonic() + seconds
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LeftOutError(f"it did not start: {log.read_text(errors='replace')[-300:]!r}")
                time.sleep(0.2)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
