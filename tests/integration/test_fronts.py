"""The same methods behind each front, called by grpcio's client: both fronts must behave alike."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc
import pytest
from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs lack it

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.grpcio_front import GrpcioServer
from aerobee_broker.front.methods import (
    BidirectionalStream,
    CallAbortedError,
    ClientWentAwayError,
    Context,
    Methods,
    ServerStream,
    StatusCode,
    Unary,
)
from aerobee_broker.front.protocol_detection import DetectedProtocol
from aerobee_broker.front.sockets import Front

DETAILS: Final = "not found: é, 100%, 消息\n"
LARGE: Final = 3 << 20


class Served:
    """Methods that each do one thing, and a record of what happened to them."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.written = 0
        self.metadata: dict[str, str | bytes] = {}

    def methods(self) -> Methods:
        return {
            "/t/echo": Unary(self._echo),
            "/t/wait": Unary(self._wait),
            "/t/limited": Unary(self._limited),
            "/t/fail": Unary(self._fail),
            "/t/break": Unary(self._break),
            "/t/count": ServerStream(self._count),
            "/t/pour": ServerStream(self._pour),
            "/t/talk": BidirectionalStream(self._talk),
            "/t/sum": BidirectionalStream(self._sum),
        }

    async def _echo(self, request: bytes, context: Context) -> bytes:
        self.metadata = dict(context.metadata())
        return request

    async def _wait(self, request: bytes, context: Context) -> bytes:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.cancelled.set()
        return b""

    async def _limited(self, request: bytes, context: Context) -> bytes:
        """Functions that need the current task work in handlers."""
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(asyncio.sleep(0, b"done"))
        return task.result()

    async def _fail(self, request: bytes, context: Context) -> bytes:
        raise CallAbortedError(StatusCode.NOT_FOUND, DETAILS)

    async def _break(self, request: bytes, context: Context) -> bytes:
        raise ZeroDivisionError("a secret of the inside")

    async def _count(self, request: bytes, context: Context) -> None:
        for number in range(int(request)):
            await context.write(b"%d" % number)
        raise CallAbortedError(StatusCode.OUT_OF_RANGE, "no more")

    async def _pour(self, request: bytes, context: Context) -> None:
        with suppress(ClientWentAwayError):
            while True:
                await context.write(bytes(int(request)))
                self.written += 1

    async def _talk(self, requests: AsyncIterator[bytes], context: Context) -> None:
        await context.send_initial_metadata()
        async for request in requests:
            await context.write(request.upper())

    async def _sum(self, requests: AsyncIterator[bytes], context: Context) -> None:
        await context.write(b"%d" % sum([len(request) async for request in requests]))


@asynccontextmanager
async def serving(kind: str, served: Served, **bounds: Any) -> AsyncIterator[str]:
    """The address of a front."""
    if kind == "native":
        front = Front(served.methods(), FrontConfig(**bounds), FrontCounters())
        port = front.listen("127.0.0.1", 0, "plain", None)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await front.stop(5)
        return
    server = GrpcioServer(served.methods(), (("grpc.max_receive_message_length", 130 << 20),))
    port = server.server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(5)


@pytest.fixture(params=["native", "grpcio"])
async def channel(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Any]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with serving(request.param, served) as address, grpc.aio.insecure_channel(address, options) as channel:
        yield channel


@pytest.fixture
async def served() -> Served:
    return Served()


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    """Status code and details of a failed call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_unary(channel: Any, served: Served) -> None:
    """Requests and answers of any size, compressed ones, and headers of text and of bytes."""
    echo = channel.unary_unary("/t/echo")
    for size in (0, 1, 16379, 16384, 65536, LARGE):
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert await echo(body, timeout=30) == body
    assert await echo(b"x" * 10_000, compression=grpc.Compression.Gzip, timeout=60) == b"x" * 10_000
    await echo(b"", metadata=(("x-text", "value"), ("x-data-bin", b"\0\xff\n")), timeout=60)
    assert served.metadata["x-text"] == "value"
    assert served.metadata["x-data-bin"] == b"\0\xff\n"
    assert await channel.unary_unary("/t/limited")(b"", timeout=60) == b"done"


async def test_many_calls_at_once(channel: Any) -> None:
    """Each gets its own answer."""
    echo = channel.unary_unary("/t/echo")
    for _ in range(3):
        bodies = [b"%d" % number * (number % 3000) for number in range(300)]
        assert await asyncio.gather(*(echo(body, timeout=30) for body in bodies)) == bodies


async def test_calls_above_the_limit_of_all_connections(served: Served) -> None:
    """They are refused until others end."""
    async with serving("native", served, call_count_max=2) as address:
        channel: Any
        async with grpc.aio.insecure_channel(address) as channel:
            talks = [channel.stream_stream("/t/talk")(timeout=60) for _ in range(2)]
            for talk in talks:
                await talk.write(b"open")
                assert await talk.read() == b"OPEN"
            code, details = await failure(channel.unary_unary("/t/echo")(b"", timeout=60))
            assert (code, details[:14]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
            await talks[0].done_writing()
            assert await talks[0].code() is grpc.StatusCode.OK
            assert await channel.unary_unary("/t/echo")(b"again", timeout=60) == b"again"
            talks[1].cancel()


async def test_failures(channel: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Status and details are returned; an internal error shows no details."""
    assert await failure(channel.unary_unary("/t/fail")(b"", timeout=60)) == (grpc.StatusCode.NOT_FOUND, DETAILS)
    code, _ = await failure(channel.unary_unary("/t/nonsense")(b"", timeout=60))
    assert code == grpc.StatusCode.UNIMPLEMENTED
    code, _ = await failure(channel.unary_unary("/t/break")(b"", timeout=60))
    assert code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    assert "ZeroDivisionError: a secret of the inside" in caplog.text
    gc.collect()


async def test_deadlines_and_cancellation(channel: Any, served: Served) -> None:
    """Both end the handler."""
    code, _ = await failure(channel.unary_unary("/t/wait")(b"", timeout=1.5))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(served.cancelled.wait(), 60)
    served.cancelled.clear()
    served.begun.clear()
    call = channel.unary_unary("/t/wait")(b"")
    await asyncio.wait_for(served.begun.wait(), 60)
    call.cancel()
    await asyncio.wait_for(served.cancelled.wait(), 60)


async def test_streams(channel: Any) -> None:
    """Streams of answers, of requests, and of both."""
    call = channel.unary_stream("/t/count")(b"500", timeout=30)
    assert [int(await call.read()) for _ in range(500)] == list(range(500))
    assert await failure(call.read()) == (grpc.StatusCode.OUT_OF_RANGE, "no more")

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield bytes(100_000)

    assert await channel.stream_unary("/t/sum")(parts(), timeout=30) == b"10000000"
    talk = channel.stream_stream("/t/talk")(timeout=30)
    for word in (b"one", b"two", b"x" * LARGE):
        await talk.write(word)
        assert await talk.read() == word.upper()
    await talk.done_writing()
    assert await talk.read() is EOF
    assert await talk.code() == grpc.StatusCode.OK


async def test_a_stopped_reader_uses_little_memory(channel: Any, served: Served) -> None:
    """Its handler waits, and ends when the client disconnects."""
    call = channel.unary_stream("/t/pour")(b"100000")
    await call.read()
    before = -1
    while served.written != before:
        before = served.written
        await asyncio.sleep(0.5)
    assert served.written * 100_000 < 64 << 20
    assert await channel.unary_unary("/t/echo")(b"others", timeout=60) == b"others"
    call.cancel()


async def test_a_stop_lets_calls_end(served: Served) -> None:
    """Running calls are answered; later ones are refused."""
    for kind in ("native", "grpcio"):
        begun, stopped = asyncio.Event(), asyncio.Event()

        async def slow(
            request: bytes, context: Context, begun: asyncio.Event = begun, stopped: asyncio.Event = stopped
        ) -> bytes:
            begun.set()
            await stopped.wait()
            await asyncio.sleep(0.3)
            return b"answered"

        served.methods = lambda slow=slow: {"/t/slow": Unary(slow)}  # type: ignore[method-assign, misc]
        context = serving(kind, served)
        address = await context.__aenter__()
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel: Any  # its stub declares stricter types than it accepts
        async with grpc.aio.insecure_channel(address, options) as channel:
            call = asyncio.ensure_future(channel.unary_unary("/t/slow")(b"", timeout=20))
            await asyncio.wait_for(begun.wait(), 60)
            stopped.set()
            await context.__aexit__(None, None, None)
            assert await call == b"answered"


async def test_another_protocol_on_the_port(served: Served) -> None:
    """A protocol that matches the first bytes gets the whole connection, however the bytes are split."""

    class Shout(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data.upper())

    def matches(first: bytes) -> bool | None:
        return first.startswith(b"shout") if len(first) >= 5 else (None if b"shout".startswith(first) else False)

    front = Front(
        served.methods(), FrontConfig(), FrontCounters(), protocols=[DetectedProtocol("shout", matches, Shout)]
    )
    port = front.listen("127.0.0.1", 0, "plain", None)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in (b"sh", b"out", b" loud"):
            writer.write(piece)
            await asyncio.sleep(0.05)
        assert await asyncio.wait_for(reader.readexactly(10), 60) == b"SHOUT LOUD"
        writer.close()
        channel: Any
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await channel.unary_unary("/t/echo")(b"as ever", timeout=60) == b"as ever"
    finally:
        await front.stop(1)
