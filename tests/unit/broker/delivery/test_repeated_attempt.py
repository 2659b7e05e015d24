"""A push consumer that repeats the attempt id of a receive has not seen the answer to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.delivery.receiving import DeliveredMessage
from tests.support.delivery_world import GROUP, TOPIC, MovableClock, World, bodies


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A broker's life; tests that go on to the next one stop that themselves."""
    world = await World.start(tmp_path / "store", MovableClock())
    yield world
    await world.stop()


async def receive(
    world: World, attempt_id: str, *, client_id: str = "client", group: str = GROUP, invisible_ms: int | None = None
) -> list[DeliveredMessage]:
    world.connected.add(client_id)
    return await world.deliveries.receive(
        TOPIC,
        group,
        client_id=client_id,
        count=32,
        invisible_ms=invisible_ms,
        wait_seconds=0,
        attempt_id=attempt_id,
    )


async def test_the_same_attempt_gets_the_messages_again(world: World) -> None:
    """What the lost answer held comes again, from every queue, as a further attempt; it can be acknowledged."""
    await world.send("a", "b")
    await world.send("c", queue_id=1)
    assert bodies(await receive(world, "one")) == ["a", "b", "c"]
    again = await receive(world, "one")
    assert bodies(again) == ["a", "b", "c"]
    assert [message.attempt for message in again] == [2, 2, 2]
    assert await world.acknowledge(*again) == [True, True, True]
    assert await receive(world, "one") == []


async def test_another_attempt_client_or_group_gets_nothing(world: World) -> None:
    """What a client is known to have stays with it."""
    await world.send("a")
    await world.send("b", queue_id=1)
    first = await receive(world, "one")
    assert await receive(world, "two") == []
    assert await receive(world, "one", client_id="another") == []
    assert bodies(await receive(world, "one", group="audit")) == ["a", "b"]
    assert await world.acknowledge(*first) == [True, True]


async def test_only_the_repeated_attempt_is_given_back(world: World) -> None:
    """Messages of the attempts before are being worked on."""
    await world.send("a")
    worked_on = await receive(world, "one")
    await world.send("b")
    await receive(world, "two")
    assert bodies(await receive(world, "two")) == ["b"]
    assert await world.acknowledge(*worked_on) == [True]


async def test_an_acknowledged_or_changed_message_does_not_come_again(world: World) -> None:
    """A client that acknowledged has seen the answer, whatever it repeats."""
    await world.send("a", "b", "c")
    messages = await receive(world, "one")
    await world.acknowledge(messages[0])
    await world.deliveries.change_invisible(TOPIC, GROUP, messages[1].receipt_handle, 60_000)
    assert bodies(await receive(world, "one")) == [messages[2].record.body.decode()]


async def test_a_repeated_attempt_is_known_after_a_crash(world: World) -> None:
    """The answer was lost because the broker died: the client repeats it to the next one. Others stay invisible."""
    await world.send("a")
    worked_on = await receive(world, "one")
    await world.send("b")
    await world.send("c", queue_id=1)
    await receive(world, "two")
    following = await world.crash()
    try:
        again = await receive(following, "two")
        assert [message.attempt for message in again] == [2, 2]
        assert bodies(again) == ["b", "c"]
        assert await following.acknowledge(*worked_on, *again) == [True, True, True]
    finally:
        await following.stop()


async def test_with_an_invisible_time_of_its_own_nothing_is_given_back(world: World) -> None:
    """A simple consumer's message comes again when its time is over, no sooner."""
    await world.send("a")
    assert bodies(await receive(world, "one", invisible_ms=30_000)) == ["a"]
    assert await receive(world, "one", invisible_ms=30_000) == []
