"""Spark's own Kafka source on a local Kafka, where Java, Maven and its registry are there: what users come from."""

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

_POM = Path(__file__).with_name("kafka.xml")
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_MAVEN_SECONDS = 240
_START_SECONDS = 60
# Of the connector; one of an older release works with a newer Spark as long as Spark's interfaces allow it.
_OLDER_CONNECTORS = ("4.0.0",)


@cache
def connector_jars() -> tuple[Path, ...] | str:
    """What `spark.jars` needs for format kafka, or why it cannot be had."""
    reason = ""
    for version in (importlib.metadata.version("pyspark"), *_OLDER_CONNECTORS):
        found = _jars("connector", version)
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
    """A broker on a directory of its own; yields its address. Call it only if `broker_jars` has found it."""
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
    """The class path of a Kafka broker, or why it cannot be had."""
    return _jars("broker", None)


def fill(frame: Any, address: str) -> None:
    """The same messages in Kafka: the topics with four partitions each, keys as keys."""
    rows = frame.selectExpr("topic", "keys key", "body value", "queueId partition")
    # The first rows make the topics, which takes seconds; with all of them waiting, some would wait too long.
    for part in (rows.dropDuplicates(["topic"]), rows):
        part.write.format("kafka").option("kafka.bootstrap.servers", address).mode("append").save()


def frame(spark: Any, address: str) -> Any:
    """All of them."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    return reader.option("subscribePattern", "bench-.*").load()


def _jars(profile: str, spark_version: str | None) -> tuple[Path, ...] | str:
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return "it needs java and mvn on the PATH"
    target = Path("build/kafka") / (profile if spark_version is None else f"{profile}-{spark_version}")
    if not (target / "complete").exists():
        command = [
            maven,
            "--quiet",
            "--batch-mode",
            "--file",
            str(_POM),
            f"-P{profile}",
            "dependency:copy-dependencies",
        ]
        command.append(f"-DoutputDirectory={target.absolute()}")
        if spark_version is not None:
            command.append(f"-Dspark.version={spark_version}")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return "Maven takes too long"
        if done.returncode:
            cause = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stdout[-300:])
            return f"Maven cannot fetch it: {cause}"
        (target / "complete").touch()
    return tuple(sorted(target.absolute().glob("*.jar")))
