"""Random messages survive the codec, columns and single records agree, and random bytes raise only expected errors."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_store.errors import CorruptRecordError, InvalidMessageError
from aerobee_store.records import properties, record
from aerobee_store.records.record import Message, ScanStop
from aerobee_store.records.record_batch import RecordBatch, place

STORE_HOST = ("192.168.1.5", 10911)

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=20)
NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY"]) | TEXT.filter(
    lambda name: name != properties.CRC32 and not name.startswith(properties.TRANSIENT_PREFIX)
)
VALUES = TEXT | st.lists(TEXT | st.just(""), min_size=2, max_size=4).map(" ".join).filter(bool)
# A record without checksum must not end in a zero byte; without properties it ends with its topic.
TOPICS = TEXT.filter(lambda topic: not topic.endswith("\0"))
HOSTS = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))
# Parts of real property strings, joined in ways that no writer uses.
RAW = st.lists(
    st.sampled_from(
        [b"\x01", b"\x02", b"KEYS", b"TAGS", b"UNIQ_KEY", b" ", b"a", b"\xff", "é中😀".encode(), b"x" * 70]
    ),
    max_size=20,
).map(b"".join)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Draw any message that the format can hold."""
    topic = draw(TOPICS | st.sampled_from(["t", "t" * 127, "t" * 128, "é" * 64]))
    return Message(
        topic,
        draw(st.integers(0, 2**31 - 1)),
        draw(st.binary(max_size=40) | st.just(b"large" * 2000)),
        draw(st.dictionaries(NAMES, VALUES, max_size=5)),
        draw(st.none() | RAW | st.just(b"x" * 32000)),
        flag=draw(I32),
        sys_flag=draw(I32),
        born_timestamp=draw(I64),
        born_host=draw(HOSTS),
        store_host=draw(st.none() | HOSTS),
        reconsume_times=draw(I32),
        prepared_transaction_offset=draw(I64),
    )


def normal(host: tuple[str, int]) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """Normalize a host: an address has several spellings."""
    return ipaddress.ip_address(host[0]), host[1]


@given(
    message=messages(),
    queue_offset=st.integers(0, 2**63 - 1),
    physical_offset=st.integers(0, 2**63 - 1),
    store_timestamp=I64,
    property_crc=st.booleans(),
    split_batch=st.booleans(),
)
def test_round_trip(
    message: Message,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    property_crc: bool,
    split_batch: bool,
) -> None:
    """Every field is decoded as it was encoded."""
    encoded = record.encode(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=store_timestamp,
        store_host=STORE_HOST,
        property_crc=property_crc,
        split_batch=split_batch,
    )
    found = record.decode(encoded, physical_offset=physical_offset, require_property_crc=property_crc)
    assert found.size == len(encoded)
    assert (found.topic, found.queue_id, found.body) == (message.topic, message.queue_id, message.body)
    assert (found.flag, found.reconsume_times) == (message.flag, message.reconsume_times)
    assert found.sys_flag & ~0x30 == message.sys_flag & ~0x30
    assert found.queue_offset == (0 if message.sys_flag & 4 else queue_offset)
    assert (found.born_timestamp, found.store_timestamp) == (message.born_timestamp, store_timestamp)
    assert found.prepared_transaction_offset == message.prepared_transaction_offset
    assert normal(found.born_host) == normal(message.born_host)
    assert normal(found.store_host) == normal(message.store_host or STORE_HOST)
    if message.raw_properties is None:
        assert {k: v for k, v in found.properties.items() if k != properties.CRC32} == message.properties
    else:
        assert found.raw_properties.startswith(message.raw_properties)


def assert_batch_equals_scan(buffer: bytes | bytearray, **circumstances: Any) -> None:
    """Columns, decoded records, hashes and the stop equal those of the scalar codec."""
    *headers, stop = record.scan(buffer, **circumstances)
    base = circumstances.pop("base_physical_offset")
    batch = RecordBatch.parse(buffer, base_physical_offset=base, **circumstances)
    assert batch.stop == stop
    scalar = [record.read(buffer, header) for header in headers if not isinstance(header, ScanStop)]
    assert [batch.record(row) for row in range(len(batch))] == scalar
    assert batch.has_property_crc.tolist() == [found.has_property_crc for found in scalar]
    assert batch.tags_codes().tolist() == [found.tags_code for found in scalar]
    for name in ("KEYS", "TAGS", "UNIQ_KEY", "DELAY"):
        assert batch.property_strings(name) == [found.properties.get(name) for found in scalar]
    rows, hashes = batch.index_hashes()
    expected = [
        (row, properties.index_hash(found.topic, key))
        for row, found in enumerate(scalar)
        if found.transaction_type is not record.TransactionType.ROLLBACK
        for key in ([found.unique_key] if found.unique_key else []) + found.keys
    ]
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected


def frame_of(batch: list[Message], property_crc: bool) -> bytearray:
    """Return unplaced records, one after another."""
    return bytearray().join(
        record.Draft(message, store_host=STORE_HOST, property_crc=property_crc).encode_unplaced() for message in batch
    )


@given(st.lists(messages(), max_size=6), st.booleans(), st.integers(0, 2**40))
def test_batch_equals_scalar(given_messages: list[Message], property_crc: bool, base: int) -> None:
    """Placing and parsing many records at once gives the same result as one by one."""
    frame = frame_of(given_messages, property_crc)
    assert_batch_equals_scan(frame, base_physical_offset=None, placed=False)
    batch = RecordBatch.parse(bytes(frame), base_physical_offset=None, placed=False)
    assert len(batch) == len(given_messages)
    one_by_one = b"".join(
        record.Draft(message, store_host=STORE_HOST, property_crc=property_crc).encode(
            7 + row, base + start, 1700000000000
        )
        for row, (message, start) in enumerate(zip(given_messages, batch.start.tolist(), strict=True))
    )
    placed = place(batch, frame, list(range(7, 7 + len(batch))), base, 1700000000000)
    assert frame == one_by_one
    assert_batch_equals_scan(frame, base_physical_offset=base)
    assert [placed.record(row) for row in range(len(placed))] == [
        record.decode(one_by_one, start) for start in batch.start.tolist()
    ]


@pytest.mark.parametrize(
    "message",
    [Message("\x00", 0, b""), Message("t\x00", 0, b"body"), Message("t", 0, b"body", raw_properties=b"KEYS\x01a\x00")],
)
def test_a_record_cannot_end_in_a_zero_byte(message: Message) -> None:
    """Such a record would look torn, so it is refused; a record checksum after the zero makes it valid."""
    with pytest.raises(InvalidMessageError, match="zero byte"):
        frame_of([message], property_crc=False)
    assert_batch_equals_scan(frame_of([message], property_crc=True), base_physical_offset=None, placed=False)


@given(
    st.lists(messages(), min_size=1, max_size=3),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
    st.floats(0, 1),
)
@settings(max_examples=100)
def test_damaged_records(
    given_messages: list[Message], damage: list[tuple[float, int]], check_crc: bool, kept: float
) -> None:
    """Whatever bytes are changed or cut off, only declared outcomes occur, and both readers agree."""
    frame = frame_of(given_messages, property_crc=False)
    for position, value in damage:
        # Half of the damage hits the fixed fields, which contain the lengths.
        where = int(position * 2 * min(len(frame), 120)) if position < 0.5 else int(position * len(frame))
        frame[min(where, len(frame) - 1)] = value
    del frame[int(kept * len(frame)) + 1 :]
    assert_batch_equals_scan(frame, base_physical_offset=None, placed=False, check_crc=check_crc)
    assert_batch_equals_scan(frame, base_physical_offset=0, check_crc=check_crc)


@given(st.binary(max_size=300), st.sampled_from([b"", b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94"]))
def test_garbage(garbage: bytes, magic: bytes) -> None:
    """Random bytes, also after a plausible start, are never a record and raise only the declared error."""
    buffer = garbage if not magic else len(garbage).to_bytes(4, "big") + magic + garbage
    assert_batch_equals_scan(buffer, base_physical_offset=None, check_crc=False)
    with pytest.raises(CorruptRecordError):
        record.decode(buffer)


@given(st.binary(max_size=200) | RAW)
def test_properties_are_decoded_from_any_bytes(encoded: bytes) -> None:
    """Decoding never fails, and its result can be encoded and decoded again."""
    found = properties.decode_properties(encoded)
    again = properties.encode_properties(found)
    expected = {
        name: value
        for name, value in found.items()
        if name != properties.CRC32 and not name.startswith(properties.TRANSIENT_PREFIX)
    }
    assert properties.decode_properties(again) == expected


@given(st.text(max_size=600))
def test_java_hash(text: str) -> None:
    """The fast hash equals the polynomial of its definition."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) % 2**32
    assert properties.java_hash(text) % 2**32 == value
