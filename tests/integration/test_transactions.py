"""The metrics of transactions."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, message
from tests.support.in_process_broker import in_process_broker

TOPIC = "payments"


async def test_metrics_show_transactions(tmp_path: Path) -> None:
    """The metrics have RocketMQ's names, by topic."""
    async with in_process_broker(tmp_path / "store") as broker:
        client = RawClient(broker.channel)
        await client.create_topic(TOPIC, v2.MessageType.TRANSACTION)
        halves = [message(TOPIC, message_type=v2.MessageType.TRANSACTION) for _ in range(3)]
        committed, rolled_back, _ = await client.sent(*halves)
        await client.end_transaction(TOPIC, committed, v2.TransactionResolution.COMMIT)
        await client.end_transaction(TOPIC, rolled_back, v2.TransactionResolution.ROLLBACK)
        host, _, port = broker.metrics.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(60):
            text = (await reader.read()).decode()
        writer.close()
    values = {line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if f'topic="{TOPIC}"' in line}
    wanted = {
        "rocketmq_commit_messages_total": 1.0,
        "rocketmq_rollback_messages_total": 1.0,
        "rocketmq_half_messages": 1.0,
        "rocketmq_finish_message_latency_count": 1.0,
        "rocketmq_messages_in_total": 1.0,
    }
    assert wanted.items() <= values.items()
