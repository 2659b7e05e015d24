"""A message of a known layout: for any bytes, its record equals that of the whole message."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wire_messages import one_by_one, read, records_of, request_of
from tests.unit.broker.test_send_known import fresh, taught

SAME_SIZE = st.text(st.sampled_from("ab |\x01\x02\x7f,"), min_size=5, max_size=5) | st.sampled_from(("éé1", "\u3000ab"))
USUAL = request_of([fresh(1)])


@given(
    SAME_SIZE | st.none(),
    SAME_SIZE | st.none(),
    st.integers(0, 2**31 - 1) | st.none(),
    st.integers(-1, 2**31 - 1) | st.none(),
    st.binary(max_size=40),
    st.booleans(),
)
def test_any_content_is_stored_as_the_whole_message(
    key: str | None, value: str | None, seconds: int | None, nanos: int | None, body: bytes, twice: bool
) -> None:
    message = fresh(2)
    system = message.system_properties
    if key is not None:
        system.keys[0] = key
    if value is not None:
        message.user_properties["region"] = value.ljust(6)
    if seconds is not None:
        system.born_timestamp.seconds = seconds
    if nanos is not None:
        system.born_timestamp.nanos = nanos
    message.body += body
    data = request_of([message])
    _compare([USUAL, data] if twice else [USUAL], data)


@given(st.lists(st.tuples(st.integers(0, len(USUAL) - 1), st.integers(0, 7)), max_size=3), st.booleans())
def test_flipped_bits(flips: list[tuple[int, int]], twice: bool) -> None:
    data = bytearray(USUAL)
    for position, bit in flips:
        data[position] ^= 1 << bit
    _compare([USUAL, bytes(data)] if twice else [USUAL], bytes(data))


def _compare(earlier: list[bytes], data: bytes) -> None:
    try:
        found = records_of(read(data, taught(*earlier)))
    except DecodeError:
        found = None
    if found is not None:
        assert found == one_by_one(data)
