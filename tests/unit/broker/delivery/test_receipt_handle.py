"""Receipt handles are encoded and decoded, and invalid ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.delivery.state import receipt_handle
from aerobee_broker.errors import InvalidReceiptHandleError

OWNER = receipt_handle.owner_of("g", "t")
GOOD = receipt_handle.encode(1, 2, 3, 4, OWNER, "lite")


@given(
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.text("abcXYZ012-_", max_size=64),
)
def test_handle_decodes_to_its_values(queue_id: int, queue_offset: int, nonce: int, run: int, lite: str) -> None:
    """The text is short, alphanumeric, and decodes to the encoded values."""
    text = receipt_handle.encode(queue_id, queue_offset, nonce, run, OWNER, lite)
    assert len(text) == 58 + 2 * len(lite)
    assert text.isalnum()
    assert receipt_handle.decode(text) == (queue_id, queue_offset, nonce, run, OWNER, lite)


def test_owners_differ() -> None:
    """Owners differ by group, by topic, and by the boundary between the two."""
    names = (("g", "t"), ("g", "u"), ("h", "t"), ("gt", ""), ("", "gt"))
    assert len({receipt_handle.owner_of(*pair) for pair in names}) == len(names)


@given(st.text(max_size=200))
def test_other_text_is_refused(text: str) -> None:
    """Arbitrary text is refused with InvalidReceiptHandleError, which makes clients drop the handle."""
    with pytest.raises(InvalidReceiptHandleError):
        receipt_handle.decode(text)


@pytest.mark.parametrize(
    "text",
    [
        *("01" + GOOD[2:], "03" + GOOD[2:], GOOD[:56], GOOD[:57], GOOD + "0", GOOD + "ff", GOOD + "61" * 61),
        *(" " * 58, GOOD[:20] + "  " + GOOD[22:], "02" + " " * 56, GOOD[:-1] + "g"),
    ],
)
def test_near_misses_are_refused(text: str) -> None:
    """A wrong version or length, invalid UTF-8, and blanks that `fromhex` would skip are refused."""
    with pytest.raises(InvalidReceiptHandleError):
        receipt_handle.decode(text)
