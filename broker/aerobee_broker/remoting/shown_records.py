"""Records for remoting clients: as in the log, without the properties that only this broker needs.

Clients get every property of a record. RocketMQ's own brokers store no checksum by default, and no marks of this one,
so programs that print or copy the properties of a message must not find them. A replica asks for a record as it is in
the log (AS_STORED).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, Protocol

from aerobee_store import Record
from aerobee_store.records import properties as p

_TOTAL_SIZE: Final = struct.Struct(">i")
_PROPERTIES_SIZE: Final = struct.Struct(">h")
AS_STORED: Final = "asStored"
"""A field of VIEW_MESSAGE_BY_ID, of this broker alone: "true" asks for the bytes of the log."""
_HIDDEN: Final = (f"{p.CRC32}\x01".encode(), b"__AEROBEE_")


def shown_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties for a client."""
    return {name: value for name, value in properties.items() if not f"{name}\x01".encode().startswith(_HIDDEN)}


class Stored(Protocol):
    """The store, as far as it has records."""

    def record_bytes(self, record: Record, /) -> bytes:
        """The log's bytes of a record."""


def shown_bytes(store: Stored, record: Record) -> bytes:
    """The record for a client. Raises RecordNotFoundError if it has expired."""
    stored = store.record_bytes(record)
    end = len(stored) - len(record.raw_properties)
    properties = stored[end:]
    if not any(name in properties for name in _HIDDEN):
        return stored
    kept = b"\x02".join(pair for pair in properties.split(b"\x02") if not pair.startswith(_HIDDEN))
    size = end + len(kept)
    return b"".join(
        (
            _TOTAL_SIZE.pack(size),
            stored[_TOTAL_SIZE.size : end - _PROPERTIES_SIZE.size],
            _PROPERTIES_SIZE.pack(len(kept)),
            kept,
        )
    )
