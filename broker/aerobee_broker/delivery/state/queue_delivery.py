"""The delivery of one queue to one group: a state machine without I/O and without a clock.

    commit_offset              cursor
         |                        |
    -----+------------------------+----------------
    done   done, in flight, ready   never delivered

Every offset below `cursor` is either finished (acknowledged, filtered out, lost, a dead letter), in flight (a client
has it, invisible to others until its time) or ready (waits for the next receive). The commit offset is the lowest
unfinished one. Redelivery happens in place: a message keeps its queue offset, and only this state and the journal count
its deliveries.

Methods for live traffic return the event to write to the journal; `apply` applies such an event when the journal is
replayed. Other changes follow from events: expiry from the time, and skipped messages from the next delivery, which
records where the one before it ended.

A group that consumes in order has a MessageGroupOrder (message_group_order.py) beside this state, a priority topic has
Priorities (priorities.py): they decide which of the ready messages may be delivered, or which first. Because any
message may have to wait, new ones are taken by `see`, which makes them ready after 0 deliveries, and are then delivered
like all others. `keep_order` switches this on at any time, `forget_order` off.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

from aerobee_broker.delivery.state.events import (
    Acknowledged,
    Changed,
    Delivered,
    QueueEvent,
    Reset,
    Run,
    State,
    StateEntry,
)
from aerobee_broker.delivery.state.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.state.offset_bitmap import OffsetBitmap
from aerobee_broker.delivery.state.offset_ranges import OffsetRanges
from aerobee_broker.delivery.state.priorities import Priorities
from aerobee_broker.errors import InvalidReceiptHandleError

_STALE_DEADLINES_MAX: Final = 1024  # limit of the heap of deadlines beyond twice the messages in flight


class Order(Protocol):
    """Decides which of the ready messages are delivered."""

    unknown: set[int]

    def learn(self, offset: int, label: str, *, is_in_flight: bool) -> None: ...
    def add(self, offset: int, label: str) -> None: ...
    def take(self, count: int) -> list[int]: ...
    def deliver(self, offsets: Sequence[int], nonce: int) -> None: ...
    def rename(self, nonce: int, new_nonce: int) -> None: ...
    def put_back(self, offset: int, nonce: int) -> None: ...
    def finish(self, offset: int, nonce: int) -> None: ...


_Kept = TypeVar("_Kept", MessageGroupOrder, Priorities)


class InFlight:
    """One message that a client has. Mutable, with a single owner."""

    __slots__ = ("attempt", "client_id", "invisible_until_ms", "nonce")

    def __init__(self, attempt: int, invisible_until_ms: int, nonce: int, client_id: str | None) -> None:
        self.attempt = attempt
        self.invisible_until_ms = invisible_until_ms
        self.nonce = nonce
        self.client_id = client_id


class QueueDelivery:
    """Times are Unix milliseconds, attempts count from 1, nonces are 1..2**64-1."""

    __slots__ = (
        "_deadline_sequence",
        "_deadline_size",
        "_deadlines",
        "_ready_order",
        "_recorded_cursor",
        "_unrecorded",
        "commit_offset",
        "cursor",
        "finished",
        "in_flight",
        "order",
        "ready",
        "ready_attempt_max",
        "unread",
    )

    def __init__(self, commit_offset: int) -> None:
        self.commit_offset = commit_offset
        self.cursor = commit_offset
        self.finished = OffsetRanges()  # above commit_offset, below cursor
        self.in_flight: dict[int, InFlight] = {}
        self.ready: dict[int, int] = {}  # queue offset -> number of deliveries
        # Ready after 0 deliveries, and not read since the replay of the journal, or since the order was forgotten. An
        # orderly group may have many of them. `learn_unread` or `make_ready` takes them from here.
        self.unread = OffsetBitmap()
        self.ready_attempt_max = 0  # upper bound of the deliveries of messages in `ready`
        self._ready_order: list[int] | None = []  # the keys of `ready`, ascending; None: to be sorted when needed
        self._recorded_cursor = commit_offset  # as recorded in the journal
        self._unrecorded: list[int] = []  # read since then, and still waiting
        self.order: Order | None = None
        # (time, sequence, offsets): one entry per delivery, not per message. Stale entries are dropped when their time
        # comes, or all at once when there are too many.
        self._deadlines: list[tuple[int, int, tuple[int, ...]]] = []
        self._deadline_size = 0
        self._deadline_sequence = 0

    @property
    def is_trivial(self) -> bool:
        """Whether the commit offset describes the whole state."""
        return self.commit_offset == self.cursor

    @property
    def next_expiry_ms(self) -> int | None:
        """When `expire` should be called next; it may then find nothing to do."""
        return self._deadlines[0][0] if self._deadlines else None

    # Order

    def keep_order(self, kind: type[_Kept]) -> _Kept:
        """From now on deliver only messages that the order allows; first `learn` all of its `unknown` ones."""
        if not isinstance(self.order, kind):
            self.order = kind({offset: entry.nonce for offset, entry in self.in_flight.items()}, self.ready)
            self._ready_order = None  # not maintained while nothing is taken by it
        assert isinstance(self.order, kind), "it was made just now, or before"
        return self.order

    def forget_order(self) -> None:
        """From now on deliver any ready message."""
        for offset in self._paged():
            self.unread.add(offset, offset + 1)
        self.order = None

    @property
    def waiting_count(self) -> int:
        """Messages below the cursor that are neither finished nor in flight."""
        paged = self.order.paged_count if isinstance(self.order, MessageGroupOrder) else 0
        return len(self.ready) + len(self.unread) + paged

    @property
    def is_order_known(self) -> bool:
        """Whether the order knows the labels of all that wait or are in flight, or there is no order."""
        return self.order is None or not (self.order.unknown or self.unread)

    def deliveries_of_waiting(self, offset: int) -> int | None:
        """How often a waiting message was delivered; None for a message that is not waiting."""
        deliveries = self.ready.get(offset)
        if offset in self.unread or (isinstance(self.order, MessageGroupOrder) and self.order.is_paged(offset)):
            return 0
        return deliveries

    def unfinished(self) -> list[int]:
        """The unfinished offsets below the cursor, ascending."""
        return sorted((*self.in_flight, *self.ready, *self.unread, *self._paged()))

    def _paged(self) -> Iterable[int]:
        return self.order.paged() if isinstance(self.order, MessageGroupOrder) else ()

    def learn(self, offset: int, label: str) -> None:
        """Set the label of one of `order.unknown`: the value of the order's LABEL_PROPERTY, "" without."""
        assert self.order is not None, "keep_order comes first"
        self.order.learn(offset, label, is_in_flight=offset in self.in_flight)

    def learn_unread(self, offset: int, label: str, *, ready_max: int | None = None) -> None:
        """Set the label of the lowest `unread` offset, once the order knows all others. `ready_max` as in `see`."""
        assert self.order is not None, "keep_order comes first"
        assert not self.order.unknown, "what was delivered comes first"
        self.unread.discard(offset)
        is_full = ready_max is not None and len(self.ready) >= ready_max
        if not isinstance(self.order, MessageGroupOrder) or not self.order.page_out(offset, label, is_full=is_full):
            self.ready[offset] = 0
            self.order.learn(offset, label, is_in_flight=False)

    def make_ready(self, count: int) -> None:
        """Without an order: make `count` messages available to `take_ready`, if that many wait."""
        assert self.order is None, "an order has to know what it makes ready"
        if self.unread and len(self.ready) < count:
            offsets = list(islice(self.unread, count))
            for offset in offsets:
                self.unread.discard(offset)
            self._make_ready(dict.fromkeys(offsets, 0))

    def see(self, messages: Iterable[tuple[int, str]], cursor: int, *, ready_max: int | None = None) -> None:
        """Take (offset, label) of messages from the cursor on, ascending, as ready for their first delivery.

        `ready_max`: from this many ready messages on, a message after another of its message group is paged out.

        `cursor` becomes the cursor; offsets between the old and the new one that are not in `messages` are finished.
        This makes no event: the next event records it, at the latest that of `record_seen`.
        """
        assert self.order is not None, "only order needs to see more than it delivers"
        order = self.order if isinstance(self.order, MessageGroupOrder) else None
        for offset, label in messages:
            self.skip(offset)
            self.cursor = offset + 1
            is_full = ready_max is not None and len(self.ready) >= ready_max
            if order is None or not order.page_out(offset, label, is_full=is_full):
                self._add_ready(offset, label)
            self._unrecorded.append(offset)
        self.skip(cursor)

    def _add_ready(self, offset: int, label: str) -> None:
        assert self.order is not None, "only order needs to see more than it delivers"
        self.ready[offset] = 0
        self.order.add(offset, label)

    def _page_in(self) -> None:
        if isinstance(self.order, MessageGroupOrder):
            for offset, label in self.order.page_in():
                self._add_ready(offset, label)

    def exhausted(self, attempt_max: int) -> list[int]:
        """The offsets, ascending, of ready messages that were delivered `attempt_max` times or more."""
        if self.ready_attempt_max < attempt_max:
            return []
        self.ready_attempt_max = max(self.ready.values(), default=0)
        return sorted(offset for offset, attempt in self.ready.items() if attempt >= attempt_max)

    @property
    def unrecorded_count(self) -> int:
        """The number of messages read that no event has recorded."""
        return len(self._unrecorded)

    @property
    def unrecorded_span(self) -> int:
        """How far the cursor has moved since the last event that recorded it."""
        return self.cursor - self._recorded_cursor

    def record_seen(self) -> Delivered:
        """The event that records messages read and skipped, without a delivery."""
        return self._delivered([], 0, 0, None)

    def is_in_flight_under(self, nonce: int) -> bool:
        """Whether `repeat` would find messages. Only for a group that consumes in order."""
        return isinstance(self.order, MessageGroupOrder) and nonce in self.order

    def in_flight_under(self, nonce: int) -> list[int]:
        """The offsets in flight under this nonce, ascending. Examines everything in flight."""
        return sorted(offset for offset, entry in self.in_flight.items() if entry.nonce == nonce)

    def repeat(
        self, offsets: Sequence[int], *, nonce: int, invisible_until_ms: int, client_id: str | None = None
    ) -> Delivered:
        """Deliver `offsets`, in flight under this nonce, again as the same delivery: its answer was lost."""
        runs: list[Run] = []
        for offset in offsets:
            entry = self.check(offset, nonce)
            entry.invisible_until_ms, entry.client_id = invisible_until_ms, client_id
            _add_to_runs(runs, offset, entry.attempt)
        self._add_deadline(invisible_until_ms, tuple(offsets))
        return self._delivered(runs, nonce, invisible_until_ms, client_id)

    def withdraw(self, offsets: Iterable[int], nonce: int) -> int:
        """Undo the delivery of those of `offsets` that are still in flight under `nonce`: they never reached the
        client.

        Returns how many are ready again. This makes no event: without it they are delivered as the same delivery, or
        later.
        """
        withdrawn = {}
        for offset in offsets:
            entry = self.in_flight.get(offset)
            if entry is not None and entry.nonce == nonce:
                del self.in_flight[offset]
                withdrawn[offset] = entry.attempt - 1
                if self.order is not None:
                    self.order.put_back(offset, nonce)
        if withdrawn:
            self._make_ready(withdrawn)
        return len(withdrawn)

    # Delivery

    def take_ready(self, count: int) -> list[int]:
        """`count` ready offsets that may be delivered: the lowest, or those with the highest priority.

        Does not change the state; `deliver` does.
        """
        if self.order is not None:
            assert not self.order.unknown, "what is not known could come first"
            assert not self.unread or isinstance(self.order, MessageGroupOrder), "what is not read could come first"
            return self.order.take(count)
        self.make_ready(count)
        if self._ready_order is None:
            self._ready_order = sorted(self.ready)
        return self._ready_order[:count]

    def deliver(
        self, offsets: Sequence[int], cursor: int, *, nonce: int, invisible_until_ms: int, client_id: str | None = None
    ) -> Delivered:
        """Put `offsets` in flight: ascending, first ready ones, then some from the current cursor on.

        `cursor` becomes the cursor; offsets between the old and the new one that are not in `offsets` are finished.
        """
        runs: list[Run] = []
        run_begin, run_count, run_attempt = 0, 0, 0
        ready, in_flight, position = self.ready, self.in_flight, self.cursor
        redelivered = 0
        for offset in offsets:
            if offset < position:
                attempt = ready.pop(offset) + 1
                redelivered += 1
            else:
                if offset > position:
                    self._add_finished(position, offset)
                position = offset + 1
                attempt = 1
            in_flight[offset] = InFlight(attempt, invisible_until_ms, nonce, client_id)
            if offset == run_begin + run_count and attempt == run_attempt:
                run_count += 1
                continue
            if run_count:
                runs.append(Run(run_begin, run_count, run_attempt))
            run_begin, run_count, run_attempt = offset, 1, attempt
        if run_count:
            runs.append(Run(run_begin, run_count, run_attempt))
        if redelivered:
            self._drop_from_order(offsets[:redelivered])
        self.cursor = position
        self.skip(cursor)
        self._add_deadline(invisible_until_ms, tuple(offsets))
        if self.order is not None:
            self.order.deliver(offsets, nonce)
            self._page_in()
        return self._delivered(runs, nonce, invisible_until_ms, client_id)

    def skip(self, cursor: int) -> None:
        """Move the cursor forward and finish the skipped messages. This makes no event: the next event records it."""
        if cursor > self.cursor:
            position, self.cursor = self.cursor, cursor
            self._add_finished(position, cursor)

    def is_finished(self, offset: int) -> bool:
        """Whether the message will never be delivered to the group (again)."""
        return offset < self.commit_offset or offset in self.finished

    # Return

    def check(self, offset: int, nonce: int) -> InFlight:
        """The message of a receipt handle. Raises InvalidReceiptHandleError if its delivery is not the current one."""
        entry = self.in_flight.get(offset)
        if entry is None or entry.nonce != nonce:
            raise InvalidReceiptHandleError(
                "receipt handle is expired: the message's invisible time has ended, the message was acknowledged, "
                "or its "
                "invisible time was changed, which made a new handle; receive the message again"
            )
        return entry

    def acknowledge(self, offset: int, nonce: int) -> None:
        """Finish the message; add the offset to an Acknowledged. Raises InvalidReceiptHandleError."""
        self.check(offset, nonce)
        self._finish(offset)

    def finish(self, offsets: Iterable[int]) -> Acknowledged:
        """Finish messages without a receipt handle: lost from the log, or moved to the dead letters."""
        offsets = list(offsets)
        for offset in offsets:
            self._finish(offset)
        return acknowledged(offsets)

    def change_invisible(self, offset: int, nonce: int, invisible_until_ms: int, new_nonce: int) -> Changed:
        """Set a new time and nonce, independent of the client's life. InvalidReceiptHandleError."""
        entry = self.check(offset, nonce)
        self._set_in_flight(offset, InFlight(entry.attempt, invisible_until_ms, new_nonce, None))
        if self.order is not None:
            self.order.rename(nonce, new_nonce)
        return Changed(offset, entry.attempt, new_nonce, invisible_until_ms)

    def release(self, offsets: Iterable[int], nonce: int, invisible_until_ms: int) -> None:
        """Make those of `offsets` that are still in flight under `nonce` ready at this earlier time. This makes no
        event: without it the messages stay invisible longer, which is allowed."""
        released = []
        for offset in offsets:
            entry = self.in_flight.get(offset)
            if entry is not None and entry.nonce == nonce and entry.invisible_until_ms > invisible_until_ms:
                entry.invisible_until_ms = invisible_until_ms
                released.append(offset)
        if released:
            self._add_deadline(invisible_until_ms, tuple(released))

    def limit_invisible(self, latest_ms: int) -> None:
        """Limit all invisible times: the clock has gone back since the journal was written."""
        late = [offset for offset, entry in self.in_flight.items() if entry.invisible_until_ms > latest_ms]
        for offset in late:
            self.in_flight[offset].invisible_until_ms = latest_ms
        if late:
            self._add_deadline(latest_ms, tuple(late))

    def release_client(self, client_id: str, invisible_until_ms: int) -> None:
        """The same for all messages that are invisible because this client lives."""
        released = []
        for offset, entry in self.in_flight.items():
            if entry.client_id == client_id and entry.invisible_until_ms > invisible_until_ms:
                entry.invisible_until_ms = invisible_until_ms
                released.append(offset)
        if released:
            self._add_deadline(invisible_until_ms, tuple(released))

    def reset(self, offset: int) -> Reset:
        """Continue at `offset`, forwards or back; earlier handles become invalid, and attempts restart at 1."""
        self.commit_offset = self.cursor = offset
        self.finished = OffsetRanges()
        self.in_flight = {}
        self.ready = {}
        self.unread = OffsetBitmap()
        self._ready_order = []
        self._deadlines = []
        self._deadline_size = 0
        self.order = None  # made again by the next receive, from the messages that exist then
        self._note_recorded()
        return Reset(offset)

    def expire(self, now_ms: int) -> int:
        """Make messages ready whose invisible time has ended; returns their number."""
        expired: dict[int, int] = {}
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            offsets = heapq.heappop(self._deadlines)[2]
            self._deadline_size -= len(offsets)
            for offset in offsets:
                entry = self.in_flight.get(offset)
                if entry is not None and entry.invisible_until_ms <= now_ms:
                    del self.in_flight[offset]
                    expired[offset] = entry.attempt
                    if self.order is not None:
                        self.order.put_back(offset, entry.nonce)
        if expired:
            self._make_ready(expired)
        return len(expired)

    # The journal's side

    def states(self, entry_count_max: int = 1000) -> Iterator[State]:
        """The whole state, in one or more pieces of at most this many entries.

        A piece is made on request and describes that moment: append it to the journal in the same step of the event
        loop. The state may change between two pieces. A replay of all pieces, and of the events between them, gives the
        same state, because each piece replaces the earlier state of its offsets.
        """
        assert entry_count_max > 0, "a state without room for entries would not end"
        begin, end = self.commit_offset, self.cursor  # later messages have events of their own
        while True:
            piece = self._state_from(max(begin, self.commit_offset), entry_count_max)
            self._note_recorded_below(piece.end)
            yield piece
            if piece.end >= min(end, self.cursor):
                return
            begin = piece.end

    def _state_from(self, begin: int, entry_count_max: int) -> State:
        """The state from `begin` on, up to the cursor or to this many entries."""
        entries: list[StateEntry] = []
        end = self.cursor
        for first, last in self.finished.gaps(begin, self.cursor):
            if last - first > (room := entry_count_max - len(entries)):
                last = end = first + room
            entries.extend(map(self._entry, range(first, last)))
            if end < self.cursor:
                break
        return State(self.commit_offset, begin, end, tuple(entries))

    def _entry(self, offset: int) -> StateEntry:
        """An unfinished message."""
        flight = self.in_flight.get(offset)
        if flight is None:
            return StateEntry(offset, self.ready.get(offset, 0), 0, 0, None)
        return StateEntry(offset, flight.attempt, flight.nonce, flight.invisible_until_ms, flight.client_id)

    def apply(self, event: QueueEvent) -> None:
        """Apply an event from the journal; before an order is kept.

        If earlier events are missing, because the log lost them, every offset that this event does not mention is
        ready: an additional delivery is allowed, a missing one is not.
        """
        assert self.order is None, "an order is made of what is there after all events"
        match event:
            case Delivered():
                self._apply_delivered(event)
            case Acknowledged():
                for begin, end in event.ranges:
                    self._reach(begin, end)
                    for offset in range(max(begin, self.commit_offset), end):
                        self._finish(offset)
            case Changed():
                self._reach(event.offset, event.offset + 1)
                self._restore(StateEntry(event.offset, event.attempt, event.nonce, event.invisible_until_ms, None))
            case State():
                self._apply_state(event)
            case Reset():
                self.reset(event.offset)
        self._note_recorded()

    def cut(self, end: int) -> bool:
        """Drop everything from `end` on, which the log does not have. True if there was anything."""
        assert self.order is None, "an order is made of what is left"
        if end >= self.cursor:
            return False
        for offset in [offset for offset in self.in_flight if offset >= end]:
            del self.in_flight[offset]
        for offset in [offset for offset in self.ready if offset >= end]:
            del self.ready[offset]
        self.unread.remove_from(end)
        self._ready_order = None
        kept = [(first, min(last, end)) for first, last in self.finished if first < end]
        self.finished = OffsetRanges()
        for first, last in kept:
            self.finished.add(first, last)
        self.cursor = self._recorded_cursor = end
        self.commit_offset = min(self.commit_offset, end)
        return True

    def _apply_delivered(self, event: Delivered) -> None:
        entries = [
            StateEntry(offset, run.attempt, event.nonce, event.invisible_until_ms, event.client_id)
            if run.attempt
            else StateEntry(offset, 0, 0, 0, None)
            for run in event.runs
            for offset in range(run.offset, run.offset + run.size)
        ]
        self._apply_range(event.begin, event.cursor, entries)

    def _apply_state(self, event: State) -> None:
        if event.commit_offset > self.commit_offset:
            self._reach(event.commit_offset, event.commit_offset)
            for offset in [offset for offset in self.in_flight if offset < event.commit_offset]:
                del self.in_flight[offset]
            for offset in [offset for offset in self.ready if offset < event.commit_offset]:
                del self.ready[offset]
            self.unread.remove_below(event.commit_offset)
            self._ready_order = None
            self._commit(event.commit_offset)
        self._apply_range(event.begin, event.end, event.entries)

    def _apply_range(self, begin: int, end: int, entries: Iterable[StateEntry]) -> None:
        """`entries` are unfinished; the other offsets of begin <= offset < end are finished."""
        self._reach(begin, begin)
        open_offsets = {entry.offset for entry in entries}
        for offset in range(max(begin, self.commit_offset), min(end, self.cursor)):
            if offset not in open_offsets:
                self._finish(offset)
        position = max(self.cursor, begin)
        for entry in entries:
            if entry.offset >= position:
                self.skip(entry.offset)
                self.cursor = position = entry.offset + 1
            self._restore(entry)
        self.skip(end)

    def _reach(self, begin: int, end: int) -> None:
        """Advance the cursor to at least `end`. Skipped offsets before `begin` are unknown, and therefore ready."""
        if begin > self.cursor:
            self.unread.add(self.cursor, begin)
            self.cursor = begin
        if end > self.cursor:
            # The caller sets the state from here to `end` at once.
            self.cursor = end

    def _restore(self, entry: StateEntry) -> None:
        if entry.offset < self.commit_offset or entry.offset in self.finished:
            return
        self.in_flight.pop(entry.offset, None)
        if entry.nonce:
            self._set_in_flight(
                entry.offset, InFlight(entry.attempt, entry.invisible_until_ms, entry.nonce, entry.client_id)
            )
        else:
            self._forget_ready(entry.offset)
            if entry.attempt:
                self._make_ready({entry.offset: entry.attempt})
            else:
                self.unread.add(entry.offset, entry.offset + 1)

    # Inside

    def _set_in_flight(self, offset: int, entry: InFlight) -> None:
        self._forget_ready(offset)
        self.in_flight[offset] = entry
        self._add_deadline(entry.invisible_until_ms, (offset,))

    def _delivered(self, runs: Sequence[Run], nonce: int, invisible_until_ms: int, client_id: str | None) -> Delivered:
        """The event; messages read before it that still wait are included as runs of attempt 0."""
        begin = self._recorded_cursor
        if self._unrecorded:
            attempts = [
                (offset, 0)
                for offset in self._unrecorded
                if offset not in self.in_flight and not self.is_finished(offset)
            ]
            attempts.extend(
                (offset, run.attempt) for run in runs for offset in range(run.offset, run.offset + run.size)
            )
            attempts.sort()
            runs = []
            for offset, attempt in attempts:
                _add_to_runs(runs, offset, attempt)
        self._note_recorded()
        return Delivered(begin, self.cursor, tuple(runs), nonce, invisible_until_ms, client_id)

    def _note_recorded(self) -> None:
        self._recorded_cursor = self.cursor
        if self._unrecorded:
            self._unrecorded = []

    def _note_recorded_below(self, offset: int) -> None:
        if offset > self._recorded_cursor:
            self._recorded_cursor = offset
            self._unrecorded = [unrecorded for unrecorded in self._unrecorded if unrecorded >= offset]

    def _finish(self, offset: int) -> None:
        entry = self.in_flight.pop(offset, None)
        self._forget_ready(offset)
        if self.order is not None:
            self.order.finish(offset, 0 if entry is None else entry.nonce)
            self._page_in()
        self._add_finished(offset, offset + 1)

    def _forget_ready(self, offset: int) -> None:
        if self.ready.pop(offset, None) is not None:
            self._drop_from_order((offset,))
        elif self.unread:
            self.unread.discard(offset)

    def _make_ready(self, attempts: dict[int, int]) -> None:
        self.ready.update(attempts)
        self.ready_attempt_max = max(self.ready_attempt_max, max(attempts.values(), default=0))
        if self._ready_order is None:
            return
        if len(attempts) == 1:
            insort(self._ready_order, *attempts)
        else:
            self._ready_order.extend(attempts)
            self._ready_order.sort()  # at most two sorted runs: linear

    def _drop_from_order(self, offsets: Sequence[int]) -> None:
        if self._ready_order is not None:
            if self._ready_order[: len(offsets)] == list(offsets):
                del self._ready_order[: len(offsets)]
            else:
                self._ready_order = None

    def _add_finished(self, begin: int, end: int) -> None:
        if begin <= self.commit_offset:
            if end > self.commit_offset:
                self._commit(end)
        else:
            self.finished.add(begin, end)

    def _commit(self, offset: int) -> None:
        """Finish everything below `offset`, and the contiguous finished offsets after it."""
        self.commit_offset = offset
        if len(self.finished):
            self.commit_offset = self.finished.end_of_range_at(offset)
            self.finished.remove_below(self.commit_offset)

    def _add_deadline(self, invisible_until_ms: int, offsets: tuple[int, ...]) -> None:
        if not offsets:
            return
        self._deadline_size += len(offsets)
        if self._deadline_size > 2 * len(self.in_flight) + _STALE_DEADLINES_MAX:
            self._rebuild_deadlines()  # `offsets` are in flight already
            return
        self._deadline_sequence += 1
        heapq.heappush(self._deadlines, (invisible_until_ms, self._deadline_sequence, offsets))

    def _rebuild_deadlines(self) -> None:
        by_time: dict[int, list[int]] = {}
        for offset, entry in self.in_flight.items():
            by_time.setdefault(entry.invisible_until_ms, []).append(offset)
        self._deadlines = [(until, sequence, tuple(by_time[until])) for sequence, until in enumerate(sorted(by_time))]
        self._deadline_sequence = len(self._deadlines)
        self._deadline_size = len(self.in_flight)


def _add_to_runs(runs: list[Run], offset: int, attempt: int) -> None:
    if runs:
        last = runs[-1]
        if last.attempt == attempt and last.offset + last.size == offset:
            runs[-1] = Run(last.offset, last.size + 1, attempt)
            return
    runs.append(Run(offset, 1, attempt))


def acknowledged(offsets: Iterable[int]) -> Acknowledged:
    """The event that acknowledges `offsets`, in any order."""
    offsets = tuple(offsets)
    if len(offsets) == 1:  # as in nearly all acknowledgements of the official clients
        return Acknowledged(((offsets[0], offsets[0] + 1),))
    ranges = OffsetRanges()
    for offset in offsets:
        ranges.add(offset, offset + 1)
    return Acknowledged(tuple(ranges))
