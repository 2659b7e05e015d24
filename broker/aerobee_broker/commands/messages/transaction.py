"""`aerobee transaction`: transactions without a decision: list them, and decide them in place of their producer."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from aerobee_broker.commands.terminal import options, outcomes, output, questions
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client
from aerobee_broker.message_json import waiting_message_json

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1

    Results = list[admin_v1.DecideTransactionsResponse.Result]

_EXAMPLES = """\
  aerobee transaction list
  aerobee transaction commit orders 0102FC000000014AB00B13010700000000
  aerobee transaction rollback orders 0102FC000000014AB00B13010700000000 --dry-run
"""
_DETAILS = "Use this if the producer is gone, and somebody knows what it would have said. A decision is final."
_DECIDE_COUNT = 1000  # the limit of a request


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "transaction", "list and decide open transactions", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = new_command(
        actions, "list", "list open transactions, the oldest first", _list, examples="  aerobee transaction list orders"
    )
    listing.add_argument("topic", metavar="TOPIC", nargs="?", default="", help="(default: all topics)")
    listing.add_argument("--max", metavar="N", type=options.count, default=100, help="at most N (default: 100)")
    deciding = [
        new_command(actions, name, summary, run, details=_DETAILS, examples=f"  aerobee transaction {name} orders ID")
        for name, summary, run in (
            ("commit", "deliver the messages of transactions", _commit),
            ("rollback", "drop the messages of transactions", _roll_back),
        )
    ]
    for action in deciding:
        action.add_argument("topic", metavar="TOPIC")
        action.add_argument("ids", metavar="ID", nargs="+", help="as `aerobee transaction list` shows")
        questions.add_confirmation(action, "how many would be decided")
    for action in (listing, *deciding):
        options.add_endpoint(action)
        options.add_json(action)


def _list(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> list[admin_v1.OpenTransaction]:
        found = client.admin.transactions(arguments.topic, max_count=arguments.max)
        return [transaction async for transaction in found]

    transactions = with_client(arguments, work)
    if arguments.json:
        output.print_json([_json(transaction) for transaction in transactions])
        return 0
    output.print_table(
        ("open for", "topic", "transaction", "message id", "producer group", "asked", "asked next"),
        (
            (
                output.age_text(each.begin_timestamp.ToMilliseconds()),
                each.message.topic.name,
                each.transaction_id,
                each.message.system_properties.message_id,
                each.producer_group or "-",
                each.check_count,
                output.short_time_text(each.next_check_timestamp.ToMilliseconds())
                if each.HasField("next_check_timestamp")
                else "now",
            )
            for each in transactions
        ),
        empty="no transaction is open",
        least=("asked next", "asked", "producer group", "message id"),
    )
    return 0


def _json(transaction: admin_v1.OpenTransaction) -> dict[str, Any]:
    fields = output.protobuf_json(transaction)
    del fields["bodySize"]
    return fields | {"message": waiting_message_json(transaction.message, transaction.body_size)}


def _commit(arguments: argparse.Namespace) -> int:
    return _decide(arguments, "commit", "committed")


def _roll_back(arguments: argparse.Namespace) -> int:
    return _decide(arguments, "roll back", "rolled back")


def _decide(arguments: argparse.Namespace, what: str, done: str) -> int:
    ids = list(dict.fromkeys(arguments.ids))
    with_client(arguments, lambda client: _check(client, arguments.topic, ids))
    counted = f"{output.counted(len(ids), 'transaction')} of {arguments.topic}"
    if not questions.go_on(arguments, f"{what} {counted}", {"topic": arguments.topic, "transactionIds": ids}):
        return 0

    async def work(client: Client) -> Results:
        results: Results = []
        for start in range(0, len(ids), _DECIDE_COUNT):
            batch = ids[start : start + _DECIDE_COUNT]
            results += await client.admin.decide_transactions(arguments.topic, batch, commit=what == "commit")
        return results

    results = with_client(arguments, work)
    return outcomes.print_outcomes(
        arguments,
        results,
        lambda each: each.transaction_id,
        done=done,
        noun="transaction",
        whose=arguments.topic,
    )


async def _check(client: Client, topic: str, ids: list[str]) -> None:
    """CommandError for an id that is not open."""
    missing = set(ids)
    async for transaction in client.admin.transactions(topic):
        missing.discard(transaction.transaction_id)
        if not missing:
            return
    raise CommandError(
        f"transaction {min(missing)!r} of {topic} is not open: it is decided, or never was; list them with: "
        f"aerobee transaction list {topic}",
        exit_code=options.NOT_FOUND,
    )
