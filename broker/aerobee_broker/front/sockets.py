"""The front end's sockets: listen, detect the protocol of each connection, and stop in order."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.accepting import Acceptor, Security, TlsContext, open_listeners
from aerobee_broker.front.connection import TICK_SECONDS, Connection
from aerobee_broker.front.deadlines import Deadlines
from aerobee_broker.front.methods import Methods
from aerobee_broker.front.protocol_detection import DetectedProtocol, ProtocolDetector
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.limits.ledger import Ledger

_BACKLOG: Final = 1024
_FAREWELL_SECONDS: Final = 1.0  # how long a client that does not answer may take to notice the end


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
        self._acceptor = Acceptor(self._detector, config, counters, self._ledger, self._turns)
        self._acceptor.end_undecided = self._end_deciding
        self._connections: set[Connection] = set()
        self._deciding: dict[ProtocolDetector, None] = {}  # the oldest first
        self._sockets: dict[Path, int] = {}  # Unix sockets of this front, and their inodes
        self._first_connection: Callable[[], None] | None = first_connection
        self._is_ticking = False
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)

    async def start(self) -> None:
        """Does nothing: connections are served from `listen` on."""

    def listen(self, host: str, port: int, security: Security, tls: TlsContext | None) -> int:
        """Accept connections at this address; return the port (for 0, a free one). Raises OSError.

        A host name is listened on at each of its addresses. `tls` is required unless `security` is "plain".
        """
        listeners = open_listeners(host, port)
        for listening in listeners:
            self._acceptor.accept_from(listening, security, tls, admits=self._admits)
        return int(listeners[0].getsockname()[1])

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
            listening.setblocking(False)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        self._acceptor.accept_from(listening, security, tls, admits=self._admits)
        self._sockets[path] = path.stat().st_ino

    def _admits(self) -> bool:
        """Note a connection, and tell whether there is room for it."""
        self._counters.accepted += 1
        if self._first_connection is not None:
            self._first_connection()
            self._first_connection = None
        if self._count() < self._config.connection_count_max:
            return True
        self._counters.refused["connection_count_max"] += 1
        return False

    def _count(self) -> int:
        return len(self._connections) + len(self._deciding) + self._acceptor.count

    def _end_deciding(self, count: int) -> None:
        for undecided in tuple(itertools.islice(self._deciding, count)):
            self._counters.refused["waiting_bytes_max"] += 1
            undecided.abort()

    def _detector(self, _is_tls: bool) -> ProtocolDetector:
        return ProtocolDetector(self._connection, self._protocols, self._deciding, self._acceptor.undecided)

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
        self._acceptor.tick()

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
        """Stop accepting, let calls end for this time, then abort the rest.

        A handshake has only the time in which clients hear of the end: one that goes no further has no call.
        """
        self._stop_listening()
        ends = self._loop.time() + grace_seconds
        heard = min(ends, self._loop.time() + _FAREWELL_SECONDS)
        self._acceptor.close_silent()
        told: set[Connection] = set()
        while (now := self._loop.time()) < ends:
            if not self._connections and (now >= heard or not self._acceptor.is_shaking_hands):
                break
            for connection in self._connections - told:
                connection.begin_stop()
                told.add(connection)
            if now >= heard:
                for connection in tuple(self._connections):
                    connection.finish_stop()
            await asyncio.sleep(0.01)
        self.close()
        for _ in range(3):
            await asyncio.sleep(0)  # the loop reports aborted connections, which cancels their calls

    def _stop_listening(self) -> None:
        self._acceptor.stop_listening()
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
        self._acceptor.close()
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
