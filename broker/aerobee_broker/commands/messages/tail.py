"""`aerobee tail`: messages of a topic as they are stored."""

from __future__ import annotations

import argparse
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

from aerobee_broker.commands.messages.browse import add_selection
from aerobee_broker.commands.terminal import fields, options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client

_EXAMPLES = """\
  aerobee tail orders
  aerobee tail orders --last 5 --tags paid --grep "order-7"
  aerobee tail orders --format '{storeTimestamp} {body}'
"""
_DETAILS = "Runs until Ctrl-C. No group takes part and no trace is left. Of more than --rate a second, the newest come."


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "tail", "watch the messages of a topic", run, details=_DETAILS, examples=_EXAMPLES)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--last", metavar="N", type=int, default=0, help="begin with the last N messages (up to 100)")
    parser.add_argument("--max", metavar="N", type=options.count, help="end after N messages")
    parser.add_argument(
        "--rate", metavar="N", type=options.count, default=50, help="at most N messages a second (default: 50; 1000)"
    )
    add_selection(parser)
    fields.add_format(parser)
    options.add_endpoint(parser)


def run(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> int:
        left = arguments.max
        is_first = True
        tail = client.admin.tail(
            arguments.topic,
            tags=arguments.tags,
            sql=arguments.sql,
            text=arguments.grep,
            rate_max=arguments.rate,
            last_count=arguments.last,
        )
        async with aclosing(tail) as items:
            async for item in items:
                if is_first and item.bodies_hidden:
                    print("bodies are hidden: the account may not receive from the topic", file=sys.stderr)
                is_first = False
                for message in item.messages if left is None else item.messages[:left]:
                    output.print_message_line(arguments, message)
                if item.dropped:
                    dropped = output.counted(item.dropped, "message")
                    print(f"left out {dropped}: more than {arguments.rate} a second", file=sys.stderr)
                if left is not None:
                    left -= len(item.messages)
                    if left <= 0:
                        return 0
        return 0

    return with_client(arguments, work)
