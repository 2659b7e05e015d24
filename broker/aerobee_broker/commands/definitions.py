"""`aerobee definitions`: topics and groups as a file, and a broker as the file says."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from aerobee_broker.commands.terminal import options, output, questions
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client

if TYPE_CHECKING:
    from pathlib import Path

    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client

_EXAMPLES = """\
  aerobee definitions export --output broker.json
  aerobee definitions apply broker.json --dry-run        what would change
  aerobee definitions apply broker.json --yes
"""
_APPLY_DETAILS = "Creates what is missing and changes what differs. Nothing is deleted: others may use it."
_TOPIC_FIELDS = ("readQueueCount", "writeQueueCount", "permission", "acceptMessageTypes", "attributes")
_GROUP_FIELDS = ("fifo", "maxAttempts", "retryPolicy", "consumeEnabled")
Definitions = dict[str, dict[str, dict[str, Any]]]
"""`topics` and `groups`, each by name, with the fields of the protocol's JSON."""


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "definitions", "export topics and groups, and apply them to a broker", examples=_EXAMPLES
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    export = new_command(
        actions, "export", "write topics and groups as JSON", _export, examples="  aerobee definitions export"
    )
    export.add_argument(
        "--output", metavar="FILE", type=options.output_file, help="a new file (default: -, standard output)"
    )
    apply = new_command(
        actions,
        "apply",
        "make a broker as a file says",
        _apply,
        details=_APPLY_DETAILS,
        examples="  aerobee definitions apply broker.json --dry-run",
    )
    apply.add_argument("file", metavar="FILE", help="as `export` writes it; - for standard input")
    questions.add_confirmation(apply, "what would change")
    for action in (export, apply):
        options.add_endpoint(action)


def _export(arguments: argparse.Namespace) -> int:
    text = json.dumps(with_client(arguments, _read), indent=2, ensure_ascii=False, sort_keys=True)
    path: Path | None = arguments.output
    if path is None:
        print(text)
        return 0
    try:
        with path.open("x", encoding="utf-8") as file:
            print(text, file=file)
    except FileExistsError:
        raise CommandError(f"{path} exists already; name a new file") from None
    print(f"wrote {path}", file=sys.stderr)
    return 0


async def _read(client: Client) -> Definitions:
    topics, groups = await client.admin.list_topics(), await client.admin.list_groups()
    return {
        "topics": {each.name: _fields(output.protobuf_json(each), _TOPIC_FIELDS) for each in topics},
        "groups": {each.name: _fields(output.protobuf_json(each), _GROUP_FIELDS) for each in groups},
    }


def _fields(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _apply(arguments: argparse.Namespace) -> int:
    wanted = _load(arguments.file)
    present = with_client(arguments, _read)
    changes = list(differences(present, wanted))
    for change in changes:
        print(change[2])
    if not changes:
        print("nothing to change")
        return 0
    if arguments.dry_run:
        return 0
    questions.confirm(arguments, f"make {output.counted(len(changes), 'change')}")

    async def work(client: Client) -> None:
        for kind, name, _ in changes:
            await _change(client, kind, name, wanted[kind][name], is_new=name not in present[kind])

    with_client(arguments, work)
    print(f"made {output.counted(len(changes), 'change')}")
    return 0


def differences(present: Definitions, wanted: Definitions) -> list[tuple[str, str, str]]:
    """What has to change: kind, name, and a line or more for people."""
    found = []
    for kind in ("topics", "groups"):
        for name, fields in sorted(wanted[kind].items()):
            before = present[kind].get(name)
            what = f"{kind[:-1]} {name}"
            if before is None:
                found.append((kind, name, f"+ {what}: {json.dumps(fields, ensure_ascii=False, sort_keys=True)}"))
                continue
            lines = [
                f"    {field}: {json.dumps(before.get(field))} -> {json.dumps(value)}"
                for field, value in sorted(fields.items())
                if before.get(field) != value
            ]
            if lines:
                found.append((kind, name, "\n".join([f"~ {what}", *lines])))
    return found


def _load(name: str) -> Definitions:
    """CommandError for a file that is not of this kind."""
    try:
        if name == "-":
            content = json.load(sys.stdin)
        else:
            with open(name, encoding="utf-8") as file:
                content = json.load(file)
        if not isinstance(content, dict) or not content.keys() <= {"topics", "groups"}:
            raise ValueError("expected an object with topics and groups")
        found: Definitions = {"topics": content.get("topics", {}), "groups": content.get("groups", {})}
        for kind, names in (("topics", _TOPIC_FIELDS), ("groups", _GROUP_FIELDS)):
            for each, fields in found[kind].items():
                if unknown := sorted(fields.keys() - set(names)):
                    raise ValueError(
                        f"{kind[:-1]} {each!r} has an unknown field {unknown[0]!r}; known: {', '.join(names)}"
                    )
    except (ValueError, AttributeError) as error:
        raise CommandError(f"{name}: {error}; `aerobee definitions export` writes the form") from None
    return found


async def _change(client: Client, kind: str, name: str, fields: dict[str, Any], *, is_new: bool) -> None:
    from google.protobuf.json_format import ParseDict, ParseError

    from aerobee_proto import admin_v1

    try:
        if kind == "topics":
            topic = ParseDict({"name": name, **fields}, admin_v1.Topic())
            if is_new:
                await client.admin.create_topic(
                    name,
                    queue_count=topic.read_queue_count,
                    message_types=topic.accept_message_types,
                    attributes=topic.attributes,
                    permission=topic.permission or None,
                )
            else:
                await client.admin.update_topic(
                    name,
                    queue_count=topic.read_queue_count or None,
                    message_types=topic.accept_message_types,
                    attributes=topic.attributes,
                    permission=topic.permission or None,
                )
            return
        group = ParseDict({"name": name, **_as_durations(fields)}, admin_v1.Group())
    except ParseError as error:
        raise CommandError(f"{kind[:-1]} {name!r}: {error}; correct the file. What came before is applied") from None
    policy = group.retry_policy if group.HasField("retry_policy") else None
    if is_new:
        await client.admin.create_group(name, fifo=group.fifo, max_attempts=group.max_attempts, retry_policy=policy)
    await client.admin.update_group(
        name,
        fifo=group.fifo,
        max_attempts=group.max_attempts or None,
        retry_policy=policy,
        consume_enabled=group.consume_enabled if group.HasField("consume_enabled") else None,
    )


def _as_durations(value: Any, name: str = "") -> Any:
    """Durations of our JSON are numbers of seconds, those of protobuf's text like `10s`."""
    if isinstance(value, dict):
        return {key: _as_durations(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_durations(item, name) for item in value]
    is_duration = name in ("next", "initial", "max") and isinstance(value, int | float)
    return f"{value:.9f}s" if is_duration else value
