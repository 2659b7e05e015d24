"""The data of the pipeline's benchmarks: a store of records with random bodies, an id, a key, a tag and a number."""

from __future__ import annotations

import os
import time
from pathlib import Path

from aerobee_broker.tables.rebuilt_tables import rebuild_tables
from aerobee_store import Message, MessageStore, RecordBatch, StoreConfig
from aerobee_store.records.record import Draft
from tests.benchmarks.disk import ANY_DISK_USAGE

TOPICS = 4
QUEUES = 4
BODY_SIZE = 256
_BATCH = 256
_BATCHES = 8
"""Batches with distinct bodies per queue: more than a compressor's window."""
_HOST = ("127.0.0.1", 8081)
_ROUND = b"R0000000"


def topic(number: int) -> str:
    return f"bench-{number}"


def write_store(directory: Path, size: int) -> int:
    """Write a log of about `size` bytes to the queues in turn; return the number of messages."""
    templates = [
        [(topic(of), queue, _template(topic(of), queue, part)) for of in range(TOPICS) for queue in range(QUEUES)]
        for part in range(_BATCHES)
    ]
    config = StoreConfig(directory=directory, flush="async", **ANY_DISK_USAGE)
    written = count = round_number = 0
    with MessageStore.open(config) as store:
        while written < size:
            # Only keys change in each round; encoding every record again would dominate the time.
            for name, queue, template in templates[round_number % _BATCHES]:
                data = template.replace(_ROUND, b"R%07X" % round_number)
                store.append_records(name, queue, RecordBatch.parse(data, base_physical_offset=None, placed=False))
                written += len(data)
                count += _BATCH
            store.commit()
            round_number += 1
    rebuild_tables(directory, apply=True)  # a broker refuses queues without a table of topics
    os.sync()  # otherwise the first measurement includes it
    return count


def _template(name: str, queue: int, part: int) -> bytes:
    born = int(time.time() * 1000)
    return b"".join(
        Draft(
            Message(
                name,
                queue,
                os.urandom(BODY_SIZE),
                {
                    "UNIQ_KEY": f"0102FC00{_ROUND.decode()}{part:02X}{queue:02X}{number:08X}",
                    "KEYS": f"{_ROUND.decode()}-{number}",
                    "TAGS": ("paid", "refunded", "open")[number % 3],
                    "n": str(number),
                },
                born_timestamp=born,
                born_host=_HOST,
            ),
            store_host=_HOST,
            property_crc=True,
        ).encode_unplaced()
        for number in range(_BATCH)
    )
