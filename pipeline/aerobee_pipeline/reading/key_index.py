"""Finds the messages of a key through the index of a store, without reading the rest of its log.

The index is trusted only where it can be checked. Its entries are read in the order of the log, so a stretch without
any entry shows: the index was switched off there, or ends early, or its files are gone. These stretches are read from
the log, as is everything after the last entry. Messages without any key, which have no entry, are not looked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from aerobee_store.queues.index_file import ENTRY_SIZE
from aerobee_store.records.properties import index_hashes
from aerobee_store.tools.index_layout import IndexFileReader, open_index
from aerobee_store.tools.store_files import StoreFiles

# Bytes of the log between two entries above which it is read. Messages of most producers have an id, which is indexed,
# so entries are rarely further apart than a message is long.
_STRETCH_SIZE: Final = 256 << 10
_ENTRIES_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """Where the messages of some keys may be."""

    records: tuple[int, ...]
    """Physical offsets of records, rising."""
    stretches: tuple[tuple[int, int], ...]
    """Ranges of the log that the index does not cover; the last one has no end of its own."""
    bytes_read: int
    """Of the index."""


def find_keys(files: StoreFiles, topics: Iterable[str], keys: Iterable[str]) -> KeyPlaces | None:
    """The places of messages with one of the keys; None if the index cannot say: a file of it is unreadable."""
    pairs = [(topic, key) for topic in topics for key in keys]
    wanted = np.unique(np.array(index_hashes(pairs), np.int64))
    records: list[int] = []
    stretches: list[tuple[int, int]] = []
    position = files.log_begin
    size = 0
    readers = open_index(files.index_files, files.disk.open, None)
    try:
        for reader in readers:
            if not isinstance(reader, IndexFileReader) or (reader.counts is None and reader.header.next_entry > 1):
                return None
            for first in range(1, reader.entry_count + 1, _ENTRIES_AT_ONCE):
                entries = reader.entries(first, min(first + _ENTRIES_AT_ONCE, reader.entry_count + 1))
                size += len(entries) * ENTRY_SIZE
                offsets = entries["physical_offset"].astype(np.int64)
                hits = offsets[np.isin(entries["key_hash"].astype(np.int64), wanted)]
                records += hits[hits >= files.log_begin].tolist()
                # Repeated and older entries never move the position back.
                reached = np.maximum.accumulate(np.concatenate(([position], offsets)))
                for at in np.flatnonzero(np.diff(reached) > _STRETCH_SIZE).tolist():
                    stretches.append((int(reached[at]), int(reached[at + 1])))
                position = int(reached[-1])
    finally:
        for reader in readers:
            if isinstance(reader, IndexFileReader):
                reader.close()
    end = files.segments[-1].end_offset if files.segments else 0
    if position < end:
        stretches.append((position, end))
    return KeyPlaces(tuple(sorted(set(records))), tuple(stretches), size)
