"""`python -m tests.benchmarks.store [--short | --large]`: the store without gRPC, with this machine's baselines.

The normal form takes some minutes and needs about 6 GiB of disk; `--large` adds parts that need 10 GiB more; `--short`
runs everything in seconds, with sizes too small for meaningful figures.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import disk, store_append, store_open, store_read, store_topics
from tests.benchmarks.report import machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of all parts, in bytes."""

    syncs: int = 2000
    bandwidth: int = 256 << 20
    one_by_one: int = 8000
    batches: int = 128 << 20
    segment: int = 128 << 20
    queue_messages: int = 200_000
    index_entries: int = 20_000_000
    queries: int = 2000
    opened: tuple[int, ...] = (1 << 30,)
    topics: int = 5000
    topic_messages: int = 200_000


SHORT = Sizes(
    syncs=4,
    bandwidth=4 << 20,
    one_by_one=40,
    batches=1 << 20,
    segment=4 << 20,
    queue_messages=1000,
    index_entries=3000,
    queries=20,
    opened=(1 << 20,),
    topics=5,
    topic_messages=100,
)


def run(directory: Path, sizes: Sizes | None = None) -> None:
    """Print all tables."""
    sizes = sizes or Sizes()
    disk.fdatasync(directory, sizes.syncs)
    disk.bandwidth(directory, sizes.bandwidth)
    store_append.append_steps(directory, sizes.batches)
    store_append.single_steps(directory, sizes.one_by_one)
    store_append.append_waiting(directory, sizes.batches, sizes.segment)
    store_append.append_one_by_one(directory, sizes.one_by_one, sizes.segment)
    store_read.run(directory, sizes.queue_messages, sizes.index_entries, sizes.queries)
    store_topics.run(directory, sizes.topics, sizes.topic_messages)
    for size in sizes.opened:
        store_open.run(directory, size)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.store", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help="seconds instead of minutes; the figures mean nothing")
    form.add_argument("--large", action="store_true", help="also open and verify 10 GiB")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    sizes = SHORT if options.short else Sizes(opened=(1 << 30, 10 << 30)) if options.large else Sizes()
    print(machine())
    chosen = " --short" if options.short else " --large" if options.large else ""
    print(f"python -m tests.benchmarks.store{chosen}: {sizes}")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        run(Path(directory), sizes)


if __name__ == "__main__":
    main()
