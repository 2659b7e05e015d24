"""Stores written by released versions of Aerobee, and what has to be in them: tests/golden/version_stores.

    python -m tests.golden.versions      write the store of this version, before its release

A store has messages that were acknowledged, are in flight, wait for a retry, are dead, delayed, ordered, and with keys;
`VERSION.json` says which. Its files are packed, since they are mostly zeros.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from aerobee_client import Client, Message, connect
from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_proto import v2

FOLDER: Final = Path(__file__).parent / "version_stores"
SETTINGS: Final[dict[str, object]] = {
    "store.segment_size": 1 << 20,
    "store.segments_ahead": 0,
    "store.queue_file_size": 1000 * 20,
    "store.index_slot_count": 500,
    "store.index_entry_count": 2000,
    "store.disk_headroom": 1 << 20,
    "store.retention_hours": 10 * 365 * 24.0,  # the store is older whenever it is opened
    "store.disk_force_clean_ratio": 1.0,
    "store.disk_full_ratio": 1.0,
    "topics.queue_count": 2,
}
_DELAY_SECONDS: Final = 30 * 86_400


def versions() -> list[str]:
    """The versions with a store."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def manifest(version: str) -> dict[str, Any]:
    """What has to be in the store of a version."""
    found: dict[str, Any] = json.loads((FOLDER / f"{version}.json").read_text())
    return found


def unpack(version: str, directory: Path) -> Path:
    """The store of a version in a new directory."""
    with tarfile.open(FOLDER / f"{version}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "store"


async def _fill(client: Client) -> dict[str, Any]:
    """Write every kind of message, and leave deliveries in every state."""
    await client.admin.create_topic("orders", queue_count=2)
    await client.admin.create_topic("steps", queue_count=1, message_types=[v2.MessageType.FIFO])
    await client.admin.create_topic("later", queue_count=1, message_types=[v2.MessageType.DELAY])
    await client.admin.create_group("billing", max_attempts=1)
    await client.admin.create_group("walking", fifo=True)
    producer = client.producer(use_records=False)
    bodies = [f"order-{number}" for number in range(20)]
    for number, body in enumerate(bodies):
        message = Message(topic="orders", body=body.encode(), tag="even" if number % 2 == 0 else "odd", keys=(body,))
        await producer.send(message)
    for number in range(5):
        await producer.send(Message(topic="steps", body=f"step {number}".encode(), message_group="walk"))
    due = int((time.time() + _DELAY_SECONDS) * 1000)
    await producer.send(Message(topic="later", body=b"in a month", delivery_timestamp=due))
    async with client.simple_consumer("billing", "orders") as consumer:
        acknowledged: list[str] = []
        while len(acknowledged) < 8:
            for received in await consumer.receive(8 - len(acknowledged)):
                await consumer.ack(received)
                acknowledged.append(received.body.decode())
        (dead,) = await consumer.receive(1)
        await consumer.nack(dead)
        async with asyncio.timeout(60):
            while not await dead_letters(client):  # noqa: ASYNC110  # the broker tells nobody
                await asyncio.sleep(0.1)
    async with client.simple_consumer("walking", "steps") as walker:
        (first,) = await walker.receive(1)
        await walker.ack(first)
    return {"orders": bodies, "acknowledged": sorted(acknowledged), "due": due}


async def dead_letters(client: Client) -> list[str]:
    """The bodies of the dead letters of the group."""
    return sorted([each.message.body.decode() async for each in client.admin.dead_letters("billing", bodies=True)])


def write(version: str, folder: Path = FOLDER) -> None:
    """Write the store of this version, after an orderly stop."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with run_broker(directory, settings=SETTINGS) as broker:
            written = asyncio.run(_written(broker))
            dead, left = asyncio.run(_looked_at(broker))
            broker.stop()
            (folder / f"{version}.json").write_text(
                json.dumps({**written, "dead": dead, "left": left}, indent=1) + "\n"
            )
            with tarfile.open(folder / f"{version}.tar.xz", "w:xz") as archive:
                archive.add(broker.store, "store")


async def _written(broker: BrokerProcess) -> dict[str, Any]:
    async with connect(broker.endpoint) as client:
        return await _fill(client)


async def _looked_at(broker: BrokerProcess) -> tuple[list[str], list[str]]:
    """The dead letters of the group, and the orders that it has neither acknowledged nor lost to them."""
    async with connect(broker.endpoint) as client:
        dead = await dead_letters(client)
        left = sorted([each.body.decode() async for each in client.admin.query("orders", unfinished_by="billing")])
        return dead, left


if __name__ == "__main__":
    write(importlib.metadata.version("aerobee"))
