"""Reading parts of a log."""

from __future__ import annotations

import os
from pathlib import Path

from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.log.log_scan import LogEnd, LogScan
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.records import record
from aerobee_store.records.record import Message
from aerobee_store.records.record_batch import RecordBatch

HOST = ("127.0.0.1", 8081)


def encoded(body: bytes, place: int) -> bytes:
    return record.encode(
        Message("t", 0, body),
        queue_offset=0,
        physical_offset=place,
        store_timestamp=1,
        store_host=HOST,
        property_crc=True,
    )


def test_the_first_record_from_any_byte_on(tmp_path: Path) -> None:
    """Whatever bodies contain, the result is the start of a record; after the last record there is none."""
    log = bytearray()
    starts = []
    for number in range(6):
        starts.append(4096 + len(log))
        log += encoded(encoded(b"a copy of another record", 0) * number, 4096 + len(log))
    path = tmp_path / f"{4096:020d}"
    path.write_bytes(log.ljust(4096, b"\0"))
    scan = LogScan([MappedFile(DiskFileSystem(), path, 4096, 4096)], record_size_max=4096)
    for offset in range(4096, 8192):
        assert scan.first_record(offset) == next((start for start in starts if start >= offset), None)
    assert scan.first_record(8192) is None


def test_a_walk_over_ends_of_segments(tmp_path: Path) -> None:
    """A segment ends with a record or a blank. A blank that ends before it is damage, and so is a missing segment."""
    size = 4096
    full = encoded(b"x" * (size - len(encoded(b"", 0))), 0)
    first, third = encoded(b"y" * 50, size), encoded(b"z", 3 * size)
    damage = 3 * size + len(third)
    fourth = encoded(b"z", damage + 100)
    segments = {
        0: full,
        size: first + record.encode_blank(size - len(first)),
        3 * size: third + record.encode_blank(100).ljust(100, b"?") + fourth,
    }
    segments[3 * size] += record.encode_blank(size - len(segments[3 * size]))
    files = []
    for start, content in segments.items():
        path = tmp_path / f"{start:020d}"
        path.write_bytes(content.ljust(size, b"?"))
        files.append(MappedFile(DiskFileSystem(), path, start, size))
    parts = []
    for part in LogScan(files, record_size_max=size).walk(0, zeros_end=None):
        parts.append(part.physical_offset.tolist() if isinstance(part, RecordBatch) else part)
    assert parts == [
        [0],
        [size],
        DamagedRange(2 * size, 3 * size, "the segment is missing"),
        [3 * size],
        DamagedRange(damage, damage + 100, "blank: blank of 100 bytes"),
        [damage + 100],
        LogEnd(4 * size),
    ]


def test_a_walk_sees_records_appended_meanwhile(tmp_path: Path) -> None:
    """The end of the data is not asked for before each batch, but again when the walk reaches the end it knew."""
    size = 1 << 20
    path = tmp_path / f"{0:020d}"
    path.touch()
    os.truncate(path, size)
    records: list[bytes] = []

    def append(count: int) -> None:
        with path.open("r+b") as file:
            for _ in range(count):
                file.seek(sum(map(len, records)))
                records.append(encoded(b"x" * 3000, file.tell()))
                file.write(records[-1])

    append(5)
    scan = LogScan([MappedFile(DiskFileSystem(), path, 0, size)], record_size_max=4096, batch_records=2)
    found = []
    for part in scan.walk(0, zeros_end=None):
        if isinstance(part, RecordBatch):
            found.append(len(part))
            if sum(found) in (2, 12):
                append(7)
        else:
            assert isinstance(part, LogEnd)
            assert part.position == sum(map(len, records))
    assert sum(found) == len(records) == 19
    assert max(found) == 2
