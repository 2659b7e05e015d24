"""RocketMQ's name servers and brokers together with ours, with RocketMQ's client and mqadmin."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Final

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Answer, Request
from tests.cluster.conftest import MARKS, serve
from tests.cluster.java_program import Release, java_server, prepare_servers
from tests.support.name_server import our_name_server
from tests.support.remoting_client import RemotingClient
from tests.support.replicating import eventually

pytestmark = MARKS

SERVER_VERSIONS: Final = ("4.9.7", "5.3.3")  # the newest servers of release 4 in Maven's registry, and a late release 5
_NAMESRV: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER: Final = "org.apache.rocketmq.broker.BrokerStartup"


@pytest.fixture(scope="module", params=SERVER_VERSIONS)
def servers(request: pytest.FixtureRequest) -> Release:
    return prepare_servers(request.param)


def free_port() -> int:
    """A port below the ephemeral range whose neighbours, which a broker also uses, are free."""
    for port in range(20_000 + os.getpid() % 1000 * 10, 32_000, 10):
        if all(_is_free(port + offset) for offset in (-2, 0, 1)):
            return port
    raise AssertionError("no free port")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def _has_a_route(name_server: str, topic: str) -> None:
    """Wait until a name server knows a broker with this topic."""
    client = await RemotingClient.connect(Address.parse(name_server))

    async def has_one() -> bool:
        answer = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": topic})
        return answer.code == Answer.SUCCESS

    await eventually(has_one)
    await client.close()


def _admin(release: Release, home: Path, address: str, *lines: str) -> str:
    home.mkdir(parents=True, exist_ok=True)
    file = home / "commands"
    file.write_text("".join(f"{line}\n" for line in lines))
    return release.run(home, "AdminCommands", address, str(file)).stdout


def test_our_broker_registers_with_a_java_name_server(release: Release, servers: Release, tmp_path: Path) -> None:
    """clusterList shows it, and RocketMQ's client finds topics that our broker has just created."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with (
        java_server(servers, tmp_path / "namesrv", _NAMESRV, {"listenPort": port}),
        serve(tmp_path / "store", "--dev", "--namesrv", address) as line,
    ):
        done = release.run(tmp_path / "home", "RemotingStories", address, "send", "push")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        printed = _admin(release, tmp_path / "admin", address, "clusterList")
        assert line["remoting"] in printed


def test_a_java_broker_registers_with_our_name_server(release: Release, servers: Release, tmp_path: Path) -> None:
    """RocketMQ's client finds the broker and the topics that it creates on first use."""
    port = free_port()
    with our_name_server(tmp_path / "ns") as address:
        settings = {
            "brokerClusterName": "JavaCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "listenPort": port,
            "haListenPort": port + 1,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": address,
            "storePathRootDir": tmp_path / "store",
            "storePathCommitLog": tmp_path / "store" / "commitlog",
            "mappedFileSizeCommitLog": 1 << 20,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
        }
        with java_server(servers, tmp_path / "broker", _BROKER, settings):
            asyncio.run(_has_a_route(address, "TBW102"))  # release 5 is ready before its registration is
            done = release.run(tmp_path / "home", "RemotingStories", address, "send")
            assert "ok send" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
            printed = _admin(release, tmp_path / "admin", address, "clusterList", "topicList")
            assert f"127.0.0.1:{port}" in printed
            assert "JavaSend" in printed
