"""Filters of a consumer: by tag, or by an SQL expression over properties."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from aerobee_broker.errors import InvalidFilterError
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_store import MessageStore, ReadResult, Record
from aerobee_store.deferred import deferred
from aerobee_store.records.message_fields import is_for
from aerobee_store.records.tag_expression import tags_of

if TYPE_CHECKING:
    from aerobee_broker.filters import property_search, sql_filter
    from aerobee_broker.filters.sql_filter import Expression
else:
    property_search = deferred("aerobee_broker.filters.property_search")
    # To make its parser takes a tenth of the broker's start.
    sql_filter = deferred("aerobee_broker.filters.sql_filter")

_SHORT_SQL: Final = 128  # characters; none takes a millisecond to compile
TAGS_LENGTH_MAX: Final = 16_384  # characters of an expression
_TAGS_LENGTH_CACHED_MAX: Final = 256  # keeps the cache below 8 MiB for any expressions
READ_BYTES_MAX: Final = 4 << 20  # bytes of records per read
_CONDITIONS_MIN: Final = 32  # messages per read, even if fewer are wanted: most may not pass
_BITMAPS_MAX: Final = 1024  # messages whose bitmaps one read examines: about a millisecond
_CANDIDATES_MAX: Final = 128  # messages that may match, read one by one; another millisecond or two
_CANDIDATE_BYTES_MAX: Final = 512 << 10  # bytes of their records
_BULK_MIN: Final = 16  # neighbours that may match, which are searched together


class MessageFilter(Struct, frozen=True):
    """The accepted messages: those with one of these tags, or those that satisfy the condition. Both None: all.

    `tags` are evaluated by the store, mostly in the queue without the log; `condition` needs the record, unless the
    filter bitmap of a message rules it out. `expression`: the text of the condition.
    """

    tags: frozenset[str] | None = None
    condition: Expression | None = None
    expression: str = ""

    @property
    def reads_per_step(self) -> int:
        """How many reads may find nothing before other tasks run: with tags a read skips 800 messages at low cost; with
        an expression one read is a step."""
        return 16 if self.condition is None else 1

    def passes(self, record: Record, group: str) -> bool:
        """Whether the message passes the filter, and its group may receive it."""
        return is_for(record, group) and self.selects(record.tag, record.properties if self.condition else {})

    def selects(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """Whether a message with this tag and these stored properties passes the filter."""
        if self.condition is not None:
            return self.condition(properties) is True
        return self.tags is None or tag in self.tags

    def announce(self, store: MessageStore, topic: str, group: str) -> None:
        """Make known that the group uses the filter, before there is a message: the next ones are marked for it."""
        if self.condition is not None and store.filter_bitmaps is not None:
            store.filter_bitmaps.bits(topic, group, self.expression, self.condition)

    def read(
        self,
        store: MessageStore,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count: int,
        group: str,
        *,
        max_bytes: int = READ_BYTES_MAX,
    ) -> ReadResult:
        """At most `count` messages that pass, from the offset on; all others before `next_offset` do not pass.

        Examines a limited number of messages, so it may return nothing although there are more; returns only one
        message above `max_bytes`, whatever its size. StoreAccessError.
        """
        if self.condition is None:
            result = store.read(topic, queue_id, queue_offset, max_count=count, max_bytes=max_bytes, tags=self.tags)
            if not all(is_for(record, group) for record in result.records):
                return replace(result, records=[record for record in result.records if is_for(record, group)])
            return result
        bitmaps = store.filter_bitmaps
        bits = bitmaps.bits(topic, group, self.expression, self.condition) if bitmaps is not None else None
        if bits is not None:
            marks = store.may_match(topic, queue_id, queue_offset, _BITMAPS_MAX, bits)
            if not all(marks):
                return self._read_candidates(store, (topic, queue_id, queue_offset), marks, count, group, max_bytes)
        return self._search(store, topic, queue_id, queue_offset, count, group, max_bytes)

    def look(
        self,
        store: MessageStore,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count: int,
        group: str,
        *,
        max_bytes: int = READ_BYTES_MAX,
    ) -> ReadResult:
        """The same, over as many messages that do not pass as one step of the event loop can skip."""
        for _ in range(self.reads_per_step):
            begin = queue_offset
            result = self.read(store, topic, queue_id, begin, count, group, max_bytes=max_bytes)
            queue_offset = result.next_offset
            if result.records or not begin < queue_offset < result.max_offset:
                break
        return result

    def _read_candidates(
        self,
        store: MessageStore,
        place: tuple[str, int, int],
        marks: list[bool],
        count: int,
        group: str,
        max_bytes: int,
    ) -> ReadResult:
        """The same among the messages from `place` on, of which `marks` tells which may pass: only these are read."""
        topic, queue_id, queue_offset = place
        records: list[Record] = []
        size = lost = looked = looked_bytes = 0
        next_offset = queue_offset + len(marks)
        for first, last in property_search.stretches(row for row, mark in enumerate(marks) if mark):
            begin, end = queue_offset + first, queue_offset + last
            while begin < end and len(records) < count and size < max_bytes:
                if looked >= _CANDIDATES_MAX or looked_bytes >= _CANDIDATE_BYTES_MAX:
                    break
                wanted, left = count - len(records), max_bytes - size
                if end - begin < _BULK_MIN:
                    result = store.read(topic, queue_id, begin, max_count=min(end - begin, wanted), max_bytes=left)
                    looked += result.next_offset - begin
                    looked_bytes += sum(record.size for record in result.records)
                    passing = [record for record in result.records if self.passes(record, group)]
                else:
                    result = self._search(store, topic, queue_id, begin, wanted, group, left, end_offset=end)
                    looked = _CANDIDATES_MAX  # a search is a step of its own
                    passing = result.records
                records += passing
                size += sum(record.size for record in passing)
                lost += result.lost
                begin = result.next_offset
            if begin < end:
                next_offset = begin
                break
        low, high = store.queue_range(topic, queue_id)
        store.stats.bitmap_skips += marks[: next_offset - queue_offset].count(False)
        return ReadResult("found" if records else "no-match", records, next_offset, low, high, lost)

    def _search(
        self,
        store: MessageStore,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count: int,
        group: str,
        max_bytes: int,
        *,
        end_offset: int = sys.maxsize,
    ) -> ReadResult:
        """The same by the properties of each message before `end_offset`."""
        assert self.condition is not None
        found = property_search.search(
            store, topic, queue_id, queue_offset, self.condition, count, max_bytes, end_offset
        )
        if found is not None:
            return replace(found, records=[record for record in found.records if self.passes(record, group)])
        wider = min(max(count, _CONDITIONS_MIN), end_offset - queue_offset)
        result = store.read(topic, queue_id, queue_offset, max_count=wider, max_bytes=max_bytes)
        passing = [record for record in result.records if self.passes(record, group)]
        if len(passing) <= count:
            return replace(result, records=passing)
        end = passing[count].queue_offset
        lost = end - queue_offset - sum(record.queue_offset < end for record in result.records)
        return replace(result, records=passing[:count], next_offset=end, lost=lost)


EVERYTHING: Final = MessageFilter()


async def filter_in_turn(expression: str, share: LoopShare, *, is_sql: bool) -> MessageFilter:
    """Like `filter_of`. Long SQL, which takes milliseconds to compile, waits for its turn."""
    if is_sql and len(expression) > _SHORT_SQL:
        return await share.whole(partial(filter_of, expression, is_sql=True))
    return filter_of(expression, is_sql=is_sql)


def filter_of(expression: str, *, is_sql: bool = False) -> MessageFilter:
    """The filter of an expression: tags, as in `TagA || TagB`, or SQL. Raises InvalidFilterError."""
    if is_sql:
        return MessageFilter(condition=sql_filter.compile_expression(expression), expression=expression)
    if len(expression) > TAGS_LENGTH_MAX:
        raise InvalidFilterError(
            f"the filter expression has {len(expression)} characters, the limit is {TAGS_LENGTH_MAX}; make it shorter",
        )
    return (_known_tags if len(expression) <= _TAGS_LENGTH_CACHED_MAX else _parse_tags)(expression)


def _parse_tags(expression: str) -> MessageFilter:
    try:
        tags = tags_of(expression)
    except ValueError as error:
        raise InvalidFilterError(str(error)) from None
    return MessageFilter(tags) if tags else EVERYTHING


_known_tags = lru_cache(maxsize=1024)(_parse_tags)
