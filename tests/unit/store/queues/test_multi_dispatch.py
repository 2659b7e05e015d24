"""Messages in several queues: storing, serving and recovering them in all queues that they name."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import (
    ConfigError,
    InvalidMessageError,
    LightQueuesFullError,
    Message,
    MessageStore,
    RecordBatch,
    StoreConfig,
)
from aerobee_store.queues.multi_dispatch import NAMES_MAX, MultiDispatch
from aerobee_store.records.record import SYS_FLAG_INNER_BATCH, SYS_FLAG_PREPARED, Draft, decode
from aerobee_store.records.record_template import RecordTemplate, TemplateMessage
from aerobee_store.testing import ManualClock, MemoryFileSystem
from aerobee_store.tools.rebuild import rebuild
from aerobee_store.tools.verify import verify
from tests.support.stored_messages import DIRECTORY

CONFIG = replace(StoreConfig.tiny(DIRECTORY), light_queue_count_max=4)
ROOM, HALL = "%LMQ%room", "%LMQ%hall"


@pytest.fixture(name="disk")
def disk_fixture() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture(name="store")
def store_fixture(disk: MemoryFileSystem) -> Iterator[MessageStore]:
    with MessageStore.open(CONFIG, file_system=disk, clock=ManualClock()) as store:
        yield store


def message(body: str, *names: str, topic: str = "chat", queue_id: int = 3, **properties: str) -> Message:
    named = {"INNER_MULTI_DISPATCH": ",".join(names)} if names else {}
    return Message(topic, queue_id, body.encode(), {**named, **properties})


def bodies(store: MessageStore, topic: str, queue_id: int = 0, tags: frozenset[str] | None = None) -> list[str]:
    return [record.body.decode() for record in store.read(topic, queue_id, 0, tags=tags).records]


def test_a_message_is_in_every_queue_that_it_names(store: MessageStore) -> None:
    """It is stored once in the log; each queue serves it with its own queue id and offset, and the message's topic."""
    store.append([message("a", ROOM), message("b", ROOM, HALL), message("c"), message("d", HALL)])
    store.flush()
    assert bodies(store, "chat", 3) == ["a", "b", "c", "d"]
    assert bodies(store, ROOM) == ["a", "b"]
    assert bodies(store, HALL) == ["b", "d"]
    assert store.queue_range(HALL, 0) == (0, 2)
    (b,) = store.read(HALL, 0, 0, max_count=1).records
    assert (b.topic, b.queue_id, b.queue_offset) == ("chat", 0, 0)
    assert b.properties["INNER_MULTI_QUEUE_OFFSET"] == "1,0"
    shown = decode(store.record_bytes(b), physical_offset=b.physical_offset)
    assert (shown.queue_id, shown.queue_offset, shown.body) == (0, 0, b"b")
    (own,) = store.read("chat", 3, 1, max_count=1).records
    assert (own.queue_id, own.queue_offset, own.physical_offset) == (3, 1, b.physical_offset)
    assert store.queues() == {ROOM: [0], HALL: [0], "chat": [3]}
    assert (store.queue_ids("chat"), store.queue_ids(ROOM), store.queue_ids("nothing")) == ([3], [0], [])


def test_offsets_advance_after_an_append(store: MessageStore) -> None:
    """An append may name a queue several times; a message that names a queue twice is in it once."""
    store.append([message("a", ROOM)])
    store.append([message("b", ROOM, ROOM), message("c", ROOM)])
    store.flush()
    assert bodies(store, ROOM) == ["a", "b", "c"]
    found = store.read(ROOM, 0, 0).records
    assert [record.properties["INNER_MULTI_QUEUE_OFFSET"] for record in found] == ["0", "1,1", "2"]


def test_one_append_takes_every_form_of_a_message(store: MessageStore) -> None:
    """Whole, prepared, and of a template: those of templates count, too, where a later one names their queue."""
    template = RecordTemplate(Message(ROOM, 0, b""), [], store_host=CONFIG.store_host, property_crc=CONFIG.property_crc)
    store.append([message("a", ROOM), TemplateMessage(template, b"b", 0, 0), store.draft(message("c", ROOM))])
    store.flush()
    assert bodies(store, ROOM) == ["a", "b", "c"]
    assert bodies(store, "chat", 3) == ["a", "c"]


def test_listeners_are_called_for_light_queues(store: MessageStore) -> None:
    """Listeners get the new end of each queue, once it can be read."""
    heard: list[tuple[str, int, int]] = []
    store.arrival_listeners.append(lambda *place: heard.append(place))
    store.append([message("a", ROOM), message("b", ROOM, HALL)])
    store.flush()
    assert sorted(heard) == [(HALL, 0, 1), (ROOM, 0, 2), ("chat", 3, 2)]
    assert store.stats.messages_dispatched == 2


def test_tags_filter_light_queues(store: MessageStore) -> None:
    """A light queue's units have the tags code of the message."""
    store.append([message("a", ROOM, TAGS="red"), message("b", ROOM, TAGS="blue"), message("c", ROOM)])
    store.flush()
    assert bodies(store, ROOM, tags=frozenset({"blue"})) == ["b"]


@pytest.mark.parametrize(
    ("topic", "sys_flag"),
    [
        ("%RETRY%billing", 0),
        ("rmq_sys_wheel_timer", 0),
        ("SCHEDULE_TOPIC_XXXX", 0),
        ("chat", SYS_FLAG_PREPARED),
    ],
)
def test_messages_in_their_own_queue_only(store: MessageStore, topic: str, sys_flag: int) -> None:
    """Retry topics, the broker's own topics and half messages: the names apply later, in the real topic."""
    store.append([Message(topic, 0, b"x", {"INNER_MULTI_DISPATCH": ROOM}, sys_flag=sys_flag)])
    store.flush()
    assert ROOM not in store.queues()
    names = {record.properties.get("INNER_MULTI_DISPATCH") for record in store.read(topic, 0, 0).records}
    assert names <= {ROOM}


@pytest.mark.parametrize("name", ["%LMQ%a/b", "%LMQ%../../x", "", "%LMQ%\x00", "%LMQ%" + "x" * 251, "%LMQ%a\\b", ".."])
def test_names_that_cannot_be_directories(disk: MemoryFileSystem, name: str) -> None:
    """Such names get no queue and no offset; valid names beside them do."""
    config = replace(CONFIG, multi_dispatch=True)
    with MessageStore.open(config, file_system=disk) as store:
        store.append([message("a", name, ROOM)])
        store.flush()
        assert set(store.queues()) == {ROOM, "chat"}
        assert store.read(ROOM, 0, 0).records[0].properties["INNER_MULTI_QUEUE_OFFSET"] == ",0"
    with MessageStore.open(config, file_system=disk, whole_log=True) as store:
        assert set(store.queues()) == {ROOM, "chat"}


def test_queue_offsets_of_the_sender_are_ignored(store: MessageStore) -> None:
    """A sender cannot choose an offset in another queue, with or without a name, in any encoding."""
    store.append([message("a", ROOM, INNER_MULTI_QUEUE_OFFSET="7"), message("b", INNER_MULTI_QUEUE_OFFSET="7")])
    raw = f"INNER_MULTI_DISPATCH\x01{ROOM}\x02INNER_MULTI_QUEUE_OFFSET\x019\x02".encode()
    store.append([Message("chat", 3, b"c", raw_properties=raw)])
    store.flush()
    found = store.read("chat", 3, 0).records
    assert [record.properties.get("INNER_MULTI_QUEUE_OFFSET") for record in found] == ["0", None, "1"]
    assert bodies(store, ROOM) == ["a", "c"]


def test_other_topics_only_if_configured(disk: MemoryFileSystem) -> None:
    """`multi_dispatch`: a name without %LMQ% is a topic, and shares the offsets with the topic's own messages."""
    with MessageStore.open(CONFIG, file_system=disk) as store:
        store.append([message("a", "audit")])
        store.flush()
        assert "audit" not in store.queues()
    with MessageStore.open(replace(CONFIG, multi_dispatch=True), file_system=disk) as store:
        store.append([message("b", "audit"), Message("audit", 3, b"own"), message("c", "audit", ROOM)])
        store.append([Message("audit", 3, b"later"), message("d", "audit", "chat")])
        store.flush()
        assert bodies(store, "audit", 3) == ["b", "own", "c", "later", "d"]
        assert bodies(store, "chat", 3) == ["a", "b", "c", "d"], "its own queue once, though d names it"


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("removed", [(), ("%LMQ%room",), ("%LMQ%room", "audit", "chat")])
def test_recovery_restores_the_units_of_every_queue(
    disk: MemoryFileSystem, closed: bool, removed: tuple[str, ...]
) -> None:
    """Units are restored after clean and unclean stops, whether the queues exist or not."""
    config = replace(CONFIG, multi_dispatch=True)
    store = MessageStore.open(config, file_system=disk)
    store.append([message("a", ROOM), message("b", ROOM, "audit"), Message("audit", 3, b"own")])
    store.append([message("c", "audit", HALL)])
    store.flush()
    if closed:
        store.close()
    disk = disk.kill()
    for topic in removed:
        for path in disk.contents():
            if path.is_relative_to(DIRECTORY / "consumequeue" / topic):
                disk.unlink(path)
    with MessageStore.open(config, file_system=disk, whole_log=closed) as store:
        assert bodies(store, ROOM) == ["a", "b"]
        assert bodies(store, HALL) == ["c"]
        assert bodies(store, "audit", 3) == ["b", "own", "c"]
        assert bodies(store, "chat", 3) == ["a", "b", "c"]
        store.append([message("d", ROOM, "audit")])
        store.flush()
        assert bodies(store, ROOM) == ["a", "b", "d"]
        assert bodies(store, "audit", 3) == ["b", "own", "c", "d"]


def test_an_invalid_offset_is_ignored() -> None:
    """An offset too large for the record's place in the log is ignored; recovery would fill the queue up to it."""
    values = {"INNER_MULTI_DISPATCH": f"{ROOM},{HALL},%LMQ%attic", "INNER_MULTI_QUEUE_OFFSET": "9000000,10,x"}
    assert MultiDispatch().places("chat", 0, 0, values, 910) == {(HALL, 0): 10}
    assert MultiDispatch().places("chat", 0, 0, values, 909) == {}


def test_too_many_light_queues(store: MessageStore) -> None:
    """The whole append is refused with a reason. Existing queues continue, and deleting one makes space."""
    names = [f"%LMQ%{n}" for n in range(4)]
    store.append([message("a", *names[:3])])
    with pytest.raises(
        LightQueuesFullError, match=r"3 light queues exist and 2 more .* limit is 4 .*light_queue_count_max"
    ):
        store.append([message("b", "%LMQ%x"), message("c", "%LMQ%y")])
    assert store.positions[0] == store.append([message("d", *names)])[0].physical_offset
    with pytest.raises(LightQueuesFullError):
        store.append([message("e", "%LMQ%x")])
    store.delete_topic(names[0])
    store.append([message("f", "%LMQ%x")])
    store.flush()
    assert bodies(store, "%LMQ%x") == ["f"]
    assert bodies(store, "chat", 3) == ["a", "d", "f"]


def test_a_deleted_light_queue_continues_its_offsets(disk: MemoryFileSystem) -> None:
    """An offset must not name two messages; recovery does not restore the old ones."""
    store = MessageStore.open(CONFIG, file_system=disk)
    store.append([message("a", ROOM), message("b", ROOM)])
    store.delete_topic(ROOM)
    store.append([message("c", ROOM)])
    store.flush()
    with MessageStore.open(CONFIG, file_system=disk.kill(), whole_log=True) as store:
        assert store.queue_range(ROOM, 0) == (2, 3)
        assert [record.body for record in store.read(ROOM, 0, 2).records] == [b"c"]
        assert bodies(store, "chat", 3) == ["a", "b", "c"]


def test_too_many_names(store: MessageStore) -> None:
    """A message cannot name more queues than the limit; nothing is stored."""
    with pytest.raises(InvalidMessageError, match=r"1001 queue names; the limit is 1000"):
        store.append([message("a", *(["%LMQ%x"] * (NAMES_MAX + 1)))])
    assert store.positions[0] == 0


def test_records_in_store_layout_name_no_queues(store: MessageStore) -> None:
    """Records that name queues are refused, because their properties cannot be completed in place.

    The same text in a body is allowed.
    """

    def batch(one: Message, times: int = 1) -> RecordBatch:
        data = Draft(one, store_host=("127.0.0.1", 1), property_crc=True).encode_unplaced()
        return RecordBatch.parse(data * times, base_physical_offset=None, placed=False)

    for one in (message("a", ROOM), message("a", INNER_MULTI_QUEUE_OFFSET="1")):
        for times in (1, 9):
            with pytest.raises(InvalidMessageError, match="INNER_MULTI_DISPATCH"):
                store.append_records("chat", 3, batch(one, times))
    store.append_records("chat", 3, batch(message("INNER_MULTI_DISPATCH")))
    store.flush()
    assert bodies(store, "chat", 3) == ["INNER_MULTI_DISPATCH"]


def test_the_tools_support_light_queues(tmp_path: Path) -> None:
    """Verify requires their units, and rebuild writes the same files from the log."""
    config = replace(StoreConfig.tiny(tmp_path), multi_dispatch=True)
    with MessageStore.open(config) as store:
        store.append([message("a", ROOM), message("b", ROOM, "audit"), Message("audit", 3, b"own")])
    assert verify(tmp_path).findings == []
    files = sorted(path for path in tmp_path.glob("consumequeue/*/*/*") if path.is_file())
    before = [path.read_bytes() for path in files]
    rebuild(tmp_path, index=False, apply=True)
    assert [path.read_bytes() for path in files] == before
    assert verify(tmp_path).findings == []
    room = tmp_path / "consumequeue" / ROOM / "0" / f"{0:020d}"
    room.write_bytes(room.read_bytes()[:20] + bytes(380))
    (found,) = verify(tmp_path).findings
    assert (found.kind, found.topic, found.queue_offset) == ("unit-missing", ROOM, 1)


def test_settings() -> None:
    """A limit below one is refused; with light queues off their names create no queue."""
    with pytest.raises(ConfigError, match=r"store\.light_queue_count_max"):
        replace(CONFIG, light_queue_count_max=0)
    with MessageStore.open(replace(CONFIG, light_queues=False), file_system=MemoryFileSystem()) as store:
        store.append([message("a", ROOM, HALL)])
        store.flush()
        assert set(store.queues()) == {"chat"}
        (found,) = store.read("chat", 3, 0).records
        assert found.properties == {"INNER_MULTI_DISPATCH": f"{ROOM},{HALL}", "__CRC32#": found.properties["__CRC32#"]}


def test_an_inner_batch_is_in_its_own_queue_only(disk: MemoryFileSystem) -> None:
    """As in RocketMQ, neither dispatch nor recovery uses the queues that an inner batch names."""
    names = {"INNER_MULTI_DISPATCH": ROOM, "INNER_MULTI_QUEUE_OFFSET": "0", "INNER_NUM": "1"}
    body = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + struct.pack(">h", 0)
    with MessageStore.open(CONFIG, file_system=disk, clock=ManualClock(), is_batch_topic=lambda t: t == "m") as store:
        store.append([Message("m", 0, body, names, sys_flag=SYS_FLAG_INNER_BATCH)])
        store.flush()
        assert store.queue_range(ROOM, 0) == (0, 0)
    with MessageStore.open(CONFIG, file_system=disk, clock=ManualClock(), whole_log=True) as store:
        assert store.queue_range("m", 0) == (0, 1)
        assert store.queue_range(ROOM, 0) == (0, 0)
