"""What the protocol allows in a request. All functions raise InvalidRequestError with the code that names the rule.

The rules of a message are in `aerobee_store.records.message_rules`. The names of topics and groups are checked beside
their tables (topics.py, consumer_groups.py).
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Final

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.message_mapping import TRANSACTION, delivery_ms, sys_flag_of
from aerobee_proto import v2
from aerobee_store.records import message_rules as rules
from aerobee_store.records.message_rules import BrokenRuleError, has_control_character

_CLIENT_PROPERTY_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")
_Code = v2.Code
_MD5: Final = v2.DigestType.MD5
_SHA1: Final = v2.DigestType.SHA1


def check_message(message: v2.Message, limits: LimitsConfig, body_size_max: int, now_ms: int) -> None:
    """Check every rule about one message that does not depend on its topic, in RocketMQ's order."""
    system = message.system_properties  # each access to a field makes an object, so each is read once
    body = message.body
    try:
        rules.check_message(
            body_size=len(body),
            body_size_max=body_size_max,
            user_properties=message.user_properties,
            tag=system.tag,
            keys=system.keys,
            message_id=system.message_id,
            message_group=system.message_group if system.HasField("message_group") else None,
            trace_context=system.trace_context,
            born_host=system.born_host,
            lite_topic=system.lite_topic,
            priority=system.priority if system.HasField("priority") else None,
            limits=limits,
        )
        if system.message_type == TRANSACTION:
            duration = system.orphaned_transaction_recovery_duration
            rules.check_transaction_recovery(duration.seconds + duration.nanos / 1e9)
        if system.HasField("delivery_timestamp"):
            rules.check_delivery_time(delivery_ms(system.delivery_timestamp), now_ms, limits.delay_seconds_max)
        rules.check_compression(body, sys_flag_of(system.body_encoding))
    except BrokenRuleError as broken:
        raise refusal(broken) from None
    if system.HasField("body_digest"):
        check_digest(body, system.body_digest)


def refusal(broken: BrokenRuleError) -> InvalidRequestError:
    """The error that has the code of the broken rule."""
    return InvalidRequestError(v2.Code.Value(broken.code), broken.reason)


def check_lite_topic(name: str) -> None:
    try:
        rules.LITE_TOPIC.check(name)
    except BrokenRuleError as broken:
        raise refusal(broken) from None


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
