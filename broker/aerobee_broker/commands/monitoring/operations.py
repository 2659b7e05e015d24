"""`aerobee operations`: who changed what in the broker, newest first."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee operations
  aerobee operations --search DeleteTopic --max 1000
  aerobee operations --account alice --json
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "operations",
        "show who changed what",
        run,
        details="The broker keeps the latest 1000 changes by operators, those by RocketMQ's tools among them.",
        examples=_EXAMPLES,
    )
    parser.add_argument("--account", metavar="KEY", default="", help="only changes by this access key")
    parser.add_argument("--search", metavar="TEXT", default="", help="only with this text in the method or request")
    parser.add_argument("--max", metavar="N", type=options.count, default=50, help="at most N (default: 50)")
    options.add_endpoint(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> list[admin_v1.Operation]:
        found = client.admin.operations(account=arguments.account, search=arguments.search, max_count=arguments.max)
        return [operation async for operation in found]

    operations = with_client(arguments, work)
    if arguments.json:
        output.print_json([output.protobuf_json(operation) for operation in operations])
        return 0
    output.print_table(
        ("when", "what", "account", "from", "asked for"),
        (
            (
                output.short_time_text(each.timestamp.ToMilliseconds()),
                each.method,
                each.account or "-",
                each.address,
                each.request,
            )
            for each in operations
        ),
        empty="no such change" if arguments.account or arguments.search else "nothing was changed yet",
        cut=("asked for",),
        least=("from", "account"),
    )
    return 0
