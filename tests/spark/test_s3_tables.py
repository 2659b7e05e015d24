"""Tables in buckets of a real S3 server on this machine, versitygw: `make test-spark-s3` installs it and runs this."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from aerobee_pipeline.jobs import Housekeeping, TableOptions, keep_table
from aerobee_pipeline.offsets import Queue
from aerobee_pipeline.tables.formats import open_table
from aerobee_pipeline.tables.table import TableChangedError
from aerobee_pipeline.tables.warehouse import Warehouse
from tests.spark.cluster import wait_for
from tests.spark.rest_catalog import rest_catalog
from tests.spark.stores import orders, write
from tests.support.ports import free_ports

pytestmark = pytest.mark.skipif("AEROBEE_S3" not in os.environ, reason="runs with `make test-spark-s3`")

KINDS = ["delta", "iceberg in SQLite", "iceberg in REST"]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A bucket of a server with one account, which driver and workers have in their environment."""
    program = shutil.which("versitygw")
    assert program is not None, "make test-spark-s3 installs it"
    (port,) = free_ports(1)
    directory = tmp_path_factory.mktemp("s3")
    accounts = ["--access", os.environ["AWS_ACCESS_KEY_ID"], "--secret", os.environ["AWS_SECRET_ACCESS_KEY"]]
    command = [program, *accounts, "--port", f"127.0.0.1:{port}", "posix", str(directory)]
    with (directory.parent / "versitygw.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(lambda: _listens(port) or process.poll() is not None, "the S3 server")
        assert process.poll() is None, (directory.parent / "versitygw.log").read_text()
        settings: dict[str, Any] = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http"}
        fs.S3FileSystem(**settings, allow_bucket_creation=True).create_dir("lake")
        variables = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": os.environ["AWS_REGION"]}
        os.environ.update(variables)  # the jobs read them
        yield Warehouse.of("s3://lake/topics", variables)
    finally:
        process.terminate()
        process.wait(60)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_in_a_bucket(spark: Any, bucket: Warehouse, kind: str, tmp_path: Path) -> None:
    """Each message once over several commits; small files are joined, old ones deleted; other readers see all."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    to, topic = kind.split()[0], kind.split()[-1]
    write(tmp_path / "store", orders(300, topics=(topic,)))
    source = {"storePath": str(tmp_path / "store")}
    with rest_catalog(tmp_path, bucket.uri, **bucket.iceberg_options()) as rest:
        catalog = None if to == "delta" else rest if "REST" in kind else f"sqlite:///{tmp_path}/catalog.db"
        given = TableOptions(to=to, warehouse=bucket.uri, catalog=catalog, rows_per_commit=100)
        assert keep_table(spark, source, topic, given).facts["commits"] == 3
        write(tmp_path / "store", orders(20, first=300, topics=(topic,)))
        house = Housekeeping(version_days=0, today=datetime.now(UTC).date() + timedelta(days=1))
        joining = TableOptions(to=to, warehouse=bucket.uri, catalog=catalog, housekeeping=house)
        facts = keep_table(spark, source, topic, joining).facts
        assert (facts["messages"], facts["files_joined"]) == (20, 4)
        table: Any = open_table(to, bucket, topic, catalog)
        assert len(table.files()) == 1
        stored = bucket.below(topic).filesystem().get_file_info(fs.FileSelector("data", recursive=True))
        assert sum(each.type == fs.FileType.File for each in stored) == 1, "files of old versions are deleted"
        own = table._table
        scan = polars.scan_delta(own.table_uri, storage_options=bucket.delta_options()) if to == "delta" else None
        scan = polars.scan_iceberg(own) if scan is None else scan
        assert scan.select("queueId", "queueOffset").collect().n_unique() == 320
        rows = own.to_pyarrow_table() if to == "delta" else own.scan().to_arrow()
        database = duckdb.connect()
        database.register("messages", rows)
        counted = database.sql("select count(*), count(distinct (queueId, queueOffset)) from messages").fetchall()
        assert counted == [(320, 320)]


@pytest.mark.parametrize("kind", KINDS)
def test_two_writers_of_a_table_in_a_bucket(bucket: Warehouse, kind: str, tmp_path: Path) -> None:
    """The server keeps the first of two commits to the same version."""
    to, topic = kind.split()[0], f"two-{kind.split()[-1]}"
    queue = Queue(topic, "", 0)
    with rest_catalog(tmp_path, bucket.uri, **bucket.iceberg_options()) as rest:
        catalog = None if to == "delta" else rest if "REST" in kind else f"sqlite:///{tmp_path}/catalog.db"
        one = open_table(to, bucket, topic, catalog)
        one.evolve(pa.schema([("n", pa.int64()), ("date", pa.date32())]))
        other = open_table(to, bucket, topic, catalog)
        one.commit((), (), {queue: 10})
        with pytest.raises(TableChangedError):
            other.commit((), (), {queue: 20})
        other.load()
        assert other.progress([queue]) == {queue: 10}
