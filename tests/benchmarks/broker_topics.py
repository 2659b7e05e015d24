"""The memory cost of many topics and clients that are connected but nearly idle.

Each client has its own connection, a Telemetry stream with its settings, and a waiting receive. The same clients on a
server that does nothing are the baseline.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aerobee_client import Message, connect
from tests.benchmarks import loop
from tests.benchmarks.empty_server import RELAY
from tests.benchmarks.processes import Server, broker, empty_server
from tests.benchmarks.report import mebibytes, rate, table
from tests.benchmarks.waiting_client import waiting

BODY_SIZE = 256
_QUEUES = 8  # queues of a topic that is created on first use


def run(directory: Path, topics: int = 1000, clients: int = 500, hold_seconds: float = 3.0) -> None:
    """Print the memory after each step."""
    rows: list[tuple[object, ...]] = []
    with empty_server() as empty:
        rows.append(("empty server", *_memory(empty), "-"))
        loop.run(_hold(empty, [RELAY], clients, hold_seconds, rows, f"empty server, {clients} clients that wait"))
    names = [f"topic-{number}" for number in range(topics)]
    with broker(directory, "async") as running:
        rows.append(("broker", *_memory(running), "-"))
        loop.run(_fill(running, names, rows))
        # Half of the topics have a waiting receive, which gets the stored messages.
        loop.run(_hold(running, names, clients, hold_seconds, rows, f"broker, {clients} clients that wait"))
    head = ("step", "resident", "own memory", "figure")
    table(f"{topics} topics of {_QUEUES} queues with a message of {BODY_SIZE} bytes in each, async flush", head, rows)


async def _fill(running: Server, topics: list[str], rows: list[tuple[object, ...]]) -> None:
    async with connect(running.endpoint, request_timeout_seconds=60) as client:
        producer = client.producer()
        started = time.perf_counter()
        messages = [Message(topic=topic, body=bytes(BODY_SIZE)) for topic in topics for _ in range(_QUEUES)]
        for first in range(0, len(messages), 50 * _QUEUES):
            await producer.send_many(messages[first : first + 50 * _QUEUES])
        seconds = time.perf_counter() - started
    rows.append(("broker, topics created and filled", *_memory(running), f"{rate(len(topics), seconds)} topics"))


async def _hold(
    running: Server, topics: list[str], clients: int, hold_seconds: float, rows: list[tuple[object, ...]], name: str
) -> None:
    started = time.perf_counter()
    async with waiting(running.endpoint, "watchers", topics[:clients], clients):
        seconds = time.perf_counter() - started
        await asyncio.sleep(hold_seconds)  # the receives get the stored messages, and wait again
        rows.append((name, *_memory(running), f"{rate(clients, seconds)} clients"))


def _memory(running: Server) -> tuple[str, str]:
    return mebibytes(running.resident()), mebibytes(running.memory())
