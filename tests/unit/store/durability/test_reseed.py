"""The exchange of a store's log for a new copy of another log: complete or not at all, wherever it is interrupted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreDirectoryError, StoreError
from aerobee_store.disk.file_system import FileSystem
from aerobee_store.durability import log_cut, reseed
from aerobee_store.testing import CHANGES, MemoryFileSystem, Operation

DIRECTORY = Path("/disk0/store")
ONE = StoreConfig.tiny(DIRECTORY)
TWO = replace(ONE, commit_log_paths=(Path("/disk1/log"), Path("/disk2/log")))
SEGMENT = ONE.segment_size
OLD = [f"old {number}".encode() for number in range(40)]
NEW = [f"new {number}".encode() for number in range(40)]
BEGIN = 20 * SEGMENT


def _append(store: MessageStore, bodies: list[bytes], topic: str = "T") -> None:
    for body in bodies:
        store.append([Message(topic, 0, body.ljust(600, b"."), {"KEYS": body.decode().replace(" ", "-")})])
    store.flush()


def _bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    low, high = store.queue_range(topic, 0)
    found = store.read(topic, 0, low, max_count=max(high - low, 1)).records
    return [bytes(record.body).rstrip(b".") for record in found]


def _master_log(disk: FileSystem) -> bytes:
    """The bytes of a log that begins at BEGIN."""
    with MessageStore.open(replace(ONE, directory=Path("/master")), file_system=disk) as store:
        store.follower.begin_at(BEGIN)
        _append(store, [b"other"], "U")
        _append(store, NEW)
        log = b""
        while part := store.flushed_bytes(BEGIN + len(log), 1 << 20):
            log += bytes(part)
    return log


def _fill(store: MessageStore, log: bytes) -> None:
    """Receive what is left of the log."""
    follower = store.follower
    if not store.positions[0]:
        follower.begin_at(BEGIN)
    while left := log[follower.next_offset - BEGIN :]:
        follower.receive(follower.next_offset, left[:9000])
        store.flush()


def _prepared(config: StoreConfig) -> tuple[MemoryFileSystem, bytes]:
    """A disk with a store that has the old messages, and the log that is to replace its own."""
    disk = MemoryFileSystem()
    log = _master_log(disk)
    with MessageStore.open(config, file_system=disk) as store:
        _append(store, OLD)
        _append(store, [b"gone"], "Deleted")
        store.delete_topic("Deleted")
    disk.make_directory(DIRECTORY / "config")
    disk.write_new(DIRECTORY / "config" / "topics.json", b"{}")
    disk.write_new(DIRECTORY / "replicationRole", b"replica\n")
    disk.write_new(DIRECTORY / "timerwheel", b"of the old log")
    disk.sync_directory(DIRECTORY / "config")
    disk.sync_directory(DIRECTORY)
    return disk, log


def _reseed(disk: MemoryFileSystem, config: StoreConfig, log: bytes) -> None:
    with MessageStore.open(reseed.config_of(config), file_system=disk) as copy:
        _fill(copy, log)
    _exchange(disk, config)


def _exchange(disk: MemoryFileSystem, config: StoreConfig) -> None:
    reseed.order(disk, config)
    MessageStore.open(config, file_system=disk).close()


def _check_new(disk: FileSystem, config: StoreConfig) -> None:
    with MessageStore.open(config, file_system=disk, whole_log=True) as store:
        assert _bodies(store) == NEW
        assert store.min_physical_offset == BEGIN
        assert not store.recovery.damaged
        assert [bytes(record.body).rstrip(b".") for record in store.query("T", "new-7")] == [NEW[7]]
        assert store.query("T", "old-7") == []
        assert store.queue_ids("Deleted") == []
    assert not reseed.has_begun(disk, config)
    assert not disk.exists(DIRECTORY / "timerwheel")
    assert disk.read_bytes(DIRECTORY / "replicationRole") == b"replica\n"
    assert disk.exists(DIRECTORY / "config" / "topics.json")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("config", [ONE, TWO], ids=["one directory", "two directories"])
def test_the_new_copy_replaces_the_old_one(config: StoreConfig) -> None:
    """With its queues and index, in every directory of the log; tables, role and identity stay."""
    disk, log = _prepared(config)
    identity = disk.read_bytes(DIRECTORY / "store.id")
    _reseed(disk, config, log)
    _check_new(disk, config)
    assert disk.read_bytes(DIRECTORY / "store.id") == identity
    for path in config.commit_log_paths:
        assert disk.list(path), "each directory has its share"
        assert not disk.exists(path.parent / reseed.DIRECTORY)


def test_the_old_copy_stays_in_use_until_the_new_one_is_complete(tmp_path: Path) -> None:
    """Both stores are open at the same time, and an incomplete copy replaces nothing."""
    disk, log = _prepared(ONE)
    with MessageStore.open(ONE, file_system=disk) as store:
        with MessageStore.open(reseed.config_of(ONE), file_system=disk) as copy:
            _fill(copy, log[: len(log) // 2])
        assert _bodies(store) == OLD
    with MessageStore.open(ONE, file_system=disk) as store:
        assert _bodies(store) == OLD
    assert reseed.has_begun(disk, ONE)
    with MessageStore.open(reseed.config_of(ONE), file_system=disk) as copy:
        assert BEGIN < copy.positions[0] < BEGIN + len(log), "it is continued"
    reseed.discard(disk, ONE)
    assert not reseed.has_begun(disk, ONE)


@pytest.mark.parametrize("config", [ONE, TWO], ids=["one directory", "two directories"])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_an_interruption_anywhere_leaves_the_old_copy_or_the_new_one(config: StoreConfig, power: bool) -> None:
    """Whichever store the next start finds is whole, and the new copy can be continued and put in place."""
    disk, log = _prepared(config)
    taken: list[MemoryFileSystem] = []

    def take(operation: Operation) -> None:
        if operation.name in CHANGES and operation.number % step == 0:
            taken.append(disk.crash(operation.number) if power else disk.kill())

    disk.before_operation = take
    step = 40  # what makes the new copy changes nothing of the old one
    with MessageStore.open(reseed.config_of(config), file_system=disk) as copy:
        _fill(copy, log)
    step = 1 if config is ONE else 3
    _exchange(disk, config)
    disk.before_operation = None
    seen = set()
    for left in taken:
        with MessageStore.open(config, file_system=left) as store:
            found = _bodies(store)
            assert found in (OLD, NEW)
            seen.add(tuple(found))
            assert not store.recovery.damaged
            assert not store.recovery.quarantined
        if found == OLD:
            _reseed(left, config, log)
        _check_new(left, config)
    assert len(seen) == 2


def test_only_what_was_made_is_removed() -> None:
    """Directories beside the log may have the same names."""
    disk, _ = _prepared(TWO)
    theirs = Path("/disk1") / reseed.DIRECTORY / "log"
    disk.make_directory(theirs)
    disk.write_new(theirs / "notes", b"not ours")
    reseed.discard(disk, TWO)
    assert disk.exists(theirs / "notes")


def test_a_full_disk_keeps_the_old_copy() -> None:
    """The new copy waits for space and then goes on."""
    disk, log = _prepared(ONE)
    config = reseed.config_of(ONE)
    with MessageStore.open(ONE, file_system=disk) as store:
        disk.capacity = disk.used + 3 * SEGMENT
        with pytest.raises(StoreError, match="space"), MessageStore.open(config, file_system=disk) as copy:
            _fill(copy, log)
        assert _bodies(store) == OLD
        assert store.state == "open"
        disk.capacity = None
    _reseed(disk, ONE, log)
    _check_new(disk, ONE)


def test_the_exchange_needs_no_space() -> None:
    """It removes before it renames."""
    disk, log = _prepared(ONE)
    with MessageStore.open(reseed.config_of(ONE), file_system=disk) as copy:
        _fill(copy, log)
    reseed.order(disk, ONE)
    disk.capacity = disk.used + (64 << 10)  # a start needs some for its own files
    MessageStore.open(ONE, file_system=disk).close()
    disk.capacity = None
    _check_new(disk, ONE)


def test_an_invalid_order_stops_the_start() -> None:
    """The message says what to do, and nothing is changed."""
    disk, _ = _prepared(ONE)
    disk.write_new(DIRECTORY / reseed.ORDER, b"soon\n")
    with pytest.raises(StoreDirectoryError, match="write `replace` into the file"):
        MessageStore.open(ONE, file_system=disk)
    disk.unlink(DIRECTORY / reseed.ORDER)
    with MessageStore.open(ONE, file_system=disk) as store:
        assert _bodies(store) == OLD


def test_an_order_to_cut_the_old_log_is_gone_with_it() -> None:
    """It names an offset of the old log."""
    disk, log = _prepared(ONE)
    log_cut.order(disk, DIRECTORY, 0)
    with MessageStore.open(reseed.config_of(ONE), file_system=disk) as copy:
        _fill(copy, log)
    reseed.order(disk, ONE)
    _check_new(disk, ONE)


async def test_a_queue_without_messages_continues_where_the_other_log_has_it() -> None:
    """Otherwise the next message would get an offset that readers have passed long ago; also after restarts."""
    disk = MemoryFileSystem()
    log = _master_log(disk)
    with MessageStore.open(ONE, file_system=disk) as store:
        _fill(store, log)
        end = store.queue_range("T", 0)[1]
        await store.continue_queues({"T": {0: end + 5, 1: 7}, "Expired": {3: 100}})
        assert store.queue_range("T", 0) == (0, end), "its messages tell where it ends"
    for turn in range(2):
        with MessageStore.open(ONE, file_system=disk) as store:
            assert [store.append([Message("Expired", 3, b"x")])[0].queue_offset] == [100 + turn]
            assert [store.append([Message("T", 1, b"x")])[0].queue_offset] == [7 + turn]
            store.flush()
            assert store.queue_range("Expired", 3) == (100, 101 + turn)
            assert _bodies(store)[:40] == NEW
