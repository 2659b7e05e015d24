"""The properties of many records at once: positions of names and values, and Java's hashes of values.

All property strings are joined into one text, in which the two separators are found by comparing bytes; a pair is then
three numbers. Values are hashed as a matrix of bytes, one row per value.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aerobee_store.records import properties as property_codec
from aerobee_store.records.record import ReadableBuffer
from aerobee_store.records.record_columns import Bytes, Integers, all_true, are_alike, windows

# Values are hashed as matrices of these widths; longer ones, rare and possibly hostile, one by one.
_HASH_WIDTHS: Final = (8, 16, 32, 64)
_HASH_WIDTH_MAX: Final = _HASH_WIDTHS[-1]
_POWERS_OF_31: Final = np.array([pow(31, i, 1 << 32) for i in range(_HASH_WIDTH_MAX + 1)], dtype=np.uint32)
# The weights of right-aligned bytes, and the number of bytes from each column on.
_WEIGHTS: Final = {width: _POWERS_OF_31[width - 1 :: -1].copy() for width in _HASH_WIDTHS}
_COLUMNS: Final = {width: np.arange(width, 0, -1, dtype=np.uint8) for width in _HASH_WIDTHS}
_NOT_ASCII: Final = np.uint64(0x8080808080808080)
_WORD: Final = 8
# The last three bytes of a name, of eight that are read: no relevant property has a shorter name.
_SUFFIX: Final = np.uint64(int.from_bytes(bytes(_WORD - 3) + b"\xff" * 3, sys.byteorder))
_PADDING: Final = bytes(_HASH_WIDTH_MAX)
_ASSIGN: Final = property_codec.NAME_SEPARATOR.encode()
_CLOSE: Final = property_codec.PROPERTY_SEPARATOR.encode()
_NAME_SEPARATOR: Final = ord(property_codec.NAME_SEPARATOR)
_PROPERTY_SEPARATOR: Final = ord(property_codec.PROPERTY_SEPARATOR)
assert (_NAME_SEPARATOR, _PROPERTY_SEPARATOR) == (1, 2), "`split` finds both with one comparison"


class PropertyPairs:
    """All name-value pairs of a batch, by position in `text`: the joined property strings, each closed by 0x02.

    A closed string thus gets an empty pair at its end, which is ignored, as by any reader. So is the padding before the
    first string, which lets `java_hashes` read a fixed number of bytes before any value's end.
    """

    __slots__ = (
        "_common",
        "_data",
        "_end",
        "_name",
        "_name_size",
        "_one_size_unsplit",
        "_separator",
        "_sizes",
        "_string_ends",
        "text",
    )

    def __init__(self, buffer: ReadableBuffer, start: Integers, size: Integers) -> None:
        """Join the strings at these positions of `buffer`, preferably `bytes`. They are split on first use."""
        strings: list[Any] = [_PADDING]
        strings += [buffer[a:b] for a, b in zip(start.tolist(), (start + size).tolist(), strict=True)]
        strings.append(b"")
        self._take(_CLOSE.join(strings), size)

    @classmethod
    def gathered(cls, joined: ReadableBuffer, size: Integers) -> PropertyPairs:
        """The same for strings that are joined already, each with one byte before it, whatever it is."""
        data = np.frombuffer(bytearray(b"".join((_PADDING, joined, _CLOSE))), np.uint8)
        data[len(_PADDING) + np.cumsum(size + 1) - (size + 1)] = _PROPERTY_SEPARATOR
        pairs = cls.__new__(cls)
        pairs._take(bytes(data), size)
        return pairs

    @classmethod
    def of_one_size(cls, buffer: memoryview, start: int, stride: int, size: Integers) -> PropertyPairs:
        """The same for strings of one size, at least one, that begin every `stride` bytes: one copy."""
        count, width = len(size), int(size[0])
        joined = np.empty((count, width + 1), np.uint8)
        joined[:, :width] = np.ndarray((count, width), np.uint8, buffer, start, (stride, 1))
        joined[:, width] = _PROPERTY_SEPARATOR
        pairs = cls.__new__(cls)
        pairs._take(b"".join((_PADDING, _CLOSE, joined.data)), size, one_size=True)
        return pairs

    def _take(self, text: bytes, size: Integers, *, one_size: bool = False) -> None:
        self._one_size_unsplit = one_size
        self._common: dict[bytes, tuple[int, int]] | None = None
        self.text = text
        self._data = np.frombuffer(self.text, np.uint8)
        self._sizes = size
        self._string_ends: Integers | None = None

    def _split(self) -> None:
        """Find the pairs, if that was not done yet."""
        if self._string_ends is not None:
            return
        data = self._data
        places = (data - np.uint8(_NAME_SEPARATOR) < 2).nonzero()[0]  # below 1 wraps around
        closes = data[places] == _PROPERTY_SEPARATOR
        # A pair's first name separator is the one after a property separator; the text begins with one.
        row = (closes[:-1] & ~closes[1:]).nonzero()[0] + 1
        name_start = places[row - 1] + 1
        separator = places[row]
        if all_true(closes[row + 1]):
            end = places[row + 1]
        else:  # the value contains further name separators
            ends = places[closes]
            end = ends[np.searchsorted(ends, separator)]
        name_size = separator - name_start
        valid = (name_size > 0) & (end - separator > 1)
        if not all_true(valid):
            name_start, name_size, separator, end = (
                column[valid] for column in (name_start, name_size, separator, end)
            )
        # The last bytes of each name as a number, for comparing short names. There is padding before the first.
        self._name = windows(data, _WORD)[separator - _WORD].view(np.uint64)
        self._name_size, self._separator, self._end = name_size, separator, end
        self._string_ends = len(_PADDING) + np.cumsum(self._sizes + 1)

    def _records_of(self, ends: Integers) -> Integers:
        """The records of pairs that end at these positions."""
        assert self._string_ends is not None
        return np.searchsorted(self._string_ends, ends)

    def find(self, name: str) -> tuple[Integers, Integers, Integers]:
        """Records that have the property, ascending, and the start and end of its value; the last one if it is
        repeated."""
        encoded = name.encode()
        if self._common_places() is not None:
            return self._find_common(encoded)
        self._split()
        size = len(encoded)
        kept = min(size, _WORD)
        mask = np.uint64(int.from_bytes(bytes(_WORD - kept) + b"\xff" * kept, sys.byteorder))
        word = np.uint64(int.from_bytes(encoded[-_WORD:].rjust(_WORD, b"\0"), sys.byteorder))
        rows = (((self._name & mask) == word) & (self._name_size == size)).nonzero()[0]
        if size > _WORD:
            whole = windows(self._data, size)[self._separator[rows] - size].view(np.uint8).reshape(-1, size)
            rows = rows[(whole == np.frombuffer(encoded, np.uint8)).all(axis=1)]
        ends = self._end[rows]
        record = self._records_of(ends)
        again = record[1:] == record[:-1]
        if np.count_nonzero(again):
            last = np.append(~again, True)
            rows, record, ends = rows[last], record[last], ends[last]
        return record, self._separator[rows] + 1, ends

    def string_starts(self, record: Integers) -> Integers:
        """The positions in the text at which the property strings of these records begin."""
        return (len(_PADDING) + np.cumsum(self._sizes + 1) - self._sizes)[record]

    def all(self) -> tuple[Integers, Integers, Integers, Integers, Integers]:
        """Record, start and end of the name, start and end of the value, for every pair in stored order."""
        self._split()
        separator, end = self._separator, self._end
        return self._records_of(end), separator - self._name_size, separator, separator + 1, end

    def _find_common(self, name: bytes) -> tuple[Integers, Integers, Integers]:
        assert self._common is not None
        place = self._common.get(name)
        if place is None:
            none = np.zeros(0, np.int64)
            return none, none, none
        count, step = len(self._sizes), int(self._sizes[0]) + 1
        record = np.arange(count)
        first = record * step + len(_PADDING) + len(_CLOSE)
        return record, first + place[0], first + place[1]

    def value_of_all(self, name: str) -> bytes | None:
        """The value of a property that all strings have at the same position with the same value; else None."""
        place = (self._common_places() or {}).get(name.encode())
        if place is None:
            return None
        begin, end = (len(_PADDING) + len(_CLOSE) + position for position in place)
        alike = are_alike(self.text, begin, end - begin, int(self._sizes[0]) + 1, len(self._sizes))
        return self.text[begin:end] if alike else None

    def _common_places(self) -> dict[bytes, tuple[int, int]] | None:
        """The position of each property's value, if all strings have the same names at the same positions."""
        if not self._one_size_unsplit:
            return self._common
        self._one_size_unsplit = False
        begin = len(_PADDING) + len(_CLOSE)
        width, count = int(self._sizes[0]) + 1, len(self._sizes)
        places: dict[bytes, tuple[int, int]] = {}
        position = begin
        separators = 0
        for pair in self.text[begin : begin + width].split(_CLOSE)[:-1]:
            name, separator, value = pair.partition(_ASSIGN)
            end = position + len(pair)
            value_start = end - len(value)
            # The name, with the separators on both sides of it.
            if _ASSIGN in value or not are_alike(self.text, position - 1, value_start - position + 1, width, count):
                return None
            if name and value:
                places[name] = (value_start - begin, end - begin)
            separators += 1 + len(separator)
            position = end + 1
        # No value may contain another separator. (Bytes below it are no separators, but rare; the general method then
        # applies.)
        if np.count_nonzero(self._data[begin:] <= _PROPERTY_SEPARATOR) != separators * count:
            return None
        self._common = places
        return places

    def first_malformed(self) -> int | None:
        """The number of the first string that is not a sequence of `name 0x01 value 0x02` with non-empty names and
        values, or contains another control character or invalid UTF-8."""
        text = self.text
        data = self._data[len(_PADDING) + len(_CLOSE) :]  # each string followed by a property separator
        string_ends = np.cumsum(self._sizes + 1)
        if text.isascii() and self._common_places() is not None:
            # All are like the first, except for the bytes of the values, which contain no separators.
            first = text[len(_PADDING) + len(_CLOSE) :][: int(self._sizes[0])]
            pairs = first.split(_CLOSE)
            if pairs[-1] == b"" and all(all(pair.partition(_ASSIGN)) for pair in pairs[:-1]):
                separators = (2 * len(pairs) - 1) * len(self._sizes)
                if np.count_nonzero(data - np.uint8(0x20) > 0x7E - 0x20) == separators:  # below 0x20 wraps around
                    return None
        places = (data < 0x20).nonzero()[0]
        values = data[places]
        is_close = values == _PROPERTY_SEPARATOR
        after_name = np.empty(len(places), np.bool_)  # whether a name separator comes before
        after_name[0] = False
        after_name[1:] = ~is_close[:-1]
        gap = np.diff(places, prepend=-1)
        ok = (values == np.where(after_name, _PROPERTY_SEPARATOR, _NAME_SEPARATOR)) & (gap > 1)
        # The separator after each string follows the one that closes its last property.
        following = np.searchsorted(places, string_ends - 1)
        ok[following] = ~after_name[following] & (gap[following] == 1)
        found: list[int] = []
        if not all_true(ok):
            found.append(int(np.searchsorted(string_ends, places[int(ok.argmin())], side="right")))
        if np.count_nonzero(data >= 0x7F):
            found += self._first_odd_character(data, string_ends)
        return min(found) if found else None

    @staticmethod
    def _first_odd_character(data: Bytes, string_ends: Integers) -> list[int]:
        """The number of the first string with U+007F to U+009F or invalid UTF-8, if there is one."""
        odd = data == 0x7F
        odd[:-1] |= (data[:-1] == 0xC2) & (data[1:] < 0xA0) & (data[1:] >= 0x80)
        position = int(odd.argmax()) if np.count_nonzero(odd) else len(data)
        try:
            data.tobytes().decode()
        except UnicodeDecodeError as error:
            position = min(position, error.start)
        return [int(np.searchsorted(string_ends, position, side="right"))] if position < len(data) else []

    def first_with_any(self, names: frozenset[str]) -> tuple[int, str] | None:
        """The number of the first string that has one of these properties, and which one; if it has several, the
        first."""
        if (common := self._common_places()) is not None:
            there = sorted(names & {name.decode("utf-8", "replace") for name in common})
            return (0, there[0]) if there else None
        self._split()
        words, sizes = _tails_of(names)
        # Few names pass this check, and `find` checks them exactly.
        likely = np.isin(self._name_size, sizes)
        likely[likely] = np.isin(self._name[likely] & _SUFFIX, words)
        if not np.count_nonzero(likely):
            return None
        starts = self._separator[likely] - self._name_size[likely]
        ends = self._separator[likely]
        record = self._records_of(self._end[likely])
        for row, begin, end in zip(record.tolist(), starts.tolist(), ends.tolist(), strict=True):
            name = self.text[begin:end].decode("utf-8", "replace")
            if name in names:
                return row, name
        return None

    def common_names(self) -> Collection[bytes] | None:
        """The names of the properties, if all strings have the same names at the same places."""
        return self._common_places()

    def counts(self) -> Integers:
        """How many properties each string has."""
        if (common := self._common_places()) is not None:
            return np.full(len(self._sizes), len(common))
        self._split()
        return np.bincount(self._records_of(self._end), minlength=len(self._sizes))

    def tokens(self, record: Integers, start: Integers, end: Integers) -> tuple[Integers, Integers, Integers]:
        """The non-empty parts of the given values between single spaces."""
        if not len(record):
            return record, start, end
        spaces = np.flatnonzero(self._data == ord(property_codec.KEY_SEPARATOR))
        value = np.searchsorted(start, spaces, "right") - 1
        spaces = spaces[(value >= 0) & (spaces < end[value])]
        token_end = np.sort(np.concatenate((spaces, end)))
        value = np.searchsorted(end, token_end)
        token_start = np.concatenate((start[:1], token_end[:-1] + 1))
        first_of_value = np.append(True, value[1:] != value[:-1])
        token_start[first_of_value] = start[value[first_of_value]]
        taken = token_end > token_start
        return record[value[taken]], token_start[taken], token_end[taken]

    def java_hashes(
        self, start: Integers, end: Integers, topics: tuple[str, ...] = (), topic_index: Integers | None = None
    ) -> npt.NDArray[np.uint32]:
        """Java's hash of each value, or of `topic#value`, unsigned.

        The hash of `topic#` followed by a value of n units is hash(topic#) * 31**n + hash(value): topics are hashed
        once. With right-aligned values, a unit's weight depends on its column alone, whatever the value's length.
        """
        size = end - start
        hashes = np.zeros(len(start), np.uint32)
        by_scalar: list[int] = []
        for width, rows in _by_width(size):
            if not width:
                by_scalar += rows.tolist()
                continue
            units = windows(self._data, width)[end[rows] - width].view(np.uint8).reshape(-1, width)
            if width == _HASH_WIDTHS[0] and _is_one_value(units, size[rows]):
                one = units[0, width - int(size[rows[0]]) :].tobytes()
                if one.isascii():
                    hashes[rows] = property_codec.java_hash(one.decode()) & 0xFFFFFFFF
                    continue
            sizes = size[rows].astype(np.uint8)
            if np.count_nonzero(sizes != width):
                units *= _COLUMNS[width] <= sizes[:, None]
            hashes[rows] = np.einsum("ij,j->i", units.astype(np.uint32), _WEIGHTS[width])
            words = units.view(np.uint64)
            if bool(np.bitwise_or.reduce(words, axis=None) & _NOT_ASCII):
                by_scalar += rows[((words & _NOT_ASCII) != 0).any(axis=1)].tolist()
        if topic_index is not None:
            powers = _POWERS_OF_31[np.minimum(size, _HASH_WIDTH_MAX)]
            prefix = np.array([property_codec.topic_prefix_hash(topic) for topic in topics], np.uint32)
            hashes += (prefix[0] if len(prefix) == 1 else prefix[topic_index]) * powers
        for row in by_scalar:
            value = self.text[int(start[row]) : int(end[row])].decode("utf-8", "replace")
            if topic_index is not None:
                value = f"{topics[int(topic_index[row])]}#{value}"
            hashes[row] = property_codec.java_hash(value) & 0xFFFFFFFF
        return hashes


@lru_cache(maxsize=16)
def _tails_of(names: frozenset[str]) -> tuple[npt.NDArray[np.uint64], Integers]:
    """The last three bytes of each name, as numbers for comparison, and the sizes of the names."""
    encoded = [name.encode() for name in names]
    words = [int.from_bytes(name[-_WORD:].rjust(_WORD, b"\0"), sys.byteorder) for name in encoded]
    return np.unique(np.array(words, np.uint64) & _SUFFIX), np.unique([len(name) for name in encoded])


def _is_one_value(units: Bytes, size: Integers) -> bool:
    """Whether all right-aligned values are equal, as tags of one producer often are."""
    return bool(
        units[0, -1] == units[-1, -1]
        and all_true(size == size[0])
        and all_true((units[:, -int(size[0]) :] == units[0, -int(size[0]) :]).reshape(-1))
    )


def _by_width(size: Integers) -> list[tuple[int, Integers]]:
    """The rows whose values fit into each width but no smaller one; width 0 for those that fit into none."""
    if not len(size):
        return []
    low, high = int(size.min()), int(size.max())
    found = []
    width_min = 0
    for width in (*_HASH_WIDTHS, 0):
        if high > width_min and (not width or low <= width):
            fits = size > width_min
            if width:
                fits &= size <= width
            found.append((width, fits.nonzero()[0]))
        width_min = width
    return found
