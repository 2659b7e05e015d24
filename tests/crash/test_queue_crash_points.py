"""A power cut at every disk operation, in a store with light queues and extended units."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.testing import CHANGES, ManualClock, MemoryFileSystem, Operation
from tests.support.stored_messages import DIRECTORY

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("silent_log")]

CYCLES = int(os.environ.get("AEROBEE_CRASH_CYCLES", "0"))
SEEDS = range(max(CYCLES // 20, 1))
STEP = 1 if CYCLES else 3
"""Every operation in the long run, every third in the short one."""

CONFIG = replace(
    StoreConfig.tiny(DIRECTORY),
    queue_extensions=True,
    queue_extension_file_size=256,
    queue_file_size=12 * 20,
    multi_dispatch=True,
)
NAMES = ("", "%LMQ%room", "%LMQ%room,%LMQ%hall", "audit", "%LMQ%hall,audit")
TAGS = ("red", "green", "")


QUEUES = ("orders", "%LMQ%room", "%LMQ%hall", "audit")


@dataclass
class Harness:
    """The messages sent to each queue, by queue offset, and the number of messages known to be durable."""

    disk: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    clock: ManualClock = field(default_factory=ManualClock)
    queues: dict[str, dict[int, int]] = field(default_factory=lambda: {topic: {} for topic in QUEUES})
    next_number: int = 0
    durable: int = 0

    def open(self) -> MessageStore:
        return MessageStore.open(CONFIG, file_system=self.disk, clock=self.clock)

    def send(self, store: MessageStore, count: int) -> None:
        """Append and flush messages: they are durable on return."""
        messages = []
        for _ in range(count):
            number, self.next_number = self.next_number, self.next_number + 1
            messages.append(message(number))
            for topic in queues_of(number):
                queue = self.queues[topic]
                queue[max(queue, default=-1) + 1] = number
        store.append(messages)
        store.flush()
        self.durable = self.next_number

    def live(self) -> None:
        """Send three batches, close in order, and send two more."""
        with self.open() as store:
            for _ in range(3):
                self.send(store, 9)
                self.clock.advance(1)
        with self.open() as store:
            for _ in range(2):
                self.send(store, 6)


def message(number: int) -> Message:
    properties = {"INNER_MULTI_DISPATCH": names} if (names := NAMES[number % len(NAMES)]) else {}
    if tag := TAGS[number % len(TAGS)]:
        properties["TAGS"] = tag
    return Message("orders", 0, b"%d" % number, properties)


def queues_of(number: int) -> list[str]:
    return ["orders", *(name for name in NAMES[number % len(NAMES)].split(",") if name)]


def check(store: MessageStore, harness: Harness) -> None:
    """Each queue has exactly the logged messages sent to it, at their offsets, and tags find them.

    A message that is lost is lost in all its queues.
    """
    # A power cut may take the first unsynced messages and leave later ones; a queue then begins with those.
    begin = {topic: store.queue_range(topic, 0)[0] for topic in harness.queues}
    held = {int(record.body) for record in store.read("orders", 0, begin["orders"], max_count=1000).records}
    assert held.issuperset(number for number in harness.queues["orders"].values() if number < harness.durable)
    for topic, queue in harness.queues.items():
        wanted = harness.queues[topic] = {offset: number for offset, number in queue.items() if number in held}
        records = store.read(topic, 0, begin[topic], max_count=1000).records
        assert {record.queue_offset: int(record.body) for record in records} == wanted, topic
        assert store.queue_range(topic, 0)[1] == max(wanted, default=-1) + 1, topic
        for tag in ("red", "green"):
            tagged = store.read(topic, 0, begin[topic], max_count=1000, tags=frozenset({tag})).records
            assert [int(record.body) for record in tagged] == [
                number for number in wanted.values() if TAGS[number % len(TAGS)] == tag
            ], topic


def power_cuts(seed: int, together_min: int | None) -> Iterator[Harness]:
    """Return the crashed disk and the durable messages at each operation of one run, or at every third."""
    harness, taken = Harness(MemoryFileSystem(together_min=together_min)), []

    def take(operation: Operation) -> None:
        if operation.name in CHANGES and operation.number % STEP == seed % STEP:
            disk = harness.disk.crash(seed * 10_000 + operation.number)
            queues = {topic: dict(queue) for topic, queue in harness.queues.items()}
            clock = ManualClock(harness.clock.now_ms())
            taken.append(Harness(disk, clock, queues, harness.next_number, harness.durable))

    harness.disk.before_operation = take
    harness.live()
    assert len(taken) > 60
    return iter(taken)


@pytest.mark.parametrize("together_min", [None, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_at_every_operation(seed: int, together_min: int | None) -> None:
    """No durable message is missing from its queues, none is there twice, and all queues continue without a gap.

    Files are synced one by one, and all together.
    """
    for number, harness in enumerate(power_cuts(seed, together_min)):
        try:
            with harness.open() as store:
                check(store, harness)
                harness.send(store, 7)
                check(store, harness)
            with MessageStore.open(CONFIG, file_system=harness.disk, clock=harness.clock, whole_log=True) as store:
                assert (store.recovery.units_added, store.recovery.units_corrected) == (0, 0)
                check(store, harness)
        except BaseException as problem:
            problem.add_note(f"seed {seed}, power cut {number}")
            raise
