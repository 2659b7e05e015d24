"""Recovery: opens a store after a clean or an unclean stop.

The log is the source of truth; queues and index are compared with it and completed from it.

    1. where to begin reading the log        one of situations.Beginning
    2. how to handle each finding            any of situations.Found

`RecoveryReport.situations` names those that occurred.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from aerobee_store.clock import Clock
from aerobee_store.config import StoreConfig
from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import FileSystem
from aerobee_store.disk.store_directory import mark_in_use
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.durability.log_cut import DIVERGED
from aerobee_store.durability.queue_bounds import KnownBounds
from aerobee_store.durability.situations import Beginning, Found, Situation
from aerobee_store.log.commit_log import CommitLog, DamagedRange
from aerobee_store.log.log_scan import LogEnd, LogScan
from aerobee_store.log.mapped_file import MappedFile, file_name
from aerobee_store.queues.batch_consume_queue import AnyQueue, BatchConsumeQueue, BatchUnits
from aerobee_store.queues.consume_queue import FILLER_SIZE, FILLER_UNIT, ConsumeQueue
from aerobee_store.queues.index_file import IndexService
from aerobee_store.queues.multi_dispatch import MultiDispatch
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.topic_removal import DeletedTopics
from aerobee_store.records.delay_levels import DelayLevels
from aerobee_store.records.record import ScanStop, StopReason

if TYPE_CHECKING:
    import numpy as np

    from aerobee_store.queues import record_units
    from aerobee_store.records import record_batch
    from aerobee_store.records.record_batch import RecordBatch
else:
    np = deferred("numpy")
    record_batch = deferred("aerobee_store.records.record_batch")
    record_units = deferred("aerobee_store.queues.record_units")


_log = logging.getLogger(__name__)

_SEARCH_STEP = 1 << 20

TORN_TAIL = "torn-tail-"
"""Prefix of the names of files in `quarantine` that hold a torn tail; the physical offset follows."""


class RecoveryReport(Struct):
    """What opening found and did. Sizes in bytes; `begin` and `end` are physical offsets.

    `torn`: the log ends in bytes that are not a record. `lost`: bytes after its end that the checkpoint calls synced.
    `torn_tail`: bytes after its end, with valid records among them, that are quarantined: they were not synced, or are
    not in the master's log.
    """

    clean: bool
    begin: int = 0
    end: int = 0
    records: int = 0
    units_added: int = 0
    units_corrected: int = 0
    units_dropped: int = 0
    queues_made_again: int = 0
    last_timestamp: int = 0
    torn: bool = False
    lost: int = 0
    torn_tail: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    quarantined: list[Path] = field(default_factory=list)
    situations: set[Situation] = field(default_factory=set)


class _LastUnit(NamedTuple):
    """The place and size in the last unit of the queues, and the start of the record of the unit before it."""

    end: int
    begin: int
    before: int


class RecoveryParts(Struct, frozen=True, kw_only=True):
    """The files of a store, loaded."""

    file_system: FileSystem
    config: StoreConfig
    clock: Clock
    log: CommitLog
    queues: QueueTable
    index: IndexService
    checkpoint: Checkpoint
    deleted: DeletedTopics
    bounds: KnownBounds | None


class Recovery:
    """One recovery of a store that nothing writes to yet."""

    def __init__(
        self,
        parts: RecoveryParts,
        *,
        clean: bool,
        writes_may_be_lost: bool,
        record_size_max: int,
        whole_log: bool,
        cut: int | None = None,
    ) -> None:
        log = parts.log
        self._file_system = parts.file_system
        self._log = log
        self._queues = parts.queues
        self._index = parts.index
        self._indexes = parts.config.index
        self._checkpoint = parts.checkpoint
        self._deleted = parts.deleted
        self._clock = parts.clock
        self._directory = parts.config.directory
        self._bounds = parts.bounds
        self._multi_dispatch = MultiDispatch(parts.config.light_queues, parts.config.multi_dispatch)
        self._levels = DelayLevels(parts.config.delay_levels_seconds)
        self._clean = clean
        self._writes_may_be_lost = writes_may_be_lost
        self._whole_log = whole_log
        self._cut = cut
        self._tail_name = TORN_TAIL
        self._walker = LogScan(log.files.files, record_size_max=record_size_max)
        self._report = RecoveryReport(clean=clean)
        self._last_record = 0
        # queues that lack units of records before the read part -> whether they were made again
        self._incomplete: dict[AnyQueue, bool] = {}
        self._ends: dict[AnyQueue, int] = {}  # the known end of a queue that was made again
        self._keeps_tail = False  # the bytes after the end contain records and are quarantined

    def run(self) -> RecoveryReport:
        """Bring log, queues and index to one state. Blocking; OSError passes through."""
        report = self._report
        report.begin = self._begin()
        report.end = self._scan(report.begin)
        report.damaged.sort(key=lambda damage: damage.start)
        if self._cut is not None:
            self._cut_at(self._cut)
        elif report.end < (synced := self._checkpoint.derived_offset or 0):
            report.lost = synced - report.end
            _log.error("log ends before the last sync, records are lost end=%d synced=%d", report.end, synced)
        self._cut_log(report.end)
        while (begin := min(self._cut_queues(report.end), self._remove_incomplete(report.end))) < report.end:
            # The dropped units were damaged and do not prove lost records: read the records of these queues again.
            report.begin, report.records = min(begin, report.begin), 0
            report.damaged.clear()
            self._scan(report.begin)
            report.damaged.sort(key=lambda damage: damage.start)
        self._index.truncate(report.end)
        self._restore_ends()
        for queue in self._all_queues():
            # The queues of a topic remain if its deletion was recorded and then interrupted.
            queue.correct_min_offset(max(self._log.min_offset, self._deleted.end_of(queue.topic)))
            queue.next_offset = queue.max_offset
        self._log.set_end(report.end)
        self._log.damaged = report.damaged
        checkpoint = self._checkpoint
        if report.records and (not report.clean or checkpoint.confirm_offset >= report.end):
            checkpoint.confirm_offset = self._last_record
        checkpoint.confirm_offset = min(checkpoint.confirm_offset, report.end)
        return report

    def _cut_at(self, cut: int) -> None:
        """End the log at the offset where another broker's log continues; move the bytes after it to quarantine, and
        discard what was read from them."""
        report = self._report
        self._keeps_tail, self._tail_name = True, DIVERGED
        self._meet(Found.CUT_ORDERED)
        report.end = min(report.end, cut)
        report.damaged = [damage for damage in report.damaged if damage.start < cut]
        self._last_record = 0

    def _all_queues(self) -> list[AnyQueue]:
        return self._queues.all()

    # --- where to begin ---------------------------------------------------------------------------------------

    def _begin(self) -> int:
        if not self._log.files.files:
            return 0
        for batch_queue in self._queues.batch.values():
            self._check_ends(batch_queue)
        begin = self._begin_by_stop()
        for queue in self._all_queues():
            if queue.torn:
                self._meet(Found.TORN_QUEUE)
                _log.warning("queue is damaged after offset=%d directory=%s", queue.max_offset, queue.directory)
                begin = min(begin, self._segment_start(queue.last_record_end()))
        if self._cut is not None:
            begin = min(begin, self._segment_start(self._cut))
        if with_holes := [queue for queue in self._all_queues() if queue.lacks_files]:
            begin = self._remove_queues(with_holes)
        return self._log.min_offset if self._whole_log else begin

    def _check_ends(self, queue: BatchConsumeQueue) -> None:
        """Compare the first and the last unit with their records: only they tell which offsets the queue has."""
        for last in (True, False):
            first, end = queue.unit_numbers
            if first == end:
                return
            number = end - 1 if last else first
            units = queue.units(number, 1)
            if int(units[0]["physical_offset"]) >= self._log.min_offset and not self._is_unit(queue, units):
                _log.warning("queue unit is wrong unit=%d directory=%s", number, queue.directory)
                queue.cut(number)

    def _is_unit(self, queue: BatchConsumeQueue, units: BatchUnits) -> bool:
        """Whether a record of the log has exactly this unit."""
        physical_offset = int(units[0]["physical_offset"])
        file = self._walker.find(physical_offset)
        if file is None:
            return False
        batch = record_batch.RecordBatch.parse(
            file.view,
            base_physical_offset=file.start_offset,
            start=physical_offset - file.start_offset,
            count_max=1,
        )
        for topic, queue_id, expected in record_units.batch_queue_units(batch):
            if (topic, queue_id) == (queue.topic, queue.queue_id):
                return bool((expected == units).all())
        return False

    def _meet(self, situation: Situation) -> None:
        self._report.situations.add(situation)

    def _beginning(self, last: _LastUnit) -> Beginning:
        """Which row of the table the store is in."""
        if self._clean and self._is_right(last):
            if not self._indexes:
                return Beginning.CLEAN
            if not self._index.files:
                return Beginning.CLEAN_WITHOUT_INDEX
            if self._checkpoint.index_timestamp < self._checkpoint.logics_timestamp:
                return Beginning.CLEAN_INDEX_BEHIND
            return Beginning.CLEAN
        if self._clean:
            self._meet(Beginning.CLEAN_QUEUES_AHEAD)
            _log.warning(
                "last queue unit matches no record, recovering as after a crash offset=%d end=%d",
                last.begin,
                last.end,
            )
        if self._checkpoint.derived_offset is not None:
            return Beginning.CRASH if self._index.files or not self._indexes else Beginning.CRASH_WITHOUT_INDEX
        return Beginning.CRASH_ROCKETMQ if self._checkpoint.min_timestamp > 0 else Beginning.CRASH_UNKNOWN

    def _begin_by_stop(self) -> int:
        last = self._last_unit()
        beginning = self._beginning(last)
        self._meet(beginning)
        match beginning:
            case Beginning.CLEAN:
                return max(last.end, self._log.min_offset)
            case Beginning.CLEAN_INDEX_BEHIND:
                return max(min(last.end, self._index.last_offset), self._log.min_offset)
            case Beginning.CRASH:
                derived = self._checkpoint.derived_offset or 0
                if not self._indexes:
                    return self._segment_start(min(derived, last.end))
                complete = self._index.complete_before(derived)
                if complete < derived:
                    # Truncating removes what shows that entries are missing, and this process may be killed, too.
                    self._checkpoint.save_lower(complete)
                self._index.truncate_unsynced(complete)
                if not self._index.files:
                    return self._log.min_offset
                return self._segment_start(min(derived, last.end, complete))
            case Beginning.CRASH_ROCKETMQ | Beginning.CRASH_UNKNOWN:
                synced = self._synced_index_end() if self._indexes else last.end
                begin = min(self._begin_by_checkpoint(), self._segment_start(last.end), self._segment_start(synced))
                # Later index entries may be missing or incomplete; they are added again from the log.
                if not self._indexes:
                    return begin
                complete = self._index.complete_before(max(begin, synced))
                self._index.truncate_unsynced(complete)
                return min(begin, self._segment_start(complete))
            case _:
                return self._log.min_offset

    def _begin_by_checkpoint(self) -> int:
        known = self._checkpoint.min_timestamp
        for file in reversed(self._log.files.files):
            header = self._walker.peek(file, 0)
            if not isinstance(header, ScanStop) and 0 < header.store_timestamp <= known:
                return file.start_offset
        return self._log.min_offset

    def _last_unit(self) -> _LastUnit:
        """Of all queues, the unit whose record ends last."""
        found = _LastUnit(0, 0, 0)
        for queue in self._queues.simple.values():
            end = queue.last_record_end()
            if end > found.end:
                first = max(queue.min_offset, queue.max_offset - 2)
                units = queue.units(first, queue.max_offset - first)
                begin = int(units[-1]["physical_offset"]) if int(units[-1]["size"]) != FILLER_SIZE else end
                before = int(units[0]["physical_offset"]) if len(units) == 2 else begin
                found = _LastUnit(end, begin, before)
        for batch_queue in self._queues.batch.values():
            place, size = batch_queue.last_unit()
            if place + size > found.end:
                found = _LastUnit(place + size, place, place)
        return found

    def _synced_index_end(self) -> int:
        """A physical offset before which the index is known to be synced; 0 if unknown."""
        known = self._checkpoint.index_timestamp
        end = 0
        for file in self._index.files:
            if file.is_empty or file.end_timestamp >= known:  # one millisecond may have more records than were synced
                # Entries are dated to the second; those certainly older than the checkpoint's time are synced.
                return max(end, file.synced_before(known))
            end = file.end_offset
        return end

    def _segment_start(self, physical_offset: int) -> int:
        file = self._log.files.find(physical_offset)
        if file is not None:
            return file.start_offset
        last = self._log.files.last
        if last is not None and physical_offset >= last.end_offset:
            return last.start_offset
        return self._log.min_offset

    # --- reading the log --------------------------------------------------------------------------------------

    def _scan(self, begin: int) -> int:
        """Read the log from `begin`; return its end."""
        zeros_end = (self._checkpoint.derived_offset or 0) if self._clean else None
        position = begin
        for found in self._walker.walk(begin, zeros_end=zeros_end):
            if isinstance(found, DamagedRange):
                position = found.end
                if self._is_torn_tail(found):
                    self._meet(Found.TORN_TAIL)
                    self._report.torn = True
                    self._keeps_tail = True
                    return found.start
                _log.error(
                    "log is damaged, later records are kept from=%d to=%d reason=%r",
                    found.start,
                    found.end,
                    found.reason,
                )
                self._report.damaged.append(found)
                self._meet(Found.DAMAGE)
            elif isinstance(found, LogEnd):
                torn = found.stop is not None and found.stop.reason is not StopReason.END_OF_DATA
                self._meet(Found.TORN_WRITE if torn else Found.END)
                if found.stop is not None and torn:
                    _log.warning("log ends in a torn write offset=%d reason=%r", found.position, found.stop.detail)
                    self._report.torn = True
                return found.position
            else:
                first = int(found.physical_offset[0])
                if first > position:  # and no damage is between
                    self._meet(Found.BLANK)
                position = int(found.physical_offset[-1]) + int(found.size[-1])
                self._take(found)
        raise AssertionError("a walk ends with the end of the log")

    def _is_torn_tail(self, damaged: DamagedRange) -> bool:
        synced = self._checkpoint.derived_offset
        return self._writes_may_be_lost and synced is not None and damaged.start >= synced

    def _is_right(self, last: _LastUnit) -> bool:
        """Whether the unit has the place and size of a record, or of damage that an earlier start reported."""
        if not last.end:
            return True
        record_end = self._record_end(last.begin)
        if record_end is None:
            return self._is_damaged(last)
        return record_end == last.end or last.begin == last.end  # the place after filler units belongs to no unit

    def _record_end(self, physical_offset: int) -> int | None:
        """The end of the valid record at this place; None if there is none."""
        file = self._log.files.find(physical_offset)
        header = None if file is None else self._walker.peek(file, physical_offset - file.start_offset)
        return None if header is None or isinstance(header, ScanStop) else physical_offset + header.size

    def _is_damaged(self, last: _LastUnit) -> bool:
        """Whether the log continues after invalid bytes: an earlier start then reported them and kept its units.

        Reads from the record of the unit before, because a wrong place within a valid record looks like damage.
        """
        if last.before > last.begin:
            return False  # the units of a queue ascend
        begin = last.before if self._record_end(last.before) is not None else self._segment_start(last.begin)
        for found in self._walker.walk(begin, zeros_end=None):
            if isinstance(found, DamagedRange):
                if found.end > last.begin:
                    return found.start <= last.begin
            elif isinstance(found, LogEnd) or int(found.physical_offset[-1]) >= last.begin:
                return False
        raise AssertionError("a walk ends with the end of the log")

    # --- completing queues and index --------------------------------------------------------------------------

    def _take(self, batch: RecordBatch) -> None:
        self._meet(Found.RECORD)
        self._report.records += len(batch)
        self._report.last_timestamp = int(batch.store_timestamp[-1])
        self._last_record = int(batch.physical_offset[-1])
        self._take_units(batch)
        if not self._indexes:
            return
        rows, hashes = batch.index_hashes()
        offsets = batch.physical_offset[rows]
        new = offsets > self._index.last_offset
        if new.any():
            self._index.put(hashes[new], offsets[new], batch.store_timestamp[rows[new]], self._clock.now_ms())

    def _take_units(self, batch: RecordBatch) -> None:
        for found in record_units.queue_units(batch, self._multi_dispatch, self._levels):
            counts = found.units["physical_offset"] >= self._deleted.end_of(found.topic)
            if not counts.all():
                self._meet(Found.DELETED_TOPIC)
            if found.topic not in batch.topics:
                self._meet(Found.OTHER_QUEUES)
            if counts.any():
                queue = self._queues.simple_queue_unless_batch(found.topic, found.queue_id)
                if queue is None:
                    self._meet(Found.NO_INNER_BATCH)
                else:
                    stored = batch.store_timestamp[found.rows[counts]] if queue.extends else None
                    self._take_queue(queue, found.queue_offsets[counts], found.units[counts], stored)
        for topic, queue_id, units in record_units.batch_queue_units(batch):
            units = units[units["physical_offset"] >= self._deleted.end_of(topic)]
            if len(units) and (batch_queue := self._queues.batch_queue_unless_simple(topic, queue_id)) is not None:
                if int(units[0]["base_offset"]) > batch_queue.max_offset:
                    self._note_gap(batch_queue)
                added, dropped = batch_queue.complete(units, unsynced=not self._clean)
                self._report.units_added += added
                self._report.units_dropped += dropped
                if dropped:
                    self._meet(Found.WRONG_BATCH_UNITS)

    def _take_queue(
        self,
        queue: ConsumeQueue,
        queue_offsets: np.ndarray[tuple[int], np.dtype[np.int64]],
        units: np.ndarray[tuple[int], np.dtype[np.void]],
        stored: np.ndarray[tuple[int], np.dtype[np.int64]] | None,
    ) -> None:
        # Runs of consecutive queue offsets; only one, unless records are damaged or missing.
        breaks = np.flatnonzero(np.diff(queue_offsets) != 1) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(units)], strict=True):
            times = None if stored is None else stored[first:last]
            self._take_run(queue, int(queue_offsets[first]), units[first:last], times)

    def _take_run(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        units: np.ndarray[tuple[int], np.dtype[np.void]],
        stored: np.ndarray[tuple[int], np.dtype[np.int64]] | None,
    ) -> None:
        """`stored`: the store times, for a queue whose new units are extended."""
        first_offset = queue.files[0] if queue.files else queue_offset
        gone = max(0, first_offset - queue_offset)
        if gone:  # retention removes a file after the log has none of its records
            self._incomplete.setdefault(queue, False)
        units, queue_offset = units[gone:], queue_offset + gone
        present = min(max(queue.max_offset - queue_offset, 0), len(units))
        if present:
            if not self._clean:
                queue.mark_unsynced(queue_offset, present)
            wrong = queue.differing(queue_offset, units[:present])
            for position in wrong:
                # A tags code stored in the unit itself is right in every queue.
                queue.overwrite(queue_offset + position, units[position].tobytes())
            self._report.units_corrected += len(wrong)
            if len(wrong):
                self._meet(Found.WRONG_UNIT)
        if present < len(units):
            data = units[present:].tobytes()
            if stored is not None:
                data = queue.extended(data, stored[gone + present :].tolist())
            if queue_offset + present > queue.max_offset:
                self._note_gap(queue)
                if queue.files:
                    self._meet(Found.GAP)
            queue.put(queue_offset + present, data)
            self._report.units_added += len(units) - present

    # --- queues that have lost files --------------------------------------------------------------------------

    def _note_gap(self, queue: AnyQueue) -> None:
        """Units are missing before the next ones of the queue; if the read part does not explain it, files are."""
        begin = self._report.begin
        if begin > self._log.min_offset and queue.last_record_end() < begin:
            self._incomplete.setdefault(queue, False)

    def _remove_incomplete(self, end: int) -> int:
        """Remove the rest of each queue that lacks files; return the offset from which the log must be read then."""
        self._compare_bounds(end)
        found = [queue for queue, is_made_again in self._incomplete.items() if not is_made_again]
        return self._remove_queues(found) if found else end

    def _remove_queues(self, found: Sequence[AnyQueue]) -> int:
        """Remove what there is of these queues; return the offset from which the log must be read."""
        self._meet(Found.LOST_QUEUE_FILES)
        # What shows that files are missing is about to go, and this process may be killed, too.
        mark_in_use(self._file_system, self._directory)
        self._checkpoint.save_lower(self._log.min_offset)
        for queue in found:
            _log.error("queue lacks files, its messages are read from the log again directory=%s", queue.directory)
            self._ends[queue] = max(self._ends.get(queue, 0), queue.unit_numbers[1])
            queue.destroy()
            self._incomplete[queue] = True
        self._report.queues_made_again += len(found)
        return self._log.min_offset

    def _compare_bounds(self, end: int) -> None:
        """Note the queues that do not have every unit that was known, though the log has all records."""
        known, self._bounds = self._bounds, None
        if known is None or self._checkpoint.derived_offset is None:
            return
        if 0 <= known.log_begin < self._log.min_offset:
            self._meet(Found.LOST_BEGINNING)
            _log.error(
                "the log lacks its first segments: messages at physical offsets %d to %d are lost; restore the "
                "segments from a backup directory=%s",
                *(known.log_begin, self._log.min_offset, self._directory),
            )
        if end < known.log_end:
            return
        for table, find in (
            (known.queues, self._queues.simple_queue_unless_batch),
            (known.batch_queues, self._queues.batch_queue_unless_simple),
        ):
            for topic, bounds in table.items():
                if self._deleted.end_of(topic) >= known.log_end:
                    continue  # deleted since
                for queue_id, (first, stop) in bounds.items():
                    queue = find(topic, queue_id)
                    if queue is not None and self._lacks(queue, first, stop):
                        self._incomplete.setdefault(queue, False)
                        self._ends[queue] = stop

    def _lacks(self, queue: AnyQueue, first: int, stop: int) -> bool:
        if not queue.has_files or queue.unit_numbers[1] < stop:
            return True
        begins = queue.files[0]
        if begins <= first:
            return False
        # Retention may have removed its first files since, but none whose messages the log still has. This asks the
        # first unit left: if its message was the log's first one after those, the log is read in vain, once.
        units = queue.units(begins, 1)
        return bool(len(units)) and int(units[0]["physical_offset"]) > self._log.min_offset

    def _restore_ends(self) -> None:
        """Let a queue continue at its known end, if the log has no record of its last messages any more."""
        for queue, stop in self._ends.items():
            if isinstance(queue, ConsumeQueue) and queue.max_offset < stop:
                queue.put(stop - 1, FILLER_UNIT)

    # --- cutting after the end of the log ---------------------------------------------------------------------

    def _cut_log(self, end: int) -> None:
        beyond: list[MappedFile] = []
        for file in self._log.files:
            if file.start_offset >= end and not (file.start_offset == end and file is self._log.files.files[0]):
                beyond.append(file)
            elif file.end_offset > end:
                position = end - file.start_offset
                data_end = file.file.data_end(position)
                if _any_data(file.view[position:data_end]):
                    self._meet(Found.BYTES_AFTER_END)
                    if self._keeps_tail:
                        self._copy_tail(file, position, data_end)
                    file.file.zero(position, data_end - position)
                    file.file.sync()
        expected = (
            end if end % self._log.segment_size == 0 else end - end % self._log.segment_size + self._log.segment_size
        )
        for file in beyond:
            used = _any_data(file.view[: file.file.data_end(0)])
            if used:
                self._set_aside(file)
            elif file.start_offset != expected:
                # Preallocated and never used, but after a gap: the log would continue at the wrong offset.
                self._log.files.remove([file])
            else:
                expected = file.end_offset

    def _set_aside(self, file: MappedFile) -> None:
        self._meet(Found.SEGMENT_AFTER_END)
        if self._keeps_tail:
            target = self._quarantine(file, f"{self._tail_name}{file.path.name}")
            self._report.torn_tail += file.file.data_end(0)
            _log.warning("segment after the end of the log quarantined path=%s target=%s", file.path, target)
        else:
            target = self._quarantine(file, f"commitlog-{file.path.name}")
            _log.error("segment without a valid record quarantined path=%s target=%s", file.path, target)
        self._log.files.drop([file])
        self._file_system.rename(file.path, target)
        self._file_system.sync_directory(target.parent)
        self._file_system.sync_directory(file.path.parent)
        self._report.quarantined.append(target)

    def _copy_tail(self, file: MappedFile, position: int, data_end: int) -> None:
        """Copy the bytes after the end of the log, before they are zeroed."""
        tail = bytes(file.view[position:data_end]).rstrip(b"\0")
        target = self._quarantine(file, f"{self._tail_name}{file_name(file.start_offset + position)}")
        self._file_system.write_new(target, tail)
        self._file_system.sync_directory(target.parent)
        self._report.quarantined.append(target)
        self._report.torn_tail += len(tail)
        cause = "torn by a power cut, and not synced" if self._cut is None else "not in the master's log"
        _log.warning(
            "log tail moved to the quarantine offset=%d bytes=%d target=%s cause=%s",
            file.start_offset + position,
            len(tail),
            target,
            cause,
        )

    def _quarantine(self, file: MappedFile, name: str) -> Path:
        """A free path in `quarantine`; the directory exists on return."""
        quarantine = file.path.parent.parent / "quarantine"  # of several disks of the log, on the same one
        self._file_system.make_directory(quarantine)
        target = quarantine / name
        number = 0
        while self._file_system.exists(target):
            number += 1
            target = quarantine / f"{name}-{number}"
        return target

    def _cut_queues(self, end: int) -> int:
        """Drop units after the end of the log; return the offset from which the log must be read to replace damaged
        ones."""
        begin_again = end
        for queue in self._queues.simple.values():
            stop = queue.max_offset
            damaged = False
            while stop > queue.min_offset:
                begin = max(queue.min_offset, stop - 4096)
                units = queue.units(begin, stop - begin)
                beyond = (units["physical_offset"] + units["size"] > end) & (units["size"] != FILLER_SIZE)
                if not beyond.any():
                    break
                first = int(beyond.argmax())
                damaged |= not beyond[first:].all()
                stop = begin + first
                if first:
                    break
            if stop < queue.max_offset:
                self._meet(Found.UNITS_AFTER_END)
                self._report.units_dropped += queue.max_offset - stop
                queue.truncate(stop)
                # The scan has corrected every unit of the records that it read. Units dropped together with a damaged
                # unit before them are lost. The remaining units may end before the scan began, and then the rest was
                # not compared.
                if damaged or queue.last_record_end() < self._report.begin:
                    begin_again = min(begin_again, self._segment_start(queue.last_record_end()))
        for batch_queue in self._queues.batch.values():
            dropped = batch_queue.drop_behind(end)
            self._report.units_dropped += dropped
            if dropped:
                self._meet(Found.UNITS_AFTER_END)
            # The last units ascend, which `load` ensures, so only their end is dropped, and the remaining units in the
            # scanned part were compared. Only a queue that now ends before that part must be read again.
            if dropped and batch_queue.last_record_end() < self._report.begin:
                begin_again = min(begin_again, self._segment_start(batch_queue.last_record_end()))
        return begin_again


def _any_data(view: memoryview) -> bool:
    for begin in range(0, len(view), _SEARCH_STEP):
        if np.frombuffer(view[begin : begin + _SEARCH_STEP], np.uint8).any():
            return True
    return False
