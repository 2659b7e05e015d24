"""BrowseMessages: messages of one topic by time of storing, newest or oldest first, without any effect on groups.

The queues of the topic are merged by physical offset, which is the order of storing. Each queue is read in blocks, at
first only the place of its next message is known. A page ends when it is full, when its messages are large, or when
its time is over; its token is the place of the next message, so nothing is kept between calls.
"""

from __future__ import annotations

import asyncio
import heapq
import zlib
from bisect import bisect_left
from contextlib import suppress
from typing import Final

from msgspec import Struct

from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import ForbiddenError, InvalidFilterError, InvalidRequestError
from aerobee_broker.filters.message_filter import EVERYTHING, MessageFilter, filter_in_turn
from aerobee_broker.limits.loop_share import LoopShare, Steps, Turns
from aerobee_broker.messages.message_mapping import timestamp_ms, to_wire_message
from aerobee_broker.processors.administration.wire import OK, clear_body, may_read_bodies, page_count, resource
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import admin_v1, v2
from aerobee_store import MessageStore, Record
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import keys_of, user_properties_of
from aerobee_store.records.record import SYS_FLAG_COMPRESSED

ANSWER_SIZE_MAX: Final = 8 << 20  # bytes of messages in one answer; one message may be larger
TEXT_SIZE_MAX: Final = 255  # bytes
_PAGE_COUNT: Final = 50
_QUEUES_MAX: Final = 1 << 16  # queue ids in one request
_SECONDS_MAX: Final = 1.0  # of one call, after which it answers with what it has found
_BLOCK_COUNT: Final = 64  # messages of a queue that are read together
_TAGGED_BLOCK_COUNT: Final = 800  # with a filter by tag, which needs no record: what the store examines in one read
_BLOCK_SIZE: Final = 1 << 20  # bytes of the messages of a block, beyond one message
_HELD_SIZE_MAX: Final = 16 << 20  # bytes of the blocks in memory; beyond, they are read again later
_BODY_SEARCHED: Final = 1 << 20  # bytes


class MessageText(Struct, frozen=True):
    """A text that messages are searched for: in tag, keys, user properties and the beginning of the body."""

    text: str
    data: bytes

    @classmethod
    def of(cls, text: str) -> MessageText:
        """InvalidRequestError if the text is too long."""
        data = text.casefold().encode()
        if len(text.encode()) > TEXT_SIZE_MAX:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, f"text has {len(text.encode())} bytes; give at most {TEXT_SIZE_MAX}"
            )
        return cls(text.casefold(), data)

    def is_in(self, record: Record) -> bool:
        values = (record.tag or "", *keys_of(record.properties), *user_properties_of(record.properties).values())
        return any(self.text in value.casefold() for value in values) or self.data in _text_of(record)


def _text_of(record: Record) -> bytes:
    """The beginning of the body, uncompressed, with ASCII letters in lower case."""
    body = bytes(record.body[:_BODY_SEARCHED])
    if record.sys_flag & SYS_FLAG_COMPRESSED:
        with suppress(zlib.error):  # with another compression, search in what is stored
            body = zlib.decompressobj().decompress(bytes(record.body), _BODY_SEARCHED)
    return body.lower()


async def wanted_messages(
    client: Client, topic: str, expression: v2.FilterExpression, text: str, share: LoopShare
) -> tuple[MessageFilter, MessageText | None]:
    """What a search selects by. Raises InvalidFilterError, InvalidRequestError, and ForbiddenError for a text whose
    search would tell what the caller may not read."""
    selection = EVERYTHING
    if expression.expression:
        if expression.type not in (v2.FilterType.TAG, v2.FilterType.SQL):
            raise InvalidFilterError(f"filter type {expression.type} is unknown; give TAG or SQL")
        selection = await filter_in_turn(expression.expression, share, is_sql=expression.type == v2.FilterType.SQL)
    if not text:
        return selection, None
    if not may_read_bodies(client, topic):
        raise ForbiddenError(
            f"account {client.account.access_key if client.account else ''!r} may not read messages of topic "
            f"{topic!r}, so it may not search in them; ask an operator to add the topic to its consume"
        )
    return selection, MessageText.of(text)


def browsed_message(record: Record, topic: str, *, include_body: bool, body_size_max: int) -> admin_v1.BrowsedMessage:
    """The message as an operator sees it. `body_size_max` 0: no limit."""
    message = to_wire_message(record, resource(topic))
    size = len(record.body)
    cut = False
    if not include_body:
        clear_body(message)
    elif body_size_max and size > body_size_max:
        message.body = bytes(record.body[:body_size_max])
        message.system_properties.ClearField("body_digest")
        cut = True
    return admin_v1.BrowsedMessage(
        message=message,
        physical_offset=record.physical_offset,
        size=record.size,
        body_size=size,
        body_cut=cut,
        offset_message_id=p.offset_message_id(record.store_host, record.physical_offset),
    )


class _Place(Struct, frozen=True):
    """Where a page begins: a message, by its record and by its queue."""

    physical_offset: int
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"{self.physical_offset}-{self.queue_id}-{self.queue_offset}"

    @classmethod
    def of(cls, token: str) -> _Place:
        """InvalidRequestError for a text that no page gave."""
        numbers = [decimal(part) for part in token.split("-")]
        if len(numbers) != 3 or None in numbers:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, f"page_token {token[:80]!r} is invalid; start without one")
        physical_offset, queue_id, queue_offset = (number or 0 for number in numbers)
        return cls(physical_offset, queue_id, queue_offset)


class _Queue(Struct):
    """One queue of the topic: what is left of it, and the messages of a block that were read and pass."""

    queue_id: int
    begin: int
    end: int  # messages from `begin` to before `end` were not examined yet
    block_count: int
    found: list[Record] = []  # the next one last


class Search:
    """One search through the queues of a topic. Event loop only."""

    def __init__(
        self,
        store: MessageStore,
        loop_share: LoopShare,
        topic: str,
        selection: MessageFilter,
        text: MessageText | None,
        *,
        oldest_first: bool,
    ) -> None:
        self._store = store
        self._topic = topic
        self._selection = selection
        self._text = text
        self._oldest_first = oldest_first
        self._steps = Steps(loop_share)
        self._heap: list[tuple[int, int, _Queue]] = []  # by distance in the direction, then queue id
        self._held_size = 0
        self.examined_count = 0

    def add(self, queue_id: int, begin: int, end: int) -> None:
        """Search this queue from `begin` to before `end` too."""
        count = _BLOCK_COUNT if self._selection.tags is None else _TAGGED_BLOCK_COUNT
        self._push(_Queue(queue_id, begin, end, count))

    @property
    def next_place(self) -> _Place | None:
        """The place of the next message that may be found; None if there is none."""
        if not self._heap:
            return None
        distance, queue_id, queue = self._heap[0]
        offset = queue.found[-1].queue_offset if queue.found else self._next_offset(queue)
        return _Place(abs(distance), queue_id, offset)

    @property
    def held_count(self) -> int:
        """Messages that were found and not taken with `next`."""
        return sum(len(queue.found) for _, _, queue in self._heap)

    async def next(self) -> Record | None:
        """The next message; None if the step found none and there may be more, or `next_place` is None."""
        if not self._heap:
            return None
        _, _, queue = heapq.heappop(self._heap)
        record = None
        if queue.found:
            record = queue.found.pop()
            self._held_size -= record.size
        else:
            await self._read_block(queue)
        self._push(queue)
        return record

    def _next_offset(self, queue: _Queue) -> int:
        return queue.begin if self._oldest_first else queue.end - 1

    def _push(self, queue: _Queue) -> None:
        """Put the queue back at the place of its next message, if it has one."""
        if queue.found:
            place: int | None = queue.found[-1].physical_offset
        else:
            place = None
            while queue.begin < queue.end:
                place = self._store.physical_offset_at(self._topic, queue.queue_id, self._next_offset(queue))
                if place is not None:
                    break
                self._shrink(queue)  # a message that is gone
        if place is not None:
            heapq.heappush(self._heap, (place if self._oldest_first else -place, queue.queue_id, queue))

    def _shrink(self, queue: _Queue) -> None:
        low, _ = self._store.queue_range(self._topic, queue.queue_id)
        if self._oldest_first:
            queue.begin = max(queue.begin + 1, low)
        else:
            queue.begin = max(queue.begin, low)
            queue.end -= 1

    async def _read_block(self, queue: _Queue) -> None:
        """Read the next block of a queue; the messages that pass are its `found`."""
        begin = queue.begin if self._oldest_first else max(queue.begin, queue.end - queue.block_count)
        count = min(queue.block_count, queue.end - begin)
        result = self._store.read(
            self._topic, queue.queue_id, begin, max_count=count, max_bytes=_BLOCK_SIZE, tags=self._selection.tags
        )
        end = min(result.next_offset, queue.end)
        if end <= begin:
            self._shrink(queue)  # its file was removed meanwhile
        elif self._oldest_first:
            queue.begin = end
        elif end < queue.end and queue.block_count > 1:
            queue.block_count = max(1, min(queue.block_count, end - begin) // 2)
            await self._steps.did(_BLOCK_SIZE)
            return  # the messages are large: read fewer of them, up to the end
        else:
            queue.end = begin
        self.examined_count += max(end - begin, 0)
        found = [record for record in result.records if record.queue_offset < end and self._passes(record)]
        size = sum(record.size for record in result.records)
        queue.found = found[::-1] if self._oldest_first else found
        self._held_size += sum(record.size for record in found)
        if self._held_size > _HELD_SIZE_MAX:
            self._release(queue)
        await self._steps.did(size + (0 if self._selection.tags is None else count * 20))

    def _release(self, last: _Queue) -> None:
        """Give up the blocks of the other queues; they are read again when it is their turn."""
        others = [queue for _, _, queue in self._heap if queue is not last]
        self._heap.clear()
        for queue in others:
            if queue.found:
                if self._oldest_first:
                    queue.begin = queue.found[-1].queue_offset
                else:
                    queue.end = queue.found[-1].queue_offset + 1
                queue.found = []
            self._push(queue)
        self._held_size = sum(record.size for record in last.found)

    def _passes(self, record: Record) -> bool:
        if self._selection.condition is not None and not self._selection.selects(record.tag, record.properties):
            return False
        return self._text is None or self._text.is_in(record)


class MessageBrowser:
    """BrowseMessages."""

    def __init__(self, *, store: MessageStore, tables: Tables, loop_share: LoopShare) -> None:
        self._store = store
        self._tables = tables
        self._loop_share = loop_share

    async def browse(self, request: admin_v1.BrowseMessagesRequest, client: Client) -> admin_v1.BrowseMessagesResponse:
        topic = self._tables.topics.require(request.topic).name
        if request.body_size_max < 0:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "body_size_max is negative; give 0 or more")
        selection, text = await wanted_messages(client, topic, request.filter, request.text, self._loop_share)
        hidden = request.include_bodies and not may_read_bodies(client, topic)
        search = Search(self._store, self._loop_share, topic, selection, text, oldest_first=request.oldest_first)
        for queue_id, begin, end in self._ranges(topic, request):
            search.add(queue_id, begin, end)
        wanted = page_count(request.page_size, default=_PAGE_COUNT)
        response = admin_v1.BrowseMessagesResponse(status=OK, bodies_hidden=hidden)
        deadline = asyncio.get_running_loop().time() + _SECONDS_MAX
        size = 0
        turns = Turns()
        while len(response.messages) < wanted and search.next_place is not None:
            record = await search.next()
            if record is not None:
                message = browsed_message(
                    record,
                    topic,
                    include_body=request.include_bodies and not hidden,
                    body_size_max=request.body_size_max,
                )
                response.messages.append(message)
                size += message.ByteSize()
                await turns.next()
            if size >= ANSWER_SIZE_MAX or asyncio.get_running_loop().time() >= deadline:
                break
        place = search.next_place
        response.next_page_token = "" if place is None else str(place)
        response.examined_count = search.examined_count
        return response

    def _ranges(self, topic: str, request: admin_v1.BrowseMessagesRequest) -> list[tuple[int, int, int]]:
        """The queues to search, each with its first offset and the one after its last."""
        queue_ids = set(self._store.queue_ids(topic))
        if len(request.queue_ids) > _QUEUES_MAX:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, f"{len(request.queue_ids)} queue_ids; give {_QUEUES_MAX}")
        if request.queue_ids:
            queue_ids &= set(request.queue_ids)
        place = _Place.of(request.page_token) if request.page_token else None
        ranges = []
        for queue_id in sorted(queue_ids):
            begin, end = self._store.queue_range(topic, queue_id)
            if request.HasField("begin_offset"):
                begin = max(begin, request.begin_offset)
            if request.HasField("end_offset"):
                end = min(end, request.end_offset)
            if request.HasField("begin_timestamp"):
                begin = max(begin, self._store.offset_by_time(topic, queue_id, timestamp_ms(request.begin_timestamp)))
            if request.HasField("end_timestamp"):
                end = min(end, self._store.offset_by_time(topic, queue_id, timestamp_ms(request.end_timestamp)))
            if place is not None and request.oldest_first:
                begin = max(begin, self._offset_from(topic, queue_id, place))
            elif place is not None:
                # The message of the place itself is the first one of the page.
                is_own = queue_id == place.queue_id
                end = min(end, place.queue_offset + 1 if is_own else self._offset_from(topic, queue_id, place))
            if begin < end:
                ranges.append((queue_id, begin, end))
        return ranges

    def _offset_from(self, topic: str, queue_id: int, place: _Place) -> int:
        """The first message at or after the place in the log, or the end of the queue."""
        if queue_id == place.queue_id:
            return place.queue_offset
        low, high = self._store.queue_range(topic, queue_id)

        def physical_offset(queue_offset: int) -> int:
            # A message that is gone has no place: the one of the next that is there.
            for offset in range(queue_offset, high):
                found = self._store.physical_offset_at(topic, queue_id, offset)
                if found is not None:
                    return found
            return 1 << 63

        return low + bisect_left(range(low, high), place.physical_offset, key=physical_offset)
