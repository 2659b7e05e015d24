"""Bodies of messages for people: as indented JSON, as text, or as bytes in hexadecimal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from markupsafe import Markup, escape

Form = Literal["json", "text", "hex"]
TEXT_MAX: Final = 256 << 10
"""Bytes that are shown as text; JSON above it is not indented."""
WORDS_MAX: Final = 20_000
"""Names, values, brackets and commas of JSON that is indented, in less than 0.1 s."""
INDENTED_MAX: Final = 1 << 20
"""Characters of JSON that is indented: nested a hundred times, each of its lines begins with 200 blanks."""
HEX_MAX: Final = 4 << 10
LINE_MAX: Final = 120
"""Characters of a body in a list."""
_ROW: Final = 16
_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[-+0-9.eE]+|true|false|null|NaN|-?Infinity|[{}\[\],:]')


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it is shown."""

    form: Form
    forms: tuple[Form, ...]
    """Those that are possible."""
    text: Markup
    size: int
    is_cut: bool
    """Whether only its beginning is shown."""


def shown(body: bytes, wanted: str = "") -> Body:
    """The body in the wanted form, or the best that is possible."""
    pretty = _indented(body) if len(body) <= TEXT_MAX else None
    text = _text(body)
    forms: list[Form] = ["hex"]
    if text is not None:
        forms.insert(0, "text")
    if pretty is not None:
        forms.insert(0, "json")
    form = next((each for each in forms if each == wanted), forms[0])
    if form == "json" and pretty is not None:
        return Body("json", tuple(forms), pretty, len(body), False)
    if form == "text" and text is not None:
        return Body("text", tuple(forms), escape(text), len(body), len(body) > TEXT_MAX)
    return Body("hex", tuple(forms), Markup("\n").join(_hex_rows(body[:HEX_MAX])), len(body), len(body) > HEX_MAX)


def one_line(body: bytes) -> str:
    """The beginning of a body in a list."""
    text = _text(body[: 4 * LINE_MAX])
    if text is None:
        return f"{len(body):,} bytes: {body[:24].hex(' ')}"
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}\N{HORIZONTAL ELLIPSIS}"


def _text(body: bytes) -> str | None:
    """The text of a body, at most TEXT_MAX bytes; None if it is none."""
    beginning = body[:TEXT_MAX]
    for cut in range(4 if len(body) > len(beginning) or len(beginning) >= 4 else 1):  # within a character
        try:
            text = beginning[: len(beginning) - cut].decode()
        except UnicodeDecodeError:
            continue
        strange = sum(1 for character in text[:4096] if not character.isprintable() and character not in "\n\r\t")
        return text if strange <= max(1, len(text[:4096]) // 20) else None
    return None


def _indented(body: bytes) -> Markup | None:
    """Valid JSON with line breaks and marked words, unless it becomes too much; numbers and texts stay as they are
    written."""
    if body[:1] not in b'{["' or not body:
        return None
    try:
        text = body.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    words = _WORD.findall(text)
    if len(words) > WORDS_MAX:
        return None
    parts, size = [], 0
    for part in _json_parts(words):
        parts.append(part)
        size += len(part)
        if size > INDENTED_MAX:
            return None
    return Markup("").join(parts)


def _json_parts(words: list[str]) -> Iterator[Markup]:
    depth = 0
    for index, word in enumerate(words):
        after = words[index + 1] if index + 1 < len(words) else ""
        if word in "{[":
            yield escape(word)
            if after not in ("}", "]"):
                depth += 1
                yield escape("\n" + "  " * depth)
        elif word in "}]":
            if index and words[index - 1] not in ("{", "["):
                depth -= 1
                yield escape("\n" + "  " * depth)
            yield escape(word)
        elif word == ",":
            yield escape(",\n" + "  " * depth)
        elif word == ":":
            yield Markup(": ")
        else:
            kind = "key" if after == ":" else "text" if word[0] == '"' else "value"
            yield Markup('<span class="json-{}">{}</span>').format(kind, word)


def _hex_rows(body: bytes) -> Iterator[Markup]:
    for begin in range(0, len(body), _ROW):
        row = body[begin : begin + _ROW]
        pairs = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        letters = "".join(chr(byte) if 32 <= byte < 127 else "\N{MIDDLE DOT}" for byte in row)
        yield Markup('<span class="hex-at">{:08x}</span>  {:<48}  <span class="hex-text">{}</span>').format(
            begin, pairs, letters
        )
