"""One Spark session for all tests in this folder: it costs 15 seconds and a gigabyte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SPARK_TESTS = "AEROBEE_SPARK" in os.environ
# Without the extra `spark` the modules cannot even be imported.
collect_ignore_glob = [] if SPARK_TESTS else ["test_*.py"]

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    # A short start matters more than fast code.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.stopTimeout": "30s",
    # A failed task is retried, as on a cluster.
    "spark.task.maxFailures": "3",
    # On a busy machine a Python worker takes longer to start than Spark's 15 seconds.
    "spark.python.authenticate.socketTimeout": "300s",
}


@pytest.fixture(scope="session", autouse=True)
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with two slots, whose tasks have three attempts.

    It starts before any test: PySpark forks to start Java, and the threads of a gRPC client can crash a forked child.
    """
    from aerobee_pipeline import local_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = local_session(
        "tests", master="local[2,3]", settings={**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)}
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The master URL of a standalone cluster with one worker."""
    from tests.spark.cluster import standalone

    with standalone(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A fresh checkpoint directory."""
    return str(tmp_path / "checkpoint")
