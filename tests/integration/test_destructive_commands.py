"""Every command, and whether it loses anything: those that do ask a person first, and tell in a dry run what goes."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from msgspec import Struct

from aerobee_broker.cli import build_parser, main
from aerobee_client import Message, connect
from aerobee_client.testing import BrokerProcess
from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(300)

READ = """
version, status, top, problems, operations, segments, check disk, check lag, check sync, replication,
topic list, topic describe, group list, group describe, group lag, subscription list, client list, client describe,
client stacks, browse, tail, query, delayed list, transaction list, dlq list, dlq show, dlq export,
definitions export, account whoami, account list, config show, context list,
completion bash, completion zsh, completion fish, completion words,
store inspect, store verify, store dump, spark audit, spark stats, spark lag
"""
"""They change nothing."""

CHANGE = """
serve, namesrv, console, bench: run until they are stopped, and remove nothing
send: adds messages
receive: takes messages for its group, which is what it is for
dlq resend: sends again; the dead letter stays
topic create, topic update, group create, group update: can be changed back, and remove no message
config set, config unset, config log-level: can be changed back
context add, context use, context remove: options under a name, nothing of a broker
client verify, client reconnect, client disconnect: what the client holds returns
store repair, store rebuild, store backup: dry runs unless --apply is given, or write a new directory
spark rebuild, spark export, spark table: write a new directory, or a table with versions
spark replay: sends again
"""


class Losing(Struct):
    """A command that loses something: what comes before it, its arguments, and what shows whether it was done."""

    prepare: Callable[[Shell, str], object]
    arguments: str
    """With `{name}`, and `{id}` for an open transaction."""
    state: Callable[[Shell, str], object]
    asks: str


def sent(shell: Shell, name: str) -> None:
    shell.text("topic", "create", name, "--queues", "1")
    shell.text("send", name, "x", "--count", "3")


def received(shell: Shell, name: str) -> None:
    """The group has a position behind two of three messages."""
    sent(shell, name)
    assert len(shell.lines("receive", name, "--group", name, "--max", "2")) == 2


def given_up(shell: Shell, name: str) -> None:
    sent(shell, name)
    shell.text("group", "create", name, "--max-attempts", "1")
    deadline = time.monotonic() + 120
    while letters(shell, name) != 3:
        assert time.monotonic() < deadline
        shell.lines("receive", name, "--group", name, "--no-ack", "--invisible", "0.1", "--wait", "0.1")


def delayed(shell: Shell, name: str) -> None:
    shell.text("topic", "create", name, "--type", "DELAY")
    shell.text("send", name, "x", "--delay", "3600", "--count", "2")
    deadline = time.monotonic() + 120
    while len(waiting(shell, name)) != 2:  # the timer follows its topic a moment later
        assert time.monotonic() < deadline


def waiting(shell: Shell, name: str) -> list[str]:
    return [each["messageId"] for each in shell.json("delayed", "list", name)]


def begun(shell: Shell, name: str) -> None:
    """An open transaction, in the topic and under an id that is found in the list."""
    shell.text("topic", "create", name, "--type", "TRANSACTION")

    async def leave_open() -> None:
        async with connect(shell.endpoint) as client:
            transaction = client.producer(transaction_checker=lambda _: "unknown").transaction()
            await transaction.send(Message(topic=name, body=b"x"))

    asyncio.run(leave_open())


def open_ones(shell: Shell, name: str) -> list[str]:
    return [each["transactionId"] for each in shell.json("transaction", "list", name)]


def defined(shell: Shell, name: str) -> None:
    Path(name).write_text(json.dumps({"topics": {name: {"readQueueCount": 2, "writeQueueCount": 2}}}))


def messages(shell: Shell, name: str) -> object:
    return len(shell.lines("browse", name)) if has_topic(shell, name) else "no topic"


def has_topic(shell: Shell, name: str) -> bool:
    return name in [each["name"] for each in shell.json("topic", "list")]


def has_group(shell: Shell, name: str) -> bool:
    return name in [each["name"] for each in shell.json("group", "list")]


def position(shell: Shell, name: str) -> object:
    return [queue.get("committedOffset") for queue in shell.json("group", "lag", name)["queues"]]


def letters(shell: Shell, name: str) -> int:
    counts: dict[str, int] = {each["group"]: each["count"] for each in shell.json("dlq", "list")}
    return counts.get(name, 0)


LOSE = {
    "topic delete": Losing(sent, "{name}", messages, "lose 3 messages of topic {name}"),
    "topic purge": Losing(sent, "{name}", messages, "lose 3 messages of topic {name}"),
    "group delete": Losing(received, "{name}", has_group, "delete group {name} and its positions in 1 topic"),
    "group reset": Losing(
        received, "{name} {name} --earliest", position, "move group {name} in {name}: deliver 2 messages again"
    ),
    "group skip": Losing(
        received, "{name} {name} --queue 0", position, "move group {name} in {name}: pass over 1 message"
    ),
    "subscription delete": Losing(
        received, "{name} {name}", position, "delete the position of group {name} in {name}, 1 message behind"
    ),
    "dlq delete": Losing(given_up, "{name} --all", letters, "delete 3 dead letters of {name}"),
    "delayed recall": Losing(
        delayed, "{name} --all", waiting, "recall 2 delayed messages of {name}, never to be delivered"
    ),
    "transaction commit": Losing(begun, "{name} {id}", open_ones, "commit 1 transaction of {name}"),
    "transaction rollback": Losing(begun, "{name} {id}", open_ones, "roll back 1 transaction of {name}"),
    "definitions apply": Losing(defined, "{name}", has_topic, "make 1 change"),
    "promote": Losing(
        lambda *_: None, "--force --remoting 127.0.0.1:1", lambda *_: None, "make 127.0.0.1:1 the master, and lose"
    ),
}


def leaves(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that does something, with its parser."""
    actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not actions:
        yield " ".join(path), parser
    for action in actions:
        for name, sub_parser in action.choices.items():
            yield from leaves(sub_parser, (*path, name))


def names(text: str) -> set[str]:
    return {name.strip() for line in text.strip().splitlines() for name in line.partition(":")[0].split(",")} - {""}


def test_every_command_is_in_one_table() -> None:
    """A new command is put into one of them, and with that asks or has a reason not to."""
    commands = dict(leaves(build_parser()))
    tables = [names(READ), names(CHANGE), set(LOSE)]
    assert set().union(*tables) == set(commands)
    assert sum(map(len, tables)) == len(commands), "a command is in two tables"
    for name, parser in commands.items():
        options = {option for action in parser._actions for option in action.option_strings}
        assert ("--yes" in options) == (name in LOSE), name
        if name in LOSE:
            assert "--dry-run" in options, name


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def typed(endpoint: str, arguments: list[str], answer: str) -> tuple[int, str]:
    """Exit code and standard error of a command of a person who answers this to a question."""
    err = Terminal()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()), redirect_stderr(err):
        patch.setenv("AEROBEE_ENDPOINT", endpoint)
        patch.setattr("sys.stdin", Terminal(answer))
        code = main(arguments)
    return code, err.getvalue()


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, object]:
    """Invisible times of a test."""
    return {"delivery.invisible_seconds_min": 0.1}


@pytest.mark.parametrize("command", LOSE)
def test_a_command_that_loses_something_asks_first(
    broker: BrokerProcess, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run tells and changes nothing, nor does a person who says no; yes, in words or as an option, goes on."""
    monkeypatch.chdir(tmp_path)
    shell, losing = Shell(broker.endpoint), LOSE[command]
    name = command.replace(" ", "-")
    losing.prepare(shell, name)
    before = losing.state(shell, name)
    id_ = open_ones(shell, name)[0] if "{id}" in losing.arguments else ""
    words = [*command.split(), *losing.arguments.format(name=name, id=id_).split()]
    if command != "promote":  # nobody is there to be promoted
        code, said = typed(broker.endpoint, [*words, "--dry-run"], "y\n")
        assert (code, said, losing.state(shell, name)) == (0, "", before)
    for answer in ("n\n", "\n", ""):
        code, said = typed(broker.endpoint, words, answer)
        assert said.startswith("this will " + losing.asks.format(name=name)), said
        assert said.endswith("go on? [y/N] aerobee: nothing was changed\n")
        assert (code, losing.state(shell, name)) == (1, before)
    if command == "promote":
        code, said = typed(broker.endpoint, [*words, "--yes"], "")
        assert "this will" not in said
        assert "no answer from 127.0.0.1:1" in said
        return
    code, said = typed(broker.endpoint, words, "y\n")
    assert (code, said.endswith("[y/N] ")) == (0, True), said
    assert losing.state(shell, name) != before


def test_yes_and_a_script_are_not_asked(broker: BrokerProcess) -> None:
    """`--yes` answers before the question; without a terminal nobody is there to answer."""
    shell = Shell(broker.endpoint)
    for name, ask in (("unasked", True), ("scripted", False)):
        sent(shell, name)
        if ask:
            assert typed(broker.endpoint, ["topic", "purge", name, "--yes"], "") == (0, "")
        else:
            shell.text("topic", "purge", name)
        assert messages(shell, name) == 0


def test_a_move_that_moves_nothing_asks_nothing(broker: BrokerProcess) -> None:
    """A reset to where the group is."""
    received(Shell(broker.endpoint), "unmoved")
    words = ["group", "reset", "unmoved", "unmoved", "--to-offset", "2"]
    assert typed(broker.endpoint, words, "") == (0, "")
