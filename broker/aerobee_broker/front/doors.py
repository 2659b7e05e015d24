"""Which protocol a connection speaks, by its first bytes: several share a port.

    0x16 ...                a TLS handshake; what is inside is looked at again (`front.py`)
    "PRI * HTTP/2.0..."     HTTP/2, which gRPC uses
    else                    the first registered `Door` that knows the bytes

A protocol gets a door of its own by being given to `Front`. Its `opens` sees the first bytes, at least one, and says
True or False, or None while it cannot tell yet; at `DECIDED_BY` bytes it has to know. `protocol` then makes an
`asyncio.Protocol` for the connection, which gets the bytes as if it had been there from the beginning. What nobody
knows is taken for HTTP/2, whose answer says what is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from aerobee_broker.front.frames import PREFACE

DECIDED_BY: Final = len(PREFACE)
TLS_HANDSHAKE: Final = 0x16
"""The first byte of every TLS connection: a record of type handshake."""


@dataclass(frozen=True, slots=True)
class Door:
    """A protocol that shares the port."""

    name: str
    opens: Callable[[bytes], bool | None]
    protocol: Callable[[], asyncio.Protocol]


class FirstBytes(asyncio.Protocol):
    """Waits for the bytes that decide, and gives the connection to the protocol that they name."""

    def __init__(self, http2: Callable[[], asyncio.Protocol], doors: Sequence[Door], waiting: set[FirstBytes]) -> None:
        self._http2 = http2
        self._doors = doors
        self._waiting = waiting
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self.ticks = 0  # of whoever owns `waiting`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # of uvloop, which is none by its class
        self._transport = transport
        self._waiting.add(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        chosen = self._choose()
        if chosen is None:
            return
        assert self._transport is not None
        transport, data = self._transport, self._data
        self._waiting.discard(self)
        protocol = chosen()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._waiting.discard(self)

    def abort(self) -> None:
        """It takes too long, or the broker stops."""
        if self._transport is not None:
            self._transport.abort()

    def _choose(self) -> Callable[[], asyncio.Protocol] | None:
        data = self._data[:DECIDED_BY]
        if PREFACE.startswith(data):  # also the first of its bytes: no other protocol may begin with them
            return self._http2
        for door in self._doors:
            answer = door.opens(data)
            if answer:
                return door.protocol
            if answer is None and len(data) < DECIDED_BY:
                return None
        return self._http2
