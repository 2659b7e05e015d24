"""Export: topics to Parquet by topic and date, once or incrementally. Replay: from Parquet into a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.worker_start import retry_worker_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = ("topic", "date", "messages")
_FORMATS: Final = ("parquet", "iceberg", "delta")
_LINKAGE_ERRORS: Final = (
    "NoSuchMethodError",
    "NoSuchFieldError",
    "NoClassDefFoundError",
    "IncompatibleClassChangeError",
    "AbstractMethodError",
)
_KEPT: Final = ("keys", "tags", "body")


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
    however often a run fails. Without it, all messages are written in addition to existing files. `file_format` may be
    iceberg or delta, if the session has their packages; `output` then has their form.
    """
    if file_format not in _FORMATS:
        raise OptionError(f"format {file_format!r} is unknown; choose one of {', '.join(_FORMATS)}")
    options = {"includeProperties": "true", "includeSystem": "true", **source}
    try:
        if checkpoint is None:
            counts = _everything(spark, options, output, file_format)
        else:
            counts = _increment(spark, {"startingOffsets": "earliest", **options}, output, checkpoint, file_format)
    except Exception as error:
        if (reason := package_error(file_format, str(error), spark.version)) is not None:
            raise OptionError(reason) from error
        raise
    table = [(topic, date, count) for (topic, date), count in sorted(counts.items())]
    return JobResult(COLUMNS, table, 0, {"messages": sum(counts.values()), "output": output})


def package_error(file_format: str, error: str, spark_version: str) -> str | None:
    """The advice for an error caused by a missing or unsuitable package of a format; None for other errors."""
    if file_format == "parquet":
        return None
    if "DATA_SOURCE_NOT_FOUND" in error:
        return (
            f"format {file_format!r}: the session does not have its package; name it with "
            f"--conf spark.jars.packages=GROUP:NAME:VERSION, docs/pipeline.md has an example"
        )
    if any(name in error for name in _LINKAGE_ERRORS):
        return (
            f"format {file_format!r}: its package was built for another release of Spark than {spark_version}; "
            f"choose the package that is made for this one, or export to Parquet"
        )
    return None


def _everything(
    spark: SparkSession, options: dict[str, str], output: str, file_format: str
) -> dict[tuple[str, str], int]:
    frame = _dated(spark.read.format("aerobee").options(**options).load())
    frame = frame.sortWithinPartitions("topic", "date", "queueId", "queueOffset").cache()
    try:
        rows = frame.groupBy("topic", "date").count().collect()
        writer = frame.write.format(file_format).mode("append")
        if file_format == "iceberg":
            _create_table(spark, frame, output)
        else:
            writer = writer.partitionBy("topic", "date")
        if file_format == "parquet":
            writer = writer.option("compression", "zstd")
        writer.save(output)
    finally:
        frame.unpersist()
    return {(row.topic, str(row.date)): row["count"] for row in rows}


def _increment(
    spark: SparkSession, options: dict[str, str], output: str, checkpoint: str, file_format: str
) -> dict[tuple[str, str], int]:
    before = _counts(spark, output, file_format)
    frame = _dated(spark.readStream.format("aerobee").options(**options).load())
    writer = frame.writeStream.format(file_format).outputMode("append")
    if file_format == "iceberg":
        _create_table(spark, frame, output)
        writer = writer.option("fanout-enabled", "true")  # otherwise rows must be sorted by partition
    else:
        writer = writer.partitionBy("topic", "date")
    if file_format == "parquet":
        writer = writer.option("compression", "zstd")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)

    def write() -> None:
        query = writer.toTable(output) if file_format == "iceberg" else writer.start(output)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    retry_worker_start(write)
    after = _counts(spark, output, file_format)
    return {key: count - before.get(key, 0) for key, count in after.items() if count > before.get(key, 0)}


def _create_table(spark: SparkSession, frame: DataFrame, name: str) -> None:
    """Iceberg appends only to tables that exist."""
    if not spark.catalog.tableExists(name):
        empty = spark.createDataFrame([], frame.schema)
        empty.writeTo(name).using("iceberg").partitionedBy("topic", "date").create()


def _counts(spark: SparkSession, output: str, file_format: str) -> dict[tuple[str, str], int]:
    from pyspark.errors import AnalysisException

    try:
        frame = spark.read.format(file_format).load(output)
    except AnalysisException:
        return {}  # nothing has been written yet
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
    same ids. `messages_per_second`: the limit of all tasks together; each has an equal share.
    """
    from pyspark.sql import functions as f

    frame = spark.read.format(file_format).load(archive).where(f.col("topic") == topic)
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
