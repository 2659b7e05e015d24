"""`aerobee topic`: create, list, describe, update and delete topics."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output, questions
from aerobee_broker.commands.terminal.options import complete_advice, new_command, with_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1, v2

_PERMISSIONS = {"read-write": "READ_WRITE", "read": "READ", "write": "WRITE", "none": "NONE"}
_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY")
_EXAMPLES = """\
  aerobee topic create orders --queues 8
  aerobee topic create payments --type FIFO
  aerobee topic create anything --type NORMAL --type FIFO --type DELAY
  aerobee topic list --json
  aerobee topic describe orders
  aerobee topic update orders --queues 16
  aerobee topic update orders --permission read        stop sends; consumers continue
  aerobee topic purge orders --dry-run
  aerobee topic delete orders
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "topic", "manage topics", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    changing = _add_create_and_update(actions)
    listing = new_command(actions, "list", "list topics", _list, examples="  aerobee topic list --all")
    listing.add_argument("--all", action="store_true", help="include system ones")
    describe = new_command(
        actions, "describe", "show a topic and its queues", _describe, examples="  aerobee topic describe orders"
    )
    delete = new_command(
        actions, "delete", "delete a topic and its messages", _delete, examples="  aerobee topic delete orders"
    )
    purge = new_command(
        actions,
        "purge",
        "remove all messages of a topic, and keep the topic",
        _purge,
        details="Groups go on with what is sent afterwards. Delayed messages and open transactions stay.",
        examples="  aerobee topic purge orders --dry-run\n  aerobee topic purge orders --yes",
    )
    for action in (describe, delete, purge):
        action.add_argument("topic", metavar="TOPIC")
    for action in (delete, purge):
        questions.add_confirmation(action, "how many messages would be lost")
    for action in (*changing, listing, describe, delete, purge):
        options.add_endpoint(action)
        options.add_json(action)


def _add_create_and_update(actions: Commands) -> list[argparse.ArgumentParser]:
    create = new_command(actions, "create", "create a topic", _create, examples="  aerobee topic create orders")
    update = new_command(
        actions, "update", "change a topic", _update, examples="  aerobee topic update orders --queues 16"
    )
    for action in (create, update):
        action.add_argument("topic", metavar="TOPIC")
        action.add_argument("--queues", metavar="N", type=options.count, help="number of queues")
        action.add_argument(
            "--type",
            metavar="TYPE",
            choices=_TYPES,
            type=str.upper,
            action="append",
            default=[],
            help=f"{', '.join(_TYPES)}; may be repeated (default: NORMAL)",
        )
        action.add_argument("--permission", choices=_PERMISSIONS, help="permission of clients (default: read-write)")
        action.add_argument("--attribute", metavar="NAME=VALUE", type=options.pair, action="append", default=[])
    return [create, update]


def _create(arguments: argparse.Namespace) -> int:
    topic = with_client(
        arguments,
        lambda client: client.admin.create_topic(
            arguments.topic,
            queue_count=arguments.queues or 0,
            message_types=_types(arguments),
            attributes=dict(arguments.attribute),
            permission=_permission(arguments),
        ),
    )
    return _print_topic("created", topic, as_json=arguments.json)


def _update(arguments: argparse.Namespace) -> int:
    topic = with_client(
        arguments,
        lambda client: client.admin.update_topic(
            arguments.topic,
            queue_count=arguments.queues,
            message_types=_types(arguments),
            attributes=dict(arguments.attribute),
            permission=_permission(arguments),
        ),
    )
    return _print_topic("updated", topic, as_json=arguments.json)


def _list(arguments: argparse.Namespace) -> int:
    topics = with_client(arguments, lambda client: client.admin.list_topics(include_system=arguments.all))
    if arguments.json:
        output.print_json([output.protobuf_json(topic) for topic in topics])
        return 0
    output.print_table(
        ("topic", "queues", "types"),
        ((topic.name, _queue_text(topic), _type_text(topic)) for topic in topics),
        empty=complete_advice("no topics; create one with: aerobee topic create NAME", arguments),
    )
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    from aerobee_proto import v2

    description = with_client(arguments, lambda client: client.admin.describe_topic(arguments.topic))
    if arguments.json:
        answer = output.protobuf_json(description)
        del answer["status"]
        output.print_json(answer)
        return 0
    topic = description.topic
    attributes = ", ".join(f"{name}={value}" for name, value in sorted(topic.attributes.items()))
    facts = [
        *(("topic", topic.name), ("types", _type_text(topic)), ("queues", _queue_text(topic))),
        ("permission", v2.Permission.Name(topic.permission).lower().replace("_", "-")),
    ]
    if attributes:
        facts.append(("attributes", attributes))
    facts.append(("groups", ", ".join(description.groups) or "none"))
    output.print_facts(facts)
    output.print_table(
        ("queue", "first offset", "next offset", "messages", "last stored"),
        (
            (
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                queue.max_offset - queue.min_offset,
                output.short_time_text(queue.last_store_timestamp.ToMilliseconds())
                if queue.HasField("last_store_timestamp")
                else "never",
            )
            for queue in description.queues
        ),
        empty="no queues",
    )
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    return _remove(arguments, "deleted", lambda client: client.admin.delete_topic(arguments.topic))


def _purge(arguments: argparse.Namespace) -> int:
    return _remove(arguments, "purged", lambda client: client.admin.purge_topic(arguments.topic))


def _remove(arguments: argparse.Namespace, done: str, remove: Callable[[Client], Awaitable[object]]) -> int:
    """Delete or purge, after a question that says what is lost."""

    async def look(client: Client) -> admin_v1.DescribeTopicResponse:
        return await client.admin.describe_topic(arguments.topic)

    description = with_client(arguments, look)
    count = sum(queue.max_offset - queue.min_offset for queue in description.queues)
    what = f"{output.counted(count, 'message')} of topic {arguments.topic}"
    if description.groups:
        what += f" for {output.counted(len(description.groups), 'group')}"
    fields = {"name": arguments.topic, "messageCount": count, "groups": list(description.groups)}
    if not questions.go_on(arguments, f"lose {what}", fields, loses_anything=count > 0):
        return 0
    with_client(arguments, remove)
    return output.print_result({**fields, done: True}, f"{done} topic {arguments.topic}", as_json=arguments.json)


def _print_topic(done: str, topic: admin_v1.Topic, *, as_json: bool) -> int:
    text = f"{done} topic {topic.name}: {_queues_text(topic)}, {_type_text(topic)}"
    return output.print_result(output.protobuf_json(topic), text, as_json=as_json)


def _types(arguments: argparse.Namespace) -> list[v2.MessageType.ValueType]:
    from aerobee_proto import v2

    return [v2.MessageType.Value(name) for name in arguments.type]


def _permission(arguments: argparse.Namespace) -> v2.Permission.ValueType | None:
    from aerobee_proto import v2

    return None if arguments.permission is None else v2.Permission.Value(_PERMISSIONS[arguments.permission])


def _type_text(topic: admin_v1.Topic) -> str:
    from aerobee_proto import v2

    return ", ".join(v2.MessageType.Name(kind) for kind in topic.accept_message_types)


def _queue_text(topic: admin_v1.Topic) -> str:
    if topic.read_queue_count == topic.write_queue_count:
        return str(topic.read_queue_count)
    return f"{topic.read_queue_count} to read, {topic.write_queue_count} to write"


def _queues_text(topic: admin_v1.Topic) -> str:
    if topic.read_queue_count == topic.write_queue_count:
        return output.counted(topic.read_queue_count, "queue")
    return f"{topic.read_queue_count} to read and {output.counted(topic.write_queue_count, 'queue')} to write"
