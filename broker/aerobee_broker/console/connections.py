"""The connections of browsers: what each may make the console keep, and for how long."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from aerobee_broker.config import LimitsConfig
from aerobee_broker.console.forms import READ_SECONDS
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.limits.ledger import Holdings, Ledger
from aerobee_broker.limits.tls import Endpoint, TlsTransport

HEAD_SECONDS: Final = 10.0
"""For the headers of a request, from the connection's begin or the end of the answer before."""
BODY_SECONDS: Final = READ_SECONDS + 10.0
"""For a request's body, whether a page reads it or not; a form that is too slow is answered before."""
ANSWER_SECONDS: Final = 30.0
"""For the browser to take some of an answer."""
CONNECTIONS_MAX: Final = 512
_FORM_BYTES_MAX: Final = 32 << 20  # of large forms in progress
_FORM_BYTES_PER_VISITOR_MAX: Final = 16 << 20  # of one account, or of one address without accounts
_WAITING_BYTES_MAX: Final = 64 << 20
_CONNECTION_SIZE: Final = (_WAITING_BYTES_MAX - _FORM_BYTES_MAX // 2) // CONNECTIONS_MAX
"""Bytes that a connection is charged: with its headers, TLS, and the output that does not pause it, it may have so
many. What is more is charged besides."""


def make_ledger() -> Ledger:
    """What all browsers together may make the console keep."""
    limits = LimitsConfig(
        request_bytes_max=_FORM_BYTES_MAX,
        request_bytes_per_client_max=_FORM_BYTES_PER_VISITOR_MAX,
        waiting_bytes_max=_WAITING_BYTES_MAX,
    )
    return Ledger(limits, name="of the console")


def protocols(ledger: Ledger, context: ssl.SSLContext | None) -> Callable[..., asyncio.Protocol]:
    """Makes the protocols of accepted connections from what the server gives them; without `context`, in plaintext."""
    in_plaintext = partial(Connection, ledger=ledger)
    if context is None:
        return in_plaintext
    endpoint = Endpoint(InputTurns(asyncio.get_running_loop()), ledger, HEAD_SECONDS)

    def in_tls(**of_server: Any) -> TlsTransport:
        return TlsTransport(endpoint, context, partial(in_plaintext, **of_server), lambda error: None)

    return in_tls


class Connection(H11Protocol):
    """A connection in the ledger, which ends when its request does not come, or its answer is not taken."""

    def __init__(self, *, ledger: Ledger, **of_server: Any) -> None:
        super().__init__(**of_server)
        self._ledger = ledger
        self._peer: Holdings | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._phase: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
        """Count it: if there are too many, some are closed."""
        super().connection_made(transport)
        host, port = self.client or ("", 0)
        self._peer = self._ledger.open(f"{host}:{port}", host, lambda: self.loop.call_soon(transport.abort))
        self.app_state = {**self.app_state, "peer": self._peer}
        self._peer.set("connections", _CONNECTION_SIZE)
        if isinstance(transport, TlsTransport):
            transport.charge(self._peer)
        self._advanced()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no longer."""
        super().connection_lost(exc)
        self._limit(None)
        if self._peer is not None:
            self._peer.close()

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        self._advanced()

    def on_response_complete(self) -> None:
        """The end of an answer: the next request may come."""
        super().on_response_complete()
        self._advanced()

    def pause_writing(self) -> None:
        """The browser takes the answer more slowly than it is made."""
        super().pause_writing()
        self._advanced()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self._advanced()

    def _advanced(self) -> None:
        """Give what the connection waits for now its time, unless it waited for that before."""
        if self.transport is None or self._peer is None:
            return
        self._peer.set("unsent", self.transport.get_write_buffer_size() if self.flow.write_paused else 0)
        self._peer.set("received", len(self.conn.trailing_data[0]) + (len(self.cycle.body) if self.cycle else 0))
        state = self.conn.their_state
        is_whole = state in (h11.DONE, h11.MUST_CLOSE) and not self.cycle.response_complete
        phase = (state, is_whole, self.cycle, self.flow.write_paused)
        if phase == self._phase:
            return
        self._phase = phase
        if self.flow.write_paused:
            self._limit(ANSWER_SECONDS)
        elif is_whole:
            self._limit(None)
        else:
            self._limit(BODY_SECONDS if state is h11.SEND_BODY else HEAD_SECONDS)

    def _limit(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            unsent = self.transport.get_write_buffer_size()
            self._timer = self.loop.call_later(seconds, self._expired, seconds, unsent)

    def _expired(self, seconds: float, unsent: int) -> None:
        if 0 < self.transport.get_write_buffer_size() < unsent:
            self._limit(seconds)  # it still takes an answer
        else:
            self.transport.abort()
