"""QueueDelivery against a model with one status per message, and against its own state restored from events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aerobee_broker.delivery.state.events import QueueEvent, State
from aerobee_broker.delivery.state.queue_delivery import QueueDelivery, acknowledged
from aerobee_broker.errors import InvalidReceiptHandleError

CLIENTS = ("first", "second")


@dataclass
class Modelled:
    """One message that was delivered or skipped, modelled in the simplest way."""

    status: str  # "finished", "in flight", "ready"
    attempt: int = 0
    nonce: int = 0
    until: int = 0
    client: str | None = None


@dataclass
class Model:
    start: int
    messages: dict[int, Modelled] = field(default_factory=dict)

    @property
    def cursor(self) -> int:
        return self.start + len(self.messages)

    @property
    def commit_offset(self) -> int:
        return min((offset for offset, m in self.messages.items() if m.status != "finished"), default=self.cursor)

    def with_status(self, status: str) -> list[int]:
        return sorted(offset for offset, message in self.messages.items() if message.status == status)

    def expire(self, now: int) -> None:
        for message in self.messages.values():
            if message.status == "in flight" and message.until <= now:
                message.status = "ready"


def contents(queue: QueueDelivery) -> object:
    """Return the relevant state of a queue, for comparison."""
    return (
        queue.commit_offset,
        queue.cursor,
        list(queue.finished),
        {o: (f.attempt, f.invisible_until_ms, f.nonce, f.client_id) for o, f in queue.in_flight.items()},
        queue.ready,
    )


class QueueDeliveryMachine(RuleBasedStateMachine):
    """Applies every operation to queue and model, and compares them after each."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = QueueDelivery(100)
        self.model = Model(100)
        self.now = 1_000
        self.nonce = 0
        self.events: list[QueueEvent] = []
        self.pieces: Iterator[State] | None = None  # of an unfinished snapshot
        self.pieces_from = 0
        self.complete: tuple[int, int] | None = None  # first event of a snapshot; commit offset at its end
        self.commit_offsets = [100]  # possible saved commit offsets
        self.reset_at = 0  # number of events up to the last reset
        self.commit_offsets_since = [100]  # possible saved commit offsets since then

    def new_nonce(self) -> int:
        self.nonce += 1
        return self.nonce

    @rule(
        ready_count=st.integers(0, 3),
        gaps=st.lists(st.integers(0, 2), max_size=4),
        tail=st.integers(0, 2),
        seconds=st.integers(0, 5),
        client=st.sampled_from((None, *CLIENTS)),
    )
    def deliver(self, ready_count: int, gaps: list[int], tail: int, seconds: int, client: str | None) -> None:
        """Deliver some ready and some new messages, with gaps between them."""
        ready = self.queue.take_ready(ready_count)
        assert ready == self.model.with_status("ready")[:ready_count]
        nonce, until = self.new_nonce(), self.now + seconds
        for offset in ready:
            message = self.model.messages[offset]
            self.model.messages[offset] = Modelled("in flight", message.attempt + 1, nonce, until, client)
        fresh = []
        for gap in gaps:
            for _ in range(gap):
                self.model.messages[self.model.cursor] = Modelled("finished")
            fresh.append(self.model.cursor)
            self.model.messages[self.model.cursor] = Modelled("in flight", 1, nonce, until, client)
        for _ in range(tail):
            self.model.messages[self.model.cursor] = Modelled("finished")
        event = self.queue.deliver(
            [*ready, *fresh], self.model.cursor, nonce=nonce, invisible_until_ms=until, client_id=client
        )
        self.events.append(event)

    @rule(count=st.integers(1, 3))
    def skip(self, count: int) -> None:
        """A filter skips messages, and none is delivered."""
        for _ in range(count):
            self.model.messages[self.model.cursor] = Modelled("finished")
        self.queue.skip(self.model.cursor)

    @precondition(lambda self: self.model.with_status("in flight"))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """Acknowledge a message with its handle."""
        offset = data.draw(st.sampled_from(self.model.with_status("in flight")))
        message = self.model.messages[offset]
        self.queue.acknowledge(offset, message.nonce)
        self.events.append(acknowledged([offset]))
        message.status = "finished"

    @rule(offset=st.integers(95, 130), nonce=st.integers(0, 40))
    def use_wrong_handle(self, offset: int, nonce: int) -> None:
        """A handle that matches no current delivery is refused and changes nothing."""
        message = self.model.messages.get(offset)
        if message is None or message.status != "in flight" or message.nonce != nonce:
            with pytest.raises(InvalidReceiptHandleError):
                self.queue.acknowledge(offset, nonce)
            with pytest.raises(InvalidReceiptHandleError):
                self.queue.change_invisible(offset, nonce, self.now, 1)

    @precondition(lambda self: self.model.with_status("in flight"))
    @rule(data=st.data(), seconds=st.integers(0, 5))
    def change_invisible(self, data: st.DataObject, seconds: int) -> None:
        """Change the invisible time, with a new nonce and no client."""
        offset = data.draw(st.sampled_from(self.model.with_status("in flight")))
        message = self.model.messages[offset]
        nonce = self.new_nonce()
        self.events.append(self.queue.change_invisible(offset, message.nonce, self.now + seconds, nonce))
        message.nonce, message.until, message.client = nonce, self.now + seconds, None

    @precondition(lambda self: self.model.with_status("ready"))
    @rule(data=st.data())
    def finish_ready(self, data: st.DataObject) -> None:
        """A message waiting for redelivery is lost, or becomes a dead letter."""
        offset = data.draw(st.sampled_from(self.model.with_status("ready")))
        self.events.append(self.queue.finish([offset]))
        self.model.messages[offset].status = "finished"

    @rule(client=st.sampled_from(CLIENTS), seconds=st.integers(0, 2))
    def release_client(self, client: str, seconds: int) -> None:
        """A client disconnects."""
        self.queue.release_client(client, self.now + seconds)
        for message in self.model.messages.values():
            if message.status == "in flight" and message.client == client:
                message.until = min(message.until, self.now + seconds)

    @rule(offset=st.integers(95, 110))
    def reset(self, offset: int) -> None:
        """The group continues at another offset, forwards or back."""
        self.events.append(self.queue.reset(offset))
        self.model = Model(offset)
        self.reset_at = len(self.events)
        self.commit_offsets_since = [offset]

    @rule(seconds=st.integers(0, 3))
    def expire(self, seconds: int) -> None:
        """Advance the time."""
        self.now += seconds
        before = len(self.model.with_status("ready"))
        self.model.expire(self.now)
        assert self.queue.expire(self.now) == len(self.model.with_status("ready")) - before

    @rule()
    def save_commit_offset(self) -> None:
        """Save consumerOffset.json."""
        self.commit_offsets.append(self.queue.commit_offset)
        self.commit_offsets_since.append(self.queue.commit_offset)

    @rule(piece=st.integers(1, 4))
    def snapshot(self, piece: int) -> None:
        """Write the complete state as a snapshot."""
        self.events.extend(self.queue.states(piece))

    @rule(piece=st.integers(1, 4))
    def begin_snapshot(self, piece: int) -> None:
        """Begin a snapshot in steps, between which other operations run.

        An error may have interrupted the previous one.
        """
        self.pieces = self.queue.states(piece)
        self.pieces_from = len(self.events)

    @precondition(lambda self: self.pieces is not None)
    @rule(count=st.integers(1, 3))
    def continue_snapshot(self, count: int) -> None:
        """After the last piece the replay begins at the snapshot; the commit offset is saved in the same step."""
        assert self.pieces is not None
        for _ in range(count):
            piece = next(self.pieces, None)
            if piece is None:
                self.pieces = None
                self.complete = self.pieces_from, self.queue.commit_offset
                return
            self.events.append(piece)

    @precondition(lambda self: self.complete is not None)
    @rule(twice=st.booleans())
    def crash_after_snapshot(self, twice: bool) -> None:
        """Replaying only the events since the snapshot began loses nothing."""
        assert self.complete is not None
        start, commit_offset = self.complete
        restored = QueueDelivery(commit_offset)
        for event in self.events[start:] * 2 if twice else self.events[start:]:
            restored.apply(event)
        self.check_nothing_lost(restored)

    @rule(data=st.data(), twice=st.booleans(), from_snapshot=st.booleans(), piece=st.integers(1, 3))
    def restart(self, data: st.DataObject, twice: bool, from_snapshot: bool, piece: int) -> None:
        """The restored state is equal, for every saved commit offset, and when events are replayed twice."""
        self.events.extend(self.queue.states(piece))
        events, commit_offsets = self.events, self.commit_offsets
        if from_snapshot:  # the replay begins at a snapshot
            starts = [i for i, e in enumerate(events) if isinstance(e, State) and e.begin == e.commit_offset]
            start = data.draw(st.sampled_from(starts))
            events = events[start:]
            if start >= self.reset_at:
                commit_offsets = self.commit_offsets_since
        restored = QueueDelivery(data.draw(st.sampled_from(commit_offsets)))
        for event in events * 2 if twice else events:
            restored.apply(event)
        restored.expire(self.now)
        self.queue.expire(self.now)
        self.model.expire(self.now)
        assert contents(restored) == contents(self.queue)
        assert restored.take_ready(1000) == self.queue.take_ready(1000)

    @rule()
    def crash(self) -> None:
        """Without a final snapshot all deliveries and acknowledgements are known; only skips may be repeated."""
        restored = QueueDelivery(self.commit_offsets[0])
        for event in self.events:
            restored.apply(event)
        self.check_nothing_lost(restored)

    def check_nothing_lost(self, restored: QueueDelivery) -> None:
        """Check that no finished message returns, no other is missing, and the cursor is not ahead."""
        for offset in self.model.with_status("finished"):
            assert offset not in restored.in_flight
            assert restored.deliveries_of_waiting(offset) is None
        for offset in self.model.with_status("in flight") + self.model.with_status("ready"):
            assert offset in restored.in_flight or restored.deliveries_of_waiting(offset) is not None
        assert restored.cursor <= self.queue.cursor

    @invariant()
    def same_as_model(self) -> None:
        """Queue and model agree."""
        queue, model = self.queue, self.model
        assert queue.cursor == model.cursor
        assert queue.commit_offset == model.commit_offset
        assert sorted(queue.in_flight) == model.with_status("in flight")
        assert queue.take_ready(1000) == model.with_status("ready") == sorted(queue.ready)
        for offset, attempt in queue.ready.items():
            assert attempt == model.messages[offset].attempt
        for offset, flight in queue.in_flight.items():
            message = model.messages[offset]
            assert (flight.attempt, flight.nonce, flight.client_id) == (message.attempt, message.nonce, message.client)
            assert flight.invisible_until_ms == message.until
        finished = [offset for offset in model.with_status("finished") if offset >= queue.commit_offset]
        assert [offset for begin, end in queue.finished for offset in range(begin, end)] == finished
        if queue.in_flight:
            earliest = min(flight.invisible_until_ms for flight in queue.in_flight.values())
            assert queue.next_expiry_ms is not None
            assert queue.next_expiry_ms <= earliest


TestQueueDelivery = QueueDeliveryMachine.TestCase
TestQueueDelivery.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
