"""Flipped bits and truncated files in the broker's own files in a store: timer files, delivery journal, tables."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aerobee_broker.delivery.journal.event_log import JOURNAL_TOPIC
from aerobee_broker.errors import BrokerError
from aerobee_broker.tables.consumer_groups import GroupConfig, GroupTable
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.topics import TopicConfig, TopicTable
from aerobee_store import MessageStore, StoreError
from aerobee_store.stats import StoreStats
from aerobee_store.tables.java_json import IntegerMap, dumps
from aerobee_store.tables.json_table import JsonTable
from aerobee_store.tables.logged_table import FIELDS, LoggedTable
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.bit_flips import SEED, Damage, Done, Table, WrongError
from tests.support.delivery_harness import GROUP, TOPIC, Harness
from tests.support.stored_messages import DIRECTORY
from tests.support.timer_harness import START_MS, STORE, TimerHarness

IS_LONG = "AEROBEE_CRASH_CYCLES" in os.environ
TIMER_COUNT, JOURNAL_COUNT, TABLE_COUNT = (6_000, 4_000, 60_000) if IS_LONG else (100, 60, 1_200)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(7200 if IS_LONG else 240)]


class _Heard(logging.Handler):
    """Collects warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect warnings and errors of store and broker, and keep them out of the other logs."""
    heard = _Heard()
    loggers = [logging.getLogger(name) for name in ("aerobee_store", "aerobee_broker")]
    for logger in loggers:
        logger.addHandler(heard)
        logger.propagate = False
    try:
        yield heard.messages
    finally:
        for logger in loggers:
            logger.removeHandler(heard)
            logger.propagate = True


# --- timer


async def pending(*, closed: bool) -> tuple[MemoryFileSystem, int, dict[str, int]]:
    """Return a disk with pending delayed messages, the time, and the due time of each message."""
    harness = await TimerHarness.start()
    due: dict[str, int] = {}
    for number, delay in enumerate((5.0, 5.2, 9.0, 40.0, 41.0, 90.0)):
        due[f"m{number}"] = await harness.send(f"m{number}", delay)
    await harness.save()
    for number, delay in enumerate((5.5, 40.5), 6):
        due[f"m{number}"] = await harness.send(f"m{number}", delay)
    if closed:
        await harness.stop()
    disk = harness.disk.kill()
    await harness.abandon()
    return disk, harness.clock.now_ms(), due


async def judge_timer(disk: MemoryFileSystem, now_ms: int, due: dict[str, int]) -> str:
    """Start a timer on a damaged disk and check the deliveries of the pending messages."""
    with listening() as heard:
        try:
            harness = await TimerHarness.start(disk, ManualClock(now_ms))
        except StoreError:
            return "refused"
        try:
            for _ in range(5):
                await harness.advance(21)
            delivered = harness.delivered()
            lost = harness.timer.stats.lost
        finally:
            await harness.abandon()
            with suppress(StoreError):
                harness.store.close()
    counts = Counter(item.body for item in delivered)
    if twice := [body for body, count in counts.items() if count > 1]:
        raise WrongError(f"{twice} came twice")
    if unknown := counts.keys() - due.keys():
        raise WrongError(f"{sorted(unknown)} were never sent")
    if early := [item.body for item in delivered if item.at_ms < due[item.body]]:
        raise WrongError(f"{early} came early")
    if missing := due.keys() - counts.keys():
        if not (lost or heard):
            raise WrongError(f"{sorted(missing)} never came, and nothing says so")
        return "detected"
    return "repaired" if heard else "harmless"


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
async def test_flipped_bits_of_the_timer(closed: bool) -> None:
    """Every pending message is delivered once and on time: the timer files can be rebuilt from the log."""
    source = random.Random(f"{SEED} timer {closed}")
    disk, now_ms, due = await pending(closed=closed)
    damage = Damage(disk, source, names=("timerwheel", "timerlog", "timercheck"))
    table = Table()
    for _ in range(TIMER_COUNT // 2):
        damaged = disk.kill()
        done = damage.do(damaged)
        try:
            async with asyncio.timeout(60):
                table.add(done, await judge_timer(damaged, now_ms, due))
        except WrongError as error:
            table.add(done, table.wrong(done, error))
        except BaseException as error:
            error.add_note(f"seed {SEED}: {done}")
            raise
    table.show(f"timer {'closed' if closed else 'killed'}")
    assert now_ms == START_MS
    assert not table.wrongs, "\n".join(table.wrongs[:20])


# --- delivery journal


State = dict[tuple[str, int], tuple[int, tuple[int, ...]]]
"""Group and queue id -> commit offset (the first unfinished message), and the finished offsets."""


def state(harness: Harness) -> State:
    """Return the finished messages."""
    found: State = {}
    for group in (GROUP, "audit"):
        for queue_id in range(2):
            delivery = harness.deliveries.queue_delivery(TOPIC, group, queue_id)
            if delivery is not None:
                finished = tuple(offset for offset in range(30) if delivery.is_finished(offset))
                found[group, queue_id] = delivery.commit_offset, finished
    return found


async def journalled(directory: Path) -> tuple[State, list[tuple[int, int]]]:
    """Return the finished messages of a store left by a killed broker, and the places of its journal records."""
    harness = await Harness.start(directory, ManualClock())
    for queue_id in range(2):
        await harness.send(*(f"m{queue_id}-{number}" for number in range(8)), queue_id=queue_id)
    for group in (GROUP, "audit"):
        messages = await harness.receive(10, group=group)
        for message in messages[::2]:
            assert await harness.acknowledge(message, group=group) == [True]
    before = state(harness)
    places = []
    low, high = harness.store.queue_range(JOURNAL_TOPIC, 0)
    for record in harness.store.read(JOURNAL_TOPIC, 0, low, max_count=high - low).records:
        places.append((record.physical_offset, record.size))
    for service in harness._services:
        service.cancel()
    await asyncio.gather(*harness._services, return_exceptions=True)
    harness.store._durability.failure = OSError("killed")  # like a kill: close writes nothing
    harness.store.close()
    return before, places


async def judge_journal(directory: Path, before: State) -> str:
    """Start a broker on a damaged journal and compare the finished messages with the original."""
    with listening() as heard:
        try:
            harness = await Harness.start(directory, ManualClock())
        except (StoreError, BrokerError):
            return "refused"
        try:
            after = state(harness)
            damaged = bool(harness.store.recovery.damaged or harness.store.recovery.torn or harness.store.recovery.lost)
        finally:
            for service in harness._services:
                service.cancel()
            await asyncio.gather(*harness._services, return_exceptions=True)
            harness.store._durability.failure = OSError("killed")
            harness.store.close()
    if after == before:
        return "repaired" if damaged or heard else "harmless"
    for key, (commit, finished) in after.items():
        was_commit, was_finished = before.get(key, (0, ()))
        if commit > was_commit or set(finished) - set(was_finished) - set(range(was_commit)):
            raise WrongError(f"{key}: {commit}, {finished} are finished, not {was_commit}, {was_finished}")
    if not (damaged or heard):
        raise WrongError(f"acknowledgements are forgotten and nothing says so: {after}, not {before}")
    return "detected"


async def test_flipped_bits_of_the_delivery_journal(tmp_path: Path) -> None:
    """A lost acknowledgement is reported, and no message becomes acknowledged by damage."""
    source = random.Random(f"{SEED} journal")
    before, places = await journalled(tmp_path / "store")
    assert len(places) >= 6
    table = Table()
    for number in range(JOURNAL_COUNT):
        directory = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "store", directory)
        begin, size = source.choice(places)
        position = begin + source.randrange(size)
        segment = directory / "commitlog" / f"{0:020}"
        with segment.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1 << source.randrange(8)]))
        done = Done(DIRECTORY / "journal records", "flip", position)
        try:
            table.add(done, await judge_journal(directory, before))
        except WrongError as error:
            table.add(done, table.wrong(done, error))
        shutil.rmtree(directory)
    table.show("killed")
    assert not table.wrongs, "\n".join(table.wrongs[:20])


# --- tables


CONFIG = DIRECTORY / "config"
CLOCK = ManualClock(START_MS)
TABLES: dict[str, Callable[[object | None], object]] = {
    "topics.json": lambda value: TopicTable.from_json(value, CLOCK).snapshot(),
    "subscriptionGroup.json": lambda value: GroupTable.from_json(value, CLOCK).snapshot(),
    "consumerOffset.json": lambda value: OffsetTable.from_json(value, CLOCK).snapshot(),
    "delayOffset.json": lambda value: value,
    "aerobeeSettings.json": lambda value: value,
}
"""File name -> function that turns the parsed file into the content that a start uses."""


def tables() -> MemoryFileSystem:
    """Return a disk on which each table was saved three times, so that it has a copy and two checksums.

    Topics and groups also have changes in a log.
    """
    topics, groups, offsets = TopicTable(CLOCK), GroupTable(CLOCK), OffsetTable(CLOCK)
    levels: dict[int, int] = {}
    disk = MemoryFileSystem()
    disk.make_directory(CONFIG)
    files = {name: JsonTable(disk, CONFIG / name) for name in TABLES}
    for number in range(3):
        CLOCK.advance(7.919)
        topics.create(TopicConfig.of_type(f"orders-{number}", queue_count=4))
        groups.create(GroupConfig(name=f"billing-{number}"))
        for queue_id in range(4):
            offsets.commit("orders-0", f"billing-{number}", queue_id, 1205 + 77 * number + queue_id)
        levels[number + 1] = 31 + number
        files["topics.json"].save(topics.snapshot())
        files["subscriptionGroup.json"].save(groups.snapshot())
        files["consumerOffset.json"].save(offsets.snapshot())
        files["delayOffset.json"].save({"offsetTable": IntegerMap.of(levels)})
        files["aerobeeSettings.json"].save({"settings": {"store.retention_hours": str(24 * (number + 1))}})
    for name, table in (("topics.json", topics), ("subscriptionGroup.json", groups)):
        changing = table_file(disk, name)
        assert isinstance(changing, LoggedTable)
        changing.load()
        changing.save(table.content())
        for number in range(3):
            revision = table.revision
            if isinstance(table, TopicTable):
                table.create(TopicConfig.of_type(f"late-{number}"))
            else:
                table.create(GroupConfig(name=f"late-{number}"))
            change = table.unsaved_change()()
            changing.append(changing.encode(change.after, change.data_version, change.items))
            table.mark_saved(revision + 1)
    return disk


def table_file(disk: MemoryFileSystem, name: str, stats: StoreStats | None = None) -> JsonTable | LoggedTable:
    return (LoggedTable if name in FIELDS else JsonTable)(disk, CONFIG / name, stats=stats)


def judge_table(disk: MemoryFileSystem, name: str, before: bytes) -> str:
    """Load one table from a damaged disk and compare it with the saved content."""
    stats = StoreStats()
    with listening() as heard:
        try:
            after = dumps(TABLES[name](table_file(disk, name, stats).load()))
        except (StoreError, BrokerError):
            return "refused"
    if stats.tables_changed and not heard:
        raise WrongError("what is counted is not said")
    if after == before:
        return "detected" if heard else "harmless"
    if not heard:
        raise WrongError(f"{after!r} is believed, not {before!r}")
    return "detected"


def test_flipped_bits_of_the_tables() -> None:
    """A changed table is never loaded without a report. Damage to the copy or the checksums changes nothing."""
    source = random.Random(f"{SEED} tables")
    disk = tables()
    contents = {name: dumps(TABLES[name](table_file(disk, name).load())) for name in TABLES}
    damage = Damage(disk, source)
    table = Table()
    for _ in range(TABLE_COUNT):
        damaged = disk.kill()
        done = damage.do(damaged)
        name = done.path.name.removesuffix(".bak").removesuffix(".crc").removesuffix(".log")
        try:
            verdict = judge_table(damaged, name, contents[name])
            if done.path.name != name and verdict == "refused":
                raise WrongError("the table itself is whole")
        except WrongError as error:
            verdict = table.wrong(done, error)
        table.add(done, verdict)
    table.show("tables")
    files = {f"config/{name}{suffix}" for name in TABLES for suffix in ("", ".bak", ".crc")}
    assert table.kinds().keys() == files | {f"config/{name}.log" for name in FIELDS}
    assert not table.wrongs, "\n".join(table.wrongs[:20])


def test_the_damage_is_applied() -> None:
    """A flip changes one bit of the copied disk and none of the original; a cut truncates the file as stated."""
    disk = MemoryFileSystem()
    MessageStore.open(STORE, file_system=disk).close()
    before = disk.contents()
    damage = Damage(disk, random.Random(1))
    for _ in range(200):
        copy = disk.kill()
        done = damage.do(copy)
        after = copy.contents()
        changed = [path for path in before if before[path] != after[path]]
        assert changed in ([done.path], [])
        if done.how == "cut":
            assert after[done.path] == before[done.path][: done.position]
        else:
            assert sum((a ^ b).bit_count() for a, b in zip(before[done.path], after[done.path], strict=True)) == 1
    assert disk.contents() == before
