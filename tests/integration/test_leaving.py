"""A broker of a cluster that is told to stop leaves the routes first, and serves clients that still come."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_client import connect
from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_proto import v2
from tests.support.name_server import our_name_server
from tests.support.official_sdks import PYTHON
from tests.support.remoting_client import RemotingClient, json_body, pull_fields
from tests.support.sdk_program import SdkProgram, create_topic, numbered

_TOPIC: Final = "orders"
_METADATA: Final = (("x-mq-client-id", "leaving"), ("x-mq-language", "JAVA"))
_LONG: Final = 600.0  # seconds: longer than a test may take
_SECONDS: Final = 60.0


@contextmanager
def _cluster(
    directory: Path, leave_seconds: float, name_server: str = "", **settings: object
) -> Iterator[BrokerProcess]:
    """The broker `a`; a broker `b` has the topic, too. Both register with `name_server`, or b with a. `settings`:
    further ones of a's store."""
    of_first = {f"store.{name}": value for name, value in settings.items()}
    with ExitStack() as brokers:

        def broker(name: str, leave_seconds: float, name_servers: str) -> BrokerProcess:
            settings: dict[str, object] = {"broker.name": name, "listen.leave_seconds": leave_seconds}
            if name == "a":
                settings |= of_first
            if name_servers:
                settings |= {"broker.namesrv": name_servers, "listen.remoting": "127.0.0.1:0"}
            (directory / name).mkdir()
            running = brokers.enter_context(run_broker(directory / name, settings=settings))
            create_topic(running, _TOPIC, "normal")
            return running

        first = broker("a", leave_seconds, name_server)
        broker("b", 0.0, name_server or first.endpoint)
        asyncio.run(_until(lambda: _brokers_of_route(first), {"a", "b"}))
        yield first


async def _until(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(_SECONDS):
        while await ask() != wanted:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.02)


async def _brokers_of_route(broker: BrokerProcess) -> set[str]:
    """The brokers in the route that this broker gives to gRPC clients."""
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        request = v2.QueryRouteRequest(topic=v2.Resource(name=_TOPIC))
        answer = await v2.MessagingServiceStub(channel).QueryRoute(request, metadata=_METADATA)
        return {queue.broker.name for queue in answer.message_queues}


async def _brokers_of(name_server: str) -> set[str]:
    """The brokers in the route that a name server gives to remoting clients."""
    client = await RemotingClient.connect(Address.parse(name_server))
    try:
        answer = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": _TOPIC, "acceptStandardJsonOnly": "true"})
        assert answer.code == Answer.SUCCESS
        return {broker["brokerName"] for broker in json_body(answer)["brokerDatas"]}
    finally:
        await client.close()


async def _readiness(broker: BrokerProcess) -> int:
    def ask() -> int:
        try:
            with urllib.request.urlopen(f"http://{broker.metrics}/readyz", timeout=_SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    return await asyncio.to_thread(ask)


async def _end(broker: BrokerProcess) -> None:
    """Wait until the process has ended by itself."""
    await _until(lambda: asyncio.to_thread(lambda: broker.running), False)
    assert broker.stop() == 0, broker.log_text()[-3000:]


async def _sent(stub: Any, number: int) -> v2.Code.ValueType:
    properties = v2.SystemProperties(message_id=f"{number:034}", message_type=v2.MessageType.NORMAL)
    message = v2.Message(topic=v2.Resource(name=_TOPIC), body=b"%d" % number, system_properties=properties)
    answer = await stub.SendMessage(v2.SendMessageRequest(messages=[message]), metadata=_METADATA)
    code: v2.Code.ValueType = answer.status.code
    return code


async def _stopped_beside_a_client(broker: BrokerProcess) -> None:
    """Tell the broker to stop, and wait for its end while a client stays connected."""
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        assert await _sent(v2.MessagingServiceStub(channel), 1) == v2.Code.OK
        os.kill(broker.pid, signal.SIGTERM)
        await _end(broker)


@pytest.mark.parametrize("separate", [True, False], ids=["a name server", "its own name server"])
def test_a_leaving_broker_takes_messages_until_told_twice(tmp_path: Path, separate: bool) -> None:
    """It is gone from all routes and not ready, but takes the messages of clients that have older ones."""

    async def story(broker: BrokerProcess, name_server: str) -> None:
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            stub = v2.MessagingServiceStub(channel)
            assert await _sent(stub, 1) == v2.Code.OK
            os.kill(broker.pid, signal.SIGTERM)
            await _until(lambda: _brokers_of(name_server), {"b"})
            await _until(lambda: _brokers_of_route(broker), {"b"})
            assert await _readiness(broker) == 503
            for number in range(2, 5):
                assert await _sent(stub, number) == v2.Code.OK
            os.kill(broker.pid, signal.SIGTERM)
            await _end(broker)

    with ExitStack() as servers:
        address = servers.enter_context(our_name_server(tmp_path / "names")) if separate else ""
        with _cluster(tmp_path, _LONG, address) as broker:
            asyncio.run(story(broker, address or broker.endpoint))


def test_a_leaving_broker_ends_with_its_last_client(tmp_path: Path) -> None:
    async def story(broker: BrokerProcess) -> None:
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            stub = v2.MessagingServiceStub(channel)
            assert await _sent(stub, 1) == v2.Code.OK
            os.kill(broker.pid, signal.SIGTERM)
            await _until(lambda: _brokers_of_route(broker), {"b"})
            assert await _sent(stub, 2) == v2.Code.OK
        await _end(broker)

    with _cluster(tmp_path, _LONG) as broker:
        asyncio.run(story(broker))


def test_leaving_has_a_limit(tmp_path: Path) -> None:
    """A client that stays connected does not keep the broker alive."""
    with _cluster(tmp_path, 0.3) as broker:
        asyncio.run(_stopped_beside_a_client(broker))


def test_a_broker_without_others_stops_at_once(tmp_path: Path) -> None:
    """Its clients have nowhere to go: the wait would only keep them from the next start."""
    with run_broker(tmp_path, settings={"listen.leave_seconds": _LONG}) as broker:
        asyncio.run(_stopped_beside_a_client(broker))


async def _long_polls(broker: BrokerProcess) -> int:
    def ask() -> int:
        with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return round(float(next(line.split()[-1] for line in lines if line.startswith("aerobee_long_polls{"))))

    return await asyncio.to_thread(ask)


def test_who_waits_for_a_message_is_answered_that_there_is_none(tmp_path: Path) -> None:
    """At once when the broker drains, over either protocol, and not with an error when its time is over."""
    request = v2.ReceiveMessageRequest(group=v2.Resource(name="billing"), batch_size=1, auto_renew=True)
    request.message_queue.topic.name = _TOPIC
    request.long_polling_timeout.FromSeconds(30)
    popped = {
        **{"consumerGroup": "billing", "topic": _TOPIC, "queueId": -1, "exp": "*", "expType": "TAG", "order": "false"},
        **{"maxMsgNums": 1, "invisibleTime": 60_000, "initMode": 0},
        **{"pollTime": 30_000, "bornTime": int(time.time() * 1000)},
    }

    async def story(broker: BrokerProcess) -> None:
        client = await RemotingClient.connect(Address.parse(broker.endpoint))
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            stub = v2.MessagingServiceStub(channel)
            received = stub.ReceiveMessage(request, metadata=_METADATA, timeout=_SECONDS)
            pulled = client.begin(Request.PULL_MESSAGE, pull_fields(_TOPIC, sys_flag=6, suspendTimeoutMillis=30_000))
            waiting = (pulled, client.begin(Request.POP_MESSAGE, popped))
            await _until(lambda: _long_polls(broker), 3)
            os.kill(broker.pid, signal.SIGTERM)
            statuses = [answer.status.code async for answer in received if answer.HasField("status")]
            assert statuses == [v2.Code.MESSAGE_NOT_FOUND]
            assert [(await each).code for each in waiting] == [Answer.PULL_NOT_FOUND, Answer.POLLING_TIMEOUT]
        await client.close()
        await _end(broker)

    with run_broker(tmp_path, settings={"listen.drain_seconds": 15.0}) as broker:
        create_topic(broker, _TOPIC, "normal")
        broker.create_group("billing")
        asyncio.run(story(broker))


def _permit(broker: BrokerProcess, permission: v2.Permission.ValueType) -> None:
    async def update() -> None:
        async with connect(broker.endpoint) as client:
            await client.admin.update_topic(_TOPIC, permission=permission)

    asyncio.run(update())


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[Callable[[str], SdkProgram]]:
    """Starts a producer of the Python SDK that fetches its routes from this broker."""
    with ExitStack() as programs:
        yield lambda endpoint: programs.enter_context(
            PYTHON.program("producer", tmp_path / "producer", endpoint=endpoint, topic=_TOPIC)
        )


@PYTHON.mark
def test_the_python_sdk_goes_on_to_a_broker_with_space(tmp_path: Path, producer: Callable[[str], SdkProgram]) -> None:
    """The disk of the broker `a` is full. No message is refused, and each is at the other broker."""

    async def count(broker: BrokerProcess) -> int:
        async with connect(broker.endpoint) as client:
            return sum(queue.max_offset for queue in await client.records.offsets(_TOPIC))

    with _cluster(tmp_path, 0.3, disk_full_ratio=1e-9, clean_forcibly=False) as broker:
        producer(broker.endpoint).ready().ask("send", messages=list(numbered(20)))
        assert asyncio.run(count(broker)) == 0


@PYTHON.mark
def test_the_python_sdk_goes_on_to_another_broker(tmp_path: Path, producer: Callable[[str], SdkProgram]) -> None:
    """Its route names the broker `a`, whose topic becomes read-only; then `a` stops. No message is refused."""
    with _cluster(tmp_path, 0.3) as broker:
        program = producer(broker.endpoint).ready()
        sent = iter(numbered(60))

        def send(count: int) -> None:
            program.ask("send", messages=[next(sent) for _ in range(count)])

        send(4)
        _permit(broker, v2.Permission.READ)
        send(20)
        _permit(broker, v2.Permission.READ_WRITE)
        os.kill(broker.pid, signal.SIGTERM)
        send(20)
        asyncio.run(_end(broker))
        send(16)
