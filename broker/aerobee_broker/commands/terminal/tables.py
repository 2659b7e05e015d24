"""Tables for people, which fit the terminal: an identifier is never wrapped or cut.

When a table is too wide, the columns that may be cut are made shorter, then columns are left out, in the order that the
command names. If it is still too wide, each row becomes a block of lines, with everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final
from unicodedata import combining, east_asian_width

_GAP: Final = "   "
_CUT_MIN: Final = 20  # columns that a text keeps at least
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    cut: Collection[str] = (),
    least: Sequence[str] = (),
    width: int | None = None,
) -> tuple[list[str], list[str]]:
    """The lines of a table, and the columns that are left out. `width` None: any.

    `right`: numbers of columns that are aligned right. `cut`: columns whose text may be shortened. `least`:
    columns that may be left out, the least important one first.
    """
    shown = list(range(len(columns)))
    left_out: list[str] = []
    for name in (None, *least):
        if name is not None:
            shown.remove(columns.index(name))
            left_out.append(name)
        lines = _fitted(columns, rows, shown, right, cut, width)
        if lines is not None:
            return lines, left_out
    return _blocks(columns, rows, cut, width), []


def _fitted(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    shown: Sequence[int],
    right: Collection[int],
    cut: Collection[str],
    width: int | None,
) -> list[str] | None:
    """The table with these columns; None if it does not fit."""
    widths = {index: max(text_width(row[index]) for row in ((columns, *rows))) for index in shown}
    if width is not None:
        excess = sum(widths.values()) + len(_GAP) * (len(shown) - 1) - width
        for index in shown:
            if excess > 0 and columns[index] in cut:
                less = min(excess, widths[index] - max(_CUT_MIN, text_width(columns[index])))
                if less > 0:
                    widths[index] -= less
                    excess -= less
        if excess > 0:
            return None
    rule = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (sum(widths.values()) + len(_GAP) * (len(shown) - 1))
    return [_line(columns, shown, widths, right), rule, *(_line(row, shown, widths, right) for row in rows)]


def _line(row: Sequence[str], shown: Sequence[int], widths: dict[int, int], right: Collection[int]) -> str:
    cells = []
    for index in shown:
        text = shortened(row[index], widths[index])
        space = " " * (widths[index] - text_width(text))
        cells.append(space + text if index in right else text + space)
    return _GAP.join(cells).rstrip()


def _blocks(
    columns: Sequence[str], rows: Sequence[Sequence[str]], cut: Collection[str], width: int | None
) -> list[str]:
    """Each row as lines of name and value, with an empty line between two rows."""
    name_width = max(map(text_width, columns)) + 2
    lines: list[str] = []
    for number, row in enumerate(rows):
        if number:
            lines.append("")
        for name, value in zip(columns, row, strict=True):
            if width is not None and name in cut:
                value = shortened(value, max(_CUT_MIN, width - name_width))
            lines.append(f"{name}{' ' * (name_width - text_width(name))}{value}".rstrip())
    return lines


def shortened(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis, in this many columns of a terminal."""
    if text_width(text) <= width:
        return text
    used = 0
    for number, character in enumerate(text):
        used += text_width(character)
        if used > width - 1:
            return text[:number] + _ELLIPSIS
    return text


def text_width(text: str) -> int:
    """The columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)
