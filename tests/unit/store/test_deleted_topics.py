"""A deleted topic stays deleted, whatever recovery finds of it in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreError


def fill(store: MessageStore, topic: str, count: int) -> list[int]:
    """Append messages with a key; return their queue offsets."""
    messages = [Message(topic, 0, f"{topic}-{number}".encode(), {"KEYS": "k"}) for number in range(count)]
    appended = store.append(messages)
    store.flush()
    return [item.queue_offset for item in appended]


def crash(directory: Path) -> None:
    """Make the next opening read the whole log and rebuild everything."""
    (directory / "abort").touch()
    (directory / "checkpoint").unlink(missing_ok=True)


def test_recovery_does_not_bring_back_the_messages_of_a_deleted_topic(tmp_path: Path) -> None:
    """After a crash whose recovery reads the old records again, the topic has no queue and queries find nothing."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        fill(store, "orders", 30)
        fill(store, "other", 3)
        store.delete_topic("orders")
        assert store.query("orders", "k") == []
    crash(config.directory)
    with MessageStore.open(config) as store:
        assert store.queues() == {"other": [0]}
        assert store.query("orders", "k") == []
        assert len(store.query("other", "k")) == 3


def test_a_topic_of_the_same_name_goes_on_at_the_old_offsets(tmp_path: Path) -> None:
    """Its first message follows the old topic's last, also after restarts and a crash, and no old message shows."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        fill(store, "orders", 30)
        store.delete_topic("orders")
    with MessageStore.open(config) as store:
        assert fill(store, "orders", 2) == [30, 31]
    for _ in range(2):
        with MessageStore.open(config) as store:
            assert store.queue_range("orders", 0) == (30, 32)
            found = store.read("orders", 0, 30).records
            assert [record.body for record in found] == [b"orders-0", b"orders-1"]
            assert len(store.query("orders", "k")) == 2
        crash(config.directory)


def test_a_damaged_note_stops_the_start(tmp_path: Path) -> None:
    """A table of deleted topics that cannot be read is named in one line; messages would come back otherwise."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        fill(store, "orders", 1)
        store.delete_topic("orders")
    (config.directory / "config" / "deletedTopics.json").write_text('{"orders": 7}')
    with pytest.raises(StoreError, match="deletedTopics"):
        MessageStore.open(config)


def test_deleting_an_unknown_topic_does_nothing(tmp_path: Path) -> None:
    """No note is written for a topic that never had a message."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config) as store:
        store.delete_topic("nothing")
    assert not (config.directory / "config").exists()
