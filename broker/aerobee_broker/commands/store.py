"""`aerobee store`: look at the store of a broker, or at a directory that no broker has open."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_broker.commands import options, output
from aerobee_broker.commands.options import CommandError, new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.options import Commands

_EXAMPLES = """\
  aerobee store inspect data                          what a directory holds
  aerobee store inspect --endpoint 127.0.0.1:8081     the store of a running broker
  aerobee store verify data                           check every byte; exit code 1 if something is damaged
  aerobee store dump data | jq .topic                 every record as one JSON object, in log order
"""
_CANNOT_LOOK = 2  # exit code of verify: neither clean nor damaged is known


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "store", "inspect, verify and dump stores, also RocketMQ's", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    inspect = new_command(
        actions,
        "inspect",
        "show what a store holds; nothing is changed",
        _inspect,
        examples="  aerobee store inspect data\n  aerobee store inspect --endpoint 127.0.0.1:8081 --json",
    )
    inspect.add_argument("directory", metavar="DIR", type=Path, nargs="?", help="that no broker is writing to")
    inspect.add_argument("--endpoint", metavar="HOST:PORT", help="ask a running broker instead")
    inspect.add_argument("--timeout", metavar="SECONDS", type=options.positive_seconds, default=3.0)
    verify = new_command(
        actions,
        "verify",
        "check every record, queue and index of a store; nothing is changed",
        _verify,
        details="Exit code 0: clean, 1: findings, 2: it could not be looked at.",
        examples="  aerobee store verify data\n  aerobee store verify data --json",
    )
    dump = new_command(
        actions,
        "dump",
        "print every record as one JSON object a line, in log order",
        _dump,
        details="Damaged stretches are named on standard error and stepped over.",
        examples="  aerobee store dump data\n  aerobee store dump data | jq -r .topic | sort | uniq -c",
    )
    for action in (verify, dump):
        action.add_argument("directory", metavar="DIR", type=Path)
    for action in (inspect, verify):
        options.add_json(action)


def _inspect(arguments: argparse.Namespace) -> int:
    if (arguments.directory is None) == (arguments.endpoint is None):
        options.usage_error("give a directory, or --endpoint for the store of a running broker")
    if arguments.endpoint is not None:
        status = with_client(arguments, lambda client: client.admin.store_status())
        values = output.protobuf_json(status)
        del values["status"]
    else:
        directory = _directory(arguments)
        from aerobee_store.tools.inspect import inspect

        values = _plain(inspect(directory))
    if arguments.json:
        output.print_json(values)
    else:
        _print_values(values)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    directory = _directory(arguments)
    from aerobee_store.tools.verify import verify

    from aerobee_store.errors import StoreError

    try:
        with _progress("verifying") as progress:
            report = verify(directory, progress=progress)
    except (StoreError, OSError) as error:
        raise CommandError(f"cannot look at {directory}: {error}", exit_code=_CANNOT_LOOK) from error
    values = _plain(report)
    if arguments.json:
        output.print_json({"ok": report.ok} | values)
    else:
        _print_values(values)
        print("clean" if report.ok else f"{len(report.findings)} findings; the broker can still open the store")
    return 0 if report.ok else 1


def _dump(arguments: argparse.Namespace) -> int:
    directory = _directory(arguments)
    from aerobee_store.tools.dump import dump

    for entry in dump(directory):
        if isinstance(entry, dict):
            output.print_json(entry)
        else:
            print(f"aerobee: {entry}", file=sys.stderr)
    return 0


def _directory(arguments: argparse.Namespace) -> Path:
    directory: Path = arguments.directory
    if not directory.is_dir():
        raise CommandError(f"{directory} is not a directory; name that of a store", exit_code=_CANNOT_LOOK)
    if not os.access(directory, os.R_OK | os.X_OK):
        raise CommandError(f"{directory} cannot be read; run as its owner", exit_code=_CANNOT_LOOK)
    return directory


def _plain(value: Any) -> Any:
    """A report as JSON values, under the names of the protocol's JSON form."""
    if dataclasses.is_dataclass(value):
        return {_camel(field.name): _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _words(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def _print_values(values: dict[str, Any]) -> None:
    """Plain values as facts, then each list of objects as a table."""
    facts, tables = [], []
    for name, value in values.items():
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            tables.append((name, value))
        elif isinstance(value, list):
            facts.append((_words(name), ", ".join(map(str, value)) or "none"))
        elif isinstance(value, int) and not isinstance(value, bool) and _words(name).split()[-1] in ("bytes", "size"):
            facts.append((_words(name), f"{value:,} ({output.size_text(value)})"))
        elif isinstance(value, dict):
            facts += [(f"{_words(name)} {_words(key)}", item) for key, item in value.items()]
        else:
            facts.append((_words(name), value))
    output.print_facts(facts)
    for name, rows in tables:
        print(f"\n{_words(name)}")
        columns = list(rows[0]) if rows else []
        output.print_table([_words(c) for c in columns], ([row[c] for c in columns] for row in rows), empty="none")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """For a terminal, a bar on standard error that is told (bytes done, bytes in all); None for anything else."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
