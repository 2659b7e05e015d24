"""Many records at once: the layout of record.py, read and patched as numpy columns.

One by one, Python takes some ten microseconds to check and decode a record; column by column about one. Therefore
recovery, dispatch, raw appends and reads, which have many records, parse them here. The result is the same by
construction: columns only find the first bad record, and `record.peek` then determines its error.

record_columns.py finds the records, property_pairs.py reads their properties.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import properties as property_codec
from aerobee_store.records import record as record_codec
from aerobee_store.records.properties import Host
from aerobee_store.records.property_pairs import PropertyPairs
from aerobee_store.records.record import ReadableBuffer, Record, RecordHeader, ScanStop, StopReason, WritableBuffer
from aerobee_store.records.record_columns import (
    I64,
    PACKED_DIGITS,
    Booleans,
    Bytes,
    Finder,
    Integers,
    Source,
    all_true,
    columns_of,
    constant,
    crcs_of,
    digits_of,
    find_starts,
    put_items,
    sliceable,
    starts_by_sizes,
    windows,
)

_HOST_V4_SIZE: Final = 8
_HOST_V4: Final = np.dtype("V8")
_HOST_V6: Final = np.dtype("V20")
_RECONSUME_TIMES_BEFORE_BODY: Final = 16  # four bytes; then prepared_transaction_offset and body_size
Gather = Callable[[memoryview, Integers, Integers], ReadableBuffer]
"""The ranges [start, end) of a buffer, in order and without overlap, one after another."""
# Flags of records that are in no queue, or have another layout.
_UNUSUAL_FLAGS: Final = (
    record_codec.SYS_FLAG_PREPARED | record_codec.SYS_FLAG_BORN_HOST_V6 | record_codec.SYS_FLAG_STORE_HOST_V6
)


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """Checked records as columns, one item a record, in the order of the buffer.

    `*_start` are positions in `buffer`. The batch keeps the buffer alive and reads bodies and properties from it on
    request: later writes to the buffer show.
    """

    buffer: memoryview
    start: Integers
    size: Integers
    queue_id: Integers
    queue_offset: Integers
    physical_offset: Integers
    sys_flag: Integers
    store_timestamp: Integers
    body_start: Integers
    body_size: Integers
    properties_start: Integers
    properties_size: Integers
    has_property_crc: Booleans
    topics: tuple[str, ...]
    """The distinct topics."""
    topic_index: Integers
    """The index in `topics` of each record's topic."""
    stop: ScanStop
    """The reason why no further record was read."""
    _head: npt.NDArray[np.void] = field(repr=False)
    _same_layout: bool = field(repr=False)
    """Whether the parts of all records have the same sizes, and the records are contiguous."""
    _source: Source | None = field(default=None, repr=False)
    _pairs: PropertyPairs | None = field(default=None, init=False, repr=False)

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
        sizes: Integers | None = None,
        finder: Finder | None = None,
    ) -> RecordBatch:
        """Every valid record from `start` on, at most `count_max`, and the reason for the end (`stop`).

        The parameters are those of `record.scan`: `base_physical_offset` is the physical offset of the buffer's first
        byte, or None if the records are not contiguous in the log. `sizes`: the presumed sizes of the records, which
        speed up the search; if they are wrong, they are ignored. `finder`: a faster way to find and check records than
        numpy's; `record.peek` still determines why it stopped.
        """
        view = memoryview(buffer)
        if end is None or end > len(view):
            end = len(view)
        incomplete = -1
        while True:
            if finder is None:
                start_of, size_of, position, columns, source = _find_by_columns(
                    view,
                    start,
                    end,
                    base_physical_offset,
                    placed,
                    require_property_crc,
                    check_crc,
                    record_size_max,
                    count_max,
                    sizes,
                )
            else:
                source = None
                start_of, size_of, position, columns = finder(
                    view,
                    start,
                    end,
                    base_physical_offset,
                    placed,
                    require_property_crc,
                    check_crc,
                    record_size_max,
                    count_max,
                )
            count = len(start_of)
            if count == count_max:
                place_in_log = position if base_physical_offset is None else base_physical_offset + position
                stop = ScanStop(StopReason.LIMIT, position, place_in_log, 0, f"{count} records were asked for")
                break
            last = record_codec.peek(
                view,
                position,
                end,
                physical_offset=None if base_physical_offset is None else base_physical_offset + position,
                check_crc=check_crc,
                placed=placed,
                require_property_crc=require_property_crc,
                record_size_max=record_size_max,
            )
            if isinstance(last, ScanStop):
                stop = last
                break
            # Another process, whose log this is, has completed the record meanwhile.
            assert position != incomplete, f"columns and scalar check disagree about the record at {position}"
            incomplete = position
        return cls(buffer=view, start=start_of, size=size_of, stop=stop, _source=source, **columns)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> int:
        """The position in the buffer at which the last record ends; `stop.position` without a record."""
        return int(self.start[-1] + self.size[-1]) if len(self) else self.stop.position

    def slice(self, first: int, last: int) -> RecordBatch:
        """Records [first, last), at least one, as a batch of their bytes alone, which must be contiguous."""
        if last - first == len(self) and not self.start[0] and self.end == len(self.buffer):
            return self
        begin = int(self.start[first])
        end = int(self.start[last - 1] + self.size[last - 1])
        columns: dict[str, Any] = {}
        for name in (item.name for item in dataclasses.fields(self)):
            column = getattr(self, name)
            if isinstance(column, np.ndarray):
                columns[name] = column[first:last] - begin if name.endswith("start") else column[first:last]
        return dataclasses.replace(self, buffer=self.buffer[begin:end], _source=None, **columns)

    @property
    def version(self) -> Integers:
        return np.where(self._head["magic"] == record_codec.MAGIC_V2, 2, 1)

    @property
    def flag(self) -> Integers:
        return self._head["flag"].astype(np.int64)

    @property
    def born_timestamp(self) -> Integers:
        return self._head["born_timestamp"].astype(np.int64)

    @property
    def body_crc(self) -> Integers:
        return self._head["body_crc"].astype(np.int64)

    @property
    def reconsume_times(self) -> Integers:
        return self._numbers_before_body(_RECONSUME_TIMES_BEFORE_BODY)

    def _numbers_before_body(self, distance: int) -> Integers:
        """The 32-bit number `distance` bytes before each body, where the layout is the same for all kinds of hosts."""
        if not len(self):
            return np.zeros(0, np.int64)
        found = windows(self.buffer, 4)[self.body_start - distance].view(">i4").astype(np.int64)
        return np.asarray(found, np.int64)

    def store_hosts(self, wide: bool) -> tuple[Integers, Bytes]:
        """The records with an IPv6 store host (`wide`) or an IPv4 one: their numbers and, a row each, their hosts.

        A host is encoded as `properties.encode_host` does: 20 or 8 bytes.
        """
        is_wide = (self.sys_flag & record_codec.SYS_FLAG_STORE_HOST_V6) != 0
        rows = np.flatnonzero(is_wide if wide else ~is_wide)
        width = _HOST_V6.itemsize if wide else _HOST_V4_SIZE
        if not len(rows):
            return rows, np.zeros((0, width), np.uint8)
        start = self.body_start[rows] - (_RECONSUME_TIMES_BEFORE_BODY + width)
        return rows, windows(self.buffer, width)[start].view(np.uint8).reshape(-1, width)

    def any_has(self, flags: int) -> bool:
        """Whether a record has one of these bits in its system flags."""
        return bool(np.count_nonzero((self.sys_flag[:1] if self._same_layout else self.sys_flag) & flags))

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
            version=2 if self._head["magic"][index] == record_codec.MAGIC_V2 else 1,
            body_start=int(self.body_start[index]),
            body_size=int(self.body_size[index]),
            properties_start=int(self.properties_start[index]),
            properties_size=int(self.properties_size[index]),
            has_property_crc=bool(self.has_property_crc[index]),
        )
        return record_codec.read(self.buffer, header)

    def rows_with(self, name: str) -> Integers:
        """The numbers of the records that have a property, ascending."""
        return self._property_pairs().find(name)[0]

    def property_bytes(self, name: str) -> list[bytes | None]:
        """The value of one property in every record, None where a record has none."""
        pairs = self._property_pairs()
        values: list[bytes | None] = [None] * len(self)
        record, start, end = pairs.find(name)
        for row, value_start, value_end in zip(record.tolist(), start.tolist(), end.tolist(), strict=True):
            values[row] = pairs.text[value_start:value_end]
        return values

    def property_strings(self, name: str) -> list[str | None]:
        """Like `property_bytes`, decoded as in `properties.decode_properties`."""
        return [None if value is None else value.decode("utf-8", "replace") for value in self.property_bytes(name)]

    def property_places(self, name: str) -> tuple[bytes, Integers, Integers, Integers]:
        """The positions of one property's values: a text, the records that have it (ascending), starts, ends."""
        pairs = self._property_pairs()
        return pairs.text, *pairs.find(name)

    def property_positions(self, name: str) -> tuple[Integers, Integers, Integers]:
        """The records that have a property (ascending), and where in the buffer its values start and end."""
        pairs = self._property_pairs()
        record, start, end = pairs.find(name)
        shift = self.properties_start[record] - pairs.string_starts(record)
        return record, start + shift, end + shift

    def all_property_places(self) -> tuple[bytes, Integers, Integers, Integers, Integers, Integers]:
        """The positions of all pairs, in stored order: a text, record, start and end of the name and of the value.

        A name may occur several times in a record; the last one counts.
        """
        pairs = self._property_pairs()
        return pairs.text, *pairs.all()

    def tags_codes(self) -> Integers:
        """`properties.tags_code` of every record's TAGS, or 0. Units of delayed messages contain a time instead."""
        pairs = self._property_pairs()
        if (tag := pairs.value_of_all(property_codec.TAGS)) is not None:
            return constant(property_codec.tags_code(tag.decode("utf-8", "replace")), len(self))
        codes = np.zeros(len(self), np.int64)
        record, start, end = pairs.find(property_codec.TAGS)
        codes[record] = pairs.java_hashes(start, end).view(np.int32)
        return codes

    def index_hashes(self) -> tuple[Integers, Integers]:
        """The index entries of these records: record numbers (ascending) and key hashes (`properties.index_hash`).

        In the order of insertion: for each record first UNIQ_KEY, then each token of KEYS, including repetitions.
        Rolled-back messages are not indexed.
        """
        pairs = self._property_pairs()
        record, start, end = pairs.find(property_codec.UNIQ_KEY)
        keys = pairs.find(property_codec.KEYS)
        if len(keys[0]):
            token_record, token_start, token_end = pairs.tokens(*keys)
            record = np.concatenate((record, token_record))
            start = np.concatenate((start, token_start))
            end = np.concatenate((end, token_end))
            order = np.argsort(record, kind="stable")  # stable: UNIQ_KEY stays before the tokens of its record
            record, start, end = record[order], start[order], end[order]
        return self._index_hashes(pairs, record, start, end, self.topics)

    def tag_index_hashes(self) -> tuple[Integers, Integers]:
        """Like `index_hashes`, for the additional entry of RocketMQ 5.4 and later: `TAGS`, with the key `T#<tags>`."""
        pairs = self._property_pairs()
        return self._index_hashes(pairs, *pairs.find(property_codec.TAGS), tuple(f"{topic}#T" for topic in self.topics))

    def _index_hashes(
        self, pairs: PropertyPairs, record: Integers, start: Integers, end: Integers, prefixes: tuple[str, ...]
    ) -> tuple[Integers, Integers]:
        if self.any_has(record_codec.SYS_FLAG_TRANSACTION):
            kind = self.sys_flag & record_codec.SYS_FLAG_TRANSACTION
            kept = (kind != record_codec.SYS_FLAG_TRANSACTION)[record]
            record, start, end = record[kept], start[kept], end[kept]
        hashes = pairs.java_hashes(start, end, prefixes, self.topic_index[record]).view(np.int32).astype(np.int64)
        hashes = np.abs(hashes)
        hashes[hashes == 1 << 31] = 0
        return record, hashes

    def keep_properties(self, gather: Gather | None = None) -> None:
        """Copy the property strings, so that tags and keys can still be read after the buffer is reused.

        `gather`: a faster way to join many ranges than slices of the buffer.
        """
        if gather is None or self._pairs is not None or self._same_layout or not len(self):
            self._property_pairs()
            return
        start = self.properties_start
        joined = gather(self.buffer, start - 1, start + self.properties_size)  # the byte before each is not used
        object.__setattr__(self, "_pairs", PropertyPairs.gathered(joined, self.properties_size))
        object.__setattr__(self, "_source", None)

    def properties_contain(self, part: bytes) -> bool:
        """Whether these bytes occur anywhere in the property strings: one fast search in all of them."""
        return part in self._property_pairs().text

    def properties_lack(self, parts: Collection[bytes]) -> bool:
        """Whether all property strings are ASCII and none contains one of these bytes: a few fast searches."""
        text = self._property_pairs().text
        return text.isascii() and not any(part in text for part in parts)

    def common_property_names(self) -> Collection[bytes] | None:
        """The names of the properties, if all records have the same names at the same places. None for no records."""
        return self._property_pairs().common_names() if len(self) else None

    def common_value(self, name: str) -> bytes | None:
        """The value of a property that all records have, at the same place and with this value; else None."""
        return self._property_pairs().value_of_all(name) if len(self) else None

    def first_malformed_properties(self) -> int | None:
        """The number of the first record with properties that senders must not use: PropertyPairs.first_malformed."""
        return self._property_pairs().first_malformed() if len(self) else None

    def first_with_any(self, names: frozenset[str]) -> tuple[int, str] | None:
        """The number of the first record with one of these properties (of three bytes or more each), and which."""
        return self._property_pairs().first_with_any(names) if len(self) else None

    def _property_pairs(self) -> PropertyPairs:
        if self._pairs is None:
            start, size = self.properties_start, self.properties_size
            begin = int(start[0]) if len(self) else 0
            if self._same_layout and len(self):
                pairs = PropertyPairs.of_one_size(self.buffer, begin, int(self.size[0]), size)
            else:
                end = int(start[-1] + size[-1]) if len(self) else 0
                source, position = self._source or sliceable(self.buffer, begin, end, len(self))
                pairs = PropertyPairs(source, start - position, size)
                object.__setattr__(self, "_source", None)  # may be a copy, and is no longer needed
            object.__setattr__(self, "_pairs", pairs)
            return pairs
        return self._pairs


def _find_by_columns(
    view: memoryview,
    start: int,
    end: int,
    base_physical_offset: int | None,
    placed: bool,
    require_property_crc: bool,
    check_crc: bool,
    record_size_max: int,
    count_max: int | None,
    sizes: Integers | None,
) -> tuple[Integers, Integers, int, dict[str, Any], Source | None]:
    """What a `Finder` returns, found column by column, and the copy that was sliced."""
    found = None if sizes is None else starts_by_sizes(view, start, end, record_size_max, count_max, sizes)
    start_of, size_of, stride, position = found or find_starts(view, start, end, record_size_max, count_max)
    # Copied once, unless slicing can probably be avoided.
    source = None if stride else sliceable(view, start, position, len(start_of))
    while True:
        columns = columns_of(
            view,
            start_of,
            size_of,
            stride,
            base_physical_offset,
            placed,
            require_property_crc,
            check_crc,
            source,
        )
        if not isinstance(columns, int):
            return start_of, size_of, position, columns, source
        position = int(start_of[columns])
        start_of, size_of = start_of[:columns], size_of[:columns]


def place(
    batch: RecordBatch,
    buffer: WritableBuffer,
    queue_offsets: npt.ArrayLike,
    physical_offset: int,
    store_timestamp: npt.ArrayLike,
    store_host: Host | None = None,
) -> RecordBatch:
    """Like `write_place`, but return the batch of `buffer`."""
    queue_offset, physical = write_place(batch, buffer, queue_offsets, physical_offset, store_timestamp, store_host)
    return dataclasses.replace(
        batch,
        buffer=memoryview(buffer),
        _source=None,
        queue_offset=queue_offset,
        physical_offset=physical,
        store_timestamp=np.full(len(batch), store_timestamp, np.int64),
    )


def write_place(
    batch: RecordBatch,
    buffer: WritableBuffer,
    queue_offsets: npt.ArrayLike,
    physical_offset: int,
    store_timestamp: npt.ArrayLike,
    store_host: Host | None = None,
    born_host: Host | None = None,
) -> tuple[Integers, Integers]:
    """Write the fields set by the append into `buffer`, a writable copy of the batch's buffer; return both offsets of
    each record.

    `queue_offsets`: one per record; those of prepared and rolled-back messages are replaced by 0. `physical_offset`: of
    the first record; the others follow by their positions in the buffer. `store_timestamp`: ms, one for all or one per
    record. `store_host`: replaces that of every record. `born_host`: replaces [::]:0, and 0.0.0.0:0 if it is an IPv4
    address. Record checksums are computed for the records that have one.

    Raises InvalidMessageError, before anything is written, if `store_host` has another IP version than a record has
    space for.
    """
    view = memoryview(buffer)
    queue_offset = np.asarray(queue_offsets, np.int64)
    start = batch.start
    if not len(start):
        return queue_offset, start
    stride = int(batch.size[0]) if batch._same_layout else 0
    host = property_codec.encode_host(store_host) if store_host is not None else b""
    physical = start + (physical_offset - int(start[0]))
    after_born_host = start
    if batch.any_has(_UNUSUAL_FLAGS) or len(host) > _HOST_V4_SIZE:
        wide = (batch.sys_flag & record_codec.SYS_FLAG_STORE_HOST_V6) != 0
        if host and bool((wide != (len(host) != _HOST_V4_SIZE)).any()):
            raise InvalidMessageError(
                f"store host {store_host[0] if store_host else ''!r} does not fit: bit 0x20 of a record's system flags "
                f"says {'IPv4' if len(host) != _HOST_V4_SIZE else 'IPv6'}"
            )
        queue_offset = np.where(batch.sys_flag & record_codec.SYS_FLAG_PREPARED, 0, queue_offset)
        born_v6 = batch.sys_flag & record_codec.SYS_FLAG_BORN_HOST_V6
        after_born_host = start + np.where(born_v6, record_codec.HOST_V6_EXTRA, 0)
    time_position = record_codec.STORE_TIMESTAMP_POSITION
    if born_host is not None:
        _write_born_host(batch, view, stride, born_host)
    if host:
        dtype = _HOST_V4 if len(host) == _HOST_V4_SIZE else _HOST_V6
        put_items(view, dtype, after_born_host, time_position + 8, stride, np.frombuffer(host, dtype))
    put_items(view, I64, start, record_codec.QUEUE_OFFSET_POSITION, stride, queue_offset)
    put_items(view, I64, start, record_codec.QUEUE_OFFSET_POSITION + 8, stride, physical)
    put_items(view, I64, after_born_host, time_position, stride, store_timestamp)
    end = start + batch.size
    if not all_true(batch.has_property_crc):
        start, end = start[batch.has_property_crc], end[batch.has_property_crc]
        stride = 0
    if len(start):
        end -= record_codec.PROPERTY_CRC_SIZE
        digits = digits_of(crcs_of(view, start, end, None, stride)).view(PACKED_DIGITS)
        put_items(view, PACKED_DIGITS, end, len(record_codec.PROPERTY_CRC_NAME), stride, digits)
    return queue_offset, physical


def _write_born_host(batch: RecordBatch, view: memoryview, stride: int, born_host: Host) -> None:
    """Write the address of the connection into records without one.

    Records keep their size. An IPv6 address does not fit into a record with space for IPv4. An IPv4 address is written
    as a mapped address (::ffff:a.b.c.d) into a record with space for IPv6.
    """
    start, position = batch.start, record_codec.BORN_HOST_POSITION
    encoded = property_codec.encode_host(born_host)
    wide = (batch.sys_flag & record_codec.SYS_FLAG_BORN_HOST_V6) != 0
    unknown = ~batch._head["born_host"].view(np.int64).astype(np.bool_)
    if len(encoded) == _HOST_V4_SIZE:
        if (rows := start[unknown & ~wide]).size:
            every = stride if len(rows) == len(start) else 0
            put_items(view, _HOST_V4, rows, position, every, np.frombuffer(encoded, _HOST_V4))
        encoded = b"\0" * 10 + b"\xff\xff" + encoded
    rows = start[unknown & wide]
    if rows.size:
        there = windows(view, _HOST_V6.itemsize)[rows + position].view(np.uint8).reshape(len(rows), -1)
        rows = rows[~there.any(axis=1)]
    if rows.size:
        put_items(view, _HOST_V6, rows, position, 0, np.frombuffer(encoded, _HOST_V6))
