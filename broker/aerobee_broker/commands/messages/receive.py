"""`aerobee receive`: receive messages for a group."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import fields, options, output
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client
from aerobee_store.records.properties import KEY_SEPARATOR, KEYS, TAGS
from aerobee_store.records.tag_expression import tags_of

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client, StoredMessage

_EXAMPLES = """\
  aerobee receive orders --group billing
  aerobee receive orders --group billing --max 100 --json
  aerobee receive orders --group billing --follow
  aerobee receive orders --group billing --tags "paid || refunded" --wait 20
  aerobee receive orders --group billing --sql "amount > 100 AND region = 'north'"
  aerobee receive orders --group billing --no-ack                   peek: changes nothing
  aerobee receive orders --group billing --no-ack --invisible 60    deliver; the messages return after a minute
"""
_DETAILS = "Prints available messages, up to --max. Waits only for the first one."
_INVISIBLE_SECONDS = 30.0
_PEEK_SECONDS = 0.2  # between two looks of a peek that has found nothing
_EVERYTHING = (1 << 31) - 1  # messages of a backlog: the filter decides which of them count
_COUNT = 10
_FOLLOW_SECONDS = 20.0  # of one wait of --follow
_RECEIVE_MAX = 32  # as many as RocketMQ's server puts into one answer


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "receive", "receive and acknowledge messages", run, details=_DETAILS, examples=_EXAMPLES
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--group", required=True, help="the consumer group that receives")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tags", metavar="TAGS", default="*", help='tag expression such as "a || b" (default: all)')
    what.add_argument("--sql", metavar="CONDITION", help='condition over message properties, such as "price > 5"')
    parser.add_argument("--max", metavar="N", type=options.count, help="at most N messages (default: 10)")
    parser.add_argument("--follow", action="store_true", help="receive until Ctrl-C, or until --max messages")
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=options.seconds,
        default=5.0,
        help="time to wait for the first message (default: 5)",
    )
    parser.add_argument(
        "--no-ack",
        action="store_true",
        help="peek: show the messages that the group has not finished, and change nothing",
    )
    parser.add_argument(
        "--invisible",
        metavar="SECONDS",
        type=options.positive_seconds,
        help="invisible time of messages that are not acknowledged (default: 30); with --no-ack: count as a delivery "
        "and return after this time",
    )
    fields.add_format(parser)
    options.add_endpoint(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.follow and arguments.no_ack:
        options.usage_error("--follow acknowledges; to watch without receiving use: aerobee tail TOPIC")
    if arguments.max is None:
        arguments.max = sys.maxsize if arguments.follow else _COUNT
    if arguments.sql is None:
        try:
            tags_of(arguments.tags)
        except ValueError as error:
            raise CommandError(str(error)) from None
    if not arguments.no_ack:
        return _receive(arguments)
    if arguments.invisible is None:
        return _peek(arguments)
    if arguments.sql is not None or arguments.tags.strip() not in ("", "*"):
        # A receive finishes what its filter does not select, which nobody expects of --no-ack.
        options.usage_error("--no-ack --invisible goes without --tags and --sql; leave out --invisible to peek")
    return _receive(arguments)


def _peek(arguments: argparse.Namespace) -> int:
    import asyncio

    from aerobee_broker.errors import InvalidFilterError
    from aerobee_broker.filters.message_filter import filter_of

    try:
        wanted = filter_of(arguments.sql or arguments.tags, is_sql=arguments.sql is not None)
    except InvalidFilterError as error:
        raise CommandError(str(error)) from None

    async def work(client: Client) -> list[StoredMessage]:
        deadline = time.monotonic() + arguments.wait
        while True:
            found: list[StoredMessage] = []
            unfinished = client.admin.query(arguments.topic, unfinished_by=arguments.group, max_count=_EVERYTHING)
            async for message in unfinished:
                if wanted.selects(message.tag, _stored_properties(message)):
                    found.append(message)
                    if len(found) == arguments.max:
                        return found
            if found or (left := deadline - time.monotonic()) <= 0:
                return found
            await asyncio.sleep(min(left, _PEEK_SECONDS))

    found = with_client(arguments, work)
    empty = f"no message for group {arguments.group} in {arguments.topic} within {arguments.wait:g} s"
    output.print_found(arguments, found, "message id", lambda message: message.message_id, empty=empty)
    return 0


def _stored_properties(message: StoredMessage) -> dict[str, str]:
    """The properties that a condition sees."""
    named = {TAGS: message.tag or "", KEYS: KEY_SEPARATOR.join(message.keys)}
    return {**message.properties, **{name: value for name, value in named.items() if value}}


def _receive(arguments: argparse.Namespace) -> int:
    from aerobee_client import SqlFilter

    invisible = _INVISIBLE_SECONDS if arguments.invisible is None else arguments.invisible

    async def work(client: Client) -> int:
        await _check_topic(client, arguments.topic)
        wanted = arguments.tags if arguments.sql is None else SqlFilter(arguments.sql)
        consumer = client.simple_consumer(arguments.group, {arguments.topic: wanted})
        count = 0
        while count < arguments.max:
            batch = await consumer.receive(
                min(arguments.max - count, _RECEIVE_MAX),
                invisible_seconds=invisible,
                wait_seconds=_FOLLOW_SECONDS if arguments.follow else 0.0 if count else arguments.wait,
            )
            if not batch and arguments.follow:
                continue
            if not batch:
                break
            # Printed before the acknowledgement: after a failure in between, a message comes twice but is never lost.
            if arguments.follow:
                for message in batch:
                    output.print_message_line(arguments, message)
            else:
                output.print_found(arguments, batch, "attempt", lambda message: message.delivery_attempt)
            if not arguments.no_ack:
                await consumer.ack(batch)
            count += len(batch)
        return count

    if not with_client(arguments, work) and not arguments.json and arguments.format is None:
        print(f"no message for group {arguments.group} in {arguments.topic} within {arguments.wait:g} s")
    return 0


async def _check_topic(client: Client, topic: str) -> None:
    """NotFoundError for a topic that does not exist: a broker for development would create one that was mistyped, and
    the command would wait for its messages."""
    from aerobee_client import ForbiddenError, UnsupportedError

    with suppress(UnsupportedError, ForbiddenError):  # a server of RocketMQ; or the receive itself is refused
        await client.admin.describe_topic(topic)
