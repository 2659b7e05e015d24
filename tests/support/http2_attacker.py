"""A hostile HTTP/2 client on its own socket: it sends what tests tell it, and observes how the server ends it."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from hpack import Encoder

from aerobee_broker.front import frames
from aerobee_broker.front.frames import ErrorCode, Setting
from tests.support.http2_client import Frame, parse
from tests.support.tls_records import trusting

TIMEOUT: Final = 40.0
"""Seconds of one operation on a socket, before a test fails."""


def block(path: str, *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a call, without HPACK's dynamic table."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"x-mq-client-id", b"attacker"),
        (b"x-mq-language", b"GO"),
        *more,
    ]
    return Encoder().encode([(name, value, True) for name, value in headers])


def headers(stream_id: int, of_call: bytes, *, ended: bool = False) -> bytes:
    """HEADERS that open a stream with this block."""
    flags = frames.END_HEADERS | (frames.END_STREAM if ended else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, of_call)


def message(stream_id: int, request: bytes) -> bytes:
    """A complete gRPC request, which ends its stream."""
    parts = []
    body = b"\0" + len(request).to_bytes(4, "big") + request
    for begin in range(0, len(body), frames.FRAME_SIZE_DEFAULT):
        piece = body[begin : begin + frames.FRAME_SIZE_DEFAULT]
        ended = frames.END_STREAM if begin + len(piece) == len(body) else 0
        parts.append(frames.frame(frames.DATA, ended, stream_id, piece))
    return b"".join(parts)


class Attacker:
    """One connection with blocking methods."""

    def __init__(self, endpoint: str, *, window: int | None = None) -> None:
        """`window` is the initial window of its streams, in bytes; None: HTTP/2's default."""
        host, _, port = endpoint.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT)
        self._buffer = b""
        self.sent = 0
        self.closed = False
        settings = {} if window is None else {Setting.INITIAL_WINDOW_SIZE: window}
        self.send(frames.PREFACE + frames.settings(settings))

    def send(self, data: bytes) -> bool:
        """Send, and discard what the server sent. Whether the server still accepts bytes."""
        if not self.closed:
            try:
                self.socket.sendall(data)
                self.sent += len(data)
            except OSError:
                self.closed = True
        return not self.closed

    def flood(self, chunks: Iterable[bytes]) -> None:
        """Send until the server ends the connection, discarding what it sends. AssertionError if it does not end."""
        ends = time.monotonic() + TIMEOUT
        for chunk in chunks:
            if not self.send(chunk):
                return
            self._drop_input()
            if time.monotonic() > ends:
                break
        raise AssertionError(f"the server took {self.sent} bytes and did not end the connection")

    def _drop_input(self) -> None:
        self.socket.setblocking(False)
        try:
            while True:
                data = self.socket.recv(1 << 16)
                if not data:
                    self.closed = True
                    return
                self._buffer = b""
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        finally:
            self.socket.settimeout(TIMEOUT)

    def frames(self) -> Iterator[Frame]:
        """The frames received until the connection ends."""
        while True:
            position = 0
            while len(self._buffer) - position >= frames.HEADER_SIZE:
                head, _, _ = frames.read_header(self._buffer, position)
                end = position + frames.HEADER_SIZE + (head >> 8)
                if end > len(self._buffer):
                    break
                yield from parse(self._buffer[position:end])
                position = end
            self._buffer = self._buffer[position:]
            data = self._receive()
            if not data:
                return
            self._buffer += data

    def _receive(self) -> bytes:
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            raise AssertionError("the server neither answers nor ends the connection") from None
        except OSError:
            data = b""
        self.closed = self.closed or not data
        return data

    def resets(self, count: int) -> list[ErrorCode]:
        """The error codes of the next `count` RST_STREAM frames."""
        found = []
        for frame in self.frames():
            if frame.kind == frames.RST_STREAM:
                found.append(ErrorCode(int.from_bytes(frame.payload, "big")))
                if len(found) == count:
                    break
        return found

    def wait_for_end(self) -> list[Frame]:
        """All frames still received until the server has ended the connection."""
        return list(self.frames())

    def close(self) -> None:
        self.socket.close()


@contextmanager
def attacker(endpoint: str, *, window: int | None = None) -> Iterator[Attacker]:
    """A connection that is closed at the end of the block."""
    connection = Attacker(endpoint, window=window)
    try:
        yield connection
    finally:
        connection.close()


def begin_of_tls() -> bytes:
    """The first message of a TLS client: its ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
