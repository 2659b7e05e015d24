"""The model itself: what it allows, and what it does not."""

from __future__ import annotations

import pytest

from tests.model.promises import Delivery, Kind, Promise, Promises, body_of


def _due(promises: Promises, message_id: str, due_ms: int, *, level_ms: int = 1000) -> None:
    """A message that was answered."""
    sent = promises.attempt(message_id, Kind.DELAY, "topic", due_ms=due_ms)
    sent.stored, sent.level_ms = Promise.YES, level_ms


def _deliver(promises: Promises, message_id: str, *offsets: int) -> None:
    for offset in offsets:
        attempt = promises.groups["group"].attempts.get(message_id, 0) + 1
        promises.delivered("group", [Delivery(message_id, 0, offset, "handle", body_of(message_id), attempt)])


@pytest.mark.parametrize(
    ("due_ms", "level_ms", "offsets", "is_right"),
    [
        (5000, 1000, (1, 2), True),  # fell due while nothing could be saved
        (5000, 1000, (1, 2, 1, 2), True),  # each copy may come again
        (5000, 1000, (1, 2, 3), False),  # one copy more
        (3999, 1000, (1, 2), False),  # fell due before
        (6001, 1000, (1, 2), False),  # fell due after
        (5000, 0, (1, 2), False),  # has a time, and no level
        (6001, 1000, (1, 1), True),
    ],
)
def test_only_what_fell_due_meanwhile_is_stored_twice(
    due_ms: int, level_ms: int, offsets: tuple[int, ...], is_right: bool
) -> None:
    """A level's progress could not be saved from 4000 to 6000."""
    promises = Promises()
    promises.subscribe("group", "topic")
    promises.clock(10_000)
    _due(promises, "m", due_ms, level_ms=level_ms)
    promises.level_unsaved(4000, 6000)
    _deliver(promises, "m", *offsets)
    assert (not promises.violations) is is_right, promises.violations
