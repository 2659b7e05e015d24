"""Items 176 to 185: messages that become visible only after their commit."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from aerobee_proto import v2
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.conformance.conftest import Traveller
from tests.conformance.raw_client import RawClient, Telemetry, duration, message, producer_settings
from tests.support.in_process_broker import in_process_broker

Code = v2.Code
COMMIT, ROLLBACK = v2.TransactionResolution.COMMIT, v2.TransactionResolution.ROLLBACK
UNKNOWN = v2.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


async def half(client: RawClient, topic: str, body: str = "hello", **system: Any) -> v2.SendResultEntry:
    """A half message, sent to a new topic for transactions."""
    await client.create_topic(topic, v2.MessageType.TRANSACTION)
    [entry] = await client.sent(message(topic, body, message_type=v2.MessageType.TRANSACTION, **system))
    return entry


async def check(stream: Telemetry, seconds: float = 10) -> v2.RecoverOrphanedTransactionCommand:
    """The next command of the stream, which must be a check."""
    command = await stream.read(seconds)
    assert command.WhichOneof("command") == "recover_orphaned_transaction_command"
    found: v2.RecoverOrphanedTransactionCommand = command.recover_orphaned_transaction_command
    return found


async def test_176_commit(client: RawClient, topic: str, group: str) -> None:
    """It is delivered once, with all that it was sent with and a type that clients accept."""
    entry = await half(client, topic, tag="card", keys=["k1", "k2"], properties={"currency": "EUR"})
    waiting = asyncio.create_task(client.other().receive(topic, group, wait=19))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert await client.end_transaction(topic, entry, COMMIT) == Code.OK
    received = (await waiting).one
    assert received.body == b"hello"
    assert received.topic.name == topic
    assert dict(received.user_properties) == {"currency": "EUR"}
    system = received.system_properties
    assert (system.message_id, system.tag, list(system.keys)) == (entry.message_id, "card", ["k1", "k2"])
    assert system.message_type in (v2.MessageType.NORMAL, v2.MessageType.TRANSACTION)
    assert system.delivery_attempt == 1
    assert (await client.receive(topic, group, wait=0.1)).code == Code.MESSAGE_NOT_FOUND


async def test_177_rollback(traveller: Traveller, topic: str, group: str) -> None:
    """It is never delivered or checked."""
    client = traveller.client
    async with client.telemetry() as stream:
        await stream.told(**producer_settings(topic))
        entry = await half(client, topic)
        assert await client.end_transaction(topic, entry, ROLLBACK) == Code.OK
        for _ in range(5):
            await traveller.clock.advance(30)
            await client.heartbeat(kind=v2.ClientType.PRODUCER)
        with pytest.raises(TimeoutError):
            await stream.read(0.3)
    assert (await client.receive(topic, group, wait=0.1)).code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("transaction_id", ["", "  "], ids=repr)
async def test_178_blank_id(client: RawClient, topic: str, transaction_id: str) -> None:
    """INVALID_TRANSACTION_ID."""
    entry = await half(client, topic)
    entry.transaction_id = transaction_id
    assert await client.end_transaction(topic, entry, COMMIT) == Code.INVALID_TRANSACTION_ID


async def test_179_unknown_and_repeated_transactions(client: RawClient, topic: str, group: str) -> None:
    """An unknown transaction is an error.

    Repeating the decision is OK and delivers nothing twice; a different one is an error.
    """
    entry = await half(client, topic)
    nobody = v2.SendResultEntry(message_id="nobody", transaction_id="nobody")
    assert await client.end_transaction(topic, nobody, COMMIT) == Code.INVALID_TRANSACTION_ID
    for _ in range(2):
        assert await client.end_transaction(topic, entry, COMMIT) == Code.OK
    assert await client.end_transaction(topic, entry, ROLLBACK) == Code.INVALID_TRANSACTION_ID
    assert (await client.receive(topic, group, wait=5)).bodies == ["hello"]
    assert (await client.receive(topic, group, wait=0.1)).code == Code.MESSAGE_NOT_FOUND


async def test_180_no_resolution(client: RawClient, topic: str, group: str) -> None:
    """OK, and it can still be committed."""
    entry = await half(client, topic)
    assert await client.end_transaction(topic, entry, UNKNOWN) == Code.OK
    assert (await client.receive(topic, group, wait=0.1)).code == Code.MESSAGE_NOT_FOUND
    assert await client.end_transaction(topic, entry, COMMIT) == Code.OK
    assert (await client.receive(topic, group, wait=5)).bodies == ["hello"]


@pytest.mark.parametrize("immunity", [None, 60])
async def test_181_orphan(traveller: Traveller, topic: str, group: str, immunity: int | None) -> None:
    """A producer of the topic is asked once the message's recovery duration is over, by default 6 s."""
    sender, producer, consumer = traveller.client, traveller.client.other(), traveller.client.other()
    fields: dict[str, Any] = {} if immunity is None else {"orphaned_transaction_recovery_duration": duration(immunity)}
    async with producer.telemetry() as stream:
        await stream.told(**producer_settings(topic))
        entry = await half(sender, topic, **fields)
        await sender.goodbye()
        await traveller.clock.advance((immunity or 6) - 2)
        with pytest.raises(TimeoutError):
            await stream.read(0.2)
    async with producer.telemetry() as stream:
        await stream.told(**producer_settings(topic))
        await traveller.clock.advance(35)
        command = await check(stream)
        assert command.transaction_id == entry.transaction_id
        source = v2.TransactionSource.SOURCE_SERVER_CHECK
        assert await producer.end_transaction(topic, entry, COMMIT, source=source) == Code.OK
    assert (await consumer.receive(topic, group, wait=5)).bodies == ["hello"]


async def test_182_message_of_a_check(traveller: Traveller, topic: str) -> None:
    """It is as complete as in a delivery: clients decode both alike."""
    client = traveller.client
    async with client.telemetry() as stream:
        await stream.told(**producer_settings(topic))
        entry = await half(client, topic, "checked", tag="t", keys=["k"], properties={"currency": "EUR"})
        await traveller.clock.advance(35)
        command = await check(stream)
    asked, system = command.message, command.message.system_properties
    assert (asked.topic.name, asked.body, dict(asked.user_properties)) == (topic, b"checked", {"currency": "EUR"})
    assert (system.message_id, system.tag, list(system.keys)) == (entry.message_id, "t", ["k"])
    assert system.message_type == v2.MessageType.TRANSACTION
    assert system.body_encoding == v2.Encoding.IDENTITY
    assert system.body_digest.type == v2.DigestType.MD5
    assert system.body_digest.checksum == hashlib.md5(b"checked").hexdigest().upper()
    assert system.HasField("born_timestamp")


async def test_183_checks_end(traveller: Traveller, topic: str, group: str) -> None:
    """They repeat up to a limit; then the message is dropped, and can no longer be committed."""
    client = traveller.client
    checks = 0
    async with client.telemetry() as stream:
        await stream.told(**producer_settings(topic))
        entry = await half(client, topic)
        silent = 0
        while silent < 3:
            await traveller.clock.advance(31)
            await client.heartbeat(kind=v2.ClientType.PRODUCER)
            try:
                assert (await check(stream, 0.3)).transaction_id == entry.transaction_id
            except TimeoutError:
                silent += 1
            else:
                checks += 1
                silent = 0
            assert checks <= 20, "it asks for ever"
    assert 2 <= checks <= 16
    assert await client.end_transaction(topic, entry, COMMIT) != Code.OK
    assert (await client.receive(topic, group, wait=0.1)).code == Code.MESSAGE_NOT_FOUND


async def test_184_restart(tmp_path: Path, topic: str, group: str) -> None:
    """A half message is kept, checked again, and can be committed."""
    clock = TravellingClock()
    async with in_process_broker(tmp_path, clock=clock) as broker:
        entry = await half(RawClient(broker.channel), topic)
    async with in_process_broker(tmp_path, clock=clock) as broker:
        client = RawClient(broker.channel)
        assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
        async with client.telemetry() as stream:
            await stream.told(**producer_settings(topic))
            await clock.advance(35)
            assert (await check(stream)).transaction_id == entry.transaction_id
        assert await client.end_transaction(topic, entry, COMMIT) == Code.OK
        assert (await client.receive(topic, group, wait=5)).bodies == ["hello"]


async def test_185_another_client(client: RawClient, topic: str, group: str) -> None:
    """Any client that was asked may answer a check, not only the sender."""
    entry = await half(client, topic)
    source = v2.TransactionSource.SOURCE_SERVER_CHECK
    assert await client.other().end_transaction(topic, entry, COMMIT, source=source) == Code.OK
    assert (await client.receive(topic, group, wait=5)).bodies == ["hello"]
