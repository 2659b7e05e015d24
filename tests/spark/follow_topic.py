"""A driver for tests to kill: `python -m tests.spark.follow_topic MASTER ENDPOINT DIRECTORY`.

It follows topic `original` in four ways at once: to topic `copy`, to the Parquet files DIRECTORY/files, and to tables
of Delta Lake and Iceberg in DIRECTORY/lake. Checkpoints are in DIRECTORY, whose name is also among the executors'
arguments. It ends only if a query fails for another reason than a process that was killed.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import Any

from aerobee_pipeline import local_session
from aerobee_pipeline.jobs import TableOptions, keep_table
from aerobee_pipeline.worker_start import retry_worker_start

SETTINGS = {
    # One executor at a time; a worker of the cluster starts another when it is killed.
    "spark.cores.max": "2",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Tasks of killed executors are retried elsewhere, however many are killed.
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
    # A busy machine is not a failure.
    "spark.python.authenticate.socketTimeout": "300s",
    "spark.network.timeout": "600s",
}


def main(master: str, endpoint: str, directory: str) -> None:
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Daerobee.test={directory}"
    spark = local_session("follow", master=master, settings={**SETTINGS, "spark.executor.extraJavaOptions": java})
    spark.sparkContext.setLogLevel("ERROR")
    for kind in ("delta", "iceberg"):
        threading.Thread(target=follow_into_table, args=(spark, endpoint, directory, kind), daemon=True).start()

    def follow() -> None:
        source = spark.readStream.format("aerobee").options(endpoint=endpoint, subscribe="original")
        frame = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=100).load().select("body")
        copy = frame.writeStream.format("aerobee").options(endpoint=endpoint, topic="copy", retries=10)
        files = frame.writeStream.format("parquet").option("path", f"{directory}/files")
        queries = [
            writer.option("checkpointLocation", f"{directory}/checkpoint-{name}").start()
            for name, writer in (("copy", copy), ("files", files))
        ]
        try:
            spark.streams.awaitAnyTermination()
        finally:
            for query in queries:
                query.stop()
            spark.streams.resetTerminated()

    retry_worker_start(follow)


def follow_into_table(spark: Any, endpoint: str, directory: str, kind: str) -> None:
    """Whatever ends the job, another run goes on; a conflict with another writer is one of the reasons."""
    table = TableOptions(to=kind, warehouse=f"{directory}/lake", rows_per_commit=100)
    while True:
        try:
            keep_table(spark, {"endpoint": endpoint}, "original", table, every_seconds=0.2)
        except Exception:
            traceback.print_exc()
            time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
