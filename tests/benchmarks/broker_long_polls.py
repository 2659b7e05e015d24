"""Thousands of waiting receives: memory of each, wake-up time, and idle CPU time.

The baseline for memory is the same load on a server that does nothing.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aerobee_client import Message, connect
from tests.benchmarks import loop
from tests.benchmarks.empty_server import RELAY
from tests.benchmarks.processes import Server, broker, empty_server
from tests.benchmarks.report import milliseconds, percentile, table
from tests.benchmarks.waiting_client import waiting

BODY_SIZE = 256
_CLIENTS = 20
_TOPICS = 50


def run(directory: Path, polls: int = 4000, messages: int = 200, idle_seconds: float = 5.0) -> None:
    """Print memory, CPU time and wake-up time of both servers."""
    rows = []
    with empty_server() as empty:
        rows.append(("empty server", *loop.run(_measured(empty, [RELAY], polls, messages, idle_seconds))))
    topics = [f"poll-{number}" for number in range(_TOPICS)]
    with broker(directory, "async") as running:
        rows.append(("broker, async flush", *loop.run(_measured(running, topics, polls, messages, idle_seconds))))
    head = ("server", "memory each", "processor while idle", "woken p50", "p99")
    title = f"{polls} receives that wait, of {_CLIENTS} connections, on {_TOPICS} topics; {BODY_SIZE}-byte messages"
    table(title, head, rows)


async def _measured(
    running: Server, topics: list[str], polls: int, messages: int, idle_seconds: float
) -> tuple[str, ...]:
    async with connect(running.endpoint, request_timeout_seconds=60) as client:
        producer = client.producer()
        async with waiting(running.endpoint, "pollers", topics, _CLIENTS):  # the cost of the topics alone
            await asyncio.sleep(1)
        before = running.memory()
        lines = [topics[number % len(topics)] for number in range(polls)]
        async with waiting(running.endpoint, "pollers", lines, _CLIENTS) as arrivals:
            await _all_wait(running, polls)
            each = (running.memory() - before) / polls
            cpu = running.cpu_seconds()
            await asyncio.sleep(idle_seconds)
            share = (running.cpu_seconds() - cpu) / idle_seconds
            latencies = []
            for number in range(messages):
                body = b"%d" % number + bytes(BODY_SIZE - len(b"%d" % number))
                sent = time.perf_counter()
                await producer.send(Message(topic=topics[number % len(topics)], body=body))
                async with asyncio.timeout(10):
                    arrived, got = await arrivals.get()
                assert got == body
                latencies.append(arrived - sent)
    wakes = (percentile(latencies, 0.5), percentile(latencies, 0.99))
    return (f"{each / 1024:.1f} KiB", f"{share:.1%}", *map(milliseconds, wakes))


async def _all_wait(running: Server, polls: int) -> None:
    """Return once the server has all polls, as far as its CPU time shows."""
    async with asyncio.timeout(60):
        if running.metrics:
            await asyncio.to_thread(running.wait_for, "aerobee_long_polls", polls)
        before = -1.0
        while (cpu := running.cpu_seconds()) - before > 0.02:  # the server has become idle
            before = cpu
            await asyncio.sleep(0.5)
