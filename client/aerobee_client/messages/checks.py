"""Checks a message by the rules of the protocol before it is sent.

So a mistake fails the call that made it, without a round trip and without failing other messages of a request. The
rules are those that the server asks, `aerobee_store.records.message_rules`, with the limits that the server has told.
"""

from __future__ import annotations

from typing import Any

from aerobee_client.errors import BadRequestError
from aerobee_client.messages.message import Message
from aerobee_proto import v2
from aerobee_store.records import message_rules as rules
from aerobee_store.records.message_rules import BrokenRuleError, ServerLimits

_DELIVERY_MS_MIN = 100_000_000_000  # in 1973; a smaller number is a time in seconds


def check_name(topic: str) -> None:
    """BadRequestError unless `topic` is a valid topic name."""
    if fault := rules.name_fault(topic):
        raise BadRequestError(v2.Code.ILLEGAL_TOPIC, f"topic {topic!r} {fault}")


def check(message: Message, limits: ServerLimits) -> None:
    """BadRequestError, with the server's code, if `message` breaks a rule."""
    _check_types(message)
    check_name(message.topic)
    try:
        rules.check_message(
            body_size=len(message.body),
            body_size_max=limits.body_size_max,
            user_properties=message.properties,
            tag=message.tag,
            keys=message.keys,
            message_id=message.message_id,
            message_group=message.message_group,
            trace_context=message.trace_context,
            lite_topic=message.lite_topic,
            priority=message.priority,
            limits=limits,
        )
    except BrokenRuleError as broken:
        raise BadRequestError(v2.Code.Value(broken.code), broken.reason) from None
    kinds = (message.message_group, message.delivery_timestamp, message.priority, message.lite_topic)
    if sum(kind is not None for kind in kinds) > 1:
        raise BadRequestError(
            v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "give only one of message_group, delivery_timestamp, priority and lite_topic",
        )


def _check_types(message: Any) -> None:
    """What mypy reports too; without it, Python accepts these values and the message would be wrong."""
    if not isinstance(message.topic, str):
        raise _wrong("topic", message.topic, "a str")
    if not isinstance(message.body, bytes):
        raise _wrong("body", message.body, "bytes, such as text.encode() or bytes(buffer)")
    if isinstance(message.keys, str):  # a sequence of one-character keys
        raise _wrong("keys", message.keys, f"a tuple, such as ({message.keys!r},)")
    for text in (message.tag, message.message_group, message.lite_topic, message.trace_context, *message.keys):
        if text is not None and not isinstance(text, str):
            raise _wrong("tag, key, message group, lite topic or trace context", text, "a str")
    for name, value in message.properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _wrong(f"property {name!r}", value, "a str as name and value")
    if (due := message.delivery_timestamp) is not None:
        if not isinstance(due, int):
            raise _wrong("delivery_timestamp", due, "Unix milliseconds as int, such as int(moment.timestamp() * 1000)")
        if due < _DELIVERY_MS_MIN:
            raise BadRequestError(
                v2.Code.ILLEGAL_DELIVERY_TIME,
                f"delivery_timestamp {due} is before 1974; give Unix milliseconds, not seconds or a delay",
            )


def _wrong(what: str, value: object, wanted: str) -> BadRequestError:
    return BadRequestError(v2.Code.BAD_REQUEST, f"{what} is of type {type(value).__name__}; give {wanted}")
