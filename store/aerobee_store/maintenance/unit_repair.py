"""Finds the record of a queue unit with a wrong physical offset, and corrects the unit.

A queue is derived from the log, so a flipped bit in a unit loses no message: the log has the record with this queue
offset. The search tries the cheapest method first:

    one bit away    the offsets that differ from the unit's in one bit: a few dozen reads
    by neighbours   between the records of the nearest correct units before and after it, at most 32 MiB of the log

The found offset is written into the unit and synced with the next flush of derived files. Readers of a queue call this
when a unit does not lead to a record of its queue offset. The message is lost only if the record is not found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from aerobee_store.deferred import deferred
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.log.log_scan import LogScan
from aerobee_store.queues.batch_consume_queue import BATCH_UNIT_DTYPE, AnyQueue, BatchConsumeQueue
from aerobee_store.queues.consume_queue import FILLER_SIZE, UNIT_DTYPE, Units
from aerobee_store.queues.multi_dispatch import AS_RECORDED
from aerobee_store.records import properties
from aerobee_store.running_flags import RunningFlags, RunningState
from aerobee_store.stats import StoreStats

if TYPE_CHECKING:
    import numpy as np

    from aerobee_store.queues import record_units
    from aerobee_store.records import record_batch
    from aerobee_store.records.record_batch import RecordBatch
    from aerobee_store.records.record_columns import Integers
else:
    np = deferred("numpy")
    record_batch = deferred("aerobee_store.records.record_batch")
    record_units = deferred("aerobee_store.queues.record_units")


_log = logging.getLogger(__name__)

# How much of the log one search reads: about a tenth of a second.
_SEARCH_SIZE_MAX: Final = 32 << 20
# The distance to search for a correct unit: a bad sector has 26 units, a bad page 205.
_NEIGHBOUR_DISTANCE_MAX: Final = 1024
_NOT_FOUND_MAX: Final = 4096
REPAIRS_PER_READ: Final = 8
"""A read of a queue ends after so many searches, which take milliseconds each; the next read goes on there."""
_OFFSET_BITS: Final = 48


class RecordPlace(NamedTuple):
    """The place of a record in the log, and its size."""

    physical_offset: int
    size: int


class _Searched(Struct, frozen=True):
    """The units of one queue for the records of a part of the log: the result of the last search."""

    queue: AnyQueue
    begin: int
    end: int
    numbers: Integers
    """Queue offsets; for a batch queue, those of the first messages."""
    units: Units


class UnitRepair:
    """Event loop only."""

    def __init__(self, log: CommitLog, running: RunningState, stats: StoreStats, *, record_size_max: int) -> None:
        self._log = log
        self._running = running
        self._stats = stats
        self._record_size_max = record_size_max
        # records without a place, so that they are searched for only once
        self._not_found: dict[tuple[str, int, int], None] = {}
        self._searched: _Searched | None = None
        self.searches = 0  # for a record, so far

    def repair(self, queue: AnyQueue, number: int) -> RecordPlace | None:
        """The place of the record for unit `number` of a queue; the unit is corrected.

        `number`: the queue offset; for a batch queue, the number of the unit. None if the record was not found.
        """
        key = queue.topic, queue.queue_id, number
        if key in self._not_found:
            return None
        self.searches += 1
        named = int(queue.units(number, 1)[0]["physical_offset"])
        unit = self._one_bit_away(queue, number, named)
        if unit is None and named >= self._log.min_offset:  # everything before it has expired
            unit = self._by_neighbours(queue, number)
        if unit is None:
            if len(self._not_found) >= _NOT_FOUND_MAX:
                self._not_found.clear()
            self._not_found[key] = None
            return None
        place = RecordPlace(int(unit[0]["physical_offset"]), int(unit[0]["size"]))
        self._stats.units_repaired += 1
        _log.warning(
            "queue unit with a wrong physical offset corrected topic=%s queue=%d unit=%d wrong=%d physical_offset=%d",
            queue.topic,
            queue.queue_id,
            number,
            named,
            place.physical_offset,
        )
        if not self._running.flags & RunningFlags.NOT_WRITEABLE:
            try:
                queue.overwrite(number, unit.tobytes())
            except OSError as error:
                _log.error("queue unit not corrected directory=%s cause=%s", queue.directory, error)
        return place

    def _one_bit_away(self, queue: AnyQueue, number: int, named: int) -> Units | None:
        for bit in range(_OFFSET_BITS):
            if (unit := self._unit_at(queue, number, named ^ 1 << bit)) is not None:
                return unit
        return self._unit_at(queue, number, named)  # its size may be wrong too

    def _by_neighbours(self, queue: AnyQueue, number: int) -> Units | None:
        begin = self._neighbour(queue, number, -1, self._log.min_offset)
        end = self._neighbour(queue, number, 1, self._log.committed)
        if end - begin <= _SEARCH_SIZE_MAX:
            return self._search(queue, number, begin, end)
        half = _SEARCH_SIZE_MAX // 2  # most likely close to one of them
        near = self._search(queue, number, begin, begin + half)
        return near if near is not None else self._search(queue, number, end - half, end)

    def _neighbour(self, queue: AnyQueue, number: int, step: int, default: int) -> int:
        """The physical offset of a right unit before (`step` -1) or after this one, from near to far."""
        first, end = queue.unit_numbers
        distance = 1
        while distance <= _NEIGHBOUR_DISTANCE_MAX and first <= (other := number + step * distance) < end:
            unit = queue.units(other, 1)[0]
            place = int(unit["physical_offset"])
            if int(unit["size"]) != FILLER_SIZE and self._unit_at(queue, other, place) is not None:
                return place
            distance += 1 if distance < 8 else distance  # near ones first, then in growing steps
        return default

    def _search(self, queue: AnyQueue, number: int, begin: int, end: int) -> Units | None:
        """The unit of this number, of a record in [begin, end). Bytes once read are not read again for the next
        search."""
        searched = self._searched
        if searched is None or searched.queue is not queue or not searched.begin <= begin <= end <= searched.end:
            searched = self._searched = self._read(queue, begin, end)
        rows = np.flatnonzero(searched.numbers == _key(queue, number))
        return searched.units[rows[:1]] if len(rows) else None

    def _read(self, queue: AnyQueue, begin: int, end: int) -> _Searched:
        numbers: list[Integers] = [np.zeros(0, np.int64)]
        dtype = BATCH_UNIT_DTYPE if isinstance(queue, BatchConsumeQueue) else UNIT_DTYPE
        units: list[Units] = [np.zeros(0, dtype)]
        scan = LogScan(self._log.files.files, record_size_max=self._record_size_max)
        for part in scan.walk(begin, zeros_end=self._log.committed):
            if isinstance(part, record_batch.RecordBatch):
                for found, of_queue in _units_in(part, queue):
                    numbers.append(found)
                    units.append(of_queue)
                if int(part.physical_offset[-1]) >= end:
                    break
        return _Searched(queue, begin, end, np.concatenate(numbers), np.concatenate(units, dtype=dtype))

    def _unit_at(self, queue: AnyQueue, number: int, physical_offset: int) -> Units | None:
        """The unit of the record there, if it has this number."""
        file = self._log.files.find(physical_offset)
        if file is None or physical_offset >= self._log.committed:
            return None
        record = record_batch.RecordBatch.parse(
            file.view,
            base_physical_offset=file.start_offset,
            start=physical_offset - file.start_offset,
            end=file.committed,
            check_crc=True,
            record_size_max=self._record_size_max,
            count_max=1,
        )
        if len(record):
            for numbers, units in _units_in(record, queue):
                if _key(queue, number) in numbers:
                    return units[:1]
        return None


def _key(queue: AnyQueue, number: int) -> int:
    """The key that identifies the unit of this number in its queue."""
    return int(queue.units(number, 1)[0]["base_offset"]) if isinstance(queue, BatchConsumeQueue) else number


def _units_in(batch: RecordBatch, queue: AnyQueue) -> Iterator[tuple[Integers, Units]]:
    """The units of the queue for these records, and their keys (see `_key`)."""
    if isinstance(queue, BatchConsumeQueue):
        for topic, queue_id, units in record_units.batch_queue_units(batch):
            if (topic, queue_id) == (queue.topic, queue.queue_id):
                yield units["base_offset"].astype(np.int64), units
    elif queue.topic in batch.topics or len(batch.rows_with(properties.INNER_MULTI_DISPATCH)):
        for found in record_units.queue_units(batch, AS_RECORDED):
            if (found.topic, found.queue_id) == (queue.topic, queue.queue_id):
                yield found.queue_offsets, found.units
