"""Light queues, extended units, batch queues: RocketMQ's released store reads ours, and we those that it wrote.

`make test-java-store` runs it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, Record, StoreConfig
from aerobee_store.queues.consume_queue import UNIT
from aerobee_store.queues.consume_queue_ext import is_address
from aerobee_store.testing import ManualClock
from aerobee_store.tools.verify import verify
from tests.java_store.conftest import MARKS, Open
from tests.java_store.contents import config
from tests.java_store.java_program import JavaStore, Release
from tests.support.stored_messages import read_all
from tests.unit.store.queues.test_batch_consume_queue import TOPIC as BATCH_TOPIC
from tests.unit.store.queues.test_batch_consume_queue import inner
from tests.unit.store.queues.test_filter_bitmaps import RED, Reds

pytestmark = MARKS

EXTENSION_SIZE = 256
ROOM, HALL = "%LMQ%room", "%LMQ%hall"
TAGS = ("red", "green", "", "red blue")
NAMES = ("", ROOM, f"{ROOM},{HALL}", HALL)
LIGHT_SETTINGS = {"enableLmq": True, "enableMultiDispatch": True}
EXTENSION_SETTINGS = {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": EXTENSION_SIZE}


def our_config(directory: Path) -> StoreConfig:
    return replace(
        config(directory, property_crc=False), queue_extensions=True, queue_extension_file_size=EXTENSION_SIZE
    )


def message(number: int) -> Message:
    properties = {"KEYS": f"n{number}"}
    if tag := TAGS[number % len(TAGS)]:
        properties["TAGS"] = tag
    if names := NAMES[number // 2 % len(NAMES)]:
        properties["INNER_MULTI_DISPATCH"] = names
    return Message("orders", number % 2, b"%d" % number, properties)


def put(store: JavaStore, one: Message) -> None:
    properties = "".join(f"{name}\1{value}\2" for name, value in one.properties.items())
    ((_, status, *_),) = store.ask("put", one.topic, one.queue_id, properties.encode().hex(), bytes(one.body).hex())
    assert status == "PUT_OK"


def numbers(store: MessageStore, topic: str, queue_id: int = 0, tag: str | None = None) -> list[int]:
    tags = None if tag is None else frozenset({tag})
    result = store.read(topic, queue_id, 0, max_count=1000, tags=tags)
    assert result.lost == 0
    return [int(record.body) for record in result.records]


def named(name: str, count: int) -> list[int]:
    """The messages that are in a light queue."""
    return [n for n in range(count) if name in NAMES[n // 2 % len(NAMES)].split(",")]


def places(store: JavaStore, topic: str, queue_id: int = 0) -> list[int]:
    """The physical offsets that RocketMQ gives for a queue."""
    return [int(line[2]) for line in store.ask("read", topic, queue_id)[1:]]


def files_of(directory: Path, name: str) -> dict[str, bytes]:
    root = directory / name
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_rocketmq_reads_our_light_queues(release: Release, java: Open, tmp_path: Path) -> None:
    """Each gives the messages that name it, and takes further ones behind them; we read those as well."""
    with MessageStore.open(our_config(tmp_path / "s")) as ours:
        sent = ours.append([message(n) for n in range(40)])
    light = {**LIGHT_SETTINGS, **EXTENSION_SETTINGS}
    with java(tmp_path / "s", **light) as store:
        for name in (ROOM, HALL):
            assert places(store, name) == [sent[n].physical_offset for n in named(name, 40)]
        for number in range(40, 60):
            put(store, message(number))
        store.wait_dispatched()
        for name in (ROOM, HALL):
            assert len(places(store, name)) == len(named(name, 60))
    with MessageStore.open(our_config(tmp_path / "s"), whole_log=True) as ours:
        assert ours.recovery.units_corrected == ours.recovery.units_added == ours.recovery.units_dropped == 0
        for name in (ROOM, HALL):
            assert numbers(ours, name) == named(name, 60)
            offsets = [record.queue_offset for record in read_all(ours, name, 0).values()]
            assert offsets == list(range(len(offsets)))
    assert verify(tmp_path / "s").errors == 0


def test_extended_units_byte_for_byte(release: Release, java: Open, tmp_path: Path) -> None:
    """RocketMQ writes messages; put again at the same times, they give the same queues and extended units here."""
    with java(tmp_path / "s", **EXTENSION_SETTINGS) as store:
        for number in range(60):
            put(store, message(number))
        store.wait_dispatched()
    clock = ManualClock()
    with MessageStore.open(our_config(tmp_path / "s")) as ours:
        records: list[Record] = [record for queue in (0, 1) for record in read_all(ours, "orders", queue).values()]
        assert numbers(ours, "orders", 0, "red") == [n for n in range(0, 60, 2) if TAGS[n % 4] == "red"]
    records.sort(key=lambda record: record.physical_offset)
    off = replace(our_config(tmp_path / "again"), light_queues=False)
    with MessageStore.open(off, clock=clock) as again:
        for record in records:
            clock.advance((record.store_timestamp - clock.now_ms()) / 1000)
            again.append([Message(record.topic, record.queue_id, record.body, raw_properties=record.raw_properties)])
    for name in ("consumequeue_ext", "consumequeue"):
        theirs, mine = files_of(tmp_path / "s", name), files_of(tmp_path / "again", name)
        assert theirs == mine, name
    assert len(files_of(tmp_path / "again", "consumequeue_ext")) > 2


@pytest.mark.parametrize("bitmaps", [None, Reds()], ids=["plain", "bitmaps"])
def test_rocketmq_reads_our_extended_units(release: Release, java: Open, tmp_path: Path, bitmaps: Reds | None) -> None:
    """With its setting on and off; what it adds, and what it leaves of them after a start, we read in turn. It finds
    units behind the checksums of our bitmaps."""
    with MessageStore.open(our_config(tmp_path / "s")) as ours:
        ours.filter_bitmaps = bitmaps
        sent = ours.append([message(n) for n in range(60)])
    for round_number, settings in enumerate((EXTENSION_SETTINGS, {}, EXTENSION_SETTINGS)):
        with java(tmp_path / "s", **settings) as store:
            even = [place.physical_offset for place in sent[::2]]
            assert places(store, "orders", 0)[:30] == even
            put(store, message(60 + 2 * round_number))
            store.wait_dispatched()
    with MessageStore.open(our_config(tmp_path / "s"), whole_log=True) as ours:
        assert ours.recovery.units_corrected == 0
        expected = [n for n in [*range(0, 60, 2), 60, 62, 64] if TAGS[n % 4] == "red"]
        assert numbers(ours, "orders", 0, "red") == expected
        assert ours.may_match("orders", 0, 0, 33, RED) == [bitmaps is None] * 30 + [True] * 3
        last = sorted((tmp_path / "s" / "consumequeue" / "orders" / "0").iterdir())
        codes = [unit[2] for path in last for unit in UNIT.iter_unpack(path.read_bytes()) if unit[1] > 0]
        assert [is_address(code) for code in codes[30:33]] == [True, False, True]
    assert verify(tmp_path / "s").errors == 0


@pytest.mark.parametrize("closed", [True, False])
def test_rocketmq_reads_our_batch_queues(release: Release, java: Open, tmp_path: Path, closed: bool) -> None:
    """Inner batches by the offsets of their messages, over several files; with and without a recovery of its own."""
    if release.major < 5:
        pytest.skip("release 4 has no batch queues")
    directory = tmp_path / "s"
    own = replace(config(directory), batch_queue_file_size=460)
    with MessageStore.open(own, is_batch_topic=lambda topic: topic == BATCH_TOPIC) as ours:
        sent = [
            ours.append([inner(*(b"%d" % number for number in range(1 + count % 4)), tag="red")])[0]
            for count in range(25)
        ]
        ours.flush()
    topic = {"attributes": {"queue.type": "BatchCQ"}, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    (directory / "config").mkdir(exist_ok=True)
    table = {"topicConfigTable": {BATCH_TOPIC: {**topic, "topicName": BATCH_TOPIC}}}
    (directory / "config" / "topics.json").write_text(json.dumps(table))
    if not closed:
        (directory / "abort").touch()
    with java(directory, mapperFileSizeBatchConsumeQueue=460) as store:
        (_, low, high), *records = store.ask("read", BATCH_TOPIC, 0)
        assert (int(low), int(high)) == (0, sum(1 + count % 4 for count in range(25)))
        assert [int(line[2]) for line in records] == [place.physical_offset for place in sent]
        assert [int(line[1]) for line in records] == [place.queue_offset for place in sent]
    assert verify(directory).errors == 0
    with MessageStore.open(own, whole_log=True) as ours:
        assert (ours.recovery.units_added, ours.recovery.units_dropped) == (0, 0)
