"""`aerobee bench`: measures a broker, compared with baselines measured on the same machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.bench.load import Direction, Load, Measured
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client

_EXAMPLES = """\
  aerobee bench                                        a broker of its own, durable single sends, 64 at once
  aerobee bench --batch 500 --in-flight 16             many messages per request
  aerobee bench --api records --batch 4000 --baseline      bulk sends, compared with a server without storage
  aerobee bench --direction receive --api records      reading
  aerobee bench --endpoint broker.example:8081 --topic load --json
"""
_DETAILS = (
    "Without --endpoint, the command starts a broker with a temporary store under --directory. The "
    "topic is created if the broker is Aerobee. With --endpoint, the messages stay in the topic."
)
_APIS = {
    "v2": "SendMessage and ReceiveMessage, like the official SDKs",
    "records": "RecordService, specific to Aerobee",
    "batch": "RecordService on a batch topic: many messages in one record",
}
_FILL_COUNT = 100_000
_FSYNC_SECONDS = 1.0
_BASELINES: Mapping[str, Direction] = {"discarding": "send", "memory": "receive"}
"""Servers without a store, and the direction for which each is the baseline."""


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "bench", "measure a broker", run, details=_DETAILS, examples=_EXAMPLES)
    parser.add_argument("--direction", choices=("send", "receive"), default="send", help="(default: send)")
    parser.add_argument(
        "--api",
        choices=tuple(_APIS),
        default="v2",
        help="; ".join(f"{name}: {text}" for name, text in _APIS.items()),
    )
    parser.add_argument(
        "--size", metavar="BYTES", type=options.count, default=256, help="size of a body (default: 256)"
    )
    parser.add_argument("--batch", metavar="N", type=options.count, default=1, help="messages per request (default: 1)")
    parser.add_argument(
        "--in-flight", metavar="N", type=options.count, default=64, help="concurrent requests (default: 64)"
    )
    parser.add_argument(
        "--duration", metavar="SECONDS", type=options.positive_seconds, default=10.0, help="(default: 10)"
    )
    parser.add_argument("--topic", default="aerobee-bench", help="(default: aerobee-bench)")
    parser.add_argument(
        "--flush", choices=("sync", "async"), default="sync", help="flush mode of the started broker (default: sync)"
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        type=Path,
        help="parent directory of the started broker's store (default: the temporary directory)",
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="measure as well: a server that discards the same bytes, one that sends them from memory (each for the "
        "same duration), and the disk's fdatasync",
    )
    options.add_endpoint(parser)
    parser.set_defaults(endpoint=None)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from aerobee_broker.bench import baselines
    from aerobee_broker.bench.load import Load
    from aerobee_client.testing import run_broker

    load = Load(
        arguments.topic, arguments.api, arguments.size, arguments.batch, arguments.in_flight, arguments.duration
    )
    results: dict[str, Any] = {}
    directory = arguments.directory or Path(tempfile.gettempdir())
    if not directory.is_dir():
        raise CommandError(f"{directory} is not a directory; name an existing one with --directory")
    with ExitStack() as stack:
        pid = None
        if arguments.endpoint is None:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="aerobee-bench-", dir=directory))
            broker = stack.enter_context(run_broker(Path(temporary), ("--dev", "--flush", arguments.flush)))
            arguments.endpoint, pid = broker.endpoint, broker.pid
        results["broker"] = _measured(arguments, load, pid, "broker", arguments.direction)
        if arguments.baseline:
            with baselines.running(load.batch, load.size) as endpoint:
                beside = argparse.Namespace(**{**vars(arguments), "endpoint": endpoint})
                for name, direction in _BASELINES.items():
                    results[name] = _measured(beside, load, None, name, direction)
            size = min(load.batch * (load.size + 150), 4 << 20)
            results["fdatasync"] = baselines.fdatasync(directory, size, _FSYNC_SECONDS)
    if not results["broker"].messages:
        raise CommandError(f"no message was stored: {results['broker'].first_error or 'no answer in time'}")
    if arguments.json:
        output.print_json(_json(arguments, load, results))
    else:
        _print(arguments, load, results)
    return 1 if results["broker"].errors else 0


def _measured(arguments: argparse.Namespace, load: Load, pid: int | None, name: str, direction: Direction) -> Measured:
    from aerobee_broker.bench import load as loads

    def progress(measured: Measured) -> None:
        if sys.stderr.isatty():
            text = f"{name}: {measured.seconds:4.1f} s, {measured.messages:,} messages, {measured.rate:,.0f}/s"
            print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)

    async def work(client: Client) -> Measured:
        if name == "broker":
            await loads.prepare(client, load)
            if direction == "receive":
                await loads.fill(client, load, _FILL_COUNT)
        return await loads.run(client, direction, load, pid, progress)

    try:
        return with_client(arguments, work)
    finally:
        if sys.stderr.isatty():
            print(f"\r{'':<78}\r", end="", file=sys.stderr, flush=True)


def _json(arguments: argparse.Namespace, load: Load, results: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "direction": arguments.direction,
        "api": load.api,
        "size": load.size,
        "batch": load.batch,
        "inFlight": load.in_flight,
        "flush": arguments.flush,
    }
    for name in ("broker", *_BASELINES):
        measured = results.get(name)
        if measured is None or not measured.messages:
            continue
        found[name] = {
            "messages": measured.messages,
            "seconds": measured.seconds,
            "messagesPerSecond": measured.rate,
            "errors": measured.errors,
            "firstError": measured.first_error,
            "latencySeconds": {
                "p50": measured.latency.percentile(0.5),
                "p99": measured.latency.percentile(0.99),
                "p999": measured.latency.percentile(0.999),
                "max": measured.latency.largest,
            },
            "histogram": [{"upToSeconds": bound, "count": count} for bound, count in measured.latency.bars()],
            "fsyncs": measured.fsyncs,
            "messagesPerFsync": measured.messages / measured.fsyncs if measured.fsyncs else None,
            "cpuSeconds": measured.cpu_seconds,
            "memoryBytes": measured.memory_bytes,
        }
    if (baseline := _baseline(arguments, results)) is not None:
        found["ofBaseline"] = results["broker"].rate / baseline[1].rate
    if fsync := results.get("fdatasync"):
        found["fdatasync"] = {"p50Seconds": fsync.percentile(0.5), "p99Seconds": fsync.percentile(0.99)}
    return found


def _print(arguments: argparse.Namespace, load: Load, results: dict[str, Any]) -> None:
    broker = results["broker"]
    print(
        f"{arguments.direction}, API {load.api}, {load.size} bytes, {load.batch} a request, "
        f"{load.in_flight} in flight, {broker.seconds:.1f} s"
    )
    rows = [_row("broker", broker)]
    rows += [_row(name, results[name]) for name in _BASELINES if name in results and results[name].messages]
    output.print_table(("", "messages/s", "p50", "p99", "p99.9", "max", "errors"), rows, empty="")
    if broker.first_error:
        print(f"first error: {broker.first_error}")
    if broker.fsyncs:
        print(f"{broker.fsyncs:,} fsyncs, {broker.messages / broker.fsyncs:,.1f} messages each")
    if broker.cpu_seconds is not None and broker.messages:
        each = broker.cpu_seconds / broker.messages * 1e6
        print(f"broker: {broker.cpu_seconds / broker.seconds:.0%} of a core, {each:.2f} us a message", end="")
        print(f", {broker.memory_bytes / (1 << 20):.0f} MiB resident" if broker.memory_bytes else "")
    if (baseline := _baseline(arguments, results)) is not None:
        name, measured = baseline
        print(f"{broker.rate / measured.rate:.2f} of {name}")
    if fsync := results.get("fdatasync"):
        print(f"the disk's fdatasync: p50 {_time(fsync.percentile(0.5))}, p99 {_time(fsync.percentile(0.99))}")
    bars = broker.latency.bars()
    most = max((count for _, count in bars), default=1)
    for bound, count in bars:
        print(f"  up to {_time(bound):>8}  {'#' * round(count / most * 40):<40} {count:,}")


def _baseline(arguments: argparse.Namespace, results: Mapping[str, Any]) -> tuple[str, Measured] | None:
    """The baseline for this direction and its name; None if it was not measured."""
    for name, direction in _BASELINES.items():
        if direction == arguments.direction and name in results and results[name].messages:
            return name, results[name]
    return None


def _row(name: str, measured: Measured) -> tuple[object, ...]:
    shares = (_time(measured.latency.percentile(share)) for share in (0.5, 0.99, 0.999))
    return (name, f"{measured.rate:,.0f}", *shares, _time(measured.latency.largest), measured.errors)


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
