"""`aerobee receive`: receive messages for a group."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client, ReceivedMessage

_EXAMPLES = """\
  aerobee receive orders --group billing
  aerobee receive orders --group billing --max 100 --json
  aerobee receive orders --group billing --tags "paid || refunded" --wait 20
  aerobee receive orders --group billing --sql "amount > 100 AND region = 'north'"
  aerobee receive orders --group billing --no-ack --invisible 60    peek; the messages return after a minute
"""
_DETAILS = "Prints available messages, up to --max. Waits only for the first one."
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
    parser.add_argument("--max", metavar="N", type=options.count, default=10, help="at most N messages (default: 10)")
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=options.seconds,
        default=5.0,
        help="time to wait for the first message (default: 5)",
    )
    parser.add_argument("--no-ack", action="store_true", help="do not acknowledge: the messages are delivered again")
    parser.add_argument(
        "--invisible",
        metavar="SECONDS",
        type=options.positive_seconds,
        default=30.0,
        help="invisible time of messages that are not acknowledged (default: 30)",
    )
    options.add_endpoint(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from aerobee_client import SqlFilter

    async def work(client: Client) -> list[ReceivedMessage]:
        wanted = arguments.tags if arguments.sql is None else SqlFilter(arguments.sql)
        consumer = client.simple_consumer(arguments.group, {arguments.topic: wanted})
        received: list[ReceivedMessage] = []
        while len(received) < arguments.max:
            batch = await consumer.receive(
                min(arguments.max - len(received), _RECEIVE_MAX),
                invisible_seconds=arguments.invisible,
                wait_seconds=0.0 if received else arguments.wait,
            )
            if not batch:
                break
            # Printed before the acknowledgement: after a failure in between, a message comes twice but is never lost.
            if arguments.json:
                for message in batch:
                    output.print_json(output.message_json(message))
            else:
                output.print_messages(batch, "attempt", lambda message: message.delivery_attempt)
            if not arguments.no_ack:
                await consumer.ack(batch)
            received += batch
        return received

    received = with_client(arguments, work)
    if not received and not arguments.json:
        print(f"no message for group {arguments.group} in {arguments.topic} within {arguments.wait:g} s")
    return 0
