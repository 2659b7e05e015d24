"""verify reports everything that is wrong with a store, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreDirectoryError
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.queues.index_file import IndexService, file_size
from aerobee_store.records import record
from aerobee_store.records.properties import index_hash
from aerobee_store.tables.java_json import Bean
from aerobee_store.tables.json_table import JsonTable
from aerobee_store.tables.logged_table import LoggedTable
from aerobee_store.tools.rebuild import batch_topics
from aerobee_store.tools.repair import repair
from aerobee_store.tools.store_files import StoreFiles
from aerobee_store.tools.verify import VerifyReport, verify
from tests.unit.store.tools.conftest import COUNT, Stored, message, snapshot


def kinds(report: VerifyReport) -> list[str]:
    return [finding.kind for finding in report.findings]


class TestCleanStore:
    def test_nothing_is_found(self, stored: Stored) -> None:
        """All records, units and index entries are counted, and there are no findings."""
        before = snapshot(stored.directory)
        report = verify(stored.directory)
        assert report.findings == []
        assert report.ok
        assert report.state == "stopped"
        assert (report.records, report.units, report.index_entries) == (COUNT, COUNT, 3 * COUNT)
        assert report.bytes == sum(place.size for place in stored.places)
        assert (report.log_begin, report.log_end) == (0, stored.places[-1].end)
        assert report.segment_size == stored.config.segment_size
        assert report.segments > 1
        assert report.index_files > 1
        assert snapshot(stored.directory) == before

    def test_an_empty_store(self, tmp_path: Path) -> None:
        """A store without messages is clean."""
        config = StoreConfig.tiny(tmp_path / "data")
        with MessageStore.open(config):
            pass
        report = verify(config.directory)
        assert (report.ok, report.records, report.findings) == (True, 0, [])

    def test_the_report_is_one_json_object(self, stored: Stored) -> None:
        """It has the names that scripts rely on and can be written as JSON."""
        stored.patch_log(stored.places[3].physical_offset + 8, b"\0\0\0\0")
        content = json.loads(json.dumps(verify(stored.directory).to_json()))
        assert content["ok"] is False
        assert (content["records"], content["state"]) == (COUNT - 1, "stopped")
        assert content["bytes"] == sum(place.size for place in stored.places) - stored.places[3].size
        assert content["findings"][0]["kind"] == "log-damaged"
        assert content["findings"][0]["severity"] == "error"
        assert content["findings"][0]["physicalOffset"] == stored.places[3].physical_offset

    def test_progress_is_reported_in_bytes(self, stored: Stored) -> None:
        """The byte count increases and never exceeds the total."""
        told: list[tuple[int, int]] = []
        verify(stored.directory, progress=lambda done, total: told.append((done, total)))
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert 0 < told[-1][0] <= told[-1][1]


class TestLog:
    @pytest.mark.parametrize("position", [0, 4, 8, 12, 20, 28, 36, 56, 84, 95])
    def test_a_flipped_bit_in_any_field(self, stored: Stored, position: int) -> None:
        """Only that record is lost, and its unit names the queue and offset."""
        number = 40
        place, lost = stored.places[number], stored.messages[number]
        at = place.physical_offset + position
        old = stored.segment(at).read_bytes()[at % stored.config.segment_size]
        stored.patch_log(at, bytes([old ^ 0x04]))
        report = verify(stored.directory)
        assert kinds(report) == ["log-damaged"]
        (finding,) = report.findings
        assert (finding.physical_offset, finding.size) == (place.physical_offset, place.size)
        assert (finding.topic, finding.queue_id, finding.queue_offset) == (
            lost.topic,
            lost.queue_id,
            place.queue_offset,
        )
        assert report.records == COUNT - 1
        assert report.log_end == stored.places[-1].end

    def test_a_missing_segment(self, stored: Stored) -> None:
        """A hole between segments is reported once, with its size."""
        size = stored.config.segment_size
        (stored.directory / "commitlog" / f"{size:020d}").unlink()
        report = verify(stored.directory)
        assert set(kinds(report)) == {"segment-missing"}
        assert report.findings[0].physical_offset == size
        assert report.findings[0].size == size

    def test_a_first_segment_that_retention_did_not_remove(self, stored: Stored) -> None:
        """The broker saves where the log begins, so that a removed file is not taken for retention."""
        (stored.directory / "commitlog" / f"{0:020d}").unlink()
        report = verify(stored.directory)
        assert kinds(report) == ["segment-missing"]
        assert (report.findings[0].physical_offset, report.findings[0].size) == (0, stored.config.segment_size)

    def test_a_deleted_first_segment_of_another_broker(self, stored: Stored) -> None:
        """Where nobody saved it, as in RocketMQ's stores, retention may have removed the oldest segments; their units
        and index entries are ignored."""
        (stored.directory / "queueBounds.json").unlink()
        (stored.directory / "commitlog" / f"{0:020d}").unlink()
        report = verify(stored.directory)
        assert report.findings == []
        assert report.log_begin == stored.config.segment_size

    def test_a_truncated_segment(self, stored: Stored) -> None:
        """The size is a finding, and the rest of the segment is read."""
        path = stored.segment(0)
        os.truncate(path, 5000)
        report = verify(stored.directory)
        assert "segment-file" in kinds(report)
        assert not report.ok
        whole = [place for place in stored.places if not 5000 < place.end <= stored.config.segment_size]
        assert report.records == len(whole)

    def test_garbage_after_the_end(self, stored: Stored) -> None:
        """Bytes after the log's end that are no record are reported with their place."""
        end = stored.places[-1].end
        stored.patch_log(end + 500, b"left over")
        report = verify(stored.directory)
        assert kinds(report) == ["log-bytes-behind-end"]
        assert (report.findings[0].physical_offset, report.findings[0].size) == (end, 509)

    def test_a_torn_last_record(self, stored: Stored) -> None:
        """The log ends before it, and its unit and index entries are ahead."""
        last = stored.places[-1]
        stored.patch_log(last.physical_offset + 60, bytes(last.size - 60))
        report = verify(stored.directory)
        assert kinds(report)[:1] == ["log-torn"]
        assert {"unit-ahead", "index-ahead", "checkpoint"} == set(kinds(report)[1:])
        assert report.log_end == last.physical_offset

    def test_units_of_messages_that_never_existed(self, tmp_path: Path) -> None:
        """A jump in queue offsets without damage is reported as a gap."""
        log = tmp_path / "commitlog"
        log.mkdir()
        data = b""
        for offset in (0, 1, 4):
            data += record.encode(
                Message("A", 0, b"x"),
                queue_offset=offset,
                physical_offset=len(data),
                store_timestamp=1_700_000_000_000,
                store_host=("10.0.0.1", 1),
                property_crc=True,
            )
        (log / f"{0:020d}").write_bytes(data.ljust(4096, b"\0"))
        (gap, *_) = [finding for finding in verify(tmp_path).findings if finding.kind == "queue-offset-gap"]
        assert (gap.topic, gap.queue_id, gap.queue_offset, gap.count) == ("A", 0, 2, 2)

    def test_a_clock_that_went_back(self, tmp_path: Path) -> None:
        """Store times that go back by more than a few seconds are a warning; the store is valid."""
        log = tmp_path / "commitlog"
        log.mkdir()
        data = b""
        for number, timestamp in enumerate((1_700_000_100_000, 1_700_000_000_000)):
            data += record.encode(
                Message("A", 0, b"x", sys_flag=record.SYS_FLAG_PREPARED),
                queue_offset=number,
                physical_offset=len(data),
                store_timestamp=timestamp,
                store_host=("10.0.0.1", 1),
                property_crc=True,
            )
        (log / f"{0:020d}").write_bytes(data.ljust(4096, b"\0"))
        report = verify(tmp_path)
        assert report.ok
        (found,) = [finding for finding in report.findings if finding.kind == "store-time"]
        assert found.severity == "warning"
        assert "100000 ms" in found.detail


class TestQueues:
    def test_a_unit_with_another_place(self, stored: Stored) -> None:
        """The unit is reported with its correct value."""
        place = stored.find("A", 1, 5)
        stored.patch_unit("A", 1, 5, struct.pack(">q", place.physical_offset + 1))
        report = verify(stored.directory)
        assert kinds(report) == ["unit-wrong"]
        (finding,) = report.findings
        assert (finding.topic, finding.queue_id, finding.queue_offset) == ("A", 1, 5)
        assert finding.physical_offset == place.physical_offset

    def test_a_wrong_tags_code(self, stored: Stored) -> None:
        """A filter would hide the message from its consumers."""
        path = stored.directory / "consumequeue" / "B" / "0" / f"{0:020d}"
        stored.patch(path, 2 * 20 + 12, struct.pack(">q", 77))
        assert kinds(verify(stored.directory)) == ["unit-wrong"]

    def test_units_that_are_missing(self, stored: Stored) -> None:
        """A run of zeroed units is one finding that counts them."""
        stored.patch_unit("A", 0, 20, bytes(60))
        report = verify(stored.directory)
        assert kinds(report) == ["unit-missing"]
        assert (report.findings[0].queue_offset, report.findings[0].count) == (20, 3)

    def test_a_unit_without_message(self, stored: Stored) -> None:
        """A unit after the last one that names a place in the log is reported."""
        end = COUNT // 4
        stored.patch_unit("A", 0, end, struct.pack(">qiq", stored.places[0].physical_offset, 100, 0))
        report = verify(stored.directory)
        assert kinds(report) == ["unit-stray"]
        assert report.findings[0].queue_offset == end

    def test_a_unit_with_negative_numbers(self, stored: Stored) -> None:
        """Negative numbers have their own finding."""
        stored.patch_unit("A", 0, COUNT // 4, struct.pack(">qiq", -5, -1, 0))
        assert kinds(verify(stored.directory)) == ["unit-invalid"]

    def test_a_queue_that_begins_with_filler_units(self, stored: Stored) -> None:
        """RocketMQ's rebuild, or a topic created again, leaves such fillers.

        The finding is a warning, because the messages are in the log.
        """
        stored.patch_unit("A", 0, 0, struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 3)
        report = verify(stored.directory)
        assert report.ok
        assert [(finding.kind, finding.severity, finding.count) for finding in report.findings] == [
            ("unit-missing", "warning", 3)
        ]

    def test_queues_of_a_deleted_topic(self, stored: Stored) -> None:
        """Records of a topic missing from the broker's table are counted and are no finding."""
        for path in sorted((stored.directory / "consumequeue" / "B").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (stored.directory / "consumequeue" / "B").rmdir()
        assert kinds(verify(stored.directory)) == ["unit-missing", "unit-missing"]
        (stored.directory / "config").mkdir()
        table = {"topicConfigTable": {"A": {"topicName": "A"}}}
        (stored.directory / "config" / "topics.json").write_text(json.dumps(table))
        report = verify(stored.directory)
        assert report.findings == []
        assert report.records_of_deleted_topics == COUNT // 2
        assert report.not_looked_at == ["config"]

    def test_topics_in_the_log_of_the_table(self, stored: Stored) -> None:
        """A topic created or deleted since the table's last complete save is known; damage of that log is reported."""
        shutil.rmtree(stored.directory / "consumequeue" / "B")
        (stored.directory / "config").mkdir()
        table = LoggedTable(DiskFileSystem(), stored.directory / "config" / "topics.json")
        version = Bean(counter=1)
        table.save(lambda: Bean(dataVersion=version, topicConfigTable={"A": Bean(), "B": Bean()}))
        assert kinds(verify(stored.directory)) == ["unit-missing", "unit-missing"]
        table.append(table.encode(1, Bean(counter=2), Bean(B=None)))
        assert verify(stored.directory).findings == []
        assert batch_topics(StoreFiles.find(stored.directory)) == set()
        table.append(table.encode(2, Bean(counter=3), Bean(C=Bean(attributes=Bean({"queue.type": "BatchCQ"})))))
        assert batch_topics(StoreFiles.find(stored.directory)) == {"C"}
        assert verify(stored.directory).findings == []
        log = stored.directory / "config" / "topics.json.log"
        log.write_bytes(log.read_bytes().replace(b'"B"', b'"D"'))
        assert [finding.path for finding in verify(stored.directory).findings if "configuration" in finding.kind] == [
            "config/topics.json.log"
        ]

    def test_a_topic_that_was_deleted_and_created_again(self, stored: Stored) -> None:
        """Records before the deletion need no units; those after it do."""
        with MessageStore.open(stored.config) as store:
            store.delete_topic("A")
            for number in range(0, 40, 2):
                store.append([message(number)])
            store.flush()
        report = verify(stored.directory)
        assert report.findings == []
        assert report.records_of_deleted_topics == COUNT // 2
        assert report.units == COUNT // 2 + 20
        stored.patch_unit("A", 0, COUNT // 4, bytes(20))
        assert kinds(verify(stored.directory)) == ["unit-missing"]


class TestIndex:
    def index(self, stored: Stored, number: int = 0) -> Path:
        return sorted((stored.directory / "index").iterdir())[number]

    def entry(self, stored: Stored, number: int) -> int:
        return 40 + 4 * stored.config.index_slot_count + 20 * number

    def test_an_entry_with_another_hash(self, stored: Stored) -> None:
        """The key that is no longer found is named, and so is the entry without a key."""
        stored.patch(self.index(stored), self.entry(stored, 10), struct.pack(">i", 4711))
        report = verify(stored.directory)
        assert set(kinds(report)) == {"index-entry-wrong", "index-entry-missing", "index-chain"}
        (missing,) = [finding for finding in report.findings if finding.kind == "index-entry-missing"]
        assert missing.physical_offset == stored.places[3].physical_offset
        assert "id3" in missing.detail

    def test_an_entry_with_another_time(self, stored: Stored) -> None:
        """A search within a time range would miss the entry."""
        stored.patch(self.index(stored), self.entry(stored, 10) + 12, struct.pack(">i", 1000))
        assert kinds(verify(stored.directory)) == ["index-entry-wrong"]

    def test_an_entry_with_another_place(self, stored: Stored) -> None:
        """The entry is out of order, and its key is missing."""
        stored.patch(self.index(stored), self.entry(stored, 10) + 4, struct.pack(">q", 1 << 40))
        assert set(kinds(verify(stored.directory))) == {"index-entry-wrong", "index-entry-missing"}

    def test_a_slot_without_a_valid_entry(self, stored: Stored) -> None:
        """All entries exist, but a search would not find them."""
        content = self.index(stored).read_bytes()
        slot = next(number for number in range(50) if content[40 + 4 * number : 44 + 4 * number] != bytes(4))
        stored.patch(self.index(stored), 40 + 4 * slot, bytes(4))
        assert kinds(verify(stored.directory)) == ["index-chain"]

    def test_a_header_with_wrong_counts(self, stored: Stored) -> None:
        """Used slots and first offset are compared with the file."""
        stored.patch(self.index(stored), 32, struct.pack(">i", 3))
        assert kinds(verify(stored.directory)) == ["index-file"]

    def test_entries_of_tags(self, stored: Stored) -> None:
        """RocketMQ 5.4 and later index a message's tag after its keys, as the key `T#tag`: this is no finding."""
        for path in (stored.directory / "index").iterdir():
            path.unlink()
        config = stored.config
        counts = config.index_slot_count, config.index_entry_count
        index = IndexService(DiskFileSystem(), stored.directory / "index", *counts)
        for number, (sent, place) in enumerate(zip(stored.messages, stored.places, strict=True)):
            properties = sent.properties
            keys = [properties["UNIQ_KEY"], *properties["KEYS"].split(" "), f"T#{properties['TAGS']}"]
            hashes = np.array([index_hash(sent.topic, key) for key in keys])
            every = np.ones(len(keys), np.int64)
            index.put(hashes, every * place.physical_offset, every * place.store_timestamp, number)
        index.close()
        report = verify(stored.directory)
        assert report.findings == []
        assert report.index_entries == 4 * COUNT
        with MessageStore.open(config) as store:
            assert [record.physical_offset for record in store.query("A", "order0")] == [0]
        assert verify(stored.directory).findings == []
        other = index_hash("A", "T#another")
        stored.patch(self.index(stored), self.entry(stored, 4), struct.pack(">i", other))
        assert "index-entry-wrong" in kinds(verify(stored.directory))

    def test_no_index(self, stored: Stored) -> None:
        """One finding gives the number of keys that cannot be found."""
        for path in (stored.directory / "index").iterdir():
            path.unlink()
        report = verify(stored.directory)
        assert kinds(report) == ["index-missing"]
        assert report.findings[0].count == 3 * COUNT

    def test_the_last_index_file_is_missing(self, stored: Stored) -> None:
        """The index is behind, which is one finding."""
        self.index(stored, -1).unlink()
        assert kinds(verify(stored.directory)) == ["index-behind"]

    def test_counts_that_the_file_does_not_show(self, stored: Stored) -> None:
        """A file whose counts cannot be derived is skipped with a warning; given counts are used."""
        for path in sorted((stored.directory / "index").iterdir())[1:]:
            path.unlink()
        path = self.index(stored)
        entries = bytearray(path.read_bytes())
        for number in range(1, 100):
            struct.pack_into(">i", entries, self.entry(stored, number) + 16, 99)
        path.write_bytes(entries)
        report = verify(stored.directory)
        assert kinds(report) == ["index-counts-unknown"]
        assert report.ok
        report = verify(
            stored.directory,
            index_slot_count=stored.config.index_slot_count,
            index_entry_count=stored.config.index_entry_count,
        )
        assert {"index-chain", "index-behind"} == set(kinds(report))

    def test_one_count_is_not_enough(self, stored: Stored) -> None:
        """Both counts are required, or none."""
        with pytest.raises(ValueError, match="both"):
            verify(stored.directory, index_slot_count=50)

    def test_an_unused_index_file(self, stored: Stored) -> None:
        """A crash right after a roll leaves a file of the right size without entries."""
        size = file_size(stored.config.index_slot_count, stored.config.index_entry_count)
        (stored.directory / "index" / "99991231235959999").write_bytes(bytes(size))
        assert verify(stored.directory).findings == []

    def test_too_small_for_an_index_file(self, stored: Stored) -> None:
        """The file is reported and not opened."""
        (stored.directory / "index" / "99991231235959999").write_bytes(b"x" * 10)
        assert kinds(verify(stored.directory)) == ["index-file"]


class TestDirectory:
    def test_no_store(self, tmp_path: Path) -> None:
        """It raises an error; a store directly below the directory is pointed out."""
        with pytest.raises(StoreDirectoryError, match="not a store"):
            verify(tmp_path)
        (tmp_path / "store").mkdir()
        with pytest.raises(StoreDirectoryError, match="name the directory"):
            verify(tmp_path)  # the directory below is no store either
        (tmp_path / "store" / "commitlog").mkdir()
        with pytest.raises(StoreDirectoryError, match="do you mean"):
            verify(tmp_path)
        with pytest.raises(StoreDirectoryError, match="not a directory"):
            verify(tmp_path / "nothing")

    def test_queues_without_a_log(self, stored: Stored) -> None:
        """A missing log may be unmounted or elsewhere, so there is an error instead of a report."""
        for path in (stored.directory / "commitlog").iterdir():
            path.unlink()
        with pytest.raises(StoreDirectoryError, match="no segment"):
            verify(stored.directory)

    def test_foreign_files(self, stored: Stored) -> None:
        """Each foreign name is reported as an error, because no broker starts with it, and the rest is checked."""
        (stored.directory / "commitlog" / "notes.txt").write_text("hello")
        (stored.directory / "commitlog" / f"{7:020d}").mkdir()
        (stored.directory / "consumequeue" / "stray").write_text("hello")
        (stored.directory / "consumequeue" / "A" / "zero").mkdir()
        (stored.directory / "consumequeue" / "A" / "0" / "x").write_text("hello")
        (stored.directory / "index" / "note").write_text("hello")
        (stored.directory / "mine").mkdir()
        report = verify(stored.directory)
        assert report.errors == len(report.findings) == 6
        assert report.records == COUNT
        assert report.not_looked_at == ["mine"]

    @pytest.mark.parametrize(
        "path",
        [
            *("commitlog/note", "commitlog/lost+found/", "commitlog/00000000000000999424/", "consumequeue/note"),
            *("consumequeue/A/note", "consumequeue/A/zero/", "consumequeue/A/0/note", "batchconsumequeue/note"),
            *("index/note", "index/20200101000000000/", "timerlog/note", "config/note", "config/lost+found/", "mine"),
        ],
    )
    def test_verify_and_a_start_agree_about_foreign_files(self, stored: Stored, path: str) -> None:
        """Files that stop a start are errors and others are not: "clean" means that the store starts."""
        stray = stored.directory / path
        stray.parent.mkdir(exist_ok=True)
        stray.mkdir() if path.endswith("/") else stray.write_text("hello")
        report = verify(stored.directory)
        try:
            MessageStore.open(stored.config).close()
        except StoreDirectoryError:
            assert not report.ok
        else:
            assert report.ok

    def test_a_queue_file_of_another_size(self, stored: Stored) -> None:
        """The size is a finding, and the units in the file are compared."""
        os.truncate(stored.directory / "consumequeue" / "A" / "0" / f"{0:020d}", 105)
        report = verify(stored.directory)
        assert set(kinds(report)) == {"queue-file", "unit-missing"}

    def test_quarantined_segments(self, stored: Stored) -> None:
        """Files that recovery moved to quarantine are reported as a warning."""
        (stored.directory / "quarantine").mkdir()
        (stored.directory / "quarantine" / "commitlog-0").write_bytes(b"x")
        report = verify(stored.directory)
        assert report.ok
        assert kinds(report) == ["quarantine"]

    def test_a_checkpoint_ahead_of_the_log(self, stored: Stored) -> None:
        """The log has lost a synced end, and a recovery has handled it: a warning."""
        stored.patch(stored.directory / "checkpoint", 0, struct.pack(">q", 1 << 50))
        report = verify(stored.directory)
        assert (report.ok, kinds(report)) == (True, ["checkpoint"])

    def test_an_invalid_checkpoint(self, stored: Stored) -> None:
        """Negative times, places after the log's end, and a truncated file are errors."""
        path = stored.directory / "checkpoint"
        stored.patch(path, 0, struct.pack(">qqqqq", -1, 0, 0, 0, 1 << 40))
        assert kinds(verify(stored.directory)) == ["checkpoint", "checkpoint"]
        os.truncate(path, 30)
        report = verify(stored.directory)
        assert (report.ok, kinds(report)) == (False, ["checkpoint"])

    def test_a_checksum_whose_name_is_damaged(self, stored: Stored) -> None:
        """The record would be taken for one without a checksum."""
        place = stored.places[12]
        stored.patch_log(place.end - 18, b"#")
        report = verify(stored.directory)
        assert kinds(report) == ["checksum-damaged"]
        assert report.findings[0].physical_offset == place.physical_offset

    def test_an_unreadable_table_of_deleted_topics(self, stored: Stored) -> None:
        """It is an error, because a broker would not start; everything else is checked."""
        (stored.directory / "config").mkdir(exist_ok=True)
        (stored.directory / "config" / "deletedTopics.json").write_text("{")
        report = verify(stored.directory)
        assert kinds(report) == ["configuration-file"]
        assert (report.ok, report.records) == (False, COUNT)

    def test_a_checkpoint_ahead_of_queues_and_index(self, stored: Stored) -> None:
        """Queues and index cannot be synced past the log's end: an error, and repair rewrites the checkpoint."""
        checkpoint = Checkpoint(DiskFileSystem(), stored.directory / "checkpoint")
        checkpoint.load()
        assert checkpoint.derived_offset == stored.places[-1].end
        checkpoint.derived_offset += 1
        checkpoint.save(checkpoint.encoded())
        report = verify(stored.directory)
        assert (report.ok, kinds(report)) == (False, ["checkpoint"])
        repair(stored.directory, apply=True)
        assert verify(stored.directory).findings == []

    def test_no_checkpoint(self, stored: Stored) -> None:
        """It is a warning, because only the start is slower."""
        (stored.directory / "checkpoint").unlink()
        report = verify(stored.directory)
        assert (report.ok, kinds(report)) == (True, ["checkpoint"])

    def test_findings_are_capped(self, stored: Stored) -> None:
        """Further findings are only counted."""
        for place in stored.places[0:-1:2]:
            stored.patch_log(place.physical_offset + 8, b"\xff\xff\xff\xff")
        report = verify(stored.directory, findings_max=7)
        assert len(report.findings) == 7
        assert report.errors == COUNT // 2
        assert report.findings_left_out == report.errors - 7


class TestLiveStore:
    def test_messages_stored_during_verify(self, tmp_path: Path) -> None:
        """A store being written to is live, and its moving end is no finding."""
        config = StoreConfig.tiny(tmp_path / "data")
        number = 0
        with MessageStore.open(config) as store:

            def send(*progress: int) -> None:
                nonlocal number
                for _ in range(10):
                    store.append([message(number)])
                    number += 1
                store.flush()

            for _ in range(10):
                send()
            report = verify(config.directory, progress=send)
            assert report.state == "live"
            assert report.findings == []
            assert report.records >= 100

    def test_messages_that_are_not_dispatched_yet(self, tmp_path: Path) -> None:
        """Queues and index may lag behind the log, which is no finding."""
        config = StoreConfig.tiny(tmp_path / "data")
        with MessageStore.open(config) as store:
            for number in range(20):
                store.append([message(number)])
            store.flush()
            for number in range(20, 24):
                store.append([message(number)])
            store._log.commit()
            report = verify(config.directory)
            assert report.findings == []
            assert report.records == 24

    def test_damage_is_found(self, tmp_path: Path) -> None:
        """In a live store only the moving end is excused."""
        config = StoreConfig.tiny(tmp_path / "data")
        with MessageStore.open(config) as store:
            places = [store.append([message(number)])[0] for number in range(20)]
            store.flush()
            with (config.directory / "commitlog" / f"{0:020d}").open("r+b") as file:
                file.seek(places[4].physical_offset + 8)
                file.write(b"\0\0\0\0")
            report = verify(config.directory)
        assert kinds(report) == ["log-damaged"]

    def test_the_lock_is_kept(self, tmp_path: Path) -> None:
        """Verifying in the process that holds the lock must not release it, as closing a descriptor would."""
        config = StoreConfig.tiny(tmp_path / "data")
        with MessageStore.open(config):
            assert verify(config.directory).state == "live"
            tried = subprocess.run([sys.executable, "-c", _TRY_LOCK, str(config.directory / "lock")], timeout=30)
            assert tried.returncode == 1, "another process must not get it"
        tried = subprocess.run([sys.executable, "-c", _TRY_LOCK, str(config.directory / "lock")], timeout=30)
        assert tried.returncode == 0

    def test_a_lock_of_another_process(self, stored: Stored) -> None:
        """The lock is detected without being acquired."""
        lock = stored.directory / "lock"
        with subprocess.Popen(
            [sys.executable, "-c", _HOLD_LOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            assert verify(stored.directory).state == "live"
            holder.communicate(timeout=30)
        assert verify(stored.directory).state == "stopped"

    def test_a_store_after_a_crash(self, stored: Stored) -> None:
        """The mark of a running process without a process means crashed, which alone is no finding."""
        (stored.directory / "abort").write_text("1")
        report = verify(stored.directory)
        assert (report.state, report.findings) == ("crashed", [])


_TRY_LOCK = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    sys.exit(1)
"""
_HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


class TestConfigurationFiles:
    @pytest.fixture
    def path(self, stored: Stored) -> Path:
        """Return a table that was saved three times."""
        path = stored.directory / "config" / "subscriptionGroup.json"
        path.parent.mkdir()
        table = JsonTable(DiskFileSystem(), path)
        for number in range(3):
            table.save({"counter": number, "timestamp": 7919 * number})
        return path

    def test_unchanged_configuration_files(self, stored: Stored, path: Path) -> None:
        """There are no findings, with or without checksums."""
        assert verify(stored.directory).findings == []
        path.write_text("{}")
        path.with_name(path.name + ".crc").unlink()
        assert verify(stored.directory).findings == []

    def test_changed_configuration_files(self, stored: Stored, path: Path) -> None:
        """A file that differs from the saved one is a warning, as it may have been edited. Repair does not touch it."""
        path.write_text(path.read_text().replace("2", "3", 1))
        report = verify(stored.directory)
        (finding,) = report.findings
        assert report.ok
        assert (finding.kind, finding.severity) == ("configuration-changed", "warning")
        assert finding.path == "config/subscriptionGroup.json"
        before = snapshot(stored.directory)
        repair(stored.directory, apply=True)
        assert snapshot(stored.directory) == before

    def test_unreadable_configuration_files(self, stored: Stored, path: Path) -> None:
        """A file that is not JSON is an error: a start would use the older copy."""
        path.write_text("{")
        report = verify(stored.directory)
        assert (report.ok, kinds(report)) == (False, ["configuration-file"])
