"""What a connection of the front holds is in the ledger: calls, input, output, handshakes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aerobee_broker.config import LimitsConfig
from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front import frames
from aerobee_broker.front.accepting import Security
from aerobee_broker.front.connection import CONNECTION_SIZE
from aerobee_broker.front.methods import Context, Method, ServerStream, Unary
from aerobee_broker.front.sockets import Front
from aerobee_broker.limits.ledger import Ledger
from tests.support.http2_attacker import begin_of_tls, block, headers, message

GREETING = frames.PREFACE + frames.settings({})
LARGE = 8 << 20
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def serving(
    ledger: Ledger, *, security: Security = "plain", config: FrontConfig | None = None
) -> AsyncIterator[Connect]:
    """A front with a method that waits and one with a large answer; yields how to connect to it."""

    async def wait(request: bytes, context: Context) -> None:
        context.note_account()
        await asyncio.Event().wait()

    async def answer(request: bytes, context: Context) -> bytes:
        return bytes(LARGE)

    async def tls() -> ssl.SSLContext:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    methods: dict[str, Method] = {"/s/Wait": ServerStream(wait), "/s/Answer": Unary(answer)}
    front = Front(methods, config or FrontConfig(), FrontCounters(), ledger=ledger)
    port = front.listen("127.0.0.1", 0, security, tls)
    try:
        yield lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        await front.stop(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - the ledger has no event
            await asyncio.sleep(0.005)


async def open_stream(connect: Connect, sent: bytes) -> asyncio.StreamWriter:
    _, writer = await connect()
    writer.write(sent)
    return writer


def test_idle_connections_fit_into_the_ledger() -> None:
    """As many as may be open by default, so that honest ones are refused and not closed."""
    assert FrontConfig().connection_count_max * CONNECTION_SIZE < Ledger(LimitsConfig()).held_max


async def test_open_calls_are_held_with_their_handlers() -> None:
    """Each call takes the memory of a stream and of a handler, until it ends or its connection does."""
    ledger = Ledger()
    async with serving(ledger) as connect:
        calls = b"".join(headers(n, block("/s/Wait")) + message(n, b"") for n in range(1, 101, 2))
        writer = await open_stream(connect, GREETING + calls)
        await until(lambda: ledger.held_of_kind["calls"] > 50 * 8_000)
        assert ledger.held_of_kind["calls"] < 50 * 10_000
        writer.write(b"".join(frames.rst_stream(n, frames.ErrorCode.CANCEL) for n in range(1, 81, 2)))
        await until(lambda: ledger.held_of_kind["calls"] < 20 * 10_000)
        writer.close()
        await until(lambda: ledger.used == 0)


async def test_a_request_that_does_not_end_is_held() -> None:
    """Its bytes count as they arrive."""
    ledger = Ledger()
    async with serving(ledger) as connect:
        part = b"\0" + (1 << 20).to_bytes(4, "big") + bytes(100_000)
        sent = [frames.frame(frames.DATA, 0, 1, part[at : at + 16_384]) for at in range(0, len(part), 16_384)]
        writer = await open_stream(connect, GREETING + headers(1, block("/s/Wait")) + b"".join(sent))
        await until(lambda: ledger.held_of_kind["received"] >= 100_000)
        writer.close()
        await until(lambda: ledger.used == 0)


async def test_an_answer_that_is_not_taken_counts() -> None:
    """Bytes that wait for the window, or that the system does not take."""
    ledger = Ledger()
    async with serving(ledger) as connect:
        writer = await open_stream(connect, GREETING + headers(1, block("/s/Answer")) + message(1, b""))
        await until(lambda: ledger.answers.used > LARGE - (1 << 20))
        writer.write(frames.window_update(1, LARGE) + frames.window_update(0, LARGE))
        await until(lambda: ledger.answers.used < LARGE - (1 << 20) and ledger.held_of_kind["unsent"] > 0)
        writer.close()
        await until(lambda: ledger.used == 0)


async def test_handshakes_are_held() -> None:
    """A TLS handshake in progress takes its memory, and gives it back when the client goes."""
    ledger = Ledger()
    async with serving(ledger, security="tls") as connect:
        writers = [await open_stream(connect, begin_of_tls()[:-1]) for _ in range(3)]
        await until(lambda: ledger.held_of_kind["handshakes"] == 3 * (55 << 10))
        for writer in writers:
            writer.close()
        await until(lambda: ledger.used == 0)


async def test_the_oldest_handshake_makes_room() -> None:
    """Beyond the limit of handshakes it ends, with its connection; the others go on."""
    ledger = Ledger()
    async with serving(
        ledger, security="tls", config=FrontConfig(handshake_count_max=2, handshake_seconds=600.0)
    ) as connect:
        connections = []
        for _ in range(3):
            connections.append(await connect())
            connections[-1][1].write(begin_of_tls()[:-1])
            count = min(len(connections), 2)
            await until(lambda count=count: ledger.held_of_kind["handshakes"] == count * (55 << 10))  # type: ignore[misc]
        (oldest, _), *others = connections
        assert await oldest.read(1) == b""
        assert not any(reader.at_eof() for reader, _ in others)
        for _, writer in connections:
            writer.close()
        await until(lambda: ledger.used == 0)


async def test_strangers_are_closed_before_a_connection_with_an_account() -> None:
    """Past the bound the connection whose caller has proved an account stays, although it holds as much."""
    ledger = Ledger(LimitsConfig(waiting_bytes_max=4 << 20, request_bytes_max=2 << 20))
    async with serving(ledger) as connect:
        calls = b"".join(headers(n, block("/s/Wait")) + message(n, b"") for n in range(1, 301, 2))
        known = await open_stream(connect, GREETING + calls)
        await until(lambda: ledger.held_of_kind["calls"] > 150 * 8_000)
        part = b"\0" + (4 << 20).to_bytes(4, "big") + bytes(1_200_000)
        sent = [frames.frame(frames.DATA, 0, 1, part[at : at + 16_384]) for at in range(0, len(part), 16_384)]
        strangers = [
            await open_stream(connect, GREETING + headers(1, block("/s/Answer")) + b"".join(sent)) for _ in range(3)
        ]
        await until(lambda: ledger.dropped > 0)
        await asyncio.sleep(0.05)
        assert ledger.held_of_kind["calls"] > 150 * 8_000
        for writer in (known, *strangers):
            writer.close()
        await until(lambda: ledger.used == 0)


async def test_connections_are_held_from_their_first_byte_on_and_before() -> None:
    """Whether they have sent nothing, too little to tell their protocol, or a greeting; and until they end."""
    ledger = Ledger()
    async with serving(ledger) as connect:
        for sent in (b"", b"PRI", GREETING):
            writers = [await open_stream(connect, sent) for _ in range(20)]
            await until(lambda: ledger.held_of_kind["connections"] >= 20 * 1_000)
            for writer in writers:
                writer.close()
            await until(lambda: ledger.held == 0)


async def test_the_oldest_connections_that_sent_nothing_end_first_past_the_bound() -> None:
    """Strangers open connections and send nothing: the broker keeps the latest ones."""
    ledger = Ledger(LimitsConfig(request_bytes_max=1 << 16, waiting_bytes_max=1 << 18))
    async with serving(ledger) as connect:
        silent = [await connect() for _ in range(250)]
        reader, _ = silent[0]
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        assert ledger.held <= ledger.held_max
        assert not silent[-1][0].at_eof()
        for _, writer in silent:
            writer.close()
        await until(lambda: ledger.held == 0)
