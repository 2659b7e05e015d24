"""Every directory of a log is locked, belongs to one store, and is refused while another process writes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreDirectoryError, StoreError, StoreLockedError
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.log import log_claims
from aerobee_store.testing import MemoryFileSystem
from aerobee_store.tools.repair import repair

_WRITER = (
    "import sys, time; files = [open(path, 'r+b') for path in sys.argv[1:]]; print('open', flush=True); time.sleep(60)"
)
_OPEN = (
    "import sys; from dataclasses import replace; from pathlib import Path\n"
    "from aerobee_store import MessageStore, StoreConfig\n"
    "directory, *paths = map(Path, sys.argv[1:])\n"
    "MessageStore.open(replace(StoreConfig.tiny(directory), commit_log_paths=tuple(paths))); print('opened')"
)


def config(directory: Path, *paths: Path, read_only: tuple[Path, ...] = ()) -> StoreConfig:
    return replace(StoreConfig.tiny(directory), commit_log_paths=paths, read_only_commit_log_paths=read_only)


def fill(settings: StoreConfig, count: int = 8) -> int:
    """Store messages in a store; return the end of its log."""
    with MessageStore.open(settings) as store:
        for _ in range(count):
            store.append([Message(topic="t", queue_id=0, body=b"x" * 3000)])
        return store.positions[0]


def end(settings: StoreConfig) -> int:
    with MessageStore.open(settings) as store:
        return store.positions[0]


def open_elsewhere(directory: Path, *paths: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", _OPEN, str(directory), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ran.stdout + ran.stderr


@contextmanager
def open_for_writing(*paths: Path) -> Iterator[None]:
    """Another process, which has these files open for writing, as RocketMQ has its segments."""
    with subprocess.Popen([sys.executable, "-c", _WRITER, *map(str, paths)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def state_of(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def test_two_open_stores_never_share_a_directory_of_the_log(tmp_path: Path) -> None:
    """The second store is refused, whether it would write the directory, only empty it, or is in another process."""
    log, other = tmp_path / "log", tmp_path / "other"
    with MessageStore.open(config(tmp_path / "a", log)):
        with pytest.raises(StoreLockedError, match="another process has this directory of the log open"):
            MessageStore.open(config(tmp_path / "b", log))
        with pytest.raises(StoreLockedError, match="another process has this directory of the log open"):
            MessageStore.open(config(tmp_path / "c", other, read_only=(log,)))
        assert "StoreLockedError" in open_elsewhere(tmp_path / "d", log)
    with MessageStore.open(config(tmp_path / "a", log)) as store:
        assert store.state == "open", "the refused stores left the locks as they were"


def test_the_default_directory_of_a_store_is_locked_too(tmp_path: Path) -> None:
    """A second store cannot name the log of an open one."""
    with (
        MessageStore.open(config(tmp_path / "a")),
        pytest.raises(StoreLockedError, match="directory of the log open"),
    ):
        MessageStore.open(config(tmp_path / "b", tmp_path / "a" / "commitlog"))


def test_the_log_of_a_stopped_store_is_refused(tmp_path: Path) -> None:
    """It belongs to that store, whose name the error tells; nothing is changed."""
    log = tmp_path / "log"
    fill(config(tmp_path / "a", log))
    before = state_of(log)
    for attempt in (config(tmp_path / "b", log), config(tmp_path / "c", tmp_path / "own", read_only=(log,))):
        with pytest.raises(StoreDirectoryError, match=f"belongs to the store in {tmp_path / 'a'}, not to the one in"):
            MessageStore.open(attempt)
    assert state_of(log) == before


@pytest.mark.parametrize("attributes", [True, False])
def test_the_log_within_another_stores_directory_is_refused(
    tmp_path: Path, attributes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without extended attributes, and if RocketMQ wrote it: the directory beside it tells."""
    if not attributes:
        monkeypatch.setattr(DiskFileSystem, "attribute", lambda *_: None)
    fill(config(tmp_path / "a"))
    (tmp_path / "a" / "store.id").unlink()
    shutil.rmtree(tmp_path / "a" / "config", ignore_errors=True)
    with pytest.raises(StoreDirectoryError, match="the store in"):
        MessageStore.open(config(tmp_path / "b", tmp_path / "a" / "commitlog"))


def test_a_new_store_begins_with_an_empty_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of an unknown store, as RocketMQ's in a storePathCommitLog, are not taken over by a new store."""
    monkeypatch.setattr(DiskFileSystem, "attribute", lambda *_: None)
    log = tmp_path / "log"
    fill(config(tmp_path / "a", log))
    with pytest.raises(StoreDirectoryError, match=r"contains segments, but the store in .* is new"):
        MessageStore.open(config(tmp_path / "b", log))
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["lock"]
    shutil.copytree(log, tmp_path / "b" / "commitlog")  # as the error advises
    assert end(config(tmp_path / "b")) > 8 * 3000


def test_a_segment_that_another_process_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ locks its root directory only, but keeps the segments open; a process that reads them is no matter."""
    monkeypatch.setattr(log_claims, "_ATTEMPTS", 2)
    settings = config(tmp_path / "store")
    fill(settings)
    segments = sorted((tmp_path / "store" / "commitlog").iterdir())
    before = state_of(tmp_path / "store" / "commitlog")
    with open_for_writing(*segments), pytest.raises(StoreLockedError, match="perhaps a running RocketMQ broker"):
        MessageStore.open(settings)
    assert state_of(tmp_path / "store" / "commitlog") == before
    with segments[-1].open("rb"):
        assert end(settings) > 0


def test_a_writer_that_ends_a_moment_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process may close its segments after its locks: the start waits."""
    settings = config(tmp_path / "store")
    fill(settings)
    asked: list[Path] = []

    def is_open(self: DiskFileSystem, path: Path) -> bool:
        asked.append(path)
        return len(asked) < 3

    monkeypatch.setattr(DiskFileSystem, "is_open_for_writing", is_open)
    assert end(settings) > 0
    assert len(asked) >= 3


def test_a_lease_leaves_other_processes_alone(tmp_path: Path) -> None:
    """The question whether a file is written neither blocks nor ends a process that opens it right then."""
    path = tmp_path / "segment"
    path.write_bytes(bytes(4096))
    disk = DiskFileSystem()
    assert not disk.is_open_for_writing(path)
    with path.open("r+b") as file:
        assert disk.is_open_for_writing(path)
        file.write(b"x")
    assert not disk.is_open_for_writing(path)


def test_a_moved_store_keeps_its_log(tmp_path: Path) -> None:
    """The directory of a store, one of its log, or both are renamed: the same store opens them."""
    fill(config(tmp_path / "a", tmp_path / "log"))
    (tmp_path / "a").rename(tmp_path / "b")
    wanted = end(config(tmp_path / "b", tmp_path / "log"))
    (tmp_path / "log").rename(tmp_path / "log2")
    (tmp_path / "b" / "commitlog.paths").unlink()  # it names the path that is gone
    assert end(config(tmp_path / "b", tmp_path / "log2")) == wanted


def test_a_copied_store_leaves_the_original_alone(tmp_path: Path) -> None:
    """A copy of the store's directory is refused the log of the original; with a copy of the log it opens."""
    fill(config(tmp_path / "a", tmp_path / "log"))
    shutil.copytree(tmp_path / "a", tmp_path / "b", symlinks=True)
    with pytest.raises(StoreDirectoryError, match="is a copy of that store; copy this directory too"):
        MessageStore.open(config(tmp_path / "b", tmp_path / "log"))
    wanted = end(config(tmp_path / "a", tmp_path / "log"))
    shutil.copytree(tmp_path / "log", tmp_path / "log2")
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "commitlog.paths").unlink()
    assert end(config(tmp_path / "b", tmp_path / "log2")) == wanted
    assert end(config(tmp_path / "a", tmp_path / "log")) == wanted


def test_a_whole_copy_is_a_store_of_its_own(tmp_path: Path) -> None:
    """A store with its log in its own directory may be copied with its attributes, and both are used."""
    fill(config(tmp_path / "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copy2)
    wanted = fill(config(tmp_path / "b"), 2)
    assert end(config(tmp_path / "a")) < wanted == end(config(tmp_path / "b"))


def test_a_store_that_rocketmq_wrote_gets_its_identity_at_the_first_start(tmp_path: Path) -> None:
    """It has neither a name nor claims; the first start claims what it finds, and a second store is refused."""
    settings = config(tmp_path / "a", tmp_path / "log")
    fill(settings)
    (tmp_path / "a" / "store.id").unlink()
    os.removexattr(tmp_path / "log", log_claims.ATTRIBUTE)
    assert end(settings) > 0
    with pytest.raises(StoreDirectoryError, match="belongs to the store in"):
        MessageStore.open(config(tmp_path / "b", tmp_path / "log"))


def test_a_read_only_disk_needs_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be changed carries no claim; the store opens, and the log is read."""
    log, old = tmp_path / "log", tmp_path / "old"
    fill(config(tmp_path / "a", old))

    def refuse(path: object, name: str, value: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "setxattr", refuse)
    os.removexattr(old, log_claims.ATTRIBUTE)
    segment = sorted(old.iterdir())[-1]
    log.mkdir()
    segment.rename(log / segment.name)
    assert end(config(tmp_path / "a", log, read_only=(old,))) > 0


def test_a_missing_disk_is_not_made(tmp_path: Path) -> None:
    """A path with segments that is gone is reported, and no directory appears in its place."""
    fill(config(tmp_path / "a", tmp_path / "log"))
    (tmp_path / "log").rename(tmp_path / "unmounted")
    with pytest.raises(StoreDirectoryError, match="is its disk mounted"):
        MessageStore.open(config(tmp_path / "a", tmp_path / "log"))
    assert not (tmp_path / "log").exists()


def test_a_repair_leaves_a_log_in_use_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that writes is refused like a broker."""
    monkeypatch.setattr(log_claims, "_ATTEMPTS", 2)
    settings = config(tmp_path / "a", tmp_path / "log")
    fill(settings)
    shutil.rmtree(tmp_path / "a" / "consumequeue")
    with (
        open_for_writing(*sorted((tmp_path / "log").iterdir())),
        pytest.raises(StoreLockedError, match="perhaps a running RocketMQ broker"),
    ):
        repair(tmp_path / "a", apply=True)
    assert repair(tmp_path / "a", apply=True).applied


def test_a_power_cut_at_every_operation_of_the_first_start() -> None:
    """The next start opens the store, whatever of its identity and its claims is durable."""
    for seed in range(40):
        disk = MemoryFileSystem()
        settings = config(Path("/store"), Path("/disk/log"))
        disk.fail_at(None, seed + 1)
        with suppress(StoreError):  # any error of the disk
            MessageStore.open(settings, file_system=disk).close()
        MessageStore.open(settings, file_system=disk.crash(seed)).close()
