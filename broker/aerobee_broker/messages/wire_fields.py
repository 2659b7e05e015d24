"""Protobuf's wire format, for what is read or written without its objects: numbers of variable size, and fields."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

VARINT_SIZE_MAX: Final = 5
"""Bytes of a tag, a size, and of what fits into 35 bits: seconds until the year 3058."""
_FIELDS_MAX: Final = 64  # of a message
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
"""Wire types: the last three bits of a tag."""
_NUMBER_SIZE_MAX: Final = 10  # bytes of the largest varint in a field

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


def read_field(data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """The tag of the field at this position, and the begin and end of its content: those of a number are its own bytes.

    IndexError if it is malformed, or does not end by `end`.
    """
    tag, begin = read_varint(data, position)
    wire_type = tag & 7
    if wire_type == BYTES:
        size, begin = read_varint(data, begin)
        behind = begin + size
    elif wire_type == VARINT:
        _, behind = read_varint(data, begin, _NUMBER_SIZE_MAX)
    elif wire_type == FIXED_64:
        behind = begin + 8
    elif wire_type == FIXED_32:
        behind = begin + 4
    else:
        raise IndexError("a group, which none of our messages has")
    if behind > end:
        raise IndexError(f"the field at {position} does not end by {end}")
    return tag, begin, behind


def spans(
    data: bytes, within: Span, tags: Collection[int], repeated: Collection[int] = ()
) -> dict[int, list[Span]] | None:
    """The positions of the fields of a message, by tag: number times 8, plus 2 for bytes or 0 for a varint, whose own
    bytes are its content. None for other fields than `tags`, too many fields, an empty field, a number of more than
    VARINT_SIZE_MAX bytes, or a second occurrence of a field that is not `repeated`."""
    found: dict[int, list[Span]] = {}
    position, end = within
    for _ in range(_FIELDS_MAX):
        if position >= end:
            return found
        try:
            tag, begin, position = read_field(data, position, end)
        except IndexError:
            return None
        if tag not in tags or (tag in found and tag not in repeated) or begin == position:
            return None
        if tag & 7 == VARINT and position - begin > VARINT_SIZE_MAX:
            return None
        found.setdefault(tag, []).append((begin, position))
    return None
