"""Whole numbers that other programs and people write as text."""

from __future__ import annotations

import pytest

from aerobee_store.records.decimals import DECIMAL_MAX, INT32_MAX, decimal


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("17", 17), ("007", 7), (str(DECIMAL_MAX), DECIMAL_MAX)),
        *((text, None) for text in (None, "", " 1", "1 ", "+1", "-1", "1.0", "1e3", "1_000", "0x1", "x")),
        *((text, None) for text in ("\u0661", "\u00b2", "1" * 19, "9" * 5000)),  # Arabic 1, superscript 2, too long
    ],
)
def test_numbers(text: str | None, number: int | None) -> None:
    assert decimal(text) == number


@pytest.mark.parametrize(("text", "number"), [(str(INT32_MAX), INT32_MAX), (str(INT32_MAX + 1), None)])
def test_numbers_up_to_a_maximum(text: str, number: int | None) -> None:
    assert decimal(text, INT32_MAX) == number
