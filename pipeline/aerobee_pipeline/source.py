"""The Spark data source `aerobee`: batch and streaming reads of a broker's topics or of stores' files.

Instances are pickled for the workers, so constructors open no files or connections, and `read` opens them.
docs/pipeline.md has the options.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from aerobee_pipeline.offsets import Position, Range, checked_ranges, next_position, ranges_between
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading.decode import Decoder, expanded
from aerobee_pipeline.reading.planning import ReadPlan, Task, Wanted, packed_ranges, plan, warn, where
from aerobee_pipeline.reading.queue_access import QueueAccess, named_topics_exist, offsets_at, open_access
from aerobee_pipeline.reading.schema import checked_columns, default_columns, spark_ddl
from aerobee_pipeline.reading.selection import PUSHED_COLUMNS, Condition, Selection, narrowed
from aerobee_pipeline.reading.splits import BATCH_RECORDS, read_split
from aerobee_pipeline.reading.store_queues import read_records
from aerobee_pipeline.worker_memory import prepare_worker
from aerobee_store.records.record_batch import RecordBatch

_log = logging.getLogger(__name__)

# Rows and bytes of one Arrow batch on its way to the JVM. In smaller batches the fixed cost of a batch is noticeable;
# larger ones save as little as joining them costs, because every value is copied then.
_BATCH_ROWS: Final = BATCH_RECORDS
_BATCH_BYTES: Final = 32 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class TaskPartition(InputPartition):
    """What one task reads."""

    task: Task


class AerobeeDataSource(DataSource):
    """`spark.read.format("aerobee")` and `spark.readStream.format("aerobee")`."""

    @classmethod
    def name(cls) -> str:
        return "aerobee"

    def schema(self) -> str:
        options = SourceOptions.parse(self.options, streaming=None)
        return spark_ddl(
            default_columns(
                properties=options.include_properties,
                system=options.include_system,
                errors=options.bad_body_is_null,
            )
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options, streaming=False)
        kind = PushdownReader if options.pushdown else BatchReader
        return kind(options, _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(SourceOptions.parse(self.options, streaming=True), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from aerobee_pipeline.writing.sink import BatchSink

        return BatchSink.of(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from aerobee_pipeline.writing.sink import StreamSink

        return StreamSink.of(self.options, schema, overwrite)


class _Reading:
    """The common part of the batch and stream readers: reads a partition in a worker."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._tags = options.tags
        self._conditions: tuple[Condition, ...] = ()
        self._keys: frozenset[str] | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition. Runs in a worker."""
        prepare_worker()
        if isinstance(partition, TaskPartition):  # Spark replaces an empty list of partitions by one without a value
            yield from coalesced(self._rows(partition.task))

    def _rows(self, task: Task) -> Iterator[pa.RecordBatch]:
        fails = self._options.fail_on_data_loss
        for split in task.splits:
            yield from self._log_rows(read_split(split, fail_on_data_loss=fails), split.broker, task.deleted)
        for records in task.records:
            yield from self._log_rows(read_records(records, fail_on_data_loss=fails), records.broker, task.deleted)
        if task.ranges:
            yield from self._queue_rows(task.ranges)

    def _log_rows(
        self, batches: Iterator[RecordBatch], broker: str, deleted: Mapping[str, Mapping[str, int]] | None
    ) -> Iterator[pa.RecordBatch]:
        options = self._options
        selection = Selection(
            options.subscription,
            broker,
            options.starting,
            options.ending,
            self._tags,
            self._conditions,
            (deleted or {}).get(broker, {}),
        )
        decoder = self._decoder(broker)
        for batch in batches:
            for messages, rows in expanded(batch, selection.rows(batch)):
                yield decoder.decode(messages, selection.within(messages, rows))

    def _queue_rows(self, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        options = self._options
        access = open_access(options)
        try:
            for item in ranges:
                decoder = self._decoder(access.broker_name(item.queue) if "brokerName" in self._columns else "")
                for messages, rows in access.read(item, self._tags, fail_on_data_loss=options.fail_on_data_loss):
                    yield decoder.decode(messages, narrowed(messages, rows, self._tags, self._conditions))
        finally:
            access.close()

    def _decoder(self, broker_name: str) -> Decoder:
        options = self._options
        return Decoder(
            self._columns,
            broker_name=broker_name,
            decompress=options.decompress,
            bad_body_is_null=options.bad_body_is_null,
        )


class BatchReader(_Reading, DataSourceReader):
    """A batch query, whose begin and end are fixed when it is planned."""

    def partitions(self) -> list[InputPartition]:
        found = self.plan()
        _log.info("%s is read %s", where(self._options), found)
        return [TaskPartition(task) for task in found.tasks]

    def plan(self) -> ReadPlan:
        """What the query reads, and how."""
        return plan(self._options, Wanted(self._conditions, self._keys))


_OPERATORS: Final = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


class PushdownReader(BatchReader):
    """The reader with option `pushdown`: Spark refuses a reader with filters unless its setting is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Accept the filters that reduce decoding; return those that Spark must evaluate."""
        taken = []
        for item in filters:
            tags = _tags(item)
            if tags is not None:
                self._tags = tags if self._tags is None else self._tags & tags
                continue
            condition = _condition(item)
            if isinstance(item, IsNotNull) and item.attribute[0] in PUSHED_COLUMNS:
                continue  # these columns are never null
            if condition is None:
                if (keys := _keys(item)) is not None:
                    self._keys = keys if self._keys is None else min(self._keys, keys, key=len)
                yield item  # Spark compares the whole text of the column
            else:
                taken.append(condition)
        self._conditions = tuple(taken)


def _tags(item: Filter) -> frozenset[str] | None:
    """The tags that a filter asks for; None for other filters, and for texts that no sender uses as a tag."""
    if not isinstance(item, EqualTo | In) or tuple(item.attribute) != ("tags",):
        return None
    values = list(item.value) if isinstance(item, In) else [item.value]
    # A stored tag that is not UTF-8 is shown with U+FFFD, but is not equal to it.
    if all(isinstance(tag, str) and tag and tag == tag.strip() and not {"|", "\ufffd"} & {*tag} for tag in values):
        return frozenset(values)
    return None


def _keys(item: Filter) -> frozenset[str] | None:
    """A key that each message has which a filter on the column `keys` accepts; None for other filters."""
    if not isinstance(item, EqualTo | In) or tuple(item.attribute) != ("keys",):
        return None
    values = list(item.value) if isinstance(item, In) else [item.value]
    if not all(isinstance(value, str) and value.split(" ")[0] and "\ufffd" not in value for value in values):
        return None
    return frozenset(value.split(" ")[0] for value in values)


def _condition(item: Filter) -> Condition | None:
    kind = _OPERATORS.get(type(item))
    attribute: tuple[str, ...] = getattr(item, "attribute", ())
    if kind is None or len(attribute) != 1 or attribute[0] not in PUSHED_COLUMNS:
        return None
    column = attribute[0]
    given = list(item.value) if kind == "in" else [item.value]
    values = [_value(column, value) for value in given]
    if None in values or (column == "topic" and kind not in ("=", "in")):
        return None
    return Condition(column, kind, tuple(values) if kind == "in" else values[0])


def _value(column: str, value: Any) -> Any:
    """A literal in comparable form: a topic, a number, or a time in microseconds; None for anything else."""
    if column == "topic":
        return value if isinstance(value, str) else None
    if column == "storeTimestamp":
        if not isinstance(value, datetime):
            return None
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    return value if isinstance(value, int) else None


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. One instance lives in its own process as long as the query; others read partitions."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        super().__init__(options, columns)
        self._initial: Position | None = None
        self._access: QueueAccess | None = None
        self._end_of_run: Position | None = None
        self._last_trigger = -math.inf

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_access": None}

    def initialOffset(self) -> dict[str, Any]:
        """Computed once: Spark asks twice, and with active producers a second answer would skip messages."""
        if self._initial is None:
            options = self._options
            bounds = self._queues().bounds(options.subscription)
            named_topics_exist(options.subscription, bounds, where(options))
            starts = offsets_at(
                self._queues(), options.starting, bounds, is_start=True, strategy=options.by_timestamp_strategy
            )
            self._initial = Position(starts, initial=True)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.offsets_per_trigger is not None:
            return ReadMaxRows(options.offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next micro-batch."""
        position = Position.from_json(start if start is not None else self.initialOffset())
        bounds = self._queues().bounds(self._options.subscription)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._end_of_run is not None:
            last = self._end_of_run.next
            bounds = {
                queue: type(found)(found.start, min(found.end, max(last[queue], found.start)))
                for queue, found in bounds.items()
                if queue in last
            }
        end, losses = next_position(
            position, bounds, rows_max=rows_max, fail_on_data_loss=self._options.fail_on_data_loss
        )
        warn(losses)
        if not position.initial and (dict(end.next) == dict(position.next) or self._waits(position, end)):
            return start if start is not None else end.to_json()
        self._last_trigger = time.monotonic()
        return end.to_json()

    def _waits(self, position: Position, end: Position) -> bool:
        """Whether there are too few messages for a micro-batch. `Trigger.AvailableNow` always takes all messages."""
        least = self._options.offsets_per_trigger_min
        if least is None or self._end_of_run is not None:
            return False
        if time.monotonic() - self._last_trigger >= self._options.trigger_delay_seconds_max:
            return False
        return sum(item.end - item.start for item in ranges_between(position, end)) < least

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run; limits then divide the messages before it into micro-batches."""
        bounds = self._queues().bounds(self._options.subscription)
        self._end_of_run = Position({queue: found.end for queue, found in bounds.items()})

    def reportLatestOffset(self) -> dict[str, Any]:
        """The present ends of the queues, for the progress reports of a query."""
        bounds = self._queues().bounds(self._options.subscription)
        return Position({queue: found.end for queue, found in bounds.items()}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options = self._options
        ranges = ranges_between(Position.from_json(start), Position.from_json(end))
        if not ranges:
            return []
        bounds = self._queues().bounds(options.subscription)
        kept, losses = checked_ranges(ranges, bounds, fail_on_data_loss=options.fail_on_data_loss)
        warn(losses)
        packs = packed_ranges(kept, options)
        return [TaskPartition(Task(ranges=tuple(pack))) for pack in packs]

    def commit(self, end: dict[str, Any]) -> None:
        """With the option `group`, commit the offsets to the broker for its lag metrics. Only the checkpoint
        decides."""
        if self._options.group is not None:
            self._queues().report(self._options.group, Position.from_json(end).next)

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None

    def _queues(self) -> QueueAccess:
        if self._access is None:
            self._access = open_access(self._options)
        return self._access


def coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a size that Spark processes fast. A batch of this size is not copied."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (batch.num_rows >= _BATCH_ROWS or size + batch.nbytes > _BATCH_BYTES):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _columns(schema: StructType) -> list[str]:
    return checked_columns([(field.name, field.dataType.simpleString()) for field in schema.fields])
