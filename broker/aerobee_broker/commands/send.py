"""`aerobee send`: messages from the command line or standard input."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client, Message, SendResult

_EXAMPLES = """\
  aerobee send orders "hello"
  aerobee send orders '{"amount": 12}' --tag paid --key order-7 --property region=north
  aerobee send orders - < body.bin
  aerobee send orders "test" --count 1000
"""
_BATCH_COUNT = 1024


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "send", "send messages", run, examples=_EXAMPLES)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("body", metavar="BODY", nargs="?", default="-", help="text, or - for standard input (default)")
    parser.add_argument("--tag", help="the tag that consumers filter by")
    parser.add_argument("--key", action="append", default=[], help="an index key for queries; may be repeated")
    parser.add_argument("--property", metavar="NAME=VALUE", type=options.pair, action="append", default=[])
    parser.add_argument(
        "--message-group", metavar="NAME", help="message group, whose messages keep their order (FIFO topics)"
    )
    parser.add_argument("--delay", metavar="SECONDS", type=options.seconds, help="delay before delivery (DELAY topics)")
    parser.add_argument(
        "--count", metavar="N", type=options.count, default=1, help="send the message N times (default: 1)"
    )
    options.add_endpoint(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from aerobee_client import Message

    if arguments.body == "-":
        if sys.stdin.isatty():
            options.usage_error("no body; give one after the topic, or pipe it in")
        body = sys.stdin.buffer.read()
    else:
        body = os.fsencode(arguments.body)
    delay = arguments.delay
    message = Message(
        topic=arguments.topic,
        body=body,
        tag=arguments.tag,
        keys=tuple(arguments.key),
        properties=dict(arguments.property),
        message_group=arguments.message_group,
        delivery_timestamp=None if delay is None else int((time.time() + delay) * 1000),
    )

    async def work(client: Client) -> None:
        producer = client.producer()
        began = time.monotonic()
        left = arguments.count
        while left:
            batch = min(left, _BATCH_COUNT)
            results = await producer.send_many([message] * batch) if batch > 1 else [await producer.send(message)]
            left -= batch
            if arguments.json:
                for result in results:
                    output.print_json(_result_json(message, result))
        if not arguments.json:
            if arguments.count == 1:
                print(f"sent to {message.topic}: message id {results[0].message_id}, offset {results[0].queue_offset}")
            else:
                print(f"sent {arguments.count:,} messages to {message.topic} in {time.monotonic() - began:.2f} s")

    with_client(arguments, work)
    return 0


def _result_json(message: Message, result: SendResult) -> dict[str, object]:
    recall = {"recallHandle": result.recall_handle} if result.recall_handle else {}
    return {
        "topic": message.topic,
        "messageId": result.message_id,
        "queueOffset": result.queue_offset,
        **recall,
    }
