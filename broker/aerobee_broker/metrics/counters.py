"""Counters of the hot paths: plain numbers, rendered by metrics.py on request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final

from aerobee_broker.front.counters import FrontCounters
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

    def add_many(self, record_sizes: npt.NDArray[np.int64], message_count: int) -> None:
        """The same for many records. `message_count`: more than there are records, if these are batches."""
        self.messages += message_count
        self.bytes += int(record_sizes.sum())
        if int(record_sizes.max()) <= MESSAGE_SIZE_BOUNDS[0]:
            self.sizes[0] += len(record_sizes)
            return
        places = np.searchsorted(MESSAGE_SIZE_BOUNDS, record_sizes)
        for place, count in enumerate(np.bincount(places).tolist()):
            self.sizes[place] += count


@dataclass(slots=True)
class ReceivedCounters:
    """Messages of one topic delivered to one group, with their outcomes."""

    messages: int = 0
    bytes: int = 0  # on the wire
    milliseconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_MILLISECONDS_BOUNDS))
    """Durations from storing a message to its delivery."""
    acknowledged: int = 0
    changed: int = 0  # invisible times


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


@dataclass(slots=True)
class BrokerCounters:
    """Counters since the start. Keys are the labels of the metrics."""

    sent: dict[tuple[str, str], SentCounters] = field(default_factory=dict)
    """By topic (stored name) and message type (RocketMQ's name, in lower case)."""
    received: dict[tuple[str, str], ReceivedCounters] = field(default_factory=dict)
    """By topic and group (stored names)."""
    rpc_milliseconds: dict[tuple[str, str, str], Histogram] = field(default_factory=dict)
    """By service, method and the name of the protocol code."""
    running_calls: dict[tuple[str, str], Running] = field(default_factory=dict)
    """By service and method."""
    front: FrontCounters = field(default_factory=FrontCounters)
    forgotten_in: int = 0  # messages of counters that were removed
    forgotten_out: int = 0

    def sent_to(self, topic: str, message_type: str) -> SentCounters:
        return self.sent.setdefault((topic, message_type), SentCounters())

    def received_by(self, topic: str, group: str) -> ReceivedCounters:
        return self.received.setdefault((topic, group), ReceivedCounters())

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
