"""taskiq's own tests on our broker and result backend, in place of its broker in memory.

tests/integration/test_taskiq_suite.py puts this file as `conftest.py` beside tests of taskiq's source archive. taskiq's
broker in memory runs a task as soon as it is sent, so here a worker in the same process starts with the first task. It
also ignores delays; ours keeps them, so results may come later than the tests wait.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import taskiq
import taskiq.brokers.inmemory_broker
from taskiq import BrokerMessage, SmartRetryMiddleware
from taskiq.abc.broker import AsyncBroker
from taskiq.receiver import Receiver
from taskiq.task import AsyncTaskiqTask

from aerobee_client.integrations.taskiq import AerobeeBroker, AerobeeResultBackend

ENDPOINT = os.environ["AEROBEE_ENDPOINT"]
_SECONDS = 60.0
_running: list[RunningBroker] = []


class StartedResults(AerobeeResultBackend[Any]):
    """A result backend that starts when it is first used, as taskiq's needs no start."""

    async def _save(self, key: str, body: bytes) -> None:
        await self._start()
        await super()._save(key, body)

    async def _latest(self, key: str) -> Any:
        await self._start()
        return await super()._latest(key)

    async def _start(self) -> None:
        if self._client is None:
            await self.startup()


class RunningBroker(AerobeeBroker):
    """A broker with a topic and a group of its own, and a worker from the first task on."""

    def __init__(self, **_: object) -> None:
        name = uuid.uuid4().hex
        super().__init__(ENDPOINT, topic=f"tasks-{name}", group=f"workers-{name}", prefetch=8)
        self.result_backend = StartedResults(ENDPOINT, topic=f"results-{name}")
        self._worker: asyncio.Task[None] | None = None
        _running.append(self)

    async def kick(self, message: BrokerMessage) -> None:
        if self._client is None:
            await self.startup()
        if self._worker is None:
            receiver = Receiver(self, max_async_tasks=8, run_startup=False)
            self._worker = asyncio.create_task(receiver.listen(asyncio.Event()))
        await super().kick(message)

    async def end(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self.shutdown()
        await self.result_backend.shutdown()


_wait_result = AsyncTaskiqTask.wait_result


async def _patient(task: AsyncTaskiqTask[Any], *arguments: Any, **options: Any) -> Any:
    return await _wait_result(task, *arguments, **{**options, "timeout": _SECONDS})


SmartRetryMiddleware.make_delay = lambda *_: 0.1  # type: ignore[method-assign]  # ten retries of one test take 50 s
AsyncTaskiqTask.wait_result = _patient  # type: ignore[method-assign,assignment]
taskiq.InMemoryBroker = RunningBroker  # type: ignore[misc,assignment]  # before the tests import it
taskiq.brokers.inmemory_broker.InMemoryBroker = RunningBroker  # type: ignore[misc,assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that the environment names, with all their parameters and no other of a longer name."""
    left_out = os.environ.get("LEFT_OUT", "").split()
    items[:] = [item for item in items if item.nodeid.partition("[")[0] not in left_out]


@pytest.fixture(autouse=True)
async def brokers() -> AsyncIterator[None]:
    """End the brokers of a test."""
    yield
    while _running:
        await _running.pop().end()


@pytest.fixture(autouse=True)
def reset_broker() -> Iterator[None]:
    """taskiq's own conftest does this, too: forget the tasks of a test."""
    yield
    AsyncBroker.global_task_registry = {}
