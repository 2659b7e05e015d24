"""A standalone Spark cluster on this machine, from the programs in the pip package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 240
"""Timeout of any step on a busy machine."""


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS} s"
        time.sleep(0.05)


def spark_class(*arguments: str) -> list[str]:
    """The command of one of Spark's own programs."""
    return [sys.executable, "-m", "aerobee_pipeline.spark_class", *arguments]


def environment() -> dict[str, str]:
    """Environment variables for programs that start Spark themselves."""
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def standalone(directory: Path, *, cores: int = 2) -> Iterator[str]:
    """Run a master and a worker; yields the master's URL."""
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    master = ["org.apache.spark.deploy.master.Master", *common, "--port", "0"]
    with _daemon(master, directory / "master.log", r"Starting Spark master at (spark://\S+)") as url:
        worker = ["org.apache.spark.deploy.worker.Worker", *common, "--cores", str(cores), "--memory", "2g"]
        worker += ["--work-dir", str(directory / "work"), url]
        with _daemon(worker, directory / "worker.log", r"Successfully registered with master (\S+)"):
            yield url


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Run a Spark Connect server with two cores; yields the URL for its clients."""
    command = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2,3]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.authenticate.socketTimeout": "300s",
    }
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    started = r"Spark Connect server started at: \S+:(\d+)"
    with _daemon(command, directory / "connect.log", started) as port:
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _daemon(arguments: list[str], log: Path, ready: str) -> Iterator[str]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            spark_class(*arguments), stdout=output, stderr=output, env=environment(), start_new_session=True
        )
    try:
        wait_for(lambda: re.search(ready, log.read_text()) is not None or process.poll() is not None, str(arguments[0]))
        found = re.search(ready, log.read_text())
        assert found is not None, log.read_text()[-2000:]
        yield found[1]
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        finally:
            process.kill()


def processes() -> Iterator[tuple[int, int, str]]:
    """Every process of this machine: its id, its parent's id, its command line."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # the process has ended
        yield int(path.name), parent, command
