"""`aerobee group lag`, `reset` and `skip`: the lag of groups, and changes of their offsets."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output, questions
from aerobee_broker.commands.terminal.options import complete_advice, new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1, v2

    Moves = list[admin_v1.ResetOffsetsResponse.Queue]

_LAG_EXAMPLES = """\
  aerobee group lag                             all groups
  aerobee group lag billing                     by topic and queue
  aerobee group lag billing --json | jq .topics
"""
_LAG_DETAILS = (
    "Lag is the sum of messages in flight (held by a client or returned with a delay) and ready ones. "
    "Retrying messages failed before. Delayed messages are not due yet and do not count as lag."
)
_RESET_EXAMPLES = """\
  aerobee group reset billing orders --to-time 2h              deliver the last two hours again
  aerobee group reset billing orders --to-time 2026-01-31T12:00 --dry-run
  aerobee group reset billing orders --earliest                everything from the oldest message
  aerobee group reset billing orders --latest                  only new messages
  aerobee group reset billing orders --to-offset 1200 --queue 3
  aerobee group reset billing-v2 orders --like billing         where another group is
"""
_RESET_DETAILS = "Consumers may keep running. Messages in flight are dropped: they are delivered again or skipped."
_SKIP_EXAMPLES = """\
  aerobee group skip billing orders --queue 3              the oldest message of queue 3 that is not finished
  aerobee group skip billing orders --queue 3 --count 10
"""
_SKIP_DETAILS = (
    "Use this for a message that crashes its consumers. It stays in the topic; `aerobee query` still finds it."
)


def add_actions(actions: Commands) -> None:
    """The sub-commands of `aerobee group`."""
    lag = new_command(actions, "lag", "show the lag of groups", _lag, details=_LAG_DETAILS, examples=_LAG_EXAMPLES)
    lag.add_argument(
        "group", metavar="GROUP", nargs="?", help="show this group by topic and queue (default: all groups)"
    )
    reset = new_command(
        actions, "reset", "move a group to another offset", _reset, details=_RESET_DETAILS, examples=_RESET_EXAMPLES
    )
    skip = new_command(
        actions, "skip", "skip messages of a queue", _skip, details=_SKIP_DETAILS, examples=_SKIP_EXAMPLES
    )
    for action in (reset, skip):
        action.add_argument("group", metavar="GROUP")
        action.add_argument("topic", metavar="TOPIC")
    _add_places(reset)
    which = skip.add_mutually_exclusive_group(required=True)
    which.add_argument("--queue", metavar="ID", type=options.offset, help="of the topic")
    which.add_argument("--lite-topic", metavar="NAME", default="", help="of the topic")
    skip.add_argument("--count", metavar="N", type=options.count, default=1, help="number of messages (default: 1)")
    for action in (reset, skip):
        questions.add_confirmation(action, "where the group would continue")
    for action in (lag, reset, skip):
        options.add_endpoint(action)
        options.add_json(action)


def _add_places(reset: argparse.ArgumentParser) -> None:
    """Where a group goes on, and in which queues."""
    place = reset.add_mutually_exclusive_group(required=True)
    place.add_argument(
        "--to-time", metavar="TIME", type=options.moment, help="the first message stored at or after this time"
    )
    place.add_argument("--to-offset", metavar="N", type=options.offset, help="this offset in each queue")
    place.add_argument("--earliest", action="store_true", help="the oldest message")
    place.add_argument("--latest", action="store_true", help="the end of the queue: only new messages")
    place.add_argument("--like", metavar="GROUP", help="where another group is, in the queues that it has read")
    which = reset.add_mutually_exclusive_group()
    which.add_argument(
        "--queue",
        metavar="ID",
        type=options.offset,
        action="append",
        default=[],
        help="only this queue; may be repeated",
    )
    which.add_argument("--lite-topic", metavar="NAME", default="", help="only this lite topic")


def _lag(arguments: argparse.Namespace) -> int:
    if arguments.group is None:
        return _lag_of_all(arguments)
    description = with_client(arguments, lambda client: client.admin.describe_group(arguments.group))
    if arguments.json:
        output.print_json(
            {
                "group": description.group.name,
                "lag": sum(topic.lag for topic in description.topics),
                "topics": [output.protobuf_json(topic) for topic in description.topics],
                "queues": [output.protobuf_json(queue) for queue in description.queues],
            }
        )
        return 0
    output.print_table(
        ("topic", "lag", "in flight", "ready", "retrying", "delayed", "oldest"),
        (
            (
                *(topic.topic, topic.lag, topic.inflight, topic.ready, topic.retrying, topic.delayed),
                output.age_text(topic.oldest_timestamp.ToMilliseconds()) if topic.HasField("oldest_timestamp") else "-",
            )
            for topic in description.topics
        ),
        empty=f"group {arguments.group} has no position in any topic yet",
    )
    if description.queues:
        print_queues(description.queues)
    return 0


def _lag_of_all(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> list[tuple[str, v2.DescribeGroupAccumulationResponse.GroupAccumulation]]:
        groups = await client.admin.list_groups()
        return [(group.name, (await client.admin.accumulation(group.name)).accumulation) for group in groups]

    found = with_client(arguments, work)
    if arguments.json:
        output.print_json(
            [
                {
                    "group": name,
                    "lag": each.accumulation,
                    "inflight": each.inflight_messages,
                    "ready": each.ready_messages,
                    "oldestReadySeconds": each.deliver_delay_time.ToMilliseconds() / 1000,
                }
                for name, each in found
            ]
        )
        return 0
    output.print_table(
        ("group", "lag", "in flight", "ready", "oldest ready"),
        (
            (
                *(name, each.accumulation, each.inflight_messages, each.ready_messages),
                output.span_text(each.deliver_delay_time.ToMilliseconds()) if each.ready_messages else "-",
            )
            for name, each in found
        ),
        empty=complete_advice("no groups; create one with: aerobee group create NAME", arguments),
        least=("in flight", "oldest ready"),
    )
    return 0


def print_queues(queues: Iterable[admin_v1.GroupQueueStatus]) -> None:
    """Print the progress of a group in each queue."""
    output.print_table(
        ("topic", "queue", "committed", "next offset", "lag", "in flight", "ready", "retrying", "oldest"),
        (
            (
                queue.topic,
                queue.queue_id,
                queue.committed_offset if queue.HasField("committed_offset") else "-",
                queue.max_offset,
                queue.lag,
                queue.inflight,
                queue.ready,
                queue.retrying,
                output.age_text(queue.oldest_timestamp.ToMilliseconds()) if queue.HasField("oldest_timestamp") else "-",
            )
            for queue in queues
        ),
        empty="nothing consumed yet",
        least=("retrying", "next offset", "in flight", "ready"),
    )


def _reset(arguments: argparse.Namespace) -> int:
    return _move(
        arguments,
        lambda client, dry_run: client.admin.reset_offsets(
            arguments.group,
            arguments.topic,
            timestamp=arguments.to_time,
            offset=arguments.to_offset,
            earliest=arguments.earliest,
            latest=arguments.latest,
            like_group=arguments.like,
            queue_ids=arguments.queue,
            lite_topic=arguments.lite_topic,
            dry_run=dry_run,
        ),
    )


def _skip(arguments: argparse.Namespace) -> int:
    return _move(
        arguments,
        lambda client, dry_run: client.admin.reset_offsets(
            arguments.group,
            arguments.topic,
            skip=arguments.count,
            queue_ids=[] if arguments.queue is None else [arguments.queue],
            lite_topic=arguments.lite_topic,
            dry_run=dry_run,
        ),
    )


def _move(arguments: argparse.Namespace, move: Callable[[Client, bool], Awaitable[Moves]]) -> int:
    """Show the moves, or make them after a question that counts what is passed over and what comes again."""
    moves = with_client(arguments, lambda client: move(client, True))
    if not arguments.dry_run:
        if deed := _deed(moves, arguments.group, arguments.topic):
            questions.confirm(arguments, deed)
        moves = with_client(arguments, lambda client: move(client, False))
    return _print_moves(arguments, moves)


def _deed(moves: Moves, group: str, topic: str) -> str:
    """Empty if no position changes."""
    steps = [queue.after - queue.before if queue.HasField("before") else 0 for queue in moves]
    past, again = sum(max(step, 0) for step in steps), sum(max(-step, 0) for step in steps)
    new = sum(1 for queue in moves if not queue.HasField("before"))
    parts = [
        *([f"pass over {output.counted(past, 'message')}"] if past else []),
        *([f"deliver {output.counted(again, 'message')} again"] if again else []),
        *([f"give it a position in {output.counted(new, 'queue')}"] if new else []),
    ]
    return f"move group {group} in {topic}: {' and '.join(parts)}" if parts else ""


def _print_moves(arguments: argparse.Namespace, queues: Moves) -> int:
    if arguments.json:
        output.print_json(
            {
                "group": arguments.group,
                "topic": arguments.topic,
                "dryRun": arguments.dry_run,
                "queues": [output.protobuf_json(queue) for queue in queues],
            }
        )
        return 0
    print(f"group {arguments.group} {'would continue' if arguments.dry_run else 'continues'} in {arguments.topic}:")
    output.print_table(
        ("queue", "before", "after"),
        (
            (queue.lite_topic or queue.queue_id, queue.before if queue.HasField("before") else "-", queue.after)
            for queue in queues
        ),
        empty="there is nothing to move",
    )
    return 0
