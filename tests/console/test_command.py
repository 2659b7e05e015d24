"""`aerobee console` as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aerobee_broker.cli import main
from aerobee_broker.commands import console

pytestmark = pytest.mark.timeout(300)


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A console on a free port, and its address."""
    command = [sys.executable, "-m", "aerobee_broker", "console", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("ready console=http://127.0.0.1:")
            yield process, line.strip().removeprefix("ready console=")
        finally:
            if process.poll() is None:
                process.kill()


def test_the_console_serves_until_it_is_stopped() -> None:
    """Also without a broker; SIGTERM ends it with 0."""
    with running("--endpoint", "127.0.0.1:1") as (process, address):
        with urllib.request.urlopen(f"{address}healthz", timeout=60) as answer:
            assert answer.read() == b"ok\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_console_ends_with_the_process_that_started_it() -> None:
    """It sees the end of its input."""
    with running("--until-input-ends") as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_console_that_cannot_start_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """A taken address, a wrong one, a wrong URL, a certificate without its key."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, text in (
            (["--listen", f"127.0.0.1:{port}"], "cannot listen on 127.0.0.1"),
            (["--listen", "nowhere"], "is not an address"),
            (["--url", "ops.example"], "give one such as https://example.org/aerobee"),
            (["--https-cert", "c.pem"], "give both --https-cert and --https-key"),
            (["--https-cert", "none.pem", "--https-key", "none.pem", "--listen", "127.0.0.1:0"], "none.pem"),
        ):
            assert main(["console", *arguments]) == 1
            assert text in capsys.readouterr().err


def test_missing_packages_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["console"]) == 1
    assert "pip install 'aerobee[console]'" in capsys.readouterr().err


def test_the_default_address_is_this_machine_only() -> None:
    """Nobody else reaches a console by accident."""
    assert console.LISTEN_DEFAULT.startswith("127.0.0.1:")
