"""Files with a checksum: whichever byte of one is damaged, a reader gets what was written, or learns of the damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from aerobee_store import StoreError
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.queues.topic_removal import DeletedTopics
from aerobee_store.testing import MemoryFileSystem
from aerobee_store.timer.checkpoint import TimerCheckpoint
from aerobee_store.timer.files import TimerFiles
from aerobee_store.timer.log import UNIT_SIZE, TimerUnit
from tests.support.stored_messages import DIRECTORY

NOW: Final = 1_700_000_000_000
TIMER_LOG: Final = DIRECTORY / "timerlog" / f"{0:020d}"
TIMER_CHECKPOINT: Final = DIRECTORY / "config" / "timercheck"


def _checkpoint(disk: MemoryFileSystem) -> Checkpoint:
    checkpoint = Checkpoint(disk, DIRECTORY / "checkpoint")
    checkpoint.load()
    return checkpoint


def _write_checkpoint(disk: MemoryFileSystem) -> None:
    checkpoint = _checkpoint(disk)
    checkpoint.derived_offset = 4321
    checkpoint.save(checkpoint.encoded())


def _deletions(disk: MemoryFileSystem) -> DeletedTopics:
    deletions = DeletedTopics(disk, DIRECTORY)
    deletions.load()
    return deletions


def _write_deletions(disk: MemoryFileSystem) -> None:
    deletions = _deletions(disk)
    deletions.add(81_920, {"orders": {0: 117, 1: 98}})
    deletions.save(deletions.content())


def _timer(disk: MemoryFileSystem) -> TimerFiles:
    return TimerFiles(disk, DIRECTORY, precision_ms=1000, slot_count=8, log_file_size=8 * UNIT_SIZE)


def _write_timer(disk: MemoryFileSystem) -> None:
    """Two slots of two units each, left by an orderly stop."""
    files = _timer(disk)
    for number in range(4):
        slot_ms = NOW + number % 2 * 3000
        files.add(slot_ms, TimerUnit(-1, 1, NOW, slot_ms - NOW, 100 * number, 100, 7))
    files.save(files.write(), files.next_checkpoint(NOW, 4, 4096, NOW, clean=True))
    files.close()


def _timer_units(disk: MemoryFileSystem) -> object:
    """The slots and their units; None if the files have to be made again from the timer topic."""
    files = _timer(disk)
    if not files.open().complete:
        return None
    times = [NOW + second * 1000 for second in range(8)]
    return [(files.wheel.get(time_ms), list(files.units(time_ms))) for time_ms in times]


def _timer_log(disk: MemoryFileSystem) -> object:
    """All units of the log, as the scan that makes the wheel again reads them."""
    files = _timer(disk)
    files.log.load()
    files.log.cut(4 * UNIT_SIZE)
    return [units.tolist() for _, units in files.log.scan()]


def _timer_checkpoint(disk: MemoryFileSystem) -> object:
    found = TimerCheckpoint.decode(disk.read_bytes(TIMER_CHECKPOINT))
    return None if found is None or found.begin is None else (found, found.precision_ms)


class Checked(NamedTuple):
    """A file with a checksum. `read` gives what it says, or None, or raises StoreError if it is damaged."""

    path: Path
    write: Callable[[MemoryFileSystem], None]
    read: Callable[[MemoryFileSystem], object]
    size: int | None = None  # what the checksum covers and the checksum itself, at the file's begin; None: all of it
    hides: bool = False  # other files tell what it said, so that damage is neither an error nor a loss


FILES: Final = {
    "checkpoint": Checked(
        DIRECTORY / "checkpoint", _write_checkpoint, lambda disk: _checkpoint(disk).derived_offset, 52
    ),
    "deleted topics": Checked(
        DIRECTORY / "config" / "deletedTopics.json", _write_deletions, lambda disk: _deletions(disk).content()
    ),
    "timer wheel": Checked(DIRECTORY / "timerwheel", _write_timer, _timer_units, hides=True),
    "timer log, chains": Checked(TIMER_LOG, _write_timer, _timer_units, 4 * UNIT_SIZE),
    "timer log, scan": Checked(TIMER_LOG, _write_timer, _timer_log, 4 * UNIT_SIZE),
    "timer checkpoint": Checked(TIMER_CHECKPOINT, _write_timer, _timer_checkpoint, 76),
}


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_never_believed(name: str) -> None:
    """A reader gets what was written, or an error, or nothing. One bit of each byte: all are alike to a checksum."""
    file = FILES[name]
    written = MemoryFileSystem()
    written.make_directory(DIRECTORY / "config")
    file.write(written)
    data = written.contents()[file.path]
    expected = file.read(written.kill())
    assert expected is not None
    noticed = 0
    for position in range(len(data) if file.size is None else file.size):
        disk = written.kill()
        disk.damage(file.path, position, bytes([data[position] ^ 1 << position % 8]))
        try:
            found = file.read(disk)
        except StoreError:
            found = None
        assert found in (expected, None), f"byte {position}"
        noticed += found is None
    assert (noticed == 0) if file.hides else noticed > 0
