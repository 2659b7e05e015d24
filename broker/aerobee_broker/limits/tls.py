"""TLS over an accepted connection: a step of the event loop decrypts by its clock, not by what has arrived.

    socket -> uvloop's transport -> TlsTransport -> the protocol of the connection, which takes it for its transport

A handshake, decryption, and the encryption of large output go on in turns, like the work on what has been decrypted:
see `limits/input_turns.py`. Input that waits for its turn is charged to the connection, and above 64 KiB the socket is
not read. Output that waits pauses the protocol's writing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Final, cast

from aerobee_broker.limits.input_turns import TURN_SECONDS, InputTurns
from aerobee_broker.limits.ledger import Holdings, Ledger

_log = logging.getLogger(__name__)

_RECORD_SIZE: Final = 16_384  # bytes; the most that a TLS record carries
# Bytes of records that OpenSSL gets at once. It handles all that carry no application data in one call: the 16 KiB may
# be 600 updates of keys, which take some milliseconds.
_PIECE_SIZE: Final = 16_384
_RECORDS_AT_ONCE: Final = 4  # of large output, between two looks at the clock
_DECRYPTED_SIZE: Final = 64 << 10  # bytes that the protocol gets at once
_INPUT_SIZE_MAX: Final = 64 << 10  # bytes of records that wait for a turn; beyond it the socket is not read
_BARREN_SIZE_MAX: Final = 64 << 10  # bytes of records without application data, after which the connection ends
# Bytes of answers to updates of keys, after which the connection ends: for 2,400 of them. Clients update their keys
# after gigabytes. The protocol does not know of these bytes, and is not charged for them.
_ANSWERED_SIZE_MAX: Final = 64 << 10
_FAREWELL_SECONDS: Final = 1.0  # for the other side to take some of the last output, and then to close
HANDSHAKE_SIZE: Final = 55 << 10
"""Bytes of memory of a handshake, measured with 1,500 halves."""
CONNECTION_SIZE: Final = 20_000
"""Bytes of memory of a TLS connection, measured with 1,000, besides what one in plaintext takes, and the buffers that
OpenSSL keeps."""


class Endpoint:
    """What the TLS connections of one port share. Event loop only."""

    def __init__(self, turns: InputTurns, ledger: Ledger, handshake_seconds: float) -> None:
        self.turns: Final = turns
        self.ledger: Final = ledger
        self.handshake_seconds: Final = handshake_seconds
        self.decrypted: Final = memoryview(bytearray(_DECRYPTED_SIZE + _RECORD_SIZE))
        """Where each connection decrypts during its turn."""


Made = Callable[[Exception | None], object]
"""Told how a handshake ended; None: well."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """Both sides of TLS: the protocol of a plaintext transport, and the transport of another protocol."""

    __slots__ = (
        "_answered",
        "_at",
        "_backlog",
        "_backlog_size",
        "_barren",
        "_endpoint",
        "_error",
        "_fed_max",
        "_has_ended",
        "_holdings",
        "_incoming",
        "_input",
        "_is_closing",
        "_is_made",
        "_is_paused",
        "_is_plain_paused",
        "_is_reading",
        "_is_writing_paused",
        "_made",
        "_new_protocol",
        "_outgoing",
        "_own_holdings",
        "_plain",
        "_protocol",
        "_sent_max",
        "_timer",
        "_tls",
        "_waits",
        "_waits_to_encrypt",
    )

    def __init__(
        self, endpoint: Endpoint, context: ssl.SSLContext, protocol: Callable[[], asyncio.Protocol], made: Made
    ) -> None:
        """`protocol` makes that of the connection when the handshake is complete. `made` is called then, or when it has
        failed."""
        self._endpoint = endpoint
        self._new_protocol = protocol
        self._made: Made | None = made
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._plain: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | None = None  # from the end of the handshake
        self._input = b""  # records, from `_at`; OpenSSL has got what precedes it
        self._at = 0
        self._barren = 0  # bytes of records since the last application data
        self._answered = 0  # bytes of records that answer updates of keys, and of alerts
        self._fed_max = self._sent_max = 0  # bytes that OpenSSL got and made at once; it keeps a third more of each
        self._backlog: deque[memoryview] = deque()  # not encrypted yet
        self._backlog_size = 0
        self._waits = False  # for a turn, to go on with the input
        self._waits_to_encrypt = False
        self._is_made = False
        self._is_paused = False  # by the protocol
        self._is_reading = True
        self._is_plain_paused = False  # the plaintext transport has taken as much as it may
        self._is_writing_paused = False  # the protocol's
        self._is_closing = False
        self._has_ended = False  # the other side has closed its direction
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._own_holdings: Holdings | None = None  # until the protocol charges the connection to its own
        self._holdings: Holdings | None = None

    # --- The protocol of the plaintext transport -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = cast(asyncio.Transport, transport)  # uvloop's transports are not instances of asyncio.Transport
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        self._own_holdings = self._holdings = self._endpoint.ledger.open("TLS", host, self.abort)
        self._holdings.set("handshakes", HANDSHAKE_SIZE)
        self._timer = asyncio.get_running_loop().call_later(self._endpoint.handshake_seconds, self._is_too_slow)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            self._discard()
            return
        self._input = self._input[self._at :] + data if self._input else data
        self._at = 0
        turns = self._endpoint.turns
        if self._waits or turns.is_full:
            self._go_on_later()
            self._hold()
            return
        began = monotonic()
        decrypted = self._decrypt(began + TURN_SECONDS)
        turns.spent(began)
        if self._passed_on(decrypted):
            self._go_on_later()

    def eof_received(self) -> bool:
        if self._is_closing:
            return False  # which closes the plaintext transport
        self._has_ended = True
        if not self._has_input:
            self._end()
        return True

    def pause_writing(self) -> None:
        self._is_plain_paused = True
        self._pause_or_resume_writing()

    def resume_writing(self) -> None:
        self._is_plain_paused = False
        if self._backlog:
            self._encrypt_later()
        self._pause_or_resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._forget_input()
        self._backlog.clear()
        self._backlog_size = 0
        self._cancel_timer()
        protocol, self._protocol = self._protocol, None
        if self._holdings is not None:
            self._holdings.set("encrypted", 0)
        self._use_holdings(None)
        error = error or self._error
        self._has_been_made(error or ConnectionResetError())
        if protocol is not None:
            protocol.connection_lost(error)

    # --- The transport of the connection's protocol ----------------------------------------------------------

    def get_extra_info(self, name: str, default: object = None) -> object:
        """As other transports of TLS."""
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        if name == "peercert":
            return self._tls.getpeercert()
        if name == "cipher":
            return self._tls.cipher()
        return default if self._plain is None else self._plain.get_extra_info(name, default)

    def charge(self, holdings: Holdings) -> None:
        """Charge from now on what waits in this transport to the connection's own holdings."""
        self._use_holdings(holdings)
        self._hold()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "protocols ask while they are connected"
        return self._protocol

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True
        self._hold()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._is_closing:
            return
        if self._has_input:
            self._go_on_later()
        elif self._has_ended:
            self._end()
        self._hold()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Limits of what is encrypted. What is not waits besides, and pauses the protocol too."""
        if self._plain is not None:
            self._plain.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._backlog_size + (0 if self._plain is None else self._plain.get_write_buffer_size())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        if not self._backlog and len(data) <= _RECORD_SIZE:
            self._encrypt(data)
            self._send()
            return
        self._backlog.append(memoryview(bytes(data)))
        self._backlog_size += len(data)
        self._write_backlog()

    def _write_backlog(self) -> None:
        turns = self._endpoint.turns
        if self._waits_to_encrypt or self._is_plain_paused:
            pass
        elif turns.is_full:
            self._encrypt_later()
        else:
            began = monotonic()
            if self._encrypt_backlog(began + TURN_SECONDS):
                self._encrypt_later()
            turns.spent(began)
        self._pause_or_resume_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if not self._is_closing:
            found = [memoryview(bytes(data)) for data in list_of_data if data]
            self._backlog.extend(found)
            self._backlog_size += sum(map(len, found))
            self._write_backlog()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close when all is sent, and the other side has closed too or had its time for it."""
        if self._is_closing:
            return
        self._is_closing = True
        self._forget_input()
        if self._backlog:
            self._limit_farewell(self.get_write_buffer_size())
        else:
            self._farewell()

    def abort(self) -> None:
        self._is_closing = True
        if self._plain is not None:
            self._plain.abort()

    # --- Input -----------------------------------------------------------------------------------------------

    @property
    def _has_input(self) -> bool:
        return self._at < len(self._input) or self._incoming.pending > 0

    def _go_on_later(self) -> None:
        if not self._waits and not self._is_paused:
            self._waits = True
            self._endpoint.turns.wait(self._go_on)

    def _go_on(self, until: float) -> bool:
        self._waits = not (self._is_closing or self._is_paused) and self._passed_on(self._decrypt(until))
        return self._waits

    def _decrypt(self, until: float) -> bytes:
        """Go on with the handshake, then with the input, until this time of `time.monotonic`; return what was
        decrypted."""
        if not self._is_made and (not self._shake_hands(until) or self._is_paused):
            return b""
        decrypted, incoming = self._endpoint.decrypted, self._incoming
        read = cast(Callable[[int, memoryview], int], self._tls.read)
        size = 0
        while incoming.pending or self._feed():
            try:
                count = read(_RECORD_SIZE, decrypted[size:])
            except ssl.SSLWantReadError:
                if self._barren > _BARREN_SIZE_MAX:
                    self._fail(ConnectionError("the records of TLS have no application data"))
                    break
            except ssl.SSLError as error:
                self._fail(error)
                break
            else:
                if not count:  # close_notify: what follows is not read
                    self._has_ended = True
                    self._forget_input()
                    break
                self._barren = 0
                size += count
            if size > _DECRYPTED_SIZE - _RECORD_SIZE or monotonic() > until:
                break
        if self._outgoing.pending:
            self._answered += self._outgoing.pending
            self._send()
            if self._answered > _ANSWERED_SIZE_MAX and not self._is_closing:
                self._fail(ConnectionError("TLS asks for too many answers"))
        return bytes(decrypted[:size])

    def _feed(self) -> bool:
        """Give OpenSSL the next bytes; return whether there were any."""
        data, begin = self._input, self._at
        if begin == len(data):
            return False
        if begin == 0 and len(data) <= _PIECE_SIZE:
            size = self._incoming.write(data)
            self._input = b""
        else:
            size = self._incoming.write(data[begin : begin + _PIECE_SIZE])
            self._at += size
            if self._at == len(data):
                self._input, self._at = b"", 0
        self._barren += size
        if size > self._fed_max:
            self._fed_max = size
        return True

    def _shake_hands(self, until: float) -> bool:
        """Returns whether the handshake is complete."""
        while self._incoming.pending or self._feed():
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send()
                if monotonic() > until:
                    return False
            except (ssl.SSLError, ssl.CertificateError) as error:
                self._fail(error)
                return False
            else:
                self._send()
                self._complete()
                return True
        return False

    def _complete(self) -> None:
        self._is_made = True
        self._barren = self._fed_max = self._sent_max = 0  # the buffers for a handshake are in CONNECTION_SIZE
        self._cancel_timer()
        assert self._holdings is not None, "it is connected"
        self._holdings.set("handshakes", 0)
        self._protocol = self._new_protocol()
        self._protocol.connection_made(self)
        self._has_been_made(None)

    def _passed_on(self, decrypted: bytes) -> bool:
        """Give the protocol its input. Returns whether some is left for a turn."""
        if decrypted and self._protocol is not None:
            self._protocol.data_received(decrypted)
        if self._is_closing:
            return False
        more = self._has_input
        if self._has_ended and not more and not self._is_paused:
            self._end()
            return False
        self._hold()
        return more and not self._is_paused

    def _hold(self) -> None:
        """Charge the input that waits, and read from the socket unless there is much of it."""
        size = len(self._input) - self._at + self._incoming.pending
        if self._holdings is not None:
            self._holdings.set("encrypted", size + (self._fed_max + self._sent_max) * 4 // 3)
        wanted = self._is_closing or (size <= _INPUT_SIZE_MAX and not self._is_paused)
        if wanted != self._is_reading and self._plain is not None and not self._plain.is_closing():
            self._is_reading = wanted
            if wanted:
                self._plain.resume_reading()
            else:
                self._plain.pause_reading()

    def _forget_input(self) -> None:
        self._input, self._at = b"", 0
        self._incoming.read()
        self._hold()

    def _use_holdings(self, holdings: Holdings | None) -> None:
        if self._own_holdings is not None:
            self._own_holdings.close()
            self._own_holdings = None
        self._holdings = holdings

    # --- Output ----------------------------------------------------------------------------------------------

    def _encrypt(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._tls.write(data)  # of a record's size at the most, it is written whole
        except (
            ssl.SSLError
        ) as error:  # the session is broken; nothing waits for anything, as nothing is negotiated again
            self._error = self._error or error.with_traceback(None)
            self.abort()

    def _send(self) -> None:
        """Pass on what OpenSSL has written."""
        size = self._outgoing.pending
        if size and self._plain is not None and not self._plain.is_closing():
            self._plain.write(self._outgoing.read())
            if size > self._sent_max:
                self._sent_max = size
                self._hold()

    def _encrypt_later(self) -> None:
        if not self._waits_to_encrypt:
            self._waits_to_encrypt = True
            self._endpoint.turns.wait(self._go_on_encrypting)

    def _go_on_encrypting(self, until: float) -> bool:
        more = self._waits_to_encrypt = self._encrypt_backlog(until)
        if not more:
            self._pause_or_resume_writing()  # the protocol may write at once, and wait for a turn again
        return more

    def _encrypt_backlog(self, until: float) -> bool:
        """Encrypt and send until this time of `time.monotonic`, or until the plaintext transport has enough. Returns
        whether some is left for a turn."""
        backlog = self._backlog
        while backlog and not self._is_plain_paused:
            for _ in range(_RECORDS_AT_ONCE):
                self._encrypt(self._next_record())
                if not backlog:
                    break
            self._send()
            if monotonic() > until:
                break
        if self._is_closing and not backlog:
            self._farewell()
        return bool(backlog) and not self._is_plain_paused

    def _next_record(self) -> bytes | memoryview:
        """The next bytes of the backlog, as many as a record carries."""
        backlog = self._backlog
        data = backlog[0]
        if len(data) >= _RECORD_SIZE:
            self._backlog_size -= _RECORD_SIZE
            if len(data) == _RECORD_SIZE:
                return backlog.popleft()
            backlog[0] = data[_RECORD_SIZE:]
            return data[:_RECORD_SIZE]
        parts, left = [], _RECORD_SIZE
        while backlog and left:
            part = backlog.popleft()
            if len(part) > left:
                backlog.appendleft(part[left:])
                part = part[:left]
            parts.append(part)
            left -= len(part)
        self._backlog_size -= _RECORD_SIZE - left
        return b"".join(parts)

    def _pause_or_resume_writing(self) -> None:
        wanted = self._is_plain_paused or self._backlog_size > 0
        if wanted != self._is_writing_paused and self._protocol is not None:
            self._is_writing_paused = wanted
            if wanted:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()

    # --- The end ---------------------------------------------------------------------------------------------

    def _has_been_made(self, error: Exception | None) -> None:
        made, self._made = self._made, None
        if made is not None:
            made(error)

    def _is_too_slow(self) -> None:
        self._error = ConnectionAbortedError(f"the TLS handshake took more than {self._endpoint.handshake_seconds:g} s")
        self.abort()

    def _end(self) -> None:
        """The other side has closed its direction, and all that came before it is handled."""
        if self._protocol is not None:
            self._protocol.eof_received()  # in TLS nobody closes one direction alone
        self.close()

    def _fail(self, error: Exception) -> None:
        """The other side has broken the rules, and OpenSSL may have an alert for it."""
        _log.debug("TLS connection closed cause=%s", error)
        # Its traceback refers to this transport, which is to be freed without waiting for the garbage collection.
        self._error = error.with_traceback(None)
        self._is_closing = True
        self._forget_input()
        self._backlog.clear()
        self._backlog_size = 0
        self._farewell()

    def _farewell(self) -> None:
        """All is encrypted. A socket that is closed with unread input would reset the connection, and what was sent
        could be lost: so first our direction alone is closed."""
        plain = self._plain
        if plain is None or plain.is_closing():
            return
        with suppress(ssl.SSLError):  # it wants to read the other side's; or the connection has failed
            self._tls.unwrap()
        self._send()
        if self._has_ended:
            plain.close()
        else:
            plain.write_eof()
        self._cancel_timer()
        self._limit_farewell(plain.get_write_buffer_size())

    def _discard(self) -> None:
        """The other side does not know yet that the connection ends. One reading of the socket a step is enough."""
        plain = self._plain
        if plain is None or plain.is_closing() or not self._is_reading:
            return
        self._is_reading = False
        plain.pause_reading()
        self._endpoint.turns.wait(self._read_on)

    def _read_on(self, _: float) -> bool:
        self._hold()
        return False

    def _limit_farewell(self, unsent: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, self._end_farewell, unsent)

    def _end_farewell(self, unsent: int) -> None:
        left = self.get_write_buffer_size()
        if 0 < left < unsent:
            self._limit_farewell(left)
        else:
            self.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def charge_connection(transport: asyncio.BaseTransport, holdings: Holdings, size: int) -> None:
    """Charge a connection, which in plaintext takes `size` bytes of memory, and with TLS also what its input takes."""
    if isinstance(transport, TlsTransport):
        size += CONNECTION_SIZE
        transport.charge(holdings)
    holdings.set("connections", size)
