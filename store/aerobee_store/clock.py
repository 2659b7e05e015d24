"""Clocks, which are passed as arguments so that tests can control time; and work that is repeated."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, Protocol

_log = logging.getLogger(__name__)


class Clock(Protocol):
    """Source of time for the store and the broker."""

    def now_ms(self) -> int:
        """The wall clock in Unix milliseconds, as stored in records."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back, for measuring intervals."""


class SystemClock:
    """The system clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


async def every(seconds: float, step: Callable[[], Awaitable[None] | None]) -> NoReturn:
    """Pause, and then call `step`, again and again. Ends only when cancelled, or with the error of a step."""
    while True:
        await asyncio.sleep(seconds)
        pending = step()
        if pending is not None:
            await pending


# Smaller steps are normal corrections, for example by NTP.
_JUMP_MS: Final = 1000.0
# How long a forward jump is not trusted: an operator has a day to notice and correct it.
_DOUBT_SECONDS: Final = 24 * 3600.0


class SteadyClock:
    """Unix milliseconds that advance with the monotonic clock, whatever the wall clock does. For periods whose end
    causes something that cannot be undone, and for periods that must end.

    The clock starts with the wall clock's time. Jumps of the wall clock are logged. A forward jump is followed after a
    day, a backward jump never, so this clock may be ahead of the wall clock until the next start. Code that needs the
    current time, such as delayed delivery, uses the wall clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic() * 1000
        self._last_ms = 0
        self._jump_offset_ms: float | None = None  # the offset to which the wall clock has jumped
        self._jumped_at = 0.0  # when it jumped, by the monotonic clock

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
                "the system clock has jumped seconds=%+.3f; nothing expires because of the jump%s",
                seconds,
                f" for {_DOUBT_SECONDS / 3600:g} hours" if seconds > 0 else "",
            )
        elif seconds > 0 and monotonic - self._jumped_at >= _DOUBT_SECONDS:
            _log.warning("the system clock is accepted after its jump seconds=%+.3f", seconds)
            self._offset_ms = offset_ms
            self._jump_offset_ms = None
