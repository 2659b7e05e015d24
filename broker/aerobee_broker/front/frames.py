"""HTTP/2's frames (RFC 9113, section 4 and 6). Integers are big-endian.

offset  size  field
     0     3  length      of the payload
     3     1  type        DATA, HEADERS, ...
     4     1  flags
     5     4  stream id   the highest bit is ignored; 0: the connection
     9     -  payload
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes from a client."""

HEADER_SIZE: Final = 9
FRAME_SIZE_DEFAULT: Final = 16384
WINDOW_DEFAULT: Final = 65535
WINDOW_MAX: Final = (1 << 31) - 1
STREAM_ID_MAX: Final = (1 << 31) - 1

_HEADER: Final = struct.Struct(">IBI")  # length and type in one number
read_header: Final = _HEADER.unpack_from
"""(length << 8 | type, flags, stream id) of a frame header."""
assert _HEADER.size == HEADER_SIZE, "the table above and the struct must agree"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20


class Setting(IntEnum):
    """The identifiers of SETTINGS."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """The reason why a stream or a connection ended (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A complete frame."""
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def frame_header(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """The header of a frame with a payload of `size` bytes."""
    return _HEADER.pack(size << 8 | kind, flags, stream_id)


def settings(values: dict[Setting, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame for a stream, or for the connection (0)."""
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    """A GOAWAY frame: streams above `last_stream_id` are not served."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()
    return frame(GOAWAY, 0, 0, payload)
