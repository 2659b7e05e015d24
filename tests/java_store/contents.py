"""What we write for RocketMQ to read: rounds of messages of every kind. As a program: for ever, until it is killed.

    python -m tests.java_store.contents DIRECTORY RELEASE PROPERTY_CRC

prints one JSON object for each message that is durable. RELEASE is the major version that will read it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from aerobee_store import Appended, Message, MessageStore, Record, StoreConfig

# Some hundred messages reach the end of every kind of file.
SIZES: Final = (32768, 50 * 20, 100, 400)

TAGS: Final = ("red", "", "中文", "TagA || TagB")
JOURNAL: Final = "rmq_sys_AEROBEE_DELIVERY"
SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PREPARED, COMMITTED, ROLLED_BACK = 0x4, 0x8, 0xC


@dataclass(frozen=True, slots=True)
class Stored:
    """A message, and where it went. `body` is hexadecimal, so that all of it is JSON."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int
    sys_flag: int
    properties: dict[str, str]
    body: str

    @property
    def queued(self) -> bool:
        return not self.sys_flag & PREPARED

    @property
    def index_keys(self) -> list[str]:
        if self.sys_flag & ROLLED_BACK == ROLLED_BACK:
            return []
        keys = [self.properties["UNIQ_KEY"]] if "UNIQ_KEY" in self.properties else []
        return keys + [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @classmethod
    def of(cls, message: Message, place: Appended) -> Stored:
        return cls(
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            size=place.size,
            store_timestamp=place.store_timestamp,
            sys_flag=message.sys_flag,
            properties=dict(message.properties),
            body=bytes(message.body).hex(),
        )

    @classmethod
    def of_record(cls, record: Record) -> Stored:
        properties = {name: value for name, value in record.properties.items() if name != "__CRC32#"}
        return cls(
            topic=record.topic,
            queue_id=record.queue_id,
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            size=record.size,
            store_timestamp=record.store_timestamp,
            sys_flag=record.sys_flag & ROLLED_BACK,
            properties=properties,
            body=record.body.hex(),
        )


def config(directory: Path, *, property_crc: bool = True) -> StoreConfig:
    """The small files of SIZES; how full the machine's disk is, is not the test's business."""
    segment, queue, slots, entries = SIZES
    return StoreConfig(
        directory=directory,
        segment_size=segment,
        queue_file_size=queue,
        index_slot_count=slots,
        index_entry_count=entries,
        property_crc=property_crc,
        body_size_max=16384,
        disk_headroom=0,
        disk_clean_ratio=1.0,
        disk_force_clean_ratio=1.0,
        disk_full_ratio=1.0,
    )


def rounds(release: int, seed: int = 0) -> Iterator[list[list[Message]]]:
    """For ever: some appends of some messages. Releases before 5 get no long topics, which they cannot read."""
    dice = random.Random(seed)
    number = 0
    while True:
        batch = []
        for _ in range(3):
            properties = {"KEYS": f"n{number} k{number % 7} 订单{number % 3}", "UNIQ_KEY": f"U{seed:04d}{number:012d}"}
            if tag := TAGS[number % len(TAGS)]:
                properties["TAGS"] = tag
            body = dice.randbytes(dice.choice((0, 1, 60, 700)))
            host = ("10.0.0.1", 4000) if number % 5 else ("2001:db8::1", 4000)
            batch.append(
                Message("orders", number % 3, body, properties, born_host=host, born_timestamp=1_700_000_000_000)
            )
            number += 1
        waiting = {"REAL_TOPIC": "payments", "REAL_QID": "1", "KEYS": f"t{number}"}
        alone = [
            Message("bare", 0, b"no properties"),
            Message("%RETRY%billing", 0, b"again", {"KEYS": f"r{number}"}, reconsume_times=3),
            Message(JOURNAL, 0, dice.randbytes(40)),
            Message(SCHEDULE, 17, b"in two hours", {**waiting, "DELAY": "18"}),
            Message(HALF, 0, b"half", {**waiting, "TRAN_MSG": "true", "PGROUP": "payments"}),
            Message(OP, 0, b"0", {"TAGS": "d", "__AEROBEE_OUTCOME": "commit"}),
            Message("payments", 1, b"paid", {"KEYS": f"t{number}"}, sys_flag=COMMITTED, prepared_transaction_offset=91),
            Message("payments", 1, b"old half", {"KEYS": f"t{number}"}, sys_flag=PREPARED),
            Message("payments", 1, b"never", {"KEYS": f"t{number}"}, sys_flag=ROLLED_BACK),
        ]
        if release >= 5:
            alone.append(Message("%RETRY%" + "g" * 130, 0, b"a long topic", {"KEYS": f"g{number}"}))
        yield [batch, *([message] for message in alone)]


def append(store: MessageStore, appends: Sequence[Sequence[Message]]) -> list[Stored]:
    """Several messages together are a split batch, as those of old clients. Durable when it returns."""
    stored = []
    for messages in appends:
        places = store.append(messages, split_batch=len(messages) > 1)
        stored += [Stored.of(message, place) for message, place in zip(messages, places, strict=True)]
    store.flush()
    return stored


def main() -> None:
    directory, release, property_crc = sys.argv[1:]
    store = MessageStore.open(config(Path(directory), property_crc=property_crc == "True"))
    for appends in rounds(int(release)):
        for stored in append(store, appends):
            print(json.dumps(asdict(stored)))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
