"""What is repeated, tried again, or forgotten: the three small mechanisms that the broker uses for it."""

from __future__ import annotations

import asyncio
import time

import pytest

from aerobee_broker.backoff import Backoff
from aerobee_broker.recent import Recent
from aerobee_store.clock import every


def test_a_full_table_forgets_the_entry_that_was_set_first() -> None:
    table: Recent[str, int] = Recent(2)
    table["a"], table["b"] = 1, 2
    table["a"] = 3  # the latest now
    assert table["b"] == 2
    table["c"] = 4
    assert list(table.items()) == [("a", 3), ("c", 4)]


def test_an_entry_that_is_set_again_removes_no_other() -> None:
    table: Recent[str, int] = Recent(2)
    table["a"], table["b"] = 1, 2
    table["b"] = 3
    assert list(table.items()) == [("a", 1), ("b", 3)]


def test_what_makes_room_is_reported() -> None:
    """Once, after it has gone; entries that others remove are not."""
    gone: list[tuple[str, int, list[str]]] = []
    table: Recent[str, int] = Recent(2, lambda key, value: gone.append((key, value, list(table))))
    table["a"], table["b"] = 1, 2
    table["a"] = 3
    assert not gone
    table["c"] = 4
    assert gone == [("b", 2, ["a", "c"])]
    del table["a"]
    table["d"] = 5
    assert len(gone) == 1


def test_pauses_grow_to_their_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """And begin anew after an attempt that lasted as long as the longest pause."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pauses = Backoff(1.0, 5.0)
    waited = []
    for lasted in (0.0, 4.9, 0.0, 0.0, 5.0, 0.0):
        pauses.begin()
        now += lasted
        waited.append(pauses.failed())
    assert waited == [1.0, 2.0, 4.0, 5.0, 1.0, 2.0]
    pauses.begin()
    assert pauses.failed(is_hopeless=True) == 5.0


async def test_a_step_is_repeated_until_it_fails() -> None:
    """The pause comes first; steps may be plain functions or coroutines."""
    steps = []

    def plain() -> None:
        steps.append("plain")
        if len(steps) == 3:
            raise ValueError("the third")

    async def slow() -> None:
        await asyncio.sleep(0)
        plain()

    for step in (plain, slow):
        steps.clear()
        running = asyncio.ensure_future(every(0, step))
        assert not steps
        with pytest.raises(ValueError, match="the third"):
            await running
        assert steps == ["plain"] * 3
