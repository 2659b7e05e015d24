"""A flipped bit in a queue's unit loses no message: the log has its place."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.maintenance.unit_repair import REPAIRS_PER_READ
from aerobee_store.queues.batch_consume_queue import BATCH_UNIT
from aerobee_store.queues.consume_queue import UNIT_SIZE
from aerobee_store.testing import MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, Sender, reads
from tests.unit.store.queues.test_batch_consume_queue import TOPIC, inner

CONFIG = replace(StoreConfig.tiny(DIRECTORY), queue_file_size=200 * UNIT_SIZE, segments_ahead=0)
QUEUES = DIRECTORY / "consumequeue"
COUNT = 100
ROOM = "%LMQ%room"


class Scene:
    """Two queues with alternating messages in the log, a light queue of every fourth message, and inner batches."""

    def __init__(self) -> None:
        self.disk = MemoryFileSystem()
        self.store = MessageStore.open(CONFIG, file_system=self.disk, is_batch_topic=lambda topic: topic == TOPIC)
        self.sender = Sender()
        for number in range(COUNT):
            message = self.sender.message(200, "orders", 0)
            if number % 4 == 0:
                message = replace(message, properties={**message.properties, "INNER_MULTI_DISPATCH": ROOM})
            self.sender.append(self.store, [message])
            self.store.append([Message("noise", 0, bytes([number]) * 300)])
            if number % 10 == 0:
                self.store.append([inner(b"a%d" % number, b"b%d" % number)])
        self.store.flush()

    def damage(self, path: Path, position: int, data: bytes) -> None:
        self.disk.damage(path, position, data)

    def content(self, path: Path) -> bytes:
        return self.disk.contents()[path]


@pytest.fixture
def scene() -> Iterator[Scene]:
    found = Scene()
    yield found
    found.store.close()


ORDERS = QUEUES / "orders" / "0" / f"{0:020d}"
LIGHT = QUEUES / ROOM / "0" / f"{0:020d}"
BATCHES = DIRECTORY / "batchconsumequeue" / TOPIC / "0" / f"{0:020d}"


def check_orders(scene: Scene, *, lost: int = 0) -> None:
    parts = list(reads(scene.store, "orders", 0))
    assert sum(part.lost for part in parts) == lost
    found = [record.body for part in parts for record in part.records]
    assert [sent.body for sent in scene.sender.sent if sent.body in set(found)] == found
    assert len(found) == COUNT - lost


@pytest.mark.parametrize("bit", range(48))
def test_any_bit_of_an_offset(scene: Scene, bit: int) -> None:
    """The reader finds the message, counts the repaired unit, and corrects it on disk too."""
    right = scene.content(ORDERS)
    for number in (0, 57, COUNT - 1):
        place = int.from_bytes(right[number * UNIT_SIZE : number * UNIT_SIZE + 8], "big") ^ 1 << bit
        scene.damage(ORDERS, number * UNIT_SIZE, place.to_bytes(8, "big"))
    check_orders(scene)
    assert scene.store.stats.units_repaired == 3
    assert scene.store.stats.checksum_failures == 0
    assert scene.content(ORDERS) == right
    check_orders(scene)
    scene.store.flush()
    assert scene.store.stats.units_repaired == 3, "once"
    assert scene.disk.crash(7).contents()[ORDERS] == right, "durable with the next flush"


@pytest.mark.parametrize("first", [0, 30, COUNT - 26])
def test_a_damaged_sector(scene: Scene, first: int) -> None:
    """Many consecutive damaged units: the records between their intact neighbours are searched."""
    right = scene.content(ORDERS)
    scene.damage(ORDERS, first * UNIT_SIZE, b"".join(struct.pack(">qiq", 5 + n, 77, n) for n in range(26)))
    check_orders(scene)
    assert scene.store.stats.units_repaired == 26
    assert scene.content(ORDERS) == right


@pytest.mark.parametrize("reader", ["read", "read_runs"])
@pytest.mark.parametrize(("topic", "path"), [("orders", ORDERS), (ROOM, LIGHT), (TOPIC, BATCHES)])
def test_a_read_repairs_only_some_units(scene: Scene, topic: str, path: Path, reader: str) -> None:
    """A repair takes milliseconds, and the event loop waits for a read: the next one goes on at the next wrong unit."""
    right = scene.content(path)
    size = BATCH_UNIT.size if topic == TOPIC else UNIT_SIZE
    count = scene.store.queue_range(topic, 0)[1] // (2 if topic == TOPIC else 1)
    for number in range(count):
        scene.damage(path, number * size, struct.pack(">q", 5 + number))
    offset, repaired = 0, []
    while offset < scene.store.queue_range(topic, 0)[1]:
        before = scene.store.stats.units_repaired
        found = getattr(scene.store, reader)(topic, 0, offset)
        assert found.lost == 0
        offset = found.next_offset
        repaired.append(scene.store.stats.units_repaired - before)
    assert max(repaired) == REPAIRS_PER_READ
    assert sum(repaired) == count
    assert scene.content(path) == right


def test_records_read_in_runs(scene: Scene) -> None:
    """`read_runs` finds the records in the same way."""
    scene.damage(ORDERS, 50 * UNIT_SIZE, struct.pack(">qiq", 1, 77, 0))
    found = scene.store.read_runs("orders", 0, 0, max_bytes=1 << 20)
    assert (found.lost, len(found.sizes)) == (0, COUNT)
    assert b"".join(found.runs).count(b"00000050....") == 1


def test_a_light_queue(scene: Scene) -> None:
    """The records' properties hold their offsets in the light queue."""
    right = scene.content(LIGHT)
    scene.damage(LIGHT, 3 * UNIT_SIZE, struct.pack(">qiq", 12345, 77, 0))
    found = scene.store.read(ROOM, 0, 0, max_count=100)
    assert (found.lost, [int(record.body[:8]) for record in found.records]) == (0, list(range(0, COUNT, 4)))
    assert scene.content(LIGHT) == right


@pytest.mark.parametrize("flipped", [1 << 9, 0x5A5A])
def test_a_batch_queue(scene: Scene, flipped: int) -> None:
    """A damaged unit of an inner batch is repaired."""
    right = scene.content(BATCHES)
    place = int.from_bytes(right[4 * BATCH_UNIT.size : 4 * BATCH_UNIT.size + 8], "big") ^ flipped
    scene.damage(BATCHES, 4 * BATCH_UNIT.size, place.to_bytes(8, "big"))
    found = scene.store.read(TOPIC, 0, 0, max_count=100)
    assert found.lost == 0
    assert [record.body for record in found.records] == [b"%c%d" % (c, n) for n in range(0, COUNT, 10) for c in b"ab"]
    assert scene.content(BATCHES) == right


@pytest.mark.parametrize("reader", ["read", "read_runs"])
@pytest.mark.parametrize("topic", ["orders", TOPIC])
def test_the_record_of_the_same_offset_of_another_queue(topic: str, reader: str) -> None:
    """A unit that names a record of equal size and queue offset, but of another queue, is repaired like any other."""
    disk = MemoryFileSystem()
    with MessageStore.open(CONFIG, file_system=disk, is_batch_topic=lambda topic: topic == TOPIC) as store:
        for number in range(4):
            for queue_id in range(2):
                body = b"%d of %d" % (number, queue_id)
                store.append([inner(body, queue_id=queue_id) if topic == TOPIC else Message(topic, queue_id, body)])
        store.flush()
        directory = (DIRECTORY / "batchconsumequeue" if topic == TOPIC else QUEUES) / topic
        paths = [directory / str(queue_id) / f"{0:020d}" for queue_id in range(2)]
        right, other = (disk.contents()[path] for path in paths)
        at = 2 * (BATCH_UNIT.size if topic == TOPIC else UNIT_SIZE)
        disk.damage(paths[0], at, other[at : at + 8])
        if reader == "read":
            queue_ids = [found.queue_id for found in store.read(topic, 0, 0, max_count=10).records]
        else:
            runs = store.read_runs(topic, 0, 0, max_bytes=1 << 20).runs
            queue_ids = RecordBatch.parse(b"".join(runs), base_physical_offset=None).queue_id.tolist()
        assert queue_ids == [0] * 4
        assert store.stats.units_repaired == 1
        assert disk.contents()[paths[0]] == right


def test_records_lost_from_the_log_stay_lost(scene: Scene) -> None:
    """A damaged record counts as lost, and its unit is left alone."""
    right = scene.content(ORDERS)
    sent = scene.sender.sent[40]
    start = sent.physical_offset - sent.physical_offset % CONFIG.segment_size
    scene.damage(DIRECTORY / "commitlog" / f"{start:020d}", sent.physical_offset - start + 100, b"rotten")
    for _ in range(2):
        check_orders(scene, lost=1)
    assert (scene.store.stats.units_repaired, scene.store.stats.checksum_failures) == (0, 2)
    assert scene.content(ORDERS) == right
