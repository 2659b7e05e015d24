"""A store on a crashing disk, against lists of the messages appended, promised to stay, and present."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from aerobee_store import Appended, MessageStore, RecordBatch, StoreBusyError, StoreConfig
from aerobee_store.config import FlushMode, WriteMode
from aerobee_store.records.record import BLANK_SIZE_MIN, Draft
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, TAG_NAMES, Sender, Sent, compare, read_all, reopen

EXAMPLES = max(8 * int(os.environ.get("AEROBEE_CRASH_CYCLES", "0")), 40)
TOPICS = ("orders", "bills")
# Bodies much smaller than a segment of 16 KiB, of a few sectors, and so large that three fill a segment.
SIZES = st.one_of(st.integers(8, 60), st.integers(300, 1500), st.integers(4000, 8000))


class StoreMachine(RuleBasedStateMachine):
    """`held` may be in the store. A power cut must keep `durable`, a killed process must keep `written`."""

    flush_mode: FlushMode = "sync"
    write_mode: WriteMode = "gathered"

    # Queue files of one sector and of many: units can be lost before surviving ones only within one file.
    @initialize(units=st.sampled_from([20, 100, 500]), slots=st.sampled_from([3, 50]), keys=st.sampled_from([40, 300]))
    def begin(self, units: int, slots: int, keys: int) -> None:
        self.clock = ManualClock()
        self.disk = MemoryFileSystem(clock=self.clock)
        self.config = replace(
            StoreConfig.tiny(DIRECTORY, flush=self.flush_mode),
            queue_file_size=units * 20,
            index_slot_count=slots,
            delete_when_hours=tuple(range(24)),
            index_entry_count=keys,
            write_mode=self.write_mode,
            pool_buffer_count=2,
            segments_ahead=2,
            pool_fast_failure=keys == 300,
        )
        self.runner = asyncio.Runner()
        self.sender = Sender()
        self.held: list[Sent] = []
        self.durable: list[Sent] = []
        self.written: list[Sent] = []
        self.store = MessageStore.open(self.config, file_system=self.disk, clock=self.clock)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.runner.close()

    # --- writing

    @rule(size=SIZES, topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 1), seconds=st.floats(0, 5))
    def append_one(self, size: int, topic: str, queue_id: int, seconds: float) -> None:
        self.clock.advance(seconds)
        self.held += self.sender.append(self.store, [self.sender.message(size, topic, queue_id)])

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=30), topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 1))
    def append_many(self, sizes: list[int], topic: str, queue_id: int) -> None:
        self.held += self.sender.append(self.store, [self.sender.message(size, topic, queue_id) for size in sizes])

    @rule(sizes=st.lists(st.integers(8, 600), min_size=2, max_size=15))
    def append_split_batch(self, sizes: list[int]) -> None:
        sent = self.sender.append(self.store, [self.sender.message(size) for size in sizes], split_batch=True)
        assert len({item.physical_offset // self.config.segment_size for item in sent}) == 1, "a batch stays together"
        self.held += sent

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=25), topic=st.sampled_from(TOPICS))
    def append_records(self, sizes: list[int], topic: str) -> None:
        messages = [self.sender.message(size, topic, 1) for size in sizes]
        drafts = [Draft(message, store_host=("127.0.0.1", 1), property_crc=True) for message in messages]
        position = self.store.positions[0]
        batch = RecordBatch.parse(
            b"".join(draft.encode_unplaced() for draft in drafts), base_physical_offset=None, placed=False
        )
        appended = self.store.append_records(topic, 1, batch)
        assert appended.count == len(messages)
        places = []
        for number, draft in enumerate(drafts):
            left = self.config.segment_size - position % self.config.segment_size
            if draft.size + BLANK_SIZE_MIN > left:
                position += left
            queue_offset = appended.first_queue_offset + number
            places.append(Appended(queue_offset, position, draft.size, appended.store_timestamp))
            position += draft.size
        assert appended.end == position
        self.held += self.sender.note(messages, places)

    @rule(size=SIZES)
    def append_half_message(self, size: int) -> None:
        """A prepared message is in the log and the index, and in no queue."""
        _, before = self.store.queue_range("half", 0)
        message = self.sender.message(size, "half")
        message.sys_flag = 0x4
        self.store.append([message])
        assert self.store.queue_range("half", 0)[1] == before == 0

    @rule(topic=st.sampled_from(TOPICS))
    def roll(self, topic: str) -> None:
        """Append until a new segment begins."""
        begun = self.store.status().segments
        while self.store.status().segments == begun:
            self.held += self.sender.append(self.store, [self.sender.message(7900, topic)])

    @rule()
    def dispatch(self) -> None:
        """Commit and dispatch like a tool without services: queues and index follow, and nothing is made durable."""
        if self.flush_mode == "async":
            self.store.commit()
            self.store.dispatch()
            self.written = list(self.held)
            assert self.store.positions[3] == self.store.positions[0]

    @rule(days=st.sampled_from([1, 4]))
    def retain(self, days: int) -> None:
        """Remove old segments that are full and durable; the rest stays complete."""
        self.clock.advance(days * 86_400)
        self.runner.run(self.store.retention.clean())
        begin = self.store.status().min_offset
        for messages in (self.held, self.durable, self.written):
            messages[:] = [sent for sent in messages if sent.physical_offset >= begin]

    @rule()
    def delete_topic(self) -> None:
        """The topic's messages are gone for good, and all others are durable; the topic may be created again."""
        self.store.delete_topic("bills")
        self.held = [sent for sent in self.held if sent.topic != "bills"]
        if self.store.positions[0] == self.store.positions[2]:
            self.durable, self.written = list(self.held), list(self.held)
        else:  # the topic had no messages, so nothing changed
            assert not [sent for sent in self.durable if sent.topic == "bills"]

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.durable, self.written = list(self.held), list(self.held)
        assert self.store.positions[0] == self.store.positions[3], "all is dispatched"

    @rule(sizes=st.lists(SIZES, max_size=5), durable=st.booleans())
    def serve(self, sizes: list[int], durable: bool) -> None:
        """Append while the services run, and wait for one kind of promise."""

        async def main() -> None:
            services = asyncio.create_task(self.store.run())
            await asyncio.sleep(0)
            messages = [self.sender.message(size, "bills", 0) for size in sizes]
            async with asyncio.timeout(60):
                try:
                    self.held += self.sender.append(self.store, messages)
                except StoreBusyError:
                    assert self.write_mode == "pool"
                    await self.store.wait_stored(self.store.positions[0], durable=False)
                    self.held += self.sender.append(self.store, messages)
                await self.store.wait_stored(self.store.positions[0], durable=durable)
            services.cancel()
            with suppress(asyncio.CancelledError):
                await services

        self.runner.run(main())
        self.written = list(self.held)
        if durable:
            self.durable = list(self.held)

    # --- reading

    @rule(
        topic=st.sampled_from(TOPICS),
        queue_id=st.integers(0, 1),
        offset=st.integers(0, 60),
        count=st.integers(1, 40),
        size=st.integers(1, 20_000),
        tags=st.none() | st.frozensets(st.sampled_from(TAG_NAMES[:2]), min_size=1),
    )
    def read(self, topic: str, queue_id: int, offset: int, count: int, size: int, tags: frozenset[str] | None) -> None:
        low, high = self.store.queue_range(topic, queue_id)
        result = self.store.read(topic, queue_id, offset, max_count=count, max_bytes=size, tags=tags)
        if not low <= offset < high:
            assert not result.records
            return
        there = {record.queue_offset: record for record in read_all(self.store, topic, queue_id).values()}
        wanted = [there[n] for n in range(offset, result.next_offset) if n in there]
        if tags is not None:
            wanted = [record for record in wanted if record.tag in tags]
        assert [record.queue_offset for record in result.records] == [record.queue_offset for record in wanted]
        assert len(result.records) <= count
        assert len(result.records) <= 1 or sum(record.size for record in result.records) <= size
        assert offset < result.next_offset <= high

    @rule()
    def look_at_everything(self) -> None:
        dispatched = self.store.positions[3]
        compare(self.store, self.held, [sent for sent in self.held if sent.end <= dispatched])

    # --- restarts

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self.store = reopen(self.disk, self.config, self.clock)
        self.settle(self.held)

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        """Cut the power. With sync flush, every message that consumers could see is durable."""
        seen = [sent for sent in self.held if sent.end <= self.store.positions[3]]
        if self.flush_mode == "sync":
            assert {sent.number for sent in seen} <= {sent.number for sent in self.durable}
        disk = self.disk.crash(seed)
        self.abandon()
        self.disk = disk
        self.store = reopen(self.disk, self.config, self.clock)
        self.settle(self.durable)

    @rule()
    def kill(self) -> None:
        """Kill the process without a power cut: everything written stays."""
        disk = self.disk.kill()
        self.abandon()
        self.disk = disk
        self.store = reopen(self.disk, self.config, self.clock)
        self.settle(self.written)

    @rule(seed=st.integers(0, 2**32), again=st.integers(0, 2**32), at=st.integers(1, 40))
    def crash_during_recovery(self, seed: int, again: int, at: int) -> None:
        """Cut the power, and cut it again while the store opens."""
        disk = self.disk.crash(seed)
        self.abandon()
        first = disk.operations
        snapshots: list[MemoryFileSystem] = []

        def before(_: object) -> None:
            if disk.operations == first + at:
                snapshots.append(disk.crash(again))

        disk.before_operation = before
        MessageStore.open(self.config, file_system=disk, clock=self.clock).close()
        disk.before_operation = None
        self.disk = snapshots[0] if snapshots else disk
        self.store = reopen(self.disk, self.config, self.clock)
        self.settle(self.durable)

    def settle(self, certain: list[Sent]) -> None:
        """Compare after a restart: the messages found now are the only survivors, and must stay."""
        self.held = compare(self.store, self.held, certain)
        self.durable, self.written = list(self.held), list(self.held)

    def abandon(self) -> None:
        """Release the threads of a store after a power cut."""
        with suppress(Exception):
            self.store.close()

    @invariant()
    def positions_are_in_order(self) -> None:
        if hasattr(self, "store"):
            wrote, committed, flushed, dispatched = self.store.positions
            assert wrote >= committed >= flushed
            assert dispatched <= (flushed if self.flush_mode == "sync" else committed)


class AsyncFlushStoreMachine(StoreMachine):
    flush_mode = "async"


class MappedStoreMachine(StoreMachine):
    write_mode = "mapped"


class PoolStoreMachine(StoreMachine):
    write_mode = "pool"


class AsyncFlushPoolStoreMachine(PoolStoreMachine):
    flush_mode = "async"


@pytest.mark.crash
@pytest.mark.parametrize(
    ("machine", "share"),
    [
        (StoreMachine, 1),
        (AsyncFlushStoreMachine, 1),
        (MappedStoreMachine, 4),
        (PoolStoreMachine, 4),
        (AsyncFlushPoolStoreMachine, 4),
    ],
)
def test_a_store_holds_what_the_lists_say(machine: type[StoreMachine], share: int) -> None:
    """After any sequence of appends, flushes, crashes and reopenings the store equals the model."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES // share,
            stateful_step_count=25,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
