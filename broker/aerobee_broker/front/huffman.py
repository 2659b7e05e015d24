"""HPACK's Huffman code (RFC 7541, section 5.2 and appendix B), decoded up to 16 bits at a time.

Characters of typical headers have 5 to 8 bits, so 16 bits hold two or three of them. The meaning of each 16-bit window
is computed once and cached. Everything else (rare characters, long strings, errors) is left to the `hpack` package,
which decodes half a byte at a time.
"""

from __future__ import annotations

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman

_SHORT: Final = 8  # length of the codes decoded here, in bits
_WINDOW: Final = 16
_SIZE_MAX: Final = 64  # bytes; beyond it, shifting the number costs more than decoding half a byte at a time
_REMEMBERED_MAX: Final = 4096  # cached windows and ends; typical headers need some hundreds

_Meaning = tuple[bytes, int]  # characters, and their length in bits


def _singles() -> list[_Meaning | None]:
    """Index: the next 8 bits. Value: the character that they begin with; None for longer codes."""
    found: list[_Meaning | None] = [None] * (1 << _SHORT)
    for character in range(256):
        length = REQUEST_CODES_LENGTH[character]
        if length <= _SHORT:
            first = REQUEST_CODES[character] << (_SHORT - length)
            for bits in range(first, first + (1 << (_SHORT - length))):
                found[bits] = bytes((character,)), length
    return found


_SINGLES: Final = _singles()
_windows: Final[dict[int, _Meaning]] = {}
_tails: Final[dict[int, bytes]] = {}  # by the number of bits and their value


def decoded(data: bytes) -> bytes:
    """The text of a Huffman string. Raises hpack.HPACKError."""
    left = 8 * len(data)
    if left > 8 * _SIZE_MAX:
        return decode_huffman(data)
    bits = int.from_bytes(data, "big")
    windows = _windows
    parts = []
    while left >= _WINDOW:
        left -= _WINDOW
        window = bits >> left & 0xFFFF
        meaning = windows.get(window)
        if meaning is None and (meaning := _meaning(window)) is None:
            return decode_huffman(data)
        parts.append(meaning[0])
        left += _WINDOW - meaning[1]
    if left:
        bits &= (1 << left) - 1
        tail = _tails.get(left << _WINDOW | bits)
        if tail is None and (tail := _tail(bits, left)) is None:
            return decode_huffman(data)
        parts.append(tail)
    return b"".join(parts)


def _tail(bits: int, left: int) -> bytes | None:
    """The text of the last `left` bits, fewer than 16, with padding. None: the package must decode the string."""
    key = left << _WINDOW | bits
    characters = bytearray()
    while left:
        rest = bits & (1 << left) - 1
        if left < _SHORT and rest == (1 << left) - 1:
            break  # padding: ones
        single = _SINGLES[rest >> left - _SHORT if left >= _SHORT else rest << _SHORT - left]
        if single is None or single[1] > left:
            return None
        characters += single[0]
        left -= single[1]
    if len(_tails) < _REMEMBERED_MAX:
        _tails[key] = bytes(characters)
    return bytes(characters)


def _meaning(window: int) -> _Meaning | None:
    """The whole characters at the beginning of 16 bits; None if the first has more than 8 bits."""
    characters = bytearray()
    left = _WINDOW
    while left >= _SHORT:
        single = _SINGLES[window >> left - _SHORT & 0xFF]
        if single is None:
            break
        characters += single[0]
        left -= single[1]
    if not characters:
        return None
    meaning = bytes(characters), _WINDOW - left
    if len(_windows) < _REMEMBERED_MAX:
        _windows[window] = meaning
    return meaning
