"""Samples the broker every second, and judges its problems every ten."""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import nan
from pathlib import Path
from typing import Final

from msgspec import Struct

from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.parts import BrokerParts
from aerobee_broker.tables.consumer_groups import is_system_group
from aerobee_broker.tables.topics import dead_letter_topic, is_system_topic
from aerobee_broker.watching.backlog import Backlog, backlogs_of
from aerobee_broker.watching.history import BROKER, History, Sample, Subject
from aerobee_broker.watching.rules import Facts, Judge
from aerobee_broker.watching.trend import LONGEST_MS, seconds_until
from aerobee_store.clock import every
from aerobee_store.records.topic_names import RETRY_PREFIX

SAMPLE_SECONDS: Final = 1.0
_LOOKS_EVERY: Final = 10  # samples between two looks at what takes longer
_RECENT_LOOKS: Final = 30  # five minutes
_DEAD_LETTER_LOOKS: Final = 90  # 15 minutes
_TREND_MINUTES: Final = LONGEST_MS // 60_000
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
_FAILURES: Final = frozenset(
    ("INTERNAL_ERROR", "INTERNAL_SERVER_ERROR", "MASTER_PERSISTENCE_TIMEOUT", "TOO_MANY_REQUESTS")
)


class _Look(Struct, frozen=True):
    """Counters at the time of a look, for differences over minutes."""

    calls: dict[str, tuple[int, int]]
    sync_counts: list[int]
    dead_letters: dict[str, int]


class Watch:
    """The history and the problems of one broker. Event loop only."""

    name: Final = "watch"

    def __init__(
        self,
        parts: BrokerParts,
        replica_lags: Callable[[], Mapping[str, int]] | None,
        other_groups: Callable[[], Iterable[str]],
    ) -> None:
        """`replica_lags` of a master; None: the broker takes no part in replication. `other_groups`: those with
        consumers that the registry does not know."""
        self._other_groups = other_groups
        self._parts = parts
        self._replica_lags = replica_lags
        self._samples = 0
        self._looks: deque[_Look] = deque(maxlen=_DEAD_LETTER_LOOKS + 1)
        self._levels: dict[Subject, tuple[float, ...]] = {}
        self._disk_used = self._memory = self._backlog = nan
        self._delay = (0.0, 0)
        self.history: Final = History()
        self.judge: Final = Judge()
        """What needs attention, as of the last look."""

    async def run(self) -> None:
        """Sample, until cancelled."""
        await self.sample()
        await every(SAMPLE_SECONDS, self.sample)

    async def sample(self) -> None:
        """Take one sample; every tenth one includes backlogs and problems."""
        if self._samples % _LOOKS_EVERY == 0:
            await self._look()
        self._samples += 1
        clock = self._parts.clock
        delay = self._parts.loop_delay.seconds
        waited, count = delay.sum - self._delay[0], delay.count - self._delay[1]
        self._delay = delay.sum, delay.count
        self._levels[BROKER] = (
            self._disk_used,
            self._memory,
            float(len(self._parts.clients)),
            self._backlog,
            waited / count if count else 0.0,
        )
        self.history.take(Sample(clock.now_ms(), clock.monotonic(), self._counters(), dict(self._levels)))
        self._levels = {}

    def _counters(self) -> dict[Subject, tuple[float, ...]]:
        counters = self._parts.counters
        topics: dict[str, list[float]] = {}
        for (topic, _), sent in counters.sent.items():
            values = topics.setdefault(topic, [0.0, 0.0, 0.0])
            values[0] += sent.messages
            values[1] += sent.bytes
        groups: dict[str, list[float]] = {}
        for (topic, group), received in counters.received.items():
            topics.setdefault(topic, [0.0, 0.0, 0.0])[2] += received.messages
            of_group = groups.setdefault(group, [0.0, 0.0])
            of_group[0] += received.messages
            of_group[1] += received.acknowledged
        stats = self._parts.broker_stats
        broker = (
            float(stats.messages_in),
            sum(values[1] for values in topics.values()),
            float(stats.messages_out),
            float(self._parts.deliveries.stats.acknowledged),
            float(self._parts.store.stats.sync_seconds.count),
        )
        found: dict[Subject, tuple[float, ...]] = {BROKER: broker}
        found.update({("topic", name): tuple(values) for name, values in topics.items()})
        found.update({("group", name): tuple(values) for name, values in groups.items()})
        return found

    async def _look(self) -> None:
        """Look at backlogs, disks and everything that the rules judge."""
        now_ms = self._parts.clock.now_ms()
        backlogs = await self._backlogs()
        total = 0
        for group, topics in backlogs.items():
            of_group = Backlog()
            for backlog in topics.values():
                of_group.add(backlog)
            total += of_group.lag
            age = 0.0 if of_group.oldest_ms is None else max(now_ms - of_group.oldest_ms, 0) / 1000
            self._levels["group", group] = float(of_group.lag), age
        self._backlog = float(total)
        self._memory = float(_resident_bytes())
        self.judge.judge(self._facts(now_ms, backlogs))

    async def _backlogs(self) -> dict[str, dict[str, Backlog]]:
        turns = Turns()
        found = {}
        for group in list(self._parts.tables.groups):
            if not is_system_group(group.name):
                found[group.name] = await backlogs_of(self._parts.deliveries, self._parts.store, group.name, turns)
            await turns.next()
        return found

    def _facts(self, now_ms: int, backlogs: dict[str, dict[str, Backlog]]) -> Facts:
        store, stats = self._parts.store, self._parts.store.stats
        status = store.status()
        self._disk_used = float(status.disk.used)
        look = _Look(self._calls(), list(stats.sync_seconds.counts), self._dead_letters())
        before = self._looks[-min(_RECENT_LOOKS, len(self._looks))] if self._looks else look
        oldest = self._looks[0] if self._looks else look
        self._looks.append(look)
        times, figures = self.history.minutes(BROKER, _TREND_MINUTES)
        disks = [status.disk] if not status.log_disks else list(status.log_disks.values())
        return Facts(
            now_ms=now_ms,
            sync_failures=stats.sync_failures,
            damage=stats.checksum_failures + status.damaged_ranges,
            disk_ratio=max(
                status.disk.used / max(status.disk.total, 1), min(disk.used / max(disk.total, 1) for disk in disks)
            ),
            disk_full_ratio=status.disk_full_ratio,
            disk_full_in_seconds=seconds_until(
                status.disk_full_ratio * status.disk.total, times, figures["disk_used_bytes"]
            ),
            tables_changed=stats.tables_changed,
            unsynced_bytes=status.wrote - status.flushed,
            undispatched_bytes=status.wrote - status.dispatched,
            descriptors_ratio=_descriptors_ratio(),
            tables_ratio=self._parts.tables.space.ratio,
            recent_calls=_calls_between(before, look),
            recent_sync_seconds=percentile_99(stats.sync_seconds.bounds, look.sync_counts, before.sync_counts),
            backlogs={group: _of_users(topics) for group, topics in backlogs.items()},
            connected_groups=frozenset(
                (*(client.group for client in self._parts.clients.all() if client.group), *self._other_groups())
            ),
            new_dead_letters={
                group: count - oldest.dead_letters.get(group, 0) for group, count in look.dead_letters.items()
            },
            replica_lags=None if self._replica_lags is None else self._replica_lags(),
        )

    def _calls(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for (_, method, code), milliseconds in self._parts.counters.rpc_milliseconds.items():
            answers, failed = found.get(method, (0, 0))
            count = milliseconds.count
            found[method] = answers + count, failed + (count if code in _FAILURES else 0)
        return found

    def _dead_letters(self) -> dict[str, int]:
        """Ever, by group: the end of their queue."""
        ends = (
            (group.name, self._parts.store.queue_range(dead_letter_topic(group.name), 0)[1])
            for group in self._parts.tables.groups
        )
        return {group: end for group, end in ends if end}


def percentile_99(bounds: Iterable[float], counts: list[int], before: list[int]) -> float:
    """What one value in a hundred since `before` exceeds, interpolated within its bucket as Prometheus does; 0 without
    values."""
    recent = [count - earlier for count, earlier in zip(counts, before, strict=True)]
    wanted = sum(recent) * 0.99
    lower = seen = 0.0
    for bound, count in zip(bounds, recent, strict=False):
        if count and seen + count >= wanted:
            return lower + (bound - lower) * (wanted - seen) / count
        seen += count
        lower = bound
    return lower if sum(recent) else 0.0


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_SIZE
    except OSError:  # not Linux: the peak, in kilobytes or bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _descriptors_ratio() -> float:
    """Used, of the limit; 0 where that cannot be known."""
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0.0
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return used / limit if limit > 0 else 0.0


def _calls_between(before: _Look, look: _Look) -> dict[str, tuple[int, int]]:
    """By method: the answers between two looks, and how many of them failed."""
    return {
        method: (answers - earlier[0], failed - earlier[1])
        for method, (answers, failed) in look.calls.items()
        if (earlier := before.calls.get(method, (0, 0)))
    }


def _of_users(topics: dict[str, Backlog]) -> dict[str, Backlog]:
    return {
        topic: backlog
        for topic, backlog in topics.items()
        if not is_system_topic(topic) and not topic.startswith(RETRY_PREFIX)
    }
