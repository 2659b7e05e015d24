"""Finds the few records of the log whose properties contain given bytes, without decoding the others."""

from __future__ import annotations

from collections.abc import Iterator

from aerobee_store.disk.file_system import find_bytes
from aerobee_store.log.log_scan import LogScan
from aerobee_store.message_store import MessageStore
from aerobee_store.records.record import Record
from aerobee_store.records.record_batch import RecordBatch


def marked_records(store: MessageStore, mark: bytes, begin: int) -> Iterator[Record]:
    """The valid records whose properties contain `mark`, in log order, from physical offset `begin` on (the start of a
    record, or a former start of the log).

    Blocking; for opening, before anything is appended.
    """
    log = store._log  # a friend within the package: the store has no other use for a public log
    begin = max(begin, log.min_offset)
    if begin >= log.committed:
        return
    scan = LogScan(log.files.files, record_size_max=max(store.config.record_size_max, store.config.segment_size))
    for part in scan.walk(begin, zeros_end=log.committed):
        if not isinstance(part, RecordBatch):
            continue
        first, end = int(part.start[0]), int(part.start[-1]) + int(part.size[-1])
        if find_bytes(memoryview(part.buffer), mark, first, end) < 0:
            continue
        for row in range(len(part)):
            found = part.record(row)
            if mark in found.raw_properties:
                yield found
