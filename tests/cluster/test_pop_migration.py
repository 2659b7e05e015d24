"""POP consumers of RocketMQ 5.5 through moves of their store: what was in flight is delivered by the next broker.

The consumers use gRPC, which RocketMQ's proxy turns into POP, on both brokers.
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
from typing import Final

import pytest

from aerobee_client import Message, NotFoundError, ReceivedMessage, connect
from aerobee_client.testing import BrokerProcess, run_broker
from tests.cluster.conftest import serve
from tests.cluster.rocketmq_proxy import RunningProxy, prepare, rocketmq
from tests.cluster.test_java_replication import log_of, until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1500),  # the first test downloads; every wait has its own timeout
    pytest.mark.skipif("AEROBEE_ROCKETMQ" not in os.environ, reason="run by `make test-client-rocketmq`"),
]
TOPIC: Final = "orders"
GROUP: Final = "billing"
SECONDS: Final = 120.0
INVISIBLE_SECONDS: Final = 12  # RocketMQ's shortest are 10
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


class Consumer:
    """Receives and acknowledges; remembers what was acknowledged, on whichever broker."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()

    async def receive(self, endpoint: str, count: int, *, finish: int = 0) -> set[str]:
        """Receive this many messages, one by one, and acknowledge the first ones. Returns those left in flight."""
        left: set[str] = set()
        async for message, finished in self._messages(endpoint, 1):
            if finish > 0:
                finish -= 1
                await finished()
            else:
                left.add(message.body.decode())
            count -= 1
            if not count:
                break
        return left

    async def finish_until_retried(self, endpoint: str) -> None:
        """Acknowledge messages, one by one, until one of them has come again."""
        async for message, finished in self._messages(endpoint, 1):
            await finished()
            if message.delivery_attempt > 1:
                break

    async def receive_all(self, endpoint: str, wanted: Collection[str], *, finish: bool) -> set[str]:
        """Receive until all of `wanted` have come; returns all that has."""
        found: set[str] = set()
        async for message, finished in self._messages(endpoint, 16):
            found.add(message.body.decode())
            if finish:
                await finished()
            if found.issuperset(wanted):
                break
        return found

    async def _messages(
        self, endpoint: str, max_count: int
    ) -> AsyncIterator[tuple[ReceivedMessage, Callable[[], Awaitable[None]]]]:
        async with asyncio.timeout(SECONDS), connect(endpoint) as client:
            consumer = client.simple_consumer(GROUP, {TOPIC: "*"})
            while True:
                try:
                    messages = await consumer.receive(max_count, wait_seconds=5, invisible_seconds=INVISIBLE_SECONDS)
                except NotFoundError:  # the name server does not know the topic yet
                    await asyncio.sleep(0.5)
                    continue
                for message in messages:

                    async def finish(message: ReceivedMessage = message) -> None:
                        await consumer.ack([message])
                        self.acknowledged.add(message.body.decode())

                    yield message, finish


def names(prefix: str) -> set[str]:
    return {f"{prefix}{number}" for number in range(20)}


async def fill_and_consume(endpoint: str, consumer: Consumer) -> None:
    """Some messages are in flight, some wait in the retry topic, some are acknowledged, some are new."""
    await send_all(endpoint, names("m"))
    await consumer.receive(endpoint, 8, finish=3)
    await consumer.finish_until_retried(endpoint)
    await consumer.receive(endpoint, 4, finish=1)


def test_a_store_goes_to_aerobee_and_back_twice(tmp_path: Path, settings: Mapping[str, object]) -> None:
    """What is in flight at a move is delivered afterwards. Aerobee repeats nothing that was acknowledged."""
    consumer = Consumer()
    homes = [tmp_path / name for name in ("java1", "ours1", "java2", "ours2")]
    with java(homes[0], 0, settings) as running:
        asyncio.run(fill_and_consume(running.endpoint, consumer))
        stop(running)
    left = names("m") - consumer.acknowledged
    with ours(homes[0], homes[1]) as broker:
        assert asyncio.run(consumer.receive_all(broker.endpoint, left, finish=True)) == left
        asyncio.run(send_all(broker.endpoint, names("n")))
        held = asyncio.run(consumer.receive(broker.endpoint, 9, finish=3))
        assert broker.stop() == 0
    move(homes[1], homes[2])
    with java(homes[2], 1, settings) as running:
        asyncio.run(consumer.receive_all(running.endpoint, held, finish=False))
        stop(running)
    with ours(homes[2], homes[3]) as broker:
        asyncio.run(consumer.receive_all(broker.endpoint, names("n") - consumer.acknowledged, finish=True))


def test_a_replica_is_promoted(tmp_path: Path, settings: Mapping[str, object]) -> None:
    """It has only what it copied of the log and of the offsets."""
    consumer = Consumer()
    home, copy = tmp_path / "java", tmp_path / "copy"
    config = tmp_path / "aerobee.toml"
    config.write_text(
        f'[broker]\nname = "test-broker"\ncluster = "test-cluster"\n[store]\nsegment_size = {SEGMENT_SIZE}\n'
    )
    grpc, remoting = (f"127.0.0.1:{port_of(3) + number}" for number in range(2))
    with ExitStack() as stack:
        running = stack.enter_context(java(home, 2, settings))
        names_port = int(running.endpoint.rpartition(":")[2]) + 2
        role = ("--role", "replica", "--listen-replicas", "127.0.0.1:0", "--namesrv", f"127.0.0.1:{names_port}")
        addresses = ("--listen", grpc, "--listen-remoting", remoting, "--config", str(config))
        with serve(copy, *role, *addresses):
            asyncio.run(fill_and_consume(running.endpoint, consumer))
            # The replica asks for the master's address from time to time, and the master may be up for the first time.
            until(lambda: log_of(copy) == log_of(home / "store"), "the replica does not follow")
            stop(running)
            until(lambda: log_of(copy) == log_of(home / "store"), "the logs differ")
            stack.close()
            command = [sys.executable, "-m", "aerobee_broker", "promote", "--remoting", remoting]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            assert done.returncode == 0, done.stderr
            until(lambda: _listens(grpc), "it is not master")
            left = names("m") - consumer.acknowledged
            asyncio.run(consumer.receive_all(grpc, left, finish=True))


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


@contextmanager
def ours(old: Path, new: Path) -> Iterator[BrokerProcess]:
    """Aerobee on the store of `old`."""
    move(old, new)
    with run_broker(new, settings={"store.segment_size": SEGMENT_SIZE}) as broker:
        yield broker
