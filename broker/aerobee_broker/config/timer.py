"""Settings of delayed messages: the section `timer` of BrokerConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, get_args

from msgspec import Meta

from aerobee_store.config import AtLeast2, Seconds, Section
from aerobee_store.errors import ConfigError
from aerobee_store.timer.files import LOG_FILE_SIZE
from aerobee_store.timer.log import BLANK_SIZE_MIN, UNIT_SIZE
from aerobee_store.timer.wheel import SLOT_COUNT

Precision = Literal[100, 200, 500, 1000]
PRECISIONS_MS: Final[tuple[int, ...]] = get_args(Precision)
_DELAY_MS_MAX: Final = (1 << 31) - 1  # the limit of a unit in the timer log


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig(Section):
    """Sizes in bytes, durations in seconds. "Format" as in StoreConfig."""

    section: ClassVar[str] = "timer"

    precision_ms: Precision = 1000  # timerPrecisionMs: the wheel's step; delivery is precise to the millisecond anyway
    roll_window_slots: AtLeast2 = 172_800  # timerRollWindowSlot: messages further ahead are stored again by then
    flush_interval_seconds: Seconds = 1.0  # timerFlushIntervalMs
    slot_count: Annotated[int, Meta(ge=8)] = SLOT_COUNT  # RocketMQ's is fixed; format
    log_file_size: Annotated[int, Meta(ge=UNIT_SIZE + BLANK_SIZE_MIN)] = LOG_FILE_SIZE  # mappedFileSizeTimerLog; format

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.roll_window_slots > self.slot_count // 2:
            raise ConfigError(
                f"timer.roll_window_slots: {self.roll_window_slots} is above {self.slot_count // 2}, half of the "
                f"wheel; choose a smaller number"
            )
        if self.roll_window_slots * self.precision_ms > _DELAY_MS_MAX:
            raise ConfigError(
                f"timer.roll_window_slots: {self.roll_window_slots} is more than 24 days; choose a smaller number"
            )
