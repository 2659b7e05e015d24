"""Finds the positions of the fields of many records, and the first bad record, for record_batch.py.

Only two steps work record by record. The end of a record is known only from its size, so the starts are found by
following the sizes; and each call of CRC-32 takes one contiguous range of bytes. Everything else uses a view of the
buffer whose items begin at every byte (stride 1). Indexing the view by an array of positions gathers one big-endian
field of all records; assigning scatters it.

Records of one size, which one producer often sends, need no such chain, and one call of `struct` cuts them into ranges.
If all their lengths equal those of the first record, the scalar check of the first is sufficient for all.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from aerobee_store.records import record as record_codec
from aerobee_store.records.record import ReadableBuffer, ScanStop

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Source = tuple[ReadableBuffer, int]
"""The best object to slice in place of a buffer, and the position of its start in the buffer."""
FoundRecords = tuple[Integers, Integers, int, dict[str, Any]]
"""The starts and sizes of valid records, the position after the last one, and their other columns."""
Finder = Callable[[memoryview, int, int, int | None, bool, bool, bool, int, int | None], FoundRecords]
"""Finds the valid records of a buffer from a start on: the buffer, start and end, and of `RecordBatch.parse` the
parameters base_physical_offset, placed, require_property_crc, check_crc, record_size_max and count_max."""

# The fixed part of a record; the fields after `born_host` are valid only if both hosts are IPv4.
HEAD: Final = np.dtype(
    [
        ("total_size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "V8"),
        ("store_timestamp", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_size", ">i4"),
    ]
)
# The ten digits of a record checksum, as numbers that are only compared.
_DIGITS: Final = np.dtype([("low", "u4"), ("middle", "u4"), ("high", "u2")])
PACKED_DIGITS: Final = np.dtype(f"V{_DIGITS.itemsize}")
# The record checksum, at its fixed position before the record's end.
_TAIL: Final = np.dtype([("name", ">u8"), ("separator", "u1"), ("digits", _DIGITS), ("close", "u1")])
I64: Final = np.dtype(">i8")
_I64_NATIVE: Final = np.dtype(np.int64)
_BOOLEAN: Final = np.dtype(np.bool_)
_I32: Final = np.dtype(">i4")
_I16: Final = np.dtype(">i2")
_HOSTS_V6: Final = record_codec.SYS_FLAG_BORN_HOST_V6 | record_codec.SYS_FLAG_STORE_HOST_V6
_CRC_NAME: Final = int.from_bytes(record_codec.PROPERTY_CRC_NAME[:8], "big")

assert array("I").itemsize == 4, "checksums are passed to numpy as an array of this type"
assert HEAD.itemsize == record_codec.FIXED_SIZE, "the table in record.py and this dtype must agree"
assert _TAIL.itemsize == record_codec.PROPERTY_CRC_SIZE

# The digits of 0..9999, the least significant first, by number; with them ten digits take three look-ups.
_DIGITS_OF: Final = (
    (np.arange(10_000)[:, None] // np.array([1, 10, 100, 1000]) % 10 + ord("0")).astype(np.uint8).view(np.uint32)[:, 0]
)
_TWO_DIGITS_OF: Final = _DIGITS_OF.view(np.uint16)[:200:2].copy()
# From this many records of one size on, searching for more of them at once is faster than following the sizes.
_RUN_MIN: Final = 4
# Checksums computed after one call of `struct`: bounds the bytes it copies and the number of layouts.
_STRETCHES_MAX: Final = 512
# Longer ranges are checked without a copy: making a view costs less than copying this many bytes (measured).
_COPIED_SIZE_MAX: Final = 2048


def items(buffer: memoryview, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The buffer as overlapping numbers that begin at every byte; empty if it is too small for one."""
    return np.ndarray((max(len(buffer) - dtype.itemsize + 1, 0),), dtype, buffer, strides=(1,))


def heads_at(view: memoryview, start: Integers) -> npt.NDArray[np.void]:
    """The fixed parts of the records at these starts, as a structured array: `total_size`, `magic`, `queue_offset`,
    `physical_offset` and others. Every record is at least that long.
    """
    return windows(view, HEAD.itemsize)[start].view(HEAD)


def find_starts(
    view: memoryview,
    start: int,
    end: int,
    size_max: int,
    count_max: int | None,
    size_min: int = record_codec.RECORD_SIZE_MIN,
) -> tuple[Integers, Integers, int, int]:
    """Follow the sizes. Returns possible starts of records, their sizes, their common size or 0, the chain's end.

    `size_min`: the smallest size of anything that begins with its size, such as a blank.
    """
    size_at = struct.Struct(">i").unpack_from
    position = start
    last = end - size_min
    left = end if count_max is None else count_max  # there are fewer records than bytes
    run = stride = 0
    if position <= last:
        (stride,) = size_at(view, position)
        run = min((end - position) // stride, left) if size_min <= stride <= size_max else 0
        if run >= _RUN_MIN and size_at(view, position + stride)[0] == stride:
            run = _first_false(np.ndarray((run,), _I32, view, position, (stride,)) == stride)
            position += run * stride
            left -= run
        else:
            run = 0
    positions: list[int] = []
    append = positions.append
    for _ in repeat(None, left):  # faster than counting
        if position > last:
            break
        (size,) = size_at(view, position)
        if size < size_min or size > size_max:
            break
        append(position)
        position += size
    if position > end:
        position = positions.pop()  # the record ends after the available bytes
    uniform = np.arange(start, start + run * stride, stride or 1, dtype=np.int64)
    if run and not positions:
        return uniform, constant(stride, run), stride, position
    starts = np.array(positions, np.int64)
    if run:
        starts = np.concatenate((uniform, starts))
    return starts, np.diff(starts, append=position), 0, position


def starts_by_sizes(
    view: memoryview, start: int, end: int, size_max: int, count_max: int | None, sizes: Integers
) -> tuple[Integers, Integers, int, int] | None:
    """Like `find_starts`, for records of presumed sizes; None if a size is wrong, or a record is incomplete."""
    if not len(sizes) or (count_max is not None and len(sizes) > count_max):
        return None
    ends = start + np.cumsum(sizes)
    starts = ends - sizes
    position = int(ends[-1])
    if position > end or int(sizes.min()) < record_codec.RECORD_SIZE_MIN or int(sizes.max()) > size_max:
        return None
    if not all_true(items(view, _I32)[starts] == sizes):
        return None
    if end - position >= record_codec.RECORD_SIZE_MIN and (count_max is None or len(sizes) < count_max):
        return None  # more may follow
    stride = int(sizes[0])
    return starts, sizes, stride if all_true(sizes == stride) else 0, position


def columns_of(
    view: memoryview,
    start: Integers,
    size: Integers,
    stride: int,
    base_physical_offset: int | None,
    placed: bool,
    require_property_crc: bool,
    check_crc: bool,
    source: Source | None,
) -> dict[str, Any] | int:
    """All other columns; or the number of a bad record, if there is one. An earlier record may be bad too.

    `stride`: the common size of all records, else 0.
    """
    count = len(start)
    head, layout = _head_and_layout(view, start, size, stride)
    if isinstance(layout, int):
        return layout
    end = start + size
    queue_id = head["queue_id"].astype(np.int64)
    queue_offset = head["queue_offset"].astype(np.int64)
    physical_offset = head["physical_offset"].astype(np.int64)
    ok = queue_id >= 0
    if placed:
        ok &= queue_offset >= 0
        ok &= physical_offset >= 0 if base_physical_offset is None else physical_offset == base_physical_offset + start
    has_property_crc = layout.has_property_crc
    if not all_true(has_property_crc):
        last = np.where(layout.properties_size != 0, end - 1, layout.properties_start - 3)
        ok &= has_property_crc | (np.frombuffer(view, np.uint8)[last] != 0)
        if require_property_crc:
            ok &= has_property_crc
    if (bad := _first_false(ok)) < count:
        return bad
    if check_crc and (bad := _first_bad_crc(view, start, end, head, layout, placed, source)) < count:
        return bad
    topics, topic_index = layout.topics, layout.topic_index
    if topic_index is None:
        topics, topic_index = _topics(view, layout.topic_start, layout.topic_size)
        if len(topic_index) < count:
            return len(topic_index)
    return {
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "physical_offset": physical_offset,
        "sys_flag": layout.sys_flag,
        "store_timestamp": layout.store_timestamp,
        "body_start": layout.body_start,
        "body_size": layout.body_size,
        "properties_start": layout.properties_start,
        "properties_size": layout.properties_size,
        "has_property_crc": has_property_crc,
        "topics": topics,
        "topic_index": topic_index,
        "_head": head,
        "_same_layout": layout.topic_index is not None,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """The positions of the parts of records, all within the record. `topic_index` is None if topics differ."""

    sys_flag: Integers
    store_timestamp: Integers
    body_start: Integers
    body_size: Integers
    topic_start: Integers
    topic_size: Integers
    properties_start: Integers
    properties_size: Integers
    tail: npt.NDArray[np.void]
    has_property_crc: Booleans
    topics: tuple[str, ...] = ()
    topic_index: Integers | None = None


def _head_and_layout(
    view: memoryview, start: Integers, size: Integers, stride: int
) -> tuple[npt.NDArray[np.void], _Layout | int]:
    """The fixed first fields of all records, and the positions of their parts, or the number of a bad record."""
    if stride and len(start):
        head = np.ndarray((len(start),), HEAD, view, int(start[0]), (stride,))
        layout = _first_layout(view, start, head, stride)
        if layout is not None:
            return head, layout
    else:
        head = heads_at(view, start)
    return head, _layout(view, start, size, head)


def _first_layout(view: memoryview, start: Integers, head: npt.NDArray[np.void], stride: int) -> _Layout | None:
    """The layout of the first record, if all have its layout and topic; else None. The records are contiguous."""
    position = int(start[0])
    first = record_codec.peek(view, position, position + stride, check_crc=False, placed=False)
    if isinstance(first, ScanStop):
        return None
    count = len(start)
    between_start = first.body_start + first.body_size
    alike = (
        (position + record_codec.MAGIC_POSITION, 4),
        (position + record_codec.SYS_FLAG_POSITION, 4),
        (first.body_start - 4, 4),  # the body's size
        (between_start, first.properties_start - between_start),  # topic, and the size of the properties
    )
    if not all(are_alike(view, at, width, stride, count) for at, width in alike):
        return None
    tail_start = position + stride - _TAIL.itemsize
    tail = np.ndarray((count,), _TAIL, view, tail_start, (stride,))
    if first.has_property_crc:
        name_size = len(record_codec.PROPERTY_CRC_NAME)
        if not (
            are_alike(view, tail_start, name_size, stride, count)
            and are_alike(view, position + stride - 1, 1, stride, count)
        ):
            return None
    elif first.properties_size >= _TAIL.itemsize and np.count_nonzero(tail["name"] == _CRC_NAME):
        return None  # another record may have a checksum
    born_extra = record_codec.HOST_V6_EXTRA if first.sys_flag & record_codec.SYS_FLAG_BORN_HOST_V6 else 0
    times = _column(view, position + record_codec.STORE_TIMESTAMP_POSITION + born_extra, stride, count, I64)
    body_start = start + (first.body_start - position)
    return _Layout(
        sys_flag=constant(first.sys_flag, count),
        store_timestamp=times.astype(np.int64),
        body_start=body_start,
        body_size=constant(first.body_size, count),
        topic_start=body_start,  # not needed: the topic is known
        topic_size=body_start,
        properties_start=start + (first.properties_start - position),
        properties_size=constant(first.properties_size, count),
        tail=tail,
        has_property_crc=constant(first.has_property_crc, count, _BOOLEAN),
        topics=(first.topic,),
        topic_index=constant(0, count),
    )


def _layout(view: memoryview, start: Integers, size: Integers, head: npt.NDArray[np.void]) -> _Layout | int:
    """The layout of each record; or the number of a record whose lengths are inconsistent, like `columns_of`.

    Each length is checked against the bounds of its record before it is used, so that nothing is read outside of the
    buffer.
    """
    count = len(start)
    end = start + size
    ok, version, fixed_size, store_timestamp, body_sizes = _fixed_parts(view, start, size, head)
    if (bad := _first_false(ok)) < count:
        return bad
    body_size = body_sizes.astype(np.int64)
    body_start = start + fixed_size
    topic_start = body_start + body_size + version
    ok = (body_size >= 0) & (topic_start + 2 <= end)
    if (bad := _first_false(ok)) < count:
        return bad
    if isinstance(version, int):
        topic_size = np.frombuffer(view, np.uint8)[topic_start - 1].astype(np.int64)
        topic_size_max: Any = record_codec.TOPIC_SIZE_MAX_V1
    else:
        topic_size = items(view, _I16)[topic_start - 2].astype(np.int64)
        topic_size = np.where(version == 1, topic_size & 0xFF, topic_size)
        topic_size_max = np.where(version == 1, record_codec.TOPIC_SIZE_MAX_V1, record_codec.TOPIC_SIZE_MAX_V2)
    properties_start = topic_start + topic_size + 2
    ok = (topic_size >= 1) & (topic_size <= topic_size_max) & (properties_start <= end)
    if (bad := _first_false(ok)) < count:
        return bad
    properties_size = items(view, _I16)[properties_start - 2].astype(np.int64)
    if (bad := _first_false(properties_start + properties_size == end)) < count:
        return bad
    tail = windows(view, _TAIL.itemsize)[end - _TAIL.itemsize].view(_TAIL)
    has_property_crc = (tail["name"] == _CRC_NAME) & (tail["separator"] == 1) & (tail["close"] == 2)
    has_property_crc &= properties_size >= _TAIL.itemsize
    return _Layout(
        head["sys_flag"].astype(np.int64),
        store_timestamp.astype(np.int64),
        body_start,
        body_size,
        topic_start,
        topic_size,
        properties_start,
        properties_size,
        tail,
        has_property_crc,
    )


def _fixed_parts(
    view: memoryview, start: Integers, size: Integers, head: npt.NDArray[np.void]
) -> tuple[Booleans, Any, Any, npt.NDArray[Any], npt.NDArray[Any]]:
    """Whether each record has its fixed part; version and size of it, one number or one for each; store timestamps, and
    sizes of bodies, as they are in the log. Of a record without it they mean nothing."""
    magic = head["magic"]
    if all_true(magic == record_codec.MAGIC_V1) and not np.count_nonzero(head["sys_flag"] & _HOSTS_V6):
        ok = constant(True, len(start), _BOOLEAN)
        return ok, 1, record_codec.FIXED_SIZE, head["store_timestamp"], head["body_size"]
    sys_flag = head["sys_flag"].astype(np.int64)
    version = np.where(magic == record_codec.MAGIC_V2, 2, 1)
    born_extra = np.where(sys_flag & record_codec.SYS_FLAG_BORN_HOST_V6, record_codec.HOST_V6_EXTRA, 0)
    store_extra = np.where(sys_flag & record_codec.SYS_FLAG_STORE_HOST_V6, record_codec.HOST_V6_EXTRA, 0)
    ok = (magic == record_codec.MAGIC_V1) | (version == 2)
    ok &= record_codec.FIXED_SIZE + born_extra + store_extra + version + 2 <= size
    fixed_size = record_codec.FIXED_SIZE + (born_extra + store_extra) * ok  # every record is as long as without extra
    time_position = start + record_codec.STORE_TIMESTAMP_POSITION + born_extra  # within any record
    return ok, version, fixed_size, items(view, I64)[time_position], items(view, _I32)[start + fixed_size - 4]


def have_topic(view: memoryview, start: Integers, size: Integers, head: npt.NDArray[np.void], topic: str) -> Booleans:
    """Whether the records with these starts, sizes and fixed parts are of this topic."""
    name = topic.encode()
    sized = bytes([len(name) & 0xFF]) + name
    is_whole, version, fixed_size, _, body_size = _fixed_parts(view, start, size, head)
    before = fixed_size + version
    name_at = body_size.astype(np.int64) + before  # from the record's start on
    ok: Booleans = is_whole & (name_at >= before) & (name_at + len(name) <= size)
    if not np.count_nonzero(ok):
        return ok
    position = np.where(ok, start + name_at, start[ok.argmax()] + name_at[ok.argmax()])
    found = windows(view, len(sized))[position - 1]
    if found.tobytes() != sized * len(found):  # takes a fraction of the time of comparing arrays
        ok &= found.view(f"S{len(sized)}") == sized
    if not isinstance(version, int):  # the size takes two bytes in version 2
        ok &= (version == 1) | (items(view, _I16)[position - 2] == len(name))
    return ok


def windows(buffer: ReadableBuffer | Bytes, width: int) -> npt.NDArray[np.void]:
    """The buffer as overlapping items of `width` bytes that begin at every byte; empty if it is too small for one.

    Gathering such items and then viewing them as structures is several times as fast as gathering structures.
    """
    return np.ndarray((max(len(buffer) - width + 1, 0),), f"V{width}", buffer, strides=(1,))


def put_items(
    buffer: memoryview, dtype: np.dtype[Any], start: Integers, position: int, stride: int, values: Any
) -> None:
    """Write an item `position` bytes after each start; there is at least one start.

    `stride`: the distance between the starts in bytes, if it is constant; else 0.
    """
    if stride:
        _column(buffer, int(start[0]) + position, stride, len(start), dtype)[:] = values
    else:
        items(buffer, dtype)[start + position] = values


def _column(buffer: memoryview, position: int, stride: int, count: int, dtype: Any) -> npt.NDArray[Any]:
    """Items that begin at `position` and every `stride` bytes after it."""
    return np.ndarray((count,), dtype, buffer, position, (stride,))


@lru_cache(maxsize=256)
def constant(value: int, count: int, dtype: np.dtype[Any] = _I64_NATIVE) -> npt.NDArray[Any]:
    """An array of one repeated value, read-only; it takes the memory of one item."""
    return np.ndarray((count,), dtype, dtype.type(value).tobytes(), 0, (0,))


def are_alike(buffer: ReadableBuffer, position: int, width: int, stride: int, count: int) -> bool:
    """Whether the `width` bytes at `position` repeat every `stride` bytes, `count` times in all.

    Comparing two strings of bytes takes a fraction of the time of comparing arrays.
    """
    found = np.ndarray((count,), _bytes_dtype(width), buffer, position, (stride,)).tobytes()
    return found == bytes(buffer[position : position + width]) * count


@lru_cache(maxsize=256)
def _bytes_dtype(width: int) -> np.dtype[np.void]:
    return np.dtype(f"V{width}")


def all_true(ok: Booleans) -> bool:
    """Equal to `ok.all()`, which takes five times as long for some hundred items."""
    return not len(ok) or bool(ok[ok.argmin()])


def _first_false(ok: Booleans) -> int:
    return len(ok) if all_true(ok) else int(ok.argmin())


# --- Checksums ----------------------------------------------------------------------------------------------


def _first_bad_crc(
    view: memoryview,
    start: Integers,
    end: Integers,
    head: npt.NDArray[np.void],
    layout: _Layout,
    placed: bool,
    source: Source | None,
) -> int:
    """The number of the first record with a wrong checksum; their count if there is none.

    A record with a record checksum is checked by it, if it applies, because it covers the body too; any other record by
    the checksum of the body.
    """
    count = len(start)
    whole_count = int(np.count_nonzero(layout.has_property_crc)) if placed else 0
    if not count:
        return 0
    stride = int(end[0] - start[0]) if layout.topic_index is not None else 0
    body_end = layout.body_start + layout.body_size
    if not whole_count:
        return _first_false(crcs_of(view, layout.body_start, body_end, source, stride) == head["body_crc"])
    tail_start = end - _TAIL.itemsize
    if whole_count == count:
        return _first_false(digits_of(crcs_of(view, start, tail_start, source, stride)) == layout.tail["digits"])
    whole = layout.has_property_crc
    crcs = crcs_of(view, np.where(whole, start, layout.body_start), np.where(whole, tail_start, body_end), source)
    return _first_false(np.where(whole, digits_of(crcs) == layout.tail["digits"], crcs == head["body_crc"]))


def crcs_of(
    view: memoryview, start: Integers, end: Integers, source: Source | None = None, stride: int = 0
) -> npt.NDArray[np.uint32]:
    """CRC-32, with the top bit cleared, of each range; at least one range, in order and without overlap.

    `stride`: the distance between the starts in bytes, if all ranges have one size; else 0.
    """
    count = len(start)
    size = int(end[0] - start[0])
    found: list[int] = []
    if not stride and count >= _RUN_MIN and all_true(end - start == size):
        step = int(start[1] - start[0])
        stride = step if all_true(start[1:] - start[:-1] == step) else 0
    if stride and size <= _COPIED_SIZE_MAX:
        position = int(start[0])
        while count:
            part = min(count, _STRETCHES_MAX)
            found += map(crc32, _stretches(size, stride - size, part).unpack_from(view, position))
            position += part * stride
            count -= part
    if not found:
        sliced, base = source or sliceable(view, int(start[0]), int(end[-1]), count)
        found = [crc32(sliced[a:b]) for a, b in zip((start - base).tolist(), (end - base).tolist(), strict=True)]
    return np.frombuffer(array("I", found), np.uint32) & np.uint32(record_codec.BODY_CRC_MASK)


@lru_cache(maxsize=64)
def _stretches(size: int, gap: int, count: int) -> struct.Struct:
    """A `struct` that cuts ranges of one size out of a buffer, with `gap` bytes between them."""
    return struct.Struct(f"{size}s" + f"{gap}x{size}s" * (count - 1))


def sliceable(view: memoryview, begin: int, end: int, count: int) -> Source:
    """The best source for `count` slices of the bytes between `begin` and `end`, and its position in the view.

    A slice of `bytes` takes half of the time of a slice of a memoryview, unless it is long.
    """
    if end - begin > _COPIED_SIZE_MAX * count:
        return view, 0
    owner = view.obj
    if isinstance(owner, bytes):
        return owner, 0 if len(owner) == len(view) else -_position_in(owner, view)
    return bytes(view[begin:end]), begin


def _position_in(owner: bytes, view: memoryview) -> int:
    """The position in `owner` at which a view of a part of it begins."""
    addresses = [np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in (view, owner)]
    position: int = addresses[0] - addresses[1]
    assert 0 <= position <= len(owner) - len(view), "the view is of this object"
    return position


def digits_of(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.void]:
    """The ten ASCII digits of each checksum, the least significant first."""
    digits = np.empty(len(crcs), _DIGITS)
    rest = crcs // np.uint32(10_000)
    high = rest // np.uint32(10_000)
    digits["low"] = _DIGITS_OF.take(crcs - rest * np.uint32(10_000))
    digits["middle"] = _DIGITS_OF.take(rest - high * np.uint32(10_000))
    digits["high"] = _TWO_DIGITS_OF.take(high)
    return digits


# --- Topics -------------------------------------------------------------------------------------------------


def _topics(view: memoryview, start: Integers, size: Integers) -> tuple[tuple[str, ...], Integers]:
    """The distinct topics, and each record's index in them, up to the first record whose topic is not UTF-8."""
    number: dict[str, int] = {}
    index = np.zeros(len(start), np.int64)
    # Topics of one size are gathered at once; there are few sizes, and a hostile buffer costs no more than a loop.
    if len(size) and all_true(size == size[0]):
        groups: list[Any] = [slice(None)]
    else:
        order = np.argsort(size, kind="stable")
        bounds = np.flatnonzero(np.diff(size[order], prepend=-1)).tolist()
        groups = [order[first:last] for first, last in pairwise([*bounds, len(order)])]
    for rows in groups:
        starts = start[rows]
        width = int(size[rows][0])
        gathered = windows(view, width)[starts].view(np.uint8).reshape(-1, width)
        # Neighbours often have one topic, and comparing is faster than decoding: only the first of a run is decoded.
        names = gathered.view(f"V{width}")[:, 0]
        changes = (names[1:] != names[:-1]).nonzero()[0] + 1
        run_names: list[bytes] = [names[0].tobytes(), *names[changes].tolist()]
        of_name = {}
        for name in set(run_names):
            try:
                of_name[name] = number.setdefault(name.decode(), len(number))
            except UnicodeDecodeError:
                of_name[name] = -1
        numbers = [of_name[name] for name in run_names]
        index[rows] = np.repeat(numbers, np.diff(changes, prepend=0, append=len(names))) if len(changes) else numbers[0]
    count = _first_false(index >= 0)
    if count < len(index):
        return _topics(view, start[:count], size[:count])
    return tuple(number), index
