"""One HTTP/2 connection, the server's side, as a state machine without I/O (RFC 9113).

    receive(bytes) -> events          what the client sent, some events at a time; never raises, for any bytes
    respond, send_*, reset            the server's answers
    take_output() -> buffers          output to write now

A stream lives from its HEADERS until both sides have ended it or one has reset it. Frames for a closed stream are
dropped if this side has reset it, because the client may not know yet. They are an error if both sides had ended it.

Flow control of received data: the connection's window is returned as bytes arrive, so that no stream can block another.
A stream's window is returned as well, unless the stream is held because its handler does not read. A client can
therefore make us keep one window per stream, which the layer above counts and limits. Flow control of sent data: bytes
beyond a window wait in `Stream.pending`, and `pending_size` is their size.

`receive` returns after some events or frames; while `has_input` is true, `receive(b"")` goes on. The layer above
decides how long it goes on, so that a step ends by its clock and not by its input.

Frames that cost their receiver more than their sender (resets, pings, settings, empty frames, errors) are counted in
`_cheap`, which `relax` lowers once a second; above the limit the connection ends. Pings and window updates that follow
our frames are free, because clients use them to measure bandwidth and return windows.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.front import frames
from aerobee_broker.front.frames import (
    FRAME_SIZE_DEFAULT,
    PREFACE,
    STREAM_ID_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    Setting,
    frame,
    frame_header,
)
from aerobee_broker.front.header_blocks import BlockDecoder, HeaderBlockError, RequestHead, trailers_error
from aerobee_broker.recent import Recent

STREAM_WINDOW: Final = 4 << 20
"""Initial window of a stream, in bytes. It is large enough for a fast sender with a long round trip."""
CONNECTION_WINDOW: Final = 16 << 20
FRAME_SIZE_MAX: Final = 256 << 10
"""Maximum size of a DATA frame from a client, in bytes. Bulk requests then need a sixteenth of the frames; a larger
frame would delay concurrent calls on a slow link."""
_CONTINUATIONS_MAX: Final = 64  # frames of one header block
_RESET_STREAMS_MAX: Final = 4096  # how many streams that we have reset are remembered
_LATE_RESETS_MAX: Final = 64  # answered streams that report a late reset
_LATE_RESET_TICKS: Final = 10  # how long they do; a reset that crosses the answer arrives within a round trip
_TINY: Final = 256  # bytes; a window that forces us to send smaller frames is treated as an attack
_VIEWED_SIZE_MIN: Final = 16 << 10  # bytes; up to this size a copy is as fast as a view
_FREE_MAX: Final = 1000  # pings and window updates that a client may accumulate
_SHUTDOWN_PING: Final = b"goodbye!"
_STALL_PROGRESS_MIN: Final = 1024  # bytes of a stream that must be transferred between two checks for a stall
_STREAMS_PER_CHEAP: Final = 100  # a setting that affects every stream costs accordingly
_FREE_PER_FRAME: Final = 4  # free frames granted for each frame that the broker sends
_STREAMS_AT_ONCE: Final = 256  # of whose answers one `take_output` has a part: a millisecond
_EVENTS_AT_ONCE: Final = 16  # events of one `receive`: the layer above looks at its clock in between
_FRAMES_AT_ONCE: Final = 16  # frames of one `receive` between two looks at the clock
_RECEIVE_SECONDS: Final = 0.002  # of one `receive` that has no event
_ENTRIES_PER_CHEAP: Final = 100  # settings that cost as much as a frame
_LONG_FRAME: Final = 1024  # bytes of a frame of headers or settings that may take a millisecond
_SETTING: Final = struct.Struct(">HI")
_STREAM_SIZE: Final = 2_400  # bytes of memory of an open stream and its call, measured with 9,000 of them
_RESET_SIZE: Final = 80  # the same of a stream that we remember to have reset


class Stream:
    """One request and its answer."""

    __slots__ = (
        "call",
        "epoch",
        "expected",
        "held",
        "id",
        "local_open",
        "pending",
        "pending_size",
        "receive_window",
        "received",
        "remote_open",
        "reports_late_reset",
        "send_window",
        "stall_received",
        "stall_size",
        "stall_ticks",
        "trailers",
        "unreturned",
        "watched",
    )

    def __init__(self, stream_id: int, send_window: int, epoch: int) -> None:
        self.id: Final = stream_id
        self.call: object = None  # for the layer above
        self.epoch = epoch
        self.send_window = send_window
        self.receive_window = STREAM_WINDOW
        self.unreturned = 0  # bytes received whose window was not returned yet
        self.received = 0  # bytes of DATA, compared with the content-length
        self.expected: int | None = None
        self.held = False  # its handler does not read: do not return the window
        self.remote_open = True  # the client may send more
        self.local_open = True  # we may send more
        self.pending: deque[bytes | memoryview] = deque()  # data that waits for a window or for the end of the tick
        self.pending_size = 0
        self.trailers: bytes | None = None  # a header block to send after `pending`
        self.reports_late_reset = False  # report a reset also after the answer; see `_rst_stream`
        self.watched = False  # report when nothing is pending any more
        self.stall_size = self.stall_ticks = 0  # see `stalled`
        self.stall_received = -1  # see `stalled_requests`


class RequestReceived:
    """A new stream. `ended`: no data will follow."""

    __slots__ = ("ended", "head", "stream")

    def __init__(self, stream: Stream, head: RequestHead, ended: bool) -> None:
        self.stream = stream
        self.head = head
        self.ended = ended


class DataReceived:
    """Bytes of a request. `ended`: they are the last ones, possibly none."""

    __slots__ = ("data", "ended", "stream")

    def __init__(self, stream: Stream, data: bytes | memoryview, ended: bool) -> None:
        self.stream = stream
        self.data = data
        self.ended = ended


class StreamEnded:
    """The stream was closed before its answer was complete: by the client's reset or its error. A client that resets a
    stream just answered has not received the end of the answer either: see `Stream.reports_late_reset`."""

    __slots__ = ("code", "stream")

    def __init__(self, stream: Stream, code: int) -> None:
        self.stream = stream
        self.code = code


class ConnectionEnded:
    """No more input is read. The remaining output, which gives the reason, must still be written. The streams end in
    the following events."""

    __slots__ = ("bound", "code", "text")

    def __init__(self, code: int, text: str, bound: str) -> None:
        self.code = code
        self.text = text
        self.bound = bound  # the name of the bound that ended the connection; empty for an error of the client


Event = RequestReceived | DataReceived | StreamEnded | ConnectionEnded


class _ConnectionError(Exception):
    def __init__(self, code: ErrorCode, text: str, bound: str = "") -> None:
        super().__init__(text)
        self.code: Final = code
        self.bound: Final = bound


class Http2Connection:
    """The state machine. `streams` has those that at least one side has not ended."""

    __slots__ = (
        "_answered",
        "_at",
        "_blocked",
        "_cheap",
        "_config",
        "_decoder",
        "_epoch",
        "_events",
        "_frame_ends",
        "_frame_left",
        "_frame_size_max",
        "_frame_stream",
        "_free",
        "_handle",
        "_header_flags",
        "_header_parts",
        "_header_size",
        "_header_stream",
        "_headers_refusal",
        "_initial_send_window",
        "_input",
        "_last_stream_id",
        "_output",
        "_preface_seen",
        "_ready",
        "_receive_window",
        "_reset",
        "_send_window",
        "_served_up_to",
        "_starved",
        "_table_update",
        "_unreturned",
        "_whole_frame_size_max",
        "drained",
        "ended",
        "greeted",
        "has_input",
        "pending_size",
        "refusals",
        "streams",
    )

    def __init__(self, config: FrontConfig, *, headers_refusal: bytes = b"") -> None:
        """`headers_refusal` is the block that answers a request whose headers are far too large, before the connection
        ends: such headers cannot be skipped, because later blocks may depend on them."""
        self._config = config
        self._headers_refusal = headers_refusal
        self._decoder = BlockDecoder(config.header_size_max)
        self._input = b""  # received bytes ...
        self._at = 0  # ... and the position of the first one that was not processed
        self._frame_left = 0  # remaining bytes of the DATA frame whose first bytes were passed on ...
        self._frame_ends = False  # ... whether it ends its stream ...
        self._frame_stream: Stream | None = None  # ... which is None if the stream accepts none
        # Other frames are kept until they are complete. A block of headers may arrive in one of them.
        self._whole_frame_size_max = max(FRAME_SIZE_DEFAULT, 2 * config.header_size_max)
        self._events: list[Event] = []
        self.has_input = False
        """Whether `receive(b"")` would process more: whole frames, or parts of one, are left."""
        self._output: list[bytes | memoryview] = []
        self._ready: dict[int, Stream] = {}  # have new data that was not tried yet
        self._blocked: dict[int, Stream] = {}  # have data that their own window does not admit
        self._starved: dict[int, Stream] = {}  # have data that the connection's window does not admit; served in turn
        # Of the class: bound methods would be a cycle.
        self._handle: Callable[[Http2Connection, int, int, int, bytes], None] = Http2Connection._first_frame
        self._preface_seen = False
        self._header_stream = 0  # the stream whose header block is being received
        self._header_flags = 0
        self._header_parts: list[bytes] = []
        self._header_size = 0
        self._reset: Recent[int, None] = Recent(_RESET_STREAMS_MAX)
        self._answered: Recent[int, Stream] = Recent(_LATE_RESETS_MAX)  # those that report a late reset
        self._last_stream_id = 0
        self._served_up_to = STREAM_ID_MAX  # after GOAWAY: later streams are refused
        self._send_window = WINDOW_DEFAULT
        self._receive_window = CONNECTION_WINDOW
        self._unreturned = 0
        self._initial_send_window = WINDOW_DEFAULT
        self._frame_size_max = FRAME_SIZE_DEFAULT
        self._table_update = b""
        self._cheap = 0
        self._free = _FREE_MAX
        self._epoch = 0
        self.streams: dict[int, Stream] = {}
        self.pending_size = 0  # bytes of all streams that wait for windows
        self.greeted = False  # the client's first SETTINGS have arrived
        self.ended = False
        self.refusals: list[str] = []  # the bounds that refused streams, by name; the connection reads and clears them
        self.drained: list[Stream] = []  # watched streams without pending data; the connection reads and clears them
        own = {
            Setting.MAX_CONCURRENT_STREAMS: config.stream_count_max,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: FRAME_SIZE_MAX,
            Setting.MAX_HEADER_LIST_SIZE: config.header_size_max,
        }
        self._output.append(frames.settings(own) + frames.window_update(0, CONNECTION_WINDOW - WINDOW_DEFAULT))

    # --- Input ----------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Process the next bytes of the connection, however they are split; return some events.

        See `has_input`.
        """
        if self.ended:
            return self._end_streams()
        position = self._at
        if self._input:
            if data:
                data = self._input[position:] + data
                position = 0
            else:
                data = self._input
        try:
            position = self._received(data, position)
        except _ConnectionError as error:
            self._end(error.code, str(error), error.bound)
        except HeaderBlockError as error:
            bound = "header_size_max" if error.code is ErrorCode.ENHANCE_YOUR_CALM else ""
            self._end(error.code, str(error), bound)
        if self.has_input and not self.ended:
            self._input, self._at = data, position
        elif not self.ended:
            self._input, self._at = data[position:] if position < len(data) else b"", 0
        events, self._events = self._events, []
        return events

    def _received(self, data: bytes, position: int) -> int:
        """Process some frames; return the position after them, and set `has_input`."""
        self.has_input = False
        if not self._preface_seen:
            if not data.startswith(PREFACE):
                if PREFACE.startswith(data):
                    return position
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "missing HTTP/2 preface")
            self._preface_seen = True
            position = len(PREFACE)
        size = len(data)
        if self._frame_left:
            position += self._rest_of_frame(data, position)
        events = self._events
        left = _FRAMES_AT_ONCE
        until = 0.0
        while size - position >= 9:
            head, flags, stream_id = frames.read_header(data, position)
            kind = head & 0xFF
            length = head >> 8
            begin = position + 9
            end = begin + length
            if length > FRAME_SIZE_DEFAULT:
                self._check_large_frame(kind, flags, stream_id & STREAM_ID_MAX, length)
            if end > size:
                if self._may_come_in_parts(kind, flags):
                    self._first_of_frame(flags, stream_id & STREAM_ID_MAX, _part(data, begin, size), end - size)
                    position = size
                break
            position = end
            self._handle(self, kind, flags, stream_id & STREAM_ID_MAX, data[begin:end])
            left -= 1
            if len(events) >= _EVENTS_AT_ONCE or (kind != frames.DATA and length > _LONG_FRAME):
                self.has_input = True
                break
            if not left:
                now = monotonic()
                until = until or now + _RECEIVE_SECONDS
                if now >= until:
                    self.has_input = True
                    break
                left = _FRAMES_AT_ONCE
        return position

    def keep_input(self, data: bytes) -> None:
        """Keep bytes that will be processed later; `has_input` is true then."""
        if not self.ended:
            self._input = self._input[self._at :] + data
            self._at = 0
            self.has_input = True

    def _first_of_frame(self, flags: int, stream_id: int, payload: bytes | memoryview, left: int) -> None:
        """Pass on the received part of a DATA frame, so that a large request is not kept and copied until it is
        complete.

        `left`: bytes of the frame that are still to come.
        """
        self._data(flags, stream_id, payload, left)
        self._frame_left, self._frame_ends = left, bool(flags & frames.END_STREAM)
        self._frame_stream = self.streams.get(stream_id)

    def _rest_of_frame(self, data: bytes, begin: int) -> int:
        """Pass on the part of that frame that `data` has from `begin` on; return its size."""
        payload = _part(data, begin, min(len(data), begin + self._frame_left))
        self._frame_left -= len(payload)
        stream = self._frame_stream
        if stream is not None and stream.remote_open:
            stream.received += len(payload)
            ended = self._frame_ends and not self._frame_left
            if ended:
                self._end_remote(stream)
            self._events.append(DataReceived(stream, payload, ended))
        return len(payload)

    def _may_come_in_parts(self, kind: int, flags: int) -> bool:
        return kind == frames.DATA and not flags & frames.PADDED and self._handle is Http2Connection._frame

    def _check_large_frame(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        if length > FRAME_SIZE_MAX:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if length <= self._whole_frame_size_max or self._may_come_in_parts(kind, flags):
            return
        if kind == frames.HEADERS:
            self._refuse_headers(stream_id)
            raise _ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"headers of {length} bytes", "header_size_max")
        raise _ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"a frame of {length} bytes that is not data")

    def relax(self) -> None:
        """Called once a second: lower the count of cheap frames by a quarter of the maximum."""
        self._cheap = max(0, self._cheap - max(1, self._config.cheap_frame_count_max // 4))
        self._epoch += 1
        for stream in list(self._answered.values()):
            if stream.epoch > self._epoch - _LATE_RESET_TICKS:
                break
            del self._answered[stream.id]

    def _end(self, code: ErrorCode, text: str, bound: str = "") -> None:
        if not self.ended:
            self.ended = True
            self._output.append(frames.goaway(self._last_stream_id, code, text))
            self._events.append(ConnectionEnded(code, text, bound))
            self._forget_input()

    def _forget_input(self) -> None:
        self._input, self._at, self.has_input = b"", 0, bool(self.streams)

    def _end_streams(self) -> list[Event]:
        """The connection has ended: some of its streams end with it, the others in the next call."""
        found = list(itertools.islice(self.streams.values(), _EVENTS_AT_ONCE))
        for stream in found:
            self._drop(stream)
        self.has_input = bool(self.streams)
        return [StreamEnded(stream, ErrorCode.CANCEL) for stream in found]

    def _spend(self) -> None:
        """Count a cheap frame."""
        self._cheap += 1
        if self._cheap > self._config.cheap_frame_count_max:
            raise _ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry no request", "cheap_frame_count_max"
            )

    def _spend_free(self) -> None:
        """Count a frame that is free in response to frames of the broker."""
        if self._free > 0:
            self._free -= 1
        else:
            self._spend()

    def _first_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind != frames.SETTINGS or flags & frames.ACK:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self.greeted = True
        self._handle = Http2Connection._frame
        self._settings(flags, stream_id, payload)

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind <= frames.CONTINUATION:
            _HANDLERS[kind](self, flags, stream_id, payload)
        else:
            self._spend()  # of an extension: ignored

    def _frame_of_block(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """No other frame may come between the frames of a header block."""
        if kind != frames.CONTINUATION or stream_id != self._header_stream:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "a frame in the middle of a header block")
        self._header_size += len(payload)
        self._header_parts.append(payload)
        if self._header_size > 2 * self._config.header_size_max or len(self._header_parts) > _CONTINUATIONS_MAX:
            self._refuse_headers(stream_id)
            raise _ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM, "a header block that exceeds the limit", "header_size_max"
            )
        if flags & frames.END_HEADERS:
            self._handle = Http2Connection._frame
            block = b"".join(self._header_parts)
            self._header_parts.clear()
            self._header_size = 0
            self._header_block(stream_id, self._header_flags, block)

    def _refuse_headers(self, stream_id: int) -> None:
        if self._headers_refusal and self._last_stream_id < stream_id <= self._served_up_to:
            self._last_stream_id = stream_id
            flags = frames.END_HEADERS | frames.END_STREAM
            self._output.append(frame(frames.HEADERS, flags, stream_id, self._headers_refusal))

    def _stray_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")

    def _data(self, flags: int, stream_id: int, payload: bytes | memoryview, left: int = 0) -> None:
        """A frame, or its first bytes with `left` more to come; it is checked as a whole."""
        length = len(payload) + left
        stream = self.streams.get(stream_id)
        if length:
            self._receive_window -= length
            if self._receive_window < 0:
                raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
            self._unreturned += length
            if self._unreturned >= CONNECTION_WINDOW // 2:
                self._output.append(frames.window_update(0, self._unreturned))
                self._receive_window += self._unreturned
                self._unreturned = 0
        ended = bool(flags & frames.END_STREAM)
        if stream is None or not stream.remote_open:
            self._late_frame(stream_id, stream)
            return
        if flags & frames.PADDED:
            payload = _without_padding(bytes(payload))
        if not payload and not ended and not left:
            self._spend()
        if length:
            stream.receive_window -= length
            if stream.receive_window < 0:
                self._fail(stream, ErrorCode.FLOW_CONTROL_ERROR)
                return
            stream.unreturned += length
            if stream.unreturned >= STREAM_WINDOW // 2 and not stream.held and not ended:
                self.release(stream)
        stream.received += len(payload)
        expected = stream.expected
        if expected is not None:
            received = stream.received + left
            if received > expected or (ended and received != expected):
                self._fail(stream, ErrorCode.PROTOCOL_ERROR)
                return
        if left:
            ended = False
        if ended:
            self._end_remote(stream)
        if payload or ended:
            self._events.append(DataReceived(stream, payload, ended))

    def _late_frame(self, stream_id: int, stream: Stream | None) -> None:
        """A frame on a stream that accepts none."""
        if stream is not None:
            self._fail(stream, ErrorCode.STREAM_CLOSED)
        elif stream_id == 0 or stream_id > self._last_stream_id or not stream_id & 1:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "a frame on an idle stream")
        elif stream_id not in self._reset and stream_id <= self._served_up_to:
            raise _ConnectionError(ErrorCode.STREAM_CLOSED, "a frame on a stream that has ended")

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream ID that clients may not use")
        if flags & frames.PADDED:
            payload = _without_padding(payload)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < 5:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for their priority")
            if int.from_bytes(payload[:4], "big") & STREAM_ID_MAX == stream_id:
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._header_block(stream_id, flags, payload)
            return
        self._header_stream, self._header_flags = stream_id, flags
        self._header_parts.append(payload)
        self._header_size = len(payload)
        self._handle = Http2Connection._frame_of_block

    def _header_block(self, stream_id: int, flags: int, block: bytes) -> None:
        ended = bool(flags & frames.END_STREAM)
        if stream_id <= self._last_stream_id:
            self._more_headers(stream_id, block, ended)
            return
        try:
            head = self._decoder.request(block)
        except HeaderBlockError as error:
            if error.code is ErrorCode.ENHANCE_YOUR_CALM:
                self._refuse_headers(stream_id)
            raise
        self._last_stream_id = stream_id
        if stream_id > self._served_up_to:
            return  # these came after our GOAWAY; the client sends them to another connection
        if len(self.streams) >= self._config.stream_count_max:
            self._refuse(stream_id, "stream_count_max")
            return
        if self.pending_size > self._config.connection_answer_size_max:
            self._refuse(stream_id, "connection_answer_size_max")
            return
        if head.error:
            self._spend()
            self._send_reset(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        stream = Stream(stream_id, self._initial_send_window, self._epoch)
        self.streams[stream_id] = stream
        stream.expected = head.content_length
        if self._free < _FREE_MAX:
            self._free += _FREE_PER_FRAME
        if ended:
            stream.remote_open = False
            if stream.expected:
                self._fail(stream, ErrorCode.PROTOCOL_ERROR)
                return
        self._events.append(RequestReceived(stream, head, ended))

    def _refuse(self, stream_id: int, bound: str) -> None:
        """Refuse this stream for now; the client may retry it."""
        self.refusals.append(bound)
        self._spend()
        self._send_reset(stream_id, ErrorCode.REFUSED_STREAM)

    def _more_headers(self, stream_id: int, block: bytes, ended: bool) -> None:
        """Trailers, or an error. They are decoded in any case, because the next block depends on them."""
        fields = self._decoder.fields(block)
        stream = self.streams.get(stream_id)
        if stream is None or not stream.remote_open:
            self._late_frame(stream_id, stream)
        elif not ended or trailers_error(fields) or stream.expected not in (None, stream.received):
            self._fail(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._end_remote(stream)
            self._events.append(DataReceived(stream, b"", True))

    def _priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._spend()
        if len(payload) != 5:
            self._fail_id(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        elif int.from_bytes(payload[:4], "big") & STREAM_ID_MAX == stream_id:
            self._fail_id(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM whose size is not 4")
        if not stream_id or stream_id > self._last_stream_id or not stream_id & 1:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on a stream that was not opened")
        stream = self.streams.get(stream_id)
        code = int.from_bytes(payload, "big")
        if stream is None:
            self._spend_free()
            answered = self._answered.pop(stream_id, None)
            # Some clients end a stream with NO_ERROR when they have received its whole answer.
            if answered is not None and code != ErrorCode.NO_ERROR:
                self._events.append(StreamEnded(answered, code))
            return
        if stream.epoch >= self._epoch - 1:  # calls may be cancelled, but not all at once and in large numbers
            self._spend()
        self._drop(stream)
        self._events.append(StreamEnded(stream, code))

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream other than 0")
        if flags & frames.ACK:
            if payload:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS that is not empty")
            self._spend()
            return
        if len(payload) % 6:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS whose size is not a multiple of 6")
        self._spend()
        self._cheap += len(payload) // _SETTING.size // _ENTRIES_PER_CHEAP
        windows: list[int] = []
        for key, value in _SETTING.iter_unpack(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "an initial window above 2^31-1")
                windows.append(value)
            elif key == Setting.MAX_FRAME_SIZE:
                if not FRAME_SIZE_DEFAULT <= value < 1 << 24:
                    raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "a maximum frame size outside 16384..16777215")
                self._frame_size_max = value
            elif key == Setting.ENABLE_PUSH:
                if value > 1:
                    raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
            elif key == Setting.HEADER_TABLE_SIZE and value < 4096:
                self._table_update = b"\x20"  # our encoder uses no table; a decoder with a smaller one must be told
        if windows:
            self._set_windows(windows[-1], max(windows))
        self._output.append(frame(frames.SETTINGS, frames.ACK, 0))

    def _set_windows(self, value: int, highest: int) -> None:
        """Apply the last of some initial windows to all streams, once; `highest`: the largest one before it."""
        change, rise = value - self._initial_send_window, highest - self._initial_send_window
        self._initial_send_window = value
        for stream in self.streams.values():
            if stream.send_window + rise > WINDOW_MAX:
                raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1")
            stream.send_window += change
        self._cheap += len(self.streams) // _STREAMS_PER_CHEAP
        if change > 0:
            self._ready.update(self._blocked)
            self._blocked.clear()

    def _push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING on a stream other than 0")
        if len(payload) != 8:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "PING whose size is not 8")
        self._spend_free()
        if not flags & frames.ACK:
            self._output.append(frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _SHUTDOWN_PING:
            self.finish_shutdown()

    def _goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream other than 0")
        if len(payload) < 8:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY shorter than 8 bytes")
        self._spend()  # the client opens no more streams, and closes the connection when the open ones have ended

    def _window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE whose size is not 4")
        increment = int.from_bytes(payload, "big") & WINDOW_MAX
        self._spend_free()
        if not stream_id:
            if not increment:
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._send_window += increment
            if self._send_window > WINDOW_MAX:
                raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is above 2^31-1")
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_stream_id or not stream_id & 1:
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that was not opened")
            return
        if not increment:
            self._fail(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.send_window += increment
        if stream.send_window > WINDOW_MAX:
            self._fail(stream, ErrorCode.FLOW_CONTROL_ERROR)
        elif self._blocked.pop(stream_id, None) is not None:
            self._ready[stream_id] = stream

    def _end_remote(self, stream: Stream) -> None:
        stream.remote_open = False
        if not stream.local_open:
            self._drop(stream)

    def _fail(self, stream: Stream, code: ErrorCode) -> None:
        """An error on one stream."""
        self._spend()
        self._drop(stream)
        self._send_reset(stream.id, code)
        self._events.append(StreamEnded(stream, code))

    def _fail_id(self, stream_id: int, code: ErrorCode) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._fail(stream, code)
        else:
            self._spend()
            self._output.append(frames.rst_stream(stream_id, code))

    # --- Output ---------------------------------------------------------------------------------------------
    # Events are delivered together, so the stream of an event may be closed by now. Output for it is discarded.

    def respond(self, stream: Stream, headers: bytes, body: bytes, trailers: bytes) -> None:
        """Send a complete answer: blocks of headers and trailers, and the data between them."""
        if not stream.local_open:
            return
        size = len(body)
        if size <= stream.send_window and size <= self._send_window and size <= FRAME_SIZE_DEFAULT:
            stream.send_window -= size
            self._send_window -= size
            stream_id = stream.id
            if self._table_update:
                headers = self._take_table_update() + headers
            self._output.append(
                b"".join(
                    (
                        frame_header(frames.HEADERS, frames.END_HEADERS, stream_id, len(headers)),
                        headers,
                        frame_header(frames.DATA, 0, stream_id, size),
                        body,
                        frame_header(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, len(trailers)),
                        trailers,
                    )
                )
            )
            if self._free < _FREE_MAX:
                self._free += _FREE_PER_FRAME
            self._end_local(stream)
        else:
            self.send_headers(stream, headers)
            self.send_data(stream, body)
            self.send_trailers(stream, trailers)

    def send_headers(self, stream: Stream, block: bytes, *, ended: bool = False) -> None:
        """Send a block at once: the headers of an answer, or with `ended` the whole answer."""
        if not stream.local_open:
            return
        flags = frames.END_STREAM if ended else 0
        if self._table_update:
            block = self._take_table_update() + block
        limit = self._frame_size_max
        kind = frames.HEADERS
        view = block
        while len(view) > limit:
            self._output.append(frame(kind, flags, stream.id, view[:limit]))
            kind, flags, view = frames.CONTINUATION, 0, view[limit:]
        self._output.append(frame(kind, flags | frames.END_HEADERS, stream.id, view))
        if ended:
            self._end_local(stream)

    def send_data(self, stream: Stream, *parts: bytes | memoryview) -> None:
        """Send bytes as soon as windows admit them. Data written in one tick is sent in as few frames as possible."""
        if not stream.local_open:
            return
        size = sum(map(len, parts))
        stream.pending.extend(parts)
        stream.pending_size += size
        self.pending_size += size
        self._ready[stream.id] = stream

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """End the answer, after the waiting data."""
        if not stream.local_open:
            return
        stream.trailers = block
        self._ready[stream.id] = stream

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Reset the stream. This causes no event."""
        if stream.id in self.streams:
            self._drop(stream)
            self._send_reset(stream.id, code)

    def hold(self, stream: Stream) -> None:
        """Stop returning the window of this stream, because its handler does not read."""
        stream.held = True

    def release(self, stream: Stream) -> None:
        """Return the window for the bytes received on a stream."""
        stream.held = False
        if stream.unreturned and stream.remote_open:
            self._output.append(frames.window_update(stream.id, stream.unreturned))
            stream.receive_window += stream.unreturned
            stream.unreturned = 0

    def ping(self) -> None:
        """Send a PING; any bytes from the client count as an answer."""
        self._output.append(frame(frames.PING, 0, 0, b"aerobee?"))

    def begin_shutdown(self) -> None:
        """Announce the end: clients open new streams elsewhere. Streams already sent are still served."""
        self._output.append(frames.goaway(STREAM_ID_MAX, ErrorCode.NO_ERROR, "the server stops"))
        self._output.append(frame(frames.PING, 0, 0, _SHUTDOWN_PING))

    def finish_shutdown(self) -> None:
        """Accept no further streams. Happens automatically one round trip after `begin_shutdown`."""
        if self._served_up_to == STREAM_ID_MAX:
            self._served_up_to = self._last_stream_id
            self._output.append(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR, "the server stops"))

    @property
    def is_over(self) -> bool:
        """Whether there is no stream and none will be accepted."""
        return not self.streams and (self.ended or self._served_up_to != STREAM_ID_MAX)

    def stalled(self, ticks: int) -> list[Stream]:
        """Called at a regular interval: the streams of which the client has read almost nothing for this many calls."""
        found = []
        for waiting in (self._blocked, self._starved):
            for stream in waiting.values():
                if not stream.stall_ticks:
                    stream.stall_size = stream.pending_size
                stream.stall_ticks += 1
                if stream.stall_ticks > ticks:
                    if stream.stall_size - stream.pending_size < _STALL_PROGRESS_MIN:
                        found.append(stream)
                    stream.stall_ticks = 0
        return found

    def stalled_requests(self) -> list[Stream]:
        """Called at a regular interval: streams that received almost nothing since the previous call, although the
        broker was reading.

        A stream that the client has ended does not count.
        """
        found = []
        for stream in self.streams.values():
            if stream.remote_open and not stream.held:
                if 0 <= stream.stall_received > stream.received - _STALL_PROGRESS_MIN:
                    found.append(stream)
                stream.stall_received = stream.received
            else:
                stream.stall_received = -1
        return found

    def abandon(self) -> None:
        """The connection is lost: write nothing more. `receive` ends the streams, some at a time. What would lead from
        the connection to its calls, and from them to it, is forgotten: only a collection of garbage would free it."""
        self.ended = True
        self._forget_input()
        self._output.clear()
        self._frame_stream = None
        self._answered.clear()

    def take_output(self) -> list[bytes | memoryview]:
        """Buffers to write now, in order; `has_output` tells whether there are more."""
        left = _STREAMS_AT_ONCE
        if len(self._ready) <= left:
            ready, self._ready = self._ready, {}
        else:
            ready = {number: self._ready.pop(number) for number in tuple(itertools.islice(self._ready, left))}
        for stream in ready.values():
            self._pump(stream)
        while self._starved and self._send_window > 0 and left:
            self._pump(self._starved.pop(next(iter(self._starved))))
            left -= 1
        output, self._output = self._output, []
        return output

    @property
    def input_size(self) -> int:
        """Bytes of input that were not processed."""
        return len(self._input) - self._at

    @property
    def kept_size(self) -> int:
        """About how many bytes of memory the streams take besides their data, and what is remembered of others."""
        kept = len(self.streams) * _STREAM_SIZE + len(self._reset) * _RESET_SIZE + self._header_size
        return kept + self._decoder.kept_size

    @property
    def has_output(self) -> bool:
        return bool(self._output or self._ready or (self._starved and self._send_window > 0))

    def _pump(self, stream: Stream) -> None:
        """Send as much of a stream as the windows admit."""
        output = self._output
        pending = stream.pending
        while stream.pending_size:
            sendable = min(stream.send_window, self._send_window, self._frame_size_max)
            if sendable <= 0:
                waiting = self._blocked if stream.send_window <= 0 else self._starved
                waiting[stream.id] = stream
                return
            size = min(sendable, stream.pending_size)
            if size < _TINY and size < stream.pending_size:
                if self._free > 0:
                    self._free -= 1
                else:
                    self._cheap += 1  # the next received frame ends the connection
            elif self._free < _FREE_MAX:
                self._free += _FREE_PER_FRAME
            stream.pending_size -= size
            self.pending_size -= size
            stream.send_window -= size
            self._send_window -= size
            output.append(frame_header(frames.DATA, 0, stream.id, size))
            while size:
                part = pending.popleft()
                if len(part) > size:
                    view = memoryview(part)
                    output.append(view[:size])
                    pending.appendleft(view[size:])
                    break
                output.append(part)
                size -= len(part)
        pending.clear()  # empty parts
        stream.stall_ticks = 0
        if stream.watched:
            stream.watched = False
            self.drained.append(stream)
        if stream.trailers is not None:
            trailers, stream.trailers = stream.trailers, None
            self.send_headers(stream, trailers, ended=True)

    def _end_local(self, stream: Stream) -> None:
        stream.local_open = False
        if stream.reports_late_reset and not self.ended:
            stream.epoch = self._epoch
            self._answered[stream.id] = stream
        if stream.remote_open:  # the answer does not need the rest of the request
            self._drop(stream)
            self._send_reset(stream.id, ErrorCode.NO_ERROR)
        else:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)
        self._ready.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._starved.pop(stream.id, None)
        self.pending_size -= stream.pending_size
        stream.pending_size = 0
        stream.pending.clear()
        stream.trailers = None
        stream.local_open = stream.remote_open = False

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._output.append(frames.rst_stream(stream_id, code))
        self._reset[stream_id] = None

    def _take_table_update(self) -> bytes:
        update, self._table_update = self._table_update, b""
        return update


_HANDLERS: Final[tuple[Callable[[Http2Connection, int, int, bytes], None], ...]] = (
    Http2Connection._data,
    Http2Connection._headers,
    Http2Connection._priority,
    Http2Connection._rst_stream,
    Http2Connection._settings,
    Http2Connection._push_promise,
    Http2Connection._ping,
    Http2Connection._goaway,
    Http2Connection._window_update,
    Http2Connection._stray_continuation,
)
"""By the type of a frame."""


def _part(data: bytes, begin: int, end: int) -> bytes | memoryview:
    """A part of received data. A view if it is large and most of the data, which the view keeps in memory; otherwise a
    copy."""
    size = end - begin
    return memoryview(data)[begin:end] if size >= _VIEWED_SIZE_MIN and 2 * size >= len(data) else data[begin:end]


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "padding that fills its whole frame")
    return payload[1 : len(payload) - payload[0]]
