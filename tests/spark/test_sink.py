"""`frame.write.format("aerobee")`: rows become messages, stored when the write returns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_pipeline import from_kafka_view, kafka_view
from aerobee_pipeline.errors import RowError
from aerobee_pipeline.options import SinkOptions
from aerobee_pipeline.worker_start import retry_worker_start
from aerobee_pipeline.writing import sink
from aerobee_pipeline.writing.encode import chunks, message_ids, property_strings, row_ids
from aerobee_pipeline.writing.row_checks import check_rows
from aerobee_proto import records_v1, v2
from aerobee_store.records.properties import jump_hash
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.verify import verify


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with run_broker(tmp_path_factory.mktemp("broker")) as process:
        yield process
        process.stop()
        assert verify(process.store).ok, "what the sink wrote is a clean store"


def read(spark: Any, broker: BrokerProcess, topic: str) -> Any:
    reader = spark.read.format("aerobee").option("endpoint", broker.endpoint).option("subscribe", topic)
    return reader.option("includeProperties", "true").load()


@contextmanager
def small_batches(spark: Any) -> Iterator[None]:
    """Batches of ten rows, so that the sink has stored some when a task fails."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "10")
    try:
        yield
    finally:
        spark.conf.set(name, before)


def write(frame: Any, broker: BrokerProcess, topic: str | None = None, **options: Any) -> None:
    writer = frame.write.format("aerobee").mode("append").option("endpoint", broker.endpoint).options(**options)
    (writer if topic is None else writer.option("topic", topic)).save()


def test_encoded_rows_are_records(tmp_path: Path) -> None:
    """The codec reads back what the sink encodes, including odd text and long topics."""
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"", b"x" * 3000, "größe".encode(), b"\x00\x01"], pa.binary()),
            "keys": pa.array(["a b", None, "", "ключ"]),
            "tags": pa.array([None, "t", "標籤", "t"]),
            "properties": pa.array(
                [[("n", "1"), ("TAGS", "no")], None, [], [("m", "ü"), ("empty", ""), ("none", None)]],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    )
    texts = property_strings(rows, message_ids(7, 10, 4), ("SPARK_ID", row_ids("job:3", 10, 4)))
    for topic in ("t", "größe" * 40):
        for size_max in (1, 1 << 20):
            found = list(chunks(topic, rows.column("body"), texts, iter(range(100)), size_max))
            assert len(found) == (4 if size_max == 1 else 1)
            records = [RecordBatch.parse(chunk.records, base_physical_offset=None, placed=False) for _, chunk in found]
            items = [batch.record(number) for batch in records for number in range(len(batch))]
            assert [item.body for item in items] == rows.column("body").to_pylist()
            assert {item.topic for item in items} == {topic}
            values = [{k: v for k, v in item.properties.items() if k != "__CRC32#"} for item in items]
            ids = [{"UNIQ_KEY": f"{7:016X}{number:016X}", "SPARK_ID": f"job:3:{number}"} for number in range(10, 14)]
            assert values == [
                ids[0] | {"KEYS": "a b", "n": "1"},
                ids[1] | {"TAGS": "t"},
                ids[2] | {"TAGS": "標籤"},
                ids[3] | {"KEYS": "ключ", "TAGS": "t", "m": "ü"},
            ]


def rows_with(**columns: list[Any]) -> pa.RecordBatch:
    """Three rows with a body, whose other columns are given."""
    types = {"body": pa.binary(), "properties": pa.map_(pa.string(), pa.string())}
    columns = {"body": [b"x"] * 3, **columns}
    arrays = {name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (rows_with(body=[b"x", b"", b"x"]), r"row 11 of the task, column 'body': .* is empty"),
        (rows_with(body=[b"x", b"x", b"x" * 101]), r"row 12 .*'body': .* has 101 bytes, the limit is 100"),
        (rows_with(body=[b"x", None, b""]), r"row 11 .*'body': it is null"),
        (rows_with(tags=["a", "a|b", "c"]), r"row 11 .*'tags': tag 'a\|b'"),
        (rows_with(tags=["a\x02b", None, ""]), r"row 10 .*'tags'.*control character"),
        (rows_with(tags=[" ", None, ""]), r"row 10 .*'tags'.*is blank"),
        (rows_with(keys=["", None, "a b\x7f"]), r"row 12 .*'keys': key 'a b.*control character"),
        (rows_with(keys=["", " a", "  "]), r"row 12 .*'keys'.*is blank"),
        (rows_with(messageGroup=[None, " ", "g"]), r"row 11 .*'messageGroup'.*is blank"),
        (rows_with(messageGroup=["g" * 64, None, "g"]), r"row 10 .*'messageGroup'.*more than 63 bytes"),
        (rows_with(properties=[None, [], [("a", "b"), ("c", "\x01")]]), r"row 12 .*'properties': .*'c' contains"),
        (rows_with(properties=[[("", "b")], [], []]), r"row 10 .*'properties': .* empty name"),
        (rows_with(properties=[[(f"n{n}", "") for n in range(129)], [], []]), r"'properties': .* 129 user .* 128"),
        (rows_with(keys=["k" * 9000] * 3, tags=["t" * 8000] * 3), r"row 10 .*'keys, tags'.* 17000 bytes, .* 16384"),
        (rows_with(keys=["k", "k" * 16000, "k"], properties=[[], [("n", "v" * 400)], []]), r"row 11 .* 16401 bytes"),
    ],
)
def test_rows_that_no_broker_stores_are_refused(rows: pa.RecordBatch, message: str) -> None:
    """The error has the row, the column and the limit; parts of a longer array are read at their place."""
    with pytest.raises(RowError, match=message):
        check_rows(rows, 100, 10)
    twice = pa.Table.from_batches([rows.slice(0, 0), rows]).combine_chunks().to_batches()[0]
    with pytest.raises(RowError, match=message):
        check_rows(pa.concat_batches([rows_of_ones(rows.schema), twice]).slice(3), 100, 10)


def rows_of_ones(schema: pa.Schema) -> pa.RecordBatch:
    """Three valid rows of these columns, with one property more each."""
    values: dict[str, Any] = {"body": b"1", "properties": [("one", "1")]}
    return pa.RecordBatch.from_pylist([{name: values.get(name, "1") for name in schema.names}] * 3, schema)


def test_rows_that_brokers_store_are_accepted() -> None:
    """The longest body, reserved properties, nulls and empty texts, which are left out, and text of any script."""
    rows = rows_with(
        body=[b"x" * 100, b"x", b"x"],
        keys=[None, "", "ключ  b"],
        tags=["größe", None, ""],
        messageGroup=["g" * 63, None, "標"],
        properties=[None, [("KEYS", "\x01"), ("n", None)], [(f"n{n}", "ü") for n in range(128)]],
    )
    check_rows(rows, 100, 0)
    check_rows(rows.slice(1, 0), 100, 0)


def test_a_refused_row_fails_the_job_once(spark: Any, broker: BrokerProcess) -> None:
    """No task is repeated, and nothing of the task was sent."""
    size = f"if(id = 25, {(4 << 20) + 1}, 1)"
    frame = spark.range(0, 40, 1, 1).selectExpr(f"concat(id, ' ', repeat('x', {size})) body")
    with small_batches(spark), pytest.raises(Exception, match=r"row 25 of the task, column 'body'.*limit is 4194304"):
        write(frame, broker, "refused")
    broker.create_topic("refused")
    assert read(spark, broker, "refused").count() == 0


def test_a_task_is_checked_ahead_within_a_bound() -> None:
    """A batch is taken when all that follow it within the bound are checked, and all are taken in their order."""
    batches = [pa.record_batch({"body": [bytes([number]) * 100] * 10}) for number in range(6)]
    events: list[tuple[str, int]] = []

    def check(batch: pa.RecordBatch, first_row: int) -> None:
        assert batch.column(0)[0].as_py()[0] == first_row // 10
        events.append(("checked", first_row))

    for batch in sink.checked_ahead(check, batches, 3 * batches[0].nbytes):
        events.append(("taken", batch.column(0)[0].as_py()[0] * 10))
    ahead = [("checked", row) for row in (0, 10, 20)]
    both = [event for row in (30, 40, 50) for event in (("checked", row), ("taken", row - 30))]
    assert events == [*ahead, *both, *(("taken", row) for row in (30, 40, 50))]


def test_rows_in_the_words_of_kafka(spark: Any, broker: BrokerProcess) -> None:
    """What a job writes for Kafka is written and read back; headers may be pairs or a map."""
    frame = spark.range(20).selectExpr(
        "cast(concat('k', id) as binary) key",
        "concat('body ', id) value",
        "array(struct('n' as key, cast(cast(id as string) as binary) as value)) headers",
        "cast(id % 2 as int) partition",
        "'words' topic",
    )
    write(from_kafka_view(frame), broker)
    seen = kafka_view(read(spark, broker, "words"))
    rows = seen.collect()
    assert {"key", "value", "headers", "partition", "offset", "timestamp"} <= set(seen.columns)
    assert len(rows) == 20
    for row in rows:
        number = int(row.headers["n"])
        assert (row.key, bytes(row.value), row.partition) == (f"k{number}", f"body {number}".encode(), number % 2)
    write(from_kafka_view(seen).drop("brokerName", "msgId", "tags", "bornTimestamp", "topic"), broker, "words2")
    assert read(spark, broker, "words2").count() == 20


def test_every_column(spark: Any, broker: BrokerProcess) -> None:
    """Rows are read back as written; message ids and dedup ids are unique."""
    frame = spark.range(3000).selectExpr(
        "cast(concat('body ', id) as binary) body",
        "concat('k', id) keys",
        "if(id % 2 = 0, 'even', null) tags",
        "map('n', cast(id as string), 'KEYS', 'not this') properties",
        "if(id % 3 = 0, 'thirds', 'others') topic",
        "if(id % 5 = 0, 1, null) queueId",
    )
    write(frame.repartition(3), broker)
    found = read(spark, broker, "thirds,others").collect()
    assert len(found) == 3000
    by_number = {int(row.properties["n"]): row for row in found}
    assert sorted(by_number) == list(range(3000))
    for number, row in by_number.items():
        assert (row.body, row["keys"]) == (f"body {number}".encode(), f"k{number}")
        assert row.tags == ("even" if number % 2 == 0 else None)
        assert row.topic == ("thirds" if number % 3 == 0 else "others")
        assert number % 5 or row.queueId == 1
    assert len({row.msgId for row in found}) == len({row.properties["SPARK_ID"] for row in found}) == 3000


def test_invalid_rows_are_refused(spark: Any, broker: BrokerProcess) -> None:
    """Overwriting, other columns, no topic, and an unknown queue."""
    frame = spark.range(5).selectExpr("cast('x' as binary) body")
    with pytest.raises(Exception, match="messages in a topic cannot be replaced"):
        frame.write.format("aerobee").mode("overwrite").options(endpoint=broker.endpoint, topic="t").save()
    with pytest.raises(Exception, match="column 'value'"):
        write(frame.withColumnRenamed("body", "value"), broker, "t")
    with pytest.raises(Exception, match="option topic, or a column"):
        write(frame, broker)
    write(frame, broker, "t")
    with pytest.raises(Exception, match=r"topic 't'.*no queue 99"):
        write(frame.selectExpr("body", "99 queueId"), broker, "t")


def test_a_repeated_task_stores_the_same_message_ids(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """A task that fails at its last row is retried: rows stored before are there twice, with the same ids."""

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        marker = tmp_path / "failed"
        for batch in batches:
            if not marker.exists() and "999" in set(batch["body"]):
                marker.touch()
                batch["queueId"] = 99  # the broker has none, and refuses the row
            yield batch

    rows = spark.range(0, 1000, 1, 1).selectExpr("cast(id as string) body", "cast(id % 2 as int) queueId")
    frame = rows.mapInPandas(fail_once, "body string, queueId int")
    with small_batches(spark):
        write(frame, broker, "repeated", jobId="job-1", batchBytes="1k")
    found = read(spark, broker, "repeated").selectExpr("body", "properties['SPARK_ID'] id", "msgId").collect()
    assert 1000 < len(found) <= 2000
    assert len({bytes(row.body) for row in found}) == 1000
    assert len({(bytes(row.body), row.id, row.msgId) for row in found}) == 1000
    assert all(row.id.startswith("job-1:0:") for row in found)


def test_order_in_a_queue(spark: Any, broker: BrokerProcess) -> None:
    """With one sorted partition per queue, a queue's messages are in that order."""
    frame = spark.range(6000).selectExpr("cast(id as string) body", "cast(id % 2 as int) queueId", "id")
    frame = frame.repartition(2, "queueId").sortWithinPartitions("id").drop("id")
    write(frame, broker, "ordered", batchBytes="4k", maxInFlight="8")
    rows = read(spark, broker, "ordered").orderBy("queueId", "queueOffset").collect()
    for queue in (0, 1):
        assert [int(row.body) for row in rows if row.queueId == queue] == list(range(queue, 6000, 2))


class RefusingRecords:
    """Answers appends like a broker that refuses every third request at first."""

    def __init__(self) -> None:
        self.stored: dict[int, list[bytes]] = {}
        self.requests: list[tuple[str, int, list[bytes]]] = []
        self._refused: set[bytes] = set()

    def StreamAppendRecords(self, requests: Iterator[Any], metadata: Any) -> Iterator[Any]:
        for number, request in enumerate(requests):
            if number % 3 == 0 and request.records not in self._refused:
                self._refused.add(request.records)
                status = v2.Status(code=v2.Code.TOO_MANY_REQUESTS, message="busy")
                yield records_v1.AppendRecordsResponse(status=status)
                continue
            batch = RecordBatch.parse(request.records, base_physical_offset=None, placed=False)
            bodies = [bytes(batch.body(row)) for row in range(len(batch))]
            self.stored.setdefault(request.queue_id, []).extend(bodies)
            self.requests.append((request.topic.name, request.queue_id, bodies))
            yield records_v1.AppendRecordsResponse(status=v2.Status(code=v2.Code.OK), message_count=len(batch))


def task_at(monkeypatch: pytest.MonkeyPatch, records: RefusingRecords, **options: str) -> sink._Task:
    """A task of the sink whose broker has queues 0 to 2."""
    fake = SimpleNamespace(
        records=records, metadata=tuple, body_size_max=lambda: 100, writable_queues=lambda topic: [0, 1, 2]
    )
    monkeypatch.setattr(sink, "Broker", lambda address: fake)
    monkeypatch.setattr("aerobee_pipeline.writing.record_appender.time.sleep", lambda seconds: None)
    return sink._Task(SinkOptions.parse({"endpoint": "h:1", "batchBytes": "1k", "maxInFlight": "8", **options}), "j")


def test_order_with_a_busy_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused requests are sent again before later rows of their queue."""
    records = RefusingRecords()
    task = task_at(monkeypatch, records, topic="t")
    bodies = [b"%d" % number for number in range(400)]
    queues = pa.array([number % 3 for number in range(400)], pa.int32())
    task.take(pa.RecordBatch.from_arrays([pa.array(bodies), queues], ["body", "queueId"]))
    task.finish()
    assert records.stored == {queue: bodies[queue::3] for queue in range(3)}


def test_rows_of_several_topics_and_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row goes to its topic, and to its queue if it has one; -7 and null mean any queue."""
    records = RefusingRecords()
    task = task_at(monkeypatch, records)
    given = [("a", 0), ("b", 2), ("a", None), ("b", -7), ("a", 2), ("b", 0), ("b", None), ("c", -7), ("a", 1)]
    rows = [(b"%d" % number, *given[number % len(given)]) for number in range(90)]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    task.take(pa.RecordBatch.from_arrays(columns, ["body", "topic", "queueId"]))
    task.finish()
    where = {body: (topic, queue) for topic, queue, bodies in records.requests for body in bodies}
    for body, topic, queue in rows:
        assert where[body][0] == topic
        assert where[body][1] == queue if queue is not None and queue >= 0 else where[body][1] in (0, 1, 2)


def test_a_queue_beyond_all_numbers_is_refused() -> None:
    """A number that no request can carry is an error of its row."""
    rows = pa.record_batch({"body": [b"x", b"y"], "queueId": pa.array([0, 1 << 40], pa.int64())})
    with pytest.raises(RowError, match=r"row 1 of the task, column 'queueId': 1099511627776 is no queue's number"):
        check_rows(rows, 100, 0)


def test_a_row_needs_a_topic() -> None:
    """Its own, if the option gives none."""
    rows = pa.record_batch({"body": [b"x", b"y"], "topic": ["t", None]})
    with pytest.raises(RowError, match="row 1 of the task, column 'topic': it is null, and the option topic"):
        check_rows(rows, 100, 0, has_topic=False)
    check_rows(rows, 100, 0)


def test_ordered_groups(spark: Any, broker: BrokerProcess) -> None:
    """Message groups keep their order, in the queue that the broker would choose."""
    queues = 5
    broker.create_topic("fifo", "fifo", queue_count=queues)
    frame = spark.range(0, 200, 1, 1).selectExpr("cast(id as string) body", "concat('g', id % 3) messageGroup")
    write(frame, broker, "fifo", batchBytes="1k")
    rows = read(spark, broker, "fifo").orderBy("queueOffset").collect()
    for group in range(3):
        mine = [row for row in rows if int(row.body) % 3 == group]
        assert [int(row.body) for row in mine] == list(range(group, 200, 3))
        assert {row.queueId for row in mine} == {jump_hash(f"g{group}", queues)}, "where the broker would put them"
    with pytest.raises(Exception, match="queueId and messageGroup: the group determines the queue"):
        write(frame.selectExpr("*", "1 queueId"), broker, "fifo")


def test_delayed_rows(spark: Any, broker: BrokerProcess) -> None:
    """The broker's timer keeps delayed messages until they are due; then their queue has them as they were sent."""
    broker.create_topic("late", "delay", queue_count=4)
    hour, count = "current_timestamp() + interval 1 hour", 3000
    frame = spark.range(0, count, 1, 1).selectExpr(
        "concat('body ', id) body",
        "concat('k', id) keys",
        "'t' tags",
        "map('n', cast(id as string)) properties",
        "if(id % 4 = 0, 2, null) queueId",
        f"if(id % 10 = 0, {hour}, timestamp_millis(946684800000 + id)) deliverTimestamp",
    )
    write(frame, broker, "late", batchBytes="16k")
    due = {number for number in range(count) if number % 10}
    deadline = time.monotonic() + 120
    while (found := read(spark, broker, "late").collect()) and len(found) < len(due) and time.monotonic() < deadline:
        time.sleep(0.2)
    by_number = {int(row.properties["n"]): row for row in found}
    assert (len(found), set(by_number)) == (len(due), due)
    for number, row in by_number.items():
        assert (row.body, row["keys"], row.tags) == (f"body {number}".encode(), f"k{number}", "t")
        assert row.properties["TIMER_DELIVER_MS"] == str(946684800000 + number)
        assert number % 4 or row.queueId == 2
    assert len({row.queueId for number, row in by_number.items() if number % 4}) == 3, "a thousand to each in turn"
    kept = spark.read.format("aerobee").options(storePath=str(broker.store), readBy="log", includeProperties="true")
    waiting = kept.option("subscribe", "rmq_sys_wheel_timer").load().where("properties['n'] % 10 = 0").collect()
    assert {int(row.properties["n"]) for row in waiting} == set(range(count)) - due


def test_invalid_delayed_rows_are_refused(spark: Any, broker: BrokerProcess) -> None:
    """A topic of another type, a message group, a time too far ahead."""
    broker.create_topic("late2", "delay", queue_count=2)
    broker.create_topic("fifo2", "fifo", queue_count=2)
    frame = spark.range(0, 20, 1, 1).selectExpr("cast(id as string) body", "current_timestamp() deliverTimestamp")
    with pytest.raises(Exception, match=r"topic 'fifo2' takes FIFO messages, but this one is DELAY"):
        write(frame, broker, "fifo2")
    with pytest.raises(Exception, match=r"topic 'late2' takes DELAY messages, but this one is FIFO"):
        write(frame.selectExpr("body", "'g' messageGroup"), broker, "late2")
    with pytest.raises(Exception, match=r"row 7 of the task.*a delayed message is in no group"):
        write(frame.selectExpr("*", "if(body = '7', 'g', null) messageGroup"), broker, "late2")
    with pytest.raises(Exception, match="s ahead, the limit"):
        write(frame.selectExpr("body", "timestamp '2200-01-01' deliverTimestamp"), broker, "late2")
    assert read(spark, broker, "late2").count() == 0


def test_a_restarted_stream_repeats_its_batch(
    spark: Any, broker: BrokerProcess, checkpoint: str, tmp_path: Path
) -> None:
    """A micro-batch that failed after some tasks had stored their rows is repeated with the same ids."""
    write(spark.range(400).selectExpr("cast(id as string) body"), broker, "from")
    source = spark.readStream.format("aerobee").option("endpoint", broker.endpoint).option("subscribe", "from")
    marker = tmp_path / "failing"
    marker.touch()

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if marker.exists() and b"399" in set(batch["body"]):
                batch["body"] = None
            yield batch

    tasks = source.option("maxRecordsPerPartition", "100")
    frame = tasks.option("startingOffsets", "earliest").load().select("body")
    frame = frame.mapInPandas(fail, "body binary")

    def run() -> None:
        writer = frame.writeStream.format("aerobee").option("endpoint", broker.endpoint).option("topic", "to")
        query = (
            writer.option("checkpointLocation", checkpoint)
            .option("batchBytes", "1k")
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()

    with small_batches(spark), pytest.raises(Exception, match="column 'body': it is null"):
        retry_worker_start(run)
    marker.unlink()
    retry_worker_start(run)
    found = read(spark, broker, "to").selectExpr("body", "properties['SPARK_ID'] id").collect()
    assert len({bytes(row.body) for row in found}) == 400
    assert len({(bytes(row.body), row.id) for row in found}) == 400
    assert len(found) > 400, "other tasks of the failed attempt had stored theirs"
