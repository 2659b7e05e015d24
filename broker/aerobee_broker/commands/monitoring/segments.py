"""`aerobee segments`: the files of the log, how fast it grows, and when the disk is full."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_proto import admin_v1
    from aerobee_proto.pool import Timestamp

_EXAMPLES = """\
  aerobee segments
  aerobee segments --json | jq .fullIn                 seconds; absent: the disk is never full
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "segments",
        "show the segments of the log, and when the disk is full",
        run,
        details="Of a running broker; `aerobee store inspect` reads the files of any store.",
        examples=_EXAMPLES,
    )
    options.add_endpoint(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    log = with_client(arguments, lambda client: client.admin.segments())
    if arguments.json:
        answer = output.protobuf_json(log)
        del answer["status"], answer["nextPageToken"]
        output.print_json(answer)
        return 0
    output.print_facts(
        [
            ("segments", len(log.segments)),
            ("used", output.size_text(sum(segment.used for segment in log.segments))),
            ("grows by", f"{output.size_text(round(log.growth_bytes_per_day))} a day"),
            ("disk full in", full_text(log)),
            ("messages kept for", f"{log.retention_hours:g} hours"),
        ]
    )
    print()
    output.print_table(
        ("from byte", "used", "of", "first message", "last message", "removed", "file"),
        (
            (
                segment.physical_offset,
                output.size_text(segment.used),
                output.size_text(segment.size),
                _time(segment.begin_timestamp),
                _time(segment.end_timestamp),
                _time(segment.expire_timestamp),
                segment.path,
            )
            for segment in log.segments
        ),
        empty="no segments",
        least=("file", "of", "used"),
    )
    return 0


def full_text(log: admin_v1.ListSegmentsResponse) -> str:
    """When the disk is full, for people."""
    if not log.HasField("full_in"):
        return "never: older messages expire before" if log.growth_bytes_per_day else "not known yet"
    return output.span_text(log.full_in.ToMilliseconds())


def _time(moment: Timestamp) -> str:
    """An unset one is 0."""
    return output.short_time_text(moment.ToMilliseconds()) if moment.ToMilliseconds() else "-"
