"""Protobuf's wire format, for what is read or written without its objects: numbers of variable size, and fields."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

VARINT_SIZE_MAX: Final = 5
"""Bytes of a tag, a size, and of what fits into 35 bits: seconds until the year 3058."""
_FIELDS_MAX: Final = 64  # of a message
_WIRE_TYPE: Final = 7
_VARINT: Final = 0

Span = tuple[int, int]
"""Begin and end of a field's content."""


def varint(value: int) -> bytes:
    """A number of 0 or more, encoded."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def read_varint(data: bytes, position: int, size_max: int = VARINT_SIZE_MAX) -> tuple[int, int]:
    """A number of at most so many bytes, and its end. IndexError for a longer one, or if the bytes end too early."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift == 7 * size_max:
            raise IndexError(f"a number of more than {size_max} bytes")


def spans(
    data: bytes, within: Span, tags: Collection[int], repeated: Collection[int] = ()
) -> dict[int, list[Span]] | None:
    """The positions of the fields of a message, by tag: number times 8, plus 2 for bytes or 0 for a varint, whose own
    bytes are its content. None for other fields than `tags`, too many fields, an empty field, or a second occurrence of
    a field that is not `repeated`."""
    found: dict[int, list[Span]] = {}
    position, end = within
    for _ in range(_FIELDS_MAX):
        if position >= end:
            return found if position == end else None
        try:
            tag, behind_tag = read_varint(data, position)
            value, behind = read_varint(data, behind_tag)
        except IndexError:
            return None
        if tag not in tags or (tag in found and tag not in repeated):
            return None
        if tag & _WIRE_TYPE == _VARINT:
            span = behind_tag, behind
        else:
            span = behind, behind + value
            if not value:
                return None
        found.setdefault(tag, []).append(span)
        position = span[1]
    return None
