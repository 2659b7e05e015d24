"""A table that saves its changes in a log: its content after crashes and damage, and the bytes written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import Permission, TopicConfig
from aerobee_store.stats import StoreStats
from aerobee_store.tables.change_log import SIZE_MIN, decode_changes, encode_line
from aerobee_store.tables.java_json import Bean, dumps, loads
from aerobee_store.tables.json_table import JsonTable, UnreadableTableError
from aerobee_store.tables.logged_table import LoggedTable
from aerobee_store.testing import CHANGES, ManualClock, MemoryFileSystem, Operation

CONFIG = Path("/store/config")
TOPICS = CONFIG / "topics.json"
LOG = CONFIG / "topics.json.log"


async def at_once(function: Callable[..., object], *arguments: object) -> object:
    return function(*arguments)


def tables(disk: MemoryFileSystem, stats: StoreStats | None = None) -> Tables:
    """Load the tables like a start."""
    return Tables.load(Settings(BrokerConfig.tiny(CONFIG.parent)), ManualClock(), disk, at_once, stats)


def names(disk: MemoryFileSystem) -> list[str]:
    return sorted(topic.name for topic in tables(disk).topics)


def names_of(value: object) -> list[str]:
    assert isinstance(value, dict)
    return sorted(value["topicConfigTable"])


async def with_log(*created: str, deleted: str = "") -> MemoryFileSystem:
    """Return a disk with the topic `first` in topics.json and a log line for each given topic."""
    disk = MemoryFileSystem()
    found = tables(disk)
    for name in ("first", *created):
        found.topics.create(TopicConfig.of_type(name))
        await found.save_topics()
    if deleted:
        found.topics.delete(deleted)
        await found.save_topics()
    return disk


async def test_a_new_topic_writes_one_line() -> None:
    """The file stays unchanged; a start has every topic, with the version of the last change."""
    disk = await with_log("second", "third")
    assert names_of(loads(disk.contents()[TOPICS])) == ["first"]
    assert names(disk) == ["first", "second", "third"]
    assert tables(disk).topics.version.counter == 3


async def test_an_update_a_deletion_and_a_recreation() -> None:
    """The last state of each topic counts."""
    disk = await with_log("second", "third", deleted="first")
    found = tables(disk)
    assert names(disk) == ["second", "third"]
    found.topics.update(replace(found.topics.require("second"), permission=Permission.READ))
    found.topics.create(TopicConfig.of_type("first", queue_count=3))
    await found.save_topics()
    found.topics.delete("third")
    await found.save_topics()
    loaded = tables(disk).topics
    assert {topic.name: (topic.permission, topic.write_queue_count) for topic in loaded} == {
        "first": (Permission.READ_WRITE, 3),
        "second": (Permission.READ, 8),
    }


async def test_an_orderly_stop_leaves_everything_in_the_file() -> None:
    """RocketMQ, which does not know the log, finds all topics and groups; the log is kept beside .bak."""
    disk = await with_log("second", deleted="first")
    found = tables(disk)
    found.groups.create(GroupConfig(name="billing"))
    await found.save_groups()
    await found.save_all()
    assert names_of(JsonTable(disk, TOPICS).load()) == ["second"]
    assert [path.name for path in disk.contents() if ".log" in path.name] == ["topics.json.log.bak"]
    await found.save_all()
    found = tables(disk)
    found.groups.create(GroupConfig(name="audit"))
    await found.save_groups()
    assert CONFIG / "subscriptionGroup.json.log" in disk.contents()
    await found.save_all()
    groups = loads(disk.contents()[CONFIG / "subscriptionGroup.json"])
    assert isinstance(groups, dict)
    assert list(groups["subscriptionGroupTable"]) == ["billing", "audit"]


async def test_a_change_of_rocketmq_after_a_kill_is_kept() -> None:
    """RocketMQ ignored the log; the log's changes after RocketMQ's version are applied to its file."""
    disk = await with_log("second", "third")
    value = loads(disk.contents()[TOPICS])
    assert isinstance(value, dict)
    value["topicConfigTable"]["theirs"] = TopicConfig.of_type("theirs").to_json()
    value["dataVersion"]["counter"] = 2
    JsonTable(disk, TOPICS).save(value)
    assert names(disk) == ["first", "theirs", "third"]


async def test_changes_in_the_file_are_not_applied_again() -> None:
    """After a kill between the complete save and the renaming of the log, a topic deleted later does not return."""
    disk = await with_log("second", "third", deleted="second")
    log = disk.contents()[LOG]
    found = tables(disk)
    found.topics.delete("first")
    await found.save_all()
    disk.write_new(LOG, log)
    assert names(disk) == ["third"]
    again = tables(disk)
    again.topics.create(TopicConfig.of_type("fourth"))
    await again.save_topics()
    assert names(disk) == ["fourth", "third"]


async def test_the_copy_and_both_logs_replace_a_damaged_file(caplog: pytest.LogCaptureFixture) -> None:
    """No topic is lost with the main file: .bak has the older ones, the two logs the later ones."""
    disk = await with_log("second", "third", deleted="first")
    found = tables(disk)
    await found.save_all()
    found.topics.create(TopicConfig.of_type("fourth"))
    await found.save_topics()
    disk.damage(TOPICS, 0, b"}")
    assert names(disk) == ["fourth", "second", "third"]
    assert "changes" not in caplog.text
    found = tables(disk)
    await found.save_all()
    found.topics.update(replace(found.topics.require("second"), order=True))
    await found.save_topics()
    await found.save_all()
    assert names_of(loads(disk.contents()[TOPICS])) == ["fourth", "second", "third"]
    disk.unlink(CONFIG / "topics.json.log.bak")
    disk.unlink(CONFIG / "topics.json")
    assert names(disk)


async def test_missing_changes_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Without the copy's log, the changes between copy and file are lost: this is reported, the rest is applied."""
    disk = await with_log("second")
    found = tables(disk)
    await found.save_all()
    for name in ("third", "fourth"):
        found.topics.create(TopicConfig.of_type(name))
        await found.save_topics()
    disk.damage(TOPICS, 0, b"}")
    disk.unlink(CONFIG / "topics.json.log.bak")
    stats = StoreStats()
    assert sorted(topic.name for topic in tables(disk, stats).topics) == ["first", "fourth", "third"]
    assert "the changes 2 to 2 are missing" in caplog.text
    assert stats.tables_changed == 1


async def test_a_log_without_a_table_stops_the_start() -> None:
    """An empty table would lose the topics that the log continues."""
    disk = await with_log("second")
    disk.unlink(TOPICS)
    with pytest.raises(UnreadableTableError, match=r"topics\.json is missing"):
        tables(disk)


@pytest.mark.parametrize("line", [1, 2, 3])
async def test_a_damaged_line_is_reported(line: int, caplog: pytest.LogCaptureFixture) -> None:
    """Its change is lost and the others are applied; the next complete save keeps the log for comparison."""
    disk = await with_log("second", "third", "fourth")
    content = disk.contents()[LOG]
    position = content.index((b"second", b"third", b"fourth")[line - 1])
    disk.damage(LOG, position, b"X")
    stats = StoreStats()
    with caplog.at_level(logging.WARNING):
        found = tables(disk, stats)
    lost = ("second", "third", "fourth")[line - 1]
    assert sorted(topic.name for topic in found.topics) == sorted({"first", "second", "third", "fourth"} - {lost})
    assert f"1 of 4 lines have a wrong checksum, the first is line {line + 1}" in caplog.text
    assert stats.tables_changed == 1
    await found.save_all()
    assert b"X" in disk.contents()[CONFIG / "topics.json.log.damaged"]
    caplog.clear()
    assert len(names(disk)) == 3
    assert not caplog.text


async def test_each_flipped_bit_is_reported_or_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever bit of the lines flips, no acknowledged topic is lost without a report."""
    monkeypatch.setattr("aerobee_store.tables.change_log.SIZE_MIN", 1024)
    disk = await with_log("second", "third")
    content = disk.contents()[LOG]
    whole = decode_changes(content)
    end = len(content.rstrip(b"\0"))
    for bit in range(8 * (end + 2)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        found = decode_changes(bytes(flipped))
        assert found.problem is not None or found.items == whole.items, f"bit {bit % 8} of byte {bit // 8}"


async def test_a_torn_append_is_not_damage() -> None:
    """Any subset of the sectors of the last line may be missing after a power cut; the lines before it are intact."""
    long = Bean(
        after=3,
        dataVersion=Bean(counter=4),
        topicConfigTable=Bean({"a topic @" * 12 + str(n): None for n in range(12)}),
    )
    line = encode_line(long)
    disk = await with_log("second", "third")
    before = disk.contents()[LOG]
    start = len(before.rstrip(b"\0"))
    written = before[:start] + line + bytes(SIZE_MIN - start - len(line))
    sectors = range(start // 512, (start + len(line) - 1) // 512 + 1)
    assert len(sectors) >= 4
    for kept in range(1 << len(sectors)):
        torn = bytearray(before)
        for number, sector in enumerate(sectors):
            if kept & 1 << number:
                torn[512 * sector : 512 * (sector + 1)] = written[512 * sector : 512 * (sector + 1)]
        found = decode_changes(bytes(torn))
        assert found.problem is None
        assert len(found.items) == (3 if kept == (1 << len(sectors)) - 1 else 2)


async def test_a_shortened_log_is_reported() -> None:
    """A shortened log is recognized, because the log states its own size."""
    disk = await with_log("second", "third")
    content = disk.contents()[LOG]
    assert (
        decode_changes(content[: content.index(b"third")]).problem
        == f"it has {content.index(b'third')} bytes instead of {SIZE_MIN}"
    )
    assert decode_changes(b"").problem == "it has no valid line"


async def script(disk: MemoryFileSystem) -> list[tuple[int, frozenset[str]]]:
    """Create, delete and save everything; return the disk's operation count at each answer, with the topics.

    The log is small, so that it also fills up.
    """
    found = tables(disk)
    answered = []

    async def answer() -> None:
        await found.save_topics()
        answered.append((len(disk.log), frozenset(topic.name for topic in found.topics)))

    await answer()
    for number in range(5):
        found.topics.create(TopicConfig.of_type(f"topic-{number}"))
        await answer()
    found.topics.delete("topic-1")
    await answer()
    for number in range(3):
        found.topics.create(TopicConfig.of_type(f"late-{number}", queue_count=number + 1))
    await answer()
    await found.save_all()
    found.topics.create(TopicConfig.of_type("topic-1"))
    await answer()
    found.topics.delete("topic-2")
    await answer()
    return answered


@pytest.mark.parametrize("way", ["power cut", "kill"])
async def test_a_crash_at_every_operation(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any crash all answered changes are there, plus at most the pending one, and a start continues."""
    monkeypatch.setattr("aerobee_store.tables.change_log.SIZE_MIN", 1024)
    disk = MemoryFileSystem()
    disk.make_directory(CONFIG)
    images: list[tuple[int, MemoryFileSystem]] = []

    def image(operation: Operation) -> None:
        if operation.name in CHANGES:
            copies = [disk.kill()] if way == "kill" else [disk.crash(seed) for seed in range(3)]
            images.extend((operation.number, copy) for copy in copies)

    disk.before_operation = image
    answered = await script(disk)
    disk.before_operation = None
    images.append((len(disk.log) + 1, disk.kill() if way == "kill" else disk.crash(0)))
    for number, copy in images:
        before = [topics for operations, topics in answered if operations < number]
        possible = before[-1:] + [topics for operations, topics in answered if operations >= number][:1]
        found = tables(copy)
        topics = frozenset(topic.name for topic in found.topics)
        assert topics in possible or not before, f"crash at operation {number}: {sorted(topics)}"
        found.topics.create(TopicConfig.of_type("next"))
        await found.save_topics()
        assert frozenset(names(copy)) == topics | {"next"}
        await found.save_all()
        assert frozenset(names_of(loads(copy.contents()[TOPICS]))) == topics | {"next"}


async def test_a_failure_at_every_operation() -> None:
    """The failed change is not answered; later ones work, and no answered change is lost."""
    for operation in ("create", "write", "sync", "rename", "link", "sync_directory"):
        for call in range(1, 9):
            disk = MemoryFileSystem()
            disk.make_directory(CONFIG)
            found = tables(disk)
            disk.fail_at(operation, call)
            for number in range(4):
                found.topics.create(TopicConfig.of_type(f"topic-{number}"))
                try:
                    await found.save_topics()
                except OSError:  # it is taken back, so the caller makes it again
                    found.topics.create(TopicConfig.of_type(f"topic-{number}"))
                    await found.save_topics()
            found.topics.delete("topic-0")
            disk.heal()
            await found.save_topics()
            assert names(disk.crash(call)) == ["topic-1", "topic-2", "topic-3"]


async def test_bytes_written_for_many_topics_are_linear() -> None:
    """Four times the topics write about four times the bytes: a change does not rewrite all topics."""

    async def written(count: int) -> int:
        disk = MemoryFileSystem()
        found = tables(disk)
        total = 0
        one_write = disk.write_inode

        def counted(inode: object, path: Path, data: bytes, position: int) -> None:
            nonlocal total
            total += len(data)
            one_write(inode, path, data, position)  # type: ignore[arg-type]

        disk.write_inode = counted  # type: ignore[method-assign]
        for number in range(count):
            found.topics.create(TopicConfig.of_type(f"topic-{number:05}"))
            await found.save_topics()
        disk.write_inode = one_write  # type: ignore[method-assign]
        assert len(tables(disk).topics) == count
        return total

    size = len(dumps(TopicConfig.of_type("topic-00000").to_json()))
    small, large = await written(750), await written(3_000)
    assert large < 6 * small
    assert large < 12 * 3_000 * size


def test_the_file_names_have_their_field() -> None:
    """A table with another file name cannot get a log by mistake."""
    with pytest.raises(KeyError):
        LoggedTable(MemoryFileSystem(), CONFIG / "consumerOffset.json")
