"""ReadRecords: the records of a queue in frames, exactly as they are in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.receive.long_polling import LongPolling, QueueWait, poll_seconds
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.wire_fields import varint
from aerobee_broker.processors.receive import duration_ms
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import records_v1, v2
from aerobee_store import MessageStore
from aerobee_store.record_runs import RecordRuns

FRAME_SIZE_DEFAULT: Final = 1 << 20
FRAME_SIZE_MAX: Final = 4 << 20
_RECORDS_TAG: Final = b"\x12"  # of the field `records` on the wire
_TAG_COUNT_MAX: Final = 1000
SIZE_DTYPE: Final = "<u4"
"""The wire form of `record_sizes` in requests and responses."""


class ReadProcessor:
    """Answers ReadRecords. Raises errors that `processors.statuses` maps to status codes."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        long_polling: LongPolling,
        counters: BrokerCounters,
    ) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables
        self._long_polling = long_polling
        self._counters = counters

    async def read(
        self, request: records_v1.ReadRecordsRequest, client: Client, remaining_seconds: float | None
    ) -> AsyncGenerator[records_v1.ReadRecordsResponse | bytes, None]:
        """Frames as bytes, followed by a response with the status. `remaining_seconds`: time to the deadline."""
        topic = await self._topic(request, client)
        group = await self._group_of(request, topic, client)
        queue_id, offset = request.queue_id, request.start_queue_offset
        flushed_only = not request.include_unflushed
        low, high = self._range(topic, queue_id, flushed_only=flushed_only)
        if not low <= offset <= high:
            text = f"offset {offset} is not within the queue's {low}..{high}; go on at next_queue_offset"
            status = v2.Status(code=v2.Code.ILLEGAL_OFFSET, message=text)
            yield _end(status, offset, min(max(offset, low), high), low, high)
            return
        loop = asyncio.get_running_loop()
        deadline = None if remaining_seconds is None else loop.time() + remaining_seconds
        end = request.end_queue_offset if request.HasField("end_queue_offset") else None
        frame_size = min(max(request.frame_bytes_max, 0) or FRAME_SIZE_DEFAULT, FRAME_SIZE_MAX)
        left = request.bytes_max if request.bytes_max > 0 else None
        while end is None or offset < end:
            result = self._store.read_runs(
                topic,
                queue_id,
                offset,
                end_offset=end,
                max_bytes=frame_size if left is None else min(frame_size, left),
                tags=request.tags or None,
                flushed_only=flushed_only,
            )
            low, high = result.min_offset, result.max_offset
            if result.next_offset > offset:
                if result.runs or result.lost:
                    yield frame_bytes(result, offset)
                if group and result.message_count:
                    self._count(topic, queue_id, group, offset, result)
                offset = result.next_offset
                if left is not None:
                    left -= result.size
                    if left <= 0:
                        break
                if not result.runs:
                    await asyncio.sleep(0)  # a long range that the tag filter rejects is skipped in steps
                continue
            if result.status == "offset-too-large":
                break  # the queue was created again
            if not await self._arrived(topic, group, client, request, deadline):
                break
            if self._tables.topics.get(topic) is None:
                break
        yield _end(v2.Status(code=v2.Code.OK, message="OK"), offset, offset, low, high)

    async def _arrived(
        self, topic: str, group: str, client: Client, request: records_v1.ReadRecordsRequest, deadline: float | None
    ) -> bool:
        """Wait for another record at the end of the queue. Returns False when the wait is over."""
        config = self._settings.current.delivery
        remaining = None if deadline is None else deadline - asyncio.get_running_loop().time()
        requested = duration_ms(request.wait) / 1000 if request.HasField("wait") else 0.0
        seconds = poll_seconds(
            requested, remaining, reserve=config.poll_reserve_seconds, longest=config.poll_seconds_max
        )
        return await QueueWait(self._long_polling, topic, request.queue_id, group, client.client_id, seconds).wait()

    async def _group_of(self, request: records_v1.ReadRecordsRequest, topic: str, client: Client) -> str:
        """The stored name of the reading group; empty if there is none."""
        if not request.group.name:
            return ""
        group = group_name(request.group, client)
        if group not in self._tables.groups:
            await self._tables.group_in_use(group, [topic])
        return group

    def _count(self, topic: str, queue_id: int, group: str, offset: int, result: RecordRuns) -> None:
        """Count the records of one frame, which begins at `offset`. Its first record tells whether all are old."""
        counters = self._counters
        received = counters.received_by(topic, group)
        received.messages += result.message_count
        received.bytes += result.size
        counters.received_from_queue(topic, queue_id, group, result.message_count, result.size)
        if counters.disk_end > 0:
            place = self._store.physical_offset_at(topic, queue_id, offset)
            if place is not None and place < counters.disk_end:
                received.disk_messages += result.message_count
                received.disk_bytes += result.size

    def _range(self, topic: str, queue_id: int, *, flushed_only: bool) -> tuple[int, int]:
        return (self._store.flushed_range if flushed_only else self._store.queue_range)(topic, queue_id)

    async def _topic(self, request: records_v1.ReadRecordsRequest, client: Client) -> str:
        name = topic_name(request.topic, client)
        topic = self._tables.topics.get(name) or await self._tables.topic_in_use(name)
        topic.check_read_queue(request.queue_id)
        if len(request.tags) > _TAG_COUNT_MAX:
            raise InvalidRequestError(
                v2.Code.ILLEGAL_FILTER_EXPRESSION,
                f"{len(request.tags)} tags, the limit is {_TAG_COUNT_MAX}; read all messages and filter them",
            )
        return name


def frame_bytes(result: RecordRuns, start_queue_offset: int) -> bytes:
    """The bytes of a response with these records, which are copied once; protobuf would copy them three times."""
    rest = records_v1.ReadRecordsResponse(
        record_sizes=result.sizes.astype(SIZE_DTYPE).tobytes(),
        start_queue_offset=start_queue_offset,
        next_queue_offset=result.next_offset,
        lost_count=result.lost,
        min_queue_offset=result.min_offset,
        max_queue_offset=result.max_offset,
    )
    return b"".join((_RECORDS_TAG, varint(result.size), *result.runs, rest.SerializeToString()))


def _end(status: v2.Status, offset: int, next_offset: int, low: int, high: int) -> records_v1.ReadRecordsResponse:
    """The last response of a stream."""
    return records_v1.ReadRecordsResponse(
        status=status,
        start_queue_offset=offset,
        next_queue_offset=next_offset,
        min_queue_offset=low,
        max_queue_offset=high,
    )
