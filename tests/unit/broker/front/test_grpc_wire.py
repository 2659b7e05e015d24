"""gRPC messages are read from a byte stream that is split anywhere."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.front.grpc_wire import GzipMessage, MessageReader, MessageTooLargeError, message_prefix
from aerobee_broker.front.methods import CallAbortedError

MESSAGES = st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=6)


@given(MESSAGES, st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_any_split_gives_the_same_messages(messages: list[tuple[bytes, bool]], sizes: list[int]) -> None:
    data = b""
    for message, compressed in messages:
        sent = gzip.compress(message) if compressed else message
        data += (b"\1" if compressed else b"\0") + message_prefix(len(sent))[1:] + sent
    reader = MessageReader(b"gzip", 1000)
    found: list[bytes | GzipMessage] = []
    position = number = 0
    while position < len(data):
        part = data[position : position + sizes[number % len(sizes)]]
        position += len(part)
        number += 1
        found += reader.feed(part)
        assert 0 <= reader.size < len(data)
    assert found == [message for message, _ in messages]
    assert reader.size == 0


def test_a_message_in_tiny_parts_takes_the_memory_of_its_bytes() -> None:
    """Each part as an object of its own would take 28 times as much."""
    reader = MessageReader(b"identity", 1 << 20)
    sent = message_prefix(100_000) + bytes(100_000)
    for begin in range(0, len(sent) - 2, 2):
        assert reader.feed(sent[begin : begin + 2]) == []
    assert len(reader._parts) < 4
    assert reader.feed(sent[-3:]) == [bytes(100_000)]


def test_a_message_that_expands_too_much_is_refused() -> None:
    """A kilobyte must not cost a megabyte of memory and its time."""
    with pytest.raises(CallAbortedError, match="send it without gzip"):
        b"".join(_compressed(gzip.compress(bytes(15 << 20)), 16 << 20).pieces())
    honest = gzip.compress(bytes(1 << 20))
    (found,) = MessageReader(b"gzip", 16 << 20).feed(b"\1" + message_prefix(len(honest))[1:] + honest)
    assert len(found) == 1 << 20


def test_a_long_message_is_decompressed_in_pieces() -> None:
    """None takes more than a millisecond or two, whatever the message is made of."""
    plain = random.Random(1).randbytes(1 << 20).hex().encode() + bytes(4 << 20)
    pieces = list(_compressed(gzip.compress(plain), 16 << 20).pieces())
    assert b"".join(pieces) == plain
    assert max(map(len, pieces)) <= 256 << 10


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda packed: packed[:-1], "ends too early"),
        (lambda packed: packed[:-9] + bytes(9), "not valid gzip"),
        (lambda packed: packed + gzip.compress(bytes(100)), None),  # what follows the end is ignored
    ],
)
def test_a_long_message_with_an_error(change: Callable[[bytes], bytes], error: str | None) -> None:
    plain = random.Random(1).randbytes(100_000)
    with nullcontext() if error is None else pytest.raises(CallAbortedError, match=error):
        assert b"".join(_compressed(change(gzip.compress(plain)), 16 << 20).pieces()) == plain
    with pytest.raises(MessageTooLargeError):
        b"".join(_compressed(gzip.compress(plain.hex().encode()), 150_000).pieces())


def _compressed(packed: bytes, size_max: int) -> GzipMessage:
    (found,) = MessageReader(b"gzip", size_max).feed(b"\1" + message_prefix(len(packed))[1:] + packed)
    assert isinstance(found, GzipMessage)
    return found
