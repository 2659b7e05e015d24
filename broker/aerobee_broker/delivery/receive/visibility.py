"""Makes messages visible to other clients: when their invisible time ends, or when they are returned.

One heap for all queues gives the next due time; there is no polling.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from typing import Final, Protocol

from aerobee_broker.delivery.state.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.state.stats import DeliveryStats
from aerobee_broker.delivery.state.subscriptions import Queue
from aerobee_store.clock import Clock

_SLEEP_SECONDS_MAX: Final = 3600.0
_OUTDATED_MAX: Final = 1_000  # entries that no longer count, or as many as count; their times may be hours away


class VisibilityListener(Protocol):
    """Receives notifications when messages become visible."""

    def became_visible(self, queue: Queue) -> None:
        """Messages of the queue may be delivered again."""
        ...

    def drop_absent_clients(self) -> float | None:
        """Release clients that did not reconnect; returns the seconds until the next check, None: no further check."""
        ...


class Visibility:
    """The timer of all queues. Event loop only."""

    def __init__(self, clock: Clock, stats: DeliveryStats, listener: VisibilityListener) -> None:
        self._clock = clock
        self._stats = stats
        self._listener = listener
        self._queues: list[tuple[int, int, Queue]] = []  # a queue that was rescheduled earlier is there more than once
        self._size_max = _OUTDATED_MAX
        self._sequence = 0
        self._wake = asyncio.Event()

    def wake_timer(self) -> None:
        """Check the clock again: for tests that move it."""
        self._wake.set()

    def expire(self, queue: Queue, now_ms: int) -> None:
        """Make due messages of this queue visible."""
        next_ms = queue.delivery.next_expiry_ms
        if next_ms is not None and next_ms <= now_ms:
            count = queue.delivery.expire(now_ms)
            if count:
                self._stats.expired += count
                key = (queue.topic, queue.key.group)
                self._stats.expired_of[key] = self._stats.expired_of.get(key, 0) + count
                self._listener.became_visible(queue)

    @property
    def late_ms(self) -> int:
        """How late the next message is to become visible."""
        return max(0, self._clock.now_ms() - self._queues[0][0]) if self._queues else 0

    def schedule(self, queue: Queue) -> None:
        """Ensure that the timer checks the queue in time."""
        next_ms = queue.delivery.next_expiry_ms
        if next_ms is None or (queue.scheduled_ms is not None and queue.scheduled_ms <= next_ms):
            return
        queue.scheduled_ms = next_ms
        self._sequence += 1
        if len(self._queues) >= self._size_max:
            self._forget_outdated()
        heapq.heappush(self._queues, (next_ms, self._sequence, queue))
        if self._queues[0][2] is queue:
            self._wake.set()

    def _forget_outdated(self) -> None:
        self._queues = [each for each in self._queues if not each[2].dropped and each[2].scheduled_ms == each[0]]
        heapq.heapify(self._queues)
        self._size_max = 2 * len(self._queues) + _OUTDATED_MAX

    def give_back(self, parts: Iterable[tuple[Queue, list[int], int]]) -> None:
        """Return (queue, offsets, nonce) of messages that did not reach their client: they are ready at once.

        The delivery counts as an attempt, except for a group that consumes in order, which gets the same attempt again.
        """
        now_ms = self._clock.now_ms()
        for queue, offsets, nonce in parts:
            if not isinstance(queue.delivery.order, MessageGroupOrder):
                queue.delivery.release(offsets, nonce, now_ms)
                self.expire(queue, now_ms)
            elif queue.delivery.withdraw(offsets, nonce):
                self._listener.became_visible(queue)

    def expire_due(self) -> float:
        """Make due messages visible; returns the seconds until the next call."""
        now_ms = self._clock.now_ms()
        while self._queues and self._queues[0][0] <= now_ms:
            due_ms, _, queue = heapq.heappop(self._queues)
            if queue.dropped or queue.scheduled_ms != due_ms:
                continue  # it was rescheduled earlier since
            queue.scheduled_ms = None
            self.expire(queue, now_ms)
            self.schedule(queue)
        absent = self._listener.drop_absent_clients()  # may schedule
        seconds = _SLEEP_SECONDS_MAX if absent is None else absent
        if self._queues:
            seconds = min(seconds, (self._queues[0][0] - now_ms) / 1000)
        return min(max(seconds, 0.0), _SLEEP_SECONDS_MAX)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._wake.clear()
            seconds = self.expire_due()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
