"""The fields of a form that a browser posted, bounded, and read as what a call needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from aerobee_broker.limits.byte_budget import ByteBudget
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.units import size_text

SIZE_MAX: Final = 14 << 20
"""Bytes of a form: a body of 4 MiB, of which each byte may take three characters."""
SMALL_SIZE_MAX: Final = 64 << 10
"""Bytes of a form that needs no room, as all have that send no message: connections are bounded already."""
READ_SECONDS: Final = 60.0
"""For all of a form to arrive."""
_FIELDS_MAX: Final = 4096
_PIECE_SIZE: Final = 16 << 10  # bytes that are decoded at a time


class FormError(Exception):
    """Input that cannot be used. The text names the field, the cause and the next step."""

    def __init__(self, text: str, status: int = 400) -> None:
        """`status` is the code of HTTP."""
        super().__init__(text)
        self.status: Final = status


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


@contextmanager
def room_for_form(request: Request, budget: ByteBudget, owner: str, *, size_max: int) -> Iterator[None]:
    """Room for a posted form, before it is read. FormError if it is too large, or others take the room."""
    length = request.headers.get("content-length")
    if length is None:
        raise FormError("the form does not say its length; send it with a browser, or with Content-Length", 411)
    size = int(length)  # the server has checked it
    if size > size_max:
        raise FormError(f"the form has more than {size_text(size_max)}; send large messages with a program", 413)
    if size <= SMALL_SIZE_MAX:
        yield
        return
    if not budget.try_take(size, (owner,)):
        raise FormError("others are sending large forms; send it again in a minute, or with a program", 503)
    try:
        yield
    finally:
        budget.give(size, (owner,))


async def read_form(request: Request) -> Fields:
    """The fields of a posted form, for which there is room. FormError if it is too slow, or no form."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind != "application/x-www-form-urlencoded":
        raise FormError("the request is no form")
    content = bytearray()
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for chunk in request.stream():
                content += chunk
    except TimeoutError:
        raise FormError(f"the form did not arrive within {READ_SECONDS:g} s; send it again", 408) from None
    if not content.isascii() or content.count(b"&") >= _FIELDS_MAX:
        raise FormError("the form cannot be read, or has more than 4,096 fields")
    parts = [part.partition(b"=") for part in content.split(b"&") if part]
    turns = Turns()
    return Fields([(await _decoded(name, turns), await _decoded(value, turns)) for name, _, value in parts])


async def _decoded(text: bytearray, turns: Turns) -> str:
    """A name or a value, piece by piece: the standard library makes an object of each escape of a piece."""
    found = bytearray()
    begin = 0
    while begin < len(text):
        await turns.next()
        end = begin + _PIECE_SIZE
        escape = text.rfind(b"%", end - 2, end)
        if escape >= 0:
            end = escape
        found += unquote_to_bytes(bytes(text[begin:end]).replace(b"+", b" "))
        begin = end
    return found.decode(errors="replace")


def read_query(request: Request) -> Fields:
    """The fields in the address of a page."""
    return Fields(request.query_params.multi_items())
