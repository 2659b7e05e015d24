"""Contenders measured in turns: a round of each after another, so that what else the machine does slows all of them.

Only what belongs to one round is compared; the medians of these ratios are the result.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark import SparkContext

from tests.benchmarks.report import median


class Timed(NamedTuple):
    """Rows, and the seconds that count, where not all of a turn do."""

    rows: int
    seconds: float


Work = Callable[[], int | Timed]
"""What a contender does in a turn; returns the number of rows."""


class Times(NamedTuple):
    """Processor time in seconds: of Spark's JVM, of Python (this process and Spark's workers), and of the brokers."""

    jvm: float = 0.0
    python: float = 0.0
    brokers: float = 0.0

    @classmethod
    def now(cls) -> Times:
        """The times since the start. The time of a process that has ended is its parent's."""
        root = os.getpid()
        gateway = _gateway()
        parents: dict[int, list[int]] = {}
        own: dict[int, float] = {}
        ended: dict[int, float] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            process = int(path.parent.name)
            parents.setdefault(int(fields[1]), []).append(process)
            ticks = os.sysconf("SC_CLK_TCK")
            own[process] = sum(map(int, fields[11:13])) / ticks
            ended[process] = sum(map(int, fields[13:15])) / ticks

        def below(process: int) -> float:
            total = own.get(process, 0.0) + ended.get(process, 0.0)
            return total + sum(below(child) for child in parents.get(process, ()))

        jvm = own.get(gateway, 0.0)
        brokers = sum(below(child) for child in parents.get(root, ()) if child != gateway)
        return cls(jvm, own[root] + below(gateway) - jvm, brokers + ended[root])

    def since(self, before: Times) -> Times:
        return Times(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def spark(self) -> float:
        """Without the brokers."""
        return self.jvm + self.python


def _gateway() -> int:
    """The process of Spark's JVM; -1 without a session."""
    context = SparkContext._active_spark_context
    return -1 if context is None else int(context._gateway.proc.pid)


class Turn(NamedTuple):
    """One contender in one round."""

    rows: int
    seconds: float
    times: Times

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


class Turns(NamedTuple):
    """All rounds of one contender."""

    name: str
    turns: tuple[Turn, ...]

    @property
    def rate(self) -> float:
        return median([turn.rate for turn in self.turns])

    def cpu(self, part: Callable[[Times], float]) -> float:
        """Processor time per row."""
        return median([part(turn.times) / turn.rows for turn in self.turns])

    def rate_beside(self, other: Turns) -> float:
        """The rate, as a multiple of the other's in the same round."""
        return median([mine.rate / its.rate for mine, its in zip(self.turns, other.turns, strict=True)])

    def cpu_beside(self, other: Turns, part: Callable[[Times], float]) -> float:
        """Processor time per row, as a multiple of the other's in the same round."""
        pairs = zip(self.turns, other.turns, strict=True)
        return median([part(mine.times) / mine.rows / (part(its.times) / its.rows) for mine, its in pairs])


def in_turns(contenders: Mapping[str, Work], *, rounds: int, warm_ups: int) -> dict[str, Turns]:
    """The contenders, each once in every round."""
    found: dict[str, list[Turn]] = {name: [] for name in contenders}
    for number in range(warm_ups + rounds):
        for name, work in contenders.items():
            before, started = Times.now(), time.perf_counter()
            done = work()
            if not isinstance(done, Timed):
                done = Timed(done, time.perf_counter() - started)
            turn = Turn(*done, Times.now().since(before))
            if number >= warm_ups:
                found[name].append(turn)
            print(f"  round {number}: {name}: {_line(turn)}", file=sys.stderr, flush=True)
    return {name: Turns(name, tuple(turns)) for name, turns in found.items()}


def _line(turn: Turn) -> str:
    cpu = " + ".join(f"{seconds / turn.rows * 1e6:.2f}" for seconds in turn.times)
    return f"{turn.rate:,.0f}/s, {cpu} us of JVM + Python + brokers; load {os.getloadavg()[0]:.1f}"
