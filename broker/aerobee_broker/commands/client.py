"""`aerobee client`: the connected clients, their activity, and requests to them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1, v2

_EXAMPLES = """\
  aerobee client list --group billing
  aerobee client describe host@4711@0@abc
  aerobee client stacks host@4711@0@abc              thread stacks (Java SDK)
  aerobee client verify host@4711@0@abc --group billing --topic orders --id 0102FC000000014AB00B13010700000000
"""
_STACK_DETAILS = "Only the Java SDK supports this. The broker waits 5 seconds for the answer."
_VERIFY_DETAILS = (
    "The listener of a push consumer receives the message. Its result is printed and nothing is acknowledged."
)
_COMMAND_SECONDS = 8.0  # the broker itself waits 5 s for the client


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "client", "list and inspect connected clients", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = new_command(
        actions, "list", "list connected clients", _list, examples="  aerobee client list --topic orders --json"
    )
    listing.add_argument("--group", default="", help="only consumers of this group")
    listing.add_argument("--topic", default="", help="only clients that send or subscribe to this topic")
    describe = new_command(
        actions, "describe", "show one client", _describe, examples="  aerobee client describe host@4711@0@abc"
    )
    asking = [describe, *_add_requests(actions)]
    for action in asking:
        action.add_argument("client", metavar="CLIENT", help="the id that `aerobee client list` shows")
    for action in (listing, *asking):
        options.add_endpoint(action)
        options.add_json(action)


def _add_requests(actions: Commands) -> list[argparse.ArgumentParser]:
    """The commands that ask a client for something, or end it."""
    stacks = new_command(
        actions,
        "stacks",
        "print the thread stacks of a client",
        _stacks,
        details=_STACK_DETAILS,
        examples="  aerobee client stacks host@4711@0@abc",
    )
    verify = new_command(
        actions,
        "verify",
        "deliver a stored message to a consumer as a test",
        _verify,
        details=_VERIFY_DETAILS,
        examples="  aerobee client verify host@4711@0@abc --group billing --topic orders --id 0102FC00000001",
    )
    reconnect = new_command(
        actions,
        "reconnect",
        "ask a client to reconnect",
        _reconnect,
        details="Supported by the SDKs for Java and Node.",
        examples="  aerobee client reconnect host@4711@0@abc",
    )
    disconnect = new_command(
        actions,
        "disconnect",
        "forget a client as if it had left",
        _disconnect,
        details="Its waiting calls and its connection end, and what it holds returns. A client that runs on connects "
        "again.",
        examples="  aerobee client disconnect host@4711@0@abc",
    )
    for name, text in (("--group", "of the consumer"), ("--topic", "of the message"), ("--id", "of the message")):
        verify.add_argument(name, required=True, help=text)
    return [stacks, verify, reconnect, disconnect]


def _list(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> list[admin_v1.Connection]:
        found = client.admin.connections(group=arguments.group, topic=arguments.topic)
        return [connection async for connection in found]

    found = with_client(arguments, work)
    if arguments.json:
        output.print_json([_json(connection) for connection in found])
        return 0
    output.print_table(
        ("client", "kind", "group", "topics", "language", "version", "address", "last sign of life"),
        (
            (
                connection.client_id,
                _kind(connection),
                connection.group or "-",
                ", ".join(_topics(connection)) or "-",
                _language(connection),
                connection.version,
                connection.remote_address,
                output.age_text(connection.last_heartbeat_timestamp.ToMilliseconds()) + " ago",
            )
            for connection in found
        ),
        empty="no such client is connected" if arguments.group or arguments.topic else "no client is connected",
        least=("version", "language", "address", "topics", "kind"),
    )
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    from aerobee_client import NotFoundError

    async def work(client: Client) -> tuple[admin_v1.Connection | None, v2.ConsumerRunningInfo | None]:
        async for connection in client.admin.connections(client_id=arguments.client):
            if not connection.group:
                return connection, None
            try:
                return connection, await client.admin.consumer_running_info(arguments.client, connection.group)
            except NotFoundError:  # a client of RocketMQ 4, which only its own protocol asks
                return connection, None
        return None, None

    connection, info = with_client(arguments, work)
    if connection is None:
        raise CommandError(
            f"no client {arguments.client!r} is connected; `aerobee client list` lists the connected clients",
            exit_code=options.NOT_FOUND,
        )
    if arguments.json:
        running = {} if info is None else {"runningInfo": output.protobuf_json(info)}
        output.print_json(_json(connection) | running)
        return 0
    output.print_facts(
        [
            ("client", connection.client_id),
            ("kind", _kind(connection)),
            ("group", connection.group or "none"),
            ("topics", ", ".join(_topics(connection)) or "not known"),
            ("SDK", f"{_language(connection)} {connection.version}"),
            ("address", connection.remote_address),
            ("last sign of life", output.age_text(connection.last_heartbeat_timestamp.ToMilliseconds()) + " ago"),
            ("can be told", connection.telemetry),
        ]
    )
    if info is not None:
        _print_queues(info)
    return 0


def _print_queues(info: v2.ConsumerRunningInfo) -> None:
    output.print_table(
        ("topic", "queue", "committed", "holds", "from offset", "to offset"),
        (
            (
                item.message_queue.topic.name,
                item.message_queue.id,
                item.process_queue_info.commit_offset,
                item.process_queue_info.cached_msg_count,
                *(
                    (item.process_queue_info.cached_msg_min_offset, item.process_queue_info.cached_msg_max_offset)
                    if item.process_queue_info.cached_msg_count
                    else ("-", "-")
                ),
            )
            for item in info.message_queue_table
        ),
        empty="nothing consumed yet",
    )


def _stacks(arguments: argparse.Namespace) -> int:
    arguments.timeout = max(arguments.timeout, _COMMAND_SECONDS)
    text = with_client(arguments, lambda client: client.admin.client_stacks(arguments.client))
    return output.print_result({"clientId": arguments.client, "stacks": text}, text, as_json=arguments.json)


def _verify(arguments: argparse.Namespace) -> int:
    arguments.timeout = max(arguments.timeout, _COMMAND_SECONDS)
    with_client(
        arguments,
        lambda client: client.admin.verify_message(arguments.client, arguments.group, arguments.topic, arguments.id),
    )
    return output.print_result(
        {"clientId": arguments.client, "messageId": arguments.id, "consumed": True},
        f"the listener of {arguments.client} consumed message {arguments.id}; the message is not acknowledged",
        as_json=arguments.json,
    )


def _reconnect(arguments: argparse.Namespace) -> int:
    with_client(arguments, lambda client: client.admin.reconnect_client(arguments.client))
    return output.print_result(
        {"clientId": arguments.client, "told": True}, f"asked {arguments.client} to reconnect", as_json=arguments.json
    )


def _disconnect(arguments: argparse.Namespace) -> int:
    with_client(arguments, lambda client: client.admin.disconnect_client(arguments.client))
    return output.print_result(
        {"clientId": arguments.client, "disconnected": True}, f"disconnected {arguments.client}", as_json=arguments.json
    )


def _json(connection: admin_v1.Connection) -> dict[str, object]:
    return output.protobuf_json(connection)


def _kind(connection: admin_v1.Connection) -> str:
    from aerobee_proto import v2

    return v2.ClientType.Name(connection.client_type).removeprefix("CLIENT_TYPE_").lower().replace("_", " ")


def _language(connection: admin_v1.Connection) -> str:
    from aerobee_proto import v2

    return v2.Language.Name(connection.language).removeprefix("LANGUAGE_").lower()


def _topics(connection: admin_v1.Connection) -> list[str]:
    return [*connection.topics, *(entry.topic.name for entry in connection.subscriptions)]
