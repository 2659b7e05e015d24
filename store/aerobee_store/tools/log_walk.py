"""The log of a store from an offset to its end, for read-only tools. See log_scan.py for the items of a walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.log.log_scan import LogEnd, LogScan
from aerobee_store.records.record import RECORD_SIZE_MIN, StopReason
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.findings import Finding
from aerobee_store.tools.store_files import StoreFiles

_STEP: Final = 1 << 20


def log_scan(files: StoreFiles) -> LogScan:
    """A scan of all segments; no record is larger than one."""
    return LogScan(files.segments, record_size_max=max(files.segment_size, RECORD_SIZE_MIN))


def walk(
    files: StoreFiles, log: LogScan, begin: int, *, zeros_end: bool = False
) -> Iterator[RecordBatch | DamagedRange | LogEnd]:
    """Everything from `begin` on. Segments that were read are released, and segments removed by retention skipped."""
    position = begin
    passed = 0
    while True:
        try:
            for found in log.walk(position, zeros_end=0 if zeros_end else None):
                yield found
                if isinstance(found, LogEnd):
                    return
                if isinstance(found, RecordBatch):
                    position = int(found.physical_offset[-1]) + int(found.size[-1])
                else:
                    position = found.end
                while passed < len(files.segments) and files.segments[passed].end_offset <= position:
                    files.segments[passed].close()  # its pages need not stay mapped
                    passed += 1
        except FileNotFoundError:
            kept = [segment for segment in files.segments if segment.path.exists()]
            if not files.live or len(kept) == len(files.segments):
                raise
            files.segments[:] = kept
            passed = 0
            position = max(position, files.log_begin)


def bytes_behind(files: StoreFiles, end: LogEnd) -> Iterator[Finding]:
    """Bytes after the end of the log, where zeros are expected. Not checked in a live store."""
    for segment in files.segments:
        if files.live or segment.end_offset <= end.position:
            continue
        begin = max(end.position - segment.start_offset, 0)
        data_end = _nonzero_end(segment.view, begin, segment.file.data_end(begin))
        segment.close()
        if data_end == begin:
            continue
        stop = end.stop
        torn = (
            stop is not None
            and stop.reason is not StopReason.END_OF_DATA
            and stop.physical_offset == segment.start_offset + begin
        )
        yield Finding(
            kind="log-torn" if torn else "log-bytes-behind-end",
            detail=stop.detail if torn and stop is not None else "bytes that are not a record",
            path=files.relative(segment.path),
            physical_offset=segment.start_offset + begin,
            size=data_end - begin,
        )


def _nonzero_end(view: memoryview, begin: int, end: int) -> int:
    """The end of the last non-zero byte of [begin, end); `begin` if there is none."""
    while end > begin:
        start = max(begin, end - _STEP)
        nonzero = np.flatnonzero(np.frombuffer(view[start:end], np.uint8))
        if len(nonzero):
            return start + int(nonzero[-1]) + 1
        end = start
    return begin
