"""A bulk search of a queue by an SQL expression gives the results of reading message by message."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from aerobee_broker.filters import property_search
from aerobee_broker.filters.message_filter import MessageFilter, filter_of
from aerobee_store import Message, MessageStore, ReadResult, StoreConfig
from aerobee_store.records.inner_batch import body_of

TOPIC, QUEUE = "orders", 1
SEGMENT_SIZE = 64 << 10
EXPRESSIONS = (
    "price > 90",
    "price BETWEEN 10 AND 30 AND region = 'eu'",
    "region = 'ü' OR gone IS NOT NULL",
    "gone IS NULL",
    "NOT (region IN ('eu', 'us'))",
    "TRUE",
    "FALSE",
    "price = 7777",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Messages of two queues in random order, over several segments."""
    config = replace(StoreConfig.tiny(tmp_path, flush="async"), segment_size=SEGMENT_SIZE, light_queues=True)
    random_ = random.Random(7)
    with MessageStore.open(config) as store:
        for number in range(600):
            properties = {"price": str(random_.randrange(100)), "region": random_.choice(["eu", "us", "ü", "asia"])}
            if number % 7 == 0:
                del properties["price"]
            body = random_.randbytes(random_.randrange(200))
            store.append([Message(TOPIC, random_.choice([0, QUEUE]), body, properties)])
        store.flush()
        yield store


def sql(expression: str) -> MessageFilter:
    return filter_of(expression, is_sql=True)


def all_of(read: Callable[[int], ReadResult]) -> tuple[list[int], int]:
    """The queue offsets found by reading the whole queue, and the number of lost messages."""
    found: list[int] = []
    lost = offset = 0
    while True:
        result = read(offset)
        if result.next_offset <= offset:
            return found, lost
        assert len(result.records) <= 9
        assert all(offset <= record.queue_offset < result.next_offset for record in result.records)
        found += [record.queue_offset for record in result.records]
        lost += result.lost
        offset = result.next_offset


def searched(store: MessageStore, expression: str, topic: str = TOPIC, queue_id: int = QUEUE) -> tuple[list[int], int]:
    wanted = sql(expression)
    return all_of(lambda offset: wanted.read(store, topic, queue_id, offset, 9, "g"))


def read_one_by_one(
    store: MessageStore, expression: str, topic: str = TOPIC, queue_id: int = QUEUE
) -> tuple[list[int], int]:
    condition = sql(expression).condition
    assert condition is not None

    def read(offset: int) -> ReadResult:
        result = store.read(topic, queue_id, offset, max_count=1)
        return structs.replace(result, records=[each for each in result.records if condition(each.properties) is True])

    return all_of(read)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_search_finds_the_same_as_reading(
    store: MessageStore, expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are equal for any expression and any number of messages in a step."""
    expected = read_one_by_one(store, expression)
    assert searched(store, expression) == expected
    monkeypatch.setattr(property_search, "_COUNT_MIN", 5)
    monkeypatch.setattr(property_search, "_WORK_MAX", 20)
    assert searched(store, expression) == expected
    monkeypatch.setattr(property_search, "_BYTES_MAX", 300)
    assert searched(store, expression) == expected


def test_messages_without_a_match_are_not_decoded(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog without matches is skipped in bulk, without decoding its messages."""
    read: list[object] = []
    original = MessageStore.read

    def counted(self: MessageStore, *arguments: object, **options: object) -> ReadResult:
        read.append(arguments)
        return original(self, *arguments, **options)  # type: ignore[arg-type]  # arguments passed through

    monkeypatch.setattr(MessageStore, "read", counted)
    assert searched(store, "price = 7777") == ([], 0)
    assert len(read) == 1  # the read at the end of the queue


def test_an_answer_has_a_bound_in_bytes(store: MessageStore) -> None:
    """A message above the byte limit is returned alone, and reading continues after it."""
    found: list[int] = []
    offset = 0
    while (result := sql("TRUE").read(store, TOPIC, QUEUE, offset, 9, "g", max_bytes=1)).next_offset > offset:
        assert len(result.records) == 1
        found += [record.queue_offset for record in result.records]
        offset = result.next_offset
    assert (found, 0) == read_one_by_one(store, "TRUE")


@pytest.mark.parametrize("place", ["body", "properties", "size"])
def test_a_damaged_message_is_counted_and_the_others_are_found(store: MessageStore, place: str, tmp_path: Path) -> None:
    """Like with single reads, only the damaged message is lost, wherever the damage is."""
    damaged = store.read(TOPIC, QUEUE, 20, max_count=1).records[0]
    whole = store.read(TOPIC, QUEUE, 0, max_count=1000, max_bytes=1 << 30).records
    assert len(whole) == store.queue_range(TOPIC, QUEUE)[1]
    position = damaged.physical_offset + {"size": 3, "body": 92, "properties": damaged.size - 30}[place]
    start = position - position % SEGMENT_SIZE
    with (tmp_path / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(position - start)
        byte = file.read(1)[0]
        file.seek(position - start)
        file.write(bytes([byte ^ 0x40]))
    for expression in ("TRUE", "FALSE", "price > 90"):
        assert searched(store, expression) == read_one_by_one(store, expression)
    assert searched(store, "TRUE") == ([each.queue_offset for each in whole if each.queue_offset != 20], 1)


def test_messages_of_another_queue_are_read_one_by_one(store: MessageStore) -> None:
    """A light queue refers to records of its parent topic, which have other offsets there."""
    light = "%LMQ%$orders$left"
    for number in range(20):
        properties: Mapping[str, str] = {"price": str(number), "INNER_MULTI_DISPATCH": light}
        store.append([Message(TOPIC, 0, b"", dict(properties))])
    store.flush()
    assert store.queue_range(light, 0) == (0, 20)
    assert searched(store, "price >= 15", light, 0) == ([15, 16, 17, 18, 19], 0)


def test_a_filter_by_tags_does_not_search(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags are filtered by the consume queue, without a search."""
    monkeypatch.setattr("aerobee_broker.filters.message_filter.property_search.search", None)
    assert filter_of("a").read(store, TOPIC, QUEUE, 0, 9, "g").records == []


def test_messages_inside_batches_are_found(tmp_path: Path) -> None:
    """A record of a batch topic holds many messages, whose properties are not the record's."""
    config = StoreConfig.tiny(tmp_path, flush="async")
    with MessageStore.open(config, is_batch_topic=lambda topic: topic == "metering") as store:
        for first in range(0, 12, 3):
            body = body_of([(b"", b"price\x01%d\x02" % number) for number in range(first, first + 3)])
            store.append([Message("metering", 0, body, {"INNER_NUM": "3", "price": "99"}, sys_flag=0xC0)])
        store.flush()
        assert searched(store, "price IN ('1', '7', '8')", "metering", 0) == ([1, 7, 8], 0)
        assert searched(store, "price = 99", "metering", 0) == ([], 0)
