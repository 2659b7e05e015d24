"""Arguments that several commands share, and the connection to a broker."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from aerobee_store.records.decimals import MILLISECONDS, amount, decimal

if TYPE_CHECKING:
    from aerobee_client import Client, Credentials, NotFoundError, Tls

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

ENDPOINT_DEFAULT = "127.0.0.1:8081"
NOT_FOUND = 3
"""The exit code if what a command asks for does not exist."""
T = TypeVar("T")
# A command in the text of an error: after "with:", up to the end of the clause.
_ADVICE = re.compile(r"(?<=with: )aerobee (?:topic|group|client|dlq|config|query|subscription) [^;,`(]*[^;,`(. ]")
_NAMED = re.compile(r"\b(topic|group) '([^']+)'")
_COMMENT = re.compile(r"(?<=\S) {2,}(?=\S)")
"""Between the command of an example and what it does."""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the terminal, and keeps each command of an example in one line.

    What an example does stands beside its command, and below it where one of them is too long for that.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            _examples(part, width) if "\n  " in part else super(HelpFormatter, self)._fill_text(part, width, indent)
            for part in text.split("\n\n")
        )


def _examples(text: str, width: int) -> str:
    lines = text.splitlines()
    if all(len(line) <= width for line in lines if _COMMENT.search(line)):
        return text
    return "\n".join(_COMMENT.sub("\n      ", line) for line in lines)


class CommandError(Exception):
    """A command failed; the text names the cause and the next step."""

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
        formatter_class=HelpFormatter,
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
    """`--endpoint` and the options of the connection, for commands that need a broker."""
    add_endpoint_alone(parser)
    add_connection(parser)


def add_endpoint_alone(parser: argparse.ArgumentParser) -> None:
    """`--endpoint` without the options of the connection."""
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        default=os.environ.get("AEROBEE_ENDPOINT") or ENDPOINT_DEFAULT,
        help=f"the broker (default: AEROBEE_ENDPOINT, or {ENDPOINT_DEFAULT})",
    )


def connection_options(arguments: argparse.Namespace) -> str:
    """The options with which another command reaches the same broker, for advice; empty if the defaults suffice."""
    words: list[str] = []
    endpoint = getattr(arguments, "endpoint", None)
    if endpoint is not None and endpoint != (os.environ.get("AEROBEE_ENDPOINT") or ENDPOINT_DEFAULT):
        words += ["--endpoint", endpoint]
    if getattr(arguments, "tls_ca", None) and str(arguments.tls_ca) != os.environ.get("AEROBEE_CA_FILE"):
        words += ["--tls-ca", str(arguments.tls_ca)]
    elif getattr(arguments, "tls", False):
        words.append("--tls")
    for flag, variable in (("tls_cert", "AEROBEE_CERT_FILE"), ("tls_key", "AEROBEE_KEY_FILE")):
        file = getattr(arguments, flag, None)
        if file and str(file) != os.environ.get(variable):
            words += [f"--{flag.replace('_', '-')}", str(file)]
    if getattr(arguments, "credentials", None):
        words += ["--credentials", str(arguments.credentials)]
    return shlex.join(words)


def complete_advice(text: str, arguments: argparse.Namespace) -> str:
    """`text` with the options of `connection_options` added to each suggested command."""
    given = connection_options(arguments)
    if not given:
        return text
    return _ADVICE.sub(lambda found: found[0] if "--endpoint" in found[0] else f"{found[0]} {given}", text)


def add_connection(parser: argparse.ArgumentParser) -> None:
    """TLS, credentials, `--timeout`: the arguments that `with_client` reads besides `--endpoint`."""
    add_tls(parser)
    parser.add_argument(
        "--credentials",
        metavar="FILE",
        type=Path,
        help="TOML file with access_key and secret_key (default: AEROBEE_ACCESS_KEY and AEROBEE_SECRET_KEY, or "
        "the file AEROBEE_CREDENTIALS)",
    )
    parser.add_argument("--access-key", metavar="KEY", help="access key, in place of --credentials")
    parser.add_argument("--secret-key", metavar="KEY", help="secret key; visible to other users of this machine")
    add_timeout(parser, 3.0)


def add_timeout(parser: argparse.ArgumentParser, default: float) -> None:
    """`--timeout`, in seconds."""
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_seconds,
        default=default,
        help=f"timeout of each request (default: {default:g})",
    )


def add_tls(parser: argparse.ArgumentParser) -> None:
    """The options that `tls_of` reads."""
    parser.add_argument("--tls", action="store_true", help="use TLS; the broker must listen with TLS")
    for option, variable, help_text in (
        ("--tls-ca", "AEROBEE_CA_FILE", "use TLS and trust this certificate authority, PEM"),
        ("--tls-cert", "AEROBEE_CERT_FILE", "for a broker that requires a client certificate, PEM; with --tls-key"),
        ("--tls-key", "AEROBEE_KEY_FILE", "its key, PEM"),
    ):
        default = os.environ.get(variable) or None
        parser.add_argument(
            option, metavar="FILE", type=Path, default=default, help=f"{help_text} (default: {variable})"
        )


def tls_of(arguments: argparse.Namespace) -> Tls | None:
    """How the arguments want TLS; None without it."""
    from aerobee_client import Tls

    if arguments.tls or arguments.tls_ca or arguments.tls_cert:
        return Tls(arguments.tls_ca, arguments.tls_cert, arguments.tls_key)
    return None


def with_client(arguments: argparse.Namespace, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a client of the broker that the arguments name; return its result."""
    import asyncio

    from aerobee_client import NotFoundError, connect

    credentials = _credentials(arguments)
    tls = tls_of(arguments)

    async def connected() -> T:
        async with connect(
            arguments.endpoint,
            request_timeout_seconds=arguments.timeout,
            retry_seconds=1.0,  # the user, or a script, decides whether to wait longer
            credentials=credentials,
            tls=tls,
        ) as client:
            try:
                return await work(client)
            except NotFoundError as error:
                raise await _not_found(client, error) from None

    with nullcontext() if getattr(arguments, "debug", False) else _client_warns_nobody():
        return asyncio.run(connected())


@contextmanager
def _client_warns_nobody() -> Iterator[None]:
    """Leave out the client's warnings: a command reports its failure itself, once."""
    import logging

    logger = logging.getLogger("aerobee_client")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _not_found(client: Client, error: NotFoundError) -> Exception:
    """The error, or one that names the topic or group that was probably meant."""
    from difflib import get_close_matches

    from aerobee_client import ClientError
    from aerobee_proto import v2

    named = _NAMED.search(error.server_message)
    if named is None or error.code not in (v2.Code.TOPIC_NOT_FOUND, v2.Code.CONSUMER_GROUP_NOT_FOUND):
        return error
    try:
        if error.code == v2.Code.TOPIC_NOT_FOUND:
            names = [topic.name for topic in await client.admin.list_topics()]
        else:
            names = [group.name for group in await client.admin.list_groups()]
    except ClientError:  # one who may not see the names
        return error
    if not names:
        return error
    kind, name = named.groups()
    similar = get_close_matches(name, names, n=3, cutoff=0.6)
    if similar:
        hint = f"did you mean {' or '.join(map(repr, similar))}?"
    else:
        hint = f"list all with: aerobee {kind} list; or create it with: aerobee {kind} create {name}"
    return CommandError(f"{kind} {name!r} does not exist; {hint}", exit_code=NOT_FOUND)


def _credentials(arguments: argparse.Namespace) -> Credentials | None:
    """Credentials from the flags, the file or the environment, in this order."""
    from aerobee_client import Credentials

    if arguments.access_key or arguments.secret_key:
        return Credentials(arguments.access_key or "", arguments.secret_key or "")
    if arguments.credentials is not None:
        return Credentials.load(arguments.credentials)
    return Credentials.from_environment(os.environ)


def usage_error(message: str) -> NoReturn:
    """Exit as argparse does for wrong arguments."""
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def count(text: str) -> int:
    """A whole number above 0."""
    number = decimal(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def offset(text: str) -> int:
    """A whole number of 0 or more."""
    number = decimal(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset; give a whole number of 0 or more")
    return number


def output_file(text: str) -> Path | None:
    """A file for the data of a command; None is standard output, which `-` names."""
    return None if text == "-" else Path(text)


def output_directory(text: str) -> str:
    """A place for many files, which standard output is not."""
    if text == "-":
        raise argparse.ArgumentTypeError("- is standard output, which cannot hold the files; name a directory")
    return text


def span(text: str) -> int:
    """Milliseconds from text such as `500ms`, `5s`, `2m`, `1h` or `1d`."""
    milliseconds = amount(text, MILLISECONDS)
    if milliseconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; give one such as 500ms, 5s, 2m, 1h or 1d")
    return milliseconds


def pair(text: str) -> tuple[str, str]:
    """`name=value`."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def moment(text: str) -> int:
    """Unix milliseconds from a number, `now`, a duration before now (`15m`), or ISO 8601 (local time unless it has a
    zone)."""
    if (milliseconds := decimal(text)) is not None:
        return milliseconds
    now = datetime.now().astimezone()
    if text == "now":
        return int(now.timestamp() * 1000)
    try:
        if (ago := amount(text, MILLISECONDS)) is not None:
            return int((now - timedelta(milliseconds=ago)).timestamp() * 1000)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; give 2026-01-31T12:00, 15m (ago), now, or Unix milliseconds"
        ) from None
