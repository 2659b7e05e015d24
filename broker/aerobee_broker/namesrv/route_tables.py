"""The tables of a name server: brokers, their addresses, and the queues of every topic. No sockets here.

A broker is (cluster, name); each of its addresses has an id, and 0 is the master's. A registration lives while its
connection is open, at most for its timeout after the last heartbeat.

Differences from RocketMQ:

- An address cannot take the id of another registered address: one of the two would miss messages.

- Only the connection that registered an address can unregister it.

- Routes can be kept over a restart: they are served until the broker registers again, or for a minute.

- A wiped write permission stays wiped until it is restored, and gets its old value back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from aerobee_broker.config import Address
from aerobee_broker.errors import BrokerError, TableFormatError
from aerobee_broker.tables.data_version import DataVersion
from aerobee_broker.tables.json_fields import INT32_MAX, INT64_MAX, JsonFields, checked_integer
from aerobee_broker.tables.topics import Permission, TopicConfig
from aerobee_store.clock import Clock
from aerobee_store.tables.java_json import Bean

MASTER_ID: Final = 0
RESTORED_SECONDS: Final = 60.0
"""How long restored routes are valid: brokers register every 30 s."""
_RESTORED: Final = "before the restart"
TIMEOUT_SECONDS: Final = 120.0  # RocketMQ's, after the last registration
BROKERS_MAX: Final = 10_000
_TOPICS_MAX: Final = 1_000_000  # of all brokers, each with its own
_WRITE: Final = int(Permission.WRITE)


class RegistrationRefusedError(BrokerError):
    """A registration of a broker is refused."""


class QueueData(Struct, frozen=True):
    """The queues of a topic on one broker. `permission` has the bits of `perm`."""

    read_queue_count: int
    write_queue_count: int
    permission: int
    sys_flag: int = 0
    message_type: str = ""
    """As in topic attributes of RocketMQ 5; empty if the broker did not send it."""


class GrpcAddresses(Struct, frozen=True):
    """The addresses at which a broker serves gRPC clients, as host:port; empty if it serves none, or sent none."""

    plain: str = ""
    tls: str = ""


class BrokerQueues(Struct, frozen=True):
    """The queues of a topic on one broker, and its master's address for gRPC clients, or None."""

    broker: str
    topic: TopicConfig
    plain: Address | None
    tls: Address | None


class Registration(Struct, frozen=True, kw_only=True):
    """The content of a registration. `connection` identifies its connection."""

    cluster: str
    broker: str
    address: str
    broker_id: int
    version: DataVersion
    topics: Mapping[str, QueueData]
    connection: str
    ha_address: str = ""
    grpc: GrpcAddresses = GrpcAddresses()
    zone: str = ""
    acting_master: bool | None = None  # None: a broker of RocketMQ 4
    timeout_seconds: float = TIMEOUT_SECONDS
    is_trusted: bool = False
    """Whether it may replace a living master of an older epoch: it is signed, or comes from this machine."""


class Master(Struct, frozen=True):
    """The answer to a slave about its master."""

    address: str
    ha_address: str


class Broker(Struct):
    """One broker name with its addresses by id."""

    cluster: str
    name: str
    zone: str = ""
    acting_master: bool = False
    addresses: dict[int, str] = field(default_factory=dict)


class _Live(Struct):
    broker: str
    broker_id: int
    seen_at: float
    timeout_seconds: float
    version: DataVersion
    connection: str
    ha_address: str
    grpc: GrpcAddresses = GrpcAddresses()


class RouteTables:
    """The tables of a name server. Event loop only.

    The topics are kept by broker, and a route asks each broker: a broker may have tens of thousands of topics and come
    and go, in one step of the loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._brokers: dict[str, Broker] = {}
        self._topics_of: dict[str, dict[str, QueueData]] = {}  # by broker name, then by topic
        self._read_only: set[str] = set()  # broker names whose topics a slave has registered in place of its master
        self._live: dict[tuple[str, str], _Live] = {}  # by cluster and address
        self._of_connection: dict[str, set[tuple[str, str]]] = {}  # those that it has registered; some may have left
        self.wiped: frozenset[str] = frozenset()
        """The names of brokers whose write permission an operator has taken away."""
        self.revision = 0
        """Increases with every change that a snapshot would contain."""

    # --- Registration -----------------------------------------------------------------------------------------

    def register(self, wanted: Registration) -> Master | None:
        """Register a broker, or take its heartbeat with its changes; returns its master, if it is a slave and has one.
        Raises RegistrationRefusedError."""
        broker = self._brokers.get(wanted.broker)
        is_new_id = broker is None or wanted.broker_id not in broker.addresses
        self._check_registration(wanted, broker, is_new_id)
        key = (wanted.cluster, wanted.address)
        known = self._live.get(key)
        if is_new_id or known is None or known.version != wanted.version or known.grpc != wanted.grpc:
            self.revision += 1
        if broker is None:
            broker = self._brokers[wanted.broker] = Broker(wanted.cluster, wanted.broker)
        for broker_id in [i for i, address in broker.addresses.items() if address == wanted.address]:
            del broker.addresses[broker_id]  # a slave became master, or the reverse
        broker.addresses[wanted.broker_id] = wanted.address
        broker.zone, broker.acting_master = wanted.zone, bool(wanted.acting_master)
        self._live[key] = _Live(
            broker=wanted.broker,
            broker_id=wanted.broker_id,
            seen_at=self._clock.monotonic(),
            timeout_seconds=wanted.timeout_seconds,
            version=wanted.version,
            connection=wanted.connection,
            ha_address=wanted.ha_address,
            grpc=wanted.grpc,
        )
        self._of_connection.setdefault(wanted.connection, set()).add(key)
        is_lowest = wanted.broker_id == min(broker.addresses)
        if wanted.broker_id == MASTER_ID or (wanted.acting_master is not None and is_lowest):
            self._take_topics(wanted, is_changed=known is None or known.version != wanted.version)
        return None if wanted.broker_id == MASTER_ID else self._master_of(broker)

    def _check_registration(self, wanted: Registration, broker: Broker | None, is_new_id: bool) -> None:
        """Raise RegistrationRefusedError if another broker has the name or the id, or if something is missing."""
        if broker is not None and broker.cluster != wanted.cluster:
            raise RegistrationRefusedError(
                f"broker {wanted.broker!r} is in cluster {broker.cluster!r} and cannot also be in {wanted.cluster!r}; "
                "choose another broker name"
            )
        if broker is None and len(self._brokers) >= BROKERS_MAX:
            raise RegistrationRefusedError(f"{len(self._brokers)} brokers are registered, which is the limit")
        holder = None if broker is None else broker.addresses.get(wanted.broker_id)
        if holder is not None and holder != wanted.address:
            live = self._live.get((wanted.cluster, holder))
            if (
                live is not None
                and live.connection != _RESTORED
                and not self._has_expired(live)
                # no master of a newer epoch
                and not (wanted.is_trusted and wanted.version.state_version > live.version.state_version)
            ):
                raise RegistrationRefusedError(
                    f"id {wanted.broker_id} of broker {wanted.broker!r} belongs to {holder}, which is alive; "
                    f"stop that broker, or give {wanted.address} another id or name"
                )
        others = sum(len(topics) for name, topics in self._topics_of.items() if name != wanted.broker)
        of_broker = self._topics_of.get(wanted.broker, {})
        if others + len(of_broker) + sum(topic not in of_broker for topic in wanted.topics) > _TOPICS_MAX:
            raise RegistrationRefusedError(
                f"{others + len(of_broker)} topics of all brokers are registered, and the limit is {_TOPICS_MAX}"
            )
        if is_new_id and len(wanted.topics) == 1:
            # RocketMQ: the first registration lists all topics, and a broker always has more than one.
            raise RegistrationRefusedError(
                f"the first registration of broker {wanted.broker!r} has only one topic; register all topics first"
            )

    def _take_topics(self, wanted: Registration, *, is_changed: bool) -> None:
        of_broker = self._topics_of.setdefault(wanted.broker, {})
        if not of_broker or is_changed:
            of_broker.update(wanted.topics)
            # A slave that stands in for its master is read-only.
            (self._read_only.discard if wanted.broker_id == MASTER_ID else self._read_only.add)(wanted.broker)
        else:
            self._topics_of[wanted.broker] = {**wanted.topics, **of_broker}

    def _master_of(self, broker: Broker) -> Master | None:
        address = broker.addresses.get(MASTER_ID)
        live = None if address is None else self._live.get((broker.cluster, address))
        return None if address is None or live is None else Master(address, live.ha_address)

    def replace_topics(self, broker: str, topics: Mapping[str, QueueData]) -> None:
        """Replace the topics of a registered broker."""
        self._topics_of[broker] = dict(topics)

    def unregister(self, cluster: str, broker: str, address: str, connection: str) -> None:
        """Unregister a broker; an unknown one is ignored. Raises RegistrationRefusedError over another connection than
        that of the registration."""
        live = self._live.get((cluster, address))
        if live is None or live.broker != broker:
            return
        if live.connection != connection:
            raise RegistrationRefusedError(
                f"{address} of broker {broker!r} registered over another connection; unregister it there"
            )
        self._remove((cluster, address))

    def seen(self, cluster: str, address: str) -> DataVersion | None:
        """Take a heartbeat; returns the known version of the broker's topics, None for an unknown broker."""
        live = self._live.get((cluster, address))
        if live is None:
            return None
        live.seen_at = self._clock.monotonic()
        return live.version

    def connection_closed(self, connection: str) -> list[str]:
        """Remove the registrations of this connection; returns the addresses."""
        keys = self._of_connection.pop(connection, ())
        return [self._remove(key) for key in keys if key in self._live and self._live[key].connection == connection]

    def expire(self) -> list[str]:
        """Remove brokers that were silent for longer than their timeout; returns the addresses."""
        return [self._remove(key) for key, live in list(self._live.items()) if self._has_expired(live)]

    def _has_expired(self, live: _Live) -> bool:
        return live.seen_at + live.timeout_seconds < self._clock.monotonic()

    def _remove(self, key: tuple[str, str]) -> str:
        live = self._live.pop(key)
        self.revision += 1
        broker = self._brokers.get(live.broker)
        if broker is None or broker.addresses.get(live.broker_id) != key[1]:
            return key[1]
        del broker.addresses[live.broker_id]
        if not broker.addresses:
            del self._brokers[broker.name]
            self._topics_of.pop(broker.name, None)
            self._read_only.discard(broker.name)
        return key[1]

    # --- Administration ---------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic in one cluster or in all; the next changed registration of a broker that has it restores
        it."""
        self.revision += 1
        for name, topics in self._topics_of.items():
            broker = self._brokers.get(name)
            if cluster is None or (broker is not None and broker.cluster == cluster):
                topics.pop(topic, None)

    def topic_count(self, broker: str) -> int:
        """The number of topics of a broker."""
        return len(self._topics_of.get(broker, ()))

    @property
    def all_topics_count(self) -> int:
        """The number of topics, those of each broker counted."""
        return sum(map(len, self._topics_of.values()))

    def writable_count(self, broker: str) -> int:
        """The number of its topics to which messages may be sent."""
        if not self._is_writable(broker):
            return 0
        return sum(1 for queues in self._topics_of.get(broker, {}).values() if queues.permission & _WRITE)

    def _is_writable(self, broker: str) -> bool:
        return broker not in self.wiped and broker not in self._read_only

    # --- Persistence ------------------------------------------------------------------------------------------

    def snapshot(self) -> Bean:
        """The whole content, for `restore`."""
        brokers = [
            Bean(
                cluster=broker.cluster,
                name=broker.name,
                zone=broker.zone,
                addresses=[
                    Bean(
                        id=broker_id,
                        address=address,
                        ha=live.ha_address if live is not None else "",
                        grpc=live.grpc.plain if live is not None else "",
                        grpcTls=live.grpc.tls if live is not None else "",
                    )
                    for broker_id, address in broker.addresses.items()
                    for live in (self._live.get((broker.cluster, address)),)
                ],
                topics={
                    topic: [queues.read_queue_count, queues.write_queue_count, queues.permission, queues.sys_flag]
                    for topic, found in self._topics_of.get(broker.name, {}).items()
                    for queues in (_read_only(found) if broker.name in self._read_only else found,)
                },
            )
            for broker in self._brokers.values()
        ]
        return Bean(brokers=brokers)

    def restore(self, value: object) -> None:
        """Make the content of a snapshot valid for a minute. TableFormatError."""
        fields = JsonFields("routes.json", value)
        for item in fields.objects("brokers"):
            entry = JsonFields("routes.json.brokers", item)
            broker = Broker(entry.text("cluster", ""), entry.text("name", ""), entry.text("zone", ""))
            self._brokers[broker.name] = broker
            for held in entry.objects("addresses"):
                place = JsonFields("routes.json.brokers.addresses", held)
                broker_id, address = place.integer("id", 0, maximum=INT64_MAX), place.text("address", "")
                broker.addresses[broker_id] = address
                self._live[broker.cluster, address] = _Live(
                    broker=broker.name,
                    broker_id=broker_id,
                    seen_at=self._clock.monotonic(),
                    timeout_seconds=RESTORED_SECONDS,
                    version=DataVersion(),
                    connection=_RESTORED,
                    ha_address=place.text("ha", ""),
                    grpc=GrpcAddresses(place.text("grpc", ""), place.text("grpcTls", "")),
                )
            for topic, numbers in entry.mapping("topics").items():
                name = f"routes.json.brokers.topics.{topic}"
                if not isinstance(numbers, list) or len(numbers) != 4:
                    raise TableFormatError(name, "expected four numbers")
                read, write, permission, flag = (checked_integer(name, number, 0, INT32_MAX) for number in numbers)
                queues = QueueData(read, write, permission, flag)
                self._topics_of.setdefault(broker.name, {})[topic] = queues

    # --- Answers ----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> list[tuple[Broker, QueueData]]:
        """The brokers that have a topic, with their queues; none for an unknown topic."""
        found = []
        for name, topics in self._topics_of.items():
            queues, broker = topics.get(topic), self._brokers.get(name)
            if queues is not None and broker is not None and broker.addresses:
                found.append((broker, queues if self._is_writable(name) else _read_only(queues)))
        return found

    def grpc(self, broker: Broker) -> dict[int, GrpcAddresses]:
        """The gRPC addresses of a broker, by broker id; those that serve no gRPC clients are left out."""
        live = {i: self._live.get((broker.cluster, address)) for i, address in broker.addresses.items()}
        return {i: found.grpc for i, found in live.items() if found is not None and found.grpc != GrpcAddresses()}

    def grpc_address(self, broker: Broker) -> str:
        """Where gRPC clients reach the master of a broker, without TLS if possible; empty if nowhere."""
        found = self.grpc(broker).get(MASTER_ID, GrpcAddresses())
        return found.plain or found.tls

    def brokers(self) -> list[Broker]:
        return list(self._brokers.values())

    def has_others(self, name: str) -> bool:
        """Whether a broker of another name is registered."""
        return any(other != name for other in self._brokers)

    def broker(self, name: str) -> Broker | None:
        return self._brokers.get(name)

    def topics(self) -> Iterable[str]:
        return tuple(dict.fromkeys(itertools.chain.from_iterable(self._topics_of.values())))

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics of all brokers of a cluster, each once."""
        names: dict[str, None] = {}
        for broker in self._brokers.values():
            if broker.cluster == cluster:
                names.update(dict.fromkeys(self._topics_of.get(broker.name, ())))
        return list(names)

    def topics_with(self, flags: int, *, without: int = 0) -> list[str]:
        """The topics whose sysFlag has these bits on some broker, and none of the others."""
        names: dict[str, None] = {}
        for topics in self._topics_of.values():
            for topic, queues in topics.items():
                if queues.sys_flag & flags and not queues.sys_flag & without:
                    names[topic] = None
        return list(names)


def _read_only(queues: QueueData) -> QueueData:
    return replace(queues, permission=queues.permission & ~_WRITE)
