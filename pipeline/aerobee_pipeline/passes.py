"""The calls of the compiled passes over records, with the types of their callers: records, ranges, Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aerobee_pipeline.errors import SparkMissingError
from aerobee_store.records.record import RECORD_SIZE_MIN, ReadableBuffer
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.records.record_columns import FoundRecords, heads_at, items

Rows = npt.NDArray[np.int64]
"""Numbers of records in their batch, ascending."""

_U16: Final = np.dtype(np.uint16)
_U32: Final = np.dtype(np.uint32)
_U64: Final = np.dtype(np.uint64)


@cache
def _compiled() -> Any:
    """The compiled passes: imported by tasks, and not by the driver's processes that plan them."""
    try:
        return import_module("aerobee_pipeline.compiled")
    except ImportError as error:
        raise SparkMissingError(
            f"{error}: the source needs numba on the driver and on every machine that runs tasks; install the extra "
            f"`spark` of this package there, or numba alone, for the Python that PYSPARK_PYTHON names"
        ) from error


def find_records(
    view: memoryview,
    start: int,
    end: int,
    base_physical_offset: int | None,
    placed: bool,
    require_property_crc: bool,
    check_crc: bool,
    record_size_max: int,
    count_max: int | None,
) -> FoundRecords:
    """The valid records from `start` on: a `Finder` for RecordBatch.parse."""
    compiled = _compiled()
    rows = max(end - start, 0) // RECORD_SIZE_MIN
    if count_max is not None:
        rows = min(rows, count_max)
    table = np.empty((compiled.FIELDS, rows), np.int64)
    first = np.empty(rows, np.int64)
    view = view.toreadonly()
    count, position, topic_count = compiled.find(
        *(np.frombuffer(view, np.uint8), items(view, _U16), items(view, _U32), items(view, _U64)),
        *(start, end, record_size_max, compiled.ANY_OFFSET if base_physical_offset is None else base_physical_offset),
        *(placed, require_property_crc, check_crc, compiled.SEED, table, first),
    )
    topics: list[str] = []
    for record in first[:topic_count].tolist():
        begin = int(table[compiled.TOPIC_START, record])
        try:
            topics.append(str(view[begin : begin + int(table[compiled.TOPIC_SIZE, record])], "utf-8"))
        except UnicodeDecodeError:
            count, position = record, int(table[compiled.START, record])
            break
    table = table[:, :count]
    start_of = table[compiled.START]
    columns = {
        "queue_id": table[compiled.QUEUE_ID],
        "queue_offset": table[compiled.QUEUE_OFFSET],
        "physical_offset": table[compiled.PHYSICAL_OFFSET],
        "sys_flag": table[compiled.SYS_FLAG],
        "store_timestamp": table[compiled.STORE_TIMESTAMP],
        "body_start": table[compiled.BODY_START],
        "body_size": table[compiled.BODY_SIZE],
        "properties_start": table[compiled.PROPERTIES_START],
        "properties_size": table[compiled.PROPERTIES_SIZE],
        "has_property_crc": table[compiled.HAS_CRC].astype(np.bool_),
        "topics": tuple(topics),
        "topic_index": table[compiled.TOPIC],
        "_head": heads_at(view, start_of),
        "_same_layout": False,
    }
    return start_of, table[compiled.SIZE], position, columns


parsed = partial(RecordBatch.parse, finder=find_records)
"""RecordBatch.parse, whose parameters these are, by the compiled pass."""


def values(data: ReadableBuffer, start: Rows, size: Rows) -> pa.Array:
    """Ranges of the data as a binary array; null where a size is negative."""
    taken = np.maximum(size, 0)
    total = int(taken.sum())
    assert total < 1 << 31, "a segment, or the result of a call, has fewer than 2 GiB"
    offsets = np.empty(len(start) + 1, np.int32)
    out = np.empty(total, np.uint8)
    count = _compiled().copy(np.frombuffer(memoryview(data).toreadonly(), np.uint8), start, taken, offsets, out)
    assert count == len(start), f"range {count} is outside of the data"
    there = size >= 0
    bitmap = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(start), [bitmap, pa.py_buffer(offsets), pa.py_buffer(out)])


def joined(data: ReadableBuffer, start: Rows, end: Rows) -> memoryview:
    """The ranges [start, end) of the data, one after another."""
    return memoryview(values(data, start, end - start).buffers()[2])


def property_values(batch: RecordBatch, rows: Rows | None, names: Sequence[str]) -> list[pa.Array]:
    """The values of properties in these records, or in all, as they are stored; null where a record has none."""
    start, size = batch.properties_start, batch.properties_size
    if rows is not None:
        start, size = start[rows], size[rows]
    encoded = [name.encode() for name in names]
    value_start = np.empty((len(names), len(start)), np.int64)
    value_size = np.empty((len(names), len(start)), np.int64)
    _compiled().find_properties(
        *(np.frombuffer(batch.buffer.toreadonly(), np.uint8), start, size),
        *(np.frombuffer(bytearray(b"".join(encoded)), np.uint8), np.cumsum([len(name) for name in encoded])),
        *(value_start, value_size),
    )
    return [values(batch.buffer, value_start[number], value_size[number]) for number in range(len(names))]
