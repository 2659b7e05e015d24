"""The store without gRPC: reading a queue with and without a filter, by key and by time."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aerobee_store import MessageStore, RecordBatch, StoreConfig
from aerobee_store.clock import SystemClock
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.queues.index_file import IndexService
from tests.benchmarks.disk import ANY_DISK_USAGE
from tests.benchmarks.report import microseconds, percentile, rate, table
from tests.benchmarks.store_append import BATCH, frame

_TAGS = tuple(f"tag-{number}" for number in range(10))
_STEP = 1 << 20


def run(directory: Path, messages: int, index_entries: int, queries: int) -> None:
    """Use `messages` of 256 bytes in one queue, and an index of `index_entries` that includes theirs."""
    random.seed(1)
    with tempfile.TemporaryDirectory(dir=directory) as name:
        config = StoreConfig(directory=Path(name), flush="async", index_entry_count=index_entries, **ANY_DISK_USAGE)
        with MessageStore.open(config) as store:
            for first in range(0, messages, BATCH):
                data = frame(256, first, tags=_TAGS)
                store.append_records("bench", 0, RecordBatch.parse(data, base_physical_offset=None, placed=False))
                store.commit()
            last = store.queue_range("bench", 0)[1]
            end = store.read("bench", 0, last - 1).records[0].physical_offset
        started = time.perf_counter()
        filled = _fill_index(config, end)
        filling = time.perf_counter() - started
        with MessageStore.open(config) as store:
            _queue(store, messages)
            _lookups(store, messages, index_entries, queries)
        print(f"  ({filled:,} entries more were put into the index at {rate(filled, filling)})")


def _fill_index(config: StoreConfig, physical_offset: int) -> int:
    """Add entries of keys that are never queried until the file is nearly full: they lengthen the hash chains."""
    index = IndexService(
        DiskFileSystem(), config.directory / "index", config.index_slot_count, config.index_entry_count
    )
    index.load()
    random_numbers = np.random.default_rng(1)
    now = SystemClock().now_ms()
    (file,) = index.files
    left = missing = file.entry_count - file.next_entry
    while left > 0:
        count = min(_STEP, left)
        hashes = random_numbers.integers(0, 1 << 31, count)
        index.put(hashes, np.full(count, physical_offset), np.full(count, now), now)
        left -= count
    index.close()
    return missing


def _queue(store: MessageStore, messages: int) -> None:
    rows = []
    for name, tags, share in (("all", None, 1.0), ("one tag of ten", frozenset({"tag-3"}), 0.1)):
        started = time.process_time()
        offset = found = 0
        while offset < messages:
            result = store.read("bench", 0, offset, tags=tags)
            found += len(result.records)
            offset = result.next_offset
        seconds = time.process_time() - started
        assert found == round(messages * share), f"{found} of {messages} messages read"
        rows.append((name, rate(messages, seconds), rate(found, seconds)))
    table("Store: reading a queue, 32 messages at a time, decoded, one core", ("what", "units", "messages"), rows)


def _lookups(store: MessageStore, messages: int, index_entries: int, queries: int) -> None:
    numbers = random.choices(range(messages), k=queries)

    def by_key(number: int) -> None:
        (found,) = store.query("bench", f"0102FC000000014AB00B130107{number:08X}")
        assert found.queue_offset == number

    first, last = (store.read("bench", 0, offset).records[0].store_timestamp for offset in (0, messages - 1))

    def by_time(number: int) -> None:
        timestamp = first + number * (last - first) // messages
        assert 0 <= store.offset_by_time("bench", 0, timestamp) < messages

    rows = []
    for name, look_up in ((f"key, {index_entries:,} entries", by_key), (f"time, {messages:,} messages", by_time)):
        for warmth in ("first", "again"):
            seconds = [_seconds(look_up, number) for number in numbers]
            rows.append((name, warmth, *(microseconds(percentile(seconds, share)) for share in (0.5, 0.99))))
    table(f"Store: {queries} look-ups by", ("what", "asked", "p50", "p99"), rows)


def _seconds(look_up: Callable[[int], None], number: int) -> float:
    started = time.perf_counter()
    look_up(number)
    return time.perf_counter() - started
