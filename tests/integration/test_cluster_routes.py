"""Two brokers registered with one name server: gRPC clients use both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_client import Message, ReceivedMessage, connect
from aerobee_client.client import Client
from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_proto import v2
from tests.console.support import rows_of, visiting
from tests.support.name_server import our_name_server
from tests.support.official_sdks import PYTHON
from tests.support.remoting_client import RemotingClient, json_body
from tests.support.sdk_program import numbered, wait_all_messages
from tests.support.shell import Shell

_SECONDS = 60.0
_TOPIC = "spread"
pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two brokers that both have the topic."""

    name_server: str
    brokers: tuple[BrokerProcess, BrokerProcess]

    @property
    def endpoint(self) -> str:
        """The address of one broker, the only address that clients are given."""
        return self.brokers[0].endpoint


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        namesrv = stack.enter_context(our_name_server(directory / "ns"))
        for name in ("one", "two"):
            (directory / name).mkdir()
        arguments = ("--dev", "--namesrv", namesrv, "--listen-remoting", "127.0.0.1:0")
        first, second = (
            stack.enter_context(run_broker(directory / name, arguments, settings={"broker.name": name}))
            for name in ("one", "two")
        )
        asyncio.run(_both_are_known(namesrv, (first, second)))
        yield Cluster(namesrv, (first, second))


async def _both_are_known(namesrv: str, brokers: tuple[BrokerProcess, ...]) -> None:
    """Create the topic on both brokers and wait until the name server lists both."""
    for broker in brokers:
        async with connect(broker.endpoint) as client:
            types = (v2.MessageType.NORMAL, v2.MessageType.FIFO)
            await client.admin.create_topic(_TOPIC, queue_count=2, message_types=types)
    remoting = await RemotingClient.connect(Address.parse(namesrv))
    async with asyncio.timeout(_SECONDS):
        while True:
            answered = await remoting.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": _TOPIC})
            if answered.code == 0 and len(json_body(answered)["brokerDatas"]) == 2:
                break
            await asyncio.sleep(0.1)
    await remoting.close()


async def _stored(broker: BrokerProcess) -> int:
    """The number of messages of the topic on this broker."""
    async with connect(broker.endpoint) as client:
        return sum(queue.max_offset for queue in (await client.admin.describe_topic(_TOPIC)).queues)


async def _lag(client: Client) -> int:
    return sum(topic.lag for topic in (await client.admin.describe_group("pushed")).topics)


async def _spread(client: Client) -> None:
    """Wait until a route names both brokers: a broker's view of the other may be a second old."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=_TOPIC))
    connection = client._connection
    async with asyncio.timeout(_SECONDS):
        while True:
            metadata = connection.headers("looks")
            route = await connection.call(lambda stubs: stubs.messaging.QueryRoute, request, metadata)
            if {queue.broker.name for queue in route.message_queues} == {"one", "two"}:
                return
            await asyncio.sleep(0.1)


async def test_operators_see_both(cluster: Cluster) -> None:
    """Asked at one broker: names, clusters, addresses for clients and for tools; on the page and the command line."""
    expected = [
        (name, broker.endpoint, name == "one") for name, broker in zip(("one", "two"), cluster.brokers, strict=True)
    ]
    async with connect(cluster.endpoint) as client, visiting(cluster.endpoint) as visitor:
        found = await client.admin.brokers()
        assert [(each.name, each.grpc_address, each.is_this) for each in found.brokers] == expected
        assert {each.cluster for each in found.brokers} == {"DefaultCluster"}
        assert [list(each.addresses) for each in found.brokers] == [[0], [0]]
        assert found.error == ""
        rows = [row for row in rows_of(await visitor.get("/store")) if row[0].startswith(("one", "two"))]
        text = await asyncio.to_thread(Shell(cluster.endpoint).text, "status", "--brokers")
        printed = text.splitlines()[-2:]
        for (name, endpoint, is_this), row, line in zip(expected, rows, printed, strict=True):
            assert row[0] == (f"{name} this one" if is_this else name)
            assert row[1:3] == ["DefaultCluster", endpoint]
            assert line.split()[0] == name
            assert endpoint in line


async def test_our_client_sends_to_both_and_receives_from_both(cluster: Cluster) -> None:
    """The client is given the address of one broker."""
    before = [await _stored(broker) for broker in cluster.brokers]
    async with connect(cluster.endpoint) as client:
        await _spread(client)
        producer = client.producer(use_records=False)
        sent = {b"single %d" % number for number in range(20)}
        for body in sorted(sent):
            await producer.send(Message(topic=_TOPIC, body=body))
        after = [await _stored(broker) for broker in cluster.brokers]
        assert sum(after) - sum(before) == 20
        assert min(new - old for new, old in zip(after, before, strict=True)) >= 5
        ordered = [b"ordered %d" % number for number in range(6)]
        for body in ordered:
            await producer.send(Message(topic=_TOPIC, body=body, message_group="same"))
        received: list[ReceivedMessage] = []
        async with client.simple_consumer("simple", _TOPIC) as consumer, asyncio.timeout(_SECONDS):
            while len(received) < 26:
                found = await consumer.receive(wait_seconds=1)
                await consumer.ack(found)
                received += found
        assert {message.body for message in received} == sent | set(ordered)
        assert len({message.endpoint for message in received}) == 2
        assert len({message.endpoint for message in received if message.message_group}) == 1


async def test_our_push_consumer_serves_both_and_records_go_to_both(cluster: Cluster) -> None:
    """Handled messages are acknowledged at the broker that delivered them."""
    before = [await _stored(broker) for broker in cluster.brokers]
    got: set[bytes] = set()
    everything = asyncio.Event()
    sent = {b"bulk %d" % number for number in range(64)}

    async def handle(message: ReceivedMessage) -> None:
        got.add(message.body)
        if got >= sent:
            everything.set()

    async with connect(cluster.endpoint) as client:
        await _spread(client)
        async with client.push_consumer("pushed", _TOPIC, handle), asyncio.timeout(_SECONDS):
            producer = client.producer(request_count_max=16)
            for body in sorted(sent)[:32]:  # one by one
                await producer.send(Message(topic=_TOPIC, body=body))
            await asyncio.gather(*(producer.send(Message(topic=_TOPIC, body=body)) for body in sorted(sent)[32:]))
            await everything.wait()
        after = [await _stored(broker) for broker in cluster.brokers]
        assert sum(after) - sum(before) == 64
        assert min(new - old for new, old in zip(after, before, strict=True)) >= 16
        for broker in cluster.brokers:
            async with connect(broker.endpoint) as one, asyncio.timeout(_SECONDS):
                while await _lag(one):  # noqa: ASYNC110 - an acknowledgement is under way
                    await asyncio.sleep(0.05)


@PYTHON.mark
def test_the_official_sdk_sends_to_both_and_receives_from_both(cluster: Cluster, tmp_path: Path) -> None:
    """Its producer uses the queues in turn; its push consumer requests assignments from both brokers."""

    async def ready() -> list[int]:
        async with connect(cluster.endpoint) as client:
            await _spread(client)
        return [await _stored(broker) for broker in cluster.brokers]

    before = asyncio.run(ready())
    with (
        PYTHON.program("producer", tmp_path / "p", endpoint=cluster.endpoint, topic=_TOPIC) as producer,
        PYTHON.program(
            "push_consumer", tmp_path / "c", endpoint=cluster.endpoint, topic=_TOPIC, group="official"
        ) as consumer,
    ):
        consumer.ready()
        producer.ready().ask("send", messages=numbered(20, "official"))
        wait_all_messages([consumer], {f"official{number}" for number in range(20)})
    after = asyncio.run(ready())
    assert sum(after) - sum(before) == 20
    assert min(new - old for new, old in zip(after, before, strict=True)) >= 5
