"""Clients of RocketMQ 4 among the connected ones, for operators who ask over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aerobee_broker.config import Address
from aerobee_broker.processors.administration.wire import timestamp
from aerobee_broker.remoting.clients import Member, RemotingClients, Subscription
from aerobee_proto import admin_v1, v2
from aerobee_store.clock import Clock
from aerobee_store.records.topic_names import RETRY_PREFIX

_SQL: Final = "SQL92"


class ConnectedRemoting:
    """What ListConnections and DisconnectClient see of them. Event loop only."""

    def __init__(self, clients: RemotingClients, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock

    def ids(self, client_id: str, group: str, topic: str) -> Iterator[str]:
        """The ids of the clients that match; empty: any. Each may come more than once."""
        for name in self._clients.consumer_groups():
            consumers = self._clients.consumers(name)
            if consumers is not None and group in ("", name) and (not topic or topic in consumers.subscriptions):
                yield from (each for each in consumers.members if client_id in ("", each))
        if not group and not topic:  # producers of this protocol name no topics
            for name in self._clients.producer_groups():
                yield from (
                    each.client_id for each in self._clients.producers(name) if client_id in ("", each.client_id)
                )

    def connection(self, client_id: str) -> admin_v1.Connection | None:
        """The client as a consumer of its first group, or as a producer; None: it is not connected."""
        for name in sorted(self._clients.consumer_groups()):
            consumers = self._clients.consumers(name)
            if consumers is not None and (found := consumers.members.get(client_id)) is not None:
                wire = self._to_wire(found)
                wire.group = name
                pulls = consumers.consume_type == "CONSUME_ACTIVELY"
                wire.client_type = v2.ClientType.PULL_CONSUMER if pulls else v2.ClientType.PUSH_CONSUMER
                wire.subscriptions.extend(
                    _entry(each)
                    for topic, each in consumers.subscriptions.items()
                    if not topic.startswith(RETRY_PREFIX)
                )
                return wire
        found = self._clients.find_producer(client_id)
        if found is None:
            return None
        wire = self._to_wire(found)
        wire.client_type = v2.ClientType.PRODUCER
        return wire

    def count(self, group: str) -> int:
        """The connected consumers of a group."""
        consumers = self._clients.consumers(group)
        return 0 if consumers is None else len(consumers.members)

    def disconnect(self, client_id: str) -> bool:
        """Close the connections of a client, which removes it; False: it is not connected."""
        connections = {found.connection for found in self._clients.members(client_id)}
        for connection in connections:
            connection.close()
            self._clients.connection_closed(connection)
        return bool(connections)

    def _to_wire(self, found: Member) -> admin_v1.Connection:
        wire = admin_v1.Connection(
            client_id=found.client_id,
            version=str(found.version),
            remote_address=str(Address(*found.connection.peer)),
        )
        if found.language in v2.Language.keys():  # noqa: SIM118 - an enum of protobuf is no mapping
            wire.language = v2.Language.Value(found.language)
        ago_ms = int((self._clock.monotonic() - found.seen_at) * 1000)
        wire.last_heartbeat_timestamp.CopyFrom(timestamp(self._clock.now_ms() - ago_ms))
        return wire


def _entry(subscription: Subscription) -> v2.SubscriptionEntry:
    kind = v2.FilterType.SQL if subscription.expression_type == _SQL else v2.FilterType.TAG
    return v2.SubscriptionEntry(
        topic=v2.Resource(name=subscription.topic),
        expression=v2.FilterExpression(type=kind, expression=subscription.expression),
    )
