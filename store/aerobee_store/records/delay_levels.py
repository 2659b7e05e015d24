"""RocketMQ's fixed delays: level 1 to 18 of `SCHEDULE_TOPIC_XXXX`, whose queue units hold a delivery time."""

from __future__ import annotations

from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"

DELAYS_MS: Final = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
_UNKNOWN_LEVEL_MS: Final = 1000


def delivery_time(level: int, store_timestamp: int) -> int:
    """When a message of this level is due, in Unix ms; a level above the last counts as the last."""
    if level <= 0:
        return store_timestamp + _UNKNOWN_LEVEL_MS
    return store_timestamp + DELAYS_MS[min(level, len(DELAYS_MS)) - 1]


def unit_code(topic: str, delay_property: str | None, store_timestamp: int, tags_code: int) -> int:
    """The tags code of a unit: the delivery time of a delayed message, otherwise the tag's hash."""
    if topic != SCHEDULE_TOPIC or delay_property is None:
        return tags_code
    try:
        level = int(delay_property)
    except ValueError:
        return tags_code
    return delivery_time(level, store_timestamp) if level > 0 else tags_code
