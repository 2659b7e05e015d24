"""Protobuf's wire format, read without its objects: what is found is what protobuf finds, or nothing."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.messages.wire_fields import VARINT_SIZE_MAX, read_varint, spans, varint
from aerobee_broker.processors.records.append import AppendRequest, read_append_request
from aerobee_broker.services.requests import is_well_formed
from aerobee_proto import records_v1

PARSE = records_v1.AppendRecordsRequest.FromString
TOPIC, QUEUE, RECORDS, SIZES = b"\x0a\x03\x12\x01t", b"\x10\x05", b"\x1a\x03abc", b"\x22\x04\x00\x00\x00\x01"


@given(st.integers(0, 2**64 - 1), st.integers(1, 10))
def test_a_number_is_read_if_it_is_short_enough(value: int, size_max: int) -> None:
    data = varint(value)
    if len(data) <= size_max:
        assert read_varint(b"x" + data + b"x", 1, size_max) == (value, 1 + len(data))
    else:
        with pytest.raises(IndexError):
            read_varint(data, 0, size_max)
    with pytest.raises(IndexError):
        read_varint(data[:-1], 0)


def test_fields_of_known_tags_are_found() -> None:
    """The content of bytes, and the bytes of a number."""
    data = TOPIC + QUEUE + RECORDS
    assert spans(data, (0, len(data)), (0x0A, 0x10, 0x1A)) == {0x0A: [(2, 5)], 0x10: [(6, 7)], 0x1A: [(9, 12)]}
    assert spans(RECORDS * 2, (0, 10), (0x1A,), (0x1A,)) == {0x1A: [(2, 5), (7, 10)]}


@pytest.mark.parametrize(
    "data",
    [
        RECORDS * 2,
        TOPIC + b"\x1a\x00",
        TOPIC + b"\x1a\x04abc",
        TOPIC + RECORDS + b"\x2a\x01x",
        TOPIC + b"\x1a",
        b"\x10" + b"\x80" * VARINT_SIZE_MAX + b"\x01",
        QUEUE * 65,
    ],
    ids=["twice", "empty", "too short", "unknown", "without a size", "long number", "many"],
)
def test_unusual_messages_have_no_spans(data: bytes) -> None:
    tags = (0x0A, 0x10, 0x1A)
    assert spans(data, (0, len(data)), tags, (0x10,)) is None


FIELDS = st.sampled_from(
    [
        *(TOPIC, QUEUE, RECORDS, SIZES, b"\x1a\x00", b"\x22\x00", b"\x0a\x02\x0a\x00", b"\x2a\x01x", b"\x10\x00"),
        *(b"\x10" + varint(2**31), b"\x10" + varint(2**31 - 1), b"\x10" + varint(2**64 - 1), b"\x1a\x02\xff\xfe"),
    ]
)

# Of the other wire types, of unknown numbers, and malformed.
ODD_FIELDS = st.sampled_from(
    [
        *(b"\x2d\x01\x00\x00\x00", b"\x29" + bytes(8), b"\x2d\x01\x00", b"\x29\x01", b"\x0a\x02\x12\x05", b"\x00\x01"),
        *(b"\x0a\x02\x12\x00", b"\x12\x05" + bytes(5), b"\x0a\x03\x12\x01\xff", b"\x2f"),
        # Tags and sizes of one to six bytes, also of more than they need; of a string, of unknown fields, of number 0.
        *(b"\xba\xa3\x09\x00", b"\xba\x01\x80\x01" + bytes(128), b"\xba\xa3\x09\x82\x00xx", b"\xba\xa3\x89\x01\x01x"),
        *(
            b"\x0a\x83\x80\x00\x12\x01\xff",
            b"\x8a\x00\x02\x12\x00",
            b"\x8a\x80\x00\x03\x12\x01\xff",
            b"\x8a\x80\x80\x00\x00",
        ),
        *(
            b"\x88\x80\x80\x80\x0f\x01",
            b"\x8a\x80\x80\x80\x10\x00",
            b"\x88\x80\x80\x80\x10\x01",
            b"\x82\x00\x00",
            b"\x80\x00\x01",
        ),
        *(
            b"\xad\x01" + bytes(4),
            b"\xa9\x01" + bytes(8),
            b"\xad\x01\x00",
            b"\xa8\x01" + b"\xff" * 9 + b"\x01",
            b"\xa8\x01" + b"\xff" * 10,
        ),
    ]
)


@given(st.lists(FIELDS, max_size=5).map(b"".join))
def test_a_request_read_in_place_is_that_of_protobuf(data: bytes) -> None:
    found, parsed = read_append_request(data, PARSE), PARSE(data)
    if isinstance(found, AppendRequest):
        assert (found.topic, found.queue_id) == (parsed.topic, parsed.queue_id)
        assert (bytes(found.records), bytes(found.record_sizes)) == (parsed.records, parsed.record_sizes)


@given(st.lists(FIELDS | ODD_FIELDS, max_size=4).map(b"".join))
def test_a_message_is_well_formed_if_protobuf_parses_it(data: bytes) -> None:
    try:
        PARSE(data)
    except DecodeError:
        parses = False
    else:
        parses = True
    assert is_well_formed(data, records_v1.AppendRecordsRequest.DESCRIPTOR) == parses


def test_fields_that_no_client_writes_count_several_times() -> None:
    """They take longer to read: so many of them are as much work as the limit of others."""
    tag_of_five_bytes, size_of_zero = b"\xba\x80\x80\x80\x00\x00", b"\x3a\x80\x80\x80\x80\x00"
    for odd in (tag_of_five_bytes, size_of_zero):
        for count, is_counted in ((2_000, True), (2_100, False)):
            assert is_well_formed(odd * count, records_v1.AppendRecordsRequest.DESCRIPTOR) == is_counted
    for usual in (b"\x3a\x00", b"\xba\xa3\x09\x00", b"\x3a\x80\x01" + bytes(128), b"\xa8\x01" + b"\xff" * 9 + b"\x01"):
        assert is_well_formed(usual * 16_384, records_v1.AppendRecordsRequest.DESCRIPTOR)


def test_a_field_ends_within_its_message() -> None:
    """Although the bytes behind the message would be enough for it."""
    data = b"\x0a\x02\x12\x03abc"
    assert spans(data, (2, 4), (0x12,)) is None
    assert not is_well_formed(data, records_v1.AppendRecordsRequest.DESCRIPTOR)


def test_usual_requests_are_read_in_place() -> None:
    for data in (TOPIC + RECORDS, TOPIC + QUEUE + RECORDS + SIZES, RECORDS):
        assert isinstance(read_append_request(data, PARSE), AppendRequest)


def test_numbers_of_ten_bytes_are_well_formed() -> None:
    """As protobuf writes negative ones."""
    request = records_v1.AppendRecordsRequest(queue_id=-1)
    assert is_well_formed(request.SerializeToString(), records_v1.AppendRecordsRequest.DESCRIPTOR)
