"""A topic is a table: every message once, whatever is killed, compacted or written at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs import table_commits, topic_table
from aerobee_pipeline.jobs.table_commits import TableConflictError
from tests.spark.stores import orders, write

KINDS = ["delta", "iceberg"]


def offsets_of(kind: str, table: Path) -> list[tuple[int, int]]:
    """Queue and offset of every row, read by the format's own package."""
    if kind == "delta":
        rows = pytest.importorskip("deltalake").DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    else:
        catalogs = pytest.importorskip("pyiceberg.catalog.sql")
        catalog = catalogs.SqlCatalog("aerobee", uri=f"sqlite:///{table}/catalog.db")
        rows = catalog.load_table("aerobee.messages").scan().to_arrow().to_pylist()
    assert all(row["date"] == row["storeTimestamp"].date() and row["body"] is not None for row in rows)
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


def expected(count: int) -> list[tuple[int, int]]:
    return sorted((queue, offset) for queue in range(2) for offset in range(count // 2))


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_is_in_the_table_once(spark: Any, kind: str, tmp_path: Path) -> None:
    """Over several runs, small commits, and runs without new messages."""
    source = {"storePath": str(tmp_path / "store")}
    write(tmp_path / "store", orders(300))
    result = topic_table.keep_table(spark, source, "orders", str(tmp_path / "t"), to=kind, rows_per_commit=200)
    assert (result.facts["messages"], result.facts["commits"]) == (300, 2)
    write(tmp_path / "store", orders(100, first=300))
    for count in (100, 0):
        again = topic_table.keep_table(spark, source, "orders", str(tmp_path / "t"), to=kind)
        assert again.facts["messages"] == count
    assert offsets_of(kind, tmp_path / "t") == expected(400)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_dies_before_its_commit_and_one_that_comes_between(
    spark: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files without a commit are in no table; of two writers one adds the messages, the other one conflicts."""
    source = {"storePath": str(tmp_path / "store")}
    table = tmp_path / "t"
    write(tmp_path / "store", orders(100))
    topic_table.keep_table(spark, source, "orders", str(table), to=kind)
    write(tmp_path / "store", orders(100, first=100))
    plain = topic_table._written

    def dies(*arguments: Any) -> Any:
        plain(*arguments)
        raise RuntimeError("killed")

    def is_overtaken(*arguments: Any) -> Any:
        files = plain(*arguments)
        monkeypatch.setattr(topic_table, "_written", plain)
        topic_table.keep_table(spark, source, "orders", str(table), to=kind)
        return files

    monkeypatch.setattr(topic_table, "_written", dies)
    with pytest.raises(RuntimeError, match="killed"):
        topic_table.keep_table(spark, source, "orders", str(table), to=kind)
    assert offsets_of(kind, table) == expected(100)
    monkeypatch.setattr(topic_table, "_written", is_overtaken)
    with pytest.raises(TableConflictError):
        topic_table.keep_table(spark, source, "orders", str(table), to=kind)
    assert offsets_of(kind, table) == expected(200)


def test_a_table_that_others_compact_and_delete_from_keeps_its_progress(spark: Any, tmp_path: Path) -> None:
    """Rows are not doubled by the next run, and deleted ones do not return."""
    deltalake = pytest.importorskip("deltalake")
    source = {"storePath": str(tmp_path / "store")}
    table = tmp_path / "t"
    write(tmp_path / "store", orders(300))
    topic_table.keep_table(spark, source, "orders", str(table), to="delta", rows_per_commit=50)
    deltalake.DeltaTable(str(table)).optimize.compact()
    deltalake.DeltaTable(str(table)).delete("queueOffset < 10")
    deltalake.DeltaTable(str(table)).create_checkpoint()
    write(tmp_path / "store", orders(20, first=300))
    assert topic_table.keep_table(spark, source, "orders", str(table), to="delta").facts["messages"] == 20
    assert offsets_of("delta", table) == [place for place in expected(320) if place[1] >= 10]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    """The error names the formats."""
    with pytest.raises(OptionError, match="format 'orc' is unknown; choose one of delta, iceberg"):
        table_commits.open_table("orc", tmp_path, None)


def test_the_command_keeps_a_table(tmp_path: Path) -> None:
    """It starts its own session, and reports how many messages it added."""
    pytest.importorskip("deltalake")
    write(tmp_path / "store", orders(60))
    command = [sys.executable, "-m", "aerobee_broker", "spark", "table", "orders", "--to", "delta", "--json"]
    command += ["--store", str(tmp_path / "store"), "--warehouse", str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 60
    assert offsets_of("delta", tmp_path / "lake" / "orders") == expected(60)
