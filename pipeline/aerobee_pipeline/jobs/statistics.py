"""Statistics of topics: counts, rates, keys, tags and lateness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs.over_splits import checked_stores
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.options import Subscription
from aerobee_pipeline.reading.store_queues import StoreQueues
from aerobee_store.errors import StoreError
from aerobee_store.tables.json_table import JsonTable
from aerobee_store.tools.store_files import ReadOnlyDisk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

By = Literal["queue", "topic", "tag", "key", "hour"]
_SCHEMA: Final = {
    "queue": "topic string, brokerName string, queueId int, storeTimestamp timestamp, storeSize int",
    "topic": "topic string, storeTimestamp timestamp, storeSize int",
    "tag": "topic string, tags string, storeTimestamp timestamp, storeSize int",
    "key": "topic string, keys string, storeTimestamp timestamp, storeSize int",
    "hour": "topic string, storeTimestamp timestamp, bornTimestamp timestamp, storeSize int",
}


def statistics(spark: SparkSession, source: Mapping[str, str], *, by: By = "queue", top: int = 100) -> JobResult:
    """Count messages by queue, topic, tag, key or hour. `source` are options of the data source.

    Each row has messages, bytes in the store, first and last store time and, except by hour, messages per hour between
    the two. By tag and key: the `top` most frequent ones; the fact `distinct_about` says how many there are. By hour:
    the time from the creation of messages to their storage, in ms. Bodies are not decoded.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    if by not in _SCHEMA:
        raise OptionError(f"by {by!r} is unknown; choose one of {', '.join(_SCHEMA)}")
    frame = spark.read.format("aerobee").options(**source).schema(_SCHEMA[by]).load()
    total = [f.count("*").alias("messages"), f.sum("storeSize").alias("bytes")]
    if by == "hour":
        late = f.unix_millis("storeTimestamp") - f.unix_millis("bornTimestamp")
        grouped = frame.groupBy("topic", f.date_trunc("hour", "storeTimestamp").alias("hour")).agg(
            *total,
            f.percentile_approx(late, 0.5).alias("late_ms_median"),
            f.percentile_approx(late, 0.99).alias("late_ms_p99"),
            f.max(late).alias("late_ms_max"),
        )
        return _result(grouped.orderBy("topic", "hour"))
    keys = {"queue": ["topic", "brokerName", "queueId"], "topic": ["topic"], "tag": ["topic", "tags"]}
    if by == "key":
        frame = frame.withColumn("key", f.explode(f.split("keys", " "))).where("key <> ''")
    columns = keys.get(by, ["topic", "key"])
    observed = Observation()
    frame = frame.observe(observed, f.approx_count_distinct(f.struct(*columns)).alias("distinct"))
    times = [f.min("storeTimestamp").alias("first"), f.max("storeTimestamp").alias("last")]
    grouped = frame.groupBy(*columns).agg(*total, *times)
    hours = (f.unix_millis("last") - f.unix_millis("first")) / 3_600_000
    grouped = grouped.withColumn("messages_an_hour", f.round(f.when(hours > 0, f.col("messages") / hours), 1))
    if by in ("tag", "key"):
        result = _result(grouped.orderBy(f.desc("messages"), *columns).limit(top))
        result.facts["distinct_about"] = observed.get["distinct"]
        return result
    return _result(grouped.orderBy(*columns))


def lag(stores: Mapping[str, str | Path] | str | Path) -> JobResult:
    """The number of messages behind each group's committed offset in each queue, from the stores' files alone.

    Offsets are those of the broker's last save of `config/consumerOffset.json`.
    """
    rows: list[tuple[Any, ...]] = []
    for broker, directory in checked_stores(stores).items():
        table = _consumer_offsets(directory)
        queues = StoreQueues(broker, directory)
        try:
            bounds = queues.bounds(Subscription(pattern=".*"))
        finally:
            queues.close()
        ends = {(queue.topic, queue.queue_id): found for queue, found in bounds.items()}
        for entry, offsets in table.items():
            topic, _, group = entry.partition("@")
            for queue_id, offset in offsets.items():
                if (found := ends.get((topic, int(queue_id)))) is not None:
                    rows.append((group, topic, broker, int(queue_id), offset, found.end, max(found.end - offset, 0)))
    columns = ("group", "topic", "brokerName", "queueId", "offset", "end", "lag")
    return JobResult(columns, sorted(rows), 0, {"lag": sum(row[-1] for row in rows)})


def _consumer_offsets(directory: Path) -> Mapping[str, Mapping[str, int]]:
    """`topic@group` -> queue id -> offset, in the form of the broker's own table, which is Java's JSON."""
    path = directory / "config" / "consumerOffset.json"
    try:
        content = JsonTable(ReadOnlyDisk(), path).load()
    except StoreError as error:
        raise OptionError(f"{error}; `aerobee store verify` reports details") from None
    table = content.get("offsetTable", {}) if isinstance(content, Mapping) else {}
    if not isinstance(table, Mapping):
        raise OptionError(f"{path}: offsetTable is not an object; `aerobee store verify` reports details")
    return table


def _result(frame: DataFrame) -> JobResult:
    rows = [tuple(row) for row in frame.collect()]
    return JobResult(frame.columns, rows, 0, {"rows_found": len(rows)})
