"""Where receives take from, and where they wait: the queues of a topic, or the lite topics of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aerobee_broker.delivery.history import History
from aerobee_broker.delivery.journal import QueueKey
from aerobee_broker.delivery.subscriptions import Queue, Subscription, Subscriptions
from aerobee_broker.long_polling import LongPolling
from aerobee_broker.tables.topics import TopicConfig


class QueueSet(Protocol):
    """Of one receive. All but `wait` are synchronous, so that nothing changes between looking and waiting."""

    def begin(self, topic: TopicConfig) -> bool:
        """Give the group a position in every queue; True if the journal has something new about that. StoreError."""
        ...

    def queues(self, attempt: int | None) -> Sequence[Queue]:
        """Where to look next, first where the oldest waits; with what is in flight under this attempt, if it is one."""
        ...

    def looked(self, queues: Sequence[Queue]) -> bool:
        """These have been looked at; True if there are others to look at before waiting."""
        ...

    def wake_next(self) -> None:
        """There may be more: let another receive that waits here look."""
        ...

    async def wait(self, seconds: float, *, again: bool) -> bool:
        """As LongPolling.wait."""
        ...


class TopicQueueSet:
    """All queues of a topic, or the one that `queue_id` names."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        history: History,
        long_polling: LongPolling,
        topic: str,
        group: str,
        client_id: str,
        queue_id: int | None,
    ) -> None:
        self._subscriptions = subscriptions
        self._history = history
        self._long_polling = long_polling
        self._topic = topic
        self._group = group
        self._client_id = client_id
        self._queue_id = queue_id

    def begin(self, topic: TopicConfig) -> bool:
        subscription = self._subscriptions.get(topic.name, self._group)
        if subscription is not None and len(subscription.queues) >= topic.read_queue_count:
            return False
        return self._history.begin(
            QueueKey(self._group, topic.name, queue_id) for queue_id in range(topic.read_queue_count)
        )

    def queues(self, attempt: int | None) -> Sequence[Queue]:
        subscription = self._subscriptions.get(self._topic, self._group) or Subscription()
        queues = subscription.rotated()
        if self._queue_id is None:
            return queues
        return [queue for queue in queues if queue.key.queue_id == self._queue_id]

    def looked(self, queues: Sequence[Queue]) -> bool:
        return False

    def wake_next(self) -> None:
        self._long_polling.wake(self._topic, self._group, self._queue_id)

    async def wait(self, seconds: float, *, again: bool) -> bool:
        return await self._long_polling.wait(
            self._topic, self._group, self._client_id, seconds, queue_id=self._queue_id, again=again
        )
