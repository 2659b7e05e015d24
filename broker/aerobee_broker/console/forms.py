"""The fields of a form that a browser posted, bounded, and read as what a call needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

SIZE_MAX: Final = 14 << 20
"""Bytes of a form: a body of 4 MiB, of which each byte may take three characters."""
_FIELDS_MAX: Final = 4096
_SECONDS_MAX: Final = 60.0


class FormError(Exception):
    """Input that cannot be used. The text names the field, the cause and the next step."""


def whole_number(text: str, *, size_max: int = 19) -> int | None:
    """The number that the text has in ASCII digits alone, at most so many; None for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= size_max else None


class Fields(ImmutableMultiDict[str, str]):
    """The fields of a form or of a query."""

    def text(self, name: str) -> str:
        """A text without blanks around it; empty if it is not given."""
        return self.get(name, "").strip()

    def needed(self, name: str, label: str) -> str:
        """A text that must be given."""
        value = self.text(name)
        if not value:
            raise FormError(f"{label} is empty; fill it in")
        return value

    def number(self, name: str, label: str, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        """A whole number; None if it is not given."""
        value = self.text(name)
        if not value:
            return None
        number = whole_number(value)
        if number is None or not least <= number <= most:
            bounds = f"from {least:,} to {most:,}" if most < 2**63 - 1 else f"of {least:,} or more"
            raise FormError(f"{label}: {value[:40]!r} is not a whole number {bounds}")
        return number

    def numbers(self, name: str, label: str) -> list[int]:
        """Whole numbers, from fields of the same name, or separated by commas or blanks."""
        values = [part for value in self.getlist(name) for part in value.replace(",", " ").split()]
        found = [(value, whole_number(value)) for value in values]
        if bad := [value for value, number in found if number is None]:
            raise FormError(f"{label}: {bad[0][:40]!r} is not a whole number of 0 or more")
        return [number for _, number in found if number is not None]

    def moment(self, name: str, label: str) -> int | None:
        """A time as a browser's field gives it, in UTC, or Unix milliseconds; as Unix milliseconds. None: not given."""
        value = self.text(name)
        if not value:
            return None
        if (number := whole_number(value, size_max=15)) is not None:
            return number
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            raise FormError(f"{label}: {value[:40]!r} is not a time; give one such as 2026-01-31T12:00") from None
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)

    def chosen(self, name: str, label: str, choices: Sequence[str], default: str) -> str:
        """One of `choices`."""
        value = self.text(name) or default
        if value not in choices:
            raise FormError(f"{label}: {value[:40]!r} is not one of {', '.join(choices)}")
        return value

    def is_on(self, name: str) -> bool:
        """Whether a box is ticked."""
        return bool(self.text(name))


async def read_form(request: Request) -> Fields:
    """The fields of a posted form. FormError if it is too large, too slow, or no form."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind != "application/x-www-form-urlencoded":
        raise FormError("the request is no form")
    content = bytearray()
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            async for chunk in request.stream():
                content += chunk
                if len(content) > SIZE_MAX:
                    raise FormError(f"the form has more than {SIZE_MAX >> 20} MiB; send large messages with a program")
    except TimeoutError:
        raise FormError(f"the form did not arrive within {_SECONDS_MAX:g} s; send it again") from None
    try:
        return Fields(parse_qsl(content.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except (ValueError, UnicodeDecodeError):
        raise FormError("the form cannot be read, or has more than 4,096 fields") from None


def read_query(request: Request) -> Fields:
    """The fields in the address of a page."""
    return Fields(request.query_params.multi_items())
