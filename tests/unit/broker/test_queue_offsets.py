"""QueueOffsets looks up many queues by time, a few in each step of the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.limits import loop_share
from aerobee_broker.processors.records.offsets import OffsetsProcessor
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig
from aerobee_proto import records_v1, v2
from aerobee_store import Message, MessageStore
from tests.support.saved_tables import saved

QUEUES = 12


async def test_other_tasks_run_between_two_lookups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run when a turn is over. A queue that is requested twice is looked up once."""
    monkeypatch.setattr(loop_share, "_TURN_SECONDS", -1.0)
    config = BrokerConfig.tiny(tmp_path)
    with MessageStore.open(config.store) as store:
        tables = Tables.load(Settings(config), store.clock, store.file_system, store.in_disk_thread)
        saved(tables.topics).create(TopicConfig.of_type("orders", queue_count=QUEUES))
        for queue_id in range(QUEUES):
            store.append([Message("orders", queue_id, b"x", {})] * queue_id)
        store.flush()
        looked_up: list[int] = []
        offset_by_time = store.offset_by_time

        def counted(topic: str, queue_id: int, *arguments: Any) -> int:
            looked_up.append(queue_id)
            return offset_by_time(topic, queue_id, *arguments)

        monkeypatch.setattr(store, "offset_by_time", counted)
        asked = records_v1.QueueOffsetsRequest.TopicQueues(
            topic=v2.Resource(name="orders"), queue_ids=[*range(QUEUES), *range(QUEUES)]
        )
        asked.timestamp.FromMilliseconds(1)
        request = records_v1.QueueOffsetsRequest(topics=[asked], include_unflushed=True)
        task = asyncio.create_task(OffsetsProcessor(Settings(config), store, tables).process(request, Client("test")))
        per_turn = []
        while not task.done():
            before = len(looked_up)
            await asyncio.sleep(0)
            per_turn.append(len(looked_up) - before)
        [topic] = (await task).topics
        assert [queue.max_queue_offset for queue in topic.queues] == [*range(QUEUES), *range(QUEUES)]
        assert looked_up == list(range(QUEUES))
        assert max(per_turn) == 1
