"""A set of mostly consecutive queue offsets: one bit each, so a million of them take some 200 KB.

After a start it contains the waiting messages that have not been read yet. For an orderly group there may be as many as
a blocked message group has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_CHUNK_BITS: Final = 10
_CHUNK: Final = 1 << _CHUNK_BITS  # offsets in one integer: changing one bit copies 128 bytes


class OffsetBitmap:
    """Offsets are 0 or more. All methods except iteration and `remove_*` take constant time per chunk."""

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}  # offset // _CHUNK -> bits, never 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return bool(self._chunks.get(offset >> _CHUNK_BITS, 0) >> (offset & _CHUNK - 1) & 1)

    def __iter__(self) -> Iterator[int]:
        """The offsets, ascending. Offsets added or removed during the iteration may be missed."""
        for number in sorted(self._chunks):
            bits = self._chunks.get(number, 0)
            while bits:
                lowest = bits & -bits
                yield (number << _CHUNK_BITS) + lowest.bit_length() - 1
                bits ^= lowest

    @property
    def first(self) -> int | None:
        """The lowest offset; None if the set is empty."""
        return next(iter(self), None)

    def add(self, begin: int, end: int) -> None:
        """Add begin <= offset < end."""
        while begin < end:
            number, low = begin >> _CHUNK_BITS, begin & _CHUNK - 1
            size = min(end - begin, _CHUNK - low)
            self._set(number, self._chunks.get(number, 0) | ((1 << size) - 1) << low)
            begin += size

    def discard(self, offset: int) -> bool:
        """Remove one offset; False if it is not in the set."""
        if offset not in self:
            return False
        number = offset >> _CHUNK_BITS
        self._set(number, self._chunks[number] ^ 1 << (offset & _CHUNK - 1))
        return True

    def remove_below(self, offset: int) -> None:
        """Remove every offset lower than `offset`."""
        for number in [number for number in self._chunks if number << _CHUNK_BITS < offset]:
            low = min(offset - (number << _CHUNK_BITS), _CHUNK)
            self._set(number, self._chunks[number] >> low << low)

    def remove_from(self, offset: int) -> None:
        """Remove `offset` and every higher one."""
        for number in [number for number in self._chunks if (number + 1) << _CHUNK_BITS > offset]:
            kept = max(offset - (number << _CHUNK_BITS), 0)
            self._set(number, self._chunks[number] & (1 << kept) - 1)

    def _set(self, number: int, bits: int) -> None:
        self._count += bits.bit_count() - self._chunks.get(number, 0).bit_count()
        if bits:
            self._chunks[number] = bits
        else:
            self._chunks.pop(number, None)
