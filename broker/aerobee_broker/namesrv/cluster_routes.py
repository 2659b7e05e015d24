"""The brokers of a cluster that gRPC clients can reach, as registered with the name servers.

The broker queries its own name server and, in turn, the name servers with which it is registered. An answer is valid
for a second; clients ask every 30 seconds. If no name server answers, the last answer stays valid.

Only masters are listed: replicas serve no gRPC. Brokers of RocketMQ and name servers of RocketMQ give no addresses for
gRPC, so such brokers are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from aerobee_broker.config import Address
from aerobee_broker.errors import BrokerError, TableFormatError
from aerobee_broker.namesrv.route_tables import MASTER_ID, BrokerQueues, GrpcAddresses, RouteTables
from aerobee_broker.recent import Recent
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.json_fields import INT64_MAX, JsonFields
from aerobee_broker.tables.topics import MESSAGE_TYPE, Permission, TopicConfig
from aerobee_store.errors import StoreError
from aerobee_store.records.decimals import decimal
from aerobee_store.tables import java_json

_log = logging.getLogger(__name__)

_VALID_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 1.0
_TOPICS_MAX: Final = 10_000
_QUEUES_MAX: Final = 1 << 16
_PERMISSIONS: Final = int(Permission.READ_WRITE | Permission.INHERIT)


class ClusterMember(Struct, frozen=True):
    """A broker as a name server knows it."""

    name: str
    cluster: str
    addresses: Mapping[int, str]
    """Of the older protocol, by id; 0 is the master's."""
    grpc: str
    """Where gRPC clients reach its master; empty if that is not known."""


class ClusterRoutes:
    """Event loop only. `name` is this broker's, `name_servers` are the connections to ask, and `own` is the name server
    inside of this broker."""

    def __init__(self, name: str, name_servers: Callable[[], Sequence[Connection]], own: RouteTables) -> None:
        self._name = name
        self._name_servers = name_servers
        self._own = own
        self._known: Recent[str, tuple[float, asyncio.Task[list[BrokerQueues]]]] = Recent(_TOPICS_MAX)

    async def brokers(self, topic: str) -> list[BrokerQueues]:
        """The brokers that have registered this topic, perhaps this one too. Empty without a cluster."""
        own = _registered(self._own, topic) if self._own.has_others(self._name) else []
        if not self._name_servers() and topic not in self._known:
            return own
        names = {found.broker for found in own}
        return own + [found for found in await self._asked(topic) if found.broker not in names]

    @property
    def has_name_server(self) -> bool:
        """Whether the broker is registered with a name server other than its own."""
        return bool(self._name_servers())

    async def has_others(self) -> bool:
        """Whether the cluster has a broker of another name."""
        if self._own.has_others(self._name):
            return True
        found, cause = await self._ask_members()
        if cause:
            _log.warning("no brokers from a name server cause=%s", cause)
        return any(member.name != self._name for member in found)

    async def members(self) -> tuple[list[ClusterMember], str]:
        """All brokers that the name servers know, in order of names, and why no name server but this broker's own
        answered; empty if one did, or if there is no other."""
        asked, cause = await self._ask_members()
        found = {member.name: member for member in (*_members(self._own), *asked)}
        return sorted(found.values(), key=lambda member: member.name), cause

    async def _ask_members(self) -> tuple[list[ClusterMember], str]:
        cause = ""
        for connection in self._name_servers():
            try:
                command = Command(Request.GET_BROKER_CLUSTER_INFO, fields={"grpc": "true"})
                answered = await connection.ask(command, _ANSWER_SECONDS)
                if answered.code == Answer.SUCCESS:
                    return read_members(answered.body), ""
                cause = f"code {answered.code}: {answered.remark}"
            except (BrokerError, StoreError, TimeoutError) as error:
                cause = str(error) or f"no answer within {_ANSWER_SECONDS:g} s"
        return [], cause

    async def _asked(self, topic: str) -> list[BrokerQueues]:
        now = asyncio.get_running_loop().time()
        known = self._known.pop(topic, None)
        if known is None or now >= known[0]:
            last = known[1].result() if known is not None and known[1].done() else []
            known = (now + _VALID_SECONDS, asyncio.create_task(self._ask(topic, last), name=f"route of {topic}"))
        self._known[topic] = known
        return await asyncio.shield(known[1])

    async def _ask(self, topic: str, last: list[BrokerQueues]) -> list[BrokerQueues]:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true", "grpc": "true"}
        for connection in self._name_servers():
            try:
                command = Command(Request.GET_ROUTE_INFO_BY_TOPIC, fields=dict(fields))
                answered = await connection.ask(command, _ANSWER_SECONDS)
                if answered.code == Answer.TOPIC_NOT_EXIST:
                    return []
                if answered.code == Answer.SUCCESS:
                    return read_route(answered.body)
                cause: object = f"code {answered.code}: {answered.remark}"
            except (BrokerError, StoreError, TimeoutError) as error:
                cause = str(error) or "timeout"
            _log.warning("no route from a name server topic=%s cause=%s", topic, cause)
        return last


def read_route(body: bytes) -> list[BrokerQueues]:
    """The brokers in a name server's answer. TableFormatError, JsonFormatError."""
    route = JsonFields("route", java_json.loads(body))
    grpc: dict[str, tuple[str, Address | None, Address | None]] = {}
    for value in route.objects("grpc"):
        broker = JsonFields("grpc", value)
        plain, tls = (_address(broker.text(name, ""), f"grpc.{name}") for name in ("plain", "tls"))
        grpc[broker.text("brokerName", "")] = (broker.text("messageType", ""), plain, tls)
    found = []
    for value in route.objects("queueDatas"):
        queues = JsonFields("queueDatas", value)
        name = queues.text("brokerName", "")
        message_type, plain, tls = grpc.get(name, ("", None, None))
        topic = TopicConfig(
            name="route",
            read_queue_count=queues.integer("readQueueNums", 0, maximum=_QUEUES_MAX),
            write_queue_count=queues.integer("writeQueueNums", 0, maximum=_QUEUES_MAX),
            permission=Permission(queues.integer("perm", 0) & _PERMISSIONS),
            attributes={MESSAGE_TYPE: message_type} if message_type else {},
        )
        found.append(BrokerQueues(name, topic, plain, tls))
    return found


def read_members(body: bytes) -> list[ClusterMember]:
    """The brokers in a name server's answer about the cluster. TableFormatError, JsonFormatError."""
    info = JsonFields("cluster", java_json.loads(body))
    grpc = info.texts("grpc")
    found = []
    for name, value in info.mapping("brokerAddrTable").items():
        broker = JsonFields("brokerAddrTable", value)
        addresses = {
            number: address
            for broker_id, address in broker.texts("brokerAddrs").items()
            if (number := decimal(broker_id)) is not None and number <= INT64_MAX
        }
        found.append(ClusterMember(name, broker.text("cluster", ""), addresses, grpc.get(name, "")))
    return found


def _members(tables: RouteTables) -> list[ClusterMember]:
    """The brokers in these tables, as `read_members` returns them."""
    return [
        ClusterMember(
            broker.name,
            broker.cluster,
            {broker_id: address for broker_id, address in broker.addresses.items() if address},
            tables.grpc_address(broker),
        )
        for broker in tables.brokers()
    ]


def _address(text: str, name: str) -> Address | None:
    if not text:
        return None
    try:
        address = Address.parse(text)
    except ValueError as error:
        raise TableFormatError(name, f"{text:.60}: {error}") from None
    if not address.port:
        raise TableFormatError(name, f"{text:.60}: the port is missing")
    return address


def _registered(tables: RouteTables, topic: str) -> list[BrokerQueues]:
    """The brokers in these tables, as `read_route` returns them."""
    found = []
    for broker, queues in tables.route(topic):
        addresses = tables.grpc(broker).get(MASTER_ID, GrpcAddresses())
        found.append(
            BrokerQueues(
                broker.name,
                TopicConfig(
                    name=topic,
                    read_queue_count=min(queues.read_queue_count, _QUEUES_MAX),
                    write_queue_count=min(queues.write_queue_count, _QUEUES_MAX),
                    permission=Permission(queues.permission & _PERMISSIONS),
                    attributes={MESSAGE_TYPE: queues.message_type} if queues.message_type else {},
                ),
                _address(addresses.plain, "grpcAddr"),
                _address(addresses.tls, "grpcTlsAddr"),
            )
        )
    return found
