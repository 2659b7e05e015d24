"""Parquet files become Delta Lake and Iceberg tables: each file is added once, and rows are read back."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyarrow import parquet

from aerobee_pipeline.jobs.tables import PARTITION_COLUMNS, add_files, table_files
from aerobee_pipeline.reading.schema import arrow_schema

COLUMNS = ["topic", "queueId", "queueOffset", "body", "storeTimestamp", "properties", "date"]
DAY = date(2026, 1, 31)


def exported(kind: str, output: Path, topic: str, directory: str, count: int, number: int) -> str:
    """The URI of a file as Spark leaves it; `directory` is the topic as Spark writes it in paths."""
    rows: dict[str, list[Any]] = {
        "topic": [topic] * count,
        "queueId": [number] * count,
        "queueOffset": list(range(count)),
        "body": [f"{topic} {each}".encode() for each in range(count)],
        "storeTimestamp": [datetime(2026, 1, 31, 12, tzinfo=UTC)] * count,
        "properties": [[("n", str(each))] for each in range(count)],
        "date": [DAY] * count,
    }
    schema = arrow_schema(COLUMNS[:-1]).append(pa.field("date", pa.date32()))
    names = PARTITION_COLUMNS[kind]
    kept = [name for name in COLUMNS if name not in names]
    file = output / f"{names[0]}={directory}" / f"{names[1]}={DAY}" / f"part-{number}.zstd.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(rows, schema=schema).select(kept), file)
    return f"file://{quote(str(file))}"


def rows_of(kind: str, output: Path) -> list[dict[str, Any]]:
    """All rows, read with the format's own package."""
    found: list[dict[str, Any]]
    if kind == "delta":
        found = pytest.importorskip("deltalake").DeltaTable(str(output)).to_pyarrow_table().to_pylist()
    else:
        catalogs = pytest.importorskip("pyiceberg.catalog.sql")
        catalog = catalogs.SqlCatalog("aerobee", uri=f"sqlite:///{output}/_iceberg/catalog.db")
        table = catalog.load_table("aerobee.messages")
        assert not list(table.scan("topic = 'nobody'").plan_files()), "files are left out by their partition"
        assert [field.name for field in table.spec().fields] == ["topic", "date"]
        found = table.scan().to_arrow().to_pylist()
    return found


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_each_file_is_added_once(kind: str, package: str, tmp_path: Path) -> None:
    """This holds for any topic name; the next run adds the files of a failed run."""
    pytest.importorskip(package)
    assert list(table_files(kind, str(tmp_path))) == []
    assert add_files(kind, str(tmp_path), [], COLUMNS) == 0, "nothing was written yet"
    files = [
        exported(kind, tmp_path, "orders", "orders", 5, 0),
        exported(kind, tmp_path, "größe", "größe", 7, 1),
        exported(kind, tmp_path, "a%b", "a%25b", 3, 2),
    ]
    assert add_files(kind, str(tmp_path), files[:1], COLUMNS) == 1
    assert add_files(kind, str(tmp_path), files, COLUMNS) == 2
    assert add_files(kind, str(tmp_path), files, COLUMNS) == 0
    assert len(table_files(kind, str(tmp_path))) == 3
    assert all(file.is_file() for file in table_files(kind, str(tmp_path)))
    rows = rows_of(kind, tmp_path)
    found = sorted((row["topic"], row["queueId"], row["queueOffset"], row["body"]) for row in rows)
    counts = {"orders": (0, 5), "größe": (1, 7), "a%b": (2, 3)}
    assert found == sorted(
        (topic, queue, each, f"{topic} {each}".encode())
        for topic, (queue, count) in counts.items()
        for each in range(count)
    )
    assert {row["storeTimestamp"] for row in rows} == {datetime(2026, 1, 31, 12, tzinfo=UTC)}
    assert {row["date"] for row in rows} == {DAY}
    assert all(dict(row["properties"]) == {"n": str(row["queueOffset"])} for row in rows)
