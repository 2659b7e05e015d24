"""gRPC messages are read from a byte stream that is split anywhere."""

from __future__ import annotations

import gzip

from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.front.grpc_wire import MessageReader, message_prefix

MESSAGES = st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=6)


@given(MESSAGES, st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_any_split_gives_the_same_messages(messages: list[tuple[bytes, bool]], sizes: list[int]) -> None:
    data = b""
    for message, compressed in messages:
        sent = gzip.compress(message) if compressed else message
        data += (b"\1" if compressed else b"\0") + message_prefix(len(sent))[1:] + sent
    reader = MessageReader(b"gzip", 1000)
    found: list[bytes] = []
    position = number = 0
    while position < len(data):
        part = data[position : position + sizes[number % len(sizes)]]
        position += len(part)
        number += 1
        found += reader.feed(part)
        assert 0 <= reader.size < len(data)
    assert found == [message for message, _ in messages]
    assert reader.size == 0
