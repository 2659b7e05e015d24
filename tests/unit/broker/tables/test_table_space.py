"""The memory of topics, groups and positions: what is counted, what is refused, and what goes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.config import BrokerConfig, LimitsConfig, Settings
from aerobee_broker.errors import IllegalAttributeError, IllegalGroupError, TableSpaceError
from aerobee_broker.limits.table_space import TableSpace, group_size, offset_size, offsets_size, topic_size
from aerobee_broker.tables.consumer_groups import CustomizedRetry, GroupConfig, GroupTable
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.topics import TopicConfig, TopicTable
from aerobee_store import StoreConfig
from aerobee_store.errors import LightQueuesFullError
from aerobee_store.queues.topic_removal import DeletedTopics
from aerobee_store.tables.java_json import dumps, loads
from aerobee_store.testing import ManualClock, MemoryFileSystem


def settings(limit: int) -> Settings:
    return Settings(BrokerConfig(store=StoreConfig.tiny(Path("/s")), limits=LimitsConfig(table_bytes_max=limit)))


def space(limit: int) -> TableSpace:
    return TableSpace(settings(limit))


def tables(found: TableSpace, queues: Mapping[str, Collection[int]] | None = None) -> tuple[TopicTable, GroupTable]:
    """Topics and groups as a broker has them, whose store has these queues."""
    existing = queues or {}
    topics, groups = TopicTable(ManualClock(), found), GroupTable(ManualClock(), found)
    topics.count_memory({}, lambda name: existing.get(name, ()), groups.counted_queues)
    groups.size_listener = topics.recount_of_group
    return topics, groups


def test_topics_count_their_queues_from_the_beginning() -> None:
    """A message for a queue that exists is never refused, so the queues count before they have one."""
    found = space(topic_size("a", 8) + topic_size("b", 1))
    topics = TopicTable(ManualClock(), found)
    topics.create(TopicConfig(name="a"))
    assert found.used == topic_size("a", 8)
    with pytest.raises(TableSpaceError, match=r"no space for topic 'b'.*limits\.table_bytes_max.*raise the limit"):
        topics.create(TopicConfig(name="b", read_queue_count=1, write_queue_count=2))
    topics.create(TopicConfig(name="b", read_queue_count=1, write_queue_count=1))
    with pytest.raises(TableSpaceError):
        topics.update(TopicConfig(name="b", read_queue_count=2, write_queue_count=1))
    topics.update(TopicConfig(name="a", read_queue_count=3, write_queue_count=3))
    topics.update(TopicConfig(name="b", read_queue_count=2, write_queue_count=1))
    topics.delete("a")
    assert found.used == topic_size("b", 2)


def test_topics_of_a_group_are_counted_with_it_and_never_refused() -> None:
    """Otherwise messages that must be delivered again, or are dead, would be lost."""
    found = space(group_size("g"))
    topics, groups = tables(found)
    groups.create(GroupConfig(name="g"))
    for name in ("%RETRY%g", "%DLQ%g"):
        topics.create_internal(TopicConfig(name=name, read_queue_count=1, write_queue_count=1))
    assert found.used == group_size("g") > 2 * topic_size("%RETRY%g", 1)
    with pytest.raises(TableSpaceError, match="no space for group 'h'"):
        groups.create(GroupConfig(name="h"))


def test_what_is_left_of_a_deleted_group_is_counted() -> None:
    """Groups that were created, had a dead letter and were deleted left topics that nothing counted, without an end."""
    found = space(1 << 20)
    topics, groups = tables(found)
    groups.create(GroupConfig(name="g"))
    topics.create_internal(TopicConfig(name="%DLQ%g", read_queue_count=1, write_queue_count=1))
    groups.delete("g")
    assert found.used == topic_size("%DLQ%g", 1)
    groups.create(GroupConfig(name="g"))
    assert found.used == group_size("g")
    groups.delete("g")
    topics.delete("%DLQ%g")
    assert found.used == 0


def test_queues_of_a_groups_topics_beyond_the_usual_ones_are_counted() -> None:
    """An operator may give such a topic a thousand."""
    found = space(1 << 20)
    topics, groups = tables(found)
    groups.create(GroupConfig(name="g", extra={"retryQueueNums": 3}))
    assert found.used == group_size("g", 3) > group_size("g")
    topics.create_internal(TopicConfig(name="%RETRY%g", read_queue_count=3, write_queue_count=3))
    topics.create_internal(TopicConfig(name="%DLQ%g", read_queue_count=1, write_queue_count=1))
    assert found.used == group_size("g", 3)
    topics.update(TopicConfig(name="%DLQ%g", read_queue_count=1, write_queue_count=9))
    topics.update(TopicConfig(name="%RETRY%g", read_queue_count=4, write_queue_count=4))
    more = topic_size("%DLQ%g", 9) - topic_size("%DLQ%g", 1) + topic_size("%RETRY%g", 4) - topic_size("%RETRY%g", 3)
    assert found.used == group_size("g", 3) + more


def test_queues_stay_when_their_topic_has_fewer() -> None:
    """Their memory does too: a topic made large, filled and made small, over and over, took any amount of it."""
    found = space(1 << 20)
    topics, _ = tables(found, {"t": range(100)})
    topics.create(TopicConfig(name="t", read_queue_count=100, write_queue_count=100))
    topics.update(TopicConfig(name="t", read_queue_count=1, write_queue_count=1))
    assert found.used == topic_size("t", 100)
    loaded = space(1 << 20)
    restarted = TopicTable.from_json(loads(dumps(topics.snapshot())), ManualClock(), loaded)
    restarted.count_memory({"t": range(100), "other": range(5)}, lambda _: (), lambda *_: None)
    assert loaded.used == topic_size("t", 100)
    topics.delete("t")
    assert found.used == 0
    topics.create(TopicConfig(name="t", read_queue_count=1, write_queue_count=1))
    assert found.used == topic_size("t", 1)


def test_fields_of_any_size_are_counted_and_bounded() -> None:
    """Twenty groups with a megabyte each counted as 200 KB. One that a store has is loaded, and can be changed."""
    found = space(1 << 20)
    topics, groups = tables(found)
    for extra in ({"a": "x" * 70_000}, {"a": [[index] for index in range(2_000)]}):
        with pytest.raises(IllegalAttributeError, match="other fields of topic 't' take more than 65536 bytes"):
            topics.create(TopicConfig(name="t", extra=extra))
        with pytest.raises(IllegalAttributeError, match="consumer group 'g'"):
            groups.create(GroupConfig(name="g", extra=extra))
    with pytest.raises(IllegalAttributeError):
        groups.create(GroupConfig(name="g", retry_policy=CustomizedRetry(tuple(range(10_000)))))
    groups.create(GroupConfig(name="g", extra={"a": "x" * 50_000}))
    assert found.used - group_size("g") in range(45_000, 51_000)
    with pytest.raises(IllegalAttributeError):
        groups.update(GroupConfig(name="g", extra={"a": "x" * 70_000}))
    with pytest.raises(TableSpaceError):
        tables(space(20_000))[1].create(GroupConfig(name="g", extra={"a": "x" * 50_000}))
    value = {"subscriptionGroupTable": {"g": {"groupName": "g", "a": "x" * 70_000}}}
    loaded = GroupTable.from_json(value, ManualClock(), space(1 << 20))
    assert loaded.space.used > 70_000
    large = loaded.latest("g")
    assert large is not None
    loaded.update(replace(large, consume_enabled=False))


def test_a_group_has_a_bounded_number_of_retry_queues() -> None:
    """With two billion, which a client could set, a question for the retry topic's route never ended."""
    _, groups = tables(space(1 << 20))
    for count in (1 << 31, "many", None):
        with pytest.raises(IllegalGroupError, match="retryQueueNums"):
            groups.create(GroupConfig(name="g", extra={"retryQueueNums": count}))
    counts = [GroupConfig(name="g", extra={"retryQueueNums": count}).retry_queue_count for count in (1 << 31, 2, 0, -1)]
    assert counts == [1024, 2, 0, 0]


async def test_what_is_taken_back_or_replaced_is_counted_as_it_is() -> None:
    """Failed saves, and the tables that a replica copies."""
    found = space(1 << 20)
    topics = TopicTable(ManualClock(), found)
    topics.create(TopicConfig(name="a"))
    topics.mark_saved(topics.revision)
    topics.create(TopicConfig(name="b"))
    topics.delete("a")
    topics.take_back(topics.revision)
    assert found.used == topic_size("a", 8)
    other = TopicTable(ManualClock())
    other.create(TopicConfig(name="c", read_queue_count=2, write_queue_count=2))
    await topics.replace(other)
    assert found.used == topic_size("c", 2)
    loaded = space(1 << 20)
    TopicTable.from_json(loads(dumps(topics.snapshot())), ManualClock(), loaded)
    assert loaded.used == topic_size("c", 2)


def test_offsets_are_counted_by_queue() -> None:
    """Also over commits, resets, removals, and the file."""
    one = offsets_size("t", "g") + offset_size()
    found = space(one)
    offsets = OffsetTable(ManualClock(), found)
    offsets.require_space("t", "g", [0])
    offsets.commit("t", "g", 0, 5)
    offsets.commit("t", "g", 0, 6)
    assert found.used == one
    offsets.require_space("t", "g", [0])
    with pytest.raises(TableSpaceError, match="no space for a position of group 'g' in topic 't'"):
        offsets.require_space("t", "g", [0, 1])
    with pytest.raises(TableSpaceError):
        offsets.require_space("t", "h", [0])
    offsets.commit("t", "g", 1, 5)
    assert found.used == one + offset_size()
    loaded = space(1 << 20)
    OffsetTable.from_json(loads(dumps(offsets.snapshot())), ManualClock(), loaded)
    assert loaded.used == found.used
    offsets.put_back("t", "g", 1, None)
    assert found.used == one
    other = OffsetTable(ManualClock())
    other.commit("u", "g", 0, 1)
    offsets.replace(other)
    assert found.used == one
    offsets.remove_topic("u")
    assert found.used == 0


def test_a_start_leaves_half_of_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    """A store of RocketMQ may have more topics than fit; its users can still make some, and the log says what to do."""
    found = space(100_000)
    found.add("topics", 700_000)
    found.opened()
    assert "more than limits.table_bytes_max" in caplog.text
    found.require(50_000, "a topic")
    with pytest.raises(TableSpaceError):
        found.require(50_001, "a topic")


def test_a_small_store_has_the_whole_limit(caplog: pytest.LogCaptureFixture) -> None:
    found = space(100_000)
    found.add("topics", 10_000)
    found.opened()
    assert caplog.text == ""
    found.require(90_000, "a topic")
    with pytest.raises(TableSpaceError):
        found.require(90_001, "a topic")


def test_light_queues_take_the_same_space() -> None:
    """The store asks with their number before it makes some; none that exists is refused."""
    found = space(10_000)
    found.require_light_queues(0, 2)
    assert found.used == 0
    found.require_light_queues(2, 0)
    taken = found.used
    assert taken > 0
    with pytest.raises(LightQueuesFullError, match=r"limits\.table_bytes_max"):
        found.require_light_queues(2, 10)
    found.require_light_queues(50, 0)
    assert found.used == 25 * taken


def test_notes_of_deleted_topics_take_the_same_space() -> None:
    """Those that stay for ever: light queues are forgotten with the log. Deleting a topic frees more than it takes."""
    found, deleted = space(100_000), DeletedTopics(MemoryFileSystem(), Path("/s"))
    deleted.add(1, {"before": {0: 5}})
    found.count_deleted_topics(deleted.extent, 1)
    deleted.listener = found.count_deleted_topics
    one = found.used
    assert one > 0
    deleted.add(2, {"%LMQ%a": {0: 1}})
    assert found.used == one
    deleted.add(3, {"before": {0: 7}})
    assert found.used == one
    deleted.add(4, {"before": {1: 7}})
    assert found.used > one
    for number in range(1_000):
        deleted.add(5, {f"{number}": {0: 1}})
    assert found.sizes["deleted_topics"] == found.used > 400_000
    with pytest.raises(TableSpaceError, match="deleted topics"):
        found.require(1, "a topic")
    name, queues = "n" * 127, 1_000
    before = found.used
    deleted.add(6, {name: dict.fromkeys(range(queues), 1 << 60)})
    assert found.used - before < topic_size(name, queues)


def test_refusals_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    found = space(10)
    for _ in range(3):
        with pytest.raises(TableSpaceError):
            found.require(11, "a topic")
    assert caplog.text.count("no space for a topic") == 1
