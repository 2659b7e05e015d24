"""`python -m tests.benchmarks.broker [--short] [NAME ...]`: a broker as clients see it, compared with gRPC alone.

The normal form takes seven minutes and needs about 2 GiB of disk; `--short` runs everything in seconds, with sizes too
small for meaningful figures. Brokers and empty servers are child processes; the load runs in this process or in
another one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import (
    acknowledge,
    broker_delays,
    broker_end_to_end,
    broker_latency,
    broker_long_polls,
    broker_scrapes,
    broker_topic_creation,
    broker_topics,
    disk,
    front,
    startup,
    unary_send,
)
from tests.benchmarks.report import machine

PARTS: Mapping[str, tuple[Callable[..., None], Mapping[str, Any]]] = {
    "unary-send": (unary_send.run, {"seconds": 0.05, "levels": (4,), "flush_modes": ("async",)}),
    "front": (
        front.run,
        {"seconds": 0.05, "levels": (4,), "flush_modes": ("async",), "with_go": False, "with_rocketmq": False},
    ),
    "acknowledge": (acknowledge.run, {"messages": 64, "one_by_one": 64, "with_go": False}),
    "end-to-end": (broker_end_to_end.run, {"messages": 64, "sdk_messages": 32, "flush_modes": ("async",)}),
    "latency": (broker_latency.run, {"messages": 5, "flush_modes": ("async",), "with_go": False}),
    "delays": (broker_delays.run, {"pending": 400, "near": 20, "near_seconds": 0.2}),
    "topics": (broker_topics.run, {"topics": 20, "clients": 10, "hold_seconds": 0.2}),
    "long-polls": (broker_long_polls.run, {"polls": 100, "messages": 5, "idle_seconds": 0.2}),
    "topic-creation": (broker_topic_creation.run, {"topics": 40, "parts": 2}),
    "scrapes": (broker_scrapes.run, {"topics": 20, "seconds": 0.1}),
    "startup": (startup.run, {"starts": 1, "rest_seconds": 0.1}),
}
"""Each part, and its arguments for the short form."""


def run(directory: Path, names: Sequence[str] = (), *, short: bool = False) -> None:
    """Print the parts with these names, or all parts."""
    for name in names or PARTS:
        part, sizes = PARTS[name]
        part(directory, **(sizes if short else {}))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.broker", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PARTS], help="which parts (all)")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes; the figures mean nothing")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        disk.fdatasync(Path(directory), 4 if options.short else 2000)
        run(Path(directory), options.names, short=options.short)


if __name__ == "__main__":
    main()
