"""Tables in both formats, by the formats' own packages: commits, progress, what others do, and old versions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.typedef import Record
from sqlalchemy.exc import OperationalError

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.offsets import Queue
from aerobee_pipeline.reading.schema import arrow_schema
from aerobee_pipeline.tables import formats
from aerobee_pipeline.tables.data_files import DayFiles, joined
from aerobee_pipeline.tables.formats import open_table
from aerobee_pipeline.tables.iceberg import open_catalog
from aerobee_pipeline.tables.table import NewFile, TableChangedError, TopicTable
from aerobee_pipeline.tables.warehouse import Warehouse
from tests.spark.rest_catalog import rest_catalog

KINDS = ["delta", "iceberg"]
NAMES = ["brokerName", "queueId", "queueOffset", "body", "storeTimestamp", "properties", "decodeError"]
SCHEMA = arrow_schema(NAMES).append(pa.field("date", pa.date32()))
DAYS = (datetime(2026, 1, 30, 23, 59, tzinfo=UTC), datetime(2026, 1, 31, 0, 1, tzinfo=UTC))
_POSITIONS = pa.schema([pa.field("file_path", pa.string()), pa.field("pos", pa.int64())])
FIRST, SECOND = Queue("größe%", "", 0), Queue("größe%", "", 1)


def opened(kind: str, lake: Path) -> TopicTable:
    """The table of a topic with an unusual name; it exists."""
    table = open_table(kind, Warehouse.of(str(lake)), "größe%")
    if table.schema() is None:
        table.evolve(SCHEMA)
    return table


def messages(offsets: Iterable[int], queue: int = 0) -> pa.RecordBatch:
    """Rows of two days in turn."""
    rows = [
        {
            "brokerName": "",
            "queueId": queue,
            "queueOffset": offset,
            "body": b"%d" % offset,
            "storeTimestamp": DAYS[offset % 2],
            "properties": [("n", str(offset))],
            "decodeError": None,
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(NAMES))


def written(lake: Path, table: TopicTable, *batches: pa.RecordBatch) -> list[NewFile]:
    files = DayFiles(Warehouse.of(str(lake)).below("größe%"), keeps_day=table.keeps_day_in_files)
    for batch in batches:
        files.write(batch)
    return files.finish()


def rows_of(table: Any) -> list[tuple[int, int]]:
    """Queue and offset of each row, as the format's own package reads them."""
    table.load()
    own = table._table
    found = own.to_pyarrow_table() if hasattr(own, "to_pyarrow_table") else own.scan().to_arrow()
    for row in found.to_pylist():
        assert row["date"] == row["storeTimestamp"].date()
        assert (row["body"], dict(row["properties"])["n"]) == (b"%d" % row["queueOffset"], str(row["queueOffset"]))
    return sorted(zip(found["queueId"].to_pylist(), found["queueOffset"].to_pylist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_files_and_progress_are_one_commit(kind: str, tmp_path: Path) -> None:
    """The progress of each queue is that of the last commit, also of a queue that is asked for no more."""
    table = opened(kind, tmp_path)
    assert table.progress([FIRST, SECOND]) == {}
    table.commit(written(tmp_path, table, messages(range(10))), (), {FIRST: 10, SECOND: 0})
    table.load()
    assert table.progress([FIRST, SECOND]) == {FIRST: 10, SECOND: 0}
    table.commit(written(tmp_path, table, messages(range(4), 1)), (), {FIRST: 10, SECOND: 4})
    again = opened(kind, tmp_path)
    assert again.progress([FIRST]) == {FIRST: 10, SECOND: 4}, "a queue that the broker has no more"
    assert len(again.files()) == 4
    assert {str(file.day) for file in again.files()} == {"2026-01-30", "2026-01-31"}
    assert rows_of(again) == [(0, n) for n in range(10)] + [(1, n) for n in range(4)]
    again.commit((), (), {FIRST: 3})
    again.load()
    assert again.progress([FIRST]) == {FIRST: 3}, "the other queue is forgotten"


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_to_an_older_version_changes_nothing(kind: str, tmp_path: Path) -> None:
    """Whoever committed first wins, whichever queues both had messages of."""
    one, other = opened(kind, tmp_path), opened(kind, tmp_path)
    one.commit(written(tmp_path, one, messages(range(10))), (), {FIRST: 10, SECOND: 0})
    with pytest.raises(TableChangedError):
        other.commit(written(tmp_path, other, messages(range(4), 1)), (), {FIRST: 0, SECOND: 4})
    other.load()
    assert other.progress([FIRST, SECOND]) == {FIRST: 10, SECOND: 0}
    assert rows_of(other) == [(0, n) for n in range(10)]


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_are_joined_in_order(kind: str, tmp_path: Path) -> None:
    """The rows are the same, sorted by queue and offset; the old files are in no newer version."""
    table = opened(kind, tmp_path)
    for first in (20, 0, 10):
        part = messages(range(first, first + 10)), messages(range(first, first + 10), 1)
        table.commit(written(tmp_path, table, *part), (), {FIRST: first + 10})
        table.load()
    schema = table.schema()
    assert schema is not None
    place = Warehouse.of(str(tmp_path)).below("größe%")
    old = [file for file in table.files() if str(file.day) == "2026-01-30"]
    assert len(old) == 3
    new = joined(place, "2026-01-30", [file.uri for file in old], schema, keeps_day=table.keeps_day_in_files)
    table.commit(new, old, table.progress([FIRST]))
    table.load()
    assert len(table.files()) == 4
    assert table.progress([FIRST]) == {FIRST: 20}
    assert rows_of(table) == [(queue, n) for queue in (0, 1) for n in range(30)]
    rows = parquet.ParquetFile(Path(place.uri) / new[0].path).read()
    assert list(zip(rows["queueId"].to_pylist(), rows["queueOffset"].to_pylist(), strict=True)) == [
        (queue, n) for queue in (0, 1) for n in range(0, 30, 2)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_old_versions_and_files_of_nobody_are_deleted(kind: str, tmp_path: Path) -> None:
    """What the newest version has remains, with its progress."""
    table = opened(kind, tmp_path)
    table.commit(written(tmp_path, table, messages(range(10))), (), {FIRST: 10})
    written(tmp_path, table, messages(range(10, 20)))  # a run that died
    table.load()
    table.commit((), table.files(), {FIRST: 10})
    table.load()
    table.commit(written(tmp_path, table, messages(range(10, 20))), (), {FIRST: 20})
    table.load()
    data = tmp_path.rglob("data/**/*.parquet")
    assert len(list(data)) == 6
    table.expire(1)
    assert len(list(tmp_path.rglob("data/**/*.parquet"))) == 6, "they are younger than a day"
    time.sleep(0.01)
    catalog = tmp_path / "gr~c3~b6~c3~9fe~25" / "catalog.db"
    if kind == "iceberg":
        catalog.write_bytes(b"of somebody else")
    table.expire(0)
    assert catalog.exists() == (kind == "iceberg")
    assert len(list(tmp_path.rglob("data/**/*.parquet"))) == 2
    again = opened(kind, tmp_path)
    assert again.progress([FIRST]) == {FIRST: 20}
    assert rows_of(again) == [(0, n) for n in range(10, 20)]
    again.commit(written(tmp_path, table, messages(range(20, 22))), (), {FIRST: 22})
    assert len(rows_of(again)) == 12


@pytest.mark.parametrize("content", [DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES])
def test_files_with_delete_files_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: DataFileContent
) -> None:
    """Files of a day that another engine's delete file is about, and not those added later; the job goes on."""
    table = opened("iceberg", tmp_path)
    table.commit(written(tmp_path, table, messages(range(4))), (), {FIRST: 4})
    table.load()
    first = {file.uri for file in table.files()}
    add_delete_file(table, monkeypatch, DAYS[0].date(), content)
    table.load()
    assert {file.uri for file in table.files() if file.has_deletes} == {
        file.uri for file in table.files() if file.day == DAYS[0].date()
    }
    table.commit(written(tmp_path, table, messages(range(4, 8))), (), {FIRST: 8})
    table.load()
    found = table.files()
    assert len(found) == 4
    assert [file.day for file in found if file.has_deletes and file.uri in first] == [DAYS[0].date()]
    assert sum(file.has_deletes for file in found) == 1
    old = [file for file in found if file.uri in first]
    table.commit((), old, {FIRST: 8})  # by whole files, as days expire
    table.load()
    assert {file.uri for file in table.files()} == {file.uri for file in found} - first
    assert table.progress([FIRST]) == {FIRST: 8}


def add_delete_file(
    table: Any,
    monkeypatch: pytest.MonkeyPatch,
    day: date,
    content: DataFileContent,
    places: Iterable[tuple[str, int]] = (),
) -> None:
    """Commit a delete file of a day, as other engines do; pyiceberg itself writes none. `places`: the deleted rows,
    each with its data file and its number in it."""

    class Deletes(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    def write_manifest(**given: Any) -> ManifestWriterV2:
        assert given.pop("format_version") == 2
        return Deletes(**given)

    uri = f"{table._table.location()}/data/deletes.parquet"
    rows = [{"file_path": path, "pos": number} for path, number in sorted(places)]
    place = Path(uri.removeprefix("file://"))
    place.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows, _POSITIONS), place)
    file = DataFile.from_args(
        content=content,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=Record((day - date(1970, 1, 1)).days),
        record_count=max(len(rows), 1),
        file_size_in_bytes=place.stat().st_size,
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    file.spec_id = table._table.spec().spec_id
    with monkeypatch.context() as patch, table._table.transaction() as change:
        patch.setattr("pyiceberg.table.update.snapshot.write_manifest", write_manifest)
        with change.update_snapshot().fast_append() as snapshot:
            snapshot.append_data_file(file)


def test_progress_when_others_expire_the_snapshots_of_iceberg(tmp_path: Path) -> None:
    """A compaction of others and an expiry leave no snapshot with the property; a rollback brings back the older."""
    table: Any = opened("iceberg", tmp_path)
    table.commit(written(tmp_path, table, messages(range(10))), (), {FIRST: 10})
    table.load()
    table.commit(written(tmp_path, table, messages(range(10, 20))), (), {FIRST: 20})
    table.load()
    first, _ = [snapshot.snapshot_id for snapshot in table._table.snapshots()]
    own = table._table
    own.delete("queueOffset < 3")
    table.load()
    assert table.progress([FIRST]) == {FIRST: 20}
    table._table.maintenance.expire_snapshots().older_than(datetime.now()).commit()
    table.load()
    assert len(table._table.snapshots()) == 1
    assert table.progress([FIRST]) == {FIRST: 20}
    assert rows_of(table) == [(0, n) for n in range(3, 20)]
    assert first


def test_a_table_that_was_rolled_back_goes_on_from_there(tmp_path: Path) -> None:
    """The progress belongs to the history of the present version."""
    table: Any = opened("iceberg", tmp_path)
    for end in (10, 20):
        table.commit(written(tmp_path, table, messages(range(end - 10, end))), (), {FIRST: end})
        table.load()
    first = table._table.snapshots()[0].snapshot_id
    table._table.manage_snapshots().rollback_to_snapshot(first).commit()
    table.load()
    assert table.progress([FIRST]) == {FIRST: 10}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_added_by_the_rules_of_the_format(kind: str, tmp_path: Path) -> None:
    """New columns are null in older files; Iceberg widens a number, Delta says that it does not."""
    table = opened(kind, tmp_path)
    typed = SCHEMA.append(pa.field("amount", pa.int32()))
    table.evolve(typed)
    table.load()
    table.commit(written(tmp_path, table, messages(range(4))), (), {FIRST: 4})
    table.load()
    wide = SCHEMA.append(pa.field("amount", pa.int64())).append(pa.field("note", pa.string()))
    if kind == "delta":
        with pytest.raises(OptionError, match="'amount' is int32 in the table and int64 in the schema"):
            table.evolve(wide)
    else:
        table.evolve(wide)
        table.load()
        schema = table.schema()
        assert schema is not None
        assert schema.field("amount").type == pa.int64()
        with pytest.raises(OptionError, match="cannot take these columns"):
            table.evolve(SCHEMA.append(pa.field("amount", pa.string())))
    assert rows_of(table) == [(0, n) for n in range(4)]


def test_a_table_in_a_rest_catalog(tmp_path: Path) -> None:
    """It is created, committed to and joined there; a commit to an older version changes nothing."""
    warehouse = Warehouse.of(str(tmp_path / "lake"))
    with rest_catalog(tmp_path, warehouse.file_uri) as uri:
        one: Any = open_table("iceberg", warehouse, "größe%", uri)
        other = open_table("iceberg", warehouse, "größe%", uri)
        one.evolve(SCHEMA)
        with pytest.raises(TableChangedError):
            other.evolve(SCHEMA)
        other.load()
        one.commit(written(tmp_path / "lake", one, messages(range(10))), (), {FIRST: 10})
        with pytest.raises(TableChangedError):
            other.commit(written(tmp_path / "lake", one, messages(range(10))), (), {FIRST: 10})
        other.load()
        assert other.progress([FIRST]) == {FIRST: 10}
        other.commit((), other.files()[:1], {FIRST: 10})
        assert len(rows_of(one)) == 5


def test_places_of_warehouses() -> None:
    """A directory becomes absolute, a bucket loses its last slash; anything else is refused."""
    assert Warehouse.of("/lake").below("a/b%").uri == "/lake/a~2fb~25"
    assert Warehouse.of("file:///lake").uri == "/lake"
    bucket = Warehouse.of("s3a://lake/topics/", {"AWS_ENDPOINT_URL": "http://h:1", "AWS_REGION": "eu"})
    assert (bucket.uri, bucket.endpoint, bucket.region) == ("s3://lake/topics", "http://h:1", "eu")
    assert bucket.delta_options()["allow_http"] == "true"
    for wrong in ("gs://x", "s3://", "http://h/x"):
        with pytest.raises(OptionError, match=f"warehouse '{wrong}': give a directory, or s3://"):
            Warehouse.of(wrong)


def test_formats_and_catalogs_that_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error says what to give."""
    with pytest.raises(OptionError, match="format 'orc' is unknown; choose one of delta, iceberg"):
        open_table("orc", Warehouse.of(str(tmp_path)), "t")
    with pytest.raises(OptionError, match="catalog: a Delta table is found by its path"):
        open_table("delta", Warehouse.of(str(tmp_path)), "t", "sqlite:///x")
    with pytest.raises(OptionError, match="catalog: s3://b/x cannot have a catalog of SQLite"):
        open_table("iceberg", Warehouse.of("s3://b/x"), "t")
    monkeypatch.setitem(formats.PACKAGES, "iceberg", "no_such_package")
    with pytest.raises(OptionError, match=r"'iceberg' needs the package no_such_package: pip install"):
        open_table("iceberg", Warehouse.of(str(tmp_path)), "t")


def test_a_catalog_that_two_jobs_create_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes second finds the tables of the other when it tries again."""
    create_tables = SqlCatalog.create_tables
    calls: list[SqlCatalog] = []

    def create(catalog: SqlCatalog) -> None:
        create_tables(catalog)
        calls.append(catalog)
        if len(calls) == 1:
            raise OperationalError(
                "CREATE TABLE iceberg_tables", None, Exception("table iceberg_tables already exists")
            )

    monkeypatch.setattr(SqlCatalog, "create_tables", create)
    assert open_catalog(Warehouse.of(str(tmp_path)), None).list_namespaces() == []
    assert calls
