"""What became of many things that one command asked for, of which each may fail alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from aerobee_broker.commands.terminal import output
from aerobee_broker.commands.terminal.options import CommandError

if TYPE_CHECKING:
    from aerobee_proto import admin_v1

ResultT = TypeVar(
    "ResultT",
    "admin_v1.ResendDeadLettersResponse.Result",
    "admin_v1.RecallDelayedMessagesResponse.Result",
    "admin_v1.DecideTransactionsResponse.Result",
)


def print_outcomes(
    arguments: argparse.Namespace,
    results: Sequence[ResultT],
    name: Callable[[ResultT], object],
    *,
    done: str,
    noun: str,
    whose: str,
) -> int:
    """Print one JSON line for each result, or how many went well; return the exit code of success.

    `done` is the participle: "resent". CommandError if some failed, with the first of them.
    """
    from aerobee_proto import v2

    failed = [each for each in results if each.status.code != v2.Code.OK]
    if arguments.json:
        for each in results:
            output.print_json(output.protobuf_json(each))
    else:
        print(f"{done} {output.counted(len(results) - len(failed), noun)} of {whose}")
    if failed:
        raise CommandError(
            f"{len(failed)} of {output.counted(len(results), noun)} were not {done}; the first is {name(failed[0])}: "
            f"{failed[0].status.message}"
        )
    return 0
