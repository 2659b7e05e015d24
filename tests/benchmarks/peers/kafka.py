"""Apache Kafka from its published artefacts: one node, one sync per write, loaded by its ProducerPerformance."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.benchmarks.peers.process import LeftOutError, Peer, Result, cpu_seconds, free_ports, started

HERE: Final = Path(__file__).parent
_START_SECONDS: Final = 60.0
_CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={store}
log.flush.interval.messages=1
num.partitions=1
offsets.topic.replication.factor=1
message.max.bytes=4194304
"""
# A batch size with which Kafka is fast; with one partition, a request holds one batch.
_PRODUCER: Final = ("acks=all", "enable.idempotence=true", "batch.size=524288", "linger.ms=5", "buffer.memory=67108864")


def prepare(directory: Path) -> Path:
    """Download the artefacts with Maven, once. LeftOutError without Java, Maven or the registry."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise LeftOutError(f"{program} is not installed")
    libraries = directory / "kafka"
    if not (libraries / ".complete").exists():
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={libraries}"]
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600).returncode:
            raise LeftOutError("Maven could not fetch Kafka")
        (libraries / ".complete").touch()
    return libraries


@contextmanager
def running(libraries: Path, directory: Path) -> Iterator[Peer]:
    """A node on an empty store."""
    port, controller = free_ports(2)
    settings = directory / "kafka.properties"
    settings.write_text(_SETTINGS.format(port=port, controller=controller, store=directory / "kafka-store"))
    java = ["java", "-Xmx1g", "-cp", f"{libraries}/*"]
    format_store = ["kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID, "--config", str(settings)]
    subprocess.run([*java, *format_store], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with started([*java, "kafka.Kafka", str(settings)], port, _START_SECONDS, directory) as process:
        yield Peer(f"127.0.0.1:{port}", process)


def append(libraries: Path, peer: Peer, payloads: Path, seconds: float) -> Result:
    """Send these payloads, one per line; a first run warms up both JVMs and estimates the number for `seconds`."""
    _load(libraries, peer, payloads, 200_000)
    rate = _load(libraries, peer, payloads, 500_000).rate
    return _load(libraries, peer, payloads, int(rate * seconds))


def _load(libraries: Path, peer: Peer, payloads: Path, count: int) -> Result:
    command = ["java", "-Xmx512m", "-cp", f"{libraries}/*", "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", "bench", "--num-records", str(count), "--throughput", "-1", "--payload-file", str(payloads)]
    command += ["--producer-props", f"bootstrap.servers={peer.endpoint}", *_PRODUCER]
    before, begun = cpu_seconds(peer.process), time.perf_counter()
    output = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    cpu = (cpu_seconds(peer.process) - before) / count
    # "N records sent, X records/sec (Y MB/sec), A ms avg latency, M ms max latency, ... ms 50th, ... ms 99th, ..."
    found = re.findall(r"(\d+) records sent, ([\d.]+) records/sec.* ([\d.]+) ms 50th.* ([\d.]+) ms 99th", output)
    if not found or int(found[-1][0]) != count:
        raise LeftOutError(f"its load program failed after {time.perf_counter() - begun:.0f} s: {output[-200:]!r}")
    _, rate, p50, p99 = found[-1]
    return Result(float(rate), cpu, float(p50), float(p99))
