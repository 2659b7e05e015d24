"""`aerobee dlq`: dead letters, the messages that groups gave up."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from aerobee_broker.commands.terminal import options, outcomes, output, questions
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client
from aerobee_broker.message_json import dead_letter_json
from aerobee_store.records.decimals import decimal

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee dlq list                                      which groups have dead letters
  aerobee dlq list billing --begin 1d
  aerobee dlq show billing 17
  aerobee dlq resend billing --offset 17 --offset 18
  aerobee dlq resend billing --all                      all that were not resent before
  aerobee dlq resend billing --offset 17 --body '{"amount": 12}' --property fixed=yes
  aerobee dlq delete billing --offset 17 --dry-run
  aerobee dlq export billing --output letters.jsonl
"""
_RESEND_DETAILS = (
    "A dead letter returns to its original topic, where only this group receives it. With --topic, every group of "
    "that topic receives it. The dead letter itself is kept and marked as resent."
)
_RESEND_COUNT = 100  # in one request
_DELETE_COUNT = 1000  # the same, of deletions


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "dlq", "list, show, resend, delete and export dead letters", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_list(actions)
    _add_show(actions)
    _add_resend(actions)
    _add_delete(actions)
    _add_export(actions)


def _add_list(actions: Commands) -> None:
    listing = new_command(
        actions,
        "list",
        "list groups with dead letters, or the dead letters of a group",
        _list,
        examples="  aerobee dlq list\n  aerobee dlq list billing --max 20 --json",
    )
    listing.add_argument(
        "group", metavar="GROUP", nargs="?", help="list its dead letters (default: count those of all groups)"
    )
    listing.add_argument("--max", metavar="N", type=options.count, default=100, help="at most N (default: 100)")
    _add_times(listing)
    options.add_endpoint(listing)
    options.add_json(listing)


def _add_show(actions: Commands) -> None:
    show = new_command(
        actions,
        "show",
        "show one dead letter with its body",
        _show,
        examples="  aerobee dlq show billing 17\n  aerobee dlq show billing 0102FC00000001",
    )
    show.add_argument("group", metavar="GROUP")
    show.add_argument("letter", metavar="OFFSET|ID", help="as `aerobee dlq list` shows them")
    options.add_endpoint(show)
    options.add_json(show)


def _add_resend(actions: Commands) -> None:
    resend = new_command(
        actions,
        "resend",
        "resend dead letters",
        _resend,
        details=_RESEND_DETAILS,
        examples="  aerobee dlq resend billing --offset 17\n  aerobee dlq resend billing --all --begin 2h --dry-run",
    )
    resend.add_argument("group", metavar="GROUP")
    what = resend.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--offset", metavar="N", type=options.offset, action="append", help="offset of a dead letter; may be repeated"
    )
    what.add_argument("--all", action="store_true", help="all dead letters, or those between --begin and --end")
    resend.add_argument("--topic", default="", help="target topic (default: the original topic of each)")
    resend.add_argument("--again", action="store_true", help="include dead letters that were resent before")
    resend.add_argument("--dry-run", action="store_true", help="print the number without sending")
    resend.add_argument("--body", metavar="TEXT", help="send this body instead, - for standard input")
    resend.add_argument("--tag", help="send this tag instead; empty: none")
    resend.add_argument("--key", action="append", help="send these keys instead; may be repeated")
    resend.add_argument(
        "--property", metavar="NAME=VALUE", type=options.pair, action="append", default=[], help="set a property"
    )
    resend.add_argument("--no-property", metavar="NAME", action="append", default=[], help="leave a property out")
    _add_times(resend)
    options.add_endpoint(resend)
    options.add_json(resend)


def _add_delete(actions: Commands) -> None:
    delete = new_command(
        actions,
        "delete",
        "delete dead letters",
        _delete,
        details="They are no longer shown, counted or resent. A consumer of the topic of dead letters still gets them.",
        examples="  aerobee dlq delete billing --offset 17\n  aerobee dlq delete billing --before 7d --yes",
    )
    delete.add_argument("group", metavar="GROUP")
    what = delete.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--offset", metavar="N", type=options.offset, action="append", help="offset of a dead letter; may be repeated"
    )
    what.add_argument("--before", metavar="TIME", type=options.moment, help="all that were given up before this time")
    what.add_argument("--all", action="store_true", help="all dead letters of the group")
    questions.add_confirmation(delete, "how many would be deleted")
    options.add_endpoint(delete)
    options.add_json(delete)


def _add_export(actions: Commands) -> None:
    export = new_command(
        actions,
        "export",
        "write dead letters as JSON lines",
        _export,
        examples="  aerobee dlq export billing --output letters.jsonl\n  aerobee dlq export billing | jq .body",
    )
    export.add_argument("group", metavar="GROUP")
    export.add_argument(
        "--output", metavar="FILE", type=options.output_file, help="a new file (default: -, standard output)"
    )
    _add_times(export)
    options.add_endpoint(export)


def _add_times(action: argparse.ArgumentParser) -> None:
    action.add_argument("--begin", metavar="TIME", type=options.moment, help="dead-lettered at or after this time")
    action.add_argument("--end", metavar="TIME", type=options.moment, help="dead-lettered at or before this time")


def _list(arguments: argparse.Namespace) -> int:
    if arguments.group is None:
        return _list_groups(arguments)

    async def work(client: Client) -> list[admin_v1.DeadLetter]:
        letters = client.admin.dead_letters(
            arguments.group, begin=arguments.begin, end=arguments.end, max_count=arguments.max
        )
        return [letter async for letter in letters]

    letters = with_client(arguments, work)
    if arguments.json:
        output.print_json([dead_letter_json(letter) for letter in letters])
        return 0
    output.print_table(
        ("offset", "given up", "topic", "message id", "tag", "keys", "size", "sent again"),
        (
            (
                letter.offset,
                output.short_time_text(letter.message.system_properties.store_timestamp.ToMilliseconds()),
                letter.origin_topic or "?",
                letter.message.system_properties.message_id,
                letter.message.system_properties.tag,
                " ".join(letter.message.system_properties.keys),
                output.size_text(letter.body_size),
                output.short_time_text(letter.resent_timestamp.ToMilliseconds())
                if letter.HasField("resent_timestamp")
                else "-",
            )
            for letter in letters
        ),
        empty=f"group {arguments.group} has no such dead letters",
        least=("keys", "tag", "size", "sent again"),
    )
    return 0


def _list_groups(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> list[admin_v1.DeadLetterQueue]:
        return [queue async for queue in client.admin.dead_letter_queues()]

    queues = with_client(arguments, work)
    if arguments.json:
        output.print_json([output.protobuf_json(queue) for queue in queues])
        return 0
    output.print_table(
        ("group", "dead letters", "oldest", "newest"),
        (
            (
                queue.group,
                queue.count,
                output.short_time_text(queue.oldest_timestamp.ToMilliseconds()),
                output.short_time_text(queue.newest_timestamp.ToMilliseconds()),
            )
            for queue in queues
        ),
        empty="no group has dead letters",
    )
    return 0


def _show(arguments: argparse.Namespace) -> int:
    letter_offset = decimal(arguments.letter)

    async def work(client: Client) -> admin_v1.DeadLetter | None:
        if letter_offset is not None:
            return await client.admin.dead_letter(arguments.group, letter_offset)
        async for letter in client.admin.dead_letters(arguments.group, message_id=arguments.letter, bodies=True):
            return letter
        return None

    letter = with_client(arguments, work)
    if letter is None:
        raise CommandError(
            f"group {arguments.group} has no dead letter {arguments.letter}; list them with: "
            f"aerobee dlq list {arguments.group}",
            exit_code=options.NOT_FOUND,
        )
    fields = dead_letter_json(letter)
    if arguments.json:
        output.print_json(fields)
        return 0
    times = ("bornTimestamp", "storeTimestamp", "resentTimestamp")
    output.print_facts(
        (
            name,
            output.time_text(value)
            if name in times and isinstance(value, int)
            else json.dumps(value, ensure_ascii=False)
            if isinstance(value, list | dict)
            else value,
        )
        for name, value in fields.items()
    )
    return 0


def _resend(arguments: argparse.Namespace) -> int:
    if arguments.offset and (arguments.begin, arguments.end) != (None, None):
        options.usage_error("--begin and --end go with --all")
    results = with_client(arguments, partial(_resent, arguments, _edit(arguments)))
    if arguments.dry_run:
        return output.print_result(
            {"group": arguments.group, "dryRun": True, "offsets": [each.offset for each in results]},
            f"would resend {output.counted(len(results), 'dead letter')} of {arguments.group}",
            as_json=arguments.json,
        )
    return outcomes.print_outcomes(
        arguments,
        results,
        lambda each: each.offset,
        done="resent",
        noun="dead letter",
        whose=arguments.group,
    )


async def _resent(
    arguments: argparse.Namespace, edit: admin_v1.DeadLetterEdit | None, client: Client
) -> list[admin_v1.ResendDeadLettersResponse.Result]:
    from aerobee_proto import admin_v1

    offsets = arguments.offset
    if offsets is None:
        letters = client.admin.dead_letters(arguments.group, begin=arguments.begin, end=arguments.end)
        offsets = [
            letter.offset async for letter in letters if arguments.again or not letter.HasField("resent_timestamp")
        ]
    if arguments.dry_run:
        return [admin_v1.ResendDeadLettersResponse.Result(offset=offset) for offset in offsets]
    results = []
    with output.counting("sending again", len(offsets)) as progress:
        for start in range(0, len(offsets), _RESEND_COUNT):
            batch = offsets[start : start + _RESEND_COUNT]
            results += await client.admin.resend_dead_letters(
                arguments.group, batch, topic=arguments.topic, again=arguments.again, edit=edit
            )
            progress(len(batch))
    return results


def _edit(arguments: argparse.Namespace) -> admin_v1.DeadLetterEdit | None:
    """What the options change; None: nothing."""
    from aerobee_proto import admin_v1

    edit = admin_v1.DeadLetterEdit(set_properties=dict(arguments.property), delete_properties=arguments.no_property)
    if arguments.body is not None:
        edit.body = sys.stdin.buffer.read() if arguments.body == "-" else os.fsencode(arguments.body)
    if arguments.tag is not None:
        edit.tag = arguments.tag
    if arguments.key is not None:
        edit.keys.values.extend(arguments.key)
    return edit if edit.ByteSize() else None


def _delete(arguments: argparse.Namespace) -> int:
    async def work(client: Client, *, dry_run: bool) -> int:
        offsets = arguments.offset or []
        batches = [offsets[start : start + _DELETE_COUNT] for start in range(0, len(offsets), _DELETE_COUNT)] or [[]]
        count = 0
        for batch in batches:
            count += await client.admin.delete_dead_letters(
                arguments.group, batch, before=arguments.before, everything=arguments.all, dry_run=dry_run
            )
        return count

    count = with_client(arguments, lambda client: work(client, dry_run=True))
    what = f"{output.counted(count, 'dead letter')} of {arguments.group}"
    fields = {"group": arguments.group, "count": count}
    if not questions.go_on(arguments, f"delete {what}", fields, loses_anything=count > 0):
        return 0
    if count:
        with_client(arguments, lambda client: work(client, dry_run=False))
    return output.print_result({**fields, "deleted": True}, f"deleted {what}", as_json=arguments.json)


def _export(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> int:
        count = 0
        letters = client.admin.dead_letters(arguments.group, begin=arguments.begin, end=arguments.end, bodies=True)
        bar = output.counting("exporting", beside_data=arguments.output is None)
        with bar as progress, _written(arguments.output) as file:
            async for letter in letters:
                print(json.dumps(dead_letter_json(letter), ensure_ascii=arguments.output is None), file=file)
                count += 1
                progress(1)
        return count

    count = with_client(arguments, work)
    if arguments.output is not None:
        note = f"wrote {output.counted(count, 'dead letter')} of {arguments.group} to {arguments.output}"
        print(note, file=sys.stderr)
    return 0


@contextmanager
def _written(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        raise CommandError(f"{path} exists already; name a new file") from None
    with file:
        yield file
