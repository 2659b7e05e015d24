"""Commands that look at messages, follow them, send many and remove them, with a real broker."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading

import pytest

from aerobee_client.testing import BrokerProcess
from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(300)


class TestBrowsing:
    def test_by_number_time_place_and_content(self, shell: Shell) -> None:
        """The last messages come with the newest one last; the other ways begin where they say."""
        shell.text("topic", "create", "browsed", "--queues", "1")
        for number in range(5):
            shell.text("send", "browsed", f"body {number}", "--tag", "even" if number % 2 == 0 else "odd")
        bodies = [f"body {number}" for number in range(5)]

        def found(*arguments: str) -> list[str]:
            return [message["body"] for message in shell.lines("browse", "browsed", *arguments)]

        assert found() == bodies
        assert found("--last", "2") == bodies[3:]
        assert found("--from", "1h", "--max", "3") == bodies[:3]
        assert found("--offset", "0:3") == found("--offset", "3") == bodies[3:]
        assert found("--tags", "odd") == bodies[1::2]
        assert found("--grep", "BODY 4") == bodies[4:]
        assert found("--from", "1h", "--to", "30m") == []
        assert "body 4" in shell.text("browse", "browsed")
        assert "no such message" in shell.text("browse", "browsed", "--grep", "nothing")
        code, _, err = shell.run("receive", "browsed", "--group", "nobody", "--no-ack", "--wait", "0")
        assert (code, err) == (0, "")
        assert "nobody" not in [group["name"] for group in shell.json("group", "list")]

    def test_lines_of_an_own_form(self, shell: Shell) -> None:
        """`--format` has the fields of the JSON; a wrong field names the right ones."""
        shell.text("send", "formatted", "hello", "--tag", "t", "--property", "region=north", "--key", "k")
        line = shell.text(
            "browse", "formatted", "--format", "{{{queueOffset}}}\\t{properties.region} {keys} {body}{tag}"
        )
        assert line == '{0}\tnorth ["k"] hellot\n'
        assert shell.text("query", "formatted", "--key", "k", "--format", "{messageGroup}{body}") == "hello\n"
        assert "the fields are body, bodyBase64" in shell.error("browse", "formatted", "--format", "{nothing}")
        with pytest.raises(SystemExit):
            shell.run("browse", "formatted", "--format", "{body")


class TestTailing:
    def test_messages_as_they_come(self, shell: Shell) -> None:
        """The last ones first, then those that are sent; `--max` ends it."""
        shell.text("send", "tailed", "old")
        sending = threading.Timer(0.5, lambda: shell_of(shell).text("send", "tailed", "new"))
        sending.start()
        lines = shell.lines("tail", "tailed", "--last", "1", "--max", "2")
        sending.join()
        assert [message["body"] for message in lines] == ["old", "new"]


def shell_of(shell: Shell) -> _Process:
    return _Process(shell.endpoint)


class _Process:
    """The command line in another process, for what runs beside a command of this one."""

    def __init__(self, endpoint: str) -> None:
        self._environment = {**os.environ, "AEROBEE_ENDPOINT": endpoint}

    def text(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "aerobee_broker", *arguments]
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=True, timeout=120
        ).stdout


class TestReceiving:
    def test_following(self, shell: Shell) -> None:
        """`--follow` waits for further messages, acknowledges, and ends after `--max`."""
        shell.text("send", "followed", "1")
        sending = threading.Timer(0.5, lambda: shell_of(shell).text("send", "followed", "2"))
        sending.start()
        lines = shell.lines("receive", "followed", "--group", "follower", "--follow", "--max", "2")
        sending.join()
        assert [message["body"] for message in lines] == ["1", "2"]
        assert shell.json("group", "lag", "follower")["lag"] == 0

    def test_a_mistyped_topic_is_not_created(self, shell: Shell) -> None:
        """Also by a broker for development; the error names what was probably meant."""
        shell.text("topic", "create", "invoices")
        said = shell.error("receive", "invioces", "--group", "typist", "--wait", "0", code=3)
        assert said == "aerobee: topic 'invioces' does not exist; did you mean 'invoices'?"
        assert "invioces" not in [topic["name"] for topic in shell.json("topic", "list")]
        shell.text("group", "create", "accounting")
        assert "did you mean 'accounting'?" in shell.error("group", "describe", "acounting", code=3)
        said = shell.error("topic", "describe", "zzzzzzzz", code=3)
        assert said.startswith("aerobee: topic 'zzzzzzzz' does not exist; list all with: aerobee topic list; or create")


class TestSending:
    def test_each_line_is_a_message(self, shell: Shell) -> None:
        """Empty lines are left out, and the last line needs no line feed."""
        out = shell.text("send", "lined", "--lines", "--tag", "t", stdin=b"one\n\ntwo\r\nthree")
        assert out.startswith("sent 3 messages to lined")
        assert sorted((each["body"], each["tag"]) for each in shell.lines("browse", "lined")) == [
            *(("one", "t"), ("three", "t"), ("two", "t"))
        ]

    def test_messages_are_replayed(self, shell: Shell) -> None:
        """What query, browse and receive print as JSON is sent again with all that a producer can give."""
        shell.text("topic", "create", "first", "--queues", "1", "--type", "FIFO")
        shell.text("send", "first", "-", "--message-group", "g", "--key", "k", "--property", "a=b", stdin=b"\xff\x00")
        shell.text("send", "first", "text", "--message-group", "g", "--tag", "t")
        printed = shell.text("query", "first", "--time", "1h", "now", "--json")
        shell.text("topic", "create", "second", "--queues", "1", "--type", "FIFO")
        shell.text("send", "second", "--jsonl", stdin=printed.encode())
        unlike = ("topic", "messageId", "bornTimestamp", "storeTimestamp", "bornHost")
        before, after = (
            [
                {name: value for name, value in each.items() if name not in unlike}
                for each in shell.lines("browse", topic)
            ]
            for topic in ("first", "second")
        )
        assert before == after
        assert before[0]["bodyBase64"] == "/wA="

    @pytest.mark.parametrize("line", [b"no json", b"[]", b'{"tag": "t"}', b'{"bodyBase64": "!"}'])
    def test_a_wrong_line_is_named(self, shell: Shell, line: bytes) -> None:
        """With its number, and what it needs."""
        code, _, err = shell.run("send", "wrong", "--jsonl", stdin=b'{"body": "good"}\n' + line)
        assert (code, "line 2 is not a message" in err) == (1, True), err


class TestRemoving:
    def test_a_purge_tells_what_is_lost(self, shell: Shell) -> None:
        """A dry run only counts; then the topic is empty and still there."""
        shell.text("send", "purged", "x", "--count", "3")
        assert shell.text("topic", "purge", "purged", "--dry-run") == "would lose 3 messages of topic purged\n"
        assert len(shell.lines("browse", "purged")) == 3
        assert shell.json("topic", "purge", "purged")["purged"] is True
        assert shell.lines("browse", "purged") == []
        assert shell.json("topic", "delete", "purged", "--dry-run")["dryRun"] is True
        assert "purged" in [topic["name"] for topic in shell.json("topic", "list")]

    @pytest.mark.parametrize(("answer", "left"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)], ids=["no", "nothing", "yes"])
    def test_a_person_is_asked(self, shell: Shell, answer: bytes, left: int) -> None:
        """On a terminal a question comes first, and only yes goes on."""
        topic = f"asked-{answer.strip().decode()}-{left}"
        shell.text("send", topic, "x")
        controller, terminal = pty.openpty()
        command = [sys.executable, "-m", "aerobee_broker", "topic", "purge", topic, "--endpoint", shell.endpoint]
        process = subprocess.Popen(command, stdin=terminal, stderr=terminal, stdout=subprocess.DEVNULL)
        os.close(terminal)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(controller, 1000)
        assert b"1 message of topic" in said
        os.write(controller, answer)
        assert process.wait(120) == (1 if left else 0)
        os.close(controller)
        assert len(shell.lines("browse", topic)) == left


class TestErrors:
    def test_a_broker_that_is_down_is_reported_once(self) -> None:
        """One line in plain words, without gRPC's."""
        said = Shell("127.0.0.1:1").error("topic", "list")
        assert said.endswith("or give the right address (connection refused)")

    def test_the_port_of_the_metrics(self, broker: BrokerProcess) -> None:
        """Another port of the broker is told apart from no broker."""
        said = Shell(broker.metrics).error("topic", "list")
        assert "is not the gRPC address of a broker" in said

    def test_how_durable_the_broker_is(self, shell: Shell) -> None:
        """`status` says it in words, `config show` the unit of each value."""
        assert "sync: a message is on disk before its send is acknowledged" in shell.text("status")
        (setting,) = [each for each in shell.json("config", "show", "store.retention_hours")]
        assert setting["unit"] == "h"
        units = {each["name"]: each["unit"] for each in shell.json("config", "show")}
        assert (units["delivery.receive_bytes_max"], units["topics.queue_count"]) == ("bytes", "")
