"""Commands for monitoring, contexts, completion and definitions, with a real broker."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_client.testing import BrokerProcess
from tests.support.programs import program
from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def shell(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line of that broker, with an empty configuration of the user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Shell(broker.endpoint)


class TestMonitoring:
    @pytest.mark.parametrize(
        ("limits", "code", "word"),
        [(("5", "9"), 0, "OK"), (("2", "9"), 1, "WARNING"), (("1", "2"), 2, "CRITICAL")],
    )
    def test_lag_against_limits(self, shell: Shell, limits: tuple[str, str], code: int, word: str) -> None:
        """The exit codes of monitoring plugins; a limit may be reached, but not passed."""
        topic = f"checked-{code}"
        shell.text("topic", "create", topic, "--queues", "1")
        shell.lines("receive", topic, "--group", topic, "--wait", "0")
        shell.text("send", topic, "x", "--count", "5")
        arguments = ("check", "lag", "--group", topic, "--warn", limits[0], "--critical", limits[1])
        found, out, err = shell.run(*arguments)
        assert (found, err) == (code, "")
        assert out == f"lag of {topic} {word} - 5 messages behind\n"

    def test_ages_disks_and_syncs(self, shell: Shell) -> None:
        """Each takes limits in its own unit, and a broker that is down is unknown."""
        assert shell.text("check", "lag", "--warn", "1h", "--critical", "2h").startswith("lag OK - the oldest message")
        assert shell.text("check", "disk", "--warn", "100%", "--critical", "100%").startswith("disk OK - ")
        shell.text("send", "synced", "x")
        code, out, _ = shell.run("check", "sync", "--warn", "0s", "--critical", "1h")
        assert (code, "sync WARNING - the last took" in out) == (1, True)
        code, out, err = Shell("127.0.0.1:1").run("check", "disk", "--warn", "80%", "--critical", "90%")
        assert (code, "disk UNKNOWN - no broker answers" in out, err) == (3, True, "")
        assert shell.run("check", "lag", "--group", "nobody", "--warn", "1", "--critical", "2")[0] == 3

    def test_top_once(self, shell: Shell) -> None:
        """The busiest topic and the largest backlog."""
        shell.text("send", "busy", "x", "--count", "3")
        shell.lines("receive", "busy", "--group", "slow", "--max", "1", "--no-ack", "--invisible", "60")
        out = shell.text("top", "--once")
        assert " in/s, " in out.splitlines()[1]  # below the name and the number of problems
        [topic] = [line.split() for line in out.splitlines() if line.startswith("busy ")]
        assert topic[3] == "3"
        [group] = [line.split() for line in out.splitlines() if line.startswith("slow ")]
        assert group[1:3] == ["3", "1"]


class TestContexts:
    def test_a_context_is_the_default_of_commands(
        self, shell: Shell, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first one is used at once; another can be chosen for all commands, or for one."""
        monkeypatch.delenv("AEROBEE_ENDPOINT", raising=False)
        alone = Shell("")
        alone.text("context", "add", "here", "--endpoint", broker.endpoint)
        alone.text("context", "add", "nowhere", "--endpoint", "127.0.0.1:1")
        alone.text("topic", "list")
        assert "using nowhere" in alone.text("context", "use", "nowhere")
        assert "127.0.0.1:1" in alone.error("topic", "list")
        monkeypatch.setenv("AEROBEE_CONTEXT", "here")
        alone.text("topic", "list")
        monkeypatch.setenv("AEROBEE_CONTEXT", "absent")
        assert "no context 'absent'" in alone.error("topic", "list", code=3)
        monkeypatch.delenv("AEROBEE_CONTEXT")
        assert [(each["name"], each["current"]) for each in alone.json("context", "list")] == [
            ("here", False),
            ("nowhere", True),
        ]
        assert "known: here, nowhere" in alone.error("context", "use", "there", code=3)
        alone.text("context", "remove", "nowhere")
        assert "nowhere" not in alone.text("context", "list")

    def test_a_broken_file_is_named(self, shell: Shell, tmp_path: Path) -> None:
        """With the path, and what to do."""
        file = tmp_path / "config/aerobee/contexts.json"
        file.parent.mkdir(parents=True)
        file.write_text("{")
        assert f"{file}: cannot be read" in shell.error("topic", "list")


class TestCompletion:
    def words(self, shell: Shell, *words: str) -> list[str]:
        return shell.text("completion", "words", "--", *words).split()

    def test_commands_options_choices_and_names(self, shell: Shell) -> None:
        """What may follow is known for each place; names come from the broker."""
        shell.text("topic", "create", "complete-me")
        shell.text("group", "create", "complete-us")
        assert self.words(shell, "to") == ["top", "topic"]
        assert "describe" in self.words(shell, "topic", "")
        assert self.words(shell, "topic", "describe", "complete-") == ["complete-me"]
        assert self.words(shell, "group", "describe", "complete-") == ["complete-us"]
        assert "--group" in self.words(shell, "receive", "complete-me", "--g")
        assert self.words(shell, "receive", "complete-me", "--group", "complete-") == ["complete-us"]
        assert self.words(shell, "config", "log-level", "D") == ["DEBUG"]
        assert self.words(shell, "nothing", "") == []
        assert Shell("127.0.0.1:1").text("completion", "words", "--", "topic", "describe", "").split() == []

    @pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
    def test_each_shell_completes_commands_and_names(self, shell: Shell, tmp_path: Path, name: str) -> None:
        """As a person types it: a command, and a topic that the broker has."""
        shell_program = program(name)
        shell.text("topic", "create", f"typed-in-{name}")
        script = tmp_path / name
        script.write_text(shell.text("completion", name))
        environment = {**os.environ, "PATH": f"{_command(tmp_path)}:{os.environ['PATH']}", "TERM": "dumb"}
        environment["AEROBEE_ENDPOINT"] = shell.endpoint
        for typed, completed in (
            ("aerobee topic des", "describe"),
            (f"aerobee topic describe typed-in-{name[:2]}", f"typed-in-{name}"),
        ):
            assert _completed(str(shell_program), script, typed, environment) == completed


def _command(directory: Path) -> Path:
    """A directory with the command `aerobee`."""
    found = directory / "bin"
    found.mkdir()
    (found / "aerobee").write_text(f'#!/bin/sh\nexec {sys.executable} -m aerobee_broker "$@"\n')
    (found / "aerobee").chmod(0o755)
    return found


def _completed(program: str, script: Path, typed: str, environment: dict[str, str]) -> str:
    """What a shell makes of the last word after the tabulator. Its own files of settings are not read."""
    name, words = Path(program).name, typed.split()
    if name == "zsh":
        return _typed_in_zsh(program, script, typed, environment)
    if name == "bash":
        line = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _aerobee; echo ${{COMPREPLY[@]}}"
        command = [program, "--norc", "-c", f"source {script}; {line}"]
    else:
        command = [program, "--no-config", "-c", f"source {script}; complete -C '{typed}'"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    return done.stdout.strip()


def _typed_in_zsh(program: str, script: Path, typed: str, environment: dict[str, str]) -> str:
    """zsh completes at a terminal only. The line is completed, and then made the argument of `print`."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [program, "-f", "-i"], stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
    )
    os.close(terminal)
    try:
        os.write(controller, f"autoload -Uz compinit; compinit -u -D; source {script}; print -r -- READY'!'\n".encode())
        _read_until(controller, rb"READY!")
        os.write(controller, f"{typed}\t\x01print -r -- '{{'\x05'}}'\n".encode())
        return _read_until(controller, rb"\{(aerobee [^'{}]*)\}").split()[-1]
    finally:
        process.kill()
        process.wait(60)
        os.close(controller)


def _read_until(controller: int, wanted: bytes) -> str:
    """The first group of this expression, or all of it, once it is on the screen. The test's time limit ends it."""
    said = b""
    while (found := re.search(wanted, said)) is None:
        said += os.read(controller, 4096)
    return found[found.lastindex or 0].decode()


class TestDefinitions:
    def test_a_broker_is_made_like_another(self, shell: Shell, tmp_path: Path) -> None:
        """What is missing is created and what differs changed, after a diff; a second time nothing is left to do."""
        shell.text("topic", "create", "defined", "--queues", "3", "--type", "FIFO")
        shell.text("group", "create", "definers", "--max-attempts", "5", "--fifo")
        file = tmp_path / "broker.json"
        shell.run("definitions", "export", "--output", str(file))
        content = json.loads(file.read_text())
        content = {
            kind: {name: each for name, each in content[kind].items() if name in ("defined", "definers")}
            for kind in content
        }
        assert content["topics"]["defined"]["readQueueCount"] == 3
        file.write_text(json.dumps(content))
        assert shell.text("definitions", "apply", str(file)) == "nothing to change\n"
        shell.text("topic", "delete", "defined")
        shell.text("group", "update", "definers", "--max-attempts", "7")
        dry = shell.text("definitions", "apply", str(file), "--dry-run")
        assert "+ topic defined" in dry
        assert "maxAttempts: 7 -> 5" in dry
        assert "defined" not in [topic["name"] for topic in shell.json("topic", "list")]
        assert "made 2 changes" in shell.text("definitions", "apply", str(file))
        assert shell.text("definitions", "apply", str(file)) == "nothing to change\n"

    @pytest.mark.parametrize(
        "text",
        ["{", "[]", '{"queues": {}}', '{"topics": {"t": {"color": 1}}}', '{"topics": {"t": {"permission": "X"}}}'],
    )
    def test_a_wrong_file(self, shell: Shell, tmp_path: Path, text: str) -> None:
        """Nothing is changed, and the error names the file or the topic."""
        file = tmp_path / "wrong.json"
        file.write_text(text)
        code, _, err = shell.run("definitions", "apply", str(file))
        assert code == 1
        assert "wrong.json" in err or "'t'" in err
        assert "t" not in [topic["name"] for topic in shell.json("topic", "list")]


def test_a_person_at_the_terminal_sees_what_serves(tmp_path: Path) -> None:
    """Version, store, durability, addresses, how to stop, and the next commands; the ready line stays as it is."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "aerobee_broker", "serve", "--dev", "--store", str(tmp_path / "store")]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=terminal, stdout=subprocess.PIPE)
    os.close(terminal)
    try:
        said = b""
        while b"next, in another terminal" not in said:
            said += os.read(controller, 4096)
        text = said.decode()
        assert f"store       {tmp_path / 'store'}" in text
        for name in (
            "aerobee  ",
            "durability  sync",
            "clients     127.0.0.1:",
            "metrics     http://",
            "console     none; start one with: ",
            "to stop     Ctrl",
        ):
            assert name in text, text
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready grpc=127.0.0.1:")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        os.close(controller)
