"""Audit: checks every record of the logs of many brokers, its queue and the index, in parallel.

Each task reads one range and returns *runs*: records of one queue with consecutive offsets. A queue is correct if its
runs, in the order of the log, follow each other. Kinds and severities of findings are those of `aerobee store verify`:

    segment-missing         a gap between two segments
    log-damaged             bytes that are not a record, followed by valid records
    split-mismatch          ranges that do not meet: a body there contains bytes like those of a record
    queue-offset-gap        offsets without a message, without damage that would explain them
    queue-offset-repeated   an offset twice, or offsets that go back (a warning)
    unit-missing            messages without a unit in their consume queue
    unit-wrong              units with a wrong physical offset, size or tag
    unit-ahead              units after the last message of the log
    index-entry-missing     keys of messages that are missing in the index
    index-entry-wrong       entries without a message with such a key
    index-counts-unknown    the counts of an index file are unknown: it was not checked (a warning)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aerobee_pipeline.errors import DataLossError
from aerobee_pipeline.jobs.over_splits import (
    Stores,
    checked_stores,
    deleted_topics,
    files_of,
    log_splits,
    over_splits,
)
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.reading.splits import LogSplit, SplitReader, store_files
from aerobee_store.queues.consume_queue import UNIT_DTYPE
from aerobee_store.queues.multi_dispatch import AS_RECORDED
from aerobee_store.queues.record_units import batch_queue_units, queue_units
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.index_layout import IndexCounts, IndexFileReader, open_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: Final = (
    "kind",
    "severity",
    "brokerName",
    "path",
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "count",
    "detail",
)
_RUNS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("broker", pa.string()),
        ("path", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("physical", pa.int64()),
        ("count", pa.int64()),
        ("bytes", pa.int64()),
        ("detail", pa.string()),
    ]
)
_RUNS_DDL: Final = (
    "kind string, broker string, path string, topic string, queueId int, first bigint, last bigint, physical bigint, "
    "count bigint, bytes bigint, detail string"
)
_FINDINGS_MAX: Final = 1000
_WARNINGS: Final = frozenset({"queue-offset-repeated", "index-counts-unknown"})


def audit(
    spark: SparkSession,
    stores: Mapping[str, str | Path] | str | Path,
    *,
    split_bytes: int = 128 << 20,
    queues: bool = True,
    index: bool = True,
    index_counts: tuple[int, int] | None = None,
) -> JobResult:
    """Check every byte of the logs, and compare queues and index with them. Nothing is changed.

    `queues`, `index`: whether these are compared with the log. `index_counts`: slots and entries of index files that do
    not reveal them. Exit status 1 if there is an error among the findings.
    """
    directories = checked_stores(stores)
    counts = IndexCounts(*index_counts) if index_counts else None
    splits = log_splits(directories, split_bytes)
    job = uuid.uuid4().hex
    roots = {broker: str(directory) for broker, directory in directories.items()}

    def work(split: LogSplit) -> Iterator[pa.RecordBatch]:
        yield from _Range(split, roots[split.broker], job, queues, index, counts).rows()

    frame = over_splits(spark, splits, work, _RUNS_DDL).cache()
    try:
        found = _summary(frame, directories, splits, queues)
    finally:
        frame.unpersist()
    return found


def _summary(frame: Any, directories: Stores, splits: list[LogSplit], queues: bool) -> JobResult:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    runs = frame.where("kind = 'run'")
    window = Window.partitionBy("broker", "topic", "queueId").orderBy("physical")
    before = runs.withColumn("before", f.lag("last").over(window)).withColumn("place", f.lag("physical").over(window))
    jumps = before.where("before is not null and first <> before + 1").limit(_FINDINGS_MAX).collect()
    others = frame.where("kind not in ('run', 'total')").orderBy("broker", "physical").limit(_FINDINGS_MAX).collect()
    totals = frame.where("kind = 'total'").agg(f.sum("count"), f.sum("bytes")).collect()[0]
    findings: list[tuple[Any, ...]] = []
    damage: dict[str, list[int]] = {}
    for row in others:
        if row.kind == "log-damaged":
            damage.setdefault(row.broker, []).append(row.physical)
        findings.append(_finding(row.kind, row.broker, row.path, row.topic, row.queueId, row))
    for broker, first, last in _holes(splits):
        damage.setdefault(broker, []).append(first)
        findings.append(
            (
                "segment-missing",
                "error",
                broker,
                None,
                None,
                None,
                None,
                first,
                last - first,
                f"no segment up to {last}",
            )
        )
    findings += _gaps(jumps, damage)
    if queues:
        ends = runs.groupBy("broker", "topic", "queueId").agg(f.max("last").alias("last")).collect()
        findings += _units_ahead(directories, {(row.broker, row.topic, row.queueId): row["last"] + 1 for row in ends})
    errors = sum(row[1] == "error" for row in findings)
    facts = {
        "ok": errors == 0,
        "records": totals[0] or 0,
        "bytes": totals[1] or 0,
        "splits": len(splits),
        "errors": errors,
    }
    return JobResult(COLUMNS, findings, 1 if errors else 0, facts)


def _gaps(jumps: list[Any], damage: dict[str, list[int]]) -> list[tuple[Any, ...]]:
    """A finding for each jump of a queue's offsets that no damage of the log explains."""
    findings: list[tuple[Any, ...]] = []
    for row in jumps:
        gap = row.first > row.before
        if gap and any(row.place <= place <= row.physical for place in damage.get(row.broker, ())):
            continue
        kind = "queue-offset-gap" if gap else "queue-offset-repeated"
        count = row.first - row.before - 1 if gap else 1 + row.before - row.first
        detail = f"offset {row.first} follows offset {row.before}"
        severity = "warning" if kind in _WARNINGS else "error"
        findings.append(
            (kind, severity, row.broker, None, row.topic, row.queueId, row.first, row.physical, count, detail)
        )
    return findings


def _finding(
    kind: str, broker: str, path: str | None, topic: str | None, queue_id: int | None, row: Any
) -> tuple[Any, ...]:
    severity = "warning" if kind in _WARNINGS else "error"
    return kind, severity, broker, path, topic, queue_id, row.first, row.physical, row["count"], row.detail


def _holes(splits: list[LogSplit]) -> Iterator[tuple[str, int, int]]:
    segments = sorted({(split.broker, split.segment_begin, split.segment_size) for split in splits})
    for (broker, begin, size), (other, following, _) in pairwise(segments):
        if broker == other and begin + size != following:
            yield broker, begin + size, following


def _units_ahead(directories: Stores, ends: dict[tuple[str, str, int], int]) -> Iterator[tuple[Any, ...]]:
    """Queues with units after their last message in the log, in stores that are not in use."""
    for broker, directory in directories.items():
        files = store_files(directory)
        for (topic, queue_id), queue in files.queues.items():
            known = ends.get((broker, topic, queue_id))
            if files.live or known is None or not queue.starts or (end := queue.end()) <= known:
                continue
            unit = queue.read(end - 1, 1)[0]
            yield (
                "unit-ahead",
                "error",
                broker,
                None,
                topic,
                queue_id,
                known,
                int(unit["physical_offset"]),
                end - known,
                f"the queue ends at {end}, the log has messages up to {known}",
            )
        files.close()


class _Range:
    """The findings of one task in its range."""

    def __init__(
        self, split: LogSplit, directory: str, job: str, queues: bool, index: bool, counts: IndexCounts | None
    ) -> None:
        self._split = split
        self._job = job
        self._directory = directory
        self._queues = queues
        self._index = index
        self._counts = counts
        self._rows: list[dict[str, Any]] = []
        self._open: dict[tuple[str, int], dict[str, Any]] = {}
        self._entries: list[npt.NDArray[np.int64]] = []
        self._records = self._bytes = 0

    def rows(self) -> Iterator[pa.RecordBatch]:
        reader = SplitReader(self._split)
        try:
            for batch in reader.batches():
                self._take(batch)
        except DataLossError as error:
            self._add("split-mismatch", detail=str(error), physical=self._split.begin, count=1)
        self._rows += self._open.values()
        if reader.tile is not None:
            for damaged in reader.tile.damage:
                size = damaged.end - damaged.start
                self._add("log-damaged", detail=damaged.reason, physical=damaged.start, count=size)
        if self._index:
            self._compare_index()
        self._add("total", count=self._records, bytes=self._bytes, physical=self._split.begin)
        yield pa.RecordBatch.from_pylist(self._rows, _RUNS)

    def _add(self, kind: str, **values: Any) -> None:
        self._rows.append({"kind": kind, "broker": self._split.broker, "path": self._split.path, **values})

    def _take(self, batch: RecordBatch) -> None:
        self._records += len(batch)
        self._bytes += int(batch.size.sum())
        deleted = deleted_topics(self._directory, self._job)
        batch_topics = {topic for topic, _ in files_of(self._directory, self._job).batch_queues}
        for found in queue_units(batch, AS_RECORDED):
            if found.topic in batch_topics:
                continue
            counts = found.units["physical_offset"] >= deleted.end_of(found.topic)
            offsets, units = found.queue_offsets[counts], found.units[counts]
            if not len(units):
                continue
            if self._queues:
                self._compare_units(found.topic, found.queue_id, offsets, units)
            breaks = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
            for first, last in pairwise([0, *breaks, len(offsets)]):
                self._run(found.topic, found.queue_id, offsets[first:last], 1, units["physical_offset"][first:last])
        for topic, queue_id, batches in batch_queue_units(batch):
            for unit in batches:
                base = np.array([int(unit["base_offset"])])
                self._run(topic, queue_id, base, int(unit["count"]), np.array([int(unit["physical_offset"])]))
        if self._index:
            rows, hashes = batch.index_hashes()
            if len(rows):
                self._entries.append(_index_entries(batch.physical_offset[rows], hashes, self._split.begin))

    def _run(self, topic: str, queue_id: int, offsets: Any, width: int, physical: Any) -> None:
        first, last = int(offsets[0]), int(offsets[-1]) + width - 1
        run = self._open.get((topic, queue_id))
        if run is not None and run["last"] + 1 == first:
            run["last"] = last
            run["count"] += len(offsets)
            return
        if run is not None:
            self._rows.append(run)
        self._open[topic, queue_id] = {
            "kind": "run",
            "broker": self._split.broker,
            "path": self._split.path,
            "topic": topic,
            "queueId": queue_id,
            "first": first,
            "last": last,
            "physical": int(physical[0]),
            "count": len(offsets),
        }

    def _compare_units(self, topic: str, queue_id: int, offsets: Any, units: Any) -> None:
        files = files_of(self._directory, self._job)
        queue = files.queues.get((topic, queue_id))
        there = np.zeros(len(units), UNIT_DTYPE)
        if queue is not None:
            low, high = int(offsets.min()), int(offsets.max())
            # Offsets far apart come from a damaged record; they are checked one by one.
            if high - low <= 16 * len(offsets) + 1024:
                there = queue.read(low, high - low + 1)[offsets - low]
            else:
                there = np.concatenate([queue.read(int(offset), 1) for offset in offsets])
        same = (there["physical_offset"] == units["physical_offset"]) & (there["size"] == units["size"])
        # The code of an extended unit is an address, below every hash and every time.
        same &= (there["tags_code"] == units["tags_code"]) | (there["tags_code"] < -(1 << 31))
        if same.all():
            return
        missing = ~same & (there["size"] == 0)
        for kind, rows in (("unit-missing", missing), ("unit-wrong", ~same & ~missing)):
            if rows.any() and not files.live:
                row = int(rows.argmax())
                self._add(
                    kind,
                    topic=topic,
                    queueId=queue_id,
                    first=int(offsets[row]),
                    physical=int(units["physical_offset"][row]),
                    count=int(rows.sum()),
                    detail=f"found is place {int(there['physical_offset'][row])}, size {int(there['size'][row])}",
                )

    def _compare_index(self) -> None:
        """Compare the index entries of this range with those that its records must have."""
        files = files_of(self._directory, self._job)
        index = _index_of(self._directory, self._job, self._counts)
        if index is None:
            self._add("index-counts-unknown", physical=self._split.begin, count=1, detail="give the index counts")
            return
        begin, end = self._split.begin, min(self._split.end, self._split.log_end)
        expected = np.sort(np.concatenate([np.zeros(0, np.int64), *self._entries]))
        there = np.sort(index.entries(begin, end))
        if np.array_equal(expected, there) or files.live:
            return
        for kind, entries in (
            ("index-entry-missing", _without(expected, there)),
            ("index-entry-wrong", _without(there, expected)),
        ):
            if len(entries):
                place, key_hash = divmod(int(entries[0]), 1 << 32)
                detail = f"the first has key hash {key_hash}"
                self._add(kind, physical=begin + place, count=len(entries), detail=detail)


_BLOCK_SIZE: Final = 1 << 16  # index entries whose smallest and largest physical offset are remembered


class _Index:
    """The entries of all index files of a store, found by physical offset.

    Entries are in the order of the log. A damaged one may have any offset, so the range of each block is remembered
    instead of searching by bisection. This reads each file once in each worker.
    """

    def __init__(self, readers: Iterable[IndexFileReader]) -> None:
        self._blocks: list[tuple[int, int, IndexFileReader, int, int]] = []  # lowest, highest offset, file, entries
        for reader in readers:
            end = reader.entry_count + 1
            for first in range(1, end, _BLOCK_SIZE):
                last = min(first + _BLOCK_SIZE, end)
                places = reader.entries(first, last)["physical_offset"]
                self._blocks.append((int(places.min()), int(places.max()), reader, first, last))

    def entries(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The entries of records in this range of the log, in no order: see `_index_entries`."""
        found = [np.zeros(0, np.int64)]
        for lowest, highest, reader, first, last in self._blocks:
            if highest >= begin and lowest < end:
                entries = reader.entries(first, last)
                places = entries["physical_offset"].astype(np.int64)
                inside = (places >= begin) & (places < end)
                found.append(_index_entries(places[inside], entries["key_hash"][inside].astype(np.int64), begin))
        return np.concatenate(found)


@lru_cache(maxsize=8)
def _index_of(directory: str, job: str, counts: IndexCounts | None) -> _Index | None:
    """The index of a store, opened once for a job in each worker. None if a file does not reveal its counts."""
    files = files_of(directory, job)
    readers: list[IndexFileReader] = []
    for reader in open_index(files.index_files, files.disk.open, counts):
        if isinstance(reader, Path) or reader.counts is None:
            return None
        readers.append(reader)
    return _Index(readers)


def _index_entries(places: npt.NDArray[np.int64], hashes: npt.NDArray[np.int64], begin: int) -> npt.NDArray[np.int64]:
    """Each entry as one number, to be sorted and compared fast: the place in its range, then 32 bits of key hash."""
    return (places - begin) << 32 | hashes & 0xFFFFFFFF


def _without(entries: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The multiset difference of sorted entries: those that the others lack, each as often as it is missing."""
    unique, counts = np.unique(entries, return_counts=True)
    there = np.searchsorted(others, unique, "right") - np.searchsorted(others, unique, "left")
    return np.repeat(unique, np.maximum(counts - there, 0))
