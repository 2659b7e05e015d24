"""A summary of a store: topics and queues, segments, index, checkpoint, and whether a process has it open.

Without `full` only the log after the last message known to a queue is read; numbers that need the whole log are None.
With it every record is read, and damaged ranges are found.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from aerobee_store.errors import StoreDirectoryError
from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.log.log_scan import LogEnd, LogScan
from aerobee_store.queues.consume_queue import FILLER_SIZE
from aerobee_store.records import record
from aerobee_store.records.record import ScanStop
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.checkpoint_check import load_checkpoint
from aerobee_store.tools.damage import finding_of
from aerobee_store.tools.findings import Finding, json_name
from aerobee_store.tools.index_layout import IndexFileReader, open_index
from aerobee_store.tools.log_walk import bytes_behind, log_scan, walk
from aerobee_store.tools.store_files import Progress, QueueFiles, StoreFiles, StoreState

_CHUNK: Final = 1 << 16
_BLOCK: Final = 512  # the unit of st_blocks


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """One queue, with messages from `min_offset` (the first in the log) to `max_offset`."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    first_store_time: int | None
    last_store_time: int | None
    files: int
    batch: bool
    """Whether it is a batch consume queue."""


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """All queues of a topic. `bytes` are those of its records, including records in no queue; known if `full`."""

    topic: str
    queues: int
    messages: int
    bytes: int | None
    first_store_time: int | None
    last_store_time: int | None


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One file of the log. `blank` is the size of the filler at its end; `used` excludes it where it is known."""

    path: str
    start: int
    size: int
    used: int
    records: int | None
    blank: int | None
    first_store_time: int | None
    last_store_time: int | None


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """One index file. `slots` and `capacity` are None if they cannot be detected."""

    path: str
    size: int
    entries: int
    slots: int | None
    capacity: int | None
    first_store_time: int
    last_store_time: int
    begin_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """The store times up to which log, queues and index are known to be durable (Unix ms), and the two offsets."""

    log_time: int
    queues_time: int
    index_time: int
    master_flushed_offset: int
    confirm_offset: int


@dataclass(frozen=True, slots=True)
class DiskSummary:
    """Sizes of the files (`*_bytes`), their use of the disk, and the partition."""

    log_bytes: int
    queue_bytes: int
    index_bytes: int
    allocated_bytes: int
    partition_total: int
    partition_available: int


@dataclass(frozen=True, slots=True)
class InspectReport:
    """A snapshot of a store. Times are Unix ms, sizes bytes, offsets physical ones."""

    directory: str
    state: StoreState
    full: bool
    log_begin: int
    log_end: int
    segment_size: int
    records: int | None
    abort_file: bool
    disk: DiskSummary
    checkpoint: CheckpointSummary | None
    topics: list[TopicSummary] = field(default_factory=list)
    queues: list[QueueSummary] = field(default_factory=list)
    segments: list[SegmentSummary] = field(default_factory=list)
    index_files: list[IndexSummary] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_looked_at: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """One JSON object; unknown values are null."""
        plain = _plain(self)
        assert isinstance(plain, dict)
        return plain


def inspect(directory: Path, *, full: bool = False, progress: Progress | None = None) -> InspectReport:
    """Summarise a store; nothing is changed and no lock is taken.

    Raises StoreDirectoryError for a directory that is no store, OSError for one that cannot be read.
    """
    files = StoreFiles.find(directory)
    try:
        return _Inspection(files, full, progress).run()
    finally:
        files.close()


@dataclass(slots=True)
class _Segment:
    records: int = 0
    used: int = 0
    last_time: int | None = None


class _Inspection:
    def __init__(self, files: StoreFiles, full: bool, progress: Progress | None) -> None:
        self._files = files
        self._full = full
        self._progress = progress
        self._log = log_scan(files)
        self._findings = list(files.problems)
        self._segments: dict[int, _Segment] = {}
        self._topic_bytes: dict[str, int] = {}
        self._topic_times: dict[str, tuple[int, int]] = {}
        self._records = 0

    def run(self) -> InspectReport:
        files = self._files
        queues = [_queue(self._log, queue, files.log_begin) for queue in files.queues.values()]
        queues += [_batch_queue(self._log, queue, files.log_begin) for queue in files.batch_queues.values()]
        end = self._read_log()
        return InspectReport(
            directory=str(files.directory),
            state=files.state,
            full=self._full,
            log_begin=files.log_begin,
            log_end=end.position,
            segment_size=files.segment_size,
            records=self._records if self._full else None,
            abort_file=(files.directory / "abort").exists(),
            disk=self._disk(),
            checkpoint=self._checkpoint(),
            topics=self._topics(queues),
            queues=sorted(queues, key=lambda queue: (queue.topic, queue.queue_id)),
            segments=self._segment_summaries(end.position),
            index_files=self._index(),
            findings=self._findings,
            not_looked_at=files.not_looked_at,
        )

    def _read_log(self) -> LogEnd:
        files = self._files
        begin = files.log_begin if self._full else self._known_end()
        total = files.segments[-1].end_offset - begin if files.segments else 0
        for found in walk(files, self._log, begin, zeros_end=not self._full):
            if isinstance(found, RecordBatch):
                self._take(found)
                if self._progress is not None:
                    self._progress(min(int(found.physical_offset[-1]) - begin, total), total)
            elif isinstance(found, DamagedRange):
                self._findings.append(finding_of(found, files, [], 0))
            else:
                self._findings.extend(bytes_behind(files, found))
                return found
        raise AssertionError("a walk ends with the end of the log")

    def _known_end(self) -> int:
        """The end of the last record known to a queue; without one, the beginning of the last segment with a record."""
        last = -1
        for queue in self._files.queues.values():
            number = queue.end()
            if number > queue.first:
                unit = queue.read(number - 1, 1)[0]
                if unit["size"] != FILLER_SIZE:
                    last = max(last, int(unit["physical_offset"]))
        segment = self._log.find(last) if last >= 0 else None
        if segment is not None and not isinstance(self._log.peek(segment, last - segment.start_offset), ScanStop):
            return last
        for segment in reversed(self._files.segments):
            if not isinstance(self._log.peek(segment, 0), ScanStop):
                return segment.start_offset
        return self._files.log_begin

    def _take(self, batch: RecordBatch) -> None:
        self._records += len(batch)
        file = self._log.find(int(batch.physical_offset[0]))
        assert file is not None
        segment = self._segments.setdefault(file.start_offset, _Segment())
        segment.records += len(batch)
        segment.used = batch.end
        segment.last_time = int(batch.store_timestamp[-1])
        sizes = np.bincount(batch.topic_index, batch.size, len(batch.topics))
        for number, topic in enumerate(batch.topics):
            self._topic_bytes[topic] = self._topic_bytes.get(topic, 0) + int(sizes[number])
            times = batch.store_timestamp[batch.topic_index == number]
            first, last = self._topic_times.get(topic, (int(times[0]), 0))
            self._topic_times[topic] = min(first, int(times.min())), max(last, int(times.max()))

    def _segment_summaries(self, log_end: int) -> list[SegmentSummary]:
        summaries = []
        for number, file in enumerate(self._files.segments):
            known = self._segments.get(file.start_offset)
            header = self._log.peek(file, 0)
            in_use = file.start_offset < log_end
            is_last = number + 1 == len(self._files.segments) or file.end_offset > log_end
            used = min(log_end - file.start_offset, file.size) if in_use else 0
            if known is not None and not is_last:
                used = known.used
            complete = in_use and known is not None and (self._full or is_last)
            summaries.append(
                SegmentSummary(
                    path=self._files.relative(file.path),
                    start=file.start_offset,
                    size=file.size,
                    used=used,
                    records=(known.records if known is not None else 0) if self._full else None,
                    blank=0 if is_last else (file.size - known.used if complete and known is not None else None),
                    first_store_time=None if isinstance(header, ScanStop) else header.store_timestamp,
                    last_store_time=known.last_time if complete and known is not None else None,
                )
            )
            file.close()
        return summaries

    def _topics(self, queues: list[QueueSummary]) -> list[TopicSummary]:
        names = {queue.topic for queue in queues} | (set(self._topic_bytes) if self._full else set())
        topics = []
        for topic in sorted(names):
            own = [queue for queue in queues if queue.topic == topic]
            first = [queue.first_store_time for queue in own if queue.first_store_time is not None]
            last = [queue.last_store_time for queue in own if queue.last_store_time is not None]
            if self._full and topic in self._topic_times:
                first, last = [[time] for time in self._topic_times[topic]]
            topics.append(
                TopicSummary(
                    topic=topic,
                    queues=len(own),
                    messages=sum(queue.messages for queue in own),
                    bytes=self._topic_bytes.get(topic, 0) if self._full else None,
                    first_store_time=min(first, default=None),
                    last_store_time=max(last, default=None),
                )
            )
        return topics

    def _index(self) -> list[IndexSummary]:
        files = self._files
        summaries = []
        for reader in open_index(files.index_files, files.disk.open, None):
            if not isinstance(reader, IndexFileReader):
                self._findings.append(
                    Finding(kind="index-file", path=files.relative(reader), detail="too small for an index file")
                )
                continue
            header, counts = reader.header, reader.counts
            summaries.append(
                IndexSummary(
                    path=files.relative(reader.path),
                    size=reader.size,
                    entries=reader.entry_count,
                    slots=None if counts is None else counts.slots,
                    capacity=None if counts is None else counts.entries,
                    first_store_time=header.begin_timestamp,
                    last_store_time=header.end_timestamp,
                    begin_offset=header.begin_offset,
                    end_offset=header.end_offset,
                )
            )
            if counts is None:
                detail = "the file does not show how many slots and entries it has"
                self._findings.append(
                    Finding(
                        kind="index-counts-unknown",
                        severity="warning",
                        path=files.relative(reader.path),
                        detail=detail,
                    )
                )
            reader.close()
        return summaries

    def _checkpoint(self) -> CheckpointSummary | None:
        if not (self._files.directory / "checkpoint").exists():
            return None
        try:
            checkpoint = load_checkpoint(self._files)
        except StoreDirectoryError as error:
            self._findings.append(Finding(kind="checkpoint", path="checkpoint", detail=str(error)))
            return None
        return CheckpointSummary(
            log_time=checkpoint.physic_timestamp,
            queues_time=checkpoint.logics_timestamp,
            index_time=checkpoint.index_timestamp,
            master_flushed_offset=checkpoint.master_flushed_offset,
            confirm_offset=checkpoint.confirm_offset,
        )

    def _disk(self) -> DiskSummary:
        sizes = {"commitlog": 0, "consumequeue": 0, "batchconsumequeue": 0, "index": 0}
        allocated = 0
        directories = [(name, self._files.directory / name) for name in sizes if name != "commitlog"]
        for name, directory in directories + [("commitlog", path) for path in self._files.log_paths.all]:
            for path in directory.rglob("*"):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                if path.is_file():
                    sizes[name] += status.st_size
                    allocated += status.st_blocks * _BLOCK
        usage = self._files.disk.usage(self._files.directory)
        return DiskSummary(
            log_bytes=sizes["commitlog"],
            queue_bytes=sizes["consumequeue"] + sizes["batchconsumequeue"],
            index_bytes=sizes["index"],
            allocated_bytes=allocated,
            partition_total=usage.total,
            partition_available=usage.available,
        )


def _queue(log: LogScan, files: QueueFiles, log_begin: int) -> QueueSummary:
    end = files.end()
    first = end
    for begin in range(files.first, end, _CHUNK):
        units = files.read(begin, min(_CHUNK, end - begin))
        alive = (units["physical_offset"] >= log_begin) & (units["size"] != FILLER_SIZE)
        if alive.any():
            first = begin + int(alive.argmax())
            break
    topic, queue_id = files.key
    return QueueSummary(
        topic=topic,
        queue_id=queue_id,
        min_offset=first,
        max_offset=end,
        messages=end - first,
        first_store_time=_store_time(log, files, first) if first < end else None,
        last_store_time=_store_time(log, files, end - 1) if first < end else None,
        files=len(files.starts),
        batch=False,
    )


def _batch_queue(log: LogScan, files: QueueFiles, log_begin: int) -> QueueSummary:
    end = files.end()
    units = files.read(files.first, end - files.first)
    alive = units[(units["physical_offset"] >= log_begin) & (units["size"] != FILLER_SIZE)]
    topic, queue_id = files.key
    last = int(units[-1]["base_offset"]) + int(units[-1]["count"]) if len(units) else 0
    return QueueSummary(
        topic=topic,
        queue_id=queue_id,
        min_offset=int(alive[0]["base_offset"]) if len(alive) else last,
        max_offset=last,
        messages=int(alive["count"].sum()),
        first_store_time=int(alive[0]["store_timestamp"]) if len(alive) else None,
        last_store_time=int(alive[-1]["store_timestamp"]) if len(alive) else None,
        files=len(files.starts),
        batch=True,
    )


def _store_time(log: LogScan, files: QueueFiles, number: int) -> int | None:
    """The store time of the record named by a unit; None if there is none."""
    physical_offset = int(files.read(number, 1)[0]["physical_offset"])
    segment = log.find(physical_offset)
    if segment is None:
        return None
    try:
        header = record.peek(
            segment.view,
            physical_offset - segment.start_offset,
            segment.size,
            physical_offset=physical_offset,
            check_crc=False,
        )
    except FileNotFoundError:
        return None  # removed by retention since the listing
    return None if isinstance(header, ScanStop) else header.store_timestamp


def _plain(value: Any) -> object:
    if isinstance(value, Finding):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {json_name(item.name): _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    assert value is None or isinstance(value, str | int | bool)
    return value
