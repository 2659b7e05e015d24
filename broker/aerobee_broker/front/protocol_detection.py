"""Detects the protocol of a connection by its first bytes: several protocols share a port.

    0x16 ...                a TLS handshake; the decrypted bytes are examined again (`front.py`)
    "PRI * HTTP/2.0..."     HTTP/2, which gRPC uses
    else                    the first registered `DetectedProtocol` that matches

Protocols are registered with `Front`. `matches` is called with the first bytes, at least one. It returns True, False,
or None while more bytes are needed; after `DECIDED_BY` bytes it must decide. `protocol` then creates an
`asyncio.Protocol` for the connection, which gets all bytes from the first. Unknown bytes are handled as HTTP/2,
whose error answer names the problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from msgspec import Struct

from aerobee_broker.front.frames import PREFACE
from aerobee_broker.limits.ledger import Holdings
from aerobee_broker.limits.tls import CONNECTION_SIZE, TlsTransport

DECIDED_BY: Final = len(PREFACE)
_SIZE: Final = 4_000  # bytes of memory of a connection that waits, measured with 3,000
TLS_HANDSHAKE: Final = 0x16
"""The first byte of every TLS connection: a record of type handshake."""


class DetectedProtocol(Struct, frozen=True):
    """A protocol that shares the port."""

    name: str
    matches: Callable[[bytes], bool | None]
    protocol: Callable[[], asyncio.Protocol]


class ProtocolDetector(asyncio.Protocol):
    """Waits for enough bytes to detect the protocol, then passes the connection to it."""

    __slots__ = (
        "_data",
        "_held",
        "_http2",
        "_protocols",
        "_size",
        "_transport",
        "_waiting",
        "ticks",
    )

    def __init__(
        self,
        http2: Callable[[], asyncio.Protocol],
        protocols: Sequence[DetectedProtocol],
        waiting: dict[ProtocolDetector, None],
        held: Holdings,
    ) -> None:
        """`waiting` has the detectors that wait, oldest first; what they take is in `held`."""
        self._http2 = http2
        self._protocols = protocols
        self._waiting = waiting
        self._held = held
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._size = 0
        self.ticks = 0  # counted by the owner of `waiting`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are not instances of asyncio.Transport
        self._transport = transport
        self._waiting[self] = None
        self._size = _SIZE + (CONNECTION_SIZE if isinstance(transport, TlsTransport) else 0)
        self._held.add("connections", self._size)

    def data_received(self, data: bytes) -> None:
        self._data += data
        chosen = self._choose()
        if chosen is None:
            return
        assert self._transport is not None
        transport, data = self._transport, self._data
        self._waits_no_more()
        protocol = chosen()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._waits_no_more()

    def _waits_no_more(self) -> None:
        if self in self._waiting:
            del self._waiting[self]
            self._held.add("connections", -self._size)

    def abort(self) -> None:
        """Close the connection: no protocol was detected in time, the broker stops, or clients hold too much."""
        self._waits_no_more()
        if self._transport is not None:
            self._transport.abort()

    def _choose(self) -> Callable[[], asyncio.Protocol] | None:
        data = self._data[:DECIDED_BY]
        if PREFACE.startswith(data):  # also for a prefix: no other protocol may begin with these bytes
            return self._http2
        for protocol in self._protocols:
            answer = protocol.matches(data)
            if answer:
                return protocol.protocol
            if answer is None and len(data) < DECIDED_BY:
                return None
        return self._http2
