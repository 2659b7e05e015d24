"""QueueDelivery of a priority topic, against a model that sorts all waiting messages each time."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aerobee_broker.delivery.state.events import QueueEvent
from aerobee_broker.delivery.state.priorities import Priorities
from aerobee_broker.delivery.state.queue_delivery import QueueDelivery, acknowledged

LABELS = {"": 0, "0": 0, "1": 1, "7": 7, "10": 10, "-3": 0, "high": 0}
START = 100


@dataclass
class Modelled:
    """One message that was seen, or excluded by a filter."""

    label: str
    status: str  # "finished", "in flight", "waiting"
    attempt: int = 0
    nonce: int = 0
    until: int = 0


class PriorityDeliveryMachine(RuleBasedStateMachine):
    """Applies every operation to queue and model; the messages' labels are never lost."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[int, Modelled] = {}
        self.now = 1_000
        self.nonce = 0
        self.events: list[QueueEvent] = []
        self.left_out: set[int] = set()  # which the journal may not know
        self.queue = QueueDelivery(START)
        self.queue.keep_order(Priorities)

    def with_status(self, status: str) -> list[int]:
        return sorted(offset for offset, message in self.messages.items() if message.status == status)

    def expected(self) -> list[int]:
        return sorted(self.with_status("waiting"), key=lambda offset: (-LABELS[self.messages[offset].label], offset))

    @rule(labels=st.lists(st.sampled_from((*LABELS, None)), max_size=5))
    def see(self, labels: list[str | None]) -> None:
        """Add new messages; a filter excludes some of them (None)."""
        seen = []
        for label in labels:
            offset = START + len(self.messages)
            self.messages[offset] = Modelled(label or "", "finished" if label is None else "waiting")
            if label is None:
                self.left_out.add(offset)
            else:
                seen.append((offset, label))
        self.queue.see(seen, START + len(self.messages))

    @rule(count=st.integers(1, 4), seconds=st.integers(0, 5))
    def deliver(self, count: int, seconds: int) -> None:
        """Deliver the messages of highest priority, in the order of their offsets."""
        offsets = sorted(self.queue.take_ready(count))
        assert offsets == sorted(self.expected()[:count])
        if not offsets:
            return
        self.nonce += 1
        until = self.now + seconds
        self.events.append(self.queue.deliver(offsets, self.queue.cursor, nonce=self.nonce, invisible_until_ms=until))
        for offset in offsets:
            message = self.messages[offset]
            message.status, message.attempt, message.nonce, message.until = (
                "in flight",
                message.attempt + 1,
                self.nonce,
                until,
            )

    @rule(data=st.data(), seconds=st.integers(0, 5))
    @precondition(lambda self: self.with_status("in flight"))
    def change(self, data: st.DataObject, seconds: int) -> None:
        """Change the invisible time, with a new nonce."""
        offset = data.draw(st.sampled_from(self.with_status("in flight")))
        message = self.messages[offset]
        self.nonce += 1
        self.events.append(self.queue.change_invisible(offset, message.nonce, self.now + seconds, self.nonce))
        message.nonce, message.until = self.nonce, self.now + seconds

    @rule(data=st.data())
    @precondition(lambda self: self.with_status("in flight"))
    def acknowledge(self, data: st.DataObject) -> None:
        """Acknowledge a message with its handle."""
        offset = data.draw(st.sampled_from(self.with_status("in flight")))
        self.queue.acknowledge(offset, self.messages[offset].nonce)
        self.events.append(acknowledged([offset]))
        self.messages[offset].status = "finished"

    @rule(data=st.data())
    @precondition(lambda self: self.with_status("waiting"))
    def finish_waiting(self, data: st.DataObject) -> None:
        """A waiting message is lost, or becomes a dead letter."""
        offset = data.draw(st.sampled_from(self.with_status("waiting")))
        self.events.append(self.queue.finish([offset]))
        self.messages[offset].status = "finished"

    @rule(seconds=st.integers(0, 3))
    def expire(self, seconds: int) -> None:
        """Advance the time; messages whose invisible time is over wait again."""
        self.now += seconds
        self.queue.expire(self.now)
        for message in self.messages.values():
            if message.status == "in flight" and message.until <= self.now:
                message.status = "waiting"

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        """Restore from the events, with the labels from the messages; unrecorded seen messages are seen again."""
        events = [*self.events] if crash else [*self.events, *self.queue.states(3)]
        self.events = events
        self.queue = QueueDelivery(START)
        for event in events:
            self.queue.apply(event)
        self.queue.expire(self.now)
        self.expire(0)
        waiting = [offset for offset in self.queue.unfinished() if offset not in self.queue.in_flight]
        for offset in waiting:  # excluded by a filter, which no event recorded
            if offset in self.left_out:
                assert crash
                self.left_out.discard(offset)
                self.messages[offset].status = "waiting"
        self.learn()
        forgotten = range(self.queue.cursor, START + len(self.messages))
        assert all(self.messages[offset].status != "in flight" for offset in forgotten)
        again = [
            (offset, self.messages[offset].label) for offset in forgotten if self.messages[offset].status == "waiting"
        ]
        self.queue.see(again, START + len(self.messages))

    @rule()
    def switch_off_and_on(self) -> None:
        """Change the topic's type, and change it back."""
        self.queue.forget_order()
        assert self.queue.take_ready(1000) == self.with_status("waiting")
        self.learn()

    def learn(self) -> None:
        order = self.queue.keep_order(Priorities)
        for offset in sorted(order.unknown):
            self.queue.learn(offset, self.messages[offset].label)
        for offset in list(self.queue.unread):
            self.queue.learn_unread(offset, self.messages[offset].label)
        assert self.queue.is_order_known

    @invariant()
    def same_as_model(self) -> None:
        """Waiting messages are sorted, and all others have the model's status."""
        assert self.queue.take_ready(1000) == self.expected()
        assert sorted(self.queue.in_flight) == self.with_status("in flight")
        for offset, attempt in self.queue.ready.items():
            assert attempt == self.messages[offset].attempt


TestPriorityDelivery = PriorityDeliveryMachine.TestCase
TestPriorityDelivery.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
