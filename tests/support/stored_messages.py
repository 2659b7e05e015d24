"""The expected content of a store as lists of numbered messages, and the comparison of a store with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_store import Appended, Message, MessageStore, ReadResult, Record, StoreConfig
from aerobee_store.records.properties import KEYS, TAGS
from aerobee_store.testing import ManualClock, MemoryFileSystem

DIRECTORY = Path("/store")
TAG_NAMES = ("red", "green", "")


@dataclass(frozen=True, slots=True)
class Sent:
    """One appended message and its position."""

    number: int
    topic: str
    queue_id: int
    body: bytes
    tag: str
    keys: tuple[str, ...]
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


@dataclass
class Sender:
    """Makes distinct messages, and records where they were stored."""

    next_number: int = 0
    sent: list[Sent] = field(default_factory=list)

    def message(self, size: int, topic: str = "orders", queue_id: int = 0) -> Message:
        """A message with a body of `size` bytes, at least 8.

        Its number is in the body and a key, and selects its tag.
        """
        number = self.next_number
        self.next_number += 1
        body = f"{number:08d}".encode() + b"." * max(0, size - 8)
        properties = {KEYS: f"n{number} k{number % 5}"}
        if tag := TAG_NAMES[number % len(TAG_NAMES)]:
            properties[TAGS] = tag
        return Message(topic, queue_id, body, properties, born_host=("10.0.0.1", 4000))

    def append(self, store: MessageStore, messages: Sequence[Message], *, split_batch: bool = False) -> list[Sent]:
        """Append messages, and record the store's answer."""
        return self.note(messages, store.append(messages, split_batch=split_batch))

    def note(self, messages: Sequence[Message], places: Sequence[Appended]) -> list[Sent]:
        """Record the positions of messages."""
        new = []
        for message, place in zip(messages, places, strict=True):
            keys = tuple(message.properties[KEYS].split(" "))
            new.append(
                Sent(
                    number=int(bytes(message.body[:8])),
                    topic=message.topic,
                    queue_id=message.queue_id,
                    body=bytes(message.body),
                    tag=message.properties.get(TAGS, ""),
                    keys=keys,
                    queue_offset=place.queue_offset,
                    physical_offset=place.physical_offset,
                    size=place.size,
                    store_timestamp=place.store_timestamp,
                )
            )
        self.sent += new
        return new


def reads(store: MessageStore, topic: str, queue_id: int) -> Iterator[ReadResult]:
    """Read a queue to its end."""
    offset, end = store.queue_range(topic, queue_id)
    while offset < end:
        result = store.read(topic, queue_id, offset)
        assert offset < result.next_offset <= end, "a reader must get on"
        yield result
        offset = result.next_offset


def read_all(store: MessageStore, topic: str, queue_id: int) -> dict[int, Record]:
    """Every message of a queue, by its queue offset; entries without a readable record are left out."""
    found: dict[int, Record] = {}
    begin, _ = store.queue_range(topic, queue_id)
    for result in reads(store, topic, queue_id):
        for record in result.records:
            assert begin <= record.queue_offset < result.next_offset, "a unit is misplaced"
            assert record.queue_offset not in found
            found[record.queue_offset] = record
        begin = result.next_offset
    return found


def compare(store: MessageStore, possible: Iterable[Sent], certain: Iterable[Sent]) -> list[Sent]:
    """Check everything in a store; returns the messages of `possible` that it holds, in log order.

    The store may hold nothing else, each message must be unchanged and at its position, and all of `certain` must be
    among them.
    """
    by_place = {(sent.topic, sent.queue_id, sent.queue_offset, sent.physical_offset): sent for sent in possible}
    held: list[Sent] = []
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            for queue_offset, record in read_all(store, topic, queue_id).items():
                sent = by_place.get((topic, queue_id, queue_offset, record.physical_offset))
                where = f"{topic}/{queue_id} unit {queue_offset} at {record.physical_offset}"
                assert sent is not None, f"{where}: {record.body[:8]!r} was not sent there, or was dropped before"
                assert (record.topic, record.queue_id) == (topic, queue_id), where
                assert (record.body, record.tag or "", tuple(record.keys)) == (sent.body, sent.tag, sent.keys), where
                assert (record.size, record.store_timestamp) == (sent.size, sent.store_timestamp), where
                held.append(sent)
    held.sort(key=lambda sent: sent.physical_offset)
    found = set(held)
    missing = [sent for sent in certain if sent not in found]
    assert not missing, f"acknowledged and gone: {missing}"
    check_queries(store, held, by_place.values())
    check_times(store, held)
    return held


def check_queries(store: MessageStore, held: Sequence[Sent], possible: Iterable[Sent]) -> None:
    """Every key finds exactly its messages."""
    for topic, key in sorted({(sent.topic, key) for sent in possible for key in sent.keys}):
        found = [record.physical_offset for record in store.query(topic, key, max_count=10_000)]
        wanted = [sent.physical_offset for sent in held if sent.topic == topic and key in sent.keys]
        assert found == wanted, f"{topic}#{key}: {found}, not {wanted}"


def check_times(store: MessageStore, held: Sequence[Sent]) -> None:
    """For each time, the store finds the first message at or after it, as the list does."""
    queues: dict[tuple[str, int], list[Sent]] = {}
    for sent in held:
        queues.setdefault((sent.topic, sent.queue_id), []).append(sent)
    for (topic, queue_id), messages in queues.items():
        for timestamp in {message.store_timestamp for message in messages}:
            first = min(message.queue_offset for message in messages if message.store_timestamp >= timestamp)
            found = store.offset_by_time(topic, queue_id, timestamp)
            # A filler before a message has no time of its own and counts as part of it.
            low, _ = store.queue_range(topic, queue_id)
            readable = {message.queue_offset for message in messages}
            assert found <= first, f"{topic}/{queue_id} at {timestamp}"
            assert not readable.intersection(range(max(found, low), first)), f"{topic}/{queue_id} at {timestamp}"


def reopen(disk: MemoryFileSystem, config: StoreConfig, clock: ManualClock) -> MessageStore:
    """Open a store after a crash, close it, and open it again: the second recovery must have nothing to do."""
    first = MessageStore.open(config, file_system=disk, clock=clock)
    damaged = list(first.recovery.damaged)
    end = first.recovery.end
    ranges = {(t, q): first.queue_range(t, q) for t, ids in first.queues().items() for q in ids}
    first.close()
    before = {path: data for path, data in disk.contents().items() if path.name not in ("checkpoint", "abort")}
    store = MessageStore.open(config, file_system=disk, clock=clock)
    report = store.recovery
    assert report.clean
    assert report.end == end, "the log ends where the first opening said"
    assert (report.units_added, report.units_corrected, report.units_dropped) == (0, 0, 0), report
    assert not report.quarantined
    for item in report.damaged:  # reading may begin in the middle of a record
        assert any(known.start <= item.start and item.end == known.end for known in damaged), (item, damaged)
    assert ranges == {(t, q): store.queue_range(t, q) for t, ids in store.queues().items() for q in ids}
    after = {path: data for path, data in disk.contents().items() if path.name not in ("checkpoint", "abort")}
    changed = {str(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert not changed, "opening a second time changed files"
    return store
