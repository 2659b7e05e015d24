"""Messages that exceed their attempts become dead letters, on a real store."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.tables.consumer_groups import GroupConfig
from tests.support.delivery_harness import TOPIC, Harness

GROUPS = {"standard": False, "orderly": True}


@pytest.fixture
async def harness(harness: Harness) -> Harness:
    for group, orderly in GROUPS.items():
        harness.tables.groups.create(GroupConfig(name=group, consume_orderly=orderly, retry_max_times=1))
    await harness.tables.save()
    return harness


async def fail(harness: Harness, group: str, *bodies: str) -> None:
    """Deliver all messages, which must be `bodies`, up to the last attempt without acknowledging any."""
    for attempt in (1, 2):
        received = await harness.receive(32, group=group, seconds=5)
        assert [(each.record.body.decode(), each.attempt) for each in received] == [(body, attempt) for body in bodies]
        await harness.advance(4.9 if attempt == 2 else 5)


async def dead_letters(harness: Harness, group: str, count: int) -> list[str]:
    """The dead letters' bodies once there are `count`, without a receive by the group."""
    async with asyncio.timeout(60):
        while True:
            topic = f"%DLQ%{group}"
            low, high = harness.store.queue_range(topic, 0)
            if high - low >= count:
                records = harness.store.read(topic, 0, low, max_count=100).records
                return [record.body.decode() for record in records]
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("group", GROUPS)
async def test_a_dead_letter_needs_no_receive(harness: Harness, group: str) -> None:
    """The dead letter is written when its last invisible time ends, and the group's lag drops to 0."""
    bodies = [f"m{number}" for number in range(30)] + ["last"]
    await harness.send(*bodies, message_group="g")
    await fail(harness, group, *bodies)
    assert not harness.store.queue_range(f"%DLQ%{group}", 0)[1]
    await harness.advance(0.1)
    assert await dead_letters(harness, group, 31) == bodies
    await asyncio.sleep(0)
    assert sum(status.lag for status in list(harness.deliveries.statuses(group))) == 0
    assert harness.deliveries.stats.dead_letters == 31


@pytest.mark.parametrize("group", GROUPS)
async def test_a_dead_letter_is_stored_after_a_crash(harness: Harness, group: str) -> None:
    """If the last invisible time ends while the broker is down, each dead letter is written once after the start."""
    await harness.send("m0", "m1")
    await fail(harness, group, "m0", "m1")
    harness.clock.advance(0.1)
    for _ in range(2):
        harness = await harness.crash()
        assert await dead_letters(harness, group, 2) == ["m0", "m1"]
        assert await harness.receive(32, group=group) == []


async def test_the_next_message_of_the_group_follows(harness: Harness) -> None:
    """A receive that waits for the message group gets the next message as soon as the dead letter is written."""
    await harness.send("m0", message_group="g")
    await fail(harness, "orderly", "m0")
    await harness.send("m1", message_group="g")
    waiting = asyncio.create_task(harness.receive(32, group="orderly", wait=20))
    await asyncio.sleep(0)
    await harness.advance(0.1)
    assert [each.record.body for each in await waiting] == [b"m1"]
    assert TOPIC in harness.tables.topics
