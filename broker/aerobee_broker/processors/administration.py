"""aerobee.v1.AdminService: topics, groups and state for operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from aerobee_broker.clients import Client, ClientRegistry
from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.consumer_groups import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    check_group_name,
    is_system_group,
)
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.processors.route import ACCEPTED_TYPES
from aerobee_broker.processors.telemetry import retry_policy
from aerobee_broker.tables import Tables
from aerobee_broker.topics import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    Permission,
    TopicConfig,
    TopicMessageType,
    check_topic_name,
    is_system_topic,
)
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore
from aerobee_store.clock import Clock

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
_TYPE_OF_SINGLE: Final = {
    types[0]: kind for kind, types in ACCEPTED_TYPES.items() if len(types) == 1 and kind != TopicMessageType.UNSPECIFIED
}
_MIXED: Final = frozenset(ACCEPTED_TYPES[TopicMessageType.MIXED])
_TYPE_ATTRIBUTE: Final = "message.type"
_PERMISSION_BITS: Final = {
    v2.Permission.NONE: Permission(0),
    v2.Permission.READ: Permission.READ,
    v2.Permission.WRITE: Permission.WRITE,
    v2.Permission.READ_WRITE: Permission.READ_WRITE,
}
_LANGUAGES: Final = {"DOTNET": "DOT_NET", "GO": "GOLANG", "HTTP": "NODE_JS"}  # headers that differ from the enum
_MILLISECONDS_MAX: Final = 1 << 53


class Administration:
    """Answers aerobee.v1.AdminService; one method an RPC. What is changed is on disk before the answer."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        tables: Tables,
        clients: ClientRegistry,
        deliveries: Deliveries,
        clock: Clock,
        listening: Address,
    ) -> None:
        self._config = config
        self._store = store
        self._tables = tables
        self._clients = clients
        self._deliveries = deliveries
        self._clock = clock
        self._listening = listening
        self._started_ms = clock.now_ms()

    # --- topics -----------------------------------------------------------------------------------------------

    async def create_topic(self, request: admin_v1.CreateTopicRequest, _: Client) -> admin_v1.CreateTopicResponse:
        wanted = self._topic_from_wire(request.topic)
        existing = self._tables.topics.get(wanted.name)
        if existing is None:
            self._tables.topics.create(wanted)
        elif not _same_topic(existing, wanted):
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"topic {wanted.name!r} exists with another definition; "
                f"change it with: aerobee topic update {wanted.name}",
            )
        await self._tables.save_topics()
        return admin_v1.CreateTopicResponse(status=_OK, topic=topic_to_wire(existing or wanted))

    async def update_topic(self, request: admin_v1.UpdateTopicRequest, _: Client) -> admin_v1.UpdateTopicResponse:
        topic = self._tables.topics.require(request.name)
        read = request.read_queue_count if request.HasField("read_queue_count") else topic.read_queue_count
        write = request.write_queue_count if request.HasField("write_queue_count") else topic.write_queue_count
        permission = topic.permission
        if request.HasField("permission"):
            permission = (permission & ~Permission.READ_WRITE) | _permission(request.permission)
        attributes = dict(topic.attributes)
        for name in request.delete_attributes:
            if name in request.set_attributes:
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST, f"attribute {name!r} is both set and deleted; decide for one"
                )
            attributes.pop(name, None)
        attributes.update(request.set_attributes)
        if request.accept_message_types:
            attributes[_TYPE_ATTRIBUTE] = _type_of(request.accept_message_types).value
        topic = dataclasses.replace(
            topic, read_queue_count=read, write_queue_count=write, permission=permission, attributes=attributes
        )
        self._tables.topics.update(topic)
        await self._tables.save_topics()
        return admin_v1.UpdateTopicResponse(status=_OK, topic=topic_to_wire(topic))

    async def delete_topic(self, request: admin_v1.DeleteTopicRequest, _: Client) -> admin_v1.DeleteTopicResponse:
        self._tables.topics.delete(request.name)
        await self._tables.save_topics()
        await self._deliveries.delete_topic(request.name)
        self._store.delete_topic(request.name)
        return admin_v1.DeleteTopicResponse(status=_OK)

    async def list_topics(self, request: admin_v1.ListTopicsRequest, _: Client) -> admin_v1.ListTopicsResponse:
        topics = sorted(self._tables.topics, key=lambda topic: topic.name)
        shown = [topic_to_wire(topic) for topic in topics if request.include_system or not _is_own(topic.name)]
        return admin_v1.ListTopicsResponse(status=_OK, topics=shown)

    async def describe_topic(self, request: admin_v1.DescribeTopicRequest, _: Client) -> admin_v1.DescribeTopicResponse:
        topic = self._tables.topics.require(request.name)
        queue_ids = {*range(topic.read_queue_count), *self._store.queues().get(topic.name, ())}
        queues = []
        for queue_id in sorted(queue_ids):
            low, high = self._store.queue_range(topic.name, queue_id)
            queue = admin_v1.QueueStatus(queue_id=queue_id, min_offset=low, max_offset=high)
            stored = self._store.store_timestamp_at(topic.name, queue_id, high - 1) if high > low else None
            if stored is not None:
                queue.last_store_timestamp.FromMilliseconds(stored)
            queues.append(queue)
        groups = set(self._tables.offsets.groups_of(topic.name))
        for client in self._clients.all():
            if client.group is not None and client.settings is not None:
                names = (entry.topic.name for entry in client.settings.subscription.subscriptions)
                if topic.name in names:
                    groups.add(client.group)
        shown = sorted(group for group in groups if not is_system_group(group))
        return admin_v1.DescribeTopicResponse(status=_OK, topic=topic_to_wire(topic), queues=queues, groups=shown)

    def _topic_from_wire(self, wire: admin_v1.Topic) -> TopicConfig:
        check_topic_name(wire.name)
        read = wire.read_queue_count or self._config.topics.queue_count
        kind = _type_of(wire.accept_message_types) if wire.accept_message_types else TopicMessageType.NORMAL
        return TopicConfig(
            name=wire.name,
            read_queue_count=read,
            write_queue_count=wire.write_queue_count or read,
            permission=_permission(wire.permission) if wire.permission else Permission.READ_WRITE,
            attributes={**wire.attributes, _TYPE_ATTRIBUTE: kind.value},
        )

    # --- groups -----------------------------------------------------------------------------------------------

    async def create_group(self, request: admin_v1.CreateGroupRequest, _: Client) -> admin_v1.CreateGroupResponse:
        wire = request.group
        check_group_name(wire.name)
        wanted = GroupConfig(name=wire.name, consume_orderly=wire.fifo)
        if wire.max_attempts:
            wanted = dataclasses.replace(wanted, retry_max_times=_retries(wire.max_attempts))
        if wire.HasField("retry_policy"):
            wanted = dataclasses.replace(wanted, retry_policy=_policy_from_wire(wire.retry_policy))
        if wire.HasField("consume_enabled"):
            wanted = dataclasses.replace(wanted, consume_enabled=wire.consume_enabled)
        existing = self._tables.groups.get(wanted.name)
        if existing is None:
            self._tables.groups.create(wanted)
        elif dataclasses.replace(wanted, attributes=existing.attributes, extra=existing.extra) != existing:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"group {wanted.name!r} exists with another definition; "
                f"change it with: aerobee group update {wanted.name}",
            )
        await self._tables.save_groups()
        return admin_v1.CreateGroupResponse(status=_OK, group=group_to_wire(existing or wanted))

    async def update_group(self, request: admin_v1.UpdateGroupRequest, _: Client) -> admin_v1.UpdateGroupResponse:
        group = self._tables.groups.require(request.name)
        if request.HasField("fifo"):
            group = dataclasses.replace(group, consume_orderly=request.fifo)
        if request.HasField("max_attempts"):
            group = dataclasses.replace(group, retry_max_times=_retries(request.max_attempts))
        if request.HasField("retry_policy"):
            group = dataclasses.replace(group, retry_policy=_policy_from_wire(request.retry_policy))
        if request.HasField("consume_enabled"):
            group = dataclasses.replace(group, consume_enabled=request.consume_enabled)
        self._tables.groups.update(group)
        await self._tables.save_groups()
        self._deliveries.long_polling.end_line(group=group.name)  # what is held back may now be delivered
        return admin_v1.UpdateGroupResponse(status=_OK, group=group_to_wire(group))

    async def delete_group(self, request: admin_v1.DeleteGroupRequest, _: Client) -> admin_v1.DeleteGroupResponse:
        self._tables.groups.require(request.name)
        if connected := len(self._clients.of_group(request.name)):
            raise InvalidRequestError(
                v2.Code.FORBIDDEN, f"group {request.name!r} has {connected} connected clients; stop them first"
            )
        self._tables.groups.delete(request.name)
        await self._tables.save_groups()
        await self._deliveries.delete_group(request.name)
        return admin_v1.DeleteGroupResponse(status=_OK)

    async def list_groups(self, request: admin_v1.ListGroupsRequest, _: Client) -> admin_v1.ListGroupsResponse:
        groups = sorted(self._tables.groups, key=lambda group: group.name)
        shown = [group_to_wire(group) for group in groups if request.include_system or not is_system_group(group.name)]
        return admin_v1.ListGroupsResponse(status=_OK, groups=shown)

    async def describe_group(self, request: admin_v1.DescribeGroupRequest, _: Client) -> admin_v1.DescribeGroupResponse:
        group = self._tables.groups.require(request.name)
        queues = [
            admin_v1.GroupQueueStatus(
                topic=queue.topic,
                queue_id=queue.queue_id,
                committed_offset=queue.commit_offset,
                max_offset=queue.max_offset,
                lag=queue.lag,
                inflight=queue.in_flight,
                ready=queue.ready,
            )
            for queue in sorted(self._deliveries.status(group.name), key=lambda queue: (queue.topic, queue.queue_id))
        ]
        clients = [self._client_to_wire(client) for client in self._clients.of_group(group.name)]
        return admin_v1.DescribeGroupResponse(status=_OK, group=group_to_wire(group), queues=queues, clients=clients)

    def _client_to_wire(self, client: Client) -> admin_v1.GroupClient:
        wire = admin_v1.GroupClient(
            client_id=client.client_id,
            client_type=client.client_type,
            version=client.version,
            remote_address=str(Address(*client.peer)),
        )
        name = _LANGUAGES.get(client.language, client.language)
        if name in v2.Language.keys():  # noqa: SIM118 - an enum of protobuf is no mapping
            wire.language = v2.Language.Value(name)
        seen_ms = self._clock.now_ms() - int(self._clients.idle_seconds(client) * 1000)
        wire.last_heartbeat_timestamp.FromMilliseconds(seen_ms)
        if client.settings is not None:
            wire.subscriptions.extend(client.settings.subscription.subscriptions)
        return wire

    # --- state ------------------------------------------------------------------------------------------------

    async def get_broker_status(
        self, _request: admin_v1.GetBrokerStatusRequest, _: Client
    ) -> admin_v1.GetBrokerStatusResponse:
        status = self._store.status()
        running = status.state == "open"
        flush = admin_v1.FlushMode.FLUSH_MODE_SYNC
        if self._config.store.flush == "async":
            flush = admin_v1.FlushMode.FLUSH_MODE_ASYNC
        response = admin_v1.GetBrokerStatusResponse(
            status=_OK,
            name=self._config.name,
            cluster=self._config.cluster,
            version=broker_version(),
            listen_addresses=[str(self._listening)],
            store_state=admin_v1.StoreState(
                running=running,
                readable=status.state != "closed" and status.running_flags.readable,
                writable=running and status.running_flags.writable,
                reason=status.failure or status.refusal,
            ),
            flush_mode=flush,
            topic_count=sum(1 for topic in self._tables.topics if not _is_own(topic.name)),
            group_count=sum(1 for group in self._tables.groups if not is_system_group(group.name)),
            client_count=len(self._clients),
        )
        response.start_timestamp.FromMilliseconds(self._started_ms)
        response.uptime.FromMilliseconds(max(0, self._clock.now_ms() - self._started_ms))
        return response

    async def get_store_status(
        self, _request: admin_v1.GetStoreStatusRequest, _: Client
    ) -> admin_v1.GetStoreStatusResponse:
        status, stats = self._store.status(), self._store.stats
        return admin_v1.GetStoreStatusResponse(
            status=_OK,
            directory=str(status.directory.absolute()),
            min_physical_offset=status.min_offset,
            max_physical_offset=status.wrote,
            committed_physical_offset=status.committed,
            flushed_physical_offset=status.flushed,
            segment_count=status.segments,
            segment_bytes=status.segments * status.segment_size,
            disk_total_bytes=status.disk.total,
            disk_used_bytes=status.disk.used,
            fsync_count=stats.sync_seconds.count,
            last_fsync_seconds=stats.sync_seconds.last,
            recovery_seconds=stats.recovery_seconds,
        )


def broker_version() -> str:
    """Of the installed package."""
    try:
        return version("aerobee")
    except PackageNotFoundError:
        return "unknown"


def topic_to_wire(topic: TopicConfig) -> admin_v1.Topic:
    attributes = {name: value for name, value in topic.attributes.items() if name != _TYPE_ATTRIBUTE}
    return admin_v1.Topic(
        name=topic.name,
        read_queue_count=topic.read_queue_count,
        write_queue_count=topic.write_queue_count,
        permission=(v2.Permission.NONE, v2.Permission.READ, v2.Permission.WRITE, v2.Permission.READ_WRITE)[
            topic.readable + 2 * topic.writable
        ],
        accept_message_types=ACCEPTED_TYPES[topic.message_type],
        attributes=attributes,
        system=_is_own(topic.name),
    )


def group_to_wire(group: GroupConfig) -> admin_v1.Group:
    attempts = max(group.retry_max_times, 0) + 1
    return admin_v1.Group(
        name=group.name,
        fifo=group.consume_orderly,
        max_attempts=attempts,
        retry_policy=retry_policy(group.retry_policy, attempts),
        consume_enabled=group.consume_enabled,
        system=is_system_group(group.name),
    )


def _is_own(topic: str) -> bool:
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _same_topic(existing: TopicConfig, wanted: TopicConfig) -> bool:
    if existing.message_type != wanted.message_type:
        return False
    normalized = {**existing.attributes, _TYPE_ATTRIBUTE: existing.message_type.value}
    return dataclasses.replace(
        wanted,
        filter_type=existing.filter_type,
        sys_flag=existing.sys_flag,
        order=existing.order,
        extra=existing.extra,
    ) == dataclasses.replace(existing, attributes=normalized)


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
        raise InvalidRequestError(v2.Code.BAD_REQUEST, f"permission {wire} is none of NONE, READ, WRITE, READ_WRITE")
    return bits


def _retries(max_attempts: int) -> int:
    if max_attempts < 1:
        raise InvalidRequestError(
            v2.Code.BAD_REQUEST, f"max_attempts {max_attempts}: a message is delivered at least once"
        )
    return max_attempts - 1


def _policy_from_wire(wire: v2.RetryPolicy) -> CustomizedRetry | ExponentialRetry:
    match wire.WhichOneof("strategy"):
        case "customized_backoff":
            return CustomizedRetry(tuple(_milliseconds(delay) for delay in wire.customized_backoff.next))
        case "exponential_backoff":
            backoff = wire.exponential_backoff
            if not 1 <= backoff.multiplier <= 1000 or backoff.multiplier != int(backoff.multiplier):
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST, f"multiplier {backoff.multiplier:g} is no whole number from 1 to 1000"
                )
            return ExponentialRetry(
                initial_ms=_milliseconds(backoff.initial),
                max_ms=_milliseconds(backoff.max),
                multiplier=int(backoff.multiplier),
            )
        case _:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, "retry_policy has no strategy; give customized_backoff or exponential_backoff"
            )


def _milliseconds(duration: v2.Duration) -> int:
    milliseconds = duration.seconds * 1000 + duration.nanos // 1_000_000
    if not 0 <= milliseconds <= _MILLISECONDS_MAX:
        raise InvalidRequestError(
            v2.Code.BAD_REQUEST, f"a retry delay of {duration.seconds} s cannot be; use 0 or more"
        )
    return milliseconds
