"""SQL filters: an expression over the properties of a message, compiled once and evaluated often.

Properties are texts. The other operand of a comparison determines the type of a property:

    compared with       the property is      otherwise (`price = 5` where price is "cheap")
    a number            its number           unknown
    TRUE, FALSE         true, false          unknown; case does not matter
    'a text'            itself
    a property          itself with = and <>, its number with < <= > >=

Numbers are compared exactly, also fractions: "10.5" is more than 5, and "5.0" equals 5. Logic has three values. A
missing property is NULL, every condition on it except IS NULL is unknown, and NOT unknown is unknown. A message matches
only if the whole expression is true. A failed conversion is unknown as well, so it never matches, with or without NOT.

The grammar is RocketMQ's, except that NOT binds as in SQL: `NOT a = 1` is `NOT (a = 1)`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NoReturn

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from aerobee_broker.errors import InvalidFilterError

EXPRESSION_LENGTH_MAX: Final = 4096  # characters; the worst expression of this length takes 0.1 s to compile
CONDITION_COUNT_MAX: Final = 128  # each takes 0.4 to 1 us of the event loop for every message examined
DEPTH_MAX: Final = 64  # nested parentheses and NOTs; each is a Python call when evaluated
_NUMBER_LENGTH_MAX: Final = 64  # characters, in expressions and in properties

Properties = Mapping[str, str]
Condition = Callable[[Properties], bool | None]
"""True, False, or None for unknown. Only True is a match."""

_Number = int | Decimal
_Value = int | Decimal | str | bool
_Getter = Callable[[Properties], Any]  # a value that can be compared, or None

GRAMMAR: Final = r"""
?start: disjunction
?disjunction: conjunction
    | conjunction (_OR conjunction)+ -> any_of
?conjunction: negation
    | negation (_AND negation)+ -> all_of
?negation: predicate
    | NOT negation -> negation
?predicate: operand
    | operand COMPARISON operand -> comparison
    | operand IS [NOT] NULL -> is_null
    | operand [NOT] BETWEEN operand _AND operand -> between
    | operand [NOT] IN "(" STRING ("," STRING)* ")" -> is_in
    | operand [NOT] (CONTAINS | STARTSWITH | ENDSWITH) STRING -> has_text
?operand: NAME -> property
    | STRING -> text
    | [SIGN] NUMBER -> number
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | OPEN disjunction ")" -> group

_OR.2: /or(?![a-z0-9_$])/i
_AND.2: /and(?![a-z0-9_$])/i
NOT.2: /not(?![a-z0-9_$])/i
IS.2: /is(?![a-z0-9_$])/i
IN.2: /in(?![a-z0-9_$])/i
NULL.2: /null(?![a-z0-9_$])/i
TRUE.2: /true(?![a-z0-9_$])/i
FALSE.2: /false(?![a-z0-9_$])/i
BETWEEN.2: /between(?![a-z0-9_$])/i
CONTAINS.2: /contains(?![a-z0-9_$])/i
STARTSWITH.2: /startswith(?![a-z0-9_$])/i
ENDSWITH.2: /endswith(?![a-z0-9_$])/i
NAME: /[a-zA-Z_$][a-zA-Z0-9_$]*/
COMPARISON: /<>|<=|>=|=|<|>/
OPEN: "("
SIGN: /[+-]/
NUMBER: /([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?|[0-9]+[eE][+-]?[0-9]{1,3}|[0-9]+[lL]?/
STRING: /'[^']*(?:''[^']*)*'/
COMMENT.3: /--[^\n]*|\/\*[^*]*\*+(?:[^*\/][^*]*\*+)*\//
SPACE: /[ \t\r\n\f]+/
%ignore SPACE
%ignore COMMENT
"""

_TOLD: Final = {  # the name of a terminal in error messages
    "NAME": "a property",
    "STRING": "a text in single quotes",
    "NUMBER": "a number",
    "SIGN": "",  # the text is a number
    "COMPARISON": "a comparison",
    "OPEN": "'('",
    "LPAR": "'('",
    "RPAR": "')'",
    "COMMA": "','",
    "$END": "the end",
}
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression. Called with the properties of a message, it returns True, False, or None for unknown."""

    evaluate: Condition
    names: tuple[str, ...]
    """Every property that the expression names; no others affect it."""
    condition_count: int

    def __call__(self, properties: Properties) -> bool | None:
        return self.evaluate(properties)


def compile_expression(expression: str) -> Expression:
    """Compile an expression into a function of the properties of a message.

    Raises InvalidFilterError, which names the place and the expected tokens.
    """
    if len(expression) > EXPRESSION_LENGTH_MAX:
        _refuse(None, f"it has {len(expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}; make it shorter")
    return _compile(expression)


@lru_cache(maxsize=128)
def _compile(expression: str) -> Expression:
    if not expression.strip():
        _refuse(None, "it is empty; write a condition such as: price > 5, or choose FilterType TAG and `*` for all")
    try:
        result: Any = _PARSER.parse(expression)
    except UnexpectedCharacters as error:
        _refuse_character(error, expression)
    except UnexpectedToken as error:
        found = "the end" if error.token.type == "$END" else _quoted(str(error.token))
        _refuse(_end_of(expression) if error.token.type == "$END" else error, f"found {found}, expected {_told(error)}")
    compiled = _as_condition(result)
    names = {str(token) for token in _PARSER.lex(expression) if token.type == "NAME"}
    return Expression(compiled.evaluate, tuple(sorted(names)), compiled.count)


# --- The parts of an expression -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class _Property:
    name: str
    place: Token

    def getter(self, convert: Callable[[str], Any]) -> _Getter:
        name = self.name

        def get(properties: Properties) -> Any:
            text = properties.get(name)
            return None if text is None else convert(text)

        return get


@dataclass(frozen=True, slots=True)
class _Literal:
    value: _Value | None
    place: Token

    def getter(self, convert: Callable[[str], Any]) -> _Getter:
        value = convert(self.value) if isinstance(self.value, str) else self.value
        return lambda properties: value


@dataclass(frozen=True, slots=True)
class _Compiled:
    evaluate: Condition
    place: Token
    depth: int = 0
    count: int = 1


_Operand = _Property | _Literal
_Part = _Operand | _Compiled


@v_args(inline=True)
class _Compiler(Transformer[Token, _Part]):
    """Called by the parser from the inside out, so that the nesting of an expression does not nest calls here."""

    def property(self, name: Token) -> _Part:
        return _Property(str(name), name)

    def text(self, token: Token) -> _Part:
        return _Literal(_unquoted(token), token)

    def number(self, sign: Token | None, token: Token) -> _Part:
        if len(token) > _NUMBER_LENGTH_MAX:
            _refuse(token, f"the number has {len(token)} characters, the limit is {_NUMBER_LENGTH_MAX}")
        value = as_number((sign or "") + token.rstrip("lL"))
        assert value is not None, "the grammar lets nothing else through"
        return _Literal(value, token)

    def true(self, token: Token) -> _Part:
        return _Literal(True, token)

    def false(self, token: Token) -> _Part:
        return _Literal(False, token)

    def null(self, token: Token) -> _Part:
        return _Literal(None, token)

    def group(self, opening: Token, part: _Part) -> _Part:
        return _one_deeper(part.evaluate, part, opening) if isinstance(part, _Compiled) else part

    def negation(self, token: Token, part: _Part) -> _Part:
        inner = _as_condition(part)
        return _one_deeper(_negated(inner.evaluate), inner, token)

    def any_of(self, *parts: _Part) -> _Part:
        return _combined(parts, True)

    def all_of(self, *parts: _Part) -> _Part:
        return _combined(parts, False)

    def comparison(self, left: _Part, symbol: Token, right: _Part) -> _Part:
        first, second = _as_operand(left), _as_operand(right)
        return _Compiled(_compared(first, str(symbol), second), first.place)

    def is_null(self, part: _Part, _: Token, negated: Token | None, __: Token) -> _Part:
        operand = _as_operand(part)
        get = operand.getter(_same)
        if negated:
            return _Compiled(lambda properties: get(properties) is not None, operand.place)
        return _Compiled(lambda properties: get(properties) is None, operand.place)

    def between(self, part: _Part, negated: Token | None, _: Token, low_part: _Part, high_part: _Part) -> _Part:
        operand, low, high = _as_operand(part), _as_operand(low_part), _as_operand(high_part)
        from_low, to_high = _compared(operand, ">=", low), _compared(operand, "<=", high)
        if isinstance(low, _Literal) and isinstance(high, _Literal) and low.value > high.value:  # type: ignore[operator]
            # Both are numbers: the two lines above reject everything else.
            _refuse(low.place, f"BETWEEN {low.value} AND {high.value} holds for nothing; swap the two")
        condition = _all((from_low, to_high))
        return _Compiled(_negated(condition) if negated else condition, operand.place, count=2)

    def is_in(self, part: _Part, negated: Token | None, token: Token, *texts: Token) -> _Part:
        chosen = _as_property(part, token)
        values = frozenset(map(_unquoted, texts))
        return _Compiled(_tested(chosen.name, values.__contains__, negated), chosen.place)

    def has_text(self, part: _Part, negated: Token | None, token: Token, text: Token) -> _Part:
        chosen, wanted, test = _as_property(part, token), _unquoted(text), _TEXT_TESTS[token.upper()]
        return _Compiled(_tested(chosen.name, lambda value: test(value, wanted), negated), chosen.place)


def _as_condition(part: _Part) -> _Compiled:
    """A part where a condition is expected: conditions, TRUE, FALSE, NULL, and boolean properties."""
    if isinstance(part, _Compiled):
        return part
    if isinstance(part, _Literal) and isinstance(part.value, str | int | Decimal) and not isinstance(part.value, bool):
        _refuse(part.place, f"{_quoted(str(part.place))} alone is neither true nor false; compare it with something")
    return _Compiled(part.getter(as_boolean), part.place)


def _as_operand(part: _Part) -> _Operand:
    if isinstance(part, _Compiled):
        _refuse(part.place, "a condition cannot be compared; join conditions with AND, OR and NOT")
    return part


def _as_property(part: _Part, token: Token) -> _Property:
    if not isinstance(part, _Property):
        _refuse(part.place, f"{token.upper()} needs a property on its left")
    return part


def _one_deeper(evaluate: Condition, inner: _Compiled, place: Token) -> _Compiled:
    if inner.depth >= DEPTH_MAX:
        _refuse(place, f"more than {DEPTH_MAX} parentheses and NOTs are inside each other; simplify the expression")
    return _Compiled(evaluate, place, inner.depth + 1, inner.count)


def _combined(parts: Sequence[_Part], decisive: bool) -> _Compiled:
    """Parts joined with OR (`decisive` True) or AND (False)."""
    conditions = [_as_condition(part) for part in parts]
    count = sum(condition.count for condition in conditions)
    if count > CONDITION_COUNT_MAX:
        _refuse(
            conditions[0].place,
            f"{count} conditions are joined, the limit is {CONDITION_COUNT_MAX}; IN ('a', 'b') is one condition",
        )
    functions = tuple(condition.evaluate for condition in conditions)
    evaluate = _any(functions) if decisive else _all(functions)
    return _Compiled(evaluate, conditions[0].place, max(condition.depth for condition in conditions), count)


# --- Conditions ---------------------------------------------------------------------------------------------


def _all(conditions: tuple[Condition, ...]) -> Condition:
    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = True
        for condition in conditions:
            value = condition(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _any(conditions: tuple[Condition, ...]) -> Condition:
    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = False
        for condition in conditions:
            value = condition(properties)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _negated(condition: Condition) -> Condition:
    def evaluate(properties: Properties) -> bool | None:
        value = condition(properties)
        return None if value is None else not value

    return evaluate


def _tested(name: str, test: Callable[[str], bool], negated: object) -> Condition:
    wanted = not negated

    def evaluate(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else test(text) is wanted

    return evaluate


def _compared(left: _Operand, symbol: str, right: _Operand) -> Condition:
    literals = [operand for operand in (left, right) if isinstance(operand, _Literal)]
    ordering = symbol not in ("=", "<>")
    for literal in literals:
        if literal.value is None:
            _refuse(literal.place, f"nothing is {symbol} NULL; write IS NULL or IS NOT NULL")
        if ordering and isinstance(literal.value, str | bool):
            _refuse(literal.place, f"{symbol} compares numbers, found {_quoted(str(literal.place))}")
    kinds = {type(literal.value) for literal in literals}
    if bool in kinds and len(kinds) > 1:
        _refuse(literals[1].place, "TRUE and FALSE are equal to nothing but each other; compare a property with them")
    if ordering or kinds & {int, Decimal}:
        convert: Callable[[str], Any] = as_number
    elif bool in kinds:
        convert = as_boolean
    else:
        convert = _same
    get_left, get_right, compare = left.getter(convert), right.getter(convert), _COMPARISONS[symbol]

    def evaluate(properties: Properties) -> bool | None:
        first = get_left(properties)
        if first is None:
            return None
        second = get_right(properties)
        return None if second is None else compare(first, second)

    return evaluate


def as_number(text: str) -> _Number | None:
    """The number in a text: `5`, `-0.5`, `1e3`, in ASCII digits and without blanks. None if it is not a number."""
    if len(text) > _NUMBER_LENGTH_MAX:
        return None
    if text.isdecimal() and text.isascii():
        return int(text)
    # Decimal is exact here: creating and comparing never round.
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def as_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower()) if len(text) <= len("false") else None


def _same(text: str) -> str:
    return text


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


# --- Errors in an expression --------------------------------------------------------------------------------


def _refuse(place: Token | _Place | UnexpectedToken | UnexpectedCharacters | None, cause: str) -> NoReturn:
    where = ""
    if place is not None:
        where = f", column {place.column}" if place.line == 1 else f", line {place.line}, column {place.column}"
    raise InvalidFilterError(f"SQL filter{where}: {cause}")


def _refuse_character(error: UnexpectedCharacters, expression: str) -> NoReturn:
    rest = expression.split("\n")[error.line - 1][error.column - 1 :]
    if rest.startswith("'"):
        _refuse(error, "the text that begins here has no end; close it with ', and write '' for a quote inside")
    _refuse(error, f"found {_quoted(rest[:10])}, which is nothing that a filter can have")


def _told(error: UnexpectedToken) -> str:
    names = dict.fromkeys(_names(sorted(error.accepts or error.expected)))
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _names(terminals: Sequence[str]) -> Iterator[str]:
    for terminal in terminals:
        if name := _TOLD.get(terminal, terminal.lstrip("_")):
            yield name


def _end_of(expression: str) -> _Place:
    lines = expression.split("\n")
    return _Place(len(lines), len(lines[-1]) + 1)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


_PARSER: Final = Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=_Compiler())
