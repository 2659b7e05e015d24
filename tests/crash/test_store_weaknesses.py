"""RocketMQ's known weaknesses, numbered as in our notes on its store; each test shows that this store lacks one."""

from __future__ import annotations

import asyncio
import errno
import json
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import BrokerConfig
from aerobee_broker.timer import background
from aerobee_proto import v2
from aerobee_store import (
    Appended,
    Message,
    MessageStore,
    StoreConfig,
    StoreDirectoryError,
    StoreFailedError,
    StoreLockedError,
)
from aerobee_store.errors import ConfigError
from aerobee_store.queues.consume_queue import FILLER_UNIT, UNIT, UNIT_SIZE, ConsumeQueue, QueueMisalignedError
from aerobee_store.tables.json_table import JsonTable
from aerobee_store.testing import HoleWrittenError, ManualClock, MemoryFileSystem, Operation
from tests.support.stored_messages import DIRECTORY, Sender, compare, read_all, reopen
from tests.support.timer_harness import STORE as TIMER_STORE
from tests.support.timer_harness import TimerHarness
from tests.support.transaction_harness import COMMIT, ROLLBACK, TransactionHarness

SEGMENT = DIRECTORY / "commitlog" / f"{0:020d}"
QUEUE = DIRECTORY / "consumequeue" / "orders" / "0" / f"{0:020d}"
CONFIG = replace(StoreConfig.tiny(DIRECTORY), queue_file_size=100 * UNIT_SIZE)


class Harness:
    def __init__(self, config: StoreConfig = CONFIG) -> None:
        self.config = config
        self.clock = ManualClock()
        self.disk = MemoryFileSystem(clock=self.clock)
        self.sender = Sender()

    def open(self) -> MessageStore:
        return MessageStore.open(self.config, file_system=self.disk, clock=self.clock)

    def fill(self, count: int, size: int = 100, *, close: bool = True) -> None:
        """Append messages; then close the store, or leave it as a killed process would."""
        store = self.open()
        for _ in range(count):
            self.clock.advance(0.1)
            self.sender.append(store, [self.sender.message(size)])
        store.flush()
        if close:
            store.close()
        else:
            self.disk = self.disk.kill()


def test_01_a_failed_sync_is_not_retried() -> None:
    """The first failure fails every waiter and all later appends, although the next sync would succeed."""
    harness = Harness()
    store = harness.open()

    async def main() -> None:
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        sent = harness.sender.append(store, [harness.sender.message(100)])
        harness.disk.fail_at("sync", 1, errno.EIO)
        waiters = [asyncio.create_task(store.wait_stored(sent[0].end)) for _ in range(3)]
        async with asyncio.timeout(60):
            results = await asyncio.gather(*waiters, return_exceptions=True)
            assert [type(result) for result in results] == [StoreFailedError] * 3
            with pytest.raises(StoreFailedError):
                await services

    asyncio.run(main())
    assert store.state == "failed"
    with pytest.raises(StoreFailedError):
        store.append([harness.sender.message(100)])
    with pytest.raises(StoreFailedError):
        store.flush()
    assert store.positions[2] == 0, "nothing counts as flushed"
    store.close()
    assert harness.disk.exists(DIRECTORY / "abort"), "the next opening looks at everything"


def test_02_the_checkpoint_never_runs_ahead_of_the_queues() -> None:
    """After a power cut at any time, every durable message is in its queue: the checkpoint covers only synced units."""
    harness = Harness()
    store = harness.open()
    disks = []
    harness.disk.before_operation = lambda operation: disks.append(harness.disk.crash(operation.number))
    for _ in range(8):
        harness.clock.advance(10)
        harness.sender.append(store, [harness.sender.message(300)])
        store.flush()
    for disk in disks:
        with reopen(disk, harness.config, harness.clock) as recovered:
            compare(recovered, harness.sender.sent, [])


def test_03_index_entries_before_the_recovery_start_survive() -> None:
    """An index that was never synced is rebuilt completely, although log and queues were known to be durable."""
    harness = Harness()
    harness.fill(200, close=False)
    for name in harness.disk.list(DIRECTORY / "index"):
        harness.disk.damage(DIRECTORY / "index" / name, 40, bytes(2200))
    checkpoint = bytearray(harness.disk.contents()[DIRECTORY / "checkpoint"])
    checkpoint[16:24] = bytes(8)  # like RocketMQ's: index time unknown, none of our fields
    checkpoint[40:52] = bytes(12)
    harness.disk.damage(DIRECTORY / "checkpoint", 0, bytes(checkpoint))
    with reopen(harness.disk, harness.config, harness.clock) as store:
        compare(store, harness.sender.sent, harness.sender.sent)


@pytest.mark.parametrize("position", [13, 19, 27, 35, 39, 47, 51, 63, 71, 75, 83, 90, 190, 200, -5])
def test_04_every_byte_of_a_record_is_under_a_checksum(position: int) -> None:
    """After a crash, a flipped bit in header, topic or properties is found, and the other records are kept."""
    harness = Harness()
    harness.fill(5, close=False)
    damaged = harness.sender.sent[2]
    content = harness.disk.contents()[SEGMENT]
    place = (damaged.physical_offset if position >= 0 else damaged.end) + position
    harness.disk.damage(SEGMENT, place, bytes([content[place] ^ 4]))
    with harness.open() as store:
        held = compare(store, harness.sender.sent, [])
        assert [sent.number for sent in held] == [0, 1, 3, 4]
        assert [(item.start, item.end) for item in store.recovery.damaged] == [(damaged.physical_offset, damaged.end)]


def test_05_bytes_behind_a_truncation_point_do_not_come_back() -> None:
    """A torn record cuts the log. After a new record of the same size and a crash, the dropped bytes do not return."""
    harness = Harness()
    harness.fill(6, close=False)
    first = harness.sender.sent[3].physical_offset
    # Without a magic no later record can be found again; most of the records' own bytes stay.
    for sent in harness.sender.sent[3:]:
        harness.disk.damage(SEGMENT, sent.physical_offset + 4, bytes(4))
    with harness.open() as store:
        assert store.recovery.end == first
    assert not any(harness.disk.contents()[SEGMENT][first:])
    harness.sender.sent = harness.sender.sent[:3]
    harness.fill(1, close=False)
    with harness.open() as store:
        compare(store, harness.sender.sent, harness.sender.sent)


def test_06_a_damaged_record_in_the_middle_costs_only_itself() -> None:
    """Later records, and whole segments, are kept, and the damaged range is reported."""
    harness = Harness()
    harness.fill(30, 1500, close=False)
    damaged = harness.sender.sent[4]
    harness.disk.damage(SEGMENT, damaged.physical_offset + 200, b"rotten")
    # The checkpoint covers this segment; without it everything is read.
    harness.disk.unlink(DIRECTORY / "checkpoint")
    with harness.open() as store:
        held = compare(store, harness.sender.sent, [sent for sent in harness.sender.sent if sent is not damaged])
        assert len(held) == 29
        assert len(store.recovery.damaged) == 1
        assert store.status().damaged_ranges == 1


def test_07_a_queue_that_lacks_one_record_is_completed() -> None:
    """The record that begins exactly at the end of the queues is not skipped."""
    harness = Harness()
    harness.fill(5)
    harness.disk.damage(QUEUE, 4 * UNIT_SIZE, bytes(UNIT_SIZE))
    with harness.open() as store:
        assert store.recovery.clean
        assert store.recovery.units_added == 1
        compare(store, harness.sender.sent, harness.sender.sent)


def test_08_a_unit_that_does_not_match_its_record_is_refused() -> None:
    """An offset that is already used raises an error, and no unit is written at a wrong place."""
    disk = MemoryFileSystem()
    queue = ConsumeQueue(disk, DIRECTORY / "q", "orders", 0, 100 * UNIT_SIZE)
    queue.load(after_crash=False)
    queue.put(0, UNIT.pack(0, 100, 0) + UNIT.pack(100, 100, 0))
    with pytest.raises(QueueMisalignedError):
        queue.put(1, UNIT.pack(200, 100, 0))
    assert queue.max_offset == 2
    assert queue.units(1, 1).tolist() == [(100, 100, 0)]


def test_09_a_hole_in_the_log_is_reported() -> None:
    """A missing segment is a damaged range, and the segments after it are kept."""
    harness = Harness()
    harness.fill(40, 1500, close=False)
    harness.disk.unlink(DIRECTORY / "commitlog" / f"{16384:020d}")
    harness.disk.unlink(DIRECTORY / "checkpoint")
    with harness.open() as store:
        gone = [sent for sent in harness.sender.sent if 16384 <= sent.physical_offset < 32768]
        assert gone
        held = compare(store, harness.sender.sent, [sent for sent in harness.sender.sent if sent not in gone])
        assert not set(gone) & set(held)
        assert [(item.start, item.end) for item in store.recovery.damaged] == [(16384, 32768)]


def test_10_the_lock_is_taken_before_anything_is_read() -> None:
    """A second process changes nothing, even if the store needs repair."""
    harness = Harness()
    harness.fill(5, close=False)
    harness.disk.damage(QUEUE, 4 * UNIT_SIZE, bytes(UNIT_SIZE))
    lock = harness.disk.lock(DIRECTORY / "lock", b"lock")
    before = harness.disk.contents()
    with pytest.raises(StoreLockedError, match="another process"):
        harness.open()
    assert harness.disk.contents() == before
    lock.release()
    harness.open().close()


def test_11_filler_units_are_not_offsets() -> None:
    """A queue of only fillers does not make the store treat everything below 2 GiB as dispatched."""
    harness = Harness()
    harness.fill(5)
    harness.disk.damage(QUEUE, 0, FILLER_UNIT * 5)
    with harness.open() as store:
        compare(store, harness.sender.sent, harness.sender.sent)
        harness.sender.append(store, [harness.sender.message(50)])
        store.flush()
        compare(store, harness.sender.sent, harness.sender.sent)


@pytest.mark.parametrize("closed", [True, False])
def test_12_index_entries_are_unique_and_removed_with_their_records(closed: bool) -> None:
    """Reading the log again adds no entry twice, and a truncated record leaves no entry."""
    harness = Harness()
    harness.fill(8, close=closed)
    entries = index_offsets(harness)
    with harness.open():
        pass
    assert index_offsets(harness) == entries
    last = harness.sender.sent[-1]
    harness.disk.damage(SEGMENT, last.physical_offset + 4, bytes(4))
    if not closed:
        harness.disk.write_new(DIRECTORY / "abort", b"1")
    with harness.open():
        pass
    assert index_offsets(harness) == [offset for offset in entries if offset != last.physical_offset]


def index_offsets(harness: Harness) -> list[int]:
    found = []
    for name in harness.disk.list(DIRECTORY / "index"):
        data = harness.disk.contents()[DIRECTORY / "index" / name]
        (next_entry,) = struct.unpack_from(">i", data, 36)
        found += [struct.unpack_from(">q", data, 240 + 20 * number + 4)[0] for number in range(1, next_entry)]
    return found


def test_13_no_answer_relies_on_a_replica(tmp_path: Path) -> None:
    """An answer waits for this disk's own sync.

    RocketMQ's replica settings are refused, and so is a synchronous master: `replication.acks` asks for replicas in
    addition.
    """
    conf = tmp_path / "broker.conf"
    for promise in ("brokerRole=SYNC_MASTER", "inSyncReplicas=2", "totalReplicas=3", "minInSyncReplicas=2"):
        conf.write_text(f"{promise}\n")
        with pytest.raises(ConfigError, match=r"replication\.acks"):
            BrokerConfig.load(rocketmq_conf=conf)
    conf.write_text("totalReplicas=1\nminInSyncReplicas=1\n")
    config = BrokerConfig.load(rocketmq_conf=conf)
    assert config.store.flush == "sync"
    harness = Harness()
    answered_during_sync: list[bool] = []

    async def main(store: MessageStore) -> None:
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        sent = harness.sender.append(store, [harness.sender.message(100)])
        waiter = asyncio.create_task(store.wait_stored(sent[0].end))

        def look(operation: Operation) -> None:
            if operation.name == "sync" and operation.path == SEGMENT:
                answered_during_sync.append(waiter.done())

        harness.disk.before_operation = look
        async with asyncio.timeout(60):
            await waiter
        harness.disk.before_operation = None
        with reopen(harness.disk.crash(0), harness.config, harness.clock) as recovered:
            compare(recovered, harness.sender.sent, harness.sender.sent)
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services

    with harness.open() as store:
        asyncio.run(main(store))
    assert answered_during_sync
    assert not any(answered_during_sync)


def test_14_with_sync_flush_no_unsynced_message_is_delivered() -> None:
    """A message enters its queue only after its sync; with async flush once it is in the file, as documented."""

    async def main(store: MessageStore, sender: Sender) -> tuple[int, int]:
        arrived = asyncio.Event()
        store.arrival_listeners.append(lambda topic, queue_id, end: arrived.set())
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        sent = sender.append(store, [sender.message(100)])
        await store.wait_stored(sent[0].end, durable=False)
        seen_early = store.queue_range("orders", 0)[1]
        await store.wait_stored(sent[0].end, durable=True)
        async with asyncio.timeout(60):
            await arrived.wait()
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services
        return seen_early, store.queue_range("orders", 0)[1]

    for flush, expected in (("sync", (0, 1)), ("async", (1, 1))):
        harness = Harness(replace(CONFIG, flush=flush, flush_interval_seconds=30.0))  # type: ignore[arg-type] # a literal
        with harness.open() as store:
            assert asyncio.run(main(store, harness.sender)) == expected


def test_15_names_are_synced_and_maps_have_room() -> None:
    """After any sync a store's file names are durable, and a mapping is written only where blocks are reserved."""
    harness = Harness()
    store = harness.open()
    harness.sender.append(store, [harness.sender.message(1500) for _ in range(40)])
    store.flush()
    names = {path for path in harness.disk.contents() if path.parts[2] in ("commitlog", "consumequeue", "index")}
    for seed in range(30):
        assert names <= set(harness.disk.crash(seed).contents())
    # The in-memory disk reports writes to a mapping without reserved blocks, so the tests above check that part.
    file = harness.disk.create(DIRECTORY / "probe", 8192)
    file.map(writable=True)[5000] = 1
    with pytest.raises(HoleWrittenError):
        file.sync()


def test_16_a_table_is_never_missing_or_half_written() -> None:
    """After a power cut at any moment of a save, the table has the old or the new content, as strict JSON."""
    disk = MemoryFileSystem()
    disk.make_directory(DIRECTORY)
    table = JsonTable(disk, DIRECTORY / "topics.json")
    table.save({"version": 0, "text": "x" * 2000})
    disks: list[tuple[int, MemoryFileSystem]] = []
    version = 0
    disk.before_operation = lambda operation: disks.append((version, disk.crash(operation.number)))
    for version in range(1, 5):
        table.save({"version": version, "text": "x" * 2000})
    disk.before_operation = None
    assert len(disks) > 15
    for at, crashed in disks:
        content = JsonTable(crashed, DIRECTORY / "topics.json").load()
        assert isinstance(content, dict)
        assert content["version"] in (at - 1, at)
    json.loads(disk.contents()[DIRECTORY / "topics.json"])


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
async def test_17_a_resolved_transaction_is_never_checked(
    tmp_path: Path, resolution: v2.TransactionResolution.ValueType
) -> None:
    """After a power cut right after the answer there is no check, no duplicate and no rolled-back message."""
    transactions = await TransactionHarness(tmp_path / "store").start()
    await transactions.send("paid")
    assert await transactions.end("paid", resolution) == v2.Code.OK
    crashed = [transactions.disk.crash(seed) for seed in range(5)]
    for disk in crashed:
        again = await transactions.crash(disk)
        producer = again.producer("sender", "payments")
        await again.advance(3600)
        assert again.asked(producer) == []
        assert again.ids() == ["paid"] * (resolution == COMMIT)
        assert again.transactions.pending_count == 0
        await again.abandon()


def test_18_a_failed_queue_write_stops_the_store_until_recovery() -> None:
    """The store stops at once and names the cause, without a stall of 30 seconds.

    The next start repairs the queue and clears the flag.
    """
    harness = Harness()
    store = harness.open()
    harness.sender.append(store, [harness.sender.message(100)])
    store.flush()
    harness.sender.append(store, [harness.sender.message(100)])
    harness.disk.fail_at("write", 2, errno.EIO)  # the first write is the log's
    with pytest.raises(StoreFailedError, match="then restart"):
        store.flush()
    store.close()
    with reopen(harness.disk, harness.config, harness.clock) as again:
        compare(again, harness.sender.sent, harness.sender.sent)
        assert again.state == "open"


def test_19_a_file_that_cannot_be_removed_is_an_error() -> None:
    """A failed removal is never reported as a success."""
    harness = Harness()
    with harness.open() as store:
        harness.sender.append(store, [harness.sender.message(100)])
        store.flush()
        harness.disk.fail_at("unlink", 1, errno.EACCES)
        with pytest.raises(StoreFailedError):
            store.delete_topic("orders")


def test_19_index_files_of_one_millisecond_have_different_names() -> None:
    """Four index files are filled while the clock stands still."""
    harness = Harness()
    with harness.open() as store:
        harness.sender.append(store, [harness.sender.message(20) for _ in range(180)])
        store.flush()
        names = harness.disk.list(DIRECTORY / "index")
        assert len(names) == len(set(names)) == 4
        compare(store, harness.sender.sent, harness.sender.sent)


async def test_20_the_timer_tries_until_a_message_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk delays deliveries for as long as it stays full, and loses none."""
    monkeypatch.setattr(background, "_RETRY_SECONDS", 0.001)
    timers = await TimerHarness.start(store=replace(TIMER_STORE, disk_headroom=4 << 20))
    bodies = [letter * 7000 for letter in "abc"]  # more than the free space of the segment
    for body in bodies:
        await timers.send(body, 5, message_id=body[0])
    tries = 0
    refused = asyncio.Event()
    real = timers.store.append

    def counted(*arguments: Any, **options: Any) -> list[Appended]:
        nonlocal tries
        tries += 1
        if tries == 50:
            refused.set()
        return real(*arguments, **options)

    monkeypatch.setattr(timers.store, "append", counted)
    # Space for the open files, but not for another segment.
    timers.disk.capacity = 1 << 40
    used = (1 << 40) - timers.disk.usage(DIRECTORY).available
    timers.disk.capacity = used + (1 << 20)
    timers.clock.advance(10)
    timers.timer.wake()
    async with asyncio.timeout(60):
        await refused.wait()
    assert timers.bodies() == []
    timers.disk.capacity = None
    await timers.advance(100)
    assert sorted(timers.bodies()) == bodies
    await timers.stop()


def test_each_of_the_twenty_has_its_test() -> None:
    """Each weakness number appears in the name of a test."""
    found = {int(name[5:7]) for name in globals() if name.startswith("test_") and name[5:7].isdigit()}
    assert found == set(range(1, 21))


def test_a_missing_log_is_not_taken_for_an_empty_one() -> None:
    """With queues but no segment the log's disk may be unmounted, so nothing is deleted."""
    harness = Harness()
    harness.fill(3)
    harness.disk.unlink(SEGMENT)
    before = harness.disk.contents()
    with pytest.raises(StoreDirectoryError, match="mounted"):
        harness.open()
    assert {path: data for path, data in harness.disk.contents().items() if path.name != "lock"} == {
        path: data for path, data in before.items() if path.name != "lock"
    }


def test_two_new_segments_without_their_size_stopped_the_store_from_opening() -> None:
    """Segments are created before their first record is written, so a crash may leave new segments of size zero."""
    harness = Harness()
    store = harness.open()
    harness.sender.append(store, [harness.sender.message(7000) for _ in range(9)])
    for seed in range(40):
        with reopen(harness.disk.crash(seed), harness.config, harness.clock) as recovered:
            compare(recovered, harness.sender.sent, [])


def test_a_record_that_has_lost_its_last_sector_looked_like_one_without_checksum() -> None:
    """Its properties then end in zeros, and readers would get truncated properties."""
    harness = Harness()
    store = harness.open()
    sent = harness.sender.append(store, [harness.sender.message(size) for size in range(390, 560, 3)])
    store.flush()
    content = harness.disk.contents()[SEGMENT]
    for last in sent:
        cut = last.end - last.end % 512
        if last.end > 16000 or not last.end - 40 < cut < last.end:
            continue
        disk = harness.disk.kill()
        disk.damage(SEGMENT, cut, bytes(len(content) - cut))
        disk.unlink(DIRECTORY / "checkpoint")  # so that everything is read
        with MessageStore.open(harness.config, file_system=disk, clock=harness.clock) as recovered:
            assert recovered.recovery.damaged[0].start == last.physical_offset
            held = compare(recovered, sent, [item for item in sent if item.end <= cut])
            assert last not in held
            break
    else:
        raise AssertionError("no record ended so near behind the beginning of a sector")


def test_messages_of_the_checkpoints_millisecond_were_taken_for_indexed() -> None:
    """The clock stands still: messages after the flush have the same time, but were not synced."""
    harness = Harness()
    store = harness.open()
    harness.sender.append(store, [harness.sender.message(20) for _ in range(10)])
    store.flush()
    harness.disk.before_operation = None
    disks = []
    harness.sender.append(store, [harness.sender.message(20) for _ in range(30)])
    harness.disk.before_operation = lambda operation: disks.append(harness.disk.crash(operation.number))
    store.flush()
    for disk in disks:
        with reopen(disk, harness.config, harness.clock) as recovered:
            compare(recovered, harness.sender.sent, harness.sender.sent[:10])


def test_a_clock_that_was_set_back_made_unsynced_entries_look_old() -> None:
    """Log offsets, not times, decide which entries are synced."""
    harness = Harness()
    store = harness.open()
    harness.sender.append(store, [harness.sender.message(20) for _ in range(10)])
    store.flush()
    harness.clock.advance(-3600)
    harness.sender.append(store, [harness.sender.message(500) for _ in range(40)])
    disks = []
    harness.disk.before_operation = lambda operation: disks.append(harness.disk.crash(operation.number))
    store.flush()
    for disk in disks:
        with reopen(disk, harness.config, harness.clock) as recovered:
            held = [record.number for record in harness.sender.sent[:10]]
            assert [int(record.body[:8]) for record in read_all(recovered, "orders", 0).values()][:10] == held
            for sent in harness.sender.sent:
                there = sent.queue_offset in read_all(recovered, "orders", 0)
                assert bool(recovered.query("orders", f"n{sent.number}")) == there


def test_a_stop_during_a_flush_called_its_files_synced() -> None:
    """The services are cancelled while queues and index wait for their sync; closing syncs them itself."""
    harness = Harness(replace(CONFIG, derived_flush_interval_seconds=0.01))
    store = harness.open()

    async def main() -> None:
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        release = asyncio.Event()
        loop = asyncio.get_running_loop()
        sent = harness.sender.append(store, [harness.sender.message(20) for _ in range(60)])
        await store.wait_stored(sent[-1].end, durable=True)
        # A long job occupies the disk thread, so the flush of queues and index stays queued.
        blocked = store.in_disk_thread(lambda: asyncio.run_coroutine_threadsafe(release.wait(), loop).result(5))
        await asyncio.sleep(0.05)
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services
        release.set()
        await blocked

    asyncio.run(main())
    store.close()
    for seed in range(20):
        with reopen(harness.disk.crash(seed), harness.config, harness.clock) as recovered:
            compare(recovered, harness.sender.sent, harness.sender.sent)


def test_a_sync_that_failed_while_the_services_were_stopped_was_forgotten() -> None:
    """Closing syncs again, and that sync succeeds, but the store must not be marked as closed in order."""
    harness = Harness()
    store = harness.open()
    harness.sender.append(store, [harness.sender.message(100)])  # creates the segment
    started, cancelled = threading.Event(), threading.Event()

    def before(operation: Operation) -> None:
        if operation.name == "sync" and threading.current_thread() is not threading.main_thread():
            started.set()
            assert cancelled.wait(60)

    async def main() -> None:
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        harness.disk.before_operation = before
        harness.disk.fail_at("sync", 1, errno.EIO)
        store.request_flush()
        await asyncio.to_thread(started.wait, 60)
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services
        cancelled.set()

    asyncio.run(main())
    assert store.state == "open"
    with pytest.raises(StoreFailedError):
        store.close()
    assert harness.disk.exists(DIRECTORY / "abort")


def test_a_failed_write_was_written_again_and_the_services_went_on() -> None:
    """With async flush no caller waits for the sync, so the failure itself must end the services."""
    harness = Harness(replace(CONFIG, flush="async", flush_interval_seconds=30.0))
    store = harness.open()

    async def main() -> None:
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        harness.disk.fail_at("write", 1, errno.EIO)
        sent = harness.sender.append(store, [harness.sender.message(100)])
        async with asyncio.timeout(60):
            with pytest.raises(StoreFailedError):
                await store.wait_stored(sent[0].end)
            with pytest.raises(StoreFailedError):
                await services

    asyncio.run(main())
    writes = [operation for operation in harness.disk.log if (operation.name, operation.path) == ("write", SEGMENT)]
    assert len(writes) == 1, "what failed is not tried again"
    store.close()


def test_a_unit_that_names_another_message_was_served() -> None:
    """A unit damaged to point at its neighbour does not matter: each message is found in the log and read once."""
    harness = Harness()
    harness.fill(5)
    second = harness.disk.contents()[QUEUE][UNIT_SIZE : 2 * UNIT_SIZE]
    harness.disk.damage(QUEUE, 2 * UNIT_SIZE, second)
    with harness.open() as store:
        result = store.read("orders", 0, 0)
        assert [record.queue_offset for record in result.records] == [0, 1, 2, 3, 4]
        assert result.lost == 0


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("position", "bits"), [(8, 0x80), (0, 0x80), (2, 0x01)])
def test_units_behind_a_damaged_one_were_dropped_and_their_offsets_used_again(
    closed: bool, position: int, bits: int
) -> None:
    """After one flipped bit in the middle of a queue, the other messages remain and the next one follows them all.

    After an orderly stop not every unit is checked, and the message itself may then count as lost.
    """
    harness = Harness()
    harness.fill(30, 1500, close=closed)
    place = 3 * UNIT_SIZE + position
    harness.disk.damage(QUEUE, place, bytes([harness.disk.contents()[QUEUE][place] ^ bits]))
    with harness.open() as store:
        others = [sent for sent in harness.sender.sent if sent.number != 3]
        readable = {record.queue_offset for record in read_all(store, "orders", 0).values()}
        assert readable >= {sent.queue_offset for sent in (others if closed else harness.sender.sent)}
        assert len(readable) + store.read("orders", 0, 0, max_count=100).lost == 30
        assert store.append([Message("orders", 0, b"next")])[0].queue_offset == 30


def test_an_interrupted_deletion_left_the_queues() -> None:
    """The power fails after the deletion is recorded and before the files are removed: the topic has no messages."""
    harness = Harness()
    store = harness.open()
    harness.sender.append(store, [harness.sender.message(100) for _ in range(5)])
    store.flush()
    disks = []
    harness.disk.before_operation = lambda operation: disks.append(harness.disk.kill())
    store.delete_topic("orders")
    states = set()
    for disk in disks:
        with MessageStore.open(harness.config, file_system=disk, clock=harness.clock) as recovered:
            found = len(read_all(recovered, "orders", 0))
            assert found == len(recovered.query("orders", "k0", max_count=9)) * 5
            states.add(found)
            assert recovered.append([Message("orders", 0, b"next")])[0].queue_offset == 5
    assert states == {0, 5}


def test_a_half_message_behind_a_lost_one_was_cut_off_by_the_next_orderly_start() -> None:
    """A crash leaves zeros in place of a record, followed by a record that is in no queue: it is kept."""
    harness = Harness()
    store = harness.open()
    sent = harness.sender.append(store, [harness.sender.message(100)])
    lost = harness.sender.message(1000)
    half = Message("half", 0, b"half", {"KEYS": "h"}, sys_flag=4)
    lost.sys_flag = 4
    first, second = store.append([lost, half])
    store.flush()
    disk = harness.disk.kill()
    disk.damage(SEGMENT, first.physical_offset, bytes(first.size))
    harness.disk = disk
    for _ in range(3):
        with harness.open() as store:
            assert store.recovery.end == second.end
            assert store.record_at(second.physical_offset).body == b"half"
            assert [record.body for record in store.query("half", "h")] == [b"half"]
            compare(store, sent, sent)


async def test_an_empty_store_serves_again_and_again() -> None:
    """The services of an empty store end when cancelled, and not on their own."""
    config = replace(StoreConfig.tiny(DIRECTORY), segments_ahead=2, flush_interval_seconds=0.01)
    with MessageStore.open(config, file_system=MemoryFileSystem(), clock=ManualClock()) as store:
        for _ in range(3):
            services = asyncio.create_task(store.run())
            await asyncio.sleep(0)
            store.commit()  # with nothing to commit
            await asyncio.sleep(0.03)
            assert not services.done()
            services.cancel()
            with suppress(asyncio.CancelledError):
                await services
        assert store.status().segments == 0
