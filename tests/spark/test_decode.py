"""Decoding of stored records to Arrow, compared with the store's own codec, one record at a time."""

from __future__ import annotations

import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from aerobee_pipeline.errors import RecordDecodeError
from aerobee_pipeline.reading.decode import Decoder, expanded
from aerobee_pipeline.reading.schema import COLUMNS
from aerobee_store.errors import CorruptRecordError
from aerobee_store.records import inner_batch, properties, record
from aerobee_store.records.record import Message, Record
from aerobee_store.records.record_batch import RecordBatch
from tests.support import golden

HOST = ("10.1.2.3", 8081)
HOST_V6 = ("2001:db8::1", 8081)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encoded(messages: list[Message], *, property_crc: bool = True) -> bytes:
    data = b""
    for number, message in enumerate(messages):
        data += record.encode(
            message,
            queue_offset=number,
            physical_offset=len(data),
            store_timestamp=1_700_000_000_000 + number,
            store_host=message.store_host or HOST,
            property_crc=property_crc,
        )
    return data


def decoded(messages: list[Message], **settings: Any) -> list[dict[str, Any]]:
    batch = RecordBatch.parse(encoded(messages), base_physical_offset=0)
    assert len(batch) == len(messages)
    rows: list[dict[str, Any]] = Decoder(list(COLUMNS), broker_name="b", **settings).decode(batch).to_pylist()
    return rows


def expected(item: Record) -> dict[str, Any]:
    values = dict(item.properties)
    values.pop(properties.CRC32, None)
    return {
        "topic": item.topic,
        "brokerName": "b",
        "queueId": item.queue_id,
        "queueOffset": item.queue_offset,
        "msgId": item.unique_key or properties.offset_message_id(item.store_host, item.physical_offset),
        "keys": item.properties.get("KEYS"),
        "tags": item.properties.get("TAGS"),
        "body": item.body,
        "bornTimestamp": EPOCH + timedelta(milliseconds=item.born_timestamp),
        "storeTimestamp": EPOCH + timedelta(milliseconds=item.store_timestamp),
        "properties": list(values.items()),
        "flag": item.flag,
        "sysFlag": item.sys_flag,
        "reconsumeTimes": item.reconsume_times,
        "physicalOffset": item.physical_offset,
        "storeSize": item.size,
        "bodyCrc": item.body_crc,
        "decodeError": None,
    }


def sorted_properties(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "properties": sorted(row["properties"])}


@pytest.mark.parametrize("name", golden.names())
def test_every_record_of_the_golden_stores(name: str, tmp_path: Path) -> None:
    """Every column of every record written by Apache RocketMQ, also for a subset of rows."""
    case = golden.load(name, tmp_path)
    decoder = Decoder(list(COLUMNS), broker_name="b", decompress=False)
    for offset, data in case.segments().items():
        batch = RecordBatch.parse(data, base_physical_offset=offset)
        rows = [sorted_properties(row) for row in decoder.decode(batch).to_pylist()]
        assert rows == [sorted_properties(expected(batch.record(number))) for number in range(len(batch))]
        some = np.arange(0, len(batch), 3)
        found = [sorted_properties(row) for row in decoder.decode(batch, some).to_pylist()]
        assert found == [rows[number] for number in some]


def test_records_with_unusual_contents() -> None:
    """Empty and repeated properties, empty bodies, non-ASCII text, IPv4 and IPv6 hosts, the largest sizes."""
    messages = [
        Message("t", 0, b""),
        Message("größe", 1, b"x", {"KEYS": "ключ", "TAGS": "標籤"}, flag=-1, reconsume_times=7),
        Message("t", 2, b"a" * (4 << 20), raw_properties=b"a\x01b\x02a\x01c\x02TAGS\x01\x02=\x02\x02KEYS\x01k\x01l"),
        Message("t", 2, b"b", raw_properties=b"TAGS\x01\xff\xfe\x02"),
        Message("v" * 200, 3, b"c", {"long": "v" * 30_000}, born_host=HOST_V6, store_host=HOST_V6),
        Message("t", 0, b"d", born_host=HOST_V6, reconsume_times=3, born_timestamp=12),
    ]
    batch = RecordBatch.parse(encoded(messages), base_physical_offset=0)
    rows = decoded(messages)
    assert rows == [expected(batch.record(number)) for number in range(len(messages))]
    assert rows[2]["properties"] == [("a", "c"), ("KEYS", "k\x01l")]
    assert rows[3]["tags"] == "\ufffd\ufffd"


def test_only_requested_columns_are_decoded_in_their_order() -> None:
    """A narrow schema is the only form of column pruning."""
    batch = RecordBatch.parse(encoded([Message("t", 5, b"x")]), base_physical_offset=0)
    table = Decoder(["body", "queueId"]).decode(batch)
    assert table.schema == pa.schema([("body", pa.binary()), ("queueId", pa.int32())])
    assert table.to_pylist() == [{"body": b"x", "queueId": 5}]


def test_times_out_of_sparks_range_are_null() -> None:
    """A client may write any 64-bit number, which must not stop a query."""
    rows = decoded([Message("t", 0, b"x", born_timestamp=value) for value in (0, 1 << 62, -(1 << 62))])
    assert [row["bornTimestamp"] for row in rows] == [EPOCH, None, None]


def test_compressed_bodies() -> None:
    """A body compressed by the sender is decompressed; on request it is returned as stored."""
    body = b"compressible " * 1000
    lz4 = pa.BufferOutputStream()
    with pa.CompressedOutputStream(lz4, "lz4") as stream:
        stream.write(body)
    forms = [(0x0, body), (0x1, zlib.compress(body)), (0x101, lz4.getvalue().to_pybytes())]
    forms.append((0x201, pa.compress(body, "zstd", asbytes=True)))
    messages = [Message("t", 0, stored, sys_flag=flag) for flag, stored in forms]
    assert [row["body"] for row in decoded(messages)] == [body] * 4
    assert [row["body"] for row in decoded(messages, decompress=False)] == [stored for _, stored in forms]


def test_a_body_that_cannot_be_decompressed_is_an_error() -> None:
    """The error has topic, queue and offset, and says how to read the body anyway."""
    messages = [Message("t", 0, b"x"), Message("orders", 3, b"nothing compressed", sys_flag=1)]
    with pytest.raises(RecordDecodeError, match=r"topic 'orders', queue 3, offset 1.*decompress=false"):
        decoded(messages)


def test_the_size_of_a_decompressed_body_is_limited() -> None:
    """A few compressed bytes cannot exhaust a worker's memory."""
    with pytest.raises(RecordDecodeError, match="grows beyond 67108864 bytes"):
        decoded([Message("t", 0, zlib.compress(bytes(70 << 20)), sys_flag=1)])


def test_messages_of_inner_batches(tmp_path: Path) -> None:
    """Each message of an inner batch is a row with its own offset, body and properties."""
    case = golden.load("batch-cq", tmp_path)
    decoder = Decoder(["topic", "queueId", "queueOffset", "body", "keys"])
    rows: list[dict[str, Any]] = []
    count = 0
    for offset, data in case.segments().items():
        batch = RecordBatch.parse(data, base_physical_offset=offset)
        count += len(batch)
        for messages, numbers in expanded(batch, np.arange(len(batch))):
            rows += decoder.decode(messages, numbers).to_pylist()
    assert len(rows) > count
    for topic, queue_id in {(row["topic"], row["queueId"]) for row in rows}:
        offsets = [row["queueOffset"] for row in rows if (row["topic"], row["queueId"]) == (topic, queue_id)]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


@pytest.mark.parametrize("compression", [0, 0x300], ids=["plain", "zlib"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_unpacking_by_column_equals_unpacking_one_by_one(host: str, compression: int) -> None:
    """Ordinary records between inner batches, neighbours with other topics and hosts, parts of all sizes."""
    inner = [(b"x" * (number % 5), f"KEYS\x01k{number}\x02".encode() * (number % 3)) for number in range(40)]
    data = bytearray()
    for number in range(6):
        if number % 3 == 2:
            message = Message("größe", 1, b"plain", {"KEYS": "k"})
        else:
            body = inner_batch.body_of(inner[number : number + 20])
            flags = record.SYS_FLAG_COMPRESSED | compression if compression else 0
            body = zlib.compress(body) if compression else body
            message = inner_batch.message_of("größe" if number != 4 else "t", 1, body, 20, compression=flags)
            message = replace(message, properties={**message.properties, "INNER_BASE": str(number * 20), "TAGS": "t"})
        data += record.encode(
            replace(message, born_host=(host if number != 1 else "::2", 9), born_timestamp=7),
            queue_offset=number * 20,
            physical_offset=len(data),
            store_timestamp=1_700_000_000_000,
            store_host=(host, 10911),
            property_crc=True,
        )
    batch = RecordBatch.parse(bytes(data), base_physical_offset=0)
    assert len(batch) == 6
    decoder = Decoder([name for name in COLUMNS if name != "storeSize"], broker_name="b")
    rows: list[dict[str, Any]] = []
    for messages, numbers in expanded(batch, np.arange(len(batch))):
        rows += [sorted_properties(row) for row in decoder.decode(messages, numbers).to_pylist()]
    one_by_one: list[record.Record] = []
    for number in range(6):
        item = batch.record(number)
        one_by_one += inner_batch.unpack(item) if inner_batch.is_inner_batch(item) else [item]
    assert len(rows) == len(one_by_one) == 82
    for row, item in zip(rows, one_by_one, strict=True):
        same = {name: value for name, value in sorted_properties(expected(item)).items() if name in row}
        assert row == same


def test_a_body_that_is_not_an_inner_batch() -> None:
    """The error names the bad message and the record's position."""
    message = inner_batch.message_of("t", 0, b"no batch at all", 3)
    batch = RecordBatch.parse(encoded([message]), base_physical_offset=0)
    with pytest.raises(CorruptRecordError, match="message 0 of the inner batch"):
        list(expanded(batch, np.arange(1)))


def test_a_message_that_exceeds_its_inner_batch() -> None:
    """Neighbouring bodies are decoded together, but a message may not span two of them."""
    body = inner_batch.body_of([(b"%d" % number, b"") for number in range(4)])
    parts = (body[:30], body[30:])
    batch = RecordBatch.parse(
        encoded([inner_batch.message_of("t", 0, part, 2) for part in parts]), base_physical_offset=0
    )
    with pytest.raises(CorruptRecordError, match="message 1 of the inner batch"):
        list(expanded(batch, np.arange(2)))
