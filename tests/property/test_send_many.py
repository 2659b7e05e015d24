"""Requests with many messages of known layouts: for any bytes, the records equal those of single messages."""

from __future__ import annotations

from itertools import count

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.messages.wire_fields import varint
from aerobee_broker.processors.sending.send_answer import send_answer
from aerobee_proto import v2
from tests.support.wire_messages import joined, one_by_one
from tests.unit.broker.test_send_many import stored

TEXT = st.text(st.sampled_from("ab |é\u3000\u0085\x01\x02,"), max_size=6)
SMALL = st.integers(0, 7)
TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2_000_000_000)


@st.composite
def system_properties(draw: st.DrawFn) -> v2.SystemProperties:
    system = v2.SystemProperties(message_id=draw(TEXT | st.just("id")))
    for name in draw(st.sets(st.sampled_from(("tag", "born_host", "store_host", "trace_context", "message_group")))):
        setattr(system, name, draw(TEXT))
    for name in draw(st.sets(st.sampled_from(("body_encoding", "message_type", "queue_id", "priority")))):
        setattr(system, name, draw(SMALL))
    system.keys.extend(draw(st.lists(TEXT, max_size=3)))
    if draw(st.booleans()):
        system.born_timestamp.seconds = draw(TIMES)
        system.born_timestamp.nanos = draw(st.integers(-(2**31), 2**31 - 1))
    return system


@st.composite
def wire_messages(draw: st.DrawFn) -> bytes:
    """Draw the fields of a message in any order, some repeated or missing."""
    parts = [b"\x0a\x08\x12\x06orders"] * draw(st.sampled_from((1, 1, 1, 2, 0)))
    parts += [
        b"\x1a" + varint(len(text)) + text
        for text in (draw(system_properties()).SerializeToString() for _ in range(draw(st.sampled_from((1, 1, 1, 2)))))
    ]
    parts += [v2.Message(user_properties=draw(st.dictionaries(TEXT, TEXT, max_size=3))).SerializeToString()]
    parts += [b"\x22\x03abc"] * draw(st.sampled_from((1, 1, 1, 2, 0)))
    parts += draw(st.lists(st.binary(max_size=3), max_size=1))
    return b"".join(draw(st.permutations(parts)))


USUAL = v2.Message(
    topic=v2.Resource(name="orders"),
    body=b"body",
    user_properties={"region": "north"},
    system_properties=v2.SystemProperties(message_id="id", tag="tag", keys=["k1", "k2"]),
).SerializeToString()


@given(st.lists(wire_messages() | st.just(USUAL), min_size=1, max_size=3), st.integers(0, 8))
def test_any_mixture_is_stored_as_single_messages(messages: list[bytes], usual: int) -> None:
    _compare(joined([*messages, *[USUAL] * usual]))


@given(st.lists(st.tuples(st.integers(0, 10 * (len(USUAL) + 2)), st.integers(0, 7)), min_size=1, max_size=4))
def test_flipped_bits(flips: list[tuple[int, int]]) -> None:
    data = bytearray(joined([USUAL] * 10))
    for position, bit in flips:
        data[position % len(data)] ^= 1 << bit
    _compare(bytes(data))


@given(st.lists(st.text(min_size=1, max_size=200), min_size=1, max_size=5), st.integers(0, 2**63 - 6))
def test_the_answer_is_that_of_protobuf(message_ids: list[str], first: int) -> None:
    answer = v2.SendMessageResponse(status=v2.Status(code=v2.Code.OK, message="OK"))
    for offset, message_id in enumerate(message_ids, first):
        answer.entries.add(status=answer.status, message_id=message_id, transaction_id=message_id, offset=offset)
    assert send_answer([each.encode() for each in message_ids], count(first)) == answer.SerializeToString()


def _compare(data: bytes) -> None:
    try:
        expected = one_by_one(data)
    except DecodeError:
        expected = None
    try:
        found = stored(data)
    except DecodeError:
        found = None
    assert found is None or found == expected
