"""The files of a store: found once, and again while a broker writes to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.tools.store_files import StoreFiles

UNITS = 50


def config(directory: Path) -> StoreConfig:
    return StoreConfig(directory=directory, segment_size=16 << 10, queue_file_size=20 * UNITS)


def append(store: MessageStore, topic: str, count: int, queue_id: int = 0) -> None:
    for number in range(count):
        store.append([Message(topic, queue_id, b"body %d" % number)])
    store.flush()


def seen(files: StoreFiles) -> object:
    return (
        [(segment.path, segment.start_offset, segment.size) for segment in files.segments],
        {key: (queue.starts, queue.first, queue.end()) for key, queue in files.queues.items()},
    )


def make_old(directory: Path) -> None:
    """Make everything look unchanged for an hour."""
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (1_000_000_000, 1_000_000_000))


def test_a_refresh_finds_the_same_as_a_new_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments, topics, queues and files appear and disappear, whether directories look old or new."""
    with MessageStore.open(config(tmp_path)) as store:
        append(store, "a", 30)
        files = StoreFiles.find(tmp_path)
        ends = {key: queue.end() for key, queue in files.queues.items()}
        for step in ("same files", "more files", "another queue", "another topic", "nothing"):
            make_old(tmp_path)
            files.refresh()
            files.refresh()
            if step in ("same files", "more files"):
                append(store, "a", {"same files": 10, "more files": 3 * UNITS}[step])
            elif step != "nothing":
                append(store, "a" if step == "another queue" else "b", 20, queue_id=1)
            files.refresh()
            expected = StoreFiles.find(tmp_path)
            assert seen(files) == seen(expected), step
            for key, queue in files.queues.items():
                assert queue.end(ends.get(key, 0)) == queue.end(), step
                assert queue.end(queue.end() + 7) == queue.end(), "a queue that was longer"
        assert len(files.queues) == 3
        assert len(files.segments) > 1
    make_old(tmp_path)
    files.refresh()
    listed: list[Path] = []

    def note(self: DiskFileSystem, directory: Path) -> list[str]:
        listed.append(directory)
        return []

    monkeypatch.setattr(DiskFileSystem, "list", note)
    files.refresh()
    assert set(listed) <= {tmp_path / "batchconsumequeue"}, "nothing changed; a directory that is not there may come"
    monkeypatch.undo()
    (tmp_path / "consumequeue" / "a" / "0" / f"{0:020d}").unlink()
    files.refresh()
    assert files.queues["a", 0].first == UNITS
    assert seen(files) == seen(StoreFiles.find(tmp_path))


def test_only_requested_topics_are_found(tmp_path: Path) -> None:
    """Directories of other topics are never read."""
    with MessageStore.open(config(tmp_path)) as store:
        append(store, "a", 5)
        append(store, "b", 5)
        files = StoreFiles.find(tmp_path, has_topic=lambda topic: topic == "b")
        assert set(files.queues) == {("b", 0)}
        append(store, "a", 5, queue_id=1)
        append(store, "b", 5, queue_id=1)
        files.refresh()
        assert set(files.queues) == {("b", 0), ("b", 1)}
