"""The timelines of `aerobee query --timeline`."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import CommandError, with_client

if TYPE_CHECKING:
    from aerobee_client import Client
    from aerobee_proto import admin_v1, v2


_HISTORY_SECONDS = 60.0  # a journal may be long


def show(arguments: argparse.Namespace, begin: int | None, end: int | None) -> int:
    """Print the timeline of every message that the query finds, one after the other."""

    async def work(client: Client) -> int:
        count = 0
        async for found in _timelines(client, arguments, begin, end):
            if arguments.json:
                output.print_json(_json(found))
            else:
                if count:
                    print()
                _print(found, history=arguments.history)
            count += 1
        return count

    if arguments.history:
        arguments.timeout = max(arguments.timeout, _HISTORY_SECONDS)
    count = with_client(arguments, work)
    if not count and (arguments.id or arguments.key):
        raise CommandError(f"no such message in {arguments.topic}", exit_code=options.NOT_FOUND)
    if not count and not arguments.json:
        print(f"no such message in {arguments.topic}")
    return 0


async def _timelines(
    client: Client, arguments: argparse.Namespace, begin: int | None, end: int | None
) -> AsyncIterator[admin_v1.MessageTimeline]:
    wanted: dict[str, Any] = {"group": arguments.group, "history": arguments.history}
    if arguments.id is not None:  # it may not be in its topic yet
        for found in await client.admin.message_timelines(arguments.topic, message_id=arguments.id, **wanted):
            yield found
        return
    async for message in client.admin.query(
        arguments.topic,
        key=arguments.key,
        unfinished_by=arguments.backlog,
        lite_topic=arguments.lite_topic,
        begin=begin,
        end=end,
        max_count=arguments.max,
    ):
        for found in await client.admin.message_timelines(
            arguments.topic, queue_id=message.queue_id, queue_offset=message.queue_offset, **wanted
        ):
            yield found


def _json(found: admin_v1.MessageTimeline) -> dict[str, Any]:
    from aerobee_client.messages.message import stored_message

    fields = output.protobuf_json(found)
    fields["message"] = output.message_json(stored_message(found.message))
    return fields


def _moment(found: v2.Timestamp) -> str:
    return output.short_time_text(found.ToMilliseconds())


def _print(found: admin_v1.MessageTimeline, *, history: bool) -> None:
    from aerobee_client.messages.message import stored_message

    message = stored_message(found.message)
    output.print_cut(f"message {message.message_id} of {message.topic}: {output.body_text(message.body)}")
    output.print_table(
        ("when", "what", "group", "attempt", "until", "details", "client"),
        (
            (
                output.short_time_text(event.timestamp.ToMilliseconds())
                if event.HasField("timestamp")
                else "not known",
                _words(event.Kind.Name(event.kind)),
                event.group or "-",
                event.attempt or "-",
                _moment(event.until) if event.HasField("until") else "-",
                event.detail,
                event.client_id or "-",
            )
            for event in found.events
        ),
        empty="nothing is known of it",
        least=("until", "client", "attempt"),
    )
    output.print_table(
        ("group", "now", "attempts", "visible again"),
        (
            (
                state.group,
                "not known" if state.state == state.STATE_UNSPECIFIED else _words(state.State.Name(state.state)),
                state.attempts or "-",
                output.short_time_text(state.invisible_until.ToMilliseconds())
                if state.HasField("invisible_until")
                else "-",
            )
            for state in found.groups
        ),
        empty="no group reads the topic",
    )
    if history and not found.history_complete:
        print("the delivery journal does not reach back far enough: earlier events are missing")


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
