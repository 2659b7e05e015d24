"""`aerobee send`: messages from the command line or standard input."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import time
from typing import TYPE_CHECKING, BinaryIO

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client, Message, SendResult

_EXAMPLES = """\
  aerobee send orders "hello"
  aerobee send orders '{"amount": 12}' --tag paid --key order-7 --property region=north
  aerobee send orders - < body.bin
  aerobee send orders "test" --count 1000
  tail -f access.log | aerobee send requests --lines          each line is a message
  aerobee query orders --time 1h now --json | aerobee send copies --jsonl
"""
_BATCH_COUNT = 1024
_LINES_SIZE = 1 << 20  # bytes of lines that are sent together, beyond one line


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "send", "send messages", run, examples=_EXAMPLES)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("body", metavar="BODY", nargs="?", default="-", help="text, or - for standard input (default)")
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--lines", action="store_true", help="each line of standard input is a message")
    many.add_argument(
        "--jsonl",
        action="store_true",
        help="each line of standard input is a message as --json of query, browse and receive prints it: body, tag, "
        "keys, properties and message group are sent",
    )
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


def _message(arguments: argparse.Namespace) -> Message:
    from aerobee_client import Message

    if arguments.body == "-":
        if sys.stdin.isatty():
            options.usage_error("no body; give one after the topic, or pipe it in")
        body = sys.stdin.buffer.read()
    else:
        body = os.fsencode(arguments.body)
    delay = arguments.delay
    return Message(
        topic=arguments.topic,
        body=body,
        tag=arguments.tag,
        keys=tuple(arguments.key),
        properties=dict(arguments.property),
        message_group=arguments.message_group,
        delivery_timestamp=None if delay is None else int((time.time() + delay) * 1000),
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.lines or arguments.jsonl:
        return _send_lines(arguments)
    message = _message(arguments)

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


def _send_lines(arguments: argparse.Namespace) -> int:
    """Send what comes, in batches of what is there: a line of a slow program does not wait for others."""
    if arguments.body != "-" or arguments.count != 1:
        options.usage_error("--lines and --jsonl read standard input; leave out BODY and --count")
    message_of = _message_of_json if arguments.jsonl else _message_of_line

    async def work(client: Client) -> int:
        producer = client.producer()
        count = 0
        lines = _Lines(sys.stdin.buffer)
        while batch := await asyncio.to_thread(lines.next_batch):
            messages = [message_of(arguments, number, line) for number, line in batch]
            for message, result in zip(messages, await producer.send_many(messages), strict=True):
                if arguments.json:
                    output.print_json(_result_json(message, result))
            count += len(messages)
        return count

    import asyncio

    began = time.monotonic()
    count = with_client(arguments, work)
    if not arguments.json:
        print(f"sent {output.counted(count, 'message')} to {arguments.topic} in {time.monotonic() - began:.2f} s")
    return 0


class _Lines:
    """The lines of a stream, with their numbers."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._number = 0
        self._rest = b""

    def next_batch(self) -> list[tuple[int, bytes]]:
        """Waits for one line, and takes those that have come with it; empty at the end. Empty lines are left out."""
        batch: list[tuple[int, bytes]] = []
        while not batch:
            read = getattr(self._stream, "read1", self._stream.read)
            data = read(_LINES_SIZE)
            if not data:
                lines, self._rest = ([self._rest] if self._rest else []), b""
            else:
                *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._number += 1
                if line.strip():
                    batch.append((self._number, line.removesuffix(b"\r")))
            if not data:
                break
        return batch


def _message_of_line(arguments: argparse.Namespace, _number: int, line: bytes) -> Message:
    from aerobee_client import Message

    return Message(
        topic=arguments.topic,
        body=line,
        tag=arguments.tag,
        keys=tuple(arguments.key),
        properties=dict(arguments.property),
        message_group=arguments.message_group,
    )


def _message_of_json(arguments: argparse.Namespace, number: int, line: bytes) -> Message:
    """What the line says; options of the command override it. CommandError with the number of a wrong line."""
    from aerobee_client import Message

    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("it is no object")
        body = fields.get("body")
        data = base64.b64decode(fields["bodyBase64"], validate=True) if body is None else str(body).encode()
        properties = {str(name): str(value) for name, value in (fields.get("properties") or {}).items()}
        return Message(
            topic=arguments.topic,
            body=data,
            tag=arguments.tag or fields.get("tag"),
            keys=tuple(arguments.key) or tuple(map(str, fields.get("keys") or ())),
            properties=properties | dict(arguments.property),
            message_group=arguments.message_group or fields.get("messageGroup"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(
            f"line {number} is not a message ({error}); each line needs JSON with body or bodyBase64, as "
            "`aerobee query --json` prints it. The lines before it may have been sent"
        ) from None


def _result_json(message: Message, result: SendResult) -> dict[str, object]:
    recall = {"recallHandle": result.recall_handle} if result.recall_handle else {}
    return {
        "topic": message.topic,
        "messageId": result.message_id,
        "queueOffset": result.queue_offset,
        **recall,
    }
