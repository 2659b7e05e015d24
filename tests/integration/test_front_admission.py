"""Both fronts call a method's admission before they read the request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import pytest

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.call import MESSAGE_SIZE_MAX
from aerobee_broker.front.grpcio_front import GrpcioServer
from aerobee_broker.front.methods import BidirectionalStream, Context, Methods, ServerStream, Unary
from aerobee_broker.front.sockets import Front

SMALL: Final = MESSAGE_SIZE_MAX  # a front's limit for methods without an admission
METHOD_SIZES: Final = {"below": SMALL >> 1, "above": SMALL << 1}


class Judge:
    """Refuses calls by a header, and makes others wait for a semaphore."""

    def __init__(self, request_size_max: int) -> None:
        self.request_size_max = request_size_max
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = asyncio.Event()
        self.full = b""  # the answer to a call that was not admitted in time
        self.handled: list[int] = []  # sizes of requests that reached the handler

    def refusal(self, context: Context) -> bytes | None:
        name = dict(context.metadata()).get("x-name")
        context.caller = name
        return None if name else b"who are you"

    def admits_at_once(self) -> bool:
        return self.open.is_set()

    async def wait_admitted(self, context: Context) -> bytes | None:
        if not self.open.is_set():
            assert context.connection()
            self.waiting.set()
            await self.open.wait()
        return self.full or None

    def too_large(self, size: int) -> bytes:
        return b"%d is above %d" % (size, self.request_size_max)

    async def unary(self, request: bytes, context: Context) -> bytes:
        self.handled.append(len(request))
        return f"{context.caller} sent {len(request)}".encode()

    async def stream(self, request: bytes, context: Context) -> None:
        await context.write(await self.unary(request, context))

    async def both(self, requests: AsyncIterator[bytes], context: Context) -> None:
        async for request in requests:
            await self.stream(request, context)


class Judged:
    """One method of each kind, for each limit."""

    def __init__(self) -> None:
        self.judges = {name: Judge(size) for name, size in METHOD_SIZES.items()}

    def methods(self) -> Methods:
        methods: dict[str, Any] = {}
        for name, judge in self.judges.items():
            methods[f"/{name}/unary"] = Unary(judge.unary, judge)
            methods[f"/{name}/stream"] = ServerStream(judge.stream, judge)
            methods[f"/{name}/both"] = BidirectionalStream(judge.both, judge)
        return methods


@pytest.fixture
async def judged() -> Judged:
    return Judged()


@pytest.fixture(params=["native", "grpcio"])
async def channel(request: pytest.FixtureRequest, judged: Judged) -> AsyncIterator[Any]:
    async with _serving(request.param, judged.methods()) as address:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(address, options) as channel:
            yield channel


@asynccontextmanager
async def _serving(kind: str, methods: Methods) -> AsyncIterator[str]:
    if kind == "native":
        front = Front(methods, FrontConfig(), FrontCounters())
        port = front.listen("127.0.0.1", 0, "plain", None)
        stop: Any = front.stop
    else:
        server = GrpcioServer(methods, (("grpc.max_receive_message_length", 4 * SMALL),))
        port = server.server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stop = server.stop
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await stop(5)


async def _answer(channel: Any, path: str, request: bytes, name: str = "me") -> bytes:
    metadata = (("x-name", name),) if name else ()
    answer: bytes
    if path.endswith("unary"):
        answer = await channel.unary_unary(path)(request, metadata=metadata, timeout=60)
    else:
        answer = await channel.unary_stream(path)(request, metadata=metadata, timeout=60).read()
    return answer


async def test_a_refused_call_is_answered_before_its_request_is_read(channel: Any, judged: Judged) -> None:
    """The client has sent only headers when it gets the answer."""
    for kind in ("unary", "stream", "both"):
        call = channel.stream_stream(f"/below/{kind}")(timeout=60)
        assert await call.read() == b"who are you"
        call.cancel()
        assert await _answer(channel, f"/below/{kind}", b"x") == b"me sent 1"
    assert judged.judges["below"].handled == [1, 1, 1]


@pytest.mark.parametrize("kind", ["unary", "stream"])
async def test_a_request_waits_for_free_memory(channel: Any, judged: Judged, kind: str) -> None:
    """Its handler is called only then; a call that is not admitted in time gets its admission's answer."""
    judge = judged.judges["below"]
    judge.open.clear()
    request = bytes(judge.request_size_max)  # more than a front has read when it asks
    waiting = asyncio.create_task(_answer(channel, f"/below/{kind}", request))
    await asyncio.wait_for(judge.waiting.wait(), 60)
    assert await _answer(channel, f"/above/{kind}", b"x") == b"me sent 1"
    assert not judge.handled
    judge.open.set()
    assert await waiting == b"me sent %d" % len(request)
    judge.open.clear()
    judge.waiting.clear()
    waiting = asyncio.create_task(_answer(channel, f"/below/{kind}", request))
    await asyncio.wait_for(judge.waiting.wait(), 60)
    judge.full = b"no room"
    judge.open.set()
    assert await waiting == b"no room"
    assert len(judge.handled) == 1


@pytest.mark.parametrize("kind", ["unary", "stream"])
@pytest.mark.parametrize("limit", METHOD_SIZES)
async def test_the_size_limit_is_that_of_the_method(channel: Any, judged: Judged, limit: str, kind: str) -> None:
    """The method's limit applies whether it is above or below the front's, which is for methods without one."""
    size_max = METHOD_SIZES[limit]
    assert await _answer(channel, f"/{limit}/{kind}", bytes(size_max)) == b"me sent %d" % size_max
    size = size_max + 1
    assert await _answer(channel, f"/{limit}/{kind}", bytes(size)) == b"%d is above %d" % (size, size_max)
    assert judged.judges[limit].handled == [size_max]


@pytest.mark.parametrize("kind", ["native"])
@pytest.mark.parametrize("limit", METHOD_SIZES)
async def test_the_size_limit_of_a_stream_is_that_of_the_method(kind: str, limit: str, judged: Judged) -> None:
    """A larger message ends the stream. grpcio has one limit for all methods; handlers check the method's."""
    size_max = METHOD_SIZES[limit]
    async with _serving(kind, judged.methods()) as address, grpc.aio.insecure_channel(address) as open_channel:
        channel: Any = open_channel
        call = channel.stream_stream(f"/{limit}/both")(metadata=(("x-name", "me"),), timeout=60)
        await call.write(bytes(size_max))
        assert await call.read() == b"me sent %d" % size_max
        await call.write(bytes(size_max + 1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert judged.judges[limit].handled == [size_max]


@pytest.mark.parametrize("kind", ["unary", "stream", "both"])
async def test_a_long_gzip_message_is_decompressed_in_turns(kind: str, judged: Judged) -> None:
    """Several at once, whole and in order, up to the limit of the method; a larger one is refused as without gzip."""
    size_max, judge = METHOD_SIZES["below"], judged.judges["below"]
    text = random.Random(1).randbytes(size_max // 2 + 1).hex().encode()
    options: Any = {"metadata": (("x-name", "me"),), "compression": grpc.Compression.Gzip, "timeout": 60}
    async with _serving("native", judged.methods()) as address, grpc.aio.insecure_channel(address) as open_channel:
        channel: Any = open_channel
        if kind == "both":
            call = channel.stream_stream("/below/both")(**options)
            for size in (size_max, 100_000, 5):
                await call.write(text[:size])
            assert [await call.read() for _ in range(3)] == [b"me sent %d" % n for n in (size_max, 100_000, 5)]
            await call.write(text)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert judge.handled == [size_max, 100_000, 5]
            return

        async def answer(request: bytes) -> bytes:
            if kind == "unary":
                return bytes(await channel.unary_unary("/below/unary")(request, **options))
            return bytes(await channel.unary_stream("/below/stream")(request, **options).read())

        answers = await asyncio.gather(answer(text[:size_max]), answer(text[:100_000]), answer(text), answer(b"x" * 9))
    assert (answers[0], answers[1], answers[3]) == (b"me sent %d" % size_max, b"me sent 100000", b"me sent 9")
    assert answers[2].endswith(b"is above %d" % size_max)
    assert sorted(judge.handled) == [9, 100_000, size_max]
