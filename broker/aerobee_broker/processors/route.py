"""The queues of a topic: QueryRoute for producers and simple consumers, QueryAssignment for push consumers.

Clients connect to exactly the address in the answer. For this broker it is the address to which they sent the request,
so that mapped ports, container names and IPv6 work; or the one that the operator configured. Other brokers have the
address that they registered with the name server.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from aerobee_broker.clients.naming import group_name, subscribed_topics, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Address, Settings
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.wakes import Gate
from aerobee_broker.listening.listeners import Listening
from aerobee_broker.messages.admission import ACCEPTED_TYPES
from aerobee_broker.messages.validation import address_scheme, check_endpoints
from aerobee_broker.namesrv.route_tables import BrokerQueues
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import Permission, TopicConfig
from aerobee_proto import v2

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
_NONE: Final = v2.Permission.NONE
_READ: Final = v2.Permission.READ
_WRITE: Final = v2.Permission.WRITE
_READ_WRITE: Final = v2.Permission.READ_WRITE
_READABLE: Final = (_READ, _READ_WRITE)
_DOMAIN_NAME: Final = v2.AddressScheme.DOMAIN_NAME
ANY_QUEUE: Final = -1


class Cluster(Protocol):
    """The other brokers of the cluster."""

    async def brokers(self, topic: str) -> list[BrokerQueues]:
        """The brokers that have a topic, perhaps including this one."""


class RouteProcessor:
    """Answers QueryRoute and QueryAssignment.

    `listening` are the bound addresses, `cluster` the other brokers. Once `leaving` is set, this broker is left out of
    the routes of topics that another broker takes messages for.
    """

    def __init__(
        self, settings: Settings, tables: Tables, listening: Listening, cluster: Cluster, leaving: Gate
    ) -> None:
        self._settings = settings
        self._tables = tables
        self._listening = listening
        self._cluster = cluster
        self._leaving = leaving

    async def query_route(self, request: v2.QueryRouteRequest, client: Client) -> v2.QueryRouteResponse:
        check_endpoints(request.endpoints)
        stored = topic_name(request.topic, client)
        queues = [
            [
                v2.MessageQueue(
                    topic=request.topic,
                    id=queue_id,
                    permission=permission,
                    broker=broker,
                    accept_message_types=ACCEPTED_TYPES[topic.message_type],
                )
                for queue_id, permission in queue_permissions(topic)
            ]
            for broker, topic in await self._brokers(stored, request.endpoints, client)
        ]
        return v2.QueryRouteResponse(status=_OK, message_queues=_spread(queues))

    async def query_assignment(self, request: v2.QueryAssignmentRequest, client: Client) -> v2.QueryAssignmentResponse:
        check_endpoints(request.endpoints)
        stored = topic_name(request.topic, client)
        name = group_name(request.group, client)
        brokers = await self._brokers(stored, request.endpoints, client)
        orderly = self._tables.group_or_first_use(name, [stored, *subscribed_topics(client)]).consume_orderly
        queues: list[v2.MessageQueue] = []
        for broker, topic in brokers:
            readable = [(i, permission) for i, permission in queue_permissions(topic) if permission in _READABLE]
            if not orderly:
                # Any consumer of a group may receive from any queue, so one loop of the client serves all of a broker.
                readable = [(ANY_QUEUE, permission) for _, permission in readable[:1]]
            queues += (v2.MessageQueue(topic=request.topic, id=i, permission=p, broker=broker) for i, p in readable)
        if not queues:
            raise InvalidRequestError(v2.Code.FORBIDDEN, f"topic {stored!r} has no readable queue")
        assignments = [v2.Assignment(message_queue=queue) for queue in queues]
        return v2.QueryAssignmentResponse(status=_OK, assignments=assignments)

    async def _brokers(self, stored: str, dialled: v2.Endpoints, client: Client) -> list[tuple[v2.Broker, TopicConfig]]:
        """The brokers that have a topic, with its queues there."""
        topic = self._tables.topics.get(stored)
        known = await self._cluster.brokers(stored)
        own_name = self._settings.current.name
        others = [
            (v2.Broker(name=other.broker, id=0, endpoints=_endpoints_of([address])), _of_type(other, topic))
            for other in known
            if other.broker != own_name and (address := other.tls if client.secure else other.plain) is not None
        ]
        if topic is None:
            return others or [(self._broker(dialled, client), await self._tables.topic_in_use(stored))]
        if self._leaving.is_set() and any(there.writable for _, there in others):
            return others
        is_wiped = any(other.broker == own_name and not other.topic.writable for other in known)
        return [(self._broker(dialled, client), _read_only(topic) if is_wiped else topic), *others]

    def _broker(self, dialled: v2.Endpoints, client: Client) -> v2.Broker:
        # Clients keep only queues of brokers with id 0, RocketMQ's number for a master.
        return v2.Broker(name=self._settings.current.name, id=0, endpoints=self.endpoints(dialled, client))

    def endpoints(self, dialled: v2.Endpoints, client: Client) -> v2.Endpoints:
        """The address of the broker for a client that connected to this one."""
        listen = self._settings.current.listen
        advertised = listen.advertise_tls if client.secure else listen.advertise
        if advertised is not None:
            return _endpoints_of([advertised])
        if dialled.addresses:
            return _endpoints_of([Address(address.host, address.port) for address in dialled.addresses])
        bound = self._listening.tls if client.secure and self._listening.tls is not None else self._listening.grpc
        if not bound.is_wildcard:
            return _endpoints_of([bound])
        local = ipaddress.ip_address(client.peer[0]).is_loopback
        return _endpoints_of([Address(client.peer[0] if local else socket.gethostname(), bound.port)])


def _spread(queues_of_brokers: Sequence[Sequence[v2.MessageQueue]]) -> list[v2.MessageQueue]:
    """The queues of all brokers, those of each spread evenly over the list.

    Some clients (Python's) repeat a failed send with the next queue of the list, so that is another broker's, where
    one of the brokers does not take messages. The order is the same whichever broker is asked, because clients choose
    the queue of a message group by its place in the list.
    """
    return [
        queue
        for _, queue in sorted(
            (
                ((2 * place + 1) / len(queues), queue)
                for queues in queues_of_brokers
                for place, queue in enumerate(queues)
            ),
            key=lambda found: (found[0], found[1].broker.name),
        )
    ]


def _read_only(topic: TopicConfig) -> TopicConfig:
    """The topic without write permission, as on a broker whose write permission was wiped at the name server."""
    return replace(topic, permission=topic.permission & ~Permission.WRITE)


def _of_type(other: BrokerQueues, own: TopicConfig | None) -> TopicConfig:
    """Another broker's queues; a topic has one message type in all of them, if the name server does not know it."""
    return other.topic if other.topic.attributes or own is None else replace(other.topic, attributes=own.attributes)


def queue_permissions(topic: TopicConfig) -> list[tuple[int, v2.Permission.ValueType]]:
    """The permissions of each queue. If a topic has fewer write queues than read queues, the others are read-only."""
    permissions = []
    for queue_id in range(max(topic.read_queue_count, topic.write_queue_count)):
        readable = topic.readable and queue_id < topic.read_queue_count
        writable = topic.writable and queue_id < topic.write_queue_count
        permissions.append((queue_id, (_NONE, _READ, _WRITE, _READ_WRITE)[readable + 2 * writable]))
    return permissions


def _endpoints_of(addresses: list[Address]) -> v2.Endpoints:
    scheme = address_scheme(addresses[0].host)
    if scheme == _DOMAIN_NAME or any(address_scheme(address.host) != scheme for address in addresses):
        addresses = addresses[:1]  # clients accept several addresses of one kind, or a single host name
    wire = [v2.Address(host=address.host, port=address.port) for address in addresses]
    return v2.Endpoints(scheme=scheme, addresses=wire)
