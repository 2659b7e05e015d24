"""The lag of groups: messages in flight, ready or retrying, and the age of the oldest one.

The numbers come from the delivery state and are exact. RocketMQ compares the end of a queue with the committed offset,
which yields -1 for consumers of this protocol.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import BrokerConfig
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.state.subscriptions import QueueStatus
from aerobee_broker.limits.loop_share import in_turns
from aerobee_broker.processors.administration.wire import OK, resource, timestamp
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import split_light_topic_name
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore
from aerobee_store.clock import Clock


class _Sum(Struct):
    """A sum over queues. Times are Unix milliseconds."""

    in_flight: int = 0
    ready: int = 0
    retrying: int = 0
    oldest_ms: int | None = None
    oldest_ready_ms: int | None = None
    consumed_ms: int = 0  # when the last message before the commit offset was stored

    def add(self, status: QueueStatus, times: _Times) -> None:
        self.in_flight += status.in_flight
        self.ready += status.ready
        self.retrying += status.retrying
        self.oldest_ms = _earlier(self.oldest_ms, times.oldest_ms)
        self.oldest_ready_ms = _earlier(self.oldest_ready_ms, times.oldest_ready_ms)
        self.consumed_ms = max(self.consumed_ms, times.consumed_ms)


class _Times(Struct, frozen=True):
    """Times of one queue."""

    oldest_ms: int | None
    oldest_ready_ms: int | None
    consumed_ms: int


class Accumulation:
    """Answers for one group at a time; lets other tasks run between queues."""

    def __init__(
        self, *, config: BrokerConfig, store: MessageStore, tables: Tables, deliveries: Deliveries, clock: Clock
    ) -> None:
        self._config = config
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        self._clock = clock

    async def of_group(
        self, group: str, delayed: dict[str, int]
    ) -> tuple[list[admin_v1.GroupQueueStatus], list[admin_v1.GroupTopicStatus]]:
        """By queue and by topic, both in order. `delayed`: messages not due yet, by topic."""
        queues = []
        sums: dict[str, _Sum] = {}
        async for status in in_turns(self._deliveries.statuses(group)):
            times = self._times(status)
            parent, _ = split_light_topic_name(status.topic) or (status.topic, None)
            sums.setdefault(parent, _Sum()).add(status, times)
            queue = admin_v1.GroupQueueStatus(
                topic=status.topic,
                queue_id=status.queue_id,
                committed_offset=status.commit_offset,
                max_offset=status.max_offset,
                lag=status.lag,
                inflight=status.in_flight,
                ready=status.ready,
                retrying=status.retrying,
            )
            if times.oldest_ms is not None:
                queue.oldest_timestamp.CopyFrom(timestamp(times.oldest_ms))
            queues.append(queue)
        topics = []
        for topic, total in sorted(sums.items()):
            wire = admin_v1.GroupTopicStatus(
                topic=topic,
                lag=total.in_flight + total.ready,
                inflight=total.in_flight,
                ready=total.ready,
                retrying=total.retrying,
                delayed=delayed.get(topic, 0),
            )
            if total.oldest_ms is not None:
                wire.oldest_timestamp.CopyFrom(timestamp(total.oldest_ms))
            topics.append(wire)
        queues.sort(key=lambda queue: (queue.topic, queue.queue_id))
        return queues, topics

    async def describe(
        self, request: v2.DescribeGroupAccumulationRequest, client: Client
    ) -> v2.DescribeGroupAccumulationResponse:
        """Admin.DescribeGroupAccumulation. Lite topics count for their parent; a named one is listed alone."""
        group = self._tables.groups.require(group_name(request.group, client)).name
        wanted = self._wanted(request.topics, client)
        named = request.lite_topic if request.HasField("lite_topic") else None
        total = _Sum()
        by_topic: dict[str, _Sum] = {}
        by_lite_topic: dict[str, _Sum] = {}
        async for status in in_turns(self._deliveries.statuses(group)):
            topic, lite_topic = split_light_topic_name(status.topic) or (status.topic, None)
            if (wanted is None or topic in wanted) and (named is None or lite_topic == named):
                times = self._times(status)
                total.add(status, times)
                by_topic.setdefault(topic, _Sum()).add(status, times)
                if named is not None:
                    by_lite_topic.setdefault(named, _Sum()).add(status, times)
        now_ms = self._clock.now_ms()  # one for all, so that sums and parts agree
        return v2.DescribeGroupAccumulationResponse(
            status=OK,
            accumulation=_sum_to_wire(total, now_ms),
            topic_accumulation={topic: _sum_to_wire(found, now_ms) for topic, found in by_topic.items()},
            lite_topic_accumulation={name: _sum_to_wire(found, now_ms) for name, found in by_lite_topic.items()},
        )

    async def time_span(self, request: v2.QueryTimeSpanRequest, client: Client) -> v2.QueryTimeSpanResponse:
        """Admin.QueryTimeSpan: of the named topics, or all in which the group has a position."""
        group = self._tables.groups.require(group_name(request.group, client)).name
        wanted = self._wanted(request.topics, client)
        positions = {
            (status.topic, status.queue_id): status async for status in in_turns(self._deliveries.statuses(group))
        }
        places = {
            *(place for place in positions if wanted is None or place[0] in wanted),
            *((topic, queue_id) for topic in wanted or () for queue_id in self._store.queue_ids(topic)),
        }
        now_ms = self._clock.now_ms()
        broker = v2.Broker(name=self._config.name)
        spans = []
        async for topic, queue_id in in_turns(sorted(places)):
            low, high = self._store.queue_range(topic, queue_id)
            span = v2.QueryTimeSpanResponse.QueueTimeSpan(
                message_queue=v2.MessageQueue(topic=resource(topic), id=queue_id, broker=broker)
            )
            if high > low:
                span.min_timestamp = self._store.store_timestamp_at(topic, queue_id, low) or 0
                span.max_timestamp = self._store.store_timestamp_at(topic, queue_id, high - 1) or 0
            status = positions.get((topic, queue_id))
            if status is not None and status.lag:
                next_ms = self._times(status).oldest_ms
                if next_ms is not None:
                    span.consume_timestamp = next_ms
                    span.delay_time_ms = max(now_ms - next_ms, 0)
            spans.append(span)
        return v2.QueryTimeSpanResponse(status=OK, queue_time_span_list=spans)

    def _wanted(self, topics: Iterable[v2.Resource], client: Client) -> set[str] | None:
        """The topics that the request names, all of which must exist; None if it names none."""
        return {self._tables.topics.require(topic_name(topic, client)).name for topic in topics} or None

    def _times(self, status: QueueStatus) -> _Times:
        topic, queue_id = status.topic, status.queue_id
        low = self._store.queue_range(topic, queue_id)[0]
        oldest = oldest_ready = None
        if status.lag:
            oldest = self._store.store_timestamp_at(topic, queue_id, max(status.commit_offset, low))
        if status.ready_offset is not None:
            oldest_ready = self._store.store_timestamp_at(topic, queue_id, max(status.ready_offset, low))
        consumed = self._store.store_timestamp_at(topic, queue_id, status.commit_offset - 1)
        return _Times(oldest, oldest_ready, consumed or 0)


def _sum_to_wire(found: _Sum, now_ms: int) -> v2.DescribeGroupAccumulationResponse.GroupAccumulation:
    wire = v2.DescribeGroupAccumulationResponse.GroupAccumulation(
        inflight_messages=found.in_flight,
        ready_messages=found.ready,
        accumulation=found.in_flight + found.ready,
        last_consume_timestamp=found.consumed_ms,
    )
    waits = 0 if found.oldest_ready_ms is None else max(now_ms - found.oldest_ready_ms, 0)
    wire.deliver_delay_time.FromMilliseconds(waits)
    return wire


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
