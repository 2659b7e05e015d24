"""`python -m tests.benchmarks.records [--short] [NAME ...]`: RecordService compared with a server that stores nothing.

Each server and the load are separate processes: with two cores, each has one. It takes a minute and some GiB.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import grpc
import uvloop

from aerobee_proto import admin_v1
from tests.benchmarks import bulk_load, disk
from tests.benchmarks.disk import gigabytes
from tests.benchmarks.processes import Server, broker, server
from tests.benchmarks.report import machine, milliseconds, nanoseconds, percentile, rate, table

FRONTS = ("grpcio", "native")
_HEAD = ("front", "server", "flush", "messages", "bytes", "of discarding", "server CPU each", "p50", "p99", "a sync")


def _discarding(front: str) -> AbstractContextManager[Server]:
    return server(["-m", "tests.benchmarks.bulk_server", front])


def append(
    directory: Path, *, seconds: float = 3, messages: int = 2000, in_flight: int = 8, fronts: Sequence[str] = FRONTS
) -> None:
    """Records of 256-byte bodies on one stream: to a plain topic, and to one whose records hold many messages."""
    for title, requests in (
        ("a plain topic", bulk_load.plain_requests(16, messages)),
        ("a batch topic", bulk_load.batch_requests(16, messages)),
    ):
        rows = []
        for front in fronts:
            discarded = 0.0
            for name, flush in (("discards", ""), ("broker", "sync"), ("broker", "async")):
                with _discarding(front) if not flush else broker(directory, flush, front) as running:
                    if flush:
                        create_batch_topic(running)
                    # A short run first creates the topic and warms caches.
                    uvloop.run(bulk_load.append(running.endpoint, requests[:1], 1, seconds / 10))
                    before = running.cpu_seconds()
                    run = uvloop.run(bulk_load.append(running.endpoint, requests, in_flight, seconds))
                    count = run.requests * messages
                    cpu = (running.cpu_seconds() - before) / count
                    syncs = running.metric("aerobee_store_sync_seconds_count") if flush == "sync" else 0
                speed = count / run.seconds
                discarded = discarded or speed
                size = gigabytes(run.requests * len(requests[0]), run.seconds)
                times = (milliseconds(percentile(run.latencies, share)) for share in (0.5, 0.99))
                each_sync = f"{count / syncs:,.0f}" if syncs else ""
                ratio = f"{speed / discarded:.2f}"
                rows.append((front, name, flush, rate(speed, 1), size, ratio, nanoseconds(cpu), *times, each_sync))
        table(f"AppendRecords: {title}, {messages} messages a request, {in_flight} requests in flight", _HEAD, rows)


def create_batch_topic(running: Server) -> None:
    topic = admin_v1.Topic(name="batches", attributes={"queue.type": "BatchCQ"}, read_queue_count=1)
    with grpc.insecure_channel(running.endpoint) as channel:
        answer = admin_v1.AdminServiceStub(channel).CreateTopic(admin_v1.CreateTopicRequest(topic=topic))
    assert answer.status.message == "OK", answer.status


def read(directory: Path, *, seconds: float = 3, messages: int = 2000, fronts: Sequence[str] = FRONTS) -> None:
    """Read the records just appended, from the page cache."""
    rows = []
    requests = bulk_load.plain_requests(4, messages)
    for front in fronts:
        with broker(directory, "async", front) as running:
            written = uvloop.run(bulk_load.append(running.endpoint, requests, 8, seconds))
            size = (len(requests[0]) - 100) * (written.requests - 8)
            memory = 0.0
            for name in ("memory", "broker"):
                with _discarding(front) if name == "memory" else nullcontext(running) as other:
                    uvloop.run(bulk_load.read(other.endpoint, size // 10))
                    before = other.cpu_seconds()
                    run = uvloop.run(bulk_load.read(other.endpoint, size))
                    cpu = other.cpu_seconds() - before
                count = run.bytes * messages / len(requests[0])
                memory = memory or count / run.seconds
                ratio = f"{count / run.seconds / memory:.2f}"
                speed = rate(count, run.seconds), gigabytes(run.bytes, run.seconds)
                rows.append((front, name, *speed, ratio, nanoseconds(cpu / count)))
    head = ("front", "server", "messages", "bytes", "of memory", "server CPU each")
    table("ReadRecords: a plain topic, frames of 1 MiB", head, rows)


def send_many(
    directory: Path, *, seconds: float = 3, messages: int = 500, in_flight: int = 8, fronts: Sequence[str] = FRONTS
) -> None:
    """SendMessage with many messages of 256-byte bodies with id, tag and key."""
    rows = []
    requests = bulk_load.send_requests(8, messages)
    for front in fronts:
        for flush in ("sync", "async"):
            with broker(directory, flush, front) as running:
                uvloop.run(bulk_load.send(running.endpoint, requests, 1, seconds / 10))
                before = running.cpu_seconds()
                run = uvloop.run(bulk_load.send(running.endpoint, requests, in_flight, seconds))
                cpu = running.cpu_seconds() - before
            count = run.requests * messages
            times = (milliseconds(percentile(run.latencies, share)) for share in (0.5, 0.99))
            rows.append((front, flush, rate(count, run.seconds), nanoseconds(cpu / count), *times))
    head = ("front", "flush", "messages", "server CPU each", "p50", "p99")
    table(f"SendMessage: {messages} messages a request, {in_flight} requests in flight", head, rows)


_SHORT: Mapping[str, Any] = {"seconds": 0.05, "messages": 50, "fronts": ("native",)}
PARTS: Mapping[str, tuple[Callable[..., None], Mapping[str, Any]]] = {
    "append": (append, _SHORT),
    "read": (read, _SHORT),
    "send-many": (send_many, _SHORT),
}
"""Each part, and its arguments for the short form."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.records", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PARTS], help="which parts (all)")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes; the figures mean nothing")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    parser.add_argument("--messages", type=int, help="of a request (2000; send-many 500)")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        disk.fdatasync(Path(directory), 4 if options.short else 2000)
        for name in options.names or PARTS:
            part, sizes = PARTS[name]
            chosen = {"messages": options.messages} if options.messages else {}
            part(Path(directory), **({**sizes, **chosen} if options.short else chosen))


if __name__ == "__main__":
    main()
