"""Transactions across a power cut or `kill -9` at every disk operation."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee_broker.transactions.half_messages import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from aerobee_proto import v2
from aerobee_store import RecordNotFoundError
from aerobee_store.config import FlushMode
from aerobee_store.testing import MemoryFileSystem, Operation
from tests.support.transaction_harness import COMMIT, ROLLBACK, TransactionHarness

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("silent_log")]

OK = v2.Code.OK
SEEDS = range(max(int(os.environ.get("AEROBEE_CRASH_CYCLES", "0")) // 20, 1))


@dataclass
class Promises:
    """The client requests so far, and those of them that were answered, at one moment."""

    sent: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    asked: tuple[tuple[str, v2.TransactionResolution.ValueType], ...] = ()
    decided: tuple[tuple[str, v2.TransactionResolution.ValueType], ...] = ()


class Run:
    """A workload, and the disks that a crash before each operation would leave."""

    def __init__(self, directory: Path, flush: FlushMode) -> None:
        self.harness = TransactionHarness(directory, flush=flush, check_max=2, pending_max=20)
        self.promises = Promises()
        self.found: list[tuple[MemoryFileSystem, Promises]] = []

    def watch(self, *, power_cut: bool) -> None:
        disk = self.harness.disk

        def look(operation: Operation) -> None:
            for seed in SEEDS if power_cut else (0,):
                # The event loop keeps running: this disk may lack a later answer, and may have a later request.
                before = self.promises
                found = disk.crash(seed) if power_cut else disk.kill()
                after = self.promises
                self.found.append((found, Promises(after.sent, before.stored, after.asked, before.decided)))

        disk.before_operation = look

    async def send(self, *names: str) -> None:
        self._note(sent=self.promises.sent | set(names))
        await self.harness.send(*names)
        self._note(stored=self.promises.stored | set(names))

    async def end(self, name: str, resolution: v2.TransactionResolution.ValueType) -> None:
        self._note(asked=(*self.promises.asked, (name, resolution)))
        assert await self.harness.end(name, resolution) == OK
        self._note(decided=(*self.promises.decided, (name, resolution)))

    def _note(self, **changes: object) -> None:
        fields = {name: getattr(self.promises, name) for name in Promises.__dataclass_fields__}
        self.promises = Promises(**{**fields, **changes})


async def workload(run: Run) -> None:
    """Every possible course of a transaction, across several segments."""
    harness = run.harness
    await run.send("A", "B")
    await run.end("A", COMMIT)
    await asyncio.gather(run.send("C"), run.send("D"), run.end("B", ROLLBACK))
    await asyncio.gather(run.end("C", COMMIT), run.send("E", "F"), run.end("D", COMMIT))
    harness.producer("sender")
    await harness.advance(6.1)  # E and F are checked
    await run.end("E", COMMIT)
    await harness.tables.save()
    await harness.advance(30.1)
    await harness.advance(30.1)  # F is discarded
    await run.send(*(f"G{number}" for number in range(8)))
    for number in range(8):
        await run.end(f"G{number}", COMMIT if number % 2 else ROLLBACK)
    await harness.transactions.keep_from(harness.store.positions[0])
    await run.send("H")


@pytest.mark.parametrize(("flush", "power_cut"), [("sync", True), ("sync", False), ("async", False)])
async def test_at_every_operation(tmp_path: Path, flush: FlushMode, power_cut: bool) -> None:
    """Every answered request holds, unanswered ones may be repeated, and no message is stored twice."""
    run = Run(tmp_path / "store", flush)
    await run.harness.start()
    run.watch(power_cut=power_cut)
    await workload(run)
    run.harness.disk.before_operation = None
    await run.harness.abandon()
    assert len(run.found) > 30
    for disk, promises in run.found:
        await check(run.harness, disk, promises, flush)


async def check(before: TransactionHarness, disk: MemoryFileSystem, promises: Promises, flush: FlushMode) -> None:
    """Start on the disk and compare, repeat the unanswered requests, and compare again after another crash."""
    harness = await TransactionHarness(
        before.directory, disk, before.clock, flush=flush, check_max=2, pending_max=20
    ).start()
    finals = Counter(harness.ids())
    given_up = set(harness.ids(GIVEN_UP_TOPIC))
    decided = dict(promises.decided)
    assert max(finals.values(), default=0) <= 1, finals
    for name, resolution in promises.decided:
        assert finals[name] == (resolution == COMMIT), (name, promises)
    for name in promises.stored - dict(promises.asked).keys() - given_up:
        assert finals[name] == 0
        assert await harness.end(name, v2.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED) == OK, name
    for name in promises.sent - promises.stored:
        await harness.send(name)
    for name, resolution in promises.asked:
        assert await harness.end(name, resolution) == OK, (name, promises)
        if name in decided:
            other = ROLLBACK if resolution == COMMIT else COMMIT
            assert await harness.end(name, other) == v2.Code.INVALID_TRANSACTION_ID
    harness = await harness.crash()
    finals = Counter(harness.ids())
    assert finals == Counter(name for name, resolution in promises.asked if resolution == COMMIT)
    wait = len(promises.sent - dict(promises.asked).keys() - given_up)
    assert harness.transactions.pending_count == wait
    await harness.abandon()


async def test_final_message_without_its_op(tmp_path: Path) -> None:
    """A torn write ended the log between final message and op: the start adds the op once and repeats no commit."""
    harness = await TransactionHarness(tmp_path / "store").start()
    await harness.send("T1", "T2")
    assert await harness.end("T1") == OK
    [op] = harness.stored(OP_TOPIC)
    disk = harness.disk.kill()
    disk.damage(tmp_path / "store" / "commitlog" / f"{0:020}", op.physical_offset, bytes(op.size))
    harness = await harness.crash(disk)
    with pytest.raises(RecordNotFoundError):
        harness.store.record_at(op.physical_offset + op.size)
    assert harness.transactions.pending_count == 1
    assert [each.body for each in harness.stored(OP_TOPIC)] == [b"0"]
    assert await harness.end("T1") == OK
    assert await harness.end("T1", ROLLBACK) == v2.Code.INVALID_TRANSACTION_ID
    for _ in range(2):
        harness = await harness.crash()
        assert [each.body for each in harness.stored(OP_TOPIC)] == [b"0"]
        assert (harness.transactions.pending_count, harness.ids()) == (1, ["T1"])
    await harness.abandon()


async def test_renewed_half_message_without_its_op(tmp_path: Path) -> None:
    """A torn write between the two records of a check leaves one transaction, which has been checked once."""
    harness = await TransactionHarness(tmp_path / "store").start()
    harness.producer("sender")
    await harness.send("T1")
    await harness.advance(6.1)
    [op] = harness.stored(OP_TOPIC)
    disk = harness.disk.kill()
    disk.damage(tmp_path / "store" / "commitlog" / f"{0:020}", op.physical_offset, bytes(op.size))
    harness = await harness.crash(disk)
    assert harness.transactions.pending_count == 1
    assert [each.body for each in harness.stored(OP_TOPIC)] == [b"0"]
    assert await harness.end("T1") == OK
    harness = await harness.crash()
    assert (harness.transactions.pending_count, harness.ids()) == (0, ["T1"])
    assert len(harness.ids(HALF_TOPIC)) == 2
    await harness.abandon()


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
async def test_op_without_its_final_message(tmp_path: Path, resolution: v2.TransactionResolution.ValueType) -> None:
    """A power cut before the sync lost the final message and kept the op after it.

    The transaction is pending again, also in the log, so that the next start ignores the op. A client that repeats its
    commit gets its message stored.
    """
    harness = await TransactionHarness(tmp_path / "store").start()
    await harness.send("T1")
    assert await harness.end("T1") == OK
    [final] = harness.stored()
    disk = harness.disk.kill()
    disk.damage(tmp_path / "store" / "commitlog" / f"{0:020}", final.physical_offset, bytes(final.size))
    harness = await harness.crash(disk)
    assert harness.ids() == []
    for _ in range(3):
        assert harness.transactions.pending_count == 1
        harness = await harness.crash()
    assert await harness.end("T1", resolution) == OK
    for _ in range(2):
        harness = await harness.crash()
        assert harness.transactions.pending_count == 0
        assert harness.ids() == (["T1"] if resolution == COMMIT else [])
    await harness.abandon()
