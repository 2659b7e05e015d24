"""`python -m tests.benchmarks`: run all benchmarks in sequence.

Those of the store (`tests.benchmarks.store`) and of the broker (`tests.benchmarks.broker`) can also be run alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.benchmarks import broker, store
from tests.benchmarks.report import machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        store.run(Path(directory))  # begins with the disk, the baseline of all others
        broker.run(Path(directory))


if __name__ == "__main__":
    main()
