"""Routes and assignments that clients get."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import pytest

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Address, BrokerConfig, ListenConfig, Settings, TopicsConfig
from aerobee_broker.errors import (
    IllegalTopicError,
    TableFormatError,
)
from aerobee_broker.limits.wakes import Gate, Wakes
from aerobee_broker.listening.listeners import Listening
from aerobee_broker.namesrv import cluster_routes
from aerobee_broker.namesrv.cluster_routes import ClusterMember, ClusterRoutes, read_route
from aerobee_broker.namesrv.route_tables import GrpcAddresses, QueueData, Registration, RouteTables
from aerobee_broker.processors.route import RouteProcessor
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.fields import answer
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.data_version import DataVersion
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType
from aerobee_proto import v2
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.tables.java_json import JsonFormatError
from aerobee_store.testing import ManualClock
from tests.support.saved_tables import saved

CLIENT = Client("a")


def _at_once(function: object, *arguments: object) -> Awaitable[None]:
    async def call() -> None:
        assert callable(function)
        function(*arguments)

    return call()


class Routes:
    """A route processor over a table with a few topics."""

    def __init__(self, directory: Path, listening: str = "127.0.0.1:8081", **changes: object) -> None:
        config = BrokerConfig.tiny(directory, **{"topics": TopicsConfig(auto_create=False), **changes})
        config.store.directory.mkdir(exist_ok=True)
        self.tables = Tables.load(Settings(config), ManualClock(), DiskFileSystem(), _at_once)
        for topic in (
            TopicConfig.of_type("orders", queue_count=4),
            TopicConfig.of_type("mixed", TopicMessageType.MIXED, queue_count=1),
            TopicConfig(name="shrinking", read_queue_count=3, write_queue_count=1),
        ):
            saved(self.tables.topics).create(topic)
        self.name_server = RouteTables(ManualClock())
        cluster, self.leaving = ClusterRoutes("aerobee", lambda: (), self.name_server), Gate(Wakes(), is_open=False)
        self.processor = RouteProcessor(
            Settings(config), self.tables, Listening(Address.parse(listening)), cluster, self.leaving
        )

    async def queues(self, topic: str, *dialled: tuple[str, int]) -> list[v2.MessageQueue]:
        request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
        request.endpoints.addresses.extend(v2.Address(host=host, port=port) for host, port in dialled)
        response = await self.processor.query_route(request, CLIENT)
        assert response.status.code == v2.Code.OK
        return list(response.message_queues)

    async def assigned(self, topic: str, group: str) -> list[v2.MessageQueue]:
        request = v2.QueryAssignmentRequest(topic=v2.Resource(name=topic), group=v2.Resource(name=group))
        response = await self.processor.query_assignment(request, CLIENT)
        return [assignment.message_queue for assignment in response.assignments]


@pytest.fixture
def routes(tmp_path: Path) -> Routes:
    return Routes(tmp_path)


async def test_queues_beyond_the_write_count_are_read_only(routes: Routes) -> None:
    permissions = [queue.permission for queue in await routes.queues("shrinking")]
    assert permissions == [v2.Permission.READ_WRITE, v2.Permission.READ, v2.Permission.READ]


async def test_a_listener_on_all_addresses_has_that_of_this_machine(tmp_path: Path) -> None:
    """If the request has no address. A client could not connect to 0.0.0.0."""
    [queue, *_] = await Routes(tmp_path, "0.0.0.0:77").queues("orders")
    assert list(queue.broker.endpoints.addresses) == [v2.Address(host="127.0.0.1", port=77)]


async def test_each_listener_can_be_advertised(tmp_path: Path) -> None:
    """Clients with TLS and clients without get different addresses."""
    tls = Address("127.0.0.1", 0)
    listen = ListenConfig(tls=tls, advertise=Address("plain.example", 1), advertise_tls=Address("tls.example", 2))
    routes = Routes(tmp_path / "both", listen=listen)
    secure = Client("secure")
    secure.secure = True
    for client, name in ((CLIENT, "plain.example"), (secure, "tls.example")):
        endpoints = routes.processor.endpoints(v2.Endpoints(), client)
        assert [address.host for address in endpoints.addresses] == [name]


async def test_a_topic_created_by_its_first_route_is_on_disk(tmp_path: Path) -> None:
    """A topic of a group is not created."""
    creating = Routes(tmp_path, topics=TopicsConfig(auto_create=True, queue_count=2))
    assert len(await creating.queues("absent")) == 2
    assert "absent" in (tmp_path / "config" / "topics.json").read_text()
    with pytest.raises(IllegalTopicError):
        await creating.queues("%RETRY%g")


def _register(routes: Routes, broker: str, *, broker_id: int = 0, grpc: GrpcAddresses, **topics: QueueData) -> None:
    topics.setdefault("SELF_TEST_TOPIC", QueueData(1, 1, 0))  # the first registration must have more than one topic
    routes.name_server.register(
        Registration(
            cluster="c",
            broker=broker,
            address=f"{broker}:{10911 + broker_id}",
            broker_id=broker_id,
            version=DataVersion(),
            topics=topics,
            connection=f"{broker} {broker_id}",
            grpc=grpc,
        )
    )


async def test_queues_of_other_brokers(routes: Routes) -> None:
    """Other brokers' queues have their address and message type. Replicas and brokers without gRPC are omitted."""
    there = GrpcAddresses("10.0.0.2:8081", "two.example:8443")
    orders, fifo = QueueData(3, 1, 6), QueueData(1, 1, 6, 0, "FIFO")
    _register(routes, "aerobee", grpc=GrpcAddresses("10.9.9.9:1"), orders=QueueData(4, 4, 6))
    _register(routes, "two", grpc=there, orders=orders, absent=fifo)
    _register(routes, "two", broker_id=1, grpc=GrpcAddresses("10.0.0.3:8081"), orders=orders, absent=fifo)
    _register(routes, "silent", grpc=GrpcAddresses(), orders=orders, absent=fifo)
    _register(routes, "headless", broker_id=1, grpc=GrpcAddresses("10.0.0.4:8081"), orders=orders, absent=fifo)
    queues = await routes.queues("orders", ("127.0.0.1", 18081))
    assert [(queue.broker.name, queue.id) for queue in queues] == [
        *(("aerobee", 0), ("two", 0), ("aerobee", 1), ("two", 1)),
        *(("aerobee", 2), ("two", 2), ("aerobee", 3)),
    ]
    others = [queue for queue in queues if queue.broker.name == "two"]
    assert [queue.permission for queue in others] == [v2.Permission.READ_WRITE, *[v2.Permission.READ] * 2]
    assert queues[0].broker.endpoints.addresses[0].port == 18081
    assert (others[0].broker.id, others[0].broker.endpoints.addresses[0].host) == (0, "10.0.0.2")
    assert list(others[0].accept_message_types) == [v2.MessageType.NORMAL]
    # A topic of another broker is not created here.
    (queue,) = await routes.queues("absent")
    assert (queue.broker.name, list(queue.accept_message_types)) == ("two", [v2.MessageType.FIFO])
    assert [(queue.broker.name, queue.id) for queue in await routes.assigned("orders", "billing")] == [
        ("aerobee", -1),
        ("two", -1),
    ]
    secure = Client("secure")
    secure.secure = True
    request = v2.QueryRouteRequest(topic=v2.Resource(name="absent"))
    (queue,) = (await routes.processor.query_route(request, secure)).message_queues
    assert queue.broker.endpoints.addresses[0].host == "two.example"


async def test_a_broker_without_write_permission_is_read_only(routes: Routes) -> None:
    """The permission was wiped at the name server, as is done before a broker is replaced."""
    _register(routes, "aerobee", grpc=GrpcAddresses(), orders=QueueData(4, 4, 6))
    _register(routes, "two", grpc=GrpcAddresses("10.0.0.2:8081"), orders=QueueData(1, 1, 6))
    routes.name_server.wiped = frozenset({"aerobee"})
    permissions = {(queue.broker.name, queue.permission) for queue in await routes.queues("orders")}
    assert permissions == {("aerobee", v2.Permission.READ), ("two", v2.Permission.READ_WRITE)}


async def test_queues_of_brokers_alternate(routes: Routes) -> None:
    """Each broker's queues are spread evenly; a leaving broker is left out where another one takes messages."""
    _register(routes, "a", grpc=GrpcAddresses("10.0.0.2:8081"), orders=QueueData(2, 2, 6), mixed=QueueData(1, 1, 4))
    names = [queue.broker.name for queue in await routes.queues("orders")]
    assert names == ["aerobee", "a", "aerobee", "aerobee", "a", "aerobee"]
    routes.leaving.set()
    assert {queue.broker.name for queue in await routes.queues("orders")} == {"a"}
    assert {queue.broker.name for queue in await routes.assigned("orders", "billing")} == {"a"}
    assert {queue.broker.name for queue in await routes.queues("mixed")} == {"aerobee", "a"}, "a's is read-only"
    assert {queue.broker.name for queue in await routes.queues("shrinking")} == {"aerobee"}


class _NameServer:
    """Gives these answers in turn; None: no answer in time."""

    def __init__(self, *answers: Command | None) -> None:
        self._answers = list(answers)

    async def ask(self, _request: Command, _seconds: float) -> Command:
        answered = self._answers.pop(0)
        if answered is None:
            raise TimeoutError
        return answered


def _route_of(*brokers: str) -> Command:
    queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    return answer(body={"brokerDatas": [], "queueDatas": [{"brokerName": name, **queues} for name in brokers]})


async def test_a_broker_of_two_name_servers_is_listed_once(routes: Routes) -> None:
    """A broker may be registered with the name server inside of this broker and with another one."""
    for name in ("aerobee", "two"):
        _register(routes, name, grpc=GrpcAddresses(), orders=QueueData(1, 1, 6))
    server = cast(Connection, _NameServer(_route_of("two", "three")))
    cluster = ClusterRoutes("aerobee", lambda: (server,), routes.name_server)
    assert [found.broker for found in await cluster.brokers("orders")] == ["aerobee", "two", "three"]


async def test_the_brokers_of_all_name_servers(routes: Routes) -> None:
    """Those of the own one and of the first of the others that answers; else why none did."""
    for name in ("aerobee", "two"):
        _register(routes, name, grpc=GrpcAddresses("", f"{name}:8443"), orders=QueueData(1, 1, 6))
    three = {"cluster": "north", "brokerName": "three", "brokerAddrs": {"0": "c:1", "2": "c:2", "x": "c:3"}}
    known = answer(body={"brokerAddrTable": {"three": three}, "grpc": {"three": "c:8081"}})
    server = cast(Connection, _NameServer(known, None, Command(Answer.SYSTEM_ERROR, remark="busy")))
    cluster = ClusterRoutes("aerobee", lambda: (server,), routes.name_server)
    own = [
        ClusterMember("aerobee", "c", {0: "aerobee:10911"}, "aerobee:8443"),
        ClusterMember("two", "c", {0: "two:10911"}, "two:8443"),
    ]
    other = ClusterMember("three", "north", {0: "c:1", 2: "c:2"}, "c:8081")
    assert await cluster.members() == ([own[0], other, own[1]], "")
    assert await cluster.members() == (own, "no answer within 1 s")
    code = int(Answer.SYSTEM_ERROR)
    assert await cluster.members() == (own, f"code {code}: busy")


async def test_name_servers_that_do_not_answer(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is asked; without any answer the last route stays, until a name server no longer has the topic."""
    monkeypatch.setattr(cluster_routes, "_VALID_SECONDS", 0.0)
    absent = Command(Answer.TOPIC_NOT_EXIST)
    first = cast(Connection, _NameServer(None, None, None, absent))
    second = cast(Connection, _NameServer(_route_of("two"), None, Command(Answer.SYSTEM_ERROR)))
    cluster = ClusterRoutes("aerobee", lambda: (first, second), routes.name_server)
    found = [[queues.broker for queues in await cluster.brokers("orders")] for _ in range(4)]
    assert found == [["two"], ["two"], ["two"], []]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"queueDatas":3}',
        b'{"grpc":[{"brokerName":"a","plain":"nowhere"}],"queueDatas":[]}',
        b'{"grpc":[{"brokerName":"a","tls":"a:0"}],"queueDatas":[]}',
        b'{"brokerDatas":[],"queueDatas":[{"readQueueNums":9999999}]}',
    ],
)
def test_an_answer_of_a_name_server_is_checked(body: bytes) -> None:
    """Invalid answers of a name server are refused, so the route lacks the other broker."""
    with pytest.raises((TableFormatError, JsonFormatError)):
        read_route(body)
