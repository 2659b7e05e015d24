"""Bodies of messages as typed columns, by a schema: JSON Schema, Avro, or a descriptor of Protobuf.

A body either fits, then every column has its value, or it does not: then all columns are null and `decodeError` says
why. Nothing is converted silently: a text is no number, and a number that its type cannot hold does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.tables.body_values import BodyError

Kind = Literal["json", "avro", "protobuf"]
_SUFFIXES: Final[Mapping[str, Kind]] = {
    ".json": "json",
    ".avsc": "avro",
    ".desc": "protobuf",
    ".binpb": "protobuf",
    ".pb": "protobuf",
}
_ERROR_SIZE_MAX: Final = 500  # characters of a reason in a row


class BodyDecoder(Protocol):
    """Reads one body."""

    fields: list[pa.Field]
    """The columns, all nullable."""

    def decode(self, body: bytes) -> Mapping[str, Any]:
        """The values by column, as pyarrow takes them. BodyError if the body does not fit."""


@dataclass(frozen=True, slots=True)
class BodySchema:
    """A schema as it travels to workers. `message`: the full name of the message in a descriptor of Protobuf."""

    kind: Kind
    content: bytes
    message: str | None = None

    @classmethod
    def of(cls, name: str, content: bytes, message: str | None = None) -> BodySchema:
        """The schema in a file of this name. OptionError for an unknown kind or an unusable schema."""
        kind = _SUFFIXES.get(PurePath(name).suffix)
        if kind is None:
            raise OptionError(f"{name}: what kind of schema is it? Name it {', '.join(f'*{end}' for end in _SUFFIXES)}")
        if (kind == "protobuf") != (message is not None):
            raise OptionError(f"{name}: the name of a message belongs to a descriptor of Protobuf, and only to it")
        found = cls(kind, content, message)
        found.decoder()
        return found

    def decoder(self) -> BodyDecoder:
        """One decoder for a process."""
        return _decoder(self)

    def columns(self, taken: Sequence[str]) -> list[pa.Field]:
        """The columns of a table that has those of the message in `taken`: a name that is taken begins with `body_`."""
        names = {name.lower() for name in taken}
        found = []
        for field in self.decoder().fields:
            name = f"body_{field.name}" if field.name.lower() in names else field.name
            if name.lower() in names:
                raise OptionError(f"schema: two columns would be called {name!r}; rename the field")
            names.add(name.lower())
            found.append(pa.field(name, field.type))
        return found


@lru_cache(maxsize=4)
def _decoder(schema: BodySchema) -> BodyDecoder:
    if schema.kind == "json":
        from aerobee_pipeline.tables.json_bodies import JsonDecoder

        return JsonDecoder(schema.content)
    if schema.kind == "avro":
        from aerobee_pipeline.tables.avro_bodies import AvroDecoder

        return AvroDecoder(schema.content)
    from aerobee_pipeline.tables.protobuf_bodies import ProtobufDecoder

    return ProtobufDecoder(schema.content, schema.message or "")


def typed_columns(schema: BodySchema, bodies: pa.Array, errors: pa.Array) -> tuple[list[pa.Array], pa.Array]:
    """The columns of these bodies, and why some do not fit. A body that is null has its reason in `errors`."""
    decoder = schema.decoder()
    rows: list[Mapping[str, Any]] = []
    reasons = errors.to_pylist()
    for number, body in enumerate(bodies.to_pylist()):
        row: Mapping[str, Any] = {}
        if body is not None:
            try:
                row = decoder.decode(body)
            except BodyError as error:
                reasons[number] = f"the body does not fit its schema: {error}"[:_ERROR_SIZE_MAX]
        rows.append(row)
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in decoder.fields]
    return columns, pa.array(reasons, pa.string())
