"""The command line without a broker: arguments, help and errors."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from aerobee_broker.cli import build_parser, main
from aerobee_broker.commands.terminal import options, output
from aerobee_client.messages.message import StoredMessage
from aerobee_proto import admin_v1, v2


def commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and sub-command of the parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub_parser in action.choices.items():
                yield (*path, name)
                yield from commands(sub_parser, (*path, name))


PARSER = build_parser()  # reading an argument does not change it
COMMANDS = [(), *commands(PARSER)]


@pytest.fixture
def refused() -> Iterator[str]:
    """An endpoint without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def exit_code(*arguments: str) -> int:
    """The exit code of a command."""
    try:
        return main(arguments)
    except SystemExit as ended:  # raised by argparse
        return int(str(ended.code))


class TestHelp:
    def test_the_documented_commands_exist(self) -> None:
        """Scripts rely on these command names."""
        expected = {"serve", "topic", "group", "send", "receive", "query", "store", "version"}
        expected |= {"status", "subscription", "client", "dlq", "config"}
        assert expected <= {path[0] for path in COMMANDS if path}
        for resource in ("topic", "group"):
            for action in ("create", "list", "describe", "delete"):
                assert (resource, action) in COMMANDS
        for action in ("inspect", "verify", "dump"):
            assert ("store", action) in COMMANDS
        for action in ("list", "show", "resend", "export"):
            assert ("dlq", action) in COMMANDS

    @pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
    def test_every_command_explains_itself_with_an_example(
        self, path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`--help` describes the command and has an example."""
        assert exit_code(*path, "--help") == 0
        text = capsys.readouterr().out
        assert "examples:" in text
        assert f"  aerobee {' '.join(path)}".rstrip() in text

    @pytest.mark.parametrize("path", [path for path in COMMANDS if path], ids=" ".join)
    def test_the_examples_in_the_help_are_valid(self, path: tuple[str, ...]) -> None:
        """Every example of every command parses, without the explanation that follows it."""
        import shlex

        parser = PARSER
        for name in path:
            (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
            parser = action.choices[name]
        lines = [line for line in (parser.epilog or "").splitlines() if line.startswith("  aerobee ")]
        assert lines
        for line in lines:
            words = shlex.split(line.strip().split("   ")[0])
            command = itertools.takewhile(lambda word: word not in ("|", "<", ">"), words)
            PARSER.parse_args(list(command)[1:])

    def test_one_command_alone_is_parsed_as_among_all(self) -> None:
        """The table names the right module for each command."""
        for name in {path[0] for path in COMMANDS if path}:
            alone, all_of_them = (
                next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
                for parser in (build_parser(name), PARSER)
            )
            assert len(alone) <= 2
            assert alone[name].format_help() == all_of_them[name].format_help()

    def test_help_does_not_wait_for_grpc(self) -> None:
        """No large module is imported before a command runs."""
        check = (
            "import sys, aerobee_broker.cli as cli\n"
            "cli.build_parser()\n"
            "sys.exit(' '.join({'grpc', 'numpy', 'rich', 'google.protobuf', 'asyncio'} & set(sys.modules)))"
        )
        ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
        assert ended.stderr.strip() == ""

    def test_the_module_is_the_command(self) -> None:
        """`python -m aerobee_broker` works with `version` and `--version`."""
        command = [sys.executable, "-m", "aerobee_broker"]
        for arguments in (["version"], ["--version"]):
            ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
            assert (ended.returncode, ended.stdout.split()[0]) == (0, "aerobee")


class TestUsage:
    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("nonsense",),
            ("topic",),
            ("topic", "create"),
            ("topic", "create", "t", "--queues", "0"),
            ("topic", "create", "t", "--type", "ODD"),
            ("group", "update", "g", "--pause", "--resume"),
            ("receive", "t"),
            ("receive", "t", "--group", "g", "--wait", "-1"),
            ("receive", "t", "--group", "g", "--max", "many"),
            ("receive", "t", "--group", "g", "--timeout", "0"),
            ("receive", "t", "--group", "g", "--invisible", "nan"),
            ("send", "t", "b", "--property", "novalue"),
            ("send", "t", "b", "--count", "0"),
            ("query", "t"),
            ("query", "t", "--key", "k", "--id", "i"),
            ("query", "t", "--time", "1"),
            ("query", "t", "--time", "yesterday", "now"),
            ("query", "t", "--time", "2", "1"),
            ("query", "t", "--id", "i", "--begin", "1"),
            ("query", "t", "--key", "k", "--begin", "2", "--end", "1"),
            ("query", "t", "--key", "k", "--group", "g"),
            ("receive", "t", "--group", "g", "--tags", "a", "--sql", "b = 1"),
            ("topic", "update", "t", "--permission", "some"),
            ("group", "create", "g", "--retry-delays", "soon"),
            ("group", "create", "g", "--retry-backoff", "1s,2s"),
            ("group", "create", "g", "--retry-delays", "1s", "--retry-backoff", "1s,2s,2"),
            ("group", "reset", "g", "t"),
            ("group", "reset", "g", "t", "--earliest", "--latest"),
            ("group", "reset", "g", "t", "--to-offset", "-1"),
            ("group", "skip", "g", "t"),
            ("client", "verify", "c", "--group", "g"),
            ("dlq", "resend", "g"),
            ("dlq", "resend", "g", "--offset", "1", "--all"),
            ("dlq", "resend", "g", "--offset", "1", "--begin", "1h"),
            ("config", "set"),
            ("config", "set", "novalue"),
            ("config", "log-level", "LOUD"),
            ("serve", "--flush", "sometimes"),
            ("store", "inspect"),
            ("store", "inspect", "dir", "--endpoint", "127.0.0.1:1"),
            ("store", "verify"),
        ],
        ids=" ".join,
    )
    def test_wrong_arguments_end_with_exit_code_two(
        self, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], refused: str
    ) -> None:
        """Usage errors go to standard error, without a traceback and without a request."""
        assert exit_code(*arguments) == 2
        captured = capsys.readouterr()
        assert "aerobee" in captured.err
        assert captured.out == ""
        assert "Traceback" not in captured.err

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (
                "store dump dir --odd",
                "aerobee store dump: error: unrecognized arguments: --odd; `aerobee store dump --help` shows",
            ),
            (
                "serve --listen-grpc x:1",
                "serve: error: unrecognized arguments: --listen-grpc x:1; did you mean --listen-replicas or --listen?",
            ),
            (
                "send orders x --tga=paid",
                "aerobee send: error: unrecognized arguments: --tga=paid; did you mean --tag?",
            ),
            ("receivve orders", "aerobee: error: argument COMMAND: invalid choice: 'receivve'; did you mean receive?"),
            ("topic lisst", "aerobee topic: error: argument COMMAND: invalid choice: 'lisst'; did you mean list?"),
            ("serve --flush asyncc", "argument --flush: invalid choice: 'asyncc'; did you mean async or sync?"),
            ("topic xyz", "invalid choice: 'xyz' (choose from"),
        ],
    )
    def test_an_unknown_word_refers_to_the_one_that_was_meant(
        self, arguments: str, error: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Else to the help of the command, or to all choices."""
        assert exit_code(*arguments.split()) == 2
        assert error in capsys.readouterr().err

    def test_the_endpoint_comes_from_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: str
    ) -> None:
        """AEROBEE_ENDPOINT replaces the default; the flag replaces both."""
        monkeypatch.setenv("AEROBEE_ENDPOINT", "from-environment:x")
        assert exit_code("topic", "list") == 1
        assert "from-environment:x" in capsys.readouterr().err
        assert exit_code("topic", "list", "--endpoint", refused) == 1
        assert refused in capsys.readouterr().err

    @pytest.mark.parametrize(
        "arguments",
        [
            ("topic", "list"),
            ("topic", "describe", "t"),
            ("topic", "delete", "t"),
            ("group", "create", "g"),
            ("send", "t", "body"),
            ("receive", "t", "--group", "g"),
            ("query", "t", "--key", "k"),
            ("store", "inspect"),
        ],
        ids=" ".join,
    )
    def test_no_broker_is_one_clear_line(
        self, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], refused: str
    ) -> None:
        """The exit code is 1, standard output is empty, and one line has the endpoint and the next step."""
        assert exit_code(*arguments, "--endpoint", refused) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert f"no broker answers at {refused}; start one with `aerobee serve`" in line

    def test_debug_shows_the_traceback(self, refused: str) -> None:
        """With --debug, before or after the command, the exception is raised."""
        from aerobee_client import UnavailableError

        for arguments in (["--debug", "topic", "list"], ["topic", "list", "--debug"]):
            with pytest.raises(UnavailableError):
                main([*arguments, "--endpoint", refused])

    def test_an_internal_error_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """An unexpected exception gives one line that refers to --debug."""
        monkeypatch.setattr("aerobee_broker.commands.version.text", lambda: 1 // 0)
        parser = argparse.ArgumentParser()
        parser.set_defaults(run=lambda arguments: 1 // 0)
        monkeypatch.setattr("aerobee_broker.cli.build_parser", lambda _command: parser)
        assert main([]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "internal error: ZeroDivisionError" in line
        assert "--debug" in line


class TestTimes:
    def test_numbers_are_unix_milliseconds(self) -> None:
        """A number is a time in Unix milliseconds."""
        assert options.moment("1700000000123") == 1_700_000_000_123

    def test_iso_times_without_a_zone_are_local(self) -> None:
        """A time without a zone is local."""
        assert options.moment("2026-01-31T12:00:00+00:00") == 1_769_860_800_000
        local = datetime(2026, 1, 31, 12).timestamp() * 1000
        assert options.moment("2026-01-31T12:00") == local

    def test_durations_are_before_now(self) -> None:
        """15m means 15 minutes ago."""
        now = options.moment("now")
        assert abs(now - options.moment("15m") - 900_000) < 60_000
        assert abs(now - options.moment("2 d") - 2 * 86_400_000) < 60_000

    @pytest.mark.parametrize("text", ["", "yesterday", "12:00", "9" * 12 + "d", "2026-13-01"])
    def test_invalid_times(self, text: str) -> None:
        """The error shows valid forms."""
        with pytest.raises(argparse.ArgumentTypeError, match="2026-01-31T12:00"):
            options.moment(text)


class TestOutput:
    def test_messages_as_json(self) -> None:
        """Text bodies are text, others are base64, and unset fields are omitted."""
        message = StoredMessage(
            topic="t",
            body=b"\xff",
            message_id="ID",
            tag=None,
            keys=("a",),
            properties={"x": "y"},
            message_group=None,
            queue_id=1,
            queue_offset=2,
            born_timestamp=3,
            born_host="h",
            store_timestamp=4,
            delivery_timestamp=None,
        )
        values = output.message_json(message)
        assert (values["bodyBase64"], values["keys"], values["properties"]) == ("/w==", ["a"], {"x": "y"})
        assert values.keys().isdisjoint(
            {"body", "tag", "messageGroup", "deliveryTimestamp", "receiptHandle", "corrupted"}
        )
        assert output.message_json(dataclasses.replace(message, corrupted=True))["corrupted"] is True
        json.dumps(values)

    def test_protocol_messages_as_json(self) -> None:
        """64-bit numbers stay numbers, enums are names, times are Unix milliseconds, and unset fields are omitted."""
        queue = admin_v1.QueueStatus(queue_id=1, min_offset=2, max_offset=1 << 60)
        queue.last_store_timestamp.FromMilliseconds(1_700_000_000_123)
        topic = admin_v1.Topic(name="t", accept_message_types=[v2.MessageType.FIFO], attributes={"b": "2", "a": "1"})
        answer = admin_v1.DescribeTopicResponse(topic=topic, queues=[queue, admin_v1.QueueStatus()])
        values = output.protobuf_json(answer)
        assert "status" not in values
        assert values["topic"]["acceptMessageTypes"] == ["FIFO"]
        assert list(values["topic"]["attributes"]) == ["a", "b"]
        assert values["queues"][0]["maxOffset"] == 1 << 60
        assert values["queues"][0]["lastStoreTimestamp"] == 1_700_000_000_123
        assert "lastStoreTimestamp" not in values["queues"][1]

    def test_bodies_in_tables_are_harmless(self) -> None:
        """Control characters are removed from bodies, and long bodies are cut."""
        assert "\x1b" not in output.body_text(b"\x1b[2Jhello")
        assert output.body_text(b"\xff\xfe") == "(2 bytes)"
        assert output.body_text(b"x" * 5000).endswith("... (5000 bytes)")

    def test_tables_do_not_read_markup(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Markup in values is shown literally, numbers have separators, and an empty table prints its text."""
        output.print_table(("name", "count"), [("[bold]x[/]", 1234567)], empty="none")
        shown = capsys.readouterr().out
        assert "[bold]x[/]" in shown
        assert "1,234,567" in shown
        output.print_table(("name",), [], empty="nothing yet")
        assert capsys.readouterr().out == "nothing yet\n"

    def test_impossible_times_are_shown_as_numbers(self) -> None:
        """Times out of range, as in a damaged store, are printed as numbers."""
        assert output.time_text(1 << 62) == str(1 << 62)


class TestStore:
    @pytest.mark.parametrize("action", ["inspect", "verify", "dump"])
    def test_no_directory(self, action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A missing directory gives exit code 2 and is named."""
        missing = tmp_path / "missing"
        assert exit_code("store", action, str(missing)) == 2
        assert str(missing) in capsys.readouterr().err
        assert not missing.exists()


@pytest.mark.parametrize("level", [logging.NOTSET, logging.DEBUG, logging.ERROR])
def test_a_command_restores_the_level_of_the_clients_logger(
    refused: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs, the client's warnings are left out; afterwards the program that ran it hears them as before."""
    logger = logging.getLogger("aerobee_client")
    monkeypatch.setattr(logger, "level", level)
    seen: list[int] = []

    async def work(_: object) -> None:
        seen.append(logger.level)
        raise OSError("broken")

    arguments = build_parser("topic").parse_args(["topic", "list", "--endpoint", refused])
    for arguments.debug, during in ((False, logging.ERROR), (True, level)):
        with pytest.raises(OSError, match="broken"):
            options.with_client(arguments, work)
        assert (seen.pop(), logger.level) == (during, level)
