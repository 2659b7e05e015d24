"""The second port, two below the first: RocketMQ's replicas request topics there, its old clients everything."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.connection import FAST_PORT_DISTANCE, Connection, RemotingServer
from aerobee_broker.remoting_wire.frame import Command
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, records, remoting_broker, send
from tests.support.replicating import master


async def _attributes(client: RemotingClient) -> Any:
    answered = await client.call(Request.GET_ALL_TOPIC_CONFIG)
    return json_body(answered)["topicConfigTable"]["T"]["attributes"]


async def test_attributes_are_changes_for_replicas_of_rocketmq(tmp_path: Path) -> None:
    """An attribute without `+` before its name makes RocketMQ 5.3.3 copy no topic. Other clients get plain names."""
    async with master(tmp_path) as running:
        assert (await send(running.client, "T")).code == 0
        plain = await _attributes(running.client)
        assert plain["message.type"]
        bound = running.broker.remoting
        assert bound is not None
        try:
            fast = await RemotingClient.connect(Address(bound.host, bound.port - FAST_PORT_DISTANCE))
        except OSError:
            pytest.skip("another process has the port")
        assert await _attributes(fast) == {f"+{name}": text for name, text in plain.items()}
        await fast.close()


async def test_clients_with_a_vip_channel_use_a_broker_without_replication(tmp_path: Path) -> None:
    """What they send at the port minus two is in the same topics."""
    for turn in range(20):  # another program may use that port
        async with remoting_broker(tmp_path / str(turn)) as (running, client):
            bound = running.remoting
            assert bound is not None
            try:
                fast = await RemotingClient.connect(Address(bound.host, bound.port - FAST_PORT_DISTANCE))
                async with asyncio.timeout(20):
                    sent = await send(fast, f"Vip{turn}")
            except (OSError, TimeoutError):
                continue
            pulled = await client.call(Request.PULL_MESSAGE, pull_fields(f"Vip{turn}"))
            await fast.close()
            if sent.code == pulled.code == 0:
                assert [record.body for record in records(pulled.body)] == [b"hello"]
                return
    raise AssertionError("no broker of twenty had the port two below its own")


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
