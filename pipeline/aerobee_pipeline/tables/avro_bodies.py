"""Bodies in Avro: one datum of the schema, alone or in Avro's single-object encoding. Read by the package fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.tables.body_values import BodyError, Convert, mapping, record, several

_SINGLE_OBJECT: Final = b"\xc3\x01"
_PRIMITIVE: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "uuid": pa.string(),
}


class AvroDecoder:
    """See BodyDecoder."""

    def __init__(self, content: bytes) -> None:
        """OptionError for a schema that is not of a record."""
        try:
            import fastavro
        except ImportError:
            raise OptionError("an Avro schema needs the package fastavro: pip install '.[spark-tables]'") from None
        self._read = fastavro.schemaless_reader
        try:
            self._schema: Any = fastavro.parse_schema(json.loads(content))
        except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
            raise OptionError(f"the Avro schema cannot be used: {error}") from None
        if not isinstance(self._schema, dict) or self._schema.get("type") != "record":
            raise OptionError("the Avro schema is not of a record")
        canonical = fastavro.schema.to_parsing_canonical_form(self._schema)
        self._prefix = _SINGLE_OBJECT + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
        types = _Types(self._schema)
        kinds, self._convert = types.fields_of(self._schema)
        self.fields = [pa.field(name, kind) for name, kind in kinds.items()]

    def decode(self, body: bytes) -> Mapping[str, Any]:
        stream = io.BytesIO(body)
        if body.startswith(self._prefix):
            stream.seek(len(self._prefix))
        try:
            value = self._read(stream, self._schema, None)
        except Exception as error:  # fastavro raises whatever its input leads to
            raise BodyError(f"it is not Avro of this schema: {type(error).__name__}: {error}") from None
        if left := len(body) - stream.tell():
            raise BodyError(f"it has {left} bytes after the record")
        found: Mapping[str, Any] = self._convert(value)
        return found


class _Types:
    """The columns of a parsed schema. A record inside itself has no columns."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self._inside: list[str] = []
        self._collect(schema)

    def _collect(self, part: Any) -> None:
        if isinstance(part, list):
            for item in part:
                self._collect(item)
        elif isinstance(part, dict):
            if "name" in part and part.get("type") in ("record", "enum", "fixed", "error"):
                self._named[part["name"]] = part
            for item in (*(field["type"] for field in part.get("fields", ())), part.get("items"), part.get("values")):
                self._collect(item)

    def fields_of(self, schema: Any) -> tuple[dict[str, pa.DataType], Convert]:
        name = str(schema["name"])
        if name in self._inside:
            raise OptionError(f"the Avro record {name} contains itself, which no table can")
        self._inside.append(name)
        parts = {field["name"]: self._of(field["type"], field["name"]) for field in schema["fields"]}
        self._inside.pop()
        return {each: kind for each, (kind, _) in parts.items()}, record({each: of for each, (_, of) in parts.items()})

    def _of(self, part: Any, field: str) -> tuple[pa.DataType, Convert]:
        if isinstance(part, list):
            choices = [item for item in part if item != "null"]
            if len(choices) != 1:
                raise OptionError(f"field {field!r} is a union of {len(choices)} types, and a column has one")
            return self._of(choices[0], field)
        if isinstance(part, str) and part in self._named:
            part = self._named[part]
        kind = part if isinstance(part, str) else part["type"]
        logical = None if isinstance(part, str) else part.get("logicalType")
        if kind == "record":
            kinds, convert = self.fields_of(part)
            return pa.struct([pa.field(name, its) for name, its in kinds.items()]), convert
        if kind == "array":
            of, item = self._of(part["items"], field)
            return pa.list_(of), several(item)
        if kind == "map":
            of, item = self._of(part["values"], field)
            return pa.map_(pa.string(), of), mapping(item)
        if logical == "decimal":
            return _decimal(int(part["precision"]), int(part.get("scale", 0)))
        if logical is not None and logical in _LOGICAL:
            its = _LOGICAL[logical]
            return its, str if its == pa.string() else _as_it_is
        if kind not in _PRIMITIVE:
            raise OptionError(f"field {field!r} has the type {kind!r}, which no column has")
        return _PRIMITIVE[kind], _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _decimal(precision: int, scale: int) -> tuple[pa.DataType, Convert]:
    if not 1 <= precision <= 38:
        raise OptionError(f"a decimal of {precision} digits fits in no column; the limit is 38")

    def convert(value: Any) -> Any:
        if not isinstance(value, Decimal) or len(value.as_tuple().digits) > precision:
            raise BodyError(f"{value} has more than {precision} digits")
        return value

    return pa.decimal128(precision, scale), convert
