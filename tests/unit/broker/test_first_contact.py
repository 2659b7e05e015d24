"""The first commands that `serve` suggests work unchanged on every kind of broker."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from aerobee_broker.cli import main
from aerobee_broker.commands.serve import banner, first_steps
from aerobee_broker.commands.terminal.options import complete_advice
from aerobee_broker.config import Address, AuthConfig, BrokerConfig, GroupsConfig, ListenConfig
from aerobee_broker.listening.listeners import Listening
from aerobee_client.testing import run_broker
from aerobee_store import StoreConfig

DEFAULT = Address("127.0.0.1", 8081)


def config(*, dev: bool = False, accounts: Path | None = None, groups: bool | None = None) -> BrokerConfig:
    return BrokerConfig(
        store=StoreConfig(directory=Path("data")),
        dev=dev,
        auth=AuthConfig(accounts=accounts),
        groups=GroupsConfig(auto_create=groups),
    )


def test_without_dev_topic_and_group_are_created_first() -> None:
    """Without dev mode, the steps create topic and group first. Each step has the options for this broker."""
    assert first_steps(config(dev=True), DEFAULT, "aerobee") == [
        "aerobee send hello 'hello, world'",
        "aerobee receive hello --group first",
    ]
    assert first_steps(config(), Address("0.0.0.0", 8081), "/x/aerobee") == [
        "/x/aerobee topic create hello",
        "/x/aerobee group create first",
        "/x/aerobee send hello 'hello, world'",
        "/x/aerobee receive hello --group first",
    ]
    steps = first_steps(config(groups=True, accounts=Path("accounts.toml")), Address("10.0.0.7", 9000), "aerobee")
    assert [step.split()[1] for step in steps] == ["topic", "send", "receive"]
    assert all(step.endswith(" --endpoint 10.0.0.7:9000 --credentials FILE") for step in steps)


@pytest.mark.parametrize(
    ("listening", "endpoint"),
    [("[::]:9000", "[::1]:9000"), ("[::1]:9000", "[::1]:9000"), ("0.0.0.0:9000", "127.0.0.1:9000"), ("a:1", "a:1")],
)
def test_the_endpoint_can_be_dialled(listening: str, endpoint: str) -> None:
    """The endpoint is valid also for IPv6 addresses and wildcard addresses."""
    steps = first_steps(config(dev=True), Address.parse(listening), "aerobee")
    assert all(step.endswith(f" --endpoint {endpoint}") for step in steps)


@pytest.mark.parametrize(
    ("console", "text"),
    [
        (None, "none; start one with: env/bin/aerobee console --endpoint 127.0.0.1:9000"),
        ("127.0.0.1:8090", "http://127.0.0.1:8090/"),
        ("0.0.0.0:8090", "http://127.0.0.1:8090/"),
        ("[::]:8090", "http://[::1]:8090/"),
        ("127.0.0.1:0", 'on a free port; the line "ready console=..." will name it'),
    ],
)
def test_the_banner_names_the_console(console: str | None, text: str) -> None:
    """As a browser on this machine finds it; a broker without one says how to start it."""
    listen = ListenConfig(console=None if console is None else Address.parse(console))
    settings = BrokerConfig(store=StoreConfig(directory=Path("data")), listen=listen)
    listening = Listening(grpc=Address("0.0.0.0", 9000))
    facts = dict(banner(settings, listening, Address("127.0.0.1", 5557), "env/bin/aerobee"))
    assert facts["console"] == text


@pytest.mark.parametrize("dev", [False, True])
def test_the_printed_steps_work(
    tmp_path: Path, dev: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps succeed unchanged, in order, on a broker with an empty store."""
    monkeypatch.delenv("AEROBEE_ENDPOINT", raising=False)
    with run_broker(tmp_path, ["--dev"] if dev else []) as broker:
        host, _, port = broker.endpoint.rpartition(":")
        for step in first_steps(config(dev=dev), Address(host, int(port)), "aerobee"):
            assert main(shlex.split(step)[1:]) == 0, step
        assert "hello, world" in capsys.readouterr().out


def test_advice_names_the_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice in an error works when copied: it creates the topic on the same broker."""
    monkeypatch.delenv("AEROBEE_ENDPOINT", raising=False)
    with run_broker(tmp_path, []) as broker:
        assert main(["send", "orders", "hello", "--endpoint", broker.endpoint]) == 3
        advised = capsys.readouterr().err.partition("with: ")[2].partition(" (")[0]
        assert advised == f"aerobee topic create orders --endpoint {broker.endpoint}"
        assert main(shlex.split(advised)[1:]) == 0
        assert main(["send", "orders", "hello", "--endpoint", broker.endpoint]) == 0
        assert main(["group", "list", "--endpoint", broker.endpoint]) == 0
        assert f"aerobee group create NAME --endpoint {broker.endpoint}" in capsys.readouterr().out


def test_advice_without_options_is_unchanged() -> None:
    """With the default endpoint no option is added."""
    given = argparse.Namespace(endpoint="127.0.0.1:8081", tls=False, tls_ca=None, credentials=None)
    text = "topic 'a' does not exist; create it with: aerobee topic create a"
    assert complete_advice(text, given) == text
    given.tls = True
    assert complete_advice(text, given) == f"{text} --tls"
