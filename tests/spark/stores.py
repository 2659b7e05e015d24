"""Stores for the tests of the pipeline, written by the store itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from aerobee_store import Message, MessageStore, StoreConfig

HOST = ("127.0.0.1", 10911)


def config(directory: Path, *, segment_size: int = 64 << 10) -> StoreConfig:
    """Segments of a few pages, so that small logs have several."""
    return StoreConfig(
        directory=directory,
        segment_size=segment_size,
        queue_file_size=20 * 100,
        index_slot_count=64,
        index_entry_count=1000,
        disk_force_clean_ratio=1.0,  # tests must not depend on the disk usage of the machine
        disk_full_ratio=1.0,
    )


def write(directory: Path, messages: Iterable[Message], *, segment_size: int = 64 << 10) -> None:
    """Append messages to a new or existing store, and close it."""
    with MessageStore.open(config(directory, segment_size=segment_size)) as store:
        for message in messages:
            store.append([message])
        store.flush()


def orders(
    count: int, *, topics: Sequence[str] = ("orders",), queues: int = 2, first: int = 0, size: int = 100
) -> list[Message]:
    """Messages with tags, keys and ids, distributed over the queues in turn."""
    return [
        Message(
            topics[number % len(topics)],
            number // len(topics) % queues,
            f"body {number} ".encode() + bytes([number % 256]) * (size * (number % 5) // 2),
            {
                "UNIQ_KEY": f"{number:032X}",
                "KEYS": f"key{number} all",
                "TAGS": ("paid", "refunded", "größer")[number // 7 % 3],
                "n": str(number),
            },
            born_timestamp=1_700_000_000_000 + number,
            born_host=HOST,
        )
        for number in range(first, first + count)
    ]
