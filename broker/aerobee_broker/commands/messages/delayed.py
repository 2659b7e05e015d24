"""`aerobee delayed`: messages that wait for their delivery time: list them, and recall them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from aerobee_broker.commands.terminal import options, outcomes, output, questions
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client
from aerobee_broker.message_json import waiting_message_json

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1

    Results = list[admin_v1.RecallDelayedMessagesResponse.Result]

_EXAMPLES = """\
  aerobee delayed list                       the next ones of all topics
  aerobee delayed list orders --end 2026-02-01
  aerobee delayed recall orders --id 0102FC000000014AB00B13010700000000
  aerobee delayed recall orders --all --dry-run
"""
_RECALL_DETAILS = (
    "They are never delivered. A message with a delay level, or one that RocketMQ stored, cannot be recalled."
)
_RECALL_COUNT = 1000  # the limit of a request


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "delayed", "list and recall delayed messages", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = new_command(
        actions, "list", "list delayed messages by delivery time", _list, examples="  aerobee delayed list orders"
    )
    listing.add_argument("topic", metavar="TOPIC", nargs="?", default="", help="(default: all topics)")
    listing.add_argument("--max", metavar="N", type=options.count, default=100, help="at most N (default: 100)")
    recall = new_command(
        actions,
        "recall",
        "recall delayed messages",
        _recall,
        details=_RECALL_DETAILS,
        examples="  aerobee delayed recall orders --id 0102FC000000014AB00B13010700000000\n"
        "  aerobee delayed recall orders --all --begin 2026-02-01 --end 2026-02-02",
    )
    recall.add_argument("topic", metavar="TOPIC")
    which = recall.add_mutually_exclusive_group(required=True)
    which.add_argument("--id", metavar="ID", action="append", default=[], help="message id; may be repeated")
    which.add_argument("--all", action="store_true", help="all of the topic, or those between --begin and --end")
    questions.add_confirmation(recall, "how many would be recalled")
    for action in (listing, recall):
        action.add_argument("--begin", metavar="TIME", type=options.moment, help="due at or after this time")
        action.add_argument("--end", metavar="TIME", type=options.moment, help="due before this time")
        options.add_endpoint(action)
        options.add_json(action)


def _list(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> list[admin_v1.DelayedMessage]:
        found = client.admin.delayed_messages(
            arguments.topic, begin=arguments.begin, end=arguments.end, max_count=arguments.max
        )
        return [message async for message in found]

    messages = with_client(arguments, work)
    if arguments.json:
        output.print_json([_json(message) for message in messages])
        return 0
    output.print_table(
        ("due", "topic", "message id", "tag", "keys", "size", "recall"),
        (
            (
                output.short_time_text(each.due_timestamp.ToMilliseconds()),
                each.message.topic.name,
                each.message.system_properties.message_id,
                each.message.system_properties.tag,
                " ".join(each.message.system_properties.keys),
                output.size_text(each.body_size),
                bool(each.recall_handle),
            )
            for each in messages
        ),
        empty="no such message waits",
        least=("size", "tag", "keys", "recall"),
    )
    return 0


def _json(message: admin_v1.DelayedMessage) -> dict[str, Any]:
    fields = waiting_message_json(message.message, message.body_size)
    fields["deliveryTimestamp"] = message.due_timestamp.ToMilliseconds()
    return fields | ({"recallHandle": message.recall_handle} if message.recall_handle else {})


def _recall(arguments: argparse.Namespace) -> int:
    handles = with_client(arguments, lambda client: _handles(client, arguments))
    what = f"{output.counted(len(handles), 'delayed message')} of {arguments.topic}"
    fields = {"topic": arguments.topic, "count": len(handles)}
    if not questions.go_on(arguments, f"recall {what}, never to be delivered", fields, loses_anything=bool(handles)):
        return 0

    async def work(client: Client) -> Results:
        results: Results = []
        for start in range(0, len(handles), _RECALL_COUNT):
            results += await client.admin.recall_delayed(handles[start : start + _RECALL_COUNT])
        return results

    results = with_client(arguments, work)
    return outcomes.print_outcomes(
        arguments,
        results,
        lambda each: each.message_id,
        done="recalled",
        noun="delayed message",
        whose=arguments.topic,
    )


async def _handles(client: Client, arguments: argparse.Namespace) -> list[str]:
    """What recalls the messages that the arguments choose. CommandError for an id that does not wait."""
    wanted = set(arguments.id)
    found: dict[str, str] = {}  # by message id
    handles = []
    async for each in client.admin.delayed_messages(arguments.topic, begin=arguments.begin, end=arguments.end):
        message_id = each.message.system_properties.message_id
        if not arguments.all and message_id not in wanted:
            continue
        found[message_id] = each.recall_handle
        if each.recall_handle:
            handles.append(each.recall_handle)
    _check(wanted, found, arguments.topic)
    return handles


def _check(wanted: Iterable[str], found: dict[str, str], topic: str) -> None:
    for message_id in sorted(wanted):
        if message_id not in found:
            raise CommandError(
                f"no delayed message {message_id!r} waits in {topic}; list them with: aerobee delayed list {topic}",
                exit_code=options.NOT_FOUND,
            )
        if not found[message_id]:
            raise CommandError(
                f"message {message_id!r} cannot be recalled: it has a delay level, or RocketMQ stored it"
            )
