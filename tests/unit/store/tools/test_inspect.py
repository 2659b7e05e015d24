"""inspect describes the content of a store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aerobee_store import MessageStore, StoreConfig, StoreDirectoryError
from aerobee_store.tools.inspect import inspect
from tests.unit.store.tools.conftest import COUNT, Stored, message, snapshot


@pytest.mark.parametrize("full", [False, True])
def test_topics_queues_and_log(stored: Stored, full: bool) -> None:
    """Counts, offsets and times equal those of the stored messages."""
    before = snapshot(stored.directory)
    report = inspect(stored.directory, full=full)
    assert report.state == "stopped"
    assert (report.log_begin, report.log_end) == (0, stored.places[-1].end)
    assert report.records == (COUNT if full else None)
    assert [(queue.topic, queue.queue_id) for queue in report.queues] == [("A", 0), ("A", 1), ("B", 0), ("B", 1)]
    for queue in report.queues:
        own = [
            place.store_timestamp
            for each, place in zip(stored.messages, stored.places, strict=True)
            if (each.topic, each.queue_id) == (queue.topic, queue.queue_id)
        ]
        assert (queue.min_offset, queue.max_offset, queue.messages) == (0, len(own), len(own))
        assert (queue.first_store_time, queue.last_store_time) == (own[0], own[-1])
        assert queue.files == -(-len(own) // 20)
    for topic in report.topics:
        places = [p for m, p in zip(stored.messages, stored.places, strict=True) if m.topic == topic.topic]
        assert (topic.queues, topic.messages) == (2, COUNT // 2)
        assert topic.bytes == (sum(place.size for place in places) if full else None)
        assert (topic.first_store_time, topic.last_store_time) == (
            places[0].store_timestamp,
            places[-1].store_timestamp,
        )
    assert report.findings == []
    assert snapshot(stored.directory) == before


def test_segments(stored: Stored) -> None:
    """With `full` every segment has its records, used bytes, blank and times."""
    report = inspect(stored.directory, full=True)
    size = stored.config.segment_size
    assert [segment.start for segment in report.segments] == [0, size, 2 * size]
    for segment in report.segments:
        own = [place for place in stored.places if segment.start <= place.physical_offset < segment.start + size]
        assert segment.records == len(own)
        assert segment.used == own[-1].end - segment.start
        assert (segment.first_store_time, segment.last_store_time) == (own[0].store_timestamp, own[-1].store_timestamp)
        is_last = segment is report.segments[-1]
        assert segment.blank == (0 if is_last else size - segment.used)
    fast = inspect(stored.directory)
    assert [segment.records for segment in fast.segments] == [None, None, None]
    assert fast.segments[-1].used == report.segments[-1].used
    assert [segment.first_store_time for segment in fast.segments] == [
        segment.first_store_time for segment in report.segments
    ]


def test_index_and_checkpoint(stored: Stored) -> None:
    """The counts of an index file are derived from its content."""
    report = inspect(stored.directory)
    assert sum(index.entries for index in report.index_files) == 3 * COUNT
    assert {(index.slots, index.capacity) for index in report.index_files} == {(50, 100)}
    assert report.checkpoint is not None
    last = stored.places[-1].store_timestamp
    assert (report.checkpoint.log_time, report.checkpoint.queues_time) == (last, last)
    assert report.disk.log_bytes == 3 * stored.config.segment_size
    assert report.disk.allocated_bytes > 0
    assert 0 < report.disk.partition_available <= report.disk.partition_total


def test_the_report_is_one_json_object(stored: Stored) -> None:
    """The names are those of the manifests, and unknown numbers are null."""
    content = json.loads(json.dumps(inspect(stored.directory).to_json()))
    assert content["logEnd"] == stored.places[-1].end
    assert content["queues"][0]["queueId"] == 0
    assert content["records"] is None


def test_damage(stored: Stored) -> None:
    """`full` finds damaged ranges; bytes after the log's end are found in any case."""
    stored.patch_log(stored.places[9].physical_offset + 8, b"\0\0\0\0")
    stored.patch_log(stored.places[-1].end + 50, b"left over")
    assert [finding.kind for finding in inspect(stored.directory).findings] == ["log-bytes-behind-end"]
    assert [finding.kind for finding in inspect(stored.directory, full=True).findings] == [
        "log-damaged",
        "log-bytes-behind-end",
    ]


def test_missing_queues(stored: Stored) -> None:
    """The end of the log is found without queues."""
    for path in (stored.directory / "consumequeue").rglob("0*0"):
        if path.is_file():
            path.unlink()
    report = inspect(stored.directory)
    assert report.log_end == stored.places[-1].end
    assert all(queue.messages == 0 for queue in report.queues)


def test_unexpected_files(stored: Stored) -> None:
    """Invalid names and sizes are findings."""
    (stored.directory / "commitlog" / "notes.txt").write_text("hello")
    os.truncate(stored.directory / "consumequeue" / "A" / "0" / f"{0:020d}", 90)
    (stored.directory / "index" / "99991231235959999").write_bytes(b"")
    (stored.directory / "mine").mkdir()
    report = inspect(stored.directory)
    assert [finding.kind for finding in report.findings] == ["segment-file", "queue-file", "index-file"]
    assert report.not_looked_at == ["mine"]


def test_empty_and_live_and_crashed(tmp_path: Path) -> None:
    """The state depends on the lock and on the mark that a running process leaves."""
    config = StoreConfig.tiny(tmp_path / "data")
    with MessageStore.open(config) as store:
        report = inspect(config.directory)
        assert (report.state, report.abort_file, report.log_end, report.topics) == ("live", True, 0, [])
        store.append([message(1)])
        store.flush()
        assert inspect(config.directory).queues[0].max_offset == 1
    assert inspect(config.directory).state == "stopped"
    (config.directory / "abort").touch()
    assert inspect(config.directory).state == "crashed"


def test_no_store(tmp_path: Path) -> None:
    """The error names the next step."""
    with pytest.raises(StoreDirectoryError, match="not a store"):
        inspect(tmp_path)
