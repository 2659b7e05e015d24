"""A log in several directories: where segments are created, found or excluded, and what a missing one means."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_store import ConfigError, MessageStore, StoreConfig, StoreDirectoryError, StoreFailedError, StoreFullError
from aerobee_store.disk.file_system import DiskUsage
from aerobee_store.log.log_paths import LogPaths
from aerobee_store.testing import CHANGES, ManualClock, MemoryFileSystem, Operation
from aerobee_store.tools.backup import backup
from aerobee_store.tools.dump import dump
from aerobee_store.tools.inspect import inspect
from aerobee_store.tools.rebuild import rebuild
from aerobee_store.tools.repair import repair
from aerobee_store.tools.verify import verify
from tests.support.serving import serving
from tests.support.stored_messages import DIRECTORY, Sender, Sent, compare

SEGMENT = 16384
A, B, C = Path("/disk-a/log"), Path("/disk-b/log"), Path("/disk-c/log")
KNOWN = DIRECTORY / "commitlog.paths"


class Disks(MemoryFileSystem):
    """Several disks, each with a fill level set by the test."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.ratios: dict[Path, float] = {}

    def usage(self, path: Path) -> DiskUsage:
        ratio = next((ratio for disk, ratio in self.ratios.items() if path.is_relative_to(disk)), 0.1)
        return DiskUsage(total=1 << 30, available=(1 << 30) - round((1 << 30) * ratio))


class Harness:
    def __init__(self, *paths: Path, **settings: Any) -> None:
        self.disk = Disks()
        self.sender = Sender()
        self.settings = settings
        self.paths = paths

    @property
    def config(self) -> StoreConfig:
        return replace(StoreConfig.tiny(DIRECTORY), **{"commit_log_paths": self.paths, **self.settings})

    def open(self, *paths: Path, **settings: Any) -> MessageStore:
        self.settings |= settings
        self.paths = paths or self.paths
        return MessageStore.open(self.config, file_system=self.disk, clock=ManualClock())

    def fill(self, store: MessageStore, segments: int) -> None:
        end = store.positions[0] + segments * SEGMENT
        while store.positions[0] < end:
            self.sender.append(store, [self.sender.message(3000)])
        store.flush()

    def numbers(self, path: Path) -> list[int]:
        return [int(name) // SEGMENT for name in self.disk.list(path)]


def test_segments_rotate_over_the_sorted_paths() -> None:
    """File k is in path k mod n, whatever the configured order, and readers see one log."""
    harness = Harness(B, C, A)
    with harness.open() as store:
        harness.fill(store, 5)
        compare(store, harness.sender.sent, harness.sender.sent)
    assert (harness.numbers(A), harness.numbers(B), harness.numbers(C)) == ([0, 3], [1, 4], [2, 5])
    assert harness.disk.list(DIRECTORY / "commitlog") == []
    with harness.open(A, B, C) as store:
        compare(store, harness.sender.sent, harness.sender.sent)
        harness.fill(store, 1)
        compare(store, harness.sender.sent, harness.sender.sent)


async def test_a_power_cut_before_every_operation() -> None:
    """All synced messages are there, on every disk; a path without segments yet, or any more, is not missed."""
    harness = Harness(A, B, disk_force_clean_ratio=0.85)
    taken: list[tuple[MemoryFileSystem, list[Sent]]] = []
    durable: list[Sent] = []

    def before(operation: Operation) -> None:
        if operation.name in CHANGES:
            taken.append((harness.disk.crash(operation.number), list(durable)))

    harness.disk.before_operation = before
    with harness.open() as store:
        for _ in range(3):
            harness.fill(store, 1)
            durable += harness.sender.sent[len(durable) :]
        harness.disk.ratios = {A.parent: 0.86, B.parent: 0.86}
        durable.clear()  # from here on messages are removed
        await store.retention.clean()
    harness.disk.before_operation = None
    assert len(taken) > 60
    for disk, certain in taken:
        with MessageStore.open(harness.config, file_system=disk, clock=ManualClock()) as store:
            compare(store, harness.sender.sent, certain)


def test_a_path_is_added_and_one_becomes_read_only() -> None:
    """New segments go to the writable paths; segments in the read-only path are read and never written."""
    harness = Harness(A)
    with harness.open() as store:
        harness.fill(store, 2)
    assert harness.numbers(A) == [0, 1, 2]
    content = harness.disk.contents()[A / f"{2 * SEGMENT:020d}"]
    harness.disk.unlink(A / f"{2 * SEGMENT:020d}")  # moved to the new disk, as the error of the next test advises
    harness.disk.make_directory(B)
    harness.disk.write_new(B / f"{2 * SEGMENT:020d}", content)
    with harness.open(A, B, C, read_only_commit_log_paths=(A,)) as store:
        before = harness.disk.operations
        harness.fill(store, 4)
        compare(store, harness.sender.sent, harness.sender.sent)
        assert not any(
            operation.name in ("write", "create", "reserve") and operation.path.parent == A
            for operation in harness.disk.log[before:]
        )
    assert harness.numbers(A) == [0, 1]
    assert sorted(harness.numbers(B) + harness.numbers(C)) == [2, 3, 4, 5, 6]
    assert json.loads(harness.disk.read_bytes(KNOWN))["readOnly"] == [str(A)]


def test_the_segment_in_use_cannot_be_read_only() -> None:
    """The error at startup names the file to move."""
    harness = Harness(A)
    with harness.open() as store:
        harness.fill(store, 1)
    with pytest.raises(StoreDirectoryError, match=r"disk-a/log/0+16384: .* move this file"):
        harness.open(B, read_only_commit_log_paths=(A,))


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (lambda harness: harness.open(A), r"/disk-b/log: contains segments .* store\.commit_log_paths"),
        (lambda harness: harness.open(A, C), r"/disk-b/log: contains segments"),
        (lambda harness: harness.open(DIRECTORY / "commitlog"), r"/disk-a/log: contains segments"),
    ],
    ids=["left out", "another instead", "as if there were one"],
)
def test_a_missing_path_in_the_configuration_is_refused(happens: Callable[[Harness], MessageStore], says: str) -> None:
    """A wrong configuration loses nothing: a store is not opened with only part of its log."""
    harness = Harness(A, B)
    with harness.open() as store:
        harness.fill(store, 3)
    before = harness.disk.contents()
    with pytest.raises(StoreDirectoryError, match=says):
        happens(harness)
    assert harness.disk.contents() == before
    with harness.open(A, B) as store:
        compare(store, harness.sender.sent, harness.sender.sent)


def test_a_disk_that_is_not_mounted_is_refused() -> None:
    """A start is refused if a path lost all its segments. Editing the recorded paths gives them up."""
    harness = Harness(A, B)
    with harness.open() as store:
        harness.fill(store, 3)
    for name in harness.disk.list(B):
        harness.disk.unlink(B / name)
    with pytest.raises(StoreDirectoryError, match=r"disk-b/log: contained segments .* is its disk mounted"):
        harness.open()
    known = json.loads(harness.disk.read_bytes(KNOWN))
    known["used"] = [str(A)]
    harness.disk.write_new(KNOWN, json.dumps(known).encode())
    with harness.open() as store:
        assert store.queue_range("orders", 0)[1] > 0


def test_the_same_segment_twice_is_refused() -> None:
    """After a copy instead of a move it is unknown which file is valid."""
    harness = Harness(A, B)
    with harness.open() as store:
        harness.fill(store, 2)
    name = f"{0:020d}"
    harness.disk.write_new(B / name, harness.disk.read_bytes(A / name))
    with pytest.raises(StoreDirectoryError, match="same segment"):
        harness.open()


def test_a_single_path_is_not_recorded() -> None:
    """The one default path is not recorded, nor is it when all segments are back in it."""
    harness = Harness()
    with harness.open() as store:
        harness.fill(store, 1)
    assert not harness.disk.exists(KNOWN)
    with harness.open(DIRECTORY / "commitlog", B) as store:
        harness.fill(store, 2)
    assert harness.numbers(B) == [2]
    assert harness.disk.exists(KNOWN)
    name = f"{2 * SEGMENT:020d}"
    harness.disk.rename(B / name, DIRECTORY / "commitlog" / name)
    known = json.loads(harness.disk.read_bytes(KNOWN))
    assert known["used"] == [str(B), str(DIRECTORY / "commitlog")]
    harness.paths = ()
    with harness.open() as store:
        compare(store, harness.sender.sent, harness.sender.sent)
    assert not harness.disk.exists(KNOWN)


async def test_a_full_disk_gets_no_new_segment() -> None:
    """Above the force watermark a disk gets no segment; messages are accepted while one disk has space."""
    harness = Harness(A, B, disk_clean_ratio=0.75, disk_force_clean_ratio=0.85, disk_full_ratio=0.9)
    with harness.open() as store:
        harness.fill(store, 1)
        harness.disk.ratios = {A.parent: 0.95}
        await store.retention.look_at_disk()
        harness.fill(store, 3)
        assert harness.numbers(A) == [0]
        assert harness.numbers(B) == [1, 2, 3, 4]
        harness.disk.ratios[B.parent] = 0.88
        await store.retention.look_at_disk()
        harness.fill(store, 1)
        assert not store.running.flags, "the emptiest disk decides"
        harness.disk.ratios[B.parent] = 0.95
        await store.retention.look_at_disk()
        assert store.running.flags
        harness.disk.ratios.clear()
        await store.retention.look_at_disk()
        harness.fill(store, 2)
        assert len(harness.numbers(A)) > 1
        compare(store, harness.sender.sent, harness.sender.sent)


def test_an_append_that_finds_a_full_disk() -> None:
    """The segment is created on another disk at once; the message is refused only if every disk is full."""
    harness = Harness(A, B, disk_headroom=1 << 20)
    with harness.open() as store:
        harness.fill(store, 0)
        harness.sender.append(store, [harness.sender.message(3000)])
        harness.disk.ratios = {B.parent: 1.0}
        harness.fill(store, 2)
        assert harness.numbers(B) == []
        assert harness.numbers(A)[:3] == [0, 1, 2]
        harness.disk.ratios[A.parent] = 1.0
        with pytest.raises(StoreFullError):
            harness.fill(store, 2)
        assert store.state == "open"
        compare(store, harness.sender.sent, [])


@pytest.mark.parametrize("mode", ["gathered", "mapped", "pool"])
@pytest.mark.parametrize("restarted", [False, True])
def test_the_segment_in_use_ends_when_its_disk_is_full(
    mode: str, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With space on another disk the log continues there at once, without waiting for retention.

    A blank fills the rest of the segment, so that a start, the tools and RocketMQ find no damage.
    """
    monkeypatch.setattr("aerobee_store.log.mapped_file._RESERVE_SIZE", 1)  # blocks are reserved only when needed
    harness = Harness(A, B, disk_headroom=1 << 20, write_mode=mode)
    store = harness.open()
    harness.sender.append(store, [harness.sender.message(3000)])
    if restarted:
        store.close()
        store = harness.open()  # the blocks reserved past the end are no longer known
    end = store.positions[0]

    def before(operation: Operation) -> None:
        if operation.name == "reserve" and operation.path.parent == A and not restarted:
            raise OSError(errno.ENOSPC, "not one byte is left, not even for a blank", str(operation.path))

    harness.disk.ratios = {A.parent: 1.0}
    harness.disk.before_operation = before
    harness.sender.append(store, [harness.sender.message(1000) for _ in range(20)])  # more than is reserved
    assert harness.numbers(A) == [0]
    assert harness.numbers(B) == [1, 2]
    store.flush()
    compare(store, harness.sender.sent, harness.sender.sent)
    store.close()
    first = harness.disk.contents()[A / f"{0:020d}"]
    assert first[end : end + 8] == (SEGMENT - end).to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big")
    with harness.open() as store:
        assert not store.recovery.damaged
        compare(store, harness.sender.sent, harness.sender.sent)


@pytest.mark.parametrize("operation_name", ["reserve", "unlink"])
def test_another_error_while_the_log_leaves_a_full_disk(
    operation_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """EIO where the segment in use ends, or an unused one is removed, is no want of space: it fails the store."""
    monkeypatch.setattr("aerobee_store.log.mapped_file._RESERVE_SIZE", 1)
    harness = Harness(A, B, disk_headroom=1 << 20)
    with harness.open() as store:
        harness.sender.append(store, [harness.sender.message(3000)])
    with harness.open() as store:  # the blocks reserved past the end are no longer known
        harness.disk.ratios = {(A if operation_name == "reserve" else B).parent: 1.0}
        harness.disk.fail_at(operation_name)
        with pytest.raises(StoreFailedError, match="Input/output error"):
            harness.fill(store, 2)
        assert store.state == "failed"
        harness.disk.heal()
    assert "cause=OSError(5" in caplog.text


@pytest.mark.parametrize("mode", ["gathered", "mapped", "pool"])
def test_a_power_cut_while_a_segment_ends_early(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut before any operation, answered messages are there and undamaged."""
    monkeypatch.setattr("aerobee_store.log.mapped_file._RESERVE_SIZE", 1)
    harness = Harness(A, B, disk_headroom=1 << 20, write_mode=mode)
    taken: list[tuple[MemoryFileSystem, list[Sent]]] = []
    durable: list[Sent] = []

    def before(operation: Operation) -> None:
        if operation.name in CHANGES:
            taken.extend((harness.disk.crash(3 * operation.number + seed), list(durable)) for seed in range(3))

    with harness.open() as store:
        for number in range(8):
            if number == 3:
                harness.disk.ratios = {A.parent: 1.0}
                harness.disk.before_operation = before
            harness.sender.append(store, [harness.sender.message(700) for _ in range(2)])
            store.flush()
            durable += harness.sender.sent[len(durable) :]
        harness.disk.before_operation = None
        assert harness.numbers(B) == [1]
    assert len(taken) > 60
    for disk, certain in taken:
        with MessageStore.open(harness.config, file_system=disk, clock=ManualClock()) as store:
            assert all(damage.start >= certain[-1].end for damage in store.recovery.damaged)
            assert not store.recovery.lost
            compare(store, harness.sender.sent, certain)


def test_a_segment_stays_in_use_when_every_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is refused and the log is unchanged; it continues in place when there is space again."""
    monkeypatch.setattr("aerobee_store.log.mapped_file._RESERVE_SIZE", 1)
    harness = Harness(A, B, disk_headroom=1 << 20)
    with harness.open() as store:
        harness.sender.append(store, [harness.sender.message(3000)])
        store.flush()
        before = store.positions
        harness.disk.ratios = {A.parent: 1.0, B.parent: 1.0}
        for _ in range(3):
            with pytest.raises(StoreFullError):
                store.append([harness.sender.message(1000) for _ in range(20)])
        assert store.positions == before
        harness.disk.ratios = {}
        harness.sender.append(store, [harness.sender.message(1000)])
        store.flush()
        assert store.positions[0] < SEGMENT
        compare(store, harness.sender.sent, harness.sender.sent)


def test_a_path_above_the_watermark_is_preferred_to_a_full_one() -> None:
    """Retention excludes both paths, but only one is full: the log continues on the other."""
    harness = Harness(A, B, disk_headroom=1 << 20)
    with harness.open() as store:
        harness.sender.append(store, [harness.sender.message(3000)])
        store._log.files.run.full = frozenset({A, B})
        harness.disk.ratios = {A.parent: 1.0}
        harness.fill(store, 3)
        assert harness.numbers(A) == [0]
        compare(store, harness.sender.sent, harness.sender.sent)


def test_the_disk_of_every_path_is_shown() -> None:
    """Read-only paths are shown too; a disk that cannot be queried is left out, and the others are still shown."""
    harness = Harness(A, B, read_only_commit_log_paths=(C,))
    harness.disk.ratios = {A.parent: 0.5, B.parent: 0.25, C.parent: 0.75}
    for path in (A, B, C):
        harness.disk.make_directory(path)
    with harness.open() as store:
        assert {path: disk.ratio for path, disk in store.status().log_disks.items()} == {A: 0.5, B: 0.25, C: 0.75}
        assert store.status().disk.ratio == pytest.approx(0.1)
        ask = harness.disk.usage

        def usage(path: Path) -> DiskUsage:
            if path.is_relative_to(B):
                raise OSError(errno.EIO, "gone")
            return ask(path)

        harness.disk.usage = usage  # type: ignore[method-assign]  # a failing disk
        assert set(store.status().log_disks) == {A, C}


async def test_retention_removes_from_every_path() -> None:
    """Read-only paths are included; a path whose last segment expired is not missed at the next start."""
    harness = Harness(A, B, disk_clean_ratio=0.75, disk_force_clean_ratio=0.85)
    with harness.open() as store:
        harness.fill(store, 5)
        assert harness.numbers(A) == [0, 2, 4]
        harness.disk.ratios = {A.parent: 0.86, B.parent: 0.86}
        for _ in range(10):
            await store.retention.clean()
        harness.disk.ratios.clear()
        assert (harness.numbers(A), harness.numbers(B)) == ([], [5])
        assert store.queue_range("orders", 0)[0] > 0
        assert json.loads(harness.disk.read_bytes(KNOWN))["used"] == [str(B)]
    with harness.open() as store:
        assert store.queue_range("orders", 0)[0] > 0


def test_every_path_may_not_be_read_only() -> None:
    """At least one path must accept new segments."""
    with pytest.raises(ConfigError, match=r"store\.commit_log_paths"):
        replace(StoreConfig.tiny(DIRECTORY), commit_log_paths=(A,), read_only_commit_log_paths=(A,))
    with pytest.raises(ConfigError, match=r"store\.commit_log_paths"):
        replace(StoreConfig.tiny(DIRECTORY), read_only_commit_log_paths=(DIRECTORY / "commitlog",))


def test_the_tools_find_every_path(tmp_path: Path) -> None:
    """The tools read the recorded paths and need no option. A backup has the whole log in one place."""
    directory, paths = tmp_path / "store", (tmp_path / "a", tmp_path / "b")
    config = replace(StoreConfig.tiny(directory), commit_log_paths=paths)
    sender = Sender()
    with MessageStore.open(config, clock=ManualClock()) as store:
        for _ in range(20):
            sender.append(store, [sender.message(3000)])
        store.flush()
        backup(directory, tmp_path / "live")
        assert verify(directory).findings == []
    assert len(list(paths[0].iterdir())) >= 2 <= len(list(paths[1].iterdir()))
    assert verify(directory).findings == []
    report = inspect(directory)
    assert report.findings == []
    assert {Path(segment.path).parent for segment in report.segments} == set(paths)
    assert report.disk.log_bytes == sum(path.stat().st_size for folder in paths for path in folder.iterdir())
    assert sum(1 for _ in dump(directory)) == 20
    backup(directory, tmp_path / "copy")
    for copy in ("live", "copy"):
        with MessageStore.open(StoreConfig.tiny(tmp_path / copy), clock=ManualClock()) as store:
            compare(store, sender.sent, sender.sent)
    rebuild(directory, apply=True)
    assert verify(directory).findings == []
    with (paths[1] / f"{3 * SEGMENT:020d}").open("r+b") as segment:  # the last one; a torn write after the log's end
        segment.seek(SEGMENT - 40)
        segment.write(b"torn" * 5)
    (directory / "abort").touch()
    announced = repair(directory).actions
    assert [(action.kind, action.path) for action in announced if action.kind == "cut-log"] == [
        ("cut-log", str(paths[1] / f"{3 * SEGMENT:020d}"))
    ]
    assert repair(directory, apply=True).left == []
    with MessageStore.open(config, clock=ManualClock()) as store:
        compare(store, sender.sent, sender.sent)


@pytest.mark.parametrize("at", ["write", "sync", "rename", "sync_directory"])
def test_paths_that_cannot_be_recorded_leave_no_segment(at: str) -> None:
    """The message is refused, no file blocks the next try, and the store can be opened."""
    harness = Harness(A, B)
    store = harness.open()
    harness.fill(store, 0)

    def before(operation: Operation) -> None:
        if operation.name == at and operation.path in (KNOWN, KNOWN.with_name(f"{KNOWN.name}.tmp"), DIRECTORY):
            raise OSError(errno.ENOSPC, "as the test wants it", str(operation.path))

    harness.sender.append(store, [harness.sender.message(3000)])
    store.flush()
    harness.disk.before_operation = before
    with pytest.raises(StoreFullError):
        harness.fill(store, 1)
    harness.disk.before_operation = None
    assert store.state == "open"
    with MessageStore.open(harness.config, file_system=harness.disk.kill(), clock=ManualClock()) as after:
        compare(after, harness.sender.sent, [])
    store.flush()
    harness.fill(store, 1)
    assert harness.numbers(B) == [1]
    compare(store, harness.sender.sent, harness.sender.sent)
    for seed in range(8):  # data dropped by a failed sync is not in the valid file
        with MessageStore.open(harness.config, file_system=harness.disk.crash(seed), clock=ManualClock()) as after:
            compare(after, harness.sender.sent, harness.sender.sent)
    store.close()


def test_an_unsynced_removal_of_a_segment_is_accepted() -> None:
    """The next record of the paths does not list its path as having segments, and the store can be opened."""
    disk = Disks()
    run = LogPaths(disk, replace(StoreConfig.tiny(DIRECTORY), commit_log_paths=(A, B)))
    disk.make_directory(DIRECTORY)
    assert run.load() == []
    for start in (0, SEGMENT):
        run.create(start).close()

    def before(operation: Operation) -> None:
        if operation.name == "sync_directory" and operation.path == B:
            raise OSError(errno.EIO, "as the test wants it", str(operation.path))

    disk.before_operation = before
    with pytest.raises(OSError, match="as the test wants it"):
        run.remove([SEGMENT])
    disk.before_operation = None
    run.create(2 * SEGMENT).close()
    assert json.loads(disk.read_bytes(KNOWN))["used"] == [str(A)]
    assert LogPaths(disk, replace(StoreConfig.tiny(DIRECTORY), commit_log_paths=(A, B))).load() == [0, 2 * SEGMENT]


async def test_segments_are_prepared_in_a_new_path(tmp_path: Path) -> None:
    """A path is created with its first segment, in advance or on demand."""
    config = replace(
        StoreConfig.tiny(tmp_path / "store"), commit_log_paths=(tmp_path / "a", tmp_path / "b"), segments_ahead=1
    )
    sender = Sender()
    with MessageStore.open(config, clock=ManualClock()) as store:
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            sender.append(store, [sender.message(5000)])
            await store.wait_stored(store.positions[0])
            while not (store.status().segments_prepared or store.stats.allocation_failures):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        services.cancel()
        with suppress(asyncio.CancelledError):
            await services
        assert store.stats.allocation_failures == 0
        assert [int(path.name) for path in (tmp_path / "b").iterdir()] == [SEGMENT]


def test_a_live_copy_of_paths_within_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log paths inside the store's directory are copied only as log.

    Each segment is copied once, up to the end of the copy, also if the store is given by a relative path, which the
    log's paths never are.
    """
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "store"
    config = replace(StoreConfig.tiny(directory), commit_log_paths=(directory / "log-a", directory / "log-b"))
    sender = Sender()
    with MessageStore.open(config, clock=ManualClock()) as store:
        for _ in range(20):
            sender.append(store, [sender.message(3000)])
        store.flush()
        report = backup(directory, tmp_path / "live", hard_links=True)
    assert report.linked > 1
    backup(Path("store"), Path("copy"))
    for copy in (tmp_path / "live", tmp_path / "copy"):
        assert [path.name for path in copy.iterdir() if path.name.startswith("log")] == []
        with MessageStore.open(StoreConfig.tiny(copy), clock=ManualClock()) as store:
            compare(store, sender.sent, sender.sent)


def test_paths_are_recorded_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store opened by a relative path can be opened from another directory the next time."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    read_only = (tmp_path / "a",)
    sender = Sender()
    config = replace(StoreConfig.tiny(Path("store")), read_only_commit_log_paths=read_only)
    with MessageStore.open(config, clock=ManualClock()) as store:
        sender.append(store, [sender.message(3000)])
    known = json.loads((tmp_path / "store" / "commitlog.paths").read_text())
    assert known["used"] == known["paths"] == [str(tmp_path / "store" / "commitlog")]
    monkeypatch.chdir("/")
    config = replace(StoreConfig.tiny(tmp_path / "store"), read_only_commit_log_paths=read_only)
    with MessageStore.open(config, clock=ManualClock()) as store:
        compare(store, sender.sent, sender.sent)


@pytest.mark.parametrize("operation", ["create", "sync", "sync_directory", "rename", "unlink", "make_directory"])
async def test_an_error_at_every_operation(operation: str) -> None:
    """With segments allocated in advance and given back, answered messages survive a kill or a power cut.

    No start is refused because of an unfinished operation.
    """
    config = replace(Harness(A, B, segments_ahead=2, disk_clean_ratio=0.75).config, derived_flush_interval_seconds=0.01)
    for number in range(1, 25, 2):
        disk, sender = Disks(), Sender()
        answered: list[Sent] = []
        with suppress(StoreFailedError):
            async with serving(config, disk) as store:
                disk.fail_at(operation, number)
                for round_ in range(12):
                    with suppress(StoreFullError):
                        sent = sender.append(store, [sender.message(3000)])
                        await store.wait_stored(store.positions[0])
                        answered += sent
                    if round_ % 4 == 3:
                        disk.ratios = {A.parent: 0.95, B.parent: 0.95}
                        await store.retention.clean()
                        disk.ratios = {}
        disk.heal()
        for after in (disk.kill(), disk.crash(number), disk.crash(number + 1)):
            with MessageStore.open(config, file_system=after, clock=ManualClock()) as store:
                compare(store, sender.sent, answered)
