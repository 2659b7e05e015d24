"""A power cut at every disk operation while several topics at a time are deleted and written to."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.testing import CHANGES, ManualClock, MemoryFileSystem, Operation
from tests.support.disk_listener import one_at_a_time
from tests.support.stored_messages import DIRECTORY

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("silent_log")]

CYCLES = int(os.environ.get("AEROBEE_CRASH_CYCLES", "0"))
SEEDS = range(max(1, CYCLES // 10))
"""Each seed cuts the power at some 180 operations and chooses which unsynced pages are lost."""
STEP = 1 if CYCLES else 3
"""Every operation in the long run, every third in the short one."""

CONFIG = replace(
    StoreConfig.tiny(DIRECTORY),
    queue_extensions=True,
    queue_extension_file_size=256,
    queue_file_size=4 * 20,
)
LIGHT = ("%LMQ%room", "%LMQ%hall", "%LMQ%yard")
TOPICS = ("orders", "bills", *LIGHT)
"""The light queues share the messages of `orders`, and `bills` has its own."""


@dataclass
class Harness:
    """The messages sent to each topic, by queue offset, and its first offset now and after a pending deletion."""

    disk: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    sent: dict[str, dict[int, int]] = field(default_factory=lambda: {topic: {} for topic in TOPICS})
    begin: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 0))
    deleting: dict[str, int] = field(default_factory=dict)
    next_number: int = 0
    durable: int = 0

    def copy(self, disk: MemoryFileSystem) -> Harness:
        sent = {topic: dict(queue) for topic, queue in self.sent.items()}
        return Harness(disk, sent, dict(self.begin), dict(self.deleting), self.next_number, self.durable)

    def open(self, *, whole_log: bool = False) -> MessageStore:
        return MessageStore.open(CONFIG, file_system=self.disk, clock=ManualClock(), whole_log=whole_log)

    def append(self, store: MessageStore, count: int, light: tuple[str, ...] = LIGHT) -> int:
        """Append messages to `orders` with these light queues, and as many to `bills`; return the end of the last."""
        messages = []
        for _ in range(count):
            for topic, others in (("orders", light), ("bills", ())):
                number, self.next_number = self.next_number, self.next_number + 1
                properties = {"INNER_MULTI_DISPATCH": ",".join(others)} if others else {}
                messages.append(Message(topic, 0, b"%d" % number, properties))
                for name in (topic, *others):
                    self.sent[name][self.end_of(name)] = number
        return store.append(messages)[-1].end

    def end_of(self, topic: str) -> int:
        return max(max(self.sent[topic], default=-1) + 1, self.begin[topic], self.deleting.get(topic, 0))

    async def send(self, store: MessageStore, count: int, light: tuple[str, ...] = LIGHT) -> None:
        number = self.next_number + 2 * count
        await store.wait_stored(self.append(store, count, light), durable=True)
        self.durable = max(self.durable, number)

    async def delete(self, store: MessageStore, *topics: str) -> None:
        self.deleting = {topic: self.end_of(topic) for topic in topics}
        await store.delete_topics(topics)
        self.begin.update(self.deleting)
        self.deleting = {}

    async def live(self) -> None:
        """Delete topics, with and without concurrent sends, and create them again."""
        store = self.open()
        services = asyncio.create_task(store.run())
        try:
            async with asyncio.timeout(60):
                await self.send(store, 6)
                await self.delete(store, *LIGHT)
                await self.send(store, 2, LIGHT[:1])
                self.append(store, 1)  # not yet dispatched when its queues are deleted
                going = asyncio.create_task(self.delete(store, "bills", *LIGHT[:2]))
                await asyncio.sleep(0)
                await self.send(store, 2, LIGHT[1:])
                await going
                await self.send(store, 3, LIGHT[:1])
                await self.delete(store, "bills", LIGHT[0])
        finally:
            services.cancel()
            with suppress(asyncio.CancelledError):
                await services
        store.close()


def check(store: MessageStore, harness: Harness) -> None:
    """Each topic has the messages sent since its deletion, at their offsets.

    A deletion applies to all its topics or to none.
    """
    found = {}
    for topic in TOPICS:
        result = store.read(topic, 0, store.queue_range(topic, 0)[0], max_count=1000)
        found[topic] = {record.queue_offset: int(record.body) for record in result.records}
    orders = set(found["orders"].values())
    assert orders.issuperset(number for number in harness.sent["orders"].values() if number < harness.durable)
    # Any message that was not durable may be lost. A light queue loses the same messages as `orders`.
    held = orders | set(found["bills"].values())
    held |= {number for number in harness.sent["bills"].values() if number < harness.durable}
    possible = []
    for begin in (harness.begin, harness.begin | harness.deleting):
        wanted = {
            topic: {offset: number for offset, number in queue.items() if number in held and offset >= begin[topic]}
            for topic, queue in harness.sent.items()
        }
        if found == wanted:
            possible.append((begin, wanted))
    assert possible, str((found, harness.sent, harness.begin, harness.deleting, sorted(held)))
    begin, wanted = possible[-1]
    for topic in TOPICS:
        low, high = store.queue_range(topic, 0)
        assert high == (max(found[topic]) + 1 if found[topic] else low), topic
    harness.begin, harness.deleting = dict(begin), {}
    harness.sent = wanted


def power_cuts(seed: int) -> list[Harness]:
    """Return the crashed disk and the durable messages at each operation of one run, or at every third."""
    harness = Harness()
    taken: list[Harness] = []

    def take(operation: Operation) -> None:
        if operation.name in CHANGES and operation.number % STEP == seed % STEP:
            copy = harness.copy(harness.disk)
            copy.disk = harness.disk.crash(seed * 10_000 + operation.number)
            taken.append(copy)

    harness.disk.before_operation = one_at_a_time(take)
    asyncio.run(harness.live())
    assert len(taken) > 60
    return taken


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_at_every_operation(seed: int) -> None:
    """No deleted message returns, all later messages are there, and no offset is used for two messages."""
    for number, harness in enumerate(power_cuts(seed)):
        try:
            with harness.open() as store:
                check(store, harness)
                harness.append(store, 2)
                store.flush()
                harness.durable = harness.next_number
                check(store, harness)
            with harness.open(whole_log=True) as store:
                assert (store.recovery.units_added, store.recovery.units_corrected) == (0, 0)
                check(store, harness)
        except BaseException as problem:
            problem.add_note(f"seed {seed}, power cut {number}")
            raise
