"""Protobuf fields of many messages at once, as columns of numpy.

Python takes some 100 ns for each field that it reads from a parsed message. Messages of one producer have the same
fields in the same order, so here one step reads one field of all messages: its tag, its varint, and where it ends. The
number of steps is bounded. A message that has other fields than expected, or is not done after these steps, is marked
as unusual; the caller reads it with protobuf.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aerobee_store.records.record_columns import Booleans, Integers, all_true, windows

Words = npt.NDArray[np.uint64]
_WORD: Final = 8  # bytes read per step: a tag of one byte, and a varint of up to seven
_WIRE_TYPE: Final = 7
_BYTES: Final = 2  # the wire type of strings, bytes and messages
_ONE: Final = np.uint64(1)
_TAG: Final = np.uint64(0xFF)
_TAG_BITS: Final = np.uint64(8)
_ENDS: Final = np.uint64(0x0080808080808080)  # the bit of each byte that is clear in the last byte of a varint
_SHORT: Final = np.uint64(0x80)
_VALUES: Final = np.uint64(0x007F7F7F7F7F7F7F)
_BYTE_STARTS: Final = np.uint64(0x0101010101010101)
_TOP_BYTE: Final = np.uint64(56)
# Moves groups of 7 bits together: pairs of groups, then pairs of pairs, then the two halves.
_JOINS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)


class FieldColumn(NamedTuple):
    """One field of many messages, an item for each occurrence, in message order.

    `rows`: the numbers of the messages. `begin`, `end`: the place of the content; for a varint, `begin` is its value.
    """

    rows: Integers
    begin: Integers
    end: Integers


class Wire:
    """The bytes of a request, from which fields are read."""

    __slots__ = ("_words", "data")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self._words = windows(data + bytes(_WORD - 1), _WORD)  # one for each byte; the last ones are padded

    def joined(self, begin: Integers, size: int) -> bytes:
        """The bytes at these places, joined; all must be within the request."""
        return windows(self.data, size)[begin].tobytes() if size else b""

    def fields(
        self, start: Integers, end: Integers, tags: Collection[int], *, steps_max: int
    ) -> tuple[dict[int, FieldColumn], Booleans]:
        """The fields of the messages at these places, and which messages are unusual.

        `tags`: the known fields, each as its byte on the wire: its number times 8 plus the wire type, 0 or 2. The
        fields of an unusual message are incomplete.
        """
        found: dict[int, list[FieldColumn]] = {}
        unusual = np.zeros(len(start), np.bool_)
        cursor = start.copy()
        rows = (cursor < end).nonzero()[0]
        for _ in range(steps_max):
            if not len(rows):
                break
            at, stop = cursor[rows], end[rows]
            word = self._words[at].view("<u8")
            tag_of = word & _TAG
            tag = int(tag_of[0])
            same = tag_of == tag_of[0]
            stepped = rows
            if not all_true(same):
                stepped, at, stop, word = rows[same], at[same], stop[same], word[same]
            if tag not in tags:
                unusual[stepped] = True
                cursor[stepped] = stop
            else:
                value, size = _varints(word >> _TAG_BITS)
                begin = at + size + 1
                last = begin + value if tag & _WIRE_TYPE == _BYTES else begin
                bad = (size == 0) | (last > stop)
                if np.count_nonzero(bad):
                    unusual[stepped[bad]] = True
                    last[bad] = stop[bad]
                cursor[stepped] = last
                field = FieldColumn(stepped, begin if tag & _WIRE_TYPE == _BYTES else value, last)
                found.setdefault(tag, []).append(field)
            rows = rows[cursor[rows] < end[rows]]
        unusual[rows] = True
        return {tag: _joined(parts) for tag, parts in found.items()}, unusual


def _joined(parts: list[FieldColumn]) -> FieldColumn:
    return (
        parts[0] if len(parts) == 1 else FieldColumn(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    )


def _varints(word: Words) -> tuple[Integers, Integers]:
    """The varints at the beginning of these words, and their sizes; 0 bytes for one of more than seven."""
    if not np.count_nonzero(word & _SHORT):
        return (word & _TAG).view(np.int64), np.ones(len(word), np.int64)
    last = ~word & _ENDS
    last &= ~last + _ONE  # the lowest bit that is set
    below = last - _ONE  # all ones, if there is none
    size = (((below & _BYTE_STARTS) * _BYTE_STARTS) >> _TOP_BYTE).view(np.int64)
    value = word & below & _VALUES
    for low, high, shift in _JOINS:
        value = (value & low) | ((value & high) >> shift)
    size[last == 0] = 0
    return value.view(np.int64), size


def varints_of_run(first: int, count: int) -> list[bytes]:
    """`first` and the following numbers, each encoded."""
    found: list[bytes] = []
    while count:
        size = max(1, -(-first.bit_length() // 7))
        taken = min(count, (1 << 7 * size) - first)
        shifts = np.arange(0, 7 * size, 7)
        digits = (np.arange(first, first + taken)[:, None] >> shifts & 0x7F).astype(np.uint8)
        digits[:, :-1] |= 0x80
        data = digits.tobytes()
        found += [data[begin : begin + size] for begin in range(0, len(data), size)]
        first += taken
        count -= taken
    return found
