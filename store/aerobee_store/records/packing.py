"""Packs many messages for one queue into records at once, for appends in store layout.

The common part of all records is laid out once and the numbers are written as columns; packing one by one
(`record.Draft`) takes several times as long.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from aerobee_store.errors import InvalidMessageError
from aerobee_store.records.properties import PROPERTIES_SIZE_MAX, Host, encode_host
from aerobee_store.records.record import (
    BODY_CRC_MASK,
    BODY_CRC_POSITION,
    BORN_TIMESTAMP_POSITION,
    FIXED_STRUCTS,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_UNPLACED,
    SYS_FLAG_POSITION,
    TOPIC_SIZE_MAX_V1,
    TOPIC_SIZE_MAX_V2,
)
from aerobee_store.records.record_columns import I64, Integers, all_true, put_items

_I32: Final = np.dtype(">i4")
_U32: Final = np.dtype(">u4")
_I16: Final = np.dtype(">i2")
_PARTS: Final = 5  # of a record: see `pack`


def pack(
    topic: str,
    queue_id: int,
    bodies: Sequence[bytes],
    raw_properties: Sequence[bytes],
    born_timestamps: npt.ArrayLike,
    sys_flags: npt.ArrayLike,
    *,
    born_host: Host,
    store_host: Host,
    property_crc: bool,
) -> tuple[bytearray, Integers]:
    """The consecutive records of these messages, and the size of each. Fields known only to the append are zero: both
    offsets, store time, record checksum.

    `raw_properties`: of each message, every pair closed. `born_timestamps`: Unix milliseconds. `sys_flags`: without
    those of the hosts; one for all, or one for each message.

    Raises InvalidMessageError for a topic or properties that are too long.
    """
    encoded = topic.encode()
    if not 1 <= len(encoded) <= TOPIC_SIZE_MAX_V2:
        raise InvalidMessageError(f"the topic takes {len(encoded)} bytes; 1 to {TOPIC_SIZE_MAX_V2} are allowed")
    version = 1 if len(encoded) <= TOPIC_SIZE_MAX_V1 else 2
    own_host, producer = encode_host(store_host), encode_host(born_host)
    hosts = (len(producer) != 8) | (len(own_host) != 8) << 1
    crc_part = PROPERTY_CRC_UNPLACED if property_crc else b""
    count = len(bodies)
    if not count:
        return bytearray(), np.zeros(0, np.int64)
    body_size = np.fromiter(map(len, bodies), np.int64, count)
    properties_size = np.fromiter(map(len, raw_properties), np.int64, count) + len(crc_part)
    if (largest := int(properties_size.max())) > PROPERTIES_SIZE_MAX:
        raise InvalidMessageError(f"the properties take {largest} bytes; the limit is {PROPERTIES_SIZE_MAX}")
    fixed = FIXED_STRUCTS[hosts]
    magic = MAGIC_V1 if version == 1 else MAGIC_V2
    head = fixed.pack(0, magic, 0, queue_id, 0, 0, 0, 0, 0, producer, 0, own_host, 0, 0, 0)
    after_body = len(encoded).to_bytes(version, "big") + encoded + bytes(_I16.itemsize)
    parts: list[bytes] = [b""] * (_PARTS * count)
    parts[0::_PARTS] = [head] * count
    parts[1::_PARTS] = bodies
    parts[2::_PARTS] = [after_body] * count
    parts[3::_PARTS] = raw_properties
    parts[4::_PARTS] = [crc_part] * count
    data = bytearray().join(parts)
    size = body_size + properties_size + (len(head) + len(after_body))
    end = np.cumsum(size)
    start = end - size
    stride = int(size[0]) if all_true(size == size[0]) else 0
    view = memoryview(data)
    crcs = np.frombuffer(array("I", map(crc32, bodies)), np.uint32) & np.uint32(BODY_CRC_MASK)
    put_items(view, _I32, start, 0, stride, size)
    put_items(view, _U32, start, BODY_CRC_POSITION, stride, crcs)
    put_items(view, _I32, start, SYS_FLAG_POSITION, stride, np.asarray(sys_flags) | hosts << 4)
    put_items(view, I64, start, BORN_TIMESTAMP_POSITION, stride, born_timestamps)
    put_items(view, _I32, start, len(head) - _I32.itemsize, stride, body_size)
    put_items(view, _I16, end - properties_size, -_I16.itemsize, 0, properties_size)
    return data, size
