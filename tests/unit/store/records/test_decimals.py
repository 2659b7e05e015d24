"""Numbers and bytes that other programs and people write as text."""

from __future__ import annotations

import pytest

from aerobee_store.records.decimals import DECIMAL_MAX, INT32_MAX, MILLISECONDS, amount, decimal, hexadecimal, integer


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


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("+5", 5), ("-7", -7), (str((1 << 63) - 1), (1 << 63) - 1), (str(-1 << 63), -1 << 63)),
        *((text, None) for text in ("", "-", "+-1", " 1", "1_0", "\u0661", str(1 << 63), "9" * 5000)),
    ],
)
def test_numbers_with_a_sign(text: str, number: int | None) -> None:
    """As Java's Long reads them."""
    assert integer(text) == number


def test_numbers_of_fewer_bits() -> None:
    assert [integer(str(number), 32) for number in (INT32_MAX, INT32_MAX + 1)] == [INT32_MAX, None]
    assert [integer(str(number), 32) for number in (-INT32_MAX - 1, -INT32_MAX - 2)] == [-INT32_MAX - 1, None]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("5s", 5000), ("500ms", 500), ("2 h", 7_200_000), ("1d", 86_400_000)),
        *((text, None) for text in ("5", "s", "-5s", "5 x", "5S", "1.5s", "\u0661s", "9" * 19 + "s", "9" * 15 + "d")),
    ],
)
def test_numbers_with_a_unit(text: str, number: int | None) -> None:
    assert amount(text, MILLISECONDS) == number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *(("", b""), ("00fF", b"\x00\xff")),
        *((text, None) for text in ("0", "0x00", "00 ff", "zz", "\u0661\u0661", "00 ")),
    ],
)
def test_hexadecimal_digits(text: str, found: bytes | None) -> None:
    assert hexadecimal(text) == found
