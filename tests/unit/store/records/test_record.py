"""A single record: layout, checks, placing."""

from __future__ import annotations

import dataclasses
import mmap
import struct
from pathlib import Path
from typing import Any

import pytest

from aerobee_store.errors import CorruptRecordError, InvalidMessageError
from aerobee_store.records import record
from aerobee_store.records.record import Message, RecordHeader, ScanStop, StopReason, TransactionType
from tests.unit.store.record_vectors import BORN_HOST, SEGMENT, STORE_HOST, VECTORS, Vector


def encode(message: Message, **changes: Any) -> bytes:
    """Return a record with default settings, except for `changes`."""
    circumstances: dict[str, Any] = {
        "queue_offset": 5,
        "physical_offset": 7000,
        "store_timestamp": 1700000000123,
        "store_host": STORE_HOST,
        "property_crc": False,
    }
    return bytes(record.encode(message, **(circumstances | changes)))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"at {v.physical_offset}")
def test_known_records_are_written(vector: Vector) -> None:
    """Encoding gives the known bytes."""
    encoded = record.encode(
        vector.message,
        queue_offset=vector.queue_offset,
        physical_offset=vector.physical_offset,
        store_timestamp=vector.store_timestamp,
        store_host=STORE_HOST,
        property_crc=vector.property_crc,
    )
    assert encoded == vector.encoded


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"at {v.physical_offset}")
def test_known_records_are_read(vector: Vector) -> None:
    """Decoding gives back what was encoded."""
    found = record.decode(vector.encoded, physical_offset=vector.physical_offset)
    message = vector.message
    assert (found.topic, found.queue_id, found.body) == (message.topic, message.queue_id, message.body)
    assert (found.born_timestamp, found.born_host) == (message.born_timestamp, message.born_host)
    assert (found.store_timestamp, found.store_host) == (vector.store_timestamp, STORE_HOST)
    assert (found.queue_offset, found.physical_offset) == (vector.queue_offset, vector.physical_offset)
    assert found.size == len(vector.encoded)
    assert found.version == (2 if len(message.topic) > 127 else 1)
    assert found.has_property_crc == vector.property_crc


def test_keys_tag_and_ids_of_a_record() -> None:
    """Keys, tag and ids are read from the properties."""
    found = record.decode(VECTORS[0].encoded)
    assert found.keys == ["k1", "k2"]
    assert found.unique_key == "7F000001000018B4AAC27D8F5B6C0000"
    assert (found.tag, found.tags_code) == ("TagA", 2598919)
    without = record.decode(VECTORS[1].encoded)
    assert (without.keys, without.unique_key, without.tag, without.tags_code) == ([], None, None, 0)
    assert without.properties == {}


@pytest.mark.parametrize(("body", "crc"), [(b"hello", 0x3610A686), (b"123456789", 0x4BF43926), (b"", 0)])
def test_body_checksum(body: bytes, crc: int) -> None:
    """CRC-32 of the body without its top bit; 0 for none."""
    assert record.decode(encode(Message("t", 0, body))).body_crc == crc


@pytest.mark.parametrize("kind", list(TransactionType))
def test_only_messages_in_a_queue_get_a_queue_offset(kind: TransactionType) -> None:
    """Prepared and rolled-back messages store queue offset 0."""
    found = record.decode(encode(Message("t", 0, b"x", sys_flag=kind), queue_offset=9))
    assert found.transaction_type is kind
    assert found.queue_offset == (9 if kind in (TransactionType.NONE, TransactionType.COMMIT) else 0)


@pytest.mark.parametrize("born", [BORN_HOST, ("::1", 1)])
@pytest.mark.parametrize("own", [STORE_HOST, ("fe80::2", 2)])
@pytest.mark.parametrize("property_crc", [False, True])
def test_hosts_of_both_families(born: tuple[str, int], own: tuple[str, int], property_crc: bool) -> None:
    """Host bits follow the addresses, whatever flags the caller set; the time follows the born host."""
    message = Message("t", 0, b"x", {"a": "1"}, sys_flag=0x31, born_host=born)
    found = record.decode(encode(message, store_host=own, property_crc=property_crc))
    assert (found.born_host, found.store_host, found.store_timestamp) == (born, own, 1700000000123)
    assert found.sys_flag == 1 | (0x10 if ":" in born[0] else 0) | (0x20 if ":" in own[0] else 0)


def test_a_store_host_in_the_message_takes_precedence() -> None:
    """A store host in the message takes precedence over the store's own."""
    assert record.decode(encode(Message("t", 0, b"", store_host=("1.2.3.4", 5)))).store_host == ("1.2.3.4", 5)


def test_a_record_as_a_message_for_another_queue() -> None:
    """The message equals the stored one except for what the new queue changes.

    A timer or a client thus sees the same message.
    """
    message = Message(
        topic="t",
        queue_id=1,
        body=b"x",
        properties={"a": "1"},
        flag=7,
        sys_flag=TransactionType.COMMIT | 1,
        born_timestamp=5,
        born_host=("1.2.3.4", 5),
        store_host=("6.7.8.9", 10),
        reconsume_times=3,
        prepared_transaction_offset=400,
    )
    found = record.decode(encode(message))
    assert record.decode(encode(found.to_message("t", 1))) == found
    moved = found.to_message("u", 2, {"b": "2"})
    assert moved == dataclasses.replace(message, topic="u", queue_id=2, properties={"b": "2"})
    assert record.decode(encode(moved)).properties == {"b": "2"}


def test_a_record_as_a_new_message() -> None:
    """The message is outside the record's transaction, and gets the host of the store that it is appended to."""
    message = Message("t", 1, b"x", sys_flag=TransactionType.ROLLBACK | 1, born_timestamp=5, reconsume_times=3)
    message.store_host = ("6.7.8.9", 10)
    message.prepared_transaction_offset = 400
    made = record.decode(encode(message)).to_new_message("u", 2, {"b": "2"})
    assert made == Message("u", 2, b"x", {"b": "2"}, sys_flag=1, born_timestamp=5, reconsume_times=3)


def test_an_open_property_is_closed_before_the_checksum() -> None:
    """The checksum is then a separate property."""
    found = record.decode(encode(Message("t", 0, b"", raw_properties=b"TAGS\x01x"), property_crc=True))
    assert found.raw_properties.startswith(b"TAGS\x01x\x02__CRC32#\x01")
    assert found.tag == "x"


def test_an_open_property_swallows_the_checksum_in_a_split_batch() -> None:
    """As RocketMQ writes it: the tag is corrupted, but the checksum is found by its place and verified."""
    message = Message("t", 0, b"", raw_properties=b"TAGS\x01x")
    encoded = encode(message, property_crc=True, split_batch=True)
    found = record.decode(encoded)
    assert found.tag is not None
    assert found.tag.startswith("x__CRC32#\x01")
    assert found.has_property_crc
    with pytest.raises(CorruptRecordError, match="record checksum differs"):
        record.decode(encoded.replace(b"TAGS", b"TAGT"))


def test_a_stale_checksum_is_replaced() -> None:
    """The checksum in properties copied from a stored record is not kept."""
    first = record.decode(encode(Message("t", 0, b"1", {"a": "b"}), property_crc=True))
    for properties in ({"properties": first.properties}, {"raw_properties": first.raw_properties}):
        again = record.decode(encode(Message("t", 0, b"2", **properties), property_crc=True))
        assert again.properties["__CRC32#"] != first.properties["__CRC32#"]
        plain = record.decode(encode(Message("t", 0, b"2", **properties), property_crc=False))
        assert plain.properties == {"a": "b"}


def test_a_body_that_looks_like_a_checksum_is_unchanged() -> None:
    """The checksum is a property; equal bytes before the properties are not changed when placing."""
    message = Message("abcd", 0, b"x__CRC32#\x01abc", raw_properties=b"\x02")
    encoded = encode(message)
    assert encoded[-20:-11] == b"__CRC32#\x01", "the test must build the lookalike"
    found = record.decode(encoded)
    assert (found.topic, found.body, found.has_property_crc) == ("abcd", message.body, False)


def test_topics_up_to_127_bytes_have_version_1() -> None:
    """The version depends on the topic's size in bytes; 2 can be forced, 1 only where it fits."""
    assert record.decode(encode(Message("t" * 127, 0, b""))).version == 1
    assert record.decode(encode(Message("t" * 128, 0, b""))).version == 2
    assert record.decode(encode(Message("é" * 64, 0, b""))).version == 2
    assert record.decode(encode(Message("t", 0, b""), version=2)).version == 2


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (Message("", 0, b""), {}),
        (Message("t" * 32768, 0, b""), {}),
        (Message("\ud83d", 0, b""), {}),
        (Message("t" * 128, 0, b""), {"version": 1}),
        (Message("t", 0, b""), {"version": 3}),
        (Message("t", -1, b""), {}),
        (Message("t", 1 << 31, b""), {}),
        (Message("t", 0, b"", flag=1 << 31), {}),
        (Message("t", 0, b"", born_timestamp=1 << 63), {}),
        (Message("t", 0, b"", born_host=("localhost", 1)), {}),
        (Message("t", 0, b"", raw_properties=b"x" * 32768), {}),
        (Message("t", 0, b"", raw_properties=b"x" * 32747), {"property_crc": True}),
        (Message("t", 0, b""), {"queue_offset": -1}),
        (Message("t", 0, b""), {"physical_offset": -1}),
        (Message("t", 0, b""), {"physical_offset": 1 << 63}),
        (Message("t", 0, b""), {"store_timestamp": 1 << 63}),
    ],
)
def test_values_beyond_the_format_are_refused(message: Message, changes: dict[str, Any]) -> None:
    """Input out of range is refused with the declared error and never written."""
    with pytest.raises(InvalidMessageError):
        encode(message, **changes)


def test_the_largest_properties_with_a_checksum() -> None:
    """The limit of 32767 bytes includes the closing separator and the checksum."""
    found = record.decode(encode(Message("t", 0, b"", raw_properties=b"x" * 32746), property_crc=True))
    assert len(found.raw_properties) == 32767


# Field -> position and size in the fourth vector (144 bytes, IPv4 hosts, with checksum).
FIELDS = {
    "total_size": (0, 4),
    "magic": (4, 4),
    "body_crc": (8, 4),
    "queue_id": (12, 4),
    "flag": (16, 4),
    "queue_offset": (20, 8),
    "physical_offset": (28, 8),
    "sys_flag": (36, 4),
    "born_timestamp": (40, 8),
    "born_host": (48, 8),
    "store_timestamp": (56, 8),
    "store_host": (64, 8),
    "reconsume_times": (72, 4),
    "prepared_transaction_offset": (76, 8),
    "body_size": (84, 4),
    "body": (88, 6),
    "topic_size": (94, 1),
    "topic": (95, 9),
    "properties_size": (104, 2),
    "properties": (106, 18),
    "checksum": (124, 20),
}
# The fields that lengths, place and body checksum protect without the record checksum.
PROTECTED_WITHOUT_CHECKSUM = [
    "total_size",
    "magic",
    "body_crc",
    "physical_offset",
    "body_size",
    "body",
    "topic_size",
    "properties_size",
]


def damaged(encoded: bytes, field: str) -> list[bytes]:
    """Return copies of a record, each with another single bit of the field flipped."""
    position, size = FIELDS[field]
    copies = []
    for bit in range(size * 8):
        copy = bytearray(encoded)
        copy[position + bit // 8] ^= 1 << bit % 8
        copies.append(bytes(copy))
    return copies


def test_the_fields_cover_the_record() -> None:
    """The tests below cover every byte of the record."""
    position = 0
    for start, size in FIELDS.values():
        assert start == position
        position += size
    assert position == len(VECTORS[3].encoded)


@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_bit_anywhere_is_detected(field: str) -> None:
    """With the record checksum, no single bit of any field can change unnoticed."""
    for copy in damaged(VECTORS[3].encoded, field):
        with pytest.raises(CorruptRecordError):
            record.decode(copy, physical_offset=506, require_property_crc=True)


@pytest.mark.parametrize("field", PROTECTED_WITHOUT_CHECKSUM)
def test_a_flipped_bit_is_detected_without_the_record_checksum(field: str) -> None:
    """Lengths must agree, and the place and the body's checksum must match."""
    plain = dataclasses.replace(VECTORS[3].message, raw_properties=VECTORS[3].encoded[106:144].replace(b"_", b"-"))
    encoded = encode(plain, queue_offset=2, physical_offset=506)
    assert len(encoded) == 144
    assert isinstance(record.peek(encoded, physical_offset=506), RecordHeader)
    for copy in damaged(encoded, field):
        with pytest.raises(CorruptRecordError):
            record.decode(copy, physical_offset=506)


@pytest.mark.parametrize("size", range(len(VECTORS[0].encoded)))
def test_a_truncated_record_is_never_valid(size: int) -> None:
    """A shortened record is truncated, and nothing is read past the given end."""
    found = record.peek(VECTORS[0].encoded, 0, size)
    assert isinstance(found, ScanStop)
    assert found.reason is (StopReason.TRUNCATED if size >= 4 else StopReason.END_OF_DATA)


def change(encoded: bytes, position: int, value: bytes) -> bytes:
    return encoded[:position] + value + encoded[position + len(value) :]


@pytest.mark.parametrize(
    ("encoded", "detail"),
    [
        (change(VECTORS[0].encoded, 0, struct.pack(">i", 90)), "total size is 90"),
        (change(VECTORS[0].encoded, 0, struct.pack(">i", -5)), "total size is -5"),
        (change(VECTORS[0].encoded, 0, bytes(4)), "total size is 0"),
        (change(VECTORS[0].encoded, 4, b"\x00\x00\x00\x01"), "magic is 00000001"),
        (change(VECTORS[0].encoded, 12, struct.pack(">i", -1)), "queue id is -1"),
        (change(VECTORS[0].encoded, 20, struct.pack(">q", -1)), "queue offset is -1"),
        (change(VECTORS[0].encoded, 28, struct.pack(">q", -1)), "physical offset -1"),
        (change(VECTORS[0].encoded, 84, struct.pack(">i", -1)), "body size is -1"),
        (change(VECTORS[0].encoded, 84, struct.pack(">i", 0x7FFFFFFF)), "body size is 2147483647"),
        (change(VECTORS[0].encoded, 93, b"\x00"), "topic size is 0"),
        (change(VECTORS[0].encoded, 93, b"\x80"), "topic size is 128"),
        (change(VECTORS[0].encoded, 103, b"\xff\xff"), "properties -1"),
        (change(VECTORS[0].encoded, 94, b"\xff"), "topic is not UTF-8"),
        (change(VECTORS[2].encoded, 90, b"\xff\xff"), "topic size is -1"),
        (change(encode(Message("t", 0, b"")), 36, struct.pack(">i", 0x30)), "too small for IPv6"),
        (struct.pack(">iI", 7, record.BLANK_MAGIC), "blank of 7 bytes"),
    ],
)
def test_malformed_records_are_named(encoded: bytes, detail: str) -> None:
    """Each kind of malformed record has its own error detail."""
    found = record.peek(encoded)
    assert isinstance(found, ScanStop)
    assert found.reason is StopReason.CORRUPT
    assert detail in found.detail


def test_a_size_above_the_limit_is_corrupt_and_not_truncated() -> None:
    """The caller's maximum record size decides whether more bytes could complete the record."""
    huge = change(VECTORS[0].encoded, 0, struct.pack(">i", 5_000_000))
    found = record.peek(huge, record_size_max=4_000_000)
    assert isinstance(found, ScanStop)
    assert found.reason is StopReason.CORRUPT
    found = record.peek(huge)
    assert isinstance(found, ScanStop)
    assert found.reason is StopReason.TRUNCATED


def test_a_record_at_another_place_is_corrupt() -> None:
    """A valid record with another physical offset than its place is left over from an earlier log."""
    with pytest.raises(CorruptRecordError, match="physical offset 168") as caught:
        record.decode(VECTORS[1].encoded, physical_offset=400)
    assert caught.value.physical_offset == 400


def test_checksums_can_be_skipped() -> None:
    """Dispatch after a checked append does not need to verify them."""
    encoded = change(VECTORS[3].encoded, 88, b"W")
    assert record.decode(encoded, check_crc=False).body == b"World2"


def test_an_unplaced_record_is_checked_without_its_place() -> None:
    """Before the append, offsets and record checksum are not final, but lengths and body are checked."""
    unplaced = bytearray(record.Draft(VECTORS[3].message, store_host=STORE_HOST, property_crc=True).encode_unplaced())
    assert isinstance(record.peek(unplaced, placed=False, require_property_crc=True), RecordHeader)
    assert isinstance(record.peek(unplaced), ScanStop), "its checksum digits are still zeros"
    unplaced[88] ^= 1
    assert isinstance(record.peek(unplaced, placed=False), ScanStop)


def test_scan_of_a_segment() -> None:
    """All records in order, then the blank with its size."""
    *headers, stop = record.scan(SEGMENT, 0)
    assert [header.position for header in headers] == [0, 168, 282, 506, 650]
    assert [header.topic for header in headers if isinstance(header, RecordHeader)] == [
        v.message.topic for v in VECTORS[:5]
    ]
    assert isinstance(stop, ScanStop)
    assert (stop.reason, stop.position, stop.size) == (StopReason.BLANK, 811, 3285)


def test_scan_from_the_middle_of_a_later_segment() -> None:
    """Positions are relative to the buffer, physical offsets to the log."""
    buffer = bytes(100) + VECTORS[5].encoded + bytes(50)
    header, stop = record.scan(buffer, 3996, 100)
    assert isinstance(header, RecordHeader)
    assert (header.position, header.physical_offset) == (100, 4096)
    assert isinstance(stop, ScanStop)
    assert (stop.reason, stop.position, stop.physical_offset) == (StopReason.END_OF_DATA, 234, 4230)


def test_a_damaged_body_can_be_skipped() -> None:
    """The stop gives the distance to the next record if all lengths agree, and otherwise 0."""
    *_, stop = record.scan(change(SEGMENT, 168 + 100, b"!"), 0)
    assert isinstance(stop, ScanStop)
    assert (stop.reason, stop.position, stop.size) == (StopReason.CORRUPT, 168, 114)
    *_, stop = record.scan(change(SEGMENT, 168, b"\x00\x00\x00\x73"), 0)
    assert isinstance(stop, ScanStop)
    assert (stop.reason, stop.position, stop.size) == (StopReason.CORRUPT, 168, 0)


def test_a_blank_is_written_as_it_is_read() -> None:
    """The 8 bytes of a blank give its total size."""
    stop = record.peek(record.encode_blank(3285))
    assert isinstance(stop, ScanStop)
    assert (stop.reason, stop.size) == (StopReason.BLANK, 3285)
    assert record.encode_blank(3285) == SEGMENT[811:819]


def test_records_are_read_from_a_mapping(tmp_path: Path) -> None:
    """A mapped segment is read like any buffer, and can be closed afterwards."""
    path = tmp_path / "segment"
    path.write_bytes(SEGMENT)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert record.decode(mapping, 506, physical_offset=506).body == b"world2"
        assert record.decode(memoryview(mapping), 0).body == b"hello"
