"""TLS with certificates on both sides, on every port and connection of brokers among themselves."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aerobee_broker.cli import main
from aerobee_broker.config import Address, AuthConfig, BrokerConfig
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.listening.peers import Peers
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.signature import PeerKey
from aerobee_broker.replication.authentication import NotAuthenticatedError, introduce
from aerobee_broker.replication.frames import encode_report
from aerobee_store.errors import ConfigError
from tests.support.broker_process import BrokerProcess, peer_arguments
from tests.support.broker_process import running as running_brokers
from tests.support.client_certificates import ClientAuthority
from tests.support.name_server import name_server_process
from tests.support.remoting_client import RemotingClient, bodies_of, send
from tests.support.replicating import eventually, master, replica
from tests.support.tls_records import trusting

pytestmark = pytest.mark.timeout(180)
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Cluster:
    """The secret and the authority of a cluster, and what a broker of it has."""

    authority: ClientAuthority
    peers: PeersConfig

    def with_certificate(self, files: tuple[Path, Path]) -> PeersConfig:
        return replace(self.peers, certificate=files[0], key=files[1])

    def stranger(self, kind: str) -> ssl.SSLContext | None:
        """What someone who knows the secret tries without a valid certificate; None: plaintext."""
        if kind == "plaintext":
            return None
        context = trusting()
        if kind == "expired":
            context.load_cert_chain(*self.authority.issue("expired", "CN=expired", days=-1))
        elif kind == "another authority":
            other = ClientAuthority.create(self.authority.file.with_name("other.crt"))
            context.load_cert_chain(*other.issue("stranger", "CN=broker"))
        return context


STRANGERS = ("plaintext", "no certificate", "another authority", "expired")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "secret").write_text("a secret of the cluster")
    authority = ClientAuthority.create(tmp_path / "cluster.crt")
    certificate, key = authority.issue("broker", "CN=broker")
    return Cluster(
        authority,
        PeersConfig(secret_key_file=tmp_path / "secret", certificate=certificate, key=key, authorities=authority.file),
    )


async def test_a_replica_follows_in_tls_and_is_promoted(tmp_path: Path, cluster: Cluster) -> None:
    """Log and tables go over TLS alone; afterwards the replica has both."""
    async with (
        master(tmp_path / "m", peers=cluster.peers, acks="1") as running,
        replica(tmp_path / "r", running.broker.remoting, peers=cluster.peers) as following,
    ):
        await following.lacks_nothing()

        async def is_replicated() -> bool:
            return (await send(running.client, "Orders", b"hello")).code == Answer.SUCCESS

        running.client.sign = None  # as a client
        await eventually(is_replicated)
        listening = await following.promote()
        assert listening.remoting is not None
        assert b"hello" in await bodies_of(listening.remoting, "Orders")


@pytest.mark.parametrize("kind", STRANGERS)
async def test_without_a_certificate_of_the_cluster_nothing_is_replicated(
    tmp_path: Path, cluster: Cluster, kind: str
) -> None:
    """Not even with the secret: neither the log nor a table is sent, and nothing is confirmed."""
    peers = Peers.load(cluster.peers)
    assert peers.key is not None
    async with master(tmp_path / "m", peers=cluster.peers, acks="1") as running:
        context = cluster.stranger(kind)
        with pytest.raises((OSError, EOFError, NotAuthenticatedError)):
            await _replicated(running.ha, context, peers.key)
        assert (await send(running.client, "Orders", b"hello")).code == Answer.SLAVE_NOT_AVAILABLE
        if context is None:
            stranger = await RemotingClient.connect(running.broker.remoting)
            stranger.sign = peers.sign
            refused = await stranger.call(Request.GET_ALL_TOPIC_CONFIG)
            assert refused.code == Answer.NO_PERMISSION
            assert "it does not use TLS; set peers.certificate" in (refused.remark or "")
            assert (await send(stranger, "Orders", b"of a client")).code == Answer.NO_PERMISSION  # signed as a broker
            stranger.sign = None
            assert (await send(stranger, "Orders", b"of a client")).code == Answer.SLAVE_NOT_AVAILABLE
            await stranger.close()
        else:
            assert not await _is_answered(running.broker.remoting, context, Request.GET_ALL_TOPIC_CONFIG)


@pytest.mark.parametrize("kind", ["another authority", "plaintext"])
async def test_a_replica_gives_nothing_to_a_false_master(tmp_path: Path, cluster: Cluster, kind: str) -> None:
    """A replica does not follow a master whose certificate is not of its cluster, and says why."""
    other = ClientAuthority.create(tmp_path / "false.crt")
    certificate, key = other.issue("false-master", "CN=broker")
    false = replace(cluster.peers, certificate=certificate, key=key, authorities=other.file)
    if kind == "plaintext":
        false = replace(cluster.peers, certificate=None, key=None, authorities=None)
    async with (
        master(tmp_path / "m", peers=false) as running,
        replica(tmp_path / "r", running.broker.remoting, peers=cluster.peers) as following,
    ):
        await send(running.client, "Orders", b"hello")

        async def is_refused() -> bool:
            found = (await following.status())["haClientRuntimeInfo"]
            assert found["maxOffset"] == 0
            assert not found["connected"]
            return bool(found["lastError"])

        await eventually(is_refused)


async def test_a_named_rocketmq_needs_neither(tmp_path: Path, cluster: Cluster) -> None:
    """A private address in `peers.addresses` may replicate in plaintext, as RocketMQ's brokers do."""
    async with master(tmp_path / "m", peers=replace(cluster.peers, addresses=(LOOPBACK,))) as running:
        await send(running.client, "Orders", b"hello")
        reader, writer = await asyncio.open_connection(running.ha.host, running.ha.port)
        writer.write(encode_report(0, "plain"))
        async with asyncio.timeout(60):
            assert await reader.readexactly(1)
        writer.close()


async def test_idle_connections_do_not_keep_the_replica_out_of_a_tls_port(tmp_path: Path, cluster: Cluster) -> None:
    """Neither those that send nothing nor those that begin a handshake."""
    async with master(tmp_path / "m", peers=cluster.peers) as running:
        idle = [await asyncio.open_connection(running.ha.host, running.ha.port) for _ in range(70)]
        for _, writer in idle[::2]:
            writer.write(b"\x16\x03\x01\x02\x00\x01")
        await send(running.client, "Orders", b"hello")
        async with replica(tmp_path / "r", running.broker.remoting, peers=cluster.peers) as following:
            await following.follows_to(100)
        for _, writer in idle:
            writer.close()


async def test_a_name_server_in_tls(tmp_path: Path, cluster: Cluster) -> None:
    """Brokers register over TLS; the secret alone is not enough; clients read routes in plaintext."""
    with name_server_process(tmp_path / "namesrv", arguments=peer_arguments(cluster.peers)) as (address, _):
        server = Address.parse(address)
        client = await RemotingClient.connect(server)
        async with master(tmp_path / "m", peers=cluster.peers, namesrv=(address,)):

            async def is_registered() -> bool:
                return b"aerobee" in (await client.call(Request.GET_BROKER_CLUSTER_INFO)).body

            await eventually(is_registered)
            peers = Peers.load(cluster.peers)
            client.sign = peers.sign
            fields = {"namespace": "n", "key": "k", "value": "v"}
            assert (await client.call(Request.PUT_KV_CONFIG, fields)).code == Answer.NO_PERMISSION
            member = await RemotingClient.connect(server, peers.context_to(server.host))
            assert (await member.call(Request.PUT_KV_CONFIG, fields)).code == Answer.NO_PERMISSION
            member.sign = peers.sign
            assert (await member.call(Request.PUT_KV_CONFIG, fields)).code == 0
            await member.close()
            for kind in STRANGERS[1:]:
                assert not await _is_answered(server, cluster.stranger(kind), Request.GET_BROKER_CLUSTER_INFO)
        await client.close()


async def test_fail_over_of_processes_in_tls(tmp_path: Path, cluster: Cluster) -> None:
    """The master is killed; its replica, promoted by the command with the certificate, has every message."""
    config = "[store]\nsegment_size = 1048576\n"
    first, second = (BrokerProcess(tmp_path, name, config=config, peers=cluster.peers) for name in "ab")
    async with running_brokers(first, second):
        await first.start("--role", "master", "--acks", "1")
        await second.start("--role", "replica", "--master", first.remoting, "--acks", "1")
        refused = await first.command("replication", proves=False)
        assert refused.returncode == 1
        assert "it does not use TLS; set peers.certificate" in refused.stderr
        await first.counts(1)
        sent = [b"%d" % number for number in range(20)]
        for body in sent:
            assert await first.send(body) == Answer.SUCCESS
        await second.follows(first)
        await first.kill()
        await second.promote()
        assert await second.bodies() == sent


def test_a_certificate_that_cannot_serve_refuses_the_start(tmp_path: Path, cluster: Cluster) -> None:
    """With its cause: expired, of another authority, without its key, without the secret."""
    expired = cluster.with_certificate(cluster.authority.issue("old", "CN=broker", days=-1))
    with pytest.raises(ConfigError, match=r"peers\.certificate: .*old\.crt does not serve brokers: .*expired"):
        Peers.load(expired)
    other = ClientAuthority.create(tmp_path / "another.crt")
    with pytest.raises(ConfigError, match=r"does not serve brokers: .*must be valid today, signed by"):
        Peers.load(cluster.with_certificate(other.issue("foreign", "CN=broker")))
    with pytest.raises(ConfigError, match=r"peers\.certificate, peers\.key: .* are not a certificate and its key"):
        Peers.load(replace(cluster.peers, key=cluster.authority.file))
    with pytest.raises(ConfigError, match=r"peers\.authorities: .* has no certificates"):
        Peers.load(replace(cluster.peers, authorities=cluster.peers.key))
    with pytest.raises(ConfigError, match=r"peers\.authorities: missing"):
        replace(cluster.peers, authorities=None)
    with pytest.raises(ConfigError, match=r"peers\.secret_key_file: missing; with peers\.certificate"):
        replace(cluster.peers, secret_key_file=None)


def test_a_renewed_certificate_is_used_without_a_restart(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """And one that cannot serve is not; the log says so."""
    peers, config = Peers.load(cluster.peers), cluster.peers
    assert config.certificate is not None
    assert config.key is not None
    first = peers.context_to(LOOPBACK)
    assert peers.context_to(LOOPBACK) is first
    for number, days in enumerate((2, -1)):
        for source, target in zip(
            cluster.authority.issue("new", "CN=broker", days=days), (config.certificate, config.key), strict=True
        ):
            shutil.copy(source, target)
            os.utime(target, (number + 1, number + 1))
        found = peers.context_to(LOOPBACK)
        assert found is not None
        assert (found is first) == (days < 0)
        first = found
    assert "not replaced" in caplog.text


@pytest.mark.parametrize(
    "flags",
    [
        {"replication.role": "master", "replication.listen": "0.0.0.0:10912"},
        {"replication.role": "replica", "replication.master": "10.0.0.5:10911"},
        {"broker.namesrv": "10.0.0.5:9876"},
    ],
    ids=["replicas", "master", "name server"],
)
def test_accounts_and_other_machines_need_secret_and_certificate(
    tmp_path: Path, cluster: Cluster, flags: dict[str, object]
) -> None:
    """The start is refused with the reason, unless the network is said to be private; on loopback nothing is needed."""
    (tmp_path / "accounts.toml").touch()
    given = {"auth.accounts": tmp_path / "accounts.toml", "listen.remoting": f"{LOOPBACK}:0", **flags}
    secret = {"peers.secret_key_file": cluster.peers.secret_key_file}
    files = {f"peers.{name}": getattr(cluster.peers, name) for name in ("certificate", "key", "authorities")}
    with pytest.raises(ConfigError, match=r"peers\.secret_key_file: missing; .* must prove who they are"):
        BrokerConfig.load(flags=given)
    with pytest.raises(ConfigError, match=r"peers\.certificate: missing; .* must use TLS"):
        BrokerConfig.load(flags={**given, **secret})
    BrokerConfig.load(flags={**given, **secret, **files})
    BrokerConfig.load(flags={**given, "peers.private_network": True})
    local = {
        name: str(value).replace("0.0.0.0", LOOPBACK).replace("10.0.0.5", LOOPBACK) for name, value in given.items()
    }
    BrokerConfig.load(flags=local)
    BrokerConfig.load(flags={**given, "auth.accounts": None})


def test_a_name_server_at_other_machines_needs_secret_and_certificate(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`aerobee namesrv` does not start without them, unless the network is said to be private."""
    command = ["namesrv", "--listen", "192.0.2.1:9876", "--store", str(tmp_path / "namesrv")]
    secret = ["--secret-key-file", str(cluster.peers.secret_key_file)]
    for arguments, reason in (
        (command, "peers.secret_key_file: missing; brokers that register at 192.0.2.1:9876 must prove who they are"),
        ([*command, *secret], "peers.certificate: missing; brokers that register at 192.0.2.1:9876 must use TLS"),
        ([*command, "--private-network"], "cannot listen on 192.0.2.1:9876"),  # no machine has this address
        ([*command, *peer_arguments(cluster.peers)], "cannot listen on 192.0.2.1:9876"),
    ):
        assert main(arguments) != 0
        assert reason in capsys.readouterr().err


def test_a_name_server_of_rocketmq_is_named(tmp_path: Path) -> None:
    """It can do neither, so its private address is given."""
    config = BrokerConfig.tiny(
        tmp_path,
        auth=AuthConfig(accounts=tmp_path / "accounts.toml"),
        listen=replace(BrokerConfig.tiny(tmp_path).listen, remoting=Address(LOOPBACK, 0)),
        namesrv=("10.0.0.5:9876",),
        peers=PeersConfig(addresses=("10.0.0.5",)),
    )
    assert config.peers.names("10.0.0.5")


async def _replicated(master: Address, context: ssl.SSLContext | None, key: PeerKey) -> bytes:
    """The first byte of the log that someone with the secret gets."""
    reader, writer = await asyncio.open_connection(master.host, master.port, ssl=context)
    try:
        await introduce(reader, writer, key)
        writer.write(encode_report(0, "plain"))
        return await reader.readexactly(1)
    finally:
        writer.close()


async def _is_answered(address: Address | None, context: ssl.SSLContext | None, code: int) -> bool:
    """Whether a connection with this context lasts until a request is answered."""
    try:
        stranger = await RemotingClient.connect(address, context)
    except OSError:
        return False
    try:
        await stranger.call(code)
    except OSError:
        return False
    finally:
        await stranger.close()
    return True
