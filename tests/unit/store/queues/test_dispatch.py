"""Which messages are dispatched, when, and to which listeners."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from aerobee_store import (
    ConfigError,
    Message,
    MessageStore,
    RecordBatch,
    RunningFlags,
    StoreBusyError,
    StoreConfig,
    StoreFailedError,
)
from aerobee_store.queues.dispatch import DispatchEntry, EntryBatch, ReceivedRecords
from aerobee_store.records.record import TransactionType, encode
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, Sender, compare


@pytest.fixture(name="store")
def store_fixture() -> Iterator[MessageStore]:
    with MessageStore.open(StoreConfig.tiny(DIRECTORY), file_system=MemoryFileSystem(), clock=ManualClock()) as store:
        yield store


each_transaction_type = pytest.mark.parametrize(
    ("kind", "queued", "indexed"),
    [
        (TransactionType.NONE, True, True),
        (TransactionType.PREPARED, False, True),
        (TransactionType.COMMIT, True, True),
        (TransactionType.ROLLBACK, False, False),
    ],
)


@each_transaction_type
def test_only_messages_that_may_be_found_have_index_keys(
    store: MessageStore, kind: TransactionType, queued: bool, indexed: bool
) -> None:
    """A rolled-back message takes no space in the index."""
    follower = Follower(store)
    store._dispatch.dispatchers.append(follower)
    store.append([Message("orders", 0, b"x", {"UNIQ_KEY": "id", "KEYS": "k l"}, sys_flag=int(kind))])
    store.flush()
    assert follower.keys == [("id", "k", "l") if indexed else ()]
    assert store.queue_range("orders", 0) == (0, int(queued))


@each_transaction_type
@pytest.mark.parametrize("recovered", [False, True])
def test_each_transaction_type_goes_where_the_table_says(
    kind: TransactionType, queued: bool, indexed: bool, recovered: bool
) -> None:
    """Prepared messages enter no queue, rolled-back ones neither queue nor index; recovery decides the same."""
    disk = MemoryFileSystem()
    store = MessageStore.open(StoreConfig.tiny(DIRECTORY), file_system=disk)
    store.append([Message("orders", 0, b"first", {"KEYS": "k"})])
    store.append([Message("orders", 0, b"x", {"KEYS": "k"}, sys_flag=int(kind))])
    store.append([Message("orders", 0, b"last", {"KEYS": "k"})])
    store.flush()
    if recovered:
        disk = disk.kill()
        for name in ("consumequeue/orders/0", "index"):
            for file in disk.list(DIRECTORY / name):
                disk.unlink(DIRECTORY / name / file)
        store = MessageStore.open(StoreConfig.tiny(DIRECTORY), file_system=disk)
    bodies = [record.body for record in store.read("orders", 0, 0).records]
    assert bodies == ([b"first", b"x", b"last"] if queued else [b"first", b"last"])
    # No query returns a rolled-back message, whatever the index holds.
    assert (b"x" in [record.body for record in store.query("orders", "k")]) == indexed
    store.close()


def test_listeners_are_called_once_for_each_queue_in_a_round(store: MessageStore) -> None:
    """Listeners get the queue's new end, once its units can be read."""
    heard = []

    def listen(topic: str, queue_id: int, end: int) -> None:
        heard.append((topic, queue_id, end))
        assert store.queue_range(topic, queue_id)[1] == end

    store.arrival_listeners.append(listen)
    sender = Sender()
    sender.append(store, [sender.message(20, "a", n % 2) for n in range(5)])
    sender.append(store, [sender.message(20, "b")])
    assert heard == []
    store.flush()
    assert heard == [("a", 0, 3), ("a", 1, 2), ("b", 0, 1)]
    store.flush()
    assert len(heard) == 3


def test_messages_are_read_only_after_their_dispatch(store: MessageStore) -> None:
    """Before the flush a message is not in its queue, not found by key, and not in `queue_range`."""
    sender = Sender()
    sender.append(store, [sender.message(20)])
    assert store.queue_range("orders", 0) == (0, 0)
    assert store.read("orders", 0, 0).status == "empty"
    assert store.query("orders", "n0") == []
    store.flush()
    compare(store, sender.sent, sender.sent)


def test_delayed_messages_have_their_time_as_tags_code() -> None:
    """The unit of a message in the schedule topic holds its due time; recovery rebuilds the same unit."""
    disk = MemoryFileSystem(clock=ManualClock())
    config = replace(StoreConfig.tiny(DIRECTORY), queue_file_size=400)
    store = MessageStore.open(config, file_system=disk, clock=ManualClock(1000))
    store.append([Message("SCHEDULE_TOPIC_XXXX", 2, b"later", {"DELAY": "3", "TAGS": "red"})])
    store.flush()
    path = DIRECTORY / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / f"{0:020d}"
    unit = disk.contents()[path][:20]
    assert int.from_bytes(unit[12:], "big") == 1000 + 10_000
    disk = disk.kill()
    disk.unlink(path)
    MessageStore.open(config, file_system=disk, clock=ManualClock(2000)).close()
    assert disk.contents()[path][:20] == unit


# --- added dispatchers, and how many messages may wait


class Follower:
    """Records the entries that it gets, and the messages that queries find at that moment."""

    error_flag = RunningFlags.NONE

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.seen: list[tuple[str, int, int]] = []
        self.found: list[int] = []
        self.keys: list[tuple[str, ...]] = []

    def put_entries(self, entries: Sequence[DispatchEntry]) -> None:
        self.keys += [entry.keys for entry in entries]
        self.seen += [(entry.topic, entry.queue_offset, entry.physical_offset) for entry in entries]
        self.found += [len(self._store.query(entry.topic, key)) for entry in entries for key in entry.keys[:1]]

    def put_batch(self, batch: EntryBatch) -> None:
        self.seen.append((batch.queue.topic, batch.queue_offset, batch.count))

    def put_received(self, records: ReceivedRecords) -> None:
        self.seen += [(units.queue.topic, units.queue_offset, len(units.units)) for units in records.units]


def test_a_dispatcher_that_is_added_comes_after_queues_and_index(store: MessageStore) -> None:
    """It gets each record in log order, readable and found by key, before listeners are called."""
    follower = Follower(store)
    store._dispatch.dispatchers.append(follower)
    heard: list[int] = []
    store.arrival_listeners.append(lambda topic, queue_id, end: heard.append(len(follower.seen)))
    sender = Sender()
    sent = sender.append(store, [sender.message(20), sender.message(20, "bills")])
    data = encode(
        Message("orders", 0, b"raw"),
        queue_offset=0,
        physical_offset=0,
        store_timestamp=0,
        store_host=("127.0.0.1", 1),
        property_crc=True,
    )
    store.append_records("orders", 0, RecordBatch.parse(data, base_physical_offset=None))
    sent += sender.append(store, [sender.message(20)])
    store.flush()
    places = [(one.topic, one.queue_offset, one.physical_offset) for one in sent]
    assert follower.seen == [*places[:2], ("orders", 1, 1), places[2]]
    assert follower.found == [1, 1, 1]
    assert heard == [4, 4]


def test_a_dispatcher_that_fails_ends_the_store(store: MessageStore) -> None:
    """The store fails, because its derived data would no longer follow the log."""

    class Failing(Follower):
        def put_entries(self, entries: Sequence[DispatchEntry]) -> None:
            raise OSError(errno.EIO, "no")

    store._dispatch.dispatchers.append(Failing(store))
    store.append([Message("orders", 0, b"x")])
    with pytest.raises(StoreFailedError, match="no"):
        store.flush()
    assert store.state == "failed"
    assert store.running.flags is RunningFlags.NOT_WRITEABLE


async def test_a_failed_dispatch_fails_the_send_in_async_flush() -> None:
    """The message is in the log, but in no queue until the next start."""

    class Failing(Follower):
        def put_entries(self, entries: Sequence[DispatchEntry]) -> None:
            raise OSError(errno.EIO, "no")

    config = replace(StoreConfig.tiny(DIRECTORY), flush="async")
    store = MessageStore.open(config, file_system=MemoryFileSystem(), clock=ManualClock())
    store._dispatch.dispatchers.append(Failing(store))
    async with asyncio.timeout(60):
        services = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        (sent,) = store.append([Message("orders", 0, b"x")])
        with pytest.raises(StoreFailedError, match="no"):
            await store.wait_stored(sent.end)
        with pytest.raises(StoreFailedError, match="no"):
            await services
    store.close()


@pytest.mark.parametrize(
    ("limit", "allowed"), [({"dispatch_waiting_count_max": 5}, 5), ({"dispatch_waiting_bytes_max": 3000}, 3)]
)
async def test_no_message_is_taken_while_too_many_wait(limit: dict[str, int], allowed: int) -> None:
    """An append is refused as busy and stores nothing, until a sync.

    Consumers' internal records may use twice the limit.
    """
    config = replace(StoreConfig.tiny(DIRECTORY), **limit)  # type: ignore[arg-type] # sizes are integers
    message = Message("orders", 0, b"." * 900)
    with MessageStore.open(config, file_system=MemoryFileSystem()) as store:
        running = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        for _ in range(allowed):
            [last] = store.append([message])
        with pytest.raises(StoreBusyError, match=r"wait for the disk.*dispatch_waiting_count_max.*try again"):
            store.append([message])
        assert (store.positions[0], store.waiting_count, store.stats.busy_refusals) == (last.end, allowed, 1)
        for _ in range(allowed):
            [last] = store.append([message], internal=True)
        with pytest.raises(StoreBusyError):
            store.append([message], internal=True)
        readable = asyncio.Event()
        store.arrival_listeners.append(lambda topic, queue_id, end: readable.set())
        async with asyncio.timeout(60):
            await store.wait_stored(last.end)
            await readable.wait()
        [last] = store.append([message])
        assert last.queue_offset == 2 * allowed
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_waiting_batches_count() -> None:
    """Each batch counts as one item, and a batch beyond the limit is refused."""
    config = replace(StoreConfig.tiny(DIRECTORY), dispatch_waiting_count_max=5)
    message = Message("orders", 0, b"x")
    host = ("127.0.0.1", 8081)
    data = encode(message, queue_offset=0, physical_offset=0, store_timestamp=0, store_host=host, property_crc=True)
    batch = RecordBatch.parse(data * 3, base_physical_offset=None, placed=False)
    with MessageStore.open(config, file_system=MemoryFileSystem()) as store:
        running = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        for _ in range(5):
            store.append_records("orders", 0, batch)
        assert store.waiting_count == 15
        with pytest.raises(StoreBusyError):
            store.append_records("orders", 0, batch)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


def test_without_services_the_append_dispatches() -> None:
    """A tool that never flushes neither fills the memory nor is refused."""
    config = replace(StoreConfig.tiny(DIRECTORY), dispatch_waiting_count_max=5)
    with MessageStore.open(config, file_system=MemoryFileSystem()) as store:
        for _ in range(12):
            store.append([Message("orders", 0, b"x")])
            assert store.waiting_count <= 5
        assert store.queue_range("orders", 0) == (0, 10)


def test_invalid_bounds() -> None:
    """With a limit below one nothing could be stored."""
    for name in ("dispatch_waiting_count_max", "dispatch_waiting_bytes_max"):
        with pytest.raises(ConfigError, match=rf"store\.{name}"):
            replace(StoreConfig.tiny(DIRECTORY), **{name: 0})  # type: ignore[arg-type] # sizes are integers


def test_nothing_is_dispatched_after_a_failure() -> None:
    """Units after the failed round would leave an unnoticed gap in the queue.

    The close does not count as an orderly stop.
    """

    class FailingOnce(Follower):
        failed = False

        def put_entries(self, entries: Sequence[DispatchEntry]) -> None:
            if not self.failed:
                self.failed = True
                raise OSError(errno.EIO, "no")
            super().put_entries(entries)

    disk = MemoryFileSystem()
    store = MessageStore.open(StoreConfig.tiny(DIRECTORY), file_system=disk, clock=ManualClock())
    follower = FailingOnce(store)
    store._dispatch.dispatchers.insert(0, follower)
    for body in (b"x", b"y"):
        store.append([Message("orders", 0, body)])
        store.commit()
        with pytest.raises(OSError, match="no"):
            store.dispatch()
    assert (follower.found, store.queue_range("orders", 0), store.positions[3]) == ([], (0, 0), 0)
    with pytest.raises(StoreFailedError):
        store.close()
    assert disk.exists(DIRECTORY / "abort")


async def test_each_queue_that_a_message_names_counts() -> None:
    """A waiting message in a thousand queues takes a thousand times the memory."""
    config = replace(StoreConfig.tiny(DIRECTORY), dispatch_waiting_count_max=5)
    message = Message("chat", 0, b"x", {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b,%LMQ%c"})
    with MessageStore.open(config, file_system=MemoryFileSystem()) as store:
        running = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        store.append([message])
        store.append([message])
        with pytest.raises(StoreBusyError):
            store.append([message])
        assert store.waiting_count == 2
        async with asyncio.timeout(60):
            await store.wait_stored(store.positions[0])
        assert store.waiting_count == 0
        store.append([message])
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
