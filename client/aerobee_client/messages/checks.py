"""Checks a message against the limits of RocketMQ's protocol before it is sent.

So a mistake fails the call that made it, without a round trip and without failing other messages of a request. The
server's limits may be lower.
"""

from __future__ import annotations

import re
from typing import Any

from aerobee_client.errors import BadRequestError
from aerobee_client.messages.message import Message
from aerobee_proto import v2

TOPIC_LENGTH_MAX = 127
PROPERTIES_MAX = 128
PROPERTIES_SIZE_MAX = 16_384  # names, values, tag and keys, in UTF-8 bytes
MESSAGE_GROUP_SIZE_MAX = 63
BODY_SIZE_MAX = 4 << 20  # the broker's default limit
_DELIVERY_MS_MIN = 100_000_000_000  # in 1973; a smaller number is a time in seconds

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_name(topic: str) -> None:
    """BadRequestError unless `topic` is a valid topic name."""
    if len(topic) > TOPIC_LENGTH_MAX or not _NAME.fullmatch(topic):
        raise BadRequestError(
            v2.Code.ILLEGAL_TOPIC,
            f"topic {topic!r} is invalid; use 1 to {TOPIC_LENGTH_MAX} of the characters a-z A-Z 0-9 _ - % |",
        )


def check(message: Message, body_size_max: int = BODY_SIZE_MAX) -> None:
    """BadRequestError, with the server's code, if `message` exceeds a limit."""
    _check_types(message)
    check_name(message.topic)
    if not message.body:
        raise BadRequestError(v2.Code.MESSAGE_BODY_EMPTY, "the body is empty; a message needs at least one byte")
    if len(message.body) > body_size_max:
        raise BadRequestError(
            v2.Code.MESSAGE_BODY_TOO_LARGE, f"the body has {len(message.body)} bytes; the limit is {body_size_max}"
        )
    if (tag := message.tag) and (not tag.strip() or "|" in tag or _CONTROL.search(tag)):
        raise BadRequestError(v2.Code.ILLEGAL_MESSAGE_TAG, f"tag {tag!r} is blank or contains | or a control character")
    for key in message.keys:
        if not key.strip() or _CONTROL.search(key):
            raise BadRequestError(v2.Code.ILLEGAL_MESSAGE_KEY, f"key {key!r} is blank or contains a control character")
    if (group := message.message_group) is not None and (
        not group.strip() or len(group.encode()) > MESSAGE_GROUP_SIZE_MAX or _CONTROL.search(group)
    ):
        raise BadRequestError(
            v2.Code.ILLEGAL_MESSAGE_GROUP,
            f"message group {group!r} is blank, longer than {MESSAGE_GROUP_SIZE_MAX} bytes, or contains a control "
            f"character",
        )
    kinds = (message.message_group, message.delivery_timestamp, message.priority, message.lite_topic)
    if sum(kind is not None for kind in kinds) > 1:
        raise BadRequestError(
            v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "give only one of message_group, delivery_timestamp, priority and lite_topic",
        )
    if message.properties or message.tag or message.keys:
        _check_properties(message)


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


def _check_properties(message: Message) -> None:
    if len(message.properties) > PROPERTIES_MAX:
        raise BadRequestError(
            v2.Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(message.properties)} properties; the limit is {PROPERTIES_MAX}",
        )
    size = len((message.tag or "").encode()) + sum(len(key.encode()) for key in message.keys)
    for name, value in message.properties.items():
        if not name or _CONTROL.search(name) or _CONTROL.search(value):
            raise BadRequestError(
                v2.Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name!r} has an empty name, or a control character in its name or value",
            )
        size += len(name.encode()) + len(value.encode())
    if size > PROPERTIES_SIZE_MAX:
        raise BadRequestError(
            v2.Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys take {size} bytes in total; the limit is {PROPERTIES_SIZE_MAX}",
        )
