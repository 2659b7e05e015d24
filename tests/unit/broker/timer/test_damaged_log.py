"""The timer log, damaged in every way while the broker was down or running: no delayed message is lost or doubled.

The messages are in the commit log, so that the wheel and its log can always be made again.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from aerobee_store.errors import TimerLogDamagedError
from aerobee_store.testing import MemoryFileSystem, Operation
from aerobee_store.timer.checkpoint import TIMER_CHECKPOINT_SIZE
from aerobee_store.timer.log import UNIT_SIZE
from tests.support.timer_harness import START_MS, TOPIC, TimerHarness

FILE_SIZE: Final = 6 * UNIT_SIZE + 20  # six units and a blank
COUNT: Final = 40


def _gone(disk: MemoryFileSystem, path: Path) -> None:
    disk.unlink(path)


def _empty(disk: MemoryFileSystem, path: Path) -> None:
    disk.cut(path, 0)


def _cut(disk: MemoryFileSystem, path: Path) -> None:
    disk.cut(path, 3 * UNIT_SIZE)


def _zeros(disk: MemoryFileSystem, path: Path) -> None:
    with closing(disk.open(path)) as file:
        file.write([bytes(file.size)], 0)


def _flipped(disk: MemoryFileSystem, path: Path) -> None:
    with closing(disk.open(path)) as file:
        [byte] = file.read(1, UNIT_SIZE + 35)
        file.write([bytes([byte ^ 4])], UNIT_SIZE + 35)


DAMAGES: Final[dict[str, Callable[[MemoryFileSystem, Path], None]]] = {
    "gone": _gone,
    "empty": _empty,
    "cut": _cut,
    "zeros": _zeros,
    "a flipped bit": _flipped,
}
FILES: Final = {"first": 0, "middle": 1, "last": -1}
every_damage = pytest.mark.parametrize("damage", DAMAGES)
every_file = pytest.mark.parametrize("which", FILES)


async def _filled() -> TimerHarness:
    """Half of the messages are delivered, some were stored again on the way, and files of the log were removed."""
    harness = await TimerHarness.start(log_file_size=FILE_SIZE)
    await harness.send_all([(str(number), START_MS + 1000 + number * 7000) for number in range(COUNT)])
    for _ in range(13):
        await harness.advance(10)
    assert harness.timer.stats.rolled > 10
    return harness


def _log_files(disk: MemoryFileSystem) -> list[Path]:
    return sorted(path for path in disk.contents() if path.parent.name == "timerlog")


async def _down(harness: TimerHarness, stop: str) -> MemoryFileSystem:
    if stop == "stopped":
        await harness.stop()
        return harness.disk
    await harness.save()
    return harness.disk.kill()


async def _expect_all(harness: TimerHarness) -> None:
    """Each message is delivered once, those that wait count as pending, and then nothing waits."""
    await harness.settle()
    assert harness.timer.stats.pending == {TOPIC: COUNT - len(harness.bodies())}
    for _ in range(30):
        await harness.advance(7)
    assert Counter(harness.bodies()) == Counter(map(str, range(COUNT)))
    await harness.stop()


@every_file
@every_damage
@pytest.mark.parametrize("stop", ["stopped", "killed"])
async def test_damaged_while_the_broker_was_down(damage: str, which: str, stop: str) -> None:
    """A start makes wheel and log again, whatever happened to whichever file of the log."""
    harness = await _filled()
    disk = await _down(harness, stop)
    files = _log_files(disk)
    assert len(files) >= 3
    DAMAGES[damage](disk, files[FILES[which]])
    await _expect_all(await harness.next_life(disk))


@every_file
@pytest.mark.parametrize("damage", ["zeros", "a flipped bit"])
async def test_damaged_while_the_broker_runs(damage: str, which: str) -> None:
    """The timer finds it when it reads the log, at the latest when the slot is due, and makes the log again."""
    harness = await _filled()
    await harness.save()
    DAMAGES[damage](harness.disk, _log_files(harness.disk)[FILES[which]])
    harness.timer._files.log._block = b""  # what was read before
    await _expect_all(harness)


@pytest.mark.parametrize("reader", ["listing", "retention"])
async def test_whoever_finds_the_damage_has_the_log_made_again(reader: str) -> None:
    """Also those that read units which are not due: then they see all of them."""
    harness = await _filled()
    await harness.save()
    _zeros(harness.disk, _log_files(harness.disk)[1])
    harness.timer._files.log._block = b""
    end = harness.store.positions[0]

    async def read() -> None:
        if reader == "listing":
            await harness.timer.listing.page(topic=TOPIC, begin_ms=0, end_ms=1 << 60, after=None, count=1000)
        else:
            await harness.timer.keep_from(end)

    with pytest.raises(TimerLogDamagedError, match="repeat the call"):
        await read()
    await harness.settle()
    await read()
    await _expect_all(harness)


@pytest.mark.parametrize("cut", ["killed", "power"])
async def test_stopped_anywhere_within_making_the_log_again(cut: str) -> None:
    """At any operation on the disk, by a kill or a power cut: the next start completes it."""
    harness = await _filled()
    disk = await _down(harness, "stopped")
    _zeros(disk, _log_files(disk)[1])
    left: list[MemoryFileSystem] = []

    def note(operation: Operation) -> None:
        if "timer" in str(operation.path) and "consumequeue" not in str(operation.path):
            left.append(disk.kill() if cut == "killed" else disk.crash(operation.number))

    disk.before_operation = note
    harness = await harness.next_life(disk)
    await harness.settle()
    await harness.save()
    disk.before_operation = None
    assert len(left) > 20
    for number in range(0, len(left), len(left) // 12):
        harness = await harness.next_life(left[number])
        await _expect_all(harness)


async def test_a_disk_that_is_full_while_the_log_is_made_again() -> None:
    """The broker ends; the start after there is space completes it."""
    harness = await _filled()
    disk = await _down(harness, "stopped")
    _zeros(disk, _log_files(disk)[1])

    def refuse(operation: Operation) -> None:
        if operation.name == "create" and operation.path.parent.name == "timerlog":
            raise OSError(errno.ENOSPC, "No space left on device", str(operation.path))

    disk.before_operation = refuse
    harness = await harness.next_life(disk)
    with pytest.raises(ExceptionGroup) as raised:
        await harness._tasks[1]
    assert "No space left" in repr(raised.value.exceptions)
    harness._tasks.pop()
    disk.before_operation = None
    await _expect_all(await harness.next_life(disk.kill()))


@pytest.mark.parametrize("seconds", [-4000, -70, 70, 4000])
async def test_damaged_while_the_clock_was_moved(seconds: int) -> None:
    """Nothing is lost, and what was delivered does not come again."""
    harness = await _filled()
    disk = await _down(harness, "stopped")
    _zeros(disk, _log_files(disk)[1])
    harness.clock.jump(seconds)
    harness = await harness.next_life(disk)
    await harness.settle()
    harness.clock.jump(max(0, -seconds))
    await harness.settle()
    for _ in range(30):
        await harness.advance(7)
    assert Counter(harness.bodies()) == Counter(map(str, range(COUNT)))
    await harness.stop()


@every_file
@pytest.mark.parametrize("damage", ["gone", "cut", "zeros"])
async def test_damaged_after_rocketmq_wrote_the_files(damage: str, which: str) -> None:
    """It has no checksums, and its checkpoint does not say where the log begins: the wheel does."""
    harness = await _filled()
    disk = await _down(harness, "killed")
    checkpoint = Path("/store/config/timercheck")
    disk.damage(checkpoint, 56, bytes(TIMER_CHECKPOINT_SIZE - 56))
    for path in _log_files(disk):
        for begin in range(0, FILE_SIZE - UNIT_SIZE, UNIT_SIZE):
            disk.damage(path, begin + UNIT_SIZE - 8, bytes(8))
    DAMAGES[damage](disk, _log_files(disk)[FILES[which]])
    harness = await harness.next_life(disk)
    await harness.settle()
    for _ in range(30):
        await harness.advance(7)
    assert set(harness.bodies()) == set(map(str, range(COUNT)))
    await harness.stop()
