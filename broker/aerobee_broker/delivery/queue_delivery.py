"""The delivery of one queue to one group: a state machine without I/O and without a clock.

    commit_offset              cursor
         |                        |
    -----+------------------------+----------------
    done   done, in flight, ready   never delivered

Every offset below `cursor` is exactly one of finished (acknowledged, filtered out, lost, a dead letter), in flight (a
client has it, nobody else sees it before its time), and ready (was delivered before, waits for the next receive). The
commit offset is the lowest one that is not finished. Redelivery happens in place: a message keeps its queue offset,
and how often it was delivered is known here and in the journal alone.

Methods for live traffic return the event to write into the journal; `apply` repeats such an event when the journal is
read again. What is not an event follows from one: expiry from the time, and messages that a filter skipped from the
next delivery, which says where the one before it ended.

A group that consumes in order has a MessageGroupOrder (message_group_order.py) beside this state, one of a priority
topic has Priorities (priorities.py): they say which of the ready messages may go out, or which first. As any message
may have to wait, new ones come in through `see`, which makes them ready after 0 deliveries, and go out like all others.
`keep_order` switches that on at any time, `forget_order` off.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from aerobee_broker.delivery.events import Acknowledged, Changed, Delivered, Entry, QueueEvent, Reset, Run, State
from aerobee_broker.delivery.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.offset_ranges import OffsetRanges
from aerobee_broker.delivery.priorities import Priorities
from aerobee_broker.errors import InvalidReceiptHandleError

_STALE_DEADLINES_MAX: Final = 1024  # what the heap of deadlines may hold beyond twice what is in flight


class Order(Protocol):
    """What decides which of the ready messages go out."""

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
    """One message that a client has. Mutable: it is in one place only."""

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
    )

    def __init__(self, commit_offset: int) -> None:
        self.commit_offset = commit_offset
        self.cursor = commit_offset
        self.finished = OffsetRanges()  # above commit_offset, below cursor
        self.in_flight: dict[int, InFlight] = {}
        self.ready: dict[int, int] = {}  # queue offset -> deliveries so far
        self.ready_attempt_max = 0  # no message in `ready` was delivered more often
        self._ready_order: list[int] | None = []  # the keys of `ready`, ascending; None: to be sorted when needed
        self._recorded_cursor = commit_offset  # as the journal knows it
        self._unrecorded: list[int] = []  # seen since, and waiting when they were seen
        self.order: Order | None = None
        # (time, sequence, offsets): one entry a delivery, not one a message. What is stale is dropped when its time
        # comes, or all at once when there is too much of it.
        self._deadlines: list[tuple[int, int, tuple[int, ...]]] = []
        self._deadline_size = 0
        self._deadline_sequence = 0

    @property
    def is_trivial(self) -> bool:
        """Whether the commit offset says everything."""
        return self.commit_offset == self.cursor

    @property
    def next_expiry_ms(self) -> int | None:
        """When `expire` should be called next; it may then find nothing to do."""
        return self._deadlines[0][0] if self._deadlines else None

    # Order

    def keep_order(self, kind: type[_Kept]) -> _Kept:
        """From now on only what the order lets go goes out; `learn` all `unknown` of it first."""
        if not isinstance(self.order, kind):
            self.order = kind({offset: entry.nonce for offset, entry in self.in_flight.items()}, self.ready)
            self._ready_order = None  # not kept up to date while nobody takes by it
        assert isinstance(self.order, kind), "it was made just now, or before"
        return self.order

    def forget_order(self) -> None:
        """From now on whatever is ready goes out."""
        paged = dict.fromkeys(self._paged(), 0)
        self.order = None
        if paged:
            self._make_ready(paged)

    @property
    def waiting_count(self) -> int:
        """Messages below the cursor that are neither finished nor in flight."""
        return len(self.ready) + (self.order.paged_count if isinstance(self.order, MessageGroupOrder) else 0)

    def deliveries_of_waiting(self, offset: int) -> int | None:
        """How often a waiting message was delivered; None for one that does not wait."""
        deliveries = self.ready.get(offset)
        if deliveries is None and isinstance(self.order, MessageGroupOrder) and self.order.is_paged(offset):
            return 0
        return deliveries

    def unfinished(self) -> list[int]:
        """The offsets below the cursor that are not finished, ascending."""
        return sorted((*self.in_flight, *self.ready, *self._paged()))

    def _paged(self) -> Iterable[int]:
        return self.order.paged() if isinstance(self.order, MessageGroupOrder) else ()

    def learn(self, offset: int, label: str, *, ready_max: int | None = None) -> None:
        """One of `order.unknown` has this label: the value of the order's LABEL_PROPERTY, "" without.

        `ready_max` as in `see`.
        """
        assert self.order is not None, "keep_order comes first"
        self.order.learn(offset, label, is_in_flight=offset in self.in_flight)
        full = ready_max is not None and len(self.ready) > ready_max
        if full and not self.order.unknown and isinstance(self.order, MessageGroupOrder):
            for paged in self.order.page_out_known(self.in_flight):
                del self.ready[paged]

    def see(self, messages: Iterable[tuple[int, str]], cursor: int, *, ready_max: int | None = None) -> None:
        """(offset, label) of messages from the cursor on, ascending; they are ready for their first delivery.

        `ready_max`: when so many are, those that stand behind another of their message group are paged out instead.

        `cursor` becomes the cursor; what lies between the old and the new one and is not in `messages` is finished.
        Not an event: the next one tells, at the latest that of `record_seen`.
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
        """Messages that were seen and that no event has told of."""
        return len(self._unrecorded)

    @property
    def unrecorded_span(self) -> int:
        """How far the cursor has moved since an event told of it."""
        return self.cursor - self._recorded_cursor

    def record_seen(self) -> Delivered:
        """The event that tells of them, and of what was skipped, without a delivery."""
        return self._delivered([], 0, 0, None)

    def is_in_flight_under(self, nonce: int) -> bool:
        """Whether `repeat` would find something. Only of a group that consumes in order."""
        return isinstance(self.order, MessageGroupOrder) and nonce in self.order

    def in_flight_under(self, nonce: int) -> list[int]:
        """The offsets in flight under this nonce, ascending. Looks at all that is in flight."""
        return sorted(offset for offset, entry in self.in_flight.items() if entry.nonce == nonce)

    def repeat(
        self, offsets: Sequence[int], *, nonce: int, invisible_until_ms: int, client_id: str | None = None
    ) -> Delivered:
        """Deliver `offsets`, in flight under this nonce, once more as the same delivery: its answer was lost."""
        runs: list[Run] = []
        for offset in offsets:
            entry = self.check(offset, nonce)
            entry.invisible_until_ms, entry.client_id = invisible_until_ms, client_id
            _add_to_runs(runs, offset, entry.attempt)
        self._add_deadline(invisible_until_ms, tuple(offsets))
        return self._delivered(runs, nonce, invisible_until_ms, client_id)

    def withdraw(self, offsets: Iterable[int], nonce: int) -> int:
        """What of `offsets` is still in flight under `nonce` never reached the client: that delivery does not count.

        Returns how many are ready again. No event: whoever forgets it delivers it as the same delivery, or later.
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

    # Out

    def take_ready(self, count: int) -> list[int]:
        """`count` offsets that may be delivered again, or at last: the lowest, or those with the highest priority.

        Nothing changes before `deliver`.
        """
        if self.order is not None:
            return self.order.take(count)
        if self._ready_order is None:
            self._ready_order = sorted(self.ready)
        return self._ready_order[:count]

    def deliver(
        self, offsets: Sequence[int], cursor: int, *, nonce: int, invisible_until_ms: int, client_id: str | None = None
    ) -> Delivered:
        """Put `offsets` in flight: ascending, first some that are ready, then some from the present cursor on.

        `cursor` becomes the cursor; what lies between the old and the new one and is not in `offsets` is finished.
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
        """Move the cursor forward; what it passes is finished. Not an event: the next one tells."""
        if cursor > self.cursor:
            position, self.cursor = self.cursor, cursor
            self._add_finished(position, cursor)

    def is_finished(self, offset: int) -> bool:
        """Whether the message will never be delivered (again) to the group."""
        return offset < self.commit_offset or offset in self.finished

    # Back

    def check(self, offset: int, nonce: int) -> InFlight:
        """The message that a receipt handle names. Raises InvalidReceiptHandleError if it is not that delivery."""
        entry = self.in_flight.get(offset)
        if entry is None or entry.nonce != nonce:
            raise InvalidReceiptHandleError(
                "receipt handle is expired: the message's invisible time has ended, the message was acknowledged, "
                "or its "
                "invisible time was changed, which made a new handle; receive the message again"
            )
        return entry

    def acknowledge(self, offset: int, nonce: int) -> None:
        """The message is finished; put the offset into an Acknowledged. Raises InvalidReceiptHandleError."""
        self.check(offset, nonce)
        self._finish(offset)

    def finish(self, offsets: Iterable[int]) -> Acknowledged:
        """These are finished without a receipt handle: lost by the log, or moved to the dead letters."""
        offsets = list(offsets)
        for offset in offsets:
            self._finish(offset)
        return acknowledged(offsets)

    def change_invisible(self, offset: int, nonce: int, invisible_until_ms: int, new_nonce: int) -> Changed:
        """Another time under another nonce, which the client's life no longer extends. InvalidReceiptHandleError."""
        entry = self.check(offset, nonce)
        self._set_in_flight(offset, InFlight(entry.attempt, invisible_until_ms, new_nonce, None))
        if self.order is not None:
            self.order.rename(nonce, new_nonce)
        return Changed(offset, entry.attempt, new_nonce, invisible_until_ms)

    def release(self, offsets: Iterable[int], nonce: int, invisible_until_ms: int) -> None:
        """What of `offsets` is still in flight under `nonce` becomes ready at that time instead of later. No event:
        whoever forgets it keeps the message invisible for longer, which is allowed."""
        released = []
        for offset in offsets:
            entry = self.in_flight.get(offset)
            if entry is not None and entry.nonce == nonce and entry.invisible_until_ms > invisible_until_ms:
                entry.invisible_until_ms = invisible_until_ms
                released.append(offset)
        if released:
            self._add_deadline(invisible_until_ms, tuple(released))

    def limit_invisible(self, latest_ms: int) -> None:
        """Nothing stays invisible for longer: the clock has gone back since the journal was written."""
        late = [offset for offset, entry in self.in_flight.items() if entry.invisible_until_ms > latest_ms]
        for offset in late:
            self.in_flight[offset].invisible_until_ms = latest_ms
        if late:
            self._add_deadline(latest_ms, tuple(late))

    def release_client(self, client_id: str, invisible_until_ms: int) -> None:
        """The same for all that is invisible because this client lives."""
        released = []
        for offset, entry in self.in_flight.items():
            if entry.client_id == client_id and entry.invisible_until_ms > invisible_until_ms:
                entry.invisible_until_ms = invisible_until_ms
                released.append(offset)
        if released:
            self._add_deadline(invisible_until_ms, tuple(released))

    def reset(self, offset: int) -> Reset:
        """Go on at `offset`, forwards or back; every handle of before is invalid, and all deliveries count from 1."""
        self.commit_offset = self.cursor = offset
        self.finished = OffsetRanges()
        self.in_flight = {}
        self.ready = {}
        self._ready_order = []
        self._deadlines = []
        self._deadline_size = 0
        self.order = None  # made anew with the next receive, of what is then there
        self._note_recorded()
        return Reset(offset)

    def expire(self, now_ms: int) -> int:
        """Whatever was invisible until now is ready; returns how many messages that are."""
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
        """All of it, in pieces of at most that many entries; the first has the commit offset. Exhaust it at once."""
        assert entry_count_max > 0, "a state without room for entries would not end"
        self._note_recorded()
        entries = [Entry(offset, attempt, 0, 0, None) for offset, attempt in self.ready.items()]
        for offset, flight in self.in_flight.items():
            entries.append(Entry(offset, flight.attempt, flight.nonce, flight.invisible_until_ms, flight.client_id))
        entries.extend(Entry(offset, 0, 0, 0, None) for offset in self._paged())
        entries.sort()
        begin = self.commit_offset
        for start in range(0, max(len(entries), 1), entry_count_max):
            piece = tuple(entries[start : start + entry_count_max])
            is_last = start + entry_count_max >= len(entries)
            end = self.cursor if is_last else piece[-1].offset + 1
            yield State(self.commit_offset, begin, end, piece)
            begin = end

    def apply(self, event: QueueEvent) -> None:
        """Repeat an event from the journal; before there is an order to keep.

        Where events before it are missing, because the log lost them, everything that it does not tell of is ready:
        a redelivery too many is allowed, a message too few is not.
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
                self._restore(Entry(event.offset, event.attempt, event.nonce, event.invisible_until_ms, None))
            case State():
                self._apply_state(event)
            case Reset():
                self.reset(event.offset)
        self._note_recorded()

    def cut(self, end: int) -> bool:
        """Forget all from `end` on: the log does not have it. True if there was something."""
        assert self.order is None, "an order is made of what is left"
        if end >= self.cursor:
            return False
        for offset in [offset for offset in self.in_flight if offset >= end]:
            del self.in_flight[offset]
        for offset in [offset for offset in self.ready if offset >= end]:
            del self.ready[offset]
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
            Entry(offset, run.attempt, event.nonce, event.invisible_until_ms, event.client_id)
            if run.attempt
            else Entry(offset, 0, 0, 0, None)
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
            self._ready_order = None
            self._commit(event.commit_offset)
        self._apply_range(event.begin, event.end, event.entries)

    def _apply_range(self, begin: int, end: int, entries: Iterable[Entry]) -> None:
        """`entries` are open; of begin <= offset < end the others are finished."""
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
        """Make the cursor `end` at least. What it passes before `begin` is unknown, and therefore ready."""
        if begin > self.cursor:
            unknown = dict.fromkeys(range(self.cursor, begin), 0)
            self.cursor = begin
            self._make_ready(unknown)
        if end > self.cursor:
            # From here to `end` the caller says at once what they are.
            self.cursor = end

    def _restore(self, entry: Entry) -> None:
        if entry.offset < self.commit_offset or entry.offset in self.finished:
            return
        self.in_flight.pop(entry.offset, None)
        if entry.nonce:
            self._set_in_flight(
                entry.offset, InFlight(entry.attempt, entry.invisible_until_ms, entry.nonce, entry.client_id)
            )
        else:
            self._forget_ready(entry.offset)
            self._make_ready({entry.offset: entry.attempt})

    # Inside

    def _set_in_flight(self, offset: int, entry: InFlight) -> None:
        self._forget_ready(offset)
        self.in_flight[offset] = entry
        self._add_deadline(entry.invisible_until_ms, (offset,))

    def _delivered(self, runs: Sequence[Run], nonce: int, invisible_until_ms: int, client_id: str | None) -> Delivered:
        """The event; with what was seen before it and still waits, as runs of attempt 0."""
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

    def _make_ready(self, attempts: dict[int, int]) -> None:
        self.ready.update(attempts)
        self.ready_attempt_max = max(self.ready_attempt_max, max(attempts.values(), default=0))
        if self._ready_order is None:
            return
        if len(attempts) == 1:
            insort(self._ready_order, *attempts)
        else:
            self._ready_order.extend(attempts)
            self._ready_order.sort()  # two sorted runs at most of the times: linear

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
        """Everything below `offset` is finished, and what follows it without a gap."""
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
    """The event that says so of `offsets`, in any order."""
    offsets = tuple(offsets)
    if len(offsets) == 1:  # as nearly all acknowledgements of the official clients
        return Acknowledged(((offsets[0], offsets[0] + 1),))
    ranges = OffsetRanges()
    for offset in offsets:
        ranges.add(offset, offset + 1)
    return Acknowledged(tuple(ranges))
