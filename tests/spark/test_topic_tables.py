"""A topic is a table: every message once, whatever is killed, compacted or written at the same time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyiceberg.manifest import DataFileContent

from aerobee_pipeline.errors import DataLossError, OptionError
from aerobee_pipeline.jobs import Housekeeping, TableOptions, keep_table, topic_table
from aerobee_pipeline.tables.bodies import BodySchema
from aerobee_pipeline.tables.formats import open_table
from aerobee_pipeline.tables.table import TableConflictError
from aerobee_pipeline.tables.warehouse import Warehouse
from aerobee_store import Message
from aerobee_store.records import record
from tests.spark.cluster import SECONDS, wait_for
from tests.spark.stores import orders, write
from tests.spark.test_tables import add_delete_file

KINDS = ["delta", "iceberg"]


def table_rows(kind: str, lake: Path, topic: str = "orders") -> Any:
    """All rows as an Arrow table, read by the format's own package."""
    table: Any = open_table(kind, Warehouse.of(str(lake)), topic)
    return table._table.to_pyarrow_table() if kind == "delta" else table._table.scan().to_arrow()


def places_of(kind: str, lake: Path) -> list[tuple[int, int]]:
    """Queue and offset of every row."""
    rows = table_rows(kind, lake).to_pylist()
    assert all(row["date"] == row["storeTimestamp"].date() and row["body"] is not None for row in rows)
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


def expected(count: int) -> list[tuple[int, int]]:
    return sorted((queue, offset) for queue in range(2) for offset in range(count // 2))


def kept(spark: Any, kind: str, directory: Path, **options: Any) -> dict[str, Any]:
    """The facts of a run from `directory`/store into `directory`/lake."""
    table = TableOptions(to=kind, warehouse=str(directory / "lake"), **options)
    facts: dict[str, Any] = keep_table(spark, {"storePath": str(directory / "store")}, "orders", table).facts
    return facts


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_is_in_the_table_once(spark: Any, kind: str, tmp_path: Path) -> None:
    """Over several runs, small commits, and runs without new messages."""
    write(tmp_path / "store", orders(300))
    facts = kept(spark, kind, tmp_path, rows_per_commit=200)
    assert (facts["messages"], facts["commits"]) == (300, 2)
    write(tmp_path / "store", orders(100, first=300))
    for count in (100, 0):
        assert kept(spark, kind, tmp_path)["messages"] == count
    assert places_of(kind, tmp_path / "lake") == expected(400)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_dies_and_commits_that_come_between(
    spark: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files without a commit are in no table. Of two writers one adds the messages and the other one conflicts; with a
    commit that moves no progress there is no conflict."""
    write(tmp_path / "store", orders(100))
    kept(spark, kind, tmp_path)
    write(tmp_path / "store", orders(100, first=100))
    plain = topic_table._Keeper._written

    def run_with(between: Any) -> dict[str, Any]:
        def then(keeper: Any, ranges: Any) -> Any:
            files = plain(keeper, ranges)
            monkeypatch.setattr(topic_table._Keeper, "_written", plain)
            between()
            return files

        monkeypatch.setattr(topic_table._Keeper, "_written", then)
        return kept(spark, kind, tmp_path)

    def die() -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run_with(die)
    assert places_of(kind, tmp_path / "lake") == expected(100)
    with pytest.raises(TableConflictError, match=r"another writer keeps this table .* from 100 to 200 messages"):
        run_with(lambda: kept(spark, kind, tmp_path))
    assert places_of(kind, tmp_path / "lake") == expected(200)
    write(tmp_path / "store", orders(100, first=200))

    def delete() -> None:
        table: Any = open_table(kind, Warehouse.of(str(tmp_path / "lake")), "orders")
        table._table.delete("queueOffset < 10")

    assert run_with(delete)["messages"] == 100
    assert places_of(kind, tmp_path / "lake") == [place for place in expected(300) if place[1] >= 10]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_others_change_keeps_its_progress(spark: Any, kind: str, tmp_path: Path) -> None:
    """Rows that others compact and delete are neither doubled nor brought back by later runs and housekeeping."""
    write(tmp_path / "store", orders(300))
    kept(spark, kind, tmp_path, rows_per_commit=50)
    table: Any = open_table(kind, Warehouse.of(str(tmp_path / "lake")), "orders")
    if kind == "delta":
        table._table.optimize.compact()
        table.load()
        table._table.delete("queueOffset < 10")
        table.load()
        table._table.create_checkpoint()
    else:
        table._table.overwrite(table._table.scan("queueOffset >= 10").to_arrow())
    write(tmp_path / "store", orders(20, first=300))
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    house = Housekeeping(version_days=0, today=tomorrow)
    assert kept(spark, kind, tmp_path, housekeeping=house)["messages"] == 20
    write(tmp_path / "store", orders(20, first=320))
    facts = kept(spark, kind, tmp_path, housekeeping=house)
    assert (facts["messages"], facts["files_joined"]) == (20, 2)
    assert places_of(kind, tmp_path / "lake") == [place for place in expected(340) if place[1] >= 10]
    assert len(table_files(kind, tmp_path / "lake")) == 1


def table_files(kind: str, lake: Path) -> list[Any]:
    return open_table(kind, Warehouse.of(str(lake)), "orders").files()


@pytest.mark.parametrize("kind", KINDS)
def test_housekeeping_joins_closed_days_and_deletes_old_ones(spark: Any, kind: str, tmp_path: Path) -> None:
    """Today's files are left alone; days before the table's retention go by whole files; progress is carried on."""
    write(tmp_path / "store", orders(300))
    today = datetime.now(UTC).date()
    facts = kept(spark, kind, tmp_path, rows_per_commit=100, housekeeping=Housekeeping(keep_days=0, today=today))
    assert (facts["files_joined"], facts["files_expired"]) == (0, 0)
    assert len(table_files(kind, tmp_path / "lake")) == 3
    house = Housekeeping(keep_days=3, today=today + timedelta(days=3))
    assert kept(spark, kind, tmp_path, housekeeping=house)["files_joined"] == 3
    assert len(table_files(kind, tmp_path / "lake")) == 1
    assert places_of(kind, tmp_path / "lake") == expected(300)
    house = replace(house, today=today + timedelta(days=4))
    assert kept(spark, kind, tmp_path, housekeeping=house)["files_expired"] == 1
    assert places_of(kind, tmp_path / "lake") == []
    assert kept(spark, kind, tmp_path)["messages"] == 0, "what was deleted does not return"
    with pytest.raises(OptionError, match="kept for 1 day at least"):
        Housekeeping(version_days=0)


def test_rows_that_another_engine_deletes_by_position_stay_deleted(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files with deleted rows are left as they are and the others of their day are joined; both expire with it."""
    write(tmp_path / "store", orders(400))
    kept(spark, "iceberg", tmp_path, rows_per_commit=100)
    table: Any = open_table("iceberg", Warehouse.of(str(tmp_path / "lake")), "orders")
    today = datetime.now(UTC).date()
    place = table.files()[0].uri
    first = parquet.read_table(place.removeprefix("file://")).to_pylist()
    deleted = [0, 7, 99]
    places = [(place, number) for number in deleted]
    add_delete_file(table, monkeypatch, today, DataFileContent.POSITION_DELETES, places)
    left = [
        (queue, offset)
        for queue, offset in expected(400)
        if (queue, offset) not in {place_of(first, n) for n in deleted}
    ]
    assert places_of("iceberg", tmp_path / "lake") == left
    write(tmp_path / "store", orders(200, first=400))
    left = sorted([*left, *(place for place in expected(600) if place[1] >= 200)])
    house = Housekeeping(version_days=0, today=today + timedelta(days=1))
    facts = kept(spark, "iceberg", tmp_path, rows_per_commit=100, housekeeping=house)
    assert (facts["messages"], facts["files_joined"]) == (200, 2), "the delete file is about the four files before it"
    assert places_of("iceberg", tmp_path / "lake") == left
    assert sum(file.has_deletes for file in table_files("iceberg", tmp_path / "lake")) == 4
    facts = kept(spark, "iceberg", tmp_path, housekeeping=replace(house, keep_days=0))
    assert facts["files_expired"] == 5
    assert places_of("iceberg", tmp_path / "lake") == []


def place_of(rows: list[dict[str, Any]], number: int) -> tuple[int, int]:
    return rows[number]["queueId"], rows[number]["queueOffset"]


def json_orders(bodies: Iterable[object]) -> list[Message]:
    return [
        replace(message, body=json.dumps(body).encode()) for message, body in zip(orders(100), bodies, strict=False)
    ]


def schema_of(**properties: str) -> BodySchema:
    parts = {name: {"type": kind} for name, kind in properties.items()}
    return BodySchema.of("orders.json", json.dumps({"properties": parts}).encode())


@pytest.mark.parametrize("kind", KINDS)
def test_typed_columns_of_bodies(spark: Any, kind: str, tmp_path: Path) -> None:
    """A body that does not fit or cannot be decompressed has nulls and its reason; a later schema adds columns."""
    messages = json_orders([{"id": 1}, {"id": 2, "n": "x"}, {"id": "three"}, {"id": 4}])
    messages[3] = replace(messages[3], sys_flag=record.SYS_FLAG_COMPRESSED)
    write(tmp_path / "store", messages)
    kept(spark, kind, tmp_path, body_schema=schema_of(id="integer"), keep_body=False)
    write(tmp_path / "store", json_orders([{"id": 5, "n": "five"}]))
    kept(spark, kind, tmp_path, body_schema=schema_of(id="integer", n="string"), keep_body=False)
    rows = sorted(table_rows(kind, tmp_path / "lake").to_pylist(), key=lambda row: (row["queueOffset"], row["queueId"]))
    assert [row["id"] for row in rows] == [1, 2, None, None, 5]
    assert [row["n"] for row in rows] == [None, None, None, None, "five"]
    assert "body" not in rows[0]
    assert [row["decodeError"] is None for row in rows] == [True, True, False, False, True]
    assert "id: 'three' is no whole number" in rows[2]["decodeError"]
    assert "cannot be decompressed" in rows[3]["decodeError"]
    with pytest.raises(OptionError, match="begin a new table"):
        kept(spark, kind, tmp_path, body_schema=schema_of(id="string"), keep_body=False)
    with pytest.raises(OptionError, match="needs a schema"):
        kept(spark, kind, tmp_path, keep_body=False)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_are_lost_before_they_are_in_the_table(spark: Any, kind: str, tmp_path: Path) -> None:
    """A restored backup is an error, and with failOnDataLoss=false the table goes on at the new end."""
    write(tmp_path / "store", orders(100))
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    write(tmp_path / "store", orders(100, first=100))
    kept(spark, kind, tmp_path)
    shutil.rmtree(tmp_path / "store")
    shutil.move(tmp_path / "backup", tmp_path / "store")
    with pytest.raises(DataLossError, match="it ends at 50, before offset 100"):
        kept(spark, kind, tmp_path)
    source = {"storePath": str(tmp_path / "store"), "failOnDataLoss": "false"}
    table = TableOptions(to=kind, warehouse=str(tmp_path / "lake"))
    assert keep_table(spark, source, "orders", table).facts["messages"] == 0
    write(tmp_path / "store", orders(10, first=100))
    assert keep_table(spark, source, "orders", table).facts["messages"] == 10


def test_a_job_that_goes_on_until_it_is_stopped(spark: Any, tmp_path: Path) -> None:
    """Messages that arrive later are added, without another run."""
    write(tmp_path / "store", orders(100))
    stop = threading.Event()
    table = TableOptions(to="delta", warehouse=str(tmp_path / "lake"))
    source = {"storePath": str(tmp_path / "store")}
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(keep_table, spark, source, "orders", table, every_seconds=0.05, stop=stop)
        try:
            wait_for(lambda: job.done() or len(rows_now(tmp_path / "lake")) == 100, "the first messages")
            write(tmp_path / "store", orders(100, first=100))
            wait_for(lambda: job.done() or len(rows_now(tmp_path / "lake")) == 200, "later messages")
        finally:
            stop.set()
        assert job.result(SECONDS).facts["messages"] == 200
    assert places_of("delta", tmp_path / "lake") == expected(200)


def test_a_job_that_is_interrupted_ends_well(spark: Any, tmp_path: Path) -> None:
    """Ctrl-C ends the command with its result, in whatever it does; the next run adds what is left, once."""
    lake = tmp_path / "lake"
    write(tmp_path / "store", orders(100))
    command = [sys.executable, "-m", "aerobee_broker", "spark", "table", "orders", "--store", str(tmp_path / "store")]
    command += ["--to", "delta", "--warehouse", str(lake), "--every", "1", "--rows", "100", "--json"]
    with (
        (tmp_path / "log").open("wb") as log,
        # A session of its own: a terminal's Ctrl-C reaches all its processes, Java and the workers too.
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True) as process,
    ):
        try:
            wait_for(lambda: process.poll() is not None or len(rows_now(lake)) == 100, "the first messages")
            write(tmp_path / "store", orders(1000, first=100))
            wait_for(lambda: process.poll() is not None or len(rows_now(lake)) > 100, "the next commit")
            os.killpg(process.pid, signal.SIGINT)
            shown, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    stored = len(rows_now(lake))
    assert json.loads(shown)["messages"] <= stored, "an interrupted commit may be there, and is not counted"
    assert kept(spark, "delta", tmp_path)["messages"] == 1100 - stored
    assert places_of("delta", lake) == expected(1100)


def rows_now(lake: Path) -> list[Any]:
    """The rows of a table that may not be there yet."""
    table: Any = open_table("delta", Warehouse.of(str(lake)), "orders")
    return [] if table._table is None else table_rows("delta", lake).to_pylist()


def test_other_readers(spark: Any, tmp_path: Path) -> None:
    """DuckDB, Polars and pyarrow read both formats: rows, types, and a part by its day."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    write(tmp_path / "store", json_orders([{"id": number} for number in range(100)]))
    day = datetime.now(UTC).date()
    for kind in KINDS:
        kept(spark, kind, tmp_path / ".", body_schema=schema_of(id="integer"), rows_per_commit=50)
        own: Any = open_table(kind, Warehouse.of(str(tmp_path / "lake")), "orders")
        own = own._table
        scan = polars.scan_delta(own.table_uri) if kind == "delta" else polars.scan_iceberg(own)
        frame = scan.filter(polars.col("date") >= day).select("id", "queueOffset", "keys").collect()
        assert (frame["id"].sum(), frame.height) == (4950, 100)
        assert scan.filter(polars.col("date") < date(2020, 1, 1)).collect().height == 0
        rows = own.to_pyarrow_dataset() if kind == "delta" else own.scan().to_arrow()
        query = "select count(*), sum(id), count(distinct queueId), min(date), max(properties['n'])"
        found = duckdb.sql(f"{query} from rows where id is not null").fetchall()[0]
        assert found[:4] == (100, 4950, 2, day)
        table = rows.to_table() if kind == "delta" else rows
        assert sorted(table["id"].to_pylist()) == list(range(100))


def test_the_command_keeps_a_table(tmp_path: Path) -> None:
    """It infers a schema, starts its own session, and reports how many messages it added."""
    pytest.importorskip("deltalake")
    write(tmp_path / "store", json_orders([{"id": number} for number in range(60)]))
    command = [sys.executable, "-m", "aerobee_broker", "spark", "table", "orders", "--store", str(tmp_path / "store")]
    done = subprocess.run([*command, "--infer"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["properties"] == {"id": {"type": "integer"}}
    (tmp_path / "orders.json").write_text(done.stdout)
    command += ["--to", "delta", "--json", "--once", "--warehouse", str(tmp_path / "lake")]
    done = subprocess.run(
        [*command, "--schema", str(tmp_path / "orders.json")], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 60
    assert sorted(table_rows("delta", tmp_path / "lake")["id"].to_pylist()) == list(range(60))
