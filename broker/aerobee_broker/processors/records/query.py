"""QueryRecords: records of a topic by key, by message id or by store time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aerobee_broker.clients.naming import topic_name
from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.messages.key_query import find_by_key, find_by_message_id
from aerobee_broker.messages.message_mapping import timestamp_ms
from aerobee_broker.processors.query import parse_scroll_id
from aerobee_broker.processors.records.read import FRAME_SIZE_DEFAULT, FRAME_SIZE_MAX, SIZE_DTYPE
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import records_v1, v2
from aerobee_store import MessageStore
from aerobee_store.deferred import deferred
from aerobee_store.errors import RecordNotFoundError
from aerobee_store.records.record import Record

if TYPE_CHECKING:
    import numpy as np
else:
    np = deferred("numpy")


COUNT_DEFAULT: Final = 64
COUNT_MAX: Final = 1000
_TIME_MAX: Final = (1 << 63) - 1


class QueryProcessor:
    """Answers QueryRecords. Raises errors that `processors.statuses` maps to status codes."""

    def __init__(self, store: MessageStore, tables: Tables, loop_share: LoopShare) -> None:
        self._store = store
        self._loop_share = loop_share
        self._tables = tables

    async def process(self, request: records_v1.QueryRecordsRequest, client: Client) -> records_v1.QueryRecordsResponse:
        topic = self._tables.topics.require(topic_name(request.topic, client))
        topic.check_readable()
        begin = timestamp_ms(request.begin) if request.HasField("begin") else 0
        end = timestamp_ms(request.end) if request.HasField("end") else _TIME_MAX
        if begin > end:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "begin is after end; swap them")
        if request.key and request.message_id:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "the request has both a key and a message id; give one")
        count = min(max(request.record_count_max, 0) or COUNT_DEFAULT, COUNT_MAX)
        size_max = min(max(request.bytes_max, 0) or FRAME_SIZE_DEFAULT, FRAME_SIZE_MAX)
        token = ""
        place = self._store, self._loop_share, topic.name
        if request.message_id:
            found = await find_by_message_id(*place, request.message_id)
            pieces = self._bytes_of(found[-count:], size_max)
        elif request.key:
            found = await find_by_key(*place, request.key, count_max=count, size_max=size_max, begin=begin, end=end)
            pieces = self._bytes_of(found, size_max)
        elif request.HasField("begin") or request.HasField("end"):
            pieces, token = self._by_time(topic.name, request.page_token, begin, end, count, size_max)
        else:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "the request has no criterion; give a key, an id or a time")
        if not pieces and not token:
            raise InvalidRequestError(
                v2.Code.MESSAGE_NOT_FOUND, f"topic {topic.name!r} has no such record; it never existed or has expired"
            )
        return records_v1.QueryRecordsResponse(
            status=v2.Status(code=v2.Code.OK, message="OK"),
            records=b"".join(piece for piece, _ in pieces),
            record_sizes=b"".join(sizes for _, sizes in pieces),
            next_page_token=token,
        )

    def _bytes_of(self, records: list[Record], size_max: int) -> list[tuple[memoryview, bytes]]:
        """The bytes and sizes of the newest records that fit, oldest first."""
        pieces: list[tuple[memoryview, bytes]] = []
        size = 0
        for record in reversed(records):
            size += record.size
            if pieces and size > size_max:
                break
            try:
                piece = self._store.bytes_of(record)
            except RecordNotFoundError:
                continue  # removed by retention
            pieces.append((piece, np.array([record.size], SIZE_DTYPE).tobytes()))
        return pieces[::-1]

    def _by_time(
        self, topic: str, page_token: str, begin: int, end: int, count: int, size_max: int
    ) -> tuple[list[tuple[memoryview, bytes]], str]:
        """Records queue by queue, and the token to continue with; empty at the end."""
        store = self._store
        first_queue, first_offset = parse_scroll_id(page_token, "page_token")
        pieces: list[tuple[memoryview, bytes]] = []
        for queue_id in store.queue_ids(topic):
            if queue_id < first_queue:
                continue
            offset = store.offset_by_time(topic, queue_id, begin)
            if queue_id == first_queue:
                offset = max(offset, first_offset)
            low, high = store.queue_range(topic, queue_id)
            stop = high if end == _TIME_MAX else min(high, store.offset_by_time(topic, queue_id, end + 1))
            offset = max(offset, low)
            while offset < stop:
                if count <= 0 or size_max <= 0:
                    return pieces, f"{queue_id}-{offset}"
                found = store.read_runs(
                    topic,
                    queue_id,
                    offset,
                    end_offset=min(stop, offset + count),
                    max_bytes=size_max,
                    flushed_only=False,
                )
                if found.next_offset <= offset:
                    break
                if pieces and found.size > size_max:
                    return pieces, f"{queue_id}-{offset}"
                if found.runs:
                    pieces.append((memoryview(b"".join(found.runs)), found.sizes.astype(SIZE_DTYPE).tobytes()))
                count -= len(found.sizes)
                size_max -= found.size
                offset = found.next_offset
        return pieces, ""
