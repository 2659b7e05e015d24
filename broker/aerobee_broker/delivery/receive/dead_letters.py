"""Messages that a group could not consume are copied to the topic of its dead letters."""

from __future__ import annotations

from typing import Final

from aerobee_broker.delivery.state.stats import DeliveryStats
from aerobee_broker.delivery.state.subscriptions import DeliveryTables, Queue
from aerobee_broker.tables.consumer_groups import attempt_max
from aerobee_broker.tables.topics import dead_letter_topic
from aerobee_store import InvalidMessageError, MessageStore, Record
from aerobee_store.records import properties as p

ATTEMPTS_WITHOUT_END: Final = 1 << 30


class DeadLetters:
    """The dead letters of all groups."""

    def __init__(self, store: MessageStore, tables: DeliveryTables, stats: DeliveryStats) -> None:
        self._store = store
        self._tables = tables
        self._stats = stats

    def has_topic(self, group: str) -> bool:
        """Whether `append` may be called for the group."""
        return dead_letter_topic(group) in self._tables.topics

    def attempt_max(self, topic: str, group: str) -> int:
        """The number of deliveries after which a message of the topic becomes a dead letter of the group."""
        config = self._tables.groups.get(group)
        if config is None or topic == dead_letter_topic(group):  # a dead letter is delivered without limit
            return ATTEMPTS_WITHOUT_END
        return attempt_max(config.retry_max_times)

    async def create_topic(self, group: str) -> None:
        """Durable on return."""
        await self._tables.internal_topic(dead_letter_topic(group))

    def append(self, record: Record, queue: Queue) -> None:
        """The event that finishes the message must be appended in the same step, so that it follows in the log."""
        origin_id = record.unique_key or p.offset_message_id(record.store_host, record.physical_offset)
        properties = {
            **_own_properties(record),
            p.DLQ_ORIGIN_TOPIC: queue.topic if queue.retry_version else record.topic,
            p.DLQ_ORIGIN_MESSAGE_ID: origin_id,
        }
        message = record.to_new_message(dead_letter_topic(queue.key.group), 0, properties)
        try:
            self._store.append([message], internal=True)
        except InvalidMessageError:
            # If properties are at their limit, a dead letter without its origin is better than none.
            message.properties = _own_properties(record)
            self._store.append([message], internal=True)
        self._store.request_flush()  # with sync flush nobody can read it before, and nobody may be waiting for it
        self._stats.dead_letters += 1


def _own_properties(record: Record) -> dict[str, str]:
    """Omit properties that would put the copy into the light queues of the message."""
    names = (p.INNER_MULTI_DISPATCH, p.INNER_MULTI_QUEUE_OFFSET)
    return {name: value for name, value in record.properties.items() if name not in names}
