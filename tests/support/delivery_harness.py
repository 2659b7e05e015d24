"""A store, its tables and deliveries in one process without gRPC, for tests of delivery."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.receive_plan import ReceiveRequest
from aerobee_broker.delivery.receive.selection import DeliveredMessage
from aerobee_broker.filters.message_filter import MessageFilter
from aerobee_broker.processors.acknowledge import AcknowledgeProcessor
from aerobee_broker.processors.receive import ReceiveProcessor
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig
from aerobee_store import MessageStore, StoreConfig
from aerobee_store.records.properties import SHARDING_KEY, TAGS, UNIQ_KEY
from aerobee_store.records.record import Message
from aerobee_store.testing import ManualClock

TOPIC = "orders"
GROUP = "billing"
START_MS = 1_700_000_000_000
Start = Callable[..., Awaitable["Harness"]]


class Harness:
    """One run of a broker on a directory; `crash` and `restart` return the next run."""

    def __init__(self, directory: Path, clock: ManualClock, **delivery: Any) -> None:
        self.directory = directory
        self.clock = clock
        self.settings = delivery
        self.connected: set[str] = set()
        self.config = BrokerConfig(
            store=StoreConfig(
                directory=directory,
                segment_size=1 << 20,
                queue_file_size=500 * 20,
                index_slot_count=50,
                index_entry_count=1000,
                derived_flush_interval_seconds=0.05,
                disk_force_clean_ratio=1.0,  # tests must not depend on the disk usage of the machine
                disk_full_ratio=1.0,
            ),
            delivery=DeliveryConfig(**{"client_return_seconds": 30.0, **delivery}),
        )
        self.store = MessageStore.open(self.config.store, clock=clock)
        self.tables = Tables.load(Settings(self.config), clock, self.store.file_system, self.store.in_disk_thread)
        self.deliveries = Deliveries(self.store, self.tables, clock, Settings(self.config), connected=self.connected)
        self.counters = counters = BrokerCounters()
        self.receive_processor = ReceiveProcessor(Settings(self.config), self.tables, self.deliveries, counters, clock)
        self.acknowledge_processor = AcknowledgeProcessor(Settings(self.config), self.deliveries, counters)
        self._services: list[asyncio.Task[None]] = []
        self._message_count = 0
        self._next: Harness | None = None  # the run after this one

    @classmethod
    async def start(cls, directory: Path, clock: ManualClock, **delivery: Any) -> Harness:
        """Open, recover and run, with the topic and the group created."""
        harness = cls(directory, clock, **delivery)
        if not len(harness.tables.groups):
            harness.tables.topics.create(TopicConfig.of_type(TOPIC, queue_count=2))
            harness.tables.groups.create(GroupConfig(name=GROUP))
            harness.tables.groups.create(GroupConfig(name="audit"))
            await harness.tables.save()
        harness.deliveries.open()
        loop = asyncio.get_running_loop()
        harness._services = [loop.create_task(service.run()) for service in (harness.store, harness.deliveries)]
        await asyncio.sleep(0)
        return harness

    async def crash(self) -> Harness:
        """Start again from what `kill -9` leaves: a copy of the current files."""
        copy = self.directory.with_name(self.directory.name + "-next")
        shutil.copytree(self.directory, copy, copy_function=_copy)
        await self._end()
        self.store.close()
        return await self._start_next(copy)

    async def restart(self) -> Harness:
        """Stop cleanly, and start again."""
        await self.stop()
        return await self._start_next(self.directory)

    async def _start_next(self, directory: Path) -> Harness:
        self._next = await Harness.start(directory, self.clock, **self.settings)
        return self._next

    async def stop(self) -> None:
        """End the last run: write a snapshot, save the tables, and close."""
        if self._next is not None:
            await self._next.stop()
        elif self.store.state != "closed":
            await self.deliveries.close()
            await self.tables.save()
            await self._end()
            self.store.close()

    async def _end(self) -> None:
        for service in self._services:
            service.cancel()
        for service in self._services:
            with suppress(asyncio.CancelledError):
                await service

    async def send(
        self,
        *bodies: str,
        tag: str | None = None,
        queue_id: int = 0,
        topic: str = TOPIC,
        message_group: str | None = None,
    ) -> None:
        """Store messages; they can be received once this returns."""
        messages = []
        for body in bodies:
            self._message_count += 1
            properties = {UNIQ_KEY: f"id-{body}"} | ({TAGS: tag} if tag else {})
            if message_group:
                properties[SHARDING_KEY] = message_group
            messages.append(Message(topic=topic, queue_id=queue_id, body=body.encode(), properties=properties))
        appended = self.store.append(messages)
        await self.store.wait_stored(appended[-1].end)
        assert self.store.queue_range(topic, queue_id)[1] > appended[-1].queue_offset

    async def receive(
        self,
        count: int = 32,
        *,
        seconds: float | None = 60.0,
        wait: float = 0.0,
        client_id: str = "client",
        group: str = GROUP,
        topic: str = TOPIC,
        tags: frozenset[str] | None = None,
        attempt_id: str = "",
        queue_id: int | None = None,
    ) -> list[DeliveredMessage]:
        """Receive messages; `seconds` None means auto-renew."""
        self.connected.add(client_id)
        request = ReceiveRequest(
            topic=topic,
            group=group,
            client_id=client_id,
            count=count,
            invisible_ms=None if seconds is None else round(seconds * 1000),
            wait_seconds=wait,
            wanted=MessageFilter(tags),
            attempt_id=attempt_id,
            queue_id=queue_id,
        )
        return await self.deliveries.receive(request)

    async def acknowledge(self, *messages: DeliveredMessage, group: str = GROUP, topic: str = TOPIC) -> list[bool]:
        """Whether each message's acknowledgement was accepted."""
        handles = [message.receipt_handle for message in messages]
        return [error is None for error in await self.deliveries.acknowledge(topic, group, handles)]

    async def advance(self, seconds: float) -> None:
        """Move the clock and let the timer see it."""
        self.clock.advance(seconds)
        self.deliveries.wake_timer()
        for _ in range(3):
            await asyncio.sleep(0)

    def client(self, client_id: str = "client") -> Client:
        """A client as the gRPC services know it."""
        self.connected.add(client_id)
        return Client(client_id)


def _copy(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # a table's temporary file, renamed meanwhile by the disk thread
        shutil.copy2(source, target)


def bodies(messages: list[DeliveredMessage]) -> list[str]:
    """The received bodies, sorted: standard groups have no guaranteed order."""
    return sorted(message.record.body.decode() for message in messages)
