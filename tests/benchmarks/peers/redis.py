"""Redis Streams, if `redis-server` and `redis-benchmark` are installed: every write is synced before its answer."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.benchmarks.peers.process import LeftOutError, Peer, Result, cpu_seconds, free_ports, started

_CONNECTIONS: Final = 4
_PIPELINE: Final = 500


def prepare() -> None:
    """Raise LeftOutError if the programs are missing."""
    for program in ("redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            raise LeftOutError(f"{program} is not installed: apt-get install redis-server redis-tools")


@contextmanager
def running(directory: Path) -> Iterator[Peer]:
    """A server on an empty store."""
    (port,) = free_ports(1)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]
    with started(command, port, 10.0, directory) as process:
        yield Peer(f"127.0.0.1:{port}", process)


def append(peer: Peer, body: str, seconds: float) -> Result:
    """XADD to one stream, pipelined over a few connections."""
    rate = _load(peer, body, 100_000).rate
    return _load(peer, body, int(rate * seconds))


def _load(peer: Peer, body: str, count: int) -> Result:
    port = peer.endpoint.rpartition(":")[2]
    command = ["redis-benchmark", "-p", port, "-n", str(count), "-c", str(_CONNECTIONS), "-P", str(_PIPELINE), "--csv"]
    before = cpu_seconds(peer.process)
    output = subprocess.run(
        [*command, "XADD", "bench", "*", "body", body], capture_output=True, text=True, timeout=600, check=True
    ).stdout
    cpu = (cpu_seconds(peer.process) - before) / count
    # Test, requests a second, average, minimum, p50, p95, p99, maximum in ms
    figures = re.findall(r'"([\d.]+)"', output.strip().splitlines()[-1].partition('","')[2].join(('"', "")))
    return Result(float(figures[0]), cpu, float(figures[3]), float(figures[5]))
