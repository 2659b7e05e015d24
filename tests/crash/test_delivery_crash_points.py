"""Deliveries across a power cut or `kill -9` at each disk operation, with resets, priorities and lite topics."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.lite import Action, Change
from aerobee_broker.delivery.receive.receive_plan import ReceiveRequest
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType, light_topic_name
from aerobee_store import MessageStore
from aerobee_store.config import FlushMode, StoreConfig
from aerobee_store.records.message_fields import PRIORITY_PROPERTY
from aerobee_store.records.properties import INNER_MULTI_DISPATCH, UNIQ_KEY
from aerobee_store.records.record import Message
from aerobee_store.testing import ManualClock, MemoryFileSystem, Operation
from tests.support.saved_tables import saved

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("silent_log")]

CYCLES = max(int(os.environ.get("AEROBEE_CRASH_CYCLES", "0")) // 20, 1)
STRIDE = 4 if CYCLES == 1 else 1  # every operation in the long run, every fourth in the short one
GROUP = "g"
ORDERS, URGENT, ROOMS = "orders", "urgent", "rooms"
ROOM = light_topic_name(ROOMS, "a")
QUEUES = {ORDERS: ORDERS, URGENT: URGENT, ROOM: ROOMS}
"""Queue -> the topic from which its messages are received."""


class Harness:
    """A store on an in-memory disk, with tables and deliveries."""

    def __init__(self, directory: Path, disk: MemoryFileSystem | None, clock: ManualClock, flush: FlushMode) -> None:
        self.clock = clock
        self.disk = disk or MemoryFileSystem(clock=clock)
        (directory / "config").mkdir(parents=True, exist_ok=True)  # the tables check the real directory
        config = BrokerConfig.tiny(
            directory,
            store=StoreConfig.tiny(directory, flush=flush),
            delivery=DeliveryConfig(snapshot_event_count=7),
        )
        self.store = MessageStore.open(config.store, file_system=self.disk, clock=clock)
        if not self.disk.exists(directory / "config"):
            self.disk.make_directory(directory / "config")
        self.tables = Tables.load(Settings(config), clock, self.disk, self.store.in_disk_thread)
        self.deliveries = Deliveries(self.store, self.tables, clock, Settings(config))
        self._services: list[asyncio.Task[None]] = []

    async def start(self) -> Harness:
        topics = (
            TopicConfig.of_type(ORDERS, queue_count=1),
            TopicConfig.of_type(URGENT, TopicMessageType.PRIORITY, queue_count=1),
            TopicConfig.of_type(ROOMS, TopicMessageType.LITE, queue_count=1),
        )
        for topic in topics:
            if topic.name not in self.tables.topics:
                saved(self.tables.topics).create(topic)
        if GROUP not in self.tables.groups:
            saved(self.tables.groups).create(GroupConfig(name=GROUP))
        self.deliveries.open()
        loop = asyncio.get_running_loop()
        self._services = [loop.create_task(service.run()) for service in (self.store, self.deliveries)]
        await asyncio.sleep(0)
        await self.deliveries.lite.subscribe(ROOMS, GROUP, "c", Change(Action.ADD, frozenset("a")))
        return self

    async def abandon(self) -> None:
        for service in self._services:
            service.cancel()
        for service in self._services:
            with suppress(asyncio.CancelledError):
                await service
        with suppress(Exception):
            self.store.close()

    async def receive(self, topic: str, count: int = 32) -> list[DeliveredMessage]:
        return await self.deliveries.receive(
            ReceiveRequest(topic=topic, group=GROUP, client_id="c", count=count, invisible_ms=30_000, wait_seconds=0)
        )


@dataclass(frozen=True)
class Said:
    """An acknowledgement of one message, or a reset: its queue and offset."""

    kind: str
    queue: str
    offset: int


class Run:
    """A workload, and the disks that a crash before its operations would leave."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.said: list[Said] = []  # requests in the order sent
        self.answered: set[int] = set()  # indexes in `said`
        self.sent: dict[str, int] = dict.fromkeys(QUEUES, 0)
        self.found: list[tuple[MemoryFileSystem, list[Said], set[int], dict[str, int]]] = []

    def watch(self, *, power_cut: bool) -> None:
        disk = self.harness.disk
        number = 0

        def look(operation: Operation) -> None:
            nonlocal number
            number += 1
            if number % STRIDE:
                return
            for seed in range(CYCLES) if power_cut else (0,):
                answered, sent = set(self.answered), dict(self.sent)  # before the crash: later answers may be missing
                found = disk.crash(seed) if power_cut else disk.kill()
                self.found.append((found, list(self.said), answered, sent))

        disk.before_operation = look

    async def send(self, queue: str, count: int) -> None:
        messages = []
        for number in range(self.sent[queue], self.sent[queue] + count):
            properties = {UNIQ_KEY: f"{queue}-{number}"}
            if queue == URGENT:
                properties[PRIORITY_PROPERTY] = str(number % 3)
            if queue == ROOM:
                properties[INNER_MULTI_DISPATCH] = ROOM
            messages.append(Message(QUEUES[queue], 0, f"{number}".encode(), properties))
        await self.harness.store.wait_stored(self.harness.store.append(messages)[-1].end)
        self.sent[queue] += count

    async def acknowledge(self, queue: str, messages: list[DeliveredMessage]) -> None:
        begin = len(self.said)
        self.said += [Said("acknowledge", queue, each.record.queue_offset) for each in messages]
        handles = [each.receipt_handle for each in messages]
        results = await self.harness.deliveries.acknowledge(QUEUES[queue], GROUP, handles)
        assert results == [None] * len(messages)
        self.answered.update(range(begin, begin + len(messages)))

    async def reset(self, queue: str, offset: int) -> None:
        self.said.append(Said("reset", queue, offset))
        number = len(self.said) - 1
        await self.harness.deliveries.reset(queue, GROUP, {0: offset})
        self.answered.add(number)


async def workload(run: Run) -> None:
    """Acknowledge, reset and continue each queue, with journal snapshots and saves of the tables in between."""
    harness = run.harness
    for round_number in range(2):
        for queue, topic in QUEUES.items():
            await run.send(queue, 5)
            messages = await harness.receive(topic, 4)
            await run.acknowledge(queue, messages[1:])
            await run.reset(queue, 1 + round_number)
            await run.acknowledge(queue, await harness.receive(topic, 2))
        await harness.tables.save()
    await run.reset(ORDERS, 8)
    await run.acknowledge(ORDERS, await harness.receive(ORDERS, 1))
    await harness.deliveries.close()
    await harness.tables.save()


@pytest.mark.parametrize(("flush", "power_cut"), [("sync", True), ("sync", False), ("async", False)])
async def test_at_every_operation(tmp_path: Path, flush: FlushMode, power_cut: bool) -> None:
    """Acknowledged messages are not delivered again, and all others are.

    A reset takes effect once it is answered, and so do the acknowledgements after it.
    """
    run = Run(await Harness(tmp_path / "store", None, ManualClock(), flush).start())
    await run.harness.tables.save()
    run.watch(power_cut=power_cut)
    await workload(run)
    run.harness.disk.before_operation = None
    await run.harness.abandon()
    assert len(run.found) > 80 / STRIDE
    for disk, said, answered, sent in run.found:
        await check(tmp_path / "store", disk, run.harness.clock, flush, said, answered, sent)


async def test_a_saved_snapshot_survives_a_power_cut(tmp_path: Path) -> None:
    """The replay begins at the snapshot that the saved table names, so it must be durable, with async flush too."""
    run = Run(await Harness(tmp_path / "store", None, ManualClock(), "async").start())
    harness = run.harness
    await run.send(ORDERS, 5)
    messages = await harness.receive(ORDERS, 5)
    await run.acknowledge(ORDERS, messages[1:])
    await harness.store.wait_stored(harness.store.positions[0], durable=True)
    await harness.deliveries.close()
    await harness.tables.save()
    disks = [harness.disk.crash(seed) for seed in range(10)]
    await harness.abandon()
    for disk in disks:
        await check(tmp_path / "store", disk, harness.clock, "async", run.said, run.answered, run.sent)


async def check(
    directory: Path,
    disk: MemoryFileSystem,
    clock: ManualClock,
    flush: FlushMode,
    said: list[Said],
    answered: set[int],
    sent: dict[str, int],
) -> None:
    """Start on the disk, let messages in flight expire, and receive everything that is left."""
    clock = ManualClock(now_ms=clock.now_ms() + 60_000)
    harness = await Harness(directory, disk, clock, flush).start()
    for queue, topic in QUEUES.items():
        delivered: set[int] = set()
        while messages := await harness.receive(topic):
            delivered.update(each.record.queue_offset for each in messages)
        for offset in range(sent[queue]):
            own = [(number, each) for number, each in enumerate(said) if each.queue == queue]
            finishing = [
                number
                for number, each in own
                if (each.kind == "acknowledge" and each.offset == offset)
                or (each.kind == "reset" and each.offset > offset)
            ]
            opening = [number for number, each in own if each.kind == "reset" and each.offset <= offset]
            last_opening = max((number for number in opening if number in answered), default=-1)
            if not any(number > last_opening for number in finishing):
                assert offset in delivered, (queue, offset, said)
            last_finishing = max((number for number in finishing if number in answered), default=None)
            if last_finishing is not None and not any(number > last_finishing for number in opening):
                assert offset not in delivered, (queue, offset, said)
    await harness.abandon()
