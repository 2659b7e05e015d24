"""Commands typed in a terminal, with standard output redirected to a file.

Data goes to standard output; progress and notes go to standard error, which here is a terminal (a pty).
"""

from __future__ import annotations

import json
import os
import pty
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from aerobee_broker.cli import build_parser, main
from aerobee_client.testing import BrokerProcess, run_broker
from tests.integration.test_operator_commands import connected, dead
from tests.support import golden
from tests.support.shell import Shell
from tests.unit.broker.test_cli import commands

pytestmark = pytest.mark.timeout(300)

_SETTINGS: Final = {"topics.queue_count": 1, "delivery.invisible_seconds_min": 0.1}

# Each command with arguments, after the setup below; they run in this order. STORE is a store, NEW a new directory.
_BROKER_COMMANDS: Final = (
    "status",
    "topic create made",
    "topic update made --queues 9",
    "topic list",
    "topic describe orders",
    "topic delete made",
    "group create made",
    "group update made --max-attempts 3",
    "group list",
    "group describe billing",
    "group delete made",
    "group lag billing",
    "group reset billing orders --earliest --dry-run",
    "group skip billing orders --queue 0 --dry-run",
    "subscription list",
    "subscription delete orders stopped",
    "client list",
    "client describe CLIENT",
    "account list",
    "account whoami",
    "browse orders",
    "tail orders --last 1 --max 1",
    "delayed list",
    "transaction list",
    "top --once",
    "problems",
    "operations",
    "segments",
    "check disk --warn 100% --critical 100%",
    "check lag --warn 1000000 --critical 1000000",
    "check sync --warn 1h --critical 1h",
    "context add here --endpoint 127.0.0.1:8081",
    "context use here",
    "context list",
    "context remove here",
    "completion bash",
    "completion zsh",
    "completion fish",
    "completion words -- top",
    "definitions export",
    "topic create purged",
    "topic purge purged",
    "send orders hello --count 200",
    "receive orders --group billing",
    "query orders --key k",
    "query orders --backlog billing",
    "dlq list failed",
    "dlq show failed 0",
    "dlq resend failed --all",
    "dlq export failed",
    "dlq export failed --output -",
    "dlq delete failed --all",
    "config show",
    "config set delivery.poll_seconds_max=17",
    "config unset delivery.poll_seconds_max",
    "config log-level DEBUG",
    "bench --duration 1",
)
_STORE_COMMANDS: Final = (
    "store inspect STORE",
    "store verify STORE",
    "store dump STORE",
    "store repair STORE",
    "store rebuild STORE",
    "store backup STORE NEW",
    "version",
)
_ELSEWHERE: Final = {
    "console": "runs until it is stopped; tests/console reads its ready line from a pipe",
    "serve": "runs until it is stopped; test_command_line.py reads its ready line from a pipe",
    "namesrv": "runs until it is stopped, like serve",
    "client stacks": "asks a Java client, and prints its answer at once, without progress",
    "client verify": "asks a push consumer, and prints its answer at once, without progress",
    "client disconnect": "would end the client of the commands after it; prints one line, without progress",
    "definitions apply": "needs a file; test_shell_commands.py runs it, and it shows no progress",
    "delayed recall": "needs a message that waits; prints one line, without progress",
    "transaction commit": "needs an open transaction; prints one line, without progress",
    "transaction rollback": "needs an open transaction; prints one line, without progress",
    "client reconnect": "asks a Java client, and prints its answer at once, without progress",
    "replication": "prints the answer to one request, without progress",
    "promote": "prints the answer to one request, without progress",
    **dict.fromkeys(
        (f"spark {job}" for job in ("audit", "rebuild", "export", "replay", "stats", "lag", "table")),
        "Spark shows its own progress on standard error",
    ),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all commands, with dead letters of the group `failed`."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), settings=_SETTINGS) as running:
        shell = Shell(running.endpoint)
        dead(shell, "failing", "failed", "a", "b")
        for _ in range(2):
            shell.text("send", "orders", "hello", "--key", "k")
        for group in ("billing", "stopped"):
            shell.lines("receive", "orders", "--group", group, "--max", "1")
        yield running


def redirected(path: Path, *arguments: str) -> tuple[int, str]:
    """Run a command with standard output in a file and a terminal for standard error; the exit code and the screen."""
    ours, theirs = pty.openpty()
    seen = bytearray()

    def look() -> None:
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the other end is closed
                return
            seen.extend(chunk)

    reader = threading.Thread(target=look)
    reader.start()
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file, os.fdopen(theirs, "w") as terminal:
        patch.setattr("sys.stdout", file)
        patch.setattr("sys.stderr", terminal)
        code = main(arguments)
    reader.join()
    os.close(ours)
    return code, seen.decode()


def check(path: Path, *arguments: str) -> list[str]:
    """The lines of the file, of which none is on the screen."""
    code, screen = redirected(path, *arguments)
    assert code == 0, screen
    lines = path.read_text().splitlines()
    assert lines, f"nothing was written to the file; the screen shows {screen[:1000]!r}"
    assert not [line for line in lines if len(line.strip()) > 20 and line in screen]
    return lines


def test_every_command_is_run_here() -> None:
    """A new command has to be added to the tables above."""
    paths = [" ".join(path) for path in commands(build_parser())]
    ends = {path for path in paths if not any(other.startswith(f"{path} ") for other in paths)}
    run = {path for path in ends for line in (*_BROKER_COMMANDS, *_STORE_COMMANDS) if f"{line} ".startswith(f"{path} ")}
    assert not run & _ELSEWHERE.keys()
    assert run | _ELSEWHERE.keys() == ends


def test_output_of_broker_commands_in_a_file(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is in the file, and none of it on the screen."""
    monkeypatch.setenv("AEROBEE_ENDPOINT", broker.endpoint)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with connected(broker.endpoint, "watching", "orders") as client:
        for line in _BROKER_COMMANDS:
            lines = check(tmp_path / "out", *line.replace("CLIENT", client).split())
            if line.startswith("dlq export"):
                assert [json.loads(each)["body"] for each in lines] == ["a", "b"]


@pytest.mark.parametrize("line", _STORE_COMMANDS)
def test_output_of_a_store_command_in_a_file(line: str, tmp_path: Path) -> None:
    """All of it is in the file, and none of it on the screen."""
    case = golden.load("plain", tmp_path / "golden")
    arguments = line.replace("STORE", str(case.store)).replace("NEW", str(tmp_path / "new")).split()
    lines = check(tmp_path / "out", *arguments)
    if line.startswith("store dump"):
        assert [json.loads(each) for each in lines] == case.manifest["messages"]


def test_a_damaged_store_is_dumped_with_notes_on_the_screen(tmp_path: Path) -> None:
    """Findings are notes: they do not mix with the records."""
    case = golden.load("crash-mid", tmp_path / "golden")
    code, screen = redirected(tmp_path / "out", "store", "dump", str(case.store))
    assert code == 0
    assert "aerobee: " in screen
    assert all(json.loads(line) for line in (tmp_path / "out").read_text().splitlines())


@pytest.mark.parametrize("job", ["rebuild --store data", "export --store data --topic t"])
def test_directories_cannot_go_to_standard_output(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`-` is standard output everywhere, so it is not the name of a directory."""
    with pytest.raises(SystemExit):
        main(["spark", *job.split(), "--output", "-"])
    assert "- is standard output" in capsys.readouterr().err
