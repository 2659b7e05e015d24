"""A driver for tests to kill: `python -m tests.spark.copy_topic MASTER ENDPOINT DIRECTORY`.

It follows topic `original` and writes to topic `copy`. The checkpoint is in DIRECTORY, whose name is also among the
executors' arguments. It ends only if the query fails.
"""

from __future__ import annotations

import sys

from aerobee_pipeline import local_session
from aerobee_pipeline.worker_start import retry_worker_start

SETTINGS = {
    # One executor at a time; a worker of the cluster starts another when it is killed.
    "spark.cores.max": "1",
    "spark.executor.cores": "1",
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
    spark = local_session("copy", master=master, settings={**SETTINGS, "spark.executor.extraJavaOptions": java})
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.readStream.format("aerobee").options(endpoint=endpoint, subscribe="original")
    frame = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=100).load().select("body")
    writer = frame.writeStream.format("aerobee").options(endpoint=endpoint, topic="copy", retries=10)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    retry_worker_start(lambda: writer.start().awaitTermination())


if __name__ == "__main__":
    main(*sys.argv[1:])
