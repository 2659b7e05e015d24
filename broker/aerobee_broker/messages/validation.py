"""The limits of the protocol, one function each. All raise InvalidRequestError with the code that names the rule.

The names of topics and groups are checked beside their tables (topics.py, consumer_groups.py).
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Final

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.message_mapping import TRANSACTION
from aerobee_proto import v2
from aerobee_store.records.message_fields import RESERVED_NAMES

MESSAGE_GROUP_SIZE_MAX: Final = 63  # bytes
TRANSACTION_RECOVERY_SECONDS_MAX: Final = 3600
# The protocol does not limit id and trace context, but all properties of a record share 32 KiB.
FREE_TEXT_SIZE_MAX: Final = 8192
LITE_TOPIC_SIZE_MAX: Final = 64
KEY_COUNT_MAX: Final = 4096  # of a message; with a separator each, more do not fit into its properties

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LITE_TOPIC = re.compile(r"[a-zA-Z0-9_-]+")
_CLIENT_PROPERTY_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")
_Code = v2.Code
_MD5: Final = v2.DigestType.MD5
_SHA1: Final = v2.DigestType.SHA1


def has_control_character(text: str) -> bool:
    # isprintable is one pass in C and true for nearly all text; other text is checked closely.
    return not text.isprintable() and _CONTROL_CHARACTER.search(text) is not None


def check_message(message: v2.Message, limits: LimitsConfig, body_size_max: int, now_ms: int) -> None:
    """Check every rule about one message that does not depend on its topic, in RocketMQ's order."""
    system = message.system_properties  # each access to a field makes an object, so each is read once
    body, tag, keys, born_host = message.body, system.tag, system.keys, system.born_host
    check_body(body, body_size_max)
    size = check_user_properties(message, limits)
    if tag:
        check_tag(tag)
        size += len(tag.encode())
    if len(keys) > KEY_COUNT_MAX:
        raise InvalidRequestError(
            _Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(keys)} keys, the limit is {KEY_COUNT_MAX}; leave some out",
        )
    for key in keys:
        check_key(key)
        size += len(key.encode())
    if size > limits.properties_size_max:
        raise InvalidRequestError(
            _Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"names and values of the user properties, tag and keys take {size} bytes, the limit is "
            f"{limits.properties_size_max}; move data into the body",
        )
    check_message_id(system.message_id)
    if system.message_type == TRANSACTION:
        check_transaction_recovery(system)
    if system.HasField("delivery_timestamp"):
        check_delivery_timestamp(system.delivery_timestamp, limits, now_ms)
    if system.HasField("message_group"):
        check_message_group(system.message_group)
    if trace_context := system.trace_context:
        check_trace_context(trace_context)
    if born_host and has_control_character(born_host):
        raise InvalidRequestError(
            _Code.BAD_REQUEST, "born_host contains a control character; remove it or leave born_host empty"
        )
    if lite_topic := system.lite_topic:
        check_lite_topic(lite_topic)
    if system.HasField("priority") and system.priority < 0:
        raise InvalidRequestError(_Code.BAD_REQUEST, f"priority {system.priority} is negative; use 0 or more")
    if system.HasField("body_digest"):
        check_digest(body, system.body_digest)


def check_body(body: bytes, size_max: int) -> None:
    if not body:
        raise InvalidRequestError(_Code.MESSAGE_BODY_EMPTY, "the body of the message is empty; send at least one byte")
    if len(body) > size_max:
        raise InvalidRequestError(
            _Code.MESSAGE_BODY_TOO_LARGE,
            f"the body of the message has {len(body)} bytes, the limit is {size_max}; split or compress it",
        )


def check_user_properties(message: v2.Message, limits: LimitsConfig) -> int:
    """The bytes that the user properties take."""
    properties = message.user_properties
    if not properties:
        return 0
    if len(properties) > limits.user_property_count_max:
        raise InvalidRequestError(
            _Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(properties)} user properties, the limit is {limits.user_property_count_max}",
        )
    size = 0
    for name, value in properties.items():
        if not name:
            raise InvalidRequestError(_Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "a user property has an empty name")
        if name in RESERVED_NAMES:
            raise InvalidRequestError(
                _Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"user property {name!r}: the name is reserved; choose another"
            )
        if has_control_character(name) or has_control_character(value):
            raise InvalidRequestError(
                _Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"user property {name[:80]!r} contains a control character; remove it",
            )
        size += len(name.encode()) + len(value.encode())
    return size


def check_tag(tag: str) -> None:
    if not tag.strip() or "|" in tag or has_control_character(tag):
        raise InvalidRequestError(
            _Code.ILLEGAL_MESSAGE_TAG,
            f"tag {tag[:80]!r} is blank, or contains '|' or a control character; choose another",
        )


def check_key(key: str) -> None:
    if key and (not key.strip() or has_control_character(key)):
        raise InvalidRequestError(
            _Code.ILLEGAL_MESSAGE_KEY, f"key {key[:80]!r} is blank or contains a control character; choose another"
        )


def check_message_id(message_id: str) -> None:
    if not message_id.strip():
        raise InvalidRequestError(_Code.ILLEGAL_MESSAGE_ID, "the message id is blank; give the message an id")
    if has_control_character(message_id) or len(message_id.encode()) > FREE_TEXT_SIZE_MAX:
        raise InvalidRequestError(
            _Code.ILLEGAL_MESSAGE_ID,
            f"message id {message_id[:80]!r} has a control character, or more than {FREE_TEXT_SIZE_MAX} bytes",
        )


def check_transaction_recovery(system: v2.SystemProperties) -> None:
    duration = system.orphaned_transaction_recovery_duration
    if not 0 <= duration.seconds + duration.nanos / 1e9 <= TRANSACTION_RECOVERY_SECONDS_MAX:
        raise InvalidRequestError(
            _Code.BAD_REQUEST,
            f"orphaned_transaction_recovery_duration of {duration.seconds} s is outside "
            f"0..{TRANSACTION_RECOVERY_SECONDS_MAX} s",
        )


def check_delivery_timestamp(timestamp: v2.Timestamp, limits: LimitsConfig, now_ms: int) -> None:
    """A time in the past is valid: the message is delivered at once."""
    if timestamp.seconds < 0 or timestamp.seconds * 1000 > now_ms + limits.delay_seconds_max * 1000:
        raise InvalidRequestError(
            _Code.ILLEGAL_DELIVERY_TIME,
            f"delivery timestamp {timestamp.seconds} s is more than {limits.delay_seconds_max:g} s ahead, the limit",
        )


def check_message_group(group: str) -> None:
    if not group.strip() or len(group.encode()) > MESSAGE_GROUP_SIZE_MAX or has_control_character(group):
        raise InvalidRequestError(
            _Code.ILLEGAL_MESSAGE_GROUP,
            f"message group {group[:80]!r} is blank, or has more than {MESSAGE_GROUP_SIZE_MAX} bytes or a control "
            "character; choose another",
        )


def check_trace_context(trace_context: str) -> None:
    if has_control_character(trace_context):
        raise InvalidRequestError(_Code.BAD_REQUEST, "trace_context contains a control character; remove it")
    if len(trace_context.encode()) > FREE_TEXT_SIZE_MAX:
        raise InvalidRequestError(
            _Code.MESSAGE_PROPERTIES_TOO_LARGE, f"trace_context has more than {FREE_TEXT_SIZE_MAX} bytes, the limit"
        )


def check_lite_topic(name: str) -> None:
    if len(name.encode()) > LITE_TOPIC_SIZE_MAX or _LITE_TOPIC.fullmatch(name) is None:
        raise InvalidRequestError(
            _Code.ILLEGAL_LITE_TOPIC,
            f"lite topic {name[:80]!r} is invalid; use 1 to {LITE_TOPIC_SIZE_MAX} letters, digits, '_' and '-'",
        )


def check_digest(body: bytes, digest: v2.Digest) -> None:
    """CRC-32 is not compared: clients write its text in three different ways."""
    if not digest.checksum:
        return
    if digest.type == _MD5:
        computed = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif digest.type == _SHA1:
        computed = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        return
    if digest.checksum.lower() != computed:
        raise InvalidRequestError(
            _Code.MESSAGE_CORRUPTED,
            f"the body's digest is {computed.upper()}, but the message claims {digest.checksum[:80]!r}; send it again",
        )


def check_endpoints(endpoints: v2.Endpoints) -> None:
    for address in endpoints.addresses:
        if not address.host.strip() or has_control_character(address.host) or not 0 < address.port < 65536:
            raise InvalidRequestError(
                _Code.ILLEGAL_ACCESS_POINT,
                f"endpoints: {address.host[:80]!r} port {address.port} is not an address; give host and port",
            )


def address_scheme(host: str) -> v2.AddressScheme.ValueType:
    """The kind of address that clients must assume for `host`."""
    try:
        version = ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).version
    except ValueError:
        return v2.AddressScheme.DOMAIN_NAME
    return v2.AddressScheme.IPv4 if version == 4 else v2.AddressScheme.IPv6


def check_client_properties(settings: v2.Settings) -> None:
    properties = settings.client_properties
    if not properties:
        return
    size = 0
    for name, value in properties.items():
        if _CLIENT_PROPERTY_NAME.fullmatch(name) is None or len(value) > 256:
            raise InvalidRequestError(
                _Code.INVALID_CLIENT_PROPERTIES,
                f"client property {name[:80]!r}: names must have 1..64 letters, digits, '_', '.' or '-' and begin "
                f"with a letter; values may have up to 256 characters",
            )
        size += len(name.encode()) + len(value.encode())
    if len(properties) > 32 or size > 4096:
        raise InvalidRequestError(
            _Code.INVALID_CLIENT_PROPERTIES,
            f"{len(properties)} client properties take {size} bytes; the limits are 32 properties and 4096 bytes",
        )
