"""Requests and answers of the remoting protocol are bounded by the byte budgets of all calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from aerobee_broker.config import Address, LimitsConfig
from aerobee_broker.errors import TooManyRequestsError
from aerobee_broker.front import unsent_answers
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.remoting_wire.connection import Connection, PeerGoneError, RemotingServer
from aerobee_broker.remoting_wire.frame import FLAG_ONE_WAY, Command, FrameReader, encode

OWNER_MAX = 256 << 10
READ_SIZE = 512 << 10  # bytes that one socket read may add
SIZE = 64 << 10


class Server:
    """A server whose requests wait for `let_go` and whose answers have `answer_size` bytes."""

    def __init__(self) -> None:
        self.ledger = Ledger(
            LimitsConfig(
                request_bytes_max=4 * OWNER_MAX,
                request_bytes_per_client_max=OWNER_MAX,
                answer_bytes_max=4 * OWNER_MAX,
                answer_bytes_per_client_max=OWNER_MAX,
                waiting_bytes_max=1 << 30,
            )
        )
        self.requests, self.answers = self.ledger.requests, self.ledger.answers
        self.remoting = RemotingServer(self._handle, ledger=self.ledger)
        self.let_go = asyncio.Event()
        self.lost = asyncio.Event()  # an answer did not reach its client
        self.answer_size = 0
        self.handled = 0
        self.most = 0
        self.connection: Connection | None = None

    async def _handle(self, command: Command, connection: Connection) -> Command:
        self.connection = connection
        self.handled += 1
        self.most = max(self.most, self.requests.used)
        await self.let_go.wait()
        return Command(0, body=b"x" * self.answer_size, if_lost=self.lost.set)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    server.let_go.set()
    await server.remoting.stop(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - a budget has no event
            await asyncio.sleep(0.001)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = await server.remoting.listen("listen.remoting", Address("127.0.0.1", 0))
    return await asyncio.open_connection(address.host, address.port)


async def test_requests_beyond_the_budget_are_not_read(server: Server) -> None:
    """With too many bytes in progress, a connection is not read until some requests are answered. None is lost."""
    _, writer = await connect(server)
    count = 128
    writer.write(encode(Command(10, body=bytes(SIZE))) * count)
    await until(lambda: server.requests.used >= OWNER_MAX)
    await asyncio.sleep(0.05)  # time in which a faulty server would read more
    assert server.handled < count
    server.let_go.set()
    await until(lambda: server.handled == count)
    await until(lambda: server.requests.used == 0)
    assert OWNER_MAX <= server.most <= OWNER_MAX + READ_SIZE
    writer.close()


async def test_a_closed_connection_returns_its_bytes(server: Server) -> None:
    """A closed connection returns its bytes, even while it waits for budget."""
    _, writer = await connect(server)
    writer.write(encode(Command(10, body=bytes(SIZE))) * 16)
    await until(lambda: server.requests.used >= OWNER_MAX)
    writer.transport.abort()
    server.let_go.set()
    await until(lambda: server.requests.used == 0 and not server.remoting.connections)


async def test_unread_answers_are_counted(server: Server) -> None:
    """Answers count until the peer reads them. Writing to a peer with too many bytes waits and is then refused."""
    server.answer_size = 4 << 20
    server.let_go.set()
    reader, writer = await connect(server)
    writer.write(encode(Command(10)) * 4)
    await until(lambda: server.answers.used >= server.answer_size)
    assert server.connection is not None
    waiting = asyncio.create_task(server.connection.writable(60))
    received = 0
    while received < 4 * server.answer_size:
        received += len(await reader.read(1 << 20))
    await waiting
    await until(lambda: server.answers.used == 0)
    server.answers.take_now(OWNER_MAX, (server.connection.key,))
    with pytest.raises(TooManyRequestsError, match="messages for clients in progress take"):
        await server.connection.writable(0.01)
    writer.close()


async def test_a_flood_of_tiny_requests_is_begun_in_turns(server: Server) -> None:
    """Twenty thousand frames in one write, more than may run at once, are all handled."""
    server.let_go.set()
    _, writer = await connect(server)
    writer.write(encode(Command(1, flag=FLAG_ONE_WAY)) * 20_000)
    await until(lambda: server.handled == 20_000)
    writer.close()


def test_a_reader_gives_some_frames_at_a_time() -> None:
    """The connection looks at its clock in between."""
    reader = FrameReader()
    reader.keep(encode(Command(1)) * 40)
    assert [len(reader.feed(b"", count_max=16)) for _ in range(4)] == [16, 16, 8, 0]


@pytest.mark.parametrize("size", [0, 12 << 20, 64 << 20])
async def test_an_answer_that_its_client_cannot_get(server: Server, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The handler is told: the connection ends before the answer, or before the client has read it, or the answer is
    too large to be sent. Nobody looks at the buffers between their end and that of the connection: such a look takes
    the answer for sent."""
    monkeypatch.setattr(unsent_answers, "_CHECK_SECONDS", 3600.0)
    server.answer_size = size
    reader, writer = await connect(server)
    writer.write(encode(Command(10)))
    await until(lambda: server.handled == 1)
    assert server.connection is not None
    if not size:
        writer.close()
        await until(lambda: not server.remoting.connections)
    server.let_go.set()
    if size == 12 << 20:
        await until(lambda: server.answers.used > 0)
        await turns(unsent_answers._TURNS + 1)
        assert not server.lost.is_set()
        writer.transport.abort()
    await asyncio.wait_for(server.lost.wait(), 60)
    if size > 16 << 20:
        [refused] = FrameReader().feed(await reader.read(1 << 16))
        assert refused.code == 1
    writer.close()


async def test_an_answer_that_its_client_got(server: Server) -> None:
    """Nothing is lost when its connection is closed afterwards."""
    reader, writer = await connect(server)
    writer.write(encode(Command(10)))
    server.let_go.set()
    await reader.read(1)
    writer.close()
    await until(lambda: not server.remoting.connections)
    assert not server.lost.is_set()


async def test_parts_of_frames_are_held_as_they_arrive(server: Server) -> None:
    """An incomplete frame counts with every byte, a whole one does not any more, and nothing is left at the end."""
    reader, writer = await connect(server)
    whole = encode(Command(10, body=bytes(1 << 20)))
    writer.write(whole[: 1 << 19])
    await until(lambda: server.ledger.held >= 1 << 19)
    assert server.ledger.held_of_kind["received"] < 2 << 19
    server.let_go.set()
    writer.write(whole[1 << 19 :] + whole[: 1 << 10])
    await reader.read(1)
    await until(lambda: 0 < server.ledger.held_of_kind["received"] <= 2 << 10)
    writer.close()
    await until(lambda: server.ledger.used == 0)


async def test_connections_with_parts_of_frames_are_closed_past_the_bound() -> None:
    """Strangers send parts of frames without end: those that hold most are closed, and a client is answered."""
    ledger = Ledger(LimitsConfig(request_bytes_max=1 << 20, waiting_bytes_max=3 << 20))
    most = 0

    async def answer(command: Command, _: Connection) -> Command:
        return Command(0)

    remoting = RemotingServer(answer, ledger=ledger)
    address = await remoting.listen("listen.remoting", Address("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(address.host, address.port)
    part = encode(Command(10, body=bytes(4 << 20)))[:700_000]
    parts = [await asyncio.open_connection(address.host, address.port) for _ in range(12)]
    for _, other in parts:
        other.write(part)
    for _ in range(200):
        writer.write(encode(Command(10)))
        assert await reader.read(1 << 16)
        most = max(most, ledger.held)
    await until(lambda: ledger.dropped > 0)
    assert most <= ledger.held_max + (1 << 20)  # one read of a socket more
    assert ledger.dropped < len(parts)
    writer.write(encode(Command(10)))
    assert await reader.read(1 << 16)
    for _, other in (*parts, (reader, writer)):
        other.close()
    await until(lambda: ledger.used == 0)
    await remoting.stop(0)


async def test_a_large_answer_leaves_in_parts(server: Server) -> None:
    """The loop does other work in between. Nothing comes between its parts, and a connection closes behind them."""
    server.answer_size = 12 << 20
    server.let_go.set()
    reader, writer = await connect(server)
    writer.write(encode(Command(10, opaque=1)))
    await until(lambda: server.answers.used > 0)
    server.answer_size = 10
    connection = server.connection
    assert connection is not None
    assert not connection.notify(Command(40))
    asked = asyncio.create_task(connection.ask(Command(39), 60))
    await asyncio.sleep(0)
    connection.close()
    assert connection.is_open
    received, frames = [], FrameReader()
    while data := await reader.read(1 << 20):
        received += frames.feed(data)
    assert [(each.is_response, len(each.body)) for each in received] == [(True, 12 << 20), (False, 0)]
    assert server.answers.used == 0
    with pytest.raises(PeerGoneError):
        await asked
    writer.close()


async def test_parts_are_written_one_in_a_turn(server: Server) -> None:
    """None is larger than what may be encrypted in a step of the loop."""
    server.answer_size = 12 << 20
    server.let_go.set()
    reader, writer = await connect(server)
    writer.write(encode(Command(10)))
    await until(lambda: server.answers.used > 0)
    assert server.connection is not None
    transport = server.connection._transport
    assert transport is not None
    most, received = 0, 0
    while received < server.answer_size:
        most = max(most, transport.get_write_buffer_size())
        received += len(await reader.read(1 << 20))
    assert 0 < most <= 4 << 20
    writer.close()
