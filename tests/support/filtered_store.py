"""A store with filter bitmaps, and the reads of SQL consumers, without a broker around them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.filters.consumer_filters import ConsumerFilters
from aerobee_broker.filters.message_filter import filter_of
from aerobee_store import Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.records.record import Draft
from aerobee_store.testing import ManualClock, MemoryFileSystem
from tests.support.stored_messages import DIRECTORY

FILE = DIRECTORY / "config" / "consumerFilter.json"
CONFIG = replace(
    StoreConfig.tiny(DIRECTORY),
    segment_size=256 << 10,
    queue_file_size=500 * 20,
    queue_extensions=True,
    queue_extension_file_size=4096,
)


class FilteredStore:
    """One run of a store on a directory in memory; `restart`, `kill` and `power_cut` return the next run."""

    def __init__(
        self,
        disk: MemoryFileSystem | None = None,
        clock: ManualClock | None = None,
        *,
        on: bool = True,
        config: StoreConfig = CONFIG,
        **delivery: Any,
    ) -> None:
        """`on`: whether new messages get bitmaps. `delivery`: settings."""
        self.clock = clock or ManualClock()
        self.disk = disk or MemoryFileSystem(clock=self.clock)
        self.delivery = delivery
        self.store = MessageStore.open(config, file_system=self.disk, clock=self.clock)
        self.filters = ConsumerFilters(self.store, self.clock, DeliveryConfig(**delivery))
        self.is_on = on
        if on:
            self.filters.open()

    def append(self, *properties: Mapping[str, str], topic: str = "orders") -> int:
        """Append a message with each of these properties; return the physical offset of the first."""
        messages = [Message(topic, 0, b"x" * 100, dict(each)) for each in properties]
        begin = self.store.append(messages)[0].physical_offset
        self.store.flush()
        return begin

    def append_records(self, *properties: Mapping[str, str], topic: str = "orders") -> None:
        """The same in store layout, all together."""
        drafts = [
            Draft(Message(topic, 0, b"x" * 100, dict(each)), store_host=("127.0.0.1", 1), property_crc=True)
            for each in properties
        ]
        data = b"".join(draft.encode_unplaced() for draft in drafts)
        self.store.append_records(topic, 0, RecordBatch.parse(data, base_physical_offset=None, placed=False))
        self.store.flush()

    def read(self, expression: str, group: str = "billing", topic: str = "orders", offset: int = 0) -> list[int]:
        """The queue offsets that a consumer gets from `offset` to the end of the queue."""
        found: list[int] = []
        wanted = filter_of(expression, is_sql=True)
        while True:
            result = wanted.read(self.store, topic, 0, offset, 7, group)
            assert result.lost == 0
            assert len(result.records) <= 7
            if result.next_offset <= offset:
                return found
            found += [record.queue_offset for record in result.records]
            offset = result.next_offset

    def records_read(self, expression: str, group: str = "billing", topic: str = "orders") -> int:
        """The number of records that such a read takes from the log."""
        before = self.store.stats.messages_read
        self.read(expression, group, topic)
        return self.store.stats.messages_read - before

    def save(self) -> None:
        """Save the subscriptions, as from time to time."""
        asyncio.run(self.filters.save())

    def close(self) -> None:
        """Stop in the order of a broker."""
        if self.is_on:
            asyncio.run(self.filters.close())
        self.store.close()

    def next(self, disk: MemoryFileSystem | None = None, *, on: bool = True, **delivery: Any) -> FilteredStore:
        """The next run on this directory."""
        return FilteredStore(disk or self.disk, self.clock, on=on, **(delivery or self.delivery))

    def restart(self, *, on: bool = True, **delivery: Any) -> FilteredStore:
        self.close()
        return self.next(on=on, **delivery)

    def kill(self) -> FilteredStore:
        return self._after(self.disk.kill())

    def power_cut(self, seed: int) -> FilteredStore:
        return self._after(self.disk.crash(seed))

    def _after(self, disk: MemoryFileSystem) -> FilteredStore:
        self.store.close()  # on the former disk
        return self.next(disk)
