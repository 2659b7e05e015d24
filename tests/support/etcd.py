"""A real etcd on free loopback ports."""

from __future__ import annotations

import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.programs import program

_SECONDS = 60.0


@contextmanager
def running_etcd(directory: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Its endpoint, as in http://127.0.0.1:2379; with TLS if a certificate and key are given."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    security: list[str] = []
    if certificate is not None:
        client = client.replace("http:", "https:")
        security = ["--cert-file", str(certificate[0]), "--key-file", str(certificate[1])]
    command = [
        *(str(program("etcd")), "--data-dir", str(directory / "etcd"), "--unsafe-no-fsync", "--name", "e"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}"),
        *security,
    ]
    log = directory / "etcd.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_until_healthy(client, process, log)
        yield client
    finally:
        process.kill()
        process.wait()


def _wait_until_healthy(client: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            unchecked = ssl._create_unverified_context()
            with urllib.request.urlopen(f"{client}/health", timeout=5, context=unchecked) as answer:
                if b"true" in answer.read():
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"etcd does not start: {log.read_text()[-2000:]}")
