"""Reads the fields of requests and makes answers. Wrong or missing fields are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.frame import FLAG_RESPONSE, Command
from aerobee_store.records.decimals import integer as integer_of
from aerobee_store.tables import java_json

FRAME_SIZE: Final = "frameSizeMax"
"""Of a replica's request for a table: the longest frame that it reads, in bytes."""
DELETIONS_AFTER: Final = "deletionsAfter"
"""Of a replica's request for the topics: it wants to hear of deletions at a later place in the log."""
DELETED_TOPICS: Final = "deletedTopics"
"""A member of the answer with these."""
DELETED_DEAD_LETTERS: Final = "deletedDeadLetters"
"""A member of the same answer: the offsets of the dead letters that operators have deleted, by group."""
_INT64: Final = 1 << 63


def text(request: Command, name: str, default: str | None = None) -> str:
    """A field as text; an empty one counts as missing. RemotingError if it is missing without a default."""
    value = request.fields.get(name)
    if value:
        return value
    if default is None:
        raise RemotingError(Answer.INVALID_PARAMETER, f"the field {name!r} of the request is missing")
    return default


def integer(request: Command, name: str, default: int | None = None, *, bits: int = 64) -> int:
    """A field as a signed integer. RemotingError if it is invalid, or missing without a default."""
    value = request.fields.get(name)
    if not value:
        if default is None:
            raise RemotingError(Answer.INVALID_PARAMETER, f"the field {name!r} of the request is missing")
        return default
    if (number := integer_of(value, bits)) is None:
        raise RemotingError(Answer.INVALID_PARAMETER, f"{name} is {value[:80]!r}, which is not a {bits}-bit integer")
    return number


def boolean(request: Command, name: str, default: bool = False) -> bool:
    """A field as Java reads it: true in any case, everything else is false."""
    value = request.fields.get(name)
    return default if value is None else value.lower() == "true"


def body_object(request: Command) -> dict[str, object]:
    """The body as a JSON object. RemotingError, JsonFormatError."""
    value = java_json.loads_body(request.body, object_keys=True)
    if not isinstance(value, dict):
        raise RemotingError(Answer.INVALID_PARAMETER, "the body of the request is not a JSON object")
    return value


def member(value: Mapping[str, object], name: str) -> str:
    """A text member of a body; empty if it is missing or null. RemotingError."""
    found = value.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise RemotingError(Answer.INVALID_PARAMETER, f"{name!r} in the body of the request is not a string")
    return found


def integer_member(value: Mapping[str, object], name: str, default: int = 0) -> int:
    """A 64-bit integer member of a body; `default` if it is missing or null. RemotingError."""
    found = value.get(name)
    if found is None:
        return default
    if not isinstance(found, int) or isinstance(found, bool) or not -_INT64 <= found < _INT64:
        raise RemotingError(Answer.INVALID_PARAMETER, f"{name!r} in the body of the request is not a 64-bit integer")
    return found


def objects(value: Mapping[str, object], name: str, *, count_max: int = 100_000) -> list[dict[str, object]]:
    """A member that is an array of objects; empty if it is missing or null. RemotingError."""
    found = value.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or len(found) > count_max or not all(isinstance(item, dict) for item in found):
        raise RemotingError(
            Answer.INVALID_PARAMETER,
            f"{name!r} in the body of the request is not an array of up to {count_max} objects",
        )
    return found


def answer(
    fields: Mapping[str, object] | None = None,
    *,
    code: int = Answer.SUCCESS,
    body: bytes | Mapping[str, object] = b"",
    remark: str | None = None,
) -> Command:
    """A response. Field values are written as in Java; a mapping as body becomes JSON."""
    return Command(
        code,
        flag=FLAG_RESPONSE,
        remark=remark,
        fields={name: value if isinstance(value, str) else _text(value) for name, value in (fields or {}).items()},
        body=body if isinstance(body, bytes) else java_json.dumps(body, pretty=False),
    )


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
