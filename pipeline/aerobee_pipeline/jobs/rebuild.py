"""Rebuild: creates the consume queues and indexes of many brokers from their logs, in parallel.

Queues: a unit's position in its file follows from its queue offset, so no sort is needed. Each task packs the units of
a batch into one block for each file. Blocks are shuffled, records are not, and one task writes each file.
Indexes: entries follow the log, so each segment is indexed separately into its own files.

Everything is written under `output`, beside the stores and never into them, as `output/<broker>/consumequeue/...`,
first under a temporary name of the attempt, then renamed, so a repeated task does no harm. To use the files, stop the
broker, move the directories into its store, and run `aerobee store verify`.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs.over_splits import checked_stores, deleted_topics, files_of, log_splits, over_splits
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.reading.splits import LogSplit, read_split, store_files
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.log.mapped_file import file_name
from aerobee_store.queues.batch_consume_queue import BATCH_UNIT_DTYPE, BatchConsumeQueue
from aerobee_store.queues.consume_queue import FILLER_UNIT, UNIT_DTYPE, UNIT_SIZE
from aerobee_store.queues.index_file import IndexService, name_after
from aerobee_store.queues.multi_dispatch import AS_RECORDED
from aerobee_store.queues.record_units import batch_queue_units, queue_units
from aerobee_store.tools.actions import GivenSizes, sizes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: Final = ("brokerName", "path", "units", "gaps", "repeated", "first", "last")
_BLOCK: Final = np.dtype([("queue_offset", ">i8"), ("unit", UNIT_DTYPE)])
_BLOCKS: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("fileNumber", pa.int64()),
        ("physical", pa.int64()),
        ("block", pa.binary()),
    ]
)
_BLOCKS_DDL: Final = "broker string, topic string, queueId int, fileNumber bigint, physical bigint, block binary"
_WRITTEN: Final = pa.schema(
    [
        ("broker", pa.string()),
        ("path", pa.string()),
        ("units", pa.int64()),
        ("gaps", pa.int64()),
        ("repeated", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)
_WRITTEN_DDL: Final = (
    "broker string, path string, units bigint, gaps bigint, repeated bigint, first bigint, last bigint"
)
_BATCH_FILE: Final = -1


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes of one store's files, and their output directory."""

    directory: str
    output: str
    queue_file_size: int
    batch_queue_file_size: int
    index_slot_count: int
    index_entry_count: int

    @property
    def units_per_file(self) -> int:
        return self.queue_file_size // UNIT_SIZE


def rebuild(
    spark: SparkSession,
    stores: Mapping[str, str | Path] | str | Path,
    output: str | Path,
    *,
    queues: bool = True,
    index: bool = True,
    queue_file_size: int | None = None,
    index_counts: tuple[int, int] | None = None,
    split_bytes: int = 128 << 20,
    fail_on_data_loss: bool = True,
) -> JobResult:
    """Write queues and indexes of the stores under `output`, which must be empty and visible to all workers.

    Sizes are those of the store's own files; give them where no file shows them. One row per file: its units, its
    offsets without a message, and its repeated offsets. DataLossError for damage in a log, unless `fail_on_data_loss`
    is false: the offsets of damaged records then get filler units.
    """
    directories = checked_stores(stores)
    target = Path(output)
    if target.exists() and any(target.iterdir()):
        raise OptionError(f"{target}: not empty; name a new directory or empty this one")
    layouts = {}
    for broker, directory in directories.items():
        files = store_files(directory)
        slots, entries = index_counts or (None, None)
        given = GivenSizes(queue_file_size=queue_file_size, index_slot_count=slots, index_entry_count=entries)
        sizes = sizes_of(files, given)
        files.close()
        layouts[broker] = _Layout(
            str(directory),
            str(target / broker),
            sizes.queue_file_size,
            sizes.batch_queue_file_size,
            sizes.index_slot_count,
            sizes.index_entry_count,
        )
        (target / broker).mkdir(parents=True, exist_ok=True)
    rows: list[tuple[Any, ...]] = []
    if queues:
        rows += _rebuild_queues(spark, layouts, log_splits(directories, split_bytes), fail_on_data_loss)
    if index:
        # One range per segment, because an index file follows the log.
        rows += _rebuild_index(spark, layouts, log_splits(directories, 1 << 40), fail_on_data_loss)
    lost = sum(row[3] for row in rows)
    facts = {"files": len(rows), "units": sum(row[2] for row in rows), "gaps": lost, "output": str(target)}
    return JobResult(COLUMNS, sorted(rows), 1 if lost else 0, facts)


def _rebuild_queues(
    spark: SparkSession, layouts: dict[str, _Layout], splits: list[LogSplit], fails: bool
) -> list[tuple[Any, ...]]:
    job = uuid.uuid4().hex

    def pack(split: LogSplit) -> Iterator[pa.RecordBatch]:
        layout = layouts[split.broker]
        deleted = deleted_topics(layout.directory, job)
        batch_topics = {topic for topic, _ in files_of(layout.directory, job).batch_queues}
        for batch in read_split(split, fail_on_data_loss=fails):
            rows = []
            for found in queue_units(batch, AS_RECORDED):
                if found.topic in batch_topics:
                    continue
                counts = found.units["physical_offset"] >= deleted.end_of(found.topic)
                offsets, units = found.queue_offsets[counts], found.units[counts]
                numbers = offsets // layout.units_per_file
                for number in np.unique(numbers).tolist():
                    inside = numbers == number
                    block = np.empty(int(inside.sum()), _BLOCK)
                    block["queue_offset"], block["unit"] = offsets[inside], units[inside]
                    physical = int(block["unit"]["physical_offset"][0])
                    rows.append((split.broker, found.topic, found.queue_id, number, physical, block.tobytes()))
            for topic, queue_id, batches in batch_queue_units(batch):
                kept = batches[batches["physical_offset"] >= deleted.end_of(topic)]
                if len(kept):
                    physical = int(kept["physical_offset"][0])
                    rows.append((split.broker, topic, queue_id, _BATCH_FILE, physical, kept.tobytes()))
            if rows:
                columns = [
                    pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _BLOCKS, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=_BLOCKS)

    def write(table: pa.Table) -> pa.Table:
        table = table.sort_by("physical")
        broker, topic, queue_id, number = (table.column(name)[0].as_py() for name in _BLOCKS.names[:4])
        blocks = b"".join(table.column("block").to_pylist())
        write_one = _write_batch_queue if number == _BATCH_FILE else _write_queue_file
        written = write_one(layouts[broker], topic, queue_id, number, blocks)
        return pa.Table.from_pylist([{"broker": broker, **written}], _WRITTEN)

    frame = over_splits(spark, splits, pack, _BLOCKS_DDL)
    done = frame.groupBy("broker", "topic", "queueId", "fileNumber").applyInArrow(write, _WRITTEN_DDL).collect()
    return [tuple(row) for row in done]


def _write_queue_file(layout: _Layout, topic: str, queue_id: int, number: int, blocks: bytes) -> dict[str, Any]:
    """One file of a consume queue: fillers before its first unit and for gaps, zeros after its last."""
    found = np.frombuffer(blocks, _BLOCK)
    places = found["queue_offset"].astype(np.int64) - number * layout.units_per_file
    last = int(places.max())
    units = np.zeros(layout.units_per_file, UNIT_DTYPE)
    units[: last + 1] = np.frombuffer(FILLER_UNIT, UNIT_DTYPE)[0]
    units[places] = found["unit"]  # blocks are in the order of the log; the last unit of a repeated offset counts
    filled = len(np.unique(places))
    first = int(places.min())
    relative = Path("consumequeue") / topic / str(queue_id) / file_name(number * layout.queue_file_size)
    _write_file(Path(layout.output) / relative, units.tobytes())
    start = number * layout.units_per_file
    return {
        "path": str(relative),
        "units": filled,
        "gaps": last - first + 1 - filled,
        "repeated": len(places) - filled,
        "first": start + first,
        "last": start + last,
    }


def _write_batch_queue(layout: _Layout, topic: str, queue_id: int, number: int, blocks: bytes) -> dict[str, Any]:
    """All files of a batch consume queue, written by the store's code, because their units have no fixed positions."""
    units = np.frombuffer(blocks, BATCH_UNIT_DTYPE)
    relative = Path("batchconsumequeue") / topic / str(queue_id)
    target = Path(layout.output) / relative
    attempt = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    queue = BatchConsumeQueue(DiskFileSystem(), attempt, topic, queue_id, layout.batch_queue_file_size)
    queue.begin_at(0)
    queue.complete(units, unsynced=False)
    for file in queue.take_dirty():
        file.sync()
    queue.close()
    _rename(attempt, target)
    return {
        "path": str(relative),
        "units": len(units),
        "gaps": 0,
        "repeated": 0,
        "first": int(units["base_offset"][0]),
        "last": int(units["base_offset"][-1]) + int(units["count"][-1]) - 1,
    }


def _rebuild_index(
    spark: SparkSession, layouts: dict[str, _Layout], splits: list[LogSplit], fails: bool
) -> list[tuple[Any, ...]]:
    def build(split: LogSplit) -> Iterator[pa.RecordBatch]:
        layout = layouts[split.broker]
        part = Path(layout.output) / "index.parts" / file_name(split.segment_begin)
        attempt = part.with_name(f"{part.name}.{uuid.uuid4().hex}.tmp")
        attempt.mkdir(parents=True)
        index = IndexService(DiskFileSystem(), attempt, layout.index_slot_count, layout.index_entry_count)
        for batch in read_split(split, fail_on_data_loss=fails):
            rows, hashes = batch.index_hashes()
            if len(rows):
                stored = batch.store_timestamp[rows]
                index.put(hashes, batch.physical_offset[rows], stored, int(stored[0]))
        found = [
            {
                "broker": split.broker,
                "path": f"{part.name}/{file.path.name}",
                "units": file.next_entry - 1,
                "gaps": 0,
                "repeated": 0,
                "first": file.begin_offset,
                "last": file.end_offset,
            }
            for file in index.files
        ]
        for file in index.take_dirty():
            file.sync()
        index.close()
        _rename(attempt, part)
        yield pa.RecordBatch.from_pylist(found, _WRITTEN)

    return _in_order(layouts, over_splits(spark, splits, build, _WRITTEN_DDL).collect())


def _in_order(layouts: dict[str, _Layout], done: list[Any]) -> list[tuple[Any, ...]]:
    """Give the index files of all parts their final names."""
    rows = []
    latest: dict[str, str] = {}
    for row in sorted(done, key=lambda item: (item.broker, item.path)):
        # Files are searched from the newest name to the oldest, so names must rise with the log.
        name = row.path.rpartition("/")[2]
        before = latest.get(row.broker, "")
        name = name if name > before else name_after(before)
        latest[row.broker] = name
        root = Path(layouts[row.broker].output)
        (root / "index").mkdir(exist_ok=True)
        (root / "index.parts" / row.path).rename(root / "index" / name)
        rows.append((row.broker, f"index/{name}", *tuple(row)[2:]))
    for layout in layouts.values():
        shutil.rmtree(Path(layout.output) / "index.parts", ignore_errors=True)
    return rows


def _write_file(path: Path, data: bytes) -> None:
    """Write under a name of this attempt, then rename: another attempt at the same time does no harm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    attempt = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    DiskFileSystem().write_new(attempt, data)
    attempt.replace(path)


def _rename(attempt: Path, target: Path) -> None:
    """Rename a directory to its final name, unless another attempt has done so."""
    try:
        attempt.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(attempt)
