"""Delayed messages in a store that RocketMQ wrote, by fixed level or by timer, are delivered when due."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config.timer import TimerConfig
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_store import MessageStore, StoreConfig
from aerobee_store.queues.consume_queue import UNIT
from aerobee_store.queues.record_units import ROCKETMQ_LEVELS
from aerobee_store.records.delay_levels import SCHEDULE_TOPIC
from aerobee_store.records.record import Message
from aerobee_store.tables.java_json import loads
from aerobee_store.testing import ManualClock
from aerobee_store.tools.verify import verify
from tests.golden.test_golden_store import config_of
from tests.support import golden
from tests.support.golden import GoldenCase, GoldenMessage


class Delays:
    """Delay levels and timer on a golden store, under a clock that only the test moves."""

    def __init__(self, case: GoldenCase, clock: ManualClock) -> None:
        self.clock = clock
        config = replace(config_of(case), disk_headroom=0)
        self.store = MessageStore.open(config, clock=clock)
        self.levels = LevelDelay(self.store, clock, LoopShare())
        self.timer = Timer(self.store, clock, TimerConfig())
        self.levels.open()
        self.timer.open()

    async def move_to(self, now_ms: int) -> None:
        """Set the clock, and wait until everything due is delivered."""
        self.clock.advance((now_ms - self.clock.now_ms()) / 1000)
        self.levels.wake()
        self.timer.wake()
        for _ in range(30_000):
            if self.is_done(now_ms):
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"what is due at {now_ms} is not delivered after 30 s or more")

    def is_done(self, now_ms: int) -> bool:
        """Return whether levels and timer have processed this time and their deliveries are dispatched."""
        wrote, _, _, dispatched = self.store.positions
        due_ms = self.timer.next_look_ms
        timer_is_done = self.timer.enqueue_lag == 0 and (due_ms is None or due_ms > now_ms)
        return self.levels.looked_ms == now_ms and timer_is_done and wrote == dispatched

    def has(self, message: GoldenMessage) -> bool:
        """Return whether a copy of the message is in its real queue."""
        topic, queue_id = message.properties["REAL_TOPIC"], int(message.properties["REAL_QID"])
        records = self.store.read(topic, queue_id, 0, max_count=1000).records
        return any(
            (record.born_timestamp, record.body_crc) == (message.born_timestamp, message.body_crc) for record in records
        )


@asynccontextmanager
async def delays(case: GoldenCase, clock: ManualClock) -> AsyncIterator[Delays]:
    harness = Delays(case, clock)
    services = (harness.store, harness.levels, harness.timer)
    tasks = [asyncio.create_task(service.run()) for service in services]
    await asyncio.sleep(0)
    yield harness
    await harness.timer.close()
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    harness.store.close()


@pytest.fixture
def case(tmp_path: Path) -> GoldenCase:
    return golden.load("kinds", tmp_path)


def offsets_file(case: GoldenCase) -> Any:
    return loads((case.store / "config" / "delayOffset.json").read_bytes())


async def test_every_level_is_delivered_in_its_time(case: GoldenCase) -> None:
    """No delivery is a millisecond early, each reaches its real topic and queue, and the saved offsets count them."""
    waiting: list[tuple[int, GoldenMessage]] = []
    begin = max(message.store_timestamp for message in case.messages)
    latest = dict.fromkeys(range(18), 0)  # a queue is in order: a message due before its predecessor waits for it
    for message in case.messages:
        if message.topic == SCHEDULE_TOPIC:
            due_ms = ROCKETMQ_LEVELS.delivery_time(int(message.properties["DELAY"]), message.store_timestamp)
            latest[message.queue_id] = max(latest[message.queue_id], due_ms)
            waiting.append((latest[message.queue_id], message))
    assert min(latest.values()) > 0, "every level has one"
    count = len(waiting)
    waiting.sort(key=lambda item: item[0])
    async with delays(case, ManualClock(begin)) as harness:
        await harness.move_to(begin)
        assert [harness.has(message) for _, message in waiting] == [due_ms <= begin for due_ms, _ in waiting]
        waiting = [(due_ms, message) for due_ms, message in waiting if due_ms > begin]
        assert len(waiting) > 15
        for due_ms, together in groupby(waiting, key=lambda item: item[0]):
            messages = [message for _, message in together]
            await harness.move_to(due_ms - 1)
            assert not any(harness.has(message) for message in messages)
            await harness.move_to(due_ms)
            assert all(harness.has(message) for message in messages)
        assert (harness.levels.delivered, harness.levels.waiting, harness.levels.lost) == (count, 0, 0)
        copies = harness.store.read("OrderPaid", 2, 0, max_count=1000).records
        assert any(copy.properties.get("WAIT") == "false" for copy in copies)
        assert any("DELAY" in copy.properties for copy in copies), "getDelayTimeLevel() of clients"
    table = offsets_file(case)["offsetTable"]
    assert {int(level) for level in table} == set(range(1, 19))
    assert sum(table.values()) == count


async def test_other_levels(tmp_path: Path) -> None:
    """With configured levels, the units hold the due times before and after a recovery, and `verify` accepts them."""
    config = replace(StoreConfig.tiny(tmp_path), delay_levels_seconds=(3, 90_000))
    clock = ManualClock(1_700_000_000_000)
    with MessageStore.open(config, clock=clock) as store:
        levels = LevelDelay(store, clock, LoopShare())
        messages = [levels.delayed(Message("orders", 2, b"m"), level) for level in (1, 2, 9)]
        assert [message.queue_id for message in messages] == [0, 1, 1]
        store.append(messages)
    wanted = [clock.now_ms() + 3000], [clock.now_ms() + 90_000_000] * 2
    assert (_unit_codes(tmp_path, 0), _unit_codes(tmp_path, 1)) == wanted
    assert not verify(tmp_path).findings
    shutil.rmtree(tmp_path / "consumequeue")
    MessageStore.open(config, clock=clock).close()
    assert (_unit_codes(tmp_path, 0), _unit_codes(tmp_path, 1)) == wanted


def _unit_codes(directory: Path, queue_id: int) -> list[int]:
    data = (directory / "consumequeue" / SCHEDULE_TOPIC / str(queue_id) / f"{0:020}").read_bytes()
    return [code for _, size, code in UNIT.iter_unpack(data) if size]


async def test_what_the_offsets_name_as_delivered_does_not_come_again(case: GoldenCase) -> None:
    """A restart continues at the offsets in the file, and keeps the file's unknown fields."""
    config = case.store / "config"
    config.mkdir(exist_ok=True)
    done = {str(level): 1 for level in range(1, 19) if level != 3}
    content = {"dataVersion": {"counter": 4, "stateVersion": 0, "timestamp": 1}, "offsetTable": done, "later": 7}
    (config / "delayOffset.json").write_text(json.dumps(content))
    last = max(message.store_timestamp for message in case.messages)
    async with delays(case, ManualClock(last + 86_400_000)) as harness:
        await harness.move_to(last + 86_400_000)
        third = next(m for m in case.messages if m.topic == SCHEDULE_TOPIC and m.queue_id == 2)
        others = [m for m in case.messages if m.topic == SCHEDULE_TOPIC and m.queue_id != 2 and not m.queue_offset]
        assert harness.has(third)
        assert not any(harness.has(message) for message in others)
    assert offsets_file(case)["later"] == 7
    assert offsets_file(case)["offsetTable"]["3"] == sum(
        m.queue_id == 2 for m in case.messages if "DELAY" in m.properties
    )


async def test_timer_message_of_rocketmq(case: GoldenCase) -> None:
    """A message with a delay of 90 s is delivered at most 1 s late and never early; a restart does not repeat it."""
    [message] = [message for message in case.messages if message.topic == "rmq_sys_wheel_timer"]
    asked_ms = message.store_timestamp + 90_000
    async with delays(case, ManualClock(message.store_timestamp)) as harness:
        await harness.move_to(asked_ms - 1)
        assert not harness.has(message)
        await harness.move_to(asked_ms + 1000)
        assert harness.has(message)
    async with delays(case, ManualClock(asked_ms + 2000)) as harness:
        await harness.move_to(asked_ms + 60_000)
        copies = harness.store.query(message.properties["REAL_TOPIC"], message.properties["UNIQ_KEY"])
        assert len(copies) == 1
