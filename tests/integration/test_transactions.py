"""Transactions over real gRPC; the numbers are those of the protocol's conformance items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config.transactions import TransactionsConfig
from aerobee_proto import admin_v1, v2
from tests.support.in_process_broker import METADATA, InProcessBroker, in_process_broker
from tests.support.transaction_harness import COMMIT, ROLLBACK, UNDECIDED, half

Code = v2.Code
TOPIC = "payments"
SOON = TransactionsConfig(timeout_seconds=0.2, check_interval_seconds=0.3, check_max=3)
LATER = TransactionsConfig(timeout_seconds=600.0)


@asynccontextmanager
async def running(directory: Path, transactions: TransactionsConfig) -> AsyncIterator[InProcessBroker]:
    """A broker with a topic for transactions."""
    async with in_process_broker(directory, transactions=transactions) as broker:
        created = await broker.administration.CreateTopic(
            admin_v1.CreateTopicRequest(
                topic=admin_v1.Topic(name=TOPIC, accept_message_types=[v2.MessageType.TRANSACTION])
            ),
            metadata=METADATA,
        )
        assert created.status.code in (Code.OK, Code.BAD_REQUEST)  # the topic exists after a restart
        yield broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[InProcessBroker]:
    """A broker that sends no checks during a test."""
    async with running(tmp_path / "store", LATER) as broker:
        yield broker


def metadata(client_id: str) -> Any:
    """A client's headers."""
    return (("x-mq-client-id", client_id), *METADATA[1:])


async def send(broker: InProcessBroker, *messages: v2.Message, client_id: str = "sender") -> v2.SendMessageResponse:
    response: v2.SendMessageResponse = await broker.messaging.SendMessage(
        v2.SendMessageRequest(messages=messages), metadata=metadata(client_id), timeout=5
    )
    return response


async def end(
    broker: InProcessBroker,
    transaction_id: str,
    resolution: v2.TransactionResolution.ValueType = COMMIT,
    *,
    client_id: str = "sender",
    source: v2.TransactionSource.ValueType = v2.TransactionSource.SOURCE_CLIENT,
) -> int:
    request = v2.EndTransactionRequest(
        topic=v2.Resource(name=TOPIC),
        message_id=transaction_id,
        transaction_id=transaction_id,
        resolution=resolution,
        source=source,
    )
    response = await broker.messaging.EndTransaction(request, metadata=metadata(client_id), timeout=60)
    return int(response.status.code)


async def receive(broker: InProcessBroker, wait: float = 0.3) -> list[v2.Message]:
    """Receive and acknowledge messages that arrive within `wait` seconds."""
    request = v2.ReceiveMessageRequest(
        group=v2.Resource(name="bank"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=TOPIC)),
        filter_expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*"),
        batch_size=32,
    )
    request.invisible_duration.FromSeconds(60)
    request.long_polling_timeout.FromMilliseconds(round(wait * 1000))
    call = broker.messaging.ReceiveMessage(request, metadata=metadata("bank"), timeout=10)
    messages = [response.message async for response in call if response.HasField("message")]
    for message in messages:
        entry = v2.AckMessageEntry(
            message_id=message.system_properties.message_id, receipt_handle=message.system_properties.receipt_handle
        )
        request_ack = v2.AckMessageRequest(
            group=v2.Resource(name="bank"), topic=v2.Resource(name=TOPIC), entries=[entry]
        )
        await broker.messaging.AckMessage(request_ack, metadata=metadata("bank"), timeout=60)
    return messages


async def received_ids(broker: InProcessBroker, wait: float = 0.3) -> list[str]:
    return sorted(message.system_properties.message_id for message in await receive(broker, wait))


class Producer:
    """A client with an open Telemetry stream."""

    def __init__(self, call: Any) -> None:
        self._call = call

    @classmethod
    @asynccontextmanager
    async def connected(cls, broker: InProcessBroker, client_id: str, *topics: str) -> AsyncIterator[Producer]:
        call = broker.messaging.Telemetry(metadata=metadata(client_id))
        settings = v2.Settings(
            client_type=v2.ClientType.PRODUCER,
            publishing=v2.Publishing(topics=[v2.Resource(name=topic) for topic in topics]),
        )
        await call.write(v2.TelemetryCommand(settings=settings))
        async with asyncio.timeout(60):
            assert (await call.read()).status.code == Code.OK
        try:
            yield cls(call)
        finally:
            call.cancel()

    async def asked(self) -> v2.RecoverOrphanedTransactionCommand:
        """The next check command."""
        async with asyncio.timeout(60):
            command: v2.TelemetryCommand = await self._call.read()
        assert command.HasField("recover_orphaned_transaction_command")
        return command.recover_orphaned_transaction_command

    async def asked_nothing(self, seconds: float) -> bool:
        """Whether no command arrives within `seconds`; the stream cannot be used afterwards."""
        try:
            async with asyncio.timeout(seconds):
                await self._call.read()
        except TimeoutError:
            return True
        return False


async def test_item_84_transaction_id_of_a_half_message(broker: InProcessBroker) -> None:
    """The transaction id is not empty, and equals the message id."""
    response = await send(broker, half("T1"))
    assert response.status.code == Code.OK
    [entry] = response.entries
    assert (entry.status.code, entry.message_id, entry.transaction_id) == (Code.OK, "T1", "T1")
    assert entry.offset >= 0


@pytest.mark.parametrize(("seconds", "code"), [(3600, Code.OK), (3601, Code.BAD_REQUEST)])
async def test_item_116_recovery_duration(broker: InProcessBroker, seconds: int, code: int) -> None:
    """The maximum is an hour."""
    message = half("T1")
    message.system_properties.orphaned_transaction_recovery_duration.seconds = seconds
    assert (await send(broker, message)).status.code == code


async def test_item_149_half_message_is_never_delivered(broker: InProcessBroker) -> None:
    """It is not delivered as long as it is not committed."""
    await send(broker, half("T1"))
    assert await received_ids(broker, wait=1.0) == []


async def test_item_176_commit_is_delivered_once(broker: InProcessBroker) -> None:
    """A waiting consumer gets it with id, body, tag, keys and properties, as type NORMAL."""
    await send(broker, half("T1", tag="card", keys=["k1", "k2"]))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(receive(broker, wait=5.0))
        await asyncio.sleep(0.2)
        assert await end(broker, "T1") == Code.OK
    [message] = waiting.result()
    system = message.system_properties
    assert (system.message_id, message.body, system.tag, list(system.keys)) == ("T1", b"pay", "card", ["k1", "k2"])
    assert system.message_type in (v2.MessageType.NORMAL, v2.MessageType.TRANSACTION)
    assert dict(message.user_properties) == {"currency": "EUR"}
    assert await received_ids(broker) == []


async def test_item_177_rollback_is_never_delivered(broker: InProcessBroker) -> None:
    """The other message is delivered."""
    await send(broker, half("T1"), half("T2"))
    assert await end(broker, "T1", ROLLBACK) == Code.OK
    assert await end(broker, "T2") == Code.OK
    assert await received_ids(broker) == ["T2"]
    assert await received_ids(broker) == []


async def test_item_178_blank_transaction_id(broker: InProcessBroker) -> None:
    """INVALID_TRANSACTION_ID."""
    for blank in ("", " "):
        assert await end(broker, blank) == Code.INVALID_TRANSACTION_ID


async def test_item_179_unknown_and_repeated(broker: InProcessBroker) -> None:
    """An unknown transaction is an error; repeating a decision is OK, a different one is an error."""
    assert await end(broker, "nobody knows it") == Code.INVALID_TRANSACTION_ID
    await send(broker, half("T1"))
    assert [await end(broker, "T1") for _ in range(2)] == [Code.OK, Code.OK]
    assert await end(broker, "T1", ROLLBACK) == Code.INVALID_TRANSACTION_ID
    assert await received_ids(broker) == ["T1"]


async def test_item_180_undecided(broker: InProcessBroker) -> None:
    """The answer is OK, and the transaction stays undecided."""
    await send(broker, half("T1"))
    assert await end(broker, "T1", UNDECIDED) == Code.OK
    assert await received_ids(broker) == []
    assert await end(broker, "T1") == Code.OK
    assert await received_ids(broker) == ["T1"]


async def test_items_181_and_182_orphans_are_asked_about(tmp_path: Path) -> None:
    """A producer of the topic gets the message as a consumer would, with digest, encoding and id."""
    async with (
        running(tmp_path / "store", SOON) as broker,
        Producer.connected(broker, "listed", TOPIC) as producer,
    ):
        await send(broker, half("T1", tag="card"), client_id="gone")
        command = await producer.asked()
        assert command.transaction_id == "T1"
        message, system = command.message, command.message.system_properties
        assert (message.topic.name, message.body, system.message_id, system.tag) == (TOPIC, b"pay", "T1", "card")
        assert system.body_encoding == v2.Encoding.IDENTITY
        assert (system.body_digest.type, len(system.body_digest.checksum)) == (v2.DigestType.MD5, 32)
        assert system.message_type == v2.MessageType.TRANSACTION
        assert dict(message.user_properties) == {"currency": "EUR"}


async def test_item_183_checks_repeat_and_end(tmp_path: Path) -> None:
    """Checks repeat up to the configured number, then the message is dropped."""
    async with running(tmp_path / "store", SOON) as broker, Producer.connected(broker, "sender") as producer:
        await send(broker, half("T1"))
        for _ in range(3):
            assert (await producer.asked()).transaction_id == "T1"
        assert await producer.asked_nothing(1.0)
        assert await end(broker, "T1") == Code.INVALID_TRANSACTION_ID
        assert await received_ids(broker) == []


async def test_item_184_half_messages_survive_a_restart(tmp_path: Path) -> None:
    """They are checked after the restart, once a producer is connected."""
    async with running(tmp_path / "store", LATER) as broker:
        await send(broker, half("T1"), half("T2"))
        assert await end(broker, "T2") == Code.OK
    async with running(tmp_path / "store", SOON) as broker:
        async with Producer.connected(broker, "another", TOPIC) as producer:
            assert (await producer.asked()).transaction_id == "T1"
        assert await end(broker, "T1", client_id="another") == Code.OK
        assert await received_ids(broker, wait=2.0) == ["T1", "T2"]


async def test_item_185_any_client_may_answer_a_check(broker: InProcessBroker) -> None:
    """SOURCE_SERVER_CHECK is accepted from a client that did not send the message."""
    await send(broker, half("T1"), client_id="sender")
    source = v2.TransactionSource.SOURCE_SERVER_CHECK
    assert await end(broker, "T1", client_id="another", source=source) == Code.OK
    assert await received_ids(broker) == ["T1"]


async def test_metrics_show_transactions(tmp_path: Path) -> None:
    """The metrics have RocketMQ's names, by topic."""
    async with running(tmp_path / "store", LATER) as broker:
        await send(broker, half("T1"), half("T2"), half("T3"))
        await end(broker, "T1")
        await end(broker, "T2", ROLLBACK)
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
