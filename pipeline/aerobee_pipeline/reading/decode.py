"""Stored records to Arrow: one decoder for the store's files and for the raw records of a broker's stream.

The compiled passes find and check the records, as columns of a `RecordBatch`. Here those columns become Arrow arrays,
without a Python object for any record: numbers by conversion, text and bodies by one pass that copies them. The
messages of an inner batch become records, column by column as well. Only rare cases are handled one by one: compressed
bodies, and text that is not UTF-8.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aerobee_pipeline.errors import RecordDecodeError
from aerobee_pipeline.fixed_width import binary_rows
from aerobee_pipeline.passes import Rows, joined, parsed, property_values, values
from aerobee_pipeline.reading.schema import MAP, TIMESTAMP, arrow_schema
from aerobee_store.errors import CorruptRecordError
from aerobee_store.records import inner_batch, properties, record
from aerobee_store.records.compression import DecompressionError, decompress
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.records.record_columns import HEAD, crcs_of, items

# The timestamps that Spark can show: the years 1 to 9999. A record may hold any 64-bit number; others become null.
_TIME_MIN_MS: Final = -62_135_596_800_000
_TIME_MAX_MS: Final = 253_402_300_799_999
# The limit of a decompressed body, so that a few bytes cannot fill the memory of a worker.
INFLATED_SIZE_MAX: Final = 64 << 20
_HEX: Final = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint16)
_I32: Final = np.dtype(">i4")
# The head of a record up to the system flags, whose fields do not depend on the size of the hosts.
_FIRST_FIELDS: Final = np.dtype(HEAD.descr[: list(HEAD.fields or ()).index("sys_flag") + 1])
# Messages of inner batches are decoded together up to about this many bytes.
_UNPACKED_SIZE: Final = 4 << 20
_PROPERTY_COLUMNS: Final = {"msgId": properties.UNIQ_KEY, "keys": properties.KEYS, "tags": properties.TAGS}
_LZ4: Final = 0x100
_ZSTD: Final = 0x200


class Decoder:
    """Turns records into rows of the requested columns, in the order of `names`.

    `decompress`: bodies compressed by the sender are decompressed. A body that cannot be
    decompressed raises RecordDecodeError with topic, queue and offset, or with `bad_body_is_null` is null and has the
    text of this error in the column `decodeError`; `decompress=False` returns bodies as stored.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        broker_name: str = "",
        decompress: bool = True,
        bad_body_is_null: bool = False,
    ) -> None:
        self.schema: pa.Schema = arrow_schema(names)
        self._names = list(names)
        self._broker_name = broker_name
        self._decompress = decompress
        self._bad_body_is_null = bad_body_is_null
        self._properties = [name for column, name in _PROPERTY_COLUMNS.items() if column in self._names]
        self._decoded: tuple[pa.Array, pa.Array] | None = None
        self._found: list[pa.Array] = []
        self._columns: dict[str, Callable[[RecordBatch, Rows | None], pa.Array]] = {
            "topic": self._topic,
            "brokerName": self._broker,
            "queueId": lambda batch, rows: _numbers(batch.queue_id, rows, np.int32),
            "queueOffset": lambda batch, rows: _numbers(batch.queue_offset, rows, np.int64),
            "msgId": self._message_id,
            "keys": lambda batch, rows: self._property(batch, rows, properties.KEYS),
            "tags": lambda batch, rows: self._property(batch, rows, properties.TAGS),
            "body": lambda batch, rows: self._bodies(batch, rows)[0],
            "bornTimestamp": lambda batch, rows: _times(batch.born_timestamp, rows),
            "storeTimestamp": lambda batch, rows: _times(batch.store_timestamp, rows),
            "properties": _property_map,
            "flag": lambda batch, rows: _numbers(batch.flag, rows, np.int32),
            "sysFlag": lambda batch, rows: _numbers(batch.sys_flag, rows, np.int32),
            "reconsumeTimes": lambda batch, rows: _numbers(batch.reconsume_times, rows, np.int32),
            "physicalOffset": lambda batch, rows: _numbers(batch.physical_offset, rows, np.int64),
            "storeSize": lambda batch, rows: _numbers(batch.size, rows, np.int32),
            "bodyCrc": lambda batch, rows: _numbers(batch.body_crc, rows, np.int64),
            "decodeError": lambda batch, rows: self._bodies(batch, rows)[1],
        }

    def decode(self, batch: RecordBatch, rows: Rows | None = None) -> pa.RecordBatch:
        """The rows of these records, or of all. The result does not keep the batch's buffer alive."""
        count = len(batch) if rows is None else len(rows)
        if count == 0 or not self._names:
            arrays = [pa.array([], field.type) for field in self.schema]
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if rows is not None and count == len(batch):
            rows = None
        self._decoded, self._found = None, []
        arrays = [self._columns[name](batch, rows) for name in self._names]
        self._decoded, self._found = None, []
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _topic(self, batch: RecordBatch, rows: Rows | None) -> pa.Array:
        index = batch.topic_index if rows is None else batch.topic_index[rows]
        return pa.array(batch.topics, pa.string()).take(pa.array(index))

    def _broker(self, batch: RecordBatch, rows: Rows | None) -> pa.Array:
        return pa.repeat(self._broker_name, len(batch) if rows is None else len(rows))

    def _property(self, batch: RecordBatch, rows: Rows | None, name: str) -> pa.Array:
        """The values of a property. Those of all columns are found together."""
        if not self._found:
            self._found = property_values(batch, rows, self._properties)
        return text(self._found[self._properties.index(name)])

    def _message_id(self, batch: RecordBatch, rows: Rows | None) -> pa.Array:
        """The client's unique key; without it, the record's offset message id."""
        found = self._property(batch, rows, properties.UNIQ_KEY)
        if found.null_count == 0:
            return found
        return pc.coalesce(found, _offset_ids(batch, rows))

    def _bodies(self, batch: RecordBatch, rows: Rows | None) -> tuple[pa.Array, pa.Array]:
        """The bodies, and the reasons why some of them are null. Decoded once for the columns that need them."""
        if self._decoded is None:
            bodies = values(batch.buffer, _chosen(batch.body_start, rows), _chosen(batch.body_size, rows))
            errors = pa.nulls(len(bodies), pa.string())
            if self._decompress and batch.any_has(record.SYS_FLAG_COMPRESSED):
                bodies, errors = self._inflated(batch, rows, bodies, errors)
            self._decoded = bodies, errors
        return self._decoded

    def _inflated(
        self, batch: RecordBatch, rows: Rows | None, bodies: pa.Array, errors: pa.Array
    ) -> tuple[pa.Array, pa.Array]:
        compressed = np.flatnonzero(_chosen(batch.sys_flag, rows) & record.SYS_FLAG_COMPRESSED)
        stored = bodies.to_pylist() if len(compressed) * 2 > len(bodies) else None
        inflated: list[bytes | None] = []
        texts: list[str | None] = []
        for row in compressed:
            text = None
            try:
                body = _decompressed(batch, int(row if rows is None else rows[row]), (stored or bodies)[int(row)])
            except RecordDecodeError as error:
                if not self._bad_body_is_null:
                    raise
                body, text = None, str(error)
            inflated.append(body)
            texts.append(text)
        mask = _mask(len(bodies), compressed)
        bodies = pc.replace_with_mask(bodies, mask, pa.array(inflated, pa.binary()))
        return bodies, pc.replace_with_mask(errors, mask, pa.array(texts, pa.string()))


def expanded(batch: RecordBatch, rows: Rows) -> Iterator[tuple[RecordBatch, Rows]]:
    """The messages of these records, in order: ordinary ones unchanged, those of an inner batch one by one.

    An inner batch is one record with many messages in its body. Each becomes a batch of records that have their own
    offset, body, flag and properties, and the physical offset of the record that contains them.
    """
    inner = (batch.sys_flag[rows] & record.SYS_FLAG_INNER_BATCH) != 0
    if not inner.any():
        yield batch, rows
        return
    for part in np.split(rows, np.flatnonzero(np.diff(inner)) + 1):
        if batch.sys_flag[part[0]] & record.SYS_FLAG_INNER_BATCH:
            for messages in _unpacked(batch, part.tolist()):
                yield messages, np.arange(len(messages))
        else:
            yield batch, part


def _unpacked(batch: RecordBatch, rows: Sequence[int]) -> Iterator[RecordBatch]:
    """The messages of inner batches, several of them as one batch. Raises CorruptRecordError for an invalid inner
    batch."""
    waiting: list[_Container] = []
    size = 0
    for row in rows:
        container = _container(batch, row)
        if waiting and (size >= _UNPACKED_SIZE or not waiting[0].is_like(container)):
            yield _messages(batch, waiting)
            waiting, size = [], 0
        waiting.append(container)
        size += len(container.body)
    yield _messages(batch, waiting)


class _Container(NamedTuple):
    """An inner batch: the head of its record, its length-prefixed topic, and its decompressed body."""

    row: int
    place: inner_batch.BatchPlace
    head: npt.NDArray[np.uint8]
    topic: bytes
    body: bytes

    def is_like(self, other: _Container) -> bool:
        """Whether the messages of both can be decoded together: heads of one size, and one topic."""
        return len(self.head) == len(other.head) and self.topic == other.topic


def _container(batch: RecordBatch, row: int) -> _Container:
    place = inner_batch.place_of(properties.decode_properties(bytes(batch.raw_properties(row))))
    try:
        body = bytes(decompress(batch.body(row), int(batch.sys_flag[row]), inner_batch.BODY_SIZE_MAX))
    except DecompressionError:
        place = None
    if place is None:
        _refuse(batch, [row])
    whole = np.frombuffer(batch.buffer, np.uint8)
    body_start, properties_start = int(batch.body_start[row]), int(batch.properties_start[row])
    topic = whole[body_start + int(batch.body_size[row]) : properties_start - 2].tobytes()
    return _Container(row, place, whole[int(batch.start[row]) : body_start], topic, body)


def _refuse(batch: RecordBatch, rows: Sequence[int]) -> NoReturn:
    for row in rows:
        inner_batch.unpack(batch.record(row))  # raises the detailed error
    raise AssertionError("columns and scalar check disagree")


def _messages(batch: RecordBatch, containers: Sequence[_Container]) -> RecordBatch:
    """The messages of inner batches as one record each: shared fields are repeated, the others are set by column."""
    expected = np.array([container.place.message_count for container in containers])
    begins = np.cumsum([0, *(len(container.body) for container in containers)])[:-1]
    try:
        # Concatenated, the bodies form the body of one large batch.
        found = inner_batch.columns(b"".join(container.body for container in containers))
    except CorruptRecordError:
        _refuse(batch, [container.row for container in containers])
    number = np.searchsorted(found.start, begins)
    counts = np.diff(number, append=len(found))
    if (counts != expected).any() or (found.start[number] != begins).any():
        _refuse(batch, [container.row for container in containers])
    head = np.repeat(np.stack([container.head for container in containers]), counts, axis=0)
    # IPv6 hosts make the head longer, but its first fields and its last one, the body's size, keep their places.
    first = head[:, : _FIRST_FIELDS.itemsize].view(_FIRST_FIELDS)[:, 0]
    topic = containers[0].topic
    first["total_size"] = head.shape[1] + found.body_size + len(topic) + 2 + found.properties_size
    first["body_crc"] = crcs_of(found.body, found.body_start, found.body_start + found.body_size)
    first["flag"] = items(found.body, _I32)[found.start + inner_batch.FLAG_POSITION]
    base = np.array([container.place.base_offset for container in containers]) - number
    first["queue_offset"] = np.repeat(base, counts) + np.arange(len(found))
    first["sys_flag"] &= record.SYS_FLAG_BORN_HOST_V6 | record.SYS_FLAG_STORE_HOST_V6
    head[:, -4:] = np.ascontiguousarray(found.body_size, ">u4").view(np.uint8).reshape(-1, 4)
    sizes = np.ascontiguousarray(found.properties_size, ">u2")
    joined = pc.binary_join_element_wise(
        binary_rows(head),
        values(found.body, found.body_start, found.body_size),
        pa.scalar(topic, pa.binary()),
        binary_rows(sizes.view(np.uint8).reshape(-1, 2)),
        values(found.body, found.properties_start, found.properties_size),
        pa.scalar(b"", pa.binary()),
    )
    data = bytes(memoryview(joined.buffers()[2])[: int(first["total_size"].sum())])
    return parsed(data, base_physical_offset=None, check_crc=False)


def text(found: pa.Array) -> pa.Array:
    """Binary values as strings. Bytes that are not UTF-8 become U+FFFD, as in every RocketMQ reader."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else value.decode("utf-8", "replace") for value in found.to_pylist()], pa.string()
        )


def _chosen(column: npt.NDArray[Any], rows: Rows | None) -> npt.NDArray[Any]:
    return column if rows is None else column[rows]


def _numbers(column: npt.NDArray[Any], rows: Rows | None, kind: Any) -> pa.Array:
    # Contiguous, because a column with one value for all records is a view with the memory of one value.
    return pa.array(np.ascontiguousarray(_chosen(column, rows), kind))


def _times(column: npt.NDArray[Any], rows: Rows | None) -> pa.Array:
    ms = np.ascontiguousarray(_chosen(column, rows), np.int64)
    outside = (ms < _TIME_MIN_MS) | (ms > _TIME_MAX_MS)
    if outside.any():
        return pa.array(np.where(outside, 0, ms) * 1000, mask=outside).cast(TIMESTAMP)
    return pa.array(ms * 1000).cast(TIMESTAMP)


def _property_map(batch: RecordBatch, rows: Rows | None) -> pa.Array:
    batch.keep_properties(joined)
    source, owner, name_start, name_end, value_start, value_end = batch.all_property_places()
    names = text(values(source, name_start, name_end - name_start)).dictionary_encode()
    code = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    keep = code != names.dictionary.index(properties.CRC32).as_py()  # it belongs to the record, not to the message
    keep &= _last_of_name(owner, code, len(names.dictionary))
    if rows is not None:
        wanted = np.zeros(len(batch), np.bool_)
        wanted[rows] = True
        keep &= wanted[owner]
    kept = np.flatnonzero(keep)
    texts = text(values(source, value_start[kept], (value_end - value_start)[kept]))
    counts = np.bincount(owner[kept], minlength=len(batch))
    bounds = np.concatenate(([0], np.cumsum(_chosen(counts, rows)))).astype(np.int32)
    keys = names.dictionary.take(pa.array(code[kept]))
    return pa.MapArray.from_arrays(pa.array(bounds), keys, texts).cast(MAP)


def _last_of_name(owner: Rows, code: Rows, name_count: int) -> npt.NDArray[np.bool_]:
    """Selects the last pair of each name in each record, because a map has each key once."""
    key = owner * max(name_count, 1) + code
    last = np.ones(len(key), np.bool_)
    unique, first_from_end = np.unique(key[::-1], return_index=True)
    if len(unique) < len(key):
        last[:] = False
        last[len(key) - 1 - first_from_end] = True
    return last


def _offset_ids(batch: RecordBatch, rows: Rows | None) -> pa.Array:
    """`properties.offset_message_id` of every record: store host and physical offset in hex."""
    ids = pa.nulls(len(batch), pa.string())
    offsets = np.ascontiguousarray(batch.physical_offset).astype(">i8").view(np.uint8).reshape(-1, 8)
    for wide in (False, True):
        owners, hosts = batch.store_hosts(wide)
        if len(owners):
            encoded = np.concatenate((hosts, offsets[owners]), axis=1)
            digits = _HEX[encoded].view(np.uint8)
            width = digits.shape[1]
            bounds = np.arange(0, (len(owners) + 1) * width, width, dtype=np.int32)
            made = pa.Array.from_buffers(
                pa.string(), len(owners), [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(digits))]
            )
            ids = made if len(owners) == len(batch) else pc.replace_with_mask(ids, _mask(len(batch), owners), made)
    return ids if rows is None else ids.take(pa.array(rows))


def _mask(count: int, rows: npt.NDArray[Any]) -> pa.Array:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return pa.array(mask)


def _decompressed(batch: RecordBatch, row: int, body: Any) -> bytes:
    """Raises RecordDecodeError with topic, queue and offset."""
    stored = body if isinstance(body, bytes) else body.as_py()
    try:
        return _inflate(stored, int(batch.sys_flag[row]) & record.SYS_FLAG_COMPRESSION_TYPE)
    except (zlib.error, OSError, pa.ArrowInvalid, ValueError) as error:
        raise RecordDecodeError(
            f"topic {batch.topic(row)!r}, queue {int(batch.queue_id[row])}, offset {int(batch.queue_offset[row])}: the "
            f"body is marked as compressed but cannot be decompressed ({error}). Set the option onBadBody=null to "
            f"read such bodies as null with the reason in the column decodeError, or decompress=false for stored "
            f"bodies"
        ) from error


def _inflate(body: bytes, kind: int) -> bytes:
    if kind in (_LZ4, _ZSTD):
        with pa.input_stream(pa.BufferReader(body), compression="lz4" if kind == _LZ4 else "zstd") as stream:
            inflated: bytes = stream.read(INFLATED_SIZE_MAX + 1)
        if len(inflated) > INFLATED_SIZE_MAX:
            raise ValueError(f"it grows beyond {INFLATED_SIZE_MAX} bytes")
        return inflated
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    inflated = stream.decompress(body, INFLATED_SIZE_MAX)
    if not stream.eof:
        raise ValueError(f"it ends early or grows beyond {INFLATED_SIZE_MAX} bytes")
    return inflated
