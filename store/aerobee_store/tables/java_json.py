"""RocketMQ's configuration files: the JSON that fastjson 1.x writes and reads.

It is JSON with one extension: a Java map with integer keys is written with bare keys, `{0:250,1:250}`. A reader must
accept both forms. The layout depends on the Java type of a value, which JSON does not show. The Python type tells it to
`dumps`:

    dict          a map with string keys, in the order of the dict; every pair on its own line
    Bean          a Java object: the same, sorted by name
    IntegerMap    a map with integer keys: pairs on one line, the closing brace on a line of its own
    ObjectMap     a map whose keys are Java objects: only in bodies of the remoting protocol, written without layout
    list          an array of strings or primitive numbers, on one line
    BoxedList     a list of boxed numbers (List<Long>), every element on its own line

Each level is indented by one tab, no space follows a colon, and the file has no final line end:

    {
        "offsetTable":{
                "OrderPaid@billing":{0:1205,1:1198
                }
        }
    }

RocketMQ writes the entries of a map in the order of Java's hash tables. No reader depends on that order, so a dict
keeps its own: for a loaded file, the order of the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from aerobee_store.errors import StoreError

DEPTH_MAX: Final = 64  # RocketMQ's deepest file has 7 levels; a bound keeps hostile input off Python's own stack limit
_NUMBER_SIZE_MAX: Final = 64  # characters; a Java long has 20, and converting thousands of digits is quadratic


BODY_SIZE_MAX: Final = 4 << 20
"""Bytes of a body from a peer."""
_BODY_ITEMS_MAX: Final = 200_000  # commas and brackets of a body: each may become an object of 64 bytes and more
_BODY_OURS_MAX: Final = 64 << 10  # bytes of a body that the standard library's parser, a hundred times as fast, refuses


class JsonFormatError(StoreError, ValueError):
    """The text is not what RocketMQ writes. `line` and `column` count from 1, in characters."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class Bean(dict[str, object]):
    """A Java object with named fields: written sorted by name."""


class IntegerMap(dict[str, object]):
    """A Java map with integer keys, stored here as decimal strings and written as bare keys."""

    @classmethod
    def of(cls, items: Mapping[int, object]) -> IntegerMap:
        """The same map with its keys as strings, in the given order."""
        return cls((str(key), value) for key, value in items.items())


class ObjectMap(dict[str, object]):
    """A Java map whose keys are objects, stored here as their JSON text: `{{"queueId":0,"topic":"T"}:5}`."""

    @classmethod
    def of(cls, items: Iterable[tuple[Bean, object]]) -> ObjectMap:
        """The map with these keys, in the given order."""
        return cls((dumps(key, pretty=False).decode(), value) for key, value in items)

    def pairs(self) -> list[tuple[dict[str, object], object]]:
        """The keys as they were before `of`, with their values."""
        keys = [loads(key) for key in self]
        return [(key, value) for key, value in zip(keys, self.values(), strict=True) if isinstance(key, dict)]


class BoxedList(list[object]):
    """A Java list of boxed numbers: written one element per line."""


def loads(text: bytes | str, *, object_keys: bool = False) -> object:
    """Parse a configuration file of RocketMQ; with `object_keys` also a body of its remoting protocol, with objects as
    keys.

    Objects become dict; IntegerMap if all keys were bare; ObjectMap if all were objects. Keys are strings in each of
    them. Of equal keys the last one wins (`"0"` and `0` are equal). Parsing is otherwise strict: JsonFormatError is
    raised for other syntax, nesting beyond DEPTH_MAX, numbers of more than 64 characters, and text that is not UTF-8.
    """
    if isinstance(text, str):
        return _Parser(text, object_keys).document()
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        before = text[: error.start].decode("utf-8")
        message = f"byte 0x{text[error.start]:02x} at byte offset {error.start} is not UTF-8"
        raise JsonFormatError(message, *_line_and_column(before, len(before))) from None
    return _Parser(decoded, object_keys).document()


def loads_body(data: bytes, *, object_keys: bool = False, size_max: int = BODY_SIZE_MAX) -> object:
    """Like `loads`, for a body from a peer, with bounds for its size, its items, and the time to parse it.

    The standard library's parser reads it, unless it has keys that only `loads` reads: then it may have 64 KiB.
    JsonFormatError beyond a bound.
    """
    if len(data) > size_max:
        raise JsonFormatError(f"{len(data)} bytes; a body may have {size_max}", 1, 1)
    items = data.count(b",") + data.count(b"[") + data.count(b"{")
    if items > _BODY_ITEMS_MAX:
        raise JsonFormatError(f"{items} commas and brackets; a body may have {_BODY_ITEMS_MAX}", 1, 1)
    try:
        value: object = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        if len(data) > _BODY_OURS_MAX:
            text = f"it is not plain JSON; with integers or objects as keys, a body may have {_BODY_OURS_MAX} bytes"
            raise JsonFormatError(text, 1, 1) from None
        return loads(data, object_keys=object_keys)
    _check_values(value)
    return value


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


def _check_values(value: object) -> None:
    """Raise JsonFormatError for nesting beyond DEPTH_MAX and numbers that are not finite, which `loads` refuses."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise JsonFormatError("a number that is not finite", 1, 1)
        if not inner:
            return
        level = inner
    raise JsonFormatError(f"nested more than {DEPTH_MAX} levels deep", 1, 1)


def dumps(value: object, *, pretty: bool = True) -> bytes:
    """Write a value in RocketMQ's layout; the module's docstring maps Python types to Java types.

    With `pretty` false there is no white space at all (RocketMQ's `transactionMetrics`). Raises TypeError for an
    unsupported type, ValueError for a key of an IntegerMap that is no integer, a float that is not finite, or nesting
    beyond DEPTH_MAX.
    """
    pieces: list[str] = []
    _write(value, 0 if pretty else None, 0, pieces)
    return "".join(pieces).encode("utf-8")


# Reading

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN_STRING = re.compile(r'"([^"\\\x00-\x1f]*)"')
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_WORDS: Final[tuple[tuple[str, object], ...]] = (("true", True), ("false", False), ("null", None))


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def _unescape(match: re.Match[str]) -> str:
    digits, character = match.groups()
    return chr(int(digits, 16)) if digits else _ESCAPED[character]


def _join_surrogates(match: re.Match[str]) -> str:
    return match[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


class _Parser:
    """Recursive descent over one text; `at` is the position of the next character."""

    def __init__(self, text: str, object_keys: bool) -> None:
        self.text = text
        self.at = 0
        self.object_keys = object_keys

    def document(self) -> object:
        self.skip_space()
        value = self.value(0)
        self.skip_space()
        if self.at != len(self.text):
            self.fail("the document ends here, but more text follows")
        return value

    def fail(self, message: str) -> NoReturn:
        raise JsonFormatError(message, *_line_and_column(self.text, self.at))

    def expected(self, what: str) -> NoReturn:
        if self.at >= len(self.text):
            self.fail(f"expected {what}, but the text ends")
        self.fail(f"expected {what}, found {self.text[self.at]!r}")

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None, "the pattern matches the empty string"
        self.at = match.end()

    def take(self, character: str) -> bool:
        """Skip `character` and the space after it, if it is next."""
        if not self.text.startswith(character, self.at):
            return False
        self.at += 1
        self.skip_space()
        return True

    def value(self, depth: int) -> object:
        if depth > DEPTH_MAX:
            self.fail(f"nested more than {DEPTH_MAX} levels deep")
        match self.text[self.at : self.at + 1]:
            case "{":
                return self.members(depth)
            case "[":
                return self.elements(depth)
            case '"':
                return self.string()
        for word, meaning in _WORDS:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return meaning
        return self.number()

    def members(self, depth: int) -> dict[str, object]:
        self.take("{")
        items: dict[str, object] = {}
        if self.take("}"):
            return items
        kinds: set[type[dict[str, object]]] = set()
        while True:
            key, kind = self.key(depth)
            kinds.add(kind)
            self.skip_space()
            if not self.take(":"):
                self.expected("':' after the key")
            items[key] = self.value(depth + 1)
            self.skip_space()
            if self.take(","):
                continue
            if not self.text.startswith("}", self.at):
                self.expected("',' or '}'")
            self.at += 1
            return kinds.pop()(items) if len(kinds) == 1 else items

    def key(self, depth: int) -> tuple[str, type[dict[str, object]]]:
        """A key, and the type of an object all of whose keys are of its kind."""
        if self.text.startswith('"', self.at):
            return self.string(), dict
        if self.object_keys and self.text.startswith("{", self.at):
            return dumps(self.value(depth + 1), pretty=False).decode(), ObjectMap
        match = _INTEGER.match(self.text, self.at)
        if match is None:
            self.expected("a key in double quotes, or a bare integer key")
        if len(match[0]) > _NUMBER_SIZE_MAX:
            self.fail(f"a key of {len(match[0])} digits; the longest integer has 20")
        self.at = match.end()
        return match[0], IntegerMap

    def elements(self, depth: int) -> list[object]:
        self.take("[")
        items: list[object] = []
        if self.text.startswith("]", self.at):
            self.at += 1
            return items
        while True:
            items.append(self.value(depth + 1))
            self.skip_space()
            if self.take(","):
                continue
            if not self.text.startswith("]", self.at):
                self.expected("',' or ']'")
            self.at += 1
            return items

    def string(self) -> str:
        match = _PLAIN_STRING.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return match[1]
        match = _STRING.match(self.text, self.at)
        if match is None:
            self.fail("this string does not end, or holds a raw control character or an unknown escape")
        self.at = match.end()
        return _SURROGATE_PAIR.sub(_join_surrogates, _ESCAPE.sub(_unescape, match[1]))

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            self.expected("a value")
        if len(match[0]) > _NUMBER_SIZE_MAX:
            self.fail(f"a number of {len(match[0])} characters; at most {_NUMBER_SIZE_MAX} are read")
        if match[1] is None and match[2] is None:
            self.at = match.end()
            return int(match[0])
        number = float(match[0])
        if not math.isfinite(number):
            self.fail(f"the number {match[0]} is too large")
        self.at = match.end()
        return number


# Writing

# The characters that fastjson escapes: the two required by JSON, both ranges of control characters, and JavaScript's
# line separators. Lone surrogates have no UTF-8 form; Java would write them as '?', the escape preserves them.
_TO_ESCAPE = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
_SHORT_ESCAPE = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(match: re.Match[str]) -> str:
    return _SHORT_ESCAPE.get(match[0]) or f"\\u{ord(match[0]):04X}"


def _quoted(text: str) -> str:
    return f'"{_TO_ESCAPE.sub(_escape, text)}"'


def _bare(key: str) -> str:
    if _INTEGER.fullmatch(key) is None:
        raise ValueError(f"{key!r} is not an integer, so it cannot be a key of an IntegerMap")
    return key


def _write(value: object, indent: int | None, depth: int, pieces: list[str]) -> None:
    """Append the text of `value`; `indent` counts the tabs of the line on which it begins, None means no layout."""
    if depth > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} levels deep")
    match value:
        case None:
            pieces.append("null")
        case bool():
            pieces.append("true" if value else "false")
        case int():
            pieces.append(str(value))
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} has no JSON form")
            pieces.append(repr(value))
        case str():
            pieces.append(_quoted(value))
        case IntegerMap():
            members = ((_bare(key), item) for key, item in value.items())
            _write_object(members, bool(value), indent, depth, pieces, own_lines=False)
        case ObjectMap():
            _write_object(value.items(), bool(value), indent, depth, pieces, own_lines=False)
        case dict():
            items: Iterable[tuple[str, object]] = sorted(value.items()) if isinstance(value, Bean) else value.items()
            members = ((_quoted(key), item) for key, item in items)
            _write_object(members, bool(value), indent, depth, pieces, own_lines=True)
        case BoxedList():
            _write_array(value, indent, depth, pieces, own_lines=True)
        case list():
            _write_array(value, indent, depth, pieces, own_lines=False)
        case _:
            raise TypeError(f"cannot write a value of type {type(value).__name__}: {value!r:.80}")


def _new_line(indent: int | None) -> str:
    return "" if indent is None else "\n" + "\t" * indent


def _write_object(
    members: Iterable[tuple[str, object]],
    filled: bool,
    indent: int | None,
    depth: int,
    pieces: list[str],
    *,
    own_lines: bool,
) -> None:
    inner = None if indent is None else indent + 1
    before = _new_line(inner) if own_lines else ""
    pieces.append("{")
    for number, (key, item) in enumerate(members):
        pieces.append(f"{',' if number else ''}{before}{key}:")
        _write(item, inner, depth + 1, pieces)
    # The closing brace of a non-empty object always has its own line.
    pieces.append(_new_line(indent) + "}" if filled else "}")


def _write_array(items: list[object], indent: int | None, depth: int, pieces: list[str], *, own_lines: bool) -> None:
    inner = None if indent is None else indent + 1
    lines = own_lines and bool(items)
    pieces.append("[")
    for number, item in enumerate(items):
        pieces.append(("," if number else "") + (_new_line(inner) if lines else ""))
        _write(item, inner, depth + 1, pieces)
    pieces.append((_new_line(indent) if lines else "") + "]")
