"""Consumer groups: create, change, delete, list, describe, and move to other offsets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.lite import LITE_QUEUE_ID
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import in_turns
from aerobee_broker.messages.message_mapping import timestamp_ms
from aerobee_broker.messages.validation import check_lite_topic
from aerobee_broker.processors.administration.accumulation import Accumulation
from aerobee_broker.processors.administration.clients import connection_to_wire
from aerobee_broker.processors.administration.wire import LISTING_SIZE_MAX, OK, group_to_wire, page_of
from aerobee_broker.tables.consumer_groups import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    check_group_name,
    is_system_group,
)
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType, light_topic_name, split_light_topic_name
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore
from aerobee_store.clock import Clock

_MILLISECONDS_MAX: Final = 1 << 53
_Queue = tuple[str, int]
"""Name of a topic or light queue, and queue id."""


class GroupAdministration:
    """One method per RPC. Changes are on disk before the answer."""

    def __init__(
        self,
        *,
        store: MessageStore,
        tables: Tables,
        clients: ClientRegistry,
        deliveries: Deliveries,
        timer: Timer,
        accumulation: Accumulation,
        clock: Clock,
    ) -> None:
        self._store = store
        self._tables = tables
        self._clients = clients
        self._deliveries = deliveries
        self._timer = timer
        self._accumulation = accumulation
        self._clock = clock

    async def create_group(self, request: admin_v1.CreateGroupRequest, _: Client) -> admin_v1.CreateGroupResponse:
        with self._tables.group_creations.measure(is_system=is_system_group(request.group.name)):
            wanted = _group_from_wire(request.group)
            existing = self._tables.groups.latest(wanted.name)
            if existing is None:
                self._tables.groups.create(wanted)
            elif dataclasses.replace(wanted, attributes=existing.attributes, extra=existing.extra) != existing:
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST,
                    f"group {wanted.name!r} exists with another definition; "
                    f"change it with: aerobee group update {wanted.name}",
                )
            await self._tables.save_groups()
        return admin_v1.CreateGroupResponse(status=OK, group=group_to_wire(existing or wanted))

    async def update_group(self, request: admin_v1.UpdateGroupRequest, _: Client) -> admin_v1.UpdateGroupResponse:
        group = self._tables.groups.latest(request.name) or self._tables.groups.require(request.name)
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
        self._deliveries.long_polling.end_waits(group=group.name)  # messages that were held back may be deliverable now
        return admin_v1.UpdateGroupResponse(status=OK, group=group_to_wire(group))

    async def delete_group(self, request: admin_v1.DeleteGroupRequest, _: Client) -> admin_v1.DeleteGroupResponse:
        self._tables.groups.require(request.name)
        if connected := len(self._clients.of_group(request.name)):
            raise InvalidRequestError(
                v2.Code.FORBIDDEN, f"group {request.name!r} has {connected} connected clients; stop them first"
            )
        self._tables.groups.delete(request.name)
        await self._tables.save_groups()
        await self._deliveries.delete_group(request.name)
        return admin_v1.DeleteGroupResponse(status=OK)

    async def list_groups(self, request: admin_v1.ListGroupsRequest, _: Client) -> admin_v1.ListGroupsResponse:
        names = sorted(
            group.name for group in self._tables.groups if request.include_system or not is_system_group(group.name)
        )
        page, token = page_of(names, request.page_size, request.page_token)
        shown = [group_to_wire(self._tables.groups.require(name)) for name in page]
        return admin_v1.ListGroupsResponse(status=OK, groups=shown, next_page_token=token)

    async def describe_group(self, request: admin_v1.DescribeGroupRequest, _: Client) -> admin_v1.DescribeGroupResponse:
        group = self._tables.groups.require(request.name)
        queues, topics = await self._accumulation.of_group(group.name, self._timer.stats.pending)
        response = admin_v1.DescribeGroupResponse(status=OK, group=group_to_wire(group), queues=queues, topics=topics)
        size = 0
        async for client in in_turns(self._clients.of_group(group.name)):
            connection = connection_to_wire(client, self._clients, self._clock)
            size += connection.ByteSize()
            if size > LISTING_SIZE_MAX:
                break
            response.clients.append(connection)
        return response

    # --- Other offsets ----------------------------------------------------------------------------------------

    async def reset_offsets(self, request: admin_v1.ResetOffsetsRequest, _: Client) -> admin_v1.ResetOffsetsResponse:
        topic = self._tables.topics.require(request.topic)
        group = self._tables.groups.require(request.group)
        before = like = await self._positions(group.name, topic.name)
        if request.WhichOneof("position") == "like_group":
            like = await self._positions(self._tables.groups.require(request.like_group).name, topic.name)
        if topic.message_type is TopicMessageType.LITE:
            queues = self._lite_queues(request, topic.name, like)
        else:
            queues = self._queues(request, topic)
        if request.WhichOneof("position") == "like_group":
            queues = [queue for queue in queues if queue in like]
            if not queues:
                raise InvalidRequestError(
                    v2.Code.NOT_FOUND,
                    f"group {request.like_group!r} has no position in these queues of {topic.name!r}; "
                    f"`aerobee group lag {request.like_group}` shows where it has some",
                )
        target = self._target(request, before, like)
        after = {queue: target(queue) for queue in queues}
        if not request.dry_run:
            by_name: dict[str, dict[int, int]] = {}
            for (name, queue_id), offset in after.items():
                by_name.setdefault(name, {})[queue_id] = offset
            # One topic, or thousands of lite topics: together they share the syncs of the log.
            await asyncio.gather(*(self._deliveries.reset(name, group.name, each) for name, each in by_name.items()))
        moved = [
            admin_v1.ResetOffsetsResponse.Queue(
                queue_id=queue[1],
                before=before.get(queue),
                after=offset,
                lite_topic=(split_light_topic_name(queue[0]) or ("", None))[1],
            )
            for queue, offset in after.items()
        ]
        return admin_v1.ResetOffsetsResponse(status=OK, queues=moved)

    async def _positions(self, group: str, topic: str) -> dict[_Queue, int]:
        """The offsets of a group in the queues of a topic, or of its lite topics."""
        return {
            (status.topic, status.queue_id): status.commit_offset
            async for status in in_turns(self._deliveries.statuses(group))
            if status.topic == topic or (split_light_topic_name(status.topic) or ("",))[0] == topic
        }

    def _queues(self, request: admin_v1.ResetOffsetsRequest, topic: TopicConfig) -> list[_Queue]:
        """The queues that the request names, or all of the topic, sorted."""
        if request.lite_topic:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"topic {topic.name!r} is of type {topic.message_type} and has no lite topics; leave lite_topic out",
            )
        queue_ids = set(range(topic.read_queue_count)) | set(self._store.queue_ids(topic.name))
        if unknown := sorted(set(request.queue_ids) - queue_ids):
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"topic {topic.name!r} has no queue {unknown[0]}; it has {min(queue_ids)} to {max(queue_ids)}",
            )
        return [(topic.name, queue_id) for queue_id in sorted(set(request.queue_ids) or queue_ids)]

    def _lite_queues(
        self, request: admin_v1.ResetOffsetsRequest, parent: str, before: Mapping[_Queue, int]
    ) -> list[_Queue]:
        """The lite topic that the request names, or all in which there is a position, sorted."""
        if request.queue_ids:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"topic {parent!r} has lite topics with one queue each; name a lite topic instead of queue_ids",
            )
        if request.lite_topic:
            check_lite_topic(request.lite_topic)
            return [(light_topic_name(parent, request.lite_topic), LITE_QUEUE_ID)]
        return sorted(queue for queue in before if queue[0] != parent)

    async def reset_group_offset(
        self, request: v2.ResetGroupOffsetRequest, client: Client
    ) -> v2.ResetGroupOffsetResponse:
        """Admin.ResetGroupOffset: to a time, in all queues."""
        if not request.HasField("reset_timestamp"):
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "reset_timestamp is missing; give the time to reset to")
        await self.reset_offsets(
            admin_v1.ResetOffsetsRequest(
                group=group_name(request.group, client),
                topic=topic_name(request.topic, client),
                timestamp=request.reset_timestamp,
            ),
            client,
        )
        return v2.ResetGroupOffsetResponse(status=OK)

    def _target(
        self, request: admin_v1.ResetOffsetsRequest, before: Mapping[_Queue, int], like: Mapping[_Queue, int]
    ) -> Callable[[_Queue], int]:
        """The new offset of each queue; `like`: the positions of the other group that the request names."""
        store = self._store

        def within(queue: _Queue, offset: int) -> int:
            low, high = store.queue_range(*queue)
            return min(max(offset, low), high)

        match request.WhichOneof("position"):
            case "timestamp":
                time_ms = timestamp_ms(request.timestamp)
                return lambda queue: self._offset_at(queue, time_ms)
            case "offset":
                if request.offset < 0:
                    raise InvalidRequestError(
                        v2.Code.ILLEGAL_OFFSET, f"offset {request.offset} is negative; give 0 or more"
                    )
                return lambda queue: within(queue, request.offset)
            case "earliest":
                return lambda queue: within(queue, 0)
            case "latest":
                return lambda queue: store.queue_range(*queue)[1]
            case "skip":
                if request.skip < 1:
                    raise InvalidRequestError(v2.Code.BAD_REQUEST, f"skip is {request.skip}; give 1 or more")
                return lambda queue: within(queue, within(queue, before.get(queue, 0)) + request.skip)
            case "like_group":
                return lambda queue: within(queue, like[queue])
            case _:
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST,
                    "the request has no position; give timestamp, offset, earliest, latest, skip or like_group",
                )

    def _offset_at(self, queue: _Queue, time_ms: int) -> int:
        """The first message stored at or after the time, or the end of the queue."""
        low, high = self._store.queue_range(*queue)
        if high == low:
            return high
        newest = self._store.store_timestamp_at(*queue, high - 1)
        if newest is not None and newest < time_ms:
            return high
        return min(max(self._store.offset_by_time(*queue, time_ms), low), high)


def _retries(max_attempts: int) -> int:
    if max_attempts < 1:
        raise InvalidRequestError(v2.Code.BAD_REQUEST, f"max_attempts is {max_attempts}; give 1 or more")
    return max_attempts - 1


def _policy_from_wire(wire: v2.RetryPolicy) -> CustomizedRetry | ExponentialRetry:
    match wire.WhichOneof("strategy"):
        case "customized_backoff":
            return CustomizedRetry(tuple(_milliseconds(delay) for delay in wire.customized_backoff.next))
        case "exponential_backoff":
            backoff = wire.exponential_backoff
            if not 1 <= backoff.multiplier <= 1000 or backoff.multiplier != int(backoff.multiplier):
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST, f"multiplier {backoff.multiplier:g} is not a whole number from 1 to 1000"
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


def _group_from_wire(wire: admin_v1.Group) -> GroupConfig:
    check_group_name(wire.name)
    group = GroupConfig(name=wire.name, consume_orderly=wire.fifo)
    if wire.max_attempts:
        group = dataclasses.replace(group, retry_max_times=_retries(wire.max_attempts))
    if wire.HasField("retry_policy"):
        group = dataclasses.replace(group, retry_policy=_policy_from_wire(wire.retry_policy))
    if wire.HasField("consume_enabled"):
        group = dataclasses.replace(group, consume_enabled=wire.consume_enabled)
    return group


def _milliseconds(duration: v2.Duration) -> int:
    milliseconds = duration.seconds * 1000 + duration.nanos // 1_000_000
    if not 0 <= milliseconds <= _MILLISECONDS_MAX:
        raise InvalidRequestError(
            v2.Code.BAD_REQUEST, f"the retry delay of {duration.seconds} s is negative; use 0 or more"
        )
    return milliseconds
