"""SQL filters: every operator, three-valued logic, and hostile expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_broker.errors import InvalidFilterError
from aerobee_broker.filters.sql_filter import (
    CONDITION_COUNT_MAX,
    DEPTH_MAX,
    EXPRESSION_LENGTH_MAX,
    compile_expression,
)

MESSAGE = {
    "TAGS": "x",
    "KEYS": "k1 k2",
    "five": "5",
    "half": "10.5",
    "minus": "-3",
    "word": "it's blue",
    "Word": "red",
    "yes": "True",
    "no": "false",
    "_a$1": "odd",
    "order_id": "7",
    "padded": " 5",
    "long": "9" * 65,
}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # comparison with a number
        ("five = 5", True),
        ("five = 5.0", True),
        ("five = 5L", True),
        ("five = +5", True),
        ("five <> 5", False),
        ("five <> 6", True),
        ("five > 4", True),
        ("five > 5", False),
        ("five >= 5", True),
        ("five < 5", False),
        ("five < 5.01", True),
        ("five <= 5", True),
        ("half > 5", True),
        ("half = 10.50", True),
        ("half = 1.05e1", True),
        ("minus < -2", True),
        ("minus = - 3", True),
        ("4 < five", True),
        ("5 = 5", True),
        ("1 > 2", False),
        ("five > .5", True),
        ("five = 5.", True),
        # numbers are exact
        ("five < 5.0000000000000000000000000000000000001", True),
        ("9007199254740993 = 9007199254740992", False),
        # two properties: ordered as numbers, compared for equality as texts
        ("five < half", True),
        ("five > half", False),
        ("five < word", None),
        ("TAGS = five", False),
        ("five = five", True),
        # failed conversions
        ("word = 5", None),
        ("word > 5", None),
        ("NOT word = 5", None),
        ("NOT (word > 5)", None),
        ("padded = 5", None),
        ("long > 5", None),
        ("word = TRUE", None),
        ("word > 5 OR five = 5", True),
        ("word > 5 AND five = 6", False),
        # texts
        ("TAGS = 'x'", True),
        ("TAGS = 'X'", False),
        ("tags = 'x'", None),
        ("TAGS <> 'y'", True),
        ("word = 'it''s blue'", True),
        ("word = 'it''s'", False),
        ("Word = 'red'", True),
        ("five = '5'", True),
        ("five = '5.0'", False),
        ("'a' = 'a'", True),
        ("_a$1 = 'odd'", True),
        ("order_id = 7", True),
        # true and false
        ("yes = TRUE", True),
        ("yes = false", False),
        ("no = FALSE", True),
        ("no <> true", True),
        ("yes", True),
        ("no", False),
        ("word", None),
        ("TRUE", True),
        ("FALSE", False),
        ("NULL", None),
        ("TRUE = TRUE", True),
        # NULL
        ("gone = 5", None),
        ("gone <> 5", None),
        ("gone = 'x'", None),
        ("gone > 5", None),
        ("NOT gone = 5", None),
        ("NOT NULL", None),
        ("gone", None),
        ("gone IS NULL", True),
        ("gone IS NOT NULL", False),
        ("five IS NULL", False),
        ("five IS NOT NULL", True),
        ("NULL IS NULL", True),
        # ranges
        ("five BETWEEN 5 AND 6", True),
        ("five BETWEEN 4 AND 5", True),
        ("five BETWEEN 5.5 AND 6", False),
        ("five NOT BETWEEN 6 AND 7", True),
        ("five NOT BETWEEN -1 AND 5", False),
        ("five BETWEEN minus AND half", True),
        ("five BETWEEN half AND minus", False),
        ("word BETWEEN 1 AND 2", None),
        ("word NOT BETWEEN 1 AND 2", None),
        ("gone BETWEEN 1 AND 2", None),
        ("gone NOT BETWEEN 1 AND 2", None),
        ("five BETWEEN 4 AND gone", None),
        ("five BETWEEN 6 AND gone", False),
        ("five BETWEEN 4 AND 6 AND TAGS = 'x'", True),
        # sets
        ("TAGS IN ('x')", True),
        ("TAGS IN ('a', 'x')", True),
        ("TAGS IN ('a','b')", False),
        ("TAGS NOT IN ('a','b')", True),
        ("TAGS NOT IN ('x')", False),
        ("gone IN ('x')", None),
        ("gone NOT IN ('x')", None),
        ("word IN ('it''s blue')", True),
        # substrings
        ("KEYS CONTAINS 'k2'", True),
        ("KEYS CONTAINS 'K2'", False),
        ("KEYS NOT CONTAINS 'k3'", True),
        ("KEYS NOT CONTAINS 'k2'", False),
        ("word STARTSWITH 'it'''", True),
        ("word STARTSWITH 'blue'", False),
        ("word NOT STARTSWITH 'blue'", True),
        ("word ENDSWITH 'blue'", True),
        ("word ENDSWITH 'it'", False),
        ("word NOT ENDSWITH 'blue'", False),
        ("gone CONTAINS 'x'", None),
        ("gone NOT CONTAINS 'x'", None),
        ("gone STARTSWITH 'x'", None),
        ("gone NOT ENDSWITH 'x'", None),
        # logic: every pair
        *(
            (f"{a} AND {b}", v)
            for a, b, v in (("TRUE", "TRUE", True), ("TRUE", "FALSE", False), ("TRUE", "NULL", None))
        ),
        *(
            (f"{a} AND {b}", v)
            for a, b, v in (("FALSE", "NULL", False), ("NULL", "FALSE", False), ("NULL", "NULL", None))
        ),
        *(
            (f"{a} OR {b}", v)
            for a, b, v in (("FALSE", "FALSE", False), ("FALSE", "TRUE", True), ("TRUE", "NULL", True))
        ),
        *((f"{a} OR {b}", v) for a, b, v in (("NULL", "TRUE", True), ("NULL", "FALSE", None), ("NULL", "NULL", None))),
        # precedence
        ("TRUE OR TRUE AND FALSE", True),
        ("(TRUE OR TRUE) AND FALSE", False),
        ("NOT FALSE AND FALSE", False),
        ("NOT (FALSE AND FALSE)", True),
        ("NOT NOT TRUE", True),
        ("NOT five = 6", True),
        ("NOT five IS NULL", True),
        ("((five)) > ((4))", True),
        # spelling
        ("five=5 and tags is null or FALSE", True),
        ("not Five Is Not Null", True),
        ("five/* = 6 */=--6\n5", True),
        ("  five\t=\r\n5  -- all", True),
    ],
)
def test_values(expression: str, expected: bool | None) -> None:
    """The value of each expression for one message; None is unknown."""
    assert compile_expression(expression)(MESSAGE) is expected


@pytest.mark.parametrize(
    ("expression", "place", "told"),
    [
        ("", "", "it is empty"),
        (" \n", "", "it is empty"),
        ("-- nothing", "column 11", "found the end"),
        ("a >", "column 4", "expected FALSE, a property"),
        ("a b", "column 3", "found 'b'"),
        ("a = 'x", "column 5", "has no end"),
        ("a ! 3", "column 3", "found '! 3'"),
        ("a != 3", "column 3", "found '!= 3'"),
        ("(a = 1", "column 7", "expected ')'"),
        ("a = 1)", "column 6", "found ')'"),
        ("a = 1\nAND b >", "line 2, column 8", "found the end"),
        ("a AND AND b", "column 7", "found 'AND'"),
        ("a = NULL", "column 5", "IS NULL"),
        ("NULL <> a", "column 1", "IS NULL"),
        ("a < 'x'", "column 5", "compares numbers"),
        ("'5' >= a", "column 1", "compares numbers"),
        ("a > TRUE", "column 5", "compares numbers"),
        ("a <= NULL", "column 6", "IS NULL"),
        ("a BETWEEN 5 AND 1", "column 11", "swap the two"),
        ("a NOT BETWEEN 5 AND 4.9", "column 15", "swap the two"),
        ("a BETWEEN 'a' AND 'b'", "column 11", "compares numbers"),
        ("a BETWEEN 1", "column 12", "expected AND"),
        ("a IN ()", "column 7", "a text in single quotes"),
        ("a IN (1)", "column 7", "a text in single quotes"),
        ("5 IN ('5')", "column 1", "needs a property"),
        ("'ab' CONTAINS 'a'", "column 1", "needs a property"),
        ("a CONTAINS b", "column 12", "a text in single quotes"),
        ("a LIKE 'x%'", "column 3", "found 'LIKE'"),
        ("a + 1 = 2", "column 3", "found '+'"),
        ("length(a) = 2", "column 7", "found '('"),
        ("(a = 1) = TRUE", "column 1", "cannot be compared"),
        ("5 = TRUE", "column 5", "TRUE and FALSE"),
        ("'x'", "column 1", "neither true nor false"),
        ("NOT 5", "column 5", "neither true nor false"),
        ("a IS 5", "column 6", "expected NOT or NULL"),
        ("a = 5abc", "column 6", "found 'abc'"),
        ("a = ü", "column 5", "nothing that a filter can have"),
        ("a = 1 /* never", "column 7", "nothing that a filter can have"),
        (f"a = {'1' * 65}", "column 5", "the limit is 64"),
    ],
)
def test_errors(expression: str, place: str, told: str) -> None:
    """The error has the position and the cause."""
    with pytest.raises(InvalidFilterError, match=re.escape(told)) as caught:
        compile_expression(expression)
    assert str(caught.value).startswith(f"SQL filter, {place}:" if place else "SQL filter:")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * EXPRESSION_LENGTH_MAX,
        "a" * (64 << 10),
        "(" * (32 << 10) + ")" * (32 << 10),
        "NOT " * 1000 + "a",
        "(a AND " * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1),
        " OR ".join(["a"] * (CONDITION_COUNT_MAX + 1)),
        "'" * (EXPRESSION_LENGTH_MAX - 1),
        "/*" * 2000,
        "/" + "*" * 4000,
        "1" * 4000,
        "a = 1e9999999",
        "\0",
        "\ud800",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_expressions_are_refused(expression: str) -> None:
    """Refusal needs no recursion and no unbounded search, for any size."""
    with pytest.raises(InvalidFilterError) as caught:
        compile_expression(expression)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 2000 + "five" + ")" * 2000 + " = 5",
        "(" * DEPTH_MAX + "five = 5" + ")" * DEPTH_MAX,
        "NOT " * DEPTH_MAX + "five = 5",
        " AND ".join(["five=5"] * CONDITION_COUNT_MAX),
        f"five IN ({','.join(['x'.join(chr(39) * 2)] * 900)},'5')",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_the_largest_expressions_work(expression: str) -> None:
    """Expressions up to each limit are compiled and evaluated."""
    assert compile_expression(expression)({"five": "5"}) is True


def test_hostile_properties_are_unknown() -> None:
    """Texts that only Python takes for numbers are not numbers."""
    is_zero = compile_expression("a = 0 OR a <> 0")
    for text in ("", " 1", "1_0", "٣", "NaN", "Infinity", "-inf", "0x1", "1e", "1e99999999", "--1", "9" * 32000, "\0"):
        assert is_zero({"a": text}) is None, text
    assert is_zero({"a": "-1.50e-999"}) is True


# --- Against a naive evaluator ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """An expression: its text, and a function that evaluates it naively for a message."""

    text: str
    value: Callable[[dict[str, str]], bool | None]


NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["1", "2", "2.0", "-1.5", "x", "x'y", "true", "FALSE", ""])
NUMBERS = st.sampled_from(["1", "2", "2.0", "-1.5", "+3", "1L"])
SYMBOLS = ["=", "<>", "<", "<=", ">", ">="]
MESSAGES = st.dictionaries(NAMES, TEXTS.filter(bool))


def number(text: str | None) -> Fraction | None:
    try:
        return None if text is None else Fraction(text.rstrip("L"))
    except ValueError:
        return None


def holds(symbol: str, first: object, second: object) -> bool | None:
    if first is None or second is None:
        return None
    more: bool = first > second  # type: ignore[operator]  # both are numbers, or both texts
    order = more - (first != second and not more)
    return {"=": order == 0, "<>": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[
        symbol
    ]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def inverted(value: bool | None) -> bool | None:
    return None if value is None else not value


@st.composite
def leaves(draw: st.DrawFn) -> Node:
    name, other, symbol = draw(NAMES), draw(NAMES), draw(st.sampled_from(SYMBOLS))
    literal, text, negated = draw(NUMBERS), draw(TEXTS), draw(st.booleans())
    no = "NOT " if negated else ""

    def maybe(value: bool | None) -> bool | None:
        return inverted(value) if negated else value

    def tested(test: Callable[[str], bool]) -> Callable[[dict[str, str]], bool | None]:
        return lambda m: maybe(test(m[name])) if name in m else None

    match draw(st.integers(0, 8)):
        case 0:
            return Node(f"{name} {symbol} {literal}", lambda m: holds(symbol, number(m.get(name)), number(literal)))
        case 1:
            return Node(f"{literal} {symbol} {name}", lambda m: holds(symbol, number(literal), number(m.get(name))))
        case 2:
            equality = "<>" if negated else "="
            return Node(f"{name} {equality} {quoted(text)}", lambda m: holds(equality, m.get(name), text))
        case 3:
            if symbol in ("=", "<>"):
                return Node(f"{name} {symbol} {other}", lambda m: holds(symbol, m.get(name), m.get(other)))
            return Node(f"{name} {symbol} {other}", lambda m: holds(symbol, number(m.get(name)), number(m.get(other))))
        case 4:
            return Node(f"{name} IS {no}NULL", lambda m: (name not in m) is not negated)
        case 5:
            values = draw(st.lists(TEXTS, min_size=1, max_size=3))
            return Node(f"{name} {no}IN ({', '.join(map(quoted, values))})", tested(lambda value: value in values))
        case 6:
            return Node(f"{name} {no}CONTAINS {quoted(text)}", tested(lambda value: text in value))
        case 7:
            return Node(f"{name} {no}ENDSWITH {quoted(text)}", tested(lambda value: value.endswith(text)))
        case _:

            def between(m: dict[str, str]) -> bool | None:
                low, high = holds(">=", number(m.get(name)), Fraction(1)), holds("<=", number(m.get(name)), Fraction(2))
                return maybe(both(low, high))

            return Node(f"{name} {no}BETWEEN 1 AND 2.0", between)


def both(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def either(first: bool | None, second: bool | None) -> bool | None:
    return inverted(both(inverted(first), inverted(second)))


def joined(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        parts.map(lambda p: Node(f"NOT ({p.text})", lambda m: inverted(p.value(m)))),
        pairs.map(lambda p: Node(f"({p[0].text}) AND ({p[1].text})", lambda m: both(p[0].value(m), p[1].value(m)))),
        pairs.map(lambda p: Node(f"({p[0].text}) OR ({p[1].text})", lambda m: either(p[0].value(m), p[1].value(m)))),
    )


@settings(max_examples=150, deadline=None)
@given(node=st.recursive(leaves(), joined, max_leaves=8), message=MESSAGES)
def test_agrees_with_a_naive_evaluator(node: Node, message: dict[str, str]) -> None:
    """Both give the same value for random expressions and messages."""
    assert compile_expression(node.text)(message) is node.value(message), node.text


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab5.'()<>=-+,/* \nNOTANDINIS", max_size=40))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    """Any text is compiled or raises InvalidFilterError."""
    with suppress(InvalidFilterError):
        assert compile_expression(text)({"a": "5"}) in (True, False, None)
