"""The statistics of a store: distributions, and counts of stored and read messages."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from aerobee_store import Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.records.record import Draft
from aerobee_store.stats import RECORD_BYTES_BOUNDS, StoreStats
from aerobee_store.testing import MemoryFileSystem
from tests.support.stored_messages import DIRECTORY


def test_sizes_of_records() -> None:
    """Sizes are counted by bit length, one by one or many at once, and shown as a histogram with the total bytes."""
    stats = StoreStats()
    sizes = [1, 255, 256, 511, 512, 1 << 22, (1 << 22) + 1, 1 << 23, (1 << 31) - 1]
    stats.count_sizes(np.array(sizes, np.int64))
    assert [(bits, count) for bits, count in enumerate(stats.record_sizes) if count] == [
        (1, 1),
        (8, 1),
        (9, 2),
        (10, 1),
        (23, 2),
        (24, 1),
        (31, 1),
    ]
    assert all(stats.record_sizes[size.bit_length()] for size in sizes)
    stats.bytes_appended = sum(sizes)
    shown = stats.record_bytes
    assert (shown.count, shown.sum) == (9, sum(sizes))
    by_bound = dict(zip(shown.bounds, shown.counts, strict=False))
    assert (by_bound[255.0], by_bound[511.0], by_bound[1023.0], by_bound[float((1 << 23) - 1)]) == (2, 2, 1, 2)
    assert shown.counts[-1] == 2


async def test_a_store_counts_sizes_waits_and_reads() -> None:
    """Every appended record is counted by size, every wait, and every read as found or missed."""
    with MessageStore.open(StoreConfig.tiny(DIRECTORY), file_system=MemoryFileSystem()) as store:
        stats = store.stats
        running = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        readable = asyncio.Event()
        store.arrival_listeners.append(lambda topic, queue_id, end: readable.set())
        small = store.append([Message("orders", 0, b"x", {"TAGS": "a"}), Message("orders", 0, b"y")])
        (large,) = store.append([Message("orders", 0, bytes(5000))])
        data = Draft(Message("orders", 0, b"raw"), store_host=("127.0.0.1", 1), property_crc=True).encode_unplaced()
        batch = store.append_records("orders", 0, RecordBatch.parse(data * 2, base_physical_offset=None, placed=False))
        async with asyncio.timeout(60):
            await store.wait_stored(small[-1].end)
            await store.wait_stored(batch.end)
            await readable.wait()
        assert stats.stored_seconds.count == 2
        assert stats.record_bytes.count == 5
        assert stats.record_bytes.sum == stats.bytes_appended == store.positions[0]
        assert stats.record_bytes.counts[0] == 4
        assert stats.record_bytes.counts[RECORD_BYTES_BOUNDS.index(16383.0)] == 1

        assert len(store.read("orders", 0, 0).records) == 5
        assert store.read("orders", 0, 5).records == []
        assert store.read("orders", 0, 0, tags=frozenset({"nothing"})).records == []
        assert store.read("nowhere", 0, 0).status == "empty"
        assert (stats.reads_found, stats.reads_missed, stats.read_seconds.count) == (1, 3, 4)
        assert (stats.messages_read, stats.bytes_read) == (5, store.positions[0])
        assert large.size > 5000
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
