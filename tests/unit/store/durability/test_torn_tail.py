"""Unsynced writes torn by a power cut are distinguished from damage, moved to quarantine, and not reported later."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import MessageStore, StoreConfig, StoreError
from aerobee_store.testing import ManualClock, MemoryFileSystem
from aerobee_store.tools.verify import verify
from tests.support.stored_messages import DIRECTORY, Sender, Sent, compare, reopen

CONFIG = StoreConfig.tiny(DIRECTORY)
SEGMENT = CONFIG.segment_size
SYNCED = 20
"""Number of messages that the checkpoint counts as synced; ten more were only written."""


class Scene:
    """A store left in use with 20 synced and 10 written messages, in three segments."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = MemoryFileSystem(clock=self.clock)
        self.sender = Sender()
        store = MessageStore.open(CONFIG, file_system=self.disk, clock=self.clock)
        self._append(store, SYNCED)
        store.flush()
        self._append(store, 10)
        store.commit()
        self.disk = self.disk.kill()
        self.sent = self.sender.sent
        assert self.sent[SYNCED].physical_offset // SEGMENT < self.sent[-1].physical_offset // SEGMENT

    def _append(self, store: MessageStore, count: int) -> None:
        for _ in range(count):
            self.clock.advance(1)
            self.sender.append(store, [self.sender.message(1300)])

    def cut_power(self) -> None:
        """Restart the machine; the disk happens to have everything that was written."""
        self.disk.boots += 1

    def lose(self, number: int) -> None:
        """Zero a record, like a write that never reached the disk."""
        sent = self.sent[number]
        path = DIRECTORY / "commitlog" / f"{sent.physical_offset - sent.physical_offset % SEGMENT:020d}"
        self.disk.damage(path, sent.physical_offset % SEGMENT, bytes(sent.size))


def kept_with_damage(scene: Scene, *lost: int) -> None:
    with reopen(scene.disk, CONFIG, scene.clock) as store:
        kept = [sent for sent in scene.sent if sent.number not in lost]
        assert compare(store, scene.sent, kept) == kept


@pytest.mark.parametrize("number", [SYNCED, SYNCED + 1, SYNCED + 5, SYNCED + 8])
def test_a_tail_torn_by_a_power_cut_is_quarantined(number: int) -> None:
    """The log ends before the hole, without damage or a gap, and the data after it is in files."""
    scene = Scene()
    scene.cut_power()
    scene.lose(number)
    kept = scene.sent[:number]
    with MessageStore.open(CONFIG, file_system=scene.disk, clock=scene.clock) as store:
        report = store.recovery
        assert (report.end, report.torn, report.damaged) == (kept[-1].end, True, [])
        assert report.torn_tail > 0
        aside = b"".join(scene.disk.read_bytes(path) for path in report.quarantined)
        for sent in scene.sent[number + 1 :]:
            assert sent.body in aside
    with reopen(scene.disk, CONFIG, scene.clock) as store:
        assert compare(store, scene.sent, kept) == kept
        assert store.status().damaged_ranges == 0
        assert store.queue_range("orders", 0) == (0, number)
        new = scene.sender.append(store, [scene.sender.message(1300) for _ in range(15)])
        store.flush()
        assert [sent.queue_offset for sent in new] == list(range(number, number + 15))
        assert compare(store, [*kept, *new], [*kept, *new]) == [*kept, *new]


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_while_the_tail_is_quarantined(seed: int) -> None:
    """After a power cut at any operation, the next start keeps the synced messages and restores nothing of the tail."""
    scene = Scene()
    scene.cut_power()
    scene.lose(SYNCED + 1)
    first = scene.disk.kill()
    MessageStore.open(CONFIG, file_system=first, clock=scene.clock)
    for number in range(1, first.operations + 1, 3):
        disk = scene.disk.kill()
        disk.fail_at(None, number, for_ever=True)
        with suppress(OSError, StoreError):
            MessageStore.open(CONFIG, file_system=disk, clock=scene.clock)
        with reopen(disk.crash(seed), CONFIG, scene.clock) as store:
            compare(store, scene.sent[: SYNCED + 1], scene.sent[:SYNCED])


def test_the_quarantine_is_durable_before_the_log_changes() -> None:
    """A copied tail is synced with its directory before the segment is zeroed; so is the move of a segment."""
    scene = Scene()
    scene.cut_power()
    scene.lose(SYNCED + 1)
    before = scene.disk.operations
    with MessageStore.open(CONFIG, file_system=scene.disk, clock=scene.clock) as store:
        copied, moved = store.recovery.quarantined
    log, quarantine = DIRECTORY / "commitlog", DIRECTORY / "quarantine"
    changes = [
        (operation.name, operation.path)
        for operation in scene.disk.log[before:]
        if operation.name not in ("read", "map", "data_end")
    ]
    begin = changes.index(("create", copied))
    segment = log / f"{scene.sent[SYNCED].physical_offset // SEGMENT * SEGMENT:020d}"
    assert changes[begin + 1 : begin + 5] == [
        ("write", copied),
        ("sync", copied),
        ("sync_directory", quarantine),
        ("write", segment),
    ]
    begin = next(number for number, (name, _) in enumerate(changes) if name == "rename")
    assert moved.name.endswith(changes[begin][1].name)
    assert changes[begin + 1 : begin + 3] == [("sync_directory", quarantine), ("sync_directory", log)]


def test_damage_before_the_synced_offset_stays_damage() -> None:
    """Damage before the synced position is reported and skipped; a torn tail after it is still cut off."""
    scene = Scene()
    scene.cut_power()
    scene.lose(SYNCED - 3)
    scene.lose(SYNCED + 2)
    kept = [sent for sent in scene.sent[: SYNCED + 2] if sent.number != SYNCED - 3]
    with MessageStore.open(CONFIG, file_system=scene.disk, clock=scene.clock) as store:
        lost = scene.sent[SYNCED - 3]
        assert [(found.start, found.end) for found in store.recovery.damaged] == [(lost.physical_offset, lost.end)]
        assert store.recovery.torn_tail > 0
        assert compare(store, scene.sent, kept) == kept


def test_a_killed_process_leaves_no_torn_tail() -> None:
    """The page cache survives a killed process, so any hole is damage, and later records are kept."""
    scene = Scene()
    scene.lose(SYNCED + 2)
    kept_with_damage(scene, SYNCED + 2)


def test_without_a_synced_offset_everything_is_kept() -> None:
    """RocketMQ's checkpoint has no synced position."""
    scene = Scene()
    scene.cut_power()
    scene.lose(SYNCED + 2)
    scene.disk.damage(DIRECTORY / "checkpoint", 40, bytes(12))
    kept_with_damage(scene, SYNCED + 2)


def test_a_mark_left_by_a_tool_does_not_mean_a_torn_tail() -> None:
    """A backup's `abort` is empty, and all its copied data is synced."""
    scene = Scene()
    scene.cut_power()
    scene.lose(SYNCED + 2)
    scene.disk.unlink(DIRECTORY / "abort")
    scene.disk.write_new(DIRECTORY / "abort", b"")
    kept_with_damage(scene, SYNCED + 2)


def test_verify_is_clean_after_the_tail_was_quarantined(tmp_path: Path) -> None:
    """Before the start verify reports a torn log, afterwards nothing; the segment's tail is in a file."""
    config = replace(CONFIG, directory=tmp_path / "used")
    sender = Sender()
    torn = replace(config, directory=tmp_path / "torn")
    with MessageStore.open(config) as store:
        sender.append(store, [sender.message(300) for _ in range(10)])
        store.flush()
        sent: list[Sent] = sender.append(store, [sender.message(300) for _ in range(4)])
        store.commit()
        shutil.copytree(config.directory, torn.directory)
    (torn.directory / "abort").write_text("4711\nanother-boot\n")
    log = torn.directory / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(sent[1].physical_offset)
        file.write(bytes(sent[1].size))
    assert "log-torn" in {finding.kind for finding in verify(torn.directory).findings}
    assert "log-damaged" not in {finding.kind for finding in verify(torn.directory).findings}
    MessageStore.open(torn).close()
    assert verify(torn.directory).findings == []
    assert [path.name for path in (torn.directory / "quarantine").iterdir()] == [
        f"torn-tail-{sent[1].physical_offset:020d}"
    ]
