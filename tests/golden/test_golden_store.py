"""Stores written by Apache RocketMQ are opened, read, closed, and reproduced from the same messages."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_store import MessageStore, StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.queues.index_file import IndexFile
from aerobee_store.records.record import Message
from tests.support import golden
from tests.support.golden import GoldenCase, GoldenMessage

CASES = golden.names()
# pre-blank is excluded: RocketMQ's rebuild left its index incomplete, and opening completes it.
UNDAMAGED = [
    name
    for name in CASES
    if not golden.manifest(name)["abort"] and not golden.manifest(name).get("damage") and name != "pre-blank"
]
# Old clients' split batches, and half and delayed messages as the broker wrote them, are reproduced too.
WRITTEN = ["plain", "propcrc", "propcrc-unclosed", "wide", "kinds", "batch-cq"]


def config_of(case: GoldenCase, directory: Path | None = None) -> StoreConfig:
    """Return a configuration with the file sizes that the case was written with."""
    return StoreConfig(
        directory=directory or case.store,
        segment_size=int(case.config["mappedFileSizeCommitLog"]),
        queue_file_size=int(case.config["mappedFileSizeConsumeQueue"]),
        batch_queue_file_size=int(case.config.get("mapperFileSizeBatchConsumeQueue", 460)),
        index_slot_count=int(case.config["maxHashSlotNum"]),
        index_entry_count=int(case.config["maxIndexNum"]),
        property_crc=bool(case.config.get("enabledAppendPropCRC")),
        disk_force_clean_ratio=1.0,  # tests must not depend on the disk usage of the machine
        disk_full_ratio=1.0,
    )


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenCase:
    return golden.load(request.param, tmp_path)


def file_hashes(directory: Path) -> dict[str, str]:
    kept = ("commitlog", "consumequeue", "batchconsumequeue", "index")
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.relative_to(directory).parts[0] in kept
    }


def test_recovery_keeps_what_can_be_kept_and_no_more(case: GoldenCase) -> None:
    """Opening gives the manifest's lossless state: log end, queue ranges, and exactly the surviving records."""
    expected = case.manifest["recovery"]["lossless"]
    missing = set(expected["missing"])
    with MessageStore.open(config_of(case)) as store:
        status = store.status()
        assert (status.min_offset, status.committed) == (expected["minPhysicalOffset"], expected["maxPhysicalOffset"])
        ranges = {
            topic: {str(queue_id): list(store.queue_range(topic, queue_id)) for queue_id in queue_ids}
            for topic, queue_ids in store.queues().items()
        }
        assert ranges == expected["queues"]
        for message in case.messages:
            if message.physical_offset in missing:
                with pytest.raises(Exception, match=str(message.physical_offset)):
                    store.record_at(message.physical_offset)
            else:
                found = store.record_at(message.physical_offset)
                assert (found.topic, found.queue_id, found.queue_offset) == (
                    message.topic,
                    message.queue_id,
                    message.queue_offset,
                )


def test_every_message_is_served_at_its_queue_offset(case: GoldenCase) -> None:
    """Reading each queue from its minimum to its end gives the surviving messages, each at its own offset."""
    missing = set(case.manifest["recovery"]["lossless"]["missing"])
    with MessageStore.open(config_of(case)) as store:
        served = {
            (record.topic, record.queue_id, record.queue_offset, record.physical_offset)
            for topic, queue_ids in store.queues().items()
            for queue_id in queue_ids
            for record in read_all(store, topic, queue_id)
        }
    in_queues = {
        (message.topic, message.queue_id, message.queue_offset + number, message.physical_offset)
        for message in case.messages
        if message.physical_offset not in missing and not message.sys_flag & 0x4
        for number in range(int(message.properties["INNER_NUM"]) if message.sys_flag & 0x80 else 1)
    }
    assert served == in_queues


def read_all(store: MessageStore, topic: str, queue_id: int) -> Iterator[Any]:
    offset, end = store.queue_range(topic, queue_id)
    while offset < end:
        result = store.read(topic, queue_id, offset, max_count=7)
        yield from result.records
        assert result.next_offset > offset
        offset = result.next_offset


def test_units_are_those_of_the_manifest(case: GoldenCase) -> None:
    """After recovery every unit equals RocketMQ's, except where recovery had to change it."""
    expected = case.manifest["recovery"]["lossless"]
    with MessageStore.open(config_of(case)) as store:
        for topic, queues in case.manifest["queues"].items():
            for queue_id, content in queues.items():
                low, high = expected["queues"].get(topic, {}).get(queue_id, (0, 0))
                queue = store._queues.simple.get((topic, int(queue_id)))
                for number, unit in enumerate(content["units"], content["firstUnit"]):
                    if queue is not None and low <= number < high and unit[1] != 0x7FFFFFFF:
                        assert queue.units(number, 1).tolist()[0] == tuple(unit)


def test_batch_units_are_those_of_the_manifest(case: GoldenCase) -> None:
    """Every unit of a batch consume queue equals RocketMQ's and leads to each of its messages."""
    with MessageStore.open(config_of(case)) as store:
        for topic, queues in case.manifest.get("batchQueues", {}).items():
            for queue_id, content in queues.items():
                queue = store._queues.batch[topic, int(queue_id)]
                units = queue.units(0, 1 << 16)
                assert [list(unit)[:6] for unit in units.tolist()] == content
                for place, _, _, _, base, count in content:
                    for offset in range(base, base + count):
                        assert store.physical_offset_at(topic, int(queue_id), offset) == place


def test_queries_by_key_give_every_message_that_carries_it(case: GoldenCase) -> None:
    """Every key finds exactly the surviving messages that have it, whatever the archived index chains contain."""
    with MessageStore.open(config_of(case)) as store:
        for name, offsets in case.manifest["index"]["keys"].items():
            topic, _, key = name.partition("#")
            found = store.query(topic, key, max_count=1000)
            assert [record.physical_offset for record in found] == sorted(set(offsets)), name


def test_queries_within_a_time_range(case: GoldenCase) -> None:
    """Our answers to the archived key-and-time queries are exact to the millisecond; RocketMQ's are to the second."""
    by_offset = {message.physical_offset: message for message in case.messages}
    with MessageStore.open(config_of(case)) as store:
        for query in case.manifest.get("queries", []):
            found = store.query(query["topic"], query["key"], begin=query["begin"], end=query["end"])
            exact = [
                offset
                for offset in sorted(set(case.manifest["index"]["keys"].get(f"{query['topic']}#{query['key']}", [])))
                if query["begin"] <= by_offset[offset].store_timestamp <= query["end"]
            ]
            assert [record.physical_offset for record in found] == exact[-64:]


def test_pulls_give_rocketmqs_answers(case: GoldenCase) -> None:
    """Reading at each of the manifest's offsets gives its status, messages and next offset."""
    names = {
        "FOUND": "found",
        "NO_MESSAGE_IN_QUEUE": "empty",
        "OFFSET_TOO_SMALL": "offset-too-small",
        "OFFSET_OVERFLOW_ONE": "offset-at-end",
        "OFFSET_OVERFLOW_BADLY": "offset-too-large",
    }
    with MessageStore.open(config_of(case)) as store:
        for pull in case.manifest.get("pulls", []):
            result = store.read(pull["topic"], pull["queueId"], pull["offset"], max_count=32)
            assert (result.min_offset, result.max_offset) == (pull["minOffset"], pull["maxOffset"])
            assert result.status == names[pull["status"]], pull
            # RocketMQ stops at the end of a queue file, so its answer is a prefix of ours.
            # RocketMQ counts an inner batch as one message, we count each message in it.
            offsets = list(dict.fromkeys(record.physical_offset for record in result.records))
            assert offsets[: len(pull["physicalOffsets"])] == pull["physicalOffsets"]
            # Past the end, the next offset is the beginning in release 4.3, and the end in later ones and here.
            if not pull["physicalOffsets"] and not (case.name == "v43" and result.status == "offset-too-large"):
                assert result.next_offset == pull["nextBeginOffset"]


def test_offsets_by_time_are_rocketmqs(case: GoldenCase) -> None:
    """Every time lookup of the manifest has the same lower and upper answer."""
    with MessageStore.open(config_of(case)) as store:
        for lookup in case.manifest.get("timeLookups", []):
            arguments = (lookup["topic"], lookup["queueId"], lookup["timestamp"])
            assert store.offset_by_time(*arguments, "lower") == lookup["lower"], lookup
            if lookup["upper"] >= 0:
                assert store.offset_by_time(*arguments, "upper") == lookup["upper"], lookup


@pytest.mark.parametrize("name", UNDAMAGED)
def test_opening_an_undamaged_store_changes_nothing(name: str, tmp_path: Path) -> None:
    """Opening and closing a store that was closed in order keeps log, queues and index byte for byte."""
    case = golden.load(name, tmp_path)
    before = file_hashes(case.store)
    with MessageStore.open(config_of(case)):
        pass
    assert file_hashes(case.store) == before


def test_a_second_opening_finds_nothing_to_do(case: GoldenCase) -> None:
    """A recovered store is clean: opening it again changes nothing."""
    with MessageStore.open(config_of(case)):
        pass
    recovered = file_hashes(case.store)
    with MessageStore.open(config_of(case)) as store:
        assert store.recovery.clean
        assert not store.recovery.damaged or case.damaged
    assert file_hashes(case.store) == recovered


class ManifestClock:
    """Returns the store time of the message being written."""

    def __init__(self) -> None:
        self.now = 0

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_messages_give_the_same_files(name: str, tmp_path: Path) -> None:
    """Appending a manifest's messages gives RocketMQ's log, queue and index files byte for byte."""
    case = golden.load(name, tmp_path / "golden")
    bodies = bodies_of(case)
    clock = ManifestClock()
    written = tmp_path / "written"
    with MessageStore.open(config_of(case, written), clock=clock) as store:
        batches = {offset: batch for batch in case.manifest["log"].get("batches", []) for offset in batch}
        messages = {message.physical_offset: message for message in case.messages}
        done: set[int] = set()
        for message in case.messages:
            if message.physical_offset in done:
                continue
            group = batches.get(message.physical_offset, [message.physical_offset])
            done.update(group)
            clock.now = message.store_timestamp
            store.append(
                [to_message(messages[offset], bodies[offset]) for offset in group],
                split_batch=message.physical_offset in batches,
            )
            store.flush()
    expected = {path: digest for path, digest in file_hashes(case.store).items() if not path.startswith("index")}
    found = {path: digest for path, digest in file_hashes(written).items() if not path.startswith("index")}
    # Segments that were prepared and never used are not compared.
    empty = {path for path in expected if path not in found and not any((case.store / path).read_bytes())}
    assert found == {path: digest for path, digest in expected.items() if path not in empty}
    theirs = [path.read_bytes() for path in sorted((case.store / "index").iterdir())]
    ours = [path.read_bytes() for path in sorted((written / "index").iterdir())]
    assert ours == theirs


def bodies_of(case: GoldenCase) -> dict[int, bytes]:
    bodies = {}
    segments = case.segments()
    for message in case.messages:
        if message.body is not None:
            bodies[message.physical_offset] = message.body
            continue
        start = message.physical_offset - message.physical_offset % case.segment_size
        position = message.physical_offset - start
        (sys_flag,) = struct.unpack_from(">i", segments[start], position + 36)
        body = position + 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
        bodies[message.physical_offset] = segments[start][body : body + message.body_size]
    return bodies


def to_message(message: GoldenMessage, body: bytes) -> Message:
    return Message(
        topic=message.topic,
        queue_id=message.queue_id,
        body=body,
        raw_properties=message.raw_properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def test_index_headers_are_those_of_the_manifest(case: GoldenCase) -> None:
    """The parsed header of every archived index file equals the manifest's."""
    disk = DiskFileSystem()
    for header in case.manifest["index"]["files"]:
        path = case.store / "index" / header["name"]
        if not path.exists():
            continue
        slots, entries = int(case.config["maxHashSlotNum"]), int(case.config["maxIndexNum"])
        file = IndexFile(disk.open(path), slots, entries, new=False)
        assert (file.begin_timestamp, file.end_timestamp) == (header["beginTimestamp"], header["endTimestamp"])
        assert (file.begin_offset, file.end_offset) == (header["beginPhysicalOffset"], header["endPhysicalOffset"])
        assert (file.slots_used, file.next_entry) == (header["hashSlotCount"], header["indexCount"])
        file.close()


def test_the_manifests_are_the_ones_that_were_given() -> None:
    """The number of cases is the one listed in their README, so that no test runs on nothing."""
    assert (len(CASES), len(UNDAMAGED)) == (20, 8)
    assert json.loads((golden.CASES_DIRECTORY / "plain" / "manifest.json").read_text())["schema"] == 1
