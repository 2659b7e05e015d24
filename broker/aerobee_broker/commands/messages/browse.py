"""`aerobee browse`: messages of a topic by time, offset and content, without a group."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import fields, options, output
from aerobee_broker.commands.terminal.options import new_command, with_client
from aerobee_store.records.decimals import decimal

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client, StoredMessage

_EXAMPLES = """\
  aerobee browse orders                                        the last 10 messages
  aerobee browse orders --last 100 --grep "order-7"
  aerobee browse orders --from 15m --max 1000 --json | aerobee send copies --jsonl
  aerobee browse orders --offset 3:1200 --tags paid
  aerobee browse orders --sql "amount > 100" --format '{storeTimestamp} {properties.amount} {body}'
"""
_DETAILS = "Oldest message last to read, first to print. Nothing is received, and no group is concerned."


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "browse", "look at messages of a topic", run, details=_DETAILS, examples=_EXAMPLES)
    parser.add_argument("topic", metavar="TOPIC")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--last", metavar="N", type=options.count, help="the last N messages (default: 10)")
    where.add_argument("--from", dest="begin", metavar="TIME", type=options.moment, help="stored at this time or later")
    where.add_argument(
        "--offset", metavar="QUEUE:N", type=_place, help="of this queue from this offset on; N: of every queue"
    )
    parser.add_argument("--to", dest="end", metavar="TIME", type=options.moment, help="stored before this time")
    parser.add_argument("--max", metavar="N", type=options.count, default=100, help="at most N (default: 100)")
    add_selection(parser)
    fields.add_format(parser)
    options.add_endpoint(parser)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """`--tags`, `--sql` and `--grep`."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--tags", "--tag", metavar="TAGS", default="", help='only these tags, such as "a || b" (default: all)'
    )
    what.add_argument("--sql", metavar="CONDITION", default="", help='condition over properties, such as "price > 5"')
    parser.add_argument(
        "--grep", metavar="TEXT", default="", help="only messages with this text in tag, keys, properties or body"
    )


def _place(text: str) -> tuple[int | None, int]:
    queue, colon, offset = text.rpartition(":")
    numbers = decimal(queue) if colon else None, decimal(offset)
    if numbers[1] is None or (colon and numbers[0] is None):
        raise argparse.ArgumentTypeError(f"{text!r} is no place; give QUEUE:OFFSET, such as 3:1200, or an offset")
    return numbers[0], numbers[1]


def run(arguments: argparse.Namespace) -> int:
    forwards = arguments.begin is not None or arguments.offset is not None
    queue_id, begin_offset = arguments.offset or (None, None)
    count = arguments.max if forwards else arguments.last or min(10, arguments.max)

    async def work(client: Client) -> list[StoredMessage]:
        found = client.admin.browse(
            arguments.topic,
            oldest_first=forwards,
            queue_ids=[] if queue_id is None else [queue_id],
            begin_offset=begin_offset,
            begin=arguments.begin,
            end=arguments.end,
            tags=arguments.tags,
            sql=arguments.sql,
            text=arguments.grep,
            max_count=count,
        )
        return [message async for message in found]

    messages = with_client(arguments, work)
    if not forwards:
        messages.reverse()  # the newest one is the last line
    empty = f"no such message in {arguments.topic}"
    output.print_found(arguments, messages, "message id", lambda message: message.message_id, empty=empty)
    return 0
