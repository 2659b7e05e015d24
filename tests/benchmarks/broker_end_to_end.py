"""Messages sent, then received and acknowledged, with the official Python SDK and with `aerobee_client`.

The baseline is the same client on a server that stores nothing: the difference is the broker's cost. In both phases
the load runs in a separate process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerobee_client import Message, connect
from tests.benchmarks import loop
from tests.benchmarks.processes import FLUSH_MODES, Server, broker, empty_server
from tests.benchmarks.report import microseconds, rate, table
from tests.benchmarks.sdk_load import THREADS as SDK_THREADS

BODY_SIZE = 256
SENDERS = 64
RECEIVERS = 4
BATCH = 16
_TOPIC, _GROUP = "bench", "benchmarks"


Load = Callable[[str, str, int], float]
"""Endpoint, `send` or `receive`, and the number of messages; returns the seconds it took."""


@dataclass(frozen=True)
class Measured:
    """Seconds and the server's CPU seconds, of sends, and of receives with acknowledgements."""

    sent: float
    sent_cpu: float
    received: float
    received_cpu: float


def run(
    directory: Path,
    messages: int = 12_000,
    sdk_messages: int = 3_000,
    flush_modes: Sequence[str] = FLUSH_MODES,
) -> None:
    """Print both clients on the empty server, and on the broker in both flush modes."""
    title = f"aerobee_client, {SENDERS} sends at once; {RECEIVERS} receives of {BATCH}, acknowledged together"
    _compare(directory, title, messages, _through_client, flush_modes)
    title = f"the official Python SDK, {SDK_THREADS} threads; receives of {BATCH}, acknowledged one by one"
    _compare(directory, title, sdk_messages, _through_sdk, flush_modes)


def _compare(directory: Path, title: str, count: int, load: Load, flush_modes: Sequence[str]) -> None:
    rows: list[tuple[object, ...]] = []
    with empty_server() as empty:
        reference = _measured(empty, count, load)
        rows.append(("empty server", *_row(reference, reference, count)))
    for flush in flush_modes:
        with broker(directory, flush) as running:
            rows.append((f"broker, {flush} flush", *_row(_measured(running, count, load), reference, count)))
    head = (
        *("server", "sent", "of empty", "CPU each", "of empty"),
        *("received and acknowledged", "of empty", "CPU each", "of empty"),
    )
    table(f"{count} messages of {BODY_SIZE} bytes, {title}", head, rows)


def _measured(running: Server, count: int, load: Load) -> Measured:
    cpu = [running.cpu_seconds()]
    seconds = []
    for phase in ("send", "receive"):
        seconds.append(load(running.endpoint, phase, count))
        cpu.append(running.cpu_seconds())
    return Measured(seconds[0], cpu[1] - cpu[0], seconds[1], cpu[2] - cpu[1])


def _row(measured: Measured, reference: Measured, count: int) -> tuple[object, ...]:
    return (
        rate(count, measured.sent),
        f"{reference.sent / measured.sent:.2f}",
        microseconds(measured.sent_cpu / count),
        f"{measured.sent_cpu / max(reference.sent_cpu, 0.01):.2f}",
        rate(count, measured.received),
        f"{reference.received / measured.received:.2f}",
        microseconds(measured.received_cpu / count),
        f"{measured.received_cpu / max(reference.received_cpu, 0.01):.2f}",
    )


def _through_client(endpoint: str, phase: str, count: int) -> float:
    """The seconds it took in this process."""
    return loop.run((_send if phase == "send" else _receive)(endpoint, count))


async def _send(endpoint: str, count: int) -> float:
    body = bytes(BODY_SIZE)
    async with connect(endpoint, request_timeout_seconds=30) as client:
        producer = client.producer()
        await producer.send(Message(topic="warm-up", body=body))
        left = iter(range(count))

        async def sender() -> None:
            for _ in left:
                await producer.send(Message(topic=_TOPIC, body=body))

        started = time.perf_counter()
        await asyncio.gather(*(sender() for _ in range(SENDERS)))
        return time.perf_counter() - started


async def _receive(endpoint: str, count: int) -> float:
    taken = 0
    ended = 0.0
    async with connect(endpoint, request_timeout_seconds=30) as client:

        async def receiver() -> None:
            nonlocal taken, ended
            consumer = client.simple_consumer(_GROUP, _TOPIC)
            while taken < count:
                received = await consumer.receive(BATCH, invisible_seconds=60, wait_seconds=1)
                taken += len(received)
                if received:
                    await consumer.ack(received)
                    ended = time.perf_counter()  # at the end, other tasks may wait without getting a message

        started = time.perf_counter()
        async with asyncio.timeout(120):
            await asyncio.gather(*(receiver() for _ in range(RECEIVERS)))
        return ended - started


def _through_sdk(endpoint: str, phase: str, count: int) -> float:
    """The seconds it took in a separate process, because the SDK has its own code of the protocol."""
    command = [sys.executable, "-m", "tests.benchmarks.sdk_load", endpoint, phase, _TOPIC, _GROUP, str(count)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    return float(printed.split()[-1])
