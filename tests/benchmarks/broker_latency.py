"""Time from a send to its receive on an idle broker: a waiting long poll, one message at a time.

The baselines: a server that passes the message between the two calls in memory, and one sync of the disk. The client is
aerobee_client; where Go is installed, grpc-go measures, too, because its own share is much smaller.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from aerobee_client import Message, connect
from tests.benchmarks import loop
from tests.benchmarks.acknowledge import build_load, receive_request, request_files
from tests.benchmarks.empty_server import RELAY
from tests.benchmarks.processes import FLUSH_MODES, Server, broker, empty_server
from tests.benchmarks.report import milliseconds, percentile, table
from tests.benchmarks.unary_send import BODY_SIZE, request_bytes

_TOPIC: Final = "bench"  # of `request_bytes`
_PAUSE_SECONDS = 0.005  # time for the receive to start waiting


Latencies = tuple[list[float], list[float]]
"""Seconds from the start of each send to the end of its receive, and to its answer."""


def run(
    directory: Path, messages: int = 300, flush_modes: Sequence[str] = FLUSH_MODES, *, with_go: bool = True
) -> None:
    """Print relay and broker, each with the time until the sender gets its answer."""
    rows = []
    with tempfile.TemporaryDirectory(dir=directory) as place:
        clients: dict[str, Callable[[Server, str], Latencies]] = {
            "aerobee_client": lambda running, topic: loop.run(_one_by_one(running.endpoint, topic, messages))
        }
        if with_go and shutil.which("go") is not None:
            clients["grpc-go"] = _go_client(Path(place).resolve(), messages)
        for client, measure in clients.items():
            with empty_server() as empty:
                rows.append((client, *_row("relay in memory", *measure(empty, RELAY))))
            for flush in flush_modes:
                with broker(directory, flush) as running:
                    rows.append((client, *_row(f"broker, {flush} flush", *measure(running, _TOPIC))))
    head = ("client", "server", "received p50", "p99", "send answered p50", "p99")
    table(f"Idle latency, {messages} messages of {BODY_SIZE} bytes, one at a time", head, rows)


def _go_client(place: Path, count: int) -> Callable[[Server, str], Latencies]:
    program = build_load(place)

    def measure(running: Server, topic: str) -> Latencies:
        send = place / "send"
        send.write_bytes(request_bytes(topic))
        command = [str(program), "-target", running.endpoint, "-count", str(count), "-send", str(send)]
        command += request_files(place, receive_request(topic, 1, wait_seconds=10))
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert not result["failures"], result
        received, answered = ([value / 1e6 for value in result[f"{name}_us"]] for name in ("received", "answered"))
        return received, answered

    return measure


async def _one_by_one(endpoint: str, topic: str, count: int) -> tuple[list[float], list[float]]:
    received_after, answered_after = [], []
    async with connect(endpoint, request_timeout_seconds=30) as client:
        producer, consumer = client.producer(), client.simple_consumer("idle-group", topic)
        for number in range(-5, count):
            receiving = asyncio.ensure_future(consumer.receive(1, invisible_seconds=60, wait_seconds=20))
            await asyncio.sleep(_PAUSE_SECONDS if number > -5 else 0.5)  # the first receive also opens its stream
            started = time.perf_counter()
            await producer.send(Message(topic=topic, body=bytes(BODY_SIZE)))
            answered = time.perf_counter()
            received = await receiving
            ended = time.perf_counter()
            assert len(received) == 1
            await consumer.ack(received)
            if number >= 0:  # negative numbers warm up
                received_after.append(ended - started)
                answered_after.append(answered - started)
    return received_after, answered_after


def _row(name: str, received: Sequence[float], answered: Sequence[float]) -> tuple[str, ...]:
    figures = [percentile(values, share) for values in (received, answered) for share in (0.5, 0.99)]
    return (name, *map(milliseconds, figures))
