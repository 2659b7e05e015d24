"""The order of one queue for one orderly group: which of its messages may be delivered now.

A lane is what has to stay in order: the messages of one message group in this queue, or those without a group. While
a message of a lane is in flight, none of the others is delivered; what waits there is ready again, or was passed over
when the queue was read (ready after 0 deliveries), so that the lanes behind it could go on. With nothing in flight
the lane is open, and its messages go out in the order of their offsets.

    in flight      nothing waits        something waits
    none           the lane is gone     open: its first offset is in the heap
    some           locked               locked

The heap names the first waiting offset of every open lane, and stale pairs which are dropped when they come up.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from aerobee_store.records.properties import SHARDING_KEY

_STALE_MAX: Final = 1024  # pairs in the heap beyond twice the lanes


class _Lane:
    __slots__ = ("in_flight", "message_group", "waiting")

    def __init__(self, message_group: str) -> None:
        self.message_group = message_group
        self.waiting: list[int] = []  # ascending
        self.in_flight = 0


class Lanes:
    """Follows a QueueDelivery, which calls it for every message that comes, goes out, comes back or ends.

    What was there before the lanes were (a restart, a group that became orderly) is `unknown` until `learn` tells its
    message group; nothing may be taken before all of it is known.
    """

    LABEL_PROPERTY: ClassVar = SHARDING_KEY
    """Of a message: its value is the label that is told here, the message group; "" without one."""

    __slots__ = ("_flights", "_lane_of", "_lanes", "_open", "unknown")

    def __init__(self, in_flight: Mapping[int, int], ready: Iterable[int]) -> None:
        """`in_flight`: offset -> nonce."""
        self.unknown: set[int] = {*in_flight, *ready}
        self._lanes: dict[str, _Lane] = {}
        self._lane_of: dict[int, _Lane] = {}  # of every message that is known and not finished
        self._open: list[tuple[int, str]] = []
        self._flights: dict[int, int] = {}  # nonce -> messages in flight
        for nonce in in_flight.values():
            self._flights[nonce] = self._flights.get(nonce, 0) + 1

    def __contains__(self, nonce: object) -> bool:
        """Whether something is in flight under this nonce."""
        return nonce in self._flights

    def message_group_of(self, offset: int) -> str:
        """Of a message that `take` returned."""
        return self._lane_of[offset].message_group

    # What there is

    def learn(self, offset: int, label: str, *, is_in_flight: bool) -> None:
        """An unknown message that is not finished has this message group."""
        self.unknown.discard(offset)
        lane = self._lane(label)
        self._lane_of[offset] = lane
        if is_in_flight:
            lane.in_flight += 1
        else:
            insort(lane.waiting, offset)
            self._offer(lane)

    def add(self, offset: int, label: str) -> None:
        """The next message of the queue; it waits."""
        lane = self._lane(label)
        self._lane_of[offset] = lane
        lane.waiting.append(offset)
        if len(lane.waiting) == 1:
            self._offer(lane)

    # Out

    def has_open(self) -> bool:
        """Whether `take` would find anything."""
        return not self.unknown and self._first_open() is not None

    def take(self, count: int) -> list[int]:
        """The lowest `count` offsets that may go out together, ascending. Nothing changes."""
        assert not self.unknown, "the order is not known yet"
        taken: list[int] = []
        opened: list[tuple[int, str]] = []  # what has to go back into the heap
        next_waiting: list[tuple[int, int, _Lane]] = []  # of lanes that have been begun: offset, its index, lane
        while len(taken) < count:
            first = self._first_open()
            if next_waiting and (first is None or next_waiting[0][0] < first[0]):
                offset, index, lane = heapq.heappop(next_waiting)
            elif first is not None:
                while self._open and self._open[0] == first:  # it may be there twice
                    heapq.heappop(self._open)
                opened.append(first)
                offset, index, lane = first[0], 0, self._lanes[first[1]]
            else:
                break
            taken.append(offset)
            if index + 1 < len(lane.waiting):
                heapq.heappush(next_waiting, (lane.waiting[index + 1], index + 1, lane))
        for pair in opened:
            heapq.heappush(self._open, pair)
        return taken

    def deliver(self, offsets: Sequence[int], nonce: int) -> None:
        """These went out."""
        for offset in offsets:
            lane = self._lane_of[offset]
            _remove(lane.waiting, offset)
            lane.in_flight += 1
        self._flights[nonce] = self._flights.get(nonce, 0) + len(offsets)

    # Back

    def rename(self, nonce: int, new_nonce: int) -> None:
        """One message in flight has another nonce."""
        self._landed(nonce)
        self._flights[new_nonce] = self._flights.get(new_nonce, 0) + 1

    def put_back(self, offset: int, nonce: int) -> None:
        """A message that was in flight waits again."""
        self._landed(nonce)
        lane = self._lane_of.get(offset)
        if lane is not None:
            lane.in_flight -= 1
            insort(lane.waiting, offset)
            self._offer(lane)

    def finish(self, offset: int, nonce: int) -> None:
        """A message is finished; it was in flight under `nonce`, or with 0 it waited."""
        self.unknown.discard(offset)
        if nonce:
            self._landed(nonce)
        lane = self._lane_of.pop(offset, None)
        if lane is None:
            return
        if nonce:
            lane.in_flight -= 1
        else:
            _remove(lane.waiting, offset)
        if not lane.in_flight and not lane.waiting:
            del self._lanes[lane.message_group]
        else:
            self._offer(lane)

    # Inside

    def _lane(self, message_group: str) -> _Lane:
        lane = self._lanes.get(message_group)
        if lane is None:
            lane = self._lanes[message_group] = _Lane(message_group)
        return lane

    def _offer(self, lane: _Lane) -> None:
        if lane.waiting and not lane.in_flight:
            heapq.heappush(self._open, (lane.waiting[0], lane.message_group))
            if len(self._open) > 2 * len(self._lanes) + _STALE_MAX:
                self._open = [
                    (each.waiting[0], each.message_group)
                    for each in self._lanes.values()
                    if each.waiting and not each.in_flight
                ]
                heapq.heapify(self._open)

    def _first_open(self) -> tuple[int, str] | None:
        while self._open:
            offset, message_group = first = self._open[0]
            lane = self._lanes.get(message_group)
            if lane is not None and not lane.in_flight and lane.waiting and lane.waiting[0] == offset:
                return first
            heapq.heappop(self._open)
        return None

    def _landed(self, nonce: int) -> None:
        count = self._flights[nonce] - 1
        if count:
            self._flights[nonce] = count
        else:
            del self._flights[nonce]


def _remove(waiting: list[int], offset: int) -> None:
    del waiting[bisect_left(waiting, offset)]
