"""What many topics cost: memory, and appends that go to another queue each time."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

from tests.benchmarks.report import rate, table
from tests.benchmarks.store_append import fresh_store, message

_QUEUES = 4
_TOGETHER = 32  # messages that one tick of the event loop appends


def run(directory: Path, topics: int, messages: int) -> None:
    """`messages` of 256 bytes to one topic, then to all of `topics` in turn, each with four queues."""
    body = os.urandom(256)
    with fresh_store(directory, "sync") as store:
        store.append([message(0, body)])
        store.flush()

        def send(names: list[str], count: int) -> float:
            targets = [(name, queue_id) for queue_id in range(_QUEUES) for name in names]
            started = time.process_time()
            for first in range(0, count, _TOGETHER):
                for number in range(first, min(count, first + _TOGETHER)):
                    topic, queue_id = targets[number % len(targets)]
                    store.append([message(number, body, topic=topic, queue_id=queue_id)])
                store.commit()
                store.dispatch()
            return time.process_time() - started

        one = ["topic-0"]
        send(one, messages)
        few = send(one, messages)
        gc.collect()
        before, files = _resident_kib(), len(os.listdir("/proc/self/fd"))
        names = [f"topic-{number}" for number in range(topics)]
        started = time.perf_counter()
        send(names, topics * _QUEUES)
        store.flush()
        created = time.perf_counter() - started
        gc.collect()
        after = _resident_kib()
        many = send(names, messages)
        started = time.process_time()
        store.flush()
        flushed = time.process_time() - started
        rows = [
            (
                "first message to each queue, and a flush",
                f"{created:.2f} s",
                f"{created / topics / _QUEUES * 1e6:.0f} us",
            ),
            (
                "resident memory more",
                f"{(after - before) / 1024:.1f} MiB",
                f"{(after - before) / topics / _QUEUES:.2f} KiB",
            ),
            ("descriptors more", f"{len(os.listdir('/proc/self/fd')) - files}", "-"),
            ("append to one topic", rate(messages, few), f"{few / messages * 1e6:.1f} us"),
            ("append to all in turn", rate(messages, many), f"{many / messages * 1e6:.1f} us"),
            ("append to all, of append to one", f"{few / many:.2f}", "-"),
            ("processor time of a flush of all", f"{flushed:.3f} s", f"{flushed / topics / _QUEUES * 1e6:.0f} us"),
        ]
    title = f"Store: {topics} topics of {_QUEUES} queues, {messages} messages of 256 bytes, {_TOGETHER} a commit"
    table(title, ("what", "figure", "a queue or message"), rows)


def _resident_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")
