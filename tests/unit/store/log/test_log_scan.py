"""Reading parts of a log."""

from __future__ import annotations

from pathlib import Path

from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.log.log_scan import LogScan
from aerobee_store.log.mapped_file import MappedFile
from aerobee_store.records import record
from aerobee_store.records.record import Message

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
