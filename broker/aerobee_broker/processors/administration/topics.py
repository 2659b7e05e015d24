"""Topics: create, change, delete, list, describe; and the route of older clients."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Final

from aerobee_broker.clients.naming import subscribed_topics, topic_name
from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.config import Settings
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import in_turns
from aerobee_broker.messages.admission import ACCEPTED_TYPES
from aerobee_broker.processors.administration.wire import (
    OK,
    TYPE_ATTRIBUTE,
    is_own_topic,
    page_of,
    timestamp,
    topic_to_wire,
)
from aerobee_broker.processors.route import RouteProcessor
from aerobee_broker.tables.attributes import AttributeChanges
from aerobee_broker.tables.consumer_groups import is_system_group
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import Permission, TopicConfig, TopicMessageType, check_topic_name, is_system_topic
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore
from aerobee_store.records.topic_names import LIGHT_PREFIX

_TYPE_OF_SINGLE: Final = {
    types[0]: kind for kind, types in ACCEPTED_TYPES.items() if len(types) == 1 and kind != TopicMessageType.UNSPECIFIED
}
_MIXED: Final = frozenset(ACCEPTED_TYPES[TopicMessageType.MIXED])
_PERMISSION_BITS: Final = {
    v2.Permission.NONE: Permission(0),
    v2.Permission.READ: Permission.READ,
    v2.Permission.WRITE: Permission.WRITE,
    v2.Permission.READ_WRITE: Permission.READ_WRITE,
}


class TopicAdministration:
    """One method per RPC. Changes are on disk before the answer."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        clients: ClientRegistry,
        deliveries: Deliveries,
        route: RouteProcessor,
    ) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables
        self._clients = clients
        self._deliveries = deliveries
        self._route = route

    async def create_topic(self, request: admin_v1.CreateTopicRequest, _: Client) -> admin_v1.CreateTopicResponse:
        with self._tables.topic_creations.measure(is_system=is_system_topic(request.topic.name)):
            wanted = self._topic_from_wire(request.topic)
            existing = self._tables.topics.latest(wanted.name)
            if existing is None:
                self._tables.topics.create(wanted)
            elif not _same_topic(existing, wanted):
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST,
                    f"topic {wanted.name!r} exists with another definition; "
                    f"change it with: aerobee topic update {wanted.name}",
                )
            await self._tables.save_topics()
        return admin_v1.CreateTopicResponse(status=OK, topic=topic_to_wire(existing or wanted))

    async def update_topic(self, request: admin_v1.UpdateTopicRequest, _: Client) -> admin_v1.UpdateTopicResponse:
        topic = self._tables.topics.latest(request.name) or self._tables.topics.require(request.name)
        read = request.read_queue_count if request.HasField("read_queue_count") else topic.read_queue_count
        write = request.write_queue_count if request.HasField("write_queue_count") else topic.write_queue_count
        permission = topic.permission
        if request.HasField("permission"):
            permission = (permission & ~Permission.READ_WRITE) | _permission(request.permission)
        kind = _type_named(request.accept_message_types, request.set_attributes)
        wanted = {**request.set_attributes, **({TYPE_ATTRIBUTE: kind} if kind else {})}
        changes = [(f"-{name}", "") for name in request.delete_attributes]
        changes += [(f"+{name}", value) for name, value in wanted.items()]
        attributes = AttributeChanges.of(changes).applied(topic.attributes)
        topic = dataclasses.replace(
            topic, read_queue_count=read, write_queue_count=write, permission=permission, attributes=attributes
        )
        self._tables.topics.update(topic)
        await self._tables.save_topics()
        return admin_v1.UpdateTopicResponse(status=OK, topic=topic_to_wire(topic))

    async def delete_topic(self, request: admin_v1.DeleteTopicRequest, _: Client) -> admin_v1.DeleteTopicResponse:
        if not self.has_remains(request.name):
            self._tables.topics.delete(request.name)
            await self._tables.save_topics()
        await self._deliveries.delete_topic(request.name)
        return admin_v1.DeleteTopicResponse(status=OK)

    def has_remains(self, name: str) -> bool:
        """Whether a deletion of this topic has ended, by a crash or an error, before that of its messages: the next
        topic of the name would have them. It can be repeated."""
        if self._tables.topics.latest(name) is not None or not self._store.queue_ids(name):
            return False
        return not is_own_topic(name) and not name.startswith(LIGHT_PREFIX)

    async def purge_topic(self, request: admin_v1.PurgeTopicRequest, _: Client) -> admin_v1.PurgeTopicResponse:
        topic = self._tables.topics.require(request.name)
        if topic.message_type is TopicMessageType.LITE or is_own_topic(topic.name):
            raise InvalidRequestError(
                v2.Code.FORBIDDEN,
                f"topic {topic.name!r} is one of the broker, of a group, or has lite topics, and cannot be purged; "
                "delete dead letters with: aerobee dlq delete",
            )
        count = 0
        for queue_id in self._store.queue_ids(topic.name):
            low, high = self._store.queue_range(topic.name, queue_id)
            count += max(high - low, 0)
        groups = sorted(name for name in self._tables.offsets.groups_of(topic.name) if not is_system_group(name))
        if not request.dry_run:
            await self._deliveries.purge_topic(topic.name)
        return admin_v1.PurgeTopicResponse(status=OK, message_count=count, groups=groups)

    async def list_topics(self, request: admin_v1.ListTopicsRequest, _: Client) -> admin_v1.ListTopicsResponse:
        names = sorted(
            topic.name for topic in self._tables.topics if request.include_system or not is_own_topic(topic.name)
        )
        page, token = page_of(names, request.page_size, request.page_token)
        shown = [topic_to_wire(self._tables.topics.require(name)) for name in page]
        return admin_v1.ListTopicsResponse(status=OK, topics=shown, next_page_token=token)

    async def describe_topic(self, request: admin_v1.DescribeTopicRequest, _: Client) -> admin_v1.DescribeTopicResponse:
        topic = self._tables.topics.require(request.name)
        queue_ids = {*range(topic.read_queue_count), *self._store.queue_ids(topic.name)}
        queues = []
        for queue_id in sorted(queue_ids):
            low, high = self._store.queue_range(topic.name, queue_id)
            queue = admin_v1.QueueStatus(queue_id=queue_id, min_offset=low, max_offset=high)
            stored = self._store.store_timestamp_at(topic.name, queue_id, high - 1) if high > low else None
            if stored is not None:
                queue.last_store_timestamp.CopyFrom(timestamp(stored))
            queues.append(queue)
        groups = set(self._tables.offsets.groups_of(topic.name))
        async for client in in_turns(self._clients.all()):
            if client.group is not None and topic.name in subscribed_topics(client):
                groups.add(client.group)
        shown = sorted(group for group in groups if not is_system_group(group))
        return admin_v1.DescribeTopicResponse(status=OK, topic=topic_to_wire(topic), queues=queues, groups=shown)

    async def describe_topic_status(
        self, request: v2.DescribeTopicStatusRequest, client: Client
    ) -> v2.DescribeTopicStatusResponse:
        """A topic with several types reports the first one. Description and age are not stored."""
        topic = self._tables.topics.require(topic_name(request.topic, client))
        return v2.DescribeTopicStatusResponse(
            status=OK,
            topic_message_type=ACCEPTED_TYPES[topic.message_type][0],
            tags={name: value for name, value in topic.attributes.items() if name != TYPE_ATTRIBUTE},
        )

    async def topic_route(self, request: v2.GetTopicRouteRequest, client: Client) -> v2.GetTopicRouteResponse:
        """The route in the form of RocketMQ's name server, except that the numeric keys of brokerAddrs are quoted, as
        JSON requires.

        The broker has one address, so the network type and similar fields have no effect.
        """
        topic = self._tables.topics.require(topic_name(request.topic, client))
        address = self._route.endpoints(v2.Endpoints(), client).addresses[0]
        route = {
            "brokerDatas": [
                {
                    "brokerAddrs": {"0": f"{address.host}:{address.port}"},
                    "brokerName": self._settings.current.name,
                    "cluster": self._settings.current.cluster,
                    "enableActingMaster": False,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": self._settings.current.name,
                    "perm": int(topic.permission),
                    "readQueueNums": topic.read_queue_count,
                    "topicSysFlag": topic.sys_flag,
                    "writeQueueNums": topic.write_queue_count,
                }
            ],
        }
        return v2.GetTopicRouteResponse(status=OK, topic_route_data=json.dumps(route))

    def _topic_from_wire(self, wire: admin_v1.Topic) -> TopicConfig:
        check_topic_name(wire.name)
        read = wire.read_queue_count or self._settings.current.topics.queue_count
        kind = _type_named(wire.accept_message_types, wire.attributes) or TopicMessageType.NORMAL.value
        return TopicConfig(
            name=wire.name,
            read_queue_count=read,
            write_queue_count=wire.write_queue_count or read,
            permission=_permission(wire.permission) if wire.permission else Permission.READ_WRITE,
            attributes={**wire.attributes, TYPE_ATTRIBUTE: kind},
        )


def _same_topic(existing: TopicConfig, wanted: TopicConfig) -> bool:
    if existing.message_type != wanted.message_type:
        return False
    normalized = {**existing.attributes, TYPE_ATTRIBUTE: existing.message_type.value}
    return dataclasses.replace(
        wanted,
        filter_type=existing.filter_type,
        sys_flag=existing.sys_flag,
        order=existing.order,
        extra=existing.extra,
    ) == dataclasses.replace(existing, attributes=normalized)


def _type_named(types: Iterable[v2.MessageType.ValueType], attributes: Mapping[str, str]) -> str | None:
    """The value for the attribute of the type: by the accepted types, or the attribute itself; None if neither."""
    named = attributes.get(TYPE_ATTRIBUTE)
    if not types:
        return named
    kind = _type_of(types).value
    if named not in (None, kind):
        raise InvalidRequestError(
            v2.Code.BAD_REQUEST,
            f"accept_message_types say {kind}, and the attribute {TYPE_ATTRIBUTE} says {named!r:.80}; give one of them",
        )
    return kind


def _type_of(types: Iterable[v2.MessageType.ValueType]) -> TopicMessageType:
    wanted = set(types)
    if len(wanted) == 1 and (single := _TYPE_OF_SINGLE.get(next(iter(wanted)))) is not None:
        return single
    if len(wanted) > 1 and wanted <= _MIXED:
        return TopicMessageType.MIXED
    raise InvalidRequestError(
        v2.Code.BAD_REQUEST,
        "accept_message_types: give one type, or several of NORMAL, FIFO, DELAY and TRANSACTION",
    )


def _permission(wire: v2.Permission.ValueType) -> Permission:
    bits = _PERMISSION_BITS.get(wire)
    if bits is None:
        raise InvalidRequestError(v2.Code.BAD_REQUEST, f"permission {wire} is not one of NONE, READ, WRITE, READ_WRITE")
    return bits
