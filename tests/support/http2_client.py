"""A client's side of HTTP/2 for tests, frame by frame, including frames that no client may send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpack import Encoder

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.front import frames
from aerobee_broker.front.frames import ErrorCode
from aerobee_broker.front.http2 import (
    ConnectionEnded,
    DataReceived,
    Event,
    Http2Connection,
    RequestReceived,
)

GREETING: Final = frames.PREFACE + frames.settings({})
HEADERS: Final = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Service/Echo"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One received frame."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def received(core: Http2Connection, data: bytes) -> list[Event]:
    """All events of these bytes."""
    found = core.receive(data)
    while core.has_input:
        found += core.receive(b"")
    return found


def parse(data: bytes) -> list[Frame]:
    """The frames in `data`, which must be complete."""
    found = []
    position = 0
    while position < len(data):
        head, flags, stream_id = frames.read_header(data, position)
        end = position + frames.HEADER_SIZE + (head >> 8)
        assert end <= len(data)
        found.append(Frame(head & 0xFF, flags, stream_id, data[position + frames.HEADER_SIZE : end]))
        position = end
    return found


def request(
    stream_id: int,
    *,
    headers: tuple[tuple[bytes, bytes], ...] = HEADERS,
    ended: bool = False,
    encoder: Encoder | None = None,
) -> bytes:
    """HEADERS of a request. Without an encoder no header enters the peer's table."""
    block = (
        Encoder().encode([(name, value, True) for name, value in headers])
        if encoder is None
        else encoder.encode(headers)
    )
    flags = frames.END_HEADERS | (frames.END_STREAM if ended else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, block)


def data(stream_id: int, payload: bytes, *, ended: bool = False) -> bytes:
    """A DATA frame."""
    return frames.frame(frames.DATA, frames.END_STREAM if ended else 0, stream_id, payload)


def greeted(config: FrontConfig | None = None) -> Http2Connection:
    """A connection after both sides have exchanged settings."""
    core = Http2Connection(config or FrontConfig())
    assert received(core, GREETING) == []
    core.take_output()
    return core


def output(core: Http2Connection) -> list[Frame]:
    """The frames that the connection has ready to send."""
    return parse(b"".join(core.take_output()))


def summary(event: Event) -> tuple[object, ...]:
    """An event's values, for comparison."""
    match event:
        case RequestReceived():
            return "request", event.stream.id, tuple(event.head.headers), event.ended
        case DataReceived():
            return "data", event.stream.id, event.data, event.ended
        case ConnectionEnded():
            return "connection", event.code, event.text, event.bound
        case _:
            return "stream", event.stream.id, event.code


def ended_with(events: list[Event]) -> tuple[ErrorCode, str] | None:
    """The error and the limit that ended the connection; None if it is open."""
    for event in events:
        if isinstance(event, ConnectionEnded):
            return ErrorCode(event.code), event.bound
    return None
