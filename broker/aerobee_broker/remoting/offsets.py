"""Committed offsets of groups, and first and next offsets of queues, for remoting clients.

Committed offsets are shared by the whole broker: a group may receive with a client of RocketMQ 5 and pull with one of
4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.errors import QueueNotFoundError
from aerobee_broker.recent import Recent
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import answer, boolean, integer, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.table_files import Tables
from aerobee_store import MessageStore

_RESETS_MAX: Final = 100_000
_PULLED_MAX: Final = 20_000


class OffsetRequests:
    """Answers QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET and queries about a queue."""

    def __init__(self, store: MessageStore, tables: Tables, deliveries: Deliveries) -> None:
        self._store = store
        self._tables = tables
        self._deliveries = deliveries
        # (topic, group, queue id) -> the target of a reset that no pull has followed yet
        self._resets: dict[tuple[str, str, int], int] = {}
        # the same -> after the last message of the last pull
        self._pulled: Recent[tuple[str, str, int], int] = Recent(_PULLED_MAX)

    async def query(self, request: Command, _: Connection) -> Command:
        """A new group gets 0 if nothing was deleted yet, so that it misses nothing; otherwise the client decides where
        to begin."""
        topic, group, queue_id = _place(request)
        offset = self._deliveries.committed_offset(topic, group, queue_id)
        if offset is None:
            low, _high = self._store.queue_range(topic, queue_id)
            if low > 0 or not boolean(request, "setZeroIfNotFound", True):
                raise RemotingError(
                    Answer.QUERY_NOT_FOUND,
                    f"consumer group {group!r} has no offset in queue {queue_id} of topic {topic!r}",
                )
            offset = 0
        return answer({"offset": offset})

    async def update(self, request: Command, _: Connection) -> Command:
        topic, group, queue_id = _place(request)
        offset = integer(request, "commitOffset")
        self._tables.groups.require(group)
        self._tables.topics.require(topic)
        if (topic, group, queue_id) in self._resets:
            return answer(remark="an offset reset is pending; the commit is ignored")
        if offset >= 0:  # the Go client sends -1 for queues that it did not touch
            await self.commit(topic, group, queue_id, offset)
        return answer()

    async def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Commit an offset; for a group that only pulls, durable within seconds. QueueNotFoundError for a queue that
        the topic does not have, TableSpaceError."""
        if (topic, group, queue_id) in self._resets:
            return
        self._require_queue(topic, queue_id)
        if self._deliveries.queue_delivery(topic, group, queue_id) is None:
            self._tables.offsets.require_space(topic, group, (queue_id,))
            self._tables.offsets.commit(topic, group, queue_id, offset, force=True)
        elif self._deliveries.committed_offset(topic, group, queue_id) != offset:
            await self._deliveries.reset(topic, group, {queue_id: offset})

    def _require_queue(self, name: str, queue_id: int) -> None:
        topic = self._tables.topics.require(name)
        count = max(topic.read_queue_count, topic.write_queue_count)
        if not 0 <= queue_id < count and self._store.queue_range(name, queue_id) == (0, 0):
            raise QueueNotFoundError(name, "read", count, queue_id)

    async def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Move the group to these offsets: its next pull of each queue is redirected, whatever it commits before.
        QueueNotFoundError, TableSpaceError."""
        for queue_id in offsets:
            self._require_queue(topic, queue_id)
        await self._deliveries.reset(topic, group, offsets)
        for queue_id, offset in offsets.items():
            if len(self._resets) < _RESETS_MAX:
                self._resets[topic, group, queue_id] = offset
        self._deliveries.long_polling.end_waits(topic, group)

    def pending_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset to which a pull must be redirected; returned once, because the client then follows."""
        return self._resets.pop((topic, group, queue_id), None) if self._resets else None

    def note_pulled(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """A pull has delivered the messages before this offset."""
        self._pulled[topic, group, queue_id] = next_offset

    def pulled(self, topic: str, group: str, queue_id: int) -> int:
        """The offset after the last message that was pulled; 0 if unknown."""
        return self._pulled.get((topic, group, queue_id), 0)

    async def maximum(self, request: Command, _: Connection) -> Command:
        topic, queue_id = text(request, "topic"), integer(request, "queueId", bits=32)
        return answer({"offset": self._store.queue_range(topic, queue_id)[1]})

    async def minimum(self, request: Command, _: Connection) -> Command:
        topic, queue_id = text(request, "topic"), integer(request, "queueId", bits=32)
        return answer({"offset": self._store.queue_range(topic, queue_id)[0]})

    async def by_time(self, request: Command, _: Connection) -> Command:
        topic, queue_id = text(request, "topic"), integer(request, "queueId", bits=32)
        upper = text(request, "boundaryType", "LOWER").upper() == "UPPER"
        time_ms = integer(request, "timestamp")
        return answer({"offset": self._store.offset_by_time(topic, queue_id, time_ms, "upper" if upper else "lower")})

    async def earliest_time(self, request: Command, _: Connection) -> Command:
        topic, queue_id = text(request, "topic"), integer(request, "queueId", bits=32)
        low, high = self._store.queue_range(topic, queue_id)
        found = self._store.store_timestamp_at(topic, queue_id, low) if low < high else None
        return answer({"timestamp": -1 if found is None else found})


def _place(request: Command) -> tuple[str, str, int]:
    return text(request, "topic"), text(request, "consumerGroup"), integer(request, "queueId", bits=32)
