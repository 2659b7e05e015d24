"""Compares the index with the log: every key of every record needs an entry, every entry a record, and every search
must find it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aerobee_store.disk.file_system import File
from aerobee_store.log.log_scan import LogScan
from aerobee_store.records.record import ScanStop
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.damage import Damage
from aerobee_store.tools.findings import Finding, Findings, Severity
from aerobee_store.tools.index_layout import IndexCounts, IndexFileReader, chain, open_index
from aerobee_store.tools.store_files import StoreFiles

_CHUNK: Final = 1 << 16  # entries read at once
_SECONDS_MAX: Final = 0x7FFFFFFF
_UNTOLD: Final = -1

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries in the order of the files, as columns."""

    key_hash: Integers
    physical_offset: Integers
    seconds: Integers
    begin_timestamp: Integers
    """The base of the seconds: for the first entry of a file the end of the previous file, -1 if that was removed."""

    def __len__(self) -> int:
        return len(self.key_hash)

    def take(self, rows: Any) -> _Entries:
        return _Entries(self.key_hash[rows], self.physical_offset[rows], self.seconds[rows], self.begin_timestamp[rows])


def _joined(parts: list[_Entries]) -> _Entries:
    if len(parts) == 1:
        return parts[0]
    empty = np.zeros(0, np.int64)
    columns = [(part.key_hash, part.physical_offset, part.seconds, part.begin_timestamp) for part in parts]
    return (
        _Entries(*(np.concatenate(column) for column in zip(*columns, strict=True)))
        if columns
        else _Entries(empty, empty, empty, empty)
    )


class IndexCheck:
    """Takes the log batch by batch, then `finish`.

    Entries and records are both in log order, so both are read once, side by side.
    """

    def __init__(
        self, files: StoreFiles, log: LogScan, counts: IndexCounts | None, damage: Damage, findings: Findings
    ) -> None:
        self._files = files
        self._log = log
        self._damage = damage
        self._findings = findings
        self._readers: list[IndexFileReader] = []
        self._unknown = False
        self._open(counts)
        used = [reader for reader in self._readers if reader.header.next_entry > 1]
        self._end_offset = used[-1].header.end_offset if used else -1
        self._stream = self._read_all()
        self._next: _Entries | None = None
        self._highest = -1
        self.entries = 0
        self._behind_records = self._behind_keys = 0
        self._behind_from = -1

    @property
    def file_count(self) -> int:
        return len(self._files.index_files)

    def take(self, batch: RecordBatch) -> None:
        """Compare the keys of records with the entries of these records."""
        if self._unknown:
            return
        record, hashes = batch.index_hashes()
        offsets = batch.physical_offset[record]
        found = self._entries_before(int(batch.physical_offset[-1]) + 1)
        begin = int(batch.physical_offset[0])
        old = found.physical_offset < begin
        if old.any():
            self._check_unclaimed(found.take(old), begin)
            found = found.take(~old)
        same = len(found) == len(offsets) and bool(
            (found.physical_offset == offsets).all() and (found.key_hash == hashes).all()
        )
        if same:
            self._check_times(found, batch.store_timestamp[record])
            self.entries += len(found)
            return
        self._compare(batch, record, hashes, found)

    def finish(self, log_end: int) -> None:
        """Check the remaining entries, and report how far the index is behind."""
        if not self._unknown:
            self._check_unclaimed(self._entries_before(log_end), log_end)
            self._report_ahead(log_end)
        if self._behind_keys and not self._files.live:
            none = self._end_offset < 0
            self._findings.add(
                Finding(
                    kind="index-missing" if none else "index-behind",
                    path="index",
                    detail=f"{self._behind_keys} keys of {self._behind_records} messages are not in the index"
                    + ("; there is no index" if none else f", which ends with the message at {self._end_offset}"),
                    physical_offset=self._behind_from,
                    count=self._behind_keys,
                )
            )
        self._readers.clear()

    # --- comparing --------------------------------------------------------------------------------------------

    def _compare(self, batch: RecordBatch, record: Integers, hashes: Integers, found: _Entries) -> None:
        """Entry by entry: duplicates are harmless, as is their order within a record."""
        row = np.searchsorted(batch.physical_offset, found.physical_offset)
        right_place = batch.physical_offset[row] == found.physical_offset
        # A record's number and a hash of 31 bits make one number.
        there = row << 31 | found.key_hash
        wanted = record << 31 | hashes
        right = right_place & np.isin(there, wanted)
        if not right.all():
            # Of stores of RocketMQ 5.4 and later; the index is complete without them.
            tagged, tag_hashes = batch.tag_index_hashes()
            right |= right_place & np.isin(there, tagged << 31 | tag_hashes)
        self._check_times(found.take(right), batch.store_timestamp[row[right]])
        self.entries += int(np.count_nonzero(right))
        wrong = found.take(~right)
        for number in range(len(wrong)):
            place = int(wrong.physical_offset[number])
            if not self._damage.within(place, place + 1):
                self._report_wrong(wrong, number, "no message with this key begins there")
        missing = np.unique(wanted[~np.isin(wanted, there[right])])
        rows = missing >> 31
        behind = batch.physical_offset[rows] > self._end_offset
        if behind.any():
            if self._behind_from < 0:
                self._behind_from = int(batch.physical_offset[rows[behind][0]])
            self._behind_keys += int(np.count_nonzero(behind))
            self._behind_records += len(np.unique(rows[behind]))
        for key in missing[~behind].tolist():
            self._report_missing(batch, key >> 31, key & _SECONDS_MAX)

    def _check_times(self, entries: _Entries, store_timestamps: Integers) -> None:
        begin = entries.begin_timestamp
        wanted = np.clip((store_timestamps - begin) // 1000, 0, _SECONDS_MAX)
        wanted[begin == 0] = 0
        for number in np.flatnonzero((wanted != entries.seconds) & (begin != _UNTOLD)).tolist():
            self._report_wrong(entries, number, f"the message was stored after {wanted[number]} seconds")

    def _check_unclaimed(self, entries: _Entries, before: int) -> None:
        """Report entries before `before` that belong to none of the records taken."""
        for number in np.flatnonzero(entries.physical_offset >= self._files.log_begin).tolist():
            place = int(entries.physical_offset[number])
            if place < before and not self._damage.within(place, place + 1):
                self._report_wrong(entries, number, "no message begins there")

    def _report_ahead(self, log_end: int) -> None:
        count, first = 0, -1
        while True:
            entries = self._next if self._next is not None else next(self._stream, None)
            self._next = None
            if entries is None:
                break
            first = int(entries.physical_offset[0]) if not count and len(entries) else first
            count += len(entries)
        if count and not self._files.live:
            self._findings.add(
                Finding(
                    kind="index-ahead",
                    path="index",
                    detail=f"{count} entries name messages beyond the end of the log at {log_end}",
                    physical_offset=first,
                    count=count,
                )
            )

    def _report_wrong(self, entries: _Entries, number: int, why: str) -> None:
        place = int(entries.physical_offset[number])
        self._findings.add(
            Finding(
                kind="index-entry-wrong",
                path="index",
                detail=f"entry with key hash {int(entries.key_hash[number])}, {int(entries.seconds[number])} seconds: "
                f"{why}",
                physical_offset=place,
            )
        )

    def _report_missing(self, batch: RecordBatch, row: int, key_hash: int) -> None:
        record = batch.record(row)
        self._findings.add(
            Finding(
                kind="index-entry-missing",
                path="index",
                detail=f"a key of the message, with hash {key_hash}, has no entry; its keys are "
                f"{[record.unique_key, *record.keys]}"[:500],
                physical_offset=record.physical_offset,
                topic=record.topic,
                queue_id=record.queue_id,
                queue_offset=record.queue_offset,
            )
        )

    # --- reading the entries ----------------------------------------------------------------------------------

    def _entries_before(self, end: int) -> _Entries:
        """The next entries before physical offset `end`."""
        parts = []
        while True:
            entries = self._next if self._next is not None else next(self._stream, None)
            self._next = None
            if entries is None:
                break
            count = int(np.searchsorted(entries.physical_offset, end))
            if count:
                parts.append(entries.take(slice(0, count)))
            if count < len(entries):
                self._next = entries.take(slice(count, None))
                break
        return _joined(parts)

    def _read_all(self) -> Iterator[_Entries]:
        """The entries of all files in chunks, with rising physical offsets; others are reported and skipped."""
        before = _UNTOLD
        for reader in self._readers:
            if reader.counts is None or reader.header.next_entry <= 1:
                continue
            heads = np.zeros(reader.counts.slots, np.int32)
            broken = slots_used = 0
            for first in range(1, reader.entry_count + 1, _CHUNK):
                stored = reader.entries(first, min(first + _CHUNK, reader.entry_count + 1))
                hashes = stored["key_hash"].astype(np.int64)
                chained = chain(np.abs(hashes) % reader.counts.slots, first, heads)
                broken += int(np.count_nonzero(chained.previous != stored["previous"]))
                slots_used += chained.new_slots
                begin = np.full(len(stored), max(reader.header.begin_timestamp, 0), np.int64)
                if first == 1:
                    begin[0] = before
                yield self._in_order(
                    reader,
                    _Entries(
                        hashes, stored["physical_offset"].astype(np.int64), stored["seconds"].astype(np.int64), begin
                    ),
                )
            before = reader.header.end_timestamp
            self._check_file(reader, heads, broken, slots_used)

    def _in_order(self, reader: IndexFileReader, entries: _Entries) -> _Entries:
        offsets = entries.physical_offset
        header = reader.header
        wrong = (entries.key_hash < 0) | (offsets < header.begin_offset) | (offsets > header.end_offset)
        kept = np.where(wrong, self._highest, offsets)
        wrong |= offsets < np.maximum(np.maximum.accumulate(kept), self._highest)
        for number in np.flatnonzero(wrong).tolist():
            if offsets[number] >= self._files.log_begin or offsets[number] < 0:
                self._report_wrong(entries, number, f"it is not in the order of {reader.path.name}")
        right = entries.take(~wrong)
        if len(right):
            self._highest = int(right.physical_offset[-1])
        return right

    def _check_file(self, reader: IndexFileReader, heads: npt.NDArray[np.int32], broken: int, slots_used: int) -> None:
        """The slot table and header of a file whose entries have all been read."""
        if self._files.live and reader is self._readers[-1]:
            return  # it is being written
        header = reader.header
        path = self._files.relative(reader.path)
        table = reader.slots()
        broken += int(np.count_nonzero(table != heads))
        if broken:
            self._report(
                "index-chain", path, f"{broken} slots or entries do not refer to the previous entry", count=broken
            )
        count = reader.entry_count
        ends = reader.entries(1, 2), reader.entries(count, count + 1)
        found = tuple(int(end["physical_offset"][0]) for end in ends)
        if found != (header.begin_offset, header.end_offset):
            self._report(
                "index-file",
                path,
                f"the header has the offsets {header.begin_offset}..{header.end_offset}, the entries have "
                f"{found[0]}..{found[1]}",
            )
        begin_time, end_time = (self._store_time(offset) for offset in found)
        # A recovery that cuts entries dates the last remaining one by its seconds.
        if begin_time not in (None, header.begin_timestamp) or (
            end_time is not None and not end_time - 1000 < header.end_timestamp <= end_time
        ):
            self._report(
                "index-file",
                path,
                f"the header has the times {header.begin_timestamp}..{header.end_timestamp}, the entries have "
                f"{begin_time}..{end_time}",
            )
        # Release 4.3 counts every entry here.
        if header.slots_used not in (slots_used, count):
            self._report("index-file", path, f"the header counts {header.slots_used} used slots, {slots_used} are used")

    def _store_time(self, physical_offset: int) -> int | None:
        segment = self._log.find(physical_offset)
        if segment is None:
            return None
        try:
            header = self._log.peek(segment, physical_offset - segment.start_offset)
        except FileNotFoundError:
            return None  # removed by retention since the listing
        return None if isinstance(header, ScanStop) else header.store_timestamp

    def _open(self, counts: IndexCounts | None) -> None:
        def open_file(path: Any) -> File:
            return self._files.disk.open(path)

        for reader in open_index(self._files.index_files, open_file, counts):
            if not isinstance(reader, IndexFileReader):
                size = self._files.disk.size(reader)
                if size or not self._files.live:
                    severity: Severity = "error" if size else "warning"  # empty: a crash while it was made
                    self._report("index-file", self._files.relative(reader), f"{size} bytes", severity=severity)
                continue
            self._readers.append(reader)
            header, path = reader.header, self._files.relative(reader.path)
            if reader.counts is None and header.next_entry > 1:
                self._unknown = True
                self._report(
                    "index-counts-unknown",
                    path,
                    f"{reader.size} bytes say neither how many slots nor how many entries it has; give both, as in "
                    f"maxHashSlotNum and maxIndexNum of the configuration that it was written with",
                    severity="warning",
                )
            elif reader.counts is not None and not 0 <= header.next_entry <= reader.counts.entries:
                self._report(
                    "index-file", path, f"the next entry is {header.next_entry}, the file has {reader.counts.entries}"
                )
        for size in sorted({reader.size for reader in self._readers})[1:]:
            odd = next(reader for reader in self._readers if reader.size == size)
            self._report("index-file", self._files.relative(odd.path), f"{size} bytes, unlike the other files")

    def _report(self, kind: str, path: str, detail: str, *, severity: Severity = "error", count: int = 1) -> None:
        self._findings.add(Finding(kind=kind, severity=severity, path=path, detail=detail, count=count))
