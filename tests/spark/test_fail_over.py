"""Streams and tables of a topic whose broker dies and whose replica is promoted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import Message, connect
from aerobee_pipeline.jobs import TableOptions, keep_table
from aerobee_pipeline.tables.formats import open_table
from aerobee_pipeline.tables.warehouse import Warehouse
from aerobee_pipeline.worker_start import retry_worker_start
from tests.spark.cluster import wait_for
from tests.spark.test_file_stream import caught_up, run
from tests.support.broker_process import BrokerProcess, running
from tests.support.port_forwarder import PortForwarder, forwarded_port

pytestmark = pytest.mark.timeout(900)
TOPIC = "orders"
Await = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def wait() -> Iterator[Await]:
    """Waits for what broker processes do: they belong to one event loop."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def pair(tmp_path: Path, wait: Await) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """A master and its replica, which has every answered message."""
    a = BrokerProcess(tmp_path, "a", "--role", "master", "--acks", "1")
    b = BrokerProcess(tmp_path, "b", "--role", "replica", "--master", a.remoting)
    brokers = running(a, b)
    wait(brokers.__aenter__())
    try:
        wait(a.start())
        wait(create_topic(a))
        wait(b.start())  # only now, so that its first copy of the tables has the topic
        wait(a.counts())
        yield a, b
    finally:
        wait(brokers.__aexit__(None, None, None))


@pytest.fixture
def address(pair: tuple[BrokerProcess, BrokerProcess]) -> Iterator[PortForwarder]:
    """The address that clients know, which moves to the promoted replica."""
    with forwarded_port(pair[0].grpc) as forwarder:
        yield forwarder


async def create_topic(broker: BrokerProcess) -> None:
    async with connect(broker.grpc) as client:
        await client.admin.create_topic(TOPIC, queue_count=2)


async def send(broker: BrokerProcess, count: int, first: int = 0) -> None:
    """Return when this many messages, ten at once, are answered with success."""
    async with connect(broker.grpc) as client:
        producer = client.producer()
        for begin in range(first, first + count, 10):
            await producer.send_many(
                [Message(topic=TOPIC, body=f"body {number}".encode()) for number in range(begin, begin + 10)]
            )


def test_a_query_and_a_table_go_on_at_the_promoted_replica(
    spark: Any,
    pair: tuple[BrokerProcess, BrokerProcess],
    address: PortForwarder,
    wait: Await,
    tmp_path: Path,
    checkpoint: str,
) -> None:
    """The query runs all the time, with micro-batches left when the master dies: each message once, as in the table."""
    a, b = pair
    rows: list[tuple[int, int, str]] = []
    source = {"endpoint": address.endpoint}
    table = TableOptions(to="delta", warehouse=str(tmp_path / "lake"), rows_per_commit=100)
    wait(send(a, 400))
    wait(b.follows(a))
    assert keep_table(spark, source, TOPIC, table).facts["messages"] == 400

    def take(batch: Any, number: int) -> None:
        rows.extend((row.queueId, row.queueOffset, row.body) for row in batch.collect())
        if number == 3:  # more micro-batches are to come
            wait(a.kill())
            wait(b.promote())
            address.move(b.grpc)
            wait(send(b, 200, first=400))

    reader = spark.readStream.format("aerobee").options(**source, subscribe=TOPIC, retries=10)
    frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=50).load()
    writer = frame.selectExpr("queueId", "queueOffset", "string(body) body").writeStream.foreachBatch(take)
    query = retry_worker_start(lambda: caught_up(writer.option("checkpointLocation", checkpoint)))
    try:
        wait_for(lambda: query.exception() is not None or len(rows) >= 600, "600 rows")
        assert query.exception() is None
    finally:
        query.stop()
    assert sorted(int(body.split()[1]) for _, _, body in rows) == list(range(600))
    assert len({place[:2] for place in rows}) == 600
    assert keep_table(spark, source, TOPIC, table).facts["messages"] == 200
    found: Any = open_table("delta", Warehouse.of(table.warehouse), TOPIC)
    bodies = found._table.to_pyarrow_table()["body"].to_pylist()
    assert sorted(int(body.split()[1]) for body in bodies) == list(range(600))


def test_a_replica_that_lacks_messages_is_promoted_by_force(
    spark: Any, pair: tuple[BrokerProcess, BrokerProcess], address: PortForwarder, wait: Await, checkpoint: str
) -> None:
    """A query that read what the new master does not have fails, and goes on without it on request."""
    a, b = pair
    wait(send(a, 100))
    wait(b.follows(a))
    wait(b.kill())
    wait(a.kill())
    wait(a.start("--role", "master", "--acks", "none"))
    wait(send(a, 100, first=100))
    rows: list[tuple[Any, ...]] = []

    def stream(**options: str) -> Any:
        reader = spark.readStream.format("aerobee").options(endpoint=address.endpoint, subscribe=TOPIC, **options)
        return reader.option("startingOffsets", "earliest").load().selectExpr("string(body)")

    run(stream(), checkpoint, rows)
    assert len(rows) == 200
    wait(a.kill())
    wait(b.start())
    wait(b.promote("--force"))
    address.move(b.grpc)
    with pytest.raises(Exception, match=r"topic 'orders', queue \d+: it ends at \d+, before offset \d+"):
        run(stream(), checkpoint, rows)
    run(stream(failOnDataLoss="false"), checkpoint, rows)
    assert len(rows) == 200
    wait(send(b, 50, first=200))
    run(stream(), checkpoint, rows)
    assert sorted(int(body.split()[1]) for (body,) in rows) == list(range(250))
