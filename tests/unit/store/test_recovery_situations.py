"""A table of damaged states of a store, and the result of a start in each of them.

The situations are those for which RocketMQ's own behaviour is known; each row states it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pytest

from aerobee_store import MessageStore, StoreConfig
from aerobee_store.queues.consume_queue import UNIT_SIZE
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, Sender, Sent, compare, reads, reopen

CONFIG: Final = replace(StoreConfig.tiny(DIRECTORY), queue_file_size=100 * UNIT_SIZE)
SEGMENT: Final = CONFIG.segment_size
QUEUE: Final = DIRECTORY / "consumequeue" / "orders" / "0" / f"{0:020d}"
LOG: Final = DIRECTORY / "commitlog"


class Scene:
    """Three segments of 30 messages, closed or left by a killed process."""

    def __init__(self, *, closed: bool) -> None:
        self.clock = ManualClock()
        self.disk = MemoryFileSystem(clock=self.clock)
        sender = Sender()
        store = MessageStore.open(CONFIG, file_system=self.disk, clock=self.clock)
        for _ in range(30):
            self.clock.advance(1)
            sender.append(store, [sender.message(1300)])
        store.flush()
        if closed:
            store.close()
        self.sent = sender.sent
        self.disk = self.disk.kill()

    def damage(self, number: int, data: bytes, position: int = 0) -> None:
        """Overwrite bytes of a record."""
        sent = self.sent[number]
        start = sent.physical_offset - sent.physical_offset % SEGMENT
        self.disk.damage(LOG / f"{start:020d}", sent.physical_offset - start + position, data)

    def remove(self, name: str) -> None:
        """Remove a directory below the store's, or a file."""
        for path in self.disk.contents():
            if path.is_relative_to(DIRECTORY / name):
                self.disk.unlink(path)

    def remove_segment(self, number: int) -> None:
        self.disk.unlink(LOG / f"{number * SEGMENT:020d}")

    def cut_queue(self, count: int) -> None:
        """Cut the queue to its first messages."""
        self.disk.damage(QUEUE, count * UNIT_SIZE, bytes((30 - count) * UNIT_SIZE))


Damage = Callable[[Scene], None]
Kept = Callable[[Sequence[Sent]], Sequence[Sent]]


def everything(sent: Sequence[Sent]) -> Sequence[Sent]:
    return sent


def but(*numbers: int) -> Kept:
    return lambda sent: [each for each in sent if each.number not in numbers]


def outside_of_segment(number: int) -> Kept:
    return lambda sent: [each for each in sent if each.physical_offset // SEGMENT != number]


def torn_tail(scene: Scene) -> None:
    scene.damage(29, b"rotten", 100)


def zeroed_tail(scene: Scene) -> None:
    scene.damage(29, bytes(scene.sent[29].size))


def corrupt_middle(scene: Scene) -> None:
    scene.damage(12, b"rotten", 100)


def corrupt_middle_without_queues(scene: Scene) -> None:
    corrupt_middle(scene)
    scene.remove("consumequeue")
    scene.remove("index")


def no_queues(scene: Scene) -> None:
    scene.remove("consumequeue")


def queue_ahead(scene: Scene) -> None:
    for number in (27, 28, 29):
        scene.damage(number, bytes(scene.sent[number].size))


def queue_behind_by_one(scene: Scene) -> None:
    scene.cut_queue(29)


def queue_behind_by_a_segment(scene: Scene) -> None:
    scene.cut_queue(15)


def segment_missing_in_the_middle(scene: Scene) -> None:
    scene.remove_segment(1)


def last_segment_missing(scene: Scene) -> None:
    scene.remove_segment(2)


def last_segment_missing_before_a_prepared_one(scene: Scene) -> None:
    scene.remove_segment(2)
    scene.disk.create(LOG / f"{3 * SEGMENT:020d}", SEGMENT)


def first_segment_missing(scene: Scene) -> None:
    scene.remove_segment(0)


def unit_of_a_damaged_record_behind_the_log(scene: Scene) -> None:
    scene.damage(27, b"rotten", 100)
    scene.disk.damage(QUEUE, 27 * UNIT_SIZE, (1 << 40).to_bytes(8, "big"))


def index_lost(scene: Scene) -> None:
    scene.remove("index")


@dataclass(frozen=True, slots=True)
class Row:
    """One situation. `kept`: messages kept after both kinds of stop. `looked_at`: noticed after an orderly stop too."""

    name: str
    make: Damage
    kept: Kept
    rocketmq: str
    """RocketMQ's result after an orderly stop; after a crash."""
    looked_at: bool = True
    queue_min: int = 0


ROWS: Final = (
    Row("torn record at the tail", torn_tail, but(29), "cut to its start; same"),
    Row("zeroed record at the tail", zeroed_tail, but(29), "cut to its start; same"),
    Row(
        "corrupt record in the middle, queues intact, later segments exist",
        corrupt_middle,
        but(12),
        "not noticed, or everything behind it dropped; everything behind it dropped",
        looked_at=False,
    ),
    Row(
        "corrupt record in the middle, queues missing",
        corrupt_middle_without_queues,
        but(12),
        "everything behind it dropped; same",
    ),
    Row("queues missing", no_queues, everything, "rebuilt; rebuilt from the chosen segment on, the rest is lost"),
    Row("queue ahead of the log", queue_ahead, but(27, 28, 29), "cut; same"),
    Row(
        "queue behind by its last record",
        queue_behind_by_one,
        everything,
        "the record is lost from the queue, and the next ones are misplaced; right",
    ),
    Row("queue behind by more than a segment", queue_behind_by_a_segment, everything, "as above; right"),
    Row(
        "segment missing in the middle",
        segment_missing_in_the_middle,
        outside_of_segment(1),
        "accepted without a word; same",
        looked_at=False,
    ),
    Row("last segment missing", last_segment_missing, outside_of_segment(2), "queue cut to the new end; same"),
    Row(
        "last segment missing, a prepared one behind the hole",
        last_segment_missing_before_a_prepared_one,
        outside_of_segment(2),
        "queue cut; the log goes on behind the hole, and units point into it",
    ),
    Row(
        "first segment missing",
        first_segment_missing,
        outside_of_segment(0),
        "taken for deletion, the queue's minimum moves late; same",
        queue_min=11,
    ),
    Row(
        "queue unit of a damaged record names a place behind the log",
        unit_of_a_damaged_record_behind_the_log,
        but(27),
        "unknown",
    ),
    Row("index of the last messages missing", index_lost, everything, "-; rebuilt from the chosen segment on"),
)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_start_keeps_all_intact_messages(row: Row, closed: bool) -> None:
    """Each remaining message is at its offset, found by its keys and time, and there is nothing else.

    The next message gets the next offset, and a second start finds nothing to repair.
    """
    scene = Scene(closed=closed)
    row.make(scene)
    kept = list(row.kept(scene.sent))
    with reopen(scene.disk, CONFIG, scene.clock) as store:
        assert compare(store, scene.sent, kept) == kept
        low, high = store.queue_range("orders", 0)
        assert (low, high) == (row.queue_min, kept[-1].queue_offset + 1)
        lost = sum(part.lost for part in reads(store, "orders", 0))
        assert lost == high - low - len(kept), "what is gone in between is told as lost"
        sender = Sender(next_number=100)
        new = sender.append(store, [sender.message(1300) for _ in range(5)])
        store.flush()
        assert [each.queue_offset for each in new] == list(range(high, high + 5))
        assert compare(store, [*kept, *new], [*kept, *new]) == [*kept, *new]
        assert new[0].physical_offset >= kept[-1].end


@pytest.mark.parametrize("row", [row for row in ROWS if not row.looked_at], ids=lambda row: row.name)
def test_damage_hidden_by_an_orderly_stop_is_found_when_read(row: Row) -> None:
    """The start does not read old segments again. A read reports the loss, and so does a start with the whole log."""
    scene = Scene(closed=True)
    row.make(scene)
    with MessageStore.open(CONFIG, file_system=scene.disk.kill(), clock=scene.clock) as store:
        assert store.recovery.damaged == []
        assert sum(part.lost for part in reads(store, "orders", 0)) == 30 - len(row.kept(scene.sent))
    with MessageStore.open(CONFIG, file_system=scene.disk, clock=scene.clock, whole_log=True) as store:
        assert len(store.recovery.damaged) == 1


def test_a_new_record_of_equal_size_restores_no_dropped_record() -> None:
    """A new record replaces a dropped one of equal size; records that once followed it do not return after a crash.

    In RocketMQ they do: it leaves their bytes, and the new record completes the chain of sizes again.
    """
    scene = Scene(closed=False)
    scene.damage(25, b"rotten", 100)
    for number in (26, 27, 28):
        scene.damage(number, b"\0\0\0\0", 4)
    scene.damage(29, b"rotten", 100)
    store = MessageStore.open(CONFIG, file_system=scene.disk, clock=scene.clock)
    kept = list(but(25, 26, 27, 28, 29)(scene.sent))
    assert compare(store, scene.sent, kept) == kept
    sender = Sender(next_number=25)
    new = sender.append(store, [sender.message(1300)])
    assert (new[0].physical_offset, new[0].size) == (scene.sent[25].physical_offset, scene.sent[25].size)
    store.flush()
    with MessageStore.open(CONFIG, file_system=scene.disk.kill(), clock=scene.clock) as store:
        assert compare(store, [*kept, *new], [*kept, *new]) == [*kept, *new]
        assert store.recovery.end == new[0].end


@pytest.mark.parametrize("bit", range(96))
def test_a_flipped_bit_in_the_last_unit_does_not_move_the_end_of_the_log(bit: int) -> None:
    """After an orderly stop that unit gives the log's end.

    A wrong place or size would cut a record or leave a hole.
    """
    scene = Scene(closed=True)
    position = 29 * UNIT_SIZE + bit // 8
    scene.disk.damage(QUEUE, position, bytes([scene.disk.contents()[QUEUE][position] ^ 1 << bit % 8]))
    with MessageStore.open(CONFIG, file_system=scene.disk, clock=scene.clock) as store:
        assert store.recovery.end == scene.sent[-1].end
        assert store.recovery.damaged == []
        sender = Sender(next_number=100)
        new = sender.append(store, [sender.message(1300)])
        store.flush()
        assert compare(store, [*scene.sent, *new], [*scene.sent, *new]) == [*scene.sent, *new]
    with MessageStore.open(CONFIG, file_system=scene.disk, clock=scene.clock, whole_log=True) as store:
        assert store.recovery.damaged == []
        assert compare(store, [*scene.sent, *new], [*scene.sent, *new]) == [*scene.sent, *new]
