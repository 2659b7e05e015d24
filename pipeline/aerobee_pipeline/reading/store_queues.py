"""The queues of stores on disk: their bounds, and their messages found through the units of the consume queues."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aerobee_pipeline.errors import DataLossError
from aerobee_pipeline.offsets import Bounds, Queue, Range
from aerobee_pipeline.options import Subscription
from aerobee_pipeline.passes import Rows, joined, parsed
from aerobee_pipeline.reading.decode import expanded
from aerobee_pipeline.reading.splits import store_files
from aerobee_store.errors import CorruptRecordError
from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.queues.consume_queue import FILLER_SIZE
from aerobee_store.queues.record_units import rows_by_queue
from aerobee_store.records import record
from aerobee_store.records.properties import tags_code
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.log_walk import log_scan, walk
from aerobee_store.tools.store_files import QueueFiles, StoreFiles

_log = logging.getLogger(__name__)

_UNITS_AT_ONCE: Final = 1 << 14
# A sample of a queue's units tells the size of its messages.
_SAMPLED_PLACES: Final = 32
_SAMPLED_UNITS: Final = 32
# Messages of a queue whose store times tell whether a search by time may exclude others.
_SAMPLED_TIMES: Final = 256


@dataclass(frozen=True, slots=True)
class Records:
    """Single records of a log, by physical offset."""

    broker: str
    directory: str
    physical_offsets: tuple[int, ...]


class StoreQueues:
    """The queues of one store as of the last `refresh`. Close it after use.

    `has_topic`: the selected topics; None: all.

    Queues of a store in use are written a moment after the log: a message appears here a second or two after it was
    sent.
    """

    def __init__(self, broker: str, directory: Path, has_topic: Callable[[str], bool] | None = None) -> None:
        self._broker = broker
        self._directory = directory
        self._files: StoreFiles = store_files(directory, has_topic=has_topic)
        self._ends: dict[tuple[str, int], int] = {}
        self._firsts: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._fails = True

    def refresh(self) -> None:
        """Update the list of queues and files."""
        self._files.refresh()

    def bounds(self, subscription: Subscription) -> dict[Queue, Bounds]:
        """The selected queues. A queue whose messages have all expired has an empty range."""
        found = {}
        for (topic, queue_id), files in self._files.queues.items():
            if subscription.has_topic(topic) and subscription.has_queue(topic, queue_id) and files.starts:
                end = self._ends[topic, queue_id] = files.end(self._ends.get((topic, queue_id), 0))
                found[Queue(topic, self._broker, queue_id)] = Bounds(self._first(files, end), end)
        for (topic, queue_id), files in self._files.batch_queues.items():
            if subscription.has_topic(topic) and subscription.has_queue(topic, queue_id) and files.starts:
                found[Queue(topic, self._broker, queue_id)] = self._batch_bounds(files)
        return found

    def times_rise(self, queue: Queue, bounds: Bounds) -> bool:
        """Whether the store times of a sample of a queue's messages rise."""
        files = self._files.queues.get((queue.topic, queue.queue_id))
        if files is None:
            times = self._batch_units(self._files.batch_queues[queue.topic, queue.queue_id])["store_timestamp"]
            return bool((times[1:] >= times[:-1]).all())
        sample = [
            self._store_time(int(files.read(offset, 1)[0]["physical_offset"]))
            for offset in bounds.sample(_SAMPLED_TIMES)
        ]
        return sample == sorted(sample)

    def size_of(self, item: Range) -> int:
        """About how many bytes of the log and the queue a range takes, from a sample of its units."""
        key = item.queue.topic, item.queue.queue_id
        if (files := self._files.batch_queues.get(key)) is not None:
            units = self._batch_units(files)
            inside = (units["base_offset"] < item.end) & (units["base_offset"] + units["count"] > item.start)
            return int(units["size"][inside].astype(np.int64).sum()) + int(inside.sum()) * files.dtype.itemsize
        if (files := self._files.queues.get(key)) is None or item.end <= item.start:
            return 0
        count = item.end - item.start
        step = max(count // _SAMPLED_PLACES, _SAMPLED_UNITS)
        sizes = np.concatenate(
            [
                files.read(first, min(_SAMPLED_UNITS, item.end - first))["size"].astype(np.int64)
                for first in range(item.start, item.end, step)
            ]
        )
        real = sizes[(sizes > 0) & (sizes != FILLER_SIZE)]
        return int(count * ((real.mean() if len(real) else 0) + files.dtype.itemsize))

    def lack_messages(self, is_selected: Callable[[str, int], bool]) -> bool:
        """Whether the log may have messages of the selected queues that no queue has.

        After a crash each queue may end early, until the store's next start. Otherwise queues are written in the order
        of the log, so only what follows the last unit of all queues is in question, and the log is read from there.
        """
        files = self._files
        if files.state == "crashed":
            return True
        position = files.log_begin
        for queues in (files.queues, files.batch_queues):
            for queue in queues.values():
                if queue.starts and (end := queue.end()) > queue.first:
                    unit = queue.read(end - 1, 1)[0]
                    if (size := int(unit["size"])) != FILLER_SIZE:
                        position = max(position, int(unit["physical_offset"]) + size)
        for found in walk(files, log_scan(files), position):
            if isinstance(found, DamagedRange):
                return True
            if isinstance(found, RecordBatch):
                rows = np.flatnonzero((found.sys_flag & record.SYS_FLAG_PREPARED) == 0)
                if any(is_selected(topic, queue_id) for topic, queue_id, _ in rows_by_queue(found, rows)):
                    return True
        return False

    def offset_at(self, queue: Queue, bounds: Bounds, timestamp_ms: int) -> int | None:
        """The first message stored at or after a time, by bisection; None if there is none."""
        low, high = bounds.start, bounds.end
        files = self._files.queues.get((queue.topic, queue.queue_id))
        if files is None:
            return self._batch_offset_at(queue, bounds, timestamp_ms)
        while low < high:
            middle = (low + high) // 2
            if self._store_time(int(files.read(middle, 1)[0]["physical_offset"])) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low if low < bounds.end else None

    def read(
        self, item: Range, tags: frozenset[str] | None, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[RecordBatch, Rows]]:
        """The messages of a range, in order. Tags are compared by hash here; the caller compares their text.

        DataLossError for a unit that names no record of this queue, naming topic, queue and offset; without
        `fail_on_data_loss` it is logged and left out.
        """
        self._fails = fail_on_data_loss
        key = item.queue.topic, item.queue.queue_id
        if key in self._files.batch_queues:
            yield from self._read_batches(item)
            return
        files = self._files.queues.get(key)
        if files is None:
            self._lose(item.queue, item.start, "the queue is gone; was its topic deleted?")
            return
        codes = None if tags is None else np.array([tags_code(tag) for tag in tags], np.int64)
        for first in range(item.start, item.end, _UNITS_AT_ONCE):
            units = files.read(first, min(_UNITS_AT_ONCE, item.end - first))
            offsets = np.arange(first, first + len(units))
            real = (units["size"] > 0) & (units["size"] != FILLER_SIZE)
            if not real.all():
                self._lose(item.queue, int(offsets[~real][0]), "its unit has no message")
                units, offsets = units[real], offsets[real]
            if codes is not None:
                # The tags codes of delayed messages and extended units are not hashes; there the records decide.
                hashed = units["tags_code"].astype(np.int64)
                is_hash = (hashed >= -(1 << 31)) & (hashed < 1 << 31)
                kept = ~is_hash | np.isin(hashed, codes)
                units, offsets = units[kept], offsets[kept]
            if len(units):
                for batch in self._records(item.queue, offsets, units):
                    yield batch, np.arange(len(batch))

    def close(self) -> None:
        """Close the files. Batches already read remain valid."""
        self._files.close()

    def _first(self, files: QueueFiles, end: int) -> int:
        """The first unit whose record the log still has: units of removed segments and fillers come before it."""
        low, high = files.first, end
        log_begin = self._files.log_begin
        *known_for, known = self._firsts.get(files.key, (-1, -1, 0))
        if known_for == [log_begin, low] and known <= end:
            return known
        while low < high:
            middle = (low + high) // 2
            unit = files.read(middle, 1)[0]
            if int(unit["size"]) == FILLER_SIZE or int(unit["physical_offset"]) < log_begin:
                low = middle + 1
            else:
                high = middle
        if low < end:  # otherwise later messages of the log may follow
            self._firsts[files.key] = log_begin, files.first, low
        return low

    def _segment(self, physical_offset: int) -> MappedFile | None:
        segments = self._files.segments
        number = bisect_right(segments, physical_offset, key=lambda segment: segment.start_offset)
        found = segments[number - 1] if number else None
        return found if found is not None and physical_offset < found.end_offset else None

    def _store_time(self, physical_offset: int) -> int:
        segment = self._segment(physical_offset)
        if segment is not None:
            header = record.peek(segment.view, physical_offset - segment.start_offset, check_crc=False)
            if isinstance(header, record.RecordHeader):
                return header.store_timestamp
        return 0

    def _records(self, queue: Queue, offsets: npt.NDArray[np.int64], units: npt.NDArray[Any]) -> Iterator[RecordBatch]:
        """The records of these units, checked to be those of the queue. Segment by segment, in order."""
        physical = units["physical_offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        begin = 0
        while begin < len(physical):
            segment = self._segment(int(physical[begin]))
            if segment is None:
                self._lose(queue, int(offsets[begin]), f"the log has no segment for {int(physical[begin])}")
                begin += 1
                continue
            count = _run_inside(segment, physical[begin:], sizes[begin:])
            if count == 0:
                self._lose(queue, int(offsets[begin]), "its unit refers to bytes beyond a segment")
                begin += 1
                continue
            part = slice(begin, begin + count)
            start = physical[part] - segment.start_offset
            try:
                data = joined(segment.view, start, start + sizes[part])
            except FileNotFoundError:
                self._lose(queue, int(offsets[begin]), f"{segment.path} is gone")
                begin += count
                continue
            batch = parsed(data, base_physical_offset=None)
            bad = _count_right(batch, queue, offsets[part], physical[part], sizes[part])
            if bad < count:
                detail = batch.stop.detail if bad == len(batch) else "it is a record of another queue or offset"
                place = int(physical[part][bad])
                self._lose(queue, int(offsets[part][bad]), f"its unit names {place}, where {detail}")
                if bad:
                    yield batch.slice(0, bad)
                begin += bad + 1
                continue
            yield batch
            begin += count

    # --- queues of inner batches ------------------------------------------------------------------------------

    def _batch_units(self, files: QueueFiles) -> npt.NDArray[Any]:
        units = files.read(files.first, files.end() - files.first)
        return units[units["physical_offset"] >= self._files.log_begin]

    def _batch_bounds(self, files: QueueFiles) -> Bounds:
        units = self._batch_units(files)
        if not len(units):
            return Bounds(0, 0)
        return Bounds(int(units[0]["base_offset"]), int(units[-1]["base_offset"]) + int(units[-1]["count"]))

    def _batch_offset_at(self, queue: Queue, bounds: Bounds, timestamp_ms: int) -> int | None:
        units = self._batch_units(self._files.batch_queues[queue.topic, queue.queue_id])
        later = np.flatnonzero(units["store_timestamp"] >= timestamp_ms)
        return int(units[later[0]]["base_offset"]) if len(later) else None

    def _read_batches(self, item: Range) -> Iterator[tuple[RecordBatch, Rows]]:
        units = self._batch_units(self._files.batch_queues[item.queue.topic, item.queue.queue_id])
        ends = units["base_offset"].astype(np.int64) + units["count"].astype(np.int64)
        units = units[(ends > item.start) & (units["base_offset"] < item.end)]
        for unit in units:
            place, size, base = int(unit["physical_offset"]), int(unit["size"]), int(unit["base_offset"])
            segment = self._segment(place)
            if segment is None:
                self._lose(item.queue, base, f"the log has no segment for {place}")
                continue
            start = place - segment.start_offset
            batch = parsed(segment.view[start : start + size], base_physical_offset=place, record_size_max=max(size, 1))
            if len(batch) != 1:
                self._lose(item.queue, base, f"its unit names {place}, where {batch.stop.detail}")
                continue
            try:
                for messages, rows in expanded(batch, np.arange(1)):
                    inside = (messages.queue_offset >= item.start) & (messages.queue_offset < item.end)
                    yield messages, rows[inside[rows]]
            except CorruptRecordError as error:
                self._lose(item.queue, base, str(error))

    def _lose(self, queue: Queue, offset: int, detail: str) -> None:
        lost = f"{queue}, offset {offset}: {detail} ({self._directory}). `aerobee store verify` reports details"
        if self._fails:
            raise DataLossError(
                f"{lost}; set readBy=log to read the log without its queues, or failOnDataLoss=false to skip them"
            )
        _log.warning("%s", lost)


def read_records(records: Records, *, fail_on_data_loss: bool) -> Iterator[RecordBatch]:
    """Single records of a log. A place without a valid record is damage: DataLossError, or logged."""
    files = store_files(Path(records.directory), has_topic=lambda topic: False)
    log = log_scan(files)
    try:
        for place in records.physical_offsets:
            segment = log.find(place)
            if segment is None:
                continue  # removed by retention, as its index file will be
            header = log.peek(segment, place - segment.start_offset)
            if isinstance(header, record.RecordHeader):
                start = place - segment.start_offset
                view = segment.view[start : start + header.size]
                yield parsed(view, base_physical_offset=place, record_size_max=max(header.size, 1))
                continue
            lost = f"{segment.path}: the index names a record at {place}, where {header.detail}"
            if fail_on_data_loss:
                raise DataLossError(f"{lost}; set readBy=log to read without the index, or failOnDataLoss=false")
            _log.warning("%s", lost)
    finally:
        files.close()


def _run_inside(segment: MappedFile, physical: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> int:
    """How many of the first units have records in this segment, one after another."""
    inside = (physical >= segment.start_offset) & (physical + sizes <= segment.end_offset)
    inside &= np.concatenate(([True], physical[1:] >= (physical[:-1] + sizes[:-1])))
    return int(inside.argmin()) if not inside.all() else len(inside)


def _count_right(
    batch: RecordBatch,
    queue: Queue,
    offsets: npt.NDArray[np.int64],
    physical: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> int:
    """How many of the first records are those that the units of the queue name."""
    count = min(len(batch), len(offsets))
    same = batch.physical_offset[:count] == physical[:count]
    same &= batch.size[:count] == sizes[:count]
    same &= np.array([topic == queue.topic for topic in batch.topics], np.bool_)[batch.topic_index[:count]]
    same &= batch.queue_id[:count] == queue.queue_id
    same &= batch.queue_offset[:count] == offsets[:count]
    return int(same.argmin()) if count and not same.all() else count
