"""The front end's sockets: listen, accept, detect the protocol of each connection, and stop in order.

TLS and plaintext share a port. The first byte of a connection tells them apart. It is peeked at, not consumed, so that
either transport can be created for the socket.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import logging
import os
import resource
import socket
import ssl
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.connection import TICK_SECONDS, Connection
from aerobee_broker.front.deadlines import Deadlines
from aerobee_broker.front.methods import Methods
from aerobee_broker.front.protocol_detection import TLS_HANDSHAKE, DetectedProtocol, ProtocolDetector
from aerobee_broker.front.proxy_header import (
    BEGINNING_SIZE,
    ProxyHeaderError,
    begins_with_proxy_header,
    skip_proxy_header,
)
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.recent import Recent

_log = logging.getLogger(__name__)
_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 64  # connections accepted before the loop runs other tasks
_NO_DESCRIPTORS_PAUSE: Final = 1.0  # seconds
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FAREWELL_SECONDS: Final = 1.0  # how long a client that does not answer may take to notice the end
_TLS_FAREWELL_SECONDS: Final = 1.0  # how long a TLS shutdown waits for the client's; grpcio's clients send none
_HANDSHAKE_SIZE: Final = 55 << 10  # bytes of memory of a TLS handshake, measured with 1,500 halves
_SILENT_SIZE: Final = 1_200  # bytes of memory of a connection that has sent nothing, measured with 3,000
_ENDED_AT_ONCE: Final = 64  # connections, of the oldest
_DESCRIPTORS_KEPT: Final = 32  # for HTTP probes and other uses of the process
Security = Literal["plain", "tls", "both"]
TlsContext = Callable[[], Awaitable[ssl.SSLContext]]
"""The TLS context for a new connection: certificates may have changed since the last one."""


class Front:
    """Serves methods on any number of addresses."""

    def __init__(
        self,
        methods: Methods,
        config: FrontConfig,
        counters: FrontCounters,
        *,
        protocols: Sequence[DetectedProtocol] = (),
        first_connection: Callable[[], None] = lambda: None,
        ledger: Ledger | None = None,
    ) -> None:
        """`ledger` counts what waits for clients; without one the front has its own, with the default limits.

        `first_connection` is called once, when the first client connects."""
        self._loop = asyncio.get_running_loop()
        self._methods = methods
        self._config = config
        self._counters = counters
        self._protocols = tuple(protocols)
        self._deadlines = Deadlines(self._loop)
        self._turns = InputTurns(self._loop)
        self._ledger = ledger or Ledger()
        self._listeners: list[_Listener] = []
        self._connections: set[Connection] = set()
        self._deciding: dict[ProtocolDetector, None] = {}  # the oldest first
        self._handshakes: Recent[asyncio.Task[None], None] = Recent(config.handshake_count_max, self._end_handshake)
        self._sockets: dict[Path, int] = {}  # Unix sockets of this front, and their inodes
        self._silent: dict[socket.socket, int] = {}  # accepted connections without a byte yet: their age in ticks
        self._undecided = self._ledger.open_table("connections that have sent nothing", self._end_oldest_undecided)
        self._first_connection: Callable[[], None] | None = first_connection
        self._is_ticking = False
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)

    async def start(self) -> None:
        """Does nothing: connections are served from `listen` on."""

    def listen(self, host: str, port: int, security: Security, tls: TlsContext | None) -> int:
        """Accept connections at this address; return the port (for 0, a free one). Raises OSError.

        A host name is listened on at each of its addresses. `tls` is required unless `security` is "plain".
        """
        assert tls is not None or security == "plain", "TLS needs a certificate"
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # As in other servers, [::] includes IPv4, and a name may have several addresses.
                    dual = address[0] == "::" and len(found) == 1
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
                listening.bind((address[0], port, *address[2:]))
                self._listen(listening, security, tls)
            except OSError:
                listening.close()
                raise
            port = listening.getsockname()[1]
        return port

    def listen_unix(self, path: Path, mode: int, security: Security, tls: TlsContext | None) -> None:
        """Accept connections on a Unix socket with these permissions. Raises OSError.

        A socket that no process serves any more is replaced; any other file is not. Stopping the front removes the
        socket.
        """
        remove_stale_socket(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            path.chmod(mode)  # clients cannot connect before it listens
            self._listen(listening, security, tls)
        except OSError:
            listening.close()
            raise
        self._sockets[path] = path.stat().st_ino

    def _listen(self, listening: socket.socket, security: Security, tls: TlsContext | None) -> None:
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._listeners.append(
            _Listener(self._loop, listening, lambda accepted: self._accepted(accepted, security, tls))
        )

    # --- From a socket to a connection ----------------------------------------------------------------------

    def _accepted(self, accepted: socket.socket, security: Security, tls: TlsContext | None) -> None:
        self._counters.accepted += 1
        if self._first_connection is not None:
            self._first_connection()
            self._first_connection = None
        if self._count() >= self._config.connection_count_max:
            self._counters.refused["connection_count_max"] += 1
            accepted.close()
            return
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if accepted.family == socket.AF_UNIX:
            self._connect(accepted, tls if security == "tls" else None)
        else:
            self._look(accepted, security, tls)

    def _count(self) -> int:
        return len(self._connections) + len(self._deciding) + len(self._handshakes) + len(self._silent)

    def _look(
        self,
        accepted: socket.socket,
        security: Security,
        tls: TlsContext | None,
        *,
        waiting: bool = False,
        proxied: bool = False,
    ) -> None:
        """Detect the protocol from the first bytes, if they have arrived. `proxied`: a PROXY header preceded them."""
        try:
            first = accepted.recv(BEGINNING_SIZE, socket.MSG_PEEK)
        except BlockingIOError:
            if not waiting:
                self._silent[accepted] = 0
                self._undecided.add("connections", _SILENT_SIZE)
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
        self._undecided.add("connections", -_SILENT_SIZE)
        self._loop.remove_reader(accepted)

    def _end_oldest_undecided(self) -> None:
        """Clients hold too much memory, and these connections most."""
        for accepted in tuple(itertools.islice(self._silent, _ENDED_AT_ONCE)):
            self._counters.refused["waiting_bytes_max"] += 1
            self._forget_silent(accepted)
            accepted.close()
        for undecided in tuple(itertools.islice(self._deciding, _ENDED_AT_ONCE)):
            self._counters.refused["waiting_bytes_max"] += 1
            undecided.abort()

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
        def detector() -> ProtocolDetector:
            return ProtocolDetector(self._connection, self._protocols, self._deciding, self._undecided)

        holdings = None
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(detector, accepted)
            else:
                task = asyncio.current_task()
                assert task is not None, "handshakes are tasks"
                holdings = self._ledger.open("handshake", _host(accepted), task.cancel)
                holdings.set("handshakes", _HANDSHAKE_SIZE)
                context = await tls()
                await self._loop.connect_accepted_socket(
                    detector,
                    accepted,
                    ssl=context,
                    ssl_handshake_timeout=self._config.handshake_seconds,
                    ssl_shutdown_timeout=_TLS_FAREWELL_SECONDS,
                )
        except OSError as error:  # also errors of TLS, and a handshake that takes too long
            self._counters.refused["tls_handshake"] += 1
            _log.debug("connection not accepted: %s", error)
            accepted.close()
        except Exception as error:
            self._counters.refused["tls_handshake"] += 1
            _log.error("TLS connection not accepted: %s", error)  # ConfigError: there is no certificate
            accepted.close()
        finally:
            if holdings is not None:
                holdings.close()

    def _connection(self) -> Connection:
        return Connection(
            self._methods, self._config, self._counters, self._deadlines, self._connections, self._turns, self._ledger
        )

    # --- Time and end ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        self._counters.connections = self._count()
        if not self._is_ticking:
            self._is_ticking = True
            self._turns.each(self._ticks(), lambda _: None)
        for undecided in tuple(self._deciding):
            undecided.ticks += 1
            if undecided.ticks > self._config.handshake_seconds:
                self._counters.refused["handshake_seconds"] += 1
                undecided.abort()
        for accepted, ticks in tuple(self._silent.items()):
            self._silent[accepted] = ticks + 1
            if ticks >= self._config.handshake_seconds:
                self._counters.refused["handshake_seconds"] += 1
                self._forget_silent(accepted)
                accepted.close()

    def _ticks(self) -> Iterator[None]:
        """There may be tens of thousands of connections."""
        for connection in tuple(self._connections):
            connection.tick()
            yield
        self._is_ticking = False

    @property
    def connection_count(self) -> int:
        """Connections of gRPC clients, and those that have not decided on a protocol."""
        return self._count()

    def hang_up(self, connection: str) -> None:
        """Let the connection of this name end once its calls are answered."""
        for each in tuple(self._connections):
            if each.name == connection:
                each.begin_stop()

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting, let calls end for this time, then abort the rest."""
        self._stop_listening()
        ends = self._loop.time() + grace_seconds
        heard = min(ends, self._loop.time() + _FAREWELL_SECONDS)
        for accepted in tuple(self._silent):
            self._forget_silent(accepted)
            accepted.close()
        told: set[Connection] = set()
        while (self._connections or self._handshakes) and self._loop.time() < ends:
            for connection in self._connections - told:
                connection.begin_stop()
                told.add(connection)
            if self._loop.time() >= heard:
                for connection in tuple(self._connections):
                    connection.finish_stop()
            await asyncio.sleep(0.01)
        self.close()
        for _ in range(3):
            await asyncio.sleep(0)  # the loop reports aborted connections, which cancels their calls

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for path, inode in self._sockets.items():
            with suppress(OSError):
                if path.stat().st_ino == inode:  # not the socket of a broker that has replaced this one
                    path.unlink()
        self._sockets.clear()

    def close(self) -> None:
        """Close everything at once."""
        self._ticker.cancel()
        self._deadlines.close()
        self._stop_listening()
        for accepted in tuple(self._silent):
            self._forget_silent(accepted)
            accepted.close()
        for task in tuple(self._handshakes):
            task.cancel()
        for undecided in tuple(self._deciding):
            undecided.abort()
        for connection in tuple(self._connections):
            connection.abort()


def remove_stale_socket(path: Path) -> None:
    """Remove a Unix socket that no process serves. Raises OSError if one does, or if the file is not a socket."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(errno.EEXIST, "the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


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
