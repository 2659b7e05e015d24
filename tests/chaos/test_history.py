"""Tests of the checker: handwritten histories, valid ones and one for each violation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.chaos.history import (
    Acknowledged,
    AskedAgain,
    Attempted,
    ClientGone,
    ClockSet,
    ConsumeAttempted,
    Consumed,
    DecisionAttempted,
    Delivered,
    Disturbed,
    Event,
    Fault,
    GivenBack,
    Kind,
    Outcome,
    Read,
    RecallAcknowledged,
    RecallAttempted,
    Subscribed,
    Wrong,
    check,
)

GROUP = Subscribed("t", "g")
ORDERED = Subscribed("t", "g", ordered=True)


def sent(message_id: str, at_ms: int = 0, *, answered: bool = True, **fields: Any) -> list[Event]:
    attempted = Attempted(at_ms, message_id, "t", **fields)
    return [attempted, Acknowledged(at_ms, message_id)] if answered else [attempted]


def got(
    message_id: str,
    at_ms: int = 0,
    *,
    offset: int = 0,
    attempt: int = 1,
    call: int | None = None,
    hidden_ms: int | None = 1000,
    queue_id: int = 0,
) -> Delivered:
    call = 1000 * offset + attempt if call is None else call
    return Delivered(
        at_ms, "g", message_id, "t", (queue_id, offset), attempt, call, called_ms=at_ms, hidden_ms=hidden_ms, client="c"
    )


def done(message_id: str, at_ms: int = 0, attempt: int = 1, *, offset: int = 0, queue_id: int = 0) -> list[Event]:
    place = (queue_id, offset)
    return [ConsumeAttempted(at_ms, "g", message_id, place), Consumed(at_ms, "g", message_id, place, attempt)]


def line(name: str = "l") -> dict[str, Any]:
    return {"kind": Kind.FIFO, "message_group": name}


def half(outcome: Outcome = Outcome.COMMIT) -> dict[str, Any]:
    return {"kind": Kind.TRANSACTIONAL, "outcome": outcome}


GOOD: dict[str, tuple[Sequence[Event], dict[str, int]]] = {
    "once": ([GROUP, *sent("a"), got("a"), *done("a")], {}),
    "unanswered, never seen": ([GROUP, *sent("a", answered=False)], {}),
    "unanswered, seen": ([GROUP, *sent("a", answered=False), got("a"), *done("a")], {}),
    "sent twice, stored twice": (
        [GROUP, *sent("a", answered=False), *sent("a"), got("a"), got("a", offset=1), *done("a"), *done("a", offset=1)],
        {},
    ),
    "time over": ([GROUP, *sent("a"), got("a"), got("a", 1000, attempt=2), *done("a", 1001, 2)], {"not acknowl": 1}),
    "given back": (
        [GROUP, *sent("a"), got("a"), GivenBack(1, "g", "a", (0, 0)), got("a", 2, attempt=2), *done("a", 3, 2)],
        {"given back": 1},
    ),
    "acknowledgement lost": (
        [
            GROUP,
            *sent("a"),
            got("a"),
            ConsumeAttempted(1, "g", "a", (0, 0)),
            got("a", 1001, attempt=2),
            *done("a", 3, 2),
        ],
        {"its acknowledgement": 1},
    ),
    "clock ahead": (
        [
            GROUP,
            *sent("a"),
            got("a"),
            ClockSet(200, 5000),
            Disturbed(300, "killed", is_restart=True),
            got("a", 400, attempt=2),
            *done("a", 401, 2),
        ],
        {"the broker's clock": 1},
    ),
    "clock ahead before the delivery, restart after it": (
        [
            GROUP,
            *sent("a"),
            ClockSet(500, 5000),
            got("a", 1000),
            Disturbed(1020, "stopped", is_restart=True),
            got("a", 1100, attempt=2),
            *done("a", 1101, 2),
        ],
        {"the broker's clock": 1},
    ),
    "clock corrected by less than a second": (
        [GROUP, *sent("a"), got("a"), ClockSet(200, 900), got("a", 250, attempt=2), *done("a", 251, 2)],
        {"the broker's clock": 1},
    ),
    "client gone": (
        [GROUP, *sent("a"), got("a", hidden_ms=None), ClientGone(1, "c"), got("a", 2, attempt=2), *done("a", 3, 2)],
        {"its client": 1},
    ),
    "asked again": (
        [GROUP, *sent("a"), got("a", hidden_ms=None), AskedAgain(1, "c"), got("a", 2), *done("a", 3)],
        {"the client asked": 1},
    ),
    "late answer": (
        [GROUP, *sent("a"), got("a", 1000, attempt=2), *done("a", 1001, 2), got("a", 1002)],
        {"an older": 1},
    ),
    "delayed": ([GROUP, *sent("a", kind=Kind.DELAYED, deliver_at_ms=9000), got("a", 9000), *done("a")], {}),
    "delayed, clock ahead": (
        [GROUP, *sent("a", kind=Kind.DELAYED, deliver_at_ms=9000), ClockSet(5, 8000), got("a", 1000), *done("a")],
        {},
    ),
    "recalled": (
        [GROUP, *sent("a", kind=Kind.DELAYED, deliver_at_ms=9), RecallAttempted(1, "a"), RecallAcknowledged(2, "a")],
        {},
    ),
    "committed": ([GROUP, *sent("a", **half()), DecisionAttempted(1, "a", Outcome.COMMIT), got("a"), *done("a")], {}),
    "rolled back": ([GROUP, *sent("a", **half(Outcome.ROLLBACK)), DecisionAttempted(1, "a", Outcome.ROLLBACK)], {}),
    "in order": (
        [
            ORDERED,
            *sent("a", **line()),
            *sent("b", **line()),
            got("a"),
            *done("a"),
            got("b", offset=1),
            *done("b", offset=1),
        ],
        {},
    ),
    "in order, one call": (
        [
            ORDERED,
            *sent("a", **line()),
            *sent("b", **line()),
            got("a", call=1),
            got("b", offset=1, call=1),
            got("a", 1000, attempt=2, call=2),
            *done("a", 1001, 2),
            *done("b", offset=1),
        ],
        {"not acknowl": 1},
    ),
    "unanswered lies behind": (
        [
            ORDERED,
            *sent("a", answered=False, **line()),
            *sent("b", **line()),
            got("b"),
            *done("b"),
            got("a", offset=1),
            *done("a", offset=1),
        ],
        {},
    ),
}

BAD: dict[str, tuple[Fault, Sequence[Event]]] = {
    "never delivered": (Fault.LOST, [GROUP, *sent("a")]),
    "to one group of two": (Fault.LOST, [GROUP, Subscribed("t", "h"), *sent("a"), got("a"), *done("a")]),
    "delivered, given back, never again": (Fault.LOST, [GROUP, *sent("a"), got("a"), GivenBack(1, "g", "a", (0, 0))]),
    "committed, never delivered": (Fault.LOST, [GROUP, *sent("a", **half())]),
    "in no queue": (
        Fault.LOST,
        [
            GROUP,
            *sent("a"),
            *sent("b"),
            got("a"),
            *done("a"),
            got("b", offset=1),
            *done("b", offset=1),
            Read(9, "t", "a", (0, 0)),
        ],
    ),
    "another in its place": (
        Fault.LOST,
        [GROUP, *sent("a"), *sent("b"), got("a"), *done("a"), got("b"), *done("b")],
    ),
    "before its time": (
        Fault.EARLY,
        [GROUP, *sent("a", kind=Kind.DELAYED, deliver_at_ms=9000), got("a", 8000), *done("a")],
    ),
    "before its time, pulled": (
        Fault.EARLY,
        [*sent("a", kind=Kind.DELAYED, deliver_at_ms=9000), Read(8000, "t", "a", (0, 0))],
    ),
    "clock had been ahead before": (
        Fault.EARLY,
        [
            GROUP,
            ClockSet(0, 8000),
            ClockSet(100, 0),
            *sent("a", 1000, kind=Kind.DELAYED, deliver_at_ms=9000),
            got("a", 1500),
            *done("a"),
        ],
    ),
    "while hidden, clock ahead in the same process": (
        Fault.EARLY,
        [
            GROUP,
            *sent("a"),
            Disturbed(5, "killed", is_restart=True),
            got("a", 10),
            ClockSet(100, 5000),
            got("a", 500, attempt=2),
            *done("a", 501, 2),
        ],
    ),
    "while hidden, clock ahead before the last start": (
        Fault.EARLY,
        [
            GROUP,
            *sent("a"),
            ClockSet(5, 5000),
            Disturbed(100, "killed", is_restart=True),
            got("a", 200),
            Disturbed(300, "killed", is_restart=True),
            got("a", 700, attempt=2),
            *done("a", 701, 2),
        ],
    ),
    "while hidden": (Fault.EARLY, [GROUP, *sent("a"), got("a"), got("a", 500, attempt=2), *done("a", 501, 2)]),
    "while its client lives": (
        Fault.EARLY,
        [GROUP, *sent("a"), got("a", hidden_ms=None), got("a", 5000, attempt=2), *done("a", 5001, 2)],
    ),
    "rolled back, delivered": (
        Fault.HALF_VISIBLE,
        [
            GROUP,
            *sent("a", **half(Outcome.ROLLBACK)),
            DecisionAttempted(1, "a", Outcome.ROLLBACK),
            got("a"),
            *done("a"),
        ],
    ),
    "half, delivered before the commit": (
        Fault.HALF_VISIBLE,
        [GROUP, *sent("a", **half()), got("a"), DecisionAttempted(1, "a", Outcome.COMMIT), *done("a")],
    ),
    "second before the first": (
        Fault.ORDER,
        [
            ORDERED,
            *sent("a", **line()),
            *sent("b", **line()),
            got("b", offset=1),
            *done("b", offset=1),
            got("a"),
            *done("a"),
        ],
    ),
    "second while the first is out": (
        Fault.ORDER,
        [
            ORDERED,
            *sent("a", **line()),
            *sent("b", **line()),
            got("a"),
            got("b", offset=1),
            *done("a"),
            *done("b", offset=1),
        ],
    ),
    "new beside the first again": (
        Fault.ORDER,
        [
            ORDERED,
            *sent("a", **line()),
            *sent("b", **line()),
            got("a"),
            got("a", 1000, attempt=2, call=7),
            got("b", 1000, offset=1, call=7),
            *done("a", 1001, 2),
            *done("b", 1001, offset=1),
        ],
    ),
    "first again after the second": (
        Fault.ORDER,
        [
            ORDERED,
            *sent("a", **line()),
            *sent("b", **line()),
            got("a"),
            ConsumeAttempted(1, "g", "a", (0, 0)),
            got("b", offset=1),
            *done("b", offset=1),
            got("a", 1000, attempt=2),
            *done("a", 1001, 2),
        ],
    ),
    "stored in the wrong order": (
        Fault.ORDER,
        [
            ORDERED,
            *sent("a", **line()),
            *sent("b", **line()),
            got("b"),
            *done("b"),
            got("a", offset=1),
            *done("a", offset=1),
        ],
    ),
    "in two queues": (
        Fault.ORDER,
        [
            ORDERED,
            *sent("a", **line()),
            *sent("b", **line()),
            got("a"),
            *done("a"),
            got("b", offset=1, queue_id=1),
            *done("b", offset=1, queue_id=1),
        ],
    ),
    "after its acknowledgement": (
        Fault.DUPLICATE,
        [GROUP, *sent("a"), got("a"), *done("a"), got("a", 5000, attempt=2), *done("a", 5001, 2)],
    ),
    "stored twice": (
        Fault.STORED_AGAIN,
        [GROUP, *sent("a"), got("a"), *done("a"), got("a", offset=1), *done("a", offset=1)],
    ),
    "recalled, delivered": (
        Fault.RECALLED,
        [
            GROUP,
            *sent("a", kind=Kind.DELAYED, deliver_at_ms=9),
            RecallAttempted(1, "a"),
            RecallAcknowledged(2, "a"),
            got("a", 20),
            *done("a"),
        ],
    ),
    "never sent": (Fault.UNKNOWN, [GROUP, got("a")]),
    "wrong answer": (Fault.WRONG, [Wrong(0, "a body of other bytes")]),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_protocol_allows(name: str) -> None:
    """No fault is found, and each duplicate has the right explanation."""
    history, duplicates = GOOD[name]
    findings = check(history)
    assert findings.lines == []
    for why, count in duplicates.items():
        assert [found for text, found in findings.duplicates.items() if text.startswith(why)] == [count]
    assert findings.duplicates.total() == sum(duplicates.values())


@pytest.mark.parametrize("name", BAD)
def test_what_must_never_happen(name: str) -> None:
    """The fault is found once, under its name, and no other fault."""
    fault, history = BAD[name]
    findings = check(history)
    assert dict(findings.faults) == {fault: 1}, findings.lines


def test_the_table_has_everything() -> None:
    """Faults that did not happen are listed with 0, which is what readers look for."""
    table = check(GOOD["time over"][0]).table()
    for row in ("attempted", "acknowledged", "delivered", "lost", "early", "half visible", "order broken"):
        assert any(line.startswith(row) for line in table.splitlines()), row
    assert "duplicate: not acknowledged in time" in table
