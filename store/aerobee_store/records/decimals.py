"""Numbers and bytes as text: in properties, names of directories, headers, and what people enter.

Every text from outside that becomes a number is read here: Python's own `int` also takes blanks, underscores, digits of
other scripts, and texts so long that it raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

INT32_MAX: Final = (1 << 31) - 1
DECIMAL_MAX: Final = 10**18 - 1
"""The largest number that is read: a sum of two still fits into 64 bits."""
MILLISECONDS: Final[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""The units of durations."""
_SIZE_MAX: Final = 18
_SHORT_SIZE: Final = 9  # digits that fit into any number of 32 bits
_INTEGER: Final = re.compile("[+-]?[0-9]{1,19}")
_AMOUNT: Final = re.compile("([0-9]+) *([A-Za-z]*)")


def decimal(text: str | bytes | None, maximum: int = DECIMAL_MAX) -> int | None:
    """The number that the text has in ASCII digits alone; None for other text, or for more than `maximum`."""
    if not text or len(text) > _SIZE_MAX or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if number <= maximum else None


def integer(text: str, bits: int = 64) -> int | None:
    """The number of ASCII digits with an optional sign, as Java reads it; None for other text, or for more bits."""
    if len(text) <= _SHORT_SIZE and text.isascii() and text.isdigit():
        return int(text)  # as most are, in a third of the time
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -1 << (bits - 1) <= number < 1 << (bits - 1) else None


def amount(text: str, units: Mapping[str, int]) -> int | None:
    """A number with one of the units, as `5s` or `64 m`; None for other text."""
    found = _AMOUNT.fullmatch(text)
    number = None if found is None else decimal(found[1])
    unit = None if found is None else units.get(found[2])
    return None if number is None or unit is None or number * unit > DECIMAL_MAX else number * unit


def hexadecimal(text: str) -> bytes | None:
    """The bytes of hexadecimal digits, two each, without blanks; None for other text."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if 2 * len(found) == len(text) else None
