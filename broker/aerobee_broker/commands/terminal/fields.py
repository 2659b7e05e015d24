"""`--format`: lines of a person's own form, from the fields of the JSON output."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from aerobee_broker.commands.terminal.options import CommandError

_FIELD: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z][\w.-]*)\}|[{}]")
_ESCAPES: Final = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", "\\0": "\0"}
_ESCAPE: Final = re.compile(r"\\[nt0\\]")


def add_format(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--format`, of which one may be given."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON for programs")
    form.add_argument(
        "--format",
        metavar="TEXT",
        type=line_format,
        help="print each message like this, with fields of the JSON, such as '{queueOffset} {properties.a} {body}'",
    )


class LineFormat:
    """A text with fields in braces; `{{` and `}}` are braces, `\\n` and `\\t` a new line and a tab."""

    def __init__(self, text: str) -> None:
        """ValueError for a brace without a field."""
        for found in _FIELD.finditer(text):
            if found[0] in ("{", "}"):
                raise ValueError(f"{text!r} has a single {found[0]!r}; write it twice, or name a field: {{body}}")
        self._text = _ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)

    def line(self, fields: Mapping[str, object]) -> str:
        """The text with the values of these fields. CommandError for a field that never exists."""

        def value(found: re.Match[str]) -> str:
            if found[1] is None:
                return found[0][0]
            return _text(_value(fields, found[1]))

        return _FIELD.sub(value, self._text)


def line_format(text: str) -> LineFormat:
    """The type of an argument."""
    try:
        return LineFormat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _value(fields: Mapping[str, object], name: str) -> object:
    """A field, `properties.NAME`, or None for one that this message does not have."""
    first, _, rest = name.partition(".")
    if first not in fields and first not in _OPTIONAL:
        raise CommandError(f"there is no field {first!r}; the fields are {', '.join(sorted({*fields, *_OPTIONAL}))}")
    found = fields.get(first)
    if rest:
        return found.get(rest) if isinstance(found, dict) else None
    return found


_OPTIONAL: Final = frozenset(
    {
        *("body", "bodyBase64", "tag", "messageGroup", "deliveryTimestamp", "receiptHandle", "deliveryAttempt"),
        "corrupted",
    }
)


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


Print = Callable[[Mapping[str, object]], None]
