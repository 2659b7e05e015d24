"""Messages that are alike: for any bytes, the packed records equal those of single messages."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wire_messages import one_by_one, request_of
from tests.unit.broker.test_send_alike import COUNT, alike, packed

SAME_SIZE = st.text(st.sampled_from("ab |\x01\x02\x7f,"), min_size=5, max_size=5) | st.sampled_from(("éé1", "\u3000ab"))
USUAL = request_of(alike())


@given(
    st.lists(
        st.tuples(
            st.integers(0, COUNT - 1),
            SAME_SIZE | st.none(),
            SAME_SIZE | st.none(),
            st.integers(0, 2**31 - 1) | st.none(),
            st.integers(-1, 2**31 - 1) | st.none(),
        ),
        max_size=4,
    ),
    st.integers(1, 3),
)
def test_any_content_is_stored_as_single_messages(
    changes: list[tuple[int, str | None, str | None, int | None, int | None]], sizes: int
) -> None:
    made = alike(sizes * COUNT)
    for number, message in enumerate(made):
        message.body += bytes(number % sizes)
    for row, key, value, seconds, nanos in changes:
        system = made[row].system_properties
        if key is not None:
            system.keys[0] = key
        if value is not None:
            made[row].user_properties["region"] = value.ljust(6)
        if seconds is not None:
            system.born_timestamp.seconds = seconds
        if nanos is not None:
            system.born_timestamp.nanos = nanos
    _compare(request_of(made))


@given(st.lists(st.tuples(st.integers(0, len(USUAL) - 1), st.integers(0, 7)), min_size=1, max_size=3))
def test_flipped_bits(flips: list[tuple[int, int]]) -> None:
    data = bytearray(USUAL)
    for position, bit in flips:
        data[position] ^= 1 << bit
    _compare(bytes(data))


@given(st.integers(0, len(USUAL) // COUNT - 1), st.integers(0, 7))
def test_a_bit_that_is_flipped_in_all_messages(position: int, bit: int) -> None:
    data = bytearray(USUAL)
    for place in range(position, len(data), len(data) // COUNT):
        data[place] ^= 1 << bit
    _compare(bytes(data))


def _compare(data: bytes) -> None:
    try:
        found = packed(data)
    except DecodeError:
        found = None
    if found is not None:
        assert found == one_by_one(data)
