"""A store that copies another store's log: what it accepts, what it refuses, and the result."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aerobee_store import LogMismatchError, Message, MessageStore, StoreConfig, StoreFailedError, StoreFullError
from aerobee_store.records import record
from aerobee_store.testing import MemoryFileSystem
from tests.support.stored_messages import DIRECTORY

_SEGMENT = StoreConfig.tiny(Path()).segment_size


@contextmanager
def _store(directory: Path) -> Iterator[MessageStore]:
    with MessageStore.open(StoreConfig.tiny(directory)) as store:
        yield store


def _log_of(store: MessageStore) -> bytes:
    store.flush()
    log = b""
    while part := store.flushed_bytes(store.min_physical_offset + len(log), 1 << 20):
        log += bytes(part)
    return log


def _record(body: bytes, physical_offset: int) -> bytes:
    return record.encode(
        Message("T", 0, body),
        queue_offset=0,
        physical_offset=physical_offset,
        store_timestamp=1,
        store_host=("127.0.0.1", 10911),
        property_crc=True,
    )


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """Return three segments of a log with blanks at their ends, several queues, tags and keys."""
    with _store(tmp_path / "source") as store:
        for number in range(130):
            properties = {"UNIQ_KEY": f"id-{number}", "KEYS": f"k{number}", "TAGS": "A"}
            store.append([Message(f"T{number % 3}", number % 2, b"x" * (number * 7 % 400), properties)])
        found = _log_of(store)
    assert len(found) > 2 * _SEGMENT
    return found


def _receive_all(store: MessageStore, log: bytes) -> None:
    store.follower.receive(0, log)
    store.flush()


def _check_copy(store: MessageStore, log: bytes) -> None:
    assert _log_of(store) == log
    ranges = {
        (topic, queue): store.queue_range(topic, queue) for topic, queues in store.queues().items() for queue in queues
    }
    assert sum(end - begin for begin, end in ranges.values()) == 130
    assert store.read("T1", 1, 0, max_count=1).records[0].unique_key == "id-1"
    assert [found.unique_key for found in store.query("T0", "k129")] == ["id-129"]


@pytest.mark.parametrize("size", [97, 500, 20_000, 1 << 20])
def test_a_copy_in_pieces_of_any_size(log: bytes, tmp_path: Path, size: int) -> None:
    """Log, queues and index equal the source's, also after a restart; records may be split across pieces."""
    with _store(tmp_path / "copy") as store:
        for begin in range(0, len(log), size):
            store.follower.receive(begin, log[begin : begin + size])
        _check_copy(store, log)
    with _store(tmp_path / "copy") as store:
        assert store.recovery.units_added == 0
        _check_copy(store, log)


def test_a_copy_continues_after_an_interruption_anywhere(log: bytes, tmp_path: Path) -> None:
    """A partly received record is dropped with the connection and received again."""
    with _store(tmp_path / "copy") as store:
        for cut in range(1000, len(log), 1777):
            follower = store.follower
            follower.receive(follower.next_offset, log[follower.next_offset : cut])
            follower.forget_rest()
        follower.receive(follower.next_offset, log[follower.next_offset :])
        _check_copy(store, log)


@pytest.mark.parametrize("position", [0, 4, 9, 40, 95])
def test_a_piece_with_a_changed_byte_is_refused(log: bytes, tmp_path: Path, position: int) -> None:
    """After a change of size, magic, checksum, offset or body nothing of the piece is appended.

    The correct bytes are accepted later.
    """
    with _store(tmp_path / "copy") as store:
        first = store.follower.receive(0, log[:1000])
        changed = bytearray(log[first:4000])
        (second,) = (header for header in [record.peek(changed, 0, len(changed), physical_offset=first)])
        assert isinstance(second, record.RecordHeader)
        changed[second.size + position] ^= 0x55
        store.follower.forget_rest()
        with pytest.raises(LogMismatchError, match="no valid record"):
            store.follower.receive(first, bytes(changed))
        assert store.positions[0] == first
        store.follower.receive(first, log[first:])
        _check_copy(store, log)


@pytest.mark.parametrize("garbage", [bytes(200_000), b"\x01" * 100, bytes(range(256)) * 40, bytes(8)])
def test_garbage_is_refused(tmp_path: Path, garbage: bytes) -> None:
    """Zeros are refused too; RocketMQ's replicas accept and confirm them."""
    with _store(tmp_path / "copy") as store:
        with pytest.raises(LogMismatchError):
            store.follower.receive(0, garbage)
        assert store.positions[0] == 0


@pytest.mark.parametrize("offset", [0, 999, -1, 1 << 40])
def test_another_offset_is_refused(log: bytes, tmp_path: Path, offset: int) -> None:
    """The error gives both offsets."""
    with _store(tmp_path / "copy") as store:
        store.follower.receive(0, log[:1000])
        end = store.positions[0]
        with pytest.raises(
            LogMismatchError, match=f"received bytes for physical offset {offset}, but the log ends at 1000"
        ):
            store.follower.receive(offset, log[1000:2000])
        assert store.positions[0] == end


def test_a_record_must_end_within_its_segment(tmp_path: Path) -> None:
    """The file's end would cut it; a blank must reach exactly that end."""
    with _store(tmp_path / "copy") as store:
        body = b"x" * 5000
        log = b""
        for _ in range(4):
            log += _record(body, len(log))
        with pytest.raises(LogMismatchError, match="total size"):
            store.follower.receive(0, log)
        with pytest.raises(LogMismatchError, match="blank of 100 bytes, 16384 are left"):
            store.follower.receive(0, record.encode_blank(100))


def test_an_empty_copy_may_begin_at_a_later_segment(log: bytes, tmp_path: Path) -> None:
    """This happens when the other broker has removed its oldest segments."""
    with _store(tmp_path / "copy") as store:
        with pytest.raises(LogMismatchError, match="begins no segment"):
            store.follower.begin_at(5)
        store.follower.begin_at(_SEGMENT)
        store.follower.receive(_SEGMENT, log[_SEGMENT:])
        assert _log_of(store) == log[_SEGMENT:]
        assert store.min_physical_offset == _SEGMENT
        assert store.queue_range("T0", 0)[0] > 0
        with pytest.raises(LogMismatchError, match="only an empty log"):
            store.follower.begin_at(0)
    with _store(tmp_path / "copy") as store:
        assert _log_of(store) == log[_SEGMENT:]


def test_the_copy_can_be_appended_to(log: bytes, tmp_path: Path) -> None:
    """A replica that becomes the master continues at its queues' offsets."""
    with _store(tmp_path / "copy") as store:
        store.follower.receive(0, log)
        store.flush()
        end = store.queue_range("T1", 1)[1]
        (appended,) = store.append([Message("T1", 1, b"new")])
        assert (appended.queue_offset, appended.physical_offset) == (end, len(log))


async def test_flush_listeners_are_called_before_the_waiters(tmp_path: Path) -> None:
    """Replicas get only durable bytes, and no later than the sender gets its answer."""
    with MessageStore.open(StoreConfig.tiny(tmp_path / "copy")) as store:
        heard: list[int] = []
        store.flush_listeners.append(lambda: heard.append(store.positions[2]))
        running = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        (appended,) = store.append([Message("T", 0, b"x")])
        assert not store.flushed_bytes(0, 100)
        await store.wait_stored(appended.end)
        assert heard[-1] >= appended.end
        assert len(store.flushed_bytes(0, 1 << 20)) == appended.end
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_deletion_of_the_other_log_is_followed(tmp_path: Path) -> None:
    """Earlier messages of the topic go once the dispatch is there; later ones stay, also after a restart."""
    with _store(tmp_path / "source") as source:
        end = source.append([Message("T", 0, b"old"), Message("U", 0, b"other")])[-1].end
        old = _log_of(source)
        source.delete_topic("T")
        deletions = source.deleted_topics
        source.append([Message("T", 0, b"new")])
        new = _log_of(source)[end:]
    for name, is_late in (("early", False), ("late", True)):
        with _store(tmp_path / name) as copy:
            copy.follower.receive(0, old)
            if is_late:
                copy.follower.receive(end, new)
            assert await copy.follow_deletions(deletions) == deletions, "it is not dispatched"
            copy.flush()
            following = asyncio.ensure_future(copy.follow_deletions(deletions))
            await asyncio.sleep(0)
            if not is_late:
                copy.follower.receive(end, new)  # while the queue is being deleted
            copy.flush()
            assert await following == {}
            assert copy.queue_range("T", 0) == (1, 2)
            assert copy.queue_ids("U") == [0]
        with _store(tmp_path / name) as copy:
            assert [record.body for record in copy.read("T", 0, 1, max_count=2).records] == [b"new"]
            assert copy.queue_range("T", 0) == (1, 2)


@pytest.mark.parametrize("cut", ["killed", "power"])
def test_a_copy_that_begins_late_has_lost_nothing(log: bytes, cut: str, caplog: pytest.LogCaptureFixture) -> None:
    """A log that was empty when the place of its begin was saved begins where the master's does, also after a kill
    before the next save."""
    disk = MemoryFileSystem()
    config = StoreConfig.tiny(Path("/copy"))
    store = MessageStore.open(config, file_system=disk)
    store.follower.begin_at(_SEGMENT)
    store.follower.receive(_SEGMENT, log[_SEGMENT : 2 * _SEGMENT + 500])
    store.flush()
    end = store.positions[2]
    disk = disk.kill() if cut == "killed" else disk.crash(1)
    with MessageStore.open(config, file_system=disk) as again:
        assert (again.min_physical_offset, again.positions[0]) == (_SEGMENT, end)
    assert "lacks its first segments" not in caplog.text
    disk.unlink(Path("/copy/commitlog") / f"{_SEGMENT:020d}")
    with MessageStore.open(config, file_system=disk):
        assert "lacks its first segments" in caplog.text


@pytest.mark.parametrize("operation", ["reserve", "write"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_a_disk_without_space_and_one_that_fails(operation: str, error: int, log: bytes) -> None:
    """Without space the piece can be received again, once there is some; any other error is final."""
    disk = MemoryFileSystem()
    with MessageStore.open(StoreConfig.tiny(DIRECTORY), file_system=disk) as store:
        disk.fail_at(operation, 1, error, for_ever=True)
        is_full = (operation, error) == ("reserve", errno.ENOSPC)
        with pytest.raises(StoreFullError if is_full else StoreFailedError):
            _receive_all(store, log)
        assert store.state == ("open" if is_full else "failed")
        disk.heal()
        if is_full:
            _receive_all(store, log)
            _check_copy(store, log)
