"""The priority of what waits in one queue of a priority topic, for one group: the highest goes out first, then the
oldest.

Like the order of message groups (message_group_order.py) it stands beside a QueueDelivery, which tells it of every
message that comes, goes out, comes back or ends. Only what was seen can be compared, so the queue is read ahead of what
is delivered, up to a bound; what is seen and not delivered is ready after 0 deliveries, and the journal has that. The
priorities themselves are in the messages, and are read from there again after a restart.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import ClassVar

from aerobee_broker.message_mapping import PRIORITY_PROPERTY


class Priorities:
    """Every message that was seen and is not finished. A higher number goes first; no number counts as 0."""

    LABEL_PROPERTY: ClassVar = PRIORITY_PROPERTY
    """Of a message: its value is the label that is told here, "" without one."""

    __slots__ = ("_rank_of", "_waiting", "unknown")

    def __init__(self, in_flight: Mapping[int, int], ready: Mapping[int, int]) -> None:
        """`in_flight`: offset -> nonce; `ready`: offset -> deliveries. All is unknown until `learn` tells its label."""
        self.unknown: set[int] = {*in_flight, *ready}
        self._rank_of: dict[int, int] = {}  # the priority, negative: lower goes first, as with offsets
        self._waiting: list[tuple[int, int]] = []  # (rank, offset), ascending

    def rank_of(self, offset: int) -> int:
        """Of a message that `take` returned: lower goes first."""
        return self._rank_of[offset]

    def learn(self, offset: int, label: str, *, is_in_flight: bool) -> None:
        """An unknown message that is not finished has this label."""
        self.unknown.discard(offset)
        self._rank_of[offset] = rank(label)
        if not is_in_flight:
            self._wait(offset)

    def add(self, offset: int, label: str) -> None:
        """The next message of the queue; it waits."""
        self._rank_of[offset] = rank(label)
        self._wait(offset)

    def take(self, count: int) -> list[int]:
        """The first `count` that wait, in the order in which they should go out. Nothing changes."""
        assert not self.unknown, "the priorities are not known yet"
        return [offset for _, offset in self._waiting[:count]]

    def deliver(self, offsets: Sequence[int], nonce: int) -> None:
        """These went out."""
        for offset in offsets:
            self._remove(offset)

    def rename(self, nonce: int, new_nonce: int) -> None:
        """One message in flight has another nonce."""

    def put_back(self, offset: int, nonce: int) -> None:
        """A message that was in flight waits again."""
        if offset in self._rank_of:
            self._wait(offset)

    def finish(self, offset: int, nonce: int) -> None:
        """A message is finished; it was in flight under `nonce`, or with 0 it waited."""
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
    """What a message with this label is sorted by: lower goes first. Stores of others may have anything there."""
    return -int(label) if label.isascii() and label.isdigit() and len(label) <= 10 else 0
