"""Unary SendMessage compared with a server that only parses the same request and builds the same reply.

Server and load are separate processes, so with two cores each has one. The load repeats one serialized request and
does not parse replies, so that the server is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerobee_proto import v2
from tests.benchmarks import bulk_load, loop
from tests.benchmarks.processes import FLUSH_MODES, Server, broker, empty_server
from tests.benchmarks.report import microseconds, percentile, rate, table

_METHOD = "/apache.rocketmq.v2.MessagingService/SendMessage"
_METADATA = (("x-mq-client-id", "bench@1@0@0"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "GRPC_V2"))
BODY_SIZE = 256
IN_FLIGHT = (1, 16, 64)


def request_bytes(topic: str = "bench") -> bytes:
    """One NORMAL message of 256 bytes with a tag and a key, as the official SDKs send it."""
    message = v2.Message(topic=v2.Resource(name=topic), body=bytes(range(256)))
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
    """Calls per second, their latencies in seconds, and the server's CPU seconds per call."""

    calls_per_second: float
    p50: float
    p99: float
    cpu_per_call: float


async def _load(endpoint: str, in_flight: int, seconds: float, authority: bytes) -> tuple[int, list[float]]:
    latencies: list[float] = []
    data = request_bytes()
    async with bulk_load.channel(endpoint, authority) as channel:
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


def measure(server: Server, in_flight: int, seconds: float, *, authority: bytes = b"") -> Measured:
    """Load the server for `seconds`, after a short warm-up. `authority`: of its certificate, if TLS is used."""
    loop.run(_load(server.endpoint, in_flight, seconds / 8, authority))
    cpu = server.cpu_seconds()
    count, latencies = loop.run(_load(server.endpoint, in_flight, seconds, authority))
    cpu = server.cpu_seconds() - cpu
    return Measured(count / seconds, percentile(latencies, 0.5), percentile(latencies, 0.99), cpu / count)


def run(
    directory: Path,
    seconds: float = 3.0,
    levels: Sequence[int] = IN_FLIGHT,
    flush_modes: Sequence[str] = FLUSH_MODES,
) -> None:
    """Print the empty server, then the broker in both flush modes, at each number of calls in flight."""
    rows: list[tuple[object, ...]] = []
    reference: dict[int, Measured] = {}
    with empty_server() as empty:
        for in_flight in levels:
            reference[in_flight] = measured = measure(empty, in_flight, seconds)
            rows.append(("empty server", *row(in_flight, measured), "1.00", "1.00", "-"))
    throughput: dict[str, float] = {}
    for flush in flush_modes:
        for in_flight in levels:
            with broker(directory, flush) as running:
                measured = measure(running, in_flight, seconds)
                share = measured.calls_per_second / reference[in_flight].calls_per_second
                cpu = measured.cpu_per_call / reference[in_flight].cpu_per_call
                syncs = max(1.0, running.metric("aerobee_store_messages_per_sync_count"))
                per_sync = running.metric("aerobee_store_messages_per_sync_sum") / syncs
                shares = (f"{share:.2f}", f"{cpu:.2f}", f"{per_sync:.1f}")
                rows.append((f"broker, {flush} flush", *row(in_flight, measured), *shares))
            throughput[flush] = measured.calls_per_second
    head = (
        *("server", "in flight", "calls", "p50", "p99", "server CPU a call"),
        *("calls of empty", "CPU of empty", "messages a sync"),
    )
    table(f"Unary SendMessage, {BODY_SIZE}-byte body", head, rows)
    if len(throughput) == len(FLUSH_MODES):
        print(f"  sync / async at {levels[-1]} in flight: {throughput['sync'] / throughput['async']:.2f}")


def row(in_flight: int, measured: Measured) -> tuple[object, ...]:
    """The columns of a measurement that both tables have."""
    return (
        in_flight,
        rate(measured.calls_per_second, 1),
        microseconds(measured.p50),
        microseconds(measured.p99),
        microseconds(measured.cpu_per_call),
    )
