"""Columns that are read without the rest of their records."""

from __future__ import annotations

import numpy as np
import pytest

from aerobee_store.records import record
from aerobee_store.records.record import Message, ScanStop
from aerobee_store.records.record_columns import Integers, have_topic, heads_at

V4 = ("10.1.2.3", 50000)
V6 = ("2001:db8::1", 50001)
# Beginnings of each other, and sizes whose low bytes are equal.
TOPICS = ["orders", "order", "orders2", "Orders", "t" * 127, "t" * 128, "t" * 44, "t" * 300, "é" * 64, "t" * 3000]


def log_of(topics: list[str], hosts: list[tuple[str, int]]) -> tuple[bytearray, Integers, Integers, list[str]]:
    """Records of these topics between these hosts, of both versions where possible: the log, their starts, sizes
    and topics."""
    log, starts, names = bytearray(), [], []
    for topic in topics:
        for born in hosts:
            for stored in hosts:
                for version in (1, 2)[len(topic.encode()) > record.TOPIC_SIZE_MAX_V1 :]:
                    starts.append(len(log))
                    names.append(topic)
                    message = Message(topic, 0, b"body" * (len(topic) - 1), born_host=born)
                    log += record.encode(
                        message,
                        queue_offset=5,
                        physical_offset=starts[-1],
                        store_timestamp=1700000000123,
                        store_host=stored,
                        property_crc=False,
                        version=version,
                    )
    start = np.array(starts, np.int64)
    return log, start, np.diff(start, append=len(log)), names


@pytest.mark.parametrize("hosts", [[V4], [V4, V6]], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("topics", [TOPICS[:5], TOPICS[-3:], TOPICS], ids=["short", "long", "all"])
def test_records_of_a_topic(topics: list[str], hosts: list[tuple[str, int]]) -> None:
    """The same for records of one layout and of many, and never of a topic that begins or ends like it."""
    log, start, size, names = log_of(topics, hosts)
    head = heads_at(memoryview(log), start)
    for topic in [*TOPICS, "t" * 256, "s"]:
        found = have_topic(memoryview(log), start, size, head, topic)
        assert found.tolist() == [name == topic for name in names], topic


@pytest.mark.parametrize("hosts", [[V4], [V4, V6]], ids=["IPv4", "IPv6"])
def test_no_flipped_bit_gives_another_topic(hosts: list[tuple[str, int]]) -> None:
    """Nothing beyond the record is read, and a record of the topic that the scalar check accepts is found."""
    log, start, size, _ = log_of(["orders", "order", "o"], hosts[::-1])  # ends with the smallest record
    for bit in range(8 * len(log)):
        log[bit // 8] ^= 1 << bit % 8
        view = memoryview(bytes(log))
        found = have_topic(view, start, size, heads_at(view, start), "orders")
        at = int(np.searchsorted(start, bit // 8, side="right")) - 1
        first, last = int(start[at]), int(start[at] + size[at])
        seen = record.peek(view, first, last, check_crc=False, placed=False)
        if not isinstance(seen, ScanStop):
            assert bool(found[at]) == (seen.topic == "orders"), (bit // 8 - first, bit % 8)
        log[bit // 8] ^= 1 << bit % 8
