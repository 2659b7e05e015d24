"""`aerobee version`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal.options import new_command

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands


def add_parser(commands: Commands) -> None:
    new_command(commands, "version", "print the version", run, examples="  aerobee version")


def run(_arguments: argparse.Namespace) -> int:
    print(text())
    return 0


def text() -> str:
    """Name and version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"aerobee {version('aerobee')}"
    except PackageNotFoundError:  # the source tree, used without being installed
        return "aerobee (not installed)"
