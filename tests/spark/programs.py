"""Programs that start their own session: `python -m tests.spark.programs NAME ARGUMENT...`. Each prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def count(store: str) -> Any:
    """A local session with the Java that Spark finds."""
    from aerobee_pipeline import local_session

    spark = local_session("count", cores="1")
    try:
        frame = spark.read.format("aerobee").options(storePath=store, subscribePattern=".*").load()
        return {"count": frame.count(), "java": spark._jvm.java.lang.System.getProperty("java.home")}
    finally:
        spark.stop()


def connect(url: str, store: str, endpoint: str, checkpoint: str) -> Any:
    """A client of Spark Connect: discovery, registration, reading, writing, a stream and a job."""
    from pyspark.sql import SparkSession

    from aerobee_pipeline import register
    from aerobee_pipeline.jobs import audit
    from aerobee_pipeline.worker_start import retry_worker_start

    spark = SparkSession.builder.remote(url).getOrCreate()
    try:
        discovered = spark.read.format("aerobee").options(storePath=store, subscribePattern=".*").load().count()
        register(spark)
        messages = spark.read.format("aerobee").options(storePath=store, subscribePattern=".*").load()
        sink = messages.select("body").write.format("aerobee").mode("append")
        sink.options(endpoint=endpoint, topic="connected").save()
        stream = spark.readStream.format("aerobee").options(endpoint=endpoint, subscribe="connected")
        writer = stream.option("startingOffsets", "earliest").load().writeStream.format("parquet")
        writer = writer.option("path", f"{checkpoint}/out").option("checkpointLocation", f"{checkpoint}/state")
        retry_worker_start(lambda: writer.trigger(availableNow=True).start().awaitTermination())
        return {
            "client": type(spark).__module__,
            "discovered": discovered,
            "registered": messages.count(),
            "audit": audit(spark, store).exit_status,
            "streamed": spark.read.parquet(f"{checkpoint}/out").count(),
        }
    finally:
        spark.stop()


def submitted(store: str) -> Any:
    """Run under spark-submit: it configures the session, and the package comes from a zip file."""
    from pyspark.sql import SparkSession

    import aerobee_pipeline
    from aerobee_pipeline.jobs import audit

    spark = SparkSession.builder.getOrCreate()
    aerobee_pipeline.register(spark)
    try:
        frame = spark.read.format("aerobee").options(storePath=store, subscribePattern=".*").load()
        where = frame.rdd.mapPartitions(lambda rows: [(len(list(rows)), aerobee_pipeline.__file__)]).collect()
        return {
            "master": spark.sparkContext.master,
            "count": sum(count for count, _ in where),
            "packages": sorted({path for _, path in where}),
            "audit": audit(spark, store).exit_status,
        }
    finally:
        spark.stop()


def keep(master: str, endpoint: str, directory: str, me: str, other: str) -> Any:
    """One of two jobs on a cluster that keep the same tables at once. A conflict ends a run, and another follows.

    Returns how many runs of each table ended with a conflict.
    """
    from aerobee_pipeline import local_session
    from aerobee_pipeline.jobs import TableOptions, keep_table
    from aerobee_pipeline.tables.table import TableConflictError
    from tests.spark.cluster import wait_for
    from tests.spark.follow_topic import SETTINGS

    settings = {**SETTINGS, "spark.cores.max": "1", "spark.executor.cores": "1"}
    spark = local_session("keep", master=master, settings=settings)
    conflicts = dict.fromkeys(("delta", "iceberg"), 0)
    try:
        for kind in conflicts:
            table = TableOptions(to=kind, warehouse=f"{directory}/lake", rows_per_commit=20)
            (Path(directory) / f"{kind}-{me}").touch()
            wait_for((Path(directory) / f"{kind}-{other}").exists, "the other job")
            while True:
                try:
                    keep_table(spark, {"endpoint": endpoint}, "original", table)
                    break
                except TableConflictError:
                    conflicts[kind] += 1
        return conflicts
    finally:
        spark.stop()


if __name__ == "__main__":
    programs: dict[str, Callable[..., Any]] = {
        "count": count,
        "connect": connect,
        "keep": keep,
        "submitted": submitted,
    }
    print("result " + json.dumps(programs[sys.argv[1]](*sys.argv[2:])), flush=True)
