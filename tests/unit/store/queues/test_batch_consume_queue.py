"""Topics stored as inner batches: reading, appending, unpacking, and recovery of their queues."""

from __future__ import annotations

import base64
import hashlib
import shutil
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import (
    CorruptRecordError,
    InvalidMessageError,
    Message,
    MessageStore,
    Record,
    StoreConfig,
    StoreDirectoryError,
)
from aerobee_store.records.inner_batch import unpack
from aerobee_store.records.record import SYS_FLAG_COMPRESSED, SYS_FLAG_INNER_BATCH
from aerobee_store.testing import ManualClock, MemoryFileSystem
from aerobee_store.tools.verify import verify
from tests.support import golden
from tests.support.golden import GoldenCase

TOPIC = "metering"


def item(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(properties)) + properties


def inner(*bodies: bytes, queue_id: int = 0, tag: str = "", **properties: str) -> Message:
    """Return an inner batch in which every message has its body as key, and the tag."""
    raw = [b"KEYS\x01" + body + b"\x02" + (b"TAGS\x01" + tag.encode() + b"\x02" if tag else b"") for body in bodies]
    return Message(
        TOPIC,
        queue_id,
        b"".join(map(item, bodies, raw)),
        {"INNER_NUM": str(len(bodies)), "UNIQ_KEY": "batch", **properties},
        sys_flag=0xC0,
    )


@pytest.fixture
def case(tmp_path: Path) -> GoldenCase:
    return golden.load("batch-cq", tmp_path)


@pytest.fixture
def config(case: GoldenCase) -> StoreConfig:
    return StoreConfig(
        directory=case.store,
        segment_size=case.segment_size,
        queue_file_size=int(case.config["mappedFileSizeConsumeQueue"]),
        batch_queue_file_size=int(case.config["mapperFileSizeBatchConsumeQueue"]),
        index_slot_count=int(case.config["maxHashSlotNum"]),
        index_entry_count=int(case.config["maxIndexNum"]),
        property_crc=False,
        disk_headroom=0,
        disk_full_ratio=1.0,
    )


def hashes(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def read_all(store: MessageStore, queue_id: int = 0, *, count: int = 7, topic: str = TOPIC) -> list[Record]:
    offset, end = store.queue_range(topic, queue_id)
    found: list[Record] = []
    while offset < end:
        result = store.read(topic, queue_id, offset, max_count=count)
        assert len(result.records) <= count
        assert result.next_offset > offset
        found += result.records
        offset = result.next_offset
    return found


class TestServing:
    def test_every_message_of_every_batch(self, case: GoldenCase, config: StoreConfig) -> None:
        """A consumer gets each message once, at its own offset, with its own body, properties and tag."""
        expected: dict[int, list[tuple[int, bytes]]] = {}
        for message in case.messages:
            if message.topic == TOPIC and message.body is not None:
                (size,) = struct.unpack_from(">i", message.body)
                (body_size,) = struct.unpack_from(">i", message.body, 16)
                assert size > body_size
                first = message.queue_offset, message.body[20 : 20 + body_size]
                expected.setdefault(message.queue_id, []).append(first)
        with MessageStore.open(config) as store:
            for queue_id in (0, 1, 2):
                messages = read_all(store, queue_id)
                assert [each.queue_offset for each in messages] == list(range(*store.queue_range(TOPIC, queue_id)))
                by_offset = {each.queue_offset: each for each in messages}
                for offset, body in expected[queue_id]:
                    assert by_offset[offset].body == body
                assert all(each.sys_flag & SYS_FLAG_INNER_BATCH == 0 for each in messages)
                batches = {message.properties.get("UNIQ_KEY", "none") for message in case.messages}
                assert not any(each.unique_key in batches for each in messages)

    @pytest.mark.parametrize("count", [1, 2, 32, 1000])
    def test_reading_begins_within_a_batch(self, config: StoreConfig, count: int) -> None:
        """A read from any offset returns exactly the requested messages."""
        with MessageStore.open(config) as store:
            _, end = store.queue_range(TOPIC, 1)
            for offset in range(end):
                result = store.read(TOPIC, 1, offset, max_count=count)
                wanted = list(range(offset, min(offset + count, end)))
                assert [each.queue_offset for each in result.records] == wanted
                assert (result.status, result.next_offset) == ("found", wanted[-1] + 1)

    def test_the_size_of_an_answer(self, config: StoreConfig) -> None:
        """Bytes are counted per message; at least one message is returned."""
        with MessageStore.open(config) as store:
            assert len(store.read(TOPIC, 1, 0, max_bytes=1).records) == 1
            some = store.read(TOPIC, 1, 0, max_bytes=500)
            assert 1 < len(some.records) < 32
            assert sum(each.size for each in some.records) <= 500
            assert some.next_offset == len(some.records)

    def test_a_tag_filter_compares_the_tags_of_messages(self, tmp_path: Path) -> None:
        """A filter compares the tag of each message, not of its batch, and skips the other messages."""
        with MessageStore.open(StoreConfig.tiny(tmp_path)) as store:
            store.append([inner(b"a", b"b", tag="red", TAGS="blue")])
            store.append([inner(b"c", tag="blue")])
            store.flush()
            red = store.read(TOPIC, 0, 0, tags=frozenset({"red"}))
            assert [each.body for each in red.records] == [b"a", b"b"]
            assert red.next_offset == 3
            none = store.read(TOPIC, 0, 0, tags=frozenset({"green"}))
            assert (none.status, none.next_offset) == ("no-match", 3)

    def test_lookups_by_time_use_the_times_of_batches(self, case: GoldenCase, config: StoreConfig) -> None:
        """Lookups give the first message at or after a time, and the last at or before it."""
        with MessageStore.open(config) as store:
            units = case.manifest["batchQueues"][TOPIC]["0"]
            end = units[-1][4] + units[-1][5]
            for number, (_, _, _, stored, base, count) in enumerate(units):
                assert store.offset_by_time(TOPIC, 0, stored) == base
                assert store.offset_by_time(TOPIC, 0, stored, "upper") == base + count - 1
                following = units[number + 1][4] if number + 1 < len(units) else end
                assert store.offset_by_time(TOPIC, 0, stored + 1) == following
            assert store.offset_by_time(TOPIC, 0, units[0][3] - 1, "upper") == 0


class TestAppending:
    def test_offsets_advance_by_the_number_of_messages(self, tmp_path: Path) -> None:
        """INNER_BASE is added. The next batch begins after the last message, also after a restart."""
        config = StoreConfig.tiny(tmp_path)
        with MessageStore.open(config) as store:
            assert store.append([inner(b"a", b"b", b"c")])[0].queue_offset == 0
            place = store.append([inner(b"d", b"e")])[0]
            assert place.queue_offset == 3
            store.flush()
            assert store.record_at(place.physical_offset).properties["INNER_BASE"] == "3"
        with MessageStore.open(config) as store:
            assert store.append([inner(b"f")])[0].queue_offset == 5
            store.flush()
            assert [each.body for each in read_all(store)] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert verify(tmp_path).ok

    @pytest.mark.parametrize(
        ("message", "cause"),
        [
            (inner(b"a", INNER_BASE="7"), "continues at 0"),
            (inner(b"a", INNER_NUM="2"), "claims to have 2"),
            (inner(b"a", INNER_NUM="none"), "INNER_NUM"),
            (replace(inner(b"a"), body=b"\0\0\0\x05abc"), "has only 7 bytes"),
            (replace(inner(b"a"), body=item(b"a")[:-1] + b"\x01"), "body and properties take"),
            (replace(inner(b"a"), sys_flag=0xC4), "transaction"),
        ],
    )
    def test_invalid_inner_batches_are_refused(self, tmp_path: Path, message: Message, cause: str) -> None:
        """An invalid batch is refused with the cause, and nothing is stored."""
        with MessageStore.open(StoreConfig.tiny(tmp_path)) as store:
            with pytest.raises(InvalidMessageError, match=cause):
                store.append([message])
            assert store.positions[0] == 0

    def test_the_two_kinds_of_topics(self, tmp_path: Path) -> None:
        """A batch topic refuses single messages, which no consumer would get; other topics refuse inner batches."""
        ordinary = Message("orders", 0, b"x")
        with MessageStore.open(StoreConfig.tiny(tmp_path), is_batch_topic=lambda topic: topic == TOPIC) as store:
            wrote = store.append([ordinary])[0].end
            store.flush()
            with pytest.raises(InvalidMessageError, match=r"queue\.type=BatchCQ"):
                store.append([ordinary, replace(ordinary, topic=TOPIC)])
            with pytest.raises(InvalidMessageError, match="does not take inner batches"):
                store.append([replace(inner(b"a"), topic="orders")])
            named = Message("orders", 0, b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
            for others in ([ordinary], [named]):
                with pytest.raises(InvalidMessageError, match="only message of its append"):
                    store.append([*others, inner(b"a")])
            assert store.positions[0] == wrote

    def test_a_topic_that_is_deleted(self, tmp_path: Path) -> None:
        """Its messages are gone for good; a new topic of any kind with its name continues at its offsets."""
        config = StoreConfig.tiny(tmp_path)
        with MessageStore.open(config) as store:
            store.append([inner(b"a", b"b")])
            store.flush()
            store.delete_topic(TOPIC)
            assert not (tmp_path / "batchconsumequeue" / TOPIC).exists()
            assert store.append([Message(TOPIC, 0, b"single")])[0].queue_offset == 2
            store.flush()
        (tmp_path / "abort").touch()
        (tmp_path / "checkpoint").unlink()
        with MessageStore.open(config) as store:
            assert store.queue_range(TOPIC, 0) == (2, 3)
            assert [each.body for each in read_all(store)] == [b"single"]


class TestUnpacking:
    def record(self, message: Message) -> Record:
        with MessageStore.open(
            StoreConfig.tiny(Path("/store")), file_system=MemoryFileSystem(), clock=ManualClock()
        ) as store:
            place = store.append([message])[0]
            store.flush()
            return store.record_at(place.physical_offset)

    def test_flags_and_properties(self) -> None:
        """Each message has its own flag and properties; times and hosts are the record's."""
        record = self.record(inner(b"a", b"b"))
        both = unpack(replace(record, body=item(b"", b"", 5) + item(b"x", b"TAGS\x01t\x02", -1)))
        assert [(each.flag, each.body, each.tag) for each in both] == [(5, b"", None), (-1, b"x", "t")]
        assert {(each.store_timestamp, each.physical_offset) for each in both} == {(record.store_timestamp, 0)}

    def test_a_compressed_batch(self) -> None:
        """zlib is decompressed. Other formats, damaged data and excessive sizes are refused."""
        record = self.record(inner(b"a", b"b"))
        packed = replace(record, body=zlib.compress(record.body), sys_flag=record.sys_flag | SYS_FLAG_COMPRESSED)
        assert [each.body for each in unpack(packed)] == [b"a", b"b"]
        for broken in (
            replace(packed, body=packed.body[:-5]),
            replace(packed, body=b"nonsense"),
            replace(packed, sys_flag=packed.sys_flag | 0x100),
            replace(packed, body=zlib.compress(bytes(65 << 20), 1)),
        ):
            with pytest.raises(CorruptRecordError):
                unpack(broken)

    def test_any_wrong_length(self) -> None:
        """With any wrong length no byte outside the body is read, and an error names the cause."""
        record = self.record(inner(b"hello", b"harness"))
        for position in (0, 16, 25, 38, 54):
            for value in (-1, 0, 21, 0x7FFF, 0x7FFFFFFF):
                width = 2 if position == 25 else 4
                body = bytearray(record.body)
                body[position : position + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")
                if bytes(body) != record.body:
                    with pytest.raises(CorruptRecordError, match="physical offset 0"):
                        unpack(replace(record, body=bytes(body)))


class TestRecovery:
    def crash(self, store: Path) -> None:
        (store / "abort").touch()
        (store / "checkpoint").unlink()

    def queues(self, store: Path) -> dict[str, str]:
        return hashes(store / "batchconsumequeue")

    def test_lost_queues_are_rebuilt(self, case: GoldenCase, config: StoreConfig) -> None:
        """RocketMQ's files are rebuilt from the log alone, byte for byte."""
        before = self.queues(case.store)
        shutil.rmtree(case.store / "batchconsumequeue")
        self.crash(case.store)
        with MessageStore.open(config):
            pass
        assert self.queues(case.store) == before

    @pytest.mark.parametrize("unit", [0, 3, 9, 10, 11])
    def test_a_wrong_unit_is_corrected(self, case: GoldenCase, config: StoreConfig, unit: int) -> None:
        """After a crash any wrong unit is corrected from the log."""
        before = self.queues(case.store)
        path = case.store / "batchconsumequeue" / TOPIC / "0" / f"{unit // 10 * 460:020d}"
        for position in (0, 8, 12, 28, 36):
            for value in (b"\xff", b"\x55"):
                data = bytearray(path.read_bytes())
                data[unit % 10 * 46 + position : unit % 10 * 46 + position + 1] = value
                path.write_bytes(data)
                self.crash(case.store)
                with MessageStore.open(config) as store:
                    assert store.queue_range(TOPIC, 0) == (0, 123)
                assert self.queues(case.store) == before

    def test_units_after_the_end_of_the_log_are_dropped(self, case: GoldenCase, config: StoreConfig) -> None:
        """The last batch is torn: its messages are dropped, and the next batch gets their offsets."""
        last = [message for message in case.messages if message.topic == TOPIC][-1]
        assert last is case.messages[-1]
        path = case.store / "commitlog" / f"{49152:020d}"
        data = bytearray(path.read_bytes())
        data[last.physical_offset - 49152 + 200 :] = bytes(len(data) - (last.physical_offset - 49152 + 200))
        path.write_bytes(data)
        self.crash(case.store)
        with MessageStore.open(config) as store:
            assert store.queue_range(TOPIC, last.queue_id) == (0, last.queue_offset)
            assert len(read_all(store, last.queue_id)) == last.queue_offset
            assert store.append([inner(b"new", queue_id=last.queue_id)])[0].queue_offset == last.queue_offset
        assert verify(case.store).ok

    def test_a_damaged_batch_is_skipped(self, case: GoldenCase, config: StoreConfig) -> None:
        """Its messages are counted as lost, with and without their unit, and the other batches are served."""
        lost = next(message for message in case.messages if message.topic == TOPIC and message.queue_offset == 9)
        path = case.store / "commitlog" / f"{lost.physical_offset // 16384 * 16384:020d}"
        data = bytearray(path.read_bytes())
        data[lost.physical_offset % 16384 + 150] ^= 1
        path.write_bytes(data)
        wanted = [*range(9), *range(14, 123)]
        with MessageStore.open(config) as store:
            assert [each.queue_offset for each in read_all(store)] == wanted
            result = store.read(TOPIC, 0, 8, max_count=3)
            assert (result.next_offset, result.lost) == (16, 5)
        shutil.rmtree(case.store / "batchconsumequeue")
        self.crash(case.store)
        with MessageStore.open(config) as store:
            assert [each.queue_offset for each in read_all(store)] == wanted
            result = store.read(TOPIC, 0, 8, max_count=3)
            assert (result.next_offset, result.lost) == (16, 5)
            assert store.physical_offset_at(TOPIC, 0, 10) is None
            assert store.physical_offset_at(TOPIC, 0, 14) is not None

    def test_the_oldest_segments_are_missing(self, case: GoldenCase, config: StoreConfig) -> None:
        """The minimum is the first message of the first remaining batch."""
        for start in (0, 16384, 32768):
            (case.store / "commitlog" / f"{start:020d}").unlink()
        with MessageStore.open(config) as store:
            assert store.queue_range(TOPIC, 0) == (112, 123)
            assert store.queue_range(TOPIC, 1) == (137, 156)
            assert [each.queue_offset for each in read_all(store)] == list(range(112, 123))

    async def test_expiry_removes_files(self, tmp_path: Path) -> None:
        """Retention removes segments, and queue files of which no unit has a record; the rest stays."""
        clock = ManualClock()
        config = replace(StoreConfig.tiny(tmp_path), delete_when_hours=tuple(range(24)))
        with MessageStore.open(config, clock=clock) as store:
            for number in range(60):
                store.append([inner(bytes([65 + number]) * 300, b"x" * 300, b"y" * 300)])
                clock.advance(1)
            store.flush()
            clock.advance(100 * 3600)
            store.append([inner(b"last")])
            store.flush()
            await store.retention.clean()
            minimum = store.status().min_offset
            assert minimum > 49152
            low, high = store.queue_range(TOPIC, 0)
            assert high == 181
            messages = read_all(store)
            assert [each.queue_offset for each in messages] == list(range(low, high))
            assert min(each.physical_offset for each in messages) == minimum
        names = [path.name for path in sorted((tmp_path / "batchconsumequeue" / TOPIC / "0").iterdir())]
        assert names[0] == f"{low // 3 // 10 * 460:020d}" != f"{0:020d}"
        with MessageStore.open(config) as store:
            assert store.queue_range(TOPIC, 0) == (low, high)
        assert verify(tmp_path).ok

    def test_a_topic_with_queues_of_both_kinds(self, case: GoldenCase, config: StoreConfig) -> None:
        """The start refuses it, and names the topic and the remedy."""
        (case.store / "consumequeue" / TOPIC / "0").mkdir(parents=True)
        with pytest.raises(StoreDirectoryError, match="store rebuild"):
            MessageStore.open(config)

    @pytest.mark.parametrize("seed", range(12))
    def test_a_power_cut(self, seed: int) -> None:
        """After a crash every synced batch is there, and no message has changed its offset."""
        disk, clock = MemoryFileSystem(clock=ManualClock()), ManualClock()
        config = StoreConfig.tiny(Path("/store"))
        store = MessageStore.open(config, file_system=disk, clock=clock)
        bodies = [f"{number:04d}".encode() for number in range(200)]
        for first in range(0, 120, 3):
            store.append([inner(*bodies[first : first + 3])])
        store.flush()
        for first in range(120, 200, 2):
            store.append([inner(*bodies[first : first + 2])])
            store.commit()
            store.dispatch()
        after = disk.crash(seed)
        with MessageStore.open(config, file_system=after, clock=clock) as store:
            found = {each.queue_offset: each.body for each in read_all(store)}
            assert all(body == bodies[offset] for offset, body in found.items())
            assert found.keys() >= set(range(120))
            end = store.queue_range(TOPIC, 0)[1]
            assert store.append([inner(b"next")])[0].queue_offset == end
            store.flush()
            assert read_all(store)[-1].body == b"next"


def test_the_manifest_has_bodies(case: GoldenCase) -> None:
    """The manifest has some of the bodies, so that the first test compares something."""
    given = [message for message in case.messages if message.topic == TOPIC and message.body is not None]
    assert len(given) > 8
    assert base64.b64encode(given[0].body or b"").startswith(b"AAAA")


@pytest.mark.parametrize("stop", ["crash", "clean"])
@pytest.mark.parametrize("following", [1, 4])
def test_a_wrong_unit_of_a_damaged_batch_affects_no_other(stop: str, following: int) -> None:
    """A unit beyond the log's end is dropped, and later units of the queue are rebuilt from the log."""
    directory = Path("/store")
    config = StoreConfig.tiny(directory)
    disk, clock = MemoryFileSystem(), ManualClock()

    def is_batch(topic: str) -> bool:
        return topic == TOPIC

    with MessageStore.open(config, file_system=disk, clock=clock, is_batch_topic=is_batch) as store:
        places = []
        for number in range(9 + following):
            clock.advance(10)
            places += store.append([inner(b"%d" % number * 300, b"second")])
            store.flush()
    segment = places[8].physical_offset // config.segment_size * config.segment_size
    disk.damage(directory / "commitlog" / f"{segment:020d}", places[8].physical_offset - segment + 120, b"rotten")
    disk.damage(directory / "batchconsumequeue" / TOPIC / "0" / f"{0:020d}", 8 * 46, (1 << 40).to_bytes(8, "big"))
    if stop == "crash":
        disk.write_new(directory / "abort", b"")
    with MessageStore.open(config, file_system=disk, clock=clock, is_batch_topic=is_batch) as store:
        assert store.queue_range(TOPIC, 0) == (0, 2 * (9 + following))
        kept = [*range(16), *range(18, 2 * (9 + following))]
        assert [each.queue_offset for each in read_all(store)] == kept


@pytest.mark.parametrize("closed", [True, False])
def test_wrong_units_at_the_end_of_a_queue_whose_records_are_far_before_the_end_of_the_log(closed: bool) -> None:
    """The units are dropped, and the segment of their records is read again to rebuild them."""
    directory = Path("/store")
    config = StoreConfig.tiny(directory)
    disk, clock = MemoryFileSystem(), ManualClock()
    with MessageStore.open(config, file_system=disk, clock=clock, is_batch_topic=lambda topic: topic == TOPIC) as store:
        for number in range(6):
            store.append([inner(b"%d" % number, b"second")])
        store.append([Message("orders", 0, bytes(1300)) for _ in range(30)])
        store.flush()
        if not closed:
            disk = disk.kill()
    queue = directory / "batchconsumequeue" / TOPIC / "0" / f"{0:020d}"
    good = disk.contents()[queue]
    for number in (4, 5):
        disk.damage(queue, number * 46, ((1 << 40) + number).to_bytes(8, "big"))
    with MessageStore.open(config, file_system=disk, clock=clock) as store:
        assert store.recovery.clean == closed
        assert [each.queue_offset for each in read_all(store)] == [*range(12)]
    assert disk.contents()[queue] == good
