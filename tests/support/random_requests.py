"""Random requests of any type, generated from the descriptors: clients never send them, but anybody can."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_DEPTH_MAX = 5
_TEXTS = (
    "",
    " ",
    "a",
    "*",
    "||",
    "A || B",
    "%RETRY%",
    "%DLQ%billing",
    "rmq_sys_AEROBEE_DELIVERY",
    "TBW102",
    "../../etc/passwd",
    "new\nline",
    "nul\0",
    "\x7f\x85",
    "日本語 🚀",
    "'; --",
    "%s%n{0}",
    "-1",
    "1e999",
    "9" * 30,
    "0-0",
    "x" * 127,
    "x" * 5000,
)
_NUMBERS = (0, 1, -1, 2, 7, 32, 33, 1000, 65_535, 65_536, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))
_BYTES = (b"", b"\0", b"hello", b"\xff" * 100, b"\x1f\x8b\x08not gzip", b"z" * 10_000)


class RandomRequests:
    """Makes messages of a type; `names` and `handles` are values that the broker knows."""

    def __init__(self, seed: int, names: Sequence[str], handles: Sequence[str]) -> None:
        self._dice = random.Random(seed)
        self._names = (*names, *handles)

    def make(self, kind: Descriptor, depth: int = 0) -> Message:
        """A message whose fields are each unset, or set to any value of their type."""
        message = GetMessageClass(kind)()
        density = self._dice.choice((0.3, 0.7, 0.95))
        for field in kind.fields:
            if self._dice.random() < density:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            entries = getattr(message, field.name)
            for _ in range(self._dice.choice((0, 1, 3, 40, 130))):
                if value.message_type is None:  # the protocol's maps have string keys
                    entries[self._text() + str(self._dice.randrange(200))] = self._scalar(value)
                else:
                    entries[self._text()].CopyFrom(self.make(value.message_type, depth + 1))
        elif field.message_type is not None:
            if depth >= _DEPTH_MAX:
                return
            if field.is_repeated:
                for _ in range(self._dice.choice((0, 1, 1, 2, 5))):
                    getattr(message, field.name).append(self.make(field.message_type, depth + 1))
            else:
                getattr(message, field.name).CopyFrom(self.make(field.message_type, depth + 1))
        elif field.is_repeated:
            getattr(message, field.name).extend(self._scalar(field) for _ in range(self._dice.choice((0, 1, 3, 50))))
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self._text() if field.type == FieldDescriptor.TYPE_STRING else self._dice.choice(_BYTES)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self._dice.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            known = [value.number for value in field.enum_type.values]
            return self._dice.choice([*known, *known, 99, -1, 1 << 30])
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self._dice.choice((0.0, -1.0, 1e30, float("inf"), float("nan")))
        bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
        signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return min(max(self._dice.choice(_NUMBERS), low), high)

    def _text(self) -> str:
        return self._dice.choice(self._names if self._dice.random() < 0.6 else _TEXTS)
