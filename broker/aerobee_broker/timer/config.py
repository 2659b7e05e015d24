"""How delayed messages are kept. Part of BrokerConfig, as the section `timer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aerobee_store.errors import ConfigError
from aerobee_store.timer.files import LOG_FILE_SIZE
from aerobee_store.timer.log import BLANK_SIZE_MIN, UNIT_SIZE
from aerobee_store.timer.wheel import SLOT_COUNT

PRECISIONS_MS: Final = (100, 200, 500, 1000)
_DELAY_MS_MAX: Final = (1 << 31) - 1  # what a unit of the timer log can say


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig:
    """Sizes in bytes, durations in seconds. "Format" as in StoreConfig."""

    precision_ms: int = 1000  # timerPrecisionMs: the step of the wheel. Delivery is to the millisecond with any of them
    roll_window_slots: int = 172_800  # timerRollWindowSlot: what is further ahead is stored again when so much is over
    flush_interval_seconds: float = 1.0  # timerFlushIntervalMs
    slot_count: int = SLOT_COUNT  # RocketMQ's is fixed; format
    log_file_size: int = LOG_FILE_SIZE  # mappedFileSizeTimerLog; format

    def __post_init__(self) -> None:
        if self.precision_ms not in PRECISIONS_MS:
            raise ConfigError(f"timer.precision_ms: {self.precision_ms} is not one of 100, 200, 500 and 1000")
        if self.slot_count < 8:
            raise ConfigError(f"timer.slot_count: {self.slot_count} is less than 8")
        if not 2 <= self.roll_window_slots <= self.slot_count // 2:
            raise ConfigError(
                f"timer.roll_window_slots: {self.roll_window_slots} is outside 2..{self.slot_count // 2}, "
                "half of the wheel"
            )
        if self.roll_window_slots * self.precision_ms > _DELAY_MS_MAX:
            raise ConfigError(f"timer.roll_window_slots: {self.roll_window_slots} are more than 24 days; choose fewer")
        if self.log_file_size < UNIT_SIZE + BLANK_SIZE_MIN:
            raise ConfigError(f"timer.log_file_size: {self.log_file_size} bytes hold no unit")
        if not self.flush_interval_seconds > 0:
            raise ConfigError(f"timer.flush_interval_seconds: {self.flush_interval_seconds} is not above 0")
