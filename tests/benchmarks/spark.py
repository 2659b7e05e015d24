"""`python -m tests.benchmarks.spark [--short] [--log-size SIZE] [NAME ...]`: the pipeline and its limits.

    source          rows of files and of a broker, without and with Spark; Parquet and Kafka with Spark's sources
    sink            rows to a broker
    micro-batches   the cost of a streaming query per micro-batch
    ratios          file source, stream and sink beside what limits them, with a plot (--plot FILE)
    filters         the bytes of a log that filters leave to be read
    jobs            rebuild and audit of a log, compared with the single-machine tools

"per core" is the rate divided by the available cores: Spark has all, plain Python one. CPU is that of all participating
processes except the broker, which is listed separately.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_client import connect
from aerobee_pipeline import local_session
from aerobee_pipeline.broker_channel import Address, Broker
from aerobee_pipeline.jobs import audit, rebuild
from aerobee_pipeline.offsets import Range
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading.decode import Decoder
from aerobee_pipeline.reading.queue_access import open_access
from aerobee_pipeline.reading.schema import default_columns
from aerobee_pipeline.reading.splits import plan_log, read_split, store_files
from aerobee_proto import records_v1, v2
from aerobee_store.tools import rebuild as store_rebuild
from aerobee_store.tools.verify import verify
from tests.benchmarks import spark_kafka, spark_ratios
from tests.benchmarks.disk import gigabytes
from tests.benchmarks.processes import broker_on
from tests.benchmarks.report import machine, milliseconds, nanoseconds, rate, table
from tests.benchmarks.spark_data import QUEUES, TOPICS, topic, write_store
from tests.benchmarks.spark_filters import filters
from tests.benchmarks.spark_ready import ReadySource
from tests.benchmarks.spark_turns import Times, Work, in_turns

CORES = os.cpu_count() or 1
_A_TRIGGER = 100_000
_NUMBERS = "queueId int, queueOffset bigint, physicalOffset bigint, storeTimestamp timestamp, storeSize int"
_FOUR = "queueId int, queueOffset bigint, bornTimestamp timestamp, storeTimestamp timestamp"
"""Columns of numbers that an export has, too."""


@dataclass(frozen=True)
class Measured:
    """One measurement: rows, wall time and CPU time."""

    rows: int
    seconds: float
    cpu: float
    cores: int
    server_cpu: float = 0.0

    @property
    def per_core(self) -> float:
        return self.rows / self.seconds / self.cores


def measured(work: Callable[[], int], cores: int, *, repeats: int = 2) -> Measured:
    """The best of several runs, after a warm-up run."""
    work()
    best: Measured | None = None
    for _ in range(repeats):
        before, started = Times.now(), time.perf_counter()
        rows = work()
        seconds = time.perf_counter() - started
        times = Times.now().since(before)
        found = Measured(rows, seconds, times.spark, cores, times.brokers)
        if best is None or found.seconds < best.seconds:
            best = found
    assert best is not None
    return best


_HEAD = ("source", "rows/s", "per core", "of plain", "CPU a row", "plain's CPU of it", "broker's CPU a row")


def _row(name: str, found: Measured, plain: Measured) -> tuple[str, ...]:
    row = (
        name,
        rate(found.rows, found.seconds),
        rate(found.per_core, 1),
        f"{found.per_core / plain.per_core:.2f}",
        nanoseconds(found.cpu / found.rows),
        f"{plain.cpu / plain.rows / (found.cpu / found.rows):.2f}",
        nanoseconds(found.server_cpu / found.rows) if found.server_cpu else "",
    )
    print("  measured:", *row, file=sys.stderr, flush=True)
    return row


def source(directory: Path, *, size: int = 256 << 20) -> None:
    """Read and discard all rows of a store, including bodies."""
    store = directory / "store"
    count = write_store(store, size)
    columns = default_columns(properties=False, system=False)
    plain = measured(lambda: _plain_files(store, columns), 1)
    rows = [_row("files, decoder alone", plain, plain)]
    spark = _session()
    try:
        spark.dataSource.register(ReadySource)
        ready = spark.read.format("ready").options(store=str(store), rows=count, tasks=CORES)
        all_columns = ready.load()
        rows.append(_row("ready batches, Spark", measured(lambda: _thrown_away(all_columns, count), CORES), plain))
        files = spark.read.format("aerobee").options(storePath=str(store), subscribePattern=".*")
        by_log = files.option("readBy", "log").load()
        rows.append(_row("files, Spark", measured(lambda: _thrown_away(by_log, count), CORES), plain))
        numbers = ready.schema(_NUMBERS).load()
        rows.append(_row("ready numbers, Spark", measured(lambda: _thrown_away(numbers, count), CORES), plain))
        narrow = files.option("readBy", "log").schema(_NUMBERS).load()
        rows.append(_row("  five columns of numbers", measured(lambda: _thrown_away(narrow, count), CORES), plain))
        files = spark.read.format("aerobee").options(storePath=str(store), subscribePattern=".*")
        by_queue = files.option("readBy", "queue").load()
        rows.append(_row("  by queue", measured(lambda: _thrown_away(by_queue, count), CORES), plain))
        with broker_on(store, "async") as running:
            frames = measured(lambda: _frames(running.endpoint), 1)
            rows.append(_row("gRPC, bytes alone", frames, plain))
            stream = measured(lambda: _plain_broker(running.endpoint, columns), 1)
            rows.append(_row("gRPC, decoder alone", stream, plain))
            reader = spark.read.format("aerobee").options(endpoint=running.endpoint, subscribePattern="bench-.*")
            frame = reader.load()
            found = measured(lambda: _thrown_away(frame, count), CORES)
            rows.append(_row("gRPC, Spark", found, plain))
        parquet = directory / "parquet"
        by_log.write.parquet(str(parquet), compression="zstd")
        archived = spark.read.parquet(str(parquet))
        rows.append(_row("Spark's Parquet", measured(lambda: _thrown_away(archived, count), CORES), plain))
        title = f"Rows of a log of {size >> 20} MiB, {count:,} messages; Spark has {CORES} cores"
        rows += _kafka(directory, spark, by_log, plain)
        table(title, _HEAD, rows)
    finally:
        spark.stop()


def _kafka(directory: Path, spark: Any, messages: Any, plain: Measured) -> list[tuple[str, ...]]:
    """Spark's Kafka source on the same messages; without it no rows."""
    with _filled_kafka(directory, spark, messages) as address:
        if address is None:
            return []
        frame = spark_kafka.frame(spark.read, address)
        there = frame.count()
        found = measured(lambda: _thrown_away(frame, there), CORES)
    return [_row(f"Spark's Kafka, {spark_kafka.connector_version()}", found, plain)]


@contextmanager
def _filled_kafka(directory: Path, spark: Any, messages: Any) -> Iterator[str | None]:
    """The address of a Kafka with these messages; None if there is none, and the reason is printed."""
    jars, connector = spark_kafka.broker_jars(), spark_kafka.connector_jars()
    if isinstance(jars, str) or isinstance(connector, str):
        print(f"\nSpark's Kafka source was left out: {jars if isinstance(jars, str) else connector}")
        yield None
        return
    (directory / "kafka").mkdir()
    with spark_kafka.kafka(directory / "kafka") as address:
        spark_kafka.fill(messages, address)
        yield address


def _session() -> Any:
    jars = spark_kafka.connector_jars()
    settings = {"spark.driver.memory": "3g"}
    if not isinstance(jars, str):
        settings["spark.jars"] = ",".join(map(str, jars))
    spark = local_session("bench", cores=str(CORES), settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _thrown_away(frame: Any, count: int) -> int:
    frame.write.format("noop").mode("overwrite").save()
    return count


def _plain_files(store: Path, columns: list[str]) -> int:
    decoder = Decoder(columns)
    count = 0
    for split in plan_log("", store_files(store), 128 << 20, fail_on_data_loss=True):
        for batch in read_split(split, fail_on_data_loss=True):
            count += decoder.decode(batch).num_rows
    return count


def _plain_broker(endpoint: str, columns: list[str]) -> int:
    """The streams of all queues in sequence, decoded."""
    options = SourceOptions.parse({"endpoint": endpoint, "subscribePattern": "bench-.*"}, streaming=False)
    access = open_access(options)
    decoder = Decoder(columns)
    count = 0
    for queue, found in access.bounds(options.subscription).items():
        for batch, rows in access.read(Range(queue, found.start, found.end), None, fail_on_data_loss=True):
            count += decoder.decode(batch, rows).num_rows
    return count


def _frames(endpoint: str) -> int:
    """The streams of all queues in sequence, not decoded."""
    broker = Broker(Address(endpoint, None, None, 30_000, 3, 200))
    count = 0
    for number in range(TOPICS):
        asked = records_v1.QueueOffsetsRequest.TopicQueues(topic=v2.Resource(name=topic(number)))
        for queue in broker.queue_offsets(records_v1.QueueOffsetsRequest(topics=[asked])).topics[0].queues:
            request = records_v1.ReadRecordsRequest(
                topic=v2.Resource(name=topic(number)),
                queue_id=queue.queue_id,
                end_queue_offset=queue.max_queue_offset,
                frame_bytes_max=4 << 20,
            )
            for frame in broker.records.ReadRecords(request, metadata=broker.metadata()):
                count += len(frame.record_sizes) // 4
    return count


def sink(directory: Path, *, count: int = 400_000) -> None:
    """Rows of 256-byte bodies with keys and tags, to a broker that writes to the page cache."""
    spark = _session()
    rows = []
    frame = spark.range(0, count, 1, CORES).selectExpr(
        "cast(repeat('0123456789abcdef', 16) as binary) body", "concat('k', id) keys", "'paid' tags"
    )
    grouped = frame.limit(count // 8).selectExpr("*", "concat('g', hash(keys) % 100) messageGroup")
    delayed = frame.selectExpr("*", "current_timestamp() + interval 1 day deliverTimestamp")
    kinds: Mapping[str, tuple[Any, str]] = {
        "bodies, keys, tags": (frame, "plain"),
        "with properties": (frame.selectExpr("*", "map('n', keys) properties"), "plain"),
        "ordered groups": (grouped, "fifo"),
        "delayed": (delayed, "delay"),
    }
    try:
        with tempfile.TemporaryDirectory(dir=directory) as store, broker_on(Path(store), "async") as running:
            _create_topics(running.endpoint, "fifo", kind=v2.MessageType.FIFO)
            _create_topics(running.endpoint, "delay", kind=v2.MessageType.DELAY)
            for name, (rows_of, kind) in kinds.items():
                expected = count // 8 if kind == "fifo" else count
                cached = rows_of.cache()
                cached.count()

                def write(cached: Any = cached, kind: str = kind, expected: int = expected) -> int:
                    writer = cached.write.format("aerobee").mode("append")
                    writer.options(endpoint=running.endpoint, topic=kind).save()
                    return expected

                found = measured(write, CORES)
                cached.unpersist()
                cpu, served = found.cpu / found.rows, found.server_cpu / found.rows
                rows.append((name, rate(found.rows, found.seconds), nanoseconds(cpu), nanoseconds(served)))
        table("Sink", ("rows", "rows/s", "CPU a row", "broker's CPU a row"), rows)
    finally:
        spark.stop()


def ratios(
    directory: Path,
    *,
    size: int = 128 << 20,
    count: int = 400_000,
    rounds: int = 5,
    warm_ups: int = 2,
    plotted: Path | None = None,
) -> None:
    """The file source, a stream and the sink beside what limits each, and beside Spark's Kafka source, in turns."""
    spark = _session()
    checkpoints = (directory / f"checkpoint-{number}" for number in itertools.count())
    try:
        store = directory / "store"
        rows = write_store(store, size)
        spark.dataSource.register(ReadySource)
        files = spark.read.format("aerobee").options(storePath=str(store), subscribePattern=".*", readBy="log")
        files.load().write.parquet(str(directory / "parquet"), compression="zstd")
        with (
            tempfile.TemporaryDirectory(dir=directory) as place,
            broker_on(Path(place), "async") as running,
            _filled_kafka(directory, spark, files.load()) as kafka_address,
        ):
            contenders = _file_contenders(spark, store, directory / "parquet", rows)
            contenders |= _broker_contenders(spark, running.endpoint, store, rows, count, lambda: next(checkpoints))
            if kafka_address is not None:
                contenders |= _kafka_contenders(spark, kafka_address, lambda: next(checkpoints))
            found = in_turns(contenders, rounds=rounds, warm_ups=warm_ups)
    finally:
        spark.stop()
    comparisons = spark_ratios.comparisons(found)
    title = f"Medians of {rounds} rounds in turns; {CORES} cores, {rows:,} messages in files, {count:,} in a broker"
    table(title, spark_ratios.HEAD, spark_ratios.cells(comparisons))
    table("Processor time", spark_ratios.TIMES_HEAD, spark_ratios.times_cells(found.values()))
    if plotted is not None:
        spark_ratios.plot(comparisons, plotted)


def _file_contenders(spark: Any, store: Path, parquet: Path, rows: int) -> dict[str, Work]:
    archived = spark.read.parquet(str(parquet))
    found: dict[str, Work] = {}
    for name, columns in ((spark_ratios.FILES, None), (spark_ratios.NUMBERS, _FOUR)):
        ours = spark.read.format("aerobee").options(storePath=str(store), subscribePattern=".*", readBy="log")
        ready = spark.read.format("ready").options(store=str(store), rows=rows, tasks=CORES)
        if columns is not None:
            ours, ready = ours.schema(columns), ready.schema(columns)
        names = ours.load().columns
        frames = ours.load(), archived.select(*names), ready.load()
        for label, frame in zip((name, *spark_ratios.BESIDE_FILES[name][:2]), frames, strict=True):
            found[label] = functools.partial(_thrown_away, frame, rows)
        if columns is None:
            found[spark_ratios.DECODER] = functools.partial(_plain_files, store, names)
    return found


def _broker_contenders(
    spark: Any, endpoint: str, store: Path, rows: int, count: int, checkpoint: Callable[[], Path]
) -> dict[str, Work]:
    _create_topics(endpoint, "read", "appended", "sunk")
    records = spark_ratios.encoded(count, "appended", QUEUES)
    in_stream = 6 * count
    spark_ratios.append(endpoint, "read", spark_ratios.encoded(in_stream, "read", QUEUES))
    stream = spark.readStream.format("aerobee").options(endpoint=endpoint, subscribe="read")
    frame = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=_A_TRIGGER).load()
    ready = spark.readStream.format("ready").options(
        store=str(store), rows=in_stream, tasks=CORES, rowsPerTrigger=_A_TRIGGER
    )
    bodies = spark.range(0, count, 1, CORES).selectExpr(
        f"cast(repeat('0123456789abcdef', {spark_ratios.BODY_SIZE // 16}) as binary) body", "concat('k', id) keys"
    )
    cached = bodies.cache()
    assert cached.count() == count

    def sunk(format_name: str) -> int:
        cached.write.format(format_name).mode("append").options(endpoint=endpoint, topic="sunk").save()
        return count

    return {
        spark_ratios.APPEND: lambda: spark_ratios.append(endpoint, "appended", records),
        spark_ratios.STREAM: spark_ratios.streamed(frame, checkpoint, in_stream),
        spark_ratios.READY_STREAM: spark_ratios.streamed(ready.load(), checkpoint, in_stream),
        spark_ratios.SINK: lambda: sunk("aerobee"),
        spark_ratios.DROPPED: lambda: sunk("ready"),
    }


def _kafka_contenders(spark: Any, address: str, checkpoint: Callable[[], Path]) -> dict[str, Work]:
    """Spark's Kafka source on the same messages: a batch, and a stream of micro-batches like ours."""
    frame = spark_kafka.frame(spark.read, address)
    there = frame.count()
    reader = spark.readStream.options(startingOffsets="earliest", maxOffsetsPerTrigger=_A_TRIGGER)
    return {
        spark_ratios.KAFKA: lambda: _thrown_away(frame, there),
        spark_ratios.KAFKA_STREAM: spark_ratios.streamed(spark_kafka.frame(reader, address), checkpoint, there),
    }


def _create_topics(endpoint: str, *names: str, kind: v2.MessageType.ValueType = v2.MessageType.NORMAL) -> None:
    """Create the topics: a broker knows only those, whatever its store contains."""

    async def work() -> None:
        async with connect(endpoint) as client:
            for name in names:
                await client.admin.create_topic(name, queue_count=QUEUES, message_types=[kind])

    asyncio.run(work())


def micro_batches(directory: Path, *, batches: int = 20) -> None:
    """A stream of small micro-batches: the overhead of each."""
    spark = _session()
    rows = []
    try:
        store = directory / "small"
        count = write_store(store, 4 << 20)
        each = -(-count // batches)
        with broker_on(store, "async") as running:
            ways = {
                "files": {"storePath": str(store)},
                "broker": {"endpoint": running.endpoint},
            }
            for name, way in ways.items():
                reader = spark.readStream.format("aerobee").options(**way, subscribePattern="bench-.*")
                frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=each).load()
                for attempt in range(2):  # the first run warms up
                    writer = frame.select("queueId", "queueOffset").writeStream.format("noop")
                    checkpoint = directory / f"checkpoint-{name}-{attempt}"
                    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
                    query.awaitTermination()
                taken = [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]
                parts = ("triggerExecution", "latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets")
                values = [sorted(item.get(part, 0) for item in taken)[len(taken) // 2] / 1000 for part in parts]
                rows.append((name, len(taken), *map(milliseconds, values)))
        head = ("source", "batches", "in all", "latest offset", "planning", "tasks", "offset log", "commit log")
        table(f"A micro-batch of {each:,} messages (medians)", head, rows)
    finally:
        spark.stop()


def jobs(directory: Path, *, log_size: int = 1 << 30) -> None:
    """Rebuild and audit of one log, compared with `aerobee store verify` and `rebuild`."""
    store = directory / "large"
    count = write_store(store, log_size)
    rows = []

    def timed(name: str, cores: int, work: Callable[[], Any]) -> None:
        before, started = Times.now(), time.perf_counter()
        work()
        seconds, cpu = time.perf_counter() - started, Times.now().since(before).spark
        rows.append((name, f"{seconds:.1f} s", gigabytes(log_size, seconds), rate(count, seconds), f"{cpu:.1f} s"))
        print("  measured:", *rows[-1], file=sys.stderr, flush=True)

    timed("aerobee store verify", 1, lambda: _all_well(verify(store).ok))
    spark = _session()
    try:
        spark.range(100).mapInArrow(lambda batches: batches, "id bigint").count()  # starts workers and loads modules
        timed("aerobee spark audit", CORES, lambda: _all_well(audit(spark, store).exit_status == 0))
        output = directory / "rebuilt"
        timed("aerobee spark rebuild", CORES, lambda: _all_well(rebuild(spark, store, output).exit_status == 0))
        shutil.rmtree(output)
    finally:
        spark.stop()
    # Last, because it writes to the store.
    timed("aerobee store rebuild", 1, lambda: _all_well(not store_rebuild.rebuild(store, apply=True).left))
    shutil.rmtree(store)
    head = ("job", "time", "log", "messages", "CPU")
    table(f"Jobs on a log of {log_size / (1 << 30):g} GiB; Spark has {CORES} cores, the tools have one", head, rows)


def _all_well(well: bool) -> None:
    assert well, "the job has findings"


_SHORT_SIZE = 8 << 20
PARTS: Mapping[str, tuple[Callable[..., None], Mapping[str, Any]]] = {
    "source": (source, {"size": _SHORT_SIZE}),
    "sink": (sink, {"count": 2000}),
    "micro-batches": (micro_batches, {"batches": 2}),
    "ratios": (ratios, {"size": _SHORT_SIZE, "count": 2000, "rounds": 1, "warm_ups": 1}),
    "filters": (filters, {"size": _SHORT_SIZE}),
    "jobs": (jobs, {"log_size": _SHORT_SIZE}),
}
"""Each part, and its arguments for the short form."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PARTS], help="which parts (all)")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes; the figures mean nothing")
    parser.add_argument("--log-size", metavar="GIB", type=float, default=5, help="of the log of the jobs (5)")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the stores go (./build)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="where the plot of the ratios goes (*.svg)")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    print(machine())
    for name in options.names or PARTS:
        part, sizes = PARTS[name]
        full: dict[str, Any] = {"log_size": int(options.log_size * (1 << 30))} if name == "jobs" else {}
        drawn = {"plotted": options.plot} if name == "ratios" else {}
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            part(Path(directory), **(sizes if options.short else full), **drawn)


if __name__ == "__main__":
    main()
