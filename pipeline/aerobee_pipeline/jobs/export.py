"""Export: topics to Parquet by topic and date, once or incrementally. Replay: from Parquet into a topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.tables.formats import PACKAGES, open_table
from aerobee_pipeline.tables.warehouse import Warehouse
from aerobee_pipeline.worker_start import retry_worker_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = ("topic", "date", "messages")
_KEPT: Final = ("keys", "tags", "body")
_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"


def export(
    spark: SparkSession,
    source: Mapping[str, str],
    output: str,
    *,
    checkpoint: str | None = None,
) -> JobResult:
    """Write messages under `output`, partitioned by topic and by the date of their store time in UTC.

    `source` are options of the data source. With `checkpoint`, only messages since the last run are written, each once
    however often a run fails. Without it, all messages are written in addition to existing files. `keep_table` keeps
    tables of Delta Lake and Iceberg.
    """
    _check_kind(output, checkpoint)
    options = {"includeProperties": "true", "includeSystem": "true", **source}
    with _timestamps_for_all(spark):
        if checkpoint is None:
            counts = _everything(spark, options, output)
        else:
            counts = _increment(spark, {"startingOffsets": "earliest", **options}, output, checkpoint)
    facts: dict[str, Any] = {"messages": sum(counts.values()), "output": output}
    table = [(topic, date, count) for (topic, date), count in sorted(counts.items())]
    return JobResult(COLUMNS, table, 0, facts)


def _check_kind(output: str, checkpoint: str | None) -> None:
    """OptionError for an export without a checkpoint into the output of one with, or the reverse.

    With a checkpoint Spark lists the files that count in a log of its own, and then reads no others; other readers see
    all. Only directories of this machine are checked.
    """
    if "://" in output:
        return
    has_log = (Path(output) / "_spark_metadata").is_dir()
    if has_log and checkpoint is None:
        raise OptionError(
            f"{output} has an export with a checkpoint, and Spark would not see files that are added without one; give "
            f"the same checkpoint, or another output"
        )
    is_new = checkpoint is not None and "://" not in checkpoint and not Path(checkpoint).exists()
    if is_new and not has_log and any(Path(output).glob("*=*/*=*/*.parquet")):
        raise OptionError(
            f"{output} has an export without a checkpoint, which Spark would no longer see after one with; "
            f"give another output"
        )


@contextmanager
def _timestamps_for_all(spark: SparkSession) -> Iterator[None]:
    """Write timestamps as a type that other readers understand: few support Spark's default Parquet type."""
    before = spark.conf.get(_TIMESTAMPS)
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMESTAMPS, before or "INT96")


def _everything(spark: SparkSession, options: dict[str, str], output: str) -> dict[tuple[str, str], int]:
    """How many messages were written by topic and date."""
    frame = _dated(spark.read.format("aerobee").options(**options).load())
    frame = frame.sortWithinPartitions("topic", "date", "queueId", "queueOffset").cache()
    try:
        rows = frame.groupBy("topic", "date").count().collect()
        writer = frame.write.format("parquet").mode("append").option("compression", "zstd")
        writer.partitionBy("topic", "date").save(output)
    finally:
        frame.unpersist()
    return {(row.topic, str(row.date)): row["count"] for row in rows}


def _increment(
    spark: SparkSession, options: dict[str, str], output: str, checkpoint: str
) -> dict[tuple[str, str], int]:
    """Like `_everything`."""
    before = _counts(spark, output)
    frame = _dated(spark.readStream.format("aerobee").options(**options).load())
    writer = frame.writeStream.format("parquet").outputMode("append")
    writer = writer.partitionBy("topic", "date").option("compression", "zstd")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)

    def write() -> None:
        query = writer.start(output)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    retry_worker_start(write)
    after = _counts(spark, output)
    return {key: count - before.get(key, 0) for key, count in after.items() if count > before.get(key, 0)}


def _archive(spark: SparkSession, output: str) -> DataFrame | None:
    """The files written by an export, for streams only those of finished micro-batches. None: nothing yet."""
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(output)
    except AnalysisException:
        return None


def _counts(spark: SparkSession, output: str) -> dict[tuple[str, str], int]:
    frame = _archive(spark, output)
    if frame is None:
        return {}
    return {(str(row.topic), str(row.date)): row["count"] for row in frame.groupBy("topic", "date").count().collect()}


def _dated(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return frame.withColumn("date", f.to_date("storeTimestamp"))


def replay(
    spark: SparkSession,
    archive: str,
    sink: Mapping[str, str],
    *,
    topic: str,
    target: str | None = None,
    begin: str | None = None,
    end: str | None = None,
    keep_queues: bool = True,
    job_id: str,
    messages_per_second: int | None = None,
    file_format: str = "parquet",
) -> JobResult:
    """Send the messages of an export again, in the order of their queues.

    `topic` of the archive goes to `target`, by default the same. `begin`, `end`: store times, as Spark reads them.
    `keep_queues`: into the original queue of each message; otherwise the queues in turn. Properties of each message
    name its origin (`ORIGIN_TOPIC`, `ORIGIN_QUEUE`, `ORIGIN_OFFSET`); with the same `job_id` a repeated replay has the
    same ids. `messages_per_second`: the limit of all tasks together; each has an equal share. `file_format` delta or
    iceberg: `archive` is a warehouse, and the topic's table in it is read as it is now.
    """
    from pyspark.sql import functions as f

    frame = _archived(spark, archive, topic, file_format).where(f.col("topic") == topic)
    if begin is not None:
        frame = frame.where(f.col("storeTimestamp") >= f.to_timestamp(f.lit(begin)))
    if end is not None:
        frame = frame.where(f.col("storeTimestamp") < f.to_timestamp(f.lit(end)))
    origin = f.create_map(
        *(f.lit("ORIGIN_TOPIC"), f.col("topic").cast("string")),
        *(f.lit("ORIGIN_QUEUE"), f.col("queueId").cast("string")),
        *(f.lit("ORIGIN_OFFSET"), f.col("queueOffset").cast("string")),
    )
    # A message that is replayed again names its position before the last replay.
    empty = f.array().cast("array<string>")
    own = f.map_filter(
        f.coalesce(f.col("properties"), f.map_from_arrays(empty, empty)),
        lambda name, _: ~name.isin("ORIGIN_TOPIC", "ORIGIN_QUEUE", "ORIGIN_OFFSET"),
    )
    columns: list[Any] = [*_KEPT, f.map_concat(own, origin).alias("properties")]
    if keep_queues:
        columns.append("queueId")
    count = frame.select("brokerName", "queueId").distinct().count()
    partitions = max(count, 1)
    ordered = frame.repartition(partitions, "brokerName", "queueId").sortWithinPartitions("queueId", "queueOffset")
    messages = frame.count()
    options = {**sink, "topic": target or topic, "jobId": job_id}
    if messages_per_second is not None:
        options["maxRowsPerSecond"] = str(max(messages_per_second // partitions, 1))
    ordered.select(*columns).write.format("aerobee").mode("append").options(**options).save()
    return JobResult(("topic", "target", "messages"), [(topic, target or topic, messages)], 0, {"messages": messages})


def _archived(spark: SparkSession, archive: str, topic: str, file_format: str) -> DataFrame:
    if file_format == "parquet":
        return spark.read.parquet(archive)
    if file_format not in PACKAGES:
        raise OptionError(f"format {file_format!r} is unknown; choose one of parquet, {', '.join(PACKAGES)}")
    warehouse = Warehouse.of(archive)
    files = open_table(file_format, warehouse, topic).files()
    if not files:
        raise OptionError(f"{archive} has no {file_format} table of topic {topic!r}; `aerobee spark table` makes one")
    if any(file.has_deletes for file in files) or not warehouse.is_local:
        raise OptionError(
            f"{archive}: the table of {topic!r} is not local, or has deleted rows beside its files; read it with its "
            f"own reader and write it with the sink"
        )
    return spark.read.parquet(*(file.uri for file in files))
