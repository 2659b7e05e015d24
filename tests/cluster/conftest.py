"""A broker with a remoting port, and the RocketMQ releases that connect to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.java_program import Release, prepare

CLIENT_VERSIONS: Final = ("4.9.8", "5.3.3")  # the newest 4.9 in Maven's registry, and a late release 5
MARKS: Final = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),  # the first test downloads; every wait has its own timeout
    pytest.mark.skipif("AEROBEE_CLUSTER" not in os.environ, reason="run by `make test-cluster`"),
]
_CONFIG: Final = """
[transactions]
timeout_seconds = 2.0
check_interval_seconds = 2.0
"""


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def release(request: pytest.FixtureRequest) -> Release:
    return prepare(request.param)


@pytest.fixture
def remoting_address(tmp_path: Path) -> Iterator[str]:
    """The remoting address of a new broker."""
    config = tmp_path / "aerobee.toml"
    config.write_text(_CONFIG)
    with serve(tmp_path / "store", "--dev", "--config", str(config)) as line:
        yield line["remoting"]


@contextmanager
def serve(store: Path, *arguments: str) -> Iterator[dict[str, str]]:
    """Run `aerobee serve` on free ports; yields the addresses in its first line."""
    free = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--listen-remoting", "127.0.0.1:0")
    command = [sys.executable, "-m", "aerobee_broker", "serve", "--store", str(store), *free, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first, *parts = process.stdout.readline().split()
            assert first == "ready"
            yield dict(part.split("=", 1) for part in parts)
        finally:
            process.terminate()
            assert process.wait(30) == 0
