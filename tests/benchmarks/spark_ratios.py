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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from aerobee_pipeline.broker_channel import Address, Broker
from aerobee_pipeline.worker_start import retry_worker_start
from aerobee_pipeline.writing.encode import Chunk, chunks, message_ids, property_strings, row_ids
from aerobee_pipeline.writing.record_appender import RecordAppender
from tests.benchmarks.report import nanoseconds, rate

BODY_SIZE = 256
_ROWS_A_BATCH = 10_000


class Speed(NamedTuple):
    """Rows per second, and processor time per row in seconds, that of brokers left out."""

    name: str
    rate: float
    cpu: float
    goal: float | None = None
    """The share of this rate that is the goal for what stands beside it."""


class Comparison(NamedTuple):
    """What we measure, and what it stands beside."""

    ours: Speed
    beside: tuple[Speed, ...]


READY: Final = "Spark alone, rows ready"
"""What Spark takes from a Python source that does nothing: nothing can be faster."""
DROPPED: Final = "Spark alone, rows dropped"
HEAD: Final = ("", "rows/s", "CPU a row", "beside", "rows/s", "CPU a row", "ratio", "goal")


def cells(comparisons: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """The rows of the table."""
    return [
        (
            *(ours.name, rate(ours.rate, 1), nanoseconds(ours.cpu)),
            *(other.name, rate(other.rate, 1), nanoseconds(other.cpu)),
            f"{ours.rate / other.rate:.2f}",
            "" if other.goal is None else f"{other.goal:.2f}",
        )
        for ours, beside in comparisons
        for other in beside
    ]


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


def streamed(frame: Any, checkpoint: Callable[[], Path], count: int) -> Callable[[], int]:
    """A query that reads a stream to its present end, and throws the rows away."""

    def run() -> int:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint()))
        retry_worker_start(lambda: writer.trigger(availableNow=True).start().awaitTermination())
        return count

    return run


def plot(comparisons: Sequence[Comparison], path: Path) -> None:
    """Rates as bars, a panel for each comparison, with the goals as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings: Mapping[str, Any] = {"svg.hashsalt": "aerobee", "font.size": 9}
    with matplotlib.rc_context(dict(settings)):
        heights = [1 + len(one.beside) for one in comparisons]
        figure, panels = pyplot.subplots(
            len(comparisons), 1, figsize=(7, 0.55 + 0.32 * sum(heights)), height_ratios=heights, layout="constrained"
        )
        for (ours, beside), axes in zip(comparisons, panels, strict=True):
            speeds = (ours, *beside)
            colors = ["tab:blue", *["lightgray"] * len(beside)]
            bars = axes.barh(range(len(speeds)), [speed.rate / 1000 for speed in speeds], height=0.7, color=colors)
            axes.bar_label(bars, fmt="{:,.0f}", padding=3)
            for goal in (other.goal * other.rate / 1000 for other in beside if other.goal is not None):
                axes.plot([goal, goal], [-0.45, 0.45], color="black", linewidth=2)
            axes.set_yticks(range(len(speeds)), [speed.name for speed in speeds])
            axes.invert_yaxis()
            axes.margins(x=0.12)
            axes.spines[["top", "right"]].set_visible(False)
        panels[-1].set_xlabel("thousand rows a second; black: the goal")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
