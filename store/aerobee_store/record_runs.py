"""Reads the records of a queue as bytes of the log, in as few slices as possible, using the queue's units.

Records of one queue that were appended together are adjacent, so thousands of records are one slice of a segment.
Nothing here works record by record, except for damage. The decoder of the records verifies their checksums.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from aerobee_store.deferred import deferred
from aerobee_store.errors import CorruptRecordError, RecordNotFoundError
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.maintenance.unit_repair import REPAIRS_PER_READ, UnitRepair
from aerobee_store.message_reader import ReadStatus, is_also_at, outside
from aerobee_store.queues.batch_consume_queue import BatchConsumeQueue
from aerobee_store.queues.consume_queue import FILLER_SIZE, ConsumeQueue, Units
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.records import properties
from aerobee_store.records import record as record_codec
from aerobee_store.stats import StoreStats

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aerobee_store.records import record_columns
    from aerobee_store.records.record_columns import Booleans, Integers
else:
    np = deferred("numpy")
    record_columns = deferred("aerobee_store.records.record_columns")


_log = logging.getLogger(__name__)

# Units examined by one read: a step of about a millisecond.
_UNITS_MAX: Final = 16384
# Records examined one by one, 10 us each: those of light queues, which are also in another queue.
_SINGLE_MAX: Final = 2048


class RecordRuns(Struct, frozen=True):
    """Records of one queue. The next read begins at `next_offset`. `lost` counts messages without a readable record,
    also those before `min_offset`.

    `runs` are slices of segments, to be copied before the event loop continues; `sizes` are those of their records.
    """

    status: ReadStatus
    runs: list[memoryview]
    sizes: npt.NDArray[np.int64]
    next_offset: int
    min_offset: int
    max_offset: int
    lost: int = 0
    message_count: int = 0

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(map(len, self.runs))


class RunReader:
    """The bulk-reading part of `MessageStore`, which documents the calls."""

    def __init__(self, log: CommitLog, queues: QueueTable, repair: UnitRepair, stats: StoreStats) -> None:
        self._log = log
        self._queues = queues
        self._repair = repair
        self._stats = stats

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        end_offset: int | None,
        max_bytes: int,
        tags: Collection[str] | None,
        flushed_only: bool,
    ) -> RecordRuns:
        """Like MessageStore.read_runs."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return RecordRuns("empty", [], _none(), 0, 0, 0)
        low, high = queue.min_offset, self.max_offset(topic, queue_id, flushed_only=flushed_only)
        if queue_offset < low:  # the messages before are deleted: whoever reads on from here has lost them
            stop = low if end_offset is None else max(queue_offset, min(low, end_offset))
            return RecordRuns("offset-too-small", [], _none(), stop, low, high, stop - queue_offset)
        if queue_offset >= high:
            there = outside(queue_offset, low, high)
            return RecordRuns(there.status, [], _none(), there.next_offset, low, high)
        stop = high if end_offset is None else min(high, end_offset)
        if isinstance(queue, BatchConsumeQueue):
            return self._read_batches(queue, queue_offset, stop, high, max_bytes)
        units = queue.units(queue_offset, min(stop - queue_offset, _UNITS_MAX))
        size = units["size"].astype(np.int64)
        real = size != FILLER_SIZE
        wanted = real if tags is None else real & _have_tags(queue, units, tags)
        rows = wanted.nonzero()[0]
        taken = _fitting(size[rows], max_bytes)
        looked = int(rows[taken]) if taken < len(rows) else len(units)
        rows = rows[:taken]
        position, size = units["physical_offset"].astype(np.int64)[rows], size[rows]
        valid = self._valid(queue, position, size, queue_offset + rows)
        if (taken := _repairable(valid)) < len(rows):
            looked = int(rows[taken])
            rows, position, size, valid = rows[:taken], position[:taken], size[:taken], valid[:taken]
        lost = looked - int(np.count_nonzero(real[:looked]))
        if not valid.all():
            self._put_right(queue, queue_offset + rows, position, size, valid)
            lost += self._report(queue, queue_offset + rows[~valid])
            position, size = position[valid], size[valid]
        return self._found(position, size, queue_offset + looked, low, high, lost, len(position))

    def _read_batches(
        self, queue: BatchConsumeQueue, queue_offset: int, stop: int, high: int, max_bytes: int
    ) -> RecordRuns:
        """The same for records that hold many messages. The first may begin before `queue_offset`."""
        first = queue.number_at(queue_offset)
        units = queue.units(first, _UNITS_MAX)
        base = units["base_offset"].astype(np.int64)
        end = base + units["count"]
        before = int(np.searchsorted(base, stop))
        size = units["size"].astype(np.int64)[:before]
        taken = _fitting(size, max_bytes)
        base, end, size = base[:taken], end[:taken], size[:taken]
        position = units["physical_offset"].astype(np.int64)[:taken]
        valid = self._valid(queue, position, size, base)
        taken = _repairable(valid)
        base, end, size, position, valid = base[:taken], end[:taken], size[:taken], position[:taken], valid[:taken]
        next_offset = int(end[-1]) if taken else stop
        asked = np.maximum(base, queue_offset)
        lost = next_offset - queue_offset - int((end - asked).sum())
        if not valid.all():
            self._put_right(queue, first + np.arange(taken), position, size, valid)
            self._report(queue, base[~valid])
            lost += int((end - asked)[~valid].sum())
        count = int((end - asked)[valid].sum())
        return self._found(position[valid], size[valid], next_offset, queue.min_offset, high, lost, count)

    def max_offset(self, topic: str, queue_id: int, *, flushed_only: bool) -> int:
        """The end of the queue; with `flushed_only` the end of its durable part."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        flushed = self._log.flushed
        if not flushed_only or self._log.committed == flushed:
            return queue.max_offset
        if isinstance(queue, BatchConsumeQueue):
            number = queue.number_behind(flushed)
            units = queue.units(number, 1)
            return int(units[0]["base_offset"]) if len(units) else queue.max_offset
        return queue.offset_behind(flushed)

    def _valid(
        self, queue: ConsumeQueue | BatchConsumeQueue, position: Integers, size: Integers, queue_offset: Integers
    ) -> Booleans:
        """Whether each unit refers to a record in the log with a matching header; of leading units only, if many of
        their records must be examined one by one."""
        valid = np.zeros(len(position), np.bool_)
        first, left = 0, _SINGLE_MAX
        while first < len(position):
            file = self._log.files.find(int(position[first]))
            if file is None:
                first += 1
                continue
            # Positions in an intact queue rise. Units that do not are checked one by one.
            rest = position[first:]
            inside = (rest >= file.start_offset) & (rest < file.end_offset)
            last = first + (len(rest) if inside.all() else int(inside.argmin()))
            starts = position[first:last] - file.start_offset
            ends = starts + size[first:last]
            rows = ((size[first:last] >= record_codec.RECORD_SIZE_MIN) & (ends <= file.committed)).nonzero()[0]
            starts = starts[rows]
            head = record_columns.heads_at(file.view, starts)
            rows += first
            ok = (head["total_size"] == size[rows]) & (head["physical_offset"] == position[rows])
            same = (head["queue_offset"] == queue_offset[rows]) & (head["queue_id"] == queue.queue_id)
            same &= _have_topic(file.view, starts, size[rows], head, ok & same, queue.topic)
            others = (ok & ~same).nonzero()[0]
            for at in others[:left].tolist():
                row = rows[at]
                ok[at] = self._is_also_in(queue, int(position[row]), int(queue_offset[row]))
            valid[rows] = ok
            if len(others) > left:
                return valid[: rows[others[left]]]
            left -= len(others)
            first = last
        return valid

    def _put_right(
        self,
        queue: ConsumeQueue | BatchConsumeQueue,
        numbers: Integers,
        position: Integers,
        size: Integers,
        valid: Booleans,
    ) -> None:
        """Find the records of invalid units. Units whose records are found are valid from then on."""
        for row in (~valid).nonzero()[0].tolist():
            place = self._repair.repair(queue, int(numbers[row]))
            if place is not None:
                position[row], size[row] = place
                valid[row] = True

    def _is_also_in(self, queue: ConsumeQueue | BatchConsumeQueue, physical_offset: int, queue_offset: int) -> bool:
        """Whether a record sent to another queue names this place as an additional one."""
        try:
            found = self._log.record_at(physical_offset)
        except (RecordNotFoundError, CorruptRecordError):
            return False
        return is_also_at(found, (queue.topic, queue.queue_id, queue_offset))

    def _report(self, queue: ConsumeQueue | BatchConsumeQueue, offsets: Integers) -> int:
        for offset in offsets[:10].tolist():
            _log.error("message lost topic=%s queue=%d offset=%d", queue.topic, queue.queue_id, offset)
        return len(offsets)

    def _found(
        self, position: Integers, size: Integers, next_offset: int, low: int, high: int, lost: int, message_count: int
    ) -> RecordRuns:
        runs = []
        # A segment ends in a blank, so no run extends beyond it.
        breaks = np.flatnonzero(position[1:] != position[:-1] + size[:-1]) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(position)], strict=True):
            if last > first:
                begin = int(position[first])
                runs.append(self._log.bytes_at(begin, int(position[last - 1] + size[last - 1]) - begin))
        self._stats.messages_read += message_count
        self._stats.bytes_read += int(size.sum())
        return RecordRuns("found" if runs else "no-match", runs, size, next_offset, low, high, lost, message_count)


def _none() -> Integers:
    return np.zeros(0, np.int64)


def _fitting(size: Integers, max_bytes: int) -> int:
    """The number of leading records that fit into `max_bytes`, at least one."""
    return min(len(size), max(1, int(np.searchsorted(np.cumsum(size), max_bytes, side="right"))))


def _repairable(valid: Booleans) -> int:
    """The number of leading units that one read takes, of which it may have to repair some."""
    wrong = (~valid).nonzero()[0]
    return len(valid) if len(wrong) <= REPAIRS_PER_READ else int(wrong[REPAIRS_PER_READ])


def _have_topic(
    view: memoryview, start: Integers, size: Integers, head: npt.NDArray[np.void], good: Booleans, topic: str
) -> Booleans:
    """Whether records are of a topic, for those whose other fields are `good`.

    Of adjacent records the first and the last tell: the log has the records of a queue in the order of its units, so
    those of the units in between leave no place for a record of another topic.
    """
    follows = (start[1:] == start[:-1] + size[:-1]) & good[1:] & good[:-1]
    outer = np.ones(len(start), np.bool_)
    outer[1:-1] = ~(follows[:-1] & follows[1:])
    rows = outer.nonzero()[0]
    found = record_columns.have_topic(view, start[rows], size[rows], head[rows], topic)
    if found.all():
        return np.ones(len(start), np.bool_)
    return record_columns.have_topic(view, start, size, head, topic)


def _have_tags(queue: ConsumeQueue, units: Units, tags: Collection[str]) -> Booleans:
    codes = [properties.tags_code(tag) for tag in tags]
    if queue.extension is None:
        return np.isin(units["tags_code"], codes)
    found = [code is None or code in codes for code in queue.tags_codes(units)]
    return np.array(found, np.bool_)
