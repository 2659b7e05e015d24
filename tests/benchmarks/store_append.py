"""The store without gRPC: appends one by one and in batches, dispatch, reading, opening."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import uvloop

from aerobee_store import Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.record import Draft
from tests.benchmarks.report import rate, table

_HOST = ("127.0.0.1", 8081)
BATCH = 500
FlushMode = Literal["sync", "async"]


def message(number: int, body: bytes) -> Message:
    """As the official SDKs send it: a message id and a tag."""
    return Message("bench", 0, body, {"UNIQ_KEY": f"0102FC000000014AB00B130107{number:08X}", "TAGS": "tag"})


@contextlib.contextmanager
def fresh_store(directory: Path, flush: FlushMode) -> Iterator[MessageStore]:
    with (
        tempfile.TemporaryDirectory(dir=directory) as store_directory,
        MessageStore.open(StoreConfig(directory=Path(store_directory), flush=flush)) as store,
    ):
        yield store


async def _append_and_wait(store: MessageStore, count: int, in_flight: int, body: bytes) -> float:
    services = asyncio.create_task(store.run())
    await asyncio.sleep(0)

    async def worker(first: int) -> None:
        for number in range(first, count, in_flight):
            (appended,) = store.append([message(number, body)])
            await store.wait_stored(appended.end)

    started = time.perf_counter()
    await asyncio.gather(*(worker(first) for first in range(in_flight)))
    seconds = time.perf_counter() - started
    services.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await services
    return seconds


def append_one_by_one(directory: Path, body_size: int) -> None:
    """Each message is appended alone and waited for."""
    body = os.urandom(body_size)
    rows = []
    for flush in ("sync", "async"):
        for in_flight, count in ((1, 3000), (64, 40_000)):
            with fresh_store(directory, flush) as store:
                seconds = uvloop.run(_append_and_wait(store, count, in_flight, body))
                per_sync = store.stats.messages_per_sync
                mean = per_sync.sum / max(1, per_sync.count)
                rows.append((flush, in_flight, rate(count, seconds), f"{mean:.1f}"))
    head = ("flush", "in flight", "messages", "messages a sync")
    table(f"Store: append and wait, {body_size}-byte body", head, rows)


def append_batches(directory: Path, body_size: int) -> None:
    """Records in store layout, 500 at once: parse and check, place, commit; then dispatch, all for one queue."""
    body = os.urandom(body_size)
    frame = b"".join(
        Draft(message(number, body), store_host=_HOST, property_crc=True).encode_unplaced() for number in range(BATCH)
    )
    rounds = max(40, (192 << 20) // len(frame))
    parse = append = dispatch = 0.0
    with fresh_store(directory, "sync") as store:  # in async mode the commit dispatches by itself
        for _ in range(rounds):
            started = time.perf_counter()
            batch = RecordBatch.parse(frame, base_physical_offset=None, placed=False)
            parsed = time.perf_counter()
            store.append_records("bench", 0, batch)
            store.commit()
            appended = time.perf_counter()
            store.dispatch()
            dispatched = time.perf_counter()
            parse += parsed - started
            append += appended - parsed
            dispatch += dispatched - appended
        count = rounds * BATCH
        copied = _copy_seconds(frame, rounds)
        gigabytes = rounds * len(frame) / 1e9
        rows = [
            ("memory copy of the same bytes", rate(count, copied), f"{gigabytes / copied:.2f} GB/s"),
            ("parse and check", rate(count, parse), f"{gigabytes / parse:.2f} GB/s"),
            ("append to the page cache", rate(count, append), f"{gigabytes / append:.2f} GB/s"),
            ("parse, check, append", rate(count, parse + append), f"{gigabytes / (parse + append):.2f} GB/s"),
            ("dispatch: queue and index", rate(count, dispatch), f"{gigabytes / dispatch:.2f} GB/s"),
            (
                "all of it",
                rate(count, parse + append + dispatch),
                f"{gigabytes / (parse + append + dispatch):.2f} GB/s",
            ),
        ]
        started = time.perf_counter()
        offset = read = 0
        while read < 50_000 and offset < store.queue_range("bench", 0)[1]:
            result = store.read("bench", 0, offset)
            read += len(result.records)
            offset = result.next_offset
        seconds = time.perf_counter() - started
        rows.append(("read 32 at a time, decoded", rate(read, seconds), "-"))
    title = f"Store: batches of {BATCH}, {body_size}-byte body ({len(frame) // BATCH}-byte records), one core"
    table(title, ("step", "records", "bytes"), rows)


def _copy_seconds(frame: bytes, rounds: int) -> float:
    started = time.perf_counter()
    for _ in range(rounds):
        bytearray(frame)
    return time.perf_counter() - started


def opening(directory: Path) -> None:
    """Opening a store of 256 MiB after an orderly stop, and after a crash that left no checkpoint."""
    body = os.urandom(256)
    frame = b"".join(
        Draft(message(number, body), store_host=_HOST, property_crc=True).encode_unplaced() for number in range(BATCH)
    )
    rows = []
    with tempfile.TemporaryDirectory(dir=directory) as name:
        config = StoreConfig(directory=Path(name), flush="async")
        with MessageStore.open(config) as store:
            for _ in range((256 << 20) // len(frame)):
                store.append_records("bench", 0, RecordBatch.parse(frame, base_physical_offset=None, placed=False))
                store.commit()
                store.dispatch()
        started = time.perf_counter()
        with MessageStore.open(config):
            rows.append(("orderly stop", f"{time.perf_counter() - started:.3f} s", "-"))
        (config.directory / "abort").touch()
        (config.directory / "checkpoint").unlink()
        started = time.perf_counter()
        with MessageStore.open(config) as store:
            seconds = time.perf_counter() - started
            speed = store.stats.recovered_bytes / seconds / 1e9
            rows.append(("crash, everything scanned", f"{seconds:.3f} s", f"{speed:.2f} GB/s"))
    table("Store: open 256 MiB of 419-byte records", ("after", "time", "scan"), rows)


def run(directory: Path) -> None:
    """Print all of it."""
    append_one_by_one(directory, 256)
    append_batches(directory, 256)
    append_batches(directory, 4096)
    opening(directory)
