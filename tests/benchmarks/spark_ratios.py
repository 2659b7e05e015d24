"""The source, a stream and the sink beside what limits each, in one run, as ratios with a plot.

file source   beside Spark's own Parquet source with the same rows and columns
stream        of micro-batches of 100,000 messages of a broker, beside AppendRecords without Spark
sink          beside AppendRecords with the same rows, encoded before, without Spark
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from aerobee_pipeline.broker_channel import Address, Broker
from aerobee_pipeline.worker_start import retry_worker_start
from aerobee_pipeline.writing.encode import Chunk, chunks, message_ids, property_strings, row_ids
from aerobee_pipeline.writing.record_appender import RecordAppender

BODY_SIZE = 256
_ROWS_A_BATCH = 10_000


class Ratio(NamedTuple):
    """A rate beside its limit, in rows per second."""

    name: str
    rate: float
    limit: str
    limit_rate: float
    goal: float

    @property
    def value(self) -> float:
        return self.rate / self.limit_rate


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


def streamed(spark: Any, endpoint: str, topic: str, checkpoint: Callable[[], Path], count: int) -> Callable[[], int]:
    """A query that reads a topic in micro-batches of 100,000 messages, and throws the rows away."""

    def run() -> int:
        source = spark.readStream.format("aerobee").options(endpoint=endpoint, subscribe=topic)
        frame = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=100_000).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint()))
        retry_worker_start(lambda: writer.trigger(availableNow=True).start().awaitTermination())
        return count

    return run


def plot(ratios: Sequence[Ratio], path: Path) -> None:
    """Bars of the ratios, with the goals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings: Mapping[str, Any] = {"svg.hashsalt": "aerobee", "font.size": 9}
    with matplotlib.rc_context(dict(settings)):
        figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
        places = range(len(ratios))
        axes.barh(places, [ratio.value for ratio in ratios], height=0.55)
        goals = [ratio.goal for ratio in ratios]
        axes.scatter(goals, places, marker="|", s=500, color="black", label="goal", zorder=3)
        axes.set_yticks(places, [f"{ratio.name},\nof {ratio.limit}" for ratio in ratios])
        axes.invert_yaxis()
        axes.set_xlabel("rate of rows, as a share")
        axes.set_xlim(left=0)
        axes.legend(loc="lower right")
        axes.grid(alpha=0.3, axis="x")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
