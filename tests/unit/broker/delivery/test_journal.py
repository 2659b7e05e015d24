"""The binary format of the delivery journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.delivery.journal.event_log import (
    JOURNAL_TOPIC,
    EventKind,
    Journal,
    Removed,
    decode,
    encode_acknowledged,
    encode_changed,
    encode_delivered,
    encode_removed,
    encode_reset,
    encode_state,
    highest_offset,
)
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
from aerobee_broker.delivery.state.queue_key import QueueKey
from aerobee_broker.errors import JournalFormatError
from aerobee_store import MessageStore, StoreConfig
from aerobee_store.testing import MemoryFileSystem

KEY = QueueKey("g", "t", 3)
DELIVERED = Delivered(5, 9, (Run(2, 1, 2), Run(6, 2, 1)), 0xA1, 1_700_000_000_000, "c")
PASSING = Delivered(5, 9, (Run(5, 1, 0), Run(6, 2, 1), Run(8, 1, 0)), 0xA1, 1_700_000_000_000, None)
STATE = State(4, 4, 9, (StateEntry(4, 1, 7, 99, "c"), StateEntry(6, 2, 0, 0, None), StateEntry(7, 1, 8, 98, "c")))

# The documented layout, byte by byte. A change would make existing journals unreadable.
VECTORS: list[tuple[EventKind, bytes, QueueEvent | Removed, str]] = [
    (
        EventKind.DELIVERED,
        encode_delivered(KEY.encode(), DELIVERED),
        DELIVERED,
        "0001 67 0001 74 00000003 0000000000000005 0000000000000009 00000000000000a1 0000018bcfe56800 0001 0002 63"
        "0000000000000002 00000001 0002 0000000000000006 00000002 0001",
    ),
    (
        EventKind.ACKNOWLEDGED,
        encode_acknowledged(KEY.encode(), Acknowledged(((1, 2), (4, 9)))),
        Acknowledged(((1, 2), (4, 9))),
        "0001 67 0001 74 00000003 0002 0000000000000001 00000001 0000000000000004 00000005",
    ),
    (
        EventKind.CHANGED,
        encode_changed(KEY.encode(), Changed(8, 3, 0xB2, 1_700_000_000_000)),
        Changed(8, 3, 0xB2, 1_700_000_000_000),
        "0001 67 0001 74 00000003 0000000000000008 0003 00000000000000b2 0000018bcfe56800",
    ),
    (
        EventKind.STATE,
        encode_state(KEY.encode(), STATE),
        STATE,
        "0001 67 0001 74 00000003 0000000000000004 0000000000000004 0000000000000009 0001 0003 0001 63"
        "0000000000000004 0001 0000000000000007 0000000000000063 0000"
        "0000000000000006 0002 0000000000000000 0000000000000000 ffff"
        "0000000000000007 0001 0000000000000008 0000000000000062 0000",
    ),
    (EventKind.REMOVED, encode_removed(Removed("g", "")), Removed("g", ""), "0001 67 0000"),
    (
        EventKind.RESET,
        encode_reset(KEY.encode(), Reset(5)),
        Reset(5),
        "0001 67 0001 74 00000003 0000000000000005",
    ),
]


def body(kind: int, *events: bytes, version: int = 1) -> bytes:
    """The body of one journal message."""
    return bytes([version, kind]) + len(events).to_bytes(2, "big") + b"".join(events)


@pytest.mark.parametrize(("kind", "encoded", "event", "documented"), VECTORS, ids=[v[0].name for v in VECTORS])
def test_events_have_the_documented_bytes(
    kind: EventKind, encoded: bytes, event: QueueEvent | Removed, documented: str
) -> None:
    """Each event encodes to the documented bytes and decodes from them, also next to another event."""
    assert encoded == bytes.fromhex(documented)
    entries = decode(body(kind, encoded, encoded), 17)
    assert [entry.event for entry in entries] == [event, event]
    assert {entry.queue_offset for entry in entries} == {17}
    if not isinstance(event, Removed):
        assert entries[0].key == KEY


def test_delivery_without_client_is_kept() -> None:
    """None and the empty client id are distinct."""
    for client_id in (None, "", "é" * 100):
        event = Delivered(0, 1, (Run(0, 1, 1),), 1, 1, client_id)
        [entry] = decode(body(EventKind.DELIVERED, encode_delivered(KEY.encode(), event)), 0)
        assert entry.event == event


def test_skipped_messages_need_the_second_version() -> None:
    """Runs of attempt 0 need version 2; other deliveries are valid in both versions."""
    for event in (PASSING, DELIVERED, Delivered(5, 9, (Run(5, 4, 0),), 0, 0, None)):
        [entry] = decode(body(1, encode_delivered(KEY.encode(), event), version=2), 0)
        assert entry.event == event
    assert PASSING.passes_over
    assert not DELIVERED.passes_over


@pytest.mark.parametrize(
    ("damaged", "cause"),
    [
        (b"", "the body ends"),
        (body(1, version=0), "version 0"),
        (body(1, version=3), "version 3"),
        (body(2, version=2), "kind 2 has no version 2"),
        (body(1, encode_delivered(KEY.encode(), PASSING)), "attempt 0"),
        (body(7), "kind 7"),
        (body(5, encode_removed(Removed("g", ""))) + b"x", "1 bytes follow"),
        (body(5, b"\xff\xff"), "the body ends"),
        (body(1, encode_delivered(KEY.encode(), Delivered(9, 5, (), 1, 1, None))), "queue offset 9"),
        (body(1, encode_delivered(KEY.encode(), Delivered(0, 5, (Run(5, 1, 1),), 1, 1, None))), "beyond it"),
        (body(4, encode_state(KEY.encode(), State(0, 0, 2, (StateEntry(2, 1, 1, 1, None),)))), "out of range"),
    ],
)
def test_invalid_events_are_refused(damaged: bytes, cause: str) -> None:
    """The error has the queue offset and the cause."""
    with pytest.raises(JournalFormatError, match=cause) as caught:
        decode(damaged, 42)
    assert caught.value.queue_offset == 42


@given(st.sampled_from(VECTORS), st.data())
def test_any_bytes_are_read_or_refused(
    vector: tuple[EventKind, bytes, QueueEvent | Removed, str], data: st.DataObject
) -> None:
    """Truncated or changed bytes give a well-formed event or JournalFormatError."""
    whole = bytearray(body(vector[0], vector[1]))
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        entries = decode(bytes(whole), 0)
    except JournalFormatError:
        return
    for entry in entries:
        if not isinstance(entry.event, Removed):
            assert highest_offset(entry.event) >= 0


# --- In a store ---------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[MessageStore]:
    config = StoreConfig.tiny(Path("/store"))
    with MessageStore.open(config, file_system=MemoryFileSystem()) as store:
        yield store


def replayed(journal: Journal, start: int | None) -> list[QueueEvent | Removed]:
    return [entry.event for entry in journal.replay(start)]


def acknowledgement(number: int) -> bytes:
    return encode_acknowledged(KEY.encode(), Acknowledged(((number, number + 1),)))


def test_a_replay_begins_where_append_says(store: MessageStore) -> None:
    """Replay starts with the first message of that append; `next_queue_offset` is after its last one."""
    journal = Journal(store, body_size_max=3 + 4 * len(acknowledgement(0)))  # one byte too small for four events
    starts = [journal.next_queue_offset]
    for first in (0, 7, 14):
        start = journal.append(EventKind.ACKNOWLEDGED, [acknowledgement(first + n) for n in range(7)], 1)
        assert start == starts[-1]
        starts.append(journal.next_queue_offset)
        store.flush()
    assert starts == [0, 3, 6, 9]  # three events fit into a message, so seven take three
    events = [Acknowledged(((number, number + 1),)) for number in range(21)]
    for index, start in enumerate(starts):
        assert replayed(journal, start) == events[7 * index :]
    assert replayed(journal, None) == events
    assert replayed(journal, starts[1] + 1) == events[10:]
    assert journal.event_count == 21
    assert journal.end == store.positions[0]


@pytest.mark.parametrize(("spare", "messages"), [(0, 1), (-1, 2)])
def test_as_many_events_as_fit_share_a_message(store: MessageStore, spare: int, messages: int) -> None:
    """A message is filled up to the last byte of the limit."""
    events = [acknowledgement(number) for number in range(5)]
    journal = Journal(store, body_size_max=4 + sum(map(len, events)) + spare)
    journal.append(EventKind.ACKNOWLEDGED, events, 1)
    store.flush()
    assert store.queue_range(JOURNAL_TOPIC, 0) == (0, messages)
    low, _ = store.queue_range(JOURNAL_TOPIC, 0)
    bodies = [record.body for record in store.read(JOURNAL_TOPIC, 0, low).records]
    assert all(len(found) <= 4 + sum(map(len, events)) + spare for found in bodies)


def test_the_largest_state_fits_into_a_message(store: MessageStore) -> None:
    """A state with the maximum number of entries and the longest names fits."""
    journal = Journal(store, body_size_max=4096)
    count = journal.state_entry_count_max
    entries = tuple(StateEntry(number, 1, 1, 1, f"{number:0255}") for number in range(count))
    key = QueueKey("g" * 255, "t" * 255, 1)
    encoded = encode_state(key.encode(), State(0, 0, count, entries))
    assert count > 5
    assert 4 + len(encoded) <= 4096
    assert 4 + len(encoded) > 4096 - 1024 - 285  # the limit is close to the maximum
