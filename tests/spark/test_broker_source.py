"""`spark.read` and `spark.readStream` from a running broker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import Credentials, Message, blocking, connect
from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_pipeline.broker_channel import Address, Broker
from aerobee_pipeline.offsets import Range
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading.queue_access import open_access
from aerobee_pipeline.session import PUSHDOWN_SETTING
from aerobee_pipeline.worker_start import retry_worker_start
from tests.spark.cluster import wait_for
from tests.spark.test_file_stream import caught_up, run


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with run_broker(tmp_path_factory.mktemp("broker")) as process:
        yield process


def send(broker: BrokerProcess, topic: str, count: int, first: int = 0, tag: str | None = None) -> None:
    """Send messages with distinct bodies."""

    async def work() -> None:
        async with connect(broker.endpoint) as client:
            producer = client.producer()
            await producer.send_many(
                [
                    Message(
                        topic=topic,
                        body=f"body {number}".encode(),
                        tag=tag or ("paid", "refunded")[number % 2],
                        keys=(f"k{number}",),
                        properties={"n": str(number)},
                    )
                    for number in range(first, first + count)
                ]
            )

    asyncio.run(work())


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.body.split()[1]) for row in frame.select("body").collect())


def test_a_topic_as_a_data_frame(spark: Any, broker: BrokerProcess) -> None:
    """All columns equal those from the store's files; tags, pattern, partitions and times work."""
    send(broker, "orders", 1000)
    options = {"endpoint": broker.endpoint, "includeProperties": "true", "includeSystem": "true"}
    frame = spark.read.format("aerobee").options(**options).option("subscribe", "orders").load()
    assert numbers(frame) == list(range(1000))
    assert {row.brokerName for row in frame.select("brokerName").distinct().collect()} != {""}
    copied = spark.read.format("aerobee").option("storePath", str(broker.store)).option("readBy", "log")
    copied = (
        copied.option("includeProperties", "true").option("includeSystem", "true").option("subscribe", "orders").load()
    )
    rows = [sorted(map(repr, source.drop("brokerName").collect())) for source in (frame, copied)]
    assert rows[0] == rows[1]
    tagged = spark.read.format("aerobee").options(**options).option("subscribePattern", "ord.*")
    tagged = tagged.option("subExpression", "paid").option("minPartitions", "12").load()
    assert numbers(tagged) == list(range(0, 1000, 2))
    assert tagged.rdd.getNumPartitions() >= 12
    middle = sorted(row.t for row in frame.selectExpr("unix_millis(storeTimestamp) t").collect())[600]
    late = spark.read.format("aerobee").options(**options).option("subscribe", "orders")
    late = late.option("startingTimestamp", middle).option("startingOffsetsByTimestampStrategy", "latest").load()
    assert late.count() == frame.where(f"unix_millis(storeTimestamp) >= {middle}").count()


def test_an_account_that_may_only_read_its_topic(tmp_path: Path) -> None:
    """It reads the topic with the broker's name, and waits for a restarting broker, though it may not see its state."""
    (tmp_path / "broker").mkdir()
    accounts, reader = tmp_path / "accounts.toml", tmp_path / "reader.toml"
    writer = '[accounts.writer]\nsecret_key = "writer-secret"\npublish = ["orders"]\n'
    accounts.write_text(f'{writer}[accounts.reader]\nsecret_key = "reader-secret"\nconsume = ["orders"]\n')
    reader.write_text('access_key = "reader"\nsecret_key = "reader-secret"\n')
    for file in (accounts, reader):
        file.chmod(0o600)
    with run_broker(tmp_path / "broker", ("--dev", "--accounts", str(accounts))) as broker:
        with blocking.connect(broker.endpoint, credentials=Credentials("writer", "writer-secret")) as client:
            client.producer().send_many([Message(topic="orders", body=b"%d" % number) for number in range(20)])
        given = {"endpoint": broker.endpoint, "subscribe": "orders", "credentialsFile": str(reader)}
        options = SourceOptions.parse(given, streaming=False)
        access = open_access(options)
        bounds = access.bounds(options.subscription)
        assert {access.broker_name(queue) for queue in bounds} == {"aerobee"}
        ranges = [Range(queue, found.start, found.end) for queue, found in bounds.items()]
        rows = [row for item in ranges for _, rows in access.read(item, None, fail_on_data_loss=True) for row in rows]
        assert len(rows) == 20
        broker.restart()
        Broker(Address(broker.endpoint, str(reader))).wait()


def test_several_brokers_in_one_data_frame(spark: Any, broker: BrokerProcess, tmp_path: Path, checkpoint: str) -> None:
    """Rows, offsets and checkpoints name the broker; a stream follows all of them."""
    send(broker, "shared", 100)
    with run_broker(tmp_path) as other:
        send(other, "shared", 30, first=100)
        options = {"endpoint": json.dumps({"a": broker.endpoint, "b": other.endpoint}), "subscribe": "shared"}
        frame = spark.read.format("aerobee").options(**options).load()
        counts = {row.brokerName: row["count"] for row in frame.groupBy("brokerName").count().collect()}
        assert counts == {"a": 100, "b": 30}
        queues = range(1 + max(row.queueId for row in frame.select("queueId").collect()))
        ending = json.dumps({"shared": {"a": dict.fromkeys(map(str, queues), 0)}})
        assert numbers(spark.read.format("aerobee").options(**options, endingOffsets=ending).load()) == [
            *range(100, 130)
        ]
        stream = spark.readStream.format("aerobee").options(**options, startingOffsets="earliest", group="both").load()
        places = stream.select("brokerName", "queueId", "queueOffset")
        rows: list[tuple[Any, ...]] = []
        assert run(places, checkpoint, rows) == [130]
        send(other, "shared", 20, first=130)
        assert run(places, checkpoint, rows) == [20]
        assert len(rows) == len(set(rows))
        assert [name for name, _, _ in rows[130:]] == ["b"] * 20


def test_unknown_topics_offsets_and_brokers_are_errors(spark: Any, broker: BrokerProcess) -> None:
    """An unknown topic, an offset beyond the end, and an unreachable broker."""
    reader = spark.read.format("aerobee").option("endpoint", broker.endpoint)
    with pytest.raises(Exception, match=r"topic 'nobody'.*has no queue of this topic"):
        reader.option("subscribe", "nobody").load().collect()
    send(broker, "few", 10)
    starting = '{"few": {"0": 0}}'
    ending = '{"few": {"0": 99}}'
    with pytest.raises(Exception, match=r"topic 'few', queue 0: message 98 is asked for, but it ends at"):
        reader.options(subscribe="few", startingOffsets=starting, endingOffsets=ending).load().collect()
    nobody = (
        spark.read.format("aerobee").option("endpoint", "127.0.0.1:9").options(subscribe="few", pullTimeoutMs="500")
    )
    with pytest.raises(Exception, match=r"127.0.0.1:9: offsets of queues: UNAVAILABLE"):
        nobody.load().collect()


def test_a_stream_with_limits_and_a_group(spark: Any, broker: BrokerProcess, checkpoint: str) -> None:
    """Micro-batches keep the limit; the group's offset is the end of the last committed batch."""
    send(broker, "streamed", 500)
    reader = spark.readStream.format("aerobee").option("endpoint", broker.endpoint).option("subscribe", "streamed")
    frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="200", group="spark-group").load()
    rows: list[tuple[Any, ...]] = []
    places = frame.select("topic", "queueId", "queueOffset")
    assert run(places, checkpoint, rows) == [200, 200, 100]
    assert len(set(rows)) == 500
    send(broker, "streamed", 50, first=500)
    assert run(places, checkpoint, rows) == [50]
    assert len(set(rows)) == 550


def test_latest_with_a_live_producer_and_a_restarted_broker(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """From the latest offsets, no arriving message is lost or repeated, also after a kill of the broker."""
    with run_broker(tmp_path) as broker:
        send(broker, "live", 100)
        stop = threading.Event()
        sent = [100]

        def produce() -> None:
            while not stop.is_set():
                try:
                    send(broker, "live", 20, first=sent[0])
                except Exception:  # the broker is being killed; the stored messages are read below
                    continue
                finally:
                    sent[0] += 20

        producer = threading.Thread(target=produce)
        reader = spark.readStream.format("aerobee").option("endpoint", broker.endpoint).option("subscribe", "live")
        rows: list[tuple[int, int, bytes]] = []
        writer = (
            reader.load()
            .writeStream.foreachBatch(
                lambda batch, number: rows.extend(
                    (row.queueId, row.queueOffset, bytes(row.body)) for row in batch.collect()
                )
            )
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="200 milliseconds")
        )
        query = retry_worker_start(lambda: caught_up(writer))

        def wait_for_rows(count: int) -> None:
            wait_for(lambda: query.exception() is not None or len(rows) >= count, f"{count} rows")

        try:
            producer.start()
            wait_for_rows(60)
            broker.kill()
            broker.start()
            wait_for_rows(len(rows) + 60)
            stop.set()
            producer.join()
            query.processAllAvailable()
        finally:
            stop.set()
            query.stop()
        stored = spark.read.format("aerobee").option("endpoint", broker.endpoint).option("subscribe", "live").load()
        expected = {(row.queueId, row.queueOffset, bytes(row.body)) for row in stored.collect()}
        first = {(q, o, body) for q, o, body in expected if int(body.split()[1]) < 100}
        assert len(rows) == len(set(rows))
        assert set(rows) == expected - first
        assert len(rows) >= 120


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    spark.conf.set(PUSHDOWN_SETTING, "true")
    yield
    spark.conf.unset(PUSHDOWN_SETTING)


@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("by", ["broker", "queue", "log", "auto"])
def test_the_clock_of_the_broker_moves(spark: Any, moved: BrokerProcess, by: str) -> None:
    """Ahead by a day while it runs, and back while it is stopped: filters on store time miss no message."""
    place = {"endpoint": moved.endpoint} if by == "broker" else {"storePath": str(moved.store), "readBy": by}
    options = {**place, "subscribe": "moved", "pushdown": "true"}
    frame = spark.read.format("aerobee").options(**options).load()
    times = {
        int(row.body.split()[1]): row.t for row in frame.selectExpr("body", "unix_millis(storeTimestamp) t").collect()
    }
    assert set(times) == set(range(900))
    assert max(times[number] for number in range(300)) < min(times[number] for number in range(600, 900))
    ahead = min(times[number] for number in range(300, 600)) - 1000
    assert ahead > max(times[number] for number in range(600, 900))
    limit = f"timestamp '{datetime.fromtimestamp(ahead / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}'"
    assert numbers(frame.where(f"storeTimestamp >= {limit}")) == list(range(300, 600))
    assert numbers(frame.where(f"storeTimestamp < {limit}")) == [*range(300), *range(600, 900)]


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with messages of three times in one queue: now, a day ahead, and now again."""
    with run_broker(tmp_path_factory.mktemp("moved"), moving_time=True) as broker:
        broker.create_topic("moved", queue_count=1)
        send(broker, "moved", 300)
        broker.advance(86_400)
        send(broker, "moved", 300, first=300)
        broker.stop()
        broker.start(clock_moved_seconds=-86_400 + 60)
        send(broker, "moved", 300, first=600)
        yield broker


def test_a_stream_goes_on_while_the_clock_of_the_broker_moves(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    """Offsets alone decide: each message once, whatever its time."""
    rows: list[tuple[Any, ...]] = []
    with run_broker(tmp_path, moving_time=True) as broker:
        broker.create_topic("moved", queue_count=1)
        reader = spark.readStream.format("aerobee").options(endpoint=broker.endpoint, subscribe="moved")
        frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=40).load().select("body")
        for number, move in enumerate((0, 86_400, -86_400)):
            if move > 0:
                broker.advance(move)
            elif move < 0:
                broker.stop()
                broker.start(clock_moved_seconds=move)
            send(broker, "moved", 100, first=100 * number)
            run(frame, checkpoint, rows)
    assert sorted(int(body.split()[1]) for (body,) in rows) == list(range(300))
