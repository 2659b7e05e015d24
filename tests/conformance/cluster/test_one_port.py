"""Item 14 and 15: remoting on the port of gRPC, with and without TLS; connections that are silent."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from aerobee_broker.config import Address, ListenConfig
from aerobee_broker.remoting.codes import Request
from aerobee_proto import v2
from aerobee_store.travelling_clock import TravellingClock
from tests.support.in_process_broker import METADATA, in_process_broker, message
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, records, remoting_broker, send

_ANY = Address("127.0.0.1", 0)


async def test_c014_one_port_for_all(tmp_path: Path) -> None:
    """The first bytes tell gRPC, remoting and TLS apart; a message sent with the one is consumed with the other."""
    listen = ListenConfig(grpc=_ANY, tls=_ANY, metrics=_ANY, front="native", drain_seconds=0.5)
    async with in_process_broker(tmp_path, listen=listen) as broker:
        plain = Address.parse(broker.endpoint)
        client = await RemotingClient.connect(plain)
        await send(client, "orders", b"by remoting", queue_id=0)
        request = v2.SendMessageRequest(messages=[message("orders", b"by gRPC")])
        sent = await broker.messaging.SendMessage(request, metadata=METADATA)
        assert sent.status.code == v2.Code.OK, sent.status.message
        bodies = set()
        for queue_id in range(4):
            pulled = await client.call(Request.PULL_MESSAGE, pull_fields("orders", queue_id=queue_id))
            bodies |= {record.body for record in records(pulled.body)}
        assert bodies == {b"by remoting", b"by gRPC"}
        route = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "orders"})
        assert json_body(route)["brokerDatas"][0]["brokerAddrs"] == {"0": str(plain)}
        await client.close()
        assert broker.tls is not None
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        secure = await RemotingClient.connect(broker.tls, context)
        pulled = await secure.call(Request.PULL_MESSAGE, pull_fields("orders", queue_id=0))
        assert b"by remoting" in {record.body for record in records(pulled.body)}
        await secure.close()


@pytest.mark.parametrize("traffic", [False, True])
async def test_c015_silent_connections(tmp_path: Path, traffic: bool) -> None:
    """Closed after two minutes without a byte either way; traffic keeps them."""
    clock = TravellingClock()
    async with remoting_broker(tmp_path, clock=clock) as (_, client):
        for _ in range(3):
            await clock.advance(50)
            if traffic:
                await client.call(106)
        if traffic:
            await client.call(106)
        else:
            async with asyncio.timeout(60):
                await client.closed()
