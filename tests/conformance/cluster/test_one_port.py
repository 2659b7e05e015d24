"""Items 14 and 15: remoting on gRPC's port, with and without TLS; silent connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from aerobee_broker.config import Address, ListenConfig
from aerobee_broker.config.front import FrontConfig
from aerobee_broker.remoting_wire.codes import Request
from aerobee_proto import v2
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.support.front_under_test import needs_native
from tests.support.in_process_broker import METADATA, in_process_broker, message
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, records, remoting_broker, send
from tests.support.tls_records import trusting

pytestmark = needs_native
_ANY = Address("127.0.0.1", 0)


async def test_c014_one_port_for_all(tmp_path: Path) -> None:
    """The first bytes tell gRPC, remoting and TLS apart; a message sent with one is consumed with the other."""
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
        secure = await RemotingClient.connect(broker.tls, trusting())
        pulled = await secure.call(Request.PULL_MESSAGE, pull_fields("orders", queue_id=0))
        assert b"by remoting" in {record.body for record in records(pulled.body)}
        await secure.close()


_TEXT_HEADER = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n"
_BINARY_HEADER = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12)


@asynccontextmanager
async def _balancer(target: Address, header: bytes) -> AsyncIterator[Address]:
    """A load balancer that adds a header before each client's bytes."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.host, target.port)
        back.write(header)
        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()


@pytest.mark.parametrize("header", [_TEXT_HEADER, _BINARY_HEADER], ids=["version 1", "version 2"])
async def test_a_balancer_before_the_port(tmp_path: Path, header: bytes) -> None:
    """Its header is skipped before gRPC, remoting and TLS alike."""
    listen = ListenConfig(grpc=_ANY, metrics=_ANY, front="native", drain_seconds=0.5)
    async with (
        in_process_broker(tmp_path, listen=listen) as broker,
        _balancer(Address.parse(broker.endpoint), header) as proxied,
    ):
        client = await RemotingClient.connect(proxied)
        assert (await send(client, "orders")).code == 0
        await client.close()
        async with grpc.aio.insecure_channel(str(proxied)) as channel:
            request = v2.SendMessageRequest(messages=[message("orders", b"by gRPC")])
            sent = await v2.MessagingServiceStub(channel).SendMessage(request, metadata=METADATA, timeout=60)
            assert sent.status.code == v2.Code.OK, sent.status.message
        secure = await RemotingClient.connect(proxied, trusting())
        assert (await send(secure, "orders")).code == 0
        await secure.close()


@pytest.mark.parametrize("begin", [b"PROXY " + b"x" * 200, _BINARY_HEADER[:14] + b"\xff\xff", _TEXT_HEADER[:20]])
async def test_a_balancer_whose_header_does_not_end(tmp_path: Path, begin: bytes) -> None:
    """The connection is closed within the handshake timeout; other clients are served."""
    listen = ListenConfig(grpc=_ANY, metrics=_ANY, front="native", drain_seconds=0.5)
    async with in_process_broker(tmp_path, listen=listen, front=FrontConfig(handshake_seconds=0.2)) as broker:
        address = Address.parse(broker.endpoint)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(begin)
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        client = await RemotingClient.connect(address)
        assert (await send(client, "orders")).code == 0
        await client.close()


@pytest.mark.parametrize("traffic", [False, True])
async def test_c015_silent_connections(tmp_path: Path, traffic: bool) -> None:
    """They are closed after two minutes without a byte in either direction; traffic keeps them open."""
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
