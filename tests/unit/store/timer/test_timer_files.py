"""The timer's files: RocketMQ's bytes, and the result of opening them after either kind of stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from aerobee_store.errors import StoreDirectoryError, TimerLogDamagedError
from aerobee_store.records.properties import java_hash
from aerobee_store.testing import MemoryFileSystem
from aerobee_store.timer.checkpoint import TIMER_CHECKPOINT_SIZE, TimerCheckpoint
from aerobee_store.timer.files import TimerFiles
from aerobee_store.timer.log import DEFAULT, DELETE, ROLL, UNIT_SIZE, TimerLog, TimerUnit
from aerobee_store.timer.wheel import SLOT_SIZE, Slot, TimerWheel

ROOT = Path("/store")
NOW = 1_700_000_000_000
LOG_FILE_SIZE = 5 * UNIT_SIZE + 20  # five units, and a blank before the sixth


@pytest.fixture
def disk() -> MemoryFileSystem:
    disk = MemoryFileSystem()
    disk.make_directory(ROOT)
    return disk


def timer_files(disk: MemoryFileSystem, precision_ms: int = 1000, slot_count: int = 64) -> TimerFiles:
    return TimerFiles(disk, ROOT, precision_ms=precision_ms, slot_count=slot_count, log_file_size=LOG_FILE_SIZE)


def unit(number: int, slot_ms: int, magic: int = DEFAULT) -> TimerUnit:
    return TimerUnit(-1, magic, NOW, slot_ms - NOW, number * 100, 100, java_hash("orders"))


def save(files: TimerFiles, read_time_ms: int = NOW, *, clean: bool) -> TimerCheckpoint:
    dirty = files.write()
    checkpoint = files.next_checkpoint(read_time_ms, 7, 4096, NOW, clean=clean)
    files.save(dirty, checkpoint)
    files.drop_finished(checkpoint)
    return checkpoint


def numbers(files: TimerFiles, slot_ms: int) -> list[int]:
    """Return the messages of a slot, oldest first."""
    return [found.physical_offset // 100 for found in files.units(slot_ms)][::-1]


# --- Bytes --------------------------------------------------------------------------------------------------


def test_slot_has_rocketmqs_bytes(disk: MemoryFileSystem) -> None:
    """Slot 3 of 20 has the bytes that RocketMQ writes."""
    wheel = TimerWheel(disk, ROOT / "timerwheel", slot_count=20, precision_ms=1000)
    wheel.put(Slot(1_700_000_123_000, 0, 52, 2))
    wheel.write()
    content = disk.contents()[ROOT / "timerwheel"]
    assert len(content) == 20 * SLOT_SIZE
    assert content[3 * SLOT_SIZE : 4 * SLOT_SIZE].hex() == (
        "000000006553f17b" + "0000000000000000" + "0000000000000034" + "00000002" + "00000000"
    )


def test_unit_and_blank_have_rocketmqs_bytes(disk: MemoryFileSystem) -> None:
    """A unit, and the blank where four units leave 48 bytes of a file of 256."""
    log = TimerLog(disk, ROOT / "timerlog", 256)
    log.load()
    first = TimerUnit(-1, 1, NOW, 123_000, 292, 114, java_hash("TopicTest"))
    positions = [log.append(first._replace(previous=i * 52 - 52 if i else -1), NOW) for i in range(4)]
    assert positions == [0, 52, 104, 156]
    assert log.append(first, NOW) == 256
    log.write()
    content = disk.contents()[ROOT / "timerlog" / f"{0:020d}"]
    unit = bytes.fromhex("00000034ffffffffffffffff000000010000018bcfe568000001e0780000000000000124000000728e987641")
    assert content[:44] == unit
    assert content[44:52] == b"\0\0\0\1" + crc32(unit).to_bytes(4, "big"), "RocketMQ has zeros, and does not look"
    assert content[208:224].hex() == "000000300000000000000000cbd43194"
    assert [log.read(position) for position in (0, 256)] == [first, first]
    assert log.read(52) == first._replace(previous=0)
    with pytest.raises(TimerLogDamagedError, match="208"):
        log.read(208)


def test_checkpoint_has_rocketmqs_fields_and_detects_its_writer() -> None:
    """The first seven numbers are RocketMQ's; ours follow, and are valid only if RocketMQ's are unchanged."""
    checkpoint = TimerCheckpoint(NOW, 520, 9, 8192, 1000, clean=True, timestamp_ms=NOW + 1, counter=3)
    encoded = checkpoint.encode()
    assert encoded[:56] == b"".join(value.to_bytes(8, "big") for value in (NOW, 520, 9, 9, 0, NOW + 1, 3))
    assert TimerCheckpoint.decode(encoded.ljust(4096, b"\0")) == checkpoint
    changed = (NOW + 1000).to_bytes(8, "big") + encoded[8:]
    found = TimerCheckpoint.decode(changed)
    assert found is not None
    assert (found.read_time_ms, found.queue_offset, found.begin, found.clean) == (NOW + 1000, 9, None, False)
    assert TimerCheckpoint.decode(encoded[:55]) is None
    assert TimerCheckpoint.decode(b"\xff" * 56) is None


# --- Wheel and chain ----------------------------------------------------------------------------------------


def test_units_of_a_slot_are_read_across_files(disk: MemoryFileSystem) -> None:
    """A chain spans every file in which the slot has units."""
    files = timer_files(disk)
    files.open()
    for number in range(30):
        files.add(NOW + number % 3 * 1000, unit(number, NOW + number % 3 * 1000))
    for remainder in range(3):
        assert numbers(files, NOW + remainder * 1000) == list(range(remainder, 30, 3))
    assert numbers(files, NOW + 3000) == []
    slot = files.wheel.get(NOW)
    assert slot is not None
    assert slot.pending == 10


def test_slot_of_an_earlier_round_is_empty(disk: MemoryFileSystem) -> None:
    """At the same place of the ring, another time is empty and begins a new chain."""
    files = timer_files(disk)
    files.open()
    files.add(NOW, unit(1, NOW))
    later = NOW + 64_000
    assert numbers(files, later) == []
    files.add(later, unit(2, later))
    assert numbers(files, later) == [2]
    assert numbers(files, NOW) == []


@pytest.mark.parametrize("written", [False, True])
def test_next_used_slot_is_found_round_the_ring(disk: MemoryFileSystem, written: bool) -> None:
    """The search crosses the end of the file, and never returns a slot at or after the given end."""
    wheel = TimerWheel(disk, ROOT / "timerwheel", slot_count=64, precision_ms=1000)
    assert wheel.next_used(NOW, NOW + 60_000) is None
    for ahead in (63, 20, 40):
        wheel.put(Slot(NOW + ahead * 1000, 0, 0, 1))
    if written:
        wheel.write()
    assert wheel.next_used(NOW, NOW + 60_000) == NOW + 20_000
    assert wheel.next_used(NOW + 20_000, NOW + 60_000) == NOW + 20_000
    assert wheel.next_used(NOW + 21_000, NOW + 40_000) is None
    assert wheel.next_used(NOW + 21_000, NOW + 64_000) == NOW + 40_000
    assert wheel.next_used(NOW + 41_000, NOW + 64_000) == NOW + 63_000


def test_pending_messages_are_counted_by_due_time(disk: MemoryFileSystem) -> None:
    """Each slot counts once, round the ring and beyond, and slots of the previous round do not."""
    wheel = TimerWheel(disk, ROOT / "timerwheel", slot_count=64, precision_ms=1000)
    assert wheel.pending([NOW, NOW + 10_000]) == [0]
    wheel.put(Slot(NOW - 30_000, 0, 0, 100))
    for ahead, count in ((0, 1), (9, 2), (10, 4), (33, 8), (63, 16)):
        wheel.put(Slot(NOW + ahead * 1000, 0, 0, count))
    wheel.write()
    bounds = [NOW + ahead * 1000 for ahead in (0, 10, 30, 60, 1000)]
    assert wheel.pending(bounds) == [3, 4, 8, 16]


def test_nothing_is_written_before_the_first_unit(disk: MemoryFileSystem) -> None:
    """A broker without delayed messages has no timer files."""
    files = timer_files(disk)
    assert files.open().checkpoint is None
    assert not files.used
    assert files.write() == []
    assert not any("timer" in str(path) for path in disk.contents())


# --- Opening ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
def test_reopened_files_have_the_saved_state(disk: MemoryFileSystem, clean: bool) -> None:
    """After a clean stop the wheel is used, otherwise it is rebuilt from the log with the same chains."""
    files = timer_files(disk)
    files.open()
    for number in range(13):
        files.add(NOW + number % 2 * 1000, unit(number, NOW + number % 2 * 1000))
    files.add(NOW + 1000, unit(99, NOW + 1000, DEFAULT | DELETE))
    saved = save(files, clean=clean)
    again = timer_files(disk.kill())
    found = again.open()
    assert (found.checkpoint, found.complete) == (saved, True)
    assert numbers(again, NOW) == list(range(0, 13, 2))
    assert numbers(again, NOW + 1000) == [*range(1, 13, 2), 99]
    slots = [again.wheel.get(NOW + second * 1000) for second in (0, 1)]
    assert slots == [files.wheel.get(NOW + second * 1000) for second in (0, 1)]


def test_a_wheel_without_messages_need_not_exist(disk: MemoryFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    """After a kill with all units done no wheel is created, and the next starts must not report damage."""
    files = timer_files(disk)
    files.open()
    files.add(NOW, unit(1, NOW))
    save(files, NOW + 1000, clean=False)
    left = disk.kill()
    files = timer_files(left)
    assert files.open().complete
    save(files, NOW + 1000, clean=True)
    files.close()
    assert not left.exists(ROOT / "timerwheel")
    again = timer_files(left)
    assert again.open().complete
    assert numbers(again, NOW) == []
    again.add(NOW + 2000, unit(2, NOW + 2000))
    assert numbers(again, NOW + 2000) == [2]
    assert not caplog.records


@pytest.mark.parametrize("kept", range(0, SLOT_SIZE, 4))
def test_a_torn_slot_is_repaired(disk: MemoryFileSystem, caplog: pytest.LogCaptureFixture, kept: int) -> None:
    """Whatever part of a slot's bytes reached the file, its messages are on its chain again."""
    files = timer_files(disk)
    files.open()
    for number in range(3):
        files.add(NOW, unit(number, NOW))
    save(files, clean=False)
    torn = disk.kill()
    file = torn.open(ROOT / "timerwheel")
    file.write([bytes(SLOT_SIZE - kept)], NOW // 1000 % 64 * SLOT_SIZE + kept)
    again = timer_files(torn)
    assert again.open().complete
    assert numbers(again, NOW) == [0, 1, 2]
    assert again.wheel.get(NOW) == files.wheel.get(NOW)
    assert not caplog.records


def test_units_after_the_checkpoint_are_dropped(disk: MemoryFileSystem) -> None:
    """They are read again from the timer topic; if kept, a rolled message would be rolled twice."""
    files = timer_files(disk)
    files.open()
    files.add(NOW, unit(1, NOW))
    save(files, clean=False)
    for number in range(2, 12):
        files.add(NOW, unit(number, NOW))
    files.write()
    again = timer_files(disk.kill())
    assert again.open().complete
    assert numbers(again, NOW) == [1]
    again.add(NOW, unit(2, NOW))
    assert numbers(again, NOW) == [1, 2]


@pytest.mark.parametrize("seed", range(40))
def test_power_cut_keeps_the_state_of_the_checkpoint(disk: MemoryFileSystem, seed: int) -> None:
    """Whatever later writes survive, the chains are those of the last save."""
    files = timer_files(disk)
    files.open()
    for number in range(8):
        files.add(NOW + number % 2 * 1000, unit(number, NOW + number % 2 * 1000))
    save(files, clean=False)
    for number in range(8, 20):
        files.add(NOW + number % 4 * 1000, unit(number, NOW + number % 4 * 1000))
    files.write()
    again = timer_files(disk.crash(seed))
    assert again.open().complete
    assert [numbers(again, NOW + second * 1000) for second in range(4)] == [[0, 2, 4, 6], [1, 3, 5, 7], [], []]


@pytest.mark.parametrize("what", ["wheel", "wheel size", "precision"])
def test_wheel_is_rebuilt_from_the_log(disk: MemoryFileSystem, what: str) -> None:
    """A missing wheel, or one of another size or precision, is rebuilt without the slots that are done."""
    files = timer_files(disk)
    files.open()
    for number, slot_ms in enumerate((NOW - 1000, NOW, NOW + 2000, NOW + 2000)):
        files.add(slot_ms, unit(number, slot_ms))
    save(files, clean=True)
    files.close()
    if what == "wheel":
        disk.unlink(ROOT / "timerwheel")
    elif what == "wheel size":
        disk.cut(ROOT / "timerwheel", 100)
    again = timer_files(disk, precision_ms=100 if what == "precision" else 1000)
    assert again.open().complete
    assert [numbers(again, NOW + second * 1000) for second in (-1, 0, 1, 2)] == [[], [1], [], [2, 3]]


@pytest.mark.parametrize("what", ["checkpoint", "log", "first file", "unit", "short checkpoint"])
def test_invalid_files_are_rebuilt_from_the_topic(disk: MemoryFileSystem, what: str) -> None:
    """Opening reports missing or damaged files and begins empty."""
    files = timer_files(disk)
    files.open()
    for number in range(12):
        files.add(NOW, unit(number, NOW))
    save(files, clean=False)
    files.close()
    names = [ROOT / "timerlog" / f"{start:020d}" for start in (0, LOG_FILE_SIZE, 2 * LOG_FILE_SIZE)]
    match what:
        case "checkpoint":
            disk.unlink(ROOT / "config" / "timercheck")
        case "short checkpoint":
            disk.cut(ROOT / "config" / "timercheck", 20)
        case "log":
            for name in names:
                disk.unlink(name)
        case "first file":
            disk.unlink(names[1])
        case "unit":
            disk.damage(names[0], 2 * UNIT_SIZE, b"\xff")
    again = timer_files(disk)
    found = again.open()
    assert not found.complete
    assert (found.checkpoint is None) == ("checkpoint" in what)
    assert numbers(again, NOW) == []
    again.add(NOW, unit(5, NOW))
    assert numbers(again, NOW) == [5]
    save(again, clean=False)
    assert disk.size(ROOT / "config" / "timercheck") == TIMER_CHECKPOINT_SIZE
    assert timer_files(disk).open().complete


def test_a_log_of_another_file_size_is_rebuilt_from_the_topic(disk: MemoryFileSystem) -> None:
    """The size may be changed between two starts, and a file may have been cut."""
    files = timer_files(disk)
    files.open()
    files.add(NOW, unit(1, NOW))
    save(files, clean=True)
    files.close()
    files = TimerFiles(disk, ROOT, precision_ms=1000, slot_count=64, log_file_size=LOG_FILE_SIZE - UNIT_SIZE)
    assert not files.open().complete
    assert disk.list(ROOT / "timerlog") == []


@pytest.mark.parametrize("position", [0, 2 * UNIT_SIZE, LOG_FILE_SIZE + UNIT_SIZE])
def test_rocketmqs_log_position_is_older_than_its_queue_offset(disk: MemoryFileSystem, position: int) -> None:
    """RocketMQ notes the synced position before it syncs: later units belong to the noted offset, and were lost."""
    files = timer_files(disk)
    for number in range(8):
        files.add(NOW + 5000, unit(number, NOW + 5000))
    saved = save(files, clean=False)
    files.close()
    fields = replace(saved, log_position=position).encode()[:56]
    disk.damage(ROOT / "config" / "timercheck", 0, fields + bytes(100))
    files = timer_files(disk)
    found = files.open()
    assert found.checkpoint is not None
    assert (found.checkpoint.begin, found.checkpoint.queue_offset) == (None, 7)
    assert found.complete
    assert numbers(files, NOW + 5000) == list(range(8))
    position = files.log.end
    files.add(NOW + 5000, unit(8, NOW + 5000))
    assert files.log.end == position + UNIT_SIZE


def test_finished_files_of_the_log_are_removed(disk: MemoryFileSystem) -> None:
    """A file is removed when all its units are done, but never the last file, also after reopening."""
    files = timer_files(disk)
    files.open()
    for number in range(20):
        slot_ms = NOW + number * 1000
        files.add(slot_ms, unit(number, slot_ms, DEFAULT | ROLL))
    save(files, clean=True)
    assert len(disk.list(ROOT / "timerlog")) == 4
    again = timer_files(disk)
    again.open()
    again.write()
    unsaved = again.next_checkpoint(NOW + 5000, 7, 4096, NOW, clean=False)
    assert len(disk.list(ROOT / "timerlog")) == 4, "a power cut before the save needs all files"
    again.save([], unsaved)
    again.drop_finished(unsaved)
    assert disk.list(ROOT / "timerlog")[0] == f"{LOG_FILE_SIZE:020d}"
    save(again, NOW + 14_000, clean=False)
    assert disk.list(ROOT / "timerlog")[0] == f"{2 * LOG_FILE_SIZE:020d}"
    save(again, NOW + 100_000, clean=False)
    assert len(disk.list(ROOT / "timerlog")) == 1
    again.add(NOW + 50_000, unit(30, NOW + 50_000))
    assert numbers(again, NOW + 50_000) == [30]


def test_file_filled_before_and_after_a_restart_stays_until_all_is_done(disk: MemoryFileSystem) -> None:
    """Units from before a restart count too; the file was removed when only the later ones were done."""
    files = timer_files(disk)
    files.open()
    for number in range(3):
        files.add(NOW + 50_000, unit(number, NOW + 50_000))
    save(files, clean=True)
    again = timer_files(disk)
    again.open()
    for number in range(3, 8):
        again.add(NOW + 1000, unit(number, NOW + 1000))
    save(again, NOW + 10_000, clean=False)
    assert numbers(again, NOW + 50_000) == [0, 1, 2]
    save(again, NOW + 51_000, clean=False)
    with pytest.raises(TimerLogDamagedError):
        numbers(again, NOW + 50_000)


def test_a_damaged_file_is_never_done(disk: MemoryFileSystem) -> None:
    """Its other units may wait; without it, a start after a kill would not notice that they are missing."""
    files = timer_files(disk)
    files.open()
    for number in range(12):
        files.add(NOW, unit(number, NOW))
    save(files, clean=True)
    again = timer_files(disk)
    again.open()
    disk.damage(ROOT / "timerlog" / f"{0:020d}", 2 * UNIT_SIZE, b"\xff")
    save(again, NOW + 1000, clean=False)
    assert len(disk.list(ROOT / "timerlog")) == 3
    assert not timer_files(disk).open().complete


def test_foreign_files_are_refused(disk: MemoryFileSystem) -> None:
    """A directory with other files, or with files of another size, is refused."""
    disk.make_directory(ROOT / "timerlog")
    disk.write_new(ROOT / "timerlog" / "notes", b"mine")
    with pytest.raises(StoreDirectoryError, match="notes"):
        timer_files(disk).open()


@pytest.mark.parametrize("byte", range(144))
def test_a_flipped_bit_of_the_checkpoint_never_moves_the_timer(byte: int) -> None:
    """After any flip, time and positions are unchanged, or our own fields are invalid."""
    written = TimerCheckpoint(1_700_000_000_000, 5200, 17, 123_456, 1000, True, 3, 1_700_000_000_123, 9, 77)
    for bit in range(8):
        data = bytearray(written.encode())
        data[byte] ^= 1 << bit
        read = TimerCheckpoint.decode(bytes(data))
        assert read is not None
        assert (read.read_time_ms, read.log_position, read.queue_offset) == (1_700_000_000_000, 5200, 17)
        assert read == written or (read.begin is None and not read.clean)
