"""What the broker counts on its hot paths: plain numbers, made visible by metrics.py when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from aerobee_store.stats import Histogram

MESSAGE_SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)  # bytes, RocketMQ's buckets
RPC_MILLISECONDS_BOUNDS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)  # RocketMQ's, too


class SentCounters:
    """Messages of one type that were stored in one topic."""

    __slots__ = ("bytes", "messages", "sizes")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0  # of records
        self.sizes = [0] * (len(MESSAGE_SIZE_BOUNDS) + 1)

    def add(self, record_size: int) -> None:
        self.messages += 1
        self.bytes += record_size
        self.sizes[bisect_left(MESSAGE_SIZE_BOUNDS, record_size)] += 1


@dataclass(slots=True)
class ReceivedCounters:
    """Messages of one topic that were delivered to one group."""

    messages: int = 0
    bytes: int = 0  # on the wire


@dataclass(slots=True)
class BrokerCounters:
    """Since the start. Keys are what the metrics have as labels."""

    sent: dict[tuple[str, str], SentCounters] = field(default_factory=dict)
    """By topic (stored name) and message type (RocketMQ's name, in lower case)."""
    received: dict[tuple[str, str], ReceivedCounters] = field(default_factory=dict)
    """By topic and group (stored names)."""
    rpc_milliseconds: dict[tuple[str, str, str], Histogram] = field(default_factory=dict)
    """By service, method and the name of the protocol code."""

    def sent_to(self, topic: str, message_type: str) -> SentCounters:
        return self.sent.setdefault((topic, message_type), SentCounters())

    def received_by(self, topic: str, group: str) -> ReceivedCounters:
        return self.received.setdefault((topic, group), ReceivedCounters())

    def answered(self, service: str, method: str, code: str) -> Histogram:
        """To be kept by whoever observes often."""
        key = (service, method, code)
        histogram = self.rpc_milliseconds.get(key)
        if histogram is None:
            histogram = self.rpc_milliseconds[key] = Histogram(RPC_MILLISECONDS_BOUNDS)
        return histogram
