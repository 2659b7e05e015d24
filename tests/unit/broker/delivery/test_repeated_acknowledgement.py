"""An acknowledgement that is sent again while the first one is not stored yet."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.delivery_harness import GROUP, TOPIC, Harness


async def test_it_is_answered_once_the_first_one_is_stored(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that repeats it must not believe that it is safe before it is."""
    await harness.send("m")
    [message] = await harness.receive()
    disk, stored = asyncio.Event(), harness.store.wait_stored

    async def wait_stored(end: int, *, durable: bool | None = None, replicas: bool = True) -> None:
        await disk.wait()
        await stored(end, durable=durable, replicas=replicas)

    monkeypatch.setattr(harness.store, "wait_stored", wait_stored)
    first, again = (
        asyncio.create_task(harness.deliveries.acknowledge(TOPIC, GROUP, [message.receipt_handle])) for _ in range(2)
    )
    for _ in range(20):
        await asyncio.sleep(0)
    assert not first.done()
    assert not again.done()
    disk.set()
    assert await first == await again == [None]
