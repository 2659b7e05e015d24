"""`make bench-replication`: durable sends with and without a replica's acknowledgement, and the rate of catching up.

Master and replica share the machine and its disk, so two brokers do the work of two on the processors of one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.report import machine

_AEROBEE = (sys.executable, "-m", "aerobee_broker")


@contextmanager
def _serve(store: Path, *arguments: str) -> Iterator[dict[str, str]]:
    free = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--listen-remoting", "127.0.0.1:0")
    command = [*_AEROBEE, "serve", "--dev", "--store", str(store), *free, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
        finally:
            process.terminate()


def _bench(endpoint: str, seconds: float, *arguments: str) -> float:
    """Messages a second."""
    command = [*_AEROBEE, "bench", "--endpoint", endpoint, "--duration", str(seconds), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["broker"]["messagesPerSecond"])


def _status(remoting: str) -> Any:
    command = [*_AEROBEE, "replication", "--remoting", remoting, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _wait_for_replica(master: str) -> None:
    while not _status(master)["inSyncSlaveNums"]:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.replication", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (default: 5)")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        root = Path(directory)
        rates = {}
        for acks in ("none", "1"):
            with ExitStack() as stack:
                role = ("--role", "master", "--listen-replicas", "127.0.0.1:0", "--acks", acks)
                master = stack.enter_context(_serve(root / f"a{acks}", *role))
                if acks != "none":
                    stack.enter_context(_serve(root / f"b{acks}", "--role", "replica", "--master", master["remoting"]))
                    _wait_for_replica(master["remoting"])
                rates[acks] = _bench(master["grpc"], arguments.seconds)
                print(f"single sends, 64 in flight, acks {acks}: {rates[acks]:.0f} messages/s", flush=True)
        print(f"acks 1 / acks none: {rates['1'] / rates['none']:.2f}")
        with _serve(root / "a", "--role", "master", "--listen-replicas", "127.0.0.1:0") as master:
            _bench(master["grpc"], arguments.seconds, "--api", "records", "--batch", "1000", "--in-flight", "8")
            end = _status(master["remoting"])["masterCommitLogMaxOffset"]
            began = time.monotonic()
            with _serve(root / "b", "--role", "replica", "--master", master["remoting"]):
                while not any(
                    item["slaveAckOffset"] >= end for item in _status(master["remoting"])["haConnectionInfo"]
                ):
                    time.sleep(0.05)
                seconds = time.monotonic() - began
            print(f"catch-up: {end / 1e6:.0f} MB in {seconds:.1f} s, {end / 1e6 / seconds:.0f} MB/s, with the start")


if __name__ == "__main__":
    main()
