"""When messages that a client has become visible to others: their time is over, or they are given back.

One heap for all queues says when the next one is due; nothing looks at an interval.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Final

from aerobee_broker.delivery.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.stats import DeliveryStats
from aerobee_broker.delivery.subscriptions import Queue
from aerobee_store.clock import Clock

_SLEEP_SECONDS_MAX: Final = 3600.0


class Visibility:
    """The timer of all queues. Event loop only."""

    def __init__(
        self,
        clock: Clock,
        wake_receive: Callable[[Queue], None],
        stats: DeliveryStats,
        also_due: Callable[[], float | None],
    ) -> None:
        """`wake_receive` lets a waiting receive look at a queue, for something of it may be delivered.

        `also_due` does what else is due, and says in how many seconds it has to be asked again; None: no more.
        """
        self._clock = clock
        self.wake_receive = wake_receive
        self._stats = stats
        self._also_due = also_due
        self._queues: list[tuple[int, int, Queue]] = []
        self._sequence = 0
        self._wake = asyncio.Event()

    def wake_timer(self) -> None:
        """Look at the clock again: for tests that move it."""
        self._wake.set()

    def expire(self, queue: Queue, now_ms: int) -> None:
        """Make visible what is due of this queue."""
        next_ms = queue.delivery.next_expiry_ms
        if next_ms is not None and next_ms <= now_ms:
            count = queue.delivery.expire(now_ms)
            if count:
                self._stats.expired += count
                key = (queue.topic, queue.key.group)
                self._stats.expired_of[key] = self._stats.expired_of.get(key, 0) + count
                self.wake_receive(queue)

    @property
    def late_ms(self) -> int:
        """For how long the next message that is to become visible should have been."""
        return max(0, self._clock.now_ms() - self._queues[0][0]) if self._queues else 0

    def schedule(self, queue: Queue) -> None:
        """See to it that the timer looks at the queue in time."""
        next_ms = queue.delivery.next_expiry_ms
        if next_ms is None or (queue.scheduled_ms is not None and queue.scheduled_ms <= next_ms):
            return
        queue.scheduled_ms = next_ms
        self._sequence += 1
        heapq.heappush(self._queues, (next_ms, self._sequence, queue))
        if self._queues[0][2] is queue:
            self._wake.set()

    def give_back(self, parts: Iterable[tuple[Queue, list[int], int]]) -> None:
        """(queue, offsets, nonce) of what did not reach its client: it is ready at once.

        That delivery counts, but for a group that consumes in order: to it the next one is the same once more.
        """
        now_ms = self._clock.now_ms()
        for queue, offsets, nonce in parts:
            if not isinstance(queue.delivery.order, MessageGroupOrder):
                queue.delivery.release(offsets, nonce, now_ms)
                self.expire(queue, now_ms)
            elif queue.delivery.withdraw(offsets, nonce):
                self.wake_receive(queue)

    def expire_due(self) -> float:
        """Make visible whatever is due; returns in how many seconds to come again."""
        now_ms = self._clock.now_ms()
        while self._queues and self._queues[0][0] <= now_ms:
            due_ms, _, queue = heapq.heappop(self._queues)
            if queue.dropped or queue.scheduled_ms != due_ms:
                continue  # it was scheduled earlier since
            queue.scheduled_ms = None
            self.expire(queue, now_ms)
            self.schedule(queue)
        also = self._also_due()  # may schedule
        seconds = _SLEEP_SECONDS_MAX if also is None else also
        if self._queues:
            seconds = min(seconds, (self._queues[0][0] - now_ms) / 1000)
        return min(max(seconds, 0.0), _SLEEP_SECONDS_MAX)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            seconds = self.expire_due()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
