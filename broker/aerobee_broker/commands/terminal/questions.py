"""What is asked before something is lost: `--yes`, `--dry-run`, and a question on a terminal.

A deed is what a command is about to do, as it reads after "would": "delete 3 dead letters of billing".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from aerobee_broker.commands.terminal import output
from aerobee_broker.commands.terminal.options import CommandError


def add_confirmation(parser: argparse.ArgumentParser, what: str) -> None:
    """`--yes` and `--dry-run` of a command that loses something; `what` is what a dry run tells."""
    parser.add_argument("--yes", action="store_true", help="do not ask; without a terminal nobody is asked")
    parser.add_argument("--dry-run", action="store_true", help=f"only tell {what}")


def go_on(
    arguments: argparse.Namespace, deed: str, fields: Mapping[str, object], *, loses_anything: bool = True
) -> bool:
    """Whether the deed is to be done. A dry run tells it instead, with `fields` as JSON; a person is asked.

    CommandError if a person does not say yes.
    """
    if arguments.dry_run:
        output.print_result({**fields, "dryRun": True}, f"would {deed}", as_json=arguments.json)
        return False
    if loses_anything:
        confirm(arguments, deed)
    return True


def confirm(arguments: argparse.Namespace, deed: str) -> None:
    """Ask, if a person is there who has not said yes already. CommandError if the answer is not yes."""
    if arguments.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(f"this will {deed}; go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")
