"""`aerobee top`: the busiest topics, the largest backlogs and the problems of a broker, again and again."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from aerobee_broker.commands.monitoring.problems import problem_text
from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee top
  aerobee top --every 5 --rows 20
  aerobee top --once
"""
_HOME = "\x1b[H\x1b[J"  # to the upper left corner, and clear what is below


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "top", "watch rates, backlogs and clients", run, details="Runs until Ctrl-C.", examples=_EXAMPLES
    )
    parser.add_argument(
        "--every", metavar="SECONDS", type=options.positive_seconds, default=2.0, help="time between (default: 2)"
    )
    parser.add_argument("--rows", metavar="N", type=options.count, default=10, help="topics, and groups (default: 10)")
    parser.add_argument("--once", action="store_true", help="print once, and end")
    options.add_endpoint(parser)


def run(arguments: argparse.Namespace) -> int:
    import asyncio

    async def work(client: Client) -> int:
        while True:
            broker = await client.admin.broker_status()
            topics = [
                each
                async for each in client.admin.topic_status(order="in_rate", descending=True, max_count=arguments.rows)
            ]
            groups = [
                each async for each in client.admin.group_status(order="lag", descending=True, max_count=arguments.rows)
            ]
            problems = await client.admin.problems()
            if sys.stdout.isatty() and not arguments.once:
                print(_HOME, end="")
            _print(broker, topics, groups, problems)
            if arguments.once:
                return 0
            await asyncio.sleep(arguments.every)

    return with_client(arguments, work)


def _print(
    broker: admin_v1.GetBrokerStatusResponse,
    topics: list[admin_v1.TopicStatus],
    groups: list[admin_v1.GroupStatus],
    problems: list[admin_v1.Problem],
) -> None:
    figures = broker.statistics
    uptime = output.span_text(broker.uptime.ToMilliseconds())
    print(f"{broker.name}, up for {uptime}: {output.counted(len(problems), 'problem')}")
    print(
        f"{figures.messages_in_rate:,.1f} in/s, {figures.messages_out_rate:,.1f} out/s, "
        f"{output.counted(figures.producers, 'producer')}, {output.counted(figures.consumers, 'consumer')}"
    )
    for problem in problems:
        print(problem_text(problem))
    print()
    _print_topics(topics)
    print()
    _print_groups(groups)


def _print_topics(topics: list[admin_v1.TopicStatus]) -> None:
    output.print_table(
        ("topic", "in/s", "out/s", "messages", "size", "groups"),
        (
            (
                each.topic.name,
                f"{each.messages_in_rate:,.1f}",
                f"{each.messages_out_rate:,.1f}",
                each.message_count,
                output.size_text(each.bytes),
                each.group_count,
            )
            for each in topics
        ),
        empty="no topics",
        least=("groups", "size", "messages"),
    )


def _print_groups(groups: list[admin_v1.GroupStatus]) -> None:
    output.print_table(
        ("group", "lag", "in flight", "oldest", "out/s", "acked/s", "clients", "dead letters"),
        (
            (
                each.group.name,
                each.lag,
                each.inflight,
                output.age_text(each.oldest_timestamp.ToMilliseconds()) if each.HasField("oldest_timestamp") else "-",
                f"{each.messages_out_rate:,.1f}",
                f"{each.acknowledged_rate:,.1f}",
                each.client_count,
                each.dead_letter_count,
            )
            for each in groups
        ),
        empty="no groups",
        least=("dead letters", "acked/s", "in flight", "clients", "out/s"),
    )
