"""Protobuf's numbers of variable size."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """A number of 0 or more, encoded."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of at most five bytes, and its end. IndexError for a longer one, or if the bytes end too early."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        if shift == 28:
            raise IndexError("a number of more than five bytes")
        shift += 7
