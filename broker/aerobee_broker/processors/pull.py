"""PullMessage and the offsets of pull clients, which name a queue and an offset and track their own position.

Nothing is delivered in the sense of `delivery/`: there are no receipt handles, attempts or invisible times, and
filtered messages stay unchanged. Pulling and receiving share only the committed offset: in a receiving group it follows
from the acknowledgements, and UpdateOffset resets all deliveries of the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.long_polling import QueueWait, poll_seconds
from aerobee_broker.delivery.receive.queue_pull import QueuePull
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.filters.message_filter import READ_BYTES_MAX, filter_in_turn
from aerobee_broker.limits.byte_budget import Share
from aerobee_broker.messages.message_mapping import timestamp_ms, to_wire_message
from aerobee_broker.processors.receive import duration_ms
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig
from aerobee_proto import v2
from aerobee_store import MessageStore, Record
from aerobee_store.clock import Clock

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
_NOTHING: Final = v2.Status(code=v2.Code.MESSAGE_NOT_FOUND, message="no message came within the polling time")


class PullProcessor:
    """Answers PullMessage, QueryOffset, GetOffset, UpdateOffset. Raises errors that `processors.statuses` maps to
    status codes."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        deliveries: Deliveries,
        counters: BrokerCounters,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._bytes_max = min(settings.current.delivery.receive_bytes_max, READ_BYTES_MAX)
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        self._counters = counters
        self._clock = clock

    async def pull(
        self,
        request: v2.PullMessageRequest,
        client: Client,
        remaining_seconds: float | None,
        memory: Share | None = None,
    ) -> AsyncGenerator[v2.PullMessageResponse, None]:
        """The stream of responses: a status, the messages, and the offset of the next pull.

        `memory` counts the bytes of the messages until they are sent.

        With ILLEGAL_OFFSET the offset is the nearest one in the queue; with MESSAGE_NOT_FOUND it is after the skipped
        messages, which may be before the end of the queue.
        """
        group = group_name(request.group, client)
        topic, queue_id = await self._queue(request.message_queue, client)
        (await self._tables.group_in_use(group, [topic])).check_may_consume()
        expression = request.filter_expression
        wanted = await filter_in_turn(
            expression.expression, self._deliveries.loop_share, is_sql=expression.type == v2.FilterType.SQL
        )
        low, high = self._store.queue_range(topic, queue_id)
        if not low <= request.offset <= high:
            text = f"offset {request.offset} is not within the queue's {low}..{high}; go on at next_offset"
            yield v2.PullMessageResponse(status=v2.Status(code=v2.Code.ILLEGAL_OFFSET, message=text))
            yield v2.PullMessageResponse(next_offset=min(max(request.offset, low), high))
            return
        count = self._settings.current.delivery.receive_count(request.batch_size)
        polling = duration_ms(request.long_polling_timeout) / 1000 if request.HasField("long_polling_timeout") else None
        seconds = self._poll_seconds(polling, remaining_seconds)
        held = QueueWait(self._deliveries.long_polling, topic, queue_id, group, client.client_id, seconds)
        look_until = asyncio.get_running_loop().time() + self._poll_seconds(None, remaining_seconds)
        place = held, request.offset, count, self._bytes_max
        reading = QueuePull(wanted, group, *place, look_until=look_until, follows_moves=True)
        found = await reading.read(self._store, self._tables.topics, self._deliveries.loop_share, memory)
        records = found.records
        if memory is not None:
            memory.take_now(sum(record.size for record in records))
        yield v2.PullMessageResponse(status=_OK if records else _NOTHING)
        sizes: list[int] = []
        try:
            for record in records:
                response = v2.PullMessageResponse(message=to_wire_message(record, request.message_queue.topic))
                sizes.append(response.ByteSize())
                yield response
                if memory is not None:
                    memory.give(record.size)
        finally:
            if sizes:
                self._count(topic, group, records[: len(sizes)], sizes)
        yield v2.PullMessageResponse(next_offset=reading.offset)

    def _count(self, topic: str, group: str, records: list[Record], sizes: list[int]) -> None:
        received = self._counters.delivered(topic, group, records, sizes)
        now_ms = self._clock.now_ms()
        for record in records:
            received.milliseconds.observe(max(0, now_ms - record.store_timestamp))

    def _poll_seconds(self, requested: float | None, remaining: float | None) -> float:
        config = self._settings.current.delivery
        return poll_seconds(requested, remaining, reserve=config.poll_reserve_seconds, longest=config.poll_seconds_max)

    async def query_offset(self, request: v2.QueryOffsetRequest, client: Client) -> v2.QueryOffsetResponse:
        topic, queue_id = await self._queue(request.message_queue, client)
        low, high = self._store.queue_range(topic, queue_id)
        match request.query_offset_policy:
            case v2.QueryOffsetPolicy.BEGINNING:
                offset = low
            case v2.QueryOffsetPolicy.END:
                offset = high
            case v2.QueryOffsetPolicy.TIMESTAMP:
                if not request.HasField("timestamp"):
                    raise InvalidRequestError(
                        v2.Code.BAD_REQUEST, "policy TIMESTAMP needs a timestamp; give the time to begin at"
                    )
                offset = self._store.offset_by_time(topic, queue_id, timestamp_ms(request.timestamp))
            case other:
                raise InvalidRequestError(
                    v2.Code.BAD_REQUEST, f"query_offset_policy {other} is unknown; choose BEGINNING, END or TIMESTAMP"
                )
        return v2.QueryOffsetResponse(status=_OK, offset=offset)

    async def get_offset(self, request: v2.GetOffsetRequest, client: Client) -> v2.GetOffsetResponse:
        group = group_name(request.group, client)
        topic, queue_id = await self._queue(request.message_queue, client)
        offset = self._deliveries.committed_offset(topic, group, queue_id)
        if offset is None:
            raise InvalidRequestError(
                v2.Code.OFFSET_NOT_FOUND,
                f"consumer group {group!r} has no offset in queue {queue_id} of topic {topic!r}; "
                "begin at an offset from QueryOffset and commit with UpdateOffset",
            )
        return v2.GetOffsetResponse(status=_OK, offset=offset)

    async def update_offset(self, request: v2.UpdateOffsetRequest, client: Client) -> v2.UpdateOffsetResponse:
        """Set the offset, forwards or back. Durable on return: in consumerOffset.json, or in the journal if the group
        receives."""
        group = group_name(request.group, client)
        topic, queue_id = await self._queue(request.message_queue, client)
        await self._tables.group_in_use(group, [topic])
        high = self._store.queue_range(topic, queue_id)[1]
        if not 0 <= request.offset <= high:
            raise InvalidRequestError(
                v2.Code.ILLEGAL_OFFSET,
                f"offset {request.offset} cannot be committed: the offsets of the queue are 0..{high}",
            )
        await self._deliveries.reset(topic, group, {queue_id: request.offset})
        return v2.UpdateOffsetResponse(status=_OK)

    async def _queue(self, queue: v2.MessageQueue, client: Client) -> tuple[str, int]:
        """The stored name of the topic, and a valid queue id."""
        name = topic_name(queue.topic, client)
        topic: TopicConfig = self._tables.topics.get(name) or await self._tables.topic_in_use(name)
        topic.check_read_queue(queue.id)
        return name, queue.id
