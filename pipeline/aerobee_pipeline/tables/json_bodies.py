"""Bodies in JSON: a JSON Schema gives the columns, and sample bodies give a JSON Schema.

Of a schema the types, formats, required names and references count; constraints such as `minimum` do not. What has no
single type becomes text in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.tables.body_values import BodyError, Convert, instance, integer, mapping, real, record, several

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_DEPTH_MAX: Final = 32


class JsonDecoder:
    """See BodyDecoder."""

    def __init__(self, content: bytes) -> None:
        """OptionError for a schema that is not JSON, or not of an object."""
        try:
            schema = json.loads(content)
        except ValueError as error:
            raise OptionError(f"the JSON Schema is not JSON: {error}") from None
        names, self._convert = _Types(schema).columns()
        self.fields = [pa.field(name, kind) for name, kind in names.items()]

    def decode(self, body: bytes) -> Mapping[str, Any]:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BodyError(f"it is not JSON: {error}") from None
        found: Mapping[str, Any] = self._convert(value)
        return found


class _Types:
    """The types of a schema."""

    def __init__(self, schema: Any) -> None:
        self._root = schema

    def columns(self) -> tuple[dict[str, pa.DataType], Convert]:
        schema = self._resolved(self._root, 0) if isinstance(self._root, dict) else {}
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise OptionError("the JSON Schema has no properties at its top; describe an object")
        return self._object(schema, 0)

    def _object(self, schema: Mapping[str, Any], depth: int) -> tuple[dict[str, pa.DataType], Convert]:
        types: dict[str, pa.DataType] = {}
        converts: dict[str, Convert] = {}
        for name, part in schema["properties"].items():
            types[name], converts[name] = self._of(part, depth + 1)
        return types, record(converts, frozenset(schema.get("required", ())))

    def _of(self, part: Any, depth: int) -> tuple[pa.DataType, Convert]:
        if depth > _DEPTH_MAX:
            raise OptionError(f"the JSON Schema is nested more than {_DEPTH_MAX} deep, or refers to itself")
        part = self._resolved(part, depth) if isinstance(part, dict) else {}
        kind, form = part.get("type"), part.get("format")
        if isinstance(kind, list):
            kinds = [item for item in kind if item != "null"]
            kind = kinds[0] if len(kinds) == 1 else None
        if kind == "boolean":
            return pa.bool_(), instance(bool, "boolean")
        if kind == "integer":
            whole = pa.int32() if form == "int32" else pa.int64()
            return whole, integer(whole)
        if kind == "number":
            return pa.float64(), real
        if kind == "string" and form == "date-time":
            return _TIMESTAMP, _time
        if kind == "string" and form == "date":
            return pa.date32(), _date
        if kind == "string":
            return pa.string(), instance(str, "text")
        if kind == "array":
            of, item = self._of(part.get("items"), depth + 1)
            return pa.list_(of), several(item)
        if kind == "object" and isinstance(part.get("properties"), dict) and part["properties"]:
            types, convert = self._object(part, depth)
            return pa.struct([pa.field(name, its) for name, its in types.items()]), convert
        if kind == "object" and isinstance(part.get("additionalProperties"), dict):
            of, item = self._of(part["additionalProperties"], depth + 1)
            return pa.map_(pa.string(), of), mapping(item)
        return pa.string(), _text

    def _resolved(self, part: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
        """References followed, and a choice between null and one other schema taken."""
        for _ in range(_DEPTH_MAX):
            if isinstance(reference := part.get("$ref"), str):
                part = self._referred(reference)
                continue
            choices = [item for item in part.get("anyOf") or part.get("oneOf") or () if not _is_null(item)]
            if len(choices) == 1 and isinstance(choices[0], dict):
                part = choices[0]
                continue
            return part
        raise OptionError(f"the JSON Schema refers to itself after {depth} levels")

    def _referred(self, reference: str) -> Mapping[str, Any]:
        place: Any = self._root
        for name in reference.removeprefix("#/").split("/"):
            place = place.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
        if not reference.startswith("#/") or not isinstance(place, dict):
            raise OptionError(f"the JSON Schema refers to {reference!r}, which it does not have")
        return place


def _is_null(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "null"


def _time(value: Any) -> Any:
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    raise BodyError(f"{value!r} is no time such as 2026-01-31T12:00:00Z")


def _date(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise BodyError(f"{value!r} is no date such as 2026-01-31")


def _text(value: Any) -> Any:
    """JSON itself, for what has no single type; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- A schema of samples ----------------------------------------------------------------------------------------


def inferred(bodies: Iterable[bytes | None]) -> dict[str, Any]:
    """A JSON Schema that all of these bodies fit. OptionError if one is not a JSON object, or there is none."""
    shape: dict[str, Any] | None = None
    for number, body in enumerate(bodies):
        try:
            value = json.loads(body or b"")
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise OptionError(f"body {number} of the sample is no JSON object: give a schema")
        found = _shape(value)
        shape = found if shape is None else _merged(shape, found)
    if shape is None:
        raise OptionError("the topic has no message: give a schema")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **shape}


def _shape(value: Any) -> dict[str, Any]:
    if value is None:
        return {"type": "null"}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer"} if -(1 << 63) <= value < 1 << 63 else {}
    if isinstance(value, float):
        return {"type": "number"}
    if isinstance(value, str):
        return {"type": "string", **_format(value)}
    if isinstance(value, list):
        items: dict[str, Any] = {"type": "null"}
        for each in value:
            items = _merged(items, _shape(each))
        return {"type": "array", "items": items}
    return {"type": "object", "properties": {name: _shape(each) for name, each in value.items()}}


def _format(text: str) -> dict[str, str]:
    for name, convert in (("date", _date), ("date-time", _time)):
        try:
            convert(text)
        except BodyError:
            continue
        return {"format": name} if name == "date" or "T" in text or " " in text else {}
    return {}


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A schema that both fit; {} fits everything."""
    kinds = one.get("type"), other.get("type")
    if kinds[0] == "null":
        return other
    if kinds[1] == "null" or one == other:
        return one
    if set(kinds) == {"integer", "number"}:
        return {"type": "number"}
    if kinds == ("string", "string"):
        return {"type": "string"}
    if kinds == ("array", "array"):
        return {"type": "array", "items": _merged(one["items"], other["items"])}
    if kinds == ("object", "object"):
        names = {**one["properties"], **other["properties"]}
        null: dict[str, Any] = {"type": "null"}
        return {
            "type": "object",
            "properties": {
                name: _merged(one["properties"].get(name, null), other["properties"].get(name, null)) for name in names
            },
        }
    return {}
