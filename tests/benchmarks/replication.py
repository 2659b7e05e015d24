"""`make bench-replication`: sends by both protocols, durable sends with and without a replica, the rate of catching up
compared with the disk's, and the time without service at a fail-over.

    python -m tests.benchmarks.replication [protocols] [acks] [catch-up] [fail-over]

Master and replica share the machine and its disk, so one machine's CPUs do the work of two brokers. Where Java and
Maven are installed, the released client of RocketMQ 4.9 sends, too; where etcd is, it keeps the lease of the fail-over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Answer
from tests.benchmarks import remoting_send
from tests.benchmarks.report import machine, percentile
from tests.support.etcd import running_etcd
from tests.support.java_classes import java_classes
from tests.support.lease_group import Member, running

_IN_FLIGHT = (1, 16, 64)
_ROUNDS = 3  # rounds of acks none and acks 1, in turn
_BODY_SIZE = 256
_TICKS = os.sysconf("SC_CLK_TCK")
_AEROBEE = (sys.executable, "-m", "aerobee_broker")
_JAVA_RELEASE = "4.9.8"
_JAVA_SOURCE = Path(__file__).parent / "RemotingLoad.java"
_CLUSTER_TESTS = Path(__file__).parents[1] / "cluster"
_FAIL_OVERS = 20
_LEASE_SECONDS = 3


@contextmanager
def _serve(store: Path, *arguments: str) -> Iterator[dict[str, str]]:
    free = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--listen-remoting", "127.0.0.1:0")
    command = [*_AEROBEE, "serve", "--dev", "--store", str(store), *free, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield {
                **dict(part.split("=", 1) for part in process.stdout.readline().split()[1:]),
                "pid": str(process.pid),
            }
        finally:
            process.terminate()


def _bench(endpoint: str, seconds: float, *arguments: str) -> float:
    """Messages per second."""
    command = [*_AEROBEE, "bench", "--endpoint", endpoint, "--duration", str(seconds), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["broker"]["messagesPerSecond"])


def _processor_seconds(broker: dict[str, str]) -> float:
    """CPU seconds that the process has used."""
    fields = Path(f"/proc/{broker['pid']}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _protocols(root: Path, seconds: float) -> None:
    """Single durable sends to one broker by gRPC and by remoting."""
    java = _java_load()
    with _serve(root / "protocols") as broker:
        for in_flight in _IN_FLIGHT:
            grpc = _bench(broker["grpc"], seconds, "--in-flight", str(in_flight), "--size", str(_BODY_SIZE))
            address = Address.parse(broker["remoting"])
            remoting, p99 = asyncio.run(remoting_send.measure(address, seconds, in_flight, _BODY_SIZE))
            print(
                f"single sends, {in_flight} in flight: gRPC {grpc:.0f} messages/s, remoting {remoting:.0f} messages/s "
                f"(p99 {p99 * 1000:.1f} ms)",
                flush=True,
            )
            if java:
                _java_sends(java, broker, seconds, in_flight)


def _java_load() -> list[str]:
    """The command line of RocketMQ's own client; empty, with a line that says why, if it cannot run here."""
    target = _CLUSTER_TESTS / "target" / f"load-{_JAVA_RELEASE}"
    try:
        java, class_path = java_classes(_JAVA_RELEASE, target, _CLUSTER_TESTS / "pom.xml", [_JAVA_SOURCE])
    except pytest.skip.Exception as reason:
        print(f"no sends by RocketMQ's client {_JAVA_RELEASE}: {reason}", flush=True)
        return []
    return [java, "-Xmx512m", f"-Duser.home={target}", "-cp", class_path, "RemotingLoad"]


def _java_sends(java: list[str], broker: dict[str, str], seconds: float, in_flight: int) -> None:
    arguments = (broker["remoting"], "aerobee-java", str(in_flight), str(seconds), str(_BODY_SIZE))
    process = subprocess.Popen([*java, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # warm
    before = _processor_seconds(broker)
    count, p50, p99 = process.stdout.readline().split()
    used = _processor_seconds(broker) - before
    process.wait()
    print(
        f"  RocketMQ's client {_JAVA_RELEASE}: {float(count) / seconds:.0f} messages/s (p50 {float(p50):.1f} ms, "
        f"p99 {float(p99):.1f} ms), {used / float(count) * 1e6:.0f} us of processor a message in the broker",
        flush=True,
    )


def _acknowledged(root: Path, acks: str, number: int, seconds: float) -> tuple[float, float]:
    """Messages per second, and CPU microseconds per message of master and replica together."""
    with ExitStack() as stack:
        role = ("--role", "master", "--listen-replicas", "127.0.0.1:0", "--acks", acks)
        master = stack.enter_context(_serve(root / f"a{acks}{number}", *role))
        brokers = [master]
        if acks != "none":
            replica = _serve(root / f"b{acks}{number}", "--role", "replica", "--master", master["remoting"])
            brokers.append(stack.enter_context(replica))
            _wait_for_replica(master["remoting"])
        before = sum(map(_processor_seconds, brokers))
        rate = _bench(master["grpc"], seconds)
        used = sum(map(_processor_seconds, brokers)) - before
        return rate, used / (rate * seconds) * 1e6


def _disk(root: Path, size: int) -> float:
    """Bytes per second for a file written in steps of 1 MiB and synced at the end."""
    block = os.urandom(1 << 20)
    began = time.monotonic()
    with (root / "disk").open("wb") as file:
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fdatasync(file.fileno())
    taken = time.monotonic() - began
    (root / "disk").unlink()
    return (size >> 20 << 20) / taken


def _status(remoting: str) -> Any:
    command = [*_AEROBEE, "replication", "--remoting", remoting, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _wait_for_replica(master: str) -> None:
    while not _status(master)["inSyncSlaveNums"]:
        time.sleep(0.1)


def _acks(root: Path, seconds: float) -> None:
    """Sends that wait for a replica, and sends that do not."""
    found: dict[str, list[tuple[float, float]]] = {"none": [], "1": []}
    for number in range(_ROUNDS):
        for acks, measured in found.items():
            measured.append(_acknowledged(root, acks, number, seconds))
    rates = {acks: statistics.median(rate for rate, _ in measured) for acks, measured in found.items()}
    for acks, measured in found.items():
        used = statistics.median(microseconds for _, microseconds in measured)
        print(
            f"single sends, 64 in flight, acks {acks}: {rates[acks]:.0f} messages/s, "
            f"{used:.0f} us of processor a message in all brokers",
            flush=True,
        )
    print(f"acks 1 / acks none: {rates['1'] / rates['none']:.2f}", flush=True)


def _catch_up(root: Path, seconds: float) -> None:
    """A new replica of a master with a large log."""
    with _serve(root / "a", "--role", "master", "--listen-replicas", "127.0.0.1:0") as master:
        _bench(master["grpc"], seconds, "--api", "records", "--batch", "1000", "--in-flight", "8")
        end = _status(master["remoting"])["masterCommitLogMaxOffset"]
        began = time.monotonic()
        with _serve(root / "b", "--role", "replica", "--master", master["remoting"]):
            while not any(item["slaveAckOffset"] >= end for item in _status(master["remoting"])["haConnectionInfo"]):
                time.sleep(0.05)
            taken = time.monotonic() - began
    disk = _disk(root, max(end, 64 << 20))
    print(
        f"catch-up: {end / 1e6:.0f} MB in {taken:.1f} s, {end / 1e6 / taken:.0f} MB/s with the start of the "
        f"replica; the disk alone {disk / 1e6:.0f} MB/s",
        flush=True,
    )


def _fail_over(root: Path, seconds: float) -> None:
    """The master is killed; the replica takes the lease in etcd once it has expired."""
    directory = root / "fail-over"
    directory.mkdir()
    try:
        with running_etcd(directory) as etcd:
            gaps = asyncio.run(_gaps(directory, etcd))
    except pytest.skip.Exception as reason:
        print(f"no fail-over: {reason}", flush=True)
        return
    print(
        f"without service at {len(gaps)} fail-overs by kill: p50 {percentile(gaps, 0.5):.2f} s, "
        f"p99 {percentile(gaps, 0.99):.2f} s; the lease lasts {_LEASE_SECONDS} s",
        flush=True,
    )


async def _gaps(directory: Path, etcd: str) -> list[float]:
    """Seconds from each kill of the master until the other broker confirms a message."""
    gaps: list[float] = []
    members = [Member(directory, broker_id, etcd, lease_seconds=_LEASE_SECONDS) for broker_id in (1, 2)]
    async with running(*members):
        master, other = members
        for _ in range(_FAIL_OVERS):
            await master.becomes_master(in_sync=2)
            while await master.send(b"before") != Answer.SUCCESS:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            master.kill()
            began = time.monotonic()
            while await other.send(b"after", 1.0) != Answer.SUCCESS:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - began)
            master.start()
            master, other = other, master
    return gaps


_PARTS = {"protocols": _protocols, "acks": _acks, "catch-up": _catch_up, "fail-over": _fail_over}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.replication", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *_PARTS], help="which parts (all)")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (default: 5)")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for name in arguments.names or _PARTS:
            _PARTS[name](Path(directory), arguments.seconds)


if __name__ == "__main__":
    main()
