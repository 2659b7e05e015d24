"""Compares queues with the log: every record needs a unit, every unit a record, and queue offsets have no gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aerobee_store.config import DELAY_SECONDS_MAX
from aerobee_store.errors import StoreError
from aerobee_store.log.log_scan import LogScan
from aerobee_store.queues.consume_queue import FILLER_SIZE, Units
from aerobee_store.queues.consume_queue_ext import ADDRESS_MAX, ConsumeQueueExt, ExtensionUnit
from aerobee_store.queues.multi_dispatch import AS_RECORDED
from aerobee_store.queues.record_units import ROCKETMQ_LEVELS, QueueUnits, queue_units, rows_by_queue
from aerobee_store.queues.topic_removal import DeletedTopics
from aerobee_store.records import properties
from aerobee_store.records.decimals import decimal
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC
from aerobee_store.records.record import SYS_FLAG_INNER_BATCH, RecordHeader, ScanStop, read
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.records.topic_names import SYSTEM_TOPIC_PREFIX
from aerobee_store.tools.checkpoint_check import load_checkpoint
from aerobee_store.tools.damage import Damage
from aerobee_store.tools.findings import Finding, Findings
from aerobee_store.tools.store_files import QueueFiles, QueueKey, StoreFiles
from aerobee_store.tools.table_check import topics_of

_CHUNK: Final = 1 << 16  # units read at once


@dataclass(slots=True)
class _Missing:
    """Consecutive records without a unit."""

    first: int
    count: int
    physical_offset: int
    filler: bool


@dataclass(slots=True)
class _Queue:
    """The state of one queue's check."""

    files: QueueFiles | None
    next_offset: int = -1
    record_end: int = 0
    real_from: int = -1
    """The first queue offset that has a unit."""
    covered: list[list[int]] = field(default_factory=list)
    """Ranges [first, last) of units that belong to records."""
    missing: list[_Missing] = field(default_factory=list)


class QueueCheck:
    """Takes the log batch by batch, then `finish`."""

    def __init__(self, files: StoreFiles, log: LogScan, damage: Damage, findings: Findings) -> None:
        self._files = files
        self._log = log
        self._damage = damage
        self._findings = findings
        self._queues: dict[QueueKey, _Queue] = {}
        self._topics = topics_of(files)
        self._deleted = DeletedTopics(files.disk, files.directory)
        try:
            self._deleted.load()
        except StoreError as error:
            findings.add(Finding(kind="configuration-file", path="config/deletedTopics.json", detail=str(error)))
        self._extensions: dict[QueueKey, ConsumeQueueExt | None] = {}
        self._batch_topics = {topic for topic, _ in files.batch_queues}
        # In a live store, units of records before this place existed at the start.
        self._dispatched = _dispatched(files) if files.live else 1 << 63
        self.units = 0
        self.records_of_deleted_topics = 0

    def take(self, batch: RecordBatch) -> None:
        """Compare records with their units."""
        for found in queue_units(batch, AS_RECORDED):
            if found.topic in self._batch_topics:
                continue  # without an inner batch, a record of such a topic has no unit
            deleted = self._records_before_deletion(found)
            self.records_of_deleted_topics += deleted
            if deleted == len(found.units):
                continue
            key = found.topic, found.queue_id
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue(self._files.queues.get(key))
            # Runs of consecutive queue offsets; only one, unless records are damaged or missing.
            breaks = deleted + 1 + np.flatnonzero(np.diff(found.queue_offsets[deleted:]) != 1)
            for first, last in pairwise([deleted, *breaks.tolist(), len(found.units)]):
                self._take_run(key, queue, int(found.queue_offsets[first]), found.units[first:last])

    def _records_before_deletion(self, found: QueueUnits) -> int:
        """How many of these records, from the first, are ignored because their topic was deleted."""
        end = self._deleted.end_of(found.topic)
        return int(np.searchsorted(found.units["physical_offset"], end)) if end else 0

    def finish(self, log_end: int) -> None:
        """Check the remaining units, and report missing ones."""
        for extension in self._extensions.values():
            if extension is not None:
                extension.close()
        for key, queue in self._queues.items():
            for missing in queue.missing:
                self._report_missing(key, queue, missing)
        for key, files in self._files.queues.items():
            known = self._queues.get(key)
            self._check_others(key, files, _merged(known) if known is not None else [], log_end)

    def _take_run(self, key: QueueKey, queue: _Queue, offset: int, units: Units) -> None:
        count = len(units)
        begin = int(units[0]["physical_offset"])
        if queue.next_offset >= 0 and offset != queue.next_offset:
            self._report_jump(key, queue, offset, begin)
        queue.next_offset = offset + count
        queue.record_end = int(units[-1]["physical_offset"]) + int(units[-1]["size"])
        if queue.files is None:
            _add_missing(queue, offset, count, begin, filler=False)
            return
        there = queue.files.read(offset, count)
        same = there == units
        if not same.all():
            if key[0] == SCHEDULE_TOPIC:
                same |= _differ_in_level(there, units)
            extension = self._extension(key)
            if extension is not None:
                extended = (
                    (there["physical_offset"] == units["physical_offset"])
                    & (there["size"] == units["size"])
                    & (there["tags_code"] <= ADDRESS_MAX)
                )
                same |= extended
                rows = np.flatnonzero(extended)
                addresses, codes = there["tags_code"][rows].tolist(), units["tags_code"][rows].tolist()
                places = zip(addresses, there["physical_offset"][rows].tolist(), strict=True)
                bitmaps = extension.bitmaps(places)
                for row, address, code, bitmap in zip(rows.tolist(), addresses, codes, bitmaps, strict=True):
                    found = extension.get(address)
                    self._check_extended(key, offset + row, found, address, code)
                    if found is not None and found.has_checksum and not bitmap:
                        self._report_bitmap(key, offset + row, address)
            for row in np.flatnonzero(~same).tolist():
                self._take_other(key, queue, offset + row, units[row], there[row])
        self.units += int(np.count_nonzero(same))
        if queue.real_from < 0 and same.any():
            queue.real_from = offset + int(same.argmax())
        if queue.covered and queue.covered[-1][1] == offset:
            queue.covered[-1][1] = offset + count
        else:
            queue.covered.append([offset, offset + count])

    def _take_other(self, key: QueueKey, queue: _Queue, offset: int, wanted: Any, found: Any) -> None:
        """A record with a wrong unit."""
        physical_offset = int(wanted["physical_offset"])
        filler = bool(found["size"] == FILLER_SIZE)
        if filler or (found["size"] == 0 and found["physical_offset"] == 0):
            _add_missing(queue, offset, 1, physical_offset, filler=filler)
            return
        named = int(found["physical_offset"])
        if named > physical_offset:
            header = self._header_at(named)
            if header is not None and (header.topic, header.queue_id, header.queue_offset) == (*key, offset):
                return  # this record belongs to an earlier topic of the same name; `queue-offset-repeated` reports it
        if self._files.live and physical_offset >= self._dispatched:
            return
        self._findings.add(
            Finding(
                kind="unit-wrong",
                detail=f"the unit is {_text(found)}, the message has {_text(wanted)}",
                path=self._queue_path(key),
                physical_offset=physical_offset,
                topic=key[0],
                queue_id=key[1],
                queue_offset=offset,
            )
        )

    def _check_extended(self, key: QueueKey, offset: int, found: ExtensionUnit | None, address: int, code: int) -> None:
        if found is not None and found.tags_code == code:
            return
        self._findings.add(
            Finding(
                kind="unit-extension",
                severity="warning" if found is None else "error",
                detail=f"the unit has its tags code at address {address}: "
                + ("nothing is there" if found is None else f"it is {found.tags_code}, the message has {code}"),
                path=self._queue_path(key),
                topic=key[0],
                queue_id=key[1],
                queue_offset=offset,
            )
        )

    def _report_bitmap(self, key: QueueKey, offset: int, address: int) -> None:
        self._findings.add(
            Finding(
                kind="unit-extension",
                severity="warning",
                detail=f"the filter bitmap at address {address} does not match its checksum, and is not used",
                path=self._queue_path(key),
                topic=key[0],
                queue_id=key[1],
                queue_offset=offset,
            )
        )

    def _extension(self, key: QueueKey) -> ConsumeQueueExt | None:
        """The extended units of a queue; None if there are none, or their files have invalid names or sizes."""
        if key not in self._extensions:
            disk = self._files.disk
            directory = self._files.directory / "consumequeue_ext" / key[0] / str(key[1])
            sizes = {disk.size(directory / name) for name in disk.list(directory)}
            extension = None
            if len(sizes) == 1 and 0 not in sizes:
                extension = ConsumeQueueExt(disk, directory, sizes.pop(), is_fed=False)
                try:
                    extension.load()
                except StoreError:
                    extension = None
            self._extensions[key] = extension
        return self._extensions[key]

    def _report_jump(self, key: QueueKey, queue: _Queue, offset: int, physical_offset: int) -> None:
        expected = queue.next_offset
        if offset < expected:
            self._findings.add(
                Finding(
                    kind="queue-offset-repeated",
                    severity="warning",
                    detail=f"the queue continues at offset {offset} after {expected - 1}",
                    physical_offset=physical_offset,
                    topic=key[0],
                    queue_id=key[1],
                    queue_offset=offset,
                )
            )
        elif not self._damage.within(queue.record_end, physical_offset):
            self._findings.add(
                Finding(
                    kind="queue-offset-gap",
                    detail=f"the log has no message for the queue offsets {expected}..{offset - 1}",
                    physical_offset=physical_offset,
                    topic=key[0],
                    queue_id=key[1],
                    queue_offset=expected,
                    count=offset - expected,
                )
            )

    def _report_missing(self, key: QueueKey, queue: _Queue, missing: _Missing) -> None:
        topic, queue_id = key
        if self._files.live and self._has_come(key, queue, missing):
            return
        older = queue.files is not None and missing.first < queue.real_from
        gone = queue.files is not None and missing.first < queue.files.first == queue.real_from
        if queue.files is None:
            deleted = (
                self._topics is not None and topic not in self._topics and not topic.startswith(SYSTEM_TOPIC_PREFIX)
            )
            if deleted:
                self.records_of_deleted_topics += missing.count
                return
            detail = "there is no such queue"
        elif gone:
            detail = "the first file of the queue begins later and without fillers: the previous file is missing"
        elif older:
            detail = "the queue begins later"
        else:
            detail = "there is a filler instead" if missing.filler else "there are zeros instead"
        last = missing.first + missing.count - 1
        who = f"messages {missing.first}..{last} have" if missing.count > 1 else f"message {last} has"
        self._findings.add(
            Finding(
                kind="unit-missing",
                severity="warning" if older and not gone else "error",
                detail=f"{who} no unit: {detail}",
                path=self._queue_path(key),
                physical_offset=missing.physical_offset,
                topic=topic,
                queue_id=queue_id,
                queue_offset=missing.first,
                count=missing.count,
            )
        )

    def _has_come(self, key: QueueKey, queue: _Queue, missing: _Missing) -> bool:
        if missing.physical_offset >= self._dispatched:
            return True
        if queue.files is None:
            return (self._files.directory / "consumequeue" / key[0] / str(key[1])).exists()
        return bool((queue.files.read(missing.first, missing.count)["size"] > 0).all())

    def _check_others(self, key: QueueKey, files: QueueFiles, covered: list[list[int]], log_end: int) -> None:
        runs: dict[str, list[tuple[int, str]]] = {"unit-ahead": [], "unit-stray": [], "unit-invalid": []}
        for first, last in _gaps(files, covered):
            for begin in range(first, last, _CHUNK):
                units = files.read(begin, min(_CHUNK, last - begin))
                self._check_chunk(key, begin, units, log_end, runs)
        for kind, found in runs.items():
            self._report_runs(kind, key, found)

    def _check_chunk(
        self, key: QueueKey, begin: int, units: Units, log_end: int, runs: dict[str, list[tuple[int, str]]]
    ) -> None:
        place, size = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        begin_of_log = max(self._files.log_begin, self._deleted.end_of(key[0]))
        used = (place != 0) | (size != 0) | (units["tags_code"] != 0)
        invalid = used & ((size <= 0) | (place < 0))
        real = used & ~invalid & (size != FILLER_SIZE) & (place >= begin_of_log)
        ahead = real & (place > log_end - size)
        for row in np.flatnonzero(invalid).tolist():
            runs["unit-invalid"].append((begin + row, _text(units[row])))
        if not self._files.live:
            for row in np.flatnonzero(ahead).tolist():
                runs["unit-ahead"].append((begin + row, f"{_text(units[row])}; the log ends at {log_end}"))
        for row in np.flatnonzero(real & ~ahead).tolist():
            named = int(place[row])
            if self._damage.within(named, named + 1):
                self._damage.note_lost(named, key, begin + row)
            elif not self._is_dispatched_to(named, int(size[row]), key[0]):
                runs["unit-stray"].append((begin + row, _text(units[row])))

    def _is_dispatched_to(self, physical_offset: int, size: int, topic: str) -> bool:
        """Whether this record belongs to this topic as well, like a light queue's records."""
        header = self._header_at(physical_offset)
        if header is None or header.size != size:
            return False
        segment = self._log.find(physical_offset)
        assert segment is not None
        names = read(segment.view, header).properties.get(properties.INNER_MULTI_DISPATCH, "")
        return topic in names.split(",")

    def _header_at(self, physical_offset: int) -> RecordHeader | None:
        segment = self._log.find(physical_offset)
        if segment is None:
            return None
        header = self._log.peek(segment, physical_offset - segment.start_offset)
        return None if isinstance(header, ScanStop) else header

    def _report_runs(self, kind: str, key: QueueKey, found: list[tuple[int, str]]) -> None:
        first = 0
        for last in range(1, len(found) + 1):
            if last < len(found) and found[last][0] == found[last - 1][0] + 1:
                continue
            offset, detail = found[first]
            self._findings.add(
                Finding(
                    kind=kind,
                    detail=detail if last == first + 1 else f"the first of {last - first}: {detail}",
                    path=self._queue_path(key),
                    topic=key[0],
                    queue_id=key[1],
                    queue_offset=offset,
                    count=last - first,
                )
            )
            first = last

    def _queue_path(self, key: QueueKey) -> str:
        return f"consumequeue/{key[0]}/{key[1]}"


@dataclass(slots=True)
class _BatchQueue:
    """The state of one batch consume queue's check."""

    units: Iterator[tuple[int, Any]]
    current: tuple[int, Any] | None = None
    next_offset: int = -1
    record_end: int = 0


class BatchQueueCheck:
    """Compares batch consume queues with the log: units and inner batches are in the same order."""

    def __init__(self, files: StoreFiles, damage: Damage, findings: Findings) -> None:
        self._files = files
        self._damage = damage
        self._findings = findings
        self._topics = {topic for topic, _ in files.batch_queues}
        self._queues: dict[QueueKey, _BatchQueue] = {}
        for key, queue in files.batch_queues.items():
            units = _batch_units(queue, files.log_begin)
            self._queues[key] = _BatchQueue(units, next(units, None))
        self.units = 0

    def take(self, batch: RecordBatch) -> None:
        """Compare inner batches with their units."""
        inner = (batch.sys_flag & SYS_FLAG_INNER_BATCH) != 0
        if not self._topics and not inner.any():
            return
        of_topic = np.array([topic in self._topics for topic in batch.topics], bool)[batch.topic_index]
        rows = np.flatnonzero(inner | of_topic)
        if not len(rows):
            return
        tags = batch.tags_codes()
        for topic, queue_id, of_queue in rows_by_queue(batch, rows):
            for row in of_queue.tolist():
                own = batch.record(row).properties
                count, base = decimal(own.get(properties.INNER_NUM)), decimal(own.get(properties.INNER_BASE))
                if count is None or base is None:
                    continue  # no unit, as in RocketMQ
                record = (
                    int(batch.physical_offset[row]),
                    int(batch.size[row]),
                    int(tags[row]),
                    int(batch.store_timestamp[row]),
                    base,
                    count,
                )
                self._take_record((topic, queue_id), record)

    def finish(self, log_end: int) -> None:
        """Check the remaining units."""
        for key, queue in self._queues.items():
            while queue.current is not None:
                number, unit = queue.current
                ahead = int(unit["physical_offset"]) + int(unit["size"]) > log_end
                if not (ahead and self._files.live):
                    self._report_other(key, number, unit, "unit-ahead" if ahead else "unit-stray")
                queue.current = next(queue.units, None)

    def _take_record(self, key: QueueKey, record: tuple[int, int, int, int, int, int]) -> None:
        physical_offset, size, _, _, base, count = record
        queue = self._queues.setdefault(key, _BatchQueue(iter(())))
        gap = 0 <= queue.next_offset < base
        if gap and not self._damage.within(queue.record_end, physical_offset):
            self._report(
                "queue-offset-gap",
                key,
                f"the log has no message for the queue offsets {queue.next_offset}..{base - 1}",
                physical_offset=physical_offset,
                queue_offset=queue.next_offset,
            )
        queue.next_offset = base + count
        queue.record_end = physical_offset + size
        while queue.current is not None and int(queue.current[1]["physical_offset"]) < physical_offset:
            self._report_other(key, *queue.current, "unit-stray")
            queue.current = next(queue.units, None)
        if queue.current is None or int(queue.current[1]["physical_offset"]) > physical_offset:
            if not self._files.live:
                self._report(
                    "unit-missing",
                    key,
                    f"the batch of messages {base}..{base + count - 1} has no unit",
                    physical_offset=physical_offset,
                    queue_offset=base,
                )
            return
        number, unit = queue.current
        queue.current = next(queue.units, None)
        found = tuple(unit.tolist())[: len(record)]
        if found == record:
            self.units += 1
            return
        self._report(
            "unit-wrong",
            key,
            f"unit {number} is {found}, the batch has {record} (place, size, tags code, store time, base, count)",
            physical_offset=physical_offset,
            queue_offset=base,
        )

    def _report_other(self, key: QueueKey, number: int, unit: Any, kind: str) -> None:
        place = int(unit["physical_offset"])
        if self._damage.within(place, place + 1):
            self._damage.note_lost(place, key, int(unit["base_offset"]))
            return
        self._report(kind, key, f"unit {number} is {_text(unit)}", queue_offset=int(unit["base_offset"]))

    def _report(
        self, kind: str, key: QueueKey, detail: str, *, queue_offset: int, physical_offset: int | None = None
    ) -> None:
        self._findings.add(
            Finding(
                kind=kind,
                detail=detail,
                path=f"batchconsumequeue/{key[0]}/{key[1]}",
                physical_offset=physical_offset,
                topic=key[0],
                queue_id=key[1],
                queue_offset=queue_offset,
            )
        )


def _batch_units(queue: QueueFiles, log_begin: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The valid units of records in the log, with their numbers."""
    for first in range(queue.first, queue.allocated_end, _CHUNK):
        units = queue.read(first, min(_CHUNK, queue.allocated_end - first))
        for number, unit in enumerate(units, first):
            if unit["size"] <= 0 or unit["physical_offset"] < 0:
                return
            if unit["size"] != FILLER_SIZE and unit["physical_offset"] >= log_begin:
                yield number, unit


def _text(unit: Any) -> str:
    return f"({int(unit['physical_offset'])}, {int(unit['size'])}, {int(unit['tags_code'])})"


def _differ_in_level(there: Units, units: Units) -> npt.NDArray[np.bool_]:
    """Which units have the delivery time of other delay levels, which the store's files do not record."""
    codes = there["tags_code"]
    stored = units["tags_code"] - ROCKETMQ_LEVELS.delay_ms(ROCKETMQ_LEVELS.count)  # or later
    found: npt.NDArray[np.bool_] = (
        (there["physical_offset"] == units["physical_offset"])
        & (there["size"] == units["size"])
        & (codes > stored)
        & (codes <= units["tags_code"] + DELAY_SECONDS_MAX * 1000)
    )
    return found


def _add_missing(queue: _Queue, offset: int, count: int, physical_offset: int, *, filler: bool) -> None:
    last = queue.missing[-1] if queue.missing else None
    if last is not None and last.first + last.count == offset and last.filler == filler:
        last.count += count
    else:
        queue.missing.append(_Missing(offset, count, physical_offset, filler))


def _merged(queue: _Queue) -> list[list[int]]:
    """The covered ranges in order, merged where they touch."""
    merged: list[list[int]] = []
    for first, last in sorted(queue.covered):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged


def _gaps(files: QueueFiles, covered: list[list[int]]) -> Iterator[tuple[int, int]]:
    """The parts of the files outside of the covered ranges that may contain data."""
    for first, last in files.data_ends():
        position = first
        for begin, end in covered:
            if end <= position:
                continue
            if begin >= last:
                break
            if begin > position:
                yield position, begin
            position = end
        if position < last:
            yield position, last


def _dispatched(files: StoreFiles) -> int:
    """The physical offset up to which all queues of a live store are complete in their files.

    It is in the checkpoint, because later units may wait in memory. RocketMQ has no such offset, and writes units in
    log order: there it is the end of the last record known to any queue.
    """
    if (derived := load_checkpoint(files).derived_offset) is not None:
        return derived
    end = 0
    for queue in files.queues.values():
        number = queue.end()
        if number > queue.first:
            unit = queue.read(number - 1, 1)[0]
            if unit["size"] != FILLER_SIZE:
                end = max(end, int(unit["physical_offset"]) + int(unit["size"]))
    return end
