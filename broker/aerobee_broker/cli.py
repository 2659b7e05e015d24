"""The command `aerobee`: arguments in, exit code out. One module in `commands/` for each sub-command.

Exit codes: 0 success; 1 failure, with one line on standard error that names cause and next step; 2 invalid arguments,
or a store that cannot be read; 3 what was asked for does not exist. Only the module of the command that runs is
imported, and heavy modules only when it runs.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from aerobee_broker.commands.terminal import contexts
from aerobee_broker.commands.terminal.options import NOT_FOUND, CommandError, HelpFormatter, add_debug, complete_advice

# Each command with its module in `commands/`, in the order of the help.
_MODULES: Final = {
    **{name: name for name in ("serve", "status", "topic", "group", "subscription", "client")},
    **{name: f"messages.{name}" for name in ("send", "receive", "browse", "tail", "delayed", "transaction")},
    **{name: f"monitoring.{name}" for name in ("top", "problems", "check", "operations", "segments")},
    "definitions": "definitions",
    **{"context": "shell.context", "completion": "shell.completion"},
    **{"query": "messages.query", "dlq": "dlq", "account": "account", "config": "configuration", "store": "store"},
    **{name: name for name in ("spark", "bench", "console", "namesrv", "replication")},
    **{"promote": "replication", "version": "version"},
}
_WITHOUT_CONTEXT: Final = ("serve", "namesrv", "store", "context", "version")
"""Commands that use no broker, or whose environment has another meaning."""
_CHOICE: Final = re.compile(r"(?<=invalid choice: )'([^']*)' \(choose from (.*)\)")
_EXAMPLES = """\
examples:
  aerobee serve --dev                       start a development broker on 127.0.0.1:8081
  aerobee topic create orders --queues 8    create a topic
  aerobee send orders "hello" --key 42      send a message
  aerobee receive orders --group billing    receive and acknowledge messages
  aerobee query orders --key 42             find messages without receiving them
  aerobee tail orders                       watch messages go by
  aerobee group lag billing                 show the lag of a group
  aerobee dlq list                          list groups with dead letters
  aerobee store verify data                 check every byte of a store

`aerobee COMMAND --help` shows the options of a command, with examples.
"""


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of the whole command line, or of one command alone, which takes a fifth of the time."""
    parser = _Parser(
        prog="aerobee",
        description="A durable message broker that speaks RocketMQ 5's protocol and keeps RocketMQ's store.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    add_debug(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in dict.fromkeys(_MODULES.values()) if command is None else (_MODULES[command],):
        import_module(f"aerobee_broker.commands.{module}").add_parser(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """Names the word that was probably meant. argparse makes the parsers of commands of the same class."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Nothing is left over by the parser of a command, whose usage then helps; that of the whole has no options."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest and self._subparsers is None:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            meant = _similar(rest[0].partition("=")[0], known)
            hint = f"did you mean {meant}?" if meant else f"`{self.prog} --help` shows what it takes"
            self.error(f"unrecognized arguments: {' '.join(rest)}; {hint}")
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        choice = _CHOICE.search(message)
        if choice and (meant := _similar(choice[1], re.findall(r"[\w.-]+", choice[2]))):
            message = f"{message[: choice.start()]}{choice[1]!r}; did you mean {meant}?"
        super().error(message)


def _similar(word: str, known: Sequence[str]) -> str:
    """The known words that are alike; empty if there are none."""
    from difflib import get_close_matches

    return " or ".join(get_close_matches(word, known, n=2, cutoff=0.7))


class _PrintVersion(argparse.Action):
    """Like argparse's own action, but looks up the version on request only, because that would slow every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from aerobee_broker.commands import version

        print(version.text())
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments` default to those of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments and arguments[0] in _MODULES else None
    if command not in _WITHOUT_CONTEXT:
        try:
            contexts.apply(os.environ)
        except CommandError as error:
            print(f"aerobee: {error}", file=sys.stderr)
            return error.exit_code
    parsed = build_parser(command).parse_args(arguments)
    parsed.command_names, parsed.build_parser = list(_MODULES), build_parser  # for completion
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a damaged store contains text that no terminal can show
            stream.reconfigure(errors="backslashreplace")
    # gRPC's C library prints lines about connections to standard error; our messages tell the next step.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130  # the exit code that shells report for SIGINT
    except BrokenPipeError:
        # The reader of our output has closed it (`| head`). Python would complain on flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the boundary to the user: every error becomes one line
        if getattr(parsed, "debug", False):
            raise
        line = complete_advice(" ".join(error_line(error).split()), parsed)
        print(f"aerobee: {line}", file=sys.stderr)
        return _exit_code(error)


def _exit_code(error: Exception) -> int:
    from aerobee_client import NotFoundError

    if isinstance(error, CommandError):
        return error.exit_code
    return NOT_FOUND if any(isinstance(cause, NotFoundError) for cause in _leaves(error)) else 1


def error_line(error: Exception) -> str:
    """Cause and next step of `error`, in our own words for known errors."""
    from aerobee_broker.errors import BrokerError
    from aerobee_client import ClientError
    from aerobee_store.errors import StoreError

    causes = list(_leaves(error))
    for cause in causes:
        if isinstance(cause, CommandError | BrokerError | ClientError | StoreError):
            return str(cause)
    for cause in causes:
        if isinstance(cause, OSError):
            where = f"{cause.filename}: " if cause.filename is not None else ""
            return f"{where}{cause.strerror or cause}; check the path, its owner and its permissions"
    return (
        f"internal error: {type(causes[0]).__name__}: {causes[0]}; run it again with --debug and report the traceback"
    )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, or the single error."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
