"""What a group has not finished, by topic: the same figures for lists, history and problems."""

from __future__ import annotations

from msgspec import Struct

from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.tables.topics import split_light_topic_name
from aerobee_store import MessageStore


class Backlog(Struct):
    """The unfinished messages of a group, in one topic or all."""

    in_flight: int = 0
    ready: int = 0
    retrying: int = 0
    oldest_ms: int | None = None
    """When the oldest one was stored, Unix milliseconds."""

    @property
    def lag(self) -> int:
        return self.in_flight + self.ready

    def add(self, other: Backlog) -> None:
        self.in_flight += other.in_flight
        self.ready += other.ready
        self.retrying += other.retrying
        if other.oldest_ms is not None:
            self.oldest_ms = other.oldest_ms if self.oldest_ms is None else min(self.oldest_ms, other.oldest_ms)


async def backlogs_of(deliveries: Deliveries, store: MessageStore, group: str, turns: Turns) -> dict[str, Backlog]:
    """By topic, in which the group has a position; lite topics count for their parent."""
    found: dict[str, Backlog] = {}
    for status in deliveries.statuses(group):
        await turns.next()
        topic, _ = split_light_topic_name(status.topic) or (status.topic, None)
        oldest = None
        if status.lag:
            low = store.queue_range(status.topic, status.queue_id)[0]
            oldest = store.store_timestamp_at(status.topic, status.queue_id, max(status.commit_offset, low))
        found.setdefault(topic, Backlog()).add(Backlog(status.in_flight, status.ready, status.retrying, oldest))
    return found
