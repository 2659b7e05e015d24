"""The broker's traffic by topic and by group, over the last minute, hour and day: RocketMQ's stat sets.

Every ten seconds a sample is the difference of the counters since the previous sample, for topics and groups with
traffic. The last minute consists of 6 such slots, the hour of 6 slots of ten minutes, the day of 24 slots of an hour.
Memory therefore depends on the traffic of the last day; idle and deleted topics cost nothing. A slot has at most
`KEYS_MAX` topics, and as many pairs of topic and group; the least busy ones beyond are added up under `OTHERS`.

All windows end now. The hour and the day may begin up to ten minutes or an hour earlier than their names say.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from aerobee_broker.metrics.counters import BrokerCounters
from aerobee_broker.tables.tables import Tables
from aerobee_broker.tables.topics import dead_letter_topic, is_system_topic
from aerobee_store import MessageStore
from aerobee_store.clock import Clock

SAMPLE_SECONDS: Final = 10.0
KEYS_MAX: Final = 10_000
OTHERS: Final = "(others)"
"""The topic and group under which entries beyond the limit are added up."""

Window = Literal["minute", "hour", "day"]
GroupKey = tuple[str, str]
"""Topic and consumer group."""


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


@dataclass(frozen=True, slots=True)
class StatsItem:
    """One entry of a RocketMQ stat set over a window. `average` is `sum` divided by `times`, 0 without any."""

    sum: float
    times: int
    per_second: float
    average: float


# The slots of the minute are samples themselves.
_SAMPLES_OF_SLOT: Final[Mapping[Window, int]] = {"hour": 60, "day": 360}

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", TopicTraffic, GroupTraffic)


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


class _Windows(Generic[K, V]):
    """The slots of topics, or of groups. `key_of_others`: the key for entries beyond the limit."""

    def __init__(self, read: Callable[[], dict[K, V]], key_of_others: K) -> None:
        self._read: Callable[[], dict[K, V]] = read
        self._key_of_others = key_of_others
        self._last: dict[K, V] = read()
        self._slots: dict[Window, deque[_Slot[K, V]]] = {
            "minute": deque(maxlen=6),
            "hour": deque(maxlen=6),
            "day": deque(maxlen=24),
        }
        self._open: dict[Window, _Slot[K, V]] = {"hour": _Slot(), "day": _Slot()}
        self._samples = 0

    def take(self, seconds: float) -> None:
        """End a slot of the minute, `seconds` after the previous one."""
        slot, self._last = self._since_last(seconds)
        if len(slot.traffic) > KEYS_MAX:
            busiest = sorted(slot.traffic.items(), key=lambda item: item[1].messages, reverse=True)
            slot.traffic = dict(busiest[: KEYS_MAX - 1])
            for _, values in busiest[KEYS_MAX - 1 :]:
                before = slot.traffic.get(self._key_of_others)
                slot.traffic[self._key_of_others] = values if before is None else _sum(before, values)
        self._slots["minute"].append(slot)
        self._samples += 1
        for window, samples in _SAMPLES_OF_SLOT.items():
            self._open[window].add(slot)
            if self._samples % samples == 0:
                self._slots[window].append(self._open[window])
                self._open[window] = _Slot()

    def total(self, window: Window, seconds: float) -> _Slot[K, V]:
        """The sum of a window up to now, `seconds` after the last sample."""
        total: _Slot[K, V] = _Slot()
        for slot in self._slots[window]:
            total.add(slot)
        if window in self._open:
            total.add(self._open[window])
        total.add(self._since_last(seconds)[0])
        return total

    def _since_last(self, seconds: float) -> tuple[_Slot[K, V], dict[K, V]]:
        slot: _Slot[K, V] = _Slot()
        slot.seconds = seconds
        current = self._read()
        for key, values in current.items():
            before = self._last.get(key)
            if before is None:
                if any(values):
                    slot.traffic[key] = values
            elif before != values:
                slot.traffic[key] = _difference(values, before)
        return slot, current


class BrokerStats:
    """The windows over the counters of one broker. Event loop only."""

    name: Final = "broker-stats"

    def __init__(self, counters: BrokerCounters, tables: Tables, store: MessageStore, clock: Clock) -> None:
        self._counters = counters
        self._tables = tables
        self._store = store
        self._clock = clock
        self._sampled_at = clock.monotonic()
        self._samples = 0
        self._topics: _Windows[str, TopicTraffic] = _Windows(self._topics_now, OTHERS)
        self._groups: _Windows[GroupKey, GroupTraffic] = _Windows(self._groups_now, (OTHERS, OTHERS))

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

        `stat_set` is one of `STAT_SETS`. `key`: a topic, `topic@group`, or anything for the broker's sets. Raises
        KeyError for an unknown set.
        """
        kind, pick = STAT_SETS[stat_set]
        seconds = self._seconds_since_sample()
        if kind == "topic":
            topics = self._topics.total(window, seconds)
            amounts = [pick(topics.traffic.get(key, TopicTraffic()))]
            length = topics.seconds
        elif kind == "group":
            groups = self._groups.total(window, seconds)
            topic, _, group = key.rpartition("@")
            amounts = [pick(groups.traffic.get((topic, group), GroupTraffic()))]
            length = groups.seconds
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
        total, times = sum(amount for amount, _ in amounts), sum(count for _, count in amounts)
        return StatsItem(
            sum=total,
            times=times,
            per_second=total / length if length > 0 else 0.0,
            average=total / times if times else 0.0,
        )

    def take(self) -> None:
        """Take a sample now."""
        now = self._clock.monotonic()
        seconds, self._sampled_at = now - self._sampled_at, now
        self._topics.take(seconds)
        self._groups.take(seconds)
        self._samples += 1
        if self._samples % 6 == 0:
            topics, groups = self._tables.topics, self._tables.groups
            self._counters.forget(lambda name: topics.get(name) is not None, lambda name: groups.get(name) is not None)

    async def run(self) -> None:
        """Sample, until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.take()

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
STAT_SETS: Final[Mapping[str, tuple[Literal["topic", "group", "broker-topic", "broker-group"], Pick]]] = {
    "TOPIC_PUT_NUMS": ("topic", lambda traffic: (traffic.messages, traffic.requests)),
    "TOPIC_PUT_SIZE": ("topic", lambda traffic: (traffic.bytes, traffic.requests)),
    "TOPIC_PUT_LATENCY": ("topic", lambda traffic: (traffic.milliseconds, traffic.requests)),
    "GROUP_GET_NUMS": ("group", lambda traffic: (traffic.messages, traffic.messages)),
    "GROUP_GET_SIZE": ("group", lambda traffic: (traffic.bytes, traffic.messages)),
    "GROUP_GET_LATENCY": ("group", lambda traffic: (traffic.milliseconds, traffic.messages)),
    "GROUP_ACK_NUMS": ("group", lambda traffic: (traffic.acknowledged, traffic.acknowledged)),
    "GROUP_CK_NUMS": ("group", lambda traffic: (traffic.changed, traffic.changed)),
    "DLQ_PUT_NUMS": ("group", lambda traffic: (traffic.dead_letters, traffic.dead_letters)),
    "BROKER_PUT_NUMS": ("broker-topic", lambda traffic: (traffic.messages, traffic.requests)),
    "BROKER_GET_NUMS": ("broker-group", lambda traffic: (traffic.messages, traffic.messages)),
    "BROKER_ACK_NUMS": ("broker-group", lambda traffic: (traffic.acknowledged, traffic.acknowledged)),
    "BROKER_CK_NUMS": ("broker-group", lambda traffic: (traffic.changed, traffic.changed)),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": ("broker-topic", lambda traffic: (traffic.messages, traffic.requests)),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": ("broker-group", lambda traffic: (traffic.messages, traffic.messages)),
}
"""The stat sets of RocketMQ kept here: how the key is formed, and (sum, times) of it. Latencies in milliseconds."""


def _dead_letters(count: int) -> GroupTraffic:
    return GroupTraffic(dead_letters=count)


def _sum(first: V, second: V) -> V:
    return type(first)._make(a + b for a, b in zip(first, second, strict=True))


def _difference(first: V, second: V) -> V:
    return type(first)._make(a - b for a, b in zip(first, second, strict=True))
