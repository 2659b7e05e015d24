"""taskiq on a real broker: tasks survive a restart, wait in the broker, and move on from a dead worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aerobee_client.errors import ClientError
from aerobee_client.testing import BrokerProcess

# Every process that collects tests would import it, and with it FastAPI and aiohttp: a second of a core.
if TYPE_CHECKING:
    from aerobee_client.integrations.taskiq import AerobeeBroker, AerobeeResultBackend

ROOT = Path(__file__).parents[2]
_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _needs_taskiq() -> None:
    pytest.importorskip("taskiq", reason="needs taskiq: make setup")


def new_broker(aerobee: BrokerProcess, **options: float) -> AerobeeBroker:
    """A taskiq broker with results."""
    from aerobee_client.integrations.taskiq import AerobeeBroker, AerobeeResultBackend

    results = AerobeeResultBackend[str](aerobee.endpoint)
    broker = AerobeeBroker(aerobee.endpoint, invisible_seconds=options.get("invisible_seconds", 30.0))
    broker.with_result_backend(results)
    return broker


@asynccontextmanager
async def working(broker: AerobeeBroker) -> AsyncIterator[None]:
    """A worker in this process, until the block ends."""
    from taskiq.receiver import Receiver

    finish = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=4, run_startup=False)
    task = asyncio.create_task(receiver.listen(finish))
    try:
        yield
    finally:
        finish.set()
        await asyncio.wait_for(task, _SECONDS)


async def test_a_task_survives_a_restart_and_its_result_is_found(aerobee_broker: BrokerProcess) -> None:
    """It is sent before any worker runs; the broker restarts; a worker runs it, and the sender reads the result."""
    broker = new_broker(aerobee_broker)

    @broker.task
    async def bill(order: str) -> str:
        return f"billed {order}"

    await broker.startup()
    sent = await bill.kiq("order-7")
    assert not await sent.is_ready()
    aerobee_broker.kill()
    aerobee_broker.start()
    async with working(broker):
        result = await sent.wait_result(timeout=_SECONDS)
    assert result.return_value == "billed order-7"
    await broker.shutdown()
    log = await lag(aerobee_broker)
    assert log == 0


async def lag(broker: BrokerProcess) -> int:
    """Messages that the workers have not acknowledged."""
    async with broker.connect() as client:
        description = await client.admin.describe_group("taskiq-workers")
        return sum(topic.lag for topic in description.topics)


async def test_a_delayed_task_waits_in_the_broker(aerobee_broker: BrokerProcess) -> None:
    """A task with the label `delay` is delivered when the broker's time has come, and not before."""
    broker, ran = new_broker(aerobee_broker), asyncio.Event()

    @broker.task
    async def remind() -> None:
        ran.set()

    await broker.startup()
    async with working(broker):
        await remind.kicker().with_labels(delay=3600).kiq()
        aerobee_broker.advance(3500)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ran.wait(), 1)
        aerobee_broker.advance(200)
        await asyncio.wait_for(ran.wait(), _SECONDS)
    await broker.shutdown()


async def test_a_failing_task_has_its_error_as_result(aerobee_broker: BrokerProcess) -> None:
    """The exception of a task is its result, and the task is acknowledged."""
    broker = new_broker(aerobee_broker)

    @broker.task
    async def fail() -> None:
        raise ValueError("no such order")

    await broker.startup()
    async with working(broker):
        result = await (await fail.kiq()).wait_result(timeout=_SECONDS)
    assert result.is_err
    assert isinstance(result.error, ValueError)
    await broker.shutdown()
    assert await lag(aerobee_broker) == 0


async def test_a_task_that_is_not_acknowledged_returns(aerobee_broker: BrokerProcess) -> None:
    """A worker that shuts down in the middle gives its task back; the next worker receives it at once."""
    from taskiq import AckableMessage

    broker = new_broker(aerobee_broker, invisible_seconds=600)

    @broker.task
    async def bill() -> None: ...

    await broker.startup()
    await bill.kiq()
    taken = await asyncio.wait_for(anext(broker.listen()), _SECONDS)
    assert isinstance(taken, AckableMessage)
    await broker.shutdown()

    await broker.startup()
    again = await asyncio.wait_for(anext(broker.listen()), _SECONDS)
    assert again.data == taken.data
    done = again.ack()
    assert done is not None
    await done
    await broker.shutdown()
    assert await lag(aerobee_broker) == 0


async def test_results_and_progress(aerobee_broker: BrokerProcess) -> None:
    """The latest of several is returned; what was never saved is an error, and before the start, too."""
    from taskiq import TaskiqResult
    from taskiq.depends.progress_tracker import TaskProgress
    from taskiq.exceptions import ResultGetError

    from aerobee_client.integrations.taskiq import AerobeeResultBackend

    results = AerobeeResultBackend[str](aerobee_broker.endpoint)
    with pytest.raises(ClientError, match="not started"):
        await results.is_result_ready("a")
    await results.startup()
    with pytest.raises(ResultGetError, match="task a has no result in topic taskiq-results"):
        await results.get_result("a")
    for value in ("first", "second"):
        await results.set_result("a", TaskiqResult(is_err=False, return_value=value, execution_time=0.1, log="l"))
        await eventually(lambda wanted=value: _has(results, "a", wanted))  # type: ignore[misc]
    assert (await results.get_result("a")).log is None
    assert (await results.get_result("a", with_logs=True)).log == "l"
    assert await results.get_progress("a") is None
    await results.set_progress("a", TaskProgress(state="half", meta=50))
    await eventually(lambda: results.get_progress("a"))
    found = await results.get_progress("a")
    assert found is not None
    assert found.meta == 50
    await results.shutdown()


async def _has(results: AerobeeResultBackend[str], task_id: str, value: str) -> bool:
    return await results.is_result_ready(task_id) and (await results.get_result(task_id)).return_value == value


async def eventually(look: Callable[[], Awaitable[object]]) -> None:
    """Look until there is something: the index follows the log."""
    async with asyncio.timeout(_SECONDS):
        while not await look():  # noqa: ASYNC110  # the broker tells nobody
            await asyncio.sleep(0.01)


@pytest.fixture
def worker(aerobee_broker: BrokerProcess) -> Iterator[subprocess.Popen[bytes]]:
    """taskiq's own worker with the example, as its README says."""
    command = [sys.executable, "-m", "taskiq", "worker", "examples.taskiq.billing:broker", "--workers", "1"]
    environment = {**os.environ, "AEROBEE_ENDPOINT": aerobee_broker.endpoint}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        yield process
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_the_example(worker: subprocess.Popen[bytes], aerobee_broker: BrokerProcess) -> None:
    """`examples/taskiq` in taskiq's own worker process: a result now, an error, and a result after two seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "examples.taskiq.send"],
        cwd=ROOT,
        env={**os.environ, "AEROBEE_ENDPOINT": aerobee_broker.endpoint},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    billed, failed, later = done.stdout.splitlines()
    assert billed == "order-7: 10 EUR"
    assert failed == "order-9 has amount 0"
    assert later.startswith("order-8: 20 EUR after ")
    assert time.monotonic() - began > 2
