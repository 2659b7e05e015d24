"""What several commands share: their common arguments, and the way to a broker."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from aerobee_client import Client

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

ENDPOINT_DEFAULT = "127.0.0.1:8081"
T = TypeVar("T")
_AGO = re.compile(r"(\d+)\s*(s|m|h|d)")
_AGO_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class CommandError(Exception):
    """A command cannot do what was asked; the text names cause and next step."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def new_command(
    commands: Commands,
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int] | None = None,
    *,
    details: str = "",
    examples: str,
) -> argparse.ArgumentParser:
    """The parser of one command. `run` is None for a command that only has sub-commands."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.{' ' + details if details else ''}",
        epilog=f"examples:\n{examples.rstrip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run is not None:
        parser.set_defaults(run=run)
        add_debug(parser)
    return parser


def add_debug(parser: argparse.ArgumentParser) -> None:
    """`--debug`, before or after the command."""
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """`--endpoint` and `--timeout`, for commands that talk to a broker."""
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        default=os.environ.get("AEROBEE_ENDPOINT") or ENDPOINT_DEFAULT,
        help=f"the broker (default: AEROBEE_ENDPOINT, or {ENDPOINT_DEFAULT})",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=positive_seconds, default=3.0, help="for each request (default: 3)"
    )


def with_client(arguments: argparse.Namespace, work: Callable[[Client], Awaitable[T]]) -> T:
    """The result of `work`, done with a client of the broker that the arguments name."""
    import asyncio

    from aerobee_client import connect

    async def connected() -> T:
        async with connect(arguments.endpoint, request_timeout_seconds=arguments.timeout) as client:
            return await work(client)

    return asyncio.run(connected())


def usage_error(message: str) -> NoReturn:
    """End as argparse does for wrong arguments."""
    print(f"aerobee: {message}", file=sys.stderr)
    raise SystemExit(2)


def positive_seconds(text: str) -> float:
    """A duration above 0."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def seconds(text: str) -> float:
    """A duration of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:  # also refuses NaN
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """`name=value`."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def moment(text: str) -> int:
    """Unix milliseconds from: such a number, `now`, a span before now (`15m`), or ISO 8601 (local unless it says)."""
    if text.isascii() and text.isdigit():
        return int(text)
    now = datetime.now().astimezone()
    if text == "now":
        return int(now.timestamp() * 1000)
    try:
        if match := _AGO.fullmatch(text):
            return int((now - timedelta(**{_AGO_UNITS[match[2]]: int(match[1])})).timestamp() * 1000)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; give 2026-01-31T12:00, 15m (ago), now, or Unix milliseconds"
        ) from None
