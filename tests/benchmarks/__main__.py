"""`python -m tests.benchmarks [NAME ...]`: run benchmarks one after the other, on the disk of `--directory`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import disk, startup, store, unary_send
from tests.benchmarks.report import machine

BENCHMARKS: dict[str, Callable[[Path], None]] = {
    "disk": disk.run,
    "unary-send": unary_send.run,
    "store": store.run,
    "startup": startup.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], help="which (all)")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        disk.run(Path(directory))  # the yardstick belongs to every run
        for name in arguments.names or BENCHMARKS:
            if name != "disk":
                BENCHMARKS[name](Path(directory))


if __name__ == "__main__":
    main()
