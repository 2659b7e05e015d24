"""Small workloads, with a power cut at every disk operation, or an error at those from every place of the code."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

import aerobee_store
from aerobee_store import MessageStore, StoreConfig, StoreError, StoreFailedError, StoreFullError
from aerobee_store.config import FlushMode, WriteMode
from aerobee_store.testing import CHANGES, ManualClock, MemoryFileSystem, Operation
from tests.support.stored_messages import DIRECTORY, Sender, Sent, compare, reopen

pytestmark = pytest.mark.crash

_STORE: Final = str(Path(aerobee_store.__file__).parent)

CYCLES = int(os.environ.get("AEROBEE_CRASH_CYCLES", "0"))
SEEDS = max(CYCLES // 20, 1)  # of what a power cut loses, at each operation
# The other write modes differ in how bytes reach the page cache. They get only part of the errors, except in the
# long run.
MODES: list[tuple[WriteMode, FlushMode]] = [
    ("gathered", "sync"),
    ("gathered", "async"),
    ("mapped", "sync"),
    ("pool", "sync"),
    *([("mapped", "async"), ("pool", "async")] if CYCLES else []),  # type: ignore[list-item]  # literals in a list
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence the log: recovery reports thousands of damaged ranges here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclass
class Harness:
    """One run of a workload: the store and its disk, the messages sent, and those promised durable so far."""

    flush: FlushMode
    write_mode: WriteMode = "gathered"
    disk: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    clock: ManualClock = field(default_factory=ManualClock)
    sender: Sender = field(default_factory=Sender)
    durable: list[Sent] = field(default_factory=list)
    refused: int = 0

    @property
    def config(self) -> StoreConfig:
        return replace(
            StoreConfig.tiny(DIRECTORY, flush=self.flush),
            queue_file_size=100 * 20,
            derived_flush_interval_seconds=0.01,
            write_mode=self.write_mode,
            pool_buffer_count=2,
            segments_ahead=2 if self.write_mode != "gathered" or CYCLES else 0,
            warm_segments=self.write_mode == "pool",
        )

    def open(self) -> MessageStore:
        return MessageStore.open(self.config, file_system=self.disk, clock=self.clock)

    def send(self, store: MessageStore, sizes: list[int], *, queue_id: int = 0, split: bool = False) -> list[Sent]:
        self.clock.advance(0.7)
        messages = [self.sender.message(size, "orders", queue_id) for size in sizes]
        return self.sender.append(store, messages, split_batch=split)


Workload = Callable[[Harness], None]


def blocking(harness: Harness) -> None:
    """Two runs without services, past the ends of segments, queue files and index files."""
    with harness.open() as store:
        for number in range(6):
            harness.send(store, [100 + 700 * number] * 5, queue_id=number % 2)
            store.flush()
            harness.durable = list(harness.sender.sent)
        harness.send(store, [60] * 10, split=True)
    harness.durable = list(harness.sender.sent)
    with harness.open() as store:
        harness.send(store, [7000, 7000, 40])
        store.flush()
        harness.durable = list(harness.sender.sent)
        harness.send(store, [300] * 8)
    harness.durable = list(harness.sender.sent)


def deleting(harness: Harness) -> None:
    """Delete a topic and create it again."""
    with harness.open() as store:
        harness.send(store, [200] * 5)
        gone = harness.sender.append(store, [harness.sender.message(50, "gone") for _ in range(5)])
        store.flush()
        harness.durable = [sent for sent in harness.sender.sent if sent not in gone]
        store.delete_topic("gone")
        harness.sender.sent = harness.sender.sent[:-5]
        harness.send(store, [200] * 5)
        store.flush()
        harness.durable = list(harness.sender.sent)
    with harness.open() as store:
        assert store.queue_range("gone", 0)[0] == store.queue_range("gone", 0)[1]


async def serving_for(harness: Harness, rounds: int) -> None:
    """Send and wait for durability while the services run; an error ends the services."""
    store = harness.open()
    services = asyncio.create_task(store.run())

    async def send(round_: int, sender: int) -> None:
        sent = harness.send(store, [120 + 500 * sender] * (1 + sender), queue_id=sender)
        await store.wait_stored(sent[-1].end, durable=True)
        harness.durable += sent

    try:
        async with asyncio.timeout(60):
            for round_ in range(rounds):
                results = await asyncio.gather(*(send(round_, sender) for sender in range(3)), return_exceptions=True)
                harness.refused += sum(isinstance(result, StoreError) for result in results)
                unexpected = [r for r in results if isinstance(r, BaseException) and not isinstance(r, StoreError)]
                assert not unexpected, unexpected
                if any(isinstance(result, StoreFailedError) for result in results):
                    await services  # ends by itself, with the error
                    raise AssertionError("the services go on in a failed store")
                if round_ % 4 == 2:
                    await asyncio.sleep(0.02)  # for the flush of queues, index and checkpoint
    finally:
        services.cancel()
        try:
            await services
        except asyncio.CancelledError:
            pass
        finally:
            store.close()
    harness.durable = list(harness.sender.sent)  # the store closed without an error


def serving(harness: Harness) -> None:
    asyncio.run(serving_for(harness, 7))


@contextmanager
def snapshots(
    harness: Harness, seeds: int
) -> Iterator[list[tuple[Operation, MemoryFileSystem, list[Sent], list[Sent]]]]:
    """Return the crashed disks from before every changing operation, with the messages sent and promised by then."""
    taken: list[tuple[Operation, MemoryFileSystem, list[Sent], list[Sent]]] = []

    def before(operation: Operation) -> None:
        if operation.name in CHANGES:
            for seed in range(seeds):
                # First, because another thread may end a sync of the log between the two.
                durable = list(harness.durable)
                disk = harness.disk.crash(operation.number * 1000 + seed)
                taken.append((operation, disk, list(harness.sender.sent), durable))

    harness.disk.before_operation = before
    yield taken
    harness.disk.before_operation = None


@pytest.mark.parametrize(("write_mode", "flush"), MODES)
@pytest.mark.parametrize("workload", [blocking, serving, deleting], ids=lambda workload: workload.__name__)
def test_a_power_cut_before_every_operation(workload: Workload, write_mode: WriteMode, flush: FlushMode) -> None:
    """Whatever unsynced data is lost, the store opens with all acknowledged messages and no others."""
    harness = Harness(flush, write_mode)
    with snapshots(harness, SEEDS) as taken:
        workload(harness)
    for operation, disk, sent, durable in taken:
        try:
            with reopen(disk, harness.config, ManualClock(harness.clock.now_ms())) as store:
                compare(store, sent if workload is deleting else harness.sender.sent, durable)
        except Exception as error:
            error.add_note(f"before {operation}, {len(sent)} sent, {len(durable)} durable")
            raise
    count = len({operation.number for operation, *_ in taken})
    print(f"{workload.__name__}, {write_mode}, {flush}: {count} operations x {SEEDS} seeds = {len(taken)} power cuts")
    assert count > 50


@pytest.mark.parametrize("write_mode", ["gathered", "mapped", "pool"])
def test_a_disk_that_runs_full(write_mode: WriteMode) -> None:
    """A refused append changes nothing, queues and index continue, and appends work again once there is space."""
    harness = Harness("sync", write_mode, MemoryFileSystem(capacity=200_000))
    with harness.open() as store:
        harness.send(store, [500] * 3)
        store.flush()
        filler = harness.disk.create(DIRECTORY / "filler", 200_000)
        filler.reserve(0, (200_000 - harness.disk.used) // 4096 * 4096)
        while True:
            before = store.positions, store.queue_range("orders", 0)
            message = harness.sender.message(3000)
            try:
                harness.sender.append(store, [message])
            except StoreFullError:
                break
            assert store.positions[0] < 64 * 16384
        assert (store.positions, store.queue_range("orders", 0)) == before
        assert store.state == "open"
        with pytest.raises(StoreFullError):
            store.append([harness.sender.message(3000) for _ in range(12)])
        assert store.positions == before[0], "all or none"
        store.flush()
        harness.disk.unlink(DIRECTORY / "filler")
        harness.send(store, [3000] * 12)
        store.flush()
        compare(store, harness.sender.sent, harness.sender.sent)
    with harness.open() as store:
        compare(store, harness.sender.sent, harness.sender.sent)


@pytest.mark.parametrize("write_mode", ["gathered", "mapped", "pool"])
def test_a_full_disk_at_every_capacity(write_mode: WriteMode) -> None:
    """At any capacity the only errors are StoreFullError or a failed store. No mapping is written without blocks.

    No stored message is lost.
    """
    full = failed = 0
    for capacity in range(4096, 40 * 4096, 4096):
        harness = Harness("sync", write_mode, MemoryFileSystem(capacity=capacity))
        try:
            blocking(harness)
        except StoreFullError:
            full += 1
        except StoreFailedError:
            failed += 1
        crashed = harness.disk.crash(capacity)
        crashed.capacity = None
        with reopen(crashed, harness.config, ManualClock(harness.clock.now_ms())) as store:
            compare(store, harness.sender.sent, harness.durable)
    print(f"capacities: {full} times messages were refused, {failed} times the store stopped")
    assert full


def run_with_error(
    workload: Workload, write_mode: WriteMode, flush: FlushMode, at: int, number: int
) -> tuple[Harness, BaseException | None]:
    harness = Harness(flush, write_mode)
    harness.disk.fail_at(None, at, number)
    try:
        workload(harness)
    except (StoreError, OSError) as error:
        return harness, error
    return harness, None


def _place() -> tuple[tuple[str, int], ...]:
    """The lines of the store that lead to the operation that begins."""
    frame: FrameType | None = sys._getframe(2)
    lines = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(_STORE):
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)


@contextmanager
def noting_places(disk: MemoryFileSystem) -> Iterator[dict[object, int]]:
    """Give the first operation of each kind from each place in the store, by its number."""
    first: dict[object, int] = {}

    def before(operation: Operation) -> None:
        first.setdefault((operation.name, _place()), operation.number)

    disk.before_operation = before
    yield first
    disk.before_operation = None


def chosen(
    log: list[Operation], first: Iterable[int], workload: Workload, write_mode: WriteMode, flush: FlushMode, number: int
) -> list[int]:
    """Where to fail: at regular intervals, and at the first operation of each kind. With EIO in the default write mode
    at the first one from each place of the store; everywhere in the long run. Without services the flush modes do not
    differ.
    """
    every_place = number == errno.EIO and write_mode == "gathered" and (flush == "sync" or workload is serving)
    kinds = {operation.name: operation.number for operation in reversed(log)}
    places = first if every_place else ()
    return sorted({*range(1, len(log) + 1, 1 if CYCLES else 7), *kinds.values(), *places})


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize(("write_mode", "flush"), MODES)
@pytest.mark.parametrize("workload", [blocking, serving], ids=lambda workload: workload.__name__)
def test_an_error_at_every_operation(workload: Workload, write_mode: WriteMode, flush: FlushMode, number: int) -> None:
    """No message is acknowledged that is not durable, errors are the store's own types, and the store reopens."""
    clean = Harness(flush, write_mode)
    with noting_places(clean.disk) as first:
        workload(clean)
    tried = chosen(clean.disk.log, first.values(), workload, write_mode, flush, number)
    failed = 0
    for at in tried:
        if number == errno.ENOSPC and clean.disk.log[at - 1].name not in CHANGES:
            continue  # reading needs no space
        harness, error = run_with_error(workload, write_mode, flush, at, number)
        operation = harness.disk.log[at - 1] if len(harness.disk.log) >= at else None
        try:
            if error is not None:
                failed += 1
                assert isinstance(error, StoreError), f"{error!r} is not an error of the store"
            harness.disk.heal()
            crashed = harness.disk.crash(at)
            with reopen(crashed, harness.config, ManualClock(harness.clock.now_ms())) as store:
                compare(store, harness.sender.sent, harness.durable)
        except BaseException as problem:
            problem.add_note(f"error {number} at {operation}; the workload ended with {error!r}")
            raise
    name = f"{workload.__name__}, {write_mode}, {flush}, {errno.errorcode[number]}"
    print(f"{name}: {len(tried)} of {clean.disk.operations} operations, {failed} stopped the store")
    assert failed
