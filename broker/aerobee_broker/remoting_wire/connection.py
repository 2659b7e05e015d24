"""Connections of the remoting protocol and their limits, independent of the meaning of requests.

Requests of one connection run concurrently and are answered when they are ready, so a waiting pull blocks nothing.
Reading stops while too many requests run, their bytes use up a budget, or the peer does not read its answers. The bytes
of an incomplete frame are held while it arrives. All of them count in one ledger with those of gRPC calls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol, cast

from aerobee_broker.config import Address
from aerobee_broker.errors import BrokerError, ListenError, TooManyRequestsError
from aerobee_broker.front.accepting import PeerPort, TlsContext
from aerobee_broker.front.proxy_header import ProxyHeaderError, proxy_header_size
from aerobee_broker.front.unsent_answers import UnsentAnswers
from aerobee_broker.limits.byte_budget import Share
from aerobee_broker.limits.input_turns import TURN_SECONDS, InputTurns
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.limits.tls import charge_connection
from aerobee_broker.limits.wakes import Gate, Wakes
from aerobee_broker.remoting_wire.errors import refusal
from aerobee_broker.remoting_wire.frame import (
    FLAG_ONE_WAY,
    FLAG_RESPONSE,
    FRAME_SIZE_MAX,
    Command,
    FrameFormatError,
    FrameReader,
    encode_head,
)

_log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 120.0  # RocketMQ's: a connection that is silent in both directions for this long is closed
RUNNING_MAX: Final = 8192  # concurrent requests of one connection; a consumer holds one pull for each of its queues
FAST_PORT_DISTANCE: Final = 2  # from the remoting port down; see `RemotingServer.listen_fast`
_BACKLOG: Final = 1024
_CLOSE_SECONDS: Final = 1.0  # time for peers to read the last answers
_MEMORY_CHECK_SECONDS: Final = 5.0  # interval of checks for free bytes
_CONNECTION_SIZE: Final = 4_000  # bytes of memory of an idle connection, measured with 3,000
_COMMAND_SIZE: Final = 512  # bytes of a request besides its body and fields
_RUNNING_SIZE: Final = 5_500  # bytes of memory of a request that waits, besides, measured with 9,000 pulls
_COMMANDS_AT_ONCE: Final = 16  # requests that begin between two looks at the clock
_OPAQUE_MAX: Final = (1 << 31) - 1
_JOINED_SIZE_MAX: Final = 64 << 10  # bytes of a body that is copied behind its header, to be written with it
_PART_SIZE: Final = 4 << 20  # bytes of a larger body that are written, and encrypted, in one turn

Handler = Callable[[Command, "Connection"], Awaitable[Command | None]]
"""Answers a request; None: it has no answer."""


class Identity(Protocol):
    """What this process proves to the other side, when that is a broker or a name server."""

    @property
    def accepting(self) -> TlsContext | None:
        """For connections of brokers that are accepted; None: they are plaintext."""

    def context_to(self, host: str) -> ssl.SSLContext | None:
        """For a connection to this host; None: it is plaintext."""

    def sign(self, request: Command) -> None:
        """Sign a request, if there is a secret."""


class PeerGoneError(BrokerError):
    """The connection ended before the peer answered."""


class Connection(asyncio.Protocol):
    """One connection from a client. Event loop only."""

    __slots__ = (
        "__weakref__",
        "_active_at",
        "_asked",
        "_begun",
        "_closes",
        "_idle_timer",
        "_is_full",
        "_opaques",
        "_parts",
        "_parts_wait",
        "_paused",
        "_reader",
        "_running",
        "_server",
        "_transport",
        "_unsent",
        "_waits",
        "_waits_for_memory",
        "_writable",
        "holdings",
        "is_of_broker",
        "key",
        "local",
        "peer",
    )

    def __init__(
        self, server: RemotingServer, *, is_of_broker: bool = False, frame_size_max: int = FRAME_SIZE_MAX
    ) -> None:
        self._server = server
        self.is_of_broker: Final = is_of_broker
        """Whether the other side has shown a certificate of the cluster."""
        self._reader = FrameReader(frame_size_max=frame_size_max)
        self._begun: bytearray | None = bytearray()  # until it is known whether a PROXY header comes first
        self._transport: asyncio.Transport | None = None
        self._running = 0
        self._writable = Gate(server.wakes)
        self._is_full = False  # the transport's buffer
        self._parts: deque[bytes | memoryview] = deque()  # of a large body, and what is behind it
        self._parts_wait = False  # for their turn
        self._closes = False  # when these are written
        self._paused = False
        self._active_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._opaques = itertools.count()
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self.peer: tuple[str, int] = ("127.0.0.1", 0)
        self.local = Address("127.0.0.1", 0)
        self.key = f"remoting {next(server.numbers)}"
        """Identifies the connection in place of a client id; no client id has a blank before a number."""
        self.holdings = server.ledger.open(self.key, "", self.abort)
        self._waits_for_memory = False
        self._waits = False  # for its turn
        self._unsent = UnsentAnswers(
            lambda: self._transport is None or not (self._parts or self._transport.get_write_buffer_size())
        )

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if peer:
            self.peer = (peer[0].partition("%")[0].removeprefix("::ffff:"), peer[1])
            self.holdings.host = self.peer[0]
        if local:
            self.local = Address(local[0].partition("%")[0].removeprefix("::ffff:"), local[1])
        self._server.connections.add(self)
        charge_connection(transport, self.holdings, _CONNECTION_SIZE)
        self._active_at = asyncio.get_running_loop().time()
        self._watch_idleness()

    def data_received(self, data: bytes) -> None:
        self._active_at = asyncio.get_running_loop().time()
        try:
            if self._begun is not None:
                self._begun += data
                if (size := proxy_header_size(self._begun)) is None:
                    return
                data, self._begun = bytes(self._begun[size:]), None
            if self._waits or self._server.turns.is_full:
                self._reader.keep(data)
                self._wait_for_turn()
                return
            began = monotonic()
            self._reader.keep(data)
            if self._go_on(began + TURN_SECONDS):
                self._server.turns.wait(self._go_on)
            self._server.turns.spent(began)
        except (FrameFormatError, ProxyHeaderError) as error:
            _log.warning("connection closed peer=%s:%d cause=%s", *self.peer, error)
            self.abort()
            return

    def _wait_for_turn(self) -> None:
        if not self._waits:
            self._waits = True
            self._server.turns.wait(self._go_on)
        self._hold_input()
        self._pause_or_resume()

    def _hold_input(self) -> None:
        """Count the requests that run, and the bytes of frames that are incomplete or wait for their turn."""
        self.holdings.set("received", self._reader.waiting_size)
        self.holdings.set("calls", self._running * _RUNNING_SIZE)

    def _go_on(self, until: float) -> bool:
        """Begin requests until this time of `time.monotonic`; return whether some are left for a later turn."""
        more = self.is_open and self._running < RUNNING_MAX  # otherwise the next answer continues
        while more:
            try:
                commands = self._reader.feed(b"", count_max=_COMMANDS_AT_ONCE)
            except FrameFormatError as error:
                _log.warning("connection closed peer=%s:%d cause=%s", *self.peer, error)
                self.abort()
                commands = []
            for command in commands:
                if command.is_response:
                    asked = self._asked.get(command.opaque)
                    if asked is not None and not asked.done():
                        asked.set_result(command)
                else:
                    self._running += 1
                    self._server.start(self._answer(command, self._taken(command)))
            more = len(commands) == _COMMANDS_AT_ONCE and self._running < RUNNING_MAX
            if self._server.turns.started(len(commands)) or monotonic() > until:
                break
        self._waits = more
        self._hold_input()
        self._pause_or_resume()
        return more

    def pause_writing(self) -> None:
        self._is_full = True
        self._writable.clear()
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._parts:
            self._wait_to_write()
        else:
            self._writable.set()
            self._pause_or_resume()

    def connection_lost(self, exc: Exception | None) -> None:
        hint = ""
        if self._begun is not None and self._transport is not None and self._transport.get_extra_info("sslcontext"):
            # TLS 1.3 tells who connects of a completed handshake before the other side has seen the certificate.
            hint = "; the other side may not accept peers.certificate, and its log says why"
        self._transport = None
        self._reader = FrameReader()
        self._parts.clear()
        self.holdings.close()
        self._writable.set()
        self._unsent.connection_lost(self._server.turns)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(PeerGoneError(f"the connection ended before the answer came{hint}"))
        self._server.closed(self)

    # --- For handlers -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def frame_size_max(self) -> int:
        """Bytes of the longest frame that is read from this connection."""
        return self._reader.frame_size_max

    @property
    def table_frame_size_max(self) -> int:
        """Bytes of the longest frame with a whole table, for a peer that reads so many."""
        return self._server.table_frame_size_max

    async def writable(self, seconds: float) -> None:
        """Return when the peer has read enough, or is gone, and its answers leave space for more.

        Raises TooManyRequestsError after `seconds` without space.
        """
        await self._writable.wait()
        await self._server.ledger.answers.wait_free((self.key,), seconds=seconds)

    async def room_for_answer(self, size: int) -> Share:
        """Wait until an answer of this size may be made. Close the share when it is made.

        Raises TooManyRequestsError if the peer does not read its earlier answers.
        """
        share = Share(self._server.ledger.answers, (self.key,))
        await share.take(size, _MEMORY_CHECK_SECONDS)
        return share

    @property
    def turns(self) -> InputTurns:
        """For work on behalf of this connection that has many parts."""
        return self._server.turns

    async def next_turn(self, seconds: float) -> None:
        """Between two pieces of a request's work: return when there is time for one of this many seconds."""
        await self._server.turns.next(seconds)

    def notify(self, command: Command) -> bool:
        """Send a request without an answer; False if the peer is gone, or does not read."""
        if not self.is_open or not self._writable.is_set():
            return False
        command.flag |= FLAG_ONE_WAY
        command.opaque = self._next_opaque()
        self._write(command)
        return True

    @property
    def is_fast(self) -> bool:
        """Whether it came to the port that replicas of RocketMQ use."""
        return self.local.port == self._server.fast_port

    async def ask(self, command: Command, seconds: float) -> Command:
        """Send a request and return its answer. Raises PeerGoneError, TimeoutError."""
        if not self.is_open:
            raise PeerGoneError("the connection has ended")
        command.opaque = self._next_opaque()
        if self._server.identity is not None:
            self._server.identity.sign(command)
        asked: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._asked[command.opaque] = asked
        try:
            self._write(command)
            async with asyncio.timeout(seconds):
                return await asked
        finally:
            del self._asked[command.opaque]

    def abort(self) -> None:
        """Close the connection now, dropping unwritten bytes."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection when all answers are written."""
        if self._parts:
            self._closes = True
        elif self._transport is not None:
            self._transport.close()

    # --- Internals --------------------------------------------------------------------------------------------

    def _taken(self, command: Command) -> Share:
        """Count the bytes of a request until it is answered. They are in memory already."""
        share = Share(self._server.ledger.requests, (self.key,))
        share.take_now(_COMMAND_SIZE + len(command.body) + sum(map(len, command.fields.values())))
        return share

    async def _answer(self, command: Command, taken: Share) -> None:
        try:
            # An answer is not made while earlier ones wait for the peer to read; each may have megabytes.
            if not self._writable.is_set() and not command.is_one_way:
                await self._writable.wait()
            try:
                answer = await self._server.handler(command, self)
            except Exception as error:
                answer = refusal(error, command.code)
            if command.access_key:
                self.holdings.is_known = True
            if answer is None:
                return
            if command.is_one_way or not self.is_open:
                if answer.if_lost is not None:
                    answer.if_lost()
                return
            answer.opaque = command.opaque
            answer.flag |= FLAG_RESPONSE
            self._write(answer)
            if answer.body and not self._writable.is_set():
                await self._kept(len(answer.body))
        finally:
            taken.close()
            self._running -= 1
            self.holdings.set("calls", self._running * _RUNNING_SIZE)
            if self._running == RUNNING_MAX - 1:
                self._wait_for_turn()
            self._pause_or_resume()

    async def _kept(self, size: int) -> None:
        """Count an answer that waits in memory for the peer to read."""
        answers, owners = self._server.ledger.answers, (self.key,)
        answers.take_now(size, owners)
        try:
            await self._writable.wait()
        finally:
            answers.give(size, owners)

    def _write(self, command: Command) -> None:
        assert self._transport is not None, "checked by the caller"
        body = command.body
        try:
            head = encode_head(command)
        except FrameFormatError as error:
            head, body = encode_head(Command(1, opaque=command.opaque, flag=command.flag, remark=str(error))), b""
            if command.if_lost is not None:
                command.if_lost()
        self._active_at = asyncio.get_running_loop().time()
        if self._parts or len(body) > _PART_SIZE:
            view = memoryview(body)
            self._parts.append(head)
            self._parts.extend(view[begin : begin + _PART_SIZE] for begin in range(0, len(body), _PART_SIZE))
            self._writable.clear()
            self._pause_or_resume()
            if not self._is_full:
                self._wait_to_write()
        elif len(body) <= _JOINED_SIZE_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        if command.if_lost is not None:
            self._unsent.add(command.if_lost)

    def _wait_to_write(self) -> None:
        if not self._parts_wait:
            self._parts_wait = True
            self._server.turns.wait(self._write_parts)

    def _write_parts(self, until: float) -> bool:
        """Write until this time, as long as the peer reads; return whether there is more for a later turn."""
        while self._transport is not None and self.is_open and self._parts and not self._is_full:
            self._transport.write(self._parts.popleft())
            if monotonic() > until:
                break
        self._parts_wait = bool(self._parts) and self.is_open and not self._is_full
        if not self._parts and self._transport is not None:
            if self._closes:
                self._transport.close()
            elif not self._is_full:
                self._writable.set()
                self._pause_or_resume()
        return self._parts_wait

    def _next_opaque(self) -> int:
        return next(self._opaques) & _OPAQUE_MAX

    def _pause_or_resume(self) -> None:
        has_free = self._server.ledger.requests.has_free(1, (self.key,))
        if not has_free and not self._waits_for_memory and self.is_open:
            self._waits_for_memory = True
            self._server.start(self._resume_with_room())
        wanted = self._waits or self._running >= RUNNING_MAX or not self._writable.is_set() or not has_free
        if wanted == self._paused or not self.is_open:
            return
        assert self._transport is not None, "it is open"
        self._paused = wanted
        with suppress(RuntimeError):  # closed in the meantime
            if wanted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    async def _resume_with_room(self) -> None:
        """Resume reading when requests in progress, of this connection or others, have been answered."""
        while self.is_open:
            with suppress(TooManyRequestsError):  # check whether it is still open
                await self._server.ledger.requests.wait_free((self.key,), seconds=_MEMORY_CHECK_SECONDS)
                break
        self._waits_for_memory = False
        self._pause_or_resume()

    def _watch_idleness(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._active_at + self._server.idle_seconds - loop.time()
        if left <= 0:
            _log.info("connection closed peer=%s:%d cause=silent for %g s", *self.peer, self._server.idle_seconds)
            self.abort()
        else:
            self._idle_timer = loop.call_later(left, self._watch_idleness)


class RemotingServer:
    """Listens, and owns the connections. Its tasks are those of requests; they end with `stop`."""

    def __init__(
        self,
        handler: Handler,
        *,
        idle_seconds: float = IDLE_SECONDS,
        ledger: Ledger | None = None,
        identity: Identity | None = None,
    ) -> None:
        """`ledger` counts what waits for peers; without one the server has its own, with the default limits.

        `identity`: of this process among brokers.
        """
        self.handler = handler
        self.ledger = ledger or Ledger()
        self.idle_seconds = idle_seconds
        self.connections: set[Connection] = set()
        self.closed_listeners: list[Callable[[Connection], None]] = []
        self.numbers = itertools.count(1)
        self.identity = identity
        self.turns = InputTurns(asyncio.get_running_loop())
        self.wakes = Wakes()
        self.fast_port: int | None = None
        """The port of replicas of RocketMQ, and of old clients; see `listen_fast`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server | PeerPort] = []
        self._closed_one = asyncio.Event()

    def connection(self) -> Connection:
        """A new connection, for the code that accepts it."""
        return Connection(self)

    async def listen(self, setting: str, address: Address) -> Address:
        """Bind the address of this setting; returns the bound one. May be called again. Raises ListenError."""
        tls = None if self.identity is None else self.identity.accepting
        try:
            if tls is not None:
                port = PeerPort(self._accepted, address.host, address.port, tls, self.ledger, self.turns)
                self._listeners.append(port)
                return Address(address.host, port.number)
            listener = await asyncio.get_running_loop().create_server(
                self.connection, address.host, address.port, backlog=_BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise ListenError(setting, address, error.strerror or str(error)) from None
        self._listeners.append(listener)
        return Address(address.host, listener.sockets[0].getsockname()[1])

    def _accepted(self, is_tls: bool) -> Connection:
        return Connection(self, is_of_broker=is_tls)

    @property
    def table_frame_size_max(self) -> int:
        """Bytes of the longest frame with a whole table, sent or received: it counts in the ledger, where the buffer
        that it arrives in takes up to an eighth more."""
        return max(FRAME_SIZE_MAX, self.ledger.held_max * 3 // 4)

    async def connect(self, address: Address, *, reads_tables: bool = False) -> Connection:
        """A connection to a broker or a name server, with this process's identity. `reads_tables`: also from frames
        that are longer than others may be. Raises OSError."""
        context = None if self.identity is None else self.identity.context_to(address.host)
        frame_size_max = self.table_frame_size_max if reads_tables else FRAME_SIZE_MAX
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self, frame_size_max=frame_size_max), address.host, address.port, ssl=context
        )
        return connection

    async def listen_fast(self, bound: Address) -> None:
        """Also listen two ports below `bound`: RocketMQ's replicas request topics there, and clients with a VIP channel
        send all but heartbeats there. If the port is not available, a warning is logged."""
        port = bound.port - FAST_PORT_DISTANCE
        if port <= 0:
            return
        try:
            self.fast_port = (await self.listen("listen.remoting", Address(bound.host, port))).port
        except ListenError as error:
            _log.warning(
                "replicas of RocketMQ, and clients with its VIP channel, cannot connect because port %d is not "
                "available cause=%s",
                port,
                error,
            )

    def start(self, work: Awaitable[None]) -> None:
        """Start a task that answers a request."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def closed(self, connection: Connection) -> None:
        """Note that the connection has ended."""
        self.connections.discard(connection)
        self._closed_one.set()
        for listener in self.closed_listeners:
            listener(connection)

    async def stop(self, seconds: float) -> None:
        """Refuse new connections, wait this long for requests in progress, then close all."""
        for listener in self._listeners:
            listener.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in tuple(self.connections):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._all_closed()
        for connection in tuple(self.connections):
            connection.abort()

    async def _all_closed(self) -> None:
        while self.connections:
            self._closed_one.clear()
            await self._closed_one.wait()
