"""Export: topics to Parquet by topic and date, once or incrementally. Replay: from Parquet into a topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.jobs.tables import PARTITION_COLUMNS, add_files, check_format, check_layout, table_files
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
    file_format: str = "parquet",
) -> JobResult:
    """Write messages under `output`, partitioned by topic and by the date of their store time in UTC.

    `source` are options of the data source. With `checkpoint`, only messages since the last run are written, each once
    however often a run fails. Without it, all messages are written in addition to existing files. `file_format` delta
    or iceberg: the Parquet files are also a table of that format (tables.py). OptionError if its package is missing.
    """
    check_format(file_format, output)
    check_layout(file_format, output)
    _check_kind(output, checkpoint)
    options = {"includeProperties": "true", "includeSystem": "true", **source}
    with _timestamps_for_all(spark):
        if checkpoint is None:
            columns, counts = _everything(spark, options, output, file_format)
        else:
            columns, counts = _increment(
                spark, {"startingOffsets": "earliest", **options}, output, checkpoint, file_format
            )
    facts: dict[str, Any] = {"messages": sum(counts.values()), "output": output}
    if file_format != "parquet":
        archive = _archive(spark, output)
        facts["files_added"] = add_files(file_format, output, archive.inputFiles() if archive else (), columns)
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


def _everything(
    spark: SparkSession, options: dict[str, str], output: str, file_format: str
) -> tuple[list[str], dict[tuple[str, str], int]]:
    """The names of the table's columns, and how many messages were written by topic and date."""
    frame = _dated(spark.read.format("aerobee").options(**options).load())
    columns = frame.columns
    frame = frame.sortWithinPartitions("topic", "date", "queueId", "queueOffset").cache()
    try:
        rows = frame.groupBy("topic", "date").count().collect()
        writer = _partitioned(frame, file_format).write.format("parquet").mode("append").option("compression", "zstd")
        writer.partitionBy(*PARTITION_COLUMNS[file_format]).save(output)
    finally:
        frame.unpersist()
    return columns, {(row.topic, str(row.date)): row["count"] for row in rows}


def _increment(
    spark: SparkSession, options: dict[str, str], output: str, checkpoint: str, file_format: str
) -> tuple[list[str], dict[tuple[str, str], int]]:
    """Like `_everything`."""
    before = _counts(spark, output)
    frame = _dated(spark.readStream.format("aerobee").options(**options).load())
    writer = _partitioned(frame, file_format).writeStream.format("parquet").outputMode("append")
    writer = writer.partitionBy(*PARTITION_COLUMNS[file_format]).option("compression", "zstd")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)

    def write() -> None:
        query = writer.start(output)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    retry_worker_start(write)
    after = _counts(spark, output)
    grown = {key: count - before.get(key, 0) for key, count in after.items() if count > before.get(key, 0)}
    return frame.columns, grown


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


def _partitioned(frame: DataFrame, file_format: str) -> DataFrame:
    """The frame with the columns that name directories."""
    from pyspark.sql import functions as f

    pairs = zip(PARTITION_COLUMNS[file_format], ("topic", "date"), strict=True)
    return frame.withColumns({name: f.col(of) for name, of in pairs if name != of})


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
    iceberg: the current messages of the table.
    """
    from pyspark.sql import functions as f

    frame = _archived(spark, archive, file_format).where(f.col("topic") == topic)
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


def _archived(spark: SparkSession, archive: str, file_format: str) -> DataFrame:
    check_format(file_format, archive)
    if file_format == "parquet":
        return spark.read.parquet(archive)
    files = [str(file) for file in table_files(file_format, archive)]
    if not files:
        raise OptionError(f"{archive} has no {file_format} table with messages; export there first")
    return spark.read.option("basePath", archive).parquet(*files)
