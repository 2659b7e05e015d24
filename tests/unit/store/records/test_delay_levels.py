"""RocketMQ's fixed delays."""

from __future__ import annotations

from aerobee_store.records.delay_levels import SCHEDULE_TOPIC, DelayLevels

LEVELS = DelayLevels((3, 90))


def test_a_level_above_the_last_counts_as_the_last() -> None:
    """Also in a queue unit; a level below 1 is a second, as of RocketMQ, and its unit keeps the hash of the tag."""
    assert [LEVELS.delay_ms(level) for level in (-1, 0, 1, 2, 3, 99)] == [1000, 1000, 3000, 90_000, 90_000, 90_000]
    assert [LEVELS.unit_code(SCHEDULE_TOPIC, level, 5, 77) for level in ("1", "99", "0", "x")] == [3005, 90_005, 77, 77]
    assert LEVELS.unit_code("orders", "1", 5, 77) == 77
