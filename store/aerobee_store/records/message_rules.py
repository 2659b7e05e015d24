"""The rules of a message that a client sends: lengths, characters, counts, names, and the code of each refusal.

This table is the only place that has them. Everything that checks messages asks it, or is made from it: SendMessage,
AppendRecords, the remoting protocol, the client. A faster way proves only that it need not ask: a text is right if it
consists of `plain_bytes` of its rule and is not too long.

The codes are names of `apache.rocketmq.v2.Code`; this package does not know the wire.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import properties as p
from aerobee_store.records.compression import begins_right
from aerobee_store.records.message_fields import RESERVED_NAMES, TEXT_FIELDS

BODY_SIZE_MAX: Final = 4 << 20
"""The default limit of a server, in bytes."""
USER_PROPERTY_COUNT_MAX: Final = 128
"""The default limit of a server."""
PROPERTIES_SIZE_MAX: Final = 16384
"""The default limit of a server: bytes of names and values of the user properties, tag and keys."""
KEY_COUNT_MAX: Final = 4096  # of a message; with a separator each, more do not fit into its properties
NAME_SIZE_MAX: Final = 127  # characters of a topic's name: the maximum of the length byte in records of version 1
TRANSACTION_RECOVERY_SECONDS_MAX: Final = 3600
_FREE_TEXT_SIZE_MAX: Final = 8192  # RocketMQ does not limit id and trace context, but all properties share 32 KiB
_SHOWN: Final = 80  # characters of a wrong text in an error

CONTROL_CHARACTERS: Final = "\x00-\x1f\x7f-\x9f"
"""As ranges of a regular expression. They are allowed in no text of a message."""
_CONTROL: Final = re.compile(f"[{CONTROL_CHARACTERS}]")
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


class BrokenRuleError(InvalidMessageError):
    """A message breaks a rule. The text names the rule and the next step."""

    def __init__(self, code: str, reason: str) -> None:
        """`code`: a name of `apache.rocketmq.v2.Code`."""
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Limits(Protocol):
    """The limits that a server may set."""

    @property
    def user_property_count_max(self) -> int: ...

    @property
    def properties_size_max(self) -> int: ...


class ServerLimits(NamedTuple):
    """What a server may set; the defaults are those of a server that names no others."""

    body_size_max: int = BODY_SIZE_MAX
    user_property_count_max: int = USER_PROPERTY_COUNT_MAX
    properties_size_max: int = PROPERTIES_SIZE_MAX


class TextRule(NamedTuple):
    """What the text of one field may be. No text may contain a control character."""

    field: str
    """Its name in errors."""
    code: str
    may_be_blank: bool = False
    forbidden: str = ""
    """Characters."""
    size_max: int = p.PROPERTIES_SIZE_MAX
    """Bytes."""
    size_code: str = ""
    """The code for a text that is too long, if it is another one."""
    allowed: re.Pattern[str] | None = None
    """The only texts that are allowed."""

    def check(self, text: str) -> None:
        """BrokenRuleError unless `text` obeys the rule."""
        # In the usual case this is one pass in C; other text is checked closely.
        if text.isprintable() and text.isascii() and len(text) <= self.size_max and self.allowed is None:
            if not (self.forbidden and self._has_forbidden(text)) and (self.may_be_blank or text.strip()):
                return
        elif self._is_right(text):
            return
        too_long = len(text.encode("utf-8", "surrogatepass")) > self.size_max
        if too_long and self.size_code:
            raise BrokenRuleError(self.size_code, f"{self.field} has more than {self.size_max} bytes, the limit")
        raise BrokenRuleError(self.code, f"{self.field} {text[:_SHOWN]!r} {self._wrong()}; choose another")

    def _is_right(self, text: str) -> bool:
        return (
            (self.may_be_blank or bool(text.strip()))
            and not has_control_character(text)
            and not self._has_forbidden(text)
            and len(text.encode("utf-8", "surrogatepass")) <= self.size_max
            and (self.allowed is None or self.allowed.fullmatch(text) is not None)
        )

    def _has_forbidden(self, text: str) -> bool:
        return any(character in text for character in self.forbidden)

    def _wrong(self) -> str:
        if self.allowed is not None:
            return f"is invalid: 1 to {self.size_max} letters, digits, '_' and '-' are allowed"
        parts = [] if self.may_be_blank else ["is blank"]
        if self.size_max < p.PROPERTIES_SIZE_MAX and not self.size_code:
            parts.append(f"has more than {self.size_max} bytes")
        characters = [*(repr(character) for character in self.forbidden), "a control character"]
        parts.append(f"contains {' or '.join(characters)}")
        return ", ".join(parts[:-1]) + (", or " if parts[:-1] else "") + parts[-1]


TAG: Final = TextRule("tag", "ILLEGAL_MESSAGE_TAG", forbidden="|")
KEY: Final = TextRule("key", "ILLEGAL_MESSAGE_KEY")
MESSAGE_ID: Final = TextRule("message id", "ILLEGAL_MESSAGE_ID", size_max=_FREE_TEXT_SIZE_MAX)
MESSAGE_GROUP: Final = TextRule("message group", "ILLEGAL_MESSAGE_GROUP", size_max=63)
TRACE_CONTEXT: Final = TextRule(
    "trace_context",
    "BAD_REQUEST",
    may_be_blank=True,
    size_max=_FREE_TEXT_SIZE_MAX,
    size_code="MESSAGE_PROPERTIES_TOO_LARGE",
)
BORN_HOST: Final = TextRule(
    "born_host",
    "BAD_REQUEST",
    may_be_blank=True,
    size_max=_FREE_TEXT_SIZE_MAX,
    size_code="MESSAGE_PROPERTIES_TOO_LARGE",
)
LITE_TOPIC: Final = TextRule("lite topic", "ILLEGAL_LITE_TOPIC", size_max=64, allowed=re.compile(r"[a-zA-Z0-9_-]+"))
USER_PROPERTY: Final = TextRule("user property", "ILLEGAL_MESSAGE_PROPERTY_KEY", may_be_blank=True)
"""Name or value. No name is empty or one of `RESERVED_NAMES`."""

OF_PROPERTY: Final[Mapping[str, TextRule]] = {
    TEXT_FIELDS["tag"]: TAG,
    p.KEYS: KEY,
    TEXT_FIELDS["message_id"]: MESSAGE_ID,
    TEXT_FIELDS["message_group"]: MESSAGE_GROUP,
    TEXT_FIELDS["trace_context"]: TRACE_CONTEXT,
    TEXT_FIELDS["born_host"]: BORN_HOST,
}
"""The rule of each property that comes from a text field of a message, by its stored name, in RocketMQ's order."""


def plain_bytes(*rules: TextRule) -> bytes:
    """The ASCII characters of which any text obeys these rules, but for its size."""

    def is_plain(character: str) -> bool:
        try:
            for rule in rules:
                rule.check(character)
        except BrokenRuleError:
            return False
        return True

    return bytes(code for code in range(0x80) if is_plain(chr(code)))


def has_control_character(text: str) -> bool:
    """Whether a character of `text` is allowed in no text of a message."""
    # isprintable is one pass in C and true for nearly all text; other text is checked closely.
    return not text.isprintable() and _CONTROL.search(text) is not None


# --- The rules, one function each, and all together ---------------------------------------------------------


def check_message(
    *,
    body_size: int,
    body_size_max: int,
    user_properties: Mapping[str, str],
    tag: str | None,
    keys: Sequence[str],
    message_id: str | None,
    message_group: str | None,
    trace_context: str | None,
    lite_topic: str | None,
    priority: int | None,
    born_host: str | None = None,
    limits: Limits,
) -> None:
    """BrokenRuleError for the first rule that a message breaks, in RocketMQ's order.

    None for a field that the message does not have. An empty tag, key, trace context, host or lite topic is none, too.
    """
    check_body(body_size, body_size_max)
    check_properties(user_properties, tag or "", keys, limits)
    if message_id is not None:
        MESSAGE_ID.check(message_id)
    if message_group is not None:
        MESSAGE_GROUP.check(message_group)
    if trace_context:
        TRACE_CONTEXT.check(trace_context)
    if born_host:
        BORN_HOST.check(born_host)
    if lite_topic:
        LITE_TOPIC.check(lite_topic)
    if priority is not None:
        check_priority(priority)


def check_body(size: int, size_max: int) -> None:
    """BrokenRuleError for an empty body, or one that is too large."""
    if not size:
        raise BrokenRuleError("MESSAGE_BODY_EMPTY", "the body of the message is empty; send at least one byte")
    if size > size_max:
        raise BrokenRuleError(
            "MESSAGE_BODY_TOO_LARGE",
            f"the body of the message has {size} bytes, the limit is {size_max}; split or compress it",
        )


def check_compression(body: bytes | memoryview, sys_flag: int) -> None:
    """BrokenRuleError for a body whose first bytes are not those of the compression in its system flags."""
    if not begins_right(body, sys_flag):
        raise BrokenRuleError(
            "MESSAGE_CORRUPTED",
            "the body of the message is marked as compressed, but does not begin like compressed data; compress it, or "
            "leave the mark out",
        )


def check_user_properties(properties: Mapping[str, str], limits: Limits) -> int:
    """The bytes that they take. BrokenRuleError."""
    if not properties:
        return 0
    if len(properties) > limits.user_property_count_max:
        raise BrokenRuleError(
            "MESSAGE_PROPERTIES_TOO_LARGE",
            f"the message has {len(properties)} user properties, the limit is {limits.user_property_count_max}",
        )
    size = 0
    for name, value in properties.items():
        if not name:
            raise BrokenRuleError(USER_PROPERTY.code, "a user property has an empty name; name it or leave it out")
        if name in RESERVED_NAMES:
            raise reserved_name(name)
        if has_control_character(name) or has_control_character(value):
            raise BrokenRuleError(
                USER_PROPERTY.code, f"user property {name[:_SHOWN]!r} contains a control character; remove it"
            )
        size += len(name.encode()) + len(value.encode())
    return size


def reserved_name(name: str) -> BrokenRuleError:
    """The refusal of a user property of this name."""
    return BrokenRuleError(USER_PROPERTY.code, f"the property name {name!r} is reserved; choose another")


def check_properties(user_properties: Mapping[str, str], tag: str, keys: Sequence[str], limits: Limits) -> None:
    """BrokenRuleError for a wrong user property, tag or key, or if they are too large together."""
    size = check_user_properties(user_properties, limits)
    if tag:
        TAG.check(tag)
        size += len(tag.encode())
    if len(keys) > KEY_COUNT_MAX:
        raise BrokenRuleError(
            "MESSAGE_PROPERTIES_TOO_LARGE",
            f"the message has {len(keys)} keys, the limit is {KEY_COUNT_MAX}; leave some out",
        )
    for key in keys:
        if key:
            KEY.check(key)
            size += len(key.encode())
    check_properties_size(size, limits)


def check_properties_size(size: int, limits: Limits) -> None:
    """BrokenRuleError if user properties, tag and keys take too many bytes together."""
    if size > limits.properties_size_max:
        raise BrokenRuleError(
            "MESSAGE_PROPERTIES_TOO_LARGE",
            f"names and values of the user properties, tag and keys take {size} bytes, the limit is "
            f"{limits.properties_size_max}; move data into the body",
        )


def check_delivery_time(deliver_ms: int, now_ms: int, delay_seconds_max: float) -> None:
    """BrokenRuleError for a time too far ahead. A time in the past is valid: the message is delivered at once.

    Times in Unix milliseconds.
    """
    if deliver_ms < 0 or deliver_ms > now_ms + delay_seconds_max * 1000:
        limit = _plain(delay_seconds_max)
        raise BrokenRuleError(
            "ILLEGAL_DELIVERY_TIME",
            f"the delivery time {deliver_ms} ms is negative, or more than {limit} s ahead, the limit",
        )


def _plain(seconds: float) -> str:
    """A number of seconds without an exponent: 3,456,000 and not 3.456e+06."""
    return f"{seconds:,.3f}".rstrip("0").rstrip(".")


def check_transaction_recovery(seconds: float) -> None:
    """BrokenRuleError for a wrong time after which the producer is asked."""
    if not 0 <= seconds <= TRANSACTION_RECOVERY_SECONDS_MAX:
        raise BrokenRuleError(
            "BAD_REQUEST",
            f"orphaned_transaction_recovery_duration of {_plain(seconds)} s is outside "
            f"0..{TRANSACTION_RECOVERY_SECONDS_MAX} s",
        )


def check_priority(priority: int) -> None:
    """BrokenRuleError for a negative priority."""
    if priority < 0:
        raise BrokenRuleError("BAD_REQUEST", f"priority {priority} is negative; use 0 or more")


def name_fault(name: str, size_max: int = NAME_SIZE_MAX) -> str:
    """What is wrong with the name of a topic or group; empty for a right one."""
    if not name or name.isspace():
        return "is blank; enter a name"
    if len(name) > size_max:
        return f"has {len(name)} characters, namespace included; shorten it to at most {size_max}"
    if _NAME.fullmatch(name) is None:
        return "contains an invalid character; use letters, digits, '_', '-', '%' and '|'"
    return ""
