"""The priorities of waiting messages in one queue of a priority topic, for one group: the highest is delivered first,
then the oldest.

Like the order of message groups (message_group_order.py) it accompanies a QueueDelivery, which reports every message
that arrives, is delivered, returns or is finished. Only messages that were read can be compared, so the queue is read
ahead of delivery, up to a limit. Messages read but not delivered are ready after 0 deliveries, which the journal
records. Priorities are read from the messages again after a restart.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import ClassVar

from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import PRIORITY_PROPERTY


class Priorities:
    """Every message that was read and is not finished. Higher numbers go first; a missing number counts as 0."""

    LABEL_PROPERTY: ClassVar = PRIORITY_PROPERTY
    """The property of a message whose value is its label here, "" without one."""

    __slots__ = ("_rank_of", "_waiting", "unknown")

    def __init__(self, in_flight: Mapping[int, int], ready: Mapping[int, int]) -> None:
        """`in_flight`: offset -> nonce; `ready`: offset -> deliveries. All messages are unknown until `learn` reports
        their label."""
        self.unknown: set[int] = {*in_flight, *ready}
        self._rank_of: dict[int, int] = {}  # the negative priority: lower goes first, as with offsets
        self._waiting: list[tuple[int, int]] = []  # (rank, offset), ascending

    def rank_of(self, offset: int) -> int:
        """The rank of a message that `take` returned: lower goes first."""
        return self._rank_of[offset]

    def learn(self, offset: int, label: str, *, is_in_flight: bool) -> None:
        """Record the label of an unknown unfinished message."""
        self.unknown.discard(offset)
        self._rank_of[offset] = rank(label)
        if not is_in_flight:
            self._wait(offset)

    def add(self, offset: int, label: str) -> None:
        """Add the next message of the queue, as waiting."""
        self._rank_of[offset] = rank(label)
        self._wait(offset)

    def take(self, count: int) -> list[int]:
        """The first `count` waiting messages, in delivery order. Changes nothing."""
        assert not self.unknown, "the priorities are not known yet"
        return [offset for _, offset in self._waiting[:count]]

    def deliver(self, offsets: Sequence[int], nonce: int) -> None:
        """Note that these messages are delivered."""
        for offset in offsets:
            self._remove(offset)

    def rename(self, nonce: int, new_nonce: int) -> None:
        """Note that a message in flight has another nonce."""

    def put_back(self, offset: int, nonce: int) -> None:
        """Note that a message in flight is waiting again."""
        if offset in self._rank_of:
            self._wait(offset)

    def finish(self, offset: int, nonce: int) -> None:
        """Note that a message is finished; it was in flight under `nonce`, or waiting (0)."""
        self.unknown.discard(offset)
        if offset in self._rank_of:
            if not nonce:
                self._remove(offset)
            del self._rank_of[offset]

    def _wait(self, offset: int) -> None:
        insort(self._waiting, (self._rank_of[offset], offset))

    def _remove(self, offset: int) -> None:
        del self._waiting[bisect_left(self._waiting, (self._rank_of[offset], offset))]


def rank(label: str) -> int:
    """The sort key of a message with this label: lower goes first. Labels in other brokers' stores may have any
    content."""
    return -(decimal(label) or 0)
