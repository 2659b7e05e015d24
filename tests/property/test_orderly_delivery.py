"""QueueDelivery with message groups, against a model that keeps one status per message and scans all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aerobee_broker.delivery.state.events import QueueEvent, State
from aerobee_broker.delivery.state.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.state.queue_delivery import QueueDelivery, acknowledged

PAGE_SIZE = 2
MESSAGE_GROUPS = ("a", "b", "c", "")
START = 100


@dataclass
class Modelled:
    """One message that was seen, or excluded by a filter."""

    message_group: str
    status: str  # "finished", "in flight", "waiting"
    attempt: int = 0
    nonce: int = 0
    until: int = 0


class OrderlyDeliveryMachine(RuleBasedStateMachine):
    """Applies every operation to queue and model. The log (offset -> message group) is never lost."""

    ready_max: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.log: dict[int, str] = {}
        self.messages: dict[int, Modelled] = {}
        self.now = 1_000
        self.nonce = 0
        self.events: list[QueueEvent] = []
        self.acknowledged: set[int] = set()
        self.left_out: set[int] = set()
        self.was_standard = False
        self.withdrawn: set[int] = set()  # a crash may lose these withdrawals
        self.pieces: Iterator[State] | None = None  # of an unfinished snapshot
        self.queue = QueueDelivery(START)
        self.queue.keep_order(MessageGroupOrder)

    # The model

    def with_status(self, status: str) -> list[int]:
        return sorted(offset for offset, message in self.messages.items() if message.status == status)

    def may_go(self, count: int) -> list[int]:
        """Return the deliverable offsets in order.

        A message is deliverable if no message of its group is in flight. A new message also requires that no
        redelivered one of its group waits before it.
        """
        stopped = {self.messages[offset].message_group for offset in self.with_status("in flight")}
        redelivered: set[str] = set()
        may_go = []
        for offset in self.with_status("waiting"):
            message = self.messages[offset]
            if message.attempt:
                redelivered.add(message.message_group)
            elif message.message_group in redelivered:
                stopped.add(message.message_group)
            if message.message_group not in stopped:
                may_go.append(offset)
        return may_go[:count]

    def expire_model(self) -> None:
        for message in self.messages.values():
            if message.status == "in flight" and message.until <= self.now:
                message.status = "waiting"

    def waiting(self, queue: QueueDelivery) -> list[int]:
        return [offset for offset in queue.unfinished() if offset not in queue.in_flight]

    def check_taken(self, offsets: list[int], count: int) -> None:
        assert offsets == self.may_go(count)

    # Operations

    @rule(groups=st.lists(st.sampled_from((*MESSAGE_GROUPS, None)), max_size=5))
    def see(self, groups: list[str | None]) -> None:
        """Add new messages; a filter excludes some of them (None)."""
        seen = []
        for group in groups:
            offset = START + len(self.messages)
            self.log[offset] = group or ""
            self.messages[offset] = Modelled(group or "", "finished" if group is None else "waiting")
            if group is None:
                self.left_out.add(offset)
            else:
                seen.append((offset, group))
        self.queue.see(seen, START + len(self.messages), ready_max=self.ready_max)

    @rule(count=st.integers(1, 4), seconds=st.integers(0, 5), client=st.sampled_from((None, "client")))
    def deliver(self, count: int, seconds: int, client: str | None) -> None:
        """Deliver a batch as the model predicts.

        All earlier messages of the same message group are finished, or in the same batch.
        """
        offsets = self.queue.take_ready(count)
        self.check_taken(offsets, count)
        if not offsets:
            return
        self.nonce += 1
        event = self.queue.deliver(
            offsets, self.queue.cursor, nonce=self.nonce, invisible_until_ms=self.now + seconds, client_id=client
        )
        told = {run.offset + i: run.attempt for run in event.runs for i in range(run.size) if run.attempt}
        for offset in offsets:
            message = self.messages[offset]
            earlier = [
                o for o in self.messages if o < offset and self.messages[o].message_group == message.message_group
            ]
            assert all(self.messages[o].status == "finished" or o in offsets for o in earlier)
            if not message.attempt:  # a new message never follows a redelivered one of its group
                assert not any(o in offsets and told[o] > 1 for o in earlier)
            message.status, message.attempt = "in flight", message.attempt + 1
            message.nonce, message.until = self.nonce, self.now + seconds
            self.withdrawn.discard(offset)
            assert told[offset] == message.attempt
        self.events.append(event)

    @precondition(lambda self: self.with_status("in flight"))
    @rule(data=st.data(), seconds=st.integers(0, 5))
    def repeat(self, data: st.DataObject, seconds: int) -> None:
        """Repeat a lost answer: same messages, same attempt, same handles."""
        nonce = self.messages[data.draw(st.sampled_from(self.with_status("in flight")))].nonce
        expected = [o for o in self.with_status("in flight") if self.messages[o].nonce == nonce]
        assert self.queue.is_in_flight_under(nonce)
        assert self.queue.in_flight_under(nonce) == expected
        event = self.queue.repeat(expected, nonce=nonce, invisible_until_ms=self.now + seconds)
        told = {run.offset + i: run.attempt for run in event.runs for i in range(run.size) if run.attempt}
        assert told == {offset: self.messages[offset].attempt for offset in expected}
        for offset in expected:
            self.messages[offset].until = self.now + seconds
        self.events.append(event)

    @precondition(lambda self: self.with_status("in flight"))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """An answer could not be written: its messages wait again, and are delivered as the same attempt."""
        nonce = self.messages[data.draw(st.sampled_from(self.with_status("in flight")))].nonce
        given = [o for o in self.with_status("in flight") if self.messages[o].nonce == nonce]
        given = data.draw(st.lists(st.sampled_from(given), unique=True))
        assert self.queue.withdraw(given, nonce) == len(given)
        for offset in given:
            message = self.messages[offset]
            message.status, message.attempt = "waiting", message.attempt - 1
            self.withdrawn.add(offset)

    @precondition(lambda self: self.with_status("in flight"))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """Acknowledge any message in flight."""
        offset = data.draw(st.sampled_from(self.with_status("in flight")))
        self.queue.acknowledge(offset, self.messages[offset].nonce)
        self.events.append(acknowledged([offset]))
        self.messages[offset].status = "finished"
        self.acknowledged.add(offset)

    @precondition(lambda self: self.queue.ready)
    @rule(data=st.data())
    def finish_waiting(self, data: st.DataObject) -> None:
        """A message waiting in memory is lost, or becomes a dead letter."""
        offset = data.draw(st.sampled_from(sorted(self.queue.ready)))
        self.events.append(self.queue.finish([offset]))
        self.messages[offset].status = "finished"
        self.acknowledged.add(offset)

    @precondition(lambda self: self.with_status("in flight"))
    @rule(data=st.data(), seconds=st.integers(0, 5))
    def change_invisible(self, data: st.DataObject, seconds: int) -> None:
        """Change the invisible time; the message group stays locked until then."""
        offset = data.draw(st.sampled_from(self.with_status("in flight")))
        self.nonce += 1
        message = self.messages[offset]
        self.events.append(self.queue.change_invisible(offset, message.nonce, self.now + seconds, self.nonce))
        message.nonce, message.until = self.nonce, self.now + seconds

    @rule(seconds=st.integers(0, 3))
    def expire(self, seconds: int) -> None:
        """Advance the time."""
        self.now += seconds
        self.queue.expire(self.now)
        self.expire_model()

    @rule()
    def record_seen(self) -> None:
        """Record seen messages in the journal without a delivery, as after many skipped messages."""
        self.events.append(self.queue.record_seen())
        assert self.queue.unrecorded_count == 0

    @rule(piece=st.integers(1, 4))
    def snapshot(self, piece: int) -> None:
        """Write the complete state as a snapshot."""
        self.events.extend(self.queue.states(piece))

    @rule(piece=st.integers(1, 4))
    def begin_snapshot(self, piece: int) -> None:
        """Begin a snapshot in steps, between which other operations run; it may never be finished."""
        self.pieces = self.queue.states(piece)

    @precondition(lambda self: self.pieces is not None)
    @rule(count=st.integers(1, 3))
    def continue_snapshot(self, count: int) -> None:
        """Write each piece in the step that produces it."""
        assert self.pieces is not None
        self.events.extend(islice(self.pieces, count))

    @rule(standard=st.booleans())
    def change_group(self, standard: bool) -> None:
        """Turn the group into a standard group and back; meanwhile it may deliver new messages at once."""
        self.queue.forget_order()
        self.was_standard |= standard
        if standard:
            offset = START + len(self.messages)
            self.log[offset] = "a"
            self.nonce += 1
            self.messages[offset] = Modelled("a", "in flight", 1, self.nonce, self.now + 1)
            self.events.append(
                self.queue.deliver([offset], offset + 1, nonce=self.nonce, invisible_until_ms=self.now + 1)
            )
        self.queue.keep_order(MessageGroupOrder)
        self.learn(self.queue)

    def learn(self, queue: QueueDelivery) -> None:
        assert isinstance(queue.order, MessageGroupOrder)
        assert queue.order.unknown == {*queue.in_flight, *queue.ready}
        assert not queue.order.has_open()
        for offset in list(queue.order.unknown):
            assert not queue.is_order_known
            queue.learn(offset, self.log[offset])
        for offset in list(queue.unread):
            assert not queue.is_order_known
            queue.learn_unread(offset, self.log[offset], ready_max=self.ready_max)
        assert queue.is_order_known

    @rule(last_snapshot=st.booleans(), twice=st.booleans())
    def restart(self, last_snapshot: bool, twice: bool) -> None:
        """After a snapshot the restored state is equal.

        Without one, only seen and unrecorded messages are seen again.
        """
        if last_snapshot:
            self.events.extend(self.queue.states(3))
        restored = QueueDelivery(START)
        for event in self.events * 2 if twice else self.events:
            restored.apply(event)
        restored.expire(self.now)
        self.queue.expire(self.now)
        self.expire_model()
        if last_snapshot:
            assert restored.cursor == self.queue.cursor
            assert self.waiting(restored) == self.waiting(self.queue)
            for offset in self.waiting(restored):
                assert restored.deliveries_of_waiting(offset) == self.queue.deliveries_of_waiting(offset)
        assert all(restored.ready.values()), "what was never delivered is in the bitmap"
        assert restored.cursor <= self.queue.cursor
        for offset, flight in restored.in_flight.items():
            message = self.messages[offset]
            if message.status == "in flight":
                assert (flight.attempt, flight.nonce) == (message.attempt, message.nonce)
                assert flight.invisible_until_ms == message.until
            else:  # withdrawn, which the crash lost
                assert message.status == "waiting"
        for offset, attempt in restored.ready.items():
            assert attempt == self.messages[offset].attempt or offset in self.withdrawn or offset in self.left_out
        known = set(restored.unfinished())
        for offset in self.messages:
            if offset < restored.cursor:
                # Exactly the unfinished messages; excluded ones may be filtered again.
                assert (offset in known) == (self.messages[offset].status != "finished") or offset in self.left_out
            assert not (offset in self.acknowledged and offset in known)

    @rule()
    def crash(self) -> None:
        """Continue from the journal; messages that it lacks are seen again, with the same filter."""
        restored = QueueDelivery(START)
        for event in self.events:
            restored.apply(event)
        restored.expire(self.now)
        for offset in self.waiting(restored):
            if offset in self.left_out:
                self.events.append(restored.finish([offset]))
        restored.keep_order(MessageGroupOrder)
        self.queue, self.pieces = restored, None
        self.learn(restored)
        self.expire_model()
        rest = [
            (o, m.message_group) for o, m in self.messages.items() if o >= restored.cursor and m.status != "finished"
        ]
        restored.see(rest, START + len(self.messages), ready_max=self.ready_max)
        for offset, message in self.messages.items():
            if message.status == "waiting" and offset in restored.in_flight:  # withdrawn before the crash
                flight = restored.in_flight[offset]
                message.status, message.attempt = "in flight", flight.attempt
                message.nonce, message.until = flight.nonce, flight.invisible_until_ms
            elif message.status == "waiting":
                attempt = restored.deliveries_of_waiting(offset)
                assert attempt is not None
                assert message.attempt == attempt or offset in self.withdrawn
                message.attempt = attempt

    @invariant()
    def same_as_model(self) -> None:
        """Queue and model agree on every message and on the deliverable ones."""
        queue = self.queue
        assert queue.cursor == START + len(self.messages)
        assert sorted(queue.in_flight) == self.with_status("in flight")
        assert self.waiting(queue) == self.with_status("waiting")
        assert queue.waiting_count == len(self.with_status("waiting"))
        self.check_taken(queue.take_ready(1000), 1000)
        assert isinstance(queue.order, MessageGroupOrder)
        assert queue.order.has_open() == bool(self.may_go(1))
        unfinished = [offset for offset, message in self.messages.items() if message.status != "finished"]
        assert queue.commit_offset == min(unfinished, default=queue.cursor)
        for offset in queue.ready:
            assert queue.ready[offset] == self.messages[offset].attempt


TestOrderlyDelivery = OrderlyDeliveryMachine.TestCase
TestOrderlyDelivery.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class PagingMachine(OrderlyDeliveryMachine):
    """The same with almost no messages waiting in memory. Every deliverable message group still supplies messages."""

    ready_max = 3

    def check_taken(self, offsets: list[int], count: int) -> None:
        """Check that each deliverable group supplies its first messages, and at least one."""
        may_go = self.may_go(1000)
        assert offsets == sorted(set(offsets))
        for group in MESSAGE_GROUPS:
            possible = [offset for offset in may_go if self.messages[offset].message_group == group]
            taken = [offset for offset in offsets if self.messages[offset].message_group == group]
            assert taken == possible[: len(taken)]
            assert len(taken) >= min(len(possible), 1) or len(offsets) == count
        assert offsets[:1] == may_go[:1]

    @invariant()
    def few_wait_in_memory(self) -> None:
        """Beyond the limit, memory holds at most a page per message group, and the returned messages."""
        returned = sum(1 for message in self.messages.values() if message.attempt) + len(self.withdrawn)
        in_memory = len(self.queue.ready)
        assert self.was_standard or in_memory <= self.ready_max + len(MESSAGE_GROUPS) * PAGE_SIZE + returned


TestPagedDelivery = PagingMachine.TestCase
TestPagedDelivery.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.state.message_group_order.PAGE_SIZE", PAGE_SIZE)
