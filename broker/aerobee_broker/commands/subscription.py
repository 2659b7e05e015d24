"""`aerobee subscription`: which group reads which topic."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output, questions
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_proto import v2

_EXAMPLES = """\
  aerobee subscription list --topic orders
  aerobee subscription list --group billing --clients     each client with its filter expression
  aerobee subscription delete orders billing
"""
_LIST_DETAILS = (
    "A group is shown as not consistent if its clients subscribe differently: such clients lose messages to each "
    "other. Expressions are known only while clients are connected."
)


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "subscription", "list and delete subscriptions", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = new_command(
        actions,
        "list",
        "list subscriptions",
        _list,
        details=_LIST_DETAILS,
        examples="  aerobee subscription list --group billing --clients",
    )
    listing.add_argument("--group", help="only of this group")
    listing.add_argument("--topic", help="only of this topic")
    listing.add_argument("--clients", action="store_true", help="client by client")
    delete = new_command(
        actions,
        "delete",
        "delete the position of a group in a topic",
        _delete,
        details="Refused while clients of the group read the topic.",
        examples="  aerobee subscription delete orders billing",
    )
    delete.add_argument("topic", metavar="TOPIC")
    delete.add_argument("group", metavar="GROUP")
    questions.add_confirmation(delete, "how far the position is behind")
    for action in (listing, delete):
        options.add_endpoint(action)
        options.add_json(action)


def _list(arguments: argparse.Namespace) -> int:
    if arguments.clients:
        return _list_clients(arguments)
    found = with_client(
        arguments, lambda client: client.admin.subscriptions(topic=arguments.topic, group=arguments.group)
    )
    if arguments.json:
        output.print_json([output.protobuf_json(info) for info in found])
        return 0
    output.print_table(
        ("group", "topic", "expression", "online", "consistent", "last said"),
        (
            (
                _name(info.group),
                _name(info.topic),
                _expression(info),
                info.online,
                info.subscription_consistency,
                _said(info),
            )
            for info in found
        ),
        empty="no subscriptions",
        cut=("expression",),
        least=("last said",),
    )
    return 0


def _list_clients(arguments: argparse.Namespace) -> int:
    found = with_client(
        arguments, lambda client: client.admin.client_subscriptions(topic=arguments.topic, group=arguments.group)
    )
    if arguments.json:
        output.print_json([output.protobuf_json(each) for each in found])
        return 0
    output.print_table(
        ("group", "topic", "client", "expression", "consistent", "last said"),
        (
            (
                _name(each.subscription_info.group),
                _name(each.subscription_info.topic),
                each.client_info.client_id,
                _expression(each.subscription_info),
                each.subscription_info.subscription_consistency,
                _said(each.subscription_info),
            )
            for each in found
        ),
        empty="no connected subscribers",
        cut=("expression",),
        least=("last said", "consistent"),
    )
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    description = with_client(arguments, lambda client: client.admin.describe_group(arguments.group))
    lag = sum(topic.lag for topic in description.topics if topic.topic == arguments.topic)
    fields = {"topic": arguments.topic, "group": arguments.group, "lag": lag}
    behind = f"{output.counted(lag, 'message')} behind"
    deed = f"delete the position of group {arguments.group} in {arguments.topic}, {behind}"
    if not questions.go_on(arguments, deed, fields):
        return 0
    with_client(arguments, lambda client: client.admin.delete_subscription(arguments.topic, arguments.group))
    return output.print_result(
        {**fields, "deleted": True},
        f"group {arguments.group} no longer has a position in {arguments.topic}",
        as_json=arguments.json,
    )


def _name(resource: v2.Resource) -> str:
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else resource.name


def _expression(info: v2.SubscriptionInfo) -> str:
    from aerobee_proto import v2

    if not info.HasField("expression"):
        return "not known"
    text = info.expression.expression or "*"
    return f"SQL: {text}" if info.expression.type == v2.FilterType.SQL else text


def _said(info: v2.SubscriptionInfo) -> str:
    if not info.HasField("last_update_timestamp"):
        return "-"
    return output.age_text(info.last_update_timestamp.ToMilliseconds()) + " ago"
