"""Cutting the log where another broker's log continues: the tail is moved to quarantine, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreDirectoryError
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.durability import log_cut


def _append(store: MessageStore, first: int, count: int) -> list[int]:
    """Append messages; return where each begins."""
    places = []
    for number in range(first, first + count):
        (appended,) = store.append([Message("T", number % 2, f"{number:04d}".encode() * 20, {"KEYS": f"k{number}"})])
        places.append(appended.physical_offset)
    store.flush()
    return places


def _bodies(store: MessageStore) -> list[bytes]:
    found = []
    for queue_id in (0, 1):
        low, high = store.queue_range("T", queue_id)
        for offset in range(low, high):
            place = store.physical_offset_at("T", queue_id, offset)
            assert place is not None
            found.append(bytes(store.record_at(place).body))
    return sorted(found)


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("kept", [1, 40, 119])
def test_the_tail_is_quarantined_and_the_log_continues(tmp_path: Path, crashed: bool, kept: int) -> None:
    """With a tail of several segments, every byte of it is in `quarantine`."""
    config = StoreConfig.tiny(tmp_path)
    with MessageStore.open(config) as store:
        places = _append(store, 0, 120)
        end = store.positions[0]
        log = bytes(store.flushed_bytes(places[kept], 1 << 20))  # to the end of its segment
    log_cut.order(DiskFileSystem(), tmp_path, places[kept])
    if crashed:
        (tmp_path / "abort").touch()
    with MessageStore.open(config) as store:
        assert store.positions[0] == places[kept]
        assert _bodies(store) == [f"{number:04d}".encode() * 20 for number in range(kept)]
        assert store.recovery.torn_tail > 0
        assert not store.recovery.damaged
        assert store.query("T", f"k{kept}") == []
        _append(store, 1000, 30)
    with MessageStore.open(config) as store:
        assert len(_bodies(store)) == kept + 30
        assert store.recovery.clean
    aside = sorted((tmp_path / "quarantine").iterdir())
    assert all(path.name.startswith(log_cut.DIVERGED) for path in aside)
    assert aside[0].read_bytes().rstrip(b"\0")[:200] == log[:200]
    assert sum(len(path.read_bytes().rstrip(b"\0")) for path in aside) >= (end - places[kept]) * 0.9


def test_an_interrupted_cut_is_repeated(tmp_path: Path) -> None:
    """The order to cut stays until the cut is completely synced."""
    config = StoreConfig.tiny(tmp_path)
    with MessageStore.open(config) as store:
        places = _append(store, 0, 120)
    # The first half of the tail was zeroed, then the machine stopped.
    log_cut.order(DiskFileSystem(), tmp_path, places[60])
    segment = places[60] - places[60] % config.segment_size
    with (tmp_path / "commitlog" / f"{segment:020d}").open("r+b") as file:
        file.seek(places[60] - segment)
        file.write(bytes(300))
    with MessageStore.open(config) as store:
        assert store.positions[0] == places[60]
        assert len(_bodies(store)) == 60
    assert log_cut.ordered(DiskFileSystem(), tmp_path) is None


def test_the_files_of_the_timer_are_removed_with_the_tail(tmp_path: Path) -> None:
    """The timer's files refer to the tail, so they are removed with it."""
    config = StoreConfig.tiny(tmp_path)
    with MessageStore.open(config) as store:
        places = _append(store, 0, 3)
    for name in ("timerwheel", "timerlog/00000000000000000000", "config/timercheck"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    log_cut.order(DiskFileSystem(), tmp_path, places[1])
    MessageStore.open(config).close()
    assert not (tmp_path / "timerwheel").exists()
    assert not list((tmp_path / "timerlog").iterdir())
    assert not (tmp_path / "config" / "timercheck").exists()


def test_an_invalid_order_stops_the_start(tmp_path: Path) -> None:
    """An invalid order stops the start, and the log stays as it is."""
    MessageStore.open(StoreConfig.tiny(tmp_path)).close()
    (tmp_path / log_cut.FILE_NAME).write_text("soon\n")
    with pytest.raises(StoreDirectoryError, match="is not an offset"):
        MessageStore.open(StoreConfig.tiny(tmp_path))


@pytest.mark.parametrize("kept", [40, 119])
def test_a_deletion_in_the_tail_is_undone(tmp_path: Path, kept: int) -> None:
    """The other broker still has the messages of the topic, and stores more at places before that of the deletion."""
    config = StoreConfig.tiny(tmp_path)
    with MessageStore.open(config) as store:
        places = _append(store, 0, 120)
        store.delete_topic("T")
    log_cut.order(DiskFileSystem(), tmp_path, places[kept])
    expected = [f"{number:04d}".encode() * 20 for number in range(kept)]
    for _ in range(2):
        with MessageStore.open(config) as store:
            assert _bodies(store) == expected
            assert store.deleted_topics == {}
    with MessageStore.open(config) as store:
        _append(store, kept, 2)
    with MessageStore.open(config) as store:
        assert len(_bodies(store)) == kept + 2
