"""The HTTP/2 core with any input: the split of the bytes does not matter, nothing raises, memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hpack import Decoder, Encoder, HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES as CODES
from hpack.huffman_constants import REQUEST_CODES_LENGTH as LENGTHS
from hpack.huffman_table import decode_huffman
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.front import frames, huffman
from aerobee_broker.front.header_blocks import BlockDecoder, HeaderBlockError, encoded
from aerobee_broker.front.http2 import DataReceived, Event, Http2Connection, RequestReceived
from tests.support.http2_client import GREETING, data, output, parse, received, request, summary

_STREAM_IDS = st.sampled_from((0, 1, 2, 3, 5, 7, 9, 2**31 - 1))
_SMALL = FrontConfig(stream_count_max=3, cheap_frame_count_max=20, header_size_max=2048)


@st.composite
def _frame(draw: st.DrawFn) -> bytes:
    """Draw a frame that is usually valid for a client, on a stream where it may be invalid."""
    kind = draw(st.integers(0, 10))
    stream_id = draw(_STREAM_IDS)
    if kind == frames.HEADERS:
        return request(stream_id, ended=draw(st.booleans()))
    if kind == frames.DATA:
        return data(stream_id, draw(st.binary(max_size=40)), ended=draw(st.booleans()))
    if kind == frames.WINDOW_UPDATE:
        return frames.window_update(stream_id, draw(st.sampled_from((0, 1, 100, 2**31 - 1))))
    if kind == frames.SETTINGS:
        key = draw(st.sampled_from(frames.Setting))
        return frames.settings({key: draw(st.sampled_from((0, 1, 100, 16384, 65535, 2**31 - 1, 2**32 - 1)))})
    sizes = {frames.PING: 8, frames.RST_STREAM: 4, frames.PRIORITY: 5, frames.GOAWAY: 8}
    payload = draw(st.binary(min_size=sizes.get(kind, 0), max_size=sizes.get(kind, 20)))
    return frames.frame(kind, draw(st.integers(0, 255)), stream_id, payload)


@st.composite
def _conversation(draw: st.DrawFn) -> bytes:
    sent = bytearray(GREETING + b"".join(draw(st.lists(_frame(), max_size=25))))
    for _ in range(draw(st.integers(0, 2))):  # mutations
        sent[draw(st.integers(0, len(sent) - 1))] = draw(st.integers(0, 255))
    return bytes(sent)


def _answering(core: Http2Connection, sent: bytes) -> list[tuple[object, ...]]:
    """Feed the bytes, answer every request at once, and return the events."""
    found = []
    for event in received(core, sent):
        found.append(summary(event))
        if isinstance(event, RequestReceived):
            core.respond(event.stream, encoded(((b":status", b"200"),)), b"x" * 300, encoded(((b"grpc-status", b"0"),)))
    return found


def _joined(events: Iterable[Event]) -> list[tuple[object, ...]]:
    """Return the events, with consecutive data of one stream joined."""
    found: list[tuple[object, ...]] = []
    last: DataReceived | None = None
    for event in events:
        if isinstance(event, DataReceived) and last is not None and last.stream is event.stream and not last.ended:
            event = DataReceived(event.stream, bytes(last.data) + bytes(event.data), event.ended)
            found.pop()
        found.append(summary(event))
        last = event if isinstance(event, DataReceived) else None
    return found


@settings(max_examples=75, deadline=None, derandomize=True)
@given(_conversation(), st.lists(st.integers(0, 2000), max_size=12))
def test_any_split_gives_the_same_events(sent: bytes, cuts: list[int]) -> None:
    """Any split, also into single bytes, gives the same events, except that data may come in other pieces."""
    whole = Http2Connection(_SMALL)
    expected = _joined(received(whole, sent))
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    for pieces in (
        [sent[begin:end] for begin, end in pairwise(places)],
        [sent[index : index + 1] for index in range(len(sent))],
    ):
        core = Http2Connection(_SMALL)
        assert _joined(event for piece in pieces for event in received(core, piece)) == expected
        assert sorted(core.streams) == sorted(whole.streams)


@settings(max_examples=75, deadline=None, derandomize=True)
@given(_conversation())
def test_any_conversation_is_answered_in_whole_frames(sent: bytes) -> None:
    """No input raises. Output frames have valid sizes, none is for a reset stream, and buffers stay bounded."""
    core = Http2Connection(_SMALL)
    _answering(core, sent)
    reset: set[int] = set()
    for frame in output(core):
        assert len(frame.payload) <= 16384 or core.ended
        if frame.kind in (frames.DATA, frames.HEADERS):
            assert frame.stream_id not in reset
        if frame.kind == frames.RST_STREAM:
            reset.add(frame.stream_id)
    assert len(core.streams) <= _SMALL.stream_count_max
    assert core.pending_size <= 300 * _SMALL.stream_count_max
    assert core.ended == any(frame.kind == frames.GOAWAY for frame in output(core)) or core.ended


_NAMES = st.sampled_from((b":method", b":path", b"content-type", b"x-own", b"grpc-timeout", b"x-" + b"n" * 200))
_VALUES = st.one_of(st.sampled_from((b"POST", b"/", b"application/grpc", b"")), st.binary(max_size=200))
_FIELDS = st.tuples(_NAMES, _VALUES, st.booleans())


@settings(max_examples=75, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.lists(_FIELDS, max_size=8), st.booleans(), st.sampled_from((None, 0, 100, 4096)))))
def test_blocks_decode_as_the_hpack_package_does(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    """Consecutive blocks, with and without Huffman codes, any table sizes, and never-indexed fields."""
    encoder, decoder, other = Encoder(), BlockDecoder(1 << 20), Decoder()
    for fields, coded, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        block = encoder.encode(fields, huffman=coded)
        assert _pairs(decoder, block) == [tuple(pair) for pair in other.decode(block, raw=True)]


def _pairs(decoder: BlockDecoder, block: bytes) -> list[tuple[bytes, bytes]]:
    return [(field.name, field.value) for field in decoder.fields(block)]


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.one_of(st.binary(max_size=90), st.binary(max_size=90).map(HuffmanEncoder(CODES, LENGTHS).encode)))
def test_huffman_strings_decode_as_in_the_hpack_package(data: bytes) -> None:
    """Valid codes and random bytes give the same text, or an error in both decoders."""
    try:
        expected = decode_huffman(data)
    except HPACKError:
        with pytest.raises(HPACKError):
            huffman.decoded(data)
    else:
        assert huffman.decoded(data) == expected


def test_every_character_and_every_two_bytes_decode_alike() -> None:
    """Pairs of characters and all two-byte strings, most of them invalid, give the same result."""
    encoder = HuffmanEncoder(CODES, LENGTHS)
    texts = [bytes((a, b)) for a in range(0, 256, 5) for b in range(256)]
    for text in [*map(encoder.encode, texts), *(number.to_bytes(2, "big") for number in range(1 << 16))]:
        try:
            expected: bytes | None = decode_huffman(text)
        except HPACKError:
            expected = None
        try:
            assert huffman.decoded(text) == expected
        except HPACKError:
            assert expected is None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_blocks_are_refused_as_the_hpack_package_does(blocks: list[bytes]) -> None:
    """Random bytes give the same headers, or an error in both decoders."""
    decoder, other = BlockDecoder(1 << 20), Decoder()
    for block in blocks:
        expected: list[tuple[bytes, ...]] | None
        try:
            expected = [tuple(pair) for pair in other.decode(block, raw=True)]
        except (HPACKError, IndexError, ValueError):
            expected = None
        try:
            assert _pairs(decoder, block) == expected
        except HeaderBlockError:
            assert expected is None
            return


@settings(max_examples=75, deadline=None, derandomize=True)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_raise_nothing(sent: bytes, greeted: bool) -> None:
    """Random bytes raise no error, and leave at most one incomplete frame buffered."""
    core = Http2Connection(_SMALL)
    _answering(core, GREETING + sent if greeted else sent)
    parse(b"".join(core.take_output()))
    assert len(core._input) <= 16384 + frames.HEADER_SIZE
    open_count = len(core.streams)
    core.abandon()
    ended = 0
    while core.has_input:
        ended += len(core.receive(b""))
    assert ended == open_count
    assert not core.streams
