"""Every situation of `durability/situations.py`: each test names those it creates, and recovery must report them."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

import pytest

from aerobee_store import MessageStore, StoreConfig, StoreError
from aerobee_store.durability import log_cut
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.durability.recovery import Recovery, RecoveryReport
from aerobee_store.durability.situations import Beginning, Found, Situation
from aerobee_store.queues.consume_queue import FILLER_SIZE, FILLER_UNIT, UNIT, UNIT_SIZE
from aerobee_store.queues.index_file import HEADER_SIZE, IndexService
from aerobee_store.records.record import RECORD_SIZE_MIN, SYS_FLAG_INNER_BATCH, SYS_FLAG_PREPARED, Message
from aerobee_store.testing import ManualClock, MemoryFileSystem, Operation
from aerobee_store.testing.memory_inodes import BLOCK_SIZE
from tests.support.stored_messages import DIRECTORY, Sender, Sent, compare

CONFIG = replace(StoreConfig.tiny(DIRECTORY), queue_file_size=100 * UNIT_SIZE)
SEGMENT = CONFIG.segment_size
QUEUE = DIRECTORY / "consumequeue" / "orders" / "0" / f"{0:020d}"
CHECKPOINT = DIRECTORY / "checkpoint"


def segment(number: int) -> str:
    return f"{number * SEGMENT:020d}"


class Scene:
    """A store of three segments with 30 messages, closed or left by a killed process."""

    def __init__(self, *, closed: bool, count: int = 30, size: int = 1300, synced: int | None = None) -> None:
        self.clock = ManualClock()
        self.disk = MemoryFileSystem(clock=self.clock)
        sender = Sender()
        store = MessageStore.open(CONFIG, file_system=self.disk, clock=self.clock)
        for number in range(count):
            if number == synced:
                store.flush()
            self.clock.advance(1)
            sender.append(store, [sender.message(size)])
        if synced is None:
            store.flush()
        else:
            store.commit()
        if closed:
            store.close()
        self.sent = sender.sent
        self.disk = self.disk.kill()

    def open(self) -> MessageStore:
        return MessageStore.open(CONFIG, file_system=self.disk, clock=self.clock)

    def damage(self, sent: Sent, position: int, data: bytes) -> None:
        path = DIRECTORY / "commitlog" / f"{sent.physical_offset - sent.physical_offset % SEGMENT:020d}"
        self.disk.damage(path, sent.physical_offset % SEGMENT + position, data)

    def remove_tree(self, name: str) -> None:
        for path in self.disk.contents():
            if path.is_relative_to(DIRECTORY / name):
                self.disk.unlink(path)

    def set_checkpoint(self, *, derived: bool, index_timestamp: int | None = None, log_timestamp: int) -> None:
        """Set the times as RocketMQ would write them, with or without the fields that only we write."""
        content = bytearray(self.disk.contents()[CHECKPOINT])
        index = log_timestamp if index_timestamp is None else index_timestamp
        content[:24] = struct.pack(">qqq", log_timestamp, log_timestamp, index)
        if not derived:
            content[40:52] = bytes(12)
        self.disk.damage(CHECKPOINT, 0, bytes(content))


Test = TypeVar("Test", bound=Callable[..., None])
MET: Final[dict[str, tuple[Situation, ...]]] = {}
"""Test -> the situations that it creates."""


def meets(*situations: Situation) -> Callable[[Test], Test]:
    """Mark a test with the situations that it creates: one of its starts must report each of them."""

    def note(test: Test) -> Test:
        MET[test.__name__] = situations
        return test

    return note


@pytest.fixture(autouse=True)
def _situations_are_met(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    reported: set[Situation] = set()
    run = Recovery.run

    def noting(recovery: Recovery) -> RecoveryReport:
        report = run(recovery)
        reported.update(report.situations)
        return report

    monkeypatch.setattr(Recovery, "run", noting)
    yield
    missing = set(MET.get(request.function.__name__, ())) - reported
    assert not missing, f"no start of this test reported {missing}"


@pytest.mark.parametrize("situation", [*Beginning, *Found], ids=str)
def test_every_situation_has_a_test(situation: Situation) -> None:
    """Every row of the tables has a test."""
    assert any(situation in situations for situations in MET.values())


# --- 1. where reading the log begins


@meets(Beginning.CLEAN)
def test_clean_and_the_last_unit_names_a_record() -> None:
    """Only the log after the queues' end is read."""
    scene = Scene(closed=True)
    with scene.open() as store:
        assert (store.recovery.clean, store.recovery.records) == (True, 0)
        assert store.recovery.begin == store.recovery.end == scene.sent[-1].end
        compare(store, scene.sent, scene.sent)


@meets(Beginning.CLEAN_INDEX_BEHIND)
def test_clean_and_the_index_is_not_known_to_be_complete() -> None:
    """Reading begins at the last indexed record."""
    scene = Scene(closed=True)
    last = scene.sent[-1]
    scene.set_checkpoint(derived=True, log_timestamp=last.store_timestamp, index_timestamp=last.store_timestamp - 5000)
    with scene.open() as store:
        assert store.recovery.begin == last.physical_offset
        compare(store, scene.sent, scene.sent)


@meets(Beginning.CLEAN_QUEUES_AHEAD)
def test_clean_and_the_queues_are_ahead_of_the_log() -> None:
    """Recovery works as after a crash, and units without a record are dropped."""
    scene = Scene(closed=True)
    scene.damage(scene.sent[-1], 4, bytes(4))
    with scene.open() as store:
        assert store.recovery.begin == 2 * SEGMENT
        assert store.recovery.units_dropped == 1
        assert len(compare(store, scene.sent, scene.sent[:-1])) == 29


def test_clean_and_the_last_unit_names_a_record_that_was_damaged_before() -> None:
    """An earlier start reported the damage and kept the unit, so the queues are not ahead.

    Nothing is read again.
    """
    scene = Scene(closed=False)
    with scene.open() as store:
        half = Message("orders", 0, b"half", sys_flag=SYS_FLAG_PREPARED)
        end = store.append([half])[0].end
        store.flush()
    scene.disk.unlink(QUEUE.parents[3] / "checkpoint")
    scene.damage(scene.sent[-1], 4, bytes(4))
    scene.disk.write_new(DIRECTORY / "abort", b"")
    with scene.open() as store:
        assert [(found.start, found.end) for found in store.recovery.damaged] == [
            (scene.sent[-1].physical_offset, scene.sent[-1].end)
        ]
    with scene.open() as store:
        assert (store.recovery.clean, store.recovery.begin, store.recovery.end) == (True, scene.sent[-1].end, end)
        assert store.recovery.damaged == []
        assert store.queue_range("orders", 0) == (0, 30)


@meets(Beginning.CLEAN_WITHOUT_INDEX)
def test_clean_and_no_index() -> None:
    """Reading begins at the first segment, and the index is rebuilt."""
    scene = Scene(closed=True)
    scene.remove_tree("index")
    with scene.open() as store:
        assert (store.recovery.begin, store.recovery.records) == (0, 30)
        compare(store, scene.sent, scene.sent)


@meets(Beginning.CRASH)
def test_crash_with_a_checkpoint() -> None:
    """Reading begins with the segment up to which queues and index were synced."""
    scene = Scene(closed=False)
    with scene.open() as store:
        assert store.recovery.begin == 2 * SEGMENT
        assert store.recovery.end == scene.sent[-1].end
        compare(store, scene.sent, scene.sent)


@meets(Beginning.CRASH_ROCKETMQ)
def test_crash_with_a_checkpoint_of_rocketmq() -> None:
    """Reading begins with the last segment that is at least three seconds older than the checkpoint's time."""
    scene = Scene(closed=False)
    first_of_second = next(sent for sent in scene.sent if sent.physical_offset == SEGMENT)
    scene.set_checkpoint(derived=False, log_timestamp=first_of_second.store_timestamp + 3000)
    with scene.open() as store:
        assert store.recovery.begin == SEGMENT
        compare(store, scene.sent, scene.sent)
    scene = Scene(closed=False)
    scene.set_checkpoint(derived=False, log_timestamp=first_of_second.store_timestamp + 2999)
    with scene.open() as store:
        assert store.recovery.begin == 0


@meets(Beginning.CRASH_ROCKETMQ)
def test_crash_with_a_checkpoint_of_rocketmq_and_queues_that_end_early() -> None:
    """Reading begins no later than the segment where the queues end."""
    scene = Scene(closed=False)
    scene.set_checkpoint(derived=False, log_timestamp=scene.sent[-1].store_timestamp + 3000)
    scene.disk.damage(QUEUE, 15 * UNIT_SIZE, bytes(15 * UNIT_SIZE))
    with scene.open() as store:
        assert store.recovery.begin == scene.sent[14].end - scene.sent[14].end % SEGMENT == SEGMENT
        compare(store, scene.sent, scene.sent)


@meets(Beginning.CRASH_ROCKETMQ)
def test_crash_with_a_checkpoint_of_rocketmq_and_an_older_index() -> None:
    """Reading begins no later than the segment where the synced index ends."""
    scene = Scene(closed=False)
    times = scene.sent[5].store_timestamp, scene.sent[-1].store_timestamp + 3000
    scene.set_checkpoint(derived=False, log_timestamp=times[1], index_timestamp=times[0])
    with scene.open() as store:
        assert store.recovery.begin == 0
        compare(store, scene.sent, scene.sent)


@meets(Beginning.CRASH_UNKNOWN)
def test_crash_without_a_checkpoint() -> None:
    """Reading begins at the first segment."""
    scene = Scene(closed=False)
    scene.disk.unlink(CHECKPOINT)
    with scene.open() as store:
        assert (store.recovery.begin, store.recovery.records) == (0, 30)
        compare(store, scene.sent, scene.sent)


@meets(Beginning.CRASH_WITHOUT_INDEX)
def test_crash_and_no_index() -> None:
    """Reading begins at the first segment, whatever the checkpoint says, and the index is rebuilt."""
    scene = Scene(closed=False)
    scene.remove_tree("index")
    with scene.open() as store:
        assert (store.recovery.begin, store.recovery.records) == (0, 30)
        compare(store, scene.sent, scene.sent)


# --- 2. what recovery does with what it finds


@meets(Found.RECORD)
def test_a_valid_record_gets_unit_and_index_entries() -> None:
    """Missing queues and index are rebuilt; the queue files are the same byte for byte."""
    scene = Scene(closed=True)
    before = {path: data for path, data in scene.disk.contents().items() if path.parts[2] == "consumequeue"}
    scene.remove_tree("consumequeue")
    scene.remove_tree("index")
    with scene.open() as store:
        assert store.recovery.units_added == 30
        compare(store, scene.sent, scene.sent)
    assert before == {path: data for path, data in scene.disk.contents().items() if path.parts[2] == "consumequeue"}


@meets(Found.BLANK)
def test_a_blank_leads_to_the_next_segment() -> None:
    """All three segments are read, and nothing is damaged."""
    scene = Scene(closed=False)
    scene.disk.unlink(CHECKPOINT)
    with scene.open() as store:
        assert len({sent.physical_offset // SEGMENT for sent in scene.sent}) == 3
        assert store.recovery.records == 30
        assert store.recovery.damaged == []


def test_a_record_that_ends_in_the_zeros_of_a_lost_block() -> None:
    """Without a checksum a record's last bytes, its properties' size, may be zeros: it is valid, and the scan ends."""
    disk, clock = MemoryFileSystem(), ManualClock()
    config = replace(CONFIG, property_crc=False)
    body = b"x" * (BLOCK_SIZE + 1 - RECORD_SIZE_MIN - len("orders"))
    with MessageStore.open(config, file_system=disk, clock=clock) as store:
        (appended,) = store.append([Message("orders", 0, body)])
        assert appended.size == BLOCK_SIZE + 1
    file = disk.open(DIRECTORY / "commitlog" / segment(0))
    assert file.data_end(0) == BLOCK_SIZE
    disk.unlink(DIRECTORY / "checkpoint")
    disk.write_new(DIRECTORY / "abort", b"")
    with MessageStore.open(config, file_system=disk, clock=clock) as store:
        assert (store.recovery.end, store.recovery.records) == (BLOCK_SIZE + 1, 1)
        assert [found.body for found in store.read("orders", 0, 0).records] == [body]


@meets(Found.END)
@pytest.mark.parametrize("closed", [True, False])
def test_zeros_end_the_log(closed: bool) -> None:
    """The log ends at zeros, and also at the end of the last segment."""
    scene = Scene(closed=closed)
    with scene.open() as store:
        assert store.recovery.end == scene.sent[-1].end
        assert store.append([Sender().message(20)])[0].physical_offset == scene.sent[-1].end


@meets(Found.BYTES_AFTER_END)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("position", "data"),
    [(0, b"\x7f"), (4, b"?"), (30, b"\xff\xff"), (100, b"rotten"), (-3, b"\0\0\0"), (0, bytes(600))],
)
def test_a_torn_last_write_ends_the_log(closed: bool, position: int, data: bytes) -> None:
    """The record is dropped with its unit and index entries, and its bytes are zeroed before the next append."""
    scene = Scene(closed=closed)
    last = scene.sent[-1]
    scene.damage(last, position if position >= 0 else last.size + position, data)
    with scene.open() as store:
        assert store.recovery.end == last.physical_offset
        assert store.recovery.units_dropped == 1
        assert compare(store, scene.sent, scene.sent[:-1]) == scene.sent[:-1]
        log = scene.disk.crash(1).contents()[DIRECTORY / "commitlog" / segment(2)]
        assert not any(log[last.physical_offset % SEGMENT :])
        assert store.append([Sender().message(20)])[0].queue_offset == last.queue_offset


@meets(Found.DAMAGE)
@pytest.mark.parametrize(("position", "data"), [(0, b"\x7f"), (4, b"?"), (30, b"\xff\xff"), (100, b"rotten")])
def test_damage_before_valid_records_is_skipped(position: int, data: bytes) -> None:
    """The range is reported, later records are kept, and the next start keeps them too."""
    scene = Scene(closed=False)
    damaged = scene.sent[-4]
    scene.damage(damaged, position, data)
    others = [sent for sent in scene.sent if sent is not damaged]
    for _ in range(2):
        with scene.open() as store:
            assert compare(store, scene.sent, others) == others
            if not store.recovery.clean:
                (found,) = store.recovery.damaged
                assert (found.start, found.end) == (damaged.physical_offset, damaged.end)
            assert store.read("orders", 0, damaged.queue_offset).lost == 1


@meets(Found.DAMAGE)
def test_a_missing_segment_before_valid_records() -> None:
    """The segment's range is reported, and later records are kept."""
    scene = Scene(closed=False)
    scene.disk.unlink(DIRECTORY / "commitlog" / segment(1))
    scene.disk.unlink(CHECKPOINT)
    others = [sent for sent in scene.sent if sent.physical_offset // SEGMENT != 1]
    with scene.open() as store:
        assert compare(store, scene.sent, others) == others
        assert [(item.start, item.end) for item in store.recovery.damaged] == [(SEGMENT, 2 * SEGMENT)]


@meets(Found.TORN_TAIL)
def test_an_unsynced_tail_with_a_hole() -> None:
    """After a power cut a hole is no damage: the log ends before it, and the rest is moved to quarantine."""
    scene = Scene(closed=False, synced=20)
    scene.disk.boots += 1
    scene.damage(scene.sent[22], 0, bytes(scene.sent[22].size))
    with scene.open() as store:
        assert (store.recovery.end, store.recovery.damaged) == (scene.sent[22].physical_offset, [])
        aside = b"".join(scene.disk.read_bytes(path) for path in store.recovery.quarantined)
        assert all(sent.body in aside for sent in scene.sent[23:])
        compare(store, scene.sent, scene.sent[:22])


@meets(Found.TORN_WRITE)
def test_a_truncated_record_ends_the_log() -> None:
    """Only the first half of the record was written."""
    scene = Scene(closed=False)
    last = scene.sent[-1]
    scene.damage(last, last.size // 2, bytes(last.size - last.size // 2))
    with scene.open() as store:
        assert (store.recovery.end, store.recovery.torn) == (last.physical_offset, True)
        compare(store, scene.sent, scene.sent[:-1])


@meets(Found.OTHER_QUEUES)
def test_a_record_that_names_other_queues() -> None:
    """The other queues get units at the offsets stored in the record."""
    disk = MemoryFileSystem()
    message = Message("chat", 0, b"body", {"INNER_MULTI_DISPATCH": "%LMQ%room"})
    with MessageStore.open(CONFIG, file_system=disk) as store:
        store.append([message, message])
        store.flush()
        disk = disk.kill()
    for path in disk.contents():
        if path.is_relative_to(DIRECTORY / "consumequeue") or path == CHECKPOINT:
            disk.unlink(path)
    with MessageStore.open(CONFIG, file_system=disk) as store:
        assert store.queue_range("%LMQ%room", 0) == store.queue_range("chat", 0) == (0, 2)


@meets(Found.NO_INNER_BATCH)
def test_a_record_of_a_batch_topic_without_an_inner_batch() -> None:
    """Plain messages from before the topic became one of inner batches are in no queue."""
    scene = Scene(closed=False, count=3)
    scene.remove_tree("consumequeue")
    for directory in (QUEUE.parent, QUEUE.parent.parent):
        scene.disk.remove_directory(directory)
    scene.disk.unlink(CHECKPOINT)
    with MessageStore.open(
        CONFIG, file_system=scene.disk, clock=scene.clock, is_batch_topic=lambda topic: topic == "orders"
    ) as store:
        assert store.recovery.records == 3
        assert store.queues() == {}


@meets(Found.WRONG_BATCH_UNITS)
def test_units_of_a_batch_queue_that_differ_from_the_records() -> None:
    """The first wrong unit and all later ones are dropped and rebuilt from the log."""
    disk, queue = MemoryFileSystem(), DIRECTORY / "batchconsumequeue" / "metering" / "0" / f"{0:020d}"
    bodies = b"".join(struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + bytes(2) for _ in range(2))
    batch = Message("metering", 0, bodies, {"INNER_NUM": "2"}, sys_flag=SYS_FLAG_INNER_BATCH)
    with MessageStore.open(CONFIG, file_system=disk, is_batch_topic=lambda topic: topic == "metering") as store:
        for _ in range(5):
            store.append([batch])
        store.flush()
        disk = disk.kill()
    good = disk.contents()[queue]
    disk.damage(queue, 2 * 46 + 20, b"\x55")
    disk.unlink(CHECKPOINT)
    with MessageStore.open(CONFIG, file_system=disk) as store:
        assert store.recovery.units_dropped == 3
        assert store.queue_range("metering", 0) == (0, 10)
    assert disk.contents()[queue] == good


@meets(Found.WRONG_UNIT)
def test_a_unit_with_a_wrong_place_is_corrected() -> None:
    """The unit's offset, size and tag code are corrected from the record."""
    scene = Scene(closed=False)
    good = scene.disk.contents()[QUEUE]
    scene.disk.damage(QUEUE, 28 * UNIT_SIZE, UNIT.pack(12, 3, 4))
    with scene.open() as store:
        assert store.recovery.units_corrected == 1
        compare(store, scene.sent, scene.sent)
    assert scene.disk.contents()[QUEUE] == good


@meets(Found.TORN_QUEUE)
@pytest.mark.parametrize("closed", [True, False])
def test_an_end_of_a_queue_before_further_units(closed: bool) -> None:
    """The log is read from the hole in the queue. After an orderly stop, bisection must find that hole."""
    scene = Scene(closed=closed)
    good = scene.disk.contents()[QUEUE]
    scene.disk.damage(QUEUE, 15 * UNIT_SIZE, bytes(12 * UNIT_SIZE))
    with scene.open() as store:
        assert store.recovery.begin <= scene.sent[14].end
        compare(store, scene.sent, scene.sent)
    assert scene.disk.contents()[QUEUE] == good


@meets(Found.GAP)
def test_a_gap_in_the_offsets_gets_fillers() -> None:
    """A record is damaged and its unit is missing too."""
    scene = Scene(closed=False)
    scene.damage(scene.sent[27], 60, b"rotten")
    scene.disk.damage(QUEUE, 26 * UNIT_SIZE, bytes(4 * UNIT_SIZE))
    with scene.open() as store:
        compare(store, scene.sent, [sent for sent in scene.sent if sent.number != 27])
        assert store.read("orders", 0, 27).lost == 1
    unit = scene.disk.contents()[QUEUE][27 * UNIT_SIZE : 28 * UNIT_SIZE]
    assert unit == FILLER_UNIT
    assert UNIT.unpack(unit)[1] == FILLER_SIZE


@meets(Found.LOST_QUEUE_FILES)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("lost", [(0,), (1,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)], ids=str)
def test_files_of_a_queue_are_gone(closed: bool, lost: tuple[int, ...]) -> None:
    """The queue is made again from the log, although later messages of another queue hide where it ended."""
    config = replace(CONFIG, queue_file_size=8 * UNIT_SIZE)
    disk, sender, clock = MemoryFileSystem(), Sender(), ManualClock()
    with MessageStore.open(config, file_system=disk, clock=clock) as store:
        sender.append(store, [sender.message(100) for _ in range(30)])
        sender.append(store, [sender.message(1300, "others") for _ in range(30)])
        store.flush()
        store.save_queue_bounds()
        killed = disk.kill()
    disk = disk.kill() if closed else killed
    for number in lost:
        disk.unlink(QUEUE.parent / f"{number * config.queue_file_size:020d}")
    with MessageStore.open(config, file_system=disk, clock=clock) as store:
        assert store.recovery.queues_made_again == 1
        compare(store, sender.sent, sender.sent)
        (new,) = sender.append(store, [sender.message(100)])
        assert new.queue_offset == 30
    with MessageStore.open(config, file_system=disk.kill(), clock=clock) as store:
        assert store.recovery.queues_made_again == 0
        compare(store, sender.sent, sender.sent)


@meets(Found.UNITS_AFTER_END)
@pytest.mark.parametrize("closed", [True, False])
def test_units_and_entries_after_the_end_are_dropped(closed: bool) -> None:
    """The log lost its last segment: its messages are in no queue and no query result."""
    scene = Scene(closed=closed)
    scene.disk.unlink(DIRECTORY / "commitlog" / segment(2))
    kept = [sent for sent in scene.sent if sent.physical_offset < 2 * SEGMENT]
    with scene.open() as store:
        assert compare(store, scene.sent, kept) == kept
        assert store.recovery.units_dropped == 30 - len(kept)
        appended = store.append([Sender().message(20)])[0]
        assert (appended.queue_offset, appended.physical_offset) == (len(kept), 2 * SEGMENT)


def test_the_checkpoint_has_the_last_record() -> None:
    """Like RocketMQ's, the checkpoint names the last record, after a crash and after the log lost its end."""
    scene = Scene(closed=False)
    with scene.open() as store:
        assert store.checkpoint.confirm_offset == scene.sent[-1].physical_offset
    scene.damage(scene.sent[-2], 0, bytes(SEGMENT - scene.sent[-2].physical_offset % SEGMENT))
    with scene.open() as store:
        assert store.recovery.clean
        assert store.checkpoint.confirm_offset == scene.sent[-3].physical_offset


def test_the_checkpoint_of_a_log_without_records() -> None:
    """The checkpoint names no record."""
    scene = Scene(closed=False, count=3)
    scene.open().close()
    scene.damage(scene.sent[0], 0, bytes(SEGMENT))
    with scene.open() as store:
        assert (store.recovery.records, store.recovery.end) == (0, 0)
        assert store.checkpoint.confirm_offset == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_after_a_start_that_followed_a_kill(seed: int) -> None:
    """The start syncs what a killed process wrote, because it serves it and counts it as synced."""
    disk, clock, sender = MemoryFileSystem(), ManualClock(), Sender()
    config = replace(CONFIG, flush="async")
    store = MessageStore.open(config, file_system=disk, clock=clock)
    for _ in range(20):
        sender.append(store, [sender.message(1300)])
        store.commit()
    disk = disk.kill()
    after = MessageStore.open(config, file_system=disk, clock=clock)
    compare(after, sender.sent, sender.sent)
    with MessageStore.open(config, file_system=disk.crash(seed), clock=clock) as again:
        assert not again.recovery.lost
        compare(again, sender.sent, sender.sent)


@meets(Found.DELETED_TOPIC)
def test_a_record_of_a_topic_that_was_deleted_after_it() -> None:
    """The topic stays deleted, however much of the log is read again."""
    disk = MemoryFileSystem()
    store = MessageStore.open(CONFIG, file_system=disk)
    sender = Sender()
    store.append([sender.message(50, "gone") for _ in range(3)])
    sender.append(store, [sender.message(50)])
    store.flush()
    store.delete_topic("gone")
    disk = disk.kill()
    disk.unlink(CHECKPOINT)
    with MessageStore.open(CONFIG, file_system=disk) as store:
        assert store.recovery.records == 4
        assert store.queues() == {"orders": [0]}
        compare(store, sender.sent, sender.sent)
        assert store.append([sender.message(50, "gone")])[0].queue_offset == 3


@meets(Found.SEGMENT_AFTER_END)
@pytest.mark.parametrize("closed", [True, False])
def test_a_whole_segment_without_a_record_is_quarantined(closed: bool) -> None:
    """The segment is in `quarantine` with all its bytes, and the log continues in its place."""
    scene = Scene(closed=closed)
    rubbish = b"rubbish" * 100
    path = DIRECTORY / "commitlog" / segment(3)
    scene.disk.create(path, SEGMENT)
    scene.disk.damage(path, 0, rubbish)
    for sent in scene.sent[-3:]:
        scene.damage(sent, 4, bytes(4))
    with scene.open() as store:
        assert store.recovery.quarantined == [DIRECTORY / "quarantine" / f"commitlog-{segment(3)}"]
        assert scene.disk.read_bytes(store.recovery.quarantined[0]).startswith(rubbish)
        compare(store, scene.sent, scene.sent[:-3])
        sender = Sender()
        sender.append(store, [sender.message(1300) for _ in range(30)])
        store.flush()
        assert store.queue_range("orders", 0) == (0, 57)


@meets(Found.CUT_ORDERED)
@pytest.mark.parametrize("closed", [True, False])
def test_an_ordered_cut_ends_the_log(closed: bool) -> None:
    """The rest of the log is in `quarantine`; test_log_cut.py has the other cases."""
    scene = Scene(closed=closed)
    log_cut.order(scene.disk, DIRECTORY, scene.sent[20].physical_offset)
    with scene.open() as store:
        assert store.positions[0] == scene.sent[20].physical_offset
        compare(store, scene.sent, scene.sent[:20])
        assert all(path.name.startswith(log_cut.DIVERGED) for path in store.recovery.quarantined)


def test_a_quarantined_segment_is_durable_under_its_new_name() -> None:
    """After a power cut right after the start, the segment is in `quarantine` and nowhere else."""
    scene = Scene(closed=False)
    path = DIRECTORY / "commitlog" / segment(3)
    scene.disk.create(path, SEGMENT).sync()
    scene.disk.sync_directory(path.parent)
    scene.disk.damage(path, 0, b"rubbish")
    for sent in scene.sent[-3:]:
        scene.damage(sent, 4, bytes(4))
    with scene.open() as store:
        for seed in range(20):
            contents = scene.disk.crash(seed).contents()
            assert contents[store.recovery.quarantined[0]].startswith(b"rubbish")
            assert path not in contents


def test_the_checkpoint_claims_no_more_of_the_log_than_is_synced() -> None:
    """With async flush queues and index are ahead of the log's sync.

    A power cut that takes the log's end is then no reported loss.
    """
    config = replace(CONFIG, flush="async")
    disk, sender = MemoryFileSystem(), Sender()
    store = MessageStore.open(config, file_system=disk)
    sender.append(store, [sender.message(300) for _ in range(5)])
    store.flush()
    synced = store.positions[2]
    sender.append(store, [sender.message(300) for _ in range(5)])
    store.commit()
    assert store.positions[3] > synced, "dispatched"
    store._flush_derived.flush()
    checkpoint = Checkpoint(disk, CHECKPOINT)
    checkpoint.load()
    assert checkpoint.derived_offset == synced
    for seed in range(10):
        with MessageStore.open(config, file_system=disk.crash(seed)) as again:
            assert again.recovery.lost == 0
            compare(again, sender.sent, sender.sent[:5])


def test_an_empty_segment_prepared_ahead_is_used() -> None:
    """The segment is neither reported as damage nor moved to quarantine."""
    scene = Scene(closed=False)
    scene.disk.create(DIRECTORY / "commitlog" / segment(3), SEGMENT)
    with scene.open() as store:
        assert store.recovery.quarantined == []
        assert (store.status().segments, store.status().segments_prepared) == (3, 1)
        compare(store, scene.sent, scene.sent)


@pytest.mark.parametrize("number", range(1, 9))
def test_names_that_a_killed_process_had_not_made_durable(number: int) -> None:
    """Messages acknowledged after the next start survive a power cut.

    The start syncs the names of the files and directories that it finds.
    """
    disk, sender = MemoryFileSystem(), Sender()
    killed: list[MemoryFileSystem] = []

    def before(operation: Operation) -> None:
        if sum(each.name == "sync_directory" for each in disk.log) == number and not killed:
            killed.append(disk.kill())

    disk.before_operation = before
    with MessageStore.open(CONFIG, file_system=disk, clock=ManualClock()) as store:
        sender.append(store, [sender.message(100)])
        store.flush()
    (after,) = killed
    with MessageStore.open(CONFIG, file_system=after, clock=ManualClock()) as store:
        certain = sender.append(store, [sender.message(100)])
        store.flush()
        for seed in range(6):
            with MessageStore.open(CONFIG, file_system=after.crash(seed), clock=ManualClock()) as again:
                records = again.read("orders", 0, certain[0].queue_offset).records
                assert [record.body for record in records] == [certain[0].body]


@pytest.mark.parametrize("directory", ["/", "/store", "/store/commitlog"])
def test_a_directory_with_an_unsynced_name_is_created_again(directory: str) -> None:
    """A second try does not take the directory for durable because it exists."""
    disk = MemoryFileSystem()

    def before(operation: Operation) -> None:
        if operation.name == "sync_directory" and str(operation.path) == directory:
            disk.before_operation = None
            raise OSError(errno.EIO, "once")

    disk.before_operation = before
    sender = Sender()
    try:
        store = MessageStore.open(CONFIG, file_system=disk, clock=ManualClock())
        sender.append(store, [sender.message(100)])
        store.flush()
    except (OSError, StoreError):
        sender = Sender()
        for seed in range(6):
            MessageStore.open(CONFIG, file_system=disk.crash(seed), clock=ManualClock()).close()
        store = MessageStore.open(CONFIG, file_system=disk.kill(), clock=ManualClock())
        sender.append(store, [sender.message(100)])
        store.flush()
    assert isinstance(store.file_system, MemoryFileSystem)
    for seed in range(6):
        with MessageStore.open(CONFIG, file_system=store.file_system.crash(seed), clock=ManualClock()) as after:
            compare(after, sender.sent, sender.sent)
    store.close()


@pytest.mark.parametrize("count", range(24, 35))
def test_a_kill_after_an_incomplete_index_was_cut(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that were lost are added again by the process after the next, too: the cut leaves no trace of them."""
    config = replace(CONFIG, segment_size=4096, body_size_max=2048, index_slot_count=5, index_entry_count=24)
    clock = ManualClock()
    disk = MemoryFileSystem(clock=clock)
    sender = Sender()
    store = MessageStore.open(config, file_system=disk, clock=clock)
    for _ in range(count):
        clock.advance(1)
        sender.append(store, [sender.message(700)])
    store.flush()
    disk = disk.kill()
    # What a process leaves that is killed while it truncates a file to its first entry: a header that counts more.
    last = sorted(path for path in disk.contents() if path.parent.name == "index")[-1]
    disk.damage(last, HEADER_SIZE + 4 * 5 + 2 * 20, bytes(22 * 20))

    left: list[MemoryFileSystem] = []

    def killed(*_: object) -> None:
        left.append(disk.kill())
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(IndexService, "put", killed)
        with pytest.raises(SystemExit):
            MessageStore.open(config, file_system=disk, clock=clock)
    with MessageStore.open(config, file_system=left[0], clock=clock) as store:
        assert compare(store, sender.sent, sender.sent) == sender.sent


@meets(Found.LOST_BEGINNING)
def test_the_first_segment_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """Retention says so before it removes segments, so this is a loss; it is reported once."""
    scene = Scene(closed=True)
    first = min(path for path in scene.disk.contents() if path.parent.name == "commitlog")
    scene.disk.unlink(first)
    left = [sent for sent in scene.sent if sent.physical_offset >= SEGMENT]
    assert left != scene.sent
    with scene.open() as store:
        compare(store, left, left)
        assert f"messages at physical offsets 0 to {SEGMENT} are lost" in caplog.text
        assert isinstance(store.file_system, MemoryFileSystem)
        scene.disk = store.file_system.kill()
    with scene.open() as store:
        assert Found.LOST_BEGINNING not in store.recovery.situations
