"""Old log segments are deleted while groups consume: delivery keeps the state it needs from them."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from aerobee_broker.delivery.journal.event_log import JOURNAL_TOPIC, Journal
from aerobee_proto import admin_v1, v2
from aerobee_store import Message, RunningFlags, StoreConfig, StoreFullError
from aerobee_store.testing import ManualClock
from tests.support.delivery_harness import GROUP, TOPIC, Harness, bodies
from tests.support.in_process_broker import METADATA, in_process_broker, message

SEGMENT = 1 << 20  # segment size of the harness's store


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    harness = await Harness.start(tmp_path / "store", ManualClock())
    yield harness
    await harness.stop()


async def expire(harness: Harness, segments: int) -> None:
    """Fill `segments` segments, advance the clock by 80 hours, and run the deletion of expired segments."""
    body = bytes(32 << 10)
    end = harness.store.positions[0] + segments * SEGMENT
    while harness.store.positions[0] < end:
        appended = harness.store.append([Message("bulk", 0, body)])
        await harness.store.wait_stored(appended[-1].end)
    now = datetime.fromtimestamp(harness.clock.now_ms() / 1000)
    then = (now + timedelta(hours=80)).replace(hour=4, minute=30)
    harness.clock.advance(then.timestamp() - now.timestamp())
    await harness.store.retention.clean()


async def test_a_group_keeps_its_position_when_the_journal_expires(harness: Harness) -> None:
    """The group's position was only in the oldest segment.

    After its deletion and a crash, the group gets the later messages, and none that it had finished.
    """
    await harness.send("finished")
    [message] = await harness.receive()
    await harness.deliveries.acknowledge(TOPIC, GROUP, [message.receipt_handle])
    assert await harness.receive(group="audit", count=1)  # one message in flight
    before = harness.store.queue_range(JOURNAL_TOPIC, 0)
    await expire(harness, 3)
    await harness.send("later")
    assert harness.store.status().min_offset >= 2 * SEGMENT
    assert harness.store.queue_range(JOURNAL_TOPIC, 0)[0] >= before[1]
    assert harness.store.queue_range(TOPIC, 0) == (1, 2)
    harness = await harness.crash()
    assert bodies(await harness.receive()) == ["later"]
    assert bodies(await harness.receive(group="audit")) == ["later"]


async def test_messages_in_flight_survive_the_expiry_of_their_events(harness: Harness) -> None:
    """Deliveries and out-of-order acknowledgements are kept over expiry, crash, expiry and restart."""
    await expire(harness, 2)
    await harness.send("a", "b", "c")
    first = await harness.receive(seconds=1000)
    await harness.deliveries.acknowledge(TOPIC, GROUP, [first[1].receipt_handle])
    await harness.store.retention.clean()
    assert harness.store.status().min_offset > 0
    crashed = await harness.crash()
    await crashed.advance(999)
    assert await crashed.receive() == []
    await crashed.advance(1)
    again = await crashed.receive()
    assert [(message.record.body, message.attempt) for message in again] == [(b"a", 2), (b"c", 2)]
    again_after = await crashed.restart()
    await again_after.advance(60)
    assert [message.attempt for message in await again_after.receive()] == [3, 3]


async def test_the_log_is_kept_if_a_snapshot_cannot_be_written(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without space for a snapshot, segments that a replay needs are kept; with space again they are deleted."""
    await expire(harness, 2)
    await harness.send("a")
    begin = harness.store.queue_range(JOURNAL_TOPIC, 0)[1]
    await harness.receive()
    await harness.store.wait_stored(harness.store.positions[0])
    needed = harness.store.physical_offset_at(JOURNAL_TOPIC, 0, begin)
    assert needed is not None

    def full(*_: object, **__: object) -> None:
        raise StoreFullError("not a byte left")

    monkeypatch.setattr(Journal, "append", full)
    await expire(harness, 3)
    assert harness.store.status().min_offset <= needed < harness.store.status().min_offset + SEGMENT
    monkeypatch.undo()
    await harness.store.retention.clean()
    assert harness.store.status().min_offset > needed


async def test_consumers_continue_while_a_full_disk_refuses_messages(harness: Harness) -> None:
    """Above the watermark receive, acknowledge, change and dead letters work; a send does not."""
    await harness.send("a", "b", "c")
    harness.store.running.set(RunningFlags.DISK_FULL, "the disk is full")
    with pytest.raises(StoreFullError):
        await harness.send("d")
    a, b, c = await harness.receive()
    assert await harness.deliveries.acknowledge(TOPIC, GROUP, [a.receipt_handle]) == [None]
    await harness.deliveries.change_invisible(TOPIC, GROUP, b.receipt_handle, 0)
    await harness.deliveries.forward_to_dead_letter_queue(TOPIC, GROUP, c.receipt_handle)
    assert bodies(await harness.receive()) == ["b"]
    assert harness.store.queue_range(f"%DLQ%{GROUP}", 0) == (0, 1)


async def test_a_broker_on_a_full_disk_stays_ready(tmp_path: Path) -> None:
    """From the start, sends are refused with the reason; the readiness page, status and permission report it, too."""
    store = replace(StoreConfig.tiny(tmp_path / "store"), disk_full_ratio=1e-9, clean_forcibly=False)
    async with in_process_broker(tmp_path / "store", store=store) as broker:
        request = v2.SendMessageRequest(messages=[message()])
        response = await broker.messaging.SendMessage(request, metadata=METADATA, timeout=60)
        assert response.status.code == v2.Code.INTERNAL_SERVER_ERROR
        assert "store.disk_full_ratio" in response.status.message

        def fetch(path: str) -> tuple[int, str]:
            with urllib.request.urlopen(f"http://{broker.metrics}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()

        code, text = await asyncio.to_thread(fetch, "/readyz")
        assert code == 200
        assert text.startswith("ready; the store refuses messages: no space left on the disk")
        _, metrics = await asyncio.to_thread(fetch, "/metrics")
        values = {line.split("{")[0]: line.split(" ")[-1] for line in metrics.splitlines() if "{" in line}
        assert (values["rocketmq_broker_permission"], values["aerobee_store_running_flags"]) == ("4.0", "16.0")
        status = await broker.administration.GetBrokerStatus(
            admin_v1.GetBrokerStatusRequest(), metadata=METADATA, timeout=10
        )
        assert (status.store_state.running, status.store_state.readable, status.store_state.writable) == (
            True,
            True,
            False,
        )
        assert "store.disk_full_ratio" in status.store_state.reason
