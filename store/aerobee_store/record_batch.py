"""Many records at once: the layout of record.py, read and patched as numpy columns.

One by one, Python takes some ten microseconds to check and decode a record; column by column about one. So whoever
has more than a few at hand (recovery, dispatch, raw appends and reads) parses them here. The outcome is the same by
construction: columns only find *which* record is the first bad one, `record.peek` then says what is wrong with it.

Only two things go record by record. Where a record ends is known from its size alone, so finding the starts is a chain
of hops; and a CRC-32 takes one stretch of bytes per call. Everything else relies on a view of the buffer whose items
begin at every byte (stride 1): indexing it by an array of positions gathers one big-endian field of all records,
assigning scatters it.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from . import properties as property_codec
from . import record as record_codec
from .errors import InvalidMessageError
from .properties import Host
from .record import ReadableBuffer, Record, RecordHeader, ScanStop, StopReason, WritableBuffer

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

# The part of a record whose place does not depend on host widths.
_HEAD: Final = np.dtype(
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
    ]
)
# The record checksum, read by its place at the record's end.
_TAIL: Final = np.dtype([("name", ">u8"), ("separator", "u1"), ("digits", "u1", 10), ("close", "u1")])
_I64: Final = np.dtype(">i8")
_I32: Final = np.dtype(">i4")
_I16: Final = np.dtype(">i2")
_CRC_NAME: Final = int.from_bytes(record_codec.PROPERTY_CRC_NAME[:8], "big")
_POWERS_OF_10: Final = 10 ** np.arange(10, dtype=np.int64)

assert _HEAD.itemsize == 48, "the table in record.py and this dtype must agree"
assert _TAIL.itemsize == record_codec.PROPERTY_CRC_SIZE

# Values are hashed as matrices of these widths; longer ones, rare and possibly hostile, one by one.
_HASH_WIDTHS: Final = (8, 16, 32, 64)
_POWERS_OF_31: Final = np.array([pow(31, i, 1 << 32) for i in range(_HASH_WIDTHS[-1] + 1)], dtype=np.uint32)
_NOT_ASCII: Final = np.uint64(0x8080808080808080)
_PADDING: Final = bytes(_HASH_WIDTHS[-1])


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """Checked records as columns, one item a record, in the order of the buffer.

    `*_start` count in `buffer`. The batch keeps the buffer alive and reads bodies and properties from it when asked:
    whoever writes to the buffer meanwhile gets what is then there.
    """

    buffer: memoryview
    start: Integers
    size: Integers
    version: Integers
    queue_id: Integers
    flag: Integers
    queue_offset: Integers
    physical_offset: Integers
    sys_flag: Integers
    born_timestamp: Integers
    store_timestamp: Integers
    body_crc: Integers
    body_start: Integers
    body_size: Integers
    properties_start: Integers
    properties_size: Integers
    has_property_crc: Booleans
    topics: tuple[str, ...]
    """The distinct topics."""
    topic_index: Integers
    """Which of `topics` each record has."""
    stop: ScanStop
    """Why there is no further record."""
    _pairs: _Pairs | None = field(default=None, init=False, repr=False)

    @classmethod
    def parse(
        cls,
        buffer: ReadableBuffer,
        *,
        base_physical_offset: int | None,
        start: int = 0,
        end: int | None = None,
        check_crc: bool = True,
        placed: bool = True,
        require_property_crc: bool = False,
        record_size_max: int = record_codec.SIZE_MAX,
        count_max: int | None = None,
    ) -> RecordBatch:
        """Every valid record from `start` on, at most `count_max`, and why there is no further one (`stop`).

        The parameters are those of `record.scan`: `base_physical_offset` is the log's offset of the buffer's first
        byte, or None if the records are not neighbours in the log.
        """
        view = memoryview(buffer)
        if end is None or end > len(view):
            end = len(view)
        starts, position = _hop(view, start, end, record_size_max, count_max)
        columns, ok = _columns(view, starts, base_physical_offset, placed, require_property_crc)
        count = _first_false(ok)
        if check_crc:
            count = _first_bad_crc(view, columns, count, placed)
        topics, topic_index = _topics(view, columns["topic_start"][:count], columns["topic_size"][:count])
        count = len(topic_index)
        if count < len(starts):
            position = int(starts[count])
        if count == count_max:
            place_in_log = position if base_physical_offset is None else base_physical_offset + position
            stop = ScanStop(StopReason.LIMIT, position, place_in_log, 0, f"{count} records were asked for")
        else:
            found = record_codec.peek(
                view,
                position,
                end,
                physical_offset=None if base_physical_offset is None else base_physical_offset + position,
                check_crc=check_crc,
                placed=placed,
                require_property_crc=require_property_crc,
                record_size_max=record_size_max,
            )
            assert isinstance(found, ScanStop), f"columns and scalar check disagree about the record at {position}"
            stop = found
        del columns["topic_start"], columns["topic_size"]
        return cls(
            buffer=view,
            topics=topics,
            topic_index=topic_index,
            stop=stop,
            **{name: column[:count] for name, column in columns.items()},
        )

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> int:
        """Where in the buffer the last record ends; `stop.position` if there is none."""
        return int(self.start[-1] + self.size[-1]) if len(self) else self.stop.position

    def slice(self, first: int, last: int) -> RecordBatch:
        """Records [first, last), at least one, as a batch over just their bytes, which must lie without gaps."""
        begin = int(self.start[first])
        end = int(self.start[last - 1] + self.size[last - 1])
        columns: dict[str, Any] = {}
        for name in (item.name for item in dataclasses.fields(self)):
            column = getattr(self, name)
            if isinstance(column, np.ndarray):
                columns[name] = column[first:last] - begin if name.endswith("start") else column[first:last]
        return dataclasses.replace(self, buffer=self.buffer[begin:end], **columns)

    def topic(self, index: int) -> str:
        return self.topics[int(self.topic_index[index])]

    def raw(self, index: int) -> memoryview:
        """The bytes of one record, not copied."""
        start = int(self.start[index])
        return self.buffer[start : start + int(self.size[index])]

    def body(self, index: int) -> memoryview:
        """The body of one record, not copied."""
        start = int(self.body_start[index])
        return self.buffer[start : start + int(self.body_size[index])]

    def raw_properties(self, index: int) -> memoryview:
        """The property string of one record, not copied."""
        start = int(self.properties_start[index])
        return self.buffer[start : start + int(self.properties_size[index])]

    def record(self, index: int) -> Record:
        """One record decoded as `record.decode` would."""
        header = RecordHeader(
            position=int(self.start[index]),
            size=int(self.size[index]),
            physical_offset=int(self.physical_offset[index]),
            queue_id=int(self.queue_id[index]),
            queue_offset=int(self.queue_offset[index]),
            sys_flag=int(self.sys_flag[index]),
            store_timestamp=int(self.store_timestamp[index]),
            topic=self.topic(index),
            version=int(self.version[index]),
            body_start=int(self.body_start[index]),
            body_size=int(self.body_size[index]),
            properties_start=int(self.properties_start[index]),
            properties_size=int(self.properties_size[index]),
            has_property_crc=bool(self.has_property_crc[index]),
        )
        return record_codec.read(self.buffer, header)

    def property_bytes(self, name: str) -> list[bytes | None]:
        """The value of one property in every record, None where a record has none."""
        pairs = self._property_pairs()
        values: list[bytes | None] = [None] * len(self)
        record, start, end = pairs.find(name)
        for row, value_start, value_end in zip(record.tolist(), start.tolist(), end.tolist(), strict=True):
            values[row] = pairs.text[value_start:value_end]
        return values

    def property_strings(self, name: str) -> list[str | None]:
        """As `property_bytes`, decoded as `properties.decode_properties` does."""
        return [None if value is None else value.decode("utf-8", "replace") for value in self.property_bytes(name)]

    def tags_codes(self) -> Integers:
        """`properties.tags_code` of every record's TAGS; 0 without. Units of delayed messages hold a time instead."""
        pairs = self._property_pairs()
        codes = np.zeros(len(self), np.int64)
        record, start, end = pairs.find(property_codec.TAGS)
        codes[record] = _java_hashes(pairs, start, end).view(np.int32)
        return codes

    def index_hashes(self) -> tuple[Integers, Integers]:
        """What the index holds of these records: record numbers (ascending) and key hashes (`properties.index_hash`).

        In the order of insertion: of each record first UNIQ_KEY, then each token of KEYS, repeated ones as often as
        they stand there. Rolled-back messages are not indexed.
        """
        pairs = self._property_pairs()
        record, start, end = pairs.find(property_codec.UNIQ_KEY)
        token_record, token_start, token_end = _tokens(pairs, *pairs.find(property_codec.KEYS))
        record = np.concatenate((record, token_record))
        start = np.concatenate((start, token_start))
        end = np.concatenate((end, token_end))
        rolled_back = (self.sys_flag[record] & record_codec.SYS_FLAG_TRANSACTION) == record_codec.SYS_FLAG_TRANSACTION
        order = np.argsort(record, kind="stable")  # stable: UNIQ_KEY stays before the tokens of its record
        order = order[~rolled_back[order]]
        record, start, end = record[order], start[order], end[order]
        hashes = _java_hashes(pairs, start, end, self.topics, self.topic_index[record]).view(np.int32).astype(np.int64)
        hashes = np.abs(hashes)
        hashes[hashes == 1 << 31] = 0
        return record, hashes

    def _property_pairs(self) -> _Pairs:
        if self._pairs is None:
            object.__setattr__(self, "_pairs", _Pairs.split(self.buffer, self.properties_start, self.properties_size))
            assert self._pairs is not None
        return self._pairs


def place(
    batch: RecordBatch,
    buffer: WritableBuffer,
    queue_offsets: npt.ArrayLike,
    physical_offset: int,
    store_timestamp: npt.ArrayLike,
    store_host: Host | None = None,
) -> RecordBatch:
    """Write what the append knows into `buffer`, a writable copy of the batch's buffer, and return the batch of it.

    `queue_offsets`: one a record; those of prepared and rolled-back messages are replaced by 0. `physical_offset`: of
    the first record; the others follow as they lie in the buffer. `store_timestamp`: ms, one for all or one a record.
    `store_host`: replaces that of every record. Record checksums are computed where a record has one.

    Raises InvalidMessageError if `store_host` is of the other IP version than a record has room for; nothing has been
    written then.
    """
    view = memoryview(buffer)
    in_no_queue = (batch.sys_flag & record_codec.SYS_FLAG_PREPARED) != 0
    queue_offset = np.where(in_no_queue, 0, np.asarray(queue_offsets, np.int64))
    physical = physical_offset + batch.start - (batch.start[0] if len(batch) else 0)
    times = np.broadcast_to(np.asarray(store_timestamp, np.int64), (len(batch),))
    born_extra = np.where(batch.sys_flag & record_codec.SYS_FLAG_BORN_HOST_V6, record_codec.HOST_V6_EXTRA, 0)
    time_position = batch.start + record_codec.STORE_TIMESTAMP_POSITION + born_extra
    if store_host is not None:
        encoded = property_codec.encode_host(store_host)
        wide = (batch.sys_flag & record_codec.SYS_FLAG_STORE_HOST_V6) != 0
        if bool((wide != (len(encoded) != 8)).any()):
            raise InvalidMessageError(
                f"store host {store_host[0]!r} does not fit: bit 0x20 of a record's system flags says "
                f"{'IPv4' if len(encoded) != 8 else 'IPv6'}"
            )
        _items(view, np.dtype(f"V{len(encoded)}"))[time_position + 8] = np.void(encoded)
    words = _items(view, _I64)
    words[batch.start + record_codec.QUEUE_OFFSET_POSITION] = queue_offset
    words[batch.start + record_codec.QUEUE_OFFSET_POSITION + 8] = physical
    words[time_position] = times
    rows = np.flatnonzero(batch.has_property_crc)
    if len(rows):
        ends = (batch.start + batch.size)[rows] - record_codec.PROPERTY_CRC_SIZE
        crcs = np.array(
            [crc32(view[a:b]) for a, b in zip(batch.start[rows].tolist(), ends.tolist(), strict=True)], np.int64
        )
        crcs &= record_codec.BODY_CRC_MASK
        digits = ((crcs[:, None] // _POWERS_OF_10) % 10 + ord("0")).astype(np.uint8)
        _items(view, np.dtype("V10"))[ends + len(record_codec.PROPERTY_CRC_NAME)] = digits.view("V10")[:, 0]
    return dataclasses.replace(
        batch,
        buffer=view,
        queue_offset=queue_offset,
        physical_offset=physical,
        store_timestamp=times,
    )


# --- Parsing ------------------------------------------------------------------------------------------------


def _items(buffer: memoryview, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The buffer as items that begin at every byte; none if it is too small for one."""
    return np.ndarray((max(len(buffer) - dtype.itemsize + 1, 0),), dtype, buffer, strides=(1,))


def _hop(view: memoryview, start: int, end: int, size_max: int, count_max: int | None) -> tuple[Integers, int]:
    """Follow the sizes: where records may begin, and where the chain stopped."""
    positions: list[int] = []
    append = positions.append
    size_at = struct.Struct(">i").unpack_from
    size_min = record_codec.RECORD_SIZE_MIN
    position = start
    last = end - size_min
    left = end if count_max is None else count_max  # there are fewer records than bytes
    while position <= last and left > 0:
        (size,) = size_at(view, position)
        if size < size_min or size > size_max or position + size > end:
            break
        append(position)
        position += size
        left -= 1
    return np.array(positions, np.int64), position


def _columns(
    view: memoryview, start: Integers, base_physical_offset: int | None, placed: bool, require_property_crc: bool
) -> tuple[dict[str, Any], Booleans]:
    """All columns, and which records have lengths and numbers that agree.

    What a bad record says is replaced by the smallest value before it leads to a position, so that nothing is read
    outside of its bytes.
    """
    head = _items(view, _HEAD)[start]
    size = head["total_size"].astype(np.int64)
    end = start + size
    magic = head["magic"]
    sys_flag = head["sys_flag"].astype(np.int64)
    ok = (magic == record_codec.MAGIC_V1) | (magic == record_codec.MAGIC_V2)
    version = np.where(magic == record_codec.MAGIC_V2, 2, 1)
    born_extra = np.where(sys_flag & record_codec.SYS_FLAG_BORN_HOST_V6, record_codec.HOST_V6_EXTRA, 0)
    store_extra = np.where(sys_flag & record_codec.SYS_FLAG_STORE_HOST_V6, record_codec.HOST_V6_EXTRA, 0)
    fixed_size = record_codec.FIXED_SIZE + born_extra + store_extra
    ok &= fixed_size + version + 2 <= size
    version = np.where(ok, version, 1)
    body_start = start + np.where(ok, fixed_size, record_codec.FIXED_SIZE)
    born_extra = np.where(ok, born_extra, 0)

    body_size = _items(view, _I32)[body_start - 4].astype(np.int64)
    ok &= (body_size >= 0) & (body_start + body_size + version + 2 <= end)
    body_size = np.where(ok, body_size, 0)
    topic_start = body_start + body_size + version
    topic_size = _items(view, _I16)[topic_start - 2].astype(np.int64)
    topic_size = np.where(version == 1, topic_size & 0xFF, topic_size)
    topic_size_max = np.where(version == 1, record_codec.TOPIC_SIZE_MAX_V1, record_codec.TOPIC_SIZE_MAX_V2)
    ok &= (topic_size >= 1) & (topic_size <= topic_size_max) & (topic_start + topic_size + 2 <= end)
    topic_size = np.where(ok, topic_size, 0)
    properties_start = topic_start + topic_size + 2
    properties_size = _items(view, _I16)[properties_start - 2].astype(np.int64)
    ok &= properties_start + properties_size == end

    queue_id = head["queue_id"].astype(np.int64)
    queue_offset = head["queue_offset"].astype(np.int64)
    physical_offset = head["physical_offset"].astype(np.int64)
    ok &= queue_id >= 0
    if placed:
        ok &= queue_offset >= 0
        ok &= physical_offset >= 0 if base_physical_offset is None else physical_offset == base_physical_offset + start
    tail = _items(view, _TAIL)[end - _TAIL.itemsize]
    has_property_crc = (
        (properties_size >= _TAIL.itemsize)
        & (tail["name"] == _CRC_NAME)
        & (tail["separator"] == 1)
        & (tail["close"] == 2)
    )
    torn = _items(view, np.dtype("u1"))[np.where(properties_size != 0, end - 1, properties_start - 3)] == 0
    ok &= has_property_crc | ~torn
    if require_property_crc:
        ok &= has_property_crc
    columns = {
        "start": start,
        "size": size,
        "version": version,
        "queue_id": queue_id,
        "flag": head["flag"].astype(np.int64),
        "queue_offset": queue_offset,
        "physical_offset": physical_offset,
        "sys_flag": sys_flag,
        "born_timestamp": head["born_timestamp"].astype(np.int64),
        "store_timestamp": _items(view, _I64)[start + record_codec.STORE_TIMESTAMP_POSITION + born_extra].astype(
            np.int64
        ),
        "body_crc": head["body_crc"].astype(np.int64),
        "body_start": body_start,
        "body_size": body_size,
        "topic_start": topic_start,
        "topic_size": topic_size,
        "properties_start": properties_start,
        "properties_size": properties_size,
        "has_property_crc": has_property_crc,
    }
    return columns, ok


def _first_false(ok: Booleans) -> int:
    return len(ok) if bool(ok.all()) else int(ok.argmin())


def _first_bad_crc(view: memoryview, columns: dict[str, Any], count: int, placed: bool) -> int:
    """The number of the first record among `count` with a wrong checksum; `count` if there is none.

    That is the record checksum where there is one, for it covers the body too, and else the body's.
    """
    whole = columns["has_property_crc"][:count] & placed
    start = np.where(whole, columns["start"][:count], columns["body_start"][:count])
    record_end = columns["start"][:count] + columns["size"][:count]
    end = np.where(whole, record_end - _TAIL.itemsize, start + columns["body_size"][:count])
    found = np.array([crc32(view[a:b]) for a, b in zip(start.tolist(), end.tolist(), strict=True)], np.int64)
    expected = columns["body_crc"][:count].copy()
    rows = np.flatnonzero(whole)
    if len(rows):
        # A byte below "0" wraps around to above 9.
        digits = _items(view, _TAIL)[end[rows]]["digits"] - np.uint8(ord("0"))
        expected[rows] = np.where((digits <= 9).all(axis=1), digits.astype(np.int64) @ _POWERS_OF_10, -1)
    return _first_false((found & record_codec.BODY_CRC_MASK) == expected)


def _topics(view: memoryview, start: Integers, size: Integers) -> tuple[tuple[str, ...], Integers]:
    """The distinct topics and which of them each record has, up to the first record whose topic is not UTF-8."""
    number: dict[str, int] = {}
    index = np.zeros(len(start), np.int64)
    # Topics of one size are gathered at once; there are few sizes, and a hostile buffer costs no more than a loop.
    order = np.argsort(size, kind="stable")
    bounds = np.flatnonzero(np.diff(size[order], prepend=-1)).tolist()
    for first, last in pairwise([*bounds, len(order)]):
        rows = order[first:last]
        gathered = _items(view, np.dtype(("u1", (int(size[rows[0]]),))))[start[rows]]
        # One topic for all is the common case, and comparing is faster than naming.
        alike = bool((gathered == gathered[0]).all())
        names: list[bytes] = [gathered[0].tobytes()] if alike else gathered.view(f"V{gathered.shape[1]}")[:, 0].tolist()
        of_name = {}
        for name in set(names):
            try:
                of_name[name] = number.setdefault(name.decode(), len(number))
            except UnicodeDecodeError:
                of_name[name] = -1
        index[rows] = of_name[names[0]] if alike else [of_name[name] for name in names]
    count = _first_false(index >= 0)
    if count < len(index):
        return _topics(view, start[:count], size[:count])
    return tuple(number), index


# --- Properties ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """All name-value pairs of a batch, by position in `text`: the property strings joined, each closed by 0x02.

    A string that is closed already thereby gets an empty pair at its end, which is none, as for any reader. Nor is the
    padding before the first string, which lets `_java_hashes` take a fixed number of bytes before any value's end.
    """

    text: bytes
    data: Bytes
    record: Integers
    name_start: Integers
    separator: Integers
    end: Integers

    @classmethod
    def split(cls, buffer: memoryview, start: Integers, size: Integers) -> _Pairs:
        strings: list[bytes | memoryview] = [_PADDING]
        strings += [buffer[a:b] for a, b in zip(start.tolist(), (start + size).tolist(), strict=True)]
        strings.append(b"")
        text = b"\x02".join(strings)
        data = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(data == 2)
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        separators = np.append(np.flatnonzero(data == 1), len(data))
        separator = separators[np.searchsorted(separators, starts)]
        valid = (separator > starts) & (separator < ends - 1)
        string_ends = len(_PADDING) + np.cumsum(size + 1)
        record = np.searchsorted(string_ends, ends)
        return cls(text, data, record[valid], starts[valid], separator[valid], ends[valid])

    def find(self, name: str) -> tuple[Integers, Integers, Integers]:
        """Records that have the property, ascending, and where its value starts and ends; of several the last."""
        encoded = name.encode()
        rows = np.flatnonzero(self.separator - self.name_start == len(encoded))
        if len(rows):
            names = _items(memoryview(self.text), np.dtype(("u1", (len(encoded),))))[self.name_start[rows]]
            rows = rows[(names == np.frombuffer(encoded, np.uint8)).all(axis=1)]
        record = self.record[rows]
        last = np.diff(record, append=-1) != 0
        rows = rows[last]
        return record[last], self.separator[rows] + 1, self.end[rows]


def _tokens(pairs: _Pairs, record: Integers, start: Integers, end: Integers) -> tuple[Integers, Integers, Integers]:
    """What lies between single spaces of the given values and is not empty."""
    if not len(record):
        return record, start, end
    spaces = np.flatnonzero(pairs.data == ord(property_codec.KEY_SEPARATOR))
    value = np.searchsorted(start, spaces, "right") - 1
    spaces = spaces[(value >= 0) & (spaces < end[value])]
    token_end = np.sort(np.concatenate((spaces, end)))
    value = np.searchsorted(end, token_end)
    token_start = np.concatenate((start[:1], token_end[:-1] + 1))
    first_of_value = np.diff(value, prepend=-1) != 0
    token_start[first_of_value] = start[value[first_of_value]]
    taken = token_end > token_start
    return record[value[taken]], token_start[taken], token_end[taken]


def _java_hashes(
    pairs: _Pairs,
    start: Integers,
    end: Integers,
    topics: tuple[str, ...] = (),
    topic_index: Integers | None = None,
) -> npt.NDArray[np.uint32]:
    """Java's hash of each value, or of `topic#value`, unsigned.

    The hash of `topic#` followed by a value of n units is hash(topic#) * 31**n + hash(value): topics are hashed once.
    Right-aligned, a unit's weight depends on its column alone, whatever the value's length.
    """
    size = end - start
    hashes = np.zeros(len(start), np.uint32)
    by_scalar = np.flatnonzero(size > _HASH_WIDTHS[-1]).tolist()
    data = memoryview(pairs.text)
    size_min = 0
    for width in _HASH_WIDTHS:
        rows = np.flatnonzero((size > size_min) & (size <= width))
        size_min = width
        if not len(rows):
            continue
        units: Bytes = _items(data, np.dtype(("u1", (width,))))[end[rows] - width]
        units *= np.arange(width, 0, -1) <= size[rows, None]
        hashes[rows] = np.einsum("ij,j->i", units, _POWERS_OF_31[width - 1 :: -1], dtype=np.uint32, casting="unsafe")
        not_ascii = (units.view(np.uint64) & _NOT_ASCII).any(axis=1)
        by_scalar += rows[not_ascii].tolist()
    if topic_index is not None:
        prefix = np.array([property_codec.topic_prefix_hash(topic) for topic in topics], np.uint32)
        hashes += prefix[topic_index] * _POWERS_OF_31[np.minimum(size, _HASH_WIDTHS[-1])]
    for row in by_scalar:
        value = pairs.text[int(start[row]) : int(end[row])].decode("utf-8", "replace")
        if topic_index is not None:
            value = f"{topics[int(topic_index[row])]}#{value}"
        hashes[row] = property_codec.java_hash(value) & 0xFFFFFFFF
    return hashes
