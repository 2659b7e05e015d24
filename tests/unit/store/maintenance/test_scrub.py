"""Old segments are read again: damage is reported once with its place, and nothing is changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_store import MessageStore, StoreConfig
from aerobee_store.log import slices
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, Sender, Sent

SEGMENT = 16384
PER_SEGMENT = 7
FAST = 1 << 40


class Harness:
    """A store of some segments, and the messages in it."""

    def __init__(self, segments: int = 4, **settings: Any) -> None:
        self.clock = ManualClock()
        self.disk = MemoryFileSystem(clock=self.clock)
        config = replace(StoreConfig.tiny(DIRECTORY), **({"scrub_bytes_per_second": FAST} | settings))
        self.store = MessageStore.open(config, file_system=self.disk, clock=self.clock)
        self.sender = Sender()
        for _ in range(segments * PER_SEGMENT):
            self.sender.append(self.store, [self.sender.message(2100)])
        self.store.flush()

    def damage(self, sent: Sent, at: int = 300, data: bytes = b"damage") -> None:
        start = sent.physical_offset - sent.physical_offset % SEGMENT
        self.disk.damage(DIRECTORY / "commitlog" / f"{start:020d}", sent.physical_offset - start + at, data)

    @property
    def damaged(self) -> list[tuple[int, int]]:
        return [(damage.start, damage.end) for damage in self.store._log.damaged]

    @property
    def log_files(self) -> dict[Path, bytes]:
        return {path: data for path, data in self.disk.contents().items() if "commitlog" in path.parts}


@pytest.fixture
def harnesses() -> Iterator[list[Harness]]:
    made: list[Harness] = []
    yield made
    for harness in made:
        harness.store.close()


@pytest.fixture
def harness(harnesses: list[Harness]) -> Harness:
    harnesses.append(Harness())
    return harnesses[0]


async def test_a_sound_store_is_read_once_an_interval(harness: Harness) -> None:
    """Every full segment is read once per interval, to its end; the active one is not."""
    stats = harness.store.stats
    await harness.store.scrub.read_due()
    assert (stats.scrubbed_segments, stats.scrubbed_bytes) == (3, 3 * SEGMENT)
    assert (stats.checksum_failures, harness.damaged) == (0, [])
    harness.clock.advance(168 * 3600 - 1)
    await harness.store.scrub.read_due()
    assert stats.scrubbed_segments == 3
    harness.clock.advance(1)
    await harness.store.scrub.read_due()
    assert stats.scrubbed_segments == 6


async def test_damage_is_reported_once_with_its_place(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Two flipped bodies, a header and the last record of a segment give four ranges.

    The log is unchanged, and the other messages are served.
    """
    sent = harness.sender.sent
    body, other, header, last = sent[1], sent[4], sent[PER_SEGMENT + 3], sent[3 * PER_SEGMENT - 1]
    harness.damage(body)
    harness.damage(other, 700)
    harness.damage(header, 0, b"\xff\xff\xff\xff\xff\xff")
    harness.damage(last, 500)
    before = harness.log_files
    with caplog.at_level(logging.ERROR):
        await harness.store.scrub.read_due()
    expected = [(found.physical_offset, found.end) for found in (body, other, header)]
    assert harness.damaged == [*expected, (last.physical_offset, 3 * SEGMENT)]
    assert (harness.store.stats.checksum_failures, harness.store.stats.scrub_damage) == (4, 4)
    assert f"from={body.physical_offset} to={body.end}" in caplog.text
    assert harness.log_files == before
    assert harness.store.status().damaged_ranges == 4
    result = harness.store.read("orders", 0, 0)
    assert [record.queue_offset for record in result.records][:4] == [0, 2, 3, 5]

    failures = harness.store.stats.checksum_failures
    harness.clock.advance(168 * 3600)
    await harness.store.scrub.read_due()
    assert (len(harness.damaged), harness.store.stats.checksum_failures) == (4, failures)
    assert harness.store.stats.scrubbed_segments == 6


async def test_zeros_in_the_middle_of_the_log_are_damage(harness: Harness) -> None:
    """A lost block reads as zeros, which elsewhere mark the end of the log."""
    lost = harness.sender.sent[2]
    harness.damage(lost, 0, bytes(lost.size))
    await harness.store.scrub.read_due()
    assert harness.damaged == [(lost.physical_offset, lost.end)]


async def test_records_longer_than_a_slice(
    harnesses: list[Harness], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Slices may end within a record and be shorter than one; only the damage is reported."""
    monkeypatch.setattr(slices, "_SLICE_SIZE", 1000)
    with caplog.at_level(logging.WARNING):  # below it, a slow disk is in the log, too
        harnesses.append(harness := Harness())
        harness.damage(harness.sender.sent[4], 2000)
        await harness.store.scrub.read_due()
    assert harness.damaged == [(harness.sender.sent[4].physical_offset, harness.sender.sent[4].end)]
    assert harness.store.stats.scrubbed_bytes == 3 * SEGMENT
    assert len(caplog.records) == 1


async def test_a_segment_that_cannot_be_read(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """An I/O error counts as damage and does not end the process; the next segment is still read."""
    harness.disk.fail_at("read", 1)
    with caplog.at_level(logging.ERROR):
        await harness.store.scrub.read_due()
    assert harness.damaged == [(0, SEGMENT)]
    assert "cannot be read" in caplog.text
    assert harness.store.stats.scrubbed_segments == 3
    assert harness.store.state == "open"


async def test_a_segment_removed_during_the_scrub(harness: Harness) -> None:
    """A segment removed by retention is no damage."""
    harness.disk.unlink(DIRECTORY / "commitlog" / f"{0:020d}")
    await harness.store.scrub.read_due()
    assert harness.damaged == []
    assert harness.store.stats.checksum_failures == 0


async def test_damage_is_dropped_with_its_segment(harnesses: list[Harness]) -> None:
    """Once retention has removed the segment, its damage is no longer counted."""
    harnesses.append(harness := Harness(disk_force_clean_ratio=1e-9))
    harness.damage(harness.sender.sent[1])
    await harness.store.scrub.read_due()
    assert harness.store.status().damaged_ranges == 1
    await harness.store.retention.clean()
    assert (harness.store.status().segments, harness.store.status().damaged_ranges) == (1, 0)


async def test_the_rate_is_bounded(harnesses: list[Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    """After each slice the service waits as long as the rate requires."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    harnesses.append(harness := Harness(scrub_bytes_per_second=SEGMENT))
    monkeypatch.setattr(asyncio, "sleep", note)
    await harness.store.scrub.read_due()
    assert sum(waits) == pytest.approx(3.0)


async def test_the_scrub_can_be_switched_off(harnesses: list[Harness]) -> None:
    """With a rate of 0 the service ends at once."""
    harnesses.append(harness := Harness(scrub_bytes_per_second=0))
    async with asyncio.timeout(60):
        await harness.store.scrub.run()
    assert harness.store.stats.scrubbed_bytes == 0


async def test_a_segment_that_is_unlinked_before_its_turn_is_skipped(harness: Harness) -> None:
    """Retention removes a file in a thread before the log drops the segment."""
    first = harness.store._log.files.files[0]
    first._view = first._file = None  # like a segment that has not been read yet
    harness.disk.unlink(first.path)
    await harness.store.scrub.read_due()
    assert harness.store.stats.scrubbed_segments == 2
    assert harness.damaged == []
