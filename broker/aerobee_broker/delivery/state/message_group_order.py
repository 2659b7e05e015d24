"""The order of one queue for one orderly group: which of its messages may be delivered now.

A sequence is the messages of one message group in this queue, or those without a group. While a message of a sequence
is in flight, no other message of the sequence is delivered. A waiting message is ready again, or was skipped when the
queue was read (ready after 0 deliveries), so that later sequences could continue. With nothing in flight the sequence
is open, and its messages are delivered in the order of their offsets. One answer may contain several new messages, or
several redelivered ones, but never a new one after a redelivered one of the same sequence.

    in flight      no message waits         messages wait
    none           the sequence is removed  open: its first offset is in the heap
    some           locked                   locked

The heap contains the first waiting offset of every open sequence, and stale pairs, which are dropped when they reach
the top.

A waiting message takes some 200 bytes. When many wait, the later ones of a sequence are *paged out*: only their queue
offsets are kept, 8 bytes each in an array of the sequence. They were never delivered and follow all others of their
sequence. The sequence pages in the next PAGE_SIZE of them when none of its messages waits in memory. A sequence with
paged messages therefore always has a waiting one, and pages out all later messages.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from aerobee_store.records.properties import SHARDING_KEY

PAGE_SIZE: Final = 32  # messages: the limit of one receive of the official clients
_STALE_MAX: Final = 1024  # pairs in the heap beyond twice the sequences


class _Sequence:
    __slots__ = ("in_flight", "message_group", "waiting")

    def __init__(self, message_group: str) -> None:
        self.message_group = message_group
        self.waiting: list[int] = []  # ascending
        self.in_flight = 0


class MessageGroupOrder:
    """Follows a QueueDelivery, which reports every message that arrives, is delivered, returns or is finished.

    Messages from before this object (a restart, a group that became orderly) are `unknown` until `learn` reports their
    message group. Nothing may be taken while any is unknown.
    """

    LABEL_PROPERTY: ClassVar = SHARDING_KEY
    """The property of a message whose value is its label here, the message group; "" without one."""

    __slots__ = (
        "_delivered_end",
        "_deliveries",
        "_flights",
        "_open",
        "_paged",
        "_ran_out",
        "_sequence_of",
        "_sequences",
        "unknown",
    )

    def __init__(self, in_flight: Mapping[int, int], ready: Mapping[int, int]) -> None:
        """`in_flight`: offset -> nonce. `ready`: offset -> number of deliveries. Both are live views."""
        self._deliveries = ready
        self.unknown: set[int] = {*in_flight, *ready}
        self._sequences: dict[str, _Sequence] = {}
        self._sequence_of: dict[int, _Sequence] = {}  # of every known unfinished message
        self._open: list[tuple[int, str]] = []
        self._paged: dict[str, array[int]] = {}  # by message group, ascending, never empty
        self._ran_out: list[str] = []  # message groups with paged messages and none waiting in memory
        self._delivered_end: dict[str, int] = {}  # by message group: the end of the messages from before this object
        self._flights: dict[int, int] = {}  # nonce -> messages in flight
        for nonce in in_flight.values():
            self._flights[nonce] = self._flights.get(nonce, 0) + 1

    def __contains__(self, nonce: object) -> bool:
        """Whether messages are in flight under this nonce."""
        return nonce in self._flights

    def message_group_of(self, offset: int) -> str:
        """The message group of a message that `take` returned."""
        return self._sequence_of[offset].message_group

    # Messages

    def learn(self, offset: int, label: str, *, is_in_flight: bool) -> None:
        """Record the message group of an unfinished message: an unknown one, or one that waits unread."""
        if offset in self.unknown:
            self.unknown.discard(offset)
            self._delivered_end[label] = max(offset + 1, self._delivered_end.get(label, 0))
        sequence = self._sequence(label)
        self._sequence_of[offset] = sequence
        if is_in_flight:
            sequence.in_flight += 1
        else:
            insort(sequence.waiting, offset)
            self._offer(sequence)

    def add(self, offset: int, label: str) -> None:
        """Add the next message of the queue, as waiting."""
        sequence = self._sequence(label)
        self._sequence_of[offset] = sequence
        sequence.waiting.append(offset)
        if len(sequence.waiting) == 1:
            self._offer(sequence)

    # Paging

    @property
    def paged_count(self) -> int:
        """The number of paged-out messages."""
        return sum(map(len, self._paged.values()))

    def paged(self) -> Iterator[int]:
        """Their offsets, ascending."""
        return heapq.merge(*self._paged.values())

    def is_paged(self, offset: int) -> bool:
        """Whether this message is paged out."""
        return any(
            (index := bisect_left(offsets, offset)) < len(offsets) and offsets[index] == offset
            for offsets in self._paged.values()
        )

    def page_out(self, offset: int, label: str, *, is_full: bool) -> bool:
        """Take a message after all known ones of its message group, in place of `add`; False if it must be added.

        `is_full`: enough messages wait in memory. Messages before a delivered one, which exist only in a group that was
        not orderly before, are not taken.
        """
        paged = self._paged.get(label)
        if paged is not None:
            paged.append(offset)
            return True
        sequence = self._sequences.get(label)
        if not is_full or sequence is None or not sequence.waiting or offset < self._delivered_end.get(label, 0):
            return False
        self._paged[label] = array("q", (offset,))
        return True

    def page_in(self) -> list[tuple[int, str]]:
        """The (offset, message group) of messages that are no longer paged out; `add` them."""
        found: list[tuple[int, str]] = []
        while self._ran_out:
            label = self._ran_out.pop()
            paged = self._paged.get(label)
            sequence = self._sequences.get(label)
            if paged is None or (sequence is not None and sequence.waiting):
                continue
            found.extend((offset, label) for offset in paged[:PAGE_SIZE])
            del paged[:PAGE_SIZE]
            if not paged:
                del self._paged[label]
        return found

    # Delivery

    def has_open(self) -> bool:
        """Whether `take` would return anything."""
        return not self.unknown and self._first_open() is not None

    def take(self, count: int) -> list[int]:
        """The lowest `count` offsets that may be delivered together, ascending. Changes nothing."""
        assert not self.unknown, "the order is not known yet"
        taken: list[int] = []
        opened: list[tuple[int, str]] = []  # pairs to put back into the heap
        next_waiting: list[tuple[int, int, bool, _Sequence]] = []
        # Started sequences: offset, its index, whether a redelivered message is taken, the sequence.
        while len(taken) < count:
            first = self._first_open()
            if next_waiting and (first is None or next_waiting[0][0] < first[0]):
                offset, index, redelivers, sequence = heapq.heappop(next_waiting)
            elif first is not None:
                while self._open and self._open[0] == first:  # it may occur twice
                    heapq.heappop(self._open)
                opened.append(first)
                offset, index, redelivers, sequence = first[0], 0, False, self._sequences[first[1]]
            else:
                break
            taken.append(offset)
            redelivers = redelivers or self._deliveries[offset] > 0
            if index + 1 < len(sequence.waiting):
                following = sequence.waiting[index + 1]
                if not redelivers or self._deliveries[following]:
                    heapq.heappush(next_waiting, (following, index + 1, redelivers, sequence))
        for pair in opened:
            heapq.heappush(self._open, pair)
        return taken

    def deliver(self, offsets: Sequence[int], nonce: int) -> None:
        """Note that these messages are delivered."""
        for offset in offsets:
            sequence = self._sequence_of[offset]
            _remove(sequence.waiting, offset)
            sequence.in_flight += 1
            self._note_ran_out(sequence)
        self._flights[nonce] = self._flights.get(nonce, 0) + len(offsets)

    # Return

    def rename(self, nonce: int, new_nonce: int) -> None:
        """Note that a message in flight has another nonce."""
        self._landed(nonce)
        self._flights[new_nonce] = self._flights.get(new_nonce, 0) + 1

    def put_back(self, offset: int, nonce: int) -> None:
        """Note that a message in flight is waiting again."""
        self._landed(nonce)
        sequence = self._sequence_of.get(offset)
        if sequence is not None:
            sequence.in_flight -= 1
            insort(sequence.waiting, offset)
            self._offer(sequence)

    def finish(self, offset: int, nonce: int) -> None:
        """Note that a message is finished; it was in flight under `nonce`, or waiting (0)."""
        self.unknown.discard(offset)
        if nonce:
            self._landed(nonce)
        sequence = self._sequence_of.pop(offset, None)
        if sequence is None:
            return
        if nonce:
            sequence.in_flight -= 1
        else:
            _remove(sequence.waiting, offset)
            self._note_ran_out(sequence)
        if not sequence.in_flight and not sequence.waiting:
            del self._sequences[sequence.message_group]
        else:
            self._offer(sequence)

    # Inside

    def _sequence(self, message_group: str) -> _Sequence:
        sequence = self._sequences.get(message_group)
        if sequence is None:
            sequence = self._sequences[message_group] = _Sequence(message_group)
        return sequence

    def _note_ran_out(self, sequence: _Sequence) -> None:
        if not sequence.waiting and sequence.message_group in self._paged:
            self._ran_out.append(sequence.message_group)

    def _offer(self, sequence: _Sequence) -> None:
        if sequence.waiting and not sequence.in_flight:
            heapq.heappush(self._open, (sequence.waiting[0], sequence.message_group))
            if len(self._open) > 2 * len(self._sequences) + _STALE_MAX:
                self._open = [
                    (each.waiting[0], each.message_group)
                    for each in self._sequences.values()
                    if each.waiting and not each.in_flight
                ]
                heapq.heapify(self._open)

    def _first_open(self) -> tuple[int, str] | None:
        while self._open:
            offset, message_group = first = self._open[0]
            sequence = self._sequences.get(message_group)
            if sequence is not None and not sequence.in_flight and sequence.waiting and sequence.waiting[0] == offset:
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
