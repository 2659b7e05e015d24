"""The second port, two below the first: RocketMQ's replicas request topics there, its old clients everything."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.connection import FAST_PORT_DISTANCE, Connection, RemotingServer
from aerobee_broker.remoting_wire.frame import Command
from tests.support.ports import two_ports
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, records, remoting_broker, send
from tests.support.replicating import master


async def _attributes(client: RemotingClient) -> Any:
    answered = await client.call(Request.GET_ALL_TOPIC_CONFIG)
    return json_body(answered)["topicConfigTable"]["T"]["attributes"]


async def test_attributes_are_changes_for_replicas_of_rocketmq(tmp_path: Path) -> None:
    """An attribute without `+` before its name makes RocketMQ 5.3.3 copy no topic. Other clients get plain names."""
    fast_port, port = two_ports()
    async with master(tmp_path, remoting_port=port) as running:
        assert (await send(running.client, "T")).code == 0
        plain = await _attributes(running.client)
        assert plain["message.type"]
        fast = await RemotingClient.connect(Address("127.0.0.1", fast_port))
        assert await _attributes(fast) == {f"+{name}": text for name, text in plain.items()}
        await fast.close()


async def test_clients_with_a_vip_channel_use_a_broker_without_replication(tmp_path: Path) -> None:
    """What they send at the port minus two is in the same topics."""
    fast_port, port = two_ports()
    async with remoting_broker(tmp_path, remoting_port=port) as (_, client):
        fast = await RemotingClient.connect(Address("127.0.0.1", fast_port))
        assert (await send(fast, "Vip")).code == 0
        pulled = await client.call(Request.PULL_MESSAGE, pull_fields("Vip"))
        await fast.close()
        assert [record.body for record in records(pulled.body)] == [b"hello"]


async def test_a_fast_port_that_is_not_available(caplog: pytest.LogCaptureFixture) -> None:
    """The broker serves without it, and its log says what cannot connect."""

    async def answer(_request: Command, _connection: Connection) -> Command | None:
        return None

    server = RemotingServer(answer)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        await server.listen_fast(Address("127.0.0.1", port + FAST_PORT_DISTANCE))
    assert server.fast_port is None
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"VIP channel, cannot connect because port {port} is not available" in record.getMessage()
    await server.listen_fast(Address("127.0.0.1", FAST_PORT_DISTANCE))
    assert server.fast_port is None, "there is no port below 1"
    await server.stop(0)
