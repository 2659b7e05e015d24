"""Selects the records of a batch by topic, queue, tag, offset, time, and filters that Spark pushed down."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aerobee_pipeline.offsets import EARLIEST, LATEST, Queue, Range
from aerobee_pipeline.options import Limit, Subscription
from aerobee_pipeline.passes import Rows, property_values
from aerobee_store.queues.record_units import rows_by_queue
from aerobee_store.records import properties, record
from aerobee_store.records.record_batch import RecordBatch

Compare = Callable[[Any, Any], Any]
OPERATORS: Final[dict[str, Compare]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBERS: Final[dict[str, Callable[[RecordBatch], npt.NDArray[np.int64]]]] = {
    "queueId": lambda batch: batch.queue_id,
    "queueOffset": lambda batch: batch.queue_offset,
    "physicalOffset": lambda batch: batch.physical_offset,
    "storeTimestamp": lambda batch: batch.store_timestamp * 1000,
    "storeSize": lambda batch: batch.size,
}
PUSHED_COLUMNS: Final = frozenset((*_NUMBERS, "topic"))


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter on a column: one of `OPERATORS` with a value, or `in` with several. Times are microseconds."""

    column: str
    operator: str
    value: Any

    def allows(self, value: Any) -> bool:
        """Whether it is true for one value of its column."""
        return value in self.value if self.operator == "in" else bool(OPERATORS[self.operator](value, self.value))

    def holds(self, batch: RecordBatch, rows: Rows) -> npt.NDArray[np.bool_]:
        """The rows for which it is true, as a mask."""
        if self.column == "topic":
            names = self.value if self.operator == "in" else (self.value,)
            wanted = np.array([topic in names for topic in batch.topics], np.bool_)
            return wanted[batch.topic_index[rows]]
        column = _NUMBERS[self.column](batch)[rows]
        if self.operator == "in":
            return np.isin(column, np.array(list(self.value), np.int64))
        return np.asarray(OPERATORS[self.operator](column, self.value), np.bool_)


def queue_is_selected(conditions: Iterable[Condition], topic: str, queue_id: int) -> bool:
    """Whether the conditions on topic and queue allow messages of this queue."""
    values = {"topic": topic, "queueId": queue_id}
    return all(item.allows(values[item.column]) for item in conditions if item.column in values)


def selected_part(item: Range, conditions: Iterable[Condition]) -> Range | None:
    """The part of a range that the conditions on topic, queue and queue offset leave; None for nothing."""
    conditions = list(conditions)
    start, end = item.start, item.end
    for condition in conditions:
        if condition.column == "queueOffset":
            values = condition.value if condition.operator == "in" else (condition.value,)
            if condition.operator in ("=", "in", ">", ">="):
                start = max(start, min(values, default=end) + (condition.operator == ">"))
            if condition.operator in ("=", "in", "<", "<="):
                end = min(end, max(values, default=start) + (condition.operator != "<"))
    if start >= end or not queue_is_selected(conditions, item.queue.topic, item.queue.queue_id):
        return None
    return Range(item.queue, start, end)


@dataclass(frozen=True, slots=True)
class Selection:
    """The records that a task keeps of a log."""

    subscription: Subscription
    broker: str
    starting: Limit
    ending: Limit
    tags: frozenset[str] | None
    conditions: tuple[Condition, ...] = field(default=())
    deleted: Mapping[str, int] = field(default_factory=dict)
    """Topics that were deleted: their records before this physical offset do not count."""

    def rows(self, batch: RecordBatch) -> Rows:
        """The selected records. Half messages and rolled-back ones are in no queue and never selected."""
        wanted = np.array([self.subscription.has_topic(topic) for topic in batch.topics], np.bool_)
        keep = wanted[batch.topic_index]
        if self.deleted:
            begins = np.array([self.deleted.get(topic, 0) for topic in batch.topics], np.int64)
            keep = keep & (batch.physical_offset >= begins[batch.topic_index])
        if batch.any_has(record.SYS_FLAG_PREPARED):
            keep = keep & ((batch.sys_flag & record.SYS_FLAG_PREPARED) == 0)
        rows = np.flatnonzero(keep)
        if self.subscription.queues is not None and len(rows):
            parts = [
                part
                for topic, queue_id, part in rows_by_queue(batch, rows)
                if self.subscription.has_queue(topic, queue_id)
            ]
            rows = np.sort(np.concatenate(parts)) if parts else rows[:0]
        return rows

    def within(self, batch: RecordBatch, rows: Rows) -> Rows:
        """The rows, or the messages expanded from them, between start and end."""
        for limit, is_start in ((self.starting, True), (self.ending, False)):
            rows = _within(batch, rows, self.broker, limit, is_start)
        return narrowed(batch, rows, self.tags, self.conditions)


def narrowed(batch: RecordBatch, rows: Rows, tags: frozenset[str] | None, conditions: tuple[Condition, ...]) -> Rows:
    """The rows that have one of the tags and satisfy all conditions."""
    for condition in conditions:
        rows = rows[condition.holds(batch, rows)]
    return rows if tags is None else _tagged(batch, rows, tags)


def _within(batch: RecordBatch, rows: Rows, broker: str, limit: Limit, is_start: bool) -> Rows:
    if limit.timestamp is not None:
        times = batch.store_timestamp[rows]
        return rows[times >= limit.timestamp if is_start else times < limit.timestamp]
    by_queue: Mapping[Queue, int] | None = limit.timestamps
    by_time = by_queue is not None
    if by_queue is None:
        if not isinstance(limit.place, dict):
            return rows  # from the earliest to the latest: everything in the log
        by_queue = limit.place
    parts = []
    for topic, queue_id, part in rows_by_queue(batch, rows):
        at = by_queue.get(Queue(topic, broker, queue_id), EARLIEST if is_start else LATEST)
        if at >= 0 or by_time:
            column = batch.store_timestamp[part] if by_time else batch.queue_offset[part]
            if at >= 0:
                part = part[column >= at if is_start else column < at]
        parts.append(part)
    return np.sort(np.concatenate(parts)) if parts else rows


def _tagged(batch: RecordBatch, rows: Rows, tags: frozenset[str]) -> Rows:
    [values] = property_values(batch, rows, [properties.TAGS])
    same = pc.is_in(values, pa.array([tag.encode() for tag in tags], pa.binary()))
    return rows[same.to_numpy(zero_copy_only=False)]
