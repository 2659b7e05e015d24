"""The queues that a receive reads and waits for: those of a topic, or the lite topics of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aerobee_broker.delivery.journal.history import History
from aerobee_broker.delivery.receive.long_polling import LongPolling
from aerobee_broker.delivery.state.queue_key import QueueKey
from aerobee_broker.delivery.state.subscriptions import Queue, Subscription, Subscriptions
from aerobee_broker.tables.topics import POP_RETRY_QUEUE_ID, TopicConfig


class QueueSet(Protocol):
    """The queues of one receive. All methods except `wait` are synchronous, so that nothing changes between looking and
    waiting."""

    def begin(self, topic: TopicConfig) -> bool:
        """Give the group a position in every queue; True if the journal has a new event about it. StoreError."""
        ...

    def queues(self, attempt: int | None) -> Sequence[Queue]:
        """The next queues to examine, the one with the oldest waiting message first; with messages in flight under this
        attempt, if given."""
        ...

    def looked(self, queues: Sequence[Queue]) -> bool:
        """Note that these were examined; True if there are others to examine before waiting."""
        ...

    def wake_next(self) -> None:
        """There may be more messages: wake another receive that waits here."""
        ...

    async def wait(self, seconds: float, *, again: bool) -> bool:
        """Like LongPolling.wait."""
        ...


class TopicQueueSet:
    """All queues of a topic, or only `queue_id`, and those of RocketMQ's retry topics of topic and group."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        history: History,
        long_polling: LongPolling,
        topic: str,
        group: str,
        client_id: str,
        queue_id: int | None,
        retry_topics: Sequence[str] = (),
    ) -> None:
        self._subscriptions = subscriptions
        self._history = history
        self._long_polling = long_polling
        self._topic = topic
        self._group = group
        self._client_id = client_id
        self._queue_id = queue_id
        self._retry_topics = retry_topics

    def begin(self, topic: TopicConfig) -> bool:
        subscription = self._subscriptions.get(topic.name, self._group)
        keys = [
            QueueKey(self._group, name, POP_RETRY_QUEUE_ID)
            for name in self._retry_topics
            if self._subscriptions.get(name, self._group) is None
        ]
        if subscription is None or len(subscription.queues) < topic.read_queue_count:
            keys += [QueueKey(self._group, topic.name, queue_id) for queue_id in range(topic.read_queue_count)]
        return bool(keys) and self._history.begin(keys)

    def queues(self, attempt: int | None) -> Sequence[Queue]:
        subscription = self._subscriptions.get(self._topic, self._group) or Subscription()
        queues = subscription.rotated()
        if self._queue_id is not None:
            queues = [queue for queue in queues if queue.key.queue_id == self._queue_id]
        retries = (self._subscriptions.queue(name, self._group, POP_RETRY_QUEUE_ID) for name in self._retry_topics)
        return [*(queue for queue in retries if queue is not None), *queues] if self._retry_topics else queues

    def looked(self, queues: Sequence[Queue]) -> bool:
        return False

    def wake_next(self) -> None:
        self._long_polling.wake(self._topic, self._group, self._queue_id)

    async def wait(self, seconds: float, *, again: bool) -> bool:
        return await self._long_polling.wait(
            self._topic, self._group, self._client_id, seconds, queue_id=self._queue_id, again=again
        )
