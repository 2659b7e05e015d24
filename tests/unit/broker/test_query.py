"""Queries with more messages than an answer can hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.limits.loop_share import LoopShare
from aerobee_broker.processors import query
from aerobee_broker.processors.query import QueryProcessor
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig
from aerobee_proto import v2
from aerobee_store import Message, MessageStore, Record
from aerobee_store.message_reader import MessageReader
from aerobee_store.queues import index_file
from aerobee_store.records.properties import index_hash
from tests.support.saved_tables import saved

COUNT = 20
SLOT_COUNT = BrokerConfig.tiny(Path()).store.index_slot_count


@pytest.fixture
async def processor(tmp_path: Path) -> AsyncIterator[QueryProcessor]:
    """Twenty messages of 1,000 bytes with one key, in two queues."""
    config = BrokerConfig.tiny(tmp_path)
    with MessageStore.open(config.store) as store:
        tables = Tables.load(Settings(config), store.clock, store.file_system, store.in_disk_thread)
        saved(tables.topics).create(TopicConfig.of_type("orders", queue_count=2))
        for number in range(COUNT):
            store.append(
                [Message("orders", number % 2, b"%04d" % number * 250, {"KEYS": "k", "UNIQ_KEY": str(number)})]
            )
        store.flush()
        deliveries = Deliveries(store, tables, store.clock, Settings(config))
        yield QueryProcessor(store, tables, deliveries)
        await asyncio.sleep(0)


def numbers(response: v2.ListMessageResponse) -> list[int]:
    return [int(message.system_properties.message_id) for message in response.messages]


async def test_a_query_by_key_keeps_the_newest_that_fit(
    processor: QueryProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older messages above the size limit are omitted; at least one is returned."""
    request = v2.ListMessageRequest(topic=v2.Resource(name="orders"), message_key="k", max_message_nums=64)
    assert numbers(await processor.process(request, Client("test"))) == list(range(COUNT))
    monkeypatch.setattr(query, "ANSWER_SIZE_MAX", 5000)
    assert numbers(await processor.process(request, Client("test"))) == [16, 17, 18, 19]
    monkeypatch.setattr(query, "ANSWER_SIZE_MAX", 10)
    assert numbers(await processor.process(request, Client("test"))) == [19]


async def test_a_query_by_time_continues_after_a_full_answer(
    processor: QueryProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is returned once when the scroll ids are followed."""
    monkeypatch.setattr(query, "ANSWER_SIZE_MAX", 3500)
    request = v2.ListMessageRequest(topic=v2.Resource(name="orders"), max_message_nums=64)
    found: list[int] = []
    for _ in range(COUNT):
        response = await processor.process(request, Client("test"))
        assert len(response.messages) <= 4
        found += numbers(response)
        if not response.scroll_id:
            break
        request.scroll_id = response.scroll_id
    assert found == [*range(0, COUNT, 2), *range(1, COUNT, 2)]


async def test_a_search_in_the_index_takes_many_steps_of_the_event_loop(
    processor: QueryProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of other keys in the slot are read a few at a time, whether the key exists or not."""
    monkeypatch.setattr(index_file, "LOOKED_PER_STEP", 4)
    looked = [0]  # entries read in each step
    unpack = index_file.ENTRY.unpack_from

    class Entry:
        def unpack_from(self, *arguments: Any) -> tuple[Any, ...]:
            looked[-1] += 1
            return unpack(*arguments)

    async def pause(self: LoopShare, started: float, *, until: float | None = None) -> None:
        looked.append(0)

    monkeypatch.setattr(index_file, "ENTRY", Entry())
    monkeypatch.setattr(LoopShare, "pause", pause)
    slot = index_hash("orders", "k") % SLOT_COUNT
    other = next(key for key in map(str, range(1000, 2000)) if index_hash("orders", key) % SLOT_COUNT == slot)
    for key, expected in (("k", list(range(COUNT))), (other, [])):
        looked[:] = [0]
        request = v2.ListMessageRequest(topic=v2.Resource(name="orders"), message_key=key, max_message_nums=64)
        assert numbers(await processor.process(request, Client("test"))) == expected
        assert sum(looked) >= COUNT
        assert max(looked) <= 4


async def test_no_more_is_read_than_an_answer_holds(processor: QueryProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that do not fit into the answer are not read from the log."""
    monkeypatch.setattr(query, "ANSWER_SIZE_MAX", 3500)
    read: list[int] = []
    record_at = MessageReader.record_at

    def counted(self: MessageReader, physical_offset: int) -> Record:
        read.append(physical_offset)
        return record_at(self, physical_offset)

    monkeypatch.setattr(MessageReader, "record_at", counted)
    request = v2.ListMessageRequest(topic=v2.Resource(name="orders"), message_key="k", max_message_nums=64)
    assert numbers(await processor.process(request, Client("test"))) == [17, 18, 19]
    assert len(read) <= 4
