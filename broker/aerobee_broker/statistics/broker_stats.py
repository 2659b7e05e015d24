"""The broker's traffic by topic, group and queue, over the last minute, hour and day: RocketMQ's stat sets.

Every ten seconds a sample is the traffic since the previous sample, of topics, groups and queues that have some. The
last minute consists of 6 such slots, the hour of 6 slots of ten minutes, the day of 24 slots of an hour. Memory
therefore depends on the traffic of the last day; idle topics cost nothing. A slot has at most `KEYS_MAX` topics, and as
many groups and queues, and fewer while all slots together have more than `ENTRIES_MAX` entries; the least busy ones
beyond are added up under `OTHERS`. Queues of deleted topics and groups are dropped within a minute.

All windows end now. The hour and the day may begin up to ten minutes or an hour earlier than their names say.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import date, datetime
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from aerobee_broker.counters.broker_counters import BrokerCounters, QueueCounters
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import dead_letter_topic, is_system_topic
from aerobee_store import MessageStore
from aerobee_store.clock import Clock, every
from aerobee_store.records.decimals import decimal

SAMPLE_SECONDS: Final = 10.0
KEYS_MAX: Final = 10_000
KEYS_MIN: Final = 250
"""The limit of a slot when all slots together have no space."""
ENTRIES_MAX: Final = 120_000
"""Entries of all slots of a broker, each some 300 to 450 bytes. At the most, each slot adds `KEYS_MIN` to this."""
OTHERS: Final = "(others)"
"""The topic and group under which entries beyond the limit are added up; their queue is `_QUEUE_OF_OTHERS`."""
_QUEUE_OF_OTHERS: Final = -1
_NO_QUEUE: Final = -2
_MEMORY_SHARE: Final = 0.4
"""How much of the memory has the end of the log: RocketMQ's `accessMessageInMemoryMaxRatio`."""
_SLOTS_THAT_GROW: Final = 3  # with a sample: it is one itself, and those of hour and day

Window = Literal["minute", "hour", "day"]
GroupKey = tuple[str, str]
"""Topic and consumer group."""
SentQueueKey = tuple[str, int]
"""Topic and queue."""
ReceivedQueueKey = tuple[str, int, str]
"""Topic, queue and consumer group."""


class TopicTraffic(NamedTuple):
    """Messages sent to a topic. `milliseconds`: the sum of the durations of all requests."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    milliseconds: float = 0.0


class GroupTraffic(NamedTuple):
    """Messages delivered from a topic to a group. `milliseconds`: the sum of the times from storing to delivery."""

    messages: int = 0
    bytes: int = 0
    milliseconds: float = 0.0
    acknowledged: int = 0
    changed: int = 0  # invisible times
    dead_letters: int = 0
    disk_messages: int = 0  # delivered so late that they come from the disk
    disk_bytes: int = 0

    def plus(self, other: GroupTraffic) -> GroupTraffic:
        return _sum(self, other)


class QueueTraffic(NamedTuple):
    """Messages sent to a queue, or delivered from it to a group."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0


class StatsItem(Struct, frozen=True):
    """One entry of a RocketMQ stat set over a window. `average` is `sum` divided by `times`, 0 without any."""

    sum: float
    times: int
    per_second: float
    average: float


# The slots of the minute are samples themselves.
_SAMPLES_OF_SLOT: Final[Mapping[Window, int]] = {"hour": 60, "day": 360}

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", TopicTraffic, GroupTraffic, QueueTraffic)


class _Slot(Generic[K, V]):
    """The traffic of a period, by key."""

    __slots__ = ("seconds", "traffic")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.traffic: dict[K, V] = {}

    def add(self, other: _Slot[K, V]) -> None:
        self.seconds += other.seconds
        for key, values in other.traffic.items():
            before = self.traffic.get(key)
            self.traffic[key] = values if before is None else _sum(before, values)

    def limit(self, key_of_others: K, keys_max: int) -> None:
        """Add up the least busy entries beyond `keys_max`."""
        if len(self.traffic) <= keys_max:
            return
        others = self.traffic.pop(key_of_others, None)
        busiest = sorted(self.traffic.items(), key=lambda item: item[1].messages, reverse=True)
        self.traffic = dict(busiest[: keys_max - 1])
        for _, values in busiest[keys_max - 1 :]:
            others = values if others is None else _sum(others, values)
        if others is not None:
            self.traffic[key_of_others] = others


class _Source(Generic[K, V]):
    """The traffic since the last sample, from counters that only rise."""

    def __init__(self, read: Callable[[], dict[K, V]]) -> None:
        self._read: Callable[[], dict[K, V]] = read
        self._last: dict[K, V] = read()

    def since_last(self) -> dict[K, V]:
        return self._since_last()[0]

    def take(self) -> dict[K, V]:
        """The traffic up to now; the next begins here."""
        traffic, self._last = self._since_last()
        return traffic

    def _since_last(self) -> tuple[dict[K, V], dict[K, V]]:
        traffic: dict[K, V] = {}
        current = self._read()
        for key, values in current.items():
            before = self._last.get(key)
            if before is None:
                if any(values):
                    traffic[key] = values
            elif before != values:
                traffic[key] = _difference(values, before)
        return traffic, current


class _QueueSource(Generic[K]):
    """The traffic of queues since the last sample, from counters that begin anew with each sample."""

    def __init__(self, counters: dict[K, QueueCounters]) -> None:
        self._counters = counters

    def since_last(self) -> dict[K, QueueTraffic]:
        return {key: QueueTraffic(found.messages, found.bytes, found.requests) for key, found in self._counters.items()}

    def take(self) -> dict[K, QueueTraffic]:
        traffic = self.since_last()
        self._counters.clear()
        return traffic


class _AnySource(Protocol[K, V]):
    def since_last(self) -> dict[K, V]: ...

    def take(self) -> dict[K, V]: ...


class _Windows(Generic[K, V]):
    """The slots of topics, groups or queues. `key_of_others`: the key for entries beyond the limit."""

    def __init__(self, source: _AnySource[K, V], key_of_others: K) -> None:
        self._source: _AnySource[K, V] = source
        self._key_of_others = key_of_others
        self._slots: dict[Window, deque[_Slot[K, V]]] = {
            "minute": deque(maxlen=6),
            "hour": deque(maxlen=6),
            "day": deque(maxlen=24),
        }
        self._open: dict[Window, _Slot[K, V]] = {"hour": _Slot(), "day": _Slot()}
        self._samples = 0

    @property
    def entry_count(self) -> int:
        """Entries of all slots."""
        return sum(len(slot.traffic) for slot in self._all_slots())

    def take(self, seconds: float, keys_max: int) -> None:
        """End a slot of the minute, `seconds` after the previous one. `keys_max`: the limit of each slot that grows."""
        slot: _Slot[K, V] = _Slot()
        slot.seconds, slot.traffic = seconds, self._source.take()
        slot.limit(self._key_of_others, keys_max)
        self._slots["minute"].append(slot)
        self._samples += 1
        for window, samples in _SAMPLES_OF_SLOT.items():
            self._open[window].add(slot)
            self._open[window].limit(self._key_of_others, keys_max)
            if self._samples % samples == 0:
                self._slots[window].append(self._open[window])
                self._open[window] = _Slot()

    def total(self, window: Window, seconds: float) -> _Slot[K, V]:
        """The sum of a window up to now, `seconds` after the last sample."""
        total: _Slot[K, V] = _Slot()
        for slot in self._slots_of(window, seconds):
            total.add(slot)
        return total

    def of(self, key: K, window: Window, seconds: float) -> tuple[V | None, float]:
        """One entry of `total`, and the seconds of the window."""
        found, length = None, 0.0
        for slot in self._slots_of(window, seconds):
            length += slot.seconds
            values = slot.traffic.get(key)
            if values is not None:
                found = values if found is None else _sum(found, values)
        return found, length

    def recent(self, seconds: float) -> _Slot[K, V]:
        """The last sample with what came since, `seconds` after it: 10 to 20 seconds."""
        total: _Slot[K, V] = self._now(seconds)
        if samples := self._slots["minute"]:
            total.add(samples[-1])
        return total

    def drop(self, is_gone: Callable[[K], bool]) -> None:
        """Forget these keys in all slots."""
        for slot in self._all_slots():
            for key in [key for key in slot.traffic if is_gone(key)]:
                del slot.traffic[key]

    def _all_slots(self) -> Iterator[_Slot[K, V]]:
        for slots in self._slots.values():
            yield from slots
        yield from self._open.values()

    def _slots_of(self, window: Window, seconds: float) -> Iterator[_Slot[K, V]]:
        yield from self._slots[window]
        if window in self._open:
            yield self._open[window]
        yield self._now(seconds)

    def _now(self, seconds: float) -> _Slot[K, V]:
        now: _Slot[K, V] = _Slot()
        now.seconds, now.traffic = seconds, self._source.since_last()
        return now


class BrokerStats:
    """The windows over the counters of one broker. Event loop only."""

    name: Final = "broker-stats"

    def __init__(
        self,
        counters: BrokerCounters,
        tables: Tables,
        store: MessageStore,
        clock: Clock,
        read_offset: Callable[[str, str, int], int | None],
        *,
        memory_bytes: int | None = None,
    ) -> None:
        """`read_offset`: after the messages that a group has seen, by topic, group and queue; None if it has no
        position there. `memory_bytes`: of the machine."""
        self._counters = counters
        self._tables = tables
        self._store = store
        self._clock = clock
        self._read_offset = read_offset
        if memory_bytes is None:
            memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._memory_of_log = round(memory_bytes * _MEMORY_SHARE)
        self._sampled_at = clock.monotonic()
        self._samples = 0
        self._revisions = tables.topics.saved_revision, tables.groups.saved_revision
        self._topics: _Windows[str, TopicTraffic] = _Windows(_Source(self._topics_now), OTHERS)
        self._groups: _Windows[GroupKey, GroupTraffic] = _Windows(_Source(self._groups_now), (OTHERS, OTHERS))
        self._sent_queues: _Windows[SentQueueKey, QueueTraffic] = _Windows(
            _QueueSource(counters.sent_to_queues), (OTHERS, _QUEUE_OF_OTHERS)
        )
        self._received_queues: _Windows[ReceivedQueueKey, QueueTraffic] = _Windows(
            _QueueSource(counters.received_from_queues), (OTHERS, _QUEUE_OF_OTHERS, OTHERS)
        )
        self._all_windows: Final[tuple[_Windows[Any, Any], ...]] = (
            *(self._topics, self._groups, self._sent_queues, self._received_queues),
        )
        self._day = self._today()
        self._mornings = ((0, 0), (0, 0))
        self._update_disk_end()

    @property
    def mornings(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Messages (appended, read) since the start at the beginning of yesterday and of today, in local time."""
        return self._mornings

    @property
    def messages_in(self) -> int:
        """Messages stored for producers since the start."""
        return self._counters.forgotten_in + sum(counters.messages for counters in self._counters.sent.values())

    @property
    def messages_out(self) -> int:
        """Messages delivered to consumers since the start."""
        return self._counters.forgotten_out + sum(counters.messages for counters in self._counters.received.values())

    def topics(self, window: Window) -> dict[str, TopicTraffic]:
        """The topics (stored names) with messages in the window."""
        return self._topics.total(window, self._seconds_since_sample()).traffic

    def groups(self, window: Window) -> dict[GroupKey, GroupTraffic]:
        """The topics and groups (stored names) with deliveries in the window."""
        return self._groups.total(window, self._seconds_since_sample()).traffic

    def recent(self) -> tuple[float, dict[str, TopicTraffic], dict[GroupKey, GroupTraffic]]:
        """The traffic of topics and groups in the last 10 to 20 seconds, and the exact number of seconds."""
        seconds = self._seconds_since_sample()
        topics = self._topics.recent(seconds)
        return topics.seconds, topics.traffic, self._groups.recent(seconds).traffic

    def seconds(self, window: Window) -> float:
        """The length of the window in seconds: at first, the time since the start."""
        return self._topics.total(window, self._seconds_since_sample()).seconds

    def per_second(self) -> tuple[float, float]:
        """Messages (in, out) per second over the last minute, or since the start if that is less."""
        seconds = self._seconds_since_sample()
        topics, groups = self._topics.total("minute", seconds), self._groups.total("minute", seconds)
        if topics.seconds <= 0:
            return 0.0, 0.0
        incoming = sum(traffic.messages for traffic in topics.traffic.values())
        outgoing = sum(traffic.messages for traffic in groups.traffic.values())
        return incoming / topics.seconds, outgoing / groups.seconds

    def item(self, stat_set: str, key: str, window: Window) -> StatsItem:
        """An entry under RocketMQ's names; all zeros without traffic.

        `stat_set` is one of `STAT_SETS`. `key`: a topic, `topic@group`, `topic@queue`, `topic@queue@group`,
        `queue@topic@group`, or anything for the broker's sets. Raises KeyError for an unknown set.
        """
        amounts, length = self._amounts(stat_set, key, window)
        total, times = sum(amount for amount, _ in amounts), sum(count for _, count in amounts)
        return StatsItem(
            sum=total,
            times=times,
            per_second=total / length if length > 0 else 0.0,
            average=total / times if times else 0.0,
        )

    def _amounts(self, stat_set: str, key: str, window: Window) -> tuple[list[tuple[float, int]], float]:
        """What such an entry sums up: amounts, each with how often it came; and the seconds in which they came."""
        kind, pick = STAT_SETS[stat_set]
        seconds = self._seconds_since_sample()
        amounts: list[tuple[float, int]]
        if kind == "topic":
            topic, length = self._topics.of(key, window, seconds)
            amounts = [pick(topic or TopicTraffic())]
        elif kind == "group":
            name, _, group_name = key.rpartition("@")
            group, length = self._groups.of((name, group_name), window, seconds)
            amounts = [pick(group or GroupTraffic())]
        elif kind == "sent-queue":
            name, _, queue = key.rpartition("@")
            sent, length = self._sent_queues.of((name, _queue_id(queue)), window, seconds)
            amounts = [pick(sent or QueueTraffic())]
        elif kind == "received-queue":
            rest, _, group_name = key.rpartition("@")
            name, _, queue = rest.rpartition("@")
            received, length = self._received_queues.of((name, _queue_id(queue), group_name), window, seconds)
            amounts = [pick(received or QueueTraffic())]
        elif kind == "fall":
            queue, _, rest = key.partition("@")
            name, _, group_name = rest.rpartition("@")
            amounts, length = [pick(*self._fall(name, _queue_id(queue), group_name))], 0.0
        elif kind == "broker-topic":
            topics = self._topics.total(window, seconds)
            ours = stat_set.endswith(_WITHOUT_SYSTEM)
            amounts = [pick(t) for name, t in topics.traffic.items() if not (ours and is_system_topic(name))]
            length = topics.seconds
        else:
            groups = self._groups.total(window, seconds)
            ours = stat_set.endswith(_WITHOUT_SYSTEM)
            amounts = [pick(t) for (name, _), t in groups.traffic.items() if not (ours and is_system_topic(name))]
            length = groups.seconds
        return amounts, length

    def take(self) -> None:
        """Take a sample now."""
        now = self._clock.monotonic()
        seconds, self._sampled_at = now - self._sampled_at, now
        for windows in self._all_windows:
            windows.take(seconds, self._keys_max())
        self._update_disk_end()
        self._samples += 1
        if (today := self._today()) > self._day:
            self._day = today
            self._mornings = self._mornings[1], (self._store.stats.messages_appended, self._store.stats.messages_read)
        if self._samples % 6 == 0:
            topics, groups = self._tables.topics, self._tables.groups
            self._counters.forget(lambda name: topics.get(name) is not None, lambda name: groups.get(name) is not None)
            revisions = topics.saved_revision, groups.saved_revision
            if revisions != self._revisions:
                self._revisions = revisions
                self._drop_queues()

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000).date()

    async def run(self) -> None:
        """Sample, until cancelled."""
        await every(SAMPLE_SECONDS, self.take)

    def _drop_queues(self) -> None:
        """Forget the queues of deleted topics and groups."""
        topics, groups = self._tables.topics, self._tables.groups
        self._sent_queues.drop(lambda key: key[0] != OTHERS and topics.get(key[0]) is None)
        self._received_queues.drop(
            lambda key: key[0] != OTHERS and (topics.get(key[0]) is None or groups.get(key[2]) is None)
        )

    def _update_disk_end(self) -> None:
        self._counters.disk_end = max(0, self._store.positions[0] - self._memory_of_log)

    def _fall(self, topic: str, queue_id: int, group: str) -> tuple[int, int]:
        """How far a group is behind in a queue: (bytes of the log, milliseconds) since the first message that it has
        not seen."""
        if topic not in self._tables.topics or group not in self._tables.groups:
            return 0, 0
        offset = self._read_offset(topic, group, queue_id)
        if offset is None:
            return 0, 0
        offset = max(offset, self._store.queue_range(topic, queue_id)[0])
        place = self._store.physical_offset_at(topic, queue_id, offset)
        stored_ms = self._store.store_timestamp_at(topic, queue_id, offset)
        if place is None or stored_ms is None:
            return 0, 0
        return self._store.positions[0] - place, max(0, self._clock.now_ms() - stored_ms)

    def _keys_max(self) -> int:
        """The limit of a slot that grows now."""
        count = sum(windows.entry_count for windows in self._all_windows)
        return min(KEYS_MAX, max(KEYS_MIN, (ENTRIES_MAX - count) // _SLOTS_THAT_GROW))

    def _seconds_since_sample(self) -> float:
        return max(0.0, self._clock.monotonic() - self._sampled_at)

    def _topics_now(self) -> dict[str, TopicTraffic]:
        found: dict[str, TopicTraffic] = {}
        for (topic, _), sent in self._counters.sent.items():
            latency = sent.milliseconds
            values = TopicTraffic(sent.messages, sent.bytes, latency.count, latency.sum)
            before = found.get(topic)
            found[topic] = values if before is None else _sum(before, values)
        return found

    def _groups_now(self) -> dict[GroupKey, GroupTraffic]:
        found = {
            key: GroupTraffic(
                received.messages,
                received.bytes,
                received.milliseconds.sum,
                received.acknowledged,
                received.changed,
                disk_messages=received.disk_messages,
                disk_bytes=received.disk_bytes,
            )
            for key, received in self._counters.received.items()
        }
        for group in self._tables.groups:
            # Dead letters are the only messages of their topic, whatever their original topic.
            topic = dead_letter_topic(group.name)
            count = self._store.queue_range(topic, 0)[1]
            if count:
                found[topic, group.name] = _sum(found.get((topic, group.name), GroupTraffic()), _dead_letters(count))
        return found


_WITHOUT_SYSTEM: Final = "_WITHOUT_SYSTEM_TOPIC"

Pick = Callable[..., tuple[float, int]]
Kind = Literal["topic", "group", "sent-queue", "received-queue", "fall", "broker-topic", "broker-group"]
STAT_SETS: Final[Mapping[str, tuple[Kind, Pick]]] = {
    "TOPIC_PUT_NUMS": ("topic", lambda traffic: (traffic.messages, traffic.requests)),
    "TOPIC_PUT_SIZE": ("topic", lambda traffic: (traffic.bytes, traffic.requests)),
    "TOPIC_PUT_LATENCY": ("topic", lambda traffic: (traffic.milliseconds, traffic.requests)),
    "GROUP_GET_NUMS": ("group", lambda traffic: (traffic.messages, traffic.messages)),
    "GROUP_GET_SIZE": ("group", lambda traffic: (traffic.bytes, traffic.messages)),
    "GROUP_GET_LATENCY": ("group", lambda traffic: (traffic.milliseconds, traffic.messages)),
    "GROUP_GET_FROM_DISK_NUMS": ("group", lambda traffic: (traffic.disk_messages, traffic.disk_messages)),
    "GROUP_GET_FROM_DISK_SIZE": ("group", lambda traffic: (traffic.disk_bytes, traffic.disk_messages)),
    "GROUP_GET_FALL_SIZE": ("fall", lambda size, milliseconds: (size, 1)),
    "GROUP_GET_FALL_TIME": ("fall", lambda size, milliseconds: (milliseconds, 1)),
    "QUEUE_PUT_NUMS": ("sent-queue", lambda traffic: (traffic.messages, traffic.requests)),
    "QUEUE_PUT_SIZE": ("sent-queue", lambda traffic: (traffic.bytes, traffic.requests)),
    "QUEUE_GET_NUMS": ("received-queue", lambda traffic: (traffic.messages, traffic.requests)),
    "QUEUE_GET_SIZE": ("received-queue", lambda traffic: (traffic.bytes, traffic.requests)),
    "GROUP_ACK_NUMS": ("group", lambda traffic: (traffic.acknowledged, traffic.acknowledged)),
    "GROUP_CK_NUMS": ("group", lambda traffic: (traffic.changed, traffic.changed)),
    "DLQ_PUT_NUMS": ("group", lambda traffic: (traffic.dead_letters, traffic.dead_letters)),
    "BROKER_PUT_NUMS": ("broker-topic", lambda traffic: (traffic.messages, traffic.requests)),
    "BROKER_GET_NUMS": ("broker-group", lambda traffic: (traffic.messages, traffic.messages)),
    "BROKER_GET_FROM_DISK_NUMS": ("broker-group", lambda traffic: (traffic.disk_messages, traffic.disk_messages)),
    "BROKER_GET_FROM_DISK_SIZE": ("broker-group", lambda traffic: (traffic.disk_bytes, traffic.disk_messages)),
    "BROKER_ACK_NUMS": ("broker-group", lambda traffic: (traffic.acknowledged, traffic.acknowledged)),
    "BROKER_CK_NUMS": ("broker-group", lambda traffic: (traffic.changed, traffic.changed)),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": ("broker-topic", lambda traffic: (traffic.messages, traffic.requests)),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": ("broker-group", lambda traffic: (traffic.messages, traffic.messages)),
}
"""The stat sets of RocketMQ: how the key is formed, and (sum, times) of it. Latencies in milliseconds. A fall is the
value at the time of the question, the same in each window."""


def _queue_id(text: str) -> int:
    """A number that no queue has if the text is not one."""
    number = decimal(text)
    return _NO_QUEUE if number is None else number


def _dead_letters(count: int) -> GroupTraffic:
    return GroupTraffic(dead_letters=count)


def _sum(first: V, second: V) -> V:
    return type(first)._make(a + b for a, b in zip(first, second, strict=True))


def _difference(first: V, second: V) -> V:
    return type(first)._make(a - b for a, b in zip(first, second, strict=True))
