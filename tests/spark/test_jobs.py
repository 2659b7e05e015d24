"""Jobs on stores: audit, rebuild, export, replay, statistics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aerobee_client import Message, connect
from aerobee_client.testing import run_broker
from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs import TableOptions, audit, export, keep_table, lag, rebuild, replay, statistics
from aerobee_pipeline.options import SourceOptions, Subscription
from aerobee_pipeline.reading.queue_access import open_access
from aerobee_store import MessageStore
from aerobee_store.queues.index_file import ENTRY_SIZE
from aerobee_store.records import record
from aerobee_store.tools.index_layout import IndexFileReader, open_index
from aerobee_store.tools.store_files import ReadOnlyDisk
from aerobee_store.tools.verify import verify
from tests.spark.stores import HOST, config, orders, write
from tests.support import golden

COUNT = 1500
SPLIT = 32 << 10


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stores") / "store"
    write(directory, orders(COUNT, topics=("orders", "größe"), queues=3))
    return directory


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def kinds(result: Any) -> list[str]:
    return sorted(row[0] for row in result.rows)


def test_a_clean_store_has_no_findings(spark: Any, store: Path) -> None:
    """Queues and index are compared, too; the figures equal those of `aerobee store verify`."""
    result = audit(spark, store, split_bytes=SPLIT)
    report = verify(store)
    assert (result.rows, result.exit_status, report.ok) == ([], 0, True)
    assert (result.facts["records"], result.facts["bytes"]) == (report.records, report.bytes)
    assert result.facts["splits"] > 3


def test_injected_damage_is_found(spark: Any, store: Path, tmp_path: Path) -> None:
    """A flipped bit in the log, a wrong queue entry, a missing one, and a missing index entry."""
    shutil.copytree(store, tmp_path / "store")
    copy = tmp_path / "store"
    log = copy / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[5000] ^= 4
    log.write_bytes(data)
    result = audit(spark, {"b": copy}, split_bytes=SPLIT)
    assert kinds(result)[-1] == "log-damaged"
    damaged = next(row for row in result.rows if row[0] == "log-damaged")
    assert damaged[2] == "b"
    assert damaged[7] <= 5000 < damaged[7] + damaged[8]
    assert result.exit_status == 1
    shutil.copyfile(store / "commitlog" / f"{0:020d}", log)
    queue = copy / "consumequeue" / "orders" / "1" / f"{0:020d}"
    units = bytearray(queue.read_bytes())
    units[20 * 7 + 3] ^= 1
    units[20 * 9 : 20 * 10] = bytes(20)
    queue.write_bytes(units)
    result = audit(spark, copy, split_bytes=SPLIT)
    assert kinds(result) == ["unit-missing", "unit-wrong"]
    assert {(row[4], row[5], row[6]) for row in result.rows} == {("orders", 1, 7), ("orders", 1, 9)}
    shutil.rmtree(copy / "index")
    result = audit(spark, copy, queues=False, split_bytes=1 << 30)
    assert set(kinds(result)) == {"index-entry-missing"}


def test_damaged_index_entries_are_found(spark: Any, store: Path, tmp_path: Path) -> None:
    """Another key hash, an offset inside a message, and one far beyond the log: the entries around them are right."""
    shutil.copytree(store, tmp_path / "store")
    path = min((tmp_path / "store" / "index").iterdir())
    (reader,) = open_index([path], ReadOnlyDisk().open, None)
    assert isinstance(reader, IndexFileReader)
    assert reader.counts is not None
    data, first = bytearray(path.read_bytes()), reader.counts.entries_position
    reader.close()
    data[first + ENTRY_SIZE * 5 + 3] ^= 1
    data[first + ENTRY_SIZE * 9 + 11] ^= 1
    data[first + ENTRY_SIZE * 12 + 5] ^= 1
    path.write_bytes(data)
    result = audit(spark, tmp_path / "store", queues=False, split_bytes=SPLIT)
    found = Counter[str]()
    for row in result.rows:
        found[row[0]] += row[8]
    assert found == {"index-entry-missing": 3, "index-entry-wrong": 2}
    assert result.exit_status == 1


def log_of(directory: Path, queue_offsets: list[int]) -> Path:
    """A store with one segment of messages with these queue offsets."""
    data = bytearray()
    for number, message in enumerate(orders(len(queue_offsets), queues=1)):
        data += record.encode(
            replace(message, topic="t"),
            queue_offset=queue_offsets[number],
            physical_offset=len(data),
            store_timestamp=1_700_000_000_000,
            store_host=HOST,
            property_crc=True,
        )
    (directory / "commitlog").mkdir(parents=True)
    (directory / "commitlog" / f"{0:020d}").write_bytes(data.ljust(64 << 10, b"\0"))
    return directory


@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        (list(range(100)), []),
        ([*range(40), *range(43, 100)], [("queue-offset-gap", "error", 43, 3)]),
        ([*range(40), 39, *range(40, 100)], [("queue-offset-repeated", "warning", 39, 1)]),
        (
            [*range(40), 41, 40, *range(42, 100)],
            [
                ("queue-offset-gap", "error", 41, 1),
                ("queue-offset-gap", "error", 42, 1),
                ("queue-offset-repeated", "warning", 40, 2),
            ],
        ),
    ],
    ids=["in order", "gap", "duplicate", "swapped"],
)
def test_offsets_out_of_order(spark: Any, tmp_path: Path, offsets: list[int], found: list[Any]) -> None:
    """Gaps, duplicates and swapped messages are found, wherever the log is split."""
    directory = log_of(tmp_path / "store", offsets)
    for size in (4096, 1 << 30):
        result = audit(spark, directory, queues=False, index=False, split_bytes=size)
        assert sorted((row[0], row[1], row[6], row[8]) for row in result.rows) == found
        assert result.exit_status == int(any(row[1] == "error" for row in found))


@pytest.mark.parametrize(
    "name", ["plain", "kinds", "wide", "batch-cq", "v43", "deleted-head", "cq-behind-clean", "crash-mid"]
)
def test_audit_agrees_with_verify(spark: Any, name: str, tmp_path: Path) -> None:
    """Both report the same kinds of damage in stores written by RocketMQ, or none."""
    case = golden.load(name, tmp_path)
    slots, entries = int(case.config["maxHashSlotNum"]), int(case.config["maxIndexNum"])
    report = verify(case.store, index_slot_count=slots, index_entry_count=entries)
    result = audit(spark, case.store, index_counts=(slots, entries), split_bytes=8192)
    assert result.facts["records"] == report.records
    compared = {"log-damaged", "queue-offset-gap", "unit-missing", "unit-wrong", "unit-ahead"}
    expected = {finding.kind for finding in report.findings if finding.severity == "error"}
    assert {row[0] for row in result.rows if row[1] == "error"} & compared == expected & compared


def test_rebuilt_queues_are_the_live_files(spark: Any, store: Path, tmp_path: Path) -> None:
    """The files are equal byte for byte; a store with rebuilt queues and index is clean and answers as before."""
    result = rebuild(spark, {"b": store}, tmp_path / "out", split_bytes=SPLIT)
    assert result.exit_status == 0
    out = tmp_path / "out" / "b"
    assert files_below(out / "consumequeue") == files_below(store / "consumequeue")
    assert not list(out.rglob("*.tmp"))
    shutil.copytree(store, tmp_path / "store")
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "store" / name)
        shutil.copytree(out / name, tmp_path / "store" / name)
    report = verify(tmp_path / "store")
    assert [str(finding) for finding in report.findings if finding.severity == "error"] == []
    with MessageStore.open(config(store)) as before, MessageStore.open(config(tmp_path / "store")) as after:
        for key in ("key8", "key1234", "all"):
            found = [
                [item.physical_offset for item in one.query("orders", key, max_count=32)] for one in (before, after)
            ]
            assert found[0] == found[1] != []


@pytest.mark.parametrize("name", ["plain", "kinds", "wide", "v43", "batch-cq"])
def test_rebuilt_queues_of_rocketmq(spark: Any, name: str, tmp_path: Path) -> None:
    """The rebuild writes the same bytes as RocketMQ's dispatcher."""
    case = golden.load(name, tmp_path)
    sizes = int(case.config["maxHashSlotNum"]), int(case.config["maxIndexNum"])
    rebuild(spark, case.store, tmp_path / "out", index=False, index_counts=sizes, split_bytes=8192)
    for kind in ("consumequeue", "batchconsumequeue"):
        built, live = files_below(tmp_path / "out" / kind), files_below(case.store / kind)
        assert {path: data for path, data in live.items() if any(data)} == built


def test_export_and_replay(spark: Any, store: Path, tmp_path: Path) -> None:
    """Incremental exports to Parquet by topic and date, and an ordered replay into a broker."""
    shutil.copytree(store, tmp_path / "store")
    source = {"storePath": str(tmp_path / "store"), "subscribePattern": ".*", "readBy": "log"}
    whole = export(spark, source, str(tmp_path / "whole"))
    assert whole.facts["messages"] == COUNT
    stream = {"storePath": str(tmp_path / "store"), "subscribe": "orders"}
    runs = [export(spark, stream, str(tmp_path / "archive"), checkpoint=str(tmp_path / "checkpoint"))]
    write(tmp_path / "store", orders(30, queues=3, first=COUNT))
    for _ in range(2):
        runs.append(export(spark, stream, str(tmp_path / "archive"), checkpoint=str(tmp_path / "checkpoint")))
    assert [run.facts["messages"] for run in runs] == [COUNT // 2, 30, 0]
    archived = spark.read.parquet(str(tmp_path / "archive"))
    assert archived.select("queueId", "queueOffset").distinct().count() == COUNT // 2 + 30
    (tmp_path / "broker").mkdir()
    with run_broker(tmp_path / "broker") as broker:
        sink = {"endpoint": broker.endpoint}
        result = replay(spark, str(tmp_path / "archive"), sink, topic="orders", target="again", job_id="replay-1")
        assert result.facts["messages"] == COUNT // 2 + 30
        reader = spark.read.format("aerobee").option("endpoint", broker.endpoint).option("includeProperties", "true")
        rows = reader.option("subscribe", "again").load().orderBy("queueId", "queueOffset").collect()
    before = {(row.queueId, row.queueOffset): row for row in archived.collect()}
    assert len(rows) == len(before)
    for row in rows:
        origin = before[row.queueId, int(row.properties["ORIGIN_OFFSET"])]
        assert row.properties["ORIGIN_TOPIC"] == "orders"
        assert (row.body, row["keys"], row.tags) == (origin.body, origin["keys"], origin.tags)
        assert row.properties["n"] == origin.properties["n"]
    places = [(row.queueId, int(row.properties["ORIGIN_OFFSET"])) for row in rows]
    assert places == sorted(places)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_replay_of_a_table(spark: Any, store: Path, kind: str, tmp_path: Path) -> None:
    """The messages that the table of a topic has now are sent again; without a table the error says what makes one."""
    lake = str(tmp_path / "lake")
    keep_table(spark, {"storePath": str(store)}, "größe", TableOptions(to=kind, warehouse=lake))
    (tmp_path / "broker").mkdir()
    with run_broker(tmp_path / "broker") as broker:
        sink = {"endpoint": broker.endpoint}
        again = replay(spark, lake, sink, topic="größe", target="again", job_id="1", file_format=kind)
        assert again.facts["messages"] == COUNT // 2
        with pytest.raises(OptionError, match=f"no {kind} table of topic 'orders'; `aerobee spark table` makes one"):
            replay(spark, lake, sink, topic="orders", target="again", job_id="1", file_format=kind)
        with pytest.raises(OptionError, match="format 'orc' is unknown; choose one of parquet, delta, iceberg"):
            replay(spark, lake, sink, topic="orders", target="again", job_id="1", file_format="orc")


def test_exports_with_and_without_a_checkpoint_do_not_share_an_output(spark: Any, tmp_path: Path) -> None:
    """Spark would see the files of one of them alone, and other readers those of both."""
    write(tmp_path / "store", orders(40))
    source = {"storePath": str(tmp_path / "store"), "subscribe": "orders"}
    streamed, whole, state = (str(tmp_path / name) for name in ("streamed", "whole", "state"))
    export(spark, source, streamed, checkpoint=state)
    assert len(list(Path(streamed).rglob("*.parquet"))) == 1, "few messages of several queues share a file"
    with pytest.raises(OptionError, match=r"has an export with a checkpoint.*give the same checkpoint"):
        export(spark, source, streamed)
    assert export(spark, source, streamed, checkpoint=state).facts["messages"] == 0
    export(spark, source, whole)
    with pytest.raises(OptionError, match="has an export without a checkpoint"):
        export(spark, source, whole, checkpoint=str(tmp_path / "state2"))
    export(spark, source, whole)


def test_the_command_replays_at_a_rate_and_shows_progress(spark: Any, tmp_path: Path) -> None:
    """240 messages of two queues at 24 per second take about ten seconds; a terminal shows Spark's progress bar."""
    write(tmp_path / "store", orders(240))
    export(spark, {"storePath": str(tmp_path / "store"), "subscribe": "orders"}, str(tmp_path / "archive"))
    (tmp_path / "broker").mkdir()
    with run_broker(tmp_path / "broker") as broker:
        command = [sys.executable, "-m", "aerobee_broker", "spark", "replay", "--endpoint", broker.endpoint, "--json"]
        command += ["--archive", str(tmp_path / "archive"), "--topic", "orders", "--target", "again"]
        command += ["--job-id", "rate", "--rate", "24"]
        found, shown = on_terminal(command)
        assert json.loads(found)["messages"] == 240
        assert "[Stage " in shown
        frame = spark.read.format("aerobee").options(endpoint=broker.endpoint, subscribe="again").load()
        times = sorted(row.storeTimestamp for row in frame.select("storeTimestamp").collect())
    assert len(times) == 240
    assert (times[-1] - times[0]).total_seconds() > 3, "a task that begins late catches up"


def on_terminal(command: list[str]) -> tuple[str, str]:
    """Run a command with a terminal as standard error; return its standard output and the terminal's content."""
    primary, secondary = os.openpty()
    shown = b""
    readable = select.poll()  # select does not support descriptors above 1023, which a large test run reaches
    readable.register(primary, select.POLLIN)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=secondary, text=True) as process:
        os.close(secondary)
        while process.poll() is None or readable.poll(0):
            if readable.poll(200):
                try:
                    shown += os.read(primary, 65536)
                except OSError:  # the other end is closed
                    break
        assert process.stdout is not None
        found = process.stdout.read()
    os.close(primary)
    assert process.returncode == 0, (found, shown[-2000:])
    return found, shown.decode("utf-8", "replace")


def test_statistics(spark: Any, store: Path) -> None:
    """Counts by queue, tag, key and hour; bytes are record sizes."""
    source = {"storePath": str(store), "subscribePattern": ".*"}
    by_queue = statistics(spark, source)
    assert len(by_queue.rows) == 6
    assert sum(row[3] for row in by_queue.rows) == COUNT
    assert sum(row[4] for row in by_queue.rows) == verify(store).bytes
    tags = {row[1]: row[2] for row in statistics(spark, source, by="tag").rows if row[0] == "orders"}
    assert set(tags) == {"paid", "refunded", "größer"}
    assert sum(tags.values()) == COUNT // 2
    keys = statistics(spark, source, by="key", top=2)
    assert [(row[1], row[2]) for row in keys.rows] == [("all", COUNT // 2)] * 2
    assert 0.8 < keys.facts["distinct_about"] / (COUNT + 2) < 1.2
    assert sum(row[2] for row in statistics(spark, source, by="hour").rows) == COUNT


def test_lag_from_the_files_of_a_broker(spark: Any, tmp_path: Path) -> None:
    """Offsets that the broker itself saved, in Java's JSON, compared with the queues' ends."""

    async def work(endpoint: str) -> None:
        async with connect(endpoint) as client:
            producer = client.producer()
            await producer.send_many([Message(topic="orders", body=b"%d" % number) for number in range(40)])

    with run_broker(tmp_path) as broker:
        asyncio.run(work(broker.endpoint))
        options = {"endpoint": broker.endpoint, "subscribe": "orders"}
        access = open_access(SourceOptions.parse(options, streaming=True))
        bounds = access.bounds(Subscription(topics=frozenset({"orders"})))
        (queue, its) = next((queue, found) for queue, found in bounds.items() if found.end > 3)
        access.report("billing", {queue: 3})
        access.close()
        broker.stop()
        text = (broker.store / "config" / "consumerOffset.json").read_text()
        assert re.search(r"\{\d+:\d", text), "Java's JSON has bare keys"
        result = lag(broker.store)
    assert ("billing", "orders", "", queue.queue_id, 3, its.end, its.end - 3) in result.rows


def test_lag_reports_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    """The error names the file and the next step."""
    write(tmp_path / "store", orders(10))
    (tmp_path / "store" / "config").mkdir(exist_ok=True)
    (tmp_path / "store" / "config" / "consumerOffset.json").write_text("{broken")
    with pytest.raises(OptionError, match=r"consumerOffset.json.*`aerobee store verify` reports details"):
        lag(tmp_path / "store")


def test_the_command(store: Path) -> None:
    """`aerobee spark` runs a job by itself and returns its exit code."""
    command = [sys.executable, "-m", "aerobee_broker", "spark"]
    done = subprocess.run(
        [*command, "audit", "--store", str(store), "--json"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ok"], found["records"]) == (True, COUNT)
    done = subprocess.run([*command, "lag", "--store", str(store / "none")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "not a directory" in done.stderr) == (2, True)


def test_the_command_exports_a_body_that_cannot_be_decoded(tmp_path: Path) -> None:
    """It fails and names the option; with `--on-bad-body null` the message has no body and the reason beside it."""
    messages = orders(20, queues=1)
    messages[7] = replace(messages[7], sys_flag=record.SYS_FLAG_COMPRESSED)
    write(tmp_path / "store", messages)
    command = [sys.executable, "-m", "aerobee_broker", "spark", "export", "--store", str(tmp_path / "store")]
    command += ["--topic", "orders", "--output", str(tmp_path / "archive"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, "offset 7" in done.stderr) == (2, True), done.stderr[-2000:]
    assert "onBadBody=null" in done.stderr
    done = subprocess.run([*command, "--on-bad-body", "null"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["messages"] == 20
    rows = pq.read_table(tmp_path / "archive").to_pylist()
    assert sorted(row["queueOffset"] for row in rows) == list(range(20))
    for row in rows:
        assert (row["body"] is None) == ("offset 7" in (row["decodeError"] or "")) == (row["queueOffset"] == 7)
