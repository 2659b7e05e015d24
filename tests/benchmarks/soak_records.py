"""`python -m tests.benchmarks.soak_records [--seconds N]`: durable appends at full speed with a concurrent reader.

One broker in a separate process with sync flush; one client appends records of 256-byte bodies to a plain topic,
another reads them as they arrive. Old segments are removed meanwhile, so the disk holds at most some GiB. It prints
the broker's memory, its longest event-loop delay, acknowledgement times, and logged warnings and errors.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop

from aerobee_proto import records_v1, v2
from tests.benchmarks import bulk_load
from tests.benchmarks.processes import Server, server
from tests.benchmarks.report import machine, milliseconds, percentile, rate, table

_MIB = 1 << 20
_WARM_UP_SECONDS = 5.0
_LINES_MAX = 40  # lines of the broker's log
_SETTINGS = {
    "AEROBEE_STORE_SEGMENT_SIZE": str(256 * _MIB),
    "AEROBEE_STORE_RETENTION_HOURS": "0.003",
    "AEROBEE_STORE_RETENTION_INTERVAL_SECONDS": "2",
    "AEROBEE_STORE_DISK_CLEAN_RATIO": "0.99",  # otherwise a rather full disk prevents creating segments in advance
    "AEROBEE_STORE_DISK_FORCE_CLEAN_RATIO": "0.99",
    "AEROBEE_STORE_DISK_FULL_RATIO": "1",
    "AEROBEE_STORE_DELETE_WHEN_HOURS": ",".join(map(str, range(24))),
}


@dataclass(slots=True)
class Reader:
    """The progress of a reader."""

    bytes: int = 0
    skipped: int = 0  # messages removed before they were read
    frames: int = 0


@dataclass(slots=True)
class Memory:
    """The broker's own memory in bytes, sampled once per second."""

    samples: list[int] = field(default_factory=list)


async def follow(endpoint: str, reader: Reader, topic: str = "bench") -> None:
    """Read the first queue from its start and wait for more, until cancelled."""
    metadata = (("x-mq-client-id", "reader@1@0@0"), ("x-mq-language", "PYTHON"))
    offset = 0
    async with grpc.aio.insecure_channel(endpoint, options=(("grpc.max_receive_message_length", -1),)) as channel:
        stub: Any = records_v1.RecordServiceStub(channel)  # the asyncio types exist only in stub files
        while True:
            request = records_v1.ReadRecordsRequest(
                topic=v2.Resource(name=topic), start_queue_offset=offset, frame_bytes_max=bulk_load.FRAME_SIZE
            )
            request.wait.FromSeconds(1)
            async for frame in stub.ReadRecords(request, metadata=metadata):
                if frame.HasField("status") and frame.status.code == v2.Code.ILLEGAL_OFFSET:
                    reader.skipped += frame.next_queue_offset - offset
                reader.bytes += len(frame.records)
                reader.frames += 1
                offset = frame.next_queue_offset


async def watch(running: Server, memory: Memory) -> None:
    """Sample the broker's memory once per second, until cancelled."""
    while True:
        memory.samples.append(running.memory())
        await asyncio.sleep(1)


async def load(running: Server, seconds: float, messages: int, in_flight: int) -> tuple[bulk_load.Run, Reader, Memory]:
    reader, memory = Reader(), Memory()
    requests = bulk_load.plain_requests(16, messages)
    await bulk_load.append(running.endpoint, requests, in_flight, min(_WARM_UP_SECONDS, seconds / 5))
    async with asyncio.TaskGroup() as tasks:
        others = [tasks.create_task(follow(running.endpoint, reader)), tasks.create_task(watch(running, memory))]
        run = await bulk_load.append(running.endpoint, requests, in_flight, seconds)
        for task in others:
            task.cancel()
    return run, reader, memory


def loop_delays(running: Server) -> list[tuple[float, float]]:
    """For each histogram bucket, its upper bound in seconds and the number of delays up to it."""
    text = urllib.request.urlopen(f"http://{running.metrics}/metrics", timeout=30).read().decode()
    found = re.findall(r'^aerobee_event_loop_delay_seconds_bucket{.*le="([^"]+)".*} (\S+)$', text, re.MULTILINE)
    return [(float(bound), float(count)) for bound, count in found]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak_records", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long (600)")
    parser.add_argument("--messages", type=int, default=2000, help="of a request (2000)")
    parser.add_argument("--in-flight", type=int, default=8, help="requests without an answer (8)")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the store goes (./build)")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        store, log = Path(directory, "store"), Path(directory, "log")
        command = ["-m", "aerobee_broker", "serve", "--dev", "--store", str(store), "--flush", "sync"]
        with server([*command, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"], _SETTINGS, log) as running:
            before = running.cpu_seconds()
            begun = time.perf_counter()
            run, reader, memory = uvloop.run(load(running, options.seconds, options.messages, options.in_flight))
            cpu = (running.cpu_seconds() - before) / (time.perf_counter() - begun)
            delays = loop_delays(running)
            slow = running.metric("aerobee_event_loop_slow_steps_total")
            busy = running.metric("aerobee_event_loop_busy_seconds_max")
        said = [line for line in log.read_text().splitlines() if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]
    count = run.requests * options.messages
    half = memory.samples[len(memory.samples) // 2 :]
    longest = next(bound for bound, total in delays if total == delays[-1][1])
    late = delays[-1][1] - next(total for bound, total in delays if bound == 0.05)
    rows = [
        ("durable appends", rate(count, run.seconds)),
        ("read meanwhile", f"{reader.bytes / run.seconds / 1e6:.0f} MB/s, {reader.skipped:,} messages skipped"),
        ("broker's processor time", f"{cpu:.2f} cores"),
        *((f"acknowledged, p{share * 100:g}", milliseconds(percentile(run.latencies, share))) for share in (0.5, 0.99)),
        ("acknowledged, p99.9", milliseconds(percentile(run.latencies, 0.999))),
        (
            "own memory: at first / half-way / at last",
            " / ".join(_mib(memory.samples[at]) for at in (0, -len(half), -1)),
        ),
        ("own memory: largest", _mib(max(memory.samples))),
        ("longest delay of the event loop", f"at most {longest * 1000:g} ms"),
        ("most processor time between two ticks of 50 ms", milliseconds(busy)),
        ("delays over 50 ms / steps over 100 ms", f"{late:.0f} / {slow:.0f} of {delays[-1][1]:,.0f}"),
    ]
    table(f"{run.seconds:.0f} s of durable append with a reader", ("what", "figure"), rows)
    for line in said[:_LINES_MAX]:
        print(line)
    if len(said) > _LINES_MAX:
        print(f"and {len(said) - _LINES_MAX} lines more")


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"


if __name__ == "__main__":
    main()
