"""What is dispatched, when, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.record import TransactionType
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY, Sender, compare


@pytest.fixture(name="store")
def store_fixture() -> Iterator[MessageStore]:
    with MessageStore.open(StoreConfig.tiny(DIRECTORY), file_system=MemoryFileSystem(), clock=ManualClock()) as store:
        yield store


@pytest.mark.parametrize(
    ("kind", "queued", "indexed"),
    [
        (TransactionType.NONE, True, True),
        (TransactionType.PREPARED, False, True),
        (TransactionType.COMMIT, True, True),
        (TransactionType.ROLLBACK, False, False),
    ],
)
@pytest.mark.parametrize("recovered", [False, True])
def test_each_transaction_type_goes_where_the_table_says(
    kind: TransactionType, queued: bool, indexed: bool, recovered: bool
) -> None:
    """Prepared ones in no queue, rolled-back ones nowhere; recovery decides the same."""
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
    # A rolled-back message is in no query whatever the index holds.
    assert (b"x" in [record.body for record in store.query("orders", "k")]) == indexed
    store.close()


def test_listeners_hear_of_each_queue_once_per_round(store: MessageStore) -> None:
    """With the queue's new end, when its units can be read already."""
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
    """Appended and not flushed: neither in the queue nor found by key; `queue_range` does not count them."""
    sender = Sender()
    sender.append(store, [sender.message(20)])
    assert store.queue_range("orders", 0) == (0, 0)
    assert store.read("orders", 0, 0).status == "empty"
    assert store.query("orders", "n0") == []
    store.flush()
    compare(store, sender.sent, sender.sent)


def test_delayed_messages_have_their_time_as_tags_code() -> None:
    """The unit of a message in the schedule topic holds when it is due; recovery makes the same unit."""
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
