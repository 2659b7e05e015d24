"""The passes over the bytes of records that numba compiles to machine code: find, check, copy.

Each is a loop over records, without Python and without its lock. `passes.py` imports this module, in tasks alone:
numba takes 0.4 seconds and 60 MB. The first process of a machine compiles for some seconds and keeps the result in
`__pycache__`, or in the user's cache if that is read-only; NUMBA_CACHE_DIR names another directory. The result depends
on this file alone: the positions of record.py, which it contains, are those of a format that does not change.

Numba does not check bounds. Therefore every position that is computed from the bytes is compared with the end of its
record, and the record's with the end of the data, before anything is read there; `NUMBA_BOUNDSCHECK=1` checks this.
Each length is read once, and whoever reads a range later uses the same number: another process may write the bytes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from llvmlite import binding
from numba import types
from zlib_ng import zlib_ng

from aerobee_store.records.properties import NAME_SEPARATOR, PROPERTY_SEPARATOR
from aerobee_store.records.record import (
    BLANK_SIZE_MIN,
    BODY_CRC_MASK,
    BODY_CRC_POSITION,
    FIXED_SIZE,
    HOST_V6_EXTRA,
    MAGIC_POSITION,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_NAME,
    PROPERTY_CRC_SIZE,
    QUEUE_OFFSET_POSITION,
    RECORD_SIZE_MIN,
    STORE_TIMESTAMP_POSITION,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_POSITION,
    SYS_FLAG_STORE_HOST_V6,
    TOPIC_SIZE_MAX_V1,
)

assert sys.byteorder == "little", "numbers are read by swapping their bytes"

# The rows of the table that `find` fills, one column for each record.
(
    START,
    SIZE,
    QUEUE_ID,
    QUEUE_OFFSET,
    PHYSICAL_OFFSET,
    SYS_FLAG,
    STORE_TIMESTAMP,
    BODY_START,
    BODY_SIZE,
    TOPIC_START,
    TOPIC_SIZE,
    TOPIC,
    PROPERTIES_START,
    PROPERTIES_SIZE,
    HAS_CRC,
    FIELDS,
) = range(16)
ANY_OFFSET: Final = -1
"""Instead of the physical offset of the data's first byte: records may be anywhere."""

_QUEUE_ID_POSITION: Final = BODY_CRC_POSITION + 4
_PHYSICAL_OFFSET_POSITION: Final = QUEUE_OFFSET_POSITION + 8
_CRC_NAME: Final = int.from_bytes(PROPERTY_CRC_NAME[:8], "little")
_CRC_SEPARATOR: Final = PROPERTY_CRC_NAME[8]
_CRC_DIGITS: Final = 10
_NAME_SEPARATOR: Final = ord(NAME_SEPARATOR)
_PROPERTY_SEPARATOR: Final = ord(PROPERTY_SEPARATOR)
_TOPIC_SLOTS: Final = 1024
SEED: Final = int.from_bytes(os.urandom(8), "little")
"""Of the hashes of topics in this process, so that no sender can choose topics whose hashes are the same."""

assert len(PROPERTY_CRC_NAME) + _CRC_DIGITS + 1 == PROPERTY_CRC_SIZE
assert BLANK_SIZE_MIN <= RECORD_SIZE_MIN


def _crc32_address() -> int:
    """The C function behind zlib-ng's `crc32`, or behind that of Python's zlib, which has the same parameters."""
    for module, name in ((zlib_ng, "zng_crc32"), (zlib, "crc32")):
        try:
            function = getattr(ctypes.CDLL(getattr(module, "__file__", None)), name)
        except (AttributeError, OSError):
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address:
            return address
    raise ImportError("neither zlib_ng nor zlib exports its function crc32")


binding.add_symbol("aerobee_crc32", _crc32_address())
_crc32: Final = types.ExternalFunction("aerobee_crc32", types.uint64(types.uint64, types.uintp, types.uint32))
_memmove: Final = types.ExternalFunction("memmove", types.uintp(types.uintp, types.uintp, types.uintp))

# The data as bytes, and as numbers that begin at every byte.
_BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
_WORDS_16: Final = types.Array(types.uint16, 1, "A", readonly=True, aligned=False)
_WORDS_32: Final = types.Array(types.uint32, 1, "A", readonly=True, aligned=False)
_WORDS_64: Final = types.Array(types.uint64, 1, "A", readonly=True, aligned=False)
_NUMBERS: Final = types.Array(types.int64, 1, "A", readonly=True)


def _compiled(signature: Any) -> Callable[[Any], Any]:
    """Compile for these types at once, or load what another process has compiled."""

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(signature, cache=True, nogil=True)(function)
        except (OSError, RuntimeError):  # no directory can be written, or it is full
            return numba.njit(signature, nogil=True)(function)

    return decorate


@numba.njit(inline="always")
def _i16(words: Any, position: int) -> Any:
    value = np.uint16(words[position])
    return np.int64(np.int16((value << 8) | (value >> 8)))


@numba.njit(inline="always")
def _i32(words: Any, position: int) -> Any:
    value = np.uint32(words[position])
    return np.int64(
        np.int32(np.uint32((value << 24) | ((value & 0xFF00) << 8) | ((value >> 8) & 0xFF00) | (value >> 24)))
    )


@numba.njit(inline="always")
def _i64(words: Any, position: int) -> Any:
    value = np.uint64(words[position])
    b8, b16, b32 = np.uint64(8), np.uint64(16), np.uint64(32)
    low, low16 = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    value = ((value & low) << b8) | ((value >> b8) & low)
    value = ((value & low16) << b16) | ((value >> b16) & low16)
    return np.int64((value << b32) | (value >> b32))


@numba.njit(inline="always")
def _ends_in_crc(data: Any, words_64: Any, tail: int) -> Any:
    name_end = tail + PROPERTY_CRC_SIZE - _CRC_DIGITS - 2
    return (
        words_64[tail] == np.uint64(_CRC_NAME)
        and data[name_end] == _CRC_SEPARATOR
        and data[tail + PROPERTY_CRC_SIZE - 1] == _PROPERTY_SEPARATOR
    )


@numba.njit(inline="always")
def _crc_differs(data: Any, crc: int, position: int) -> Any:
    """Whether the ten digits at a position, the least significant first, are not those of a checksum."""
    for index in range(position, position + _CRC_DIGITS):
        if data[index] != 48 + crc % 10:
            return True
        crc //= 10
    return False


@numba.njit(inline="always")
def _same_topic(data: Any, table: Any, record: int, start: int, size: int) -> Any:
    """Whether the topic of a record found before has these bytes."""
    if table[TOPIC_SIZE, record] != size:
        return False
    other = table[TOPIC_START, record]
    for index in range(size):  # noqa: SIM110 - numba compiles no generator in `all`
        if data[other + index] != data[start + index]:
            return False
    return True


@_compiled(
    types.Tuple((types.int64, types.int64, types.int64))(
        *(_BYTES, _WORDS_16, _WORDS_32, _WORDS_64),
        *(
            types.int64,
            types.int64,
            types.int64,
            types.int64,
            types.boolean,
            types.boolean,
            types.boolean,
            types.uint64,
        ),
        types.int64[:, ::1],
        types.int64[::1],
    )
)
def find(
    data: Any,
    words_16: Any,
    words_32: Any,
    words_64: Any,
    start: int,
    end: int,
    size_max: int,
    base_physical_offset: int,
    placed: bool,
    require_crc: bool,
    check_crc: bool,
    seed: int,
    table: Any,
    topics: Any,
) -> Any:
    """The valid records from `start` on, until the table is full: what `record.peek` checks, in its order.

    Returns the number of records, the position after the last one, and the number of topics. `topics`: the first
    record of each topic.
    """
    slots = np.full(_TOPIC_SLOTS, -1, np.int64)
    next_topic = np.empty(len(topics), np.int64)
    address = data.ctypes.data
    topic_count = 0
    last_topic = -1
    count = 0
    position = start
    while count < table.shape[1]:
        left = end - position
        if left < RECORD_SIZE_MIN:
            break
        size = _i32(words_32, position)
        if size < RECORD_SIZE_MIN or size > size_max or size > left:
            break
        magic = _i32(words_32, position + MAGIC_POSITION) & 0xFFFFFFFF
        if magic == MAGIC_V1:
            version = 1
        elif magic == MAGIC_V2:
            version = 2
        else:
            break
        sys_flag = _i32(words_32, position + SYS_FLAG_POSITION)
        born_extra = HOST_V6_EXTRA if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0
        store_extra = HOST_V6_EXTRA if sys_flag & SYS_FLAG_STORE_HOST_V6 else 0
        record_end = position + size
        body_start = position + FIXED_SIZE + born_extra + store_extra
        if body_start + version + 2 > record_end:
            break
        body_size = _i32(words_32, body_start - 4)
        topic_start = body_start + body_size + version
        if body_size < 0 or topic_start + 2 > record_end:
            break
        if version == 1:
            topic_size = np.int64(data[topic_start - 1])
            if topic_size > TOPIC_SIZE_MAX_V1:
                break
        else:
            topic_size = _i16(words_16, topic_start - 2)
        properties_start = topic_start + topic_size + 2
        if topic_size < 1 or properties_start > record_end:
            break
        properties_size = _i16(words_16, properties_start - 2)
        if properties_size < 0 or properties_start + properties_size != record_end:
            break
        queue_id = _i32(words_32, position + _QUEUE_ID_POSITION)
        queue_offset = _i64(words_64, position + QUEUE_OFFSET_POSITION)
        physical_offset = _i64(words_64, position + _PHYSICAL_OFFSET_POSITION)
        if queue_id < 0:
            break
        if placed:
            if queue_offset < 0:
                break
            if base_physical_offset == ANY_OFFSET:
                if physical_offset < 0:
                    break
            elif physical_offset != base_physical_offset + position:
                break
        tail = record_end - PROPERTY_CRC_SIZE
        has_crc = properties_size >= PROPERTY_CRC_SIZE and _ends_in_crc(data, words_64, tail)
        last = record_end - 1 if properties_size else properties_start - 3
        if not has_crc and (require_crc or data[last] == 0):
            break
        if check_crc:
            if has_crc and placed:
                crc = _crc32(np.uint64(0), np.uintp(address + position), np.uint32(tail - position))
                if _crc_differs(data, np.int64(crc & BODY_CRC_MASK), record_end - _CRC_DIGITS - 1):
                    break
            else:
                crc = _crc32(np.uint64(0), np.uintp(address + body_start), np.uint32(body_size))
                if np.int64(crc & BODY_CRC_MASK) != _i32(words_32, position + BODY_CRC_POSITION) & 0xFFFFFFFF:
                    break
        if last_topic < 0 or not _same_topic(data, table, topics[last_topic], topic_start, topic_size):
            hashed = np.uint64(seed)
            for index in range(topic_start, topic_start + topic_size):
                hashed = (hashed ^ np.uint64(data[index])) * np.uint64(0x100000001B3)
            slot = np.int64((hashed >> np.uint64(32)) % np.uint64(_TOPIC_SLOTS))
            last_topic = slots[slot]
            while last_topic >= 0 and not _same_topic(data, table, topics[last_topic], topic_start, topic_size):
                last_topic = next_topic[last_topic]
            if last_topic < 0:
                last_topic = topic_count
                topics[last_topic] = count
                next_topic[last_topic] = slots[slot]
                slots[slot] = last_topic
                topic_count += 1
        table[START, count] = position
        table[SIZE, count] = size
        table[QUEUE_ID, count] = queue_id
        table[QUEUE_OFFSET, count] = queue_offset
        table[PHYSICAL_OFFSET, count] = physical_offset
        table[SYS_FLAG, count] = sys_flag
        table[STORE_TIMESTAMP, count] = _i64(words_64, position + STORE_TIMESTAMP_POSITION + born_extra)
        table[BODY_START, count] = body_start
        table[BODY_SIZE, count] = body_size
        table[TOPIC_START, count] = topic_start
        table[TOPIC_SIZE, count] = topic_size
        table[TOPIC, count] = last_topic
        table[PROPERTIES_START, count] = properties_start
        table[PROPERTIES_SIZE, count] = properties_size
        table[HAS_CRC, count] = has_crc
        count += 1
        position = record_end
    return count, position, topic_count


@_compiled(
    types.void(
        *(_BYTES, _NUMBERS, _NUMBERS),
        *(types.uint8[::1], types.int64[::1]),
        *(types.int64[:, ::1], types.int64[:, ::1]),
    )
)
def find_properties(
    data: Any, start: Any, size: Any, names: Any, name_ends: Any, value_start: Any, value_size: Any
) -> None:
    """The values of some properties in the property strings at these positions, a row for each name.

    `names`: one after another, with the end of each. The size of a value that is not there is -1. As for any reader,
    the first separator ends a name, empty values are none, and of repeated ones the last counts.
    """
    for record in range(len(start)):
        for number in range(len(name_ends)):
            value_size[number, record] = -1
        position = start[record]
        end = position + size[record]
        while position < end:
            separator = -1
            close = position
            while close < end:
                byte = data[close]
                if byte == _PROPERTY_SEPARATOR:
                    break
                if byte == _NAME_SEPARATOR and separator < 0:
                    separator = close
                close += 1
            if separator > position and close - separator > 1:
                name_size = separator - position
                begin = 0
                for number in range(len(name_ends)):
                    if name_ends[number] - begin == name_size:
                        same = True
                        for index in range(name_size):
                            if names[begin + index] != data[position + index]:
                                same = False
                                break
                        if same:
                            value_start[number, record] = separator + 1
                            value_size[number, record] = close - separator - 1
                    begin = name_ends[number]
            position = close + 1


@_compiled(types.int64(_BYTES, _NUMBERS, _NUMBERS, types.int32[::1], types.uint8[::1]))
def copy(data: Any, start: Any, size: Any, offsets: Any, out: Any) -> int:
    """Copy ranges of the data, one after another; a negative size is that of an empty one. `offsets` receives where
    each begins, and the end.

    Returns the number of ranges; a smaller one if that range is outside of the data, or does not fit.
    """
    source, target = data.ctypes.data, out.ctypes.data
    written = 0
    offsets[0] = 0
    for number in range(len(start)):
        length = size[number]
        if length > 0:
            if start[number] < 0 or length > len(data) - start[number] or length > len(out) - written:
                return number
            _memmove(np.uintp(target + written), np.uintp(source + start[number]), np.uintp(length))
            written += length
        offsets[number + 1] = written
    return len(start)
