"""Requests that are too large, have too many entries, or cannot be parsed are refused with the right code."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.processors.statuses import status_of
from aerobee_broker.services.requests import RequestReader, entries_max_of, is_well_formed
from aerobee_proto import admin_v1, records_v1, v2
from aerobee_proto.pool import POOL
from tests.support.full_requests import filled, repeated_fields

Code = v2.Code
SERVICES = (
    "apache.rocketmq.v2.MessagingService",
    "apache.rocketmq.v2.Admin",
    "aerobee.v1.AdminService",
    "aerobee.v1.RecordService",
)
assert admin_v1.AdminServiceStub is not None  # loads their services into the pool
assert records_v1.RecordServiceStub is not None


def refused(kind: type[Any], data: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refusal:
        RequestReader("Method", kind).read(data)
    return refusal.value


ALL = [
    pytest.param(service, method, path, id=f"{method.name}.{'.'.join(field.name for field in path)}")
    for service in SERVICES
    for method in POOL.FindServiceByName(service).methods
    for path in repeated_fields(method.input_type)
]


@pytest.mark.parametrize(("service", "method", "path"), ALL)
def test_a_repeated_field_has_a_limit(service: str, method: Any, path: tuple[Any, ...]) -> None:
    """Every repeated field of every method accepts entries up to its limit and refuses one more."""
    kind = GetMessageClass(method.input_type)
    limit = entries_max_of(path[-1])
    reader = RequestReader(method.name, kind)
    reader.read(filled(kind, path, limit).SerializeToString())
    with pytest.raises(InvalidRequestError) as refusal:
        reader.read(filled(kind, path, limit + 1).SerializeToString())
    assert refusal.value.code == Code.PAYLOAD_TOO_LARGE
    assert str(limit) in str(refusal.value)


@pytest.mark.parametrize("service", SERVICES)
def test_a_request_has_a_limit(service: str) -> None:
    """One byte above the limit is refused, whatever the bytes are."""
    for method in POOL.FindServiceByName(service).methods:
        kind = GetMessageClass(method.input_type)
        reader = RequestReader(method.name, kind)
        assert refused(kind, bytes(reader.size_max + 1)).code == Code.PAYLOAD_TOO_LARGE


def test_a_message_of_the_largest_body_is_read() -> None:
    """A batch of three such messages is read, too."""
    message = v2.Message(topic=v2.Resource(name="t"), body=bytes(4 << 20))
    for count in (1, 3):
        data = v2.SendMessageRequest(messages=[message] * count).SerializeToString()
        assert len(RequestReader("SendMessage", v2.SendMessageRequest).read(data).messages) == count  # type: ignore[attr-defined]


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_entries_inside_messages_are_counted_before_they_are_parsed(hidden: int) -> None:
    """A million two-byte entries in the property map, the keys, or an unknown field are refused unparsed."""
    system = v2.Message.DESCRIPTOR.fields_by_name["system_properties"].number
    keys = v2.SystemProperties.DESCRIPTOR.fields_by_name["keys"].number
    user = v2.Message.DESCRIPTOR.fields_by_name["user_properties"].number
    if hidden == 1:
        message = bytes((user << 3 | 2, 0)) * 1_000_000
    elif hidden == 2:
        message = v2.Message(system_properties=v2.SystemProperties()).SerializeToString()
        within = bytes((keys << 3 | 2, 0)) * 1_000_000
        message = bytes((system << 3 | 2,)) + varint(len(within)) + within
    else:
        message = bytes((7 << 3, 0)) * 1_000_000  # an unknown field
    data = b"\x0a" + varint(len(message)) + message
    with patch.object(v2.SendMessageRequest, "FromString", side_effect=AssertionError("was parsed")):
        error = refused(v2.SendMessageRequest, data)
    assert (error.code, "fields" in str(error)) == (Code.PAYLOAD_TOO_LARGE, True)


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


@pytest.mark.parametrize("size", [10, 2 << 20])
@pytest.mark.parametrize(
    "end",
    [
        *(b"\xff", b"\x0a\x7f", b"\x0f", b"\x00\x00", b"\x09\x00", b"\x0d", b"\x80" * 11),
        b"\x0a\x80\x80\x80\x80\x80\x00",  # a size of six bytes
        b"\x88\x80\x80\x80\x80\x00\x01",  # a tag of six bytes
    ],
)
def test_bytes_that_are_not_a_message(size: int, end: bytes) -> None:
    """Small and large requests get the same error, which names no Python class."""
    message = v2.SendMessageRequest(messages=[v2.Message(body=bytes(size))]).SerializeToString()
    error = refused(v2.SendMessageRequest, message + end)
    assert error.code == Code.BAD_REQUEST
    assert "cannot be parsed" in str(error)


def test_a_lack_of_memory_is_not_an_error_of_the_client() -> None:
    """For lack of memory, the parser raises the same error as for invalid bytes. The two are told apart."""
    good = v2.SendMessageRequest(messages=[v2.Message(body=b"x" * 100)]).SerializeToString()
    bad = v2.SendMessageRequest(messages=[v2.Message(body=b"x" * 100)]).SerializeToString()[:-1]
    with patch.object(v2.SendMessageRequest, "FromString", side_effect=DecodeError("Error parsing message")):
        with pytest.raises(MemoryError) as error:
            RequestReader("SendMessage", v2.SendMessageRequest).read(good)
        assert refused(v2.SendMessageRequest, bad).code == Code.BAD_REQUEST
    assert status_of(error.value, "SendMessage").code == Code.TOO_MANY_REQUESTS  # clients retry


def test_invalid_utf_8_is_refused() -> None:
    """Invalid UTF-8 is refused, like by the parser."""
    assert is_well_formed(b"\x0a\x02ok", v2.Resource.DESCRIPTOR)
    assert not is_well_formed(b"\x0a\x02\xff\xfe", v2.Resource.DESCRIPTOR)
    with pytest.raises(DecodeError):
        v2.Resource.FromString(b"\x0a\x02\xff\xfe")
