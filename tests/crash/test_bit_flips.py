"""Flipped bits and truncated files, in every kind of store file, are reported, repaired or harmless.

AEROBEE_CRASH_SEED repeats a run. test_bit_flips_broker.py covers the files that the broker adds to a store: timer,
delivery journal and tables.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, Record, StoreConfig, StoreError
from aerobee_store.records.properties import KEYS
from aerobee_store.testing import ManualClock, MemoryFileSystem
from aerobee_store.tools.verify import verify
from tests.support.bit_flips import SEED, Damage, Table, UnseenError, WrongError
from tests.support.stored_messages import DIRECTORY, TAG_NAMES, Sender, Sent
from tests.unit.store.queues.test_batch_consume_queue import TOPIC as BATCH_TOPIC
from tests.unit.store.queues.test_batch_consume_queue import inner

IS_LONG = "AEROBEE_CRASH_CYCLES" in os.environ
COUNT = 92_000 if IS_LONG else 1_225  # 92,000 take some ten minutes of processor time
VERIFIED = 1.0 if IS_LONG else 1 / 3  # share of the damage visible only to `verify` that is checked: each check is slow

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("silent_log"), pytest.mark.timeout(7200 if IS_LONG else 240)]

CONFIG = replace(
    StoreConfig.tiny(DIRECTORY),
    segment_size=4096,
    body_size_max=2048,
    queue_file_size=10 * 20,
    batch_queue_file_size=4 * 46,
    index_slot_count=7,
    index_entry_count=30,
)
_ORDERLY_STOPS = 0.02  # share of stores closed in order; the others are abandoned after the checks


Place = tuple[str, int, int]
"""Topic, queue id and queue offset."""


@dataclass
class Written:
    """A store's disk and configuration, and the messages in the store."""

    config: StoreConfig
    disk: MemoryFileSystem
    now_ms: int
    end: int
    sent: list[Sent]
    messages: dict[Place, tuple[bytes, str, tuple[str, ...], int]] = field(default_factory=dict)

    def open(self, disk: MemoryFileSystem) -> MessageStore:
        return MessageStore.open(
            self.config,
            file_system=disk,
            clock=ManualClock(self.now_ms),
            is_batch_topic=lambda topic: topic == BATCH_TOPIC,
        )


@cache
def written(*, closed: bool, extended: bool) -> Written:
    """Return a store with several files of every kind, closed in order or left by a killed process."""
    clock = ManualClock()
    disk = MemoryFileSystem(clock=clock)
    sender = Sender()
    before = Written(replace(CONFIG, queue_extensions=extended), disk, 0, 0, sender.sent)
    store = before.open(disk)
    gone = Message("gone", 0, b"of a topic that is deleted", {KEYS: "gone"}, born_host=("10.0.0.1", 4000))
    store.append([gone, gone])
    store.delete_topic("gone")
    for number in range(18):
        clock.advance(0.3)
        sender.append(store, [sender.message(20 + 37 * (number % 10), "orders", number % 2)])
        if number % 4 == 3:
            store.append([inner(*(f"batch {number} {item}".encode() for item in range(3)))])
        if number == 12:
            store.flush()
    store.flush()
    before.now_ms, before.end = clock.now_ms(), store.positions[0]
    for place, record in everything(store)[0].items():
        before.messages[place] = what(record)
    assert len(before.messages) == 18 + 4 * 3
    if closed:
        store.close()
    before.disk = disk.kill()
    return before


def what(record: Record) -> tuple[bytes, str, tuple[str, ...], int]:
    return bytes(record.body), record.tag or "", tuple(record.keys), record.physical_offset


def everything(store: MessageStore) -> tuple[dict[Place, Record], int]:
    """Return the messages that readers get from every queue, and the number reported as lost."""
    found: dict[Place, Record] = {}
    lost = 0
    for topic, queue_id in (("orders", 0), ("orders", 1), (BATCH_TOPIC, 0), ("gone", 0)):
        offset, end = store.queue_range(topic, queue_id)
        while offset < end:
            result = store.read(topic, queue_id, offset, max_count=100)
            lost += result.lost
            found |= {(topic, queue_id, record.queue_offset): record for record in result.records}
            offset = result.next_offset
    return found, lost


def judge(before: Written, disk: MemoryFileSystem, *, orderly: bool) -> str:
    """Open a damaged disk and compare the messages with the original: refused, detected, repaired or harmless."""
    try:
        store = before.open(disk)
    except StoreError:
        return "refused"
    try:
        report = store.recovery
        found, lost = everything(store)
        for place, record in found.items():
            if before.messages.get(place) != what(record):
                raise WrongError(f"{place} is another message, or none that was ever there")
        missing = before.messages.keys() - found.keys()
        # `lost` counts a hole in a queue. Recovery reports a hole in the log or a lost end.
        noticed = bool(report.damaged or report.quarantined or lost or report.torn or report.lost)
        if missing and not noticed:
            raise WrongError(f"{sorted(missing)} are gone and nothing says so")
        _judge_tags(store, found)
        _judge_keys(store, before, found)
        if missing:
            return "detected"
        added = report.units_added or report.units_corrected or report.units_dropped
        return "repaired" if added or noticed else "harmless"
    finally:
        if not orderly:
            store._durability.failure = OSError("killed")
        store.close()


def _judge_tags(store: MessageStore, found: dict[Place, Record]) -> None:
    for queue_id in range(2):
        for tag in TAG_NAMES[:2]:
            offset, high = store.queue_range("orders", queue_id)
            tagged = []
            while offset < high:
                result = store.read("orders", queue_id, offset, tags=frozenset({tag}))
                tagged += [record.queue_offset for record in result.records]
                offset = result.next_offset
            wanted = [
                place[2] for place, record in found.items() if place[:2] == ("orders", queue_id) and record.tag == tag
            ]
            if set(tagged) - set(wanted):
                raise WrongError(f"tag {tag} of queue {queue_id} finds another message")
            if tagged != wanted:
                raise UnseenError(f"tag {tag} of queue {queue_id}")


def _judge_keys(store: MessageStore, before: Written, found: dict[Place, Record]) -> None:
    if store.query("gone", "gone"):
        raise WrongError("a deleted message is back")
    for sent in before.sent:
        places = {record.physical_offset for record in store.query("orders", sent.keys[0])}
        if places - {sent.physical_offset}:
            raise WrongError(f"key {sent.keys[0]} finds another message")
        if ("orders", sent.queue_id, sent.queue_offset) in found and not places:
            raise UnseenError(f"key {sent.keys[0]} finds nothing")


def verify_finds_it(before: Written, disk: MemoryFileSystem, directory: Path) -> bool:
    """Return whether `aerobee store verify` finds the damage in a copy of the disk."""
    for path, data in disk.contents().items():
        target = directory / path.relative_to(DIRECTORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    config = before.config
    return not verify(
        directory, index_slot_count=config.index_slot_count, index_entry_count=config.index_entry_count
    ).ok


@pytest.mark.parametrize(
    ("closed", "extended", "share"),
    [(True, False, 0.4), (False, False, 0.4), (True, True, 0.1), (False, True, 0.1)],
    ids=["closed", "killed", "closed-extended", "killed-extended"],
)
def test_flipped_bits_and_truncated_files(closed: bool, extended: bool, share: float, tmp_path: Path) -> None:
    """No damage gives wrong data silently.

    Only `verify` finds damage to a tag hash in a unit or to a link in the index, because the format has no checksum for
    them. Such damage can hide a message from a filter or a key query; unfiltered reads still return it.
    """
    source = random.Random(f"{SEED} {closed} {extended}")
    before = written(closed=closed, extended=extended)
    damage = Damage(before.disk, source)
    table = Table()
    for number in range(round(COUNT * share)):
        disk = before.disk.kill()
        done = damage.do(disk)
        try:
            verdict = judge(before, disk, orderly=source.random() < _ORDERLY_STOPS)
        except UnseenError as error:
            verdict = "verify"
            looked = source.random() < VERIFIED
            if done.kind == "commitlog" or (looked and not verify_finds_it(before, disk, tmp_path / str(number))):
                verdict = table.wrong(done, error)
        except WrongError as error:
            verdict = table.wrong(done, error)
        except Exception as error:
            error.add_note(f"seed {SEED}: {done}")
            raise
        table.add(done, verdict)
    table.show(f"{'closed' if closed else 'killed'}{', extended units' if extended else ''}")
    kinds: Counter[str] = table.kinds()
    wanted = {
        "commitlog",
        "consumequeue",
        "batchconsumequeue",
        "index",
        "checkpoint",
        "lock",
        "store.id",
        "queueBounds.json",
    }
    wanted |= {"config/deletedTopics.json"}
    assert kinds.keys() == wanted | ({"consumequeue_ext"} if extended else set()) | (set() if closed else {"abort"})
    assert not table.wrongs, "\n".join(table.wrongs[:40])
