"""Keeps a table per topic, exactly once: executors write Parquet files, the driver commits them with the offsets."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs.housekeeping import Housekeeping, keep_house
from aerobee_pipeline.jobs.over_tasks import NEW_FILES, over_tasks
from aerobee_pipeline.jobs.result import JobResult
from aerobee_pipeline.offsets import (
    Bounds,
    Offsets,
    Position,
    Queue,
    Range,
    checked_ranges,
    next_position,
    ranges_between,
)
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading.planning import Task, packed_ranges, warn
from aerobee_pipeline.reading.queue_access import QueueAccess, named_topics_exist, open_access
from aerobee_pipeline.reading.schema import arrow_schema, default_columns
from aerobee_pipeline.tables.bodies import BodySchema, typed_columns
from aerobee_pipeline.tables.data_files import DayFiles
from aerobee_pipeline.tables.formats import open_table
from aerobee_pipeline.tables.table import PARTITION, NewFile, TableChangedError, TableConflictError
from aerobee_pipeline.tables.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_COLUMNS: Final = default_columns(properties=True, errors=True)
# Commits of others may come between, such as those of a compaction; so many in a row do not.
_ATTEMPTS: Final = 20
_HOUSEKEEPING_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table and what it has.

    `to`: delta or iceberg. `catalog`: for Iceberg the URI of a REST catalog or of a database; None: SQLite in the
    warehouse. `body_schema`: typed columns of the body; `keep_body`: also the body itself.
    """

    to: str
    warehouse: str
    catalog: str | None = None
    body_schema: BodySchema | None = None
    keep_body: bool = True
    rows_per_commit: int = 1_000_000
    housekeeping: Housekeeping | None = None


def keep_table(
    spark: SparkSession,
    source: Mapping[str, str],
    topic: str,
    table: TableOptions,
    *,
    every_seconds: float | None = None,
    stop: threading.Event | None = None,
) -> JobResult:
    """Add what a topic has since the table's last commit, in commits of about `rows_per_commit` messages.

    The files and the offsets of all queues are in one commit, so a killed run leaves nothing half done: its files are
    in no table, and the next run reads the same messages again. Two writers conflict: the later commit raises
    TableConflictError and adds nothing. What does not fit the body's schema, or cannot be decompressed, is null, and
    `decodeError` says why. `every_seconds`: go on until `stop` is set or the process is interrupted, and look for new
    messages so often.
    """
    keeper = _Keeper(spark, source, topic, table)
    ends = stop or threading.Event()
    housekeeping_at = 0.0
    try:
        while True:
            keeper.catch_up()
            if table.housekeeping is not None and time.monotonic() >= housekeeping_at:
                keeper.keep_house(table.housekeeping)
                housekeeping_at = time.monotonic() + _HOUSEKEEPING_SECONDS
            if every_seconds is None or ends.wait(every_seconds):
                break
    except KeyboardInterrupt:
        if every_seconds is None:
            raise
    finally:
        keeper.close()
    return JobResult(("topic", "messages"), [(topic, keeper.messages)], 0, keeper.facts())


class _Keeper:
    """The writer of one table."""

    def __init__(self, spark: SparkSession, source: Mapping[str, str], topic: str, table: TableOptions) -> None:
        self._spark = spark
        self._topic = topic
        self._given = table
        self._options = SourceOptions.parse({**source, "subscribe": topic, "onBadBody": "null"}, streaming=False)
        self._warehouse = Warehouse.of(table.warehouse)
        self._place = self._warehouse.below(topic)
        self._table = open_table(table.to, self._warehouse, topic, table.catalog)
        self._columns = _Columns.of(table.body_schema, table.keep_body)
        self._access = open_access(self._options)
        self._house: dict[str, int] = {}
        self.messages = 0
        self._commits = 0

    def facts(self) -> dict[str, Any]:
        return {"messages": self.messages, "commits": self._commits, "table": self._place.uri, **self._house}

    def close(self) -> None:
        self._access.close()

    def catch_up(self) -> None:
        """Add what the topic had when this began."""
        last: Offsets | None = None
        while True:
            bounds = self._bounds()
            if last is None:
                last = {queue: found.end for queue, found in bounds.items()}
            self._table.load()
            if self._lacks_columns():
                self._retried(lambda: self._table.evolve(self._columns.schema))
                self._table.load()
            known = self._table.progress(bounds)
            end, ranges = self._next(known, bounds)
            if not ranges:
                if known != dict(end.next) and known:
                    self._commit([], end.next, known)
                return
            self._commit(self._written(ranges), end.next, known)
            self.messages += sum(item.end - item.start for item in ranges)
            if all(end.next.get(queue, 0) >= offset for queue, offset in last.items()):
                return

    def keep_house(self, wanted: Housekeeping) -> None:
        """Join, expire and delete. It waits for the next time if the table changes meanwhile."""
        try:
            self._table.load()
            progress = self._table.progress(self._bounds())
            done = keep_house(self._spark, self._table, self._place, progress, wanted)
        except TableChangedError as error:
            _log.warning("housekeeping is put off: %s", error)
            return
        for name, count in done.items():
            self._house[name] = self._house.get(name, 0) + count

    def _bounds(self) -> dict[Queue, Bounds]:
        bounds = self._access.bounds(self._options.subscription)
        named_topics_exist(self._options.subscription, bounds, "the source")
        return bounds

    def _next(self, known: Offsets, bounds: Mapping[Queue, Bounds]) -> tuple[Position, list[Range]]:
        fails = self._options.fail_on_data_loss
        start = Position(known)
        end, losses = next_position(start, bounds, rows_max=self._given.rows_per_commit, fail_on_data_loss=fails)
        warn(losses)
        ranges, losses = checked_ranges(ranges_between(start, end), bounds, fail_on_data_loss=fails)
        warn(losses)
        return end, ranges

    def _lacks_columns(self) -> bool:
        there = self._table.schema()
        return there is None or not _covers(there, self._columns.schema)

    def _written(self, ranges: Sequence[Range]) -> list[NewFile]:
        tasks = [Task(ranges=tuple(pack)) for pack in packed_ranges(ranges, self._options)]
        work = _Write(self._options, self._columns, self._place, self._table.keeps_day_in_files)
        files = [NewFile(*row) for row in over_tasks(self._spark, tasks, work, NEW_FILES)]
        found, planned = (sum(file.rows for file in files), sum(item.end - item.start for item in ranges))
        if found < planned:
            warn([f"topic {self._topic!r}: {planned - found} of {planned} messages could not be read"])
        return files

    def _commit(self, files: Sequence[NewFile], offsets: Mapping[Queue, int], known: Offsets) -> None:
        """Commits of others in between are no conflict unless they moved the progress."""

        def commit() -> None:
            self._table.commit(files, (), offsets)

        def check() -> None:
            self._table.load()
            if (now := self._table.progress(offsets)) != known:
                raise TableConflictError(
                    f"{self._place.uri}: another writer keeps this table of topic {self._topic!r}: its progress moved "
                    f"from {sum(known.values())} to {sum(now.values())} messages; run one writer at a time"
                )

        self._retried(commit, check)
        self._commits += 1

    def _retried(self, change: Callable[[], None], before_again: Callable[[], None] | None = None) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                change()
                return
            except TableChangedError:
                if attempt + 1 == _ATTEMPTS:
                    raise
            (before_again or self._table.load)()


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a table and how a message's columns become them."""

    schema: pa.Schema
    body_schema: BodySchema | None
    keep_body: bool

    @classmethod
    def of(cls, body_schema: BodySchema | None, keep_body: bool) -> _Columns:
        if body_schema is None and not keep_body:
            raise OptionError("a table without the body needs a schema that has its columns")
        message = [field for field in arrow_schema(_COLUMNS) if keep_body or field.name != "body"]
        typed = [] if body_schema is None else body_schema.columns([*_COLUMNS, PARTITION])
        return cls(pa.schema([*message, *typed, pa.field(PARTITION, pa.date32())]), body_schema, keep_body)

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Message columns to the table's columns but that of the partition."""
        arrays = {name: batch.column(name) for name in _COLUMNS}
        typed: list[pa.Array] = []
        if self.body_schema is not None:
            typed, arrays["decodeError"] = typed_columns(self.body_schema, arrays["body"], arrays["decodeError"])
        if not self.keep_body:
            del arrays["body"]
        fields = [field for field in self.schema if field.name != PARTITION]
        return pa.RecordBatch.from_arrays([*arrays.values(), *typed], schema=pa.schema(fields))


def _covers(there: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a table has these columns; types are compared as text, because formats have only the larger of them."""

    def text(kind: pa.DataType) -> str:
        return str(kind).replace("large_", "").replace("element:", "item:").replace(" not null", "")

    return all(field.name in there.names and text(there.field(field.name).type) == text(field.type) for field in wanted)


@dataclass(frozen=True, slots=True)
class _Write:
    """Writes the files of a task. An attempt that fails leaves files that no commit names."""

    options: SourceOptions
    columns: _Columns
    place: Warehouse
    keeps_day: bool

    def __call__(self, task: Task) -> Iterator[tuple[Any, ...]]:
        from aerobee_pipeline.source import BatchReader, TaskPartition

        files = DayFiles(self.place, keeps_day=self.keeps_day)
        try:
            for batch in BatchReader(self.options, _COLUMNS).read(TaskPartition(task)):
                files.write(self.columns.of_batch(batch))
            for file in files.finish():
                yield file.path, file.day, file.rows, file.size
        finally:
            files.abandon()


def sample(source: Mapping[str, str], topic: str, count: int) -> list[bytes | None]:
    """The bodies of about so many messages of a topic, the latest of each queue. Read without Spark."""
    from aerobee_pipeline.reading.decode import Decoder

    options = SourceOptions.parse({**source, "subscribe": topic, "onBadBody": "null"}, streaming=False)
    access: QueueAccess = open_access(options)
    decoder = Decoder(["body"], bad_body_is_null=True)
    bodies: list[bytes | None] = []
    try:
        bounds = access.bounds(options.subscription)
        named_topics_exist(options.subscription, bounds, "the source")
        each = max(count // max(len(bounds), 1), 1)
        for queue, its in sorted(bounds.items()):
            first = max(its.start, its.end - each)
            for batch, rows in access.read(Range(queue, first, its.end), None, fail_on_data_loss=False):
                bodies += decoder.decode(batch, rows).column(0).to_pylist()
    finally:
        access.close()
    return [body for body in bodies if body is not None]
