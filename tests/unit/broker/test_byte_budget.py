"""Byte budgets: limits in total and for each owner, granted in order of arrival."""

from __future__ import annotations

import asyncio
import random

import pytest

from aerobee_broker.errors import TooManyRequestsError
from aerobee_broker.limits.byte_budget import ByteBudget


def budget(total: int = 100, owner: int = 50) -> ByteBudget:
    return ByteBudget("requests in progress", total_max=total, owner_max=owner)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reading_waits_for_the_bytes_of_its_own_owner() -> None:
    """A connection that has used up its bytes waits; others continue."""
    bytes_ = budget()
    await bytes_.take(50, ("a",), seconds=1)
    waiting = asyncio.create_task(bytes_.take(10, ("a",), seconds=10))
    await settled()
    await bytes_.take(30, ("b",), seconds=0.01)
    assert not waiting.done()
    bytes_.give(50, ("a",))
    await waiting
    assert (bytes_.used, bytes_.used_by("a"), bytes_.used_by("b")) == (40, 10, 30)


async def test_the_total_is_limited_and_waiters_are_served_in_order() -> None:
    """Small requests do not overtake a large one that came first."""
    bytes_ = budget(total=100, owner=100)
    await bytes_.take(60, ("a",), seconds=1)
    order: list[str] = []

    async def taker(name: str, size: int) -> None:
        await bytes_.take(size, (name,), seconds=10)
        order.append(name)

    tasks = [asyncio.create_task(taker("large", 80)), asyncio.create_task(taker("small", 10))]
    await settled()
    assert order == []
    bytes_.give(60, ("a",))
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


async def test_a_waiter_that_times_out_holds_nothing() -> None:
    """After the timeout, TooManyRequestsError has the limit, and the waiter leaves the queue."""
    bytes_ = budget()
    await bytes_.take(50, ("a",), seconds=1)
    with pytest.raises(TooManyRequestsError, match="50"):
        await bytes_.take(1, ("a",), seconds=0.01)
    bytes_.give(50, ("a",))
    assert bytes_.used == 0
    await bytes_.take(50, ("a",), seconds=0.01)
    assert bytes_.refused == 1


async def test_a_size_above_all_limits_is_granted_when_nothing_is_taken() -> None:
    """Otherwise it would wait forever."""
    bytes_ = budget()
    await bytes_.take(1000, ("a", "account"), seconds=0.01)
    assert not bytes_.has_free(1, ("b",))
    bytes_.give(1000, ("a", "account"))
    assert bytes_.has_free(1, ("b",))


async def test_nothing_is_lost_whatever_is_cancelled() -> None:
    """After takers of all sizes, some of them cancelled, no bytes are taken and no taker waits."""
    dice = random.Random(7)
    bytes_ = budget(total=100, owner=40)
    done = 0

    async def taker(owners: tuple[str, ...], size: int) -> None:
        nonlocal done
        await bytes_.take(size, owners, seconds=60)
        assert bytes_.used <= 100
        assert all(bytes_.used_by(owner) <= 40 for owner in owners)
        try:
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
        finally:
            bytes_.give(size, owners)
        done += 1

    tasks = []
    for _ in range(2000):
        owners = (f"connection {dice.randrange(5)}", f"account {dice.randrange(2)}")
        tasks.append(asyncio.create_task(taker(owners, dice.randrange(1, 40))))
        if dice.random() < 0.3:
            await asyncio.sleep(0)
        if dice.random() < 0.2:
            dice.choice(tasks).cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert bytes_.used == 0
    assert done == sum(not task.cancelled() for task in tasks)
    await bytes_.take(100, ("x",), seconds=0.01)


async def test_any_owner_has_room_below_the_limit_of_one() -> None:
    """This holds while fewer bytes are taken than one owner may have. After that, it depends on the owner."""
    bytes_ = budget(total=100, owner=50)
    assert bytes_.has_free_for_all()
    bytes_.take_now(49, ("a",))
    assert bytes_.has_free_for_all()
    assert bytes_.has_free(1, ("a",))
    bytes_.take_now(1, ("a",))
    assert not bytes_.has_free_for_all()
    assert not bytes_.has_free(1, ("a",))
    assert bytes_.has_free(1, ("b",))
    bytes_.give(50, ("a",))
    assert bytes_.has_free_for_all()
    small = budget(total=20, owner=50)
    small.take_now(20, ("a",))
    assert not small.has_free_for_all()
