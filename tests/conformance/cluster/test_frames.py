"""Items 1 to 19: frames and connections."""

from __future__ import annotations

import asyncio
import struct

import pytest

from aerobee_broker.front.proxy_header import proxy_header_size
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import FLAG_RESPONSE, Command, FrameReader, encode, encode_binary
from tests.conformance.cluster.conftest import Shared
from tests.support import golden_remoting
from tests.support.remoting_client import RemotingClient, pull_fields, records, send, send_fields
from tests.support.replicating import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _raw(shared: Shared) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = shared.broker.remoting
    assert address is not None
    return await asyncio.open_connection(address.host, address.port)


async def _answers(reader: asyncio.StreamReader, count: int) -> list[Command]:
    frames, found = FrameReader(), list[Command]()
    async with asyncio.timeout(60):
        while len(found) < count:
            data = await reader.read(1 << 16)
            assert data, "the broker closed the connection"
            found += frames.feed(data)
    return found


async def test_c001_split_at_every_byte_and_glued(shared: Shared) -> None:
    """A recorded request gets the same answer however its bytes are split."""
    golden = golden_remoting.requests(Request.GET_ROUTE_INFO_BY_TOPIC)[0].data
    reader, writer = await _raw(shared)
    writer.write(golden + golden)
    first, second = await _answers(reader, 2)
    assert first == second
    for at in range(1, len(golden)):
        writer.write(golden[:at])
        await asyncio.sleep(0)
        writer.write(golden[at:])
    assert await _answers(reader, len(golden) - 1) == [first] * (len(golden) - 1)
    writer.close()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """All bytes until the broker closes the connection, cleanly or not."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def _ask_raw(shared: Shared, data: bytes) -> Command:
    reader, writer = await _raw(shared)
    writer.write(data)
    [answer] = await _answers(reader, 1)
    writer.close()
    return answer


def _json_frame(header: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(header), len(header)) + header


async def test_c002_header_with_code_and_opaque_alone(shared: Shared) -> None:
    """Language, version, extFields and remark are optional."""
    answer = await _ask_raw(shared, _json_frame(b'{"code":106,"opaque":9}'))
    assert (answer.code, answer.opaque) == (0, 9)


@pytest.mark.parametrize(
    "data",
    [
        _json_frame(b'{"code":106,"language":"java"}'),
        _json_frame(b'{"code":106,"language":"COBOL"}'),
        struct.pack(">iIhBhiiii", 25, 1 << 24 | 21, 106, 99, 0, 0, 0, 0, 0),
    ],
)
async def test_c003_unknown_languages(shared: Shared, data: bytes) -> None:
    """A language in lower case, an unknown one, and an invalid byte."""
    assert (await _ask_raw(shared, data)).code == 0


@pytest.mark.parametrize("opaque", [-1, 0, 2**31 - 1])
async def test_c004_an_answer_has_the_opaque_of_its_request(shared: Shared, opaque: int) -> None:
    """It also has the response bit, in both kinds of header."""
    for data in (encode(Command(106, opaque=opaque)), encode_binary(Command(106, opaque=opaque))):
        answer = await _ask_raw(shared, data)
        assert (answer.opaque, answer.flag) == (opaque, FLAG_RESPONSE)


async def test_c005_unknown_codes(client: RemotingClient) -> None:
    """The answer is 3, with the number."""
    answer = await client.call(4711)
    assert (answer.code, answer.remark) == (3, " request type 4711 not supported")


async def test_c006_one_way_requests_are_executed_and_not_answered(client: RemotingClient) -> None:
    """No answer comes even after a failure: the next answer belongs to the next request."""
    client.one_way(4711)
    client.one_way(Request.SEND_MESSAGE_V2, {})
    client.one_way(Request.SEND_MESSAGE_V2, send_fields("OneWay"), b"stored")
    await send(client, "OneWay", b"after")

    async def are_both_stored() -> bool:
        pulled = await client.call(Request.PULL_MESSAGE, pull_fields("OneWay"))
        return {record.body for record in records(pulled.body)} == {b"stored", b"after"}

    await eventually(are_both_stored)  # a one-way request does not report its completion


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iI", 16_777_216, 2) + b"{}",
        struct.pack(">iI", 0, 0),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 10, 7) + b"{}",
        struct.pack(">iI", 6, 2 << 24 | 2) + b"{}",
        _json_frame(b"{nothing}"),
    ],
)
async def test_c007_an_invalid_frame_closes_the_connection(shared: Shared, client: RemotingClient, data: bytes) -> None:
    """The broker sends nothing back, and other connections continue."""
    reader, writer = await _raw(shared)
    writer.write(data)
    assert await _rest(reader) == b""
    writer.close()
    assert (await client.call(106)).code == 0


async def test_c010_a_binary_value_of_no_bytes_is_absent(shared: Shared) -> None:
    """An empty topic is treated as missing."""
    request = Command(Request.GET_ROUTE_INFO_BY_TOPIC, fields={"topic": ""})
    answer = await _ask_raw(shared, encode_binary(request))
    assert answer.code == Answer.TOPIC_NOT_EXIST
    assert answer.remark is not None
    assert answer.remark.endswith("topic: null")


async def test_c011_a_response_to_no_request_is_ignored(client: RemotingClient) -> None:
    """The connection continues."""
    client.write(encode(Command(0, opaque=5, flag=FLAG_RESPONSE)))
    assert (await client.call(106)).code == 0


async def test_c012_a_held_pull_does_not_delay_later_requests(client: RemotingClient) -> None:
    """A connection's second request is answered while the first is held."""
    await send(client, "HeldFirst")
    held = client.begin(Request.PULL_MESSAGE, pull_fields("HeldFirst", offset=1, sys_flag=6))
    assert (await client.call(106)).code == 0
    assert not held.done()
    await send(client, "HeldFirst")
    assert (await held).code == 0


_PROXY_1 = b"PROXY TCP4 10.0.0.1 10.0.0.2 51000 10911\r\n"
_PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n" + b"\x21\x11" + (12).to_bytes(2, "big") + bytes(12)


@pytest.mark.parametrize("header", [_PROXY_1, _PROXY_2], ids=["version 1", "version 2"])
@pytest.mark.parametrize("split", [0, 3, 14])
async def test_c013_a_proxy_header_is_skipped(shared: Shared, header: bytes, split: int) -> None:
    """The header may be split anywhere; the request after it is answered."""
    reader, writer = await _raw(shared)
    writer.write(header[:split])
    await writer.drain()
    await asyncio.sleep(0)
    writer.write(header[split:] + encode(Command(106, opaque=7)))
    [answer] = await _answers(reader, 1)
    assert (answer.code, answer.opaque) == (0, 7)
    writer.close()


@pytest.mark.parametrize("header", [b"PROXY " + b"x" * 200, _PROXY_2[:14] + b"\xff\xff"], ids=["no end", "too long"])
async def test_a_proxy_header_without_an_end_closes_the_connection(shared: Shared, header: bytes) -> None:
    """The header's size is limited."""
    reader, writer = await _raw(shared)
    writer.write(header)
    assert await _rest(reader) == b""
    writer.close()


async def test_a_proxy_header_is_found_at_every_split() -> None:
    """No other bytes are taken for a header."""
    for header in (_PROXY_1, _PROXY_2):
        for size in range(1, len(header)):
            assert proxy_header_size(header[:size]) is None
        assert proxy_header_size(header + b"frame") == len(header)
    assert proxy_header_size(encode(Command(106))) == 0


async def test_c019_large_headers_and_many_fields(client: RemotingClient, shared: Shared) -> None:
    """Requests up to the limits are answered; above them the connection is closed."""
    many = {f"field{number}": "x" for number in range(1000)}
    assert (await client.call(106, many)).code == 0
    assert (await client.call(106, {"large": "x" * 100_000})).code == 0
    reader, writer = await _raw(shared)
    writer.write(encode(Command(106, fields={"large": "x" * 300_000})))
    assert await _rest(reader) == b""
    writer.close()
