"""Items 20 to 38: routes, registration and lists, on a broker and on a name server."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config.topics import TopicsConfig
from aerobee_broker.namesrv.requests import KvConfig, NameServerRequests, WritePermissions
from aerobee_broker.namesrv.route_tables import RouteTables
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, RemotingServer
from aerobee_broker.remoting_wire.errors import refusal
from aerobee_broker.remoting_wire.frame import Command, FrameReader
from aerobee_store.testing import ManualClock
from tests.conformance.cluster.conftest import Shared
from tests.support import golden_remoting
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, remoting_broker, send

pytestmark = pytest.mark.asyncio(loop_scope="module")


class NameServer:
    """A name server's requests without sockets; a connection is a name."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tables = RouteTables(self.clock)
        self._requests = NameServerRequests(self.tables, KvConfig(), WritePermissions(self.tables), dict)
        self._server = RemotingServer(self._nothing)
        self._connections: dict[str, Connection] = {}

    async def _nothing(self, request: Command, connection: Connection) -> Command | None:
        return None

    async def call(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 479,
        connection: str = "c1",
    ) -> Command:
        found = self._connections.setdefault(connection, Connection(self._server))
        request = Command(code, fields=fields or {}, body=body, version=version)
        try:
            answer = await self._requests.handlers[code](request, found)
        except Exception as error:
            answer = refusal(error, code)
        assert answer is not None
        return answer

    def close(self, connection: str) -> None:
        self.tables.connection_closed(self._connections[connection].key)

    async def register(
        self,
        broker: str = "broker-a",
        broker_id: int = 0,
        address: str = "127.0.0.1:10911",
        *,
        topics: tuple[str, ...] = ("T1", "T2"),
        counter: int = 1,
        connection: str = "c1",
        queues: int = 4,
        epoch: int = 0,
        **others: str,
    ) -> Command:
        body = registration_body(topics, counter=counter, queues=queues, epoch=epoch)
        fields = {
            "brokerName": broker,
            "brokerAddr": address,
            "clusterName": "C",
            "haServerAddr": f"{address}9",
            "brokerId": str(broker_id),
        }
        return await self.call(Request.REGISTER_BROKER, {**fields, **others}, body, connection=connection)

    async def route(self, topic: str, version: int = 479) -> Any:
        answer = await self.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": topic}, version=version)
        return json_body(answer) if answer.code == 0 else None


def registration_body(topics: tuple[str, ...], *, counter: int, queues: int = 4, epoch: int = 0) -> bytes:
    table = {
        topic: {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "topicSysFlag": 0}
        for topic in topics
    }
    version = {"counter": counter, "stateVersion": epoch, "timestamp": 1}
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


async def test_topics_that_every_broker_of_rocketmq_has_did_not_exist(tmp_path: Path) -> None:
    """`createTopic(key)` of clients asks for the route of the cluster's or broker's name. Sends create the topic, with
    RocketMQ's number of queues; a topic for traces is there if the setting says so."""
    expected = {"DefaultCluster": 16, "aerobee": 1, "BenchmarkTest": 1024, "DefaultCluster_REPLY_TOPIC": 1}
    for changes, more in (
        ({"dev": False}, {}),
        ({"dev": False, "topics": TopicsConfig(trace=True, trace_topic="Traces")}, {"Traces": 1}),
        ({}, {"TBW102": 8, "RMQ_SYS_TRACE_TOPIC": 1}),
    ):
        async with remoting_broker(tmp_path / str(len(more)), **changes) as (_, client):
            listed = json_body(await client.call(Request.GET_ALL_TOPIC_LIST_FROM_NAME_SERVER))["topicList"]
            assert set(listed) == expected.keys() | more.keys()
            await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body={"groupName": "CG"})
            for name, count in (expected | more).items():
                stats = await client.call(Request.GET_TOPIC_STATS_INFO, {"topic": name})
                assert len(json_body(stats)["offsetTable"].pairs()) == count
                assert (await send(client, name)).code == Answer.SUCCESS, name
                assert (await client.call(Request.PULL_MESSAGE, pull_fields(name))).code == Answer.SUCCESS, name
                route = json_body(await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": name}))
                assert [queues["writeQueueNums"] for queues in route["queueDatas"]] == [count], name
            for name in {"TBW102", "RMQ_SYS_TRACE_TOPIC"} - more.keys():
                assert (await send(client, name)).code != Answer.SUCCESS, name


async def test_c020_the_route_of_a_topic(client: RemotingClient, shared: Shared) -> None:
    """The route's fields; keys are quoted for clients that require JSON, otherwise bare as RocketMQ writes them."""
    await send(client, "Routed")
    for version, strict, quoted in ((401, None, True), (400, None, False), (0, None, False), (0, True, True)):
        answer = await client.call(
            Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "Routed", "acceptStandardJsonOnly": strict}, version=version
        )
        assert (b'{"0":"' in answer.body) == quoted, answer.body
        assert (b'{0:"' in answer.body) == (not quoted)
        route = json_body(answer)
        [broker], [queues] = route["brokerDatas"], route["queueDatas"]
        assert broker["brokerAddrs"] == {"0": str(shared.broker.remoting)}
        assert (broker["brokerName"], broker["cluster"]) == ("aerobee", "DefaultCluster")
        assert queues == {
            "brokerName": "aerobee",
            "perm": 6,
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "topicSysFlag": 0,
        }
    recorded = golden_remoting.answer_to(golden_remoting.requests(Request.GET_ROUTE_INFO_BY_TOPIC)[0])
    assert recorded is not None


async def test_c021_the_route_of_an_unknown_topic(client: RemotingClient) -> None:
    """17 with RocketMQ's text, also for a request without a topic."""
    for fields, shown in (({"topic": "No21"}, "No21"), ({}, "null")):
        answer = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, fields)
        assert answer.code == Answer.TOPIC_NOT_EXIST
        assert answer.remark == f"No topic route info in name server for the topic: {shown}"


async def test_c022_golden_registrations() -> None:
    """Recorded registrations of RocketMQ 5.3.3 and 4.9.7 register all their topics."""
    count = 0
    for golden in golden_remoting.requests(Request.REGISTER_BROKER):
        [request] = FrameReader().feed(golden.data)
        server = NameServer()
        answer = await server.call(request.code, request.fields, request.body, version=request.version)
        body = json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
        if len(body) == 1:
            assert answer.code == Answer.SYSTEM_ERROR
            continue
        assert answer.code == 0, (golden.file, answer.remark)
        if request.fields["brokerId"] == "0":
            assert sorted(server.tables.topics()) == sorted(body)
            count += 1
    assert count >= 2


async def test_c023_the_checksum_of_a_registration() -> None:
    """A wrong checksum is refused, 0 means none, and the top bit is ignored."""
    server = NameServer()
    right = zlib.crc32(registration_body(("T1", "T2"), counter=1)) & 0x7FFFFFFF
    refused = await server.register(bodyCrc32=str(right ^ 1))
    assert (refused.code, refused.remark) == (1, "crc32 not match")
    for good in (str(right), "0"):
        assert (await server.register(bodyCrc32=good)).code == 0


def _compressed(*topics: str, mappings: bool) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack(">i", len(value)) + value.encode()

    parts = [text('{"counter":1,"stateVersion":0,"timestamp":1}'), struct.pack(">i", len(topics))]
    parts += [text(topic) for topic in topics]
    parts.append(text("[]"))
    if mappings:
        parts.append(struct.pack(">i", 1) + text('{"topic":"S"}'))
    return zlib.compress(b"".join(parts), 9)


@pytest.mark.parametrize("said", ["true", "false"])
async def test_c024_compressed_registrations(said: str) -> None:
    """With and without attributes and static topics; also with RocketMQ 5's label, which says uncompressed."""
    fields = {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "C", "haServerAddr": "h:2", "brokerId": "0"}
    fields["compressed"] = said
    for body in (
        _compressed("T1 4 8 6 SINGLE_TAG", "T2 1 1 4 SINGLE_TAG", mappings=False),
        _compressed('T1 4 8 6 SINGLE_TAG {"+message.type":"FIFO"}', "T2 1 1 4 SINGLE_TAG", mappings=True),
    ):
        server = NameServer()
        assert (await server.call(Request.REGISTER_BROKER, fields, body)).code == 0
        [queues] = (await server.route("T1"))["queueDatas"]
        assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 8, 6)
        for broken in (body[:-20], body[:5], b"\x78" + body):
            refused = await NameServer().call(Request.REGISTER_BROKER, fields, broken)
            assert refused.code != 0


async def test_c025_a_slave_learns_its_master() -> None:
    """A master gets no master address, nor does a slave without a master."""
    server = NameServer()
    assert (await server.register(broker_id=1, address="h:2", connection="c2")).fields == {}
    assert (await server.register()).fields == {}
    slave = await server.register(broker_id=1, address="h:2", connection="c2")
    assert slave.fields == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:109119"}


async def test_c026_registering_again() -> None:
    """The same version changes nothing, a new one does; a single additional topic is sent alone."""
    server = NameServer()
    await server.register(queues=4)
    await server.register(queues=8)
    assert (await server.route("T1"))["queueDatas"][0]["readQueueNums"] == 4
    await server.register(queues=8, counter=2)
    assert (await server.route("T1"))["queueDatas"][0]["readQueueNums"] == 8
    assert (await server.register(topics=("T3",), counter=3)).code == 0
    assert await server.route("T3") is not None
    assert await server.route("T1") is not None


async def test_c027_a_first_registration_of_one_topic() -> None:
    """One topic is refused, two are accepted."""
    server = NameServer()
    assert (await server.register(topics=("T1",))).code == Answer.SYSTEM_ERROR
    assert await server.route("T1") is None
    assert (await server.register(topics=("T1", "T2"))).code == 0


async def test_c028_broker_ids_and_addresses() -> None:
    """An address may move to another id; another address gets an id only after its holder is gone."""
    server = NameServer()
    await server.register(broker_id=1)
    await server.register(broker_id=0)
    assert (await server.route("T1"))["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    stolen = await server.register(address="other:1", connection="c2")
    assert (stolen.code, "is alive" in (stolen.remark or "")) == (Answer.SYSTEM_ERROR, True)
    assert (await server.route("T1"))["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    server.close("c1")
    assert (await server.register(address="other:1", connection="c2")).code == 0
    assert (await server.route("T1"))["brokerDatas"][0]["brokerAddrs"] == {"0": "other:1"}
    # The master of a newer epoch takes the id of a live one, as after a fail-over.
    assert (await server.register(address="third:1", connection="c3", epoch=2)).code == 0
    assert (await server.register(address="other:1", connection="c2", epoch=1)).code == Answer.SYSTEM_ERROR
    assert (await server.route("T1"))["brokerDatas"][0]["brokerAddrs"] == {"0": "third:1"}


async def test_c029_closed_and_silent_brokers() -> None:
    """Closing the connection, or silence beyond the timeout, ends the registration; 322 and 904 count as heartbeats."""
    server = NameServer()
    await server.register()
    server.close("c1")
    assert await server.route("T1") is None
    await server.register(connection="c2")
    alive = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
    for code in (Request.BROKER_HEARTBEAT, Request.QUERY_DATA_VERSION):
        server.clock.advance(100)
        assert (await server.call(code, alive, connection="c2")).code == 0
        assert server.tables.expire() == []
    server.clock.advance(121)
    assert server.tables.expire() == ["127.0.0.1:10911"]
    assert await server.route("T1") is None
    await server.register(connection="c3", heartbeatTimeoutMillis="10000")
    server.clock.advance(11)
    assert server.tables.expire() == ["127.0.0.1:10911"]


async def test_c030_unregistration() -> None:
    """Removes one address; the last one removes topics and cluster. Another connection may not unregister it."""
    server = NameServer()
    await server.register()
    await server.register(broker_id=1, address="slave:1", connection="c2")
    gone = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
    assert (await server.call(Request.UNREGISTER_BROKER, gone, connection="c2")).code == Answer.NO_PERMISSION
    assert len((await server.route("T1"))["brokerDatas"][0]["brokerAddrs"]) == 2
    assert (await server.call(Request.UNREGISTER_BROKER, gone)).code == 0
    assert (await server.route("T1"))["brokerDatas"][0]["brokerAddrs"] == {"1": "slave:1"}
    gone = {**gone, "brokerAddr": "slave:1", "brokerId": "1"}
    assert (await server.call(Request.UNREGISTER_BROKER, gone, connection="c2")).code == 0
    assert await server.route("T1") is None
    info = json_body(await server.call(Request.GET_BROKER_CLUSTER_INFO))
    assert info == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert (await server.call(Request.UNREGISTER_BROKER, gone)).code == 0


async def test_c031_lists_and_kv_values() -> None:
    """Clusters, topics, members, values, and counts of changed permissions."""
    server = NameServer()
    await server.register()
    info = json_body(await server.call(Request.GET_BROKER_CLUSTER_INFO))
    assert info["clusterAddrTable"] == {"C": ["broker-a"]}
    assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    assert b"{0:" in (await server.call(Request.GET_BROKER_CLUSTER_INFO)).body
    topics = await server.call(Request.GET_ALL_TOPIC_LIST_FROM_NAME_SERVER)
    assert json_body(topics) == {"topicList": ["T1", "T2"]}
    for cluster, names in (("C", ["T1", "T2"]), ("D", [])):
        found = await server.call(Request.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})
        assert json_body(found) == {"topicList": names}
    system = await server.call(Request.GET_SYSTEM_TOPIC_LIST_FROM_NAME_SERVER)
    assert json_body(system) == {"topicList": ["C", "broker-a"], "brokerAddr": "127.0.0.1:10911"}
    for broker, addresses in (("broker-a", {"0": "127.0.0.1:10911"}), ("none", {})):
        member = {"clusterName": "C", "brokerName": broker}
        group = json_body(await server.call(Request.GET_BROKER_MEMBER_GROUP, member))["brokerMemberGroup"]
        assert group == {"cluster": "C", "brokerName": broker, "brokerAddrs": addresses}
    key = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1"}
    assert (await server.call(Request.GET_KV_CONFIG, key)).code == Answer.QUERY_NOT_FOUND
    space = {"namespace": "ORDER_TOPIC_CONFIG"}
    assert (await server.call(Request.GET_KV_LIST_BY_NAMESPACE, space)).code == Answer.QUERY_NOT_FOUND
    await server.call(Request.PUT_KV_CONFIG, {**key, "value": "broker-a:4"})
    assert (await server.call(Request.GET_KV_CONFIG, key)).fields == {"value": "broker-a:4"}
    assert json_body(await server.call(Request.GET_KV_LIST_BY_NAMESPACE, space)) == {"table": {"T1": "broker-a:4"}}
    assert (await server.route("T1"))["orderTopicConf"] == "broker-a:4"
    assert json_body(await server.register()) == {"table": {"T1": "broker-a:4"}}
    await server.call(Request.DELETE_KV_CONFIG, key)
    assert (await server.call(Request.GET_KV_CONFIG, key)).code == Answer.QUERY_NOT_FOUND
    named = {"brokerName": "broker-a"}
    wiped = await server.call(Request.WIPE_WRITE_PERMISSION_OF_BROKER, named)
    assert wiped.fields == {"wipeTopicCount": "2"}
    await server.register(counter=9)
    assert (await server.route("T1"))["queueDatas"][0]["perm"] == 4, "a registration does not undo it"
    added = await server.call(Request.ADD_WRITE_PERMISSION_OF_BROKER, named)
    assert added.fields == {"addTopicCount": "2"}
    assert (await server.route("T1"))["queueDatas"][0]["perm"] == 6


async def test_c032_deleting_a_topic() -> None:
    """A topic is deleted in one cluster or in all."""
    server = NameServer()
    await server.register()
    await server.call(Request.DELETE_TOPIC_IN_NAME_SERVER, {"topic": "T1", "clusterName": "Other"})
    assert await server.route("T1") is not None
    await server.call(Request.DELETE_TOPIC_IN_NAME_SERVER, {"topic": "T1", "clusterName": "C"})
    assert await server.route("T1") is None
    await server.call(Request.DELETE_TOPIC_IN_NAME_SERVER, {"topic": "T2"})
    assert await server.route("T2") is None


async def test_c035_a_new_topic_is_routable_at_once(client: RemotingClient) -> None:
    """The route exists when the send that creates the topic is answered."""
    assert (await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "New35"})).code == Answer.TOPIC_NOT_EXIST
    await send(client, "New35")
    assert (await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "New35"})).code == 0
    assert (await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "TBW102"})).code == 0


async def test_c038_a_route_without_a_master() -> None:
    """No broker is listed as master unless it is one."""
    server = NameServer()
    await server.register()
    await server.register(broker_id=1, address="slave:1", connection="c2")
    server.close("c1")
    assert (await server.route("T1"))["brokerDatas"][0]["brokerAddrs"] == {"1": "slave:1"}
