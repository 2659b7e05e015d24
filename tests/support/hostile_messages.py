"""Requests of every gRPC method as bytes, drawn from its descriptor: what protobuf would write, and what it never does.

Each field is left out, or has a value at its limits or past them: of its type, of another wire type, cut, repeated up
to the limits and beyond, nested as deeply as its type allows and deeper. Unknown fields stand between them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from aerobee_proto import admin_v1, records_v1, v2

_SERVICES: Final = (
    *(v2.SendMessageRequest.DESCRIPTOR.file, v2.ListMessageRequest.DESCRIPTOR.file),
    *(admin_v1.CreateTopicRequest.DESCRIPTOR.file, records_v1.AppendRecordsRequest.DESCRIPTOR.file),
    *(health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR),
)
METHODS: Final[Sequence[MethodDescriptor]] = tuple(
    method for file in _SERVICES for service in file.services_by_name.values() for method in service.methods
)
"""Of every service that the broker has."""
_VARINTS: Final = (0, 1, 2, 7, 127, 128, 1_000, 65_536, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1)
_LENGTHS: Final = (0, 1, 2, 120, 127, 128, 255, 256, 4_096, 65_536, 1 << 20)
_COUNTS: Final = (1, 1, 2, 40, 129, 1_024, 1_025, 4_097, 10_001, 100_000)
_DEPTHS: Final = (2, 50, 99, 101, 2_000)
_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_SIZE_MAX: Final = 4 << 20
_DEPTH_MAX: Final = 6


def drawn_request(dice: random.Random, kind: Descriptor, names: Sequence[str]) -> bytes:
    """A request of this type. `names`: values that the broker knows."""
    request = _Drawer(dice, names).message(kind, 0)
    match dice.randrange(12):
        case 0:
            return request[: dice.randrange(len(request) + 1)]
        case 1:
            return request + dice.randbytes(dice.choice((1, 10, 1_000)))
        case 2:
            return request * dice.choice((2, 10, 100))  # a message that is there twice is merged
        case _:
            return request


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    found = bytearray()
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def _delimited(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + varint(len(content)) + content


class _Drawer:
    """Draws the fields of one request, which stays below `_SIZE_MAX`."""

    def __init__(self, dice: random.Random, names: Sequence[str]) -> None:
        self._dice = dice
        self._names = names
        self._left = _SIZE_MAX
        self._extreme = dice.choice((0.0, 0.1, 0.4))  # how often a field is not what its type says

    def message(self, kind: Descriptor, depth: int) -> bytes:
        parts: list[bytes] = []
        density = self._dice.choice((0.5, 0.8, 1.0))
        for field in kind.fields:
            if self._dice.random() < density:
                parts.append(self._field(field, depth))
        if self._dice.random() < self._extreme:
            parts.append(self._unknown())
        if self._dice.random() < 0.2:
            self._dice.shuffle(parts)
        return self._counted(b"".join(parts))

    def _counted(self, part: bytes) -> bytes:
        """The part, or nothing if the request has become too large."""
        self._left -= len(part)
        return part if self._left > 0 else b""

    def _field(self, field: FieldDescriptor, depth: int) -> bytes:
        if self._dice.random() < self._extreme:
            return self._counted(self._wrong(field))
        one = self._one(field, depth)
        if not field.is_repeated:
            return one
        count = self._dice.choice(_COUNTS)
        if self._dice.random() < 0.5:  # all of them alike
            return self._counted(one * min(count, max(1, self._left // (len(one) + 1))))
        different = [self._one(field, depth + 1) for _ in range(min(count, 40))]
        return self._counted(b"".join(different))

    def _one(self, field: FieldDescriptor, depth: int) -> bytes:
        """The field once, as its type says."""
        number, kind = field.number, field.message_type
        if kind is not None:
            return _delimited(number, self.message(kind, depth + 1) if depth < _DEPTH_MAX else b"")
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING:
                return _delimited(number, self._text())
            case FieldDescriptor.CPPTYPE_DOUBLE:
                return _tag(number, _FIXED64) + struct.pack("<d", self._dice.choice((0, -1, 1e308, float("nan"))))
            case FieldDescriptor.CPPTYPE_FLOAT:
                return _tag(number, _FIXED32) + struct.pack("<f", self._dice.choice((0, -1, 1e38, float("inf"))))
            case FieldDescriptor.CPPTYPE_ENUM:
                assert field.enum_type is not None
                known = [value.number for value in field.enum_type.values]
                return _tag(number, _VARINT) + varint(self._dice.choice([*known, *known, *_VARINTS]))
            case _:
                return _tag(number, _VARINT) + varint(self._dice.choice(_VARINTS))

    def _text(self) -> bytes:
        if self._dice.random() < 0.7:
            return self._dice.choice(self._names).encode()
        filler = self._dice.choice((b"a", b"\0", b"\xff", b"%", b"(", b"'", b"\xe2\x82\xac", b" || ", b"1 = 1 and "))
        return (filler * self._dice.choice(_LENGTHS))[: max(0, self._left)]

    def _wrong(self, field: FieldDescriptor) -> bytes:
        """The field in a way that protobuf does not write it."""
        number = field.number
        match self._dice.randrange(8):
            case 0:
                return _tag(number, self._dice.randrange(8)) + self._dice.randbytes(self._dice.choice((0, 4, 8)))
            case 1:
                return _tag(number, _VARINT) + b"\xff" * self._dice.choice((9, 10, 11, 1_000)) + b"\x01"
            case 2:
                return _tag(number, _BYTES) + varint(self._dice.choice(_VARINTS))  # a length without content
            case 3:
                return self._deep(number)
            case 4:
                packed = varint(self._dice.choice(_VARINTS)) * self._dice.choice(_COUNTS)
                return _delimited(number, packed)
            case 5:
                return _delimited(number, b"") * self._dice.choice((100, 1_025, 100_000))
            case 6:
                return self._unknown()
            case _:
                return _delimited(number, self._dice.randbytes(self._dice.choice((1, 100, 10_000))))

    def _deep(self, number: int) -> bytes:
        depth = self._dice.choice(_DEPTHS)
        if self._dice.random() < 0.5:
            return _tag(number, _GROUP) * depth + _tag(number, _END_GROUP) * depth
        content = b""
        for _ in range(depth):
            content = _delimited(number, content)
        return content

    def _unknown(self) -> bytes:
        number = self._dice.choice((0, 500, 18_999, 19_000, (1 << 29) - 1))
        content = bytes(self._dice.choice((0, 100, 100_000)))
        one = _delimited(number, content) if self._dice.random() < 0.7 else _tag(number, _VARINT) + b"\x01"
        return one * self._dice.choice((1, 2, 1_000)) if len(content) < 1_000 else one
