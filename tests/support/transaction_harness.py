"""A store with an in-memory disk, tables, sends and transactions, without gRPC, for tests of transactions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.config import BrokerConfig, Settings, TopicsConfig
from aerobee_broker.config.transactions import TransactionsConfig
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.messages.admission import Admission
from aerobee_broker.processors.sending.send import SendProcessor
from aerobee_broker.processors.statuses import status_of
from aerobee_broker.processors.transaction import TransactionProcessor
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_broker.transactions.producers import Producers
from aerobee_proto import v2
from aerobee_store import MessageStore, Record
from aerobee_store.config import FlushMode, StoreConfig
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.saved_tables import saved

TOPIC = "payments"
COMMIT = v2.TransactionResolution.COMMIT
ROLLBACK = v2.TransactionResolution.ROLLBACK
UNDECIDED = v2.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


class TransactionHarness:
    """One run of a broker on a disk; `crash` and `restart` return the next run."""

    def __init__(
        self,
        directory: Path,
        disk: MemoryFileSystem | None = None,
        clock: ManualClock | None = None,
        *,
        flush: FlushMode = "sync",
        **transactions: Any,
    ) -> None:
        self.directory = directory
        self.settings = transactions
        self.flush = flush
        self.clock = clock or ManualClock()
        self.disk = disk or MemoryFileSystem(clock=self.clock)
        (directory / "config").mkdir(parents=True, exist_ok=True)  # the tables check this real path
        self.config = BrokerConfig.tiny(
            directory,
            store=StoreConfig.tiny(directory, flush=flush),
            topics=TopicsConfig(auto_create=False),
            transactions=TransactionsConfig(**transactions),
        )
        self.store = MessageStore.open(self.config.store, file_system=self.disk, clock=self.clock)
        if not self.disk.exists(directory / "config"):
            self.disk.make_directory(directory / "config")
        self.tables = Tables.load(Settings(self.config), self.clock, self.disk, self.store.in_disk_thread)
        self.clients = ClientRegistry(self.clock)
        self.counters = BrokerCounters()
        timer = Timer(self.store, self.clock, self.config.timer)
        producers = Producers(self.clients)
        self.transactions = Transactions(self.store, self.tables, self.clock, Settings(self.config), producers, timer)
        self.clients.producer_listeners.append(self.transactions.producer_ready)
        settings = Settings(self.config)
        admission = Admission(settings, self.tables)
        self._send = SendProcessor(settings, self.store, admission, self.counters, self.clock, self.transactions, timer)
        self._end = TransactionProcessor(self.transactions, self.counters)
        self._services: list[asyncio.Task[None]] = []

    async def start(self) -> TransactionHarness:
        """Run, with the topics created."""
        for topic in (
            TopicConfig.of_type(TOPIC, TopicMessageType.TRANSACTION, queue_count=2),
            TopicConfig.of_type("mixed", TopicMessageType.MIXED, queue_count=1),
            TopicConfig.of_type("normal", queue_count=1),
        ):
            if topic.name not in self.tables.topics:
                saved(self.tables.topics).create(topic)
        self.transactions.open()
        loop = asyncio.get_running_loop()
        self._services = [loop.create_task(service.run()) for service in (self.store, self.transactions)]
        await self.settle()
        return self

    async def crash(self, disk: MemoryFileSystem | None = None) -> TransactionHarness:
        """Start again from what `kill -9` leaves, or from another disk."""
        disk = disk or self.disk.kill()
        await self.abandon()
        return await TransactionHarness(self.directory, disk, self.clock, flush=self.flush, **self.settings).start()

    async def restart(self) -> TransactionHarness:
        """Stop cleanly, and start again."""
        await self.stop()
        return await TransactionHarness(
            self.directory, self.disk, self.clock, flush=self.flush, **self.settings
        ).start()

    async def stop(self) -> None:
        """Record offsets, save the tables, and close."""
        if self.store.state != "closed":
            await self.transactions.close()
            await self.tables.save()
            await self.abandon()

    async def abandon(self) -> None:
        """End the services and close the store; the tables stay as last saved."""
        for service in self._services:
            service.cancel()
        for service in self._services:
            with suppress(asyncio.CancelledError):
                await service
        self._services = []
        self.store.close()

    @property
    def safe_position(self) -> int:
        """The physical offset up to which messages have the safety that the flush mode guarantees."""
        return self.store.positions[2 if self.flush == "sync" else 1]

    async def settle(self) -> None:
        """Let the services run; what they stored is readable when this returns."""
        for _ in range(5):
            await asyncio.sleep(0)
        await self.store.wait_stored(self.store.positions[0], durable=True)

    # --- what clients do --------------------------------------------------------------------------------------

    def producer(self, client_id: str, *topics: str, connected: bool = True) -> Client:
        """A producer that lists these topics in its settings, with a Telemetry stream."""
        client = self.clients.seen(client_id)
        client.client_type = v2.ClientType.PRODUCER
        client.topics = frozenset(topics)
        if connected:
            self.clients.open_stream(client)
            self.clients.introduced(client)
        return client

    async def send(self, *message_ids: str, topic: str = TOPIC, client_id: str = "sender", **system: Any) -> list[int]:
        """Send transactional messages in one request; returns their offsets in the queue of half messages."""
        made = [half(message_id, topic, **system) for message_id in message_ids]
        async with asyncio.timeout(60):
            response = await self._send.process(v2.SendMessageRequest(messages=made), self.clients.seen(client_id))
        assert [entry.transaction_id for entry in response.entries] == list(message_ids)
        return [entry.offset for entry in response.entries]

    async def send_code(self, *messages: v2.Message) -> int:
        """The code in the answer to a send."""
        try:
            async with asyncio.timeout(60):
                response = await self._send.process(
                    v2.SendMessageRequest(messages=messages), self.clients.seen("sender")
                )
        except Exception as error:
            return status_of(error, "SendMessage").code
        return response.status.code

    async def end(
        self,
        transaction_id: str,
        resolution: v2.TransactionResolution.ValueType = COMMIT,
        *,
        topic: str = TOPIC,
        client_id: str = "sender",
    ) -> int:
        """The code in the answer to EndTransaction."""
        request = v2.EndTransactionRequest(
            topic=v2.Resource(name=topic),
            message_id=transaction_id,
            transaction_id=transaction_id,
            resolution=resolution,
            source=v2.TransactionSource.SOURCE_CLIENT,
        )
        try:
            async with asyncio.timeout(60):
                response = await self._end.end(request, self.clients.seen(client_id))
        except Exception as error:
            return status_of(error, "EndTransaction").code
        return response.status.code

    async def advance(self, seconds: float) -> None:
        """Move the clock and let the timer see it; what it stored is readable when this returns."""
        self.clock.advance(seconds)
        self.transactions.wake_timer()
        await self.settle()

    def asked(self, client: Client) -> list[v2.RecoverOrphanedTransactionCommand]:
        """Take the commands that wait in the client's stream."""
        assert client.stream is not None
        commands = []
        while client.stream.backlog:
            read = client.stream.next()
            try:
                read.send(None)
            except StopIteration as done:
                command = v2.TelemetryCommand.FromString(done.value)
                commands.append(command.recover_orphaned_transaction_command)
        return commands

    # --- what is stored ---------------------------------------------------------------------------------------

    def stored(self, topic: str = TOPIC) -> list[Record]:
        """All messages of a topic, including system topics."""
        records = []
        for queue_id in self.store.queues().get(topic, []):
            low, high = self.store.queue_range(topic, queue_id)
            records += self.store.read(topic, queue_id, low, max_count=max(high - low, 1)).records
        return sorted(records, key=lambda record: record.physical_offset)

    def ids(self, topic: str = TOPIC) -> list[str | None]:
        """The message ids of those."""
        return [record.unique_key for record in self.stored(topic)]


def half(message_id: str, topic: str = TOPIC, body: bytes = b"pay", **system: Any) -> v2.Message:
    """A transactional message as a producer sends it."""
    return v2.Message(
        topic=v2.Resource(name=topic),
        body=body,
        system_properties=v2.SystemProperties(message_id=message_id, message_type=v2.MessageType.TRANSACTION, **system),
        user_properties={"currency": "EUR"},
    )
