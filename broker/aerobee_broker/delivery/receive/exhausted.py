"""Moves messages that used up their attempts to the dead letters, even if nobody receives.

A receive that meets such a message moves it too, because the group's limit may have been lowered since the message
became visible.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from aerobee_broker.delivery.journal.event_log import EventKind, encode_acknowledged
from aerobee_broker.delivery.journal.history import History
from aerobee_broker.delivery.receive.dead_letters import DeadLetters
from aerobee_broker.delivery.state.queue_delivery import acknowledged
from aerobee_broker.delivery.state.stats import DeliveryStats
from aerobee_broker.delivery.state.subscriptions import Queue, Subscriptions
from aerobee_store import SyncTimeoutError
from aerobee_store.clock import Clock
from aerobee_store.errors import StoreRefusalError

_log = logging.getLogger(__name__)

_MOVED_PER_STEP_MAX: Final = 32  # messages read and copied in one step of the event loop
_RETRY_SECONDS: Final = 1.0


class _Waiting(Protocol):
    def became_visible(self, queue: Queue) -> None: ...


class ExhaustedMessages:
    """The queues with exhausted messages, and the task that moves them. Event loop only."""

    def __init__(
        self,
        dead_letters: DeadLetters,
        subscriptions: Subscriptions,
        history: History,
        clock: Clock,
        stats: DeliveryStats,
        waiting: _Waiting,
    ) -> None:
        self._dead_letters = dead_letters
        self._subscriptions = subscriptions
        self._history = history
        self._clock = clock
        self._stats = stats
        self._waiting = waiting
        self._queues: dict[Queue, None] = {}
        self._wake = asyncio.Event()

    def note(self, queue: Queue) -> None:
        """Messages of this queue became visible: check it if one of them has reached the maximum of attempts."""
        if queue.delivery.ready_attempt_max >= self._attempt_max(queue):
            self._queues[queue] = None
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queues:
                queue = next(iter(self._queues))
                try:
                    await self._empty(queue)
                except (StoreRefusalError, SyncTimeoutError) as error:
                    _log.warning("dead letters not written, retried queue=%s cause=%s", queue.key, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    self._queues.pop(queue, None)

    async def _empty(self, queue: Queue) -> None:
        """Move all exhausted messages of a queue. StoreError."""
        while not queue.dropped and queue.delivery.exhausted(self._attempt_max(queue)):
            if not self._dead_letters.has_topic(queue.key.group):
                await self._dead_letters.create_topic(queue.key.group)
                continue  # the queue may have changed in the meantime
            self._move(queue)
            await asyncio.sleep(0)

    def _move(self, queue: Queue) -> None:
        """Move some messages of a queue: the copies, followed in the log by the event that finishes the originals."""
        moved = queue.delivery.exhausted(self._attempt_max(queue))[:_MOVED_PER_STEP_MAX]
        for offset in moved:
            record = self._subscriptions.read_one(queue, offset)
            if record is None:
                self._stats.lost += 1
            else:
                self._dead_letters.append(record, queue)
        event = encode_acknowledged(queue.encoded_key, acknowledged(moved))
        self._history.append(EventKind.ACKNOWLEDGED, [event], self._clock.now_ms())  # if this fails, nothing changes
        queue.delivery.finish(moved)
        self._subscriptions.note_commit(queue)
        self._waiting.became_visible(queue)  # later messages of their message groups

    def _attempt_max(self, queue: Queue) -> int:
        return self._dead_letters.attempt_max(queue.topic, queue.key.group)
