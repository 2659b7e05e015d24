"""Records of a queue read as runs of the log: their boundaries, and excluded and unsynced records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from aerobee_store import Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.queues.consume_queue import UNIT
from aerobee_store.records.inner_batch import body_of
from aerobee_store.records.record import Draft
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY

CONFIG = replace(StoreConfig.tiny(DIRECTORY), segment_size=16384)
HOST = ("127.0.0.1", 8081)


def append(store: MessageStore, count: int, topic: str = "orders", first: int = 0) -> list[bytes]:
    """Append records together, with tags in turn; return their bodies."""
    bodies = [b"body %d" % number for number in range(first, first + count)]
    drafts = [
        Draft(
            Message(topic, 0, body, {"TAGS": f"t{number % 3}"}, born_host=HOST),
            store_host=HOST,
            property_crc=True,
        ).encode_unplaced()
        for number, body in enumerate(bodies, first)
    ]
    store.append_records(topic, 0, RecordBatch.parse(b"".join(drafts), base_physical_offset=None, placed=False))
    return bodies


def bodies_of(runs: list[memoryview]) -> list[bytes]:
    batch = RecordBatch.parse(b"".join(runs), base_physical_offset=None)
    return [bytes(batch.body(row)) for row in range(len(batch))]


@pytest.fixture(name="store")
def store_fixture() -> Iterator[MessageStore]:
    with MessageStore.open(CONFIG, file_system=MemoryFileSystem(), clock=ManualClock()) as store:
        yield store


def test_adjacent_records_are_one_slice(store: MessageStore) -> None:
    """A run ends at another queue's record and at the end of a segment."""
    bodies = append(store, 10)
    bodies += append(store, 5, first=10)
    append(store, 1, "bills")
    bodies += append(store, 200, first=15)  # across the end of a segment
    store.flush()
    found = store.read_runs("orders", 0, 0)
    assert bodies_of(found.runs) == bodies
    ends = [16384] if len(found.runs) == 3 else [16384, 32768]
    assert len(found.runs) == 2 + len(ends)
    assert (found.status, found.next_offset, found.max_offset, found.lost) == ("found", 215, 215, 0)
    assert found.size == int(found.sizes.sum())
    part = store.read_runs("orders", 0, 3, end_offset=13)
    assert (bodies_of(part.runs), len(part.runs)) == (bodies[3:13], 1)
    assert bodies_of(store.read_runs("orders", 0, 3, max_bytes=1).runs) == bodies[3:4]


def test_tags(store: MessageStore) -> None:
    """Tags are compared in the queue, and each skipped record ends a run."""
    bodies = append(store, 30)
    store.flush()
    found = store.read_runs("orders", 0, 0, tags=["t1"])
    assert (bodies_of(found.runs), len(found.runs), found.next_offset) == (bodies[1::3], 10, 30)
    assert store.read_runs("orders", 0, 0, tags=["none"]).status == "no-match"
    two = store.read_runs("orders", 0, 0, tags=["t0", "t1"])
    assert (len(two.sizes), len(two.runs)) == (20, 10)


def test_offsets_outside_the_queue(store: MessageStore) -> None:
    """The statuses equal those of `read`."""
    append(store, 3)
    store.flush()
    statuses = [store.read_runs("orders", 0, offset).status for offset in (-1, 3, 4)]
    assert statuses == ["offset-too-small", "offset-at-end", "offset-too-large"]
    assert store.read_runs("bills", 0, 0).status == "empty"


@pytest.mark.parametrize("other", [4, 5], ids=["same offset", "another offset"])
def test_units_without_a_matching_record(store: MessageStore, other: int) -> None:
    """A unit with a wrong size, a place within a record, another's record or none never yields wrong bytes."""
    bodies = append(store, 8)
    append(store, 8, "bills", first=10)
    store.flush()
    queue = store._queues.simple["orders", 0]
    units = [UNIT.unpack(bytes(unit)) for unit in queue.units(0, 8)]
    others = [UNIT.unpack(bytes(unit)) for unit in store._queues.simple["bills", 0].units(0, 8)]
    wrong = {
        1: UNIT.pack(units[1][0], units[1][1] + 1, units[1][2]),
        2: UNIT.pack(units[2][0] + 1, units[2][1], units[2][2]),
        3: UNIT.pack(units[3][0], 5, units[3][2]),
        4: UNIT.pack(*others[other]),
        6: UNIT.pack(1 << 40, units[6][1], units[6][2]),
        7: UNIT.pack(*others[7]),
    }
    for offset, unit in wrong.items():
        queue.overwrite(offset, unit)
    found = store.read_runs("orders", 0, 0)
    # The reader finds the records in the log and corrects the units.
    assert bodies_of(found.runs) == bodies
    assert (found.lost, found.next_offset) == (0, 8)


LAYOUTS = {
    "before": ["orders", "others"] * 8,
    "behind": ["others", "orders"] * 8,
    "in pairs": ["orders", "orders", "others", "others"] * 4,
    "in fours": (["others"] * 4 + ["orders"] * 4) * 2,
    "in a row": ["orders"] * 8 + ["others"] * 8,
}


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
def test_no_flipped_bit_of_a_unit_gives_another_message(store: MessageStore, names: list[str]) -> None:
    """Two topics take turns, with records of 256 bytes: a bit is between a unit's place and that of the other topic."""
    store.append([Message(topic, 0, topic.encode() * 20 + bytes(19), born_host=HOST) for topic in names])
    store.flush()
    queue = store._queues.simple["orders", 0]
    intact = [bytes(unit) for unit in queue.units(0, 8)]
    places = [256 * number for number, name in enumerate(names) if name == "orders"]
    assert [UNIT.unpack(unit)[:2] for unit in intact] == [(place, 256) for place in places]
    for number, unit in enumerate(intact):
        for bit in range(12 * 8):  # of place and size
            queue.overwrite(number, (int.from_bytes(unit, "big") ^ 1 << 159 - bit).to_bytes(20, "big"))
            found = store.read_runs("orders", 0, 0)
            assert {body[:6] for body in bodies_of(found.runs)} <= {b"orders"}, (number, bit)
            assert len(found.sizes) + found.lost == found.next_offset
            queue.overwrite(number, unit)
    assert len(store.read_runs("orders", 0, 0).sizes) == 8


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
def test_no_run_of_units_of_another_queue_gives_its_messages(store: MessageStore, names: list[str]) -> None:
    """As if a block had been written to the wrong file, in any part of the queue."""
    store.append([Message(topic, 0, topic.encode() * 20 + bytes(19), born_host=HOST) for topic in names])
    store.flush()
    queue, other = (store._queues.simple[topic, 0] for topic in ("orders", "others"))
    intact, wrong = ([bytes(unit) for unit in each.units(0, 8)] for each in (queue, other))
    for first in range(8):
        for end in range(first + 1, 9):
            queue.overwrite(first, b"".join(wrong[first:end]))
            found = store.read_runs("orders", 0, 0)
            assert {body[:6] for body in bodies_of(found.runs)} == {b"orders"}, (first, end)
            assert (len(found.sizes), found.lost, found.next_offset) == (8, 0, 8)
            queue.overwrite(0, b"".join(intact))


def test_a_record_of_another_topic_after_a_unit_with_a_wrong_size(store: MessageStore) -> None:
    """The unit seems to be between its neighbours, as the one before it takes the place of two records."""
    names = ["others", "others", "orders", "orders", "orders", "others", "orders"]
    store.append([Message(topic, 0, topic.encode(), born_host=HOST) for topic in names])
    store.flush()
    queue = store._queues.simple["orders", 0]
    units = [UNIT.unpack(bytes(unit)) for unit in queue.units(0, 4)]
    queue.overwrite(1, UNIT.pack(units[1][0], 2 * units[1][1], 0))
    queue.overwrite(2, UNIT.pack(*UNIT.unpack(bytes(store._queues.simple["others", 0].units(2, 1)[0]))))
    assert bodies_of(store.read_runs("orders", 0, 0).runs) == [b"orders"] * 4


def test_units_of_a_light_queue(store: MessageStore) -> None:
    """Its records are those of another queue, which name it; a damaged unit is replaced, and no other record taken."""
    named = {"INNER_MULTI_DISPATCH": "%LMQ%room"}
    store.append([Message("chat", 3, b"body %d" % number, named if number < 4 else {}) for number in range(5)])
    store.flush()
    queue = store._queues.simple["%LMQ%room", 0]
    units = [UNIT.unpack(bytes(unit)) for unit in queue.units(0, 4)]
    other = UNIT.unpack(bytes(store._queues.simple["chat", 3].units(4, 1)[0]))
    queue.overwrite(1, UNIT.pack(units[1][0], 5, units[1][2]))
    queue.overwrite(2, UNIT.pack(*other))
    queue.overwrite(3, UNIT.pack(units[3][0], units[3][1] + 1, units[3][2]))
    found = store.read_runs("%LMQ%room", 0, 0)
    assert (bodies_of(found.runs), found.lost) == ([b"body %d" % number for number in range(4)], 0)
    assert found.sizes.tolist() == [unit[1] for unit in units]


@pytest.mark.parametrize("segment_size", [1 << 20, 1 << 12])
def test_a_light_queue_is_read_in_steps(monkeypatch: pytest.MonkeyPatch, segment_size: int) -> None:
    """Its records are examined one by one; a read ends before it takes the event loop too long."""
    monkeypatch.setattr("aerobee_store.record_runs._SINGLE_MAX", 10)
    config = replace(CONFIG, segment_size=segment_size, body_size_max=2048)
    with MessageStore.open(config, file_system=MemoryFileSystem(), clock=ManualClock()) as store:
        for number in range(31):
            store.append([Message("chat", 3, b"body %d" % number, {"INNER_MULTI_DISPATCH": "%LMQ%room"})])
        store.flush()
        offset, bodies, counts = 0, [], []
        while offset < 31:
            found = store.read_runs("%LMQ%room", 0, offset)
            bodies += bodies_of(found.runs)
            counts.append(len(found.sizes))
            offset = found.next_offset
    assert bodies == [b"body %d" % number for number in range(31)]
    assert counts == [10, 10, 10, 1]


def test_unsynced_messages() -> None:
    """With async flush unsynced messages are read only on request; the flushed range ends before them."""
    config = replace(CONFIG, flush="async")
    with MessageStore.open(config, file_system=MemoryFileSystem(), clock=ManualClock()) as store:
        bodies = append(store, 5)
        store.flush()
        bodies += append(store, 4, first=5)
        store.commit()
        store.dispatch()
        assert store.queue_range("orders", 0) == (0, 9)
        assert store.flushed_range("orders", 0) == (0, 5)
        found = store.read_runs("orders", 0, 0)
        assert (bodies_of(found.runs), found.max_offset) == (bodies[:5], 5)
        assert store.read_runs("orders", 0, 5).status == "offset-at-end"
        found = store.read_runs("orders", 0, 0, flushed_only=False)
        assert (bodies_of(found.runs), found.max_offset) == (bodies, 9)
        store.flush()
        assert store.flushed_range("orders", 0) == (0, 9)


def test_batches_are_read_whole() -> None:
    """An offset within a batch returns the whole batch; batches that begin at `end_offset` or later are left out."""
    with MessageStore.open(
        CONFIG, file_system=MemoryFileSystem(), clock=ManualClock(), is_batch_topic=lambda topic: topic == "metering"
    ) as store:
        for count in (3, 4, 5):
            body = body_of([(b"x", b"")] * count)
            store.append([Message("metering", 0, body, {"INNER_NUM": str(count)}, sys_flag=0xC0)])
        store.flush()
        found = store.read_runs("metering", 0, 4)
        assert (len(found.sizes), found.next_offset, found.max_offset, found.lost) == (2, 12, 12, 0)
        found = store.read_runs("metering", 0, 0, end_offset=4)
        assert (len(found.sizes), found.next_offset) == (2, 7)
