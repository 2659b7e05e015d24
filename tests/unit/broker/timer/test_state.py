"""The invariants of the timer's state; each violation is detected."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from aerobee_broker.timer.slot import Due, LoadedSlot
from aerobee_broker.timer.state import TimerState

SLOT_MS = 1_700_000_000_000


def state() -> TimerState:
    """A state in the middle of a day with all kinds of entries."""
    slot = LoadedSlot()
    slot.fill(*(array("q", values) for values in ([SLOT_MS + 5, SLOT_MS + 1], [400, 300], [0, 0], [0, 0])))
    slot.add(Due(SLOT_MS - 10, 500, 0, False))
    state = TimerState(
        precision_ms=1000,
        window_ms=60_000,
        enqueued=10,
        enqueue_first=8,
        slot_ms=SLOT_MS,
        marks_begin=100,
        recovered_until_ms=SLOT_MS + 300,
        slot=slot,
        done={1, 2},
        relocated={3: SLOT_MS + 4000},
        relocated_before=50,
        relocation_begin=120,
    )
    state.recalls.add("orders", "id", SLOT_MS)
    return state


def unsort(state: TimerState) -> None:
    assert state.slot is not None
    state.slot._due = state.slot._due[::-1]


BREAKS: dict[str, Callable[[TimerState], object]] = {
    "multiple of the precision": lambda state: setattr(state, "slot_ms", SLOT_MS + 1),
    "two or more whole slots": lambda state: setattr(state, "window_ms", 1000),
    "are in the timer topic": lambda state: setattr(state, "enqueued", 12),
    "looked for within the log": lambda state: setattr(state, "marks_begin", 2000),
    "relocated copies lie within": lambda state: setattr(state, "relocation_begin", 2000),
    "before the relocated messages": lambda state: setattr(state, "relocated_before", 2000),
    "marks of relocated copies are found": lambda state: setattr(state, "marks_begin", 121),
    "relocated messages are of slots": lambda state: state.relocated.update({4: SLOT_MS - 1000}),
    "done or relocated, not both": lambda state: state.done.add(3),
    "only recovered slots": lambda state: setattr(state, "recovered_until_ms", SLOT_MS - 1),
    "slots done before a crash": lambda state: setattr(state, "enqueued_before_crash", (5, SLOT_MS + 1000)),
    "recalls are of slots": lambda state: state.recalls.add("orders", "other", SLOT_MS - 1000),
    "are in due order": unsort,
}


def test_a_state_in_order_passes() -> None:
    state().check(topic_end=10, log_end=1000)


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_invariant_is_named(name: str) -> None:
    broken = state()
    BREAKS[name](broken)
    with pytest.raises(AssertionError, match=name):
        broken.check(topic_end=10, log_end=1000)


def test_a_step_keeps_the_invariants() -> None:
    """After a step, entries of the finished slot are dropped, and marks of later copies are still found."""
    present = state()
    present.slot = None
    present.step_to(SLOT_MS + 1000, log_end=900)
    present.check(topic_end=10, log_end=1000)
    assert (present.done, present.recalls.slots(), present.marks_begin) == (set(), [], 120)
    present.step_to(SLOT_MS + 5000, log_end=940)
    present.check(topic_end=10, log_end=1000)
    present.step_to(SLOT_MS + 6000, log_end=950)
    assert (present.relocated, present.marks_begin) == ({}, 950)
