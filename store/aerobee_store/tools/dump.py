"""Every record of a log as a dictionary, in log order, under the field names of the golden manifests.

    physicalOffset size version topic queueId queueOffset sysFlag flag bornTimestamp bornHost storeTimestamp storeHost
    reconsumeTimes preparedTransactionOffset bodyCrc body properties [propertiesRaw]

`body` is base64 of the stored bytes, which may be compressed; above 256 bytes an object with `length` and `sha256`.
`propertiesRaw`, in base64, is present only if joining `properties` would not give the stored bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from aerobee_store.log.commit_log import DamagedRange
from aerobee_store.records.properties import Host
from aerobee_store.records.record import Record, ScanStop
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.damage import finding_of
from aerobee_store.tools.findings import Finding
from aerobee_store.tools.log_walk import bytes_behind, log_scan, walk
from aerobee_store.tools.store_files import Progress, StoreFiles

BODY_SHOWN_MAX: Final = 256
"""Limit of a body that is printed in full."""
_OFFSET_MAX: Final = (1 << 63) - 1


def dump(
    directory: Path,
    *,
    begin: int = 0,
    end: int = _OFFSET_MAX,
    topic: str | None = None,
    begin_time: int = 0,
    end_time: int = _OFFSET_MAX,
    bodies: bool = False,
    on_finding: Callable[[Finding], None] | None = None,
    progress: Progress | None = None,
) -> Iterator[dict[str, object]]:
    """The records with begin <= physical offset < end and begin_time <= store time <= end_time (Unix ms), of one topic
    or of all.

    `bodies` prints every body in full. Damaged ranges are skipped and reported to `on_finding`, as are files that
    cannot belong to a log. `progress` is called with bytes of the log.

    Raises StoreDirectoryError for a directory that is no store, OSError for one that cannot be read.
    """
    files = StoreFiles.find(directory)

    def wanted(batch: RecordBatch) -> list[int]:
        rows = (batch.physical_offset >= begin) & (batch.physical_offset < end)
        rows &= (batch.store_timestamp >= begin_time) & (batch.store_timestamp <= end_time)
        if topic is not None:
            rows &= np.array([name == topic for name in batch.topics], bool)[batch.topic_index]
        return np.flatnonzero(rows).tolist()

    return _dump(files, begin, end, wanted, bodies, on_finding or (lambda finding: None), progress)


def _dump(
    files: StoreFiles,
    begin: int,
    end: int,
    wanted: Callable[[RecordBatch], list[int]],
    bodies: bool,
    tell: Callable[[Finding], None],
    progress: Progress | None,
) -> Iterator[dict[str, object]]:
    try:
        for problem in files.problems:
            if problem.kind == "segment-file":
                tell(problem)
        total = min(end, files.segments[-1].end_offset) - files.log_begin if files.segments else 0
        log = log_scan(files)
        for found in walk(files, log, _begin(files, begin)):
            if isinstance(found, RecordBatch):
                for row in wanted(found):
                    yield fields_of(found.record(row), bodies=bodies)
                position = int(found.physical_offset[-1])
                if progress is not None:
                    progress(min(position - files.log_begin, total), total)
                if position >= end:
                    return
            elif isinstance(found, DamagedRange):
                if found.end > begin and found.start < end:
                    tell(finding_of(found, files, [], 0))
                if found.end >= end:
                    return
            else:
                for finding in bytes_behind(files, found):
                    if finding.physical_offset is not None and finding.physical_offset < end:
                        tell(finding)
    finally:
        files.close()


def _begin(files: StoreFiles, physical_offset: int) -> int:
    """Where to begin reading: at `begin` if it is a record's start, otherwise at the beginning of its segment."""
    log = log_scan(files)
    segment = log.find(physical_offset)
    if segment is None:
        later = [segment.start_offset for segment in files.segments if segment.start_offset >= physical_offset]
        return later[0] if later else (files.segments[-1].end_offset if files.segments else 0)
    header = log.peek(segment, physical_offset - segment.start_offset)
    return segment.start_offset if isinstance(header, ScanStop) else physical_offset


def fields_of(record: Record, *, bodies: bool = False) -> dict[str, object]:
    """One record under the manifest's names."""
    body: object = base64.b64encode(record.body).decode()
    if len(record.body) > BODY_SHOWN_MAX and not bodies:
        body = {"length": len(record.body), "sha256": hashlib.sha256(record.body).hexdigest()}
    fields: dict[str, object] = {
        "physicalOffset": record.physical_offset,
        "size": record.size,
        "version": record.version,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": _host(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": _host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCrc": record.body_crc,
        "body": body,
        "properties": record.properties,
    }
    joined = "".join(f"{name}\x01{value}\x02" for name, value in record.properties.items())
    if joined.encode() != record.raw_properties:
        fields["propertiesRaw"] = base64.b64encode(record.raw_properties).decode()
    return fields


def _host(host: Host) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
