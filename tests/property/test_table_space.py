"""The memory counted for tables is that of their content, after any sequence of changes: otherwise a broker that runs
for months would refuse what fits, or take what does not."""

from __future__ import annotations

import asyncio
import random

import pytest

from aerobee_broker.errors import BrokerError
from aerobee_broker.limits.table_space import TableSpace
from aerobee_broker.tables.consumer_groups import GroupConfig, GroupTable
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.topics import TopicConfig, TopicTable
from aerobee_store.tables.java_json import dumps, loads
from aerobee_store.testing import ManualClock
from tests.support import seeds

SEED = seeds.seed("AEROBEE_TABLE_SPACE_SEED")

_GROUPS = ("g", "h", "ns%g")
_TOPICS = ("a", "b", "ns%a", *(f"{prefix}{group}" for prefix in ("%RETRY%", "%DLQ%") for group in _GROUPS))


def group_like_read(name: str, draw: random.Random) -> GroupConfig:
    """A group with all fields of the file, which a start gives to those that have none."""
    group = GroupConfig(name=name, extra={"retryQueueNums": draw.randrange(4), "note": "x" * draw.randrange(5_000)})
    return GroupConfig.from_json(name, loads(dumps(group.to_json())))


class Model:
    """The tables of a broker, and the queues that its store has."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.queues: dict[str, set[int]] = {}
        self.load(None, None, None)

    def load(self, topics: object, groups: object, offsets: object) -> None:
        """A start with these files."""
        clock, self.space = ManualClock(), TableSpace()
        self.topics = TopicTable.from_json(topics, clock, self.space)
        self.groups = GroupTable.from_json(groups, clock, self.space)
        self.offsets = OffsetTable.from_json(offsets, clock, self.space)
        self.topics.count_memory(self.queues, lambda name: self.queues.get(name, ()), self.groups.counted_queues)
        self.groups.size_listener = self.topics.recount_of_group

    def files(self) -> tuple[object, object, object]:
        topics, groups, offsets = (loads(dumps(t.snapshot())) for t in (self.topics, self.groups, self.offsets))
        return topics, groups, offsets

    def change(self) -> None:
        """One change, which may be refused."""
        draw = self.draw
        topic, group, queue_id = draw.choice(_TOPICS), draw.choice(_GROUPS), draw.randrange(5)
        wanted = TopicConfig(name=topic, read_queue_count=draw.randrange(1, 6), write_queue_count=draw.randrange(1, 6))
        made = group_like_read(group, draw)
        match draw.randrange(12):
            case 0:
                self.topics.create_internal(wanted)
            case 1:
                self.topics.create(wanted)
            case 2:
                self.topics.update(wanted)
            case 3:
                self.topics.delete(topic)
                self.queues.pop(topic, None)
                self.offsets.remove_topic(topic)
            case 4:
                self.groups.create(made)
            case 5:
                self.groups.update(made)
            case 6:
                self.groups.delete(group)
                self.offsets.remove_group(group)
            case 7:  # a message
                found = self.topics.require(topic)
                self.queues.setdefault(topic, set()).add(draw.randrange(found.write_queue_count))
            case 8:
                self.offsets.commit(topic, group, queue_id, draw.randrange(3), force=draw.random() < 0.5)
            case 9:
                self.offsets.put_back(topic, group, queue_id, draw.choice((None, 1)))
            case 10:
                table = draw.choice((self.topics, self.groups))
                (table.mark_saved if draw.random() < 0.5 else table.take_back)(table.revision)
            case 11:
                others = Model(random.Random(draw.random()))
                others.topics.create_internal(wanted)
                others.groups.create(made)
                others.offsets.commit(topic, group, queue_id, 1)
                self.queues = {name: ids for name, ids in self.queues.items() if name == topic}
                asyncio.run(self.topics.replace(others.topics))
                asyncio.run(self.groups.replace(others.groups))
                self.offsets.replace(others.offsets)


@pytest.mark.parametrize("number", range(15))
def test_the_count_equals_that_of_a_start(number: int) -> None:
    """Creations, changes, deletions, failed saves, copies of a master's tables and starts, in any order."""
    model = Model(random.Random(SEED + number))
    for _ in range(100):
        try:
            model.change()
        except BrokerError:
            continue
        sizes = dict(model.space.sizes)
        if model.draw.random() < 0.1:
            model.load(*model.files())
            started = model.space
        else:
            other = Model(random.Random(0))
            other.queues = model.queues
            other.load(*model.files())
            started = other.space
        assert sizes == started.sizes
        assert started.used == sum(sizes.values())
    for name in model.topics.latest_names():
        model.topics.delete(name)
    for name in model.groups.latest_names():
        model.groups.delete(name)
    for name in model.offsets.groups():
        model.offsets.remove_group(name)
    assert model.space.used == 0
