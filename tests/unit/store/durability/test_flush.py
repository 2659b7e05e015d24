"""When messages become durable, and which waiters are answered."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreFailedError, SyncTimeoutError
from aerobee_store.config import FlushMode, WriteMode
from aerobee_store.durability import log_flush as durability
from aerobee_store.queues.consume_queue import UNIT_SIZE
from aerobee_store.testing import ManualClock, MemoryFileSystem, Operation
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.support.serving import serving
from tests.support.stored_messages import DIRECTORY, Sender, compare

CONFIG = replace(StoreConfig.tiny(DIRECTORY), flush_interval_seconds=60.0, derived_flush_interval_seconds=60.0)


class HangingDisk:
    """A disk whose log syncs, or other operations, hang until released."""

    def __init__(self, operation: str = "sync") -> None:
        self.operation = operation
        self.disk = MemoryFileSystem(clock=ManualClock())
        self.go = threading.Event()
        self.started = threading.Event()
        self.hanging = False
        self.disk.before_operation = self.before

    def before(self, operation: Operation) -> None:
        if self.hanging and operation.name == self.operation and "commitlog" in operation.path.parts:
            if threading.current_thread() is threading.main_thread():
                return
            self.started.set()
            assert self.go.wait(60)

    def hang(self) -> None:
        """Let the next operation hang."""
        self.go.clear()
        self.started.clear()
        self.hanging = True

    def release(self) -> None:
        self.hanging = False
        self.go.set()


def log_syncs(disk: MemoryFileSystem) -> int:
    return sum(operation.name == "sync" and "commitlog" in operation.path.parts for operation in disk.log)


def log_writes(disk: MemoryFileSystem) -> int:
    return sum(operation.name == "write" and "commitlog" in operation.path.parts for operation in disk.log)


async def test_waiters_that_arrive_during_a_sync_share_the_next_one() -> None:
    """Fifty waiters need two syncs: one for the first waiter, one for all that arrive during it."""
    hanging = HangingDisk()
    sender = Sender()
    async with asyncio.timeout(60), serving(CONFIG, hanging.disk) as store:
        sender.append(store, [sender.message(50)])
        await store.wait_stored(store.positions[0])
        before = log_syncs(hanging.disk)
        hanging.hanging = True
        sent = sender.append(store, [sender.message(50)])
        waiters = [asyncio.create_task(store.wait_stored(sent[0].end))]
        await asyncio.to_thread(hanging.started.wait, 60)
        for _ in range(49):
            sent = sender.append(store, [sender.message(50)])
            waiters.append(asyncio.create_task(store.wait_stored(sent[0].end)))
        await asyncio.sleep(0)
        assert not any(waiter.done() for waiter in waiters)
        hanging.release()
        await asyncio.gather(*waiters)
        assert log_syncs(hanging.disk) - before == 2
        assert store.stats.messages_per_sync.last == 49


async def send(store: MessageStore, number: int) -> None:
    (appended,) = store.append([Message("orders", 0, b"%d" % number)])
    await store.wait_stored(appended.end)


async def send_in_turn(store: MessageStore, count: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(send(store, number))
            for _ in range(20):
                await asyncio.sleep(0)


async def send_together(store: MessageStore, hanging: HangingDisk, count: int) -> None:
    """Send, so that all share one sync: they arrive during that of another message."""
    hanging.hang()
    other = asyncio.create_task(send(store, 0))
    await asyncio.to_thread(hanging.started.wait, 60)
    sends = asyncio.gather(*(send(store, number) for number in range(count)))
    await asyncio.sleep(0)
    hanging.release()
    await asyncio.gather(other, sends)


async def test_a_group_waits_until_it_is_as_large_as_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a group of eight waiters, the next eight arrive one by one and share one sync, again and again, without a
    timeout: nothing waits for a ninth."""
    monkeypatch.setattr(durability, "_GATHER_SECONDS_EACH", 30.0)
    monkeypatch.setattr(durability, "_GATHER_SECONDS_MAX", 30.0)
    hanging = HangingDisk()
    async with asyncio.timeout(60), serving(replace(CONFIG, segment_size=1 << 20), hanging.disk) as store:
        await send_together(store, hanging, 8)
        before = log_syncs(hanging.disk)
        for _ in range(100):
            await send_in_turn(store, 8)
        assert log_syncs(hanging.disk) == before + 100


async def test_a_group_grows_by_those_that_arrive_during_its_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five arrive during the sync of eight, so thirteen are in flight and share a sync from then on."""
    monkeypatch.setattr(durability, "_GATHER_SECONDS_EACH", 30.0)
    monkeypatch.setattr(durability, "_GATHER_SECONDS_MAX", 30.0)
    hanging = HangingDisk()
    async with asyncio.timeout(60), serving(CONFIG, hanging.disk) as store:
        await send_together(store, hanging, 8)
        hanging.hang()
        eight = asyncio.gather(*(send(store, number) for number in range(8)))
        await asyncio.to_thread(hanging.started.wait, 60)
        five = asyncio.gather(*(send(store, number) for number in range(5)))
        await asyncio.sleep(0)
        before = log_syncs(hanging.disk)
        hanging.release()
        await eight
        await send_in_turn(store, 8)
        await five
        await send_in_turn(store, 13)
        assert log_syncs(hanging.disk) == before + 2


def test_the_size_of_a_group_follows_the_number_in_flight() -> None:
    size = durability.BatchSize()
    followed = []
    for waited, waiting in ((8, 8), (8, 13), (13, 13), (12, 12), (12, 0), (4, 4), (4, 8), (1, 5), (5, 5), (1, 1)):
        size.follow(waited, waiting)
        followed.append(size.count)
    assert followed == [8, 13, 13, 12, 12, 8, 8, 1, 5, 1]


async def test_a_group_that_stays_small_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller group than the last waits for the gathering time once; a single sender then does not wait at all."""
    async with asyncio.timeout(60), serving(CONFIG, MemoryFileSystem(clock=ManualClock())) as store:
        await asyncio.gather(*(send(store, number) for number in range(8)))
        await send(store, 8)
        monkeypatch.setattr(durability, "_GATHER_SECONDS_EACH", 1000.0)
        monkeypatch.setattr(durability, "_GATHER_SECONDS_MAX", 1000.0)
        for number in range(3):
            await send(store, number)


@pytest.mark.parametrize(("each", "at_most"), [(1000.0, 0.01), (0.001, 1000.0)])
async def test_gathering_is_bounded_by_the_size_of_the_group_and_altogether(
    monkeypatch: pytest.MonkeyPatch, each: float, at_most: float
) -> None:
    """Gathering ends at the shorter of the time per waiter and the total time."""
    monkeypatch.setattr(durability, "_GATHER_SECONDS_EACH", each)
    monkeypatch.setattr(durability, "_GATHER_SECONDS_MAX", at_most)
    async with asyncio.timeout(60), serving(CONFIG, MemoryFileSystem(clock=ManualClock())) as store:
        await asyncio.gather(*(send(store, number) for number in range(8)))
        await asyncio.gather(*(send(store, number) for number in range(2)))


async def test_a_group_becomes_small_again_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a burst of 64, two remaining senders wait for others at most eight times."""
    monkeypatch.setattr(durability, "_GATHER_SECONDS_MAX", 0.01)
    async with asyncio.timeout(60), serving(CONFIG, MemoryFileSystem(clock=ManualClock())) as store:
        await asyncio.gather(*(send(store, number) for number in range(64)))
        for _ in range(8):
            await asyncio.gather(*(send(store, number) for number in range(2)))
        monkeypatch.setattr(durability, "_GATHER_SECONDS_EACH", 1000.0)
        monkeypatch.setattr(durability, "_GATHER_SECONDS_MAX", 1000.0)
        for _ in range(3):
            await asyncio.gather(*(send(store, number) for number in range(2)))


async def test_a_group_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sync flush, messages that arrive during a sync, even in different ticks, share one write and one sync."""
    monkeypatch.setattr(durability, "_COMMIT_SECONDS", 60.0)
    hanging = HangingDisk()
    async with asyncio.timeout(60), serving(CONFIG, hanging.disk) as store:
        await send(store, 0)
        hanging.hanging = True
        first = asyncio.create_task(send(store, 1))
        await asyncio.to_thread(hanging.started.wait, 60)
        before = log_writes(hanging.disk)
        store.append([Message("orders", 0, b"nobody waits")])
        waiters = []
        for number in range(8):
            waiters.append(asyncio.create_task(send(store, number)))
            await asyncio.sleep(0)
        hanging.release()
        await asyncio.gather(first, *waiters)
        assert log_writes(hanging.disk) == before + 1


async def test_bytes_without_a_waiter_are_written_without_a_sync() -> None:
    """With sync flush too, a message without a waiter soon reaches the page cache and survives a killed process."""
    async with asyncio.timeout(60), serving(CONFIG, disk := MemoryFileSystem(clock=ManualClock())) as store:
        await send(store, 0)
        before = log_syncs(disk)
        (appended,) = store.append([Message("orders", 0, b"nobody waits")])
        while store.positions[1] < appended.end:  # noqa: ASYNC110 - the timer gives no signal
            await asyncio.sleep(0.001)
        assert log_syncs(disk) == before


async def test_bytes_without_a_waiter_are_written_when_the_services_run_again() -> None:
    """Messages pending when the services ended are written by the next run."""
    store = MessageStore.open(CONFIG, file_system=MemoryFileSystem(clock=ManualClock()), clock=ManualClock())
    async with asyncio.timeout(60):
        for _ in range(2):
            services = asyncio.create_task(store.run())
            await asyncio.sleep(0)
            (appended,) = store.append([Message("orders", 0, b"nobody waits")])
            services.cancel()
            await asyncio.gather(services, return_exceptions=True)
            await asyncio.sleep(0.05)  # the timer of the first message fires meanwhile
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        (appended,) = store.append([Message("orders", 0, b"nobody waits")])
        while store.positions[1] < appended.end:  # noqa: ASYNC110 - the timer gives no signal
            await asyncio.sleep(0.001)
        services.cancel()
        await asyncio.gather(services, return_exceptions=True)
    store.close()


async def test_a_sync_covers_only_what_was_committed_before_it() -> None:
    """A message that arrives during a sync is neither answered nor queued by it: a power cut may take it."""
    hanging = HangingDisk()
    sender = Sender()
    seen: list[tuple[int | None, int]] = []
    async with asyncio.timeout(60), serving(CONFIG, hanging.disk) as store:

        def arrived(topic: str, queue_id: int, end: int) -> None:
            seen.append((store.physical_offset_at(topic, queue_id, end - 1), store.positions[2]))

        store.arrival_listeners.append(arrived)
        hanging.hanging = True
        first = sender.append(store, [sender.message(50)])
        early = asyncio.create_task(store.wait_stored(first[0].end))
        await asyncio.to_thread(hanging.started.wait, 60)
        late = sender.append(store, [sender.message(600)])
        await store.wait_stored(late[0].end, durable=False)
        assert not early.done()
        assert store.positions[1] == late[0].end
        assert store.positions[2] == 0
        hanging.release()
        await early
        await store.wait_stored(late[0].end)
        disk = hanging.disk.crash(3)
    assert seen == [(0, first[0].end), (late[0].physical_offset, late[0].end)]
    with MessageStore.open(CONFIG, file_system=disk) as store:
        compare(store, sender.sent, sender.sent)


@pytest.mark.parametrize(
    ("operation_name", "concerned"), [("sync", "commitlog"), ("sync", "consumequeue"), ("write", "commitlog")]
)
async def test_a_concurrent_flush_does_not_hide_a_failed_sync(operation_name: str, concerned: str) -> None:
    """A concurrent flush must learn of a failed sync, or of a failed commit of the pool, before its own succeeds.

    Its success would call data durable that the failed sync has lost.
    """
    derived = concerned == "consumequeue"
    hanging = HangingDisk()
    sender = Sender()
    config = replace(
        CONFIG,
        derived_flush_interval_seconds=0.01 if derived else 60.0,
        write_mode="pool" if operation_name == "write" else CONFIG.write_mode,
    )

    def before(operation: Operation) -> None:
        in_a_thread = threading.current_thread() is not main
        if operation.name == operation_name and concerned in operation.path.parts and in_a_thread:
            hanging.started.set()
            assert hanging.go.wait(60)
            raise OSError(errno.EIO, "as the test wants it", str(operation.path))

    main = threading.main_thread()
    store = MessageStore.open(config, file_system=hanging.disk, clock=ManualClock())
    async with asyncio.timeout(60):
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        hanging.disk.before_operation = before
        sent = sender.append(store, [sender.message(50)])
        waiter = asyncio.create_task(store.wait_stored(sent[0].end))
        await asyncio.to_thread(hanging.started.wait, 60)
        threading.Timer(0.05, hanging.go.set).start()
        with pytest.raises(StoreFailedError):
            store.flush()
        assert store.state == "failed"
        if not derived:
            assert store.positions[2] <= sent[0].physical_offset, "nobody has made it durable"
            with pytest.raises(StoreFailedError):
                await waiter
        with pytest.raises((StoreFailedError, OSError)):
            await services
    store.close()


async def stored_at_last(store: MessageStore, end: int) -> None:
    """Wait until durable, although a loaded machine may exceed the timeout that the test has set."""
    while True:
        with suppress(SyncTimeoutError):
            return await store.wait_stored(end, durable=True)


async def test_a_hanging_sync_gives_a_time_out_and_the_message_stays() -> None:
    """SyncTimeoutError is raised after the configured time; the store continues when the disk does."""
    hanging = HangingDisk()
    sender = Sender()
    config = replace(CONFIG, sync_timeout_seconds=0.05)
    async with asyncio.timeout(60), serving(config, hanging.disk) as store:
        hanging.hanging = True
        sent = sender.append(store, [sender.message(50)])
        with pytest.raises(SyncTimeoutError, match=r"within 0\.05 s"):
            await store.wait_stored(sent[0].end)
        with pytest.raises(SyncTimeoutError):
            await store.wait_stored(sent[0].end)
        assert store.state == "open"
        hanging.release()
        more = sender.append(store, [sender.message(50)])
        await stored_at_last(store, more[0].end)
        compare(store, sender.sent, sender.sent)


async def test_a_cancelled_waiter_does_not_affect_the_others() -> None:
    """Cancelling only stops the wait: the message is stored, and the other waiters are answered."""
    hanging = HangingDisk()
    sender = Sender()
    async with asyncio.timeout(60), serving(CONFIG, hanging.disk) as store:
        hanging.hanging = True
        sent = sender.append(store, [sender.message(50)])
        waiters = [asyncio.create_task(store.wait_stored(sent[0].end)) for _ in range(3)]
        await asyncio.to_thread(hanging.started.wait, 60)
        waiters[1].cancel()
        hanging.release()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert results[0] is results[2] is None
        assert isinstance(results[1], asyncio.CancelledError)
        compare(store, sender.sent, sender.sent)


async def test_async_flush_answers_from_the_page_cache() -> None:
    """The answer needs no sync, and the message can be read; `durable=True` still waits for a sync."""
    disk = MemoryFileSystem()
    sender = Sender()
    async with asyncio.timeout(60), serving(replace(CONFIG, flush="async"), disk) as store:
        sent = sender.append(store, [sender.message(50)])
        before = log_syncs(disk)  # the new segment's size was synced
        await store.wait_stored(sent[0].end)
        assert log_syncs(disk) == before
        assert store.positions == (sent[0].end, sent[0].end, 0, sent[0].end)
        compare(store, sender.sent, sender.sent)
        await store.wait_stored(sent[0].end, durable=True)
        assert store.positions[2] == sent[0].end


async def test_with_async_flush_a_group_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a send that found others in flight, sends in different ticks share one write."""
    monkeypatch.setattr(durability, "_BATCHES_BEFORE_PROBE", 0)
    async with asyncio.timeout(60), serving(replace(CONFIG, flush="async"), disk := MemoryFileSystem()) as store:
        await send(store, 0)
        await store.wait_stored(store.positions[0], durable=True)  # nothing else commits in the background then
        before = log_writes(disk)
        monkeypatch.setattr(durability, "_GATHER_SECONDS_EACH", 1000.0)
        monkeypatch.setattr(durability, "_GATHER_SECONDS_MAX", 1000.0)
        first = asyncio.create_task(send(store, 1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not first.done()
        await asyncio.gather(first, send(store, 2))
        assert log_writes(disk) == before + 1


async def test_with_async_flush_a_lone_sender_seldom_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """About one send in 64 waits briefly for others."""
    waited = []

    def note(_: durability.BatchSize) -> float:
        waited.append(number)
        return 0.0

    monkeypatch.setattr(durability.BatchSize, "seconds", property(note))
    async with asyncio.timeout(60), serving(replace(CONFIG, flush="async"), MemoryFileSystem()) as store:
        for number in range(200):
            await send(store, number)
    assert waited == [65, 131, 197]


async def test_unsynced_bytes_are_bounded_with_async_flush() -> None:
    """Without waiters, the log is synced within the interval; queues, index and checkpoint follow."""
    disk = MemoryFileSystem()
    sender = Sender()
    config = replace(CONFIG, flush="async", flush_interval_seconds=0.04, derived_flush_interval_seconds=0.02)
    synced = asyncio.Event()
    loop = asyncio.get_running_loop()

    def before(operation: Operation) -> None:
        if operation.name == "sync" and operation.path.name == "checkpoint":
            loop.call_soon_threadsafe(synced.set)

    async with asyncio.timeout(60), serving(config, disk) as store:
        sent = sender.append(store, [sender.message(50)])
        disk.before_operation = before
        while store.positions[2] < sent[0].end:  # noqa: ASYNC110 - no signal, that is the point
            await asyncio.sleep(0.01)
        await synced.wait()


@pytest.mark.parametrize("operation", ["sync", "write"])
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_failure_reaches_every_waiter(operation: str, flush: str) -> None:
    """All waiters, `run`, and every later append and wait get StoreFailedError with the cause."""
    disk = MemoryFileSystem()
    sender = Sender()
    config = replace(CONFIG, flush=flush)  # type: ignore[arg-type] # a literal
    store = MessageStore.open(config, file_system=disk)
    services = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    sender.append(store, [sender.message(50)])  # creates the segment
    disk.fail_at(operation, 1, errno.EIO)
    sent = sender.append(store, [sender.message(50)])
    async with asyncio.timeout(60):
        waiting = [store.wait_stored(sent[0].end, durable=durable) for durable in (True, False, None)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(StoreFailedError):
            await services
        with pytest.raises(StoreFailedError, match="Input/output"):
            await store.wait_stored(sent[0].end)
    assert isinstance(results[0], StoreFailedError)
    assert isinstance(results[0].__cause__, OSError)
    assert isinstance(store.failure, OSError)
    with pytest.raises(StoreFailedError):
        store.append([sender.message(50)])
    with pytest.raises(StoreFailedError):
        store.flush()
    store.close()
    assert store.state == "closed"
    assert disk.exists(DIRECTORY / "abort")


async def test_a_failed_flush_of_a_queue_fails_the_store() -> None:
    """A failed sync of derived files is fatal too, because the checkpoint would be wrong."""
    disk = MemoryFileSystem()
    sender = Sender()
    store = MessageStore.open(replace(CONFIG, derived_flush_interval_seconds=0.01), file_system=disk)
    services = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    sent = sender.append(store, [sender.message(50)])
    async with asyncio.timeout(60):
        await store.wait_stored(sent[0].end)
        disk.fail_at("sync", 1, errno.EIO)
        with pytest.raises(StoreFailedError):
            await services
    assert store.state == "failed"
    store.close()


async def test_a_new_file_of_a_queue_is_durable_before_it_is_full() -> None:
    """The next file may only follow then, and the event loop does not wait for that sync."""
    units = 4096
    disk = MemoryFileSystem()
    named: list[str] = []  # directory syncs of the queue, each with the kind of its thread
    begun = threading.Semaphore(0)

    def before(operation: Operation) -> None:
        if operation.name == "sync_directory" and operation.path.parts[-3:] == ("consumequeue", "orders", "0"):
            named.append("loop" if threading.current_thread() is threading.main_thread() else "disk thread")
            begun.release()

    disk.before_operation = before
    config = replace(CONFIG, queue_file_size=units * UNIT_SIZE, segment_size=1 << 20)
    async with asyncio.timeout(60), serving(config, disk) as store:
        for number in range(1, 3 * units // 128 + 1):
            appended = store.append([Message("orders", 0, b"") for _ in range(128)])
            await store.wait_stored(appended[-1].end)
            if number * 128 % units == units // 4:  # its units are written some kilobytes at a time
                assert await asyncio.to_thread(begun.acquire, timeout=30)
        assert named == ["disk thread"] * 3


async def test_a_failed_sync_of_a_new_file_fails_the_store() -> None:
    """Nothing else may take its bytes for durable, not even a flush that succeeds later."""
    disk = MemoryFileSystem()
    store = MessageStore.open(replace(CONFIG, queue_file_size=4096 * UNIT_SIZE, segment_size=1 << 20), file_system=disk)
    services = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        appended = store.append([Message("orders", 0, b"") for _ in range(128)])
        await store.wait_stored(appended[-1].end)
        disk.fail_at("sync_directory", 1, errno.EIO)
        store.append([Message("orders", 0, b"") for _ in range(4096 // 4)])
        store.request_flush()
        with pytest.raises(StoreFailedError):
            await services
    assert store.state == "failed"
    store.close()
    assert disk.exists(DIRECTORY / "abort"), "the next start must not trust the queues"


async def test_a_few_pages_wait_for_half_of_the_interval_and_many_do_not() -> None:
    """Four pages or more are synced when they are a quarter of the interval old, any number at a half."""
    clock = TravellingClock()
    sender = Sender()
    config = replace(CONFIG, flush="async", flush_interval_seconds=400.0, derived_flush_interval_seconds=4000.0)
    async with asyncio.timeout(5000), serving(config, MemoryFileSystem(clock=ManualClock()), seconds=None) as store:
        await clock.advance(0)  # start the services
        sender.append(store, [sender.message(100)])
        store.commit()
        await clock.advance(101)
        assert store.positions[2] == 0
        end = store.positions[0]
        await clock.advance(101)
        assert store.positions[2] == end
        sender.append(store, [sender.message(6000)] * 3)
        store.commit()
        await clock.advance(101)
        assert store.positions[2] == store.positions[0] > end


async def test_the_thorough_interval_puts_off_few_pages() -> None:
    """Few pages wait for the thorough interval, and many do not."""
    clock = TravellingClock()
    sender = Sender()
    config = replace(CONFIG, flush="async", flush_interval_seconds=400.0, derived_flush_interval_seconds=4000.0)
    config = replace(config, flush_thorough_interval_seconds=1000.0)
    async with asyncio.timeout(9000), serving(config, MemoryFileSystem(clock=ManualClock()), seconds=None) as store:
        await clock.advance(0)  # start the services
        sender.append(store, [sender.message(100)])
        store.commit()
        for _ in range(9):
            await clock.advance(101)
        assert store.positions[2] == 0
        await clock.advance(101)
        assert store.positions[2] == store.positions[0]
        sender.append(store, [sender.message(6000)] * 3)
        store.commit()
        await clock.advance(101)
        assert store.positions[2] == store.positions[0]


async def test_without_timed_mode_enough_pages_are_synced_at_once() -> None:
    """Enough pages are synced before the next check, which is far away; a few pages still wait for it."""
    sender = Sender()
    config = replace(CONFIG, flush="async", flush_interval_seconds=4000.0, flush_timed=False)
    async with asyncio.timeout(60), serving(config, MemoryFileSystem(clock=ManualClock())) as store:
        [few] = sender.append(store, [sender.message(100)])
        await store.wait_stored(few.end)
        assert store.positions[2] == 0
        sender.append(store, [sender.message(6000)] * 3)
        while store.positions[2] < store.positions[0]:  # noqa: ASYNC110 - the sync gives no signal
            await asyncio.sleep(0.001)


async def test_bytes_written_during_a_sync_are_synced_within_half_an_interval() -> None:
    """A sync that does not cover a message, and ends between two checks, does not postpone its sync."""
    clock = TravellingClock()
    hanging = HangingDisk()
    sender = Sender()
    config = replace(CONFIG, flush="async", flush_interval_seconds=400.0, sync_timeout_seconds=4000.0)
    async with asyncio.timeout(5000), serving(config, hanging.disk, seconds=None) as store:
        sender.append(store, [sender.message(100)])
        store.commit()
        hanging.hanging = True
        store.request_flush()
        assert await asyncio.to_thread(hanging.started.wait, 60)
        sender.append(store, [sender.message(100)])
        store.commit()
        await clock.advance(101)
        hanging.release()
        await clock.advance(20)
        assert 0 < store.positions[2] < store.positions[0]
        await clock.advance(81)
        assert store.positions[2] == store.positions[0]


@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_a_pool_that_hangs_gives_a_time_out_and_the_message_stays(flush_mode: FlushMode) -> None:
    """SyncTimeoutError is raised whether the answer waits for the disk or the page cache, and the store continues."""
    hanging = HangingDisk("write")
    sender = Sender()
    config = replace(CONFIG, flush=flush_mode, write_mode="pool", sync_timeout_seconds=0.05)
    async with asyncio.timeout(60), serving(config, hanging.disk) as store:
        hanging.hanging = True
        sent = sender.append(store, [sender.message(50)])
        with pytest.raises(SyncTimeoutError, match=r"within 0\.05 s"):
            await store.wait_stored(sent[0].end)
        assert store.state == "open"
        hanging.release()
        sent = sender.append(store, [sender.message(50)])
        await stored_at_last(store, sent[0].end)
        compare(store, sender.sent, sender.sent)


async def test_a_segment_is_not_closed_in_the_middle_of_its_sync() -> None:
    """Retention removed a segment while the disk thread ran fdatasync on it: EBADF failed the store without need."""
    hanging = HangingDisk()
    sender = Sender()
    config = replace(CONFIG, retention_hours=0.001)
    async with asyncio.timeout(60), serving(config, hanging.disk) as store:
        for _ in range(3):
            sender.append(store, [sender.message(4000)])
        hanging.hanging = True
        store.request_flush()
        assert await asyncio.to_thread(hanging.started.wait, 60)
        for _ in range(3):
            sender.append(store, [sender.message(4000)])
        store._flush_all()  # in this thread, without waiting for the other: now the first segment may be removed
        assert isinstance(store.clock, ManualClock)
        store.clock.advance(3600 * 24 * 2)
        for _ in range(24):
            store.clock.advance(3600)
            if hanging.disk.exists(DIRECTORY / "commitlog" / f"{0:020d}"):
                removal = asyncio.create_task(store.retention.clean())
                done, _ = await asyncio.wait([removal], timeout=0.2)
        assert not hanging.disk.exists(DIRECTORY / "commitlog" / f"{0:020d}")
        assert not done, "the file has no name any more, and is still open"
        hanging.release()
        await removal
        sent = sender.append(store, [sender.message(50)])
        await store.wait_stored(sent[0].end)
        assert store.state == "open"
        assert store.queue_range("orders", 0)[0] > 0


@pytest.mark.parametrize("mode", ["gathered", "mapped", "pool"])
async def test_waiting_before_the_services_start(mode: WriteMode) -> None:
    """With async flush, an append and its wait return before the first step of `run` and without services."""
    config = replace(CONFIG, flush="async", write_mode=mode)
    with MessageStore.open(config, file_system=MemoryFileSystem(clock=ManualClock())) as store:
        async with asyncio.timeout(60):
            await send(store, 0)
            running = asyncio.create_task(store.run())
            await send(store, 1)
            running.cancel()
            await asyncio.wait([running])
            await send(store, 2)
        assert len(store.read("orders", 0, 0).records) == 3


async def test_messages_appended_before_the_services_start_are_committed() -> None:
    """A message appended before the services start is committed even without a waiter."""
    config = replace(CONFIG, flush="async")
    with MessageStore.open(config, file_system=MemoryFileSystem(clock=ManualClock())) as store:
        store.append([Message("orders", 0, b"early")])
        running = asyncio.create_task(store.run())
        async with asyncio.timeout(60):
            while store.positions[1] < store.positions[0]:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait([running])


async def test_answers_wait_while_the_flush_interval_is_exceeded() -> None:
    """With async flush a message is answered from the page cache, unless a sync is late: then the answer waits for it.

    The status shows the age of the oldest data that a power cut could take.
    """
    hanging = HangingDisk()
    config = replace(CONFIG, flush="async", flush_interval_seconds=2.0)
    async with asyncio.timeout(60), serving(config, hanging.disk) as store:
        await send(store, 0)
        store.request_flush()
        while store.positions[2] < store.positions[0]:  # noqa: ASYNC110 - no signal
            await asyncio.sleep(0.001)
        assert store.status().unsynced_seconds == 0
        hanging.hanging = True
        await send(store, 1)
        await asyncio.to_thread(hanging.started.wait, 60)
        while store.status().unsynced_seconds < 1.5:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
        held = asyncio.create_task(send(store, 2))
        (unpromised,) = store.append([Message("orders", 0, b"internal")])
        await store.wait_stored(unpromised.end, durable=False)
        await asyncio.sleep(0.2)
        assert not held.done(), "the answer would promise more than the disk keeps"
        hanging.release()
        await held
        assert store.positions[2] >= unpromised.end
        while store.status().unsynced_seconds:  # noqa: ASYNC110 - later messages have their own sync
            await asyncio.sleep(0.01)


def test_slower_syncs_begin_earlier() -> None:
    """While a sync takes at most half of the interval, bytes are a quarter of it old; slower syncs begin earlier."""
    ages = [durability.age_of_many_pages(0.64, seconds) for seconds in (0.0, 0.32, 0.4, 0.6, 0.64, 9.0)]
    assert ages == pytest.approx([0.16, 0.16, 0.12, 0.02, 0.01, 0.01])


async def test_answers_wait_while_a_sync_takes_half_of_the_interval() -> None:
    """Not only once it has ended: the next sync, which covers these answers, may take as long."""
    clock = TravellingClock()
    hanging = HangingDisk()
    config = replace(CONFIG, flush="async", flush_interval_seconds=400.0, sync_timeout_seconds=4000.0)
    async with asyncio.timeout(5000), serving(config, hanging.disk, seconds=None) as store:
        await send(store, 0)
        hanging.hanging = True
        store.request_flush()
        assert await asyncio.to_thread(hanging.started.wait, 60)
        await clock.advance(190)
        await send(store, 1)
        await clock.advance(20)
        held = asyncio.create_task(send(store, 2))
        await clock.advance(80)
        assert not held.done()
        hanging.release()
        await held
        hanging.hang()
        held = asyncio.create_task(send(store, 3))
        await clock.advance(1)
        assert not held.done(), "the next one may take as long"
        hanging.release()
        await held


async def test_the_age_of_bytes_counts_and_not_when_they_are_found() -> None:
    """Many pages are synced at a quarter of the interval and few at a half, whenever they were written."""
    for size, age in ((6000, 100), (10, 200)):
        for late in (1, 50, 99):
            clock = TravellingClock()
            disk = MemoryFileSystem(clock=ManualClock())
            sender = Sender()
            config = replace(CONFIG, flush="async", flush_interval_seconds=400.0, sync_timeout_seconds=4000.0)
            async with asyncio.timeout(5000), serving(config, disk, seconds=None) as store:
                await clock.advance(late)
                sender.append(store, [sender.message(size)] * 3)
                store.commit()
                await clock.advance(age - 5)
                assert store.positions[2] == 0
                await clock.advance(10)
                assert store.positions[2] == store.positions[0]


@pytest.mark.parametrize("seed", range(3))
async def test_a_power_cut_loses_at_most_the_interval_whatever_syncs_take(seed: int) -> None:
    """At every moment the answered messages that are not on the disk were answered within one interval."""
    source = random.Random(seed)
    clock = TravellingClock()
    hanging = HangingDisk()
    loop = asyncio.get_running_loop()
    config = replace(CONFIG, flush="async", flush_interval_seconds=400.0, sync_timeout_seconds=1e6)
    answered: dict[int, float] = {}  # the end of a message -> when it was answered
    async with asyncio.timeout(1e6), serving(config, hanging.disk, seconds=None) as store, asyncio.TaskGroup() as tasks:

        async def answer(number: int) -> None:
            (appended,) = store.append([Message("orders", 0, str(number).encode() * source.choice((1, 3000)))])
            await store.wait_stored(appended.end)
            answered[appended.end] = loop.time()

        hanging.hanging = True
        until = 0.0
        for number in range(60):
            tasks.create_task(answer(number))
            await clock.advance(source.choice((5, 20)))
            if hanging.started.is_set() and loop.time() >= until:
                if until:
                    hanging.release()
                    await asyncio.sleep(0.01)
                    hanging.hang()
                    until = 0.0
                else:
                    until = loop.time() + source.choice((10, 150, 260, 700))
            lost = [at for end, at in answered.items() if end > store.positions[2]]
            assert not lost or max(lost) - min(lost) <= 400
        hanging.release()
    assert len(answered) == 60


async def _many_topics(hanging: HangingDisk, store: MessageStore, count: int) -> list[asyncio.Task[None]]:
    """Begin as many sends, each to a topic of its own, that one sync makes durable when the disk goes on."""
    hanging.hang()
    first = asyncio.create_task(send(store, 0))
    await asyncio.to_thread(hanging.started.wait, 60)

    async def send_to(topic: str) -> None:
        (appended,) = store.append([Message(topic, 0, b"x")])
        await store.wait_stored(appended.end)
        assert store.queue_range(topic, 0) == (0, 1), "what is answered can be read"

    sends = [asyncio.create_task(send_to(f"topic{number}")) for number in range(count)]
    await asyncio.sleep(0)
    return [first, *sends]


async def test_a_sync_dispatches_and_answers_some_messages_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's steps do not become longer with the number of senders that wait for one sync."""
    monkeypatch.setattr(durability, "_AT_ONCE", 10)
    hanging = HangingDisk()
    async with asyncio.timeout(60), serving(CONFIG, hanging.disk) as store:
        sends = await _many_topics(hanging, store, 95)
        hanging.release()
        topics, answered = [], []
        while not all(each.done() for each in sends):
            topics.append(len(store.queues()))
            answered.append(sum(each.done() for each in sends))
            await asyncio.sleep(0)
        for counts, most in ((topics, 2), (answered, 10)):
            steps = [after - before for before, after in zip(counts, [*counts[1:], 96], strict=True)]
            assert max(steps) <= most
        assert [each.exception() for each in sends] == [None] * 96


async def test_a_sender_that_waits_after_the_sync_is_answered_when_its_message_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had something else to wait for first; its message is durable by now, but in no queue yet."""
    monkeypatch.setattr(durability, "_AT_ONCE", 10)
    hanging = HangingDisk()
    async with asyncio.timeout(60), serving(CONFIG, hanging.disk) as store:
        hanging.hang()
        first = asyncio.create_task(send(store, 0))
        await asyncio.to_thread(hanging.started.wait, 60)
        ends = [store.append([Message(f"topic{number}", 0, b"x")])[0].end for number in range(20)]
        waiting = asyncio.create_task(store.wait_stored(ends[0]))
        await asyncio.sleep(0)
        hanging.release()
        await asyncio.gather(first, waiting)
        assert store.queue_range("topic19", 0) == (0, 0)
        await store.wait_stored(ends[19])
        assert store.queue_range("topic19", 0) == (0, 1)
        assert store.stats.messages_per_sync.last == 20


async def test_a_store_that_stops_between_two_steps_answers_what_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "_AT_ONCE", 10)
    hanging = HangingDisk()
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        store = await stack.enter_async_context(serving(CONFIG, hanging.disk))
        sends = [asyncio.create_task(send(store, number)) for number in range(1, 3)]
        await asyncio.gather(*sends)
        hanging.hang()
        first = asyncio.create_task(send(store, 0))
        await asyncio.to_thread(hanging.started.wait, 60)
        ends = [store.append([Message(f"topic{number}", 0, b"x")])[0].end for number in range(95)]
        waiters = [asyncio.create_task(store.wait_stored(end)) for end in ends]
        await asyncio.sleep(0)
        hanging.release()
        while not any(waiter.done() for waiter in waiters):  # noqa: ASYNC110 - step by step
            await asyncio.sleep(0)
        assert not all(waiter.done() for waiter in waiters)
        await stack.aclose()
        await asyncio.gather(first, *waiters)
