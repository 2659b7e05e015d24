"""The store without gRPC: single and batched appends, in every write mode and both flush modes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import get_args

import uvloop

from aerobee_store import Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.config import FlushMode, WriteMode
from aerobee_store.records.record import Draft
from tests.benchmarks.disk import ANY_DISK_USAGE, gigabytes
from tests.benchmarks.report import rate, table

_HOST = ("127.0.0.1", 8081)
BATCH = 500
_DISPATCHED_TOGETHER = 16  # batches; about 3 MiB, as after one sync
BODY_SIZES = (256, 4096)


def message(number: int, body: bytes, *, topic: str = "bench", queue_id: int = 0, tag: str = "tag") -> Message:
    """A message with id and tag, as the official SDKs send it."""
    return Message(topic, queue_id, body, {"UNIQ_KEY": f"0102FC000000014AB00B130107{number:08X}", "TAGS": tag})


def frame(body_size: int, first: int = 0, *, property_crc: bool = True, tags: tuple[str, ...] = ("tag",)) -> bytes:
    """A batch of records in store layout, numbered from `first`, with `tags` in turn."""
    body = os.urandom(body_size)
    drafts = (
        Draft(message(number, body, tag=tags[number % len(tags)]), store_host=_HOST, property_crc=property_crc)
        for number in range(first, first + BATCH)
    )
    return b"".join(draft.encode_unplaced() for draft in drafts)


@contextlib.contextmanager
def fresh_store(
    directory: Path, flush: FlushMode, write_mode: WriteMode = "gathered", segment_size: int = 1 << 30
) -> Iterator[MessageStore]:
    with tempfile.TemporaryDirectory(dir=directory) as store_directory:
        config = StoreConfig(
            directory=Path(store_directory),
            flush=flush,
            write_mode=write_mode,
            segment_size=segment_size,
            pool_buffer_count=2,
            **ANY_DISK_USAGE,
        )
        with MessageStore.open(config) as store:
            yield store


async def _with_services(store: MessageStore, work: Callable[[], Awaitable[None]]) -> float:
    services = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    started = time.perf_counter()
    await work()
    seconds = time.perf_counter() - started
    services.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await services
    return seconds


def _one_by_one(store: MessageStore, count: int, in_flight: int, body: bytes) -> float:
    async def worker(first: int) -> None:
        for number in range(first, count, in_flight):
            (appended,) = store.append([message(number, body)])
            await store.wait_stored(appended.end)

    async def work() -> None:
        await asyncio.gather(*(worker(first) for first in range(in_flight)))

    return uvloop.run(_with_services(store, work))


def append_one_by_one(directory: Path, count: int, segment_size: int) -> None:
    """Append each message alone and wait for it: `count` of them with 64 in flight, a tenth with one."""
    rows = []
    for body_size in BODY_SIZES:
        body = os.urandom(body_size)
        for write_mode in get_args(WriteMode):
            for flush in get_args(FlushMode):
                for in_flight, messages in ((1, count // 10), (64, count)):
                    with fresh_store(directory, flush, write_mode, segment_size) as store:
                        seconds = _one_by_one(store, messages, in_flight, body)
                        per_sync = store.stats.messages_per_sync
                        mean = per_sync.sum / max(1, per_sync.count)
                        figures = rate(messages, seconds), gigabytes(messages * body_size, seconds), f"{mean:.1f}"
                        rows.append((body_size, write_mode, flush, in_flight, *figures))
    head = ("body", "write mode", "flush", "in flight", "messages", "bodies", "messages a sync")
    table(f"Store: append and wait, one by one ({count} messages, with 1 in flight {count // 10})", head, rows)


def append_waiting(directory: Path, size: int, segment_size: int) -> None:
    """Parse, append and wait for batches in store layout, four in flight; `size` bytes of each kind."""
    rows = []
    for body_size in BODY_SIZES:
        data = frame(body_size)
        rounds = max(4, size // len(data))
        for write_mode in get_args(WriteMode):
            for flush in get_args(FlushMode):
                with fresh_store(directory, flush, write_mode, segment_size) as store:
                    seconds = _batches(store, data, rounds)
                per_second = rate(rounds * BATCH, seconds), gigabytes(rounds * len(data), seconds)
                rows.append((body_size, write_mode, flush, *per_second))
    head = ("body", "write mode", "flush", "records", "bytes")
    title = f"Store: batches of {BATCH}, parse, check, append, wait and dispatch, 4 in flight, {size >> 20} MiB each"
    table(title, head, rows)


def _batches(store: MessageStore, data: bytes, rounds: int) -> float:
    async def worker(first: int) -> None:
        for _ in range(first, rounds, 4):
            batch = RecordBatch.parse(data, base_physical_offset=None, placed=False)
            await store.wait_stored(store.append_records("bench", 0, batch).end)

    async def work() -> None:
        await asyncio.gather(*(worker(first) for first in range(4)))

    return uvloop.run(_with_services(store, work))


def append_steps(directory: Path, size: int) -> None:
    """CPU time of parse and check, place, write to the page cache, and dispatch of several batches.

    No step waits for the disk.
    """
    rows: list[tuple[object, ...]] = []
    for body_size, property_crc in ((256, True), (256, False), (4096, True)):
        data = frame(body_size, property_crc=property_crc)
        rounds = max(4, size // len(data))
        seconds = dict.fromkeys(("parse, check", "place", "page cache", "dispatch"), 0.0)
        with fresh_store(directory, "sync") as store:  # in async mode the commit itself dispatches
            for number in range(rounds):
                times = [time.process_time()]
                batch = RecordBatch.parse(data, base_physical_offset=None, placed=False)
                times.append(time.process_time())
                store.append_records("bench", 0, batch)
                times.append(time.process_time())
                store.commit()
                times.append(time.process_time())
                if number % _DISPATCHED_TOGETHER == _DISPATCHED_TOGETHER - 1 or number == rounds - 1:
                    store.dispatch()
                times.append(time.process_time())
                for name, begin, end in zip(seconds, times, times[1:], strict=False):
                    seconds[name] += end - begin
        count, copied = rounds * BATCH, rounds * len(data)
        seconds["append: parse to page cache"] = sum(seconds[name] for name in ("parse, check", "place", "page cache"))
        seconds["append and dispatch"] = seconds["append: parse to page cache"] + seconds["dispatch"]
        started = time.process_time()
        for _ in range(rounds):
            bytearray(data)
        seconds["baseline: memory copy"] = time.process_time() - started
        kind = f"{body_size}, {'record CRC' if property_crc else 'body CRC only'}"
        for name, taken in seconds.items():
            rows.append((kind, name, f"{taken / count * 1e9:,.0f} ns", rate(count, taken), gigabytes(copied, taken)))
    title = f"Store: batches of {BATCH} in store layout, processor time of one core, {size >> 20} MiB each"
    title += f", {_DISPATCHED_TOGETHER} dispatched together"
    table(title, ("body", "step", "a record", "records", "bytes"), rows)


def single_steps(directory: Path, count: int) -> None:
    """CPU time of appends of one message each, with 32 per commit."""
    rows = []
    for body_size in BODY_SIZES:
        messages = [message(number, os.urandom(body_size)) for number in range(32)]
        append = rest = 0.0
        with fresh_store(directory, "sync") as store:
            for _ in range(max(1, count // 32)):
                started = time.process_time()
                for one in messages:
                    store.append([one])
                appended = time.process_time()
                store.commit()
                store.dispatch()
                append += appended - started
                rest += time.process_time() - appended
            appends = store.stats.messages_appended
        for name, taken in (("append", append), ("commit and dispatch", rest), ("all", append + rest)):
            rows.append((body_size, name, f"{taken / appends * 1e6:.2f} us", rate(appends, taken)))
    title = f"Store: {count} appends of one message, processor time of one core, 32 a commit"
    table(title, ("body", "step", "a message", "messages"), rows)
