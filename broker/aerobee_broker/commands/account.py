"""`aerobee account`: who the caller is, and what each account may do."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee account whoami
  aerobee account list
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "account",
        "show accounts and their rights",
        details="They are changed in the file of `aerobee serve --accounts`, which a broker reads again while it runs.",
        examples=_EXAMPLES,
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    whoami = new_command(
        actions, "whoami", "show the account of the caller", _whoami, examples="  aerobee account whoami"
    )
    listing = new_command(actions, "list", "list the accounts of the broker", _list, examples="  aerobee account list")
    for action in (whoami, listing):
        options.add_endpoint(action)
        options.add_json(action)


def _whoami(arguments: argparse.Namespace) -> int:
    answer = with_client(arguments, lambda client: client.admin.who_am_i())
    if arguments.json:
        fields = output.protobuf_json(answer)
        del fields["status"]
        output.print_json(fields)
        return 0
    if not answer.accounts_required:
        print("the broker requires no accounts: every caller may do everything")
        return 0
    account = answer.account
    output.print_facts(
        [
            ("account", account.access_key),
            ("role", _role(account)),
            *((name, _names(names)) for name, names in _lists(account)),
            *([("certificate", account.certificate)] if account.certificate else []),
        ]
    )
    return 0


def _list(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> list[admin_v1.Account]:
        return [account async for account in client.admin.accounts()]

    accounts = with_client(arguments, work)
    if arguments.json:
        output.print_json([output.protobuf_json(account) for account in accounts])
        return 0
    output.print_table(
        ("account", "role", "publish", "consume", "groups"),
        (
            (account.access_key, _role(account), *(_names(names) for _, names in _lists(account)[:3]))
            for account in accounts
        ),
        empty="the broker requires no accounts: every caller may do everything",
        cut=("publish", "consume", "groups"),
    )
    return 0


def _role(account: admin_v1.Account) -> str:
    roles = [name for name in ("admin", "view", "cluster") if getattr(account, name)]
    return ", ".join(roles) or "client"


def _lists(account: admin_v1.Account) -> list[tuple[str, list[str]]]:
    return [
        ("publish", list(account.publish)),
        ("consume", list(account.consume)),
        ("groups", list(account.groups)),
        ("producer groups", list(account.producer_groups)),
    ]


def _names(names: list[str]) -> str:
    return " ".join(names) or "-"
