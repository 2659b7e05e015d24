"""Traces of messages that our own client writes, in RocketMQ's form."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aerobee_client import Message, ReceivedMessage, RetryLater, connect
from aerobee_client.message_trace import MessageTraceHooks
from aerobee_client.testing import run_broker


async def test_a_message_of_our_client_had_no_trace(tmp_path: Path) -> None:
    """Its send, and a handler that fails first, under the id of the message."""
    handled: list[int] = []
    twice = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.delivery_attempt)
        if len(handled) == 1:
            raise RetryLater(1.0)
        twice.set()

    with run_broker(tmp_path) as broker:
        async with connect(broker.endpoint) as plain:
            trace = MessageTraceHooks(plain, group="billing", topic="Traces")
            async with connect(broker.endpoint, hooks=[trace]) as client:
                await client.admin.create_topic("orders", queue_count=1)
                message = Message(topic="orders", body=b"body", tag="new", keys=("k1", "k2"))
                sent = await client.producer().send(message)
                async with client.push_consumer("billing", "orders", handle):
                    async with asyncio.timeout(60):
                        await twice.wait()
                await trace.drain()
            assert trace.dropped == 0
            found: list[ReceivedMessage] = []
            async with plain.simple_consumer("reader", "Traces") as reader, asyncio.timeout(60):
                while len(found) < 5:
                    found += await reader.receive()
    entries = [record.body.decode().removesuffix("\x02").split("\x01") for record in found]
    assert all(record.keys == (sent.message_id, "k1", "k2") for record in found)
    published, *consumed = sorted(entries, key=lambda fields: fields[0])
    assert published[3:10] == ["billing", "orders", sent.message_id, "new", "k1 k2", "", "4"]
    assert (published[0], published[-1], len(published)) == ("Pub", "true", 14)
    after = [fields for fields in consumed if fields[0] == "SubAfter"]
    before = [fields for fields in consumed if fields[0] == "SubBefore"]
    assert sorted(fields[6] for fields in before) == ["0", "1"]
    assert sorted((fields[4], fields[6]) for fields in after) == [("false", "3"), ("true", "0")]
