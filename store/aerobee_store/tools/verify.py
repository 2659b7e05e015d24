"""Verifies every byte of a store: the log against itself, queues and index against the log.

The log is read once from its first byte to its end, some thousand records at a time. Each batch of records is compared
with the queue units and index entries that it must have; remaining units and entries are checked afterwards. Memory
therefore grows only with the number of errors, not with the store.

    kind                    severity  what was found
    segment-file            both      a file of the log with an unexpected name, size or directory
    segment-missing         error     a gap between two segments, with messages on both sides, or first segments that
                                      are gone without retention
    log-damaged             error     bytes that are not a record, followed by valid records
    log-torn                error     the log ends in an incomplete record, or in data torn by a power cut; the next
                                      start truncates it
    log-bytes-behind-end    error     bytes after the end of the log, without a record among them
    checksum-damaged        error     a record with a damaged record checksum; its body is right
    store-time              warning   store times go back by seconds: look-ups by time are not exact there
    queue-offset-gap        error     queue offsets without a message, not explained by damage
    queue-offset-repeated   warning   a queue starts again: its topic was deleted and created again
    queue-file              both      a file of a queue with an unexpected name, size or directory
    unit-missing            error     messages of the log without a unit in their queue. A warning before a queue that
                                      begins with fillers: RocketMQ rebuilt the queue from a part of the log
    unit-wrong              error     a unit with another physical offset, size or tag than its message
    unit-extension          both      error: the extended unit has another tags code, so filters skip the message;
                                      warning: there is no extended unit, or its filter bitmap does not match its
                                      checksum, so filters read the message
    unit-ahead              error     units of messages after the end of the log
    unit-stray              error     units with an offset at which no message of this queue begins
    unit-invalid            error     invalid units
    index-file              both      a file of the index with an unexpected name, size or header
    index-counts-unknown    warning   the numbers of slots and entries of an index file are unknown: not verified
    index-missing           error     messages with keys, but no index
    index-behind            error     the index ends before the log does
    index-entry-missing     error     a message key without an index entry
    index-entry-wrong       error     an entry without a message that has such a key, or with another time
    index-ahead             error     entries of messages after the end of the log
    index-chain             error     entries that a search would not reach
    configuration-file      error     a table in config is missing or unreadable: a broker would not start, or would use
                                      the copy of the previous save
    configuration-changed   warning   a table in config does not match its saved checksum: edited, or damaged
    checkpoint              both      an invalid checkpoint, or one that is ahead of the files
    timer-...               both      the files of the timer: timer_check.py
    quarantine              warning   segments that a recovery moved to quarantine; torn tails are not counted

Most errors of queues, index and log end are repaired when a broker opens the store. `log-damaged`, `segment-missing`
and `queue-offset-gap` mean that messages are lost. In a live store, files that lag behind the log are not reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from aerobee_store.disk.store_directory import writes_may_be_lost
from aerobee_store.durability import queue_bounds
from aerobee_store.durability.recovery import TORN_TAIL
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.log.log_scan import LogEnd
from aerobee_store.records.record import PROPERTY_CRC_NAME, PROPERTY_CRC_SIZE, ScanStop, StopReason
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.checkpoint_check import check_checkpoint, load_checkpoint
from aerobee_store.tools.damage import Damage
from aerobee_store.tools.findings import FINDINGS_MAX, Finding, Findings
from aerobee_store.tools.index_check import IndexCheck
from aerobee_store.tools.index_layout import IndexCounts
from aerobee_store.tools.log_walk import bytes_behind, log_scan, walk
from aerobee_store.tools.queue_check import BatchQueueCheck, QueueCheck
from aerobee_store.tools.store_files import Progress, StoreFiles, StoreState
from aerobee_store.tools.table_check import check_tables
from aerobee_store.tools.timer_check import TimerCheck

# Clocks are often set back by milliseconds, and release 4.3 dates a batch before it gets its place.
_TIME_STEP_MAX_MS: Final = 10_000
# The constant part of the record checksum: its name and separators, by position.
_CHECKSUM_BYTES: Final = np.frombuffer(PROPERTY_CRC_NAME + b"\x02", np.uint8)
_CHECKSUM_POSITIONS: Final = np.array([*range(len(PROPERTY_CRC_NAME)), PROPERTY_CRC_SIZE - 1])


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of verifying a store. Offsets are physical ones, sizes bytes.

    `bytes` are those of valid records; `findings_left_out` counts the findings that are not in the list.
    """

    state: StoreState
    log_begin: int
    log_end: int
    segments: int
    segment_size: int
    records: int
    bytes: int
    queues: int
    units: int
    index_files: int
    index_entries: int
    timer_units: int
    records_of_deleted_topics: int
    not_looked_at: list[str]
    errors: int
    findings: list[Finding] = field(default_factory=list)
    findings_left_out: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no errors. There may be warnings."""
        return self.errors == 0

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {
            "ok": self.ok,
            "state": self.state,
            "records": self.records,
            "bytes": self.bytes,
            "findings": [finding.to_json() for finding in self.findings],
            "findingsLeftOut": self.findings_left_out,
            "errors": self.errors,
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "segments": self.segments,
            "segmentSize": self.segment_size,
            "queues": self.queues,
            "units": self.units,
            "indexFiles": self.index_files,
            "indexEntries": self.index_entries,
            "timerUnits": self.timer_units,
            "recordsOfDeletedTopics": self.records_of_deleted_topics,
            "notLookedAt": list(self.not_looked_at),
        }


def verify(
    directory: Path,
    *,
    index_slot_count: int | None = None,
    index_entry_count: int | None = None,
    findings_max: int = FINDINGS_MAX,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every byte of a store; nothing is changed and no lock is taken.

    The index counts are needed only if a file does not show them. `progress` is called with bytes of the log.

    Raises StoreDirectoryError for a directory that is no store, OSError for one that cannot be read.
    """
    if (index_slot_count is None) != (index_entry_count is None):
        raise ValueError("give both index counts or none")
    counts = None
    if index_slot_count is not None and index_entry_count is not None:
        counts = IndexCounts(index_slot_count, index_entry_count)
    files = StoreFiles.find(directory)
    try:
        return verify_files(files, counts, findings_max=findings_max, progress=progress)
    finally:
        files.close()


def verify_files(
    files: StoreFiles,
    counts: IndexCounts | None,
    *,
    findings_max: int = FINDINGS_MAX,
    progress: Progress | None = None,
) -> VerifyReport:
    """Like `verify`, for a store that the caller has listed and closes."""
    return _Verification(files, counts, Findings(findings_max), progress).run()


class _Verification:
    """One pass over a store from its first byte to its last."""

    def __init__(
        self, files: StoreFiles, counts: IndexCounts | None, findings: Findings, progress: Progress | None
    ) -> None:
        self._files = files
        self._findings = findings
        self._progress = progress
        for problem in files.problems:
            findings.add(problem)
        self._damage = Damage()
        self._log = log_scan(files)
        self._log_findings = Findings(findings.capacity)
        self._queues = QueueCheck(files, self._log, self._damage, self._log_findings)
        self._batch_queues = BatchQueueCheck(files, self._damage, self._log_findings)
        self._index = IndexCheck(files, self._log, counts, self._damage, self._log_findings)
        self._timer = TimerCheck(files, self._damage, self._log_findings)
        self._total = sum(segment.file.data_end(0) for segment in files.segments) if progress else 0
        self._torn_tail_from = _torn_tail_from(files)
        self._records = self._bytes = 0
        self._latest = 0
        self._steps_back = 0
        self._step_back_max = 0
        self._step_back_at = 0

    def run(self) -> VerifyReport:
        end = self._walk()
        self._queues.finish(end.position)
        self._batch_queues.finish(end.position)
        self._index.finish(end.position)
        self._timer.finish(self._latest)
        # Losses in the log come first: they explain the rest.
        for finding in self._damage.findings(self._files):
            self._findings.add(finding)
        for finding in bytes_behind(self._files, end):
            self._findings.add(finding)
        self._check_beginning()
        self._findings.extend(self._log_findings)
        self._check_times()
        for finding in check_tables(self._files):
            self._findings.add(finding)
        for finding in check_checkpoint(self._files, self._latest, end.position):
            self._findings.add(finding)
        self._check_quarantine()
        files = self._files
        return VerifyReport(
            state=files.state,
            log_begin=files.log_begin,
            log_end=end.position,
            segments=len(files.segments),
            segment_size=files.segment_size,
            records=self._records,
            bytes=self._bytes,
            queues=len(files.queues) + len(files.batch_queues),
            units=self._queues.units + self._batch_queues.units,
            index_files=self._index.file_count,
            index_entries=self._index.entries,
            timer_units=self._timer.units,
            records_of_deleted_topics=self._queues.records_of_deleted_topics,
            not_looked_at=files.not_looked_at,
            errors=self._findings.errors,
            findings=self._findings.kept,
            findings_left_out=self._findings.left_out,
        )

    def _check_times(self) -> None:
        if self._step_back_max > _TIME_STEP_MAX_MS:
            self._findings.add(
                Finding(
                    kind="store-time",
                    severity="warning",
                    detail=f"store times go back {self._steps_back} times, by {self._step_back_max} ms at most",
                    physical_offset=self._step_back_at,
                    count=self._steps_back,
                )
            )

    def _check_beginning(self) -> None:
        """Report first segments that are gone without retention, which says so before it removes some."""
        files = self._files
        known = queue_bounds.load(files.disk, files.directory)
        if known is not None and files.segments and 0 <= known.log_begin < files.log_begin:
            self._findings.add(
                Finding(
                    kind="segment-missing",
                    detail="the log began here when the broker last used it; restore its first segments from a backup",
                    physical_offset=known.log_begin,
                    size=files.log_begin - known.log_begin,
                )
            )

    def _check_quarantine(self) -> None:
        quarantined = self._files.disk.list(self._files.directory / "quarantine")
        # these were not promised to be durable
        aside = [name for name in quarantined if not name.startswith(TORN_TAIL)]
        if aside:
            self._findings.add(
                Finding(
                    kind="quarantine",
                    severity="warning",
                    path="quarantine",
                    detail=f"quarantined by a recovery: {', '.join(aside[:10])}",
                    count=len(aside),
                )
            )

    def _walk(self) -> LogEnd:
        begin = self._files.log_begin
        for found in walk(self._files, self._log, begin):
            if isinstance(found, RecordBatch):
                position = self._take(found)
            elif isinstance(found, DamagedRange):
                if self._torn_tail_from is not None and found.start >= self._torn_tail_from:
                    why = "a power cut tore unsynced bytes; the next start moves them to the quarantine"
                    return LogEnd(found.start, ScanStop(StopReason.CORRUPT, 0, found.start, detail=why))
                self._damage.ranges.append(found)
                position = found.end
            else:
                return found
            if self._progress is not None:
                self._progress(min(position - begin, self._total), self._total)
        raise AssertionError("a walk ends with the end of the log")

    def _take(self, batch: RecordBatch) -> int:
        self._records += len(batch)
        self._bytes += int(batch.size.sum())
        times = batch.store_timestamp
        highest = np.maximum(np.maximum.accumulate(times), self._latest)
        back = np.concatenate(([self._latest], highest[:-1])) - times
        if (back > 0).any():
            self._steps_back += int(np.count_nonzero(back > 0))
            row = int(back.argmax())
            if back[row] > self._step_back_max:
                self._step_back_max, self._step_back_at = int(back[row]), int(batch.physical_offset[row])
        self._latest = int(highest[-1])
        self._check_checksums(batch)
        self._queues.take(batch)
        self._batch_queues.take(batch)
        self._index.take(batch)
        self._timer.take(batch)
        return int(batch.physical_offset[-1]) + int(batch.size[-1])

    def _check_checksums(self, batch: RecordBatch) -> None:
        """A damaged name of the record checksum would make it an ordinary property, and nothing would be checked."""
        rows = np.flatnonzero(~batch.has_property_crc & (batch.properties_size >= PROPERTY_CRC_SIZE))
        if not len(rows):
            return
        ends = batch.properties_start[rows] + batch.properties_size[rows]
        positions = ends[:, None] - PROPERTY_CRC_SIZE + _CHECKSUM_POSITIONS
        alike = (np.frombuffer(batch.buffer, np.uint8)[positions] == _CHECKSUM_BYTES).sum(axis=1)
        for number in np.flatnonzero(alike >= len(_CHECKSUM_BYTES) - 2).tolist():
            row = int(rows[number])
            self._log_findings.add(
                Finding(
                    kind="checksum-damaged",
                    detail=f"the properties end in {bytes(batch.raw_properties(row))[-PROPERTY_CRC_SIZE:]!r}",
                    path=self._files.segment_path(int(batch.physical_offset[row])),
                    physical_offset=int(batch.physical_offset[row]),
                    size=int(batch.size[row]),
                    topic=batch.topic(row),
                    queue_id=int(batch.queue_id[row]),
                    queue_offset=int(batch.queue_offset[row]),
                )
            )


def _torn_tail_from(files: StoreFiles) -> int | None:
    """The offset from which a hole in the log is not damage but lost in a power failure (recovery.py); None: none."""
    if files.state != "crashed" or not writes_may_be_lost(files.disk, files.directory):
        return None
    try:
        return load_checkpoint(files).derived_offset
    except StoreDirectoryError:
        return None
