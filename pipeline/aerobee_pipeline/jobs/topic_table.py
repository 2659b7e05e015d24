"""Keeps a table per topic, exactly once: executors write Parquet files, the driver commits them with the offsets."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.jobs.table_commits import WrittenFile, open_table
from aerobee_pipeline.offsets import Position, next_position, ranges_between
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading.planning import Task, packed_ranges, warn
from aerobee_pipeline.reading.queue_access import named_topics_exist, open_access
from aerobee_pipeline.reading.schema import arrow_schema, default_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = default_columns(properties=True, errors=True)
_FILES = "path string, day string, rows bigint, size bigint"


def keep_table(
    spark: SparkSession,
    source: Mapping[str, str],
    topic: str,
    directory: str,
    *,
    to: str,
    rows_per_commit: int = 1_000_000,
) -> JobResult:
    """Add what a topic has since the table's last commit, in commits of about `rows_per_commit` messages.

    The files and the offsets of all queues are in one commit, so a killed run leaves nothing half done: its files are
    in no table, and the next run reads the same messages again. Two writers conflict: the later commit raises
    TableConflictError and adds nothing. A body that cannot be decompressed is null, and `decodeError` says why.
    """
    if "://" in directory:
        raise OptionError(f"{directory} is not a directory that the driver and the workers share; give one")
    root = Path(directory).absolute()
    options = SourceOptions.parse({**source, "subscribe": topic, "onBadBody": "null"}, streaming=False)
    schema = arrow_schema(_COLUMNS).append(pa.field("date", pa.date32()))
    table = open_table(to, root, schema)
    messages = commits = 0
    access = open_access(options)
    try:
        last = None
        while True:
            bounds = access.bounds(options.subscription)
            named_topics_exist(options.subscription, bounds, "the source")
            start = Position(table.progress(bounds))
            end, losses = next_position(
                start, bounds, rows_max=rows_per_commit, fail_on_data_loss=options.fail_on_data_loss
            )
            warn(losses)
            if last is None:
                last = {queue: found.end for queue, found in bounds.items()}
            ranges = ranges_between(start, end)
            if not ranges:
                break
            tasks = [Task(ranges=tuple(pack)) for pack in packed_ranges(ranges, options)]
            files = _written(spark, options, tasks, str(root), table.keeps_day_in_files)
            found = sum(file.rows for file in files)
            planned = sum(item.end - item.start for item in ranges)
            if found < planned:
                warn([f"topic {topic!r}: {planned - found} of {planned} messages could not be read"])
            table.commit(files, end.next)
            messages += found
            commits += 1
            if all(end.next.get(queue, 0) >= offset for queue, offset in last.items()):
                break
    finally:
        access.close()
    facts: dict[str, Any] = {"messages": messages, "commits": commits, "table": str(root)}
    return JobResult(("topic", "messages"), [(topic, messages)], 0, facts)


def _written(
    spark: SparkSession, options: SourceOptions, tasks: list[Task], root: str, keeps_day: bool
) -> list[WrittenFile]:
    """The files of these tasks. An attempt that fails leaves files that no commit names."""
    from aerobee_pipeline.source import BatchReader, TaskPartition

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = BatchReader(options, _COLUMNS)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _files(reader.read(TaskPartition(tasks[number])), Path(root), keeps_day)

    rows = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, _FILES).collect()
    return [WrittenFile(row.path, row.day, row.rows, row.size) for row in rows]


def _files(batches: Iterator[pa.RecordBatch], root: Path, keeps_day: bool) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task, in their order, into one file for each day of store time."""
    writers: dict[str, tuple[Path, parquet.ParquetWriter]] = {}
    counts: dict[str, int] = {}
    try:
        for batch in batches:
            days = pc.fill_null(batch.column("storeTimestamp"), pa.scalar(0, batch.schema.field("storeTimestamp").type))
            dates = days.cast(pa.date32())
            for day in pc.unique(dates).to_pylist():
                part = batch.filter(pc.equal(dates, pa.scalar(day, pa.date32())))
                rows = pa.Table.from_batches([part])
                if keeps_day:
                    rows = rows.append_column(
                        pa.field("date", pa.date32()), pa.repeat(pa.scalar(day, pa.date32()), part.num_rows)
                    )
                name = str(day)
                if name not in writers:
                    path = root / "data" / f"date={name}" / f"{uuid.uuid4().hex}.parquet"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    writers[name] = path, parquet.ParquetWriter(path, rows.schema, compression="zstd")
                writers[name][1].write_table(rows)
                counts[name] = counts.get(name, 0) + part.num_rows
    finally:
        for _, writer in writers.values():
            writer.close()
    for name, (path, _) in writers.items():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        size = path.stat().st_size
        values = [[str(path)], [name], [counts[name]], [size]]
        types = (pa.string(), pa.string(), pa.int64(), pa.int64())
        yield pa.RecordBatch.from_arrays(
            [pa.array(value, kind) for value, kind in zip(values, types, strict=True)], ["path", "day", "rows", "size"]
        )
