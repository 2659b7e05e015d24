"""Rare states of QueueDelivery: gaps in the journal, a truncated log, and stale deadlines."""

from __future__ import annotations

from aerobee_broker.delivery.state.events import Acknowledged, Changed, Delivered, Run, State, StateEntry
from aerobee_broker.delivery.state.queue_delivery import QueueDelivery


def delivered(begin: int, cursor: int, nonce: int = 1) -> Delivered:
    """A first delivery of begin <= offset < cursor."""
    return Delivered(begin, cursor, (Run(begin, cursor - begin, 1),), nonce, 1000, None)


def test_messages_of_a_lost_delivery_are_ready() -> None:
    """The log lost the event of 3, 4 and 5, so these messages are delivered again."""
    queue = QueueDelivery(0)
    queue.apply(delivered(0, 3))
    queue.apply(delivered(6, 8, nonce=2))
    assert queue.take_ready(10) == [3, 4, 5]
    assert sorted(queue.in_flight) == [0, 1, 2, 6, 7]
    event = queue.deliver([3], 8, nonce=3, invisible_until_ms=2000)
    assert event.runs == (Run(3, 1, 1),)


def test_events_on_messages_of_a_lost_delivery_count() -> None:
    """Acknowledged and Changed apply to messages whose delivery event was lost."""
    queue = QueueDelivery(0)
    queue.apply(Acknowledged(((2, 4),)))
    queue.apply(Changed(6, 2, 9, 1000))
    assert list(queue.finished) == [(2, 4)]
    assert queue.take_ready(10) == [0, 1, 4, 5]
    assert queue.check(6, 9).attempt == 2
    assert queue.cursor == 7


def test_a_snapshot_replaces_uncertain_state() -> None:
    """A snapshot sets the state of every message, including those with lost events."""
    queue = QueueDelivery(0)
    queue.apply(delivered(5, 7))
    assert queue.take_ready(10) == [0, 1, 2, 3, 4]
    queue.apply(State(1, 1, 7, (StateEntry(2, 3, 0, 0, None), StateEntry(6, 1, 1, 1000, None))))
    assert queue.commit_offset == 2
    assert queue.ready == {2: 3}
    assert sorted(queue.in_flight) == [6]
    assert list(queue.finished) == [(3, 6)]


def test_acknowledged_message_stays_finished_after_an_older_event() -> None:
    """A replayed delivery event does not affect an acknowledged message."""
    queue = QueueDelivery(0)
    queue.apply(delivered(0, 4))
    queue.apply(Acknowledged(((2, 3),)))
    queue.apply(delivered(0, 4))
    assert sorted(queue.in_flight) == [0, 1, 3]
    assert list(queue.finished) == [(2, 3)]


def test_commit_offset_ahead_of_the_events_stays() -> None:
    """consumerOffset.json may be newer than the snapshot where the replay begins."""
    queue = QueueDelivery(3)
    queue.apply(delivered(0, 5))
    assert (queue.commit_offset, sorted(queue.in_flight)) == (3, [3, 4])


def test_state_of_messages_after_the_end_of_the_log_is_dropped() -> None:
    """After a power cut, new messages get these offsets and must be delivered."""
    queue = QueueDelivery(0)
    queue.apply(delivered(0, 8))
    queue.apply(Acknowledged(((1, 3), (5, 7))))
    queue.in_flight[7].invisible_until_ms = 10
    assert not queue.cut(8)
    assert queue.cut(6)
    assert queue.cursor == 6
    assert sorted(queue.in_flight) == [0, 3, 4]
    assert list(queue.finished) == [(1, 3), (5, 6)]
    assert queue.cut(0)
    assert queue.is_trivial
    assert queue.commit_offset == 0


def test_deadlines_of_finished_messages_do_not_pile_up() -> None:
    """With short processing and a long invisible time, memory depends on the messages in flight only."""
    queue = QueueDelivery(0)
    for offset in range(20_000):
        queue.deliver([offset], offset + 1, nonce=1, invisible_until_ms=10**12 + offset)
        if offset % 100:
            queue.acknowledge(offset, 1)
    assert len(queue.in_flight) == 200
    assert len(queue._deadlines) < 2000
    assert queue.expire(10**12 + 20_000) == 200
