"""Unary SendMessage against a server that does nothing but parse the same request and build the same reply.

Server and load each have a process, so with two cores each has one. The load sends the same serialized request over and
over and does not parse replies: what is measured is the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import uvloop

from aerobee_proto import v2
from tests.benchmarks.report import microseconds, percentile, rate, table

_METHOD = "/apache.rocketmq.v2.MessagingService/SendMessage"
_METADATA = (("x-mq-client-id", "bench@1@0@0"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "GRPC_V2"))
BODY_SIZE = 256
IN_FLIGHT = (1, 16, 64)
_SECONDS = 4.0


def request_bytes() -> bytes:
    """One NORMAL message of 256 bytes with a tag and a key, as the official SDKs send it."""
    message = v2.Message(topic=v2.Resource(name="bench"), body=bytes(range(256)))
    system = message.system_properties
    system.message_id = "0102FC000000014AB00B13010700000000"
    system.tag = "tag"
    system.keys.append("key")
    system.message_type = v2.MessageType.NORMAL
    system.body_encoding = v2.Encoding.IDENTITY
    system.born_host = "127.0.0.1"
    system.born_timestamp.GetCurrentTime()
    return v2.SendMessageRequest(messages=[message]).SerializeToString()


@dataclass(frozen=True)
class Measured:
    """Calls a second, their latencies in seconds, and the server's processor time per call in seconds."""

    calls_per_second: float
    p50: float
    p99: float
    cpu_per_call: float


async def _load(endpoint: str, in_flight: int, seconds: float) -> tuple[int, list[float]]:
    latencies: list[float] = []
    data = request_bytes()
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(_METHOD, request_serializer=None, response_deserializer=None)
        first = v2.SendMessageResponse.FromString(await call(data, metadata=_METADATA))
        assert first.status.code == v2.Code.OK, first
        end = time.perf_counter() + seconds

        async def worker() -> None:
            while (started := time.perf_counter()) < end:
                await call(data, metadata=_METADATA)
                latencies.append(time.perf_counter() - started)

        await asyncio.gather(*(worker() for _ in range(in_flight)))
    return len(latencies), latencies


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure(endpoint: str, pid: int, in_flight: int) -> Measured:
    """Load the server for a few seconds, after a short warm-up."""
    uvloop.run(_load(endpoint, in_flight, 0.5))
    cpu = _cpu_seconds(pid)
    count, latencies = uvloop.run(_load(endpoint, in_flight, _SECONDS))
    cpu = _cpu_seconds(pid) - cpu
    return Measured(count / _SECONDS, percentile(latencies, 0.5), percentile(latencies, 0.99), cpu / count)


@contextlib.contextmanager
def server(arguments: list[str]) -> Iterator[tuple[str, str, int]]:
    """Run a server as a child; give its gRPC endpoint, metrics endpoint and pid."""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"ready grpc=(\S+)(?: metrics=(\S+))?", line)
        assert found, f"the server did not start: {line!r}"
        try:
            yield found[1], found[2] or "", process.pid
        finally:
            process.terminate()
            process.wait(30)


@contextlib.contextmanager
def broker(directory: Path, flush: str) -> Iterator[tuple[str, str, int]]:
    """A broker as a user starts it."""
    with tempfile.TemporaryDirectory(dir=directory) as store:
        arguments = ["serve", "--dev", "--store", store, "--flush", flush]
        arguments += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        with server([sys.executable, "-m", "aerobee_broker", *arguments]) as running:
            yield running


def messages_per_sync(metrics: str) -> float:
    """From the broker's own metrics, over its life."""
    text = urllib.request.urlopen(f"http://{metrics}/metrics", timeout=5).read().decode()
    values = dict(re.findall(r"^aerobee_store_messages_per_sync_(sum|count)\S* (\S+)$", text, re.MULTILINE))
    return float(values["sum"]) / max(1.0, float(values["count"]))


def run(directory: Path) -> None:
    """Print the empty server, then the broker in both flush modes, at each number of calls in flight."""
    rows: list[tuple[object, ...]] = []
    reference: dict[int, Measured] = {}
    with server([sys.executable, "-m", "tests.benchmarks.empty_server"]) as (endpoint, _, pid):
        for in_flight in IN_FLIGHT:
            reference[in_flight] = measured = measure(endpoint, pid, in_flight)
            rows.append(("empty server", *_row(in_flight, measured), "1.00", "-"))
    throughput: dict[str, float] = {}
    for flush in ("sync", "async"):
        for in_flight in IN_FLIGHT:
            with broker(directory, flush) as (endpoint, metrics, pid):
                measured = measure(endpoint, pid, in_flight)
                share = measured.calls_per_second / reference[in_flight].calls_per_second
                per_sync = f"{messages_per_sync(metrics):.1f}"
                rows.append((f"broker, {flush} flush", *_row(in_flight, measured), f"{share:.2f}", per_sync))
            throughput[flush] = measured.calls_per_second
    head = ("server", "in flight", "calls", "p50", "p99", "server CPU a call", "of empty", "messages a sync")
    table(f"Unary SendMessage, {BODY_SIZE}-byte body", head, rows)
    print(f"  sync / async at {IN_FLIGHT[-1]} in flight: {throughput['sync'] / throughput['async']:.2f}")


def _row(in_flight: int, measured: Measured) -> tuple[object, ...]:
    return (
        in_flight,
        rate(measured.calls_per_second, 1),
        microseconds(measured.p50),
        microseconds(measured.p99),
        microseconds(measured.cpu_per_call),
    )
