"""A stream between two topics on a cluster, while broker, driver and executor are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading.queue_access import open_access
from tests.spark.cluster import SECONDS, environment, processes, wait_for
from tests.spark.test_broker_source import send

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("AEROBEE_SPARK_KILL_ROUNDS", "1"))
MESSAGES_A_KILL = 200
"""Two micro-batches: a process killed after the first one still has work."""


class Driver:
    """The process of copy_topic.py."""

    def __init__(self, master: str, broker: BrokerProcess, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "driver.log"
        arguments = [master, broker.endpoint, str(directory)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.copy_topic", *arguments],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment(),
                start_new_session=True,
            )

    def runs(self) -> bool:
        """Whether the driver runs. AssertionError with its log if it has ended, because its query may not fail."""
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        return True

    def kill_executor(self) -> None:
        marker = f"-Daerobee.test={self._directory} "
        executors = [
            process
            for process, _, command in processes()
            if marker in command and "CoarseGrainedExecutorBackend" in command
        ]
        assert executors
        for executor in executors:
            os.kill(executor, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the driver, its JVM and their Python processes."""
        below: dict[int, list[int]] = {}
        for process, parent, _ in processes():
            below.setdefault(parent, []).append(process)
        found = [self._process.pid]
        for process in found:
            found += below.get(process, ())
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait(SECONDS)


@contextmanager
def driving(master: str, broker: BrokerProcess, directory: Path) -> Iterator[Driver]:
    driver = Driver(master, broker, directory)
    try:
        yield driver
    finally:
        driver.kill()


def stored(broker: BrokerProcess, topic: str) -> int:
    """The number of messages in a topic."""
    options = SourceOptions.parse({"endpoint": broker.endpoint, "subscribe": topic}, streaming=False)
    bounds = open_access(options).bounds(options.subscription)
    return sum(found.end - found.start for found in bounds.values())


@pytest.mark.timeout(1800 * ROUNDS)
def test_nothing_is_lost_when_executor_broker_and_driver_are_killed(spark: Any, master: str, tmp_path: Path) -> None:
    """Every message is copied; a message copied twice has the same id in both copies."""
    directory = tmp_path / "driver"
    directory.mkdir()
    (tmp_path / "broker").mkdir()
    sent = 0

    def rows(topic: str) -> list[Any]:
        reader = spark.read.format("aerobee").options(endpoint=broker.endpoint, subscribe=topic)
        frame = reader.option("includeProperties", "true").load()
        found: list[Any] = frame.selectExpr("body", "properties['SPARK_ID'] id").collect()
        return found

    def wait_for_copies(count: int) -> None:
        wait_for(lambda: driver.runs() and stored(broker, "copy") >= count, f"{count} copies")

    with run_broker(tmp_path / "broker") as broker:
        for _ in range(ROUNDS):
            with driving(master, broker, directory) as driver:
                for kill in (driver.kill_executor, broker.kill, driver.kill):
                    copied = stored(broker, "copy")
                    send(broker, "original", MESSAGES_A_KILL, first=sent)
                    sent += MESSAGES_A_KILL
                    wait_for_copies(copied + MESSAGES_A_KILL // 2)
                    kill()
                    if kill == broker.kill:
                        broker.start()
        original = {bytes(row.body) for row in rows("original")}
        assert len(original) == sent
        with driving(master, broker, directory) as driver:
            wait_for_copies(sent)
            wait_for(lambda: driver.runs() and {bytes(row.body) for row in rows("copy")} == original, "all copies")
        assert len({(bytes(row.body), row.id) for row in rows("copy")}) == sent, "repeats have the id of the first"
