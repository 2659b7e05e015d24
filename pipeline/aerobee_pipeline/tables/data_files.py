"""Parquet files of tables: rows of a task by day, and small files joined into larger ones. Runs in workers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet

from aerobee_pipeline.tables.table import PARTITION, NewFile
from aerobee_pipeline.tables.warehouse import Warehouse

_ORDER = [("brokerName", "ascending"), ("queueId", "ascending"), ("queueOffset", "ascending")]


class DayFiles:
    """Writes rows, in their order, into one file for each day of store time."""

    def __init__(self, place: Warehouse, *, keeps_day: bool) -> None:
        self._place = place
        self._files = place.filesystem()
        self._keeps_day = keeps_day
        self._open: dict[str, _DayFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows with a column `storeTimestamp`; one that is null counts as the first day of 1970."""
        times = batch.column("storeTimestamp")
        days = pc.fill_null(times, pa.scalar(0, times.type)).cast(pa.date32())
        for day in pc.unique(days).to_pylist():
            rows = pa.Table.from_batches([batch.filter(pc.equal(days, pa.scalar(day, pa.date32())))])
            self.write_day(rows, str(day))

    def write_day(self, rows: pa.Table, day: str) -> None:
        """Rows of one day."""
        if self._keeps_day and PARTITION not in rows.column_names:
            value = pa.scalar(day).cast(pa.date32())
            rows = rows.append_column(pa.field(PARTITION, pa.date32()), pa.repeat(value, rows.num_rows))
        if day not in self._open:
            self._open[day] = _DayFile(self._files, day, rows.schema)
        self._open[day].write(rows)

    def finish(self) -> list[NewFile]:
        """Close the files. On a disk they are durable before a commit names them."""
        found = [file.finish() for file in self._open.values()]
        if self._place.is_local:
            for file in found:
                path = Path(self._place.uri) / file.path
                for synced in (path, path.parent):
                    _sync(synced)
        self._open.clear()
        return found

    def abandon(self) -> None:
        """Close the files of a failed attempt; no commit will name them."""
        for file in self._open.values():
            file.close()
        self._open.clear()


class _DayFile:
    def __init__(self, files: fs.FileSystem, day: str, schema: pa.Schema) -> None:
        self._files = files
        self._day = day
        directory = f"data/{PARTITION}={day}"
        files.create_dir(directory, recursive=True)
        self._path = f"{directory}/{uuid.uuid4().hex}.parquet"
        self._stream = files.open_output_stream(self._path)
        self._writer = parquet.ParquetWriter(self._stream, schema, compression="zstd")
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self._rows += rows.num_rows

    def finish(self) -> NewFile:
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        return NewFile(self._path, self._day, self._rows, size)

    def close(self) -> None:
        self._writer.close()
        self._stream.close()


def joined(place: Warehouse, day: str, uris: Sequence[str], schema: pa.Schema, *, keeps_day: bool) -> list[NewFile]:
    """One file with the rows of these, sorted by queue and offset, in the columns of the table."""
    columns = schema if keeps_day else pa.schema([field for field in schema if field.name != PARTITION])
    tables = [_in_columns(table, columns, day) for table in _read(place, uris)]
    rows = pa.concat_tables(tables)
    order = [key for key in _ORDER if key[0] in columns.names]
    files = DayFiles(place, keeps_day=keeps_day)
    try:
        files.write_day(rows.sort_by(order) if order else rows, day)
        return files.finish()
    finally:
        files.abandon()


def _read(place: Warehouse, uris: Iterable[str]) -> Iterator[pa.Table]:
    files = place.filesystem()
    for uri in uris:
        path = uri.removeprefix(place.file_uri).removeprefix(place.uri).lstrip("/")
        with files.open_input_file(path) as file:
            yield parquet.ParquetFile(file).read()


def _in_columns(table: pa.Table, schema: pa.Schema, day: str) -> pa.Table:
    """Older files lack newer columns, and may have narrower types."""
    arrays = []
    for field in schema:
        if field.name in table.column_names:
            arrays.append(table.column(field.name).cast(field.type))
        elif field.name == PARTITION:
            arrays.append(pa.repeat(pa.scalar(day).cast(pa.date32()), table.num_rows))
        else:
            arrays.append(pa.nulls(table.num_rows, field.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
