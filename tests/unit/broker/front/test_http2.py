"""The HTTP/2 core: streams, windows, headers, and limits on what a client may cause."""

from __future__ import annotations

import pytest
from hpack import Encoder

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.front import frames
from aerobee_broker.front.frames import ErrorCode, Setting
from aerobee_broker.front.header_blocks import encoded
from aerobee_broker.front.http2 import (
    CONNECTION_WINDOW,
    FRAME_SIZE_MAX,
    STREAM_WINDOW,
    ConnectionEnded,
    DataReceived,
    Http2Connection,
    RequestReceived,
    Stream,
    StreamEnded,
)
from tests.support.http2_client import GREETING, HEADERS, data, ended_with, greeted, output, received, request

BLOCK = encoded(((b":status", b"200"),))
TRAILERS = encoded(((b"grpc-status", b"0"),))
CALM = ErrorCode.ENHANCE_YOUR_CALM


def opened(core: Http2Connection, stream_id: int = 1, *, ended: bool = True) -> Stream:
    """A stream whose request has been received."""
    [event] = received(core, request(stream_id, ended=ended))
    assert isinstance(event, RequestReceived)
    return event.stream


# --- Streams ------------------------------------------------------------------------------------------------


def test_a_request_and_its_answer() -> None:
    """Request and answer each have headers, data and an end."""
    core = greeted()
    events = received(core, request(1) + data(1, b"hello") + data(1, b"", ended=True))
    head, hello, end = events
    assert isinstance(head, RequestReceived)
    assert (head.head.path, head.ended) == (b"/test.Service/Echo", False)
    assert isinstance(hello, DataReceived)
    assert hello.data == b"hello"
    assert isinstance(end, DataReceived)
    assert end.ended
    core.respond(head.stream, BLOCK, b"answer", TRAILERS)
    assert [(frame.kind, frame.flags) for frame in output(core)] == [
        (frames.HEADERS, frames.END_HEADERS),
        (frames.DATA, 0),
        (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM),
    ]
    assert core.streams == {}


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_streams_of_a_connection_end_some_at_a_time(is_lost: bool) -> None:
    """There may be ten thousand; each ends once, also when the client's error ended the connection."""
    core = greeted()
    streams = [opened(core, 1 + 2 * number) for number in range(100)]
    if is_lost:
        core.abandon()
    else:
        assert [type(event) for event in core.receive(data(0, b"x"))] == [ConnectionEnded]
    found: list[Stream] = []
    while core.has_input:
        events = core.receive(b"")
        assert 0 < len(events) <= 16
        found += [event.stream for event in events if isinstance(event, StreamEnded)]
    assert found == streams
    assert core.is_over
    assert core.receive(b"more") == []


def test_answers_that_a_window_sets_free_are_written_some_at_a_time() -> None:
    """A client opens the windows of a thousand streams with one frame."""
    core = greeted()
    received(core, frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    for number in range(1000):
        core.respond(opened(core, 1 + 2 * number), BLOCK, b"answer", TRAILERS)
    core.take_output()
    assert core.pending_size == 6000
    received(core, frames.settings({Setting.INITIAL_WINDOW_SIZE: 100}))
    sizes = []
    while core.has_output:
        core.take_output()
        sizes.append(core.pending_size)
    assert len(sizes) >= 4
    assert sizes[-1] == 0


def test_an_answer_before_the_request_has_ended_resets_it() -> None:
    """Remaining data of the request is dropped, and its bytes are returned to the connection's window."""
    core = greeted()
    stream = opened(core, ended=False)
    core.send_headers(stream, BLOCK, ended=True)
    assert [frame.kind for frame in output(core)] == [frames.HEADERS, frames.RST_STREAM]
    for _ in range(CONNECTION_WINDOW // 16384 + 1):
        assert received(core, data(1, bytes(16384))) == []
        core.take_output()
    assert not core.ended


def test_data_is_passed_on_before_its_frame_is_complete() -> None:
    """A frame is checked when it begins, so an invalid length is refused before the frame is complete."""
    core = greeted()
    stream = opened(core, ended=False)
    frame = data(1, bytes(range(200)), ended=True)
    parts = [frame[:5], frame[5:9], frame[9:100], frame[100:], data(3, b"x")]
    found = [event for part in parts[:-1] for event in received(core, part)]
    assert [(type(event), event.data, event.ended) for event in found if isinstance(event, DataReceived)] == [
        (DataReceived, frame[9:100], False),
        (DataReceived, frame[100:], True),
    ]
    assert not stream.remote_open
    assert ended_with(received(core, parts[-1])) == (ErrorCode.PROTOCOL_ERROR, "")  # the next frame is parsed

    core = greeted()
    received(core, request(1, headers=(*HEADERS, (b"content-length", b"100"))))
    assert [type(event) for event in received(core, data(1, bytes(101))[:20])] == [StreamEnded]
    assert received(core, data(1, bytes(101))[20:]) == []  # dropped, because the stream was reset
    assert not core.ended


def test_large_data_is_copied_only_from_a_much_larger_buffer() -> None:
    """Data is a view of the read buffer. It is a copy if the view would keep a much larger buffer in memory."""
    message = bytes(range(256)) * 1000
    sent = data(1, message) + data(3, b"x" * 40)
    core = greeted()
    opened(core, 1, ended=False)
    opened(core, 3, ended=False)
    events = [
        event for begin in range(0, len(sent), 100_000) for event in received(core, sent[begin : begin + 100_000])
    ]
    parts = [event.data for event in events if isinstance(event, DataReceived) and event.stream.id == 1]
    assert b"".join(parts) == message
    assert [type(part) for part in parts] == [memoryview] * 3
    core = greeted()
    opened(core, 1, ended=False)
    last = received(core, data(1, b"z" * 16_000) * 4 + data(1, message)[:20_000])[-1]
    assert isinstance(last, DataReceived)
    assert isinstance(last.data, bytes)  # a quarter of the read buffer


def test_the_rest_of_a_frame_is_dropped_when_its_stream_has_ended() -> None:
    """The stream is answered in the middle of a large frame, and the connection continues."""
    core = greeted()
    stream = opened(core, ended=False)
    frame = data(1, bytes(FRAME_SIZE_MAX), ended=True)
    assert len(received(core, frame[:1000])) == 1
    core.send_headers(stream, BLOCK, ended=True)
    assert received(core, frame[1000:]) == []
    assert isinstance(received(core, request(3))[0], RequestReceived)


@pytest.mark.parametrize(
    ("frame", "bound"),
    [
        (frames.frame(frames.HEADERS, frames.END_HEADERS, 1, bytes(100_000)), "header_size_max"),
        (frames.frame(11, 0, 0, bytes(100_000)), ""),
        (frames.frame(frames.DATA, frames.PADDED, 1, bytes(100_000)), ""),
    ],
)
def test_only_data_comes_in_large_frames(frame: bytes, bound: str) -> None:
    """Other frames would be buffered until complete, so large ones are refused by their header."""
    core = greeted()
    assert ended_with(received(core, frame[:9])) == (CALM, bound)


def test_an_answer_to_a_reset_stream_is_dropped() -> None:
    """A client's reset may arrive before its request is handled; the answer is then dropped."""
    core = greeted()
    events = received(core, request(1, ended=True) + frames.rst_stream(1, ErrorCode.CANCEL))
    assert isinstance(events[0], RequestReceived)
    assert isinstance(events[1], StreamEnded)
    core.respond(events[0].stream, BLOCK, b"late", TRAILERS)
    core.send_headers(events[0].stream, BLOCK)
    core.send_data(events[0].stream, b"late")
    core.send_trailers(events[0].stream, TRAILERS)
    assert output(core) == []
    assert core.pending_size == 0


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (request(2), ErrorCode.PROTOCOL_ERROR),
        (request(0), ErrorCode.PROTOCOL_ERROR),
        (request(3, ended=True) + request(1), ErrorCode.STREAM_CLOSED),
        (frames.rst_stream(1, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.CONTINUATION, 4, 1), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 0, 1) + frames.frame(frames.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(frames.DATA, 0, 1, bytes(FRAME_SIZE_MAX + 1)), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(frames.HEADERS, 4, 1, bytes(FRAME_SIZE_MAX + 1)), ErrorCode.FRAME_SIZE_ERROR),
        (frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(0, frames.WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.settings({Setting.MAX_FRAME_SIZE: 100}), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
    ],
)
def test_mistakes_that_end_the_connection(sent: bytes, code: ErrorCode) -> None:
    """Each ends the connection with the error that RFC 9113 names."""
    core = greeted()
    assert ended_with(received(core, sent)) == (code, "")
    assert output(core)[-1].kind == frames.GOAWAY


@pytest.mark.parametrize(
    "wrong",
    [
        HEADERS[1:],
        (*HEADERS, (b"Upper", b"x")),
        (*HEADERS, (b"connection", b"close")),
        (*HEADERS, (b"te", b"gzip")),
        (*HEADERS, (b":late", b"x")),
        (HEADERS[0], *HEADERS),
        (*HEADERS, (b"content-length", b"-1")),
        (*HEADERS, (b"x", b"line\nfeed")),
    ],
)
def test_invalid_headers(wrong: tuple[tuple[bytes, bytes], ...]) -> None:
    """Invalid headers reset their stream and no other."""
    core = greeted()
    assert received(core, request(1, headers=wrong)) == []
    [frame] = output(core)
    assert (frame.kind, frame.stream_id) == (frames.RST_STREAM, 1)
    assert opened(core, 3).id == 3


@pytest.mark.parametrize(("length", "sent"), [(b"3", b"four"), (b"3", b"to")])
def test_a_content_length_that_is_wrong(length: bytes, sent: bytes) -> None:
    """The stream is reset."""
    core = greeted()
    events = received(core, request(1, headers=(*HEADERS, (b"content-length", length))) + data(1, sent, ended=True))
    assert isinstance(events[-1], StreamEnded)


def test_the_same_headers_are_decoded_once() -> None:
    """Blocks with only indexed fields share a decoded head until the table changes."""
    core, encoder = greeted(), Encoder()
    received(core, request(1, encoder=encoder, ended=True))
    [second] = received(core, request(3, encoder=encoder, ended=True))
    [third] = received(core, request(5, encoder=encoder, ended=True))
    assert isinstance(second, RequestReceived)
    assert isinstance(third, RequestReceived)
    assert second.head is third.head
    received(core, request(7, headers=(*HEADERS, (b"another", b"one")), encoder=encoder, ended=True))
    [fifth] = received(core, request(9, encoder=encoder, ended=True))
    assert isinstance(fifth, RequestReceived)
    assert fifth.head is not third.head
    assert fifth.head.headers == third.head.headers


# --- Windows ------------------------------------------------------------------------------------------------


def test_an_answer_waits_for_windows() -> None:
    """An answer waits for both windows, of stream and connection. After its trailers it counts as drained."""
    core = Http2Connection(FrontConfig())
    received(core, frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 10}))
    core.take_output()
    stream = opened(core)
    core.respond(stream, BLOCK, bytes(25), TRAILERS)
    stream.watched = True
    assert [(f.kind, len(f.payload)) for f in output(core)][1:] == [(frames.DATA, 10)]
    assert core.pending_size == 15
    received(core, frames.window_update(1, 5))
    assert [(f.kind, len(f.payload)) for f in output(core)] == [(frames.DATA, 5)]
    received(core, frames.settings({Setting.INITIAL_WINDOW_SIZE: 100}))
    sent = output(core)
    assert [(f.kind, f.flags) for f in sent[1:]] == [(frames.DATA, 0), (frames.HEADERS, 5)]
    assert core.drained == [stream]
    assert core.pending_size == 0


def test_streams_share_the_window_of_the_connection() -> None:
    """Streams take turns as the connection's window grows."""
    core = greeted()
    streams = [opened(core, stream_id) for stream_id in (1, 3)]
    for stream in streams:
        core.send_headers(stream, BLOCK)
        core.send_data(stream, bytes(50_000))
    assert sum(len(f.payload) for f in output(core) if f.kind == frames.DATA) == 65535
    turns = []
    for _ in range(4):
        received(core, frames.window_update(0, 1000))
        turns += [f.stream_id for f in output(core)]
    assert turns == [3, 3, 3, 3]  # the first stream is finished
    assert streams[0].pending_size == 0


def test_windows_are_returned_as_bytes_arrive() -> None:
    """Windows are returned as data arrives, unless the stream is held."""
    core = greeted()
    stream = opened(core, ended=False)
    for _ in range(3 * STREAM_WINDOW // 16384):
        received(core, data(1, bytes(16384)))
    updates = [f for f in output(core) if f.kind == frames.WINDOW_UPDATE]
    assert sum(int.from_bytes(f.payload, "big") for f in updates if f.stream_id == 1) > 2 * STREAM_WINDOW
    core.hold(stream)
    while not isinstance(received(core, data(1, bytes(16384)))[0], StreamEnded):
        pass
    assert [(f.kind, f.payload[-1]) for f in output(core) if f.stream_id == 1] == [
        (frames.RST_STREAM, ErrorCode.FLOW_CONTROL_ERROR)
    ]


def test_a_stream_that_reads_nothing_is_found() -> None:
    """A stream that reads nothing is found after the given number of checks; a slow one is not."""
    core = greeted()
    slow, dead = opened(core, 1), opened(core, 3)
    for stream in (slow, dead):
        stream.send_window = 0
        core.send_data(stream, bytes(100_000))
    core.take_output()
    found: list[Stream] = []
    for _ in range(12):
        received(core, frames.window_update(1, 1000))
        core.take_output()
        found += core.stalled(10)
    assert found == [dead]


# --- Bounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        frames.frame(frames.SETTINGS, 0, 0),
        frames.frame(frames.SETTINGS, frames.ACK, 0),
        frames.frame(frames.PING, 0, 0, bytes(8)),
        frames.frame(frames.PING, frames.ACK, 0, bytes(8)),
        frames.frame(frames.PRIORITY, 0, 1, bytes(5)),
        frames.frame(frames.PRIORITY, 0, 99, bytes(4)),
        frames.frame(0x77, 0, 0, b"grease"),
        frames.frame(frames.GOAWAY, 0, 0, bytes(8)),
        frames.window_update(0, 1),
        data(1, b""),
    ],
)
def test_floods_of_frames_that_only_cause_work(frame: bytes) -> None:
    """Too many of these frames end the connection. The count is lowered each second."""
    core = greeted(FrontConfig(cheap_frame_count_max=100))
    stream = opened(core, ended=False)
    core.send_headers(stream, BLOCK)
    assert not received(core, frame * 40)
    for _ in range(20):
        core.relax()
        received(core, frame * 10)
    assert not core.ended
    assert ended_with(received(core, frame * 2000)) == (CALM, "cheap_frame_count_max")
    assert core.streams == {}


def test_pings_and_window_updates_are_free_while_we_send() -> None:
    """Clients measure round trips and return windows for each answer, so these frames are not counted."""
    core = greeted(FrontConfig(cheap_frame_count_max=10))
    for number in range(2000):
        stream = opened(core, 2 * number + 1)
        core.respond(stream, BLOCK, b"answer", TRAILERS)
        received(
            core, frames.frame(frames.PING, 0, 0, bytes(8)) + frames.window_update(0, 6) + frames.window_update(0, 1)
        )
        core.take_output()
    assert not core.ended


def test_rapid_reset() -> None:
    """Opening and resetting streams at once ends the connection; cancelling older calls does not."""
    config = FrontConfig(cheap_frame_count_max=100)
    core = greeted(config)
    for number in range(500):
        opened(core, 2 * number + 1)
    core.relax()
    core.relax()
    for number in range(500):
        received(core, frames.rst_stream(2 * number + 1, ErrorCode.CANCEL))
    assert not core.ended
    sent = b"".join(
        request(2 * number + 1, ended=True) + frames.rst_stream(2 * number + 1, ErrorCode.CANCEL)
        for number in range(500, 1000)
    )
    assert ended_with(received(core, sent)) == (CALM, "cheap_frame_count_max")


@pytest.mark.parametrize("mistake", [frames.window_update(1, 0), data(1, b""), frames.window_update(1, 2**31 - 1)])
def test_resets_that_the_client_makes_us_send(mistake: bytes) -> None:
    """Resets caused by the client's errors count like its own resets."""
    core = greeted(FrontConfig(cheap_frame_count_max=100))
    ended = None
    for number in range(500):
        stream_id = (2 * number + 1).to_bytes(4, "big")
        wrong = mistake[:5] + stream_id + mistake[9:]
        events = received(core, request(2 * number + 1, ended=True) + wrong)
        ended = ended or ended_with(events)
    assert ended == (CALM, "cheap_frame_count_max")


def test_a_header_block_without_end() -> None:
    """The size of a block and the number of its frames are limited, empty frames included."""
    begin = frames.frame(frames.HEADERS, 0, 1, b"\x82")
    for piece in (bytes(16000), b"x", b""):
        core = greeted()
        events = received(core, begin + frames.frame(frames.CONTINUATION, 0, 1, piece) * 100)
        assert ended_with(events) == (CALM, "header_size_max")
        assert core._header_size <= 5 * FrontConfig().header_size_max


def test_headers_far_too_large_are_answered_before_the_connection_ends() -> None:
    """The call gets an answer, although its header block never completes."""
    core = Http2Connection(FrontConfig(), headers_refusal=BLOCK)
    received(core, GREETING)
    core.take_output()
    sent = frames.frame(frames.HEADERS, 0, 1, b"\x82") + frames.frame(frames.CONTINUATION, 0, 1, bytes(16000)) * 5
    assert ended_with(received(core, sent)) == (CALM, "header_size_max")
    answer, goaway = output(core)
    assert (answer.kind, answer.stream_id, answer.payload) == (frames.HEADERS, 1, BLOCK)
    assert goaway.payload[:4] == bytes((0, 0, 0, 1))


def test_a_header_bomb() -> None:
    """A large table entry that is referenced many times is not expanded."""
    core, encoder = greeted(), Encoder()
    received(core, request(1, headers=(*HEADERS, (b"bomb", bytes(4000).replace(b"\0", b"x"))), encoder=encoder))
    [bomb] = encoder.encode([(b"bomb", b"x" * 4000)])
    events = received(core, frames.frame(frames.HEADERS, 5, 3, bytes([bomb]) * 16000))
    assert ended_with(events) == (CALM, "header_size_max")


def test_table_sizes_without_end() -> None:
    """A block may begin with a few table size changes, not with thousands."""
    core = greeted()
    block = request(1, ended=True)[9:]
    assert ended_with(received(core, frames.frame(frames.HEADERS, 5, 1, b"\x20" * 8 + block))) is None
    events = received(core, frames.frame(frames.HEADERS, 5, 3, b"\x20" * 9 + block))
    assert ended_with(events) == (ErrorCode.COMPRESSION_ERROR, "")


def test_requests_that_arrive_too_slowly_are_found() -> None:
    """A request without progress between two checks is found, unless it is held or complete."""
    core = greeted()
    slow, held, steady, complete = (opened(core, number, ended=False) for number in (1, 3, 5, 7))
    core.hold(held)
    received(core, data(7, b"", ended=True))
    assert core.stalled_requests() == []
    received(core, data(5, bytes(2000)) + data(1, b"x") + data(3, b"x"))
    assert core.stalled_requests() == [slow]
    core.release(held)
    assert core.stalled_requests() == [slow, steady]
    assert core.stalled_requests() == [slow, held, steady]
    assert complete.received == 0


def test_streams_above_the_bound_are_refused() -> None:
    """The refusal is REFUSED_STREAM, so that the client may retry."""
    core = greeted(FrontConfig(stream_count_max=2))
    opened(core, 1)
    opened(core, 3)
    assert received(core, request(5, ended=True)) == []
    [frame] = output(core)
    assert (frame.kind, frame.stream_id, frame.payload[-1]) == (frames.RST_STREAM, 5, ErrorCode.REFUSED_STREAM)
    assert core.refusals == ["stream_count_max"]


def test_calls_are_refused_while_answers_are_not_taken() -> None:
    """Calls are refused while the answers waiting for windows exceed the limit."""
    core = greeted(FrontConfig(connection_answer_size_max=1000))
    core.respond(opened(core, 1), BLOCK, bytes(70_000), TRAILERS)
    core.take_output()
    assert core.pending_size > 1000
    assert received(core, request(3, ended=True)) == []
    assert core.refusals == ["connection_answer_size_max"]
    received(core, frames.window_update(0, 100_000) + frames.window_update(1, 100_000))
    core.take_output()
    assert opened(core, 5).id == 5


def test_one_byte_windows() -> None:
    """A client that opens the window one byte at a time is disconnected."""
    core = Http2Connection(FrontConfig(cheap_frame_count_max=100))
    received(core, frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    core.respond(opened(core), BLOCK, bytes(100_000), TRAILERS)
    ended = None
    for _ in range(5000):
        ended = ended or ended_with(received(core, frames.window_update(1, 1)))
        core.take_output()
    assert ended == (CALM, "cheap_frame_count_max")


# --- The end ------------------------------------------------------------------------------------------------


def test_an_end_in_two_steps() -> None:
    """The first GOAWAY announces the end and still accepts streams. The second has the last accepted stream."""
    core = greeted()
    first = opened(core, 1)
    core.begin_shutdown()
    goaway, ping = output(core)
    assert (goaway.kind, goaway.payload[:4]) == (frames.GOAWAY, b"\x7f\xff\xff\xff")
    second = opened(core, 3)
    received(core, frames.frame(frames.PING, frames.ACK, 0, ping.payload))
    [goaway] = output(core)
    assert goaway.payload[:8] == bytes((0, 0, 0, 3, 0, 0, 0, 0))
    assert received(core, request(5, ended=True)) == []
    assert not core.is_over
    for stream in (first, second):
        core.respond(stream, BLOCK, b"", TRAILERS)
    assert core.is_over


def test_the_first_frame_is_settings() -> None:
    """Other frames and bytes that are not HTTP/2 end the connection."""
    for sent in (frames.PREFACE + frames.frame(frames.PING, 0, 0, bytes(8)), b"GET / HTTP/1.1\r\n\r\n"):
        assert ended_with(Http2Connection(FrontConfig()).receive(sent)) == (ErrorCode.PROTOCOL_ERROR, "")
    assert Http2Connection(FrontConfig()).receive(GREETING) == []


def test_a_fast_answer_respects_the_window_of_the_connection() -> None:
    """An answer that its stream's window admits waits for the connection's window."""
    core = greeted()
    first, second = opened(core, 1), opened(core, 3)
    core._send_window = 100
    core.respond(first, BLOCK, b"x" * 90, TRAILERS)
    core.respond(second, BLOCK, b"y" * 90, TRAILERS)
    sent = {1: 0, 3: 0}
    for frame in output(core):
        if frame.kind == frames.DATA:
            sent[frame.stream_id] += len(frame.payload)
    assert sent == {1: 90, 3: 10}


def test_padding_counts_in_the_window_of_its_stream_and_is_returned() -> None:
    """The whole frame uses the window, so the whole frame is returned; otherwise padded streams stop."""
    core = greeted()
    stream = opened(core, 1, ended=False)
    output(core)
    padded = frames.frame(frames.DATA, frames.PADDED, 1, b"\xff" + b"x" * 1000 + bytes(255))
    returned = 0
    for _ in range(2 * STREAM_WINDOW // 1256):
        received(core, padded)
        for frame in output(core):
            if frame.kind == frames.WINDOW_UPDATE and frame.stream_id == 1:
                returned += int.from_bytes(frame.payload, "big")
    assert not core.ended
    assert returned + stream.unreturned == 2 * STREAM_WINDOW // 1256 * 1256


def test_padding_is_returned_to_the_window_of_the_connection() -> None:
    """Frames that are almost only padding may go on for ever: otherwise they stop all streams of the connection."""
    core = greeted()
    opened(core, 1, ended=False)
    padded = frames.frame(frames.DATA, frames.PADDED, 1, b"\xfex" + bytes(254)) * 256
    for _ in range(2 * CONNECTION_WINDOW // (256 * 256)):
        received(core, padded)
        output(core)
    assert not core.ended


def test_one_settings_frame_changes_many_streams_once() -> None:
    """Ten thousand entries cost as much as one for each open stream, and the last value counts."""
    core = greeted(FrontConfig(stream_count_max=1_000))
    streams = [opened(core, 2 * n + 1) for n in range(500)]
    payload = b"".join(Setting.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + n.to_bytes(4, "big") for n in range(10_000))
    received(core, frames.frame(frames.SETTINGS, 0, 0, payload))
    assert {stream.send_window for stream in streams} == {9_999}
    for _ in range(50):
        received(core, frames.frame(frames.SETTINGS, 0, 0, payload))
    assert core.ended  # the entries count as cheap frames


def test_input_is_processed_some_events_at_a_time() -> None:
    """One write of a thousand calls does not become one step."""
    core = greeted()
    events = core.receive(b"".join(request(2 * n + 1, ended=True) for n in range(1_000)))
    assert 0 < len(events) < 100
    assert core.has_input
    later = received(core, b"")
    assert len(events) + len(later) == 1_000
    assert not core.has_input
