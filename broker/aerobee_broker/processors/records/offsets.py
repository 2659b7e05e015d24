"""QueueOffsets: the first and last offsets of many queues."""

from __future__ import annotations

import asyncio
from typing import Final

from aerobee_broker.clients.naming import topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.errors import BrokerError, InvalidRequestError
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.messages.message_mapping import timestamp_ms
from aerobee_broker.processors.statuses import status_of
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import records_v1, v2
from aerobee_store import MessageStore

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
TOPIC_COUNT_MAX: Final = 1000
QUEUE_COUNT_MAX: Final = 10_000
_Offset = records_v1.QueueOffsetsResponse.QueueOffset
_Response = records_v1.QueueOffsetsResponse


class OffsetsProcessor:
    """Answers QueueOffsets. Raises errors that `processors.statuses` maps to status codes."""

    def __init__(self, settings: Settings, store: MessageStore, tables: Tables) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables

    async def process(self, request: records_v1.QueueOffsetsRequest, client: Client) -> records_v1.QueueOffsetsResponse:
        """The ends of all queues are read in one step of the event loop, at one moment; offsets by time are looked up
        later."""
        if len(request.topics) > TOPIC_COUNT_MAX:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"{len(request.topics)} topics in one request; the limit is {TOPIC_COUNT_MAX}; send several requests",
            )
        limits = self._settings.current.limits
        response = _Response(
            status=_OK,
            min_physical_offset=self._store.min_physical_offset,
            flushed_physical_offset=self._store.positions[2],
            ipv6_store_host=":" in self._store.config.store_host[0],
            message_limits=_Response.MessageLimits(
                body_size_max=self._store.config.body_size_max,
                user_property_count_max=limits.user_property_count_max,
                properties_size_max=limits.properties_size_max,
            ),
        )
        by_time: dict[tuple[str, int, int], list[_Offset]] = {}
        left = QUEUE_COUNT_MAX
        for asked in request.topics:
            answer = response.topics.add(topic=asked.topic)
            try:
                left -= self._add(asked, answer, client, left, by_time, flushed_only=not request.include_unflushed)
            except BrokerError as error:
                answer.ClearField("queues")
                answer.status.CopyFrom(status_of(error, "QueueOffsets"))
            else:
                answer.status.CopyFrom(_OK)
        turns = Turns()
        await asyncio.sleep(0)
        for (topic, queue_id, at), queues in by_time.items():
            await turns.next()
            found = self._store.offset_by_time(topic, queue_id, at)
            for queue in queues:
                queue.timestamp_queue_offset = min(queue.max_queue_offset, found)
        return response

    def _add(
        self,
        asked: records_v1.QueueOffsetsRequest.TopicQueues,
        answer: records_v1.QueueOffsetsResponse.TopicOffsets,
        client: Client,
        left: int,
        by_time: dict[tuple[str, int, int], list[_Offset]],
        *,
        flushed_only: bool,
    ) -> int:
        """Add the queues of one topic; return their number. Queues with a look-up by time go to `by_time`."""
        store = self._store
        topic = self._tables.topics.require(topic_name(asked.topic, client))
        topic.check_readable()
        answer.batch_topic = topic.takes_batches
        queue_ids = asked.queue_ids or range(topic.read_queue_count)
        if len(queue_ids) > left:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, f"more than {QUEUE_COUNT_MAX} queues in one request; send several requests"
            )
        at = timestamp_ms(asked.timestamp) if asked.HasField("timestamp") else None
        for queue_id in queue_ids:
            topic.check_read_queue(queue_id)
            low, high = (store.flushed_range if flushed_only else store.queue_range)(topic.name, queue_id)
            queue = answer.queues.add(queue_id=queue_id, min_queue_offset=low, max_queue_offset=high)
            if at is not None:
                by_time.setdefault((topic.name, queue_id, at), []).append(queue)
        return len(queue_ids)
