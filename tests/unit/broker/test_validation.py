"""The limits of the protocol, each at its boundary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.validation import address_scheme, check_client_properties, check_endpoints, check_message
from aerobee_proto import v2
from aerobee_store.records.message_fields import RESERVED_NAMES

NOW_MS = 1_700_000_000_000
Code = v2.Code
Change = Callable[[v2.Message], object]


def message() -> v2.Message:
    wire = v2.Message(topic=v2.Resource(name="t"), body=b"hello")
    wire.system_properties.message_id = "01"
    return wire


def check(change: Change) -> int:
    """The code of the refusal of a changed message, or OK."""
    wire = message()
    change(wire)
    try:
        check_message(wire, LimitsConfig(), 4 << 20, NOW_MS)
    except InvalidRequestError as error:
        return error.code
    return Code.OK


def delivered_at(milliseconds: int) -> Change:
    return lambda m: m.system_properties.delivery_timestamp.FromMilliseconds(milliseconds)


def property_of(name: str, value: str = "v") -> Change:
    return lambda m: m.user_properties.update({name: value})


def system(**fields: object) -> Change:
    return lambda m: m.system_properties.MergeFrom(v2.SystemProperties(**fields))  # type: ignore[arg-type]


def many_properties(count: int) -> Change:
    return lambda m: m.user_properties.update({f"n{i}": "" for i in range(count)})


def sized_properties(size: int) -> Change:
    """`size` bytes of property name, value, tag and key."""

    def change(m: v2.Message) -> None:
        m.user_properties["ab"] = "x" * (size - 2 - 3 - 4)
        m.system_properties.tag = "tag"
        m.system_properties.keys.append("keé")  # four bytes

    return change


def digest(kind: v2.DigestType.ValueType, checksum: str) -> Change:
    return system(body_digest=v2.Digest(type=kind, checksum=checksum))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: None, Code.OK),
        (lambda m: m.ClearField("body"), Code.MESSAGE_BODY_EMPTY),
        (lambda m: setattr(m, "body", b"x" * (4 << 20)), Code.OK),
        (lambda m: setattr(m, "body", b"x" * ((4 << 20) + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (many_properties(128), Code.OK),
        (many_properties(129), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (sized_properties(16384), Code.OK),
        (sized_properties(16385), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (property_of("TAGS"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (property_of("tags"), Code.OK),
        (property_of(""), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (property_of("a\x01"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (property_of("a", "\x02"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (property_of("a", "\x9f"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (property_of("größe", "中文 \U0001f600\u3000"), Code.OK),
        (system(tag=""), Code.OK),
        (system(tag="a b"), Code.OK),
        (system(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (system(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (system(tag="a\n"), Code.ILLEGAL_MESSAGE_TAG),
        (system(keys=["a b", "c"]), Code.OK),
        (system(keys=[" "]), Code.ILLEGAL_MESSAGE_KEY),
        (system(keys=["a", "b\x00"]), Code.ILLEGAL_MESSAGE_KEY),
        (system(message_id="any text, at all"), Code.OK),
        (lambda m: m.system_properties.ClearField("message_id"), Code.ILLEGAL_MESSAGE_ID),
        (system(message_id="  "), Code.ILLEGAL_MESSAGE_ID),
        (system(message_id="a\x02b"), Code.ILLEGAL_MESSAGE_ID),
        (system(message_group="g" * 63), Code.OK),
        (system(message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (system(message_group="é" * 32), Code.ILLEGAL_MESSAGE_GROUP),
        (system(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        (delivered_at(0), Code.OK),
        (delivered_at(NOW_MS + 40 * 86_400_000), Code.OK),
        (delivered_at(NOW_MS + 40 * 86_400_000 + 1000), Code.ILLEGAL_DELIVERY_TIME),
        (
            system(
                message_type=v2.MessageType.TRANSACTION,
                orphaned_transaction_recovery_duration=v2.Duration(seconds=3600),
            ),
            Code.OK,
        ),
        (
            system(
                message_type=v2.MessageType.TRANSACTION,
                orphaned_transaction_recovery_duration=v2.Duration(seconds=3601),
            ),
            Code.BAD_REQUEST,
        ),
        (system(lite_topic="lite-1"), Code.OK),
        (system(lite_topic="l" * 65), Code.ILLEGAL_LITE_TOPIC),
        (system(lite_topic="a%b"), Code.ILLEGAL_LITE_TOPIC),
        (system(priority=0), Code.OK),
        (system(priority=-1), Code.BAD_REQUEST),
        (system(trace_context="x" * 8193), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (system(trace_context="\x02"), Code.BAD_REQUEST),
        (system(born_host="\x02"), Code.BAD_REQUEST),
        (digest(v2.DigestType.MD5, "5D41402ABC4B2A76B9719D911017C592"), Code.OK),
        (digest(v2.DigestType.MD5, "5d41402abc4b2a76b9719d911017c592"), Code.OK),
        (digest(v2.DigestType.MD5, "00"), Code.MESSAGE_CORRUPTED),
        (digest(v2.DigestType.SHA1, hashlib.sha1(b"hello").hexdigest()), Code.OK),
        (digest(v2.DigestType.SHA1, "00"), Code.MESSAGE_CORRUPTED),
        (digest(v2.DigestType.CRC32, "in whatever form"), Code.OK),
    ],
)
def test_message(change: Change, code: int) -> None:
    """Each limit accepts its last valid value and refuses the next one with its own code."""
    assert check(change) == code


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_reserved_names(name: str) -> None:
    """User properties may not have names that the store or the protocol uses."""
    assert check(property_of(name)) == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("127.0.0.1", v2.AddressScheme.IPv4),
        ("::1", v2.AddressScheme.IPv6),
        ("broker.example", v2.AddressScheme.DOMAIN_NAME),
        ("localhost", v2.AddressScheme.DOMAIN_NAME),
    ],
)
def test_address_scheme(host: str, scheme: int) -> None:
    """The scheme must match the host, because clients build their target from it."""
    assert address_scheme(host) == scheme


def test_endpoints() -> None:
    """No endpoint is valid; a blank host or a port out of range is not."""
    check_endpoints(v2.Endpoints())
    check_endpoints(v2.Endpoints(addresses=[v2.Address(host="h", port=65535)]))
    for host, port in (("", 1), (" ", 1), ("h", 0), ("h", 65536), ("h", -1), ("h\n", 1)):
        with pytest.raises(InvalidRequestError) as caught:
            check_endpoints(v2.Endpoints(addresses=[v2.Address(host=host, port=port)]))
        assert caught.value.code == Code.ILLEGAL_ACCESS_POINT


def test_client_properties() -> None:
    """At most 32 properties, names of 1..64 characters, values up to 256 characters, 4 KiB in total."""
    check_client_properties(v2.Settings())
    check_client_properties(v2.Settings(client_properties={"a" * 64: "v" * 256}))
    for properties in ({"1a": ""}, {"": ""}, {"a" * 65: ""}, {"a": "v" * 257}, {f"n{i}": "" for i in range(33)}):
        with pytest.raises(InvalidRequestError) as caught:
            check_client_properties(v2.Settings(client_properties=properties))
        assert caught.value.code == Code.INVALID_CLIENT_PROPERTIES
