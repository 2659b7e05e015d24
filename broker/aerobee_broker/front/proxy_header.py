"""The header that a load balancer sends first on a connection: HAProxy's PROXY protocol, versions 1 and 2.

    version 1    "PROXY TCP4 SOURCE TARGET PORT PORT\r\n", at most 107 bytes
    version 2    12 bytes of signature, version and command, family, 2 bytes of length, so many bytes

The header is skipped. The born host of a message stays that of the connection, because any client could send such a
header.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from aerobee_broker.errors import BrokerError

_TEXT: Final = b"PROXY "
_TEXT_SIZE_MAX: Final = 107
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD_SIZE: Final = 16
_SIZE_MAX: Final = 4096  # bytes of version 2: addresses and the additions of load balancers


BEGINNING_SIZE: Final = 6
"""The number of bytes that tell whether a connection begins with a header; HTTP/2 begins with "PRI"."""


class ProxyHeaderError(BrokerError):
    """A PROXY header has no end, or the connection ended within it."""


def begins_with_proxy_header(data: bytes) -> bool:
    """Whether the first bytes of a connection, `BEGINNING_SIZE` or more, are those of a header."""
    return data.startswith((_TEXT, _SIGNATURE[:BEGINNING_SIZE]))


async def skip_proxy_header(connection: socket.socket) -> None:
    """Read a header from a non-blocking socket that begins with one, and no more. ProxyHeaderError, OSError."""
    loop = asyncio.get_running_loop()
    data = b""
    while not data or proxy_header_size(data) is None:
        wanted = 1
        if data and not _TEXT.startswith(data[: len(_TEXT)]):
            whole = _HEAD_SIZE
            if len(data) >= _HEAD_SIZE:
                whole += int.from_bytes(data[_HEAD_SIZE - 2 : _HEAD_SIZE], "big")
            wanted = whole - len(data)
        part = await loop.sock_recv(connection, wanted)
        if not part:
            raise ProxyHeaderError("the connection ended within its PROXY header")
        data += part


def proxy_header_size(data: bytes | bytearray) -> int | None:
    """The size of the header at the beginning of a connection: 0 if there is none, None if more bytes are needed.

    Raises ProxyHeaderError for a header without an end.
    """
    if data[: len(_TEXT)] == _TEXT:
        end = data.find(b"\r\n", 0, _TEXT_SIZE_MAX)
        if end < 0 and len(data) >= _TEXT_SIZE_MAX:
            raise ProxyHeaderError(f"the PROXY header has no end within {_TEXT_SIZE_MAX} bytes")
        return None if end < 0 else end + 2
    if data[: len(_SIGNATURE)] == _SIGNATURE:
        if len(data) < _HEAD_SIZE:
            return None
        size = _HEAD_SIZE + int.from_bytes(data[_HEAD_SIZE - 2 : _HEAD_SIZE], "big")
        if size > _SIZE_MAX:
            raise ProxyHeaderError(f"the PROXY header has {size} bytes; {_SIZE_MAX} are allowed")
        return None if len(data) < size else size
    is_begun = data and (_TEXT.startswith(bytes(data)) or _SIGNATURE.startswith(bytes(data)))
    return None if is_begun else 0
