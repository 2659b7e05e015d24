"""Brokers and name servers that prove to each other who they are, as processes and in the test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.config import AuthConfig, BrokerConfig
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.errors import UnauthorizedError
from aerobee_broker.listening.peers import Peers
from aerobee_broker.namesrv import server as name_server
from aerobee_broker.remoting.permissions import Permissions, check_cluster
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.remoting_wire.signature import PeerKey
from aerobee_broker.replication.frames import ReplicaHandshake, encode_report
from aerobee_store import MessageStore, StoreConfig
from aerobee_store.errors import ConfigError
from tests.support.accounts_file import write_accounts
from tests.support.remoting_client import RemotingClient, send, signed
from tests.support.replicating import master, replica

pytestmark = pytest.mark.timeout(120)
SECRET = "a secret of the cluster"


@pytest.fixture
def peers(tmp_path: Path) -> PeersConfig:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    return PeersConfig(secret_key_file=file)


@pytest.fixture
def auth(tmp_path: Path) -> AuthConfig:
    text = '[accounts.operator]\nsecret_key = "operator-secret"\nadmin = true\n'
    return AuthConfig(accounts=write_accounts(tmp_path / "accounts.toml", text))


async def _stranger(address: Any, first: bytes) -> bytes:
    """Everything that the replication port sends to these first bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(first)
    try:
        async with asyncio.timeout(10):
            return await reader.read(-1)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_stranger_can_neither_read_the_log_nor_confirm(tmp_path: Path, peers: PeersConfig) -> None:
    """Without the secret nothing is sent, whichever protocol is spoken, and no send is answered as replicated."""
    async with master(tmp_path / "m", peers=peers, acks="1") as running:
        answer = await send(running.client, "Orders", b"hello")
        assert answer.code == Answer.SLAVE_NOT_AVAILABLE
        end = (1 << 20).to_bytes(8, "big")
        handshake = ReplicaHandshake(7).encode() + encode_report(0, "epochs")
        wrong = b"AEROAUTH" + bytes(64)
        for first in (encode_report(0, "plain"), end, handshake):
            assert await _stranger(running.ha, first) == b""
        assert len(await _stranger(running.ha, wrong)) == 64  # the challenge, and nothing after a wrong answer
        assert (await send(running.client, "Orders", b"again")).code == Answer.SLAVE_NOT_AVAILABLE


async def test_idle_connections_do_not_keep_the_replica_out(tmp_path: Path, peers: PeersConfig) -> None:
    """Of connections that have not authenticated the oldest make room; newer ones are not refused."""
    async with master(tmp_path / "m", peers=peers) as running, contextlib.AsyncExitStack() as idle:
        readers = []
        for _ in range(70):
            reader, writer = await asyncio.open_connection(running.ha.host, running.ha.port)
            idle.callback(writer.close)
            readers.append(reader)
        assert await readers[0].read(-1) == b""
        assert not readers[-1].at_eof()
        await send(running.client, "Orders", b"hello")
        async with replica(tmp_path / "r", running.broker.remoting, peers=peers) as following:
            await following.follows_to(100)


async def test_accounts_and_replication_keep_topics_groups_and_offsets(
    tmp_path: Path, peers: PeersConfig, auth: AuthConfig
) -> None:
    """The replica copies the tables by signed requests, and has them after its promotion."""
    async with master(tmp_path / "m", peers=peers, auth=auth) as running:
        operator = await RemotingClient.connect(running.broker.remoting)

        async def call(code: int, fields: dict[str, object], connection: RemotingClient = operator) -> Command:
            return await connection.call(code, signed("operator", fields))

        topic = {"topic": "Orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        assert (await call(Request.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
        offset = {"consumerGroup": "Billing", "topic": "Orders", "queueId": 0, "commitOffset": 0}
        await call(Request.UPDATE_CONSUMER_OFFSET, offset)
        async with replica(tmp_path / "r", running.broker.remoting, peers=peers, auth=auth) as following:
            await following.has_tables()
            await operator.close()
            listening = await following.promote()
            promoted = await RemotingClient.connect(listening.remoting)
            assert b"Orders" in (await call(Request.GET_ALL_TOPIC_CONFIG, {}, promoted)).body
            await promoted.close()


async def test_a_replica_without_tables_is_promoted_only_by_force(tmp_path: Path, peers: PeersConfig) -> None:
    """Its status says that topics, groups and offsets are missing."""
    async with replica(tmp_path / "r", None, master="127.0.0.1:1", peers=peers) as following:
        assert (await following.status())["haClientRuntimeInfo"]["tablesMissing"] is True
        refused = await following.client.call(Request.NOTIFY_BROKER_ROLE_CHANGED, {"masterBrokerId": 1})
        assert refused.code == Answer.SYSTEM_ERROR
        assert "aerobee promote --force" in (refused.remark or "")
        forced = {"masterBrokerId": 1, "force": True}
        assert (await following.client.call(Request.NOTIFY_BROKER_ROLE_CHANGED, forced)).code == 0
        await asyncio.wait_for(following.promoted, 60)


async def test_a_name_server_takes_registrations_of_signed_brokers_only(tmp_path: Path, peers: PeersConfig) -> None:
    """Neither registrations nor changes of routes without the secret; a living broker keeps its id."""
    key, other = Peers.load(peers), PeerKey("aerobee", b"another secret, longer")
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    from aerobee_broker.config import Address

    running = asyncio.create_task(
        name_server.run(
            Address("127.0.0.1", 0),
            tmp_path,
            stop,
            lambda address, _: bound.set_result(address),
            check=lambda request, connection: check_cluster(request, connection, key),
        )
    )
    client = await RemotingClient.connect(await bound)
    names = {"brokerName": "b", "clusterName": "c", "brokerId": "0", "topic": "T", "namespace": "n", "key": "k"}
    for code in (
        *(Request.REGISTER_BROKER, Request.WIPE_WRITE_PERMISSION_OF_BROKER, Request.DELETE_TOPIC_IN_NAME_SERVER),
        *(Request.PUT_KV_CONFIG, Request.UNREGISTER_BROKER),
    ):
        fields = {**names, "brokerAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912", "value": "v"}
        signers: tuple[PeerKey | Peers | None, ...] = (None, other, key)
        for signer in signers:
            request = Command(code, fields=dict(fields))
            if signer is not None:
                signer.sign(request)
            answer = await client.call(code, request.fields)
            assert (answer.code == Answer.NO_PERMISSION) == (signer is not key), (code, signer, answer.remark)
    await client.close()
    stop.set()
    assert await running == 0


def test_the_secret_is_asked_of_cluster_requests_only(peers: PeersConfig) -> None:
    """Clients of a broker without accounts need no secret."""
    key = Peers.load(peers)
    check_cluster(Command(Request.PULL_MESSAGE), None, key)
    for code in (Request.REGISTER_BROKER, Request.GET_ALL_TOPIC_CONFIG, Request.NOTIFY_BROKER_ROLE_CHANGED):
        with pytest.raises(UnauthorizedError):
            check_cluster(Command(code), None, key)
    for code in (Request.PULL_MESSAGE, Request.REGISTER_BROKER):
        request = Command(code)
        PeerKey("aerobee", b"another secret, longer").sign(request)
        with pytest.raises(UnauthorizedError, match="is another one"):
            check_cluster(request, None, key)


def test_with_accounts_the_name_of_the_cluster_needs_its_secret(
    tmp_path: Path, peers: PeersConfig, auth: AuthConfig
) -> None:
    """Whoever signs in the name of the cluster has the rights of its brokers, and must have their secret."""
    assert auth.accounts is not None
    key = Peers.load(peers)
    with MessageStore.open(StoreConfig.tiny(tmp_path / "store")) as store:
        permissions = Permissions(Accounts(auth.accounts), store, lambda client_id: None, key)
        for code in (Request.REGISTER_BROKER, Request.GET_ALL_TOPIC_CONFIG, Request.NOTIFY_BROKER_ROLE_CHANGED):
            request, other = Command(code), Command(code)
            key.sign(request)
            permissions.check(request)
            PeerKey("aerobee", b"another secret, longer").sign(other)
            with pytest.raises(UnauthorizedError, match="is another one"):
                permissions.check(other)


def test_replicas_at_other_machines_need_the_secret_with_accounts(tmp_path: Path, auth: AuthConfig) -> None:
    """The start is refused, with the reason."""
    flags = {
        "auth.accounts": str(auth.accounts),
        "listen.remoting": "127.0.0.1:0",
        "replication.role": "master",
        "replication.listen": "0.0.0.0:10912",
    }
    with pytest.raises(ConfigError, match="must prove who they are"):
        BrokerConfig.load(flags=flags)
    BrokerConfig.load(flags={**flags, "peers.addresses": "10.0.0.7"})
    with pytest.raises(ConfigError, match="is not private"):
        BrokerConfig.load(flags={**flags, "peers.addresses": "8.8.8.8"})


@pytest.mark.parametrize(
    "line",
    [
        *("aclEnable=true", "authenticationEnabled=true", "authorizationEnabled=true", "brokerRole=SYNC_MASTER"),
        *("brokerRole=SLAVE", "slaveReadEnable=true", "enableControllerMode=true", "tlsServerNeedClientAuth=require"),
        *("enableDLegerCommitLog=true", "allAckInSyncStateSet=true", "inSyncReplicas=2", "tls.server.mode=enforcing"),
    ],
)
def test_a_key_that_promises_what_is_not_supported_refuses_the_start(tmp_path: Path, line: str) -> None:
    """Ignoring it would break the promise; without a promise it is ignored as before."""
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"remove the line and (set|let)"):
        BrokerConfig.load(rocketmq_conf=conf)
    conf.write_text("aclEnable=false\nbrokerRole=ASYNC_MASTER\nslaveReadEnable=false\n")
    BrokerConfig.load(rocketmq_conf=conf)
