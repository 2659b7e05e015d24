"""Answers of one connection that have perhaps not left the process, and what to call if they never do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aerobee_broker.limits.input_turns import InputTurns

_TURNS: Final = 3  # of the event loop, in which what was written leaves if the system takes it
_CHECK_SECONDS: Final = 0.05


class UnsentAnswers:
    """Event loop only. Transports do not report when bytes leave, so answers count as sent once the buffers are seen
    empty.

    A connection that breaks drops its buffers a turn before it says so. Whoever looks in between takes its answers for
    sent, too, because they may be: a client may have read one and closed the connection. Their messages are then ready
    again after their invisible time, and not at once. To give back what may have been received would deliver it twice.
    """

    def __init__(self, is_all_sent: Callable[[], bool]) -> None:
        """`is_all_sent`: whether the system has taken all that the connection had to write."""
        self._is_all_sent: Callable[[], bool] | None = is_all_sent  # None: the connection has ended
        self._lost: list[Callable[[], None]] = []
        self._check_handle: asyncio.Handle | None = None

    def add(self, lost: Callable[[], None]) -> None:
        """Call `lost` if the connection ends before the answer that is written now has left."""
        if self._is_all_sent is None:
            asyncio.get_running_loop().call_soon(lost)
            return
        self._lost.append(lost)
        if self._check_handle is None:
            self._check_again(_TURNS)

    def _check_again(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:  # small answers leave at once: a client that has read one may close the connection
            self._check_handle = loop.call_soon(self._check, turns - 1)
        else:
            self._check_handle = loop.call_later(_CHECK_SECONDS, self._check, 0)

    def _check(self, turns: int) -> None:
        self._check_handle = None
        if self._is_all_sent is None or self._is_all_sent():
            self._lost.clear()
        else:
            self._check_again(turns)

    def connection_lost(self, turns: InputTurns) -> None:
        """Call for every answer that has not left; there may be thousands."""
        if self._check_handle is not None:
            self._check_handle.cancel()
            self._check_handle = None
        self._is_all_sent = None  # it has the connection, and a cycle is kept until the next collection of garbage
        lost, self._lost = self._lost, []
        turns.each(lost, lambda call: call())
