"""Changes between the steps of a delivery snapshot are neither lost nor undone by a replay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from aerobee_broker.delivery.journal import history
from aerobee_broker.delivery.journal.event_log import Journal
from tests.support.delivery_harness import GROUP, TOPIC, Harness, bodies

Interrupt = Callable[..., Awaitable[Harness]]


class Interrupted:
    """Ends the turn after every state, and runs the next of `actions` before the next state."""

    is_over = True
    actions: list[Callable[[], Awaitable[object]]]

    async def next(self) -> None:
        if self.actions:
            await self.actions.pop(0)()


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot has two messages in each state and one turn for each state."""
    monkeypatch.setattr(Journal, "state_entry_count_max", 2)
    monkeypatch.setattr(history, "Turns", Interrupted)


async def snapshot_with(harness: Harness, *actions: Callable[[], Awaitable[object]]) -> Harness:
    """Take a snapshot with these actions between its states, crash, and return the restarted harness."""
    Interrupted.actions = list(actions)
    await harness.deliveries._history.snapshot()
    assert not Interrupted.actions, "the snapshot has too few steps for the test"
    await harness.tables.save()
    return await harness.crash()


async def test_events_between_snapshot_parts_count(harness: Harness) -> None:
    """Acknowledgements before, within and after the next state count, and so do deliveries after the last state."""
    await harness.send(*(f"m{number}" for number in range(12)))
    taken = await harness.receive(8, seconds=10_000)
    handles = {message.record.body.decode(): message for message in taken}
    await harness.acknowledge(handles["m1"], handles["m3"])

    async def acknowledge_before() -> None:
        assert await harness.acknowledge(handles["m0"], handles["m2"], handles["m5"]) == [True] * 3

    async def deliver() -> None:
        [message] = await harness.receive(1, seconds=10_000)
        handles[message.record.body.decode()] = message

    after = await snapshot_with(harness, acknowledge_before, deliver)
    assert bodies(await after.receive(32)) == ["m10", "m11", "m9"]
    queue = after.deliveries.queue_delivery(TOPIC, GROUP, 0)
    assert queue is not None
    assert sorted(queue.in_flight) == [4, 6, 7, 8, 9, 10, 11]
    assert await after.acknowledge(*(handles[f"m{number}"] for number in (4, 6, 7, 8))) == [True] * 4
    assert queue.commit_offset == 9


async def test_all_messages_finish_between_snapshot_parts(harness: Harness) -> None:
    """All messages are finished between two states, so the remaining states are empty."""
    await harness.send(*(f"m{number}" for number in range(8)))
    taken = await harness.receive(8, seconds=10_000)
    first, second = [m for m in taken if m.record.queue_offset != 7], [m for m in taken if m.record.queue_offset == 7]
    await harness.acknowledge(*second)

    async def finish() -> None:
        assert all(await harness.acknowledge(*first))

    after = await snapshot_with(harness, finish)
    assert await after.receive(32) == []
    queue = after.deliveries.queue_delivery(TOPIC, GROUP, 0)
    assert queue is None or queue.is_trivial


async def test_a_reset_between_snapshot_parts_takes_precedence(harness: Harness) -> None:
    """A reset to an offset that the snapshot has passed redelivers all messages from there."""
    await harness.send(*(f"m{number}" for number in range(8)))
    assert len(await harness.receive(8, seconds=10_000)) == 8

    async def reset() -> None:
        await harness.deliveries.reset(TOPIC, GROUP, {0: 1})

    after = await snapshot_with(harness, reset)
    assert bodies(await after.receive(32)) == [f"m{number}" for number in range(1, 8)]


async def test_a_group_deleted_between_snapshot_parts_stays_deleted(harness: Harness) -> None:
    """Neither states written before the deletion nor later ones restore the group."""
    await harness.send(*(f"m{number}" for number in range(8)))
    assert len(await harness.receive(8, seconds=10_000)) == 8

    async def delete() -> None:
        harness.tables.groups.delete(GROUP)
        await harness.tables.save_groups()
        await harness.deliveries.delete_group(GROUP)

    after = await snapshot_with(harness, delete)
    assert after.deliveries.queue_delivery(TOPIC, GROUP, 0) is None
