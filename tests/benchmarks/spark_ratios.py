"""The source, a stream and the sink beside what limits each, in one run, as ratios with a plot.

file source   beside Spark's own Parquet source with the same rows and columns, the decoder alone in one process, and
              Spark's Kafka source on a real Kafka with the same messages
stream        of micro-batches of 100,000 messages of a broker, beside AppendRecords without Spark, and a stream of
              Spark's Kafka source
sink          beside AppendRecords with the same rows, encoded before, without Spark

Each is also beside a source or sink in Python that does nothing, which is what Spark itself takes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from aerobee_pipeline.broker_channel import Address, Broker
from aerobee_pipeline.worker_start import retry_worker_start
from aerobee_pipeline.writing.encode import Chunk, chunks, message_ids, property_strings, row_ids
from aerobee_pipeline.writing.record_appender import RecordAppender
from tests.benchmarks.report import nanoseconds, rate
from tests.benchmarks.spark_turns import Timed, Times, Turns, Work

BODY_SIZE = 256
_ROWS_A_BATCH = 10_000


FILES: Final = "files, all columns"
PARQUET: Final = "Spark's Parquet"
READY: Final = "Spark alone, rows ready"
"""What Spark takes from a Python source that does nothing: no Python source can be faster."""
DECODER: Final = "the decoder alone, one core"
KAFKA: Final = "Spark's Kafka source"
NUMBERS: Final = "files, four numbers"
PARQUET_NUMBERS: Final = "Spark's Parquet, four numbers"
READY_NUMBERS: Final = "Spark alone, four numbers ready"
STREAM: Final = "stream, 100,000 a batch"
APPEND: Final = "AppendRecords, no Spark"
READY_STREAM: Final = "Spark alone, a stream of rows ready"
KAFKA_STREAM: Final = "a stream of Spark's Kafka source"
SINK: Final = "sink"
DROPPED: Final = "Spark alone, rows dropped"
BESIDE_FILES: Final = {FILES: (PARQUET, READY), NUMBERS: (PARQUET_NUMBERS, READY_NUMBERS)}
_BESIDE: Final[Mapping[str, Mapping[str, float | None]]] = {
    FILES: {PARQUET: 1 / 1.3, READY: None, DECODER: None, KAFKA: None},
    NUMBERS: {PARQUET_NUMBERS: 1 / 1.3, READY_NUMBERS: None},
    STREAM: {APPEND: 0.6, READY_STREAM: None, KAFKA_STREAM: None},
    SINK: {APPEND: 0.9, DROPPED: None},
}
"""What each of ours stands beside, and the share of its rate that is the goal."""


class Beside(NamedTuple):
    """A contender beside ours. `goal`: the share of its rate that ours should have."""

    turns: Turns
    goal: float | None


class Comparison(NamedTuple):
    """What we measure, and what it stands beside."""

    ours: Turns
    beside: tuple[Beside, ...]


HEAD: Final = ("", "rows/s", "beside", "rows/s", "ratio of rates", "goal", "ratio of CPU", "with brokers")
TIMES_HEAD: Final = ("", "rows/s", "CPU a row", "JVM", "Python", "brokers")


def comparisons(found: Mapping[str, Turns]) -> list[Comparison]:
    """What was measured, in the order of the table."""
    return [
        Comparison(found[ours], tuple(Beside(found[name], goal) for name, goal in beside.items() if name in found))
        for ours, beside in _BESIDE.items()
    ]


def cells(found: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """The rows of the table of ratios, each the median of the rounds."""
    return [
        (
            *(ours.name, rate(ours.rate, 1), other.name, rate(other.rate, 1)),
            f"{ours.rate_beside(other):.2f}",
            "" if goal is None else f"{goal:.2f}",
            f"{ours.cpu_beside(other, lambda times: times.spark):.2f}",
            f"{ours.cpu_beside(other, sum):.2f}",
        )
        for ours, beside in found
        for other, goal in beside
    ]


def times_cells(found: Iterable[Turns]) -> list[tuple[str, ...]]:
    """The rows of the table of processor times."""
    parts: tuple[Callable[[Times], float], ...] = (
        sum,
        lambda times: times.jvm,
        lambda times: times.python,
        lambda times: times.brokers,
    )
    return [(each.name, rate(each.rate, 1), *(nanoseconds(each.cpu(part)) for part in parts)) for each in found]


def encoded(count: int, topic: str, queues: int) -> list[tuple[int, Chunk]]:
    """The records of so many rows, as the sink sends them."""
    found: list[tuple[int, Chunk]] = []
    rotation = itertools.cycle(range(queues))
    body = os.urandom(BODY_SIZE)
    for first in range(0, count, _ROWS_A_BATCH):
        number = min(_ROWS_A_BATCH, count - first)
        keys = pa.array([f"k{each}" for each in range(first, first + number)])
        rows = pa.RecordBatch.from_pydict({"body": pa.array([body] * number), "keys": keys})
        ids, marks = message_ids(1, first, number), row_ids("bench:0", first, number)
        texts = property_strings(rows, ids, ("SPARK_ID", marks))
        found += chunks(topic, rows.column("body"), texts, rotation, 1 << 20)
    return found


def append(endpoint: str, topic: str, records: Sequence[tuple[int, Chunk]]) -> int:
    """Append records that are encoded, over one stream; return their number."""
    appender = RecordAppender(Broker(Address(endpoint)), in_flight_max=4, retries=3, retry_interval_ms=200)
    for queue, chunk in records:
        appender.append(topic, queue, chunk)
    appender.finish()
    return appender.message_count


def streamed(frame: Any, checkpoint: Callable[[], Path], count: int) -> Work:
    """A query that reads a stream to its present end, and throws the rows away.

    The time is that of its micro-batches, as Spark reports it, without the start of the query.
    """

    def run() -> Timed:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint()))

        def query() -> Any:
            started = writer.trigger(availableNow=True).start()
            started.awaitTermination()
            return started

        batches = retry_worker_start(query).recentProgress
        assert sum(batch.numInputRows for batch in batches) == count
        return Timed(count, sum(batch.durationMs["triggerExecution"] for batch in batches) / 1000)

    return run


def plot(found: Sequence[Comparison], path: Path) -> None:
    """Rates as bars, a panel for each comparison, with the goals as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings: Mapping[str, Any] = {"svg.hashsalt": "aerobee", "font.size": 9}
    with matplotlib.rc_context(dict(settings)):
        heights = [1 + len(one.beside) for one in found]
        figure, panels = pyplot.subplots(
            len(found), 1, figsize=(7, 0.55 + 0.32 * sum(heights)), height_ratios=heights, layout="constrained"
        )
        for (ours, beside), axes in zip(found, panels, strict=True):
            speeds = (ours, *(other.turns for other in beside))
            colors = ["tab:blue", *["lightgray"] * len(beside)]
            bars = axes.barh(range(len(speeds)), [speed.rate / 1000 for speed in speeds], height=0.7, color=colors)
            axes.bar_label(bars, fmt="{:,.0f}", padding=3)
            for goal in (other.goal * other.turns.rate / 1000 for other in beside if other.goal is not None):
                axes.plot([goal, goal], [-0.45, 0.45], color="black", linewidth=2)
            axes.set_yticks(range(len(speeds)), [speed.name for speed in speeds])
            axes.invert_yaxis()
            axes.margins(x=0.12)
            axes.spines[["top", "right"]].set_visible(False)
        panels[-1].set_xlabel("thousand rows a second; black: the goal")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
