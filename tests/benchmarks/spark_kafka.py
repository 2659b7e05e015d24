"""Spark's own Kafka source on a local Kafka, as a comparison, if Java, Maven and its registry are available."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from socket import create_connection, socket
from typing import Any

from tests.support.maven_jars import maven_jars

_POM = Path(__file__).with_name("kafka.xml")
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_START_SECONDS = 60
# Connector releases; an older one works with a newer Spark as long as Spark's interfaces allow it.
_OLDER_CONNECTORS = ("4.2.0", "4.0.0")


@cache
def connector_jars() -> tuple[Path, ...] | str:
    """The jars in `spark.jars` for format kafka, or the reason why they are unavailable."""
    reason = ""
    for version in (importlib.metadata.version("pyspark"), *_OLDER_CONNECTORS):
        found = maven_jars(_POM, "connector", spark_version=version)
        if not isinstance(found, str):
            return found
        reason = reason or found
    return reason


def connector_version() -> str:
    """The release of the connector that `connector_jars` found."""
    jars = connector_jars()
    assert not isinstance(jars, str)
    name = next(jar.stem for jar in jars if jar.stem.startswith("spark-sql-kafka"))
    return name.rpartition("-")[2]


@contextmanager
def kafka(directory: Path) -> Iterator[str]:
    """A broker on its own directory; yields its address. Call it only if `broker_jars` has found the jars."""
    jars = broker_jars()
    assert not isinstance(jars, str), jars
    with socket() as one, socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        port, controller = one.getsockname()[1], two.getsockname()[1]
    settings = directory / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"log.dirs={directory / 'logs'}\noffsets.topic.replication.factor=1\nnum.partitions=4\n"
    )
    java = [shutil.which("java") or "java", "-Xmx1g", "-cp", ":".join(map(str, jars))]
    format_log = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
    subprocess.run(format_log, check=True, capture_output=True, timeout=_START_SECONDS)
    log = (directory / "kafka.log").open("wb")
    with log, subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + _START_SECONDS
            while time.monotonic() < deadline and process.poll() is None:
                with suppress(OSError), create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.2)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


@cache
def broker_jars() -> tuple[Path, ...] | str:
    """The class path of a Kafka broker, or the reason why it is unavailable."""
    return maven_jars(_POM, "broker")


def fill(frame: Any, address: str) -> None:
    """Write the same messages to Kafka: topics with four partitions each, keys as keys."""
    rows = frame.selectExpr("topic", "keys key", "body value", "queueId partition")
    # One row per topic creates the topics first, which takes seconds; with all rows waiting, some would time out.
    for part in (rows.dropDuplicates(["topic"]), rows):
        part.write.format("kafka").option("kafka.bootstrap.servers", address).mode("append").save()


def frame(reader: Any, address: str) -> Any:
    """All messages, as a frame of `spark.read` or `spark.readStream`."""
    return (
        reader.format("kafka").option("kafka.bootstrap.servers", address).option("subscribePattern", "bench-.*").load()
    )
