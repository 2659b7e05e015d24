"""Bodies in Protobuf, by a descriptor set: `protoc --include_imports --descriptor_set_out=orders.desc orders.proto`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.tables.body_values import BodyError

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_KINDS: Final[Mapping[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ProtobufDecoder:
    """See BodyDecoder."""

    def __init__(self, content: bytes, message: str) -> None:
        """OptionError for a descriptor without the message, or a message that contains itself."""
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
                pool.Add(file)
            found = pool.FindMessageTypeByName(message)
        except DecodeError:
            raise OptionError(
                "the descriptor is no FileDescriptorSet; make it by protoc --descriptor_set_out"
            ) from None
        except (KeyError, TypeError) as error:
            raise OptionError(
                f"the descriptor has no usable message {message!r}: {error}; make it with --include_imports"
            ) from None
        self._message = message_factory.GetMessageClass(found)
        self.fields = [pa.field(field.name, _type(field, (found.full_name,))) for field in found.fields]

    def decode(self, body: bytes) -> Mapping[str, Any]:
        try:
            parsed = self._message.FromString(body)
        except DecodeError as error:
            raise BodyError(f"it is no {self._message.DESCRIPTOR.full_name}: {error}") from None
        return _record(parsed)


def _type(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        return pa.map_(pa.string(), _single_type(value, inside))
    single = _single_type(field, inside)
    return pa.list_(single) if field.is_repeated else single


def _single_type(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _KINDS[field.cpp_type]
    of = field.message_type
    if of.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if of.full_name in _WRAPPERS:
        return _single_type(of.fields_by_name["value"], inside)
    if of.full_name in inside:
        raise OptionError(f"the message {of.full_name} contains itself, which no table can")
    if not of.fields:
        return pa.bool_()  # whether it is there
    return pa.struct([pa.field(each.name, _type(each, (*inside, of.full_name))) for each in of.fields])


def _record(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]
            found[field.name] = [(str(key), _value(of, each)) for key, each in value.items()]
        elif field.is_repeated:
            found[field.name] = [_value(field, each) for each in value]
        else:
            found[field.name] = _value(field, value)
    return found


def _value(field: Any, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return value
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        try:
            return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        except OverflowError:
            raise BodyError(f"{field.name}: {value.seconds} s is no time of the years 1 to 9999") from None
    if name in _WRAPPERS:
        return value.value
    return _record(value) if field.message_type.fields else True


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
