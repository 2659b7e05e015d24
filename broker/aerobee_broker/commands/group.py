"""`aerobee group`: create, list, describe, update and delete consumer groups."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands import options, output
from aerobee_broker.commands.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.options import Commands
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee group create billing
  aerobee group create ledger --fifo --max-attempts 5
  aerobee group list --json
  aerobee group describe billing
  aerobee group update billing --pause
  aerobee group delete billing
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "group", "create, list, describe, update and delete consumer groups", examples=_EXAMPLES
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    create = new_command(actions, "create", "create a group", _create, examples="  aerobee group create billing")
    create.add_argument("--fifo", action="store_true", help="deliver the messages of a message group in order")
    update = new_command(
        actions, "update", "change a group", _update, examples="  aerobee group update billing --max-attempts 5"
    )
    update.add_argument("--fifo", action=argparse.BooleanOptionalAction, help="deliver in order")
    pause = update.add_mutually_exclusive_group()
    pause.add_argument("--pause", dest="consume_enabled", action="store_false", default=None, help="stop delivery")
    pause.add_argument("--resume", dest="consume_enabled", action="store_true", default=None, help="deliver again")
    for action in (create, update):
        action.add_argument(
            "--max-attempts",
            metavar="N",
            type=options.count,
            help="deliveries before a message becomes a dead letter (default: 17)",
        )
    listing = new_command(actions, "list", "list groups", _list, examples="  aerobee group list --all")
    listing.add_argument("--all", action="store_true", help="also the broker's own")
    describe = new_command(
        actions,
        "describe",
        "show a group, how far it is, and who is connected",
        _describe,
        examples="  aerobee group describe billing",
    )
    delete = new_command(
        actions, "delete", "forget a group and its progress", _delete, examples="  aerobee group delete billing"
    )
    for action in (create, update, describe, delete):
        action.add_argument("group", metavar="GROUP")
    for action in (create, update, listing, describe, delete):
        options.add_endpoint(action)
        options.add_json(action)


def _create(arguments: argparse.Namespace) -> int:
    group = with_client(
        arguments,
        lambda client: client.admin.create_group(
            arguments.group, fifo=arguments.fifo, max_attempts=arguments.max_attempts or 0
        ),
    )
    return _print_group("created", group, as_json=arguments.json)


def _update(arguments: argparse.Namespace) -> int:
    group = with_client(
        arguments,
        lambda client: client.admin.update_group(
            arguments.group,
            fifo=arguments.fifo,
            max_attempts=arguments.max_attempts,
            consume_enabled=arguments.consume_enabled,
        ),
    )
    return _print_group("updated", group, as_json=arguments.json)


def _list(arguments: argparse.Namespace) -> int:
    groups = with_client(arguments, lambda client: client.admin.list_groups(include_system=arguments.all))
    if arguments.json:
        output.print_json([output.protobuf_json(group) for group in groups])
        return 0
    output.print_table(
        ("group", "order", "max attempts", "delivery"),
        ((group.name, _order_text(group), group.max_attempts, _delivery_text(group)) for group in groups),
        empty="no groups; create one with: aerobee group create NAME",
    )
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    description = with_client(arguments, lambda client: client.admin.describe_group(arguments.group))
    if arguments.json:
        answer = output.protobuf_json(description)
        del answer["status"]
        output.print_json(answer)
        return 0
    group = description.group
    output.print_facts(
        [
            ("group", group.name),
            ("order", _order_text(group)),
            ("max attempts", group.max_attempts),
            ("delivery", _delivery_text(group)),
            ("lag", sum(queue.lag for queue in description.queues)),
        ]
    )
    output.print_table(
        ("topic", "queue", "committed", "next offset", "lag", "in flight", "ready"),
        (
            (
                queue.topic,
                queue.queue_id,
                queue.committed_offset if queue.HasField("committed_offset") else "-",
                queue.max_offset,
                queue.lag,
                queue.inflight,
                queue.ready,
            )
            for queue in description.queues
        ),
        empty="nothing consumed yet",
    )
    output.print_table(
        ("client", "address", "version", "last sign of life"),
        (
            (
                client.client_id,
                client.remote_address,
                client.version,
                output.time_text(client.last_heartbeat_timestamp.ToMilliseconds()),
            )
            for client in description.clients
        ),
        empty="no clients are connected",
    )
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with_client(arguments, lambda client: client.admin.delete_group(arguments.group))
    if arguments.json:
        output.print_json({"name": arguments.group, "deleted": True})
    else:
        print(f"deleted group {arguments.group}")
    return 0


def _print_group(done: str, group: admin_v1.Group, *, as_json: bool) -> int:
    if as_json:
        output.print_json(output.protobuf_json(group))
    else:
        attempts = f"{group.max_attempts} attempts"
        print(f"{done} group {group.name}: {_order_text(group)}, {attempts}, delivery {_delivery_text(group)}")
    return 0


def _order_text(group: admin_v1.Group) -> str:
    return "fifo" if group.fifo else "any order"


def _delivery_text(group: admin_v1.Group) -> str:
    return "paused" if group.HasField("consume_enabled") and not group.consume_enabled else "on"
