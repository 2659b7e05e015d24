"""What each running flag forbids, and how the store reports it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aerobee_store import (
    Message,
    MessageStore,
    RecordBatch,
    RunningFlags,
    StoreConfig,
    StoreFailedError,
    StoreFullError,
)
from aerobee_store.disk.file_system import File
from aerobee_store.errors import InvalidMessageError, StoreAccessError
from aerobee_store.queues.consume_queue import UNIT
from aerobee_store.records.record import Draft
from aerobee_store.records.record_template import RecordTemplate, TemplateMessage
from aerobee_store.testing import MemoryFileSystem

MESSAGE = Message("orders", 0, b"hello", {"KEYS": "k"})
_TEMPLATE = RecordTemplate(MESSAGE, [], store_host=("127.0.0.1", 8081), property_crc=True)
OF_TEMPLATE = TemplateMessage(_TEMPLATE, b"hello", 0, 0, index_keys=("k",))


@pytest.mark.parametrize(
    ("flag", "bit", "readable", "writable"),
    [
        (RunningFlags.NONE, 0, True, True),
        (RunningFlags.NOT_READABLE, 1, False, True),
        (RunningFlags.NOT_WRITEABLE, 2, True, False),
        (RunningFlags.LOGICS_QUEUE_ERROR, 4, True, False),
        (RunningFlags.INDEX_FILE_ERROR, 8, True, False),
        (RunningFlags.DISK_FULL, 16, True, False),
        (RunningFlags.FENCED, 32, True, False),
        (RunningFlags.LOGIC_DISK_FULL, 64, True, False),
        (RunningFlags.NOT_READABLE | RunningFlags.DISK_FULL, 17, False, False),
    ],
)
def test_operations_that_a_flag_forbids(flag: RunningFlags, bit: int, readable: bool, writable: bool) -> None:
    """Bits and meanings are RocketMQ's."""
    assert (flag.value, flag.readable, flag.writable) == (bit, readable, writable)


@pytest.fixture
def store() -> MessageStore:
    return MessageStore.open(StoreConfig.tiny(Path("/store")), file_system=MemoryFileSystem())


@pytest.mark.parametrize("flag", [flag for flag in RunningFlags if not flag.writable])
def test_an_append_respects_the_flags(store: MessageStore, flag: RunningFlags) -> None:
    """Nothing is stored until the flag is cleared, and the error gives the reason.

    A full disk and missing replicas have errors that let producers retry.
    """
    [batch_source] = store.append([MESSAGE])
    store.flush()
    record = store._log.bytes_at(batch_source.physical_offset, batch_source.size)
    batch = RecordBatch.parse(record, base_physical_offset=None)
    disk = flag in (RunningFlags.DISK_FULL, RunningFlags.LOGIC_DISK_FULL, RunningFlags.REPLICAS_MISSING)
    store.running.set(flag, "the reason and the way out")
    before = store.positions
    error = StoreFullError if disk else StoreAccessError
    with pytest.raises(error, match="the reason and the way out"):
        store.append([MESSAGE])
    with pytest.raises(error, match="the reason and the way out"):
        store.append([OF_TEMPLATE])
    with pytest.raises(error, match="the reason and the way out"):
        store.append_records("orders", 0, batch)
    assert store.positions == before
    assert (store.status().running_flags, store.status().refusal) == (flag, "the reason and the way out")
    if disk:
        store.append([MESSAGE], internal=True)
        store.append([OF_TEMPLATE], internal=True)
    else:
        with pytest.raises(StoreAccessError):
            store.append([MESSAGE], internal=True)
        with pytest.raises(StoreAccessError):
            store.append([OF_TEMPLATE], internal=True)
    assert store.read("orders", 0, 0).records[0].body == b"hello"
    store.running.clear(flag)
    assert store.append([MESSAGE])
    assert store.append([OF_TEMPLATE])[0].size == batch_source.size
    assert store.append_records("orders", 0, batch).count == 1
    assert store.status().refusal == ""
    store.close()


def test_a_template_allows_no_larger_body(store: MessageStore) -> None:
    size_max = store.config.body_size_max
    with pytest.raises(InvalidMessageError, match=f"the limit is {size_max}"):
        store.append([OF_TEMPLATE._replace(body=bytes(size_max + 1))])
    assert store.positions[0] == 0
    store.close()


def test_a_read_respects_the_flags(store: MessageStore) -> None:
    """A store that must not be read refuses reads and still accepts messages."""
    store.append([MESSAGE])
    store.flush()
    store.running.set(RunningFlags.NOT_READABLE, "being moved")
    with pytest.raises(StoreAccessError, match="being moved"):
        store.read("orders", 0, 0)
    assert store.append([MESSAGE])
    store.running.clear(RunningFlags.NOT_READABLE)
    assert store.read("orders", 0, 0).status == "found"
    store.close()


def test_one_flag_is_cleared_and_the_other_stays(store: MessageStore) -> None:
    """Each flag has its own reason, clearing an unset flag does nothing, and the broader error takes precedence."""
    store.running.set(RunningFlags.DISK_FULL, "disk full")
    store.running.set(RunningFlags.FENCED, "fenced")
    store.running.clear(RunningFlags.NOT_WRITEABLE)
    assert store.running.reason == "disk full; fenced"
    with pytest.raises(StoreAccessError, match="disk full; fenced"):
        store.append([MESSAGE])
    with pytest.raises(StoreAccessError, match=r"^fenced$"):
        store.append([MESSAGE], internal=True)
    store.running.clear(RunningFlags.FENCED)
    with pytest.raises(StoreFullError, match=r"^disk full$"):
        store.append([MESSAGE])
    store.running.clear(RunningFlags.DISK_FULL)
    assert store.running.flags is RunningFlags.NONE
    store.close()


def test_a_failed_store_sets_its_flags() -> None:
    """After a failed sync the store is permanently not writable, as the flags and the status show."""
    disk = MemoryFileSystem()
    store = MessageStore.open(StoreConfig.tiny(Path("/store")), file_system=disk)
    store.append([MESSAGE])
    disk.fail_at("sync")
    with pytest.raises(StoreFailedError):
        store.flush()
    assert store.status().running_flags is RunningFlags.NOT_WRITEABLE
    assert "refuses further writes" in store.status().refusal
    with pytest.raises(StoreFailedError):
        store.append([MESSAGE], internal=True)
    store.close()


@pytest.mark.parametrize(
    ("name", "flag"),
    [("consumequeue", RunningFlags.LOGICS_QUEUE_ERROR), ("index", RunningFlags.INDEX_FILE_ERROR)],
)
@pytest.mark.parametrize("raw", [False, True])
def test_a_queue_or_index_that_cannot_be_written(name: str, flag: RunningFlags, raw: bool) -> None:
    """The flag says which of them failed, until the next start, which restores the missing data."""
    disk = FailingFiles(name)
    store = MessageStore.open(StoreConfig.tiny(Path("/store")), file_system=disk)
    if raw:
        data = Draft(MESSAGE, store_host=("127.0.0.1", 1), property_crc=True).encode_unplaced()
        store.append_records("orders", 0, RecordBatch.parse(data, base_physical_offset=None, placed=False))
    else:
        store.append([MESSAGE])
    with pytest.raises(StoreFailedError, match="cannot be made"):
        store.flush()
    assert store.status().running_flags is flag | RunningFlags.NOT_WRITEABLE
    assert "cannot be made" in store.status().refusal
    store.close()
    with MessageStore.open(StoreConfig.tiny(Path("/store")), file_system=disk.kill()) as store:
        assert store.status().running_flags is RunningFlags.NONE
        assert len(store.read("orders", 0, 0).records) == len(store.query("orders", "k")) == 1


def test_a_queue_that_disagrees_with_the_log() -> None:
    """A unit for an offset that the queue already has, from a bug or a foreign change, overwrites nothing."""
    store = MessageStore.open(StoreConfig.tiny(Path("/store")), file_system=MemoryFileSystem())
    store.append([MESSAGE, MESSAGE])
    store._queues.simple["orders", 0].put(0, UNIT.pack(0, 100, 0))
    with pytest.raises(StoreFailedError, match="unit 0 exists already"):
        store.flush()
    assert store.status().running_flags is RunningFlags.LOGICS_QUEUE_ERROR | RunningFlags.NOT_WRITEABLE
    store.close()


class FailingFiles(MemoryFileSystem):
    """No file can be created in directories of one kind."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def create(self, path: Path, size: int, *, evictable: bool = False) -> File:
        if path.is_relative_to(Path("/store") / self._name):
            raise OSError(errno.EIO, "cannot be made", str(path))
        return super().create(path, size, evictable=evictable)
