"""From listening sockets to connections, in plaintext or TLS.

TLS and plaintext share a port. The first byte of a connection tells them apart. It is peeked at, not consumed, so that
either transport can be created for the socket. A PROXY header before it is skipped.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import logging
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Final, Literal

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.protocol_detection import TLS_HANDSHAKE
from aerobee_broker.front.proxy_header import (
    BEGINNING_SIZE,
    ProxyHeaderError,
    begins_with_proxy_header,
    skip_proxy_header,
)
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.limits.tls import Endpoint, TlsTransport
from aerobee_broker.recent import Recent

_log = logging.getLogger(__name__)
_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 64  # connections accepted before the loop runs other tasks
_NO_DESCRIPTORS_PAUSE: Final = 1.0  # seconds
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SILENT_SIZE: Final = 1_200  # bytes of memory of a connection that has sent nothing, measured with 3,000
_ENDED_AT_ONCE: Final = 64  # connections, of the oldest
_TICK_SECONDS: Final = 1.0
_WARNING_SECONDS: Final = 1.0  # between two warnings of a port for brokers
_DESCRIPTORS_KEPT: Final = 32  # for HTTP probes and other uses of the process
Security = Literal["plain", "tls", "both"]
TlsContext = Callable[[], Awaitable[ssl.SSLContext]]
"""The TLS context for a new connection: certificates may have changed since the last one."""
Refused = Callable[[str, Exception], None]
"""Told of a connection that came to nothing: the address of the other side, and why."""


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at each address of a host name; port 0 becomes one that is free. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            listeners.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # As in other servers, [::] includes IPv4, and a name may have several addresses.
                dual = address[0] == "::" and len(found) == 1
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
            listening.bind((address[0], port, *address[2:]))
            listening.setblocking(False)
            listening.listen(_BACKLOG)
            port = listening.getsockname()[1]
    except OSError:
        for listening in listeners:
            listening.close()
        raise
    return listeners


class Acceptor:
    """Makes connections of accepted sockets. The owner calls `tick` every second."""

    def __init__(
        self,
        protocol: Callable[[bool], asyncio.Protocol],
        config: FrontConfig,
        counters: FrontCounters,
        ledger: Ledger,
        turns: InputTurns,
        *,
        refused: Refused | None = None,
    ) -> None:
        """`protocol` makes one for a connection, and is told whether it is a TLS one. `turns`: for the work of TLS."""
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._config = config
        self._counters = counters
        self._endpoint = Endpoint(turns, ledger, config.handshake_seconds)
        self._refused = refused
        self._listeners: list[_Listener] = []
        self._handshakes: Recent[asyncio.Task[None], None] = Recent(config.handshake_count_max, self._end_handshake)
        self._silent: dict[socket.socket, int] = {}  # accepted connections without a byte yet: their age in ticks
        self.undecided = ledger.open_table("connections that have sent nothing", self._end_oldest)
        """Counts connections until their protocol is known."""
        self.end_undecided: Callable[[int], None] = lambda count: None
        """Ends so many of the oldest connections that others have counted in `undecided`."""

    def accept_from(
        self, listening: socket.socket, security: Security, tls: TlsContext | None, *, admits: Callable[[], bool]
    ) -> None:
        """Accept connections of this listening socket while `admits` says so; the others are closed.

        `tls` is required unless `security` is "plain".
        """
        assert tls is not None or security == "plain", "TLS needs a certificate"

        def accepted(connection: socket.socket) -> None:
            if not admits():
                connection.close()
                return
            connection.setblocking(False)
            if connection.family == socket.AF_UNIX:
                self._connect(connection, tls if security == "tls" else None)
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._look(connection, security, tls)

        self._listeners.append(_Listener(self._loop, listening, accepted))

    @property
    def count(self) -> int:
        """Connections that are not made yet."""
        return len(self._handshakes) + len(self._silent)

    @property
    def is_shaking_hands(self) -> bool:
        """Whether connections are being made."""
        return bool(self._handshakes)

    def _look(
        self,
        accepted: socket.socket,
        security: Security,
        tls: TlsContext | None,
        *,
        waiting: bool = False,
        proxied: bool = False,
    ) -> None:
        """Tell TLS from plaintext, if the first bytes have arrived. `proxied`: a PROXY header preceded them."""
        try:
            first = accepted.recv(BEGINNING_SIZE, socket.MSG_PEEK)
        except BlockingIOError:
            if not waiting:
                self._silent[accepted] = 0
                self.undecided.add("connections", _SILENT_SIZE)
                look = functools.partial(self._look, accepted, security, tls, waiting=True, proxied=proxied)
                self._loop.add_reader(accepted, look)
            return
        except OSError:
            first = b""
        if waiting:
            self._forget_silent(accepted)
        if not first:
            accepted.close()
        elif not proxied and begins_with_proxy_header(first):
            self._start(self._skip_proxy_header(accepted, security, tls))
        else:
            is_tls = security == "tls" or (security == "both" and first[0] == TLS_HANDSHAKE)
            self._connect(accepted, tls if is_tls else None)

    async def _skip_proxy_header(self, accepted: socket.socket, security: Security, tls: TlsContext | None) -> None:
        try:
            async with asyncio.timeout(self._config.handshake_seconds):
                await skip_proxy_header(accepted)
        except (OSError, ProxyHeaderError) as error:
            self._counters.refused["proxy_header"] += 1
            _log.debug("connection not accepted: %s", error)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        else:
            self._look(accepted, security, tls, proxied=True)

    def _forget_silent(self, accepted: socket.socket) -> None:
        del self._silent[accepted]
        self.undecided.add("connections", -_SILENT_SIZE)
        self._loop.remove_reader(accepted)

    def _end_oldest(self) -> None:
        """Clients hold too much memory, and these connections most."""
        for accepted in tuple(itertools.islice(self._silent, _ENDED_AT_ONCE)):
            self._counters.refused["waiting_bytes_max"] += 1
            self._forget_silent(accepted)
            accepted.close()
        self.end_undecided(_ENDED_AT_ONCE)

    def _connect(self, accepted: socket.socket, tls: TlsContext | None) -> None:
        self._start(self._handshake(accepted, tls))

    def _start(self, handshake: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(handshake, name="front-handshake")
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    def _end_handshake(self, oldest: asyncio.Task[None], _: None) -> None:
        self._counters.refused["handshake_count_max"] += 1
        oldest.cancel()

    async def _handshake(self, accepted: socket.socket, tls: TlsContext | None) -> None:
        host = _host(accepted)
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(lambda: self._protocol(False), accepted)
            else:
                error = await self._shake_hands(accepted, await tls())
                if error is not None:
                    self._refuse(accepted, host, error)
        except OSError as error:  # the socket has gone already
            self._refuse(accepted, host, error)
        except Exception as error:
            self._counters.refused["tls_handshake"] += 1
            _log.error("TLS connection not accepted: %s", error)  # ConfigError: there is no certificate
            accepted.close()

    def _refuse(self, accepted: socket.socket, host: str, error: Exception) -> None:
        self._counters.refused["tls_handshake"] += 1
        _log.debug("connection not accepted: %s", error)
        if self._refused is not None:
            self._refused(host, error)
        accepted.close()

    async def _shake_hands(self, accepted: socket.socket, context: ssl.SSLContext) -> Exception | None:
        """Returns why there is no connection. A raised error would refer to the transport, by its traceback."""
        over: asyncio.Future[Exception | None] = self._loop.create_future()

        def made(error: Exception | None) -> None:
            if not over.done():  # otherwise it was cancelled
                over.set_result(error)

        transport = TlsTransport(self._endpoint, context, lambda: self._protocol(True), made)
        await self._loop.connect_accepted_socket(lambda: transport, accepted)
        try:
            return await over
        except asyncio.CancelledError:
            transport.abort()
            raise

    def tick(self) -> None:
        """Once a second: close connections that have been silent for too long."""
        for accepted, ticks in tuple(self._silent.items()):
            self._silent[accepted] = ticks + 1
            if ticks >= self._config.handshake_seconds:
                self._counters.refused["handshake_seconds"] += 1
                self._forget_silent(accepted)
                accepted.close()

    def stop_listening(self) -> None:
        """Accept no more."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def close_silent(self) -> None:
        """Close the connections that have sent nothing."""
        for accepted in tuple(self._silent):
            self._forget_silent(accepted)
            accepted.close()

    def close(self) -> None:
        """Accept no more, and close what is not a connection yet."""
        self.stop_listening()
        self.close_silent()
        for task in tuple(self._handshakes):
            task.cancel()


class PeerPort:
    """A port that brokers connect to in TLS, and others in plaintext."""

    def __init__(
        self,
        protocol: Callable[[bool], asyncio.Protocol],
        host: str,
        port: int,
        tls: TlsContext,
        ledger: Ledger,
        turns: InputTurns,
    ) -> None:
        """Listen at each address of the host. `protocol` makes one for a connection, and is told whether it is a TLS
        one. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        listeners = open_listeners(host, port)
        self.number: Final = int(listeners[0].getsockname()[1])
        self._warned_at = float("-inf")
        self._acceptor = Acceptor(protocol, FrontConfig(), FrontCounters(), ledger, turns, refused=self._warn)
        for listening in listeners:
            self._acceptor.accept_from(listening, "both", tls, admits=lambda: True)
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _warn(self, host: str, error: Exception) -> None:
        """A broker with a wrong certificate must be found; a stranger must not fill the log."""
        if self._loop.time() - self._warned_at >= _WARNING_SECONDS:
            self._warned_at = self._loop.time()
            cause = str(error) or "the other side ended the TLS handshake; it may not accept peers.certificate"
            _log.warning("connection not accepted port=%d address=%s cause=%s", self.number, host, cause)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)
        self._acceptor.tick()

    def close(self) -> None:
        """Accept no more. Connections stay."""
        self._ticker.cancel()
        self._acceptor.close()


def _host(accepted: socket.socket) -> str:
    """The address of the other side; empty on a Unix socket, or if it has gone."""
    with suppress(OSError):
        peer = accepted.getpeername()
        return str(peer[0]) if isinstance(peer, tuple) else ""
    return ""


def _descriptor_limit() -> int:
    """The lowest descriptor that client connections must not use."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(_DESCRIPTORS_KEPT, soft // 8)


class _Listener:
    """A listening socket."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listening: socket.socket, accepted: Callable[[socket.socket], None]
    ) -> None:
        self._loop = loop
        self._socket = listening
        self._accepted = accepted
        self._resume: asyncio.TimerHandle | None = None
        loop.add_reader(listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._pause(str(error.strerror))
                    return
                continue  # the connection was closed already
            if accepted.fileno() >= _descriptor_limit():  # the system assigns the lowest free descriptor
                accepted.close()
                self._pause("nearly all descriptors are in use, and the rest is reserved for /healthz and the store")
                return
            self._accepted(accepted)

    def _pause(self, cause: str) -> None:
        _log.warning("accepting connections pauses for a second: %s", cause)
        self._loop.remove_reader(self._socket)
        self._resume = self._loop.call_later(_NO_DESCRIPTORS_PAUSE, self._loop.add_reader, self._socket, self._accept)

    def close(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
