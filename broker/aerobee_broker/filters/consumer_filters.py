"""The SQL subscriptions of consumers, whose matches the store marks in the filter bitmaps of new messages.

A read with an SQL expression makes its subscription known. Messages that are appended from then on, at physical offset
`begin` or later, are evaluated for it, and a later read skips those that do not satisfy it without reading them. No
message may be skipped that satisfies it, so a bitmap counts only if it was made for exactly this expression:

- A group has one expression for each topic. Another one replaces it once it is out of use, and then begins anew.
- A subscription that was dropped and returns begins anew.
- After a start, subscriptions begin where they began only if the log ends where it ended at an orderly stop. In all
  other cases (a kill, another program on the directory, an edited file, other settings) they begin anew.

They are in RocketMQ's consumerFilter.json:

    orderly stop    complete, with the member `aerobee`: where the log ended, where each subscription begins, a checksum
    running         without the bits, so that RocketMQ forgets these subscriptions: after a kill it could not know which
                    of our bitmaps were made for them

RocketMQ uses bitmaps of messages stored after `bornTime`, which is the time of the stop. It evaluates all older
messages itself, because its expressions differ in details: NOT, for example.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from zlib import crc32

from msgspec import Struct, field

from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.errors import InvalidFilterError, TableFormatError
from aerobee_broker.filters.bloom_filter import BloomFilter
from aerobee_broker.tables.data_version import Revision
from aerobee_broker.tables.json_fields import INT64_MAX, JsonFields
from aerobee_store import MessageStore
from aerobee_store.clock import Clock, every
from aerobee_store.deferred import deferred
from aerobee_store.queues.filter_bitmaps import FilterBits
from aerobee_store.queues.multi_dispatch import is_light
from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import Bean
from aerobee_store.tables.json_table import JsonTable, UnreadableTableError

if TYPE_CHECKING:
    from aerobee_broker.filters import property_search, sql_filter
    from aerobee_broker.filters.sql_filter import Expression
    from aerobee_store.records.record_batch import RecordBatch
else:
    property_search = deferred("aerobee_broker.filters.property_search")
    sql_filter = deferred("aerobee_broker.filters.sql_filter")

_log = logging.getLogger(__name__)

SAVE_INTERVAL_SECONDS: Final = 10.0  # RocketMQ's interval for consumerFilter.json
IN_USE_MS: Final = 60_000  # since the last read: a consumer that waits reads again sooner
COUNT_MAX: Final = 1024  # of all topics; keeps the file below 5 MiB, mostly far below
CONDITIONS_PER_TOPIC_MAX: Final = 256  # of all expressions; each takes up to 1 us of the event loop for every message
_SQL: Final = "SQL92"
_FILE: Final = "consumerFilter.json"
_OURS: Final = "aerobee"


class _Subscription(Struct):
    """The expression of one group for one topic. Times in Unix milliseconds."""

    expression: str
    compiled: Expression
    mask: int
    begin: int  # physical offset
    born_ms: int
    used_ms: int
    client_version: int = 0
    extra: Mapping[str, object] = field(default_factory=dict)  # unknown fields of the file


class ConsumerFilters:
    """Implements `FilterBitmaps` for the store. Event loop only, except `open`."""

    name: Final = "consumer-filters"

    def __init__(self, store: MessageStore, clock: Clock, config: DeliveryConfig) -> None:
        self._store = store
        self._clock = clock
        self._keep_ms = int(config.filter_keep_hours * 3_600_000)
        self._bloom = BloomFilter(config.filter_bitmap_groups, config.filter_bitmap_error_percent)
        self._per_topic_max = config.filter_bitmap_groups
        self._topics: dict[str, dict[str, _Subscription]] = {}  # by topic and group; no topic without one
        self._revision = Revision()
        self._extra: Mapping[str, object] = {}
        self._is_stored = False
        self._is_closed = False
        directory = store.config.directory / "config"
        self._file = JsonTable(store.file_system, directory / _FILE, stats=store.stats)

    def open(self) -> None:
        """Load the subscriptions, and compute bitmaps from now on. Blocking; before the store's services run. OSError.

        An unusable file is no obstacle: its subscriptions become known again when they are used.
        """
        self._store.file_system.make_directory(self._file.path.parent)
        try:
            value = self._file.load()
            self._is_stored = value is not None
            if value is not None:
                self._take(JsonFields(_FILE, value))
        except (UnreadableTableError, TableFormatError) as error:
            _log.warning("the subscriptions of SQL consumers are not loaded cause=%s", error)
            self._is_stored = True
            self._topics.clear()
        if self._is_stored:
            self._file.save(self._content())  # RocketMQ must not use what it had there
            self._revision.mark_saved(self._revision.current)
        self._store.filter_bitmaps = self

    async def run(self) -> None:
        """Drop subscriptions out of use and save changes from time to time, until cancelled. OSError."""
        await every(SAVE_INTERVAL_SECONDS, self._drop_and_save)

    async def _drop_and_save(self) -> None:
        self.drop_unused()
        await self.save()

    async def save(self) -> None:
        """Return when all changes are on disk. OSError."""
        if self._revision.dirty and not self._is_closed:
            revision = self._revision.current
            self._is_stored = True
            await self._store.in_disk_thread(self._file.save, self._content())
            self._revision.mark_saved(revision)

    async def close(self) -> None:
        """Save everything for the next start. Messages that are still appended get no bitmaps. OSError."""
        self._store.filter_bitmaps = None
        self._is_closed = True
        if self._is_stored or self._topics:
            await self._store.in_disk_thread(self._file.save, self._content(log_end=self._store.positions[0]))

    # --- what the store asks ------------------------------------------------------------------------------------

    def are_computed(self, topic: str) -> bool:
        """Whether new messages of the topic get bitmaps."""
        return topic in self._topics

    def of_message(self, topic: str, properties: Mapping[str, str]) -> bytes:
        """The bitmap of a message of a topic with subscriptions."""
        bitmap = 0
        for subscription in self._topics[topic].values():
            if subscription.compiled(properties) is True:
                bitmap |= subscription.mask
        return bitmap.to_bytes(self._bloom.size, "little")

    def of_records(self, topic: str, batch: RecordBatch) -> Sequence[bytes]:
        """The bitmaps of records of a topic with subscriptions."""
        bitmaps = [0] * len(batch)
        for subscription in self._topics[topic].values():
            for row in property_search.matching_rows(batch, subscription.compiled):
                bitmaps[row] |= subscription.mask
        return [bitmap.to_bytes(self._bloom.size, "little") for bitmap in bitmaps]

    def bits(self, topic: str, group: str, expression: str, condition: Expression) -> FilterBits | None:
        """The bits of a subscription that is in use now; None if it is not among the known ones, and cannot be, as in a
        light queue."""
        if is_light(topic):
            return None  # its messages were sent to other topics
        now = self._clock.now_ms()
        known = self._topics.get(topic, {}).get(group)
        if known is None or known.expression != expression:
            if known is not None and now - known.used_ms <= IN_USE_MS:
                return None  # consumers of the group disagree, or one has just changed its expression
            known = self._add(topic, group, expression, condition, now)
            if known is None:
                return None
        known.used_ms = now
        return FilterBits(known.mask, self._bloom.size, known.begin)

    # --- the subscriptions --------------------------------------------------------------------------------------

    def _add(self, topic: str, group: str, expression: str, compiled: Expression, now: int) -> _Subscription | None:
        """Add a subscription that begins now, in place of the group's present one; None if there are too many."""
        added = _Subscription(
            expression=expression,
            compiled=compiled,
            mask=self._bloom.mask(topic, group),
            begin=self._store.positions[0],
            born_ms=now,
            used_ms=now,
        )
        self._remove(topic, group)
        return added if self._put(topic, group, added) else None

    def _put(self, topic: str, group: str, added: _Subscription) -> bool:
        """Whether there is room for it."""
        others = self._topics.get(topic, {})
        conditions = sum(other.compiled.condition_count for other in others.values()) + added.compiled.condition_count
        is_full = len(others) >= self._per_topic_max or conditions > CONDITIONS_PER_TOPIC_MAX
        if is_full or sum(map(len, self._topics.values())) >= COUNT_MAX:
            return False
        self._topics.setdefault(topic, {})[group] = added
        self._revision.advance()
        return True

    def _remove(self, topic: str, group: str) -> None:
        groups = self._topics.get(topic)
        if groups is not None and groups.pop(group, None) is not None:
            self._revision.advance()
            if not groups:
                del self._topics[topic]

    def drop_unused(self) -> None:
        """Forget subscriptions that were not used for `delivery.filter_keep_hours`."""
        oldest = self._clock.now_ms() - self._keep_ms
        for topic, group, subscription in list(self._all()):
            if subscription.used_ms < oldest:
                self._remove(topic, group)

    def _all(self) -> Iterator[tuple[str, str, _Subscription]]:
        for topic, groups in self._topics.items():
            for group, subscription in groups.items():
                yield topic, group, subscription

    # --- the file -----------------------------------------------------------------------------------------------

    def _content(self, *, log_end: int | None = None) -> Bean:
        """The content of the file. `log_end`: at an orderly stop, where the log ends."""
        now = self._clock.now_ms()
        topics: dict[str, object] = {}
        for topic, groups in self._topics.items():
            members = {group: self._to_json(topic, group, each, now, log_end) for group, each in groups.items()}
            topics[topic] = Bean(groupFilterData=members, topic=topic)
        content = Bean(self._extra, filterDataByTopic=topics)
        if log_end is not None:
            begins: dict[str, dict[str, int]] = {topic: {} for topic in self._topics}
            for topic, group, each in self._all():
                begins[topic][group] = each.begin
            content[_OURS] = Bean(begins=begins, checksum=self._checksum(log_end), logEnd=log_end)
        return content

    def _to_json(self, topic: str, group: str, subscription: _Subscription, now: int, log_end: int | None) -> Bean:
        is_dead = now - subscription.used_ms > IN_USE_MS
        result = Bean(
            subscription.extra,
            bornTime=subscription.born_ms if log_end is None else now,
            clientVersion=subscription.client_version,
            consumerGroup=group,
            dead=is_dead,
            deadTime=subscription.used_ms if is_dead else 0,
            expression=subscription.expression,
            expressionType=_SQL,
            topic=topic,
        )
        if log_end is not None:
            positions = list(self._bloom.positions(topic, group))
            result["bloomFilterData"] = Bean(bitNum=self._bloom.bit_count, bitPos=positions)
        return result

    def _checksum(self, log_end: int) -> int:
        """Of everything that decides which messages a subscription skips."""
        parts: list[object] = [log_end, self._bloom.bit_count, self._bloom.bits_per_subscription]
        parts += sorted([topic, group, each.expression, each.begin] for topic, group, each in self._all())
        return crc32(java_json.dumps(parts, pretty=False))

    def _take(self, fields: JsonFields) -> None:
        """Take the content of the file. TableFormatError."""
        ours = JsonFields(fields.full_name(_OURS), fields.mapping(_OURS))
        log_end = ours.integer("logEnd", -1, minimum=-1, maximum=INT64_MAX)
        checksum = ours.integer("checksum", 0, maximum=INT64_MAX)
        begins = ours.mapping("begins")
        present, now = self._store.positions[0], self._clock.now_ms()
        for topic, value in fields.mapping("filterDataByTopic").items():
            of_topic = JsonFields(f"{_FILE}.{topic}", value)
            begins_of_topic = JsonFields(ours.full_name(f"begins.{topic}"), begins.get(topic, {}))
            for group, filter_data in of_topic.mapping("groupFilterData").items():
                loaded = self._subscription(topic, group, JsonFields(of_topic.full_name(group), filter_data), now)
                if loaded is not None:
                    loaded.begin = begins_of_topic.integer(group, present, maximum=INT64_MAX)
                    self._put(topic, group, loaded)
        self._extra = fields.rest()
        if self._file.is_from_copy or log_end != present or checksum != self._checksum(log_end):
            _begin_anew((each for _, _, each in self._all()), present)

    def _subscription(self, topic: str, group: str, fields: JsonFields, now: int) -> _Subscription | None:
        """One of the file's; None if it is not one of SQL, or RocketMQ's expressions allow what ours do not."""
        expression, kind = fields.text("expression", ""), fields.text("expressionType", "")
        born_ms, dead_ms = (fields.integer(name, 0, maximum=INT64_MAX) for name in ("bornTime", "deadTime"))
        client_version = fields.integer("clientVersion", 0, maximum=INT64_MAX)
        for name in ("bloomFilterData", "consumerGroup", "dead", "topic"):
            fields.skip(name)
        if kind != _SQL:
            return None
        try:
            compiled = sql_filter.compile_expression(expression)
        except InvalidFilterError as error:
            _log.info("SQL subscription is not loaded topic=%s group=%s cause=%s", topic, group, error)
            return None
        # As in RocketMQ, its consumers are gone at first.
        used_ms = min(dead_ms or now, now - IN_USE_MS - 1)
        mask = self._bloom.mask(topic, group)
        return _Subscription(expression, compiled, mask, 0, born_ms, used_ms, client_version, fields.rest())


def _begin_anew(subscriptions: Iterable[_Subscription], physical_offset: int) -> None:
    for subscription in subscriptions:
        subscription.begin = physical_offset
