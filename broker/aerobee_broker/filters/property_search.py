"""Finds the messages of a queue that satisfy an SQL expression, without decoding the others.

Most messages of a backlog may not match. A search reads the queue in bulk, takes the values of the named properties as
columns, and evaluates the expression once for each distinct combination of values. Candidates are then read like any
other message.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final

import numpy as np

from aerobee_store import MessageStore, ReadResult, Record
from aerobee_store.records.record_batch import RecordBatch

if TYPE_CHECKING:
    from aerobee_broker.filters.sql_filter import Expression

_BYTES_MAX: Final = 512 << 10  # bytes of records that a search examines, so that a step takes a few milliseconds
_WORK_MAX: Final = 4096  # values times conditions that a search examines, for the same reason
_COUNT_MIN: Final = 32  # messages, whatever the expression


def search(
    store: MessageStore,
    topic: str,
    queue_id: int,
    queue_offset: int,
    expression: Expression,
    count: int,
    max_bytes: int,
    end_offset: int,
) -> ReadResult | None:
    """At most `count` messages that satisfy the expression, from the offset on; others before `next_offset` do not.
    Looks at no message from `end_offset` on.

    Returns only one message above `max_bytes`. None where messages must be read one by one: in a queue of batches or of
    messages that belong to another queue, at the end of the queue, and where one is damaged. StoreAccessError.
    """
    looked = max(_COUNT_MIN, _WORK_MAX // (len(expression.names) + expression.condition_count))
    stop = min(queue_offset + looked, end_offset)
    runs = store.read_runs(topic, queue_id, queue_offset, end_offset=stop, max_bytes=_BYTES_MAX, flushed_only=False)
    if runs.lost or not runs.runs:
        return None
    data = bytes(runs.runs[0]) if len(runs.runs) == 1 else b"".join(runs.runs)
    batch = RecordBatch.parse(data, base_physical_offset=None, sizes=runs.sizes)
    # A damaged record ends the batch; reading it alone counts it, and may find it elsewhere. A record of another queue
    # has another offset; with the same offset, it is still read below as a message of this queue.
    if not len(batch) or not (batch.queue_offset == np.arange(queue_offset, queue_offset + len(batch))).all():
        return None
    end = queue_offset + len(batch)
    records: list[Record] = []
    size = lost = 0
    for first, last in stretches(matching_rows(batch, expression)):
        begin = queue_offset + first
        if records and (len(records) >= count or size >= max_bytes):
            end = begin
            break
        wanted = min(last - first, count - len(records))
        result = store.read(topic, queue_id, begin, max_count=wanted, max_bytes=max_bytes - size)
        records += result.records
        size += sum(record.size for record in result.records)
        lost += result.lost
        if result.next_offset < queue_offset + last:
            end = result.next_offset
            break
    return ReadResult("found" if records else "no-match", records, end, runs.min_offset, runs.max_offset, lost)


def matching_rows(batch: RecordBatch, expression: Expression) -> Iterator[int]:
    """The numbers of the messages that satisfy the expression."""
    names = expression.names
    columns = [batch.property_bytes(name) for name in names]
    known: dict[tuple[bytes | None, ...], bool] = {}
    rows = zip(*columns, strict=True) if columns else repeat((), len(batch))
    for row, values in enumerate(rows):
        matches = known.get(values)
        if matches is None:
            there = {
                name: value.decode("utf-8", "replace")
                for name, value in zip(names, values, strict=True)
                if value is not None
            }
            matches = known[values] = expression(there) is True
        if matches:
            yield row


def stretches(rows: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers as [first, last)."""
    first = last = -1
    for row in rows:
        if row != last:
            if last > first:
                yield first, last
            first = row
        last = row + 1
    if last > first:
        yield first, last
