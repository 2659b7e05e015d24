"""Items 1 to 23: identity of callers, headers, and limits of the transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs lack it

from aerobee_broker.config import AuthConfig
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from aerobee_proto.pool import POOL
from tests.conformance.raw_client import RawClient, connected, message, resource
from tests.support.accounts_file import write_accounts
from tests.support.in_process_broker import in_process_broker

Code = v2.Code
_METHODS = POOL.FindServiceByName("apache.rocketmq.v2.MessagingService").methods


async def _code_without_a_client(client: RawClient, method: Any, metadata: tuple[tuple[str, str], ...]) -> list[int]:
    request = GetMessageClass(method.input_type)()
    call = getattr(client.stub, method.name)(request, metadata=metadata, timeout=60)
    if method.server_streaming:
        return [answer.status.code async for answer in call]
    return [(await call).status.code]


@pytest.mark.parametrize("method", [m for m in _METHODS if m.name != "Telemetry"], ids=lambda method: method.name)
async def test_001_no_client_id(client: RawClient, method: Any) -> None:
    """Every method answers CLIENT_ID_REQUIRED in its response, with gRPC's own status OK."""
    assert await _code_without_a_client(client, method, (("x-mq-language", "JAVA"),)) == [Code.CLIENT_ID_REQUIRED]


@pytest.mark.parametrize("blank", ["", "   "])
async def test_002_blank_client_id(client: RawClient, blank: str) -> None:
    """Blanks are not an id."""
    for method in _METHODS:
        if method.name != "Telemetry":
            codes = await _code_without_a_client(client, method, (("x-mq-client-id", blank),))
            assert codes == [Code.CLIENT_ID_REQUIRED], method.name


async def _route_code(client: RawClient, topic: str, *headers: tuple[str, str]) -> int:
    request = v2.QueryRouteRequest(topic=resource(topic))
    metadata = (("x-mq-client-id", "headers@1@0@a"), *headers)
    return int((await client.stub.QueryRoute(request, metadata=metadata, timeout=60)).status.code)


@pytest.mark.parametrize("headers", [(), (("x-mq-language", "KLINGON"),), (("x-mq-language", ""),)])
async def test_003_any_language(client: RawClient, topic: str, headers: tuple[tuple[str, str], ...]) -> None:
    """An unknown, empty or missing language is accepted."""
    assert await _route_code(client, topic, *headers) == Code.OK


@pytest.mark.parametrize(
    "headers",
    [(), (("x-mq-protocol", "GRPC_V2"),), (("x-mq-protocol", "v2"),), (("x-mq-protocol-version", "2.0.0"),)],
)
async def test_004_any_protocol_header(client: RawClient, topic: str, headers: tuple[tuple[str, str], ...]) -> None:
    """The official clients use different names and values, and some send none."""
    assert await _route_code(client, topic, *headers) == Code.OK


@pytest.mark.parametrize("date", [None, "20250102T030405Z", "2025-01-02T03:04:05.678+01:00", "yesterday"])
async def test_005_any_date(client: RawClient, topic: str, date: str | None) -> None:
    """It is not parsed as a time: most clients send local time labelled as UTC."""
    assert await _route_code(client, topic, *((("x-mq-date-time", date),) if date else ())) == Code.OK


async def test_006_empty_credentials(client: RawClient, topic: str) -> None:
    """The Python client signs with empty keys, which is ignored without authentication."""
    header = ("authorization", "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=00ff")
    assert await _route_code(client, topic, header) == Code.OK
    assert await _route_code(client, topic, ("authorization", "nonsense")) == Code.OK


# --- Authentication -----------------------------------------------------------------------------------------

_DATE = "20250102T030405Z"
_SIGNATURE = "340034f7c9dbf7675a93bf160a98de9efa9a6812"  # signature of that date with the secret key mySecret
_ACCOUNTS = """
[accounts.AK]
secret_key = "mySecret"
publish = ["mine"]
consume = ["mine"]
groups = ["mine"]
"""


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[RawClient]:
    """A client, without credentials yet, of a broker that requires them."""
    accounts = write_accounts(tmp_path / "accounts.toml", _ACCOUNTS)
    async with in_process_broker(tmp_path / "store", auth=AuthConfig(accounts=accounts)) as broker:
        yield RawClient(broker.channel)


def _signed(
    client: RawClient, *, signature: str = _SIGNATURE, credential: str = "AK", date: str | None = _DATE
) -> RawClient:
    """The same client, with these headers in all its calls."""
    value = f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature}"
    client.metadata += (("authorization", value), *((("x-mq-date-time", date),) if date is not None else ()))
    return client


async def test_007_signature_in_lower_case(guarded: RawClient) -> None:
    """Python, Go and Rust write it like this."""
    assert (await _signed(guarded).send(message("mine"))).status.code == Code.OK


async def test_008_signature_in_upper_case(guarded: RawClient) -> None:
    """Java, Node.js and C# write it like this."""
    assert (await _signed(guarded, signature=_SIGNATURE.upper()).send(message("mine"))).status.code == Code.OK


@pytest.mark.parametrize("credential", ["AK//Rocketmq", "AK/region/RocketMQ"])
async def test_009_credential_with_region_and_service(guarded: RawClient, credential: str) -> None:
    """The text after the access key is ignored."""
    assert (await _signed(guarded, credential=credential).send(message("mine"))).status.code == Code.OK


async def test_010_wrong_signature(guarded: RawClient) -> None:
    """UNAUTHORIZED in the response of every method, with gRPC's own status OK."""
    _signed(guarded, signature=_SIGNATURE[::-1])
    for method in _METHODS:
        if method.name != "Telemetry":
            codes = await _code_without_a_client(guarded, method, guarded.metadata)
            assert codes == [Code.UNAUTHORIZED], method.name
    async with guarded.telemetry() as stream:
        assert (await stream.read()).status.code == Code.UNAUTHORIZED
        assert await stream.read() is EOF


@pytest.mark.parametrize("missing", ["authorization", "x-mq-date-time"])
async def test_011_a_header_is_missing(guarded: RawClient, missing: str) -> None:
    """A signature needs both headers."""
    _signed(guarded)
    guarded.metadata = tuple(pair for pair in guarded.metadata if pair[0] != missing)
    assert (await guarded.send(message("mine"))).status.code == Code.UNAUTHORIZED
    assert (await guarded.route("mine")).status.code == Code.UNAUTHORIZED


@pytest.mark.parametrize("date", ["20250102T030406Z", "2025-01-02T03:04:05Z", " 20250102T030405Z"])
async def test_012_vector(guarded: RawClient, date: str) -> None:
    """The signature covers exactly the header's text: another text for the same time fails."""
    other = guarded.other()
    assert (await _signed(guarded).send(message("mine"))).status.code == Code.OK
    if date.strip() != _DATE:  # gRPC itself strips blanks
        assert (await _signed(other, date=date).send(message("mine"))).status.code == Code.UNAUTHORIZED


async def test_013_no_permission(guarded: RawClient) -> None:
    """FORBIDDEN for other accounts' topics and groups; permitted calls still work."""
    _signed(guarded)
    assert (await guarded.send(message("yours"))).status.code == Code.FORBIDDEN
    assert (await guarded.route("yours")).status.code == Code.FORBIDDEN
    await guarded.sent(message("mine"))
    assert (await guarded.receive("yours", "mine")).code == Code.FORBIDDEN
    assert (await guarded.receive("mine", "yours")).code == Code.FORBIDDEN
    assert (await guarded.receive("mine", "mine", wait=5)).bodies == ["hello"]


# --- Names, limits, transport -------------------------------------------------------------------------------


async def test_014_namespace_in_resource_or_header(client: RawClient, topic: str, group: str) -> None:
    """The topic is the same with the namespace in the resource or, as Node.js's consumers send it, in a header."""
    sent = await client.send(message(topic, "here", namespace="shop"))
    assert sent.status.code == Code.OK
    client.metadata += (("x-mq-namespace", "shop"),)
    received = await client.receive(topic, group, wait=5)
    assert received.bodies == ["here"]
    assert received.one.topic == resource(topic), "named as in the request"


async def test_015_two_namespaces(client: RawClient, topic: str, group: str) -> None:
    """One name in two namespaces and in none means three topics."""
    for namespace in ("", "one", "two"):
        assert (await client.send(message(topic, f"in {namespace!r}", namespace=namespace))).status.code == Code.OK
    for namespace in ("", "one", "two"):
        reader = client.other()
        reader.metadata += (("x-mq-namespace", namespace),)
        assert (await reader.receive(topic, group, wait=5)).bodies == [f"in {namespace!r}"]
        assert (await reader.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND


async def test_016_unknown_fields(client: RawClient, topic: str) -> None:
    """A field of a later version, here number 2000, is ignored."""
    raw = client.channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/SendMessage",
        request_serializer=None,
        response_deserializer=v2.SendMessageResponse.FromString,
    )
    request = v2.SendMessageRequest(messages=[message(topic)]).SerializeToString() + b"\x82\x7d\x05later"
    response = await raw(request, metadata=client.metadata, timeout=60)
    assert response.status.code == Code.OK


async def test_017_four_mebibytes_pass(client: RawClient, topic: str) -> None:
    """The transport accepts a request whose body alone reaches gRPC's default limit."""
    assert (await client.send(message(topic, b"x" * (4 << 20)))).status.code == Code.OK


async def test_018_five_mebibytes_get_a_status(client: RawClient, topic: str) -> None:
    """The answer is MESSAGE_BODY_TOO_LARGE, not a failed call."""
    assert (await client.send(message(topic, b"x" * (5 << 20)))).status.code == Code.MESSAGE_BODY_TOO_LARGE


def _frame(kind: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame for stream 0, without flags."""
    return len(payload).to_bytes(3, "big") + bytes([kind, 0, 0, 0, 0, 0]) + payload


async def test_019_pings_without_calls(broker: BrokerProcess) -> None:
    """Fifty pings a second from a client without calls are all answered, and not treated as an attack."""
    settings, ping, go_away, acknowledged = 4, 6, 7, 1
    host, _, port = broker.endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(settings))
    answered: list[int] = []
    async with asyncio.timeout(60):
        for number in range(50):
            writer.write(_frame(ping, number.to_bytes(8, "big")))
            while number not in answered:
                header = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
                assert header[3] != go_away, payload
                if header[3] == ping and header[4] & acknowledged:
                    answered.append(int.from_bytes(payload, "big"))
            await asyncio.sleep(0.02)
    assert answered == list(range(50))
    writer.close()


async def test_020_unknown_method(client: RawClient, topic: str) -> None:
    """gRPC's UNIMPLEMENTED, and the connection continues."""
    unknown = client.channel.unary_unary("/apache.rocketmq.v2.MessagingService/Nonsense", None, None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unknown(b"", metadata=client.metadata, timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert (await client.route(topic)).status.code == Code.OK


async def test_021_only_the_configured_address(broker: BrokerProcess) -> None:
    """Another address of the machine refuses connections on every port of the broker."""
    for endpoint in (broker.endpoint, broker.metrics):
        host, _, port = endpoint.rpartition(":")
        assert host == "127.0.0.1"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.2", int(port))


async def test_023_the_oldest_clients(broker: BrokerProcess, topic: str, group: str) -> None:
    """A receive without polling time and attempt id waits as long as its deadline allows.

    Clients that know neither can still send and receive.
    """
    async with connected(broker.endpoint, language="PHP") as client:
        await client.sent(message(topic, message_type=v2.MessageType.MESSAGE_TYPE_UNSPECIFIED))
        assert (await client.receive(topic, group, wait=None)).bodies == ["hello"]
        empty = await client.receive(topic, group, wait=None, timeout=6.0)
        assert empty.code == Code.MESSAGE_NOT_FOUND
