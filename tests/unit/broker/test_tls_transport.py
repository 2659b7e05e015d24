"""The TLS transport, on real sockets: what its protocol may rely on, and what a hostile client may not do."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest

from aerobee_broker.limits import input_turns, tls
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.limits.tls import HANDSHAKE_SIZE, Endpoint, TlsTransport, charge_connection
from aerobee_broker.listening.certificates import development_certificate
from tests.support.http2_attacker import begin_of_tls
from tests.support.tls_records import ALERT, HANDSHAKE, USER_CANCELED, Records, shake_hands, trusting

LARGE = 3 << 20
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    made = development_certificate("localhost")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(made.key + made.certificate)
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(file)
    return found


class Peer(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.events: list[str] = []
        self.error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport, self.error = None, exc
        self.events.append("lost")


class Echo(Peer):
    """Writes all that it gets."""

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class Served:
    """A port in TLS, and what became of its connections."""

    def __init__(
        self, port: int, ledger: Ledger, endpoint: Endpoint, peers: list[Peer], errors: list[Exception | None]
    ) -> None:
        self.port = port
        self.ledger = ledger
        self.endpoint = endpoint
        self.peers = peers
        self.errors = errors

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    async def open(self, context: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context or trusting(), limit=1 << 16)

    async def lost(self) -> Peer:
        """The peer whose connection ends."""
        await until(lambda: bool(self.peers) and "lost" in self.peers[0].events)
        return self.peers[0]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - these are states of the transport, of which nothing tells
        await asyncio.sleep(0.002)


@asynccontextmanager
async def serving(
    context: ssl.SSLContext, kind: type[Peer] = Peer, *, handshake_seconds: float = 600.0
) -> AsyncIterator[Served]:
    loop = asyncio.get_running_loop()
    ledger = Ledger()
    endpoint = Endpoint(InputTurns(loop), ledger, handshake_seconds)

    peers: list[Peer] = []
    errors: list[Exception | None] = []

    def protocol() -> Peer:
        peers.append(kind())
        return peers[-1]

    server = await loop.create_server(lambda: TlsTransport(endpoint, context, protocol, errors.append), "127.0.0.1", 0)
    served = Served(server.sockets[0].getsockname()[1], ledger, endpoint, peers, errors)
    try:
        yield served
    finally:
        server.close()


async def hand_shaken(served: Served, connection: socket.socket) -> Records:
    return await asyncio.to_thread(shake_hands, connection)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_all_bytes_go_through_in_order(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    """Small and large, in both directions."""
    client = trusting()
    client.minimum_version = client.maximum_version = version
    async with serving(context, Echo) as served:
        reader, writer = await served.open(client)
        for size in (1, 400, 16_384, 16_385, 100_000, LARGE):
            sent = bytes(n % 251 for n in range(1_000)) * (size // 1_000) + b"e" * (size % 1_000)
            writer.write(sent)
            assert await reader.readexactly(size) == sent
        transport = served.peers[0].transport
        assert transport is not None
        assert transport.get_extra_info("ssl_object").version() == version.name.replace("_", ".").replace(
            "TLSv1.", "TLSv1."
        )
        assert transport.get_extra_info("sslcontext") is context
        assert transport.get_extra_info("peercert") is None
        assert transport.get_extra_info("peername")[0] == "127.0.0.1"
        writer.close()
        assert (await served.lost()).events[-2:] == ["eof", "lost"]
        assert served.ledger.used == 0


async def test_a_handshake_in_single_bytes_is_one(context: ssl.SSLContext) -> None:
    """And so are the records behind it."""
    async with serving(context) as served:
        with served.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made = await asyncio.to_thread(shake_hands, connection, lambda data: [bytes((byte,)) for byte in data])
            for byte in made.records(b"hello", 2):
                connection.send(bytes((byte,)))
            await until(lambda: served.peers and served.peers[0].received == b"hello")
        assert served.errors == [None]


@pytest.mark.parametrize("begin", [b"\x16", b"half", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_handshake_that_comes_to_nothing_leaves_nothing(context: ssl.SSLContext, begin: bytes) -> None:
    """Cut, or not TLS at all: no protocol is made, and the ledger is empty again."""
    async with serving(context) as served:
        with served.connect() as connection:
            connection.send(begin_of_tls()[:-1] if begin == b"half" else begin)
            if not begin.startswith(b"GET"):
                await until(lambda: served.ledger.held_of_kind["handshakes"] == HANDSHAKE_SIZE)
        await until(lambda: served.errors)
        assert isinstance(served.errors[0], OSError)
        assert not served.peers
        await until(lambda: served.ledger.used == 0)


async def test_a_slow_handshake_ends(context: ssl.SSLContext) -> None:
    """After its time, however many bytes come."""
    async with serving(context, handshake_seconds=0.05) as served:
        with served.connect() as connection:
            connection.send(begin_of_tls()[:-1])
            await until(lambda: served.errors)
            assert "the TLS handshake took more than 0.05 s" in str(served.errors[0])
            assert served.ledger.used == 0


async def test_the_ledger_ends_a_handshake(context: ssl.SSLContext) -> None:
    """Until the protocol charges the connection, the transport has an entry of its own."""
    async with serving(context) as served:
        with served.connect() as connection:
            connection.send(begin_of_tls()[:-1])
            await until(lambda: served.ledger.held)
            (entry,) = served.ledger._peers
            entry.drop()
            await until(lambda: served.errors)
            assert served.ledger.used == 0


def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a millisecond."""
    looks = itertools.count()
    for module in (tls, input_turns):
        monkeypatch.setattr(module, "monotonic", lambda: next(looks) / 1_000)


async def test_a_turn_ends_by_its_clock(context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Input in records of a byte is decrypted in turns, between which others run; what waits is charged."""
    waited = 0
    async with serving(context) as served:
        with served.connect() as connection:
            made = await hand_shaken(served, connection)
            await until(lambda: served.peers)
            short_turns(monkeypatch)
            connection.send(made.records(b"x" * 500, 1))
            longest = seen = 0
            while (received := len(served.peers[0].received)) < 500:
                longest, seen = max(longest, received - seen), received
                waited = max(waited, served.ledger.held_of_kind["encrypted"])
                await asyncio.sleep(0)
            assert 0 < longest < 20
            buffers = served.ledger.held_of_kind["encrypted"]
            assert waited - buffers > 23 * 200


async def test_input_waits_behind_that_of_others(context: ssl.SSLContext) -> None:
    """While others are in line, nothing is decrypted outside of it."""
    async with serving(context) as served:
        with served.connect() as connection:
            made = await hand_shaken(served, connection)
            await until(lambda: served.peers)
            buffers = served.ledger.held_of_kind["encrypted"]
            turns = served.endpoint.turns
            turns.is_full = True
            sent = made.records(b"x" * 1_000)
            connection.sendall(sent)
            await until(lambda: served.ledger.held_of_kind["encrypted"] == buffers + len(sent))
            assert not served.peers[0].received
            turns.is_full = False
            turns.wait(lambda until: False)
            await until(lambda: served.peers[0].received == b"x" * 1_000)


async def test_large_output_is_encrypted_in_turns(context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol pauses while some of it waits for a turn, although the system would take all."""
    async with serving(context) as served:
        reader, writer = await served.open()
        await until(lambda: served.peers)
        peer = served.peers[0]
        assert peer.transport is not None
        peer.transport.set_write_buffer_limits(8 * LARGE)
        short_turns(monkeypatch)
        peer.transport.write(b"w" * LARGE)
        assert peer.events == ["made", "pause"]
        assert await reader.readexactly(LARGE) == b"w" * LARGE
        assert peer.events == ["made", "pause", "resume"]
        writer.close()
        await served.lost()


async def test_reading_pauses(context: ssl.SSLContext) -> None:
    """A protocol that pauses gets nothing; the socket is not read on, and what was read is charged to it."""
    async with serving(context) as served:
        _, writer = await served.open()
        await until(lambda: served.peers)
        peer = served.peers[0]
        assert peer.transport is not None
        holdings = served.ledger.open("client", "", lambda: None)
        charge_connection(peer.transport, holdings, 1_000)
        assert holdings.size_of("connections") == 1_000 + tls.CONNECTION_SIZE
        peer.transport.pause_reading()
        writer.write(bytes(8 * LARGE))
        await asyncio.sleep(0.1)
        assert not peer.received
        assert holdings.size_of("encrypted") < 400_000
        assert served.ledger.used == holdings.size
        peer.transport.resume_reading()
        await until(lambda: len(peer.received) == 8 * LARGE)
        assert holdings.size_of("encrypted") < 60_000  # the buffers of OpenSSL
        writer.close()
        await served.lost()
        assert holdings.size_of("encrypted") == 0
        holdings.close()


async def test_writing_pauses(context: ssl.SSLContext) -> None:
    """A client that does not read pauses the protocol, and one that reads on resumes it."""
    async with serving(context) as served:
        with (
            served.connect() as connection,
            trusting().wrap_socket(connection, do_handshake_on_connect=False) as client,
        ):
            await asyncio.to_thread(client.do_handshake)
            await until(lambda: served.peers)
            peer = served.peers[0]
            assert peer.transport is not None
            peer.transport.set_write_buffer_limits(1 << 20)
            blocks = [bytes((n,)) * (1 << 20) for n in range(24)]
            for block in blocks:
                peer.transport.write(block)
            frames = [b"h" * 9, b"b" * 16_384, b"h" * 9, b"c" * 20_000]
            peer.transport.writelines(frames)
            peer.transport.write(b"and the end")
            await until(lambda: peer.events == ["made", "pause"])
            before = peer.transport.get_write_buffer_size()
            assert before > 10 << 20
            found = b""

            def read() -> None:
                nonlocal found
                parts = []
                left = sum(map(len, blocks + frames)) + len(b"and the end")
                while left:
                    parts.append(client.recv(left))
                    left -= len(parts[-1])
                found = b"".join(parts)

            await asyncio.to_thread(read)
            assert found == b"".join(blocks + frames) + b"and the end"
            await until(lambda: peer.events == ["made", "pause", "resume"])
            assert peer.transport.get_write_buffer_size() == 0


@pytest.mark.parametrize("size", [5, LARGE])
async def test_closing_sends_all_and_says_so(context: ssl.SSLContext, size: int) -> None:
    """Also while the client sends: it gets every byte, and then the end of TLS, not of the socket alone."""
    async with serving(context) as served:
        with served.connect() as raw:
            client = trusting().wrap_socket(raw, suppress_ragged_eofs=False, do_handshake_on_connect=False)
            await asyncio.to_thread(client.do_handshake)
            await until(lambda: served.peers)
            peer = served.peers[0]
            assert peer.transport is not None
            peer.transport.write(b"y" * size)
            peer.transport.close()
            assert peer.transport.is_closing()
            peer.transport.write(b"not sent")
            client.send(b"what nobody reads" * 100)

            def read() -> int:
                count = 0
                while found := client.recv(1 << 16):
                    count += len(found)
                return count

            assert await asyncio.to_thread(read) == size
            client.close()
        assert (await served.lost()).received == b""
        assert served.ledger.used == 0


async def test_a_client_that_does_not_close_is_left(context: ssl.SSLContext) -> None:
    """It reads nothing, or it sends on: the connection ends without it."""
    async with serving(context) as served:
        with served.connect() as connection:
            await hand_shaken(served, connection)
            await until(lambda: served.peers)
            transport = served.peers[0].transport
            assert transport is not None
            transport.write(bytes(8 * LARGE))
            transport.close()
            await served.lost()
            assert served.ledger.used == 0


async def test_an_abort_is_at_once(context: ssl.SSLContext) -> None:
    """What is not sent yet is dropped."""
    async with serving(context) as served:
        _, writer = await served.open()
        await until(lambda: served.peers)
        peer = served.peers[0]
        assert peer.transport is not None
        peer.transport.write(bytes(8 * LARGE))
        peer.transport.abort()
        await until(lambda: peer.events[-1] == "lost")
        writer.transport.abort()


async def test_the_last_request_before_the_end_is_handled(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends and closes at once loses nothing, also when its input waits for a turn."""
    async with serving(context) as served:
        with served.connect() as connection:
            made = await hand_shaken(served, connection)
            short_turns(monkeypatch)
            connection.sendall(made.records(b"z" * 2_000, 1))
            connection.shutdown(socket.SHUT_WR)
            peer = await served.lost()
        assert bytes(peer.received) == b"z" * 2_000
        assert peer.events == ["made", "eof", "lost"]
        assert peer.error is None


def _key_updates(made: Records) -> bytes:
    return b"".join(made.key_update(requested=False) for _ in range(3_000))


def _answered_key_updates(made: Records) -> bytes:
    """Between which there is application data."""
    return b"".join(made.key_update() + (made.record(b"x") if n % 100 == 0 else b"") for n in range(3_000))


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (_key_updates, "no application data"),
        (_answered_key_updates, "too many answers"),
        (lambda made: made.record(b"") * 1 + b"".join(made.record(b"") for _ in range(40)), ""),
        (lambda made: b"".join(made.record(bytes((1, USER_CANCELED)), ALERT) for _ in range(40)), ""),
        (lambda made: made.record(b"\x01\x00\x00\x01\x00", HANDSHAKE), ""),
        (lambda made: made.record(bytes(10))[:-1] + b"\x00", ""),
        (lambda made: b"\x17\x03\x03\xff\xff" + bytes(65_535), ""),
    ],
    ids=["key updates", "answered key updates", "empty records", "warnings", "a second hello", "forged", "too long"],
)
async def test_a_client_that_breaks_the_rules_is_cut_off(
    context: ssl.SSLContext, sent: Callable[[Records], bytes], cause: str
) -> None:
    """The connection ends with an error, and leaves nothing."""
    async with serving(context) as served:
        with served.connect() as connection:
            made = await hand_shaken(served, connection)
            with suppress(OSError):
                await asyncio.to_thread(connection.sendall, sent(made))
            peer = await served.lost()
            assert cause in str(peer.error)
            assert isinstance(peer.error, OSError)
        assert served.ledger.used == 0


async def test_some_key_updates_are_answered(context: ssl.SSLContext) -> None:
    """As clients send them."""
    async with serving(context) as served:
        with served.connect() as connection:
            made = await hand_shaken(served, connection)
            for _ in range(100):
                connection.sendall(made.key_update() + made.record(b"x"))
            await until(lambda: served.peers[0].received == b"x" * 100)


async def test_an_ended_connection_leaves_no_garbage(context: ssl.SSLContext) -> None:
    """A handshake's memory is 55 KB, and old garbage is collected once a minute."""
    gc.collect()
    gc.disable()
    try:
        async with serving(context) as served:
            for begin in (begin_of_tls()[:-1], b"GET /", b"\x16"):
                with served.connect() as connection:
                    connection.send(begin)
                    count = len(served.errors)
                    await asyncio.sleep(0.02)
                await until(lambda count=count: len(served.errors) > count)  # type: ignore[misc]
            for broken in (False, True):
                with served.connect() as connection:
                    made = await hand_shaken(served, connection)
                    connection.sendall(bytes(100) if broken else made.record(b"x"))
                    await until(lambda: served.peers)
                await until(lambda: "lost" in served.peers[0].events)
                served.peers.clear()
            served.errors.clear()
            await asyncio.sleep(0.05)
            left = [found for found in gc.get_objects() if type(found) is TlsTransport]
            assert not left
    finally:
        gc.enable()
