"""The requests that a name server answers.

The same class answers in a broker for itself: the broker registers there with the address LOCAL, which answers replace
by the address to which the client has connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from sys import getsizeof
from typing import Final
from weakref import WeakKeyDictionary

from zlib_ng.zlib_ng import crc32

from aerobee_broker.config import Address
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.namesrv.registration_body import read_body
from aerobee_broker.namesrv.route_tables import (
    BROKERS_MAX,
    MASTER_ID,
    Broker,
    GrpcAddresses,
    QueueData,
    Registration,
    RegistrationRefusedError,
    RouteTables,
)
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, Handler
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, boolean, integer, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.data_version import DataVersion
from aerobee_broker.tables.json_fields import JsonFields
from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import Bean, IntegerMap

LOCAL: Final = ""
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
WIPED_FILE: Final = "wipedBrokers.json"
_STRICT_JSON_VERSION: Final = 401  # 4.9.4: later clients need quoted keys
_CRC_MASK: Final = 0x7FFFFFFF
_VALUE_SIZE_MAX: Final = 1 << 20
_TABLE_SIZE_MAX: Final = 8 << 20  # bytes of memory of all keys and values
_ENTRY_SIZE: Final = 100  # bytes of a value besides
_ROUTE_SIZE: Final = 500  # bytes of memory of a topic of a broker, ...
_BROKER_SIZE: Final = 2_000  # ... and of the broker
_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2


async def _unsaved(_content: object) -> None:
    """For values that need not outlive the process."""


class KvConfig:
    """Values that operators store in a name server, by namespace and key. A change is visible once `save` has made it
    durable."""

    def __init__(self, save: Callable[[object], Awaitable[object]] = _unsaved, ledger: Ledger | None = None) -> None:
        """`ledger` counts the values; they have a bound of their own, so they are not dropped."""
        self._save = save
        self._holdings = (ledger or Ledger()).open_table("values", lambda: None)
        self._table: dict[str, dict[str, str]] = {}
        self._changing = asyncio.Lock()

    def restore(self, saved: object) -> None:
        """Take what `save` was given in an earlier run; None if there was nothing."""
        if isinstance(saved, dict) and isinstance(found := saved.get("configTable"), dict):
            for namespace, values in found.items():
                if isinstance(values, dict):
                    self._table[namespace] = {key: value for key, value in values.items() if isinstance(value, str)}
        sizes = [_size(name, key, value) for name, values in self._table.items() for key, value in values.items()]
        self._holdings.set("values", sum(sizes))

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, name: str) -> dict[str, str] | None:
        return self._table.get(name)

    async def put(self, namespace: str, key: str, value: str) -> None:
        async with self._changing:
            values = self._table.get(namespace, {})
            change = _size(namespace, key, value) - (_size(namespace, key, values[key]) if key in values else 0)
            size = self._holdings.size_of("values") + change
            if len(value) > _VALUE_SIZE_MAX or (change > 0 and size > _TABLE_SIZE_MAX):
                raise RemotingError(
                    Answer.INVALID_PARAMETER,
                    f"the value is longer than {_VALUE_SIZE_MAX}, or all values take more than {_TABLE_SIZE_MAX} bytes",
                )
            await self._replace({**self._table, namespace: {**values, key: value}}, change)

    async def delete(self, namespace: str, key: str) -> None:
        async with self._changing:
            values = self._table.get(namespace, {})
            if key in values:
                kept = {name: value for name, value in values.items() if name != key}
                await self._replace({**self._table, namespace: kept}, -_size(namespace, key, values[key]))

    async def _replace(self, table: dict[str, dict[str, str]], change: int) -> None:
        await self._save(Bean(configTable=table))
        self._table = table
        self._holdings.add("values", change)


class WritePermissions:
    """Takes the write permission of brokers away, and gives it back. A change is visible once `save` has made it
    durable: an operator who stops a broker afterwards relies on it."""

    def __init__(self, tables: RouteTables, save: Callable[[object], Awaitable[object]] = _unsaved) -> None:
        self._tables = tables
        self._save = save
        self._changing = asyncio.Lock()

    def restore(self, saved: object) -> None:
        """Take what `save` was given in an earlier run; None if there was nothing. TableFormatError."""
        if saved is not None:
            self._tables.wiped = frozenset(JsonFields(WIPED_FILE, saved).names("wiped"))

    async def wipe(self, broker: str) -> int:
        """Forbid sends to a registered broker; returns the number of its topics to which messages could be sent."""
        async with self._changing:
            count = self._tables.writable_count(broker)
            if self._tables.broker(broker) is not None:
                await self._replace(self._tables.wiped | {broker})
            return count

    async def restore_writes(self, broker: str) -> int:
        """Allow sends again; returns the number of topics."""
        async with self._changing:
            await self._replace(self._tables.wiped - {broker})
            return self._tables.topic_count(broker)

    async def _replace(self, wiped: frozenset[str]) -> None:
        if wiped == self._tables.wiped:
            return
        if len(wiped) > BROKERS_MAX:
            raise RemotingError(
                Answer.INVALID_PARAMETER,
                f"more than {BROKERS_MAX} brokers would have no write permission; give it back to some first",
            )
        await self._save(Bean(wiped=list[object](sorted(wiped))))
        self._tables.wiped = wiped


def _size(namespace: str, key: str, value: str) -> int:
    """Bytes of memory, which a text of other letters than Latin ones takes more of."""
    return getsizeof(namespace) + getsizeof(key) + getsizeof(value) + _ENTRY_SIZE


class NameServerRequests:
    """One method per request code; `handlers` is the table."""

    def __init__(
        self,
        tables: RouteTables,
        values: KvConfig,
        permissions: WritePermissions,
        settings: Callable[[], dict[str, str]],
    ) -> None:
        """`settings`: the answer to GET_NAME_SERVER_CONFIG."""
        self._tables = tables
        self._values = values
        self._permissions = permissions
        self._settings = settings
        self._registering = asyncio.Lock()
        self._sizes: WeakKeyDictionary[Connection, dict[str, int]] = WeakKeyDictionary()  # by address of the broker
        self.handlers: dict[int, Handler] = {
            Request.REGISTER_BROKER: self.register,
            Request.UNREGISTER_BROKER: self.unregister,
            Request.QUERY_DATA_VERSION: self.query_data_version,
            Request.BROKER_HEARTBEAT: self.broker_heartbeat,
            Request.GET_BROKER_MEMBER_GROUP: self.member_group,
            Request.GET_ROUTE_INFO_BY_TOPIC: self.route,
            Request.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            Request.GET_ALL_TOPIC_LIST_FROM_NAME_SERVER: self.topic_list,
            Request.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_NAME_SERVER: self.system_topics,
            Request.GET_UNIT_TOPIC_LIST: self.unit_topics,
            Request.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_subscription_topics,
            Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_subscription_only_topics,
            Request.DELETE_TOPIC_IN_NAME_SERVER: self.delete_topic,
            Request.WIPE_WRITE_PERMISSION_OF_BROKER: self.wipe_write_permission,
            Request.ADD_WRITE_PERMISSION_OF_BROKER: self.add_write_permission,
            Request.PUT_KV_CONFIG: self.put_value,
            Request.GET_KV_CONFIG: self.get_value,
            Request.DELETE_KV_CONFIG: self.delete_value,
            Request.GET_KV_LIST_BY_NAMESPACE: self.values_of_namespace,
            Request.GET_NAME_SERVER_CONFIG: self.configuration,
            Request.UPDATE_NAME_SERVER_CONFIG: self.update_configuration,
        }

    # --- Brokers ----------------------------------------------------------------------------------------------

    async def register(self, request: Command, connection: Connection) -> Command:
        """One at a time: while the topics of a registration are read they take a hundred times its bytes."""
        async with self._registering:
            return await self._register(request, connection)

    async def _register(self, request: Command, connection: Connection) -> Command:
        expected = integer(request, "bodyCrc32", 0)
        if expected and crc32(request.body) & _CRC_MASK != expected & _CRC_MASK:
            raise RemotingError(Answer.SYSTEM_ERROR, "crc32 not match")
        version, topics = await read_body(request.body, compressed=boolean(request, "compressed"))
        acting = request.fields.get("enableActingMaster")
        timeout_ms = integer(request, "heartbeatTimeoutMillis", 120_000)
        wanted = Registration(
            cluster=text(request, "clusterName"),
            broker=text(request, "brokerName"),
            address=text(request, "brokerAddr"),
            broker_id=integer(request, "brokerId"),
            version=version,
            topics=topics,
            connection=connection.key,
            is_trusted=bool(request.access_key) or Address(*connection.peer).is_loopback,
            ha_address=text(request, "haServerAddr", ""),
            grpc=GrpcAddresses(_address(request, "grpcAddr"), _address(request, "grpcTlsAddr")),
            zone=text(request, "__ZONE_NAME", ""),
            acting_master=None if acting is None else acting.lower() == "true",
            timeout_seconds=min(max(timeout_ms, 1000), 3_600_000) / 1000,
        )
        master = self._tables.register(wanted)
        self._charge(connection, wanted.address, len(topics) * _ROUTE_SIZE + _BROKER_SIZE)
        fields = {} if master is None else {"haServerAddr": master.ha_address, "masterAddr": master.address}
        order = self._values.namespace(ORDER_NAMESPACE)
        return answer(fields, body=b"" if order is None else Bean(table=order))

    def _charge(self, connection: Connection, address: str, size: int) -> None:
        """Count the memory of the routes that a connection has registered for a broker."""
        sizes = self._sizes.setdefault(connection, {})
        sizes[address] = size
        connection.holdings.set("routes", sum(sizes.values()))

    async def unregister(self, request: Command, connection: Connection) -> Command:
        try:
            self._tables.unregister(
                text(request, "clusterName"), text(request, "brokerName"), text(request, "brokerAddr"), connection.key
            )
        except RegistrationRefusedError as error:
            raise RemotingError(Answer.NO_PERMISSION, str(error)) from None
        self._charge(connection, text(request, "brokerAddr"), 0)
        return answer()

    async def query_data_version(self, request: Command, _: Connection) -> Command:
        known = self._tables.seen(text(request, "clusterName"), text(request, "brokerAddr"))
        asked = DataVersion.from_json("body", java_json.loads_body(request.body)) if request.body else DataVersion()
        body: bytes | Bean = b"" if known is None else known.to_json()
        return answer({"changed": known != asked}, body=body)

    async def broker_heartbeat(self, request: Command, _: Connection) -> Command:
        self._tables.seen(text(request, "clusterName"), text(request, "brokerAddr"))
        return answer()

    async def member_group(self, request: Command, connection: Connection) -> Command:
        cluster, name = text(request, "clusterName"), text(request, "brokerName")
        broker = self._tables.broker(name)
        addresses = _addresses(broker, connection) if broker is not None and broker.cluster == cluster else {}
        group = Bean(cluster=cluster, brokerName=name, brokerAddrs=IntegerMap.of(addresses))
        return answer(body=Bean(brokerMemberGroup=group))

    # --- Routes -----------------------------------------------------------------------------------------------

    async def route(self, request: Command, connection: Connection) -> Command:
        topic = text(request, "topic", "")
        found = self._tables.route(topic) if topic else []
        if not found:
            raise RemotingError(
                Answer.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic or 'null'}"
            )
        strict = request.version >= _STRICT_JSON_VERSION or boolean(request, "acceptStandardJsonOnly")
        route = Bean(
            brokerDatas=[broker_to_json(broker, connection, quoted=strict) for broker, _ in found],
            filterServerTable={},
            queueDatas=[_queues_to_json(broker.name, queues) for broker, queues in found],
        )
        order = self._values.get(ORDER_NAMESPACE, topic)
        if order is not None:
            route["orderTopicConf"] = order
        if boolean(request, "grpc"):
            self._add_grpc(route, found)
        return answer(body=route)

    def _add_grpc(self, route: Bean, found: list[tuple[Broker, QueueData]]) -> None:
        """Add the addresses for gRPC clients, which only Aerobee's brokers request."""
        grpc = {broker.name: self._tables.grpc(broker).get(MASTER_ID, GrpcAddresses()) for broker, _ in found}
        route["grpc"] = [
            Bean(brokerName=broker.name, messageType=queues.message_type, plain=addresses.plain, tls=addresses.tls)
            for broker, queues in found
            for addresses in (grpc[broker.name],)
        ]

    async def cluster_info(self, request: Command, connection: Connection) -> Command:
        clusters: dict[str, list[object]] = {}
        for broker in self._tables.brokers():
            clusters.setdefault(broker.cluster, []).append(broker.name)
        brokers = {broker.name: broker_to_json(broker, connection, quoted=False) for broker in self._tables.brokers()}
        info = Bean(brokerAddrTable=brokers, clusterAddrTable=clusters)
        if boolean(request, "grpc"):  # only Aerobee's brokers request it
            info["grpc"] = Bean(**{broker.name: self._tables.grpc_address(broker) for broker in self._tables.brokers()})
        return answer(body=info)

    async def topic_list(self, _request: Command, _: Connection) -> Command:
        return answer(body=Bean(topicList=list[object](self._tables.topics())))

    async def topics_of_cluster(self, request: Command, _: Connection) -> Command:
        return answer(body=Bean(topicList=list[object](self._tables.topics_of_cluster(text(request, "cluster")))))

    async def system_topics(self, _request: Command, connection: Connection) -> Command:
        """The names of clusters and brokers, which brokers have as topics."""
        brokers = self._tables.brokers()
        names = dict.fromkeys([*(broker.cluster for broker in brokers), *(broker.name for broker in brokers)])
        body = Bean(topicList=list[object](names))
        addresses = [address for broker in brokers for address in _addresses(broker, connection).values()]
        if addresses:
            body["brokerAddr"] = addresses[0]
        return answer(body=body)

    async def unit_topics(self, _request: Command, _: Connection) -> Command:
        return answer(body=Bean(topicList=list[object](self._tables.topics_with(_UNIT))))

    async def unit_subscription_topics(self, _request: Command, _: Connection) -> Command:
        return answer(body=Bean(topicList=list[object](self._tables.topics_with(_UNIT_SUBSCRIPTION))))

    async def unit_subscription_only_topics(self, _request: Command, _: Connection) -> Command:
        found = self._tables.topics_with(_UNIT_SUBSCRIPTION, without=_UNIT)
        return answer(body=Bean(topicList=list[object](found)))

    # --- Administration ---------------------------------------------------------------------------------------

    async def delete_topic(self, request: Command, _: Connection) -> Command:
        self._tables.delete_topic(text(request, "topic"), text(request, "clusterName", "") or None)
        return answer()

    async def wipe_write_permission(self, request: Command, _: Connection) -> Command:
        return answer({"wipeTopicCount": await self._permissions.wipe(text(request, "brokerName"))})

    async def add_write_permission(self, request: Command, _: Connection) -> Command:
        return answer({"addTopicCount": await self._permissions.restore_writes(text(request, "brokerName"))})

    async def put_value(self, request: Command, _: Connection) -> Command:
        await self._values.put(text(request, "namespace"), text(request, "key"), text(request, "value"))
        return answer()

    async def get_value(self, request: Command, _: Connection) -> Command:
        namespace, key = text(request, "namespace"), text(request, "key")
        value = self._values.get(namespace, key)
        if value is None:
            raise RemotingError(Answer.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace[:80]} Key: {key[:80]}")
        return answer({"value": value})

    async def delete_value(self, request: Command, _: Connection) -> Command:
        await self._values.delete(text(request, "namespace"), text(request, "key"))
        return answer()

    async def values_of_namespace(self, request: Command, _: Connection) -> Command:
        name = text(request, "namespace")
        found = self._values.namespace(name)
        if found is None:
            raise RemotingError(Answer.QUERY_NOT_FOUND, f"No config item, Namespace: {name[:80]}")
        return answer(body=Bean(table=found))

    async def configuration(self, _request: Command, _: Connection) -> Command:
        return answer(body="".join(f"{name}={value}\n" for name, value in self._settings().items()).encode())

    async def update_configuration(self, _request: Command, _: Connection) -> Command:
        raise RemotingError(
            Answer.NO_PERMISSION,
            "settings of this name server cannot be changed over the network; change its command line and restart it",
        )


def broker_to_json(broker: Broker, connection: Connection, *, quoted: bool) -> Bean:
    """In the form of routes. Keys are quoted for clients that read only JSON."""
    addresses = _addresses(broker, connection)
    value = Bean(
        brokerAddrs={str(i): address for i, address in addresses.items()} if quoted else IntegerMap.of(addresses),
        brokerName=broker.name,
        cluster=broker.cluster,
        enableActingMaster=broker.acting_master,
    )
    if broker.zone:
        value["zoneName"] = broker.zone
    return value


def _address(request: Command, name: str) -> str:
    """An address with a port, or an empty text."""
    found = text(request, name, "")
    try:
        if found and not Address.parse(found).port:
            raise ValueError("the port is missing")
    except ValueError as error:
        raise RemotingError(Answer.INVALID_PARAMETER, f"{name} is {found[:80]!r}: {error}") from None
    return found


def _addresses(broker: Broker, connection: Connection) -> dict[int, object]:
    return {
        broker_id: str(connection.local) if address == LOCAL else address
        for broker_id, address in broker.addresses.items()
    }


def _queues_to_json(broker: str, queues: QueueData) -> Bean:
    return Bean(
        brokerName=broker,
        perm=queues.permission,
        readQueueNums=queues.read_queue_count,
        topicSysFlag=queues.sys_flag,
        writeQueueNums=queues.write_queue_count,
    )
