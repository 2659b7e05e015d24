"""`aerobee query`: find messages without receiving them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import fields, options, output, timeline
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client, StoredMessage

_EXAMPLES = """\
  aerobee query orders --key order-7
  aerobee query orders --key order-7 --begin 2026-01-31T12:00 --end now
  aerobee query orders --id 0102FC000000014AB00B13010700000000
  aerobee query orders --time 15m now --max 1000 --json
  aerobee query orders --backlog billing                                      messages that a group has not finished
  aerobee query rooms --lite-topic room-7
  aerobee query orders --id 0102FC000000014AB00B13010700000000 --timeline     with its events and state
  aerobee query orders --key order-7 --history --group billing                with each delivery to one group
"""
_DETAILS = "Times: 2026-01-31T12:00 (local), 15m (ago; s, m, h, d), now, or Unix milliseconds."


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "query", "find messages by key, id or time", run, details=_DETAILS, examples=_EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--key", help="a key of the message")
    what.add_argument("--id", metavar="ID", help="message id, as printed by a send")
    what.add_argument(
        "--time", metavar=("BEGIN", "END"), nargs=2, type=options.moment, help="messages stored between these times"
    )
    what.add_argument("--backlog", metavar="GROUP", help="messages that this group has not finished")
    what.add_argument("--lite-topic", metavar="NAME", help="messages of this lite topic")
    parser.add_argument("--begin", metavar="TIME", type=options.moment, help="stored at or after this time")
    parser.add_argument("--end", metavar="TIME", type=options.moment, help="stored at or before this time")
    parser.add_argument("--max", metavar="N", type=options.count, default=64, help="at most N messages (default: 64)")
    parser.add_argument("--timeline", action="store_true", help="show the events and the state of each message")
    parser.add_argument(
        "--history", action="store_true", help="the same with every delivery, from the delivery journal"
    )
    parser.add_argument("--group", default="", help="with --timeline: only of this group")
    fields.add_format(parser)
    options.add_endpoint(parser)


def run(arguments: argparse.Namespace) -> int:
    begin, end = arguments.time or (arguments.begin, arguments.end)
    if (arguments.id or arguments.time) and (arguments.begin, arguments.end) != (None, None):
        options.usage_error("--begin and --end go with --key, --backlog and --lite-topic, not with an id or --time")
    if begin is not None and end is not None and begin > end:
        options.usage_error("the begin is after the end; swap them")
    if arguments.timeline or arguments.history:
        return timeline.show(arguments, begin, end)
    if arguments.group:
        options.usage_error("--group goes with --timeline or --history")

    async def work(client: Client) -> list[StoredMessage]:
        messages = []
        async for message in client.admin.query(
            arguments.topic,
            key=arguments.key,
            message_id=arguments.id,
            unfinished_by=arguments.backlog,
            lite_topic=arguments.lite_topic,
            begin=begin,
            end=end,
            max_count=arguments.max,
        ):
            messages.append(message)
            if arguments.json:
                output.print_json(output.message_json(message))
        return messages

    messages = with_client(arguments, work)
    if not messages and (arguments.id or arguments.key):
        raise CommandError(f"no such message in {arguments.topic}", exit_code=options.NOT_FOUND)
    if not arguments.json and not messages:
        print(f"no such message in {arguments.topic}")
    elif not arguments.json:
        output.print_found(arguments, messages, "message id", lambda message: message.message_id)
    return 0
