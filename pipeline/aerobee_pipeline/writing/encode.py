"""Rows to stored records: the reverse of decode.py, for the records that `AppendRecords` takes.

Heads are made as one numpy array; Arrow joins heads, bodies, topic and properties of all rows at once. Only checksums
are computed for each body, in the codec. Fields that the broker sets (offsets, store time, record checksum) stay zero.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aerobee_pipeline.fixed_width import binary_rows
from aerobee_pipeline.writing.row_checks import RESERVED
from aerobee_store.records import properties, record
from aerobee_store.records.record_columns import HEAD, crcs_of

_CRC_PLACE: Final = record.PROPERTY_CRC_NAME + b"0000000000\x02"
_TIMER_OUT_DIGITS: Final = 13  # the broker writes them
# The broker's limits for a request.
REQUEST_COUNT_MAX: Final = 32_768
REQUEST_SIZE_MAX: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one request: their bytes, and the size of each as little-endian 32-bit numbers."""

    records: bytes
    sizes: bytes
    count: int


def property_strings(rows: pa.RecordBatch, message_ids: pa.Array, dedup: tuple[str, pa.Array] | None) -> pa.Array:
    """The encoded properties of each row, without the record checksum."""
    parts = _pair(properties.UNIQ_KEY, message_ids)
    names = set(rows.schema.names)
    columns = (("keys", properties.KEYS), ("tags", properties.TAGS), ("messageGroup", properties.SHARDING_KEY))
    for column, name in columns:
        if column in names:
            parts += _pair(name, rows.column(column))
    if "properties" in names:
        parts.append(_map_strings(rows.column("properties"), dedup[0] if dedup else ""))
    if dedup is not None:
        parts += _pair(*dedup)
    return _joined(parts)


def timer_strings(deliver: pa.Array, topic: str, queue_id: int) -> pa.Array:
    """The timer's properties of each delayed message of a queue, after its other properties. `deliver`: timestamps."""
    times = pc.floor_temporal(deliver, unit="millisecond").cast(pa.timestamp("ms", deliver.type.tz)).cast(pa.int64())
    target = f"{properties.REAL_TOPIC}\x01{topic}\x02{properties.REAL_QUEUE_ID}\x01{queue_id}\x02"
    out = f"\x02{properties.TIMER_OUT_MS}\x01{'0' * _TIMER_OUT_DIGITS}\x02"
    parts = (f"{properties.TIMER_DELIVER_MS}\x01".encode(), times.cast(pa.string()).cast(pa.binary()))
    return pc.binary_join_element_wise(*parts, (out + target).encode(), pa.scalar(b"", pa.binary()))


def chunks(
    topic: str,
    bodies: pa.Array,
    property_texts: pa.Array,
    queue_of_chunk: Iterator[int],
    size_max: int,
) -> Iterator[tuple[int, Chunk]]:
    """The records of these rows in requests of at most about `size_max` bytes, each with its target queue."""
    encoded_topic = topic.encode()
    version = 1 if len(encoded_topic) <= record.TOPIC_SIZE_MAX_V1 else 2
    topic_part = len(encoded_topic).to_bytes(version, "big") + encoded_topic
    body_sizes = _lengths(bodies)
    property_sizes = _lengths(property_texts) + len(_CRC_PLACE)
    sizes = record.FIXED_SIZE + body_sizes + len(topic_part) + 2 + property_sizes
    limit = max(1, min(size_max, REQUEST_SIZE_MAX))
    begin = 0
    while begin < len(sizes):
        ends = np.cumsum(sizes[begin : begin + REQUEST_COUNT_MAX])
        count = max(1, int(np.searchsorted(ends, limit, "right")))
        queue = next(queue_of_chunk)
        part = slice(begin, begin + count)
        yield (
            queue,
            _chunk(
                sizes[part],
                body_sizes[part],
                property_sizes[part],
                bodies.slice(begin, count),
                property_texts.slice(begin, count),
                topic_part,
                queue,
                version,
            ),
        )
        begin += count


def _chunk(
    sizes: npt.NDArray[np.int64],
    body_sizes: npt.NDArray[np.int64],
    property_sizes: npt.NDArray[np.int64],
    bodies: pa.Array,
    property_texts: pa.Array,
    topic_part: bytes,
    queue: int,
    version: int,
) -> Chunk:
    head = np.zeros(len(sizes), HEAD)
    head["total_size"] = sizes
    head["magic"] = record.MAGIC_V1 if version == 1 else record.MAGIC_V2
    offsets = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    starts = offsets.astype(np.int64)
    data = bodies.buffers()[2]
    if data is not None and len(data):
        head["body_crc"] = crcs_of(memoryview(data), starts[:-1], starts[1:])
    head["queue_id"] = queue
    head["born_timestamp"] = time.time_ns() // 1_000_000
    head["body_size"] = body_sizes
    lengths = np.ascontiguousarray(property_sizes, ">u2")
    parts = [
        binary_rows(head.view(np.uint8).reshape(len(head), -1)),
        bodies,
        topic_part,
        binary_rows(lengths.view(np.uint8).reshape(-1, 2)),
        property_texts,
        _CRC_PLACE,
    ]
    records = _joined(parts).buffers()[2].slice(0, int(sizes.sum())).to_pybytes()
    return Chunk(records, sizes.astype("<u4").tobytes(), len(sizes))


def message_ids(prefix: int, first_row: int, count: int) -> pa.Array:
    """32 upper-case hex digits for each row: 64 bits for the task, and the number of the row in it."""
    numbers = np.empty((count, 2), ">u8")
    numbers[:, 0] = prefix & 0xFFFFFFFFFFFFFFFF
    numbers[:, 1] = np.arange(first_row, first_row + count)
    digits = _HEX[numbers.view(np.uint8)].view(np.uint8)
    return binary_rows(digits.reshape(count, 32))


_HEX: Final = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint16)


def row_ids(prefix: str, first_row: int, count: int) -> pa.Array:
    """`prefix:row` for each row."""
    numbers = pa.array(np.arange(first_row, first_row + count)).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(prefix), numbers, pa.scalar(":")).cast(pa.binary())


def _pair(name: str, values: pa.Array) -> list[pa.Array | bytes]:
    """The parts of `name 0x01 value 0x02`; nothing where the value is null or empty, because readers ignore such
    pairs."""
    values = values.cast(pa.binary())
    parts = [name.encode() + b"\x01", values, b"\x02"]
    lengths = pc.binary_length(values)
    if values.null_count == 0 and (pc.min(lengths).as_py() or 0) > 0:
        return parts  # joined with the other properties at once
    there = pc.fill_null(pc.greater(lengths, 0), False)
    return [pc.if_else(there, _joined(parts), pa.scalar(b"", pa.binary()))]


def _joined(parts: Sequence[pa.Array | bytes]) -> pa.Array:
    """The parts of each row, one after another: columns of binary values, and bytes that all rows have."""
    merged: list[pa.Array | bytes] = []
    for part in parts:
        if merged and isinstance(part, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    return pc.binary_join_element_wise(*merged, pa.scalar(b"", pa.binary()))


def _map_strings(maps: pa.Array, dedup_name: str) -> pa.Array:
    """The pairs of each row's map, without reserved names."""
    keys, items = maps.keys, maps.items
    reserved = pc.is_in(keys, pa.array([*RESERVED, dedup_name], pa.string()))
    pairs = _pair_of(keys.cast(pa.binary()), items.cast(pa.binary()))
    pairs = pc.if_else(pc.or_kleene(reserved, pc.is_null(items)), pa.scalar(b"", pa.binary()), pairs)
    texts = pc.binary_join(pa.ListArray.from_arrays(maps.offsets, pairs), pa.scalar(b"", pa.binary()))
    return pc.if_else(maps.is_valid(), texts, pa.scalar(b"", pa.binary()))


def _pair_of(names: pa.Array, values: pa.Array) -> pa.Array:
    joined = pc.binary_join_element_wise(names, values, pa.scalar(b"\x01", pa.binary()))
    joined = pc.binary_join_element_wise(joined, pa.scalar(b"\x02", pa.binary()), pa.scalar(b"", pa.binary()))
    kept = pc.fill_null(pc.greater(pc.binary_length(values), 0), False)
    return pc.if_else(kept, joined, pa.scalar(b"", pa.binary()))


def _lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths
