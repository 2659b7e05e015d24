"""The interface of a query to queues, of a running broker or in the files of stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.offsets import EARLIEST, LATEST, Bounds, Offsets, Queue, Range
from aerobee_pipeline.options import Limit, SourceOptions, Subscription
from aerobee_pipeline.passes import Rows
from aerobee_pipeline.reading.store_queues import StoreQueues
from aerobee_store.records.record_batch import RecordBatch


class QueueAccess(Protocol):
    """Queues and their messages."""

    def bounds(self, subscription: Subscription) -> dict[Queue, Bounds]:
        """The selected queues, with their present first and next offsets."""

    def offset_at(self, queue: Queue, bounds: Bounds, timestamp_ms: int) -> int | None:
        """The first message stored at or after a time; None if there is none."""

    def rising(self, bounds: Mapping[Queue, Bounds]) -> set[Queue]:
        """The queues of these in which a sample of the store times rises, so that `offset_at` may exclude messages."""

    def size_of(self, item: Range) -> int | None:
        """About how many bytes a range has; None if that is not known before reading."""

    def read(
        self, item: Range, tags: frozenset[str] | None, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[RecordBatch, Rows]]:
        """The messages of a range in order, possibly including some without the tags. Raises DataLossError for a
        gap."""

    def broker_name(self, queue: Queue) -> str:
        """The name of the broker that has a queue."""

    def report(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commit the progress of a query to the broker under a consumer group."""

    def close(self) -> None:
        """Close connections and files."""


class StoresAccess:
    """The queues of several stores, by the name of their broker."""

    def __init__(self, options: SourceOptions) -> None:
        self._stores = options.stores
        self._open: dict[str, StoreQueues] = {}
        self._read: dict[Queue, StoreQueues] = {}

    def bounds(self, subscription: Subscription) -> dict[Queue, Bounds]:
        found: dict[Queue, Bounds] = {}
        for broker, directory in self._stores.items():
            if broker in self._open:
                self._open[broker].refresh()  # queues and files may have been added since
            else:
                self._open[broker] = StoreQueues(broker, directory, subscription.has_topic)
            found.update(self._open[broker].bounds(subscription))
        return found

    def offset_at(self, queue: Queue, bounds: Bounds, timestamp_ms: int) -> int | None:
        return self._open[queue.broker].offset_at(queue, bounds, timestamp_ms)

    def rising(self, bounds: Mapping[Queue, Bounds]) -> set[Queue]:
        return {queue for queue, its in bounds.items() if self._open[queue.broker].times_rise(queue, its)}

    def size_of(self, item: Range) -> int | None:
        return self._open[item.queue.broker].size_of(item)

    def read(
        self, item: Range, tags: frozenset[str] | None, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[RecordBatch, Rows]]:
        if item.queue not in self._read:
            topic = item.queue.topic
            directory = self._stores[item.queue.broker]
            self._read[item.queue] = StoreQueues(item.queue.broker, directory, lambda name: name == topic)
        return self._read[item.queue].read(item, tags, fail_on_data_loss=fail_on_data_loss)

    def broker_name(self, queue: Queue) -> str:
        return queue.broker

    def report(self, group: str, offsets: Mapping[Queue, int]) -> None:
        raise OptionError(
            "group: not available with storePath, because only a broker has consumer groups; leave it out"
        )

    def close(self) -> None:
        for queues in (*self._open.values(), *self._read.values()):
            queues.close()
        self._open.clear()
        self._read.clear()


def open_access(options: SourceOptions) -> QueueAccess:
    """Access to the queues that the options name."""
    if options.mode == "store":
        return StoresAccess(options)
    from aerobee_pipeline.reading.broker_queues import BrokersAccess

    return BrokersAccess(options)


def named_topics_exist(subscription: Subscription, bounds: Mapping[Queue, Bounds], where: str) -> None:
    """Raises OptionError for a topic selected by name that has no queue."""
    missing = subscription.named - {queue.topic for queue in bounds}
    if missing:
        raise OptionError(
            f"topic {sorted(missing)[0]!r}: {where} has no queue of this topic; check the name, or send a message first"
        )
    for topic, queue_ids in (subscription.queues or {}).items():
        gone = queue_ids - {queue.queue_id for queue in bounds if queue.topic == topic}
        if gone:
            raise OptionError(f"assign: topic {topic!r} has no queue {min(gone)}")


def offsets_at(
    access: QueueAccess, limit: Limit, bounds: Mapping[Queue, Bounds], *, is_start: bool, strategy: str
) -> Offsets:
    """The offset of a limit in each queue. Raises OptionError for a start after all messages, unless `strategy` is
    latest."""
    found: Offsets = {}
    for queue, its in bounds.items():
        timestamp = limit.timestamp
        if timestamp is None and limit.timestamps is not None:
            timestamp = limit.timestamps.get(queue)
        if timestamp is not None and timestamp >= 0:
            at = access.offset_at(queue, its, timestamp)
            if at is None and is_start and strategy == "error" and its.start < its.end:
                raise OptionError(
                    f"{queue}: all its messages were stored before {timestamp}; "
                    f"set startingOffsetsByTimestampStrategy=latest to begin at its end"
                )
            found[queue] = its.end if at is None else at
            continue
        offset = EARLIEST if limit.place == "earliest" else LATEST
        if isinstance(limit.place, dict):
            offset = limit.place.get(queue, EARLIEST if is_start else LATEST)
        found[queue] = its.start if offset == EARLIEST else its.end if offset == LATEST else offset
    if isinstance(limit.place, dict) and limit.timestamp is None:
        unknown = set(limit.place) - set(bounds)
        if unknown:
            raise OptionError(f"{'startingOffsets' if is_start else 'endingOffsets'}: {min(unknown)} does not exist")
    return found
