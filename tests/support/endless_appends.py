"""A process that appends large batches to a store until it is killed: python -m tests.support.endless_appends DIRECTORY
MODE. It prints one line before the first append."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from aerobee_store import Message, MessageStore, StoreConfig
from aerobee_store.config import WriteMode
from aerobee_store.records.record_batch import RecordBatch

TOPIC: Final = "orders"
BODY: Final = bytes(range(256)) * 6
COUNT: Final = 400  # 600 KiB in one copy


def config(directory: Path, write_mode: WriteMode) -> StoreConfig:
    """Few files, so that nearly all of the time goes into copying records."""
    return StoreConfig(
        directory=directory,
        write_mode=write_mode,
        flush="async",
        segment_size=32 << 20,
        segments_ahead=0,
        disk_headroom=0,
        index=False,
        pool_buffer_count=2,
    )


def main(directory: str, write_mode: WriteMode) -> None:
    with MessageStore.open(config(Path(directory), write_mode)) as store:
        message = Message(topic=TOPIC, queue_id=0, body=BODY)
        records = bytearray()
        for number in range(COUNT):
            records += store.draft(message).encode(number, len(records), 1)
        batch = RecordBatch.parse(bytes(records), base_physical_offset=0, record_size_max=len(records))
        assert len(batch) == COUNT
        print("appending", flush=True)
        while True:
            store.append_records(TOPIC, 0, batch)
            store.commit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])  # type: ignore[arg-type]  # checked by the configuration
