"""The store's interface: opening, limits, appends across segments, and reading."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import (
    InvalidMessageError,
    Message,
    MessageStore,
    RecordBatch,
    StoreClosedError,
    StoreConfig,
    StoreDirectoryError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from aerobee_store.records.record import Draft
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, Sender, compare

CONFIG = StoreConfig.tiny(DIRECTORY)


@pytest.fixture(name="disk")
def disk_fixture() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture(name="store")
def store_fixture(disk: MemoryFileSystem) -> Iterator[MessageStore]:
    with MessageStore.open(CONFIG, file_system=disk, clock=ManualClock()) as store:
        yield store


# --- opening


def test_a_lock_of_another_process(tmp_path: Path) -> None:
    """A store opened by another process cannot be opened until that process ends."""
    program = (
        "import sys; from pathlib import Path; from aerobee_store import MessageStore, StoreConfig\n"
        "store = MessageStore.open(StoreConfig.tiny(Path(sys.argv[1])))\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StoreLockedError, match="another process has this store open"):
            MessageStore.open(StoreConfig.tiny(tmp_path))
    finally:
        other.kill()
        other.wait(10)
        other.stdin.close()
        other.stdout.close()
    with MessageStore.open(StoreConfig.tiny(tmp_path)) as store:
        assert not store.recovery.clean


def test_an_unreadable_directory(disk: MemoryFileSystem) -> None:
    """The error names the path and the system's reason."""
    MessageStore.open(CONFIG, file_system=disk).close()
    for number in range(1, 8):
        disk.fail_at(None, number, errno.EACCES)
        with pytest.raises(StoreDirectoryError, match=r"/store.*Permission denied"):
            MessageStore.open(CONFIG, file_system=disk)
        assert not disk.locked, "a failed opening lets go of the lock"
        disk.heal()


def test_a_foreign_directory(tmp_path: Path) -> None:
    """A directory with other files is left alone."""
    (tmp_path / "holiday.jpg").write_bytes(b"...")
    with pytest.raises(StoreDirectoryError, match=r"holiday\.jpg"):
        MessageStore.open(StoreConfig.tiny(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(StoreDirectoryError, match="not a directory"):
        MessageStore.open(StoreConfig.tiny(tmp_path / "holiday.jpg"))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"segment_size": 32768}, "16384 bytes, but the configured file size is 32768"),
        ({"queue_file_size": 800}, "400 bytes, but the configured file size is 800"),
        ({"index_slot_count": 51}, r"store\.index_slot_count"),
        ({"index_entry_count": 90}, r"store\.index_entry_count"),
    ],
)
def test_wrong_sizes(disk: MemoryFileSystem, change: dict[str, int], match: str) -> None:
    """A store written with other file sizes is not touched."""
    sender = Sender()
    with MessageStore.open(CONFIG, file_system=disk) as store:
        sender.append(store, [sender.message(20)])
    before = disk.contents()
    with pytest.raises(StoreDirectoryError, match=match):
        MessageStore.open(replace(CONFIG, **change), file_system=disk)  # type: ignore[arg-type] # sizes are integers
    assert disk.contents() == before
    with MessageStore.open(CONFIG, file_system=disk) as store:
        compare(store, sender.sent, sender.sent)


def test_a_full_disk_at_the_start(disk: MemoryFileSystem) -> None:
    """StoreFullError asks to free some space, and the lock is released."""
    disk.capacity = 0
    with pytest.raises(StoreFullError, match="free some"):
        MessageStore.open(CONFIG, file_system=disk)
    disk.capacity = None
    MessageStore.open(CONFIG, file_system=disk).close()


def test_calls_of_a_closed_store_raise(disk: MemoryFileSystem) -> None:
    """Closing twice is harmless; every other call raises an error."""
    store = MessageStore.open(CONFIG, file_system=disk)
    store.close()
    store.close()
    assert store.state == "closed"
    with pytest.raises(StoreClosedError):
        store.append([Message("orders", 0, b"")])
    with pytest.raises(StoreClosedError):
        store.flush()
    assert not disk.exists(DIRECTORY / "abort")


# --- limits


def test_the_largest_body_and_one_byte_more(store: MessageStore) -> None:
    """The limit is 8192 bytes here; the error names the setting."""
    sender = Sender()
    sender.append(store, [sender.message(8192)])
    with pytest.raises(InvalidMessageError, match=r"8193 bytes.*store\.body_size_max"):
        store.append([sender.message(8193)])
    store.flush()
    compare(store, sender.sent, sender.sent)


def test_all_or_none(store: MessageStore) -> None:
    """If one message of many cannot be stored, none is, and no offset is used."""
    sender = Sender()
    good = [sender.message(100) for _ in range(3)]
    for bad in (
        Message("", 0, b""),
        Message("t" * 40_000, 0, b""),
        Message("orders", -1, b""),
        Message("orders", 0, b"x" * 9000),
        Message("orders", 0, b"", {"KEYS": "k" * 40_000}),
        Message("orders", 1 << 40, b""),
        Message("orders", 0, b"", born_timestamp=1 << 70),
    ):
        before = store.positions
        with pytest.raises(InvalidMessageError):
            store.append([*good, bad])
        assert store.positions == before
    assert sender.append(store, good)[0].queue_offset == 0
    store.flush()
    compare(store, sender.sent, sender.sent)


def test_a_record_too_large_for_a_segment(disk: MemoryFileSystem) -> None:
    """It is refused although its body is within the limit, and nothing is stored."""
    with MessageStore.open(replace(CONFIG, body_size_max=1 << 20), file_system=disk) as store:
        with pytest.raises(InvalidMessageError, match=r"store\.segment_size"):
            store.append([Message("orders", 0, b"x" * 16384)])
        with pytest.raises(InvalidMessageError, match=r"store\.segment_size"):
            store.append([Message("orders", 0, b"x" * 6000)] * 3, split_batch=True)
        assert store.positions[0] == 0
        assert store.append([Message("orders", 0, b"x" * 6000)] * 3)[2].physical_offset == 16384


# --- appending


def test_a_split_batch_goes_to_the_next_segment_as_a_whole(store: MessageStore) -> None:
    """A batch that does not fit is not split between segments."""
    sender = Sender()
    sender.append(store, [sender.message(8000), sender.message(4000)])
    sent = sender.append(store, [sender.message(1500) for _ in range(4)], split_batch=True)
    assert sent[0].physical_offset == 16384
    assert [item.end for item in sent[:-1]] == [item.physical_offset for item in sent[1:]]
    alone = sender.append(store, [sender.message(1500) for _ in range(8)])
    assert len({item.physical_offset // 16384 for item in alone}) == 2
    store.flush()
    compare(store, sender.sent, sender.sent)


@pytest.mark.parametrize("count", [1, 5, 40])
def test_raw_records_over_the_end_of_a_segment(store: MessageStore, count: int) -> None:
    """They get consecutive offsets, a time and checksums like other messages."""
    sender = Sender()
    sender.append(store, [sender.message(8000, queue_id=1), sender.message(5000, queue_id=1)])
    messages = [sender.message(700, queue_id=1) for _ in range(count)]
    drafts = [Draft(message, store_host=("1.2.3.4", 5), property_crc=True) for message in messages]
    data = bytearray().join(draft.encode_unplaced() for draft in drafts)
    appended = store.append_records("orders", 1, RecordBatch.parse(data, base_physical_offset=None, placed=False))
    data[:] = bytes(len(data))  # the caller may reuse the buffer
    assert (appended.first_queue_offset, appended.count) == (2, count)
    store.flush()
    records = store.read("orders", 1, 2, max_count=100).records
    assert [record.body for record in records] == [message.body for message in messages]
    assert [record.queue_offset for record in records] == list(range(2, 2 + count))
    assert {record.store_host for record in records} == {CONFIG.store_host}
    assert {record.store_timestamp for record in records} == {appended.store_timestamp}
    assert records[-1].physical_offset + records[-1].size == appended.end
    assert [record.body for record in store.query("orders", f"n{count + 1}")] == [messages[-1].body]


def test_invalid_raw_records_are_refused(store: MessageStore) -> None:
    """Records of another queue, transactional records and empty batches are refused."""

    def batch(*messages: Message) -> RecordBatch:
        drafts = [Draft(message, store_host=("1.2.3.4", 5), property_crc=True) for message in messages]
        data = b"".join(draft.encode_unplaced() for draft in drafts)
        return RecordBatch.parse(data, base_physical_offset=None, placed=False)

    with pytest.raises(InvalidMessageError, match="record 1: it is for queue 1 of topic 'orders'"):
        store.append_records("orders", 0, batch(Message("orders", 0, b""), Message("orders", 1, b"")))
    with pytest.raises(InvalidMessageError, match="record 0: it is for queue 0 of topic 'bills'"):
        store.append_records("orders", 0, batch(Message("bills", 0, b"")))
    with pytest.raises(InvalidMessageError, match="transactional"):
        store.append_records("orders", 0, batch(Message("orders", 0, b"", sys_flag=4)))
    with pytest.raises(InvalidMessageError, match="no valid record"):
        store.append_records("orders", 0, batch())
    assert store.positions[0] == 0


# --- reading


def test_reading_at_the_edges(store: MessageStore) -> None:
    """Status and next offset for an unknown queue, and below, at and past a queue's ends."""
    sender = Sender()
    sender.append(store, [sender.message(30) for _ in range(5)])
    store.flush()
    assert store.read("nobody", 0, 3).status == "empty"
    assert store.read("orders", 0, -1).status == "offset-too-small"
    assert (store.read("orders", 0, 5).status, store.read("orders", 0, 5).next_offset) == ("offset-at-end", 5)
    assert (store.read("orders", 0, 9).status, store.read("orders", 0, 9).next_offset) == ("offset-too-large", 5)
    assert store.queue_range("nobody", 0) == (0, 0)
    assert store.queues() == {"orders": [0]}


def test_bounds_of_one_read(store: MessageStore) -> None:
    """A read returns at most the given count and bytes, but at least one message."""
    sender = Sender()
    sent = sender.append(store, [sender.message(500) for _ in range(10)])
    store.flush()
    assert len(store.read("orders", 0, 0, max_count=3).records) == 3
    two = store.read("orders", 0, 4, max_bytes=2 * sent[4].size + 10)
    assert ([record.queue_offset for record in two.records], two.next_offset) == ([4, 5], 6)
    one = store.read("orders", 0, 4, max_bytes=1)
    assert ([record.queue_offset for record in one.records], one.next_offset) == ([4], 5)


def test_reading_by_tag(store: MessageStore) -> None:
    """Hash collisions do not match, and other tags are skipped."""
    for tag in ("Aa", "BB", "", "Aa", "C"):
        store.append([Message("orders", 0, tag.encode(), {"TAGS": tag} if tag else {})])
    store.flush()
    result = store.read("orders", 0, 0, tags=frozenset({"BB"}))
    assert ([record.body for record in result.records], result.next_offset) == ([b"BB"], 5)
    assert len(store.read("orders", 0, 0, tags=frozenset({"Aa", "C"})).records) == 3
    none = store.read("orders", 0, 0, tags=frozenset({"D"}))
    assert (none.status, none.next_offset) == ("no-match", 5)


def test_a_filler_does_not_end_a_read(disk: MemoryFileSystem) -> None:
    """A filler has no bytes: the messages around it are returned together, within the byte limit."""
    with MessageStore.open(CONFIG, file_system=disk) as store:
        sent = store.append([Message("orders", 0, b"%d" % number) for number in range(5)])
    log = CONFIG.directory / "commitlog" / f"{0:020d}"
    disk.damage(log, sent[2].physical_offset + 95, b"rotten")
    for path in disk.contents():
        if path.is_relative_to(CONFIG.directory / "consumequeue"):
            disk.unlink(path)
    with MessageStore.open(CONFIG, file_system=disk, whole_log=True) as store:
        result = store.read("orders", 0, 0, max_bytes=1000)
        assert ([record.body for record in result.records], result.lost) == ([b"0", b"1", b"3", b"4"], 1)


def test_queries_compare_the_key(store: MessageStore) -> None:
    """Keys of equal hash, of another topic, beyond the count, or outside the times are excluded."""
    clock = store.clock
    assert isinstance(clock, ManualClock)
    for number in range(5):
        clock.advance(10)
        store.append([Message("orders", 0, b"%d" % number, {"KEYS": "Aa BB-" + str(number), "UNIQ_KEY": f"U{number}"})])
    store.append([Message("orders", 0, b"other", {"KEYS": "BB"}), Message("bills", 0, b"bill", {"KEYS": "Aa"})])
    store.flush()
    assert [record.body for record in store.query("orders", "Aa")] == [b"0", b"1", b"2", b"3", b"4"]
    assert [record.body for record in store.query("orders", "Aa", max_count=2)] == [b"3", b"4"]
    assert [record.body for record in store.query("orders", "U2")] == [b"2"]
    assert store.query("orders", "bb") == []
    start = 1_700_000_000_000
    times = {"begin": start + 20_000, "end": start + 40_000}
    assert [record.body for record in store.query("orders", "Aa", **times)] == [b"1", b"2", b"3"]


def test_without_an_index_no_key_is_found_until_it_is_rebuilt(disk: MemoryFileSystem) -> None:
    """Starts work without an index, also after a crash; turned on again, it has every message of the log."""
    without = replace(CONFIG, index=False)
    with MessageStore.open(CONFIG, file_system=disk, clock=ManualClock()) as store:
        store.append([Message("orders", 0, b"first", {"KEYS": "k"})])
    for _ in range(2):
        with MessageStore.open(without, file_system=disk, clock=ManualClock()) as store:
            assert store.recovery.records == 0
            store.append([Message("orders", 0, b"later", {"KEYS": "k"})])
            assert not [found for found in store.query("orders", "k") if found is not None]
            store.flush()
            killed = disk.kill()
    with MessageStore.open(without, file_system=killed, clock=ManualClock()) as store:
        assert store.status().mapped_files == 1
    for left in (disk, killed):
        with MessageStore.open(CONFIG, file_system=left, clock=ManualClock()) as store:
            found = {record.body for record in store.query("orders", "k") if record is not None}
            assert found == {b"first", b"later"}


def test_errors_have_one_base_class() -> None:
    """Callers of the store need only one except clause."""
    for error in (StoreLockedError, StoreDirectoryError, StoreFullError, StoreClosedError, InvalidMessageError):
        assert issubclass(error, StoreError)
