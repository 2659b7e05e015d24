"""Counters of the hot paths: plain numbers, rendered by metrics.py on request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_store import Record
from aerobee_store.deferred import deferred
from aerobee_store.stats import Histogram

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = deferred("numpy")


MESSAGE_SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)  # bytes, RocketMQ's buckets
RPC_MILLISECONDS_BOUNDS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)  # RocketMQ's buckets, too
CREATE_MILLISECONDS_BOUNDS: Final = (10.0, 100.0, 1000.0, 3000.0, 5000.0)  # RocketMQ's buckets
LATENCY_MILLISECONDS_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)


class SentCounters:
    """Messages of one type that were stored in one topic."""

    __slots__ = ("bytes", "messages", "milliseconds", "sizes")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0  # bytes of records
        self.sizes = [0] * (len(MESSAGE_SIZE_BOUNDS) + 1)
        self.milliseconds = Histogram(LATENCY_MILLISECONDS_BOUNDS)  # durations of requests

    def add(self, record_size: int) -> None:
        self.messages += 1
        self.bytes += record_size
        self.sizes[bisect_left(MESSAGE_SIZE_BOUNDS, record_size)] += 1

    def add_many(self, record_sizes: npt.NDArray[np.int64], message_count: int) -> int:
        """The same for many records; returns their bytes. `message_count`: more than there are records, if these are
        batches."""
        size = int(record_sizes.sum())
        self.messages += message_count
        self.bytes += size
        if int(record_sizes.max()) <= MESSAGE_SIZE_BOUNDS[0]:
            self.sizes[0] += len(record_sizes)
            return size
        places = np.searchsorted(MESSAGE_SIZE_BOUNDS, record_sizes)
        for place, count in enumerate(np.bincount(places).tolist()):
            self.sizes[place] += count
        return size


class ReceivedCounters(Struct):
    """Messages of one topic delivered to one group, with their outcomes."""

    messages: int = 0
    bytes: int = 0  # on the wire
    milliseconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_MILLISECONDS_BOUNDS))
    """Durations from storing a message to its delivery."""
    acknowledged: int = 0
    changed: int = 0  # invisible times
    disk_messages: int = 0  # so old that they come from the disk; see `BrokerCounters.disk_end`
    disk_bytes: int = 0  # of records


class QueueCounters:
    """Messages of one queue."""

    __slots__ = ("bytes", "messages", "requests")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.requests = 0

    def add(self, messages: int, size: int) -> None:
        """Count the messages of one request."""
        self.messages += messages
        self.bytes += size
        self.requests += 1


class ExecutionTimes:
    """Durations of an operation that may fail, in milliseconds."""

    __slots__ = ("histograms",)

    def __init__(self) -> None:
        self.histograms: dict[tuple[bool, bool], Histogram] = {}
        """By success, and whether the object belongs to the broker itself."""

    @contextmanager
    def measure(self, *, is_system: bool) -> Iterator[None]:
        """Measure the block; a block that raises has failed."""
        started = perf_counter()
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            histogram = self.histograms.get((succeeded, is_system))
            if histogram is None:
                histogram = self.histograms[succeeded, is_system] = Histogram(CREATE_MILLISECONDS_BOUNDS)
            histogram.observe((perf_counter() - started) * 1000)


class Running:
    """Running calls of one method."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class BrokerCounters(Struct):
    """Counters since the start. Keys are the labels of the metrics."""

    sent: dict[tuple[str, str], SentCounters] = field(default_factory=dict)
    """By topic (stored name) and message type (RocketMQ's name, in lower case)."""
    received: dict[tuple[str, str], ReceivedCounters] = field(default_factory=dict)
    """By topic and group (stored names)."""
    rpc_milliseconds: dict[tuple[str, str, str], Histogram] = field(default_factory=dict)
    """By service, method and the name of the protocol code."""
    running_calls: dict[tuple[str, str], Running] = field(default_factory=dict)
    """By service and method."""
    sent_to_queues: dict[tuple[str, int], QueueCounters] = field(default_factory=dict)
    """By topic and queue, since the last sample of `BrokerStats`, which removes them."""
    received_from_queues: dict[tuple[str, int, str], QueueCounters] = field(default_factory=dict)
    """By topic, queue and group, also since the last sample."""
    disk_end: int = 0
    """The physical offset before which records are probably no longer in memory; `BrokerStats` updates it."""
    front: FrontCounters = field(default_factory=FrontCounters)
    forgotten_in: int = 0  # messages of counters that were removed
    forgotten_out: int = 0

    def sent_to(self, topic: str, message_type: str) -> SentCounters:
        key = (topic, message_type)
        counters = self.sent.get(key)
        if counters is None:
            counters = self.sent[key] = SentCounters()
        return counters

    def stored(
        self, topic: str, message_types: Sequence[str], queue_ids: Sequence[int], sizes: Sequence[int]
    ) -> SentCounters:
        """Count the messages of one request: type, queue and bytes of the record of each. Returns the counters of the
        first one."""
        sent = self.sent_to(topic, message_types[0])
        if len(sizes) == 1:
            sent.add(sizes[0])
            self.sent_to_queue(topic, queue_ids[0], 1, sizes[0])
            return sent
        of_queues: dict[int, list[int]] = {}
        for message_type, queue_id, size in zip(message_types, queue_ids, sizes, strict=True):
            self.sent_to(topic, message_type).add(size)
            of_queues.setdefault(queue_id, []).append(size)
        for queue_id, of_queue in of_queues.items():
            self.sent_to_queue(topic, queue_id, len(of_queue), sum(of_queue))
        return sent

    def stored_records(
        self, topic: str, message_type: str, queue_id: int, record_sizes: npt.NDArray[np.int64], message_count: int
    ) -> SentCounters:
        """The same for the records of one request, which are all for one queue."""
        sent = self.sent_to(topic, message_type)
        size = sent.add_many(record_sizes, message_count)
        self.sent_to_queue(topic, queue_id, message_count, size)
        return sent

    def received_by(self, topic: str, group: str) -> ReceivedCounters:
        key = (topic, group)
        counters = self.received.get(key)
        if counters is None:
            counters = self.received[key] = ReceivedCounters()
        return counters

    def sent_to_queue(self, topic: str, queue_id: int, messages: int, size: int) -> None:
        """Count the messages of one request. `size`: bytes of records."""
        key = (topic, queue_id)
        counters = self.sent_to_queues.get(key)
        if counters is None:
            counters = self.sent_to_queues[key] = QueueCounters()
        counters.add(messages, size)

    def received_from_queue(self, topic: str, queue_id: int, group: str, messages: int, size: int) -> None:
        """Count the messages of one answer. `size`: bytes on the wire."""
        key = (topic, queue_id, group)
        counters = self.received_from_queues.get(key)
        if counters is None:
            counters = self.received_from_queues[key] = QueueCounters()
        counters.add(messages, size)

    def delivered(self, topic: str, group: str, records: Sequence[Record], sizes: Sequence[int]) -> ReceivedCounters:
        """Count the messages of one answer, at least one; returns the counters of the group. `sizes`: bytes on the
        wire, of each message."""
        received = self.received_by(topic, group)
        size = sum(sizes)
        received.messages += len(records)
        received.bytes += size
        queue_ids = {record.queue_id for record in records}
        if len(queue_ids) == 1:
            self.received_from_queue(topic, records[0].queue_id, group, len(records), size)
        else:
            for queue_id in queue_ids:
                of_queue = [size for record, size in zip(records, sizes, strict=True) if record.queue_id == queue_id]
                self.received_from_queue(topic, queue_id, group, len(of_queue), sum(of_queue))
        if self.disk_end > 0:
            from_disk = [record.size for record in records if record.physical_offset < self.disk_end]
            received.disk_messages += len(from_disk)
            received.disk_bytes += sum(from_disk)
        return received

    def answered(self, service: str, method: str, code: str) -> Histogram:
        """The counter of answers; callers may keep it."""
        key = (service, method, code)
        histogram = self.rpc_milliseconds.get(key)
        if histogram is None:
            histogram = self.rpc_milliseconds[key] = Histogram(RPC_MILLISECONDS_BOUNDS)
        return histogram

    def running(self, service: str, method: str) -> Running:
        """The counter of running calls; callers may keep it."""
        return self.running_calls.setdefault((service, method), Running())

    def forget(self, is_topic: Callable[[str], bool], is_group: Callable[[str], bool]) -> None:
        """Remove the counters of deleted topics and groups."""
        for sent_key in [key for key in self.sent if not is_topic(key[0])]:
            self.forgotten_in += self.sent.pop(sent_key).messages
        for key in [key for key in self.received if not (is_topic(key[0]) and is_group(key[1]))]:
            self.forgotten_out += self.received.pop(key).messages
