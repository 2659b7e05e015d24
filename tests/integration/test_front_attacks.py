"""Attacks on HTTP/2, TLS and sockets, each ended by a limit, while a well-behaved client is served.

An attack is repeated until the other client has its answers, so each answer was waited for during the attack. A metric
names the limit. The long form with 10,000 connections is in test_hostile_connections.py.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, Final

import pytest

from aerobee_broker.front import frames
from aerobee_broker.front.call import MESSAGE_SIZE_MAX
from aerobee_broker.front.frames import ErrorCode, Setting
from aerobee_client import Message, connect
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from tests.support.hostile_clients import resident
from tests.support.http2_attacker import Attacker, attacker, begin_of_tls, block, headers, message
from tests.support.unharmed_broker import unharmed_broker

ANSWERS: Final = 3  # to the other client during an attack
ANSWER_SECONDS: Final = 15.0  # for each; a blocked broker would not answer at all
GROWTH_MAX: Final = 64 << 20  # bytes of memory
SEND: Final = block("/apache.rocketmq.v2.MessagingService/SendMessage")
RECEIVE: Final = block("/apache.rocketmq.v2.MessagingService/ReceiveMessage")
TALK: Final = block("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
IMPATIENT: Final = {
    "front.connection_count_max": 40,
    "front.stream_count_max": 30,
    "front.connection_request_size_max": 3 << 20,
    "limits.request_bytes_max": 80 << 20,
    "limits.waiting_bytes_max": 48 << 20,
    "front.connection_answer_size_max": 1 << 20,
    "front.handshake_seconds": 3.0,
    "front.idle_seconds": 3.0,
    "front.keepalive_seconds": 1.0,
    "front.keepalive_timeout_seconds": 3.0,
    "front.stall_seconds": 3.0,
}


@pytest.fixture(scope="module")
def broker_arguments() -> Sequence[str]:
    """A broker with the default limits."""
    return ("--dev", "--front", "native")


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose limits are reached within seconds."""
    with unharmed_broker(tmp_path_factory.mktemp("aerobee"), ("--dev", "--front", "native"), IMPATIENT) as running:
        yield running


def refused(broker: BrokerProcess, bound: str) -> int:
    """How often a limit has ended something, from its metric."""
    with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("aerobee_front_refused_total{") and f'bound="{bound}"' in line:
                return int(float(line.rpartition(" ")[2]))
    return 0


def wait_until_refused(broker: BrokerProcess, bound: str, more_than: int) -> None:
    """Wait until the metric exceeds `more_than`; AssertionError after a minute."""
    ends = time.monotonic() + 60
    while refused(broker, bound) <= more_than:
        assert time.monotonic() < ends, f"{bound} ended nothing"
        time.sleep(0.1)


@asynccontextmanager
async def beside_a_good_client(broker: BrokerProcess) -> AsyncIterator[asyncio.Event]:
    """A client that sends messages one by one; the event is set once it has enough answers."""
    enough = asyncio.Event()
    slowest = 0.0

    async def send() -> None:
        nonlocal slowest
        async with connect(broker.endpoint) as client:
            producer = client.producer()
            for _ in range(ANSWERS):
                began = time.monotonic()
                await producer.send(Message(topic="wanted", body=b"1"))
                slowest = max(slowest, time.monotonic() - began)
            enough.set()

    async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        yield enough
        await enough.wait()
    assert slowest < ANSWER_SECONDS


async def attack(broker: BrokerProcess, once: Callable[[], None], bound: str) -> None:
    """Repeat an attack until another client has its answers. Each attack must be ended by this limit."""
    before = await asyncio.to_thread(refused, broker, bound)
    memory = resident(broker)
    times = 0
    async with beside_a_good_client(broker) as enough:
        while not enough.is_set() or not times:
            await asyncio.to_thread(once)
            times += 1
    assert await asyncio.to_thread(refused, broker, bound) >= before + times
    assert resident(broker) - memory < GROWTH_MAX


# --- Floods -------------------------------------------------------------------------------------------------


def chunks(part: Callable[[int], bytes], count: int = 100) -> Iterator[bytes]:
    """Endless chunks of `count` parts, each part with its own stream id."""
    ids = itertools.count(1, 2)
    while True:
        yield b"".join(part(next(ids)) for _ in range(count))


def _repeated(frame: bytes) -> Iterator[bytes]:
    return chunks(lambda _: frame)


def _reset(stream_id: int) -> bytes:
    return frames.rst_stream(stream_id, ErrorCode.CANCEL)


FLOODS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "rapid reset": lambda: chunks(lambda number: headers(number, SEND) + _reset(number)),
    "resets by a window of 0": lambda: chunks(lambda number: headers(number, SEND) + frames.window_update(number, 0)),
    "resets by a window too large": lambda: chunks(
        lambda number: headers(number, SEND) + frames.window_update(number, frames.WINDOW_MAX)
    ),
    "resets by a priority of another size": lambda: chunks(
        lambda number: headers(number, SEND) + frames.frame(frames.PRIORITY, 0, number, b"1234")
    ),
    "resets by a stream that depends on itself": lambda: chunks(
        lambda number: (
            headers(number, SEND) + frames.frame(frames.PRIORITY, 0, number, number.to_bytes(4, "big") + b"\0")
        )
    ),
    "resets by trailers that end nothing": lambda: chunks(lambda number: headers(number, SEND) + headers(number, b"")),
    "resets by headers that are none": lambda: chunks(lambda number: headers(number, b"\x82", ended=True)),
    "settings": lambda: _repeated(frames.settings({Setting.INITIAL_WINDOW_SIZE: 1000})),
    "acknowledged settings": lambda: _repeated(frames.frame(frames.SETTINGS, frames.ACK, 0)),
    "pings": lambda: _repeated(frames.frame(frames.PING, 0, 0, b"12345678")),
    "window updates": lambda: _repeated(frames.window_update(0, 1)),
    "priorities": lambda: _repeated(frames.frame(frames.PRIORITY, 0, 1, b"\0\0\0\3\0")),
    "unknown frames": lambda: _repeated(frames.frame(0x77, 0, 0)),
    "goodbyes": lambda: _repeated(frames.goaway(0, ErrorCode.NO_ERROR)),
    "empty data": lambda: itertools.chain([headers(1, SEND)], _repeated(frames.frame(frames.DATA, 0, 1))),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_of_frames(broker: BrokerProcess, flood: str) -> None:
    """The frames cost the receiver more than the sender."""

    def once() -> None:
        with attacker(broker.endpoint) as connection:
            connection.flood(FLOODS[flood]())

    await attack(broker, once, "cheap_frame_count_max")


async def test_windows_of_one_byte(broker: BrokerProcess) -> None:
    """The client accepts large answers one byte at a time."""
    symbol = b"apache.rocketmq.v2.MessagingService"
    question = b"\x22" + bytes([len(symbol)]) + symbol  # asks for the file that defines the symbol, with its imports

    def once() -> None:
        with attacker(broker.endpoint, window=0) as connection:
            ids = list(range(1, 101, 2))
            for number in ids:
                connection.send(headers(number, TALK) + message(number, question))
            connection.flood(itertools.repeat(b"".join(frames.window_update(number, 1) for number in ids)))

    await attack(broker, once, "cheap_frame_count_max")


CONTINUED: Final = frames.frame(frames.HEADERS, 0, 1, SEND)
BOMBS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "continuations without end": lambda: itertools.chain(
        [CONTINUED], itertools.repeat(frames.frame(frames.CONTINUATION, 0, 1, b"\0\1a\1b" * 3000))
    ),
    "empty continuations": lambda: itertools.chain([CONTINUED], _repeated(frames.frame(frames.CONTINUATION, 0, 1))),
    # A table entry of 4,000 bytes, and 16,000 fields that refer to it: 64 MB.
    "a large entry named often": lambda: itertools.chain(
        [headers(1, SEND + b"\x40\1a\x7f\xa1\x1e" + b"x" * 4000, ended=True)],
        (headers(number, SEND + b"\xbe" * 16000, ended=True) for number in itertools.count(3, 2)),
    ),
    "many fields of a byte": lambda: chunks(lambda number: headers(number, b"\x82" * 16000, ended=True), 1),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_header_bombs(broker: BrokerProcess, bomb: str) -> None:
    """Endless headers, or headers that are small on the wire and large in memory."""

    def once() -> None:
        with attacker(broker.endpoint) as connection:
            connection.flood(BOMBS[bomb]())

    await attack(broker, once, "header_size_max")


async def test_many_headers(broker: BrokerProcess) -> None:
    """Too many headers are refused; the connection stays open."""
    many = SEND + b"\0\1a\1b" * 200

    def once() -> None:
        with attacker(broker.endpoint) as connection:
            connection.send(headers(1, many, ended=True) + frames.frame(frames.PING, 0, 0, b"12345678"))
            for frame in connection.frames():
                if frame.kind == frames.HEADERS:
                    assert b"128 headers" in frame.payload
                if frame.kind == frames.PING:
                    return
            raise AssertionError("the connection ended")

    await attack(broker, once, "header_count_max")


# --- Windows, sizes and counts ------------------------------------------------------------------------------


async def test_too_many_calls(impatient: BrokerProcess) -> None:
    """Calls above the limit are refused, and may be retried."""

    def once() -> None:
        with attacker(impatient.endpoint) as connection:
            connection.send(b"".join(headers(number, SEND) for number in range(1, 101, 2)))
            assert connection.resets(20) == [ErrorCode.REFUSED_STREAM] * 20

    await attack(impatient, once, "stream_count_max")


async def test_too_many_connections(impatient: BrokerProcess) -> None:
    """Connections above the limit are closed at once; new ones are accepted once others close."""

    def once() -> None:
        before = refused(impatient, "connection_count_max")
        with ExitStack() as connections:
            for _ in range(60):
                connection = socket.create_connection(_address(impatient), timeout=60)
                connections.enter_context(connection)
            wait_until_refused(impatient, "connection_count_max", before + 10)

    async with connect(impatient.endpoint) as client:
        producer = client.producer()
        await producer.send(Message(topic="wanted", body=b"1"))
        flood = asyncio.create_task(asyncio.to_thread(once))
        for _ in range(ANSWERS):
            async with asyncio.timeout(ANSWER_SECONDS):
                await producer.send(Message(topic="wanted", body=b"1"))
        await flood
    async with connect(impatient.endpoint) as client, asyncio.timeout(60):
        await client.producer().send(Message(topic="wanted", body=b"1"))


def _address(broker: BrokerProcess) -> tuple[str, int]:
    host, _, port = broker.endpoint.rpartition(":")
    return host, int(port)


async def test_a_message_that_is_too_large(impatient: BrokerProcess) -> None:
    """The message is refused as soon as its length prefix arrives."""

    def once() -> None:
        with attacker(impatient.endpoint) as connection:
            prefix = b"\0" + (MESSAGE_SIZE_MAX + 1).to_bytes(4, "big")
            connection.send(headers(1, TALK) + frames.frame(frames.DATA, 0, 1, prefix))
            for frame in connection.frames():
                if frame.kind == frames.HEADERS:
                    assert b"grpc-status\x018" in frame.payload  # RESOURCE_EXHAUSTED
                    return
            raise AssertionError("the connection ended")

    await attack(impatient, once, "message_size_max")


def _unfinished(connection: Attacker, numbers: range) -> None:
    """Send most of each request, without its end."""
    piece = bytes(frames.FRAME_SIZE_DEFAULT)
    for number in numbers:
        prefix = b"\0" + (1 << 20).to_bytes(4, "big")
        connection.send(headers(number, TALK) + frames.frame(frames.DATA, 0, number, prefix))
        connection.send(b"".join(frames.frame(frames.DATA, 0, number, piece) for _ in range(60)))


async def test_requests_that_never_end(impatient: BrokerProcess) -> None:
    """Buffered parts are limited per connection; past the total the connections with most are closed."""

    def one_connection() -> None:
        with attacker(impatient.endpoint) as connection:
            _unfinished(connection, range(1, 9, 2))
            assert any(b"grpc-status\x018" in frame.payload for frame in _until_headers(connection))

    await attack(impatient, one_connection, "connection_request_size_max")

    def many_connections() -> None:
        before = refused(impatient, "waiting_bytes_max")
        with ExitStack() as connections, suppress(OSError):
            for _ in range(8):
                _unfinished(connections.enter_context(attacker(impatient.endpoint)), range(1, 5, 2))
            wait_until_refused(impatient, "waiting_bytes_max", before)

    await attack(impatient, many_connections, "waiting_bytes_max")


def _until_headers(connection: Attacker) -> Iterator[Any]:
    for frame in connection.frames():
        yield frame
        if frame.kind == frames.HEADERS:
            return


async def _large_messages(broker: BrokerProcess) -> None:
    async with connect(broker.endpoint) as client:
        producer = client.producer()
        for number in range(16):
            await producer.send(Message(topic="large", body=bytes([number]) * 500_000))


def _receive(group: str) -> bytes:
    request = v2.ReceiveMessageRequest(group=v2.Resource(name=group), batch_size=8)
    request.message_queue.topic.name = "large"
    request.invisible_duration.FromSeconds(10)
    return request.SerializeToString()


async def test_clients_that_do_not_read(impatient: BrokerProcess) -> None:
    """Closed windows stop new calls while answers wait, and end in time; so does a full socket."""
    await _large_messages(impatient)

    def closed_windows() -> None:
        with attacker(impatient.endpoint, window=0) as connection:
            for number in range(1, 9, 2):
                connection.send(headers(number, RECEIVE) + message(number, _receive(f"slow-{number}")))
            ends = time.monotonic() + 60
            number = 9
            while refused(impatient, "connection_answer_size_max") == before and time.monotonic() < ends:
                connection.send(headers(number, SEND, ended=True))
                number += 2
                time.sleep(0.05)
            codes = set()
            for frame in connection.frames():
                if frame.kind == frames.RST_STREAM:
                    codes.add(ErrorCode(int.from_bytes(frame.payload, "big")))
                if ErrorCode.CANCEL in codes:
                    break
            assert ErrorCode.CANCEL in codes

    before = await asyncio.to_thread(refused, impatient, "connection_answer_size_max")
    await attack(impatient, closed_windows, "stall_seconds")
    assert await asyncio.to_thread(refused, impatient, "connection_answer_size_max") > before

    def full_socket() -> None:
        stalled = refused(impatient, "stall_seconds")
        with attacker(impatient.endpoint, window=frames.WINDOW_MAX) as connection:
            connection.send(frames.window_update(0, 1 << 30))
            for number in range(1, 17, 2):
                connection.send(headers(number, RECEIVE) + message(number, _receive(f"full-{number}")))
            wait_until_refused(impatient, "stall_seconds", stalled)

    await attack(impatient, full_socket, "stall_seconds")


# --- Time ---------------------------------------------------------------------------------------------------


_LONG_SETTINGS: Final = frames.frame(frames.SETTINGS, 0, 0, bytes(600))


async def test_connections_that_never_begin(impatient: BrokerProcess) -> None:
    """Connections that send nothing, HTTP/2's first bytes, or one byte at a time; half of a TLS handshake, or a whole
    one and no more."""

    def silent(first: bytes, *, drip: bytes = b"") -> Callable[[], None]:
        def once() -> None:
            with socket.create_connection(_address(impatient), timeout=60) as connection:
                connection.sendall(first)
                if drip:
                    _drip(connection, drip)
                with suppress(ConnectionError):
                    while connection.recv(1 << 16):
                        pass

        return once

    def silent_after_tls() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection(_address(impatient), timeout=60) as connection,
            context.wrap_socket(connection) as secure,
            suppress(ConnectionError, ssl.SSLEOFError),
        ):
            while secure.recv(1 << 16):
                pass

    half = begin_of_tls()[:100]
    async with asyncio.TaskGroup() as attacks:
        for once, bound in (
            (silent(b""), "handshake_seconds"),
            (silent(frames.PREFACE[:10]), "handshake_seconds"),
            (silent(frames.PREFACE, drip=_LONG_SETTINGS), "handshake_seconds"),
            (silent(half), "tls_handshake"),
            (silent(begin_of_tls()), "tls_handshake"),
            (silent_after_tls, "handshake_seconds"),
        ):
            attacks.create_task(attack(impatient, once, bound))


def _drip(connection: socket.socket, data: bytes) -> None:
    """Send one byte at a time until the server closes the connection."""
    for byte in data:
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.2)
    raise AssertionError("the server takes a byte at a time for ever")


async def test_idle_and_slow_connections(impatient: BrokerProcess) -> None:
    """Idle connections, frames and requests sent byte by byte, and dead peers."""

    def idle() -> None:
        with attacker(impatient.endpoint) as connection:
            for frame in connection.frames():  # the client is alive and answers the GOAWAY
                if frame.kind == frames.PING and not frame.flags & frames.ACK:
                    connection.send(frames.frame(frames.PING, frames.ACK, 0, frame.payload))

    def dripping_frame() -> None:
        with attacker(impatient.endpoint) as connection:
            _drip(connection.socket, frames.frame(frames.HEADERS, 0, 1, bytes(1000)))

    def dripping_request() -> None:
        with attacker(impatient.endpoint) as connection:
            prefix = b"\0" + (100_000).to_bytes(4, "big")
            connection.send(headers(1, SEND) + frames.frame(frames.DATA, 0, 1, prefix))
            before = refused(impatient, "stall_seconds")
            ends = time.monotonic() + 60
            while refused(impatient, "stall_seconds") == before:
                assert time.monotonic() < ends, "the server takes a byte at a time for ever"
                connection.send(frames.frame(frames.DATA, 0, 1, b"\1"))
                time.sleep(0.2)
            assert any(b"grpc-status\x014" in frame.payload for frame in _until_headers(connection))

    def dead() -> None:
        with attacker(impatient.endpoint) as connection:
            connection.send(headers(1, TALK))  # a call keeps the connection from being idle
            connection.wait_for_end()

    async with asyncio.TaskGroup() as attacks:
        attacks.create_task(attack(impatient, idle, "idle_seconds"))
        attacks.create_task(attack(impatient, dripping_frame, "idle_seconds"))
        attacks.create_task(attack(impatient, dripping_request, "stall_seconds"))
        attacks.create_task(attack(impatient, dead, "keepalive_seconds"))


async def test_a_client_that_answers_pings_stays_connected(impatient: BrokerProcess) -> None:
    """The connection with a call stays open for several keepalive intervals; the client's own pings are answered."""

    def talk() -> list[int]:
        kinds = []
        with attacker(impatient.endpoint) as connection:
            connection.send(headers(1, TALK) + frames.frame(frames.PING, 0, 0, b"12345678"))
            asked = 0
            for frame in connection.frames():
                if frame.kind == frames.PING:
                    kinds.append(frame.flags & frames.ACK)
                    if not frame.flags & frames.ACK:
                        asked += 1
                        connection.send(frames.frame(frames.PING, frames.ACK, 0, frame.payload))
                if asked == 3:
                    break
        return kinds

    assert sorted(await asyncio.to_thread(talk)) == [0, 0, 0, frames.ACK]
