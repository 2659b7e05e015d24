"""Whole numbers as text: in properties, names of directories, and what people enter."""

from __future__ import annotations

from typing import Final

INT32_MAX: Final = (1 << 31) - 1
DECIMAL_MAX: Final = 10**18 - 1
"""The largest number that is read: a sum of two still fits into 64 bits."""
_SIZE_MAX: Final = 18


def decimal(text: str | None, maximum: int = DECIMAL_MAX) -> int | None:
    """The number that the text has in ASCII digits alone; None for other text, or for more than `maximum`."""
    if not text or len(text) > _SIZE_MAX or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if number <= maximum else None
