"""One message in the commit log. Integers are big-endian and signed unless noted; a record never crosses a segment.

    offset    size  field
         0       4  total_size      bytes of the whole record, this field included
         4       4  magic           MAGIC_V1, MAGIC_V2, or BLANK_MAGIC for the filler that ends a segment
         8       4  body_crc        CRC-32 of the stored body, top bit cleared
        12       4  queue_id        0 or more
        16       4  flag            the application's, opaque
        20       8  queue_offset    number of the message in its queue; 0 for prepared and rolled-back ones
        28       8  physical_offset of this record in the log
        36       4  sys_flag        SYS_FLAG_*
        40       8  born_timestamp  the producer's clock, ms
        48       B  born_host       address and port: 8 bytes, 20 if SYS_FLAG_BORN_HOST_V6
      48+B       8  store_timestamp the broker's clock, ms
      56+B       S  store_host      8 bytes, 20 if SYS_FLAG_STORE_HOST_V6
    56+B+S       4  reconsume_times
    60+B+S       8  prepared_transaction_offset
    68+B+S       4  body_size       0 or more
    72+B+S       -  body
         -       T  topic_size      1 byte in version 1 (1..127), 2 bytes in version 2 (1..32767)
         -       -  topic           UTF-8
         -       2  properties_size 0..32767
         -       -  properties      properties.py; its last 20 bytes may be the checksum of the whole record:

    record's end - 20  "__CRC32#" 0x01, ten ASCII digits with the least significant first, 0x02

The digits are the CRC-32 (top bit cleared) of all bytes of the record before these twenty. The checksum is found by its
position at the end and not by splitting properties: in a split batch of an old client it follows an unclosed pair, and
a reader of properties then treats it as the end of that pair's value.

Bytes come from disk or from a client: every function here checks lengths before slicing, and no function allocates
memory for a length that it has not compared with the available bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from mmap import mmap
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from aerobee_store.errors import CorruptRecordError, InvalidMessageError
from aerobee_store.records import properties as property_codec
from aerobee_store.records.properties import Host, decode_host, encode_host

ReadableBuffer = bytes | bytearray | memoryview | mmap
"""Bytes that contain records; memoryviews must have items of one byte."""
WritableBuffer = bytearray | memoryview

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
BLANK_MAGIC: Final = 0xCBD43194
BLANK_SIZE_MIN: Final = 8
"""Bytes of size and magic. A record is appended only if this many bytes remain free after it."""

SYS_FLAG_COMPRESSED: Final = 0x1
SYS_FLAG_MULTI_TAGS: Final = 0x2
SYS_FLAG_TRANSACTION: Final = 0xC
SYS_FLAG_PREPARED: Final = 0x4  # set in prepared (0x4) and rolled back (0xC): the types that are in no queue
SYS_FLAG_BORN_HOST_V6: Final = 0x10
SYS_FLAG_STORE_HOST_V6: Final = 0x20
SYS_FLAG_UNWRAP: Final = 0x40
SYS_FLAG_INNER_BATCH: Final = 0x80
SYS_FLAG_COMPRESSION_TYPE: Final = 0x700

NO_HOST: Final[Host] = ("0.0.0.0", 0)  # noqa: S104 - an address in a record, nothing listens on it

TOPIC_SIZE_MAX_V1: Final = 127
TOPIC_SIZE_MAX_V2: Final = 32767
SIZE_MAX: Final = 0x7FFFFFFF
BODY_CRC_MASK: Final = 0x7FFFFFFF

MAGIC_POSITION: Final = 4
BODY_CRC_POSITION: Final = 8
QUEUE_OFFSET_POSITION: Final = 20
SYS_FLAG_POSITION: Final = 36
BORN_TIMESTAMP_POSITION: Final = 40
BORN_HOST_POSITION: Final = 48
STORE_TIMESTAMP_POSITION: Final = 56
"""The position of the field for an IPv4 born host; `HOST_V6_EXTRA` bytes later for IPv6."""
FIXED_SIZE: Final = 88
"""Bytes before the body, for two IPv4 hosts."""
HOST_V6_EXTRA: Final = 12
RECORD_SIZE_MIN: Final = FIXED_SIZE + 3
"""Fixed part, topic size, properties size: no record is smaller."""

PROPERTY_CRC_SIZE: Final = 20
PROPERTY_CRC_NAME: Final = b"__CRC32#\x01"
PROPERTY_CRC_UNPLACED: Final = PROPERTY_CRC_NAME + b"0000000000\x02"

# By the two host bits of sys_flag, shifted down by 4: bit 0 is the born host, bit 1 the store host.
FIXED_STRUCTS: Final = tuple(struct.Struct(f">iIIiiqqiq{born}sq{store}siqi") for store in (8, 20) for born in (8, 20))
_START: Final = struct.Struct(">iIIiiqqi")
_BLANK: Final = struct.Struct(">iI")
_OFFSETS: Final = struct.Struct(">qq")
_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")

assert [fixed.size for fixed in FIXED_STRUCTS] == [FIXED_SIZE, FIXED_SIZE + 12, FIXED_SIZE + 12, FIXED_SIZE + 24]
assert _START.size == SYS_FLAG_POSITION + 4, "the table above and the structs must agree"
assert len(PROPERTY_CRC_UNPLACED) == PROPERTY_CRC_SIZE


class TransactionType(enum.IntEnum):
    """The transaction bits of sys_flag. Only `NONE` and `COMMIT` are in consume queues."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


@dataclass(slots=True)
class Message:
    """A message to be stored. Timestamps in milliseconds."""

    topic: str
    queue_id: int
    body: bytes | bytearray | memoryview
    properties: Mapping[str, str] = field(default_factory=dict)
    raw_properties: bytes | None = None
    """An encoded property string to be stored as it is, instead of `properties`. A checksum at its end is dropped."""
    flag: int = 0
    sys_flag: int = 0
    """The codec sets the two host bits and ignores their values here."""
    born_timestamp: int = 0
    born_host: Host = NO_HOST
    store_host: Host | None = None
    """Replaces the store's own host, if given."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(slots=True)
class Record:
    """A stored record, decoded. Timestamps in milliseconds.

    Must not be changed, but is not frozen, which would cost 3 microseconds per record.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    raw_properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    size: int
    version: int
    _properties: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, str]:
        """The decoded properties. Computed once; not to be changed."""
        if self._properties is None:
            self._properties = property_codec.decode_properties(self.raw_properties)
        return self._properties

    @property
    def tag(self) -> str | None:
        return self.properties.get(property_codec.TAGS)

    @property
    def tags_code(self) -> int:
        """The hash of the tag. Units of delayed messages hold the delivery time instead."""
        return property_codec.tags_code(self.tag)

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(property_codec.UNIQ_KEY)

    @property
    def keys(self) -> list[str]:
        return property_codec.split_keys(self.properties.get(property_codec.KEYS, ""))

    @property
    def transaction_type(self) -> TransactionType:
        return TransactionType(self.sys_flag & SYS_FLAG_TRANSACTION)

    @property
    def has_property_crc(self) -> bool:
        return ends_in_property_crc(self.raw_properties)

    def to_message(self, topic: str, queue_id: int, properties: Mapping[str, str] | None = None) -> Message:
        """The same message for another queue, with the flags, born time, hosts and transaction fields of the record.

        `properties`: replace its own.
        """
        return Message(
            topic=topic,
            queue_id=queue_id,
            body=self.body,
            properties={} if properties is None else properties,
            raw_properties=self.raw_properties if properties is None else None,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=self.born_host,
            store_host=self.store_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )

    def to_new_message(self, topic: str, queue_id: int, properties: Mapping[str, str]) -> Message:
        """A new message with the same content, outside of any transaction, and stored by this store."""
        message = self.to_message(topic, queue_id, properties)
        message.sys_flag &= ~SYS_FLAG_TRANSACTION
        message.store_host = None
        message.prepared_transaction_offset = 0
        return message


def ends_in_property_crc(raw_properties: bytes) -> bool:
    """Whether the last 20 bytes have the shape of the record checksum, whatever its digits."""
    return raw_properties[-PROPERTY_CRC_SIZE : -PROPERTY_CRC_SIZE + len(PROPERTY_CRC_NAME)] == PROPERTY_CRC_NAME and (
        raw_properties[-1] == 2
    )


# --- Encoding -----------------------------------------------------------------------------------------------


class Draft:
    """A message prepared for the log: its size is known, and only its offsets are missing.

    An append can therefore reserve space first, and then packs every field once. `start` has the fields before the
    body, with zeros for offsets and store time; `tail` the topic and the properties.
    """

    __slots__ = ("_time_position", "message", "size", "start", "sys_flag", "tail")

    def __init__(
        self,
        message: Message,
        *,
        store_host: Host,
        property_crc: bool,
        split_batch: bool = False,
        version: int | None = None,
    ) -> None:
        """Encode everything that does not depend on the offsets. The parameters are those of `encode`."""
        topic = _encode_topic(message.topic)
        topic_size = len(topic)
        if version is None:
            version = 1 if topic_size <= TOPIC_SIZE_MAX_V1 else 2
        elif version not in (1, 2):
            raise InvalidMessageError(f"version {version}: 1 or 2 expected")
        if version == 1 and topic_size > TOPIC_SIZE_MAX_V1:
            raise InvalidMessageError(f"the topic takes {topic_size} bytes; version 1 allows {TOPIC_SIZE_MAX_V1}")
        if message.queue_id < 0:
            raise InvalidMessageError(f"queue id {message.queue_id} is negative")
        raw = _encode_properties(message, topic, property_crc=property_crc, split_batch=split_batch)
        properties_size = len(raw) + (PROPERTY_CRC_SIZE if property_crc else 0)
        born_host = encode_host(message.born_host)
        own_host = encode_host(message.store_host or store_host)
        hosts = (len(born_host) != 8) | (len(own_host) != 8) << 1
        body = message.body
        body_size = len(body)
        fixed = FIXED_STRUCTS[hosts]
        topic_length = topic_size.to_bytes(version, "big")
        self.size = fixed.size + body_size + version + topic_size + 2 + properties_size
        self.message = message
        self.tail = b"".join((topic_length, topic, properties_size.to_bytes(2, "big"), raw))
        self.sys_flag = (message.sys_flag & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)) | hosts << 4
        self._time_position = STORE_TIMESTAMP_POSITION + len(born_host) - 8
        # Numbers out of range are an error of the caller, and must be reported before space is reserved for the record.
        try:
            self.start = fixed.pack(
                self.size,
                MAGIC_V1 if version == 1 else MAGIC_V2,
                crc32(body) & BODY_CRC_MASK,
                message.queue_id,
                message.flag,
                0,
                0,
                self.sys_flag,
                message.born_timestamp,
                born_host,
                0,
                own_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_size,
            )
        except struct.error as error:
            raise InvalidMessageError(f"a number of the message does not fit its field: {error}") from None

    def encode(self, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
        """The record with its offsets. Prepared and rolled-back messages get queue offset 0: they are in no queue."""
        if self.sys_flag & SYS_FLAG_PREPARED:
            queue_offset = 0
        start = bytearray(self.start)
        try:
            _OFFSETS.pack_into(start, QUEUE_OFFSET_POSITION, queue_offset, physical_offset)
            _I64.pack_into(start, self._time_position, store_timestamp)
        except struct.error as error:
            raise InvalidMessageError(f"a number of the place does not fit its field: {error}") from None
        body, tail = self.message.body, self.tail
        return joined(start, body, tail, property_crc=len(start) + len(body) + len(tail) < self.size)

    def encode_unplaced(self) -> bytes:
        """The record with zeros in the fields set by an append: both offsets, store time and record checksum."""
        parts = (self.start, self.message.body, self.tail)
        if sum(map(len, parts)) == self.size:
            return b"".join(parts)
        return b"".join((*parts, PROPERTY_CRC_UNPLACED))


def joined(start: bytes | bytearray, body: bytes | bytearray | memoryview, tail: bytes, *, property_crc: bool) -> bytes:
    """The record of these parts, with the checksum of all of them."""
    if not property_crc:
        return b"".join((start, body, tail))
    crc = crc32(tail, crc32(body, crc32(start))) & BODY_CRC_MASK
    return b"".join((start, body, tail, PROPERTY_CRC_NAME, property_crc_digits(crc), b"\x02"))


def _encode_properties(message: Message, topic: bytes, *, property_crc: bool, split_batch: bool) -> bytes:
    """The properties as stored in the record, without the checksum. InvalidMessageError."""
    raw = message.raw_properties
    if raw is None:
        raw = property_codec.encode_properties(message.properties) if message.properties else b""
    elif raw and ends_in_property_crc(raw):
        raw = raw[:-PROPERTY_CRC_SIZE]
    if property_crc and raw and raw[-1] != 2 and not split_batch:
        raw += b"\x02"
    if not property_crc:
        if raw[-1] == 0 if raw else topic[-1] == 0:
            raise InvalidMessageError("a record without checksum must not end in a zero byte: it would look torn")
        if ends_in_property_crc(raw):
            raise InvalidMessageError(
                "the last property looks like the checksum of a record, but the store writes none; rename the property"
            )
    properties_size = len(raw) + (PROPERTY_CRC_SIZE if property_crc else 0)
    if properties_size > property_codec.PROPERTIES_SIZE_MAX:
        raise InvalidMessageError(
            f"properties take {properties_size} bytes with separators and checksum, "
            f"the limit is {property_codec.PROPERTIES_SIZE_MAX}"
        )
    return raw


def encode(
    message: Message,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: Host,
    property_crc: bool,
    split_batch: bool = False,
    version: int | None = None,
) -> bytes:
    """The record of `message` at its place.

    `property_crc` appends the record checksum. An open last property is closed before it, except in a `split_batch`,
    because RocketMQ does not close it there and records must be identical. `version` forces 1 or 2; None: 1, unless the
    topic has more than 127 bytes.

    Raises InvalidMessageError for values that the format cannot hold.
    """
    draft = Draft(message, store_host=store_host, property_crc=property_crc, split_batch=split_batch, version=version)
    if queue_offset < 0 or physical_offset < 0:
        raise InvalidMessageError(f"offsets must not be negative: queue {queue_offset}, physical {physical_offset}")
    return draft.encode(queue_offset, physical_offset, store_timestamp)


def place_of(encoded: bytes) -> tuple[int, int, int, int] | None:
    """A record's size, queue id, queue offset and physical offset, unchecked; None if it is too short."""
    if len(encoded) < _START.size:
        return None
    size, _, _, queue_id, _, queue_offset, physical_offset, _ = _START.unpack_from(encoded)
    return size, queue_id, queue_offset, physical_offset


def record_crc(record_without_checksum: ReadableBuffer) -> int:
    """CRC-32 with the top bit cleared, as in both checksums of a record."""
    return crc32(record_without_checksum) & BODY_CRC_MASK


def property_crc_digits(crc: int) -> bytes:
    """Ten ASCII digits, the least significant first."""
    return (b"%010d" % crc)[::-1]


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of a blank that takes `size` bytes up to the end of its segment; the rest is zeros."""
    assert size >= BLANK_SIZE_MIN
    return _BLANK.pack(size, BLANK_MAGIC)


@lru_cache(maxsize=1 << 15)  # thousands of topics in turn would always miss a smaller cache
def _encode_topic(topic: str) -> bytes:
    try:
        encoded = topic.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"topic is not valid Unicode: {error.reason}") from None
    if not 1 <= len(encoded) <= TOPIC_SIZE_MAX_V2:
        raise InvalidMessageError(f"the topic takes {len(encoded)} bytes; 1 to {TOPIC_SIZE_MAX_V2} are allowed")
    return encoded


# --- Checking and decoding ----------------------------------------------------------------------------------


class StopReason(enum.Enum):
    """Why no record could be read at a position."""

    END_OF_DATA = "end of data"
    """No bytes are left, or zeros follow."""
    BLANK = "blank"
    """The filler that ends a segment. The caller must check that its size reaches the end of the segment."""
    TRUNCATED = "truncated"
    """The available bytes end before the end of the record, or even within its size field."""
    CORRUPT = "corrupt"
    LIMIT = "limit"
    """The requested number of records was read; more may follow."""


@dataclass(frozen=True, slots=True)
class ScanStop:
    """The position and reason at which reading stopped.

    `physical_offset` is the offset in the log, or the position in the buffer if no offset was given. `size` is the
    number of bytes that may be skipped: the size of a blank; the total size of a corrupt record with consistent
    lengths; else 0.
    """

    reason: StopReason
    position: int
    physical_offset: int
    size: int = 0
    detail: str = ""


class RecordHeader(NamedTuple):
    """The fields of a checked record that a scan needs. `position` and `*_start` are positions in the given buffer."""

    position: int
    size: int
    physical_offset: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    topic: str
    version: int
    body_start: int
    body_size: int
    properties_start: int
    properties_size: int
    has_property_crc: bool


def peek(
    buffer: ReadableBuffer,
    position: int = 0,
    end: int | None = None,
    *,
    physical_offset: int | None = None,
    check_crc: bool = True,
    placed: bool = True,
    require_property_crc: bool = False,
    record_size_max: int = SIZE_MAX,
) -> RecordHeader | ScanStop:
    """Check the record at `position`; only its topic is copied.

    Each check relies only on earlier ones. The first failed check determines the result:

        bytes left    none; or fewer than 8 and all zero                  END_OF_DATA
                      fewer than 8, not all zero                          TRUNCATED
        size, magic   both zero                                           END_OF_DATA
                      magic of a blank, size of 8 or more                 BLANK, with its size
                      another magic, or a size that no record has         CORRUPT
                      size beyond the bytes left                          TRUNCATED
        lengths       body, topic and properties do not add up to size    CORRUPT
        fields        no UTF-8 topic; negative number; wrong offset       CORRUPT, with the size
        last byte     zero, and no record checksum                        CORRUPT, with the size
        checksums     of the record, else of the body, differ             CORRUPT, with the size
        otherwise                                                         the record's header

    A stop with a size has consistent lengths, so a reader may expect the next record directly after it. Without a size
    the start of the next record is unknown and must be searched for.

    `end`: the end of the bytes (default: the end of the buffer). `physical_offset`: the offset of `position` in the
    log; the record's own offset must equal it (None: not compared). `check_crc`: verify the record checksum, or the
    body's if there is none. `placed=False`: the record has not been appended yet, so offsets and record checksum are
    ignored. `require_property_crc`: a record without the record checksum is corrupt. `record_size_max`: a larger total
    size is corrupt, not truncated.
    """
    if end is None:
        end = len(buffer)
    place_in_log = position if physical_offset is None else physical_offset
    if position == end:
        return ScanStop(StopReason.END_OF_DATA, position, place_in_log, 0, "0 bytes are left")

    def corrupt(detail: str, size: int = 0) -> ScanStop:
        return ScanStop(StopReason.CORRUPT, position, place_in_log, size, detail)

    size, magic = _BLANK.unpack_from(buffer, position) if end - position >= BLANK_SIZE_MIN else (0, 0)
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or not RECORD_SIZE_MIN <= size <= min(record_size_max, end - position):
        reason, detail, size = _no_record(buffer, position, end - position, size, magic, record_size_max)
        return ScanStop(reason, position, place_in_log, size, detail)

    _, _, body_crc, queue_id, _, queue_offset, own_physical_offset, sys_flag = _START.unpack_from(buffer, position)
    fixed_size: int = FIXED_STRUCTS[sys_flag >> 4 & 3].size
    version = 1 if magic == MAGIC_V1 else 2
    record_end = position + size
    body_start = position + fixed_size
    if body_start + version + 2 > record_end:
        return corrupt(f"total size is {size}, too small for IPv6 hosts")
    (body_size,) = _I32.unpack_from(buffer, body_start - 4)
    topic_start = body_start + body_size + version
    if body_size < 0 or topic_start + 2 > record_end:
        return corrupt(f"body size is {body_size} in a record of {size}")
    topic_size = buffer[topic_start - 1] if version == 1 else _I16.unpack_from(buffer, topic_start - 2)[0]
    if not 1 <= topic_size <= (TOPIC_SIZE_MAX_V1 if version == 1 else TOPIC_SIZE_MAX_V2):
        return corrupt(f"topic size is {topic_size}")
    properties_start = topic_start + topic_size + 2
    if properties_start > record_end:
        return corrupt(f"topic size is {topic_size}, {record_end - topic_start} bytes are left in the record")
    (properties_size,) = _I16.unpack_from(buffer, properties_start - 2)
    if properties_start + properties_size != record_end:
        return corrupt(
            f"lengths add up to {properties_start + properties_size - position}, total size is {size} "
            f"(body {body_size}, topic {topic_size}, properties {properties_size})"
        )

    try:
        topic = bytes(buffer[topic_start : topic_start + topic_size]).decode()
    except UnicodeDecodeError as error:
        return corrupt(f"topic is not UTF-8: {error.reason} at byte {error.start}", size)
    if queue_id < 0:
        return corrupt(f"queue id is {queue_id}", size)
    if placed:
        if queue_offset < 0:
            return corrupt(f"queue offset is {queue_offset}", size)
        if own_physical_offset != physical_offset and (physical_offset is not None or own_physical_offset < 0):
            return corrupt(f"the record says physical offset {own_physical_offset}", size)

    has_property_crc = properties_size >= PROPERTY_CRC_SIZE and ends_in_property_crc(
        bytes(buffer[record_end - PROPERTY_CRC_SIZE : record_end])
    )
    if not has_property_crc and buffer[record_end - 1 if properties_size else properties_start - 3] == 0:
        # No writer ends a record like this: its last sector was not synced and is lost, with the record's checksum.
        return corrupt("its last byte is zero", size)
    if require_property_crc and not has_property_crc:
        return corrupt("the record checksum is missing", size)
    if check_crc:
        with memoryview(buffer) as view:
            # The record checksum covers the body too, so one of the two is sufficient.
            if has_property_crc and placed:
                difference = _record_crc_difference(view[position:record_end])
            else:
                difference = _body_crc_difference(view[body_start : body_start + body_size], body_crc)
        if difference:
            return corrupt(difference, size)
    time_position = STORE_TIMESTAMP_POSITION + (HOST_V6_EXTRA if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0)
    return RecordHeader(
        position,
        size,
        own_physical_offset,
        queue_id,
        queue_offset,
        sys_flag,
        _I64.unpack_from(buffer, position + time_position)[0],
        topic,
        version,
        body_start,
        body_size,
        properties_start,
        properties_size,
        has_property_crc,
    )


def _no_record(
    buffer: ReadableBuffer, position: int, left: int, size: int, magic: int, record_size_max: int
) -> tuple[StopReason, str, int]:
    """The content of a position without a record: the reason, its description, and the bytes that may be skipped."""
    if left < BLANK_SIZE_MIN:
        if left <= 0 or not any(buffer[position : position + left]):
            return StopReason.END_OF_DATA, f"{max(left, 0)} bytes are left", 0
        return StopReason.TRUNCATED, f"{left} bytes are left, a record begins with {BLANK_SIZE_MIN}", 0
    if size == 0 and magic == 0:
        return StopReason.END_OF_DATA, "zeros", 0
    if magic == BLANK_MAGIC:
        if size < BLANK_SIZE_MIN:
            return StopReason.CORRUPT, f"blank of {size} bytes, the smallest has {BLANK_SIZE_MIN}", 0
        return StopReason.BLANK, f"blank of {size} bytes", size
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return StopReason.CORRUPT, f"magic is {magic:08x}, not {MAGIC_V1:08x} or {MAGIC_V2:08x}", 0
    if not RECORD_SIZE_MIN <= size <= record_size_max:
        return StopReason.CORRUPT, f"total size is {size}, not {RECORD_SIZE_MIN}..{record_size_max}", 0
    return StopReason.TRUNCATED, f"total size is {size}, {left} bytes are left", 0


def _body_crc_difference(body: memoryview, stored: int) -> str:
    """A description of the difference; empty if the checksum is right."""
    found = record_crc(body)
    return "" if found == stored else f"body checksum differs: stored {stored:08x}, computed {found:08x}"


def _record_crc_difference(record: memoryview) -> str:
    """The same for a record that ends in its checksum."""
    expected = property_crc_digits(record_crc(record[:-PROPERTY_CRC_SIZE]))
    digits = bytes(record[-11:-1])
    return "" if digits == expected else f"record checksum differs: stored {digits!r}, computed {expected!r}"


def decode(
    buffer: ReadableBuffer,
    position: int = 0,
    end: int | None = None,
    *,
    physical_offset: int | None = None,
    check_crc: bool = True,
    placed: bool = True,
    require_property_crc: bool = False,
    record_size_max: int = SIZE_MAX,
) -> Record:
    """The record at `position`, checked as by `peek`, whose parameters these are.

    Raises CorruptRecordError for anything that is no valid record, including a blank or zeros. Its `physical_offset` is
    the given one, else `position`.
    """
    header = peek(
        buffer,
        position,
        end,
        physical_offset=physical_offset,
        check_crc=check_crc,
        placed=placed,
        require_property_crc=require_property_crc,
        record_size_max=record_size_max,
    )
    if isinstance(header, ScanStop):
        raise CorruptRecordError(f"{header.reason.value}: {header.detail}", physical_offset=header.physical_offset)
    return read(buffer, header)


def read(buffer: ReadableBuffer, header: RecordHeader) -> Record:
    """The record that `peek` or `scan` has checked."""
    (
        size,
        _,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_size,
    ) = FIXED_STRUCTS[header.sys_flag >> 4 & 3].unpack_from(buffer, header.position)
    return Record(
        header.topic,
        queue_id,
        queue_offset,
        physical_offset,
        bytes(buffer[header.body_start : header.body_start + body_size]),
        bytes(buffer[header.properties_start : header.properties_start + header.properties_size]),
        flag,
        sys_flag,
        born_timestamp,
        decode_host(born_host),
        store_timestamp,
        decode_host(store_host),
        reconsume_times,
        prepared_transaction_offset,
        body_crc,
        size,
        header.version,
    )


def scan(
    buffer: ReadableBuffer,
    base_physical_offset: int | None,
    start: int = 0,
    end: int | None = None,
    *,
    check_crc: bool = True,
    placed: bool = True,
    require_property_crc: bool = False,
    record_size_max: int = SIZE_MAX,
) -> Iterator[RecordHeader | ScanStop]:
    """Each valid record from `start` on, and as the last item the reason for the end.

    `base_physical_offset` is the physical offset of the buffer's first byte (for a segment: its name); None if the
    records are not contiguous in the log. The other parameters are those of `peek`.
    """
    position = start
    while True:
        header = peek(
            buffer,
            position,
            end,
            physical_offset=None if base_physical_offset is None else base_physical_offset + position,
            check_crc=check_crc,
            placed=placed,
            require_property_crc=require_property_crc,
            record_size_max=record_size_max,
        )
        yield header
        if isinstance(header, ScanStop):
            return
        position += header.size
