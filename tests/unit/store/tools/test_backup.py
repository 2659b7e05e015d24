"""backup copies a store so that the copy opens with all stored messages, whatever happens meanwhile."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_store import MessageStore, StoreDirectoryError, StoreFullError
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.tables.java_json import Bean
from aerobee_store.tables.json_table import JsonTable
from aerobee_store.tables.logged_table import LoggedTable
from aerobee_store.tools import backup as module
from aerobee_store.tools.backup import PARTIAL, backup
from aerobee_store.tools.verify import verify
from tests.unit.store.tools.conftest import COUNT, Stored, message, snapshot

NOT_COPIED = ("lock", "store.id")  # of the process, and of the directory


def check(directory: Path, stored: Stored, count: int) -> int:
    """Open a copy, check that it has the first `count` messages, and return how many it has in all."""
    with MessageStore.open(replace(stored.config, directory=directory)) as store:
        for number in range(count):
            each = message(number)
            (found,) = store.query(each.topic, f"id{number}")
            assert found.body == each.body
            (read,) = store.read(found.topic, found.queue_id, found.queue_offset, max_count=1).records
            assert read == found
        total = sum(store.queue_range(topic, queue_id)[1] for topic, ids in store.queues().items() for queue_id in ids)
    report = verify(directory)
    assert report.errors == 0, report.findings
    assert report.records == total
    return total


class TestStoppedStore:
    def test_the_copy_equals_the_store(self, stored: Stored, tmp_path: Path) -> None:
        """The copy has exactly the store's files and times and opens cleanly, and the store is unchanged."""
        (stored.directory / "config").mkdir()
        (stored.directory / "config" / "topics.json").write_text("{}")
        before = snapshot(stored.directory)
        report = backup(stored.directory, tmp_path / "a" / "copy")
        assert snapshot(stored.directory) == before
        assert snapshot(tmp_path / "a" / "copy") == {
            path: state for path, state in before.items() if path not in NOT_COPIED
        }
        assert (report.state, report.log_end) == ("stopped", stored.places[-1].end)
        assert report.files == len(before) - len(NOT_COPIED)
        assert not report.whole_log_at_start
        assert check(tmp_path / "a" / "copy", stored, COUNT) == COUNT
        json.dumps(report.to_json())

    @pytest.mark.parametrize("linked", ["commitlog", "consumequeue", "consumequeue/A", "index"])
    def test_directories_outside_the_store(self, stored: Stored, tmp_path: Path, linked: str) -> None:
        """The targets of links are copied, and a link back to the store does not cause an endless copy."""
        place = stored.directory / linked
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
        (stored.directory / "round").mkdir()
        (stored.directory / "round" / "again").symlink_to(stored.directory)
        backup(stored.directory, tmp_path / "copy")
        assert not (tmp_path / "copy" / linked).is_symlink()
        assert check(tmp_path / "copy", stored, COUNT) == COUNT

    def test_a_crashed_store_is_copied_unchanged(self, stored: Stored, tmp_path: Path) -> None:
        """The store is copied as it is, including a torn record, and recovers like the original."""
        (stored.directory / "abort").touch()
        stored.patch_log(stored.places[-1].physical_offset + 50, b"\xee" * 20)
        before = snapshot(stored.directory)
        assert backup(stored.directory, tmp_path / "copy").state == "crashed"
        assert snapshot(tmp_path / "copy") == {path: state for path, state in before.items() if path not in NOT_COPIED}
        assert check(tmp_path / "copy", stored, COUNT - 1) == COUNT - 1

    def test_holes_stay_holes(self, stored: Stored, tmp_path: Path) -> None:
        """A copy of sparse files takes no more space than the store."""
        large = stored.directory / "notes"
        with large.open("wb") as file:
            file.truncate(64 << 20)
            file.seek(32 << 20)
            file.write(b"x" * 5000)
        backup(stored.directory, tmp_path / "copy")
        copy = tmp_path / "copy" / "notes"
        assert copy.stat().st_size == 64 << 20
        assert copy.stat().st_blocks <= large.stat().st_blocks + 64
        assert copy.read_bytes() == large.read_bytes()

    def test_hard_links(self, stored: Stored, tmp_path: Path) -> None:
        """Full segments are shared but the last one is not, so writing to the copy never changes the store."""
        report = backup(stored.directory, tmp_path / "copy", hard_links=True)
        names = sorted(path.name for path in (stored.directory / "commitlog").iterdir())
        assert report.linked == len(names) - 1
        for name in names:
            one, other = (root / "commitlog" / name for root in (stored.directory, tmp_path / "copy"))
            assert os.path.samefile(one, other) == (name != names[-1])
        before = snapshot(stored.directory)
        with MessageStore.open(replace(stored.config, directory=tmp_path / "copy")) as store:
            for number in range(200, 300):
                store.append([message(number)])
            store.flush()
        assert snapshot(stored.directory) == before

    def test_a_start_during_the_copy_is_refused(self, stored: Stored, tmp_path: Path) -> None:
        """A start during the copy is refused, and works after it."""

        def progress(done: int, total: int) -> None:
            with pytest.raises(Exception, match="has this store open"):
                MessageStore.open(stored.config)

        backup(stored.directory, tmp_path / "copy", progress=progress)
        MessageStore.open(stored.config).close()


class TestStoreInUse:
    @pytest.mark.parametrize("every", [1, 3, 17])
    def test_messages_are_stored_during_the_copy(
        self, stored: Stored, tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever the order of copying, the copy is consistent and has all messages stored before the backup."""
        with MessageStore.open(stored.config) as store:
            next_number, calls = COUNT, 0
            real = module._Backup._copy

            def copy(self: module._Backup, path: Path, *, link: bool = False) -> bool:
                nonlocal next_number, calls
                calls += 1
                if calls % every == 0:
                    for _ in range(5):
                        store.append([message(next_number)])
                        next_number += 1
                    store.commit()
                    store.dispatch()
                    if calls % (2 * every) == 0:
                        store.flush()
                return real(self, path, link=link)

            monkeypatch.setattr(module._Backup, "_copy", copy)
            report = backup(stored.directory, tmp_path / "copy")
            assert next_number > COUNT
            assert report.state == "live"
            assert report.log_end >= stored.places[-1].end
            assert not report.whole_log_at_start
        total = check(tmp_path / "copy", stored, COUNT)
        assert COUNT <= total < next_number
        assert verify(stored.directory).ok

    @pytest.mark.parametrize("at", range(1, 14, 2))
    async def test_retention_removes_segments(
        self, stored: Stored, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Segments that expire while being copied are left out, without a hole in the copied log."""
        store = MessageStore.open(stored.config)
        segments = sorted((stored.directory / "commitlog").iterdir())
        assert len(segments) > 2
        calls = 0
        real = module._Backup._copy

        def copy(self: module._Backup, path: Path, *, link: bool = False) -> bool:
            nonlocal calls
            calls += 1
            if calls == at:
                for segment in segments[:2]:
                    segment.unlink()
            return real(self, path, link=link)

        monkeypatch.setattr(module._Backup, "_copy", copy)
        report = backup(stored.directory, tmp_path / "copy")
        store.close()
        names = [int(path.name) for path in sorted((tmp_path / "copy" / "commitlog").iterdir())]
        assert names == list(range(report.log_begin, report.log_end, 16384))
        opened = MessageStore.open(replace(stored.config, directory=tmp_path / "copy"))
        with opened:
            assert opened.status().min_offset == report.log_begin
            assert opened.positions[0] == report.log_end == stored.places[-1].end
            assert opened.recovery.damaged == []
            for each, place in zip(stored.messages, stored.places, strict=True):
                if place.physical_offset >= report.log_begin:
                    (found,) = opened.read(each.topic, each.queue_id, place.queue_offset, max_count=1).records
                    assert found.body == each.body

    @pytest.mark.parametrize("at", range(1, 16, 3))
    def test_a_topic_is_deleted(self, stored: Stored, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wherever the deletion falls in the copy, the topic is complete or missing, and the others are complete."""
        with MessageStore.open(stored.config) as store:
            calls = 0
            real = module._Backup._copy

            def copy(self: module._Backup, path: Path, *, link: bool = False) -> bool:
                nonlocal calls
                calls += 1
                if calls == at:
                    store.delete_topic("A")
                return real(self, path, link=link)

            monkeypatch.setattr(module._Backup, "_copy", copy)
            backup(stored.directory, tmp_path / "copy")
        with MessageStore.open(replace(stored.config, directory=tmp_path / "copy")) as opened:
            ranges = {(topic, queue_id): opened.queue_range(topic, queue_id) for topic in "AB" for queue_id in (0, 1)}
            assert ranges["B", 0] == ranges["B", 1] == (0, 30)
            assert (ranges["A", 0], ranges["A", 1]) in (((0, 30), (0, 30)), ((30, 30), (30, 30)))

    def test_positions_are_copied_before_the_log(self, stored: Stored, tmp_path: Path) -> None:
        """Committed offsets never refer to messages missing from the copy; topics cover all its messages."""
        config = stored.directory / "config"
        config.mkdir()
        for name in ("consumerOffset.json", "topics.json"):
            (config / name).write_text("before")
        changed = False

        def progress(done: int, total: int) -> None:
            nonlocal changed
            if (tmp_path / "copy" / PARTIAL / "commitlog").exists() and not changed:
                changed = True
                for name in ("consumerOffset.json", "topics.json"):
                    (config / name).write_text("after")

        with MessageStore.open(stored.config):
            backup(stored.directory, tmp_path / "copy", progress=progress)
        assert changed
        assert (tmp_path / "copy" / "config" / "consumerOffset.json").read_text() == "before"
        assert (tmp_path / "copy" / "config" / "topics.json").read_text() == "after"

    @pytest.mark.parametrize(
        "saved_after", ["topics.json.log.bak", "topics.json.log", "topics.json", "topics.json.bak"]
    )
    def test_a_table_saved_as_a_whole_during_the_copy(
        self, stored: Stored, tmp_path: Path, saved_after: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The copy has every topic, whichever file was copied last when the broker saved the whole table."""
        config = stored.directory / "config"
        config.mkdir()
        table = LoggedTable(DiskFileSystem(), config / "topics.json")
        topics: dict[str, object] = {}

        def create(name: str, *, whole: bool = False) -> None:
            topics[name] = Bean(topicName=name)
            if whole:
                table.save(lambda: Bean(dataVersion=Bean(counter=len(topics)), topicConfigTable=dict(topics)))
            else:
                table.append(table.encode(len(topics) - 1, Bean(counter=len(topics)), Bean({name: topics[name]})))

        create("a", whole=True)
        create("b")
        create("c", whole=True)
        create("d")
        real = module._Backup._copy

        def copy(self: module._Backup, source: Path, *, link: bool = False) -> bool:
            there = real(self, source, link=link)
            if source.name == saved_after and len(topics) == 4:
                create("e", whole=True)
                create("f")
            return there

        monkeypatch.setattr(module._Backup, "_copy", copy)
        with MessageStore.open(stored.config):
            backup(stored.directory, tmp_path / "copy")
        assert len(topics) == 6
        content = LoggedTable(DiskFileSystem(), tmp_path / "copy" / "config" / "topics.json").load()
        assert isinstance(content, dict)
        assert set(content["topicConfigTable"]) >= set("abcd")

    @pytest.mark.parametrize("name", ["consumerOffset.json", "topics.json"])
    @pytest.mark.parametrize("times", [1, 2, 5])
    def test_a_table_saved_during_the_copy(
        self, stored: Stored, tmp_path: Path, name: str, times: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The checksums in the copy match its content, and damage of the original is not hidden."""
        path = stored.directory / "config" / name
        path.parent.mkdir()
        table = JsonTable(DiskFileSystem(), path)
        table.save({"number": 0})
        numbers = iter(range(1, 100))
        real = module._Backup._copy
        saves = 3

        def copy(self: module._Backup, source: Path, *, link: bool = False) -> bool:
            nonlocal saves
            there = real(self, source, link=link)
            if source == path and saves:
                saves -= 1
                for _ in range(times):
                    table.save({"number": next(numbers), "rest": "x" * 50})
            return there

        monkeypatch.setattr(module._Backup, "_copy", copy)
        with MessageStore.open(stored.config):
            backup(stored.directory, tmp_path / "copy")
            assert saves < 3
            assert verify(tmp_path / "copy").findings == []
            path.write_text('{"number": 7}')
            saves = 0
            backup(stored.directory, tmp_path / "other")
        assert [finding.kind for finding in verify(tmp_path / "other").findings] == ["configuration-changed"]


class TestTarget:
    @pytest.mark.parametrize("name", ["file", "full", "data", "data/inside", "."])
    def test_a_target_that_is_not_an_empty_directory(self, stored: Stored, tmp_path: Path, name: str) -> None:
        """The target is refused by name before anything is written."""
        (tmp_path / "file").write_text("mine")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "something").write_text("mine")
        before = snapshot(tmp_path)
        with pytest.raises(StoreDirectoryError, match="name"):
            backup(stored.directory, tmp_path / name)
        assert snapshot(tmp_path) == before

    def test_an_interrupted_copy(self, stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The partial copy is not a store, and the next backup to the same place replaces it."""
        target = tmp_path / "copy"

        def killed(*arguments: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(module._Backup, "_move_up", killed)
        with pytest.raises(KeyboardInterrupt):
            backup(stored.directory, target)
        monkeypatch.undo()
        assert [path.name for path in target.iterdir()] == [PARTIAL]
        with pytest.raises(StoreDirectoryError, match="but no store"):
            MessageStore.open(replace(stored.config, directory=target))
        backup(stored.directory, target)
        assert check(target, stored, COUNT) == COUNT

    def test_a_disk_that_is_full(self, stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error names the target and what to remove."""

        def full(*arguments: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(StoreFullError, match=PARTIAL):
            backup(stored.directory, tmp_path / "copy")


@pytest.mark.parametrize("name", ["replicationRole", "replicationMember"])
def test_copy_does_not_claim_to_be_a_broker_of_the_group(stored: Stored, tmp_path: Path, name: str) -> None:
    """A copy lacks what the group confirmed after it, so it must not be taken for a broker in sync."""
    (stored.directory / name).write_text("1\n")
    (stored.directory / "epochFileCheckpoint").write_text("0")
    backup(stored.directory, tmp_path / "copy")
    assert not (tmp_path / "copy" / name).exists()
    assert (tmp_path / "copy" / "epochFileCheckpoint").exists()
