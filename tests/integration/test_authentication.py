"""A broker that requires credentials: our client and commands, Telemetry, and accounts that change while it runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs lack it
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aerobee_broker import server
from aerobee_broker.cli import main
from aerobee_broker.config import Address, AuthConfig, BrokerConfig, ListenConfig
from aerobee_client import ConfigurationError, Credentials, ForbiddenError, Message, connect
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from aerobee_store.errors import ConfigError
from tests.support.accounts_file import write_accounts
from tests.support.in_process_broker import in_process_broker

pytestmark = pytest.mark.timeout(300)

SHOP = Credentials("shop", "the shop's secret")
OPERATOR = Credentials("operator", "the operator's secret")
BANK = """
[accounts.bank]
secret_key = "the bank's secret"
publish = ["*"]
consume = ["*"]
groups = ["*"]
"""
ACCOUNTS = f"""
[accounts.operator]
secret_key = "{OPERATOR.secret_key}"
admin = true

[accounts.shop]
secret_key = "{SHOP.secret_key}"
publish = ["orders"]
consume = ["orders"]
groups = ["billing"]
{BANK}
"""


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_accounts(tmp_path_factory.mktemp("accounts") / "accounts.toml", ACCOUNTS)


@pytest.fixture(scope="module")
def broker_arguments(accounts: Path) -> Sequence[str]:
    """A broker with three accounts."""
    return ("--dev", "--accounts", str(accounts))


async def test_an_account_is_limited_to_its_permissions(broker: BrokerProcess) -> None:
    """An account sends, receives, acknowledges and queries with its own topic and group. All else is refused."""
    async with connect(broker.endpoint, credentials=SHOP) as client:
        await client.producer().send(Message(topic="orders", body=b"hello"))
        consumer = client.simple_consumer("billing", "orders")
        [received] = await consumer.receive(wait_seconds=10)
        await consumer.ack(received)
        assert [stored.body async for stored in client.admin.query("orders", message_id=received.message_id)] == [
            b"hello"
        ]
        with pytest.raises(ForbiddenError, match="account 'shop' may not send to topic 'transfers'"):
            await client.producer().send(Message(topic="transfers", body=b"hello"))
        with pytest.raises(ForbiddenError, match="needs an account with admin = true"):
            await client.admin.delete_topic("orders")
    async with connect(broker.endpoint) as nobody:
        with pytest.raises(ForbiddenError, match="give the client an access key and a secret key"):
            await nobody.admin.list_topics()


async def test_a_handle_of_another_account_is_refused(broker: BrokerProcess) -> None:
    """Another account cannot use the group, and the client id names a different client under that account."""
    async with connect(broker.endpoint, credentials=OPERATOR) as operator:
        await operator.producer().send(Message(topic="transfers", body=b"1000"))
        consumer = operator.simple_consumer("auditors", "transfers")
        assert len(await consumer.receive(wait_seconds=10)) == 1
        client_id = consumer._telemetry.client_id
        async with connect(broker.endpoint, credentials=SHOP) as thief:
            with pytest.raises(ForbiddenError, match="may not be a consumer of group 'auditors'"):
                await thief.simple_consumer("auditors", "orders").receive(wait_seconds=1)
            stub: Any = thief._connection.peer.stubs.messaging
            metadata = thief._connection.signed((("x-mq-client-id", client_id),))
            answer = await stub.NotifyClientTermination(v2.NotifyClientTerminationRequest(), metadata=metadata)
            assert answer.status.code == v2.Code.OK  # its own client of that id, which is unknown
        assert await consumer.receive(wait_seconds=1.5) == []  # the message is not released


async def test_a_client_id_cannot_be_taken_from_its_owner(broker: BrokerProcess) -> None:
    """Two accounts that use one client id have two separate clients, whichever came first."""
    metadata = (("x-mq-client-id", "host@1@0@owner"),)
    request = v2.QueryRouteRequest(topic=v2.Resource(name="orders"))
    for credentials in (SHOP, OPERATOR, SHOP):
        async with connect(broker.endpoint, credentials=credentials) as client:
            stub: Any = client._connection.peer.stubs.messaging
            answer = await stub.QueryRoute(request, metadata=client._connection.signed(metadata))
            assert answer.status.code == v2.Code.OK


async def test_group_names_are_not_revealed(broker: BrokerProcess) -> None:
    """Listing a group's unfinished messages needs the right to consume as the group, whether it exists or not."""
    async with connect(broker.endpoint, credentials=SHOP) as client:
        stub: Any = client._connection.peer.stubs.admin
        for group in ("auditors", "no-such-group"):
            request = v2.ListMessageRequest(topic=v2.Resource(name="orders"), subscription=group)
            metadata = client._connection.signed((("x-mq-client-id", "c"),))
            answer = await stub.QueryMessage(request, metadata=metadata)
            assert answer.status.code == v2.Code.FORBIDDEN
            assert f"may not be a consumer of group {group!r}" in answer.status.message


async def test_telemetry_settings_need_permissions(channel: Any) -> None:
    """Settings that name a topic without permission end the stream with the reason."""
    metadata = (("x-mq-client-id", "a@1@0@b"), *SHOP.headers())
    call = v2.MessagingServiceStub(channel).Telemetry(metadata=metadata, timeout=20)
    for topic, code in (("orders", v2.Code.OK), ("transfers", None)):
        settings = v2.Settings(client_type=v2.ClientType.PRODUCER)
        settings.publishing.topics.add(name=topic)
        await call.write(v2.TelemetryCommand(settings=settings))
        if code is not None:
            assert (await call.read()).status.code == code
    with pytest.raises(grpc.aio.AioRpcError, match="FORBIDDEN: account 'shop' may not send to topic 'transfers'"):
        await call.read()


async def test_probes_need_no_credentials(channel: Any, broker: BrokerProcess) -> None:
    """Health probes work without an account."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service="apache.rocketmq.v2.MessagingService"), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_accounts_change_while_the_broker_runs(broker: BrokerProcess, accounts: Path) -> None:
    """A new account is accepted within about a second; a removed one is refused, and its Telemetry stream ends."""
    write_accounts(accounts, ACCOUNTS)
    bank = Credentials("bank", "the bank's secret")
    async with (
        connect(broker.endpoint, credentials=bank) as connected,
        grpc.aio.insecure_channel(broker.endpoint) as channel,
    ):
        await connected.producer().send(Message(topic="transfers", body=b"1000"))
        stub: Any = v2.MessagingServiceStub(channel)
        stream = stub.Telemetry(metadata=(("x-mq-client-id", "bank@1@0@b"), *bank.headers()), timeout=30)
        settings = v2.Settings(client_type=v2.ClientType.PRODUCER)
        settings.publishing.SetInParent()
        await stream.write(v2.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == v2.Code.OK

        write_accounts(
            accounts, ACCOUNTS.replace(BANK, '[accounts.newcomer]\nsecret_key = "of the newcomer"\nadmin = true\n')
        )
        deadline = time.monotonic() + 60
        async with connect(broker.endpoint, credentials=Credentials("newcomer", "of the newcomer")) as newcomer:
            while True:
                try:
                    await newcomer.admin.list_topics()
                    break
                except ForbiddenError:
                    assert time.monotonic() < deadline, broker.log_text()
        assert await stream.read() is EOF
        with pytest.raises(ForbiddenError, match="unknown access key or wrong secret key: 'bank'"):
            await connected.producer().send(Message(topic="transfers", body=b"1000"))
    assert "accounts reloaded" in broker.log_text()


def test_commands_sign_their_requests(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Credentials come from flags, a file or the environment; a refusal is one line."""

    def refusal(*arguments: str) -> str:
        """The error of `topic list`; empty if it succeeded."""
        code = main(["topic", "list", "--endpoint", broker.endpoint, *arguments])
        error = capsys.readouterr().err
        assert (code, error.count("\n")) == ((1, 1) if error else (0, 0))
        return error

    flags = ("--access-key", "operator", "--secret-key", OPERATOR.secret_key)
    file = tmp_path / "operator.toml"
    file.write_text(f'access_key = "operator"\nsecret_key = "{OPERATOR.secret_key}"\n')
    assert refusal(*flags) == refusal("--credentials", str(file)) == ""
    assert "give the client an access key and a secret key" in refusal()
    assert "needs an account with view = true or admin = true" in refusal(
        "--access-key", "shop", "--secret-key", SHOP.secret_key
    )
    assert refusal("--access-key", "operator") == "aerobee: the secret key of 'operator' is empty; give both keys\n"
    monkeypatch.setenv("AEROBEE_CREDENTIALS", str(file))
    assert refusal() == ""
    monkeypatch.setenv("AEROBEE_ACCESS_KEY", "nobody")
    monkeypatch.setenv("AEROBEE_SECRET_KEY", "a secret")
    assert "unknown access key or wrong secret key: 'nobody'" in refusal()
    assert refusal(*flags) == ""


@pytest.mark.parametrize(
    ("text", "cause"), [(None, "No such file"), ("access_key = 3", "needs access_key"), ("[", "TOML")]
)
def test_an_invalid_credentials_file_is_named(tmp_path: Path, text: str | None, cause: str) -> None:
    """The error has the path and the cause."""
    file = tmp_path / "credentials.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=rf"credentials\.toml: .*{cause}"):
        Credentials.load(file)


async def test_a_start_warns_of_missing_protection(
    tmp_path: Path, accounts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning without authentication, or with authentication but without TLS; none for loopback."""
    loopback, everywhere = Address("127.0.0.1", 0), Address("0.0.0.0", 0)
    guarded = AuthConfig(accounts=accounts)
    for number, (address, auth, warning) in enumerate(
        (
            (everywhere, AuthConfig(), "without authentication: anyone who can reach it"),
            (everywhere, guarded, "without TLS: anyone who can read the traffic"),
            (loopback, AuthConfig(), None),
            (loopback, guarded, None),
        )
    ):
        caplog.clear()
        listen = ListenConfig(grpc=address, metrics=loopback, drain_seconds=0)
        async with in_process_broker(tmp_path / str(number), listen=listen, auth=auth):
            warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == (warning is not None)
        assert warning is None or warning in warnings[0]


async def test_invalid_accounts_stop_the_start(tmp_path: Path) -> None:
    """The start fails before the store is touched."""
    broken = tmp_path / "accounts.toml"
    write_accounts(broken, "[accounts.shop]\n")
    config = BrokerConfig.tiny(tmp_path / "store", auth=AuthConfig(accounts=broken))
    with pytest.raises(ConfigError, match="shop: set either secret_key or secret_key_file"):
        await server.run(config, asyncio.Event(), lambda *_: None)
    assert not (tmp_path / "store").exists()
