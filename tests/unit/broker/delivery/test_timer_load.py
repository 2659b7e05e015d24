"""Ten thousand delayed messages pending at once."""

from __future__ import annotations

import tracemalloc
from bisect import bisect_left
from pathlib import Path

import numpy as np

from aerobee_store import StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.records.properties import UNIQ_KEY
from aerobee_store.records.record import Message
from tests.support.timer_harness import START_MS, TOPIC, TimerHarness

COUNT = 10_000
BATCH = 1000
WATCHED = 6_000  # the last messages, during which memory is measured
# Per pending message; fails if the timer keeps an object for each.
BYTES_PER_PENDING_MAX = 10


async def test_ten_thousand_pending(tmp_path: Path) -> None:
    """Each message is delivered once and not early. Pending messages take almost no memory."""
    store = StoreConfig(
        directory=tmp_path / "store",
        segment_size=64 << 20,
        queue_file_size=60_000 * 20,
        index_slot_count=50_000,
        index_entry_count=2 * COUNT,
        disk_headroom=0,
        disk_full_ratio=1.0,
    )
    harness = await TimerHarness.start(
        store=store, file_system=DiskFileSystem(), slot_count=4096, roll_window_slots=2000, log_file_size=256 << 10
    )
    source = np.random.default_rng(3)
    # Spread over three minutes, a fifth of them within one second.
    ahead = np.concatenate(
        (source.integers(60_000, 61_000, COUNT // 5), source.integers(1000, 180_000, COUNT * 4 // 5))
    )
    due = (START_MS + ahead).tolist()
    before = 0
    for first in range(0, COUNT, BATCH):
        if first == COUNT - WATCHED:
            await harness.save()
            tracemalloc.start()
            before = _timer_memory()
        batch = [
            harness.timer.delayed(Message(TOPIC, 0, b"%d" % number, {UNIQ_KEY: str(number)}), due[number])
            for number in range(first, first + BATCH)
        ]
        await harness.store.wait_stored(harness.store.append(batch)[-1].end)
        await harness.settle()
        batch.clear()
    await harness.save()
    grown = _timer_memory() - before
    tracemalloc.stop()
    assert harness.timer.stats.pending == {TOPIC: COUNT}
    assert grown < WATCHED * BYTES_PER_PENDING_MAX
    ticks = []
    while harness.clock.now_ms() < START_MS + 181_000:
        await harness.advance(0.9)
        ticks.append(harness.clock.now_ms())
    delivered = harness.delivered()
    await harness.stop()
    assert sorted(int(item.body) for item in delivered) == list(range(COUNT))
    assert all(item.at_ms == ticks[bisect_left(ticks, due[int(item.body)])] for item in delivered)


def _timer_memory() -> int:
    """The bytes allocated by the timer's modules."""
    filters = [tracemalloc.Filter(True, f"*/aerobee_{package}/timer/*.py") for package in ("broker", "store")]
    return sum(line.size for line in tracemalloc.take_snapshot().filter_traces(filters).statistics("filename"))
