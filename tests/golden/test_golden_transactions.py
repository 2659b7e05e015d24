"""Transactions that Apache RocketMQ began can be completed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from aerobee_broker.clients.registry import ClientRegistry
from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_broker.transactions.half_messages import HALF_TOPIC, OP_TOPIC, Outcome
from aerobee_broker.transactions.producers import Producers
from aerobee_store import MessageStore
from aerobee_store.records.record import TransactionType
from aerobee_store.testing import ManualClock
from tests.golden.test_golden_store import config_of
from tests.support import golden
from tests.support.saved_tables import saved


async def test_half_messages_of_rocketmq(tmp_path: Path) -> None:
    """Five of six half messages are settled by ops; the sixth is pending and can be committed.

    One commit lacks commit bits, and one op settles two half messages. The sixth was checked and stored again, and
    still counts as one transaction.
    """
    case = golden.load("kinds", tmp_path)
    halves = [message for message in case.messages if message.topic == HALF_TOPIC]
    last = halves[-1]
    clock = ManualClock(now_ms=last.store_timestamp + 1000)
    config = BrokerConfig(store=config_of(case))
    with MessageStore.open(config.store, clock=clock) as store:
        tables = Tables.load(Settings(config), clock, store.file_system, store.in_disk_thread)
        topic, queue_id = last.properties["REAL_TOPIC"], int(last.properties["REAL_QID"])
        saved(tables.topics).create(TopicConfig.of_type(topic, queue_count=queue_id + 1))
        producers, timer = Producers(ClientRegistry(clock)), Timer(store, clock, config.timer)
        transactions = Transactions(store, tables, clock, Settings(config), producers, timer)
        transactions.open()
        assert transactions.pending_count == 1
        services = [asyncio.create_task(service.run()) for service in (store, transactions)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            committed = await transactions.end(topic, last.properties["UNIQ_KEY"], Outcome.COMMIT)
        assert committed is not None
        final = store.record_at(committed.place.physical_offset)
        assert (final.topic, final.queue_id, final.body) == (topic, queue_id, last.body)
        assert final.prepared_transaction_offset == last.physical_offset
        assert final.transaction_type is TransactionType.COMMIT
        low, high = store.queue_range(OP_TOPIC, 0)
        ops = store.read(OP_TOPIC, 0, low, max_count=high - low).records
        settled = {int(offset) for op in ops for offset in op.body.split(b",")}
        assert settled == {half.queue_offset for half in halves}
        for service in services:
            service.cancel()
        for service in services:
            with suppress(asyncio.CancelledError):
                await service
