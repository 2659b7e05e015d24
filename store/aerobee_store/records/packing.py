"""Packs many messages for one queue into records at once, for whoever appends them in store layout.

What all records share is encoded once; one by one (`record.Draft`) it takes three times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from aerobee_store.errors import InvalidMessageError
from aerobee_store.records.properties import PROPERTIES_SIZE_MAX, Host, encode_host
from aerobee_store.records.record import (
    BODY_CRC_MASK,
    FIXED_STRUCTS,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC_UNPLACED,
    TOPIC_SIZE_MAX_V1,
    TOPIC_SIZE_MAX_V2,
)


class Row(NamedTuple):
    """What differs from message to message. `raw_properties`: every pair closed; `born_timestamp` in ms."""

    body: bytes
    raw_properties: bytes
    born_timestamp: int
    sys_flag: int = 0


def pack(
    topic: str,
    queue_id: int,
    rows: Iterable[Row | tuple[bytes, bytes, int, int]],
    *,
    born_host: Host,
    store_host: Host,
    property_crc: bool,
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The records of these messages one behind another, and the size of each. What only an append knows is zero in
    them: both offsets, store time, record checksum.

    Raises InvalidMessageError for a topic or properties that are too long, and struct.error for numbers that do not fit
    their fields.
    """
    encoded = topic.encode()
    if not 1 <= len(encoded) <= TOPIC_SIZE_MAX_V2:
        raise InvalidMessageError(f"topic takes {len(encoded)} bytes, 1 to {TOPIC_SIZE_MAX_V2} are possible")
    version = 1 if len(encoded) <= TOPIC_SIZE_MAX_V1 else 2
    magic = MAGIC_V1 if version == 1 else MAGIC_V2
    topic_part = len(encoded).to_bytes(version, "big") + encoded
    own_host, producer = encode_host(store_host), encode_host(born_host)
    hosts = (len(producer) != 8) | (len(own_host) != 8) << 1
    fixed = FIXED_STRUCTS[hosts]
    head = fixed.pack
    crc_part = PROPERTY_CRC_UNPLACED if property_crc else b""
    crc_size = len(crc_part)
    around = fixed.size + len(topic_part) + 2 + crc_size
    parts: list[bytes] = []
    sizes: list[int] = []
    for body, raw, born_timestamp, sys_flag in rows:
        body_size = len(body)
        properties_size = len(raw) + crc_size
        if properties_size > PROPERTIES_SIZE_MAX:
            raise InvalidMessageError(f"properties take {properties_size} bytes, the limit is {PROPERTIES_SIZE_MAX}")
        size = around + body_size + len(raw)
        parts += (
            head(
                size,
                magic,
                crc32(body) & BODY_CRC_MASK,
                queue_id,
                0,
                0,
                0,
                sys_flag | hosts << 4,
                born_timestamp,
                producer,
                0,
                own_host,
                0,
                0,
                body_size,
            ),
            body,
            topic_part,
            properties_size.to_bytes(2, "big"),
            raw,
            crc_part,
        )
        sizes.append(size)
    return b"".join(parts), np.array(sizes, np.int64)
