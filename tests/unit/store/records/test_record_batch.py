"""Records by columns give the same result as one by one."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import properties, record, record_batch
from aerobee_store.records.record import Message, ScanStop, StopReason
from aerobee_store.records.record_batch import RecordBatch
from tests.unit.store.record_vectors import SEGMENT, STORE_HOST, VECTORS


def log_of(messages: list[Message], base: int = 0, property_crc: bool = False) -> bytes:
    """Return the records of `messages`, one after another, with increasing queue offsets."""
    log = bytearray()
    for number, message in enumerate(messages):
        log += record.encode(
            message,
            queue_offset=number,
            physical_offset=base + len(log),
            store_timestamp=1700000000000 + number,
            store_host=STORE_HOST,
            property_crc=property_crc,
        )
    return bytes(log)


def raw(text: bytes, topic: str = "t", sys_flag: int = 0) -> Message:
    return Message(topic, 0, b"\x01\x02TAGS\x01no\x02", raw_properties=text, sys_flag=sys_flag)


def test_the_known_segment() -> None:
    """All columns of the known records, and the blank after them."""
    batch = RecordBatch.parse(SEGMENT, base_physical_offset=0)
    known = VECTORS[:5]
    assert batch.start.tolist() == batch.physical_offset.tolist() == [v.physical_offset for v in known]
    assert batch.size.tolist() == [len(v.encoded) for v in known]
    assert batch.queue_offset.tolist() == [v.queue_offset for v in known]
    assert batch.queue_id.tolist() == [v.message.queue_id for v in known]
    assert batch.store_timestamp.tolist() == [v.store_timestamp for v in known]
    assert [batch.topic(row) for row in range(5)] == [v.message.topic for v in known]
    assert [bytes(batch.body(row)) for row in range(5)] == [v.message.body for v in known]
    assert [bytes(batch.raw(row)) for row in range(5)] == [v.encoded for v in known]
    assert bytes(batch.raw_properties(0)) == known[0].message.raw_properties
    assert batch.has_property_crc.tolist() == [False, False, False, True, False]
    assert [batch.record(row) for row in range(5)] == [record.decode(v.encoded) for v in known]
    assert batch.tags_codes().tolist() == [2598919, 0, 0, 2598920, 2598919]
    assert (batch.stop.reason, batch.stop.position, batch.stop.size) == (StopReason.BLANK, 811, 3285)
    assert batch.end == 811


def test_the_known_index_entries() -> None:
    """Index hashes in the order in which entries are inserted: UNIQ_KEY, then the tokens of KEYS."""
    rows, hashes = RecordBatch.parse(SEGMENT, base_physical_offset=0).index_hashes()
    assert rows.tolist() == [0, 0, 0, 3]
    assert hashes.tolist() == [131000623, 2746024, 2746025, 2746024]
    rows, hashes = RecordBatch.parse(VECTORS[5].encoded, base_physical_offset=4096).index_hashes()
    assert (rows.tolist(), hashes.tolist()) == ([0, 0], [2746025, 120035676])


@pytest.mark.parametrize("count", [1, 3])
def test_a_record_that_another_process_completes_meanwhile(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The log of a running broker: incomplete where the columns look, and complete where the scalar check does."""
    log = log_of([Message("topic", 0, bytes([number]) * 100) for number in range(1 + count)])
    seen = bytearray(log)
    first = RecordBatch.parse(log, base_physical_offset=0, count_max=1).end
    seen[first + 50 :] = bytes(len(log) - first - 50)
    peek = record.peek

    def later(*arguments: Any, **named: Any) -> record.RecordHeader | ScanStop:
        seen[:] = log
        return peek(*arguments, **named)

    monkeypatch.setattr(record, "peek", later)
    batch = RecordBatch.parse(seen, base_physical_offset=0)
    assert len(batch) == 1 + count
    assert batch.stop.reason is StopReason.END_OF_DATA


@pytest.mark.parametrize("buffer", [b"", b"\x00", bytes(3), bytes(200), b"\xff" * 7, b"\xff" * 200])
def test_no_records(buffer: bytes) -> None:
    """A batch without records has empty columns, and the stop of the scalar scan."""
    batch = RecordBatch.parse(buffer, base_physical_offset=0)
    assert len(batch) == 0
    assert [batch.stop] == list(record.scan(buffer, 0))
    assert batch.end == 0
    assert batch.tags_codes().tolist() == []
    assert [column.tolist() for column in batch.index_hashes()] == [[], []]
    assert batch.property_strings("KEYS") == []
    assert len(record_batch.place(batch, bytearray(buffer), [], 0, 0)) == 0


def test_a_range_of_a_buffer_that_is_given() -> None:
    """Only bytes between start and end are read; a record that crosses the end is truncated."""
    batch = RecordBatch.parse(SEGMENT, base_physical_offset=0, start=168, end=550)
    assert batch.start.tolist() == [168, 282]
    assert (batch.stop.reason, batch.stop.position) == (StopReason.TRUNCATED, 506)
    assert len(RecordBatch.parse(SEGMENT, base_physical_offset=0, end=10**9)) == 5


def test_a_limited_number_of_records() -> None:
    """Parsing continues where the last batch ended."""
    first = RecordBatch.parse(SEGMENT, base_physical_offset=0, count_max=2)
    assert len(first) == 2
    assert (first.stop.reason, first.stop.position) == (StopReason.LIMIT, 282)
    rest = RecordBatch.parse(SEGMENT, base_physical_offset=0, start=first.end, count_max=10)
    assert len(rest) == 3
    assert rest.stop.reason is StopReason.BLANK
    assert RecordBatch.parse(b"", base_physical_offset=0, count_max=1).stop.reason is StopReason.END_OF_DATA


def test_every_flipped_bit_stops_as_the_scalar_scan_does() -> None:
    """After any single bit flip, the same records are accepted and the same reason is given.

    The record of the first flips has a checksum of the whole record, the next one only that of its body.
    """
    log = b"".join(v.encoded for v in VECTORS[2:5])
    base = VECTORS[2].physical_offset
    for bit in range((VECTORS[3].physical_offset - base) * 8, len(log) * 8):
        damaged = bytearray(log)
        damaged[bit // 8] ^= 1 << bit % 8
        *headers, stop = record.scan(damaged, base)
        batch = RecordBatch.parse(damaged, base_physical_offset=base)
        assert batch.start.tolist() == [header.position for header in headers]
        assert batch.stop == stop


def alike(count: int, property_crc: bool, base: int = 0) -> bytes:
    """Return records of equal lengths, as one producer sends them."""
    properties_of = [{"UNIQ_KEY": f"{number:032X}", "TAGS": "tag"} for number in range(count)]
    messages = [Message("topic", 0, b"body%04d" % number, properties_of[number]) for number in range(count)]
    return log_of(messages, base=base, property_crc=property_crc)


@pytest.mark.parametrize("property_crc", [False, True])
def test_a_flipped_bit_among_records_of_one_size(property_crc: bool) -> None:
    """The layout of the first record is used for later records only while they match it."""
    log = alike(9, property_crc)
    size = len(log) // 9
    assert len(RecordBatch.parse(log, base_physical_offset=0)) == 9
    for bit in range(size * 8):
        for number in (0, 5):
            damaged = bytearray(log)
            damaged[number * size + bit // 8] ^= 1 << bit % 8
            *headers, stop = record.scan(damaged, 0)
            batch = RecordBatch.parse(damaged, base_physical_offset=0)
            assert batch.start.tolist() == [header.position for header in headers]
            assert batch.stop == stop


def test_records_of_one_size_and_different_layouts() -> None:
    """Bodies, topics, hosts and versions of different lengths, in records of equal size."""
    v6 = ("::1", 1)
    messages = [Message("topic", 0, b"x" * 40), Message("top", 0, b"y" * 42), Message("topic", 1, b"", {"k": "v" * 37})]
    messages += [Message("topic", 0, b"z" * 28, born_host=v6), Message("topic", 0, b"z" * 28, store_host=v6)]
    messages += [Message("cipot", 0, b"x" * 40), Message("topic", 7, b"y" * 40, {"a": ""})]
    for first in range(len(messages)):
        log = log_of((messages[first:] + messages[:first]) * 2)
        assert len({header.size for header in record.scan(log, 0) if not isinstance(header, ScanStop)}) == 1
        batch = RecordBatch.parse(log, base_physical_offset=0)
        expected = [record.decode(log, position, physical_offset=position) for position in batch.start.tolist()]
        assert len(expected) == len(messages) * 2
        assert [batch.record(row) for row in range(len(batch))] == expected
        buffer = bytearray(log)
        placed = record_batch.place(batch, buffer, np.arange(len(batch)), 10_000, 1700000001000)
        again = RecordBatch.parse(buffer, base_physical_offset=10_000)
        assert [placed.record(row) for row in range(len(placed))] == [again.record(row) for row in range(len(batch))]


def test_a_checksum_in_a_record_of_the_layout_of_those_without() -> None:
    """The first records have a longer property where the last has its checksum, which is compared nevertheless."""
    log = log_of([Message("topic", 0, b"body", {"k": "v" * 24})] * 8)
    log += log_of([Message("topic", 0, b"body", {"k": "v" * 4})], base=len(log), property_crc=True)
    batch = RecordBatch.parse(log, base_physical_offset=0)
    assert len(set(batch.size.tolist())) == 1
    assert batch.has_property_crc.tolist() == [False] * 8 + [True]
    damaged = bytearray(log)
    damaged[len(log) * 8 // 9 + 17] ^= 1  # not in the body
    *headers, stop = record.scan(damaged, 0)
    batch = RecordBatch.parse(damaged, base_physical_offset=0)
    assert len(headers) == len(batch) == 8
    assert batch.stop == stop


def test_records_of_one_size_followed_by_others() -> None:
    """All records are found, however many of one size come first and however many are requested."""
    for count in range(12):
        log = alike(count, True) if count else b""
        log += log_of([Message("t", 0, b"longer" * 30), Message("t", 0, b"short")], base=len(log))
        *headers, stop = record.scan(log, 0)
        for count_max in (None, 1, 3, count, count + 1):
            batch = RecordBatch.parse(log + bytes(50), base_physical_offset=0, count_max=count_max)
            assert batch.start.tolist() == [header.position for header in headers][:count_max]
        assert isinstance(stop, ScanStop)
        assert stop.reason is StopReason.END_OF_DATA


def test_more_records_of_one_size_than_are_checked_at_once() -> None:
    """The single bad checksum is found wherever it is."""
    count = 1300
    log = alike(count, True)
    size = len(log) // count
    assert len(RecordBatch.parse(log, base_physical_offset=0)) == count
    for number in (0, 511, 512, 1023, 1024, 1299):
        damaged = bytearray(log)
        damaged[number * size + 100] ^= 1
        assert len(RecordBatch.parse(damaged, base_physical_offset=0)) == number


LIKE_TEXTS = [
    b"TAGS\x01aa\x02KEYS\x01k1 k2\x02",
    b"TAGS\x01bb\x02KEYS\x01k 3k \x02",
    b"TAGS\x01\xc3\xa9\x02KEYS\x01     \x02",
    b"TAGS\x01c\x01\x02KEYS\x01k4 k5\x02",
    b"TAGS\x01c\x02\x02KEYS\x01k4 k5\x02",
    b"TAGS\x01c\x00\x02KEYS\x01k4 k5\x02",
    b"TAGT\x01aa\x02KEYS\x01k1 k2\x02",
    b"KEYS\x01aa\x02TAGS\x01k1 k2\x02",
    b"TAGS\x02aa\x01KEYS\x01k1 k2\x02",
    b"TAGS\x01aaaKEYS\x01k1 k2\x02",
    b"TAGS\x01\x02aaTAGS\x01k1 k2\x02",
    b"\x01AGS\x01aa\x02KEYS\x01k1 k2\x02",
    b"TAGS\x01aa\x02KEYS\x01k1 k2k",
    b"TAGSxaa\x02KEYSxk1 k2\x02",
    b"xxxxxxxxxxxxxxxxxxx",
]


@pytest.mark.parametrize("count", [1, 3, len(LIKE_TEXTS)])
@pytest.mark.parametrize("first", range(len(LIKE_TEXTS)))
def test_properties_of_one_size(first: int, count: int) -> None:
    """Property strings of equal length, with names and separators at the same or other places."""
    texts = LIKE_TEXTS[first : first + count] * 6
    batch = RecordBatch.parse(log_of([raw(text) for text in texts]), base_physical_offset=0)
    decoded = [properties.decode_properties(text) for text in texts]
    assert len({len(text) for text in texts}) == 1
    assert len(batch) == len(texts)
    for name in ("TAGS", "KEYS", "AGS"):
        assert batch.property_strings(name) == [values.get(name) for values in decoded]
    assert batch.tags_codes().tolist() == [properties.tags_code(values.get("TAGS")) for values in decoded]
    rows, hashes = batch.index_hashes()
    keys = [(row, key) for row, values in enumerate(decoded) for key in properties.split_keys(values.get("KEYS", ""))]
    assert rows.tolist() == [row for row, _ in keys]
    assert hashes.tolist() == [properties.index_hash("t", key) for _, key in keys]


def test_a_slice_of_records_of_one_size_is_placed() -> None:
    """Only the slice's own bytes are copied and written."""
    log = alike(20, True)
    size = len(log) // 20
    part = RecordBatch.parse(log, base_physical_offset=0).slice(5, 15)
    buffer = bytearray(part.buffer)
    record_batch.place(part, buffer, np.arange(10), 7777, 1700000001000, STORE_HOST)
    again = RecordBatch.parse(buffer, base_physical_offset=7777)
    assert again.start.tolist() == [number * size for number in range(10)]
    assert again.property_strings("UNIQ_KEY") == [f"{number:032X}" for number in range(5, 15)]


def test_whether_the_properties_contain_something() -> None:
    """Only property strings are searched, not topics and bodies."""
    batch = RecordBatch.parse(log_of([raw(b"a\x01b"), raw(b"KEYS\x01k")]), base_physical_offset=0)
    assert batch.properties_contain(b"KEYS")
    assert not batch.properties_contain(b"no")


def test_whether_a_record_has_a_flag() -> None:
    """Any record is checked, also where records of one layout are checked together."""
    first = Message("t", 0, b"alike", sys_flag=record.SYS_FLAG_COMPRESSED)
    batch = RecordBatch.parse(log_of([first, Message("t", 0, b"other")] * 4), base_physical_offset=0)
    assert len(batch) == 8
    assert batch.any_has(record.SYS_FLAG_COMPRESSED | record.SYS_FLAG_PREPARED)
    assert not batch.any_has(record.SYS_FLAG_PREPARED)
    batch = RecordBatch.parse(log_of([first] * 4), base_physical_offset=0)
    assert batch.any_has(record.SYS_FLAG_COMPRESSED)
    assert not batch.any_has(record.SYS_FLAG_PREPARED)


@pytest.mark.parametrize("position", [12, 20, 28], ids=["queue id", "queue offset", "physical offset"])
def test_negative_numbers_are_corrupt(position: int) -> None:
    """A record with negative numbers ends the batch, with the reason of the scalar check."""
    log = bytearray(VECTORS[1].encoded + VECTORS[0].encoded)
    log[len(VECTORS[1].encoded) + position] = 0x80
    batch = RecordBatch.parse(log, base_physical_offset=None)
    assert len(batch) == 1
    assert batch.stop.reason is StopReason.CORRUPT
    assert batch.stop == record.peek(log, len(VECTORS[1].encoded))


def test_a_batch_can_require_the_record_checksum() -> None:
    """The first record without a checksum ends the batch."""
    log = log_of([Message("t", 0, b"1")], property_crc=True)
    log += log_of([Message("t", 0, b"2")], base=len(log))
    batch = RecordBatch.parse(log, base_physical_offset=0, require_property_crc=True)
    assert len(batch) == 1
    assert "checksum is missing" in batch.stop.detail


def test_records_that_are_not_adjacent() -> None:
    """Without a base the stored offsets are used unchanged."""
    buffer = VECTORS[5].encoded + VECTORS[0].encoded
    batch = RecordBatch.parse(buffer, base_physical_offset=None)
    assert batch.physical_offset.tolist() == [4096, 0]


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        (b"", None),
        (b"TAGS\x01a\x02", "a"),
        (b"TAGS\x01a", "a"),
        (b"XTAGS\x01a\x02TAGSX\x01b\x02", None),
        (b"x\x01TAGS\x02", None),
        (b"x\x01y TAGS\x01a\x02", None),
        (b"TAGS\x01a\x02TAGS\x01b\x02", "b"),
        (b"TAGS\x01a\x02TAGS\x01\x02", "a"),
        (b"\x02\x02TAGS\x01a\x01b\x02\x02", "a\x01b"),
        (b"TAGS\x02TAGS\x01\x02", None),
        ("TAGS\x01标签😀\x02".encode(), "标签😀"),
        (b"TAGS\x01\xff\xe4\xb8\x02", "\ufffd\ufffd"),
        (b"TAGS\x01" + b"x" * 64, "x" * 64),
        (b"TAGS\x01" + b"x" * 65, "x" * 65),
        (b"TAGS\x01" + b"x" * 3000, "x" * 3000),
    ],
)
def test_a_property_is_found_as_by_decoding(text: bytes, tag: str | None) -> None:
    """Only whole names match, the last value counts, and other properties or bodies with separators do not matter."""
    assert properties.decode_properties(text).get("TAGS") == tag
    around = raw(b"TAGS\x01around")
    batch = RecordBatch.parse(log_of([around, raw(text), around]), base_physical_offset=0)
    assert batch.property_strings("TAGS") == ["around", tag, "around"]
    around_code = properties.tags_code("around")
    assert batch.tags_codes().tolist() == [around_code, properties.tags_code(tag), around_code]


def test_index_keys_of_many_shapes() -> None:
    """Empty tokens, repeated keys, long keys, non-Latin text and topics of different sizes."""
    long_key = "k" * 100
    log = log_of(
        [
            raw(f"KEYS\x01 a  b a {long_key} \x02UNIQ_KEY\x01u".encode(), "topic-1"),
            raw(b"", "topic-1"),
            raw(b"KEYS\x01   \x02", "主题"),
            raw("UNIQ_KEY\x01唯\x02KEYS\x01x".encode(), "主题"),
            raw(b"KEYS\x01ogb2mc\x02", "TopicTest"),
        ]
    )
    rows, hashes = RecordBatch.parse(log, base_physical_offset=0).index_hashes()
    expected = [(0, "topic-1", key) for key in ("u", "a", "b", "a", long_key)]
    expected += [(3, "主题", "唯"), (3, "主题", "x"), (4, "TopicTest", "ogb2mc")]
    assert rows.tolist() == [row for row, _, _ in expected]
    assert hashes.tolist() == [properties.index_hash(topic, key) for _, topic, key in expected]


def test_rolled_back_messages_are_not_indexed() -> None:
    """Messages of all other transaction types are indexed."""
    log = log_of([raw(b"KEYS\x01a\x02", sys_flag=kind) for kind in record.TransactionType])
    rows, _ = RecordBatch.parse(log, base_physical_offset=0).index_hashes()
    assert rows.tolist() == [0, 1, 2]


MIXED = [
    Message("t", 1, b"one", {"KEYS": "k"}, born_host=("::1", 5)),
    Message("t" * 200, 2, b"", sys_flag=record.TransactionType.PREPARED),
    Message("t", 3, b"three" * 100, {"TAGS": "é"}),
    Message("t", 4, b"four", sys_flag=record.TransactionType.ROLLBACK, born_host=("::2", 5)),
]


@pytest.mark.parametrize("property_crc", [False, True])
def test_placing_equals_encoding_in_place(property_crc: bool) -> None:
    """Placing a batch gives the same bytes as encoding each record in place, and the new batch reads the same."""
    frame = b"".join(record.Draft(m, store_host=STORE_HOST, property_crc=property_crc).encode_unplaced() for m in MIXED)
    batch = RecordBatch.parse(frame, base_physical_offset=None, placed=False)
    assert len(batch) == 4
    buffer = bytearray(frame)
    offsets = np.array([10, 11, 12, 13])
    placed = record_batch.place(batch, buffer, offsets, 5000, 1700000000999)

    expected = bytearray()
    for queue_offset, message in zip(offsets.tolist(), MIXED, strict=True):
        expected += record.encode(
            message,
            queue_offset=queue_offset,
            physical_offset=5000 + len(expected),
            store_timestamp=1700000000999,
            store_host=STORE_HOST,
            property_crc=property_crc,
        )
    assert buffer == expected
    parsed = RecordBatch.parse(buffer, base_physical_offset=5000)
    assert parsed.stop.reason is StopReason.END_OF_DATA
    for name in ("start", "queue_offset", "physical_offset", "store_timestamp", "sys_flag", "topic_index"):
        assert getattr(placed, name).tolist() == getattr(parsed, name).tolist(), name
    assert placed.queue_offset.tolist() == [10, 0, 12, 0]
    assert [placed.record(row) for row in range(4)] == [parsed.record(row) for row in range(4)]


def test_placing_with_another_store_host() -> None:
    """The store's host replaces the client's if it fits; otherwise nothing is written."""
    frame = b"".join(record.Draft(m, store_host=("0.0.0.0", 0), property_crc=True).encode_unplaced() for m in MIXED)
    batch = RecordBatch.parse(frame, base_physical_offset=None, placed=False)
    buffer = bytearray(frame)
    with pytest.raises(InvalidMessageError, match="says IPv4"):
        record_batch.place(batch, buffer, [0, 1, 2, 3], 0, 1, ("::1", 10911))
    assert buffer == frame
    record_batch.place(batch, buffer, [0, 1, 2, 3], 0, 1, STORE_HOST)
    parsed = RecordBatch.parse(buffer, base_physical_offset=0)
    assert [parsed.record(row).store_host for row in range(len(parsed))] == [STORE_HOST] * 4


def test_an_invalid_topic_ends_the_batch() -> None:
    """Records before it are kept, whatever their topics."""
    log = bytearray(log_of([Message("ab", 0, b""), Message("c", 0, b""), Message("de", 0, b""), Message("f", 0, b"")]))
    log[log.index(b"de")] = 0xFF
    batch = RecordBatch.parse(log, base_physical_offset=0)
    assert [batch.topic(row) for row in range(len(batch))] == ["ab", "c"]
    assert batch.topics == ("ab", "c") or batch.topics == ("c", "ab")
    assert "not UTF-8" in batch.stop.detail


def test_topics_that_end_in_zero_bytes_differ() -> None:
    """Grouping compares whole names."""
    log = log_of(
        [Message("a\0", 0, b""), Message("a", 0, b""), Message("b\0", 0, b""), Message("a\0", 0, b"")],
        property_crc=True,
    )
    batch = RecordBatch.parse(log, base_physical_offset=0)
    assert [batch.topic(row) for row in range(4)] == ["a\0", "a", "b\0", "a\0"]


def test_batches_from_a_mapping(tmp_path: Path) -> None:
    """A mapped segment is parsed in place."""
    path = tmp_path / "segment"
    path.write_bytes(SEGMENT)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert len(RecordBatch.parse(mapping, base_physical_offset=0)) == 5
        mapping.close()  # no reference is left, as the batch is gone


def test_positions_of_properties() -> None:
    """The text at the places of one property, or of all, equals the decoded properties, in their order."""
    messages = [raw(b"a\x01b\x02KEYS\x01k\x01l\x02a\x01c"), raw(b""), raw(b"\x01x\x02y\x01\x02KEYS\x01m\x02")]
    batch = RecordBatch.parse(log_of(messages), base_physical_offset=0)
    text, rows, starts, ends = batch.property_places("KEYS")
    values = [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert (rows.tolist(), values) == ([0, 2], [b"k\x01l", b"m"])
    text, *columns = batch.all_property_places()
    pairs = [
        (row, text[a:b], text[c:d]) for row, a, b, c, d in zip(*(column.tolist() for column in columns), strict=True)
    ]
    assert pairs == [(0, b"a", b"b"), (0, b"KEYS", b"k\x01l"), (0, b"a", b"c"), (2, b"KEYS", b"m")]


def test_properties_that_a_caller_gathers() -> None:
    """They are the same, byte for byte, as those that the batch copies itself."""
    texts = (b"TAGS\x01a\x02", b"", b"KEYS\x01k\x01l\x02UNIQ_KEY\x01u", b"\x02x\x01y", b"TAGS\x01" + b"x" * 3000)
    log = log_of([raw(text) for text in texts])
    calls: list[int] = []

    def gather(buffer: memoryview, start: Any, end: Any) -> bytes:
        calls.append(len(start))
        return b"".join(buffer[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True))

    own, gathered = (RecordBatch.parse(log, base_physical_offset=0) for _ in range(2))
    gathered.keep_properties(gather)
    assert calls == [len(texts)]
    for name in ("TAGS", "KEYS", "UNIQ_KEY", "x"):
        expected, found = own.property_places(name), gathered.property_places(name)
        assert found[0] == expected[0]
        assert [column.tolist() for column in found[1:]] == [column.tolist() for column in expected[1:]]
    gathered.keep_properties(gather)
    assert calls == [len(texts)], "once for a batch"


def test_hosts_and_deliveries_of_all_kinds_of_records() -> None:
    """The fields whose place depends on IPv6 hosts equal the decoded ones."""
    log = log_of([Message("t", 0, b"x", reconsume_times=3)])
    for born in (("10.0.0.1", 1), ("2001:db8::1", 2)):
        for host in (("10.0.0.2", 3), ("2001:db8::2", 4)):
            message = Message("t", 0, b"x", born_host=born, store_host=host, reconsume_times=host[1])
            log += record.encode(
                message, queue_offset=0, physical_offset=len(log), store_timestamp=1, store_host=host, property_crc=True
            )
    batch = RecordBatch.parse(log, base_physical_offset=0)
    records = [batch.record(row) for row in range(5)]
    assert batch.reconsume_times.tolist() == [item.reconsume_times for item in records] == [3, 3, 4, 3, 4]
    for wide in (False, True):
        rows, hosts = batch.store_hosts(wide)
        assert [properties.decode_host(host.tobytes()) for host in hosts] == [records[row].store_host for row in rows]
        assert rows.tolist() == ([2, 4] if wide else [0, 1, 3])


def test_thousands_of_records() -> None:
    """With more rows than any inner chunk, every hash equals the scalar one."""
    messages = [
        Message(f"topic-{n % 7}", n % 3, b"x", {"KEYS": f"k{n} key-{n * 977}", "UNIQ_KEY": f"{n:032X}", "TAGS": f"{n}"})
        for n in range(3000)
    ]
    batch = RecordBatch.parse(log_of(messages), base_physical_offset=0)
    assert batch.property_strings("UNIQ_KEY") == [m.properties["UNIQ_KEY"] for m in messages]
    assert batch.tags_codes().tolist() == [properties.java_hash(m.properties["TAGS"]) for m in messages]
    rows, hashes = batch.index_hashes()
    expected = [
        (n, properties.index_hash(m.topic, key))
        for n, m in enumerate(messages)
        for key in (m.properties["UNIQ_KEY"], *m.properties["KEYS"].split(" "))
    ]
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected


def test_checksums_can_be_skipped() -> None:
    """A damaged body is then accepted, and the batch stops only at the end."""
    log = log_of([dataclasses.replace(MIXED[2])]).replace(b"threethree", b"threeTHREE", 1)
    assert len(RecordBatch.parse(log, base_physical_offset=0)) == 0
    batch = RecordBatch.parse(log, base_physical_offset=0, check_crc=False)
    assert len(batch) == 1
    assert isinstance(batch.stop, ScanStop)
    assert batch.stop.reason is StopReason.END_OF_DATA


def test_a_missing_born_host_is_written() -> None:
    """It is written into the available space: an IPv4 address also fits an IPv6 field, but not the reverse."""
    none, known = {"v4": ("0.0.0.0", 0), "v6": ("::", 0)}, {"v4": ("10.0.0.1", 5), "v6": ("2001:db8::1", 5)}
    kinds = [none["v4"], none["v6"], known["v4"], known["v6"], none["v6"], ("::", 7), ("::1", 0)]
    log = log_of([Message("t", 0, b"x", {"a": "b"}, born_host=host) for host in kinds], property_crc=True)
    batch = RecordBatch.parse(log, base_physical_offset=0)

    def hosts(connection: tuple[str, int]) -> list[tuple[str, int]]:
        buffer = bytearray(log)
        record_batch.write_place(batch, buffer, range(len(kinds)), 0, 1, STORE_HOST, connection)
        written = RecordBatch.parse(bytes(buffer), base_physical_offset=0)  # with their checksums
        return [written.record(row).born_host for row in range(len(written))]

    four, six, mapped = ("192.0.2.7", 1234), ("2001:db8::9", 1234), ("::ffff:192.0.2.7", 1234)
    assert hosts(four) == [four, mapped, *kinds[2:4], mapped, *kinds[5:]]
    assert hosts(six) == [none["v4"], six, *kinds[2:4], six, *kinds[5:]]
