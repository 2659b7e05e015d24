"""Tables of commands in terminals of any width."""

from __future__ import annotations

import pytest

from aerobee_broker.commands.terminal.fields import LineFormat
from aerobee_broker.commands.terminal.tables import shortened, table_lines, text_width

COLUMNS = ("id", "size", "kind", "body")
ROWS = [["an-identifier-of-thirty-letters", "12", "push", "a body of many words and more"], ["b", "3", "pull", "short"]]


def test_all_columns_without_a_terminal() -> None:
    """Nothing is cut or left out for a pipe, and numbers end in one column."""
    lines, left_out = table_lines(COLUMNS, ROWS, right=[1], cut=["body"], least=["kind"])
    assert lines == [
        "id                                size   kind   body",
        "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * len(lines[2]),
        "an-identifier-of-thirty-letters     12   push   a body of many words and more",
        "b                                    3   pull   short",
    ]
    assert left_out == []


def test_first_a_text_is_cut_then_columns_are_left_out_then_rows_become_blocks() -> None:
    """An identifier is whole at every width."""
    wide, left_out = table_lines(COLUMNS, ROWS, right=[1], cut=["body"], least=["kind"], width=69)
    assert (wide[2], left_out) == ("an-identifier-of-thirty-letters     12   push   a body of many words…", [])
    narrow, left_out = table_lines(COLUMNS, ROWS, right=[1], cut=["body"], least=["kind"], width=62)
    assert left_out == ["kind"]
    assert narrow[0].split() == ["id", "size", "body"]
    blocks, left_out = table_lines(COLUMNS, ROWS, right=[1], cut=["body"], least=["kind"], width=40)
    assert (blocks, left_out) == (
        [
            "id    an-identifier-of-thirty-letters",
            "size  12",
            "kind  push",
            "body  a body of many words and more",
            "",
            "id    b",
            "size  3",
            "kind  pull",
            "body  short",
        ],
        [],
    )


@pytest.mark.parametrize("width", range(30, 100))
def test_no_line_is_too_wide(width: int) -> None:
    """At every width from the identifier's on, and every identifier is in the output."""
    lines, _ = table_lines(COLUMNS, ROWS, right=[1], cut=["body"], least=["kind", "size"], width=width)
    assert max(map(text_width, lines)) <= max(width, len("id    an-identifier-of-thirty-letters"))
    assert any("an-identifier-of-thirty-letters" in line for line in lines)


def test_wide_characters_take_two_columns() -> None:
    """Text of other scripts is measured as a terminal shows it."""
    assert (text_width("abc"), text_width("漢字"), text_width("e\u0301")) == (3, 4, 1)
    assert shortened("漢字漢字", 5) == "漢字…"
    assert shortened("abc", 3) == "abc"


@pytest.mark.parametrize("text", ["{body", "body}", "{}", "{1a}"])
def test_a_format_with_a_single_brace(text: str) -> None:
    """A mistake in a format is found before anything is read."""
    with pytest.raises(ValueError, match="single"):
        LineFormat(text)
