"""Output of commands: tables for people, JSON for programs.

JSON has the names of the protocol's JSON form (`messageId`, `queueOffset`); times are Unix milliseconds, durations
seconds. A body that is not UTF-8 text is in `bodyBase64` instead of `body`.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from aerobee_broker.commands.terminal.tables import shortened, table_lines
from aerobee_broker.message_json import message_json as message_json
from aerobee_broker.units import counted as counted
from aerobee_broker.units import size_text as size_text
from aerobee_broker.units import span_text as span_text

if TYPE_CHECKING:
    import argparse

    from google.protobuf.message import Message as ProtobufMessage
    from rich.progress import Progress

    from aerobee_client import StoredMessage

_MessageT = TypeVar("_MessageT", bound="StoredMessage")
_BODY_SHOWN = 100  # characters of a body in a table


def print_json(value: object, *, at_once: bool = True) -> None:
    """Print one document on one line, and flush, so that the reader of a pipe sees each message at once."""
    is_unicode = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not is_unicode), flush=at_once)


def print_result(value: object, text: str, *, as_json: bool) -> int:
    """Print the result of a command, as JSON or as text; return the exit code of success."""
    if as_json:
        print_json(value)
    else:
        print(text)
    return 0


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    cut: Sequence[str] = (),
    least: Sequence[str] = (),
) -> None:
    """Print a table, or the line `empty` if it has no rows. Numbers are aligned right.

    On a terminal that is too narrow, columns of `cut` are shortened, then those of `least` left out, the first one
    first; else each row becomes a block of lines.
    """
    content = [list(row) for row in rows]
    if not content:
        print(empty)
        return
    numeric = [
        index
        for index in range(len(columns))
        if all(isinstance(row[index], int | float) and not isinstance(row[index], bool) for row in content)
    ]
    lines, left_out = table_lines(
        columns,
        [[_cell(cell) for cell in row] for row in content],
        right=numeric,
        cut=cut,
        least=least,
        width=terminal_width(),
    )
    print(*lines, sep="\n")
    if left_out:
        print(f"not shown: {', '.join(left_out)}; a wider terminal shows all, --json too", file=sys.stderr)


def terminal_width() -> int | None:
    """The columns of the terminal that standard output is; None: it is none, and nothing has to fit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_cut(line: str) -> None:
    """Print a line at once, as far as it fits the terminal."""
    width = terminal_width()
    print(line if width is None else shortened(line, width), flush=True)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one per line; in a terminal, long values go on below themselves, between words."""
    shown = [(name, _cell(value)) for name, value in facts]
    begin = max((len(name) for name, _ in shown), default=0) + 2
    left = max((terminal_width() or sys.maxsize) - begin, 20)
    for name, value in shown:
        fits = "\n" in value or len(value) <= left
        lines = [value] if fits else textwrap.wrap(value, left, break_long_words=False, break_on_hyphens=False)
        print(f"{name:<{begin}}" + f"\n{'':<{begin}}".join(lines))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.6g}"  # never with an exponent
    return f"{value:,}" if isinstance(value, int) else str(value)


def short_time_text(timestamp: int) -> str:
    """The same for a table: on a terminal without what is today's, or this year's."""
    if terminal_width() is None:
        return time_text(timestamp)
    try:
        moment, now = datetime.fromtimestamp(timestamp / 1000, UTC).astimezone(), datetime.now(UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(timestamp)
    if moment.date() == now.date():
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"
    return f"{moment:%m-%d %H:%M:%S}" if moment.year == now.year else f"{moment:%Y-%m-%d %H:%M}"


def time_text(timestamp: int) -> str:
    """Unix milliseconds as local time."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a damaged store may contain any value
        return str(timestamp)


def age_text(timestamp: int) -> str:
    """The age of this time, Unix milliseconds."""
    return span_text(int(time.time() * 1000) - timestamp)


@contextmanager
def counting(what: str, total: int | None = None, *, beside_data: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar of items; the caller adds the number of further ones. `beside_data` as for `_bar`."""
    with _bar(what, "MofNCompleteColumn", total=total, beside_data=beside_data) as bar:
        yield (lambda count: None) if bar is None else (lambda count: bar.advance(bar.task_ids[0], count))


@contextmanager
def counting_bytes(what: str, *, beside_data: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar of bytes, called with (bytes done, total bytes); None if none is shown. `beside_data` as for
    `_bar`."""
    with _bar(what, "DownloadColumn", beside_data=beside_data) as bar:
        yield None if bar is None else (lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total))


@contextmanager
def _bar(
    what: str,
    amount: Literal["MofNCompleteColumn", "DownloadColumn"],
    *,
    total: int | None = None,
    beside_data: bool,
) -> Iterator[Progress | None]:
    """A progress bar on standard error if it is a terminal, otherwise None.

    `beside_data`: data goes to standard output meanwhile. If that is a terminal too, there is no bar between its lines.
    """
    if not sys.stderr.isatty() or (beside_data and sys.stdout.isatty()):
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn(what),
        progress.BarColumn(),
        getattr(progress, amount)(),
        progress.TimeRemainingColumn(),
    )
    # By default rich takes over standard output as well, and data for a file would go to the terminal.
    with progress.Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        bar.add_task(what, total=total)
        yield bar


def body_text(body: bytes) -> str:
    """A body as one short line of a table."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body)} bytes)"
    shown = "".join(character if character.isprintable() else "\N{MIDDLE DOT}" for character in text[:_BODY_SHOWN])
    return shown if len(text) <= _BODY_SHOWN else f"{shown}... ({len(body)} bytes)"


def print_found(
    arguments: argparse.Namespace,
    messages: Sequence[_MessageT],
    column: str,
    value: Callable[[_MessageT], object],
    *,
    empty: str = "",
) -> None:
    """Print messages as the arguments say: JSON lines, lines of a format, or a table. `column` and `value` name and
    give the column of the table that depends on the command."""
    if arguments.json:
        for message in messages:
            print_json(message_json(message))
    elif arguments.format is not None:
        for message in messages:
            print(arguments.format.line(message_json(message)), flush=True)
    elif messages or empty:
        print_table(
            ("stored", "queue", "offset", column, "tag", "keys", "body"),
            (
                (
                    short_time_text(message.store_timestamp),
                    message.queue_id,
                    message.queue_offset,
                    value(message),
                    message.tag or "",
                    " ".join(message.keys),
                    body_text(message.body),
                )
                for message in messages
            ),
            empty=empty,
            cut=("body",),
            least=("keys", "tag", column),
        )


def print_message_line(arguments: argparse.Namespace, message: StoredMessage) -> None:
    """Print one of many messages that come one after the other."""
    if arguments.json:
        print_json(message_json(message))
    elif arguments.format is not None:
        print(arguments.format.line(message_json(message)), flush=True)
    else:
        tag = f" [{message.tag}]" if message.tag else ""
        place = f"{message.queue_id}:{message.queue_offset}"
        line = f"{short_time_text(message.store_timestamp)} {place:>8}{tag} {body_text(message.body)}"
        print_cut(line)


def protobuf_json(message: ProtobufMessage) -> dict[str, Any]:
    """A message of the protocol as JSON, with numbers as numbers and without unset fields."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"]
            values[field.json_name] = {name: _field_json(kind, item) for name, item in sorted(value.items())}
        elif field.is_repeated:
            values[field.json_name] = [_field_json(field, item) for item in value]
        else:
            values[field.json_name] = _field_json(field, value)
    return values


def _field_json(field: Any, value: Any) -> object:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.message_type is None:
        return value
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return value.ToMilliseconds()
    if field.message_type.full_name == "google.protobuf.Duration":
        return value.ToMilliseconds() / 1000
    return protobuf_json(value)
