"""POP consumers of RocketMQ 5.5 through moves of their store: what was in flight is delivered by the next broker.

The consumers use gRPC, which RocketMQ's proxy turns into POP, or are RocketMQ's own push consumers, for which operators
have set the mode POP. They are the same on both brokers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_client import Message, NotFoundError, ReceivedMessage, connect
from aerobee_client.testing import BrokerProcess, run_broker
from tests.cluster.conftest import serve
from tests.cluster.rocketmq_proxy import RunningProxy, mqadmin, prepare, rocketmq
from tests.cluster.test_java_replication import log_of, until
from tests.support.remoting_client import RemotingClient, json_body

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1500),  # the first test downloads; every wait has its own timeout
    pytest.mark.skipif("AEROBEE_ROCKETMQ" not in os.environ, reason="run by `make test-client-rocketmq`"),
]
TOPIC: Final = "orders"
GROUP: Final = "billing"
SECONDS: Final = 120.0
INVISIBLE_SECONDS: Final = 12  # RocketMQ's shortest are 10
LONG_SECONDS: Final = 45  # also on a slow machine, not over when RocketMQ stops
SEGMENT_SIZE: Final = 16 << 20
FIRST_PORT: Final = 23_000  # below those that the system gives to clients


@pytest.fixture(scope="module", params=["false", "true"], ids=["v1", "v2"])
def settings(request: pytest.FixtureRequest) -> Mapping[str, object]:
    """Of RocketMQ: the naming version of its retry topics."""
    return {"enableRetryTopicV2": request.param}


def port_of(number: int) -> int:
    """The first of twenty ports."""
    return FIRST_PORT + 20 * number + 200 * (os.getpid() % 10)


def java(home: Path, number: int, settings: Mapping[str, object]) -> AbstractContextManager[RunningProxy]:
    """RocketMQ on the store `home/store`."""
    return rocketmq(
        prepare(),
        home,
        port_of(number),
        topics={TOPIC: "NORMAL"},
        groups={GROUP: False},
        broker_settings=settings,
    )


def set_pop(running: RunningProxy, home: Path) -> None:
    """Push consumers of the group receive from now on. The store keeps it."""
    command = ["setConsumeMode", "-b", running.broker, "-t", TOPIC, "-g", GROUP, "-m", "POP", "-q", "0"]
    mqadmin(prepare(), home, running.names, command)


def stop(running: RunningProxy) -> None:
    """SIGTERM, and wait."""
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(SECONDS) is not None


async def send_all(endpoint: str, bodies: Collection[str]) -> None:
    async with connect(endpoint) as client:
        producer = client.producer()
        for body in bodies:
            async with asyncio.timeout(SECONDS):
                while True:
                    try:
                        await producer.send(Message(topic=TOPIC, body=body.encode()))
                        break
                    except NotFoundError:  # the name server does not know the topic yet
                        await asyncio.sleep(0.5)


class Endpoints(NamedTuple):
    """Where a broker is reached: by gRPC, and by the remoting protocol, as a name server."""

    grpc: str
    remoting: str


class Consumer(Protocol):
    """Receives and acknowledges."""

    acknowledged: set[str]
    """The bodies that were acknowledged, on whichever broker."""

    async def receive(
        self, broker: Endpoints, count: int, *, finish: int = 0, seconds: int = INVISIBLE_SECONDS
    ) -> set[str]:
        """Receive this many messages, one by one, invisible for `seconds`, and acknowledge the first ones. Returns
        those left in flight."""

    async def finish_until_retried(self, broker: Endpoints) -> None:
        """Acknowledge messages, one by one, until one of them has come again."""

    async def receive_all(self, broker: Endpoints, wanted: Collection[str]) -> set[str]:
        """Receive and acknowledge until all of `wanted` have come; returns all that has."""


class GrpcConsumer:
    """Our own client."""

    def __init__(self, _: Path) -> None:
        self.acknowledged: set[str] = set()

    async def receive(
        self, broker: Endpoints, count: int, *, finish: int = 0, seconds: int = INVISIBLE_SECONDS
    ) -> set[str]:
        left: set[str] = set()
        async for message, finished in self._messages(broker.grpc, 1, seconds):
            if finish > 0:
                finish -= 1
                await finished()
            else:
                left.add(message.body.decode())
            count -= 1
            if not count:
                break
        return left

    async def finish_until_retried(self, broker: Endpoints) -> None:
        async for message, finished in self._messages(broker.grpc, 1):
            await finished()
            if message.delivery_attempt > 1:
                break

    async def receive_all(self, broker: Endpoints, wanted: Collection[str]) -> set[str]:
        found: set[str] = set()
        async for message, finished in self._messages(broker.grpc, 16):
            found.add(message.body.decode())
            await finished()
            if found.issuperset(wanted):
                break
        return found

    async def _messages(
        self, endpoint: str, max_count: int, seconds: int = INVISIBLE_SECONDS
    ) -> AsyncIterator[tuple[ReceivedMessage, Callable[[], Awaitable[None]]]]:
        async with asyncio.timeout(SECONDS), connect(endpoint) as client:
            consumer = client.simple_consumer(GROUP, {TOPIC: "*"})
            while True:
                try:
                    messages = await consumer.receive(max_count, wait_seconds=5, invisible_seconds=seconds)
                except NotFoundError:  # the name server does not know the topic yet
                    await asyncio.sleep(0.5)
                    continue
                for message in messages:

                    async def finish(message: ReceivedMessage = message) -> None:
                        await consumer.ack([message])
                        self.acknowledged.add(message.body.decode())

                    yield message, finish


class JavaConsumer:
    """RocketMQ's push consumer (proxy/PopClient.java). Of the messages that it leaves in flight it fails one."""

    def __init__(self, home: Path) -> None:
        self.acknowledged: set[str] = set()
        self._home = home

    async def receive(
        self, broker: Endpoints, count: int, *, finish: int = 0, seconds: int = INVISIBLE_SECONDS
    ) -> set[str]:
        received: set[str] = set()
        finished: set[str] = set()
        async for told, body in self._told(broker, "receive", str(count), str(finish), seconds=seconds):
            if told == "received":
                received.add(body)
            elif told == "acknowledged":
                finished.add(body)
        assert len(received) == count
        assert len(finished) == finish
        return received - finished

    async def finish_until_retried(self, broker: Endpoints) -> None:
        async for _ in self._told(broker, "retried"):
            pass

    async def receive_all(self, broker: Endpoints, wanted: Collection[str]) -> set[str]:
        received: set[str] = set()
        missing = set(wanted)
        async for told, body in self._told(broker, "all", missing=missing):
            if told == "received":
                received.add(body)
            else:
                missing.discard(body)
        return received

    async def _told(
        self,
        broker: Endpoints,
        *story: str,
        seconds: int = INVISIBLE_SECONDS,
        missing: Collection[str] | None = None,
    ) -> AsyncIterator[tuple[str, str]]:
        """What the program prints: a word and a body. It is told to end once `missing` is empty."""
        arguments = (broker.remoting, TOPIC, GROUP, str(seconds * 1000), *story)
        command = prepare().command(self._home, "PopClient", *arguments)
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=self._home)
        assert program.stdin is not None
        assert program.stdout is not None
        lines: list[str] = []
        try:
            async with asyncio.timeout(SECONDS):
                async for line in program.stdout:
                    lines.append(line.decode().rstrip("\n"))
                    told, body = lines[-1].split(" ", 1)
                    assert told != "refused", body
                    if told == "acknowledged":
                        self.acknowledged.add(body)
                    yield told, body
                    if missing is not None and not missing:
                        program.stdin.close()
                assert await program.wait() == 0
        except TimeoutError:
            pytest.fail(f"{story} has not ended; {missing} are missing; it told {lines}")
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()


@pytest.fixture(params=[GrpcConsumer, JavaConsumer], ids=["grpc", "remoting"])
def consumer(request: pytest.FixtureRequest, tmp_path: Path) -> Consumer:
    return cast("Consumer", request.param(tmp_path / "consumer"))


def names(prefix: str) -> set[str]:
    return {f"{prefix}{number}" for number in range(20)}


async def fill_and_consume(broker: Endpoints, consumer: Consumer) -> None:
    """Some messages are in flight, some wait in the retry topic, some are acknowledged, some are new."""
    late = {"m17", "m18", "m19"}
    await send_all(broker.grpc, names("m") - late)
    await consumer.receive(broker, 8, finish=3)
    await consumer.finish_until_retried(broker)
    await send_all(broker.grpc, late)
    await consumer.receive(broker, 3, finish=1, seconds=LONG_SECONDS)


def test_a_store_goes_to_aerobee_and_back_twice(
    tmp_path: Path, settings: Mapping[str, object], consumer: Consumer
) -> None:
    """What is in flight at a move is delivered afterwards. Aerobee repeats nothing that was acknowledged."""
    homes = [tmp_path / name for name in ("java1", "ours1", "java2", "ours2")]
    with java(homes[0], 0, settings) as running:
        set_pop(running, tmp_path / "admin")
        asyncio.run(fill_and_consume(endpoints(running), consumer))
        stop(running)
    left = names("m") - consumer.acknowledged
    with ours(homes[0], homes[1]) as (broker, addresses):
        assert asyncio.run(consumer.receive_all(addresses, left)) == left
        asyncio.run(send_all(addresses.grpc, names("n")))
        held = asyncio.run(consumer.receive(addresses, 9, finish=3))
        assert broker.stop() == 0
    move(homes[1], homes[2])
    with java(homes[2], 1, settings) as running:
        asyncio.run(consumer.receive_all(endpoints(running), held))
        asyncio.run(send_all(running.endpoint, names("o")))
        asyncio.run(consumer.receive(endpoints(running), 5, finish=2, seconds=LONG_SECONDS))
        stop(running)
    with ours(homes[2], homes[3]) as (_, addresses):
        asyncio.run(consumer.receive_all(addresses, (names("n") | names("o")) - consumer.acknowledged))


def test_a_replica_is_promoted(tmp_path: Path, settings: Mapping[str, object], consumer: Consumer) -> None:
    """It has only what it copied of the log and of the tables.

    With the master's offsets, what is in flight does not come as a new message. It is found in the revive log, because
    its long time is not over when the master stops.
    """
    home, copy = tmp_path / "java", tmp_path / "copy"
    config = tmp_path / "aerobee.toml"
    config.write_text(
        f'[broker]\nname = "test-broker"\ncluster = "test-cluster"\n[store]\nsegment_size = {SEGMENT_SIZE}\n'
    )
    promoted = Endpoints(*(f"127.0.0.1:{port_of(3) + number}" for number in range(2)))
    with ExitStack() as stack:
        running = stack.enter_context(java(home, 2, settings))
        set_pop(running, tmp_path / "admin")
        role = ("--role", "replica", "--listen-replicas", "127.0.0.1:0", "--namesrv", endpoints(running).remoting)
        addresses = ("--listen", promoted.grpc, "--listen-remoting", promoted.remoting, "--config", str(config))
        with serve(copy, *role, *addresses):
            asyncio.run(fill_and_consume(endpoints(running), consumer))
            # The replica asks for the master's address from time to time, and the master may be up for the first time.
            until(lambda: log_of(copy) == log_of(home / "store"), "the replica does not follow")
            until(lambda: offsets_of(promoted.remoting) == offsets_of(running.broker), "offsets are not copied")
            stop(running)  # it does not wait for the replica, and may store more for its retry topic meanwhile
            assert log_of(home / "store").startswith(log_of(copy))
            stack.close()
            command = [sys.executable, "-m", "aerobee_broker", "promote", "--remoting", promoted.remoting]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            assert done.returncode == 0, done.stderr
            until(lambda: _listens(promoted.grpc), "it is not master")
            left = names("m") - consumer.acknowledged
            asyncio.run(consumer.receive_all(promoted, left))


def test_deliveries_in_rocksdb_end_before_the_move(tmp_path: Path) -> None:
    """Only RocketMQ reads them. What is then in its retry topic is delivered."""
    consumer = GrpcConsumer(tmp_path)
    homes = tmp_path / "java", tmp_path / "ours"
    with java(
        homes[0], 5, dict.fromkeys(("popConsumerKVServiceInit", "popConsumerKVServiceEnable"), "true")
    ) as running:
        asyncio.run(send_all(running.endpoint, names("m")))
        held = asyncio.run(consumer.receive(endpoints(running), 8, finish=3))
        retried = f"%RETRY%{GROUP}_{TOPIC}".encode()
        until(lambda: log_of(homes[0] / "store").count(retried) >= len(held), "what was in flight is not retried")
        stop(running)
    left = names("m") - consumer.acknowledged
    with ours(*homes) as (_, addresses):
        assert asyncio.run(consumer.receive_all(addresses, left)) == left


def offsets_of(remoting: str) -> object:
    """Where each group continues, by topic and group."""

    async def asked() -> Command:
        client = await RemotingClient.connect(Address.parse(remoting))
        try:
            return await client.call(Request.GET_ALL_CONSUMER_OFFSET)
        finally:
            await client.close()

    return json_body(asyncio.run(asked()))["offsetTable"]


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def move(old: Path, new: Path) -> None:
    new.mkdir()
    (old / "store").rename(new / "store")


def endpoints(running: RunningProxy) -> Endpoints:
    return Endpoints(running.endpoint, running.names)


@contextmanager
def ours(old: Path, new: Path) -> Iterator[tuple[BrokerProcess, Endpoints]]:
    """Aerobee on the store of `old`."""
    move(old, new)
    remoting = f"127.0.0.1:{port_of(4)}"
    with run_broker(new, settings={"store.segment_size": SEGMENT_SIZE, "listen.remoting": remoting}) as broker:
        yield broker, Endpoints(broker.endpoint, remoting)
