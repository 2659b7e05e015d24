"""The command line and a real broker: a user's first steps, and the errors they meet."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(300)

READY = re.compile(r"ready grpc=127\.0\.0\.1:\d+ metrics=127\.0\.0\.1:\d+\n")


# Root without the capabilities that override file permissions.
AS_ANYBODY: Sequence[str] = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


def aerobee(*arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
    """Run the command once as a process; `prefix` is the command that starts it."""
    command = [*prefix, sys.executable, "-m", "aerobee_broker", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)


class TestTopicsAndGroups:
    def test_a_topic_from_creation_to_deletion(self, shell: Shell) -> None:
        """A topic is created, listed, described, changed, deleted, and then unknown."""
        created = shell.json("topic", "create", "orders", "--queues", "3", "--type", "fifo")
        assert (created["name"], created["readQueueCount"], created["acceptMessageTypes"]) == ("orders", 3, ["FIFO"])
        assert "orders" in [topic["name"] for topic in shell.json("topic", "list")]
        assert "orders" in shell.text("topic", "list")
        described = shell.json("topic", "describe", "orders")
        assert [queue["queueId"] for queue in described["queues"]] == [0, 1, 2]
        assert "FIFO" in shell.text("topic", "describe", "orders")
        assert shell.json("topic", "update", "orders", "--queues", "5")["readQueueCount"] == 5
        assert "deleted" in shell.text("topic", "delete", "orders")
        assert "orders" not in [topic["name"] for topic in shell.json("topic", "list")]
        assert "aerobee topic create orders" in shell.error("topic", "describe", "orders", code=3)

    def test_a_group_from_creation_to_deletion(self, shell: Shell) -> None:
        """The same for a consumer group."""
        created = shell.json("group", "create", "billing", "--fifo", "--max-attempts", "5")
        assert (created["name"], created["fifo"], created["maxAttempts"]) == ("billing", True, 5)
        assert "billing" in [group["name"] for group in shell.json("group", "list")]
        assert "fifo" in shell.text("group", "describe", "billing")
        assert shell.json("group", "update", "billing", "--pause")["consumeEnabled"] is False
        assert shell.json("group", "describe", "billing")["group"]["maxAttempts"] == 5
        shell.text("group", "delete", "billing")
        assert "billing" not in [group["name"] for group in shell.json("group", "list")]
        assert "does not exist" in shell.error("group", "describe", "billing", code=3)

    def test_an_invalid_name(self, shell: Shell) -> None:
        """The error includes the broker's reason."""
        assert "a b" in shell.error("topic", "create", "a b")


class TestMessages:
    def test_a_received_message_is_complete_and_acknowledged(self, shell: Shell) -> None:
        """Every part of a message is kept, and an acknowledged one does not come again."""
        (sent,) = shell.lines(
            *("send", "round-trip", "héllo", "--tag", "paid", "--key", "k1", "--key", "k2", "--property", "a=b=c")
        )
        (received,) = shell.lines("receive", "round-trip", "--group", "g")
        assert (received["body"], received["tag"], received["keys"]) == ("héllo", "paid", ["k1", "k2"])
        assert (received["properties"], received["deliveryAttempt"]) == ({"a": "b=c"}, 1)
        assert (received["messageId"], received["queueOffset"]) == (sent["messageId"], sent["queueOffset"])
        assert shell.lines("receive", "round-trip", "--group", "g", "--wait", "0") == []
        assert "no message" in shell.text("receive", "round-trip", "--group", "g", "--wait", "0")

    def test_an_unacknowledged_message_is_redelivered(self, shell: Shell) -> None:
        """With --no-ack --invisible the message comes again after its invisible time, as the next attempt."""
        shell.text("send", "looked-at", "x")
        (first,) = shell.lines("receive", "looked-at", "--group", "g", "--no-ack", "--invisible", "1")
        (second,) = shell.lines("receive", "looked-at", "--group", "g", "--wait", "20")
        assert second["messageId"] == first["messageId"]
        assert (first["deliveryAttempt"], second["deliveryAttempt"]) == (1, 2)

    @pytest.mark.parametrize(
        ("wanted", "shown"),
        [((), "abc"), (("--tags", "a || c"), "ac"), (("--tags", "x"), ""), (("--sql", "n = 1"), "b")],
    )
    def test_a_peek_changes_nothing(self, shell: Shell, wanted: tuple[str, ...], shown: str) -> None:
        """--no-ack shows what a group has not finished, and leaves it as it was: none in flight, none skipped."""
        for number, tag in enumerate("abc"):
            shell.text("send", "peeked", tag, "--tag", tag, "--property", f"n={number}")
        peek = ("receive", "peeked", "--group", "peeking", "--no-ack", "--wait", "0", *wanted)
        for _ in range(2):
            assert [message["body"] for message in shell.lines(*peek)] == list(shown)
        assert shell.lines(*peek, "--max", "1") == shell.lines(*peek)[:1]
        assert ("no message" in shell.text(*peek)) == (not shown)
        received = shell.lines("receive", "peeked", "--group", "peeking")
        assert [(message["body"], message["deliveryAttempt"]) for message in received] == [(tag, 1) for tag in "abc"]
        assert shell.lines(*peek) == []

    def test_a_peek_waits_for_a_message(self, shell: Shell) -> None:
        """--wait is the time until there is one to show."""
        shell.text("send", "awaited", "other", "--tag", "other")
        sender = threading.Timer(0.5, lambda: shell.text("send", "awaited", "this", "--tag", "this"))
        sender.start()
        peek = ("receive", "awaited", "--group", "g", "--no-ack", "--tags", "this", "--wait", "30")
        (shown,) = shell.lines(*peek)
        sender.join()
        assert shown["body"] == "this"

    @pytest.mark.parametrize("expression", ["&&", "||", " || ", "&& || &&"])
    @pytest.mark.parametrize("no_ack", [(), ("--no-ack",)])
    def test_an_expression_without_a_tag_is_refused(
        self, shell: Shell, expression: str, no_ack: tuple[str, ...]
    ) -> None:
        """It would select nothing and finish every message."""
        shell.text("send", "kept", "x", "--tag", "t")
        text = shell.error("receive", "kept", "--group", "g", "--tags", expression, *no_ack)
        assert "has no tag; write `TagA || TagB`" in text
        assert len(shell.lines("receive", "kept", "--group", "g")) == 1

    def test_a_delivery_without_acknowledgement_takes_no_filter(self, shell: Shell) -> None:
        """--no-ack --invisible delivers, and a delivery finishes what its filter does not select."""
        with pytest.raises(SystemExit):
            shell.run("receive", "x", "--group", "g", "--no-ack", "--invisible", "1", "--tags", "a")

    def test_any_bytes_from_standard_input(self, shell: Shell) -> None:
        """A binary body is sent unchanged."""
        shell.text("send", "bytes", "-", stdin=b"\x00\xff\n")
        (received,) = shell.lines("receive", "bytes", "--group", "g")
        assert received["bodyBase64"] == "AP8K"

    def test_many_at_once(self, shell: Shell) -> None:
        """--count sends copies, each with its own id; --max limits how many are received."""
        sent = shell.lines("send", "many", "x", "--count", "70")
        assert len({message["messageId"] for message in sent}) == 70
        first = shell.lines("receive", "many", "--group", "g", "--max", "50")
        rest = shell.lines("receive", "many", "--group", "g", "--max", "50")
        assert (len(first), len(rest)) == (50, 20)
        assert {message["messageId"] for message in first + rest} == {message["messageId"] for message in sent}

    def test_a_tag_filter(self, shell: Shell) -> None:
        """A group that subscribes to a tag gets the messages with that tag."""
        for tag in ("red", "green", "blue"):
            shell.text("send", "colours", tag, "--tag", tag)
        received = shell.lines("receive", "colours", "--group", "g", "--tags", "red || blue")
        assert sorted(message["body"] for message in received) == ["blue", "red"]

    def test_found_by_key_id_and_time(self, shell: Shell) -> None:
        """A query finds consumed messages by key, id and time, and no others."""
        begin = str(int(time.time() * 1000) - 1)
        sent = {key: shell.lines("send", "found", f"body {key}", "--key", key)[0] for key in ("a", "b", "c")}
        shell.lines("receive", "found", "--group", "g")
        (by_key,) = shell.lines("query", "found", "--key", "b")
        (by_id,) = shell.lines("query", "found", "--id", sent["b"]["messageId"])
        assert by_key == by_id
        assert (by_key["body"], by_key["messageId"]) == ("body b", sent["b"]["messageId"])
        by_time = shell.lines("query", "found", "--time", begin, "now")
        assert sorted(message["body"] for message in by_time) == ["body a", "body b", "body c"]
        assert len(shell.lines("query", "found", "--time", begin, "now", "--max", "2")) == 2
        assert shell.lines("query", "found", "--time", "1", "2") == []
        assert shell.lines("query", "found", "--key", "b", "--begin", begin) == [by_key]
        assert "no such message" in shell.error("query", "found", "--key", "b", "--end", begin, "--json", code=3)
        assert "body b" in shell.text("query", "found", "--key", "b")
        assert "no such message" in shell.error("query", "found", "--key", "nothing", code=3)
        assert "no such message" in shell.text("query", "found", "--time", "1", "2")

    def test_more_than_one_page_by_time(self, shell: Shell) -> None:
        """A query by time reads all pages and returns each message once."""
        sent = shell.lines("send", "pages", "x", "--count", "150")
        found = shell.lines("query", "pages", "--time", "1h", "now", "--max", "1000")
        assert sorted(message["messageId"] for message in found) == sorted(message["messageId"] for message in sent)

    def test_an_unknown_topic(self, shell: Shell) -> None:
        """A query does not create topics; the error says how to create one."""
        assert "aerobee topic create absent" in shell.error("query", "absent", "--key", "k", code=3)

    def test_refusals_of_the_broker_are_printed(self, shell: Shell) -> None:
        """An empty body violates the protocol; the error names the rule."""
        assert "MESSAGE_BODY_EMPTY" in shell.error("send", "refused", "")

    def test_the_store_of_the_running_broker(self, shell: Shell, broker: BrokerProcess) -> None:
        """`store inspect --endpoint` asks the broker and does not read its directory."""
        shell.text("send", "inspected", "x")
        status = json.loads(shell.text("store", "inspect", "--endpoint", broker.endpoint, "--json"))
        assert status["directory"] == str(broker.store)
        assert 0 < status["flushedPhysicalOffset"] <= status["maxPhysicalOffset"]
        assert str(broker.store) in shell.text("store", "inspect", "--endpoint", broker.endpoint)


class TestServe:
    def test_serve_prints_its_ports_and_stops_on_signals(self, tmp_path: Path) -> None:
        """One line on standard output names the free ports it chose; SIGTERM and SIGINT end it with exit code 0."""
        for number in (signal.SIGTERM, signal.SIGINT):
            process = start_serve(tmp_path / "store")
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert READY.fullmatch(line)
                assert ":0" not in line.replace(":0.", ".")
                process.send_signal(number)
                rest, errors = process.communicate(timeout=30)
                assert (process.returncode, rest) == (0, ""), errors
                assert "Traceback" not in errors
            finally:
                process.kill()
                process.wait()

    def test_messages_survive_a_restart(self, aerobee_broker: BrokerProcess) -> None:
        """Messages are kept over a clean restart and a kill, and the endpoint stays the same."""
        shell = Shell(aerobee_broker.endpoint)
        shell.text("send", "kept", "first")
        aerobee_broker.restart()
        shell.text("send", "kept", "second")
        aerobee_broker.kill()
        assert not aerobee_broker.running
        aerobee_broker.start()
        assert aerobee_broker.endpoint == shell.endpoint
        received = shell.lines("receive", "kept", "--group", "g")
        assert sorted(message["body"] for message in received) == ["first", "second"]
        assert aerobee_broker.stop() == 0

    def test_a_port_in_use(self, broker: BrokerProcess, tmp_path: Path) -> None:
        """The line names the setting and the address; the store is left neither locked nor incomplete."""
        for option, setting, address in (
            ("--listen", "listen.grpc", broker.endpoint),
            ("--metrics", "listen.metrics", broker.metrics),
        ):
            other = "--metrics" if option == "--listen" else "--listen"
            ended = serve(tmp_path / "store", option, address, other, "127.0.0.1:0")
            assert ended.returncode == 1
            assert f"{setting}: cannot listen on {address}" in error_line(ended)
        with run_broker(tmp_path) as second:
            assert second.running

    def test_a_store_in_use_by_another_broker(self, tmp_path: Path) -> None:
        """The second broker is refused and changes nothing; the first, which nobody uses, keeps running."""
        with run_broker(tmp_path) as first:
            before = content(first.store)
            ended = serve(first.store)
            assert ended.returncode == 1
            line = error_line(ended)
            assert str(first.store) in line
            assert "another process has this store open; stop it, or name another directory" in line
            assert content(first.store) == before
            Shell(first.endpoint).text("topic", "list")

    def test_a_foreign_directory(self, tmp_path: Path) -> None:
        """A directory with unrelated files is refused as a store."""
        directory = tmp_path / "photos"
        directory.mkdir()
        (directory / "beach.jpg").write_bytes(b"not a log")
        before = content(directory)
        ended = serve(directory)
        assert ended.returncode == 1
        assert str(directory) in error_line(ended)
        assert content(directory) == before

    def test_a_path_that_is_a_file(self, tmp_path: Path) -> None:
        """A file is not replaced by a store."""
        path = tmp_path / "file"
        path.write_bytes(b"mine")
        ended = serve(path)
        assert ended.returncode == 1
        assert str(path) in error_line(ended)
        assert path.read_bytes() == b"mine"

    @pytest.mark.skipif(
        bool(AS_ANYBODY) and shutil.which(AS_ANYBODY[0]) is None,
        reason="root may read everything, and there is no setpriv (util-linux) to give that up",
    )
    def test_a_directory_that_cannot_be_read(self, tmp_path: Path) -> None:
        """The error names the directory and the missing permission."""
        directory = tmp_path / "closed"
        directory.mkdir(mode=0)
        try:
            ended = serve(directory, prefix=AS_ANYBODY)
        finally:
            directory.chmod(0o700)
        assert ended.returncode == 1
        assert str(directory) in error_line(ended)

    def test_a_directory_that_cannot_be_made(self) -> None:
        """Not even root can create a directory in /proc."""
        ended = serve(Path("/proc/aerobee/store"))
        assert ended.returncode == 1
        assert "/proc/aerobee" in error_line(ended)

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (("--listen", "nonsense"), "listen.grpc"),
            (("--listen", "192.0.2.1:8081"), "192.0.2.1"),  # reserved for documentation: no machine has it
            (("--config", "/does/not/exist.toml"), "/does/not/exist.toml"),
            (("--rocketmq-conf", "/does/not/exist.conf"), "/does/not/exist.conf"),
        ],
        ids=["listen", "foreign", "config", "rocketmq-conf"],
    )
    def test_settings_that_cannot_work(self, tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
        """The line names the setting or the file."""
        ended = serve(tmp_path / "store", *arguments)
        assert ended.returncode == 1
        assert named in error_line(ended)


def serve(store: Path, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
    """Run a broker that must fail to start."""
    free = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    return aerobee(
        "serve", "--store", str(store), *free, *arguments, prefix=prefix
    )  # the last of a repeated option counts


def test_the_soft_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    """The soft limit is raised to half of the hard one, whatever the shell set; the store gets the other half."""
    with subprocess.Popen(
        ["bash", "-c", 'ulimit -S -n 256; exec "$@"', "-", *_serve_command(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready")
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            (line,) = (line for line in limits.splitlines() if line.startswith("Max open files"))
            soft, hard = line.split()[3:5]
            assert int(soft) == int(hard) // 2
        finally:
            process.terminate()
            process.wait(30)


def start_serve(store: Path) -> subprocess.Popen[str]:
    """A broker as a child process, with its output in pipes."""
    return subprocess.Popen(_serve_command(store), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _serve_command(store: Path) -> list[str]:
    free = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    return [sys.executable, "-m", "aerobee_broker", "serve", "--dev", "--store", str(store), *free]


def error_line(ended: subprocess.CompletedProcess[bytes]) -> str:
    """The line with the reason for the failed start; log lines may precede it.

    It is never a traceback or a ready line.
    """
    assert ended.stdout == b""
    text = ended.stderr.decode()
    assert "Traceback" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("aerobee: "))
    assert "internal error" not in line
    return line


def content(directory: Path) -> dict[str, bytes]:
    """Contents of every small file below a directory, and the name of every large one."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() if path.stat().st_size < 1 << 20 else b"" for path in files}


def test_the_fixture_chooses_free_ports(broker: BrokerProcess) -> None:
    """The fixture's ports are those that the broker listens on."""
    for address in (broker.endpoint, broker.metrics):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=60):
            pass
