"""Brokers that prove to each other who they are, with a lease in etcd and with name servers; and those that cannot."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from aerobee_broker.config import Address
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.remoting_wire.codes import Answer, Request
from tests.chaos.nemesis import BrokerClock
from tests.support.broker_process import peer_arguments
from tests.support.client_certificates import ClientAuthority
from tests.support.etcd import running_etcd
from tests.support.lease_group import Member, running
from tests.support.name_server import name_server_process
from tests.support.programs import without
from tests.support.remoting_client import RemotingClient

pytestmark = pytest.mark.timeout(300)
_SECONDS: Final = 120.0
_DAYS: Final = 86_400.0
WRONG: Final = {
    "another authority": "certificate verify failed: self-signed certificate",
    "not of our authority": "self-signed certificate",
    "expired": "certificate has expired",
    "plaintext": "it does not use TLS; set peers.certificate",
}
"""What a broker has that knows the secret, and the reason that is logged at one of the two sides."""


@pytest.fixture
def authority(tmp_path: Path) -> ClientAuthority:
    return ClientAuthority.create(tmp_path / "cluster.crt")


def _peers(authority: ClientAuthority, name: str, *, days: int = 1) -> PeersConfig:
    """A broker with a certificate of its own."""
    secret = authority.file.with_name("secret")
    secret.write_text("a secret of the cluster")
    certificate, key = authority.issue(name, f"CN={name}", days=days)
    return PeersConfig(secret_key_file=secret, certificate=certificate, key=key, authorities=authority.file)


def _wrong(kind: str, authority: ClientAuthority) -> PeersConfig:
    """`not of our authority`: it would accept ours."""
    directory = authority.file.parent
    if kind == "plaintext":
        return replace(_peers(authority, "plaintext"), certificate=None, key=None, authorities=None)
    if kind == "expired":
        return _peers(authority, "expired", days=-1)
    other = ClientAuthority.create(directory / "other.crt")
    wrong = _peers(other, "stranger")
    if kind == "not of our authority":
        both = directory / "both.crt"
        both.write_bytes(authority.file.read_bytes() + other.file.read_bytes())
        wrong = replace(wrong, authorities=both)
    return wrong


def _two_days_ago(member: Member) -> None:
    """Set the clock of a broker, which otherwise would not start with a certificate that has expired since."""
    try:
        clock = BrokerClock(member.directory)
    except RuntimeError as error:
        without(str(error))
    clock.set(-2 * _DAYS)
    member.environment = os.environ | clock.environment


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(_SECONDS):
        while not reached():  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.05)


async def _sent(member: Member, prefix: str) -> list[bytes]:
    bodies = [f"{prefix} {number}".encode() for number in range(20)]
    for body in bodies:
        assert await member.send(body) == Answer.SUCCESS
    return bodies


async def test_a_killed_master_is_replaced_and_returns_in_tls(tmp_path: Path, authority: ClientAuthority) -> None:
    """Log and tables go over TLS alone, in both directions, and no confirmed message is lost."""
    with running_etcd(tmp_path) as etcd:
        first, second = (Member(tmp_path, n, etcd, peers=_peers(authority, f"broker-{n}")) for n in (1, 2))
        async with running(first, second):
            await first.becomes_master(in_sync=2)
            sent = await _sent(first, "first")
            first.kill()
            await second.becomes_master()
            sent += await _sent(second, "second")
            first.start()
            await first.becomes_replica()
            await second.becomes_master(in_sync=2)
            second.kill()
            await first.becomes_master()
            assert await first.bodies() == sent


@pytest.mark.parametrize("kind", ["not of our authority", "expired"])
async def test_a_broker_with_a_wrong_certificate_gets_neither_log_nor_lease(
    tmp_path: Path, authority: ClientAuthority, kind: str
) -> None:
    """Although it reaches etcd: it is never in sync, so it does not replace a master that is killed."""
    with running_etcd(tmp_path) as etcd:
        first = Member(tmp_path, 1, etcd, peers=_peers(authority, "broker"), in_sync_seconds=2.0)
        stranger = Member(tmp_path, 2, etcd, peers=_wrong(kind, authority))
        if kind == "expired":
            _two_days_ago(stranger)
        async with running(first, stranger):
            epoch = (await first.becomes_master())["leaseEpoch"]
            sent = await _sent(first, "first")
            await _until(lambda: WRONG[kind] in first.log + stranger.log)
            assert (await first.status())["leaseInSync"] == [1]
            first.kill()
            await asyncio.sleep(2 * first.lease_seconds)
            first.start()
            assert (await first.becomes_master())["leaseEpoch"] == epoch + 1  # nobody took it meanwhile
            assert await first.bodies() == sent
            copied = [path.read_bytes() for path in stranger.store.rglob("*") if path.is_file()]
            assert copied
            assert not any(b"first 0" in content or b'"T"' in content for content in copied)


@pytest.mark.parametrize("kind", WRONG)
async def test_a_broker_with_a_wrong_certificate_is_not_registered(
    tmp_path: Path, authority: ClientAuthority, kind: str
) -> None:
    """One of the two logs has the reason, the other one says where it is. With a renewed certificate the broker
    registers."""
    log = tmp_path / "namesrv.log"
    with name_server_process(tmp_path / "namesrv", log, peer_arguments(_peers(authority, "namesrv"))) as (address, _):
        wrong = _wrong(kind, authority)
        broker = Member(tmp_path, 1, acks="0", namesrv=address, peers=wrong)
        if kind == "expired":
            _two_days_ago(broker)
        async with running(broker):
            await _until(lambda: "not registered" in broker.log and WRONG[kind] in broker.log + log.read_text())
            if kind != "plaintext":
                await _until(lambda: "may not accept peers.certificate" in broker.log + log.read_text())
            assert b'"brokerAddrs"' not in await _brokers(address)
            if kind == "plaintext":
                return
            assert wrong.certificate is not None
            assert wrong.key is not None
            assert wrong.authorities is not None
            for source, target in zip(
                (*authority.issue("renewed", "CN=broker"), authority.file),
                (wrong.certificate, wrong.key, wrong.authorities),
                strict=True,
            ):
                if source != target:
                    shutil.copy(source, target)
            await _until(lambda: ".registrar registered name_server" in broker.log)
            assert b'"brokerAddrs"' in await _brokers(address)


async def _brokers(name_server: str) -> bytes:
    """The brokers that it gives to clients."""
    client = await RemotingClient.connect(Address.parse(name_server))
    try:
        return (await client.call(Request.GET_BROKER_CLUSTER_INFO)).body
    finally:
        await client.close()
