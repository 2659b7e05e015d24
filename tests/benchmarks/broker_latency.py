"""Time from a send to its receive on an idle broker: a waiting long poll, one message at a time.

The baselines: a server that passes the message between the two calls in memory, and one sync of the disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from aerobee_client import Message, connect
from tests.benchmarks import loop
from tests.benchmarks.empty_server import RELAY
from tests.benchmarks.processes import FLUSH_MODES, broker, empty_server
from tests.benchmarks.report import milliseconds, percentile, table

BODY_SIZE = 256
_PAUSE_SECONDS = 0.005  # time for the receive to start waiting


def run(directory: Path, messages: int = 300, flush_modes: Sequence[str] = FLUSH_MODES) -> None:
    """Print relay and broker, each with the time until the sender gets its answer."""
    rows = []
    with empty_server() as empty:
        rows.append(_row("relay in memory", *loop.run(_one_by_one(empty.endpoint, RELAY, messages))))
    for flush in flush_modes:
        with broker(directory, flush) as running:
            rows.append(_row(f"broker, {flush} flush", *loop.run(_one_by_one(running.endpoint, "idle", messages))))
    head = ("server", "received p50", "p99", "send answered p50", "p99")
    table(f"Idle latency, {messages} messages of {BODY_SIZE} bytes, one at a time", head, rows)


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
