"""`aerobee problems`: what needs attention, as the broker judges it, each with its next step."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee problems
  aerobee problems --json | jq -r '.[].nextStep'
"""
_WIDTH = 100  # of lines without a terminal


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "problems",
        "show what needs attention, with the next step",
        run,
        details="Critical problems come first. `aerobee check` is for monitoring.",
        examples=_EXAMPLES,
    )
    options.add_endpoint(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    problems = with_client(arguments, lambda client: client.admin.problems())
    if arguments.json:
        output.print_json([output.protobuf_json(problem) for problem in problems])
    else:
        print("\n\n".join(map(problem_text, problems)) or "nothing needs attention")
    return 0


def problem_text(problem: admin_v1.Problem) -> str:
    """What is the matter and what to do, in lines that fit the terminal."""
    from aerobee_proto import admin_v1

    since = ""
    if problem.HasField("since_timestamp"):
        since = f", for {output.age_text(problem.since_timestamp.ToMilliseconds())}"
    severity = admin_v1.Severity.Name(problem.severity).removeprefix("SEVERITY_").lower()
    heading = f"{severity}: {problem.summary} ({problem.name}{since})"
    return "\n".join([*_wrapped(heading), *_wrapped(problem.next_step, "  ")])


def _wrapped(text: str, indent: str = "") -> list[str]:
    width = output.terminal_width() or _WIDTH
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
