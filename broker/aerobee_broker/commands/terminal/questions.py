"""What is asked before something is lost: `--yes`, `--dry-run`, and a question on a terminal."""

from __future__ import annotations

import argparse
import sys

from aerobee_broker.commands.terminal.options import CommandError


def add_confirmation(parser: argparse.ArgumentParser, what: str) -> None:
    """`--yes` and `--dry-run` of a command that loses something; `what` is what a dry run tells."""
    parser.add_argument("--yes", action="store_true", help="do not ask; without a terminal nobody is asked")
    parser.add_argument("--dry-run", action="store_true", help=f"only tell {what}")


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Ask, if a person is there who has not said yes already. CommandError if the answer is not yes."""
    if arguments.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")
