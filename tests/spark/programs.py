"""Programs that start a session of their own: `python -m tests.spark.programs NAME ARGUMENT...`. Each prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def count(store: str) -> Any:
    """A local session with whatever Java is found."""
    from aerobee_pipeline import local_session

    spark = local_session("count", cores="1")
    try:
        frame = spark.read.format("aerobee").options(storePath=store, subscribePattern=".*").load()
        return {"count": frame.count(), "java": spark._jvm.java.lang.System.getProperty("java.home")}
    finally:
        spark.stop()


def submitted(store: str) -> Any:
    """For spark-submit: the session is the one that it configured, the package comes from a zip."""
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


if __name__ == "__main__":
    programs: dict[str, Callable[..., Any]] = {"count": count, "submitted": submitted}
    print("result " + json.dumps(programs[sys.argv[1]](*sys.argv[2:])), flush=True)
