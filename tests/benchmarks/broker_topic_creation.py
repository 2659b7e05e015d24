"""Creating many topics: the time per thousand, and the bytes that the broker writes for them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aerobee_client import connect
from tests.benchmarks import loop
from tests.benchmarks.processes import Server, broker
from tests.benchmarks.report import rate, table

IN_FLIGHT = 16


def run(directory: Path, topics: int = 34_000, parts: int = 4) -> None:
    """Print one line for each of `parts` equal parts of these topics."""
    rows: list[tuple[object, ...]] = []
    with broker(directory, "sync") as running:
        loop.run(_create(running, topics, parts, rows))
    table(f"{topics} topics, {IN_FLIGHT} creations in flight", ("topics so far", "seconds", "rate", "written"), rows)


async def _create(running: Server, topics: int, parts: int, rows: list[tuple[object, ...]]) -> None:
    async with connect(running.endpoint, request_timeout_seconds=60) as client:
        for part in range(parts):
            numbers = iter(range(topics * part // parts, topics * (part + 1) // parts))

            async def create() -> None:
                for number in numbers:  # noqa: B023 - awaited within this turn of the loop
                    await client.admin.create_topic(f"topic-{number:06}")

            started, written = time.perf_counter(), _written(running)
            await asyncio.gather(*(create() for _ in range(IN_FLIGHT)))
            seconds = time.perf_counter() - started
            count = topics * (part + 1) // parts - topics * part // parts
            megabytes = f"{(_written(running) - written) / 1e6:.1f} MB"
            rows.append((topics * (part + 1) // parts, f"{seconds:.1f}", f"{rate(count, seconds)} topics", megabytes))


def _written(running: Server) -> int:
    """Bytes that the broker has passed to system calls that write."""
    for line in Path(f"/proc/{running.process.pid}/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "wchar":
            return int(value)
    raise AssertionError("Linux counts them")
