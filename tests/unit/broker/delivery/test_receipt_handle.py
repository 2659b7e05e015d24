"""Receipt handles: what is made can be read, what was not made is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.delivery import receipt_handle
from aerobee_broker.errors import InvalidReceiptHandleError


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(1, 2**64 - 1))
def test_handle_says_what_it_was_made_of(queue_id: int, queue_offset: int, nonce: int) -> None:
    """A short text without blanks, and back."""
    text = receipt_handle.encode(queue_id, queue_offset, nonce)
    assert len(text) == 42
    assert text.isalnum()
    assert receipt_handle.decode(text) == (queue_id, queue_offset, nonce)


@given(st.text(max_size=60))
def test_other_text_is_refused(text: str) -> None:
    """With the one error that makes clients give up on a handle."""
    with pytest.raises(InvalidReceiptHandleError):
        receipt_handle.decode(text)


@pytest.mark.parametrize("text", ["02" + "00" * 20, "01" + "00" * 19, "01" + "00" * 21, " " * 42, "01" + " " * 40])
def test_near_misses_are_refused(text: str) -> None:
    """Another version, another length, the blanks that fromhex would skip."""
    with pytest.raises(InvalidReceiptHandleError):
        receipt_handle.decode(text)
