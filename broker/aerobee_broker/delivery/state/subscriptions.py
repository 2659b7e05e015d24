"""The queues in which groups have a position, with their delivery state."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection, Iterator
from typing import Protocol

from msgspec import Struct, field

from aerobee_broker.config import Settings
from aerobee_broker.delivery.state.queue_delivery import QueueDelivery
from aerobee_broker.delivery.state.queue_key import QueueKey
from aerobee_broker.delivery.state.receipt_handle import owner_of
from aerobee_broker.limits.table_space import offset_size, offsets_size, position_size
from aerobee_broker.tables.consumer_groups import GroupTable
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.topics import TopicTable, split_light_topic_name, split_pop_retry_topic
from aerobee_store import MessageStore, Record
from aerobee_store.records.topic_names import LIGHT_PREFIX

_log = logging.getLogger(__name__)


class DeliveryTables(Protocol):
    """The part of the broker's tables that deliveries use."""

    @property
    def topics(self) -> TopicTable: ...
    @property
    def groups(self) -> GroupTable: ...
    @property
    def offsets(self) -> OffsetTable: ...
    def internal_topic(self, stored_name: str) -> Awaitable[object]: ...
    def save(self) -> Awaitable[None]: ...


class Queue:
    """One (group, topic, queue)."""

    __slots__ = (
        *("delivery", "dropped", "encoded_key", "key", "lite_topic", "owner"),
        *("reset_at", "retry_version", "saved_commit_offset", "scheduled_ms", "topic"),
    )

    def __init__(self, key: QueueKey, commit_offset: int) -> None:
        self.key = key
        self.encoded_key = key.encode()
        self.topic, self.lite_topic = split_light_topic_name(key.topic) or (key.topic, "")  # as consumers name them
        self.retry_version = 0  # of a retry topic of POP consumers; `topic` is that of the messages
        if (retry := split_pop_retry_topic(key.topic, key.group)) is not None:
            self.topic, self.retry_version = retry
        self.owner = owner_of(key.group, self.topic)
        self.delivery = QueueDelivery(commit_offset)
        self.saved_commit_offset = -1
        self.scheduled_ms: int | None = None  # when the timer checks it
        self.dropped = False  # topic or group was deleted
        # The position in the journal of a reset to a lower offset. Until a replay begins after it, the offsets table
        # must not contain the lower offset: earlier events would make all messages in between ready, one by one.
        self.reset_at: int | None = None

    @property
    def part(self) -> str:
        """What tells a receipt handle's queue from one of `topic` itself."""
        return f"%{self.retry_version}" if self.retry_version else self.lite_topic


class Subscription(Struct):
    """One (topic, group)."""

    queues: dict[int, Queue] = field(default_factory=dict)
    next_queue: int = 0  # where the next receive begins, so that no queue starves

    def rotated(self) -> list[Queue]:
        """All queues, beginning with another one each time."""
        queues = list(self.queues.values())
        start = self.next_queue % max(len(queues), 1)
        self.next_queue = start + 1
        return queues[start:] + queues[:start]


class QueueStatus(Struct, frozen=True):
    """The progress of a group in one queue. Offsets are queue offsets; the others are message counts."""

    topic: str
    queue_id: int
    commit_offset: int
    max_offset: int
    lag: int  # unfinished: in flight or ready
    in_flight: int
    ready: int  # can be received now
    retrying: int = 0  # part of lag: delivered before without success
    ready_offset: int | None = None  # the lowest ready one


class Subscriptions:
    """All subscriptions."""

    def __init__(self, store: MessageStore, tables: DeliveryTables, settings: Settings) -> None:
        self._store = store
        self._offsets = tables.offsets
        self._settings = settings
        self._groups: dict[str, dict[str, Subscription]] = {}  # group -> topic
        self._busy: dict[str, set[Queue]] = {}  # group -> queues that may have messages in flight

    def __iter__(self) -> Iterator[Queue]:
        """Every queue."""
        for topics in self._groups.values():
            for subscription in topics.values():
                yield from subscription.queues.values()

    def get(self, topic: str, group: str) -> Subscription | None:
        return self._groups.get(group, {}).get(topic)

    def queue(self, topic: str, group: str, queue_id: int) -> Queue | None:
        subscription = self.get(topic, group)
        return None if subscription is None else subscription.queues.get(queue_id)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have received from the topic since the start, or that the journal mentions."""
        return [group for group, topics in self._groups.items() if topic in topics]

    def add(self, queue: Queue) -> Queue:
        """Register a queue that the group does not have."""
        key = queue.key
        subscription = self._groups.setdefault(key.group, {}).setdefault(key.topic, Subscription())
        subscription.queues[key.queue_id] = queue
        self._offsets.space.add("positions", position_size(key.topic, key.group))
        return queue

    def require_space(self, queues: Collection[Queue]) -> None:
        """Raise TableSpaceError unless there is space for these queues in which the group has no position yet."""
        if queues:
            topic, group = next(iter(queues)).key.topic, next(iter(queues)).key.group
            one = position_size(topic, group) + offset_size()
            size = one * len(queues) + offsets_size(topic, group)
            self._offsets.space.require(size, f"a position of group {group!r} in topic {topic!r}")

    def note_busy(self, queue: Queue) -> None:
        """Note that this queue has messages in flight."""
        self._busy.setdefault(queue.key.group, set()).add(queue)

    def busy(self, group: str) -> set[Queue]:
        """The queues in which the group has messages in flight."""
        queues = self._busy.get(group)
        if not queues:
            return set()
        queues -= {queue for queue in queues if queue.dropped or not queue.delivery.in_flight}
        return queues

    def in_flight_count(self, group: str) -> int:
        return sum(len(queue.delivery.in_flight) for queue in self.busy(group))

    def drop(self, topic: str, group: str) -> None:
        """Remove a topic with its lite topics, a group, or both; an empty name stands for all."""
        for group_name, topics in list(self._groups.items()):
            if group not in ("", group_name):
                continue
            if topic.startswith(LIGHT_PREFIX):  # there may be thousands
                names = [topic] if topic in topics else []
            else:
                names = [name for name in topics if topic in ("", name) or _is_lite_topic_of(name, topic)]
            for name in names:
                for queue in topics.pop(name).queues.values():
                    queue.dropped = True
                    self._offsets.space.add("positions", -position_size(name, group_name))
            if not topics:
                del self._groups[group_name]
                self._busy.pop(group_name, None)

    def create_queue(self, key: QueueKey) -> Queue:
        """A queue that this process has not used yet, at the group's position or default start. `add` registers it."""
        high = self._store.queue_range(key.topic, key.queue_id)[1]
        commit_offset = self.start_of(key)
        if commit_offset > high:
            # The log lost its tail (a power failure with async flush); new messages reuse these offsets.
            _log.warning("committed offset is beyond the end of its queue key=%s offset=%d", key, commit_offset)
            commit_offset = high
        return Queue(key, commit_offset)

    def start_of(self, key: QueueKey) -> int:
        """Where the group begins in a queue that this process has not used yet."""
        committed = self._offsets.get(key.topic, key.group, key.queue_id)
        if committed is not None:
            return committed
        low, high = self._store.queue_range(key.topic, key.queue_id)
        policy = self._settings.current.delivery.initial_position
        is_retry = split_pop_retry_topic(key.topic, key.group) is not None
        earliest = policy == "earliest" or (policy == "auto" and low == 0) or is_retry
        return low if earliest else high

    def has_committed(self, queue: Queue) -> bool:
        """Whether the offsets table has the same position as a queue that was just created."""
        key = queue.key
        return self._offsets.get(key.topic, key.group, key.queue_id) == queue.delivery.commit_offset

    def note_commit(self, queue: Queue, *, force: bool = False) -> None:
        """Write the queue's progress to the offsets table."""
        commit_offset = queue.delivery.commit_offset
        if commit_offset != queue.saved_commit_offset and queue.reset_at is None:
            key = queue.key
            self._offsets.commit(key.topic, key.group, key.queue_id, commit_offset, force=force)
            queue.saved_commit_offset = commit_offset

    def release_resets(self, position: int) -> None:
        """A replay begins at this queue offset of the journal from now on: write earlier resets to the offsets
        table."""
        for queue in self:
            if queue.reset_at is not None and queue.reset_at < position:
                queue.reset_at = None
                self.note_commit(queue, force=True)

    def end_of(self, queue: Queue) -> int:
        """The offset after the queue's last message."""
        return self._store.queue_range(queue.key.topic, queue.key.queue_id)[1]

    def read_one(self, queue: Queue, offset: int) -> Record | None:
        """The message at a queue offset; None if the log has lost it."""
        records = self._store.read(queue.key.topic, queue.key.queue_id, offset, max_count=1).records
        return records[0] if records and records[0].queue_offset == offset else None

    def statuses(self, group: str) -> Iterator[QueueStatus]:
        """Every queue in which the group has a position. There may be tens of thousands, and each takes some
        microseconds: other tasks may run between two of them."""
        topics = sorted(self._groups.get(group, {}).items())
        for topic, subscription in topics:
            for queue_id, queue in sorted(subscription.queues.items()):
                if queue.dropped:
                    continue
                delivery = queue.delivery
                low, high = self._store.queue_range(topic, queue_id)
                new_from = max(delivery.cursor, low)  # messages removed by retention do not count
                new = max(high - new_from, 0)
                retrying = sum(1 for flight in delivery.in_flight.values() if flight.attempt > 1)
                retrying += sum(1 for deliveries in delivery.ready.values() if deliveries)
                yield QueueStatus(
                    topic=topic,
                    queue_id=queue_id,
                    commit_offset=delivery.commit_offset,
                    max_offset=high,
                    lag=len(delivery.in_flight) + delivery.waiting_count + new,
                    in_flight=len(delivery.in_flight),
                    ready=delivery.waiting_count + new,
                    retrying=retrying,
                    ready_offset=_lowest(delivery, new_from if new else None),
                )
        known = {topic for topic, _ in topics}
        for topic in self._offsets.topics_of(group):
            for queue_id, offset in self._offsets.queues(topic, group).items():
                if (
                    topic not in known or self.queue(topic, group, queue_id) is None
                ):  # not received from since the start
                    low, high = self._store.queue_range(topic, queue_id)
                    first = max(offset, low)
                    lag = max(high - first, 0)
                    ready_offset = first if lag else None
                    yield QueueStatus(topic, queue_id, offset, high, lag, 0, lag, ready_offset=ready_offset)


def _lowest(delivery: QueueDelivery, new_from: int | None) -> int | None:
    """The lowest offset that is ready; `new_from`: of new messages."""
    unread = delivery.unread.first
    return min((*delivery.ready, *(() if unread is None else (unread,))), default=new_from)


def _is_lite_topic_of(name: str, parent: str) -> bool:
    split = split_light_topic_name(name)
    return split is not None and split[0] == parent
