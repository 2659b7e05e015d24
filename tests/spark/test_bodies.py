"""Bodies as typed columns: what fits has its values, what does not has nulls and the reason."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.tables.bodies import BodySchema, typed_columns
from aerobee_pipeline.tables.json_bodies import inferred

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def decoded(schema: BodySchema, *bodies: bytes | None) -> tuple[list[dict[str, Any]], list[str | None]]:
    """The rows of these bodies, and the reasons."""
    errors = pa.array([None if body is not None else "not decompressed" for body in bodies], pa.string())
    columns, reasons = typed_columns(schema, pa.array(bodies, pa.binary()), errors)
    names = [field.name for field in schema.decoder().fields]
    assert [column.type for column in columns] == [field.type for field in schema.decoder().fields]
    return pa.RecordBatch.from_arrays(columns, names=names).to_pylist(), reasons.to_pylist()


JSON = BodySchema.of(
    "orders.json",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "small": {"type": ["integer", "null"], "format": "int32"},
                "price": {"type": "number"},
                "paid": {"type": "boolean"},
                "at": {"type": "string", "format": "date-time"},
                "day": {"type": "string", "format": "date"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "to": {"$ref": "#/$defs/place"},
                "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
                "any": {},
                "maybe": {"anyOf": [{"type": "null"}, {"type": "string"}]},
            },
            "required": ["id"],
            "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
        }
    ).encode(),
)


def test_json_that_fits() -> None:
    """Every type, nested ones, and names that the schema does not have."""
    body = {
        "id": 7,
        "small": -5,
        "price": 2,
        "paid": True,
        "at": "2026-01-31T13:00:00+01:00",
        "day": "2026-01-31",
        "tags": ["a", None],
        "to": {"city": "Köln", "zip": 1},
        "extra": {"n": 1},
        "any": [1, {"a": None}],
        "maybe": "x",
        "more": 1,
    }
    (row, empty), reasons = decoded(JSON, json.dumps(body).encode(), b'{"id": 9007199254740993}')
    assert reasons == [None, None]
    assert row == {
        **{name: body[name] for name in ("id", "small", "paid", "tags", "maybe")},
        "price": 2.0,
        "at": NOON,
        "day": date(2026, 1, 31),
        "to": {"city": "Köln"},
        "extra": [("n", 1)],
        "any": '[1, {"a": null}]',
    }
    assert empty["id"] == 9007199254740993
    assert all(value is None for name, value in empty.items() if name != "id")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", r"\[\] is no object"),
        (b"{}", "'id' is missing"),
        (b'{"id": "7"}', "id: '7' is no whole number"),
        (b'{"id": true}', "id: True is no whole number"),
        (b'{"id": 9223372036854775808}', "id: 9223372036854775808 does not fit into int64"),
        (b'{"id": 1, "small": 2147483648}', "small: .* does not fit into int32"),
        (b'{"id": 1, "price": "1"}', "price: '1' is no number"),
        (b'{"id": 1, "at": "noon"}', "at: 'noon' is no time"),
        (b'{"id": 1, "day": "31.1.2026"}', "day: .* is no date"),
        (b'{"id": 1, "tags": "a"}', "tags: 'a' is no list"),
        (b'{"id": 1, "tags": [1]}', "tags: 1 is no text"),
        (b'{"id": 1, "to": {"city": 5}}', "to: city: 5 is no text"),
        (b'{"id": 1, "extra": [1]}', "extra: .* is no object"),
    ],
)
def test_json_that_does_not_fit(body: bytes, reason: str) -> None:
    """All columns are null, and the neighbours keep their values."""
    rows, reasons = decoded(JSON, b'{"id": 1}', body, None, b'{"id": 2}')
    assert [row["id"] for row in rows] == [1, None, None, 2]
    assert all(value is None for value in rows[1].values())
    assert reasons[0] is reasons[3] is None
    assert reasons[2] == "not decompressed"
    assert re.search(f"the body does not fit its schema: .*{reason}", str(reasons[1])), reasons[1]


def test_a_schema_of_samples() -> None:
    """All samples fit it: numbers widen, what differs is text, what is missing is null."""
    bodies = [
        {"id": 1, "n": 1, "at": "2026-01-31T12:00:00Z", "day": "2026-01-31", "mixed": 1, "list": [], "in": {"a": 1}},
        {"id": 2, "n": 1.5, "at": "2026-01-31T12:00:00Z", "day": "later", "mixed": "x", "list": [1], "in": {"b": None}},
        {"id": None, "new": True},
    ]
    schema = inferred(json.dumps(body).encode() for body in bodies)
    assert {name: part.get("type") for name, part in schema["properties"].items()} == {
        "id": "integer",
        "n": "number",
        "at": "string",
        "day": "string",
        "mixed": None,
        "list": "array",
        "in": "object",
        "new": "boolean",
    }
    rows, reasons = decoded(
        BodySchema.of("a.json", json.dumps(schema).encode()), *(json.dumps(body).encode() for body in bodies)
    )
    assert reasons == [None, None, None]
    assert [row["n"] for row in rows] == [1.0, 1.5, None]
    assert [row["mixed"] for row in rows] == ["1", "x", None]
    assert rows[0]["at"] == NOON
    for wrong in ([b"x"], [b"[]"], []):
        with pytest.raises(OptionError, match="give a schema"):
            inferred(wrong)


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "parts", "type": {"type": "array", "items": {"type": "record", "name": "Part", "fields": [
            {"name": "kind", "type": "Kind"}, {"name": "counts", "type": {"type": "map", "values": "int"}}]}}},
    ],
}  # fmt: skip


def test_avro() -> None:
    """Logical and nested types, with and without the single-object encoding; other bytes do not fit."""
    fastavro = pytest.importorskip("fastavro")
    schema = BodySchema.of("order.avsc", json.dumps(AVRO).encode())
    value = {"id": 7, "note": None, "kind": "B", "at": NOON, "price": Decimal("12.50"),
             "parts": [{"kind": "A", "counts": {"x": 1}}]}  # fmt: skip
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, AVRO, value)
    plain = stream.getvalue()
    canonical = fastavro.schema.to_parsing_canonical_form(AVRO)
    mark = b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    rows, reasons = decoded(schema, plain, mark + plain, plain + b"\0", b"", b"\xff" * 40)
    assert reasons[:2] == [None, None]
    assert rows[0] == rows[1] == {**value, "parts": [{"kind": "A", "counts": [("x", 1)]}]}
    assert "has 1 bytes after the record" in str(reasons[2])
    assert all("is not Avro of this schema" in str(reason) for reason in reasons[3:])
    assert all(value is None for row in rows[2:] for value in row.values())


def protobuf() -> tuple[bytes, Any]:
    """A descriptor set and the class of a message."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop.v1", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    part = order.nested_type.add(name="Part")
    part.field.add(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    kinds: list[tuple[str, int, str | None, bool]] = [
        ("id", field.TYPE_INT64, None, False),
        ("large", field.TYPE_UINT64, None, False),
        ("raw", field.TYPE_BYTES, None, False),
        ("kind", field.TYPE_ENUM, ".shop.v1.Kind", False),
        ("at", field.TYPE_MESSAGE, ".google.protobuf.Timestamp", False),
        ("note", field.TYPE_MESSAGE, ".google.protobuf.StringValue", False),
        ("parts", field.TYPE_MESSAGE, ".shop.v1.Order.Part", True),
        ("counts", field.TYPE_MESSAGE, ".shop.v1.Order.CountsEntry", True),
    ]
    for number, (name, its, type_name, repeated) in enumerate(kinds, 1):
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        order.field.add(name=name, number=number, type=its, type_name=type_name, label=label)
    again = file.message_type.add(name="Again")
    again.field.add(name="a", number=1, type=field.TYPE_MESSAGE, type_name=".shop.v1.Again", label=field.LABEL_OPTIONAL)
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(file)
    pool = descriptor_pool.DescriptorPool()
    for each in files.file:
        pool.Add(each)
    return files.SerializeToString(), message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Order"))


def test_protobuf() -> None:
    """Times, wrappers, lists, maps and unsigned numbers; a broken body does not fit."""
    content, order = protobuf()
    schema = BodySchema.of("shop.desc", content, "shop.v1.Order")
    message = order(id=7, large=2**64 - 1, raw=b"\0", kind=1, parts=[{"name": "a"}], counts={"x": 1})
    message.at.FromDatetime(NOON)
    message.note.value = ""
    rows, reasons = decoded(schema, message.SerializeToString(), b"", b"\xff", order(kind=9).SerializeToString())
    assert rows[0] == {
        "id": 7,
        "large": Decimal(2**64 - 1),
        "raw": b"\0",
        "kind": "PAID",
        "at": NOON,
        "note": "",
        "parts": [{"name": "a"}],
        "counts": [("x", 1)],
    }
    assert (rows[1]["id"], rows[1]["at"], rows[1]["note"], rows[1]["parts"]) == (0, None, None, [])
    assert (rows[3]["kind"], reasons[3]) == ("9", None)
    assert "it is no shop.v1.Order" in str(reasons[2])
    assert all(value is None for value in rows[2].values())


@pytest.mark.parametrize(
    ("name", "content", "message", "error"),
    [
        ("a.txt", b"", None, r"what kind of schema is it\? Name it \*.json"),
        ("a.json", b"{", None, "the JSON Schema is not JSON"),
        ("a.json", b"{}", None, "has no properties at its top"),
        ("a.json", b'{"properties": {"a": {"$ref": "#/x"}}}', None, "refers to '#/x', which it does not have"),
        ("a.json", b'{"properties": {"a": {"$ref": "#"}}}', None, "refers to '#', which it does not have"),
        ("a.json", b'{"$ref": "#/d", "d": {"$ref": "#/d"}}', None, "refers to itself"),
        ("a.json", b'{"$ref": "#/d", "d": {"properties": {"a": {"type": "array", "items": {"$ref": "#/d"}}},'
                   b' "type": "object"}}', None, "deep, or refers to itself"),
        ("a.json", b"{}", "M", "the name of a message belongs to a descriptor"),
        ("a.desc", b"x", None, "the name of a message belongs to a descriptor"),
        ("a.desc", b"x", "M", "no FileDescriptorSet"),
        ("a.desc", b"", "M", "no usable message 'M'"),
        ("a.avsc", b'"string"', None, "not of a record"),
        ("a.avsc", b'{"type": "record"}', None, "the Avro schema cannot be used"),
        ("a.avsc", b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}', None,
         "contains itself"),
        ("a.avsc", b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}', None,
         "field 'a' is a union of 2 types"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_used(name: str, content: bytes, message: str | None, error: str) -> None:
    """The error says what is wrong and what to do."""
    pytest.importorskip("fastavro")
    with pytest.raises(OptionError, match=error):
        BodySchema.of(name, content, message)
    with pytest.raises(OptionError, match="contains itself"):
        BodySchema.of("shop.pb", protobuf()[0], "shop.v1.Again")


def test_names_that_are_taken() -> None:
    """A field of the body that is called like a column of the message begins with `body_`."""
    schema = BodySchema.of("a.json", b'{"properties": {"Keys": {"type": "string"}, "n": {"type": "integer"}}}')
    assert [field.name for field in schema.columns(["keys", "topic"])] == ["body_Keys", "n"]
    twice = BodySchema.of("a.json", b'{"properties": {"body_keys": {"type": "string"}, "keys": {"type": "string"}}}')
    with pytest.raises(OptionError, match="two columns would be called 'body_keys'"):
        twice.columns(["keys"])
