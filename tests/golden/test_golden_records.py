"""Every record that RocketMQ wrote is read exactly and written again byte for byte."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aerobee_store.records import properties, record, record_batch
from aerobee_store.records.record import Message, Record, RecordHeader, ScanStop, StopReason
from aerobee_store.records.record_batch import RecordBatch
from tests.support import golden
from tests.support.golden import GoldenCase, GoldenMessage

WRITABLE_CASES = ["plain", "propcrc", "propcrc-unclosed", "wide", "kinds", "batch-cq", "v43"]
# Fields with the same name in a record and in a manifest's message; bodies and properties are compared separately.
EQUAL_FIELDS = [
    field.name
    for field in dataclasses.fields(GoldenMessage)
    if field.name not in ("body", "body_size", "body_sha256", "properties", "properties_are_irregular")
]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenCase]:
    """Unpack each case once; no test here writes to it."""
    cases: dict[str, GoldenCase] = {}

    def loaded(name: str) -> GoldenCase:
        if name not in cases:
            directory: Path = tmp_path_factory.mktemp(name)
            cases[name] = golden.load(name, directory)
        return cases[name]

    return loaded


def assert_equal_fields(found: Record, expected: GoldenMessage) -> None:
    """Compare every field of the manifest, and the body by its digest where the manifest has only that."""
    for name in EQUAL_FIELDS:
        assert getattr(found, name) == getattr(expected, name), f"{name} at {expected.physical_offset}"
    assert found.properties == expected.properties
    assert len(found.body) == expected.body_size
    if expected.body is None:
        assert hashlib.sha256(found.body).hexdigest() == expected.body_sha256
    else:
        assert found.body == expected.body


@pytest.mark.parametrize("name", golden.names())
def test_every_intact_record_is_decoded_alone(name: str, load: Callable[[str], GoldenCase]) -> None:
    """Decoding at the manifest's offset gives every field of the manifest."""
    case = load(name)
    segments = case.segments()
    assert case.intact
    for expected in case.intact:
        position = expected.physical_offset % case.segment_size
        segment = segments[expected.physical_offset - position]
        assert_equal_fields(record.decode(segment, position, physical_offset=expected.physical_offset), expected)


def scan_log(case: GoldenCase) -> tuple[list[RecordHeader], list[ScanStop]]:
    """Scan each segment, skipping damaged records whose lengths are valid."""
    headers, stops = [], []
    for base, segment in case.segments().items():
        position = 0
        while True:
            for item in record.scan(segment, base, position):
                if isinstance(item, ScanStop):
                    stops.append(item)
                else:
                    headers.append(item)
            stop = stops[-1]
            if stop.reason is not StopReason.CORRUPT or not stop.size:
                break
            position = stop.position + stop.size
    return headers, stops


@pytest.mark.parametrize("name", golden.names())
def test_a_scan_meets_every_record_and_says_why_it_stops(name: str, load: Callable[[str], GoldenCase]) -> None:
    """Scanning the segments finds the intact records in order, the blanks, the damage and the end of the log."""
    case = load(name)
    headers, stops = scan_log(case)

    assert [header.physical_offset for header in headers] == [message.physical_offset for message in case.intact]
    corrupt = {stop.physical_offset for stop in stops if stop.reason is StopReason.CORRUPT}
    assert corrupt == {offset for offset, what in case.damaged.items() if what != "lost"}
    assert StopReason.TRUNCATED not in {stop.reason for stop in stops}
    log = case.manifest["log"]
    blanks = [[stop.physical_offset, stop.size] for stop in stops if stop.reason is StopReason.BLANK]
    lost = "lost" in case.damaged.values()
    assert blanks == [blank for blank in log["blanks"] if not lost or blank[0] < log["scanEnd"]]
    first_end = next(stop for stop in stops if stop.reason is not StopReason.BLANK)
    assert first_end.physical_offset == log["scanEnd"]
    expected_reason = StopReason.END_OF_DATA if log["scanEndReason"] == "zero" else StopReason.CORRUPT
    assert first_end.reason is expected_reason


def parse_log(case: GoldenCase) -> list[RecordBatch]:
    """Parse each segment by columns, skipping damage like `scan_log`."""
    batches = []
    for base, segment in case.segments().items():
        position = 0
        while True:
            batch = RecordBatch.parse(segment, base_physical_offset=base, start=position)
            batches.append(batch)
            if batch.stop.reason is not StopReason.CORRUPT or not batch.stop.size:
                break
            position = batch.stop.position + batch.stop.size
    return batches


@pytest.mark.parametrize("name", golden.names())
def test_every_intact_record_is_decoded_in_a_batch(name: str, load: Callable[[str], GoldenCase]) -> None:
    """Columns and stops equal those of the scalar scan, and each record of a batch has every field of the manifest."""
    case = load(name)
    batches = parse_log(case)
    found = [batch.record(row) for batch in batches for row in range(len(batch))]
    assert len(found) == len(case.intact)
    for decoded, expected in zip(found, case.intact, strict=True):
        assert_equal_fields(decoded, expected)
    assert [batch.stop for batch in batches] == scan_log(case)[1]


@pytest.mark.parametrize("name", golden.names())
def test_tags_codes_equal_the_stored_units(name: str, load: Callable[[str], GoldenCase]) -> None:
    """Unless a unit holds a delivery time, its code is the hash that the batch computes from TAGS."""
    case = load(name)
    codes: dict[int, int] = {}
    for batch in parse_log(case):
        codes.update(zip(batch.physical_offset.tolist(), batch.tags_codes().tolist(), strict=True))
    compared = 0
    queues = {**case.manifest.get("queues", {}), **case.manifest.get("batchQueues", {})}
    for topic, by_id in queues.items():
        for queue in by_id.values():
            units = queue["units"] if isinstance(queue, dict) else queue  # a batch queue is only a list of units
            for physical_offset, _, code, *_ in units:
                if topic != "SCHEDULE_TOPIC_XXXX" and physical_offset in codes:
                    assert codes[physical_offset] == code
                    compared += 1
    assert compared or name in ("no-cq-clean", "no-cq-crash", "deleted-head-no-cq")


@pytest.mark.parametrize("name", golden.names())
def test_index_hashes_are_those_of_the_keys(name: str, load: Callable[[str], GoldenCase]) -> None:
    """The batch gives one hash for each key of each intact message, including repeated keys."""
    case = load(name)
    found: Counter[tuple[int, int]] = Counter()
    for batch in parse_log(case):
        rows, hashes = batch.index_hashes()
        found.update(zip(batch.physical_offset[rows].tolist(), hashes.tolist(), strict=True))
    expected: Counter[tuple[int, int]] = Counter()
    for topic_and_key, offsets in case.manifest["index"]["keys"].items():
        topic, key = topic_and_key.split("#", 1)
        expected.update((offset, properties.index_hash(topic, key)) for offset in offsets)
    assert expected
    assert found == expected


def message_of(expected: GoldenMessage, log: bytes, in_split_batch: bool) -> Message:
    """Return the message that RocketMQ stored; bodies missing from the manifest are taken from the log."""
    body = expected.body
    if body is None:
        body = record.decode(log, physical_offset=expected.physical_offset).body
    raw = expected.raw_properties if expected.properties_are_irregular or in_split_batch else None
    return Message(
        expected.topic,
        expected.queue_id,
        body,
        {} if raw is not None else expected.properties,
        raw,
        flag=expected.flag,
        sys_flag=expected.sys_flag,
        born_timestamp=expected.born_timestamp,
        born_host=expected.born_host,
        reconsume_times=expected.reconsume_times,
        prepared_transaction_offset=expected.prepared_transaction_offset,
    )


@pytest.mark.parametrize("name", WRITABLE_CASES)
def test_records_are_written_again_byte_for_byte(name: str, load: Callable[[str], GoldenCase]) -> None:
    """Encoding the fields of the manifest gives the bytes that RocketMQ wrote, record checksum included."""
    case = load(name)
    segments = case.segments()
    for expected in case.messages:
        position = expected.physical_offset % case.segment_size
        stored = segments[expected.physical_offset - position][position : position + expected.size]
        in_split_batch = expected.physical_offset in case.split_batches
        encoded = record.encode(
            message_of(expected, stored, in_split_batch),
            queue_offset=expected.queue_offset,
            physical_offset=expected.physical_offset,
            store_timestamp=expected.store_timestamp,
            store_host=expected.store_host,
            property_crc=bool(case.config.get("enabledAppendPropCRC")),
            split_batch=in_split_batch,
        )
        assert encoded == stored, f"record at {expected.physical_offset}"


@pytest.mark.parametrize("name", WRITABLE_CASES)
def test_a_batch_is_placed_byte_for_byte(name: str, load: Callable[[str], GoldenCase]) -> None:
    """Records moved elsewhere and placed at their original offsets equal RocketMQ's bytes."""
    case = load(name)
    for base, segment in case.segments().items():
        batch = RecordBatch.parse(segment, base_physical_offset=base)
        if not len(batch):
            continue
        buffer = bytearray(segment)
        moved = record_batch.place(batch, buffer, np.arange(len(batch)) + 7, base + 1_000_003, 1)
        assert buffer != segment
        again = RecordBatch.parse(bytes(buffer), base_physical_offset=base + 1_000_003)
        assert len(again) == len(batch), f"not valid at another place: {again.stop}"
        record_batch.place(moved, buffer, batch.queue_offset, base, batch.store_timestamp)
        assert buffer == segment
