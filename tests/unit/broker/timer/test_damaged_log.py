"""The timer log, damaged in every way while the broker was down or running: no delayed message is lost or doubled.

The messages are in the commit log, so that the wheel and its log can always be made again.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from aerobee_store import MessageStore
from aerobee_store.errors import TimerLogDamagedError
from aerobee_store.log import slices
from aerobee_store.records.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
)
from aerobee_store.records.record import Message
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


class PausedSearch:
    """Damages a running timer, and stops the search for marks that follows after some slices of the log."""

    def __init__(self, harness: TimerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slices, "_SLICE_SIZE", 1000)
        monkeypatch.setattr(harness.store, "in_disk_thread", self._run)
        self._harness = harness
        self._run_at_once = MessageStore.in_disk_thread
        self._go_on = asyncio.Event()
        self.reached = asyncio.Event()
        self.slices = 0

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function is slices._containing:
            self.slices += 1
            if self.slices == 5:
                self.reached.set()
                await self._go_on.wait()
        return await self._run_at_once(self._harness.store, function, *arguments)

    async def begin(self) -> None:
        await self._harness.save()
        for path in _log_files(self._harness.disk):
            _zeros(self._harness.disk, path)
        self._harness.timer._files.log._block = b""
        self._harness.clock.advance(14)
        self._harness.timer.wake()
        await asyncio.wait_for(self.reached.wait(), 60)

    def go_on(self) -> None:
        self._go_on.set()


@pytest.fixture
async def paused(monkeypatch: pytest.MonkeyPatch) -> tuple[TimerHarness, PausedSearch]:
    harness = await _filled()
    search = PausedSearch(harness, monkeypatch)
    await search.begin()
    return harness, search


Paused = tuple[TimerHarness, PausedSearch]


async def test_recalled_while_the_log_is_made_again(paused: Paused) -> None:
    """The log is searched in slices, and clients are answered between them."""
    harness, search = paused
    last = COUNT - 1
    await harness.timer.recall(TOPIC, f"id-{last}", START_MS + 1000 + last * 7000)
    search.go_on()
    await harness.settle()
    assert search.slices > 10
    for _ in range(30):
        await harness.advance(7)
    assert Counter(harness.bodies()) == Counter(map(str, range(last)))
    await harness.stop()


async def test_sent_while_the_log_is_made_again(paused: Paused) -> None:
    harness, search = paused
    message = Message(TOPIC, 0, b"late", {UNIQ_KEY: "late"})
    [place] = harness.store.append([harness.timer.delayed(message, harness.clock.now_ms() + 500)])
    await harness.store.wait_stored(place.end)
    search.go_on()
    await harness.advance(1)
    for _ in range(30):
        await harness.advance(7)
    assert Counter(harness.bodies()) == Counter(["late", *map(str, range(COUNT))])
    await harness.stop()


async def test_the_log_is_kept_while_it_is_searched(paused: Paused) -> None:
    """Retention may not remove what is perhaps pending. Afterwards it may, once that is stored again."""
    harness, search = paused
    end = harness.store.positions[0]
    assert await harness.timer.keep_from(end) == 0
    search.go_on()
    await harness.settle()
    assert await harness.timer.keep_from(end) == end
    await _expect_all(harness)


@pytest.mark.parametrize("end", ["stopped", "killed", "power"])
async def test_ended_while_the_log_is_searched(paused: Paused, end: str) -> None:
    """Nothing was changed; the next start makes the log again."""
    harness, search = paused
    if end == "stopped":
        stopping = asyncio.create_task(harness.stop())
        await asyncio.sleep(0)
        search.go_on()
        await stopping
        assert search.slices < 10
    disk = harness.disk
    left = disk if end == "stopped" else disk.kill() if end == "killed" else disk.crash(1)
    await _expect_all(await harness.next_life(left))


async def test_the_clock_moves_while_the_log_is_searched(paused: Paused) -> None:
    harness, search = paused
    harness.clock.jump(-4000)
    search.go_on()
    await harness.settle()
    harness.clock.jump(4000)
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


@pytest.mark.parametrize("files", ["gone", "damaged while the broker runs"])
async def test_what_rocketmq_took_from_the_timer_topic(files: str) -> None:
    """Its copies have no mark. A message that it delivered, or stored again on the way, comes once nevertheless: when
    its files are not there, as at a promoted replica, and when they are made again."""
    harness = await TimerHarness.start()
    for number, (name, copies) in enumerate([("delivered", 0), ("rolled", 1), ("rolled twice", 2), ("waiting", -1)]):
        original = harness.timer.delayed(Message(TOPIC, 0, name.encode(), {UNIQ_KEY: name}), START_MS + 50_000 + number)
        harness.store.append([original])
        taken = {**original.properties, TIMER_ENQUEUE_MS: str(START_MS), TIMER_DEQUEUE_MS: str(START_MS)}
        for times in range(1, copies + 1):
            harness.store.append([replace(original, properties={**taken, TIMER_ROLL_TIMES: str(times)})])
        if not copies:
            harness.store.append([Message(TOPIC, 0, name.encode(), _without_destination(taken))])
    await harness.store.wait_stored(harness.store.positions[0])
    if files == "gone":
        harness = await harness.next_life(_without_timer_files(harness.disk.kill()))
    else:
        harness.timer._parts.note_damage(TimerLogDamagedError(Path("timerlog"), 0))
    await harness.settle()
    assert harness.timer.stats.pending == {TOPIC: 3}
    harness = await harness.next_life(harness.disk.kill())
    for _ in range(12):
        await harness.advance(7)
    assert Counter(harness.bodies()) == Counter(["delivered", "rolled", "rolled twice", "waiting"])
    await harness.stop()


def _without_destination(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name not in (REAL_TOPIC, REAL_QUEUE_ID)}


def _without_timer_files(disk: MemoryFileSystem) -> MemoryFileSystem:
    for path in disk.contents():
        if path.parent.name == "timerlog" or path.name in ("timerwheel", "timercheck"):
            disk.unlink(path)
    return disk
