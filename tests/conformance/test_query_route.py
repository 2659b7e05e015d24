"""Items 24 to 41: routes to a topic's queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.config import Address, ListenConfig
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, message, resource
from tests.support.in_process_broker import in_process_broker

Code = v2.Code
Type = v2.MessageType
Scheme = v2.AddressScheme


async def test_024_an_existing_topic(client: RawClient, topic: str) -> None:
    """The answer is OK, with the topic's queues."""
    response = await client.route(await client.create_topic(topic, queues=3))
    assert response.status.code == Code.OK
    assert len(response.message_queues) == 3


async def test_025_ids_and_broker(client: RawClient, topic: str) -> None:
    """Queues are numbered from 0; the broker has a name and id 0, which clients treat as the master."""
    queues = (await client.route(await client.create_topic(topic, queues=5))).message_queues
    assert [queue.id for queue in queues] == [0, 1, 2, 3, 4]
    assert {queue.broker.id for queue in queues} == {0}
    [name] = {queue.broker.name for queue in queues}
    assert name


async def test_026_permissions(client: RawClient, topic: str) -> None:
    """READ_WRITE for a normal topic, also for queue 0, the only one Node.js's client uses; otherwise as configured."""
    queues = (await client.route(await client.create_topic(topic, queues=2))).message_queues
    assert [queue.permission for queue in queues] == [v2.Permission.READ_WRITE] * 2
    for permission in (v2.Permission.READ, v2.Permission.WRITE):
        name = await client.create_topic(f"{topic}-{permission}", permission=permission)
        assert [queue.permission for queue in (await client.route(name)).message_queues] == [permission]


async def test_027_address_of_the_client(client: RawClient, topic: str) -> None:
    """A client behind a mapped port gets the address that it used."""
    response = await client.route(topic, ("10.1.2.3", 31234))
    for queue in response.message_queues:
        assert [(a.host, a.port) for a in queue.broker.endpoints.addresses] == [("10.1.2.3", 31234)]


async def test_028_advertised_address(tmp_path: Path, topic: str) -> None:
    """The configured address overrides the one that the client used."""
    free = Address("127.0.0.1", 0)
    listen = ListenConfig(grpc=free, metrics=free, drain_seconds=0.5, advertise=Address("mq.example", 9876))
    async with in_process_broker(tmp_path / "store", listen=listen) as broker:
        client = RawClient(broker.channel)
        endpoints = (await client.route(topic, ("10.1.2.3", 31234))).message_queues[0].broker.endpoints
        assert [(a.host, a.port) for a in endpoints.addresses] == [("mq.example", 9876)]
        assert endpoints.scheme == Scheme.DOMAIN_NAME


async def test_029_without_endpoints(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    """The broker's listening address, with a scheme that clients accept."""
    endpoints = (await client.route(topic)).message_queues[0].broker.endpoints
    [address] = endpoints.addresses
    assert f"{address.host}:{address.port}" == broker.endpoint
    assert endpoints.scheme == Scheme.IPv4


@pytest.mark.parametrize(
    ("hosts", "scheme", "count"),
    [
        (["127.0.0.1"], Scheme.IPv4, 1),
        (["10.0.0.1", "10.0.0.2"], Scheme.IPv4, 2),
        (["10.0.0.1", "::1"], Scheme.IPv4, 1),
        (["::1"], Scheme.IPv6, 1),
        (["broker"], Scheme.DOMAIN_NAME, 1),
        (["broker-a", "broker-b"], Scheme.DOMAIN_NAME, 1),
    ],
    ids=lambda value: str(value),
)
async def test_030_schemes(
    client: RawClient, topic: str, hosts: list[str], scheme: v2.AddressScheme.ValueType, count: int
) -> None:
    """The scheme depends on the kind of host; of several names, or kinds, only the first is kept."""
    endpoints = (await client.route(topic, *((host, 8081) for host in hosts))).message_queues[0].broker.endpoints
    assert endpoints.scheme == scheme
    assert [address.host for address in endpoints.addresses] == hosts[:count]


@pytest.mark.parametrize("kind", [Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION], ids=Type.Name)
async def test_031_accepted_types(client: RawClient, topic: str, kind: v2.MessageType.ValueType) -> None:
    """The topic's own type, on each queue."""
    queues = (await client.route(await client.create_topic(topic, kind, queues=2))).message_queues
    assert [list(queue.accept_message_types) for queue in queues] == [[kind], [kind]]


async def test_032_mixed_topic(client: RawClient, topic: str) -> None:
    """All four types."""
    types = (Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION)
    [queue] = (await client.route(await client.create_topic(topic, *types))).message_queues
    assert sorted(queue.accept_message_types) == sorted(types)


async def test_033_unknown_topic(strict_client: RawClient, topic: str) -> None:
    """TOPIC_NOT_FOUND, with a text that says what to do."""
    response = await strict_client.route(topic)
    assert response.status.code == Code.TOPIC_NOT_FOUND
    assert f"aerobee topic create {topic}" in response.status.message
    assert not response.message_queues


async def test_034_topic_created_on_first_use(client: RawClient, topic: str) -> None:
    """The topic has the configured number of queues; the next answer is the same."""
    first = await client.route(topic)
    assert first.status.code == Code.OK
    assert len(first.message_queues) == 4
    assert await client.route(topic) == first


@pytest.mark.parametrize("name", ["", " ", "\t"], ids=repr)
async def test_035_blank_name(client: RawClient, name: str) -> None:
    """ILLEGAL_TOPIC."""
    assert (await client.route(name)).status.code == Code.ILLEGAL_TOPIC


async def test_036_longest_name(client: RawClient) -> None:
    """127 characters are accepted, 128 are not."""
    assert (await client.route("t" * 127)).status.code == Code.OK
    assert (await client.route("t" * 128)).status.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["a b", "a.b", "a/b", "größe", "a\nb", "a\n"], ids=repr)
async def test_037_illegal_characters(client: RawClient, name: str) -> None:
    """Spaces, dots, slashes, control characters and letters beyond ASCII."""
    assert (await client.route(name)).status.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_anything"])
async def test_038_system_topic(client: RawClient, name: str) -> None:
    """Clients cannot use the broker's own topics."""
    assert (await client.route(name)).status.code == Code.ILLEGAL_TOPIC


async def test_039_dead_letter_topic(client: RawClient, topic: str, group: str) -> None:
    """Its route can be queried like any other once it exists."""
    dead = f"%DLQ%{group[:60]}"
    await client.sent(message(topic))
    received = (await client.receive(topic, group[:60], wait=5)).one
    assert await client.forward(topic, group[:60], received.system_properties.receipt_handle) == Code.OK
    response = await client.route(dead)
    assert response.status.code == Code.OK
    assert len(response.message_queues) >= 1


async def test_040_before_telemetry(client: RawClient, topic: str) -> None:
    """An unknown client gets its route; nearly all clients ask for it first."""
    assert (await client.other().route(topic)).status.code == Code.OK


async def test_041_resource_is_echoed(client: RawClient, topic: str) -> None:
    """Name and namespace equal the request's: clients use them as the key of the route."""
    for namespace in ("", "shop"):
        response = await client.route(topic, namespace=namespace)
        assert response.status.code == Code.OK
        assert {(q.topic.resource_namespace, q.topic.name) for q in response.message_queues} == {(namespace, topic)}
        assert response.message_queues[0].topic == resource(topic, namespace)
