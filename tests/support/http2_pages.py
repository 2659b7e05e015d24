"""The HTTP/2 core without gRPC: a server that answers each request with a page, for tools that test only HTTP/2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.front.header_blocks import encoded
from aerobee_broker.front.http2 import DataReceived, Http2Connection, RequestReceived, Stream
from tests.support.http2_client import received

_HEADERS: Final = encoded(((b":status", b"200"), (b"content-type", b"text/plain")))
_TRAILERS: Final = encoded(((b"the-end", b"yes"),))
_PAGE: Final = b"a page of some bytes"
_ANSWER_SECONDS: Final = 0.05  # streams stay open for a moment, so that their number and windows count


class Pages(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._core = Http2Connection(FrontConfig(stream_count_max=100))
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in received(self._core, data):
            if isinstance(event, RequestReceived | DataReceived) and event.ended:
                asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self._answer, event.stream)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._core.abandon()

    def _answer(self, stream: Stream) -> None:
        self._core.respond(stream, _HEADERS, _PAGE, _TRAILERS)
        self._flush()

    def _flush(self) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(self._core.take_output())
            if self._core.ended:
                self._transport.close()


@asynccontextmanager
async def serving_pages(port: int = 0) -> AsyncIterator[int]:
    """The port of a running server."""
    server = await asyncio.get_running_loop().create_server(Pages, "127.0.0.1", port)
    async with server:
        yield server.sockets[0].getsockname()[1]
