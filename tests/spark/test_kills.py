"""A topic that is copied to a topic, files and tables on a cluster, while broker, driver and executor are killed.

Between the rounds others keep the house of the tables: they compact, delete rows, and expire old versions, and another
writer of the same table runs beside the first. What is missing and what is there twice is counted for each target.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake.exceptions import DeltaError
from pyiceberg.exceptions import CommitFailedException

from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_pipeline.jobs import TableOptions, keep_table
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading.queue_access import open_access
from aerobee_pipeline.tables.formats import open_table
from aerobee_pipeline.tables.table import TableConflictError
from aerobee_pipeline.tables.warehouse import Warehouse
from tests.spark.cluster import SECONDS, environment, processes, wait_for
from tests.spark.test_broker_source import send

KINDS = ("delta", "iceberg")
ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("AEROBEE_SPARK_KILL_ROUNDS", "3"))
MESSAGES_A_KILL = 200
"""Two micro-batches: a process killed after the first one still has work."""
DELETED_A_ROUND = 2
"""Rows that somebody deletes from each queue of the tables."""


class Driver:
    """The process of follow_topic.py."""

    def __init__(self, master: str, broker: BrokerProcess, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "driver.log"
        arguments = [master, broker.endpoint, str(directory)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.follow_topic", *arguments],
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
        """Kill those that it has, once it has one: the driver before may have left enough copies to go on at once."""
        marker = f"-Daerobee.test={self._directory} "
        executors: list[int] = []

        def found() -> bool:
            executors[:] = [
                process
                for process, _, command in processes()
                if marker in command and "CoarseGrainedExecutorBackend" in command
            ]
            return self.runs() and bool(executors)

        wait_for(found, "an executor")
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


class Tables:
    """Both tables of the topic, and what others do to them."""

    def __init__(self, directory: Path) -> None:
        self._warehouse = Warehouse.of(str(directory / "lake"))
        self._rounds = 0
        self.deleted: dict[str, set[bytes]] = {kind: set() for kind in KINDS}
        """The bodies of the rows that were deleted."""

    def _table(self, kind: str) -> Any:
        table: Any = open_table(kind, self._warehouse, "original")
        return table._table

    def rows(self, kind: str) -> list[tuple[int, int, bytes]]:
        """Queue, offset and body of every row."""
        table = self._table(kind)
        if table is None:
            return []
        rows = table.to_pyarrow_table() if kind == "delta" else table.scan().to_arrow()
        return list(zip(*(rows[name].to_pylist() for name in ("queueId", "queueOffset", "body")), strict=True))

    def keep_house(self) -> None:
        """Compact, delete rows and expire, in spite of the writer that commits meanwhile."""
        self._rounds += 1
        limit = self._rounds * DELETED_A_ROUND

        def note(kind: str, rows: Any) -> None:
            self.deleted[kind] |= {
                body
                for body, offset in zip(*(rows[name].to_pylist() for name in ("body", "queueOffset")), strict=True)
                if offset < limit
            }

        def delta() -> None:
            self._table("delta").optimize.compact()
            table = self._table("delta")
            rows = table.to_pyarrow_table()
            table.delete(f"queueOffset < {limit}")
            note("delta", rows)
            self._table("delta").create_checkpoint()

        def iceberg() -> None:
            table = self._table("iceberg")
            rows = table.scan().to_arrow()
            table.overwrite(rows.filter(pc.greater_equal(rows["queueOffset"], limit)))  # one file of all that remains
            note("iceberg", rows)
            with suppress(CommitFailedException):
                self._table("iceberg").maintenance.expire_snapshots().older_than(datetime.now()).commit()

        for work in (delta, iceberg):
            wait_for(lambda work=work: succeeds(work), "housekeeping by others")  # type: ignore[misc]  # mypy wants a type


def succeeds(work: Callable[[], None]) -> bool:
    """Whether it was done; a conflict with the writer of the table is no failure."""
    try:
        work()
    except (CommitFailedException, DeltaError):
        return False
    return True


def another_writer(spark: Any, broker: BrokerProcess, directory: Path) -> None:
    """A second writer of the tables, which conflicts with the first or adds what that one has not added yet."""
    for kind in KINDS:
        with suppress(TableConflictError):
            table = TableOptions(to=kind, warehouse=str(directory / "lake"))
            keep_table(spark, {"endpoint": broker.endpoint}, "original", table)


@pytest.mark.timeout(900 * ROUNDS)
def test_nothing_is_lost_when_executor_broker_and_driver_are_killed(spark: Any, master: str, tmp_path: Path) -> None:
    """At least once into a topic, where repeated messages have equal ids; exactly once into files and tables."""
    directory = tmp_path / "driver"
    directory.mkdir()
    (tmp_path / "broker").mkdir()
    tables = Tables(directory)
    sent = 0
    began = time.monotonic()

    def rows(topic: str) -> list[Any]:
        reader = spark.read.format("aerobee").options(endpoint=broker.endpoint, subscribe=topic)
        frame = reader.option("includeProperties", "true").load()
        found: list[Any] = frame.selectExpr("body", "properties['SPARK_ID'] id").collect()
        return found

    def wait_for_copies(count: int) -> None:
        wait_for(lambda: driver.runs() and stored(broker, "copy") >= count, f"{count} copies")

    def wait_for_tables(count: int) -> None:
        for kind in KINDS:
            wait_for(lambda: driver.runs() and len(tables.rows(kind)) >= count, f"{count} rows of {kind}")  # noqa: B023

    with run_broker(tmp_path / "broker") as broker:
        for number in range(ROUNDS):
            with driving(master, broker, directory) as driver:
                for kill in (driver.kill_executor, broker.kill, driver.kill):
                    copied = stored(broker, "copy")
                    send(broker, "original", MESSAGES_A_KILL, first=sent)
                    sent += MESSAGES_A_KILL
                    wait_for_copies(copied + MESSAGES_A_KILL // 2)
                    if kill == broker.kill and number == 0:
                        another_writer(spark, broker, directory)
                    if kill == driver.kill:
                        wait_for_tables(MESSAGES_A_KILL)
                        tables.keep_house()
                    kill()
                    print(f"{time.monotonic() - began:.0f} s: killed by {kill.__qualname__}, {sent} sent")
                    if kill == broker.kill:
                        broker.start()
        original = {bytes(row.body) for row in rows("original")}
        assert len(original) == sent
        with driving(master, broker, directory) as driver:
            wait_for_copies(sent)
            wait_for(lambda: driver.runs() and {bytes(row.body) for row in rows("copy")} == original, "all copies")
            wait_for_tables(sent - max(map(len, tables.deleted.values())))
            wait_for(lambda: driver.runs() and len(files(spark, directory)) >= sent, "all files")
        found: dict[str, list[Any]] = {"files": files(spark, directory)}
        found |= {kind: list(tables.rows(kind)) for kind in KINDS}
        copies = rows("copy")
    for name, target in found.items():
        expected = original - tables.deleted.get(name, set())
        bodies = [row[-1] for row in target]
        missing, double = len(expected - set(bodies)), len(bodies) - len(set(bodies))
        print(f"{name}: {missing} missing and {double} double of {len(expected)} after {ROUNDS} rounds")
        assert (missing, double, set(bodies) - expected) == (0, 0, set()), f"{name}; deleted rows do not return"
    print(f"topic: 0 missing of {sent}, {len(copies) - sent} repeated with their ids")
    assert len({(bytes(row.body), row.id) for row in copies}) == sent, "repeats have the id of the first"


def files(spark: Any, directory: Path) -> list[tuple[bytes]]:
    """The rows of the files that finished micro-batches have written."""
    return [(bytes(row.body),) for row in spark.read.parquet(str(directory / "files")).collect()]
