"""Figures over time, in memory: one point a second for ten minutes, and one a minute for a day.

A point is the change of a counter since the previous point, divided by the seconds between, or a level. Points are
numbered. A figure that does not change costs nothing: its points are filled in when it changes again, or is read.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from math import isnan, nan
from typing import Final, Literal

from msgspec import Struct

Kind = Literal["broker", "topic", "group"]
Subject = tuple[Kind, str]
"""The broker (with an empty name), a topic or a group."""
BROKER: Final[Subject] = ("broker", "")

SECONDS_COUNT: Final = 600
MINUTES_COUNT: Final = 1440
SECONDS_PER_MINUTE: Final = 60
SUBJECTS_MAX: Final = 500  # topics and groups with a history at a time: at most some 20 MB

RATES: Final[Mapping[Kind, tuple[str, ...]]] = {
    "broker": ("messages_in", "bytes_in", "messages_out", "acknowledged", "syncs"),
    "topic": ("messages_in", "bytes_in", "messages_out"),
    "group": ("messages_out", "acknowledged"),
}
LEVELS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "broker": ("disk_used_bytes", "memory_bytes", "clients", "backlog", "loop_delay_seconds"),
    "topic": (),
    "group": ("lag", "oldest_age_seconds"),
}


class Sample(Struct, frozen=True):
    """What was read at one moment. The order of values is that of RATES and LEVELS; a level may be NaN: unknown.

    A subject without an entry had no change since the previous sample.
    """

    at_ms: int
    monotonic: float
    counters: dict[Subject, tuple[float, ...]]
    levels: dict[Subject, tuple[float, ...]]


class _Ring:
    """The latest values of one figure, by the number of their point. `gap`: what points without a value have; None: the
    value before them."""

    __slots__ = ("_begin", "_capacity", "_end", "_gap", "_values")

    def __init__(self, capacity: int, begin: int, gap: float | None) -> None:
        self._capacity = capacity
        self._values = array("f")
        self._begin = begin
        self._end = begin
        self._gap = gap

    def put(self, number: int, value: float) -> None:
        while self._end < number:
            self._write(self._filler())
        self._write(value)

    def _filler(self) -> float:
        if self._gap is not None:
            return self._gap
        return self._values[(self._end - 1 - self._begin) % self._capacity] if self._values else nan

    def _write(self, value: float) -> None:
        place = (self._end - self._begin) % self._capacity
        if place < len(self._values):
            self._values[place] = value
        else:
            self._values.append(value)
        self._end += 1

    def values(self, begin: int, end: int) -> list[float]:
        """The values of these points; NaN before the first one."""
        filler = self._filler()
        oldest = max(self._begin, self._end - self._capacity)
        return [
            filler
            if number >= self._end
            else nan
            if number < oldest
            else self._values[(number - self._begin) % self._capacity]
            for number in range(begin, end)
        ]

    def is_idle_since(self, number: int) -> bool:
        return self._end <= number


class _Steps:
    """The points of one distance."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times: deque[int] = deque(maxlen=capacity)
        self._next = 0  # the number of the next point
        self._rings: dict[Subject, list[_Ring]] = {}
        self._before: Sample | None = None
        self._full_at = -1  # the point at which no subject was idle: thousands of others may come with it

    def take(self, sample: Sample) -> None:
        before, self._before = self._before, sample
        if before is None or sample.monotonic <= before.monotonic:
            return
        number, self._next = self._next, self._next + 1
        self._times.append(sample.at_ms)
        seconds = sample.monotonic - before.monotonic
        for subject, values in sample.counters.items():
            earlier = before.counters.get(subject)
            if earlier == values:
                continue
            rings = self._rings_of(subject, number)
            if rings is None:
                continue
            for ring, value, previous in zip(rings, values, earlier or (0.0,) * len(values), strict=False):
                ring.put(number, max(value - previous, 0.0) / seconds)  # counters of deleted topics are gone
        for subject, levels in sample.levels.items():
            if subject not in self._rings and not any(level and not isnan(level) for level in levels):
                continue
            rings = self._rings_of(subject, number)
            if rings is None:
                continue
            for ring, level in zip(rings[len(RATES[subject[0]]) :], levels, strict=True):
                ring.put(number, level)

    def _rings_of(self, subject: Subject, number: int) -> list[_Ring] | None:
        rings = self._rings.get(subject)
        if rings is None:
            if len(self._rings) > SUBJECTS_MAX and (self._full_at == number or not self._forget_idle(number)):
                self._full_at = number
                return None
            # Counters count from the start, so that a figure was 0 before its first change; a level was unknown.
            begin = max(0, number - len(self._times) + 1)
            kind = subject[0]
            rings = self._rings[subject] = [
                *(_Ring(self._capacity, begin, 0.0) for _ in RATES[kind]),
                *(_Ring(self._capacity, number, None) for _ in LEVELS[kind]),
            ]
        return rings

    def _forget_idle(self, number: int) -> bool:
        """Forget subjects without a point in the last tenth; whether there were any."""
        since = number - self._capacity // 10
        idle = [
            subject
            for subject, rings in self._rings.items()
            if subject != BROKER and all(ring.is_idle_since(since) for ring in rings)
        ]
        for subject in idle:
            del self._rings[subject]
        return bool(idle)

    def read(self, subject: Subject, count: int) -> tuple[list[int], dict[str, list[float]]]:
        times = list(self._times)[-count:] if count else list(self._times)
        begin = self._next - len(times)
        kind = subject[0]
        rings = self._rings.get(subject)
        names = (*RATES[kind], *LEVELS[kind])
        if rings is None:
            quiet = (*(0.0 for _ in RATES[kind]), *(nan for _ in LEVELS[kind]))
            return times, {name: [value] * len(times) for name, value in zip(names, quiet, strict=True)}
        return times, {name: ring.values(begin, self._next) for name, ring in zip(names, rings, strict=True)}


class History:
    """The figures of one broker. Event loop only."""

    def __init__(self) -> None:
        self._seconds = _Steps(SECONDS_COUNT)
        self._minutes = _Steps(MINUTES_COUNT)
        self._samples = 0

    def take(self, sample: Sample) -> None:
        """Add a point, a second after the previous one or later."""
        self._seconds.take(sample)
        if self._samples % SECONDS_PER_MINUTE == 0:
            self._minutes.take(sample)
        self._samples += 1

    def seconds(self, subject: Subject, count: int) -> tuple[list[int], dict[str, list[float]]]:
        """The ends of the latest `count` points (0: all), Unix milliseconds, and the figures at each."""
        return self._seconds.read(subject, count)

    def minutes(self, subject: Subject, count: int) -> tuple[list[int], dict[str, list[float]]]:
        """The same, one a minute."""
        return self._minutes.read(subject, count)
