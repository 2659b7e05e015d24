"""Measures the delay of the event loop, and finds the call that blocks it.

All work for clients runs in steps of one event loop: during a step, no other client is served. A timer on the loop
measures how late it fires. A thread inspects the loop when it is late, because afterwards nothing shows the cause.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from types import FrameType
from typing import Final

from aerobee_store.stats import Histogram

_log = logging.getLogger(__name__)

WARNING_SECONDS: Final = 0.1
_BEAT_SECONDS: Final = 0.05
_QUIET_SECONDS: Final = 1.0  # between two warnings
_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_OURS: Final = ("aerobee_broker.", "aerobee_store.")


class LoopDelay:
    """Measures always: `run` beside everything else, on the measured loop."""

    name: Final = "loop-delay"

    def __init__(self, *, warning_seconds: float = WARNING_SECONDS) -> None:
        self.seconds = Histogram(_BOUNDS)
        self.slow_steps = 0  # number of steps that took longer than `warning_seconds`
        self.busy_seconds_max = 0.0
        """The most CPU time that the loop used between two ticks, during which other tasks hardly ran. Unlike the delay
        it does not grow when other processes use the CPUs."""
        self._warning_seconds = warning_seconds
        self._beat = 0.0
        self._blocking = ""  # the function that was running when the loop was late
        self._warned_at = -_QUIET_SECONDS
        self._suppressed = 0

    async def run(self) -> None:
        """Measure, until cancelled."""
        self._beat = time.monotonic()
        stop = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(threading.get_ident(), stop), name="aerobee-loop-watch", daemon=True
        )
        watcher.start()
        used = time.thread_time()
        try:
            while True:
                due = time.monotonic() + _BEAT_SECONDS
                await asyncio.sleep(_BEAT_SECONDS)
                self._beat = now = time.monotonic()
                used_before, used = used, time.thread_time()
                busy = used - used_before
                self.busy_seconds_max = max(self.busy_seconds_max, busy)
                late = max(0.0, now - due)
                self.seconds.observe(late)
                if late > self._warning_seconds:
                    self.slow_steps += 1
                    self._warn(late, busy, now)
                self._blocking = ""
        finally:
            stop.set()

    def _warn(self, late: float, busy: float, now: float) -> None:
        if now - self._warned_at < _QUIET_SECONDS:
            self._suppressed += 1
            return
        blocking = self._blocking or "no function of the broker: the process was not scheduled"
        more = f" unreported_before={self._suppressed}" if self._suppressed else ""
        figures = late * 1000, busy * 1000
        _log.warning("event loop blocked milliseconds=%d processor_milliseconds=%d by=%s%s", *figures, blocking, more)
        self._warned_at, self._suppressed = now, 0

    def _watch(self, loop_thread: int, stop: threading.Event) -> None:
        while not stop.wait(_BEAT_SECONDS):
            if time.monotonic() - self._beat > _BEAT_SECONDS + self._warning_seconds / 2 and not self._blocking:
                frame = sys._current_frames().get(loop_thread)
                self._blocking = blocking_function(frame)


def blocking_function(frame: FrameType | None) -> str:
    """The innermost function of the broker in a stack, and the call that it serves; empty if there is none."""
    innermost = call = ""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OURS) and module != __name__:
            innermost = innermost or f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}"
            if frame.f_code.co_name == "handle" and module == "aerobee_broker.services.rpc":
                call = getattr(frame.f_locals.get("method"), "name", "")
                break
        frame = frame.f_back
    return f"{innermost} call={call}" if call else innermost
