"""Endless connections and abandoned or unread streams: the broker serves other clients and frees what these held.

AEROBEE_HOSTILE_ROUNDS (default 1) sets the number and size of the rounds; `make test-chaos` runs more.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from aerobee_client import ClientError, Message, connect
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from tests.support.hostile_clients import cpu_seconds, resident, works
from tests.support.unharmed_broker import unharmed_broker

pytestmark = pytest.mark.timeout(3600)

ROUNDS = int(os.environ.get("AEROBEE_HOSTILE_ROUNDS", "1"))
STREAMS = 100 if ROUNDS == 1 else 250  # of each kind per round
CONNECTIONS = 300 if ROUNDS == 1 else 10_000
GROWTH_MAX = 32 << 20  # bytes; between the first rounds and the last
Code = v2.Code


def greeted(broker: BrokerProcess) -> socket.socket:
    """A connection that has sent HTTP/2's greeting and sends nothing more."""
    host, _, port = broker.endpoint.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")
    return connection


def own_channel(broker: BrokerProcess) -> Any:
    """A channel with its own connection."""
    return grpc.aio.insecure_channel(broker.endpoint, options=[("grpc.use_local_subchannel_pool", 1)])


def headers(client_id: str) -> Any:
    return (("x-mq-client-id", client_id), ("x-mq-language", "JAVA"))


async def test_many_connections_leave_descriptors_for_the_store(tmp_path: Path) -> None:
    """Connected clients are served, also with new topics, which need files; later, new clients are, too."""
    with unharmed_broker(tmp_path) as broker:
        async with connect(broker.endpoint) as client:
            producer = client.producer()
            await producer.send(Message(topic="before", body=b"1"))
            used = len(os.listdir(f"/proc/{broker.pid}/fd"))
            limit = used + 60
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, used + 400))
            with ExitStack() as connections:
                for _ in range(200):
                    connections.enter_context(greeted(broker))
                async with asyncio.timeout(60):  # the connections use all descriptors they may
                    while len(os.listdir(f"/proc/{broker.pid}/fd")) < limit - limit // 8 - 1:  # noqa: ASYNC110  # of another process
                        await asyncio.sleep(0.05)
                for path in ("healthz", "readyz"):  # otherwise an orchestrator would stop a working broker
                    url = f"http://{broker.metrics}/{path}"
                    with await asyncio.to_thread(urllib.request.urlopen, url, timeout=5) as answer:
                        assert answer.status == 200
                busy = cpu_seconds(broker)
                await asyncio.sleep(1)
                assert cpu_seconds(broker) - busy < 0.5  # a loop that retries accept() would use all of it
                async with asyncio.timeout(60):
                    for number in range(10):
                        await producer.send(Message(topic=f"during-{number}", body=b"2"))
            async with asyncio.timeout(60):
                received = await client.simple_consumer("all", "during-9").receive(wait_seconds=10)
        assert [message.body for message in received] == [b"2"]
        await works(broker)


async def test_thousands_of_connections(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """Each sends only a greeting; other clients are served meanwhile, and the memory is freed afterwards."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(CONNECTIONS, resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)[0] - 200)  # the number it accepts
    sizes = []
    try:
        for _ in range(max(3, ROUNDS // 2)):
            with ExitStack() as connections:
                for _ in range(count):
                    connections.enter_context(greeted(broker))
                await works(broker)
            await works(broker)
            sizes.append(resident(broker))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, soft)
    with capsys.disabled():
        print(f"\nhostile: {count} connections a round, resident MiB: {[size >> 20 for size in sizes]}", flush=True)
    assert sizes[-1] - sizes[1] < GROWTH_MAX


async def test_abandoned_streams(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """Telemetry, ReceiveMessage, PullMessage and health's Watch streams are abandoned: cut or cancelled."""
    await works(broker)
    sizes = []
    for round_ in range(max(4, ROUNDS)):
        await abandon(broker, STREAMS, round_)
        await works(broker)
        sizes.append(resident(broker))
    with capsys.disabled():
        print(f"\nhostile: {4 * STREAMS} streams a round, resident MiB: {[size >> 20 for size in sizes]}", flush=True)
    assert sizes[-1] - min(sizes[1:3]) < GROWTH_MAX


async def abandon(broker: BrokerProcess, count: int, round_: int) -> None:
    """Open `count` streams of each kind, cancel half of them, and cut the connection of the others."""
    async with own_channel(broker) as channel:
        stub: Any = v2.MessagingServiceStub(channel)
        calls = []
        wait = v2.Duration(seconds=20)
        for number in range(count):
            metadata = headers(f"gone-{round_}@{number}")
            receive = v2.ReceiveMessageRequest(
                group=v2.Resource(name="gone"), auto_renew=True, long_polling_timeout=wait, batch_size=32
            )
            receive.message_queue.topic.name = "nothing"
            calls.append(stub.ReceiveMessage(receive, metadata=metadata, timeout=25))
            pull = v2.PullMessageRequest(group=v2.Resource(name="gone"), batch_size=32, long_polling_timeout=wait)
            pull.message_queue.topic.name = "nothing"
            calls.append(stub.PullMessage(pull, metadata=metadata, timeout=25))
            telemetry = stub.Telemetry(metadata=metadata)
            settings = v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name="nothing")]))
            await telemetry.write(v2.TelemetryCommand(settings=settings))
            calls.append(telemetry)
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=25)
            calls.append(watch)
        async with asyncio.timeout(60):
            await calls[-2].read()
            await calls[-1].read()
        for call in calls[::2]:
            call.cancel()


async def test_unread_receives_do_not_block_other_consumers(broker: BrokerProcess) -> None:
    """Unread receives of megabytes hold only their own messages; when they end, other consumers get these."""
    async with connect(broker.endpoint) as client:
        producer = client.producer()
        sent = set()
        for number in range(64):
            receipt = await producer.send(Message(topic="large", body=bytes([number]) * 200_000))
            sent.add(receipt.message_id)
        async with own_channel(broker) as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            request = v2.ReceiveMessageRequest(group=v2.Resource(name="slow"), batch_size=32)
            request.message_queue.topic.name = "large"
            request.invisible_duration.FromSeconds(2)
            calls = [stub.ReceiveMessage(request, metadata=headers(f"slow-{n}"), timeout=60) for n in range(6)]
            await asyncio.sleep(0.5)
            await works(broker)
            assert not all(call.done() for call in calls)
        consumer = client.simple_consumer("slow", "large")
        found: set[str] = set()
        async with asyncio.timeout(60):
            while found != sent:
                received = await consumer.receive(wait_seconds=5)
                await consumer.ack(received)
                found |= {message.message_id for message in received}


async def ask(channel: Any, method: str, kind: str, request: bytes) -> None:
    """Make one call with these bytes, and wait for its first answer."""
    if kind == "unary":
        await channel.unary_unary(method)(request)
        return
    if kind == "answers":
        call = channel.unary_stream(method)(request)
    else:
        call = channel.stream_stream(method)()
        await call.write(request)
    await call.read()
    call.cancel()


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("/grpc.health.v1.Health/Check", "unary"),
        ("/grpc.health.v1.Health/Watch", "answers"),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "stream"),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "stream"),
    ],
)
async def test_garbage_to_health_and_reflection(broker: BrokerProcess, method: str, kind: str) -> None:
    """Bytes that do not parse end with INVALID_ARGUMENT and a readable text; odd requests get an answer."""
    garbage = (b"\xff\xff\xff", b"\x0a\x7f", b"\x0a\x02\xff\xff", b"\x0a\x05abc", b"\x0f")
    odd = (b"", b"\x0a\x03abc", b"\x1a\x03abc", b"\x2a\x05\x0a\x01a\x10\x05")
    large = b"\x0a\x80\x80\x40" + b"x" * (1 << 20)
    async with own_channel(broker) as channel:
        for request in (*garbage, *odd, large):
            failure: grpc.aio.AioRpcError | None = None
            try:
                async with asyncio.timeout(60):
                    await ask(channel, method, kind, request)
            except grpc.aio.AioRpcError as error:
                failure = error
            if failure is None or failure.code() == grpc.StatusCode.NOT_FOUND:  # health has no such service
                assert request in odd, request
            else:
                assert failure.code() == grpc.StatusCode.INVALID_ARGUMENT, (request, failure.details())
                words = "the limit is" if request is large else "cannot be parsed; send a message of grpc."
                assert words in (failure.details() or "")
                assert request in garbage or request is large, request
    await works(broker)


async def test_restarts_under_load(broker: BrokerProcess) -> None:
    """SIGTERM repeatedly: each exit code is 0, clients reconnect by themselves, and nothing is lost."""
    acknowledged: set[str] = set()
    consumed: set[str] = set()
    ended, all_sent, progress = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def produce(number: int) -> None:
        async with connect(broker.endpoint) as client:
            producer = client.producer()
            while not ended.is_set():
                try:
                    receipt = await producer.send(Message(topic="steady", body=b"%d" % number))
                    acknowledged.add(receipt.message_id)
                    progress.set()
                except ClientError:  # it has retried several times; a start may take longer
                    await asyncio.sleep(0.1)

    async def consume() -> None:
        async with connect(broker.endpoint) as client:
            consumer = client.simple_consumer("all", "steady")
            while not (all_sent.is_set() and acknowledged <= consumed):
                try:
                    received = await consumer.receive(wait_seconds=1)
                    await consumer.ack(received)
                    consumed.update(message.message_id for message in received)
                except ClientError:
                    await asyncio.sleep(0.1)

    producers = [asyncio.create_task(produce(number)) for number in range(4)]
    consumer = asyncio.create_task(consume())
    for _ in range(ROUNDS):
        before = len(acknowledged)
        async with asyncio.timeout(60):
            while len(acknowledged) < before + 20:
                await progress.wait()
                progress.clear()
        code = await asyncio.to_thread(broker.stop)
        assert code == 0
        await asyncio.to_thread(broker.start)
    ended.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*producers)
        all_sent.set()
        await consumer
    assert acknowledged <= consumed
    await works(broker)
