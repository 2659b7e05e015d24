"""TLS and credentials with the released SDKs, unmodified: the same tests for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.listening.certificates import development_certificate
from aerobee_client.testing import BrokerProcess, run_broker
from tests.integration.conftest import StartProgram
from tests.support.official_sdks import GO, JAVA, NODE, PYTHON, OfficialSdk
from tests.support.sdk_program import SdkProgram, bodies, wait_group

Start = Callable[..., SdkProgram]

_BUILT = [
    pytest.mark.toolchain,
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="Java and Go run with `make test-sdks`"),
]
CONFIG = "[delivery]\npoll_seconds_max = 2\n"  # Node.js's client waits for a poll before it shuts down


@pytest.fixture(
    params=[
        pytest.param(each, marks=[each.mark, *(_BUILT if each in (JAVA, GO) else ())], id=each.name.lower())
        for each in (PYTHON, NODE, JAVA, GO)
    ]
)
def sdk(request: pytest.FixtureRequest) -> OfficialSdk:
    """The SDK under test."""
    chosen: OfficialSdk = request.param
    return chosen


@pytest.fixture
def start(sdk: OfficialSdk, start_program: StartProgram) -> Start:
    """Starts a program by its name."""
    return partial(start_program, sdk)


def round_trip(start: Start, broker: BrokerProcess, endpoint: str, topic: str, **options: Any) -> None:
    """Send a message to a simple consumer and a push consumer, which both acknowledge it."""
    group = options.pop("group", topic)
    simple = start("simple_consumer", endpoint, topic=topic, group=f"{group}-simple", **options)
    push = start("push_consumer", endpoint, topic=topic, group=f"{group}-push", **options)
    producer = start("producer", endpoint, topic=topic, **options)
    for program in (producer, simple, push):
        program.ready()
    producer.ask("send", messages=[{"body": "hello"}])
    received: list[dict[str, Any]] = []
    while not received:
        received = simple.ask("receive", count=1, invisible=60)["messages"]
    assert bodies(received) == ["hello"]
    simple.ask("acknowledge", bodies=["hello"])
    assert bodies(push.wait_messages(1)) == ["hello"]


# --- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate followed by its authority; its key is beside it, with the suffix `.key`."""
    path = tmp_path_factory.mktemp("tls") / "broker.crt"
    made = development_certificate("localhost")
    path.with_suffix(".key").write_bytes(made.key)
    path.write_bytes(made.certificate)
    return path


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[BrokerProcess]:
    """A broker that listens with and without TLS."""
    directory = tmp_path_factory.mktemp("aerobee")
    config = directory / "aerobee.toml"
    config.write_text(CONFIG)
    files = ("--tls-cert", str(certificate), "--tls-key", str(certificate.with_suffix(".key")))
    arguments = ("--dev", "--config", str(config), "--listen-tls", "127.0.0.1:0", *files)
    with run_broker(directory, arguments) as running:
        yield running


def test_an_sdk_with_tls(
    tls_broker: BrokerProcess, start: Start, sdk: OfficialSdk, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java and Go use TLS by default without checking certificates; Python and Node.js trust gRPC's authorities."""
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(certificate))
    assert tls_broker.tls_endpoint is not None
    topic = f"tls-{sdk.name.partition('.')[0].lower()}"
    round_trip(start, tls_broker, tls_broker.tls_endpoint, topic, tls=True)
    wait_group(tls_broker, f"{topic}-simple", lag=0)
    wait_group(tls_broker, f"{topic}-push", lag=0)


# --- Credentials --------------------------------------------------------------------------------------------

ACCOUNTS = """
[accounts.shop]
secret_key = "the shop's secret"
publish = ["shop-*"]
consume = ["shop-*"]
groups = ["shop-*"]

[accounts.operator]
secret_key = "the operator's secret"
admin = true
"""
SHOP = {"access_key": "shop", "secret_key": "the shop's secret"}


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that requires credentials."""
    directory = tmp_path_factory.mktemp("aerobee")
    config, accounts = directory / "aerobee.toml", directory / "accounts.toml"
    config.write_text(CONFIG)
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    with run_broker(directory, ("--dev", "--config", str(config), "--accounts", str(accounts))) as running:
        yield running


def refusal(program: SdkProgram) -> str:
    """The error of a producer that cannot start or send."""
    try:
        program.ready().ask("send", messages=[{"body": "hello"}])
    except AssertionError as error:
        return str(error)
    raise AssertionError("it was not refused")


def test_an_sdk_with_credentials(guarded_broker: BrokerProcess, start: Start, sdk: OfficialSdk) -> None:
    """It sends and receives within its account's permissions."""
    topic = f"shop-{sdk.name.partition('.')[0].lower()}"
    round_trip(start, guarded_broker, guarded_broker.endpoint, topic, **SHOP)


def test_an_sdk_without_the_right_credentials(guarded_broker: BrokerProcess, start: Start, sdk: OfficialSdk) -> None:
    """No credentials, an unknown account, a wrong secret key, another's topic: refused with a readable reason."""
    endpoint = guarded_broker.endpoint
    without = start("producer", endpoint, topic="shop-orders")
    unknown = start("producer", endpoint, topic="shop-orders", access_key="nobody", secret_key="a secret")
    wrong = start("producer", endpoint, topic="shop-orders", **(SHOP | {"secret_key": "another secret"}))
    others = start("producer", endpoint, topic="bank-transfers", **SHOP)
    assert "give the client an access key and a secret key" in refusal(without)
    assert "unknown access key or wrong secret key: 'nobody'" in refusal(unknown)
    assert "unknown access key or wrong secret key: 'shop'" in refusal(wrong)
    assert "account 'shop' may not use topic 'bank-transfers'" in refusal(others)
