"""`python -m tests.benchmarks.records [--short] [NAME ...]`: RecordService, beside a server that stores nothing.

Each server is a process of its own, and so is the load: with two cores each has one. It takes a minute and some GiB.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grpc
import uvloop

from aerobee_proto import admin_v1
from tests.benchmarks import bulk_load, disk
from tests.benchmarks.disk import gigabytes
from tests.benchmarks.processes import Server, broker, server
from tests.benchmarks.report import machine, milliseconds, nanoseconds, percentile, rate, table

_HEAD = ("server", "flush", "messages", "bytes", "of discarding", "server CPU a message", "p50", "p99", "a sync")


def _discarding() -> Any:
    return server(["-m", "tests.benchmarks.bulk_server"])


def _append(running: Server, requests: Sequence[bytes], messages: int, seconds: float, in_flight: int) -> list[Any]:
    """Rate of messages, and the columns of a row behind the flush mode."""
    uvloop.run(bulk_load.append(running.endpoint, requests[:1], 1, seconds / 10))  # the topic is there, caches are warm
    before = running.cpu_seconds()
    run = uvloop.run(bulk_load.append(running.endpoint, requests, in_flight, seconds))
    cpu = running.cpu_seconds() - before
    count = run.requests * messages
    return [count / run.seconds, run, cpu / count, gigabytes(run.requests * len(requests[0]), run.seconds)]


def append(directory: Path, *, seconds: float = 4, messages: int = 2000, in_flight: int = 8) -> None:
    """Records of 256-byte bodies on one stream: a plain topic, and one whose records hold many messages."""
    for title, requests in (
        ("a plain topic", bulk_load.plain_requests(16, messages)),
        ("a batch topic", bulk_load.batch_requests(16, messages)),
    ):
        rows = []
        discarded = 0.0
        for name, flush in (("discards", ""), ("broker", "sync"), ("broker", "async")):
            with _discarding() if not flush else broker(directory, flush) as running:
                if flush:
                    _create_batch_topic(running)
                speed, run, cpu, size = _append(running, requests, messages, seconds, in_flight)
                synced = ""
                if flush == "sync":
                    syncs = running.metric("aerobee_store_sync_seconds_count")
                    synced = f"{run.requests * messages / syncs:,.0f}"
            discarded = discarded or speed
            p50, p99 = (milliseconds(percentile(run.latencies, share)) for share in (0.5, 0.99))
            ratio = f"{speed / discarded:.2f}"
            rows.append((name, flush, rate(speed, 1), size, ratio, nanoseconds(cpu), p50, p99, synced))
        table(f"AppendRecords: {title}, {messages} messages a request, {in_flight} requests in flight", _HEAD, rows)


def _create_batch_topic(running: Server) -> None:
    topic = admin_v1.Topic(name="batches", attributes={"queue.type": "BatchCQ"}, read_queue_count=1)
    with grpc.insecure_channel(running.endpoint) as channel:
        answer = admin_v1.AdminServiceStub(channel).CreateTopic(admin_v1.CreateTopicRequest(topic=topic))
    assert answer.status.message == "OK", answer.status


def read(directory: Path, *, seconds: float = 3, messages: int = 1000) -> None:
    """What was just appended, from the page cache."""
    rows = []
    requests = bulk_load.plain_requests(4, messages)
    with broker(directory, "async") as running:
        written = uvloop.run(bulk_load.append(running.endpoint, requests, 8, seconds))
        size = (len(requests[0]) - 100) * (written.requests - 8)
        memory = 0.0
        for name in ("memory", "broker"):
            with _discarding() if name == "memory" else nullcontext(running) as other:
                uvloop.run(bulk_load.read(other.endpoint, size // 10))
                before = other.cpu_seconds()
                run = uvloop.run(bulk_load.read(other.endpoint, size))
                cpu = other.cpu_seconds() - before
            count = run.bytes * messages / len(requests[0])
            memory = memory or count / run.seconds
            ratio = f"{count / run.seconds / memory:.2f}"
            speed = rate(count, run.seconds), gigabytes(run.bytes, run.seconds)
            rows.append((name, *speed, ratio, nanoseconds(cpu / count)))
    head = ("server", "messages", "bytes", "of memory", "server CPU a message")
    table("ReadRecords: a plain topic, frames of 1 MiB", head, rows)


PARTS: Mapping[str, tuple[Callable[..., None], Mapping[str, Any]]] = {
    "append": (append, {"seconds": 0.2, "messages": 50}),
    "read": (read, {"seconds": 0.2, "messages": 50}),
}
"""Each part, and what it is given for the short form."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.records", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PARTS], help="which parts (all)")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes; the figures mean nothing")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        disk.fdatasync(Path(directory), 4 if options.short else 2000)
        for name in options.names or PARTS:
            part, sizes = PARTS[name]
            part(Path(directory), **(sizes if options.short else {}))


if __name__ == "__main__":
    main()
