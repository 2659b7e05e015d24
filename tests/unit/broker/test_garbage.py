"""Garbage collections are short steps of the event loop, and what they leave out is collected later."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aerobee_broker.limits import garbage
from aerobee_broker.limits.garbage import GarbageCollection, leave_collections_to_the_loop


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def short_steps() -> Iterator[None]:
    """The settings of a broker."""
    thresholds = gc.get_threshold()
    try:
        leave_collections_to_the_loop()
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


@contextmanager
def collections_counted() -> Iterator[list[int]]:
    """How many objects each collection examines."""
    examined: list[int] = []

    def begins(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            examined.append(sum(len(gc.get_objects(age)) for age in range(info["generation"] + 1)))

    gc.callbacks.append(begins)
    try:
        yield examined
    finally:
        gc.callbacks.remove(begins)


@pytest.mark.usefixtures("short_steps")
def test_objects_of_the_start_are_never_examined() -> None:
    """What exists when the broker serves is not examined any more; the collection stays enabled."""
    assert gc.get_freeze_count() > 10_000
    assert gc.isenabled()


@pytest.mark.usefixtures("short_steps")
def test_python_examines_young_objects_only() -> None:
    """However many there are: half a million that come into being and stay."""
    with collections_counted() as examined:
        kept = [[number] for number in range(500_000)]
    assert len(kept) == 500_000
    assert len(examined) > 10
    assert max(examined) < 3 * garbage._YOUNG_COUNT


@pytest.mark.usefixtures("short_steps")
def test_objects_that_wait_do_not_make_a_collection_long() -> None:
    """Objects come into being and stay, as many as others are freed: no collection examines them all."""
    collection = GarbageCollection()
    freed = [[number] for number in range(300_000)]
    collection.collect_young()
    kept = []
    with collections_counted() as examined:
        for number in range(300_000):
            freed.pop()
            kept.append([number])
            if not number % 1_000:
                collection.collect_young()
    assert len(examined) > 10
    assert max(examined) < 3 * garbage._YOUNG_COUNT


@pytest.mark.usefixtures("short_steps")
def test_young_cycles_are_collected_when_they_are_enough() -> None:
    """Cycles that nobody uses do not add up."""
    gc.disable()
    try:
        left = [weakref.ref(Cycle()) for _ in range(garbage._YOUNG_COUNT)]
        assert any(cycle() is not None for cycle in left)
        GarbageCollection().collect_young()
        assert not any(cycle() is not None for cycle in left)
    finally:
        gc.enable()


def test_no_list_of_the_objects_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would refer to a tuple that another thread is building, which then fails: the disk thread did, and the broker
    ended."""

    def listed(*_: object) -> list[object]:
        raise AssertionError("the objects are listed")

    monkeypatch.setattr(gc, "get_objects", listed)
    monkeypatch.setattr(gc, "get_referrers", listed)
    collection = GarbageCollection()
    collection.collect_young()
    assert collection.collect_old()


@pytest.mark.usefixtures("short_steps")
async def test_a_broker_collects_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Young objects at each look, old ones when their time has come."""
    monkeypatch.setattr(garbage, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(garbage, "_OLD_LOOK_SECONDS", 0.0)
    unused = old_cycle()
    running = asyncio.create_task(GarbageCollection().run())
    async with asyncio.timeout(30):
        while unused() is not None:  # noqa: ASYNC110  # a collection sets no event
            await asyncio.sleep(0.001)
    running.cancel()


@pytest.mark.usefixtures("short_steps")
def test_old_cycles_are_collected_while_old_objects_are_few() -> None:
    """Also a cycle that was in use for long."""
    unused = old_cycle()
    assert GarbageCollection().collect_old()
    assert unused() is None


@pytest.mark.usefixtures("short_steps")
def test_old_cycles_stay_while_old_objects_are_many_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the many have gone, or an hour has passed."""
    unused = old_cycle()
    collection = GarbageCollection()
    monkeypatch.setattr(garbage, "_OLD_BLOCKS_MAX", -1_000_000_000)
    assert not collection.collect_old()
    assert unused() is not None
    monkeypatch.setattr(garbage, "_OLD_SECONDS_MAX", 0.0)
    assert collection.collect_old()
    assert unused() is None


def old_cycle() -> weakref.ref[Cycle]:
    """A cycle that survived the collections of young objects, and that nobody uses now."""
    cycle = Cycle()
    gc.collect(1)
    assert any(found is cycle for found in gc.get_objects(2))
    return weakref.ref(cycle)
