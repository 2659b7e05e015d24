"""Frames of the remoting protocol: both headers, split input, limits, and hostile bytes."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.remoting_wire.frame import (
    EXT_FIELD_COUNT_MAX,
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    Command,
    FrameFormatError,
    FrameReader,
    encode,
    encode_binary,
)

_COMMAND = Command(310, opaque=7, fields={"b": "Topic", "i": "KEYS\x01ä\x02"}, remark="r", body=b"\0body")


def frame(header: bytes, body: bytes = b"", *, serialization: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), serialization << 24 | len(header)) + header + body


def test_json_header_may_lack_most_fields() -> None:
    """Language, version, remark and extFields are optional. An unknown or lower-case language is accepted."""
    (command,) = FrameReader().feed(frame(b'{"code":105,"opaque":3}'))
    assert command == Command(105, opaque=3, version=0)
    (command,) = FrameReader().feed(frame(b'{"code":1,"language":"klingon","extFields":null,"remark":null,"x":[{}]}'))
    assert command.language == "klingon"
    (command,) = FrameReader().feed(frame(b'{"code":1,"extFields":{"a":5,"b":true,"c":null}}'))
    assert command.fields == {"a": "5", "b": "true"}


def test_binary_header_of_an_unknown_language_and_an_empty_value() -> None:
    """Language byte 99 is accepted; a field with an empty value is dropped."""
    header = struct.pack(">hBhiii", 105, 99, 401, -5, 0, 0)
    entries = struct.pack(">H5si", 5, b"topic", 0) + struct.pack(">H1si1s", 1, b"a", 1, b"b")
    (command,) = FrameReader().feed(frame(header + struct.pack(">i", len(entries)) + entries, serialization=1))
    assert command == Command(105, opaque=-5, version=401, language="OTHER", fields={"a": "b"})


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iI", FRAME_SIZE_MAX, 2),
        struct.pack(">iI", FRAME_SIZE_MAX - 3, 2),
        struct.pack(">iI", 0, 0),
        struct.pack(">iI", 3, 0),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 20, 17),
        struct.pack(">iI", FRAME_SIZE_MAX - 4, HEADER_SIZE_MAX + 1),
        frame(b"{}", serialization=2),
        frame(b"{}", serialization=255),
        frame(b""),
        frame(b"{"),
        frame(b"[]"),
        frame(b"\xff{}"),
        frame(b"[" * 200_000),
        frame(b'{"code":"x"}'),
        frame(b'{"code":2147483648}'),
        frame(b'{"opaque":true}'),
        frame(b'{"flag":1.5}'),
        frame(b'{"extFields":[]}'),
        frame(json.dumps({"extFields": {str(n): "" for n in range(EXT_FIELD_COUNT_MAX + 1)}}).encode()),
        frame(b"", serialization=1),
        frame(struct.pack(">hBhiiii", 1, 0, 0, 0, 0, -1, 0), serialization=1),
        frame(struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 1 << 30, 0), serialization=1),
        frame(struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 1), serialization=1),
        frame(struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 0) + b"x", serialization=1),
        frame(struct.pack(">hBhiiiiHi", 1, 0, 0, 0, 0, 0, 6, 0, -1), serialization=1),
        frame(struct.pack(">hBhiiii", 1, 0, 0, 0, 0, 0, 6 * 1025) + bytes(6 * 1025), serialization=1),
    ],
)
def test_invalid_frames_are_refused(data: bytes) -> None:
    """Invalid lengths and headers are refused at once, and the reader then refuses all further input."""
    reader = FrameReader()
    with pytest.raises(FrameFormatError):
        reader.feed(data)
    assert reader.waiting_size == 0
    with pytest.raises(FrameFormatError):
        reader.feed(encode(_COMMAND))


def test_the_longest_frame() -> None:
    """A frame of 16 MiB is encoded and decoded, one more byte is refused."""
    room = FRAME_SIZE_MAX - len(encode(Command(1)))
    reader = FrameReader()
    (command,) = reader.feed(encode(Command(1, body=bytes(room))))
    assert len(command.body) == room
    with pytest.raises(FrameFormatError):
        encode(Command(1, body=bytes(room + 1)))


def test_a_longer_frame_for_a_peer_that_reads_it() -> None:
    """Both sides know its limit; others refuse the frame at its first bytes."""
    size_max = FRAME_SIZE_MAX + 100
    room = size_max - len(encode(Command(1)))
    data = encode(Command(1, body=bytes(room), frame_size_max=size_max))
    (command,) = FrameReader(frame_size_max=size_max).feed(data)
    assert len(command.body) == room
    with pytest.raises(FrameFormatError):
        encode(Command(1, body=bytes(room + 1), frame_size_max=size_max))
    with pytest.raises(FrameFormatError):
        FrameReader(frame_size_max=size_max - 1).feed(data[:8])
    with pytest.raises(FrameFormatError):
        FrameReader().feed(data[:8])


def test_binary_header_cannot_hold_a_large_code() -> None:
    """POP's code 200050 does not fit into 16 bits."""
    with pytest.raises(FrameFormatError, match="200050"):
        encode_binary(Command(200050))


def test_invalid_unicode_is_replaced_in_answers() -> None:
    """A lone surrogate, which JSON can carry, is replaced when the answer is encoded."""
    header = rb'{"code":1,"language":"\ud800L","remark":"\ud800R","extFields":{"a":"\ud800","\udfff":"\u00fc"}}'
    (command,) = FrameReader().feed(frame(header))
    (answered,) = FrameReader().feed(encode(command))
    assert (answered.language, answered.remark, answered.fields) == ("?L", "?R", {"a": "?", "?": "\u00fc"})


_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.lists(
        st.builds(
            Command,
            code=st.integers(-(2**15), 2**15 - 1),
            opaque=st.integers(-(2**31), 2**31 - 1),
            flag=st.integers(0, 3),
            version=st.integers(0, 2**15 - 1),
            language=st.sampled_from(("JAVA", "GO")),
            remark=st.none() | _TEXT.filter(bool),
            fields=st.dictionaries(_TEXT, _TEXT.filter(bool), max_size=5),
            body=st.binary(max_size=50),
        ),
        max_size=5,
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
    st.booleans(),
)
def test_any_commands_in_any_pieces(commands: list[Command], sizes: list[int], binary: bool) -> None:
    """Any commands are decoded unchanged, wherever the input is split."""
    data = b"".join((encode_binary if binary else encode)(command) for command in commands)
    reader, found, at = FrameReader(), list[Command](), 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        found += reader.feed(data[at : at + size])
        at += size
    assert found == commands


def test_damaged_frames_are_read_or_refused() -> None:
    """Frames with random changes, from a fixed seed, give commands or FrameFormatError, and buffer little."""
    chance = random.Random(13)
    for _ in range(3000):
        data = bytearray(encode(_COMMAND) if chance.random() < 0.5 else encode_binary(_COMMAND))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        reader = FrameReader()
        try:
            reader.feed(bytes(data))
            reader.feed(encode(_COMMAND))
        except FrameFormatError:
            continue
        assert reader.waiting_size <= 2 * (len(data) + len(encode(_COMMAND))) + 64  # a buffer has up to twice its bytes
