"""`spark.read.format("aerobee")` on store files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aerobee_pipeline import kafka_view
from aerobee_pipeline.offsets import Queue, Range
from aerobee_pipeline.reading.selection import Condition, selected_part
from aerobee_pipeline.session import PUSHDOWN_SETTING
from aerobee_store import MessageStore
from tests.spark.stores import config, orders, write
from tests.support import golden

COUNT = 1800


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages of three topics in about a dozen segments."""
    directory = tmp_path_factory.mktemp("stores") / "store"
    write(directory, orders(COUNT, topics=("orders", "payments", "größe"), queues=3))
    return directory


def read(spark: Any, store: Path | dict[str, str], schema: str | None = None, **options: Any) -> Any:
    path = json.dumps(store) if isinstance(store, dict) else str(store)
    reader = spark.read.format("aerobee").option("storePath", path).options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def places(frame: Any) -> set[tuple[str, int, int]]:
    rows = [tuple(row) for row in frame.select("topic", "queueId", "queueOffset").collect()]
    assert len(set(rows)) == len(rows), "no row twice"
    return set(rows)


def test_both_ways_of_reading_give_equal_frames(spark: Any, store: Path) -> None:
    """Reading the log in splits and reading by consume queues give the same rows and columns."""
    options = {"subscribe": "orders,größe", "includeProperties": "true", "includeSystem": "true"}
    frames = [read(spark, store, readBy=by, splitBytes="20k", **options) for by in ("log", "queue")]
    rows = [sorted(map(repr, frame.collect())) for frame in frames]
    assert len(rows[0]) == COUNT * 2 // 3
    assert rows[0] == rows[1]
    assert frames[0].rdd.getNumPartitions() > 5


@pytest.mark.parametrize("name", ["plain", "kinds", "wide", "propcrc", "v43", "batch-cq", "deleted-head"])
def test_stores_written_by_rocketmq(spark: Any, name: str, tmp_path: Path) -> None:
    """Both ways return what the golden store's manifest lists."""
    case = golden.load(name, tmp_path)
    expected = {
        (topic, int(queue_id), number)
        for topic, queues in case.manifest["recovery"]["lossless"]["queues"].items()
        for queue_id, (first, last) in queues.items()
        for number in range(first, last)
        if not topic.startswith("%LMQ%")
    }
    for by in ("log", "queue"):
        frame = read(spark, case.store, subscribePattern="(?!%LMQ%).*", readBy=by, splitBytes="8k")
        assert places(frame) == expected


def test_a_narrow_schema_in_any_order(spark: Any, store: Path) -> None:
    """A user's schema prunes columns; unknown columns fail at planning."""
    frame = read(spark, store, "tags string, queueOffset bigint", subscribe="orders")
    assert frame.columns == ["tags", "queueOffset"]
    assert {row.tags for row in frame.collect()} == {"paid", "refunded", "größer"}
    with pytest.raises(Exception, match="unknown column 'value'"):
        read(spark, store, "value binary", subscribe="orders").collect()


def test_start_and_end_offsets(spark: Any, store: Path) -> None:
    """Both ways agree for limits by offset and by time."""
    starting = json.dumps({"orders": {"0": 10, "1": -2, "2": 150}})
    ending = json.dumps({"orders": {"0": 20, "1": 5}})
    for by in ("log", "queue"):
        frame = read(spark, store, subscribe="orders", startingOffsets=starting, endingOffsets=ending, readBy=by)
        found = places(frame)
        assert {number for _, queue, number in found if queue == 0} == set(range(10, 20))
        assert {number for _, queue, number in found if queue == 1} == set(range(5))
        assert {number for _, queue, number in found if queue == 2} == set(range(150, COUNT // 9))
        times = [
            row.t
            for row in read(spark, store, subscribe="orders").selectExpr("unix_millis(storeTimestamp) t").collect()
        ]
        middle = sorted(times)[len(times) // 2]
        late = read(spark, store, subscribe="orders", startingTimestamp=middle, readBy=by)
        early = read(spark, store, subscribe="orders", endingTimestamp=middle, readBy=by)
        assert places(late) | places(early) == places(read(spark, store, subscribe="orders"))
        assert not places(late) & places(early)


def test_empty_and_missing_topics(spark: Any, store: Path) -> None:
    """An empty range gives an empty frame; an unknown topic is an error."""
    nothing = json.dumps({"orders": {"0": 5, "1": 5, "2": 5}})
    beyond = json.dumps({"orders": {"0": 5000}})
    missing = json.dumps({"orders": {"7": 0}})
    for by in ("log", "queue"):
        frame = read(spark, store, subscribe="orders", startingOffsets=nothing, endingOffsets=nothing, readBy=by)
        assert frame.collect() == []
        with pytest.raises(Exception, match=r"topic 'orders', queue 0: message 4999 is asked for, but it ends at 200"):
            read(spark, store, subscribe="orders", endingOffsets=beyond, readBy=by).collect()
        with pytest.raises(Exception, match=r"topic 'orders', queue 0: it ends at 200, before offset 5000"):
            read(spark, store, subscribe="orders", startingOffsets=beyond, readBy=by).collect()
        with pytest.raises(Exception, match=r"endingOffsets: topic 'orders', queue 7 does not exist"):
            read(spark, store, subscribe="orders", endingOffsets=missing, readBy=by).collect()
    with pytest.raises(Exception, match=r"topic 'nobody'.* has no queue of this topic"):
        read(spark, store, subscribe="nobody", readBy="queue").collect()
    with pytest.raises(Exception, match="not a directory; name the directory that contains commitlog"):
        read(spark, store / "none", subscribe="orders").collect()


def test_tags_queues_and_partitions(spark: Any, store: Path) -> None:
    """Tag filter, assigned queues, and a minimum number of partitions."""
    for by in ("log", "queue"):
        frame = read(spark, store, subscribe="orders", subExpression="paid || größer", readBy=by)
        assert {row.tags for row in frame.collect()} == {"paid", "größer"}
        frame = read(spark, store, assign='{"orders": [1], "payments": [0, 2]}', readBy=by)
        assert {place[:2] for place in places(frame)} == {("orders", 1), ("payments", 0), ("payments", 2)}
    frame = read(spark, store, subscribe="orders", readBy="queue", minPartitions=9)
    assert frame.rdd.getNumPartitions() == 9
    assert frame.count() == COUNT // 3
    few = read(spark, store, subscribe="orders", readBy="log")
    many = read(spark, store, subscribe="orders", readBy="log", minPartitions=3 * few.rdd.getNumPartitions())
    assert many.rdd.getNumPartitions() > 2 * few.rdd.getNumPartitions()
    assert places(many) == places(few)


def test_filters_are_pushed_down(spark: Any, store: Path) -> None:
    """With option and setting, filters reach the source; the results are the same with and without."""
    conditions = [
        "topic = 'orders' and queueId in (0, 2) and queueOffset >= 40 and tags is not null",
        "topic in ('orders', 'payments') and queueId <= 1 and queueOffset > 10 and queueOffset < 13",
        "topic = 'orders' and queueOffset in (7, 9, 300) and tags = 'größer'",
        "tags in ('paid', 'refunded') and physicalOffset < 100000",
    ]
    whole = "topic string, queueId int, queueOffset bigint, tags string, physicalOffset bigint"
    for condition in conditions:
        plain = places(read(spark, store, whole, subscribePattern=".*").where(condition))
        assert plain
        spark.conf.set(PUSHDOWN_SETTING, "true")
        try:
            for by in ("auto", "log", "queue"):
                frame = read(spark, store, whole, subscribePattern=".*", pushdown="true", readBy=by).where(condition)
                assert places(frame) == plain
                plan = frame._jdf.queryExecution().executedPlan().toString()
                left = plan.split("Filter", 1)[1].split("\n")[0] if "Filter" in plan else ""
                assert "queueOffset" not in left
                assert "tags" not in left.replace("isnotnull(tags", "")
        finally:
            spark.conf.set(PUSHDOWN_SETTING, "false")


def test_filters_reduce_what_is_read() -> None:
    """Only selected queues are read, and of them only selected offsets."""
    queue = Queue("orders", "", 2)
    cases = [
        ([Condition("topic", "=", "payments")], None),
        ([Condition("topic", "in", ("orders", "x")), Condition("queueId", ">=", 2)], Range(queue, 10, 20)),
        ([Condition("queueId", "in", (0, 1))], None),
        ([Condition("queueOffset", ">", 12), Condition("queueOffset", "<", 15)], Range(queue, 13, 15)),
        ([Condition("queueOffset", ">=", 12), Condition("queueOffset", "<=", 15)], Range(queue, 12, 16)),
        ([Condition("queueOffset", "=", 19)], Range(queue, 19, 20)),
        ([Condition("queueOffset", "=", 20)], None),
        ([Condition("queueOffset", "in", (3, 14, 11))], Range(queue, 10, 15)),
        ([Condition("storeTimestamp", ">", 5)], Range(queue, 10, 20)),
    ]
    for conditions, expected in cases:
        assert selected_part(Range(queue, 10, 20), conditions) == expected


def test_deleted_topics_stay_deleted(spark: Any, tmp_path: Path) -> None:
    """The log still has their records, and neither way of reading returns them."""
    write(tmp_path / "store", orders(60, topics=("orders", "payments"), queues=1))
    with MessageStore.open(config(tmp_path / "store")) as store:
        store.delete_topic("orders")
    write(tmp_path / "store", orders(5, topics=("orders",), queues=1))
    frames = [read(spark, tmp_path / "store", subscribePattern=".*", readBy=by) for by in ("log", "queue")]
    expected = {("payments", 0, number) for number in range(30)} | {("orders", 0, 30 + number) for number in range(5)}
    assert [places(frame) for frame in frames] == [expected, expected]
    table = tmp_path / "store" / "config" / "deletedTopics.json"
    table.write_text(table.read_text().replace('"physicalOffset":', '"physicalOffset":1'))
    with pytest.raises(Exception, match=r"deletedTopics.json: not a table of deleted topics"):
        read(spark, tmp_path / "store", subscribePattern=".*", readBy="log").collect()
    kept = read(spark, tmp_path / "store", subscribePattern=".*", readBy="log", failOnDataLoss="false")
    assert kept.count() == 65


def test_several_stores_in_one_data_frame(spark: Any, store: Path, tmp_path: Path) -> None:
    """Each row has its broker's name."""
    write(tmp_path / "other", orders(100))
    stores = {"broker-a": str(store), "broker-b": str(tmp_path / "other")}
    for by in ("log", "queue"):
        frame = read(spark, stores, subscribe="orders", readBy=by)
        counts = {row.brokerName: row["count"] for row in frame.groupBy("brokerName").count().collect()}
        assert counts == {"broker-a": COUNT // 3, "broker-b": 100}


def test_lost_messages_are_an_error_or_a_gap(spark: Any, store: Path, tmp_path: Path) -> None:
    """A damaged record, and a start before the earliest message."""
    shutil.copytree(store, tmp_path / "store")
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    for by in ("log", "queue"):
        with pytest.raises(Exception, match=r"DataLossError.*(no record can be read at|its unit names)"):
            read(spark, tmp_path / "store", subscribePattern=".*", readBy=by).collect()
        kept = read(spark, tmp_path / "store", subscribePattern=".*", readBy=by, failOnDataLoss="false")
        assert kept.count() == COUNT - 1
    for file in sorted((tmp_path / "store" / "commitlog").iterdir())[:3]:
        file.unlink()
    starting = json.dumps({"orders": {"0": 0}})
    for by in ("log", "queue"):
        with pytest.raises(Exception, match=r"topic 'orders', queue 0: messages 0 to \d+ are gone"):
            read(spark, tmp_path / "store", subscribe="orders", readBy=by, startingOffsets=starting).collect()
        read(spark, tmp_path / "store", subscribe="orders", readBy=by).collect()


def test_options_with_kafkas_names(spark: Any, store: Path) -> None:
    """A job ported from Kafka finds its columns."""
    frame = kafka_view(read(spark, store, subscribe="orders"))
    assert {"key", "value", "topic", "partition", "offset", "timestamp"} <= set(frame.columns)


def test_arrow_schema_is_what_spark_expects() -> None:
    """Spark checks only a task's first batch against the schema; a later mismatch gives an obscure error."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import _parse_datatype_string

    from aerobee_pipeline.reading.schema import COLUMNS, arrow_schema, spark_ddl

    parsed = _parse_datatype_string(spark_ddl(COLUMNS))
    assert to_arrow_schema(parsed, timezone="UTC") == arrow_schema(COLUMNS)
