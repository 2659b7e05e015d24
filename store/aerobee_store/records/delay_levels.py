"""RocketMQ's fixed delays: the levels, from 1, of `SCHEDULE_TOPIC_XXXX`, whose queue units hold a delivery time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aerobee_store.records.decimals import integer

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"

_UNKNOWN_LEVEL_MS: Final = 1000


class DelayLevels:
    """The delays of the levels 1, 2, ... in seconds. A level above the last counts as the last."""

    __slots__ = ("_delays_ms",)

    def __init__(self, delays_seconds: Sequence[int]) -> None:
        self._delays_ms = tuple(seconds * 1000 for seconds in delays_seconds)

    @property
    def count(self) -> int:
        """The last level."""
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """The delay of a level in ms, as of RocketMQ also for a level below 1."""
        return self._delays_ms[min(level, self.count) - 1] if level > 0 else _UNKNOWN_LEVEL_MS

    def delivery_time(self, level: int, store_timestamp: int) -> int:
        """When a message of this level is due, in Unix ms."""
        return store_timestamp + self.delay_ms(level)

    def unit_code(self, topic: str, delay_property: str | None, store_timestamp: int, tags_code: int) -> int:
        """The tags code of a unit: the delivery time of a delayed message, otherwise the tag's hash."""
        if topic != SCHEDULE_TOPIC or delay_property is None:
            return tags_code
        level = integer(delay_property, 32)
        return tags_code if level is None or level <= 0 else self.delivery_time(level, store_timestamp)
