"""The cost of thousands of lite topics of one parent, and of clients with a hundred subscriptions each.

    python -m tests.benchmarks.lite_topics [--lite-topics N] [--clients N] [--subscriptions N]

In one process, without gRPC. Seconds are CPU time of all threads, except for the longest pause, during which the event
loop did nothing else. Memory is the growth of the process, divided by the number.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.delivery.receive.lite import Action, Change
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import TopicConfig, light_topic_name
from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.records.properties import INNER_MULTI_DISPATCH
from aerobee_store.testing import ManualClock
from tests.benchmarks.disk import ANY_DISK_USAGE

PARENT: Final = "rooms"
GROUP: Final = "billing"
_PAGE_SIZE: Final = 4096


class Broker:
    """A store, its tables and deliveries."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        store = StoreConfig(directory=directory, segment_size=64 << 20, **ANY_DISK_USAGE)
        config = BrokerConfig(store=store, delivery=DeliveryConfig())
        self.store = MessageStore.open(config.store, clock=clock)
        self.tables = Tables.load(Settings(config), clock, self.store.file_system, self.store.in_disk_thread)
        self.deliveries = Deliveries(self.store, self.tables, clock, Settings(config))
        self.deliveries.open()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the services, and stop them cleanly at the end."""
        services = [asyncio.create_task(service.run()) for service in (self.store, self.deliveries)]
        await asyncio.sleep(0)
        try:
            yield
            await self.deliveries.close()
            await self.tables.save()
        finally:
            for service in services:
                service.cancel()
                with suppress(asyncio.CancelledError):
                    await service
            self.store.close()


class Pauses:
    """The longest interval in which the event loop was blocked."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - before - 0.001)


def resident() -> int:
    """The process's resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_SIZE


@contextmanager
def measured(what: str, count: int, unit: str) -> Iterator[None]:
    """Print the cost of the block."""
    cpu, wall, memory = time.process_time(), time.perf_counter(), resident()
    yield
    cpu, wall, memory = time.process_time() - cpu, time.perf_counter() - wall, resident() - memory
    each = f"{1e6 * cpu / count:8.1f} us and {memory / count:7.0f} bytes a {unit}"
    print(f"{what:44} {cpu:7.2f} s CPU {wall:7.2f} s {each}", flush=True)


@asynccontextmanager
async def pauses() -> AsyncIterator[None]:
    """Print the event loop's longest pause within the block."""
    watch = Pauses()
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0.01)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        print(f"{'':44} {1000 * watch.longest:7.0f} ms the longest pause", flush=True)


async def run(directory: Path, lite_count: int, client_count: int, subscription_count: int) -> None:
    """Run all measurements in sequence."""
    clock = ManualClock()
    names = [f"room-{number:05}" for number in range(lite_count)]
    source = random.Random(1)
    sets = [frozenset(source.sample(names, min(subscription_count, lite_count))) for _ in range(client_count)]
    subscriptions = sum(map(len, sets))
    broker = Broker(directory / "store", clock)
    broker.tables.groups.create(GroupConfig(name=GROUP))
    attributes = {"message.type": "LITE", "lite.topic.expiration": "30"}
    topic = TopicConfig(name=PARENT, read_queue_count=8, write_queue_count=8, attributes=attributes)
    broker.tables.topics.create(topic)
    await broker.tables.save()

    async def subscribe_all(deliveries: Deliveries) -> None:
        for number, names in enumerate(sets):
            await deliveries.lite.subscribe(PARENT, GROUP, f"client-{number}", Change(Action.REPLACE, names))

    async def send_all() -> None:
        for first in range(0, lite_count, 100):
            messages = [
                Message(PARENT, 0, b"x" * 100, {INNER_MULTI_DISPATCH: light_topic_name(PARENT, name)})
                for name in names[first : first + 100]
            ]
            await broker.store.wait_stored(broker.store.append(messages)[-1].end)

    async with broker.running():
        with measured("a message into each lite topic", lite_count, "lite topic"):
            await send_all()
        with measured("every client says its set", subscriptions, "subscription"):
            await subscribe_all(broker.deliveries)
        with measured("every client says its set again", client_count, "set"):
            await subscribe_all(broker.deliveries)
        with measured("another message into each", lite_count, "message"):
            await send_all()
    with measured("start after an orderly stop", lite_count, "lite topic"):
        broker = Broker(directory / "store", clock)
    async with broker.running():
        with measured("every client says its set after the start", subscriptions, "subscription"):
            await subscribe_all(broker.deliveries)
    (directory / "store" / "abort").touch()
    (directory / "store" / "checkpoint").unlink()
    with measured("start that reads all of the log", lite_count, "lite topic"):
        broker = Broker(directory / "store", clock)
    async with broker.running():
        await subscribe_all(broker.deliveries)
        async with pauses():
            with measured("a look for expired ones", lite_count, "lite topic"):
                assert await broker.deliveries.expire_lite_topics() == 0
        async with pauses():
            with measured("another look", lite_count, "lite topic"):
                assert await broker.deliveries.expire_lite_topics() == 0
        clock.advance(31 * 60)
        async with pauses():
            with measured("expiry of all", lite_count, "lite topic"):
                assert await broker.deliveries.expire_lite_topics() == lite_count
        await send_all()
        await subscribe_all(broker.deliveries)
        async with pauses():
            with measured("the parent is deleted with as many", lite_count, "lite topic"):
                await broker.deliveries.delete_topic(PARENT)


def main() -> None:
    """Parse the arguments, run, and clean up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lite-topics", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--subscriptions", type=int, default=100, help="of each client")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="aerobee-lite-"))
    try:
        asyncio.run(run(directory, arguments.lite_topics, arguments.clients, arguments.subscriptions))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
