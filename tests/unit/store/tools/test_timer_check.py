"""verify checks the timer's files: every pending message has its unit and its slot, and there is nothing else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee_store import StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.testing import ManualClock
from aerobee_store.timer.checkpoint import TimerCheckpointFile
from aerobee_store.timer.log import UNIT_SIZE
from aerobee_store.timer.wheel import SLOT_SIZE
from aerobee_store.tools.repair import repair
from aerobee_store.tools.verify import VerifyReport, verify
from tests.support.timer_harness import START_MS, TimerHarness
from tests.unit.store.tools.conftest import snapshot

LOG_FILE_SIZE = 2 * UNIT_SIZE * 20
COUNT = 120
SLOTS = 256


@dataclass
class Timed:
    """A stopped store with a timer that has delivered some messages, while others are pending."""

    directory: Path

    def patch(self, name: str, position: int, data: bytes) -> None:
        with (self.directory / name).open("r+b") as file:
            file.seek(position)
            file.write(data)

    def log(self, position: int) -> tuple[str, int]:
        """Return the file of a position in the timer log, and the place in it."""
        start = position - position % LOG_FILE_SIZE
        return f"timerlog/{start:020d}", position - start

    def patch_unit(self, position: int, at: int, data: bytes) -> None:
        """Overwrite part of a unit and clear its checksum, as RocketMQ writes it, so that only the damage is found."""
        name, begin = self.log(position)
        self.patch(name, begin + at, data)
        if len(data) < UNIT_SIZE:
            self.patch(name, begin + 44, bytes(8))

    def unit(self, position: int) -> bytes:
        name, begin = self.log(position)
        return (self.directory / name).read_bytes()[begin : begin + UNIT_SIZE]

    def last_slot(self) -> tuple[int, tuple[int, ...]]:
        """Return number and fields of the latest slot whose last unit is due at the slot's time, not to be rolled."""
        data = (self.directory / "timerwheel").read_bytes()
        slots = sorted(enumerate(struct.iter_unpack(">qqqii", data)), key=lambda slot: slot[1][0])
        for number, fields in reversed(slots):
            if struct.unpack_from(">i", self.unit(fields[2]), 12) == (1,):
                return number, fields
        raise LookupError

    def verify(self) -> VerifyReport:
        return verify(self.directory)

    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.verify().findings]


async def filled(directory: Path) -> TimerHarness:
    """Fill a timer with messages that are delivered, pending, or too far ahead for the window."""
    store = StoreConfig.tiny(directory)
    harness = await TimerHarness.start(
        store=store, file_system=DiskFileSystem(), slot_count=SLOTS, log_file_size=LOG_FILE_SIZE
    )
    messages = [(f"m{number}", START_MS + 1000 + number * 700) for number in range(COUNT)]
    await harness.send_all(messages + [(f"far{number}", START_MS + 150_000 + number) for number in range(5)])
    await harness.advance(30)
    return harness


@pytest.fixture
async def timed(tmp_path: Path) -> Timed:
    harness = await filled(tmp_path / "store")
    await harness.stop()
    return Timed(tmp_path / "store")


async def test_a_valid_timer_has_no_finding(timed: Timed) -> None:
    """There are no findings, and the remaining units are counted."""
    report = timed.verify()
    assert report.findings == []
    assert report.timer_units >= COUNT * 5 // 8
    assert report.to_json()["timerUnits"] == report.timer_units
    assert not {"timerwheel", "timerlog"} & set(report.not_looked_at)


async def test_a_timer_in_use_or_of_a_dead_process_has_no_finding(tmp_path: Path) -> None:
    """Changes in progress are no finding, while it is open and after it was killed between two flushes."""
    harness = await filled(tmp_path / "store")
    await harness.save()
    for number in range(10):
        await harness.send(f"later{number}", 5 + number)
    report = verify(tmp_path / "store")
    assert (report.state, report.findings) == ("live", [])
    await harness.advance(8)
    await harness.abandon()
    harness.store._lock.release()
    report = verify(tmp_path / "store")
    assert report.state == "crashed"
    assert [finding for finding in report.findings if finding.kind.startswith("timer-")] == []


async def test_messages_that_arrive_while_a_timer_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages stored and put on the wheel since the checkpoint was read are no finding."""
    harness = await filled(tmp_path / "store")
    await harness.save()
    saved = TimerCheckpointFile(DiskFileSystem(), tmp_path / "store" / "config" / "timercheck").load()
    assert saved is not None
    for number in range(10):
        await harness.send(f"later{number}", 5 + number)
    await harness.save()
    looks = iter([saved])
    real = TimerCheckpointFile.load
    monkeypatch.setattr(TimerCheckpointFile, "load", lambda file: next(looks, None) or real(file))
    report = verify(tmp_path / "store")
    assert (report.state, report.findings) == ("live", [])
    monkeypatch.undo()
    await harness.stop()


def last_unit(timed: Timed) -> int:
    return timed.last_slot()[1][2]


def first_file(timed: Timed) -> str:
    return f"timerlog/{min(path.name for path in (timed.directory / 'timerlog').iterdir())}"


@pytest.mark.parametrize(
    ("damage", "kinds"),
    [
        (
            lambda timed: timed.patch_unit(last_unit(timed), 28, struct.pack(">q", 1)),
            {"timer-unit-wrong", "timer-unit-missing"},
        ),
        (
            lambda timed: timed.patch_unit(last_unit(timed), 24, struct.pack(">i", 1)),
            {"timer-unit-wrong", "timer-slot"},
        ),
        (lambda timed: timed.patch_unit(last_unit(timed), 36, struct.pack(">i", 1)), {"timer-unit-wrong"}),
        (lambda timed: timed.patch_unit(last_unit(timed), 40, struct.pack(">i", 1)), {"timer-unit-wrong"}),
        (lambda timed: timed.patch_unit(last_unit(timed), 4, struct.pack(">q", UNIT_SIZE)), {"timer-chain"}),
        (
            lambda timed: timed.patch_unit(last_unit(timed), 0, bytes(UNIT_SIZE)),
            {"timer-unit-invalid", "timer-unit-missing", "timer-slot"},
        ),
        (
            lambda timed: timed.patch_unit(last_unit(timed), 0, timed.unit(last_unit(timed) - UNIT_SIZE)),
            {"timer-unit-missing", "timer-slot", "timer-chain"},
        ),
        (lambda timed: timed.patch("timerwheel", timed.last_slot()[0] * SLOT_SIZE, bytes(SLOT_SIZE)), {"timer-slot"}),
        (lambda timed: timed.patch("timerwheel", timed.last_slot()[0] * SLOT_SIZE + 27, b"\x09"), {"timer-slot"}),
        (lambda timed: timed.patch("timerwheel", timed.last_slot()[0] * SLOT_SIZE + 7, b"\x03"), {"timer-slot"}),
        (lambda timed: timed.patch("timerwheel", SLOTS * SLOT_SIZE, b"x"), {"timer-file"}),
        (lambda timed: (timed.directory / "timerwheel").unlink(), {"timer-file"}),
        (lambda timed: timed.patch(first_file(timed), LOG_FILE_SIZE - UNIT_SIZE, b"x"), {"timer-unit-invalid"}),
        (lambda timed: timed.patch("config/timercheck", 72, bytes(4)), set()),
        (
            lambda timed: timed.patch("config/timercheck", 16, struct.pack(">q", 1 << 40) + bytes(48)),
            {"timer-checkpoint"},
        ),
        (lambda timed: timed.patch("config/timercheck", 8, struct.pack(">q", 1 << 40)), {"timer-checkpoint"}),
        (lambda timed: (timed.directory / "config" / "timercheck").write_bytes(b"short"), {"timer-checkpoint"}),
        (lambda timed: (timed.directory / "config" / "timercheck").unlink(), {"timer-checkpoint"}),
    ],
)
async def test_damage_is_found(timed: Timed, damage: Callable[[Timed], object], kinds: set[str]) -> None:
    """Each kind of damage gets only its own findings; after repair, pending messages are delivered once."""
    damage(timed)
    assert set(timed.kinds()) == kinds
    before = snapshot(timed.directory)
    announced = repair(timed.directory)
    assert snapshot(timed.directory) == before
    assert repair(timed.directory, apply=True).actions == announced.actions
    assert timed.verify().ok
    harness = await TimerHarness.start(
        store=StoreConfig.tiny(timed.directory),
        file_system=DiskFileSystem(),
        clock=ManualClock(START_MS + 30_000),
        slot_count=SLOTS,
        log_file_size=LOG_FILE_SIZE,
    )
    for _ in range(4):
        await harness.advance(40)
    bodies = harness.bodies()
    await harness.stop()
    assert sorted(bodies) == sorted([*(f"m{number}" for number in range(COUNT)), *(f"far{n}" for n in range(5))])
    assert timed.kinds() == []


async def test_a_file_of_the_timer_log_is_missing(timed: Timed) -> None:
    """Verify reports the hole and the pending messages in it."""
    names = sorted(path.name for path in (timed.directory / "timerlog").iterdir())
    (timed.directory / "timerlog" / names[-2]).unlink()
    assert {"timer-file", "timer-unit-missing"} <= set(timed.kinds())


async def test_a_wheel_that_nothing_waits_for_is_not_missing(tmp_path: Path) -> None:
    """With all messages delivered, a missing wheel is no finding, before and after a start, which creates none."""
    directory = tmp_path / "store"
    harness = await filled(directory)
    for _ in range(8):
        await harness.advance(60)
    await harness.stop()
    (directory / "timerwheel").unlink()
    timed = Timed(directory)
    assert timed.kinds() == []
    again = await TimerHarness.start(
        store=StoreConfig.tiny(directory),
        file_system=DiskFileSystem(),
        clock=ManualClock(START_MS + 1_000_000),
        slot_count=SLOTS,
        log_file_size=LOG_FILE_SIZE,
    )
    await again.stop()
    assert not (directory / "timerwheel").exists()
    assert timed.kinds() == []


@pytest.mark.parametrize("seconds", [100, 10 * 86_400, 3 * 365 * 86_400])
async def test_a_clock_that_went_ahead_and_back_leaves_no_error(tmp_path: Path, seconds: int) -> None:
    """Later messages are in slots far from their own time, and all are delivered."""
    harness = await filled(tmp_path / "store")
    harness.clock.jump(seconds)
    await harness.advance(5)
    await harness.send_all([(f"future{number}", harness.clock.now_ms() + 1000 + number * 700) for number in range(20)])
    await harness.advance(5)
    harness.clock.jump(-seconds)
    await harness.advance(5)
    await harness.send_all([(f"back{number}", harness.clock.now_ms() + 1000 + number * 700) for number in range(20)])
    await harness.advance(30)
    assert {f"back{number}" for number in range(20)} <= set(harness.bodies())
    await harness.stop()
    timed = Timed(tmp_path / "store")
    assert set(timed.kinds()) == {"store-time"}
    again = await TimerHarness.start(
        store=StoreConfig.tiny(timed.directory),
        file_system=DiskFileSystem(),
        clock=harness.clock,
        slot_count=SLOTS,
        log_file_size=LOG_FILE_SIZE,
    )
    await again.advance(10)
    await again.stop()
    assert set(timed.kinds()) == {"store-time"}
