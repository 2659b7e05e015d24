"""The compiled passes over records, compared with the store's own codec on random logs, damaged in all ways."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerobee_pipeline import passes
from aerobee_pipeline.errors import SparkMissingError
from aerobee_pipeline.passes import joined, parsed, property_values, values
from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import record
from aerobee_store.records.record import Message
from aerobee_store.records.record_batch import RecordBatch
from tests.support import golden

LOGS = int(os.environ.get("AEROBEE_DAMAGED_LOGS", "3000"))
HOSTS = (("10.1.2.3", 8081), ("2001:db8::1", 8081))
TOPICS = ("t", "orders", "größe", "v" * 200, "T" * 127)
NAMES = ("UNIQ_KEY", "KEYS", "TAGS", "n")
PIECES = (b"KEYS", b"TAGS", b"\x01", b"\x02", b"a", b"UNIQ_KEY", b"\xff", b"\x01v\x02", b"\x00")
COLUMNS = (
    *("start", "size", "queue_id", "queue_offset", "physical_offset", "sys_flag", "store_timestamp", "body_start"),
    *("body_size", "properties_start", "properties_size", "has_property_crc", "born_timestamp", "body_crc", "flag"),
)
OVERWRITING = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0", b"\x7f\xff", b"\0")


@dataclass
class Log:
    """Bytes of a log, and the settings to parse it with."""

    data: bytes
    settings: dict[str, Any]


def damaged_log(seed: int) -> Log:
    """A few records of all kinds, with changed bits, overwritten numbers, missing bytes, or none of it."""
    r = random.Random(seed)
    base = r.choice([0, 0, 4096])
    data = bytearray()
    for number in range(r.randrange(12)):
        message = Message(
            r.choice(TOPICS),
            r.randrange(4),
            r.randbytes(r.choice([0, 1, 7, 100, 300])),
            flag=r.randrange(-5, 5),
            sys_flag=r.choice([0, 0, 1, 4, 8, 0x80]),
            born_timestamp=r.randrange(1 << 40),
            born_host=r.choice(HOSTS),
            raw_properties=b"".join(r.choices(PIECES, k=r.randrange(12))) + b"z" if r.random() < 0.6 else None,
        )
        try:
            data += record.encode(
                message,
                queue_offset=number,
                physical_offset=base + len(data),
                store_timestamp=r.randrange(1 << 41),
                store_host=r.choice(HOSTS),
                property_crc=r.random() < 0.6,
            )
        except InvalidMessageError:
            continue
    data += r.choice(
        [b"", b"", bytes(r.randrange(200)), r.randbytes(r.randrange(30)), record.encode_blank(40) + bytes(32)]
    )
    for _ in range(r.choice([0, 0, 1, 1, 2, 5])):
        place = r.randrange(len(data) + 1)
        kind = r.random()
        if kind < 0.5 and place < len(data):
            data[place] ^= 1 << r.randrange(8)
        elif kind < 0.7:
            del data[place:]
        elif kind < 0.85:
            written = r.choice(OVERWRITING)[: len(data) - place]
            data[place : place + len(written)] = written
        else:
            del data[place : place + r.randrange(40)]
    start = min(r.choice([0, 0, 0, 5]), len(data))
    settings = {
        "base_physical_offset": r.choice([base, base, base, None]),
        "start": start,
        "end": r.choice([None, None, max(len(data) - r.randrange(5), start)]),
        "check_crc": r.random() < 0.8,
        "placed": r.random() < 0.9,
        "require_property_crc": r.random() < 0.1,
        "count_max": r.choice([None, None, 3, 0]),
        "record_size_max": r.choice([record.SIZE_MAX, 300]),
    }
    return Log(bytes(data), settings)


def assert_alike(log: Log, name: str, chosen: Sequence[int] | None = None) -> int:
    """The same records, reason to stop and properties; the number of records."""
    expected = RecordBatch.parse(log.data, **log.settings)
    found = parsed(log.data, **log.settings)
    assert found.stop == expected.stop, name
    for column in COLUMNS:
        assert getattr(found, column).tolist() == getattr(expected, column).tolist(), (name, column)
    count = len(expected)
    assert list(map(found.topic, range(count))) == list(map(expected.topic, range(count))), name
    rows = None if chosen is None else np.array([row for row in chosen if row < count], np.int64)
    for property_name, taken in zip(NAMES, property_values(found, rows, NAMES), strict=True):
        stored = expected.property_bytes(property_name)
        wanted = stored if rows is None else [stored[row] for row in rows]
        assert taken.to_pylist() == wanted, (name, property_name)
        taken.validate(full=True)
    return count


def test_damaged_logs_are_read_as_by_the_codec() -> None:
    """Whatever the bytes are: the same records, the same error at the same place, the same properties."""
    first = random.SystemRandom().randrange(1 << 40) if "AEROBEE_FRESH_SEEDS" in os.environ else 27
    records = 0
    for seed in range(first, first + LOGS):
        records += assert_alike(damaged_log(seed), f"seed {seed}", (0, 1, 3, 8) if seed % 2 else None)
    assert records > LOGS // 2


def by_hand(
    version: int = 1,
    topic: bytes = b"t",
    properties: bytes = b"",
    queue_id: int = 0,
    offset: int = 0,
    physical: int = 0,
) -> bytes:
    """A record whose lengths add up, whatever else is wrong with it; its checksum is."""
    lengths = len(topic).to_bytes(version, "big"), len(properties).to_bytes(2, "big")
    parts = b"bb" + lengths[0] + topic + lengths[1] + properties
    magic = record.MAGIC_V1 if version == 1 else record.MAGIC_V2
    size = record.FIXED_SIZE + len(parts)
    numbers = size, magic, 0, queue_id, 0, offset, physical, 0, 0, bytes(8), 0, bytes(8), 0, 0, 2
    return record.FIXED_STRUCTS[0].pack(*numbers) + parts


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 1),
        ({"topic": b"t" * 127}, 1),
        ({"topic": b"t" * 128}, 0),
        ({"topic": b"t" * 255}, 0),
        ({"topic": b""}, 0),
        ({"topic": b"", "properties": b"z"}, 0),
        ({"version": 2, "topic": b"t" * 128}, 1),
        ({"version": 2, "topic": b""}, 0),
        ({"version": 2, "topic": b"t" * 32768}, 0),
        ({"topic": b"\xff"}, 0),
        ({"topic": b"\0"}, 0),
        ({"topic": b"\0", "properties": b"z"}, 1),
        ({"properties": b"z\0"}, 0),
        ({"properties": record.PROPERTY_CRC_UNPLACED}, 1),
        ({"properties": record.PROPERTY_CRC_UNPLACED[:-1] + b"\3"}, 1),
        ({"properties": b"TAGS\x01a\x02" + record.PROPERTY_CRC_UNPLACED.replace(b"\x01", b"\0")}, 1),
        ({"properties": b"z" * 32768}, 0),
        ({"topic": b"__CRC32#\x01aaaaaaaa", "properties": b"\2"}, 1),
        ({"queue_id": -1}, 0),
        ({"offset": -1}, 0),
        ({"physical": -1}, 0),
    ],
)
def test_each_limit_of_a_field(given: dict[str, Any], count: int) -> None:
    """What checksums usually find first: one field that no writer writes, where all lengths add up."""
    settings = {"base_physical_offset": None, "check_crc": False}
    data = by_hand(**given)
    log = Log(data, settings)
    assert assert_alike(log, str(given)) == count
    unplaced = assert_alike(Log(data, {**settings, "placed": False}), str(given))
    assert unplaced == (1 if {"offset", "physical"} & {*given} else count)
    assert_alike(Log(data, {**settings, "require_property_crc": True}), str(given))
    assert_alike(Log(by_hand() + data + by_hand(), settings), str(given))
    assert len(parsed(data, base_physical_offset=None)) == 0, "its checksum is wrong"


@pytest.mark.parametrize("name", golden.names())
def test_golden_stores_are_read_as_by_the_codec(name: str, tmp_path: Path) -> None:
    """Records written by Apache RocketMQ, whole and cut off."""
    for offset, data in golden.load(name, tmp_path).segments().items():
        for end in (len(data), len(data) // 2, 100):
            assert_alike(Log(data, {"base_physical_offset": offset, "end": end}), f"{name}, {end} bytes")


def test_nothing_outside_of_the_data_is_read(tmp_path: Path) -> None:
    """With checks of bounds in the compiled code, no damaged log makes it read where it must not."""
    program = (
        "from tests.spark.test_passes import assert_alike, damaged_log\n"
        f"for seed in range(10**6, 10**6 + {LOGS}): assert_alike(damaged_log(seed), f'seed {{seed}}', (0, 2))"
    )
    # With a directory of its own, because the usual one has code without these checks.
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_thousands_of_topics() -> None:
    """Topics are told apart by their bytes, not by their hashes or sizes."""
    data = b""
    names = [f"topic-{number * 7919 % 3000:04}" for number in range(6000)]
    for name in names:
        data += record.encode(
            Message(name, 0, b"x"),
            queue_offset=0,
            physical_offset=len(data),
            store_timestamp=1,
            store_host=HOSTS[0],
            property_crc=True,
        )
    batch = parsed(data, base_physical_offset=0)
    assert list(map(batch.topic, range(len(batch)))) == names
    assert len(batch.topics) == 3000


def test_copies_of_ranges_and_nulls() -> None:
    """Copied ranges keep nothing of their source, and a negative size is a null."""
    source = bytearray(b"0123456789")
    found = values(source, np.array([8, 0, 1, 4]), np.array([2, -1, 2, 0]))
    source[:] = b"x" * 10
    assert found.to_pylist() == [b"89", None, b"12", b""]
    assert bytes(joined(b"0123456789", np.array([1, 4]), np.array([3, 9]))) == b"1245678"


@pytest.mark.parametrize(("start", "size"), [(8, 3), (-1, 2), (11, 1), (1 << 62, 1), (0, 1 << 30)])
def test_a_range_outside_of_the_data_is_never_copied(start: int, size: int) -> None:
    """The last line of defence: positions come from checked records."""
    with pytest.raises(AssertionError, match="range 1 is outside of the data"):
        values(b"0123456789", np.array([0, start]), np.array([1, size]))


def test_a_worker_without_numba_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor whose environment lacks it."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "aerobee_pipeline.compiled", raising=False)
    passes._compiled.cache_clear()
    try:
        with pytest.raises(SparkMissingError, match="numba on the driver and on every machine that runs tasks"):
            values(b"x", np.array([0]), np.array([1]))
    finally:
        passes._compiled.cache_clear()


def test_planning_does_not_load_the_compiled_code() -> None:
    """The processes of the driver stay small: numba takes 0.4 seconds and 60 MB."""
    program = "import sys, aerobee_pipeline.source; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_code_is_compiled_where_no_directory_can_be_written(tmp_path: Path) -> None:
    """A read-only installation, and a user without a home."""
    place = tmp_path / "numba"
    place.touch()
    program = (
        "import numpy as np; from aerobee_pipeline.passes import values\n"
        "print(values(b'0123', np.array([1]), np.array([2])).to_pylist())"
    )
    # A directory below a file can be made by nobody, not even by root.
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(place / "cache"),
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "[b'12']\n"
