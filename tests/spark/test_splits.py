"""Byte ranges of a log: every record is read once, wherever the log is split."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from aerobee_pipeline.errors import DataLossError
from aerobee_pipeline.reading.splits import LogSplit, LogWindow, SplitReader, plan_log, read_split, store_files
from aerobee_store import Message
from aerobee_store.records import record
from tests.spark.stores import HOST, orders, write


def starts(splits: list[LogSplit]) -> list[int]:
    return [
        int(offset)
        for split in splits
        for batch in read_split(split, fail_on_data_loss=True)
        for offset in batch.physical_offset
    ]


def plan(directory: Path, size: int, *, fail: bool = True) -> list[LogSplit]:
    return plan_log("b", store_files(directory), size, fail_on_data_loss=fail)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Several segments of records; some bodies contain copies of records from other positions."""
    messages = orders(600)
    copy = record.encode(
        messages[0], queue_offset=0, physical_offset=0, store_timestamp=1, store_host=HOST, property_crc=True
    )
    messages[::7] = [
        replace(message, body=b"x" * (number % 9) + copy * 3) for number, message in enumerate(messages[::7])
    ]
    write(tmp_path / "store", messages)
    return tmp_path / "store"


def test_any_number_of_splits_reads_every_record_once(store: Path) -> None:
    """Any split of a log returns all records once and in order."""
    whole = starts(plan(store, 1 << 30))
    assert len(whole) == 600
    for size in (4096, 5000, 10_000, 33_333):
        splits = plan(store, size)
        assert len(splits) > 3
        assert starts(splits) == whole
        for one, following in pairwise(splits):
            assert one.end == following.begin, "every byte is in one range"


def test_a_split_at_every_byte(store: Path) -> None:
    """Two ranges that meet at any byte of a section return all records; the second searches for its first."""
    whole = plan(store, 1 << 30)[0]
    all_starts = starts([whole])
    for cut in range(all_starts[3], all_starts[9] + 1):
        splits = [replace(whole, end=cut), replace(whole, begin=cut)]
        assert starts(splits) == all_starts


def test_a_body_that_imitates_a_record_is_detected(tmp_path: Path) -> None:
    """A search that starts in such a body is misled; the task before it detects that the ranges do not meet."""
    write(tmp_path / "store", orders(10))
    place = starts(plan(tmp_path / "store", 1 << 30))[-1]
    whole = plan(tmp_path / "store", 1 << 30)[0]
    last = list(read_split(whole, fail_on_data_loss=True))[-1]
    end = place + int(last.size[-1])
    forged_at = end + record.FIXED_SIZE + 50
    forged = record.encode(
        Message("orders", 0, b"forged"),
        queue_offset=5,
        physical_offset=forged_at,
        store_timestamp=1,
        store_host=HOST,
        property_crc=True,
    )
    write(tmp_path / "store", [Message("orders", 0, bytes(50) + forged + bytes(50)), *orders(3)])
    whole = plan(tmp_path / "store", 1 << 30)[0]
    assert len(starts([whole])) == 14
    cut = end + 20
    with pytest.raises(DataLossError, match=f"end at .*the next range would begin at {forged_at}.*splitBytes"):
        starts([replace(whole, end=cut), replace(whole, begin=cut)])


def test_damage_is_an_error_or_skipped(store: Path) -> None:
    """A flipped bit makes only its record unreadable, and the error has the position."""
    whole = starts(plan(store, 1 << 30))
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[whole[5] + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataLossError, match=rf"0: no record can be read at \[{whole[5]}, {whole[6]}\)"):
        starts(plan(store, 4096))
    for size in (4096, 1 << 30):
        kept = [
            int(offset)
            for split in plan(store, size)
            for batch in read_split(split, fail_on_data_loss=False)
            for offset in batch.physical_offset
        ]
        assert kept == whole[:5] + whole[6:]


def test_a_missing_or_removed_segment_counts_as_loss(store: Path) -> None:
    """Planning finds the gap between segments, and a task the missing file."""
    splits = plan(store, 1 << 30)
    assert len(splits) > 2
    Path(splits[1].path).unlink()
    with pytest.raises(DataLossError, match=r"the log has no segment for \[65536, 131072\)"):
        plan(store, 1 << 30)
    with pytest.raises(DataLossError, match="retention may have removed it"):
        list(SplitReader(splits[1]).batches())


def test_an_incomplete_last_record_is_no_loss(store: Path) -> None:
    """An incomplete last record after a crash was never acknowledged."""
    whole = starts(plan(store, 1 << 30))
    last = plan(store, 1 << 30)[-1]
    path = Path(last.path)
    data = bytearray(path.read_bytes())
    cut = whole[-1] - last.segment_begin + 60
    data[cut:] = bytes(len(data) - cut)
    path.write_bytes(data)
    assert starts(plan(store, 4096)) == whole[:-1]


def test_reading_a_log_in_small_ranges(store: Path) -> None:
    """A minimum number of ranges makes them smaller than `split_bytes`."""
    whole = plan(store, 1 << 30)
    more = plan_log("b", store_files(store), 1 << 30, fail_on_data_loss=True, parts_min=3 * len(whole))
    assert 2 * len(whole) < len(more) < 5 * len(whole)
    assert starts(more) == starts(whole)


def test_segments_before_a_time_are_not_read(store: Path) -> None:
    """Planning by time skips segments that end earlier."""
    assert (
        len(plan_log("b", store_files(store), 1 << 30, fail_on_data_loss=True, window=LogWindow(since_ms=1 << 50))) == 1
    )
