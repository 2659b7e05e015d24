"""What queries read of stores, by the readers themselves: no Spark job runs here."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

from aerobee_pipeline.errors import OptionError, RecordDecodeError
from aerobee_pipeline.offsets import Queue, Range
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading import planning
from aerobee_pipeline.reading.planning import packed_ranges
from aerobee_pipeline.source import AerobeeDataSource, BatchReader, PushdownReader, coalesced
from aerobee_store.records import record
from tests.spark.stores import orders, write
from tests.support import golden

PLACE = ["topic", "queueId", "queueOffset"]


def reader(store: Path, *, columns: list[str] = PLACE, **options: str) -> BatchReader:
    """The batch reader of a store."""
    given = {"storePath": str(store), **({} if "subscribe" in options else {"subscribePattern": ".*"}), **options}
    return BatchReader(SourceOptions.parse(given, streaming=False), columns)


def rows(reading: BatchReader) -> Iterator[tuple[Any, ...]]:
    """All rows of a reader's partitions."""
    for partition in reading.partitions():
        for batch in reading.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@pytest.mark.parametrize("name", sorted(path.name for path in golden.CASES_DIRECTORY.iterdir() if path.is_dir()))
def test_every_topic_has_the_rows_of_the_log(name: str, tmp_path: Path) -> None:
    """`auto` gives each topic of every golden store the rows that the log has, whatever else is selected."""
    store = golden.load(name, tmp_path).store
    if not (store / "commitlog").is_dir():
        pytest.skip("a store without a log")
    every = Counter(rows(reader(store, readBy="log", failOnDataLoss="false")))
    for topic in sorted({row[0] for row in every}):
        if topic.startswith("%LMQ%"):
            continue
        expected = {row: count for row, count in every.items() if row[0] == topic}
        found = Counter(rows(reader(store, subscribe=topic, failOnDataLoss="false")))
        assert found == expected, topic


def test_a_store_that_crashed_is_read_from_its_log(tmp_path: Path) -> None:
    """The queues of one topic end early; a query for it alone still has all of its messages."""
    store = tmp_path / "store"
    write(store, orders(600, topics=("orders", "a", "b", "c"), queues=1))
    (store / "abort").touch()
    queue = store / "consumequeue" / "orders" / "0"
    last = max(queue.iterdir())
    last.write_bytes(bytes(last.stat().st_size))
    assert len(set(rows(reader(store, subscribe="orders")))) == 150


def test_messages_behind_the_queues_are_read(tmp_path: Path) -> None:
    """A store that was closed, or is in use, whose queues end before its log."""
    store = tmp_path / "store"
    write(store, orders(600, topics=("orders", "a", "b", "c"), queues=1))
    (store / "abort").unlink(missing_ok=True)
    for topic in ("orders", "a", "b", "c"):
        last = max((store / "consumequeue" / topic / "0").iterdir())
        last.write_bytes(last.read_bytes()[: 20 * 40] + bytes(last.stat().st_size - 20 * 40))
    assert len(set(rows(reader(store, subscribe="orders")))) == 150


def test_a_time_after_all_messages_of_an_empty_queue(tmp_path: Path) -> None:
    """A queue that never had a message has none before the time either: it is no reason to fail."""
    store = tmp_path / "store"
    write(store, orders(60, queues=3))
    (first, *others) = sorted((store / "consumequeue" / "orders" / "2").iterdir())
    assert not others
    first.write_bytes(bytes(first.stat().st_size))
    found = list(rows(reader(store, subscribe="orders", readBy="queue", startingTimestamp="1000")))
    assert {row[1] for row in found} == {0, 1}


def timed(directory: Path, count: int = 6000) -> tuple[Path, list[int]]:
    """A store of several segments, and the store times of its messages."""
    write(directory, orders(count, topics=("orders", "a"), queues=2, size=4000), segment_size=1 << 20)
    found = rows(reader(directory, columns=["storeTimestamp"], readBy="log"))
    return directory, sorted(int(row[0].timestamp() * 1000) for row in found)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    return timed(tmp_path_factory.mktemp("timed") / "store")


@pytest.mark.parametrize("by", ["log", "queue", "auto"])
@pytest.mark.parametrize("way", ["conditions", "options"])
def test_a_time_skips_what_is_outside_of_it(log: tuple[Path, list[int]], by: str, way: str) -> None:
    """A tenth of the time reads about a tenth of the bytes, and has all of its messages."""
    store, times = log
    since, until = times[len(times) * 4 // 10], times[len(times) * 5 // 10]
    limits = {"startingTimestamp": str(since), "endingTimestamp": str(until)} if way == "options" else {}
    options = SourceOptions.parse(
        {"storePath": str(store), "subscribePattern": ".*", "readBy": by, **limits}, streaming=False
    )
    reading = PushdownReader(options, [*PLACE, "storeTimestamp"])
    if way == "conditions":
        begin, end = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (since, until))
        assert not list(
            reading.pushFilters([GreaterThanOrEqual(("storeTimestamp",), begin), LessThan(("storeTimestamp",), end)])
        )
    found = list(rows(reading))
    assert len(found) == len(set(found)) == sum(since <= each < until for each in times)
    plan = reading.plan()
    assert plan.bytes_planned is not None
    assert plan.log_bytes is not None
    assert plan.bytes_planned < plan.log_bytes / 4, str(plan)


def test_keys_are_found_through_the_index(log: tuple[Path, list[int]]) -> None:
    """A condition on the key reads the index and the records that it names."""
    store, _ = log
    options = SourceOptions.parse({"storePath": str(store), "subscribePattern": ".*"}, streaming=False)
    reading = PushdownReader(options, [*PLACE, "keys"])
    wanted = EqualTo(("keys",), "key4444 all")
    assert list(reading.pushFilters([wanted])) == [wanted], "Spark compares the text"
    plan = reading.plan()
    assert plan.way == "index"
    assert plan.bytes_planned is not None
    assert plan.log_bytes is not None
    assert plan.bytes_planned < plan.log_bytes / 4, str(plan)
    whole = [row for row in rows(reader(store, columns=[*PLACE, "keys"], readBy="log")) if row[3] == "key4444 all"]
    assert [row for row in rows(reading) if row[3] == "key4444 all"] == whole
    assert len(whole) == 1


def test_keys_are_found_where_the_index_has_gaps(log: tuple[Path, list[int]], tmp_path: Path) -> None:
    """Files of the index are missing at the beginning, in the middle and at the end: the log is read there."""
    store = tmp_path / "store"
    shutil.copytree(log[0], store)
    files = sorted((store / "index").iterdir())
    assert len(files) > 4
    for file in (files[0], files[len(files) // 2], files[-1]):
        file.unlink()
    for number in (0, 17, 2999, 3000, 3001, 5998, 5999):
        options = SourceOptions.parse({"storePath": str(store), "subscribePattern": ".*"}, streaming=False)
        reading = PushdownReader(options, ["keys"])
        list(reading.pushFilters([EqualTo(("keys",), f"key{number} all")]))
        assert [row for row in rows(reading) if row[0] == f"key{number} all"] == [(f"key{number} all",)], number


def test_small_segments_and_short_ranges_share_a_task(log: tuple[Path, list[int]]) -> None:
    """A task has a fixed cost, so tasks are planned by bytes."""
    store, _ = log
    assert len(list((store / "commitlog").iterdir())) > 4
    for by in ("log", "queue"):
        assert len(reader(store, readBy=by).partitions()) == 1
        assert len(reader(store, readBy=by, minPartitions="4").partitions()) >= 4
    assert len(reader(store, readBy="log", splitBytes="4m").partitions()) > 2


def test_all_cores_read_a_log_that_is_smaller_than_their_splits(
    log: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of less than splitBytes for each core is cut for all of them, unless the ranges would be too small."""
    monkeypatch.setattr(planning, "_SHARED_BYTES_MIN", 4096)
    for cores in (2, 3, 4):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        reading = reader(log[0], readBy="log")
        counts = [sum(batch.num_rows for batch in reading.read(part)) for part in reading.partitions()]
        assert len(counts) == cores
        assert sum(counts) == 6000
    assert len(reader(log[0], readBy="log", splitBytes="4m").partitions()) > 4, "splitBytes still limits them"


def test_ranges_that_share_tasks_are_shared_out_evenly() -> None:
    """Four queues of about 25,000 messages are two tasks of 50,000, whichever has a message more."""
    options = SourceOptions.parse({"endpoint": "h:1", "subscribe": "t"}, streaming=True)
    for sizes in ((25_000,) * 4, (25_003, 25_001, 24_999, 24_997), (24_997, 24_999, 25_001, 25_003)):
        ranges = [Range(Queue("t", "", number), 7, 7 + size) for number, size in enumerate(sizes)]
        assert [len(pack) for pack in packed_ranges(ranges, options)] == [2, 2], sizes
    ranges = [Range(Queue("t", "", number), 0, size) for number, size in enumerate((100, 1, 3, 180_000, 90_000, 1))]
    packs = packed_ranges(ranges, options)
    assert [item for pack in packs for item in pack] == ranges
    strict = SourceOptions.parse(
        {"endpoint": "h:1", "subscribe": "t", "maxRecordsPerPartition": "300"}, streaming=False
    )
    ranges = [Range(Queue("t", "", number), 0, size) for number, size in enumerate((200, 101, 199, 101, 200, 200))]
    assert all(sum(item.end - item.start for item in pack) <= 300 for pack in packed_ranges(ranges, strict))


def test_a_task_has_no_more_messages_than_asked_for(log: tuple[Path, list[int]]) -> None:
    """maxRecordsPerPartition cuts the ranges of queues, and keeps all rows."""
    reading = reader(log[0], maxRecordsPerPartition="400")
    counts = [sum(batch.num_rows for batch in reading.read(part)) for part in reading.partitions()]
    assert sum(counts) == 6000
    assert 300 < max(counts) <= 400


def test_a_body_that_cannot_be_decoded(tmp_path: Path) -> None:
    """It is an error that names the options, or null with the reason beside it; no other row suffers."""
    messages = orders(20, queues=1)
    messages[7] = replace(messages[7], sys_flag=record.SYS_FLAG_COMPRESSED)
    write(tmp_path / "store", messages)
    for by in ("log", "queue"):
        with pytest.raises(RecordDecodeError, match=r"topic 'orders', queue 0, offset 7: .*onBadBody=null"):
            list(rows(reader(tmp_path / "store", columns=["body"], readBy=by)))
        options = {"readBy": by, "onBadBody": "null"}
        found = list(rows(reader(tmp_path / "store", columns=["queueOffset", "body", "decodeError"], **options)))
        assert len(found) == 20
        for offset, body, error in found:
            assert (body is None) == (error is not None) == (offset == 7)
        assert "offset 7" in next(error for _, _, error in found if error)
    assert (
        AerobeeDataSource({"endpoint": "h:1", "subscribe": "t", "onBadBody": "null"})
        .schema()
        .endswith("decodeError string")
    )


def test_create_table_says_what_works() -> None:
    """Spark keeps no options for tables of Python sources."""
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW orders USING aerobee"):
        AerobeeDataSource({"storePath": "/s", "subscribe": "t", "provider": "aerobee", "owner": "root"}).schema()
    with pytest.raises(OptionError, match="lose their options: use CREATE TEMPORARY VIEW"):
        AerobeeDataSource({}).schema()


def test_small_batches_are_joined_and_large_ones_are_not_copied() -> None:
    """Spark gets the rows in their order, in batches of some thousand; a batch of that size is passed on as it is."""
    sizes = [10, 0, 9000, 8192, 5000, 4000, 1, 0, 20_000, 3]
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    batches = [pa.RecordBatch.from_pydict({"n": range(end - size, end)}) for size, end in zip(sizes, ends, strict=True)]
    found = list(coalesced(batches))
    assert [batch.num_rows for batch in found] == [10, 9000, 8192, 9000, 1, 20_000, 3]
    assert [value for batch in found for value in batch.column("n").to_pylist()] == list(range(sum(sizes)))
    for number in (2, 3, 8):
        assert any(batch is batches[number] for batch in found)
