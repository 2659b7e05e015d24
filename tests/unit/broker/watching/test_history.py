"""The rings of figures over time."""

from __future__ import annotations

from math import isnan, nan

import pytest

from aerobee_broker.watching.history import (
    BROKER,
    MINUTES_COUNT,
    RATES,
    SECONDS_COUNT,
    SUBJECTS_MAX,
    History,
    Sample,
    Subject,
    _Ring,
)

TOPIC: Subject = ("topic", "orders")
GROUP: Subject = ("group", "billing")


def sample(
    second: int, counters: dict[Subject, tuple[float, ...]], levels: dict[Subject, tuple[float, ...]] | None = None
) -> Sample:
    return Sample(1_000_000 + second * 1000, float(second), counters, levels or {})


def test_a_point_is_the_change_a_second() -> None:
    """Rates are differences divided by the time between samples, however long it was."""
    history = History()
    history.take(sample(0, {TOPIC: (10.0, 100.0, 0.0)}))
    history.take(sample(1, {TOPIC: (15.0, 150.0, 1.0)}))
    history.take(sample(4, {TOPIC: (45.0, 450.0, 1.0)}))
    times, figures = history.seconds(TOPIC, 0)
    assert times == [1_001_000, 1_004_000]
    assert figures == {"messages_in": [5.0, 10.0], "bytes_in": [50.0, 100.0], "messages_out": [1.0, 0.0]}


def test_a_figure_without_change_is_filled_in() -> None:
    """A topic that began late had no traffic before, and none while it rests; a level keeps its value."""
    history = History()
    counters: dict[Subject, tuple[float, ...]] = {}
    for second in range(10):
        if second == 4:
            counters = {TOPIC: (3.0, 30.0, 0.0)}
        levels: dict[Subject, tuple[float, ...]] = {GROUP: (7.0, 1.5)} if second == 5 else {}
        history.take(sample(second, counters, levels))
    _, figures = history.seconds(TOPIC, 0)
    assert figures["messages_in"] == [0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    _, figures = history.seconds(GROUP, 6)
    assert isnan(figures["lag"][0])
    assert figures["lag"][1:] == [7.0] * 5
    assert figures["messages_out"] == [0.0] * 6


def test_of_nobody_nothing_is_known() -> None:
    """A subject that was never seen has had no traffic, and unknown levels."""
    history = History()
    for second in range(3):
        history.take(sample(second, {}))
    times, figures = history.seconds(("group", "absent"), 0)
    assert len(times) == 2
    assert figures["acknowledged"] == [0.0, 0.0]
    assert all(isnan(value) for value in figures["lag"])


def test_seconds_and_minutes_are_bounded() -> None:
    """Ten minutes of seconds and a day of minutes; the oldest points leave."""
    history = History()
    for second in range((MINUTES_COUNT + 5) * 60):
        history.take(sample(second, {TOPIC: (float(second), 0.0, 0.0)} if second % 60 == 0 else {}))
    times, figures = history.seconds(TOPIC, 0)
    assert (len(times), len(figures["messages_in"])) == (SECONDS_COUNT, SECONDS_COUNT)
    times, figures = history.minutes(TOPIC, 0)
    assert (len(times), figures["messages_in"]) == (MINUTES_COUNT, [1.0] * MINUTES_COUNT)
    assert times[1] - times[0] == 60_000
    assert len(history.minutes(TOPIC, 7)[0]) == 7


def test_counters_of_a_deleted_topic_are_no_negative_rate() -> None:
    """A topic that is created again counts from 0."""
    history = History()
    history.take(sample(0, {TOPIC: (10.0, 100.0, 0.0)}))
    history.take(sample(1, {TOPIC: (2.0, 20.0, 0.0)}))
    assert history.seconds(TOPIC, 0)[1]["messages_in"] == [0.0]


def test_the_number_of_subjects_is_bounded() -> None:
    """Idle ones make room for new ones; if none is idle, a new one gets no history, and the broker keeps its own."""
    history = History()
    history.take(sample(0, {BROKER: (0.0,) * 5}))
    busy: dict[Subject, tuple[float, ...]] = {
        ("topic", f"t{number}"): (1.0, 1.0, 0.0) for number in range(SUBJECTS_MAX)
    }
    history.take(sample(1, {BROKER: (1.0,) * 5, **busy}))
    history.take(sample(2, {BROKER: (2.0,) * 5, **busy, TOPIC: (5.0, 5.0, 0.0)}))
    assert history.seconds(TOPIC, 0)[1]["messages_in"] == [0.0, 0.0]
    for second in range(3, 70):
        history.take(sample(second, {BROKER: (float(second),) * 5, TOPIC: (5.0 + second, 5.0, 0.0)}))
    assert history.seconds(TOPIC, 1)[1]["messages_in"] == [1.0]
    assert history.seconds(("topic", "t1"), 0)[1]["messages_in"] == [0.0] * 69
    assert history.seconds(BROKER, 0)[1]["messages_in"] == [1.0] * 69


def test_subjects_that_find_no_place_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that makes thousands of topics must not make each of them a search through all others."""
    looks = 0
    is_idle_since = _Ring.is_idle_since

    def counted(ring: _Ring, number: int) -> bool:
        nonlocal looks
        looks += 1
        return is_idle_since(ring, number)

    monkeypatch.setattr(_Ring, "is_idle_since", counted)
    history = History()
    for second in range(3):
        busy: dict[Subject, tuple[float, ...]] = {
            ("topic", f"t{number}"): (float(second), 1.0, 0.0) for number in range(4 * SUBJECTS_MAX)
        }
        history.take(sample(second, {BROKER: (float(second),) * 5, **busy}))
    assert 0 < looks <= 2 * 2 * len(RATES["topic"]) * (SUBJECTS_MAX + 1)  # two points, of seconds and of minutes


def test_levels_may_be_unknown() -> None:
    """A level that cannot be read is NaN, not 0."""
    history = History()
    history.take(sample(0, {BROKER: (0.0,) * 5}))
    history.take(sample(1, {BROKER: (0.0,) * 5}, {BROKER: (5.0, nan, 1.0, 0.0, 0.0)}))
    _, figures = history.seconds(BROKER, 0)
    assert figures["disk_used_bytes"] == [5.0]
    assert isnan(figures["memory_bytes"][0])
