"""One connection that speaks gRPC: turns HTTP/2's events into calls, and writes the output of a tick at once."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
from collections import deque
from collections.abc import Mapping
from functools import cache
from time import monotonic
from typing import Final, cast

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.call import Call
from aerobee_broker.front.deadlines import Deadlines
from aerobee_broker.front.frames import ErrorCode
from aerobee_broker.front.grpc_wire import HEADERS, CallHead, plain_error_headers, status_headers
from aerobee_broker.front.header_blocks import encoded
from aerobee_broker.front.http2 import (
    ConnectionEnded,
    DataReceived,
    Event,
    Http2Connection,
    RequestReceived,
    Stream,
    StreamEnded,
)
from aerobee_broker.front.methods import CallAbortedError, Method, Methods, StatusCode
from aerobee_broker.front.subjects import subject_of
from aerobee_broker.front.unsent_answers import UnsentAnswers
from aerobee_broker.limits.input_turns import TURN_SECONDS, InputTurns
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.limits.tls import charge_connection

_log = logging.getLogger(__name__)
_JOINED_SIZE_MAX: Final = 64 << 10  # bytes; larger buffers are passed to the transport separately
_WRITE_BUFFER: Final = 1 << 20  # bytes in the transport; above it the connection neither reads nor writes
_COUNTED_SIZE: Final = 64 << 10  # bytes of unread answers; below it they are not counted
_INPUT_SIZE_MAX: Final = 64 << 10  # bytes that wait for a turn; beyond it the socket is not read
_SETTLED_SIZE: Final = 16 << 10  # bytes; smaller changes of what a connection holds are counted once a second
CONNECTION_SIZE: Final = 5_300  # bytes of memory of an idle connection without TLS, measured with 3,000
_HANDLER_SIZE: Final = 6_000  # bytes of memory of a handler that waits, measured with 9,000 receives
_numbers: Final = itertools.count(1)
_TOO_MANY_CALLS: Final = CallAbortedError(
    StatusCode.RESOURCE_EXHAUSTED, "too many calls of all clients are open; try again later"
)
TICK_SECONDS: Final = 1.0
"""How often `Connection.tick` must be called."""
UNIX_PEER: Final = ("127.0.0.1", 1)
"""The address of every client of a Unix socket."""


class Connection(asyncio.Protocol):
    """`open_connections` belongs to the front: the connection is in it while it is open."""

    __slots__ = (
        "_events",
        "_flushing",
        "_headers_error",
        "_idle_ticks",
        "_is_reading",
        "_kept",
        "_ledger",
        "_left_to_pause",
        "_methods",
        "_open_connections",
        "_owners",
        "_paused",
        "_paused_ticks",
        "_request_ticks",
        "_settled",
        "_silent_ticks",
        "_stopping",
        "_transport",
        "_unsent",
        "_waits",
        "certificate_subject",
        "config",
        "core",
        "counters",
        "deadlines",
        "holdings",
        "is_secure",
        "loop",
        "name",
        "peer_address",
        "running_count",
        "turns",
        "unsent",
    )

    def __init__(
        self,
        methods: Methods,
        config: FrontConfig,
        counters: FrontCounters,
        deadlines: Deadlines,
        open_connections: set[Connection],
        turns: InputTurns,
        ledger: Ledger,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.config = config
        self.counters = counters
        self.deadlines = deadlines
        self._headers_error, refusal = _headers_error(config.header_size_max, config.header_count_max)
        self.core = Http2Connection(config, headers_refusal=refusal)
        self.name = f"connection {next(_numbers)}"
        self.turns = turns
        self._ledger = ledger
        self.holdings = ledger.open(self.name, "", self._drop)
        self.running_count = 0
        self._settled = 0  # bytes counted in `holdings`
        self._unsent = 0  # bytes counted in the ledger's answers: made, and not taken by the client
        self.unsent = UnsentAnswers(self._is_all_sent)
        self._owners = (self.name,)
        self._events: deque[Event] = deque()  # of the core, not handled yet
        self._waits = False  # for its turn
        self._is_reading = True
        self.peer_address = UNIX_PEER
        self.is_secure = False
        self.certificate_subject: str | None = None
        self._methods: Mapping[str, Method] = methods
        self._open_connections = open_connections
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._paused = False
        self._kept = 0  # bytes of requests that are incomplete or unread
        self._silent_ticks = 0  # since the last received byte
        self._idle_ticks = 0  # time without a call
        self._paused_ticks = 0
        self._left_to_pause = 0
        self._request_ticks = 0  # since the last check for stalled requests
        self._stopping = False

    # --- The transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are not instances of asyncio.Transport
        self._transport = transport
        transport.set_write_buffer_limits(_WRITE_BUFFER)
        self.peer_address = _address(transport.get_extra_info("peername"))
        self.holdings.host = self.peer_address[0]
        self.is_secure = transport.get_extra_info("ssl_object") is not None
        if self.is_secure:
            self.certificate_subject = subject_of(transport.get_extra_info("peercert"))
        self._open_connections.add(self)
        charge_connection(transport, self.holdings, CONNECTION_SIZE)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._silent_ticks = 0
        core, turns = self.core, self.turns
        if self._waits or turns.is_full:
            core.keep_input(data)
            self._wait_for_turn()
            self._read_or_pause()
            self._settle()
            return
        began = monotonic()
        self._events.extend(core.receive(data))
        if self._work(began + TURN_SECONDS):
            self._wait_for_turn()
            self._read_or_pause()
        turns.spent(began)

    def _wait_for_turn(self, *, is_first: bool = False) -> None:
        if not self._waits:
            self._waits = True
            self.turns.wait(self._go_on, is_first=is_first)

    def _go_on(self, until: float) -> bool:
        self._waits = self._work(until)
        self._read_or_pause()
        return self._waits

    def _work(self, until: float) -> bool:
        """Handle events and input until this time of `time.monotonic`; return whether some are left for a turn."""
        core, events = self.core, self._events
        while True:
            while events:
                self._handle(events.popleft())
                if events and monotonic() > until:
                    break
            if events or not core.has_input or monotonic() > until:
                break
            events.extend(core.receive(b""))
        if core.refusals:
            self.counters.refused.update(core.refusals)
            core.refusals.clear()
        self.flush()
        more = bool(events) or core.has_input
        if self._transport is None and not more:
            self.holdings.close()
        elif self._settled or core.input_size or core.streams:
            self._settle()
        return more

    def _settle(self, *, exactly: bool = False) -> None:
        """Count what the connection holds. Small changes are left to the next tick, which counts exactly."""
        core = self.core
        received = self._kept + core.input_size
        calls = core.kept_size + self.running_count * _HANDLER_SIZE
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        size = received + calls + unsent
        if exactly or not -_SETTLED_SIZE < size - self._settled < _SETTLED_SIZE:
            self._settled = size
            holdings = self.holdings
            holdings.set("received", received)
            holdings.set("calls", calls)
            holdings.set("unsent", unsent)

    def _handle(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            call = event.stream.call
            if isinstance(call, Call):
                call.data(event.data, event.ended)
        elif isinstance(event, RequestReceived):
            self._request(event)
        elif isinstance(event, StreamEnded):
            call = event.stream.call
            if isinstance(call, Call):
                call.gone()
        else:
            self._ended(event)

    def _count_unsent(self, unsent: int) -> None:
        """Count the answers that wait for the client to read."""
        change, self._unsent = unsent - self._unsent, unsent
        if change > 0:
            self._ledger.answers.take_now(change, self._owners)
        else:
            self._ledger.answers.give(-change, self._owners)

    def _read_or_pause(self) -> None:
        """Read from the socket, unless the client has to wait."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = not (self._paused or (self._waits and self.core.input_size > _INPUT_SIZE_MAX))
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def eof_received(self) -> None:
        """The client has closed its side. gRPC clients never close only one side, so nobody waits for answers."""

    def pause_writing(self) -> None:
        self._paused = True
        self._read_or_pause()  # a client that does not read answers may not send further requests

    def resume_writing(self) -> None:
        self._paused = False
        self._paused_ticks = 0
        self._read_or_pause()
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.core.abandon()
        self._open_connections.discard(self)
        if self._unsent:
            self._count_unsent(0)
        self.unsent.connection_lost(self.turns)
        if self._events or self.core.streams:
            # To end its calls. There may be thousands, and other connections may end with it. First: it frees memory.
            self._wait_for_turn(is_first=True)
        else:
            self.holdings.close()

    def flush_soon(self) -> None:
        """Write at the end of this tick, in practice at the beginning of the next one."""
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the pending output of the HTTP/2 core, as much as a step of the loop has time for."""
        self._flushing = False
        until = 0.0
        transport = self._transport
        core = self.core
        if transport is None or self._paused or transport.is_closing():
            return
        while core.has_output:
            output = core.take_output()
            if len(output) == 1:
                transport.write(output[0])
            elif sum(map(len, output)) <= _JOINED_SIZE_MAX:
                transport.write(b"".join(output))
            else:
                transport.writelines(output)
            if core.drained:
                drained, core.drained = core.drained, []
                for stream in drained:
                    cast(Call, stream.call).drained()
            if transport.get_write_buffer_size() > _WRITE_BUFFER:
                break  # until resume_writing
            now = monotonic()
            until = until or now + TURN_SECONDS
            if now > until and core.has_output:
                self.flush_soon()
                return
        unsent = core.pending_size
        if unsent >= _COUNTED_SIZE or self._unsent:
            self._count_unsent(unsent if unsent >= _COUNTED_SIZE else 0)
        if core.is_over and not self._events:
            transport.close()

    def _is_all_sent(self) -> bool:
        transport, core = self._transport, self.core
        return not (core.has_output or core.pending_size or (transport and transport.get_write_buffer_size()))

    # --- Calls ----------------------------------------------------------------------------------------------

    def _request(self, event: RequestReceived) -> None:
        stream, head = event.stream, event.head
        if head.size > self.config.header_size_max:
            self.counters.refused["header_size_max"] += 1
            self._refuse(stream, self._headers_error)
            return
        if len(head.fields) > self.config.header_count_max:
            self.counters.refused["header_count_max"] += 1
            self._refuse(stream, self._headers_error)
            return
        call_head = head.note
        if call_head is None:
            call_head = head.note = CallHead(head)
        assert isinstance(call_head, CallHead)
        method = self._methods.get(call_head.path)
        if call_head.plain_error:
            self.core.send_headers(stream, plain_error_headers(call_head.plain_error), ended=True)
        elif method is None:
            self._refuse(stream, CallAbortedError(StatusCode.UNIMPLEMENTED, "unknown method"))
        elif call_head.error is not None:
            self._refuse(stream, call_head.error)
        elif len(call_head.metadata) > self.config.header_count_max:
            self.counters.refused["header_count_max"] += 1
            self._refuse(stream, self._headers_error)
        elif self.counters.open_calls >= self.config.call_count_max:
            self.counters.refused["call_count_max"] += 1
            self._refuse(stream, _TOO_MANY_CALLS)
        else:
            self._idle_ticks = 0
            call = Call(self, stream, call_head, method)
            stream.call = call
            if event.ended:
                call.data(b"", True)

    def _refuse(self, stream: Stream, error: CallAbortedError) -> None:
        self.core.send_headers(stream, _refusal(error), ended=True)

    def keep(self, change: int) -> bool:
        """Count bytes of kept requests. Returns whether they are within the bound of a connection."""
        self._kept += change
        if change <= 0:
            return True
        self._settle()
        if self._kept > self.config.connection_request_size_max:
            self.counters.refused["connection_request_size_max"] += 1
            return False
        return True

    def _ended(self, event: ConnectionEnded) -> None:
        if event.bound:
            self.counters.refused[event.bound] += 1
            _log.warning("connection ended address=%s:%d bound=%s: %s", *self.peer_address, event.bound, event.text)
        else:
            _log.info("connection ended address=%s:%d: %s", *self.peer_address, event.text)

    # --- Time -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called every second: find connections that are slow, idle or dead."""
        core, config = self.core, self.config
        core.relax()
        if self._transport is None:
            return
        self._settle(exactly=True)
        self._silent_ticks += 1
        if self._paused:
            # The buffer may be large and the client slow, but the client must read some of it.
            left = self._transport.get_write_buffer_size()
            self._paused_ticks = self._paused_ticks + 1 if left >= self._left_to_pause else 0
            self._left_to_pause = left
            if self._paused_ticks > config.stall_seconds:
                self._give_up("stall_seconds")
                return
        if not core.greeted:
            self._idle_ticks += 1
            if self._idle_ticks > config.handshake_seconds:
                self._give_up("handshake_seconds")
            return
        self._end_stalled_calls()
        self._idle_ticks = 0 if core.streams else self._idle_ticks + 1
        if self._idle_ticks > config.idle_seconds and not self._stopping:
            self.counters.refused["idle_seconds"] += 1
            self.begin_stop()
        elif self._idle_ticks > config.idle_seconds + config.keepalive_timeout_seconds:
            self.finish_stop()  # the client sends bytes but does not answer the PING
        elif self._silent_ticks > config.keepalive_seconds + config.keepalive_timeout_seconds:
            self._give_up("keepalive_seconds")
            return
        elif self._silent_ticks == int(config.keepalive_seconds) + 1:
            core.ping()
        self.flush()

    def _end_stalled_calls(self) -> None:
        core, config = self.core, self.config
        for stream in core.stalled(int(config.stall_seconds)):
            self.counters.refused["stall_seconds"] += 1
            core.reset(stream, ErrorCode.CANCEL)
            if isinstance(stream.call, Call):
                stream.call.gone()
        self._request_ticks += 1
        if self._request_ticks <= config.stall_seconds:
            return
        self._request_ticks = 0
        for stream in core.stalled_requests():
            call = stream.call
            if isinstance(call, Call) and call.takes_one_request:
                self.counters.refused["stall_seconds"] += 1
                call.stall()

    def _give_up(self, bound: str) -> None:
        self.counters.refused[bound] += 1
        if self._transport is not None:
            self._transport.abort()

    # --- The end --------------------------------------------------------------------------------------------

    def begin_stop(self) -> None:
        """Send GOAWAY. The connection closes when its calls are answered, those included that the client began before
        it received the GOAWAY."""
        if not self._stopping:
            self._stopping = True
            self.core.begin_shutdown()
            self.flush()

    def finish_stop(self) -> None:
        """Accept no more calls, whether or not the client has received the GOAWAY."""
        self.core.finish_shutdown()
        self.flush()

    def _drop(self) -> None:
        """Clients hold too much memory, this one most."""
        self._give_up("waiting_bytes_max")

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


@cache
def _headers_error(size_max: int, count_max: int) -> tuple[CallAbortedError, bytes]:
    """The error of headers that exceed the limits, and the block that answers them."""
    error = CallAbortedError(
        StatusCode.RESOURCE_EXHAUSTED,
        f"the headers exceed the limit ({size_max} bytes, {count_max} headers); send less metadata",
    )
    return error, _refusal(error)


def _refusal(error: CallAbortedError) -> bytes:
    return HEADERS + encoded(status_headers(error.code, error.details))


def _address(peer: object) -> tuple[str, int]:
    if not isinstance(peer, tuple):
        return UNIX_PEER
    host, port = str(peer[0]).partition("%")[0], int(peer[1])
    ip = ipaddress.ip_address(host)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped), port
    return host, port
