"""Time is passed in, so that tests can move it."""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

_log = logging.getLogger(__name__)


class Clock(Protocol):
    """Where the store and the broker take the time from."""

    def now_ms(self) -> int:
        """The wall clock, in Unix milliseconds: what goes into records."""

    def monotonic(self) -> float:
        """Seconds that never go back: what intervals are measured with."""


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


# Steps below this are corrections of a clock that is right: NTP makes them all the time.
_JUMP_MS: Final = 1000.0
# How long a jump ahead is doubted: a person has a day to see it and to set the clock right.
_DOUBT_SECONDS: Final = 24 * 3600.0


class SteadyClock:
    """Unix milliseconds that go on with the monotonic clock, whatever the wall clock does: for periods that end in
    something that cannot be undone, and for periods that must end at all.

    It begins with the wall clock's time. A jump of that clock is logged; one ahead is followed after a day, one back
    never, so this clock may be ahead of the wall clock until the next start. What must be right now, as the time at
    which a message is to be delivered, goes by the wall clock instead.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic() * 1000
        self._last_ms = 0
        self._jump_offset_ms: float | None = None  # where the wall clock has jumped to ...
        self._jumped_at = 0.0  # ... and when, by the monotonic clock

    def now_ms(self) -> int:
        monotonic = self._clock.monotonic()
        offset_ms = self._clock.now_ms() - monotonic * 1000
        if abs(offset_ms - self._offset_ms) <= _JUMP_MS:
            self._offset_ms = offset_ms
            self._jump_offset_ms = None
        else:
            self._look_at_jump(offset_ms, monotonic)
        self._last_ms = max(self._last_ms, int(self._offset_ms + monotonic * 1000))
        return self._last_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def _look_at_jump(self, offset_ms: float, monotonic: float) -> None:
        seconds = (offset_ms - self._offset_ms) / 1000
        if self._jump_offset_ms is None or abs(offset_ms - self._jump_offset_ms) > _JUMP_MS:
            self._jump_offset_ms, self._jumped_at = offset_ms, monotonic
            _log.warning(
                "the machine's clock has jumped seconds=%+.3f; nothing expires because of it%s",
                seconds,
                f" for {_DOUBT_SECONDS / 3600:g} hours" if seconds > 0 else "",
            )
        elif seconds > 0 and monotonic - self._jumped_at >= _DOUBT_SECONDS:
            _log.warning("the machine's clock is believed after its jump seconds=%+.3f", seconds)
            self._offset_ms = offset_ms
            self._jump_offset_ms = None
