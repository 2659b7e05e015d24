"""Admin.QueryMessage: finds messages by id, key, store time or lite topic, or the unfinished messages of a group."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain
from typing import Final, assert_never

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import Steps
from aerobee_broker.messages.key_query import ANSWER_SIZE_MAX, COUNT_MAX, find_by_key, find_by_message_id
from aerobee_broker.messages.message_mapping import timestamp_ms, to_wire_message
from aerobee_broker.messages.validation import check_lite_topic
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import light_topic_name
from aerobee_proto import v2
from aerobee_store import MessageStore
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import is_for, keys_of
from aerobee_store.records.record import Record

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
COUNT_DEFAULT: Final = 32
_TIME_MAX: Final = (1 << 63) - 1
_STEP_SIZE: Final = 256 << 10  # bytes of records per read
_LOOKED_MAX: Final = 1000  # messages of a backlog examined for one answer: a time range may match none of them


class QueryProcessor:
    """Answers QueryMessage. A time range selects by store time, both ends included."""

    def __init__(self, store: MessageStore, tables: Tables, deliveries: Deliveries) -> None:
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        self._loop_share = deliveries.loop_share

    async def process(self, request: v2.ListMessageRequest, client: Client) -> v2.ListMessageResponse:
        topic = self._tables.topics.require(topic_name(request.topic, client)).name
        count = min(max(request.max_message_nums or request.page_size or COUNT_DEFAULT, 1), COUNT_MAX)
        begin = timestamp_ms(request.begin_timestamp) if request.HasField("begin_timestamp") else 0
        end = timestamp_ms(request.end_timestamp) if request.HasField("end_timestamp") else _TIME_MAX
        if begin > end:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "begin_timestamp is after end_timestamp; swap them")
        records, scroll_id = await self._found(topic, request, client, count, begin, end)
        response = v2.ListMessageResponse(status=_OK, scroll_id=scroll_id)
        steps = Steps(self._loop_share)
        for record in records:
            response.messages.append(to_wire_message(record, request.topic))
            await steps.did(record.size)
        return response

    async def _found(
        self, topic: str, request: v2.ListMessageRequest, client: Client, count: int, begin: int, end: int
    ) -> tuple[list[Record], str]:
        """The records that the search key names, and where a next request continues; empty if it cannot."""
        match request.WhichOneof("search_key"):
            case "message_id":
                found = await find_by_message_id(self._store, self._loop_share, topic, request.message_id)
                return _newest(found[:count]), ""
            case "message_key":
                found = await find_by_key(
                    self._store,
                    self._loop_share,
                    topic,
                    request.message_key,
                    count_max=count,
                    size_max=ANSWER_SIZE_MAX,
                    begin=begin,
                    end=end,
                )
                return _newest([record for record in found if request.message_key in keys_of(record.properties)]), ""
            case None:
                return await self._by_time(topic, request, count, begin, end)
            case "lite_topic":
                check_lite_topic(request.lite_topic)
                light = light_topic_name(topic, request.lite_topic)
                return await self._by_time(light, request, count, begin, end)
            case "subscription":
                group = group_name(v2.Resource(name=request.subscription), client)
                self._tables.check_usable(group)
                return await self._unfinished(topic, group, request, count, begin, end)
            case other:
                assert_never(other)

    async def _unfinished(
        self, topic: str, group: str, request: v2.ListMessageRequest, count: int, begin: int, end: int
    ) -> tuple[list[Record], str]:
        """The messages that the group has in flight or ready, queue by queue, and a scroll id as in `_by_time`.

        Where the group has no position yet, these are the messages that it would receive first. Changes nothing.
        """
        first_queue, first_offset = parse_scroll_id(request.scroll_id)
        records: list[Record] = []
        size, looked = 0, _LOOKED_MAX
        steps = Steps(self._loop_share)
        for queue_id in self._store.queue_ids(topic):
            if queue_id < first_queue:
                continue
            if request.HasField("queue_id") and queue_id != request.queue_id:
                continue
            low, high = self._store.queue_range(topic, queue_id)
            begin_at = max(low, first_offset if queue_id == first_queue else 0)
            delivery = self._deliveries.queue_delivery(topic, group, queue_id)
            seen = [] if delivery is None else delivery.unfinished()
            cursor = self._deliveries.start_of(topic, group, queue_id) if delivery is None else delivery.cursor
            offsets = chain(seen[bisect_left(seen, begin_at) :], range(max(cursor, begin_at), high))
            for offset in offsets:
                if not looked or len(records) >= count or size >= ANSWER_SIZE_MAX:
                    return records, f"{queue_id}-{offset}"
                looked -= 1
                read = self._store.read(topic, queue_id, offset, max_count=1).records
                for record in read:
                    is_wanted = begin <= record.store_timestamp <= end and is_for(record, group)
                    if record.queue_offset == offset and is_wanted:
                        records.append(record)
                        size += record.size
                await steps.did(sum(record.size for record in read))
        return records, ""

    async def _by_time(
        self, topic: str, request: v2.ListMessageRequest, count: int, begin: int, end: int
    ) -> tuple[list[Record], str]:
        """Records queue by queue, and the scroll id of the next part: `<queue id>-<queue offset>`, empty at the end."""
        queue_ids: Iterable[int] = self._store.queue_ids(topic)
        if request.HasField("queue_id"):
            queue_ids = [queue_id for queue_id in queue_ids if queue_id == request.queue_id]
        first_queue, first_offset = parse_scroll_id(request.scroll_id)
        records: list[Record] = []
        size = 0
        steps = Steps(self._loop_share)
        for queue_id in queue_ids:
            if queue_id < first_queue:
                continue
            await steps.did(0)
            offset = self._store.offset_by_time(topic, queue_id, begin) if begin else 0
            if queue_id == first_queue:
                offset = max(offset, first_offset)
            while len(records) < count and size < ANSWER_SIZE_MAX:
                left = min(ANSWER_SIZE_MAX - size, _STEP_SIZE)
                result = self._store.read(topic, queue_id, offset, max_count=count - len(records), max_bytes=left)
                if offset < result.min_offset:
                    offset = result.min_offset
                    continue
                in_time = [record for record in result.records if begin <= record.store_timestamp <= end]
                records += in_time
                size += sum(record.size for record in in_time)
                if result.next_offset <= offset or len(in_time) < len(result.records):
                    break  # the end of the queue, or of the time range
                offset = result.next_offset
                await steps.did(sum(record.size for record in result.records))
            else:
                return records, f"{queue_id}-{offset}"
        return records, ""


def _newest(records: list[Record]) -> list[Record]:
    """As many of the last records as one answer holds, at least one."""
    size = 0
    for number, record in enumerate(reversed(records)):
        size += record.size
        if number and size > ANSWER_SIZE_MAX:
            return records[-number:]
    return records


def parse_scroll_id(scroll_id: str, name: str = "scroll_id") -> tuple[int, int]:
    if not scroll_id:
        return -1, 0
    before, _, after = scroll_id.partition("-")
    queue_id, offset = decimal(before), decimal(after)
    if queue_id is None or offset is None:
        raise InvalidRequestError(v2.Code.BAD_REQUEST, f"{name} {scroll_id[:80]!r} is invalid; start without one")
    return queue_id, offset
