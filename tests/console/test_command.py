"""`aerobee console` as a process."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerobee_broker.cli import main
from aerobee_broker.commands import console
from aerobee_broker.config import Address, BrokerConfig, ListenConfig, TlsConfig
from aerobee_broker.listening.certificates import development_certificate
from aerobee_client.testing import run_broker
from aerobee_store.config import StoreConfig
from aerobee_store.errors import ConfigError

pytestmark = pytest.mark.timeout(300)


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A console on a free port, and its address."""
    command = [sys.executable, "-m", "aerobee_broker", "console", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith(("ready console=http://127.0.0.1:", "ready console=https://127.0.0.1:"))
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


def test_the_console_serves_https(tmp_path: Path) -> None:
    """With a certificate of one's own; the cookie is for HTTPS, and plain HTTP is not answered."""
    issued = development_certificate("127.0.0.1")
    for name in ("certificate", "key", "authority"):
        (tmp_path / name).write_bytes(getattr(issued, name))
    trusted = ssl.create_default_context(cafile=str(tmp_path / "authority"))
    files = ("--https-cert", str(tmp_path / "certificate"), "--https-key", str(tmp_path / "key"))
    with run_broker(memory=True) as broker, running("--endpoint", broker.endpoint, *files) as (_, address):
        assert address.startswith("https://")
        with urllib.request.urlopen(address, timeout=60, context=trusted) as answer:
            assert b"<h1>" in answer.read()
            cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-") or "Secure" in cookie
        with pytest.raises(OSError, match="certificate verify failed"):
            urllib.request.urlopen(address, timeout=60, context=ssl.create_default_context())
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            urllib.request.urlopen(address.replace("https:", "http:"), timeout=60)


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
    assert "pip install '.[console]'" in capsys.readouterr().err


def test_the_default_address_is_this_machine_only() -> None:
    """Nobody else reaches a console by accident."""
    assert console.LISTEN_DEFAULT.startswith("127.0.0.1:")


def test_a_broker_brings_its_console_back_and_ends_with_it(tmp_path: Path) -> None:
    """`aerobee serve --console`: a console that is killed is started again, and both end together."""
    command = [
        *(sys.executable, "-m", "aerobee_broker", "serve", "--dev", "--store", str(tmp_path / "store")),
        *("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--console", "127.0.0.1:0"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("ready grpc=")
            for life in range(2):
                address = process.stdout.readline().strip().removeprefix("ready console=")
                with urllib.request.urlopen(address, timeout=60) as answer:
                    assert b"takes messages" in answer.read()
                (child,) = _children(process.pid)
                if life == 0:
                    os.kill(child, signal.SIGKILL)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert not Path(f"/proc/{child}").exists()
        finally:
            if process.poll() is None:
                process.kill()


def _children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"grpc": Address.parse("unix:/tmp/aerobee.sock")}, "over TCP only"),
        ({}, "clients of this broker need a certificate"),
    ],
)
def test_a_console_that_could_not_reach_its_broker_stops_the_start(
    tmp_path: Path, settings: dict[str, Address], text: str
) -> None:
    """Before anything is started."""
    listen = ListenConfig(console=Address("127.0.0.1", 8090), **settings)  # type: ignore[arg-type]  # only addresses
    tls = (
        TlsConfig()
        if settings
        else TlsConfig(certificate=tmp_path / "c", key=tmp_path / "k", client_authorities=tmp_path / "a")
    )
    with pytest.raises(ConfigError, match=text):
        BrokerConfig(store=StoreConfig(directory=tmp_path), listen=listen, tls=tls)
