"""`aerobee context`: brokers by name, with the options that reach them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import contexts, options, output
from aerobee_broker.commands.terminal.options import CommandError, new_command

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands

_EXAMPLES = """\
  aerobee context add local --endpoint 127.0.0.1:8081
  aerobee context add production --endpoint broker.example:8081 --tls-ca ca.crt --credentials operator.toml
  aerobee context use production
  aerobee context list
"""
_DETAILS = (
    "The options of the context in use are the defaults of every command. Options and the environment override them; "
    "AEROBEE_CONTEXT names another context for one command."
)


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "context", "name brokers, and choose one", details=_DETAILS, examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add = new_command(
        actions, "add", "name a broker", _add, examples="  aerobee context add local --endpoint 127.0.0.1:8081"
    )
    use = new_command(actions, "use", "use a broker from now on", _use, examples="  aerobee context use production")
    remove = new_command(actions, "remove", "forget a name", _remove, examples="  aerobee context remove production")
    listing = new_command(actions, "list", "list the names", _list, examples="  aerobee context list")
    for action in (add, use, remove):
        action.add_argument("name", metavar="NAME")
    add.add_argument("--endpoint", metavar="HOST:PORT", required=True, help="the broker")
    for setting, text in (
        ("tls-ca", "certificate authority, PEM"),
        ("tls-cert", "certificate of the client, PEM"),
        ("tls-key", "its key, PEM"),
        ("credentials", "TOML file with access_key and secret_key"),
    ):
        add.add_argument(f"--{setting}", metavar="FILE", type=_file, help=text)
    options.add_json(listing)


def _file(text: str) -> str:
    from pathlib import Path

    return str(Path(text).absolute())


def _add(arguments: argparse.Namespace) -> int:
    kept = contexts.load()
    values = {name: getattr(arguments, name) for name in contexts.VARIABLES if getattr(arguments, name)}
    kept.contexts[arguments.name] = values
    if len(kept.contexts) == 1:
        kept.current = arguments.name
    contexts.save(kept)
    print(f"context {arguments.name}: {values['endpoint']}" + (", in use" if kept.current == arguments.name else ""))
    return 0


def _use(arguments: argparse.Namespace) -> int:
    kept = contexts.load()
    _check(kept, arguments.name)
    kept.current = arguments.name
    contexts.save(kept)
    print(f"using {arguments.name}: {kept.contexts[arguments.name]['endpoint']}")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    kept = contexts.load()
    _check(kept, arguments.name)
    del kept.contexts[arguments.name]
    if kept.current == arguments.name:
        kept.current = ""
    contexts.save(kept)
    print(f"removed context {arguments.name}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    kept = contexts.load()
    if arguments.json:
        output.print_json(
            [{"name": name, "current": name == kept.current, **kept.contexts[name]} for name in sorted(kept.contexts)]
        )
        return 0
    output.print_table(
        ("", "context", "endpoint", "credentials", "authority"),
        (
            (
                "*" if name == kept.current else "",
                name,
                values["endpoint"],
                values.get("credentials", "-"),
                values.get("tls_ca", "-"),
            )
            for name, values in sorted(kept.contexts.items())
        ),
        empty="no contexts; add one with: aerobee context add NAME --endpoint HOST:PORT",
        least=("authority", "credentials"),
    )
    return 0


def _check(kept: contexts.Contexts, name: str) -> None:
    if name not in kept.contexts:
        known = ", ".join(sorted(kept.contexts)) or "none"
        raise CommandError(f"there is no context {name!r}; known: {known}", exit_code=options.NOT_FOUND)
