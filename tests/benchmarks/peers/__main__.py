"""`python -m tests.benchmarks.peers [--seconds N]`: durable appends of 256-byte bodies, ours and other brokers'.

One broker runs at a time, on loopback and on one disk. Each answers only when the messages are synced. Each is loaded
by its fastest client: ours by requests of 2,000 packed records, Kafka by its ProducerPerformance, Redis by
redis-benchmark. An unavailable peer is left out, and the table says why.
"""

from __future__ import annotations

import argparse
import random
import string
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from tests.benchmarks import bulk_load, disk
from tests.benchmarks.peers import kafka, redis
from tests.benchmarks.peers.process import LeftOutError, Result
from tests.benchmarks.processes import broker
from tests.benchmarks.records import create_batch_topic
from tests.benchmarks.report import machine, percentile, rate, table

_MESSAGES = 2000
_IN_FLIGHT = 8


def ours(directory: Path, requests: Sequence[bytes], seconds: float) -> Result:
    with broker(directory, "sync") as running:
        create_batch_topic(running)
        uvloop.run(bulk_load.append(running.endpoint, requests[:1], 1, 1))
        before = running.cpu_seconds()
        run = uvloop.run(bulk_load.append(running.endpoint, requests, _IN_FLIGHT, seconds))
        count = run.requests * _MESSAGES
        cpu = (running.cpu_seconds() - before) / count
    p50, p99 = (percentile(run.latencies, share) * 1000 for share in (0.5, 0.99))
    return Result(count / run.seconds, cpu, p50, p99)


def ours_by_send(directory: Path, seconds: float) -> Result:
    with broker(directory, "sync") as running:
        requests = bulk_load.send_requests(8, 500)
        uvloop.run(bulk_load.send(running.endpoint, requests[:1], 1, 1))
        before = running.cpu_seconds()
        run = uvloop.run(bulk_load.send(running.endpoint, requests, _IN_FLIGHT, seconds))
        count = run.requests * 500
        cpu = (running.cpu_seconds() - before) / count
    p50, p99 = (percentile(run.latencies, share) * 1000 for share in (0.5, 0.99))
    return Result(count / run.seconds, cpu, p50, p99)


def with_kafka(programs: Path, directory: Path, bodies: Sequence[str], seconds: float) -> Result:
    libraries = kafka.prepare(programs)
    payloads = directory / "payloads"
    payloads.write_text("\n".join(bodies))
    with kafka.running(libraries, directory) as peer:
        return kafka.append(libraries, peer, payloads, seconds)


def with_redis(directory: Path, body: str, seconds: float) -> Result:
    redis.prepare()
    with redis.running(directory) as peer:
        return redis.append(peer, body, seconds)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="how long each is measured (10)")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="for stores and programs (./build)")
    options = parser.parse_args(arguments)
    programs = options.directory.absolute() / "peers"
    programs.mkdir(parents=True, exist_ok=True)
    chosen = random.Random(0)  # bodies, not secrets
    bodies = ["".join(chosen.choices(string.ascii_letters, k=bulk_load.BODY_SIZE)) for _ in range(1000)]
    print(machine())
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as made:
        directory = Path(made).absolute()
        disk.fdatasync(directory, 500)
        peers: Sequence[tuple[str, Callable[[], Result]]] = (
            ("Aerobee, AppendRecords, plain topic", lambda: ours(directory, _plain(), options.seconds)),
            ("Aerobee, AppendRecords, batch topic", lambda: ours(directory, _batches(), options.seconds)),
            ("Aerobee, SendMessage of 500", lambda: ours_by_send(directory, options.seconds)),
            ("Kafka, 1 partition, acks=all", lambda: with_kafka(programs, directory, bodies, options.seconds)),
            ("Redis, XADD in pipelines of 500", lambda: with_redis(directory, bodies[0], options.seconds)),
        )
        for name, measure in peers:
            try:
                result = measure()
            except LeftOutError as reason:
                rows.append((name, f"left out: {reason}", "", "", ""))
                continue
            times = (f"{each:.1f} ms" for each in (result.p50, result.p99))
            rows.append((name, rate(result.rate, 1), f"{result.cpu * 1e6:.2f} us", *times))
    head = ("broker", "messages", "server CPU each", "p50 of a request", "p99")
    table(f"Durable appends of {bulk_load.BODY_SIZE}-byte bodies, each for {options.seconds:g} s", head, rows)


def _plain() -> list[bytes]:
    return bulk_load.plain_requests(16, _MESSAGES)


def _batches() -> list[bytes]:
    return bulk_load.batch_requests(16, _MESSAGES)


if __name__ == "__main__":
    main()
