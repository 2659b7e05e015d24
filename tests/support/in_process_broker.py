"""A whole broker in the test's event loop, on free ports."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from aerobee_broker import server
from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.listening.listeners import Listening
from aerobee_proto import admin_v1, v2
from aerobee_store.clock import Clock
from tests.support.front_under_test import FRONT

METADATA = (("x-mq-client-id", "test@1@0@abc"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.1"))


@dataclass(slots=True)
class InProcessBroker:
    """A running broker and its stubs, which share one channel; calls need METADATA."""

    endpoint: str
    metrics: str
    channel: Any
    messaging: Any  # the stub's asyncio type exists only in stub files
    admin: Any
    administration: Any
    remoting: Address | None = None
    tls: Address | None = None

    async def waiting(self, count: int) -> None:
        """Return once `count` receives, pulls and reads wait at the broker for a message."""

        def fetch() -> float:
            with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=60) as response:
                (line,) = (each for each in response.read().decode().splitlines() if each.startswith(gauge))
            return float(line.rpartition(" ")[2])

        gauge = "aerobee_long_polls{"
        async with asyncio.timeout(60):
            while await asyncio.to_thread(fetch) != count:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)


@asynccontextmanager
async def in_process_broker(
    directory: Path, *, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[InProcessBroker]:
    """Started on entry, drained on exit, which fails if the broker failed. `changes` apply to BrokerConfig.tiny."""
    config = BrokerConfig.tiny(directory, **changes)
    if FRONT is not None:
        config = replace(config, listen=replace(config.listen, front=FRONT))
    stop = asyncio.Event()
    ready: asyncio.Future[tuple[Listening, str]] = asyncio.get_running_loop().create_future()

    def announce(listening: Listening, metrics: Address) -> None:
        ready.set_result((listening, str(metrics)))

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run(config, stop, announce, clock=clock))
        async with asyncio.timeout(60):
            listening, metrics = await ready
        address = str(listening.grpc)
        async with grpc.aio.insecure_channel(address) as channel:
            try:
                yield InProcessBroker(
                    address,
                    metrics,
                    channel,
                    v2.MessagingServiceStub(channel),
                    v2.AdminStub(channel),
                    admin_v1.AdminServiceStub(channel),
                    listening.remoting,
                    listening.tls,
                )
            finally:
                stop.set()
            async with asyncio.timeout(60):
                assert await running == 0


def message(topic: str = "orders", body: bytes = b"hello", message_id: str = "01AA", **system: Any) -> v2.Message:
    """A message as a producer sends it."""
    return v2.Message(
        topic=v2.Resource(name=topic),
        body=body,
        system_properties=v2.SystemProperties(
            message_id=message_id, **{"message_type": v2.MessageType.NORMAL, **system}
        ),
    )
