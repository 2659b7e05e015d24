"""The delivery journal: every change of a delivery, as messages in a system topic of the store.

One message holds events of one kind, given by its tag. docs/formats/delivery-journal.md has the layout of the body.
Events have the durability, the checksums and the recovery of messages, and share one order with them. The log never
contains an event without the message to which it refers, nor the end of a dead letter without its copy.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from aerobee_broker.delivery.state.events import (
    Acknowledged,
    Changed,
    Delivered,
    QueueEvent,
    Reset,
    Run,
    State,
    StateEntry,
)
from aerobee_broker.delivery.state.queue_key import QUEUE_ID, TEXT_SIZE, QueueKey, bounded, text_bytes
from aerobee_broker.errors import JournalFormatError
from aerobee_store import MessageStore
from aerobee_store.records.properties import TAGS
from aerobee_store.records.record import Message
from aerobee_store.records.record_template import RecordTemplate, TemplateMessage

JOURNAL_TOPIC: Final = "rmq_sys_AEROBEE_DELIVERY"
JOURNAL_GROUP: Final = "CID_RMQ_SYS_AEROBEE_DELIVERY"  # its offset in consumerOffset.json is where replay begins
JOURNAL_QUEUE_ID: Final = 0

VERSION: Final = 1
# deliveries with runs of attempt 0; used only if there are any, because older releases read version 1
VERSION_WITH_PASSED: Final = 2
_BODY_SIZE_MAX: Final = 64 << 10  # a snapshot of 100,000 messages in flight takes some fifty of these
_HEADER: Final = struct.Struct(">BBH")
_DELIVERED: Final = struct.Struct(">QQQqHH")
_RUN: Final = struct.Struct(">QIH")
_ACKNOWLEDGED: Final = struct.Struct(">H")
_RANGE: Final = struct.Struct(">QI")
_CHANGED: Final = struct.Struct(">QHQq")
_STATE: Final = struct.Struct(">QQQHH")
_ENTRY: Final = struct.Struct(">QHQqH")
_RESET: Final = struct.Struct(">Q")
_NO_CLIENT: Final = 0xFFFF
_COUNT_MAX: Final = 0xFFFF
_CLIENT_SIZE_MAX: Final = 2 + 255
_STATE_OVERHEAD_SIZE: Final = 1024  # header, key of the queue and fixed fields: 570 bytes at most


class EventKind(enum.IntEnum):
    """The kind of events in a journal message; the name in lower case is its tag."""

    DELIVERED = 1
    ACKNOWLEDGED = 2
    CHANGED = 3
    STATE = 4
    REMOVED = 5
    RESET = 6


_TAGS: Final = {kind: kind.name.lower() for kind in EventKind}
_KNOWN_KINDS: Final = frozenset(int(kind) for kind in EventKind)


class Removed(Struct, frozen=True):
    """A deleted topic, group, or both: an empty name stands for all. Its state is removed."""

    group: str
    topic: str


class JournalEntry(Struct, frozen=True):
    """One event as read from the journal. `key` is None for Removed."""

    queue_offset: int
    key: QueueKey | None
    event: QueueEvent | Removed


# Encoding. Every function returns the bytes of one event; `key` is QueueKey.encode().


def encode_delivered(key: bytes, event: Delivered) -> bytes:
    """Encode a Delivered event."""
    client = b"" if event.client_id is None else bounded(event.client_id)
    size = _NO_CLIENT if event.client_id is None else len(client)
    head = _DELIVERED.pack(event.begin, event.cursor, event.nonce, event.invisible_until_ms, size, len(event.runs))
    return b"".join((key, head, client, *[_RUN.pack(*run) for run in event.runs]))


def encode_acknowledged(key: bytes, event: Acknowledged) -> bytes:
    """Encode an Acknowledged event."""
    ranges = [_RANGE.pack(begin, end - begin) for begin, end in event.ranges]
    return b"".join((key, _ACKNOWLEDGED.pack(len(ranges)), *ranges))


def encode_changed(key: bytes, event: Changed) -> bytes:
    """Encode a Changed event."""
    return key + _CHANGED.pack(event.offset, event.attempt, event.nonce, event.invisible_until_ms)


def encode_state(key: bytes, event: State) -> bytes:
    """Encode a State event with at most Journal.state_entry_count_max entries."""
    clients: dict[str, int] = {}
    entries = []
    for entry in event.entries:
        client = _NO_CLIENT
        if entry.client_id is not None:
            client = clients.setdefault(entry.client_id, len(clients))
        entries.append(_ENTRY.pack(entry.offset, entry.attempt, entry.nonce, entry.invisible_until_ms, client))
    head = _STATE.pack(event.commit_offset, event.begin, event.end, len(clients), len(entries))
    return b"".join((key, head, *map(text_bytes, clients), *entries))


def encode_removed(event: Removed) -> bytes:
    """Encode a Removed event."""
    return text_bytes(event.group) + text_bytes(event.topic)


def encode_reset(key: bytes, event: Reset) -> bytes:
    """Encode a Reset event."""
    return key + _RESET.pack(event.offset)


# Decoding


class _Reader:
    """Reads fields of an untrusted body: every length is checked before use."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def rest(self) -> int:
        return len(self._body) - self._at

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        self._need(layout.size)
        values = layout.unpack_from(self._body, self._at)
        self._at += layout.size
        return values

    def text(self, size: int | None = None) -> str:
        if size is None:
            (size,) = self.take(TEXT_SIZE)
        self._need(size)
        begin, self._at = self._at, self._at + size
        return self._body[begin : self._at].decode("utf-8", "replace")

    def _need(self, size: int) -> None:
        if self.rest < size:
            raise JournalFormatError(f"the body ends too early: {size} bytes expected, {self.rest} left")


def decode(body: bytes, queue_offset: int) -> list[JournalEntry]:
    """The events of one journal message. Raises JournalFormatError for content that this release does not write."""
    try:
        reader = _Reader(body)
        version, kind, count = reader.take(_HEADER)
        if version not in (VERSION, VERSION_WITH_PASSED):
            raise JournalFormatError(
                f"journal version {version} is unknown; this release reads {VERSION} and {VERSION_WITH_PASSED}"
            )
        if kind not in _KNOWN_KINDS:
            raise JournalFormatError(f"event kind {kind} is unknown")
        if version == VERSION_WITH_PASSED and kind != EventKind.DELIVERED:
            raise JournalFormatError(f"event kind {kind} has no version {version}")
        entries = []
        for _ in range(count):
            if kind == EventKind.REMOVED:
                entries.append(JournalEntry(queue_offset, None, Removed(reader.text(), reader.text())))
            else:
                key = QueueKey(reader.text(), reader.text(), *reader.take(QUEUE_ID))
                event = _decode_event(kind, reader)
                if version == VERSION and isinstance(event, Delivered) and event.passes_over:
                    raise JournalFormatError(f"a delivery of version {version} has messages with attempt 0")
                entries.append(JournalEntry(queue_offset, key, event))
        if reader.rest:
            raise JournalFormatError(f"{reader.rest} bytes follow the last of the {count} events")
    except JournalFormatError as error:
        raise JournalFormatError(error.cause, queue_offset=queue_offset) from None
    return entries


def _decode_event(kind: int, reader: _Reader) -> QueueEvent:
    if kind == EventKind.DELIVERED:
        begin, cursor, nonce, until, client_size, run_count = reader.take(_DELIVERED)
        client = None if client_size == _NO_CLIENT else reader.text(client_size)
        runs = tuple(Run(*reader.take(_RUN)) for _ in range(run_count))
        _check_order(begin, cursor)
        if any(run.offset + run.size > cursor for run in runs):
            raise JournalFormatError(f"a delivery up to queue offset {cursor} has messages beyond it")
        return Delivered(begin, cursor, runs, nonce, until, client)
    if kind == EventKind.ACKNOWLEDGED:
        (range_count,) = reader.take(_ACKNOWLEDGED)
        ranges = [reader.take(_RANGE) for _ in range(range_count)]
        return Acknowledged(tuple((begin, begin + size) for begin, size in ranges))
    if kind == EventKind.CHANGED:
        return Changed(*reader.take(_CHANGED))
    if kind == EventKind.RESET:
        return Reset(*reader.take(_RESET))
    assert kind == EventKind.STATE, "all other kinds are handled"
    commit_offset, begin, end, client_count, entry_count = reader.take(_STATE)
    clients = [reader.text() for _ in range(client_count)]
    entries = []
    for _ in range(entry_count):
        offset, attempt, nonce, until, client_index = reader.take(_ENTRY)
        if client_index != _NO_CLIENT and client_index >= client_count:
            raise JournalFormatError(f"client index {client_index} is outside 0..{client_count - 1}")
        client = None if client_index == _NO_CLIENT else clients[client_index]
        entries.append(StateEntry(offset, attempt, nonce, until, client))
    _check_order(commit_offset, begin)
    _check_order(begin, end)
    offsets = [entry.offset for entry in entries]
    if offsets and not (begin <= offsets[0] and offsets[-1] < end and offsets == sorted(set(offsets))):
        raise JournalFormatError(f"the messages of a state from {begin} to {end} are out of order or out of range")
    return State(commit_offset, begin, end, tuple(entries))


def _check_order(low: int, high: int) -> None:
    if low > high:
        raise JournalFormatError(f"range begins at queue offset {low} and ends before it, at {high}")


def highest_offset(event: QueueEvent) -> int:
    """One more than the highest queue offset in the event."""
    match event:
        case Delivered():
            return event.cursor
        case Acknowledged():
            return max((end for _, end in event.ranges), default=0)
        case Changed():
            return event.offset + 1
        case State():
            return event.end
        case Reset():
            return event.offset


# The topic


def _message(kind: EventKind, body: bytes, now_ms: int) -> Message:
    return Message(JOURNAL_TOPIC, JOURNAL_QUEUE_ID, body, {TAGS: _TAGS[kind]}, born_timestamp=now_ms)


class Journal:
    """Appends events to the store and reads them back."""

    def __init__(self, store: MessageStore, body_size_max: int) -> None:
        self._store = store
        self._body_size_max = min(_BODY_SIZE_MAX, body_size_max)
        self.end = 0
        """Physical offset after the last appended event, for `MessageStore.wait_stored`."""
        self.next_queue_offset = store.queue_range(JOURNAL_TOPIC, JOURNAL_QUEUE_ID)[1]
        """Queue offset of the next message, from which a replay that needs only later events may begin."""
        self._templates: dict[EventKind, RecordTemplate] = {}
        self.event_count = 0
        """Events appended by this process."""

    @property
    def state_entry_count_max(self) -> int:
        """How many entries of a State fit into one message."""
        return max(1, (self._body_size_max - _STATE_OVERHEAD_SIZE) // (_ENTRY.size + _CLIENT_SIZE_MAX))

    def append(self, kind: EventKind, events: Sequence[bytes], now_ms: int, *, version: int = VERSION) -> int:
        """Append events of one kind, in one message if they fit; moves `end`.

        `version`: VERSION_WITH_PASSED if a delivery among them skips messages. Returns the queue offset of the first
        message: a replay from there sees all of them. Raises StoreError.
        """
        bodies = []
        start, size = 0, _HEADER.size
        for index, event in enumerate(events):
            if index > start and (size + len(event) > self._body_size_max or index - start == _COUNT_MAX):
                bodies.append(_HEADER.pack(version, kind, index - start) + b"".join(events[start:index]))
                start, size = index, _HEADER.size
            size += len(event)
        bodies.append(_HEADER.pack(version, kind, len(events) - start) + b"".join(events[start:]))
        # A full disk stops producers; consumers continue.
        template = self._template(kind)
        messages = [TemplateMessage(template, body, JOURNAL_QUEUE_ID, now_ms) for body in bodies]
        appended = self._store.append(messages, internal=True)
        self.end = appended[-1].end
        self.next_queue_offset = appended[-1].queue_offset + 1
        self.event_count += len(events)
        return appended[0].queue_offset

    def _template(self, kind: EventKind) -> RecordTemplate:
        template = self._templates.get(kind)
        if template is None:
            config = self._store.config
            template = self._templates[kind] = RecordTemplate(
                _message(kind, b"", 0), [], store_host=config.store_host, property_crc=config.property_crc
            )
        return template

    def replay(self, start: int | None) -> Iterator[JournalEntry]:
        """All events from that queue offset on, or from the oldest remaining one. Raises JournalFormatError."""
        begin, end = self._store.queue_range(JOURNAL_TOPIC, JOURNAL_QUEUE_ID)
        position = begin if start is None else max(begin, start)
        while position < end:
            result = self._store.read(JOURNAL_TOPIC, JOURNAL_QUEUE_ID, position, max_count=1024)
            for record in result.records:
                yield from decode(record.body, record.queue_offset)
            if result.next_offset <= position:
                break
            position = result.next_offset
