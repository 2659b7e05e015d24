"""The cost of many topics: memory, and appends to a different queue each time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from aerobee_store import MessageStore
from tests.benchmarks.report import rate, table
from tests.benchmarks.store_append import fresh_store, message

_QUEUES = 4
_TOGETHER = 32  # messages appended in one iteration of the event loop
_ROUNDS = 2  # rounds of one topic and all topics in turn, because a machine's speed drifts


def run(directory: Path, topics: int, messages: int) -> None:
    """Append `messages` of 256 bytes to one topic, then to all `topics` in turn, with four queues each; twice."""
    with fresh_store(directory, "async") as store:
        found = uvloop.run(_measure(store, topics, messages))
    queues = topics * _QUEUES
    count = messages * _ROUNDS
    rows = [
        (
            "first message to each queue, until durable",
            f"{found.created_seconds:.2f} s",
            f"{found.created_seconds / queues * 1e6:.0f} us",
        ),
        ("the same, processor time", f"{found.created_cpu:.2f} s", f"{found.created_cpu / queues * 1e6:.0f} us"),
        ("resident memory more", f"{found.memory_kib / 1024:.1f} MiB", f"{found.memory_kib / queues:.2f} KiB"),
        ("descriptors more", f"{found.descriptors} of {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}", "-"),
        ("append to one topic, queues flushed", rate(count, found.one), f"{found.one / count * 1e6:.1f} us"),
        ("append to all in turn, queues flushed", rate(count, found.many), f"{found.many / count * 1e6:.1f} us"),
        ("append to all, of append to one", f"{found.one / found.many:.2f}", "-"),
    ]
    title = f"Store: {topics} topics of {_QUEUES} queues, {messages} messages of 256 bytes, {_TOGETHER} a tick, async"
    table(f"{title}; processor time", ("what", "figure", "a queue or message"), rows)


@dataclass(slots=True)
class _Found:
    """Wall seconds, CPU seconds, KiB, and the number of messages."""

    created_seconds: float
    created_cpu: float
    memory_kib: int
    descriptors: int
    one: float = 0
    many: float = 0


async def _measure(store: MessageStore, topics: int, messages: int) -> _Found:
    body = os.urandom(256)
    services = asyncio.create_task(store.run())

    async def send(names: list[str], count: int) -> float:
        """The CPU time of all threads."""
        targets = [(name, queue_id) for queue_id in range(_QUEUES) for name in names]
        started = time.process_time()
        for first in range(0, count, _TOGETHER):
            for number in range(first, min(count, first + _TOGETHER)):
                topic, queue_id = targets[number % len(targets)]
                store.append([message(number, body, topic=topic, queue_id=queue_id)])
            await asyncio.sleep(0)
        return time.process_time() - started

    async def flushed() -> None:
        while (store.checkpoint.derived_offset or 0) < store.positions[0]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

    one = ["topic-0"]
    names = [f"topic-{number}" for number in range(topics)]
    await send(one, messages // 4)
    await flushed()
    gc.collect()
    memory, descriptors = _resident_kib(), len(os.listdir("/proc/self/fd"))
    started, cpu = time.perf_counter(), time.process_time()
    await send(names, topics * _QUEUES)
    await flushed()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    gc.collect()
    found = _Found(seconds, cpu, _resident_kib() - memory, len(os.listdir("/proc/self/fd")) - descriptors)
    for _ in range(_ROUNDS):
        found.one += await send(one, messages)
        found.many += await send(names, messages)
    services.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await services
    return found


def _resident_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")
