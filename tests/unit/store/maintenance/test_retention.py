"""What retention removes and when, what it keeps, and what remains of queues, index and readers."""

from __future__ import annotations

import asyncio
import logging
import mmap
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aerobee_store import ConfigError, MessageStore, RunningFlags, StoreConfig, StoreFullError
from aerobee_store.config import WriteMode
from aerobee_store.disk.file_system import DiskFileSystem, DiskUsage
from aerobee_store.queues.consume_queue import UNIT, ConsumeQueue
from aerobee_store.testing import ManualClock, MemoryFileSystem, Operation
from tests.support import golden
from tests.support.stored_messages import DIRECTORY, Sender, Sent, compare, read_all

NOON = datetime(2026, 3, 10, 12, 0)
SEGMENT = 16384
PER_SEGMENT = 7  # messages of slightly more than 2,200 bytes
HOUR = 3600.0


class Disk(MemoryFileSystem):
    """A disk with a fill level set by the test; None: the usage query fails."""

    total = 10**12
    ratio: float | None = 0.5
    files_are_new = False

    def usage(self, path: Path) -> DiskUsage:
        if self.ratio is None:
            raise OSError(5, "Input/output error")
        return DiskUsage(total=self.total, available=self.total - round(self.total * self.ratio))

    def modified_ms(self, path: Path) -> int:
        return self._clock.now_ms() if self.files_are_new else super().modified_ms(path)


class Harness:
    """A store with tiny files on such a disk, at noon."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(round(NOON.timestamp() * 1000))
        self.disk = Disk(clock=self.clock)
        defaults: dict[str, Any] = {
            "disk_clean_ratio": 0.75,
            "disk_force_clean_ratio": 0.85,
            "disk_full_ratio": 0.90,
            "body_size_max": 4096,
        }
        self.config = replace(StoreConfig.tiny(DIRECTORY), **(defaults | settings))
        self.sender = Sender()
        self.store = self.open()

    def open(self) -> MessageStore:
        self.store = MessageStore.open(self.config, file_system=self.disk, clock=self.clock)
        return self.store

    def fill(self, segments: int, *, topic: str = "orders", queues: int = 2) -> list[Sent]:
        """Append as many messages as fit into the given number of segments, durable and dispatched."""
        sent = []
        for number in range(segments * PER_SEGMENT):
            sent += self.sender.append(self.store, [self.sender.message(2100, topic, number % queues)])
        self.store.flush()
        return sent

    @property
    def segments(self) -> list[int]:
        """Return the segment numbers on disk, after checking them against the store."""
        on_disk = [int(name) // SEGMENT for name in self.disk.list(DIRECTORY / "commitlog")]
        status = self.store.status()
        assert on_disk[0] * SEGMENT == status.min_offset
        assert len(on_disk) == status.segments
        return on_disk

    def at_hour(self, hour: int) -> None:
        """Advance the clock to the next time of this hour."""
        now = datetime.fromtimestamp(self.clock.now_ms() / 1000)
        then = now.replace(hour=hour, minute=30)
        if then <= now:
            then += timedelta(days=1)
        self.clock.advance(then.timestamp() - now.timestamp())


@pytest.fixture
def harnesses() -> Iterator[list[Harness]]:
    made: list[Harness] = []
    yield made
    for harness in made:
        harness.disk.heal()
        harness.store.close()


@pytest.fixture
def harness(harnesses: list[Harness]) -> Harness:
    harnesses.append(Harness())
    return harnesses[0]


# --- When ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "was_full", "left", "is_full"),
    [
        (0.50, False, [0, 1, 2, 3, 4, 5], False),
        (0.75, False, [0, 1, 2, 3, 4, 5], False),
        (0.751, False, [2, 3, 4, 5], False),
        (0.85, False, [2, 3, 4, 5], False),
        (0.85, True, [2, 3, 4, 5], False),
        (0.851, False, [5], False),
        (0.851, True, [5], True),
        (0.90, False, [5], False),
        (0.90, True, [5], True),
        (0.901, False, [5], True),
        (0.99, True, [5], True),
        (None, False, [2, 3, 4, 5], False),
        (None, True, [2, 3, 4, 5], True),
    ],
)
async def test_watermarks(
    harness: Harness, ratio: float | None, was_full: bool, left: list[int], is_full: bool
) -> None:
    """Outside the delete hours: nothing, then expired segments, then all but the last.

    The full flag shows whether messages are accepted.
    """
    harness.fill(3)  # the third segment ends when the fourth begins
    harness.clock.advance(72 * HOUR)
    harness.fill(3)
    if was_full:
        harness.disk.ratio = 0.95
        await harness.store.retention.look_at_disk()
    harness.disk.ratio = ratio
    await harness.store.retention.clean()
    harness.disk.ratio = 0.5
    assert harness.segments == left
    assert (harness.store.running.flags is RunningFlags.DISK_FULL) == is_full
    assert harness.store.stats.segments_expired == 6 - len(left)
    assert harness.store.stats.segments_forced == (5 if left == [5] else 0)


async def test_without_force_no_segment_is_removed_early(harnesses: list[Harness]) -> None:
    """With clean_forcibly off, retention on a full disk removes only expired segments, and messages are refused."""
    harnesses.append(harness := Harness(clean_forcibly=False))
    harness.fill(3)
    harness.clock.advance(72 * HOUR)
    harness.fill(1)
    harness.disk.ratio = 0.95
    await harness.store.retention.clean()
    await harness.store.retention.clean()
    assert harness.segments == [2, 3]
    assert harness.store.running.flags is RunningFlags.DISK_FULL


async def test_a_segment_is_removed_when_its_end_is_old_enough(harnesses: list[Harness]) -> None:
    """A segment ends when the next one begins, and is removed exactly 72 hours later."""
    harnesses.append(harness := Harness(delete_when_hours=tuple(range(24))))
    harness.fill(1)
    harness.clock.advance(60)
    harness.fill(1)
    harness.clock.advance(60)
    harness.fill(1)
    harness.clock.advance(72 * HOUR - 60.001)
    await harness.store.retention.clean()
    assert harness.segments == [0, 1, 2]
    harness.clock.advance(0.001)
    await harness.store.retention.clean()
    assert harness.segments == [1, 2]
    harness.clock.advance(60)
    await harness.store.retention.clean()
    assert harness.segments == [2]


@pytest.mark.parametrize("hour", range(24))
async def test_segments_are_removed_only_in_the_configured_hours(harnesses: list[Harness], hour: int) -> None:
    """Expired files are removed only in the configured local hours."""
    harnesses.append(harness := Harness(delete_when_hours=(4, 16)))
    harness.fill(2)
    harness.clock.advance(100 * HOUR)
    harness.at_hour(hour)
    await harness.store.retention.clean()
    assert harness.segments == ([1] if hour in (4, 16) else [0, 1])


async def test_a_copied_store_expires_like_the_original(harnesses: list[Harness]) -> None:
    """The times in the records decide, not the file times, which a copy has renewed."""
    harnesses.append(harness := Harness())
    harness.fill(3)
    harness.clock.advance(100 * HOUR)
    harness.disk.files_are_new = True
    harness.at_hour(4)
    await harness.store.retention.clean()
    assert harness.segments == [2]


async def test_the_file_time_counts_without_a_valid_record(harnesses: list[Harness]) -> None:
    """If the next segment's first record is damaged, the file time gives the age of a segment."""
    harnesses.append(harness := Harness())
    harness.fill(3)
    harness.clock.advance(100 * HOUR)
    harness.at_hour(4)
    harness.disk.damage(DIRECTORY / "commitlog" / f"{SEGMENT:020d}", 100, b"damage")
    harness.disk.files_are_new = True
    await harness.store.retention.clean()
    assert harness.segments == [0, 1, 2]
    harness.disk.files_are_new = False
    await harness.store.retention.clean()
    assert harness.segments == [2]


# --- How many, and which never ------------------------------------------------------------------------------


async def test_at_most_ten_segments_in_a_round(harness: Harness) -> None:
    """A round removes at most retention_batch_max segments; the next rounds remove the rest."""
    harness.fill(24)
    harness.disk.ratio = 0.95
    counts = []
    for _ in range(4):
        await harness.store.retention.clean()
        counts.append(len(harness.segments))
    assert counts == [14, 4, 1, 1]


async def test_no_more_unexpired_segments_than_needed(harness: Harness) -> None:
    """Above the force watermark only as many are removed as needed to reach it, not a whole round."""
    harness.fill(8)
    harness.disk.total = 100 * SEGMENT
    harness.disk.ratio = 0.865  # one and a half segments above the watermark
    await harness.store.retention.clean()
    assert harness.segments == [2, 3, 4, 5, 6, 7]


async def test_the_last_segment_stays_and_prepared_ones_are_removed_first(harnesses: list[Harness]) -> None:
    """At any fill level the segment in use stays.

    The empty segment after it is removed before any message, and the store continues.
    """
    harnesses.append(harness := Harness())
    harness.fill(3)
    harness.store.close()
    prepared = harness.disk.create(DIRECTORY / "commitlog" / f"{3 * SEGMENT:020d}", SEGMENT)
    prepared.sync()
    harness.open()
    assert (harness.store.status().segments, harness.store.status().segments_prepared) == (3, 1)
    harness.disk.ratio = 0.95
    before = harness.disk.operations
    for _ in range(3):
        await harness.store.retention.clean()
    assert harness.segments == [2]
    gone = [item.path.name for item in harness.disk.log[before:] if item.name == "unlink"]
    assert gone[0] == f"{3 * SEGMENT:020d}"
    harness.disk.ratio = 0.5
    await harness.store.retention.clean()
    sent = harness.fill(2)
    assert [read_all(harness.store, "orders", 0)[item.queue_offset].body for item in sent if not item.queue_id] == [
        item.body for item in sent if not item.queue_id
    ]


async def test_an_empty_store_has_nothing_to_remove(harness: Harness) -> None:
    """A store without segments causes no error at any watermark."""
    harness.disk.ratio = 0.95
    await harness.store.retention.clean()
    assert harness.store.status().segments == 0


async def test_undispatched_or_unsynced_segments_stay(harnesses: list[Harness]) -> None:
    """Segments whose bytes are not synced stay even on a full disk."""
    harnesses.append(harness := Harness())
    for _ in range(3 * PER_SEGMENT):
        harness.sender.append(harness.store, [harness.sender.message(2100)])
    harness.store.commit()
    harness.disk.ratio = 0.95
    await harness.store.retention.clean()
    assert harness.segments == [0, 1, 2]
    harness.store.flush()
    await harness.store.retention.clean()
    assert harness.segments == [2]


async def test_quarantine_stays(harness: Harness) -> None:
    """Files that recovery moved to quarantine are never removed."""
    harness.disk.make_directory(DIRECTORY / "quarantine")
    harness.disk.write_new(DIRECTORY / "quarantine" / f"commitlog-{0:020d}", b"kept")
    harness.fill(3)
    harness.disk.ratio = 0.95
    await harness.store.retention.clean()
    assert harness.disk.list(DIRECTORY / "quarantine") == [f"commitlog-{0:020d}"]


# --- Refused messages ---------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_messages_until_space_is_free(harness: Harness) -> None:
    """Above 90 % appends are refused with the reason, until 85 %; consumers' internal records are accepted."""
    harness.fill(1)
    harness.disk.ratio = 0.912
    await harness.store.retention.clean()
    before = harness.store.positions
    with pytest.raises(StoreFullError, match=r"91\.2 % are used.*store\.disk_full_ratio.*free some"):
        harness.store.append([harness.sender.message(100)])
    assert harness.store.positions == before
    assert not harness.store.status().running_flags.writable
    assert "91.2 %" in harness.store.status().refusal
    assert read_all(harness.store, "orders", 0)
    assert harness.store.append([harness.sender.message(100)], internal=True)

    harness.disk.ratio = 0.88
    await harness.store.retention.clean()
    with pytest.raises(StoreFullError):
        harness.store.append([harness.sender.message(100)])
    harness.disk.ratio = 0.85
    await harness.store.retention.clean()
    assert harness.store.append([harness.sender.message(100)])
    assert harness.store.status().refusal == ""


async def test_removed_segments_end_the_refusal_at_once(harness: Harness) -> None:
    """The disk usage is queried again after a removal, so that appends need not wait for the next round."""
    harness.fill(12)
    disk = harness.disk

    def usage(path: Path) -> DiskUsage:
        used = len(disk.list(DIRECTORY / "commitlog")) * SEGMENT
        return DiskUsage(total=13 * SEGMENT, available=13 * SEGMENT - used)

    disk.usage = usage  # type: ignore[method-assign]  # this disk holds nothing else
    await harness.store.retention.look_at_disk()
    assert harness.store.status().refusal != ""
    await harness.store.retention.clean()
    assert harness.store.running.flags is RunningFlags.NONE
    assert harness.segments == list(range(1, 12))


# --- Readers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_mode", ["gathered", "mapped", "pool"])
async def test_a_reader_keeps_the_bytes_of_a_removed_segment(tmp_path: Path, write_mode: WriteMode) -> None:
    """On a real disk, bytes returned before the removal stay readable although the file is gone."""

    class FullDisk(DiskFileSystem):
        def usage(self, path: Path) -> DiskUsage:
            return DiskUsage(total=1 << 40, available=1 << 36)

    config = replace(StoreConfig.tiny(tmp_path / "store"), disk_force_clean_ratio=0.85, write_mode=write_mode)
    sender = Sender()
    with MessageStore.open(config, file_system=FullDisk()) as store:
        for _ in range(4 * PER_SEGMENT):
            sender.append(store, [sender.message(2100)])
        store.flush()
        first = sender.sent[0]
        view = store._log.bytes_at(first.physical_offset, first.size)
        before = bytes(view)
        await store.retention.clean()
        assert store.status().segments == 1
        assert len(list((tmp_path / "store" / "commitlog").iterdir())) == 1
        assert bytes(view) == before
        assert first.body in before


async def test_the_event_loop_unmaps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread unmaps removed segments. At the usual size that takes 0.1 s, because the kernel frees the pages."""
    unmapped: list[int] = []

    class Mapping(mmap.mmap):
        def __del__(self) -> None:
            unmapped.append(threading.get_ident())

    class FullDisk(DiskFileSystem):
        def usage(self, path: Path) -> DiskUsage:
            return DiskUsage(total=1 << 40, available=1 << 36)

    monkeypatch.setattr(mmap, "mmap", Mapping)
    config = replace(StoreConfig.tiny(tmp_path / "store"), disk_force_clean_ratio=0.85, retention_batch_max=30)
    sender = Sender()
    with MessageStore.open(config, file_system=FullDisk()) as store:
        for _ in range(20 * PER_SEGMENT):
            sender.append(store, [sender.message(2100)])
        store.flush()
        indexes = sorted((tmp_path / "store" / "index").iterdir())  # by age
        assert not unmapped
        await store.retention.clean()
        assert store.status().segments == 1
        assert not indexes[0].exists()
        assert len(unmapped) >= 20
        assert threading.get_ident() not in unmapped


async def test_messages_can_be_read_while_their_segment_is_removed(harness: Harness) -> None:
    """Between the removal of the file and the end of the round no reader gets an error or a lost message."""
    harness.fill(4)
    harness.disk.ratio = 0.95
    removed, may_go_on = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if operation.name == "sync_directory" and operation.path.name == "commitlog" and not removed.is_set():
            removed.set()
            assert may_go_on.wait(60)

    harness.disk.before_operation = hold
    round_of = asyncio.get_running_loop().create_task(harness.store.retention.clean())
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(removed.wait, 60)
        assert not harness.disk.exists(DIRECTORY / "commitlog" / f"{0:020d}")
        result = harness.store.read("orders", 0, 0)
        assert (result.status, result.lost, result.records[0].queue_offset) == ("found", 0, 0)
        may_go_on.set()
        await round_of
    low, _ = harness.store.queue_range("orders", 0)
    assert low > 0
    assert harness.store.read("orders", 0, 0).status == "offset-too-small"


async def test_queues_advance_before_a_segment_is_removed(harness: Harness) -> None:
    """Before a segment becomes unreadable, every queue begins after it, so no read counts its messages as lost."""
    harness.fill(16)
    harness.disk.ratio = 0.95
    at_queue, may_go_on = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if operation.name == "unlink" and "consumequeue" in operation.path.parts and not at_queue.is_set():
            at_queue.set()
            assert may_go_on.wait(60)

    harness.disk.before_operation = hold
    round_of = asyncio.get_running_loop().create_task(harness.store.retention.clean())
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(at_queue.wait, 60)
        statuses = [harness.store.read("orders", queue_id, 0).status for queue_id in range(2)]
        may_go_on.set()
        await round_of
    assert statuses == ["offset-too-small", "offset-too-small"]


async def test_a_topic_deleted_during_a_round(harness: Harness) -> None:
    """Its queues are deleted with it, whatever the round was about to remove, and the store keeps working."""
    harness.fill(16, topic="gone")
    harness.fill(2)
    harness.disk.ratio = 0.95
    at_queue, may_go_on = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if operation.name == "unlink" and "gone" in operation.path.parts and not at_queue.is_set():
            at_queue.set()
            assert may_go_on.wait(60)

    harness.disk.before_operation = hold
    round_of = asyncio.get_running_loop().create_task(harness.store.retention.clean())
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(at_queue.wait, 60)
        harness.disk.before_operation = None
        deletion = asyncio.get_running_loop().create_task(harness.store.delete_topics(["gone"]))
        await asyncio.sleep(0)
        may_go_on.set()
        await round_of
        await deletion
        await harness.store.retention.clean()
    assert harness.store.state == "open"
    assert "gone" not in harness.store.queues()
    harness.disk.ratio = 0.5
    await harness.store.retention.clean()
    harness.store.close()
    assert harness.open().queues().keys() == {"orders"}


# --- Failures -----------------------------------------------------------------------------------------------


async def test_a_failed_removal_is_logged_and_retried(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """A segment that could not be removed is logged, still served, and removed in the next round."""
    harness.fill(4)
    harness.disk.ratio = 0.95
    harness.disk.fail_at("unlink", 2)
    with caplog.at_level(logging.ERROR):
        await harness.store.retention.clean()
    assert "not removed" in caplog.text
    assert harness.segments == [1, 2, 3]
    assert (harness.store.stats.segments_expired, harness.store.stats.retention_failures) == (1, 1)
    low, _ = harness.store.queue_range("orders", 0)
    assert harness.store.read("orders", 0, low).records[0].physical_offset >= SEGMENT
    await harness.store.retention.clean()
    assert harness.segments == [3]


async def test_a_removal_that_may_not_be_durable_is_retried(harness: Harness) -> None:
    """If the directory sync fails, the segment counts as removed only after a successful retry."""
    harness.fill(4)
    harness.disk.ratio = 0.95
    harness.disk.fail_at("sync_directory", 3)  # of the bounds, and of the first segment, before it
    await harness.store.retention.clean()
    assert (harness.store.stats.segments_expired, harness.store.stats.retention_failures) == (1, 1)
    assert harness.store.status().min_offset == SEGMENT
    low, _ = harness.store.queue_range("orders", 0)
    assert harness.store.read("orders", 0, low).status == "found"
    await harness.store.retention.clean()
    assert (harness.segments, harness.store.stats.retention_failures) == ([3], 1)


async def test_a_failed_removal_of_a_queue_file_is_retried(harness: Harness) -> None:
    """Queue files that could not be removed are no longer read, but their removal is retried."""
    harness.fill(16)
    harness.disk.ratio = 0.95

    def fail(operation: Operation) -> None:
        if operation.name == "unlink" and operation.path.parts[2] != "commitlog":
            raise OSError(13, "Permission denied")

    harness.disk.before_operation = fail
    await harness.store.retention.clean()
    await harness.store.retention.clean()
    first = DIRECTORY / "consumequeue" / "orders" / "0" / f"{0:020d}"
    assert harness.disk.exists(first)
    assert harness.store.stats.derived_files_expired == 0
    harness.disk.before_operation = None
    await harness.store.retention.clean()
    assert not harness.disk.exists(first)
    assert harness.store.stats.derived_files_expired > 0


async def test_every_power_cut_during_a_round(harnesses: list[Harness]) -> None:
    """After a power cut before any change of a round, the store opens with everything that was to stay."""
    harnesses.append(harness := Harness(queue_file_size=8 * 20, index_entry_count=20))
    harness.fill(8)
    harness.disk.ratio = 0.95
    disks: list[MemoryFileSystem] = []

    def crash(operation: Operation) -> None:
        if operation.name in ("unlink", "sync_directory"):
            disks.extend(harness.disk.crash(seed) for seed in (3 * len(disks), 3 * len(disks) + 1))

    harness.disk.before_operation = crash
    await harness.store.retention.clean()
    harness.disk.before_operation = None
    assert harness.segments == [7]
    assert len(disks) > 40
    stays = [sent for sent in harness.sender.sent if sent.physical_offset >= 7 * SEGMENT]
    for disk in disks:
        with MessageStore.open(harness.config, file_system=disk, clock=harness.clock) as store:
            compare(store, harness.sender.sent, stays)
            assert store.append([harness.sender.message(100)])
            harness.sender.next_number -= 1


# --- Queues and index ---------------------------------------------------------------------------------------


async def test_queues_and_index_follow_the_log(harnesses: list[Harness]) -> None:
    """After a removal and a restart, queues and index hold exactly the messages of the remaining segments."""
    harnesses.append(harness := Harness(queue_file_size=8 * 20, index_entry_count=20))
    old = harness.fill(1, topic="old", queues=1)
    harness.fill(8, queues=3)
    index_files = len(harness.disk.list(DIRECTORY / "index"))
    harness.disk.ratio = 0.95
    await harness.store.retention.clean()
    harness.disk.ratio = 0.5
    await harness.store.retention.clean()
    minimum = harness.store.status().min_offset
    stays = [sent for sent in harness.sender.sent if sent.physical_offset >= minimum]
    assert stays
    assert compare(harness.store, stays, stays) == stays
    # A queue without a message keeps its end and continues there.
    assert harness.store.queue_range("old", 0) == (len(old), len(old))
    assert harness.store.query("old", "n0") == []
    assert len(harness.disk.list(DIRECTORY / "index")) < index_files
    for queue_id in range(3):
        low, high = harness.store.queue_range("orders", queue_id)
        first = int(harness.disk.list(DIRECTORY / "consumequeue" / "orders" / str(queue_id))[0]) // 20
        assert first <= low < min(first + 8, high), "only the file with the first message may begin before it"

    ranges = {(t, q): harness.store.queue_range(t, q) for t, ids in harness.store.queues().items() for q in ids}
    harness.store.close()
    store = harness.open()
    assert store.recovery.clean
    assert (store.recovery.records, store.recovery.units_added, store.recovery.damaged) == (0, 0, [])
    assert {(t, q): store.queue_range(t, q) for t, ids in store.queues().items() for q in ids} == ranges
    assert compare(store, stays, stays) == stays
    assert store.append([harness.sender.message(100, "old", 0)])[0].queue_offset == len(old)


async def test_queue_minimums_equal_those_of_rocketmq(tmp_path: Path) -> None:
    """One rule gives RocketMQ's queue minimums after it removed the head, and ours after removing more."""
    case = golden.load("deleted-head", tmp_path)
    config = StoreConfig(
        directory=case.store,
        segment_size=int(case.config["mappedFileSizeCommitLog"]),
        queue_file_size=int(case.config["mappedFileSizeConsumeQueue"]),
        index_slot_count=int(case.config["maxHashSlotNum"]),
        index_entry_count=int(case.config["maxIndexNum"]),
        disk_force_clean_ratio=1e-9,
        retention_batch_max=1,
    )
    theirs = {
        (topic, int(queue_id)): tuple(low_high)
        for topic, queues in case.manifest["recovery"]["rocketmq"]["queues"].items()
        for queue_id, low_high in queues.items()
    }

    def by_rule(minimum: int) -> dict[tuple[str, int], tuple[int, int]]:
        found = {}
        for (topic, queue_id), (_, high) in theirs.items():
            left = [
                message.queue_offset
                for message in case.messages
                if (message.topic, message.queue_id) == (topic, queue_id) and message.physical_offset >= minimum
            ]
            found[topic, queue_id] = (min(left, default=high), high)
        return found

    with MessageStore.open(config) as store:
        assert by_rule(store.status().min_offset) == theirs
        for _ in range(3):
            before = store.status().min_offset
            await store.retention.clean()
            assert store.status().min_offset == before + config.segment_size
            assert {key: store.queue_range(*key) for key in theirs} == by_rule(store.status().min_offset)
        await store.retention.clean()
        assert store.status().segments == 1
    with MessageStore.open(config) as store:
        assert {key: store.queue_range(*key) for key in theirs} == by_rule(store.status().min_offset)


def test_a_file_that_ends_in_a_filler_is_removed_with_its_messages() -> None:
    """A filler unit names offset 0; the file's last message decides whether the file is needed."""
    disk = MemoryFileSystem()
    disk.make_directory(Path("/"))
    queue = ConsumeQueue(disk, Path("/consumequeue/orders/0"), "orders", 0, 10 * 20)
    queue.put(0, b"".join(UNIT.pack(1000 * number, 1000, 0) for number in range(9)))
    queue.put(10, b"".join(UNIT.pack(1000 * number, 1000, 0) for number in range(10, 25)))
    queue.take_dirty()
    assert queue.expired_files(8000) == []
    queue.correct_min_offset(8000)
    assert queue.min_offset == 8
    assert queue.expired_files(9000) == [0]
    queue.correct_min_offset(9000)
    assert queue.min_offset == 10
    assert queue.release_files([0]) == [Path("/consumequeue/orders/0") / f"{0:020d}"]
    assert queue.files == [10, 20]


# --- Listeners ----------------------------------------------------------------------------------------------


async def test_listeners_are_asked_and_can_keep(harness: Harness) -> None:
    """Listeners learn what would be removed.

    The earliest answer counts; a failing one keeps everything for this round.
    """
    harness.fill(6)
    harness.disk.ratio = 0.95
    asked: list[int] = []
    answers: list[int | Exception] = [StoreFullError("no room for what is needed"), 2 * SEGMENT + 1, 6 * SEGMENT]

    async def keep(end: int) -> int:
        asked.append(end)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    harness.store.retention_listeners.append(keep)
    await harness.store.retention.clean()
    assert (asked, harness.segments) == ([5 * SEGMENT], [0, 1, 2, 3, 4, 5])
    assert harness.store.stats.retention_failures == 1
    await harness.store.retention.clean()
    assert harness.segments == [2, 3, 4, 5]
    await harness.store.retention.clean()
    assert harness.segments == [5]


# --- The service --------------------------------------------------------------------------------------------


async def test_the_service_watches_from_the_start_and_removes_after_six_intervals(harnesses: list[Harness]) -> None:
    """`run` checks the disk at once and removes nothing in the first six intervals of the clock."""
    harnesses.append(harness := Harness(retention_interval_seconds=0.01))
    harness.fill(3)
    harness.disk.ratio = 0.95
    running = asyncio.get_running_loop().create_task(harness.store.run())
    async with asyncio.timeout(60):
        while harness.store.running.flags.writable:  # noqa: ASYNC110 - no signal
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        assert harness.segments == [0, 1, 2]
        harness.clock.advance(0.06)
        while harness.store.status().segments > 1:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    harness.disk.ratio = 0.5


def test_a_store_copied_as_files_keeps_its_age(tmp_path: Path) -> None:
    """On a real disk, a copy with new modification times loses the same segments as the original."""

    async def clean(directory: Path, clock: ManualClock) -> int:
        config = replace(StoreConfig.tiny(directory), delete_when_hours=tuple(range(24)))
        with MessageStore.open(config, clock=clock) as store:
            await store.retention.clean()
            return store.status().min_offset

    clock = ManualClock(round(NOON.timestamp() * 1000))
    sender = Sender()
    with MessageStore.open(StoreConfig.tiny(tmp_path / "store"), clock=clock) as store:
        for _ in range(3 * PER_SEGMENT):
            sender.append(store, [sender.message(2100)])
    shutil.copytree(tmp_path / "store", tmp_path / "copy", copy_function=shutil.copyfile)
    clock.advance(73 * HOUR)
    assert asyncio.run(clean(tmp_path / "copy", clock)) == asyncio.run(clean(tmp_path / "store", clock)) == 2 * SEGMENT


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retention_hours", 0.0),
        ("retention_interval_seconds", 0.0),
        ("retention_batch_max", 0),
        ("delete_when_hours", ()),
        ("delete_when_hours", (24,)),
        ("delete_when_hours", (-1,)),
        ("disk_clean_ratio", 0.0),
        ("disk_force_clean_ratio", 1.01),
        ("disk_full_ratio", 75.0),
        ("scrub_bytes_per_second", -1),
        ("scrub_interval_hours", 0.0),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, setting: str, value: Any) -> None:
    """Each error gives the setting's full name."""
    with pytest.raises(ConfigError, match=rf"store\.{setting}"):
        StoreConfig(directory=tmp_path, **{setting: value})


async def test_a_clock_that_jumps_ahead_removes_nothing(tmp_path: Path) -> None:
    """A jump of ten days makes everything look expired; nothing is removed for a day, so that it can be corrected."""
    harness = Harness()
    harness.fill(4)
    before = harness.segments
    harness.clock.jump(10 * 24 * 3600)
    for _ in range(20):
        harness.clock.advance(3600)
        await harness.store.retention.clean()
    assert harness.segments == before
    harness.clock.advance(5 * 3600)
    await harness.store.retention.clean()
    harness.clock.advance(11 * 3600)  # at the latest within the delete hours
    for _ in range(13):
        harness.clock.advance(3600)
        await harness.store.retention.clean()
    assert harness.segments != before, "a jump that stays is believed"
    harness.store.close()
