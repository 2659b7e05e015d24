"""Old segments are read again: damage is told once, with its place, and nothing is ever changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_store import MessageStore, StoreConfig
from aerobee_store.maintenance import scrub as scrub_module
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, Sender, Sent

SEGMENT = 16384
PER_SEGMENT = 7
FAST = 1 << 40


class World:
    """A store of some segments, and what is in it."""

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
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.store.close()


@pytest.fixture
def world(worlds: list[World]) -> World:
    worlds.append(World())
    return worlds[0]


async def test_a_sound_store_is_read_once_an_interval(world: World) -> None:
    """Every full segment is read to its end, the active one is not; then not before the interval is over."""
    stats = world.store.stats
    await world.store.scrub.read_due()
    assert (stats.scrubbed_segments, stats.scrubbed_bytes) == (3, 3 * SEGMENT)
    assert (stats.checksum_failures, world.damaged) == (0, [])
    world.clock.advance(168 * 3600 - 1)
    await world.store.scrub.read_due()
    assert stats.scrubbed_segments == 3
    world.clock.advance(1)
    await world.store.scrub.read_due()
    assert stats.scrubbed_segments == 6


async def test_damage_is_told_once_with_its_place(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Two flipped bodies, a header, and the last record of a segment: four ranges; the log is as it was, and the rest
    is served."""
    sent = world.sender.sent
    body, other, header, last = sent[1], sent[4], sent[PER_SEGMENT + 3], sent[3 * PER_SEGMENT - 1]
    world.damage(body)
    world.damage(other, 700)
    world.damage(header, 0, b"\xff\xff\xff\xff\xff\xff")
    world.damage(last, 500)
    before = world.log_files
    with caplog.at_level(logging.ERROR):
        await world.store.scrub.read_due()
    expected = [(found.physical_offset, found.end) for found in (body, other, header)]
    assert world.damaged == [*expected, (last.physical_offset, 3 * SEGMENT)]
    assert (world.store.stats.checksum_failures, world.store.stats.scrub_damage) == (4, 4)
    assert f"from={body.physical_offset} to={body.end}" in caplog.text
    assert world.log_files == before
    assert world.store.status().damaged_ranges == 4
    result = world.store.read("orders", 0, 0)
    assert [record.queue_offset for record in result.records][:4] == [0, 2, 3, 5]

    failures = world.store.stats.checksum_failures
    world.clock.advance(168 * 3600)
    await world.store.scrub.read_due()
    assert (len(world.damaged), world.store.stats.checksum_failures) == (4, failures)
    assert world.store.stats.scrubbed_segments == 6


async def test_zeros_in_the_middle_of_the_log_are_damage(world: World) -> None:
    """A lost block reads as zeros, which elsewhere is the end of the log."""
    lost = world.sender.sent[2]
    world.damage(lost, 0, bytes(lost.size))
    await world.store.scrub.read_due()
    assert world.damaged == [(lost.physical_offset, lost.end)]


async def test_records_longer_than_a_slice(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Slices may end anywhere in a record, and be shorter than one; nothing but the damage is told."""
    monkeypatch.setattr(scrub_module, "_SLICE_SIZE", 1000)
    worlds.append(world := World())
    world.damage(world.sender.sent[4], 2000)
    await world.store.scrub.read_due()
    assert world.damaged == [(world.sender.sent[4].physical_offset, world.sender.sent[4].end)]
    assert world.store.stats.scrubbed_bytes == 3 * SEGMENT
    assert len(caplog.records) == 1


async def test_a_segment_that_cannot_be_read(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An I/O error is damage, not the end of the process; the next segment is read all the same."""
    world.disk.fail_at("read", 1)
    with caplog.at_level(logging.ERROR):
        await world.store.scrub.read_due()
    assert world.damaged == [(0, SEGMENT)]
    assert "cannot be read" in caplog.text
    assert world.store.stats.scrubbed_segments == 3
    assert world.store.state == "open"


async def test_a_segment_that_goes_meanwhile(world: World) -> None:
    """A segment that retention removes is no damage."""
    world.disk.unlink(DIRECTORY / "commitlog" / f"{0:020d}")
    await world.store.scrub.read_due()
    assert world.damaged == []
    assert world.store.stats.checksum_failures == 0


async def test_damage_goes_with_its_segment(worlds: list[World]) -> None:
    """Once retention has removed the segment, its damage is no longer counted."""
    worlds.append(world := World(disk_force_clean_ratio=1e-9))
    world.damage(world.sender.sent[1])
    await world.store.scrub.read_due()
    assert world.store.status().damaged_ranges == 1
    await world.store.retention.clean()
    assert (world.store.status().segments, world.store.status().damaged_ranges) == (1, 0)


async def test_the_rate_is_bounded(worlds: list[World], monkeypatch: pytest.MonkeyPatch) -> None:
    """After each slice the service waits as long as the rate asks for."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    worlds.append(world := World(scrub_bytes_per_second=SEGMENT))
    monkeypatch.setattr(asyncio, "sleep", note)
    await world.store.scrub.read_due()
    assert sum(waits) == pytest.approx(3.0)


async def test_it_can_be_switched_off(worlds: list[World]) -> None:
    """With a rate of 0 the service ends at once."""
    worlds.append(world := World(scrub_bytes_per_second=0))
    async with asyncio.timeout(5):
        await world.store.scrub.run()
    assert world.store.stats.scrubbed_bytes == 0
