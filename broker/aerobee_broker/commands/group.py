"""`aerobee group`: create, list, describe, update and delete consumer groups; lag, reset, skip: group_offsets.py."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands import group_offsets
from aerobee_broker.commands.terminal import options, output, questions
from aerobee_broker.commands.terminal.options import complete_advice, new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_proto import admin_v1, v2

_EXAMPLES = """\
  aerobee group create billing
  aerobee group create ledger --fifo --max-attempts 5
  aerobee group create mailer --retry-delays 10s,1m,10m --max-attempts 4
  aerobee group create mailer --retry-backoff 1s,1h,3
  aerobee group list --json
  aerobee group describe billing
  aerobee group update billing --pause
  aerobee group lag billing
  aerobee group reset billing orders --to-time 2h
  aerobee group skip billing orders --queue 3
  aerobee group delete billing
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "group", "manage consumer groups", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    create = new_command(actions, "create", "create a group", _create, examples="  aerobee group create billing")
    create.add_argument("--fifo", action="store_true", help="deliver the messages of a message group in order")
    update = new_command(
        actions, "update", "change a group", _update, examples="  aerobee group update billing --max-attempts 5"
    )
    update.add_argument("--fifo", action=argparse.BooleanOptionalAction, help="deliver in order, or not")
    pause = update.add_mutually_exclusive_group()
    pause.add_argument("--pause", dest="consume_enabled", action="store_false", default=None, help="stop delivery")
    pause.add_argument("--resume", dest="consume_enabled", action="store_true", default=None, help="resume delivery")
    for action in (create, update):
        _add_retries(action)
    listing = new_command(actions, "list", "list groups", _list, examples="  aerobee group list --all")
    listing.add_argument("--all", action="store_true", help="include system ones")
    describe = new_command(
        actions,
        "describe",
        "show a group, its progress and its clients",
        _describe,
        examples="  aerobee group describe billing",
    )
    delete = new_command(
        actions, "delete", "delete a group and its progress", _delete, examples="  aerobee group delete billing"
    )
    questions.add_confirmation(delete, "what would be lost")
    for action in (create, update, describe, delete):
        action.add_argument("group", metavar="GROUP")
    for action in (create, update, listing, describe, delete):
        options.add_endpoint(action)
        options.add_json(action)
    group_offsets.add_actions(actions)


def _add_retries(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--max-attempts",
        metavar="N",
        type=options.count,
        help="deliveries before a message becomes a dead letter (default: 17)",
    )
    retry = action.add_mutually_exclusive_group()
    retry.add_argument(
        "--retry-delays",
        metavar="SPAN,...",
        type=_delays,
        help="delays after the first, second, ... failed delivery; the last one repeats",
    )
    retry.add_argument(
        "--retry-backoff",
        metavar="FIRST,MAX,FACTOR",
        type=_backoff,
        help="first delay, maximum, and the factor between delays",
    )


def _create(arguments: argparse.Namespace) -> int:
    group = with_client(
        arguments,
        lambda client: client.admin.create_group(
            arguments.group,
            fifo=arguments.fifo,
            max_attempts=arguments.max_attempts or 0,
            retry_policy=_retry_policy(arguments),
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
            retry_policy=_retry_policy(arguments),
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
        empty=complete_advice("no groups; create one with: aerobee group create NAME", arguments),
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
            ("retries", _retry_text(group.retry_policy)),
            ("delivery", _delivery_text(group)),
            ("lag", sum(queue.lag for queue in description.queues)),
        ]
    )
    group_offsets.print_queues(description.queues)
    output.print_table(
        ("client", "address", "version", "last sign of life"),
        (
            (
                client.client_id,
                client.remote_address,
                client.version,
                output.short_time_text(client.last_heartbeat_timestamp.ToMilliseconds()),
            )
            for client in description.clients
        ),
        empty="no clients are connected",
    )
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    description = with_client(arguments, lambda client: client.admin.describe_group(arguments.group))
    topics = output.counted(len(description.topics), "topic")
    fields = {"name": arguments.group, "topicCount": len(description.topics)}
    deed = f"delete group {arguments.group} and its positions in {topics}"
    if not questions.go_on(arguments, deed, fields, loses_anything=bool(description.topics)):
        return 0
    with_client(arguments, lambda client: client.admin.delete_group(arguments.group))
    return output.print_result({**fields, "deleted": True}, f"deleted group {arguments.group}", as_json=arguments.json)


def _print_group(done: str, group: admin_v1.Group, *, as_json: bool) -> int:
    attempts = f"{group.max_attempts} attempts"
    text = f"{done} group {group.name}: {_order_text(group)}, {attempts}, delivery {_delivery_text(group)}"
    return output.print_result(output.protobuf_json(group), text, as_json=as_json)


def _delays(text: str) -> list[int]:
    return [options.span(part.strip()) for part in text.split(",")]


def _backoff(text: str) -> tuple[int, int, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST,MAX,FACTOR, such as 1s,1h,2")
    return options.span(parts[0]), options.span(parts[1]), options.count(parts[2])


def _retry_policy(arguments: argparse.Namespace) -> v2.RetryPolicy | None:
    from aerobee_proto import v2

    policy = v2.RetryPolicy()
    if arguments.retry_delays is not None:
        for delay in arguments.retry_delays:
            policy.customized_backoff.next.add().FromMilliseconds(delay)
    elif arguments.retry_backoff is not None:
        first, longest, factor = arguments.retry_backoff
        policy.exponential_backoff.initial.FromMilliseconds(first)
        policy.exponential_backoff.max.FromMilliseconds(longest)
        policy.exponential_backoff.multiplier = factor
    else:
        return None
    return policy


def _retry_text(policy: v2.RetryPolicy) -> str:
    if policy.HasField("exponential_backoff"):
        backoff = policy.exponential_backoff
        first, longest = (output.span_text(each.ToMilliseconds()) for each in (backoff.initial, backoff.max))
        return f"after {first}, then {backoff.multiplier:g} times as long each time, at most {longest}"
    return "after " + ", ".join(output.span_text(delay.ToMilliseconds()) for delay in policy.customized_backoff.next)


def _order_text(group: admin_v1.Group) -> str:
    return "fifo" if group.fifo else "any order"


def _delivery_text(group: admin_v1.Group) -> str:
    return "paused" if group.HasField("consume_enabled") and not group.consume_enabled else "on"
